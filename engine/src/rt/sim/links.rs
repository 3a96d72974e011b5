//! The connections of a simulated world, from their first packet until both ends are gone.

use super::ClientId;
use crate::rt::ConnId;
use crate::types::Mono;
use bytes::Bytes;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Bytes of one direction of a connection that were taken from the sender and not yet by the receiver.
pub(super) const WINDOW_BYTES: usize = 128 * 1024;

#[derive(Clone, Copy)]
pub(super) enum End {
    /// Not there yet, or closed.
    Nobody,
    Core(usize, ConnId),
    Client(ClientId),
}

/// How far a connection has come. Until it has arrived, what its connector sends is not taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Connecting,
    /// The connector has gone, by a reset or not, before it was there. It arrives all the same.
    Left {
        reset: bool,
    },
    Arrived,
    Refused,
}

pub(super) struct Link {
    /// The one that connects, the one that accepts.
    pub ends: [End; 2],
    /// By sender.
    pub ways: [Way; 2],
    pub to: SocketAddr,
    /// On which machines the ends are.
    pub hosts: [usize; 2],
    pub stage: Stage,
    /// By end: it is there, and has lost the reset that would have told it that the other is gone.
    pub half_open: [bool; 2],
}

#[derive(Default)]
pub(super) struct Way {
    /// Not taken from the sender yet.
    pub waiting: VecDeque<Bytes>,
    /// On the way or arrived, not taken by the receiver.
    pub window: usize,
    /// Taken by the receiver, but the sender does not know: of `window`.
    pub untold: usize,
    pub arrived: VecDeque<Bytes>,
    pub last_due: Mono,
    pub fin: bool,
}

impl Link {
    pub fn new(from: End, to: SocketAddr, hosts: [usize; 2]) -> Link {
        Link {
            ends: [from, End::Nobody],
            ways: Default::default(),
            to,
            hosts,
            stage: Stage::Connecting,
            half_open: [false; 2],
        }
    }
}

/// All that are not over, by number, in the order in which they began.
#[derive(Default)]
pub(super) struct Links {
    /// From number `first` on. Starts with one that is not over.
    links: VecDeque<Option<Box<Link>>>,
    first: u64,
}

impl Links {
    /// The number of the next one.
    pub fn next(&self) -> u64 {
        self.first + self.links.len() as u64
    }

    pub fn insert(&mut self, link: Link) -> u64 {
        self.links.push_back(Some(Box::new(link)));
        self.next() - 1
    }

    fn at(&self, number: u64) -> Option<usize> {
        number.checked_sub(self.first).map(|at| at as usize)
    }

    pub fn get(&self, number: u64) -> Option<&Link> {
        self.links.get(self.at(number)?)?.as_deref()
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut Link> {
        let at = self.at(number)?;
        self.links.get_mut(at)?.as_deref_mut()
    }

    /// One that is known not to be over.
    pub fn open(&mut self, number: u64) -> &mut Link {
        self.get_mut(number).expect("an open connection has a link")
    }

    pub fn remove(&mut self, number: u64) {
        if let Some(link) = self.at(number).and_then(|at| self.links.get_mut(at)) {
            *link = None;
        }
        while let Some(None) = self.links.front() {
            self.links.pop_front();
            self.first += 1;
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &Link)> {
        let numbered = (self.first..).zip(&self.links);
        numbered.filter_map(|(number, link)| Some((number, link.as_deref()?)))
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.iter().count()
    }
}
