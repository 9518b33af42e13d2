//! All four models over logs in memory: every entry once, in time, in its place, whatever fails.

use super::shim::Mutex;
use super::tested::Tested;
use super::*;
use esker_trt::sync::Gate;
use esker_trt::{Config, Runtime, sim};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// Logs in memory that check what a batcher promises them.
#[derive(Default)]
struct MemoryLogs {
    logs: Vec<MemoryLog>,
    /// Orders appends with the beginnings and ends of commits.
    clock: AtomicUsize,
    appends: AtomicUsize,
    /// The append with this number, from 1, fails; `panics`: unwinds.
    fails: usize,
    panics: bool,
    entries_max: usize,
    bytes_max: u64,
    /// Appends to core 0 wait for it.
    held: Option<Gate>,
}

#[derive(Default)]
struct MemoryLog {
    busy: AtomicBool,
    batches: Mutex<Vec<Vec<u64>>>,
}

/// Time of the append, log, batch, position.
type Place = (usize, usize, usize, usize);

impl Logs for MemoryLogs {
    type Entry = u64;
    type Placed = Place;

    fn size_bytes(&self, entry: &u64) -> u64 {
        entry % 100
    }

    fn append(&self, core: usize, batch: &mut [Slot<u64, Place>]) -> Result<()> {
        let log = &self.logs[core];
        assert!(!log.busy.swap(true, SeqCst), "B3");
        assert!(!batch.is_empty() && batch.len() <= self.entries_max, "B5: {}", batch.len());
        let bytes: u64 = batch.iter().map(|slot| self.size_bytes(slot.entry())).sum();
        assert!(bytes <= self.bytes_max || batch.len() == 1, "B5: {bytes} bytes");
        if let Some(gate) = self.held.as_ref().filter(|_| core == 0) {
            gate.wait();
        }
        let number = self.appends.fetch_add(1, SeqCst) + 1;
        let time = self.clock.fetch_add(1, SeqCst);
        if number == self.fails && self.panics {
            // Each has its place, and none is in the log.
            batch.iter_mut().for_each(|slot| slot.place((time, core, 0, 0)));
            panic!("as was asked for");
        }
        {
            let mut batches = log.batches.lock();
            for (position, slot) in batch.iter_mut().enumerate() {
                slot.place((time, core, batches.len(), position));
            }
            batches.push(batch.iter().map(|slot| *slot.entry()).collect());
        }
        if number.is_multiple_of(3) {
            esker_trt::yield_now();
        }
        log.busy.store(false, SeqCst);
        if number == self.fails { Err(Error::new(ErrorKind::Io, "append")) } else { Ok(()) }
    }
}

fn options(model: Batching, cores: usize) -> BatchingOptions {
    BatchingOptions { model, cores, group_size: 2, entries_max: 5, size_bytes_max: 250 }
}

fn batcher_with(
    options: BatchingOptions,
    change: impl FnOnce(&mut MemoryLogs),
) -> Arc<Tested<MemoryLogs>> {
    let mut logs = MemoryLogs {
        logs: (0..options.cores).map(|_| MemoryLog::default()).collect(),
        entries_max: if options.model == Batching::None { 1 } else { options.entries_max },
        bytes_max: options.size_bytes_max,
        ..MemoryLogs::default()
    };
    change(&mut logs);
    Arc::new(Tested::new(logs, options))
}

fn batcher(options: BatchingOptions) -> Arc<Tested<MemoryLogs>> {
    batcher_with(options, |_| {})
}

/// Commits `count` entries of the writer `writer` and checks when they were appended.
fn write(batcher: &Tested<MemoryLogs>, writer: u64, count: u64, core: Option<usize>) {
    for n in 0..count {
        let entry = writer * 1_000_000 + n;
        let begun = batcher.logs.clock.fetch_add(1, SeqCst);
        let placed = match core {
            Some(core) => batcher.commit_on(core, entry),
            None => batcher.commit(entry),
        };
        let (time, core, batch, position) = placed.unwrap();
        let ended = batcher.logs.clock.fetch_add(1, SeqCst);
        assert!(begun < time && time < ended, "appended at {time}, outside {begun} to {ended}");
        assert_eq!(batcher.logs.logs[core].batches.lock()[batch][position], entry);
    }
}

