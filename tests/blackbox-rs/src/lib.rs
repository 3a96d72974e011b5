//! What the black-box tests are written with: a broker process and a raw connection to it.
//!
//! In: the binary of CAMUS_BIN, or, without it, the debug binary, which is built first. Out: nothing; tests only.
//! The wire is encoded by hand here, in versions without compact fields, so that no code of the broker judges itself.
#![allow(clippy::disallowed_methods, reason = "a test harness waits, and runs threads")]

use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// OUT_OF_ORDER_SEQUENCE_NUMBER
pub const OUT_OF_ORDER: i16 = 45;
const PRODUCE: (i16, i16) = (0, 7);
const FETCH: (i16, i16) = (1, 11);
const METADATA: (i16, i16) = (3, 4);
const CREATE_TOPICS: (i16, i16) = (19, 4);
const INIT_PRODUCER_ID: (i16, i16) = (22, 1);

/// The path of the binary under test.
pub fn binary() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace is two levels up");
        if let Some(path) = std::env::var_os("CAMUS_BIN") {
            // Cargo runs tests in the package's folder; a relative path means the workspace's.
            let path = root.join(path);
            assert!(path.exists(), "CAMUS_BIN: there is no {}", path.display());
            return path;
        }
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let built = Command::new(cargo).args(["build", "--quiet", "-p", "camus"]).current_dir(root).status();
        assert!(built.expect("cargo runs").success(), "the binary does not build");
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
        target.join("debug/camus")
    })
}

/// A broker on a data directory of its own; killed when dropped.
pub struct Broker {
    folder: tempfile::TempDir,
    child: Option<Child>,
    /// After the first start: the same again at the next.
    address: Option<SocketAddr>,
    runs: u32,
}

impl Broker {
    /// Starts a broker with one core and waits until it is ready.
    pub fn start() -> Broker {
        let folder = tempfile::Builder::new().prefix("camus-test-").tempdir().expect("a temporary folder");
        let mut broker = Broker { folder, child: None, address: None, runs: 0 };
        broker.start_again();
        broker
    }

    /// Starts it on the same data and the same port.
    pub fn start_again(&mut self) {
        assert!(self.child.is_none(), "already running");
        self.runs += 1;
        let out = self.folder.path().join(format!("run{}.out", self.runs));
        let err = self.folder.path().join(format!("run{}.err", self.runs));
        let listen = self.address.map_or("127.0.0.1:0".to_owned(), |a| a.to_string());
        let mut command = Command::new(binary());
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CAMUS_")) {
            command.env_remove(name);
        }
        let child = command
            .args(["serve", "--cores", "1", "--http", "127.0.0.1:0", "--set", "camus.wal.segment.bytes=32MiB"])
            .args(["--listen", &listen, "--data-dir"])
            .arg(self.folder.path().join("data"))
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(&out).expect("the log can be made"))
            .stderr(std::fs::File::create(&err).expect("the log can be made"))
            .spawn()
            .expect("the binary runs");
        let child = self.child.insert(child);
        let begun = Instant::now();
        self.address = Some(loop {
            let said = std::fs::read_to_string(&out).unwrap_or_default();
            // The whole line, with its end: it is not read while it is written.
            let ready = said.split_inclusive('\n').find(|l| l.starts_with("camus ready ") && l.ends_with('\n'));
            if let Some(line) = ready {
                let word = line.split_whitespace().find_map(|w| w.strip_prefix("kafka="));
                break word.and_then(|w| w.parse().ok()).expect("the ready line has an address");
            }
            let ended = child.try_wait().expect("its status is known");
            if ended.is_some() || begun.elapsed() > Duration::from_secs(30) {
                let errors = std::fs::read_to_string(&err).unwrap_or_default();
                panic!("the broker is not ready ({ended:?}):\n{said}\n{errors}");
            }
            pause(10);
        });
    }

    pub fn kill_9(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("a child can be killed");
            child.wait().expect("a child can be waited for");
        }
    }

    /// Stops the process where it stands (SIGSTOP): what is sent now waits in the sockets.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, name: &str) {
        let pid = self.child.as_ref().expect("it runs").id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().expect("kill runs").success());
    }

    pub fn connect(&self) -> Conn {
        Conn::to(self.address.expect("it was started"))
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let ended = self.child.as_mut().map(|child| child.try_wait());
            let mut text = format!("--- broker, how it ended: {ended:?}\n");
            for run in 1..=self.runs {
                let path = self.folder.path().join(format!("run{run}.err"));
                let said = std::fs::read_to_string(&path).unwrap_or_default();
                let _ = writeln!(text, "--- broker, run {run}\n{said}");
            }
            // Through the harness's capture, beside the failure.
            #[allow(clippy::print_stderr)]
            {
                eprintln!("{text}");
            }
        }
        self.kill_9();
    }
}

