//! `brokers.toml` in the data directory of a broker of a cluster: which data directories the other brokers have.
//!
//! Made when the first of them is met, and written anew a few times until all are. What is in it is never taken back
//! by Camus: a broker that comes with another directory has lost what it acknowledged (docs/adr/0013).

use crate::data_dir::{self, Identity};
use crate::errors::{self, UserError};
use camus_engine::types::{BrokerId, CoreId};
use camus_net::peer::roll::{DirectoryId, Keep, Known, Roll};
use std::io;
use std::path::{Path, PathBuf};

pub const ROLL_FILE: &str = "brokers.toml";

/// The roll of the broker whose directory this is; none if it is alone.
pub fn read(data_dir: &Path, identity: &Identity) -> Result<Option<Roll>, UserError> {
    let Some(own) = identity.directory else { return Ok(None) };
    let others = identity.brokers.iter().filter(|id| **id != identity.node_id).map(|id| BrokerId(*id)).collect();
    let damaged = |why: &str| errors::data_dir_roll(data_dir, why);
    let known = match std::fs::read_to_string(data_dir.join(ROLL_FILE)) {
        Ok(text) => parse(&text).map_err(|why| damaged(&why))?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            for core in (0..identity.cores).map(|core| CoreId(core as u16)) {
                if data_dir::was_begun(data_dir, core)? {
                    return Err(damaged("it is missing though there is data beside it"));
                }
            }
            Known::default()
        }
        Err(e) => return Err(damaged(&e.to_string())),
    };
    let mut unknown = identity.brokers.iter().filter(|id| **id != identity.node_id);
    if known.formed && !unknown.all(|id| known.directories.contains_key(&BrokerId(*id))) {
        return Err(damaged("a directory is missing in it"));
    }
    let keep = RollFile { data_dir: data_dir.to_path_buf() };
    Ok(Some(Roll::new(own, others, known, Box::new(keep))))
}

fn parse(text: &str) -> Result<Known, String> {
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| e.message().to_owned())?;
    let formed =
        table.get("formed").and_then(toml::Value::as_bool).ok_or("'formed' is missing or not true or false")?;
    let listed = table.get("directories").and_then(toml::Value::as_table).ok_or("'directories' is missing")?;
    let one = |(id, directory): (&String, &toml::Value)| {
        let directory = directory.as_str().and_then(DirectoryId::parse);
        let id = id.parse().ok().filter(|id| *id >= 0).map(BrokerId);
        id.zip(directory).ok_or("'directories' is no list of brokers and ids")
    };
    let directories = listed.iter().map(one).collect::<Result<_, _>>()?;
    Ok(Known { directories, formed })
}

fn text_of(known: &Known) -> String {
    let mut text = format!(
        "# The data directories of the other brokers: Camus speaks with no others. Written by camus serve.\n\
         formed = {}\n\n[directories]\n",
        known.formed
    );
    for (broker, directory) in &known.directories {
        text.push_str(&format!("{} = \"{directory}\"\n", broker.0));
    }
    text
}

#[derive(Debug)]
struct RollFile {
    data_dir: PathBuf,
}

impl Keep for RollFile {
    fn keep(&self, known: &Known) -> io::Result<()> {
        data_dir::replace_file(&self.data_dir, ROLL_FILE, &text_of(known))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use camus_net::peer::roll::Said;

    fn identity() -> Identity {
        Identity {
            cluster_id: "HS86S1xtfo-QABAgMEBQYA".to_owned(),
            node_id: 2,
            cores: 1,
            brokers: vec![1, 2, 3],
            directory: Some(DirectoryId::from_bytes([2; 16])),
        }
    }

    fn said(n: u8) -> Said {
        Said { theirs: DirectoryId::from_bytes([n; 16]), yours: DirectoryId::from_bytes([2; 16]) }
    }

    /// If this fails, a broker that was started again speaks with whoever comes, also with one that lost its disk.
    #[test]
    fn whom_a_broker_has_met_it_knows_after_a_restart() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let roll = || read(dir.path(), &identity()).expect("readable").expect("of a cluster");
        let first = roll();
        first.meet(BrokerId(1), said(1)).expect("the first time");
        assert!(!roll().is_formed(), "broker 3 is not there yet");
        first.meet(BrokerId(3), said(3)).expect("the first time");
        let again = roll();
        assert!(again.is_formed());
        assert_eq!(again.of(BrokerId(3)), DirectoryId::from_bytes([3; 16]));
        assert!(again.meet(BrokerId(3), said(9)).is_err());
        let alone = Identity { brokers: Vec::new(), directory: None, ..identity() };
        assert!(read(dir.path(), &alone).expect("nothing to read").is_none());
    }

    /// If this fails, a broker that took part forgets with whom, because a file was removed or damaged.
    #[test]
    fn a_roll_that_is_damaged_or_missing_is_not_guessed() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let id = DirectoryId::from_bytes([1; 16]);
        for text in [
            "not toml".to_owned(),
            "formed = true\n".to_owned(),
            format!("[directories]\n1 = \"{id}\"\n"),
            "formed = false\n[directories]\n1 = \"x\"\n".to_owned(),
            format!("formed = false\n[directories]\nx = \"{id}\"\n"),
            format!("formed = true\n[directories]\n1 = \"{id}\"\n"),
        ] {
            std::fs::write(dir.path().join(ROLL_FILE), &text).expect("written");
            assert_eq!(read(dir.path(), &identity()).expect_err(&text).code, "CAM-0104");
        }
        std::fs::remove_file(dir.path().join(ROLL_FILE)).expect("removed");
        read(dir.path(), &identity()).expect("it has met nobody");
        data_dir::note_begun(dir.path(), CoreId(0)).expect("written");
        assert_eq!(read(dir.path(), &identity()).expect_err("it had").code, "CAM-0104");
    }
}
