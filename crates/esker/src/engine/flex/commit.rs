//! The committer: a sealed table goes to the space, key by key in order (FlexSpace §5.3).
//!
//! ```text
//! 1. the log of the table is durable              (who sealed the table sees to it)
//! 2. runs are appended to intervals, intervals are rewritten, split, merged
//! 3. the root names the generation                ─ sync of the space
//! 4. only now: the table goes, and its log may be written over
//! ```
//!
//! What falls into one interval is appended to it as a run, without reading it. Neighbours with many runs are read together,
//! merged and written anew in their place (`stretch`); an interval that has very many before is by itself.
//!
//! # Failure
//! A crash before step 3 leaves some of the table in the space; the log has all of it, and brings it there again: pairs
//! have versions, so that changes nothing.

use super::cursor::TableCursor;
use super::expired::{Expired, add_expiry};
use super::index::{Fresh, Located, tail_of_run};
use super::interval::{Interval, parts};
use super::memtable::{MemTable, RangeDelete, Versions};
use super::merge::{merge, pairs_of};
use super::open::versions_ahead;
use super::recover::ahead_by;
use super::snapshots::needed;
use super::stretch::Seen;
use super::sweep::Sweep;
use super::wal::tell_failure;
use super::{Flex, ROOT_BYTES, sites};
use crate::engine::expiries::Expiries;
use crate::flex::Splice;
use crate::store::Direction;
use esker_base::clock::Clock;
use esker_base::{Error, ErrorKind, Result};
use esker_format::Flaw;
use esker_format::flex_db::{Content, Key, Pair, Root, RunWriter};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

/// Most pairs and bytes that go to one interval at once; more are cut, so that no change of the space is large.
pub(super) const GROUP_PAIRS_MAX: u64 = 1024;
pub(super) const GROUP_BYTES_MAX: usize = 256 << 10;
/// What an interval that things are appended to may have: so many times as many appended pairs, and bytes, as one that is
/// new; and runs. Before it has so many, it is usually brought together with its neighbours.
const PAIRS_GROWN: u64 = 8;
const SIZE_GROWN: u64 = 12;
pub(super) const RUNS_MAX: u8 = 64;

/// Percent of what the space should be filled with, beyond which segments are collected between two tables: those that
/// are emptier cost less.
const FILL_WHILE_WRITING: u32 = 90;
/// Bytes that are moved for each one of a table while the next one waits: at that filling as many are moved as 2.6 times what comes
/// over what is there, if that is all over the space.
const COLLECTED_FOR_A_TABLE: u64 = 4;

/// What only the committer knows.
#[derive(Debug, Default)]
pub(super) struct Committer {
    pub(super) root: Root,
    pub(super) group: RunWriter,
    /// What of the group expires when.
    pub(super) expiries: Expiries,
    pub(super) data: Vec<u8>,
    /// What a stretch is read into.
    pub(super) bytes: Vec<u8>,
    pub(super) sweep: Sweep,
    pub(super) turn: Turn,
    /// Bytes that were appended and rewritten.
    pub(super) appended_bytes: u64,
    pub(super) rewritten_bytes: u64,
}

impl Committer {
    pub(super) fn new(root: Root) -> Self {
        Committer { root, ..Committer::default() }
    }
}

/// How long the committer works before it lets others have its processor, if any wait for one. As long as it works it is
/// not preempted for some milliseconds, and a get that comes to stand behind it would take as long.
const TURN: Duration = Duration::from_micros(100);

/// Since when the committer works.
#[derive(Debug, Default)]
pub(super) struct Turn(Duration);

impl Turn {
    pub(super) fn give_way(&mut self, clock: &dyn Clock) {
        if clock.monotonic().saturating_sub(self.0) >= TURN {
            esker_trt::yield_now();
            self.0 = clock.monotonic();
        }
    }
}

