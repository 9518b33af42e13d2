//! How a store is opened.

use crate::engine::flat::batching::Batching;
use esker_base::clock::{Clock, SystemClock};
use esker_base::units::format_size_bytes;
use esker_base::{Error, ErrorKind, Result};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Capacity of a new store that says nothing else, in bytes.
pub const DEFAULT_SIZE_BYTES: u64 = 8 << 30;
/// Window of `periodic` that says nothing else.
pub const DEFAULT_PERIOD: Duration = Duration::from_secs(1);

/// What an acknowledgement promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Acknowledged means: survives power loss.
    Sync,
    /// At most the writes of the last window are lost, never their order; where a flush takes more than half of a window, those of the time
    /// that it takes, too.
    Periodic(Duration),
    /// Nothing is promised until `sync` or `close`: for caches. Order is kept all the same. `flex` has no log then, so a
    /// killed process loses up to two tables of writes, and a `sync` brings them to the space.
    None,
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Durability::Sync => f.write_str("sync"),
            Durability::Periodic(window) => write!(f, "periodic:{}ms", window.as_millis()),
            Durability::None => f.write_str("none"),
        }
    }
}

/// Which engine keeps the data. The names are those of `esker serve --engine`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineKind {
    /// `depot`: data much larger than DRAM on a block device or file; no order (uDepot).
    #[default]
    Depot,
    /// `flat` or `flat:cceh`: persistent memory, hash index; no order (FlatStore-H).
    FlatCceh,
    /// `flat:masstree`: persistent memory, ordered index (FlatStore-M).
    FlatMasstree,
    /// `flex`: ordered, files on any file system, sparse index (FlexDB).
    Flex,
}

impl EngineKind {
    /// All of them.
    pub const ALL: [EngineKind; 4] =
        [EngineKind::Depot, EngineKind::FlatCceh, EngineKind::FlatMasstree, EngineKind::Flex];

    /// Whether both keep their data in the same files.
    pub(crate) fn has_files_of(self, other: EngineKind) -> bool {
        let is_flat = |kind| matches!(kind, EngineKind::FlatCceh | EngineKind::FlatMasstree);
        self == other || (is_flat(self) && is_flat(other))
    }

    /// What both kinds of `flat` are called where only the files are known; else the name.
    pub(crate) fn name_of_files(self) -> &'static str {
        match self {
            EngineKind::FlatCceh | EngineKind::FlatMasstree => "flat",
            other => other.name(),
        }
    }

    /// The name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            EngineKind::Depot => "depot",
            EngineKind::FlatCceh => "flat:cceh",
            EngineKind::FlatMasstree => "flat:masstree",
            EngineKind::Flex => "flex",
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for EngineKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        if name == "flat" {
            return Ok(EngineKind::FlatCceh);
        }
        let names = || EngineKind::ALL.map(EngineKind::name).join(", ");
        EngineKind::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| Error::invalid("engine", format!("{name:?} is none of {}", names())))
    }
}

impl Batching {
    /// The name, as on a command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Batching::None => "none",
            Batching::Vertical => "vertical",
            Batching::NaiveHorizontal => "naive-horizontal",
            Batching::PipelinedHorizontal => "pipelined-horizontal",
        }
    }
}

impl fmt::Display for Batching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Batching {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let names = || Batching::ALL.map(Batching::name).join(", ");
        Batching::ALL
            .into_iter()
            .find(|model| model.name() == name)
            .ok_or_else(|| Error::invalid("batching", format!("{name:?} is none of {}", names())))
    }
}

/// Called now and then during a long operation with what is done and what there is; may end a backup.
#[derive(Clone, Default)]
pub struct Progress {
    report: Option<Arc<dyn Fn(u64, u64) + Send + Sync>>,
    ends: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

impl Progress {
    /// Calls `report` with the parts done and the parts in all.
    pub fn new(report: impl Fn(u64, u64) + Send + Sync + 'static) -> Self {
        Progress { report: Some(Arc::new(report)), ends: None }
    }

    /// A backup fails with `Cancelled` once `ends` says so, which is asked before each piece of it. Nothing else is ended
    /// by that.
    #[must_use]
    pub fn until(self, ends: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Progress { ends: Some(Arc::new(ends)), ..self }
    }

    pub(crate) fn report(&self, done: u64, all: u64) {
        if let Some(report) = &self.report {
            report(done, all);
        }
    }

