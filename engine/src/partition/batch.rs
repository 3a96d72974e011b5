//! A Kafka record batch (magic 2): its header, and what a client's batch must obey before it gets offsets.
//!
//! Sources: Kafka's `ProduceRequest.validateRecords`, `UnifiedLog.analyzeAndValidateRecords` and `LogValidator`. Where
//! Kafka takes what it should not (offset deltas of uncompressed batches, bytes behind the records), Camus refuses.

use super::records;
use crate::limits;
use crate::shard::api::{BatchRules, Refusal, TimestampType};
use crate::types::{
    EntryId, Index, LeaderEpoch, Offset, PartitionId, ProducerEpoch, ProducerId, Sequence, ShardId, WallMs,
};
use crate::wal::record::{RecordHead, RecordKind};
use bytes::Bytes;
use std::ops::ControlFlow;

/// The header of a batch, bytes: everything before its records.
pub const HEADER_BYTES: usize = 61;
/// Base offset and length: they come before what the length field counts.
const LENGTH_COUNTS_FROM: usize = 12;
/// Kafka's smallest message of any magic, as the length field counts it (`LegacyRecord.RECORD_OVERHEAD_V0`).
const LENGTH_MIN_ANY_MAGIC: i32 = 14;
const LENGTH_AT: usize = 8;
const LEADER_EPOCH_AT: usize = 12;
const MAGIC_AT: usize = 16;
const CRC_AT: usize = 17;
/// The checksum covers everything from here on: base offset and leader epoch are the broker's to write.
const ATTRIBUTES_AT: usize = 21;
const LAST_OFFSET_DELTA_AT: usize = 23;
const BASE_TIMESTAMP_AT: usize = 27;
const MAX_TIMESTAMP_AT: usize = 35;
const PRODUCER_AT: usize = 43;
const PRODUCER_EPOCH_AT: usize = 51;
const BASE_SEQUENCE_AT: usize = 53;
const COUNT_AT: usize = 57;
const _: () = assert!(COUNT_AT + 4 == HEADER_BYTES);

const CODEC_BITS: u16 = 0x07;
const LOG_APPEND_TIME_BIT: u16 = 0x08;
const TRANSACTIONAL_BIT: u16 = 0x10;
const CONTROL_BIT: u16 = 0x20;
const DELETE_HORIZON_BIT: u16 = 0x40;

/// [`RecordHead::flags`] of a batch: its records carry the time of the append, which is the batch's max timestamp.
pub const FLAG_LOG_APPEND_TIME: u16 = 0x01;

/// How the records of a batch are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Codec {
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

impl Codec {
    /// As the attributes of a batch say it.
    fn bits(self) -> u16 {
        match self {
            Codec::None => 0,
            Codec::Gzip => 1,
            Codec::Snappy => 2,
            Codec::Lz4 => 3,
            Codec::Zstd => 4,
        }
    }
}

/// The header of a magic-2 batch, field by field. `parse` promises that it is whole and nothing else: a client may have
/// written any number anywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchHead {
    pub base_offset: Offset,
    /// Bytes of the batch behind the length field.
    pub length: i32,
    pub leader_epoch: LeaderEpoch,
    /// CRC32C of everything from the attributes on.
    pub crc: u32,
    pub attributes: u16,
    pub last_offset_delta: i32,
    pub base_timestamp: WallMs,
    pub max_timestamp: WallMs,
    pub producer: ProducerId,
    pub producer_epoch: ProducerEpoch,
    pub base_sequence: Sequence,
    pub count: i32,
}

