//! One connection, as a state machine: bytes in, requests that may begin, answers out in order.
//!
//! In: what was received ([`Conn::received`]), what became of a request ([`Conn::finished`]), what the socket took
//! ([`Conn::sent`]). Out: requests to begin ([`Conn::begin`]), bytes to send ([`Conn::take_output`]), whether more is
//! to be read ([`Conn::wants_bytes`]), and whether the connection is over ([`Conn::is_over`]).
//!
//! Requests of one connection take effect in order. Produces do so side by side, because each is sent to its shards in
//! the order in which it began; anything else waits until it is alone, and what follows waits for it.

use crate::api::table::PRODUCE;
use crate::api::{Reply, Request};
use crate::frame::{FrameCutter, Header, split};
use crate::limits::{CONN_OUTPUT_BYTES_MAX, CONN_REQUEST_BYTES_MAX, CONN_REQUESTS_MAX};
use bytes::{BufMut, Bytes, BytesMut};
use camus_engine::types::Mono;
use std::collections::VecDeque;
use std::net::IpAddr;

/// Names a request of a connection: counted from 0 in the order in which they were begun.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestNo(pub u64);

/// What became of a request.
#[derive(Clone, Debug)]
pub enum Finished {
    Reply(Reply),
    /// It has no answer.
    Silent,
    /// The answers before it are sent, then the connection is closed.
    Close(&'static str),
}

#[derive(Debug)]
struct Begun {
    header: Header,
    frame_bytes: usize,
    finished: Option<Finished>,
}

/// The state of one connection. Lives on the connection's core; the node owns it and does what it says.
///
/// What it holds is bounded: requests by count and bytes (and one receive buffer, and one frame over), answers that the
/// client does not take by bytes (and one answer over).
#[derive(Debug)]
pub struct Conn {
    cutter: FrameCutter,
    advertised: (String, u16),
    peer: IpAddr,
    /// Cut and not begun, with the length of the frame.
    waiting: VecDeque<(Header, Request, usize)>,
    /// Begun and not released, in order.
    begun: VecDeque<Begun>,
    /// The number of the first in `begun`.
    first: u64,
    /// Of all frames in `waiting` and `begun`.
    request_bytes: usize,
    /// Released, and not taken by the node.
    output: Vec<Bytes>,
    /// Released, and not sent.
    output_bytes: usize,
    /// Behind the requests that wait comes something that can not be understood.
    fault: Option<&'static str>,
    /// No further request is begun; when what is released has been sent, the connection ends.
    closing: Option<&'static str>,
    last_progress: Mono,
}

impl Conn {
    /// `advertised`: the address of the listener as its clients are told. `peer`: where the client connects from.
    /// `frame_bytes_max`: the largest request.
    pub fn new(now: Mono, advertised: (String, u16), peer: IpAddr, frame_bytes_max: usize) -> Conn {
        Conn {
            cutter: FrameCutter::new(frame_bytes_max),
            advertised,
            peer,
            waiting: VecDeque::new(),
            begun: VecDeque::new(),
            first: 0,
            request_bytes: 0,
            output: Vec::new(),
            output_bytes: 0,
            fault: None,
            closing: None,
            last_progress: now,
        }
    }

    /// Takes a copy of what was received. Call it only while [`Self::wants_bytes`], with one receive buffer at most.
    pub fn received(&mut self, now: Mono, bytes: &[u8]) {
        self.receive(now, bytes, false);
    }

    /// As [`Self::received`], when memory is short: no more is taken than came.
    pub fn received_tight(&mut self, now: Mono, bytes: &[u8]) {
        self.receive(now, bytes, true);
    }

    fn receive(&mut self, now: Mono, bytes: &[u8], tight: bool) {
        self.last_progress = now;
        if self.fault.is_none() && self.closing.is_none() {
            if tight {
                self.cutter.push_tight(bytes)
            } else {
                self.cutter.push(bytes)
            }
            self.cut(now);
        }
    }

    /// Whether to read from the socket.
    pub fn wants_bytes(&self) -> bool {
        self.fault.is_none() && self.closing.is_none() && self.has_room() && self.output_bytes < CONN_OUTPUT_BYTES_MAX
    }

    fn has_room(&self) -> bool {
        self.waiting.len() + self.begun.len() < CONN_REQUESTS_MAX && self.request_bytes < CONN_REQUEST_BYTES_MAX
    }

