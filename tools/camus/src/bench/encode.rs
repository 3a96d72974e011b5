//! Requests that are built once: per request only a few numbers in the head are written, and the checksum is made from
//! the one of the part that never changes.

use crate::client;
use bytes::Bytes;
use camus_engine::crc::combine;
use clap::ValueEnum;
use flate2::write::GzEncoder;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{ProduceRequest, TopicName};
use kafka_protocol::protocol::StrBytes;
use std::io::Write;

/// Header of a record batch of magic 2, bytes.
pub const BATCH_HEADER_BYTES: usize = 61;
const CRC_AT: usize = 17;
/// The checksum covers everything from here on.
const ATTRIBUTES_AT: usize = 21;
const PRODUCER_AT: usize = 43;
/// Where a frame carries its correlation id: behind length, API key and version.
const CORRELATION_AT: usize = 8;
/// Run and time, at the beginning of the first record's value.
pub const STAMP_BYTES: usize = 16;
/// Stands for the partition until it is found in the encoded request.
const PARTITION_MARK: i32 = 0x5eed_ca35;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Codec {
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Payload {
    /// Bytes that no codec makes smaller.
    Random,
    /// Words: a codec makes about a quarter of it.
    Words,
}

/// What a batch holds.
#[derive(Clone, Copy, Debug)]
pub struct BatchSpec {
    pub records: usize,
    /// Bytes of a record's value. Records have no key.
    pub record_bytes: usize,
    pub payload: Payload,
    pub codec: Codec,
    pub now_ms: i64,
}

/// A record batch, and where its first value begins (only if it is not compressed).
#[derive(Clone, Debug)]
pub struct Batch {
    pub bytes: Vec<u8>,
    pub first_value_at: Option<usize>,
}

/// Builds a batch as a producer without idempotence would send it. Fails only if the codec does.
pub fn batch(spec: &BatchSpec) -> std::io::Result<Batch> {
    let mut records = Vec::with_capacity(spec.records * (spec.record_bytes + 16));
    let mut values = Values { state: 0x9e37_79b9_7f4a_7c15, payload: spec.payload };
    let mut first_value_at = None;
    let mut body = Vec::with_capacity(spec.record_bytes + 16);
    for delta in 0..spec.records {
        body.clear();
        body.push(0);
        varint(0, &mut body);
        varint(delta as i64, &mut body);
        varint(-1, &mut body);
        varint(spec.record_bytes as i64, &mut body);
        let value_at = body.len();
        values.fill(spec.record_bytes, &mut body);
        varint(0, &mut body);
        varint(body.len() as i64, &mut records);
        first_value_at.get_or_insert(BATCH_HEADER_BYTES + records.len() + value_at);
        records.extend_from_slice(&body);
    }
    let packed = pack(spec.codec, records)?;
    let count = i32::try_from(spec.records).map_err(std::io::Error::other)?;
    let length = i32::try_from(BATCH_HEADER_BYTES - 12 + packed.len()).map_err(std::io::Error::other)?;
    let mut bytes = Vec::with_capacity(BATCH_HEADER_BYTES + packed.len());
    bytes.extend_from_slice(&0i64.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&(-1i32).to_be_bytes());
    bytes.push(2);
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&(spec.codec as u16).to_be_bytes());
    bytes.extend_from_slice(&(count - 1).to_be_bytes());
    bytes.extend_from_slice(&spec.now_ms.to_be_bytes());
    bytes.extend_from_slice(&spec.now_ms.to_be_bytes());
    bytes.extend_from_slice(&(-1i64).to_be_bytes());
    bytes.extend_from_slice(&(-1i16).to_be_bytes());
    bytes.extend_from_slice(&(-1i32).to_be_bytes());
    bytes.extend_from_slice(&count.to_be_bytes());
    debug_assert_eq!(bytes.len(), BATCH_HEADER_BYTES);
    bytes.extend_from_slice(&packed);
    let crc = crc32c::crc32c(&bytes[ATTRIBUTES_AT..]);
    bytes[CRC_AT..ATTRIBUTES_AT].copy_from_slice(&crc.to_be_bytes());
    Ok(Batch { bytes, first_value_at: first_value_at.filter(|_| spec.codec == Codec::None) })
}

