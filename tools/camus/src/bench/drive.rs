//! The loop that drives all connections: one thread, one epoll, no allocation per request.
//!
//! Before a request that is due soon it waits with a timer that is precise (`epoll_pwait2` without the kernel's slack;
//! rustix uses it with the feature `linux_5_11` only, else it rounds up to whole milliseconds)
//! until shortly before, then looks at the sockets without waiting: as long as the timer was late before, at most
//! [`SPIN_NS_MAX`] a request, and not at all when requests come so often that this would take a core.

use super::conn::{Fault, Producer};
use super::encode::Template;
use super::fetch::{Fetcher, Got};
use super::load::{Schedule, Share};
use super::stats::Recorder;
use super::{Progress, wire};
use crate::client::code_name;
use crate::errors::{self, UserError};
use hdrhistogram::Histogram;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::fd::OwnedFd;
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Looked at without waiting before a request is due, at most and at least.
const SPIN_NS_MAX: u64 = 50_000;
const SPIN_NS_MIN: u64 = 2_000;
/// Requests closer together than this are never waited for by looking: it would take more than a quarter of a core.
const SPIN_INTERVAL_NS_MIN: u64 = 4 * SPIN_NS_MAX;
/// Time-outs and progress are looked at this often.
const TICK_NS: u64 = 200_000_000;
const EVENTS_MAX: usize = 256;
/// Records that were due near the end may still be on their way to the consumer.
const ARRIVAL_WAIT_NS: u64 = 5_000_000_000;
/// Errors that are no broker's: due and never sent; acknowledged and never with the consumer.
pub const NOT_SENT: &str = "NOT_SENT";
pub const NOT_ARRIVED: &str = "NOT_ARRIVED";
const MESSAGE_TOO_LARGE: i16 = 10;
const RECORD_LIST_TOO_LARGE: i16 = 18;

/// One time for everything that is measured.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    pub fn start() -> Clock {
        #[allow(clippy::disallowed_methods)] // a tool measures time
        Clock(Instant::now())
    }

    pub fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

/// What becomes of the consumer's side.
#[derive(Debug)]
pub struct Arrivals {
    pub run: u64,
    pub latency: Histogram<u64>,
}

/// A run: what drives it, what it is driven against, what came of it.
#[derive(Debug)]
pub struct Drive<'a> {
    pub clock: Clock,
    pub addr: &'a str,
    pub template: Option<&'a Template>,
    pub records_per_request: usize,
    pub bytes_per_request: u64,
    pub producers: Vec<Producer>,
    /// Open loop: the schedule and each connection's share of it.
    pub schedule: Option<(Schedule, Vec<Share>)>,
    pub fetchers: Vec<Fetcher>,
    /// Set if the fetchers are consumers of what the producers send; else they are the load.
    pub arrivals: Option<Arrivals>,
    pub recorder: Recorder,
    /// Open loop: how late requests were handed to their connection, because its slots were taken or this process late.
    pub late: Histogram<u64>,
    pub timeout_ns: u64,
    /// Set by a signal: the run ends at once, without a result.
    pub stop: &'a AtomicBool,
    /// Closed loop: end after so many requests, whatever the time.
    pub requests_max: u64,
    pub requests_asked: u64,
}

