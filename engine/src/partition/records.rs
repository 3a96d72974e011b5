//! The records inside a batch, walked one by one without building them: compressed ones are unpacked as a stream, so
//! that a batch never needs more memory than a few buffers. Used where a batch comes in, to pack it anew (`pack.rs`),
//! and for look-ups by time.
//!
//! Bounded: the unpacked bytes by [`unpacked_bytes_max`], which a record's claimed length is held against before
//! anything of it is unpacked.

use super::batch::{BatchHead, Codec, HEADER_BYTES};
use crate::limits;
use crate::shard::api::Refusal;
use crate::types::{Offset, WallMs};
use std::cell::Cell;
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use zstd::zstd_safe::DCtx;

/// A record with a null key, no value and no headers: one byte of length and six of body.
const RECORD_BYTES_MIN: usize = 7;
/// What is unpacked at a time.
const WINDOW_BYTES: usize = 64 * 1024;

/// What is known of a record once it was walked over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordMeta {
    /// From the batch's base offset; also the record's number in the batch.
    pub delta: i32,
    /// As readers see it: with LogAppendTime the batch's max timestamp.
    pub timestamp: WallMs,
    pub null_key: bool,
}

/// Visits the records of a batch in order, and checks all of each: lengths exact, deltas 0, 1, 2 ..., as many as the
/// header says, nothing behind them. `records` is the batch without its header. A visitor that breaks ends the walk
/// and with it the checks.
pub fn walk(head: &BatchHead, records: &[u8], visit: impl FnMut(RecordMeta) -> ControlFlow<()>) -> Result<(), Refusal> {
    let Some(codec) = head.codec() else { return Err(Refusal::UnsupportedCodec) };
    if head.count <= 0 {
        return Err(Refusal::Invalid { why: "the batch has no records", indexes: Vec::new() });
    }
    if codec == Codec::None {
        return walk_source(head, &mut Plain { left: records }, visit);
    }
    // Taken out while it is in use: a visitor that walks another batch makes itself a new one.
    let mut scratch = SCRATCH.take().unwrap_or_default();
    let done = walk_unpacked(head, codec, records, &mut scratch, visit);
    scratch.shrink();
    SCRATCH.set(Some(scratch));
    done
}

/// Writes the records of a batch unpacked, one behind the other. For a batch that [`walk`] has gone through to its end:
/// nothing is checked again, and no more comes out than it went over.
pub fn unpack(head: &BatchHead, records: &[u8], out: &mut dyn Write) -> Result<(), Refusal> {
    let Some(codec) = head.codec() else { return Err(Refusal::UnsupportedCodec) };
    let failed = |why| move |_: io::Error| Refusal::Invalid { why, indexes: Vec::new() };
    if codec == Codec::None {
        return out.write_all(records).map_err(failed(NOT_WRITTEN));
    }
    let mut scratch = SCRATCH.take().unwrap_or_default();
    let done = read_unpacked(codec, records, &mut scratch, |packed, window| {
        loop {
            let count = packed.read(window).map_err(failed(NOT_UNPACKED))?;
            if count == 0 {
                return Ok(());
            }
            out.write_all(&window[..count]).map_err(failed(NOT_WRITTEN))?;
        }
    });
    scratch.shrink();
    SCRATCH.set(Some(scratch));
    done
}

/// The first record at or after `t` of a stored batch, none below `from`: its offset and timestamp.
pub fn first_at_or_after(batch: &[u8], t: WallMs, from: Offset) -> Result<Option<(Offset, WallMs)>, Refusal> {
    let head = stored_head(batch)?;
    if head.max_timestamp < t {
        return Ok(None);
    }
    find(&head, batch, from, |found, record| found.is_none() && record.timestamp >= t, true)
}

