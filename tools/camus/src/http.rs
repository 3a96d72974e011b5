//! The HTTP port: `/livez`, `/readyz`, `/metrics`. Served by the housekeeping thread, so that a busy core does not hide
//! how it is.
//!
//! Connections, their number, their headers and their time are bounded: nothing that comes in here can take memory or
//! descriptors from clients.

// The housekeeping thread is no core: it is made here, and has a clock of its own.
#![allow(clippy::disallowed_methods)]

use crate::board::{Board, Phase};
use crate::memory;
use crate::metrics;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::registry::Registry;
use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

/// Connections at a time, where there are descriptors for them. One more throws out the oldest: nobody waits long
/// behind the silent.
pub const CONNECTIONS_MAX: usize = 64;
/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Connections that wait to be accepted: where more knock, the kernel drops one, which tries again after a second.
const BACKLOG: i32 = 1024;
/// What a connection has at least, however many come.
const CONNECTION_TIME_MIN: Duration = Duration::from_millis(20);
/// For the head of a request to arrive.
const HEAD_TIMEOUT: Duration = Duration::from_secs(1);
/// For a connection as a whole: a scraper comes again.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);
/// How often the turns of the loops are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// Once a second: what was freed is kept that long by the allocator.
const LOOKS_PER_GIVING_BACK: u64 = 4;
/// A loop that has not turned for so long is not alive: it turns every half second at least.
const TURN_MAX: Duration = Duration::from_secs(2);

/// The running port. Dropping it ends the thread.
pub struct Http {
    pub addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Http {
    /// Serves on the listener until dropped, so many connections at a time.
    pub fn start(listener: TcpListener, board: Arc<Board>, connections_max: usize) -> io::Result<Http> {
        let addr = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        socket2::SockRef::from(&listener).listen(BACKLOG)?;
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let thread = std::thread::Builder::new().name("camus-http".to_owned()).spawn(move || {
            runtime.block_on(async move {
                tokio::select! {
                    failed = serve(listener, board, connections_max) => {
                        if let Err(error) = failed {
                            tracing::error!(%error, "the HTTP port has failed; the broker goes on without it");
                        }
                    }
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Http { addr, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has failed only by a panic, which its own message has told of.
            let _ = thread.join();
        }
    }
}

/// What the handlers read. Lives on the housekeeping thread.
struct App {
    board: Arc<Board>,
    registry: Registry,
    turns: Mutex<Vec<LastTurn>>,
}

/// When a core's loop was last seen to have turned.
#[derive(Clone, Copy, Debug)]
struct LastTurn {
    turns: u64,
    at: Instant,
}

impl LastTurn {
    /// `idle`: the loop does not turn yet, or does not any more, and need not.
    fn look(&mut self, turns: u64, idle: bool, now: Instant) {
        if turns != self.turns || idle {
            *self = LastTurn { turns, at: now };
        }
    }

    fn stands_still(&self, now: Instant) -> bool {
        now.duration_since(self.at) > TURN_MAX
    }
}

impl App {
    fn look(&self, now: Instant) {
        let mut turns = self.turns.lock().expect("no handler panics while it holds this");
        for (last, core) in turns.iter_mut().zip(&self.board.cores) {
            let idle = matches!(core.phase(), Phase::Starting | Phase::Recovering | Phase::Ended);
            last.look(core.stats.turns.turns.load(Ordering::Relaxed), idle, now);
        }
    }

    /// Cores whose loop stands still.
    fn still(&self, now: Instant) -> Vec<usize> {
        let turns = self.turns.lock().expect("no handler panics while it holds this");
        turns.iter().enumerate().filter(|(_, last)| last.stands_still(now)).map(|(core, _)| core).collect()
    }
}

async fn serve(listener: TcpListener, board: Arc<Board>, connections_max: usize) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let now = Instant::now();
    let app = Arc::new(App {
        registry: metrics::registry(Arc::clone(&board)),
        turns: Mutex::new(vec![LastTurn { turns: 0, at: now }; board.cores.len()]),
        board,
    });
    let router = Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_page))
        .route("/", get(index))
        .with_state(Arc::clone(&app));
    let mut open = Open { connections: VecDeque::new(), max: connections_max };
    tokio::spawn(async move {
        let mut looks = tokio::time::interval(LOOK_INTERVAL);
        for n in 0u64.. {
            looks.tick().await;
            app.look(Instant::now());
            if n.is_multiple_of(LOOKS_PER_GIVING_BACK) {
                memory::give_back();
            }
        }
    });
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, most likely: try again when some are back.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        open.make_room().await;
        let service = TowerToHyperService::new(router.clone());
        let task = tokio::spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .max_buf_size(HEAD_BYTES_MAX)
                .serve_connection(TokioIo::new(stream), service);
            // Errors are the peer's: it went away, or spoke no HTTP.
            let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
        });
        open.connections.push_back((Instant::now(), task.abort_handle()));
    }
}

