//! The files of a store: those of its space, two logs, and the saved index.

use crate::engine::reading::to_read;
use crate::flex::{
    STORE_LOGS, SpaceFiles, SpaceOptions, open_device, refuse_remains, refuse_without,
};
use esker_base::Result;
use esker_media::folder::locate;
use esker_media::{BlockDevice, OpenOptions, OverlayDevice};
use std::sync::Arc;

/// Name and first size of the saved index.
const INDEX: (&str, u64) = ("flex.index", 4096);

/// Devices of a store: data, tree and log of its space, its own two logs, and the saved index.
#[derive(Clone, Debug)]
pub struct FlexFiles {
    /// Of the space.
    pub space: SpaceFiles,
    /// Of the tables; they take turns.
    pub logs: [Arc<dyn BlockDevice>; 2],
    /// Where intervals begin, as of a clean stop.
    pub index: Arc<dyn BlockDevice>,
}

impl FlexFiles {
    /// Opens or creates the files in a folder. Whoever has the space has the logs. The index may always be missing; a log may not
    /// if there is a space: it was made first, and may have what was acknowledged.
    pub(super) fn open(options: &SpaceOptions, log_size_bytes: u64) -> Result<FlexFiles> {
        let space = SpaceFiles::open(options)?;
        if space.is_made(options)? {
            STORE_LOGS.iter().try_for_each(|name| refuse_without(options, name))?;
        }
        let file = |(name, size_bytes)| -> Result<Arc<dyn BlockDevice>> {
            let read_only = options.read_only;
            let found = locate(&options.path, name, true)?;
            if !found.exists && read_only {
                let beside = Arc::clone(&space.tree);
                return Ok(Arc::new(OverlayDevice::blank_beside(beside, size_bytes)));
            }
            let create_size_bytes = (!found.exists).then_some(size_bytes);
            // Direct: what a failed flush left in a page cache is not what the device has.
            let options = OpenOptions { create_size_bytes, read_only, ..OpenOptions::default() };
            Ok(to_read(open_device(&found.path, options)?, read_only))
        };
        let [even, odd] = STORE_LOGS.map(|name| (name, log_size_bytes));
        let logs = [file(even)?, file(odd)?];
        if !space.is_made(options)? && !options.format && !space.is_being_restored()? {
            logs.iter().try_for_each(|log| refuse_remains(&**log, 0))?;
        }
        let index = file(INDEX)?;
        Ok(FlexFiles { space, logs, index })
    }

    /// The same of which nothing is changed.
    pub(crate) fn into_read(self) -> FlexFiles {
        let to_read = |device| to_read(device, true);
        let FlexFiles { space: SpaceFiles { data, tree, log }, logs, index } = self;
        let [data, tree, log] = [data, tree, log].map(to_read);
        let space = SpaceFiles { data, tree, log };
        FlexFiles { space, logs: logs.map(to_read), index: to_read(index) }
    }
}