/// The record with the largest timestamp of a stored batch, the first of them, none below `from`.
pub fn max_timestamp(batch: &[u8], from: Offset) -> Result<Option<(Offset, WallMs)>, Refusal> {
    let head = stored_head(batch)?;
    find(&head, batch, from, |found, record| found.is_none_or(|(_, ts)| record.timestamp > ts), false)
}

/// What the records of a compressed batch may grow to.
pub fn unpacked_bytes_max(packed_bytes: usize) -> usize {
    let by_ratio = packed_bytes.saturating_mul(limits::DECOMPRESSED_RATIO_MAX);
    by_ratio.clamp(limits::DECOMPRESSED_BYTES_FREE, limits::DECOMPRESSED_BYTES_MAX)
}

/// A stored batch was checked when it came in: if it can not be read now, the storage is at fault.
fn stored_head(batch: &[u8]) -> Result<BatchHead, Refusal> {
    BatchHead::parse(batch).map_err(|_| Refusal::Storage)
}

fn find(
    head: &BatchHead,
    batch: &[u8],
    from: Offset,
    better: impl Fn(Option<(Offset, WallMs)>, &RecordMeta) -> bool,
    first_will_do: bool,
) -> Result<Option<(Offset, WallMs)>, Refusal> {
    let mut found = None;
    let records = &batch[HEADER_BYTES..head.bytes_len()];
    if head.is_log_append_time() {
        // All records have one time; no need to unpack them.
        let delta = (from - head.base_offset).max(0);
        let inside = delta < i64::from(head.count);
        return Ok(inside.then_some((head.base_offset + delta, head.max_timestamp)));
    }
    walk(head, records, |record| {
        let offset = head.base_offset + i64::from(record.delta);
        if offset >= from && better(found, &record) {
            found = Some((offset, record.timestamp));
            if first_will_do || record.timestamp == head.max_timestamp {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    })
    .map_err(|_| Refusal::Storage)?;
    Ok(found)
}

/// Why a walk ended early.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// A record breaks the format.
    Record(&'static str),
    /// The bytes behind the header do, and no record is to blame.
    Bytes(&'static str),
    TooMuch {
        bytes: usize,
    },
}

/// Where the bytes of records come from.
trait Source {
    /// The next byte; a fault at the end.
    fn byte(&mut self) -> Result<u8, Fault>;
    /// Passes over `count` bytes; a fault if there are fewer.
    fn skip(&mut self, count: usize) -> Result<(), Fault>;
    fn at_end(&mut self) -> Result<bool, Fault>;
    /// A fault if `count` more bytes can not be. Called before any of them is asked for.
    fn expect(&self, count: usize) -> Result<(), Fault>;
}

const NOT_UNPACKED: &str = "the records do not decompress";
const NOT_WRITTEN: &str = "the records can not be written anew";
const CUT_SHORT: Fault = Fault::Bytes("the records end before the last one does");

struct Plain<'a> {
    left: &'a [u8],
}

impl Source for Plain<'_> {
    #[inline]
    fn byte(&mut self) -> Result<u8, Fault> {
        let (first, left) = self.left.split_first().ok_or(CUT_SHORT)?;
        self.left = left;
        Ok(*first)
    }

    #[inline]
    fn skip(&mut self, count: usize) -> Result<(), Fault> {
        self.left = self.left.get(count..).ok_or(CUT_SHORT)?;
        Ok(())
    }

    fn at_end(&mut self) -> Result<bool, Fault> {
        Ok(self.left.is_empty())
    }

    #[inline]
    fn expect(&self, count: usize) -> Result<(), Fault> {
        if count <= self.left.len() { Ok(()) } else { Err(CUT_SHORT) }
    }
}

/// Unpacks as it is read.
struct Unpacked<'a> {
    packed: &'a mut dyn Read,
    window: &'a mut [u8],
    /// What of the window is not passed yet.
    at: usize,
    end: usize,
    /// Bytes unpacked so far, the window's included.
    taken: usize,
    limit: usize,
}

