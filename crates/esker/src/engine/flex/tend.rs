//! What is done for intervals while the committer rests: those in many places are brought together (FlexSpace §5.2, §5.3),
//! and everything is read and verified, little by little.
//!
//! Bringing a leaf together pays only if reads come by again, which nobody knows. So it happens once reads have paid as much
//! in vain as it costs to write it: whatever they do, that is at most twice what the best choice would have cost. Gets read one run
//! (`index/tails`) and pay nothing; scans do.
//!
//! # Concurrency
//! By the background thread, under the committer's lock, for one leaf at a time.
//!
//! # Failure
//! An interval is rewritten as by the committer: a crash leaves the old or the new one. Damage is told, and left as it is.

use super::commit::Committer;
use super::index::Ahead;
use super::interval::parts;
use super::large::Reading;
use super::memtable::MemTable;
use super::{Flex, ROOT_BYTES};
use esker_base::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Percent of what the space should be filled with, up to which segments are collected while nobody writes: so `L` live bytes
/// take 1.2 `L`, and something for what is kept free.
const FILL_AT_REST: u32 = 108;
/// How long nothing was brought together when nothing more is likely to be.
const REST: Duration = Duration::from_secs(2);
/// Bytes that count for a run that a read fetches in vain: a quarter of the block that it most likely is, as a byte that is
/// written is dearer than one that is read. Where inserts go on beside scans (YCSB-E), 9 bytes are written for each one that
/// is inserted, where whole blocks made it 30, and 3 % fewer scans are done.
const RUN_BYTES: u64 = 1 << 10;
/// What it costs in time, in bytes that are read or written one behind the other meanwhile: a fast disk with a few requests
/// in flight does one of 4 KiB in 10 to 30 us, and 1 to 2 GB/s.
const RUN_BYTES_OF_TIME: u64 = 16 << 10;
/// Most leaves that are noted.
const NOTED_MAX: usize = 1024;
/// Noted leaves for which the thread is woken, and readers give way to it.
const NOTED_MUCH: usize = 8;
/// Most places of which is known that they were told of.
const TOLD_MAX: usize = 1024;
/// Everything is verified once in this time, or slower: a small store would be read over and over.
const AROUND: Duration = Duration::from_secs(24 * 60 * 60);
/// Leaves that are rewritten before others are served.
const REWRITTEN_AT_ONCE: usize = 4;

/// Leaves that are to be brought together, by keys in them, and the key where the thread is that does it. It goes around in
/// the order of keys: what a table brought to neighbours lies in one segment, so those that are brought together one behind
/// the other leave whole segments, and the collector has little to move.
#[derive(Debug, Default)]
pub(super) struct Noted {
    keys: BTreeSet<Vec<u8>>,
    at: Vec<u8>,
}

impl Noted {
    /// Notes the leaf of a key, unless there are too many.
    fn add(&mut self, key: &[u8]) {
        if self.keys.len() < NOTED_MAX {
            self.keys.insert(key.to_vec());
        }
    }

    /// Whether they are so many that the thread is to begin, and readers give way to it.
    fn is_much(&self) -> bool {
        self.keys.len() >= NOTED_MUCH
    }

    /// The next one in order; behind the last one, the first.
    fn take_next(&mut self) -> Option<Vec<u8>> {
        let behind = (Bound::Excluded(&*self.at), Bound::Unbounded);
        let key = self.keys.range::<[u8], _>(behind).next().or_else(|| self.keys.first())?.clone();
        self.keys.remove(&key);
        self.at.clone_from(&key);
        Some(key)
    }
}

/// How much of what lies in many places may be brought together soon, and before the collector comes again: as much as tables
/// brought in.
///
/// So long reads pay for a leaf by the time that they lose, not by the bytes: who scans what a load left in many places
/// waits a quarter as long, and no byte is written more than once more for it. Where writes go on, they are what reads
/// fetch in vain again and again, and bytes count.
///
/// What a table brought to neighbours of one leaf lies in a segment with what it brought to others: while these are brought
/// together as well, the segment becomes empty by itself. Once as much was brought together as was brought in that cannot be
/// meant any more, so the space comes to rest however reads go on.
///
/// Changed under the committer's lock, read without.
#[derive(Debug, Default)]
pub(super) struct Loose {
    left: AtomicU64,
    /// When something was brought together last.
    at: Mutex<Option<Duration>>,
}

impl Loose {
    /// For a space that holds so many bytes, which were brought in before.
    pub(super) fn of(live: u64) -> Self {
        Loose { left: AtomicU64::new(live), ..Loose::default() }
    }

    fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// So many bytes were brought in; all that there are is `live`.
    pub(super) fn earn(&self, bytes: u64, live: u64) {
        self.left.store(self.left().saturating_add(bytes).min(live), Ordering::Relaxed);
    }

