//! The files of a store: those of its space, and two logs.

use crate::flex::{SpaceFiles, SpaceOptions};
use esker_base::Result;
use esker_media::folder::locate;
use esker_media::{BlockDevice, FileDevice, OpenOptions};
use std::sync::Arc;

/// Names of the logs: even generations go to the first one.
const LOGS: [&str; 2] = ["flex.wal.0", "flex.wal.1"];
/// The file of a space that is there if the space is.
pub(crate) const TREE_FILE: &str = "space.tree";

/// Devices of a store: data, tree and log of its space, and its own two logs.
#[derive(Clone, Debug)]
pub struct FlexFiles {
    /// Of the space.
    pub space: SpaceFiles,
    /// Of the tables; they take turns.
    pub logs: [Arc<dyn BlockDevice>; 2],
}

impl FlexFiles {
    /// Opens or creates the files in a folder. Whoever has the space has the logs.
    pub(super) fn open(options: &SpaceOptions, log_size_bytes: u64) -> Result<FlexFiles> {
        let space = SpaceFiles::open(options)?;
        let log = |name| -> Result<Arc<dyn BlockDevice>> {
            let found = locate(&options.path, name, true)?;
            let create_size_bytes = (!found.exists).then_some(log_size_bytes);
            // Direct: what a failed flush left in a page cache is not what the device has.
            let options = OpenOptions { create_size_bytes, ..OpenOptions::default() };
            Ok(Arc::new(FileDevice::open(&found.path, options)?))
        };
        let [even, odd] = LOGS;
        Ok(FlexFiles { space, logs: [log(even)?, log(odd)?] })
    }
}