impl Unpacked<'_> {
    /// The next window; false at the end.
    #[cold]
    fn fill(&mut self) -> Result<bool, Fault> {
        let count = self.packed.read(self.window).map_err(|_| Fault::Bytes(NOT_UNPACKED))?;
        (self.at, self.end) = (0, count);
        self.taken += count;
        if self.taken > self.limit {
            return Err(Fault::TooMuch { bytes: self.taken });
        }
        Ok(count > 0)
    }
}

impl Source for Unpacked<'_> {
    #[inline]
    fn byte(&mut self) -> Result<u8, Fault> {
        if self.at == self.end && !self.fill()? {
            return Err(CUT_SHORT);
        }
        self.at += 1;
        Ok(self.window[self.at - 1])
    }

    fn skip(&mut self, mut count: usize) -> Result<(), Fault> {
        loop {
            let here = count.min(self.end - self.at);
            self.at += here;
            count -= here;
            if count == 0 {
                return Ok(());
            }
            if !self.fill()? {
                return Err(CUT_SHORT);
            }
        }
    }

    fn at_end(&mut self) -> Result<bool, Fault> {
        Ok(self.at == self.end && !self.fill()?)
    }

    fn expect(&self, count: usize) -> Result<(), Fault> {
        let bytes = (self.taken - (self.end - self.at)).saturating_add(count);
        if bytes <= self.limit { Ok(()) } else { Err(Fault::TooMuch { bytes }) }
    }
}

fn walk_source(
    head: &BatchHead,
    source: &mut impl Source,
    mut visit: impl FnMut(RecordMeta) -> ControlFlow<()>,
) -> Result<(), Refusal> {
    let refuse = |fault, index| match fault {
        Fault::Record(why) => Refusal::Invalid { why, indexes: vec![index] },
        Fault::Bytes(why) => Refusal::Invalid { why, indexes: Vec::new() },
        Fault::TooMuch { bytes } => {
            let packed = head.bytes_len() - HEADER_BYTES;
            Refusal::TooLarge { bytes, limit: unpacked_bytes_max(packed) }
        }
    };
    if source.expect((head.count as usize).saturating_mul(RECORD_BYTES_MIN)).is_err() {
        return Err(refuse(Fault::Bytes("the batch claims more records than its bytes can hold"), 0));
    }
    for index in 0..head.count {
        let record = record(head, source, index).map_err(|fault| refuse(fault, index))?;
        if visit(record).is_break() {
            return Ok(());
        }
    }
    match source.at_end() {
        Ok(true) => Ok(()),
        Ok(false) => Err(refuse(Fault::Bytes("there are bytes behind the last record"), 0)),
        Err(fault) => Err(refuse(fault, 0)),
    }
}

/// One record. Layout (Kafka's `DefaultRecord`): length, attributes, timestamp delta, offset delta, key, value,
/// headers; all numbers but the attributes are zig-zag varints, a length of -1 is null.
fn record(head: &BatchHead, source: &mut impl Source, index: i32) -> Result<RecordMeta, Fault> {
    let length = usize::try_from(varint(&mut || source.byte())?)
        .map_err(|_| Fault::Record("the record's length is negative"))?;
    source.expect(length)?;
    let mut body = Body { source, left: length };
    let _attributes = body.byte()?;
    let timestamp_delta = varlong(&mut || body.byte())?;
    let delta = varint(&mut || body.byte())?;
    if delta != index {
        return Err(Fault::Record("the record's offset delta is not its number in the batch"));
    }
    let key = body.skip_nullable()?;
    body.skip_nullable()?;
    let headers = varint(&mut || body.byte())?;
    // A header has two bytes at least.
    if headers < 0 || headers as usize > body.left / 2 {
        return Err(Fault::Record("the record's header count is impossible"));
    }
    for _ in 0..headers {
        if !body.skip_nullable()? {
            return Err(Fault::Record("the record has a header without a name"));
        }
        body.skip_nullable()?;
    }
    if body.left != 0 {
        return Err(Fault::Record("the record's length is not that of its fields"));
    }
    let timestamp = if head.is_log_append_time() {
        head.max_timestamp
    } else {
        let sum = head.base_timestamp.0.checked_add(timestamp_delta);
        WallMs(sum.ok_or(Fault::Record("the record's timestamp overflows"))?)
    };
    Ok(RecordMeta { delta, timestamp, null_key: !key })
}

