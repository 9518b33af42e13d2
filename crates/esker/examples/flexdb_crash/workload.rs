//! Operations on a store of `flex`, and what it may hold after a cut at any moment of them.

use crate::timeline::Timeline;
use esker::flex::{SpaceFiles, SpaceOptions};
use esker::{Batch, Direction, Durability, FlexFiles, Options, Result, Store};
use esker_base::rng::Rng;
use esker_format::flex::SpaceShape;
use esker_media::BlockDevice;
use esker_media::sim::{Image, Initial, SimBlockOptions, SimDevices};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is compared: keys and values.
pub(crate) type Content = BTreeMap<Vec<u8>, Vec<u8>>;
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

/// Everything; `ways` says whether it is also read in the other direction, and key by key.
fn content(store: &Store, ways: u64) -> Result<Content> {
    let read = |direction| -> Result<Vec<_>> {
        let items = store.scan(.., direction, usize::MAX)?;
        Ok(items.into_iter().map(|(key, value)| (key, value.to_vec())).collect())
    };
    let forward = read(Direction::Forward)?;
    if ways.is_multiple_of(2) {
        let mut back = read(Direction::Reverse)?;
        back.reverse();
        assert_eq!(forward, back, "both directions");
    }
    if ways.is_multiple_of(3) {
        for (key, value) in &forward {
            let found = store.get(key)?;
            assert_eq!(found.as_deref(), Some(&**value), "a get finds what a scan finds");
        }
    }
    Ok(forward.into_iter().collect())
}

/// Opens the store on these images and reads everything; of some, everything is verified, too.
pub(crate) fn open_and_read(images: &[Image], seed: u64) -> Result<Content> {
    let initial: Vec<_> = images.iter().cloned().map(Initial::Recycled).collect();
    let devices = devices(&initial, seed, false);
    let mut options = options(seed);
    options.create = false;
    let store = Store::open_flex_on(files(&devices), &options)?;
    let found = content(&store, seed / 4)?;
    if seed.is_multiple_of(4) {
        let report = store.check()?;
        assert!(report.is_sound(), "{:?}", report.problems);
        assert_eq!(content(&store, 0)?, found, "after everything went to the space");
    }
    store.forget();
    Ok(found)
}

/// A workload that ran.
pub(crate) struct Workload {
    pub(crate) devices: SimDevices,
    pub(crate) timeline: Timeline,
    /// Position at which the fresh store was open.
    pub(crate) opened_at: u64,
    pub(crate) operations: u64,
}

fn key(rng: &mut Rng) -> Vec<u8> {
    format!("key/{:02}", rng.below(40)).into_bytes()
}

