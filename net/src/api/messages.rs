//! What the handlers of metadata share: arrays of structs, topics and partitions by name, and the faults of single
//! items.

use super::Ctx;
use crate::codec::{Malformed, Reader};
use crate::errors::{Code, meta_code};
use camus_engine::limits;
use camus_engine::shard::api::Route;
use camus_engine::types::LeaderEpoch;
use camus_meta::{Refused, Topic};
use kafka_protocol::protocol::StrBytes;
use std::borrow::Cow;
use std::collections::BTreeSet;
use uuid::Uuid;

/// No authorization exists yet, so every operation is allowed: the bits of READ, WRITE, CREATE, DELETE, ALTER,
/// DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS. Source: KIP-430; Kafka without an authorizer answers the same.
pub const TOPIC_OPERATIONS: i32 = 3576;
/// CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE.
pub const CLUSTER_OPERATIONS: i32 = 8096;
/// What stands where the operations were not asked for.
pub const OPERATIONS_OMITTED: i32 = i32::MIN;

/// Partitions that one request may make (Kafka's limit), so that what it costs to answer and to decide is bounded.
pub const PARTITIONS_PER_REQUEST_MAX: usize = 10_000;
const _: () = assert!(PARTITIONS_PER_REQUEST_MAX >= limits::PARTITIONS_PER_TOPIC_MAX);

/// Takes so many partitions from what a request may still make.
pub fn take_room(room: &mut usize, partitions: usize) -> Result<(), Fault> {
    match room.checked_sub(partitions) {
        Some(left) => {
            *room = left;
            Ok(())
        }
        None => {
            let why = format!("one request makes at most {PARTITIONS_PER_REQUEST_MAX} partitions");
            Err(Fault::new(Code::PolicyViolation, why))
        }
    }
}

/// An array of structs: each is read by `element`, and its tagged fields are skipped behind it. `bytes_min`: see
/// [`Reader::array`].
pub fn structs<'a, T>(
    r: &mut Reader<'a>,
    bytes_min: usize,
    element: impl FnMut(&mut Reader<'a>) -> Result<T, Malformed>,
) -> Result<Vec<T>, Malformed> {
    let at = r.at();
    nullable_structs(r, bytes_min, element)?.ok_or(Malformed::Null { at })
}

/// As [`structs`], where null is allowed.
pub fn nullable_structs<'a, T>(
    r: &mut Reader<'a>,
    bytes_min: usize,
    mut element: impl FnMut(&mut Reader<'a>) -> Result<T, Malformed>,
) -> Result<Option<Vec<T>>, Malformed> {
    r.nullable_array(bytes_min, |r| {
        let read = element(r)?;
        r.tags()?;
        Ok(read)
    })
}

/// Topics by name with a list for each of their partitions: the shape of what many requests ask and of their answers.
pub type ByTopic<T> = Vec<(StrBytes, Vec<T>)>;

/// What is asked of partitions, by topic. Each partition takes `bytes_min` at least and is read by `partition`.
pub fn by_topic<'a, T>(
    r: &mut Reader<'a>,
    bytes_min: usize,
    mut partition: impl FnMut(&mut Reader<'a>) -> Result<T, Malformed>,
) -> Result<ByTopic<T>, Malformed> {
    structs(r, 2, |r| Ok((r.string()?, structs(r, bytes_min, &mut partition)?)))
}

/// One for each partition, in the same places.
pub fn for_each_partition<T, U>(topics: ByTopic<T>, mut one: impl FnMut(&StrBytes, T) -> U) -> ByTopic<U> {
    let topic = |(name, partitions): (StrBytes, Vec<T>)| {
        let done = partitions.into_iter().map(|partition| one(&name, partition)).collect();
        (name, done)
    };
    topics.into_iter().map(topic).collect()
}

/// Why one item of a request (a topic, a resource) is refused, as the wire says it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    pub code: Code,
    pub why: String,
}

impl Fault {
    pub fn new(code: Code, why: impl Into<String>) -> Fault {
        Fault { code, why: why.into() }
    }

