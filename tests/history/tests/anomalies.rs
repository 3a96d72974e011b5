//! Histories that are wrong by construction, one for each anomaly, and lawful ones in which nothing may be found.
#![allow(clippy::unwrap_used, reason = "a test may")]

use camus_history::history::{
    Assigned, Assignor, By, CommitOffset, EpochEnd, EpochStart, FetchOffset, Final, ListOffset, Lost, Outcome, Produce,
    ProduceOutcome, Read, Revoked, Stays, Trim, Which, from_lines, to_lines,
};
use camus_history::{ANOMALIES_MAX, Anomaly, Event, Op, Partition, check};

const GROUP: &str = "g";

fn p() -> Partition {
    Partition::new("t", 0)
}

/// A history under construction: each event begins after the one before it has ended.
#[derive(Default)]
struct Story {
    events: Vec<Event>,
    now_ns: u64,
}

fn acked(base_offset: i64) -> ProduceOutcome {
    ProduceOutcome::Acked { base_offset }
}

impl Story {
    fn event(mut self, process: u32, op: Op) -> Story {
        self.now_ns += 10;
        self.events.push(Event { process, invoked_ns: self.now_ns, completed_ns: self.now_ns + 5, op });
        self
    }

    /// Producers below 10 are idempotent.
    fn produce(self, producer: u32, first_number: u64, values: &[u64], outcome: ProduceOutcome) -> Story {
        let (partition, values, idempotent) = (p(), values.to_vec(), producer < 10);
        self.event(producer, Op::Produce(Produce { partition, producer, idempotent, first_number, values, outcome }))
    }

    fn read_as(self, process: u32, records: &[(i64, u64)], high_watermark: i64, log_start: i64) -> Story {
        let from_offset = records.first().map_or(high_watermark, |(offset, _)| *offset);
        let records = records.to_vec();
        let read = Read { partition: p(), from_offset, records, high_watermark, log_start };
        self.event(process, Op::Read(read))
    }

    fn read(self, records: &[(i64, u64)]) -> Story {
        let end = records.last().map_or(0, |(offset, _)| offset + 1);
        self.read_as(20, records, end, 0)
    }

    fn list(self, which: Which, offset: i64) -> Story {
        self.event(20, Op::ListOffset(ListOffset { partition: p(), which, offset }))
    }

    fn commit(self, offset: i64, outcome: Outcome) -> Story {
        let group = GROUP.to_owned();
        self.event(30, Op::CommitOffset(CommitOffset { group, partition: p(), offset, outcome, by: None }))
    }

    /// As a member of the group.
    fn commit_as(self, member: &str, generation: i32, offset: i64, outcome: Outcome) -> Story {
        let (group, by) = (GROUP.to_owned(), Some(By { member: member.to_owned(), generation }));
        self.event(30, Op::CommitOffset(CommitOffset { group, partition: p(), offset, outcome, by }))
    }

    /// The partition, where it has it; of a generation of this leader, or where there is none, by the broker.
    fn assigned(self, member: &str, generation: i32, leader: Option<&str>, has: bool) -> Story {
        let assignor = match leader {
            Some(leader) => Assignor::Leader(leader.to_owned()),
            None => Assignor::Coordinator("1".to_owned()),
        };
        let (group, member) = (GROUP.to_owned(), member.to_owned());
        let partitions = if has { vec![p()] } else { vec![] };
        self.event(60, Op::Assigned(Assigned { group, member, generation, assignor, partitions }))
    }

    fn stays(self, member: &str, generation: i32) -> Story {
        let (group, member) = (GROUP.to_owned(), member.to_owned());
        self.event(60, Op::Stays(Stays { group, member, generation }))
    }

    fn revoked(self, member: &str) -> Story {
        let (group, member) = (GROUP.to_owned(), member.to_owned());
        self.event(60, Op::Revoked(Revoked { group, member, partitions: vec![p()] }))
    }

    fn lost(self, member: &str, generation: i32, fenced: bool) -> Story {
        let (group, member) = (GROUP.to_owned(), member.to_owned());
        self.event(60, Op::Lost(Lost { group, member, generation, fenced }))
    }

    fn fetch(self, offset: i64) -> Story {
        self.event(30, Op::FetchOffset(FetchOffset { group: GROUP.to_owned(), partition: p(), offset }))
    }

