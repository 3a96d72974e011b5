//! The flags of `camus bench`, and which of them go together.

use super::encode::{Codec, Payload, STAMP_BYTES};
use crate::errors::{self, UserError};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::path::PathBuf;

/// In flight of a connection where nothing is said: one after the other, or what Kafka's own clients do.
const IN_FLIGHT_CLOSED: usize = 1;
const IN_FLIGHT_OPEN: usize = 5;
const RATE: f64 = 500.0;
const FILL_MB: u64 = 256;
const FETCH_BYTES: i32 = 8 << 20;
const PARTITION_BYTES: i32 = 1 << 20;
const CONNECTIONS_MAX: usize = 10_000;
const IN_FLIGHT_MAX: usize = 10_000;
const BATCH_BYTES_MAX: usize = 256 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    #[default]
    Produce,
    Open,
    E2e,
    Fetch,
}

#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// Closed loop: each connection keeps --in-flight requests outstanding.
    #[command(after_help = COST)]
    Produce(BenchArgs),
    /// Open loop: --rate requests a second, each counted from when it was to be sent.
    #[command(after_help = COST)]
    Open(BenchArgs),
    /// Open loop with a consumer: from when a record was to be sent until it has arrived.
    #[command(after_help = COST)]
    E2e(BenchArgs),
    /// Read everything that is in the topic, over and over.
    #[command(after_help = COST)]
    Fetch(BenchArgs),
    /// Draw the latencies of several runs over each other.
    Plot {
        /// The SVG to write.
        #[arg(value_name = "OUT.svg")]
        out: PathBuf,
        /// What --json has written.
        #[arg(value_name = "RUN.json", required = true)]
        runs: Vec<PathBuf>,
        /// What a run is called, in their order [default: the file's name].
        #[arg(long = "label", value_name = "TEXT")]
        labels: Vec<String>,
    },
}

const COST: &str = "\
What the client costs: one thread drives all connections. It sleeps in epoll_pwait2, with a timer that is exact to the
microsecond, and wakes shortly before an open-loop request is due: that moment it spends looking, so that the request
leaves on time. It is as long as the timer was late before, at most 50 us: at 500 requests/s up to 2.5 % of a core.
Where requests are due less than 200 us apart it does not look, it only sleeps. A closed loop never looks. \"sent late
by\" says how late requests left all the same.
What the numbers mean: docs/bench.md.";

#[derive(Args, Clone, Debug, Serialize)]
pub struct BenchArgs {
    #[arg(skip)]
    #[serde(skip)]
    pub mode: Mode,
    /// A broker's plain listener; it leads every partition of the topic.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9092")]
    pub bootstrap: String,
    /// Made if it is not there; deleted afterwards if it was made here.
    #[arg(long, value_name = "NAME", default_value = "camus-bench")]
    pub topic: String,
    /// Of the topic. Requests go to them in turn, one partition each; each connection has its share.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..=1_000_000))]
    pub partitions: i32,
    /// Bytes of a record's value; records have no key.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub record_bytes: usize,
    /// Bytes of values in the one batch of a request [default: one record].
    #[arg(long, value_name = "N")]
    pub batch_bytes: Option<usize>,
    /// Connections that produce, or that fetch.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub connections: usize,
    /// produce, open, e2e: requests of a connection that are not yet answered [default: 1 for produce, 5 for open and
    /// e2e].
    #[arg(long, value_name = "N")]
    pub in_flight: Option<usize>,
    /// Only all is measured: an answer that promises less is no answer.
    #[arg(long, value_name = "all", default_value = "all", value_parser = ["all", "-1"])]
    pub acks: String,
    /// Each connection is an idempotent producer with its own id.
    #[arg(long)]
    pub idempotent: bool,
    #[arg(long, value_enum, default_value_t = Codec::None)]
    pub codec: Codec,
    /// What is in the records.
    #[arg(long, value_enum, default_value_t = Payload::Random)]
    pub payload: Payload,
    /// open, e2e: requests a second of all connections together [default: 500].
    #[arg(long, value_name = "N")]
    pub rate: Option<f64>,
    /// Load that is not measured, before the load that is.
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    pub warmup_s: f64,
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub duration_s: f64,
    /// The broker's process: its CPU time and memory are reported.
    #[arg(long, value_name = "PID")]
    pub broker_pid: Option<u32>,
    /// The broker's data directory: flushes and bytes of the disk under it are reported.
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Measure the disk under this directory by itself, before and after (as `camus waltest` does).
    #[arg(long, value_name = "DIR")]
    pub floor_dir: Option<PathBuf>,
    /// Seconds of each cell of --floor-dir. There are two (4 KiB writes one at a time, 1 MiB writes four at a time),
    /// before and after: four times so long in all.
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    pub floor_s: f64,
    /// Write everything as JSON; - is standard output (then there is no text).
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
    /// Draw latency by percentile.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Do not delete the topic afterwards.
    #[arg(long)]
    pub keep_topic: bool,
    /// A request that is not answered for so long ends the run: of the load, and each of connecting, making the topic
    /// and deleting it (after a signal that takes 2 s at most).
    #[arg(long, value_name = "S", default_value_t = 30)]
    pub timeout_s: u32,
    /// fetch, e2e: bytes of an answer to a fetch.
    #[arg(long, value_name = "N", default_value_t = FETCH_BYTES, value_parser = fetch_bytes())]
    pub fetch_max_bytes: i32,
    /// fetch, e2e: bytes of one partition in it.
    #[arg(long, value_name = "N", default_value_t = PARTITION_BYTES, value_parser = fetch_bytes())]
    pub partition_max_bytes: i32,
    /// fetch: so many 10^6 bytes of values are produced first [default: 256].
    #[arg(long, value_name = "MB")]
    pub fill_mb: Option<u64>,
    /// fetch: read what is in the topic already.
    #[arg(long)]
    pub no_fill: bool,
    /// fetch: read everything once and end, without a warm-up (what a cold cache costs).
    #[arg(long)]
    pub once: bool,
}

