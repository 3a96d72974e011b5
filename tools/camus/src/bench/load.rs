//! When requests are due: pure, so that what an open loop promises can be tested.

/// The times of an open loop: request `k` is due at `start + k / rate`, whatever became of those before it. Nothing is
/// moved when the other side is slow; a late request counts from when it was due (no coordinated omission).
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    start_ns: u64,
    interval_ns: f64,
}

impl Schedule {
    /// `rate`: requests a second, above 0.
    pub fn new(start_ns: u64, rate: f64) -> Schedule {
        Schedule { start_ns, interval_ns: 1e9 / rate }
    }

    /// When request `k` is due.
    pub fn due_ns(&self, k: u64) -> u64 {
        self.start_ns + (k as f64 * self.interval_ns) as u64
    }

    pub fn interval_ns(&self) -> u64 {
        self.interval_ns as u64
    }
}

/// The share of one connection of an open loop: every `stride`-th request. No queue is kept: what is due and not sent
/// is what the numbers say.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    next: u64,
    stride: u64,
}

impl Share {
    pub fn new(connection: usize, connections: usize) -> Share {
        Share { next: connection as u64, stride: connections as u64 }
    }

    /// When the next request of this connection is due.
    pub fn due_ns(&self, schedule: &Schedule) -> u64 {
        schedule.due_ns(self.next)
    }

    /// The next request if it is due before `now_ns` (and before `end_ns`, when the load ends).
    pub fn take(&mut self, schedule: &Schedule, now_ns: u64, end_ns: u64) -> Option<u64> {
        let due = self.due_ns(schedule);
        (due <= now_ns && due < end_ns).then(|| {
            self.next += self.stride;
            due
        })
    }

    /// Requests that are due before `end_ns` and were never taken.
    pub fn left(&self, schedule: &Schedule, end_ns: u64) -> u64 {
        (self.next..).step_by(self.stride as usize).take_while(|k| schedule.due_ns(*k) < end_ns).count() as u64
    }
}

/// A connection's partitions: with more partitions than connections each has its own, with fewer they share.
pub fn partitions_of(connection: usize, connections: usize, partitions: i32) -> Vec<i32> {
    let (c, n) = (connection as i32, connections as i32);
    match partitions >= n {
        true => (c..partitions).step_by(connections).collect(),
        false => vec![c % partitions],
    }
}

/// What is measured: from `from_ns` to `end_ns`; before it is warm-up.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub from_ns: u64,
    pub end_ns: u64,
}

impl Window {
    pub fn has(&self, ns: u64) -> bool {
        (self.from_ns..self.end_ns).contains(&ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lost if it fails: the times of requests that a slow broker delayed, and with them the tail of every open loop.
    #[test]
    fn a_schedule_does_not_move_when_nobody_takes_from_it() {
        let schedule = Schedule::new(1_000, 500.0);
        let mut share = Share::new(0, 1);
        assert_eq!(share.take(&schedule, 1_000, u64::MAX), Some(1_000));
        assert_eq!(share.take(&schedule, 1_999_999, u64::MAX), None, "not yet due");
        // 200 ms pass: a hundred requests are due, each at its own time.
        let late: Vec<u64> = std::iter::from_fn(|| share.take(&schedule, 200_001_000, u64::MAX)).collect();
        assert_eq!(late.len(), 100);
        assert_eq!((late[0], late[99]), (2_001_000, 200_001_000));
    }

    #[test]
    fn connections_share_a_schedule_without_a_gap_and_without_a_double() {
        let schedule = Schedule::new(0, 1e9);
        let mut all = Vec::new();
        for c in 0..3 {
            let mut share = Share::new(c, 3);
            all.extend(std::iter::from_fn(|| share.take(&schedule, 100, 50)));
            assert_eq!(share.left(&schedule, 50), 0);
        }
        all.sort_unstable();
        assert_eq!(all, (0..50).collect::<Vec<u64>>());
        assert_eq!(Share::new(1, 3).left(&schedule, 50), 17);
    }

    #[test]
    fn each_partition_has_a_connection_and_each_connection_a_partition() {
        for (connections, partitions) in [(1, 1), (1, 7), (4, 256), (8, 3), (5, 5), (3, 7)] {
            let mut seen: Vec<i32> = (0..connections).flat_map(|c| partitions_of(c, connections, partitions)).collect();
            assert!((0..connections).all(|c| !partitions_of(c, connections, partitions).is_empty()));
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen, (0..partitions).collect::<Vec<_>>());
        }
    }
}