    pub fn unknown_topic(name: &str) -> Fault {
        Fault::new(Code::UnknownTopicOrPartition, format!("there is no topic '{}'", shown(name)))
    }

    pub fn invalid_request(why: impl Into<String>) -> Fault {
        Fault::new(Code::InvalidRequest, why)
    }

    pub fn message(&self) -> Option<StrBytes> {
        Some(StrBytes::from_string(self.why.clone()))
    }
}

impl From<&Refused> for Fault {
    fn from(refused: &Refused) -> Fault {
        Fault::new(meta_code(refused), shown(&refused.to_string()))
    }
}

/// The code and the text of an item's answer.
pub fn told<T>(result: &Result<T, Fault>) -> (i16, Option<StrBytes>) {
    match result {
        Ok(_) => (0, None),
        Err(fault) => (fault.code.wire(), fault.message()),
    }
}

/// As much of a text from outside as a message may repeat.
pub fn shown(text: &str) -> Cow<'_, str> {
    const CHARS_MAX: usize = 500;
    match text.char_indices().nth(CHARS_MAX) {
        None => text.into(),
        Some((end, _)) => format!("{}...", &text[..end]).into(),
    }
}

/// Why a topic can not have this name. Source: Kafka's `Topic.validate`.
pub fn name_fault(name: &str) -> Option<Fault> {
    let why = match name {
        "" => "a topic name is not empty".to_string(),
        "." | ".." => format!("a topic name is not '{name}'"),
        _ if name.len() > 249 => format!("a topic name has at most 249 characters, not {}", name.len()),
        _ if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) => {
            format!("'{}' has characters other than a-z, A-Z, 0-9, '.', '_' and '-'", shown(name))
        }
        _ => return None,
    };
    Some(Fault::new(Code::InvalidTopicException, why))
}

/// The topic, or the fault of its name.
pub fn topic<'a>(ctx: &'a Ctx<'_>, name: &str) -> Result<&'a Topic, Fault> {
    match ctx.image.topic(name) {
        Some(topic) => Ok(topic),
        None => Err(name_fault(name).unwrap_or_else(|| Fault::unknown_topic(name))),
    }
}

/// Where the partition of this topic and number lives.
pub fn locate(ctx: &Ctx<'_>, topic: &str, partition: i32) -> Option<Route> {
    let topic = ctx.image.topic(topic)?;
    let placement = topic.partitions.get(usize::try_from(partition).ok()?)?;
    Some(ctx.route(placement.shard(), placement.partition()))
}

/// The settings of this broker that clients may see, by Kafka's names: topics take some of their defaults from them.
pub fn broker_settings<'a>(ctx: &Ctx<'a>) -> Vec<(&'a str, String)> {
    let settings = ctx.settings;
    let mut pairs = vec![
        ("auto.create.topics.enable", settings.auto_create_topics.to_string()),
        ("broker.id", settings.broker.to_string()),
        ("default.replication.factor", settings.default_replication_factor.to_string()),
        ("fetch.max.bytes", settings.fetch_bytes_max.to_string()),
        ("max.incremental.fetch.session.cache.slots", settings.fetch_sessions_max.to_string()),
        ("message.max.bytes", settings.message_bytes_max.to_string()),
        ("num.partitions", settings.num_partitions.to_string()),
        ("offset.metadata.max.bytes", settings.offset_metadata_bytes_max.to_string()),
    ];
    pairs.extend(settings.rack.clone().map(|rack| ("broker.rack", rack)));
    for (name, value) in &settings.given {
        if pairs.iter().all(|(known, _)| known != name) {
            pairs.push((name, value.clone()));
        }
    }
    pairs
}

/// The leader epoch that the client believes in; -1 says nothing.
pub fn believed(epoch: i32) -> Option<LeaderEpoch> {
    (epoch >= 0).then_some(LeaderEpoch(epoch))
}

