//! The three files of a space, in a folder.

use super::SpaceOptions;
use esker_base::{Error, ErrorKind, Result};
use esker_media::folder::locate;
use esker_media::{BlockDevice, Direct, FileDevice, OpenOptions};
use std::sync::Arc;
use std::time::Duration;

/// How often, and after which rest, files that another process has open are tried again.
const LOCK_TRIES: u32 = 100;
const LOCK_REST: Duration = Duration::from_millis(20);
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

impl SpaceFiles {
    /// Opens or creates the files in the folder of `options`.
    pub(crate) fn open(options: &SpaceOptions) -> Result<SpaceFiles> {
        // Direct, all of them: after a failed flush, what the page cache still has is not what a device has, and
        // the next open would believe it. The tree file first: whoever has its lock has all of them.
        let tree = open_file(options, "space.tree", Direct::Prefer)?;
        let log = open_file(options, "space.log", Direct::Prefer)?;
        let data = open_file(options, "space.data", Direct::Prefer)?;
        Ok(SpaceFiles { data, tree, log })
    }
}

fn open_file(options: &SpaceOptions, name: &str, direct: Direct) -> Result<Arc<dyn BlockDevice>> {
    let create = options.create || options.format;
    let found = locate(&options.path, name, create)?;
    if found.path == options.path {
        let words = "neither a folder nor nothing: engine flex has several files";
        return Err(Error::invalid("find store", words).device(found.path.display().to_string()));
    }
    let device_options = OpenOptions {
        create_size_bytes: (!found.exists).then_some(NEW_SIZE),
        direct,
        punch_holes: true,
        ..OpenOptions::default()
    };
    for _ in 0..LOCK_TRIES {
        match FileDevice::open(&found.path, device_options) {
            Err(error) if error.kind() == ErrorKind::Locked => esker_trt::sleep(LOCK_REST),
            opened => return Ok(Arc::new(opened?)),
        }
    }
    Ok(Arc::new(FileDevice::open(&found.path, device_options)?))
}
