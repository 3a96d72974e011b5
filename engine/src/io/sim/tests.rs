//! The simulated disk, played by a test without a world.

use super::*;
use crate::io::buf::ChunkPool;
use crate::limits::WAL_CHUNK_BYTES;

const FILE: FileId = FileId(1);
const BLOCKS: usize = 16;

fn prepared(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    disk.submit(Mono(0), OpId(0), DiskOp::Prepare { file: FILE, len: (BLOCKS * BLOCK_BYTES) as u64 });
    finish(&disk);
    disk
}

fn end(disk: &SimDisk, token: u64) -> DiskDone {
    loop {
        match disk.complete(token) {
            Ok(done) => return done,
            Err(Stuck::Flushes(_)) => {}
            Err(stuck) => panic!("{stuck:?}"),
        }
    }
}

fn finish(disk: &SimDisk) -> Vec<DiskDone> {
    disk.take_started().into_iter().map(|(token, _)| end(disk, token)).collect()
}

fn write_at(disk: &SimDisk, op: u64, block: usize, byte: u8) {
    let mut pool = ChunkPool::new(WAL_CHUNK_BYTES);
    let mut chunk = pool.take(1).expect("free");
    chunk.extend(&[byte; 4 * BLOCK_BYTES]);
    let at = (block * BLOCK_BYTES) as u64;
    disk.submit(Mono(0), OpId(op), DiskOp::Write { file: FILE, at, buf: chunk.freeze() });
}

/// Into sectors 8 to 39.
fn write(disk: &SimDisk, op: u64, byte: u8) {
    write_at(disk, op, 1, byte);
}

/// Starts a write and lets it reach the cache: its token.
fn cached(disk: &SimDisk, op: u64, block: usize, byte: u8) -> u64 {
    write_at(disk, op, block, byte);
    let [(token, due)] = disk.take_started()[..] else { panic!("one was started") };
    let Err(Stuck::Flushes(ends)) = disk.complete(token) else { panic!("it is in the cache") };
    assert!(due < ends);
    token
}

fn bytes(disk: &SimDisk) -> Vec<u8> {
    let mut buf = vec![0; BLOCKS * BLOCK_BYTES];
    disk.volume().read(FILE, 0, &mut buf).expect("it is there");
    buf
}

fn sectors(disk: &SimDisk) -> Vec<u8> {
    bytes(disk)
        .chunks(SECTOR_BYTES)
        .map(|sector| {
            assert!(sector.iter().all(|b| *b == sector[0]), "a sector is written as one");
            sector[0]
        })
        .collect()
}

fn count(found: &[u8], byte: u8) -> usize {
    found.iter().filter(|b| **b == byte).count()
}

/// Lost if it fails: every test that crashes would show less than it says.
#[test]
fn a_completed_write_survives_and_one_in_flight_leaves_any_of_its_sectors() {
    let mut torn = 0;
    for seed in 0..50 {
        for crash in [Crash::Process, Crash::Power] {
            let disk = prepared(seed);
            write(&disk, 1, 1);
            assert!(finish(&disk)[0].result.is_ok());
            write(&disk, 2, 2);
            disk.crash(crash);
            let found = sectors(&disk);
            assert!(found[..8].iter().chain(&found[40..]).all(|b| *b == 0), "nothing beside it is touched");
            assert!(found[8..40].iter().all(|b| [1, 2].contains(b)), "nothing that was complete is lost");
            torn += usize::from(found[8..40].contains(&1) && found[8..40].contains(&2));
            assert_eq!(disk.in_flight(), 0);
        }
    }
    assert!(torn > 50, "{torn} of 100 writes were torn");
}

/// Lost if it fails: an acknowledgement between a write and its flush would look safe in every simulated test.
#[test]
fn what_is_in_the_cache_is_visible_stays_with_a_dead_process_and_tears_without_power() {
    let (mut none, mut all, mut in_sectors, mut in_blocks) = (0, 0, 0, 0);
    for seed in 0..200 {
        let disk = prepared(seed);
        write(&disk, 1, 1);
        finish(&disk);
        cached(&disk, 2, 1, 2);
        assert_eq!(count(&sectors(&disk), 2), 32, "it can be read");
        if seed % 2 == 0 {
            disk.crash(Crash::Process);
            assert_eq!(count(&sectors(&disk), 2), 32, "the device does not know that the process died");
        }
        disk.crash(Crash::Power);
        let found = sectors(&disk);
        assert_eq!(count(&found, 1) + count(&found, 2), 32);
        let mut blocks = found[8..40].chunks(BLOCK_BYTES / SECTOR_BYTES);
        match count(&found, 2) {
            0 => none += 1,
            32 => all += 1,
            _ if blocks.all(|block| [0, 8].contains(&count(block, 2))) => in_blocks += 1,
            _ => in_sectors += 1,
        }
    }
    assert!(none > 5 && all > 5 && in_sectors > 50 && in_blocks > 20, "{none} {all} {in_sectors} {in_blocks}");
}

