//! InitProducerId: a number for an idempotent producer, never given out twice.

use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::Code;
use camus_engine::types::ProducerId;
use camus_meta::{Command, Done, ProducerIdRange};
use kafka_protocol::messages::InitProducerIdResponse;

/// Ids that a core takes from the meta shard at a time. What a restart leaves of a block is never given out.
pub const PRODUCER_ID_BLOCK: u32 = 1000;

/// Blocks that a core holds at most: more come only from requests that ran dry at the same time.
const BLOCKS_MAX: usize = 8;

/// The producer ids that one core may give out. Lives on that core, filled by the meta shard.
#[derive(Debug, Default)]
pub struct ProducerIds {
    /// What is left of each block; none is empty.
    blocks: Vec<ProducerIdRange>,
}

impl ProducerIds {
    /// The next id; `None` when a block must be asked for.
    pub fn take(&mut self) -> Option<ProducerId> {
        let block = self.blocks.last_mut()?;
        let id = block.first();
        block.first += 1;
        block.count -= 1;
        if block.count == 0 {
            self.blocks.pop();
        }
        Some(id)
    }

    /// Another block to give out. One too many is dropped: its ids are lost, which harms nobody.
    pub fn add(&mut self, block: ProducerIdRange) {
        if block.count > 0 && self.blocks.len() < BLOCKS_MAX {
            self.blocks.push(block);
        }
    }
}

struct Asked {
    transactional: bool,
    producer: i64,
    epoch: i16,
}

fn read(request: &Request) -> Result<Asked, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 2);
    let transactional = r.nullable_string()?.is_some();
    let _transaction_timeout_ms = r.i32()?;
    let (producer, epoch) = if request.version >= 3 { (r.i64()?, r.i16()?) } else { (-1, -1) };
    r.tags()?;
    Ok(Asked { transactional, producer, epoch })
}

/// InitProducerId 0-5, flexible from 2.
pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let asked = match read(request) {
        Ok(asked) => asked,
        Err(fault) => return fault.into(),
    };
    let version = request.version;
    // A pair of which one half is missing names no producer. There is nothing yet that serves a transactional id.
    if asked.transactional || (asked.producer < 0) != (asked.epoch < 0) {
        return refuse(version, Code::InvalidRequest);
    }
    if let Some(id) = ctx.producer_ids.take() {
        return give(version, id);
    }
    Outcome::Meta(
        vec![Command::TakeProducerIds { count: PRODUCER_ID_BLOCK }],
        Box::new(move |ctx, decided| match decided.into_iter().next() {
            Some(Ok(Done::ProducerIds { first: mut block })) => {
                // The first is ours even if the core has blocks enough by now.
                let id = block.first();
                block.first += 1;
                block.count = block.count.checked_sub(1).expect("a block that was asked for is not empty");
                ctx.producer_ids.add(block);
                give(version, id)
            }
            // Retriable in every client, and what a Kafka broker says while it waits for its block.
            Some(Err(_)) => refuse(version, Code::CoordinatorLoadInProgress),
            other => unreachable!("TakeProducerIds is decided as ProducerIds, not as {other:?}"),
        }),
    )
}

fn give(version: i16, id: ProducerId) -> Outcome {
    respond(&InitProducerIdResponse::default().with_producer_id(id.0.into()).with_producer_epoch(0), version)
}

fn refuse(version: i16, error: Code) -> Outcome {
    let answer = InitProducerIdResponse::default().with_error_code(error.wire());
    respond(&answer.with_producer_id((-1).into()).with_producer_epoch(-1), version)
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use camus_meta::Refused;
    use kafka_protocol::messages::{InitProducerIdRequest, TransactionalId};
    use kafka_protocol::protocol::StrBytes;

    fn question() -> InitProducerIdRequest {
        InitProducerIdRequest::default()
            .with_transactional_id(None)
            .with_producer_id((-1).into())
            .with_producer_epoch(-1)
    }

    fn ask(world: &mut World, version: i16, question: &InitProducerIdRequest) -> (i16, i64, i16) {
        let answer: InitProducerIdResponse = world.call(handle, version, question);
        (answer.error_code, answer.producer_id.0, answer.producer_epoch)
    }

    /// Two producers with one id would take each other's records for retries, and lose them.
    #[test]
    fn each_id_is_given_out_once_over_all_versions_and_blocks() {
        let mut world = World::new();
        let mut next = 4000;
        world.decide = Box::new(move |command| {
            assert_eq!(command, Command::TakeProducerIds { count: PRODUCER_ID_BLOCK });
            next += 1000;
            Ok(Done::ProducerIds { first: ProducerIdRange { first: next - 1000, count: 1000 } })
        });
        for expected in 4000..6500 {
            let version = (expected % 6) as i16;
            assert_eq!(ask(&mut world, version, &question()), (0, expected, 0));
        }
        assert_eq!(world.commands.len(), 3);
    }

    /// Blocks that come together are all used up to the last id; what is too much is not kept for ever.
    #[test]
    fn blocks_that_cross_on_their_way_do_not_mix() {
        let mut ids = ProducerIds::default();
        for n in 0..20 {
            ids.add(ProducerIdRange { first: n * 10, count: 2 });
        }
        ids.add(ProducerIdRange { first: 999, count: 0 });
        let mut given: Vec<i64> = std::iter::from_fn(|| ids.take()).map(|id| id.0).collect();
        given.sort_unstable();
        let expected: Vec<i64> = (0..BLOCKS_MAX as i64).flat_map(|n| [n * 10, n * 10 + 1]).collect();
        assert_eq!(given, expected);
    }

    /// A producer would give up though the meta shard is back in a moment.
    #[test]
    fn without_a_block_the_code_is_retriable() {
        for version in 0..=5 {
            let mut world = World::new();
            world.decide = Box::new(|_| Err(Refused::Unavailable { why: "no leader".into() }));
            assert_eq!(ask(&mut world, version, &question()), (14, -1, -1));
        }
    }

    /// A transactional producer would believe itself protected.
    #[test]
    fn transactional_ids_and_half_a_pair_are_refused() {
        for version in 0..=5 {
            for id in ["", "txn"] {
                let id = Some(TransactionalId(StrBytes::from_static_str(id)));
                assert_eq!(ask(&mut World::new(), version, &question().with_transactional_id(id)), (42, -1, -1));
            }
        }
        assert_eq!(ask(&mut World::new(), 3, &question().with_producer_id(7.into())), (42, -1, -1));
        assert_eq!(ask(&mut World::new(), 5, &question().with_producer_epoch(7)), (42, -1, -1));
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 0..=5, |version| encoded(&question(), version));
    }
}
