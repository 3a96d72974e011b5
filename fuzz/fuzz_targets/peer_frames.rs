//! What reaches the port of brokers: any bytes in any pieces, and good frames with their CRC made right again, so that
//! the fields behind it are read.
#![no_main]

use bytes::Bytes;
use camus_engine::types::{BrokerId, CoreId, Mono};
use camus_net::peer::codec::{Frame, Frames};
use camus_net::peer::guest::Guest;
use camus_net::peer::hello::Me;
use camus_net::peer::roll::{DirectoryId, InMemory, Known, Roll};
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;

fn cut(stream: &[u8], piece: usize) -> (Vec<Frame>, bool) {
    let (mut frames, mut cut) = (Frames::default(), Vec::new());
    for part in stream.chunks(piece) {
        frames.push(part);
        loop {
            match frames.next_frame() {
                Ok(Some(frame)) => cut.push(frame),
                Ok(None) => break,
                Err(_) => return (cut, true),
            }
        }
    }
    (cut, false)
}

fn me(broker: i32) -> Me {
    let own = DirectoryId::from_bytes([broker as u8; 16]);
    let others = [1, 2, 3].into_iter().filter(|id| *id != broker).map(BrokerId).collect();
    Me {
        broker: BrokerId(broker),
        cores: 1,
        core: CoreId(0),
        cluster_id: "fuzz".to_owned(),
        brokers: [1, 2, 3].map(BrokerId).to_vec(),
        roll: Arc::new(Roll::new(own, others, Known::default(), Box::new(InMemory::default()))),
    }
}

/// A frame of these fields whose CRC holds.
fn framed(rest: &[u8]) -> Vec<u8> {
    let length = i32::try_from(rest.len() + 4).expect("a short input").to_be_bytes();
    let crc = crc32c::crc32c(&[&length[..], rest].concat());
    [&length[..], &crc.to_le_bytes(), rest].concat()
}

fuzz_target!(|input: (u16, bool, &[u8])| {
    let (piece, holds, bytes) = input;
    let stream = if holds { framed(bytes) } else { bytes.to_vec() };
    let in_pieces = cut(&stream, usize::from(piece).max(1));
    assert_eq!(in_pieces, cut(&stream, stream.len().max(1)));
    for frame in &in_pieces.0 {
        // what can be read is what a broker would send: it has one form
        let again = frame.encode().concat();
        assert_eq!(Frame::decode(&Bytes::from(again).slice(4..)).as_ref(), Ok(frame));
    }
    // the same behind a good hello
    let hello = Frame::Hello(me(2).hello(BrokerId(1))).encode().concat();
    let (mut guest, mut arrived) = (Guest::new(Mono(1)), Vec::new());
    guest.received(Mono(1), &[hello, stream].concat(), &me(1), &mut arrived);
    assert!(arrived.len() <= in_pieces.0.len());
    for _ in 0..4 {
        let _ = guest.next(Mono(1));
        guest.sent();
    }
});
