//! ListPartitionReassignments: which partitions are on their way to other brokers. None ever is: each broker of the
//! cluster has a copy of everything.

use super::messages;
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use kafka_protocol::messages::list_partition_reassignments_response::ListPartitionReassignmentsResponse;

fn read(request: &Request) -> Result<(), Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 0);
    let _timeout_ms = r.i32()?;
    let _topics = messages::nullable_structs(&mut r, 3, |r| Ok((r.string()?, r.array(4, Reader::i32)?)))?;
    r.tags()
}

/// ListPartitionReassignments 0, flexible from 0. Partitions that do not exist are left out, as in Kafka.
pub fn handle(_: &mut Ctx<'_>, request: &Request) -> Outcome {
    match read(request) {
        Ok(()) => respond(&ListPartitionReassignmentsResponse::default().with_error_message(None), request.version),
        Err(fault) => fault.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use kafka_protocol::messages::TopicName;
    use kafka_protocol::messages::list_partition_reassignments_request::{
        ListPartitionReassignmentsRequest, ListPartitionReassignmentsTopics,
    };
    use kafka_protocol::protocol::StrBytes;

    fn question(names: Option<&[&'static str]>) -> ListPartitionReassignmentsRequest {
        let one = |name: &&'static str| {
            let name = TopicName(StrBytes::from_static_str(name));
            ListPartitionReassignmentsTopics::default().with_name(name).with_partition_indexes(vec![0, 9])
        };
        ListPartitionReassignmentsRequest::default().with_topics(names.map(|names| names.iter().map(one).collect()))
    }

    /// A tool that waits for reassignments to end would wait for ever.
    #[test]
    fn nothing_is_ever_on_its_way() {
        for names in [None, Some(&["t", "nope"][..])] {
            let answer: ListPartitionReassignmentsResponse = World::new().call(handle, 0, &question(names));
            assert_eq!((answer.error_code, answer.error_message, answer.topics.len()), (0, None, 0));
        }
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 0..=0, |version| encoded(&question(Some(&["t", "nope"])), version));
    }
}
