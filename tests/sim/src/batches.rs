//! Record batches as clients make and read them. No more than the simulation needs: values are numbers.

use bytes::{BufMut, Bytes, BytesMut};

fn varint(n: i64, out: &mut Vec<u8>) {
    let mut n = ((n << 1) ^ (n >> 63)) as u64;
    while n > 0x7f {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn take_varint(bytes: &mut &[u8]) -> i64 {
    let (mut n, mut shift) = (0u64, 0);
    loop {
        let (first, rest) = bytes.split_first().expect("a record is whole");
        *bytes = rest;
        n |= u64::from(first & 0x7f) << shift;
        shift += 7;
        if first & 0x80 == 0 {
            return (n >> 1) as i64 ^ -((n & 1) as i64);
        }
    }
}

/// The timestamp of all records.
pub const RECORD_TIME_MS: i64 = 1_800_000_000_000;

/// A record batch with these values, padded. `producer`: id, epoch, first sequence.
pub fn batch(values: &[u64], padding: usize, producer: (i64, i16, i32)) -> Bytes {
    let mut records = Vec::new();
    for (n, value) in values.iter().enumerate() {
        let mut body = vec![0];
        varint(0, &mut body); // timestamp
        varint(n as i64, &mut body);
        varint(-1, &mut body); // key
        varint(8 + padding as i64, &mut body);
        body.extend(value.to_be_bytes());
        body.resize(body.len() + padding, b'.');
        varint(0, &mut body); // headers
        varint(body.len() as i64, &mut records);
        records.extend(body);
    }
    let mut tail = BytesMut::new();
    tail.put_i16(0); // attributes
    tail.put_i32(values.len() as i32 - 1);
    tail.put_i64(RECORD_TIME_MS);
    tail.put_i64(RECORD_TIME_MS);
    tail.put_i64(producer.0);
    tail.put_i16(producer.1);
    tail.put_i32(producer.2);
    tail.put_i32(values.len() as i32);
    tail.put_slice(&records);
    let mut batch = BytesMut::new();
    batch.put_i64(0);
    batch.put_i32(9 + tail.len() as i32);
    batch.put_i32(-1);
    batch.put_u8(2);
    batch.put_u32(crc32c::crc32c(&tail));
    batch.put_slice(&tail);
    batch.freeze()
}

/// Base offset, leader epoch, and the offset behind it, of each batch.
pub fn epochs(mut bytes: &[u8]) -> Vec<(i64, i32, i64)> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let base = i64::from_be_bytes(bytes[..8].try_into().unwrap());
        let len = 12 + i32::from_be_bytes(bytes[8..12].try_into().unwrap()) as usize;
        let epoch = i32::from_be_bytes(bytes[12..16].try_into().unwrap());
        let last = i32::from_be_bytes(bytes[23..27].try_into().unwrap());
        all.push((base, epoch, base + i64::from(last) + 1));
        bytes = &bytes[len..];
    }
    all
}

/// Offset and value of each record from `from` on.
pub fn records(mut bytes: &[u8], from: i64) -> Vec<(i64, u64)> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let base = i64::from_be_bytes(bytes[..8].try_into().unwrap());
        let len = 12 + i32::from_be_bytes(bytes[8..12].try_into().unwrap()) as usize;
        let (batch, rest) = bytes.split_at(len);
        assert_eq!(u32::from_be_bytes(batch[17..21].try_into().unwrap()), crc32c::crc32c(&batch[21..]), "damaged");
        let count = i32::from_be_bytes(batch[57..61].try_into().unwrap());
        let mut body = &batch[61..];
        for _ in 0..count {
            let len = take_varint(&mut body) as usize;
            let (mut record, behind) = body.split_at(len);
            body = behind;
            record = &record[1..];
            take_varint(&mut record);
            let offset = base + take_varint(&mut record);
            take_varint(&mut record);
            take_varint(&mut record);
            all.push((offset, u64::from_be_bytes(record[..8].try_into().unwrap())));
        }
        bytes = rest;
    }
    all.retain(|(offset, _)| *offset >= from);
    all
}
