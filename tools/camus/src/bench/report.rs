//! What a run came to: the JSON that scripts read, and the text that a person reads.

use super::cluster::Says;
use super::device::Device;
use super::drive::{NOT_ARRIVED, NOT_SENT};
use super::flags::{BenchArgs, Mode};
use super::run::{Measured, Sample};
use super::stats::{self, Second, rounded};
use crate::out;
use crate::percentiles::Percentiles;
use crate::waltest::Floor;
use clap::ValueEnum;
use serde::Serialize;
use std::collections::BTreeMap;

/// Whatever is in flight: with fewer flushes (or writes) than this for each acknowledged request, the broker answers
/// without them.
const FLUSHES_MIN: f64 = 0.001;
/// Of the flushes that there must be at least. What is acknowledged at the edges of the measured time may differ.
const FLUSHES_SURE: f64 = 0.9;

/// Of the rate that was asked for: below this an open loop did not keep up, if half of its requests waited this long.
const OVERLOADED: f64 = 0.95;
const QUEUED_NS: u64 = 1_000_000;
/// Columns of a sentence in the text.
const WRAP: usize = 100;
/// Of fewer samples a percentile is the largest or nothing.
const P99_SAMPLES: u64 = 100;
const P999_SAMPLES: u64 = 1000;
/// The kernel counts another process's time in ticks of 10 ms: of few of them nothing can be said.
const BROKER_CPU_S_MIN: f64 = 0.05;

#[derive(Clone, Debug, Serialize)]
pub struct Host {
    pub cpus: usize,
    pub kernel: String,
    pub load_before: Option<f64>,
    pub load_after: Option<f64>,
}

/// What an open loop was to do, and what came of it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Rate {
    pub asked_per_s: f64,
    /// Until the last answer, refusals included.
    pub answered_per_s: f64,
    /// Due, and never sent.
    pub not_sent: u64,
    /// The broker (or the client) did not keep up: latencies are those of a queue that grows as long as the run lasts.
    pub overloaded: bool,
}

/// CPU time of the measured time. None where it is not known.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Cpu {
    pub client_s: f64,
    pub broker_s: Option<f64>,
    pub client_us_per_request: f64,
    pub broker_us_per_request: Option<f64>,
    pub client_s_per_gb: Option<f64>,
    pub broker_s_per_gb: Option<f64>,
}

/// What the whole device did in the measured time, for whomever.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct DeviceUse {
    pub name: String,
    pub write_back: bool,
    pub fua: bool,
    pub flushes: u64,
    pub flushes_per_request: f64,
    pub writes: u64,
    pub writes_per_request: f64,
    pub bytes_written: u64,
    pub bytes_per_acked_byte: f64,
}

#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Broker {
    pub pid: u32,
    pub rss_bytes: u64,
    pub rss_max_bytes: u64,
    pub write_bytes: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Floors {
    pub before: Option<Floor>,
    pub after: Option<Floor>,
}

/// Field names are an interface: `benches/` and users' scripts read them.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub version: &'static str,
    pub mode: Mode,
    /// When the load began, ms since 1970.
    pub started: u64,
    pub settings: BenchArgs,
    pub host: Host,
    pub requests: u64,
    pub records: u64,
    pub bytes: u64,
    pub errors: BTreeMap<String, u64>,
    pub seconds: f64,
    pub requests_per_s: f64,
    pub mb_per_s: f64,
    /// Open loops only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    pub latency_us: Percentiles,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub produce_latency_us: Option<Percentiles>,
    /// How late requests of an open loop were handed to their connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_delay_us: Option<Percentiles>,
    pub distribution: Vec<(f64, f64)>,
    pub timeline: Vec<Second>,
    pub cpu: Cpu,
    pub device: Option<DeviceUse>,
    pub broker: Option<Broker>,
    pub floor: Option<Floors>,
    /// The topic's `flush.messages`, as the broker tells it; null where it never flushes for a count of records.
    pub flush_messages: Option<String>,
    /// The topic was not made for this run: what was in it may have mattered.
    pub topic_was_there: bool,
    /// What is missing here, or may be wrong.
    pub warnings: Vec<String>,
    /// What is known of whether the other side flushed before it answered.
    pub durability: String,
    /// In a few words, for plots.
    pub title: String,
}

