//! Kafka's primitive types: a bounded reader of requests and a writer of responses.
//!
//! [`Reader`] walks over one frame without copying it: strings and records are slices of the frame. It believes no
//! length and no count that the frame can not hold, and checks them before anything is allocated. It is how *every*
//! request is decoded: the decoders of the `kafka-protocol` crate allocate what an array's count says
//! (`Vec::with_capacity(n)`, n from the wire, up to 2^31 elements) and keep every unknown tagged field, so a request of
//! 20 bytes can ask them for 100 GiB. That crate is for responses (its encoders write what we made): see [`respond`].
//!
//! ```
//! # use camus_net::codec::{Malformed, Reader};
//! # fn decode(body: &bytes::Bytes, version: i16) -> Result<(), Malformed> {
//! let mut r = Reader::new(body, version >= 9); // flexible from version 9 on
//! let topics = r.nullable_array(3, |r| {
//!     let name = r.string()?;
//!     r.tags()?; // the end of each struct; nothing in versions that are not flexible
//!     Ok(name)
//! })?;
//! let allow = r.bool()?;
//! r.tags()?;
//! # let _ = (topics, allow); Ok(()) }
//! ```

use crate::api::{Outcome, Reply};
use crate::limits::{REQUEST_ELEMENTS_MAX, TAGS_MAX};
use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::protocol::{Encodable, StrBytes};
use uuid::Uuid;

/// The bytes are no request of this API and version. The connection is closed: there is no layout to answer in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    #[error("{wanted} bytes are wanted at {at}, {left} are left")]
    Short { at: usize, wanted: usize, left: usize },
    #[error("the length {length} at {at} is negative")]
    NegativeLength { at: usize, length: i64 },
    #[error("null at {at}, where none is allowed")]
    Null { at: usize },
    #[error("the varint at {at} is longer than 32 bits")]
    Varint { at: usize },
    #[error("the string at {at} is not UTF-8")]
    NotUtf8 { at: usize },
    #[error("an array of {count} at {at}, with {left} bytes left")]
    ArrayCount { at: usize, count: usize, left: usize },
    #[error("the arrays of the request have more than {REQUEST_ELEMENTS_MAX} elements")]
    TooManyElements,
    #[error("{count} tagged fields at {at}")]
    TooManyTags { at: usize, count: usize },
    #[error("the tag {tag} at {at} does not follow in order")]
    TagOrder { at: usize, tag: u32 },
    #[error("the field has the value {value}, which means nothing")]
    Value { value: i64 },
}

impl Malformed {
    /// For [`Outcome::Close`]: which kind of fault it was.
    pub fn kind(&self) -> &'static str {
        match self {
            Malformed::Short { .. } => "malformed request: it ends before its fields do",
            Malformed::NegativeLength { .. } => "malformed request: a negative length",
            Malformed::Null { .. } => "malformed request: null where none is allowed",
            Malformed::Varint { .. } => "malformed request: a varint over 32 bits",
            Malformed::NotUtf8 { .. } => "malformed request: a string that is not UTF-8",
            Malformed::ArrayCount { .. } => "malformed request: an array that does not fit into it",
            Malformed::TooManyElements => "request over the limit of array elements",
            Malformed::TooManyTags { .. } => "request over the limit of tagged fields",
            Malformed::TagOrder { .. } => "malformed request: tagged fields out of order",
            Malformed::Value { .. } => "malformed request: a value that means nothing",
        }
    }
}

impl From<Malformed> for Outcome {
    fn from(fault: Malformed) -> Outcome {
        Outcome::Close(fault.kind())
    }
}

/// Reads the fields of one request, in order. Lives as long as the decoding of one request.
///
/// Bytes behind the last field are not an error, as in Kafka.
#[derive(Debug)]
pub struct Reader<'a> {
    frame: &'a Bytes,
    at: usize,
    /// Compact lengths and tagged fields.
    flexible: bool,
    /// Of all arrays together; what a small element costs in memory is bounded by it.
    elements_left: usize,
}

impl<'a> Reader<'a> {
    pub fn new(frame: &'a Bytes, flexible: bool) -> Reader<'a> {
        Reader { frame, at: 0, flexible, elements_left: REQUEST_ELEMENTS_MAX }
    }

    /// From here on compact lengths and tagged fields, or not: the request header is half and half.
    pub fn set_flexible(&mut self, flexible: bool) {
        self.flexible = flexible;
    }

    /// Where the next field begins.
    pub fn at(&self) -> usize {
        self.at
    }

    pub fn left(&self) -> usize {
        self.frame.len() - self.at
    }

    fn take(&mut self, wanted: usize) -> Result<&'a [u8], Malformed> {
        if wanted > self.left() {
            return Err(Malformed::Short { at: self.at, wanted, left: self.left() });
        }
        let taken = &self.frame[self.at..self.at + wanted];
        self.at += wanted;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        Ok(self.take(N)?.try_into().expect("take gives as many bytes as it was asked for"))
    }

