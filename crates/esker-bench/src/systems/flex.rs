//! `flex`: the ordered engine; clients are threads.

use super::opened::{Opened, durability};
use crate::failure::Outcome;
use crate::system::{Durability, OpenOptions, System, SystemKind};
use esker::{EngineKind, Options, Store};

pub(super) const KIND: SystemKind = SystemKind {
    name: "flex",
    about: "Esker's ordered store on a flexible address space",
    ordered: |_| true,
    fixed_capacity: false,
    persistent: true,
    promises: &Durability::ALL,
    keeps_values: true,
    value_size_max: 4 << 30,
    variants: &[],
    open,
};

/// How much larger than its data the store may become, and the least that it may, in bytes.
const SPARE: u64 = 4;
const SIZE_MIN_BYTES: u64 = 1 << 30;
/// Bytes of a record beside key and value, about.
const RECORD_BYTES: u64 = 32;

fn open(options: &OpenOptions) -> Outcome<Box<dyn System>> {
    let mut with = Options::new(&options.folder);
    with.engine = Some(EngineKind::Flex);
    let data = options.data_bytes + options.records * RECORD_BYTES;
    with.size_bytes = (data * SPARE).max(SIZE_MIN_BYTES).next_multiple_of(4 << 20);
    with.durability = durability(options.durability);
    // As for peers with tables of writes: half for them, half for what is read.
    with.flex.memtable_size_bytes = options.cache_bytes / 4;
    with.flex.cache_size_bytes = options.cache_bytes / 2;
    let said = [
        ("durability", options.durability.to_string()),
        ("memtable", format!("{} bytes, two", with.flex.memtable_size_bytes)),
        ("interval cache", format!("{} bytes", with.flex.cache_size_bytes)),
    ];
    Ok(Opened::new(Store::open(&with)?, None, said))
}
