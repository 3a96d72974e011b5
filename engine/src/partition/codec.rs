//! The bytes of a partition's snapshot: big-endian numbers, one after the other. Read with a bound at every step.

/// A snapshot that can not be what Camus wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the partition's snapshot is damaged at byte {at}: {why}")]
pub struct SnapshotError {
    pub why: &'static str,
    pub at: usize,
}

pub(super) struct Writer<'a>(pub &'a mut Vec<u8>);

macro_rules! numbers {
    ($($name:ident: $number:ty),*) => {
        impl Writer<'_> {
            $(pub fn $name(&mut self, value: $number) {
                self.0.extend_from_slice(&value.to_be_bytes());
            })*
        }

        impl Reader<'_> {
            $(pub fn $name(&mut self) -> Result<$number, SnapshotError> {
                let (number, left) = self.left.split_first_chunk().ok_or(self.wrong("it ends early"))?;
                self.left = left;
                Ok(<$number>::from_be_bytes(*number))
            })*
        }
    };
}

numbers!(u8: u8, i16: i16, u32: u32, i32: i32, i64: i64);

pub(super) struct Reader<'a> {
    left: &'a [u8],
    bytes: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { left: bytes, bytes: bytes.len() }
    }

    pub fn is_at_end(&self) -> bool {
        self.left.is_empty()
    }

    pub fn wrong(&self, why: &'static str) -> SnapshotError {
        SnapshotError { why, at: self.bytes - self.left.len() }
    }
}
