//! Has to fail with a panic.
#![no_main]

esker_fuzz::target!("canary", esker_fuzz::canary::panics);
