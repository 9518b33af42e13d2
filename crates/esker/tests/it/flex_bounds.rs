//! `flex`: what is promised of time and room: what is acknowledged beside a slow device, a full store, a close, a backup; and how
//! much the background reads and moves at once.

use crate::flex::{Media, content, small};
use crate::flex_db::{Devices, options};
use crate::flex_whole::{bytes, held, sound};
use esker::flex::{Space, SpaceFiles};
use esker::options::Progress;
use esker::sites::{flex as of_space, flex_db as sites};
use esker::{
    Attributes, Direction, Durability, EngineKind, ErrorKind, FlexFiles, Options, PutOptions, Store,
};
use esker_base::clock::{Clock, ManualClock, SystemClock};
use esker_base::rng::Rng;
use esker_base::{Site, SiteKind};
use esker_media::BlockDevice;
use esker_media::sim::{Asking, Call, SimArchive};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

fn wait(duration: Duration) {
    esker_trt::sleep(duration);
}

/// Whether something comes true within a long time.
pub(crate) fn comes(is_true: impl Fn() -> bool) -> bool {
    (0..2000).any(|_| {
        wait(Duration::from_millis(10));
        is_true()
    })
}

/// A call that waits, once it is armed, until it is let go. The test that ends lets it go.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latch(Arc<[AtomicBool; 3]>);

impl Latch {
    pub(crate) fn arm(&self) {
        self.0[0].store(true, Ordering::SeqCst);
    }

    /// Waits, if it is armed.
    pub(crate) fn pass(&self) {
        if self.0[0].load(Ordering::SeqCst) {
            self.0[1].store(true, Ordering::SeqCst);
            while !self.0[2].load(Ordering::SeqCst) {
                wait(Duration::from_millis(1));
            }
        }
    }

    pub(crate) fn holds(&self) -> bool {
        self.0[1].load(Ordering::SeqCst)
    }

    pub(crate) fn let_go(&self) {
        self.0[2].store(true, Ordering::SeqCst);
    }
}

pub(crate) struct LetGo<'a>(pub(crate) &'a Latch);

impl Drop for LetGo<'_> {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

/// The files of these devices, each of which asks `before` with its number.
pub(crate) fn asking(
    devices: &Devices,
    before: impl Fn(usize, Site) + Clone + Send + Sync + 'static,
) -> FlexFiles {
    let device = |index: usize| {
        let before = before.clone();
        let asks = move |call: &Call| {
            before(index, call.site);
            Ok(())
        };
        Asking::new(devices.shared(index), asks) as Arc<dyn BlockDevice>
    };
    FlexFiles {
        space: SpaceFiles { data: device(0), tree: device(1), log: device(2) },
        logs: [device(3), device(4)],
        index: device(5),
    }
}

/// As [`options`], with time.
fn timed(seed: u64, durability: Durability) -> Options {
    let mut options = options(seed);
    options.clock = Arc::new(SystemClock);
    options.durability = durability;
    options
}

#[test]
fn a_table_goes_to_the_space_when_its_log_is_durable_and_not_before() {
    let devices = Devices::new(1);
    let (latch, changes) = (Latch::default(), Arc::new(AtomicU64::new(0)));
    let (holder, counter) = (latch.clone(), Arc::clone(&changes));
    let files = asking(&devices, move |index, site| {
        if site == sites::WAL_FLUSH {
            holder.pass();
        }
        if index < 3 && matches!(site.kind(), SiteKind::Write | SiteKind::Flush) {
            counter.fetch_add(1, Ordering::SeqCst);
        }
    });
    let store = Store::open_flex_on(files, &timed(1, Durability::Periodic(HOUR))).unwrap();
    latch.arm();
    std::thread::scope(|scope| {
        let _let_go = LetGo(&latch);
        let writer = scope.spawn(|| {
            for n in 0..200_u8 {
                store.put(&[n], &bytes(u64::from(n), 200)).unwrap();
                if latch.holds() {
                    break;
                }
            }
        });
        assert!(comes(|| latch.holds()), "a table is full, and its log is being flushed");
        let before = changes.load(Ordering::SeqCst);
        let others = scope.spawn(|| sound(&store));
        wait(Duration::from_millis(300));
        assert_eq!(changes.load(Ordering::SeqCst), before, "the log is not durable");
        assert!(!others.is_finished());
        latch.let_go();
        writer.join().unwrap();
        others.join().unwrap();
        assert!(changes.load(Ordering::SeqCst) > before);
    });
    sound(&store);
}