/// A random (version 4) id.
pub fn random_id(ctx: &mut Ctx<'_>) -> Uuid {
    let bits = (u128::from((ctx.random)()) << 64) | u128::from((ctx.random)());
    uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid()
}

/// The names that stand more than once in a request.
pub fn named_twice<'a, T: Ord + Clone + 'a>(names: impl Iterator<Item = &'a T>) -> BTreeSet<T> {
    let mut seen = BTreeSet::new();
    names.filter(|name| !seen.insert(*name)).cloned().collect()
}

/// Plans each topic of a request. One that is named more than once is refused, in one answer for all of them: clients
/// look answers up by name.
pub fn each_named_once<W, T>(
    wanted: Vec<W>,
    name: impl Fn(&W) -> &StrBytes,
    mut plan: impl FnMut(&W) -> Result<T, Fault>,
) -> Vec<(StrBytes, Result<T, Fault>)> {
    let twice = named_twice(wanted.iter().map(&name));
    let mut refused = BTreeSet::new();
    let mut slots = Vec::new();
    for wanted in &wanted {
        let name = name(wanted);
        if !twice.contains(name) {
            slots.push((name.clone(), plan(wanted)));
        } else if refused.insert(name) {
            let fault = Fault::invalid_request("the request names this topic more than once");
            slots.push((name.clone(), Err(fault)));
        }
    }
    slots
}

/// Each replica on a broker of the cluster, none twice, and at least one.
pub fn live_once(ctx: &Ctx<'_>, brokers: &[i32]) -> Result<(), String> {
    let known: Vec<i32> = ctx.replicas().iter().map(|broker| broker.0).collect();
    if brokers.is_empty() {
        return Err("there is no replica".into());
    }
    if brokers.iter().any(|broker| !known.contains(broker)) {
        let known: Vec<String> = known.iter().map(ToString::to_string).collect();
        return Err(format!("the live brokers are {}", known.join(", ")));
    }
    if !named_twice(brokers.iter()).is_empty() {
        return Err("a broker holds at most one replica of a partition".into());
    }
    Ok(())
}

/// A core and its world for the tests of handlers: what it knows, and who answers what it asks.
#[cfg(test)]
pub(super) mod testing {
    use crate::api::init_producer_id::ProducerIds;
    use crate::api::session::Sessions;
    use crate::api::{Ctx, Outcome, Request, Settings};
    use crate::node::Member;
    use bytes::{Bytes, BytesMut};
    use camus_engine::shard::api::{Answer, Ask, ShardTable, Ticket};
    use camus_engine::types::{BrokerId, CoreId, Index, Mono, ShardId, Term, WallMs};
    use camus_meta::groups::{Coordinator, GroupAnswer, GroupAsk, GroupOut, GroupRefusal};
    use camus_meta::{Command, Decided, Image, Placement, State, Topic};
    use kafka_protocol::protocol::{Decodable, Encodable};
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use uuid::Uuid;

