//! What a start finds after each hazard, one at a time.

mod wal_model;

use camus_engine::io::{DiskOp, FileId, Volume};
use camus_engine::types::{CoreId, Lsn, SegmentSeq};
use camus_engine::wal::format::{
    DiskHead, Expected, GROUP_HEADER_BYTES, GroupFault, GroupHeader, RECORD_HEAD_BYTES, SEGMENT_HEADER_BYTES,
    SegmentHeader,
};
use camus_engine::wal::{Damage, Owner, Role, Room, Wal, WalError, Why, inspect};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use wal_model::{BLOCK, Crashed, Host, Landed, Rng, Volumes, config, recover};

const SEGMENT: u64 = 64 * 1024;

fn host() -> Host {
    let mut host = Host::new(config(SEGMENT, 8));
    host.settle();
    host
}

fn crashed(host: Host) -> Crashed {
    assert!(host.pending.is_empty(), "this test leaves nothing in flight");
    host.crash(&mut Rng(0))
}

fn refusal(crashed: &Crashed) -> WalError {
    match crashed.recover() {
        Ok((_, report, _)) => panic!("it started: {report:?}"),
        Err(refusal) => refusal,
    }
}

fn damage(crashed: &Crashed) -> Damage {
    match refusal(crashed) {
        WalError::Damaged(damage) => *damage,
        other => panic!("{other}"),
    }
}

/// The place of a group: file, byte, length.
fn group(crashed: &Crashed, lsn: u64) -> (FileId, usize, usize) {
    let written = crashed.written.iter().find(|w| w.group.is_some_and(|(l, _)| l == lsn)).expect("it was written");
    (written.file, written.at as usize, written.bytes)
}

fn bytes(crashed: &mut Crashed, file: FileId) -> &mut Vec<u8> {
    crashed.volume.files.get_mut(&file).expect("the file is there")
}

/// Lost if it fails: acknowledged records after a power cut, or a start that never succeeds.
#[test]
fn a_torn_last_group_is_dropped_and_nothing_else() {
    let mut host = host();
    host.append_durable(b"acknowledged");
    host.append(&[7; 2000]).expect("there is room");
    host.turn();
    let whole = {
        let (_, op) = &host.pending[0];
        let DiskOp::Write { buf, .. } = op else { panic!("{op:?}") };
        buf.bytes.clone()
    };
    assert_eq!(whole.len(), BLOCK);
    let place = host.written.last().expect("in flight").clone();
    let base = host.crash(&mut Rng(1));
    for sectors in 0..256u32 {
        let mut crashed = base.clone();
        let to = bytes(&mut crashed, place.file);
        to[place.at as usize..][..BLOCK].fill(0xa5);
        for sector in (0..8).filter(|s| sectors >> s & 1 == 1) {
            let at = place.at as usize + sector * 512;
            to[at..at + 512].copy_from_slice(&whole[sector * 512..][..512]);
        }
        let (_, report, found) = crashed.recover().expect("a power cut is no damage");
        // Head, body and their end lie in the first five sectors; the rest is padding.
        let is_whole = sectors & 0b1_1111 == 0b1_1111;
        assert_eq!(report.last, Lsn(1 + u64::from(is_whole)), "sectors {sectors:08b}");
        assert_eq!(found.len(), 1 + usize::from(is_whole));
        assert_eq!(report.dropped.is_some(), !is_whole && sectors & 1 == 1, "a begun group is reported");
        crashed.judge(&found, report.last).expect("what is found is what was written");
    }
}

/// Lost if it fails: everything after the damage, in silence.
#[test]
fn damage_before_an_acknowledged_group_refuses_to_start() {
    let mut host = host();
    for n in 0..6u8 {
        host.append_durable(&[n; 700]);
    }
    let mut crashed = crashed(host);
    let (file, at, _) = group(&crashed, 3);
    bytes(&mut crashed, file)[at + 200..at + 300].fill(0);
    let damage = damage(&crashed);
    assert_eq!(damage.file, "wal/000001.wal");
    assert_eq!((damage.offset, damage.lsn, damage.segment), (at as u64, Lsn(3), SegmentSeq(1)));
    assert_eq!((damage.whole_before, damage.whole_after), (Lsn(2), 3));
    assert_eq!(damage.why, Why::Acknowledged { durable: Lsn(5) });
    assert_eq!(damage.found, "the body of record 0 with a wrong checksum");
}