#[test]
fn the_log_is_flushed_in_its_window_although_a_table_does_not_get_into_the_space() {
    let devices = Devices::new(1);
    let (latch, flushes) = (Latch::default(), Arc::new(AtomicU64::new(0)));
    let (holder, counter) = (latch.clone(), Arc::clone(&flushes));
    let files = asking(&devices, move |_, site| {
        if site == of_space::DATA_WRITE {
            holder.pass();
        }
        if site == sites::WAL_FLUSH {
            counter.fetch_add(1, Ordering::SeqCst);
        }
    });
    let window = Duration::from_millis(50);
    let mut options = timed(1, Durability::Periodic(window));
    options.testing.background = true;
    options.flex.scrub_bytes_per_second = 0;
    let store = Store::open_flex_on(files, &options).unwrap();
    let _let_go = LetGo(&latch);
    latch.arm();
    for n in 0..200_u8 {
        store.put(&[n], &bytes(u64::from(n), 200)).unwrap();
        if n > 40 && comes(|| latch.holds()) {
            break;
        }
    }
    for round in 0..5_u8 {
        let before = flushes.load(Ordering::SeqCst);
        store.put(&[b'l', round], b"late").unwrap();
        assert!(comes(|| flushes.load(Ordering::SeqCst) > before), "round {round}");
    }
    assert!(latch.holds());
}

