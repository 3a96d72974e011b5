//! What a person reads when Camus says no: five parts, a code, and an exit status of its own.
//!
//! Every text here is held by a golden file (`golden/errors.txt`): it is part of the interface, scripts match the
//! codes.

use camus_engine::io::floor::FloorError;
use camus_engine::limits::BLOCK_BYTES;
use camus_engine::rt::RtError;
use camus_engine::types::CoreId;
use camus_engine::wal::WalError;
use std::fmt;
use std::path::Path;

/// How the process ends. Part of the interface: a service manager may decide by it whether to start again.
pub mod exit {
    /// Done as asked.
    pub const OK: u8 = 0;
    /// The answer is no: the broker refused a command, or a check found something.
    pub const REFUSED: u8 = 1;
    /// The command line or a setting is wrong. Starting again does not help.
    pub const USAGE: u8 = 2;
    /// A write or a flush failed while the broker ran. What was acknowledged is on the media; nothing was acknowledged
    /// after.
    pub const STORAGE: u8 = 10;
    /// The write-ahead log is damaged. Starting again does not help.
    pub const WAL_DAMAGED: u8 = 11;
    /// Another process has the data directory.
    pub const DATA_DIR_LOCKED: u8 = 12;
    /// The data directory can not be used, or is not this broker's.
    pub const DATA_DIR: u8 = 13;
    /// A listener can not be opened.
    pub const LISTEN: u8 = 14;
    /// The kernel does not give what the loop needs.
    pub const RUNTIME: u8 = 15;
    /// A core's thread ended though nobody asked it to: a fault of Camus.
    pub const CORE_FAILED: u8 = 16;
    /// Not everything in flight was finished within the time for stopping. Nothing acknowledged is lost.
    pub const STOP_TIMEOUT: u8 = 17;
    /// No broker answers at the address.
    pub const UNREACHABLE: u8 = 20;
    /// A measurement was stopped by a signal; as shells tell of SIGINT.
    pub const INTERRUPTED: u8 = 130;

    /// Each status with its meaning, for the documentation.
    pub const ALL: &[(u8, &str)] = &[
        (OK, "done as asked"),
        (REFUSED, "the answer is no: the broker refused"),
        (USAGE, "the command line or a setting is wrong"),
        (STORAGE, "a write or a flush failed while the broker ran"),
        (WAL_DAMAGED, "the write-ahead log is damaged"),
        (DATA_DIR_LOCKED, "another process has the data directory"),
        (DATA_DIR, "the data directory can not be used, or is not this broker's"),
        (LISTEN, "a listener can not be opened"),
        (RUNTIME, "the kernel does not give what the loop needs"),
        (CORE_FAILED, "a core's thread ended though nobody asked it to"),
        (STOP_TIMEOUT, "not everything in flight was finished within the time for stopping"),
        (UNREACHABLE, "no broker answers at the address"),
        (INTERRUPTED, "a measurement was stopped by a signal"),
    ];
}

/// One kind of error, as `camus explain` tells of it.
#[derive(Debug)]
pub struct Code {
    pub code: &'static str,
    pub status: u8,
    pub title: &'static str,
    pub explain: &'static str,
}

macro_rules! codes {
    ($($name:ident = $code:literal, $status:ident, $title:literal, $explain:literal;)*) => {
        $(
            #[doc = $title]
            pub const $name: &Code =
                &Code { code: $code, status: exit::$status, title: $title, explain: $explain };
        )*
        /// All of them, in the order of their numbers. A number is never used again for something else.
        pub const CODES: &[&Code] = &[$($name),*];
    };
}

codes! {
    UNKNOWN_SETTING = "CAM-0001", USAGE, "there is no such setting",
"A key in the configuration file, a CAMUS_* environment variable or a --set names a setting that Camus does not
have. Camus refuses to start instead of going on without it: a misspelt durability or memory setting that is
silently ignored is found out at the worst time. The nearest name is given. All settings: docs/settings.md or
`camus settings`. Environment variables that begin with CAMUS_TEST_ are left alone.";
    BAD_VALUE = "CAM-0002", USAGE, "a setting has a value that is not allowed",
"The value is of the wrong type or outside the range. Sizes take KiB, MiB, GiB (powers of 1024) or plain bytes.
Where a setting is given more than once, a flag beats the environment, and the environment beats the file: the
error names the place that won.";
    BAD_CONFIG_FILE = "CAM-0003", USAGE, "the configuration file can not be read",
"The file named by --config (or CAMUS_CONFIG) does not exist, can not be opened, or is not TOML. Keys may be
written with dots (num.partitions = 3) or in tables.";
    CONTRADICTION = "CAM-0004", USAGE, "two settings contradict each other",
"Each setting is allowed alone, but not together with another one. The error names both.";
    DATA_DIR_IO = "CAM-0101", DATA_DIR, "the data directory can not be used",
"The operating system refused to make, open, write or flush something in the data directory. Camus needs to own it,
and needs a file system that can flush a directory and lock a file (not tmpfs for data that matters, not NFS).";
    DATA_DIR_LOCKED = "CAM-0102", DATA_DIR_LOCKED, "another process has the data directory",
"Two brokers on one directory would write over each other. The lock is the operating system's (flock on the
directory itself, and on the file `lock`): it is gone when its process is, also after kill -9, so there is never a
stale lock file to delete, and deleting `lock` frees nothing.";
    DATA_DIR_MISMATCH = "CAM-0103", DATA_DIR, "the data directory was made with other settings",