impl Flex {
    /// Brings the sealed table to the space, if there is one.
    pub(super) fn commit_sealed(&self) -> Result<bool> {
        let mut committer = self.committer.lock();
        let Some((table, gate)) = self.tables().sealed.clone() else { return Ok(false) };
        // Everybody who has a place in its log is in the table.
        self.wal.drain(|_| ());
        // PERSIST: the log of the table, before any of it may be durable in the space (L4). Under `periodic` nobody of the
        //          table waited for that.
        let sealed = self.wal.wait_sealed(table.generation);
        let ready = sealed.and_then(|()| self.grow_ahead(table.bytes()));
        self.hold(&table);
        let before = committer.appended_bytes;
        let done = ready.and_then(|()| self.commit_where_there_is_room(&mut committer, &table));
        let done = done.and_then(|()| {
            let mut root = committer.root;
            root.committed_generation = table.generation;
            root.last_version = self.tables().active.first_version.saturating_sub(1);
            let ahead = versions_ahead(self.durability, self.options.memtable_size_bytes);
            // PERSIST: everything of the table, and that it is there, before its log is written over.
            self.space.write(0, &ahead_by(&root, ahead).encode())?;
            self.space.release();
            if !sites::WAL_WAIT.disabled() {
                self.space.sync()?;
            }
            committer.root = root;
            if let Err(error) = self.collect_large(&root, Some(&table)) {
                tracing::warn!(%error, "large values that nobody needs stay for now");
            }
            Ok(())
        });
        let (appended, table_bytes) = (committer.appended_bytes - before, table.bytes());
        committer.sweep.end(appended);
        self.loose.earn(appended, self.space.stat().data_bytes);
        let mut is_told = false;
        let done = match done {
            Ok(()) => {
                *self.stuck.lock() = None;
                self.tables_mut().sealed = None;
                Ok(())
            }
            Err(error) => {
                *self.stuck.lock() = Some(error.clone());
                // What is refused for a moment changed nothing that another try would not change again.
                let may_pass = error.kind() == ErrorKind::NoSpace
                    || error.kind() == ErrorKind::Io && self.space.failure().is_none();
                is_told = !may_pass && self.wal.note_failure(&error);
                // Those who wait hear of it; the table stays, for another try.
                let again = Arc::new(esker_trt::sync::Gate::new());
                if let Some((_, current)) = &mut self.tables_mut().sealed {
                    *current = again;
                }
                Err(error)
            }
        };
        // Not before: whoever commits next must not find this table any more, for by the time it is done another one may
        // be in its place.
        drop(committer);
        gate.open();
        if let (true, Err(error)) = (is_told, &done) {
            tell_failure(error);
        }
        done?;
        self.retire(table);
        self.share_memory();
        if let Err(error) = self.sweep_expired(table_bytes.saturating_sub(appended)) {
            tracing::warn!(%error, "what has expired stays for now");
        }
        // What is not dense enough by then is collected while nobody writes. The next table waits for no more than keeps up with what
        // tables bring.
        let much = COLLECTED_FOR_A_TABLE * table_bytes.max(appended);
        let stop = |moved| {
            let waits = moved > much && self.tables().sealed.is_some();
            waits || self.background.is_stopping()
        };
        if let Err(error) = self.space.settle(FILL_WHILE_WRITING, &stop) {
            tracing::warn!(%error, "space is not collected");
        }
        Ok(true)
    }

