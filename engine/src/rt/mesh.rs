//! The lanes between the cores of one broker: a bounded single-producer single-consumer queue for each ordered pair.
//!
//! In: [`Port::try_send`], then [`Port::flush`] once a turn. Out: [`Port::next`], in order per lane, the lanes in turn.
//! A full lane refuses: the sender keeps the message, and is woken when there is room again. Nothing here waits.
//!
//! **No wake-up is lost.** A core that goes to sleep says so first (`wake.rs`), and:
//! 1. *A message sent to a sleeping core.* `try_send` publishes the message (the lane's tail, Release); `flush`, later
//!    on the same thread, does an atomic swap on the receiver's parking state. If the receiver announced its sleep
//!    before that swap, the swap sees it and the eventfd is written: it wakes. If it announces after, its own swap
//!    finds "notified", acquires what the sender did before, and takes one more turn, in which `next` sees the message.
//! 2. *Room in a lane that refused.* The sender sets `starved`, passes a SeqCst fence and tries once more; the receiver
//!    takes messages, passes a SeqCst fence (in `flush`) and looks at `starved`. Of two threads that each write, fence
//!    and then read what the other wrote, at least one sees the other's: either the second try finds the room, or the
//!    receiver sees `starved` and wakes the sender as in 1.
//!
//! A core wakes another at most once a turn, and pays a system call only if that one sleeps.

use super::Waker;
use crate::limits::MESH_LANE_MAX;
use crate::types::CoreId;
use rtrb::{Consumer, Producer, PushError, RingBuffer};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// One core's end of every lane from and to it. Made by [`mesh`], moved to the core's thread, stays there.
pub struct Port<M> {
    core: CoreId,
    /// By core; `None` at the core's own place.
    peers: Vec<Option<Peer<M>>>,
    wakers: Vec<Waker>,
    /// The lane that [`Port::next`] looks at first.
    turn: usize,
}

struct Peer<M> {
    out: Producer<M>,
    /// Set by this core when `out` refused; cleared by the receiver, who then wakes this core.
    out_starved: Arc<AtomicBool>,
    inbound: Consumer<M>,
    in_starved: Arc<AtomicBool>,
    /// Something was sent since the last flush.
    sent: bool,
    /// Something was taken since the last flush.
    taken: bool,
}

/// Ports for cores 0 to `cores - 1`, in that order.
pub fn mesh<M: Send>(cores: usize) -> Vec<Port<M>> {
    mesh_with_lanes_of(cores, MESH_LANE_MAX)
}

/// As [`mesh`], with lanes of another length: a test fills them sooner.
pub fn mesh_with_lanes_of<M: Send>(cores: usize, lane_max: usize) -> Vec<Port<M>> {
    assert!((1..=crate::limits::CORES_MAX).contains(&cores), "{cores} cores");
    assert!(lane_max > 0, "a lane holds at least one message");
    type Half<T> = Vec<Vec<Option<(T, Arc<AtomicBool>)>>>;
    let empty = |_| (0..cores).map(|_| None).collect();
    let mut outs: Half<Producer<M>> = (0..cores).map(empty).collect();
    let empty = |_| (0..cores).map(|_| None).collect();
    let mut ins: Half<Consumer<M>> = (0..cores).map(empty).collect();
    for from in 0..cores {
        for to in (0..cores).filter(|to| *to != from) {
            let (producer, consumer) = RingBuffer::new(lane_max);
            let starved = Arc::new(AtomicBool::new(false));
            outs[from][to] = Some((producer, starved.clone()));
            ins[to][from] = Some((consumer, starved));
        }
    }
    let port = |(core, (outs, ins))| {
        let peer = |(out, inbound)| {
            let ((out, out_starved), (inbound, in_starved)) = (Option::zip(out, inbound))?;
            Some(Peer { out, out_starved, inbound, in_starved, sent: false, taken: false })
        };
        let peers = std::iter::zip::<Vec<_>, Vec<_>>(outs, ins).map(peer).collect();
        Port { core: CoreId(core as u16), peers, wakers: vec![], turn: 0 }
    };
    outs.into_iter().zip(ins).enumerate().map(port).collect()
}

impl<M> Port<M> {
    pub fn core(&self) -> CoreId {
        self.core
    }

    /// Cores of the mesh, this one included.
    pub fn cores(&self) -> usize {
        self.peers.len()
    }

    /// How each core is woken, by core; its own place is not used. Until this is called nobody is woken; what was sent
    /// before is announced by the first [`Port::flush`] after.
    pub fn set_wakers(&mut self, wakers: Vec<Waker>) {
        assert_eq!(wakers.len(), self.peers.len(), "one waker for each core");
        self.wakers = wakers;
    }

    /// Messages that the lane to `to` takes before it refuses; more may fit by the time they are sent. 0 to oneself.
    pub fn room(&self, to: CoreId) -> usize {
        self.peers[usize::from(to.0)].as_ref().map_or(0, |peer| peer.out.slots())
    }

