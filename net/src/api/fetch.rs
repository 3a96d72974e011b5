//! Fetch (key 1, versions 4 to 18): read record batches, and wait for them.
//!
//! A fetch goes through *passes*. A pass asks the shards of all partitions at once, with the request's byte limit dealt
//! out over them; partitions that got no share are only asked where they stand, and those that turn out to have records
//! are read in further rounds while bytes are left. If the pass has enough (`min_bytes`, an error, or more than the
//! limits let through), it is the answer. Else the partitions are asked once more where they stand, with a watch; if
//! nothing has moved in between, the request sleeps until something does or its time is up, and then makes another
//! pass.
//!
//! The first partition with records gives at least one batch, whatever the limits (KIP-74). Batches are parts of the
//! answer as they are, not copied. Sessions are in `session.rs`.

use super::session::{PartKey, Told, TopicKey, Turn, Wanted};
use super::{Ctx, NO_OFFSET, Outcome, Request, Woke};
use crate::codec::{Malformed, Reader, Writer};
use crate::errors::{Code, code};
use bytes::Bytes;
#[cfg(feature = "planted")]
use camus_engine::planted::{Bug, is};
use camus_engine::shard::api::{Answer, Ask, ReadDone, Refusal, Route};
use camus_engine::types::{LeaderEpoch, Mono, Offset};
use std::collections::BTreeMap;
use std::time::Duration;

const FLEXIBLE_FROM: i16 = 12;
/// Topics by id, not by name.
const IDS_FROM: i16 = 13;
const SESSIONS_FROM: i16 = 7;
/// The replica's id is a tagged field.
const REPLICA_STATE_FROM: i16 = 15;
const REPLICA_STATE_TAG: u32 = 1;

/// Epochs of a session's request (KIP-227).
const SESSION_OPENS: i32 = 0;
const SESSION_CLOSES: i32 = -1;

#[derive(Debug)]
struct FetchRequest {
    /// -1 for a consumer.
    replica: i32,
    wait: Duration,
    min_bytes: u32,
    max_bytes: u32,
    committed: bool,
    session: i32,
    session_epoch: i32,
    /// Each partition once, at the place where its topic is named first; the last mention counts.
    partitions: Vec<(PartKey, Wanted)>,
    forgotten: Vec<PartKey>,
}

/// Counts below zero are taken as zero, as in Kafka.
fn count(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

fn decode(request: &Request) -> Result<FetchRequest, Malformed> {
    let version = request.version;
    let mut r = Reader::new(&request.body, version >= FLEXIBLE_FROM);
    let topic = |r: &mut Reader<'_>| match version >= IDS_FROM {
        true => Ok(TopicKey::Id(r.uuid()?)),
        false => Ok(TopicKey::Name((*r.string()?).into())),
    };
    let mut replica = if version < REPLICA_STATE_FROM { r.i32()? } else { -1 };
    let wait = Duration::from_millis(count(r.i32()?).into());
    let (min_bytes, max_bytes) = (count(r.i32()?), count(r.i32()?));
    let committed = match r.i8()? {
        0 => false,
        1 => true,
        other => return Err(Malformed::Value { value: other.into() }),
    };
    let (session, session_epoch) = if version >= SESSIONS_FROM { (r.i32()?, r.i32()?) } else { (0, SESSION_CLOSES) };
    let topics = r.array(3, |r| {
        let topic = topic(r)?;
        let partitions = r.array(16, |r| {
            let index = r.i32()?;
            let epoch = if version >= 9 { r.i32()? } else { -1 };
            let offset = Offset(r.i64()?);
            if version >= 12 {
                r.i32()?; // last_fetched_epoch: of followers
            }
            if version >= 5 {
                r.i64()?; // log_start_offset: of followers
            }
            let bytes_max = count(r.i32()?);
            r.tags()?; // replica_directory_id (17) and high_watermark (18): of followers
            Ok((index, Wanted { offset, bytes_max, epoch: (epoch >= 0).then_some(LeaderEpoch(epoch)) }))
        })?;
        r.tags()?;
        Ok((topic, partitions))
    })?;
    let mut forgotten = Vec::new();
    if version >= SESSIONS_FROM {
        r.array(3, |r| {
            let topic = topic(r)?;
            let partitions = r.array(4, Reader::i32)?;
            r.tags()?;
            forgotten.extend(partitions.into_iter().map(|index| (topic.clone(), index)));
            Ok(())
        })?;
    }
    if version >= 11 {
        r.string()?; // rack_id: there is no follower to send the client to
    }
    r.tagged(|tag, r| {
        if version >= REPLICA_STATE_FROM && tag == REPLICA_STATE_TAG {
            replica = r.i32()?;
            r.i64()?; // replica_epoch
            r.tags()?;
        }
        Ok(())
    })?;
    let partitions = each_once(topics);
    Ok(FetchRequest { replica, wait, min_bytes, max_bytes, committed, session, session_epoch, partitions, forgotten })
}

fn each_once(topics: Vec<(TopicKey, Vec<(i32, Wanted)>)>) -> Vec<(PartKey, Wanted)> {
    let mut seen: BTreeMap<PartKey, usize> = BTreeMap::new();
    let mut first: BTreeMap<TopicKey, usize> = BTreeMap::new();
    let mut partitions: Vec<(PartKey, Wanted)> = Vec::new();
    for (at, (topic, wanted)) in topics.into_iter().enumerate() {
        first.entry(topic.clone()).or_insert(at);
        for (index, wanted) in wanted {
            let key = (topic.clone(), index);
            match seen.get(&key) {
                Some(at) => partitions[*at].1 = wanted,
                None => {
                    seen.insert(key.clone(), partitions.len());
                    partitions.push((key, wanted));
                }
            }
        }
    }
    partitions.sort_by_key(|((topic, _), _)| first[topic]);
    partitions
}

/// What the answer has to do with a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SessionUse {
    None,
    /// A full answer; then a session is opened over its partitions.
    Opens,
    /// Only what is new to the client.
    Goes(i32),
}

/// One partition of a fetch under way.
#[derive(Debug)]
struct Part {
    key: PartKey,
    wanted: Wanted,
    told: Told,
    found: Found,
}

/// Where a partition stands in a pass.
#[derive(Debug)]
enum Found {
    /// To be asked.
    Open(Route),
    Failed {
        code: Code,
        high_watermark: Offset,
        log_start: Offset,
    },
    Read {
        route: Route,
        done: ReadDone,
        bytes: usize,
        /// It was asked for batches, not only where it stands.
        asked: bool,
    },
}

impl Found {
    fn failed(code: Code) -> Found {
        Found::Failed { code, high_watermark: NO_OFFSET, log_start: NO_OFFSET }
    }

