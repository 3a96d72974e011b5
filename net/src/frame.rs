//! Request frames out of a stream of bytes, and the request header.
//!
//! A frame is a length (four bytes) and as many bytes. Nothing is reserved for what is only announced.

use crate::api::table::{self, API_VERSIONS, Api};
use crate::codec::{Malformed, Reader};
use crate::limits::{FRAME_BYTES_MIN, RECEIVE_STEP_BYTES};
use bytes::{Buf, Bytes, BytesMut};

const LENGTH_BYTES: usize = 4;

/// Why the connection can not go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameFault {
    #[error("a frame of {announced} bytes is announced; {FRAME_BYTES_MIN} to {max} are allowed")]
    Length { announced: i32, max: usize },
    #[error("the request header is malformed: {0}")]
    Header(#[from] Malformed),
    #[error("the API key {key} is not served")]
    UnknownApi { key: i16 },
    #[error("{name} version {version} is not served")]
    UnknownVersion { name: &'static str, version: i16 },
}

impl FrameFault {
    pub fn kind(&self) -> &'static str {
        match self {
            FrameFault::Length { .. } => "frame length out of bounds",
            FrameFault::Header(_) => "malformed request header",
            FrameFault::UnknownApi { .. } => "an API that is not served",
            FrameFault::UnknownVersion { .. } => "a version of an API that is not served",
        }
    }
}

/// Cuts frames. Lives as long as its connection.
///
/// Each frame is a piece of the buffer that its bytes were received into, in one piece and not copied again, except
/// while that buffer grows. The buffer is at most about twice what has been received and not been cut, and
/// [`RECEIVE_STEP_BYTES`]: a rest leaves the buffer that it shares with large frames, and no rest keeps none.
#[derive(Debug)]
pub struct FrameCutter {
    held: BytesMut,
    /// What was cut off in front of `held`: at most so much more of the buffer lives as long as `held` does.
    cut_bytes: usize,
    frame_bytes_max: usize,
}

impl FrameCutter {
    pub fn new(frame_bytes_max: usize) -> FrameCutter {
        FrameCutter { held: BytesMut::new(), cut_bytes: 0, frame_bytes_max }
    }

    /// Copies what was received.
    pub fn push(&mut self, received: &[u8]) {
        self.take(received, false);
    }

    /// As [`Self::push`], with no more memory than that: for the time when there is little. Each call may copy all.
    pub fn push_tight(&mut self, received: &[u8]) {
        self.take(received, true);
    }

    fn take(&mut self, received: &[u8], tight: bool) {
        if self.held.capacity() - self.held.len() < received.len() {
            let missing = match self.announced() {
                Some(announced) => {
                    (announced.max(0) as usize).saturating_add(LENGTH_BYTES).saturating_sub(self.held.len())
                }
                None => 0,
            };
            // As far as the frame's end, but no further than as much again as there is.
            let most = self.held.len().max(RECEIVE_STEP_BYTES).max(received.len());
            let more = if tight { received.len() } else { missing.clamp(received.len(), most) };
            // Not `reserve`, which at least doubles.
            let mut larger = BytesMut::with_capacity(self.held.len() + more);
            larger.extend_from_slice(&self.held);
            (self.held, self.cut_bytes) = (larger, 0);
        }
        self.held.extend_from_slice(received);
    }

    fn announced(&self) -> Option<i32> {
        self.held.first_chunk().map(|length| i32::from_be_bytes(*length))
    }

    /// The next whole frame, without its length. A bad length is reported as soon as it is there.
    pub fn next_frame(&mut self) -> Result<Option<Bytes>, FrameFault> {
        let Some(announced) = self.announced() else { return Ok(None) };
        let length = match usize::try_from(announced) {
            Ok(length) if (FRAME_BYTES_MIN..=self.frame_bytes_max).contains(&length) => length,
            _ => return Err(FrameFault::Length { announced, max: self.frame_bytes_max }),
        };
        if self.held.len() - LENGTH_BYTES < length {
            return Ok(None);
        }
        self.held.advance(LENGTH_BYTES);
        let frame = self.held.split_to(length).freeze();
        self.cut_bytes += LENGTH_BYTES + length;
        if self.held.is_empty() {
            self.clear();
        } else if self.cut_bytes >= self.held.len().max(RECEIVE_STEP_BYTES) {
            // No more is copied than was cut.
            self.held = BytesMut::from(&self.held[..]);
            self.cut_bytes = 0;
        }
        Ok(Some(frame))
    }

    /// What is kept alive for bytes that are no frame yet: the buffer, not only what is in it.
    pub fn held_bytes(&self) -> usize {
        self.held.capacity() + self.cut_bytes
    }

    /// Forgets what is held, and its buffer.
    pub fn clear(&mut self) {
        self.held = BytesMut::new();
        self.cut_bytes = 0;
    }
}

