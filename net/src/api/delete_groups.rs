//! DeleteGroups: groups without members, and all that they committed.

use super::groups;
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, Writer};
use camus_meta::groups::{GroupAnswer, GroupAsk};

fn read(request: &Request) -> Result<Vec<String>, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 2);
    let names = r.array(1, groups::text)?;
    r.tags()?;
    Ok(names)
}

/// DeleteGroups 0-3, flexible from 2. (The codec crate has no 3, which says why.)
pub fn handle(_: &mut Ctx<'_>, request: &Request) -> Outcome {
    let names = match read(request) {
        Ok(names) => names,
        Err(fault) => return fault.into(),
    };
    let version = request.version;
    Outcome::Group(
        GroupAsk::DeleteGroups { groups: names.clone() },
        Box::new(move |_, answer| {
            let deleted = match answer {
                GroupAnswer::GroupsDeleted(deleted) => deleted,
                other => unreachable!("a DeleteGroups is answered as GroupsDeleted, not as {other:?}"),
            };
            let mut w = Writer::new(version >= 2);
            w.i32(0); // throttle_time_ms
            w.array(names.len());
            for (name, deleted) in names.iter().zip(deleted) {
                w.string(name);
                w.i16(groups::wire(&deleted));
                if version >= 3 {
                    w.nullable_string(deleted.err().map(|why| why.to_string()).as_deref());
                }
                w.tags();
            }
            w.tags();
            Outcome::Reply(w.done())
        }),
    )
}