"The directory remembers the node id and the number of cores (in camus.toml inside it): partitions are laid out by
them, so they can not change later. Start with the same numbers (or without --cores: then the directory decides),
or with another directory.";
    DATA_DIR_IDENTITY = "CAM-0104", DATA_DIR, "the identity of the data directory can not be read",
"camus.toml in the data directory says whose directory it is. It is damaged, or was written by a newer Camus, or it
is missing though there is data beside it. Camus does not guess: restore the file from a backup, or start the
version that wrote it.";
    STORAGE = "CAM-0105", STORAGE, "a write or a flush of the write-ahead log failed",
"After a failed write or flush nobody can know what is on the media: the kernel may have dropped the page and
report success the next time. So Camus never retries it into success: it acknowledges nothing more and ends.
Everything acknowledged before is on the media and is found at the next start. Look at the kernel's log (dmesg)
for the device; if the disk is sound again, start Camus again.";
    DISK_FULL_AT_START = "CAM-0106", DATA_DIR, "there is no room for the write-ahead log",
"At start each core needs at least one segment (camus.wal.segment.bytes). Free some space on the file system of the
data directory, or make segments smaller. While it runs, a full disk is no reason to end: produce is refused with
a retriable error until there is room again.";
    WAL_DAMAGED = "CAM-0107", WAL_DAMAGED, "the write-ahead log is damaged in the middle",
"A block group that was once acknowledged can not be read back whole, though later ones can: this is damage (of the
media, of a copy, or by another program), not a write that a crash cut short. A cut-off last write is normal: it
was never acknowledged, it is dropped at start, and you will not see this error for it. Camus changes nothing and
serves nothing: to start with a shortened log would lose acknowledged records without a word. `camus wal verify`
lists every damaged place and what is behind it. Restore the directory from a backup or from the disk's other
copy. The same is said of a log that was begun (core-N.begun in the data directory says so) and of which no segment
is left.";
    WAL_FOREIGN = "CAM-0108", WAL_DAMAGED, "the write-ahead log is not one that this Camus can read",
"The segment files carry the cluster, the core and the version of their format. These do not fit the data
directory, or were written by a newer Camus.";
    MEASURE = "CAM-0109", DATA_DIR, "the disk can not be measured",
"`camus waltest`, `camus doctor` and `camus bench --floor-dir` write to a file of 64 MiB of their own in the directory
and take it away again. The directory must exist, belong to a file system with that much room, and let this user
write. Nothing that is there is touched.";
    NOT_DURABLE = "CAM-0110", DATA_DIR, "no write is durable here",
"A durable write is one that is on the media. A file system in memory (tmpfs, ramfs) has no media: what is measured
there says nothing, and what is written there is gone at the next boot. One without direct I/O (O_DIRECT) can only
be written through the page cache, which the log does not do where data matters. Use ext4 or XFS on a disk.";
    DISK_REPLACED = "CAM-0111", DATA_DIR, "the cluster knows this broker by another data directory",
"Each broker of a cluster remembers the data directories of the others (brokers.toml in its own). This broker came with
one that they do not know, and theirs for it is not this one: its disk was lost or replaced, or camus.data.dir names
another place than it did. What it had acknowledged and for whom it had voted is in the old directory; counted
without it, it could make a majority that lacks acknowledged records. So it is kept out, and the others go on as long
as they are a majority. If the old directory is there, start with it: that is the way back. If it is lost, this broker
can not come back yet: docs/operate.md says what can be done.";
    LISTEN = "CAM-0201", LISTEN, "a listener can not be opened",
"The address is taken by another program, does not belong to this host, or the port needs privileges (below 1024).";
    RUNTIME = "CAM-0202", RUNTIME, "the kernel does not give what the loop needs",
"With camus.io = uring Camus needs io_uring (Linux 6.1 or newer, /proc/sys/kernel/io_uring_disabled = 0, and not
forbidden by a container's seccomp profile), and enough locked memory for its rings (ulimit -l). With camus.io =
auto, the default, it goes on with ordinary system calls and says so.";
    CORE_FAILED = "CAM-0203", CORE_FAILED, "a core has failed",
"A thread of the broker ended by an assertion: Camus found itself in a state that must not be, and stopped before
it could acknowledge or serve something wrong. Everything acknowledged is on the media. Please report it with the
log.";
    STOP_TIMEOUT = "CAM-0204", STOP_TIMEOUT, "stopping took too long",
"After SIGTERM Camus accepts nothing new and finishes what is in flight, for camus.shutdown.timeout.ms at most. The
time was up first (a slow disk, a client that does not read). Nothing acknowledged is lost; what was not
acknowledged is retried by the clients.";
    UNREACHABLE = "CAM-0301", UNREACHABLE, "no broker answers",
"Nothing listens at the address, or what listens there does not answer as a Kafka broker does (a TLS listener, an
HTTP port). --bootstrap takes HOST:PORT of a plain listener.";
    BROKER_REFUSED = "CAM-0302", REFUSED, "the broker refused",
"The broker understood the request and said no; its own error code and words are given.";
    BROKER_ANSWER = "CAM-0303", UNREACHABLE, "the broker's answer can not be understood",
"The broker does not offer an API that this command needs, or its answer does not decode.";
    INTERRUPTED = "CAM-0401", INTERRUPTED, "it was stopped",
