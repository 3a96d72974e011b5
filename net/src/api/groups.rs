//! What the handlers of groups share: who a member says it is, and copies of what a client sent.
//!
//! What goes to the coordinator crosses cores and may stay there for long, so it is copied: a slice would keep the
//! whole frame of a client in memory.

use super::{Ctx, messages};
use crate::codec::{Malformed, Reader};
use crate::errors::group_code;
use bytes::Bytes;
use camus_meta::groups::{GroupRefusal, MemberName};
use camus_meta::limits::MEMBER_ID_BYTES_MAX;
use kafka_protocol::protocol::StrBytes;
use std::time::Duration;
use uuid::Uuid;

/// Characters of a client's id that its member id repeats.
const CLIENT_ID_CHARS_MAX: usize = 100;

pub fn text(r: &mut Reader<'_>) -> Result<String, Malformed> {
    Ok(r.string()?.to_string())
}

pub fn nullable_text(r: &mut Reader<'_>) -> Result<Option<String>, Malformed> {
    Ok(r.nullable_string()?.map(|text| text.to_string()))
}

pub fn bytes(r: &mut Reader<'_>) -> Result<Bytes, Malformed> {
    Ok(Bytes::copy_from_slice(&r.bytes()?))
}

/// Member id and, in versions that have it, instance id, side by side as in most requests.
pub fn member(r: &mut Reader<'_>, with_instance: bool) -> Result<MemberName, Malformed> {
    Ok(MemberName { id: text(r)?, instance: if with_instance { nullable_text(r)? } else { None } })
}

/// A time in ms; below 0 is none.
pub fn timeout(ms: i32) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// Nothing but what Java's `trim` takes off.
pub fn is_blank(text: &str) -> bool {
    text.chars().all(|c| c <= ' ')
}

/// Why a name that a member gives itself is refused: it would stay in memory, and the older answers that repeat it have
/// no room for more than 32,767 bytes.
pub fn long_name(what: &str, name: &str) -> Option<String> {
    let bytes = name.len();
    let why = || format!("{what} has at most {MEMBER_ID_BYTES_MAX} bytes, not {bytes}");
    (bytes > MEMBER_ID_BYTES_MAX).then(why)
}

/// READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS: what a group can be operated with. Source: KIP-430,
/// KIP-848.
pub const GROUP_OPERATIONS: i32 = 3400;

/// Partitions by topic. A number below 0 is no partition.
pub fn partitions(r: &mut Reader<'_>) -> Result<(Uuid, Vec<u32>), Malformed> {
    let (topic, numbers) = (r.uuid()?, r.array(4, Reader::i32)?);
    Ok((topic, numbers.into_iter().filter_map(|number| u32::try_from(number).ok()).collect()))
}

/// As the wire says them: no topic has 2^31 partitions.
pub fn numbers(partitions: Vec<u32>) -> Vec<i32> {
    partitions.into_iter().map(|number| number as i32).collect()
}

/// A member id that nobody has: who the member is, for people, and a random part.
pub fn fresh_member_id(ctx: &mut Ctx<'_>, client_id: &str, instance: Option<&str>) -> String {
    let name: String = instance.unwrap_or(client_id).chars().take(CLIENT_ID_CHARS_MAX).collect();
    format!("{name}-{}", messages::random_id(ctx))
}

/// As the wire says it.
pub fn wire<T>(result: &Result<T, GroupRefusal>) -> i16 {
    result.as_ref().err().map_or(0, |why| group_code(*why).wire())
}

pub fn said(text: impl Into<String>) -> StrBytes {
    StrBytes::from_string(text.into())
}