    fn bytes(&self) -> usize {
        match self {
            Found::Read { bytes, .. } => *bytes,
            Found::Open(_) | Found::Failed { .. } => 0,
        }
    }

    fn was_asked(&self) -> bool {
        matches!(self, Found::Read { asked: true, .. })
    }

    /// What the client is told with this.
    fn told(&self) -> Told {
        match self {
            Found::Read { done, .. } => Told { high_watermark: done.high_watermark, log_start: done.log_start },
            // Nothing: what comes after the error is news, whatever it is.
            Found::Open(_) | Found::Failed { .. } => Told::NOTHING,
        }
    }
}

impl From<Refusal> for Found {
    fn from(refusal: Refusal) -> Found {
        match refusal {
            Refusal::OffsetOutOfRange { high_watermark, log_start } => {
                Found::Failed { code: code(&refusal), high_watermark, log_start }
            }
            _ => Found::failed(code(&refusal)),
        }
    }
}

/// A fetch under way. Goes through the closures of its outcomes; lives on the core of its connection.
#[derive(Debug)]
struct Fetch {
    version: i16,
    committed: bool,
    deadline: Mono,
    min_bytes: usize,
    /// Of the request and the settings.
    limit_bytes: usize,
    /// In this pass: the limit, or less when memory is short.
    max_bytes: usize,
    session: SessionUse,
    /// In the order of reading.
    parts: Vec<Part>,
    /// Where the order of answering begins; it goes round to just before.
    first: usize,
    /// In this pass, the first partition with records has been asked for a batch though it be over the limits.
    insisted: bool,
}

/// One partition's share of a round.
struct Share {
    at: usize,
    bytes_max: u32,
    at_least_one: bool,
}

pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let version = request.version;
    let mut asked = match decode(request) {
        Ok(decoded) => decoded,
        Err(fault) => return fault.into(),
    };
    let (session, turn) = match begin(ctx, version, &mut asked) {
        Ok(begun) => begun,
        Err(code) => return refuse(version, code),
    };
    let parts = turn.partitions.into_iter();
    let max_bytes = asked.max_bytes.min(ctx.settings.fetch_bytes_max) as usize;
    let fetch = Fetch {
        version,
        committed: asked.committed,
        deadline: ctx.now + asked.wait,
        // More than the limit is never there; and with a limit of nothing a batch is still worth waiting for.
        min_bytes: (asked.min_bytes as usize).min(max_bytes.max(1)),
        limit_bytes: max_bytes,
        max_bytes,
        session,
        parts: parts.map(|(key, wanted, told)| Part { key, wanted, told, found: Found::failed(Code::None) }).collect(),
        first: turn.first_key_at,
        insisted: false,
    };
    if asked.replica >= 0 {
        return fetch.refuse_all(ctx, Code::TopicAuthorizationFailed); // a follower; there are none that fetch like this
    }
    fetch.pass(ctx)
}

/// What is to be read, in which order, and what the answer has to do with a session.
fn begin(ctx: &mut Ctx<'_>, version: i16, asked: &mut FetchRequest) -> Result<(SessionUse, Turn), Code> {
    let partitions = std::mem::take(&mut asked.partitions);
    match asked.session_epoch {
        SESSION_CLOSES | SESSION_OPENS => {
            ctx.sessions.close(asked.session);
            let opens = asked.session_epoch == SESSION_OPENS && asked.replica < 0;
            let partitions = partitions.into_iter().map(|(key, wanted)| (key, wanted, Told::NOTHING)).collect();
            let turn = Turn { partitions, first_key_at: 0 };
            Ok((if opens { SessionUse::Opens } else { SessionUse::None }, turn))
        }
        epoch => {
            let (id, by_id) = (asked.session, version >= IDS_FROM);
            let turn = ctx.sessions.advance(ctx.now, id, epoch, by_id, partitions, &asked.forgotten)?;
            Ok((if turn.partitions.is_empty() { SessionUse::None } else { SessionUse::Goes(id) }, turn))
        }
    }
}

/// An error for the whole request, without topics.
fn refuse(version: i16, code: Code) -> Outcome {
    assert!(version >= SESSIONS_FROM, "version {version} has no sessions and no place for {code:?}");
    let mut w = Writer::new(version >= FLEXIBLE_FROM);
    w.i32(0); // throttle_time_ms
    w.i16(code.wire());
    w.i32(0);
    w.array(0);
    w.tags();
    Outcome::Reply(w.done())
}

impl Fetch {
    fn refuse_all(mut self, ctx: &mut Ctx<'_>, code: Code) -> Outcome {
        self.parts.iter_mut().for_each(|part| part.found = Found::failed(code));
        self.answer(ctx)
    }

    /// Reads all partitions anew, as the metadata has them now.
    fn pass(mut self, ctx: &mut Ctx<'_>) -> Outcome {
        self.insisted = false;
        self.max_bytes = self.limit_bytes.min(ctx.fetch_room_bytes);
        for part in &mut self.parts {
            part.found = match route(ctx, &part.key) {
                Ok(route) => Found::Open(route),
                Err(code) => Found::failed(code),
            };
        }
        let mut shares = self.shares(self.max_bytes, true, |part| matches!(part.found, Found::Open(_)));
        let dealt = shares.len();
        let Some(last) = shares.last() else { return self.decide(ctx) };
        let rest = (last.at + 1..self.parts.len()).filter(|at| matches!(self.parts[*at].found, Found::Open(_)));
        shares.extend(rest.map(|at| Share { at, bytes_max: 0, at_least_one: false }));
        self.round(ctx, shares, dealt)
    }

    /// What it keeps in memory while it waits, bytes.
    fn kept_bytes(&self) -> usize {
        self.bytes() + self.parts.len() * size_of::<Part>()
    }

    /// Deals `left` bytes out over the partitions that are `eligible`, in order, each its own limit, as long as they
    /// last. The first gets what there is.
    fn shares(&self, mut left: usize, at_least_one: bool, eligible: impl Fn(&Part) -> bool) -> Vec<Share> {
        let mut shares = Vec::new();
        for (at, part) in self.parts.iter().enumerate().filter(|(_, part)| eligible(part)) {
            let first = shares.is_empty();
            let bytes_max = part.wanted.bytes_max as usize;
            if !first && bytes_max > left {
                break;
            }
            let share = bytes_max.min(left);
            left -= share;
            let bytes_max = u32::try_from(share).expect("no more than the partition's own limit");
            shares.push(Share { at, bytes_max, at_least_one: first && at_least_one });
        }
        shares
    }