"Ctrl-C or SIGTERM came before it was done. What it had made for itself is removed; what could not be removed in time
(the topic of `camus bench`, if its broker does not answer) is named in the error, with the command that removes it.";
    UNKNOWN_CODE = "CAM-0402", USAGE, "there is no such code",
"`camus explain` takes a code as it is printed in an error, for instance CAM-0102.";
    STDOUT = "CAM-0403", USAGE, "standard output can not be written",
"The answer was there and could not be written: a full disk behind `> FILE`, for instance. A reader that goes away
(`camus wal dump DIR | head`) is no error.";
    BENCH_TOPIC = "CAM-0601", REFUSED, "the topic of a bench run is not as it should be",
"`camus bench` makes its topic, and takes one that is there if it has as many partitions as --partitions says. It does
not change or delete a topic that it did not make: name another one with --topic, delete it yourself, or ask for as
many partitions as it has. The same is said if not every partition got a leader in time.";
    BENCH_AUTHENTICATION = "CAM-0602", UNREACHABLE, "the broker wants its clients to authenticate",
"The listener closes the connection on what is asked before a SASL handshake. `camus bench` speaks to plain listeners
only, as `camus topic` does.";
    BENCH_LOST = "CAM-0603", UNREACHABLE, "the run was cut short",
"A connection broke, or a request was not answered within --timeout-s. What was measured until then is not printed:
a run that did not last is not comparable with one that did.";
    BENCH_RECORD = "CAM-0604", REFUSED, "the broker does not take batches this large",
"A batch of --batch-bytes (and some bytes for each record) is larger than the topic's max.message.bytes, which is
about 1 MiB where nothing else was said.";
    BENCH_OBSERVED = "CAM-0605", USAGE, "what was to be watched is not there",
"--broker-pid names a running process of this host, --data-dir and --floor-dir directories of this host.";
    BENCH_FLAGS = "CAM-0606", USAGE, "these flags do not go together",
"Each flag is allowed alone, but not with the mode or with another flag. `camus bench --help` says which belong
together.";
    BENCH_FILE = "CAM-0607", USAGE, "a file can not be read or written",
"--json and --svg take a file that can be written; it is opened before the run, and what is in it stays until the run
has ended well. `camus waltest --json` does the same. `camus bench plot OUT.svg RUN.json ...` reads what --json has
written, and writes only to a name in .svg that is new or is an SVG already.";
    BENCH_NOTHING = "CAM-0608", REFUSED, "nothing was acknowledged",
"Not one request of the measured time was answered with success. The broker's own names of the errors are given.";
    BENCH_SPREAD = "CAM-0609", USAGE, "the topic is led by more than one broker",
"`camus bench` measures one broker: all its connections go to the address of --bootstrap.";
}

/// An error for the person at the terminal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserError {
    pub code: &'static str,
    pub status: u8,
    /// What is wrong, one line.
    pub what: String,
    /// Where: file and line, path and offset, address.
    pub place: String,
    /// What follows from it for the reader.
    pub meaning: String,
    /// What Camus did about it.
    pub done: String,
    /// The one command to run.
    pub run: String,
}

impl UserError {
    pub fn new(
        code: &'static Code,
        what: impl Into<String>,
        place: impl Into<String>,
        meaning: impl Into<String>,
        done: impl Into<String>,
        run: impl Into<String>,
    ) -> UserError {
        UserError {
            code: code.code,
            status: code.status,
            what: what.into(),
            place: place.into(),
            meaning: meaning.into(),
            done: done.into(),
            run: run.into(),
        }
    }
}

impl fmt::Display for UserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "error[{}]: {}", self.code, self.what)?;
        let parts = [("where", &self.place), ("meaning", &self.meaning), ("done", &self.done), ("run", &self.run)];
        for (name, text) in parts {
            writeln!(f, "  {name:<8} {}", text.replace('\n', "\n           "))?;
        }
        write!(f, "  {:<8} camus explain {}", "more", self.code)
    }
}

impl std::error::Error for UserError {}

const NOT_STARTED: &str = "nothing was started and nothing was changed";

// ---- Settings ----

pub fn unknown_setting(name: &str, place: &str, hint: Option<&str>) -> UserError {
    let (meaning, run) = match hint {
        Some(hint) => (format!("the nearest setting is '{hint}'"), format!("camus settings {hint}")),
        None => ("no setting has a name like it".to_owned(), "camus settings".to_owned()),
    };
    UserError::new(UNKNOWN_SETTING, format!("there is no setting '{name}'"), place, meaning, NOT_STARTED, run)
}

pub fn bad_value(name: &str, value: &str, why: &str, place: &str) -> UserError {
    UserError::new(
        BAD_VALUE,
        format!("'{value}' is not a value for '{name}'"),
        place,
        why,
        NOT_STARTED,
        format!("camus settings {name}"),
    )
}

pub fn bad_config_file(path: &Path, line: Option<usize>, why: &str) -> UserError {
    let place = match line {
        Some(line) => format!("{}:{line}", path.display()),
        None => path.display().to_string(),
    };
    let run = format!("camus serve --config {}   (when it is mended)", path.display());
    UserError::new(BAD_CONFIG_FILE, "the configuration file can not be read", place, why, NOT_STARTED, run)
}

pub fn contradiction(what: &str, place: &str, meaning: &str, run: &str) -> UserError {
    UserError::new(CONTRADICTION, what, place, meaning, NOT_STARTED, run)
}

// ---- The data directory ----

