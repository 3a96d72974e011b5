//! Every bound of the wire, with its unit last and its reason beside it.

use camus_engine::limits::{BATCH_BYTES_MAX, FRAME_BYTES_MAX, PARTITIONS_MAX};

/// The smallest request frame: API key, version and correlation id.
pub const FRAME_BYTES_MIN: usize = 8;
/// Elements of all arrays of one request together: every partition of the cluster, twice. In memory an element may take
/// a hundred times what it takes on the wire; this many take 20 MB.
pub const REQUEST_ELEMENTS_MAX: usize = 2 * PARTITIONS_MAX;
/// Tagged fields of one struct. Kafka's largest has fewer than ten.
pub const TAGS_MAX: usize = 64;

/// Requests of one connection that are read and not yet answered. Producers have five; more would only queue here
/// instead of in the socket.
pub const CONN_REQUESTS_MAX: usize = 64;
/// Bytes of these requests at which no more is read. One frame may go over it.
pub const CONN_REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Answers that the client has not taken yet, bytes, at which no further request is begun. One answer may go over it.
pub const CONN_OUTPUT_BYTES_MAX: usize = 1024 * 1024;
/// What a frame's buffer grows by at first. The announced length is believed as far as bytes have come.
pub const RECEIVE_STEP_BYTES: usize = 16 * 1024;

/// Partitions in all fetch sessions of one core.
pub const SESSION_PARTITIONS_MAX: usize = 2 * PARTITIONS_MAX;
/// How long a fetch session is safe from eviction since it was used last, ms (Kafka's
/// `MinIncrementalFetchSessionEvictionMs`).
pub const SESSION_EVICTION_MS_MIN: u64 = 120_000;

const _: () = assert!(CONN_REQUEST_BYTES_MAX < FRAME_BYTES_MAX);
const _: () = assert!(BATCH_BYTES_MAX < FRAME_BYTES_MAX);
const _: () = assert!(FRAME_BYTES_MAX <= i32::MAX as usize);

/// Messages that wait for a full lane of the mesh, to one core, at which no further request is begun.
pub const OUTBOX_MAX: usize = 4096;
/// Messages of other cores that are taken in one turn.
pub const MESH_PER_TURN_MAX: usize = 4096;
/// How often in one turn answers may lead to further requests, before the shell is asked for what came meanwhile.
pub const ROUNDS_PER_TURN_MAX: usize = 4;
/// A disk that has not ended anything for this long, though the log waits for it, hangs, and `/readyz` says so. A slow
/// one ends something meanwhile.
pub const DISK_HANGS_AFTER: std::time::Duration = std::time::Duration::from_secs(5);
/// What runs when the broker is told to stop has this long to end.
pub const STOP_GRACE: std::time::Duration = std::time::Duration::from_secs(8);
/// A client that is in the way and moves nothing for this long is closed when memory is short.
pub const CLIENT_STUCK: std::time::Duration = std::time::Duration::from_secs(10);
/// The same when answers take more than their half of the clients' budget, or batches have no room in the log because
/// answers hold its buffers; or when requests do, for the one that has the turn. Others wait for it.
pub const CLIENT_STUCK_SHORT: std::time::Duration = std::time::Duration::from_secs(1);
/// What a connection may hold of requests and still go on when larger ones wait for their turn, as long as the
/// whole budget of clients is not spent.
pub const CONN_SMALL_BYTES: usize = 64 * 1024;
/// What the connection that has the turn has to bring in each [`TURN_LOOK_EVERY`] while its request is not whole. One
/// that waited for its turn has as much in its socket; who brings less is slow by itself, and is closed: others wait.
pub const TURN_BYTES_MIN: usize = 64 * 1024;
pub const TURN_LOOK_EVERY: std::time::Duration = std::time::Duration::from_millis(250);
/// While clients are over their budget, how often it is looked whether somebody is stuck.
pub const SHED_EVERY: std::time::Duration = std::time::Duration::from_millis(100);
/// Once receives bring little at a time they do so for this long: to change it costs something for each connection.
pub const SPARE_FOR: std::time::Duration = std::time::Duration::from_secs(1);
/// One fetch takes at most this part of what is left for answers, so that the answers of a few that do not read leave
/// room for others. A batch is given whatever is left.
pub const FETCH_SHARE: usize = 4;
/// When batches wait this long for room in the WAL, clients that are stuck are closed: they may hold its buffers.
pub const WAL_STARVED: std::time::Duration = std::time::Duration::from_secs(2);
/// How often idle connections are looked for.
pub const IDLE_CHECK_EVERY: std::time::Duration = std::time::Duration::from_secs(1);
