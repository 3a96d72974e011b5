//! The data directory: whose it is, and that one process has it at a time.
//!
//! `camus.toml` its identity, written once; `brokers.toml` in a cluster those of the others; `lock` who has it;
//! `core-N/` the write-ahead log of core N, `core-N.begun` that there is one: without it, a log that somebody removed
//! would look like one that never was. The operating system's lock is on the directory itself, which nobody removes by
//! hand while a broker runs, and on `lock`.

use crate::errors::{self, UserError};
use camus_engine::types::CoreId;
use camus_net::peer::roll::DirectoryId;
use rustix::fs::{Access, AtFlags, FlockOperation, Mode, OFlags, flock};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub const IDENTITY_FILE: &str = "camus.toml";
const LOCK_FILE: &str = "lock";
/// How long a start waits for the end of a process that holds the lock and is ending already.
const LOCK_FREE_AFTER: Duration = Duration::from_secs(5);
const LOCK_LOOK_EVERY: Duration = Duration::from_millis(10);
/// Format of the directory of a broker that is alone. A newer one than [`FORMAT_CLUSTER`] is refused.
const FORMAT: i64 = 1;
/// Of a broker of a cluster: it names the brokers, and has an id of its own. Who does not read that would acknowledge
/// alone what others vote on. (2 was the same without the id, before there was a release.)
const FORMAT_CLUSTER: i64 = 3;

/// What a data directory remembers for its whole life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// A random UUID in URL-safe base64 without padding, 22 characters, as Kafka writes one.
    pub cluster_id: String,
    pub node_id: i32,
    pub cores: usize,
    /// The brokers that vote, by id, this one among them; nobody if it is alone.
    pub brokers: Vec<i32>,
    /// Of a broker of a cluster: drawn when the directory was made. The others know this broker by it.
    pub directory: Option<DirectoryId>,
}

/// Who wants the directory to be its own.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// For a new directory, where no id is asked for.
    pub fresh_id: &'a str,
    /// `None` takes what the directory says.
    pub cluster_id: Option<&'a str>,
    /// `None` takes what the directory says, or 1.
    pub node_id: Option<i32>,
    pub cores: usize,
    pub brokers: &'a [i32],
}

/// A data directory that this process has, until this is dropped or the process is gone.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// `None` until [`DataDir::claim`] or if it is new.
    identity: Option<Identity>,
    /// Keeps the locks.
    _lock: Lock,
}

/// The locks on a data directory, held until dropped. That on the directory itself decides; that on the file `lock`
/// is for whoever knows only that one, and tells people who it is.
#[derive(Debug)]
pub struct Lock {
    _dir: File,
    _file: Option<File>,
}

impl DataDir {
    /// Makes the directory if it is not there, takes its lock, and reads whose it is.
    pub fn open(path: &Path) -> Result<DataDir, UserError> {
        let new = !path.exists();
        make_dir(path).map_err(|e| errors::data_dir_io(path, "making it", &e))?;
        if new {
            // Its own name must survive a crash as well.
            let parent = path.canonicalize().ok().and_then(|p| p.parent().map(Path::to_path_buf));
            if let Some(parent) = parent {
                sync_dir(&parent).map_err(|e| errors::data_dir_io(path, "flushing its parent", &e))?;
            }
        }
        let lock = take_lock(path)?;
        let identity = read_identity(path)?;
        if identity.is_none()
            && core_dirs(path).map_err(|e| errors::data_dir_io(path, "listing it", &e))?.next().is_some()
        {
            return Err(errors::data_dir_identity(path, "there is data in the directory, but no camus.toml"));
        }
        Ok(DataDir { path: path.to_path_buf(), identity, _lock: lock })
    }

    /// What was found; `None` if the directory is new.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// As [`Self::claim_as`], for a broker that is alone and takes any cluster's id.
    #[cfg(test)]
    pub fn claim(&mut self, fresh_id: &str, node_id: Option<i32>, cores: usize) -> Result<Identity, UserError> {
        self.claim_as(Claim { fresh_id, cluster_id: None, node_id, cores, brokers: &[] })
    }

