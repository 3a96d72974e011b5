//! All links of one core, joined to its shell.

use super::codec::Frame;
use super::guest::{Guest, Reply};
use super::hello::Me;
use super::link::{Act, Link};
use crate::limits;
use crate::node::Member;
use camus_engine::rt::{ConnId, ListenerId, Rt};
use camus_engine::types::{BrokerId, CoreId, Mono};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

/// The connections of this core to and from the same core of all other brokers. Lives on the core's thread; owned by
/// the node. A broker that is alone has none.
#[derive(Debug)]
pub struct Hub {
    me: Me,
    links: BTreeMap<BrokerId, Link>,
    guests: BTreeMap<ConnId, Guest>,
    listener: Option<ListenerId>,
    /// What came, and from whom.
    arrived: Vec<(BrokerId, Frame)>,
    /// Brokers whose link came down: answers of theirs may never come.
    lost: Vec<BrokerId>,
    /// The broker goes: nothing is sent or taken any more.
    is_shut: bool,
}

/// Where core `n` of a broker takes its peers' connections.
///
/// # Panics
/// If there is no such port: whoever makes the broker has looked.
pub fn peer_addr(addr: SocketAddr, core: CoreId) -> SocketAddr {
    let port = addr.port().checked_add(core.0).expect("each core has a port");
    SocketAddr::new(addr.ip(), port)
}

impl Hub {
    /// `members`: of the whole cluster.
    pub fn new(me: Me, members: &[Member]) -> Hub {
        let others = members.iter().filter(|member| member.id != me.broker);
        let links = others.map(|member| (member.id, Link::new(member.id, peer_addr(member.peer, me.core))));
        Hub {
            links: links.collect(),
            me,
            guests: BTreeMap::new(),
            listener: None,
            arrived: Vec::new(),
            lost: Vec::new(),
            is_shut: false,
        }
    }

    /// From now on others may connect.
    pub fn listen(&mut self, rt: &mut dyn Rt, addr: SocketAddr) -> io::Result<()> {
        // However many clients there are: a cluster that they cut would serve nobody.
        let (id, _) = rt.listen_beside(peer_addr(addr, self.me.core))?;
        self.listener = Some(id);
        Ok(())
    }

    /// Whether a connection that was accepted there is of another broker, or of one who says so.
    pub fn accepted(&mut self, rt: &mut dyn Rt, listener: ListenerId, conn: ConnId) -> bool {
        if self.listener != Some(listener) {
            return false;
        }
        let guest = self.guests.entry(conn).or_insert(Guest::new(rt.now()));
        if self.is_shut {
            guest.end();
        }
        if self.guests.len() > limits::PEER_GUESTS_MAX {
            tracing::warn!(core = self.me.core.0, "too many connections to the port of brokers: one is closed");
            self.guests.get_mut(&conn).expect("put in above").end();
        }
        true
    }

    /// The link that has made this connection. Also where other fields are in use.
    fn link_of(links: &mut BTreeMap<BrokerId, Link>, conn: ConnId) -> Option<(BrokerId, &mut Link)> {
        links.iter_mut().map(|(broker, link)| (*broker, link)).find(|(_, link)| link.conn() == Some(conn))
    }

    pub fn connected(&mut self, now: Mono, conn: ConnId) {
        let (_, link) = Self::link_of(&mut self.links, conn).expect("nobody else connects");
        link.connected(now, &self.me);
    }

