//! What reaches the port of brokers: any bytes in any pieces, and good frames with their CRC made right again, so that
//! the fields behind it are read.
//!
//! An input: two bytes, how large the pieces are; one byte, odd if what follows is the fields of a frame whose length
//! and CRC are to be made; these fields, or a stream.

use crate::rng::Rng;
use crate::{MIB, Target, mutate};
use bytes::Bytes;
use camus_engine::replica::{Descriptor, Message, MessageEntry, MessageKind};
use camus_engine::shard::peers::{EntryBody, ToPeer};
use camus_engine::types::{BrokerId, CoreId, EntryId, Index, Mono, ShardId, Term};
use camus_engine::wal::{RecordHead, RecordKind};
use camus_net::peer::codec::{Frame, Frames};
use camus_net::peer::guest::Guest;
use camus_net::peer::hello::Me;
use camus_net::peer::roll::{DirectoryId, InMemory, Known, Roll};
use std::sync::Arc;

pub const TARGET: Target = Target {
    name: "peer_frames",
    fuzz,
    heap_bytes_max,
    make: input,
    whole: || 256,
    corpus: include_str!("../corpus/peer_frames.txt"),
    share: 1,
};

/// Length and CRC of a frame.
const PREFIX_BYTES: usize = 8;

pub fn fuzz(data: &[u8]) {
    let Some(([high, low, holds], bytes)) = data.split_first_chunk::<3>() else { return };
    let stream = if holds & 1 == 1 { framed(bytes) } else { bytes.to_vec() };
    let in_pieces = cut(&stream, usize::from(u16::from_be_bytes([*high, *low])).max(1));
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
}

/// Frames are held twice and written again once; an entry is 100 bytes of a frame and has its head, its message's and
/// its body's place in memory.
fn heap_bytes_max(data: &[u8]) -> usize {
    128 * data.len() + MIB
}

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

/// Frames as brokers send them; behind the first ones, with changes behind a CRC that holds.
fn input(rng: &mut Rng, n: u64) -> Vec<u8> {
    let piece = rng.pick(&[1_u16, 3, 8, 100, u16::MAX]);
    let mut out = piece.to_be_bytes().to_vec();
    if n < 128 {
        out.push(0);
        for more in 0..1 + rng.below(4) as u64 {
            out.extend(frame(rng, n + more).encode().concat());
        }
    } else {
        out.push(1);
        let mut fields = frame(rng, n).encode().concat().split_off(PREFIX_BYTES);
        for _ in 0..rng.below(4) {
            mutate::mutate(rng, &mut fields, &[]);
        }
        out.extend(fields);
    }
    out
}

fn frame(rng: &mut Rng, n: u64) -> Frame {
    let count = rng.below(60);
    let some = Bytes::from(rng.bytes(count));
    match n % 8 {
        0 => Frame::Ping(rng.draw()),
        1 => Frame::Pong(rng.draw()),
        2 => Frame::Hello(me(2).hello(BrokerId(1))),
        3 => Frame::Propose { number: rng.draw(), command: some },
        4 => Frame::Decided { number: rng.draw(), version: rng.draw(), decided: some },
        _ => Frame::Raft(message(rng)),
    }
}

fn message(rng: &mut Rng) -> ToPeer {
    const KINDS: [RecordKind; 5] =
        [RecordKind::Noop, RecordKind::Batch, RecordKind::Trim, RecordKind::Meta, RecordKind::Membership];
    let near = |rng: &mut Rng| rng.below(5) as u64;
    let (mut entries, mut bodies) = (Vec::new(), Vec::new());
    for _ in 0..rng.below(4) {
        let kind = rng.pick(&KINDS);
        let count = rng.below(50);
        let body = Bytes::from(rng.bytes(count));
        let id = EntryId { term: Term(near(rng)), index: Index(near(rng)) };
        let about = Descriptor { kind, len: body.len() as u32, crc: crc32c::crc32c(&body) };
        entries.push(MessageEntry { id, about: Some(about) });
        bodies.push(EntryBody { head: RecordHead::new(kind, ShardId(1)), body });
    }
    let context = rng.below(20);
    let message = Message {
        shard: ShardId(near(rng) as u32),
        kind: rng.pick(&MessageKind::ALL),
        from: near(rng),
        to: near(rng),
        term: Term(near(rng)),
        log: EntryId { term: Term(near(rng)), index: Index(near(rng)) },
        entries,
        commit: Index(near(rng)),
        commit_term: Term(near(rng)),
        matched: Index(near(rng)),
        reject: rng.one_in(2),
        reject_hint: Index(near(rng)),
        context: rng.bytes(context),
        priority: rng.below(3) as i64,
    };
    ToPeer { message, bodies }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If what is made is no frame, nothing behind the CRC is ever read.
    #[test]
    fn the_first_inputs_are_frames() {
        for n in 0..128 {
            let (frames, failed) = cut(&input(&mut Rng::of(1, "test", n), n)[3..], 7);
            assert!(!failed && !frames.is_empty(), "input {n}: {frames:?}");
        }
    }
}
