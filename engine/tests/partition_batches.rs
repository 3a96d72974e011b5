//! What a client's batch must obey. Lost if one of these fails: damaged or lying bytes get into the log, where every
//! consumer meets them; or honest bytes are refused or changed.

#![allow(clippy::unwrap_used, reason = "a test ends where its helpers do not hold")]

mod partition_kit;

use bytes::Bytes;
use camus_engine::limits;
use camus_engine::partition::batch::{BatchHead, HEADER_BYTES, validate};
use camus_engine::partition::records;
use camus_engine::shard::api::{BatchRules, Refusal, TimestampType};
use camus_engine::types::{LeaderEpoch, Offset, WallMs};
use partition_kit::*;
use proptest::prelude::*;
use std::ops::ControlFlow;

fn check(batch: &Batch) -> Result<Bytes, Refusal> {
    check_bytes(&batch.bytes())
}

fn check_bytes(bytes: &Bytes) -> Result<Bytes, Refusal> {
    validate(bytes, &BatchRules::default(), WallMs(NOW)).map(|checked| checked.bytes)
}

#[derive(Debug, PartialEq)]
enum Kind {
    Corrupt,
    Invalid,
    TooLarge,
    Codec,
}

fn kind(result: Result<Bytes, Refusal>) -> Kind {
    match result.unwrap_err() {
        Refusal::Corrupt(_) => Kind::Corrupt,
        Refusal::Invalid { .. } => Kind::Invalid,
        Refusal::TooLarge { .. } => Kind::TooLarge,
        Refusal::UnsupportedCodec => Kind::Codec,
        other => panic!("no refusal of a format: {other}"),
    }
}

fn one() -> Batch {
    Batch::values(1)
}

fn two() -> Batch {
    Batch::values(2)
}

fn payload(parts: &[&[u8]]) -> Batch {
    Batch { payload: Some(parts.concat()), ..one() }
}

fn number(n: i64) -> Vec<u8> {
    let mut out = Vec::new();
    varint(n, &mut out);
    out
}

/// Two records, the first of which says that it has the bytes of both.
fn swallowing() -> Bytes {
    let bodies = [&number(13)[..], &[0, 0, 0, 1, 1, 0], &number(6), &[0, 0, 2, 1, 1, 0]].concat();
    Batch { payload: Some(bodies), ..two() }.bytes()
}

