//! Commands and snapshots of the meta shard: any bytes are refused or mean one thing.
//!
//! An input: one byte, odd if the first part is a snapshot and not a command; then parts, each behind its length in two
//! bytes.

use crate::rng::Rng;
use crate::{KIB, MIB, Target, mutate};
use camus_engine::types::{Index, ShardId};
use camus_meta::{Command, Credential, Mechanism, PartitionOffset, State, TopicOffsets};
use std::collections::BTreeMap;
use uuid::Uuid;

pub const TARGET: Target = Target {
    name: "meta",
    fuzz,
    heap_bytes_max,
    make: input,
    whole: || 256,
    corpus: include_str!("../corpus/meta.txt"),
    share: 1,
};

const PARTS_MAX: usize = 64;

fn shards() -> Vec<ShardId> {
    (1..=4).map(ShardId).collect()
}

pub fn fuzz(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let (snapshot, inputs) = (first & 1 == 1, parts(rest));
    let mut state = State::new(shards());
    for (n, bytes) in inputs.into_iter().enumerate() {
        if snapshot && n == 0 {
            if let Ok(restored) = State::restore(shards(), bytes) {
                state = restored;
            }
            continue;
        }
        let Ok(command) = Command::decode(bytes) else { continue };
        assert_eq!(Command::decode(&command.encode()).expect("what was encoded decodes"), command);
        // a snapshot may say that no entry can follow it
        let Some(index) = state.applied().0.checked_add(1).map(Index) else { return };
        let expected = State::check(&state.image(), &command);
        let decided = state.apply(index, &command);
        let _ = (expected, decided);
        let copy = State::restore(shards(), &state.snapshot()).expect("what was written is read");
        assert_eq!(copy.snapshot(), state.snapshot());
    }
}

/// A command of a few bytes makes as many partitions as a topic may have; the state is there three times, and its
/// snapshot twice.
fn heap_bytes_max(data: &[u8]) -> usize {
    KIB * data.len() + 64 * MIB
}

/// The last part is as long as there are bytes.
fn parts(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    while parts.len() < PARTS_MAX
        && let Some((length, rest)) = bytes.split_first_chunk::<2>()
    {
        let length = usize::from(u16::from_be_bytes(*length)).min(rest.len());
        let (part, rest) = rest.split_at(length);
        parts.push(part);
        bytes = rest;
    }
    parts
}

/// Commands that follow each other, some on a snapshot; behind the first ones, with changes.
fn input(rng: &mut Rng, n: u64) -> Vec<u8> {
    let snapshot = rng.one_in(2);
    let mut out = vec![u8::from(snapshot)];
    let mut put = |part: &[u8]| {
        let length = u16::try_from(part.len()).expect("a part is short");
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(part);
    };
    let change = |rng: &mut Rng, part: &mut Vec<u8>| {
        if n >= 128 && rng.one_in(3) {
            mutate::mutate(rng, part, &[]);
        }
    };
    if snapshot {
        let mut state = State::new(shards());
        for _ in 0..rng.below(8) {
            let _ = state.apply(Index(state.applied().0 + 1), &command(rng));
        }
        let mut part = state.snapshot();
        change(rng, &mut part);
        put(&part);
    }
    for _ in 0..1 + rng.below(8) {
        let mut part = command(rng).encode();
        change(rng, &mut part);
        put(&part);
    }
    out
}

fn command(rng: &mut Rng) -> Command {
    let id = Uuid::from_u128(rng.below(4) as u128);
    let group = rng.pick(&["g", "h", ""]).to_owned();
    let name = rng.pick(&["t", "u", "v", "", "no name"]).to_owned();
    let at_ms = rng.pick(&[0, 1, 1_800_000_000_000, -1, i64::MAX, i64::MIN]);
    match rng.below(11) {
        0 => Command::Bootstrap { cluster_id: name },
        1 | 2 => {
            let key = rng.pick(&["retention.ms", "cleanup.policy", "nothing"]).to_owned();
            let value = rng.pick(&["1000", "compact", "-1"]).to_owned();
            let configs = if rng.one_in(3) { BTreeMap::from([(key, value)]) } else { BTreeMap::new() };
            let partitions = rng.pick(&[0, 1, 3, 20, u32::MAX]);
            Command::CreateTopic { name, id, partitions, replication_factor: rng.pick(&[-1, 1, 3]), configs }
        }
        3 => Command::DeleteTopic { id },
        4 => Command::CreatePartitions { id, total: rng.pick(&[0, 1, 4, 30, u32::MAX]) },
        5 => {
            let value = rng.pick(&[None, Some("1000"), Some("compact")]).map(str::to_owned);
            Command::AlterTopicConfigs { id, set: BTreeMap::from([("retention.ms".to_owned(), value)]) }
        }
        6 => Command::TakeProducerIds { count: rng.pick(&[0, 1, 1000, u32::MAX]) },
        7 => {
            let partition = rng.pick(&[0, 1, 2, u32::MAX]);
            let offset = rng.pick(&[-1, 0, 7, i64::MAX]);
            let leader_epoch = rng.pick(&[-1, 0, 3]);
            let partitions = vec![PartitionOffset { partition, offset, leader_epoch, metadata: name }];
            Command::CommitOffsets { group, at_ms, topics: vec![TopicOffsets { topic: id, partitions }] }
        }
        8 => Command::DeleteOffsets { group, partitions: vec![(id, 0), (id, rng.pick(&[1, u32::MAX]))] },
        9 => {
            let (count, iterations) = (rng.below(40), rng.pick(&[0, 4096, u32::MAX]));
            let credential =
                Credential { salt: rng.bytes(count), iterations, stored_key: rng.bytes(32), server_key: rng.bytes(32) };
            let mechanism = rng.pick(&[Mechanism::ScramSha256, Mechanism::ScramSha512]);
            Command::AlterCredentials { user: name, set: vec![(mechanism, rng.one_in(2).then_some(credential))] }
        }
        _ if rng.one_in(2) => Command::DeleteGroups { groups: vec![group] },
        _ => Command::ExpireOffsets { group, before_ms: at_ms },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If what is made is no command, only the decoder is ever run.
    #[test]
    fn the_first_inputs_are_snapshots_and_commands() {
        for n in 0..128 {
            let made = input(&mut Rng::of(1, "test", n), n);
            let all = parts(&made[1..]);
            let (snapshots, commands) = all.split_at(usize::from(made[0]));
            assert!(snapshots.iter().all(|part| State::restore(shards(), part).is_ok()), "input {n}");
            assert!(commands.iter().all(|part| Command::decode(part).is_ok()), "input {n}");
        }
    }
}
