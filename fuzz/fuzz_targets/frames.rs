//! Frames and request headers out of any stream of bytes: the pieces in which it comes must not matter.
#![no_main]

use bytes::Bytes;
use camus_net::frame::{FrameCutter, FrameFault, split};
use libfuzzer_sys::fuzz_target;

const FRAME_BYTES_MAX: usize = 4096;

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

fuzz_target!(|input: (u16, &[u8])| {
    let (piece, stream) = input;
    let in_pieces = cut(stream, usize::from(piece).max(1));
    assert_eq!(in_pieces, cut(stream, stream.len().max(1)));
    for frame in in_pieces.0 {
        if let Ok((header, body)) = split(&frame) {
            assert!(body.len() < frame.len());
            assert!(header.client_id.is_none_or(|id| id.len() <= 3 * frame.len()));
        }
    }
});
