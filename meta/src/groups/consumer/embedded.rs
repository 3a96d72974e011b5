//! What classic consumers say to each other inside JoinGroup and SyncGroup, as far as a broker that assigns has to
//! read and write it: Kafka's `ConsumerProtocolSubscription` and `ConsumerProtocolAssignment`.

use bytes::{BufMut, Bytes, BytesMut};

/// The highest version of an assignment that is written.
const VERSION_MAX: i16 = 3;

/// Partitions by topic, as clients name them.
pub(super) type ByName = Vec<(String, Vec<u32>)>;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Subscription {
    pub(super) version: i16,
    pub(super) topics: Vec<String>,
    /// What the member has not given up; nothing from a member that gives up everything before it joins.
    pub(super) owned: ByName,
    pub(super) rack: Option<String>,
}

/// `None`: it is none. What follows the topics may be cut off.
pub(super) fn subscription(bytes: &[u8]) -> Option<Subscription> {
    let mut fields = Fields(bytes);
    let version = fields.i16()?;
    if version < 0 {
        return None;
    }
    let topics = fields.array(|fields| fields.text())?;
    let mut read = Subscription { version, topics, owned: Vec::new(), rack: None };
    let _: Option<()> = rest(&mut read, &mut fields);
    Some(read)
}

fn rest(read: &mut Subscription, fields: &mut Fields<'_>) -> Option<()> {
    fields.skip_bytes()?;
    if read.version >= 1 {
        read.owned = fields.array(|fields| fields.topic())?;
    }
    if read.version >= 2 {
        let _generation = fields.i32()?;
    }
    if read.version >= 3 {
        read.rack = fields.nullable_text()?;
    }
    Some(())
}

/// What a leader gave a member. `None`: it can not be read.
pub(super) fn assigned(bytes: &[u8]) -> Option<ByName> {
    if bytes.is_empty() {
        return Some(Vec::new());
    }
    let mut fields = Fields(bytes);
    let _version = fields.i16()?;
    fields.array(|fields| fields.topic())
}

/// The same, written for a member that speaks this version.
pub(super) fn assignment(version: i16, partitions: &ByName) -> Bytes {
    let mut to = BytesMut::new();
    to.put_i16(version.min(VERSION_MAX));
    to.put_i32(count(partitions.len()));
    for (topic, numbers) in partitions {
        to.put_i16(i16::try_from(topic.len()).expect("names of topics have 249 bytes at most"));
        to.put_slice(topic.as_bytes());
        to.put_i32(count(numbers.len()));
        for number in numbers {
            to.put_u32(*number);
        }
    }
    to.put_i32(-1);
    to.freeze()
}

fn count(count: usize) -> i32 {
    i32::try_from(count).expect("fewer than 2^31 partitions")
}

/// The fields that are left.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, left) = self.0.split_at_checked(bytes)?;
        self.0 = left;
        Some(taken)
    }

    fn i16(&mut self) -> Option<i16> {
        Some(i16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    fn i32(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    fn nullable_text(&mut self) -> Option<Option<String>> {
        let length = self.i16()?;
        if length == -1 {
            return Some(None);
        }
        let bytes = self.take(usize::try_from(length).ok()?)?;
        Some(Some(std::str::from_utf8(bytes).ok()?.to_owned()))
    }

    fn text(&mut self) -> Option<String> {
        self.nullable_text()?
    }

    fn skip_bytes(&mut self) -> Option<()> {
        let length = self.i32()?;
        if length != -1 {
            self.take(usize::try_from(length).ok()?)?;
        }
        Some(())
    }

    /// No element takes less than two bytes.
    fn array<T>(&mut self, one: impl Fn(&mut Fields<'a>) -> Option<T>) -> Option<Vec<T>> {
        let count = usize::try_from(self.i32()?).ok()?;
        if count > self.0.len() {
            return None;
        }
        // an element takes more in memory than on the wire: what is not there takes nothing
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(one(self)?);
        }
        Some(all)
    }

    fn topic(&mut self) -> Option<(String, Vec<u32>)> {
        let name = self.text()?;
        let numbers = self.array(|fields| fields.i32())?;
        // a number below 0 is no partition
        Some((name, numbers.into_iter().filter_map(|number| u32::try_from(number).ok()).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(to: &mut BytesMut, text: &str) {
        to.put_i16(text.len() as i16);
        to.put_slice(text.as_bytes());
    }

    /// Lost if it fails: a classic consumer is assigned topics that it did not subscribe to, or keeps partitions that
    /// it has said it gave up.
    #[test]
    fn a_subscription_is_read_in_every_version() {
        for version in 0..=4 {
            let mut bytes = BytesMut::new();
            bytes.put_i16(version);
            bytes.put_i32(2);
            text(&mut bytes, "t");
            text(&mut bytes, "other");
            bytes.put_i32(3);
            bytes.put_slice(b"abc");
            if version >= 1 {
                bytes.put_i32(1);
                text(&mut bytes, "t");
                bytes.put_i32(2);
                bytes.put_i32(0);
                bytes.put_i32(7);
            }
            if version >= 2 {
                bytes.put_i32(5);
            }
            if version >= 3 {
                text(&mut bytes, "rack");
            }
            let read = subscription(&bytes).expect("it is one");
            assert_eq!((read.version, read.topics), (version, vec!["t".to_owned(), "other".to_owned()]));
            assert_eq!(read.owned, if version >= 1 { vec![("t".to_owned(), vec![0, 7])] } else { vec![] });
            assert_eq!(read.rack.as_deref(), if version >= 3 { Some("rack") } else { None });
        }
        assert_eq!(subscription(b""), None);
        assert_eq!(subscription(b"meta"), None);
    }

    proptest! {
        /// Lost if it fails: whoever can join a group ends the broker.
        #[test]
        fn no_bytes_end_in_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = (subscription(&bytes), assigned(&bytes));
        }

        /// Lost if it fails: a classic member of a group of KIP-848 reads other partitions than it was given.
        #[test]
        fn what_is_written_is_read_back(
            given in proptest::collection::vec(("[a-z]{1,9}", proptest::collection::vec(0..1000u32, 0..5)), 0..5),
            version in 0..9i16,
        ) {
            let bytes = assignment(version, &given);
            prop_assert_eq!(i16::from_be_bytes([bytes[0], bytes[1]]), version.min(3));
            prop_assert_eq!(assigned(&bytes), Some(given));
        }
    }
}
