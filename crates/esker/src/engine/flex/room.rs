//! Room for what is put. When a store is full, what does not count any more makes way first: the writer brings leaves of which much
//! has expired, or is dead, together, and waits for that rather than fail.
//!
//! What is put finds segments for all that is stored and in tables before it is taken: a file system that is full refuses puts, not
//! the commit of what was acknowledged.
//!
//! Large values, which are written before they are in any table, reserve what they take: of many that come at once no more are
//! admitted than there is room for, and what is spare stays spare.
//!
//! A leaf of which nothing is left takes no room to be removed. One of which something is left takes as much as that has: those
//! with the least come first, and a share of the capacity is never given to puts.
//!
//! # Concurrency
//! By the writer, before it has the turn of its key. One at a time looks, under the committer's lock; the others find the room
//! that it made.
//!
//! # Failure
//! Leaves are rewritten as by the sweep. Who finds nothing fails, and until time has passed the next one does so at once.

use super::Flex;
use super::commit::Committer;
use super::index::{LeafSums, Place};
use super::sweep::{Sweep, TABLE_SHARE};
use crate::flex::live_bytes_max;
use esker_base::clock::Clock;
use esker_base::units::format_size_bytes;
use esker_base::{Error, ErrorKind, Result};
use esker_format::flex::SpaceShape;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What puts leave to deletes, and to leaves that are written anew, whose old bytes count until the new ones are there: a share
/// of all as one in so many, but no less than a segment and no more than some.
const SPARE_SHARE: u64 = 16;
const SPARE_SEGMENTS_MAX: u64 = 4;
/// Bytes of nodes that pairs in scattered places bring, as one in so many of theirs: an extent each, in two versions of a node.
const NODES_SHARE: u64 = 2;
/// What deletes may take of what is spare: what is stored, as one part in so many.
const DELETES_SHARE: u64 = 8;
/// Percent of a leaf that may not count, in the order in which leaves make way, and those of all leaves for which somebody looks.
const GONE_PERCENT: [u64; 4] = [90, 40, 10, 2];
const GONE_PERCENT_OF_ALL: u64 = 1;
/// Leaves that are written anew to learn whether more is dead than is known.
const PROBES: usize = 16;
/// What a table that is larger than the options say is of what is stored, as one in so many: a table that touches all of that
/// makes it stand twice for a moment. And what it takes of the room that is left.
const TABLE_SHARE_OF_STORED: u64 = 8;
const TABLE_SHARE_OF_ROOM: u64 = 16;
/// Room that is made at once, as one in so many of the capacity.
const AT_ONCE_SHARE: u64 = 256;
/// How long a writer looks when there is room for it, and when there is none.
const TIME: Duration = Duration::from_millis(20);
const TIME_MAX: Duration = Duration::from_millis(500);
/// How long nobody looks after one found nothing, within the same second; and if something was written since.
const PAUSE: Duration = Duration::from_millis(250);
const PAUSE_WHILE_WRITING: Duration = Duration::from_millis(20);

/// When somebody looked for room and found none.
#[derive(Clone, Copy, Debug)]
struct Looked {
    /// Wall time.
    unix_seconds: u64,
    monotonic: Duration,
    /// The last version that was given until then.
    version: u64,
}

/// See [`Looked`].
#[derive(Debug, Default)]
pub(super) struct Fruitless(Mutex<Option<Looked>>);

impl Fruitless {
    /// Whether that was only now.
    fn is_recent(&self, clock: &dyn Clock, now: u64) -> bool {
        let is_recent =
            |last: Looked| last.unix_seconds == now && clock.monotonic() < last.monotonic + PAUSE;
        self.0.lock().is_some_and(is_recent)
    }

    /// Whether something was written since: what was deleted may make room.
    fn was_written_since(&self, version: u64) -> bool {
        self.0.lock().is_some_and(|last| last.version < version)
    }

