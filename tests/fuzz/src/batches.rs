//! Record batches: what is accepted can be read back, record by record, in every codec; the rest is refused.
//!
//! An input: one byte, what is put right and by which rules; the batch.

use crate::rng::Rng;
use crate::{MIB, Target, mutate};
use bytes::Bytes;
use camus_engine::partition::batch::{BatchHead, Codec, HEADER_BYTES, validate};
use camus_engine::partition::{pack as packer, records};
use camus_engine::shard::api::{BatchRules, Packing, TimestampType};
use camus_engine::types::{Offset, WallMs};
use std::ops::ControlFlow;

#[path = "../../../engine/tests/partition_kit/mod.rs"]
#[allow(clippy::unwrap_used, reason = "a kit of tests")]
mod partition_kit;

use partition_kit::{Batch, Rec, lz4_linked, pack, plain_records, snappy_block};

pub const TARGET: Target = Target {
    name: "batches",
    fuzz,
    heap_bytes_max,
    make: input,
    whole: || 20 * CODECS,
    corpus: include_str!("../corpus/batches.txt"),
    share: 2,
};

const NOW: WallMs = WallMs(1_800_000_000_000);
/// How records are packed: the format's five, snappy as one bare block, lz4 in linked blocks with and without checks.
const CODECS: u64 = 8;

pub fn fuzz(data: &[u8]) {
    let Some((how, bytes)) = data.split_first() else { return };
    let mut raw = bytes.to_vec();
    if how & 1 == 0 && raw.len() >= HEADER_BYTES {
        // The checksum is put right, so that the fuzzer gets behind it.
        let length = (raw.len() - 12) as i32;
        raw[8..12].copy_from_slice(&length.to_be_bytes());
        raw[16] = 2;
        let crc = crc32c::crc32c(&raw[21..]);
        raw[17..21].copy_from_slice(&crc.to_be_bytes());
    }
    let rules = BatchRules {
        timestamps: if how & 2 == 0 { TimestampType::CreateTime } else { TimestampType::LogAppendTime },
        compacted: how & 4 != 0,
        ..BatchRules::default()
    };
    let codec = match (how >> 3) & 7 {
        0 => Codec::None,
        1 => Codec::Gzip,
        2 => Codec::Snappy,
        3 => Codec::Lz4,
        _ => Codec::Zstd,
    };
    let sent = Bytes::from(raw);
    let packing = Some(Packing { codec, level: i32::from(how >> 6) });
    if let Ok(Some(packed)) = packer::repacked(&sent, &BatchRules { packing, ..rules }, NOW, &mut 0) {
        let (from, to) = (plain(&sent), plain(&packed));
        assert_eq!(from, to, "another codec, the same records");
    }
    let Ok(checked) = validate(&sent, &rules, NOW) else { return };
    let stored = BatchHead::parse(&checked.bytes).expect("what was accepted parses");
    assert_eq!(stored.count, checked.head.count);
    assert_eq!(crc32c::crc32c(&checked.bytes[21..]), stored.crc);
    let mut seen = 0;
    records::walk(&stored, &checked.bytes[HEADER_BYTES..], |record| {
        assert_eq!(record.delta, seen);
        seen += 1;
        ControlFlow::Continue(())
    })
    .expect("what was accepted can be read");
    assert_eq!(seen, stored.count);
    let _ = records::first_at_or_after(&checked.bytes, stored.base_timestamp, Offset(0)).expect("readable");
    let _ = records::max_timestamp(&checked.bytes, Offset(0)).expect("readable");
}

/// The records of a batch that was accepted.
fn plain(batch: &[u8]) -> Vec<u8> {
    let head = BatchHead::parse(batch).expect("what was accepted parses");
    let mut plain = Vec::new();
    records::unpack(&head, &batch[HEADER_BYTES..], &mut plain).expect("what was accepted can be read");
    plain
}

/// A copy or two of the batch; a block of snappy, which is unpacked as a whole (22 bytes for one at most), while its
/// buffer grows; the buffers of lz4, whose blocks have up to 4 MiB. What zstd takes is not counted here, but by the
/// limit of the process: a window of 128 MiB at most, touched as far as it is used.
fn heap_bytes_max(data: &[u8]) -> usize {
    64 * data.len() + 24 * MIB
}

