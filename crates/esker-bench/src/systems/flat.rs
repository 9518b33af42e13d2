//! `flat:cceh` and `flat:masstree`: small entries in logs on persistent memory, or on memory that stands in for it.

use crate::failure::Outcome;
use crate::numbers::{real, whole};
use crate::system::{Counters, Durability, OpenOptions, Session, System, SystemKind};
use esker::{Direction, EngineKind, Options, Store};
use std::collections::BTreeMap;
use std::ops::Bound;

pub(super) const KIND: SystemKind = SystemKind {
    name: "flat",
    about: "Esker's log of small entries on persistent memory, with a hash index or an ordered one",
    ordered: |variant| variant == Some("masstree"),
    fixed_capacity: true,
    persistent: true,
    promises: &Durability::ALL,
    keeps_values: true,
    value_size_max: 4 << 30,
    variants: &["cceh", "masstree"],
    open,
};

/// Bytes of an entry beside key and value, its share of a batch's padding included.
const RECORD_BYTES: f64 = 64.0;
/// Smallest store that is made, in bytes.
const SIZE_MIN_BYTES: u64 = 128 << 20;
/// How much larger a store is than its data if nothing else is said.
const SPARE: f64 = 3.0;

struct Flat {
    store: Store,
    size_bytes: u64,
    durability: Durability,
}

fn open(options: &OpenOptions) -> Outcome<Box<dyn System>> {
    let mut store = Options::new(&options.folder);
    store.engine = Some(match options.variant.as_deref() {
        Some("masstree") => EngineKind::FlatMasstree,
        _ => EngineKind::FlatCceh,
    });
    // Where the file is no persistent memory, it stands in for it.
    store.pmem_emulate = true;
    let live = real(options.data_bytes) + real(options.records) * RECORD_BYTES;
    let share = options.utilization.map_or(1.0 / SPARE, |share| share.clamp(0.01, 0.95));
    store.size_bytes = whole(live / share).max(SIZE_MIN_BYTES).next_multiple_of(4 << 20);
    let size_bytes = store.size_bytes;
    Ok(Box::new(Flat { store: Store::open(&store)?, size_bytes, durability: options.durability }))
}

impl System for Flat {
    fn session(&self) -> Outcome<Box<dyn Session>> {
        Ok(Box::new(Client { store: self.store.clone() }))
    }

    fn sync(&self) -> Outcome<()> {
        Ok(self.store.sync()?)
    }

    fn close(self: Box<Self>) -> Outcome<()> {
        Ok(self.store.close()?)
    }

    fn options(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            ("durability".to_owned(), format!("{}: sync all the same", self.durability)),
            ("size_bytes".to_owned(), self.size_bytes.to_string()),
            ("medium".to_owned(), self.store.report()),
            ("value cache".to_owned(), "none: the cache bytes are not used".to_owned()),
        ])
    }

    fn counters(&self) -> Counters {
        let stats = self.store.stats();
        let memory = stats.memory;
        Counters::from(
            [
                ("utilization", real(stats.live_bytes) / real(stats.capacity_bytes.max(1))),
                ("index_bytes", real(stats.index_bytes)),
                ("index_entries", real(stats.index_entries)),
                ("free_segments", real(stats.free_segments)),
                ("flushed_lines_total", real(memory.flushed_lines)),
                ("fences_total", real(memory.fences)),
                ("media_blocks_total", real(memory.media_blocks)),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        )
    }
}

struct Client {
    store: Store,
}

impl Session for Client {
    fn read(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        match self.store.get(key)? {
            Some(value) => {
                see(&value);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Outcome<()> {
        self.store.put(key, value)?;
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Outcome<()> {
        self.store.delete(key)?;
        Ok(())
    }

    fn scan(&mut self, from: &[u8], limit: u64, see: &mut dyn FnMut(&[u8], &[u8])) -> Outcome<u64> {
        let limit = usize::try_from(limit)?;
        let range = (Bound::Included(from), Bound::Unbounded);
        let count = self
            .store
            .scan_with(range, Direction::Forward, limit, |met| see(met.key, met.value))?;
        Ok(count as u64)
    }
}