    /// Leader epoch 3 wrote what lies below offset 4, leader epoch 5 what lies there and behind.
    fn epochs(self) -> Story {
        let start = |epoch, offset| Op::EpochStart(EpochStart { partition: p(), epoch, offset });
        self.event(20, start(3, 0)).event(20, start(5, 4)).event(21, start(5, 6))
    }

    fn epoch_end(self, epoch: i32, known_to: i64, end: i64) -> Story {
        self.event(20, Op::EpochEnd(EpochEnd { partition: p(), epoch, known_to, end }))
    }

    fn trim(self, offset: i64, outcome: Outcome) -> Story {
        self.event(40, Op::Trim(Trim { partition: p(), offset, outcome }))
    }

    fn end_at(self, log_start: i64, values: &[u64]) -> Story {
        let records = (log_start..).zip(values.iter().copied()).collect();
        self.event(50, Op::Final(Final { partition: p(), log_start, records }))
    }

    fn end(self, values: &[u64]) -> Story {
        self.end_at(0, values)
    }

    /// Exactly this anomaly, however often.
    fn shows(self, name: &str) -> Vec<Anomaly> {
        let found = check(&self.events);
        assert!(!found.is_empty(), "{name} is not found");
        assert!(found.iter().all(|anomaly| anomaly.name() == name), "{name}: {found:#?}");
        found
    }

    fn shows_nothing(self) {
        assert_eq!(check(&self.events), []);
    }
}

fn story() -> Story {
    Story::default()
}

/// Producer 1 is idempotent and sends 1, 2, 3; producer 11 is not and sends 11, 12.
fn sent() -> Story {
    story()
        .produce(1, 0, &[1], acked(0))
        .produce(11, 0, &[11], acked(1))
        .produce(1, 1, &[2], acked(2))
        .produce(11, 1, &[12], acked(3))
        .produce(1, 2, &[3], ProduceOutcome::Info)
}

// ------------------------------------------------------------------------------------------------- what is wrong

/// Lost if it fails: the first promise could be broken and nobody would say so.
#[test]
fn an_acknowledged_record_that_is_not_there_is_named() {
    let found = sent().end(&[1, 11, 2]).shows("acknowledged-lost");
    assert_eq!(found, [Anomaly::AcknowledgedLost { partition: p(), value: 12, offset: 3 }]);
    assert_eq!(found[0].to_string(), "acknowledged-lost: t/0: value 12 was acknowledged at offset 3 and is not there");
    sent().end(&[]).shows("acknowledged-lost");
    story().produce(1, 0, &[1], acked(-1)).end(&[]).shows("acknowledged-lost");
}

/// Lost if it fails: a log that lets its front go unasked.
#[test]
fn what_nobody_asked_to_delete_is_lost_below_the_log_start_too() {
    let found = sent().end_at(2, &[2, 12]).shows("acknowledged-lost");
    assert_eq!(found.len(), 2);
    sent().trim(1, Outcome::Acked).end_at(2, &[2, 12]).shows("acknowledged-lost");
    sent().trim(2, Outcome::Failed).end_at(2, &[2, 12]).shows("acknowledged-lost");
}

#[test]
fn two_values_at_one_offset_are_named() {
    sent().read(&[(0, 1)]).read(&[(0, 11)]).shows("inconsistent-offsets");
    sent().read(&[(1, 2)]).end(&[1, 11, 2, 12]).shows("inconsistent-offsets");
    // where the log ended up is not known, only what was said of it
    sent().read(&[(1, 12)]).shows("inconsistent-offsets");
}

#[test]
fn a_record_that_is_elsewhere_than_acknowledged_is_named() {
    let found = sent().end(&[1, 11, 2, 3, 12]).shows("moved");
    assert_eq!(found, [Anomaly::Moved { partition: p(), value: 12, acked: 3, found: 4 }]);
}

#[test]
fn a_record_that_was_refused_for_good_and_is_there_is_named() {
    let refused = || sent().produce(11, 2, &[13], ProduceOutcome::Failed);
    refused().end(&[1, 11, 2, 12, 13]).shows("failed-but-there");
    refused().read(&[(4, 13)]).shows("failed-but-there");
}

#[test]
fn a_record_that_nobody_sent_there_is_named() {
    sent().end(&[1, 11, 2, 12, 99]).shows("invented");
    sent().read(&[(4, 99)]).shows("invented");
    let elsewhere = Produce {
        partition: Partition::new("t", 1),
        producer: 11,
        idempotent: false,
        first_number: 0,
        values: vec![21],
        outcome: ProduceOutcome::Info,
    };
    sent().event(11, Op::Produce(elsewhere)).end(&[1, 11, 2, 12, 21]).shows("invented");
}