    pub type Handler = fn(&mut Ctx<'_>, &Request) -> Outcome;

    pub struct World {
        pub image: Arc<Image>,
        pub shards: ShardTable,
        /// This broker, which is alone.
        pub brokers: Vec<Member>,
        pub settings: Settings,
        pub sessions: Sessions,
        pub producer_ids: ProducerIds,
        pub answer: Box<dyn FnMut(Ask) -> Answer>,
        pub decide: Box<dyn FnMut(Command) -> Decided>,
        pub asked: Vec<Ask>,
        pub commands: Vec<Command>,
        /// Decides, where there is one.
        pub state: Option<State>,
        /// The group coordinator, and how late it is for it.
        pub groups: Coordinator,
        /// Another broker has it.
        pub coordinated_elsewhere: bool,
        pub now: Mono,
        /// The image once the commands are decided, where it differs.
        pub after: Option<Arc<Image>>,
        random: u64,
    }

    /// A topic with partitions 100, 101, ... of the cluster, round robin over the shards 1, 2 and 3.
    pub fn topic(name: &str, id: u128, partitions: u64, configs: &[(&str, &str)]) -> Topic {
        let place = |n| Placement { partition: 100 + n, shard: 1 + (n % 3) as u32 };
        Topic {
            name: name.into(),
            id: Uuid::from_u128(id),
            replication_factor: 3,
            partitions: (0..partitions).map(place).collect(),
            configs: configs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect::<BTreeMap<_, _>>(),
            rules: Default::default(),
        }
    }

    /// A broker that clients reach at `other-N.example`, port 9090 + N.
    pub fn member(id: i32) -> Member {
        let peer = ([192, 0, 2, id as u8], 9000).into();
        Member { id: BrokerId(id), advertised: (format!("other-{id}.example"), 9090 + id as u16), peer }
    }

    impl World {
        /// Of a cluster with the brokers 2 and 7 beside this one: 7 leads the metadata and shard 3, in term 11; shard 2
        /// has no leader.
        pub fn of_three() -> World {
            let mut world = World::new();
            world.brokers = vec![member(2), member(4), member(7)];
            world.shards.set_leading(ShardId(2), None);
            for shard in [0, 3] {
                world.shards.set_leader(ShardId(shard), Some((8, Term(11))));
            }
            world
        }

        /// Topic `t` of two partitions, `compact` of one, and `dark` of three, the last of which has no leader. Shard 1
        /// is on core 0 in term 7, shard 2 on core 1 in term 9, shard 3 on core 1 without a leader.
        pub fn new() -> World {
            let shards = ShardTable::new(vec![CoreId(0), CoreId(0), CoreId(1), CoreId(1)]);
            shards.set_leading(ShardId(1), Some(Term(7)));
            shards.set_leading(ShardId(2), Some(Term(9)));
            World {
                image: Arc::new(Image::of(
                    5,
                    "cluster-1",
                    [
                        topic("t", 0xa1, 2, &[]),
                        topic("compact", 0xa2, 1, &[("cleanup.policy", "compact")]),
                        topic("dark", 0xa3, 3, &[]),
                    ],
                )),
                shards,
                brokers: vec![member(4)],
                settings: Settings {
                    broker: BrokerId(4),
                    cluster_id: "cluster-1".into(),
                    rack: Some("rack-2".into()),
                    num_partitions: 6,
                    default_replication_factor: 2,
                    auto_create_topics: true,
                    message_bytes_max: 1_048_588,
                    fetch_sessions_max: 10,
                    fetch_bytes_max: 1 << 20,
                    offset_metadata_bytes_max: 4096,
                    groups: Default::default(),
                    given: Vec::new(),
                },
                sessions: Sessions::default(),
                producer_ids: ProducerIds::default(),
                answer: Box::new(|ask| panic!("unexpected {ask:?}")),
                decide: Box::new(|command| panic!("unexpected {command:?}")),
                asked: Vec::new(),
                commands: Vec::new(),
                state: None,
                after: None,
                groups: Coordinator::new(Default::default(), Mono(0)),
                coordinated_elsewhere: false,
                now: Mono(1),
                random: 0,
            }
        }

        /// The same topics in a real state machine.
        pub fn with_state() -> World {
            let mut world = World::new();
            let mut state = State::new(vec![ShardId(1), ShardId(2), ShardId(3)]);
            for topic in world.image.topics() {
                let command = Command::CreateTopic {
                    name: topic.name.clone(),
                    id: topic.id,
                    partitions: topic.partitions.len() as u32,
                    replication_factor: topic.replication_factor,
                    configs: topic.configs.clone(),
                };
                state.apply(Index(state.applied().0 + 1), &command).expect("the topics of the tests can be made");
            }
            world.image = state.image();
            world.state = Some(state);
            world
        }

        fn ctx<T>(&mut self, then: impl FnOnce(&mut Ctx<'_>) -> T) -> T {
            let state = &mut self.random;
            let mut random = || {
                *state += 1;
                *state
            };
            then(&mut Ctx {
                now: Mono(0),
                wall: WallMs(0),
                image: &self.image.clone(),
                shards: &self.shards,
                brokers: &self.brokers,
                settings: &self.settings,
                sessions: &mut self.sessions,
                producer_ids: &mut self.producer_ids,
                random: &mut random,
                fetch_room_bytes: usize::MAX,
                kept_bytes: 0,
            })
        }

        /// Runs a request of these bytes to its end. `None`: the connection is closed.
        pub fn run(&mut self, handle: Handler, version: i16, body: Bytes) -> Option<Bytes> {
            let request = Request {
                key: 0,
                version,
                client_id: Some("tester".into()),
                body,
                received: Mono(0),
                advertised: ("broker.example".into(), 9093),
                peer: [192, 0, 2, 7].into(),
            };
            let mut outcome = self.ctx(|ctx| handle(ctx, &request));
            loop {
                outcome = match outcome {
                    Outcome::Reply(reply) => return Some(reply.parts.concat().into()),
                    Outcome::Close(_) => return None,
                    Outcome::Ask(asks, then) => {
                        self.asked.extend(asks.iter().cloned());
                        let answers = asks.into_iter().map(&mut self.answer).collect();
                        self.ctx(|ctx| then(ctx, answers))
                    }
                    Outcome::Meta(commands, then) => {
                        self.commands.extend(commands.iter().cloned());
                        let decided = match &mut self.state {
                            None => commands.into_iter().map(&mut self.decide).collect(),
                            Some(state) => {
                                let decided =
                                    commands.iter().map(|c| state.apply(Index(state.applied().0 + 1), c)).collect();
                                self.image = state.image();
                                decided
                            }
                        };
                        if let Some(image) = self.after.take() {
                            self.image = image;
                        }
                        self.ctx(|ctx| then(ctx, decided))
                    }
                    Outcome::Group(ask, then) => {
                        let answer = self.ask_group(ask);
                        self.ctx(|ctx| then(ctx, answer))
                    }
                    Outcome::Silent | Outcome::Sleep(..) => panic!("a handler of metadata answers at once"),
                }
            }
        }

        /// The coordinator's answer; time passes until it comes.
        fn ask_group(&mut self, ask: GroupAsk) -> GroupAnswer {
            if self.coordinated_elsewhere {
                return ask.refused(GroupRefusal::NotCoordinator);
            }
            let mut state = self.state.take().unwrap_or_else(|| State::new(vec![ShardId(1), ShardId(2), ShardId(3)]));
            let ticket = Ticket { core: CoreId(0), request: 1, part: 0 };
            let mut out = GroupOut::default();
            self.groups.ask(self.now, ticket, ask, &state, &mut out);
            loop {
                for (token, command) in std::mem::take(&mut out.commands) {
                    let decided = state.apply(Index(state.applied().0 + 1), &command);
                    self.commands.push(command);
                    self.groups.decided(token, decided, &mut out);
                }
                if let Some(at) = out.answers.iter().position(|(to, _)| *to == ticket) {
                    self.state = Some(state);
                    return out.answers.remove(at).1;
                }
                self.now = self.groups.next_deadline();
                self.groups.tick(self.now, WallMs(0), &state, &mut out);
            }
        }

        /// Sends a message of the codec crate and reads the answer with it, to the last byte.
        pub fn call<Q: Encodable, A: Decodable>(&mut self, handle: Handler, version: i16, question: &Q) -> A {
            self.call_laid_out(handle, version, version, question)
        }

        /// As [`Self::call`], where the crate does not know the version but one with the same layout.
        pub fn call_laid_out<Q: Encodable, A: Decodable>(
            &mut self,
            handle: Handler,
            version: i16,
            layout: i16,
            question: &Q,
        ) -> A {
            let mut answer = self.run(handle, version, encoded(question, layout)).expect("the request is answered");
            let read = A::decode(&mut answer, layout).expect("the answer has the layout of its version");
            assert!(answer.is_empty(), "{} bytes are left over", answer.len());
            read
        }
    }

    pub fn encoded<Q: Encodable>(question: &Q, version: i16) -> Bytes {
        let mut body = BytesMut::new();
        question.encode(&mut body, version).expect("the request can be written in this version");
        body.freeze()
    }

    /// No bytes end in a panic, neither random ones nor a damaged request. Whoever can send a request could otherwise
    /// end the broker.
    pub fn survives_damage(handle: Handler, versions: std::ops::RangeInclusive<i16>, whole: impl Fn(i16) -> Bytes) {
        use proptest::prelude::*;
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(600));
        let damage = (proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4), any::<u16>());
        let input = (versions, damage, proptest::collection::vec(any::<u8>(), 0..200), any::<bool>());
        let run =
            |(version, (flips, cut), noise, random): (i16, (Vec<(prop::sample::Index, u8)>, u16), Vec<u8>, bool)| {
                let mut body = if random { noise } else { whole(version).to_vec() };
                for (at, byte) in flips {
                    if !body.is_empty() {
                        let at = at.index(body.len());
                        body[at] = byte;
                    }
                }
                if cut % 4 == 0 && !body.is_empty() {
                    body.truncate(usize::from(cut / 4) % body.len());
                }
                let mut world = World::new();
                world.answer = Box::new(refuse);
                world.decide = Box::new(|_| Err(camus_meta::Refused::Unavailable { why: "no leader".into() }));
                world.run(handle, version, body.into());
                Ok(())
            };
        runner.run(&input, run).expect("no bytes end in a panic");
    }

