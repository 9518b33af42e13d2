//! What is asked of a system: which operations, on which keys, with which values.
//!
//! [`catalogue`] has the workloads that the field knows by name. A [`Workload`] is plain data; the runner
//! gives each client a [`stream::Requests`] that draws from it.

pub mod catalogue;
pub mod distribution;
pub mod shape;
pub mod space;
pub mod stream;
pub mod trace;

#[cfg(test)]
mod tests;

use distribution::Distribution;
use serde::{Deserialize, Serialize};
use shape::{KeyShape, ValueShape};
use std::path::PathBuf;

/// Kinds of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "each name says it")]
pub enum Operation {
    Read,
    /// A read of a key that was never written.
    ReadMissing,
    Update,
    Insert,
    /// A read and an update of the same key, timed as one.
    ReadModifyWrite,
    Scan,
    Delete,
}

impl Operation {
    /// Every kind.
    pub const ALL: [Operation; 7] = [
        Operation::Read,
        Operation::ReadMissing,
        Operation::Update,
        Operation::Insert,
        Operation::ReadModifyWrite,
        Operation::Scan,
        Operation::Delete,
    ];

    /// Its name in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Operation::Read => "read",
            Operation::ReadMissing => "read-missing",
            Operation::Update => "update",
            Operation::Insert => "insert",
            Operation::ReadModifyWrite => "read-modify-write",
            Operation::Scan => "scan",
            Operation::Delete => "delete",
        }
    }

    /// Whether it leaves something to make durable.
    #[must_use]
    pub fn is_write(self) -> bool {
        matches!(
            self,
            Operation::Update | Operation::Insert | Operation::ReadModifyWrite | Operation::Delete
        )
    }
}

/// How often each operation comes: weights.
pub type Mix = Vec<(Operation, f64)>;

/// The order in which an empty store is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Each client a range of its own, from its start to its end.
    Sequential,
    /// Every key once, neighbours far apart in time.
    Scattered,
    /// As many writes as keys, each of a key at random, as in `db_bench`: some keys come twice, some never.
    Random,
    /// Keys by the request distribution: FlexDB's zipfian load.
    Distribution,
}

/// What a workload does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Starts from an empty store; ends when as many records are written as there are to be.
    Fill(Order),
    /// Starts from a loaded store; runs for a time, or a number of operations.
    Requests(Mix),
    /// Opens a loaded store whose process ended without closing it.
    Recovery,
    /// Plays a trace, once.
    Trace(PathBuf),
}

/// A workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// The field's name for it.
    pub name: String,
    /// What it does, in a line, with its source.
    pub about: String,
    /// What it does.
    pub kind: Kind,
    /// Which keys are asked for.
    pub distribution: Distribution,
    /// Bytes of keys.
    pub keys: KeyShape,
    /// Sizes of values.
    pub values: ValueShape,
    /// Records of a scan: from, to, alike often.
    pub scan_length: (u64, u64),
    /// Adds keys: comes last among those that share a store.
    pub grows: bool,
}

impl Workload {
    /// Whether it needs a store that keeps its keys in order.
    #[must_use]
    pub fn needs_order(&self) -> bool {
        matches!(&self.kind, Kind::Requests(mix) if mix.iter().any(|(operation, weight)| *operation == Operation::Scan && *weight > 0.0))
    }

    /// Whether it asks a loaded store.
    #[must_use]
    pub fn needs_load(&self) -> bool {
        matches!(self.kind, Kind::Requests(_) | Kind::Recovery)
    }
}