/// Lost if it fails: a log that waits for the wrong flush would pass.
#[test]
fn a_flush_covers_its_own_write_and_nothing_else_in_flight() {
    let mut lost = 0;
    for seed in 0..50 {
        let disk = prepared(seed);
        let first = cached(&disk, 1, 1, 1);
        cached(&disk, 2, 8, 2);
        assert!(end(&disk, first).result.is_ok());
        disk.crash(Crash::Power);
        let found = sectors(&disk);
        assert_eq!(count(&found[8..40], 1), 32, "it had ended");
        lost += usize::from(count(&found, 2) < 32);
    }
    assert!(lost > 25, "{lost} of 50");
}

/// Lost if it fails: a recovery that forgets to flush what it has read would pass.
#[test]
fn what_a_dead_process_left_is_durable_only_after_a_sync() {
    let mut taken_back = 0;
    for seed in 0..50 {
        for sync in [false, true] {
            let disk = prepared(seed);
            write(&disk, 1, 2);
            disk.crash(Crash::Process);
            let before = sectors(&disk);
            if sync {
                disk.volume().sync(FILE).expect("it is there");
            }
            disk.crash(Crash::Power);
            if sync {
                assert_eq!(sectors(&disk), before);
            } else {
                taken_back += usize::from(sectors(&disk) != before);
            }
        }
    }
    assert!(taken_back > 25, "{taken_back} of 50");
}

/// Lost if it fails: the WAL's answer to a bad disk is never tried.
#[test]
fn faults_come_when_they_are_asked_for_and_once() {
    let disk = prepared(7);
    disk.fail_writes(1);
    write(&disk, 1, 1);
    write(&disk, 2, 1);
    let ends = finish(&disk);
    assert_eq!(ends[0].result.as_ref().expect_err("asked for").kind, DiskErrorKind::Io);
    assert!(ends[1].result.is_ok());
    disk.set_capacity(20 * BLOCK_BYTES as u64);
    let prepare = |op, file, blocks| {
        disk.submit(Mono(0), OpId(op), DiskOp::Prepare { file: FileId(file), len: blocks * BLOCK_BYTES as u64 });
    };
    prepare(3, 2, 5);
    prepare(4, 2, 4);
    prepare(5, 1, 1);
    let kinds: Vec<_> = finish(&disk).into_iter().map(|end| end.result.map(|_| ()).map_err(|e| e.kind)).collect();
    assert_eq!(kinds, [Err(DiskErrorKind::NoSpace), Ok(()), Err(DiskErrorKind::Io)]);
    disk.hang(true);
    write(&disk, 6, 1);
    let [(token, _)] = disk.take_started()[..] else { panic!("one was started") };
    assert!(matches!(disk.complete(token), Err(Stuck::Hangs)));
    disk.hang(false);
    assert!(matches!(disk.complete(token), Err(Stuck::Flushes(_))));
    disk.hang(true);
    assert!(matches!(disk.complete(token), Err(Stuck::Hangs)), "a flush hangs as well");
    disk.hang(false);
    assert!(disk.complete(token).is_ok());
    assert!(matches!(disk.complete(token), Err(Stuck::Gone)));
}

/// Lost if it fails: a write of which only the flush fails, as most do, is never tried.
#[test]
fn a_write_fails_on_its_way_to_the_cache_or_in_its_flush_and_leaves_any_of_its_sectors() {
    let (mut in_flush, mut partly, mut short) = (0, 0, 0);
    for seed in 0..50 {
        let disk = prepared(seed);
        disk.fail_writes(1);
        write(&disk, 1, 1);
        let [(token, _)] = disk.take_started()[..] else { panic!("one was started") };
        let result = match disk.complete(token) {
            Ok(done) => done.result,
            Err(stuck) => {
                assert!(matches!(stuck, Stuck::Flushes(_)));
                in_flush += 1;
                end(&disk, token).result
            }
        };
        let error = result.expect_err("asked for");
        assert!(error.kind == DiskErrorKind::Io && error.errno.is_none_or(|errno| errno == libc::EIO), "{error}");
        short += usize::from(error.errno.is_none());
        disk.crash(Crash::Power);
        partly += usize::from((1..32).contains(&count(&sectors(&disk), 1)));
    }
    assert!((10..40).contains(&in_flush) && partly > 20, "{in_flush} in their flush, {partly} there in part");
    assert!((3..25).contains(&short), "{short} were short");
}