impl Report {
    pub fn of(args: &BenchArgs, measured: &Measured, device: Option<&Device>, started: u64) -> Report {
        let recorder = &measured.recorder;
        let (requests, bytes, seconds) = (recorder.requests(), recorder.bytes, recorder.seconds());
        let produced = Percentiles::of(&recorder.latency);
        let (latency, histogram, produce_latency_us) = match &measured.arrivals {
            Some(arrivals) => (Percentiles::of(&arrivals.latency), &arrivals.latency, Some(produced)),
            None => (produced, &recorder.latency, None),
        };
        let settings = args.held();
        Report {
            version: env!("CARGO_PKG_VERSION"),
            mode: args.mode,
            started,
            settings,
            host: Host {
                cpus: std::thread::available_parallelism().map_or(0, usize::from),
                kernel: super::process::kernel(),
                load_before: None,
                load_after: None,
            },
            requests,
            records: recorder.records,
            bytes,
            errors: recorder.errors.clone(),
            seconds: rounded(seconds, 6),
            requests_per_s: rounded(requests as f64 / seconds, 3),
            mb_per_s: rounded(bytes as f64 / 1e6 / seconds, 6),
            rate: args.is_open().then(|| rate(args.rate(), measured)),
            latency_us: latency,
            produce_latency_us,
            send_delay_us: args.is_open().then(|| Percentiles::of(&measured.late)),
            distribution: stats::distribution(histogram),
            timeline: recorder.timeline.clone(),
            cpu: cpu(&measured.marks, requests, bytes),
            device: device.and_then(|d| device_use(d, &measured.marks, requests, bytes)),
            broker: broker(args.broker_pid, &measured.marks),
            floor: None,
            flush_messages: None,
            topic_was_there: false,
            warnings: Vec::new(),
            durability: String::new(),
            title: String::new(),
        }
    }

    pub fn with_host(mut self, before: Option<f64>, after: Option<f64>) -> Report {
        (self.host.load_before, self.host.load_after) = (before, after);
        self
    }

    pub fn with_floor(mut self, before: Option<Floor>, after: Option<Floor>) -> Report {
        self.floor = (before.is_some() || after.is_some()).then_some(Floors { before, after });
        self
    }

    pub fn with_topic(mut self, made: bool, warnings: &[String]) -> Report {
        self.topic_was_there = !made;
        self.warnings = warnings.to_vec();
        self
    }

    pub fn with_says(mut self, says: Says) -> Report {
        let outstanding = self.settings.connections * self.settings.in_flight();
        self.durability = durability(self.mode, self.device.as_ref(), outstanding, &says);
        self.flush_messages = says.flush_messages;
        self.title = title(&self);
        self
    }

    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and names only")
    }

    pub fn mode_name(&self) -> &'static str {
        match self.mode {
            Mode::Produce => "produce",
            Mode::Open => "open",
            Mode::E2e => "e2e",
            Mode::Fetch => "fetch",
        }
    }
}

/// Overloaded: some were never sent, or the answers came more slowly than the requests were due and at least half of
/// them had to wait to be sent. A stall at the end only makes the answers late.
fn rate(asked_per_s: f64, measured: &Measured) -> Rate {
    let recorder = &measured.recorder;
    let not_sent = recorder.errors.get(NOT_SENT).copied().unwrap_or(0);
    let refused = recorder.errors.iter().filter(|(name, _)| ![NOT_SENT, NOT_ARRIVED].contains(&name.as_str()));
    let answered = recorder.requests() + refused.map(|(_, n)| n).sum::<u64>();
    let answered_per_s = rounded(answered as f64 / recorder.seconds(), 3);
    let queued = measured.late.value_at_quantile(0.5) > QUEUED_NS;
    let overloaded = not_sent > 0 || (queued && answered_per_s < OVERLOADED * asked_per_s);
    Rate { asked_per_s, answered_per_s, not_sent, overloaded }
}