    pub fn i8(&mut self) -> Result<i8, Malformed> {
        Ok(i8::from_be_bytes(self.fixed()?))
    }

    pub fn i16(&mut self) -> Result<i16, Malformed> {
        Ok(i16::from_be_bytes(self.fixed()?))
    }

    pub fn i32(&mut self) -> Result<i32, Malformed> {
        Ok(i32::from_be_bytes(self.fixed()?))
    }

    pub fn i64(&mut self) -> Result<i64, Malformed> {
        Ok(i64::from_be_bytes(self.fixed()?))
    }

    /// Any byte but 0 is true, as in Kafka.
    pub fn bool(&mut self) -> Result<bool, Malformed> {
        Ok(self.i8()? != 0)
    }

    pub fn uuid(&mut self) -> Result<Uuid, Malformed> {
        Ok(Uuid::from_bytes(self.fixed()?))
    }

    /// At most 32 bits, in at most five bytes.
    pub fn uvarint(&mut self) -> Result<u32, Malformed> {
        let at = self.at;
        let mut value = 0_u64;
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return u32::try_from(value).map_err(|_| Malformed::Varint { at });
            }
        }
        Err(Malformed::Varint { at })
    }

    /// The length of what follows; `None` for null. `short`: two bytes where not flexible (strings), else four.
    fn length(&mut self, short: bool) -> Result<Option<usize>, Malformed> {
        let at = self.at;
        let length = match (self.flexible, short) {
            (true, _) => i64::from(self.uvarint()?) - 1,
            (false, true) => i64::from(self.i16()?),
            (false, false) => i64::from(self.i32()?),
        };
        match length {
            -1 => Ok(None),
            length => match usize::try_from(length) {
                Ok(length) => Ok(Some(length)),
                Err(_) => Err(Malformed::NegativeLength { at, length }),
            },
        }
    }

    fn slice(&mut self, length: usize) -> Result<Bytes, Malformed> {
        let at = self.at;
        self.take(length)?;
        Ok(self.frame.slice(at..at + length))
    }

    /// A slice of the frame: whoever keeps it keeps the whole frame in memory.
    pub fn nullable_string(&mut self) -> Result<Option<StrBytes>, Malformed> {
        let Some(length) = self.length(true)? else { return Ok(None) };
        let at = self.at;
        let text = self.slice(length)?;
        StrBytes::from_utf8(text).map(Some).map_err(|_| Malformed::NotUtf8 { at })
    }

    /// A copy, in which what is not UTF-8 is replaced: for what is only shown (the client's id).
    pub fn nullable_string_lossy(&mut self) -> Result<Option<String>, Malformed> {
        let Some(length) = self.length(true)? else { return Ok(None) };
        Ok(Some(String::from_utf8_lossy(self.take(length)?).into_owned()))
    }

    pub fn string(&mut self) -> Result<StrBytes, Malformed> {
        let at = self.at;
        self.nullable_string()?.ok_or(Malformed::Null { at })
    }

    /// Bytes or records (their layout is the same), without a copy.
    pub fn nullable_bytes(&mut self) -> Result<Option<Bytes>, Malformed> {
        match self.length(false)? {
            None => Ok(None),
            Some(length) => self.slice(length).map(Some),
        }
    }

    pub fn bytes(&mut self) -> Result<Bytes, Malformed> {
        let at = self.at;
        self.nullable_bytes()?.ok_or(Malformed::Null { at })
    }

    /// An array, or `None` for null. `element_bytes_min`: what an element takes on the wire at least (1 or more); a
    /// count that the bytes left can not hold is refused before the first element is read.
    pub fn nullable_array<T>(
        &mut self,
        element_bytes_min: usize,
        mut element: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Option<Vec<T>>, Malformed> {
        assert!(element_bytes_min > 0, "an element of no bytes would make the count unbounded");
        let at = self.at;
        let Some(count) = self.length(false)? else { return Ok(None) };
        if count > self.left() / element_bytes_min {
            return Err(Malformed::ArrayCount { at, count, left: self.left() });
        }
        self.elements_left = self.elements_left.checked_sub(count).ok_or(Malformed::TooManyElements)?;
        let mut elements = Vec::with_capacity(count);
        for _ in 0..count {
            elements.push(element(self)?);
        }
        Ok(Some(elements))
    }

    pub fn array<T>(
        &mut self,
        element_bytes_min: usize,
        element: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let at = self.at;
        self.nullable_array(element_bytes_min, element)?.ok_or(Malformed::Null { at })
    }

    /// The tagged fields at the end of a struct, all skipped. Nothing in versions that are not flexible.
    pub fn tags(&mut self) -> Result<(), Malformed> {
        self.tagged(|_, _| Ok(()))
    }

    /// The tagged fields at the end of a struct: `field` gets each tag with a reader of its bytes, and leaves alone
    /// what it does not know. Nothing in versions that are not flexible.
    pub fn tagged(
        &mut self,
        mut field: impl FnMut(u32, &mut Reader<'_>) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        if !self.flexible {
            return Ok(());
        }
        let at = self.at;
        let count = self.uvarint()? as usize;
        if count > TAGS_MAX {
            return Err(Malformed::TooManyTags { at, count });
        }
        let mut before = None;
        for _ in 0..count {
            let at = self.at;
            let tag = self.uvarint()?;
            if before.is_some_and(|b| b >= tag) {
                return Err(Malformed::TagOrder { at, tag });
            }
            before = Some(tag);
            let size = self.uvarint()? as usize;
            let bytes = self.slice(size)?;
            let mut inner = Reader { frame: &bytes, at: 0, flexible: true, elements_left: self.elements_left };
            field(tag, &mut inner)?;
            self.elements_left = inner.elements_left;
        }
        Ok(())
    }
}

