//! What is fuzzed: engines of tiny geometry, and the media that their images are put on.

use crate::mutate::Units;
use clap::ValueEnum;
use esker::flex::{Space, SpaceFiles, SpaceOptions};
use esker::{
    Durability, EngineKind, FlexFiles, Options, RepairReport, Result, Store, repair_on,
    repair_on_flex, repair_on_memory, restore_flex_on, restore_on, restore_on_memory,
};
use esker_base::clock::ManualClock;
use esker_base::rng::Rng;
use esker_base::{Site, SiteKind};
use esker_format::flex::SpaceShape;
use esker_media::sim::{
    Image, Initial, SimArchive, SimBlock, SimBlockOptions, SimPm, SimPmOptions,
};
use esker_media::{Archive, BlockDevice, NewSet, Pmem, StripedDevice};
use std::sync::Arc;
use std::time::Duration;

/// Wall time at which stores are made, in seconds.
pub(crate) const NOW: u64 = 1_800_000_000;
/// Where the space of `depot` before its segments ends.
const LEAD: u64 = 8192;
/// Longest that files of FlexSpace become: data, tree, log, two logs of tables, the index.
const SIZES_MAX: [u64; 6] = [256 << 10, 1 << 20, 64 << 10, 8 << 10, 8 << 10, 16 << 10];
/// Their first sizes.
const SIZES: [u64; 6] = [4096, 8192, 4096, 4096, 4096, 4096];
/// Members of a striped device.
const MEMBERS: usize = 3;

const ARCHIVE: Site = Site::new("image_fuzz.archive", SiteKind::Flush);

/// Whose images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Subject {
    Depot,
    #[value(name = "depot:striped")]
    Striped,
    #[value(name = "flat:cceh")]
    FlatCceh,
    #[value(name = "flat:masstree")]
    FlatMasstree,
    #[value(name = "flex-space")]
    Space,
    Flex,
}

impl Subject {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Subject::Depot => "depot",
            Subject::Striped => "depot:striped",
            Subject::FlatCceh => "flat:cceh",
            Subject::FlatMasstree => "flat:masstree",
            Subject::Space => "flex-space",
            Subject::Flex => "flex",
        }
    }

    fn is_flat(self) -> bool {
        matches!(self, Subject::FlatCceh | Subject::FlatMasstree)
    }
}

/// Geometry and options of the stores of one group of seeds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) subject: Subject,
    /// Decides the rest.
    seed: u64,
    hash_mask: u64,
    block: u64,
    pub(crate) cache: bool,
}

impl Shape {
    pub(crate) fn of(subject: Subject, group: u64) -> Shape {
        let mut rng = Rng::from_seed(group ^ 0x1517_15C4_A11E_D001);
        let hash_mask = [u64::MAX, u64::MAX, 15, 0][rng.index(4)];
        let is_depot = matches!(subject, Subject::Depot | Subject::Striped);
        let block = match subject {
            subject if subject.is_flat() => 64,
            _ if is_depot && rng.chance(1, 4) => 4096,
            _ => 512,
        };
        let cache = is_depot && rng.chance(1, 4);
        Shape { subject, seed: rng.next_u64(), hash_mask, block, cache }
    }

    /// Size of a segment or chunk in bytes.
    pub(crate) fn segment(&self) -> u64 {
        match self.subject {
            Subject::Depot | Subject::Striped => 16 * self.block,
            Subject::FlatCceh | Subject::FlatMasstree => 2048,
            Subject::Space | Subject::Flex => 4096,
        }
    }

    pub(crate) fn units(&self) -> Units {
        let between = if self.subject.is_flat() { 256 } else { 2 * self.block };
        [self.block, between, self.segment()]
    }