fn cpu(marks: &[Sample; 2], requests: u64, bytes: u64) -> Cpu {
    let [begin, end] = marks;
    let client_s = rounded(end.client_s - begin.client_s, 6);
    let broker_s = begin.broker.zip(end.broker).map(|(b, e)| rounded(e.cpu_s - b.cpu_s, 6));
    let per_request = |s: f64| rounded(s * 1e6 / requests.max(1) as f64, 3);
    let per_gb = |s: f64| (bytes > 0).then(|| rounded(s * 1e9 / bytes as f64, 6));
    Cpu {
        client_s,
        broker_s,
        client_us_per_request: per_request(client_s),
        broker_us_per_request: broker_s.map(per_request),
        client_s_per_gb: per_gb(client_s),
        broker_s_per_gb: broker_s.and_then(per_gb),
    }
}

fn device_use(device: &Device, marks: &[Sample; 2], requests: u64, bytes: u64) -> Option<DeviceUse> {
    let (begin, end) = marks[0].device.zip(marks[1].device)?;
    let (flushes, writes) = (end.flushes - begin.flushes, end.writes - begin.writes);
    let bytes_written = end.bytes_written - begin.bytes_written;
    let per_request = |n: u64| rounded(n as f64 / requests.max(1) as f64, 6);
    Some(DeviceUse {
        name: device.name.clone(),
        write_back: device.write_back,
        fua: device.fua,
        flushes,
        flushes_per_request: per_request(flushes),
        writes,
        writes_per_request: per_request(writes),
        bytes_written,
        bytes_per_acked_byte: rounded(bytes_written as f64 / bytes.max(1) as f64, 6),
    })
}

fn broker(pid: Option<u32>, marks: &[Sample; 2]) -> Option<Broker> {
    let (begin, end) = marks[0].broker.zip(marks[1].broker)?;
    Some(Broker {
        pid: pid?,
        rss_bytes: end.rss_bytes,
        rss_max_bytes: end.rss_max_bytes,
        write_bytes: end.write_bytes.zip(begin.write_bytes).map(|(e, b)| e.saturating_sub(b)),
    })
}

/// In a sentence or two, what was seen. One flush covers at most what is `outstanding`, so that many requests for a
/// flush is the least of a broker that flushes before it answers. The counters are the whole device's: that it flushed
/// proves less than that it did not.
fn durability(mode: Mode, device: Option<&DeviceUse>, outstanding: usize, says: &Says) -> String {
    const NOT_COMPARABLE: &str = "its figures are not comparable with an fsyncing broker.";
    let says = match (says.flush_messages.as_deref(), says.camus) {
        (_, true) => " It is a Camus, which means to flush before it answers.".to_owned(),
        (Some("1"), _) => " Its topic says flush.messages=1: it means to flush each append.".to_owned(),
        (Some(says), _) => format!(" Its topic says flush.messages={says}."),
        (None, _) if says.asked => " Its topic does not set flush.messages: a Kafka does not flush then.".to_owned(),
        (None, _) => String::new(),
    };
    let needed = format!("with {outstanding} outstanding it takes {:.4} or more", 1.0 / outstanding.max(1) as f64);
    let least = (FLUSHES_SURE / outstanding.max(1) as f64).max(FLUSHES_MIN);
    let seen = match device {
        _ if mode == Mode::Fetch => return "not a matter of reading".to_owned(),
        None => "not known: without --data-dir (on a block device of this host) nothing is counted.".to_owned(),
        Some(d) if d.writes_per_request < least => format!(
            "the other side did not write to {} before answering ({:.4} writes a request): {NOT_COMPARABLE}",
            d.name, d.writes_per_request
        ),
        Some(d) if !d.write_back || d.fua => format!(
            "{} needs no flushes to be durable ({}), so they say nothing; {:.3} writes of the whole disk, by \
             whomever, for each acknowledged request.",
            d.name,
            if d.fua { "it takes writes past its cache" } else { "its cache is write-through" },
            d.writes_per_request
        ),
        Some(d) if d.flushes_per_request < least => format!(
            "the other side did not flush before answering ({:.4} flushes a request, and {needed}): {NOT_COMPARABLE}",
            d.flushes_per_request,
        ),
        Some(d) => format!(
            "{:.3} flushes of {} for each acknowledged request, and {needed}. This does not show that it flushes: they \
             are the whole disk's, others may have. `strace -c -f -e trace=fsync,fdatasync -p PID` of a broker that \
             flushes by system calls, or a run on an idle disk, can tell.",
            d.flushes_per_request, d.name
        ),
    };
    format!("{seen}{says}")
}

