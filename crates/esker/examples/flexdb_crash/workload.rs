//! Operations on a store of `flex`, and what it may hold after a cut at any moment of them.

use crate::content::{self, BEGIN};
use crate::scenarios::words;
use crate::timeline::Timeline;
use crate::{beside, operation, views};
use esker::flex::{SpaceFiles, SpaceOptions};
use esker::{Durability, FlexFiles, Options, Result, Store};
use esker_base::clock::ManualClock;
use esker_base::rng::Rng;
use esker_format::flex::SpaceShape;
use esker_media::BlockDevice;
use esker_media::sim::{Image, Initial, SimBlockOptions, SimDevices};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use crate::content::{Content, Told};
/// Data, tree and log of the space; two logs; the saved index.
pub(crate) const DEVICES: usize = 6;
/// Operations of a workload, and of what goes on after a recovery.
pub(crate) const OPERATIONS: u64 = 90;
pub(crate) const OPERATIONS_MORE: u64 = 16;
/// Longest that the files become, in bytes.
const SIZES: [u64; DEVICES] = [256 << 10, 1 << 20, 64 << 10, 8 << 10, 8 << 10, 16 << 10];
/// First sizes.
const FIRST: [u64; DEVICES] = [4096, 8192, 4096, 4096, 4096, 4096];

/// Tiny geometry: a table of a few keys, intervals of three pairs, segments of eight blocks.
pub(crate) fn options(seed: u64) -> Options {
    let mut options = Options::new("");
    options.testing.seed = Some(seed);
    options.testing.background = false;
    options.size_bytes = 256 << 10;
    options.durability = match seed % 6 {
        0 => Durability::None,
        // Its log is flushed by nobody but a sync and the end of its table.
        3 => Durability::Periodic(std::time::Duration::from_secs(1)),
        _ => Durability::Sync,
    };
    options.flex.memtable_size_bytes = 900;
    options.flex.interval_pairs_max = 3;
    options.flex.interval_size_bytes_max = 400;
    options.flex.rebuild_step_bytes = 300;
    options.flex.rebuild_threads = 1;
    options.flex.large_value_size_bytes = 300;
    options.flex.cache_size_bytes = if seed.is_multiple_of(2) { 0 } else { 3 << 10 };
    let mut space = SpaceOptions::new("").testing;
    space.shape = SpaceShape {
        segment_size_bytes: 4096,
        block_size_bytes: 512,
        node_size_bytes: 512,
        leaf_capacity: 4,
        children_max: 4,
        extent_size_bytes_max: 508,
        log_block_size_bytes: 512,
    };
    space.records_max = 20;
    if seed & 4 == 0 {
        // A checkpoint writes nodes before it has met all of them.
        space.nodes_max = 3;
    }
    space.moved_at_once = if seed & 8 == 0 { 1 } else { 1 << 20 };
    // Full segments may wait for the next commit.
    space.filled_max = (seed >> 4) as usize % 3;
    if seed.is_multiple_of(6) {
        // What belongs together soon becomes too much to wait for, and a table without a log gets one late. If
        // nothing waited, a part of a table would be durable soon.
        space.records_held_max = 2;
        space.records_max = 4;
    }
    options.flex.space = Some(space);
    options
}

/// Six devices with this content, on one power supply.
pub(crate) fn devices(initial: &[Initial], seed: u64, record: bool) -> SimDevices {
    SimDevices::new(DEVICES, |index| {
        let initial = initial[index].clone();
        let size = match &initial {
            Initial::Recycled(image) => image.size_bytes(),
            _ => FIRST[index],
        };
        let mut options = SimBlockOptions::new(size, seed ^ index as u64).initial(initial);
        options.size_bytes_max = SIZES[index];
        options.record = record;
        options
    })
}

pub(crate) fn files(devices: &SimDevices) -> FlexFiles {
    let device = |index: usize| Arc::clone(&devices.devices()[index]) as Arc<dyn BlockDevice>;
    FlexFiles {
        space: SpaceFiles { data: device(0), tree: device(1), log: device(2) },
        logs: [device(3), device(4)],
        index: device(5),
    }
}

/// What the clock of a recovery says: nothing has expired yet, everything has, or what was a little later or earlier.
fn time_of(seed: u64) -> u64 {
    match (seed >> 8) % 4 {
        0 => BEGIN,
        1 => BEGIN + 1_000_000,
        _ => BEGIN + (seed >> 16) % LIFE_MAX,
    }
}

