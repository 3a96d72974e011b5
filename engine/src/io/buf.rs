//! Aligned buffers: written once by one owner, then shared without a copy.
//!
//! A [`ChunkPool`] owns one region of memory, reserved at start and touched as it is used. The WAL takes a [`Chunk`],
//! writes a block group into it and freezes that part: from then on it is the disk's source, the follower's payload and
//! the tail cache's bytes at once, and the chunk's rest takes the next group. When the last [`Bytes`] of a chunk is
//! gone, on whichever thread, the chunk is free again.
//!
//! In:  how many bytes are wanted. Out: chunks, or none when the budget is spent: that is backpressure, not an error.

use super::BlockBuf;
use crate::limits::{BLOCK_BYTES, WAL_CHUNK_BYTES};
use bytes::Bytes;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Chunks of one pool at most: each can be a registered buffer of a ring, and a ring takes this many.
const CHUNKS_MAX: usize = 1 << 14;

/// The memory of one core's WAL: chunks of [`WAL_CHUNK_BYTES`] within a budget.
///
/// Lives on the core's thread; what is taken from it may be dropped on any.
pub struct ChunkPool {
    shared: Arc<Shared>,
    budget_bytes: usize,
}

/// What chunks need to find their way home.
struct Shared {
    region: Region,
    /// A set bit is a free chunk. Set by whoever drops the last reference; cleared by the pool's owner only.
    free: Box<[AtomicU64]>,
    in_use_bytes: AtomicUsize,
}

/// One anonymous mapping, page aligned, zero at first. The kernel gives it memory page by page when it is touched.
struct Region {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a region is an address range that it owns; the bytes in it are reached through chunks only, which see to
// their own exclusion (`Chunk`).
unsafe impl Send for Region {}
// SAFETY: as above; `&Region` gives no access to the bytes.
unsafe impl Sync for Region {}

impl Region {
    /// # Panics
    /// When the address space can not be had: at start, where nothing can go on without it.
    fn reserve(bytes: usize) -> Region {
        if bytes == 0 {
            return Region { start: NonNull::dangling(), bytes };
        }
        // SAFETY: a new anonymous mapping at an address that the kernel chooses touches nothing that exists.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert!(at != libc::MAP_FAILED, "no address space for {bytes} bytes: {}", std::io::Error::last_os_error());
        assert!((at as usize).is_multiple_of(BLOCK_BYTES), "a mapping is page aligned");
        Region { start: NonNull::new(at.cast()).expect("a mapping is never at 0"), bytes }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: the mapping of `reserve`, with its length; every chunk of it holds the `Shared` around it, so
            // none is left.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
        }
    }
}

impl ChunkPool {
    /// `budget_bytes` is rounded down to whole chunks. One-off chunks count against it too, so it must be at least the
    /// largest of those that will be asked for.
    ///
    /// # Panics
    /// When the budget is above 16 GiB, or the address space can not be had.
    pub fn new(budget_bytes: usize) -> ChunkPool {
        let chunks = budget_bytes / WAL_CHUNK_BYTES;
        assert!(chunks <= CHUNKS_MAX, "a pool has at most {CHUNKS_MAX} chunks, {chunks} were asked for");
        let budget_bytes = chunks * WAL_CHUNK_BYTES;
        let free = (0..chunks.div_ceil(64)).map(|word| AtomicU64::new(ones((chunks - word * 64).min(64)))).collect();
        let shared = Shared { region: Region::reserve(budget_bytes), free, in_use_bytes: AtomicUsize::new(0) };
        ChunkPool { shared: Arc::new(shared), budget_bytes }
    }

    /// The chunks as addresses, for a ring to register. What is returned keeps the memory, not the chunks.
    pub fn regions(&self) -> PoolRegions {
        PoolRegions(self.shared.clone())
    }

    /// A chunk with room for `bytes`: a pooled one if that is enough, else one of its own, rounded up to blocks. `None`
    /// when the budget does not allow it now.
    pub fn take(&mut self, bytes: usize) -> Option<Chunk> {
        let pooled = bytes <= WAL_CHUNK_BYTES;
        let capacity = if pooled { WAL_CHUNK_BYTES } else { bytes.next_multiple_of(BLOCK_BYTES) };
        // Only this owner adds to the sum, so that nothing comes in between the look and the addition.
        if self.in_use_bytes() + capacity > self.budget_bytes {
            return None;
        }
        let memory = if pooled {
            let index = self.shared.claim().expect("the budget has room for a chunk, so one is free");
            // SAFETY: index < chunks, so the address is inside the region.
            let start = unsafe { self.shared.region.start.add(index * WAL_CHUNK_BYTES) };
            Memory { start, bytes: capacity, home: Home::Pooled { pool: self.shared.clone(), index } }
        } else {
            Memory {
                start: allocate(capacity),
                bytes: capacity,
                home: Home::OneOff { pool: Some(self.shared.clone()) },
            }
        };
        self.shared.in_use_bytes.fetch_add(capacity, Ordering::Relaxed);
        Some(Chunk { memory: Arc::new(memory), frozen: 0, len: 0 })
    }

