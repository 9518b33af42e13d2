//! `SIGBUS` on a mapping: a media error, or a file that lost its end, becomes an error value.
//!
//! The kernel raises `SIGBUS` when a load meets poison or a page that the file does not have. The
//! handler puts a spare page of zeros there, so that the instruction goes on, and marks the page in
//! the mapping's list; the access looks at the list before it returns and answers `Corrupted`.
//!
//! # Invariants
//! - I1: a page once marked stays marked until the mapping ends.
//! - I2: a signal for an address outside our mappings, or that no access raised, goes to whoever handled it before;
//!   but for news of poison that nobody touched, which nobody has to act upon: an access that meets it faults.
//! - I3: a page is marked before the spare one is there: an access without a fault finds the mark, too.
//! - I4: a page is what the kernel maps at once; media errors come in smaller pieces.
//!
//! # Safety invariants
//! - S1: the handler calls nothing but `mmap`, `sigaction` and atomics, and keeps `errno`.
//! - S2: an entry's fields are read between two equal, even values of its `version`; a faulting
//!   address lies in a live mapping, whose entry does not change meanwhile, so a consistent entry
//!   that contains the address is that mapping's, and its list is alive. That holds for a fault of the instruction
//!   that was interrupted and for nothing else, so only the codes of such faults are acted upon. A signal that a process sent
//!   names any address; poison that nobody has touched yet is told to some thread, which may borrow no mapping at all.
//! - S3: an entry is written only by whoever took its version from even to odd.
#![expect(unsafe_code, reason = "signal handling has no safe form")]

use esker_base::{Error, ErrorKind, Result};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};

/// Most mappings of a process.
const ENTRY_COUNT: usize = 256;

/// Damaged pages of one mapping.
#[derive(Debug)]
pub(super) struct Damage {
    /// How many faults were handled; nearly always 0, which is all that an access looks at.
    count: AtomicU64,
    /// Bytes of a page (I4).
    page_bytes: usize,
    /// One bit per page.
    pages: Box<[AtomicU64]>,
}

