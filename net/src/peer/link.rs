//! One outgoing connection: when to connect, what to send, when to give up. Pure: time comes in, [`Act`]s go out.
//!
//! What is posted while it is not up, or while too much waits, is lost: replicas send again, and whoever passed a
//! command on is told that the link is down. What comes back on it are the hello and the pongs of the other end.

use super::codec::{Fault, Frame, Frames};
use super::hello::Me;
use crate::limits;
use bytes::Bytes;
use camus_engine::rt::ConnId;
use camus_engine::types::{BrokerId, Mono};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

/// What the link wants done next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Act {
    /// [`Link::connecting`] is told of the connection, or [`Link::closed`] that there is none.
    Connect(SocketAddr),
    Send(ConnId, Vec<Bytes>),
    Close(ConnId),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Down {
        until: Mono,
    },
    /// Nothing came back yet.
    Connecting {
        conn: Option<ConnId>,
        since: Mono,
    },
    /// The connection is there; the hellos are on the way.
    Greeting {
        conn: ConnId,
        since: Mono,
    },
    Up {
        conn: ConnId,
    },
    /// It is to be closed, or is being.
    Closing {
        conn: ConnId,
        asked: bool,
    },
}

/// The way from this core to the same core of another broker. Owned by the hub.
#[derive(Debug)]
pub struct Link {
    to: BrokerId,
    addr: SocketAddr,
    state: State,
    frames: Frames,
    /// Bytes that came before the hello.
    brought: usize,
    /// Each frame in its parts, and its bytes. Empty while the link is not up, but for the hello.
    queue: VecDeque<(usize, Vec<Bytes>)>,
    queue_bytes: usize,
    sending: bool,
    /// When something of the other end came last.
    heard: Mono,
    next_ping: Mono,
    pings: u64,
    /// The next pause.
    retry: Duration,
    /// What is at the other end does not fit: somebody has to change it first.
    misfit: bool,
    /// It is, or was, up.
    came_up: bool,
    /// Frames that were not sent.
    lost: u64,
}