    fn spend(&self, bytes: u64, now: Duration) {
        self.left.store(self.left().saturating_sub(bytes), Ordering::Relaxed);
        *self.at.lock() = Some(now);
    }

    /// Bytes that count for a run that a read fetches in vain.
    fn run_bytes(&self) -> u64 {
        if self.left() > 0 { RUN_BYTES_OF_TIME } else { RUN_BYTES }
    }

    /// Whether more is likely to be brought together soon.
    fn is_awaited(&self, now: Duration) -> bool {
        self.left() > 0 && self.at.lock().is_some_and(|at| now.saturating_sub(at) < REST)
    }
}

/// Where the thread that verifies is.
#[derive(Default)]
pub(super) struct Scrub {
    /// The key that is next; or, behind the last interval, the value that is.
    key: Vec<u8>,
    values: Option<Reading>,
    /// Bytes that were read beyond what was due, or less.
    ahead: u64,
    /// When this time around began, if it has.
    began: Option<Duration>,
    /// When the next one may.
    next: Duration,
}

/// What was verified since the store was opened.
#[derive(Debug, Default)]
pub(super) struct Scrubbed {
    bytes: AtomicU64,
    damaged: AtomicU64,
    /// What was told of by who came by, in words: not again each time.
    told: Mutex<HashSet<String>>,
}

impl Scrubbed {
    /// In words.
    pub(super) fn report(&self) -> String {
        let [bytes, damaged] = [&self.bytes, &self.damaged].map(|n| n.load(Ordering::Relaxed));
        format!("{bytes} bytes verified in the background, {damaged} places damaged")
    }

    /// Counts something that somebody could not read. Whether it is news.
    pub(super) fn note(&self, error: &Error) -> bool {
        let mut told = self.told.lock();
        if told.len() >= TOLD_MAX {
            // Those that are met again are told of again.
            told.clear();
        }
        let is_new = told.insert(error.to_string());
        self.damaged.fetch_add(u64::from(is_new), Ordering::Relaxed);
        is_new
    }
}

impl Flex {
    /// Reads and verifies as much as is due after `passed`, from where `scrub` is: intervals, and behind the last one large values,
    /// piece by piece; then not before it is time to go around again. Blocks that the space has in memory are taken from there. A table
    /// that is to be committed does not wait.
    pub(super) fn scrub(&self, scrub: &mut Scrub, passed: Duration) -> Result<()> {
        let rate = u128::from(self.options.scrub_bytes_per_second);
        let due = u64::try_from(rate * passed.as_micros() / 1_000_000).unwrap_or(u64::MAX);
        let mut left = due.saturating_sub(scrub.ahead);
        scrub.ahead = scrub.ahead.saturating_sub(due);
        let now = self.clock.monotonic();
        if scrub.began.is_none() && now < scrub.next {
            return Ok(());
        }
        let began = *scrub.began.get_or_insert(now);
        while left > 0 && !self.background.is_stopping() && self.tables().sealed.is_none() {
            let read = self.verify_next(scrub, left)?;
            let Some(read) = read.map(|read| read.max(1)) else {
                (scrub.began, scrub.next) = (None, began + AROUND);
                return Ok(());
            };
            self.scrubbed.bytes.fetch_add(read, Ordering::Relaxed);
            scrub.ahead = read.saturating_sub(left);
            left = left.saturating_sub(read);
        }
        Ok(())
    }

    /// Verifies an interval, or a piece of a value of about `most` bytes: how many bytes that were; `None` behind the last one.
    fn verify_next(&self, scrub: &mut Scrub, most: u64) -> Result<Option<u64>> {
        let Some(reading) = &mut scrub.values else {
            let (read, upper) = self.verify_one(&scrub.key)?;
            if upper.is_none() {
                scrub.values = Some(Reading::default());
            }
            scrub.key = upper.unwrap_or_default();
            return Ok(Some(read));
        };
        match self.verify_piece(reading, most) {
            Ok(Some(read)) => Ok(Some(read)),
            Ok(None) => {
                scrub.values = None;
                Ok(None)
            }
            Err(error) => self.note_damage(Err(error)).map(|()| Some(0)),
        }
    }

    /// Verifies the interval that holds `key`: its bytes, and where the next one begins.
    fn verify_one(&self, key: &[u8]) -> Result<(u64, Option<Vec<u8>>)> {
        let mut placed = None;
        let mut bytes = Vec::new();
        let read = self.space.read_once_where(
            &mut || {
                let place = self.index.place(Some(key), false, Ahead::ONE, None);
                let size = place.sizes.first().map_or(0, |(size, ..)| *size);
                let offset = ROOT_BYTES + place.offset;
                placed = Some(place);
                Some((offset, size as usize))
            },
            &mut bytes,
        );
        let Some(place) = placed else { return Ok((0, None)) };
        let size = place.sizes.first().map_or(0, |(size, ..)| u64::from(*size));
        let verified = read.and_then(|_| match place.is_coarse {
            true => parts(&bytes).map(drop).map_err(|flaw| self.damaged(&flaw.to_string())),
            false => self.decode(bytes).map(drop),
        });
        self.note_damage(verified)?;
        Ok((size, place.upper))
    }