impl Damage {
    fn new(length: usize, page_bytes: usize) -> Box<Self> {
        let words = length.div_ceil(page_bytes).div_ceil(64);
        Box::new(Damage {
            count: AtomicU64::new(0),
            page_bytes,
            pages: (0..words).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    fn mark(&self, page: usize) {
        if let Some(word) = self.pages.get(page / 64) {
            word.fetch_or(1 << (page % 64), Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Release);
    }

    /// First damaged page that the range touches, as an offset. Called after an access by the
    /// thread that made it.
    #[inline]
    pub(super) fn find(&self, offset: usize, length: usize) -> Option<usize> {
        // Not before the access: the handler ran on this thread, or on another one, which marks before it puts the spare page there.
        fence(Ordering::Acquire);
        if self.count.load(Ordering::Acquire) == 0 || length == 0 {
            return None;
        }
        self.first_marked(offset, length)
    }

    #[cold]
    fn first_marked(&self, offset: usize, length: usize) -> Option<usize> {
        let pages = offset / self.page_bytes..=(offset + length - 1) / self.page_bytes;
        let is_marked = |page: &usize| {
            let word = self.pages.get(page / 64).map_or(0, |word| word.load(Ordering::Relaxed));
            word & (1 << (page % 64)) != 0
        };
        pages.into_iter().find(is_marked).map(|page| page * self.page_bytes)
    }
}

struct Entry {
    version: AtomicU64,
    start: AtomicUsize,
    length: AtomicUsize,
    damage: AtomicPtr<Damage>,
}

static ENTRIES: [Entry; ENTRY_COUNT] = [const {
    Entry {
        version: AtomicU64::new(0),
        start: AtomicUsize::new(0),
        length: AtomicUsize::new(0),
        damage: AtomicPtr::new(ptr::null_mut()),
    }
}; ENTRY_COUNT];

impl Entry {
    /// Takes the entry if it is free (`expected_length` 0) or ours, and changes it.
    fn change(&self, expected_length: usize, start: usize, length: usize, to: *mut Damage) -> bool {
        let version = self.version.load(Ordering::Acquire);
        if !version.is_multiple_of(2) || self.length.load(Ordering::Relaxed) != expected_length {
            return false;
        }
        let (order, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        if self.version.compare_exchange(version, version + 1, order, relaxed).is_err() {
            return false;
        }
        // Readers that see a new field see the odd version too.
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.length.store(length, Ordering::Relaxed);
        self.damage.store(to, Ordering::Relaxed);
        self.version.store(version + 2, Ordering::Release);
        true
    }

    /// Start and list of the mapping that `address` is in, if it is this one.
    fn covering(&self, address: usize) -> Option<(usize, *mut Damage)> {
        let version = self.version.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Relaxed);
        let length = self.length.load(Ordering::Relaxed);
        let damage = self.damage.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let same = self.version.load(Ordering::Relaxed) == version && version.is_multiple_of(2);
        let inside = address >= start && address - start < length;
        (same && inside && !damage.is_null()).then_some((start, damage))
    }
}

/// A mapping that the handler knows; unknown again when dropped.
#[derive(Debug)]
pub(super) struct Registration {
    entry: usize,
    length: usize,
    damage: Box<Damage>,
}

impl Registration {
    /// Makes the handler know `length` bytes at `start`, in pages of so many bytes.
    pub(super) fn new(start: usize, length: usize, page_bytes: usize) -> Result<Registration> {
        install()?;
        let damage = Damage::new(length, page_bytes);
        let pointer = ptr::from_ref::<Damage>(&damage).cast_mut();
        for (entry, slot) in ENTRIES.iter().enumerate() {
            if slot.change(0, start, length, pointer) {
                return Ok(Registration { entry, length, damage });
            }
        }
        let context = format!("more than {ENTRY_COUNT} mappings in one process");
        Err(Error::new(ErrorKind::Unsupported, "map persistent memory").context(context))
    }

    /// The damaged pages.
    pub(super) fn damage(&self) -> &Damage {
        &self.damage
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(entry) = ENTRIES.get(self.entry) {
            entry.change(self.length, 0, 0, ptr::null_mut());
        }
    }
}

static EARLIER: OnceLock<libc::sigaction> = OnceLock::new();

fn zeroed_action() -> libc::sigaction {
    // SAFETY: `sigaction` is plain data for which zeros are valid: default action, empty mask.
    unsafe { std::mem::zeroed() }
}

/// Installs the handler, once per process.
fn install() -> Result<()> {
    static DONE: OnceLock<Result<()>> = OnceLock::new();
    DONE.get_or_init(|| {
        let mut action = zeroed_action();
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = handle;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        let mut earlier = zeroed_action();
        // First remember who handles it now: a signal may come the moment ours is in place.
        // SAFETY: both pointers are valid for the call; null asks without changing.
        let asked = unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut earlier) };
        EARLIER.get_or_init(|| earlier);
        // SAFETY: the handler keeps to S1; the structure is valid for the call.
        let set = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) };
        if asked != 0 || set != 0 {
            let source = std::io::Error::last_os_error();
            return Err(Error::io("install SIGBUS handler", source));
        }
        Ok(())
    })
    .clone()
}

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid structure to a handler with SA_SIGINFO.
    let info_ref = unsafe { &*info };
    match info_ref.si_code {
        libc::BUS_ADRERR | libc::BUS_OBJERR | libc::BUS_MCEERR_AR => {}
        libc::BUS_MCEERR_AO => return,
        // Not a fault of this thread: nothing says that a mapping at the address lives (S2).
        _ => return pass_on(signal, info, context),
    }
    // SAFETY: for these codes of SIGBUS the address field is the one in use.
    let address = unsafe { info_ref.si_addr() }.addr();
    let found = ENTRIES.iter().find_map(|entry| entry.covering(address));
    let Some((start, damage)) = found else { return pass_on(signal, info, context) };
    // SAFETY: the list lives as long as its entry (S2).
    let damage = unsafe { &*damage };
    let page_bytes = damage.page_bytes;
    let page = (address - start) / page_bytes;
    // First: whoever meets the spare page without a fault of its own finds it marked (I3).
    damage.mark(page);
    #[cfg(test)]
    tests::between_mark_and_page();
    // SAFETY: errno's address is valid on every thread.
    let errno_place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let errno = unsafe { *errno_place };
    let place = ptr::without_provenance_mut::<libc::c_void>(start + page * page_bytes);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: replaces one page of our own live mapping (S2), which only this crate reaches.
    let spare = unsafe { libc::mmap(place, page_bytes, protection, flags, -1, 0) };
    // SAFETY: as above.
    unsafe { *errno_place = errno };
    if spare == libc::MAP_FAILED {
        pass_on(signal, info, context);
    }
}

/// Hands the signal to the earlier handler, or lets the fault happen again without one.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let earlier = EARLIER.get().copied().unwrap_or_else(zeroed_action);
    let handler = earlier.sa_sigaction;
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        let action = zeroed_action();
        // SAFETY: restores the default action; the structure is valid for the call.
        unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
        return;
    }
    let pointer = ptr::with_exposed_provenance::<()>(handler);
    if earlier.sa_flags & libc::SA_SIGINFO != 0 {
        type Full = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: installed with SA_SIGINFO, so it has this type.
        let handler = unsafe { std::mem::transmute::<*const (), Full>(pointer) };
        handler(signal, info, context);
    } else {
        type Plain = extern "C" fn(libc::c_int);
        // SAFETY: installed without SA_SIGINFO, so it has this type.
        let handler = unsafe { std::mem::transmute::<*const (), Plain>(pointer) };
        handler(signal);
    }
}

#[cfg(test)]
mod tests;

/// Calls the handler with a signal that is made up.
#[cfg(test)]
fn tests_handle(code: libc::c_int, address: usize) {
    // SAFETY: `siginfo_t` is plain data for which zeros are valid.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    (info.si_signo, info.si_code) = (libc::SIGBUS, code);
    // After three numbers and a gap there is the union, which begins with the address.
    let place = (&raw mut info).cast::<usize>().wrapping_add(2);
    // SAFETY: an aligned word inside of our own structure.
    unsafe { place.write(address) };
    handle(libc::SIGBUS, &raw mut info, ptr::null_mut());
}
