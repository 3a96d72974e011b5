//! Group commit, segments and readers, as the pump of a core meets them.

mod wal_model;

use camus_engine::io::{DiskDone, DiskError, DiskErrorKind, DiskOk, DiskOp, FileId};
use camus_engine::limits::{
    WAL_CHUNK_BYTES, WAL_GROUP_BYTES_MAX, WAL_GROUPS_IN_FLIGHT_MAX, WAL_SEGMENTS_OVER_LIMIT_MAX,
};
use camus_engine::types::{Lsn, SegmentSeq};
use camus_engine::wal::format::GroupHeader;
use camus_engine::wal::{NoSpaceWhy, Room, WalConfig, WalError, WalOut};
use wal_model::{BLOCK, Host, Rng, config};

const MIB: usize = 1024 * 1024;

fn host(segment_bytes: usize, segments_max: usize) -> Host {
    let mut host = Host::new(config(segment_bytes as u64, segments_max));
    host.settle();
    host
}

fn groups_in_flight(host: &Host) -> Vec<GroupHeader> {
    let groups = host.pending.iter().filter_map(|(_, op)| match op {
        DiskOp::Write { at, buf, .. } if *at > 0 => Some(GroupHeader::read(&buf.bytes)),
        _ => None,
    });
    groups.collect()
}

/// Lost if it fails: the time that a first record waits on an idle device.
#[test]
fn a_record_on_a_free_device_is_submitted_at_the_end_of_its_turn() {
    let mut host = host(MIB, 4);
    assert_eq!(host.append(b"one").expect("room").segment, SegmentSeq(1));
    assert!(groups_in_flight(&host).is_empty(), "records of one turn share a group");
    host.append(b"two").expect("room");
    host.turn();
    let groups = groups_in_flight(&host);
    assert_eq!(groups.iter().map(|g| g.records).collect::<Vec<_>>(), [2]);
    host.turn();
    assert_eq!(groups_in_flight(&host).len(), 1, "an empty turn writes nothing");
}

/// Lost if it fails: half of the device's bandwidth, to zeros, whenever a log that has shrunk grows again.
#[test]
fn released_segments_are_kept_and_used_again_before_new_ones_are_made() {
    let mut host = Host::new(WalConfig { spares_max: 5, ..config(64 * 1024, 12) });
    host.settle();
    let fill = |host: &mut Host, segments: u32| {
        let from = host.wal.segment_now();
        while host.wal.segment_now().0 < from.0 + segments {
            host.append_durable(&[5; 20_000]);
        }
    };
    fill(&mut host, 8);
    let made = host.volume.files.len();
    host.release(host.wal.segment_now());
    host.settle();
    fill(&mut host, 1);
    host.tick(10_000);
    host.settle();
    let kept: std::collections::BTreeSet<_> = host.volume.files.keys().copied().collect();
    assert_eq!(kept.len(), 2 + 5, "the one before, which just ended, the one being written, and the spares, of {made}");
    fill(&mut host, 5);
    let new: Vec<_> = host.volume.files.keys().filter(|file| !kept.contains(file)).collect();
    assert!(new.len() <= 2, "only what is made ahead is new: {new:?}");
}

/// Lost if it fails: group commit; each record would cost a write of its own under load.
#[test]
fn while_the_device_is_busy_the_next_group_fills() {
    let mut host = host(MIB, 4);
    for _ in 0..40 {
        host.append(&[1; 100]).expect("room");
        host.turn();
    }
    let groups = groups_in_flight(&host);
    assert_eq!(groups.len(), WAL_GROUPS_IN_FLIGHT_MAX);
    assert!(groups.iter().all(|g| g.records == 1));
    host.complete(0);
    host.turn();
    assert_eq!(groups_in_flight(&host).last().expect("the next one").records, 36);
    assert_eq!(host.acknowledged, Lsn(1));
}

