//! A sample of the histories of whole stores under threads: `cargo xtask histories` has more.

#[path = "../../examples/histories/stores.rs"]
mod stores;

use crate::support::folder_in_memory;
use esker::EngineKind;
use esker_testkit::histories::{Effort, Figures};

/// Each shape of keys, with equal hashes and without, waiting for the device and not.
fn explains(engine: EngineKind) {
    let effort = Effort { alone: 0, beside: 500, rounds: 2, threads: 3 };
    let mut figures = Figures::default();
    for seed in 0..12 {
        let folder = folder_in_memory();
        figures += stores::explore(engine, seed, &effort, folder.path()).unwrap();
    }
    assert!(figures.scans > 0 && figures.judged > figures.beside, "{figures:?}");
    assert!(figures.cleaned > 0 || engine == EngineKind::Flex, "the cleaner was at work");
}

#[test]
fn what_threads_see_of_depot_is_linearizable_and_survives() {
    explains(EngineKind::Depot);
}

#[test]
fn what_threads_see_of_flat_cceh_is_linearizable_and_survives() {
    explains(EngineKind::FlatCceh);
}

#[test]
fn what_threads_see_of_flat_masstree_is_linearizable_and_survives() {
    explains(EngineKind::FlatMasstree);
}

#[test]
fn what_threads_see_of_flex_is_linearizable_and_survives() {
    explains(EngineKind::Flex);
}
