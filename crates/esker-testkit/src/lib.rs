//! Tests of stores: a model to compare with, a generator of operations, a crash explorer, a checker
//! of histories, and a runner that tests the tests.
//!
//! Only for tests and for `cargo xtask`: no product depends on it. Whatever is random here follows
//! from a seed that every failure prints.

pub mod command;
pub mod explore;
pub mod fuzz;
pub mod generator;
pub mod histories;
pub mod linearizability;
pub mod model;
pub mod mutants;
pub mod skipped;
pub mod versions;