#[test]
fn records_out_of_their_producers_order_are_named() {
    let unacked = |producer| {
        let info = ProduceOutcome::Info;
        story().produce(producer, 0, &[1], info).produce(producer, 1, &[2], info).produce(producer, 2, &[3], info)
    };
    let found = unacked(1).end(&[1, 3]).shows("order");
    assert_eq!(found, [Anomaly::Order { partition: p(), producer: 1, offset: 1, number: 2, after: Some(0) }]);
    unacked(1).end(&[2]).shows("order");
    unacked(1).end(&[2, 1]).shows("order");
    story().produce(11, 0, &[1], acked(1)).produce(11, 1, &[2], acked(0)).end(&[2, 1]).shows("order");
}

#[test]
fn an_idempotent_record_that_is_there_twice_is_named() {
    let found = sent().end(&[1, 11, 2, 12, 2]).shows("duplicate");
    assert_eq!(found, [Anomaly::Duplicate { partition: p(), value: 2, offsets: (2, 4) }]);
}

#[test]
fn a_record_that_was_read_and_is_not_there_is_named() {
    let read = |story: Story| {
        let read = Read { partition: p(), from_offset: 4, records: vec![(4, 3)], high_watermark: 5, log_start: -1 };
        story.event(21, Op::Read(read))
    };
    let found = check(&read(sent()).end(&[1, 11, 2, 12]).events);
    let names: Vec<&str> = found.iter().map(Anomaly::name).collect();
    // a log that lost what was read ends below the high watermark that the reader saw
    assert_eq!(names, ["read-and-lost", "high-watermark-back"]);
    // asked before it ended, the end says nothing about the watermark
    let mut story = read(sent()).end(&[1, 11, 2, 12]);
    story.events.last_mut().expect("the end").invoked_ns = 0;
    story.shows("read-and-lost");
}

#[test]
fn a_record_above_the_high_watermark_is_named() {
    sent().read_as(20, &[(0, 1), (1, 11)], 1, 0).shows("read-above-high-watermark");
}

#[test]
fn offsets_that_are_not_contiguous_are_named() {
    let gap = |records: &[(i64, u64)]| {
        let records = records.to_vec();
        story()
            .produce(1, 0, &[1], acked(-1))
            .event(50, Op::Final(Final { partition: p(), log_start: 0, records }))
            .shows("gap")
    };
    assert_eq!(gap(&[(1, 1)]), [Anomaly::Gap { partition: p(), after: -1, found: 1 }]);
    sent().read(&[(0, 1), (2, 2)]).shows("gap");
    let read = Read { partition: p(), from_offset: 0, records: vec![(1, 11)], high_watermark: 2, log_start: 0 };
    sent().event(20, Op::Read(read)).shows("gap");
}

#[test]
fn a_high_watermark_that_goes_back_is_named() {
    let found = sent().read_as(20, &[], 4, 0).read_as(20, &[], 3, 0).shows("high-watermark-back");
    let [Anomaly::HighWatermarkBack { process: 20, before: 4, after: 3, .. }] = found[..] else { panic!("{found:?}") };
    sent().list(Which::Latest, 4).read_as(20, &[], 3, 0).shows("high-watermark-back");
    story().read_as(20, &[], 4, 0).end(&[]).shows("high-watermark-back");
}

#[test]
fn a_log_start_that_goes_back_is_named() {
    sent().read_as(20, &[], 4, 2).read_as(20, &[], 4, 1).shows("log-start-back");
    sent().list(Which::Earliest, 2).list(Which::Earliest, 0).shows("log-start-back");
    let trimmed = story().produce(1, 0, &[1], acked(0)).trim(1, Outcome::Acked);
    trimmed.end_at(0, &[1]).shows("log-start-back");
}

#[test]
fn a_committed_offset_that_goes_back_is_named() {
    let acked = Outcome::Acked;
    let found = story().commit(5, acked).commit(7, acked).fetch(5).shows("committed-offset-back");
    let [Anomaly::CommittedOffsetBack { before: 7, after: 5, .. }] = found[..] else { panic!("{found:?}") };
    story().commit(5, acked).fetch(-1).shows("committed-offset-back");
    // what was seen once is there, though its commit was never answered
    story().commit(5, acked).commit(7, Outcome::Info).fetch(7).fetch(5).shows("committed-offset-back");
}