    /// Whether the bytes were on a connection of ours. What they say is in [`Self::take_arrived`].
    pub fn received(&mut self, now: Mono, conn: ConnId, bytes: &[u8]) -> bool {
        if let Some(guest) = self.guests.get_mut(&conn) {
            let before = guest.from();
            guest.received(now, bytes, &self.me, &mut self.arrived);
            let from = guest.from();
            if before.is_none() && from.is_some() {
                // Its older connection is dead, whether this core has noticed or not.
                let older = self.guests.iter_mut().filter(|(id, guest)| **id != conn && guest.from() == from);
                older.for_each(|(_, guest)| guest.end());
                // It is there: nobody needs to wait for the next try.
                if let Some(link) = from.and_then(|from| self.links.get_mut(&from)) {
                    link.hurry(now);
                }
            }
            return true;
        }
        let link = Self::link_of(&mut self.links, conn);
        link.map(|(_, link)| link.received(now, bytes, &self.me)).is_some()
    }

    pub fn sent(&mut self, conn: ConnId) -> bool {
        if let Some(guest) = self.guests.get_mut(&conn) {
            guest.sent();
            return true;
        }
        Self::link_of(&mut self.links, conn).map(|(_, link)| link.sent()).is_some()
    }

    pub fn closed(&mut self, rt: &mut dyn Rt, conn: ConnId) -> bool {
        if self.guests.remove(&conn).is_some() {
            return true;
        }
        let (now, random) = (rt.now(), rt.random());
        let Some((broker, link)) = Self::link_of(&mut self.links, conn) else { return false };
        if link.closed(now, random) {
            self.lost.push(broker);
        }
        true
    }

    pub fn is_up(&self, to: BrokerId) -> bool {
        self.links.get(&to).is_some_and(Link::is_up)
    }

    /// False if it is lost: any frame may be, and all are until this broker takes part.
    pub fn post(&mut self, to: BrokerId, frame: &Frame) -> bool {
        self.takes_part() && self.links.get_mut(&to).is_some_and(|link| link.post(frame))
    }

    pub fn take_arrived(&mut self) -> Vec<(BrokerId, Frame)> {
        let arrived = std::mem::take(&mut self.arrived);
        if self.takes_part() { arrived } else { Vec::new() }
    }

    /// What others say counts here, and the other way round.
    fn takes_part(&self) -> bool {
        !self.is_shut && self.me.roll.is_formed()
    }

    pub fn take_lost(&mut self) -> Vec<BrokerId> {
        std::mem::take(&mut self.lost)
    }

    /// Connects, sends and closes what is due.
    pub fn flush(&mut self, rt: &mut dyn Rt) {
        let now = rt.now();
        if !self.is_shut {
            for link in self.links.values_mut() {
                while let Some(act) = link.next(now) {
                    match act {
                        Act::Connect(addr) => match rt.connect(addr) {
                            Ok(conn) => link.connecting(conn),
                            Err(error) => {
                                tracing::debug!(%addr, %error, "a broker can not be connected to");
                                link.closed(now, rt.random());
                            }
                        },
                        Act::Send(conn, parts) => rt.send(conn, parts),
                        Act::Close(conn) => rt.close(conn),
                    }
                }
            }
        }
        for (conn, guest) in &mut self.guests {
            while let Some(reply) = guest.next(now) {
                match reply {
                    Reply::Send(parts) => rt.send(*conn, parts),
                    Reply::Close => rt.close(*conn),
                }
            }
        }
    }

    /// When [`Self::flush`] has something to do though nothing happens.
    pub fn deadline(&self) -> Option<Mono> {
        let links = self.links.values().filter(|_| !self.is_shut).filter_map(Link::deadline);
        let guests = self.guests.values().filter(|guest| !guest.is_closing()).map(Guest::deadline);
        links.chain(guests).min()
    }

    /// The broker has answered everything that it will: what it leads, others are to lead, and nothing of theirs is to
    /// keep its log from coming to rest.
    pub fn shut(&mut self, rt: &mut dyn Rt) {
        if self.is_shut {
            return;
        }
        self.is_shut = true;
        if let Some(listener) = self.listener {
            rt.stop_listening(listener);
        }
        self.links.values().filter_map(Link::conn).for_each(|conn| rt.close(conn));
        self.guests.values_mut().for_each(Guest::end);
        self.flush(rt);
    }
}