    /// Asks these partitions; the first `dealt` of them for batches, the others only where they stand.
    fn round(mut self, ctx: &mut Ctx<'_>, shares: Vec<Share>, dealt: usize) -> Outcome {
        ctx.kept_bytes = self.kept_bytes();
        let asks = shares.iter().map(|share| self.question(share, false)).collect();
        Outcome::Ask(
            asks,
            Box::new(move |ctx, answers| {
                assert_eq!(answers.len(), shares.len(), "each question has one answer");
                for (nth, (share, answer)) in shares.iter().zip(answers).enumerate() {
                    self.take(share.at, answer, nth < dealt);
                }
                self.next_round(ctx)
            }),
        )
    }

    fn question(&self, share: &Share, watch: bool) -> Ask {
        let part = &self.parts[share.at];
        let from = match &part.found {
            Found::Open(route) | Found::Read { route, .. } => *route,
            Found::Failed { .. } => panic!("a partition with an error is not asked"),
        };
        let Wanted { offset, epoch, .. } = part.wanted;
        Ask::Read { from, offset, bytes_max: share.bytes_max, at_least_one: share.at_least_one, epoch, watch }
    }

    fn take(&mut self, at: usize, answer: Answer, asked: bool) {
        let part = &mut self.parts[at];
        let route = match &part.found {
            Found::Open(route) | Found::Read { route, .. } => *route,
            Found::Failed { .. } => panic!("a partition with an error was not asked"),
        };
        part.found = match answer {
            Answer::Read(Ok(done)) => {
                let bytes = done.batches.iter().map(Bytes::len).sum();
                Found::Read { route, done, bytes, asked }
            }
            Answer::Read(Err(refusal)) => refusal.into(),
            other => panic!("a read was answered with {other:?}"),
        };
    }

    /// After a round: another one, for partitions that have records and were not asked for them; or the pass is over.
    fn next_round(mut self, ctx: &mut Ctx<'_>) -> Outcome {
        let total = self.bytes();
        let left = self.max_bytes.saturating_sub(total);
        let shares = if total == 0 && !self.insisted {
            // The first with records gives a batch though it is over the limits, and though it was asked before.
            self.insisted = true;
            self.shares(left, true, |part| self.has_more(part))
        } else if left > 0 {
            self.shares(left, false, |part| self.has_more(part) && !part.found.was_asked())
        } else {
            vec![]
        };
        if shares.is_empty() {
            return self.decide(ctx);
        }
        let dealt = shares.len();
        self.round(ctx, shares, dealt)
    }

    fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.found.bytes()).sum()
    }

    /// Up to where this client may read.
    fn end(&self, done: &ReadDone) -> Offset {
        if self.committed { done.last_stable } else { done.high_watermark }
    }

    /// There are records behind what was read of this partition.
    fn has_more(&self, part: &Part) -> bool {
        match &part.found {
            Found::Read { done, .. } => self.end(done) > end_of(&done.batches).unwrap_or(part.wanted.offset),
            Found::Open(_) | Found::Failed { .. } => false,
        }
    }

    /// The pass is over: answers if waiting would add nothing, else waits.
    fn decide(self, ctx: &mut Ctx<'_>) -> Outcome {
        let total = self.bytes();
        let failed = self.parts.iter().any(|part| matches!(part.found, Found::Failed { .. }));
        let full = total > 0 && self.parts.iter().any(|part| self.has_more(part));
        if total >= self.min_bytes || failed || full || self.parts.is_empty() || ctx.now >= self.deadline {
            return self.answer(ctx);
        }
        self.watch(ctx)
    }

    /// Asks once more where the partitions stand, so that what moves from now on wakes the request.
    fn watch(mut self, ctx: &mut Ctx<'_>) -> Outcome {
        ctx.kept_bytes = self.kept_bytes();
        let share = |at| Share { at, bytes_max: 0, at_least_one: false };
        let asks = (0..self.parts.len()).map(|at| self.question(&share(at), true)).collect();
        Outcome::Ask(
            asks,
            Box::new(move |ctx, answers| {
                assert_eq!(answers.len(), self.parts.len(), "each question has one answer");
                let stands = |(part, answer): (&Part, &Answer)| match (&part.found, answer) {
                    (Found::Read { done, .. }, Answer::Read(Ok(now))) => self.end(now) == self.end(done),
                    _ => false,
                };
                let has_moved = !self.parts.iter().zip(&answers).all(stands);
                #[cfg(feature = "planted")]
                let has_moved = has_moved && !is(Bug::LostWakeUp);
                if has_moved {
                    return self.pass(ctx);
                }
                // What was read is read again then: nothing is kept in memory for a client that waits.
                let (empty, deadline) = (self.bytes() == 0, self.deadline);
                for part in &mut self.parts {
                    if let Found::Read { done, bytes, .. } = &mut part.found {
                        (done.batches, *bytes) = (vec![], 0);
                    }
                }
                ctx.kept_bytes = self.kept_bytes();
                let wake = move |ctx: &mut Ctx<'_>, woke| match woke {
                    Woke::Deadline if empty => self.answer(ctx),
                    Woke::Deadline => {
                        // it may be early: the broker stops, or memory is short
                        self.deadline = ctx.now;
                        self.pass(ctx)
                    }
                    Woke::Moved => self.pass(ctx),
                };
                Outcome::Sleep(deadline, Box::new(wake))
            }),
        )
    }

    fn answer(self, ctx: &mut Ctx<'_>) -> Outcome {
        let session = self.settle(ctx);
        let (before, from) = self.parts.split_at(self.first);
        let in_order = from.iter().chain(before);
        let incremental = matches!(self.session, SessionUse::Goes(_));
        let mut topics: Vec<(&TopicKey, Vec<&Part>)> = Vec::new();
        for part in in_order.filter(|part| !incremental || part.is_news()) {
            match topics.last_mut() {
                Some((topic, parts)) if **topic == part.key.0 => parts.push(part),
                _ => topics.push((&part.key.0, vec![part])),
            }
        }
        let mut w = Writer::new(self.version >= FLEXIBLE_FROM);
        w.i32(0); // throttle_time_ms
        if self.version >= SESSIONS_FROM {
            w.i16(Code::None.wire());
            w.i32(session);
        }
        w.array(topics.len());
        for (topic, parts) in topics {
            match topic {
                TopicKey::Name(name) => w.string(name),
                TopicKey::Id(id) => w.uuid(*id),
            }
            w.array(parts.len());
            parts.into_iter().for_each(|part| self.partition(&mut w, part));
            w.tags();
        }
        w.tags(); // node_endpoints (16 and later) is left out: the client asks Metadata
        Outcome::Reply(w.done())
    }

    /// Brings the session up to what this answer says; gives the session's id for the answer.
    fn settle(&self, ctx: &mut Ctx<'_>) -> i32 {
        match self.session {
            SessionUse::None => 0,
            SessionUse::Opens => {
                let parts =
                    self.parts.iter().map(|part| (part.key.clone(), (part.wanted, part.found.told()))).collect();
                let (max, by_id) = (ctx.settings.fetch_sessions_max, self.version >= IDS_FROM);
                ctx.sessions.open(ctx.now, max, by_id, parts, ctx.random)
            }
            SessionUse::Goes(id) => {
                let news = self.parts.iter().filter(|part| part.is_news());
                let last = self.parts.iter().rfind(|part| part.found.bytes() > 0);
                let told = news.map(|part| (part.key.clone(), part.found.told()));
                ctx.sessions.told(id, told, last.map(|part| part.key.clone()));
                id
            }
        }
    }

    fn partition(&self, w: &mut Writer, part: &Part) {
        const NO_BATCHES: &[Bytes] = &[];
        let (code, high_watermark, last_stable, log_start, batches) = match &part.found {
            Found::Read { done, .. } => {
                (Code::None, done.high_watermark, done.last_stable, done.log_start, &done.batches[..])
            }
            Found::Failed { code, high_watermark, log_start } => {
                (*code, *high_watermark, *high_watermark, *log_start, NO_BATCHES)
            }
            Found::Open(_) => panic!("a partition is answered that was not asked"),
        };
        w.i32(part.key.1);
        w.i16(code.wire());
        w.i64(high_watermark.0);
        w.i64(last_stable.0);
        if self.version >= 5 {
            w.i64(log_start.0);
        }
        // No list of aborted transactions for who reads everything, and an empty one for who does not: as Kafka.
        match self.committed {
            true => w.array(0),
            false => w.null_array(),
        }
        if self.version >= 11 {
            w.i32(-1); // preferred_read_replica
        }
        w.records(batches);
        w.tags(); // diverging_epoch, current_leader and snapshot_id are left out
    }
}

