//! The frames between brokers: a length, a CRC32C over all of the rest and the length, a kind, and what is of the kind.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | what follows, bytes; big endian, as a Kafka frame, so that the same code cuts them |
//! | 4 | CRC32C of the length, the kind and the rest |
//! | 1 | kind |
//! | any | the fields of the kind, little endian |
//!
//! A frame whose CRC holds is what a broker sent: the heads of entries are not covered by anything else on their way
//! from one write-ahead log to another. What does not decode all the same is of another version, or an error of ours.
//! Numbers here never change their meaning within a [`PROTOCOL_VERSION`].

use super::hello::Hello;
use super::roll::DirectoryId;
use crate::frame::FrameCutter;
use crate::limits::{
    FRAME_BYTES_MIN, PEER_COMMAND_BYTES_MAX, PEER_CONTEXT_BYTES_MAX, PEER_ENTRIES_MAX, PEER_FRAME_BYTES_MAX,
};
use bytes::{BufMut, Bytes, BytesMut};
use camus_engine::limits::{BROKERS_MAX, WAL_RECORD_BYTES_MAX};
use camus_engine::replica::{Descriptor, Message, MessageEntry, MessageKind};
use camus_engine::shard::peers::{EntryBody, ToPeer};
use camus_engine::types::{
    BrokerId, EntryId, Index, Offset, PartitionId, ProducerEpoch, ProducerId, Sequence, ShardId, Term, WallMs,
};
use camus_engine::wal::{RecordHead, RecordKind};

/// What both ends of a link must speak. Said in the first frame; a change of anything below is another number.
pub const PROTOCOL_VERSION: u16 = 2;

/// Of a cluster's id in a hello.
const CLUSTER_ID_BYTES_MAX: usize = 64;

/// What one frame says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Frame {
    /// The first one in each direction.
    Hello(Hello),
    /// To be answered with the same number.
    Ping(u64),
    Pong(u64),
    /// A message of a replica.
    Raft(ToPeer),
    /// A command for the meta shard, which the receiver leads as far as the sender knows.
    Propose {
        number: u64,
        command: Bytes,
    },
    /// What became of it; `version`: of the image in which it can be seen, 0 where nothing is to be seen.
    Decided {
        number: u64,
        version: u64,
        decided: Bytes,
    },
}

const HELLO: u8 = 1;
const PING: u8 = 2;
const PONG: u8 = 3;
const RAFT: u8 = 4;
const PROPOSE: u8 = 5;
const DECIDED: u8 = 6;

/// Length and CRC.
const PREFIX_BYTES: usize = 8;
/// `id`, `about` and `head` of an entry.
const ENTRY_BYTES: usize = 16 + 10 + HEAD_BYTES;
const HEAD_BYTES: usize = 74;

/// Why a connection can not go on: what came is no frame of ours, or not as it was sent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    #[error("a frame of {bytes} bytes is announced, {PEER_FRAME_BYTES_MAX} are allowed")]
    Length { bytes: i64 },
    #[error("the CRC of a frame of {bytes} bytes does not hold")]
    Damaged { bytes: usize },
    #[error("a frame of kind {kind} can not be read: {why}")]
    Malformed { kind: u8, why: &'static str },
    #[error("a frame of kind {kind} came before the hello, or came twice, or is none for this direction")]
    OutOfPlace { kind: u8 },
    #[error("more than a hello came, and none of it is one")]
    NoHello,
}

impl Frame {
    pub fn kind(&self) -> u8 {
        match self {
            Frame::Hello(_) => HELLO,
            Frame::Ping(_) => PING,
            Frame::Pong(_) => PONG,
            Frame::Raft(_) => RAFT,
            Frame::Propose { .. } => PROPOSE,
            Frame::Decided { .. } => DECIDED,
        }
    }

