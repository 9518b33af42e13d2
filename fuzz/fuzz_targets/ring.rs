//! Rings in memory that is shared.
#![no_main]

esker_fuzz::target!("ring", esker_shm::fuzzing);
