//! Every bound of the engine, with its unit last and its reason beside it. Nothing in the engine grows without one.

/// The unit of direct I/O, bytes: every WAL write begins at a multiple of it and is a multiple of it long.
pub const BLOCK_BYTES: usize = 4096;

/// Cores of one broker. The mesh has a lane for each ordered pair.
pub const CORES_MAX: usize = 64;

/// Data shards on one core. With three replicas each core carries three times as many groups.
pub const SHARDS_PER_CORE: usize = 4;

/// A WAL group, padding included, that is closed though the device is free. Larger ones would not fill it better.
pub const WAL_GROUP_BYTES_MAX: usize = 1024 * 1024;
/// Groups in flight per WAL. More would not fill the device better, and recovery weighs this many at most.
pub const WAL_GROUPS_IN_FLIGHT_MAX: usize = 4;
/// What the open group holds at least, for each group in flight, before it is written beside them. Less gains nothing
/// at the device, whose flushes go one after the other, and costs one flush more (docs/adr/0002).
pub const WAL_GROUP_BESIDE_BYTES: usize = 256 * 1024;
/// One buffer of the WAL's pool. A group lies in one chunk; a chunk holds one or many groups.
pub const WAL_CHUNK_BYTES: usize = WAL_GROUP_BYTES_MAX;
/// A record body that the WAL takes. A larger one than a chunk gets a chunk of its own.
pub const WAL_RECORD_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Default size of a WAL segment file.
pub const WAL_SEGMENT_BYTES: u64 = 64 * 1024 * 1024;
/// The smallest segment: it must hold the largest record with its headers.
pub const WAL_SEGMENT_BYTES_MIN: u64 = 1024 * 1024;
/// Segments that are pre-written ahead of their use.
pub const WAL_SPARE_SEGMENTS_MAX: usize = 2;
/// Released segments that are kept to be used again: one of so many that the disk limit allows. The rest is removed.
pub const WAL_SPARES_KEPT_DIVISOR: usize = 2;
/// Segments over the disk limit that a log at its limit may take for what frees space and for a start's elections.
pub const WAL_SEGMENTS_OVER_LIMIT_MAX: usize = 2;
/// Rest after which a group without records says that the last ones are on the media (docs/adr/0002), ms.
pub const WAL_MARK_IDLE_MS: u64 = 250;
/// How often a segment that found no space is tried again, ms.
pub const WAL_PREPARE_RETRY_MS: u64 = 1000;

/// Raft messages with entries that are under way to one follower. A deep pipeline defeats batching (docs/adr/0003).
pub const REPLICA_INFLIGHT_MESSAGES_MAX: usize = 4;
/// Entries of one Raft message that are read back from the log.
pub const REPLICA_MESSAGE_ENTRIES_MAX: usize = 256;
/// Entries of a shard that are proposed and not committed.
pub const REPLICA_UNCOMMITTED_ENTRIES_MAX: usize = 65_536;
/// Entries whose length and checksum a replica with followers keeps in memory. Older ones are looked up in the WAL.
pub const REPLICA_TAIL_ENTRIES_MAX: usize = 4096;
/// What a follower may lack and still get from its leader's log: entries of a shard that are kept for it though nothing
/// else needs them. One that lacks more waits for a snapshot from the bucket. 12 bytes each in memory.
pub const REPLICA_LAG_ENTRIES_MAX: usize = 65_536;
/// And of all segments that the log may have, one of so many are kept for it at most: a broker that is away must not
/// fill the disks of the others.
pub const REPLICA_LAG_SEGMENTS_DIVISOR: usize = 2;
/// Of all segments that the log of one of several brokers may have, one of so many are left by what it takes in as a
/// leader itself: for entries that other leaders have taken, and that have to be passed on the way to a deletion.
pub const REPLICA_OTHERS_SEGMENTS_DIVISOR: usize = 4;
/// How long it counts that a follower has said that its log is at its limit, ms: who is silent is not waited for.
/// Longer than some heartbeats take.
pub const REPLICA_AT_LIMIT_HEARD_MS: u64 = 500;
/// For how long a voter may lack the same entries before it is given up where the log is at its limit and nothing but
/// these holds it there, ms. Longer than a restart takes.
pub const REPLICA_GIVEN_UP_MS: u64 = 30_000;
/// What is kept for one that is given up leaves so many segments to own entries: the open one, the one after it, and
/// the spare that stays for what frees space.
pub const REPLICA_OWN_SEGMENTS_MIN: usize = 3;
/// Bodies of one message between replicas, record heads included, unless one entry alone is larger: it must fit into a
/// group beside others, where it is taken in. Also what is read from the disk at once for a follower.
pub const REPLICA_MESSAGE_BYTES_MAX: usize = 256 * 1024;
/// Messages with entries that wait for a follower's turn, of which the first may wait for the disk. Raft sends again
/// what is over it.
pub const REPLICA_OUTBOX_MESSAGES_MAX: usize = 64;
/// Messages of leaders that a core holds back because its WAL has no room. What is over it is lost and sent again.
pub const REPLICA_PARKED_MESSAGES_MAX: usize = 16;
/// Brokers of one cluster: each has a copy of everything, and a leader sends to all others.
pub const BROKERS_MAX: usize = 9;
const _: () = assert!(REPLICA_TAIL_ENTRIES_MAX <= REPLICA_LAG_ENTRIES_MAX);
const _: () = assert!(REPLICA_MESSAGE_BYTES_MAX <= WAL_GROUP_BYTES_MAX / 2);

