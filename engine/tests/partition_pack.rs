//! Batches that are packed anew for their topic (`compression.type`). Lost if one of these fails: records, or their
//! order, their times and their producer; or a core's memory.

#![allow(clippy::unwrap_used, reason = "a test ends where its helpers do not hold")]

mod partition_kit;

use bytes::Bytes;
use camus_engine::limits;
use camus_engine::partition::batch::{BatchHead, Codec, HEADER_BYTES, validate};
use camus_engine::partition::pack;
use camus_engine::partition::records;
use camus_engine::shard::api::{BatchRules, Packing, Refusal, TimestampType};
use camus_engine::types::WallMs;
use partition_kit::*;

/// Each codec with a level that is not its usual one.
const WANTED: [(Codec, i32); 5] =
    [(Codec::None, 0), (Codec::Gzip, 1), (Codec::Snappy, 0), (Codec::Lz4, 17), (Codec::Zstd, 22)];

fn repacked(sent: &Bytes, rules: &BatchRules, now: WallMs) -> Result<Option<Bytes>, Refusal> {
    pack::repacked(sent, rules, now, &mut 0)
}

fn rules(codec: Codec, level: i32) -> BatchRules {
    BatchRules { packing: Some(Packing { codec, level }), ..BatchRules::default() }
}

/// Some hundred KiB, which can be packed to less; `codec` as the attributes say it.
fn sent(codec: u16) -> Bytes {
    let record = |n: usize| {
        let value = (0..1000).map(|at| (n + at / 100) as u8).collect();
        let headers = vec![(b"h".to_vec(), Some(vec![n as u8; 3]))];
        Rec { key: Some(n.to_be_bytes().to_vec()), value: Some(value), headers, timestamp: NOW + n as i64 }
    };
    Batch { codec, producer: (7, 1, 5), ..Batch::of((0..300).map(record).collect()) }.bytes()
}

fn unpacked(batch: &Bytes) -> (BatchHead, Vec<u8>) {
    let head = BatchHead::parse(batch).unwrap();
    let mut plain = Vec::new();
    records::unpack(&head, &batch[HEADER_BYTES..], &mut plain).unwrap();
    (head, plain)
}

#[test]
fn every_codec_is_packed_into_every_other_and_nothing_else_changes() {
    for from in 0..=4 {
        let sent = sent(from);
        let (sent_head, sent_plain) = unpacked(&sent);
        for (to, level) in WANTED {
            let rules = rules(to, level);
            let Some(packed) = repacked(&sent, &rules, WallMs(NOW)).unwrap() else {
                assert_eq!(sent_head.codec(), Some(to), "only what has the codec stays as it is");
                continue;
            };
            let (head, plain) = unpacked(&packed);
            assert_eq!((head.codec(), plain == sent_plain), (Some(to), true), "{from} to {to:?}");
            let BatchHead { length, attributes, crc, .. } = sent_head;
            assert_eq!(BatchHead { length, attributes, crc, ..head }, sent_head);
            assert_eq!(packed.len() < sent_plain.len(), to != Codec::None);
            let checked = validate(&packed, &rules, WallMs(NOW)).unwrap();
            assert_eq!((checked.bytes, repacked(&packed, &rules, WallMs(NOW))), (packed, Ok(None)));
        }
    }
}

#[test]
fn a_topic_that_wants_no_codec_gets_what_was_sent() {
    for codec in 0..=4 {
        assert_eq!(repacked(&sent(codec), &BatchRules::default(), WallMs(NOW)), Ok(None));
    }
}

/// A batch of a few KiB could be stored as one of a hundred MiB.
#[test]
fn what_would_be_larger_than_a_batch_may_be_is_refused() {
    let sent = sent(1);
    let limit = sent.len();
    for (codec, level) in [(Codec::None, 0), (Codec::Snappy, 0)] {
        let rules = BatchRules { batch_bytes_max: limit as u32, ..rules(codec, level) };
        let refused = repacked(&sent, &rules, WallMs(NOW));
        assert_eq!(refused, Err(Refusal::TooLarge { bytes: limit + 1, limit }), "{codec:?}");
    }
}

/// Damage would get a checksum of its own, and be served for ever.
#[test]
fn a_damaged_batch_is_not_packed_anew() {
    for codec in 0..=4 {
        let mut bytes = sent(codec).to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        let (bytes, rules) = (Bytes::from(bytes), rules(if codec == 4 { Codec::Gzip } else { Codec::Zstd }, 3));
        // where its records can not even be read, it is refused when it is appended
        let refused = repacked(&bytes, &rules, WallMs(NOW)).and_then(|packed| {
            assert_eq!(packed, None, "codec {codec}");
            validate(&bytes, &rules, WallMs(NOW)).map(|_| ())
        });
        assert!(matches!(refused, Err(Refusal::Corrupt(_))), "codec {codec}: {refused:?}");
    }
    let keyless = Batch::values(2).bytes();
    let rules = BatchRules { compacted: true, ..rules(Codec::Zstd, 3) };
    let refused = repacked(&keyless, &rules, WallMs(NOW));
    assert!(matches!(refused, Err(Refusal::Invalid { .. })), "{refused:?}");
}

#[test]
fn the_time_of_the_append_goes_with_a_new_codec() {
    let rules = BatchRules { timestamps: TimestampType::LogAppendTime, ..rules(Codec::Lz4, 9) };
    let packed = repacked(&sent(0), &rules, WallMs(NOW)).unwrap().expect("another codec");
    let checked = validate(&packed, &rules, WallMs(NOW + 5)).unwrap();
    assert_eq!(checked.append_time, Some(WallMs(NOW + 5)));
    assert_eq!(checked.head.codec(), Some(Codec::Lz4));
}

/// A few KiB would hold a core for seconds, and everybody whom it serves: gzip takes 30 ms for a MiB.
#[test]
fn what_unpacks_to_more_than_is_packed_anew_stays_as_it_was_sent() {
    let zeros = |bytes: usize| Rec { value: Some(vec![0; bytes]), ..Rec::default() };
    for (codec, level) in WANTED {
        let most = match codec {
            Codec::Gzip | Codec::Zstd => limits::PACK_SLOW_BYTES_MAX,
            Codec::None | Codec::Snappy | Codec::Lz4 => limits::PACK_FAST_BYTES_MAX,
        };
        let rules = BatchRules { batch_bytes_max: 2 * most as u32, ..rules(codec, level) };
        let other = if codec == Codec::Gzip { 4 } else { 1 };
        let batch = |bytes: usize| Batch { codec: other, ..Batch::of(vec![zeros(bytes)]) }.bytes();
        let (mut work, within) = (0, batch(most - 100));
        let packed = pack::repacked(&within, &rules, WallMs(NOW), &mut work).unwrap();
        assert_eq!(unpacked(&packed.expect("it is not too much")).1, unpacked(&within).1);
        assert!(work >= limits::PACK_WORK_PER_TURN - 8 * 200, "{codec:?}: a turn is over behind it");
        let (mut work, over) = (0, batch(most + 1));
        assert!(pack::is_due(&over, &rules), "the next turn may begin with it");
        assert_eq!(pack::repacked(&over, &rules, WallMs(NOW), &mut work), Ok(None), "{codec:?}");
        assert!(work <= most, "{codec:?}: it was given up at the limit");
        assert!(validate(&over, &rules, WallMs(NOW)).is_ok(), "and is stored");
    }
}