fn pack(codec: Codec, records: Vec<u8>) -> std::io::Result<Vec<u8>> {
    match codec {
        Codec::None => Ok(records),
        Codec::Gzip => {
            let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(&records)?;
            encoder.finish()
        }
        Codec::Snappy => {
            // As Java's clients frame it: a magic, two versions, then blocks with their length.
            let mut packed = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01".to_vec();
            for block in records.chunks(32 * 1024) {
                let block = snap::raw::Encoder::new().compress_vec(block).map_err(std::io::Error::other)?;
                packed.extend_from_slice(&u32::try_from(block.len()).map_err(std::io::Error::other)?.to_be_bytes());
                packed.extend_from_slice(&block);
            }
            Ok(packed)
        }
        Codec::Lz4 => {
            let info = lz4_flex::frame::FrameInfo::new().block_size(lz4_flex::frame::BlockSize::Max64KB);
            let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
            encoder.write_all(&records)?;
            encoder.finish().map_err(std::io::Error::other)
        }
        Codec::Zstd => zstd::encode_all(records.as_slice(), 3),
    }
}

/// Values that differ from record to record and are the same in each run.
struct Values {
    state: u64,
    payload: Payload,
}

impl Values {
    fn next(&mut self) -> u64 {
        // xorshift64*
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn fill(&mut self, count: usize, out: &mut Vec<u8>) {
        const WORDS: &[&[u8]] =
            &[b"order ", b"paid ", b"customer ", b"item ", b"shipped ", b"amount ", b"returned ", b"address "];
        let end = out.len() + count;
        while out.len() < end {
            let next = self.next();
            match self.payload {
                Payload::Random => out.extend_from_slice(&next.to_le_bytes()),
                Payload::Words => {
                    out.extend_from_slice(WORDS[(next >> 32) as usize % WORDS.len()]);
                    out.extend_from_slice(&[b'0' + (next % 10) as u8, b'0' + (next / 10 % 10) as u8]);
                }
            }
        }
        out.truncate(end);
    }
}

fn varint(n: i64, out: &mut Vec<u8>) {
    let mut n = ((n << 1) ^ (n >> 63)) as u64;
    while n > 0x7f {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// What of a produce request differs from the one before.
#[derive(Clone, Copy, Debug)]
pub struct Patch {
    pub correlation: i32,
    pub partition: i32,
    /// Id, epoch, sequence of the first record.
    pub producer: Option<(i64, i16, i32)>,
    /// Which run, and its nanosecond.
    pub stamp: Option<(u64, u64)>,
}

/// A produce request for one partition, with a head that is copied and patched for each request, and a tail that all
/// requests of all connections share.
#[derive(Debug)]
pub struct Template {
    pub head: Vec<u8>,
    pub tail: Vec<u8>,
    pub version: i16,
    partition_at: usize,
    batch_at: usize,
    stamp_at: Option<usize>,
    /// Of the part of the batch that is in the tail.
    tail_crc: u32,
    tail_batch_bytes: usize,
}

impl Template {
    pub fn new(topic: &str, version: i16, timeout_ms: i32, batch: &Batch, stamped: bool) -> Result<Template, String> {
        let data = PartitionProduceData::default()
            .with_index(PARTITION_MARK)
            .with_records(Some(Bytes::copy_from_slice(&batch.bytes)));
        let data = TopicProduceData::default()
            .with_name(TopicName(StrBytes::from_string(topic.to_owned())))
            .with_partition_data(vec![data]);
        let request = ProduceRequest::default().with_acks(-1).with_timeout_ms(timeout_ms).with_topic_data(vec![data]);
        let frame = client::encode(&request, version, 0)?;
        let batch_at = find(&frame, &batch.bytes).ok_or("the batch is not in its request")?;
        let mark = PARTITION_MARK.to_be_bytes();
        let partition_at =
            frame[..batch_at].windows(4).rposition(|w| w == mark).ok_or("no partition in the request")?;
        let stamp_at = match (stamped, batch.first_value_at) {
            (true, Some(at)) => Some(batch_at + at),
            (true, None) => return Err("a compressed batch can not carry a send time".to_owned()),
            (false, _) => None,
        };
        let head_bytes = stamp_at.map_or(batch_at + BATCH_HEADER_BYTES, |at| at + STAMP_BYTES);
        let batch_end = batch_at + batch.bytes.len();
        if head_bytes > batch_end {
            return Err("the record is too small to carry a send time".to_owned());
        }
        Ok(Template {
            head: frame[..head_bytes].to_vec(),
            tail: frame[head_bytes..].to_vec(),
            version,
            partition_at,
            batch_at,
            stamp_at,
            tail_crc: crc32c::crc32c(&frame[head_bytes..batch_end]),
            tail_batch_bytes: batch_end - head_bytes,
        })
    }

    /// Writes the numbers of one request into a copy of [`Self::head`].
    pub fn patch(&self, head: &mut [u8], patch: &Patch) {
        head[CORRELATION_AT..CORRELATION_AT + 4].copy_from_slice(&patch.correlation.to_be_bytes());
        head[self.partition_at..self.partition_at + 4].copy_from_slice(&patch.partition.to_be_bytes());
        let stamp = self.stamp_at.zip(patch.stamp);
        if let Some((at, (run, ns))) = stamp {
            head[at..at + 8].copy_from_slice(&run.to_be_bytes());
            head[at + 8..at + 16].copy_from_slice(&ns.to_be_bytes());
        }
        let batch = &mut head[self.batch_at..];
        if let Some((id, epoch, sequence)) = patch.producer {
            batch[PRODUCER_AT..PRODUCER_AT + 8].copy_from_slice(&id.to_be_bytes());
            batch[PRODUCER_AT + 8..PRODUCER_AT + 10].copy_from_slice(&epoch.to_be_bytes());
            batch[PRODUCER_AT + 10..PRODUCER_AT + 14].copy_from_slice(&sequence.to_be_bytes());
        }
        if patch.producer.is_some() || stamp.is_some() {
            let crc = combine(crc32c::crc32c(&batch[ATTRIBUTES_AT..]), self.tail_crc, self.tail_batch_bytes);
            batch[CRC_AT..ATTRIBUTES_AT].copy_from_slice(&crc.to_be_bytes());
        }
    }
}

fn find(within: &[u8], what: &[u8]) -> Option<usize> {
    within.windows(what.len()).position(|w| w == what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use camus_engine::partition::batch::validate;
    use camus_engine::shard::api::BatchRules;
    use camus_engine::types::WallMs;
    use kafka_protocol::protocol::{Decodable, decode_request_header_from_buffer};

    const NOW_MS: i64 = 1_764_000_000_000;

    fn spec(codec: Codec) -> BatchSpec {
        BatchSpec { records: 7, record_bytes: 300, payload: Payload::Words, codec, now_ms: NOW_MS }
    }

    fn taken(batch: &[u8]) -> camus_engine::partition::batch::Checked {
        validate(&Bytes::copy_from_slice(batch), &BatchRules::default(), WallMs(NOW_MS)).expect("a broker takes it")
    }

    /// Lost if it fails: every measurement, since the broker refuses what is sent.
    #[test]
    fn a_batch_of_each_codec_is_one_that_a_broker_takes() {
        for codec in [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
            let batch = batch(&spec(codec)).expect("it packs");
            let checked = taken(&batch.bytes);
            assert_eq!(checked.head.count, 7, "{codec:?}");
            assert!(codec == Codec::None || batch.bytes.len() < 7 * 300, "{codec:?} makes words smaller");
        }
    }

    /// Lost if it fails: idempotent and end-to-end runs, whose batches change with each request.
    #[test]
    fn a_patched_request_decodes_to_what_was_patched_and_its_checksum_holds() {
        for (version, stamped, records) in [(3, false, 1), (8, true, 1), (9, false, 7), (12, true, 7)] {
            let batch = batch(&BatchSpec { records, ..spec(Codec::None) }).expect("it packs");
            let template = Template::new("a-topic", version, 1234, &batch, stamped).expect("it encodes");
            let mut head = template.head.clone();
            for round in 0..3 {
                let patch = Patch {
                    correlation: 77 + round,
                    partition: 4711 + round,
                    producer: (round > 0).then_some((9, 3, 21 * round)),
                    stamp: stamped.then_some((5, 1_000_000_007)),
                };
                template.patch(&mut head, &patch);
                let mut frame = Bytes::from([&head[4..], &template.tail[..]].concat());
                assert_eq!(u32::from_be_bytes(head[..4].try_into().unwrap()) as usize, frame.len());
                let header = decode_request_header_from_buffer(&mut frame).expect("a header");
                assert_eq!((header.correlation_id, header.request_api_version), (77 + round, version));
                let request = ProduceRequest::decode(&mut frame, version).expect("a request");
                assert!(frame.is_empty(), "nothing is left");
                assert_eq!((request.acks, request.timeout_ms), (-1, 1234));
                let data = &request.topic_data[0].partition_data[0];
                assert_eq!(data.index, 4711 + round);
                let sent = data.records.as_ref().expect("records");
                let checked = taken(sent);
                assert_eq!(checked.head.producer.0, if round > 0 { 9 } else { -1 });
                assert_eq!(checked.head.base_sequence.0, if round > 0 { 21 * round } else { -1 });
                if stamped {
                    let at = batch.first_value_at.expect("plain");
                    assert_eq!(sent[at..at + 16], [5u64.to_be_bytes(), 1_000_000_007u64.to_be_bytes()].concat());
                }
            }
        }
    }
}
