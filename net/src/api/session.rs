//! Incremental fetch sessions (KIP-227).

/// The fetch sessions of one core.
#[derive(Debug, Default)]
pub struct Sessions {}