/// Writes the fields of one response, in order, into parts: small buffers of its own with records between them that
/// are not copied.
#[derive(Debug)]
pub struct Writer {
    parts: Vec<Bytes>,
    own: BytesMut,
    flexible: bool,
}

impl Writer {
    pub fn new(flexible: bool) -> Writer {
        Writer { parts: Vec::new(), own: BytesMut::with_capacity(128), flexible }
    }

    pub fn i8(&mut self, value: i8) {
        self.own.put_i8(value);
    }

    pub fn i16(&mut self, value: i16) {
        self.own.put_i16(value);
    }

    pub fn i32(&mut self, value: i32) {
        self.own.put_i32(value);
    }

    pub fn i64(&mut self, value: i64) {
        self.own.put_i64(value);
    }

    pub fn bool(&mut self, value: bool) {
        self.own.put_u8(u8::from(value));
    }

    pub fn uuid(&mut self, value: Uuid) {
        self.own.put_slice(value.as_bytes());
    }

    pub fn uvarint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.own.put_u8(value as u8 | 0x80);
            value >>= 7;
        }
        self.own.put_u8(value as u8);
    }

    /// # Panics
    /// If the length is 2^31 or more.
    fn length(&mut self, length: usize) {
        let length = i32::try_from(length).expect("no response has a field of 2 GiB");
        match self.flexible {
            true => self.uvarint(length as u32 + 1),
            false => self.i32(length),
        }
    }

    /// What is over 32767 bytes is cut at a character's end.
    pub fn string(&mut self, text: &str) {
        let mut end = text.len().min(i16::MAX as usize);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        match self.flexible {
            true => self.uvarint(end as u32 + 1),
            false => self.i16(end as i16),
        }
        self.own.put_slice(&text.as_bytes()[..end]);
    }

    pub fn nullable_string(&mut self, text: Option<&str>) {
        match (text, self.flexible) {
            (Some(text), _) => self.string(text),
            (None, true) => self.uvarint(0),
            (None, false) => self.i16(-1),
        }
    }

    /// The count of an array; the elements follow.
    pub fn array(&mut self, count: usize) {
        self.length(count);
    }

    pub fn null_array(&mut self) {
        match self.flexible {
            true => self.uvarint(0),
            false => self.i32(-1),
        }
    }

    /// One field of records, made of these pieces; they are not copied.
    pub fn records(&mut self, pieces: &[Bytes]) {
        self.length(pieces.iter().map(Bytes::len).sum());
        for piece in pieces.iter().filter(|p| !p.is_empty()) {
            self.cut();
            self.parts.push(piece.clone());
        }
    }

    /// The end of a struct without tagged fields. Nothing in versions that are not flexible.
    pub fn tags(&mut self) {
        if self.flexible {
            self.own.put_u8(0);
        }
    }

    fn cut(&mut self) {
        if !self.own.is_empty() {
            self.parts.push(self.own.split().freeze());
        }
    }

    pub fn done(mut self) -> Reply {
        self.cut();
        Reply { parts: self.parts }
    }
}

