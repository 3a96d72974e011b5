//! How a foreign thread reaches a core's loop: another core with a full basket in the mesh, the housekeeping thread.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Wakes one core's loop; the driver sees `Event::Woken`. Cheap when the loop is awake already. From any thread.
#[derive(Clone)]
pub struct Waker(Arc<dyn Fn() + Send + Sync>);

impl Waker {
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Waker {
        Waker(Arc::new(wake))
    }

    pub fn wake(&self) {
        (self.0)();
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}

const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
const NOTIFIED: u8 = 2;

/// Whether a loop sleeps: what makes a wake of one that is awake cost an atomic swap and no system call. Shared by the
/// loop and its wakers.
///
/// No wake-up is lost: all changes are swaps (AcqRel) of one atomic, so they have one order. A `notify` before the
/// loop's [`Parking::sleep`] in that order is seen by it, and the loop does not block; one after it sees `ASLEEP` and
/// rings. Whoever reads `NOTIFIED` also sees all that the notifier did before.
#[derive(Debug, Default)]
pub(crate) struct Parking(AtomicU8);

impl Parking {
    /// From any thread. True: the loop sleeps (or is about to), and the caller has to ring its bell.
    pub(crate) fn notify(&self) -> bool {
        self.0.swap(NOTIFIED, Ordering::AcqRel) == ASLEEP
    }

    /// The loop is about to block. False: it was notified since [`Parking::awake`], and must not.
    pub(crate) fn sleep(&self) -> bool {
        self.0.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The loop is up again. True: it was notified since the last call.
    pub(crate) fn awake(&self) -> bool {
        self.0.swap(AWAKE, Ordering::AcqRel) == NOTIFIED
    }
}

/// The bell of one core's loop, made before its thread is, so that every core can be told of every other's
/// [`Bell::waker`] at once. Clones ring the same bell; one loop listens.
#[derive(Clone, Debug)]
pub struct Bell {
    parking: Arc<Parking>,
    /// An eventfd, blocking: io_uring waits on it itself.
    fd: Arc<File>,
}

impl Bell {
    /// Fails when the process is out of descriptors.
    pub fn new() -> io::Result<Bell> {
        // SAFETY: a plain system call that returns a new descriptor or -1.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: new, and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Bell { parking: Arc::default(), fd: Arc::new(File::from(fd)) })
    }

    pub fn waker(&self) -> Waker {
        let bell = self.clone();
        Waker::new(move || {
            if bell.parking.notify() {
                // It can not fail: the descriptor is ours, and the count is far from its end since each read resets it.
                (&*bell.fd).write_all(&1u64.to_ne_bytes()).expect("an eventfd takes a 1");
            }
        })
    }

    pub(crate) fn parking(&self) -> &Parking {
        &self.parking
    }

    pub(crate) fn fd(&self) -> &File {
        &self.fd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lost if it fails: a core would sleep on what another one has sent it, until something else happens.
    #[test]
    fn a_notice_is_seen_whether_it_comes_before_or_after_the_loop_falls_asleep() {
        let parking = Parking::default();
        assert!(!parking.notify(), "it is awake: no bell");
        assert!(!parking.sleep(), "it must not block");
        assert!(parking.awake());
        assert!(parking.sleep());
        assert!(parking.notify(), "it sleeps: ring");
        assert!(!parking.notify(), "the bell was rung already");
        assert!(parking.awake());
        assert!(!parking.awake());
    }
}
