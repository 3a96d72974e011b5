//! Any advertised API and version with any body, through its handler to the end: shards and the meta shard answer too.
//!
//! An input: the API's key (or any other byte: the table is gone round), the version (the same), the mood of those who
//! answer, the body.

use crate::rng::Rng;
use crate::{KIB, MIB, Target, make};
use bytes::Bytes;
use camus_engine::shard::api::{
    ActiveProducer, Answer, Ask, BatchRules, EpochEnd, Found, Holding, Produced, Producing, Quorum, ReadDone, Refusal,
    ShardTable, Ticket,
};
use camus_engine::types::{
    BrokerId, CoreId, Index, LeaderEpoch, Mono, Offset, PartitionId, ProducerEpoch, ProducerId, Sequence, ShardId,
    Term, WallMs,
};
use camus_meta::groups::{Coordinator, GroupAnswer, GroupAsk, GroupOut, GroupRefusal};
use camus_meta::{Command, Image, Placement, State, Topic};
use camus_net::api::init_producer_id::ProducerIds;
use camus_net::api::session::Sessions;
use camus_net::api::table::{self, APIS, Api};
use camus_net::api::{Ctx, Outcome, Request, Settings, Woke};
use camus_net::node::Member;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use uuid::Uuid;

pub const TARGET: Target = Target {
    name: "requests",
    fuzz,
    heap_bytes_max,
    make: input,
    whole: || 16 * versions(),
    corpus: include_str!("../corpus/requests.txt"),
    share: 4,
};

/// The rounds a request may take.
const ROUNDS_MAX: usize = 64;
/// Metadata, CreateTopics, DescribeConfigs, AlterConfigs, CreatePartitions, IncrementalAlterConfigs, and the newer ones
/// that describe: a few bytes make partitions or are answered with settings. What they may make and say is bounded by
/// limits of its own, not by their size.
const TELLING: &[i16] = &[3, 19, 32, 33, 35, 37, 44, 61, 75];

pub fn fuzz(data: &[u8]) {
    if let Some((api, version, mood, body)) = split(data) {
        let _ = run(api, version, mood, body);
    }
}

/// An element of an array may take a hundred times what it takes on the wire (`REQUEST_ELEMENTS_MAX`), and is there as
/// it was read, as a question, and as an answer.
fn heap_bytes_max(data: &[u8]) -> usize {
    match split(data) {
        Some((api, ..)) if TELLING.contains(&api.key) => 8 * KIB * data.len() + 32 * MIB,
        _ => 512 * data.len() + MIB,
    }
}

fn split(data: &[u8]) -> Option<(&'static Api, i16, u8, &[u8])> {
    let (&[key, version, mood], body) = data.split_first_chunk::<3>()?;
    let api = table::api(i16::from(key)).unwrap_or_else(|| &APIS[usize::from(key) % APIS.len()]);
    let mut version = i16::from(version);
    if !api.serves(version) {
        version = api.min + version % (api.max - api.min + 1);
    }
    Some((api, version, mood, body))
}

/// Versions of all APIs together.
pub fn versions() -> u64 {
    APIS.iter().map(versions_of).sum()
}

fn versions_of(api: &Api) -> u64 {
    (api.max - api.min + 1) as u64
}

/// The API and version of this number; they are gone round.
pub fn nth_version(n: u64) -> (&'static Api, i16) {
    let mut left = n % versions();
    for api in APIS {
        let here = versions_of(api);
        if left < here {
            return (api, api.min + left as i16);
        }
        left -= here;
    }
    unreachable!("the sum of all is larger")
}

/// Every version of every API in turn: two rounds as clients send them, then whatever.
fn input(rng: &mut Rng, n: u64) -> Vec<u8> {
    let (api, version) = nth_version(n);
    let round = n / versions();
    let mood = if round == 0 { 0 } else { rng.byte() };
    let wrong_one_in = if round < 2 { 0 } else { rng.pick(&[0, 40, 12, 4]) };
    let key = u8::try_from(api.key).expect("an input has a byte for the key");
    let mut out = vec![key, version as u8, mood];
    out.extend(make::request(rng, api, version, wrong_one_in));
    if round >= 2 && rng.one_in(4) {
        out.truncate(3 + rng.below(out.len() - 2));
    }
    out
}