#[test]
fn a_committed_offset_that_nobody_committed_is_named() {
    story().commit(5, Outcome::Acked).fetch(6).shows("committed-offset-invented");
    story().commit(5, Outcome::Failed).fetch(5).shows("committed-offset-invented");
}

/// Lost if it fails: two consumers read the same partition and commit over each other, and nobody says so.
#[test]
fn a_partition_that_two_members_of_a_generation_have_is_named() {
    let both = |leader: &str| story().assigned("a", 3, Some("a"), true).assigned("b", 3, Some(leader), true);
    let found = both("a").shows("owned-twice");
    let [Anomaly::OwnedTwice { generation: 3, members, .. }] = &found[..] else { panic!("{found:?}") };
    assert_eq!(members, &("a".to_owned(), "b".to_owned()));
    // generations of which the numbers are the same, and nothing else
    both("b").shows_nothing();
}

/// Lost if it fails: the same where the broker assigns: a partition is given to its new owner too early.
#[test]
fn a_partition_that_two_members_have_at_one_moment_is_named() {
    let both = || story().assigned("a", 3, None, true).assigned("b", 4, None, true);
    let found = both().stays("a", 3).stays("b", 4).shows("owned-twice");
    let [Anomaly::OwnedTwice { generation: 4, members, .. }] = &found[..] else { panic!("{found:?}") };
    assert_eq!(members, &("a".to_owned(), "b".to_owned()));
    both().stays("b", 4).stays("a", 3).revoked("a").shows("owned-twice");
    both().stays("a", 4).lost("a", 4, true).stays("b", 4).shows("owned-twice");
}

/// Lost if it fails: a consumer that was thrown out moves the group's offsets under whoever reads now.
#[test]
fn a_commit_of_a_member_that_was_fenced_is_named() {
    let (acked, info) = (Outcome::Acked, Outcome::Info);
    let fenced = || story().assigned("a", 3, None, true).lost("a", 3, true);
    let found = fenced().commit_as("a", 3, 5, acked).shows("fenced-commit");
    let [Anomaly::FencedCommit { generation: 3, offset: 5, .. }] = found[..] else { panic!("{found:?}") };
    // an older generation than the one that it is in
    let moved = || story().assigned("a", 3, None, true).assigned("a", 4, None, false);
    moved().commit_as("a", 3, 5, acked).shows("fenced-commit");
    moved().commit_as("a", 4, 5, acked).commit_as("a", 3, 5, info).shows_nothing();
    fenced().commit_as("a", 3, 5, Outcome::Failed).commit_as("a", 3, 5, info).shows_nothing();
}

/// Lost if it fails: a consumer reads everything again, or goes on in a log that was cut, and nobody says so.
#[test]
fn an_epoch_that_ends_elsewhere_is_named() {
    let found = story().epochs().epoch_end(3, 4, 0).shows("epoch-end");
    let [Anomaly::EpochEnd { epoch: 3, known: 4, end: 0, .. }] = found[..] else { panic!("{found:?}") };
    let found = story().epoch_end(3, 2, 5).epochs().shows("epoch-end");
    let [Anomaly::EpochEnd { epoch: 3, known: 4, end: 5, .. }] = found[..] else { panic!("{found:?}") };
    story().epochs().epoch_end(4, 4, 6).shows("epoch-end");
    story().epochs().epoch_end(5, 9, 8).trim(9, Outcome::Acked).shows("epoch-end");
}

#[test]
fn what_is_named_is_bounded() {
    let values: Vec<u64> = (0..1_000).collect();
    assert_eq!(check(&story().produce(1, 0, &values, acked(0)).end(&[]).events).len(), ANOMALIES_MAX);
}

// ------------------------------------------------------------------------------------------------- what is lawful

/// Lost if it fails: a checker that cries wolf is switched off.
#[test]
fn a_good_history_is_lawful() {
    sent().read(&[(0, 1), (1, 11)]).read(&[(1, 11), (2, 2)]).end(&[1, 11, 2, 12, 3]).shows_nothing();
    // the last one of the idempotent producer was never answered
    sent().end(&[1, 11, 2, 12]).shows_nothing();
    // nobody looked in the end
    sent().read(&[(0, 1)]).shows_nothing();
}

