//! ApiVersions (key 18, versions 0 to 5): what this broker can do.
//!
//! The first request of most clients, and the only one that is answered in a version that we do not know: with error 35
//! in the layout of version 0 and the range of key 18, so that the client can ask again (KIP-511). Of the features
//! `group.version` is named: groups of KIP-848 are there. transaction.version comes with what it stands for.

use super::table::{API_VERSIONS, APIS, Api, api};
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, Writer};
use crate::errors::Code;
use kafka_protocol::protocol::StrBytes;

/// A feature of the cluster: its name, the levels that there are, and the one that it is at (KIP-584).
pub(super) struct Feature {
    pub name: &'static str,
    min: i16,
    max: i16,
    pub level: i16,
}

pub(super) const FEATURES: &[Feature] = &[Feature { name: "group.version", min: 0, max: 1, level: 1 }];

/// Clients of before KAFKA-17492 can not read a feature that begins at level 0: it is named from here on.
const LEVEL_0_FROM: i16 = 4;

pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let own = api(API_VERSIONS).expect("the table has a row for the function that it called");
    if !own.serves(request.version) {
        return answer(0, Code::UnsupportedVersion, std::slice::from_ref(own), None);
    }
    let client = match read(request) {
        Ok(client) => client,
        Err(fault) => return fault.into(),
    };
    let here = (ctx.settings.cluster_id.as_str(), ctx.settings.broker.0);
    // it grows whenever a feature may be at another level than before
    let epoch = i64::try_from(ctx.image.version).unwrap_or(i64::MAX);
    match client {
        Client { is_named: false, .. } => answer(request.version, Code::InvalidRequest, &[], None),
        Client { means: Some((cluster, broker)), .. } if (cluster.as_str(), broker) != here => {
            answer(request.version, Code::RebootstrapRequired, &[], None)
        }
        Client { .. } => answer(request.version, Code::None, APIS, Some(epoch)),
    }
}

struct Client {
    /// Its software has a proper name and version, where it gives them.
    is_named: bool,
    /// The cluster and the broker that it means to have reached: a proxy or an old address may have led it elsewhere
    /// (KIP-1242).
    means: Option<(StrBytes, i32)>,
}

fn read(request: &Request) -> Result<Client, Malformed> {
    if request.version < 3 {
        return Ok(Client { is_named: true, means: None });
    }
    let mut r = Reader::new(&request.body, true);
    let (name, version) = (r.string()?, r.string()?);
    let (cluster, broker) = if request.version >= 5 { (r.nullable_string()?, r.i32()?) } else { (None, -1) };
    r.tags()?;
    let is_named = is_software_name(&name) && is_software_name(&version);
    Ok(Client { is_named, means: cluster.map(|cluster| (cluster, broker)) })
}

/// KIP-511: `[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?`
fn is_software_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'.';
    match text.as_bytes() {
        [] => false,
        [only] => only.is_ascii_alphanumeric(),
        [first, between @ .., last] => {
            first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric() && between.iter().all(|b| inner(*b))
        }
    }
}

/// `features`: the epoch of the features, where they are named.
fn answer(version: i16, code: Code, apis: &[Api], features: Option<i64>) -> Outcome {
    let mut w = Writer::new(version >= 3);
    w.i16(code.wire());
    w.array(apis.len());
    for api in apis {
        w.i16(api.key);
        w.i16(api.advertised_min);
        w.i16(api.max);
        w.tags();
    }
    if version >= 1 {
        w.i32(0); // throttle_time_ms
    }
    match features.filter(|_| version >= 3) {
        Some(epoch) => named(&mut w, version, epoch),
        None => w.tags(),
    }
    Outcome::Reply(w.done())
}

/// The tagged fields: features that there are (0), the epoch of those that are in use (1), and these (2).
fn named(w: &mut Writer, version: i16, epoch: i64) {
    let readable = |feature: &&Feature| feature.min > 0 || version >= LEVEL_0_FROM;
    let supported: Vec<&Feature> = FEATURES.iter().filter(readable).collect();
    w.uvarint(if supported.is_empty() { 2 } else { 3 });
    if !supported.is_empty() {
        w.uvarint(0);
        levels(w, supported.iter().map(|feature| (feature.name, feature.min, feature.max)));
    }
    w.uvarint(1);
    w.uvarint(8);
    w.i64(epoch);
    w.uvarint(2);
    levels(w, FEATURES.iter().map(|feature| (feature.name, feature.level, feature.level)));
}

