//! What a check of a store found, and what a repair did.

use crate::devices;
use crate::engine::depot::repair::repair as repair_depot;
use crate::engine::flat::repair::repair as repair_flat;
use crate::engine::flex::FlexFiles;
use crate::engine::flex::repair::repair as repair_flex;
use crate::engine::refuse_others;
use crate::options::{EngineKind, Options};
use esker_base::Result;
use esker_base::rng::Rng;
use esker_media::{BlockDevice, Pmem, Refused};
use std::sync::Arc;

/// Makes a sound store of a damaged one that nobody has open: segments with damage are emptied of what
/// can be read, and records that cannot be read are forgotten, so that their keys are gone instead of
/// answering errors. What was whole stays as it was, versions included, but for values of `flat` in chunks whose headers are damaged,
/// which are written anew. A sound store of `depot` is only read; one of `flat` or `flex` is opened, and closed cleanly.
///
/// Of a batch of `depot` that is damaged every record counts that is whole, also of those that were made at once
/// ([`Store::write`](crate::Store::write)): such a batch may count in part then.
///
/// A place that the device refuses to read while others can be read is damaged like one with wrong bytes: what stood there is lost. Of a
/// store of `flex` it stays as it is, for it may be read again. If the device refuses everything, the repair ends with that error.
///
/// The capacity of a store of `flex` whose root is lost is `options.size_bytes` from then on, or what it takes, if that is more.
///
/// The engine is [`Options::engine`], or the one whose store is there; a store of another one is refused.
///
/// With [`Options::read_only`] nothing is changed: the report says what a repair would do.
///
/// Where damage hides what stood in it ([`RepairReport::damaged_segments`]), keys that were written or
/// deleted there may show an older value, or be gone: restore a backup if that matters.
///
/// # Errors
/// `Corrupted` if neither superblock (of `flex`, header of its space) is whole, or a file of `flex` is missing, `NoSpace` if there is no
/// room to move what is left, `InvalidArgument` if a restore did not end, `Locked`, `UnsupportedFormat`, `Io`. What was not repaired yet is as
/// it was; a store of `flex` may be refused then until it is repaired again.
pub fn repair(options: &Options) -> Result<RepairReport> {
    let options = Options { create: false, format: false, ..options.clone() };
    let kind = options.engine.or(options.engine_there()).unwrap_or_default();
    refuse_others(&options, kind, "repair store")?;
    match kind {
        EngineKind::FlatCceh | EngineKind::FlatMasstree => {
            repair_flat(&devices::open_memory(&options)?, &options)
        }
        EngineKind::Flex => repair_flex(None, &options),
        EngineKind::Depot => {
            let refused = Arc::new(Refused::new(&mut Rng::seeded(options.testing.seed)?));
            repair_depot(devices::open_to_repair(&options, &refused)?, &refused, &options)
        }
    }
}

/// As [`repair`], on a device that the caller opened.
#[doc(hidden)]
pub fn repair_on(device: Arc<dyn BlockDevice>, options: &Options) -> Result<RepairReport> {
    let refused = Arc::new(Refused::new(&mut Rng::seeded(options.testing.seed)?));
    repair_depot(Arc::new(refused.over(device)), &refused, options)
}

/// As [`repair`], of a store of `flat` in memory that the caller opened.
#[doc(hidden)]
pub fn repair_on_memory(memory: &Arc<dyn Pmem>, options: &Options) -> Result<RepairReport> {
    repair_flat(memory, options)
}

/// As [`repair`], of a store of `flex` on devices that the caller opened.
#[doc(hidden)]
pub fn repair_on_flex(files: FlexFiles, options: &Options) -> Result<RepairReport> {
    repair_flex(Some(files), options)
}

/// Result of [`Store::check`](crate::Store::check).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Records that the index knows and that were read.
    pub records: u64,
    /// Batches of the log that were read.
    pub batches: u64,
    /// Bytes of records in the log, dead ones included.
    pub bytes: u64,
    /// What is wrong, in words; empty for a sound store.
    pub problems: Vec<String>,
}

/// Result of [`repair`](crate::repair).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Records that counted and were read.
    pub records: u64,
    /// Segments with damage in which records stood of which nobody knows whose they were, of `flex` intervals, logs, and the root: keys that were written there may
    /// show an older value, or be gone.
    pub damaged_segments: u64,
    /// Records that are lost. Their keys are gone; no older values come back.
    pub records_lost: u64,
    /// Records that were moved away from damage.
    pub records_moved: u64,
}

impl CheckReport {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }

    pub(crate) fn problem(&mut self, words: String) {
        self.problems.push(words);
    }
}
