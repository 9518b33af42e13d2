//! The three files of a space, in a folder.
//!
//! # Invariants
//! - A1: the tree file is made first, durably, and has a header only when all files of the folder are there. So a file that is
//!   missing, or empty, where one that is made later has something, is lost and no longer to be made: that would be a space, or
//!   a log, without what was acknowledged. So are headers, where files have something.

use super::recover::{find_header, is_being_restored};
use super::{SpaceOptions, sites};
use crate::devices::patiently;
use crate::engine::reading::to_read;
use esker_base::{Error, Result};
use esker_format::flex::header::SLOTS_OFFSET;
use esker_media::folder::locate;
use esker_media::{BlockDevice, BufferPool, Direct, FileDevice, OpenOptions};
use std::path::Path;
use std::sync::Arc;

/// Bytes of a file that are looked at before it is taken for blank.
const REMAINS_BYTES: u64 = 1 << 20;
/// First size of a new file in bytes.
const NEW_SIZE: u64 = 64 << 10;

/// Data, tree and log: three devices that grow.
#[derive(Clone, Debug)]
pub struct SpaceFiles {
    /// Segments.
    pub data: Arc<dyn BlockDevice>,
    /// Headers, nodes, maps.
    pub tree: Arc<dyn BlockDevice>,
    /// Groups of records.
    pub log: Arc<dyn BlockDevice>,
}

/// Names of the files.
pub(crate) const TREE_FILE: &str = "space.tree";
const LOG_FILE: &str = "space.log";
pub(crate) const DATA_FILE: &str = "space.data";
/// Names of the logs of a store that has its data in a space, beside it: even generations go to the first one.
pub(crate) const STORE_LOGS: [&str; 2] = ["flex.wal.0", "flex.wal.1"];

impl SpaceFiles {
    /// Opens or creates the files in the folder of `options`.
    pub(crate) fn open(options: &SpaceOptions) -> Result<SpaceFiles> {
        let had_tree = !options.format && (has(options, LOG_FILE) || has(options, DATA_FILE));
        // Direct, all of them: after a failed flush, what the page cache still has is not what a device has, and
        // the next open would believe it. The tree file first: whoever has its lock has all of them.
        let tree = open_file(options, TREE_FILE, had_tree)?;
        let is_made = is_made(&*tree, options)?;
        let log = open_file(options, LOG_FILE, is_made)?;
        let data = open_file(options, DATA_FILE, is_made)?;
        if !is_made && !options.format && !is_being_restored(&*tree)? {
            refuse_remains(&*tree, SLOTS_OFFSET)?;
            refuse_remains(&*log, 0)?;
            refuse_remains(&*data, 0)?;
        }
        Ok(SpaceFiles { data, tree, log })
    }

    /// Whether a space is opened that is there, so that no file of its folder may be missing (A1).
    pub(crate) fn is_made(&self, options: &SpaceOptions) -> Result<bool> {
        is_made(&*self.tree, options)
    }

    /// Whether what is there is none, as its restore did not end.
    pub(crate) fn is_being_restored(&self) -> Result<bool> {
        is_being_restored(&*self.tree)
    }
}

fn is_made(tree: &dyn BlockDevice, options: &SpaceOptions) -> Result<bool> {
    Ok(!options.format && find_header(tree, options)?.is_some())
}

/// Whether the folder has the file, with something in it.
fn has(options: &SpaceOptions, name: &str) -> bool {
    locate(&options.path, name, false).is_ok_and(|found| found.exists)
}

/// Refuses a space that is a store's: what is written there without the store is damage to it.
pub(super) fn refuse_store(options: &SpaceOptions) -> Result<()> {
    if !STORE_LOGS.iter().any(|name| has(options, name)) {
        return Ok(());
    }
    let words = "a store of flex has its data in this space: open that, as a store";
    Err(Error::invalid("open space", words).device(options.path.display().to_string()))
}

/// Refuses to go on without a file that was there (A1).
pub(crate) fn refuse_without(options: &SpaceOptions, name: &str) -> Result<()> {
    if has(options, name) {
        return Ok(());
    }
    Err(Error::corrupted("open space", "this file is missing, or empty, and others are there")
        .device(options.path.join(name).display().to_string()))
}

/// Refuses to make something new where there was something (A1): only what is blank from `offset` on, as far as that is looked at, was
/// being made.
pub(crate) fn refuse_remains(device: &dyn BlockDevice, offset: u64) -> Result<()> {
    let size = device.geometry().size_bytes;
    let length = size.saturating_sub(offset).min(REMAINS_BYTES);
    let mut bytes = BufferPool::new(0).get(usize::try_from(length).unwrap_or(0));
    device.read_at(sites::OPEN_READ, offset, &mut bytes)?;
    let Some(first) = bytes.iter().position(|byte| *byte != 0) else { return Ok(()) };
    let words = "headers are lost, and there are data: restore a backup, or remove the files for a new store";
    Err(Error::corrupted("open space", words)
        .device(device.name())
        .at(offset + first as u64, length - first as u64))
}

fn open_file(options: &SpaceOptions, name: &str, was_there: bool) -> Result<Arc<dyn BlockDevice>> {
    if was_there {
        refuse_without(options, name)?;
    }
    let create = (options.create || options.format) && !options.read_only;
    let found = locate(&options.path, name, create)?;
    if found.path == options.path {
        let words = "neither a folder nor nothing: a space has several files";
        return Err(Error::invalid("find store", words).device(found.path.display().to_string()));
    }
    let device_options = OpenOptions {
        create_size_bytes: (!found.exists).then_some(NEW_SIZE),
        direct: Direct::Prefer,
        punch_holes: true,
        read_only: options.read_only,
        ..OpenOptions::default()
    };
    Ok(to_read(open_device(&found.path, device_options)?, options.read_only))
}

/// Opens a file, patiently.
pub(crate) fn open_device(path: &Path, options: OpenOptions) -> Result<Arc<dyn BlockDevice>> {
    Ok(Arc::new(patiently(|| FileDevice::open(path, options))?))
}
