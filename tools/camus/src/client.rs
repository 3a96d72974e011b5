//! A small Kafka client for the commands: one blocking connection, one request at a time, every wait bounded.

use crate::errors::{self, UserError};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::error::{ParseResponseErrorCode, ResponseError};
use kafka_protocol::messages::{ApiVersionsRequest, ApiVersionsResponse, RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// For an answer. Longer than the time that [`REQUEST_TIMEOUT_MS`] gives the broker.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// What the broker is given for a change, ms.
pub const REQUEST_TIMEOUT_MS: i32 = 20_000;
/// An answer larger than this is not one.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// A signal is heard this late while an answer is waited for.
const LOOK: Duration = Duration::from_millis(100);
const CLIENT_ID: &str = concat!("camus-cli/", env!("CARGO_PKG_VERSION"));

/// How long an answer is waited for.
#[derive(Clone, Debug)]
pub struct Patience {
    pub answer: Duration,
    /// No longer than until then, however many answers it takes.
    pub until: Option<Instant>,
    /// Nor longer than until somebody sets this.
    pub stop: Option<Arc<AtomicBool>>,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { answer: ANSWER_TIMEOUT, until: None, stop: None }
    }
}

impl Patience {
    fn deadline(&self) -> Instant {
        let deadline = now() + self.answer;
        self.until.map_or(deadline, |until| deadline.min(until))
    }

    fn is_stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }
}

fn now() -> Instant {
    #[allow(clippy::disallowed_methods)] // a tool waits for a broker
    Instant::now()
}

/// The bytes of one answer, until its time is over.
struct Answer<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
    patience: &'a Patience,
}

impl Read for Answer<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.patience.is_stopped() {
                return Err(io::Error::other("a signal came"));
            }
            let left = self.deadline.saturating_duration_since(now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left.min(LOOK)))?;
            match self.stream.read(buffer) {
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                done => return done,
            }
        }
    }
}

/// A connection to one broker.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    addr: String,
    correlation: i32,
    patience: Patience,
    /// Key, lowest and highest version that the broker offers.
    offered: Vec<(i16, i16, i16)>,
}

impl Client {
    /// Connects and asks what the broker offers.
    pub fn connect(addr: &str) -> Result<Client, UserError> {
        Client::connect_within(addr, Patience::default())
    }

    /// The same, and no wait is longer than `patience` has it.
    pub fn connect_within(addr: &str, patience: Patience) -> Result<Client, UserError> {
        let unreachable = |e: io::Error| errors::unreachable(addr, &e.to_string());
        let stream = open_within(addr, patience.deadline().saturating_duration_since(now()))?;
        stream.set_nodelay(true).map_err(unreachable)?;
        let mut client = Client { stream, addr: addr.to_owned(), correlation: 0, patience, offered: Vec::new() };
        // Version 0 is understood by every broker, and its answer says enough.
        let answer: ApiVersionsResponse = client.ask_version(&ApiVersionsRequest::default(), 0)?;
        client.check("it does not say what it offers", answer.error_code, None, "camus explain CAM-0303")?;
        client.offered = answer.api_keys.iter().map(|a| (a.api_key, a.min_version, a.max_version)).collect();
        Ok(client)
    }

    pub fn addr(&self) -> &str {
        &self.addr
    }

    /// Asks in the newest version that both sides know and that is not above `newest`; returns that version as well.
    pub fn ask<R: Request>(&mut self, request: &R, newest: i16) -> Result<(R::Response, i16), UserError> {
        let version = self.version::<R>(newest)?;
        Ok((self.ask_version(request, version)?, version))
    }

    /// The version in which [`Self::ask`] would ask.
    pub fn version<R: Request>(&self, newest: i16) -> Result<i16, UserError> {
        let ours = R::VERSIONS;
        let offered = self.offered.iter().find(|(key, ..)| *key == R::KEY);
        offered
            .map(|(_, min, max)| (newest.min(ours.max).min(*max), ours.min.max(*min)))
            .filter(|(version, least)| version >= least)
            .map(|(version, _)| version)
            .ok_or_else(|| {
                let why = format!("it does not offer what this command needs (API {})", R::KEY);
                errors::broker_answer(&self.addr, &why)
            })
    }