    /// Options of a store that is opened with this seed, so many seconds after stores were made.
    pub(crate) fn options(&self, seed: u64, later: u64) -> Options {
        let mut options = Options::new("");
        options.clock = Arc::new(ManualClock::new(NOW + later));
        options.testing.seed = Some(seed);
        options.testing.background = false;
        options.testing.hash_mask = self.hash_mask;
        options.testing.segment_size_bytes = Some(self.segment());
        match self.subject {
            Subject::Depot | Subject::Striped => {
                options.index_entries = (!self.seed.is_multiple_of(3)).then_some(256);
                options.testing.grain_size_bytes = Some(1 << (self.seed % 4));
                options.testing.leave_share = 2;
                options.record_cache_bytes = seed % 2 * (64 << 10);
                if !self.cache && self.seed.is_multiple_of(5) {
                    options.durability = Durability::None;
                }
            }
            Subject::FlatCceh | Subject::FlatMasstree => {
                let is_hash = self.subject == Subject::FlatCceh;
                let kind = if is_hash { EngineKind::FlatCceh } else { EngineKind::FlatMasstree };
                options.engine = Some(kind);
                options.testing.cores = Some(2);
                options.testing.collect_bytes = Some(seed % 2 * u64::MAX);
                options.batching_group = 1 + self.seed as usize % 2;
                // Where versions become longer.
                let first = [0, (1 << 16) - 40, (1 << 32) - 40, (1 << 61) - 40];
                options.testing.first_version = first[self.seed as usize / 2 % 4];
            }
            Subject::Space | Subject::Flex => self.of_flex(&mut options, seed),
        }
        options
    }

    /// As in the exploration of crashes: a table of a few keys, intervals of three pairs, segments of eight blocks.
    fn of_flex(&self, options: &mut Options, seed: u64) {
        options.size_bytes = SIZES_MAX[0];
        options.durability = match self.seed % 6 {
            0 => Durability::None,
            1 => Durability::Periodic(Duration::from_secs(1)),
            _ => Durability::Sync,
        };
        options.flex.memtable_size_bytes = 900;
        options.flex.interval_pairs_max = 3;
        options.flex.interval_size_bytes_max = 400;
        options.flex.rebuild_step_bytes = 300;
        options.flex.rebuild_threads = 1;
        options.flex.large_value_size_bytes = 300;
        options.flex.cache_size_bytes = seed % 2 * (3 << 10);
        options.flex.space = Some(self.space_options(seed).testing);
    }

    pub(crate) fn space_options(&self, seed: u64) -> SpaceOptions {
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
        options.testing.records_max = 20;
        options.testing.nodes_max = if self.seed & 64 == 0 { 3 } else { 1024 };
        options.testing.moved_at_once = if self.seed & 128 == 0 { 1 } else { 1 << 20 };
        options.testing.filled_max = (self.seed >> 8) as usize % 3;
        options.log_size_bytes_max = 3 << 10;
        options.cache_size_bytes = seed % 2 * (8 << 10);
        options.tree_size_bytes_max = 2 << 10;
        options
    }

    /// Sizes of blank media in bytes.
    fn sizes(&self) -> Vec<u64> {
        let lead = LEAD.max(2 * self.block);
        match self.subject {
            Subject::Depot => vec![lead + if self.cache { 8 } else { 12 } * self.segment()],
            Subject::Striped => vec![2 * lead + 5 * self.segment(); MEMBERS],
            Subject::FlatCceh | Subject::FlatMasstree => vec![28 * self.segment()],
            Subject::Space => SIZES[..3].to_vec(),
            Subject::Flex => SIZES.to_vec(),
        }
    }
}

/// Media of a store.
pub(crate) struct Media {
    shape: Shape,
    devices: Vec<Arc<SimBlock>>,
    memory: Option<Arc<SimPm>>,
}

impl Media {
    pub(crate) fn blank(shape: &Shape) -> Media {
        let sizes = shape.sizes();
        Media::new(shape, sizes.into_iter().map(|size| Image::filled(size, 0)).collect())
    }

    pub(crate) fn with(shape: &Shape, files: &[Vec<u8>]) -> Media {
        Media::new(shape, files.iter().map(|file| Image::from_bytes(file)).collect())
    }

    fn new(shape: &Shape, images: Vec<Image>) -> Media {
        let mut media = Media { shape: *shape, devices: Vec::new(), memory: None };
        for (number, image) in images.into_iter().enumerate() {
            let (size, initial) = (image.size_bytes(), Initial::Recycled(image));
            if shape.subject.is_flat() {
                let mut options = SimPmOptions::new(size, 0).initial(initial);
                options.record = false;
                media.memory = Some(Arc::new(SimPm::new(options)));
                continue;
            }
            let seed = shape.seed ^ number as u64;
            let mut options = SimBlockOptions::new(size, seed).initial(initial);
            options.block_size_bytes = u32::try_from(shape.block).unwrap();
            (options.record, options.latency_max) = (false, Duration::ZERO);
            if matches!(shape.subject, Subject::Space | Subject::Flex) {
                options.size_bytes_max = SIZES_MAX[number].max(size);
            }
            media.devices.push(Arc::new(SimBlock::new(options)));
        }
        media
    }

