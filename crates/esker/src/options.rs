//! How a store is opened.

use std::path::PathBuf;
use std::time::Duration;

/// What an acknowledgement promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Acknowledged means: survives power loss.
    Sync,
    /// At most the writes of the last window are lost, never their order.
    Periodic(Duration),
    /// Nothing is promised until `sync` or `close`: for caches.
    None,
}

/// Options of [`Store::open`](crate::Store::open).
#[derive(Clone, Debug)]
pub struct Options {
    /// A folder, created if missing, or a raw block device.
    pub path: PathBuf,
    /// Capacity of a new store in bytes; an existing store keeps its own.
    pub size_bytes: u64,
    /// Default `Sync`.
    pub durability: Durability,
}

impl Options {
    /// Defaults for a store at `path`: 8 GiB, durability `sync`.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Options { path: path.into(), size_bytes: 8 << 30, durability: Durability::Sync }
    }
}