    /// Makes the directory this broker's: writes its identity if it is new, or refuses to go on with another one.
    pub fn claim_as(&mut self, claim: Claim<'_>) -> Result<Identity, UserError> {
        let Claim { fresh_id, cluster_id, node_id, cores, brokers } = claim;
        if let Some(found) = &self.identity {
            if let Some(asked) = cluster_id.filter(|asked| *asked != found.cluster_id) {
                return Err(errors::data_dir_mismatch(
                    &self.path,
                    "camus.cluster.id",
                    &found.cluster_id,
                    asked,
                    &format!("grep cluster_id {}", self.path.join(IDENTITY_FILE).display()),
                ));
            }
            if found.brokers != brokers {
                let list = |ids: &[i32]| match ids {
                    [] => "none (it is alone)".to_owned(),
                    ids => ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
                };
                return Err(errors::data_dir_mismatch(
                    &self.path,
                    "the brokers",
                    &list(&found.brokers),
                    &list(brokers),
                    "camus settings camus.cluster.brokers",
                ));
            }
            if let Some(asked) = node_id.filter(|asked| *asked != found.node_id) {
                return Err(errors::data_dir_mismatch(
                    &self.path,
                    "node.id",
                    &found.node_id.to_string(),
                    &asked.to_string(),
                    &format!("camus serve --data-dir {} --set node.id={}", self.path.display(), found.node_id),
                ));
            }
            if found.cores != cores {
                return Err(errors::data_dir_mismatch(
                    &self.path,
                    "cores",
                    &found.cores.to_string(),
                    &cores.to_string(),
                    &format!("camus serve --data-dir {} --cores {}", self.path.display(), found.cores),
                ));
            }
            for core in (0..cores).map(|core| CoreId(core as u16)) {
                check_log_is_there(&self.path, core)?;
                check_writable(&self.core_dir(core))?;
            }
        } else {
            let drawn = |e: io::Error| errors::data_dir_io(&self.path, "drawing its id", &e);
            let directory = random_bytes().map(DirectoryId::random).map_err(drawn)?;
            self.identity = Some(Identity {
                cluster_id: cluster_id.unwrap_or(fresh_id).to_owned(),
                node_id: node_id.unwrap_or(1),
                cores,
                brokers: brokers.to_vec(),
                directory: (!brokers.is_empty()).then_some(directory),
            });
            // First the places for the logs, then the name: a directory with an identity is whole.
            let failed = |doing: &'static str| move |e: io::Error| (doing, e);
            let made = (0..cores)
                .try_for_each(|core| make_dir(&self.core_dir(CoreId(core as u16))))
                .map_err(failed("making the directories of the cores"))
                .and_then(|()| sync_dir(&self.path).map_err(failed("flushing it")))
                .and_then(|()| {
                    write_identity(&self.path, self.identity.as_ref().expect("set above"))
                        .map_err(failed("writing camus.toml"))
                });
            made.map_err(|(doing, e)| errors::data_dir_io(&self.path, doing, &e))?;
        }
        Ok(self.identity.clone().expect("found or written"))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the write-ahead log of this core lies.
    pub fn core_dir(&self, core: CoreId) -> PathBuf {
        core_dir(&self.path, core)
    }
}

pub fn core_dir(data_dir: &Path, core: CoreId) -> PathBuf {
    data_dir.join(format!("core-{core}"))
}

fn begun_file(data_dir: &Path, core: CoreId) -> PathBuf {
    data_dir.join(format!("core-{core}.begun"))
}

/// The log of this core has held records.
pub fn was_begun(data_dir: &Path, core: CoreId) -> Result<bool, UserError> {
    let file = begun_file(data_dir, core);
    file.try_exists().map_err(|e| errors::data_dir_io(&file, "looking for it", &e))
}

/// From when this returns, a log of this core without a segment is one that was lost. To be called when its first
/// records are on the media and before any of them is acknowledged; later calls find the mark and do nothing.
pub fn note_begun(data_dir: &Path, core: CoreId) -> io::Result<()> {
    let file = begun_file(data_dir, core);
    if file.try_exists()? {
        return Ok(());
    }
    File::create(&file)?.sync_all()?;
    sync_dir(data_dir)
}

/// Refuses a log that was begun and of which nothing is left. For a directory with an identity.
pub fn check_log_is_there(data_dir: &Path, core: CoreId) -> Result<(), UserError> {
    let dir = core_dir(data_dir, core);
    let failed = |e: io::Error| errors::data_dir_io(&dir, "listing it", &e);
    let begun = was_begun(data_dir, core)?;
    let entries = match std::fs::read_dir(&dir) {
        Ok(entries) => entries,
        // It is made before camus.toml is: it was there.
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(errors::wal_missing(&dir, core, "the directory is not there"));
        }
        Err(e) => return Err(failed(e)),
    };
    for entry in entries {
        if !begun || entry.map_err(failed)?.file_name().to_string_lossy().ends_with(".wal") {
            return Ok(());
        }
    }
    if begun { Err(errors::wal_missing(&dir, core, "no segment is in the directory")) } else { Ok(()) }
}

