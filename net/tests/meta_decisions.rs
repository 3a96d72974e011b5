//! When the host of the meta shard answers (docs/adr/0007): the simulator's clients are too slow to see it.
#![allow(clippy::unwrap_used, reason = "a test may")]

use camus_engine::shard::api::Ticket;
use camus_engine::shard::core::{MetaCommitted, RecoveredMeta};
use camus_engine::types::{CoreId, Index, Mono, ShardId, Term};
use camus_meta::Command;
use camus_meta::groups::GroupSettings;
use camus_net::meta_host::MetaHost;
use std::collections::BTreeMap;
use uuid::Uuid;

fn committed(index: u64, ticket: Option<Ticket>, command: &Command) -> MetaCommitted {
    MetaCommitted { index: Index(index), ticket, command: command.encode().into() }
}

/// Lost if it fails: a client is told that its topic exists, and the next core that it asks knows nothing of it.
#[test]
fn a_decision_is_answered_when_every_core_has_seen_it() {
    let shards = (1..=4).map(ShardId).collect();
    let mut host =
        MetaHost::recover("sim".to_owned(), shards, 2, 1 << 20, GroupSettings::default(), RecoveredMeta::default())
            .unwrap();
    host.committed(committed(2, None, &Command::Bootstrap { cluster_id: "sim".to_owned() }));
    assert!(host.publish().is_none(), "nobody is told of what may still be applied");
    host.lead(Mono(0), Term(1));
    let first = host.publish().unwrap().version;
    let ticket = |request| Ticket { core: CoreId(1), request, part: 0 };
    let topic = Command::CreateTopic {
        name: "t".to_owned(),
        id: Uuid::from_u128(7),
        partitions: 3,
        replication_factor: 1,
        configs: BTreeMap::new(),
    };
    host.committed(committed(3, Some(ticket(1)), &topic));
    let image = host.publish().unwrap();
    assert!(image.version > first && image.topics().count() == 1);
    assert!(host.publish().is_none(), "an image is published once");
    host.seen(CoreId(0), image.version);
    host.seen(CoreId(1), first);
    assert!(host.next_answer().is_none(), "core 1 does not know the topic yet");
    // what changes nothing waits behind it all the same: answers are in the order of the log
    host.committed(committed(4, Some(ticket(2)), &topic));
    assert!(host.next_answer().is_none());
    host.seen(CoreId(1), image.version);
    let (version, of, decided) = host.next_answer().unwrap();
    assert!(version == image.version && of == ticket(1) && decided.is_ok());
    let (_, of, decided) = host.next_answer().unwrap();
    assert!(of == ticket(2) && decided.is_err(), "the topic exists");
    assert!(host.next_answer().is_none());
}

/// Lost if it fails: a client of a broker that does not lead finds no topic there; or it is told twice what became of
/// its command, the second time in the place of another answer.
#[test]
fn a_broker_that_does_not_lead_has_the_image_and_answers_nobody_whom_it_does_not_know() {
    let shards = (1..=4).map(ShardId).collect();
    let mut host =
        MetaHost::recover("sim".to_owned(), shards, 1, 1 << 20, GroupSettings::default(), RecoveredMeta::default())
            .unwrap();
    host.set_replicated();
    host.committed(committed(2, None, &Command::Bootstrap { cluster_id: "sim".to_owned() }));
    let image = host.publish().expect("every broker tells its cores");
    host.seen(CoreId(0), image.version);
    assert_eq!(host.seen_everywhere(), image.version);
    let ticket = Ticket { core: CoreId(0), request: 1, part: 0 };
    host.committed(committed(3, Some(ticket), &Command::TakeProducerIds { count: 5 }));
    assert!(host.next_answer().is_none(), "it was told when the leadership was lost");
    host.lost(ticket);
    assert!(host.next_answer().is_none());
}
