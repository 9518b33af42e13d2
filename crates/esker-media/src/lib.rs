//! Where bytes become durable: block devices, persistent memory, and their simulated twins.
//!
//! The only crate that maps, opens and flushes media.

pub mod block;
pub mod buffer;

pub use block::{BlockDevice, BlockGeometry, Counters};
pub use buffer::{BufferPool, IoBuf};
