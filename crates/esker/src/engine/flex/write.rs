//! Writes: a place in the log, then in the table (FlexSpace §5.3).
//!
//! # Concurrency
//! Writers of one key take turns ([`pending`](super::pending)), so a condition is decided on what the write follows. With `sync` the
//! value is seen by anybody only when the log is durable: what was read once survives. Who writes the key before that decides on what is on
//! its way, and waits for nobody's flush but its own.

use super::large::{Staged, VALUE_SIZE_MAX_BYTES};
use super::memtable::{BatchGate, MemTable, RangeDelete};
use super::pending::{Latest, VALUE_BYTES_MAX, Way};
use super::read::{attributes_of, extra_of};
use super::wal::{Appended, Ticket};
use super::{Flex, Tables};
use crate::batch::{Batch, Change};
use crate::options::Durability;
use crate::value::{Condition, Outcome, PutOptions, Value};
use esker_base::ids::Version;
use esker_base::{Error, ErrorKind, Result};
use esker_format::flex_db::{Change as Logged, Content, Extra, KEY_SIZE_MAX_BYTES};
use esker_trt::sync::Gate;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most bytes of a change beside key and value.
const CHANGE_OVERHEAD: usize = 48;

/// Range deletes of a table, but for those of several threads at once: the next one goes to another table.
const RANGES_MAX: usize = 256;

/// After so many changes, or one of so many bytes, memory is shared anew.
const SHARED_CHANGES: u64 = 32;
const SHARED_BYTES: usize = 4096;

/// A change on its way.
struct Write<'a> {
    key: &'a [u8],
    hash: u64,
    content: Content<'a>,
    condition: Condition,
}

/// What a decision on a key rests on.
struct Known {
    /// Of its value.
    version: Option<u64>,
    /// The changes that this is of, if they are on their way.
    way: Option<Way>,
}

/// Why a write is refused, and which changes on their way this rests on.
struct Refused {
    outcome: Outcome,
    way: Option<Way>,
}

impl Write<'_> {
    fn size_bytes(&self) -> usize {
        let value = match self.content {
            Content::Put(_, value) => value.len(),
            _ => 0,
        };
        self.key.len() + value + CHANGE_OVERHEAD
    }
}

impl Flex {
    pub(super) fn check_key(&self, operation: &'static str, key: &[u8]) -> Result<()> {
        if self.is_closed() {
            return Err(Error::new(ErrorKind::Closed, operation));
        }
        if key.is_empty() || key.len() > KEY_SIZE_MAX_BYTES {
            let words = format!("a key has 1 to {KEY_SIZE_MAX_BYTES} bytes");
            return Err(Error::invalid(operation, words));
        }
        Ok(())
    }

    fn check_value(value: &[u8]) -> Result<()> {
        if value.len() > VALUE_SIZE_MAX_BYTES {
            let words = format!("a value has up to {VALUE_SIZE_MAX_BYTES} bytes");
            return Err(Error::invalid("put", words));
        }
        Ok(())
    }

    /// Whether a value stands by itself.
    fn is_large(&self, value: &[u8]) -> bool {
        let most = self.options.large_value_size_bytes.min(self.wal.batch_size_max() as u64 / 2);
        value.len() as u64 > most
    }

