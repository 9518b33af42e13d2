//! Has to fail for memory out of proportion.
#![no_main]

esker_fuzz::target!("canary_memory", esker_fuzz::canary::memory);
