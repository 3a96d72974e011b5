//! Changes of bytes that know nothing of what the bytes are.

use crate::rng::Rng;

/// One change. `other`: an input of the same target, whose end may take the place of this one's.
pub fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    if bytes.is_empty() {
        let count = rng.below(64);
        *bytes = rng.bytes(count);
        return;
    }
    let at = rng.below(bytes.len());
    let end = (at + 1 + rng.below(32)).min(bytes.len());
    match rng.below(12) {
        0 => bytes[at] ^= 1 << rng.below(8),
        1 => bytes[at] = rng.pick(&[0, 1, 0x7e, 0x7f, 0x80, 0xfe, 0xff]),
        2 => bytes[at] = rng.byte(),
        3 => {
            let number = rng.pick(&[0, 1, -1, -2, i16::MIN, i16::MAX]);
            put(bytes, at, &number.to_be_bytes());
        }
        4 => {
            let number = rng.pick(&[0, 1, -1, -2, i32::MIN, i32::MAX, i32::MAX - 1, 1 << 20, 1 << 24, 1 << 30]);
            put(bytes, at, &number.to_be_bytes());
        }
        5 => {
            let number = rng.pick(&[0, 1, -1, -2, i64::MIN, i64::MAX, 1 << 32, 1 << 53]);
            put(bytes, at, &number.to_be_bytes());
        }
        // the largest varint that there is, and one without an end
        6 => drop(bytes.splice(at..=at, [0xff, 0xff, 0xff, 0xff, rng.pick(&[0x0f, 0x07, 0xff])])),
        7 => bytes.truncate(at),
        8 => drop(bytes.drain(at..end)),
        9 => {
            let copy = bytes[at..end].to_vec();
            drop(bytes.splice(end..end, copy));
        }
        10 => {
            let count = 1 + rng.below(16);
            let new = rng.bytes(count);
            drop(bytes.splice(at..at, new));
        }
        _ => {
            bytes.truncate(at);
            bytes.extend_from_slice(&other[at.min(other.len())..]);
        }
    }
}

/// Writes over what is there, as far as there is anything.
fn put(bytes: &mut [u8], at: usize, new: &[u8]) {
    for (old, new) in bytes[at..].iter_mut().zip(new) {
        *old = *new;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change that panics would end a run, and be taken for a finding.
    #[test]
    fn any_bytes_can_be_changed_for_ever() {
        let mut rng = Rng::of(1, "test", 0);
        let mut bytes = Vec::new();
        for n in 0..20_000 {
            let count = rng.below(40);
            let other = rng.bytes(count);
            mutate(&mut rng, &mut bytes, &other);
            if n % 100 == 0 {
                bytes.clear();
            }
        }
    }
}
