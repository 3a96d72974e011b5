//! Record batches: what is accepted can be read back, record by record, in every codec; the rest is refused.
#![no_main]

use bytes::Bytes;
use camus_engine::partition::batch::{BatchHead, Codec, HEADER_BYTES, validate};
use camus_engine::partition::{pack, records};
use camus_engine::shard::api::{BatchRules, Packing, TimestampType};
use camus_engine::types::{Offset, WallMs};
use libfuzzer_sys::fuzz_target;
use std::ops::ControlFlow;

const NOW: WallMs = WallMs(1_800_000_000_000);

/// The records of a batch that was accepted.
fn plain(batch: &[u8]) -> Vec<u8> {
    let head = BatchHead::parse(batch).expect("what was accepted parses");
    let mut plain = Vec::new();
    records::unpack(&head, &batch[HEADER_BYTES..], &mut plain).expect("what was accepted can be read");
    plain
}

fuzz_target!(|input: (u8, &[u8])| {
    let (how, bytes) = input;
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
    if let Ok(Some(packed)) = pack::repacked(&sent, &BatchRules { packing, ..rules }, NOW) {
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
});