impl Drive<'_> {
    /// Drives to the end. `renew` gives a producer id to an idempotent producer whose sequences have a hole; `mark` is
    /// called when the measured time begins and when it has ended.
    pub fn run(
        &mut self,
        renew: &mut dyn FnMut() -> Result<(i64, i16), UserError>,
        progress: &mut Progress,
        mark: &mut dyn FnMut() -> Result<(), UserError>,
    ) -> Result<(), UserError> {
        // Without it a timer is up to 50 us late. It holds for this thread only; where it is not allowed, it is late.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let epoll = self.register().map_err(|e| errors::bench_lost(self.addr, &format!("epoll: {e}")))?;
        let window = self.recorder.window;
        let mut tick = self.clock.now_ns() + TICK_NS;
        let (mut begun, mut ended) = (false, false);
        // How late a timer wakes this thread, as a mean that forgets.
        let mut woken_late_ns = SPIN_NS_MAX;
        let mut events = [MaybeUninit::<Event>::uninit(); EVENTS_MAX];
        for i in 0..self.producers.len() {
            self.send(i)?;
        }
        for i in 0..self.fetchers.len() {
            self.fetch(i)?;
        }
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(errors::bench_interrupted());
            }
            let now = self.clock.now_ns();
            if !begun && now >= window.from_ns {
                begun = true;
                mark()?;
            }
            if !ended && (now >= window.end_ns || self.has_all()) {
                ended = true;
                self.recorder.window.end_ns = window.end_ns.min(now);
            }
            if ended && self.is_drained(now) {
                break;
            }
            if now >= tick {
                tick = now + TICK_NS;
                self.recorder.turn_seconds(now.min(self.recorder.window.end_ns));
                self.check_time(now)?;
                self.progress(progress, now);
            }
            if self.schedule.is_some() {
                for i in 0..self.producers.len() {
                    self.send(i)?;
                }
            }
            let next = if begun { window.end_ns } else { window.from_ns };
            let until = tick.min(if ended { tick } else { next });
            let timeout = self.timeout(until, woken_late_ns);
            let wake = self.clock.now_ns() + ns_of(&timeout);
            let ready = match epoll::wait(&epoll, &mut events, Some(&timeout)) {
                Ok((ready, _)) => ready,
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(errors::bench_lost(self.addr, &format!("epoll: {e}"))),
            };
            if ready.is_empty() && ns_of(&timeout) > 0 {
                let late = self.clock.now_ns().saturating_sub(wake).min(SPIN_NS_MAX);
                woken_late_ns = (7 * woken_late_ns + late) / 8;
            }
            for event in ready {
                let (i, flags) = (event.data.u64() as usize, event.flags);
                self.event(i, flags, renew, &epoll)?;
            }
        }
        if !begun {
            mark()?;
        }
        mark()?;
        self.recorder.turn_seconds(self.recorder.window.end_ns);
        self.count_missing();
        Ok(())
    }

    /// What was due and never sent, and what was acknowledged and never arrived.
    fn count_missing(&mut self) {
        let window = self.recorder.window;
        if let Some((schedule, shares)) = &self.schedule {
            let left = shares.iter().map(|share| share.left(schedule, window.end_ns)).sum();
            self.recorder.failed_times(window.from_ns, NOT_SENT, left);
        }
        if let Some(arrivals) = &self.arrivals {
            let missing = self.recorder.requests().saturating_sub(arrivals.latency.len());
            self.recorder.failed_times(window.from_ns, NOT_ARRIVED, missing);
        }
    }

    fn register(&self) -> rustix::io::Result<OwnedFd> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let streams = self.producers.iter().map(|p| &p.stream).chain(self.fetchers.iter().map(|f| &f.stream));
        for (i, stream) in streams.enumerate() {
            epoll::add(&epoll, stream, EventData::new_u64(i as u64), EventFlags::IN)?;
        }
        Ok(epoll)
    }

    /// How long to wait: until something is due, or until a moment before it if the rest is to be looked at.
    fn timeout(&self, until: u64, woken_late_ns: u64) -> Timespec {
        let now = self.clock.now_ns();
        let mut wait = until.saturating_sub(now);
        if let Some((schedule, shares)) = &self.schedule {
            let able = shares.iter().zip(&self.producers).filter(|(_, p)| p.may_ask());
            // What is due after the end, or can not be sent any more, is not waited for.
            let end = self.recorder.window.end_ns;
            let open = now <= end.saturating_add(self.timeout_ns);
            let due = able.map(|(share, _)| share.due_ns(schedule)).filter(|due| open && *due < end).min();
            if let Some(due) = due {
                let due_in = due.saturating_sub(now);
                let spin = match schedule.interval_ns() >= SPIN_INTERVAL_NS_MIN {
                    true => (2 * woken_late_ns).clamp(SPIN_NS_MIN, SPIN_NS_MAX),
                    false => 0,
                };
                wait = wait.min(due_in.saturating_sub(spin));
            }
        }
        Timespec { tv_sec: (wait / 1_000_000_000) as i64, tv_nsec: (wait % 1_000_000_000) as i64 }
    }

    /// Everything that was asked for by number is there.
    fn has_all(&self) -> bool {
        self.requests_asked >= self.requests_max
            || (self.producers.is_empty() && self.fetchers.iter().all(Fetcher::is_done))
    }

    /// Nothing is on its way any more.
    fn is_drained(&self, now: u64) -> bool {
        let left = self.has_left() && now < self.recorder.window.end_ns + self.timeout_ns;
        let producing = left || self.producers.iter().any(|p| p.in_flight() > 0);
        match &self.arrivals {
            _ if producing => false,
            None => self.fetchers.iter().all(|f| f.oldest_ns().is_none()),
            Some(arrivals) => {
                arrivals.latency.len() >= self.recorder.requests()
                    || now >= self.recorder.last_ns.max(self.recorder.window.end_ns) + ARRIVAL_WAIT_NS
            }
        }
    }

    /// Requests of an open loop that were due and could not be sent yet.
    fn has_left(&self) -> bool {
        let end = self.recorder.window.end_ns;
        self.schedule.as_ref().is_some_and(|(schedule, shares)| shares.iter().any(|s| s.due_ns(schedule) < end))
    }

    /// Asks for as much as connection `i` may have in flight.
    fn send(&mut self, i: usize) -> Result<(), UserError> {
        let Some(template) = self.template else { return Ok(()) };
        let end = self.recorder.window.end_ns;
        let producer = &mut self.producers[i];
        let mut asked = false;
        while producer.may_ask() {
            let now = self.clock.now_ns();
            let start = match &mut self.schedule {
                None => (now < end && self.requests_asked < self.requests_max).then_some(now),
                Some(_) if now > end.saturating_add(self.timeout_ns) => None,
                Some((schedule, shares)) => shares[i].take(schedule, now, end),
            };
            let Some(start) = start else { break };
            if self.schedule.is_some() && self.recorder.window.has(start) {
                self.late.saturating_record((now - start).max(1));
            }
            let run = self.arrivals.as_ref().map(|a| a.run);
            producer.ask(template, self.records_per_request as i32, start, now, run);
            self.requests_asked += 1;
            asked = true;
        }
        if asked && !producer.blocked {
            producer.flush(template).map_err(|fault| lost(self.addr, fault))?;
        }
        Ok(())
    }

    /// Asks for more on fetching connection `i`, if there is to be more.
    fn fetch(&mut self, i: usize) -> Result<(), UserError> {
        let now = self.clock.now_ns();
        let more = self.arrivals.is_some() || (now < self.recorder.window.end_ns && !self.fetchers[i].is_done());
        match more && self.fetchers[i].oldest_ns().is_none() {
            true => self.fetchers[i].ask(now).map_err(|fault| lost(self.addr, fault)),
            false => Ok(()),
        }
    }

    fn event(
        &mut self,
        i: usize,
        flags: EventFlags,
        renew: &mut dyn FnMut() -> Result<(i64, i16), UserError>,
        epoll: &OwnedFd,
    ) -> Result<(), UserError> {
        let readable = flags.intersects(EventFlags::IN | EventFlags::ERR | EventFlags::HUP);
        let producers = self.producers.len();
        let was_blocked;
        if i < producers {
            was_blocked = self.producers[i].blocked;
            if readable {
                self.answers(i)?;
            }
            if flags.contains(EventFlags::OUT)
                && let Some(template) = self.template
            {
                self.producers[i].flush(template).map_err(|fault| lost(self.addr, fault))?;
            }
            let producer = &mut self.producers[i];
            if producer.broken && producer.in_flight() == 0 {
                producer.begin_anew(renew()?);
            }
            self.send(i)?;
        } else {
            let i = i - producers;
            was_blocked = self.fetchers[i].blocked;
            if readable {
                self.arrived(i)?;
            }
            if flags.contains(EventFlags::OUT) {
                self.fetchers[i].flush().map_err(|fault| lost(self.addr, fault))?;
            }
            self.fetch(i)?;
        }
        let (stream, blocked) = self.stream(i);
        if blocked != was_blocked {
            let wanted = if blocked { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            epoll::modify(epoll, stream, EventData::new_u64(i as u64), wanted)
                .map_err(|e| errors::bench_lost(self.addr, &format!("epoll: {e}")))?;
        }
        Ok(())
    }

    fn stream(&self, i: usize) -> (&TcpStream, bool) {
        match self.producers.get(i) {
            Some(producer) => (&producer.stream, producer.blocked),
            None => {
                let fetcher = &self.fetchers[i - self.producers.len()];
                (&fetcher.stream, fetcher.blocked)
            }
        }
    }

    /// Answers to produce requests of connection `i`.
    fn answers(&mut self, i: usize) -> Result<(), UserError> {
        let Some(template) = self.template else { return Ok(()) };
        let now = self.clock.now_ns();
        let (records, bytes) = (self.records_per_request as u64, self.bytes_per_request);
        let recorder = &mut self.recorder;
        let mut too_large = None;
        let read = self.producers[i].read(template.version, |answer| match answer.error {
            0 => recorder.answered(answer.start_ns, now, records, bytes),
            code => {
                if matches!(code, MESSAGE_TOO_LARGE | RECORD_LIST_TOO_LARGE) {
                    too_large = Some(code);
                }
                recorder.failed(answer.start_ns, &code_name(code));
            }
        });
        read.map_err(|fault| lost(self.addr, fault))?;
        match too_large {
            Some(code) => Err(errors::bench_record(self.addr, &code_name(code), template.tail.len())),
            None => Ok(()),
        }
    }

    /// What came on fetching connection `i`.
    fn arrived(&mut self, i: usize) -> Result<(), UserError> {
        let now = self.clock.now_ns();
        let window = self.recorder.window;
        let arrivals = &mut self.arrivals;
        let got = self.fetchers[i].read(|_, batch| {
            let Some(arrivals) = arrivals else { return };
            if let Some(sent_ns) = stamp(batch.bytes, arrivals.run).filter(|ns| window.has(*ns)) {
                arrivals.latency.saturating_record(now.saturating_sub(sent_ns).max(1));
            }
        });
        let Some(Got { start_ns, bytes, records, error, errors }) = got.map_err(|fault| lost(self.addr, fault))? else {
            return Ok(());
        };
        if errors > 0 {
            self.recorder.failed_times(start_ns, &code_name(error), errors);
        }
        if self.arrivals.is_none() && errors == 0 {
            self.recorder.answered(start_ns, now, records, bytes);
        }
        Ok(())
    }

    fn check_time(&self, now: u64) -> Result<(), UserError> {
        let produces = self.producers.iter().filter_map(Producer::oldest_ns);
        let oldest = produces.chain(self.fetchers.iter().filter_map(Fetcher::oldest_ns)).min();
        match oldest {
            Some(ns) if now.saturating_sub(ns) > self.timeout_ns => {
                let why =
                    format!("a request was not answered within {} s (--timeout-s)", self.timeout_ns / 1_000_000_000);
                Err(errors::bench_lost(self.addr, &why))
            }
            _ => Ok(()),
        }
    }

    fn progress(&self, progress: &mut Progress, now: u64) {
        let window = self.recorder.window;
        let state = match now {
            _ if now < window.from_ns => format!("warming up, {} s", (window.from_ns - now).div_ceil(1_000_000_000)),
            _ if now < window.end_ns => format!("{} s left", (window.end_ns - now).div_ceil(1_000_000_000)),
            _ => "waiting for the last answers".to_owned(),
        };
        let last = self.recorder.timeline.last();
        let rate =
            last.map_or(String::new(), |s| format!("   {}/s  p50 {:.0} us  p99 {:.0} us", s.requests, s.p50, s.p99));
        progress.say(&format!("{state}{rate}"));
    }
}

