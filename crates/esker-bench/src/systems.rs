//! The systems of this crate: Esker's engines, and maps of the standard library as a floor.

mod depot;
mod flat;
mod flex;
mod index;
mod memory;
mod opened;

use crate::system::SystemKind;

/// All of them. An engine that lands is added here.
#[must_use]
pub fn all() -> Vec<SystemKind> {
    vec![depot::KIND, flat::KIND, flex::KIND, index::KIND, memory::HASHMAP, memory::BTREEMAP]
}
