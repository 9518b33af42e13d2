//! What every engine can do, as `depot` does it.

use super::large;
use super::{Depot, RecordCache};
use crate::backup::BackupReport;
use crate::batch::Batch;
use crate::check::CheckReport;
use crate::engine::{Admit, Cursor, Engine, Items, Limits};
use crate::options::{EngineKind, Progress};
use crate::store::Stats;
use crate::value::{Condition, Outcome, PutOptions, Value};
use esker_base::ids::Version;
use esker_base::{Error, ErrorKind, Result};
use esker_format::depot::KEY_SIZE_MAX_BYTES;
use esker_media::{Archive, PmemCounters};
use esker_trt::Facility;

impl Engine for Depot {
    fn kind(&self) -> EngineKind {
        EngineKind::Depot
    }

    fn abandon(&self) {
        self.shut(&mut self.log.state.lock());
    }

    fn get(&self, key: &[u8], admit: Admit<'_>) -> Result<Option<Value>> {
        self.get_record(key, admit)
    }

    fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>> {
        self.get_records(keys)
    }

    fn get_pending(&self, key: &[u8]) -> Result<Option<Value>> {
        self.pending_value(key)
    }

    fn prefetch(&self, keys: &mut dyn Iterator<Item = &[u8]>) {
        let hashes: Vec<u64> = keys.map(|key| self.hash(key)).collect();
        self.index.lookup_many(&hashes, |_, _| ());
    }

    fn read_size(&self, key: &[u8]) -> u64 {
        Depot::read_size(self, key)
    }

    fn put(&self, key: &[u8], value: &[u8], options: PutOptions) -> Result<Outcome> {
        self.put_record(key, value, options.attributes, options.condition)
    }

    fn delete(&self, key: &[u8], version: Option<Version>) -> Result<bool> {
        let condition = version.map_or(Condition::Present, Condition::VersionIs);
        Ok(matches!(self.delete_record(key, condition)?, Outcome::Stored(_)))
    }

    fn write(&self, batch: &Batch) -> Result<Version> {
        self.write_atomic(batch)
    }

    fn evict(&self, segments: usize) -> Result<usize> {
        self.evict_now(segments)
    }

    fn trim(&self) -> Result<u64> {
        self.trim_free(0, usize::MAX)
    }

    fn clean(&self, segments: usize) -> Result<usize> {
        self.clean_now(segments)
    }

    fn clean_full(&self, number: usize) -> Result<bool> {
        Depot::clean_full(self, number)
    }

    fn clear(&self) -> Result<()> {
        self.clear_records()
    }

    fn walk(&self, from: Cursor) -> Result<(Items, Option<Cursor>)> {
        self.begin("walk")?;
        Ok(self.walk_part(&from))
    }

    fn write_out(&self) -> Result<()> {
        Depot::write_out(self)
    }

    fn checkpoint(&self) -> Result<bool> {
        self.begin("checkpoint")?;
        self.write_checkpoint()
    }

    fn sync(&self) -> Result<()> {
        self.begin("sync")?;
        self.flush_published()
    }

    fn close(&self) -> Result<()> {
        self.closing.once(|| {
            self.background.stop();
            self.log_writer.stop();
            let closed = self.close_log();
            self.background.join();
            self.log_writer.join();
            closed.and_then(|()| self.complete_open())?;
            if self.log.failure().is_none()
                && let Err(error) = self.close_checkpoint()
            {
                // The log is whole: the next open reads that.
                tracing::warn!(%error, "writing a checkpoint failed");
            }
            self.end_close()
        })
    }

    fn end(&self) {
        self.background.stop();
        self.log_writer.stop();
        self.background.join();
        self.log_writer.join();
    }

    fn stats(&self) -> Stats {
        Stats {
            items: self.items(),
            has_more_items: false,
            tombstones: self.tombstones(),
            live_bytes: self.segments.live().1,
            capacity_bytes: self.layout.segment_size * u64::from(self.layout.segment_count),
            segments: u64::from(self.layout.segment_count),
            free_segments: self.segments.free_count() as u64,
            index_entries: self.index.len(),
            index_capacity: self.index.capacity(),
            index_bytes: self.index.memory_bytes() as u64,
            last_version: self.last_version(),
            device: self.device.counters(),
            memory: PmemCounters::default(),
            cache: self.superblock.cache,
            evictions: self.evictions.get(),
            record_cache: self.record_cache.as_ref().map_or([0; 3], RecordCache::figures),
            read_only: self.log.failure().map(|error| error.to_string()),
        }
    }

    fn check(&self) -> Result<CheckReport> {
        self.begin("check")?;
        Ok(self.check_store())
    }

    fn backup(&self, archive: &dyn Archive, progress: &Progress) -> Result<BackupReport> {
        self.backup_store(archive, progress)
    }

    fn report(&self) -> String {
        self.device.report()
    }

    fn facilities(&self) -> Vec<Facility> {
        if self.device.answers_at_once() {
            vec![Facility::Inline, Facility::Aio, Facility::Uring, Facility::Sync]
        } else if self.device.is_nowait() {
            Facility::ALL.to_vec()
        } else {
            vec![Facility::Aio, Facility::Uring, Facility::Sync]
        }
    }

    fn limits(&self) -> Limits {
        let batch = self.layout.value_max(KEY_SIZE_MAX_BYTES);
        Limits {
            key_size_bytes: KEY_SIZE_MAX_BYTES,
            value_size_bytes: large::VALUE_SIZE_MAX_BYTES,
            batch_size_bytes: usize::try_from(batch).unwrap_or(usize::MAX),
        }
    }
}

impl Depot {
    pub(super) fn begin(&self, operation: &'static str) -> Result<()> {
        if self.log.is_closed() { Err(Error::new(ErrorKind::Closed, operation)) } else { Ok(()) }
    }
}
