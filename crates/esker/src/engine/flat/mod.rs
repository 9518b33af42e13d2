//! `flat`: FlatStore on persistent memory.

pub(crate) mod batching;