/// Lost if it fails: the newest acknowledged records, for one lost bit: nothing later vouches for them.
#[test]
fn a_flipped_bit_in_the_last_acknowledged_group_refuses_to_start() {
    let mut host = host();
    host.append_durable(b"the first one");
    host.append(b"").expect("there is room");
    host.append(&[0; 40]).expect("there is room");
    host.append(b"three records, one group").expect("there is room");
    host.settle();
    let mut crashed = crashed(host);
    let (file, at, _) = group(&crashed, 2);
    let records: Vec<_> = crashed.records.iter().filter(|r| r.lsn == Lsn(2)).map(|r| r.at).collect();
    let padding = |byte: usize| {
        let last = records.iter().rev().find(|r| (r.at as usize) <= byte);
        last.is_some_and(|r| byte >= r.at as usize + RECORD_HEAD_BYTES + r.len as usize)
    };
    let end = GROUP_HEADER_BYTES + 3 * RECORD_HEAD_BYTES + 48 + 32;
    for byte in at..at + end {
        for bit in 0..8u8 {
            bytes(&mut crashed, file)[byte] ^= 1 << bit;
            if padding(byte) {
                let (_, report, _) = crashed.recover().expect("padding holds nothing");
                assert_eq!(report.last, Lsn(2));
            } else {
                let damage = damage(&crashed);
                assert_eq!(damage.offset, byte as u64);
                assert_eq!(damage.why, Why::FlippedBit { bit });
                assert_eq!(damage.whole_before, Lsn(1));
            }
            bytes(&mut crashed, file)[byte] ^= 1 << bit;
        }
    }
}

/// Lost if it fails: the last of several groups in flight, each acknowledged, when the first of them loses a bit.
#[test]
fn a_flipped_bit_in_a_group_that_completed_among_others_refuses_to_start() {
    let mut host = host();
    for n in 0..4u8 {
        host.append(&[n; 5000]).expect("there is room");
        host.turn();
    }
    while !host.pending.is_empty() {
        host.complete(host.pending.len() - 1);
    }
    assert_eq!(host.acknowledged, Lsn(4));
    let mut crashed = crashed(host);
    assert!(crashed.written.iter().all(|w| w.group.is_none_or(|(_, claim)| claim == 0)), "nothing vouches for them");
    for lsn in 1..=4 {
        let (file, at, _) = group(&crashed, lsn);
        bytes(&mut crashed, file)[at + 4567] ^= 0x10;
        let damage = damage(&crashed);
        assert_eq!((damage.lsn, damage.offset), (Lsn(lsn), (at + 4567) as u64));
        bytes(&mut crashed, file)[at + 4567] ^= 0x10;
    }
}

/// Lost if it fails: the order of the log; a group after a hole would be served though one before it is gone.
#[test]
fn a_hole_among_groups_in_flight_ends_the_log_and_what_followed_never_comes_back() {
    let mut host = host();
    host.append_durable(b"acknowledged");
    for body in [b"lost".as_slice(), b"after the hole", b"after it too"] {
        host.append(body).expect("there is room");
        host.turn();
    }
    host.complete(2);
    host.complete(1);
    assert_eq!(host.acknowledged, Lsn(1), "nothing is reported before what precedes it");
    host.pending.clear();
    let crashed = crashed(host);
    let (_, report, _) = crashed.recover().expect("unfinished writes are no damage");
    assert_eq!(report.last, Lsn(1));
    assert_eq!(report.dropped.as_ref().map(|d| (d.lsn, d.later)), Some((Lsn(2), 2)));

    let mut host = crashed.restart(2);
    host.settle();
    host.append_durable(b"instead of the lost one");
    let crashed = self::crashed(host);
    let (_, report, found) = crashed.recover().expect("whole");
    assert_eq!(report.last, Lsn(2));
    crashed.judge(&found, report.last).expect("the old LSN 3 and 4 are void");
    let mut host = crashed.restart(3);
    host.settle();
    host.append_durable(b"and on");
    let crashed = self::crashed(host);
    assert_eq!(crashed.recover().expect("whole").2.len(), 3);
}

/// A host with groups in four segments.
fn four_segments() -> Host {
    let mut host = host();
    while host.wal.segment_now() < SegmentSeq(4) {
        host.append_durable(&[9; 9000]);
    }
    host.append_durable(b"in the fourth");
    host
}

/// Lost if it fails: the records of a file that somebody removed.
#[test]
fn a_missing_segment_refuses_to_start() {
    let whole = crashed(four_segments());
    let files: Vec<FileId> = (1..=4)
        .map(|seq| {
            let is = |file: &FileId| whole.header(*file).is_some_and(|h| h.sequence == seq);
            *whole.volume.files.keys().find(|f| is(f)).expect("four segments")
        })
        .collect();
    for (missing, file) in files[..3].iter().enumerate() {
        let mut crashed = whole.clone();
        crashed.volume.files.remove(file);
        match refusal(&crashed) {
            WalError::MissingSegment { segment, whole_after, .. } => {
                assert_eq!(segment, SegmentSeq(missing as u32 + 1));
                assert!(whole_after > 0);
            }
            other => panic!("{other}"),
        }
    }
    let mut short = whole.clone();
    bytes(&mut short, files[1]).truncate(20_000);
    assert!(matches!(refusal(&short), WalError::Truncated { found: 20_000, .. }));
}