/// The connections that are open, the oldest first.
struct Open {
    connections: VecDeque<(Instant, AbortHandle)>,
    max: usize,
}

impl Open {
    fn is_full(&mut self) -> bool {
        self.connections.retain(|(_, task)| !task.is_finished());
        self.connections.len() >= self.max
    }

    /// Throws out the oldest when there are too many, once it had its time.
    async fn make_room(&mut self) {
        while self.is_full() {
            let Some((since, task)) = self.connections.front() else { return };
            let left = CONNECTION_TIME_MIN.saturating_sub(since.elapsed());
            if left.is_zero() {
                task.abort();
                self.connections.pop_front();
            } else {
                tokio::time::sleep(left).await;
            }
        }
    }
}

async fn index() -> &'static str {
    "camus\n/livez\n/readyz\n/metrics\n"
}

fn json(status: StatusCode, body: String) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

async fn livez(State(app): State<Arc<App>>) -> Response {
    let still = app.still(Instant::now());
    let status = if still.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json(status, format!("{{\"live\":{},\"cores_standing_still\":{still:?}}}\n", still.is_empty()))
}

async fn readyz(State(app): State<Arc<App>>) -> Response {
    let reasons = app.board.reasons();
    let status = if reasons.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    // Codes and details are words of ours: nothing in them needs an escape.
    let list: Vec<String> = reasons
        .iter()
        .map(|r| {
            let core = r.core.map_or("null".to_owned(), |core| core.to_string());
            format!("{{\"core\":{core},\"code\":\"{}\",\"detail\":\"{}\"}}", r.code, r.detail)
        })
        .collect();
    json(status, format!("{{\"ready\":{},\"reasons\":[{}]}}\n", reasons.is_empty(), list.join(",")))
}