impl Part {
    fn is_news(&self) -> bool {
        match &self.found {
            Found::Failed { .. } => true,
            Found::Open(_) | Found::Read { .. } => self.found.bytes() > 0 || self.found.told() != self.told,
        }
    }
}

fn route(ctx: &Ctx<'_>, (topic, index): &PartKey) -> Result<Route, Code> {
    let topic = match topic {
        TopicKey::Name(name) => ctx.image.topic(name).ok_or(Code::UnknownTopicOrPartition)?,
        TopicKey::Id(id) => ctx.image.topic_by_id(*id).ok_or(Code::UnknownTopicId)?,
    };
    let place = usize::try_from(*index).ok().and_then(|index| topic.partitions.get(index));
    let place = place.ok_or(Code::UnknownTopicOrPartition)?;
    Ok(ctx.route(place.shard(), place.partition()))
}

/// The offset behind the last of these batches: from the header of each in the last piece.
fn end_of(batches: &[Bytes]) -> Option<Offset> {
    const HEADER_BYTES: usize = 61;
    let (mut rest, mut end) = (&batches.last()?[..], None);
    while rest.len() >= HEADER_BYTES {
        let base = i64::from_be_bytes(*rest.first_chunk().expect("8 of 61 bytes"));
        let length = i32::from_be_bytes(*rest[8..].first_chunk().expect("4 of 53 bytes"));
        let last_delta = i32::from_be_bytes(*rest[23..].first_chunk().expect("4 of 38 bytes"));
        end = Some(Offset(base + i64::from(last_delta) + 1));
        let whole = 12 + usize::try_from(length).expect("stored batches are checked ones");
        rest = &rest[whole.min(rest.len())..];
    }
    end
}

