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

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use kafka_protocol::messages::DeleteTopicsRequest;
    use kafka_protocol::messages::delete_topics_request::DeleteTopicState;

    fn question(version: i16, names: &[&'static str]) -> DeleteTopicsRequest {
        let names = names.iter().map(|name| TopicName(StrBytes::from_static_str(name)));
        match version {
            ..6 => DeleteTopicsRequest::default().with_topic_names(names.collect()),
            6.. => DeleteTopicsRequest::default()
                .with_topics(names.map(|name| DeleteTopicState::default().with_name(Some(name))).collect()),
        }
    }

    fn by(name: Option<&'static str>, id: u128) -> DeleteTopicState {
        let name = name.map(|name| TopicName(StrBytes::from_static_str(name)));
        DeleteTopicState::default().with_name(name).with_topic_id(Uuid::from_u128(id))
    }

    fn deleting() -> World {
        let mut world = World::new();
        world.decide = Box::new(|command| match command {
            Command::DeleteTopic { id } => Ok(Done::TopicDeleted { name: "?".into(), id }),
            other => panic!("{other:?}"),
        });
        world
    }

    fn told(answer: &DeleteTopicsResponse) -> Vec<(Option<&str>, u128, i16)> {
        let one = |r: &'_ DeletableTopicResult| (r.topic_id.as_u128(), r.error_code);
        let names = answer.responses.iter().map(|r| r.name.as_ref().map(|name| name.0.as_str()));
        names.zip(answer.responses.iter().map(one)).map(|(name, (id, code))| (name, id, code)).collect()
    }

    /// The wrong topic would be gone, or one that the client believes gone would be there.
    #[test]
    fn every_version_deletes_by_name_and_knows_what_is_unknown() {
        for version in 1..=6 {
            let mut world = deleting();
            let answer: DeleteTopicsResponse = world.call(handle, version, &question(version, &["t", "nope", "dark"]));
            let id = |id| if version >= 6 { id } else { 0 };
            let expected = [(Some("t"), id(0xa1), 0), (Some("nope"), 0, 3), (Some("dark"), id(0xa3), 0)];
            assert_eq!(told(&answer), expected);
            let deleted = [0xa1, 0xa3].map(|id| Command::DeleteTopic { id: Uuid::from_u128(id) });
            assert_eq!(world.commands, deleted);
            assert_eq!(answer.responses[1].error_message.as_ref().is_some_and(|m| !m.is_empty()), version >= 5);
        }
    }

    /// A topic made anew under the old name would be deleted in place of the old one.
    #[test]
    fn version_6_deletes_by_id() {
        let topics = vec![by(None, 0xa1), by(None, 0xbb), by(None, 0), by(Some("dark"), 0xa3)];
        let mut world = deleting();
        let answer: DeleteTopicsResponse = world.call(handle, 6, &DeleteTopicsRequest::default().with_topics(topics));
        let expected = [(Some("t"), 0xa1, 0), (None, 0xbb, 100), (None, 0, 42), (Some("dark"), 0xa3, 42)];
        assert_eq!(told(&answer), expected);
        assert_eq!(world.commands.len(), 1);
    }

    /// Which of two answers would be believed?
    #[test]
    fn a_topic_that_is_named_twice_is_not_deleted() {
        for version in 1..=6 {
            let answer: DeleteTopicsResponse =
                World::new().call(handle, version, &question(version, &["t", "t", "nope", "nope"]));
            assert_eq!(told(&answer), [(Some("t"), 0, 42), (Some("nope"), 0, 42)]);
        }
        let topics = vec![by(None, 0xa1), by(Some("t"), 0)];
        let answer: DeleteTopicsResponse =
            World::new().call(handle, 6, &DeleteTopicsRequest::default().with_topics(topics));
        assert_eq!(told(&answer), [(None, 0xa1, 42), (Some("t"), 0, 42)]);
    }

    /// A topic that went meanwhile is unknown by the name or id that was asked for.
    #[test]
    fn a_topic_that_is_gone_by_the_decision_is_unknown() {
        let gone = || {
            let mut world = World::new();
            world.decide = Box::new(|_| Err(Refused::UnknownTopicId));
            world
        };
        let answer: DeleteTopicsResponse = gone().call(handle, 1, &question(1, &["t"]));
        assert_eq!(told(&answer), [(Some("t"), 0, 3)]);
        let answer: DeleteTopicsResponse =
            gone().call(handle, 6, &DeleteTopicsRequest::default().with_topics(vec![by(None, 0xa1)]));
        assert_eq!(answer.responses[0].error_code, 100);
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 1..=6, |version| encoded(&question(version, &["t", "nope"]), version));
    }
}