/// All entries are in the logs, once (B1), and nobody is left at work.
fn check(batcher: &Tested<MemoryLogs>, writers: u64, count: u64) -> BTreeMap<u64, usize> {
    let mut found = BTreeMap::new();
    for (core, log) in batcher.logs.logs.iter().enumerate() {
        for entry in log.batches.lock().iter().flatten() {
            assert_eq!(found.insert(*entry, core), None, "{entry} twice");
        }
    }
    let all = (0..writers).flat_map(|writer| (0..count).map(move |n| writer * 1_000_000 + n));
    assert!(found.keys().copied().eq(all), "{} entries of {}", found.len(), writers * count);
    assert!(batcher.groups.iter().all(|group| group.words.is_idle()));
    found
}

#[test]
fn threads_find_each_entry_once_and_in_time() {
    for model in Batching::ALL {
        for (cores, writers) in [(1, 1), (1, 6), (2, 6), (5, 8)] {
            let batcher = batcher(options(model, cores));
            std::thread::scope(|scope| {
                for writer in 0..writers {
                    let batcher = &batcher;
                    let core = usize::try_from(writer).unwrap() % cores;
                    scope.spawn(move || write(batcher, writer, 2000, Some(core)));
                }
            });
            for (entry, core) in check(&batcher, writers, 2000) {
                let own = usize::try_from(entry / 1_000_000).unwrap() % cores;
                let near = match model {
                    Batching::None | Batching::Vertical => own == core,
                    _ => own / 2 == core / 2,
                };
                assert!(near, "{model:?}: an entry of core {own} in the log of core {core}");
            }
        }
    }
}

#[test]
fn threads_have_a_core_without_asking() {
    let batcher = batcher(options(Batching::PipelinedHorizontal, 3));
    std::thread::scope(|scope| {
        for writer in 0..6 {
            let batcher = &batcher;
            scope.spawn(move || write(batcher, writer, 500, None));
        }
    });
    assert_eq!(check(&batcher, 6, 500).len(), 3000);
}

fn runtime(cores: usize) -> Runtime {
    Runtime::start(Config { cores, ..Config::default() }).unwrap()
}

#[test]
fn tasks_and_threads_find_each_entry_once_and_in_time() {
    for model in Batching::ALL {
        let (runtime, batcher) = (runtime(2), batcher(options(model, 2)));
        let tasks: Vec<_> = (0..24)
            .map(|writer| {
                let batcher = Arc::clone(&batcher);
                runtime.spawn(move || write(&batcher, writer, 300, None))
            })
            .collect();
        std::thread::scope(|scope| {
            for writer in 24..27 {
                let batcher = &batcher;
                scope.spawn(move || write(batcher, writer, 300, None));
            }
        });
        tasks.into_iter().for_each(|task| task.join().unwrap());
        check(&batcher, 27, 300);
        runtime.shutdown().unwrap();
    }
}

#[test]
fn eight_tasks_of_a_core_share_a_batch() {
    let limits =
        BatchingOptions { entries_max: 64, size_bytes_max: 1 << 20, ..BatchingOptions::default() };
    for model in [Batching::Vertical, Batching::NaiveHorizontal, Batching::PipelinedHorizontal] {
        let (runtime, batcher) = (runtime(1), batcher(BatchingOptions { model, ..limits }));
        let first = Arc::clone(&batcher);
        let all = runtime.spawn(move || {
            let tasks = (0..8).map(|writer| {
                let batcher = Arc::clone(&first);
                esker_trt::spawn(move || write(&batcher, writer, 100, None))
            });
            tasks.collect::<Vec<_>>().into_iter().for_each(|task| task.join().unwrap());
        });
        all.join().unwrap();
        check(&batcher, 8, 100);
        let appends = batcher.logs.appends.load(SeqCst);
        assert!(appends <= 110, "{model:?}: {appends} appends for 100 rounds of 8");
        runtime.shutdown().unwrap();
    }
}

