//! Stacks of tasks: carved from few large mappings, each with a guard page below it, and pooled.
//!
//! The kernel allows a process 65,530 mappings (`vm.max_map_count`), and protecting one page in
//! the middle of a mapping splits it in three. One mapping with one protected page for each stack
//! therefore ends at 32 thousand tasks. Here a slab of stacks is one mapping, and its guards are
//! guard regions (`MADV_GUARD_INSTALL`, Linux 6.13), which live in the page tables and split
//! nothing. An older kernel gets protected pages until those of the whole process have taken half
//! of its mappings (at the limit nobody maps anything any more, and no thread starts), then stacks
//! whose guard page is merely filled with a pattern that is checked when the task ends; the
//! run-time's report says which of these it is.
//!
//! # Layout
//! ```text
//! slab:  | guard | stack 0 ...... | guard | stack 1 ...... | ...        addresses grow ->
//!                ^ limit          ^ base (stacks grow down from here)
//! ```
//!
//! # Safety invariants
//! - S1: a slab is one private anonymous mapping, unmapped when its last [`TaskStack`] goes.
//! - S2: every stack is handed out once until it is given back: it moves between the pool and one
//!   coroutine.
//! - S3: the bytes `limit + guard .. base` are mapped, readable and writable, where a guard is a page of this system.
//! - S4: protected pages of all slabs are at most a quarter of the mappings that a process may have.
//!
//! # Concurrency
//! A pool belongs to one thread; all of them count protected pages together.
#![expect(unsafe_code, reason = "maps memory and implements corosensei's unsafe trait Stack")]

use crate::overflow;
use crate::wake::Mailbox;
use corosensei::stack::{Stack, StackPointer};
use esker_base::{Error, ErrorKind, Result};
use std::cell::Cell;
use std::num::NonZeroUsize;
use std::ptr;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

/// The least usable stack: room for a panic and its text.
pub(crate) const USABLE_MIN: usize = 16 * 1024;
const SLAB_STACKS: usize = 512;
/// Idle stacks that keep their memory; what is idle beyond gives it back to the kernel.
const WARM_MAX: usize = 1024;
/// Linux 6.13: marks pages so that touching them raises SIGSEGV, without splitting the mapping.
const MADV_GUARD_INSTALL: i32 = 102;
const CANARY: u64 = 0x7472_7463_616e_6172;
/// Mappings of a process where the kernel does not say how many it permits.
const MAPPINGS_MAX: usize = 65_530;

/// Protected pages of all slabs (S4).
static PROTECTED: AtomicUsize = AtomicUsize::new(0);
/// How many there may be: each takes two mappings, and half of all are for others.
static PROTECTED_MAX: LazyLock<usize> = LazyLock::new(|| {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count");
    let most = text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(MAPPINGS_MAX);
    most / 4
});

/// How the stacks of a pool are guarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// Guard regions in the page tables.
    Region,
    /// A protected page, which splits the mapping.
    Protected,
    /// A pattern that is checked afterwards: overflow is found late.
    Canary,
}

impl Guard {
    pub(crate) fn number(self) -> u8 {
        match self {
            Guard::Region => 0,
            Guard::Protected => 1,
            Guard::Canary => 2,
        }
    }

    pub(crate) fn from_number(number: u8) -> Guard {
        match number {
            0 => Guard::Region,
            1 => Guard::Protected,
            _ => Guard::Canary,
        }
    }

    pub(crate) fn words(self) -> &'static str {
        match self {
            Guard::Region => "guard regions (no mapping is split)",
            Guard::Protected => "protected pages (two mappings a stack)",
            Guard::Canary => "canaries only: protected pages would take too many mappings",
        }
    }
}

struct Slab {
    start: NonZeroUsize,
    length: usize,
    range: Option<overflow::RangeId>,
    /// Bytes of each guard.
    guard_bytes: usize,
    /// Its protected pages.
    protected: Cell<usize>,
}

impl Drop for Slab {
    fn drop(&mut self) {
        overflow::forget(self.range.take());
        // SAFETY: the whole of our own mapping (S1); no stack of it is left, since each holds us.
        let result = unsafe { libc::munmap(self.start.get() as *mut libc::c_void, self.length) };
        debug_assert_eq!(result, 0);
        PROTECTED.fetch_sub(self.protected.get(), Ordering::Relaxed);
    }
}

/// One stack. See the module's text.
pub(crate) struct TaskStack {
    base: NonZeroUsize,
    limit: NonZeroUsize,
    guard: Guard,
    warm: bool,
    slab: Rc<Slab>,
}

// SAFETY: base is the page-aligned end and limit the page-aligned start of one handed-out piece
// (S2), writable above its guard page (S3), and larger than corosensei's minimum (USABLE_MIN).
// With `Guard::Canary` overflow is only detected late; the report says so.
unsafe impl Stack for TaskStack {
    fn base(&self) -> StackPointer {
        self.base
    }

    fn limit(&self) -> StackPointer {
        self.limit
    }
}

impl TaskStack {
    fn canary(&self) -> *mut u64 {
        (self.limit.get() + self.slab.guard_bytes - size_of::<u64>()) as *mut u64
    }

    /// Whether nothing has written below the stack. True for real guards, which would have trapped.
    pub(crate) fn is_intact(&self) -> bool {
        if self.guard != Guard::Canary {
            return true;
        }
        // SAFETY: the last word of the guard page is mapped when it holds a canary (S3).
        unsafe { self.canary().read() == CANARY }
    }