    pub(super) fn note_damage(&self, verified: Result<()>) -> Result<()> {
        match verified {
            Err(error) if error.kind() == ErrorKind::Corrupted => {
                self.scrubbed.damaged.fetch_add(1, Ordering::Relaxed);
                tracing::error!(%error, "found by reading everything");
                Ok(())
            }
            // The device refuses it, and maybe gives what is behind it.
            Err(error) if error.is_unread() => {
                self.note_unread(&error);
                Ok(())
            }
            done => done,
        }
    }

    /// Notes that a read met so many runs beside the base runs of intervals in the leaf of `key`. Once reads lost as much as
    /// it costs to bring the leaf together, that is done: so nothing is ever brought together that reads do not pay for.
    ///
    /// Who reads gives way while many leaves wait: readers that keep all processors busy leave a scheduler's fair share to the thread
    /// only in name, and each of them reads in vain what it did not get to.
    pub(super) fn note_places(&self, key: &[u8], runs: u64) {
        if runs == 0 {
            return;
        }
        let is_due = self.index.owe(key, runs * self.loose.run_bytes());
        let Some(mut noted) = self.fragmented.try_lock() else { return };
        let before = noted.is_much();
        if is_due {
            noted.add(key);
        }
        let is_much = noted.is_much();
        drop(noted);
        if is_much && !before {
            self.background.wake();
        }
        if is_much {
            esker_trt::yield_now();
        }
    }

    /// A scan went past much that this table deletes.
    pub(super) fn note_littered(&self, table: &MemTable) {
        if self.littered.swap(table.generation, Ordering::Relaxed) != table.generation {
            self.background.wake();
        }
    }

    /// Seals the table in which scans go past much that is deleted, if there is one, and the one before is in the space: there what is
    /// deleted goes.
    pub(super) fn seal_littered(&self) -> Result<()> {
        let generation = self.littered.load(Ordering::Relaxed);
        let is_due = {
            let tables = self.tables();
            tables.active.generation == generation && tables.sealed.is_none()
        };
        if is_due { self.change_table(generation) } else { Ok(()) }
    }

    /// Brings leaves together that were noted, if the committer has nothing else to do. Whether there are more.
    pub(super) fn defragment(&self) -> Result<bool> {
        for _ in 0..REWRITTEN_AT_ONCE {
            if self.tables().sealed.is_some() || self.wal.check().is_err() {
                return Ok(false);
            }
            let Some(mut committer) = self.committer.try_lock() else { return Ok(false) };
            let Some(key) = self.fragmented.lock().take_next() else { return Ok(false) };
            // The committer may have come by meanwhile.
            if self.index.is_due(&key) {
                self.gather_loosely(&mut committer, &key)?;
            }
        }
        Ok(true)
    }

    fn gather_loosely(&self, committer: &mut Committer, key: &[u8]) -> Result<()> {
        let before = committer.rewritten_bytes;
        self.space.loosen(self.loose.left() > 0);
        let done = self.gather(committer, key);
        self.space.loosen(false);
        self.loose.spend(committer.rewritten_bytes - before, self.clock.monotonic());
        done
    }

