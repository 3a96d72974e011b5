//! What a core counts. Written by its thread, read by the housekeeping thread; nothing here decides anything.

use std::sync::atomic::{AtomicU64, Ordering};

/// A histogram of durations: fixed bounds in microseconds, lock-free, one writer.
#[derive(Debug)]
pub struct Histogram {
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    sum_ns: AtomicU64,
}

/// Upper bounds of the buckets, us.
pub const BOUNDS_US: [u64; 20] = [
    5, 10, 20, 50, 100, 200, 300, 500, 750, 1_000, 2_000, 3_000, 5_000, 10_000, 20_000, 50_000, 100_000, 500_000,
    1_000_000, 10_000_000,
];

impl Default for Histogram {
    fn default() -> Self {
        Histogram { buckets: std::array::from_fn(|_| AtomicU64::new(0)), sum_ns: AtomicU64::new(0) }
    }
}

impl Histogram {
    pub fn record_ns(&self, ns: u64) {
        let us = ns / 1_000;
        let bucket = BOUNDS_US.partition_point(|bound| *bound < us);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Counts per bucket (the last one has no upper bound), and the sum in ns.
    pub fn read(&self) -> (Vec<u64>, u64) {
        let counts = self.buckets.iter().map(|b| b.load(Ordering::Relaxed)).collect();
        (counts, self.sum_ns.load(Ordering::Relaxed))
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident),* $(,)?) => {
        /// Counters and gauges of one core, as the metrics page names them (`camus_` + name).
        #[derive(Default, Debug)]
        pub struct Counters { $($(#[doc = $doc])* pub $name: AtomicU64,)* }
        impl Counters {
            /// Name, help and value of each.
            pub fn read(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($name), concat!($($doc),*).trim(), self.$name.load(Ordering::Relaxed)),)*]
            }
        }
    };
}

counters! {
    /// Block groups written to the WAL.
    wal_groups_total,
    /// Bytes written to the WAL, padding included.
    wal_bytes_total,
    /// Bytes of acknowledged record batches.
    produce_bytes_total,
    /// Record batches appended.
    produce_batches_total,
    /// Record batches that were refused.
    produce_refused_total,
    /// Retries answered with the offset of the original.
    produce_duplicates_total,
    /// Bytes of record batches read for fetches.
    fetch_bytes_total,
    /// Reads of record batches that had to go to the disk.
    fetch_disk_reads_total,
    /// Requests read from the wire.
    requests_total,
    /// Connections accepted.
    connections_total,
    /// Connections open now (gauge).
    connections,
    /// Bytes held in WAL buffers: open groups, in flight, tail cache (gauge).
    memory_wal_bytes,
    /// Bytes of what was read from the disk: in flight, kept, in answers (gauge).
    memory_reads_bytes,
    /// Bytes held for clients: requests, parts of requests, answers (gauge).
    memory_clients_bytes,
    /// Bytes held by the index of batches (gauge).
    memory_index_bytes,
    /// WAL bytes in use on the disk (gauge).
    wal_disk_bytes,
    /// Partitions on this core (gauge).
    partitions,
    /// Replicas that do not catch up: what they lack is in their leader's log no more (gauge).
    replicas_left_behind,
}

/// Latency of a request's stages on one core.
#[derive(Default, Debug)]
pub struct Stages {
    /// From the last byte of the frame to the end of its decoding.
    pub decode: Histogram,
    /// From there until its batch is in a WAL group (waiting for room included).
    pub queue: Histogram,
    /// From the submission of a group's write to its completion.
    pub wal_write: Histogram,
    /// From a batch's append to its commit.
    pub commit: Histogram,
    /// From the answer to the last byte of it with the kernel.
    pub send: Histogram,
}

#[derive(Default, Debug)]
pub struct CoreStats {
    pub counters: Counters,
    pub stages: Stages,
    pub turns: crate::rt::LoopStats,
}

impl Counters {
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    pub fn set(gauge: &AtomicU64, n: u64) {
        gauge.store(n, Ordering::Relaxed);
    }
}
