//! The device that holds a store: a file, a raw device, or several of them as one.
//!
//! # Failure
//! A crash while a store is made leaves blank files, or members of a set that holds nothing; the next
//! open goes on from there.

use crate::engine::depot::{STORE_SIZE_MAX_BYTES, plan};
use crate::engine::flat::plan_memory;
use crate::engine::reading::to_read;
use crate::flex;
use crate::options::{EngineKind, Options};
use esker_base::rng::Rng;
use esker_base::units::format_size_bytes;
use esker_base::{Error, ErrorKind, Result};
use esker_media::folder::{Located, NewFolders, locate, take_away};
use esker_media::{
    BlockDevice, BlockGeometry, FileDevice, NewSet, OpenOptions, Pmem, PmemFile, PmemOptions,
    Refused, StripedDevice,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Name of the data file in a store's folder.
const DATA_FILE: &str = "depot.esker";

/// Name of the file of a store of `flat` in its folder.
const MEMORY_FILE: &str = "flat.esker";

/// How often, and after which rest, a store that another process has open is tried again.
const LOCK_TRIES: u32 = 100;
const LOCK_REST: Duration = Duration::from_millis(20);
/// The block size for which new members are sized, in bytes.
const BLOCK_SIZE: u32 = 4096;

/// Where segments start, and how long one is, in bytes.
type Shape = (u64, u64);

/// Folders that an open of the store makes: they go again where it fails.
pub(crate) fn new_folders(options: &Options) -> NewFolders {
    let mut folders = NewFolders::default();
    if options.create || options.format {
        std::iter::once(&options.path).chain(&options.devices).for_each(|path| folders.note(path));
    }
    folders
}

/// Opens the device of the store that `options` name; one that is made has room for segments of
/// this shape, or of that which a new store of its size has.
pub(crate) fn open(options: &Options, shape: Option<Shape>) -> Result<Arc<dyn BlockDevice>> {
    open_as(options, shape, |device| device)
}

/// As [`open`], of a store that is to be repaired: of each of its devices all can be read, but for what is `refused`, which may be shown.
pub(crate) fn open_to_repair(
    options: &Options,
    refused: &Arc<Refused>,
) -> Result<Arc<dyn BlockDevice>> {
    open_as(options, None, |device| Arc::new(refused.over(device)))
}

/// As [`open`]; what of each device is `seen`.
fn open_as(
    options: &Options,
    shape: Option<Shape>,
    seen: impl Fn(Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice>,
) -> Result<Arc<dyn BlockDevice>> {
    if !options.devices.is_empty() {
        return open_striped(options, shape, seen);
    }
    let found = locate(&options.path, DATA_FILE, options.create)?;
    let is_new = !found.exists || is_made_anew(&found, DATA_FILE, options);
    if is_new && shape.is_none() {
        // Before there is a file that nothing fits in.
        planned(options.size_bytes, options)?;
    }
    let device = open_file(&found, options.size_bytes, options)?;
    if !options.format
        && let Some((index, count)) = StripedDevice::membership(&device)?
    {
        let words =
            format!("this is member {index} of a store over {count} devices; name them all");
        return Err(Error::invalid("open store", words).device(device.name()));
    }
    Ok(seen(to_read(Arc::new(device), options.read_only)))
}

/// As [`open`], for a restore: a store's own file gets the size of `options` if it is free, as one is that a restore of another size
/// did not bring to its end.
pub(crate) fn open_to_restore(
    options: &Options,
    shape: Shape,
    is_free: impl Fn(&dyn BlockDevice) -> Result<bool>,
) -> Result<Arc<dyn BlockDevice>> {
    let device = open(options, Some(shape))?;
    let has_size = device.geometry().size_bytes == options.size_bytes;
    if has_size || !is_own_file(DATA_FILE, options)? || !is_free(&*device)? {
        return Ok(device);
    }
    // And its lock with it.
    drop(device);
    open(&Options { format: true, ..options.clone() }, Some(shape))
}

/// As [`open_memory`], for a restore; see [`open_to_restore`].
pub(crate) fn open_memory_to_restore(
    options: &Options,
    is_free: impl Fn(&dyn Pmem) -> Result<bool>,
) -> Result<Arc<dyn Pmem>> {
    let memory = open_memory(options)?;
    let has_size = memory.size_bytes() == options.size_bytes;
    if has_size || !is_own_file(MEMORY_FILE, options)? || !is_free(&*memory)? {
        return Ok(memory);
    }
    drop(memory);
    open_memory(&Options { format: true, ..options.clone() })
}

/// Whether the store of `options` is in a file of its own in its folder.
fn is_own_file(file_name: &str, options: &Options) -> Result<bool> {
    Ok(is_own(&locate(&options.path, file_name, false)?, file_name, options))
}

/// Whether this is a store's own file in its folder. One that the path itself names, or a member of several, has the size that somebody
/// gave it.
fn is_own(found: &Located, file_name: &str, options: &Options) -> bool {
    let is_named = found.path == options.path || !found.path.ends_with(file_name);
    found.exists && !is_named && options.devices.is_empty()
}

/// Whether a store's own file gets the size that a new store is to have.
fn is_made_anew(found: &Located, file_name: &str, options: &Options) -> bool {
    options.format && !options.read_only && is_own(found, file_name, options)
}

/// The engine whose data are in the folder, or one of several, if any are. Of the two kinds of `flat` it says one: the store knows.
pub(crate) fn engine_there(options: &Options) -> Option<EngineKind> {
    let paths: Vec<&PathBuf> = std::iter::once(&options.path).chain(&options.devices).collect();
    let holds = |name: &str| {
        let is_in = |path: &&PathBuf| {
            locate(path, name, false).is_ok_and(|found| {
                found.exists && found.path.file_name().is_some_and(|file| file == name)
            })
        };
        paths.iter().any(is_in)
    };
    let kinds = [
        (DATA_FILE, EngineKind::Depot),
        (MEMORY_FILE, EngineKind::FlatCceh),
        (flex::TREE_FILE, EngineKind::Flex),
        // Without its tree it is damaged, and still no place for another store.
        (flex::DATA_FILE, EngineKind::Flex),
    ];
    kinds.into_iter().find_map(|(name, kind)| holds(name).then_some(kind))
}

/// Opens the memory of a store of `flat`.
pub(crate) fn open_memory(options: &Options) -> Result<Arc<dyn Pmem>> {
    if !options.devices.is_empty() {
        return Err(Error::invalid("open store", "engine flat takes one path"));
    }
    let found = locate(&options.path, MEMORY_FILE, options.create)?;
    let resize = is_made_anew(&found, MEMORY_FILE, options);
    let is_new = !found.exists || resize;
    if is_new {
        plan_memory(options.size_bytes, options.testing.segment_size_bytes)?;
    }
    let memory = PmemOptions {
        create_size_bytes: is_new.then_some(options.size_bytes),
        resize,
        emulate: options.pmem_emulate,
        read_only: options.read_only,
    };
    Ok(Arc::new(open_of_size(options, || PmemFile::open(&found.path, memory))?))
}

/// Opens several devices as one.
fn open_striped(
    options: &Options,
    shape: Option<Shape>,
    seen: impl Fn(Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice>,
) -> Result<Arc<dyn BlockDevice>> {
    let paths: Vec<&PathBuf> = std::iter::once(&options.path).chain(&options.devices).collect();
    let count = paths.len() as u64;
    let found = paths.iter().map(|path| locate(path, DATA_FILE, options.create));
    let found: Vec<Located> = found.collect::<Result<_>>()?;
    // Those that are there first: if they are members, a missing file is a lost one.
    let mut members: Vec<Option<Arc<FileDevice>>> = Vec::with_capacity(found.len());
    let mut member_of = None;
    for located in &found {
        let member = located.exists.then(|| open_file(located, 0, options)).transpose()?;
        if let Some(member) = &member {
            member_of = member_of.or(StripedDevice::membership(member)?);
        }
        members.push(member.map(Arc::new));
    }
    let missing = found.iter().find(|located| !located.exists);
    if let (Some(missing), Some((_, count)), false) = (missing, member_of, options.format) {
        let words =
            format!("there is nothing here, and others are members of a store over {count}");
        return Err(Error::invalid("open store", words).device(missing.path.display().to_string()));
    }
    let shape_for = |size_bytes| match shape {
        Some(shape) => Ok(shape),
        None => planned(size_bytes, options),
    };
    let mut set =
        NewSet { lead_size_bytes: 0, unit_size_bytes: 1, set_id: [0; 16], replace: options.format };
    Rng::seeded(options.testing.seed)?.fill(&mut set.set_id);
    if missing.is_some() {
        (set.lead_size_bytes, set.unit_size_bytes) = shape_for(options.size_bytes)?;
    }
    let each = set.member_size_bytes(options.size_bytes, count, u64::from(BLOCK_SIZE));
    let mut new_files = NewFiles::default();
    let mut opened = Vec::with_capacity(members.len());
    for (member, located) in members.into_iter().zip(&found) {
        opened.push(match member {
            Some(member) => member,
            None => {
                let was_there = located.path.symlink_metadata().is_ok();
                let member = Arc::new(open_file(located, each, options)?);
                new_files.0.push((located.path.clone(), was_there, Arc::clone(&member)));
                member
            }
        });
    }
    let members = opened;
    if missing.is_none() && (options.create || options.format) {
        let smallest = members.iter().map(|member| member.geometry().size_bytes).min();
        // Too small a device says so when a set is to be made of it.
        if let Ok(shape) = shape_for(smallest.unwrap_or(0).saturating_mul(count)) {
            (set.lead_size_bytes, set.unit_size_bytes) = shape;
        }
    }
    let members = members.into_iter().map(|member| seen(to_read(member, options.read_only)));
    let new = (options.create || options.format).then_some(&set);
    let device = StripedDevice::open(members.collect(), new)?;
    new_files.0.clear();
    Ok(Arc::new(device))
}

/// Files that were made for a set, and whether they were there, empty, before: those of a set that could not be made take no
/// room. They are open, and so locked, until they are gone.
#[derive(Default)]
struct NewFiles(Vec<(PathBuf, bool, Arc<FileDevice>)>);

impl Drop for NewFiles {
    fn drop(&mut self) {
        for (path, was_there, _open) in &self.0 {
            if let Err(error) = take_away(path, *was_there) {
                tracing::warn!(%error, "{} was made for a store that was not, and stays", path.display());
            }
        }
    }
}

/// Where segments would start, and how long one would be, in a new file of this size.
fn planned(size_bytes: u64, options: &Options) -> Result<Shape> {
    if size_bytes > STORE_SIZE_MAX_BYTES {
        let most = format_size_bytes(STORE_SIZE_MAX_BYTES);
        return Err(Error::invalid("open store", format!("a store of depot has up to {most}")));
    }
    let geometry = BlockGeometry { size_bytes, block_size_bytes: BLOCK_SIZE };
    plan(geometry, options.testing.segment_size_bytes)
}

/// Opens a file, which is created with `size_bytes` if there is none, or a raw device, of the store of `options`.
fn open_file(found: &Located, size_bytes: u64, options: &Options) -> Result<FileDevice> {
    let resize = is_made_anew(found, DATA_FILE, options);
    let create_size_bytes = (!found.exists || resize).then_some(size_bytes);
    let read_only = options.read_only;
    // The store tells of free space only when it is asked to, or when much of it lies idle.
    let device_options = OpenOptions {
        create_size_bytes,
        resize,
        read_only,
        punch_holes: true,
        ..OpenOptions::default()
    };
    open_of_size(options, || FileDevice::open(&found.path, device_options))
}

/// Opens something patiently that may be made with the size of `options`, and tells if there is no room for that.
fn open_of_size<T>(options: &Options, open: impl Fn() -> Result<T>) -> Result<T> {
    patiently(open).map_err(|error| match error.kind() {
        ErrorKind::NoSpace => {
            let wanted = format_size_bytes(options.size_bytes);
            error.context(format!("a new store takes {wanted}; a smaller size may fit"))
        }
        _ => error,
    })
}

/// Opens a file, again and again while another process has it: the requests of one that was killed hold its lock until the
/// kernel is done with them, which may be after the process is gone, and one file longer than another.
pub(crate) fn patiently<T>(open: impl Fn() -> Result<T>) -> Result<T> {
    for _ in 0..LOCK_TRIES {
        match open() {
            Err(error) if error.kind() == ErrorKind::Locked => esker_trt::sleep(LOCK_REST),
            opened => return opened,
        }
    }
    open()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_no_store_has_is_refused() {
        let options = Options::new("");
        assert_eq!(STORE_SIZE_MAX_BYTES, 8 << 40);
        planned(STORE_SIZE_MAX_BYTES, &options).unwrap();
        let refused = planned(STORE_SIZE_MAX_BYTES + (1 << 40), &options).unwrap_err();
        assert!(refused.to_string().contains("8 TiB"), "{refused}");
    }
}
