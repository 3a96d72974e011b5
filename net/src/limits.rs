//! Every bound of the wire, with its unit last and its reason beside it.

use camus_engine::limits::{
    BATCH_BYTES_MAX, BROKERS_MAX, FRAME_BYTES_MAX, PARTITIONS_MAX, REPLICA_MESSAGE_BYTES_MAX,
    REPLICA_MESSAGE_ENTRIES_MAX, WAL_RECORD_BYTES_MAX,
};
use camus_engine::wal::format::RECORD_HEAD_BYTES;

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
/// A shard of a cluster without a leader for this long will not get one soon, and `/readyz` says so. An election takes
/// a part of a second.
pub const LEADERLESS_AFTER: std::time::Duration = std::time::Duration::from_secs(2);
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

/// A frame between brokers: the largest record beside the heads of a message with many small ones.
pub const PEER_FRAME_BYTES_MAX: usize = WAL_RECORD_BYTES_MAX + 1024 * 1024;
/// Entries of one message between replicas: as many empty ones as the sender puts into
/// [`camus_engine::limits::REPLICA_MESSAGE_BYTES_MAX`], and some.
pub const PEER_ENTRIES_MAX: usize = 4096;
/// Raft's own few bytes in a message.
pub const PEER_CONTEXT_BYTES_MAX: usize = 256;
/// The largest command that is passed on to the broker that leads the meta shard.
pub const PEER_COMMAND_BYTES_MAX: usize = 1024 * 1024;
/// What a connection may bring before it has said whose it is.
pub const PEER_HELLO_BYTES_MAX: usize = 1024;
/// What waits on the way to one broker at which messages with bodies are lost. One may go over it.
pub const PEER_QUEUE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Frames that wait there at which all of them are lost.
pub const PEER_QUEUE_FRAMES_MAX: usize = 16_384;
/// What is sent at once, unless one frame is larger.
pub const PEER_SEND_BYTES_MAX: usize = 1024 * 1024;
/// Connections of other brokers to one core: each has one, and may have a new one beside one that is dead.
pub const PEER_GUESTS_MAX: usize = 4 * BROKERS_MAX;
/// How often a broker says over a link that it is there, and asks the same of the other end.
pub const PEER_PING_EVERY: std::time::Duration = std::time::Duration::from_millis(500);
/// A link whose other end says nothing for this long is closed, and made anew: TCP alone would wait for minutes.
pub const PEER_SILENT_MAX: std::time::Duration = std::time::Duration::from_secs(3);
/// What a connection has to come up in, hellos included.
pub const PEER_HELLO_MAX: std::time::Duration = std::time::Duration::from_secs(2);
/// The pause before a link is tried again: doubled each time, up to the second one.
pub const PEER_RETRY_MIN: std::time::Duration = std::time::Duration::from_millis(20);
pub const PEER_RETRY_MAX: std::time::Duration = std::time::Duration::from_secs(1);
/// After a hello that does not fit: it will not, until somebody changes a setting.
pub const PEER_RETRY_MISMATCH: std::time::Duration = std::time::Duration::from_secs(5);
/// Commands of this broker that the leader of the meta shard has been asked to write.
pub const FORWARDS_MAX: usize = 4096;
/// Commands that wait for somebody to lead the meta shard: how many, how large together, and for how long (an election
/// takes a part of a second). What is over it is refused at once.
pub const FORWARDS_HELD_MAX: usize = 1024;
pub const FORWARDS_HELD_BYTES_MAX: usize = 4 * 1024 * 1024;
pub const FORWARD_HELD_MAX: std::time::Duration = std::time::Duration::from_secs(2);
/// After this a command that was passed on is answered as one that may or may not have been written.
pub const FORWARD_MAX: std::time::Duration = std::time::Duration::from_secs(5);

const _: () = assert!(PEER_ENTRIES_MAX > REPLICA_MESSAGE_BYTES_MAX / RECORD_HEAD_BYTES);
const _: () = assert!(REPLICA_MESSAGE_ENTRIES_MAX <= PEER_ENTRIES_MAX);
const _: () =
    assert!(PEER_COMMAND_BYTES_MAX < PEER_FRAME_BYTES_MAX && REPLICA_MESSAGE_BYTES_MAX < PEER_FRAME_BYTES_MAX);
const _: () = assert!(PEER_SILENT_MAX.as_millis() > 2 * PEER_PING_EVERY.as_millis());
