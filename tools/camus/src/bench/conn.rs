//! One connection that never blocks: requests out, whole answers in.

use super::encode::{Patch, Template};
use super::wire::{self, Produced};
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;

/// An answer larger than this is none.
const ANSWER_BYTES_MAX: usize = 1 << 30;
/// What a buffer for answers begins with. It grows to the largest answer.
pub const INBOX_BYTES: usize = 64 * 1024;
/// Room for the answer to one produce request, the topic's name included.
const PRODUCED_BYTES: usize = 384;
/// Requests that go out with one system call.
const WRITTEN_TOGETHER_MAX: usize = 8;

/// Why a connection is of no use any more.
#[derive(Debug)]
pub enum Fault {
    Io(io::Error),
    /// The other side closed it.
    Closed,
    /// What came is no answer to what was asked.
    Garbled(&'static str),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::Io(error)
    }
}

/// Bytes that came, until they are whole answers. Lives on the driving thread; grows to the largest answer and no more.
#[derive(Debug)]
pub struct Inbox {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Inbox {
    pub fn new(bytes: usize) -> Inbox {
        Inbox { buffer: vec![0; bytes], start: 0, end: 0 }
    }

    /// Reads once. `false`: nothing was there.
    pub fn read(&mut self, stream: &mut TcpStream) -> Result<bool, Fault> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        let needed = self.announced().map_or(4, |length| 4 + length);
        if self.start + needed > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if needed > self.buffer.len() {
                self.buffer.resize(needed, 0);
            }
        }
        match stream.read(&mut self.buffer[self.end..]) {
            Ok(0) => Err(Fault::Closed),
            Ok(count) => {
                self.end += count;
                match self.announced() {
                    Some(length) if length > ANSWER_BYTES_MAX => Err(Fault::Garbled("it is not the Kafka protocol")),
                    _ => Ok(true),
                }
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Bytes of the answer that begins the inbox, as it says itself.
    fn announced(&self) -> Option<usize> {
        let length: [u8; 4] = self.buffer[self.start..self.end].get(..4)?.try_into().ok()?;
        Some(u32::from_be_bytes(length) as usize)
    }

    /// The next whole answer, without its length.
    pub fn frame(&mut self) -> Option<&[u8]> {
        let length = self.announced()?;
        let from = self.start + 4;
        if self.end < from + length {
            return None;
        }
        self.start = from + length;
        Some(&self.buffer[from..from + length])
    }
}

/// A request that was asked for and not yet answered.
#[derive(Debug)]
struct Slot {
    head: Vec<u8>,
    start_ns: u64,
    asked_ns: u64,
    partition: i32,
}

/// What became of a request.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// From when its latency counts.
    pub start_ns: u64,
    pub error: i16,
}

/// A connection that produces. A ring of slots: `answered <= written <= asked <= answered + slots`.
///
/// A broker answers in the order of the requests (Kafka's protocol guide, "Network"): the oldest slot is the one to be
/// answered next.
#[derive(Debug)]
pub struct Producer {
    pub stream: TcpStream,
    inbox: Inbox,
    slots: Vec<Slot>,
    asked: u64,
    written: u64,
    answered: u64,
    /// Bytes of the request `written` that are out already.
    written_bytes: usize,
    /// The partitions of this connection, and whose turn it is.
    partitions: Vec<i32>,
    sequences: Vec<i32>,
    turn: usize,
    pub producer: Option<(i64, i16)>,
    /// The socket took less than it was given: go on when it is writable.
    pub blocked: bool,
    /// After an error the sequences of an idempotent producer have a hole: it begins anew when nothing is in flight.
    pub broken: bool,
}

impl Producer {
    pub fn new(
        stream: TcpStream,
        in_flight: usize,
        partitions: Vec<i32>,
        producer: Option<(i64, i16)>,
        template: &Template,
    ) -> Producer {
        let slot = || Slot { head: template.head.clone(), start_ns: 0, asked_ns: 0, partition: 0 };
        Producer {
            stream,
            inbox: Inbox::new((in_flight * PRODUCED_BYTES).clamp(1024, INBOX_BYTES)),
            slots: (0..in_flight).map(|_| slot()).collect(),
            asked: 0,
            written: 0,
            answered: 0,
            written_bytes: 0,
            sequences: vec![0; partitions.len()],
            partitions,
            turn: 0,
            producer,
            blocked: false,
            broken: false,
        }
    }

