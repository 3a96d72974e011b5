//! Frames and request headers out of any stream of bytes: the pieces in which it comes must not matter.
//!
//! An input: two bytes, how large the pieces are; the stream.

use crate::make;
use crate::requests::{nth_version, versions};
use crate::rng::Rng;
use crate::{KIB, Target};
use bytes::Bytes;
use camus_net::frame::{FrameCutter, FrameFault, split};

pub const TARGET: Target = Target {
    name: "frames",
    fuzz,
    heap_bytes_max,
    make: input,
    whole: || 2 * versions(),
    corpus: include_str!("../corpus/frames.txt"),
    share: 2,
};

const FRAME_BYTES_MAX: usize = 4096;

pub fn fuzz(data: &[u8]) {
    let Some((piece, stream)) = data.split_first_chunk::<2>() else { return };
    let piece = u16::from_be_bytes(*piece);
    let in_pieces = cut(stream, usize::from(piece).max(1));
    assert_eq!(in_pieces, cut(stream, stream.len().max(1)));
    for frame in in_pieces.0 {
        if let Ok((header, body)) = split(&frame) {
            assert!(body.len() < frame.len());
            assert!(header.client_id.is_none_or(|id| id.len() <= 3 * frame.len()));
        }
    }
}

/// All frames are held at once, and twice: of 12 bytes at least, each in a buffer of its own. Beside them what a cutter
/// takes for a frame that has not come yet.
fn heap_bytes_max(data: &[u8]) -> usize {
    64 * data.len() + 256 * KIB
}

fn cut(stream: &[u8], piece: usize) -> (Vec<Bytes>, Option<FrameFault>) {
    let (mut cutter, mut frames) = (FrameCutter::new(FRAME_BYTES_MAX), Vec::new());
    for part in stream.chunks(piece) {
        cutter.push(part);
        loop {
            match cutter.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(fault) => return (frames, Some(fault)),
            }
        }
        assert!(cutter.held_bytes() <= FRAME_BYTES_MAX + 4 + piece);
    }
    (frames, None)
}

/// Some requests, one behind the other. The first round of all versions is as clients send them.
fn input(rng: &mut Rng, n: u64) -> Vec<u8> {
    let right = n < versions();
    let piece = rng.pick(&[1_u16, 2, 3, 5, 16, 100, 600, u16::MAX]);
    let mut out = piece.to_be_bytes().to_vec();
    for more in 0..1 + rng.below(4) as u64 {
        let (api, version) = nth_version(n + more);
        let wrong_one_in = if right { 0 } else { rng.pick(&[0, 24, 8, 3]) };
        let mut frame = make::frame(rng, api, version, wrong_one_in);
        frame.truncate(FRAME_BYTES_MAX);
        let mut length = i32::try_from(frame.len()).expect("a frame is short");
        if !right {
            match rng.below(24) {
                0 => length = rng.pick(&[-1, 0, 1, 7, 8, i32::MIN, i32::MAX, FRAME_BYTES_MAX as i32 + 1]),
                1 => length += rng.pick(&[-1, 1]),
                // a key or a version that nobody serves
                2 => frame[rng.below(4)] = rng.byte(),
                _ => {}
            }
        }
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(&frame);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If the streams that are made are no frames, everything behind the header is fuzzed by luck only.
    #[test]
    fn the_first_round_is_frames_of_every_version() {
        for n in 0..versions() {
            let stream = input(&mut Rng::of(1, "test", n), n);
            let (frames, fault) = cut(&stream[2..], 7);
            assert_eq!(fault, None);
            let (api, version) = nth_version(n);
            let (header, _) = split(&frames[0]).expect("the header of a version that is served");
            assert_eq!((header.key, header.version), (api.key, version));
        }
    }
}
