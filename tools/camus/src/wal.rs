//! `camus wal`: looks into the write-ahead logs of a data directory. Reads only, and not beside a running broker.

use crate::data_dir::{self, Identity};
use crate::errors::{self, UserError};
use crate::out;
use camus_engine::io::RealVolume;
use camus_engine::limits::BLOCK_BYTES;
use camus_engine::types::{CoreId, ProducerId, ShardId};
use camus_engine::wal::inspect::{self, Report, Seen};
use camus_engine::wal::{Owner, RecordKind, Role, WalError};
use std::path::Path;

/// Prints the head of every record of every core, in the order of the log; stops at damage, with an error.
pub fn dump(data_dir: &Path) -> Result<(), UserError> {
    each_core(data_dir, |core, volume, owner| {
        let mut lsn = 0;
        inspect::walk(volume, owner, &mut |seen| match seen {
            Seen::Segment { header, .. } => out::line(format!(
                "core {core}  segment {}  first LSN {}  durable LSN {}  {} bytes",
                header.sequence, header.first_lsn, header.durable_lsn, header.segment_bytes
            )),
            Seen::Group { header, .. } => lsn = header.lsn,
            Seen::Record { head, body, at } => {
                let mut line = format!(
                    "  LSN {lsn}  {}@{}  {}  shard {}  term {}  index {}  {} bytes",
                    at.segment,
                    at.at,
                    kind_name(head.kind),
                    head.shard,
                    head.term,
                    head.index,
                    body.len()
                );
                if matches!(head.kind, RecordKind::Batch | RecordKind::Trim) {
                    line.push_str(&format!("  partition {}  offset {}", head.partition, head.base_offset));
                }
                if head.kind == RecordKind::Batch {
                    line.push_str(&format!("  records {}", head.count));
                    if head.producer != ProducerId::NONE {
                        let (producer, epoch, sequence) = (head.producer, head.producer_epoch, head.base_sequence);
                        line.push_str(&format!("  producer {producer}/{epoch}  sequence {sequence}"));
                    }
                }
                if head.shard == ShardId(0) {
                    line.push_str("  (metadata)");
                }
                out::line(line);
            }
        })
    })
}

/// Judges each log as a start would.
pub fn verify(data_dir: &Path) -> Result<(), UserError> {
    each_core(data_dir, |_, volume, owner| inspect::verify(volume, owner))
}

/// Does `look` for each core; goes on after a refusal, and ends with the first.
fn each_core(data_dir: &Path, mut look: impl FnMut(CoreId, &RealVolume, Owner) -> Report) -> Result<(), UserError> {
    let identity = identity(data_dir)?;
    let _lock = data_dir::hold_for_reading(data_dir)?;
    let cluster = data_dir::uuid_of(&identity.cluster_id);
    let mut first = None;
    for core in (0..identity.cores).map(|core| CoreId(core as u16)) {
        let dir = data_dir::core_dir(data_dir, core);
        let judged = data_dir::check_log_is_there(data_dir, core).and_then(|()| {
            let volume = RealVolume::open(&dir, false).map_err(|e| errors::data_dir_io(&dir, "listing it", &e))?;
            let report = look(core, &volume, Owner { cluster, core: Some(core) });
            match summary(core, &report) {
                Some(refusal) => Err(errors::of_wal(data_dir, core, &refusal)),
                None if report.groups == 0 && data_dir::was_begun(data_dir, core)? => {
                    Err(errors::wal_missing(&dir, core, errors::NO_GROUP_LEFT))
                }
                None => Ok(()),
            }
        });
        if let Err(error) = judged {
            // All of them are shown, the first one is the answer.
            match &first {
                None => first = Some(error),
                Some(_) => out::error(&error),
            }
        }
    }
    first.map_or(Ok(()), Err)
}

/// Whose directory it is; without that, nothing in it can be judged.
fn identity(data_dir: &Path) -> Result<Identity, UserError> {
    data_dir::read_identity(data_dir)?.ok_or_else(|| {
        errors::data_dir_identity(data_dir, "there is no camus.toml: this is no data directory of Camus")
    })
}

/// Says what the log is like; returns what a start would refuse.
fn summary(core: CoreId, report: &Report) -> Option<WalError> {
    let verdict = match (&report.refusal, &report.dropped) {
        (Some(_), _) => "DAMAGED".to_owned(),
        (None, None) => "whole".to_owned(),
        (None, Some(dropped)) => format!(
            "whole; an unfinished write at its end ({}, block {}, LSN {}) was never acknowledged and is left out",
            dropped.file,
            dropped.offset / BLOCK_BYTES as u64,
            dropped.lsn
        ),
    };
    out::line(format!(
        "core {core}: {verdict}; {} segment{}, {} groups, {} records, LSN {} to {}",
        report.segments,
        if report.segments == 1 { "" } else { "s" },
        report.groups,
        report.records,
        report.first,
        report.last
    ));
    for (path, bytes, role) in &report.files {
        let role = match role {
            Role::Live { groups } => format!("{groups} groups"),
            Role::Free => "free, to be used again".to_owned(),
            Role::Blank => "prepared, not used yet".to_owned(),
            Role::Unknown => "unknown: not of a log, not touched".to_owned(),
        };
        out::line(format!("  {path}  {}  {role}", out::bytes(*bytes)));
    }
    report.refusal.clone()
}

fn kind_name(kind: RecordKind) -> &'static str {
    match kind {
        RecordKind::HardState => "hard-state",
        RecordKind::Snapshot => "snapshot",
        RecordKind::Noop => "noop",
        RecordKind::Batch => "batch",
        RecordKind::Trim => "trim",
        RecordKind::Meta => "meta",
        RecordKind::Membership => "membership",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_dir::DataDir;

    #[test]
    fn an_empty_log_is_whole_and_a_strange_directory_is_refused() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        assert_eq!(verify(dir.path()).expect_err("no data directory").code, "CAM-0104");
        let mut held = DataDir::open(dir.path()).expect("new");
        held.claim("HS86S1xtfo-QABAgMEBQYA", None, 2).expect("written");
        assert_eq!(verify(dir.path()).expect_err("a broker has it").code, "CAM-0102");
        drop(held);
        verify(dir.path()).expect("nothing in it is damaged");
        dump(dir.path()).expect("nothing in it is damaged");
        data_dir::note_begun(dir.path(), CoreId(1)).expect("written");
        assert_eq!(verify(dir.path()).expect_err("a start would refuse it").code, "CAM-0107");
    }
}