/// The bytes of one record behind its length.
struct Body<'a, S> {
    source: &'a mut S,
    left: usize,
}

impl<S: Source> Body<'_, S> {
    #[inline]
    fn byte(&mut self) -> Result<u8, Fault> {
        self.left = self.left.checked_sub(1).ok_or(OVER_THE_END)?;
        self.source.byte()
    }

    /// Passes over a length and as many bytes; false if it is null.
    #[inline]
    fn skip_nullable(&mut self) -> Result<bool, Fault> {
        let length = varint(&mut || self.byte())?;
        if length == -1 {
            return Ok(false);
        }
        let length =
            usize::try_from(length).map_err(|_| Fault::Record("a field of the record has a negative length"))?;
        self.left = self.left.checked_sub(length).ok_or(OVER_THE_END)?;
        self.source.skip(length)?;
        Ok(true)
    }
}

const OVER_THE_END: Fault = Fault::Record("a field is over the end of its record");
const TOO_LONG: Fault = Fault::Record("a number of the record is too long");

#[inline]
fn varint(byte: &mut impl FnMut() -> Result<u8, Fault>) -> Result<i32, Fault> {
    let mut value: u32 = 0;
    for shift in [0, 7, 14, 21, 28] {
        let next = byte()?;
        if shift == 28 && next > 0x0f {
            return Err(TOO_LONG);
        }
        value |= u32::from(next & 0x7f) << shift;
        if next & 0x80 == 0 {
            break;
        }
    }
    Ok((value >> 1) as i32 ^ -((value & 1) as i32))
}

#[inline]
fn varlong(byte: &mut impl FnMut() -> Result<u8, Fault>) -> Result<i64, Fault> {
    let mut value: u64 = 0;
    for shift in (0..64).step_by(7) {
        let next = byte()?;
        if shift == 63 && next > 0x01 {
            return Err(TOO_LONG);
        }
        value |= u64::from(next & 0x7f) << shift;
        if next & 0x80 == 0 {
            break;
        }
    }
    Ok((value >> 1) as i64 ^ -((value & 1) as i64))
}

thread_local! {
    /// Buffers of this core, kept from batch to batch. They carry nothing from one to the next.
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

struct Scratch {
    window: Vec<u8>,
    snappy: Vec<u8>,
    zstd: DCtx<'static>,
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch { window: vec![0; WINDOW_BYTES], snappy: Vec::new(), zstd: DCtx::create() }
    }
}

impl Scratch {
    /// Gives back what a rare large batch needed.
    fn shrink(&mut self) {
        if self.snappy.capacity() > SNAPPY_KEPT_BYTES_MAX {
            self.snappy = Vec::new();
        }
    }
}

const SNAPPY_KEPT_BYTES_MAX: usize = 1024 * 1024;
/// The window that zstd's format asks every reader to support. More is for `--ultra` levels.
const ZSTD_WINDOW_LOG_USUAL: u32 = 23;
/// What Kafka's own brokers and clients read.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;
const _: () = assert!(1 << ZSTD_WINDOW_LOG_MAX <= limits::DECOMPRESSED_BYTES_MAX);

fn walk_unpacked(
    head: &BatchHead,
    codec: Codec,
    records: &[u8],
    scratch: &mut Scratch,
    visit: impl FnMut(RecordMeta) -> ControlFlow<()>,
) -> Result<(), Refusal> {
    let limit = unpacked_bytes_max(records.len());
    read_unpacked(codec, records, scratch, |packed, window| {
        walk_source(head, &mut Unpacked { packed, window, at: 0, end: 0, taken: 0, limit }, visit)
    })
}

