//! The bytes of answers, read by hand: nothing is allocated for an answer to a produce or a fetch.

/// Reads big-endian fields one after the other; `None` where the bytes end.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    flexible: bool,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8], flexible: bool) -> Reader<'a> {
        Reader { bytes, flexible }
    }

    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub fn i16(&mut self) -> Option<i16> {
        self.array().map(i16::from_be_bytes)
    }

    pub fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_be_bytes)
    }

    pub fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_be_bytes)
    }

    fn unsigned(&mut self) -> Option<u32> {
        let mut value = 0u32;
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.array::<1>()?[0];
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// A record's signed number.
    pub fn zigzag(&mut self) -> Option<i64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.array::<1>()?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some((value >> 1) as i64 ^ -((value & 1) as i64));
            }
        }
        None
    }

    /// The length of an array or of records; null is 0.
    pub fn length(&mut self) -> Option<usize> {
        match self.flexible {
            true => Some(self.unsigned()?.saturating_sub(1) as usize),
            false => Some(usize::try_from(self.i32()?).unwrap_or(0)),
        }
    }

    pub fn text(&mut self) -> Option<&'a [u8]> {
        let count = match self.flexible {
            true => self.unsigned()?.saturating_sub(1) as usize,
            false => usize::try_from(self.i16()?).unwrap_or(0),
        };
        self.take(count)
    }

    /// Skips tagged fields, where the version has them.
    pub fn tags(&mut self) -> Option<()> {
        if self.flexible {
            for _ in 0..self.unsigned()? {
                self.unsigned()?;
                let count = self.unsigned()? as usize;
                self.take(count)?;
            }
        }
        Some(())
    }
}

/// The answer to a produce request for one partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Produced {
    pub correlation: i32,
    pub partition: i32,
    pub error: i16,
}

/// Reads as much of an answer to Produce 3 to 12 as says what became of it.
pub fn produced(frame: &[u8], version: i16) -> Option<Produced> {
    let mut r = Reader::new(frame, version >= 9);
    let correlation = r.i32()?;
    r.tags()?;
    if r.length()? < 1 {
        return None;
    }
    r.text()?;
    if r.length()? < 1 {
        return None;
    }
    Some(Produced { correlation, partition: r.i32()?, error: r.i16()? })
}

/// The head of an answer to Fetch 4 to 12.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FetchedHead {
    pub correlation: i32,
    pub error: i16,
    pub session: i32,
}

/// One partition of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fetched<'a> {
    pub partition: i32,
    pub error: i16,
    pub records: &'a [u8],
}

/// Reads an answer to Fetch 4 to 12 for one topic; `each` sees every partition in it.
pub fn fetched(frame: &[u8], version: i16, mut each: impl FnMut(Fetched<'_>)) -> Option<FetchedHead> {
    let mut r = Reader::new(frame, version >= 12);
    let correlation = r.i32()?;
    r.tags()?;
    r.i32()?;
    let (error, session) = if version >= 7 { (r.i16()?, r.i32()?) } else { (0, 0) };
    for _ in 0..r.length()? {
        r.text()?;
        for _ in 0..r.length()? {
            let partition = r.i32()?;
            let error = r.i16()?;
            // High watermark, last stable offset, first offset.
            r.take(if version >= 5 { 24 } else { 16 })?;
            for _ in 0..r.length()? {
                r.take(16)?;
                r.tags()?;
            }
            if version >= 11 {
                r.i32()?;
            }
            let count = r.length()?;
            let records = r.take(count)?;
            r.tags()?;
            each(Fetched { partition, error, records });
        }
        r.tags()?;
    }
    Some(FetchedHead { correlation, error, session })
}

/// A record batch's place in its partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchAt<'a> {
    pub base_offset: i64,
    pub next_offset: i64,
    pub records: i32,
    pub bytes: &'a [u8],
}

/// The whole batches at the beginning of `bytes`; a broker may cut the last one short.
pub fn batches(mut bytes: &[u8]) -> impl Iterator<Item = BatchAt<'_>> {
    std::iter::from_fn(move || {
        let mut r = Reader::new(bytes, false);
        let base_offset = r.i64()?;
        let length = usize::try_from(r.i32()?).ok()?;
        let (batch, rest) = bytes.split_at_checked(length.checked_add(12)?)?;
        let mut r = Reader::new(batch.get(23..)?, false);
        let last_delta = r.i32()?;
        let mut r = Reader::new(batch.get(57..)?, false);
        let records = r.i32()?;
        bytes = rest;
        Some(BatchAt { base_offset, next_offset: base_offset + i64::from(last_delta) + 1, records, bytes: batch })
    })
}