    /// How long nobody looks although something was written.
    fn left(&self, clock: &dyn Clock) -> Duration {
        let until = self.0.lock().map_or(Duration::ZERO, |last| last.monotonic);
        (until + PAUSE_WHILE_WRITING).saturating_sub(clock.monotonic())
    }
}

/// Bytes of large values that were admitted and are not in the space yet.
#[derive(Debug, Default)]
pub(super) struct Reservations(AtomicU64);

impl Reservations {
    fn try_change(&self, before: u64, after: u64) -> bool {
        self.0.compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Bytes that are reserved for large values until they are in the space, or this is dropped.
#[derive(Debug)]
pub(super) struct Reserved<'f> {
    all: &'f Reservations,
    left: u64,
}

impl Reserved<'_> {
    /// So many of them are in the space, and counted there.
    pub(super) fn spend(&mut self, bytes: u64) {
        let bytes = bytes.min(self.left);
        self.left -= bytes;
        self.all.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.spend(self.left);
    }
}

/// What a store of some capacity may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Most live bytes of the space.
    most: u64,
    /// Bytes of these that puts leave to deletes, and to leaves that are written anew.
    pub(super) spare: u64,
}

impl Bounds {
    pub(super) fn new(capacity_bytes: u64, shape: &SpaceShape) -> Bounds {
        let segment = shape.segment_size_bytes;
        let most = live_bytes_max(shape, capacity_bytes / segment);
        let spare = (most / SPARE_SHARE).clamp(segment, SPARE_SEGMENTS_MAX * segment);
        Bounds { most, spare }
    }

    /// Bytes for which the file is to have segments before puts are taken: what is stored, what is new, the nodes that this brings, and what
    /// is spare. At most all that the store may have.
    fn backed(self, stored: u64, new: u64) -> u64 {
        (stored + new + new / NODES_SHARE + self.spare).min(self.most)
    }
}

/// Refuses a size for a new store that leaves nothing for puts.
///
/// # Errors
/// `InvalidArgument`.
pub(super) fn plan(size_bytes: u64, shape: &SpaceShape) -> Result<()> {
    let segment = shape.segment_size_bytes;
    let is_enough = |count: &u64| {
        let Bounds { most, spare } = Bounds::new(count * segment, shape);
        most > spare
    };
    if is_enough(&(size_bytes / segment)) {
        return Ok(());
    }
    let least = (1..=u64::from(u16::MAX)).find(is_enough).unwrap_or(0) * segment;
    let words = format!(
        "{size_bytes} bytes are too few: a store of flex needs {}",
        format_size_bytes(least)
    );
    Err(Error::invalid("format store", words))
}

impl Flex {
    /// Bytes of the space that intervals and large values take.
    pub(super) fn stored_bytes(&self) -> u64 {
        self.index.size_bytes() + self.large.size_bytes()
    }

    /// Bytes of tables that are on their way to the space.
    pub(super) fn table_bytes(&self) -> u64 {
        self.tables().all().map(|table| table.bytes()).sum()
    }

    /// Most bytes of the space that puts take: what the store may have, or what the file system has if that is less, without what is
    /// spare.
    fn stored_bytes_max(&self) -> u64 {
        let Bounds { most, spare } = self.bounds;
        let most = if self.space.is_full() { most.min(self.space.room()) } else { most };
        most.saturating_sub(spare)
    }

    /// Bytes of a table that is only a share of what is stored, and of the room that is left.
    pub(super) fn table_bytes_within_room(&self) -> u64 {
        let stored = self.stored_bytes();
        let left = self.stored_bytes_max().saturating_sub(stored + self.coming_bytes());
        (stored / TABLE_SHARE_OF_STORED).min(left / TABLE_SHARE_OF_ROOM)
    }

    /// Bytes that intervals may take so that puts find room for two tables.
    pub(super) fn room_of_intervals(&self) -> u64 {
        let others = self.large.size_bytes() + 2 * self.options.memtable_size_bytes;
        self.stored_bytes_max().saturating_sub(others)
    }

