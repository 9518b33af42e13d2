//! Buffers for direct I/O: aligned, recycled, owned by whoever holds them.
//!
//! Devices with `O_DIRECT` move bytes between media and memory without a copy if the memory is
//! aligned. An [`IoBuf`] is; it comes from a [`BufferPool`] and goes back when it is dropped, on
//! whatever thread that happens. The engine fills one per write and one per read.
//!
//! # Invariants
//! - I1: every byte of a buffer is initialised from its first allocation on: memory is zeroed once,
//!   then recycled as it is.
//! - I2: a buffer's memory is in one place: with one holder, or idle in one shard of its pool.
//! - I3: idle memory of a pool never exceeds its budget.
//!
//! # Concurrency
//! A pool is split into shards, each with a short lock of its own. A thread takes from "its" shard;
//! a buffer returns to the shard that it came from, so that a producer and a consumer on different
//! cores do not drain one shard into another.
//!
//! # Failure
//! If the system has no memory the process aborts as it does for `Vec`; sizes that a client chose
//! are bounded before they come here.
//!
//! # Safety invariants
//! - S1: `Memory::start` was allocated by the global allocator with the layout
//!   `(capacity, ALIGNMENT)`, all bytes initialised, and is freed exactly once, in `Drop`.
//! - S2: only the owner of a `Memory` reaches its bytes, through a borrow of the `Memory`.
//! - S3: `IoBuf::length <= Memory::capacity`.
#![expect(unsafe_code, reason = "aligned memory needs the raw allocator")]

use esker_base::striped::thread_number;
use parking_lot::Mutex;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::{Arc, LazyLock};

/// Alignment of every buffer in bytes: no device here asks for more.
pub const ALIGNMENT: usize = 4096;
/// Largest buffer that is recycled, in bytes; larger ones go back to the system at once.
pub const POOLED_SIZE_BYTES_MAX: usize = 1 << 20;
/// Idle memory that a default pool keeps, in bytes.
const DEFAULT_BUDGET_BYTES: usize = 64 << 20;
/// Size classes: 4 KiB, 8 KiB, ... [`POOLED_SIZE_BYTES_MAX`].
const CLASS_COUNT: usize =
    (POOLED_SIZE_BYTES_MAX.trailing_zeros() - ALIGNMENT.trailing_zeros()) as usize + 1;
const SHARD_COUNT_MAX: usize = 16;

/// A piece of aligned, initialised memory with one owner.
struct Memory {
    start: NonNull<u8>,
    capacity: usize,
}

// SAFETY: plain bytes with one owner (S2); nothing about them belongs to a thread.
unsafe impl Send for Memory {}
// SAFETY: a shared `Memory` gives only shared access to its bytes (S2).
unsafe impl Sync for Memory {}

impl Memory {
    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGNMENT).expect("a buffer fits the address space")
    }

    /// `capacity` zero bytes; `capacity` is not 0.
    fn zeroed(capacity: usize) -> Memory {
        assert!(capacity > 0, "a buffer has at least one block");
        let layout = Memory::layout(capacity);
        // SAFETY: the layout's size is not 0 (asserted above).
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Memory { start, capacity }
    }

    fn bytes(&self, length: usize) -> &[u8] {
        assert!(length <= self.capacity);
        // SAFETY: initialised (S1), in bounds (asserted), borrowed from the owner (S2).
        unsafe { slice::from_raw_parts(self.start.as_ptr(), length) }
    }

    fn bytes_mut(&mut self, length: usize) -> &mut [u8] {
        assert!(length <= self.capacity);
        // SAFETY: initialised (S1), in bounds (asserted), borrowed from the one owner (S2).
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), length) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout and freed only here (S1).
        unsafe { dealloc(self.start.as_ptr(), Memory::layout(self.capacity)) }
    }
}

#[derive(Default)]
struct Idle {
    classes: [Vec<Memory>; CLASS_COUNT],
    bytes: usize,
}

/// On lines of its own (two, because processors fetch them in pairs).
#[repr(align(128))]
struct Shard {
    idle: Mutex<Idle>,
    budget_bytes: usize,
}

impl Shard {
    fn take(&self, class: usize) -> Option<Memory> {
        let mut idle = self.idle.lock();
        let memory = idle.classes.get_mut(class)?.pop()?;
        idle.bytes -= memory.capacity;
        Some(memory)
    }

    /// Keeps `memory` if the budget allows; otherwise frees it, outside the lock.
    fn put(&self, memory: Memory) {
        let Some(class) = class_of(memory.capacity) else { return };
        let mut idle = self.idle.lock();
        if idle.bytes.saturating_add(memory.capacity) > self.budget_bytes {
            drop(idle);
            return;
        }
        idle.bytes += memory.capacity;
        if let Some(list) = idle.classes.get_mut(class) {
            list.push(memory);
        }
    }
}