/// Lost if it fails: the records of the newest segment, whose file was emptied: it is no spare that was never used.
#[test]
fn a_file_that_was_cut_before_its_header_refuses_to_start() {
    let whole = crashed(four_segments());
    for length in [0, 100, BLOCK - 1] {
        for file in whole.volume.files.keys().copied().collect::<Vec<_>>() {
            let mut cut = whole.clone();
            bytes(&mut cut, file).truncate(length);
            assert!(matches!(refusal(&cut), WalError::CutShort { found, .. } if found == length as u64));
        }
    }
}

/// Lost if it fails: all records of a segment whose first block is damaged.
#[test]
fn a_segment_whose_header_is_gone_refuses_to_start() {
    let whole = crashed(four_segments());
    for seq in 1..=4 {
        let is = |file: &FileId| whole.header(*file).is_some_and(|h| h.sequence == seq);
        let file = *whole.volume.files.keys().find(|f| is(f)).expect("four segments");
        for what in 0..3 {
            let mut crashed = whole.clone();
            match what {
                0 => bytes(&mut crashed, file)[..BLOCK].fill(0),
                1 => bytes(&mut crashed, file)[20] ^= 4,
                _ if seq < 4 => continue,
                _ => {
                    // Another whole header, as after a write that went astray.
                    let header = whole.header(file).expect("it has one");
                    let astray = SegmentHeader { sequence: 77, first_lsn: 1 << 40, incarnation: [1; 16], ..header };
                    bytes(&mut crashed, file)[..BLOCK].copy_from_slice(&astray.block());
                }
            }
            let damage = damage(&crashed);
            assert_eq!((damage.why, damage.offset), (Why::HeaderGone, 0), "segment {seq}");
            assert_eq!(damage.file, format!("wal/{:06}.wal", file.0));
        }
        for bit in 0..SEGMENT_HEADER_BYTES * 8 {
            let mut crashed = whole.clone();
            bytes(&mut crashed, file)[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(damage(&crashed).why, Why::HeaderGone, "segment {seq}, bit {bit}");
        }
    }
}

/// Lost if it fails: a start after nothing but power cuts, refused. The file of a torn group is used again for a group
/// at the same LSN with the same bytes in it, of which all but the header arrives: so the first group becomes whole.
#[test]
fn a_torn_group_that_a_later_write_completed_by_accident_is_void() {
    let mut rng = Rng(7);
    let mut host = host();
    let mut first_group = Vec::new();
    let mut reused = 0;
    for seed in 1..40 {
        host.append(&[7; 10_000]).expect("room");
        host.turn();
        while host.pending.iter().any(|(_, op)| matches!(op, DiskOp::Write { at: 0, .. } | DiskOp::Prepare { .. })) {
            host.complete(0);
            host.turn();
        }
        let group = host.pending.iter().find_map(|(_, op)| match op {
            DiskOp::Write { buf, .. } => Some(buf.bytes.to_vec()),
            _ => None,
        });
        first_group.push((host.written.last().expect("the group").file, group.expect("the group is in flight")));
        let mut crashed = host.crash_with(&mut rng, Some(Landed::Header));
        let (file, _) = first_group[first_group.len() - 1];
        if let Some((_, old)) = first_group[..first_group.len() - 1].iter().find(|(f, _)| *f == file) {
            reused += 1;
            bytes(&mut crashed, file)[BLOCK..BLOCK + old.len()].copy_from_slice(old);
        }
        let (_, report, found) = crashed.recover().expect("a crash is no damage");
        assert_eq!((report.last, found.len()), (Lsn(0), 0));
        host = crashed.restart(seed);
    }
    assert!(reused > 10, "{reused}");
}

/// Lost if it fails: an acknowledged record, to one flipped bit. A sector that was not written and differs by one bit
/// from what was to be written looks the same, so this power cut is refused like the damage that it may be.
#[test]
fn a_missing_sector_that_lacks_one_bit_is_refused_as_a_flipped_bit_would_be() {
    let mut host = host();
    host.append_durable(b"before");
    // Its last byte is the only one in the last sector, which holds zeros.
    let mut body = vec![7; 4 * 512 - GROUP_HEADER_BYTES - RECORD_HEAD_BYTES + 1];
    *body.last_mut().expect("not empty") = 8;
    let at = host.append(&body).expect("room");
    host.turn();
    let written = host.written.last().expect("the group").clone();
    let DiskOp::Write { buf, .. } = host.pending.remove(0).1 else { panic!("a group") };
    let to = &mut host.volume.files.get_mut(&written.file).expect("there")[written.at as usize..];
    to[..4 * 512].copy_from_slice(&buf.bytes[..4 * 512]);
    host.pending.clear();
    let damage = damage(&crashed(host));
    let place = u64::from(at.at) + RECORD_HEAD_BYTES as u64 + body.len() as u64 - 1;
    assert_eq!((damage.why, damage.offset), (Why::FlippedBit { bit: 3 }, place));
    assert_eq!(damage.whole_before, Lsn(damage.lsn.0 - 1));
}

/// Lost if it fails: another broker's data, or this one's.
#[test]
fn the_log_of_another_cluster_core_or_version_is_refused() {
    let mut host = host();
    host.append_durable(b"mine");
    let crashed = crashed(host);
    let mut other = crashed.config.clone();
    other.cluster[3] ^= 1;
    assert!(matches!(recover(other, &crashed.volume).err(), Some(WalError::WrongCluster { .. })));
    let mut other = crashed.config.clone();
    other.core = CoreId(4);
    assert!(matches!(recover(other, &crashed.volume).err(), Some(WalError::WrongCore { expected: 4, found: 3, .. })));
    let mut newer = crashed.clone();
    let header = SegmentHeader { version: 2, ..crashed.header(FileId(1)).expect("a segment") };
    bytes(&mut newer, FileId(1))[..BLOCK].copy_from_slice(&header.block());
    assert!(matches!(refusal(&newer), WalError::WrongVersion { expected: 1, found: 2, .. }));
}

/// Lost if it fails: records of a kind that a newer version wrote, dropped by an older one as if they were torn.
#[test]
fn a_record_of_an_unknown_kind_refuses_to_start() {
    let mut host = host();
    let at = host.append_durable(b"whatever");
    let mut crashed = crashed(host);
    let header = crashed.header(FileId(1)).expect("a segment");
    let (file, group_at, _) = group(&crashed, 1);
    let image = bytes(&mut crashed, file);
    let head = RECORD_HEAD_BYTES + at.at as usize;
    let mut disk = DiskHead::read(&image[at.at as usize..head]);
    disk.kind = 99;
    let heads_crc = disk.write(&header.incarnation, at.at, 0, &mut image[at.at as usize..head]);
    let group = GroupHeader::read(&image[group_at..]);
    group.write(heads_crc, &mut image[group_at..group_at + GROUP_HEADER_BYTES]);
    let damage = damage(&crashed);
    assert_eq!(damage.why, Why::WrittenSo);
    assert_eq!(damage.found, "a record 0 of an unknown kind 99");
}

/// Lost if it fails: deleted records would come back, out of order.
#[test]
fn stale_groups_of_a_recycled_segment_are_not_read_again() {
    let mut host = Host::new(config(SEGMENT, 4));
    host.settle();
    for round in 0..60u8 {
        host.append_durable(&[round; 9000]);
        let now = host.wal.segment_now();
        host.release(now);
    }
    assert!(host.wal.segment_now() > SegmentSeq(8), "files were used again");
    assert!(host.volume.files.len() <= 4, "and not more of them");
    let crashed = crashed(host);
    let (_, report, found) = crashed.recover().expect("whole");
    assert_eq!(report.last, crashed.acknowledged);
    crashed.judge(&found, report.last).expect("only what was written last");
    assert!(found.len() < 20);
}

/// Lost if it fails: a start after a release would ask for segments that are gone, or show records that were given up.
#[test]
fn released_segments_stay_released() {
    let mut host = four_segments();
    host.release(SegmentSeq(3));
    let files = host.volume.files.len();
    while let Some(due) = host.wal.next_deadline() {
        host.now = due;
        host.settle();
    }
    assert_eq!(host.volume.files.len(), files - 1, "what is too much is removed, though nothing is written");
    assert_eq!(host.wal.disk_bytes(), (files as u64 - 1) * SEGMENT);
    let crashed = crashed(host);
    let (_, _, found) = crashed.recover().expect("whole");
    assert!(found.iter().all(|r| r.at.segment >= SegmentSeq(3)), "a later header says that they are not needed");
    crashed.judge(&found, crashed.acknowledged).expect("and nothing else is gone");
}

/// Lost if it fails: the last acknowledged records, when more than one bit of them decays on an idle broker.
#[test]
fn after_a_moment_of_rest_even_the_loss_of_the_whole_last_group_is_known() {
    let mut host = host();
    host.append_durable(b"the first");
    host.append_durable(b"the last one");
    let due = host.wal.next_deadline().expect("a mark is due");
    host.now = due;
    host.settle();
    assert_eq!(host.acknowledged, Lsn(3), "the mark is a group of its own");
    assert_eq!(host.wal.next_deadline(), None, "one mark is enough");
    let mut crashed = crashed(host);
    let (file, at, _) = group(&crashed, 2);
    bytes(&mut crashed, file)[at..at + BLOCK].fill(0);
    let damage = damage(&crashed);
    assert_eq!((damage.lsn, damage.why), (Lsn(2), Why::Acknowledged { durable: Lsn(2) }));
}

/// Lost if it fails: a record that completed together with the mark before it, when the mark loses a bit.
#[test]
fn a_damaged_mark_is_dropped_only_if_nothing_follows_it() {
    let mut host = host();
    host.append_durable(b"one");
    assert!(host.wal.mark(host.now, &mut host.out));
    host.collect();
    host.append(b"two").expect("room");
    host.turn();
    host.settle();
    assert_eq!(host.acknowledged, Lsn(3));
    let mut crashed = crashed(host);
    let (file, at, _) = group(&crashed, 2);
    bytes(&mut crashed, file)[at + 41] ^= 1;
    assert_eq!(damage(&crashed).lsn, Lsn(2));
    let (file, at, _) = group(&crashed, 3);
    bytes(&mut crashed, file)[at..at + BLOCK].fill(0);
    let (_, report, found) = crashed.recover().expect("the mark alone holds nothing");
    assert_eq!((report.last, found.len()), (Lsn(1), 1));
}

/// Lost if it fails: the promise of the page `docs/adr/0002` about what can not be told; then that page must change.
#[test]
fn the_loss_of_the_very_last_group_before_its_mark_can_not_be_told_from_a_write_that_never_was() {
    let mut host = host();
    host.append_durable(b"the first");
    host.append_durable(b"the last one");
    let mut crashed = crashed(host);
    let (file, at, _) = group(&crashed, 2);
    bytes(&mut crashed, file)[at..at + BLOCK].fill(0);
    let (_, report, _) = crashed.recover().expect("it looks like an unfinished write");
    assert_eq!(report.last, Lsn(1));
}

/// Lost if it fails: disk space, a segment at each restart that writes nothing.
#[test]
fn restarts_without_records_use_no_new_space() {
    let mut host = host();
    host.append_durable(b"one");
    for seed in 0..20 {
        host = crashed(host).restart(seed);
        host.settle();
    }
    assert!(host.volume.files.len() <= 4, "{}", host.volume.files.len());
    assert_eq!(host.append(b"two").map(|at| at.segment), Some(host.wal.segment_now()));
    assert_eq!(host.wal.room_for(1), Room::Yes);
}

/// The group at the end of what was written: its header as it is on the disk.
fn last_group(crashed: &Crashed) -> GroupHeader {
    let written = crashed.written.iter().rfind(|w| w.group.is_some()).expect("a group was written");
    GroupHeader::read(&crashed.volume.files[&written.file][written.at as usize..])
}

/// Lost if it fails: a segment at each restart, and with enough of them the disk.
#[test]
fn a_clean_restart_goes_on_in_the_same_segment() {
    // Nothing in flight; a group in flight that left nothing; one that left all but its header.
    for landed in [None, Some(Landed::Nothing), Some(Landed::NoHeader)] {
        let mut host = host();
        host.append_durable(b"of the first process");
        if landed.is_some() {
            host.append(&[7; 10_000]).expect("room");
            host.turn();
        }
        let before = last_group(&host_as_it_is(&host));
        let crashed = host.crash_with(&mut Rng(0), landed);
        let mut host = crashed.restart(2);
        assert!(host.report.goes_on && host.report.dropped.is_none());
        assert_eq!(host.wal.segment_now(), SegmentSeq(1));
        host.settle();
        let at = host.append_durable(b"of the second process");
        let crashed = self::crashed(host);
        let (file, place, _) = group(&crashed, 3);
        assert_eq!((file, place), (FileId(1), 3 * BLOCK), "behind the group and the mark that vouches for it");
        assert_eq!((at.segment, at.at as usize), (SegmentSeq(1), place + GROUP_HEADER_BYTES));
        let after = last_group(&crashed);
        assert_eq!((after.incarnation, after.segment), (before.incarnation, before.segment));
        let (_, report, found) = crashed.recover().expect("whole");
        assert_eq!((report.last, report.segments, found.len()), (Lsn(3), 1, 2));
        crashed.judge(&found, report.last).expect("both processes' records, in order");
    }
}

/// As after a look at the disk, with nothing of what is in flight.
fn host_as_it_is(host: &Host) -> Crashed {
    Crashed {
        volume: host.volume.clone(),
        config: host.config.clone(),
        records: host.records.clone(),
        acknowledged: host.acknowledged,
        needed: host.needed,
        written: host.written.iter().filter(|w| w.completed).cloned().collect(),
    }
}

/// Lost if it fails: the records of the second process, to what the first one left behind the end.
#[test]
fn a_torn_end_begins_a_new_segment() {
    let hazards: [(&str, fn(&mut Host)); 5] = [
        ("a group without its end", |host| {
            host.append(&[7; 10_000]).expect("room");
            host.turn();
        }),
        ("a group after a hole", |host| {
            for body in [b"lost", b"left"] {
                host.append(body).expect("room");
                host.turn();
            }
            host.complete(1);
            host.pending.clear();
        }),
        ("a group whose header lost a bit, of which nothing else is there", |host| {
            host.append(&[7; 10_000]).expect("room");
            host.turn();
            let written = host.written.last().expect("in flight").clone();
            let DiskOp::Write { buf, .. } = host.pending.remove(0).1 else { panic!("a group") };
            let to = &mut host.volume.files.get_mut(&written.file).expect("there")[written.at as usize..];
            to[..512].copy_from_slice(&buf.bytes[..512]);
            to[0] ^= 1;
        }),
        ("a mark that lost a bit", |host| {
            assert!(host.wal.mark(host.now, &mut host.out));
            host.collect();
            host.settle();
            let mark = host.written.last().expect("the mark").clone();
            host.volume.files.get_mut(&mark.file).expect("there")[mark.at as usize + 41] ^= 1;
        }),
        ("a later segment that was begun", |host| {
            // Three are in flight and end never; the fourth goes to the next segment, whose header is there.
            for _ in 0..3 {
                host.append(&[7; 18_000]).expect("room");
                host.turn();
            }
            host.append(&[7; 18_000]).expect("room");
            host.turn();
            let header = host.pending.iter().position(|(_, op)| matches!(op, DiskOp::Write { at: 0, .. }));
            host.complete(header.expect("the next segment's header"));
            host.pending.clear();
        }),
    ];
    for (hazard, make) in hazards {
        let mut host = host();
        host.append_durable(b"of the first process");
        make(&mut host);
        let crashed = host.crash_with(&mut Rng(0), Some(Landed::Header));
        let sequence = crashed.volume.files.keys().filter_map(|file| crashed.header(*file)).map(|h| h.sequence).max();
        let (_, report, _) = crashed.recover().unwrap_or_else(|e| panic!("{hazard}: {e}"));
        assert_eq!((report.last, report.goes_on), (Lsn(1), false), "{hazard}");
        let mut host = crashed.restart_from(report.last, 2);
        assert_eq!(host.wal.segment_now().0, sequence.expect("a segment") + 1, "{hazard}");
        host.settle();
        host.append_durable(b"of the second process");
        let crashed = self::crashed(host);
        let (_, report, found) = crashed.recover().expect("whole");
        assert_eq!((found.len(), report.goes_on), (2, true), "{hazard}");
        crashed.judge(&found, report.last).expect(hazard);
    }
}

/// Lost if it fails: a broker that is restarted often, to a full disk and to starts that take longer and longer.
#[test]
fn a_thousand_clean_restarts_use_one_segment() {
    let mut host = Host::new(config(1100 * BLOCK as u64, 4));
    host.settle();
    for n in 0..1000u32 {
        host.append(&n.to_le_bytes()).expect("room");
        host.settle();
        let (records, written) = (host.records, host.written);
        host = Host::over(host.config, host.volume, u64::from(n)).expect("whole");
        assert!(host.report.goes_on, "restart {n}");
        (host.records, host.written) = (records, written);
    }
    assert_eq!((host.report.segments, host.wal.segment_now()), (1, SegmentSeq(1)));
    host.settle();
    assert_eq!(host.volume.files.len(), 3, "and two spares");
    let crashed = crashed(host);
    let (_, report, found) = crashed.recover().expect("whole");
    assert_eq!(found.len(), 1000);
    crashed.judge(&found, report.last).expect("every one, in order");
}

/// Lost if it fails: the place for what a new process must log first.
#[test]
fn a_full_segment_is_not_gone_on_with_and_an_unused_one_is() {
    let mut host = host();
    for _ in 0..15 {
        host.append_durable(b"a block");
    }
    assert_eq!(host.wal.segment_now(), SegmentSeq(1));
    let crashed = crashed(host);
    let host = crashed.restart(2);
    assert!(!host.report.goes_on);
    // The header of the next one is there, and nothing else: it is as good as new.
    let mut host = host;
    let header = host.pending.iter().position(|(_, op)| matches!(op, DiskOp::Write { at: 0, .. }));
    host.complete(header.expect("the new segment's header"));
    host.pending.clear();
    let mut host = self::crashed(host).restart(3);
    assert!(host.report.goes_on);
    assert_eq!((host.report.segments, host.wal.segment_now()), (2, SegmentSeq(2)));
    host.settle();
    assert_eq!(host.append_durable(b"in the second").segment, SegmentSeq(2));
    assert_eq!(self::crashed(host).recover().expect("whole").2.len(), 16);
}

/// Lost if it fails: the last records of the process before, when they decay after a start that appended nothing yet.
#[test]
fn a_start_vouches_for_what_it_found() {
    let mut host = host();
    host.append_durable(b"the first");
    host.append_durable(b"the last one");
    let mut host = crashed(host).restart(2);
    assert!(host.report.goes_on);
    host.settle();
    let mut crashed = crashed(host);
    let (file, at, _) = group(&crashed, 2);
    bytes(&mut crashed, file)[at..at + BLOCK].fill(0);
    assert_eq!(damage(&crashed).why, Why::Acknowledged { durable: Lsn(2) });
}

/// Lost if it fails: what a person sees before deciding what to do about a damaged log.
#[test]
fn a_tool_sees_what_is_whole_and_why_the_rest_is_refused() {
    let mut host = four_segments();
    host.append(b"never finished").expect("there is room");
    host.turn();
    host.pending.clear();
    let mut crashed = crashed(host);
    let owner = Owner { cluster: None, core: None };
    let mut kinds = (0, 0, 0);
    let report = inspect::walk(&crashed.volume, owner, &mut |seen| match seen {
        inspect::Seen::Segment { .. } => kinds.0 += 1,
        inspect::Seen::Group { .. } => kinds.1 += 1,
        inspect::Seen::Record { head, body, at } => {
            assert_eq!((head.count, body.len()), (10, at.len as usize));
            kinds.2 += 1;
        }
    });
    assert_eq!(report.refusal, None);
    assert_eq!(kinds, (report.segments, report.groups, report.records));
    assert_eq!((report.segments, report.first), (4, Lsn(1)));
    assert_eq!(report.last, crashed.acknowledged);
    let live = report.files.iter().filter(|(_, _, role)| matches!(role, Role::Live { .. })).count();
    assert_eq!(live, 4);

    let (file, at, _) = group(&crashed, 4);
    bytes(&mut crashed, file)[at + 64] ^= 1;
    let report = inspect::verify(&crashed.volume, owner);
    assert_eq!(report.last, Lsn(3));
    let text = report.refusal.expect("damage").to_string();
    assert!(text.contains(&format!("byte {}", at + 64)) && text.contains("LSN 4"), "{text}");
}

/// Lost if it fails: a record accepted at a place where another one was written.
#[test]
fn a_group_at_the_wrong_place_is_not_accepted() {
    let mut host = host();
    host.append_durable(b"one");
    host.append_durable(b"two");
    let crashed = crashed(host);
    let (file, at, len) = group(&crashed, 1);
    let image = &crashed.volume.files[&file][at..at + len];
    let header = GroupHeader::read(image);
    let expected = Expected { incarnation: header.incarnation, lsn: Lsn(1), prev_crc: header.prev_crc, room: 8192 };
    assert!(expected.group(image, at as u32).is_ok());
    assert!(expected.group(image, 2 * at as u32).is_err(), "heads are bound to their place");
    let other = Expected { incarnation: [0; 16], ..expected };
    assert_eq!(other.group(image, at as u32).err(), Some(GroupFault::Incarnation));
}

/// Lost if it fails: the history. Groups and files of two histories would be read as one.
#[test]
fn a_group_or_a_segment_of_another_history_breaks_the_chain() {
    let mut host = host();
    for _ in 0..4 {
        host.append_durable(b"as it was");
    }
    let mut edited = crashed(host);
    let header = edited.header(FileId(1)).expect("a segment");
    let (file, at, _) = group(&edited, 2);
    let image = bytes(&mut edited, file);
    let (head_at, body_at) = (at + GROUP_HEADER_BYTES, at + GROUP_HEADER_BYTES + RECORD_HEAD_BYTES);
    image[body_at..body_at + 9].copy_from_slice(b"as it is.");
    let body = image[body_at..body_at + 9].to_vec();
    let head = wal_model::batch_head(2);
    let disk = DiskHead::new(&head, &body, crc32c::crc32c(&body));
    let heads_crc = disk.write(&header.incarnation, head_at as u32, 0, &mut image[head_at..body_at]);
    GroupHeader::read(&image[at..]).write(heads_crc, &mut image[at..at + GROUP_HEADER_BYTES]);
    let damage = damage(&edited);
    assert_eq!(damage.lsn, Lsn(3), "the edited group is whole, but the next one follows on another");
    assert!(damage.found.starts_with("a group that follows on another one"), "{}", damage.found);

    let (mut one, other) = (crashed(four_segments()), {
        let mut host = self::host();
        host.append_durable(b"another history");
        while host.wal.segment_now() < SegmentSeq(4) {
            host.append_durable(&[9; 9000]);
        }
        crashed(host)
    });
    let second = |crashed: &Crashed| {
        let is = |file: &FileId| crashed.header(*file).is_some_and(|h| h.sequence == 2);
        *crashed.volume.files.keys().find(|f| is(f)).expect("four segments")
    };
    let (to, from) = (second(&one), second(&other));
    let first_lsn = one.header(to).expect("a segment").first_lsn;
    let mut file = other.volume.files[&from].clone();
    let foreign = SegmentHeader { first_lsn, ..other.header(from).expect("a segment") };
    file[..BLOCK].copy_from_slice(&foreign.block());
    *bytes(&mut one, to) = file;
    let damage = self::damage(&one);
    assert_eq!((damage.why, damage.segment, damage.offset), (Why::WrittenSo, SegmentSeq(2), 0));
}

/// A volume that counts what is read of each file.
struct Counting<'a> {
    volume: &'a Volumes,
    read: RefCell<BTreeMap<FileId, usize>>,
}

