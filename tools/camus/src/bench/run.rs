//! One run from beginning to end: look that everything is there, make the topic, drive the load, clean up, report.

use super::cluster::{Cluster, Says};
use super::conn::Producer;
use super::device::{self, Counters, Device};
use super::drive::{Arrivals, Clock, Drive};
use super::encode::{self, Batch, BatchSpec, Template};
use super::fetch::{Asking, Fetcher};
use super::flags::{BenchArgs, Mode};
use super::load::{Schedule, Share, Window, partitions_of};
use super::output::{self, Output};
use super::process::{self, Usage};
use super::report::{self, Report};
use super::stats::Recorder;
use super::{Progress, plot};
use crate::errors::{self, UserError};
use crate::percentiles::histogram;
use crate::waltest::{self, Floor};
use crate::{client, out};
use client::Patience;
use std::collections::BTreeMap;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Batches and requests that fill a topic before it is read.
const FILL_BATCH_BYTES: usize = 64 * 1024;
const FILL_IN_FLIGHT: usize = 5;
const FILL_ATTEMPTS_MAX: usize = 20;
const FILL_AGAIN: Duration = Duration::from_millis(250);
/// The consumer of an end-to-end run waits for records this long, and gets them one by one if they come so.
const CONSUMER_WAIT_MS: i32 = 500;
/// Deleting the topic after a signal.
const CLEAN_UP_AFTER_SIGNAL: Duration = Duration::from_secs(2);
/// A load that ends by itself and not by the clock.
const NO_END_NS: u64 = u64::MAX / 4;

/// What was counted until one moment.
#[derive(Clone, Copy, Default, Debug)]
pub struct Sample {
    pub client_s: f64,
    pub broker: Option<Usage>,
    pub device: Option<Counters>,
}

/// What is looked at from outside, and was found to be there.
#[derive(Debug)]
struct Watched {
    pid: Option<u32>,
    device: Option<Device>,
    /// What will be missing from the report, or may be wrong in it.
    warnings: Vec<String>,
    /// Somebody wants it to end.
    stop: Arc<AtomicBool>,
}