#[test]
fn every_bad_batch_is_refused_with_its_code() {
    use Kind::*;
    let cut = |batch: Batch, keep: usize| batch.bytes().slice(..keep);
    let glued = |more: &[u8]| Bytes::from([&one().bytes()[..], more].concat());
    let flipped = |at: usize| {
        let mut bytes = two().bytes().to_vec();
        bytes[at] ^= 0xff;
        Bytes::from(bytes)
    };
    let last = two().bytes().len() - 1;
    let cases: Vec<(&str, Bytes, Kind)> = vec![
        ("checksum wrong", Batch { crc: Some(0), ..one() }.bytes(), Corrupt),
        ("payload bit flipped", flipped(last), Corrupt),
        ("attributes changed", flipped(22), Corrupt),
        ("magic 0", Batch { magic: 0, ..one() }.bytes(), Invalid),
        ("magic 1", Batch { magic: 1, ..one() }.bytes(), Invalid),
        ("magic 3", Batch { magic: 3, ..one() }.bytes(), Invalid),
        ("cut short", cut(one(), one().bytes().len() - 3), Invalid),
        ("only half the header", cut(one(), 30), Invalid),
        ("a few bytes", cut(one(), 5), Invalid),
        ("no batch", Bytes::new(), Invalid),
        ("length 10", Batch { length: Some(10), ..one() }.bytes(), Corrupt),
        ("length 20", Batch { length: Some(20), ..one() }.bytes(), Corrupt),
        ("length -1", Batch { length: Some(-1), ..one() }.bytes(), Corrupt),
        ("length min", Batch { length: Some(i32::MIN), ..one() }.bytes(), Corrupt),
        ("length max", Batch { length: Some(i32::MAX), ..one() }.bytes(), Invalid),
        ("two batches", glued(&one().bytes()), Invalid),
        ("zeros behind", glued(&[0; 20]), Corrupt),
        ("a byte behind", glued(&[0]), Invalid),
        ("count 0", Batch { count: Some(0), ..one() }.bytes(), Invalid),
        ("count -1", Batch { count: Some(-1), ..one() }.bytes(), Invalid),
        ("count and delta 0 and -1", Batch { count: Some(0), last_delta: Some(-1), ..one() }.bytes(), Invalid),
        ("count too high", Batch { count: Some(2), ..one() }.bytes(), Invalid),
        ("count too low", Batch { count: Some(1), ..two() }.bytes(), Invalid),
        ("fewer than the bytes", Batch { count: Some(1), last_delta: Some(0), ..two() }.bytes(), Invalid),
        ("count max", Batch { count: Some(i32::MAX), last_delta: Some(i32::MAX - 1), ..one() }.bytes(), Invalid),
        ("last delta too high", Batch { last_delta: Some(5), ..two() }.bytes(), Invalid),
        ("last delta too low", Batch { last_delta: Some(0), ..two() }.bytes(), Invalid),
        ("no record at all", Batch { last_delta: Some(0), ..Batch::of(vec![]) }.bytes(), Invalid),
        ("base offset not 0", Batch { base_offset: 12345, ..one() }.bytes(), Invalid),
        ("control bit", Batch { attributes: 0x20, ..one() }.bytes(), Invalid),
        ("transactional bit", Batch { attributes: 0x10, producer: (1, 0, 0), ..one() }.bytes(), Invalid),
        ("LogAppendTime bit", Batch { attributes: 0x08, ..one() }.bytes(), Invalid),
        ("delete horizon bit", Batch { attributes: 0x40, ..one() }.bytes(), Invalid),
        ("producer id without sequence", Batch { producer: (1, 0, -1), ..one() }.bytes(), Invalid),
        ("producer id without epoch", Batch { producer: (1, -1, 0), ..one() }.bytes(), Invalid),
        ("producer id -2", Batch { producer: (-2, 0, 0), ..one() }.bytes(), Invalid),
        ("deltas from one", Batch { deltas: Some(vec![1, 2]), ..two() }.bytes(), Invalid),
        ("deltas equal", Batch { deltas: Some(vec![0, 0]), ..two() }.bytes(), Invalid),
        ("record length negative", payload(&[&number(-5), &[0; 10]]).bytes(), Invalid),
        ("record length over the end", payload(&[&number(500), &[0; 10]]).bytes(), Invalid),
        ("key over the end", payload(&[&number(8), &[0, 0, 0], &number(5000), &[0; 3]]).bytes(), Invalid),
        ("key length -2", payload(&[&number(6), &[0, 0, 0], &number(-2), &number(-1), &[0]]).bytes(), Invalid),
        ("header count huge", payload(&[&number(10), &[0, 0, 0, 1, 1], &number(i32::MAX.into())]).bytes(), Invalid),
        ("header count -3", payload(&[&number(6), &[0, 0, 0, 1, 1], &number(-3)]).bytes(), Invalid),
        ("header without name", payload(&[&number(8), &[0, 0, 0, 1, 1], &number(1), &[1, 1]]).bytes(), Invalid),
        ("record with a byte more", payload(&[&number(7), &[0, 0, 0, 1, 1, 0, 0]]).bytes(), Invalid),
        ("record whose length covers the next", swallowing(), Invalid),
        ("varint of 36 bits", payload(&[&[0x8c, 0x80, 0x80, 0x80, 0x10], &[0, 0, 0, 1, 1, 0]]).bytes(), Invalid),
        ("varint without end", payload(&[&[0xff; 20]]).bytes(), Invalid),
        ("varint of 33 bits", payload(&[&[0xff, 0xff, 0xff, 0xff, 0x1f], &[0; 20]]).bytes(), Invalid),
        ("time overflows", Batch::of(vec![at(1), at(i64::MIN)]).bytes(), Invalid),
        ("codec 5", Batch { attributes: 5, ..one() }.bytes(), Codec),
        ("codec 6", Batch { attributes: 6, ..one() }.bytes(), Codec),
        ("codec 7", Batch { attributes: 7, ..one() }.bytes(), Codec),
    ];
    for (case, bytes, want) in cases {
        let got = check_bytes(&bytes);
        assert!(got.is_err(), "{case}: taken");
        assert_eq!(kind(got), want, "{case}");
    }
}

