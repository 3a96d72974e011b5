//! ConsumerGroupHeartbeat: a member of a group of KIP-848 is alive, says what is new about it, and hears what it is to
//! read.

use super::groups::{self, said};
use super::messages::{self, nullable_structs};
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::{Code, group_code};
use camus_meta::groups::{Beat, Beaten, GroupAnswer, GroupAsk, MemberName};
use kafka_protocol::messages::ConsumerGroupHeartbeatResponse;
use kafka_protocol::messages::consumer_group_heartbeat_response::{Assignment, TopicPartitions};
use std::time::Duration;

/// From this version on members make their own ids (KIP-1082), and may subscribe by a pattern.
const OWN_IDS: i16 = 1;

fn read(request: &Request) -> Result<Beat, Malformed> {
    let version = request.version;
    let mut r = Reader::new(&request.body, true);
    let group = groups::text(&mut r)?;
    let (id, epoch) = (groups::text(&mut r)?, r.i32()?);
    let (instance, rack) = (groups::nullable_text(&mut r)?, groups::nullable_text(&mut r)?);
    let rebalance_timeout = u64::try_from(r.i32()?).ok().map(Duration::from_millis);
    let topics = r.nullable_array(1, groups::text)?;
    let pattern = if version >= OWN_IDS { groups::nullable_text(&mut r)? } else { None };
    let assignor = groups::nullable_text(&mut r)?;
    let owned = nullable_structs(&mut r, 17, groups::partitions)?;
    r.tags()?;
    Ok(Beat {
        group,
        member: MemberName { id, instance },
        id_required: version >= OWN_IDS,
        fresh: String::new(),
        epoch,
        client_id: request.client_id.clone().unwrap_or_default(),
        // as Kafka writes it
        client_host: format!("/{}", request.peer),
        rack,
        rebalance_timeout,
        topics,
        pattern,
        assignor,
        owned,
    })
}

/// What no name of it may be, in Kafka's order.
fn name_fault(beat: &Beat) -> Option<String> {
    // a member of version 0 joins without an id
    let id = Some(beat.member.id.as_str()).filter(|_| beat.id_required || beat.epoch != 0);
    let (instance, rack) = (beat.member.instance.as_deref(), beat.rack.as_deref());
    let names =
        [("a member id", id), ("a group id", Some(&*beat.group)), ("an instance id", instance), ("a rack id", rack)];
    let blank = names.into_iter().find(|(_, name)| name.is_some_and(groups::is_blank));
    if let Some((what, _)) = blank {
        return Some(format!("{what} is neither empty nor blank"));
    }
    groups::long_name("a member id", &beat.member.id)
        .or_else(|| groups::long_name("an instance id", instance?))
        .or_else(|| groups::long_name("a rack id", rack?))
}

/// ConsumerGroupHeartbeat 0-1, flexible from 0.
pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let mut beat = match read(request) {
        Ok(beat) => beat,
        Err(fault) => return fault.into(),
    };
    let version = request.version;
    if let Some(why) = name_fault(&beat) {
        return refuse(version, Code::InvalidRequest, why);
    }
    if beat.member.id.is_empty() {
        beat.fresh = messages::random_id(ctx).to_string();
    }
    Outcome::Group(
        GroupAsk::Beat(Box::new(beat)),
        Box::new(move |_, answer| match answer {
            GroupAnswer::Beaten(Ok(beaten)) => reply(version, beaten),
            GroupAnswer::Beaten(Err(why)) => refuse(version, group_code(why), why.to_string()),
            other => unreachable!("a Beat is answered as Beaten, not as {other:?}"),
        }),
    )
}

fn reply(version: i16, beaten: Beaten) -> Outcome {
    let assignment = beaten.assignment.map(|partitions| {
        let topics = partitions.into_iter().map(|(topic, numbers)| {
            TopicPartitions::default().with_topic_id(topic).with_partitions(groups::numbers(numbers))
        });
        Assignment::default().with_topic_partitions(topics.collect())
    });
    // who leaves has nothing to come back for
    let interval = if beaten.epoch < 0 { Duration::ZERO } else { beaten.interval };
    let answer = ConsumerGroupHeartbeatResponse::default()
        .with_member_id(Some(said(beaten.member)))
        .with_member_epoch(beaten.epoch)
        .with_heartbeat_interval_ms(i32::try_from(interval.as_millis()).unwrap_or(i32::MAX))
        .with_assignment(assignment);
    respond(&answer, version)
}

fn refuse(version: i16, code: Code, why: String) -> Outcome {
    let answer = ConsumerGroupHeartbeatResponse::default()
        .with_error_code(code.wire())
        .with_error_message(Some(said(why)))
        .with_member_id(None)
        .with_assignment(None);
    respond(&answer, version)
}