impl Watched {
    fn find(args: &BenchArgs) -> Result<Watched, UserError> {
        if let Some(pid) = args.broker_pid {
            process::usage(pid)?;
        }
        if let Some(dir) = &args.floor_dir
            && !dir.is_dir()
        {
            let shown = dir.display().to_string();
            return Err(errors::bench_observed(&shown, "it is no directory", &format!("ls -ld {shown}")));
        }
        let device = args.data_dir.as_deref().map(Device::of).transpose()?.flatten();
        let mut warnings = Vec::new();
        if let Some(dir) = args.data_dir.as_deref().filter(|_| device.is_none()) {
            let kind = device::kind_of(dir);
            warnings.push(format!("{} lies on {kind}: nothing is counted of its disk", dir.display()));
        }
        let port = args.bootstrap.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        if let Some((pid, port)) = args.broker_pid.zip(port)
            && process::listens(pid, port) == Some(false)
        {
            let whose = "its CPU time, memory and writes may not be the broker's";
            warnings.push(format!("process {pid} does not listen on port {port}: {whose}"));
        }
        Ok(Watched { pid: args.broker_pid, device, warnings, stop: waltest::stop_on_signals()? })
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn sample(&self) -> Result<Sample, UserError> {
        Ok(Sample {
            client_s: process::own_cpu_s(),
            broker: self.pid.map(process::usage).transpose()?,
            device: self.device.as_ref().map(Device::counters),
        })
    }
}

/// Does what was asked for and prints what came of it.
pub fn run(args: &BenchArgs) -> Result<(), UserError> {
    args.check()?;
    let files = Files::open(args)?;
    crate::process::raise_limits();
    let watched = Watched::find(args)?;
    for warning in &watched.warnings {
        out::note(&format!("warning: {warning}"));
    }
    let mut progress = Progress::new();
    let answer = Duration::from_secs(args.timeout_s.into());
    let patience = Patience { answer, until: None, stop: Some(watched.stop.clone()) };
    let stopped = |e| if watched.is_stopped() { errors::bench_interrupted() } else { e };
    let mut cluster = Cluster::connect(&args.bootstrap, &args.topic, patience).map_err(stopped)?;
    let load_before = process::load();
    let before = floor(args, &watched, &mut progress, "before")?;
    let measured = match topic(args, &mut cluster, &watched.stop, &mut progress) {
        Ok(()) => measure(args, &mut cluster, &watched, &mut progress),
        Err(e) => Err(e),
    };
    let says = if measured.is_ok() { cluster.says() } else { Says::default() };
    let gone = clean_up(args, &mut cluster, &watched, &mut progress);
    let (measured, started) = measured.map_err(|e| match gone {
        Gone::Deleted => errors::bench_topic_deleted(stopped(e)),
        Gone::Never => stopped(e),
        Gone::Kept => errors::bench_topic_kept(stopped(e), &args.topic, &args.bootstrap),
        Gone::Left(_) => errors::bench_topic_left(stopped(e), &args.topic, &args.bootstrap),
    })?;
    let load_after = process::load();
    let (after, mut late) = match floor(args, &watched, &mut progress, "after") {
        Ok(after) => (after, None),
        Err(e) => (None, Some(e)),
    };
    if let Gone::Left(e) = gone {
        late = Some(errors::bench_topic_left(e, &args.topic, &args.bootstrap));
    }
    progress.end();
    let recorder = &measured.recorder;
    if recorder.requests() == 0 {
        let counted: Vec<String> = recorder.errors.iter().map(|(name, n)| format!("{name} {n} times")).collect();
        let counted = if counted.is_empty() { "no request was measured".to_owned() } else { counted.join(", ") };
        return Err(errors::bench_nothing(&args.bootstrap, &counted));
    }
    let held = BenchArgs { partitions: cluster.partitions, ..args.clone() };
    let report = Report::of(&held, &measured, watched.device.as_ref(), started)
        .with_host(load_before, load_after)
        .with_floor(before, after)
        .with_topic(cluster.made, &watched.warnings)
        .with_says(says);
    let written = files.write(args, report);
    match late {
        Some(e) => Err(e),
        None => written,
    }
}

/// Where the results go, besides the terminal.
#[derive(Debug)]
struct Files {
    json: Option<Output>,
    svg: Option<Output>,
}

impl Files {
    /// Before a long run: each can be written.
    fn open(args: &BenchArgs) -> Result<Files, UserError> {
        let open = |file: &Path| Output::open(file).map_err(|e| errors::bench_file(file, &e.to_string()));
        let json = args.json.as_deref().filter(|file| file.as_os_str() != "-");
        if let Some(svg) = &args.svg {
            output::check_svg(svg)?;
            if json.is_some_and(|json| output::is_same(json, svg)) {
                return Err(errors::bench_file(svg, "--json and --svg name the same file"));
            }
        }
        Ok(Files { json: json.map(open).transpose()?, svg: args.svg.as_deref().map(open).transpose()? })
    }

