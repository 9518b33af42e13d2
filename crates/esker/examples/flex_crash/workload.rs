//! Operations on a space, and what it may hold after a cut at any moment of them.

use crate::timeline::Timeline;
use esker::Result;
use esker::flex::{Space, SpaceFiles, SpaceOptions};
use esker_base::rng::Rng;
use esker_format::flex::SpaceShape;
use esker_media::BlockDevice;
use esker_media::sim::{Image, Initial, SimBlockOptions, SimDevices};
use std::sync::Arc;

/// What is compared: all bytes of the space.
pub(crate) type Content = Vec<u8>;
/// What clients were told that is not in the content: nothing.
#[derive(Clone, Copy)]
pub(crate) struct Told;
/// Data, tree, log.
pub(crate) const DEVICES: usize = 3;
/// Operations of a workload, and of what goes on after a recovery.
pub(crate) const OPERATIONS: u64 = 70;
pub(crate) const OPERATIONS_MORE: u64 = 14;

/// Longest that the files become, in bytes: data, tree, log.
const SIZES: [u64; 3] = [160 << 10, 1 << 20, 64 << 10];
/// First sizes.
const FIRST: [u64; 3] = [4096, 8192, 4096];
/// The space is kept about as long as this, in bytes.
const SIZE: u64 = 5000;

/// Tiny geometry: segments of 8 blocks, nodes of 4 entries, a log that is full after a few groups.
pub(crate) fn options(seed: u64) -> SpaceOptions {
    let mut options = SpaceOptions::new("");
    options.testing.seed = Some(seed);
    options.testing.shape = SpaceShape {
        segment_size_bytes: 4096,
        block_size_bytes: 512,
        node_size_bytes: 512,
        leaf_capacity: 4,
        children_max: 4,
        extent_size_bytes_max: 508,
        log_block_size_bytes: 512,
    };
    // Groups commit by themselves, too: of one block, or of several.
    options.testing.records_max = if seed & 8 == 0 { 40 } else { 160 };
    if seed & 4 == 0 {
        // A checkpoint writes nodes before it has met all of them.
        options.testing.nodes_max = 3;
    }
    // The collector goes through the space in several parts, if there is room for that.
    options.testing.moved_at_once = if seed & 8 == 0 { 1 } else { 1 << 20 };
    // Full segments may wait for somebody who writes them.
    options.testing.filled_max = (seed >> 4) as usize % 3;
    options.log_size_bytes_max = 3 << 10;
    options.cache_size_bytes = if seed.is_multiple_of(2) { 0 } else { 8 << 10 };
    options.tree_size_bytes_max = 2 << 10;
    options
}

