//! Operations on a space, and what it may hold after a cut at any moment of them.

use esker::Result;
use esker::flex::{Space, SpaceFiles, SpaceOptions};
use esker_base::rng::Rng;
use esker_format::flex::SpaceShape;
use esker_media::BlockDevice;
use esker_media::sim::{Image, Initial, SimBlockOptions, SimDevices};
use std::sync::Arc;

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
    // Groups commit by themselves, too.
    options.testing.records_max = 40;
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

/// What the space held after one operation more.
struct Moment {
    /// Possible after cuts behind this position,
    from: u64,
    /// and before this one.
    until: u64,
    content: Vec<u8>,
}

/// What a space may hold after a cut, by the position of the cut.
#[derive(Default)]
pub(crate) struct Timeline {
    moments: Vec<Moment>,
    /// From this position on, nothing older than that moment.
    floors: Vec<(u64, usize)>,
}

impl Timeline {
    fn begin(&mut self, position: u64, content: Vec<u8>) {
        self.moments.push(Moment { from: position, until: u64::MAX, content });
    }

    /// Everything so far is durable.
    fn synced(&mut self, position: u64) {
        self.floors.push((position, self.moments.len() - 1));
    }

    /// The process was killed and the space opened again: it held `content`, durably. An error if no moment
    /// allows it.
    fn reopened(&mut self, position: u64, content: &[u8]) -> std::result::Result<(), String> {
        self.judge(u64::MAX, content)?;
        let found = self
            .moments
            .iter()
            .rposition(|moment| moment.until == u64::MAX && moment.content == content);
        let index = found.ok_or("a state of another time")?;
        for moment in &mut self.moments[index + 1..] {
            moment.until = moment.until.min(position);
        }
        // What follows builds on this, not on what was lost.
        self.begin(position.saturating_sub(1), content.to_vec());
        self.synced(position);
        Ok(())
    }

    /// A number that changes with what is allowed.
    pub(crate) fn version(&self, position: u64) -> u64 {
        let begun = self.moments.iter().filter(|moment| moment.from < position).count();
        let ended = self.moments.iter().filter(|moment| moment.until <= position).count();
        let floors = self.floors.iter().filter(|floor| floor.0 <= position).count();
        (begun as u64) << 40 | (ended as u64) << 20 | floors as u64
    }

    /// Whether the space may hold `found` after a cut at `position`.
    pub(crate) fn judge(&self, position: u64, found: &[u8]) -> std::result::Result<(), String> {
        let floor = self.floors.iter().filter(|floor| floor.0 <= position).map(|floor| floor.1);
        let floor = floor.max().unwrap_or(0);
        // What was synced is there, even if it took no call to the devices.
        let allowed = |(index, moment): &(usize, &Moment)| {
            (moment.from < position || *index == 0) && position < moment.until
                || position == u64::MAX && moment.until == u64::MAX
        };
        let mut all = self.moments[floor..].iter().enumerate().filter(allowed);
        if all.any(|(_, moment)| moment.content == found) {
            return Ok(());
        }
        let same = self.moments.iter().position(|moment| moment.content == found);
        Err(match same {
            Some(index) => {
                format!("holds what it held after operation {index}, not {floor} or later")
            }
            None => format!("holds {} bytes that no operation left", found.len()),
        })
    }
}

/// A workload that ran.
pub(crate) struct Workload {
    pub(crate) devices: SimDevices,
    pub(crate) timeline: Timeline,
    /// Position at which the fresh space was open.
    pub(crate) opened_at: u64,
    pub(crate) operations: u64,
}

/// Runs `count` operations on devices with this content; `fresh`: on a new space, else on the one that is there,
/// which holds `before`.
pub(crate) fn run(
    initial: &[Initial],
    seed: u64,
    count: u64,
    before: Option<Vec<u8>>,
) -> std::result::Result<Workload, String> {
    let devices = devices(initial, seed, true);
    let mut rng = Rng::from_seed(seed);
    let mut options = options(rng.next_u64() & !1 | seed & 1);
    options.format = before.is_none();
    let words = |error: esker::Error| error.to_string();
    let mut space = Space::open_on(files(&devices), &options).map_err(words)?;
    options.format = false;
    let opened_at = devices.position();
    let mut model = before.unwrap_or_default();
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

/// What a cut may leave of another workload, for recycled media.
pub(crate) fn recycled(seed: u64) -> std::result::Result<Vec<Image>, String> {
    let zeros = [Initial::Zeros, Initial::Zeros, Initial::Zeros];
    let earlier = run(&zeros, seed, 40, None)?;
    let end = earlier.devices.position();
    let position = if seed.is_multiple_of(2) { end } else { Rng::from_seed(seed).below(end + 1) };
    Ok(SimDevices::cut(&earlier.devices.traces(), position, seed))
}