#[test]
fn simulated_tasks_find_each_entry_once_whatever_their_order() {
    for seed in 0..200 {
        for model in Batching::ALL {
            let batcher = batcher(options(model, 4));
            let shared = Arc::clone(&batcher);
            let report = sim::run(seed, move || {
                let tasks = (0..9).map(|writer| {
                    let batcher = Arc::clone(&shared);
                    esker_trt::spawn(move || write(&batcher, writer, 8, None))
                });
                tasks.collect::<Vec<_>>().into_iter().for_each(|task| task.join().unwrap());
            });
            report.outcome.unwrap();
            check(&batcher, 9, 8);
        }
    }
}

#[test]
fn a_failed_append_reaches_the_writers_of_its_batch_and_no_others() {
    for model in Batching::ALL {
        let batcher = batcher_with(options(model, 2), |logs| logs.fails = 40);
        let failed = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for writer in 0..6 {
                let (batcher, failed) = (&batcher, &failed);
                scope.spawn(move || {
                    for n in 0..200 {
                        let entry = writer * 1_000_000 + n;
                        if let Err(error) = batcher.commit_on(usize::from(writer % 2 == 1), entry) {
                            assert_eq!(error.kind(), ErrorKind::Io);
                            failed.lock().push(entry);
                        }
                    }
                });
            }
        });
        check(&batcher, 6, 200);
        let mut failed = std::mem::take(&mut *failed.lock());
        failed.sort_unstable();
        let is_failed = |batch: &Vec<u64>| {
            let mut batch = batch.clone();
            batch.sort_unstable();
            batch == failed
        };
        let logs = &batcher.logs.logs;
        assert!(logs.iter().any(|log| log.batches.lock().iter().any(is_failed)), "{failed:?}");
    }
}

