//! What must not go back: high watermarks, log starts, and what groups committed.
//!
//! One thing was before another if it had ended when the other began. Of one process and one moment, the one that
//! stands first in the history was first.

use crate::anomaly::{Anomaly, Found};
use crate::history::{Event, Op, Outcome, Partition, Which};
use std::collections::BTreeMap;

/// A moment, and the place in the history that decides between equals.
type Moment = (u64, usize);

/// A mark as it was shown to a client.
#[derive(Clone, Copy)]
struct Shown {
    invoked: Moment,
    completed: Moment,
    mark: i64,
    /// Only a lower bound for what is shown later: it is not judged itself.
    bound: bool,
}

/// What one process was shown of one partition.
#[derive(Default)]
struct Marks {
    high_watermarks: Vec<Shown>,
    log_starts: Vec<Shown>,
}

/// No client is shown a high watermark or a log start below one that it knows. What the partitions hold in the end is
/// shown to all.
pub(crate) fn check_watermarks(history: &[Event], found: &mut Found) {
    for ((partition, process), marks) in marks(history) {
        for (at_ns, before, after) in steps_back(&marks.high_watermarks) {
            let partition = partition.clone();
            found.push(Anomaly::HighWatermarkBack { partition, process, at_ns, before, after });
        }
        for (at_ns, before, after) in steps_back(&marks.log_starts) {
            let partition = partition.clone();
            found.push(Anomaly::LogStartBack { partition, process, at_ns, before, after });
        }
    }
}

fn marks(history: &[Event]) -> BTreeMap<(&Partition, u32), Marks> {
    let mut all: BTreeMap<(&Partition, u32), Marks> = BTreeMap::new();
    for (at, event) in history.iter().enumerate() {
        let shown = |mark, bound| shown(at, event, mark, bound);
        match &event.op {
            Op::Read(read) => {
                let marks = all.entry((&read.partition, event.process)).or_default();
                marks.high_watermarks.push(shown(read.high_watermark, false));
                if read.log_start >= 0 {
                    marks.log_starts.push(shown(read.log_start, false));
                }
            }
            Op::ListOffset(list) => {
                let marks = all.entry((&list.partition, event.process)).or_default();
                match list.which {
                    Which::Earliest => marks.log_starts.push(shown(list.offset, false)),
                    Which::Latest => marks.high_watermarks.push(shown(list.offset, false)),
                }
            }
            Op::Trim(trim) if trim.outcome == Outcome::Acked && trim.offset >= 0 => {
                let marks = all.entry((&trim.partition, event.process)).or_default();
                marks.log_starts.push(shown(trim.offset, true));
            }
            Op::Produce(_) | Op::CommitOffset(_) | Op::FetchOffset(_) | Op::Trim(_) | Op::Final(_) => {}
            Op::EpochStart(_) | Op::EpochEnd(_) => {}
            Op::Assigned(_) | Op::Stays(_) | Op::Revoked(_) | Op::Lost(_) => {}
        }
    }
    for (at, event) in history.iter().enumerate() {
        let Op::Final(last) = &event.op else { continue };
        let end = last.records.last().map_or(last.log_start, |(offset, _)| offset + 1);
        for (_, marks) in all.iter_mut().filter(|((partition, _), _)| **partition == last.partition) {
            marks.high_watermarks.push(shown(at, event, end, false));
            marks.log_starts.push(shown(at, event, last.log_start, false));
        }
    }
    all
}

fn shown(at: usize, event: &Event, mark: i64, bound: bool) -> Shown {
    Shown { invoked: (event.invoked_ns, at), completed: (event.completed_ns, at), mark, bound }
}

