//! Epochs: when nobody can still read what was taken away.
//!
//! A thread that reads notes the current epoch in a slot of its own, and takes the note away when it
//! is done. What was taken away waits with the epoch of that moment until every note is of a later one
//! (Fraser, "Practical lock-freedom", 5.2.3).
//!
//! A note must be visible before its owner reads on. Usually a fence sees to that, which costs each
//! lookup some 20 cycles, and lets none begin before the one before it has all its memory. Here the
//! few who free pay for the many who read: they ask the kernel to send every thread of the process
//! through a barrier (`membarrier`), and look at the notes behind it. A note that they miss then was
//! written by a thread that reads on behind the barrier, and no longer finds what was taken away.
//! Where the kernel cannot do that, readers have their fence.
//!
//! # Concurrency
//! Noting is two stores to memory of the thread's own. `garbage` is locked before `slots`. Work runs
//! on any thread that takes a note away, with nothing locked.

use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::atomic::{compiler_fence, fence};

// Nothing here is of the sync shim: epochs are no part of an explored program.

/// The note of a thread that does not read.
const OUT: u64 = u64::MAX;
/// Notes that a thread takes away between two attempts to free something.
const PATIENCE: u32 = 128;

/// Whether readers need no fence. Set before any slot is given out.
static ASYMMETRIC: AtomicBool = AtomicBool::new(false);

/// What is to be done when nobody can read something any more.
type Work = Box<dyn FnOnce() + Send>;

/// The place for the notes of one thread.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Slot {
    /// The epoch in which the thread began to read, or [`OUT`].
    epoch: AtomicU64,
    /// How often the thread has entered and not left. Only the thread itself uses these two.
    entered: AtomicU32,
    turns: AtomicU32,
    /// Whether a thread has this slot. Becomes true under the lock of the slots.
    taken: AtomicBool,
    /// Whether the thread gives it back when it leaves: it ends, and cannot note that it has one. Only the thread uses this.
    once: AtomicBool,
}

/// Epochs of their own: who notes one delays nobody who uses another domain.
pub(super) struct Domain<const NUMBER: usize> {
    epoch: AtomicU64,
    /// Length of `garbage`, roughly.
    waiting: AtomicUsize,
    slots: Mutex<Vec<&'static Slot>>,
    /// In the order of epochs.
    garbage: Mutex<VecDeque<(u64, Work)>>,
}

/// Number of domains: tests have one more.
const DOMAINS: usize = if cfg!(test) { 3 } else { 2 };

thread_local! {
    /// The slots of this thread in each domain.
    static OWN: [Cell<Option<&'static Slot>>; DOMAINS] =
        const { [const { Cell::new(None) }; DOMAINS] };
    static LEAVE: Leave = const { Leave };
}

/// Gives the slots of a thread back when it ends.
struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        OWN.with(|own| {
            for slot in own.iter().filter_map(Cell::take) {
                // One that is still in use stays with its user.
                let left = slot.entered.load(Ordering::Relaxed) == 0;
                slot.taken.store(!left, Ordering::Release);
            }
        });
    }
}

impl<const NUMBER: usize> Domain<NUMBER> {
    pub(super) const fn new() -> Self {
        Domain {
            epoch: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            slots: Mutex::new(Vec::new()),
            garbage: Mutex::new(VecDeque::new()),
        }
    }