impl Link {
    pub fn new(to: BrokerId, addr: SocketAddr) -> Link {
        Link {
            to,
            addr,
            state: State::Down { until: Mono(0) },
            frames: Frames::default(),
            brought: 0,
            queue: VecDeque::new(),
            queue_bytes: 0,
            sending: false,
            heard: Mono(0),
            next_ping: Mono(0),
            pings: 0,
            retry: limits::PEER_RETRY_MIN,
            misfit: false,
            came_up: false,
            lost: 0,
        }
    }

    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Up { .. })
    }

    /// The connection, whatever it is doing.
    pub fn conn(&self) -> Option<ConnId> {
        match self.state {
            State::Down { .. } => None,
            State::Connecting { conn, .. } => conn,
            State::Greeting { conn, .. } | State::Up { conn } | State::Closing { conn, .. } => Some(conn),
        }
    }

    /// Puts a frame behind the others. False if it is lost.
    pub fn post(&mut self, frame: &Frame) -> bool {
        let may = match frame {
            Frame::Raft(message) if !message.bodies.is_empty() => self.queue_bytes < limits::PEER_QUEUE_BYTES_MAX,
            _ => true,
        };
        if !self.is_up() || !may || self.queue.len() >= limits::PEER_QUEUE_FRAMES_MAX {
            self.lost += 1;
            return false;
        }
        self.push(frame);
        true
    }

    fn push(&mut self, frame: &Frame) {
        let parts = frame.encode();
        let bytes = parts.iter().map(Bytes::len).sum();
        self.queue_bytes += bytes;
        self.queue.push_back((bytes, parts));
    }

    /// What is to be done now; to be asked until there is nothing.
    pub fn next(&mut self, now: Mono) -> Option<Act> {
        match self.state {
            State::Down { until } if now >= until => {
                self.state = State::Connecting { conn: None, since: now };
                return Some(Act::Connect(self.addr));
            }
            State::Down { .. } | State::Connecting { conn: None, .. } => return None,
            State::Connecting { conn: Some(conn), since } | State::Greeting { conn, since }
                if now.since(since) > limits::PEER_HELLO_MAX =>
            {
                tracing::debug!(to = self.to.0, addr = %self.addr, "a broker does not answer");
                self.state = State::Closing { conn, asked: false };
            }
            State::Up { conn } if now.since(self.heard) > limits::PEER_SILENT_MAX => {
                tracing::warn!(to = self.to.0, addr = %self.addr, "a broker has gone silent: its link is made anew");
                self.state = State::Closing { conn, asked: false };
            }
            State::Up { .. } if now >= self.next_ping => {
                self.next_ping = now + limits::PEER_PING_EVERY;
                self.pings += 1;
                self.push(&Frame::Ping(self.pings));
            }
            State::Connecting { .. } | State::Greeting { .. } | State::Up { .. } | State::Closing { .. } => {}
        }
        match self.state {
            State::Closing { conn, asked: false } => {
                self.state = State::Closing { conn, asked: true };
                Some(Act::Close(conn))
            }
            State::Greeting { conn, .. } | State::Up { conn } if !self.sending && !self.queue.is_empty() => {
                self.sending = true;
                Some(Act::Send(conn, self.take()))
            }
            State::Down { .. }
            | State::Connecting { .. }
            | State::Greeting { .. }
            | State::Up { .. }
            | State::Closing { .. } => None,
        }
    }

    /// The next frames, as many as are sent at once.
    fn take(&mut self) -> Vec<Bytes> {
        let (mut all, mut taken) = (Vec::new(), 0);
        while let Some((bytes, parts)) =
            self.queue.pop_front_if(|(bytes, _)| taken == 0 || taken + *bytes <= limits::PEER_SEND_BYTES_MAX)
        {
            taken += bytes;
            self.queue_bytes -= bytes;
            all.extend(parts);
        }
        all
    }

    /// When [`Self::next`] has something to do though nothing happens.
    pub fn deadline(&self) -> Option<Mono> {
        let after = |since: Mono, time: Duration| Some(since + time + Duration::from_millis(1));
        match self.state {
            State::Down { until } => Some(until),
            State::Connecting { since, .. } | State::Greeting { since, .. } => after(since, limits::PEER_HELLO_MAX),
            State::Up { .. } => Some(self.next_ping),
            State::Closing { .. } => None,
        }
    }

    /// The other end is known to be there.
    pub fn hurry(&mut self, now: Mono) {
        if let State::Down { until } = self.state {
            self.state = State::Down { until: until.min(now) };
        }
    }

    pub fn connecting(&mut self, conn: ConnId) {
        if let State::Connecting { since, .. } = self.state {
            self.state = State::Connecting { conn: Some(conn), since };
        }
    }

    /// The connection is there: it begins with the hello.
    pub fn connected(&mut self, now: Mono, me: &Me) {
        if let State::Connecting { conn: Some(conn), since } = self.state {
            self.state = State::Greeting { conn, since };
            self.heard = now;
            self.push(&Frame::Hello(me.hello(self.to)));
        }
    }

    pub fn sent(&mut self) {
        self.sending = false;
    }

    pub fn received(&mut self, now: Mono, bytes: &[u8], me: &Me) {
        self.heard = now;
        self.frames.push(bytes);
        if !self.is_up() {
            self.brought += bytes.len();
        }
        loop {
            let done = match self.frames.next_frame() {
                Ok(Some(frame)) => self.take_frame(now, &frame, me),
                Ok(None) if !self.is_up() && self.brought > limits::PEER_HELLO_BYTES_MAX => Err(Fault::NoHello),
                Ok(None) => return,
                Err(fault) => Err(fault),
            };
            let (State::Greeting { conn, .. } | State::Up { conn }) = self.state else { return };
            if let Err(fault) = done {
                tracing::warn!(to = self.to.0, addr = %self.addr, %fault, "a link is closed");
                self.state = State::Closing { conn, asked: false };
                return;
            }
        }
    }

    fn take_frame(&mut self, now: Mono, frame: &Frame, me: &Me) -> Result<(), Fault> {
        match (frame, self.state) {
            (Frame::Hello(theirs), State::Greeting { conn, .. }) => {
                if let Err(why) = me.check(theirs, Some(self.to)) {
                    tracing::warn!(to = self.to.0, addr = %self.addr, "a broker can not be talked to: {why}");
                    self.misfit = true;
                    self.state = State::Closing { conn, asked: false };
                    return Ok(());
                }
                tracing::info!(core = me.core.0, to = self.to.0, addr = %self.addr, "linked to a broker");
                self.state = State::Up { conn };
                (self.came_up, self.next_ping, self.lost) = (true, now, 0);
                Ok(())
            }
            (Frame::Pong(_), State::Up { .. }) => {
                self.retry = limits::PEER_RETRY_MIN;
                Ok(())
            }
            (frame, _) => Err(Fault::OutOfPlace { kind: frame.kind() }),
        }
    }

    /// The connection is gone, or could not be made. `random`: so that brokers do not try in step. True if the link was
    /// up: what was on the way over it may be lost.
    pub fn closed(&mut self, now: Mono, random: u64) -> bool {
        let was_up = self.came_up;
        if was_up {
            tracing::warn!(to = self.to.0, addr = %self.addr, lost = self.lost, "the link to a broker is gone");
        }
        let pause = if self.misfit { limits::PEER_RETRY_MISMATCH } else { self.retry };
        let jitter = Duration::from_micros(random % (pause.as_micros() as u64 / 2 + 1));
        let retry = (self.retry * 2).min(limits::PEER_RETRY_MAX);
        *self = Link { retry, lost: self.lost, ..Link::new(self.to, self.addr) };
        self.state = State::Down { until: now + pause + jitter };
        was_up
    }
}