/// Lost if it fails: a flush for each small group that comes while another is being written, which the device does one
/// after the other anyway.
#[test]
fn a_group_beside_others_in_flight_is_worth_its_flush() {
    let mut host = Host::new(WalConfig { beside_bytes: 50_000, ..config(MIB as u64, 4) });
    host.settle();
    let append = |host: &mut Host, bytes| {
        host.append(&vec![1; bytes]).expect("room");
        host.turn();
        groups_in_flight(host).len()
    };
    assert_eq!(append(&mut host, 100), 1, "with nothing in flight, anything is");
    for _ in 0..4 {
        assert_eq!(append(&mut host, 12_000), 1);
    }
    assert_eq!(append(&mut host, 12_000), 2, "beside one, 50,000 bytes are");
    for _ in 0..8 {
        assert_eq!(append(&mut host, 12_000), 2);
    }
    assert_eq!(append(&mut host, 12_000), 3, "beside two, 100,000 bytes are");
    host.append(&[2; 100]).expect("room");
    for _ in 0..3 {
        host.complete(0);
        host.turn();
    }
    assert_eq!(groups_in_flight(&host).len(), 1, "the rest, when nothing is in flight");
    host.settle();
    assert_eq!(host.acknowledged, host.records.last().expect("many").lsn);
}

/// Lost if it fails: an answer for a record that a crash can still take.
#[test]
fn durability_is_reported_in_lsn_order_whatever_completes_first() {
    let mut host = host(MIB, 4);
    for _ in 0..4 {
        host.append(b"x").expect("room");
        host.turn();
    }
    host.complete(3);
    host.complete(1);
    assert_eq!(host.acknowledged, Lsn(0));
    host.complete(0);
    assert_eq!(host.acknowledged, Lsn(2));
    host.complete(0);
    assert_eq!(host.acknowledged, Lsn(4));
    assert_eq!(host.groups_written, 4);
}

/// Lost if it fails: the bound on a group, and so on latency and on what a torn write can take.
#[test]
fn a_group_is_closed_when_it_is_full() {
    let mut host = host(16 * MIB, 4);
    for _ in 0..WAL_GROUPS_IN_FLIGHT_MAX {
        host.append(b"x").expect("room");
        host.turn();
    }
    for _ in 0..40 {
        host.append(&[3; 100_000]).expect("room");
        host.turn();
    }
    host.settle();
    let groups = host.written.iter().filter(|w| w.group.is_some());
    assert!(groups.clone().all(|w| w.bytes <= WAL_GROUP_BYTES_MAX));
    assert_eq!(groups.filter(|w| w.bytes > MIB - 110_000).count(), 4, "and not before");
}

/// Lost if it fails: batches of more than a chunk.
#[test]
fn a_large_record_gets_a_group_of_its_own() {
    let mut host = host(8 * MIB, 4);
    assert_eq!(host.wal.record_bytes_max(), 8 * MIB - BLOCK - 64 - 96);
    host.append(b"before").expect("room");
    let large: Vec<u8> = (0..3 * MIB + 17).map(|i| (i / 7) as u8).collect();
    let at = host.append(&large).expect("room");
    host.append(b"behind").expect("room");
    host.settle();
    let groups: Vec<_> = host.written.iter().filter_map(|w| w.group.map(|(lsn, _)| (lsn, w.bytes))).collect();
    assert_eq!(groups.iter().filter(|(_, bytes)| *bytes > 3 * MIB).count(), 1);
    assert_eq!(host.wal.cached(at), None, "larger than the whole cache of this test");
    let (file, from, len) = host.wal.read_plan(at);
    let read = bytes::Bytes::copy_from_slice(&host.volume.files[&file][from as usize..][..len as usize]);
    assert_eq!(host.wal.extract(at, &read).expect("whole").1, large);
    let crashed = host.crash(&mut Rng(0));
    assert_eq!(crashed.recover().expect("whole").2[1].body, large);
    assert_eq!(crashed.restart(1).wal.room_for(9 * MIB), Room::NoSpace, "it can never fit");
}

/// Lost if it fails: the memory of the machine.
#[test]
fn appends_wait_when_the_buffers_are_spent_and_go_on_when_they_are_free() {
    let mut host = host(64 * MIB, 4);
    let mut appended = 0;
    while host.append(&[5; 500_000]).is_some() {
        host.turn();
        appended += 1;
        assert!(appended < 100, "the pool is bounded");
    }
    assert_eq!(host.wal.room_for(500_000), Room::Wait);
    assert!(host.wal.memory_bytes() <= 10 * WAL_CHUNK_BYTES);
    host.settle();
    assert_eq!(host.wal.room_for(500_000), Room::Yes);
    host.append_durable(&[6; 500_000]);
}