pub fn data_dir_io(path: &Path, doing: &str, error: &std::io::Error) -> UserError {
    UserError::new(
        DATA_DIR_IO,
        format!("the data directory can not be used: {doing} failed"),
        path.display().to_string(),
        error.to_string(),
        "nothing was started",
        format!("ls -ld {}   (who owns it, and is there room?)", path.display()),
    )
}

pub fn data_dir_locked(path: &Path, holder: Option<(u32, String)>) -> UserError {
    let (who, run) = match holder {
        Some((pid, command)) => (format!("process {pid} ({command}) has it"), format!("ps -fp {pid}")),
        None => ("the process that has it did not say who it is".to_owned(), format!("fuser -v {}", path.display())),
    };
    UserError::new(
        DATA_DIR_LOCKED,
        "another process has the data directory",
        path.display().to_string(),
        who,
        "nothing was changed; the other process goes on",
        run,
    )
}

pub fn data_dir_mismatch(path: &Path, what: &str, has: &str, asked: &str, run: &str) -> UserError {
    UserError::new(
        DATA_DIR_MISMATCH,
        format!("the data directory was made with {what} {has}, not {asked}"),
        path.join(crate::data_dir::IDENTITY_FILE).display().to_string(),
        format!("the layout of the data depends on {what}: it can not be changed later"),
        "nothing was changed",
        run,
    )
}

pub fn data_dir_identity(path: &Path, why: &str) -> UserError {
    UserError::new(
        DATA_DIR_IDENTITY,
        "the identity of the data directory can not be read",
        path.join(crate::data_dir::IDENTITY_FILE).display().to_string(),
        why,
        "nothing was changed",
        format!(
            "ls -l {}   (then restore camus.toml; who is no broker of a cluster may start with an empty directory)",
            path.display()
        ),
    )
}

pub fn data_dir_roll(path: &Path, why: &str) -> UserError {
    UserError::new(
        DATA_DIR_IDENTITY,
        "what the data directory knows of the other brokers can not be read",
        path.join(crate::roll::ROLL_FILE).display().to_string(),
        why,
        "nothing was changed",
        format!("ls -l {}   (then restore {} from a backup)", path.display(), crate::roll::ROLL_FILE),
    )
}

/// `broker` and `directory`: who this is. `by`: who knows it by `known`.
pub fn disk_replaced(path: &Path, broker: i32, directory: &str, by: i32, known: &str) -> UserError {
    UserError::new(
        DISK_REPLACED,
        format!("broker {broker} came with another data directory than the cluster knows"),
        path.display().to_string(),
        format!(
            "this directory is {directory}, and broker {by} knows broker {broker} by {known}: its disk was lost or \
             replaced, and what it had acknowledged is not here"
        ),
        "nothing was served, and nobody was voted for; the other brokers go on without this one",
        format!("camus serve --data-dir DIR   (the directory with 'directory = \"{known}\"' in its camus.toml)"),
    )
}

// ---- Storage. The cores fill these in ----

/// A failed write or flush while the broker ran.
pub fn storage(place: &str, what: &str) -> UserError {
    UserError::new(
        STORAGE,
        "a write or a flush of the write-ahead log failed",
        place,
        format!("{what}; what is on the media after this can not be known, so it is not tried again"),
        "acknowledged nothing more and ended; everything acknowledged before is on the media",
        "dmesg | tail   (and when the disk is sound: start Camus again)",
    )
}

pub fn disk_full_at_start(path: &Path, needed_bytes: u64, detail: &str) -> UserError {
    UserError::new(
        DISK_FULL_AT_START,
        "there is no room for the write-ahead log",
        path.display().to_string(),
        format!("a first segment of {} is needed: {detail}", crate::out::bytes(needed_bytes)),
        "nothing was started",
        format!("df -h {}", path.display()),
    )
}

/// `place`: file, block and LSN. `lost`: what is whole before it, and what lies behind it.
pub fn wal_damaged(data_dir: &Path, place: &str, lost: &str) -> UserError {
    UserError::new(
        WAL_DAMAGED,
        "the write-ahead log is damaged in the middle",
        place,
        lost,
        "nothing was changed and nothing is served",
        format!("camus wal verify --data-dir {}", data_dir.display()),
    )
}

/// What is left are files that were prepared or released.
pub const NO_GROUP_LEFT: &str = "nothing of the log is in the files that are left";

/// The log of a core that had one is not there at all. `found`: what is there instead.
pub fn wal_missing(dir: &Path, core: CoreId, found: &str) -> UserError {
    let data_dir = dir.parent().unwrap_or(dir);
    UserError::new(
        WAL_DAMAGED,
        format!("the write-ahead log of core {core} is gone"),
        dir.display().to_string(),
        format!(
            "{found}, though the core has written its log there: every record, topic and committed offset that core \
             {core} acknowledged is lost, unless the files come back"
        ),
        "nothing was changed and nothing is served",
        format!(
            "ls -lR {}   (then put the files back; who is no broker of a cluster may start with an empty directory)",
            data_dir.display()
        ),
    )
}

pub fn wal_foreign(data_dir: &Path, place: &str, why: &str) -> UserError {
    UserError::new(
        WAL_FOREIGN,
        "the write-ahead log is not one that this Camus can read",
        place,
        why,
        "nothing was changed and nothing is served",
        format!("camus wal verify --data-dir {}", data_dir.display()),
    )
}