/// Files can be made in it: a log that can be read and not written would fail later, as a disk does.
fn check_writable(dir: &Path) -> Result<(), UserError> {
    rustix::fs::accessat(rustix::fs::CWD, dir, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)
        .map_err(|errno| errors::data_dir_io(dir, "asking to write in it", &errno.into()))
}

/// The logs of the cores that are there or were begun, whoever made them.
fn core_dirs(path: &Path) -> io::Result<impl Iterator<Item = PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("core-")
            && (!entry.file_type()?.is_dir() || std::fs::read_dir(entry.path())?.next().is_some())
        {
            found.push(entry.path());
        }
    }
    Ok(found.into_iter())
}

/// For tools that only read: the identity, without the lock.
pub fn read_identity(path: &Path) -> Result<Option<Identity>, UserError> {
    let text = match std::fs::read_to_string(path.join(IDENTITY_FILE)) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) if e.kind() == io::ErrorKind::InvalidData => {
            return Err(errors::data_dir_identity(path, "it is no text: not in UTF-8"));
        }
        Err(e) => return Err(errors::data_dir_io(path, "reading camus.toml", &e)),
    };
    let damaged = |why: &str| errors::data_dir_identity(path, why);
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| damaged(e.message()))?;
    let number = |name: &str| {
        table
            .get(name)
            .and_then(toml::Value::as_integer)
            .ok_or_else(|| damaged(&format!("'{name}' is missing or no number")))
    };
    let format = number("format")?;
    let (brokers, directory) = match format {
        FORMAT => (Some(Vec::new()), None),
        FORMAT_CLUSTER => {
            let ids = table.get("brokers").and_then(toml::Value::as_array);
            let directory = table.get("directory").and_then(toml::Value::as_str).and_then(DirectoryId::parse);
            let directory = directory.ok_or_else(|| damaged("'directory' is missing or no id"))?;
            let ids = ids.and_then(|ids| ids.iter().map(|id| i32::try_from(id.as_integer()?).ok()).collect());
            (ids, Some(directory))
        }
        _ => {
            return Err(damaged(&format!("its format is {format}, this Camus knows {FORMAT} and {FORMAT_CLUSTER}")));
        }
    };
    let cluster_id = table
        .get("cluster_id")
        .and_then(toml::Value::as_str)
        .filter(|id| uuid_of(id).is_some())
        .ok_or_else(|| damaged("'cluster_id' is missing or no UUID in base64"))?;
    Ok(Some(Identity {
        cluster_id: cluster_id.to_owned(),
        node_id: i32::try_from(number("node_id")?).map_err(|_| damaged("'node_id' is out of range"))?,
        cores: usize::try_from(number("cores")?)
            .ok()
            .filter(|n| (1..=camus_engine::limits::CORES_MAX).contains(n))
            .ok_or_else(|| damaged("'cores' is out of range"))?,
        brokers: brokers.ok_or_else(|| damaged("'brokers' is missing or no list of numbers"))?,
        directory,
    }))
}

