//! What every engine can do, as `flat` does it.

use super::scan::{self, Item};
use super::{CLOSED, Flat};
use crate::backup::BackupReport;
use crate::batch::Batch;
use crate::check::CheckReport;
use crate::engine::{Admit, Cursor, Engine, Items, Limits};
use crate::options::{EngineKind, Progress};
use crate::store::{Direction, Met, Stats};
use crate::value::{Condition, Outcome, PutOptions, Value};
use esker_base::ids::Version;
use esker_base::{Error, ErrorKind, Result};
use esker_format::flat::{KEY_SIZE_MAX_BYTES, VALUE_SIZE_MAX_BYTES};
use esker_media::Archive;
use esker_trt::Facility;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::Ordering;

impl Engine for Flat {
    fn kind(&self) -> EngineKind {
        if self.index.is_ordered() { EngineKind::FlatMasstree } else { EngineKind::FlatCceh }
    }

    fn is_ordered(&self) -> bool {
        self.kind() == EngineKind::FlatMasstree
    }

    fn abandon(&self) {
        self.state.store(CLOSED, Ordering::Release);
    }

    fn get(&self, key: &[u8], admit: Admit<'_>) -> Result<Option<Value>> {
        self.get_value(key, admit)
    }

    fn get_pending(&self, key: &[u8]) -> Result<Option<Value>> {
        // Its writes take no longer than to ask.
        self.check_key(key, "get")?;
        self.check_open().map(|()| None)
    }

    fn prefetch(&self, keys: &mut dyn Iterator<Item = &[u8]>) {
        let keys: Vec<(u64, &[u8])> = keys.map(|key| (self.hasher.hash(key), key)).collect();
        self.index.prefetch(&keys);
        let words = keys.iter().filter_map(|(hash, key)| self.index.guess(*hash, key));
        words.for_each(|word| self.prefetch_entry(word));
    }

    fn read_size(&self, key: &[u8]) -> u64 {
        self.value_size(key)
    }

    fn put(&self, key: &[u8], value: &[u8], options: PutOptions) -> Result<Outcome> {
        self.put_value(key, value, options.attributes, options.condition)
    }

    fn delete(&self, key: &[u8], version: Option<Version>) -> Result<bool> {
        let condition = version.map_or(Condition::Present, Condition::VersionIs);
        Ok(matches!(self.delete_key(key, condition)?, Outcome::Stored(_)))
    }

    fn clear(&self) -> Result<()> {
        self.clear_all()
    }

    fn write(&self, batch: &Batch) -> Result<Version> {
        self.write_atomic(batch)
    }

    fn clean(&self, segments: usize) -> Result<usize> {
        self.clean_now(segments)
    }

    fn evict(&self, _segments: usize) -> Result<usize> {
        Err(Error::new(ErrorKind::Unsupported, "evict").context("engine flat is no cache"))
    }

    fn trim(&self) -> Result<u64> {
        // Persistent memory has nothing to be told of.
        self.refuse().map(|()| 0)
    }

    fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        direction: Direction,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Value)>> {
        let mut items = Vec::with_capacity(limit.min(scan::PART));
        self.scan_each((from, to), direction, limit, |key, value| {
            items.push((key.to_vec(), value.into_value()));
            if items.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(items)
    }

    fn scan_with(
        &self,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        limit: usize,
        show: &mut dyn FnMut(Met<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.scan_each(range, direction, limit, |key, item| match item {
            Item::Here(met) => show(met),
            Item::Read(value) => show(Met::of(key, &value)),
        })
    }

    fn walk(&self, from: Cursor) -> Result<(Items, Option<Cursor>)> {
        self.walk_part(&from)
    }

    fn write_out(&self) -> Result<()> {
        self.refuse()
    }

    fn sync(&self) -> Result<()> {
        // Whatever was acknowledged is durable.
        self.refuse()
    }

    fn close(&self) -> Result<()> {
        self.closing.once(|| {
            let closed = self.close_store();
            // So that the memory is free for the next opener.
            self.join_background();
            closed
        })
    }

    fn end(&self) {
        self.join_background();
    }

    fn checkpoint(&self) -> Result<bool> {
        self.write_checkpoint()
    }

    fn stats(&self) -> Stats {
        let tombstones = self.tombstones.load(Ordering::Relaxed);
        let unswept = self.unswept.load(Ordering::Relaxed);
        Stats {
            items: self.index.len().saturating_sub(unswept).saturating_sub(tombstones),
            tombstones,
            live_bytes: self.live_bytes(),
            capacity_bytes: self.layout.chunk_size * u64::from(self.layout.chunk_count - 1),
            segments: u64::from(self.layout.chunk_count - 1),
            free_segments: self.chunks.free_count() as u64,
            index_entries: self.index.len(),
            index_capacity: self.index.capacity(),
            index_bytes: self.index.memory_bytes(),
            last_version: self.last_version(),
            memory: self.memory.counters(),
            read_only: self.failure.lock().as_ref().map(ToString::to_string),
            ..Stats::default()
        }
    }

    fn check(&self) -> Result<CheckReport> {
        self.check_store()
    }

    fn backup(&self, archive: &dyn Archive, progress: &Progress) -> Result<BackupReport> {
        self.backup_store(archive, progress)
    }

    fn report(&self) -> String {
        self.memory.report()
    }

    fn facilities(&self) -> Vec<Facility> {
        Facility::ALL.to_vec()
    }

    fn limits(&self) -> Limits {
        Limits {
            key_size_bytes: KEY_SIZE_MAX_BYTES,
            value_size_bytes: usize::try_from(VALUE_SIZE_MAX_BYTES).unwrap_or(usize::MAX),
            batch_size_bytes: self.layout.batch_room(),
        }
    }
}