    /// As `commit_table`; if the space is full, what does not count any more makes way first.
    fn commit_where_there_is_room(
        &self,
        committer: &mut Committer,
        table: &MemTable,
    ) -> Result<()> {
        match self.commit_table(committer, table) {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                let (before, wanted) = (self.stored_bytes(), table.bytes());
                let has_room = |more| self.stored_bytes() + wanted + more <= before;
                self.make_room(committer, &has_room)?;
                if self.stored_bytes() == before {
                    return Err(error);
                }
                // Pairs have versions: those that are there already are the same ones.
                self.commit_table(committer, table)
            }
            done => done,
        }
    }

    pub(super) fn commit_table(&self, committer: &mut Committer, table: &MemTable) -> Result<()> {
        let (ranges, again) = (table.ranges(), table.may_be_there());
        for range in &ranges {
            self.commit_range(committer, range, again)?;
        }
        if !ranges.is_empty() {
            self.index.pairs_kept.clear();
        }
        let mut entries = TableCursor::new(table, Bound::Unbounded, Direction::Forward);
        let mut seen = Seen::default();
        let now = self.clock.now();
        let gone = (self.index.appended_bytes(), self.index.expired_bytes(now));
        committer.sweep.begin(gone, now, self.index.size_bytes(), self.room_of_intervals());
        while let Some(first) = entries.key() {
            self.learn_at(committer, first)?;
            let stretch = self.stretch_of(committer, first, &mut seen)?;
            let located = self.locate(first)?;
            let upper = match &stretch {
                Some(stretch) => &stretch.upper,
                None => &located.upper,
            };
            let mut group = std::mem::take(&mut committer.group);
            group.restart(table.first_version);
            committer.expiries.clear();
            while let Some(key) = entries.key() {
                let beyond = upper.as_ref().is_some_and(|upper| **upper <= *key);
                let much = group.count() >= GROUP_PAIRS_MAX || group.size_bytes() > GROUP_BYTES_MAX;
                if beyond || much {
                    break;
                }
                if let Some(slot) = entries.slot() {
                    let to = (&mut group, &mut committer.expiries);
                    self.add_to_group(to, key, &slot.lock(), &ranges, now);
                }
                entries.next();
            }
            let done = match &stretch {
                Some(stretch) => self.rewrite_stretch(committer, stretch, Some(&group)),
                None => self.commit_group(committer, &located, &group),
            };
            self.tell_pairs(&group);
            table.note_brought(group.count());
            committer.group = group;
            done?;
            committer.turn.give_way(&*self.clock);
        }
        Ok(())
    }

    /// What is in memory of single pairs follows what came to the space. Whoever read the space before kept it before.
    fn tell_pairs(&self, group: &RunWriter) {
        if self.index.pairs_kept.bytes() == 0 || sites::PAIR_FOLLOWS.disabled() {
            return;
        }
        let mut last: Option<&[u8]> = None;
        for pair in group.pairs() {
            // Of a key the newest is first.
            let key = pair.key.rest();
            if last != Some(key) {
                let hash = self.hasher.hash(key);
                self.index.pairs_kept.replace(key, hash, pair.version, pair.content);
                last = Some(key);
            }
        }
    }

    /// Adds what counts of a key at this time.
    fn add_to_group(
        &self,
        (group, expiries): (&mut RunWriter, &mut Expiries),
        key: &[u8],
        known: &Versions,
        ranges: &[RangeDelete],
        now: u64,
    ) {
        let mut add = |version, content| {
            let key = Key::from(key);
            let content = add_expiry((key, version, content), now, expiries);
            group.push(&Pair { key, version, content });
        };
        if let (Some((version, content)), true) = (known.only(), ranges.is_empty()) {
            return add(version, content);
        }
        let snapshots = self.snapshots.all();
        let covering = ranges.iter().filter(|range| range.covers(key));
        let deletes = covering.map(|range| (range.version, Content::Delete));
        let mut all: Vec<(u64, Content<'_>)> = known.iter().chain(deletes).collect();
        all.sort_unstable_by_key(|(version, _)| std::cmp::Reverse(*version));
        let versions: Vec<u64> = all.iter().map(|(version, _)| *version).collect();
        needed(&versions, &snapshots, |index| {
            if let Some((version, content)) = all.get(index) {
                add(*version, *content);
            }
        });
    }

    /// The interval that holds `key`, one in which somebody has looked.
    pub(super) fn locate(&self, key: &[u8]) -> Result<Located> {
        loop {
            let located = self.index.locate(key);
            if !located.entry.is_coarse() {
                return Ok(located);
            }
            self.refine(&located.anchor)?;
        }
    }

    /// Looks inside the interval with this anchor, if nobody has: several come out. The committer's lock is held.
    pub(super) fn refine(&self, anchor: &[u8]) -> Result<()> {
        let located = self.index.locate(anchor);
        if !located.entry.is_coarse() {
            return Ok(());
        }
        let fresh = match self.look_into(&located) {
            Err(error) if error.is_unread() => {
                self.note_unread(&error);
                self.cut_at_marks(&located)?
            }
            fresh => fresh?,
        };
        self.index.replace(located.spot, 1, fresh);
        Ok(())
    }

    /// The intervals that a coarse one consists of.
    fn look_into(&self, located: &Located) -> Result<Vec<Fresh>> {
        let bytes = self.read_located(located)?;
        let damaged = |flaw: Flaw| self.damaged(&flaw.to_string());
        let parts = parts(&bytes).map_err(damaged)?;
        let mut fresh: Vec<Fresh> = Vec::with_capacity(parts.len());
        for part in &parts {
            let anchor = if fresh.is_empty() { &located.anchor } else { part.anchor };
            let is_within = fresh.last().is_none_or(|before| *before.anchor < *anchor)
                && located.upper.as_ref().is_none_or(|upper| *anchor < **upper);
            if !is_within {
                return Err(self.damaged("an anchor is out of order"));
            }
            let anchor = anchor.to_vec();
            fresh.push(Fresh { anchor, ..self.fresh_of(part).map_err(damaged)? });
        }
        Ok(fresh)
    }

    /// The bytes of an interval. The committer's lock is held, so they stay where they are.
    pub(super) fn read_located(&self, located: &Located) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let place = (ROOT_BYTES + located.offset, located.entry.size as usize);
        let read = self.space.read_where(&mut || Some(place), &mut bytes)?;
        if read != Some(bytes.len()) {
            return Err(self.damaged("an interval is behind the end of the space"));
        }
        Ok(bytes)
    }

    pub(super) fn interval_of(&self, located: &Located) -> Result<Arc<Interval>> {
        if let Some(interval) = &located.entry.cached {
            return Ok(Arc::clone(interval));
        }
        self.decode(self.read_located(located)?).map(Arc::new)
    }

    pub(super) fn decode(&self, bytes: Vec<u8>) -> Result<Interval> {
        Interval::decode(bytes, &self.hasher).map_err(|flaw| self.damaged(&flaw.to_string()))
    }

    fn commit_group(
        &self,
        committer: &mut Committer,
        located: &Located,
        group: &RunWriter,
    ) -> Result<()> {
        if group.count() == 0 {
            return Ok(());
        }
        let entry = &located.entry;
        let pairs_max = u64::from(self.options.interval_pairs_max);
        let size_max = u64::from(self.options.interval_size_bytes_max);
        let appended = u64::from(entry.appended) + group.count();
        let size = u64::from(entry.size) + group.size_bytes() as u64;
        let fits = appended <= (PAIRS_GROWN * pairs_max).min(200)
            && size <= SIZE_GROWN * size_max
            && entry.runs < RUNS_MAX;
        // Of an interval of which most is deleted little is left to be written, and scans go past it no more.
        let deletes =
            || group.pairs().filter(|pair| pair.content == Content::Delete).count() as u64;
        let is_emptied = self.snapshots.oldest() == u64::MAX
            && 2 * group.count() >= u64::from(entry.pairs)
            && 2 * deletes() >= u64::from(entry.pairs);
        if entry.is_unread() {
            self.keep_unread(committer, located, Some(group), None)
        } else if is_emptied {
            self.rewrite(committer, located, Some(group), None)
        } else if fits && entry.runs > 0 && !self.is_tight() {
            self.append_run(committer, located, group)
        } else {
            self.rewrite(committer, located, Some(group), None)
        }
    }

    pub(super) fn append_run(
        &self,
        committer: &mut Committer,
        located: &Located,
        group: &RunWriter,
    ) -> Result<()> {
        let data = &mut committer.data;
        data.clear();
        group.finish(None, data);
        let mut cached = match &located.entry.cached {
            Some(interval) => {
                let appended = interval.append(data, &self.hasher);
                Some(Arc::new(appended.map_err(|flaw| self.damaged(&flaw.to_string()))?))
            }
            None => None,
        };
        let before = usize::try_from(located.entry.size).unwrap_or(usize::MAX);
        self.interval_size(before.saturating_add(data.len()))?;
        let size = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let count = u16::try_from(group.count()).unwrap_or(u16::MAX);
        let known = tail_of_run(size, group.pairs(), &self.hasher);
        let offset = ROOT_BYTES + located.offset + u64::from(located.entry.size);
        let splice = Splice { offset, remove: 0, data, marks: &[] };
        committer.appended_bytes += u64::from(size);
        committer.sweep.earn(u64::from(size));
        self.space.splice(&splice, &mut || {
            let of_run = (count, &*known, &committer.expiries);
            self.index.grow(located.spot, size, of_run, cached.take());
        })
    }

    /// Merges an interval with what is new, and writes it anew, in as many pieces as it takes; one that cannot be read stays, and what
    /// is new comes behind it. What `erase` covers goes.
    pub(super) fn rewrite(
        &self,
        committer: &mut Committer,
        located: &Located,
        group: Option<&RunWriter>,
        erase: Option<&RangeDelete>,
    ) -> Result<()> {
        match self.readable(located)? {
            Some(first) => self.rewrite_read(committer, located, &first, group, erase),
            None => self.keep_unread(committer, located, group, erase),
        }
    }

    /// As `rewrite`, of an interval that was read.
    pub(super) fn rewrite_read(
        &self,
        committer: &mut Committer,
        located: &Located,
        first: &Interval,
        group: Option<&RunWriter>,
        erase: Option<&RangeDelete>,
    ) -> Result<()> {
        let mut keeps = located.entry.cached.is_some();
        let (moment, mut expired) = (self.moment(), Expired::default());
        let pairs_max = self.options.interval_pairs_max as usize;
        let size_max = self.options.interval_size_bytes_max as usize;
        let mut count = 1;
        let mut remove = u64::from(located.entry.size);
        let mut merged = merge(pairs_of(first, group), erase, &moment, &mut expired);
        // What became small takes the next interval along; of what became nothing, nothing is written.
        let left = merged.len();
        let second;
        if left * 2 < pairs_max
            && (left > 0 || located.anchor.is_empty())
            && let Some(next) = self.index.next(located.spot)
            && !next.entry.is_coarse()
            && usize::from(next.entry.pairs) + left <= pairs_max
            && next.entry.size as usize + located.entry.size as usize <= size_max
            && group.is_none_or(|group| group.size_bytes() <= size_max)
            && let Some(interval) = self.readable(&next)?
        {
            second = interval;
            merged.extend(merge(pairs_of(&second, None), erase, &moment, &mut expired));
            keeps |= next.entry.cached.is_some();
            count = 2;
            remove += u64::from(next.entry.size);
        }
        let pairs = (pairs_max, size_max);
        let merged = (&*merged, &moment);
        let (marks, fresh) = self.cut(committer, merged, &located.anchor, pairs, |_| keeps)?;
        committer.rewritten_bytes += committer.data.len() as u64;
        let offset = ROOT_BYTES + located.offset;
        let splice = Splice { offset, remove, data: &committer.data, marks: &marks };
        let mut fresh = Some(fresh);
        let done = self.space.splice(&splice, &mut || {
            self.index.replace(located.spot, count, fresh.take().unwrap_or_default());
        });
        self.index.make_room();
        done?;
        self.large.doubt(&expired.large);
        Ok(())
    }

    /// Why the committer gets no further, if it does not.
    pub(super) fn check_stuck(&self) -> Result<()> {
        match &*self.stuck.lock() {
            Some(error) => Err(Error::new(error.kind(), "write").source(error.clone())),
            None => Ok(()),
        }
    }
}