/// The report for a person: one thing a line, figures in columns.
pub fn text(report: &Report) -> String {
    let mut lines = vec![headline(report), String::new()];
    let mut rows = vec![["latency, us", "p50", "p90", "p99", "p99.9", "max", "mean"].map(str::to_owned).to_vec()];
    let mut row = |name: &str, p: &Percentiles| {
        let few = |us: f64, least: u64| if p.count < least { "-".to_owned() } else { latency(us) };
        let p99 = few(p.p99, P99_SAMPLES);
        let p999 = few(p.p999, P999_SAMPLES);
        let [p50, p90, max, mean] = [p.p50, p.p90, p.max, p.mean].map(|us| few(us, 1));
        rows.push(vec![name.to_owned(), p50, p90, p99, p999, max, mean]);
    };
    row(if report.mode == Mode::E2e { "end to end" } else { report.mode_name() }, &report.latency_us);
    if let Some(produce) = &report.produce_latency_us {
        row("produce", produce);
    }
    if let Some(delay) = &report.send_delay_us {
        row("sent late by", delay);
    }
    if let Some(floors) = &report.floor {
        for (when, floor) in [("before", &floors.before), ("after", &floors.after)] {
            if let Some(floor) = floor {
                row(&format!("floor 4 KiB, 1 in flight, {when}"), &floor.write_4k_us);
            }
        }
    }
    lines.push(out::table(&rows));
    lines.push(String::new());
    let mut facts = Vec::new();
    let mut fact = |name: &str, text: String| facts.push(vec![name.to_owned(), text]);
    let per_s = format!("{:.1}/s   {:.2} MB/s", report.requests_per_s, report.mb_per_s);
    fact("requests", format!("{} in {:.2} s   {per_s}", report.requests, report.seconds));
    if let Some(rate) = report.rate {
        let mut text = format!("asked {}/s, answered {:.0}/s", rate.asked_per_s, rate.answered_per_s);
        if rate.overloaded {
            text += ": overloaded; latencies are those of a growing queue";
        }
        if rate.not_sent > 0 {
            text += &format!("; {} were due and never sent, and have no latency", rate.not_sent);
        }
        fact("rate", text);
    }
    let errors: Vec<String> = report.errors.iter().map(|(name, n)| format!("{name} {n}")).collect();
    fact("errors", if errors.is_empty() { "none".to_owned() } else { errors.join(", ") });
    let cpu = |s: f64, us: f64, gb: Option<f64>| {
        let gb = gb.map_or("-".to_owned(), |gb| format!("{gb:.3}"));
        format!("{s:.2} s   {us:.1} us a request   {gb} s a GB")
    };
    let c = &report.cpu;
    fact("CPU client", cpu(c.client_s, c.client_us_per_request, c.client_s_per_gb));
    match (c.broker_s, c.broker_us_per_request) {
        (Some(s), _) if s < BROKER_CPU_S_MIN => {
            let us = BROKER_CPU_S_MIN * 1e6 / report.requests.max(1) as f64;
            fact("CPU broker", format!("<{BROKER_CPU_S_MIN} s   <{us:.1} us a request: too little to measure"));
        }
        (Some(s), Some(us)) => fact("CPU broker", cpu(s, us, c.broker_s_per_gb)),
        _ => {}
    }
    if let Some(b) = &report.broker {
        fact("memory", format!("{} resident, {} at most", out::bytes(b.rss_bytes), out::bytes(b.rss_max_bytes)));
    }
    if let Some(d) = &report.device {
        let per = format!("{:.3} flushes and {:.3} writes a request", d.flushes_per_request, d.writes_per_request);
        fact("device", format!("{}   {per}   {:.2} bytes an acknowledged byte", d.name, d.bytes_per_acked_byte));
    }
    if let Some(written) = report.broker.and_then(|b| b.write_bytes).filter(|_| report.mode != Mode::Fetch) {
        let per_byte = written as f64 / report.bytes.max(1) as f64;
        let what = "of its own (/proc/PID/io)";
        fact("broker wrote", format!("{}   {per_byte:.2} bytes an acknowledged byte, {what}", out::bytes(written)));
    }
    if let Some(floors) = &report.floor {
        let shown = |f: &Option<Floor>| f.as_ref().map_or("-".to_owned(), |f| format!("{:.0}", f.sequential_mb_per_s));
        let method = floors.before.as_ref().map_or("-", |f| f.method.as_str());
        let (before, after) = (shown(&floors.before), shown(&floors.after));
        let both = format!("{before} MB/s before, {after} MB/s after, of 1 MiB writes, 4 in flight");
        fact("floor", format!("{method}: {both}"));
    }
    let load = |l: Option<f64>| l.map_or("-".to_owned(), |l| format!("{l:.2}"));
    let loads = format!("{} before, {} after", load(report.host.load_before), load(report.host.load_after));
    fact("host", format!("{} CPUs, load {loads}", report.host.cpus));
    if report.topic_was_there {
        fact("topic", format!("{} was there already; it was used as it is and is left", report.settings.topic));
    }
    for warning in &report.warnings {
        fact("warning", warning.clone());
    }
    for (i, line) in wrapped(&report.durability, WRAP).into_iter().enumerate() {
        fact(if i == 0 { "durability" } else { "" }, line);
    }
    lines.push(out::table(&facts));
    lines.join("\n")
}