#[test]
fn compressed_batches_are_checked_inside() {
    // What is wrong in a packed batch would be found by consumers only, one after the other.
    for (codec, _) in CODECS {
        let packed = |batch: Batch| Batch { codec, ..batch };
        assert!(check(&packed(two())).is_ok(), "{codec}");
        for (case, batch) in [
            ("deltas from one", Batch { deltas: Some(vec![1, 2]), ..two() }),
            ("deltas equal", Batch { deltas: Some(vec![0, 0]), ..two() }),
            ("count too high", Batch { count: Some(3), last_delta: Some(2), ..two() }),
            ("count too low", Batch { count: Some(1), last_delta: Some(0), ..two() }),
            ("count max", Batch { count: Some(i32::MAX), last_delta: Some(i32::MAX - 1), ..two() }),
        ] {
            assert_eq!(kind(check(&packed(batch))), Kind::Invalid, "{codec} {case}");
        }
        let whole = packed(two()).bytes().slice(HEADER_BYTES..);
        for keep in 0..whole.len() {
            let cut = Batch { payload: Some(whole[..keep].to_vec()), ..packed(two()) };
            assert!(check(&cut).is_err(), "{codec} cut to {keep} of {}", whole.len());
        }
        if codec == 0 {
            continue;
        }
        let garbage = b"this is no compressed data ".repeat(4);
        assert_eq!(kind(check(&Batch { payload: Some(garbage), ..packed(one()) })), Kind::Invalid, "{codec} garbage");
        for more in [&b"\x00"[..], &b"trailing bytes"[..]] {
            let behind = Batch { payload: Some([&whole[..], more].concat()), ..packed(two()) };
            assert!(check(&behind).is_err(), "{codec} {more:?}");
        }
    }
}

#[test]
fn a_record_that_lies_about_its_length_costs_nothing() {
    for (codec, _) in CODECS {
        let lie = [number(i32::MAX.into()), vec![0; 20]].concat();
        let batch = Batch { codec, payload: Some(pack(codec, &lie)), ..one() };
        assert!(matches!(kind(check(&batch)), Kind::Invalid | Kind::TooLarge), "{codec}");
    }
}

#[test]
fn a_bomb_is_refused_before_it_is_unpacked() {
    // 200 MB in a few KB: a broker that unpacked it would hold its core and its memory for one client's whim.
    let mut huge = one();
    huge.records[0].value = Some(vec![0; 200 << 20]);
    let plain = plain_records(&huge);
    for codec in [1, 3, 4] {
        let batch = Batch { codec, payload: Some(pack(codec, &plain)), ..one() };
        assert_eq!(kind(check(&batch)), Kind::TooLarge, "{codec}");
    }
    // The same as many small records: no single one lies, and the sum is stopped at the bound.
    let mut small = Vec::new();
    for n in 0..40 {
        record(&Rec { value: Some(vec![0; 1 << 20]), ..at(0) }, n, 0, &mut small);
    }
    for codec in [1, 4] {
        let packed = pack(codec, &small);
        let limit = records::unpacked_bytes_max(packed.len());
        let batch = Batch { codec, payload: Some(packed), count: Some(40), last_delta: Some(39), ..one() };
        match check(&batch) {
            Err(Refusal::TooLarge { bytes, limit: said }) => assert!(bytes > limit && said == limit, "{codec}"),
            Err(other) => panic!("{codec}: {other}, limit {limit}"),
            Ok(_) => panic!("{codec}: taken, limit {limit}"),
        }
    }
    // A million bytes of gzip members that hold nothing: each costs a decoder.
    let nothing = pack(1, b"");
    let members = nothing.repeat(1_000_000 / nothing.len());
    assert_eq!(kind(check(&Batch { codec: 1, payload: Some(members), ..one() })), Kind::Invalid);
    // A snappy block that announces 4 GB.
    let block = [0xff, 0xff, 0xff, 0xff, 0x0f, 0x00, 0x00];
    assert_eq!(kind(check(&Batch { codec: 2, payload: Some(block.to_vec()), ..one() })), Kind::Invalid);
}