/// The bytes of one tagged field, with their length before them: a name and two levels for each feature.
fn levels(w: &mut Writer, features: impl ExactSizeIterator<Item = (&'static str, i16, i16)> + Clone) {
    // a short string, two levels, no tagged fields; the count takes one byte as long as there are few
    let bytes: usize = features.clone().map(|(name, ..)| 1 + name.len() + 2 + 2 + 1).sum();
    w.uvarint(u32::try_from(1 + bytes).expect("there are few features"));
    w.array(features.len());
    for (name, first, second) in features {
        w.string(name);
        w.i16(first);
        w.i16(second);
        w.tags();
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{World, reply};
    use super::*;
    use bytes::Bytes;
    use kafka_protocol::messages::{ApiVersionsRequest, ApiVersionsResponse};
    use kafka_protocol::protocol::{Decodable, Encodable};

    fn ask(version: i16, name: &str, software: &str) -> Bytes {
        let mut body = bytes::BytesMut::new();
        let mut request = ApiVersionsRequest::default();
        if version >= 3 {
            request.client_software_name = StrBytes::from_string(name.to_owned());
            request.client_software_version = StrBytes::from_string(software.to_owned());
        }
        request.encode(&mut body, version).unwrap();
        World::default().run(API_VERSIONS, version, body.freeze(), reply)
    }

    /// A key that is not named is never used; one that is named must be there.
    #[test]
    fn every_version_names_exactly_the_keys_of_the_table() {
        for version in 0..=4 {
            let mut body = ask(version, "conformance", "1.0");
            let got = ApiVersionsResponse::decode(&mut body, version).unwrap();
            assert!(body.is_empty(), "version {version}");
            assert_eq!((got.error_code, got.throttle_time_ms), (0, 0));
            let named: Vec<_> = got.api_keys.iter().map(|k| (k.api_key, k.min_version, k.max_version)).collect();
            let rows: Vec<_> = APIS.iter().map(|a| (a.key, a.advertised_min, a.max)).collect();
            assert_eq!(named, rows);
        }
    }

    /// Lost if it fails: a client that asks for groups of KIP-848 is told that they are not there, or an older one can
    /// not read the answer at all.
    #[test]
    fn the_group_version_is_named_where_clients_can_read_it() {
        for version in 0..=4 {
            let got = ApiVersionsResponse::decode(&mut ask(version, "conformance", "1.0"), version).unwrap();
            let supported: Vec<_> =
                got.supported_features.iter().map(|f| (f.name.as_str(), f.min_version, f.max_version)).collect();
            assert_eq!(supported, if version >= 4 { vec![("group.version", 0, 1)] } else { vec![] });
            let levels: Vec<_> = got
                .finalized_features
                .iter()
                .map(|f| (f.name.as_str(), f.min_version_level, f.max_version_level))
                .collect();
            assert_eq!(levels, if version >= 3 { vec![("group.version", 1, 1)] } else { vec![] });
            assert_eq!(got.finalized_features_epoch, if version >= 3 { 1 } else { -1 });
        }
    }

    /// Clients that know a newer ApiVersions must find out that we do not; some loop for ever on any other answer.
    #[test]
    fn an_unknown_version_is_35_in_the_layout_of_version_0_with_the_range_of_key_18() {
        for version in [6, 7, 99, i16::MAX, -1] {
            let body = World::default().run(API_VERSIONS, version, Bytes::from_static(b"whatever"), reply);
            assert_eq!(body[..], [0, 35, 0, 0, 0, 1, 0, 18, 0, 0, 0, 5]);
        }
    }

    /// A client that a proxy has led to another cluster would write there, and its offsets would mean something else.
    #[test]
    fn who_means_another_broker_is_sent_back_to_the_start() {
        let ask = |cluster: Option<&str>, broker: i32| {
            let mut body = b"\x02a\x021".to_vec();
            body.push(cluster.map_or(0, |cluster| cluster.len() as u8 + 1));
            body.extend_from_slice(cluster.unwrap_or_default().as_bytes());
            body.extend_from_slice(&broker.to_be_bytes());
            body.push(0);
            let mut answer = World::default().run(API_VERSIONS, 5, Bytes::from(body), reply);
            // version 5 is answered in the layout of version 4
            let got = ApiVersionsResponse::decode(&mut answer, 4).unwrap();
            assert!(answer.is_empty());
            (got.error_code, got.api_keys.len())
        };
        for (cluster, broker) in [(None, -1), (None, 7), (Some("test"), 1)] {
            assert_eq!(ask(cluster, broker), (0, APIS.len()), "{cluster:?} {broker}");
        }
        for (cluster, broker) in [(Some("test"), 7), (Some("test"), -1), (Some("other"), 1), (Some(""), 1)] {
            assert_eq!(ask(cluster, broker), (129, 0), "{cluster:?} {broker}");
        }
    }

    /// KIP-511: the answer stays parseable, in the version of the request.
    #[test]
    fn a_malformed_software_name_is_42() {
        for (name, software) in
            [("", "1"), ("a", ""), ("a b", "1"), ("-a", "1"), ("a", "1-"), ("a\u{e9}", "1"), (".", "1")]
        {
            let mut body = ask(3, name, software);
            let got = ApiVersionsResponse::decode(&mut body, 3).unwrap();
            assert_eq!((got.error_code, got.api_keys.len(), body.len()), (42, 0, 0), "{name} {software}");
        }
        for (name, software) in [("a", "1"), ("librdkafka", "2.3.0-RC1"), ("apache-kafka.java", "4")] {
            let got = ApiVersionsResponse::decode(&mut ask(4, name, software), 4).unwrap();
            assert_eq!(got.error_code, 0, "{name} {software}");
        }
    }

    /// A body that is cut off can not be answered.
    #[test]
    fn a_body_that_ends_early_closes_the_connection() {
        let outcome = World::default().start(API_VERSIONS, 3, Bytes::from_static(b"\x05abc"));
        assert!(matches!(outcome, Outcome::Close(_)));
    }
}
