//! How a space is opened.

use crate::options::CACHE_SIZE_MAX_BYTES;
use esker_base::units::{GIB, KIB, MIB, format_size_bytes};
use esker_base::{Error, Result};
use esker_format::flex::SpaceShape;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Options of [`Space::open`](super::Space::open).
#[derive(Clone, Debug)]
pub struct SpaceOptions {
    /// A folder, which is created if it is missing.
    pub path: PathBuf,
    /// Whether to make a space where there is none. Default true.
    pub create: bool,
    /// Whether the space is only read: nothing in its files is changed, and what an open after a crash writes stays in memory. Others may
    /// read it at the same time. Writes are refused with `ReadOnly`. Default false.
    pub read_only: bool,
    /// Whether to make a new space in place of what is there. Everything there is lost. Default false.
    pub format: bool,
    /// Whether the space is made for what is restored: until its first two checkpoints the place of a header says that this did not end, and any
    /// other open refuses it. One that says so is none, and is made anew. Default false.
    #[doc(hidden)]
    pub restoring: bool,
    /// Most bytes of the data file; `None`: as much as the file system gives. Live bytes are limited to
    /// 30/32 of it, less some segments that the collector needs (FlexSpace §4.1). Default `None`.
    pub data_size_bytes_max: Option<u64>,
    /// The data file grows only while live bytes take at least this share of the segments in use, in
    /// percent, 1 to 95; below it, space is collected. Default 80: `L` live bytes take about 1.25 `L` on disk.
    pub fill_percent_min: u32,
    /// Bytes of the log after which the tree is stored and the log begins anew. Default 32 MiB.
    pub log_size_bytes_max: u64,
    /// Memory for blocks of data that were read, in bytes, 16 TiB at most; 0: none. A 32nd of it is taken at once. Default 64 MiB.
    pub cache_size_bytes: u64,
    /// Memory for leaves of the tree, in bytes: when there are more, those go that nobody used lately. Those that were changed since the
    /// last checkpoint stay until the next one. Default 1 GiB.
    pub tree_size_bytes_max: u64,
    /// What only tests set.
    #[doc(hidden)]
    pub testing: SpaceTesting,
}

/// Seams for tests.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct SpaceTesting {
    /// Seed of identity and salts; from the operating system if `None`.
    pub seed: Option<u64>,
    /// Sizes of a new space.
    pub shape: SpaceShape,
    /// Records after which a group is written by itself.
    pub records_max: usize,
    /// As `records_max`, while operations are held that belong together.
    pub records_held_max: usize,
    /// Nodes that are encoded before they are written.
    pub nodes_max: usize,
    /// Bytes that the collector moves before others come to their turn.
    pub moved_at_once: u64,
    /// Full segments that may wait to be written, until somebody is there who writes them.
    pub filled_max: usize,
}

/// The sizes of the paper: segments of 4 MiB, extents of up to 128 KiB, leaves of 60.
const SHAPE: SpaceShape = SpaceShape {
    segment_size_bytes: 4 * MIB,
    block_size_bytes: 4096,
    node_size_bytes: 1024,
    leaf_capacity: 60,
    children_max: 31,
    extent_size_bytes_max: 128 << 10,
    log_block_size_bytes: 512,
};

/// Shares of the segments in use that live bytes may be asked to take. With more than the largest, each new segment would first pay for
/// a collection; with none, nothing would ever be collected.
const FILL_PERCENT: RangeInclusive<u32> = 1..=95;

impl SpaceOptions {
    /// Whether sizes are within their ranges.
    pub(super) fn check(&self) -> Result<()> {
        if self.cache_size_bytes > CACHE_SIZE_MAX_BYTES {
            let most = format_size_bytes(CACHE_SIZE_MAX_BYTES);
            return Err(Error::invalid(
                "open space",
                format!("the cache of blocks has at most {most}"),
            ));
        }
        if !FILL_PERCENT.contains(&self.fill_percent_min) {
            let (least, most) = FILL_PERCENT.into_inner();
            let words = format!("segments are to be filled by {least} to {most} percent");
            return Err(Error::invalid("open space", words));
        }
        Ok(())
    }

    /// Defaults for a space at `path`.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        SpaceOptions {
            path: path.into(),
            create: true,
            read_only: false,
            format: false,
            restoring: false,
            data_size_bytes_max: None,
            fill_percent_min: 80,
            log_size_bytes_max: 32 * MIB,
            cache_size_bytes: 64 * MIB,
            tree_size_bytes_max: GIB,
            testing: SpaceTesting {
                seed: None,
                shape: SHAPE,
                records_max: usize::try_from(64 * KIB).unwrap_or(0),
                records_held_max: usize::try_from(MIB).unwrap_or(0),
                // Each takes a whole slot: 4 MiB, where all that updates in every place change would be a tenth of the data.
                nodes_max: 1024,
                // A tenth of a second of a fast disk.
                moved_at_once: 128 * MIB,
                filled_max: 0,
            },
        }
    }
}
