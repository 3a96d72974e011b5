//! Packs a client's batch anew, where its topic wants another codec than the client's (`compression.type`).
//!
//! Sources: Kafka's `LogValidator` (a batch that has the topic's codec stays as it is, whatever its level), and what
//! clients read: snappy in blocks behind snappy-java's header, lz4 as one frame of independent blocks.

use super::batch::{self, BatchHead, Codec, HEADER_BYTES};
use super::records::{self, XERIAL_MAGIC};
use crate::limits;
use crate::shard::api::{BatchRules, Packing, Refusal};
use crate::types::WallMs;
use bytes::Bytes;
use std::io::{self, Write};

/// What goes into one block of snappy, as snappy-java has it.
const SNAPPY_BLOCK_BYTES: usize = 32 * 1024;
/// Higher levels of zstd take tens of megabytes for each batch, and none of them is budgeted for.
const ZSTD_LEVEL_MAX: i32 = 9;

/// Whether [`repacked`] has something to do.
pub fn is_due(sent: &[u8], rules: &BatchRules) -> bool {
    due(sent, rules).is_some()
}

fn due(sent: &[u8], rules: &BatchRules) -> Option<(Packing, BatchHead)> {
    let packing = rules.packing?;
    let head = BatchHead::parse(sent).ok()?;
    (head.codec()? != packing.codec).then_some((packing, head))
}

/// The batch in the codec that its topic wants; `None` if it has that, if any will do, or if it unpacks to more than is
/// packed anew ([`limits::PACK_SLOW_BYTES_MAX`]): that is a core's time, and a few KiB may stand for very much of it.
/// `work` grows by what was unpacked, in bytes of the faster codecs.
///
/// It is judged as it was sent, by all rules ([`batch::validate`]). What comes out is a client's batch like any other,
/// to be judged where it is appended: it may be too large by then.
pub fn repacked(sent: &Bytes, rules: &BatchRules, now: WallMs, work: &mut usize) -> Result<Option<Bytes>, Refusal> {
    let Some((packing, head)) = due(sent, rules) else { return Ok(None) };
    let limit = match packing.codec {
        Codec::Gzip | Codec::Zstd => limits::PACK_SLOW_BYTES_MAX,
        Codec::None | Codec::Snappy | Codec::Lz4 => limits::PACK_FAST_BYTES_MAX,
    };
    let mut plain = Bounded { bytes: Vec::new(), limit, is_over: false };
    let unpacked = records::unpack(&head, &sent[HEADER_BYTES..], &mut plain);
    *work += plain.bytes.len();
    if unpacked.is_err() {
        // too much, or no records at all: whoever appends it says so
        return Ok(None);
    }
    batch::validate(sent, rules, now)?;
    *work += limits::PACK_FAST_BYTES_MAX / limit * plain.bytes.len();
    let limit = rules.batch_bytes_max as usize;
    let mut out = Bounded { bytes: sent[..HEADER_BYTES].to_vec(), limit, is_over: false };
    let done = pack(packing, &plain.bytes, &mut out);
    if out.is_over {
        return Err(Refusal::TooLarge { bytes: limit + 1, limit });
    }
    done.map(|()| Some(batch::with_codec(out.bytes, packing.codec))).map_err(failed)
}

fn pack(packing: Packing, plain: &[u8], out: &mut Bounded) -> io::Result<()> {
    match packing.codec {
        Codec::None => out.write_all(plain),
        Codec::Gzip => {
            let level = u32::try_from(packing.level);
            let level = level.map_or_else(|_| flate2::Compression::default(), flate2::Compression::new);
            let mut gzip = flate2::write::GzEncoder::new(out, level);
            gzip.write_all(plain)?;
            gzip.finish().map(|_| ())
        }
        Codec::Snappy => {
            let mut snappy = SnappyBlocks::begin(out)?;
            snappy.write_all(plain)?;
            snappy.end_block()
        }
        Codec::Lz4 => {
            let info = lz4_flex::frame::FrameInfo::new().block_size(lz4_flex::frame::BlockSize::Max64KB);
            let mut lz4 = lz4_flex::frame::FrameEncoder::with_frame_info(info, out);
            lz4.write_all(plain)?;
            lz4.finish().map(|_| ()).map_err(io::Error::other)
        }
        Codec::Zstd => {
            let level = packing.level.min(ZSTD_LEVEL_MAX);
            let mut zstd = zstd::stream::write::Encoder::new(out, level)?;
            zstd.write_all(plain)?;
            zstd.finish().map(|_| ())
        }
    }
}

/// An encoder fails where its output is full, which is told otherwise, and nowhere else.
fn failed<E>(_: E) -> Refusal {
    Refusal::Invalid { why: "the batch can not be packed in its topic's codec", indexes: Vec::new() }
}

/// Bytes on their way, no more than there may be: of the records, and of the batch that is made of them.
struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
    is_over: bool,
}

impl Write for Bounded {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + more.len() > self.limit {
            self.is_over = true;
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.bytes.extend_from_slice(more);
        Ok(more.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Snappy as the Java clients frame it.
struct SnappyBlocks<'a> {
    out: &'a mut Bounded,
    /// What waits for the block to be full.
    block: Vec<u8>,
}

impl<'a> SnappyBlocks<'a> {
    fn begin(out: &'a mut Bounded) -> io::Result<SnappyBlocks<'a>> {
        out.write_all(XERIAL_MAGIC)?;
        // Its version, and the lowest that can read it.
        out.write_all(&1_u32.to_be_bytes())?;
        out.write_all(&1_u32.to_be_bytes())?;
        Ok(SnappyBlocks { out, block: Vec::with_capacity(SNAPPY_BLOCK_BYTES) })
    }

    fn end_block(&mut self) -> io::Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let packed = snap::raw::Encoder::new().compress_vec(&self.block)?;
        let length = u32::try_from(packed.len()).expect("a block is a few KiB");
        self.out.write_all(&length.to_be_bytes())?;
        self.out.write_all(&packed)?;
        self.block.clear();
        Ok(())
    }
}

impl Write for SnappyBlocks<'_> {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        let count = more.len().min(SNAPPY_BLOCK_BYTES - self.block.len());
        self.block.extend_from_slice(&more[..count]);
        if self.block.len() == SNAPPY_BLOCK_BYTES {
            self.end_block()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