fn image() -> &'static Arc<Image> {
    static IMAGE: OnceLock<Arc<Image>> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let topic = |name: &str, id: u128| Topic {
            name: name.to_owned(),
            id: Uuid::from_u128(id),
            replication_factor: 1,
            partitions: (0..3)
                .map(|p| Placement { partition: id as u64 * 1000 + p, shard: 1 + (p % 2) as u32 })
                .collect(),
            configs: BTreeMap::new(),
            rules: BatchRules::default(),
        };
        Arc::new(Image::of(1, "fuzz", [topic("t", 7), topic("u", 8)]))
    })
}

fn answer(ask: &Ask, mood: u8) -> Answer {
    let refused = match mood % 4 {
        0 | 1 => None,
        2 => Some(Refusal::NotLeader),
        _ => Some(Refusal::OffsetOutOfRange { high_watermark: Offset(5), log_start: Offset(0) }),
    };
    fn give<T>(refused: Option<Refusal>, value: T) -> Result<T, Refusal> {
        refused.map_or(Ok(value), Err)
    }
    match ask {
        Ask::Produce { .. } => Answer::Produced(give(
            refused,
            Produced { base_offset: Offset(5), log_start: Offset(0), append_time: Some(WallMs(1)) },
        )),
        Ask::Read { .. } => Answer::Read(give(
            refused,
            ReadDone {
                batches: if mood & 8 == 0 { Vec::new() } else { vec![Bytes::from_static(&[0; 80])] },
                high_watermark: Offset(5),
                last_stable: Offset(5),
                log_start: Offset(0),
            },
        )),
        Ask::Find { .. } => {
            Answer::Found(give(refused, Found { offset: Offset(3), timestamp: WallMs(1), epoch: LeaderEpoch(1) }))
        }
        Ask::EpochEnd { .. } => Answer::EpochEnd(give(refused, EpochEnd { epoch: LeaderEpoch(1), end: Offset(5) })),
        Ask::Trim { .. } => Answer::Trimmed(give(refused, Offset(1))),
        Ask::Producers { producers_max, .. } => {
            let producer = ActiveProducer {
                id: ProducerId(1),
                epoch: ProducerEpoch(0),
                last_sequence: Sequence(5),
                last_timestamp: WallMs(1),
            };
            let total = usize::from(mood >> 4);
            let is_told = total <= *producers_max as usize;
            let active = if is_told { vec![producer; total] } else { Vec::new() };
            Answer::Producers(give(refused, Producing { total, active }))
        }
        Ask::Holdings { core } => {
            let partition = PartitionId(7000 + u64::from(core.0));
            Answer::Holdings(give(refused, vec![Holding { partition, bytes: 4096 }]))
        }
        Ask::Quorum { .. } => {
            let voters = vec![(2, Index(5)), (3, Index(4)), (4, Index(0))];
            Answer::Quorum(give(refused, Quorum { commit: Index(4), last: Index(5), voters }))
        }
        Ask::Unwatch { .. } => Answer::Moved,
    }
}

/// The coordinator's answer; time passes until it comes.
fn group(coordinator: &mut Coordinator, state: &mut State, ask: GroupAsk, mood: u8) -> GroupAnswer {
    if mood & 128 != 0 {
        return ask.refused(GroupRefusal::NotCoordinator);
    }
    let ticket = Ticket { core: CoreId(0), request: 1, part: 0 };
    let (mut out, mut now) = (GroupOut::default(), Mono(1_000_000_000));
    coordinator.ask(now, ticket, ask, state, &mut out);
    loop {
        for (token, command) in std::mem::take(&mut out.commands) {
            let next = Index(state.applied().0 + 1);
            let decided = state.apply(next, &command);
            coordinator.decided(token, decided, &mut out);
        }
        if let Some((_, answer)) = out.answers.pop() {
            return answer;
        }
        now = coordinator.next_deadline();
        coordinator.tick(now, WallMs(1_800_000_000_000), state, &mut out);
    }
}