#[cfg(test)]
mod tests {
    use super::super::hello::tests::me;
    use super::*;
    use camus_engine::replica::{Message, MessageKind};
    use camus_engine::shard::peers::{EntryBody, ToPeer};
    use camus_engine::types::{EntryId, Index, ShardId, Term};
    use camus_engine::wal::{RecordHead, RecordKind};

    const CONN: ConnId = ConnId { slot: 3, generation: 1 };

    fn addr() -> SocketAddr {
        "127.0.0.1:9000".parse().unwrap()
    }

    fn ms(ms: u64) -> Mono {
        Mono(ms * 1_000_000)
    }

    fn bytes(frame: &Frame) -> Vec<u8> {
        frame.encode().concat()
    }

    /// A link that is up since `now`, with its first ping on the way.
    fn up(now: Mono) -> Link {
        let mut link = Link::new(BrokerId(2), addr());
        assert_eq!(link.next(now), Some(Act::Connect(addr())));
        link.connecting(CONN);
        link.connected(now, &me(1));
        let Some(Act::Send(CONN, hello)) = link.next(now) else { panic!("it says hello first") };
        assert_eq!(hello.concat(), bytes(&Frame::Hello(me(1).hello(BrokerId(2)))));
        assert!(!link.post(&Frame::Pong(1)), "nothing goes before the other end has said who it is");
        link.sent();
        link.received(now, &bytes(&Frame::Hello(me(2).hello(BrokerId(1)))), &me(1));
        assert!(link.is_up());
        assert!(matches!(link.next(now), Some(Act::Send(CONN, _))), "a ping");
        link.sent();
        assert_eq!(link.next(now), None);
        link
    }

    fn append(body_bytes: usize) -> Frame {
        let head = RecordHead::new(RecordKind::Batch, ShardId(1));
        let id = EntryId { term: Term(1), index: Index(1) };
        let about = camus_engine::replica::Descriptor { kind: RecordKind::Batch, len: body_bytes as u32, crc: 0 };
        let entry = camus_engine::replica::MessageEntry { id, about: Some(about) };
        let message = Message {
            shard: ShardId(1),
            kind: MessageKind::Append,
            from: 2,
            to: 3,
            term: Term(1),
            log: id,
            entries: vec![entry],
            commit: Index(0),
            commit_term: Term(0),
            matched: Index(0),
            reject: false,
            reject_hint: Index(0),
            context: Vec::new(),
            priority: 0,
        };
        Frame::Raft(ToPeer { message, bodies: vec![EntryBody { head, body: vec![7; body_bytes].into() }] })
    }

    /// A broker that is away would be asked without a pause, or not again.
    #[test]
    fn a_broker_that_is_away_is_tried_again_with_longer_and_longer_pauses() {
        let mut link = Link::new(BrokerId(2), addr());
        let (mut now, mut pauses) = (ms(1), Vec::new());
        for _ in 0..9 {
            assert_eq!(link.next(now), Some(Act::Connect(addr())));
            link.connecting(CONN);
            assert_eq!(link.next(now), None);
            assert!(!link.closed(now, 0), "it was never up");
            let next = link.deadline().expect("it tries again");
            assert_eq!(link.next(Mono(next.0 - 1)), None);
            pauses.push(next.since(now).as_millis());
            now = next;
        }
        assert_eq!(pauses[..4], [20, 40, 80, 160]);
        assert_eq!(pauses[7..], [1000, 1000]);
        link.next(now);
        link.connecting(CONN);
        link.closed(now, 0);
        link.hurry(now);
        assert_eq!(link.next(now), Some(Act::Connect(addr())), "it has come to us: it is there");
    }