/// What is wrong with the log of a core: at start, in a tool, or while it runs.
pub fn of_wal(data_dir: &Path, core: CoreId, error: &WalError) -> UserError {
    let dir = crate::data_dir::core_dir(data_dir, core);
    let log = dir.display().to_string();
    let damaged = |place: &str, lost: String| wal_damaged(data_dir, place, &lost);
    match error {
        WalError::Damaged(damage) => {
            let place = format!(
                "{}, byte {} (block {}, segment {}, LSN {})",
                damage.file,
                damage.offset,
                damage.offset / BLOCK_BYTES as u64,
                damage.segment,
                damage.lsn
            );
            damaged(
                &place,
                format!(
                    "expected {}, found {}: {}\nrecords up to LSN {} are whole; {} later groups are there as well",
                    damage.expected, damage.found, damage.why, damage.whole_before, damage.whole_after
                ),
            )
        }
        WalError::MissingSegment { .. } => damaged(&log, error.to_string()),
        WalError::Truncated { file, .. }
        | WalError::CutShort { file, .. }
        | WalError::DuplicateSegment { file, .. }
        | WalError::ImpossibleHeader { file, .. } => damaged(file, error.to_string()),
        WalError::Record { .. } | WalError::Forgot { .. } => damaged(&log, error.to_string()),
        WalError::WrongCluster { file, .. }
        | WalError::WrongCore { file, .. }
        | WalError::WrongVersion { file, .. } => wal_foreign(data_dir, file, &error.to_string()),
        WalError::Io { what, file, at, detail } => data_dir_io(
            Path::new(file),
            &format!("the {what} at byte {at} of a segment"),
            &std::io::Error::other(detail.clone()),
        ),
        WalError::Write(disk) => storage(&log, &disk.to_string()),
        WalError::Released { .. } => storage(&log, &error.to_string()),
    }
}

// ---- Measuring the disk ----

/// `doing`: what was tried, as in "making a file".
pub fn measure_io(dir: &Path, doing: &str, error: &std::io::Error) -> UserError {
    use std::io::ErrorKind;
    let shown = dir.display();
    let (meaning, run) = match error.kind() {
        ErrorKind::NotFound => ("there is no such directory".to_owned(), format!("mkdir -p {shown}")),
        ErrorKind::NotADirectory => ("it is not a directory".to_owned(), format!("ls -ld {shown}")),
        ErrorKind::PermissionDenied => (
            "this user may not write there".to_owned(),
            format!("ls -ld {shown}; id   (who owns it, and who are you?)"),
        ),
        ErrorKind::ReadOnlyFilesystem => {
            ("the file system is mounted read-only".to_owned(), format!("findmnt -T {shown}"))
        }
        _ => (error.to_string(), format!("dmesg | tail; ls -ld {shown}")),
    };
    let what = format!("the disk can not be measured: {doing} failed");
    UserError::new(MEASURE, what, shown.to_string(), meaning, "nothing was left there", run)
}

/// `said`: the system's words, if it was tried.
pub fn measure_space(dir: &Path, needed_bytes: u64, free_bytes: u64, said: Option<&str>) -> UserError {
    let (needed, free) = (crate::out::bytes(needed_bytes), crate::out::bytes(free_bytes));
    let said = said.map_or(String::new(), |said| format!(": {said}   (is there a quota?)"));
    UserError::new(
        MEASURE,
        "the disk can not be measured: there is no room",
        dir.display().to_string(),
        format!("{needed} are needed for a moment, {free} are free for this user{said}"),
        "nothing was written",
        format!("df -h {}", dir.display()),
    )
}

pub fn not_durable(dir: &Path, why: &str) -> UserError {
    UserError::new(
        NOT_DURABLE,
        "no write is durable here",
        dir.display().to_string(),
        why,
        "nothing was measured and nothing was left there",
        format!("findmnt -T {}   (then name a directory of ext4 or XFS on a disk)", dir.display()),
    )
}

pub fn interrupted() -> UserError {
    UserError::new(
        INTERRUPTED,
        "it was stopped before it was done",
        "this command",
        "a signal came",
        "removed what it had made for itself",
        "camus waltest DIR --seconds 0.2   (the same, in a tenth of the time)",
    )
}

/// Why the floor of a directory could not be measured.
pub fn of_floor(dir: &Path, file_bytes: u64, error: &FloorError) -> UserError {
    match error {
        FloorError::NoDirect => not_durable(dir, "its file system has no direct I/O (O_DIRECT)"),
        FloorError::NoSpace(said) => {
            let free = rustix::fs::statvfs(dir).map_or(0, |space| space.f_bavail.saturating_mul(space.f_frsize));
            measure_space(dir, file_bytes, free, Some(said))
        }
        FloorError::NoRing(error) => runtime(0, &format!("io_uring: {error}")),
        FloorError::Io { what, error } => measure_io(dir, what, error),
        FloorError::Stopped => interrupted(),
    }
}

// ---- Running ----

pub fn listen(setting: &str, addr: &str, error: &std::io::Error) -> UserError {
    let port = addr.rsplit(':').next().unwrap_or("");
    UserError::new(
        LISTEN,
        "a listener can not be opened",
        format!("{addr} ({setting})"),
        error.to_string(),
        "nothing is served",
        format!("ss -ltnp 'sport = :{port}'   (who has the port?)"),
    )
}

