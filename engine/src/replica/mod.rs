//! One shard's copy on this core: Raft, and nothing of what the entries mean.