impl BatchHead {
    /// Reads the header of the batch that `bytes` begin with, and checks that all of the batch is there.
    pub fn parse(bytes: &[u8]) -> Result<BatchHead, Refusal> {
        if bytes.len() <= MAGIC_AT {
            return Err(invalid(if bytes.is_empty() { "there is no batch" } else { "the batch is cut short" }));
        }
        let length = i32::from_be_bytes(field(bytes, LENGTH_AT));
        if length < LENGTH_MIN_ANY_MAGIC {
            return Err(Refusal::Corrupt("the batch's length field is below every possible one"));
        }
        if bytes[MAGIC_AT] != 2 {
            return Err(invalid("only record batches of magic 2 are taken"));
        }
        if (length as usize) < HEADER_BYTES - LENGTH_COUNTS_FROM {
            return Err(Refusal::Corrupt("the batch's length field is below that of its header"));
        }
        if bytes.len() < LENGTH_COUNTS_FROM + length as usize {
            return Err(invalid("the batch is cut short"));
        }
        Ok(BatchHead {
            base_offset: Offset(i64::from_be_bytes(field(bytes, 0))),
            length,
            leader_epoch: LeaderEpoch(i32::from_be_bytes(field(bytes, LEADER_EPOCH_AT))),
            crc: u32::from_be_bytes(field(bytes, CRC_AT)),
            attributes: u16::from_be_bytes(field(bytes, ATTRIBUTES_AT)),
            last_offset_delta: i32::from_be_bytes(field(bytes, LAST_OFFSET_DELTA_AT)),
            base_timestamp: WallMs(i64::from_be_bytes(field(bytes, BASE_TIMESTAMP_AT))),
            max_timestamp: WallMs(i64::from_be_bytes(field(bytes, MAX_TIMESTAMP_AT))),
            producer: ProducerId(i64::from_be_bytes(field(bytes, PRODUCER_AT))),
            producer_epoch: ProducerEpoch(i16::from_be_bytes(field(bytes, PRODUCER_EPOCH_AT))),
            base_sequence: Sequence(i32::from_be_bytes(field(bytes, BASE_SEQUENCE_AT))),
            count: i32::from_be_bytes(field(bytes, COUNT_AT)),
        })
    }

    /// The whole batch, bytes.
    pub fn bytes_len(&self) -> usize {
        LENGTH_COUNTS_FROM + self.length as usize
    }

    /// None if the codec bits name none.
    pub fn codec(&self) -> Option<Codec> {
        match self.attributes & CODEC_BITS {
            0 => Some(Codec::None),
            1 => Some(Codec::Gzip),
            2 => Some(Codec::Snappy),
            3 => Some(Codec::Lz4),
            4 => Some(Codec::Zstd),
            _ => None,
        }
    }

    pub fn is_log_append_time(&self) -> bool {
        self.attributes & LOG_APPEND_TIME_BIT != 0
    }

    pub fn is_transactional(&self) -> bool {
        self.attributes & TRANSACTIONAL_BIT != 0
    }

    /// With LogAppendTime, the time that all records of the batch have.
    pub fn append_time(&self) -> Option<WallMs> {
        self.is_log_append_time().then_some(self.max_timestamp)
    }

    /// The head of the WAL record that carries this batch, so that a recovery needs no more than the head.
    pub fn record_head(
        &self,
        shard: ShardId,
        partition: PartitionId,
        entry: EntryId,
        base_offset: Offset,
        commit: Index,
    ) -> RecordHead {
        RecordHead {
            term: entry.term,
            index: entry.index,
            commit,
            partition,
            base_offset,
            count: u32::try_from(self.count).expect("a checked batch has records"),
            producer: self.producer,
            producer_epoch: self.producer_epoch,
            base_sequence: self.base_sequence,
            max_timestamp: self.max_timestamp,
            flags: if self.is_log_append_time() { FLAG_LOG_APPEND_TIME } else { 0 },
            ..RecordHead::new(RecordKind::Batch, shard)
        }
    }
}

/// A batch that may be appended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checked {
    /// Of `bytes`.
    pub head: BatchHead,
    /// As sent, or with new attributes, max timestamp and checksum if the topic's timestamps ask for it.
    pub bytes: Bytes,
    /// With LogAppendTime, the time that all records of the batch got.
    pub append_time: Option<WallMs>,
}