#[test]
fn unanswered_records_of_plain_producers_may_be_nowhere_or_anywhere_or_twice() {
    let unanswered = || {
        story().produce(11, 0, &[1], ProduceOutcome::Info).produce(11, 1, &[2], acked(0)).produce(
            11,
            2,
            &[3],
            ProduceOutcome::Info,
        )
    };
    unanswered().end(&[2]).shows_nothing();
    unanswered().end(&[2, 3, 1]).shows_nothing();
    unanswered().end(&[2, 1, 1, 3]).shows_nothing();
    // sent again by the client itself, behind what it sent since
    unanswered().produce(11, 0, &[1], acked(1)).end(&[2, 1]).shows_nothing();
    story().produce(11, 0, &[1], ProduceOutcome::Info).produce(11, 0, &[1], acked(1)).end(&[1, 1]).shows_nothing();
}

#[test]
fn what_was_refused_for_good_leaves_no_hole() {
    let refused = story().produce(1, 0, &[1], ProduceOutcome::Failed).produce(1, 1, &[2], acked(0));
    refused.produce(1, 2, &[3], ProduceOutcome::Failed).produce(1, 3, &[4], acked(1)).end(&[2, 4]).shows_nothing();
}

#[test]
fn deleted_records_may_be_missing() {
    sent().trim(2, Outcome::Acked).end_at(2, &[2, 12, 3]).shows_nothing();
    sent().trim(2, Outcome::Info).read(&[(0, 1), (1, 11)]).end_at(2, &[2, 12]).shows_nothing();
    sent().trim(2, Outcome::Info).end(&[1, 11, 2, 12]).shows_nothing();
    sent().trim(-1, Outcome::Info).end_at(4, &[]).shows_nothing();
    // a trim to below the log start changes nothing
    sent().trim(2, Outcome::Acked).trim(1, Outcome::Acked).end_at(2, &[2, 12]).shows_nothing();
}

#[test]
fn marks_of_other_processes_and_of_overlapping_questions_are_not_compared() {
    sent().read_as(20, &[], 4, 1).read_as(21, &[], 3, 0).shows_nothing();
    let mut story = sent().read_as(20, &[], 4, 0).read_as(20, &[], 3, 0);
    let asked_ns = story.events[story.events.len() - 2].invoked_ns;
    story.events.last_mut().expect("a read").invoked_ns = asked_ns;
    story.shows_nothing();
}

#[test]
fn a_commit_without_an_answer_may_be_seen_or_not() {
    let acked = Outcome::Acked;
    story().fetch(-1).commit(5, acked).fetch(5).shows_nothing();
    story().commit(5, acked).commit(7, Outcome::Info).fetch(5).fetch(7).fetch(7).shows_nothing();
    story().commit(7, Outcome::Info).commit(5, acked).fetch(7).shows_nothing();
    // a group may go back
    story().commit(7, acked).commit(5, acked).fetch(5).shows_nothing();
}

/// Lost if it fails: each group that works is called broken.
#[test]
fn a_partition_goes_from_one_member_to_the_next() {
    // given up, and given on
    let one = || story().assigned("a", 3, None, true).stays("a", 3);
    one().revoked("a").assigned("b", 4, None, true).stays("a", 4).stays("b", 4).shows_nothing();
    one().lost("a", 3, false).assigned("b", 4, None, true).stays("b", 4).shows_nothing();
    // it is out, and has not heard of it
    one().assigned("b", 4, None, true).stays("b", 4).lost("a", 3, true).shows_nothing();
    // nothing more is heard of it
    one().assigned("b", 4, None, true).stays("b", 4).shows_nothing();
    // in the classic protocol one of an older generation reads on until it hears of the next
    let one = || story().assigned("a", 3, Some("a"), true).stays("a", 3);
    one().assigned("b", 4, Some("b"), true).stays("b", 4).stays("a", 3).shows_nothing();
    // the same one again, and by two coordinators that know nothing of each other
    one().assigned("a", 3, Some("a"), true).assigned("a", 4, Some("a"), true).shows_nothing();
    let mut story = story().assigned("a", 3, None, true).assigned("b", 9, None, true).stays("a", 3).stays("b", 9);
    let Op::Assigned(second) = &mut story.events[1].op else { unreachable!("it is the second") };
    second.assignor = Assignor::Coordinator("2".to_owned());
    story.shows_nothing();
}

