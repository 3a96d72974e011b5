//! What the real shells take from the machine: its clocks, its chance, its sockets. The only clock reads of the engine.
#![allow(clippy::disallowed_methods, reason = "this is the shells' side: time comes from here")]

use super::rng::Rng;
use crate::limits::LISTEN_BACKLOG;
use crate::types::{Mono, WallMs};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Time since the first call in this process; the same for all cores.
pub(super) fn mono() -> Mono {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = *START.get_or_init(Instant::now);
    // From 1 on, so that 0 can mean never.
    Mono(u64::try_from(start.elapsed().as_nanos()).expect("a process lives less than 584 years") + 1)
}

pub(super) fn wall() -> WallMs {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis());
    WallMs(i64::try_from(since).unwrap_or(i64::MAX))
}

/// Chance that differs from core to core and from start to start.
pub(super) fn seeded() -> Rng {
    let mut seed = [0u8; 8];
    // SAFETY: the buffer is ours and of that length.
    let got = unsafe { libc::getrandom(seed.as_mut_ptr().cast(), seed.len(), 0) };
    assert_eq!(got, 8, "the kernel gives 8 random bytes at once");
    Rng::new(u64::from_ne_bytes(seed))
}

/// A listening socket; every core may have one on the same address.
pub(super) fn listener(addr: SocketAddr) -> io::Result<(Socket, SocketAddr)> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&SockAddr::from(addr))?;
    socket.listen(LISTEN_BACKLOG)?;
    let addr = address(&socket.local_addr()?)?;
    Ok((socket, addr))
}

pub(super) fn outgoing(addr: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    prepare(&socket)?;
    Ok(socket)
}

/// What every connection gets: answers leave at once, and a peer that vanished is noticed some day.
pub(super) fn prepare(socket: &Socket) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    socket.set_keepalive(true)
}

pub(super) fn address(addr: &SockAddr) -> io::Result<SocketAddr> {
    addr.as_socket().ok_or_else(|| io::Error::other("not an internet address"))
}

/// A thread with a name that `top -H` shows.
pub(super) fn spawn<T: Send + 'static>(
    name: String,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<std::thread::JoinHandle<T>> {
    std::thread::Builder::new().name(name).spawn(body)
}

/// Where threads of this process may run that are no core's, as it was when the first core was started.
static FREE_CPUS: OnceLock<CpuSet> = OnceLock::new();

/// Called before a core is pinned.
pub(super) fn remember_cpus() {
    if let Ok(cpus) = sched_getaffinity(None) {
        FREE_CPUS.get_or_init(|| cpus);
    }
}

/// A thread for what takes long, started from a core and not bound to its CPU: it is not to take turns with it.
pub(crate) fn spawn_helper<T: Send + 'static>(
    name: String,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<std::thread::JoinHandle<T>> {
    spawn(name, move || {
        if let Some(cpus) = FREE_CPUS.get() {
            // Refused, it stays where the core is: slower, and no less right.
            let _ = sched_setaffinity(None, cpus);
        }
        body()
    })
}

/// Blocks the calling thread: at start only, before its loop runs.
pub(super) fn pause(time: std::time::Duration) {
    std::thread::sleep(time);
}

/// RLIMIT_MEMLOCK of this process, bytes.
pub(crate) fn memlock_bytes() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the struct is ours; the call fills it.
    let failed = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } != 0;
    if failed { 0 } else { limit.rlim_cur }
}

/// Raises the limit of open descriptors as far as the system lets this process, and returns it. Each connection, file
/// and core takes one: whoever sets [`super::CoreConfig::conns_max`] keeps the sum of them below it.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the struct is ours; the call fills it.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
    // SAFETY: the struct is ours; the call reads it.
    let refused = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raised) } != 0;
    Ok(if refused { limit.rlim_cur } else { raised.rlim_cur })
}