    fn ask_version<R: Request>(&mut self, request: &R, version: i16) -> Result<R::Response, UserError> {
        self.correlation += 1;
        let frame = encode(request, version, self.correlation)
            .map_err(|why| errors::broker_answer(&self.addr, &format!("the request does not encode: {why}")))?;
        let answer_s = self.patience.answer.as_secs_f64();
        let mut answer = self.exchange(&frame).map_err(|e| errors::unreachable(&self.addr, &in_words(&e, answer_s)))?;
        let garbled = |why: String| errors::broker_answer(&self.addr, &why);
        let header = ResponseHeader::decode(&mut answer, <R::Response as HeaderVersion>::header_version(version))
            .map_err(|e| garbled(format!("its header does not decode: {e}")))?;
        if header.correlation_id != self.correlation {
            return Err(garbled(format!("it answers {} and was asked {}", header.correlation_id, self.correlation)));
        }
        let response = R::Response::decode(&mut answer, version)
            .map_err(|e| garbled(format!("the answer to API {} version {version} does not decode: {e}", R::KEY)))?;
        if answer.has_remaining() {
            return Err(garbled(format!("{} bytes are left after the answer to API {}", answer.remaining(), R::KEY)));
        }
        Ok(response)
    }

    fn exchange(&mut self, frame: &[u8]) -> io::Result<Bytes> {
        let deadline = self.patience.deadline();
        let left = deadline.saturating_duration_since(now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // A request is small: it goes into the socket's buffer.
        self.stream.set_write_timeout(Some(left))?;
        self.stream.write_all(frame)?;
        let mut stream = Answer { stream: &self.stream, deadline, patience: &self.patience };
        let mut length = [0u8; 4];
        stream.read_exact(&mut length)?;
        let length = usize::try_from(i32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length > ANSWER_BYTES_MAX {
            return Err(io::Error::other("what it sends is not the Kafka protocol"));
        }
        // Grows with what comes, not with what was announced.
        let mut answer = Vec::new();
        stream.take(length as u64).read_to_end(&mut answer)?;
        if answer.len() < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(answer.into())
    }

    /// `Ok` if the code is 0; else the error for the person.
    pub fn check(&self, what: &str, code: i16, message: Option<&StrBytes>, run: &str) -> Result<(), UserError> {
        if code == 0 {
            return Ok(());
        }
        let message = message.map(StrBytes::as_str);
        Err(errors::broker_refused(what, &self.addr, code, &code_name(code), message, run))
    }
}

/// A connection to the first address of `addr` that takes one.
pub fn open_within(addr: &str, time: Duration) -> Result<TcpStream, UserError> {
    let unreachable = |e: io::Error| errors::unreachable(addr, &e.to_string());
    let mut last = io::Error::other("the name has no address");
    for address in addr.to_socket_addrs().map_err(unreachable)? {
        match TcpStream::connect_timeout(&address, time.clamp(LOOK, CONNECT_TIMEOUT)) {
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
    }
    Err(unreachable(last))
}

/// A timeout and an end of stream, said so that a person knows what to look at.
fn in_words(error: &io::Error, answer_s: f64) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("no answer within {answer_s} s")
        }
        io::ErrorKind::UnexpectedEof => "it closed the connection without an answer".to_owned(),
        _ => error.to_string(),
    }
}

/// A frame: length, request header, request.
pub fn encode<R: Request>(request: &R, version: i16, correlation: i32) -> Result<BytesMut, String> {
    let mut body = BytesMut::new();
    let header = RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(correlation)
        .with_client_id(Some(StrBytes::from_static_str(CLIENT_ID)));
    header.encode(&mut body, R::header_version(version)).map_err(|e| e.to_string())?;
    request.encode(&mut body, version).map_err(|e| e.to_string())?;
    let mut frame = BytesMut::with_capacity(4 + body.len());
    frame.put_i32(i32::try_from(body.len()).map_err(|e| e.to_string())?);
    frame.extend_from_slice(&body);
    Ok(frame)
}