/// A response of the `kafka-protocol` crate as an outcome.
///
/// Its encoder fails only if a field was set that the version lacks, or is too long: a fault of ours. The client is
/// told nothing then, and the connection is closed, because a wrong layout would be worse.
pub fn respond<T: Encodable>(response: &T, version: i16) -> Outcome {
    let mut body = BytesMut::new();
    match response.encode(&mut body, version) {
        Ok(()) => Outcome::Reply(Reply::one(body.freeze())),
        Err(fault) => {
            tracing::error!(version, %fault, "a response can not be encoded");
            Outcome::Close("a response can not be encoded")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(b: &[u8]) -> Bytes {
        Bytes::copy_from_slice(b)
    }

    /// A count of 2^31-1 in a small request would take the memory of the broker.
    #[test]
    fn an_array_that_the_frame_can_not_hold_is_refused_before_its_first_element() {
        for (flexible, frame) in [
            (false, bytes(&[0x7f, 0xff, 0xff, 0xff, 1, 2, 3])),
            (true, bytes(&[0xff, 0xff, 0xff, 0xff, 0x07, 1, 2, 3])),
            (true, bytes(&[5, 1, 2, 3])),
        ] {
            let mut called = false;
            let got = Reader::new(&frame, flexible).array(1, |_| {
                called = true;
                Ok(())
            });
            assert!(matches!(got, Err(Malformed::ArrayCount { .. })), "{got:?}");
            assert!(!called);
        }
    }

    /// Many tiny elements would cost far more memory than the frame.
    #[test]
    fn the_elements_of_all_arrays_together_are_bounded() {
        let mut frame = vec![];
        for _ in 0..2 {
            frame.extend_from_slice(&(REQUEST_ELEMENTS_MAX as i32 / 2 + 1).to_be_bytes());
            frame.extend(std::iter::repeat_n(0, REQUEST_ELEMENTS_MAX / 2 + 1));
        }
        let frame = Bytes::from(frame);
        let mut r = Reader::new(&frame, false);
        r.array(1, Reader::i8).expect("the first half is within the bound");
        assert_eq!(r.array(1, Reader::i8), Err(Malformed::TooManyElements));
    }

    /// A varint without an end, or over 32 bits, must not run on.
    #[test]
    fn varints_are_at_most_32_bits_in_five_bytes() {
        for (frame, want) in [
            (vec![0x00], Ok(0)),
            (vec![0x7f], Ok(127)),
            (vec![0xac, 0x02], Ok(300)),
            (vec![0xff, 0xff, 0xff, 0xff, 0x0f], Ok(u32::MAX)),
            (vec![0xff, 0xff, 0xff, 0xff, 0x1f], Err(Malformed::Varint { at: 0 })),
            (vec![0x80; 20], Err(Malformed::Varint { at: 0 })),
            (vec![0x80], Err(Malformed::Short { at: 1, wanted: 1, left: 0 })),
        ] {
            assert_eq!(Reader::new(&bytes(&frame), true).uvarint(), want, "{frame:?}");
        }
    }

    /// Lengths below -1 and null where none may be are no strings.
    #[test]
    fn negative_lengths_and_nulls_are_told_apart() {
        let frame = bytes(&[0xff, 0xff]);
        assert_eq!(Reader::new(&frame, false).nullable_string(), Ok(None));
        assert_eq!(Reader::new(&frame, false).string(), Err(Malformed::Null { at: 0 }));
        let frame = bytes(&[0xff, 0xfb, 1, 2, 3]);
        assert_eq!(Reader::new(&frame, false).nullable_string(), Err(Malformed::NegativeLength { at: 0, length: -5 }));
        let frame = bytes(&[0]);
        assert_eq!(Reader::new(&frame, true).nullable_bytes(), Ok(None));
        let frame = bytes(&[3, 0xff, 0xfe]);
        assert_eq!(Reader::new(&frame, true).string(), Err(Malformed::NotUtf8 { at: 1 }));
    }

    /// Records that were copied would double the memory of each produce.
    #[test]
    fn records_and_strings_are_slices_of_the_frame() {
        let frame = bytes(&[0, 0, 0, 3, 7, 8, 9]);
        let got = Reader::new(&frame, false).bytes().expect("three bytes");
        assert_eq!(got.as_ptr(), frame[4..].as_ptr());
        let mut w = Writer::new(false);
        w.i32(1);
        w.records(&[got.clone(), Bytes::new(), got.clone()]);
        w.i8(5);
        let parts = w.done().parts;
        assert_eq!(parts.len(), 4);
        assert_eq!(parts[1].as_ptr(), got.as_ptr());
        assert_eq!(parts.concat(), [0, 0, 0, 1, 0, 0, 0, 6, 7, 8, 9, 7, 8, 9, 5]);
    }

    /// A client of tomorrow sends fields that we do not know.
    #[test]
    fn unknown_tags_are_skipped_and_known_ones_are_read() {
        let frame = bytes(&[3, 1, 2, 0, 9, 50, 1, 77, 0x80, 0x01, 0, 42]);
        let mut r = Reader::new(&frame, true);
        let mut seen = None;
        r.tagged(|tag, r| {
            if tag == 1 {
                seen = Some(r.i16()?);
            }
            Ok(())
        })
        .expect("well formed");
        assert_eq!((seen, r.i8()), (Some(9), Ok(42)));
        let mut r = Reader::new(&frame, false);
        r.tags().expect("no tags in versions that are not flexible");
        assert_eq!(r.at(), 0);
    }

    /// 100 MiB of two-byte tags would be millions of objects, before anyone is authenticated.
    #[test]
    fn a_flood_of_tags_is_refused() {
        let mut frame = vec![0xff, 0xff, 0xff, 0xff, 0x0f];
        frame.extend([0; 100]);
        assert!(matches!(Reader::new(&Bytes::from(frame), true).tags(), Err(Malformed::TooManyTags { .. })));
        let twice = bytes(&[2, 5, 0, 5, 0]);
        assert_eq!(Reader::new(&twice, true).tags(), Err(Malformed::TagOrder { at: 3, tag: 5 }));
    }

    /// A text too long for its length would shift every field behind it.
    #[test]
    fn a_string_that_is_too_long_is_cut_at_a_character() {
        let text = "\u{e9}".repeat(20_000);
        for flexible in [false, true] {
            let mut w = Writer::new(flexible);
            w.string(&text);
            let frame = Bytes::from(w.done().parts.concat());
            let got = Reader::new(&frame, flexible).string().expect("whole characters");
            assert_eq!(got.len(), 32_766);
        }
    }

    proptest! {
        /// What is written is what is read, in both layouts.
        #[test]
        fn what_is_written_is_read(
            flexible: bool, a: i8, b: i16, c: i32, d: i64, e: u32, f: bool, g: u128,
            s in proptest::option::of(".{0,40}"), data: Vec<u8>, many: Vec<i64>,
        ) {
            let mut w = Writer::new(flexible);
            w.i8(a); w.i16(b); w.i32(c); w.i64(d); w.uvarint(e); w.bool(f); w.uuid(Uuid::from_u128(g));
            w.nullable_string(s.as_deref());
            w.records(&[Bytes::from(data.clone())]);
            w.array(many.len());
            many.iter().for_each(|v| w.i64(*v));
            w.null_array();
            w.tags();
            let frame = Bytes::from(w.done().parts.concat());
            let mut r = Reader::new(&frame, flexible);
            prop_assert_eq!((r.i8(), r.i16(), r.i32(), r.i64()), (Ok(a), Ok(b), Ok(c), Ok(d)));
            prop_assert_eq!((r.uvarint(), r.bool(), r.uuid()), (Ok(e), Ok(f), Ok(Uuid::from_u128(g))));
            let text = r.nullable_string().unwrap();
            prop_assert_eq!(text.as_deref(), s.as_deref());
            prop_assert_eq!(r.bytes().unwrap(), data);
            prop_assert_eq!(r.array(8, Reader::i64).unwrap(), many);
            prop_assert_eq!(r.nullable_array(8, Reader::i64), Ok(None));
            r.tags().unwrap();
            prop_assert_eq!(r.left(), 0);
        }

        /// No bytes make the reader panic or read over the end.
        #[test]
        fn any_bytes_are_read_or_refused(data: Vec<u8>, flexible: bool) {
            let frame = Bytes::from(data);
            let mut r = Reader::new(&frame, flexible);
            let _ = r.nullable_array(1, |r| {
                r.nullable_string()?;
                r.nullable_array(2, Reader::i16)?;
                r.nullable_bytes()?;
                r.tags()
            });
            prop_assert!(r.at() <= frame.len());
        }
    }
}