    /// What a person reads comes first: it is there whatever becomes of the files.
    fn write(self, args: &BenchArgs, report: Report) -> Result<(), UserError> {
        let Files { json, svg } = self;
        let text = report.json();
        let failed = |file: &Path| {
            let file = file.to_owned();
            move |e: std::io::Error| errors::bench_file(&file, &e.to_string())
        };
        match args.json.as_deref() {
            Some(file) if file.as_os_str() == "-" => out::line(&text),
            _ => out::line(report::text(&report)),
        }
        let written = match (json, args.json.as_deref()) {
            (Some(mut json), Some(file)) => json.write(&format!("{text}\n")).map_err(failed(file)),
            _ => Ok(()),
        };
        if let (Some(mut svg), Some(file)) = (svg, args.svg.as_deref()) {
            let label = format!("{} {}", report.mode_name(), args.bootstrap);
            let run = plot::Run { label, title: report.title, distribution: report.distribution };
            let drawn = plot::draw(&[run]).map_err(|why| errors::bench_file(file, &why))?;
            svg.write(&drawn).map_err(failed(file))?;
        }
        written
    }
}

/// What became of the topic.
#[derive(Debug)]
enum Gone {
    /// It is not of this run.
    Never,
    /// It is of this run, and was to stay.
    Kept,
    Deleted,
    /// It is of this run, or may be, and is there as far as is known.
    Left(UserError),
}

/// Deletes the topic if it was made here. After a signal the person waits for it: then it takes no longer than
/// [`CLEAN_UP_AFTER_SIGNAL`], and a signal that comes meanwhile ends it.
fn clean_up(args: &BenchArgs, cluster: &mut Cluster, watched: &Watched, progress: &mut Progress) -> Gone {
    if cluster.unsure {
        return Gone::Left(errors::unreachable(&args.bootstrap, "it did not say whether it made the topic"));
    }
    if !cluster.made {
        return Gone::Never;
    }
    if args.keep_topic {
        return Gone::Kept;
    }
    let deleted = if watched.is_stopped() {
        progress.end();
        out::note(&format!("deleting topic {}; Ctrl-C again to leave it", args.topic));
        // The flag is set already, and its second signal ends the process.
        cluster.delete_topic(CLEAN_UP_AFTER_SIGNAL, None)
    } else {
        cluster.delete_topic(Duration::from_secs(args.timeout_s.into()), Some(watched.stop.clone()))
    };
    match deleted {
        Ok(()) => Gone::Deleted,
        Err(e) => Gone::Left(e),
    }
}

fn floor(args: &BenchArgs, watched: &Watched, progress: &mut Progress, when: &str) -> Result<Option<Floor>, UserError> {
    let Some(dir) = &args.floor_dir else { return Ok(None) };
    progress.say(&format!("measuring the disk by itself ({when}, {} s)", 2.0 * args.floor_s));
    let measured = waltest::floor(dir, args.floor_s, &watched.stop);
    measured.map(Some).map_err(|e| if watched.is_stopped() { errors::bench_interrupted() } else { e })
}

fn topic(args: &BenchArgs, cluster: &mut Cluster, stop: &AtomicBool, progress: &mut Progress) -> Result<(), UserError> {
    match args.mode == Mode::Fetch && args.no_fill {
        true => cluster.topic_as_it_is(stop, progress),
        false => cluster.topic_ready(args.partitions, stop, progress),
    }
}

/// What a run has left behind.
#[derive(Debug)]
pub struct Measured {
    pub recorder: Recorder,
    pub arrivals: Option<Arrivals>,
    pub late: hdrhistogram::Histogram<u64>,
    pub marks: [Sample; 2],
}

fn measure(
    args: &BenchArgs,
    cluster: &mut Cluster,
    watched: &Watched,
    progress: &mut Progress,
) -> Result<(Measured, u64), UserError> {
    let clock = Clock::start();
    let ns = |seconds: f64| (seconds * 1e9) as u64;
    let batch = batch_of(args, args.records())?;
    let template = match args.mode {
        Mode::Fetch => None,
        _ => Some(template_of(args, cluster, &batch)?),
    };
    if args.mode == Mode::Fetch && !args.no_fill {
        fill(args, cluster, watched, progress)?;
    }
    let (producers, fetchers) = match &template {
        Some(template) => {
            let producers = producers(args, cluster, template, args.connections, args.in_flight())?;
            let fetchers = if args.mode == Mode::E2e { vec![consumer(args, cluster)?] } else { Vec::new() };
            (producers, fetchers)
        }
        None => (Vec::new(), readers(args, cluster)?),
    };
    let start = clock.now_ns();
    let window = match args.once {
        true => Window { from_ns: start, end_ns: start + NO_END_NS },
        false => {
            let from_ns = start + ns(args.warmup_s);
            Window { from_ns, end_ns: from_ns + ns(args.duration_s) }
        }
    };
    let schedule = args.is_open().then(|| {
        let shares = (0..args.connections).map(|c| Share::new(c, args.connections)).collect();
        (Schedule::new(start, args.rate()), shares)
    });
    let started = wall_ms();
    let mut drive = Drive {
        clock,
        addr: &args.bootstrap,
        template: template.as_ref(),
        records_per_request: args.records(),
        bytes_per_request: (args.records() * args.record_bytes) as u64,
        producers,
        schedule,
        fetchers,
        arrivals: (args.mode == Mode::E2e).then(|| Arrivals { run: run_number(), latency: histogram() }),
        recorder: Recorder::new(window),
        late: histogram(),
        timeout_ns: u64::from(args.timeout_s) * 1_000_000_000,
        stop: &watched.stop,
        requests_max: u64::MAX,
        requests_asked: 0,
    };
    let mut marks = Vec::with_capacity(2);
    drive.run(&mut || cluster.producer_id(), progress, &mut || {
        marks.push(watched.sample()?);
        Ok(())
    })?;
    let marks = marks.try_into().expect("a run has a beginning and an end");
    let Drive { recorder, arrivals, late, .. } = drive;
    Ok((Measured { recorder, arrivals, late, marks }, started))
}

fn batch_of(args: &BenchArgs, records: usize) -> Result<Batch, UserError> {
    let now_ms = wall_ms() as i64;
    let spec = BatchSpec { records, record_bytes: args.record_bytes, payload: args.payload, codec: args.codec, now_ms };
    encode::batch(&spec).map_err(|e| errors::bench_flags("the batch can not be built", &e.to_string()))
}

fn template_of(args: &BenchArgs, cluster: &Cluster, batch: &Batch) -> Result<Template, UserError> {
    let version = cluster.produce_version()?;
    let timeout_ms = i32::try_from(u64::from(args.timeout_s) * 1000).unwrap_or(i32::MAX);
    Template::new(&args.topic, version, timeout_ms, batch, args.mode == Mode::E2e)
        .map_err(|why| errors::bench_flags("the request can not be built", &why))
}

/// A connection of the load, to the broker of --bootstrap.
fn connect(args: &BenchArgs) -> Result<TcpStream, UserError> {
    let stream = client::open_within(&args.bootstrap, Duration::from_secs(args.timeout_s.into()))?;
    stream
        .set_nonblocking(true)
        .and_then(|()| stream.set_nodelay(true))
        .map_err(|e| errors::unreachable(&args.bootstrap, &e.to_string()))?;
    Ok(stream)
}

fn producers(
    args: &BenchArgs,
    cluster: &mut Cluster,
    template: &Template,
    connections: usize,
    in_flight: usize,
) -> Result<Vec<Producer>, UserError> {
    let mut made = Vec::with_capacity(connections);
    for c in 0..connections {
        let producer = if args.idempotent { Some(cluster.producer_id()?) } else { None };
        let share = partitions_of(c, connections, cluster.partitions);
        made.push(Producer::new(connect(args)?, in_flight, share, producer, template));
    }
    Ok(made)
}

fn asking(args: &BenchArgs, cluster: &Cluster) -> Result<Asking, UserError> {
    Ok(Asking {
        topic: args.topic.clone(),
        version: cluster.fetch_version()?,
        bytes_max: args.fetch_max_bytes,
        partition_bytes_max: args.partition_max_bytes,
        wait_max_ms: CONSUMER_WAIT_MS,
    })
}

/// The consumer of an end-to-end run: every partition, from its end on.
fn consumer(args: &BenchArgs, cluster: &mut Cluster) -> Result<Fetcher, UserError> {
    let ends: Vec<_> = cluster.offsets()?.into_iter().map(|(p, _, end)| (p, end, i64::MAX)).collect();
    Ok(Fetcher::new(connect(args)?, asking(args, cluster)?, &ends, false))
}

/// The connections of a fetch run: each its share of the partitions that have something.
fn readers(args: &BenchArgs, cluster: &mut Cluster) -> Result<Vec<Fetcher>, UserError> {
    let there: Vec<_> = cluster.offsets()?.into_iter().filter(|(_, first, end)| first < end).collect();
    if there.is_empty() {
        let why = format!("topic '{}' has no records; without --no-fill they are made", args.topic);
        return Err(errors::bench_flags("there is nothing to read", &why));
    }
    let mut made = Vec::new();
    for c in 0..args.connections {
        let share: Vec<_> =
            partitions_of(c, args.connections, there.len() as i32).into_iter().map(|at| there[at as usize]).collect();
        made.push(Fetcher::new(connect(args)?, asking(args, cluster)?, &share, !args.once));
    }
    Ok(made)
}

/// Produces what is to be read. A leader may need a moment after its election: what it refuses is sent again.
fn fill(args: &BenchArgs, cluster: &mut Cluster, watched: &Watched, progress: &mut Progress) -> Result<(), UserError> {
    let records = args.records().max(FILL_BATCH_BYTES / args.record_bytes.max(1));
    let template = template_of(args, cluster, &batch_of(args, records)?)?;
    let bytes = (records * args.record_bytes) as u64;
    let mut left = args.fill_mb().saturating_mul(1_000_000).div_ceil(bytes.max(1));
    for again in 0..FILL_ATTEMPTS_MAX {
        progress.say(&format!("filling the topic with {} MB", left * bytes / 1_000_000));
        let errors = fill_once(args, cluster, watched, progress, &template, records, left)?;
        left = errors.values().sum();
        if left == 0 {
            return Ok(());
        }
        if again + 1 == FILL_ATTEMPTS_MAX {
            let counted: Vec<String> = errors.iter().map(|(name, n)| format!("{name} {n} times")).collect();
            return Err(errors::bench_nothing(&args.bootstrap, &format!("filling the topic: {}", counted.join(", "))));
        }
        #[allow(clippy::disallowed_methods)] // a tool waits for a broker
        std::thread::sleep(FILL_AGAIN);
    }
    Ok(())
}

/// The errors that came, by name.
fn fill_once(
    args: &BenchArgs,
    cluster: &mut Cluster,
    watched: &Watched,
    progress: &mut Progress,
    template: &Template,
    records: usize,
    requests: u64,
) -> Result<BTreeMap<String, u64>, UserError> {
    let producers = producers(args, cluster, template, 1, FILL_IN_FLIGHT)?;
    let mut drive = Drive {
        clock: Clock::start(),
        addr: &args.bootstrap,
        template: Some(template),
        records_per_request: records,
        bytes_per_request: (records * args.record_bytes) as u64,
        producers,
        schedule: None,
        fetchers: Vec::new(),
        arrivals: None,
        recorder: Recorder::new(Window { from_ns: 0, end_ns: NO_END_NS }),
        late: histogram(),
        timeout_ns: u64::from(args.timeout_s) * 1_000_000_000,
        stop: &watched.stop,
        requests_max: requests,
        requests_asked: 0,
    };
    drive.run(&mut || cluster.producer_id(), progress, &mut || Ok(()))?;
    Ok(drive.recorder.errors)
}

fn wall_ms() -> u64 {
    #[allow(clippy::disallowed_methods)] // a tool: records carry the time
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

/// Tells the records of this run from those of another one.
fn run_number() -> u64 {
    wall_ms() << 22 | u64::from(std::process::id() & 0x3f_ffff)
}