fn write_identity(path: &Path, identity: &Identity) -> io::Result<()> {
    let format = if identity.brokers.is_empty() { FORMAT } else { FORMAT_CLUSTER };
    let mut text = format!(
        "# Whose data this is. Written once by camus serve; the data can not be read without it.\n\
         format = {format}\ncluster_id = \"{}\"\nnode_id = {}\ncores = {}\n",
        identity.cluster_id, identity.node_id, identity.cores
    );
    if !identity.brokers.is_empty() {
        text.push_str(&format!("brokers = {:?}\n", identity.brokers));
    }
    if let Some(directory) = identity.directory {
        text.push_str(&format!("directory = \"{directory}\"\n"));
    }
    replace_file(path, IDENTITY_FILE, &text)
}

/// Written beside, flushed, renamed, and the directory flushed: there is the whole file, or what was there before.
pub fn replace_file(dir: &Path, name: &str, text: &str) -> io::Result<()> {
    let beside = dir.join(format!("{name}.new"));
    let mut file = File::create(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&beside, dir.join(name))?;
    sync_dir(dir)
}

/// Records are nobody else's to read: neither group nor others get in.
fn make_dir(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn take_lock(path: &Path) -> Result<Lock, UserError> {
    let failed = |e: io::Error| errors::data_dir_io(path, "opening the file lock", &e);
    let dir = lock_dir(path, FlockOperation::NonBlockingLockExclusive)?;
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path.join(LOCK_FILE))
        .map_err(failed)?;
    lock(path, &file, FlockOperation::NonBlockingLockExclusive)?;
    file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(failed)?;
    still_named(path, &dir)?;
    Ok(Lock { _dir: dir, _file: Some(file) })
}

/// For tools that read: keeps a broker from starting meanwhile, and refuses beside a running one. Changes nothing.
pub fn hold_for_reading(path: &Path) -> Result<Lock, UserError> {
    let dir = lock_dir(path, FlockOperation::NonBlockingLockShared)?;
    let file = match File::open(path.join(LOCK_FILE)) {
        Ok(file) => {
            lock(path, &file, FlockOperation::NonBlockingLockShared)?;
            Some(file)
        }
        // A copy of a directory may come without it.
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(errors::data_dir_io(path, "opening the file lock", &e)),
    };
    still_named(path, &dir)?;
    Ok(Lock { _dir: dir, _file: file })
}

fn lock_dir(path: &Path, how: FlockOperation) -> Result<File, UserError> {
    let dir = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| errors::data_dir_io(path, "opening it", &errno.into()))?;
    let dir = File::from(dir);
    lock(path, &dir, how)?;
    Ok(dir)
}

#[allow(clippy::disallowed_methods, reason = "before there is a core")]
fn lock(path: &Path, file: &File, how: FlockOperation) -> Result<(), UserError> {
    let mut waited = Duration::ZERO;
    loop {
        match flock(file, how) {
            Ok(()) => return Ok(()),
            // A process that was killed holds its files until the kernel has taken it apart.
            Err(rustix::io::Errno::WOULDBLOCK) if waited < LOCK_FREE_AFTER && holder(path).is_some_and(is_ending) => {
                std::thread::sleep(LOCK_LOOK_EVERY);
                waited += LOCK_LOOK_EVERY;
            }
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(locked(path)),
            Err(errno) => return Err(errors::data_dir_io(path, "locking it", &errno.into())),
        }
    }
}

/// Nothing is left of it but its number, or not even that: such a process has no command line any more.
fn is_ending(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).map_or_else(|e| e.kind() == io::ErrorKind::NotFound, |l| l.is_empty())
}

/// What is locked is what the path leads to: a directory that was moved away meanwhile is not ours to write at.
fn still_named(path: &Path, dir: &File) -> Result<(), UserError> {
    let failed = |e: io::Error| errors::data_dir_io(path, "looking whether it is still the one that was locked", &e);
    let (locked, named) = (dir.metadata().map_err(failed)?, std::fs::metadata(path).map_err(failed)?);
    if (locked.dev(), locked.ino()) == (named.dev(), named.ino()) {
        return Ok(());
    }
    Err(failed(io::Error::other("it was replaced by another directory meanwhile")))
}