    /// Memory for one read: a chunk of the pool, with whatever was read into it before, if the read fills most of it
    /// and one is free; else its own. What the disk does not fill never becomes [`Bytes`].
    ///
    /// # Panics
    /// When `bytes` are not whole blocks.
    pub fn for_read(&mut self, bytes: usize) -> AlignedBuf {
        assert!(bytes > 0 && bytes.is_multiple_of(BLOCK_BYTES), "{bytes} bytes are not whole blocks");
        // A small read would hold, and in time touch, a whole chunk.
        let is_near = bytes > WAL_CHUNK_BYTES / 2 && bytes <= WAL_CHUNK_BYTES;
        let chunk = if is_near { self.take(bytes) } else { None };
        match chunk.and_then(|chunk| Arc::into_inner(chunk.memory)) {
            Some(memory) => AlignedBuf { memory, len: bytes },
            None => AlignedBuf::zeroed(bytes),
        }
    }

    /// Bytes of all chunks that are taken or still referred to.
    pub fn in_use_bytes(&self) -> usize {
        self.shared.in_use_bytes.load(Ordering::Acquire)
    }

    pub fn budget_bytes(&self) -> usize {
        self.budget_bytes
    }
}

impl Shared {
    /// Takes a free chunk, the lowest: memory that was touched before is used again first.
    fn claim(&self) -> Option<usize> {
        for (word, bits) in self.free.iter().enumerate() {
            let seen = bits.load(Ordering::Acquire);
            if seen != 0 {
                let bit = seen.trailing_zeros();
                bits.fetch_and(!(1 << bit), Ordering::Acquire);
                return Some(word * 64 + bit as usize);
            }
        }
        None
    }
}

/// The lowest `n` bits set.
fn ones(n: usize) -> u64 {
    if n == 64 { u64::MAX } else { (1 << n) - 1 }
}

/// Zeroed memory at a block's boundary. `bytes` is a multiple of the block and not 0.
fn allocate(bytes: usize) -> NonNull<u8> {
    let layout = block_layout(bytes);
    // SAFETY: the layout is not empty (checked in `block_layout`).
    let at = unsafe { alloc_zeroed(layout) };
    NonNull::new(at).unwrap_or_else(|| handle_alloc_error(layout))
}

fn block_layout(bytes: usize) -> Layout {
    assert!(bytes > 0 && bytes.is_multiple_of(BLOCK_BYTES), "{bytes} bytes are not whole blocks");
    Layout::from_size_align(bytes, BLOCK_BYTES).expect("a block is a power of two and the length is sane")
}

/// The addresses of a pool's chunks; chunk `i` is the registered buffer `i`. Keeps the memory mapped.
#[derive(Clone)]
pub struct PoolRegions(Arc<Shared>);

impl PoolRegions {
    /// Chunks, and so the numbers that [`BlockBuf::registered`] can have.
    pub fn chunks(&self) -> usize {
        self.0.region.bytes / WAL_CHUNK_BYTES
    }

    /// Address and length of a chunk, for the kernel. Reading or writing there is up to whoever holds the chunk.
    pub fn chunk(&self, index: usize) -> (*mut u8, usize) {
        assert!(index < self.chunks(), "chunk {index} of {}", self.chunks());
        (self.0.region.start.as_ptr().wrapping_add(index * WAL_CHUNK_BYTES), WAL_CHUNK_BYTES)
    }

    /// Whether `bytes` lie in the chunk: only then may they be written as registered.
    pub fn holds(&self, index: u16, bytes: &[u8]) -> bool {
        if usize::from(index) >= self.chunks() {
            return false;
        }
        let (start, len) = self.chunk(index.into());
        let (start, at) = (start as usize, bytes.as_ptr() as usize);
        at >= start && at + bytes.len() <= start + len
    }
}

