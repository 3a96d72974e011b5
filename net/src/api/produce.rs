//! Produce (key 0, versions 3 to 13): append record batches. 12 and 13 are not offered yet (`table.rs` says why).
//!
//! Each partition of a request is judged by itself: the good ones are appended, the others say why not. A batch goes to
//! its shard as a slice of the request's frame. The checks of a batch are the partition's (`engine::partition`); here
//! is only what depends on the request: its version, its acks, and which topic it means.
//!
//! acks=1 is answered like acks=all, when the batch is durable. acks=0 has no answer: an error closes the connection,
//! so that the client asks for metadata anew. A partition that is named twice is appended to twice, in order.

use super::{Ctx, NO_OFFSET, Outcome, Request};
use crate::codec::{Malformed, Reader, Writer};
use crate::errors::{Code, produce_code};
use bytes::Bytes;
use camus_engine::shard::api::{Answer, Ask, Produced, Refusal};
use camus_meta::Topic;
use kafka_protocol::protocol::StrBytes;
use std::sync::Arc;
use uuid::Uuid;

const FLEXIBLE_FROM: i16 = 9;
/// Topics by id, not by name.
const IDS_FROM: i16 = 13;
/// The first version in which a batch may be compressed with zstd (KIP-110).
const ZSTD_FROM: i16 = 7;

/// Where these lie in a record batch of magic 2.
const MAGIC_AT: usize = 16;
const ATTRIBUTES_LOW_AT: usize = 22;
const CODEC_BITS: u8 = 0x07;
const CODEC_ZSTD: u8 = 4;
const TRANSACTIONAL_BIT: u8 = 0x10;

#[derive(Clone, PartialEq, Eq, Debug)]
enum TopicRef {
    Name(StrBytes),
    Id(Uuid),
}

#[derive(Debug)]
struct ProduceRequest {
    transactional_id: Option<StrBytes>,
    acks: i16,
    topics: Vec<(TopicRef, Vec<PartitionData>)>,
}

#[derive(Debug)]
struct PartitionData {
    index: i32,
    records: Option<Bytes>,
}

fn decode(request: &Request) -> Result<ProduceRequest, Malformed> {
    let version = request.version;
    let mut r = Reader::new(&request.body, version >= FLEXIBLE_FROM);
    let transactional_id = r.nullable_string()?.filter(|id| !id.is_empty());
    let acks = r.i16()?;
    let _timeout_ms = r.i32()?; // an append that is under way can not be called back
    let topics = r.array(3, |r| {
        let topic = match version >= IDS_FROM {
            true => TopicRef::Id(r.uuid()?),
            false => TopicRef::Name(r.string()?),
        };
        let partitions = r.array(6, |r| {
            let data = PartitionData { index: r.i32()?, records: r.nullable_bytes()? };
            r.tags()?;
            Ok(data)
        })?;
        r.tags()?;
        Ok((topic, partitions))
    })?;
    r.tags()?;
    Ok(ProduceRequest { transactional_id, acks, topics })
}

/// Why a partition got nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Failure {
    code: Code,
    message: Option<String>,
    /// The records at fault, if single records are.
    indexes: Vec<i32>,
}

impl Failure {
    fn new(code: Code, message: &str) -> Failure {
        Failure { code, message: Some(message.to_owned()), indexes: vec![] }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        let (code, message) = (produce_code(&refusal), Some(refusal.to_string()));
        let indexes = match refusal {
            Refusal::Invalid { indexes, .. } | Refusal::Timestamp { indexes } => indexes,
            _ => vec![],
        };
        Failure { code, message, indexes }
    }
}

/// What became of one partition; `None` until its shard has answered.
struct Slot {
    index: i32,
    result: Option<Result<Produced, Failure>>,
}

type Slots = Vec<(TopicRef, Vec<Slot>)>;

pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let version = request.version;
    let ProduceRequest { transactional_id, acks, topics } = match decode(request) {
        Ok(decoded) => decoded,
        Err(fault) => return fault.into(),
    };
    let whole = match (acks, &transactional_id) {
        (-1..=1, None) => None,
        (-1..=1, Some(_)) => Some(no_transactions()),
        _ => Some(Failure::new(Code::InvalidRequiredAcks, "acks is one of 0, 1 and -1 (all)")),
    };
    let mut asks = Vec::new();
    let mut slots: Slots = Vec::with_capacity(topics.len());
    for (name, partitions) in topics {
        let topic = match &name {
            TopicRef::Name(name) => ctx.image.topic(name),
            TopicRef::Id(id) => ctx.image.topic_by_id(*id),
        };
        let of_topic = partitions.into_iter().map(|data| {
            let index = data.index;
            let ask = match &whole {
                Some(failure) => Err(failure.clone()),
                None => question(ctx, version, &name, topic, data),
            };
            let result = match ask {
                Ok(ask) => {
                    asks.push(ask);
                    None
                }
                Err(failure) => Some(Err(failure)),
            };
            Slot { index, result }
        });
        let of_topic = of_topic.collect();
        slots.push((name, of_topic));
    }
    if asks.is_empty() {
        return finish(version, acks, slots);
    }
    Outcome::Ask(
        asks,
        Box::new(move |_, answers| {
            let open = slots.iter_mut().flat_map(|(_, slots)| slots).filter(|slot| slot.result.is_none());
            let mut answers = answers.into_iter();
            for slot in open {
                slot.result = match answers.next() {
                    Some(Answer::Produced(result)) => Some(result.map_err(Failure::from)),
                    other => panic!("a produce was answered with {other:?}"),
                };
            }
            finish(version, acks, slots)
        }),
    )
}

fn no_transactions() -> Failure {
    Failure::new(Code::InvalidTxnState, "this broker has no transactions yet: none is open under this id")
}

/// What the partition's shard is asked, or why nothing is.
fn question(
    ctx: &Ctx<'_>,
    version: i16,
    name: &TopicRef,
    topic: Option<&Arc<Topic>>,
    data: PartitionData,
) -> Result<Ask, Failure> {
    let Some(topic) = topic else {
        return Err(match name {
            TopicRef::Name(_) => Failure::new(Code::UnknownTopicOrPartition, "there is no such topic"),
            TopicRef::Id(_) => Failure::new(Code::UnknownTopicId, "there is no topic with this id"),
        });
    };
    let place = usize::try_from(data.index).ok().and_then(|index| topic.partitions.get(index));
    let Some(place) = place else {
        return Err(Failure::new(Code::UnknownTopicOrPartition, "the topic has no such partition"));
    };
    let batch = data.records.unwrap_or_default();
    if batch.is_empty() {
        return Err(Failure::new(Code::InvalidRecord, "the request has no record batch for this partition"));
    }
    if batch.len() > ATTRIBUTES_LOW_AT && batch[MAGIC_AT] == 2 {
        let attributes = batch[ATTRIBUTES_LOW_AT];
        if attributes & CODEC_BITS == CODEC_ZSTD && version < ZSTD_FROM {
            return Err(Failure::new(Code::UnsupportedCompressionType, "zstd needs Produce version 7 or later"));
        }
        if attributes & TRANSACTIONAL_BIT != 0 {
            return Err(no_transactions());
        }
    }
    Ok(Ask::Produce { to: ctx.route(place.shard(), place.partition()), batch, rules: topic.rules })
}

fn finish(version: i16, acks: i16, slots: Slots) -> Outcome {
    if acks == 0 {
        let failed = slots.iter().flat_map(|(_, slots)| slots).any(|slot| !matches!(slot.result, Some(Ok(_))));
        return if failed { Outcome::Close("a produce with acks=0 had an error") } else { Outcome::Silent };
    }
    let mut w = Writer::new(version >= FLEXIBLE_FROM);
    w.array(slots.len());
    for (topic, slots) in &slots {
        match topic {
            TopicRef::Name(name) => w.string(name),
            TopicRef::Id(id) => w.uuid(*id),
        }
        w.array(slots.len());
        for slot in slots {
            let result = slot.result.as_ref().expect("every partition has a result when the request finishes");
            partition(&mut w, version, slot.index, result);
        }
        w.tags();
    }
    w.i32(0); // throttle_time_ms
    w.tags(); // node_endpoints (10 and later) is left out: the client asks Metadata
    Outcome::Reply(w.done())
}