/// Lost if it fails: the process, when a record that was promised room beside another one finds none.
#[test]
fn what_was_promised_as_one_may_be_appended_in_parts() {
    let mut host = host(16 * BLOCK, 6);
    let mut held = Vec::new();
    // Readers hold every buffer but the rest of the last one, and the segment has a single block left.
    let mut groups = 0;
    while host.wal.memory_bytes() < 10 * WAL_CHUNK_BYTES || groups % 15 != 14 {
        let at = host.append(b"a block").expect("room");
        host.turn();
        while host.wal.cached(at).is_none() {
            host.complete(0);
            host.turn();
        }
        held.extend(host.wal.cached(at));
        host.settle();
        host.release(host.wal.segment_now());
        groups += 1;
    }
    assert_eq!(host.wal.room_for(6000), Room::Yes, "in the next segment, and in the rest of the buffer");
    let first = host.append_reserved(b"small enough for the last block");
    let second = host.append_reserved(&[1; 5000]);
    assert_eq!(first.segment, second.segment, "but they go together");
    host.settle();
    assert_eq!(host.acknowledged, host.records.last().expect("appended").lsn);
}

/// Lost if it fails: a segment's groups, if the power goes before its header is on the media.
#[test]
fn no_group_is_submitted_before_its_segments_header_is_durable() {
    let mut host = Host::new(config(16 * BLOCK as u64, 6));
    let mut headers = 0;
    for n in 0..60 {
        if host.append(&[n; 6000]).is_none() {
            host.settle();
            continue;
        }
        host.turn();
        for (_, op) in &host.pending {
            let DiskOp::Write { file, at, .. } = op else { continue };
            let header_in_flight =
                host.pending.iter().any(|(_, op)| matches!(op, DiskOp::Write { file: f, at: 0, .. } if f == file));
            headers += u32::from(*at == 0);
            assert!(*at == 0 || !header_in_flight);
        }
        if n % 3 == 0 && !host.pending.is_empty() {
            host.complete(host.pending.len() - 1);
        }
    }
    assert!(headers >= 3);
}

/// Lost if it fails: the broker, when the disk is full for a while.
#[test]
fn a_full_disk_is_refused_and_heals_by_itself() {
    let mut host = Host::new(config(16 * BLOCK as u64, 10));
    host.files_max = 3;
    host.settle();
    while host.append(&[1; 10_000]).is_some() {
        host.settle();
    }
    assert_eq!(host.wal.room_for(10_000), Room::NoSpace);
    assert_eq!(host.wal.no_space_why(10_000, 0), Some(NoSpaceWhy::DiskFull));
    assert_eq!(host.poisoned, None);
    let retry = host.wal.next_deadline().expect("it is tried again");
    host.settle();
    assert!(host.pending.is_empty(), "not at once");
    host.now = retry;
    host.settle();
    assert_eq!(host.wal.room_for(10_000), Room::NoSpace);
    host.files_max = 4;
    host.now = host.wal.next_deadline().expect("and again");
    host.settle();
    assert_eq!(host.wal.room_for(10_000), Room::Yes);
    host.append_durable(&[2; 10_000]);
    assert_eq!(host.wal.disk_bytes(), 4 * 16 * BLOCK as u64);
}

/// Lost if it fails: the limit on the disk, or the way out of it.
#[test]
fn at_the_limit_what_frees_space_still_has_room_and_a_release_heals() {
    let mut host = host(16 * BLOCK, 4);
    while host.append(&[1; 10_000]).is_some() {
        host.settle();
    }
    assert_eq!(host.volume.files.len(), 4);
    assert_eq!(host.wal.room_for(10_000), Room::NoSpace);
    assert_eq!(host.wal.no_space_why(10_000, 0), Some(NoSpaceWhy::Limit));
    assert_eq!(host.wal.room_for_reserved(10_000), Room::Yes, "a trim must be logged");
    host.append_reserved(&[2; 10_000]);
    host.settle();
    assert_eq!(host.wal.room_for(10), Room::NoSpace, "not in what was begun for the reserve");
    host.release(SegmentSeq(3));
    host.settle();
    assert_eq!((host.wal.room_for(10_000), host.wal.no_space_why(10_000, 0)), (Room::Yes, None));
    host.append_durable(&[3; 10_000]);
    assert_eq!(host.volume.files.len(), 4, "released files are used again");
}