/// Lines of at most so many characters, if no word is longer.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is one from the start");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > columns {
            lines.push(word.to_owned());
        } else {
            line.push_str(if line.is_empty() { "" } else { " " });
            line.push_str(word);
        }
    }
    lines
}

/// us without a unit, as the table's head says; from 10 ms on ms, from 10 s on s.
fn latency(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{us:.1}"),
        us if us < 1e4 => format!("{us:.0}"),
        us if us < 1e5 => format!("{:.1} ms", us / 1e3),
        us if us < 1e7 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
    }
}

/// A plot's title: what was run, and what is known of its durability, in a few words.
pub fn title(report: &Report) -> String {
    let rate = report.rate.map_or(String::new(), |rate| format!(", {} requests/s", rate.asked_per_s));
    let overloaded = if report.rate.is_some_and(|rate| rate.overloaded) { " (overloaded)" } else { "" };
    let flushes = match &report.device {
        _ if report.mode == Mode::Fetch => String::new(),
        None => "; flushes not counted".to_owned(),
        Some(d) => format!("; {:.3} flushes of {} a request", d.flushes_per_request, d.name),
    };
    format!("{}{rate}{overloaded}{flushes}", report.mode_name())
}

fn headline(report: &Report) -> String {
    let s = &report.settings;
    let many = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let records = s.records();
    let batch = match records {
        1 => format!("{} a record", out::bytes(s.record_bytes as u64)),
        n => format!("{n} records of {} a batch", out::bytes(s.record_bytes as u64)),
    };
    let rate = if s.is_open() { format!(", {} requests/s", s.rate()) } else { String::new() };
    let partitions = many(s.partitions as usize, "partition");
    let name =
        |value: Option<clap::builder::PossibleValue>| value.map_or_else(String::new, |v| v.get_name().to_owned());
    let (codec, payload) = (name(s.codec.to_possible_value()), name(s.payload.to_possible_value()));
    let data = format!("codec {codec}, payload {payload}");
    let time = match s.once {
        true => "read once".to_owned(),
        false => format!("{} s after {} s of warm-up", s.duration_s, s.warmup_s),
    };
    let how = match report.mode {
        Mode::Fetch => format!("{partitions}, {}", many(s.connections, "connection")),
        _ => format!(
            "{partitions}, {} x {} in flight, {batch}{rate}{}",
            many(s.connections, "connection"),
            s.in_flight(),
            if s.idempotent { ", idempotent" } else { "" }
        ),
    };
    format!("{} against {}: {how}\n{time}; {data}", report.mode_name(), s.bootstrap)
}

#[cfg(test)]
mod tests {
    use super::super::load::Window;
    use super::super::process::Usage;
    use super::super::stats::Recorder;
    use super::*;