/// Runs `count` operations on devices with this content; `before` is what the store there holds, if there is one.
pub(crate) fn run(
    initial: &[Initial],
    seed: u64,
    count: u64,
    before: Option<Content>,
) -> std::result::Result<Workload, String> {
    let devices = devices(initial, seed, true);
    let mut rng = Rng::from_seed(seed);
    // Durability and cache stay what the seed says.
    let again = |rng: &mut Rng| rng.next_u64() / 6 * 6 / 2 + seed % 6;
    let mut options = options(seed);
    options.testing.seed = Some(again(&mut rng));
    options.format = before.is_none();
    let words = |error: esker::Error| error.to_string();
    let mut store = Store::open_flex_on(files(&devices), &options).map_err(words)?;
    options.format = false;
    let sync = options.durability == Durability::Sync;
    let opened_at = devices.position();
    let mut model = before.unwrap_or_default();
    let mut timeline = Timeline::default();
    timeline.begin(0, model.clone());
    timeline.synced(opened_at);
    for _ in 0..count {
        let position = devices.position();
        match rng.below(40) {
            0 | 1 => {
                store.sync().map_err(words)?;
                timeline.synced(devices.position());
            }
            2 if rng.chance(1, 2) => store.write_out().map_err(words)?,
            2 => drop(store.clean(1 + rng.index(3)).map_err(words)?),
            number @ 3..6 => {
                match number {
                    3 => store.close().map(|()| drop(store)).map_err(words)?,
                    4 => drop(store),
                    _ => store.forget(),
                }
                let clean = number < 5;
                if clean {
                    timeline.synced(devices.position());
                }
                options.testing.seed = Some(again(&mut rng));
                store = Store::open_flex_on(files(&devices), &options).map_err(words)?;
                let found = content(&store, 0).map_err(words)?;
                timeline.reopened(devices.position(), &found)?;
                if (clean || sync) && found != model {
                    return Err("opened again, it held something else".to_owned());
                }
                model = found;
            }
            _ => {
                model = operation(&store, &model, &mut rng, &mut timeline, position)?;
                if sync {
                    timeline.synced(devices.position());
                }
            }
        }
        for _ in 0..rng.below(4) {
            let key = key(&mut rng);
            let found = store.get(&key).map_err(words)?;
            if found.as_deref() != model.get(&key).map(Vec::as_slice) {
                return Err("a get found something else".to_owned());
            }
        }
        if rng.chance(1, 8) && content(&store, 0).map_err(words)? != model {
            return Err("a read found something else".to_owned());
        }
    }
    let report = store.check().map_err(words)?;
    if let Some(problem) = report.problems.first() {
        return Err(problem.clone());
    }
    store.forget();
    Ok(Workload { devices, timeline, opened_at, operations: count })
}

/// One operation that changes the content. Returns what the store holds afterwards.
fn operation(
    store: &Store,
    model: &Content,
    rng: &mut Rng,
    timeline: &mut Timeline,
    position: u64,
) -> std::result::Result<Content, String> {
    let mut next = model.clone();
    // Of long values, some stand by themselves, and some of these in several pieces.
    let most = match rng.below(40) {
        0 => 3000,
        1..6 => 600,
        _ => 60,
    };
    let value = |rng: &mut Rng| {
        let mut value = vec![0; rng.index(most)];
        rng.fill(&mut value);
        value
    };
    let words = |error: esker::Error| error.to_string();
    match rng.below(20) {
        0..12 => {
            let (key, value) = (key(rng), value(rng));
            next.insert(key.clone(), value.clone());
            timeline.begin(position, next.clone());
            store.put(&key, &value).map_err(words)?;
        }
        12..16 => {
            let key = key(rng);
            next.remove(&key);
            timeline.begin(position, next.clone());
            store.delete(&key).map_err(words)?;
        }
        16..18 => {
            let mut batch = Batch::new();
            for _ in 0..1 + rng.below(5) {
                let (key, mut value) = (key(rng), value(rng));
                // A batch has up to a quarter of a log; large values are not in it.
                if value.len() <= 300 {
                    value.truncate(200);
                }
                if rng.chance(1, 4) {
                    next.remove(&key);
                    batch.delete(&key);
                } else {
                    batch.put(&key, &value);
                    next.insert(key, value);
                }
            }
            timeline.begin(position, next.clone());
            store.write(&batch).map_err(words)?;
        }
        _ => {
            let (a, b) = (key(rng), key(rng));
            let (from, to) = if a < b { (a, b) } else { (b, a) };
            let to = if rng.chance(1, 6) { None } else { Some(to) };
            next.retain(|key, _| *key < from || to.as_ref().is_some_and(|to| key >= to));
            timeline.begin(position, next.clone());
            store.delete_range(&from, to.as_deref()).map_err(words)?;
        }
    }
    Ok(next)
}

/// What a cut may leave of another workload, for recycled media.
pub(crate) fn recycled(seed: u64) -> std::result::Result<Vec<Image>, String> {
    let earlier = run(&vec![Initial::Zeros; DEVICES], seed, 60, None)?;
    let end = earlier.devices.position();
    let position = if seed.is_multiple_of(2) { end } else { Rng::from_seed(seed).below(end + 1) };
    Ok(SimDevices::cut(&earlier.devices.traces(), position, seed))
}