    /// As it is sent, in parts: bodies are not copied.
    ///
    /// # Panics
    /// If it is larger than the receiver takes, or a message's entries and bodies are not each other's: both are made
    /// by this process.
    pub fn encode(&self) -> Vec<Bytes> {
        let mut w = BytesMut::with_capacity(256);
        w.put_bytes(0, PREFIX_BYTES);
        w.put_u8(self.kind());
        let mut bodies: &[EntryBody] = &[];
        match self {
            Frame::Hello(hello) => put_hello(&mut w, hello),
            Frame::Ping(number) | Frame::Pong(number) => w.put_u64_le(*number),
            Frame::Raft(to) => {
                put_message(&mut w, to);
                bodies = &to.bodies;
            }
            Frame::Propose { number, command } => {
                assert!(command.len() <= PEER_COMMAND_BYTES_MAX, "the caller looks at a command's size");
                w.put_u64_le(*number);
                w.put_slice(command);
            }
            Frame::Decided { number, version, decided } => {
                w.put_u64_le(*number);
                w.put_u64_le(*version);
                w.put_slice(decided);
            }
        }
        let rest: usize = bodies.iter().map(|entry| entry.body.len()).sum();
        let length = w.len() - 4 + rest;
        assert!(length <= PEER_FRAME_BYTES_MAX, "a frame of {length} bytes, of which the entries have {rest}");
        let length = i32::try_from(length).expect("below PEER_FRAME_BYTES_MAX").to_be_bytes();
        let mut crc = crc32c::crc32c_append(crc32c::crc32c(&length), &w[PREFIX_BYTES..]);
        for entry in bodies {
            crc = crc32c::crc32c_append(crc, &entry.body);
        }
        w[..4].copy_from_slice(&length);
        w[4..PREFIX_BYTES].copy_from_slice(&crc.to_le_bytes());
        let mut parts = vec![w.freeze()];
        parts.extend(bodies.iter().map(|entry| entry.body.clone()).filter(|body| !body.is_empty()));
        parts
    }

    /// Of a frame without its length, as [`FrameCutter`] gives it. Bodies are slices of it. Nothing is reserved that
    /// the frame does not hold.
    pub fn decode(frame: &Bytes) -> Result<Frame, Fault> {
        let (Some(expected), Some(kind)) = (frame.first_chunk::<4>(), frame.get(4)) else {
            return Err(Fault::Length { bytes: frame.len() as i64 });
        };
        let length = i32::try_from(frame.len()).map_err(|_| Fault::Length { bytes: frame.len() as i64 })?;
        let crc = crc32c::crc32c_append(crc32c::crc32c(&length.to_be_bytes()), &frame[4..]);
        if crc != u32::from_le_bytes(*expected) {
            return Err(Fault::Damaged { bytes: frame.len() });
        }
        let mut r = Fields { frame, at: 5 };
        read(*kind, &mut r).ok_or(Fault::Malformed { kind: *kind, why: "its fields are not those of its kind" })
    }
}

fn read(kind: u8, r: &mut Fields<'_>) -> Option<Frame> {
    let frame = match kind {
        HELLO => Frame::Hello(read_hello(r)?),
        PING => Frame::Ping(r.u64()?),
        PONG => Frame::Pong(r.u64()?),
        RAFT => Frame::Raft(read_message(r)?),
        PROPOSE => {
            let (number, command) = (r.u64()?, r.rest());
            if command.len() > PEER_COMMAND_BYTES_MAX {
                return None;
            }
            Frame::Propose { number, command }
        }
        DECIDED => Frame::Decided { number: r.u64()?, version: r.u64()?, decided: r.rest() },
        _ => return None,
    };
    // what follows belongs to nothing
    (r.left() == 0).then_some(frame)
}

/// Cuts frames out of what comes on one connection.
#[derive(Debug)]
pub struct Frames {
    cutter: FrameCutter,
}

impl Default for Frames {
    fn default() -> Frames {
        Frames { cutter: FrameCutter::new(PEER_FRAME_BYTES_MAX) }
    }
}

impl Frames {
    pub fn push(&mut self, received: &[u8]) {
        self.cutter.push(received);
    }

