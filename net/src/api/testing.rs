//! A world for the tests of handlers: topics, and shards whose answers the test gives.

use super::init_producer_id::ProducerIds;
use super::session::Sessions;
use super::{Ctx, Outcome, Request, Settings, Woke, table};
use bytes::Bytes;
use camus_engine::shard::api::{Answer, Ask, BatchRules, Produced, ReadDone, Refusal, ShardTable};
use camus_engine::types::{BrokerId, CoreId, Mono, Offset, PartitionId, WallMs};
use camus_meta::{Image, Placement, Topic};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

pub struct World {
    pub now: Mono,
    pub image: Arc<Image>,
    pub shards: ShardTable,
    pub settings: Settings,
    pub sessions: Sessions,
    pub producer_ids: ProducerIds,
    seed: u64,
    pub fetch_room_bytes: usize,
}

pub fn topic(name: &str, id: u128, partitions: u64) -> Topic {
    let base = id as u64 * 1000;
    Topic {
        name: name.to_owned(),
        id: Uuid::from_u128(id),
        replication_factor: 1,
        partitions: (0..partitions).map(|p| Placement { partition: base + p, shard: 1 + (p % 2) as u32 }).collect(),
        configs: BTreeMap::new(),
        rules: BatchRules::default(),
    }
}

impl Default for World {
    /// "t" (id 7, three partitions from 7000 on) and "u" (id 8, two partitions).
    fn default() -> World {
        World::with([topic("t", 7, 3), topic("u", 8, 2)])
    }
}

impl World {
    pub fn with(topics: impl IntoIterator<Item = Topic>) -> World {
        World {
            now: Mono(1_000_000_000),
            image: Arc::new(Image::of(1, "test", topics)),
            shards: ShardTable::new(vec![CoreId(0), CoreId(0), CoreId(1)]),
            settings: Settings {
                broker: BrokerId(1),
                cluster_id: "test".to_owned(),
                rack: None,
                num_partitions: 1,
                default_replication_factor: 1,
                auto_create_topics: false,
                message_bytes_max: 1 << 20,
                fetch_sessions_max: 1000,
                fetch_bytes_max: 55 << 20,
                offset_metadata_bytes_max: 4096,
                groups: Default::default(),
                given: Vec::new(),
            },
            sessions: Sessions::default(),
            producer_ids: ProducerIds::default(),
            seed: 1,
            fetch_room_bytes: usize::MAX,
        }
    }