#[test]
fn large_values_are_verified_at_the_rate_that_is_due() {
    const RATE: u64 = 40_000;
    const VALUES: u8 = 20;
    let devices = Devices::new(1);
    let mut options = timed(1, Durability::None);
    let store = devices.open(&options).unwrap();
    for n in 0..VALUES {
        store.put(&[n], &bytes(u64::from(n), 40_000)).unwrap();
    }
    store.close().unwrap();
    drop(store);
    options.testing.background = true;
    options.flex.scrub_bytes_per_second = RATE;
    let since = SystemClock.monotonic();
    let store = devices.open(&options).unwrap();
    let verified = || {
        let report = store.report();
        let (before, _) = report.split_once(" bytes verified").unwrap();
        before.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    assert!(comes(|| verified() > 60_000), "intervals, and more than one value");
    for _ in 0..5 {
        let (read, passed) = (verified(), SystemClock.monotonic().saturating_sub(since));
        // A value is read as one piece here.
        let most = RATE * u64::try_from(passed.as_millis()).unwrap() / 1000 + 2 * 40_000;
        assert!(read <= most, "{read} bytes in {passed:?}");
        wait(Duration::from_millis(200));
    }
    assert!(store.report().contains(", 0 places damaged"), "{}", store.report());
}

#[test]
fn large_puts_side_by_side_leave_what_is_spare_to_tables_and_deletes() {
    const SIZE: usize = 2 << 20;
    const THREADS: u64 = 16;
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options::new(folder.path());
    options.engine = Some(EngineKind::Flex);
    options.durability = Durability::None;
    options.size_bytes = 64 << 20;
    options.testing.background = false;
    let clock = Arc::new(ManualClock::new(crate::support::START));
    options.clock = Arc::clone(&clock) as _;
    let store = Store::open(&options).unwrap();
    let large = bytes(1, SIZE);
    let is_put = |key: u64, value: &[u8]| match store.put(&key.to_be_bytes(), value) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            false
        }
    };
    let full = (0..).find(|key| !is_put(*key, &large)).unwrap();
    assert!(full > 10, "{full} values");
    // Room for two, less what a table takes that is not in the space yet.
    assert!(store.delete(&0_u64.to_be_bytes()).unwrap());
    assert!(store.delete(&1_u64.to_be_bytes()).unwrap());
    sound(&store);
    clock.advance(Duration::from_secs(1));
    let small = bytes(2, 1000);
    for n in 0..500 {
        assert!(is_put(1 << 32 | n, &small));
    }
    let barrier = Barrier::new(usize::try_from(THREADS).unwrap());
    let admitted: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|n| {
                let (barrier, large, is_put) = (&barrier, &large, &is_put);
                scope.spawn(move || {
                    barrier.wait();
                    u64::from(is_put(1 << 33 | n, large))
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!((1..=3).contains(&admitted), "{admitted} more found room");
    sound(&store);
    for key in held(&store).keys() {
        assert!(store.delete(key).unwrap());
    }
    sound(&store);
    clock.advance(Duration::from_secs(1));
    assert!((0..10).all(|key| is_put(key, &large)), "deletes gave room");
    sound(&store);
}

#[test]
fn a_write_that_a_close_overtakes_is_refused() {
    let devices = Devices::new(3);
    let latch = Latch::default();
    let holder = latch.clone();
    let files = asking(&devices, move |_, site| {
        if site == of_space::DATA_READ {
            holder.pass();
        }
    });
    let options = timed(3, Durability::Periodic(HOUR));
    let store = Store::open_flex_on(files, &options).unwrap();
    for n in 0..100_u8 {
        store.put(&[n], &bytes(u64::from(n), 200)).unwrap();
    }
    sound(&store);
    latch.arm();
    std::thread::scope(|scope| {
        let _let_go = LetGo(&latch);
        // It reads to find out whether there is one.
        let put = scope.spawn(|| store.put_if_present(&[50], b"new"));
        assert!(comes(|| latch.holds()));
        store.close().unwrap();
        latch.let_go();
        let refused = put.join().unwrap().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Closed, "{refused}");
    });
    drop(store);
    let store = devices.open(&options).unwrap();
    assert_eq!(store.get(&[50]).unwrap().unwrap().to_vec(), bytes(50, 200));
}

#[test]
fn versions_of_writes_that_were_lost_do_not_come_again() {
    for durability in [Durability::Periodic(HOUR), Durability::None] {
        let devices = Devices::new(1);
        let options = timed(1, durability);
        let store = devices.open(&options).unwrap();
        store.put(b"a", b"").unwrap();
        store.close().unwrap();
        drop(store);
        let mut last = esker_base::ids::Version(0);
        for round in 0..3 {
            let store = devices.open(&options).unwrap();
            assert!(store.get(b"k").unwrap().is_none(), "it was lost");
            let version = store.put(b"k", b"value").unwrap();
            assert!(version > last, "{durability}, round {round}");
            last = store.put(b"k", b"other").unwrap();
            assert!(store.get(b"k").unwrap().is_some());
            store.forget();
        }
    }
}

#[test]
fn a_large_value_that_expires_while_it_is_backed_up_is_left_out() {
    let devices = Devices::new(1);
    let mut options = options(1);
    let clock = Arc::new(ManualClock::new(crate::support::START));
    options.clock = Arc::clone(&clock) as _;
    let store = Arc::new(devices.open(&options).unwrap());
    let expires_at = Some(clock.unix_seconds() + 10);
    let expires = PutOptions {
        attributes: Attributes { expires_at, ..Attributes::default() },
        ..PutOptions::default()
    };
    store.put(b"a", &bytes(1, 9000)).unwrap();
    store.put_with(b"b", &bytes(2, 9000), expires).unwrap();
    store.put(b"c", &bytes(3, 9000)).unwrap();
    sound(&store);
    let archive = SimArchive::default();
    let (weak, files) = (Arc::downgrade(&store), AtomicU64::new(0));
    archive.before_create(move |name| {
        // The second one.
        if name.starts_with("large-") && files.fetch_add(1, Ordering::SeqCst) == 1 {
            clock.advance(Duration::from_secs(100));
            if let Some(store) = weak.upgrade() {
                let before = store.stats().live_bytes;
                store.clean(usize::MAX).unwrap();
                assert!(store.stats().live_bytes < before - 9000, "it is gone");
            }
        }
    });
    store.backup_to(&archive, &Progress::default()).unwrap();
    let copies = Devices::new(2);
    options.size_bytes = 0;
    esker::restore_flex_on(&archive, copies.files(), &options).unwrap();
    options.size_bytes = 2 << 20;
    let copy = copies.open(&options).unwrap();
    assert_eq!(held(&copy).into_keys().collect::<Vec<_>>(), [b"a", b"c"]);
    sound(&copy);
}

#[test]
fn leaves_that_are_read_make_way_for_each_other_without_a_checkpoint() {
    const LEAVES_MAX: usize = 16;
    let media = Media::new(16 << 20);
    let mut options = small(1);
    options.tree_size_bytes_max = LEAVES_MAX as u64 * 1024;
    let mut rng = Rng::from_seed(9);
    let mut model: Vec<u8> = Vec::new();
    {
        let space = Space::open_on(media.files(), &options).unwrap();
        for round in 0..1500 {
            let (at, piece) = (rng.index(model.len() + 1), bytes(round, 100));
            space.insert_range(at as u64, &piece).unwrap();
            model.splice(at..at, piece);
        }
        space.checkpoint().unwrap();
        assert!(space.stat().extents > 1000);
    }
    let space = Space::open_on(media.files(), &options).unwrap();
    let before = space.stat();
    for _ in 0..3 {
        for (part, at) in model.chunks(200).zip((0..).step_by(200)) {
            let mut read = vec![0; part.len()];
            assert_eq!(space.read(at, &mut read).unwrap(), part.len());
            assert_eq!(read, part);
            let leaves = space.stat().resident_nodes.0;
            assert!(leaves <= 2 * LEAVES_MAX, "{leaves} leaves at {at}");
        }
    }
    let after = space.stat();
    assert_eq!(before.generation, after.generation, "no checkpoint came by");
    assert!(after.tree.reads - before.tree.reads > 500, "each leaf was read again and again");
}

#[test]
fn the_collector_moves_no_more_at_once_than_its_bound_says() {
    const AT_ONCE: u64 = 16 << 10;
    let media = Media::new(16 << 20);
    let mut options = small(1);
    options.testing.moved_at_once = AT_ONCE;
    options.tree_size_bytes_max = 1 << 20;
    options.log_size_bytes_max = 1 << 20;
    let shape = &mut options.testing.shape;
    (shape.leaf_capacity, shape.children_max) = (24, 12);
    // What is written between two groups of the log is one part, once nobody else writes.
    let (most, last) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let data = Arc::clone(&media.0[0]);
    let (noted, before) = (Arc::clone(&most), Arc::clone(&last));
    let log = Asking::new(Arc::clone(&media.0[2]), move |call| {
        if call.site == of_space::LOG_WRITE {
            let written = data.counters().write_bytes;
            noted.fetch_max(written - before.swap(written, Ordering::SeqCst), Ordering::SeqCst);
        }
        Ok(())
    });
    let mut files = media.files();
    files.log = log;
    let space = Space::open_on(files, &options).unwrap();
    let mut rng = Rng::from_seed(1);
    let mut model: Vec<u8> = Vec::new();
    let (mut taken, mut moved) = (0, 0);
    // All of it takes some milliseconds, in which a busy machine may have no time for the writer: then once more.
    let met = (1..20).any(|round| {
        let more = bytes(round, (3 << 20) - model.len());
        space.insert_range(0, &more).unwrap();
        model.splice(0..0, more);
        // Half of it goes, here and there.
        while model.len() > 3 << 19 {
            let (at, length) = (rng.index(model.len() - 2000), 1 + rng.index(2000));
            space.collapse_range(at as u64, length as u64).unwrap();
            model.drain(at..at + length);
        }
        space.sync().unwrap();
        last.store(media.0[0].counters().write_bytes, Ordering::SeqCst);
        most.store(0, Ordering::SeqCst);
        (taken, moved) = (space.stat().file_size_bytes, space.stat().moved_bytes);
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                // Small, so that it hardly counts; it comes to its turn between parts, and moves all that is behind.
                let mut count = 0;
                while !ended.load(Ordering::SeqCst) {
                    space.insert_range(1000, &[7]).unwrap();
                    count += 1;
                    wait(Duration::from_micros(100));
                }
                count
            });
            space.compact().unwrap();
            ended.store(true, Ordering::SeqCst);
            let inserted = writer.join().unwrap();
            model.splice(1000..1000, std::iter::repeat_n(7, inserted));
            inserted > 3
        })
    });
    assert!(met, "nobody writes meanwhile");
    let moved = space.stat().moved_bytes - moved;
    assert!(moved > 20 * AT_ONCE, "{moved} bytes were moved");
    let most = most.load(Ordering::SeqCst);
    assert!(most <= 2 * AT_ONCE, "{most} bytes of {moved} at once");
    assert!(space.stat().free_segments > 0 && taken > 3 << 20);
    let (live, segments) = (space.stat().data_bytes, space.stat().segments);
    let used = (segments - space.stat().free_segments) * 8192;
    assert!(used < live * 13 / 10, "{used} bytes for {live}");
    assert_eq!(content(&space).unwrap(), model);
    assert_eq!(space.check().unwrap().problems, Vec::<String>::new());
}