    /// Refuses to go on with `operation` if its caller has ended it.
    pub(crate) fn check(&self, operation: &'static str) -> Result<()> {
        match &self.ends {
            Some(ends) if ends() => Err(Error::new(ErrorKind::Cancelled, operation)),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Progress")
    }
}

/// Options of [`Store::open`](crate::Store::open).
#[derive(Clone, Debug)]
pub struct Options {
    /// A folder, created if missing, or a raw block device.
    pub path: PathBuf,
    /// The engine of a new store, and which one an existing store must have. Default: the one that is
    /// there, or `depot`.
    pub engine: Option<EngineKind>,
    /// More folders or raw block devices over which the store is striped, besides `path`: whole
    /// segments take turns. Each gives what the smallest one has. An existing store needs all of
    /// them, in any order. Default none.
    pub devices: Vec<PathBuf>,
    /// Capacity of a new store in bytes, over all devices; an existing store keeps its own, raw devices are used whole, and with `format`
    /// so are a file that `path` itself names, and the files of several devices.
    pub size_bytes: u64,
    /// Default `Sync`.
    pub durability: Durability,
    /// Whether a new store is a cache: when it is full, it evicts what was not used for the longest time
    /// instead of refusing what is new (uDepot §4.8). A key may then be gone at any time, but never
    /// has an older value than it had; what cannot be read is gone, where a store says `Corrupted` or `Io`. An existing store stays what it is: one that was made to keep
    /// what it is given is refused. Default false.
    pub cache: bool,
    /// Engine `depot`: DRAM for records that were read, or written under `sync`, in bytes, for devices that are slow to read: values over
    /// an eighth of a segment and over 1 in 64 of this are not kept, and once it is full, or if the page cache is not
    /// bypassed, only what is asked for twice is, or replaces what is kept. Default 0: none.
    pub record_cache_bytes: u64,
    /// What only `flex` looks at.
    pub flex: FlexOptions,
    /// Engine `depot`: whether free space is given back to the file system or device while nobody writes, once it is more
    /// than an eighth of the store besides what is kept ready for writes (512 MiB, at most a quarter). Where nobody
    /// has written for two seconds, and cleaning would free as much, it is cleaned for that, in no hurry: segments of which an eighth or more is garbage.
    /// Writes into it then pay for file-system metadata again. Default false: only
    /// [`Store::trim`](crate::Store::trim) gives space back.
    pub trim_idle: bool,
    /// Whether to make a store where there is none. Default true.
    pub create: bool,
    /// Whether the store is only read: nothing on media is changed, not even by the recovery after a crash, whose writes stay in
    /// memory for as long as the store is open. Any number of openers may read it at once, also other processes, while none has it
    /// open to write. Calls that change something are refused with `ReadOnly`, and a backup is
    /// `Unsupported`; `format` is `InvalidArgument`, and `create` is not looked at. A [`repair`](crate::repair) says what it would do. Files and
    /// folders need no permission to write. Default false.
    pub read_only: bool,
    /// Whether to make a new store in place of what is there. Everything there is lost. A store of another engine
    /// is not replaced. Default false.
    pub format: bool,
    /// Engine `depot` on one device: whether to make a store where there is none also over what else is there. A store that is
    /// there is opened, also a damaged one or a member of several is not overwritten. Default false.
    pub format_foreign: bool,
    /// Engine `flat`: whether a file that is no persistent memory is taken as if it were: memory speed, and
    /// nothing survives a power cut. Needed on tmpfs; other files are made durable with `msync` without it. Default
    /// false.
    pub pmem_emulate: bool,
    /// Engine `flat`: how entries of many writers become durable together. Default: pipelined horizontal batching.
    pub batching: Batching,
    /// Engine `flat`: how many cores take each other's entries along in the horizontal models (FlatStore §3.3), and have one cleaner
    /// in all of them (§3.4). Default 0: those of a socket.
    pub batching_group: usize,
    /// Engines `depot` and `flat:cceh`: number of items that the index has room for from the start, no more than the store can hold;
    /// it grows in any case. Default: as many as are there.
    pub index_entries: Option<u64>,
    /// Told how far recovery is.
    pub progress: Progress,
    /// Source of time.
    pub clock: Arc<dyn Clock>,
    /// What only tests set.
    #[doc(hidden)]
    pub testing: Testing,
}

/// Options of the engine `flex`.
#[derive(Clone, Debug)]
pub struct FlexOptions {
    /// DRAM for intervals and single pairs that were read, in bytes; 0: none. What tables of writes do not use of theirs at
    /// the moment is for these, too. As much again, and at least 64 MiB, may be taken by what is known of where things stand in the
    /// space. At most 16 TiB. Default 256 MiB.
    pub cache_size_bytes: u64,
    /// DRAM of a table of writes, in bytes; there are two, and each log takes what its table does on disk, and half of this. At most a
    /// 64th of the store's capacity, or 256 KiB. What the cache does not use of its memory is for tables: while little is
    /// read they grow up to twice as large, each to an eighth of what is stored. Default 64 MiB.
    pub memtable_size_bytes: u64,
    /// An interval is split when it has more pairs, or more bytes, than these (FlexSpace §5.1). At most 4096 pairs. Default 16 pairs and
    /// 4 KiB: an interval is read and cached as a whole, so longer values are better off in shorter ones than the
    /// paper's 16 KiB.
    pub interval_pairs_max: u32,
    /// See `interval_pairs_max`. At most 16 MiB.
    pub interval_size_bytes_max: u32,
    /// Bytes of the space for which one interval is looked up when a store is opened; they are split when somebody
    /// comes there first (FlexSpace §5.4). At most 1 GiB. Default 256 KiB.
    pub rebuild_step_bytes: u64,
    /// Threads that look, up to 256. Default 4.
    pub rebuild_threads: usize,
    /// Values with more bytes stand by themselves in the space: they are written once, durably before anything else, and go
    /// through neither log nor table. At most an eighth of the log. Default 1 MiB.
    pub large_value_size_bytes: u64,
    /// Bytes a second that the store reads and verifies while it has nothing else to do; 0: none. All of it is read once a day at most, and
    /// once behind each open. Default 1 MiB.
    pub scrub_bytes_per_second: u64,
    /// What only tests set: sizes of a new space.
    #[doc(hidden)]
    pub space: Option<crate::flex::SpaceTesting>,
    /// What only tests set: most bytes of the manifest of a backup.
    #[doc(hidden)]
    pub manifest_bytes_max: u64,
}

impl Default for FlexOptions {
    fn default() -> Self {
        FlexOptions {
            cache_size_bytes: 256 << 20,
            memtable_size_bytes: 64 << 20,
            interval_pairs_max: 16,
            interval_size_bytes_max: 4 << 10,
            rebuild_step_bytes: 256 << 10,
            rebuild_threads: 4,
            large_value_size_bytes: 1 << 20,
            scrub_bytes_per_second: 1 << 20,
            space: None,
            manifest_bytes_max: crate::engine::flex::MANIFEST_BYTES_MAX,
        }
    }
}

/// More memory than a machine has: beyond it a size is a mistake.
pub(crate) const CACHE_SIZE_MAX_BYTES: u64 = 16 << 40;
/// What is between two intervals that an open looks up is read at once, and has less than 4 GiB.
const FLEX_STEP_MAX_BYTES: u64 = 1 << 30;
/// An interval is read, written and cached as a whole.
const FLEX_INTERVAL_MAX_BYTES: u64 = 16 << 20;

/// What appends add to an interval besides is to fit where the index counts its pairs.
const FLEX_PAIRS_MAX: u32 = 4096;

impl FlexOptions {
    /// Whether a store can be opened with them.
    ///
    /// # Errors
    /// `InvalidArgument` for a cache or a table of more than 16 TiB, a step of more than 1 GiB, or intervals of more than 4096 pairs or
    /// 16 MiB.
    pub fn check(&self) -> Result<()> {
        if self.interval_pairs_max > FLEX_PAIRS_MAX {
            let words = format!("an interval of flex has at most {FLEX_PAIRS_MAX} pairs");
            return Err(Error::invalid("options", words));
        }
        let sizes = [
            ("cache", self.cache_size_bytes, CACHE_SIZE_MAX_BYTES),
            ("memtable", self.memtable_size_bytes, CACHE_SIZE_MAX_BYTES),
            ("rebuild step", self.rebuild_step_bytes, FLEX_STEP_MAX_BYTES),
            ("interval", self.interval_size_bytes_max.into(), FLEX_INTERVAL_MAX_BYTES),
        ];
        match sizes.into_iter().find(|(_, size, most)| size > most) {
            None => Ok(()),
            Some((name, size, most)) => {
                let words = format!(
                    "the {name} of flex has at most {}, not {}",
                    format_size_bytes(most),
                    format_size_bytes(size)
                );
                Err(Error::invalid("options", words))
            }
        }
    }
}

/// Seams for tests.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Testing {
    /// Seed of identities and salts; from the operating system if `None`.
    pub seed: Option<u64>,
    /// Size of segments in bytes.
    pub segment_size_bytes: Option<u64>,
    /// Engine `depot`: what records start at multiples of, in bytes.
    pub grain_size_bytes: Option<u32>,
    /// Engine `depot`: a batch leaves one of so many records to the next one, at most.
    pub leave_share: usize,
    /// Bits of the key hash that are used: fewer make collisions.
    pub hash_mask: u64,
    /// Whether the store has its background thread.
    pub background: bool,
    /// Engine `flat`: number of logs, chosen by keys instead of by threads; recovery by one thread.
    pub cores: Option<usize>,
    /// Engine `flat`: bytes of entries that recovery collects before it enters them.
    pub collect_bytes: Option<u64>,
    /// Engine `flat`: the version that the store gives next, at least.
    pub first_version: u64,
    /// Engine `flat`: what a cleaner knows of all chunks counts until one of so many was taken or came free.
    pub known_share: u32,
}

/// Bytes that an item takes at least, with its entry in a log.
const ITEM_BYTES_MIN: u64 = 16;

impl Options {
    /// Items that the index of a store of `size_bytes` has room for from the start.
    pub(crate) fn index_entries_within(&self, size_bytes: u64) -> u64 {
        self.index_entries.unwrap_or(0).min(size_bytes / ITEM_BYTES_MIN)
    }

