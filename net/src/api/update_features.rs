//! UpdateFeatures: levels of what the brokers of a cluster can do together. Those that `api_versions.rs` names are at
//! their highest level from the start and stay there: nothing is to be raised, to be lowered or to be switched off.

use super::api_versions::FEATURES;
use super::messages::{self, Fault};
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::Code;
use kafka_protocol::messages::update_features_response::{UpdatableFeatureResult, UpdateFeaturesResponse};
use kafka_protocol::protocol::StrBytes;

struct Update {
    feature: StrBytes,
    level: i16,
}

fn read(request: &Request) -> Result<Vec<Update>, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 0);
    let _timeout_ms = r.i32()?;
    let features = messages::structs(&mut r, 5, |r| {
        let feature = r.string()?;
        let level = r.i16()?;
        // Whether it may be lowered: a bool in version 0, a kind of change from version 1 on.
        let _change = r.i8()?;
        Ok(Update { feature, level })
    })?;
    if request.version >= 1 {
        let _validate_only = r.bool()?;
    }
    r.tags()?;
    Ok(features)
}

/// Why this one can not be done, if it can not.
fn check(update: &Update) -> Result<(), Fault> {
    let shown = messages::shown(&update.feature);
    let why = match FEATURES.iter().find(|feature| feature.name == update.feature.as_str()) {
        None => format!("there is no feature '{shown}' in this version of Camus"),
        Some(feature) if feature.level == update.level => return Ok(()),
        Some(feature) => format!("'{shown}' is at level {} in this version of Camus, and stays there", feature.level),
    };
    Err(Fault::new(Code::InvalidUpdateVersion, why))
}

/// UpdateFeatures 0-2, flexible from 0. One update that is refused refuses all, as in Kafka.
pub fn handle(_: &mut Ctx<'_>, request: &Request) -> Outcome {
    let updates = match read(request) {
        Ok(updates) => updates,
        Err(fault) => return fault.into(),
    };
    let done = updates.iter().try_for_each(check);
    let (code, message) = messages::told(&done);
    // The first one's reason stands above all, and not in each.
    let one = |update: Update| {
        let message = (code != 0).then(|| StrBytes::from_static_str("one of the updates was refused"));
        let result = UpdatableFeatureResult::default().with_feature(update.feature);
        result.with_error_code(code).with_error_message(message)
    };
    let results = if request.version <= 1 { updates.into_iter().map(one).collect() } else { Vec::new() };
    let answer = UpdateFeaturesResponse::default().with_error_code(code).with_error_message(message);
    respond(&answer.with_results(results), request.version)
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use kafka_protocol::messages::UpdateFeaturesRequest;
    use kafka_protocol::messages::update_features_request::FeatureUpdateKey;

    fn question(level: i16, names: &[&'static str]) -> UpdateFeaturesRequest {
        let one = |name: &&'static str| {
            let update = FeatureUpdateKey::default().with_feature(StrBytes::from_static_str(name));
            update.with_max_version_level(level)
        };
        UpdateFeaturesRequest::default().with_feature_updates(names.iter().map(one).collect())
    }

    /// A tool would believe a level finalized that nobody goes by.
    #[test]
    fn every_version_refuses_what_is_not_at_that_level_already() {
        for version in 0..=2 {
            let asked = question(2, &["transaction.version", "metadata.version"]);
            let answer: UpdateFeaturesResponse = World::new().call(handle, version, &asked);
            assert_eq!(answer.error_code, 95);
            assert!(answer.error_message.is_some_and(|m| m.contains("transaction.version")));
            let results: Vec<_> = answer.results.iter().map(|r| (r.feature.as_str(), r.error_code)).collect();
            let each = vec![("transaction.version", 95), ("metadata.version", 95)];
            assert_eq!(results, if version <= 1 { each } else { vec![] });
            for (level, code) in [(0, 95), (1, 0), (2, 95)] {
                let asked = question(level, &["group.version"]);
                let answer: UpdateFeaturesResponse = World::new().call(handle, version, &asked);
                assert_eq!((answer.error_code, answer.error_message.is_some()), (code, code != 0), "to level {level}");
            }
            let answer: UpdateFeaturesResponse = World::new().call(handle, version, &question(1, &[]));
            assert_eq!((answer.error_code, answer.error_message, answer.results.len()), (0, None, 0));
        }
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 0..=2, |version| encoded(&question(1, &["group.version", ""]), version));
    }
}