    /// Gives the message back if the lane is full; then this core is woken once there is room.
    ///
    /// # Panics
    /// When a core sends to itself: what it would tell itself needs no lane.
    pub fn try_send(&mut self, to: CoreId, message: M) -> Result<(), M> {
        let peer = self.peers[usize::from(to.0)].as_mut().expect("a core does not send to itself");
        let pushed = peer.out.push(message).or_else(|PushError::Full(message)| {
            peer.out_starved.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            peer.out.push(message)
        });
        match pushed {
            Ok(()) => {
                peer.sent = true;
                Ok(())
            }
            Err(PushError::Full(message)) => Err(message),
        }
    }

    /// Wakes each core that was sent something since the last flush, or that waits for room which there is now. Once a
    /// turn, after the last `next` and `try_send` of it.
    pub fn flush(&mut self) {
        if self.wakers.is_empty() {
            return;
        }
        if self.peers.iter().flatten().any(|peer| peer.taken) {
            fence(Ordering::SeqCst);
        }
        for (core, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            let taken = std::mem::take(&mut peer.taken);
            // The load first: the flag is rarely set, and a swap would take its cache line from the sender each turn.
            let room =
                taken && peer.in_starved.load(Ordering::Relaxed) && peer.in_starved.swap(false, Ordering::Relaxed);
            if std::mem::take(&mut peer.sent) || room {
                self.wakers[core].wake();
            }
        }
    }

    /// The next message, one from each lane in turn; `None` when all are empty.
    #[allow(clippy::should_implement_trait, reason = "not an iterator: more may come after None")]
    pub fn next(&mut self) -> Option<(CoreId, M)> {
        for step in 0..self.peers.len() {
            let from = (self.turn + step) % self.peers.len();
            let Some(peer) = &mut self.peers[from] else { continue };
            if let Ok(message) = peer.inbound.pop() {
                peer.taken = true;
                self.turn = (from + 1) % self.peers.len();
                return Some((CoreId(from as u16), message));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    fn counting(cores: usize) -> (Vec<Arc<AtomicUsize>>, Vec<Waker>) {
        let counts: Vec<_> = (0..cores).map(|_| Arc::new(AtomicUsize::new(0))).collect();
        let waker = |count: &Arc<AtomicUsize>| {
            let count = count.clone();
            Waker::new(move || {
                count.fetch_add(1, Ordering::Relaxed);
            })
        };
        let wakers = counts.iter().map(waker).collect();
        (counts, wakers)
    }

    /// Lost if it fails: requests of one connection would be answered out of order.
    #[test]
    fn each_lane_keeps_its_order_and_the_lanes_take_turns() {
        let mut ports = mesh::<u32>(3);
        for n in 0..3 {
            ports[1].try_send(CoreId(0), 10 + n).expect("room");
            ports[2].try_send(CoreId(0), 20 + n).expect("room");
        }
        let got: Vec<_> = std::iter::from_fn(|| ports[0].next()).map(|(_, m)| m).collect();
        assert_eq!(got, [10, 20, 11, 21, 12, 22]);
    }

    /// Lost if it fails: a broker under load would spend its time on wake-ups.
    #[test]
    fn a_core_is_woken_once_a_turn_and_only_if_something_was_sent() {
        let mut ports = mesh::<u32>(3);
        let (counts, wakers) = counting(3);
        ports[0].set_wakers(wakers);
        for n in 0..5 {
            ports[0].try_send(CoreId(1), n).expect("room");
        }
        ports[0].flush();
        ports[0].flush();
        let counts: Vec<_> = counts.iter().map(|c| c.load(Ordering::Relaxed)).collect();
        assert_eq!(counts, [0, 1, 0]);
    }

    /// Lost if it fails: the bound on memory between cores, or a message.
    #[test]
    fn a_full_lane_gives_the_message_back_and_wakes_the_sender_when_there_is_room() {
        let mut ports = mesh_with_lanes_of::<u32>(2, 2);
        let (counts, wakers) = counting(2);
        let [a, b] = &mut ports[..] else { unreachable!("two ports") };
        a.set_wakers(wakers.clone());
        b.set_wakers(wakers);
        assert_eq!(a.room(CoreId(1)), 2);
        a.try_send(CoreId(1), 1).expect("room");
        a.try_send(CoreId(1), 2).expect("room");
        assert_eq!((a.room(CoreId(1)), a.try_send(CoreId(1), 3)), (0, Err(3)));
        b.flush();
        assert_eq!(counts[0].load(Ordering::Relaxed), 0, "nothing was taken: there is no room to tell of");
        assert_eq!(b.next(), Some((CoreId(0), 1)));
        b.flush();
        assert_eq!(counts[0].load(Ordering::Relaxed), 1);
        a.try_send(CoreId(1), 3).expect("room again");
        assert_eq!(b.next(), Some((CoreId(0), 2)));
        assert_eq!(b.next(), Some((CoreId(0), 3)));
        b.flush();
        assert_eq!(counts[0].load(Ordering::Relaxed), 1, "the sender was not refused again");
    }
}
