//! A sample of the histories of indexes: `cargo xtask histories` has more.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    missing_docs,
    reason = "tests fail by panicking"
)]

#[path = "../../esker/examples/histories/indexes.rs"]
mod indexes;

use esker_testkit::histories::keys::SEEDS;
use esker_testkit::histories::{Effort, Figures};

/// Each shape of keys with a few of them, with some hundreds, and with thousands.
fn explains(name: &str) {
    let effort = Effort { alone: 2000, beside: 6000, rounds: 2, threads: 2 };
    let mut figures = Figures::default();
    for seed in 0..3 * SEEDS {
        figures += indexes::explore(name, seed, &effort).unwrap();
    }
    assert!(figures.scans > 0 && figures.judged > figures.beside, "{figures:?}");
}

#[test]
fn cceh_does_what_a_map_does_and_what_threads_see_of_it_is_linearizable() {
    explains("cceh");
}

#[test]
fn masstree_does_what_a_map_does_and_what_threads_see_of_it_is_linearizable() {
    explains("masstree");
}

#[test]
fn a_directory_does_what_a_map_does_and_what_threads_see_of_it_is_linearizable() {
    explains("directory");
}