/// The memory of one chunk, and where it goes when the last reference is dropped.
struct Memory {
    start: NonNull<u8>,
    bytes: usize,
    home: Home,
}

enum Home {
    Pooled {
        pool: Arc<Shared>,
        index: usize,
    },
    /// Its own allocation, by `allocate`; counted by a pool or by nobody.
    OneOff {
        pool: Option<Arc<Shared>>,
    },
}

// SAFETY: `Memory` owns its bytes. They are written through the one `Chunk` (or `AlignedBuf`) only, which is not Clone
// and writes beyond its frozen frontier only; shared readers see bytes below that frontier only. So no byte is written
// while another thread can read it, and dropping from another thread is an atomic bit or a plain deallocation.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        match &self.home {
            Home::Pooled { pool, index } => {
                // Release, paired with Acquire in `claim`: what was read here is read before the next owner writes.
                let was = pool.free[index / 64].fetch_or(1 << (index % 64), Ordering::Release);
                assert!(was & (1 << (index % 64)) == 0, "chunk {index} was given back twice");
                // After the bit, and Release: who sees the smaller sum finds a free chunk (`take` relies on it).
                pool.in_use_bytes.fetch_sub(self.bytes, Ordering::Release);
            }
            Home::OneOff { pool } => {
                if let Some(pool) = pool {
                    pool.in_use_bytes.fetch_sub(self.bytes, Ordering::Release);
                }
                // SAFETY: made by `allocate` with this length; this is the last reference.
                unsafe { dealloc(self.start.as_ptr(), block_layout(self.bytes)) };
            }
        }
    }
}

/// The only writer of a chunk's bytes that are not frozen yet.
///
/// Always `frozen <= len <= capacity`; below `frozen` the bytes are shared and never change, beyond it they are this
/// owner's alone. Moves between threads as a whole.
pub struct Chunk {
    memory: Arc<Memory>,
    frozen: usize,
    len: usize,
}

impl Chunk {
    pub fn capacity(&self) -> usize {
        self.memory.bytes
    }

    /// Bytes written, the frozen ones included.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn room(&self) -> usize {
        self.capacity() - self.len
    }

    /// # Panics
    /// When there is no room for all of `bytes`.
    pub fn extend(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.room(), "{} bytes into a room of {}", bytes.len(), self.room());
        // SAFETY: [len, len + n) is inside the chunk (checked) and beyond the frozen frontier, so nobody else reads or
        // writes it; `bytes` can not overlap it, since no shared slice ever covers what is not frozen and `&mut self`
        // ends every borrow by `written_mut`.
        unsafe {
            let to = self.memory.start.as_ptr().add(self.len);
            ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        self.len += bytes.len();
    }

    /// What is written and not frozen.
    pub fn written(&self) -> &[u8] {
        // SAFETY: [frozen, len) is inside the chunk, initialised (the memory was zero at first), and this owner's
        // alone; the borrow of `self` keeps it unchanged.
        unsafe { slice::from_raw_parts(self.memory.start.as_ptr().add(self.frozen), self.len - self.frozen) }
    }

    /// The same, to be changed.
    pub fn written_mut(&mut self) -> &mut [u8] {
        // SAFETY: [frozen, len) is inside the chunk, initialised (the memory was zero at first), and this owner's
        // alone; the borrow of `self` keeps it so.
        unsafe { slice::from_raw_parts_mut(self.memory.start.as_ptr().add(self.frozen), self.len - self.frozen) }
    }

    /// Fills up to the next block with zeros, so that nothing of the chunk's last use gets to the disk.
    pub fn pad_to_block(&mut self) {
        const ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
        self.extend(&ZEROS[..self.len.next_multiple_of(BLOCK_BYTES) - self.len]);
    }

    /// Everything written since the last freeze, shared from now on.
    ///
    /// # Panics
    /// When what is written does not end at a block's boundary ([`Self::pad_to_block`]).
    pub fn freeze(&mut self) -> BlockBuf {
        assert!(self.len.is_multiple_of(BLOCK_BYTES), "frozen at {}: not a block's boundary", self.len);
        let part = Frozen { memory: self.memory.clone(), at: self.frozen, len: self.len - self.frozen };
        self.frozen = self.len;
        let registered = match &self.memory.home {
            Home::Pooled { index, .. } => Some(u16::try_from(*index).expect("a pool has at most 2^14 chunks")),
            Home::OneOff { .. } => None,
        };
        BlockBuf { bytes: Bytes::from_owner(part), registered }
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({} frozen, {} written, {})", self.frozen, self.len, self.capacity())
    }
}

