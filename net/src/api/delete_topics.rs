//! DeleteTopics: by name, or by id from version 6 on.

use super::messages::{self, Fault};
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::Code;
use camus_meta::{Command, Decided, Done, Refused, Topic};
use kafka_protocol::messages::TopicName;
use kafka_protocol::messages::delete_topics_response::{DeletableTopicResult, DeleteTopicsResponse};
use kafka_protocol::protocol::StrBytes;
use std::collections::BTreeSet;
use uuid::Uuid;

/// A topic of the request: by name, by id, and, wrongly, by both or neither.
type Wanted = (Option<StrBytes>, Uuid);

fn read(request: &Request) -> Result<Vec<Wanted>, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 4);
    let topics = if request.version >= 6 {
        messages::structs(&mut r, 17, |r| Ok((r.nullable_string()?, r.uuid()?)))?
    } else {
        r.array(1, |r| Ok((Some(r.string()?), Uuid::nil())))?
    };
    let _timeout_ms = r.i32()?;
    r.tags()?;
    Ok(topics)
}

/// What stands in the answer of one topic.
struct Slot {
    name: Option<StrBytes>,
    id: Uuid,
    /// What a topic is called that is gone by the time of the decision.
    by_id: bool,
    planned: Result<(), Fault>,
}

/// DeleteTopics 1-6, flexible from 4.
pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let wanted = match read(request) {
        Ok(wanted) => wanted,
        Err(fault) => return fault.into(),
    };
    let found: Vec<Result<&Topic, Fault>> = wanted.iter().map(|wanted| find(ctx, wanted)).collect();
    let ids: Vec<Uuid> = found.iter().filter_map(|found| found.as_ref().ok().map(|topic| topic.id)).collect();
    let (same_topic, same_words) = (messages::named_twice(ids.iter()), messages::named_twice(wanted.iter()));
    let mut commands = Vec::new();
    let mut answered = BTreeSet::new();
    let mut slots = Vec::new();
    for (wanted, found) in wanted.iter().zip(&found) {
        let twice = same_words.contains(wanted) || found.as_ref().is_ok_and(|topic| same_topic.contains(&topic.id));
        if twice && !answered.insert(wanted) {
            continue;
        }
        let (mut name, mut id) = wanted.clone();
        let by_id = name.is_none();
        let planned = match found {
            _ if twice => Err(Fault::invalid_request("the request names this topic more than once")),
            Err(fault) => Err(fault.clone()),
            Ok(topic) => {
                commands.push(Command::DeleteTopic { id: topic.id });
                (name, id) = (Some(StrBytes::from_string(topic.name.clone())), topic.id);
                Ok(())
            }
        };
        slots.push(Slot { name, id, by_id, planned });
    }
    let version = request.version;
    if commands.is_empty() {
        return reply(version, slots, Vec::new());
    }
    Outcome::Meta(commands, Box::new(move |_, decided| reply(version, slots, decided)))
}

fn find<'a>(ctx: &'a Ctx<'_>, wanted: &Wanted) -> Result<&'a Topic, Fault> {
    match wanted {
        (Some(_), id) if !id.is_nil() => {
            Err(Fault::invalid_request("a topic is named by its name or by its id, not by both"))
        }
        (None, id) if id.is_nil() => Err(Fault::invalid_request("a topic is named by its name or by its id")),
        (None, id) => match ctx.image.topic_by_id(*id) {
            Some(topic) => Ok(topic),
            None => Err(Fault::new(Code::UnknownTopicId, format!("there is no topic with the id {id}"))),
        },
        // A name that can not exist is unknown, no more: only what makes topics judges names.
        (Some(name), _) => match ctx.image.topic(name) {
            Some(topic) => Ok(topic),
            None => Err(Fault::unknown_topic(name)),
        },
    }
}

fn reply(version: i16, slots: Vec<Slot>, decided: Vec<Decided>) -> Outcome {
    let mut decided = decided.into_iter();
    let responses = slots.into_iter().map(|slot| {
        let done = slot.planned.and_then(|()| match decided.next() {
            Some(Ok(Done::TopicDeleted { .. })) => Ok(()),
            Some(Err(Refused::UnknownTopic | Refused::UnknownTopicId)) if !slot.by_id => {
                Err(Fault::unknown_topic(slot.name.as_deref().unwrap_or_default()))
            }
            Some(Err(refused)) => Err(Fault::from(&refused)),
            other => unreachable!("a DeleteTopic is decided as TopicDeleted, not as {other:?}"),
        });
        let (code, message) = messages::told(&done);
        DeletableTopicResult::default()
            .with_name(slot.name.map(TopicName))
            .with_topic_id(if version >= 6 { slot.id } else { Uuid::nil() })
            .with_error_code(code)
            .with_error_message(message.filter(|_| version >= 5))
    });
    respond(&DeleteTopicsResponse::default().with_responses(responses.collect()), version)
}