/// A request frame, bytes: Kafka's `socket.request.max.bytes` default.
pub const FRAME_BYTES_MAX: usize = 100 * 1024 * 1024;
/// Default of `message.max.bytes`: a record batch, Kafka's default.
pub const BATCH_BYTES_DEFAULT: usize = 1_048_588;
/// The largest value that `message.max.bytes` and `max.message.bytes` may take.
pub const BATCH_BYTES_MAX: usize = WAL_RECORD_BYTES_MAX;

/// Batches of a producer and partition that are remembered (Kafka's five: KIP-98, KIP-679).
pub const PRODUCER_BATCHES_MAX: usize = 5;
/// Producers that one partition remembers; the one idle longest is forgotten first.
pub const PRODUCERS_PER_PARTITION_MAX: usize = 10_000;
/// Leader epochs whose first offset a partition remembers; the oldest is forgotten first.
pub const EPOCHS_PER_PARTITION_MAX: usize = 4096;
/// Records at fault that the refusal of one batch names. A batch may have a million; its answer stays small.
pub const RECORD_ERRORS_MAX: usize = 100;

/// Partitions of one topic.
pub const PARTITIONS_PER_TOPIC_MAX: usize = 10_000;
/// Partitions of the cluster.
pub const PARTITIONS_MAX: usize = 100_000;

/// Messages that wait in one lane of the mesh. A full lane is backpressure to the client.
pub const MESH_LANE_MAX: usize = 1024;
/// Producers of a core whose first batch was refused, to be sent again; the oldest is forgotten first.
pub const TURNED_AWAY_PRODUCERS_MAX: usize = 1000;
/// Requests that a core holds back because the WAL has no room.
pub const PARKED_PRODUCES_MAX: usize = 4096;

/// What a compressed batch may grow to when its records are read: a bomb stops here.
pub const DECOMPRESSED_BYTES_MAX: usize = 128 * 1024 * 1024;
/// What any compressed batch may grow to, however small it is: Kafka clients build batches of 1 MiB by default, so this
/// is far above honest use, and unpacking it costs a core a few ms.
pub const DECOMPRESSED_BYTES_FREE: usize = 16 * 1024 * 1024;
/// Above [`DECOMPRESSED_BYTES_FREE`] each byte sent may stand for this many. Real records stay far below it (codecs
/// reach 1000 and more on zeros only).
pub const DECOMPRESSED_RATIO_MAX: usize = 128;

/// What a batch may unpack to that its topic wants packed anew by gzip or zstd (`compression.type`): 10 ms of a core or
/// so. A larger one stays in the codec that it came in.
pub const PACK_SLOW_BYTES_MAX: usize = 512 * 1024;
/// The same for snappy, lz4 and no codec, which take an eighth of the time.
pub const PACK_FAST_BYTES_MAX: usize = 8 * PACK_SLOW_BYTES_MAX;
/// What a core packs in one turn, in bytes of the faster codecs; batches behind it wait for the next one. So a turn is
/// over in some 20 ms whatever is asked for, and whoever else is served by the core has its turn.
pub const PACK_WORK_PER_TURN: usize = PACK_FAST_BYTES_MAX;