    /// The engine of the store that is at `path`, if there is one; of the two kinds of `flat` it says one. Striped stores are `depot`'s.
    #[must_use]
    pub fn engine_there(&self) -> Option<EngineKind> {
        crate::devices::engine_there(self)
    }

    /// Refuses what no store can be, without looking into one: an open would refuse it, too.
    ///
    /// # Errors
    /// `Unsupported` for a cache of an engine that is none, `InvalidArgument` for several paths with an engine that takes one,
    /// a path that is named twice, a record cache of more than 16 TiB, or `periodic` without a window.
    pub fn check(&self) -> Result<()> {
        self.check_for(self.engine.or(self.engine_there()).unwrap_or_default())
    }

    /// As [`Options::check`], of a store with this engine.
    pub(crate) fn check_for(&self, kind: EngineKind) -> Result<()> {
        self.check_values(kind)?;
        if !self.devices.is_empty() && kind != EngineKind::Depot {
            return Err(Error::invalid("open store", format!("engine {kind} takes one path")));
        }
        // Two names of one place, as far as there is something there.
        let place = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
        let mut places: Vec<PathBuf> = Vec::with_capacity(self.devices.len() + 1);
        for path in std::iter::once(&self.path).chain(&self.devices) {
            let place = place(path);
            if places.contains(&place) {
                let words = "this path is named twice: each device of a store is another one";
                return Err(Error::invalid("open store", words).device(path.display().to_string()));
            }
            places.push(place);
        }
        Ok(())
    }

