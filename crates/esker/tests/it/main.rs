//! Tests of the store from outside, on simulated devices and on files.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "tests and measurements fail by panicking"
)]

mod backup;
mod backup_room;
mod basics;
mod busy;
mod cache;
mod cache_crash;
mod check;
mod checkpoint;
mod client;
mod closing;
mod damage;
mod depot_full;
mod depot_heads;
mod depot_room;
mod engines;
mod evictions;
mod expiry;
mod faults;
mod flat;
mod flat_backup;
mod flat_damage;
mod flat_repair;
mod flat_room;
mod flat_threads;
mod flex;
mod flex_bounds;
mod flex_damage;
mod flex_db;
mod flex_emptied;
mod flex_expiry;
mod flex_faults;
mod flex_found;
mod flex_full;
mod flex_killed;
mod flex_memory;
mod flex_mend;
mod flex_mended;
mod flex_new;
mod flex_repair;
mod flex_room;
mod flex_space;
mod flex_tables;
mod flex_unread;
mod flex_whole;
mod gather;
mod headers;
mod histories;
mod killed;
mod large;
mod log_writer;
mod many;
mod model;
mod pending;
mod places;
mod prefix;
mod range;
mod read_only;
mod record_cache;
mod repair;
mod restore;
mod small;
mod striped;
mod support;
mod threads;
mod unreadable;
mod versions;
mod walks;