pub fn runtime(core: u16, why: &str) -> UserError {
    UserError::new(
        RUNTIME,
        "the kernel does not give what the loop needs",
        format!("core {core}"),
        why,
        "nothing was started",
        "camus serve --io blocking   (slower; or allow io_uring: camus explain CAM-0202)",
    )
}

pub fn core_failed(core: u16, why: &str) -> UserError {
    UserError::new(
        CORE_FAILED,
        format!("core {core} has failed"),
        format!("core {core}: {why}"),
        "Camus found itself in a state that must not be; this is a fault of Camus and not of yours",
        "the whole broker ended; everything acknowledged is on the media",
        "camus serve   (start it again, and please report the log)",
    )
}

/// Why a core did not start, or ended without being told to.
pub fn of_rt(core: CoreId, error: &RtError) -> UserError {
    match error {
        RtError::Unavailable(_) | RtError::NoMemory { .. } | RtError::NotBuilt | RtError::Setup { .. } => {
            runtime(core.0, &error.to_string())
        }
        RtError::Loop { core, .. } => core_failed(core.0, &error.to_string()),
        RtError::Panicked { core } => core_failed(core.0, "its thread has panicked; the log says where"),
    }
}

/// An assertion of ours did not hold.
pub fn assertion(thread: &str, place: &str, what: &str) -> UserError {
    UserError::new(
        CORE_FAILED,
        "Camus found itself in a state that must not be",
        format!("{place} (thread {thread})"),
        what,
        "the whole broker ended at once; everything acknowledged is on the media",
        "camus serve   (start it again, and please report the log)",
    )
}

pub fn stop_timeout(after_ms: u64, left: &str) -> UserError {
    UserError::new(
        STOP_TIMEOUT,
        format!("not everything was finished within {after_ms} ms"),
        "stopping",
        left,
        "ended all the same; nothing acknowledged is lost, and clients retry the rest",
        "camus serve   (the next start replays the log)",
    )
}

// ---- Commands that talk to a broker ----

pub fn unreachable(addr: &str, why: &str) -> UserError {
    UserError::new(
        UNREACHABLE,
        "no broker answers",
        addr,
        why,
        "nothing was changed",
        "camus serve   (or name another broker: --bootstrap HOST:PORT)",
    )
}

pub fn broker_refused(what: &str, addr: &str, code: i16, name: &str, message: Option<&str>, run: &str) -> UserError {
    let meaning = match message {
        Some(message) if !message.is_empty() => format!("{name} ({code}): {message}"),
        _ => format!("{name} ({code})"),
    };
    UserError::new(BROKER_REFUSED, what, addr, meaning, "nothing was changed by this request", run)
}

pub fn broker_answer(addr: &str, why: &str) -> UserError {
    UserError::new(
        BROKER_ANSWER,
        "the broker's answer can not be understood",
        addr,
        why,
        "closed the connection",
        "camus topic list --bootstrap HOST:PORT   (is this the Kafka listener?)",
    )
}

// ---- bench ----

const NOT_MEASURED: &str = "nothing was measured";

pub fn bench_topic(topic: &str, addr: &str, has: usize, asked: i32) -> UserError {
    UserError::new(
        BENCH_TOPIC,
        format!("topic '{topic}' is there and has another number of partitions"),
        addr,
        format!("it has {has}, and --partitions asks for {asked}"),
        "nothing was measured and the topic was left as it is",
        format!("camus bench ... --partitions {has}   (or --topic another)"),
    )
}

pub fn bench_leaders(topic: &str, addr: &str, led: usize, all: usize, seconds: u64) -> UserError {
    UserError::new(
        BENCH_TOPIC,
        format!("topic '{topic}' was not ready within {seconds} s"),
        addr,
        format!("{led} of {all} partitions have a leader"),
        "nothing was measured; the topic is left as it is",
        format!("camus topic describe {topic} --bootstrap {addr}"),
    )
}

pub fn bench_authentication(addr: &str) -> UserError {
    UserError::new(
        BENCH_AUTHENTICATION,
        "the broker wants its clients to authenticate",
        addr,
        "it said what it offers and closed the connection on the first request",
        NOT_MEASURED,
        "camus bench ... --bootstrap HOST:PORT   (of a listener without SASL)",
    )
}

pub fn bench_interrupted() -> UserError {
    UserError {
        done: "nothing was measured, and it left nothing".to_owned(),
        run: "camus bench ... --duration-s 3   (shorter)".to_owned(),
        ..interrupted()
    }
}

/// After the run ended with `error`, its topic was deleted.
pub fn bench_topic_deleted(error: UserError) -> UserError {
    UserError { done: "ended the run and deleted its topic".to_owned(), ..error }
}

/// --keep-topic, and the run ended with `error`.
pub fn bench_topic_kept(error: UserError, topic: &str, addr: &str) -> UserError {
    let done = format!("ended the run; topic {topic} is still there, as --keep-topic asks");
    UserError { done, run: format!("camus topic delete {topic} --bootstrap {addr}"), ..error }
}

/// The run ended with `error`, and the broker did not confirm that the topic is gone.
pub fn bench_topic_left(error: UserError, topic: &str, addr: &str) -> UserError {
    let done =
        format!("ended; topic {topic} is still there, as far as is known: its broker did not say that it is gone");
    UserError { done, run: format!("camus topic delete {topic} --bootstrap {addr}"), ..error }
}

pub fn bench_lost(addr: &str, why: &str) -> UserError {
    UserError::new(
        BENCH_LOST,
        "the run was cut short",
        addr,
        why,
        "ended the run",
        format!("camus topic list --bootstrap {addr}   (does it still answer?)"),
    )
}