async fn metrics_page(State(app): State<Arc<App>>) -> Response {
    match metrics::page(&app.registry) {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::DiskState;
    use crate::memory::Budgets;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::atomic::AtomicBool;

    fn start(cores: usize) -> (Http, Arc<Board>) {
        let board = Arc::new(Board::new(cores, Budgets::of_core(1 << 30, cores)));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        (Http::start(listener, Arc::clone(&board), CONNECTIONS_MAX).expect("it starts"), board)
    }

    fn get(addr: SocketAddr, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect_timeout(&addr, Duration::from_secs(5)).expect("it listens");
        write!(stream, "GET {path} HTTP/1.1\r\nhost: camus\r\nconnection: close\r\n\r\n").expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("answered");
        let status = text.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status line");
        (status, text)
    }

    #[test]
    fn readyz_gives_its_reasons_to_programs_and_heals() {
        let (http, board) = start(2);
        let (status, text) = get(http.addr, "/readyz");
        assert_eq!(status, 503);
        assert!(text.contains(r#"{"core":1,"code":"starting","#), "{text}");
        board.cores.iter().for_each(|c| c.set_phase(Phase::Serving));
        assert_eq!(get(http.addr, "/readyz").0, 200);
        board.cores[0].set_disk(DiskState::NoSpace);
        let (status, text) = get(http.addr, "/readyz");
        assert_eq!(status, 503);
        assert!(text.contains(r#""ready":false,"reasons":[{"core":0,"code":"disk_full""#), "{text}");
        board.cores[0].set_disk(DiskState::Writable);
        assert_eq!(get(http.addr, "/readyz").0, 200);
    }

    /// If this fails, a broker whose loop hangs is never restarted, or one that replays a long log is.
    #[test]
    fn livez_fails_only_when_a_loop_that_should_turn_stands_still() {
        let (http, board) = start(1);
        assert_eq!(get(http.addr, "/livez").0, 200, "no loop yet");
        board.cores[0].set_phase(Phase::Recovering);
        let long = TURN_MAX + 4 * LOOK_INTERVAL;
        std::thread::sleep(long);
        assert_eq!(get(http.addr, "/livez").0, 200, "a long recovery is alive");
        board.cores[0].set_phase(Phase::Serving);
        std::thread::sleep(long);
        let (status, text) = get(http.addr, "/livez");
        assert_eq!(status, 503);
        assert!(text.contains(r#""cores_standing_still":[0]"#), "{text}");
        board.cores[0].stats.turns.turns.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(2 * LOOK_INTERVAL);
        assert_eq!(get(http.addr, "/livez").0, 200, "it turns again");
    }

    #[test]
    fn metrics_come_as_a_page_and_unknown_paths_do_not() {
        let (http, _board) = start(1);
        let (status, text) = get(http.addr, "/metrics");
        assert_eq!(status, 200);
        assert!(text.contains("content-type: text/plain; version=0.0.4"), "{text}");
        assert!(text.contains("camus_stage_seconds_bucket"), "{text}");
        assert_eq!(get(http.addr, "/else").0, 404);
    }

    /// If this fails, whoever reaches the HTTP port can take descriptors and memory from clients.
    #[test]
    fn connections_heads_and_silence_are_bounded() {
        let (http, _board) = start(1);
        let connect = || TcpStream::connect(http.addr).expect("it listens");
        let begun = Instant::now();
        let mut silent: Vec<TcpStream> = (0..CONNECTIONS_MAX + 1).map(|_| connect()).collect();
        let _ = silent[0].read_to_end(&mut Vec::new());
        assert!(begun.elapsed() < HEAD_TIMEOUT, "one more throws the oldest out");
        let _ = silent[CONNECTIONS_MAX].read_to_end(&mut Vec::new());
        assert!(begun.elapsed() < 3 * HEAD_TIMEOUT, "silence is thrown out in time");
        let mut loud = connect();
        let _ = loud.write_all(format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(4 * HEAD_BYTES_MAX)).as_bytes());
        let mut answer = String::new();
        let _ = loud.read_to_string(&mut answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    }

    /// If this fails, a broker that is well is restarted, because somebody keeps its HTTP port busy with half requests.
    #[test]
    fn livez_is_answered_in_time_however_many_send_half_a_head() {
        let (http, _board) = start(1);
        let addr = http.addr;
        let over = Arc::new(AtomicBool::new(false));
        let slow = |over: Arc<AtomicBool>| {
            move || {
                while !over.load(Ordering::Relaxed) {
                    let Ok(mut stream) = TcpStream::connect(addr) else { continue };
                    let _ = stream.write_all(b"GET / HTTP/1.1\r\n");
                    let _ = stream.read(&mut [0]);
                }
            }
        };
        let threads: Vec<_> = (0..4 * CONNECTIONS_MAX).map(|_| std::thread::spawn(slow(Arc::clone(&over)))).collect();
        std::thread::sleep(Duration::from_millis(500));
        for _ in 0..3 {
            let begun = Instant::now();
            assert_eq!(get(addr, "/livez").0, 200);
            assert!(begun.elapsed() < Duration::from_secs(1), "it took {:?}", begun.elapsed());
        }
        over.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().expect("it ended");
        }
    }

    #[test]
    fn a_dropped_port_is_free_again() {
        let (http, _board) = start(1);
        let addr = http.addr;
        drop(http);
        TcpListener::bind(addr).expect("it is free");
    }
}