#[test]
fn all_that_clients_write_is_taken() {
    // Framings that differ by client: refused, that client could not produce at all.
    let mut batch = Batch::values(3000);
    for (n, r) in batch.records.iter_mut().enumerate() {
        r.value = Some(format!("value {n} ").repeat(n % 40).into_bytes());
    }
    let plain = plain_records(&batch);
    let taken = |codec, payload| {
        let batch = Batch { codec, payload: Some(payload), ..batch.clone() };
        let bytes = batch.bytes();
        assert_eq!(check_bytes(&bytes).unwrap(), bytes);
    };
    for (codec, _) in CODECS {
        taken(codec, pack(codec, &plain));
    }
    taken(2, snappy_block(&plain));
    // Two snappy-java streams and two gzip members, one behind the other.
    let (front, back) = plain.split_at(plain.len() / 2);
    taken(2, [pack(2, front), pack(2, back)].concat());
    taken(1, [pack(1, front), pack(1, back)].concat());
    taken(4, [pack(4, front), pack(4, back)].concat());
    taken(3, lz4_linked(&plain, false));
    taken(3, lz4_linked(&plain, true));
    // lz4 with an empty block between two others, which its decoder takes for the end.
    let parts = [pack(3, front), pack(3, back)];
    let frame = |blocks: &[&[u8]]| [&parts[0][..7], &blocks.concat(), &[0; 4]].concat();
    let [first, second] = parts.each_ref().map(|frame| &frame[7..frame.len() - 4]);
    let empty = &[1, 0, 0, 0, 0][..];
    taken(3, frame(&[first, empty, second]));
    let hidden = Batch { codec: 3, payload: Some(frame(&[first, second, empty, second])), ..batch.clone() };
    assert_eq!(kind(check(&hidden)), Kind::Invalid);
    // Numbers longer than they need be.
    let long = payload(&[&[0x8c, 0x80, 0x00], &[0, 0, 0, 1, 1, 0]]);
    assert!(check(&long).is_ok());
    // zstd's highest levels, whose windows are larger than what every reader must support.
    for level in [-5, 1, 19, 22] {
        let mut zstd = zstd::stream::Encoder::new(Vec::new(), level).unwrap();
        std::io::Write::write_all(&mut zstd, &plain).unwrap();
        taken(4, zstd.finish().unwrap());
        taken(4, zstd::bulk::compress(&plain, level).unwrap());
    }
}

#[test]
fn record_shapes_are_taken() {
    let rec = |key: Option<&[u8]>, value: Option<&[u8]>, headers: Vec<(Vec<u8>, Option<Vec<u8>>)>| Rec {
        key: key.map(<[u8]>::to_vec),
        value: value.map(<[u8]>::to_vec),
        headers,
        timestamp: NOW,
    };
    for r in [
        rec(None, None, vec![]),
        rec(Some(b""), Some(b""), vec![]),
        rec(Some(b"k"), None, vec![]),
        rec(Some(&[0xff; 1000]), Some(&[0; 1000]), vec![]),
        rec(Some(b"k"), Some(b"v"), (0..200).map(|n| (format!("h{n}").into_bytes(), Some(b"x".to_vec()))).collect()),
        rec(None, None, vec![(vec![], Some(vec![])), (b"same".to_vec(), None), (b"same".to_vec(), Some(vec![1]))]),
    ] {
        for (codec, _) in CODECS {
            assert!(check(&Batch { codec, ..Batch::of(vec![r.clone(), r.clone()]) }).is_ok(), "{codec} {r:?}");
        }
    }
}

