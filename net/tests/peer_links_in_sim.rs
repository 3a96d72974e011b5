//! The links between brokers over the simulator's network: what `link.rs` and `guest.rs` decide, with connections that
//! come up late, break, and end with their process. `CAMUS_TEST_SEED=<seed>` runs the seed that failed alone.
#![allow(clippy::unwrap_used, reason = "a test may")]

use bytes::Bytes;
use camus_engine::io::sim::Crash;
use camus_engine::rt::sim::{SimCoreId, World};
use camus_engine::rt::{Driver, Event, Rt, Turn};
use camus_engine::types::{BrokerId, CoreId};
use camus_net::node::Member;
use camus_net::peer::codec::Frame;
use camus_net::peer::hello::Me;
use camus_net::peer::hub::Hub;
use camus_net::peer::roll::{DirectoryId, InMemory, Roll};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// What the test sees of one broker, and gives it.
#[derive(Default)]
struct Shared {
    up: Vec<BrokerId>,
    arrived: Vec<(BrokerId, u64)>,
    lost: Vec<BrokerId>,
    to_send: Vec<(BrokerId, u64)>,
}

/// A broker that has links and nothing else.
struct Linked {
    hub: Hub,
    listen: SocketAddr,
    ids: Vec<BrokerId>,
    shared: Rc<RefCell<Shared>>,
}

impl Driver for Linked {
    fn start(&mut self, rt: &mut dyn Rt) {
        self.hub.listen(rt, self.listen).unwrap();
    }

    fn event(&mut self, rt: &mut dyn Rt, event: Event<'_>) {
        match event {
            Event::Accepted { listener, conn, .. } => assert!(self.hub.accepted(rt, listener, conn)),
            Event::Connected { conn } => self.hub.connected(rt.now(), conn),
            Event::Received { conn, bytes } => assert!(self.hub.received(rt.now(), conn, bytes)),
            Event::Sent { conn } => assert!(self.hub.sent(conn)),
            Event::Closed { conn, .. } => assert!(self.hub.closed(rt, conn)),
            Event::Disk(_) | Event::Woken => {}
        }
    }

    fn turn_end(&mut self, rt: &mut dyn Rt) -> Turn {
        let mut shared = self.shared.borrow_mut();
        for (to, number) in std::mem::take(&mut shared.to_send) {
            self.hub.post(to, &Frame::Decided { number, version: 0, decided: Bytes::from(vec![7; 5_000]) });
        }
        for (from, frame) in self.hub.take_arrived() {
            let Frame::Decided { number, decided, .. } = frame else { panic!("{frame:?} was not sent") };
            assert_eq!(decided, vec![7; 5_000]);
            shared.arrived.push((from, number));
        }
        shared.lost.extend(self.hub.take_lost());
        shared.up = self.ids.iter().copied().filter(|id| self.hub.is_up(*id)).collect();
        self.hub.flush(rt);
        Turn::Wait { until: self.hub.deadline() }
    }
}

struct Three {
    world: World<Linked>,
    cores: BTreeMap<BrokerId, SimCoreId>,
    shared: BTreeMap<BrokerId, Rc<RefCell<Shared>>>,
    disks: BTreeMap<BrokerId, InMemory>,
}

const IDS: [BrokerId; 3] = [BrokerId(1), BrokerId(2), BrokerId(3)];

fn addr(id: BrokerId) -> SocketAddr {
    format!("127.0.0.1:{}", 9000 + 10 * id.0).parse().unwrap()
}

impl Three {
    fn new(seed: u64) -> Three {
        let mut world = World::new(seed);
        let cores = IDS.map(|id| (id, world.add_core())).into();
        let mut three = Three { world, cores, shared: BTreeMap::new(), disks: BTreeMap::new() };
        IDS.into_iter().for_each(|id| three.start(id, "c"));
        three
    }

