//! The metrics page: what each core counts, in Prometheus' text format. Read at the moment of the scrape.

use crate::board::Board;
use camus_engine::stats::{BOUNDS_US, Histogram};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics: `camus_*` of the cores, and `process_*` under the names that every exporter uses.
pub fn registry(board: Arc<Board>) -> Registry {
    let mut registry = Registry::default();
    registry.sub_registry_with_prefix("camus").register_collector(Box::new(CoreMetrics { board }));
    registry.register_collector(Box::new(ProcessMetrics));
    registry
}

/// Makes the page.
pub fn page(registry: &Registry) -> Result<String, fmt::Error> {
    let mut text = String::new();
    prometheus_text::encode(&mut text, registry)?;
    Ok(text)
}

fn counter(encoder: &mut MetricEncoder<'_>, value: f64) -> fmt::Result {
    encoder.encode_counter::<NoLabelSet, f64, f64>(&value, None)
}

fn whole(encoder: &mut MetricEncoder<'_>, value: u64) -> fmt::Result {
    encoder.encode_counter::<NoLabelSet, u64, f64>(&value, None)
}

#[derive(Debug)]
struct CoreMetrics {
    board: Arc<Board>,
}

impl Collector for CoreMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let label = |core: usize| [("core", core.to_string())];
        let cores = || self.board.cores.iter().enumerate();

        // Counters and gauges under their own names; memory is one family, by budget (below).
        let names = self.board.cores.first().map(|c| c.stats.counters.read()).unwrap_or_default();
        for (position, (name, help, _)) in names.iter().enumerate().filter(|(_, (name, ..))| budget_of(name).is_none())
        {
            let help = help.trim_end_matches('.');
            let value = |core: &crate::board::CoreBoard| core.stats.counters.read()[position].2;
            match name.strip_suffix("_total") {
                Some(name) => {
                    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
                    for (number, core) in cores() {
                        whole(&mut family.encode_family(&label(number))?, value(core))?;
                    }
                }
                None => {
                    let help = help.trim_end_matches(" (gauge)");
                    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                    for (number, core) in cores() {
                        family.encode_family(&label(number))?.encode_gauge(&value(core))?;
                    }
                }
            }
        }

        let help = "What one durable write of the WAL carried on average since the start, bytes";
        let mut family = encoder.encode_descriptor("wal_bytes_per_flush", help, None, MetricType::Gauge)?;
        for (number, core) in cores() {
            let counters = &core.stats.counters;
            let groups = counters.wal_groups_total.load(Ordering::Relaxed);
            let bytes = counters.wal_bytes_total.load(Ordering::Relaxed);
            let mean = if groups == 0 { 0.0 } else { bytes as f64 / groups as f64 };
            family.encode_family(&label(number))?.encode_gauge(&mean)?;
        }
        let help = "Durable writes of the WAL (one for each block group)";
        let mut family = encoder.encode_descriptor("wal_flushes", help, None, MetricType::Counter)?;
        for (number, core) in cores() {
            let groups = core.stats.counters.wal_groups_total.load(Ordering::Relaxed);
            whole(&mut family.encode_family(&label(number))?, groups)?;
        }

        let help = "Bytes held, by the budget they are held under";
        let mut family = encoder.encode_descriptor("memory_bytes", help, None, MetricType::Gauge)?;
        for (number, core) in cores() {
            for (name, _, value) in core.stats.counters.read() {
                if let Some(budget) = budget_of(name) {
                    let labels = [("core", number.to_string()), ("budget", budget.to_owned())];
                    family.encode_family(&labels)?.encode_gauge(&value)?;
                }
            }
        }
        let budgets = &self.board.budgets;
        let budgets = [
            ("wal", budgets.wal_bytes),
            ("reads", budgets.reads_bytes),
            ("clients", budgets.clients_bytes),
            ("index", budgets.index_bytes),
        ];
        let help = "What may be held, by budget (the core's share of camus.memory)";
        let mut family = encoder.encode_descriptor("memory_budget_bytes", help, None, MetricType::Gauge)?;
        for (number, _) in cores() {
            for (budget, bytes) in budgets {
                let labels = [("core", number.to_string()), ("budget", budget.to_owned())];
                family.encode_family(&labels)?.encode_gauge(&(bytes as u64))?;
            }
        }

        let help = "Time that requests spent in a stage";
        let mut family = encoder.encode_descriptor("stage_seconds", help, None, MetricType::Histogram)?;
        for (number, core) in cores() {
            let stages = &core.stats.stages;
            let stages: [(&str, &Histogram); 5] = [
                ("decode", &stages.decode),
                ("queue", &stages.queue),
                ("wal_write", &stages.wal_write),
                ("commit", &stages.commit),
                ("send", &stages.send),
            ];
            for (stage, histogram) in stages {
                let labels = [("core", number.to_string()), ("stage", stage.to_owned())];
                let (counts, sum_ns) = histogram.read();
                let bounds = BOUNDS_US.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
                let buckets: Vec<(f64, u64)> = bounds.zip(counts.iter().copied()).collect();
                family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(
                    sum_ns as f64 / 1e9,
                    counts.iter().sum(),
                    &buckets,
                    None,
                )?;
            }
        }

        let help = "Turns of the core's loop";
        let mut family = encoder.encode_descriptor("loop_turns", help, None, MetricType::Counter)?;
        for (number, core) in cores() {
            let turns = core.stats.turns.turns.load(Ordering::Relaxed);
            whole(&mut family.encode_family(&label(number))?, turns)?;
        }
        let help = "Completions that the core's loop handled";
        let mut family = encoder.encode_descriptor("loop_events", help, None, MetricType::Counter)?;
        for (number, core) in cores() {
            let events = core.stats.turns.events.load(Ordering::Relaxed);
            whole(&mut family.encode_family(&label(number))?, events)?;
        }
        let help = "Time spent in turns, not waiting";
        let mut family = encoder.encode_descriptor("loop_busy_seconds", help, None, MetricType::Counter)?;
        for (number, core) in cores() {
            let busy = core.stats.turns.busy_ns.load(Ordering::Relaxed);
            counter(&mut family.encode_family(&label(number))?, busy as f64 / 1e9)?;
        }
        let help = "The longest turn since the last scrape";
        let mut family = encoder.encode_descriptor("loop_turn_seconds_max", help, None, MetricType::Gauge)?;
        for (number, core) in cores() {
            let longest = core.stats.turns.turn_ns_max.swap(0, Ordering::Relaxed);
            family.encode_family(&label(number))?.encode_gauge(&(longest as f64 / 1e9))?;
        }

        let help = "1 if the broker takes produce and fetch on every core";
        let mut family = encoder.encode_descriptor("ready", help, None, MetricType::Gauge)?;
        family.encode_gauge(&u64::from(self.board.reasons().is_empty()))?;

        let mut family = encoder.encode_descriptor("build_info", "What runs", None, MetricType::Gauge)?;
        let labels = [
            ("version", env!("CARGO_PKG_VERSION")),
            ("profile", if cfg!(debug_assertions) { "debug" } else { "release" }),
        ];
        family.encode_family(&labels)?.encode_gauge(&1u64)
    }
}

