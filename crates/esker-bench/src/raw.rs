//! The limits of a machine: what its device, its memory and its loopback give to a program that does nothing else.
//!
//! An engine's figures mean something beside these. The device is asked through the run-time that the engines use,
//! and `fio` can be asked the same in turns ([`fio`]): both have to agree.

pub mod device;
pub mod fio;
pub mod loopback;
pub mod memory;

use crate::document::Row;
use crate::numbers::real;
use hdrhistogram::Histogram;

/// A row of a raw measurement: `workload` names what was done, `system` by whom.
pub(crate) fn row(system: &str, workload: &str, depth: usize) -> Row {
    Row {
        system: system.to_owned(),
        workload: workload.to_owned(),
        phase: "run".to_owned(),
        threads: 1,
        depth,
        load_average: crate::figures::load_average(),
        ..Row::default()
    }
}

/// Fills in what `ops` operations in `seconds` took, each in nanoseconds.
pub(crate) fn measured(mut row: Row, ops: u64, seconds: f64, latencies: &Histogram<u64>) -> Row {
    row.ops = ops;
    row.seconds = seconds;
    row.ops_per_second = real(ops) / seconds.max(1e-9);
    row.note_latencies(latencies);
    row
}