/// Entries of a ring's submission queue. What does not fit waits in a backlog; a system call takes this many at most.
pub const RING_ENTRIES: u32 = 512;
/// Entries of a ring's completion queue. What does not fit is kept by the kernel (IORING_FEAT_NODROP).
pub const RING_COMPLETIONS: u32 = 4096;
/// Buffers that a core receives into; a power of two (the kernel's ring). They are given back within the turn.
pub const RECV_BUFFERS: u16 = 256;
/// One of them. With more, a large request takes fewer turns; all of them together are what one turn can receive.
pub const RECV_BUFFER_BYTES: usize = 16 * 1024;
/// Parts that one operation sends: as many as the kernel allows. A fetch of small batches has one for each.
pub const SEND_PARTS_MAX: usize = 1024;
/// Bytes that one operation sends: the kernel copies them within the turn that submits it, and everybody else on the
/// core waits meanwhile. Smaller ones cost more for the same bytes (docs/adr/0012).
pub const SEND_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Connections that wait to be accepted, per listener.
pub const LISTEN_BACKLOG: i32 = 1024;
/// Clients of one core, if nothing else is said. Each needs a descriptor.
pub const CONNS_PER_CORE_DEFAULT: usize = 10_000;
/// Listeners of one core.
pub const LISTENERS_MAX: usize = 16;
/// WAL files that a core's disk keeps open; the one used longest ago is closed first.
pub const FILES_OPEN_MAX: usize = 256;

const _: () = assert!(RECV_BUFFERS.is_power_of_two());
const _: () = assert!(WAL_GROUP_BYTES_MAX.is_multiple_of(BLOCK_BYTES));
const _: () = assert!(WAL_CHUNK_BYTES >= WAL_GROUP_BYTES_MAX);
const _: () = assert!(WAL_SEGMENT_BYTES >= 2 * WAL_RECORD_BYTES_MAX as u64);
const _: () = assert!(BATCH_BYTES_DEFAULT < WAL_RECORD_BYTES_MAX);
const _: () = assert!(BATCH_BYTES_MAX < FRAME_BYTES_MAX);
const _: () =
    assert!(DECOMPRESSED_BYTES_FREE >= BATCH_BYTES_DEFAULT && DECOMPRESSED_BYTES_FREE <= DECOMPRESSED_BYTES_MAX);
const _: () = assert!(DECOMPRESSED_BYTES_MAX > BATCH_BYTES_MAX);

/// Reads of the WAL's files at the disk at once, per core.
pub const DISK_READS_IN_FLIGHT_MAX: usize = 32;
/// The bytes of these reads together: enough to keep a device busy, and what a durable write may have to wait behind.
pub const DISK_READ_BYTES_IN_FLIGHT_MAX: usize = 4 * 1024 * 1024;
/// One read of the disk: a run of neighbouring batches. A batch that is larger is one read.
pub const DISK_READ_BYTES_MAX: usize = 1024 * 1024;
/// Reads of one answer: a fetch whose batches lie far apart gets some of them, and asks again.
pub const DISK_READ_RUNS_MAX: usize = 16;
/// What lies between two batches of a run and is read for nothing, at most.
pub const DISK_READ_GAP_BYTES_MAX: u32 = 64 * 1024;
/// Memory that reads of the disk use again and again; touched as it is used. It is no bound: what is held of reads has
/// its own, and what is beyond this is allocated.
pub const DISK_READ_POOL_BYTES: usize = 64 * 1024 * 1024;
/// What is read ahead of one reader that goes through a partition in order.
pub const READ_AHEAD_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Such readers that a core remembers. More of them are served, without reading ahead.
pub const READ_STREAMS_MAX: usize = 64;

/// One part of a shard's snapshot: it must fit into a group beside other records.
pub const SNAPSHOT_PART_BYTES_MAX: usize = 512 * 1024;
const _: () = assert!(SNAPSHOT_PART_BYTES_MAX <= WAL_GROUP_BYTES_MAX / 2);