    /// What a decision on a key is to rest on. The caller has the key's turn, if it means to write.
    fn known_of(&self, key: &[u8], hash: u64) -> Result<Known> {
        // In this order: what is pending keeps its table here, and those behind it.
        let covered = self.tables().all().map(|table| table.covered(key, u64::MAX)).max();
        if let Some(latest) = self.pending.latest(hash, key) {
            let exists = latest.exists && covered < Some(latest.version);
            let exists = exists && !self.clock.is_expired(latest.expires_at);
            let version = exists.then_some(latest.version);
            return Ok(Known { version, way: Some(latest.way) });
        }
        let look = |version: u64, content: Content<'_>| match content {
            Content::Put(Extra { expires_at, .. }, _)
            | Content::Large(Extra { expires_at, .. }, ..) => {
                (!self.clock.is_expired(expires_at.checked_sub(1))).then_some(version)
            }
            Content::Delete => None,
        };
        Ok(Known { version: self.find(key, hash, u64::MAX, look)?, way: None })
    }

    /// Why a write of `key` is refused, if it is.
    fn refusal(&self, condition: Condition, key: &[u8], hash: u64) -> Result<Option<Refused>> {
        if condition == Condition::Always {
            return Ok(None);
        }
        let Known { version, way } = self.known_of(key, hash)?;
        Ok(condition.refused(version.map(Version)).map(|outcome| Refused { outcome, way }))
    }

    /// Tells of a refusal, when what it rests on counts. The caller has no turn.
    fn refuse(&self, refused: &Refused) -> Result<Outcome> {
        if let Some(way) = &refused.way {
            way.ended.wait();
            self.wal.wait_durable(way.batch)?;
        }
        Ok(refused.outcome)
    }

    /// What a change on its way gives `key`, if that is to be had.
    pub(super) fn pending_value(&self, key: &[u8]) -> Result<Option<Value>> {
        self.check_key("get", key)?;
        let value = self.pending.value(self.hasher.hash(key), key);
        Ok(value.filter(|value| !self.clock.is_expired(value.attributes().expires_at)))
    }

    pub(super) fn put_if(&self, key: &[u8], value: &[u8], options: PutOptions) -> Result<Outcome> {
        self.check_key("put", key)?;
        Flex::check_value(value)?;
        let hash = self.hasher.hash(key);
        let mut reserved = None;
        if self.is_large(value) {
            reserved = Some(self.admit_large(Flex::large_size(key, value))?);
        } else {
            self.admit(key.len() + value.len())?;
        }
        self.pace();
        let extra = extra_of(&options.attributes);
        let (content, mut staged) = if let Some(reserved) = &mut reserved {
            // Asked again in its turn: writing takes long, and others may write the key meanwhile.
            if let Some(refused) = self.refusal(options.condition, key, hash)? {
                return self.refuse(&refused);
            }
            let staged = self.stage(key, value, reserved)?;
            (Content::Large(extra, staged.number, value.len() as u64), Some(staged))
        } else {
            (Content::Put(extra, value), None)
        };
        let write = [Write { key, hash, content, condition: options.condition }];
        let done = loop {
            let turn = self.pending.take(hash);
            if let Some(refused) = self.refusal(options.condition, key, hash)? {
                drop(turn);
                return self.refuse(&refused);
            }
            if let Some(done) = self.write_all(turn, &write, staged.as_mut_slice()).transpose() {
                break done;
            }
        };
        Ok(Outcome::Stored(Version(done?)))
    }

    pub(super) fn delete_if(&self, key: &[u8], wanted: Option<Version>) -> Result<bool> {
        self.check_key("delete", key)?;
        self.wal.check()?;
        self.pace();
        let hash = self.hasher.hash(key);
        let condition = wanted.map_or(Condition::Present, Condition::VersionIs);
        let write = [Write { key, hash, content: Content::Delete, condition }];
        loop {
            let turn = self.pending.take(hash);
            if let Some(refused) = self.refusal(condition, key, hash)? {
                drop(turn);
                self.refuse(&refused)?;
                return Ok(false);
            }
            if self.write_all(turn, &write, &mut [])?.is_some() {
                return Ok(true);
            }
        }
    }

    pub(super) fn write_batch(&self, batch: &Batch) -> Result<Version> {
        // Of several changes of one key the last one counts.
        let mut changes = std::collections::BTreeMap::new();
        for (key, change) in batch.changes() {
            self.check_key("write batch", key)?;
            if let Change::Put(value, _) = change {
                Flex::check_value(value)?;
            }
            changes.insert(key, change);
        }
        let large = |(key, change): (&&[u8], &Change<'_>)| match change {
            Change::Put(value, _) if self.is_large(value) => Flex::large_size(key, value),
            _ => 0,
        };
        let large_bytes: u64 = changes.iter().map(large).sum();
        let mut writes = Vec::with_capacity(changes.len());
        for (key, change) in &changes {
            let content = match *change {
                // It has its number once it is there.
                Change::Put(value, attributes) if self.is_large(value) => {
                    Content::Large(extra_of(&attributes), 0, value.len() as u64)
                }
                Change::Put(value, attributes) => Content::Put(extra_of(&attributes), value),
                Change::Delete => Content::Delete,
            };
            let (hash, condition) = (self.hasher.hash(key), Condition::Always);
            writes.push(Write { key, hash, content, condition });
        }
        let size: usize = writes.iter().map(Write::size_bytes).sum();
        if size > self.wal.batch_size_max() {
            let words = format!("a batch has up to {} bytes", self.wal.batch_size_max());
            return Err(Error::invalid("write batch", words));
        }
        let mut reserved = self.reserve(0);
        if large_bytes > 0 {
            reserved = self.admit_large(large_bytes)?;
        }
        let mut staged = Vec::new();
        for (write, change) in writes.iter_mut().zip(changes.values()) {
            if let (Content::Large(_, number, _), Change::Put(value, _)) =
                (&mut write.content, change)
            {
                let large = self.stage(write.key, value, &mut reserved)?;
                *number = large.number;
                staged.push(large);
            }
        }
        if writes.is_empty() {
            self.begin("write batch")?;
            return Ok(Version(self.wal.last_version()));
        }
        // A full store still deletes.
        let puts = writes.iter().filter(|write| !matches!(write.content, Content::Delete));
        match puts.map(Write::size_bytes).sum() {
            0 => self.wal.check()?,
            size => self.admit(size)?,
        }
        self.pace();
        let done = loop {
            let turns = self.pending.take_several(writes.iter().map(|write| write.hash));
            if let Some(done) = self.write_all(turns, &writes, &mut staged).transpose() {
                break done;
            }
        };
        let first = done?;
        Ok(Version(first + writes.len() as u64 - 1))
    }

    /// Puts changes into the log, all at once, and then into the table. Version of the first one; `None` to come again. `turns` are those
    /// of their keys, `staged` the large values that they name.
    fn write_all<T>(
        &self,
        turns: T,
        writes: &[Write<'_>],
        staged: &mut [Staged<'_>],
    ) -> Result<Option<u64>> {
        let size_bytes = writes.iter().map(Write::size_bytes).sum();
        let appended = self.append(size_bytes, writes.len() as u64, |log| {
            for write in writes {
                log.push(&Logged::Set(write.key, write.content));
            }
        })?;
        let ticket = match appended {
            Appended::Done(ticket) => ticket,
            Appended::Full(generation) => {
                drop(turns);
                self.change_table(generation)?;
                return Ok(None);
            }
        };
        let versions = || (ticket.first_version..).zip(writes);
        // Several count for readers at once.
        let gate = (writes.len() > 1).then(|| Arc::new(AtomicBool::new(false)));
        let open = || gate.iter().for_each(|gate| gate.store(true, Ordering::Release));
        if self.durability == Durability::Sync {
            let is_several = writes.len() > 1;
            let way = Way { batch: ticket.batch, ended: Arc::default(), is_several };
            let begun = versions().map(|(version, write)| self.begin_pending(version, write, &way));
            let batches: Vec<Way> = begun.flatten().collect();
            drop(turns);
            let durable = self.wal.wait_durable(ticket.batch);
            if durable.is_ok() {
                // P4.
                batches.iter().for_each(|before| before.ended.wait());
                for (version, write) in versions() {
                    self.pending.alone(write.hash, || {
                        self.insert(&ticket.table, version, write, gate.clone());
                    });
                }
                open();
            }
            // Only now: who does not find the key among these looks into the tables.
            writes.iter().for_each(|write| self.pending.end((write.key, write.hash)));
            way.ended.open();
            if let Err(error) = durable {
                // Nobody knows whether the log names them.
                let generation = ticket.table.generation;
                staged.iter_mut().for_each(|staged| staged.keep(generation, true));
                self.wal.leave(&ticket);
                return Err(error);
            }
        } else {
            for (version, write) in versions() {
                self.insert(&ticket.table, version, write, gate.clone());
            }
            open();
            drop(turns);
        }
        // While the table waits for this writer: others may have written the keys already, there or in the next one.
        staged.iter_mut().for_each(|staged| staged.keep(ticket.table.generation, false));
        self.go_on(&ticket, writes.len() as u64, size_bytes);
        Ok(Some(ticket.first_version))
    }

    fn begin_pending(&self, version: u64, write: &Write<'_>, way: &Way) -> Option<Way> {
        let (exists, extra) = match write.content {
            Content::Put(extra, _) | Content::Large(extra, ..) => (true, extra),
            Content::Delete => (false, Extra::default()),
        };
        let attributes = attributes_of(&extra);
        let latest =
            Latest { version, exists, expires_at: attributes.expires_at, way: way.clone() };
        let is_changed = matches!(write.condition, Condition::Absent | Condition::VersionIs(_));
        self.pending.begin((write.key, write.hash), latest, |is_wanted| match write.content {
            Content::Put(_, value)
                if (is_changed || is_wanted) && value.len() <= VALUE_BYTES_MAX =>
            {
                Some(Value::small(value, Version(version), attributes))
            }
            _ => None,
        })
    }

    fn insert(&self, table: &MemTable, version: u64, write: &Write<'_>, gate: BatchGate) {
        let keep = |version, newer| self.snapshots.may_see(version, newer);
        table.insert((write.key, write.hash), (version, write.content), gate, keep);
    }

    pub(super) fn delete_between(
        &self,
        operation: &'static str,
        from: &[u8],
        to: Option<&[u8]>,
    ) -> Result<()> {
        if self.is_closed() {
            return Err(Error::new(ErrorKind::Closed, operation));
        }
        if from.len().max(to.map_or(0, <[u8]>::len)) > KEY_SIZE_MAX_BYTES {
            let words = format!("an end of a range has up to {KEY_SIZE_MAX_BYTES} bytes");
            return Err(Error::invalid(operation, words));
        }
        if to.is_some_and(|to| to <= from) {
            return Ok(());
        }
        // Every get looks at all of them.
        let (generation, ranges) = {
            let tables = self.tables();
            (tables.active.generation, tables.active.range_count())
        };
        if ranges >= RANGES_MAX {
            self.change_table(generation)?;
        }
        let size_bytes = from.len() + to.map_or(0, <[u8]>::len) + CHANGE_OVERHEAD;
        loop {
            // Everybody's turn: conditions that are being decided see all of it or nothing.
            let turns = self.pending.take_all();
            let batches = self.pending.batches();
            let range = Logged::DeleteRange(from, to);
            let ticket = match self.append(size_bytes, 1, |log| log.push(&range))? {
                Appended::Done(ticket) => ticket,
                Appended::Full(generation) => {
                    drop(turns);
                    self.change_table(generation)?;
                    continue;
                }
            };
            if self.durability == Durability::Sync
                && let Err(error) = self.wal.wait_durable(ticket.batch)
            {
                self.wal.leave(&ticket);
                return Err(error);
            }
            // P4.
            batches.iter().for_each(|before| before.ended.wait());
            ticket.table.delete_range(RangeDelete {
                from: from.to_vec(),
                to: to.map(<[u8]>::to_vec),
                version: ticket.first_version,
            });
            drop(turns);
            self.go_on(&ticket, 1, size_bytes);
            return Ok(());
        }
    }

    /// A place in the log for `count` changes, which `write` appends.
    fn append(
        &self,
        size_bytes: usize,
        count: u64,
        write: impl Fn(&mut esker_format::flex_db::WalWriter),
    ) -> Result<Appended> {
        match self.keeps_log() {
            true => self.wal.append(size_bytes, count, &write),
            false => self.wal.pass(size_bytes, count),
        }
    }

    /// Changes are in their table: what is due then.
    fn go_on(&self, ticket: &Ticket, count: u64, size_bytes: usize) {
        self.wal.leave(ticket);
        // The write took place, whatever happens to the log and the tables behind it: the next one hears of that.
        if let Err(error) = self.try_go_on(ticket, count, size_bytes) {
            tracing::warn!(%error, "a write took place, and the next one may not");
        }
    }

    fn try_go_on(&self, ticket: &Ticket, count: u64, size_bytes: usize) -> Result<()> {
        let Ticket { table, first_version, .. } = ticket;
        // Now and then: what tables take is asked of lines of memory that every writer changes.
        let turn = |version: u64| version / SHARED_CHANGES;
        if size_bytes > SHARED_BYTES || turn(*first_version) != turn(first_version + count) {
            self.share_memory();
        }
        if let Durability::Periodic(_) = self.durability {
            self.wal.write_if_much()?;
        }
        match table.has_grown(1) {
            false => Ok(()),
            true if table.has_grown(2) => self.change_table(table.generation),
            true => self.table_is_full(table.generation),
        }
    }

    /// Begins another table if the one before is in the space already; else this one grows on, until the log is full or its tree is too
    /// large.
    fn table_is_full(&self, generation: u64) -> Result<()> {
        let is_free = {
            let tables = self.tables();
            tables.active.generation == generation && tables.sealed.is_none()
        };
        if is_free || !self.background.is_running() {
            return self.change_table(generation);
        }
        Ok(())
    }

    /// Begins another table, when there is room for it, unless somebody did.
    pub(super) fn change_table(&self, generation: u64) -> Result<()> {
        loop {
            self.wal.check()?;
            let sealed = {
                let tables = self.tables();
                if tables.active.generation != generation {
                    return Ok(());
                }
                tables.sealed.clone()
            };
            match sealed {
                None => {
                    let _turn = self.rotating.lock();
                    let is_due = {
                        let tables = self.tables();
                        tables.active.generation == generation && tables.sealed.is_none()
                    };
                    if is_due {
                        self.rotate()?;
                        self.background.wake();
                    }
                }
                Some((_, gate)) if self.background.is_running() => {
                    gate.wait();
                    self.check_stuck()?;
                }
                Some(_) => drop(self.commit_sealed()?),
            }
        }
    }

    /// Seals the table, with its log, and begins the next one.
    fn rotate(&self) -> Result<()> {
        let size = self.next_table_bytes();
        self.wal.rotate(
            self.keeps_log(),
            |generation, first_version| {
                Arc::new(MemTable::new(generation, first_version, size, false))
            },
            |old, new| {
                let sealed = Some((Arc::clone(old), Arc::new(Gate::new())));
                *self.tables_mut() = Tables { active: Arc::clone(new), sealed };
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine;
    use crate::engine::flex::{opened_in, opened_with};
    use crate::store::Direction;
    use crate::value::PutOptions;
    use std::ops::{Bound, ControlFlow};

    #[test]
    fn snapshots_that_follow_each_other_keep_no_more_than_they_see() {
        let folder = tempfile::tempdir().unwrap();
        let flex = opened_with(&folder, Durability::None);
        let put = |number: u32| {
            flex.put(b"key", &number.to_be_bytes(), PutOptions::default()).unwrap();
        };
        put(0);
        let mut before = flex.snapshot().unwrap();
        for number in 1..3000_u32 {
            put(number);
            put(number);
            let snapshot = flex.snapshot().unwrap();
            let found = flex.get_as_of(b"key", before).unwrap().unwrap();
            assert_eq!(found.as_ref(), (number - 1).to_be_bytes());
            let table = Arc::clone(&flex.tables().active);
            let mut items = 0;
            table.visit(Bound::Unbounded, Direction::Forward, 1, |_, word| {
                items = table.slot(word).unwrap().lock().iter().count();
                ControlFlow::Break(())
            });
            assert!((1..=3).contains(&items), "{items} versions in round {number}");
            flex.release(std::mem::replace(&mut before, snapshot));
        }
    }

    #[test]
    fn a_table_has_no_more_range_deletes_than_a_get_can_look_at() {
        let folder = tempfile::tempdir().unwrap();
        let flex = opened_in(&folder);
        let key = |number: u32| number.to_be_bytes();
        for number in 0..3000 {
            flex.put(&key(number), b"value", PutOptions::default()).unwrap();
            if number % 3 == 2 {
                flex.delete_range(&key(number - 2), Some(&key(number))).unwrap();
            }
            let ranges = flex.tables().all().map(|table| table.ranges().len()).max();
            assert!(ranges <= Some(RANGES_MAX), "{ranges:?}");
        }
        for number in 0..3000 {
            let found = flex.get(&key(number), &mut |_| Ok(())).unwrap();
            assert_eq!(found.is_some(), number % 3 == 2, "{number}");
        }
    }
}