/// Lost if it fails: damage that no log masks is never done, and nobody knows whether it would be found.
#[test]
fn a_lost_a_misdirected_and_a_torn_write_report_success() {
    let mut torn = 0;
    for seed in 0..50 {
        let lost = prepared(seed);
        lost.lose_writes(1);
        write(&lost, 1, 1);
        assert!(finish(&lost)[0].result.is_ok());
        assert_eq!(count(&sectors(&lost), 1), 0);
        write(&lost, 2, 2);
        assert!(finish(&lost)[0].result.is_ok());
        assert_eq!(count(&sectors(&lost), 2), 32, "only the one that was asked for");

        let misdirected = prepared(seed);
        misdirected.misdirect_writes(1);
        write(&misdirected, 1, 1);
        assert!(finish(&misdirected)[0].result.is_ok());
        misdirected.crash(Crash::Power);
        let found = sectors(&misdirected);
        let first = found.iter().position(|b| *b == 1).expect("it is somewhere");
        assert!(first % 8 == 0 && first != 8, "sector {first}");
        assert_eq!(count(&found[first..first + 32], 1), 32, "whole, and flushed");

        let part = prepared(seed);
        part.tear_writes(1);
        write(&part, 1, 1);
        assert!(finish(&part)[0].result.is_ok());
        torn += usize::from((1..32).contains(&count(&sectors(&part), 1)));
        for disk in [lost, misdirected, part] {
            assert_eq!(disk.damage(), Damage { writes: 1, ..Damage::default() });
        }
    }
    assert!(torn > 40, "{torn} of 50 writes were torn");
}

/// Lost if it fails: rot where nothing was written, which nobody has to find.
#[test]
fn rot_flips_one_bit_of_what_was_written_and_says_where() {
    assert_eq!(SimDisk::new(1).rot_somewhere(), None);
    assert_eq!(prepared(1).rot_somewhere(), None, "a file of zeros");
    for seed in 0..20 {
        let disk = prepared(seed);
        write(&disk, 1, 1);
        finish(&disk);
        let before = bytes(&disk);
        let (file, at) = disk.rot_somewhere().expect("something was written");
        let after = bytes(&disk);
        let changed: Vec<usize> = (0..before.len()).filter(|n| before[*n] != after[*n]).collect();
        assert_eq!((file, changed), (FILE, vec![at as usize]));
        assert_eq!((before[at as usize] ^ after[at as usize]).count_ones(), 1);
        assert_eq!(disk.damage(), Damage { bits: 1, ..Damage::default() });
    }
}

/// Lost if it fails: time-outs and orders that only a slow operation brings are never met.
#[test]
fn spikes_make_some_operations_slow_and_a_crash_ends_them() {
    let ends = |disk: &SimDisk, op| {
        write(disk, op, 1);
        let [(token, _)] = disk.take_started()[..] else { panic!("one was started") };
        let Err(Stuck::Flushes(ends)) = disk.complete(token) else { panic!("it is in the cache") };
        assert!(disk.complete(token).is_ok());
        ends
    };
    let slow = |disk: &SimDisk| (1..101).filter(|op| ends(disk, *op) > Mono(1_000_000_000)).count();
    let disk = prepared(3);
    assert_eq!(slow(&disk), 0);
    disk.spike(20, Duration::from_secs(10));
    let spikes = slow(&disk);
    assert!((5..40).contains(&spikes), "{spikes} of 100");
    disk.crash(Crash::Power);
    assert_eq!(slow(&disk), 0);
}

/// Lost if it fails: a disk that goes back in time keeps something, or damage is done that nobody counts.
#[test]
fn an_old_image_has_what_was_on_the_media_then_and_nothing_since() {
    let disk = prepared(1);
    write(&disk, 1, 1);
    assert!(finish(&disk)[0].result.is_ok());
    let token = cached(&disk, 2, 9, 2);
    let image = disk.image();
    assert!(end(&disk, token).result.is_ok());
    write(&disk, 3, 3);
    assert!(finish(&disk)[0].result.is_ok());
    assert_eq!((count(&sectors(&disk), 2), count(&sectors(&disk), 3)), (32, 32));
    for _ in 0..2 {
        disk.bring_back(&image);
        let found = sectors(&disk);
        assert_eq!((count(&found, 1), count(&found, 2), count(&found, 3)), (32, 0, 0));
        write(&disk, 4, 4);
        assert!(finish(&disk)[0].result.is_ok());
    }
    assert_eq!(disk.damage(), Damage { images: 2, ..Damage::default() });
}
