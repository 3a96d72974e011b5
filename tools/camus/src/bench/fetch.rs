//! A connection that reads partitions from an offset on, as fast as they come or as soon as something is there.
//!
//! It uses a fetch session where the broker gives one (KIP-227), so that a request names only the partitions that went
//! on. Of what comes it looks at the headers of batches only.

use super::conn::{Fault, INBOX_BYTES, Inbox};
use super::wire::{self, BatchAt};
use crate::client;
use bytes::BytesMut;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::{BrokerId, FetchRequest, TopicName};
use kafka_protocol::protocol::StrBytes;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::TcpStream;

/// How the broker is asked.
#[derive(Clone, Debug)]
pub struct Asking {
    pub topic: String,
    pub version: i16,
    /// Bytes of an answer, and of one partition in it.
    pub bytes_max: i32,
    pub partition_bytes_max: i32,
    pub wait_max_ms: i32,
}

/// One partition of a reader.
#[derive(Clone, Copy, Debug)]
struct Position {
    /// The next offset to read.
    next: i64,
    first: i64,
    /// A pass over the partition ends here; `i64::MAX` when it follows the tail.
    end: i64,
    /// The session does not know `next` yet.
    news: bool,
}

/// What one answer held.
#[derive(Clone, Copy, Default, Debug)]
pub struct Got {
    pub start_ns: u64,
    pub bytes: u64,
    pub records: u64,
    /// The first error that was in it, and how many.
    pub error: i16,
    pub errors: u64,
}

/// A connection that fetches; one request in flight. Lives on the driving thread.
#[derive(Debug)]
pub struct Fetcher {
    pub stream: TcpStream,
    asking: Asking,
    inbox: Inbox,
    request: BytesMut,
    written: usize,
    positions: BTreeMap<i32, Position>,
    session: i32,
    epoch: i32,
    correlation: i32,
    start_ns: Option<u64>,
    pub blocked: bool,
    /// Begin again where a pass ended.
    repeat: bool,
}

impl Fetcher {
    /// `partitions`: number, first offset, offset where a pass ends. Without `repeat` it is done after one pass.
    pub fn new(stream: TcpStream, asking: Asking, partitions: &[(i32, i64, i64)], repeat: bool) -> Fetcher {
        let position =
            |&(partition, first, end): &(i32, i64, i64)| (partition, Position { next: first, first, end, news: true });
        Fetcher {
            stream,
            asking,
            inbox: Inbox::new(INBOX_BYTES),
            request: BytesMut::new(),
            written: 0,
            positions: partitions.iter().filter(|(_, first, end)| first < end).map(position).collect(),
            session: 0,
            epoch: 0,
            correlation: 0,
            start_ns: None,
            blocked: false,
            repeat,
        }
    }

    pub fn oldest_ns(&self) -> Option<u64> {
        self.start_ns
    }

    /// Everything was read once, and that was all that was asked for.
    pub fn is_done(&self) -> bool {
        !self.repeat && self.positions.values().all(|p| p.next >= p.end)
    }

    /// Sends the next request.
    pub fn ask(&mut self, now_ns: u64) -> Result<(), Fault> {
        debug_assert!(self.start_ns.is_none());
        let full = self.session == 0;
        let mut partitions = Vec::new();
        for (&partition, position) in &mut self.positions {
            if full || position.news {
                position.news = false;
                partitions.push(
                    FetchPartition::default()
                        .with_partition(partition)
                        .with_current_leader_epoch(-1)
                        .with_fetch_offset(position.next)
                        .with_log_start_offset(-1)
                        .with_last_fetched_epoch(-1)
                        .with_partition_max_bytes(self.asking.partition_bytes_max),
                );
            }
        }
        let topics = match partitions.is_empty() {
            true => Vec::new(),
            false => vec![
                FetchTopic::default()
                    .with_topic(TopicName(StrBytes::from_string(self.asking.topic.clone())))
                    .with_partitions(partitions),
            ],
        };
        self.correlation = self.correlation.wrapping_add(1);
        let request = FetchRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_max_wait_ms(self.asking.wait_max_ms)
            .with_min_bytes(1)
            .with_max_bytes(self.asking.bytes_max)
            .with_session_id(self.session)
            .with_session_epoch(self.epoch)
            .with_topics(topics);
        self.request = client::encode(&request, self.asking.version, self.correlation)
            .map_err(|_| Fault::Garbled("a Fetch does not encode"))?;
        self.written = 0;
        self.start_ns = Some(now_ns);
        self.flush()
    }

    pub fn flush(&mut self) -> Result<(), Fault> {
        self.blocked = false;
        while self.written < self.request.len() {
            match self.stream.write(&self.request[self.written..]) {
                Ok(0) => return Err(Fault::Closed),
                Ok(count) => self.written += count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = true;
                    break;
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Reads once. `Some` when an answer is whole; `each` saw its batches.
    pub fn read(&mut self, mut each: impl FnMut(i32, BatchAt<'_>)) -> Result<Option<Got>, Fault> {
        if !self.inbox.read(&mut self.stream)? {
            return Ok(None);
        }
        let Some(frame) = self.inbox.frame() else { return Ok(None) };
        let Some(start_ns) = self.start_ns.take() else {
            return Err(Fault::Garbled("an answer came that nothing was asked for"));
        };
        let mut got = Got { start_ns, ..Got::default() };
        let mut failed = |code: i16| {
            got.error = if got.errors == 0 { code } else { got.error };
            got.errors += 1;
        };
        let (positions, repeat) = (&mut self.positions, self.repeat);
        let (mut bytes, mut records) = (0, 0);
        let head = wire::fetched(frame, self.asking.version, |part| {
            if part.error != 0 {
                failed(part.error);
                return;
            }
            let Some(position) = positions.get_mut(&part.partition) else { return };
            bytes += part.records.len() as u64;
            for batch in wire::batches(part.records) {
                records += u64::try_from(batch.records).unwrap_or(0);
                position.next = batch.next_offset;
                position.news = true;
                each(part.partition, batch);
            }
            if repeat && position.next >= position.end {
                position.next = position.first;
            }
        });
        let head = head.ok_or(Fault::Garbled("an answer to Fetch does not decode"))?;
        if head.correlation != self.correlation {
            return Err(Fault::Garbled("an answer came that is not of the request"));
        }
        if head.error != 0 {
            failed(head.error);
            // The session is gone: the next request names everything.
            (self.session, self.epoch) = (0, 0);
        } else {
            self.session = head.session;
            self.epoch = if head.session == 0 { 0 } else { self.epoch.checked_add(1).unwrap_or(1) };
        }
        (got.bytes, got.records) = (bytes, records);
        Ok(Some(got))
    }
}