#[test]
fn the_size_limit_is_exact() {
    let bytes = Batch::values(10).bytes();
    let rules = |limit| BatchRules { batch_bytes_max: limit, ..BatchRules::default() };
    let len = bytes.len();
    assert!(validate(&bytes, &rules(len as u32), WallMs(NOW)).is_ok());
    let refused = validate(&bytes, &rules(len as u32 - 1), WallMs(NOW)).unwrap_err();
    assert_eq!(refused, Refusal::TooLarge { bytes: len, limit: len - 1 });
}

#[test]
fn a_null_key_on_a_compacted_topic_is_named() {
    let rules = BatchRules { compacted: true, ..BatchRules::default() };
    let mut batch = Batch::values(4);
    for n in [0, 2] {
        batch.records[n].key = Some(b"k".to_vec());
    }
    for (codec, _) in CODECS {
        match validate(&Batch { codec, ..batch.clone() }.bytes(), &rules, WallMs(NOW)) {
            Err(Refusal::Invalid { indexes, .. }) => assert_eq!(indexes, [1, 3]),
            other => panic!("{other:?}"),
        }
    }
    batch.records.iter_mut().for_each(|r| r.key = Some(vec![]));
    assert!(validate(&batch.bytes(), &rules, WallMs(NOW)).is_ok());
}

#[test]
fn times_out_of_bounds_are_named_and_no_time_is_allowed() {
    let rules = BatchRules { before_max_ms: 1000, after_max_ms: 500, ..BatchRules::default() };
    let check = |batch: &Batch| validate(&batch.bytes(), &rules, WallMs(NOW));
    let within = Batch::of([NOW - 1000, NOW, NOW + 500, -1].map(at).to_vec());
    assert!(check(&within).is_ok());
    let without = Batch::of([NOW - 1001, NOW, NOW + 501, -1, 0].map(at).to_vec());
    assert_eq!(check(&without).unwrap_err(), Refusal::Timestamp { indexes: vec![0, 2, 4] });
    // LogAppendTime replaces them all.
    let rules = BatchRules { timestamps: TimestampType::LogAppendTime, ..rules };
    assert!(validate(&without.bytes(), &rules, WallMs(NOW)).is_ok());
    // Before 1970 there is no time: a negative one in an answer makes Java clients throw.
    assert_eq!(check_bytes(&Batch::of(vec![at(-2)]).bytes()), Err(Refusal::Timestamp { indexes: vec![0] }));
    assert!(check_bytes(&Batch::of(vec![at(0)]).bytes()).is_ok());
    // The answer stays small, whatever the batch.
    let many = Batch::of((0..1000).map(|_| at(1)).collect());
    let rules = BatchRules { before_max_ms: 1000, ..BatchRules::default() };
    match validate(&many.bytes(), &rules, WallMs(NOW)) {
        Err(Refusal::Timestamp { indexes }) => assert_eq!(indexes.len(), limits::RECORD_ERRORS_MAX),
        other => panic!("{other:?}"),
    }
}