/// Waits. Only for what has no condition to wait for.
pub fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// What a producer is known by.
#[derive(Clone, Copy, Debug)]
pub struct Ids {
    pub producer: i64,
    pub epoch: i16,
}

/// A producer without idempotence.
pub const PLAIN: Ids = Ids { producer: -1, epoch: -1 };

/// The answer to a produce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Produced {
    pub error: i16,
    pub base_offset: i64,
}

/// One connection; requests may be sent ahead of the answers.
pub struct Conn {
    stream: TcpStream,
    correlation: i32,
    received: Vec<u8>,
}

/// No answer came in time, or the connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoAnswer {
    Silent,
    Closed,
}

impl Conn {
    pub fn to(address: SocketAddr) -> Conn {
        let stream = TcpStream::connect(address).expect("the broker accepts");
        stream.set_nodelay(true).expect("an option of TCP");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("an option of the socket");
        Conn { stream, correlation: 0, received: Vec::new() }
    }

    fn send(&mut self, (key, version): (i16, i16), body: &[u8]) -> i32 {
        self.correlation += 1;
        let mut frame = Vec::with_capacity(body.len() + 20);
        frame.extend(((2 + 2 + 4 + 2 + 4 + body.len()) as u32).to_be_bytes());
        frame.extend(key.to_be_bytes());
        frame.extend(version.to_be_bytes());
        frame.extend(self.correlation.to_be_bytes());
        put_string(&mut frame, "test");
        frame.extend(body);
        self.stream.write_all(&frame).expect("the broker takes requests");
        self.correlation
    }