/// Kafka's own name of an error code: `TOPIC_ALREADY_EXISTS`.
pub fn code_name(code: i16) -> String {
    match code.err() {
        None => "NONE".to_owned(),
        Some(ResponseError::Unknown(_)) => "an error code that is not known here".to_owned(),
        Some(error) => {
            let mut name = String::new();
            for c in format!("{error:?}").chars() {
                if c.is_uppercase() && !name.is_empty() {
                    name.push('_');
                }
                name.push(c.to_ascii_uppercase());
            }
            name
        }
    }
}

/// A broker for tests: answers each request of one connection after the other with what `answer` makes of it.
#[cfg(test)]
pub mod fake {
    use super::*;
    use kafka_protocol::messages::ApiKey;
    use kafka_protocol::protocol::decode_request_header_from_buffer;
    use std::net::{SocketAddr, TcpListener};

    /// The answer's body for (API, version, request body); `None` closes the connection.
    pub type AnswerWith = fn(ApiKey, i16, &mut Bytes) -> Option<BytesMut>;

    pub fn body<M: Encodable>(message: &M, version: i16) -> Option<BytesMut> {
        let mut body = BytesMut::new();
        message.encode(&mut body, version).expect("it encodes");
        Some(body)
    }

    /// Lives as long as the test process.
    pub fn start(answer: AnswerWith) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let addr = listener.local_addr().expect("it is bound");
        #[allow(clippy::disallowed_methods)] // a test
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                while let Some(()) = one(&mut stream, answer) {}
            }
        });
        addr
    }

    fn one(stream: &mut TcpStream, answer: AnswerWith) -> Option<()> {
        let mut length = [0u8; 4];
        stream.read_exact(&mut length).ok()?;
        let mut request = vec![0u8; i32::from_be_bytes(length) as usize];
        stream.read_exact(&mut request).ok()?;
        let mut request = Bytes::from(request);
        let header = decode_request_header_from_buffer(&mut request).expect("a header");
        let (version, key) = (header.request_api_version, header.request_api_key);
        let key = ApiKey::try_from(key).expect("a known API");
        let body = answer(key, version, &mut request)?;
        let mut head = BytesMut::new();
        ResponseHeader::default()
            .with_correlation_id(header.correlation_id)
            .encode(&mut head, key.response_header_version(version))
            .expect("it encodes");
        let mut frame = BytesMut::new();
        frame.put_i32((head.len() + body.len()) as i32);
        frame.extend_from_slice(&head);
        frame.extend_from_slice(&body);
        stream.write_all(&frame).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::{ApiKey, MetadataRequest};
    use std::net::TcpListener;

    #[test]
    fn kafkas_error_codes_have_kafkas_names() {
        assert_eq!(code_name(36), "TOPIC_ALREADY_EXISTS");
        assert_eq!(code_name(3), "UNKNOWN_TOPIC_OR_PARTITION");
        assert_eq!(code_name(0), "NONE");
    }

    #[test]
    fn nobody_there_is_said_with_the_address() {
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("bound");
        let error = Client::connect(&free.to_string()).expect_err("nobody listens");
        assert_eq!((error.code, error.status), ("CAM-0301", errors::exit::UNREACHABLE));
        assert_eq!(error.place, free.to_string());
    }

    /// If this fails, pointing the command at an HTTP port allocates a gigabyte or hangs.
    #[test]
    fn what_is_no_broker_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let addr = listener.local_addr().expect("bound");
        #[allow(clippy::disallowed_methods)] // a test
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").expect("sent");
        });
        assert_eq!(Client::connect(&addr.to_string()).expect_err("no broker").code, "CAM-0301");
    }

    #[test]
    fn an_api_that_is_not_offered_is_not_asked_for() {
        let addr = fake::start(|key, version, _| match key {
            ApiKey::ApiVersions => fake::body(&ApiVersionsResponse::default(), version),
            other => panic!("{other:?} was not offered"),
        });
        let mut client = Client::connect(&addr.to_string()).expect("it answers");
        let error = client.ask(&MetadataRequest::default(), 12).expect_err("not offered");
        assert_eq!(error.code, "CAM-0303");
    }
}