#[test]
fn log_append_time_changes_the_time_and_nothing_else() {
    let rules = BatchRules { timestamps: TimestampType::LogAppendTime, ..BatchRules::default() };
    for (codec, _) in CODECS {
        let sent = Batch { codec, producer: (5, 1, 9), ..Batch::of([5, 9, 7].map(at).to_vec()) }.bytes();
        let checked = validate(&sent, &rules, WallMs(NOW)).unwrap();
        let (was, is) = (BatchHead::parse(&sent).unwrap(), BatchHead::parse(&checked.bytes).unwrap());
        assert_eq!(is, checked.head);
        assert_eq!(checked.append_time, Some(WallMs(NOW)));
        assert_eq!(is.append_time(), Some(WallMs(NOW)));
        assert_eq!(is.crc, crc32c::crc32c(&checked.bytes[21..]));
        let same = BatchHead { attributes: was.attributes | 8, max_timestamp: WallMs(NOW), crc: is.crc, ..was };
        assert_eq!(is, same);
        assert_eq!(checked.bytes[HEADER_BYTES..], sent[HEADER_BYTES..]);
        let mut times = Vec::new();
        records::walk(&is, &checked.bytes[HEADER_BYTES..], |record| {
            times.push(record.timestamp.0);
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(times, [NOW; 3]);
    }
}

#[test]
fn a_wrong_max_timestamp_is_put_right() {
    // Look-ups by time trust it: too small, and a consumer would miss the record it asked for.
    for wrong in [NOW - 5, NOW + 5, -1, i64::MAX] {
        let sent = Batch { max_timestamp: Some(wrong), ..Batch::of([NOW - 1, NOW, NOW - 2].map(at).to_vec()) };
        let checked = validate(&sent.bytes(), &BatchRules::default(), WallMs(NOW)).unwrap();
        assert_eq!(checked.head.max_timestamp, WallMs(NOW));
        assert_eq!(checked.append_time, None);
        let right = Batch { max_timestamp: Some(NOW), ..sent }.bytes();
        assert_eq!(checked.bytes, right);
    }
}

#[test]
fn the_stored_batch_differs_in_offset_and_epoch_only() {
    let sent = Batch { producer: (5, 1, 9), ..Batch::values(3) }.bytes();
    let checked = validate(&sent, &BatchRules::default(), WallMs(NOW)).unwrap();
    let stored = checked.stored(Offset(1 << 40), LeaderEpoch(77));
    let bytes = checked.stored_parts(&stored).concat();
    let head = BatchHead::parse(&bytes).unwrap();
    assert_eq!((head.base_offset, head.leader_epoch), (Offset(1 << 40), LeaderEpoch(77)));
    assert_eq!(bytes[16..], sent[16..]);
    assert_eq!(bytes[8..12], sent[8..12]);
    assert_eq!(stored.crc, crc32c::crc32c(&bytes));
}

#[test]
fn a_time_inside_a_batch_is_found_with_its_own_offset() {
    // The batch's first offset in its place would make consumers read records again; the last, miss some.
    for (codec, _) in CODECS {
        let batch = |times: &[i64]| {
            let sent = Batch { codec, ..Batch::of(times.iter().copied().map(at).collect()) }.bytes();
            let checked =
                validate(&sent, &BatchRules { before_max_ms: i64::MAX, ..BatchRules::default() }, WallMs(NOW));
            let checked = checked.unwrap();
            let stored = checked.stored(Offset(100), LeaderEpoch(1));
            checked.stored_parts(&stored).concat()
        };
        let stored = batch(&[2, 4, 6, 8]);
        let find = |t, from| records::first_at_or_after(&stored, WallMs(t), Offset(from)).unwrap();
        for (t, offset, time) in [(1, 100, 2), (2, 100, 2), (3, 101, 4), (5, 102, 6), (7, 103, 8), (8, 103, 8)] {
            assert_eq!(find(t, 0), Some((Offset(offset), WallMs(time))), "{codec} {t}");
        }
        assert_eq!(find(9, 0), None);
        assert_eq!(find(1, 102), Some((Offset(102), WallMs(6))));
        let stored = batch(&[50, 10, 90, 20, 90]);
        let find = |t, from| records::first_at_or_after(&stored, WallMs(t), Offset(from)).unwrap();
        assert_eq!(find(5, 0), Some((Offset(100), WallMs(50))));
        assert_eq!(find(51, 0), Some((Offset(102), WallMs(90))));
        assert_eq!(find(51, 105), None);
        let max = |from| records::max_timestamp(&stored, Offset(from)).unwrap();
        assert_eq!(max(0), Some((Offset(102), WallMs(90))));
        assert_eq!(max(103), Some((Offset(104), WallMs(90))));
        assert_eq!(max(105), None);
    }
    let rules = BatchRules { timestamps: TimestampType::LogAppendTime, ..BatchRules::default() };
    let stored = validate(&Batch::of([5, 1].map(at).to_vec()).bytes(), &rules, WallMs(NOW)).unwrap().bytes;
    assert_eq!(records::first_at_or_after(&stored, WallMs(3), Offset(0)), Ok(Some((Offset(0), WallMs(NOW)))));
    assert_eq!(records::first_at_or_after(&stored, WallMs(3), Offset(1)), Ok(Some((Offset(1), WallMs(NOW)))));
    assert_eq!(records::max_timestamp(&stored, Offset(0)), Ok(Some((Offset(0), WallMs(NOW)))));
    assert_eq!(records::first_at_or_after(&stored, WallMs(NOW + 1), Offset(0)), Ok(None));
    assert_eq!(records::first_at_or_after(b"damaged", WallMs(0), Offset(0)), Err(Refusal::Storage));
}

fn rec() -> impl Strategy<Value = Rec> {
    let bytes = || proptest::option::of(proptest::collection::vec(any::<u8>(), 0..80));
    let headers = proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..9), bytes()), 0..4);
    (bytes(), bytes(), headers, prop_oneof![Just(-1i64), 0..NOW]).prop_map(|(key, value, headers, timestamp)| Rec {
        key,
        value,
        headers,
        timestamp,
    })
}