/// Lost if it fails: the way of a follower to the deletion that frees it, on which its own clients' records would lie.
#[test]
fn what_is_left_to_others_is_no_room_for_own_records() {
    let mut host = host(16 * BLOCK, 8);
    let leaves = 3;
    while host.wal.room_leaving(10_000, leaves) != Room::NoSpace {
        if host.wal.room_leaving(10_000, leaves) == Room::Yes {
            host.append_durable(&[1; 10_000]);
        }
        host.tick(1);
        host.settle();
    }
    assert_eq!(host.wal.no_space_why(10_000, leaves), Some(NoSpaceWhy::Limit));
    assert_eq!(host.wal.no_space_why(10_000, 0), None);
    let before = host.wal.segment_now();
    while host.append(&[2; 10_000]).is_some() {
        host.settle();
    }
    assert_eq!(host.wal.segment_now().0, before.0 + leaves as u32, "others find so much more");
    assert_eq!(host.volume.files.len(), 8, "within the limit");
    assert_eq!(host.wal.room_for_reserved(10_000), Room::Yes, "and what frees space finds more than these");
    host.release(host.wal.segment_now());
    host.settle();
    assert_eq!(host.wal.room_leaving(10_000, leaves), Room::Yes, "a release heals");
}

/// Lost if it fails: the disk, a segment beyond its limit for every restart of a broker that producers go on at.
#[test]
fn a_thousand_restarts_at_the_limit_take_two_segments_at_most() {
    let mut rng = Rng(11);
    let mut host = host(16 * BLOCK, 4);
    let most = 4 + WAL_SEGMENTS_OVER_LIMIT_MAX;
    let (mut refused, mut freed, mut reserve_spent) = (0, 0, 0);
    for restart in 0..1000 {
        for _ in 0..rng.below(12) {
            refused += usize::from(host.append(&[1; 10_000]).is_none());
            if rng.below(2) == 0 {
                host.settle();
            }
        }
        // what a start writes: its elections
        if host.wal.room_for_reserved(BLOCK) == Room::Yes {
            host.append_reserved(&[2; 100]);
        }
        host.turn();
        if rng.below(2) == 0 {
            host.settle();
        }
        assert!(host.volume.files.len() <= most, "{} files after {restart} restarts", host.volume.files.len());
        if host.volume.files.len() > 4 {
            assert_eq!(host.wal.room_for(1), Room::NoSpace, "what is over the limit is for what frees space");
        }
        if host.wal.no_space_for_reserved_why(BLOCK).is_some() || restart % 97 == 96 {
            reserve_spent += u32::from(restart % 97 != 96);
            host.settle();
            host.release(host.wal.segment_now());
            for _ in 0..6 {
                host.tick(5_000);
                host.settle();
            }
            assert_eq!(host.wal.room_for(10_000), Room::Yes, "freed space brings it back after {restart} restarts");
            assert_eq!(host.wal.no_space_why(10_000, 0), None);
            host.append_durable(&[3; 10_000]);
            freed += 1;
        }
        host = host.crash(&mut rng).restart(restart);
        host.turn();
        while host.pending.len() > 1 && rng.below(4) > 0 {
            host.complete(0);
            host.turn();
        }
    }
    assert!(refused > 500 && freed > 10 && reserve_spent > 0, "{refused} {freed} {reserve_spent}");
}

/// Lost if it fails: the start of a broker at its limit whose last segment has no room for an election.
#[test]
fn at_the_limit_a_full_segment_is_followed_by_one_for_the_reserve_only() {
    let mut host = host(16 * BLOCK, 4);
    while host.append(&[1; 3000]).is_some() {
        host.settle();
    }
    // the last spare, down to its last block
    let before = host.wal.segment_now();
    for _ in 0..14 {
        host.append_reserved(&[2; 3000]);
        host.settle();
    }
    assert_eq!(host.wal.segment_now(), SegmentSeq(before.0 + 1));
    host = host.crash(&mut Rng(0)).restart(1);
    host.settle();
    assert_eq!(host.wal.room_for_reserved(BLOCK), Room::Wait, "a hard state and an entry: two blocks");
    host.settle();
    assert_eq!(host.wal.room_for_reserved(BLOCK), Room::Yes);
    assert_eq!(host.volume.files.len(), 5);
    host.append_reserved(&[2; BLOCK]);
    host.settle();
    assert_eq!((host.wal.room_for(1), host.wal.no_space_why(1, 0)), (Room::NoSpace, Some(NoSpaceWhy::Limit)));
    assert_eq!(host.wal.no_space_for_reserved_why(BLOCK), None);
}

