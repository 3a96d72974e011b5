"""Record batches of magic 2: built by hand, bent on purpose, and read back.

Layout: Kafka's `DefaultRecordBatch`. `build` takes any field of the header as an override, so that a test can say
exactly
which byte is wrong; the CRC is computed last unless it is given.
"""

import struct
import time
from dataclasses import dataclass

import cramjam
import lz4.frame
from crc32c import crc32c

HEAD = struct.Struct(">qiibIhiqqqhii")
HEAD_BYTES = HEAD.size
assert HEAD_BYTES == 61
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODECS = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}


def varint(n: int) -> bytes:
    z, out = (n << 1) ^ (n >> 63), bytearray()
    while True:
        byte, z = z & 0x7F, z >> 7
        if not z:
            out.append(byte)
            return bytes(out)
        out.append(byte | 0x80)


def read_varint(data, at):
    shift = value = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7


def record(delta, key, value, ts_delta=0, headers=()):
    def opt(part):
        return varint(-1) if part is None else varint(len(part)) + part

    body = b"\x00" + varint(ts_delta) + varint(delta) + opt(key) + opt(value) + varint(len(headers))
    for name, content in headers:
        body += opt(name) + opt(content)
    return varint(len(body)) + body


def compress(codec, data):
    if codec == NONE:
        return data
    if codec == GZIP:
        return bytes(cramjam.gzip.compress(data))
    if codec == SNAPPY:  # the framing of the Java client: magic, two versions, then blocks with their lengths
        block = bytes(cramjam.snappy.compress_raw(data))
        return b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, len(block)) + block
    if codec == LZ4:  # the Java client reads independent blocks only
        return lz4.frame.compress(data, block_linked=False)
    return bytes(cramjam.zstd.compress(data))


def decompress(codec, data):
    if codec == NONE:
        return data
    if codec == GZIP:
        return bytes(cramjam.gzip.decompress(data))
    if codec == SNAPPY:
        if data[:8] != b"\x82SNAPPY\x00":
            return bytes(cramjam.snappy.decompress_raw(data))
        at, out = 16, b""
        while at < len(data):
            (size,) = struct.unpack_from(">i", data, at)
            out += bytes(cramjam.snappy.decompress_raw(data[at + 4 : at + 4 + size]))
            at += 4 + size
        return out
    if codec == LZ4:
        return bytes(cramjam.lz4.decompress(data))
    return bytes(cramjam.zstd.decompress(data))


def build(
    values,
    *,
    pid=-1,
    epoch=-1,
    seq=-1,
    keys=None,
    codec=NONE,
    first_ts=None,
    ts_step=0,
    body=None,
    base_offset=0,
    leader_epoch=-1,
    magic=2,
    attributes=None,
    crc=None,
    length=None,
    count=None,
    last_delta=None,
    max_ts=None,
):
    """One batch. `values`: bytes (or None) of each record; `body`: the records' bytes instead of those made of
    `values`."""
    now = int(time.time() * 1000) if first_ts is None else first_ts
    n = len(values)
    if body is None:
        keys = keys or [None] * n
        body = b"".join(record(i, keys[i], v, i * ts_step) for i, v in enumerate(values))
    body = compress(codec, body)
    after_crc = (
        struct.pack(
            ">hiqqqhii",
            codec if attributes is None else attributes,
            n - 1 if last_delta is None else last_delta,
            now,
            now + max(0, n - 1) * ts_step if max_ts is None else max_ts,
            pid,
            epoch,
            seq,
            n if count is None else count,
        )
        + body
    )
    head = struct.pack(">ibI", leader_epoch, magic, crc32c(after_crc) if crc is None else crc)
    size = len(head) + len(after_crc) if length is None else length
    return struct.pack(">qi", base_offset, size) + head + after_crc


@dataclass
class Record:
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


@dataclass
class Batch:
    base_offset: int
    leader_epoch: int
    attributes: int
    last_delta: int
    first_ts: int
    max_ts: int
    pid: int
    epoch: int
    seq: int
    count: int
    raw: bytes

    @property
    def next_offset(self):
        return self.base_offset + self.last_delta + 1

    def records(self):
        data, at, out = decompress(self.attributes & 7, self.raw[HEAD_BYTES:]), 0, []
        for _ in range(self.count):
            size, at = read_varint(data, at)
            end = at + size
            ts_delta, at = read_varint(data, at + 1)
            delta, at = read_varint(data, at)
            parts = []
            for _ in range(2):
                size, at = read_varint(data, at)
                parts.append(None if size < 0 else bytes(data[at : at + size]))
                at += max(size, 0)
            ts = self.max_ts if self.attributes & 8 else self.first_ts + ts_delta
            out.append(Record(self.base_offset + delta, ts, *parts))
            at = end
        assert at == len(data), f"{len(data) - at} bytes left over in the batch at {self.base_offset}"
        return out


def parse(data: bytes) -> list[Batch]:
    """The whole batches of a fetch answer, each with its CRC checked. A partial batch at the end is left out."""
    at, out = 0, []
    while at + HEAD_BYTES <= len(data):
        base, size, leader_epoch, magic, crc, attrs, last, first_ts, max_ts, pid, epoch, seq, count = HEAD.unpack_from(
            data, at
        )
        end = at + 12 + size
        if end > len(data):
            break
        raw = bytes(data[at:end])
        assert magic == 2, f"magic {magic} at offset {base}"
        assert crc == crc32c(raw[21:]), f"a batch with a wrong CRC was served at offset {base}"
        out.append(Batch(base, leader_epoch, attrs, last, first_ts, max_ts, pid, epoch, seq, count, raw))
        at = end
    return out