    fn cut(&mut self, now: Mono) {
        while self.has_room() && self.fault.is_none() && self.closing.is_none() {
            let frame = match self.cutter.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(fault) => {
                    self.refuse(fault.kind());
                    break;
                }
            };
            match split(&frame) {
                Ok((header, body)) => {
                    let request = Request {
                        key: header.key,
                        version: header.version,
                        client_id: header.client_id.clone(),
                        body,
                        received: now,
                        advertised: self.advertised.clone(),
                        peer: self.peer,
                    };
                    self.request_bytes += frame.len();
                    self.waiting.push_back((header, request, frame.len()));
                }
                Err(fault) => self.refuse(fault.kind()),
            }
        }
        self.settle();
    }

    /// What came is no request: what is owed before it is still answered, what comes after it is not read.
    fn refuse(&mut self, why: &'static str) {
        self.fault = Some(why);
        self.cutter.clear();
    }

    fn settle(&mut self) {
        if self.waiting.is_empty() && self.begun.is_empty() && self.closing.is_none() {
            self.closing = self.fault;
        }
    }

    /// The next request that may begin now. The node must tell what became of it: [`Self::finished`].
    pub fn begin(&mut self, now: Mono) -> Option<(RequestNo, Request)> {
        if self.closing.is_some() || self.output_bytes >= CONN_OUTPUT_BYTES_MAX {
            return None;
        }
        let produce = |header: &Header| header.key == PRODUCE;
        let next = &self.waiting.front()?.0;
        let side_by_side = || produce(next) && self.begun.iter().all(|b| produce(&b.header));
        if !self.begun.is_empty() && !side_by_side() {
            return None;
        }
        let (header, request, frame_bytes) = self.waiting.pop_front().expect("there is a first one");
        let no = RequestNo(self.first + self.begun.len() as u64);
        self.begun.push_back(Begun { header, frame_bytes, finished: None });
        self.cut(now);
        Some((no, request))
    }

    /// The client is gone: the next produce that it sent whole and that may begin now. It takes effect, and nothing is
    /// kept of it here, because its answer has nowhere to go. Nothing else is begun, nor what comes behind it.
    pub fn begin_unanswered(&mut self, now: Mono) -> Option<Request> {
        if self.closing.is_some()
            || self.next_key() != Some(PRODUCE)
            || self.begun.iter().any(|b| b.header.key != PRODUCE)
        {
            return None;
        }
        let (_, request, frame_bytes) = self.waiting.pop_front().expect("there is a first one");
        self.request_bytes -= frame_bytes;
        self.begun.clear();
        self.cut(now);
        Some(request)
    }

    /// Takes what became of a request, and releases each answer whose turn has come. What belongs to a request that was
    /// dropped because the connection closes is ignored.
    ///
    /// # Panics
    /// If the request was not begun, or has finished before.
    pub fn finished(&mut self, now: Mono, no: RequestNo, what: Finished) {
        self.last_progress = now;
        if self.closing.is_some() {
            return;
        }
        let at = no.0.checked_sub(self.first).expect("a request finishes once");
        let begun = self.begun.get_mut(at as usize).expect("a request begins before it finishes");
        assert!(begun.finished.is_none(), "request {no:?} finishes twice");
        begun.finished = Some(what);
        while self.closing.is_none()
            && let Some(Begun { finished: Some(_), .. }) = self.begun.front()
        {
            let Begun { header, frame_bytes, finished } = self.begun.pop_front().expect("there is a first one");
            self.first += 1;
            self.request_bytes -= frame_bytes;
            match finished.expect("the first one has finished") {
                Finished::Reply(reply) => self.release(&header, reply),
                Finished::Silent => {}
                Finished::Close(why) => self.close(why),
            }
        }
        self.cut(now);
    }

    fn release(&mut self, header: &Header, reply: Reply) {
        let head_bytes = if header.flexible_answer { 5 } else { 4 };
        let bytes: usize = head_bytes + reply.parts.iter().map(Bytes::len).sum::<usize>();
        let mut head = BytesMut::with_capacity(4 + head_bytes);
        head.put_i32(i32::try_from(bytes).expect("no answer has 2 GiB: each API bounds its own"));
        head.put_i32(header.correlation);
        if header.flexible_answer {
            head.put_u8(0); // no tagged fields
        }
        self.output_bytes += 4 + bytes;
        self.output.push(head.freeze());
        self.output.extend(reply.parts.into_iter().filter(|p| !p.is_empty()));
    }

    /// Begins nothing more and forgets what is not released: after what is released has been sent, the connection ends.
    pub fn close(&mut self, why: &'static str) {
        self.closing.get_or_insert(why);
        self.waiting.clear();
        self.begun.clear();
        self.request_bytes = 0;
        self.cutter.clear();
    }