    /// Replicas would talk into a connection that leads nowhere, for the minutes that TCP takes to say so.
    #[test]
    fn a_silent_end_is_given_up_and_one_that_answers_is_kept() {
        let mut link = up(ms(1));
        let mut now = ms(1);
        for _ in 0..20 {
            now = now + limits::PEER_PING_EVERY;
            assert!(matches!(link.next(now), Some(Act::Send(CONN, _))), "a ping");
            link.sent();
            link.received(now, &bytes(&Frame::Pong(1)), &me(1));
            assert_eq!(link.next(now), None);
        }
        let silent = now + limits::PEER_SILENT_MAX + Duration::from_millis(1);
        assert_eq!(link.next(silent), Some(Act::Close(CONN)));
        assert_eq!(link.next(silent), None, "it is closed once");
        assert!(link.closed(silent, 0), "whoever waits for an answer is to be told");
        let again = link.deadline().expect("it tries again");
        assert!(again.since(silent) <= limits::PEER_RETRY_MIN * 2);
        assert_eq!(link.next(again), Some(Act::Connect(addr())));
        // one that takes the connection and says nothing
        link.connecting(CONN);
        link.connected(again, &me(1));
        assert!(matches!(link.next(again), Some(Act::Send(CONN, _))));
        let late = again + limits::PEER_HELLO_MAX + Duration::from_millis(1);
        assert_eq!(link.next(late), Some(Act::Close(CONN)));
    }

    /// A slow broker would take the memory of the others: what it does not get now Raft sends again.
    #[test]
    fn what_waits_for_a_slow_end_is_bounded_and_votes_pass() {
        let mut link = up(ms(1));
        let big = append(1024 * 1024);
        let posted = (0..100).filter(|_| link.post(&big)).count();
        assert!(posted <= limits::PEER_QUEUE_BYTES_MAX / (1024 * 1024) + 1, "{posted}");
        assert!(link.post(&Frame::Pong(7)), "small ones pass");
        let mut sends = 0;
        while let Some(Act::Send(CONN, parts)) = link.next(ms(1)) {
            assert!(parts.iter().map(Bytes::len).sum::<usize>() < 2 * limits::PEER_SEND_BYTES_MAX);
            assert_eq!(link.next(ms(1)), None, "one at a time");
            link.sent();
            sends += 1;
        }
        assert!(sends >= posted && link.queue_bytes == 0);
        let small = (0..2 * limits::PEER_QUEUE_FRAMES_MAX).filter(|_| link.post(&Frame::Pong(7))).count();
        assert_eq!(small, limits::PEER_QUEUE_FRAMES_MAX);
    }

    /// A vote would be counted for another cluster's, or another core's, shard.
    #[test]
    fn an_end_that_does_not_fit_or_does_not_speak_is_left() {
        let good = bytes(&Frame::Hello(me(2).hello(BrokerId(1))));
        let mut other = me(2);
        other.cluster_id = "another".to_owned();
        let wrong = bytes(&Frame::Hello(other.hello(BrokerId(1))));
        let noise = vec![0, 0, 0, 40, 1, 2, 3].into_iter().chain([0; 60]).collect();
        let silent_noise = [&[0, 1, 0, 0][..], &[7; limits::PEER_HELLO_BYTES_MAX]].concat();
        let twice = [&good[..], &good].concat();
        let raft = [&good[..], &bytes(&append(3))].concat();
        for (said, pause) in [
            (wrong, limits::PEER_RETRY_MISMATCH),
            (noise, limits::PEER_RETRY_MIN),
            (silent_noise, limits::PEER_RETRY_MIN),
            (twice, limits::PEER_RETRY_MIN),
            (raft, limits::PEER_RETRY_MIN),
        ] {
            let mut link = Link::new(BrokerId(2), addr());
            link.next(ms(1));
            link.connecting(CONN);
            link.connected(ms(1), &me(1));
            link.next(ms(1));
            link.sent();
            link.received(ms(1), &said, &me(1));
            assert!(!link.is_up());
            assert_eq!(link.next(ms(1)), Some(Act::Close(CONN)));
            link.closed(ms(1), 0);
            assert_eq!(link.deadline(), Some(ms(1) + pause));
        }
    }
}