    /// The body of the answer to `correlation`, which must be the next answer.
    fn receive(&mut self, correlation: i32) -> Result<Body, NoAnswer> {
        loop {
            if let Some(size) = self.received.first_chunk::<4>() {
                let size = u32::from_be_bytes(*size) as usize;
                if self.received.len() >= 4 + size {
                    let frame: Vec<u8> = self.received.drain(..4 + size).collect();
                    let mut body = Body { bytes: frame, at: 4 };
                    assert_eq!(body.i32(), correlation, "answers come in the order of the requests");
                    return Ok(body);
                }
            }
            let mut chunk = [0; 64 * 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(NoAnswer::Closed),
                Ok(n) => self.received.extend(&chunk[..n]),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Err(NoAnswer::Silent);
                }
                // A read with a time limit is not taken up again by the kernel.
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(NoAnswer::Closed),
            }
        }
    }

    /// How long an answer may take.
    pub fn patience(&mut self, ms: u64) {
        self.stream.set_read_timeout(Some(Duration::from_millis(ms))).expect("an option of the socket");
    }

    /// Makes a topic of this name and waits until its partitions have leaders.
    pub fn create_topic(&mut self, name: &str, partitions: i32) {
        let mut body = Vec::new();
        body.extend(1i32.to_be_bytes());
        put_string(&mut body, name);
        body.extend(partitions.to_be_bytes());
        body.extend(1i16.to_be_bytes());
        body.extend([0; 8]); // no assignments, no configs
        body.extend(20_000i32.to_be_bytes());
        body.push(0);
        let sent = self.send(CREATE_TOPICS, &body);
        let mut answer = self.receive(sent).expect("CreateTopics is answered");
        answer.i32();
        assert_eq!(answer.i32(), 1);
        answer.string();
        assert_eq!(answer.i16(), 0, "CreateTopics");
        self.wait_for_leaders(name, partitions);
    }

    /// Waits until Metadata names a leader for each partition.
    pub fn wait_for_leaders(&mut self, name: &str, partitions: i32) {
        let begun = Instant::now();
        while !self.has_leaders(name, partitions) {
            assert!(begun.elapsed() < Duration::from_secs(20), "no leaders for {name}");
            pause(20);
        }
    }

    fn has_leaders(&mut self, name: &str, partitions: i32) -> bool {
        let mut body = Vec::new();
        body.extend(1i32.to_be_bytes());
        put_string(&mut body, name);
        body.push(0); // do not make it
        let sent = self.send(METADATA, &body);
        let mut answer = self.receive(sent).expect("Metadata is answered");
        answer.i32(); // throttle time
        for _ in 0..answer.i32() {
            answer.i32();
            answer.string();
            answer.i32();
            answer.string();
        }
        answer.string(); // cluster id
        answer.i32(); // controller
        assert_eq!(answer.i32(), 1, "one topic was asked for");
        let mut good = answer.i16() == 0;
        answer.string();
        answer.i8();
        let count = answer.i32();
        good &= count == partitions;
        for _ in 0..count {
            good &= answer.i16() == 0;
            answer.i32();
            good &= answer.i32() >= 0;
            for _ in 0..2 {
                for _ in 0..answer.i32() {
                    answer.i32();
                }
            }
        }
        good
    }

    pub fn init_producer_id(&mut self) -> Ids {
        let mut body = Vec::new();
        body.extend((-1i16).to_be_bytes());
        body.extend(60_000i32.to_be_bytes());
        let sent = self.send(INIT_PRODUCER_ID, &body);
        let mut answer = self.receive(sent).expect("InitProducerId is answered");
        answer.i32();
        assert_eq!(answer.i16(), 0, "InitProducerId");
        Ids { producer: answer.i64(), epoch: answer.i16() }
    }

    /// Sends a produce with acks=all to partition 0 and does not wait.
    pub fn send_produce(&mut self, topic: &str, batch: &[u8], timeout_ms: i32) -> i32 {
        let mut body = Vec::new();
        body.extend((-1i16).to_be_bytes()); // no transactional id
        body.extend((-1i16).to_be_bytes()); // acks
        body.extend(timeout_ms.to_be_bytes());
        body.extend(1i32.to_be_bytes());
        put_string(&mut body, topic);
        body.extend(1i32.to_be_bytes());
        body.extend(0i32.to_be_bytes());
        body.extend((batch.len() as i32).to_be_bytes());
        body.extend(batch);
        self.send(PRODUCE, &body)
    }

    pub fn receive_produce(&mut self, correlation: i32) -> Result<Produced, NoAnswer> {
        let mut answer = self.receive(correlation)?;
        assert_eq!(answer.i32(), 1);
        answer.string();
        assert_eq!((answer.i32(), answer.i32()), (1, 0));
        Ok(Produced { error: answer.i16(), base_offset: answer.i64() })
    }

    pub fn produce(&mut self, topic: &str, batch: &[u8]) -> Produced {
        let sent = self.send_produce(topic, batch, 30_000);
        self.receive_produce(sent).expect("a produce is answered")
    }

    /// The values of all records of partition 0, whose offsets must be 0, 1, 2, ...
    pub fn read_all(&mut self, topic: &str) -> Vec<Vec<u8>> {
        let mut values = Vec::new();
        loop {
            let mut body = Vec::new();
            body.extend((-1i32).to_be_bytes());
            body.extend(0i32.to_be_bytes()); // do not wait
            body.extend(1i32.to_be_bytes());
            body.extend((50i32 << 20).to_be_bytes());
            body.push(0);
            body.extend(0i32.to_be_bytes());
            body.extend((-1i32).to_be_bytes()); // no session
            body.extend(1i32.to_be_bytes());
            put_string(&mut body, topic);
            body.extend(1i32.to_be_bytes());
            body.extend(0i32.to_be_bytes());
            body.extend((-1i32).to_be_bytes());
            body.extend((values.len() as i64).to_be_bytes());
            body.extend((-1i64).to_be_bytes());
            body.extend((10i32 << 20).to_be_bytes());
            body.extend(0i32.to_be_bytes()); // nothing to forget
            put_string(&mut body, "");
            let sent = self.send(FETCH, &body);
            let mut answer = self.receive(sent).expect("Fetch is answered");
            answer.i32();
            assert_eq!(answer.i16(), 0, "Fetch");
            answer.i32();
            assert_eq!(answer.i32(), 1);
            answer.string();
            assert_eq!((answer.i32(), answer.i32()), (1, 0));
            assert_eq!(answer.i16(), 0, "Fetch of the partition");
            let high_watermark = answer.i64();
            answer.i64();
            answer.i64();
            for _ in 0..answer.i32().max(0) {
                answer.i64();
                answer.i64();
            }
            answer.i32();
            let size = answer.i32().max(0) as usize;
            read_batches(answer.take(size), &mut values);
            if values.len() as i64 >= high_watermark {
                return values;
            }
            assert!(size > 0, "nothing is served at {}, below {high_watermark}", values.len());
        }
    }
}

