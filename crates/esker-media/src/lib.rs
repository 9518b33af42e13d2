//! Where bytes become durable: block devices, persistent memory, and their simulated twins.
//!
//! The only crate that maps, opens and flushes media. Engines see two traits,
//! [`BlockDevice`] and, for memory, [`Pmem`]; each has a real implementation and a simulated one
//! that yields every state which a crash may leave.

pub mod archive;
pub mod block;
pub mod buffer;
pub mod file;
pub mod folder;
mod locked;
pub mod overlay;
pub mod pmem;
pub mod refused;
pub mod sim;
pub mod striped;
pub mod unfinished;

// The kit's, which depends on this crate.
#[cfg(test)]
#[path = "../../esker-testkit/src/skipped.rs"]
pub mod skipped;

pub use archive::{Archive, ArchiveWriter, FolderArchive, TarArchive};
pub use block::{BlockDevice, BlockGeometry, Counters, is_zero};
pub use buffer::{BufferPool, IoBuf};
pub use file::{Direct, FileDevice, OpenOptions};
pub use overlay::OverlayDevice;
pub use pmem::{Pmem, PmemCounters, PmemFile, PmemOptions};
pub use refused::{ReadableDevice, Refused};
pub use striped::{NewSet, StripedDevice};