    /// Moves what is to be sent to the end of `out`, in order.
    pub fn take_output(&mut self, out: &mut Vec<Bytes>) {
        out.append(&mut self.output);
    }

    /// The socket took this many of the bytes that were taken.
    ///
    /// # Panics
    /// If more was sent than was to be sent.
    pub fn sent(&mut self, now: Mono, bytes: usize) {
        self.last_progress = now;
        self.output_bytes = self.output_bytes.checked_sub(bytes).expect("no more is sent than was released");
    }

    /// Why the connection is to be closed now: nothing is left to send.
    pub fn is_over(&self) -> Option<&'static str> {
        self.closing.filter(|_| self.output_bytes == 0)
    }

    /// Whether the connection ends as soon as what is released has been sent. What is still being done for it is in
    /// vain.
    pub fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// When bytes last came or went or a request finished, if nothing is owed to the client: for
    /// `connections.max.idle.ms`.
    pub fn idle_since(&self) -> Option<Mono> {
        let owed = !self.waiting.is_empty() || !self.begun.is_empty() || self.output_bytes > 0;
        (!owed).then_some(self.last_progress)
    }

    /// What the connection holds: requests, bytes of no whole frame, and answers not sent.
    pub fn memory_bytes(&self) -> usize {
        self.requests_bytes() + self.output_bytes
    }

    /// Requests that are not answered, and bytes of no whole frame.
    pub fn requests_bytes(&self) -> usize {
        self.request_bytes + self.cutter.held_bytes()
    }

    /// Part of a request is there, and not all of it.
    pub fn is_receiving_part(&self) -> bool {
        self.cutter.held_bytes() > 0
    }

    /// Answers that are not sent.
    pub fn answers_bytes(&self) -> usize {
        self.output_bytes
    }

    /// The API of the request that would begin next.
    pub fn next_key(&self) -> Option<i16> {
        self.waiting.front().map(|(header, ..)| header.key)
    }

    /// Requests begun and not released.
    pub fn begun(&self) -> usize {
        self.begun.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use camus_engine::limits::FRAME_BYTES_MAX;
    use proptest::prelude::*;

    const NOW: Mono = Mono(1);

    fn conn() -> Conn {
        Conn::new(NOW, ("localhost".to_owned(), 9092), [127, 0, 0, 1].into(), FRAME_BYTES_MAX)
    }

    fn request(key: i16, version: i16, correlation: i32, body: usize) -> Vec<u8> {
        let flexible = crate::api::table::api(key).is_some_and(|a| a.is_flexible(version));
        let mut frame = vec![];
        frame.extend(key.to_be_bytes());
        frame.extend(version.to_be_bytes());
        frame.extend(correlation.to_be_bytes());
        frame.extend(b"\xff\xff");
        frame.extend(flexible.then_some(0));
        frame.extend(std::iter::repeat_n(7, body));
        [&(frame.len() as i32).to_be_bytes()[..], &frame].concat()
    }

    fn produce(correlation: i32) -> Vec<u8> {
        request(PRODUCE, 3, correlation, 20)
    }

    fn versions(correlation: i32) -> Vec<u8> {
        request(18, 0, correlation, 0)
    }

    fn answer(text: &'static [u8]) -> Finished {
        Finished::Reply(Reply::one(Bytes::from_static(text)))
    }

    fn output(c: &mut Conn) -> Vec<u8> {
        let mut out = vec![];
        c.take_output(&mut out);
        out.concat()
    }

    fn begin(c: &mut Conn) -> RequestNo {
        c.begin(NOW).expect("a request may begin").0
    }

    /// A producer with five in flight would wait five times as long if its requests went one by one.
    #[test]
    fn produces_begin_side_by_side_and_are_answered_in_order() {
        let mut c = conn();
        c.received(NOW, &[produce(1), produce(2), produce(3)].concat());
        let (a, b, d) = (begin(&mut c), begin(&mut c), begin(&mut c));
        c.finished(NOW, d, answer(b"d"));
        c.finished(NOW, b, Finished::Silent);
        assert_eq!(output(&mut c), b"");
        c.finished(NOW, a, answer(b"a"));
        assert_eq!(output(&mut c), b"\0\0\0\x05\0\0\0\x01a\0\0\0\x05\0\0\0\x03d");
    }

    /// A fetch behind a produce must see its records; a produce behind a fetch must not overtake it.
    #[test]
    fn anything_but_a_produce_is_alone() {
        let mut c = conn();
        c.received(NOW, &[produce(1), versions(2), produce(3)].concat());
        let first = begin(&mut c);
        assert!(c.begin(NOW).is_none());
        c.finished(NOW, first, Finished::Silent);
        let second = begin(&mut c);
        assert!(c.begin(NOW).is_none());
        c.finished(NOW, second, answer(b""));
        begin(&mut c);
    }

    /// What a producer sent whole before it closed would be lost; what it would only be answered is not asked.
    #[test]
    fn of_a_client_that_is_gone_every_whole_produce_begins_and_nothing_else() {
        let mut c = conn();
        let wire: Vec<u8> = (0..200).flat_map(produce).chain(produce(200)[..30].to_vec()).collect();
        c.received(NOW, &wire);
        begin(&mut c);
        assert_eq!(std::iter::from_fn(|| c.begin_unanswered(NOW)).count(), 199);
        for (first, rest, begins) in
            [(versions(1), produce(2), 0), (produce(1), versions(2), 1), (produce(1), request(999, 0, 2, 9), 1)]
        {
            let mut c = conn();
            c.received(NOW, &[first, rest, produce(3)].concat());
            assert_eq!(std::iter::from_fn(|| c.begin_unanswered(NOW)).count(), begins);
        }
        // Behind something that still runs order would be lost.
        let mut c = conn();
        c.received(NOW, &[versions(1), produce(2)].concat());
        begin(&mut c);
        assert!(c.begin_unanswered(NOW).is_none());
    }

    /// KIP-511: a client that does not know our version must be able to read the header; others need theirs.
    #[test]
    fn the_response_header_has_tags_in_flexible_versions_except_for_api_versions() {
        let mut c = conn();
        c.received(NOW, &[request(18, 3, 1, 0), request(PRODUCE, 9, 2, 0)].concat());
        for _ in 0..2 {
            let no = begin(&mut c);
            c.finished(NOW, no, answer(b"x"));
        }
        assert_eq!(output(&mut c), b"\0\0\0\x05\0\0\0\x01x\0\0\0\x06\0\0\0\x02\0x");
    }

    /// The answers that are owed come before the end.
    #[test]
    fn what_is_no_request_closes_after_the_answers_before_it() {
        let mut c = conn();
        c.received(NOW, &[produce(1), request(999, 0, 2, 9), produce(3)].concat());
        assert!(!c.wants_bytes() && !c.is_closing());
        let no = begin(&mut c);
        assert!(c.begin(NOW).is_none());
        c.finished(NOW, no, answer(b"x"));
        assert!(c.is_closing() && c.is_over().is_none());
        let bytes = output(&mut c).len();
        c.sent(NOW, bytes);
        assert_eq!(c.is_over(), Some("an API that is not served"));
        let mut c = conn();
        c.received(NOW, b"GET / HTTP/1.1\r\n\r\n");
        assert!(c.is_over().is_some());
    }

    /// acks=0 has no answer to carry an error: the connection ends, and not before the answers of earlier requests.
    #[test]
    fn a_request_that_closes_keeps_its_place_in_the_order() {
        let mut c = conn();
        c.received(NOW, &[produce(1), produce(2), produce(3), produce(4)].concat());
        let (a, b, d) = (begin(&mut c), begin(&mut c), begin(&mut c));
        c.finished(NOW, b, Finished::Close("acks=0 with an error"));
        assert!(!c.is_closing());
        c.finished(NOW, a, answer(b"a"));
        assert!(c.is_closing() && c.begin(NOW).is_none());
        c.finished(NOW, d, answer(b"d"));
        assert_eq!(output(&mut c), b"\0\0\0\x05\0\0\0\x01a");
        c.sent(NOW, 9);
        assert_eq!(c.is_over(), Some("acks=0 with an error"));
    }

    /// A client that asks and never reads would take the memory of the broker.
    #[test]
    fn a_client_that_does_not_read_is_not_read_from() {
        let mut c = conn();
        c.received(NOW, &[versions(1), versions(2)].concat());
        let no = begin(&mut c);
        let big = Bytes::from(vec![0; CONN_OUTPUT_BYTES_MAX]);
        c.finished(NOW, no, Finished::Reply(Reply::one(big)));
        assert!(c.begin(NOW).is_none() && !c.wants_bytes());
        let mut out = vec![];
        c.take_output(&mut out);
        assert!(c.begin(NOW).is_none(), "taken is not sent");
        c.sent(NOW, 9);
        assert!(c.wants_bytes());
        begin(&mut c);
    }

    /// A thousand small requests in one buffer are all served; what waits is bounded.
    #[test]
    fn a_long_pipeline_waits_as_bytes() {
        let mut c = conn();
        c.received(NOW, &(0..1000).flat_map(versions).collect::<Vec<_>>());
        for want in 0..1000 {
            assert!(c.waiting.len() + c.begun.len() <= CONN_REQUESTS_MAX);
            assert_eq!(c.wants_bytes(), 1000 - want < CONN_REQUESTS_MAX as i32, "{want}");
            let no = begin(&mut c);
            assert_eq!(c.begun.back().unwrap().header.correlation, want);
            c.finished(NOW, no, Finished::Silent);
        }
        assert_eq!(c.idle_since(), Some(NOW));
        assert_eq!(c.memory_bytes(), 0);
    }

    proptest! {
        /// Whatever the client sends and however it is cut, and in whatever order the shards finish: answers come in
        /// the order of the requests, whole; the rule of who may run holds; and what is held is bounded.
        #[test]
        fn order_and_bounds_hold_for_any_schedule(
            kinds in proptest::collection::vec(
                (prop_oneof![3 => Just(0_i16), 1 => Just(18), 1 => Just(1)], 0_usize..9000),
                1..250,
            ),
            steps in proptest::collection::vec((0_u8..4, any::<u16>()), 20..100),
        ) {
            let mut wire = vec![];
            for (i, (key, body)) in kinds.iter().enumerate() {
                wire.extend(request(*key, if *key == 1 { 4 } else { 3 }, i as i32, *body));
            }
            let mut c = conn();
            let (mut at, mut running, mut out, mut in_socket) = (0, Vec::<(RequestNo, i16, i32)>::new(), vec![], 0);
            let mut order = 0;
            // Every schedule ends with one of each step, so that it comes to an end.
            let each = [(0, 9999), (1, 0), (2, 1), (3, u16::MAX)];
            for (what, n) in steps.iter().chain(&each).cycle().take(1_000_000) {
                let n = usize::from(*n);
                match what {
                    0 if c.wants_bytes() && at < wire.len() => {
                        let end = (at + 1 + n % 20_000).min(wire.len());
                        c.received(NOW, &wire[at..end]);
                        at = end;
                    }
                    1 => while let Some((no, request)) = c.begin(NOW) {
                        prop_assert_eq!(no.0, order);
                        running.push((no, request.key, order as i32));
                        order += 1;
                        prop_assert!(running.len() == 1 || running.iter().all(|r| r.1 == PRODUCE));
                    },
                    2 if !running.is_empty() => {
                        let (no, _, id) = running.swap_remove(n % running.len());
                        let body = Bytes::from(id.to_be_bytes().to_vec());
                        let silent = id % 5 == 4;
                        let what = if silent { Finished::Silent } else { Finished::Reply(Reply::one(body)) };
                        c.finished(NOW, no, what);
                    }
                    3 => {
                        let mut parts = vec![];
                        c.take_output(&mut parts);
                        in_socket += parts.iter().map(Bytes::len).sum::<usize>();
                        out.extend(parts.concat());
                        let now = n % (in_socket + 1);
                        c.sent(NOW, now);
                        in_socket -= now;
                    }
                    _ => {}
                }
                prop_assert!(c.waiting.len() + c.begun.len() <= CONN_REQUESTS_MAX);
                prop_assert!(c.memory_bytes() <= CONN_REQUEST_BYTES_MAX + CONN_OUTPUT_BYTES_MAX + 40_000);
                if order == kinds.len() as u64 && running.is_empty() { break }
            }
            let mut ids = vec![];
            let mut parts = vec![];
            c.take_output(&mut parts);
            out.extend(parts.concat());
            while out.len() >= 4 {
                let size = i32::from_be_bytes(out[..4].try_into().unwrap()) as usize;
                let frame: Vec<u8> = out.drain(..4 + size).skip(4).collect();
                ids.push(i32::from_be_bytes(frame[..4].try_into().unwrap()));
                prop_assert_eq!(&frame[..4], &frame[size - 4..]);
            }
            prop_assert!(out.is_empty());
            prop_assert_eq!(order, kinds.len() as u64, "the schedule stands still");
            let answered: Vec<_> = (0..kinds.len() as i32).filter(|id| id % 5 != 4).collect();
            prop_assert_eq!(ids, answered);
        }

        /// No bytes make a connection panic.
        #[test]
        fn any_bytes_are_taken_or_close(pieces in proptest::collection::vec(any::<Vec<u8>>(), 0..8)) {
            let mut c = conn();
            for piece in pieces {
                if c.wants_bytes() {
                    c.received(NOW, &piece);
                }
                while let Some((no, _)) = c.begin(NOW) {
                    c.finished(NOW, no, Finished::Silent);
                }
            }
        }
    }
}