fn partition(w: &mut Writer, version: i16, index: i32, result: &Result<Produced, Failure>) {
    let (code, done) = match result {
        Ok(done) => (Code::None, *done),
        Err(failure) => (failure.code, Produced { base_offset: NO_OFFSET, log_start: NO_OFFSET, append_time: None }),
    };
    w.i32(index);
    w.i16(code.wire());
    w.i64(done.base_offset.0);
    w.i64(done.append_time.map_or(-1, |t| t.0));
    if version >= 5 {
        w.i64(done.log_start.0);
    }
    if version >= 8 {
        let (indexes, message) = match result {
            Ok(_) => (&[][..], None),
            Err(failure) => (&failure.indexes[..], failure.message.as_deref()),
        };
        w.array(indexes.len());
        for index in indexes {
            w.i32(*index);
            w.nullable_string(message);
            w.tags();
        }
        w.nullable_string(message);
    }
    w.tags(); // current_leader (10 and later) is left out rather than guessed
}

#[cfg(test)]
mod tests {
    use super::super::table::PRODUCE;
    use super::super::testing::{World, batch, reply, shard};
    use super::*;
    use bytes::BytesMut;
    use camus_engine::types::{Offset, PartitionId, WallMs};
    use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
    use kafka_protocol::messages::produce_response::PartitionProduceResponse;
    use kafka_protocol::messages::{self, ProduceResponse, TopicName, TransactionalId};
    use kafka_protocol::protocol::{Decodable, Encodable};
    use proptest::prelude::*;

    fn body(version: i16, acks: i16, parts: &[(&str, u128, i32, Option<Bytes>)]) -> Bytes {
        let mut request = messages::ProduceRequest::default().with_acks(acks).with_timeout_ms(1000);
        for (name, id, index, records) in parts {
            let data = PartitionProduceData::default().with_index(*index).with_records(records.clone());
            let mut topic = TopicProduceData::default().with_partition_data(vec![data]);
            match version >= IDS_FROM {
                true => topic.topic_id = Uuid::from_u128(*id),
                false => topic.name = TopicName(StrBytes::from_string((*name).to_owned())),
            }
            request.topic_data.push(topic);
        }
        encode(&request, version)
    }

    fn encode(request: &messages::ProduceRequest, version: i16) -> Bytes {
        let mut out = BytesMut::new();
        request.encode(&mut out, version).unwrap();
        out.freeze()
    }

    fn parts(version: i16, outcome: Outcome) -> Vec<PartitionProduceResponse> {
        let mut body = reply(outcome);
        let got = ProduceResponse::decode(&mut body, version).unwrap();
        assert!(body.is_empty(), "version {version}: {} bytes left", body.len());
        assert_eq!(got.throttle_time_ms, 0);
        assert!(got.node_endpoints.is_empty());
        got.responses.into_iter().flat_map(|t| t.partition_responses).collect()
    }

    fn good() -> Option<Bytes> {
        Some(batch(0, 1, 10))
    }