    pub fn next_frame(&mut self) -> Result<Option<Frame>, Fault> {
        match self.cutter.next_frame() {
            Ok(Some(frame)) => Frame::decode(&frame).map(Some),
            Ok(None) => Ok(None),
            Err(crate::frame::FrameFault::Length { announced, .. }) => Err(Fault::Length { bytes: announced.into() }),
            Err(other) => unreachable!("a cutter looks at lengths only: {other}"),
        }
    }
}

const _: () = assert!(FRAME_BYTES_MIN <= 4 + 1 + 8, "the smallest frame is a ping");

// ------------------------------------------------------------------------------------------------- fields

/// Reads fields in order; `None` where the frame has no more, or a value means nothing.
struct Fields<'a> {
    frame: &'a Bytes,
    at: usize,
}

impl Fields<'_> {
    fn left(&self) -> usize {
        self.frame.len() - self.at
    }

    fn slice(&mut self, len: usize) -> Option<Bytes> {
        if len > self.left() {
            return None;
        }
        let at = self.at;
        self.at += len;
        Some(self.frame.slice(at..at + len))
    }

    fn rest(&mut self) -> Bytes {
        self.slice(self.left()).expect("as much as is left")
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = self.frame[self.at..].first_chunk::<N>()?;
        self.at += N;
        Some(*bytes)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }
}

fn put_hello(w: &mut BytesMut, hello: &Hello) {
    assert!(hello.cluster_id.len() <= CLUSTER_ID_BYTES_MAX && hello.brokers.len() <= BROKERS_MAX);
    w.put_u64_le(hello.magic);
    w.put_u16_le(hello.version);
    w.put_i32_le(hello.from.0);
    w.put_i32_le(hello.to.0);
    w.put_u16_le(hello.cores);
    w.put_u16_le(hello.core);
    w.put_u8(hello.cluster_id.len() as u8);
    w.put_slice(hello.cluster_id.as_bytes());
    w.put_u8(hello.brokers.len() as u8);
    hello.brokers.iter().for_each(|broker| w.put_i32_le(broker.0));
    w.put_slice(hello.directory.bytes());
    w.put_slice(hello.yours.bytes());
}

fn read_hello(r: &mut Fields<'_>) -> Option<Hello> {
    let (magic, version) = (r.u64()?, r.u16()?);
    let (from, to) = (BrokerId(r.i32()?), BrokerId(r.i32()?));
    let (cores, core) = (r.u16()?, r.u16()?);
    let len = usize::from(r.u8()?);
    let cluster_id = r.slice(len).filter(|_| len <= CLUSTER_ID_BYTES_MAX)?;
    let cluster_id = std::str::from_utf8(&cluster_id).ok()?.to_owned();
    let count = usize::from(r.u8()?);
    if count > BROKERS_MAX {
        return None;
    }
    let brokers = (0..count).map(|_| r.i32().map(BrokerId)).collect::<Option<_>>()?;
    let (directory, yours) = (DirectoryId::from_bytes(r.array()?), DirectoryId::from_bytes(r.array()?));
    Some(Hello { magic, version, from, to, cores, core, cluster_id, brokers, directory, yours })
}

fn put_message(w: &mut BytesMut, to: &ToPeer) {
    let ToPeer { message, bodies } = to;
    assert_eq!(message.entries.len(), bodies.len(), "an entry goes with its body");
    assert!(message.entries.len() <= PEER_ENTRIES_MAX && message.context.len() <= PEER_CONTEXT_BYTES_MAX);
    w.reserve(128 + message.context.len() + ENTRY_BYTES * bodies.len());
    w.put_u8(message.kind as u8);
    w.put_u8(u8::from(message.reject));
    w.put_u16_le(message.context.len() as u16);
    w.put_u32_le(message.entries.len() as u32);
    w.put_u32_le(message.shard.0);
    for number in [
        message.from,
        message.to,
        message.term.0,
        message.log.term.0,
        message.log.index.0,
        message.commit.0,
        message.commit_term.0,
        message.matched.0,
        message.reject_hint.0,
    ] {
        w.put_u64_le(number);
    }
    w.put_i64_le(message.priority);
    w.put_slice(&message.context);
    for (entry, EntryBody { head, body }) in message.entries.iter().zip(bodies) {
        let about = entry.about.expect("whoever found the body filled this in");
        assert_eq!(about.len as usize, body.len(), "a descriptor is that of its body");
        w.put_u64_le(entry.id.term.0);
        w.put_u64_le(entry.id.index.0);
        w.put_u16_le(about.kind as u16);
        w.put_u32_le(about.len);
        w.put_u32_le(about.crc);
        put_head(w, head);
    }
}

