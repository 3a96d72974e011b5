//! Batches written by hand, so that a test can bend every field.
#![allow(dead_code)]

use bytes::Bytes;
use camus_engine::partition::batch::{BatchHead, Codec, HEADER_BYTES};
use camus_engine::types::{EntryId, Index, PartitionId, SegmentSeq, Term};
use camus_engine::wal::record::RecordAt;
use std::io::Write;

pub const NOW: i64 = 1_700_000_000_000;
pub const PARTITION: PartitionId = PartitionId(7);

#[derive(Clone, Debug, Default)]
pub struct Rec {
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    pub timestamp: i64,
}

pub fn at(timestamp: i64) -> Rec {
    Rec { value: Some(b"value".to_vec()), timestamp, ..Rec::default() }
}

#[derive(Clone, Debug)]
pub struct Batch {
    pub records: Vec<Rec>,
    pub codec: u16,
    pub attributes: u16,
    pub base_offset: i64,
    pub magic: u8,
    pub producer: (i64, i16, i32),
    pub deltas: Option<Vec<i32>>,
    pub count: Option<i32>,
    pub last_delta: Option<i32>,
    pub length: Option<i32>,
    pub crc: Option<u32>,
    pub max_timestamp: Option<i64>,
    /// Stands for all records, compressed or not.
    pub payload: Option<Vec<u8>>,
}

impl Batch {
    pub fn of(records: Vec<Rec>) -> Batch {
        Batch {
            records,
            codec: 0,
            attributes: 0,
            base_offset: 0,
            magic: 2,
            producer: (-1, -1, -1),
            deltas: None,
            count: None,
            last_delta: None,
            length: None,
            crc: None,
            max_timestamp: None,
            payload: None,
        }
    }

    pub fn values(count: usize) -> Batch {
        Batch::of((0..count).map(|n| at(NOW + n as i64)).collect())
    }

    pub fn bytes(&self) -> Bytes {
        let base = self.records.first().map_or(NOW, |r| r.timestamp);
        let max = self.records.iter().map(|r| r.timestamp).max().unwrap_or(base);
        let count = self.records.len() as i32;
        let payload = self.payload.clone().unwrap_or_else(|| {
            let mut plain = Vec::new();
            for (n, r) in self.records.iter().enumerate() {
                let delta = self.deltas.as_ref().map_or(n as i32, |deltas| deltas[n]);
                record(r, delta, r.timestamp.wrapping_sub(base), &mut plain);
            }
            pack(self.codec, &plain)
        });
        let mut tail = Vec::new();
        tail.extend_from_slice(&(self.codec | self.attributes).to_be_bytes());
        tail.extend_from_slice(&self.last_delta.unwrap_or(count - 1).to_be_bytes());
        tail.extend_from_slice(&base.to_be_bytes());
        tail.extend_from_slice(&self.max_timestamp.unwrap_or(max).to_be_bytes());
        tail.extend_from_slice(&self.producer.0.to_be_bytes());
        tail.extend_from_slice(&self.producer.1.to_be_bytes());
        tail.extend_from_slice(&self.producer.2.to_be_bytes());
        tail.extend_from_slice(&self.count.unwrap_or(count).to_be_bytes());
        tail.extend_from_slice(&payload);
        let mut out = Vec::new();
        out.extend_from_slice(&self.base_offset.to_be_bytes());
        out.extend_from_slice(&self.length.unwrap_or(9 + tail.len() as i32).to_be_bytes());
        out.extend_from_slice(&(-1i32).to_be_bytes());
        out.push(self.magic);
        out.extend_from_slice(&self.crc.unwrap_or_else(|| crc32c::crc32c(&tail)).to_be_bytes());
        out.extend_from_slice(&tail);
        Bytes::from(out)
    }
}

pub fn varint(n: i64, out: &mut Vec<u8>) {
    let mut n = ((n << 1) ^ (n >> 63)) as u64;
    while n > 0x7f {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn nullable(bytes: Option<&[u8]>, out: &mut Vec<u8>) {
    varint(bytes.map_or(-1, |b| b.len() as i64), out);
    out.extend_from_slice(bytes.unwrap_or_default());
}

pub fn record(r: &Rec, delta: i32, timestamp_delta: i64, out: &mut Vec<u8>) {
    let mut body = vec![0];
    varint(timestamp_delta, &mut body);
    varint(i64::from(delta), &mut body);
    nullable(r.key.as_deref(), &mut body);
    nullable(r.value.as_deref(), &mut body);
    varint(r.headers.len() as i64, &mut body);
    for (name, value) in &r.headers {
        nullable(Some(name), &mut body);
        nullable(value.as_deref(), &mut body);
    }
    varint(body.len() as i64, out);
    out.extend_from_slice(&body);
}

/// As the clients pack; 5 is snappy as one bare block, 6 lz4 in linked blocks with every checksum.
pub fn pack(codec: u16, plain: &[u8]) -> Vec<u8> {
    match codec {
        0 => plain.to_vec(),
        1 => {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            gzip.write_all(plain).unwrap();
            gzip.finish().unwrap()
        }
        2 => {
            let mut out = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01".to_vec();
            for block in plain.chunks(32 * 1024) {
                let block = snap::raw::Encoder::new().compress_vec(block).unwrap();
                out.extend_from_slice(&(block.len() as u32).to_be_bytes());
                out.extend_from_slice(&block);
            }
            out
        }
        3 => {
            let mut frame = lz4_flex::frame::FrameEncoder::new(Vec::new());
            frame.write_all(plain).unwrap();
            frame.finish().unwrap()
        }
        4 => zstd::stream::encode_all(plain, 3).unwrap(),
        other => panic!("no codec {other}"),
    }
}

pub fn snappy_block(plain: &[u8]) -> Vec<u8> {
    snap::raw::Encoder::new().compress_vec(plain).unwrap()
}

pub fn lz4_linked(plain: &[u8], checks: bool) -> Vec<u8> {
    use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
    let info = FrameInfo::new()
        .block_mode(BlockMode::Linked)
        .block_size(BlockSize::Max64KB)
        .block_checksums(checks)
        .content_checksum(checks)
        .content_size(checks.then_some(plain.len() as u64));
    let mut frame = FrameEncoder::with_frame_info(info, Vec::new());
    frame.write_all(plain).unwrap();
    frame.finish().unwrap()
}

pub fn plain_records(batch: &Batch) -> Vec<u8> {
    Batch { codec: 0, payload: None, ..batch.clone() }.bytes()[HEADER_BYTES..].to_vec()
}

pub const CODECS: [(u16, Codec); 5] =
    [(0, Codec::None), (1, Codec::Gzip), (2, Codec::Snappy), (3, Codec::Lz4), (4, Codec::Zstd)];

pub fn entry(index: u64) -> EntryId {
    EntryId { term: Term(3), index: Index(index) }
}

/// Where record number `n` lies: sixteen to a segment.
pub fn place(n: u64) -> RecordAt {
    RecordAt { segment: SegmentSeq(1 + (n / 16) as u32), at: (n % 16) as u32 * 4096, len: 100 }
}

/// The head of a batch as `validate` would leave it, without its records.
pub fn head(producer: (i64, i16, i32), count: i32, timestamp: i64) -> BatchHead {
    let mut batch = Batch::of(vec![at(timestamp)]);
    batch.producer = producer;
    batch.count = Some(count);
    batch.last_delta = Some(count - 1);
    BatchHead::parse(&batch.bytes()).unwrap()
}