/// How a batch is stored: `prefix`, then what of [`Checked::bytes`] is behind it. No copy of the records is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredPrefix {
    /// Base offset, length, leader epoch, magic and checksum.
    pub prefix: [u8; ATTRIBUTES_AT],
    /// CRC32C of the whole batch as stored, made from the checksum that is in it already.
    pub crc: u32,
}

impl Checked {
    /// The batch's first bytes with the offset and the epoch that the leader gives it.
    pub fn stored(&self, base_offset: Offset, epoch: LeaderEpoch) -> StoredPrefix {
        let mut prefix = [0; ATTRIBUTES_AT];
        prefix.copy_from_slice(&self.bytes[..ATTRIBUTES_AT]);
        prefix[..LENGTH_AT].copy_from_slice(&base_offset.0.to_be_bytes());
        prefix[LEADER_EPOCH_AT..MAGIC_AT].copy_from_slice(&epoch.0.to_be_bytes());
        let crc = crate::crc::combine(crc32c::crc32c(&prefix), self.head.crc, self.bytes.len() - ATTRIBUTES_AT);
        StoredPrefix { prefix, crc }
    }

    /// The two parts of the batch as stored, one behind the other.
    pub fn stored_parts<'a>(&'a self, stored: &'a StoredPrefix) -> [&'a [u8]; 2] {
        [&stored.prefix, &self.bytes[ATTRIBUTES_AT..]]
    }
}

/// Judges a client's batch by itself, before anybody's offsets or sequences. `now` is the broker's clock.
///
/// Costs no more memory than a few buffers, whatever the batch claims to unpack to.
pub fn validate(batch: &Bytes, rules: &BatchRules, now: WallMs) -> Result<Checked, Refusal> {
    let head = BatchHead::parse(batch)?;
    check_alone(batch, &head)?;
    let limit = rules.batch_bytes_max as usize;
    if batch.len() > limit {
        return Err(Refusal::TooLarge { bytes: batch.len(), limit });
    }
    if crc32c::crc32c(&batch[ATTRIBUTES_AT..]) != head.crc {
        return Err(Refusal::Corrupt("the batch's checksum does not match its bytes"));
    }
    check_header(&head)?;
    let largest = check_records(batch, &head, rules, now)?;
    let (attributes, max_timestamp, append_time) = match rules.timestamps {
        TimestampType::CreateTime => (head.attributes, largest, None),
        TimestampType::LogAppendTime => (head.attributes | LOG_APPEND_TIME_BIT, now, Some(now)),
    };
    if (attributes, max_timestamp) == (head.attributes, head.max_timestamp) {
        return Ok(Checked { head, bytes: batch.clone(), append_time });
    }
    // A client's wrong max timestamp is put right as Kafka does: look-ups by time rely on it.
    let mut bytes = batch.to_vec();
    bytes[ATTRIBUTES_AT..LAST_OFFSET_DELTA_AT].copy_from_slice(&attributes.to_be_bytes());
    bytes[MAX_TIMESTAMP_AT..PRODUCER_AT].copy_from_slice(&max_timestamp.0.to_be_bytes());
    let crc = crc32c::crc32c(&bytes[ATTRIBUTES_AT..]);
    bytes[CRC_AT..ATTRIBUTES_AT].copy_from_slice(&crc.to_be_bytes());
    Ok(Checked { head: BatchHead { attributes, max_timestamp, crc, ..head }, bytes: Bytes::from(bytes), append_time })
}

/// A batch whose records were packed anew behind its header: length, codec and checksum are put right.
pub(super) fn with_codec(mut bytes: Vec<u8>, codec: Codec) -> Bytes {
    let length = i32::try_from(bytes.len() - LENGTH_COUNTS_FROM).expect("a batch is far below 2 GiB");
    bytes[LENGTH_AT..LEADER_EPOCH_AT].copy_from_slice(&length.to_be_bytes());
    let others = u16::from_be_bytes(field(&bytes, ATTRIBUTES_AT)) & !CODEC_BITS;
    bytes[ATTRIBUTES_AT..LAST_OFFSET_DELTA_AT].copy_from_slice(&(others | codec.bits()).to_be_bytes());
    let crc = crc32c::crc32c(&bytes[ATTRIBUTES_AT..]);
    bytes[CRC_AT..ATTRIBUTES_AT].copy_from_slice(&crc.to_be_bytes());
    Bytes::from(bytes)
}