/// Runs a request to its end. Says why, if its connection is closed.
fn run(api: &Api, version: i16, mood: u8, body: &[u8]) -> Option<&'static str> {
    let shards = ShardTable::new(vec![CoreId(0), CoreId(0), CoreId(1)]);
    for shard in 0..3 {
        shards.set_leading(ShardId(shard), Some(Term(1)));
    }
    let settings = Settings {
        broker: BrokerId(1),
        cluster_id: "fuzz".to_owned(),
        rack: None,
        num_partitions: 1,
        default_replication_factor: 1,
        auto_create_topics: mood & 16 != 0,
        message_bytes_max: 1 << 20,
        fetch_sessions_max: 10,
        fetch_bytes_max: 55 << 20,
        offset_metadata_bytes_max: 4096,
        groups: Default::default(),
        given: Vec::new(),
    };
    let member = |id: i32| Member {
        id: BrokerId(id),
        advertised: ("localhost".to_owned(), 9090 + id as u16),
        peer: ([127, 0, 0, 1], 9000).into(),
    };
    let brokers: Vec<Member> = if mood & 64 == 0 { vec![member(1)] } else { (1..4).map(member).collect() };
    let (mut sessions, mut producer_ids) = (Sessions::default(), ProducerIds::default());
    let mut state = State::new(vec![ShardId(1), ShardId(2)]);
    let mut coordinator = Coordinator::new(Default::default(), Mono(0));
    let mut seed = u64::from(mood);
    let mut random = || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
        seed
    };
    let mut ctx = Ctx {
        now: Mono(1_000_000_000),
        wall: WallMs(1_800_000_000_000),
        image: image(),
        shards: &shards,
        brokers: &brokers,
        settings: &settings,
        sessions: &mut sessions,
        producer_ids: &mut producer_ids,
        random: &mut random,
        fetch_room_bytes: usize::MAX,
        kept_bytes: 0,
    };
    let request = Request {
        key: api.key,
        version,
        client_id: Some("fuzz".to_owned()),
        body: Bytes::copy_from_slice(body),
        received: Mono(1_000_000_000),
        advertised: ("127.0.0.1".to_owned(), 9092),
        peer: [127, 0, 0, 1].into(),
    };
    let mut outcome = table::handle(&mut ctx, &request);
    for round in 0..ROUNDS_MAX {
        outcome = match outcome {
            Outcome::Reply(_) | Outcome::Silent => return None,
            Outcome::Close(why) => return Some(why),
            Outcome::Ask(asks, then) => {
                assert!(asks.len() <= body.len() + 1, "more questions than the request has bytes");
                let answers = asks.iter().map(|ask| answer(ask, mood.wrapping_add(round as u8))).collect();
                then(&mut ctx, answers)
            }
            Outcome::Meta(commands, then) => {
                let decided = commands
                    .iter()
                    .map(|command: &Command| {
                        let next = Index(state.applied().0 + 1);
                        state.apply(next, command)
                    })
                    .collect();
                then(&mut ctx, decided)
            }
            Outcome::Group(ask, then) => {
                let answer = group(&mut coordinator, &mut state, ask, mood);
                then(&mut ctx, answer)
            }
            Outcome::Sleep(_, then) => {
                let why = if mood & 32 == 0 || round > 8 { Woke::Deadline } else { Woke::Moved };
                then(&mut ctx, why)
            }
        };
    }
    panic!("{} v{version} does not come to an end", api.name);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_version_of_every_api_has_its_turn() {
        let seen: BTreeSet<(i16, i16)> = (0..versions()).map(nth_version).map(|(api, v)| (api.key, v)).collect();
        let of = |api: &'static Api| (api.min..=api.max).map(move |version| (api.key, version));
        let all: BTreeSet<(i16, i16)> = APIS.iter().flat_map(of).collect();
        assert_eq!(seen, all);
    }

    /// If a request that is right is not understood, the layouts in `schema.rs` are not those of the handlers, or a
    /// handler refuses what clients send.
    #[test]
    fn requests_that_are_right_are_understood() {
        for n in 0..20 * versions() {
            let (api, version) = nth_version(n);
            let body = make::request(&mut Rng::of(1, "test", n), api, version, 0);
            let closed = run(api, version, 0, &body);
            let understood = closed.is_none_or(|why| !why.starts_with("malformed") && !why.contains("over the limit"));
            assert!(understood, "{} v{version}: {closed:?} for {body:02x?}", api.name);
        }
    }
}
