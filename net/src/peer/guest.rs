//! One incoming connection of another broker: it says who it is, and then only it speaks, but for pongs.

use super::codec::{Fault, Frame, Frames};
use super::hello::Me;
use super::raft_id;
use crate::limits;
use bytes::Bytes;
use camus_engine::types::{BrokerId, Mono};

/// What the connection is to be given next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    Send(Vec<Bytes>),
    Close,
}

/// A connection that another broker made, or somebody who may become one. Owned by the hub.
#[derive(Debug)]
pub struct Guest {
    /// Who it is, once it has said so and may be here.
    from: Option<BrokerId>,
    frames: Frames,
    /// Bytes that came before the hello.
    brought: usize,
    since: Mono,
    heard: Mono,
    /// Ours, until it is sent.
    hello: Option<Frame>,
    /// The last ping that is not answered.
    ping: Option<u64>,
    sending: bool,
    /// Nothing more is taken from it; what is owed is sent before it is closed.
    ending: bool,
    asked: bool,
}

impl Guest {
    pub fn new(now: Mono) -> Guest {
        Guest {
            from: None,
            frames: Frames::default(),
            brought: 0,
            since: now,
            heard: now,
            hello: None,
            ping: None,
            sending: false,
            ending: false,
            asked: false,
        }
    }

    pub fn from(&self) -> Option<BrokerId> {
        self.from
    }

    /// Its broker has made a new connection, or is not listened to any more.
    pub fn end(&mut self) {
        (self.ending, self.hello, self.ping) = (true, None, None);
    }

    pub fn sent(&mut self) {
        self.sending = false;
    }

    /// What it says for the replicas and the meta shard goes to `arrived`.
    pub fn received(&mut self, now: Mono, bytes: &[u8], me: &Me, arrived: &mut Vec<(BrokerId, Frame)>) {
        if self.ending {
            return;
        }
        self.heard = now;
        self.frames.push(bytes);
        if self.from.is_none() {
            self.brought += bytes.len();
        }
        while !self.ending {
            let done = match self.frames.next_frame() {
                Ok(Some(frame)) => self.take_frame(frame, me, arrived),
                Ok(None) if self.from.is_none() && self.brought > limits::PEER_HELLO_BYTES_MAX => Err(Fault::NoHello),
                Ok(None) => return,
                Err(fault) => Err(fault),
            };
            if let Err(fault) = done {
                tracing::warn!(from = ?self.from, %fault, "a connection to the port of brokers is closed");
                self.end();
            }
        }
    }

    fn take_frame(&mut self, frame: Frame, me: &Me, arrived: &mut Vec<(BrokerId, Frame)>) -> Result<(), Fault> {
        let out_of_place = Err(Fault::OutOfPlace { kind: frame.kind() });
        let Some(from) = self.from else {
            let Frame::Hello(theirs) = frame else { return out_of_place };
            let fits = me.check(&theirs, None);
            // It is told who this is in any case, so that it can say in its log what does not fit; and whom this broker
            // remembers it as.
            self.hello = Some(Frame::Hello(me.hello(theirs.from)));
            match fits {
                Ok(()) => self.from = Some(theirs.from),
                Err(why) => {
                    let says = theirs.from.0;
                    tracing::warn!(core = me.core.0, says, "a broker that connected is refused: {why}");
                    self.ending = true;
                }
            }
            return Ok(());
        };
        match frame {
            Frame::Ping(number) => self.ping = Some(number),
            Frame::Raft(message) if message.message.from != raft_id(from) => return out_of_place,
            frame @ (Frame::Raft(_) | Frame::Propose { .. } | Frame::Decided { .. }) => arrived.push((from, frame)),
            Frame::Hello(_) | Frame::Pong(_) => return out_of_place,
        }
        Ok(())
    }

    /// What is to be done now; to be asked until there is nothing.
    pub fn next(&mut self, now: Mono) -> Option<Reply> {
        let nobody = self.from.is_none() && now.since(self.since) > limits::PEER_HELLO_MAX;
        let silent = now.since(self.heard) > 2 * limits::PEER_SILENT_MAX;
        if nobody || silent {
            self.end();
        }
        if !self.sending {
            let ping = self.ping.take_if(|_| self.hello.is_none());
            if let Some(frame) = self.hello.take().or(ping.map(Frame::Pong)) {
                self.sending = true;
                return Some(Reply::Send(frame.encode()));
            }
        }
        let is_over = self.ending && (!self.sending || nobody || silent) && !self.asked;
        self.asked |= is_over;
        is_over.then_some(Reply::Close)
    }

    /// When [`Self::next`] has something to do though nothing happens.
    pub fn deadline(&self) -> Mono {
        let until = match self.from {
            None => self.since + limits::PEER_HELLO_MAX,
            Some(_) => self.heard + 2 * limits::PEER_SILENT_MAX,
        };
        until + std::time::Duration::from_millis(1)
    }

    /// It was asked to be closed: nothing is to be done for it but to wait for its end.
    pub fn is_closing(&self) -> bool {
        self.asked
    }
}

#[cfg(test)]
mod tests {
    use super::super::hello::tests::me;
    use super::*;
    use std::time::Duration;

    fn bytes(frame: &Frame) -> Vec<u8> {
        frame.encode().concat()
    }

    fn hello() -> Vec<u8> {
        bytes(&Frame::Hello(me(2).hello(BrokerId(1))))
    }