/// The header of a request whose key and version we serve (or of any version of ApiVersions).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    pub key: i16,
    pub version: i16,
    pub correlation: i32,
    pub client_id: Option<String>,
    /// The response header has tagged fields (it is of version 1). Never so for ApiVersions (KIP-511).
    pub flexible_answer: bool,
}

/// Splits a frame into header and body.
pub fn split(frame: &Bytes) -> Result<(Header, Bytes), FrameFault> {
    let mut r = Reader::new(frame, false);
    let (key, version, correlation) = (r.i16()?, r.i16()?, r.i32()?);
    let api: &Api = table::api(key).ok_or(FrameFault::UnknownApi { key })?;
    let served = api.serves(version);
    if !served && key != API_VERSIONS {
        return Err(FrameFault::UnknownVersion { name: api.name, version });
    }
    let client_id = r.nullable_string_lossy()?; // never compact: KIP-482
    let flexible = served && api.is_flexible(version);
    r.set_flexible(flexible);
    r.tags()?;
    let body = frame.slice(r.at()..);
    Ok((Header { key, version, correlation, client_id, flexible_answer: flexible && key != API_VERSIONS }, body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use camus_engine::limits::FRAME_BYTES_MAX;
    use proptest::prelude::*;

    fn framed(frames: &[Vec<u8>]) -> Vec<u8> {
        frames.iter().flat_map(|f| [&(f.len() as i32).to_be_bytes()[..], f].concat()).collect()
    }

    fn all(cutter: &mut FrameCutter) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| cutter.next_frame().expect("no fault")).map(|f| f.to_vec()).collect()
    }

    /// A length that can not be is told from its four bytes, before a body is read or reserved.
    #[test]
    fn a_frame_length_out_of_bounds_is_a_fault_at_once() {
        for length in [-1, i32::MIN, i32::MAX, 0x4745_5420, FRAME_BYTES_MAX as i32 + 1, 0, 1, 3, 7] {
            let mut cutter = FrameCutter::new(FRAME_BYTES_MAX);
            cutter.push(&length.to_be_bytes()[..3]);
            assert_eq!(cutter.next_frame(), Ok(None));
            cutter.push(&length.to_be_bytes()[3..]);
            let fault = FrameFault::Length { announced: length, max: FRAME_BYTES_MAX };
            assert_eq!(cutter.next_frame(), Err(fault));
        }
    }

    /// 100 connections that announce 100 MiB and send 10 bytes would take 10 GB.
    #[test]
    fn an_announced_length_reserves_nothing() {
        let mut cutter = FrameCutter::new(FRAME_BYTES_MAX);
        cutter.push(&(FRAME_BYTES_MAX as i32 - 1).to_be_bytes());
        let mut received = 4;
        for _ in 0..2000 {
            cutter.push(&[0; 500]);
            received += 500;
            assert_eq!(cutter.next_frame(), Ok(None));
            assert!(cutter.held_bytes() <= 2 * received + 2 * RECEIVE_STEP_BYTES, "{received}");
        }
    }

    /// A thousand clients that send large requests in one moment would take twice what came before they are paused.
    #[test]
    fn when_memory_is_short_nothing_is_held_but_what_has_come() {
        let mut cutter = FrameCutter::new(FRAME_BYTES_MAX);
        let wire = framed(&[vec![1; 1 << 20]]);
        for piece in wire.chunks(16_000) {
            let before = cutter.held_bytes();
            cutter.push_tight(piece);
            assert!(cutter.held_bytes() <= before + piece.len(), "{} of {before}", cutter.held_bytes());
        }
        assert_eq!(all(&mut cutter), [vec![1; 1 << 20]]);
    }

    /// A shared large buffer must not stay behind when frames go through it one after the other.
    #[test]
    fn a_buffer_does_not_grow_over_many_frames() {
        let mut cutter = FrameCutter::new(FRAME_BYTES_MAX);
        let wire = framed(&[vec![1; 3000], vec![2; 50]]);
        let mut kept = std::collections::VecDeque::new();
        for _ in 0..1000 {
            cutter.push(&wire);
            while let Some(frame) = cutter.next_frame().unwrap() {
                kept.push_back(frame);
            }
            kept.drain(..kept.len().saturating_sub(7));
            assert!(cutter.held_bytes() <= 4 * RECEIVE_STEP_BYTES, "{}", cutter.held_bytes());
        }
    }

    /// An idle connection would keep the memory of its largest request, outside every budget.
    #[test]
    fn nothing_of_a_large_frame_is_kept_when_it_is_done() {
        for rest in [0, 1, 700] {
            let mut cutter = FrameCutter::new(FRAME_BYTES_MAX);
            let large = vec![1; 16 * 1024 * 1024];
            let wire = [framed(std::slice::from_ref(&large)), framed(&[vec![2; 1000]])[..rest].to_vec()].concat();
            wire.chunks(50_000).for_each(|piece| cutter.push(piece));
            assert!(cutter.held_bytes() >= large.len());
            let frame = cutter.next_frame().unwrap().expect("it is whole");
            assert!(cutter.held_bytes() <= rest, "{} bytes for {rest}", cutter.held_bytes());
            // Nobody else has a part in the frame's buffer: it ends with the frame.
            assert!(frame.is_unique(), "{rest} bytes share the buffer of {}", large.len());
        }
        // Nor is it kept for the rest behind many small ones.
        let mut cutter = FrameCutter::new(FRAME_BYTES_MAX);
        cutter.push(&[framed(&vec![vec![3; 500]; 10_000]), vec![0, 0]].concat());
        assert_eq!(all(&mut cutter).len(), 10_000);
        assert!(cutter.held_bytes() <= 2 * RECEIVE_STEP_BYTES + 1000, "{}", cutter.held_bytes());
    }

    fn header(key: i16, version: i16, correlation: i32, rest: &[u8]) -> Bytes {
        [&key.to_be_bytes()[..], &version.to_be_bytes(), &correlation.to_be_bytes(), rest].concat().into()
    }

    /// The wrong header version shifts the body.
    #[test]
    fn headers_are_read_by_the_version_of_their_api() {
        let (head, body) = split(&header(18, 0, -5, b"\xff\xffbody")).unwrap();
        assert_eq!((head.correlation, head.client_id, head.flexible_answer), (-5, None, false));
        assert_eq!(&body[..], b"body");
        let (head, body) = split(&header(18, 3, 1, b"\x00\x02me\x02\x63\x03abc\x7f\x00body")).unwrap();
        assert_eq!((head.client_id.as_deref(), head.flexible_answer), (Some("me"), false));
        assert_eq!(&body[..], b"body");
        let (head, _) = split(&header(18, 3, 1, b"\x00\x03a\xffb\x00")).unwrap();
        assert_eq!(head.client_id.as_deref(), Some("a\u{fffd}b"));
    }

    /// ApiVersions of a version of the future must reach its handler.
    #[test]
    fn any_version_of_api_versions_passes() {
        for version in [5, 99, i16::MAX, -1] {
            let (head, _) = split(&header(18, version, 9, b"\xff\xff\x00")).unwrap();
            assert_eq!((head.version, head.flexible_answer), (version, false));
        }
    }

    #[test]
    fn what_is_not_served_is_a_fault() {
        for key in [4, 5, 54, 999, i16::MAX, -1, i16::MIN] {
            assert_eq!(split(&header(key, 0, 1, b"\xff\xff")), Err(FrameFault::UnknownApi { key }));
        }
        for version in [-1, 0, 1, 2, 14, i16::MAX] {
            let fault = FrameFault::UnknownVersion { name: "Produce", version };
            assert_eq!(split(&header(0, version, 1, b"\xff\xff")), Err(fault));
        }
        for rest in [&b"\x03\xe8abc"[..], b"\xff\xfe", b"\x7f", b""] {
            assert!(matches!(split(&header(18, 0, 1, rest)), Err(FrameFault::Header(_))));
        }
        for tags in [&b"\xff\xff\xff\xff\x0f"[..], b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x01\x00\xff\xff\x7f"]
        {
            let rest = [b"\xff\xff", tags].concat();
            assert!(matches!(split(&header(18, 3, 1, &rest)), Err(FrameFault::Header(_))));
        }
    }

    proptest! {
        /// TCP is a stream of bytes: how it is split into pieces must not show.
        #[test]
        fn any_split_of_the_bytes_gives_the_same_frames(
            frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 8..600), 0..12),
            cuts in proptest::collection::vec(1_usize..400, 1..60),
            keep: bool,
        ) {
            let wire = framed(&frames);
            let mut cutter = FrameCutter::new(FRAME_BYTES_MAX);
            let (mut got, mut kept, mut at) = (vec![], vec![], 0);
            for cut in cuts.iter().cycle() {
                if at == wire.len() { break }
                let end = (at + cut).min(wire.len());
                cutter.push(&wire[at..end]);
                at = end;
                while let Some(frame) = cutter.next_frame().unwrap() {
                    got.push(frame.to_vec());
                    if keep { kept.push(frame) }
                }
            }
            prop_assert_eq!(&got, &frames);
            prop_assert!(!keep || kept.iter().zip(&frames).all(|(k, f)| k[..] == f[..]));
            prop_assert_eq!(cutter.held_bytes(), 0);
            prop_assert!(all(&mut cutter).is_empty());
        }

        /// Headers are read before anyone is known: no bytes may panic.
        #[test]
        fn any_bytes_are_a_header_or_a_fault(
            data: Vec<u8>,
            key in prop_oneof![Just(0_i16), Just(1), Just(18), any::<i16>()],
        ) {
            let mut frame = key.to_be_bytes().to_vec();
            frame.extend(data);
            let _ = split(&Bytes::from(frame));
        }
    }
}