    /// As [`Options::check_for`], of a store on devices that are open.
    pub(crate) fn check_values(&self, kind: EngineKind) -> Result<()> {
        if self.cache && kind != EngineKind::Depot {
            let words = format!("engine {kind} keeps what it is given: it is no cache");
            return Err(Error::new(ErrorKind::Unsupported, "open store").context(words));
        }
        if self.record_cache_bytes > CACHE_SIZE_MAX_BYTES {
            let [most, size] =
                [CACHE_SIZE_MAX_BYTES, self.record_cache_bytes].map(format_size_bytes);
            let words = format!("the record cache has at most {most}, not {size}");
            return Err(Error::invalid("options", words));
        }
        if self.durability == Durability::Periodic(Duration::ZERO) {
            let words = "the window of periodic must be longer than zero";
            return Err(Error::invalid("options", words));
        }
        Ok(())
    }

    /// Defaults for a store at `path`: 8 GiB, durability `sync`.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Options {
            path: path.into(),
            engine: None,
            devices: Vec::new(),
            size_bytes: DEFAULT_SIZE_BYTES,
            durability: Durability::Sync,
            cache: false,
            record_cache_bytes: 0,
            flex: FlexOptions::default(),
            trim_idle: false,
            create: true,
            read_only: false,
            format: false,
            format_foreign: false,
            pmem_emulate: false,
            batching: Batching::default(),
            batching_group: 0,
            index_entries: None,
            progress: Progress::default(),
            clock: Arc::new(SystemClock),
            testing: Testing {
                seed: None,
                segment_size_bytes: None,
                grain_size_bytes: None,
                leave_share: 8,
                hash_mask: u64::MAX,
                background: true,
                cores: None,
                collect_bytes: None,
                first_version: 0,
                known_share: 4096,
            },
        }
    }
}