/// Hands on the records as a stream that is unpacked as it is read, and a buffer to read it with.
fn read_unpacked(
    codec: Codec,
    records: &[u8],
    scratch: &mut Scratch,
    read: impl FnOnce(&mut dyn Read, &mut [u8]) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let Scratch { window, snappy, zstd } = scratch;
    let garbled = |why| Refusal::Invalid { why, indexes: Vec::new() };
    match codec {
        Codec::None => unreachable!("plain records are read where they lie"),
        Codec::Gzip => read(&mut Gzip::new(records), window),
        Codec::Snappy => read(&mut Snappy::new(records, snappy, unpacked_bytes_max(records.len())), window),
        Codec::Lz4 => {
            if !is_one_lz4_frame(records) {
                return Err(garbled("the records are not one whole lz4 frame"));
            }
            read(&mut Lz4 { frame: lz4_flex::frame::FrameDecoder::new(records) }, window)
        }
        Codec::Zstd => {
            let window_log = zstd_window_log(records).ok_or(garbled("the records are no zstd frame"))?;
            // A large window lives in a context of its own, and goes with it: its memory is touched only as far as
            // bytes are unpacked, but must not stay.
            let mut large;
            let (context, window_log_max) = if window_log <= ZSTD_WINDOW_LOG_USUAL {
                (zstd, ZSTD_WINDOW_LOG_USUAL)
            } else {
                large = DCtx::create();
                (&mut large, ZSTD_WINDOW_LOG_MAX)
            };
            let mut decoder = zstd::stream::read::Decoder::with_context(records, context);
            decoder.window_log_max(window_log_max).expect("the window is one that zstd allows");
            read(&mut decoder, window)
        }
    }
}

/// Gzip members, one behind the other. A member that unpacks to nothing still costs its decoder, so they are counted.
struct Gzip<'a> {
    /// None at the end.
    member: Option<flate2::bufread::GzDecoder<&'a [u8]>>,
    members_left: usize,
}

/// Clients write one; the format allows many.
const GZIP_MEMBERS_MAX: usize = 64;

impl<'a> Gzip<'a> {
    fn new(packed: &'a [u8]) -> Gzip<'a> {
        Gzip { member: Some(flate2::bufread::GzDecoder::new(packed)), members_left: GZIP_MEMBERS_MAX }
    }
}

impl Read for Gzip<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while let Some(mut member) = self.member.take() {
            let count = member.read(out)?;
            if count > 0 {
                self.member = Some(member);
                return Ok(count);
            }
            let rest = member.into_inner();
            if !rest.is_empty() {
                self.members_left = self.members_left.checked_sub(1).ok_or(io::ErrorKind::InvalidData)?;
                self.member = Some(flate2::bufread::GzDecoder::new(rest));
            }
        }
        Ok(0)
    }
}

/// What the first frame's header says: how far back it refers, as a power of two, rounded up. None if it is no frame.
/// Source: RFC 8878, section 3.1.1.
fn zstd_window_log(records: &[u8]) -> Option<u32> {
    let rest = records.strip_prefix(&[0x28, 0xb5, 0x2f, 0xfd])?;
    let (&descriptor, rest) = rest.split_first()?;
    if descriptor & 0x20 == 0 {
        let window = *rest.first()?;
        return Some(10 + u32::from(window >> 3) + u32::from(window & 7 != 0));
    }
    // A single segment: the window is the content, whose size is in the header.
    let content = zstd::zstd_safe::get_frame_content_size(records).ok()??;
    Some(content.checked_next_power_of_two()?.trailing_zeros())
}

