//! The four models under random interleavings (`cargo xtask interleave`): every entry is appended once, no
//! two appends to a log overlap, and nobody waits for ever, which shuttle reports as a deadlock.

use super::shim::Mutex;
use super::tested::Tested;
use super::*;
use esker_base::sync::thread;
use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

#[derive(Default)]
struct MemoryLogs {
    logs: Vec<MemoryLog>,
    clock: AtomicUsize,
    appends: AtomicUsize,
    panics_at: usize,
}

#[derive(Default)]
struct MemoryLog {
    busy: AtomicBool,
    entries: Mutex<Vec<u64>>,
}

impl Logs for MemoryLogs {
    type Entry = u64;
    type Placed = usize;

    fn size_bytes(&self, _: &u64) -> u64 {
        1
    }

    fn append(&self, core: usize, batch: &mut [Slot<u64, usize>]) -> Result<()> {
        let log = &self.logs[core];
        assert!(!log.busy.swap(true, SeqCst), "two appends to one log");
        let number = self.appends.fetch_add(1, SeqCst) + 1;
        let time = self.clock.fetch_add(1, SeqCst);
        if number == self.panics_at {
            // Each has its place, and none is in the log.
            batch.iter_mut().for_each(|slot| slot.place(time));
            std::panic::resume_unwind(Box::new("as was asked for"));
        }
        for slot in batch {
            log.entries.lock().push(*slot.entry());
            slot.place(time);
        }
        log.busy.store(false, SeqCst);
        Ok(())
    }
}

fn batcher(model: Batching, cores: usize, entries_max: usize) -> Arc<Tested<MemoryLogs>> {
    let logs = MemoryLogs {
        logs: (0..cores).map(|_| MemoryLog::default()).collect(),
        ..MemoryLogs::default()
    };
    let options =
        BatchingOptions { model, cores, group_size: cores, entries_max, size_bytes_max: 1 << 20 };
    Arc::new(Tested::new(logs, options))
}

/// Four writers with two entries each on one or two cores.
fn story(model: Batching, cores: usize, entries_max: usize) {
    let batcher = batcher(model, cores, entries_max);
    let writers = (0..4).map(|writer: u64| {
        let batcher = Arc::clone(&batcher);
        thread::spawn(move || {
            for n in 0..2 {
                let begun = batcher.logs.clock.fetch_add(1, SeqCst);
                let core = usize::try_from(writer).unwrap_or(0);
                let time = batcher.commit_on(core, writer * 10 + n).unwrap();
                let ended = batcher.logs.clock.fetch_add(1, SeqCst);
                assert!(begun < time && time < ended);
            }
        })
    });
    writers.collect::<Vec<_>>().into_iter().for_each(|writer| writer.join().unwrap());
    let mut entries: Vec<_> =
        batcher.logs.logs.iter().flat_map(|log| log.entries.lock().clone()).collect();
    entries.sort_unstable();
    assert_eq!(entries, [0, 1, 10, 11, 20, 21, 30, 31]);
    assert!(batcher.groups.iter().all(|group| group.words.is_idle()));
}

fn all_models(cores: usize, entries_max: usize) {
    explore(move || story(Batching::None, cores, entries_max));
    explore(move || story(Batching::Vertical, cores, entries_max));
    explore(move || story(Batching::NaiveHorizontal, cores, entries_max));
    explore(move || story(Batching::PipelinedHorizontal, cores, entries_max));
}

/// Writers with entries that they post together, and do not wait for in the order of the pool.
fn posts(entries_max: usize) {
    let batcher = batcher(Batching::PipelinedHorizontal, 2, entries_max);
    let writers = (0..3).map(|writer: u64| {
        let batcher = Arc::clone(&batcher);
        thread::spawn(move || {
            let core = usize::from(writer == 2);
            let posted = [0, 1].map(|n| batcher.post_on(core, writer * 10 + n));
            posted.into_iter().rev().for_each(|posted| assert!(posted.wait().is_ok()));
        })
    });
    writers.collect::<Vec<_>>().into_iter().for_each(|writer| writer.join().unwrap());
    let entries = batcher.logs.logs.iter().map(|log| log.entries.lock().len());
    assert_eq!(entries.sum::<usize>(), 6);
}

/// The first or second append unwinds: everyone else hears of it, and what is acknowledged is what the logs have.
fn panics(at: usize) {
    let mut batcher = batcher(Batching::PipelinedHorizontal, 2, 2);
    if let Some(batcher) = Arc::get_mut(&mut batcher) {
        batcher.logs.panics_at = at;
    }
    let writers = (0..3).map(|writer: u64| {
        let batcher = Arc::clone(&batcher);
        thread::spawn(move || {
            let core = usize::from(writer == 2);
            let commit = std::panic::AssertUnwindSafe(|| batcher.commit_on(core, writer));
            match std::panic::catch_unwind(commit) {
                Ok(Ok(_)) => (0, Some(writer)),
                Ok(Err(error)) => {
                    let kinds = [ErrorKind::DurabilityUnknown, ErrorKind::ReadOnly];
                    assert!(kinds.contains(&error.kind()));
                    (0, None)
                }
                Err(_) => (1, None),
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let (leaders, acknowledged): (Vec<_>, Vec<_>) =
        writers.into_iter().map(|writer| writer.join().unwrap()).unzip();
    // A batch has no room for all three, so there is a second append.
    assert_eq!(leaders.iter().sum::<usize>(), 1);
    let logs = batcher.logs.logs.iter();
    let mut entries: Vec<_> = logs.flat_map(|log| log.entries.lock().clone()).collect();
    entries.sort_unstable();
    let acknowledged: Vec<_> = acknowledged.into_iter().flatten().collect();
    assert_eq!(entries, acknowledged);
    assert!(batcher.commit_on(0, 9).is_err());
}

const RUNS: usize = 4000;

fn explore(story: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(story.clone(), RUNS);
    shuttle::check_pct(story, RUNS, 3);
}

#[test]
fn interleave_writers_of_one_core() {
    all_models(1, 8);
}

#[test]
fn interleave_writers_of_two_cores() {
    all_models(2, 8);
}

#[test]
fn interleave_full_batches() {
    all_models(2, 1);
    all_models(1, 2);
}

#[test]
fn interleave_posts() {
    explore(|| posts(8));
    explore(|| posts(1));
}

#[test]
fn interleave_panics() {
    explore(|| panics(1));
    explore(|| panics(2));
}