    pub fn with_ctx<T>(&mut self, f: impl FnOnce(&mut Ctx<'_>) -> T) -> T {
        let seed = &mut self.seed;
        let mut random = move || {
            *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *seed >> 7
        };
        f(&mut Ctx {
            now: self.now,
            wall: WallMs(1_700_000_000_000),
            image: &self.image,
            shards: &self.shards,
            brokers: &[],
            settings: &self.settings,
            sessions: &mut self.sessions,
            producer_ids: &mut self.producer_ids,
            random: &mut random,
            fetch_room_bytes: self.fetch_room_bytes,
            kept_bytes: 0,
        })
    }

    /// Versions above those in the table go to the API as well: what is not offered yet is tested like the rest.
    pub fn start(&mut self, key: i16, version: i16, body: Bytes) -> Outcome {
        let request = Request {
            key,
            version,
            client_id: None,
            body,
            received: self.now,
            advertised: ("localhost".to_owned(), 9092),
            peer: [127, 0, 0, 1].into(),
        };
        self.with_ctx(|ctx| match table::api(key) {
            Some(api) if version > api.max => (api.handle)(ctx, &request),
            Some(_) | None => table::handle(ctx, &request),
        })
    }

    pub fn run<T>(&mut self, key: i16, version: i16, body: Bytes, end: fn(Outcome) -> T) -> T {
        end(self.start(key, version, body))
    }

    /// Answers questions until the request does not ask any more.
    pub fn answer(&mut self, mut outcome: Outcome, mut shard: impl FnMut(&Ask) -> Answer) -> Outcome {
        while let Outcome::Ask(asks, then) = outcome {
            let answers = asks.iter().map(&mut shard).collect();
            outcome = self.with_ctx(|ctx| then(ctx, answers));
        }
        outcome
    }

    /// Wakes a request that sleeps; the deadline passes if that is why.
    pub fn wake(&mut self, outcome: Outcome, why: Woke) -> Outcome {
        let Outcome::Sleep(until, then) = outcome else { panic!("the request does not sleep") };
        if why == Woke::Deadline {
            self.now = until;
        }
        self.with_ctx(|ctx| then(ctx, why))
    }
}

/// The body of a reply, in one piece.
pub fn reply(outcome: Outcome) -> Bytes {
    match outcome {
        Outcome::Reply(reply) => reply.parts.concat().into(),
        Outcome::Silent => panic!("silent"),
        Outcome::Close(why) => panic!("closed: {why}"),
        Outcome::Ask(asks, _) => panic!("asks {asks:?}"),
        Outcome::Meta(commands, _) => panic!("commands {commands:?}"),
        Outcome::Group(ask, _) => panic!("asks its group {ask:?}"),
        Outcome::Sleep(until, _) => panic!("sleeps until {until}"),
    }
}

/// A record batch of magic 2 with a header and a payload of zeros: 61 + `payload` bytes.
pub fn batch(base: i64, count: i32, payload: usize) -> Bytes {
    let mut b = vec![0; 61 + payload];
    b[..8].copy_from_slice(&base.to_be_bytes());
    b[8..12].copy_from_slice(&(49 + payload as i32).to_be_bytes());
    b[16] = 2;
    b[23..27].copy_from_slice(&(count - 1).to_be_bytes());
    b[57..61].copy_from_slice(&count.to_be_bytes());
    b.into()
}

/// A shard that appends everything at offset 0 and has nothing to read.
pub fn shard(ask: &Ask) -> Answer {
    match ask {
        Ask::Produce { .. } => {
            Answer::Produced(Ok(Produced { base_offset: Offset(0), log_start: Offset(0), append_time: None }))
        }
        other => panic!("not in this test: {other:?}"),
    }
}

/// Logs that can be read, one for each partition; those without batches are there as well.
#[derive(Default)]
pub struct Logs {
    logs: BTreeMap<PartitionId, Log>,
    /// The leader epoch of all of them.
    pub epoch: i32,
    /// Reads answered.
    pub asked: usize,
    /// Partitions read with a watch.
    pub watches: Vec<PartitionId>,
}

#[derive(Default)]
struct Log {
    batches: Vec<Bytes>,
    start: i64,
    end: i64,
}

impl Logs {
    /// A batch of `count` records that is 61 + `payload` bytes long.
    pub fn append(&mut self, to: PartitionId, count: i32, payload: usize) {
        let log = self.logs.entry(to).or_default();
        log.batches.push(batch(log.end, count, payload));
        log.end += i64::from(count);
    }

    pub fn trim(&mut self, partition: PartitionId, start: i64) {
        self.logs.entry(partition).or_default().start = start;
    }

    pub fn batches(&self, partition: PartitionId) -> Vec<Bytes> {
        self.logs.get(&partition).map_or(vec![], |log| log.batches.clone())
    }

    pub fn answer(&mut self, ask: &Ask) -> Answer {
        let Ask::Read { from, offset, bytes_max, at_least_one, epoch, watch } = ask else { panic!("{ask:?}") };
        self.asked += 1;
        if *watch {
            self.watches.push(from.partition);
        }
        let log = self.logs.entry(from.partition).or_default();
        Answer::Read(log.read(offset.0, *bytes_max as usize, *at_least_one, epoch.map(|e| e.0.cmp(&self.epoch))))
    }
}

impl Log {
    fn read(&self, offset: i64, max: usize, at_least_one: bool, epoch: Option<Ordering>) -> Result<ReadDone, Refusal> {
        match epoch {
            Some(Ordering::Less) => return Err(Refusal::FencedEpoch),
            Some(Ordering::Greater) => return Err(Refusal::UnknownEpoch),
            Some(Ordering::Equal) | None => {}
        }
        let (high_watermark, log_start) = (Offset(self.end), Offset(self.start));
        if !(self.start..=self.end).contains(&offset) {
            return Err(Refusal::OffsetOutOfRange { high_watermark, log_start });
        }
        let mut batches = vec![];
        let (mut bytes, mut next) = (0, 0);
        for batch in &self.batches {
            next += i64::from(i32::from_be_bytes(*batch[23..].first_chunk().unwrap())) + 1;
            if next <= offset {
                continue;
            }
            if bytes + batch.len() > max && !(at_least_one && batches.is_empty()) {
                break;
            }
            bytes += batch.len();
            batches.push(batch.clone());
        }
        Ok(ReadDone { batches, high_watermark, last_stable: high_watermark, log_start })
    }
}
