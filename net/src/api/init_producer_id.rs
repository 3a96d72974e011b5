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