#[cfg(test)]
mod tests {
    use super::super::table::FETCH;
    use super::super::testing::{Logs, World, batch, reply, topic};
    use super::*;
    use bytes::BytesMut;
    use camus_engine::types::PartitionId;
    use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic, ForgottenTopic};
    use kafka_protocol::messages::fetch_response::PartitionData;
    use kafka_protocol::messages::{self, BrokerId, FetchResponse, TopicName};
    use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};
    use proptest::prelude::*;
    use uuid::Uuid;

    const T: (&str, u128) = ("t", 7);
    const U: (&str, u128) = ("u", 8);
    const NO: (&str, u128) = ("no", 99);
    type Named = (&'static str, u128);

    /// A consumer: one connection, one version.
    struct Client {
        world: World,
        logs: Logs,
        version: i16,
        request: messages::FetchRequest,
        partition_max: i32,
        epoch: i32,
    }

    impl Client {
        fn new(version: i16) -> Client {
            let request = messages::FetchRequest::default().with_max_bytes(50_000_000).with_min_bytes(1);
            let mut client = Client {
                world: World::default(),
                logs: Logs::default(),
                version,
                request,
                partition_max: 10_000_000,
                epoch: -1,
            };
            client.limits(0, 1, 50_000_000, 10_000_000);
            client
        }

        fn limits(&mut self, wait: i32, min: i32, max: i32, partition_max: i32) {
            (self.request.max_wait_ms, self.request.min_bytes, self.request.max_bytes) = (wait, min, max);
            self.partition_max = partition_max;
        }

        fn body(&self, wanted: &[(Named, i32, i64)], forgotten: &[(Named, i32)]) -> Bytes {
            let mut request = self.request.clone();
            let name = |(name, _): Named| TopicName(StrBytes::from_static_str(name));
            let id = |(_, id): Named| Uuid::from_u128(id);
            for (topic, partition, offset) in wanted {
                let mut part = FetchPartition::default().with_partition(*partition).with_fetch_offset(*offset);
                part.partition_max_bytes = self.partition_max;
                if self.version >= 9 {
                    part.current_leader_epoch = self.epoch;
                }
                let mut named = FetchTopic::default().with_partitions(vec![part]);
                match self.version >= 13 {
                    true => named.topic_id = id(*topic),
                    false => named.topic = name(*topic),
                }
                request.topics.push(named);
            }
            for (topic, partition) in forgotten {
                let mut named = ForgottenTopic::default().with_partitions(vec![*partition]);
                match self.version >= 13 {
                    true => named.topic_id = id(*topic),
                    false => named.topic = name(*topic),
                }
                request.forgotten_topics_data.push(named);
            }
            let mut out = BytesMut::new();
            request.encode(&mut out, self.version).unwrap();
            out.freeze()
        }

        /// Sends a fetch and goes on with it until it is answered or sleeps.
        fn send(&mut self, wanted: &[(Named, i32, i64)]) -> Outcome {
            let body = self.body(wanted, &[]);
            let outcome = self.world.start(FETCH, self.version, body);
            self.go_on(outcome)
        }

        fn go_on(&mut self, outcome: Outcome) -> Outcome {
            self.world.answer(outcome, |ask| self.logs.answer(ask))
        }

        fn wake(&mut self, outcome: Outcome, why: Woke) -> Outcome {
            let outcome = self.world.wake(outcome, why);
            self.go_on(outcome)
        }

        fn decode(&self, outcome: Outcome) -> FetchResponse {
            let mut body = reply(outcome);
            let got = FetchResponse::decode(&mut body, self.version).unwrap();
            assert!(body.is_empty(), "version {}: {} bytes left", self.version, body.len());
            assert_eq!(got.throttle_time_ms, 0);
            assert!(got.node_endpoints.is_empty());
            got
        }

        fn fetch(&mut self, wanted: &[(Named, i32, i64)]) -> Vec<PartitionData> {
            let outcome = self.send(wanted);
            let got = self.decode(outcome);
            assert_eq!(got.error_code, 0);
            parts(got)
        }

        fn session(&mut self, id: i32, epoch: i32) {
            (self.request.session_id, self.request.session_epoch) = (id, epoch);
        }

        /// An increment: which partitions were answered, with their errors and sizes.
        fn next(&mut self, wanted: &[(Named, i32, i64)], forgotten: &[(Named, i32)]) -> Vec<(i32, i16, usize)> {
            let outcome = self.world.start(FETCH, self.version, self.body(wanted, forgotten));
            let outcome = self.go_on(outcome);
            let got = self.decode(outcome);
            assert_eq!((got.error_code, got.session_id), (0, self.request.session_id));
            self.request.session_epoch += 1;
            parts(got).iter().map(|p| (p.partition_index, p.error_code, size(p))).collect()
        }
    }

    fn parts(got: FetchResponse) -> Vec<PartitionData> {
        got.responses.into_iter().flat_map(|topic| topic.partitions).collect()
    }

    fn size(part: &PartitionData) -> usize {
        part.records.as_ref().map_or(0, Bytes::len)
    }

    fn sizes(parts: &[PartitionData]) -> Vec<usize> {
        parts.iter().map(size).collect()
    }

    /// A field at the wrong place made clients read a preferred replica of 722799104 and drop the records.
    #[test]
    fn every_version_has_every_field_in_its_place() {
        for version in 4..=18 {
            for committed in [0, 1] {
                let mut c = Client::new(version);
                c.request.isolation_level = committed;
                c.logs.append(PartitionId(7001), 3, 40);
                c.logs.append(PartitionId(7001), 2, 50);
                c.logs.trim(PartitionId(7001), 1);
                let outcome = c.send(&[(T, 0, 0), (T, 1, 2), (U, 1, 0)]);
                let got = c.decode(outcome);
                assert_eq!((got.error_code, got.session_id), (0, 0));
                assert_eq!(got.responses.len(), 2);
                for (topic, named) in got.responses.iter().zip([T, U]) {
                    match version >= 13 {
                        true => assert_eq!(topic.topic_id, Uuid::from_u128(named.1)),
                        false => assert_eq!(topic.topic.as_str(), named.0),
                    }
                }
                let got = parts(got);
                let part = &got[1];
                assert_eq!((part.partition_index, part.error_code), (1, 0));
                assert_eq!((part.high_watermark, part.last_stable_offset), (5, 5));
                assert_eq!(part.log_start_offset, if version >= 5 { 1 } else { -1 });
                assert_eq!(part.preferred_read_replica.0, -1);
                assert_eq!(part.aborted_transactions, (committed == 1).then(Vec::new));
                let stored = [batch(0, 3, 40), batch(3, 2, 50)].concat();
                assert_eq!(part.records.as_ref().unwrap()[..], stored[..]);
                assert!(got.iter().all(|p| p.records.is_some()), "empty records are not null");
                assert!(got.iter().all(|p| p.diverging_epoch.epoch == -1 && p.current_leader.leader_epoch == -1));
            }
        }
    }

    /// Batches that are copied would cost each consumer the memory bandwidth of the log.
    #[test]
    fn batches_are_parts_of_the_answer_and_not_copied() {
        let mut c = Client::new(12);
        c.logs.append(PartitionId(7000), 1, 40);
        let Outcome::Reply(reply) = c.send(&[(T, 0, 0)]) else { panic!("data is there") };
        let stored = c.logs.batches(PartitionId(7000))[0].as_ptr();
        assert!(reply.parts.iter().any(|part| part.as_ptr() == stored));
    }

    /// Errors end the wait, in the words of the version, beside the state of the others.
    #[test]
    fn errors_are_answered_at_once_each_for_its_partition() {
        for version in 4..=18 {
            let mut c = Client::new(version);
            c.limits(20_000, 1, 50_000_000, 10_000_000);
            c.logs.append(PartitionId(7000), 3, 40);
            let got = c.fetch(&[(NO, 0, 0), (T, 0, 3), (T, 3, 0), (T, -1, 0), (T, 1, 4), (U, 0, -1)]);
            let seen: Vec<_> = got.iter().map(|p| (p.partition_index, p.error_code)).collect();
            let unknown = if version >= 13 { 100 } else { 3 };
            assert_eq!(seen, [(0, unknown), (0, 0), (3, 3), (-1, 3), (1, 1), (0, 1)], "version {version}");
            assert!(got.iter().all(|p| size(p) == 0));
        }
    }

    #[test]
    fn the_clients_leader_epoch_reaches_the_shard() {
        for version in [9, 11, 12, 17, 18] {
            for (epoch, code) in [(-1, 0), (4, 0), (5, 75), (3, 74)] {
                let mut c = Client::new(version);
                c.logs.epoch = 4;
                c.epoch = epoch;
                assert_eq!(c.fetch(&[(T, 0, 0)])[0].error_code, code, "version {version}, epoch {epoch}");
            }
        }
    }

    /// A consumer behind a batch that is over its limits would never get on (KIP-74).
    #[test]
    fn the_first_batch_is_returned_whole_whatever_the_limits() {
        for version in [4, 11, 12, 17] {
            for limit in [0, 1, 1000, -1, i32::MIN] {
                let mut c = Client::new(version);
                c.limits(500, 1, limit, limit);
                c.logs.append(PartitionId(7001), 1, 50_000);
                c.logs.append(PartitionId(7001), 1, 50_000);
                c.logs.append(PartitionId(7002), 1, 50_000);
                assert_eq!(sizes(&c.fetch(&[(T, 0, 0), (T, 1, 0), (T, 2, 0)])), [0, 50_061, 0], "limit {limit}");
            }
        }
    }

    /// An oversize batch is for the first partition with records only; else many partitions would multiply the limit.
    #[test]
    fn only_one_partition_may_go_over_its_limit() {
        let mut c = Client::new(12);
        c.limits(0, 1, 50_000_000, 100);
        for p in 0..3 {
            c.logs.append(PartitionId(7000 + p), 1, 20_000);
        }
        assert_eq!(sizes(&c.fetch(&[(T, 0, 0), (T, 1, 0), (T, 2, 0)])), [20_061, 0, 0]);
        assert_eq!(sizes(&c.fetch(&[(T, 0, 1), (T, 1, 0), (T, 2, 0)])), [0, 20_061, 0]);
    }

    #[test]
    fn the_partition_limit_bounds_what_follows_the_first_batch() {
        let mut c = Client::new(12);
        for _ in 0..10 {
            c.logs.append(PartitionId(7000), 1, 939);
        }
        c.limits(0, 1, 50_000_000, 3010);
        assert_eq!(sizes(&c.fetch(&[(T, 0, 0)])), [3000]);
    }

    /// The request's limit is for all partitions together, and the broker's is over the request's.
    #[test]
    fn the_request_limit_bounds_all_partitions_together() {
        for (max, broker) in [(25_000, 55 << 20), (50_000_000, 25_000)] {
            let mut c = Client::new(12);
            c.world = World::with([topic("t", 7, 40)]);
            c.world.settings.fetch_bytes_max = broker;
            for p in 0..40 {
                c.logs.append(PartitionId(7000 + p), 1, 939);
            }
            c.limits(0, 1, max, 10_000_000);
            let wanted: Vec<_> = (0..40).map(|p| (T, p, 0)).collect();
            let got = c.fetch(&wanted);
            assert_eq!(got.len(), 40);
            assert!(got.iter().all(|p| p.high_watermark == 1), "those without a share say where they stand");
            assert_eq!(sizes(&got).iter().sum::<usize>(), 25_000);
        }
    }

    /// Partitions that got no share in the first round must not come empty while bytes are left.
    #[test]
    fn what_the_first_partitions_leave_goes_to_the_others() {
        let mut c = Client::new(12);
        c.world = World::with([topic("t", 7, 40)]);
        c.limits(0, 1, 2_000_000, 1_000_000);
        for p in 0..40 {
            c.logs.append(PartitionId(7000 + p), 1, 939);
        }
        let wanted: Vec<_> = (0..40).map(|p| (T, p, i64::from(p % 2))).collect();
        let got = c.fetch(&wanted);
        let want: Vec<_> = (0..40).map(|p| if p % 2 == 0 { 1000 } else { 0 }).collect();
        assert_eq!(sizes(&got), want);
    }

    /// Idle consumers of many partitions cost one round: the shards are not asked twice without need.
    #[test]
    fn partitions_without_records_are_asked_once() {
        let mut c = Client::new(12);
        c.world = World::with([topic("t", 7, 300)]);
        let wanted: Vec<_> = (0..300).map(|p| (T, p, 0)).collect();
        assert_eq!(c.fetch(&wanted).len(), 300);
        assert_eq!(c.logs.asked, 300);
    }

    /// "Never" and "at once, again and again" are the two faults of young brokers.
    #[test]
    fn an_empty_fetch_sleeps_until_its_deadline_and_answers_with_what_it_knows() {
        for version in [4, 11, 12, 17] {
            let mut c = Client::new(version);
            c.limits(600, 1, 50_000_000, 10_000_000);
            let before = c.world.now;
            let asleep = c.send(&[(T, 0, 0), (T, 1, 0)]);
            let Outcome::Sleep(until, _) = &asleep else { panic!("nothing is there") };
            assert_eq!(*until, before + Duration::from_millis(600));
            let asked = c.logs.asked;
            let outcome = c.wake(asleep, Woke::Deadline);
            assert_eq!(sizes(&parts(c.decode(outcome))), [0, 0]);
            assert_eq!(c.logs.asked, asked, "nothing moved, so nobody is asked");
        }
    }

    #[test]
    fn no_wait_when_none_is_asked() {
        for (wait, min, max) in [(0, 1, 1000), (20_000, 0, 1000), (-1, 1, 1000), (20_000, -1, 1000)] {
            let mut c = Client::new(12);
            c.limits(wait, min, max, 1000);
            assert_eq!(sizes(&c.fetch(&[(T, 0, 0)])), [0]);
            assert!(c.logs.watches.is_empty());
        }
        let mut c = Client::new(12);
        c.limits(20_000, 1, 1000, 1000);
        assert!(c.fetch(&[]).is_empty());
        c.limits(20_000, 1, 0, 0);
        assert!(matches!(c.send(&[(T, 0, 0)]), Outcome::Sleep(..)), "a limit of nothing is no reason to spin");
    }

    /// A wake-up that comes between the read and the watch must not be lost.
    #[test]
    fn what_moves_before_the_watch_is_read_without_sleeping() {
        let mut c = Client::new(12);
        c.limits(20_000, 1, 50_000_000, 10_000_000);
        let body = c.body(&[(T, 0, 0), (T, 1, 0)], &[]);
        let mut outcome = c.world.start(FETCH, 12, body);
        let mut late = true;
        while let Outcome::Ask(asks, then) = outcome {
            if late && asks.iter().any(|ask| matches!(ask, Ask::Read { watch: true, .. })) {
                c.logs.append(PartitionId(7001), 1, 10);
                late = false;
            }
            let answers = asks.iter().map(|ask| c.logs.answer(ask)).collect();
            outcome = c.world.with_ctx(|ctx| then(ctx, answers));
        }
        assert_eq!(sizes(&parts(c.decode(outcome))), [0, 71]);
    }

    /// Data in any partition ends the wait; each of them is watched.
    #[test]
    fn a_sleeping_fetch_watches_every_partition_and_answers_when_one_moves() {
        for version in [4, 11, 12, 17] {
            let mut c = Client::new(version);
            c.limits(20_000, 1, 50_000_000, 10_000_000);
            let asleep = c.send(&[(T, 0, 0), (T, 1, 0), (U, 1, 0)]);
            assert_eq!(c.logs.watches, [PartitionId(7000), PartitionId(7001), PartitionId(8001)]);
            c.logs.append(PartitionId(8001), 1, 10);
            let outcome = c.wake(asleep, Woke::Moved);
            assert_eq!(sizes(&parts(c.decode(outcome))), [0, 0, 71]);
        }
    }

    #[test]
    fn min_bytes_counts_over_partitions_and_holds_until_enough() {
        let mut c = Client::new(12);
        c.limits(20_000, 2000, 50_000_000, 10_000_000);
        c.logs.append(PartitionId(7000), 1, 900);
        let asleep = c.send(&[(T, 0, 0), (T, 1, 0)]);
        c.logs.append(PartitionId(7001), 1, 100);
        let asleep = c.wake(asleep, Woke::Moved);
        assert!(matches!(asleep, Outcome::Sleep(..)));
        c.logs.append(PartitionId(7001), 1, 900);
        let outcome = c.wake(asleep, Woke::Moved);
        assert_eq!(sizes(&parts(c.decode(outcome))), [961, 1122]);
    }

    #[test]
    fn at_the_deadline_what_is_there_is_returned() {
        let mut c = Client::new(12);
        c.limits(600, 100_000, 50_000_000, 10_000_000);
        c.logs.append(PartitionId(7000), 1, 10);
        let asleep = c.send(&[(T, 0, 0)]);
        let outcome = c.wake(asleep, Woke::Deadline);
        assert_eq!(sizes(&parts(c.decode(outcome))), [71]);
    }

    /// Waiting for more than the limits let through would wait for nothing.
    #[test]
    fn a_partition_at_its_limit_ends_the_wait() {
        let mut c = Client::new(12);
        c.limits(20_000, 5000, 50_000_000, 1000);
        for _ in 0..9 {
            c.logs.append(PartitionId(7000), 1, 939);
        }
        assert_eq!(sizes(&c.fetch(&[(T, 0, 0)])), [1000]);
    }

    /// A consumer must learn that its topic is gone, and not sleep on.
    #[test]
    fn a_topic_that_is_deleted_under_a_sleeping_fetch_is_an_error() {
        for (version, code) in [(12, 3), (13, 100)] {
            let mut c = Client::new(version);
            c.limits(20_000, 1, 50_000_000, 10_000_000);
            let asleep = c.send(&[(T, 0, 0)]);
            c.world.image = World::with([topic("t", 70, 3)]).image;
            c.logs.append(PartitionId(70_000), 1, 10);
            let outcome = c.wake(asleep, Woke::Moved);
            let got = parts(c.decode(outcome));
            // By name it is the new topic; by id never.
            let want = if version >= 13 { (code, 0) } else { (0, 71) };
            assert_eq!((got[0].error_code, size(&got[0])), want);
        }
    }

    /// The same partition twice is answered once, and the last mention counts.
    #[test]
    fn a_partition_that_is_named_twice_is_answered_once() {
        let mut c = Client::new(12);
        c.logs.append(PartitionId(7000), 5, 10);
        c.logs.append(PartitionId(7000), 5, 20);
        let outcome = c.send(&[(T, 0, 0), (U, 0, 0), (T, 1, 0), (T, 0, 5)]);
        let got = c.decode(outcome);
        assert_eq!(got.responses.iter().map(|t| t.partitions.len()).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(sizes(&parts(got)), [81, 0, 0]);
    }

    /// What is not a consumer gets nothing: there is no replication over this wire.
    #[test]
    fn a_followers_fetch_is_refused() {
        for version in 4..=18 {
            let mut c = Client::new(version);
            match version >= 15 {
                true => c.request.replica_state.replica_id = BrokerId(1),
                false => c.request.replica_id = BrokerId(1),
            }
            c.logs.append(PartitionId(7000), 1, 10);
            let got = c.fetch(&[(T, 0, 0)]);
            assert_eq!((got[0].error_code, size(&got[0])), (29, 0), "version {version}");
        }
    }

    const SESSION_VERSIONS: [i16; 5] = [7, 11, 12, 13, 18];

    fn open(version: i16, wanted: &[(Named, i32, i64)]) -> Client {
        let mut c = Client::new(version);
        c.session(0, 0);
        let outcome = c.send(wanted);
        let got = c.decode(outcome);
        assert_ne!(got.session_id, 0);
        let id = got.session_id;
        assert_eq!(parts(got).len(), wanted.len());
        c.session(id, 1);
        c
    }

    /// The point of a session: only what is new.
    #[test]
    fn a_session_answers_with_what_is_new() {
        for version in SESSION_VERSIONS {
            let mut c = open(version, &[(T, 0, 0), (T, 1, 0), (T, 2, 0)]);
            assert_eq!(c.next(&[], &[]), []);
            c.logs.append(PartitionId(7001), 2, 10);
            assert_eq!(c.next(&[], &[]), [(1, 0, 71)]);
            assert_eq!(c.next(&[(T, 1, 2)], &[]), [], "read, and told of before");
            c.logs.trim(PartitionId(7001), 2);
            assert_eq!(c.next(&[], &[]), [(1, 0, 0)], "a new log start is news");
            assert_eq!(c.next(&[(U, 1, 0)], &[]), [(1, 0, 0)], "a partition that is added is answered");
            c.logs.append(PartitionId(7000), 1, 10);
            assert_eq!(c.next(&[], &[(T, 0)]), [], "a forgotten one is silent");
        }
    }

    /// An error is said again until it is healed, and what follows it is news.
    #[test]
    fn a_partition_in_error_is_in_every_answer() {
        for version in SESSION_VERSIONS {
            let mut c = open(version, &[(T, 0, 9), (T, 1, 0)]);
            for _ in 0..3 {
                assert_eq!(c.next(&[], &[]), [(0, 1, 0)]);
            }
            assert_eq!(c.next(&[(T, 0, 0)], &[]), [(0, 0, 0)]);
            assert_eq!(c.next(&[], &[]), []);
        }
    }

    #[test]
    fn an_increment_without_news_sleeps_and_one_with_news_wakes() {
        for version in SESSION_VERSIONS {
            let mut c = open(version, &[(T, 0, 0), (T, 1, 0)]);
            c.limits(300, 1, 50_000_000, 10_000_000);
            let asleep = c.send(&[]);
            assert!(matches!(asleep, Outcome::Sleep(..)));
            let outcome = c.wake(asleep, Woke::Deadline);
            let got = c.decode(outcome);
            assert_eq!((got.session_id, got.responses.len()), (c.request.session_id, 0));
            c.request.session_epoch += 1;
            let asleep = c.send(&[]);
            c.logs.append(PartitionId(7001), 1, 10);
            let outcome = c.wake(asleep, Woke::Moved);
            assert_eq!(sizes(&parts(c.decode(outcome))), [71]);
        }
    }

    /// A client that is out of step must start anew, and must be told so in a way it can read.
    #[test]
    fn session_errors_have_no_topics() {
        for version in SESSION_VERSIONS {
            let mut c = open(version, &[(T, 0, 0)]);
            let id = c.request.session_id;
            let other = if version >= 13 { 12 } else { 13 };
            for (version, id, epoch, code) in
                [(version, id, 2, 71), (version, id + 1, 1, 70), (version, 0, 5, 70), (other, id, 1, 106)]
            {
                c.version = version;
                c.session(id, epoch);
                let outcome = c.send(&[(T, 0, 0)]);
                let got = c.decode(outcome);
                assert_eq!((got.error_code, got.session_id, got.responses.len()), (code, 0, 0));
            }
            c.version = version;
            c.session(id, 1);
            assert_eq!(c.next(&[], &[]), []);
        }
    }

    #[test]
    fn a_session_is_closed_or_replaced_by_a_full_fetch() {
        for version in SESSION_VERSIONS {
            let mut c = open(version, &[(T, 0, 0)]);
            let id = c.request.session_id;
            c.session(id, -1);
            c.logs.append(PartitionId(7000), 1, 10);
            let outcome = c.send(&[(T, 0, 0)]);
            let got = c.decode(outcome);
            assert_eq!((got.error_code, got.session_id), (0, 0));
            assert_eq!(sizes(&parts(got)), [71]);
            assert!(c.world.sessions.is_empty());
            let mut c = open(version, &[(T, 0, 0)]);
            let id = c.request.session_id;
            c.session(id, 0);
            let outcome = c.send(&[(T, 0, 0)]);
            let got = c.decode(outcome);
            assert!(got.session_id != id && got.session_id != 0 && c.world.sessions.len() == 1);
        }
    }

    /// A topic made anew under an old name must not answer for the old one.
    #[test]
    fn a_deleted_topic_in_a_session_is_an_error_until_it_is_forgotten() {
        for (version, code) in [(12, 3), (13, 100)] {
            let mut c = open(version, &[(T, 0, 0), (U, 0, 0)]);
            c.world.image = World::with([topic("t2", 70, 3), topic("u", 8, 2)]).image;
            assert_eq!(c.next(&[], &[]), [(0, code, 0)]);
            assert_eq!(c.next(&[], &[]), [(0, code, 0)]);
            assert_eq!(c.next(&[], &[(T, 0)]), []);
        }
    }

    /// Answers that nobody takes would fill the memory; without a batch at least, a reader would stand still.
    #[test]
    fn when_memory_is_short_a_fetch_gives_less_but_a_batch_at_least() {
        let mut c = Client::new(12);
        c.limits(0, 1, 50_000_000, 10_000_000);
        (0..4).for_each(|_| c.logs.append(PartitionId(7000), 1, 10));
        for (room, bytes) in [(usize::MAX, 4 * 71), (3 * 71, 3 * 71), (100, 71), (1, 71), (0, 71)] {
            c.world.fetch_room_bytes = room;
            assert_eq!(sizes(&c.fetch(&[(T, 0, 0)])), [bytes], "{room}");
        }
        // One that waits for more than there is room for is answered with what there is.
        c.limits(300, 200, 50_000_000, 10_000_000);
        assert_eq!(sizes(&c.fetch(&[(T, 0, 0)])), [71]);
    }

    /// Under a limit of one batch every partition still gets its turn.
    #[test]
    fn a_session_under_a_small_limit_reads_all_partitions() {
        let wanted: Vec<_> = (0..3).map(|p| (T, p, 0)).collect();
        let mut c = open(12, &wanted);
        c.limits(0, 1, 1, 1);
        for p in 0..3 {
            for _ in 0..2 {
                c.logs.append(PartitionId(7000 + p), 1, 10);
            }
        }
        let mut order = vec![];
        let mut at = [0; 3];
        let mut moved = vec![];
        for _ in 0..6 {
            let got = c.next(&moved, &[]);
            let read: Vec<_> = got.iter().filter(|g| g.2 > 0).map(|g| g.0).collect();
            assert_eq!(read.len(), 1, "{got:?}");
            order.push(read[0]);
            at[read[0] as usize] += 1;
            moved = vec![(T, read[0], at[read[0] as usize])];
        }
        assert_eq!(order, [0, 1, 2, 0, 1, 2]);
    }

    /// Clients that open a session for each fetch are answered all the same.
    #[test]
    fn without_room_for_a_session_the_answer_is_full_and_has_no_session() {
        let mut c = Client::new(12);
        c.world.settings.fetch_sessions_max = 2;
        c.session(0, 0);
        let ids: Vec<_> = (0..4)
            .map(|_| {
                let outcome = c.send(&[(T, 0, 0)]);
                c.decode(outcome).session_id
            })
            .collect();
        assert!(ids[0] != 0 && ids[1] != 0 && ids[0] != ids[1] && ids[2..] == [0, 0]);
    }

    #[test]
    fn a_request_that_ends_early_closes_and_asks_nothing() {
        for version in 4..=18 {
            let mut c = Client::new(version);
            if version >= 7 {
                c.session(1, -1);
            }
            let whole = c.body(&[(T, 0, 0), (U, 1, 5)], if version >= 7 { &[(T, 1)] } else { &[] });
            for end in 0..whole.len() {
                let outcome = c.world.start(FETCH, version, whole.slice(..end));
                assert!(matches!(outcome, Outcome::Close(_)), "version {version}, {end} bytes");
            }
        }
    }

    proptest! {
        /// No bytes panic, in any version.
        #[test]
        fn any_bytes_are_answered_asked_or_closed(version in 4_i16..=18, data: Vec<u8>) {
            let _ = World::default().start(FETCH, version, data.into());
        }

        #[test]
        fn a_flipped_byte_is_answered_asked_or_closed(version in 4_i16..=18, at: prop::sample::Index, bits: u8) {
            let mut c = Client::new(version);
            let mut data = c.body(&[(T, 0, 0), (U, 1, 5)], &[]).to_vec();
            let at = at.index(data.len());
            data[at] ^= bits;
            let outcome = c.world.start(FETCH, version, data.into());
            let _ = c.go_on(outcome);
        }

        /// Whatever the limits and the logs: every partition is answered once; the answer is over its limit by no more
        /// than one batch; it makes progress if there is anything; and batches are whole and in order.
        #[test]
        fn limits_hold_and_there_is_progress(
            logs in proptest::collection::vec(proptest::collection::vec(0_usize..3000, 0..6), 1..12),
            max in 0_i32..8000, partition_max in 0_i32..6000, broker in 0_u32..9000,
        ) {
            let mut c = Client::new(12);
            c.world = World::with([topic("t", 7, logs.len() as u64)]);
            c.world.settings.fetch_bytes_max = broker;
            c.limits(0, 1, max, partition_max);
            for (p, payloads) in logs.iter().enumerate() {
                payloads.iter().for_each(|payload| c.logs.append(PartitionId(7000 + p as u64), 1, *payload));
            }
            let wanted: Vec<_> = (0..logs.len() as i32).map(|p| (T, p, 0)).collect();
            let got = c.fetch(&wanted);
            prop_assert_eq!(got.len(), logs.len());
            let total: usize = sizes(&got).iter().sum();
            let most = (max as usize).min(broker as usize) + 3061;
            prop_assert!(total <= most, "{total} > {most}");
            prop_assert_eq!(total > 0, logs.iter().any(|l| !l.is_empty()));
            for (part, payloads) in got.iter().zip(&logs) {
                prop_assert_eq!(part.high_watermark, payloads.len() as i64);
                let all: Vec<u8> = c.logs.batches(PartitionId(7000 + part.partition_index as u64)).concat();
                prop_assert!(all.starts_with(part.records.as_ref().unwrap()));
            }
        }
    }
}