    /// A wrong field in one version makes its clients read garbage.
    #[test]
    fn every_version_appends_and_answers() {
        for version in 3..=13 {
            let mut world = World::default();
            let asked = world.start(PRODUCE, version, body(version, -1, &[("t", 7, 1, good()), ("u", 8, 0, good())]));
            let mut seen = vec![];
            let outcome = world.answer(asked, |ask| {
                let Ask::Produce { to, batch, .. } = ask else { panic!("{ask:?}") };
                seen.push((to.partition, batch.len()));
                Answer::Produced(Ok(Produced {
                    base_offset: Offset(41),
                    log_start: Offset(5),
                    append_time: (seen.len() == 2).then_some(WallMs(99)),
                }))
            });
            let got = parts(version, outcome);
            assert_eq!(seen, [(PartitionId(7001), 71), (PartitionId(8000), 71)]);
            let seen: Vec<_> =
                got.iter().map(|p| (p.index, p.error_code, p.base_offset, p.log_append_time_ms)).collect();
            assert_eq!(seen, [(1, 0, 41, -1), (0, 0, 41, 99)], "version {version}");
            assert_eq!(got[0].log_start_offset, if version >= 5 { 5 } else { -1 });
            assert!(got.iter().all(|p| p.record_errors.is_empty() && p.error_message.is_none()));
        }
    }

    /// Records that are copied would double the memory of each produce.
    #[test]
    fn the_batch_that_the_shard_gets_is_a_slice_of_the_frame() {
        let body = body(9, -1, &[("t", 7, 0, good())]);
        let Outcome::Ask(asks, _) = World::default().start(PRODUCE, 9, body.clone()) else { panic!("no question") };
        let [Ask::Produce { batch, .. }] = &asks[..] else { panic!("{asks:?}") };
        let frame = body.as_ptr_range();
        assert!(frame.contains(&batch.as_ptr()));
    }

    /// An unknown topic must not be answered in place of a known one, and says so in the words of its version.
    #[test]
    fn unknown_topics_and_partitions_are_refused_each_for_itself() {
        for version in 3..=13 {
            let unknown = if version >= 13 { 100 } else { 3 };
            let mut world = World::default();
            let asked = world.start(
                PRODUCE,
                version,
                body(
                    version,
                    1,
                    &[("no", 70, 0, good()), ("t", 7, 0, good()), ("t", 7, 3, good()), ("t", 7, -1, good())],
                ),
            );
            let got = parts(version, world.answer(asked, shard));
            let seen: Vec<_> = got.iter().map(|p| (p.error_code, p.base_offset)).collect();
            assert_eq!(seen, [(unknown, -1), (0, 0), (3, -1), (3, -1)], "version {version}");
        }
    }

    /// SPEC promise 9: a clear code for each fault, and nothing is asked of a shard.
    #[test]
    fn what_can_be_told_without_the_shard_is_told() {
        let with = |attributes: u8| {
            let mut b = batch(0, 1, 10).to_vec();
            b[ATTRIBUTES_LOW_AT] = attributes;
            Some(Bytes::from(b))
        };
        for (version, acks, records, code) in [
            (9, 2, good(), 21),
            (9, -2, good(), 21),
            (3, 32767, good(), 21),
            (9, -1, None, 87),
            (3, 1, Some(Bytes::new()), 87),
            (6, 1, with(4), 76),
            (11, 1, with(0x10), 48),
        ] {
            let got =
                parts(version, World::default().start(PRODUCE, version, body(version, acks, &[("t", 7, 0, records)])));
            assert_eq!((got[0].error_code, got[0].base_offset), (code, -1));
        }
        let outcome = World::default().start(PRODUCE, 7, body(7, 1, &[("t", 7, 0, with(4))]));
        assert!(matches!(outcome, Outcome::Ask(..)), "zstd is fine from version 7 on");
    }

    /// A transactional producer must not believe that its records are in a transaction.
    #[test]
    fn a_transactional_id_is_refused_until_there_are_transactions() {
        let mut request = messages::ProduceRequest::default().with_acks(-1);
        request.transactional_id = Some(TransactionalId(StrBytes::from_static_str("tx")));
        let data = PartitionProduceData::default().with_records(good());
        let name = TopicName(StrBytes::from_static_str("t"));
        request.topic_data.push(TopicProduceData::default().with_name(name).with_partition_data(vec![data]));
        let got = parts(11, World::default().start(PRODUCE, 11, encode(&request, 11)));
        assert_eq!(got[0].error_code, 48);
    }