/// Snappy as the Java clients frame it (snappy-java's stream), or one bare block as others write it.
struct Snappy<'a> {
    packed: &'a [u8],
    framed: bool,
    block: &'a mut Vec<u8>,
    at: usize,
    limit: usize,
}

pub(super) const XERIAL_MAGIC: &[u8] = b"\x82SNAPPY\x00";
/// Magic, version, lowest compatible version.
const XERIAL_HEADER_BYTES: usize = 16;
/// The most that snappy packs into a byte: 64 bytes copied by an element of three.
const SNAPPY_RATIO_MAX: usize = 22;

impl<'a> Snappy<'a> {
    fn new(packed: &'a [u8], block: &'a mut Vec<u8>, limit: usize) -> Snappy<'a> {
        block.clear();
        Snappy { packed, framed: packed.starts_with(XERIAL_MAGIC), block, at: 0, limit }
    }

    fn next_block(&mut self) -> io::Result<()> {
        let packed = if self.framed {
            // Streams may follow each other, each with its header.
            while self.packed.starts_with(XERIAL_MAGIC) {
                self.packed = self.packed.get(XERIAL_HEADER_BYTES..).ok_or(io::ErrorKind::UnexpectedEof)?;
            }
            let Some((length, rest)) = self.packed.split_first_chunk() else {
                let whole = self.packed.is_empty();
                return if whole { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            };
            let length = u32::from_be_bytes(*length) as usize;
            let (block, rest) = rest.split_at_checked(length).ok_or(io::ErrorKind::UnexpectedEof)?;
            self.packed = rest;
            block
        } else {
            std::mem::take(&mut self.packed)
        };
        let claimed = snap::raw::decompress_len(packed)?;
        if claimed > self.limit || claimed > packed.len() * SNAPPY_RATIO_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.block.resize(claimed, 0);
        self.at = 0;
        let found = snap::raw::Decoder::new().decompress(packed, self.block)?;
        assert_eq!(found, claimed, "snappy unpacked another length than it announced");
        Ok(())
    }
}

impl Read for Snappy<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.at == self.block.len() {
            if self.packed.is_empty() {
                return Ok(0);
            }
            self.next_block()?;
        }
        let count = out.len().min(self.block.len() - self.at);
        out[..count].copy_from_slice(&self.block[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

/// An lz4 frame that [`is_one_lz4_frame`]. The decoder takes an empty block for the end; this reads on.
struct Lz4<'a> {
    frame: lz4_flex::frame::FrameDecoder<&'a [u8]>,
}

impl Read for Lz4<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = self.frame.read(out)?;
            if count > 0 || self.frame.get_ref().is_empty() {
                return Ok(count);
            }
        }
    }
}

/// Whether `bytes` are one lz4 frame with its end mark and nothing behind it, as far as lengths tell: the decoder
/// itself takes a frame that is cut between blocks for a whole one. Source: lz4's frame format description, 1.6.
fn is_one_lz4_frame(bytes: &[u8]) -> bool {
    let Some(rest) = bytes.strip_prefix(&[0x04, 0x22, 0x4d, 0x18]) else { return false };
    let Some((&flags, _)) = rest.split_first() else { return false };
    let (block_checksums, content_size, content_checksum, dictionary) =
        (flags & 0x10 != 0, flags & 0x08 != 0, flags & 0x04 != 0, flags & 0x01 != 0);
    // Flags, block size, header checksum.
    let header = 3 + if content_size { 8 } else { 0 } + if dictionary { 4 } else { 0 };
    let Some(mut rest) = rest.get(header..) else { return false };
    loop {
        let Some((size, after)) = rest.split_first_chunk() else { return false };
        let size = u32::from_le_bytes(*size);
        if size == 0 {
            return after.len() == if content_checksum { 4 } else { 0 };
        }
        let block = (size & 0x7fff_ffff) as usize + if block_checksums { 4 } else { 0 };
        let Some(after) = after.get(block..) else { return false };
        rest = after;
    }
}