/// Lost if it fails: the start of a broker at its limit, when power cuts tear what each start writes.
#[test]
fn at_the_limit_a_torn_end_is_made_void_and_gone_on_with() {
    for seed in 0..200 {
        let mut rng = Rng(seed);
        let mut host = host(64 * BLOCK, 3);
        while host.append(&[1; 10_000]).is_some() {
            host.settle();
        }
        host.append_reserved(&[2; 10_000]);
        host.settle();
        let segment = host.wal.segment_now();
        for life in 0..5 {
            for _ in 0..3 {
                if host.wal.room_for_reserved(6_000) == Room::Yes {
                    host.append_reserved(&[3; 6_000]);
                }
                host.turn();
            }
            host = host.crash(&mut rng).restart(seed << 8 | life);
            if rng.below(3) == 0 && !host.pending.is_empty() {
                // and the power goes again while it is made void
                for _ in 0..rng.below(3) {
                    host.complete(0);
                    host.turn();
                    if host.pending.is_empty() {
                        break;
                    }
                }
                host = host.crash(&mut rng).restart(seed << 8 | life | 128);
            }
            host.settle();
            assert_eq!(host.wal.room_for(1), Room::NoSpace);
            assert_eq!((host.wal.segment_now(), host.volume.files.len()), (segment, 3));
        }
        host.append_reserved(&[4; 6_000]);
        host.settle();
        host.check_reads();
        assert_eq!(host.wal.no_space_for_reserved_why(BLOCK), None);
    }
}

/// Lost if it fails: the disk, to files that nothing needs (or the log, to a file removed too early).
#[test]
fn surplus_files_are_removed_when_a_header_says_that_they_are_not_needed() {
    let mut host = host(16 * BLOCK, 12);
    while host.wal.segment_now() < SegmentSeq(8) {
        host.append_durable(&[1; 10_000]);
    }
    assert_eq!(host.volume.files.len(), 10);
    host.release(SegmentSeq(8));
    host.settle();
    assert_eq!(host.volume.files.len(), 10, "no header says so yet");
    host.append_durable(&[1; 10_000]);
    while host.wal.segment_now() < SegmentSeq(9) {
        host.append_durable(&[1; 10_000]);
    }
    host.settle();
    assert_eq!(host.volume.files.len(), 4, "the two in use, and two spares");
}

/// Lost if it fails: the truth. A disk that failed once may say anything afterwards.
#[test]
fn a_failed_write_poisons_the_log_for_ever() {
    for what in 0..3 {
        let mut host = host(16 * BLOCK, 4);
        host.append(b"one").expect("room");
        host.turn();
        match what {
            0 => host.fail(0, DiskErrorKind::Io),
            1 => host.fail(0, DiskErrorKind::NoSpace),
            _ => {
                host.append(b"two").expect("room");
                host.turn();
                host.fail(0, DiskErrorKind::Io);
            }
        }
        assert!(matches!(host.poisoned, Some(WalError::Write(_))), "{:?}", host.poisoned);
        assert_eq!(host.wal.room_for(1), Room::Wait);
        while !host.pending.is_empty() {
            host.complete(0);
        }
        host.tick(5000);
        host.turn();
        assert_eq!(host.acknowledged, Lsn(0), "nothing is acknowledged after a failure");
        assert!(host.pending.is_empty() && host.wal.next_deadline().is_none(), "and nothing is tried again");
    }
    let mut host = Host::new(config(16 * BLOCK as u64, 4));
    host.fail(0, DiskErrorKind::Io);
    assert!(host.poisoned.is_some(), "a device that can not prepare a file is not trusted with a log");

    let mut host = Host::new(config(16 * BLOCK as u64, 4));
    let (op, _) = host.pending.remove(0);
    let detail = "the core is stopping".to_owned();
    let stopped = DiskError { kind: DiskErrorKind::Io, what: "prepare", file: FileId(1), at: 0, errno: None, detail };
    host.wal.disk_done(host.now, DiskDone { op, result: Err(stopped) }, &mut host.out);
    host.collect();
    assert_eq!(host.poisoned, None, "a stop is no failure of the disk");
}