pub fn bench_record(addr: &str, name: &str, bytes: usize) -> UserError {
    UserError::new(
        BENCH_RECORD,
        "the broker does not take batches this large",
        addr,
        format!("it answered {name} to a request of about {}", crate::out::bytes(bytes as u64)),
        "ended at the first of them",
        "camus bench ... --batch-bytes N   (or raise the topic's max.message.bytes)",
    )
}

pub fn bench_observed(place: &str, why: &str, run: &str) -> UserError {
    UserError::new(BENCH_OBSERVED, "what was to be watched is not there", place, why, NOT_MEASURED, run)
}

pub fn bench_flags(what: &str, why: &str) -> UserError {
    UserError::new(BENCH_FLAGS, what, "command line", why, NOT_MEASURED, "camus bench --help")
}

pub fn bench_file(path: &Path, why: &str) -> UserError {
    UserError::new(
        BENCH_FILE,
        "a file can not be read or written",
        path.display().to_string(),
        why,
        "nothing was written there",
        format!("ls -l {}", path.display()),
    )
}

pub fn bench_plot_out(path: &Path, why: &str) -> UserError {
    UserError {
        what: "the plot would be written to what is no place for it".to_owned(),
        run: "camus bench plot OUT.svg RUN.json ...   (OUT.svg comes first)".to_owned(),
        ..bench_file(path, why)
    }
}

pub fn bench_nothing(addr: &str, counted: &str) -> UserError {
    UserError::new(
        BENCH_NOTHING,
        "nothing was acknowledged",
        addr,
        counted,
        "the run went on to its end",
        format!("camus topic list --bootstrap {addr}"),
    )
}

pub fn bench_spread(topic: &str, addr: &str) -> UserError {
    UserError::new(
        BENCH_SPREAD,
        format!("topic '{topic}' is led by more than one broker"),
        addr,
        "one broker is measured, the one of --bootstrap, and it would refuse what others lead",
        NOT_MEASURED,
        "camus bench ... --bootstrap HOST:PORT   (of a cluster of one)",
    )
}

pub fn stdout_unwritten(error: &std::io::Error) -> UserError {
    UserError::new(
        STDOUT,
        "standard output can not be written",
        "standard output",
        error.to_string(),
        "ended; the answer is lost",
        "ls -l /proc/self/fd/1; df -h .   (the same redirection: is there room?)",
    )
}

pub fn unknown_code(code: &str) -> UserError {
    let nearest = CODES.iter().map(|c| c.code).min_by_key(|c| strsim::damerau_levenshtein(c, &code.to_uppercase()));
    UserError::new(
        UNKNOWN_CODE,
        format!("there is no code '{code}'"),
        "command line",
        "a code looks like CAM-0102",
        "nothing",
        format!("camus explain {}", nearest.unwrap_or("CAM-0102")),
    )
}