impl Volume for Counting<'_> {
    fn files(&self) -> io::Result<Vec<(FileId, u64)>> {
        self.volume.files()
    }

    fn read(&self, file: FileId, at: u64, buf: &mut [u8]) -> io::Result<()> {
        *self.read.borrow_mut().entry(file).or_default() += buf.len();
        self.volume.read(file, at, buf)
    }

    fn sync(&self, file: FileId) -> io::Result<()> {
        self.volume.sync(file)
    }

    fn path(&self, file: FileId) -> String {
        self.volume.path(file)
    }
}

/// Lost if it fails: the time of a start, to files that hold nothing of the log, or to bytes that are read twice.
#[test]
fn a_start_reads_no_block_twice_and_of_spares_the_first_ones() {
    const LARGE: usize = 3 * 1024 * 1024;
    let mut host = Host::new(config(LARGE as u64, 12));
    host.settle();
    while host.wal.segment_now() < SegmentSeq(6) {
        host.append_durable(&[7; 700_000]);
    }
    host.release(SegmentSeq(4));
    while host.wal.segment_now() < SegmentSeq(7) {
        host.append_durable(&[7; 700_000]);
    }
    let crashed = crashed(host);
    let volume = Counting { volume: &crashed.volume, read: RefCell::default() };
    let (_, report) =
        Wal::recover(crashed.config.clone(), &volume, wal_model::pool(), 1, &mut |_, _, _| {}).expect("whole");
    assert!(report.goes_on);
    let roles = inspect::verify(&crashed.volume, Owner::default()).files;
    let (mut free, mut recycled, mut live) = (0, 0, 0);
    for (file, read) in volume.read.into_inner() {
        let role = roles.iter().find(|(path, _, _)| *path == crashed.volume.path(file)).expect("each file").2;
        match role {
            Role::Free | Role::Blank => {
                assert!(read <= 3 * BLOCK, "{role:?}: {read} bytes");
                free += 1;
                recycled += u32::from(role == Role::Free);
            }
            // The header, the groups, and a look whether another file's first group goes on where the log ends; in the
            // last one the window that holds the end is read again.
            Role::Live { .. } => {
                let is_last = crashed.header(file).is_some_and(|h| h.sequence == 7);
                let most = LARGE + 2 * BLOCK + if is_last { 1024 * 1024 } else { 0 };
                assert!(read <= most, "{read} bytes");
                live += 1;
            }
            Role::Unknown => panic!("there is none"),
        }
    }
    assert!(free >= 2 && recycled >= 1 && live == 4, "{free}, {recycled} of them recycled, and {live}");
}

