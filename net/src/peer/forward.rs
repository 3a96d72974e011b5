//! Commands that another broker was asked to write, because it leads the meta shard.
//!
//! While nobody leads it they wait a little: an election is soon over. Each has one end: what the leader says of it,
//! once every core of this broker has the image in which it can be seen; or, when the link is gone or the time is up,
//! that nobody knows (the client asks again, and finds out).

use crate::limits;
use bytes::Bytes;
use camus_engine::shard::api::Ticket;
use camus_engine::types::{BrokerId, Mono};
use camus_meta::{Command, Decided, Refused};
use std::collections::{BTreeMap, VecDeque};

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    to: BrokerId,
    until: Mono,
    /// What became of it, and the image's version.
    decided: Option<(u64, Decided)>,
}

/// A command that nobody could be asked to write yet.
#[derive(Debug)]
pub struct Held {
    pub ticket: Ticket,
    pub command: Command,
    /// The same, as it is passed on.
    pub bytes: Bytes,
    pub until: Mono,
}

/// Lives on core 0, beside the meta shard's host.
#[derive(Debug)]
pub struct Forwards {
    /// Random at first: an answer to a number of an earlier life means nothing.
    next: u64,
    /// At most [`limits::FORWARDS_MAX`].
    waiting: BTreeMap<u64, Waiting>,
    /// In the order in which they were asked for. At most [`limits::FORWARDS_HELD_MAX`].
    held: VecDeque<Held>,
    held_bytes: usize,
}

impl Forwards {
    pub fn new(first: u64) -> Forwards {
        Forwards { next: first, waiting: BTreeMap::new(), held: VecDeque::new(), held_bytes: 0 }
    }

    pub fn has_room(&self) -> bool {
        self.waiting.len() < limits::FORWARDS_MAX
    }

    /// The number under which the broker is to be asked.
    pub fn begin(&mut self, now: Mono, ticket: Ticket, to: BrokerId) -> u64 {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        let until = now + limits::FORWARD_MAX;
        self.waiting.insert(number, Waiting { ticket, to, until, decided: None });
        number
    }

    /// Keeps a command, and the bytes that it is passed on as, until somebody leads. False if too many wait already.
    pub fn hold(&mut self, now: Mono, ticket: Ticket, command: Command, bytes: Bytes) -> bool {
        let is_full = self.held.len() >= limits::FORWARDS_HELD_MAX;
        if is_full || self.held_bytes + bytes.len() > limits::FORWARDS_HELD_BYTES_MAX {
            return false;
        }
        self.held_bytes += bytes.len();
        self.held.push_back(Held { ticket, command, bytes, until: now + limits::FORWARD_HELD_MAX });
        true
    }

    /// The first of those that wait, to be tried again; [`Self::hold_on`] if it is to wait on.
    pub fn next_held(&mut self) -> Option<Held> {
        let held = self.held.pop_front()?;
        self.held_bytes -= held.bytes.len();
        Some(held)
    }

    /// It is the first again.
    pub fn hold_on(&mut self, held: Held) {
        self.held_bytes += held.bytes.len();
        self.held.push_front(held);
    }

    /// It was not passed on after all.
    pub fn forget(&mut self, number: u64) {
        self.waiting.remove(&number);
    }

    /// A broker says what became of a command. What nobody waits for, and what another one was asked, is left.
    pub fn decided(&mut self, from: BrokerId, number: u64, version: u64, decided: Decided) {
        if let Some(waiting) = self.waiting.get_mut(&number).filter(|waiting| waiting.to == from) {
            waiting.decided.get_or_insert((version, decided));
        }
    }

    /// The link to this broker is gone, and with it the answers.
    pub fn lost(&mut self, to: BrokerId) {
        for waiting in self.waiting.values_mut().filter(|waiting| waiting.to == to) {
            let why = "the broker that was asked is gone".to_owned();
            waiting.decided.get_or_insert((0, Err(Refused::Unavailable { why })));
        }
    }