    pub fn in_flight(&self) -> usize {
        (self.asked - self.answered) as usize
    }

    pub fn may_ask(&self) -> bool {
        self.in_flight() < self.slots.len() && !self.broken
    }

    /// When the oldest request that is not answered was asked.
    pub fn oldest_ns(&self) -> Option<u64> {
        (self.in_flight() > 0).then(|| self.slots[self.at(self.answered)].asked_ns)
    }

    fn at(&self, number: u64) -> usize {
        (number % self.slots.len() as u64) as usize
    }

    /// Puts a request for the next partition into the queue; [`Self::flush`] sends it. Its latency counts from
    /// `start_ns`.
    pub fn ask(&mut self, template: &Template, records: i32, start_ns: u64, now_ns: u64, run: Option<u64>) {
        debug_assert!(self.may_ask());
        let turn = self.turn;
        self.turn = (turn + 1) % self.partitions.len();
        let partition = self.partitions[turn];
        let producer = self.producer.map(|(id, epoch)| {
            let sequence = self.sequences[turn];
            // Sequences wrap to 0 (KIP-98).
            self.sequences[turn] = ((i64::from(sequence) + i64::from(records)) % (1 << 31)) as i32;
            (id, epoch, sequence)
        });
        let at = self.at(self.asked);
        let correlation = self.asked as i32;
        let slot = &mut self.slots[at];
        (slot.start_ns, slot.asked_ns, slot.partition) = (start_ns, now_ns, partition);
        let stamp = run.map(|run| (run, start_ns));
        template.patch(&mut slot.head, &Patch { correlation, partition, producer, stamp });
        self.asked += 1;
    }

    /// Sends what is asked and not yet out, until the socket takes no more.
    pub fn flush(&mut self, template: &Template) -> Result<(), Fault> {
        self.blocked = false;
        while self.written < self.asked {
            let mut parts = [IoSlice::new(&[]); 2 * WRITTEN_TOGETHER_MAX];
            let mut used = 0;
            let mut skip = self.written_bytes;
            let mut given = 0;
            for number in self.written..self.asked.min(self.written + WRITTEN_TOGETHER_MAX as u64) {
                let head = self.slots[self.at(number)].head.as_slice();
                let from_head = skip.min(head.len());
                let from_tail = skip - from_head;
                skip = 0;
                for part in [&head[from_head..], &template.tail[from_tail..]] {
                    if !part.is_empty() {
                        parts[used] = IoSlice::new(part);
                        used += 1;
                        given += part.len();
                    }
                }
            }
            match self.stream.write_vectored(&parts[..used]) {
                Ok(0) => return Err(Fault::Closed),
                Ok(count) => {
                    self.wrote(count, template.head.len() + template.tail.len());
                    if count < given {
                        self.blocked = true;
                        return Ok(());
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = true;
                    return Ok(());
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn wrote(&mut self, count: usize, request_bytes: usize) {
        let bytes = self.written_bytes + count;
        self.written += (bytes / request_bytes) as u64;
        self.written_bytes = bytes % request_bytes;
    }

    /// Reads once what has come and tells each answer in it.
    pub fn read(&mut self, version: i16, mut each: impl FnMut(Answer)) -> Result<(), Fault> {
        self.inbox.read(&mut self.stream)?;
        while let Some(frame) = self.inbox.frame() {
            let Produced { correlation, partition, error } =
                wire::produced(frame, version).ok_or(Fault::Garbled("an answer to Produce does not decode"))?;
            if self.answered == self.asked {
                return Err(Fault::Garbled("an answer came that nothing was asked for"));
            }
            let slot = &self.slots[(self.answered % self.slots.len() as u64) as usize];
            if correlation != self.answered as i32 || partition != slot.partition {
                return Err(Fault::Garbled("an answer came that is not of the oldest request"));
            }
            self.answered += 1;
            self.broken |= error != 0 && self.producer.is_some();
            each(Answer { start_ns: slot.start_ns, error });
        }
        Ok(())
    }

    /// A new producer id, and sequences from the start.
    pub fn begin_anew(&mut self, producer: (i64, i16)) {
        self.producer = Some(producer);
        self.sequences.fill(0);
        self.broken = false;
    }
}