/// `memory_wal_bytes` is held under the budget `wal`.
fn budget_of(name: &str) -> Option<&str> {
    name.strip_prefix("memory_")?.strip_suffix("_bytes")
}

#[derive(Debug)]
struct ProcessMetrics;

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Resident memory, bytes";
        let mut metric = encoder.encode_descriptor("process_resident_memory_bytes", help, None, MetricType::Gauge)?;
        metric.encode_gauge(&resident_bytes().unwrap_or(0))?;
        let help = "Open file descriptors";
        let mut metric = encoder.encode_descriptor("process_open_fds", help, None, MetricType::Gauge)?;
        metric.encode_gauge(&std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64))
    }
}

/// RSS as the kernel counts it.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Budgets;
    use camus_engine::stats::Counters;

    fn board() -> Arc<Board> {
        Arc::new(Board::new(2, Budgets::of_core(1 << 30, 2)))
    }

    /// If this fails, dashboards and alerts look for names that are not there.
    #[test]
    fn the_page_has_each_counter_gauge_and_stage_of_each_core() {
        let board = board();
        let stats = &board.cores[1].stats;
        Counters::add(&stats.counters.wal_groups_total, 4);
        Counters::add(&stats.counters.wal_bytes_total, 16384);
        Counters::set(&stats.counters.memory_clients_bytes, 77);
        Counters::set(&stats.counters.connections, 5);
        stats.stages.wal_write.record_ns(150_000);
        stats.turns.turn_ns_max.store(2_000_000, Ordering::Relaxed);
        let registry = registry(Arc::clone(&board));
        let text = page(&registry).expect("it formats");
        for line in [
            "camus_wal_groups_total{core=\"1\"} 4",
            "camus_wal_flushes_total{core=\"1\"} 4",
            "camus_wal_bytes_per_flush{core=\"1\"} 4096",
            "camus_memory_bytes{core=\"1\",budget=\"clients\"} 77",
            "camus_memory_budget_bytes{core=\"0\",budget=\"wal\"} 236223201",
            "camus_connections{core=\"1\"} 5",
            "camus_stage_seconds_bucket{core=\"1\",stage=\"wal_write\",le=\"0.0001\"} 0",
            "camus_stage_seconds_bucket{core=\"1\",stage=\"wal_write\",le=\"0.0002\"} 1",
            "camus_stage_seconds_bucket{core=\"1\",stage=\"wal_write\",le=\"+Inf\"} 1",
            "camus_stage_seconds_sum{core=\"1\",stage=\"wal_write\"} 0.00015",
            "camus_stage_seconds_count{core=\"0\",stage=\"send\"} 0",
            "camus_loop_turn_seconds_max{core=\"1\"} 0.002",
            "camus_ready 0",
        ] {
            assert!(text.lines().any(|l| l == line || l == format!("{line}.0")), "{line} is missing:\n{text}");
        }
        assert!(text.contains("camus_build_info{version="));
        assert!(text.contains("# TYPE camus_wal_groups_total counter"), "{text}");
        for (name, ..) in stats.counters.read() {
            assert!(budget_of(name).is_some() || text.contains(&format!("\ncamus_{name}{{core=\"0\"}}")), "{name}");
        }
        let resident = text.lines().find_map(|l| l.strip_prefix("process_resident_memory_bytes "));
        assert!(resident.and_then(|r| r.parse::<u64>().ok()).is_some_and(|bytes| bytes > 1 << 20), "{text}");
        let again = page(&registry).expect("it formats");
        assert!(again.contains("camus_loop_turn_seconds_max{core=\"1\"} 0"), "the longest is of one interval");
    }
}