/// Each mark below the highest that was known before it was asked for: when it came, the highest, and the mark.
fn steps_back(shown: &[Shown]) -> Vec<(u64, i64, i64)> {
    let mut begun: Vec<&Shown> = shown.iter().filter(|one| !one.bound).collect();
    begun.sort_by_key(|one| one.invoked);
    let mut ended: Vec<&Shown> = shown.iter().collect();
    ended.sort_by_key(|one| one.completed);
    let mut ended = ended.into_iter().peekable();
    let mut highest = i64::MIN;
    let mut back = Vec::new();
    for one in begun {
        while let Some(earlier) = ended.next_if(|earlier| earlier.completed < one.invoked) {
            highest = highest.max(earlier.mark);
        }
        if one.mark < highest {
            back.push((one.completed.0, highest, one.mark));
        }
    }
    back
}

/// A commit that may have taken effect, or a fetch, which shows that one did.
#[derive(Clone, Copy)]
struct Commit {
    invoked: Moment,
    /// Of one without an answer: never.
    completed: Moment,
    offset: i64,
}

/// Of one group and partition.
#[derive(Default)]
struct Committed {
    commits: Vec<Commit>,
    fetches: Vec<Commit>,
}

/// A group is given the offset that was committed last, or one whose commit was under way meanwhile. An offset may be
/// lower than the one before it: a group may go back, the broker may not.
pub(crate) fn check_committed_offsets(history: &[Event], found: &mut Found) {
    for ((group, partition), committed) in committed(history) {
        for fetch in &committed.fetches {
            let known = committed.known_before(fetch);
            if committed.explains(known.as_ref(), fetch) {
                continue;
            }
            let (group, partition, at_ns) = (group.to_owned(), partition.clone(), fetch.completed.0);
            let ever = fetch.offset < 0 || committed.explains(None, fetch);
            found.push(match known {
                Some(known) if ever => {
                    let (before, after) = (known.offset, fetch.offset);
                    Anomaly::CommittedOffsetBack { group, partition, at_ns, before, after }
                }
                _ => Anomaly::CommittedOffsetInvented { group, partition, at_ns, offset: fetch.offset },
            });
        }
    }
}

fn committed(history: &[Event]) -> BTreeMap<(&str, &Partition), Committed> {
    let mut all: BTreeMap<(&str, &Partition), Committed> = BTreeMap::new();
    for (at, event) in history.iter().enumerate() {
        let (invoked, completed) = ((event.invoked_ns, at), (event.completed_ns, at));
        match &event.op {
            Op::CommitOffset(commit) if commit.outcome != Outcome::Failed => {
                let completed = if commit.outcome == Outcome::Acked { completed } else { (u64::MAX, at) };
                let of = all.entry((commit.group.as_str(), &commit.partition)).or_default();
                of.commits.push(Commit { invoked, completed, offset: commit.offset });
            }
            Op::FetchOffset(fetch) => {
                let of = all.entry((fetch.group.as_str(), &fetch.partition)).or_default();
                of.fetches.push(Commit { invoked, completed, offset: fetch.offset });
            }
            Op::CommitOffset(_) | Op::Produce(_) | Op::Read(_) | Op::ListOffset(_) | Op::Trim(_) | Op::Final(_) => {}
            Op::EpochStart(_) | Op::EpochEnd(_) => {}
            Op::Assigned(_) | Op::Stays(_) | Op::Revoked(_) | Op::Lost(_) => {}
        }
    }
    all
}

impl Committed {
    /// What had certainly taken effect before this fetch: the commit or fetch that ended last.
    fn known_before(&self, fetch: &Commit) -> Option<Commit> {
        let all = self.commits.iter().chain(&self.fetches);
        all.filter(|one| one.completed < fetch.invoked).max_by_key(|one| one.completed).copied()
    }

    /// Whether there is a commit that this fetch may have seen, though `known` had taken effect before it.
    fn explains(&self, known: Option<&Commit>, fetch: &Commit) -> bool {
        let untouched = match known {
            None => fetch.offset < 0,
            Some(known) => known.offset == fetch.offset,
        };
        let may_be_seen = |commit: &Commit| {
            let still = known.is_none_or(|known| commit.completed > known.invoked);
            commit.offset == fetch.offset && still && commit.invoked < fetch.completed
        };
        untouched || self.commits.iter().any(may_be_seen)
    }
}