    /// Whether so many bytes more are within what puts may take, and the file system has segments for all.
    fn has_room(&self, bytes: u64) -> bool {
        let (stored, new) = (self.stored_bytes(), self.coming_bytes() + bytes);
        stored + new <= self.stored_bytes_max()
            && self.bounds.backed(stored, new) <= self.space.room()
    }

    /// Whether so many bytes more are within what puts may take.
    fn is_within(&self, bytes: u64) -> bool {
        self.stored_bytes() + self.coming_bytes() + bytes <= self.stored_bytes_max()
    }

    /// Whether what is stored takes of what is spare: of all that comes now nothing may add to it that could make it less.
    pub(super) fn is_tight(&self) -> bool {
        self.stored_bytes() > self.stored_bytes_max()
    }

    /// Bytes that were admitted, and are on their way to the space.
    pub(super) fn coming_bytes(&self) -> u64 {
        self.table_bytes() + self.reservations.0.load(Ordering::Relaxed)
    }

    /// Bytes that segments are kept for when others are given back: those that come, and what is spare, of which deletes take no more than a
    /// share of what there is to be deleted.
    pub(super) fn expected_bytes(&self) -> u64 {
        self.coming_bytes() + self.bounds.spare.min(self.stored_bytes() / DELETES_SHARE)
    }

    /// As [`Flex::has_room`], once the file system gave what is missing. One that had none is asked again now and then.
    fn grow_for(&self, bytes: u64) -> Result<bool> {
        if self.space.is_full() && self.fruitless.is_recent(&*self.clock, self.clock.now()) {
            return Ok(false);
        }
        self.reach(bytes)
    }

    /// Asks the file system for what is missing, whenever it was asked last. Whether there is room then.
    fn reach(&self, bytes: u64) -> Result<bool> {
        while self.space.reach(self.bytes_backed(bytes))? {
            if self.has_room(bytes) {
                return Ok(true);
            }
            if !self.is_within(bytes) {
                break;
            }
            // Other puts took meanwhile what was reached for.
        }
        Ok(false)
    }

    /// See [`Bounds::backed`], with so many bytes more in tables.
    fn bytes_backed(&self, bytes: u64) -> u64 {
        self.bounds.backed(self.stored_bytes(), self.coming_bytes() + bytes)
    }

    /// Allocates segments for another table of so many bytes, and half as many more, as far as the file system has some: a put that had to
    /// would wait for the committer.
    pub(super) fn grow_ahead(&self, bytes: u64) -> Result<()> {
        self.space.reach(self.bytes_backed(bytes + bytes / 2)).map(drop)
    }

    /// Refuses a put for which there is no room, before anything happened.
    pub(super) fn admit(&self, bytes: usize) -> Result<()> {
        self.wal.check()?;
        let bytes = bytes as u64;
        if self.has_room(bytes) || self.grow_for(bytes)? || self.find_room(bytes)? {
            return Ok(());
        }
        Err(self.full(bytes))
    }

