//! The cores: one pinned thread each, with its WAL, its shards and its connections.

use crate::board::Board;
use crate::errors::{self, UserError};
use crate::serve::{Cores, Plan};
use crate::shutdown::Shutdown;
use std::sync::Arc;

/// Starts every core; returns when all of them serve, or with the first thing that does not let them.
pub fn start(plan: &Plan, _board: &Arc<Board>, _shutdown: &Arc<Shutdown>) -> Result<Box<dyn Cores>, UserError> {
    Err(errors::core_failed(0, &format!("this build has no cores to run in {}", plan.data_dir.display())))
}
