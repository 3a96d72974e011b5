//! One file for each API: what a request means and what is answered.
//!
//! A handler is a function of the request and of what this core knows ([`Ctx`]). It returns an [`Outcome`]: the answer,
//! or what must be asked first and how to go on from there. No handler does I/O or waits.

use bytes::Bytes;
use camus_engine::shard::api::{Answer, Ask};
use camus_engine::types::Mono;
use camus_meta::groups::{GroupAnswer, GroupAsk};
use camus_meta::{Command, Decided};
use std::net::IpAddr;

/// One request, cut from the wire; its header is decoded and its version is one that we advertise.
#[derive(Clone, Debug)]
pub struct Request {
    pub key: i16,
    pub version: i16,
    pub client_id: Option<String>,
    /// What follows the request header.
    pub body: Bytes,
    pub received: Mono,
    /// The address of the listener as this client is to be told of it (host, port).
    pub advertised: (String, u16),
    /// Where the client connects from.
    pub peer: IpAddr,
}

/// The body of an answer, in parts that are sent one after the other; the response header is not in it.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub parts: Vec<Bytes>,
}

impl Reply {
    pub fn one(part: Bytes) -> Reply {
        Reply { parts: vec![part] }
    }
}

/// Why a sleeping request goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woke {
    /// Its time is up.
    Deadline,
    /// Something that it watches has moved.
    Moved,
}

pub type AfterAsk = Box<dyn FnOnce(&mut Ctx<'_>, Vec<Answer>) -> Outcome>;
pub type AfterMeta = Box<dyn FnOnce(&mut Ctx<'_>, Vec<Decided>) -> Outcome>;
pub type AfterGroup = Box<dyn FnOnce(&mut Ctx<'_>, GroupAnswer) -> Outcome>;
pub type AfterSleep = Box<dyn FnOnce(&mut Ctx<'_>, Woke) -> Outcome>;

/// What a handler wants next.
pub enum Outcome {
    Reply(Reply),
    /// The request is over and has no answer (acks=0).
    Silent,
    /// The request can not be understood, or has no other way to say no: the connection is closed.
    Close(&'static str),
    /// Ask the shards, then go on with the answers, in the order of the questions. Each question has exactly one
    /// answer. An empty list goes on at once.
    Ask(Vec<Ask>, AfterAsk),
    /// Put commands to the meta shard, then go on with what it decided, once every core of this broker has seen it.
    Meta(Vec<Command>, AfterMeta),
    /// Ask the coordinator of groups, then go on with its answer, which may come much later (JoinGroup, SyncGroup).
    Group(GroupAsk, AfterGroup),
    /// Wait until then, or until something moves that an `Ask::Read { watch: true }` of this request named. What has
    /// moved since that read wakes at once.
    Sleep(Mono, AfterSleep),
}

pub use ctx::{Ctx, NO_OFFSET, Settings};
mod ctx;
#[cfg(test)]
mod group_tests;
pub mod messages;
pub mod session;
pub mod table;
#[cfg(test)]
mod testing;

pub mod alter_client_quotas;
pub mod alter_configs;
pub mod alter_partition_reassignments;
pub mod alter_user_scram_credentials;
pub mod api_versions;
pub mod consumer_group_describe;
pub mod consumer_group_heartbeat;
pub mod create_acls;
pub mod create_partitions;
pub mod create_topics;
pub mod delete_acls;
pub mod delete_groups;
pub mod delete_records;
pub mod delete_topics;
pub mod describe_acls;
pub mod describe_client_quotas;
pub mod describe_cluster;
pub mod describe_configs;
pub mod describe_groups;
pub mod describe_log_dirs;
pub mod describe_producers;
pub mod describe_quorum;
pub mod describe_topic_partitions;
pub mod describe_user_scram_credentials;
pub mod elect_leaders;
pub mod fetch;
pub mod find_coordinator;
pub mod groups;
pub mod heartbeat;
pub mod incremental_alter_configs;
pub mod init_producer_id;
pub mod join_group;
pub mod leave_group;
pub mod list_config_resources;
pub mod list_groups;
pub mod list_offsets;
pub mod list_partition_reassignments;
pub mod metadata;
pub mod offset_commit;
pub mod offset_delete;
pub mod offset_fetch;
pub mod offset_for_leader_epoch;
pub mod produce;
pub mod sync_group;
pub mod update_features;
