//! Latencies as they are reported: percentiles in microseconds, from an HDR histogram of nanoseconds.

use hdrhistogram::Histogram;
use serde::Serialize;

/// What a histogram can hold, ns: an hour. Longer counts as this.
const NS_MAX: u64 = 3_600_000_000_000;

/// The percentiles that every measurement reports, us. All 0 where nothing was measured.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Percentiles {
    pub count: u64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
    pub mean: f64,
}

/// An empty histogram of ns: 1 ns to an hour, 3 digits; 250 KiB.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, NS_MAX, 3).expect("the bounds are sound")
}

impl Percentiles {
    pub fn of(samples_ns: &Histogram<u64>) -> Percentiles {
        let us = |ns: f64| (ns / 10.0).round() / 100.0;
        let at = |quantile| us(samples_ns.value_at_quantile(quantile) as f64);
        Percentiles {
            count: samples_ns.len(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: us(samples_ns.max() as f64),
            mean: us(samples_ns.mean()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lost if it fails: every figure that is published.
    #[test]
    fn percentiles_are_microseconds_of_what_was_recorded() {
        let mut samples = histogram();
        for us in 1..=1000u64 {
            samples.saturating_record(us * 1000);
        }
        let seen = Percentiles::of(&samples);
        assert_eq!(seen.count, 1000);
        for (value, wanted) in [(seen.p50, 500.0), (seen.p90, 900.0), (seen.p99, 990.0), (seen.mean, 500.5)] {
            assert!((value - wanted).abs() <= wanted / 500.0, "{value} is not {wanted}");
        }
        assert!(seen.p999 <= seen.max && (seen.max - 1000.0).abs() < 1.0);
        samples.saturating_record(u64::MAX);
        assert!(Percentiles::of(&samples).max >= 3.6e9 * 0.99, "more than an hour counts as one");
        assert_eq!(Percentiles::of(&histogram()), Percentiles::default());
    }
}
