//! What is known of a disk and a host before anything is judged: strings and numbers as they were read.

use crate::settings::IoAsked;
use crate::waltest::Floor;
use std::path::PathBuf;

/// Everything that the checks look at.
#[derive(Clone, PartialEq, Debug)]
pub struct Facts {
    pub wanted: Wanted,
    pub disk: Disk,
    pub kernel: Kernel,
    pub host: Host,
    pub start: Start,
    /// `Err`: why it could not be measured, and what to run.
    pub floor: Result<Measured, (String, String)>,
}

/// What a broker with these settings would take.
#[derive(Clone, PartialEq, Debug)]
pub struct Wanted {
    /// For each core its CPU, if it is pinned.
    pub cores: Vec<Option<usize>>,
    pub memory_bytes: u64,
    /// Buffers of the log that each core registers with its ring.
    pub registered_bytes: u64,
    /// Of all cores.
    pub wal_limit_bytes: u64,
    pub segment_bytes: u64,
    pub connections_max: usize,
    pub listeners: usize,
    /// Brokers of the cluster beside this one.
    pub others: usize,
    pub io: IoAsked,
}

/// What the data directory's path leads to.
#[derive(Clone, PartialEq, Debug)]
pub enum Place {
    Directory,
    /// It will be made by the first start. `parent`: there is one already.
    New {
        parent: bool,
    },
    NotADirectory,
    /// With the system's words.
    Unreadable(String),
}

#[derive(Clone, PartialEq, Debug)]
pub struct Disk {
    pub data_dir: PathBuf,
    pub place: Place,
    /// What was looked at: the directory, or the nearest one above it that exists.
    pub looked_at: PathBuf,
    pub writable: bool,
    /// Whose rights this process has: a name, or a number where it has none.
    pub user: String,
    /// Of the data directory itself. `None`: it is not there, or can not be reached.
    pub owner: Option<String>,
    /// The data directory holds something, and no broker's identity.
    pub foreign: bool,
    pub mount: Option<Mount>,
    /// `None`: the file system does not say (overlay, btrfs, network).
    pub device: Option<Device>,
    pub total_bytes: u64,
    /// For this user.
    pub free_bytes: u64,
    /// What the log holds already.
    pub wal_bytes: u64,
    pub dir_flush: Result<(), String>,
    /// Directories of cores that lie on another file system.
    pub elsewhere: Vec<PathBuf>,
}

/// A line of mountinfo.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Mount {
    pub point: String,
    pub kind: String,
    pub source: String,
    /// Of the mount and of the file system.
    pub options: Vec<String>,
}

/// The block device below, as sysfs has it. A partition has its disk's queue.
#[derive(Clone, PartialEq, Debug, Default, serde::Serialize)]
pub struct Device {
    /// Of the whole disk: `vda`, `nvme0n1`, `dm-0`.
    pub name: String,
    pub model: String,
    pub write_cache: String,
    pub fua: String,
    pub rotational: String,
    /// The one in use.
    pub scheduler: String,
    pub nomerges: String,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Kernel {
    pub release: String,
    /// /proc/sys/kernel/io_uring_disabled; empty where there is none.
    pub io_uring_disabled: String,
    /// Whether a ring like the broker's can be had.
    pub ring: Result<(), String>,
    /// Hard limits of this process (`None`: unlimited): the broker raises the soft ones to them.
    pub memlock_bytes: Option<u64>,
    pub descriptors: Option<u64>,
    /// CAP_IPC_LOCK: the limit does not count.
    pub may_lock: bool,
    pub somaxconn: Option<u64>,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Host {
    /// CPUs that this process may use.
    pub cpus: Vec<usize>,
    pub memory_bytes: u64,
    /// Of the control group and all above it.
    pub group_cpus: Option<f64>,
    pub group_memory_bytes: Option<u64>,
    /// Threads that run or wait for the disk, over the last minute.
    pub load: Option<f64>,
    pub clock_source: String,
    /// Of each CPU: which share its physical core. Where it is known.
    pub siblings: Vec<(usize, Vec<usize>)>,
    /// Of the CPUs that would be used, each once. Empty where none is visible.
    pub governors: Vec<String>,
    pub huge_pages: String,
    pub swappiness: Option<u64>,
    pub swap_bytes: u64,
}

/// What a start would meet.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Start {
    /// Who has the data directory, if somebody has.
    pub holder: Option<Holder>,
    /// Those of `listeners`, in their order.
    pub listeners: Vec<Address>,
    pub http: Address,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Holder {
    /// `None`: it did not write it down.
    pub pid: Option<u32>,
    /// Who it is, in words.
    pub said: String,
}

/// An address that the broker would listen on.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Address {
    pub host: String,
    /// As text, `HOST:PORT`.
    pub asked: String,
    pub port: u16,
    pub open: Open,
    /// Where it is taken or not allowed: a port of the same host that is neither.
    pub free_port: Option<u16>,
}

/// Whether an address can be opened.
#[derive(Clone, PartialEq, Debug, Default)]
pub enum Open {
    #[default]
    Yes,
    Taken,
    /// A port below 1024, without the right to it.
    NotAllowed,
    /// With the system's words: no such name, or an address of another host.
    No(String),
}

/// What was measured on the disk.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    pub floor: Floor,
    /// Writes that were made durable while the device's flushes were counted.
    pub writes: u64,
    /// Flushes that the device's own counter went up by. `None`: it has none.
    pub flushes: Option<u64>,
    /// Alignment that direct I/O asks for, bytes: of memory, of the offset. `None`: it is not told.
    pub direct_align: Option<(u32, u32)>,
}
