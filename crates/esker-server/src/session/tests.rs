//! One session over a stream that stands in memory.

use super::Session;
use crate::budget::KindShare;
use crate::clock::SteadyClock;
use crate::counters::Counter;
use crate::limits::{
    BODY_STEP_BYTES, BUDGET_ITEMS_MIN, Limits, POCKET_BYTES_MAX, RECEIVE_BYTES_MIN,
    UNCHARGED_BYTES_MAX,
};
use crate::protocol::WatchKinds;
use crate::server::ServerConfig;
use crate::shared::Shared;
use crate::transport::Transport;
use crate::watch::{Place, WATCHER_BYTES};
use esker::{Durability, Options, Store};
use esker_base::clock::{Clock, ManualClock, SystemClock};
use std::cell::RefCell;
use std::io::{IoSlice, Result as IoResult};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// A client that sends `input` as fast as it is read, and notes what it is told.
struct Stream {
    input: Vec<u8>,
    read: usize,
    told: Rc<RefCell<Vec<u8>>>,
    /// Whether the first reply is more than the machine can take.
    breaks: bool,
    /// How long it takes for each 64 KiB of a reply, by which clock.
    slow: Option<(Arc<ManualClock>, Duration)>,
}

impl Transport for Stream {
    fn read(&mut self, into: &mut [u8], _timeout: Option<Duration>) -> IoResult<usize> {
        let count = into.len().min(self.input.len() - self.read);
        into[..count].copy_from_slice(&self.input[self.read..][..count]);
        self.read += count;
        Ok(count)
    }

