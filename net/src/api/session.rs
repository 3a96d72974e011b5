//! Incremental fetch sessions (KIP-227): a client names its partitions once, and from then on only what changes.
//!
//! In:  [`Sessions::open`] after a full fetch, [`Sessions::advance`] with each incremental one.  Out: the partitions of
//! the session, in the order in which they are to be read.
//!
//! A session lives on the core of the connection that opened it. A client that comes back over another core is told
//! that its session is unknown, and opens a new one.

use crate::errors::Code;
use crate::limits::{SESSION_EVICTION_MS_MIN, SESSION_PARTITIONS_MAX};
use camus_engine::types::{LeaderEpoch, Mono, Offset};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// A topic as a client names it: by name up to Fetch 12, by id from 13 on.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TopicKey {
    Name(Arc<str>),
    Id(Uuid),
}

/// A partition of a session. Its topic first, so that the partitions of a topic lie together.
pub type PartKey = (TopicKey, i32);

/// What the client wants of a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    pub offset: Offset,
    /// `partition_max_bytes`
    pub bytes_max: u32,
    pub epoch: Option<LeaderEpoch>,
}

/// What the client was told of a partition last. -1 where it was told nothing, or an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Told {
    pub high_watermark: Offset,
    pub log_start: Offset,
}

impl Told {
    pub const NOTHING: Told = Told { high_watermark: Offset(-1), log_start: Offset(-1) };
}

#[derive(Debug)]
struct Session {
    /// Of the next incremental request.
    epoch: i32,
    by_id: bool,
    partitions: BTreeMap<PartKey, (Wanted, Told)>,
    /// The partition behind which the next fetch begins to read, so that each gets its turn under a small limit.
    cursor: Option<PartKey>,
    used: Mono,
}

/// The fetch sessions of one core. Lives on that core; bounded by sessions and by partitions.
#[derive(Debug, Default)]
pub struct Sessions {
    by_id: BTreeMap<i32, Session>,
    /// The one unused longest first.
    by_use: BTreeSet<(Mono, i32)>,
    partitions: usize,
}

/// The partitions of a session at the beginning of a fetch.
#[derive(Debug, Default)]
pub struct Turn {
    /// In the order in which they are to be read.
    pub partitions: Vec<(PartKey, Wanted, Told)>,
    /// From here on they are in the order of their keys, up to the end, and then from the beginning up to here.
    pub first_key_at: usize,
}

/// The epoch after this one: 1 follows the largest.
fn after(epoch: i32) -> i32 {
    epoch.checked_add(1).unwrap_or(1)
}

impl Sessions {
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// In all sessions together.
    pub fn partitions(&self) -> usize {
        self.partitions
    }

    /// Whether there was such a session.
    pub fn close(&mut self, id: i32) -> bool {
        let Some(session) = self.by_id.remove(&id) else { return false };
        self.by_use.remove(&(session.used, id));
        self.partitions -= session.partitions.len();
        true
    }

    /// Opens a session over these partitions and gives its id, or 0 if there is no room for one: then the client goes
    /// on with full fetches. A session that was used in the last two minutes is not closed for a new one; else clients
    /// that open one for each fetch would take the sessions of those that use theirs.
    pub fn open(
        &mut self,
        now: Mono,
        sessions_max: usize,
        by_id: bool,
        partitions: BTreeMap<PartKey, (Wanted, Told)>,
        random: &mut dyn FnMut() -> u64,
    ) -> i32 {
        let wanted = partitions.len();
        if wanted == 0 || wanted > SESSION_PARTITIONS_MAX || sessions_max == 0 {
            return 0;
        }
        while self.len() >= sessions_max || self.partitions + wanted > SESSION_PARTITIONS_MAX {
            let (used, oldest) = *self.by_use.first().expect("what is over a limit is not empty");
            if now.since(used) < Duration::from_millis(SESSION_EVICTION_MS_MIN) {
                return 0;
            }
            self.close(oldest);
        }
        let id = loop {
            let id = (random() & 0x7fff_ffff) as i32;
            if id != 0 && !self.by_id.contains_key(&id) {
                break id;
            }
        };
        self.partitions += wanted;
        self.by_use.insert((now, id));
        self.by_id.insert(id, Session { epoch: 1, by_id, partitions, cursor: None, used: now });
        id
    }