/// Opens the store on these images and reads everything; of some, everything is verified, too, and of some of these, all of it
/// is deleted: then it takes as much room as a store that is empty.
pub(crate) fn open_and_read(images: &[Image], seed: u64) -> Result<Content> {
    let initial: Vec<_> = images.iter().cloned().map(Initial::Recycled).collect();
    let devices = devices(&initial, seed, false);
    let mut options = options(seed);
    options.create = false;
    let time = time_of(seed);
    options.clock = Arc::new(ManualClock::new(time));
    let before = match seed % 8 {
        // Nothing is changed by that.
        1 => {
            let options = Options { read_only: true, ..options.clone() };
            let store = Store::open_flex_on(files(&devices), &options)?;
            Some(content::read(&store, seed / 4)?)
        }
        _ => None,
    };
    let store = Store::open_flex_on(files(&devices), &options)?;
    let items = content::read(&store, seed / 4)?;
    assert!(before.is_none_or(|before| before == items), "who only read found something else");
    if seed.is_multiple_of(4) {
        let report = store.check()?;
        assert!(report.is_sound(), "{:?}", report.problems);
        assert_eq!(content::read(&store, 0)?, items, "after everything went to the space");
    }
    if seed.is_multiple_of(32) {
        views::empty(&store)?;
    }
    store.forget();
    Ok(Content::shown(items, time))
}

/// A workload that ran.
pub(crate) struct Workload {
    pub(crate) devices: SimDevices,
    pub(crate) timeline: Timeline,
    /// Position at which the fresh store was open.
    pub(crate) opened_at: u64,
    pub(crate) operations: u64,
    told: Told,
}

impl Workload {
    /// What clients know at a position.
    pub(crate) fn told(&self, position: u64) -> Told {
        self.told.until(position)
    }
}

/// Whether a store that holds this may show `found`, after some time.
pub(crate) fn allows(content: &Content, found: &Content, time: u64) -> bool {
    content.allows(found, time)
}

/// Content of a store that holds either, which show the same at this time.
pub(crate) fn either(mut content: Content, other: &Content, time: u64) -> Content {
    content.time = time;
    content.or(other);
    content
}

/// What of `found` a store that holds this may not show.
pub(crate) fn difference(content: &Content, found: &Content, time: u64) -> String {
    content.difference(found, time)
}

/// A workload under way.
pub(crate) struct Running {
    pub(crate) store: Store,
    pub(crate) devices: Arc<SimDevices>,
    pub(crate) rng: Rng,
    /// What the store holds.
    pub(crate) model: Content,
    pub(crate) timeline: Timeline,
    pub(crate) told: Told,
    /// Whether what is acknowledged is durable.
    pub(crate) sync: bool,
    clock: Arc<ManualClock>,
    snapshots: views::Snapshots,
}

/// Runs `count` operations on devices with this content; `before` is what the store there holds and what clients know of it, if there
/// is one.
pub(crate) fn run(
    initial: &[Initial],
    seed: u64,
    count: u64,
    before: Option<(Content, Told)>,
) -> std::result::Result<Workload, String> {
    let devices = Arc::new(devices(initial, seed, true));
    let mut rng = Rng::from_seed(seed);
    // Durability and cache stay what the seed says.
    let again = |rng: &mut Rng| rng.next_u64() / 6 * 6 / 2 + seed % 6;
    let mut options = options(seed);
    options.testing.seed = Some(again(&mut rng));
    options.format = before.is_none();
    let (model, told) = match before {
        Some((found, mut told)) => {
            told.extend(&Told::of(&found));
            (found, told)
        }
        None => (Content { time: BEGIN, ..Content::default() }, Told::default()),
    };
    let clock = Arc::new(ManualClock::new(model.time));
    options.clock = Arc::clone(&clock) as Arc<_>;
    let store = Store::open_flex_on(files(&devices), &options).map_err(words)?;
    options.format = false;
    let opened_at = devices.position();
    let mut timeline = Timeline::default();
    timeline.begin(0, model.clone());
    timeline.synced(opened_at);
    timeline.ticked(0, model.time);
    let sync = options.durability == Durability::Sync;
    let snapshots = views::Snapshots::default();
    let mut run = Running { store, devices, rng, model, timeline, told, sync, clock, snapshots };
    for _ in 0..count {
        match run.rng.below(48) {
            0 | 1 => {
                run.store.sync().map_err(words)?;
                run.timeline.synced(run.devices.position());
            }
            2 if run.rng.chance(1, 2) => run.store.write_out().map_err(words)?,
            2 => drop(run.store.clean(1 + run.rng.index(3)).map_err(words)?),
            number @ 3..6 => {
                options.testing.seed = Some(again(&mut run.rng));
                run = run.open_again(number, &options)?;
            }
            6 => drop(run.store.trim().map_err(words)?),
            7 if run.rng.chance(1, 3) => views::backup(&run.store, &run.model)?,
            7 | 8 => run.tick(),
            9 => run.snapshots.add(&run.store, &run.model)?,
            10 if run.rng.chance(1, 2) => beside::run(&mut run)?,
            _ => {
                operation::any(&mut run)?;
                if run.sync {
                    run.timeline.synced(run.devices.position());
                }
            }
        }
        run.look()?;
    }
    let report = run.store.check().map_err(words)?;
    if let Some(problem) = report.problems.first() {
        return Err(problem.clone());
    }
    run.snapshots.end(run.model.time)?;
    let Running { store, devices, timeline, told, .. } = run;
    store.forget();
    let devices = Arc::into_inner(devices).ok_or("somebody keeps the devices")?;
    Ok(Workload { devices, timeline, opened_at, operations: count, told })
}