fn fetch_bytes() -> clap::builder::RangedI64ValueParser<i32> {
    clap::value_parser!(i32).range(1..=1 << 30)
}

impl BenchArgs {
    pub fn in_flight(&self) -> usize {
        self.in_flight.unwrap_or(match self.mode {
            Mode::Open | Mode::E2e => IN_FLIGHT_OPEN,
            Mode::Produce | Mode::Fetch => IN_FLIGHT_CLOSED,
        })
    }

    /// Requests a second of an open loop.
    pub fn rate(&self) -> f64 {
        self.rate.unwrap_or(RATE)
    }

    /// 10^6 bytes that a fetch run produces first.
    pub fn fill_mb(&self) -> u64 {
        self.fill_mb.unwrap_or(FILL_MB)
    }

    /// With what held instead of what was left out; null is what is not of the mode.
    pub fn held(&self) -> BenchArgs {
        let fetch = self.mode == Mode::Fetch;
        BenchArgs {
            in_flight: Some(self.in_flight()),
            rate: self.is_open().then(|| self.rate()),
            fill_mb: (fetch && !self.no_fill).then(|| self.fill_mb()),
            ..self.clone()
        }
    }

    /// Records of one batch.
    pub fn records(&self) -> usize {
        (self.batch_bytes.unwrap_or(0) / self.record_bytes.max(1)).max(1)
    }

    pub fn is_open(&self) -> bool {
        matches!(self.mode, Mode::Open | Mode::E2e)
    }

    /// Refuses what is out of range or does not go together.
    pub fn check(&self) -> Result<(), UserError> {
        let wrong = |what: &str, why: &str| Err(errors::bench_flags(what, why));
        if let Err(why) = check_address(&self.bootstrap) {
            return wrong(&format!("--bootstrap '{}' is no address", self.bootstrap), why);
        }
        self.check_mode()?;
        if !(1..=CONNECTIONS_MAX).contains(&self.connections) {
            return wrong("--connections is out of range", &format!("it takes 1 to {CONNECTIONS_MAX}"));
        }
        if !(1..=IN_FLIGHT_MAX).contains(&self.in_flight()) {
            return wrong("--in-flight is out of range", &format!("it takes 1 to {IN_FLIGHT_MAX}"));
        }
        if !(self.rate() > 0.0 && self.rate() <= 10_000_000.0) {
            return wrong("--rate is out of range", "it takes more than 0 and at most 10,000,000 requests a second");
        }
        let seconds = 0.0..=86_400.0 * 7.0;
        let times = [self.warmup_s, self.duration_s, self.floor_s];
        if !times.iter().all(|s| seconds.contains(s)) || self.duration_s <= 0.0 || self.floor_s <= 0.0 {
            return wrong("a time is out of range", "times are seconds, at most a week; what is measured lasts some");
        }
        if self.timeout_s == 0 || self.timeout_s > 86_400 {
            return wrong("--timeout-s is out of range", "it takes 1 s to a day");
        }
        if self.records().saturating_mul(self.record_bytes) > BATCH_BYTES_MAX {
            return wrong("--batch-bytes or --record-bytes is out of range", "a batch has at most 256 MiB");
        }
        if self.mode == Mode::E2e && self.codec != Codec::None {
            return wrong("--codec does not go with e2e", "the send time is written into the record of each request");
        }
        if self.mode == Mode::E2e && self.record_bytes < STAMP_BYTES {
            return wrong("--record-bytes is too small for e2e", "the send time in the record takes 16 bytes");
        }
        if self.idempotent && self.in_flight() > 5 {
            return wrong(
                "--idempotent goes with at most 5 in flight",
                "a broker remembers the last 5 batches (KIP-98)",
            );
        }
        Ok(())
    }

