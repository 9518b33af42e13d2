//! A store of Esker that was opened, as a system: what all engines share.

use crate::failure::{Failure, Outcome};
use crate::numbers::real;
use crate::system::{Counters, Durability, Session, System};
use esker::{Direction, EngineKind, Store};
use esker_trt::Runtime;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

/// The store, the run-time whose tasks are the clients if they are no threads, and what it was opened with.
pub(super) struct Opened {
    store: Store,
    runtime: Option<Arc<Runtime>>,
    options: BTreeMap<String, String>,
}

impl Opened {
    pub(super) fn new<const N: usize>(
        store: Store,
        runtime: Option<Arc<Runtime>>,
        options: [(&str, String); N],
    ) -> Box<Self> {
        let medium = ("medium".to_owned(), store.report());
        let said = options.into_iter().map(|(name, value)| (name.to_owned(), value));
        let said = said.chain([medium]);
        let runs = runtime.iter().map(|runtime| ("run-time".to_owned(), runtime.report()));
        Box::new(Opened { options: said.chain(runs).collect(), store, runtime })
    }
}

/// The same promise in the words of the library.
pub(super) fn durability(wanted: Durability) -> esker::Durability {
    match wanted {
        Durability::Sync => esker::Durability::Sync,
        Durability::Periodic => esker::Durability::Periodic(Duration::from_secs(1)),
        Durability::None => esker::Durability::None,
    }
}

impl System for Opened {
    fn session(&self) -> Outcome<Box<dyn Session>> {
        Ok(Box::new(Client { store: self.store.clone() }))
    }

    fn sync(&self) -> Outcome<()> {
        Ok(self.store.sync()?)
    }

    fn close(self: Box<Self>) -> Outcome<()> {
        self.store.close()?;
        match &self.runtime {
            Some(runtime) => Ok(runtime.shutdown()?),
            None => Ok(()),
        }
    }

    fn runtime(&self) -> Option<Arc<Runtime>> {
        self.runtime.clone()
    }

    fn options(&self) -> BTreeMap<String, String> {
        self.options.clone()
    }

    fn counters(&self) -> Counters {
        let stats = self.store.stats();
        let (device, memory) = (stats.device, stats.memory);
        let [_, _, cached] = stats.record_cache;
        let mut counters = Counters::from(
            [
                ("utilization", real(stats.live_bytes) / real(stats.capacity_bytes.max(1))),
                ("index_bytes", real(stats.index_bytes)),
                ("index_entries", real(stats.index_entries)),
                ("live_bytes", real(stats.live_bytes)),
                ("cached_bytes", real(cached)),
                ("free_segments", real(stats.free_segments)),
                ("device_writes_total", real(device.writes)),
                ("device_reads_total", real(device.reads)),
                ("device_write_bytes_total", real(device.write_bytes)),
                ("device_read_bytes_total", real(device.read_bytes)),
                ("device_prepare_bytes_total", real(device.prepare_bytes)),
                ("device_flushes_total", real(device.flushes)),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        );
        if matches!(self.store.engine(), EngineKind::FlatCceh | EngineKind::FlatMasstree) {
            counters.extend(
                [
                    ("flushed_lines_total", real(memory.flushed_lines)),
                    ("fences_total", real(memory.fences)),
                    ("media_blocks_total", real(memory.media_blocks)),
                ]
                .map(|(name, value)| (name.to_owned(), value)),
            );
        }
        counters
    }
}

struct Client {
    store: Store,
}

impl Session for Client {
    fn read(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        let value = self.store.get(key)?;
        if let Some(value) = &value {
            see(value);
        }
        Ok(value.is_some())
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
        if !self.store.is_ordered() {
            return Err(Failure::new("this engine keeps no order"));
        }
        let range = (Bound::Included(from), Bound::Unbounded);
        let limit = usize::try_from(limit)?;
        let count = self
            .store
            .scan_with(range, Direction::Forward, limit, |met| see(met.key, met.value))?;
        Ok(count as u64)
    }
}
