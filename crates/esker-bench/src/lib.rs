//! Measurements of Esker beside what a user would pick instead: workloads, a runner, reports.
//!
//! A [`plan::Plan`] says what is to be measured. It unfolds into [`runner::Cell`]s: one system in one
//! setting, with the workloads that share its data. Cells are repeated in turns (A B A B), each in a
//! process of its own if the caller launches it so, because memory, CPU and I/O counters belong to
//! processes. Each phase of a cell gives a [`document::Row`]; rows, the machine and the options are a
//! [`document::Document`], which [`report`] draws and [`compare`] holds against another.
//!
//! What is measured stands behind [`system::System`]. This crate has the engines of this build and
//! maps of the standard library; peers are in `esker-peers`.
//!
//! # Invariants
//! - Every draw comes from a seed: the same plan asks the same keys in the same order of each client, and of each workload others.
//! - Every value that is read is checked: a system that answers wrong bytes, or misses a key that was
//!   loaded, fails its cell instead of looking fast. Of a trace that is the size of what it wrote itself, of a scan the first
//!   record and how many there are, and of one in 16 the order.
//! - Load, warm-up and measured phase are apart; figures are those of the measured phase only.

pub mod compare;
pub mod document;
pub mod failure;
pub mod figures;
pub mod files;
pub mod load;
pub mod machine;
pub mod memory;
pub mod micro;
mod numbers;
pub mod place;
pub mod plan;
pub mod raw;
pub mod report;
pub mod runner;
pub mod statistics;
pub mod system;
pub mod systems;
pub mod workload;

pub use failure::{Failure, Outcome};