    fn start(&mut self, id: BrokerId, cluster: &str) {
        let member = |id: BrokerId| Member { id, advertised: ("localhost".to_owned(), 9092), peer: addr(id) };
        let disk = self.disks.entry(id).or_default().clone();
        let own = DirectoryId::from_bytes([id.0 as u8; 16]);
        let roll = Roll::new(own, Three::others(id).into_iter().collect(), disk.known(), Box::new(disk));
        let me = Me {
            broker: id,
            cores: 1,
            core: CoreId(0),
            cluster_id: cluster.to_owned(),
            brokers: IDS.to_vec(),
            roll: Arc::new(roll),
        };
        let shared = Rc::new(RefCell::new(Shared::default()));
        self.shared.insert(id, Rc::clone(&shared));
        let hub = Hub::new(me, &IDS.map(member));
        self.world.start(self.cores[&id], Linked { hub, listen: addr(id), ids: IDS.to_vec(), shared });
    }

    fn wake(&self, id: BrokerId) {
        self.world.waker(self.cores[&id]).wake();
    }

    fn others(id: BrokerId) -> Vec<BrokerId> {
        IDS.into_iter().filter(|other| *other != id).collect()
    }

    /// Each of these has a link to all others of them.
    fn wait_linked(&mut self, ids: &[BrokerId]) {
        let shared: Vec<_> = ids.iter().map(|id| (*id, Rc::clone(&self.shared[id]))).collect();
        let all = |(id, shared): &(BrokerId, Rc<RefCell<Shared>>)| {
            ids.iter().filter(|other| *other != id).all(|other| shared.borrow().up.contains(other))
        };
        assert!(self.world.run_until(Duration::from_secs(10), |_| shared.iter().all(all)), "they are not linked");
    }
}

fn seeds(default: std::ops::Range<u64>) -> std::ops::Range<u64> {
    match std::env::var("CAMUS_TEST_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => default,
    }
}

/// Replicas would be left alone by a link that does not come back, or hear of what was sent to somebody else.
#[test]
fn links_come_up_carry_in_order_and_come_back_after_a_restart() {
    for seed in seeds(0..30) {
        let mut three = Three::new(seed);
        three.wait_linked(&IDS);
        for n in 0..20 {
            for id in IDS {
                let to_send = Three::others(id).into_iter().map(|to| (to, n));
                three.shared[&id].borrow_mut().to_send.extend(to_send);
                three.wake(id);
            }
            three.world.run_for(Duration::from_millis(1));
        }
        three.world.run_for(Duration::from_secs(1));
        for id in IDS {
            for from in Three::others(id) {
                let shared = three.shared[&id].borrow();
                let numbers: Vec<u64> = shared.arrived.iter().filter(|(f, _)| *f == from).map(|(_, n)| *n).collect();
                assert_eq!(numbers, (0..20).collect::<Vec<_>>(), "seed {seed}: {from} to {id}");
            }
        }
        let killed = BrokerId(1 + (seed % 3) as i32);
        three.world.crash(three.cores[&killed], Crash::Process);
        let down = Duration::from_millis(1 + 400 * (seed % 7));
        three.world.run_for(down);
        three.start(killed, "c");
        three.wait_linked(&IDS);
        for id in Three::others(killed) {
            assert_eq!(three.shared[&id].borrow().lost, [killed], "seed {seed}: whoever waits for it is told, once");
        }
    }
}

/// Two clusters would vote together.
#[test]
fn a_broker_of_another_cluster_gets_no_link() {
    for seed in seeds(0..10) {
        let mut three = Three::new(seed);
        three.wait_linked(&IDS);
        let (stranger, others) = (BrokerId(3), [BrokerId(1), BrokerId(2)]);
        three.world.crash(three.cores[&stranger], Crash::Process);
        three.start(stranger, "another");
        three.shared[&stranger].borrow_mut().to_send.push((BrokerId(1), 7));
        three.world.run_for(Duration::from_secs(20));
        three.wait_linked(&others);
        for id in IDS {
            let shared = three.shared[&id].borrow();
            assert!(shared.arrived.is_empty(), "seed {seed}");
            let has_link = if id == stranger { !shared.up.is_empty() } else { shared.up.contains(&stranger) };
            assert!(!has_link, "seed {seed}: {id}");
        }
    }
}
