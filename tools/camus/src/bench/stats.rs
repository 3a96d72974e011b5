//! What a run adds up to: a histogram, a line a second, errors by name. Bounded, whatever is measured.

use super::load::Window;
use crate::percentiles::histogram;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;

/// Kinds of errors that are counted apart.
const ERROR_NAMES_MAX: usize = 64;

/// One second of the run, by when the answers came.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Second {
    pub second: u64,
    pub requests: u64,
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

/// The measurements of one run. Lives on the driving thread.
#[derive(Debug)]
pub struct Recorder {
    pub window: Window,
    pub latency: Histogram<u64>,
    second: Histogram<u64>,
    second_end_ns: u64,
    pub timeline: Vec<Second>,
    pub errors: BTreeMap<String, u64>,
    pub records: u64,
    pub bytes: u64,
    /// When the last answer of the window came.
    pub last_ns: u64,
}

impl Recorder {
    pub fn new(window: Window) -> Recorder {
        Recorder {
            window,
            latency: histogram(),
            second: histogram(),
            second_end_ns: window.from_ns + 1_000_000_000,
            timeline: Vec::new(),
            errors: BTreeMap::new(),
            records: 0,
            bytes: 0,
            last_ns: window.from_ns,
        }
    }

    /// A request that began (or was due) at `start_ns` was answered.
    pub fn answered(&mut self, start_ns: u64, now_ns: u64, records: u64, bytes: u64) {
        if !self.window.has(start_ns) {
            return;
        }
        self.turn_seconds(now_ns);
        let latency = now_ns.saturating_sub(start_ns).max(1);
        self.latency.saturating_record(latency);
        self.second.saturating_record(latency);
        self.records += records;
        self.bytes += bytes;
        self.last_ns = now_ns;
    }

    pub fn failed(&mut self, start_ns: u64, name: &str) {
        self.failed_times(start_ns, name, 1);
    }

    pub fn failed_times(&mut self, start_ns: u64, name: &str, times: u64) {
        if times == 0 || !self.window.has(start_ns) {
            return;
        }
        let name = if self.errors.len() < ERROR_NAMES_MAX { name } else { "OTHERS" };
        *self.errors.entry(name.to_owned()).or_default() += times;
    }

    /// Closes the seconds that are over.
    pub fn turn_seconds(&mut self, now_ns: u64) {
        while now_ns >= self.second_end_ns {
            let second = self.timeline.len() as u64;
            let us = |ns: u64| ns as f64 / 1e3;
            self.timeline.push(Second {
                second,
                requests: self.second.len(),
                p50: us(self.second.value_at_quantile(0.5)),
                p99: us(self.second.value_at_quantile(0.99)),
                max: us(self.second.max()),
            });
            self.second.reset();
            self.second_end_ns += 1_000_000_000;
        }
    }

    pub fn requests(&self) -> u64 {
        self.latency.len()
    }

    /// From the beginning of the window to its end or to its last answer, whichever came later.
    pub fn seconds(&self) -> f64 {
        (self.last_ns.max(self.window.end_ns) - self.window.from_ns) as f64 / 1e9
    }
}

/// To so many digits after the point: more are noise, and no reader of JSON needs them.
pub fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

/// Percentile and latency in µs, finer towards the end: ten steps for each halving of what is left.
pub fn distribution(histogram: &Histogram<u64>) -> Vec<(f64, f64)> {
    histogram
        .iter_quantiles(10)
        .map(|v| (rounded((v.quantile_iterated_to() * 100.0).min(100.0), 8), v.value_iterated_to() as f64 / 1e3))
        .collect()
}