fn ns_of(time: &Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// When the batch was to be sent, if it is of this run.
fn stamp(batch: &[u8], run: u64) -> Option<u64> {
    let value = wire::first_value(batch)?;
    let number = |at: usize| Some(u64::from_be_bytes(value.get(at..at + 8)?.try_into().ok()?));
    (number(0)? == run).then(|| number(8)).flatten()
}

fn lost(addr: &str, fault: Fault) -> UserError {
    match fault {
        Fault::Io(error) => errors::bench_lost(addr, &error.to_string()),
        Fault::Closed => errors::bench_lost(addr, "it closed a connection"),
        Fault::Garbled(why) => errors::broker_answer(addr, why),
    }
}

#[cfg(test)]
mod tests {
    use super::super::encode::{BatchSpec, Codec, Payload, batch};
    use super::super::load::Window;
    use super::*;
    use crate::percentiles::{Percentiles, histogram};
    use bytes::{BufMut, Bytes, BytesMut};
    use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
    use kafka_protocol::messages::{ProduceResponse, ResponseHeader};
    use kafka_protocol::protocol::{Encodable, HeaderVersion, decode_request_header_from_buffer};
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Duration;

    const VERSION: i16 = 9;
    static GO_ON: AtomicBool = AtomicBool::new(false);

    /// Answers Produce on one connection, `stall` late to request `stalled`, with `code` as long as it is given one.
    fn server(stalled: u64, stall: Duration, code: fn(u64) -> i16) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        stream.set_nonblocking(true).expect("it may");
        #[allow(clippy::disallowed_methods)] // a test
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.set_nodelay(true).expect("it may");
            for number in 0u64.. {
                let mut length = [0; 4];
                if stream.read_exact(&mut length).is_err() {
                    return;
                }
                let mut frame = vec![0; u32::from_be_bytes(length) as usize];
                stream.read_exact(&mut frame).expect("a request");
                let header = decode_request_header_from_buffer(&mut Bytes::from(frame)).expect("a header");
                if number == stalled {
                    std::thread::sleep(stall);
                }
                let part = PartitionProduceResponse::default().with_index(0).with_error_code(code(number));
                let topic = TopicProduceResponse::default().with_partition_responses(vec![part]);
                let mut body = BytesMut::new();
                ResponseHeader::default()
                    .with_correlation_id(header.correlation_id)
                    .encode(&mut body, ProduceResponse::header_version(VERSION))
                    .expect("it encodes");
                ProduceResponse::default().with_responses(vec![topic]).encode(&mut body, VERSION).expect("it encodes");
                let mut answer = BytesMut::new();
                answer.put_u32(body.len() as u32);
                answer.extend_from_slice(&body);
                if stream.write_all(&answer).is_err() {
                    return;
                }
            }
        });
        stream
    }

    fn template() -> Template {
        let spec = BatchSpec { records: 1, record_bytes: 100, payload: Payload::Random, codec: Codec::None, now_ms: 1 };
        Template::new("t", VERSION, 1000, &batch(&spec).expect("it packs"), false).expect("it encodes")
    }

    fn drive(template: &Template, stream: TcpStream, rate: Option<f64>, seconds: f64, idempotent: bool) -> Drive<'_> {
        let clock = Clock::start();
        let window = Window { from_ns: 0, end_ns: (seconds * 1e9) as u64 };
        let producer = idempotent.then_some((1, 0));
        Drive {
            clock,
            addr: "a test",
            template: Some(template),
            records_per_request: 1,
            bytes_per_request: 100,
            producers: vec![Producer::new(stream, 1, vec![0], producer, template)],
            schedule: rate.map(|rate| (Schedule::new(0, rate), vec![Share::new(0, 1)])),
            fetchers: Vec::new(),
            arrivals: None,
            recorder: Recorder::new(window),
            late: histogram(),
            timeout_ns: 20_000_000_000,
            stop: &GO_ON,
            requests_max: u64::MAX,
            requests_asked: 0,
        }
    }

    fn run(drive: &mut Drive<'_>) -> Result<(), UserError> {
        drive.run(&mut || Ok((2, 0)), &mut Progress::new(), &mut || Ok(()))
    }

    /// Lost if it fails: the truth about a broker that stalls. One stall of 300 ms in a second of 1,000 requests delays
    /// three in ten of them; a client that waits with its next request would report one.
    #[test]
    fn an_open_loop_counts_a_stall_for_each_request_that_was_due_in_it() {
        let template = template();
        let mut drive = drive(&template, server(300, Duration::from_millis(300), |_| 0), Some(1000.0), 1.0, false);
        run(&mut drive).expect("it lasts");
        let seen = Percentiles::of(&drive.recorder.latency);
        assert_eq!(seen.count, 1000, "each that was due is counted once");
        assert!(seen.max >= 290_000.0 && seen.p90 >= 150_000.0, "{seen:?}");
        assert!(Percentiles::of(&drive.late).p90 >= 150_000.0, "they were late because the slot was taken");
    }

    /// Lost if it fails: a run that hangs, or tells less than was asked for, when the broker can not keep the rate.
    #[test]
    fn what_is_due_and_is_never_sent_is_counted_as_an_error() {
        let template = template();
        let stalled = server(3, Duration::from_millis(700), |_| 0);
        let mut drive = drive(&template, stalled, Some(1_000_000.0), 0.1, false);
        drive.timeout_ns = 1_000_000_000;
        run(&mut drive).expect("it ends");
        let left = drive.recorder.errors["NOT_SENT"];
        assert_eq!(drive.recorder.requests() + left, 100_000);
        assert!(left > 0);
    }

    /// Lost if it fails: runs against a broker that refuses, and what it refused with. After an error an idempotent
    /// producer begins anew, or all that follow would fail for their sequence.
    #[test]
    fn errors_are_counted_by_name_and_the_load_goes_on() {
        let template = template();
        let refusing = server(u64::MAX, Duration::ZERO, |number| if number % 2 == 1 { 6 } else { 0 });
        let mut drive = drive(&template, refusing, None, 60.0, true);
        drive.requests_max = 20;
        run(&mut drive).expect("it lasts");
        assert_eq!(drive.recorder.errors["NOT_LEADER_OR_FOLLOWER"], 10);
        assert_eq!(drive.recorder.requests(), 10);
        assert_eq!(drive.producers[0].producer, Some((2, 0)));
    }

    #[test]
    fn a_broker_that_closes_or_takes_too_long_ends_the_run() {
        let template = template();
        let too_large = server(u64::MAX, Duration::ZERO, |_| 10);
        assert_eq!(run(&mut drive(&template, too_large, None, 60.0, false)).expect_err("too large").code, "CAM-0604");
        let mut slow = drive(&template, server(1, Duration::from_secs(5), |_| 0), None, 60.0, false);
        slow.timeout_ns = 300_000_000;
        assert_eq!(run(&mut slow).expect_err("too slow").code, "CAM-0603");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        stream.set_nonblocking(true).expect("it may");
        drop(listener.accept().expect("a connection"));
        assert_eq!(run(&mut drive(&template, stream, None, 60.0, false)).expect_err("closed").code, "CAM-0603");
    }
}