/// The value of the first record of a batch that is not compressed.
pub fn first_value(batch: &[u8]) -> Option<&[u8]> {
    let mut r = Reader::new(batch.get(super::encode::BATCH_HEADER_BYTES..)?, false);
    r.zigzag()?;
    r.take(1)?;
    r.zigzag()?;
    r.zigzag()?;
    let key = r.zigzag()?;
    r.take(usize::try_from(key).unwrap_or(0))?;
    let value = usize::try_from(r.zigzag()?).ok()?;
    r.take(value)
}

#[cfg(test)]
mod tests {
    use super::super::encode::{BatchSpec, Codec, Payload, batch};
    use super::*;
    use bytes::{Bytes, BytesMut};
    use kafka_protocol::messages::fetch_response::{AbortedTransaction, FetchableTopicResponse, PartitionData};
    use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
    use kafka_protocol::messages::{FetchResponse, ProduceResponse, ResponseHeader, TopicName};
    use kafka_protocol::protocol::{Encodable, HeaderVersion, StrBytes};

    fn frame<R: Encodable + HeaderVersion>(answer: &R, version: i16) -> BytesMut {
        let mut frame = BytesMut::new();
        let header = ResponseHeader::default().with_correlation_id(77);
        header.encode(&mut frame, R::header_version(version)).expect("it encodes");
        answer.encode(&mut frame, version).expect("it encodes");
        frame
    }

    fn name() -> TopicName {
        TopicName(StrBytes::from_static_str("a-topic"))
    }

    /// Lost if it fails: what a broker of another version answers, and with it every figure against it.
    #[test]
    fn answers_of_each_version_are_read_as_they_were_meant() {
        for version in 3..=12 {
            let part = PartitionProduceResponse::default().with_index(4711).with_error_code(6);
            let topic = TopicProduceResponse::default().with_name(name()).with_partition_responses(vec![part]);
            let frame = frame(&ProduceResponse::default().with_responses(vec![topic]), version);
            let read = produced(&frame, version);
            assert_eq!(read, Some(Produced { correlation: 77, partition: 4711, error: 6 }), "Produce {version}");
            assert_eq!(produced(&frame[..9], version), None, "cut short");
        }
        let spec = BatchSpec { records: 3, record_bytes: 50, payload: Payload::Words, codec: Codec::None, now_ms: 1 };
        let mut records = batch(&spec).expect("it packs").bytes;
        records[..8].copy_from_slice(&100i64.to_be_bytes());
        let whole = records.len();
        records.extend_from_within(..whole - 1);
        for version in 4..=12 {
            let aborted = AbortedTransaction::default();
            let full = PartitionData::default()
                .with_partition_index(5)
                .with_aborted_transactions(Some(vec![aborted]))
                .with_records(Some(Bytes::copy_from_slice(&records)));
            let failed = PartitionData::default().with_partition_index(6).with_error_code(3);
            let topic = FetchableTopicResponse::default().with_topic(name()).with_partitions(vec![full, failed]);
            let answer = FetchResponse::default().with_responses(vec![topic]);
            let answer = if version >= 7 { answer.with_session_id(9) } else { answer };
            let mut seen = Vec::new();
            let head = fetched(&frame(&answer, version), version, |part| {
                let found: Vec<_> = batches(part.records).map(|b| (b.base_offset, b.next_offset, b.records)).collect();
                seen.push((part.partition, part.error, found));
            });
            let session = if version >= 7 { 9 } else { 0 };
            assert_eq!(head, Some(FetchedHead { correlation: 77, error: 0, session }), "Fetch {version}");
            assert_eq!(seen, [(5, 0, vec![(100, 103, 3)]), (6, 3, vec![])], "Fetch {version}: the cut batch is left");
        }
        assert_eq!(first_value(&records[..whole]).map(<[u8]>::len), Some(50));
    }
}
