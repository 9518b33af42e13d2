//! A thread that stands still in the handler, and others beside it.

use super::{ENTRIES, Registration, tests_handle};
use crate::Pmem;
use crate::pmem::{PmemFile, PmemOptions};
use esker_base::{ErrorKind, Site, SiteKind};
use std::cell::Cell;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

const TEST: Site = Site::new("test.fault", SiteKind::Write);
const PAGE: u64 = 4096;

thread_local! {
    /// Whether the handler is to stand still on this thread.
    static HOLDS: Cell<bool> = const { Cell::new(false) };
}
static HELD: AtomicBool = AtomicBool::new(false);
static GOES_ON: AtomicBool = AtomicBool::new(false);

/// Called by the handler: nothing but atomics.
pub(super) fn between_mark_and_page() {
    if HOLDS.replace(false) {
        HELD.store(true, Ordering::SeqCst);
        while !GOES_ON.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
    }
}

/// Memory of sixteen pages of which all but four are lost, the ninth after somebody stored there.
fn cut_short() -> (tempfile::TempDir, PmemFile) {
    let folder = tempfile::tempdir().unwrap();
    let options =
        PmemOptions { create_size_bytes: Some(16 * PAGE), emulate: true, ..PmemOptions::default() };
    let memory = PmemFile::open(&folder.path().join("memory"), options).unwrap();
    memory.store(TEST, 8 * PAGE, &[7; 64]).unwrap();
    rustix::fs::ftruncate(&memory.fd, 4 * PAGE).unwrap();
    (folder, memory)
}

#[test]
fn nobody_takes_the_spare_page_for_the_memory() {
    let (_folder, memory) = cut_short();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            HOLDS.set(true);
            memory.read(8 * PAGE, &mut [0; 8]).map_err(|error| error.kind())
        });
        while !HELD.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
        let others = [
            memory.read(8 * PAGE + 512, &mut [0; 8]),
            memory.store(TEST, 8 * PAGE + 512, &[1; 8]),
            memory.flush(TEST, 8 * PAGE + 512, 8),
        ];
        GOES_ON.store(true, Ordering::SeqCst);
        let kinds = others.map(|it| it.map_err(|error| error.kind()));
        assert_eq!(kinds, [Err(ErrorKind::Corrupted); 3]);
        assert_eq!(first.join().unwrap(), Err(ErrorKind::Corrupted));
    });
    let before = memory.read(3 * PAGE, &mut [0; 8]);
    assert_eq!(before.map_err(|error| error.kind()), Ok(()), "what is there is read");
}

/// It was stored in the real page, and what is written back is the spare one.
#[test]
fn what_was_stored_in_a_page_that_was_lost_since_is_not_durable() {
    let (_folder, memory) = cut_short();
    assert!(memory.read(8 * PAGE + 512, &mut [0; 8]).is_err());
    let error = memory.flush(TEST, 8 * PAGE, 64).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
}

/// Memory of 24 pages, as no other test has it, with something in the ninth; and where that is.
fn live() -> (tempfile::TempDir, PmemFile, usize) {
    let folder = tempfile::tempdir().unwrap();
    let create_size_bytes = Some(24 * PAGE);
    let options = PmemOptions { create_size_bytes, emulate: true, ..PmemOptions::default() };
    let memory = PmemFile::open(&folder.path().join("memory"), options).unwrap();
    memory.store(TEST, 8 * PAGE, &[7; 64]).unwrap();
    let length = usize::try_from(24 * PAGE).unwrap();
    let entry = ENTRIES.iter().find(|entry| entry.length.load(Ordering::SeqCst) == length);
    let start = entry.unwrap().start.load(Ordering::SeqCst);
    (folder, memory, start + length / 3)
}

#[test]
fn poison_that_nobody_touched_is_left_to_the_access_that_meets_it() {
    let (_folder, memory, address) = live();
    tests_handle(libc::BUS_MCEERR_AO, address);
    let mut bytes = [0; 64];
    memory.read(8 * PAGE, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 64]);
    tests_handle(libc::BUS_MCEERR_AR, address);
    let error = memory.read(8 * PAGE, &mut bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
}

/// As where a page is larger than 4 KiB: the kernel maps no less.
#[test]
fn what_a_fault_takes_is_a_page_whatever_its_size() {
    const LARGE: usize = 64 << 10;
    // Somewhere in here four pages begin.
    let memory = vec![7_u8; 5 * LARGE].leak();
    let apart = memory.as_ptr().addr().wrapping_neg() % LARGE;
    let pages = &mut memory[apart..apart + 4 * LARGE];
    let start = pages.as_mut_ptr().expose_provenance();
    let known = Registration::new(start, pages.len(), LARGE).unwrap();
    tests_handle(libc::BUS_MCEERR_AR, start + 2 * LARGE + 5000);
    let byte = |offset: usize| {
        // SAFETY: inside of what is leaked above, of which a page was replaced.
        unsafe { std::ptr::with_exposed_provenance::<u8>(start + offset).read_volatile() }
    };
    let ends = [2 * LARGE - 1, 2 * LARGE, 3 * LARGE - 1, 3 * LARGE];
    assert_eq!(ends.map(byte), [7, 0, 0, 7]);
    let found = |offset| known.damage().find(offset, 1);
    assert_eq!(ends.map(found), [None, Some(2 * LARGE), Some(2 * LARGE), None]);
}

/// In a child process: the handler before ours lets the next signal end it.
#[test]
fn a_signal_that_was_sent_is_passed_on_whatever_address_it_names() {
    const NAME: &str =
        "pmem::fault::tests::a_signal_that_was_sent_is_passed_on_whatever_address_it_names";
    const CHILD: &str = "ESKER_MEDIA_FAULT";
    if std::env::var_os(CHILD).is_some() {
        let (_folder, memory, address) = live();
        tests_handle(libc::SI_USER, address);
        memory.read(8 * PAGE, &mut [0; 64]).unwrap();
        let own = rustix::process::getpid();
        rustix::process::kill_process(own, rustix::process::Signal::BUS).unwrap();
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(CHILD, "sent")
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{words}");
}