    /// What stands there.
    pub(crate) fn contents(&self) -> Vec<Vec<u8>> {
        let memory = self.memory.iter().map(|memory| memory.image());
        self.devices
            .iter()
            .map(|device| device.image())
            .chain(memory)
            .map(|one| one.to_vec())
            .collect()
    }

    fn device(&self, number: usize) -> Arc<dyn BlockDevice> {
        Arc::clone(&self.devices[number]) as Arc<dyn BlockDevice>
    }

    /// The device of a store of `depot`; `new`: members of a striped one become one.
    fn of_depot(&self, new: bool) -> Result<Arc<dyn BlockDevice>> {
        if self.shape.subject != Subject::Striped {
            return Ok(self.device(0));
        }
        let new_set = NewSet {
            lead_size_bytes: LEAD.max(2 * self.shape.block),
            unit_size_bytes: self.shape.segment(),
            set_id: [7; 16],
            replace: false,
        };
        let members = (0..self.devices.len()).map(|number| self.device(number)).collect();
        Ok(Arc::new(StripedDevice::open(members, new.then_some(&new_set))?))
    }

    fn of_flat(&self) -> Arc<dyn Pmem> {
        Arc::clone(self.memory.as_ref().unwrap()) as Arc<dyn Pmem>
    }

    fn of_space(&self) -> SpaceFiles {
        SpaceFiles { data: self.device(0), tree: self.device(1), log: self.device(2) }
    }

    fn of_flex(&self) -> FlexFiles {
        FlexFiles {
            space: self.of_space(),
            logs: [self.device(3), self.device(4)],
            index: self.device(5),
        }
    }

    pub(crate) fn open(&self, options: &Options) -> Result<Store> {
        match self.shape.subject {
            Subject::FlatCceh | Subject::FlatMasstree => {
                Store::open_on_memory(self.of_flat(), options)
            }
            Subject::Flex | Subject::Space => Store::open_flex_on(self.of_flex(), options),
            Subject::Depot | Subject::Striped => {
                let options = Options { cache: self.shape.cache, ..options.clone() };
                Store::open_on(self.of_depot(options.format)?, &options)
            }
        }
    }

    pub(crate) fn open_space(&self, options: &SpaceOptions) -> Result<Space> {
        Space::open_on(self.of_space(), options)
    }

    pub(crate) fn repair(&self, options: &Options) -> Result<RepairReport> {
        match self.shape.subject {
            Subject::FlatCceh | Subject::FlatMasstree => repair_on_memory(&self.of_flat(), options),
            Subject::Flex | Subject::Space => repair_on_flex(self.of_flex(), options),
            Subject::Depot | Subject::Striped => repair_on(self.of_depot(false)?, options),
        }
    }

    pub(crate) fn repair_space(&self, options: &SpaceOptions) -> Result<Space> {
        Ok(Space::mend_on(self.of_space(), options)?.0)
    }

    pub(crate) fn restore(&self, archive: &SimArchive, options: &Options) -> Result<()> {
        let restored = match self.shape.subject {
            Subject::FlatCceh | Subject::FlatMasstree => {
                restore_on_memory(archive, &*self.of_flat(), options)
            }
            Subject::Flex | Subject::Space => restore_flex_on(archive, self.of_flex(), options),
            Subject::Depot | Subject::Striped => {
                restore_on(archive, &*self.of_depot(true)?, options)
            }
        };
        restored.map(drop)
    }
}

/// Files of an archive by name.
pub(crate) type Files = (Vec<String>, Vec<Vec<u8>>);

/// What is in an archive.
pub(crate) fn files_of(archive: &SimArchive) -> Result<Files> {
    let names = archive.list()?;
    let read = |name: &String| {
        let size = archive.size_bytes_of(name)?.unwrap_or(0);
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        archive.read_at(name, 0, &mut bytes)?;
        Ok(bytes)
    };
    let files = names.iter().map(read).collect::<Result<_>>()?;
    Ok((names, files))
}

/// An archive with these files.
pub(crate) fn archive_of(names: &[String], files: &[Vec<u8>]) -> Result<SimArchive> {
    let archive = SimArchive::new();
    for (name, bytes) in names.iter().zip(files) {
        let mut file = archive.create(name)?;
        file.write(bytes)?;
        file.finish(ARCHIVE)?;
    }
    Ok(archive)
}
