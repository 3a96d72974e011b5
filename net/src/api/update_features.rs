//! UpdateFeatures: levels of what the brokers of a cluster can do together. Camus has no such feature yet
//! (`api_versions.rs` names none), so that there is nothing to raise, to lower or to switch off.

use super::messages::{self, Fault};
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::Code;
use kafka_protocol::messages::update_features_response::{UpdatableFeatureResult, UpdateFeaturesResponse};
use kafka_protocol::protocol::StrBytes;

/// The names of the features.
fn read(request: &Request) -> Result<Vec<StrBytes>, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 0);
    let _timeout_ms = r.i32()?;
    let features = messages::structs(&mut r, 5, |r| {
        let feature = r.string()?;
        // Whether it may be lowered: a bool in version 0, a kind of change from version 1 on.
        let _change = (r.i16()?, r.i8()?);
        Ok(feature)
    })?;
    if request.version >= 1 {
        let _validate_only = r.bool()?;
    }
    r.tags()?;
    Ok(features)
}

/// UpdateFeatures 0-2, flexible from 0. One update that is refused refuses all, as in Kafka.
pub fn handle(_: &mut Ctx<'_>, request: &Request) -> Outcome {
    let features = match read(request) {
        Ok(features) => features,
        Err(fault) => return fault.into(),
    };
    let refused = features.first().map_or(Ok(()), |feature| {
        let why = format!("there is no feature '{}': this version of Camus has none", messages::shown(feature));
        Err(Fault::new(Code::InvalidUpdateVersion, why))
    });
    let (code, message) = messages::told(&refused);
    // The first one's name stands above all, and not in each.
    let one = |feature: StrBytes| {
        let result = UpdatableFeatureResult::default().with_feature(feature).with_error_code(code);
        result.with_error_message(Some(StrBytes::from_static_str("there is no such feature")))
    };
    let results = if request.version <= 1 { features.into_iter().map(one).collect() } else { Vec::new() };
    let answer = UpdateFeaturesResponse::default().with_error_code(code).with_error_message(message);
    respond(&answer.with_results(results), request.version)
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use kafka_protocol::messages::UpdateFeaturesRequest;
    use kafka_protocol::messages::update_features_request::FeatureUpdateKey;

    fn question(names: &[&'static str]) -> UpdateFeaturesRequest {
        let one = |name: &&'static str| {
            let update = FeatureUpdateKey::default().with_feature(StrBytes::from_static_str(name));
            update.with_max_version_level(2)
        };
        UpdateFeaturesRequest::default().with_feature_updates(names.iter().map(one).collect())
    }

    /// A tool would believe a level finalized that nobody goes by.
    #[test]
    fn every_version_refuses_every_feature() {
        for version in 0..=2 {
            let asked = question(&["transaction.version", "metadata.version"]);
            let answer: UpdateFeaturesResponse = World::new().call(handle, version, &asked);
            assert_eq!(answer.error_code, 95);
            assert!(answer.error_message.is_some_and(|m| m.contains("transaction.version")));
            let results: Vec<_> = answer.results.iter().map(|r| (r.feature.as_str(), r.error_code)).collect();
            let each = vec![("transaction.version", 95), ("metadata.version", 95)];
            assert_eq!(results, if version <= 1 { each } else { vec![] });
            let answer: UpdateFeaturesResponse = World::new().call(handle, version, &question(&[]));
            assert_eq!((answer.error_code, answer.error_message, answer.results.len()), (0, None, 0));
        }
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 0..=2, |version| encoded(&question(&["group.version", ""]), version));
    }
}
