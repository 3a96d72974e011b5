//! One flipped bit, told from an unfinished write.
//!
//! The last groups of a log have no later group that says that they were on the media. When one of them is not whole,
//! two things can have happened: the power went before all of its sectors were written (nobody was told that it was
//! durable: it must go), or the media lost a bit of it (somebody may have been told: it must not go). They look
//! different: after a lost bit, putting that one bit back makes *every* checksum of the group right again, and they are
//! independent of each other. An unfinished write misses a sector, so it has no such bit.
//!
//! An unfinished group can look like a flipped bit by accident, and then a start is refused that need not be. For a
//! body two checksums of different kinds must agree (CRC32C decides the place, the 64-bit word sum confirms it): below
//! 2^-60. For a head there is one kind only, and 768 bits to choose from: below 2^-22, and only if the missing sector
//! holds nothing but a part of one head. A header lies within a sector. And a missing sector whose old content lacks
//! one bit only is the same picture as damage: refused, too. Never the other way round: one flipped bit is always
//! found.

use super::format::{
    DiskHead, Expected, GROUP_HEADER_BYTES, GROUP_HEADER_COVERED, GroupHeader, RECORD_HEAD_BYTES, RECORD_HEAD_COVERED,
    le32, word_sum,
};
use crc32c::{crc32c, crc32c_append};

/// The bit that, put back, makes a group whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flip {
    /// From the group's first byte.
    pub byte: u32,
    /// 0 is the lowest bit of the byte.
    pub bit: u8,
    /// Records of the group, as they were written.
    pub records: u32,
}

/// The one bit that explains why the group at `at` is not whole, if there is one. `bytes` begin with the group's header
/// and hold as much of the group as there can be (up to the largest group or the segment's end).
pub fn explain(expected: &Expected, bytes: &[u8], at: u32) -> Option<Flip> {
    let (header_bytes, header, mut found) = likely(expected, bytes)?;
    let bytes = bytes.get(..header.bytes as usize)?;

    let mut heads_crc = 0;
    let mut from = GROUP_HEADER_BYTES;
    for _ in 0..header.records {
        if bytes.len() - from < RECORD_HEAD_BYTES {
            return None;
        }
        let mut head_bytes: [u8; RECORD_HEAD_BYTES] = bytes[from..from + RECORD_HEAD_BYTES].try_into().expect("96");
        let place = at + from as u32;
        let whole = |head: &[u8]| DiskHead::is_whole(head, &expected.incarnation, place);
        if !whole(&head_bytes) {
            let (byte, bit) = correct(&mut head_bytes, RECORD_HEAD_BYTES, whole)?;
            only(&mut found, (from + byte, bit))?;
        }
        let head = DiskHead::read(&head_bytes);
        if head.head().is_none() || head.record_bytes() > bytes.len() - from {
            return None;
        }
        let body = &bytes[from + RECORD_HEAD_BYTES..][..head.body_bytes as usize];
        let crc = crc32c(body);
        if crc != head.body_crc {
            let (byte, bit) = locate(crc ^ head.body_crc, body.len())?;
            let word = 1u64 << ((byte % 8) * 8 + usize::from(bit));
            let is_set = body[byte] >> bit & 1 == 1;
            let sum = word_sum(body);
            let before = if is_set { sum.wrapping_sub(word) } else { sum.wrapping_add(word) };
            if before != head.body_sum {
                return None;
            }
            only(&mut found, (from + RECORD_HEAD_BYTES + byte, bit))?;
        }
        heads_crc = crc32c_append(heads_crc, &head_bytes[..RECORD_HEAD_COVERED]);
        from += head.record_bytes();
    }
    if from != bytes.len() {
        return None;
    }
    let wrong = crc32c_append(heads_crc, &header_bytes[..GROUP_HEADER_COVERED]) ^ le32(&header_bytes, 60);
    if wrong.is_power_of_two() {
        let bit = wrong.trailing_zeros();
        only(&mut found, (60 + bit as usize / 8, (bit % 8) as u8))?;
    } else if wrong != 0 {
        return None;
    }
    let (byte, bit) = found?;
    Some(Flip { byte: byte as u32, bit, records: header.records })
}

/// The header that must have been here: the one that is, or the one that differs from it in one bit. `None`: neither
/// can be the expected group's.
pub fn header(expected: &Expected, bytes: &[u8]) -> Option<GroupHeader> {
    likely(expected, bytes).map(|(_, header, _)| header)
}

type Place = (usize, u8);

fn likely(expected: &Expected, bytes: &[u8]) -> Option<([u8; GROUP_HEADER_BYTES], GroupHeader, Option<Place>)> {
    let mut header_bytes: [u8; GROUP_HEADER_BYTES] = bytes.get(..GROUP_HEADER_BYTES)?.try_into().expect("64 bytes");
    let mut found = None;
    if !GroupHeader::is_whole(&header_bytes) {
        found = Some(correct(&mut header_bytes, GROUP_HEADER_BYTES - 4, GroupHeader::is_whole)?);
    }
    let header = GroupHeader::read(&header_bytes);
    expected.fields(&header).ok()?;
    Some((header_bytes, header, found))
}

/// Notes a flipped bit; `None` when it would be the second one.
fn only(found: &mut Option<Place>, flip: Place) -> Option<()> {
    found.replace(flip).is_none().then_some(())
}

/// Puts back the one bit among the first `covered` bytes that makes `whole` true. Tries each: these are short.
fn correct(bytes: &mut [u8], covered: usize, whole: impl Fn(&[u8]) -> bool) -> Option<Place> {
    for byte in 0..covered {
        for bit in 0..8 {
            bytes[byte] ^= 1 << bit;
            if whole(bytes) {
                return Some((byte, bit));
            }
            bytes[byte] ^= 1 << bit;
        }
    }
    None
}

/// Where one wrong bit in `len` bytes makes their CRC32C wrong by `syndrome` (a CRC is linear, so each place has its
/// own).
fn locate(syndrome: u32, len: usize) -> Option<Place> {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    // What the last bit of the last byte does; one bit earlier is one step of the register further.
    let mut effect = POLYNOMIAL;
    for distance in 0..len * 8 {
        if effect == syndrome {
            return Some((len - 1 - distance / 8, 7 - (distance % 8) as u8));
        }
        effect = (effect >> 1) ^ if effect & 1 == 1 { POLYNOMIAL } else { 0 };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lost if it fails: a flipped bit would be taken for an unfinished write, and its group dropped.
    #[test]
    fn each_bit_of_a_body_is_found_by_its_syndrome() {
        let body: Vec<u8> = (0..97u32).map(|i| (i * 37 + 5) as u8).collect();
        let right = crc32c(&body);
        for byte in 0..body.len() {
            for bit in 0..8 {
                let mut wrong = body.clone();
                wrong[byte] ^= 1 << bit;
                assert_eq!(locate(crc32c(&wrong) ^ right, wrong.len()), Some((byte, bit)));
            }
        }
        assert_eq!(locate(crc32c(b"something else") ^ right, body.len()), None);
    }
}
