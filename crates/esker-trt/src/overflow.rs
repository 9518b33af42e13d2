//! Tells a stack overflow of a task from any other crash.
//!
//! A handler of SIGSEGV and SIGBUS runs on an alternate stack, looks whether the address lies in
//! the guard page of a task's stack, and if so says "stack overflow in task" and aborts. Any other
//! fault goes on to the handler that was installed before.
//!
//! # Safety invariants
//! - S1: the handler only does what is allowed in a signal handler: atomic loads, `write`,
//!   `sigaction`, `abort`.
//! - S2: `PREVIOUS` is written once, before the handler can run, and never after.
//!
//! # Concurrency
//! The table of ranges is an array of atomics: any thread adds and removes, handlers read. A slot
//! is written start last and cleared start first, so that a reader sees whole ranges.
#![expect(unsafe_code, reason = "installs a signal handler and an alternate stack")]

use std::sync::Once;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

const RANGES_MAX: usize = 4096;

struct Range {
    start: AtomicUsize,
    length: AtomicUsize,
    stride: AtomicUsize,
    guard: AtomicUsize,
}

static RANGES: [Range; RANGES_MAX] = [const {
    Range {
        start: AtomicUsize::new(0),
        length: AtomicUsize::new(0),
        stride: AtomicUsize::new(0),
        guard: AtomicUsize::new(0),
    }
}; RANGES_MAX];

/// Marks a slot that is being filled.
const BUSY: usize = 1;

/// A remembered slab.
#[derive(Debug)]
pub(crate) struct RangeId(usize);

/// Remembers a slab whose stacks begin `stride` bytes apart, each with its guard of so many bytes first.
/// `None` when the table is full: an overflow there is then reported as a plain fault.
pub(crate) fn remember(
    start: usize,
    length: usize,
    (stride, guard): (usize, usize),
) -> Option<RangeId> {
    install();
    let free = |range: &Range| {
        range.start.compare_exchange(0, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    let index = RANGES.iter().position(free)?;
    let range = RANGES.get(index)?;
    range.length.store(length, Ordering::Relaxed);
    range.stride.store(stride, Ordering::Relaxed);
    range.guard.store(guard, Ordering::Relaxed);
    range.start.store(start, Ordering::Release);
    Some(RangeId(index))
}

pub(crate) fn forget(id: Option<RangeId>) {
    if let Some(range) = id.and_then(|id| RANGES.get(id.0)) {
        range.start.store(0, Ordering::Release);
    }
}

pub(crate) fn is_in_guard(address: usize) -> bool {
    RANGES.iter().any(|range| {
        let start = range.start.load(Ordering::Acquire);
        let Some(offset) = address.checked_sub(start).filter(|_| start > BUSY) else {
            return false;
        };
        let stride = range.stride.load(Ordering::Relaxed);
        let guard = range.guard.load(Ordering::Relaxed);
        offset < range.length.load(Ordering::Relaxed)
            && offset.checked_rem(stride).is_some_and(|offset| offset < guard)
    })
}

static PREVIOUS: OnceLock<[libc::sigaction; 2]> = OnceLock::new();
const SIGNALS: [i32; 2] = [libc::SIGSEGV, libc::SIGBUS];

extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to a SA_SIGINFO handler.
    let info_ref = unsafe { &*info };
    // SAFETY: SIGSEGV and SIGBUS carry an address.
    let address = unsafe { info_ref.si_addr() } as usize;
    if is_in_guard(address) {
        let text = b"\nstack overflow in task: its stack is too small for what it runs; \
            raise Config::stack_size_bytes\n";
        // SAFETY: a constant text to standard error; `write` is allowed here (S1).
        unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
        // SAFETY: `abort` is allowed here (S1).
        unsafe { libc::abort() };
    }
    let previous = SIGNALS.iter().position(|known| *known == signal);
    let previous = previous.and_then(|index| PREVIOUS.get()?.get(index));
    match previous {
        // Who ignored it would repeat the fault for ever.
        Some(action) if ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction) => {
            type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: a handler address that `sigaction` returned; handlers without SA_SIGINFO
            // take only the first argument, which the C calling convention permits.
            let handler =
                unsafe { std::mem::transmute::<libc::sighandler_t, Handler>(action.sa_sigaction) };
            handler(signal, info, context);
        }
        _ => {
            // SAFETY: back to the default action, allowed here (S1); the fault then repeats.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}

fn empty_action() -> libc::sigaction {
    // SAFETY: all-zero is a valid sigaction: default action, empty mask.
    unsafe { std::mem::zeroed() }
}

/// Installs the handler, once for the process.
fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut previous = [empty_action(); 2];
        for (signal, slot) in SIGNALS.iter().zip(&mut previous) {
            // SAFETY: only reads the present action into our own structure.
            unsafe { libc::sigaction(*signal, std::ptr::null(), slot) };
        }
        // Before the handler can run (S2).
        let _ = PREVIOUS.set(previous);
        for signal in SIGNALS {
            let mut action = empty_action();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            // SAFETY: a handler that follows S1, in a structure that is fully set.
            unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
        }
    });
}

/// Gives this thread an alternate signal stack if it has none. It lives as long as the process:
/// threads that run tasks are few, and a handler may need it until the very end of the thread.
pub(crate) fn ensure_alternate_stack() {
    const SIZE: usize = 64 * 1024;
    thread_local! { static DONE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) }; }
    if DONE.replace(true) {
        return;
    }
    // SAFETY: all-zero is a valid stack_t.
    let mut current: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: only reads the present alternate stack into our own structure.
    unsafe { libc::sigaltstack(std::ptr::null(), &raw mut current) };
    if current.ss_flags & libc::SS_DISABLE == 0 {
        return;
    }
    let memory = Box::leak(vec![0_u8; SIZE].into_boxed_slice());
    let stack =
        libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: memory.len() };
    // SAFETY: memory that is never freed and used by nothing else.
    unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests;

/// A fault that is no overflow.
#[cfg(test)]
fn tests_fault() {
    // SAFETY: none: the process is meant to end here.
    unsafe { std::ptr::without_provenance_mut::<u8>(64).write_volatile(1) };
}