#[test]
fn nobody_waits_for_a_leader_that_panicked() {
    for model in Batching::ALL {
        let panics = |logs: &mut MemoryLogs| (logs.fails, logs.panics) = (100, true);
        let batcher = batcher_with(options(model, 2), panics);
        let (unknown, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let done = Mutex::new(Vec::new());
        let leaders = std::thread::scope(|scope| {
            let writers = (0..6).map(|writer: u64| {
                let (batcher, done, unknown, refused) = (&batcher, &done, &unknown, &refused);
                scope.spawn(move || {
                    for n in 0..200 {
                        let entry = writer * 1_000_000 + n;
                        let placed = batcher.commit_on(usize::from(writer % 2 == 1), entry);
                        match placed.map_err(|error| error.kind()) {
                            Ok(_) => done.lock().push(entry),
                            Err(ErrorKind::DurabilityUnknown) => {
                                unknown.fetch_add(1, SeqCst);
                            }
                            Err(kind) => {
                                assert_eq!(kind, ErrorKind::ReadOnly);
                                refused.fetch_add(1, SeqCst);
                            }
                        }
                    }
                })
            });
            let writers: Vec<_> = writers.collect();
            writers.into_iter().map(|writer| usize::from(writer.join().is_err())).sum::<usize>()
        });
        assert_eq!(leaders, 1, "{model:?}");
        let (mut done, unknown) = (std::mem::take(&mut *done.lock()), unknown.into_inner());
        assert!(done.len() >= 99 && unknown <= 5, "{} done, {unknown} unknown", done.len());
        // What is acknowledged is what the logs have.
        let logs = batcher.logs.logs.iter();
        let mut logged: Vec<_> = logs.flat_map(|log| log.batches.lock().concat()).collect();
        [&mut done, &mut logged].into_iter().for_each(|entries| entries.sort_unstable());
        assert!(done == logged, "{model:?}: {} done, {} logged", done.len(), logged.len());
        assert!(refused.into_inner() > 0);
        assert_eq!(batcher.commit(1).unwrap_err().kind(), ErrorKind::ReadOnly);
    }
}

/// A writer of core 0 whose append is held; then one more of core 0 and one of core 1. Who is done before the
/// first one goes on?
fn check_beside_a_held_append(model: Batching, expected: [bool; 2]) {
    let batcher = batcher_with(options(model, 2), |logs| logs.held = Some(Gate::new()));
    let done = [AtomicBool::new(false), AtomicBool::new(false)];
    const LONG: u32 = 200_000;
    let waits = |tries: u32, ready: &dyn Fn() -> bool| {
        for _ in 0..tries {
            if ready() {
                return;
            }
            std::thread::park_timeout(std::time::Duration::from_micros(100));
        }
    };
    let found = std::thread::scope(|scope| {
        scope.spawn(|| batcher.commit_on(0, 1).unwrap());
        waits(LONG, &|| batcher.logs.logs[0].busy.load(SeqCst));
        scope.spawn(|| {
            batcher.commit_on(0, 2).unwrap();
            done[0].store(true, SeqCst);
        });
        waits(LONG, &|| batcher.groups[0].pools[0].first().is_some());
        scope.spawn(|| {
            batcher.commit_on(1, 3).unwrap();
            done[1].store(true, SeqCst);
        });
        waits(LONG, &|| {
            done.iter().zip(expected).all(|(done, wanted)| done.load(SeqCst) || !wanted)
        });
        // And nobody else.
        waits(2000, &|| done.iter().all(|done| done.load(SeqCst)));
        let found = done.each_ref().map(|done| done.load(SeqCst));
        batcher.logs.held.as_ref().unwrap().open();
        found
    });
    assert_eq!(
        batcher.logs.logs.iter().map(|log| log.batches.lock().concat().len()).sum::<usize>(),
        3
    );
    assert_eq!(found, expected, "{model:?}");
}

#[test]
fn pipelined_leaders_steal_and_overlap() {
    // The leader of core 1 takes along what waits for the log of core 0.
    check_beside_a_held_append(Batching::PipelinedHorizontal, [true, true]);
    check_beside_a_held_append(Batching::NaiveHorizontal, [false, false]);
    check_beside_a_held_append(Batching::Vertical, [false, true]);
    check_beside_a_held_append(Batching::None, [false, true]);
}

#[test]
fn entries_that_are_posted_together_are_one_batch() {
    let batcher = batcher(options(Batching::PipelinedHorizontal, 2));
    let posted: Vec<_> = (0..5).map(|n| batcher.post(n)).collect();
    let placed: Vec<_> = posted.into_iter().map(|posted| posted.wait().unwrap()).collect();
    let (time, core, ..) = placed[0];
    assert!(placed.iter().enumerate().all(|(n, place)| *place == (time, core, 0, n)));
    // Three of 90 bytes are more than a batch takes.
    let posted: Vec<_> = (0..3).map(|n| batcher.post(n * 100 + 90)).collect();
    let batches = posted.into_iter().map(|posted| posted.wait().unwrap().2);
    assert_eq!(batches.collect::<Vec<_>>(), [1, 1, 2]);
}

#[test]
fn writers_that_do_not_wait_hold_nobody_up() {
    let batcher =
        batcher_with(options(Batching::Vertical, 1), |logs| logs.held = Some(Gate::new()));
    std::thread::scope(|scope| {
        scope.spawn(|| batcher.commit_on(0, 1).unwrap());
        while !batcher.logs.logs[0].busy.load(SeqCst) {
            std::thread::yield_now();
        }
        // Stands before the other one in the pool and is not waited for.
        let posted = batcher.post_on(0, 2);
        let other = scope.spawn(|| batcher.commit_on(0, 3).unwrap());
        std::thread::park_timeout(std::time::Duration::from_millis(20));
        batcher.logs.held.as_ref().unwrap().open();
        let (_, core, batch, position) = other.join().unwrap();
        assert_eq!((core, batch, position), (0, 1, 1));
        assert_eq!(posted.wait().unwrap(), (1, 0, 1, 0));
    });
}

#[test]
fn a_writer_is_alone_again_after_it_was_not() {
    for model in [Batching::None, Batching::Vertical, Batching::PipelinedHorizontal] {
        let batcher = batcher(options(model, 1));
        let alone = batcher.alone(0).unwrap();
        let posted = batcher.post_on(0, 1);
        // As its writer does, while it waits.
        assert_eq!(batcher.groups[0].words.claim(0), Claim::Waits);
        alone.append(|_| ());
        posted.wait().unwrap();
        let alone = batcher.alone(0);
        alone.unwrap_or_else(|| panic!("{model:?}")).append(|_| ());
    }
}