    fn device(flushes_per_request: f64, writes_per_request: f64) -> DeviceUse {
        DeviceUse {
            name: "vda".to_owned(),
            write_back: true,
            fua: false,
            flushes: 1,
            flushes_per_request,
            writes: 1,
            writes_per_request,
            bytes_written: 1,
            bytes_per_acked_byte: 1.0,
        }
    }

    /// Lost if it fails: the warning that a broker answers before it flushes, or the trust in it.
    #[test]
    fn who_can_not_have_flushed_is_named_and_nobody_else() {
        let said = |d: &DeviceUse, outstanding| durability(Mode::Produce, Some(d), outstanding, &Says::default());
        assert!(said(&device(1.02, 2.0), 1).starts_with("1.020 flushes of vda"));
        assert!(said(&device(0.03, 2.0), 40).starts_with("0.030 flushes of vda"), "one flush for all that wait");
        for (flushes, outstanding) in [(0.06, 1), (0.01, 40), (0.0, 100_000)] {
            assert!(said(&device(flushes, 2.0), outstanding).starts_with("the other side did not flush before"));
        }
        assert!(said(&device(0.0, 0.01), 1).starts_with("the other side did not write to vda"));
        let through = DeviceUse { write_back: false, ..device(0.0, 1.5) };
        assert!(said(&through, 1).starts_with("vda needs no flushes"), "not countable is not a verdict");
        assert!(said(&device(0.03, 2.0), 40).contains("with 40 outstanding it takes 0.0250 or more"));
        assert!(said(&device(3.0, 2.0), 1).contains("does not show that it flushes"), "somebody else may have");
        let kafka = Says { asked: true, ..Says::default() };
        let camus = Says { camus: true, ..kafka.clone() };
        let flushing = Says { flush_messages: Some("1".to_owned()), ..kafka.clone() };
        let says = |says: &Says| durability(Mode::Open, None, 1, says);
        assert!(says(&flushing).ends_with("it means to flush each append."));
        assert!(says(&kafka).contains("does not set flush.messages"));
        assert!(!says(&camus).contains("flush.messages"), "its own promise does not depend on it");
    }

    #[test]
    fn latencies_have_the_unit_that_a_person_reads() {
        let shown = [17.34, 9_999.0, 12_345.0, 1_222_640.0, 31_000_000.0].map(latency);
        assert_eq!(shown, ["17.3", "9999", "12.3 ms", "1223 ms", "31.0 s"]);
    }

    /// Lost if it fails: the warning that a latency is that of a queue, and grows with --duration-s.
    #[test]
    fn an_open_loop_that_can_not_keep_up_says_so() {
        let loaded = |answered: u64, not_sent: u64, late_ns: u64| {
            let mut recorder = Recorder::new(Window { from_ns: 0, end_ns: 1_000_000_000 });
            for request in 0..answered {
                recorder.answered(request, 500_000_000, 1, 1024);
            }
            recorder.failed_times(0, "NOT_SENT", not_sent);
            recorder.failed_times(0, "NOT_LEADER_OR_FOLLOWER", 10);
            let mut late = crate::percentiles::histogram();
            late.record_n(late_ns, answered).expect("in range");
            rate(1000.0, &Measured { recorder, arrivals: None, late, marks: Default::default() })
        };
        assert!(!loaded(990, 0, 50_000).overloaded, "what was refused was answered as well");
        assert!(loaded(500, 490, 50_000).overloaded, "some were never sent");
        assert!(loaded(800, 0, 80_000_000).overloaded, "they came late, and had waited");
        assert!(!loaded(800, 0, 50_000).overloaded, "they were sent in time: a stall at the end");
    }