#[test]
fn a_member_commits_in_its_generation_and_what_was_under_way_may_count() {
    let acked = Outcome::Acked;
    let one = || story().assigned("a", 3, None, true).commit_as("a", 3, 5, acked);
    one().assigned("a", 4, None, true).commit_as("a", 4, 7, acked).lost("a", 4, false).shows_nothing();
    one().lost("a", 3, true).assigned("a", 9, None, true).commit_as("a", 9, 7, acked).shows_nothing();
    let mut story = story().assigned("a", 3, None, true).lost("a", 3, true).commit_as("a", 3, 5, acked);
    story.events[2].invoked_ns = story.events[1].invoked_ns;
    story.shows_nothing();
}

#[test]
fn an_epoch_ends_where_the_next_one_begins_or_at_the_end_of_the_log_or_at_its_start() {
    story().epochs().epoch_end(3, 4, 4).epoch_end(4, 4, 4).epoch_end(5, 6, 9).shows_nothing();
    // asked when nothing of a later epoch was there
    story().epoch_end(3, 2, 3).epochs().shows_nothing();
    // all of it, and some of what came behind it, is deleted
    story().epochs().trim(7, Outcome::Info).epoch_end(3, 4, 7).shows_nothing();
}

// ------------------------------------------------------------------------------------------------- the format

/// Lost if it fails: what tests in other languages write.
#[test]
fn the_format_is_what_the_page_says() {
    let lines = concat!(
        r#"{"process":1,"invoked_ns":10,"completed_ns":20,"op":"produce","partition":{"topic":"t","number":0},"#,
        r#""producer":1,"idempotent":true,"first_number":0,"values":[7,8],"outcome":{"acked":{"base_offset":0}}}"#,
        "\n\n",
        r#"{"process":2,"invoked_ns":30,"completed_ns":40,"op":"read","partition":{"topic":"t","number":0},"#,
        r#""from_offset":0,"records":[[0,7],[1,8]],"high_watermark":2,"log_start":0}"#,
        "\n",
        r#"{"process":2,"invoked_ns":50,"completed_ns":60,"op":"list-offset","partition":{"topic":"t","number":0},"#,
        r#""which":"latest","offset":2}"#,
        "\n",
        r#"{"process":3,"invoked_ns":50,"completed_ns":60,"op":"commit-offset","group":"g","#,
        r#""partition":{"topic":"t","number":0},"offset":2,"outcome":"info"}"#,
        "\n",
        r#"{"process":2,"invoked_ns":70,"completed_ns":80,"op":"epoch-end","partition":{"topic":"t","number":0},"#,
        r#""epoch":3,"known_to":2,"end":2}"#,
        "\n",
        r#"{"process":3,"invoked_ns":70,"completed_ns":80,"op":"commit-offset","group":"g","#,
        r#""partition":{"topic":"t","number":0},"offset":2,"outcome":"acked","by":{"member":"m","generation":3}}"#,
        "\n",
        r#"{"process":3,"invoked_ns":70,"completed_ns":80,"op":"assigned","group":"g","member":"m","generation":3,"#,
        r#""assignor":{"leader":"m"},"partitions":[{"topic":"t","number":0}]}"#,
        "\n",
        r#"{"process":3,"invoked_ns":70,"completed_ns":80,"op":"assigned","group":"g","member":"m","generation":4,"#,
        r#""assignor":{"coordinator":"1"},"partitions":[]}"#,
        "\n",
        r#"{"process":3,"invoked_ns":70,"completed_ns":80,"op":"stays","group":"g","member":"m","generation":4}"#,
        "\n",
        r#"{"process":3,"invoked_ns":70,"completed_ns":80,"op":"revoked","group":"g","member":"m","#,
        r#""partitions":[{"topic":"t","number":0}]}"#,
        "\n",
        r#"{"process":3,"invoked_ns":70,"completed_ns":80,"op":"lost","group":"g","member":"m","generation":4,"#,
        r#""fenced":true}"#,
        "\n",
    );
    let history = from_lines(lines).unwrap();
    assert_eq!(history.len(), 11);
    assert_eq!(from_lines(&to_lines(&history)), Ok(history.clone()));
    assert_eq!(to_lines(&history), lines.replace("\n\n", "\n"));
    let error = from_lines("\n{\"process\":1}\n").unwrap_err();
    assert_eq!(error.line, 2);
}