    /// The answer that fits, without success.
    pub fn refuse(ask: Ask) -> Answer {
        use camus_engine::shard::api::Refusal::NotLeader;
        match ask {
            Ask::Find { .. } => Answer::Found(Err(NotLeader)),
            Ask::EpochEnd { .. } => Answer::EpochEnd(Err(NotLeader)),
            Ask::Trim { .. } => Answer::Trimmed(Err(NotLeader)),
            Ask::Producers { .. } => Answer::Producers(Err(NotLeader)),
            Ask::Holdings { .. } => Answer::Holdings(Ok(Vec::new())),
            Ask::Quorum { .. } => Answer::Quorum(Err(NotLeader)),
            Ask::Produce { .. } | Ask::Read { .. } | Ask::Unwatch { .. } => panic!("unexpected {ask:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use camus_meta::{Command, Image, State};

    /// A name that Kafka refuses would be a topic that no tool can delete, or a path where none may be.
    #[test]
    fn names_are_judged_as_kafka_judges_them() {
        for name in ["a", "A.b_c-9", "...", &"x".repeat(249)] {
            assert_eq!(name_fault(name), None, "{name}");
        }
        for name in ["", ".", "..", "a b", "a/b", "a:b", "\u{fc}", "a\0b", &"x".repeat(250), &"x".repeat(32767)] {
            let fault = name_fault(name).expect("refused");
            assert_eq!(fault.code, Code::InvalidTopicException);
            assert!(fault.why.len() < 3000, "the message repeats too much of the name");
        }
    }

    proptest::proptest! {
        /// A name that is refused here and allowed there could be a topic that no request can name.
        #[test]
        fn names_are_judged_alike_here_and_in_the_metadata(name in "[a-zA-Z0-9._/ -]{0,6}|.{0,5}|[a-b.]{245,252}") {
            let id = Uuid::from_u128(1);
            let configs = Default::default();
            let named = name.clone();
            let command = Command::CreateTopic { name: named, id, partitions: 1, replication_factor: 1, configs };
            let there = matches!(State::check(&Image::default(), &command), Err(Refused::InvalidName { .. }));
            proptest::prop_assert_eq!(name_fault(&name).is_some(), there);
        }
    }

    /// A message longer than 32767 bytes can not be written in the older versions, and the connection would be closed.
    #[test]
    fn a_message_repeats_only_so_much_of_a_text() {
        assert_eq!(shown("abc"), "abc");
        let long = "\u{1f600}".repeat(8000);
        assert!(shown(&long).len() <= 2003);
    }
}