    fn report(line: &[&str], mode: Mode) -> Report {
        let args = BenchArgs { mode, ..super::super::flags::parsed(line) };
        let mut recorder = Recorder::new(Window { from_ns: 0, end_ns: 2_000_000_000 });
        for request in 0..2000u64 {
            recorder.answered(request * 1_000_000, request * 1_000_000 + 210_000, 1, 1024);
        }
        recorder.failed(5, "NOT_LEADER_OR_FOLLOWER");
        recorder.turn_seconds(2_000_000_000);
        let broker = Usage { cpu_s: 1.0, rss_bytes: 64 << 20, rss_max_bytes: 80 << 20, write_bytes: Some(1000) };
        let begin = Sample { client_s: 0.5, broker: Some(broker), device: None };
        let end = Sample { client_s: 0.51, broker: Some(Usage { cpu_s: 1.1, ..broker }), device: None };
        let arrivals =
            (mode == Mode::E2e).then(|| super::super::drive::Arrivals { run: 1, latency: recorder.latency.clone() });
        let late = crate::percentiles::histogram();
        let measured = Measured { recorder, arrivals, late, marks: [begin, end] };
        Report::of(&args, &measured, None, 1_764_000_000_000)
            .with_host(Some(0.1), Some(0.2))
            .with_says(Says { flush_messages: Some("1".to_owned()), ..Says::default() })
    }

    /// Lost if it fails: every script that reads what --json writes.
    #[test]
    fn the_json_has_the_names_that_scripts_read() {
        let report = report(&["bench", "--broker-pid", "7"], Mode::E2e);
        let json: serde_json::Value = serde_json::from_str(&report.json()).expect("JSON");
        for name in [
            "version",
            "mode",
            "started",
            "settings",
            "host",
            "requests",
            "records",
            "bytes",
            "errors",
            "seconds",
            "requests_per_s",
            "mb_per_s",
            "latency_us",
            "produce_latency_us",
            "distribution",
            "timeline",
            "cpu",
            "device",
            "broker",
            "floor",
            "durability",
            "topic_was_there",
            "warnings",
        ] {
            assert!(json.get(name).is_some(), "{name}");
        }
        assert_eq!(json["mode"], "e2e");
        assert_eq!(json["settings"]["in_flight"], 5, "what held, not what was left out");
        assert_eq!(json["requests"], 2000);
        assert_eq!(json["errors"]["NOT_LEADER_OR_FOLLOWER"], 1);
        assert_eq!(json["timeline"].as_array().expect("a list").len(), 2);
        assert_eq!(json["timeline"][0]["requests"], 1000);
        assert!((json["latency_us"]["p999"].as_f64().expect("a number") - 210.0).abs() < 1.0);
        assert!((json["cpu"]["broker_us_per_request"].as_f64().expect("a number") - 50.0).abs() < 0.01);
        assert!((json["cpu"]["client_s_per_gb"].as_f64().expect("a number") - 4.88).abs() < 0.01);
        assert_eq!((json["broker"]["pid"].clone(), json["device"].is_null()), (7.into(), true));
        let last = json["distribution"].as_array().expect("a list").last().expect("a point").clone();
        assert_eq!(last[0], 100.0);
        let digits = |v: &serde_json::Value| v.to_string().rsplit_once('.').map_or(0, |(_, digits)| digits.len());
        let points = json["distribution"].as_array().expect("a list");
        assert!(points.iter().all(|p| digits(&p[0]) <= 8 && digits(&p[1]) <= 3), "{points:?}");
    }

    #[test]
    fn the_title_of_a_plot_has_mode_rate_and_flushes() {
        assert_eq!(report(&["bench"], Mode::Open).title, "open, 500 requests/s; flushes not counted");
        assert_eq!(report(&["bench"], Mode::Fetch).title, "fetch");
    }

    #[test]
    fn a_sentence_fits_on_the_screen() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("longer-than-that a", 7), ["longer-than-that", "a"]);
        assert_eq!(wrapped("", 7), [""]);
    }

    #[test]
    fn the_text_lines_up() {
        let text = text(&report(&["bench", "--partitions", "3", "--batch-bytes", "4096"], Mode::Produce));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "produce against 127.0.0.1:9092: 3 partitions, 1 connection x 1 in flight, 4 records of 1 KiB a batch"
        );
        assert_eq!(lines[1], "10 s after 3 s of warm-up; codec none, payload random");
        assert!(lines[3].starts_with("latency, us  p50    p90    p99"), "{text}");
        assert!(lines[4].starts_with("produce      210.1"), "{text}");
        assert!(text.contains("\nrequests    2000 in 2.00 s   1000.0/s"), "{text}");
        assert!(text.contains("\nerrors      NOT_LEADER_OR_FOLLOWER 1\n"), "{text}");
    }
}