/// A volume that wants to be flushed before it is read.
struct Unflushed<'a> {
    volume: &'a Volumes,
    flushed: RefCell<BTreeSet<FileId>>,
}

impl Volume for Unflushed<'_> {
    fn files(&self) -> io::Result<Vec<(FileId, u64)>> {
        self.volume.files()
    }

    fn read(&self, file: FileId, at: u64, buf: &mut [u8]) -> io::Result<()> {
        assert!(self.flushed.borrow().contains(&file), "{file:?} is believed before it is flushed");
        self.volume.read(file, at, buf)
    }

    fn sync(&self, file: FileId) -> io::Result<()> {
        self.flushed.borrow_mut().insert(file);
        if file == FileId(2) { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
    }

    fn path(&self, file: FileId) -> String {
        self.volume.path(file)
    }
}

/// Lost if it fails: records that were served after a start from pages that never reached the media.
#[test]
fn files_are_flushed_before_they_are_believed() {
    let mut host = Host::new(config(SEGMENT, 8));
    host.settle();
    host.append(b"one").expect("room");
    host.turn();
    while host.pending.iter().any(|(_, op)| matches!(op, DiskOp::Write { .. })) {
        let i = host.pending.iter().position(|(_, op)| matches!(op, DiskOp::Write { .. })).expect("just seen");
        host.complete(i);
    }
    host.pending.clear();
    let mut crashed = crashed(host);
    crashed.volume.files.retain(|file, _| *file == FileId(1));
    let volume = Unflushed { volume: &crashed.volume, flushed: RefCell::default() };
    let (config, pool) = (crashed.config.clone(), wal_model::pool());
    assert_eq!(Wal::recover(config, &volume, pool, 1, &mut |_, _, _| {}).expect("whole").1.last, Lsn(1));

    let mut two = crashed.volume.clone();
    two.files.insert(FileId(2), vec![0; SEGMENT as usize]);
    let volume = Unflushed { volume: &two, flushed: RefCell::default() };
    let refused = Wal::recover(crashed.config, &volume, wal_model::pool(), 1, &mut |_, _, _| {}).err();
    assert!(matches!(refused, Some(WalError::Io { what: "flush", .. })), "a flush that fails is not read over");
}