/// The class of a buffer of `length` bytes, or `None` if such are not recycled.
fn class_of(length: usize) -> Option<usize> {
    if length > POOLED_SIZE_BYTES_MAX {
        return None;
    }
    let capacity = length.max(ALIGNMENT).next_power_of_two();
    Some((capacity.trailing_zeros() - ALIGNMENT.trailing_zeros()) as usize)
}

/// A source of [`IoBuf`]s. Cheap to clone: clones share their memory. Safe from any thread.
#[derive(Clone)]
pub struct BufferPool {
    shards: Arc<[Arc<Shard>]>,
}

impl BufferPool {
    /// A pool that keeps at most `budget_bytes` of idle buffers, divided evenly among its shards
    /// (as many as the machine has processors, at most 16). Buffers in use do not count.
    #[must_use]
    pub fn new(budget_bytes: usize) -> Self {
        // The answer costs several system calls.
        static COUNT: LazyLock<usize> = LazyLock::new(|| {
            std::thread::available_parallelism().map_or(1, |n| n.get().min(SHARD_COUNT_MAX))
        });
        let count = *COUNT;
        let shards = (0..count).map(|_| {
            Arc::new(Shard { idle: Mutex::default(), budget_bytes: budget_bytes / count })
        });
        BufferPool { shards: shards.collect() }
    }

    /// Memory that a buffer for `length` bytes takes, in bytes.
    #[must_use]
    pub fn capacity_for(length: usize) -> usize {
        match class_of(length) {
            Some(class) => ALIGNMENT << class,
            None => length.next_multiple_of(ALIGNMENT),
        }
    }

    /// A buffer of exactly `length` bytes.
    ///
    /// Its content is unspecified: zeros, or what an earlier holder of the same pool left there.
    /// Whoever sends a buffer to media or to a client overwrites every byte of it first, or uses
    /// [`BufferPool::get_zeroed`].
    #[must_use]
    pub fn get(&self, length: usize) -> IoBuf {
        let Some(class) = class_of(length) else {
            let capacity = Self::capacity_for(length);
            return IoBuf { memory: Some(Memory::zeroed(capacity)), length, home: None };
        };
        let index = thread_number() % self.shards.len().max(1);
        let home = self.shards.get(index).map(Arc::clone);
        let memory = home.as_ref().and_then(|shard| shard.take(class));
        let memory = memory.unwrap_or_else(|| Memory::zeroed(ALIGNMENT << class));
        IoBuf { memory: Some(memory), length, home }
    }

    /// A buffer of exactly `length` zero bytes.
    #[must_use]
    pub fn get_zeroed(&self, length: usize) -> IoBuf {
        let mut buffer = self.get(length);
        buffer.fill(0);
        buffer
    }

    /// A buffer that holds a copy of `bytes`.
    #[must_use]
    pub fn copy_of(&self, bytes: &[u8]) -> IoBuf {
        let mut buffer = self.get(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }

    /// Memory that lies idle now, in bytes.
    #[must_use]
    pub fn idle_bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.idle.lock().bytes).sum()
    }
}

impl Default for BufferPool {
    /// A pool that keeps at most 64 MiB of idle buffers.
    fn default() -> Self {
        BufferPool::new(DEFAULT_BUDGET_BYTES)
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool")
            .field("shards", &self.shards.len())
            .field("idle_bytes", &self.idle_bytes())
            .finish()
    }
}

/// Bytes at an address that is a multiple of [`ALIGNMENT`], with one owner.
///
/// Its length is exactly what was asked for. Dropped, on any thread, it returns to its pool.
pub struct IoBuf {
    /// `None` only inside `drop`.
    memory: Option<Memory>,
    length: usize,
    home: Option<Arc<Shard>>,
}

impl IoBuf {
    /// Shortens the buffer to `length` bytes; does nothing if it is shorter already.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }
}

impl Deref for IoBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |memory| memory.bytes(self.length))
    }
}

impl DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut().map_or(&mut [], |memory| memory.bytes_mut(self.length))
    }
}

impl AsRef<[u8]> for IoBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for IoBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for IoBuf {
    /// Without the content, which may be a client's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoBuf({} bytes)", self.length)
    }
}

impl Drop for IoBuf {
    fn drop(&mut self) {
        if let (Some(memory), Some(home)) = (self.memory.take(), &self.home) {
            home.put(memory);
        }
    }
}

#[cfg(test)]
mod tests;