fn read_message(r: &mut Fields<'_>) -> Option<ToPeer> {
    let kind = r.u8()?;
    let kind = MessageKind::ALL.into_iter().find(|k| *k as u8 == kind)?;
    let reject = match r.u8()? {
        0 => false,
        1 => true,
        _ => return None,
    };
    let (context, count) = (usize::from(r.u16()?), r.u32()? as usize);
    if context > PEER_CONTEXT_BYTES_MAX || count > PEER_ENTRIES_MAX {
        return None;
    }
    let shard = ShardId(r.u32()?);
    let (from, to, term) = (r.u64()?, r.u64()?, Term(r.u64()?));
    let log = EntryId { term: Term(r.u64()?), index: Index(r.u64()?) };
    let (commit, commit_term) = (Index(r.u64()?), Term(r.u64()?));
    let (matched, reject_hint) = (Index(r.u64()?), Index(r.u64()?));
    let priority = r.i64()?;
    let context = r.slice(context)?.to_vec();
    if count * ENTRY_BYTES > r.left() {
        return None;
    }
    let (mut entries, mut heads) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for _ in 0..count {
        let id = EntryId { term: Term(r.u64()?), index: Index(r.u64()?) };
        let about = Descriptor { kind: record_kind(r.u16()?)?, len: r.u32()?, crc: r.u32()? };
        entries.push(MessageEntry { id, about: Some(about) });
        heads.push((read_head(r)?, about.len as usize));
    }
    let mut bodies = Vec::with_capacity(count);
    for (head, len) in heads {
        let body = r.slice(len).filter(|_| len <= WAL_RECORD_BYTES_MAX)?;
        bodies.push(EntryBody { head, body });
    }
    let message = Message {
        shard,
        kind,
        from,
        to,
        term,
        log,
        entries,
        commit,
        commit_term,
        matched,
        reject,
        reject_hint,
        context,
        priority,
    };
    Some(ToPeer { message, bodies })
}

/// Only what can be an entry.
fn record_kind(number: u16) -> Option<RecordKind> {
    let kinds = [RecordKind::Noop, RecordKind::Batch, RecordKind::Trim, RecordKind::Meta, RecordKind::Membership];
    kinds.into_iter().find(|kind| *kind as u16 == number)
}

fn put_head(w: &mut BytesMut, head: &RecordHead) {
    let at = w.len();
    w.put_u16_le(head.kind as u16);
    w.put_u16_le(head.flags);
    w.put_i16_le(head.producer_epoch.0);
    w.put_u32_le(head.shard.0);
    w.put_u32_le(head.count);
    w.put_i32_le(head.base_sequence.0);
    w.put_u64_le(head.term.0);
    w.put_u64_le(head.index.0);
    w.put_u64_le(head.commit.0);
    w.put_u64_le(head.partition.0);
    w.put_i64_le(head.base_offset.0);
    w.put_i64_le(head.producer.0);
    w.put_i64_le(head.max_timestamp.0);
    assert_eq!(w.len() - at, HEAD_BYTES, "what a reader counts on");
}

fn read_head(r: &mut Fields<'_>) -> Option<RecordHead> {
    let (kind, flags) = (record_kind(r.u16()?)?, r.u16()?);
    let producer_epoch = ProducerEpoch(r.array().map(i16::from_le_bytes)?);
    let shard = ShardId(r.u32()?);
    let (count, base_sequence) = (r.u32()?, Sequence(r.i32()?));
    let (term, index, commit) = (Term(r.u64()?), Index(r.u64()?), Index(r.u64()?));
    let partition = PartitionId(r.u64()?);
    let (base_offset, producer) = (Offset(r.i64()?), ProducerId(r.i64()?));
    let max_timestamp = WallMs(r.i64()?);
    Some(RecordHead {
        kind,
        shard,
        term,
        index,
        commit,
        partition,
        base_offset,
        count,
        producer,
        producer_epoch,
        base_sequence,
        max_timestamp,
        flags,
    })
}