    /// An incremental fetch begins: checks it, takes the changes and gives the partitions to read. If none is left, the
    /// session is closed.
    ///
    /// # Errors
    /// The code for the whole answer; the session is unchanged.
    pub fn advance(
        &mut self,
        now: Mono,
        id: i32,
        epoch: i32,
        by_id: bool,
        changed: Vec<(PartKey, Wanted)>,
        forgotten: &[PartKey],
    ) -> Result<Turn, Code> {
        let session = self.by_id.get_mut(&id).ok_or(Code::FetchSessionIdNotFound)?;
        if session.by_id != by_id {
            return Err(Code::FetchSessionTopicIdError);
        }
        if session.epoch != epoch {
            return Err(Code::InvalidFetchSessionEpoch);
        }
        session.epoch = after(session.epoch);
        self.by_use.remove(&(session.used, id));
        session.used = now;
        self.by_use.insert((now, id));
        let before = session.partitions.len();
        for (key, wanted) in changed {
            session.partitions.entry(key).or_insert((wanted, Told::NOTHING)).0 = wanted;
        }
        for key in forgotten {
            session.partitions.remove(key);
        }
        self.partitions = self.partitions + session.partitions.len() - before;
        let turn = session.turn();
        if turn.partitions.is_empty() {
            self.close(id);
        } else if self.partitions > SESSION_PARTITIONS_MAX {
            self.close(id);
            return Err(Code::FetchSessionIdNotFound);
        }
        Ok(turn)
    }

    pub fn contains(&self, id: i32) -> bool {
        self.by_id.contains_key(&id)
    }

    /// An incremental fetch ends: what it told of these partitions, and which one it returned records of last, in the
    /// order of reading. A session that was closed meanwhile is no matter.
    pub fn told(&mut self, id: i32, told: impl IntoIterator<Item = (PartKey, Told)>, last_read: Option<PartKey>) {
        let Some(session) = self.by_id.get_mut(&id) else { return };
        for (key, told) in told {
            if let Some(partition) = session.partitions.get_mut(&key) {
                partition.1 = told;
            }
        }
        if last_read.is_some() {
            session.cursor = last_read;
        }
    }
}