#[test]
fn a_scan_reads_what_it_needs_at_once_in_both_directions() {
    const PAIRS: u64 = 20_000;
    const SCANS: u64 = 100;
    const LENGTH: u64 = 50;
    let key = |number: u64| format!("{number:016}").into_bytes();
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options::new(folder.path());
    options.engine = Some(EngineKind::Flex);
    options.size_bytes = 64 << 20;
    options.durability = Durability::None;
    options.flex.scrub_bytes_per_second = 0;
    let store = Store::open(&options).unwrap();
    for number in 0..PAIRS {
        let _version = store.put(&key(number * 7919 % PAIRS), &[1; 100]).unwrap();
    }
    // Side by side on the device.
    store.clean(usize::MAX).unwrap();
    store.close().unwrap();
    drop(store);
    for (cache_bytes, is_asked_for) in [(0, false), (64 << 20, true)] {
        for direction in [Direction::Forward, Direction::Reverse] {
            options.flex.cache_size_bytes = cache_bytes;
            let store = Store::open(&options).unwrap();
            if !is_asked_for {
                // Nobody knows how many pairs an interval has that nobody has looked into.
                assert_eq!(store.check().unwrap().problems.len(), 0);
            }
            let mut reads = 0;
            for scan in 0..SCANS {
                let number = LENGTH + scan * 2 * LENGTH;
                let from = key(number);
                if is_asked_for {
                    // The first interval is in memory then.
                    assert!(store.get(&from).unwrap().is_some());
                }
                let range = match direction {
                    Direction::Forward => (Bound::Included(&*from), Bound::Unbounded),
                    Direction::Reverse => (Bound::Unbounded, Bound::Included(&*from)),
                };
                let before = store.stats().device.reads;
                let found = store.scan(range, direction, LENGTH as usize).unwrap();
                reads += store.stats().device.reads - before;
                let wanted = |at| match direction {
                    Direction::Forward => key(number + at),
                    Direction::Reverse => key(number - at),
                };
                assert!(found.iter().map(|(key, _)| key.clone()).eq((0..LENGTH).map(wanted)));
            }
            // Some go over the end of a leaf of the index.
            let most = SCANS * 23 / 20;
            assert!(reads <= most, "{reads} reads, {direction:?}, a cache of {cache_bytes} bytes");
            store.close().unwrap();
        }
    }
}

