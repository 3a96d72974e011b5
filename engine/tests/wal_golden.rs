//! Bytes that must never change: a log written by the first version is read by every later one.
//!
//! The images in `engine/src/wal/golden/` were written once. A test that fails here is not repaired by a new image: it
//! takes a new format version, and a reader for the old one.

mod wal_model;

use camus_engine::io::RealVolume;
use camus_engine::io::{DiskOp, FileId};
use camus_engine::types::{
    Index, Lsn, Offset, PartitionId, ProducerEpoch, ProducerId, Sequence, ShardId, Term, WallMs,
};
use camus_engine::wal::format::{
    DiskHead, FORMAT_VERSION, GROUP_MAGIC, GroupHeader, RECORD_HEAD_BYTES, SEGMENT_MAGIC, SegmentHeader,
};
use camus_engine::wal::{Owner, RecordHead, RecordKind, Wal, inspect};
use wal_model::{BLOCK, Host, Volumes, config, recover};

const SEGMENT_BYTES: u64 = 64 * 1024;

fn incarnation() -> [u8; 16] {
    std::array::from_fn(|i| 0xf0 + i as u8)
}

fn head() -> RecordHead {
    RecordHead {
        kind: RecordKind::Batch,
        shard: ShardId(0x0102_0304),
        term: Term(0x1112_1314_1516_1718),
        index: Index(0x2122_2324_2526_2728),
        commit: Index(0x3132_3334_3536_3738),
        partition: PartitionId(0x4142_4344_4546_4748),
        base_offset: Offset(0x5152_5354_5556_5758),
        count: 0x6162_6364,
        producer: ProducerId(0x7172_7374_7576_7778),
        producer_epoch: ProducerEpoch(0x0909),
        base_sequence: Sequence(0x0a0b_0c0d),
        max_timestamp: WallMs(0x0e0f_1011_1213_1415),
        flags: 0x8001,
    }
}