/// A record batch (magic 2) with these values.
pub fn batch(ids: Ids, sequence: i32, values: &[Vec<u8>]) -> Vec<u8> {
    let mut after_crc = Vec::new();
    after_crc.extend(0i16.to_be_bytes());
    after_crc.extend((values.len() as i32 - 1).to_be_bytes());
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_millis() as i64;
    after_crc.extend(now.to_be_bytes());
    after_crc.extend(now.to_be_bytes());
    after_crc.extend(ids.producer.to_be_bytes());
    after_crc.extend(ids.epoch.to_be_bytes());
    after_crc.extend(sequence.to_be_bytes());
    after_crc.extend((values.len() as i32).to_be_bytes());
    for (i, value) in values.iter().enumerate() {
        let mut record = vec![0];
        put_varint(&mut record, 0);
        put_varint(&mut record, i as i64);
        put_varint(&mut record, -1);
        put_varint(&mut record, value.len() as i64);
        record.extend(value);
        put_varint(&mut record, 0);
        put_varint(&mut after_crc, record.len() as i64);
        after_crc.extend(record);
    }
    let mut whole = Vec::new();
    whole.extend(0i64.to_be_bytes());
    whole.extend((4 + 1 + 4 + after_crc.len() as i32).to_be_bytes());
    whole.extend((-1i32).to_be_bytes());
    whole.push(2);
    whole.extend(crc32c::crc32c(&after_crc).to_be_bytes());
    whole.extend(after_crc);
    whole
}

fn read_batches(mut bytes: &[u8], values: &mut Vec<Vec<u8>>) {
    while bytes.len() >= 12 {
        let size = 12 + i32::from_be_bytes(bytes[8..12].try_into().expect("four bytes")) as usize;
        if bytes.len() < size {
            return;
        }
        let mut batch = Body { bytes: bytes[..size].to_vec(), at: 0 };
        bytes = &bytes[size..];
        let base = batch.i64();
        batch.i32();
        batch.i32();
        assert_eq!(batch.i8(), 2, "the magic byte");
        assert_eq!(batch.i32() as u32, crc32c::crc32c(&batch.bytes[21..]), "the CRC of the batch at {base}");
        assert_eq!(batch.i16() & 7, 0, "only uncompressed batches were written");
        batch.take(4 + 8 + 8 + 8 + 2 + 4);
        for i in 0..i64::from(batch.i32()) {
            batch.varint();
            batch.i8();
            batch.varint();
            let offset = base + batch.varint();
            assert_eq!(offset, base + i);
            let key = batch.varint();
            batch.take(key.max(0) as usize);
            let size = batch.varint();
            let value = batch.take(size.max(0) as usize).to_vec();
            assert_eq!(batch.varint(), 0, "no headers were written");
            if offset >= values.len() as i64 {
                assert_eq!(offset, values.len() as i64, "offsets are contiguous");
                values.push(value);
            }
        }
    }
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as i16).to_be_bytes());
    out.extend(text.as_bytes());
}

fn put_varint(out: &mut Vec<u8>, n: i64) {
    let mut z = ((n << 1) ^ (n >> 63)) as u64;
    while z >= 0x80 {
        out.push(z as u8 | 0x80);
        z >>= 7;
    }
    out.push(z as u8);
}

/// Reads an answer from front to back; panics at its end.
struct Body {
    bytes: Vec<u8>,
    at: usize,
}

impl Body {
    fn take(&mut self, n: usize) -> &[u8] {
        self.at += n;
        &self.bytes[self.at - n..self.at]
    }

    fn fixed<const N: usize>(&mut self) -> [u8; N] {
        self.take(N).try_into().expect("take gives as many as it is asked for")
    }

    fn i8(&mut self) -> i8 {
        i8::from_be_bytes(self.fixed())
    }

    fn i16(&mut self) -> i16 {
        i16::from_be_bytes(self.fixed())
    }

    fn i32(&mut self) -> i32 {
        i32::from_be_bytes(self.fixed())
    }

    fn i64(&mut self) -> i64 {
        i64::from_be_bytes(self.fixed())
    }

    fn varint(&mut self) -> i64 {
        let (mut z, mut shift) = (0u64, 0);
        loop {
            let byte = self.fixed::<1>()[0];
            z |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return (z >> 1) as i64 ^ -((z & 1) as i64);
            }
            shift += 7;
        }
    }

    /// A nullable string, passed over.
    fn string(&mut self) {
        let size = self.i16().max(0) as usize;
        self.take(size);
    }
}