/// Nothing may follow the batch.
fn check_alone(batch: &[u8], head: &BatchHead) -> Result<(), Refusal> {
    let rest = &batch[head.bytes_len()..];
    if rest.is_empty() {
        return Ok(());
    }
    if rest.len() >= LENGTH_COUNTS_FROM && i32::from_be_bytes(field(rest, LENGTH_AT)) < LENGTH_MIN_ANY_MAGIC {
        return Err(Refusal::Corrupt("bytes that are no batch follow the batch"));
    }
    Err(invalid("more than one batch for a partition"))
}

/// What the header alone says wrong.
fn check_header(head: &BatchHead) -> Result<(), Refusal> {
    if head.base_offset != Offset(0) {
        return Err(invalid("a producer's batch must have base offset 0"));
    }
    if head.codec().is_none() {
        return Err(Refusal::UnsupportedCodec);
    }
    if head.attributes & CONTROL_BIT != 0 {
        return Err(invalid("a producer must not write control batches"));
    }
    if head.is_transactional() {
        return Err(invalid("transactional batches are not supported"));
    }
    if head.is_log_append_time() {
        return Err(invalid("a producer must not set the timestamp type to LogAppendTime"));
    }
    if head.attributes & DELETE_HORIZON_BIT != 0 {
        return Err(invalid("a producer must not set a delete horizon"));
    }
    if head.count <= 0 {
        return Err(invalid("the batch has no records"));
    }
    if i64::from(head.last_offset_delta) + 1 != i64::from(head.count) {
        return Err(invalid("the record count does not match the last offset delta"));
    }
    if head.producer < ProducerId::NONE {
        return Err(invalid("the producer id is negative"));
    }
    if head.producer != ProducerId::NONE {
        if head.producer_epoch < ProducerEpoch(0) {
            return Err(invalid("a batch with a producer id needs a producer epoch"));
        }
        if head.base_sequence < Sequence(0) {
            return Err(invalid("a batch with a producer id needs a base sequence"));
        }
    }
    Ok(())
}

/// Walks all records; the largest timestamp among them.
fn check_records(batch: &[u8], head: &BatchHead, rules: &BatchRules, now: WallMs) -> Result<WallMs, Refusal> {
    let times = match rules.timestamps {
        // -1 says that the record has no time; a time before 1970 is none that a client could be answered.
        TimestampType::CreateTime => {
            now.0.saturating_sub(rules.before_max_ms).max(0)..=now.0.saturating_add(rules.after_max_ms)
        }
        TimestampType::LogAppendTime => i64::MIN..=i64::MAX,
    };
    let (mut largest, mut untimely, mut keyless) = (i64::MIN, Vec::new(), Vec::new());
    records::walk(head, &batch[HEADER_BYTES..], |record| {
        largest = largest.max(record.timestamp.0);
        if record.timestamp.0 != -1 && !times.contains(&record.timestamp.0) {
            note(&mut untimely, record.delta);
        }
        if rules.compacted && record.null_key {
            note(&mut keyless, record.delta);
        }
        ControlFlow::Continue(())
    })?;
    if !untimely.is_empty() {
        return Err(Refusal::Timestamp { indexes: untimely });
    }
    if !keyless.is_empty() {
        return Err(Refusal::Invalid { why: "a record of a compacted topic needs a key", indexes: keyless });
    }
    Ok(WallMs(largest))
}

fn note(indexes: &mut Vec<i32>, index: i32) {
    if indexes.len() < limits::RECORD_ERRORS_MAX {
        indexes.push(index);
    }
}

fn invalid(why: &'static str) -> Refusal {
    Refusal::Invalid { why, indexes: Vec::new() }
}

/// # Panics
/// If the field is not within `bytes`.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the range has N bytes")
}
