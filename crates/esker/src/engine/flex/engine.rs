//! What every engine can do, as `flex` does it.

use super::{Flex, large};
use crate::backup::BackupReport;
use crate::batch::Batch;
use crate::check::CheckReport;
use crate::engine::{Admit, Cursor, Engine, Items, Limits};
use crate::options::{EngineKind, Progress};
use crate::store::{Direction, Met, Stats};
use crate::value::{Outcome, PutOptions, Value};
use esker_base::ids::Version;
use esker_base::{Error, ErrorKind, Result};
use esker_format::flex_db::KEY_SIZE_MAX_BYTES;
use esker_media::Archive;
use esker_trt::Facility;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::Ordering;

impl Engine for Flex {
    fn abandon(&self) {
        self.closed.store(true, Ordering::Release);
    }

    fn get(&self, key: &[u8], admit: Admit<'_>) -> Result<Option<Value>> {
        self.get_at(key, u64::MAX, admit)
    }

    fn get_pending(&self, key: &[u8]) -> Result<Option<Value>> {
        self.pending_value(key)
    }

    fn prefetch(&self, _keys: &mut dyn Iterator<Item = &[u8]>) {}

    fn read_size(&self, key: &[u8]) -> u64 {
        self.read_size_of(key)
    }

    fn put(&self, key: &[u8], value: &[u8], options: PutOptions) -> Result<Outcome> {
        self.put_if(key, value, options)
    }

    fn delete(&self, key: &[u8], version: Option<Version>) -> Result<bool> {
        self.delete_if(key, version)
    }

    fn clear(&self) -> Result<()> {
        self.delete_between("clear", &[], None)
    }

    fn delete_range(&self, from: &[u8], to: Option<&[u8]>) -> Result<()> {
        self.delete_between("delete range", from, to)
    }

    fn write(&self, batch: &Batch) -> Result<Version> {
        self.write_batch(batch)
    }

    fn clean(&self, segments: usize) -> Result<usize> {
        self.begin("clean")?;
        self.commit_all()?;
        Ok(usize::try_from(self.compact(segments as u64)?).unwrap_or(usize::MAX))
    }

    fn checkpoint(&self) -> Result<bool> {
        // What the next open needs is kept as it goes.
        self.begin("checkpoint")?;
        Ok(false)
    }

    fn evict(&self, _segments: usize) -> Result<usize> {
        Err(Error::new(ErrorKind::Unsupported, "evict").context("flex is no cache"))
    }

    fn trim(&self) -> Result<u64> {
        self.begin("trim")?;
        self.space.trim()
    }

    fn kind(&self) -> EngineKind {
        EngineKind::Flex
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        direction: Direction,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Value)>> {
        self.begin("scan")?;
        let mut items = Vec::new();
        if limit > 0 {
            self.scan_at((from, to), direction, limit, u64::MAX, &mut |met| {
                items.push((met.key.to_vec(), met.to_value()));
                if items.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
        }
        Ok(items)
    }

    fn scan_with(
        &self,
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        limit: usize,
        show: &mut dyn FnMut(Met<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.begin("scan")?;
        self.scan_at((from, to), direction, limit, u64::MAX, show)
    }

    fn snapshot(&self) -> Result<u64> {
        self.begin("snapshot")?;
        Ok(self.wal.drain(|version| self.snapshots.add(version)))
    }

    fn release(&self, snapshot: u64) {
        self.snapshots.remove(snapshot);
        self.note_released();
    }

    fn get_as_of(&self, key: &[u8], snapshot: u64) -> Result<Option<Value>> {
        self.get_at(key, snapshot, &mut |_| Ok(()))
    }

    fn scan_as_of(
        &self,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        limit: usize,
        snapshot: u64,
        show: &mut dyn FnMut(Met<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.begin("scan")?;
        self.scan_at(range, direction, limit, snapshot, show)
    }

    fn walk(&self, from: Cursor) -> Result<(Items, Option<Cursor>)> {
        self.begin("walk")?;
        self.walk_part(&from)
    }

    fn write_out(&self) -> Result<()> {
        if self.keeps_log() { self.wal.write_all(false) } else { self.commit_all() }
    }

    fn sync(&self) -> Result<()> {
        self.begin("sync")?;
        self.wal.check()?;
        if self.keeps_log() { self.wal.write_all(true) } else { self.commit_all() }
    }

    fn tidy(&self) -> Result<()> {
        while self.defragment()? {}
        self.settle_at_rest().map(|_| ())
    }

    fn close(&self) -> Result<()> {
        self.closing.once(|| {
            if self.closed.swap(true, Ordering::AcqRel) {
                // It was abandoned.
                return Ok(());
            }
            self.bring_to_rest()
        })
    }

    /// Closes a store that nobody closed: under `none` there is no log, and its table would be lost. Not when the engine is
    /// dropped: until the table is in the space, the space may ask for a log of it (`late`).
    fn end(&self) {
        self.background.stop();
        self.log_writer.stop();
        self.helper.stop();
        self.background.join();
        self.log_writer.join();
        self.helper.join();
        // Who closed it was told what went wrong.
        if !self.is_closed()
            && let Err(error) = self.close()
        {
            tracing::warn!(%error, "closing the store failed");
        }
    }

    fn stats(&self) -> Stats {
        let space = self.space.stat();
        let tables: u64 = self.tables().all().map(|table| table.len()).sum();
        let devices = [space.data, space.tree, space.log].into_iter().chain(self.wal.counters());
        Stats {
            items: self.index.pairs() + tables,
            has_more_items: self.index.has_coarse(),
            live_bytes: space.data_bytes,
            capacity_bytes: self.capacity_bytes,
            segments: space.segments,
            free_segments: space.free_segments,
            index_entries: self.index.intervals(),
            index_capacity: self.index.intervals(),
            index_bytes: self.index.memory_bytes() + self.large.memory_bytes(),
            last_version: Version(self.wal.last_version()),
            device: devices.sum(),
            record_cache: [0, 0, self.index.cached_bytes()],
            read_only: self.wal.failure().or(self.space.failure()).map(|error| error.to_string()),
            ..Stats::default()
        }
    }

    fn check(&self) -> Result<CheckReport> {
        self.begin("check")?;
        self.commit_all()?;
        self.check_all()
    }

    fn backup(&self, archive: &dyn Archive, progress: &Progress) -> Result<BackupReport> {
        self.backup_store(archive, progress)
    }

    fn report(&self) -> String {
        let moved = self.space.stat().moved_bytes;
        // Whoever asks does not wait for a table.
        let committed = self.committer.try_lock().map(|committer| {
            let (appended, rewritten) = (committer.appended_bytes, committer.rewritten_bytes);
            format!("{appended} bytes appended, {rewritten} written anew")
        });
        let committed = committed.unwrap_or_else(|| "a table on its way".to_owned());
        format!(
            "{}; {}; {}; {committed}, {moved} moved",
            self.space.report(),
            self.wal.report(),
            self.scrubbed.report()
        )
    }

    fn facilities(&self) -> Vec<Facility> {
        Facility::ALL.to_vec()
    }

    fn limits(&self) -> Limits {
        Limits {
            key_size_bytes: KEY_SIZE_MAX_BYTES,
            value_size_bytes: large::VALUE_SIZE_MAX_BYTES,
            batch_size_bytes: self.wal.batch_size_max(),
        }
    }
}
