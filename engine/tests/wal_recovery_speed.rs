//! What a start costs: seconds and processor time to recover a log of 1 GiB, beside a plain read of the same files.
//! Run by `benches/recovery DIR`.

use camus_engine::io::buf::ChunkPool;
use camus_engine::io::{DiskDone, DiskOk, DiskOp, RealVolume};
use camus_engine::limits::{WAL_CHUNK_BYTES, WAL_SEGMENT_BYTES};
use camus_engine::types::{CoreId, Mono, PartitionId, ShardId};
use camus_engine::wal::{RecordHead, RecordKind, Room, Wal, WalConfig, WalOut};
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

const LOG_BYTES: usize = 1 << 30;
const ROUNDS: usize = 5;

fn config() -> WalConfig {
    let segments_max = 3 * LOG_BYTES / WAL_SEGMENT_BYTES as usize;
    let (cluster, core, cache_bytes) = (*b"cluster-of-tests", CoreId(0), WAL_CHUNK_BYTES);
    WalConfig { cluster, core, segment_bytes: WAL_SEGMENT_BYTES, segments_max, cache_bytes, beside_bytes: 0 }
}

fn pool() -> ChunkPool {
    ChunkPool::new(16 * WAL_CHUNK_BYTES)
}

fn path(dir: &Path, file: u32) -> PathBuf {
    dir.join(format!("{file:06}.wal"))
}

/// Fills a directory with records of this size, so many to a group.
fn write(dir: &Path, record_bytes: usize, records: usize) {
    let volume = RealVolume::open(dir, true).expect("a directory");
    let (mut wal, _) = Wal::recover(config(), &volume, pool(), 1, &mut |_, _, _| {}).expect("an empty one");
    let (mut out, now) = (Vec::new(), Mono(1));
    wal.start(&mut out);
    let mut state = 1u64;
    let body: Vec<u8> = (0..record_bytes)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .collect();
    let crc = crc32c::crc32c(&body);
    let (mut written, mut index) = (0, 0);
    while written < LOG_BYTES {
        for _ in 0..records {
            if wal.room_for(record_bytes) == Room::Yes {
                index += 1;
                let mut head = RecordHead::new(RecordKind::Batch, ShardId(1));
                (head.partition, head.index.0) = (PartitionId(1), index);
                wal.append(head, &[&body], Some(crc));
                written += record_bytes;
            }
        }
        wal.turn_end(now, &mut out);
        while !out.is_empty() {
            for event in std::mem::take(&mut out) {
                let WalOut::Disk(op, what) = event else { continue };
                let result = Ok(match what {
                    DiskOp::Write { file, at, buf } => {
                        let file = File::options().write(true).open(path(dir, file.0)).expect("a file");
                        file.write_all_at(&buf.bytes, at).expect("written");
                        DiskOk::Written
                    }
                    DiskOp::Prepare { file, len } => {
                        let file = File::create(path(dir, file.0)).expect("a file");
                        file.write_all_at(&vec![0; len as usize], 0).expect("written");
                        DiskOk::Prepared
                    }
                    DiskOp::Read { .. } | DiskOp::Remove { .. } => panic!("not asked for here"),
                });
                wal.disk_done(now, DiskDone { op, result }, &mut out);
            }
            wal.turn_end(now, &mut out);
        }
    }
    for file in files(dir) {
        file.sync_all().expect("flushed");
    }
}

/// All of them, in order: those that hold the log come first, then the spares.
fn files(dir: &Path) -> Vec<File> {
    let mut paths: Vec<_> = dir.read_dir().expect("a directory").map(|e| e.expect("an entry").path()).collect();
    paths.sort();
    paths.iter().map(|path| File::open(path).expect("a file")).collect()
}

/// Has the kernel forget the files, as after a boot. They were flushed.
fn forget(dir: &Path) {
    for file in files(dir) {
        fadvise(&file, 0, None, Advice::DontNeed).expect("advice");
    }
}

/// Wall seconds and this thread's processor seconds (the kernel's part of them too).
#[allow(clippy::disallowed_methods, reason = "a stop watch")]
fn timed(run: impl FnOnce() -> u64) -> (f64, f64, u64) {
    let cpu = || {
        let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
        stat.split(' ').next().expect("a figure").parse::<u64>().expect("nanoseconds") as f64 / 1e9
    };
    let (start, before) = (Instant::now(), cpu());
    let bytes = run();
    (start.elapsed().as_secs_f64(), cpu() - before, bytes)
}

fn plain_read(dir: &Path, live: usize) -> u64 {
    let mut buf = vec![0; 1 << 20];
    let mut bytes = 0;
    for mut file in files(dir).into_iter().take(live) {
        while let n @ 1.. = file.read(&mut buf).expect("read") {
            bytes += n as u64;
        }
    }
    bytes
}

fn recover(dir: &Path) -> u64 {
    let volume = RealVolume::open(dir, true).expect("a directory");
    let mut bytes = 0;
    let (_, report) = Wal::recover(config(), &volume, pool(), 2, &mut |_, body, _| {
        bytes += body.len() as u64;
    })
    .expect("whole");
    assert!(report.goes_on && bytes >= LOG_BYTES as u64);
    report.segments as u64 * WAL_SEGMENT_BYTES
}

#[allow(clippy::print_stdout, reason = "that is what it is for")]
fn figures(name: &str, record_bytes: usize, records: usize) {
    let parent = std::env::var_os("CAMUS_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = tempfile::tempdir_in(parent).expect("a directory");
    write(dir.path(), record_bytes, records);
    let live = recover(dir.path()) / WAL_SEGMENT_BYTES;
    for is_cold in [true, false] {
        let mut best = [(f64::MAX, 0.0, 0); 2];
        for _ in 0..ROUNDS {
            for (i, best) in best.iter_mut().enumerate() {
                if is_cold {
                    forget(dir.path());
                }
                let round = timed(|| if i == 1 { recover(dir.path()) } else { plain_read(dir.path(), live as usize) });
                if round.0 < best.0 {
                    *best = round;
                }
            }
        }
        for (what, (wall, cpu, bytes)) in ["plain read", "recovery"].into_iter().zip(best) {
            let (mb, gib) = (bytes as f64 / 1e6, bytes as f64 / (1u64 << 30) as f64);
            let cache = if is_cold { "not in memory" } else { "in memory" };
            println!(
                "{name:27} {cache:13} {what:10} {wall:6.3} s {:6.0} MB/s, processor {:.3} s for each GiB",
                mb / wall,
                cpu / gib
            );
        }
    }
}

/// Prints what a start costs; the figures stand in docs/adr/0002.
#[test]
#[ignore = "prints figures: benches/recovery DIR"]
fn figures_of_a_recovery() {
    figures("64 KiB batches", 64 * 1024, 4);
    figures("1 KiB records, 4 KiB groups", 1024, 3);
}