#[cfg(test)]
mod tests {
    use super::super::hello::MAGIC;
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn any_head(kind: RecordKind) -> impl Strategy<Value = RecordHead> {
        let numbers = (proptest::array::uniform4(any::<u64>()), proptest::array::uniform3(any::<i64>()));
        (numbers, any::<(u32, u32)>(), any::<(i16, i32, u16)>()).prop_map(move |((u, i), (shard, count), rest)| {
            RecordHead {
                kind,
                shard: ShardId(shard),
                term: Term(u[0]),
                index: Index(u[1]),
                commit: Index(u[2]),
                partition: PartitionId(u[3]),
                base_offset: Offset(i[0]),
                count,
                producer: ProducerId(i[1]),
                producer_epoch: ProducerEpoch(rest.0),
                base_sequence: Sequence(rest.1),
                max_timestamp: WallMs(i[2]),
                flags: rest.2,
            }
        })
    }

    fn any_entry() -> impl Strategy<Value = (MessageEntry, EntryBody)> {
        let kinds = vec![RecordKind::Noop, RecordKind::Batch, RecordKind::Trim, RecordKind::Meta];
        let head = proptest::sample::select(kinds).prop_flat_map(any_head);
        (any::<(u64, u64, u32)>(), head, vec(any::<u8>(), 0..300)).prop_map(|((term, index, crc), head, body)| {
            let id = EntryId { term: Term(term), index: Index(index) };
            let about = Some(Descriptor { kind: head.kind, len: body.len() as u32, crc });
            (MessageEntry { id, about }, EntryBody { head, body: body.into() })
        })
    }

    fn any_message() -> impl Strategy<Value = ToPeer> {
        let kinds = proptest::sample::select(MessageKind::ALL.to_vec());
        let rest = (any::<u32>(), any::<bool>(), any::<i64>(), vec(any::<u8>(), 0..20));
        let numbers = proptest::array::uniform9(any::<u64>());
        (kinds, numbers, rest, vec(any_entry(), 0..5)).prop_map(|(kind, n, (shard, reject, priority, context), all)| {
            let (entries, bodies) = all.into_iter().unzip();
            let message = Message {
                shard: ShardId(shard),
                kind,
                from: n[0],
                to: n[1],
                term: Term(n[2]),
                log: EntryId { term: Term(n[3]), index: Index(n[4]) },
                entries,
                commit: Index(n[5]),
                commit_term: Term(n[6]),
                matched: Index(n[7]),
                reject,
                reject_hint: Index(n[8]),
                context,
                priority,
            };
            ToPeer { message, bodies }
        })
    }

    fn any_frame() -> impl Strategy<Value = Frame> {
        let bytes = || vec(any::<u8>(), 0..200).prop_map(Bytes::from);
        let ids = vec(any::<i32>().prop_map(BrokerId), 0..=BROKERS_MAX);
        let directories = any::<(u128, u128)>();
        let hello = (any::<(u64, u16, i32, i32, u16, u16)>(), "[a-zA-Z0-9_-]{0,22}", ids, directories);
        prop_oneof![
            hello.prop_map(|((magic, version, from, to, cores, core), cluster_id, brokers, (own, other))| {
                let (from, to) = (BrokerId(from), BrokerId(to));
                let [directory, yours] = [own, other].map(|id| DirectoryId::from_bytes(id.to_le_bytes()));
                Frame::Hello(Hello { magic, version, from, to, cores, core, cluster_id, brokers, directory, yours })
            }),
            any::<u64>().prop_map(Frame::Ping),
            any::<u64>().prop_map(Frame::Pong),
            any_message().prop_map(Frame::Raft),
            (any::<u64>(), bytes()).prop_map(|(number, command)| Frame::Propose { number, command }),
            (any::<(u64, u64)>(), bytes()).prop_map(|((number, version), decided)| Frame::Decided {
                number,
                version,
                decided
            }),
        ]
    }