    /// Notes that this thread reads. Each call needs a [`Domain::leave`] on the same thread.
    #[inline]
    pub(super) fn enter(&self) -> &'static Slot {
        let own = OWN.with(|own| own.get(NUMBER).and_then(Cell::get));
        let slot = own.unwrap_or_else(|| self.slot());
        let entered = slot.entered.load(Ordering::Relaxed);
        slot.entered.store(entered.wrapping_add(1), Ordering::Relaxed);
        if entered == 0 {
            // Acquire: whoever notes a later epoch than that of some garbage does not find that any
            // more. Release: what was read under the note before came before this one.
            slot.epoch.store(self.epoch.load(Ordering::Acquire), Ordering::Release);
            if ASYMMETRIC.load(Ordering::Relaxed) {
                compiler_fence(Ordering::SeqCst);
            } else {
                fence(Ordering::SeqCst);
            }
        }
        slot
    }

    /// A slot for this thread.
    #[cold]
    fn slot(&self) -> &'static Slot {
        let mut slots = self.slots.lock();
        if slots.is_empty() {
            barrier::set_up();
        }
        let free = slots.iter().find(|slot| !slot.taken.load(Ordering::Acquire));
        let slot = free.copied().unwrap_or_else(|| {
            let slot: &'static Slot = Box::leak(Box::new(Slot {
                epoch: AtomicU64::new(OUT),
                entered: AtomicU32::new(0),
                turns: AtomicU32::new(0),
                taken: AtomicBool::new(true),
                once: AtomicBool::new(false),
            }));
            slots.push(slot);
            slot
        });
        slot.taken.store(true, Ordering::Relaxed);
        // A thread whose locals are being destroyed has nobody any more who would give the slot back.
        let keeps = LEAVE.try_with(|_| ()).is_ok();
        slot.once.store(!keeps, Ordering::Relaxed);
        if keeps {
            OWN.with(|own| own.get(NUMBER).map(|own| own.set(Some(slot))));
        }
        slot
    }

    /// Takes a note away.
    #[inline]
    pub(super) fn leave(&self, slot: &'static Slot) {
        let entered = slot.entered.load(Ordering::Relaxed).wrapping_sub(1);
        slot.entered.store(entered, Ordering::Relaxed);
        if entered == 0 {
            // Release: what was read came before.
            slot.epoch.store(OUT, Ordering::Release);
            if self.waiting.load(Ordering::Relaxed) > 0 {
                self.turn(slot);
            }
            if slot.once.load(Ordering::Relaxed) {
                slot.taken.store(false, Ordering::Release);
            }
        }
    }

    #[cold]
    fn turn(&self, slot: &'static Slot) {
        let turns = slot.turns.load(Ordering::Relaxed).wrapping_add(1);
        slot.turns.store(turns, Ordering::Relaxed);
        if turns.is_multiple_of(PATIENCE) {
            self.collect();
        }
    }

    /// Does `work` when everyone who reads now is done. What they must not find any more has been
    /// taken away before.
    #[cfg_attr(feature = "shuttle", expect(dead_code, reason = "what is replaced stays then"))]
    pub(super) fn defer(&self, work: impl FnOnce() + Send + 'static) {
        let mut garbage = self.garbage.lock();
        garbage.push_back((self.epoch.load(Ordering::Relaxed), Box::new(work)));
        self.waiting.store(garbage.len(), Ordering::Relaxed);
    }

    /// Does what can be done already, unless another thread is at it.
    pub(super) fn collect(&self) {
        let Some(mut garbage) = self.garbage.try_lock() else { return };
        let (Some((oldest, _)), Some((newest, _))) = (garbage.front(), garbage.back()) else {
            return;
        };
        // Only who reads from now on notes an epoch that is later than that of all this garbage, and
        // has seen what was done before it came here.
        if self.epoch.load(Ordering::Relaxed) == *newest {
            self.epoch.store(newest + 1, Ordering::Release);
        }
        if self.earliest() <= *oldest || !barrier::pass_everywhere() {
            return;
        }
        let earliest = self.earliest();
        let ready = garbage.partition_point(|(epoch, _)| *epoch < earliest);
        let ready: Vec<_> = garbage.drain(..ready).collect();
        self.waiting.store(garbage.len(), Ordering::Relaxed);
        drop(garbage);
        ready.into_iter().for_each(|(_, work)| work());
    }

    /// The earliest epoch that is noted.
    fn earliest(&self) -> u64 {
        let slots = self.slots.lock();
        // Acquire: what was read under notes that are gone came before.
        slots.iter().map(|slot| slot.epoch.load(Ordering::Acquire)).min().unwrap_or(OUT)
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
mod barrier {
    use super::{ASYMMETRIC, Ordering, fence};
    use rustix::thread::{MembarrierCommand, membarrier};
    use std::sync::Once;

    /// Asks the kernel for barriers.
    pub(super) fn set_up() {
        set_up_by(|| membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok());
    }

    /// Once for all domains: later the kernel may answer otherwise, behind a seccomp filter, and those who read go on as they began.
    pub(super) fn set_up_by(ask: impl FnOnce() -> bool) {
        static ASKED: Once = Once::new();
        ASKED.call_once(|| ASYMMETRIC.store(ask(), Ordering::Relaxed));
    }

    /// Sends every thread through a barrier; false if that failed.
    pub(super) fn pass_everywhere() -> bool {
        if ASYMMETRIC.load(Ordering::Relaxed) {
            return membarrier(MembarrierCommand::PrivateExpedited).is_ok();
        }
        fence(Ordering::SeqCst);
        true
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod barrier {
    use super::{Ordering, fence};

    pub(super) fn set_up() {}

    pub(super) fn pass_everywhere() -> bool {
        fence(Ordering::SeqCst);
        true
    }
}

#[cfg(all(test, not(any(loom, feature = "shuttle"))))]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    /// Reads in its destructor, behind that of the thread's slots.
    struct Late;

    static OF_LATE: Domain<2> = Domain::new();

    impl Drop for Late {
        fn drop(&mut self) {
            for _ in 0..100 {
                let (outer, inner) = (OF_LATE.enter(), OF_LATE.enter());
                OF_LATE.leave(inner);
                OF_LATE.leave(outer);
            }
        }
    }

    #[test]
    fn a_thread_that_ends_takes_no_slot_for_each_time_that_it_reads() {
        thread_local! {
            static LATE: Late = const { Late };
        }
        let reads = || {
            LATE.with(|_| ());
            let slot = OF_LATE.enter();
            OF_LATE.leave(slot);
        };
        std::thread::scope(|scope| scope.spawn(reads).join().unwrap());
        let slots = OF_LATE.slots.lock();
        assert!(slots.len() <= 3, "{} slots", slots.len());
        assert!(slots.iter().all(|slot| !slot.taken.load(Ordering::SeqCst)));
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn the_kernel_is_asked_for_barriers_once_in_a_process() {
        barrier::set_up();
        let before = ASYMMETRIC.load(Ordering::SeqCst);
        barrier::set_up_by(|| !before);
        // What other tests go by is as it was.
        assert_eq!(ASYMMETRIC.swap(before, Ordering::SeqCst), before);
    }

    #[test]
    fn garbage_waits_for_those_who_may_read_it_and_for_no_others() {
        static DOMAIN: Domain<2> = Domain::new();
        static DONE: [AtomicBool; 2] = [AtomicBool::new(false), AtomicBool::new(false)];
        let discard = |n: usize| DOMAIN.defer(move || DONE[n].store(true, Ordering::SeqCst));
        let done = || [0, 1].map(|n| DONE[n].load(Ordering::SeqCst));
        let (entered, enters) = channel();
        let read = &|until: Receiver<()>| {
            let slot = DOMAIN.enter();
            entered.send(()).unwrap();
            let _ = until.recv();
            DOMAIN.leave(slot);
            DOMAIN.collect();
        };
        std::thread::scope(|scope| {
            let (first, until) = channel();
            let first_reader = scope.spawn(move || read(until));
            enters.recv().unwrap();
            discard(0);
            DOMAIN.collect();
            assert_eq!(done(), [false, false]);
            let (second, until) = channel();
            let second_reader = scope.spawn(move || read(until));
            enters.recv().unwrap();
            // The second reader came after the first piece was taken away, and before this one.
            discard(1);
            drop(first);
            first_reader.join().unwrap();
            assert_eq!(done(), [true, false]);
            drop(second);
            second_reader.join().unwrap();
            assert_eq!(done(), [true, true]);
        });
    }
}