/// Three devices with this content, on one power supply.
pub(crate) fn devices(initial: &[Initial], seed: u64, record: bool) -> SimDevices {
    SimDevices::new(3, |index| {
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

pub(crate) fn files(devices: &SimDevices) -> SpaceFiles {
    let dynamic = |index: usize| Arc::clone(&devices.devices()[index]) as Arc<dyn BlockDevice>;
    SpaceFiles { data: dynamic(0), tree: dynamic(1), log: dynamic(2) }
}

pub(crate) fn content(space: &Space) -> Result<Vec<u8>> {
    let mut bytes = vec![0; space.size_bytes() as usize];
    let count = space.read(0, &mut bytes)?;
    assert_eq!(count, bytes.len());
    Ok(bytes)
}

/// A workload that ran.
pub(crate) struct Workload {
    pub(crate) devices: SimDevices,
    pub(crate) timeline: Timeline,
    /// Position at which the fresh space was open.
    pub(crate) opened_at: u64,
    pub(crate) operations: u64,
}

impl Workload {
    pub(crate) fn told(&self, _position: u64) -> Told {
        Told
    }
}

/// Whether a space that holds this may show `found`.
pub(crate) fn allows(content: &Content, found: &Content, _time: u64) -> bool {
    content == found
}

/// Content of a space that holds either, which show the same.
pub(crate) fn either(content: Content, _other: &Content, _time: u64) -> Content {
    content
}

/// What of `found` a space that holds this may not show.
pub(crate) fn difference(content: &Content, found: &Content, _time: u64) -> String {
    let from = content.iter().zip(found).take_while(|(one, other)| one == other).count();
    format!("{} bytes, not {}, others from {from} on", found.len(), content.len())
}

/// Runs `count` operations on devices with this content; `fresh`: on a new space, else on the one that is there,
/// which holds `before`.
pub(crate) fn run(
    initial: &[Initial],
    seed: u64,
    count: u64,
    before: Option<(Content, Told)>,
) -> std::result::Result<Workload, String> {
    let devices = devices(initial, seed, true);
    let mut rng = Rng::from_seed(seed);
    let mut options = options(rng.next_u64() & !1 | seed & 1);
    options.format = before.is_none();
    let words = |error: esker::Error| error.to_string();
    let mut space = Space::open_on(files(&devices), &options).map_err(words)?;
    options.format = false;
    let opened_at = devices.position();
    let mut model = before.map_or_else(Vec::new, |(content, _)| content);
    let mut timeline = Timeline::default();
    timeline.begin(0, model.clone());
    timeline.synced(opened_at);
    for _ in 0..count {
        let position = devices.position();
        match rng.below(40) {
            0..3 => {
                space.sync().map_err(words)?;
                timeline.synced(devices.position());
            }
            3 => {
                space.checkpoint().map_err(words)?;
                timeline.synced(devices.position());
            }
            4 => drop(space.collect(1 + rng.below(3)).map_err(words)?),
            5 => {
                let offset = rng.below(model.len() as u64 + 1);
                space.defrag(offset, rng.below(1500)).map_err(words)?;
            }
            number @ 6..9 => {
                let clean = number == 6;
                if clean {
                    space.clone().close().map_err(words)?;
                    timeline.synced(devices.position());
                } else if number == 7 {
                    space.trim().map_err(words)?;
                    timeline.synced(devices.position());
                }
                drop(space);
                options.testing.seed = Some(rng.next_u64() & !1 | seed & 1);
                space = Space::open_on(files(&devices), &options).map_err(words)?;
                let found = content(&space).map_err(words)?;
                timeline.reopened(devices.position(), &found)?;
                if clean && found != model {
                    return Err("closed and opened, it held something else".to_owned());
                }
                model = found;
            }
            _ => {
                let next = operation(&space, &model, &mut rng, &mut timeline, position)?;
                model = next;
            }
        }
        if rng.chance(1, 8) {
            space.write_filled().map_err(words)?;
        }
        if rng.chance(1, 8) && content(&space).map_err(words)? != model {
            return Err("a read found something else".to_owned());
        }
    }
    let report = space.check().map_err(words)?;
    if let Some(problem) = report.problems.first() {
        return Err(problem.clone());
    }
    Ok(Workload { devices, timeline, opened_at, operations: count })
}

/// One operation that changes the content. Returns what the space holds afterwards.
fn operation(
    space: &Space,
    model: &[u8],
    rng: &mut Rng,
    timeline: &mut Timeline,
    position: u64,
) -> std::result::Result<Vec<u8>, String> {
    let size = model.len() as u64;
    let offset = if rng.chance(1, 4) { size } else { rng.below(size + 1) };
    let at = offset as usize;
    let most = if rng.chance(1, 6) { 1400 } else { 200 };
    let mut data = vec![0; 1 + rng.index(most)];
    rng.fill(&mut data);
    let mut next = model.to_vec();
    let kind = if size > SIZE { 5 } else { rng.below(6) };
    let length = (1 + rng.below(if size > SIZE { 2500 } else { 300 })).min(size - offset);
    match kind {
        0..2 => drop(next.splice(at..at, data.iter().copied())),
        2 | 3 => {
            next.resize(next.len().max(at + data.len()), 0);
            next[at..at + data.len()].copy_from_slice(&data);
        }
        4 => next.extend_from_slice(&data),
        _ => drop(next.drain(at..at + length as usize)),
    }
    timeline.begin(position, next.clone());
    let done = match kind {
        0..2 => space.insert_range(offset, &data),
        2 | 3 => space.write(offset, &data),
        4 => space.append(&data).map(drop),
        _ => space.collapse_range(offset, length),
    };
    done.map_err(|error| error.to_string())?;
    Ok(next)
}

/// Opens the space on these images and reads everything.
pub(crate) fn open_and_read(images: &[Image], seed: u64) -> Result<Content> {
    let initial: Vec<_> = images.iter().cloned().map(Initial::Recycled).collect();
    let devices = devices(&initial, seed, false);
    let mut options = options(seed);
    options.create = false;
    let space = Space::open_on(files(&devices), &options)?;
    content(&space)
}

/// What a cut may leave of another workload, for recycled media.
pub(crate) fn recycled(seed: u64) -> std::result::Result<Vec<Image>, String> {
    let zeros = [Initial::Zeros, Initial::Zeros, Initial::Zeros];
    let earlier = run(&zeros, seed, 40, None)?;
    let end = earlier.devices.position();
    let position = if seed.is_multiple_of(2) { end } else { Rng::from_seed(seed).below(end + 1) };
    Ok(SimDevices::cut(&earlier.devices.traces(), position, seed))
}