    fn write_vectored(
        &mut self,
        slices: &[IoSlice<'_>],
        _timeout: Option<Duration>,
    ) -> IoResult<usize> {
        assert!(!self.breaks, "the stream breaks");
        let mut told = self.told.borrow_mut();
        if let Some((clock, step)) = &self.slow {
            let some: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
            let count = some.len().min(BODY_STEP_BYTES);
            told.extend_from_slice(&some[..count]);
            clock.advance(*step);
            return Ok(count);
        }
        slices.iter().for_each(|slice| told.extend_from_slice(slice));
        Ok(slices.iter().map(|slice| slice.len()).sum())
    }

    fn holds_back(&self) -> bool {
        false
    }

    fn flush(&mut self, _timeout: Duration) -> IoResult<()> {
        Ok(())
    }

    fn linger(&mut self, _limit: Duration) {}
}

/// A store and what sessions share; requests wait for memory 100 ms at most.
fn shared() -> (Arc<Shared>, TempDir) {
    shared_within(Limits { request_timeout: Duration::from_millis(100), ..Limits::default() })
}

/// The same, with these limits.
fn shared_within(limits: Limits) -> (Arc<Shared>, TempDir) {
    let folder = tempfile::tempdir().expect("scratch folder");
    let mut options = Options::new(folder.path().join("data"));
    (options.size_bytes, options.durability) = (64 << 20, Durability::None);
    let store = Store::open(&options).expect("store");
    assert_eq!(limits.check(false), Ok(()));
    let config = ServerConfig { limits, ..ServerConfig::default() };
    (Arc::new(Shared::new(store, config, 1, Vec::new())), folder)
}

/// Bytes that a client is told which asks `request` of a store with these items and takes what it is sent each time in `step`, while no
/// more memory than `free` is left; and whether it was cut off.
fn told_slowly(
    items: &[(Vec<u8>, Vec<u8>)],
    request: &[u8],
    step: Duration,
    free: Option<u64>,
) -> (usize, bool) {
    let clock = Arc::new(ManualClock::new(1_700_000_000));
    let (of_system, _folder) = shared();
    let steady = Arc::new(SteadyClock::new(clock.clone()));
    let config = ServerConfig { clock: steady, ..ServerConfig::default() };
    let shared = Arc::new(Shared::new(of_system.store.clone(), config, 1, Vec::new()));
    for (key, value) in items {
        shared.store.put(key, value).expect("put");
    }
    let held = free.map_or(0, |free| shared.budget.free_bytes() - free);
    let _held = shared.budget.try_take(held).expect("free");
    let told: Rc<RefCell<Vec<u8>>> = Rc::default();
    let stream = Stream {
        input: request.to_vec(),
        read: 0,
        told: Rc::clone(&told),
        breaks: false,
        slow: Some((clock, step)),
    };
    Session::new(Arc::clone(&shared), 0, stream, shared.budget.nothing()).run();
    let told = told.borrow().len();
    (told, shared.counters.total(Counter::RequestTimeouts) > 0)
}

#[test]
fn who_takes_a_reply_slowly_is_cut_off_once_memory_is_short_and_not_before() {
    let (size, free) = (4 << 20, Some(16 << 20));
    let told_slowly = |size: usize, step, free| {
        told_slowly(&[(b"k".to_vec(), vec![b'v'; size])], b"get k\r\n", step, free)
    };
    // Progress each time, and far from enough of it.
    let slow = Duration::from_secs(9);
    let (told, cut_off) = told_slowly(size, slow, None);
    assert!(told > size && !cut_off, "{told}");
    let (told, cut_off) = told_slowly(size, slow, free);
    assert!(told <= 2 * BODY_STEP_BYTES && cut_off, "{told}");
    // As fast as it has to be, for longer than others wait for memory.
    let (told, cut_off) = told_slowly(16 << 20, Duration::from_millis(60), Some(32 << 20));
    assert!(told > 16 << 20 && !cut_off, "{told}");
}

/// What a client is told that sends `input` and then closes.
fn told(shared: &Arc<Shared>, input: &[u8]) -> String {
    let told = Rc::default();
    let stream = Stream {
        input: input.to_vec(),
        read: 0,
        told: Rc::clone(&told),
        breaks: false,
        slow: None,
    };
    Session::new(Arc::clone(shared), 0, stream, shared.budget.nothing()).run();
    String::from_utf8_lossy(&told.borrow()).into_owned()
}

#[test]
fn a_session_that_panics_counts_as_one_that_has_answered_everything() {
    let (shared, _folder) = shared();
    let stream = Stream {
        input: b"get k\r\n".to_vec(),
        read: 0,
        told: Rc::default(),
        breaks: true,
        slow: None,
    };
    let session = Session::new(Arc::clone(&shared), 0, stream, shared.budget.nothing());
    assert!(catch_unwind(AssertUnwindSafe(|| session.run())).is_err());
    assert_eq!(shared.counters.busy(), 0);
    assert_eq!(told(&shared, b"get k\r\n"), "END\r\n");
    assert_eq!(shared.counters.busy(), 0);
}

#[test]
fn keys_behind_one_for_which_there_was_no_memory_are_not_waited_for() {
    let (shared, _folder) = shared();
    let keys: Vec<String> = (0..500).map(|n| format!("k{n}")).collect();
    for key in &keys {
        shared.store.put(key.as_bytes(), &[b'v'; 1000]).expect("put");
    }
    let _all = shared.budget.try_take(shared.budget.free_bytes()).expect("free");
    let start = SystemClock.monotonic();
    let line = format!("get {}\r\nget k1\r\nmn\r\n", keys.join(" "));
    let refused = "SERVER_ERROR out of memory writing get response\r\n";
    assert_eq!(told(&shared, line.as_bytes()), format!("{refused}{refused}MN\r\n"));
    let passed = SystemClock.monotonic() - start;
    assert!(passed < Duration::from_secs(20), "{passed:?}");
}

#[test]
fn a_set_for_which_the_receive_buffer_cannot_grow_is_refused_and_passed_over() {
    let (shared, _folder) = shared();
    let _all = shared.budget.try_take(shared.budget.free_bytes()).expect("free");
    let block = "delete k\r\n".repeat(1000);
    let refused = "SERVER_ERROR out of memory storing object\r\n";
    for (line, reply) in [
        (format!("set k 0 0 {}", block.len()), refused),
        (format!("set k 0 0 {} noreply", block.len()), ""),
        (format!("ms k {}", block.len()), refused),
    ] {
        let input = format!("{line}\r\n{block}\r\nmn\r\n");
        assert_eq!(told(&shared, input.as_bytes()), format!("{reply}MN\r\n"), "{line}");
    }
    assert_eq!(shared.counters.total(Counter::StoreNoMemory), 3);
    // A line for which there is no room has no end that could be found.
    let line = format!("get {}\r\n", "k ".repeat(RECEIVE_BYTES_MIN));
    let refused = "SERVER_ERROR out of memory writing get response\r\n";
    assert_eq!(told(&shared, line.as_bytes()), refused);
}

#[test]
fn what_guests_without_a_request_hold_is_not_waited_for() {
    let limits = Limits { memory_max_bytes: 40 << 20, connections_max: 16, ..Limits::default() };
    let (shared, _folder) = shared_within(limits);
    shared.store.put(b"k", &vec![b'v'; 32 << 20]).expect("put");
    let is_refused_at_once = || {
        let start = SystemClock.monotonic();
        let told = told(&shared, b"get k\r\nmn\r\n");
        assert!(SystemClock.monotonic() - start < Duration::from_secs(5), "waited in vain");
        told == "SERVER_ERROR out of memory writing get response\r\nMN\r\n"
    };
    assert!(!is_refused_at_once(), "nobody is there");
    let mut rings = KindShare::new(&shared.budget, &shared.rings);
    assert!(rings.try_grow(10 << 20) && is_refused_at_once());
    drop(rings);
    let mut rings = KindShare::new(&shared.budget, &shared.rings);
    assert!(rings.try_grow(3 << 20) && !is_refused_at_once());
    let watchers: Vec<_> = std::iter::from_fn(|| {
        let place = Place::take(&shared, WatchKinds::FETCHERS)?;
        Some((place, shared.budget.try_take(WATCHER_BYTES).expect("free")))
    })
    .collect();
    assert!(watchers.len() > 16 && is_refused_at_once());
}

#[test]
fn most_that_is_waited_for_is_free_while_all_guests_hold_what_they_keep() {
    for (memory_max_bytes, pocket_bytes) in [(40 << 20, POCKET_BYTES_MAX), (4200 << 10, 0)] {
        let limits = Limits { memory_max_bytes, connections_max: 16, ..Limits::default() };
        assert_eq!(limits.pocket_bytes(false), pocket_bytes);
        let (shared, _folder) = shared_within(limits);
        let _kept = shared.budget.try_take(16 * (RECEIVE_BYTES_MIN as u64 + pocket_bytes));
        assert_eq!(shared.budget.free_bytes(), shared.request_bytes_max());
        let mut rings = KindShare::new(&shared.budget, &shared.rings);
        assert!(rings.try_grow(1 << 20));
        assert_eq!(shared.budget.free_bytes(), shared.request_bytes_max());
        // What may be stored can be read.
        drop(rings);
        assert!(shared.request_bytes_max() >= BUDGET_ITEMS_MIN << 20);
    }
}

#[test]
fn a_list_waits_for_no_memory_that_cannot_come() {
    let (memory_max_bytes, item_size_max_bytes) = (6 << 20, 256 << 10);
    let limits = Limits { memory_max_bytes, item_size_max_bytes, ..Limits::default() };
    let (shared, _folder) = shared_within(limits);
    shared.store.put(b"k", b"v").expect("put");
    assert!(told(&shared, b"lru_crawler metadump all\r\n").ends_with("size=2\nEND\r\n"));
    let _connections = shared.budget.try_take(4 << 20).expect("free");
    let start = SystemClock.monotonic();
    let refused = "SERVER_ERROR out of memory writing get response\r\n";
    assert_eq!(told(&shared, b"lru_crawler metadump all\r\n"), refused);
    let passed = SystemClock.monotonic() - start;
    assert!(passed < Duration::from_secs(5), "{passed:?}");
}

#[test]
fn who_takes_a_list_slowly_is_cut_off_like_who_takes_a_reply() {
    let items: Vec<_> =
        (0..4000).map(|number| (format!("key-{number}").into_bytes(), b"v".to_vec())).collect();
    let listed_slowly =
        |step| told_slowly(&items, b"lru_crawler metadump all\r\n", step, Some(32 << 20));
    let (all, cut_off) = listed_slowly(Duration::ZERO);
    assert!(all > 20 * UNCHARGED_BYTES_MAX && !cut_off, "{all}");
    // Progress of some KiB each time.
    let (told, cut_off) = listed_slowly(Duration::from_secs(9));
    assert!(told <= 3 * UNCHARGED_BYTES_MAX && cut_off, "{told}");
    // As fast as it has to be.
    let (told, cut_off) = listed_slowly(Duration::from_millis(7));
    assert_eq!((told, cut_off), (all, false));
}

#[test]
fn a_list_reads_no_value_for_which_there_is_no_memory() {
    let limits = Limits { memory_max_bytes: 20 << 20, connections_max: 16, ..Limits::default() };
    let (shared, _folder) = shared_within(limits);
    shared.store.put(b"large", &vec![b'v'; 32 << 20]).expect("put");
    shared.store.put(b"small", &vec![b'v'; 1 << 20]).expect("put");
    let list = told(&shared, b"lru_crawler metadump all\r\n");
    assert!(list.starts_with("key=small ") && list.lines().count() == 2, "{list}");
    assert_eq!(shared.counters.total(Counter::StoreNoMemory), 1);
    assert_eq!(shared.budget.free_bytes(), 20 << 20);
    // One of a time with another limit, for which there is some.
    let config = ServerConfig::default();
    let shared = Arc::new(Shared::new(shared.store.clone(), config, 1, Vec::new()));
    assert_eq!(told(&shared, b"lru_crawler metadump all\r\n").lines().count(), 3);
}