/// Who has it is written in the file `lock`, if that is there.
fn holder(path: &Path) -> Option<u32> {
    let mut holder = String::new();
    // Who it is may be unknown.
    let _ = File::open(path.join(LOCK_FILE)).and_then(|file| file.take(64).read_to_string(&mut holder));
    holder.trim().parse().ok()
}

fn locked(path: &Path) -> UserError {
    errors::data_dir_locked(path, holder(path).map(|pid| (pid, command_of(pid))))
}

fn command_of(pid: u32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<String> =
        line.split(|b| *b == 0).filter(|w| !w.is_empty()).map(|w| String::from_utf8_lossy(w).into_owned()).collect();
    if words.is_empty() { "of another user or host".to_owned() } else { words.join(" ").chars().take(200).collect() }
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// 16 bytes as Kafka writes a UUID: URL-safe base64 without padding.
pub fn cluster_id_of(bytes: [u8; 16]) -> String {
    let number = u128::from_be_bytes(bytes);
    (0..22).map(|at| char::from(BASE64[digit_of(number, at)])).collect()
}

/// Digit `at` (0 is the highest) of the 128-bit number followed by four zero bits.
fn digit_of(number: u128, at: usize) -> usize {
    let low = 126 - 6 * at; // of the 132-bit value
    let bits = if low >= 4 { number >> (low - 4) } else { number << (4 - low) };
    (bits & 63) as usize
}

/// The bytes of a cluster id, if it is one.
pub fn uuid_of(id: &str) -> Option<[u8; 16]> {
    if id.len() != 22 {
        return None;
    }
    let mut number: u128 = 0;
    for (at, c) in id.bytes().enumerate() {
        let digit = BASE64.iter().position(|b| *b == c)? as u128;
        let low = 126 - 6 * at;
        match low >= 4 {
            true => number |= digit << (low - 4),
            false if digit & 15 == 0 => number |= digit >> 4,
            false => return None,
        }
    }
    Some(number.to_be_bytes())
}

/// A new random cluster id.
pub fn new_cluster_id() -> io::Result<String> {
    Ok(cluster_id_of(*uuid::Builder::from_random_bytes(random_bytes()?).into_uuid().as_bytes()))
}

fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0u8; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A random number, not for secrets.
pub fn random_u64() -> io::Result<u64> {
    Ok(u64::from_ne_bytes(random_bytes()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temporary() -> tempfile::TempDir {
        tempfile::tempdir().expect("a temporary directory")
    }

    #[test]
    fn a_cluster_id_is_a_uuid_as_kafka_writes_it() {
        // From Kafka's own Uuid: 1d2f3a4b-5c6d-7e8f-9000-102030405060 in URL-safe base64.
        let bytes = uuid::Uuid::parse_str("1d2f3a4b-5c6d-7e8f-9000-102030405060").expect("valid").into_bytes();
        assert_eq!(cluster_id_of(bytes), "HS86S1xtfo-QABAgMEBQYA");
        assert_eq!(uuid_of("HS86S1xtfo-QABAgMEBQYA"), Some(bytes));
        assert_eq!(uuid_of("HS86S1xtfo-QABAgMEBQYB"), None, "bits beyond the 128");
        assert_eq!(uuid_of("short"), None);
        let new = new_cluster_id().expect("random bytes");
        assert_eq!(cluster_id_of(uuid_of(&new).expect("valid")), new);
    }

    /// If this fails, a restart does not find its own data.
    #[test]
    fn a_directory_remembers_whose_it_is() {
        let dir = temporary();
        let path = dir.path().join("a/b");
        let id = new_cluster_id().expect("random bytes");
        let mut first = DataDir::open(&path).expect("new");
        assert_eq!(first.identity(), None);
        let made = first.claim(&id, Some(7), 2).expect("written");
        assert!(first.core_dir(CoreId(1)).is_dir());
        drop(first);
        let mut again = DataDir::open(&path).expect("its own");
        assert_eq!(again.identity(), Some(&made));
        assert_eq!(again.claim("other", None, 2).expect("the same"), made);
        assert_eq!(made.cluster_id, id);
    }

    /// If this fails, partitions are looked for on cores where they are not.
    #[test]
    fn other_cores_or_another_node_are_refused() {
        let dir = temporary();
        DataDir::open(dir.path()).expect("new").claim("HS86S1xtfo-QABAgMEBQYA", None, 2).expect("written");
        let mut again = DataDir::open(dir.path()).expect("its own");
        let error = again.claim("x", None, 3).expect_err("other cores");
        assert_eq!(error.code, "CAM-0103");
        assert!(error.run.ends_with("--cores 2"), "{error}");
        assert_eq!(again.claim("x", Some(9), 2).expect_err("another node").code, "CAM-0103");
    }

    /// Lost if it fails: what others voted on, or all of it: a broker that was alone would bring its own history into a
    /// cluster whose majority never had it, and one that leaves its cluster would acknowledge alone.
    #[test]
    fn the_brokers_and_the_cluster_are_those_that_the_directory_was_made_for() {
        let (id, other) = ("HS86S1xtfo-QABAgMEBQYA", "AAECAwQFBgcICQoLDA0ODw");
        let three = Claim { fresh_id: "x", cluster_id: Some(id), node_id: Some(2), cores: 1, brokers: &[1, 2, 3] };
        let alone = Claim { brokers: &[], ..three };
        for (made, others) in [
            (three, [alone, Claim { brokers: &[1, 2], ..three }, Claim { cluster_id: Some(other), ..three }]),
            (alone, [three, Claim { brokers: &[2], ..three }, Claim { cluster_id: Some(other), ..alone }]),
        ] {
            let dir = temporary();
            let identity = DataDir::open(dir.path()).expect("new").claim_as(made).expect("written");
            assert_eq!((identity.cluster_id.as_str(), &identity.brokers[..]), (id, made.brokers));
            let again = DataDir::open(dir.path()).expect("there").claim_as(made).expect("the same");
            assert_eq!(again, identity);
            for other in others {
                let refused = DataDir::open(dir.path()).expect("there").claim_as(other).expect_err("another");
                assert_eq!(refused.code, "CAM-0103", "{other:?}");
            }
        }
    }

    /// If this fails, two brokers write over each other's log.
    #[test]
    fn a_second_process_is_refused_and_told_who_has_it() {
        let dir = temporary();
        let held = DataDir::open(dir.path()).expect("new");
        let error = DataDir::open(dir.path()).expect_err("it is held");
        assert_eq!(error.code, "CAM-0102");
        assert_eq!(error.status, errors::exit::DATA_DIR_LOCKED);
        assert!(error.meaning.contains(&format!("process {}", std::process::id())), "{error}");
        drop(held);
        DataDir::open(dir.path()).expect("free again");
    }

    /// If this fails, a start right behind a `kill -9` is refused: the kernel keeps the lock of a process that it takes
    /// apart for a moment.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "a test")]
    fn a_start_waits_for_the_end_of_a_process_that_is_ending() {
        let dir = temporary();
        let held = DataDir::open(dir.path()).expect("new");
        let mut child = std::process::Command::new("true").spawn().expect("a process");
        let gone = child.id();
        child.wait().expect("it ends");
        std::fs::write(dir.path().join(LOCK_FILE), format!("{gone}\n")).expect("written");
        let ends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(held);
        });
        DataDir::open(dir.path()).expect("free in a moment");
        ends.join().expect("no panic");
    }

    /// If this fails, whoever removes the file `lock` by hand lets a second broker write the same log.
    #[test]
    fn removing_the_lock_file_frees_nothing() {
        let dir = temporary();
        let held = DataDir::open(dir.path()).expect("new");
        std::fs::remove_file(dir.path().join(LOCK_FILE)).expect("removed");
        assert_eq!(DataDir::open(dir.path()).expect_err("it is held").code, "CAM-0102");
        assert_eq!(hold_for_reading(dir.path()).expect_err("it is held").code, "CAM-0102");
        assert!(!dir.path().join(LOCK_FILE).exists(), "who was refused changed nothing");
        drop(held);
        DataDir::open(dir.path()).expect("free again");
    }

    /// If this fails, a process goes on with a lock on a directory that it does not write to.
    #[test]
    fn a_directory_that_was_replaced_while_it_was_locked_is_refused() {
        let dir = temporary();
        let (path, away) = (dir.path().join("a"), dir.path().join("b"));
        make_dir(&path).expect("made");
        let locked = lock_dir(&path, FlockOperation::NonBlockingLockExclusive).expect("free");
        still_named(&path, &locked).expect("the same");
        std::fs::rename(&path, &away).expect("moved");
        assert_eq!(still_named(&path, &locked).expect_err("gone").code, "CAM-0101");
        make_dir(&path).expect("made");
        assert_eq!(still_named(&path, &locked).expect_err("another one").code, "CAM-0101");
    }

    /// If this fails, a broker whose log was removed starts empty, and gives offsets and ids out a second time.
    #[test]
    fn a_log_that_was_begun_and_is_gone_stops_the_start() {
        let dir = temporary();
        let claim = || DataDir::open(dir.path())?.claim("HS86S1xtfo-QABAgMEBQYA", None, 2);
        claim().expect("new");
        claim().expect("a start that ended before its first record lost nothing");
        let core = CoreId(1);
        let segment = core_dir(dir.path(), core).join("000001.wal");
        std::fs::write(&segment, b"x").expect("written");
        claim().expect("a log of before there were marks");
        note_begun(dir.path(), core).expect("written");
        note_begun(dir.path(), core).expect("it is there already");
        claim().expect("whole");
        std::fs::rename(&segment, core_dir(dir.path(), core).join("000001.wal.tmp")).expect("renamed");
        let error = claim().expect_err("no segment");
        assert_eq!((error.code, error.status), ("CAM-0107", errors::exit::WAL_DAMAGED));
        assert!(error.place.ends_with("core-1"), "{error}");
        std::fs::remove_dir_all(core_dir(dir.path(), core)).expect("removed");
        assert_eq!(claim().expect_err("no directory").code, "CAM-0107");
        assert!(!core_dir(dir.path(), core).exists(), "a refused start makes nothing");
        std::fs::remove_file(begun_file(dir.path(), core)).expect("removed");
        assert_eq!(claim().expect_err("a directory that was made before camus.toml").code, "CAM-0107");
        std::fs::remove_file(dir.path().join(IDENTITY_FILE)).expect("removed");
        note_begun(dir.path(), core).expect("written");
        assert_eq!(claim().expect_err("begun, but whose?").code, "CAM-0104");
    }

    #[test]
    fn a_damaged_newer_or_missing_identity_is_never_guessed() {
        let dir = temporary();
        let path = dir.path().join(IDENTITY_FILE);
        for text in [
            "format = 4\n",
            "format = 2\n",
            "format = 1\n",
            "not toml at all",
            "format = 1\ncluster_id = \"x\"\nnode_id=1\ncores=1\n",
        ] {
            std::fs::write(&path, text).expect("written");
            assert_eq!(DataDir::open(dir.path()).expect_err(text).code, "CAM-0104");
        }
        std::fs::write(&path, b"format = 1\n\xff\xfe").expect("written");
        assert_eq!(DataDir::open(dir.path()).expect_err("no text").code, "CAM-0104");
        std::fs::remove_file(&path).expect("removed");
        DataDir::open(dir.path()).expect("empty").claim("HS86S1xtfo-QABAgMEBQYA", None, 1).expect("written");
        std::fs::write(core_dir(dir.path(), CoreId(0)).join("000001.wal"), b"x").expect("written");
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(DataDir::open(dir.path()).expect_err("data, but whose?").code, "CAM-0104");
    }
}