    /// Those that come to their end. `seen`: every core has an image of this version, at least.
    pub fn take(&mut self, now: Mono, seen: u64) -> Vec<(Ticket, Decided)> {
        let is_over = |_: &u64, waiting: &mut Waiting| {
            waiting.decided.as_ref().is_some_and(|(version, _)| *version <= seen) || now >= waiting.until
        };
        let over = self.waiting.extract_if(.., is_over).map(|(_, waiting)| {
            let why = "the broker that leads it did not answer in time".to_owned();
            let unknown = (0, Err(Refused::Unavailable { why }));
            (waiting.ticket, waiting.decided.unwrap_or(unknown).1)
        });
        over.collect()
    }

    /// When [`Self::take`] finds one at the latest.
    pub fn deadline(&self) -> Option<Mono> {
        let held = self.held.front().map(|held| held.until);
        self.waiting.values().map(|waiting| waiting.until).chain(held).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use camus_engine::types::CoreId;
    use camus_meta::Done;

    fn ticket(request: u64) -> Ticket {
        Ticket { core: CoreId(0), request, part: 0 }
    }

    /// A client would be refused for an election that is over in a moment; or what waits for one would have no bound.
    #[test]
    fn what_waits_for_a_leader_is_bounded_and_keeps_its_order() {
        let mut forwards = Forwards::new(0);
        let command = || Command::TakeProducerIds { count: 1 };
        assert!(forwards.next_held().is_none());
        let of = |bytes: usize| Bytes::from(vec![0; bytes]);
        let half = limits::FORWARDS_HELD_BYTES_MAX / 2;
        assert!(forwards.hold(Mono(1), ticket(0), command(), of(half)));
        assert!(forwards.hold(Mono(2), ticket(1), command(), of(half)));
        assert!(!forwards.hold(Mono(2), ticket(2), command(), of(1)), "they have their bytes");
        assert_eq!(forwards.deadline(), Some(Mono(1) + limits::FORWARD_HELD_MAX));
        let first = forwards.next_held().expect("two wait");
        assert_eq!(first.ticket, ticket(0));
        forwards.hold_on(first);
        let all: Vec<Ticket> = std::iter::from_fn(|| forwards.next_held()).map(|held| held.ticket).collect();
        assert_eq!((all, forwards.held_bytes), (vec![ticket(0), ticket(1)], 0));
        let many =
            (0..2 * limits::FORWARDS_HELD_MAX as u64).filter(|n| forwards.hold(Mono(1), ticket(*n), command(), of(2)));
        assert_eq!(many.count(), limits::FORWARDS_HELD_MAX);
    }

    /// A client that was told that its topic is there would not find it, or would wait for ever.
    #[test]
    fn each_command_has_one_end_and_not_before_its_effect_can_be_seen_here() {
        let mut forwards = Forwards::new(u64::MAX);
        let (to, other, now) = (BrokerId(2), BrokerId(3), Mono(1));
        let numbers: Vec<u64> = (0..4).map(|n| forwards.begin(now, ticket(n), to)).collect();
        let last = forwards.begin(now, ticket(4), other);
        assert_eq!(forwards.take(now, u64::MAX), []);
        forwards.decided(to, numbers[0], 7, Ok(Done::OffsetsDeleted));
        forwards.decided(to, numbers[0], 0, Err(Refused::NoLeader));
        forwards.decided(other, numbers[1], 0, Ok(Done::OffsetsDeleted));
        forwards.decided(to, 12345, 0, Ok(Done::OffsetsDeleted));
        assert_eq!(forwards.take(now, 6), []);
        assert_eq!(forwards.take(now, 7), [(ticket(0), Ok(Done::OffsetsDeleted))]);
        forwards.decided(to, numbers[1], u64::MAX, Ok(Done::GroupsDeleted));
        forwards.lost(to);
        let lost = forwards.take(now, 7);
        assert_eq!(lost.iter().map(|(ticket, _)| ticket.request).collect::<Vec<_>>(), [2, 3]);
        assert!(lost.iter().all(|(_, decided)| matches!(decided, Err(Refused::Unavailable { .. }))));
        let late = forwards.deadline().expect("two wait");
        // the decision is true though its image did not come
        let over = forwards.take(late, 7);
        assert_eq!((over.len(), forwards.deadline()), (2, None));
        assert!(over.contains(&(ticket(1), Ok(Done::GroupsDeleted))));
        forwards.decided(other, last, 0, Ok(Done::OffsetsDeleted));
        assert_eq!(forwards.take(late, u64::MAX), []);
    }
}