fn batch() -> impl Strategy<Value = Batch> {
    let codec = (0..CODECS.len()).prop_map(|n| CODECS[n].0);
    (proptest::collection::vec(rec(), 1..40), codec).prop_map(|(records, codec)| Batch { codec, ..Batch::of(records) })
}

proptest! {
    #[test]
    fn honest_batches_of_every_codec_come_through_unchanged(batch in batch()) {
        let sent = batch.bytes();
        let checked = validate(&sent, &BatchRules::default(), WallMs(NOW)).unwrap();
        prop_assert_eq!(&checked.bytes, &sent);
        let mut seen = Vec::new();
        records::walk(&checked.head, &sent[HEADER_BYTES..], |r| {
            seen.push((r.delta, r.timestamp.0, r.null_key));
            ControlFlow::Continue(())
        }).unwrap();
        let want: Vec<_> =
            batch.records.iter().enumerate().map(|(n, r)| (n as i32, r.timestamp, r.key.is_none())).collect();
        prop_assert_eq!(seen, want);
    }

    #[test]
    fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), codec in 0..8u16) {
        let _ = check_bytes(&Bytes::from(bytes.clone()));
        // The same bytes as the records of a batch that is otherwise right.
        let _ = check(&Batch { codec: 0, attributes: codec, payload: Some(bytes), ..one() });
    }

    #[test]
    fn no_mutation_makes_the_parser_panic_or_pass_unseen(
        batch in batch(),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), 1..=255u8), 1..4),
    ) {
        let sent = batch.bytes();
        let mut bent = sent.to_vec();
        for (index, bits) in &changes {
            let at = index.index(bent.len());
            bent[at] ^= *bits;
        }
        // As the wire would bend it: only offset and epoch are outside the checksum, and the offset must be 0.
        if bent[..12] != sent[..12] || bent[16..] != sent[16..] {
            prop_assert!(check_bytes(&Bytes::from(bent.clone())).is_err());
        }
        // As a client would write it: with a checksum that fits. Taken or not, what is taken obeys the rules.
        let crc = crc32c::crc32c(&bent[21..]);
        bent[17..21].copy_from_slice(&crc.to_be_bytes());
        if let Ok(checked) = validate(&Bytes::from(bent), &BatchRules::default(), WallMs(NOW)) {
            let (mut count, mut largest) = (0, -1);
            records::walk(&checked.head, &checked.bytes[HEADER_BYTES..], |r| {
                assert_eq!(r.delta, count);
                count += 1;
                largest = largest.max(r.timestamp.0);
                ControlFlow::Continue(())
            }).unwrap();
            prop_assert_eq!(count, checked.head.count);
            prop_assert_eq!(largest, checked.head.max_timestamp.0);
        }
    }
}