/// Longest that a value lives that expires, in seconds.
pub(crate) const LIFE_MAX: u64 = 30;

impl Running {
    pub(crate) fn key(&mut self) -> Vec<u8> {
        format!("key/{:02}", self.rng.below(40)).into_bytes()
    }

    /// Reads some of it.
    fn look(&mut self) -> std::result::Result<(), String> {
        for _ in 0..self.rng.below(4) {
            let key = self.key();
            let found = self.store.get(&key).map_err(words)?.as_ref().map(content::Held::of);
            if found.as_ref() != self.model.get(&key) {
                return Err(format!("a get found {found:?}, not {:?}", self.model.get(&key)));
            }
        }
        if self.rng.chance(1, 8) {
            let items = content::read(&self.store, 1).map_err(words)?;
            if items != self.model.seen() {
                let found = Content::shown(items, self.model.time);
                let difference = self.model.difference(&found, self.model.time);
                return Err(format!("a read found something else: {difference}"));
            }
        }
        if self.rng.chance(1, 4) {
            self.snapshots.look(&mut self.rng, self.model.time)?;
        }
        Ok(())
    }

    /// Time passes.
    fn tick(&mut self) {
        self.clock.advance(Duration::from_secs(1 + self.rng.below(6)));
        self.model.time = esker_base::clock::Clock::unix_seconds(&*self.clock);
        self.timeline.ticked(self.devices.position(), self.model.time);
    }

    /// The process ends in some way, and another one opens the store.
    fn open_again(mut self, how: u64, options: &Options) -> std::result::Result<Self, String> {
        self.snapshots.end(self.model.time)?;
        match how {
            3 => self.store.close().map(|()| drop(self.store)).map_err(words)?,
            4 => drop(self.store),
            _ => self.store.forget(),
        }
        let clean = how < 5;
        if clean {
            self.timeline.synced(self.devices.position());
        }
        let store = Store::open_flex_on(files(&self.devices), options).map_err(words)?;
        let items = content::read(&store, 1).map_err(words)?;
        let found = Content::shown(items, self.model.time);
        if (clean || self.sync) && !self.model.allows(&found, found.time) {
            let difference = self.model.difference(&found, found.time);
            return Err(format!("opened again, it held something else: {difference}"));
        }
        let model = self.timeline.reopened(self.devices.position(), &found)?;
        Ok(Running { store, model, snapshots: views::Snapshots::default(), ..self })
    }
}

/// What a cut may leave of another workload, for recycled media.
pub(crate) fn recycled(seed: u64) -> std::result::Result<Vec<Image>, String> {
    let earlier = run(&vec![Initial::Zeros; DEVICES], seed, 60, None)?;
    let end = earlier.devices.position();
    let position = if seed.is_multiple_of(2) { end } else { Rng::from_seed(seed).below(end + 1) };
    Ok(SimDevices::cut(&earlier.devices.traces(), position, seed))
}