    /// As [`Flex::admit`], for large values that take so many bytes in the space: they are reserved.
    pub(super) fn admit_large(&self, bytes: u64) -> Result<Reserved<'_>> {
        self.wal.check()?;
        loop {
            let before = self.reservations.0.load(Ordering::Relaxed);
            if self.has_room(bytes) {
                // What others reserved meanwhile was not counted.
                if self.reservations.try_change(before, before + bytes) {
                    return Ok(Reserved { all: &self.reservations, left: bytes });
                }
            } else if !self.grow_for(bytes)? && !self.find_room(bytes)? {
                return Err(self.full(bytes));
            }
        }
    }

    /// Reserves so many bytes, whether there is room for them or not.
    pub(super) fn reserve(&self, bytes: u64) -> Reserved<'_> {
        self.reservations.0.fetch_add(bytes, Ordering::Relaxed);
        Reserved { all: &self.reservations, left: bytes }
    }

    /// As [`Flex::admit`], for who holds the committer's lock.
    pub(super) fn admit_as_is(&self, bytes: usize) -> Result<()> {
        self.wal.check()?;
        let bytes = bytes as u64;
        if self.has_room(bytes) || self.grow_for(bytes)? { Ok(()) } else { Err(self.full(bytes)) }
    }

    /// There is no room for so many bytes, be it that the store has no more or the file system.
    fn full(&self, bytes: u64) -> Error {
        let error = Error::new(ErrorKind::NoSpace, "put").device(self.name.clone());
        let taken = self.stored_bytes() + self.coming_bytes();
        if !self.space.is_full() || taken + bytes > self.bounds.most - self.bounds.spare {
            return error;
        }
        let [taken, all] = [taken, self.capacity_bytes].map(format_size_bytes);
        error.context(format!("the file system is full, and the store has {taken} of its {all}"))
    }

    /// A snapshot is gone: what stayed for it makes room for whoever needs some next.
    pub(super) fn note_released(&self) {
        self.large.ask_again();
        *self.fruitless.0.lock() = None;
    }

    /// Makes room for so many bytes out of what does not count any more. Whether there is some.
    fn find_room(&self, bytes: u64) -> Result<bool> {
        let mut now = self.clock.now();
        let version = self.wal.last_version();
        if self.fruitless.is_recent(&*self.clock, now) {
            if !self.fruitless.was_written_since(version) {
                return Ok(false);
            }
            esker_trt::sleep(self.fruitless.left(&*self.clock));
            now = self.clock.now();
            if self.has_room(bytes) {
                return Ok(true);
            }
        }
        let mut found = self.look_for_room(bytes, now)?;
        // What replaces or deletes others has to be in the space before these go, be it on its way there by now.
        if found != Some(true) && self.table_bytes() > 0 {
            self.commit_all()?;
            found = self.look_for_room(bytes, now)?;
        }
        // Others may have made some since.
        if found == Some(true) || self.has_room(bytes) {
            return Ok(true);
        }
        // A backup has to begin anew then, and nobody else has to do without.
        if self.release_backup() {
            tracing::warn!("the store is full: a backup of it ends without success");
            return self.find_room(bytes);
        }
        if found == Some(false) {
            let monotonic = self.clock.monotonic();
            *self.fruitless.0.lock() = Some(Looked { unix_seconds: now, monotonic, version });
        }
        Ok(false)
    }

    /// Whether there is room for so many bytes now, or some could be made; `None` if nobody looked, because a table is on its way,
    /// and there is nothing that would be worth waiting for it.
    fn look_for_room(&self, bytes: u64, now: u64) -> Result<Option<bool>> {
        let index = &self.index;
        let may_be_dead = index.appended_bytes() > index.size_bytes() / 100 * GONE_PERCENT_OF_ALL;
        let is_worth = may_be_dead
            || index.has_expired(now)
            || index.has_coarse()
            || self.large.is_doubted()
            || self.large.has_unasked();
        let mut committer = match self.committer.try_lock() {
            Some(committer) => committer,
            None if is_worth => self.committer.lock(),
            None => return Ok(None),
        };
        let has_room = |more| self.has_room(bytes + more);
        let is_made = has_room(0) || self.make_room(&mut committer, &has_room)?;
        drop(committer);
        // What is gone now may be what the file system was missing.
        Ok(Some(is_made || self.reach(bytes)?))
    }

    /// Brings leaves together of which much does not count, until there is room as `has_room` says, and for some bytes more. Whether
    /// there is. The committer's lock is held.
    pub(super) fn make_room(
        &self,
        committer: &mut Committer,
        has_room: &dyn Fn(u64) -> bool,
    ) -> Result<bool> {
        let (now, since) = (self.clock.now(), self.clock.monotonic());
        let passed = || self.clock.monotonic().saturating_sub(since);
        let goal = self.capacity_bytes / AT_ONCE_SHARE;
        // What was found by an open tells nothing before somebody looked inside.
        let mut from = Place::default();
        while passed() < TIME_MAX
            && let Ok(Some(leaf)) = self.refine_next(from)
        {
            from = leaf;
        }
        self.collect_doubted(committer)?;
        while passed() < TIME_MAX / 2
            && !(has_room(0) && has_room(goal))
            && self.collect_found(&committer.root)?
        {}
        if !self.is_worth_looking(committer, now)? {
            return Ok(has_room(0));
        }
        for percent in GONE_PERCENT {
            let mut at = Vec::new();
            loop {
                if has_room(0) && (has_room(goal) || passed() > TIME) {
                    return Ok(true);
                }
                if passed() > TIME_MAX || self.wal.check().is_err() {
                    return Ok(has_room(0));
                }
                // What was appended may all be dead; how much of it is on average says little of this leaf.
                let is_gone = |leaf: &LeafSums| {
                    let gone = (leaf.appended, leaf.expired);
                    Sweep::default().is_much(gone, leaf.size as u64, percent)
                };
                let Some(key) = self.index.next_leaf(&at, now, &is_gone) else { break };
                let behind = match self.sweep_leaf(committer, &key, now, &is_gone) {
                    // What is left of this one finds no room; the next one may be smaller.
                    Err(error) if error.kind() == ErrorKind::NoSpace => {
                        self.index.neighbours(&key, (0, now), &|_, _| false).upper
                    }
                    done => done?,
                };
                match behind {
                    Some(behind) => at = behind,
                    None => break,
                }
            }
        }
        Ok(has_room(0))
    }

    /// Whether enough does not count. If little is known to be dead, some leaves tell whether that is still so: a store that was
    /// filled, and then is written over, has no room for the commits that would tell.
    fn is_worth_looking(&self, committer: &mut Committer, now: u64) -> Result<bool> {
        // Not the first ones again: those that cannot be read, or are too few to be rewritten, tell nothing.
        let mut at = Some(Vec::new());
        for _ in 0..PROBES {
            let (appended, size) = (self.index.appended_bytes(), self.index.size_bytes());
            let gone = (appended, self.index.expired_bytes(now));
            if committer.sweep.is_much(gone, size, GONE_PERCENT_OF_ALL) {
                return Ok(true);
            }
            let may_be_gone =
                |leaf: &LeafSums| leaf.appended > leaf.size as u64 * GONE_PERCENT_OF_ALL / 100;
            let next = |at: Vec<u8>| self.index.next_leaf(&at, now, &may_be_gone);
            let Some(key) = at.take().and_then(next) else { break };
            at = match self.sweep_leaf(committer, &key, now, &may_be_gone) {
                Err(error) if error.kind() == ErrorKind::NoSpace => break,
                done => done?,
            };
        }
        Ok(false)
    }

    /// Whether so much of the table may have expired that it is worth bringing it to the space, where that is left out.
    pub(super) fn has_expired_table(&self, now: u64) -> bool {
        let share = self.options.memtable_size_bytes / TABLE_SHARE;
        self.tables().active.expired_bytes(now) > share
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine;
    use crate::engine::flex::{ROOT_BYTES, TABLE_GROWN};
    use crate::options::{Durability, EngineKind, Options};
    use crate::value::PutOptions;

    /// What is known is that little is dead, and the leaves at the front tell nothing more.
    #[test]
    fn what_is_dead_is_found_behind_leaves_that_cannot_be_read() {
        const DAMAGED: u64 = 2 << 20;
        let folder = tempfile::tempdir().unwrap();
        let mut options = Options::new(folder.path());
        options.engine = Some(EngineKind::Flex);
        options.size_bytes = 64 << 20;
        options.durability = Durability::None;
        options.flex.memtable_size_bytes = 6 << 20;
        options.testing.background = false;
        let flex = Flex::open(&options).unwrap();
        let key = |number: u32| number.wrapping_mul(0x9E37_79B1).to_be_bytes();
        let put = |number: u32| flex.put(&key(number), &[7; 300], PutOptions::default());
        let count = (0..).find(|number| put(*number).is_err()).unwrap();
        for number in (0..count).filter(|number| number % 10 < 3) {
            flex.delete(&key(number), None).unwrap();
        }
        flex.commit_all().unwrap();
        // Leaves at the front to which much was appended.
        let may_be_gone = |leaf: &LeafSums| leaf.appended > leaf.size as u64 / 100;
        let (mut at, mut damaged) = (Vec::new(), 0);
        while damaged < DAMAGED {
            let first = flex.index.next_leaf(&at, 0, &may_be_gone).unwrap();
            let leaf = flex.index.neighbours(&first, (0, 0), &|_, _| true);
            let middle = ROOT_BYTES + leaf.offset + leaf.size_bytes() / 2;
            flex.space.write(middle, &[0x55; 64]).unwrap();
            damaged += leaf.size_bytes();
            at = leaf.upper.unwrap();
        }
        // As if the table had only looked at leaves to which nothing was new.
        let mut committer = flex.committer.lock();
        committer.sweep.learn(1 << 20, 0, 1 << 10);
        // However often somebody looks at the first one.
        for _ in 0..PROBES {
            let first = flex.index.next_leaf(&[], 0, &may_be_gone).unwrap();
            flex.sweep_leaf(&mut committer, &first, 0, &may_be_gone).unwrap();
        }
        let gone = (flex.index.appended_bytes(), 0);
        let size = flex.index.size_bytes();
        assert!(!committer.sweep.is_much(gone, size, GONE_PERCENT_OF_ALL), "{gone:?} of {size}");
        assert!(flex.is_worth_looking(&mut committer, flex.clock.now()).unwrap());
    }

    #[test]
    fn a_table_grows_while_nothing_is_kept_of_what_was_read_and_there_is_room() {
        const TABLE: u64 = 256 << 10;
        let folder = tempfile::tempdir().unwrap();
        let mut options = Options::new(folder.path());
        options.engine = Some(EngineKind::Flex);
        options.size_bytes = 128 << 20;
        options.durability = Durability::None;
        options.flex.memtable_size_bytes = TABLE;
        options.flex.cache_size_bytes = 4 * TABLE;
        options.testing.background = false;
        let flex = Flex::open(&options).unwrap();
        assert_eq!(flex.next_table_bytes(), TABLE, "nothing is stored");
        let key = |number: u32| format!("key {number:08}").into_bytes();
        let keys = 50_000;
        for number in 0..keys {
            flex.put(&key(number), &[7; 100], PutOptions::default()).unwrap();
        }
        flex.commit_all().unwrap();
        assert_eq!(flex.next_table_bytes(), TABLE_GROWN * TABLE);
        assert_eq!(flex.tables().active.size_bytes, TABLE_GROWN * TABLE);
        // What is read is kept, up to what the options say for it, and tables are as these say for them.
        for number in (0..keys).chain(0..keys) {
            flex.get(&key(number), &mut |_| Ok(())).unwrap();
        }
        let kept = flex.index.cached_bytes();
        assert!(kept > 3 * TABLE, "{kept} bytes are kept");
        let unused = (4 * TABLE).saturating_sub(kept);
        assert_eq!(flex.next_table_bytes(), TABLE + unused / 2);
        // A large value leaves little room.
        let left = flex.stored_bytes_max() - flex.stored_bytes();
        flex.put(
            b"large",
            &vec![1; usize::try_from(left * 8 / 10).unwrap()],
            PutOptions::default(),
        )
        .unwrap();
        assert!(flex.table_bytes_within_room() < left / 64);
        flex.close().unwrap();
    }
}