/// In the first rounds batches are right, in every codec.
fn input(rng: &mut Rng, n: u64) -> Vec<u8> {
    let right = n < 4 * CODECS;
    let how = if right { 1 } else { rng.byte() };
    let mut bytes = vec![how];
    bytes.extend(packed(rng, n % CODECS, !right));
    bytes
}

/// A batch as a producer sends it, or one in which something is wrong.
pub fn batch(rng: &mut Rng, wrong: bool) -> Vec<u8> {
    let codec = rng.below(CODECS as usize) as u64;
    packed(rng, codec, wrong)
}

fn packed(rng: &mut Rng, codec: u64, wrong: bool) -> Vec<u8> {
    let count = if rng.one_in(16) { 1 + rng.below(60) } else { 1 + rng.below(5) };
    let mut batch = Batch::of((0..count).map(|_| record(rng)).collect());
    if rng.one_in(3) {
        batch.producer = (rng.below(3) as i64, rng.below(3) as i16, rng.below(10) as i32);
    }
    if wrong {
        bend(rng, &mut batch);
    }
    let mut plain = plain_records(&batch);
    if wrong && rng.one_in(4) {
        mutate::mutate(rng, &mut plain, &[]);
    }
    let (bits, mut payload) = match codec {
        5 => (2, snappy_block(&plain)),
        6 => (3, lz4_linked(&plain, true)),
        7 => (3, lz4_linked(&plain, false)),
        usual => (usual as u16, pack(usual as u16, &plain)),
    };
    if wrong && rng.one_in(3) {
        for _ in 0..1 + rng.below(3) {
            mutate::mutate(rng, &mut payload, &plain);
        }
    }
    batch.codec = bits;
    batch.payload = Some(payload);
    batch.bytes().to_vec()
}

fn record(rng: &mut Rng) -> Rec {
    let bytes = |rng: &mut Rng| match rng.below(40) {
        0..=3 => None,
        // packs to almost nothing
        4 => Some(vec![0; rng.below(20_000)]),
        _ => {
            let count = rng.below(40);
            Some(rng.bytes(count))
        }
    };
    let (key, value) = (bytes(rng), bytes(rng));
    let headers = (0..rng.below(3)).map(|_| (b"name".to_vec(), bytes(rng))).collect();
    Rec { key, value, headers, timestamp: NOW.0 - rng.below(1000) as i64 }
}

/// One field, or a few, say something else than the records do.
fn bend(rng: &mut Rng, batch: &mut Batch) {
    let count = batch.records.len() as i32;
    for _ in 0..rng.below(3) {
        match rng.below(9) {
            0 => batch.count = Some(rng.pick(&[0, -1, 1, count + 1, i32::MAX, i32::MIN])),
            1 => batch.last_delta = Some(rng.pick(&[0, -1, count, i32::MAX, i32::MIN])),
            2 => {
                let more = rng.pick(&[1, i32::MAX - count, 1 << 24]);
                (batch.count, batch.last_delta) = (Some(count + more), Some(count + more - 1));
            }
            3 => batch.length = Some(rng.pick(&[0, -1, 13, 14, 48, 49, 50, i32::MAX, i32::MIN])),
            4 => batch.attributes = 1 << rng.below(16),
            5 => batch.max_timestamp = Some(rng.pick(&[-1, 0, i64::MAX, i64::MIN, NOW.0])),
            6 => batch.producer = (rng.pick(&[-2, -1, 0, i64::MAX]), rng.pick(&[-1, 0, i16::MAX]), rng.pick(&[-1, 0])),
            7 => batch.deltas = Some((0..count).map(|_| rng.draw() as i32).collect()),
            _ => batch.magic = rng.pick(&[0, 1, 3, 0xff]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If what is made is refused, no record is ever walked over.
    #[test]
    fn the_first_rounds_are_accepted_in_every_codec() {
        for n in 0..4 * CODECS {
            let made = input(&mut Rng::of(1, "test", n), n);
            let checked = validate(&Bytes::copy_from_slice(&made[1..]), &BatchRules::default(), NOW);
            assert!(checked.is_ok(), "input {n}: {checked:?}");
        }
    }
}