    /// acks=0 has no answer that could say no.
    #[test]
    fn acks_0_is_silent_or_closes() {
        for version in 3..=13 {
            let mut world = World::default();
            let asked = world.start(PRODUCE, version, body(version, 0, &[("t", 7, 0, good())]));
            assert!(matches!(world.answer(asked, shard), Outcome::Silent));
            let asked = world.start(PRODUCE, version, body(version, 0, &[("t", 7, 0, good())]));
            let refused = world.answer(asked, |_| Answer::Produced(Err(Refusal::NotLeader)));
            assert!(matches!(refused, Outcome::Close(_)));
            let unknown = world.start(PRODUCE, version, body(version, 0, &[("no", 1, 0, good())]));
            assert!(matches!(unknown, Outcome::Close(_)));
            assert!(matches!(world.start(PRODUCE, version, body(version, 0, &[])), Outcome::Silent));
        }
    }

    /// The producer must learn which record was at fault.
    #[test]
    fn refusals_carry_code_message_and_record_indexes() {
        for version in 3..=13 {
            let mut world = World::default();
            let asked = world.start(PRODUCE, version, body(version, -1, &[("t", 7, 0, good())]));
            let refusal = Refusal::Invalid { why: "a record has no key", indexes: vec![1, 4] };
            let got = parts(version, world.answer(asked, |_| Answer::Produced(Err(refusal.clone()))));
            assert_eq!(got[0].error_code, 87);
            let indexes: Vec<_> = got[0].record_errors.iter().map(|e| e.batch_index).collect();
            assert_eq!(indexes, if version >= 8 { vec![1, 4] } else { vec![] });
            let message = got[0].error_message.as_deref();
            assert_eq!(message, (version >= 8).then_some("the batch is invalid: a record has no key"));
        }
    }

    /// Whatever is acknowledged is in the log: a second batch for a partition must not be lost under the first.
    #[test]
    fn a_partition_that_is_named_twice_is_appended_to_twice() {
        let mut world = World::default();
        let asked = world.start(PRODUCE, 12, body(12, -1, &[("t", 7, 0, good()), ("t", 7, 0, good())]));
        let mut next = 0;
        let outcome = world.answer(asked, |_| {
            next += 1;
            Answer::Produced(Ok(Produced { base_offset: Offset(next), log_start: Offset(0), append_time: None }))
        });
        let offsets: Vec<_> = parts(12, outcome).iter().map(|p| p.base_offset).collect();
        assert_eq!(offsets, [1, 2]);
    }

    #[test]
    fn a_request_without_topics_is_answered_without_topics() {
        for version in 3..=13 {
            assert!(parts(version, World::default().start(PRODUCE, version, body(version, -1, &[]))).is_empty());
        }
    }

    /// A length or count that lies must close the connection before anything is done.
    #[test]
    fn a_request_that_ends_early_closes_and_asks_nothing() {
        for version in 3..=13 {
            let whole = body(version, -1, &[("t", 7, 0, good()), ("u", 8, 1, good())]);
            for end in 0..whole.len() {
                let outcome = World::default().start(PRODUCE, version, whole.slice(..end));
                assert!(matches!(outcome, Outcome::Close(_)), "version {version}, {end} bytes");
            }
        }
    }

    proptest! {
        /// No bytes panic, in any version.
        #[test]
        fn any_bytes_are_answered_asked_or_closed(version in 3_i16..=13, data: Vec<u8>) {
            let _ = World::default().start(PRODUCE, version, data.into());
        }

        /// Nor do bytes that are nearly right.
        #[test]
        fn a_flipped_byte_is_answered_asked_or_closed(version in 3_i16..=13, at: prop::sample::Index, bits: u8) {
            let mut data = body(version, 1, &[("t", 7, 0, good()), ("u", 8, 1, good())]).to_vec();
            let at = at.index(data.len());
            data[at] ^= bits;
            let _ = World::default().start(PRODUCE, version, data.into());
        }
    }
}
