//! Whether a device without superblocks never held a store, or lost them.
//!
//! Segments' headers are looked for where a new store on the device would have them, which is where one made here has them. Of
//! many segments a part is looked at: the first ones, which are taken first, and some of all others.
//!
//! # Failure
//! Reads only. A crash while a store is made leaves nothing behind the superblocks' places: segments are written once these
//! are durable. So what stands there is a store without superblocks, or somebody else's.

use super::layout::Layout;
use super::sites;
use crate::options::Options;
use esker_base::{Error, Result, Site};
use esker_format::depot::SegmentHeader;
use esker_media::{BlockDevice, BufferPool, IoBuf};

/// Segments of which each is looked at, and as many of the others.
const SEGMENTS: u32 = 1024;
/// Segments that are asked for at once.
const AT_ONCE: usize = 64;

/// Where segments begin that something stands in, if there is any of `segment_count` from `data_offset` on.
///
/// # Errors
/// `Io`.
pub(super) fn find_remains(
    device: &dyn BlockDevice,
    pool: &BufferPool,
    site: Site,
    (data_offset, segment_size, segment_count): (u64, u64, u32),
) -> Result<Option<Remains>> {
    let others = segment_count.saturating_sub(SEGMENTS);
    let step = usize::try_from(others.div_ceil(SEGMENTS).max(1)).unwrap_or(1);
    let places: Vec<u64> = (0..segment_count.min(SEGMENTS))
        .chain((SEGMENTS..segment_count).step_by(step))
        .map(|id| data_offset + u64::from(id) * segment_size)
        .collect();
    let block = device.geometry().block_size_bytes as usize;
    for places in places.chunks(AT_ONCE) {
        let mut blocks: Vec<IoBuf> = places.iter().map(|_| pool.get(block)).collect();
        let mut reads: Vec<(u64, &mut [u8])> =
            places.iter().zip(&mut blocks).map(|(at, block)| (*at, &mut **block)).collect();
        device.read_many_at(site, &mut reads)?;
        drop(reads);
        for (at, block) in places.iter().zip(&blocks) {
            if block.iter().any(|byte| *byte != 0) {
                let of_store = SegmentHeader::is_one(block);
                return Ok(Some(Remains { offset: *at, of_store }));
            }
        }
    }
    Ok(None)
}

/// What [`find_remains`] found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remains {
    offset: u64,
    /// It looks like the header of a segment.
    of_store: bool,
}

/// Refuses a device without superblocks that holds something, but for what is no store's if that may be overwritten.
///
/// # Errors
/// `Corrupted`, `Io`.
pub(super) fn check_blank(
    device: &dyn BlockDevice,
    pool: &BufferPool,
    options: &Options,
) -> Result<()> {
    let geometry = device.geometry();
    let grain = Layout::grain_for(geometry.size_bytes);
    // Too small for any store: nothing was lost.
    let Ok(plan) = Layout::plan(geometry, options.testing.segment_size_bytes, grain) else {
        return Ok(());
    };
    let Some(remains) = find_remains(device, pool, sites::OPEN_READ, plan)? else { return Ok(()) };
    let words = match remains.of_store {
        true => {
            "both superblocks are lost, and segments are there: restore a backup over it, or remove it for a new store"
        }
        false if options.format_foreign => return Ok(()),
        false => {
            "no superblock is here, but something else where segments begin: restore a backup over it, or remove it for a new store"
        }
    };
    let block = u64::from(geometry.block_size_bytes);
    Err(Error::corrupted("open store", words).device(device.name()).at(remains.offset, block))
}