/// What `camus explain` prints.
pub fn explain(asked: &str) -> Result<String, UserError> {
    let wanted = asked.trim().trim_start_matches("error[").trim_end_matches(']').to_uppercase();
    let code = CODES.iter().find(|c| c.code == wanted).ok_or_else(|| unknown_code(asked))?;
    Ok(format!("{}: {}\n\n{}\n\nExit status: {}.", code.code, code.title, code.explain, code.status))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::assert_golden;

    /// If this fails, a script or a runbook that matches an error's text or code no longer does.
    #[test]
    fn each_error_text_is_as_it_was() {
        let dir = Path::new("camus-data");
        let denied = std::io::Error::from_raw_os_error(13);
        let errors = [
            unknown_setting("num.partition", "camus.toml:3", Some("num.partitions")),
            unknown_setting("zzzzzzzzzz", "environment: CAMUS_ZZZZZZZZZZ", None),
            bad_value("num.partitions", "many", "it takes a whole number, 1 to 10000", "--set num.partitions=many"),
            bad_config_file(Path::new("camus.toml"), Some(2), "expected `=`"),
            bad_config_file(Path::new("camus.toml"), None, "No such file or directory (os error 2)"),
            contradiction("what", "where", "meaning", "run"),
            data_dir_io(dir, "making it", &denied),
            data_dir_locked(dir, Some((4711, "camus serve".to_owned()))),
            data_dir_locked(dir, None),
            data_dir_mismatch(dir, "cores", "2", "4", "camus serve --cores 2"),
            data_dir_identity(dir, "format 2 is newer than this Camus knows (1)"),
            data_dir_roll(dir, "it is missing though there is data beside it"),
            disk_replaced(dir, 2, "8f6b1c1e-7a52-4b7e-9d0c-2f1a5f0b3c11", 1, "0b0e1f62-3c55-4e0b-8a53-6a2d9b7c4d22"),
            storage("camus-data/core-0/000017.wal at 4096", "write: Input/output error (os error 5)"),
            disk_full_at_start(dir, 64 << 20, "No space left on device (os error 28)"),
            wal_damaged(
                dir,
                "camus-data/core-0/000017.wal, block 4711 (LSN 9204113)",
                "records up to LSN 9204112 are whole; 3 later groups are whole as well, so this is damage and not an \
                 unfinished write",
            ),
            wal_missing(&dir.join("core-1"), CoreId(1), "no segment is in the directory"),
            wal_foreign(dir, "camus-data/core-0/000017.wal", "format 2 is newer than this Camus knows (1)"),
            measure_io(dir, "looking for it", &std::io::ErrorKind::NotFound.into()),
            measure_io(dir, "looking for it", &std::io::ErrorKind::NotADirectory.into()),
            measure_io(dir, "making a directory", &denied),
            measure_io(dir, "making a directory", &std::io::Error::from_raw_os_error(30)),
            measure_io(dir, "a durable write", &std::io::Error::from_raw_os_error(5)),
            measure_space(dir, 68 << 20, 1 << 20, None),
            measure_space(dir, 64 << 20, 1 << 40, Some("Disk quota exceeded (os error 122)")),
            not_durable(dir, "it is on a tmpfs, which is memory"),
            of_floor(dir, 64 << 20, &FloorError::NoDirect),
            interrupted(),
            listen("listeners", "127.0.0.1:9092", &std::io::Error::from_raw_os_error(98)),
            runtime(0, "io_uring_setup: Operation not permitted (os error 1)"),
            core_failed(1, "the thread panicked: durable LSN 7 passed written 6"),
            assertion("camus-core-1", "engine/src/wal/writer.rs:812", "durable LSN 7 passed written 6"),
            stop_timeout(8000, "2 answers were not yet with their clients"),
            unreachable("127.0.0.1:9092", "Connection refused (os error 111)"),
            broker_refused(
                "topic 'a' was not made",
                "127.0.0.1:9092",
                36,
                "TOPIC_ALREADY_EXISTS",
                Some("topic 'a' already exists"),
                "camus topic describe a",
            ),
            broker_answer("127.0.0.1:9092", "the answer to Metadata v12 ends early"),
            unknown_code("CAM-9999"),
            bench_topic("camus-bench", "127.0.0.1:9092", 3, 1),
            bench_leaders("camus-bench", "127.0.0.1:9092", 17, 10_000, 120),
            bench_authentication("127.0.0.1:9092"),
            bench_lost("127.0.0.1:9092", "it closed a connection"),
            bench_topic_left(bench_interrupted(), "camus-bench", "127.0.0.1:9092"),
            bench_record("127.0.0.1:9092", "MESSAGE_TOO_LARGE", 2 << 20),
            bench_observed("process 4711", "No such file or directory (os error 2)", "pgrep -a camus   (or jps)"),
            bench_flags("--codec lz4 does not go with e2e", "the send time is in the record"),
            bench_file(Path::new("run.json"), "No such file or directory (os error 2)"),
            bench_plot_out(Path::new("run.json"), "its name does not end in .svg"),
            bench_nothing("127.0.0.1:9092", "NOT_LEADER_OR_FOLLOWER 17 times"),
            bench_spread("camus-bench", "127.0.0.1:9092"),
            stdout_unwritten(&std::io::Error::from_raw_os_error(28)),
        ];
        let text: Vec<String> = errors.iter().map(|e| format!("{e}\n  (exit status {})\n", e.status)).collect();
        assert_golden("errors.txt", &text.join("\n"));
        let used: std::collections::BTreeSet<&str> = errors.iter().map(|e| e.code).collect();
        assert_eq!(used.len(), CODES.len(), "each code has at least one text here");
    }

    /// If this fails, an operator with a damaged disk is not told where, or is told to do the wrong thing.
    #[test]
    fn each_fault_of_a_log_is_told_as_it_was() {
        use camus_engine::io::{DiskError, DiskErrorKind, FileId};
        use camus_engine::types::{Lsn, SegmentSeq, ShardId};
        use camus_engine::wal::{Damage, Why};
        let file = || "camus-data/core-0/000017.wal".to_owned();
        let faults = [
            WalError::Damaged(Box::new(Damage {
                file: file(),
                segment: SegmentSeq(17),
                offset: 4096 * 4711,
                lsn: Lsn(9_204_113),
                expected: "crc 01020304".to_owned(),
                found: "05060708".to_owned(),
                why: Why::Acknowledged { durable: Lsn(9_204_120) },
                whole_before: Lsn(9_204_112),
                whole_after: 3,
            })),
            WalError::WrongVersion { file: file(), expected: 1, found: 2 },
            WalError::Io { what: "read", file: file(), at: 4096, detail: "Input/output error (os error 5)".to_owned() },
            WalError::Write(DiskError {
                kind: DiskErrorKind::Io,
                what: "write",
                file: FileId(17),
                at: 4096,
                errno: Some(5),
                detail: "Input/output error (os error 5)".to_owned(),
            }),
            WalError::Forgot {
                shard: ShardId(3),
                what: "this log ends at entry 7, and its leader knows more".to_owned(),
            },
        ];
        let text = faults.map(|f| {
            let error = of_wal(Path::new("camus-data"), CoreId(0), &f);
            format!("{error}\n  (exit status {})\n", error.status)
        });
        assert_golden("wal_errors.txt", &text.join("\n"));
    }

    #[test]
    fn codes_are_unique_ascending_and_explained() {
        assert!(CODES.windows(2).all(|w| w[0].code < w[1].code));
        for code in CODES {
            assert!(explain(code.code).expect("it is in the table").contains(code.title));
            assert!(exit::ALL.iter().any(|(status, _)| *status == code.status), "{} ends as documented", code.code);
        }
        assert!(explain("error[CAM-0102]").is_ok());
        assert_eq!(explain("CAM-1").expect_err("no such code").code, "CAM-0402");
    }
}