    /// Whoever reaches the port could vote, or write into the log.
    #[test]
    fn nothing_is_taken_of_who_has_not_said_who_it_is_or_may_not_be_here() {
        let raft = Frame::Decided { number: 1, version: 1, decided: Bytes::new() };
        let stranger = bytes(&Frame::Hello(me(9).hello(BrokerId(1))));
        let early = [bytes(&raft), hello()].concat();
        let noise = vec![7; 2 * limits::PEER_HELLO_BYTES_MAX];
        for (said, is_told) in [([stranger, bytes(&raft)].concat(), true), (early, false), (noise, false)] {
            let (mut guest, mut arrived) = (Guest::new(Mono(1)), Vec::new());
            guest.received(Mono(1), &said, &me(1), &mut arrived);
            assert!(arrived.is_empty() && guest.from().is_none());
            if is_told {
                let told = Frame::Hello(me(1).hello(BrokerId(9)));
                assert_eq!(guest.next(Mono(1)), Some(Reply::Send(told.encode())));
                assert_eq!(guest.next(Mono(1)), None, "it is told before it is closed");
                guest.sent();
            }
            assert_eq!(guest.next(Mono(1)), Some(Reply::Close));
            assert_eq!(guest.next(Mono(1)), None, "once");
        }
    }

    /// A broker that lost its disk would vote again, for somebody else.
    #[test]
    fn a_broker_that_comes_with_another_directory_is_told_and_not_taken() {
        let ours = me(1);
        let (mut guest, mut arrived) = (Guest::new(Mono(1)), Vec::new());
        guest.received(Mono(1), &hello(), &ours, &mut arrived);
        assert_eq!(guest.from(), Some(BrokerId(2)));
        let reply = |guest: &mut Guest| match guest.next(Mono(1)) {
            Some(Reply::Send(parts)) => parts.concat(),
            other => panic!("{other:?}"),
        };
        let first = me(2);
        let Frame::Hello(theirs) = Frame::decode(&reply(&mut guest).split_off(4).into()).unwrap() else { panic!() };
        assert_eq!(theirs.yours, first.roll.own(), "it hears that it is remembered");
        let mut new = first.hello(BrokerId(1));
        new.directory = me(3).roll.own();
        let mut guest = Guest::new(Mono(1));
        guest.received(Mono(1), &bytes(&Frame::Hello(new)), &ours, &mut arrived);
        assert_eq!(guest.from(), None);
        let Frame::Hello(theirs) = Frame::decode(&reply(&mut guest).split_off(4).into()).unwrap() else { panic!() };
        assert_eq!(theirs.yours, first.roll.own(), "it hears whom it is taken for");
        guest.sent();
        assert_eq!((guest.next(Mono(1)), arrived.len()), (Some(Reply::Close), 0));
    }

    /// One broker would vote in the name of another.
    #[test]
    fn a_broker_speaks_for_itself_only() {
        let (mut guest, mut arrived) = (Guest::new(Mono(1)), Vec::new());
        guest.received(Mono(1), &hello(), &me(1), &mut arrived);
        assert_eq!(guest.from(), Some(BrokerId(2)));
        let message = |from| {
            let message = camus_engine::replica::Message {
                shard: camus_engine::types::ShardId(1),
                kind: camus_engine::replica::MessageKind::Heartbeat,
                from,
                to: raft_id(BrokerId(1)),
                term: camus_engine::types::Term(1),
                log: camus_engine::types::EntryId { term: Default::default(), index: Default::default() },
                entries: Vec::new(),
                commit: Default::default(),
                commit_term: Default::default(),
                matched: Default::default(),
                reject: false,
                reject_hint: Default::default(),
                context: Vec::new(),
                priority: 0,
            };
            Frame::Raft(camus_engine::shard::peers::ToPeer { message, bodies: Vec::new() })
        };
        let own = message(raft_id(BrokerId(2)));
        guest.received(Mono(2), &bytes(&own), &me(1), &mut arrived);
        assert_eq!(arrived, [(BrokerId(2), own)]);
        guest.received(Mono(2), &bytes(&message(raft_id(BrokerId(3)))), &me(1), &mut arrived);
        assert_eq!((arrived.len(), guest.next(Mono(2))), (1, Some(Reply::Close)));
    }

    /// The other end would take a broker that is there for one that is not, and a dead connection would stay.
    #[test]
    fn pings_are_answered_and_silence_is_an_end() {
        let (mut guest, mut arrived) = (Guest::new(Mono(1)), Vec::new());
        guest.received(Mono(1), &hello(), &me(1), &mut arrived);
        guest.received(Mono(1), &bytes(&Frame::Ping(5)), &me(1), &mut arrived);
        assert!(matches!(guest.next(Mono(1)), Some(Reply::Send(_))), "the hello");
        assert_eq!(guest.next(Mono(1)), None);
        guest.sent();
        assert_eq!(guest.next(Mono(1)), Some(Reply::Send(Frame::Pong(5).encode())));
        guest.sent();
        assert_eq!(guest.next(Mono(1)), None);
        let late = Mono(1) + 2 * limits::PEER_SILENT_MAX + Duration::from_millis(1);
        assert!(guest.deadline() <= late);
        assert_eq!(guest.next(late), Some(Reply::Close));
        let mut nobody = Guest::new(Mono(1));
        assert_eq!(nobody.next(nobody.deadline()), Some(Reply::Close));
    }
}