#[test]
fn sizes_that_no_machine_has_are_refused_and_less_than_that_is_no_reason_to_end() {
    const MOST: u64 = 16 << 40;
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options::new(folder.path().join("store"));
    options.engine = Some(EngineKind::Flex);
    options.size_bytes = 64 << 20;
    for (cache, table) in [(MOST + 1, 1 << 20), (1 << 20, MOST + 1), (u64::MAX, u64::MAX)] {
        (options.flex.cache_size_bytes, options.flex.memtable_size_bytes) = (cache, table);
        let refused = Store::open(&options).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        assert!(!options.path.exists(), "before there is a file");
    }
    (options.flex.cache_size_bytes, options.flex.memtable_size_bytes) = (MOST, MOST);
    for step in [(1 << 30) + 1, u64::MAX] {
        options.flex.rebuild_step_bytes = step;
        let refused = Store::open(&options).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        assert!(!options.path.exists(), "before there is a file");
    }
    options.flex.rebuild_step_bytes = 1 << 30;
    for interval in [(16 << 20) + 1, u32::MAX] {
        options.flex.interval_size_bytes_max = interval;
        let refused = Store::open(&options).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        assert!(!options.path.exists(), "before there is a file");
    }
    options.flex.interval_size_bytes_max = 16 << 20;
    // As many as there can be, for each byte by itself.
    options.flex.rebuild_threads = usize::MAX;
    options.flex.scrub_bytes_per_second = u64::MAX;
    for round in 0..2_u8 {
        let store = Store::open(&options).unwrap();
        options.flex.rebuild_step_bytes = 0;
        for number in 0..300_u32 {
            store.put(&number.to_be_bytes(), &[round; 1000]).unwrap();
        }
        assert_eq!(store.get(&7_u32.to_be_bytes()).unwrap().as_deref(), Some(&[round; 1000][..]));
        store.close().unwrap();
    }
}
