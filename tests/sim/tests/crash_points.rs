//! Some of the boundaries of a short life; `camus-sim crash-points` tries them all.

use camus_sim::crash_points::{Boundaries, Kind};
use camus_sim::runner::{names, spread};

/// Boundaries of each kind of life that are tried here.
const TRIED: u64 = 8;

/// Lost if it fails: promises 1 to 4, at a moment of a write, a flush or an answer that no random crash has met.
#[test]
fn a_crash_at_a_boundary_loses_nothing_that_was_acknowledged() {
    let boundaries = Boundaries::of(1).expect("a life without a crash");
    assert_eq!(Ok(boundaries), Boundaries::of(1), "the same seed has the same boundaries");
    let mut chosen = Vec::new();
    let mut before = 0;
    for kind in Kind::ALL {
        let all = boundaries.of_kind(kind);
        assert!(all > 100, "{boundaries:?}");
        chosen.extend((1..=TRIED).map(|n| before + all * n / TRIED));
        before += all;
    }
    let (mut tried, mut failed) = ([0; Kind::ALL.len()], Vec::new());
    let try_nth = |n: u64| boundaries.try_one(chosen[n as usize]);
    spread(0..chosen.len() as u64, 2, try_nth, |one| {
        tried[one.kind as usize] += 1;
        if !one.failures.is_empty() {
            let (names, replay) = (names(&one.failures), boundaries.replay(one.boundary));
            failed.push(format!("boundary {}: {names}: {}; {replay}", one.boundary, one.failures[0].text));
        }
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert_eq!(tried, [TRIED; Kind::ALL.len()]);
}
