//! Esker: key-value storage for fast non-volatile storage, as a library.
//!
//! [`Store`] is the whole interface: open one with [`Options`], use it from any thread or from a
//! task of the run-time. What signatures name of the layers below is here as well: [`clock`], [`media`], [`trt`].

mod backup;
mod batch;
mod check;
mod devices;
mod engine;
pub mod flex;
pub mod options;
pub mod store;
pub mod value;

pub use backup::{BackupReport, RestoreReport, restore};
#[doc(hidden)]
pub use backup::{restore_flex_on, restore_on, restore_on_memory};
pub use batch::Batch;
pub use check::{CheckReport, RepairReport, repair};
#[doc(hidden)]
pub use check::{repair_on, repair_on_flex, repair_on_memory};
pub use engine::flat::batching::Batching;
#[doc(hidden)]
pub use engine::flex::FlexFiles;
pub use esker_base::clock;
pub use esker_base::ids::Version;
pub use esker_base::{Error, ErrorKind, Result};
pub use esker_media as media;
pub use esker_trt as trt;
pub use options::{DEFAULT_PERIOD, Durability, EngineKind, FlexOptions, Options, Progress};
pub use store::{Direction, Iter, Met, Range, Snapshot, Stats, Store, behind_prefix};
pub use value::{Attributes, Condition, Outcome, PutOptions, Value};

/// For benchmarks of the project: the batching of `flat`.
#[doc(hidden)]
pub mod flat_batching {
    pub use crate::engine::flat::batching::{
        Batcher, Batching, BatchingOptions, Logs, Posted, Slot,
    };
}

/// For the tests of the project: the sites of each engine, and those that all share.
#[doc(hidden)]
pub mod sites {
    pub use crate::engine::depot::sites as depot;
    pub use crate::engine::flat::sites as flat;
    pub use crate::engine::flex::sites as flex_db;
    pub use crate::engine::sites as backup;
    pub use crate::flex::sites as flex;
    pub use esker_media::striped::sites as striped;
}