    fn stream(frames: &[Frame]) -> Vec<u8> {
        frames.iter().flat_map(Frame::encode).collect::<Vec<_>>().concat()
    }

    fn cut(stream: &[u8], piece: usize) -> Result<Vec<Frame>, Fault> {
        let (mut frames, mut cut) = (Frames::default(), Vec::new());
        for part in stream.chunks(piece) {
            frames.push(part);
            while let Some(frame) = frames.next_frame()? {
                cut.push(frame);
            }
        }
        Ok(cut)
    }

    proptest! {
        /// A field that got lost on the way would be a vote, an entry or an answer that means something else.
        #[test]
        fn frames_come_as_they_were_sent_in_whatever_pieces(frames in vec(any_frame(), 1..4), piece in 1..400usize) {
            prop_assert_eq!(cut(&stream(&frames), piece), Ok(frames));
        }

        /// The head of an entry says to which partition and offsets its records belong, and nothing else covers it:
        /// damaged on the way it would be written, flushed, counted and served.
        #[test]
        fn a_damaged_byte_is_refused(frame in any_frame(), at in any::<prop::sample::Index>(), flip in 1..=255u8) {
            let mut bytes = stream(&[frame]);
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            // a length that grew waits for bytes that no sender sends
            if let Ok(frames) = cut(&bytes, bytes.len()) {
                prop_assert!(frames.is_empty() && at < 4, "{frames:?}");
            }
        }

        /// Whoever reaches the port could otherwise end the broker.
        #[test]
        fn no_bytes_end_in_a_panic(kind in any::<u8>(), rest in vec(any::<u8>(), 0..400)) {
            // with a CRC that holds, so that the fields are read
            let length = i32::try_from(rest.len() + 5).unwrap().to_be_bytes();
            let crc = crc32c::crc32c(&[&length[..], &[kind], &rest].concat());
            let bytes = [&length[..], &crc.to_le_bytes(), &[kind], &rest].concat();
            for frame in cut(&bytes, bytes.len()).unwrap_or_default() {
                prop_assert_eq!(stream(&[frame]), bytes.clone(), "one frame has one form");
            }
            let _ = cut(&rest, 7);
        }
    }

    /// A count that nothing stands behind must not be allocated, nor a length waited for.
    #[test]
    fn announced_counts_and_lengths_are_not_believed() {
        let far = [&i32::MAX.to_be_bytes()[..], &[0; 20]].concat();
        assert_eq!(cut(&far, 24), Err(Fault::Length { bytes: i32::MAX.into() }));
        let mut message = BytesMut::new();
        message.put_slice(&[MessageKind::Append as u8, 0, 0, 0]);
        message.put_u32_le(PEER_ENTRIES_MAX as u32);
        message.put_bytes(0, 200);
        assert_eq!(read(RAFT, &mut Fields { frame: &message.freeze(), at: 0 }), None);
    }

    /// Brokers of the same version must understand each other whenever they were built.
    #[test]
    fn the_bytes_of_a_hello_never_change() {
        let hello = Hello {
            magic: MAGIC,
            version: 2,
            from: BrokerId(1),
            to: BrokerId(2),
            cores: 3,
            core: 4,
            cluster_id: "ab".to_owned(),
            brokers: vec![BrokerId(1), BrokerId(2)],
            directory: DirectoryId::from_bytes([0xaa; 16]),
            yours: DirectoryId::from_bytes([0xbb; 16]),
        };
        let hex: String = stream(&[Frame::Hello(hello)])[8..].iter().map(|b| format!("{b:02x}")).collect();
        let told = "0143414d55535045520200010000000200000003000400026162020100000002000000";
        assert_eq!(hex, [told, &"aa".repeat(16), &"bb".repeat(16)].concat());
    }
}