    fn cool(&mut self) {
        let start = self.limit.get() + self.slab.guard_bytes;
        let length = self.base.get() - start;
        // SAFETY: an idle stack of the pool (S2); nobody needs its contents.
        unsafe { libc::madvise(start as *mut libc::c_void, length, libc::MADV_DONTNEED) };
        self.warm = false;
    }
}

/// The idle stacks of one thread.
pub(crate) struct StackPool {
    usable_bytes: usize,
    /// Bytes of a page of this system, which is what can be guarded.
    page_bytes: usize,
    guard: Guard,
    warm: Vec<TaskStack>,
    cold: Vec<TaskStack>,
    slab_stacks: usize,
    report_to: Option<Arc<Mailbox>>,
}

impl StackPool {
    pub(crate) fn new(usable_bytes: usize) -> Self {
        StackPool::with_pages(usable_bytes, rustix::param::page_size())
    }

    fn with_pages(usable_bytes: usize, page_bytes: usize) -> Self {
        // The first slab is small: many run-times and simulations never need more.
        StackPool {
            usable_bytes: usable_bytes.max(USABLE_MIN).next_multiple_of(page_bytes),
            page_bytes,
            guard: Guard::Region,
            warm: Vec::new(),
            cold: Vec::new(),
            slab_stacks: 16,
            report_to: None,
        }
    }

    /// Where to say which guard the kernel grants.
    pub(crate) fn report_to(&mut self, mailbox: Arc<Mailbox>) {
        self.report_to = Some(mailbox);
    }

    /// A stack, from the pool or from a new slab. `OutOfMemory` when the kernel maps no more.
    pub(crate) fn take(&mut self) -> Result<TaskStack> {
        if let Some(stack) = self.warm.pop() {
            return Ok(stack);
        }
        if self.cold.is_empty() {
            self.grow()?;
        }
        self.cold
            .pop()
            .map(|mut stack| {
                stack.warm = true;
                stack
            })
            .ok_or_else(|| Error::new(ErrorKind::OutOfMemory, "take stack"))
    }

    /// Gives a stack back. It keeps its memory unless many are idle.
    pub(crate) fn give(&mut self, mut stack: TaskStack) {
        if self.warm.len() < WARM_MAX {
            self.warm.push(stack);
        } else {
            stack.cool();
            self.cold.push(stack);
        }
    }

    fn grow(&mut self) -> Result<()> {
        let guard_bytes = self.page_bytes;
        let stride = self.usable_bytes + guard_bytes;
        let count = self.slab_stacks;
        let length = stride * count;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new anonymous mapping at an address the kernel chooses.
        let start = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, -1, 0) };
        let start = NonZeroUsize::new(start as usize).filter(|_| start != libc::MAP_FAILED);
        let start = start.ok_or_else(|| {
            let cause = std::io::Error::last_os_error();
            Error::new(ErrorKind::OutOfMemory, "map stacks").source(cause)
        })?;
        // A huge page would give every stack of its range memory at the first touch of one.
        // SAFETY: our own new mapping.
        unsafe { libc::madvise(start.get() as *mut libc::c_void, length, libc::MADV_NOHUGEPAGE) };
        let range = overflow::remember(start.get(), length, (stride, guard_bytes));
        let slab = Rc::new(Slab { start, length, range, guard_bytes, protected: Cell::new(0) });
        // Handed out from the end of the vector: lowest addresses first.
        for index in (0..count).rev() {
            let limit = start.saturating_add(index * stride);
            self.install_guard(&slab, limit);
            let stack = TaskStack {
                base: limit.saturating_add(stride),
                limit,
                guard: self.guard,
                warm: false,
                slab: Rc::clone(&slab),
            };
            if self.guard == Guard::Canary {
                // SAFETY: inside our mapping and not protected (S3).
                unsafe { stack.canary().write(CANARY) };
            }
            self.cold.push(stack);
        }
        self.slab_stacks = (count * 4).min(SLAB_STACKS);
        if let Some(mailbox) = &self.report_to {
            mailbox.set_guard(self.guard);
        }
        Ok(())
    }

    /// Installs the best guard that is to be had, and remembers which is not.
    fn install_guard(&mut self, slab: &Slab, limit: NonZeroUsize) {
        let page = limit.get() as *mut libc::c_void;
        if self.guard == Guard::Region {
            // SAFETY: one page of our own new mapping.
            if unsafe { libc::madvise(page, slab.guard_bytes, MADV_GUARD_INSTALL) } == 0 {
                return;
            }
            self.guard = Guard::Protected;
        }
        if self.guard == Guard::Protected {
            let more = |count: usize| (count < *PROTECTED_MAX).then_some(count + 1);
            let counted = PROTECTED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
            if counted.is_ok() {
                slab.protected.set(slab.protected.get() + 1);
                // SAFETY: one page of our own new mapping.
                if unsafe { libc::mprotect(page, slab.guard_bytes, libc::PROT_NONE) } == 0 {
                    return;
                }
            }
            self.guard = Guard::Canary;
        }
    }

    /// A pool that starts with a worse guard, to test the fallbacks.
    #[cfg(test)]
    pub(crate) fn with_guard(usable_bytes: usize, guard: Guard) -> Self {
        StackPool { guard, ..StackPool::new(usable_bytes) }
    }
}

#[cfg(test)]
mod tests;

/// Writes below a stack, as an overflow would.
#[cfg(test)]
fn tests_damage(stack: &TaskStack) {
    assert_eq!(stack.guard, Guard::Canary);
    // SAFETY: the word is mapped and writable when it holds a canary (S3).
    unsafe { stack.canary().write(0) };
}