    /// Collects some of what is less dense than it should be while nobody writes, unless that is likely to become empty by itself.
    /// Whether there may be more to do.
    pub(super) fn settle_at_rest(&self) -> Result<bool> {
        if self.loose.is_awaited(self.clock.monotonic()) {
            Ok(false)
        } else {
            self.space.settle_some(FILL_AT_REST)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine;
    use crate::options::{Durability, EngineKind, Options};
    use crate::store::Direction;
    use crate::value::PutOptions;
    use esker_base::clock::ManualClock;
    use esker_format::flex_db::Content;
    use std::sync::Arc;

    /// A queue: whoever takes the first item goes past those that were taken before.
    #[test]
    fn who_takes_items_off_the_front_goes_past_few_that_are_gone() {
        const ITEMS: u64 = 40_000;
        let folder = tempfile::tempdir().unwrap();
        let mut options = Options::new(folder.path());
        options.engine = Some(EngineKind::Flex);
        options.size_bytes = 256 << 20;
        options.durability = Durability::None;
        options.testing.background = false;
        let flex = Flex::open(&options).unwrap();
        let key = |number: u64| number.to_be_bytes();
        for number in 0..ITEMS {
            flex.put(&key(number), &[7; 40], PutOptions::default()).unwrap();
        }
        flex.commit_all().unwrap();
        // Who looks at each item goes past few, who looks seldom past more.
        for (from, to, each, gone_max) in [(0, 10_000, 1, 600), (10_000, ITEMS, 64, 10_000)] {
            for number in from..to {
                if number % each == 0 {
                    let all = (Bound::Unbounded, Bound::Unbounded);
                    let first = flex.scan(all.0, all.1, Direction::Forward, 1).unwrap();
                    assert_eq!(first[0].0, key(number));
                    // As the background thread does when it is woken.
                    flex.seal_littered().unwrap();
                    flex.commit_sealed().unwrap();
                    let gone = flex.tables().active.len();
                    assert!(gone < gone_max, "{gone} keys that are gone in the table");
                    let left = flex.index.pairs();
                    assert!(left < ITEMS - number + 2 * gone_max, "{left} pairs in the space");
                }
                assert!(flex.delete(&key(number), None).unwrap());
            }
        }
    }

    #[test]
    fn a_small_store_is_verified_once_a_day_and_not_over_and_over() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::new(1000));
        let mut options = Options::new(folder.path());
        options.engine = Some(EngineKind::Flex);
        options.size_bytes = 64 << 20;
        options.clock = Arc::clone(&clock) as _;
        options.testing.background = false;
        let flex = Flex::open(&options).unwrap();
        for number in 0..100_u64 {
            flex.put(&number.to_be_bytes(), &[7; 100], PutOptions::default()).unwrap();
        }
        flex.commit_all().unwrap();
        let mut scrub = Scrub::default();
        let mut verified = |passed: Duration| {
            clock.advance(passed);
            // It takes more than one call to see that nothing is left.
            (0..3).for_each(|_| flex.scrub(&mut scrub, passed).unwrap());
            flex.scrubbed.bytes.load(Ordering::Relaxed)
        };
        let once = verified(Duration::from_secs(10));
        assert!(once > 10_000, "{once} bytes");
        assert_eq!(verified(AROUND / 2), once);
        assert_eq!(verified(AROUND / 2 - Duration::from_secs(1)), once);
        assert_eq!(verified(Duration::from_secs(1)), 2 * once);
    }

    #[test]
    fn a_scan_over_what_few_have_gone_past_brings_no_table_to_the_space() {
        let table = MemTable::new(1, 0, 64 << 20, false);
        for number in 0..10_000_u64 {
            table.insert(
                (&number.to_be_bytes(), number),
                (number, Content::Delete),
                None,
                |_, _| false,
            );
        }
        assert!((0..70).all(|_| !table.is_littered(10_000)), "it costs more than that");
        assert!(table.is_littered(10_000));
    }

    #[test]
    fn the_space_comes_to_rest_although_things_are_brought_together_for_ever() {
        let loose = Loose::default();
        loose.earn(100, 1000);
        assert_eq!(loose.run_bytes(), RUN_BYTES_OF_TIME);
        let mut at = Duration::ZERO;
        for _ in 0..3 {
            at += REST / 2;
            loose.spend(30, at);
            assert!(loose.is_awaited(at), "more of what was brought in is brought together soon");
        }
        assert!(!loose.is_awaited(at + REST), "nobody did for a while");
        at += REST / 2;
        loose.spend(30, at);
        assert!(!loose.is_awaited(at), "that was more than was brought in");
        assert_eq!(loose.run_bytes(), RUN_BYTES, "bytes count now");
        loose.earn(5000, 1000);
        assert_eq!(loose.left(), 1000, "no more than there is");
    }

    #[test]
    fn leaves_that_wait_are_many_until_the_thread_has_taken_them() {
        let mut noted = Noted::default();
        let key = |number: usize| number.to_be_bytes();
        for number in 0..NOTED_MUCH {
            assert!(!noted.is_much(), "{number}");
            noted.add(&key(number));
            noted.add(&key(number));
        }
        assert!(noted.is_much());
        (0..2 * NOTED_MAX).for_each(|number| noted.add(&key(number)));
        assert_eq!(noted.keys.len(), NOTED_MAX);
        while noted.keys.len() >= NOTED_MUCH {
            noted.take_next();
        }
        assert!(!noted.is_much());
    }

    #[test]
    fn noted_leaves_are_taken_in_the_order_of_keys_around_and_around() {
        let mut noted = Noted::default();
        noted.keys.extend(["m", "c", "x"].map(|key| key.as_bytes().to_vec()));
        let next = |noted: &mut Noted| noted.take_next().map(|key| key[0]);
        assert_eq!(next(&mut noted), Some(b'c'));
        noted.keys.extend(["a", "d"].map(|key| key.as_bytes().to_vec()));
        let rest: Vec<u8> = std::iter::from_fn(|| next(&mut noted)).collect();
        assert_eq!(rest, b"dmxa");
    }
}
