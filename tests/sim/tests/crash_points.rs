//! Some of the boundaries of a short life; `camus-sim crash-points` tries them all.

use camus_sim::crash_points::{Boundaries, Kind};
use camus_sim::runner::{names, spread};

/// Boundaries that are tried here.
const TRIED: u64 = 60;

/// Lost if it fails: promises 1 to 4, at a moment of a write, a flush or an answer that no random crash has met.
#[test]
fn a_crash_at_a_boundary_loses_nothing_that_was_acknowledged() {
    let boundaries = Boundaries::of(1).expect("a life without a crash");
    assert_eq!(Ok(boundaries), Boundaries::of(1), "the same seed has the same boundaries");
    let Boundaries { one, two, cluster, .. } = boundaries;
    assert!(one > 100 && two > 100 && cluster > 100, "{boundaries:?}");
    let (chosen, _) = boundaries.chosen(TRIED);
    let (mut tried, mut of_clusters, mut failed) = (0, 0, Vec::new());
    let try_nth = |n: u64| boundaries.try_one(chosen[n as usize]);
    spread(0..chosen.len() as u64, 2, try_nth, |one| {
        tried += 1;
        of_clusters += usize::from(one.kind == Kind::Cluster);
        if !one.failures.is_empty() {
            let (names, replay) = (names(&one.failures), boundaries.replay(one.boundary));
            failed.push(format!("boundary {}: {names}: {}; {replay}", one.boundary, one.failures[0].text));
        }
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!((30..=TRIED).contains(&tried) && of_clusters > 5, "{tried} were tried, {of_clusters} of clusters");
}