fn hex(bytes: &[u8]) -> String {
    let lines = bytes.chunks(16).map(|line| line.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

/// A difference shows both, sixteen bytes a line.
fn compare(name: &str, golden: &str, bytes: &[u8]) {
    assert_eq!(golden, hex(bytes), "{name} is not what the first version wrote");
}

#[test]
fn the_header_of_a_segment_is_what_the_first_version_wrote() {
    let header = SegmentHeader {
        magic: SEGMENT_MAGIC,
        version: FORMAT_VERSION,
        core: 5,
        cluster: std::array::from_fn(|i| i as u8),
        incarnation: incarnation(),
        sequence: 0x0102_0304,
        oldest: 0x0102_0300,
        first_lsn: 0x1112_1314_1516_1718,
        durable_lsn: 0x1112_1314_1516_1714,
        segment_bytes: 64 << 20,
        prev_crc: 0x2122_2324,
        reserved: [0; 40],
        crc: 0,
    };
    let block = header.block();
    compare("segment.hex", include_str!("../src/wal/golden/segment.hex"), &block[..128]);
    assert!(block[128..].iter().all(|b| *b == 0));
    let read = SegmentHeader::read(&block).expect("whole");
    assert_eq!(SegmentHeader { crc: 0, ..read }, header);
}

#[test]
fn the_header_of_a_group_is_what_the_first_version_wrote() {
    let header = GroupHeader {
        magic: GROUP_MAGIC,
        bytes: 0x0001_0200,
        records: 0x0304,
        segment: 0x0506_0708,
        incarnation: incarnation(),
        lsn: 0x1112_1314_1516_1718,
        durable_lsn: 0x1112_1314_1516_1714,
        prev_crc: 0x2122_2324,
        reserved: 0,
        header_crc: 0,
        crc: 0,
    };
    let mut bytes = [0; 64];
    let crc = header.write(0x3132_3334, &mut bytes);
    compare("group.hex", include_str!("../src/wal/golden/group.hex"), &bytes);
    let read = GroupHeader::read(&bytes);
    assert!(GroupHeader::is_whole(&bytes) && read.crc == crc);
    assert_eq!(GroupHeader { crc: 0, header_crc: 0, ..read }, header);
}

#[test]
fn the_head_of_a_record_is_what_the_first_version_wrote() {
    let body = b"a body of 21 bytes...";
    let mut bytes = [0; RECORD_HEAD_BYTES];
    DiskHead::new(&head(), body, crc32c::crc32c(body)).write(&incarnation(), 0x0001_2340, 0, &mut bytes);
    compare("record.hex", include_str!("../src/wal/golden/record.hex"), &bytes);
    assert!(DiskHead::is_whole(&bytes, &incarnation(), 0x0001_2340));
    assert!(!DiskHead::is_whole(&bytes, &incarnation(), 0x0001_2350), "bound to its place");
    assert!(!DiskHead::is_whole(&bytes, &[0; 16], 0x0001_2340), "bound to this use of the file");
    assert_eq!(DiskHead::read(&bytes).head(), Some(head()));
}

/// Three groups, the second one of two records, the third one a mark.
fn log() -> Host {
    let mut host = Host::new(config(SEGMENT_BYTES, 4));
    host.settle();
    host.append_durable(b"the first record");
    host.append(b"").expect("room");
    host.append(&[0xab; 4100]).expect("room");
    host.settle();
    assert!(host.wal.mark(host.now, &mut host.out));
    host.collect();
    host.settle();
    host
}

/// Lost if it fails: every log that is on a disk somewhere.
#[test]
fn a_log_of_the_first_version_is_read_and_written_byte_by_byte() {
    let golden = include_bytes!("../src/wal/golden/log.wal");
    let host = log();
    let image = &host.volume.files[&FileId(1)];
    assert_eq!(golden.len(), 5 * BLOCK);
    assert!(image[..golden.len()] == golden[..], "what is written is not what the first version wrote");
    assert!(image[golden.len()..].iter().all(|b| *b == 0));
    assert!(host.pending.iter().all(|(_, op)| !matches!(op, DiskOp::Write { .. })));

    let mut image = golden.to_vec();
    image.resize(SEGMENT_BYTES as usize, 0);
    let volume = Volumes { files: [(FileId(1), image)].into() };
    let (_, report, found) = recover(config(SEGMENT_BYTES, 4), &volume).expect("whole");
    assert_eq!((report.last, report.acknowledged, report.records), (Lsn(3), Lsn(2), 3));
    let bodies: Vec<&[u8]> = found.iter().map(|r| &r.body[..]).collect();
    assert_eq!(bodies, [b"the first record".as_slice(), b"", &[0xab; 4100]]);
    assert_eq!(found[1].head, wal_model::batch_head(2));
}

/// Lost if it fails: the way from the format to a real directory.
#[test]
fn the_same_log_is_read_from_a_real_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut image = include_bytes!("../src/wal/golden/log.wal").to_vec();
    image.resize(SEGMENT_BYTES as usize, 0);
    std::fs::write(dir.path().join("000001.wal"), &image).expect("written");
    let volume = RealVolume::open(dir.path(), true).expect("opened");
    let report = inspect::verify(&volume, Owner::default());
    assert_eq!((report.refusal, report.groups, report.records), (None, 3, 3));
    let mut bodies = 0;
    let (wal, _) = Wal::recover(config(SEGMENT_BYTES, 4), &volume, wal_model::pool(), 9, &mut |_, body, _| {
        bodies += body.len();
    })
    .expect("whole");
    assert_eq!((bodies, wal.durable()), (16 + 4100, Lsn(3)));
    image[4096 + 170] ^= 1;
    std::fs::write(dir.path().join("000001.wal"), &image).expect("written");
    let refusal = inspect::verify(&volume, Owner::default()).refusal.expect("damaged").to_string();
    assert!(refusal.contains("000001.wal, byte 4266 (segment 1, LSN 1)"), "{refusal}");
}

#[test]
#[ignore = "writes the images anew: only ever for a new format version"]
fn write_the_images() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/src/wal/golden");
    std::fs::write(format!("{dir}/log.wal"), &log().volume.files[&FileId(1)][..5 * BLOCK]).expect("written");
}