    /// What is of another mode would be left unheard, and the run taken for what it is not.
    fn check_mode(&self) -> Result<(), UserError> {
        let fetch = self.mode == Mode::Fetch;
        let reads = fetch || self.mode == Mode::E2e;
        let others = [
            ("--rate", "open and e2e", self.rate.is_some() && !self.is_open()),
            ("--in-flight", "produce, open and e2e", self.in_flight.is_some() && fetch),
            ("--fill-mb", "fetch", self.fill_mb.is_some() && !fetch),
            ("--no-fill", "fetch", self.no_fill && !fetch),
            ("--once", "fetch", self.once && !fetch),
            ("--fetch-max-bytes", "fetch and e2e", self.fetch_max_bytes != FETCH_BYTES && !reads),
            ("--partition-max-bytes", "fetch and e2e", self.partition_max_bytes != PARTITION_BYTES && !reads),
        ];
        if let Some((flag, modes, _)) = others.iter().find(|(.., wrong)| *wrong) {
            return Err(errors::bench_flags(&format!("{flag} is not of this mode"), &format!("it is of {modes}")));
        }
        match self.no_fill && self.fill_mb.is_some() {
            true => Err(errors::bench_flags("--fill-mb does not go with --no-fill", "nothing is filled then")),
            false => Ok(()),
        }
    }
}

/// `HOST:PORT`, with an IPv6 address in brackets.
fn check_address(address: &str) -> Result<(), &'static str> {
    let (host, port) = address.rsplit_once(':').ok_or("it takes HOST:PORT, and has no port")?;
    if port.parse::<u16>().is_err() || port == "0" {
        return Err("it takes HOST:PORT, and a port is 1 to 65535");
    }
    match host {
        "" => Err("it takes HOST:PORT, and has no host"),
        host if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) => {
            Err("it takes HOST:PORT, with an IPv6 address in brackets: [::1]:9092")
        }
        _ => Ok(()),
    }
}

/// For tests: the flags of a command line.
#[cfg(test)]
pub fn parsed(line: &[&str]) -> BenchArgs {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: BenchArgs,
    }
    <Line as clap::Parser>::try_parse_from(line).expect("it parses").args
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lost if it fails: the reason. A missing port was told as a broker that is not there.
    #[test]
    fn an_address_without_a_port_is_a_wrong_flag() {
        for wrong in ["localhost", "localhost:", "localhost:99999", "localhost:0", ":9092", "::1:9092", "a:b"] {
            assert!(check_address(wrong).is_err(), "{wrong}");
        }
        for right in ["localhost:9092", "127.0.0.1:1", "[::1]:65535"] {
            assert_eq!(check_address(right), Ok(()), "{right}");
        }
    }

    /// Lost if it fails: the difference between what was asked for and what was run.
    #[test]
    fn a_flag_of_another_mode_is_refused_and_each_of_its_own_is_not() {
        let all: [(&[&str], &[Mode]); 7] = [
            (&["--rate", "500"], &[Mode::Open, Mode::E2e]),
            (&["--in-flight", "2"], &[Mode::Produce, Mode::Open, Mode::E2e]),
            (&["--fill-mb", "256"], &[Mode::Fetch]),
            (&["--no-fill"], &[Mode::Fetch]),
            (&["--once"], &[Mode::Fetch]),
            (&["--fetch-max-bytes", "5"], &[Mode::Fetch, Mode::E2e]),
            (&["--partition-max-bytes", "5"], &[Mode::Fetch, Mode::E2e]),
        ];
        for (flags, modes) in all {
            for mode in [Mode::Produce, Mode::Open, Mode::E2e, Mode::Fetch] {
                let args = parsed(&[&["bench"], flags].concat());
                assert_eq!(BenchArgs { mode, ..args }.check().is_ok(), modes.contains(&mode), "{flags:?} {mode:?}");
            }
        }
    }
}