impl Session {
    fn turn(&self) -> Turn {
        let start = match &self.cursor {
            Some(key) => Bound::Excluded(key),
            None => Bound::Unbounded,
        };
        let copy = |(key, (wanted, told)): (&PartKey, &(Wanted, Told))| (key.clone(), *wanted, *told);
        let mut partitions: Vec<_> = self.partitions.range((start, Bound::Unbounded)).map(copy).collect();
        let first_key_at = partitions.len();
        if let Some(cursor) = &self.cursor {
            partitions.extend(self.partitions.range(..=cursor).map(copy));
        }
        let first_key_at = if first_key_at == partitions.len() { 0 } else { first_key_at };
        Turn { partitions, first_key_at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(n: i32) -> PartKey {
        (TopicKey::Name("t".into()), n)
    }

    fn wanted(offset: i64) -> Wanted {
        Wanted { offset: Offset(offset), bytes_max: 100, epoch: None }
    }

    fn of(keys: std::ops::Range<i32>) -> BTreeMap<PartKey, (Wanted, Told)> {
        keys.map(|n| (key(n), (wanted(0), Told::NOTHING))).collect()
    }

    fn numbers(turn: &Turn) -> Vec<i32> {
        turn.partitions.iter().map(|((_, n), ..)| *n).collect()
    }

    fn counter() -> impl FnMut() -> u64 {
        let mut n = 0xf_8000_0000; // its low 31 bits are 0
        move || {
            n += 1;
            n - 1
        }
    }

    const NOW: Mono = Mono(5);

    fn later(ms: u64) -> Mono {
        NOW + Duration::from_millis(ms)
    }

    /// A client that lost an answer must not go on as if it had it.
    #[test]
    fn only_the_next_epoch_of_a_known_session_goes_on() {
        let mut s = Sessions::default();
        let id = s.open(NOW, 10, false, of(0..3), &mut counter());
        assert!(id > 0);
        let mut advance = |id, epoch, by_id| s.advance(NOW, id, epoch, by_id, vec![], &[]).map(|t| t.partitions.len());
        assert_eq!(advance(id + 1, 1, false), Err(Code::FetchSessionIdNotFound));
        assert_eq!(advance(id, 1, true), Err(Code::FetchSessionTopicIdError));
        for epoch in [2, 3, 100, i32::MAX] {
            assert_eq!(advance(id, epoch, false), Err(Code::InvalidFetchSessionEpoch));
        }
        assert_eq!(advance(id, 1, false), Ok(3));
        assert_eq!(advance(id, 1, false), Err(Code::InvalidFetchSessionEpoch));
        assert_eq!(advance(id, 2, false), Ok(3));
        s.by_id.get_mut(&id).unwrap().epoch = i32::MAX;
        assert!(s.advance(NOW, id, i32::MAX, false, vec![], &[]).is_ok());
        assert!(s.advance(NOW, id, 1, false, vec![], &[]).is_ok());
    }

    /// A position that the session forgot would be read again for ever.
    #[test]
    fn changes_are_kept_and_forgotten_partitions_are_gone() {
        let mut s = Sessions::default();
        let id = s.open(NOW, 10, false, of(0..2), &mut counter());
        s.told(id, [(key(0), Told { high_watermark: Offset(9), log_start: Offset(1) })], None);
        let turn = s.advance(NOW, id, 1, false, vec![(key(0), wanted(5)), (key(7), wanted(6))], &[key(1)]).unwrap();
        assert_eq!(numbers(&turn), [0, 7]);
        assert_eq!((turn.partitions[0].1.offset, turn.partitions[0].2.high_watermark), (Offset(5), Offset(9)));
        assert_eq!(turn.partitions[1].2, Told::NOTHING);
        assert_eq!(s.partitions(), 2);
        assert!(s.advance(NOW, id, 2, false, vec![], &[key(0), key(7)]).unwrap().partitions.is_empty());
        assert_eq!((s.len(), s.partitions(), s.by_use.len()), (0, 0, 0), "a session without partitions is closed");
    }

    /// Under a limit of one batch the first partition would be read for ever, and no other.
    #[test]
    fn the_next_fetch_begins_behind_what_was_read_last() {
        let mut s = Sessions::default();
        let id = s.open(NOW, 10, false, of(0..4), &mut counter());
        for (epoch, last, want, first) in
            [(1, 1, [0, 1, 2, 3], 0), (2, 3, [2, 3, 0, 1], 2), (3, 0, [0, 1, 2, 3], 0), (4, 0, [1, 2, 3, 0], 3)]
        {
            let turn = s.advance(NOW, id, epoch, false, vec![], &[]).unwrap();
            assert_eq!((numbers(&turn), turn.first_key_at), (want.to_vec(), first));
            s.told(id, [], Some(key(last)));
        }
    }

    /// Clients that open a session for each fetch must neither fill the memory nor take the sessions in use.
    #[test]
    fn sessions_are_bounded_and_those_in_use_stay() {
        let mut s = Sessions::default();
        let mut random = counter();
        let ids: Vec<_> = (0..3).map(|_| s.open(NOW, 3, false, of(0..2), &mut random)).collect();
        assert_eq!(s.open(later(1000), 3, false, of(0..2), &mut random), 0);
        s.advance(later(100_000), ids[0], 1, false, vec![], &[]).unwrap();
        let new = s.open(later(SESSION_EVICTION_MS_MIN), 3, false, of(0..2), &mut random);
        assert!(new != 0 && s.contains(ids[0]) && !s.contains(ids[1]) && s.contains(ids[2]));
        assert_eq!((s.len(), s.partitions()), (3, 6));
        assert_eq!(s.open(later(1), 0, false, of(0..2), &mut random), 0);
        assert_eq!(s.open(later(1), 9, false, of(0..0), &mut random), 0);
    }

    /// Few sessions of very many partitions are as bad as many sessions.
    #[test]
    fn the_partitions_of_all_sessions_are_bounded() {
        let mut s = Sessions::default();
        let half = SESSION_PARTITIONS_MAX as i32 / 2;
        let id = s.open(NOW, 10, false, of(0..half), &mut counter());
        let more: Vec<_> = (half..2 * half + 1).map(|n| (key(n), wanted(0))).collect();
        assert!(matches!(s.advance(NOW, id, 1, false, more, &[]), Err(Code::FetchSessionIdNotFound)));
        assert_eq!((s.len(), s.partitions()), (0, 0));
    }

    proptest! {
        /// What is counted is what is there, whatever clients do.
        #[test]
        fn the_books_are_right(
            steps in proptest::collection::vec((0_u8..4, 0_i32..8, 0_i32..6, 0_u64..100_000), 1..80),
        ) {
            let mut s = Sessions::default();
            let (mut random, mut ids, mut now) = (counter(), vec![], 0);
            for (what, a, b, ms) in steps {
                now += ms;
                let now = later(now);
                let known = ids.get(a as usize).copied().unwrap_or(77);
                match what {
                    0 => ids.push(s.open(now, 4, false, of(a..a + b), &mut random)),
                    1 => {
                        let epoch = s.by_id.get(&known).map_or(1, |s| s.epoch);
                        let _ = s.advance(now, known, epoch, false, vec![(key(b), wanted(1))], &[key(a)]);
                    }
                    2 => s.told(known, [(key(b), Told::NOTHING)], Some(key(a))),
                    _ => { s.close(known); }
                }
                prop_assert!(s.len() <= 4 && s.by_use.len() == s.len());
                prop_assert_eq!(s.partitions(), s.by_id.values().map(|s| s.partitions.len()).sum::<usize>());
                for session in s.by_id.values() {
                    let turn = session.turn();
                    prop_assert_eq!(turn.partitions.len(), session.partitions.len());
                    let mut sorted = numbers(&turn);
                    sorted.rotate_left(turn.first_key_at);
                    prop_assert!(sorted.is_sorted());
                }
            }
        }
    }
}