/// Lost if it fails: the copy that a fetch at the tail is spared.
#[test]
fn a_cached_body_is_the_memory_that_was_written() {
    let mut host = host(MIB, 4);
    let at = host.append(b"the body of a record").expect("room");
    assert_eq!(host.wal.cached(at), None, "what is not submitted is not shown");
    host.turn();
    let (_, op) = host.pending.iter().find(|(_, op)| matches!(op, DiskOp::Write { .. })).expect("submitted");
    let DiskOp::Write { at: group_at, buf, .. } = op else { unreachable!() };
    let offset = at.at as usize - *group_at as usize + 96;
    let cached = host.wal.cached(at).expect("in flight");
    assert_eq!(&cached[..], b"the body of a record");
    assert_eq!(cached.as_ptr(), buf.bytes[offset..].as_ptr());
    host.settle();
    for _ in 0..80 {
        host.append_durable(&[0; 4000]);
    }
    assert_eq!(host.wal.cached(at), None, "the cache is bounded");
}

/// Lost if it fails: a reader's trust. Other bytes would be served as the record.
#[test]
fn a_read_that_brings_anything_else_is_an_error() {
    let mut host = host(16 * BLOCK, 4);
    let first = host.append_durable(&[1; 700]);
    let second = host.append_durable(&[2; 700]);
    let read = |host: &Host, at| {
        let (file, from, len): (FileId, u64, u32) = host.wal.read_plan(at);
        host.volume.files[&file][from as usize..][..len as usize].to_vec()
    };
    let good = read(&host, first);
    let (head, body) = host.wal.extract(first, &good.clone().into()).expect("whole");
    assert_eq!((head, &body[..]), (host.records[0].head, &[1u8; 700][..]));
    let other = read(&host, second);
    assert!(host.wal.extract(first, &other.into()).is_err(), "another record of the same length");
    assert!(host.wal.extract(first, &good[..512].to_vec().into()).is_err(), "a short read");
    for bit in 64 * 8..(64 + 96 + 700) * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(host.wal.extract(first, &bad.into()).is_err(), "bit {bit}");
    }
    while host.wal.segment_now() < SegmentSeq(3) {
        host.append_durable(&[3; 9000]);
    }
    host.release(SegmentSeq(3));
    let released = host.wal.extract(first, &good.into());
    assert!(matches!(released, Err(WalError::Released { segment: SegmentSeq(1) })));
}

/// Lost if it fails: the way to say, before a shutdown, that the last records were on the media.
#[test]
fn a_mark_can_be_written_at_once() {
    let mut host = host(MIB, 4);
    assert!(!host.wal.mark(host.now, &mut host.out), "there is nothing to say");
    host.append(b"one").expect("room");
    assert!(!host.wal.mark(host.now, &mut host.out), "not while something waits");
    host.settle();
    assert!(host.wal.mark(host.now, &mut host.out));
    host.collect();
    let groups = groups_in_flight(&host);
    assert_eq!((groups[0].records, groups[0].lsn, groups[0].durable_lsn), (0, 2, 1));
    host.settle();
    assert!(host.wal.is_quiet() && !host.wal.mark(host.now, &mut host.out));
}

/// Lost if it fails: the metrics' only source for the device's latency.
#[test]
fn the_time_of_each_write_is_told() {
    let mut host = host(MIB, 4);
    host.append(b"one").expect("room");
    host.turn();
    host.tick(7);
    let (op, _) = host.pending.remove(0);
    host.wal.disk_done(host.now, DiskDone { op, result: Ok(DiskOk::Written) }, &mut host.out);
    assert!(matches!(host.out[0], WalOut::GroupWritten { ns: 7_000_000, bytes: 4096 }), "{:?}", host.out);
    assert!(matches!(host.out[1], WalOut::Durable(Lsn(1))));
}
