//! The requests that are made, beside the decoders of `kafka-protocol`: what is no request of its version would fuzz
//! little more than the first field.

use bytes::Bytes;
use camus_fuzz::make;
use camus_fuzz::requests::{nth_version, versions};
use camus_fuzz::rng::Rng;
use kafka_protocol::messages::{ApiKey, RequestKind};

#[test]
fn what_is_made_is_a_request_of_its_version() {
    let mut beyond = Vec::new();
    for n in 0..30 * versions() {
        let (api, version) = nth_version(n);
        let key = ApiKey::try_from(api.key).expect("Kafka has this key");
        if version > key.valid_versions().max {
            beyond.push((api.name, version));
            continue;
        }
        let mut body = Bytes::from(make::request(&mut Rng::of(2, "layouts", n), api, version, 0));
        let all = body.clone();
        let read = RequestKind::decode(key, &mut body, version);
        assert!(read.is_ok(), "{} v{version}: {:?} in {all:02x?}", api.name, read.err());
        assert!(body.is_empty(), "{} v{version}: {} bytes are left of {all:02x?}", api.name, body.len());
    }
    beyond.sort_unstable();
    beyond.dedup();
    assert_eq!(beyond, [("ApiVersions", 5), ("DeleteGroups", 3), ("ListOffsets", 11)], "kafka-protocol lacks these");
}