/// A part of a chunk that never changes again.
struct Frozen {
    memory: Arc<Memory>,
    at: usize,
    len: usize,
}

impl AsRef<[u8]> for Frozen {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: [at, at + len) is inside the chunk and below its frozen frontier: initialised, and never written
        // again as long as `memory` is held, which this does.
        unsafe { slice::from_raw_parts(self.memory.start.as_ptr().add(self.at), self.len) }
    }
}

/// Memory at a block's boundary for one read from the disk; becomes [`Bytes`] when it is full.
pub struct AlignedBuf {
    memory: Memory,
    /// Not above the memory's.
    len: usize,
}

impl AlignedBuf {
    /// Zeroed. `bytes` is a multiple of the block and not 0.
    pub fn zeroed(bytes: usize) -> AlignedBuf {
        let memory = Memory { start: allocate(bytes), bytes, home: Home::OneOff { pool: None } };
        AlignedBuf { memory, len: bytes }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: inside the allocation, initialised (it was zero at first), and borrowed through the only owner.
        unsafe { slice::from_raw_parts_mut(self.memory.start.as_ptr(), self.len) }
    }

    /// For the kernel, which writes there while the caller keeps `self`.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.memory.start.as_ptr()
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(Frozen { memory: Arc::new(self.memory), at: 0, len: self.len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pool(chunks: usize) -> ChunkPool {
        ChunkPool::new(chunks * WAL_CHUNK_BYTES)
    }

    /// Lost if it fails: the bound on memory, or the memory itself.
    #[test]
    fn a_chunk_is_free_again_when_its_last_bytes_are_dropped_on_any_thread() {
        let mut pool = pool(2);
        let mut a = pool.take(10).expect("two are free");
        a.extend(b"abc");
        a.pad_to_block();
        let frozen = a.freeze().bytes;
        let b = pool.take(WAL_CHUNK_BYTES).expect("one is free");
        assert!(pool.take(1).is_none(), "the budget is spent");
        drop(a);
        assert!(pool.take(1).is_none(), "the frozen part still holds the chunk");
        let slice = frozen.slice(..3);
        drop(frozen);
        std::thread::scope(|scope| {
            scope.spawn(move || assert_eq!(&slice[..], b"abc"));
        });
        assert_eq!(pool.in_use_bytes(), WAL_CHUNK_BYTES);
        drop(b);
        assert_eq!(pool.in_use_bytes(), 0);
        assert!(pool.take(1).is_some());
    }

    /// Lost if it fails: a record larger than a chunk could not be logged, or would escape the budget.
    #[test]
    fn a_large_record_gets_a_chunk_of_its_own_within_the_budget() {
        let mut pool = pool(4);
        let mut big = pool.take(WAL_CHUNK_BYTES + 1).expect("the budget has room");
        assert_eq!(big.capacity(), WAL_CHUNK_BYTES + BLOCK_BYTES);
        big.extend(&vec![7; WAL_CHUNK_BYTES + BLOCK_BYTES]);
        let frozen = big.freeze();
        assert_eq!(frozen.registered, None);
        assert!((frozen.bytes.as_ptr() as usize).is_multiple_of(BLOCK_BYTES));
        assert!(pool.take(3 * WAL_CHUNK_BYTES).is_none());
        drop((big, frozen));
        assert_eq!(pool.in_use_bytes(), 0);
        assert!(pool.take(4 * WAL_CHUNK_BYTES).is_some());
    }

    /// Lost if it fails: a read would write over what another read has left for its readers, or past its memory.
    #[test]
    fn memory_for_reads_is_used_again_when_nobody_has_it_and_is_never_short() {
        let mut pool = pool(2);
        const MOST: usize = WAL_CHUNK_BYTES - BLOCK_BYTES;
        let mut first = pool.for_read(MOST);
        first.bytes_mut().fill(7);
        assert_eq!(first.len(), MOST);
        let first = first.freeze();
        let at = first.as_ptr();
        let (second, third) = (pool.for_read(WAL_CHUNK_BYTES), pool.for_read(MOST));
        assert_eq!(pool.in_use_bytes(), 2 * WAL_CHUNK_BYTES, "the third has its own");
        assert_eq!(pool.for_read(BLOCK_BYTES).len(), BLOCK_BYTES);
        assert_eq!(pool.for_read(WAL_CHUNK_BYTES + BLOCK_BYTES).len(), WAL_CHUNK_BYTES + BLOCK_BYTES);
        assert!(first.iter().all(|b| *b == 7));
        drop((first, second, third));
        assert_eq!(pool.in_use_bytes(), 0);
        assert_eq!(pool.for_read(MOST).freeze().as_ptr(), at);
    }

    /// Lost if it fails: bytes of a chunk's last use would reach the disk behind a group.
    #[test]
    fn padding_overwrites_what_the_last_user_left() {
        let mut pool = pool(1);
        let mut chunk = pool.take(1).expect("free");
        chunk.extend(&[0xff; 2 * BLOCK_BYTES]);
        drop(chunk);
        let mut chunk = pool.take(1).expect("free again");
        chunk.extend(b"x");
        chunk.pad_to_block();
        let bytes = chunk.freeze().bytes;
        assert_eq!(bytes.len(), BLOCK_BYTES);
        assert!(bytes[1..].iter().all(|b| *b == 0));
    }

    /// Lost if it fails: the kernel would be told that bytes lie in a registered buffer in which they do not.
    #[test]
    fn a_registered_number_is_believed_for_its_own_chunk_only() {
        let (mut pool, mut other) = (pool(2), pool(2));
        let mut chunk = pool.take(1).expect("free");
        chunk.extend(&[1; BLOCK_BYTES]);
        let buf = chunk.freeze();
        let index = buf.registered.expect("pooled");
        assert!(pool.regions().holds(index, &buf.bytes));
        assert!(!pool.regions().holds(index + 1, &buf.bytes));
        assert!(!other.regions().holds(index, &buf.bytes));
        assert!(!pool.regions().holds(99, &buf.bytes));
        assert!(other.take(1).is_some());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Take(usize),
        Write(usize, u8, usize),
        Freeze(usize),
        DropChunk(usize),
        DropFrozen(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (1..WAL_CHUNK_BYTES + 3 * BLOCK_BYTES).prop_map(Step::Take),
            (0..8usize, any::<u8>(), 0..3 * BLOCK_BYTES).prop_map(|(c, b, n)| Step::Write(c, b, n)),
            (0..8usize).prop_map(Step::Freeze),
            (0..8usize).prop_map(Step::DropChunk),
            (0..8usize).prop_map(Step::DropFrozen),
        ];
        proptest::collection::vec(step, 1..60)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Lost if it fails: acknowledged bytes would change under the tail cache or under a write in flight.
        #[test]
        fn what_is_frozen_never_changes_and_the_budget_holds(steps in steps()) {
            let mut pool = pool(3);
            let mut chunks: Vec<(Chunk, Vec<u8>)> = vec![];
            let mut frozen: Vec<(Bytes, Vec<u8>)> = vec![];
            for step in steps {
                match step {
                    Step::Take(n) => {
                        if let Some(chunk) = pool.take(n) {
                            prop_assert!(chunk.capacity() >= n);
                            chunks.push((chunk, vec![]));
                        }
                    }
                    Step::Write(c, byte, n) => if !chunks.is_empty() {
                        let at = c % chunks.len();
                        let (chunk, open) = &mut chunks[at];
                        let n = n.min(chunk.room());
                        chunk.extend(&vec![byte; n]);
                        open.extend(std::iter::repeat_n(byte, n));
                        prop_assert_eq!(&chunk.written_mut()[..], &open[..]);
                    },
                    Step::Freeze(c) => if !chunks.is_empty() {
                        let at = c % chunks.len();
                        let (chunk, open) = &mut chunks[at];
                        chunk.pad_to_block();
                        open.resize(open.len().next_multiple_of(BLOCK_BYTES), 0);
                        let buf = chunk.freeze();
                        prop_assert!(buf.bytes.is_empty() || (buf.bytes.as_ptr() as usize).is_multiple_of(BLOCK_BYTES));
                        frozen.push((buf.bytes, std::mem::take(open)));
                    },
                    Step::DropChunk(c) => if !chunks.is_empty() { let at = c % chunks.len(); chunks.swap_remove(at); },
                    Step::DropFrozen(c) => if !frozen.is_empty() { let at = c % frozen.len(); frozen.swap_remove(at); },
                }
                for (bytes, expected) in &frozen {
                    prop_assert!(bytes[..] == expected[..]);
                }
                prop_assert!(pool.in_use_bytes() <= pool.budget_bytes());
            }
            drop((chunks, frozen));
            prop_assert_eq!(pool.in_use_bytes(), 0);
        }
    }
}
