//! Which large values there are, how each stands, where, and of which keys they are.
//!
//! # Invariants
//! - D1: values are by number. One that went keeps its place, without bytes and key, until half of all are such: so the end of
//!   one moves no others.
//! - D2: `of_keys` has each value that did not go, by the hash of its key; `doubtful`, `seen` and `leaving` those that did not and
//!   are so.
//!
//! # Concurrency
//! Changed under the space's lock, where sizes change, so for as short a time as possible: nothing here takes longer with more
//! values, but for closing up, which each value pays for once.

use super::super::ROOT_BYTES;
use super::super::index::Sums;
use esker_base::hash::KeyHasher;
use esker_format::flex_db::{LARGE_HEAD_SIZE, LargeHead};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Fewer values that went are not worth closing up.
const GONE_MIN: usize = 64;
/// Numbers that are passed over if those of some values are not known.
const NUMBERS_SKIPPED: u64 = 1 << 20;
/// Bytes of memory that an entry of `of_keys` takes, about, and one of the others.
const ENTRY_BYTES: usize = 24;
const NUMBER_BYTES: usize = 12;

#[cfg(test)]
thread_local! {
    /// How many values this thread looked at to find those that are to be asked about.
    pub(super) static LOOKED_AT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

fn note_look() {
    #[cfg(test)]
    LOOKED_AT.set(LOOKED_AT.get() + 1);
}

/// How a value stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine::flex) enum State {
    /// It is being written, or nothing names it yet.
    Forms,
    /// The pair that names it is in the log of this generation, or an earlier one.
    Here(u64),
    /// Nobody needs it.
    Goes,
    /// It is not in the space any more.
    Gone,
    /// Its head is damaged: nobody knows what it is. Its number is only one that no other has.
    Unread,
    /// The same, as long as the device refuses to read its head.
    Refused,
}

/// A value in the space.
#[derive(Debug)]
pub(super) struct Large {
    pub(super) head: LargeHead,
    pub(super) head_size: u64,
    /// Of its key.
    hash: u64,
    pub(super) state: State,
}

impl Large {
    /// Whether a pair that names it finds it.
    fn is_here(&self) -> bool {
        !matches!(self.state, State::Goes | State::Gone) && !self.is_nameless()
    }

    fn is_nameless(&self) -> bool {
        matches!(self.state, State::Unread | State::Refused)
    }

    /// Whether it may go, if nobody needs it: what names others may come again out of a log (E2).
    pub(super) fn may_go(&self, committed_generation: u64) -> bool {
        matches!(self.state, State::Here(generation) if generation <= committed_generation)
    }
}

#[derive(Debug, Default)]
pub(super) struct Values {
    /// By number.
    pub(super) all: Vec<Large>,
    /// Bytes of each in the space, head included.
    sizes: Sums,
    /// Hashes of keys, and numbers.
    of_keys: BTreeSet<(u64, u64)>,
    /// Numbers of those that may be needed or not: to be found out when a table is in the space.
    doubtful: BTreeSet<u64>,
    /// Numbers of those that only snapshots need: to be found out again when one goes.
    seen: BTreeSet<u64>,
    /// Up to this number are those that an open found, and that were not doubtful yet: they are so a few at a time.
    unasked: u64,
    /// Numbers of those that nobody needs.
    leaving: BTreeSet<u64>,
    key_bytes: usize,
    gone: usize,
}

impl Values {
    /// Where value `number` is, unless it went.
    fn index(&self, number: u64) -> Option<usize> {
        let index = self.all.binary_search_by_key(&number, |large| large.head.number).ok()?;
        self.all.get(index).filter(|large| large.state != State::Gone).map(|_| index)
    }

    fn get(&self, number: u64) -> Option<&Large> {
        self.all.get(self.index(number)?)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Large> {
        let index = self.index(number)?;
        self.all.get_mut(index)
    }

    pub(super) fn set_doubtful(&mut self, number: u64, is_doubtful: bool) {
        if !is_doubtful {
            self.doubtful.remove(&number);
        } else if self.index(number).is_some() {
            self.doubtful.insert(number);
        }
    }

    pub(super) fn set_seen(&mut self, number: u64, is_seen: bool) {
        if !is_seen {
            self.seen.remove(&number);
        } else if self.index(number).is_some() {
            self.seen.insert(number);
        }
    }

    /// The values that were put under `key`, which has this hash.
    pub(super) fn visit_of_key(&self, key: &[u8], hash: u64, mut visit: impl FnMut(&Large)) {
        let of_hash = self.of_keys.range((hash, 0)..=(hash, u64::MAX));
        let of_hash = of_hash.filter_map(|(_, number)| self.get(*number)).inspect(|_| note_look());
        of_hash.filter(|large| *large.head.key == *key).for_each(&mut visit);
    }

    fn push(&mut self, large: Large, size: u64) {
        if large.state == State::Goes {
            self.leaving.insert(large.head.number);
        }
        self.of_keys.insert((large.hash, large.head.number));
        self.key_bytes += large.head.key.capacity();
        self.all.push(large);
        self.sizes.push(size);
    }

    fn remove(&mut self, index: usize) {
        let Some(large) = self.all.get_mut(index) else { return };
        large.state = State::Gone;
        self.key_bytes -= large.head.key.capacity();
        large.head.key = Vec::new();
        let number = large.head.number;
        self.of_keys.remove(&(large.hash, number));
        self.doubtful.remove(&number);
        self.seen.remove(&number);
        self.leaving.remove(&number);
        self.sizes.set(index, 0);
        self.gone += 1;
        if self.gone > GONE_MIN && self.gone > self.all.len() / 2 {
            self.close_up();
        }
    }

    /// Forgets those that went.
    fn close_up(&mut self) {
        let is_here = |large: &Large| large.state != State::Gone;
        let of = |(index, large): (usize, &Large)| is_here(large).then(|| self.sizes.of(index));
        let sizes: Vec<u64> = self.all.iter().enumerate().filter_map(of).collect();
        self.sizes.splice(0..self.all.len(), sizes.into_iter());
        self.all.retain(is_here);
        self.gone = 0;
    }
}

/// A value that an open found.
#[derive(Debug)]
pub(in crate::engine::flex) struct FoundLarge {
    /// Or why it cannot be read.
    pub(super) head: Result<LargeHead, State>,
    pub(super) size_bytes: u64,
}

/// What an open found behind the intervals.
#[derive(Debug)]
pub(in crate::engine::flex) struct FoundBehind {
    /// Where intervals end in the space.
    pub(in crate::engine::flex) intervals_end: u64,
    /// Marks before that of which nobody knows what they begin, and nothing else is behind them: an interval is an error for those
    /// who ask for keys that it may have, and a value that is missing is one, too.
    pub(in crate::engine::flex) unread: Vec<(u64, State)>,
    pub(in crate::engine::flex) values: Vec<FoundLarge>,
}

impl FoundBehind {
    /// Somebody says that intervals end here. Whether that may be so; what is behind are values then.
    pub(in crate::engine::flex) fn end_at(&mut self, end: u64) -> bool {
        if end == self.intervals_end.max(ROOT_BYTES) {
            return true;
        }
        let Ok(first) = self.unread.binary_search_by_key(&end, |(mark, _)| *mark) else {
            return false;
        };
        let marks = self.unread.split_off(first);
        let ends = marks.iter().skip(1).map(|(mark, _)| *mark).chain([self.intervals_end]);
        let value = |((mark, why), end): (&(u64, State), u64)| FoundLarge {
            head: Err(*why),
            size_bytes: end - mark,
        };
        self.values.splice(0..0, marks.iter().zip(ends).map(value));
        self.intervals_end = end;
        true
    }
}

/// See the module's text.
#[derive(Debug, Default)]
pub(in crate::engine::flex) struct Directory {
    pub(super) values: RwLock<Values>,
    next_number: AtomicU64,
    count: AtomicUsize,
    bytes: AtomicU64,
    pub(super) is_doubted: AtomicBool,
    /// Whether one may stay for a snapshot, and none has gone since somebody asked last.
    is_seen: AtomicBool,
}

impl Directory {
    /// What an open found; their pairs may be in the log of `generation`, or before. Numbers go on above `number`.
    pub(in crate::engine::flex) fn new(
        found: Vec<FoundLarge>,
        generation: u64,
        number: u64,
        hasher: &KeyHasher,
    ) -> Self {
        let has_unread = found.iter().any(|large| large.head.is_err());
        let directory = Directory::default();
        {
            let mut values = directory.values.write();
            let mut last = 0;
            for FoundLarge { head, size_bytes } in found {
                let head = match head {
                    Ok(head) => head,
                    Err(state) => {
                        // Numbers ascend: no other has the next one.
                        last += 1;
                        let (number, key) = (last, Vec::new());
                        let head = LargeHead { number, length_bytes: 0, value_checksum: 0, key };
                        let (head_size, hash) = (0, 0);
                        values.push(Large { head, head_size, hash, state }, size_bytes);
                        continue;
                    }
                };
                last = head.number;
                let head_size = (LARGE_HEAD_SIZE + head.key.len()) as u64;
                let is_whole = size_bytes == head_size + head.length_bytes;
                let state = if is_whole { State::Here(generation) } else { State::Goes };
                let hash = hasher.hash(&head.key);
                values.push(Large { head, head_size, hash, state }, size_bytes);
            }
            values.unasked = last;
            // Those of which only a part is there are to go.
            directory.is_doubted.store(!values.leaving.is_empty(), Ordering::Relaxed);
            let skipped = if has_unread { NUMBERS_SKIPPED } else { 0 };
            let next = number.max(last + 1).saturating_add(skipped);
            directory.next_number.store(next, Ordering::Relaxed);
            directory.note(&values);
        }
        directory
    }

    fn note(&self, values: &Values) {
        self.bytes.store(values.sizes.total(), Ordering::Relaxed);
        self.count.store(values.all.len() - values.gone, Ordering::Relaxed);
    }

    /// How many there are.
    #[inline]
    pub(in crate::engine::flex) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Numbers of values that nobody needs.
    pub(super) fn leaving(&self) -> Vec<u64> {
        self.values.read().leaving.iter().copied().collect()
    }

    /// Key of value `number`, unless it went.
    pub(super) fn key_of(&self, number: u64) -> Option<Vec<u8>> {
        self.values.read().get(number).map(|large| large.head.key.clone())
    }

    /// All values, by number; after so many others get the lock.
    pub(super) fn visit(&self, at_once: usize, mut visit: impl FnMut(&Large)) {
        let (mut values, mut next) = (self.values.read(), 0);
        loop {
            let from = values.all.partition_point(|large| large.head.number < next);
            let part = values.all.get(from..).unwrap_or_default();
            let part = part.get(..at_once.min(part.len())).unwrap_or_default();
            let Some(last) = part.last() else { return };
            next = last.head.number + 1;
            for large in part {
                note_look();
                visit(large);
            }
            RwLockReadGuard::bump(&mut values);
        }
    }

    /// The same for doubtful ones.
    pub(super) fn visit_doubtful(&self, at_once: usize, mut visit: impl FnMut(&Large)) {
        let (mut values, mut next) = (self.values.read(), 0);
        loop {
            let part = || values.doubtful.range(next..).take(at_once);
            let Some(last) = part().last().copied() else { return };
            for large in part().filter_map(|number| values.get(*number)) {
                note_look();
                visit(large);
            }
            next = last + 1;
            RwLockReadGuard::bump(&mut values);
        }
    }

    /// Whether there is none.
    #[inline]
    pub(in crate::engine::flex) fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Bytes of all values in the space.
    #[inline]
    pub(in crate::engine::flex) fn size_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of memory that this takes.
    pub(in crate::engine::flex) fn memory_bytes(&self) -> u64 {
        let values = self.values.read();
        let entries = values.all.capacity() * size_of::<Large>();
        let keys = values.key_bytes + values.of_keys.len() * ENTRY_BYTES;
        let numbers = values.doubtful.len() + values.seen.len() + values.leaving.len();
        let numbers = numbers * NUMBER_BYTES;
        (entries + keys + numbers) as u64 + values.sizes.memory_bytes()
    }

    /// The number of the next value. Those who push one take turns, so that values are by number.
    pub(super) fn take_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Gives no number up to this one any more.
    pub(in crate::engine::flex) fn begin_above(&self, number: u64) {
        self.next_number.fetch_max(number.saturating_add(1), Ordering::Relaxed);
    }

    /// A value has its place behind all others, with so many bytes of it and its head.
    pub(super) fn push(&self, (head, hash): (LargeHead, u64), head_size: u64, size: u64) {
        let mut values = self.values.write();
        values.push(Large { head, head_size, hash, state: State::Forms }, size);
        self.note(&values);
    }

    /// Where value `number` stands behind the intervals, the size of its head, and its checksum; `None` if it went.
    pub(super) fn place(&self, number: u64) -> Option<(u64, u64, u32)> {
        let values = self.values.read();
        let index = values.index(number)?;
        let large = values.all.get(index).filter(|large| large.is_here())?;
        Some((values.sizes.before(index), large.head_size, large.head.value_checksum))
    }

    /// Bytes of the values before this one, whether it goes or not.
    pub(super) fn before(&self, number: u64) -> u64 {
        let values = self.values.read();
        values.index(number).map_or(0, |index| values.sizes.before(index))
    }

    /// Checksum of value `number`.
    pub(in crate::engine::flex) fn checksum_of(&self, number: u64) -> Option<u32> {
        self.place(number).map(|(.., checksum)| checksum)
    }

    /// Length of the longest value that was put under `key`, which has this hash.
    pub(in crate::engine::flex) fn length_of(&self, key: &[u8], hash: u64) -> u64 {
        let values = self.values.read();
        let of_hash = values.of_keys.range((hash, 0)..=(hash, u64::MAX));
        let of_key = of_hash.filter_map(|(_, number)| values.get(*number));
        let of_key = of_key.filter(|large| *large.head.key == *key);
        of_key.map(|large| large.head.length_bytes).max().unwrap_or(0)
    }

    /// Number and length of the first value from `number` on that is there.
    pub(super) fn next(&self, number: u64) -> Option<(u64, u64)> {
        let values = self.values.read();
        let from = values.all.partition_point(|large| large.head.number < number);
        let mut behind = values.all.get(from..).unwrap_or_default().iter();
        let large = behind.find(|large| matches!(large.state, State::Here(_)))?;
        Some((large.head.number, large.head.length_bytes))
    }

    /// Whether value `number` is there as a whole and so long.
    pub(in crate::engine::flex) fn has(&self, number: u64, length: u64) -> bool {
        let values = self.values.read();
        let large = values.get(number);
        large.is_some_and(|large| large.head.length_bytes == length && large.is_here())
    }

    /// How many there are whose heads the device refuses to read.
    pub(in crate::engine::flex) fn refused(&self) -> u64 {
        let values = self.values.read();
        values.all.iter().filter(|large| large.state == State::Refused).count() as u64
    }

    /// Whether value `number`, which is not there, may be one whose head the device refuses: one between those before and behind it whose
    /// numbers are known. `before`: such a one may be in front of all.
    pub(in crate::engine::flex) fn may_be_refused(&self, number: u64, before: bool) -> bool {
        let values = self.values.read();
        let split = values.all.partition_point(|large| large.head.number < number);
        let (less, more) = values.all.split_at(split);
        if more.first().is_some_and(|large| large.head.number == number && !large.is_nameless()) {
            return false;
        }
        let near = |large: &&Large| large.is_nameless();
        let beside = less.iter().rev().take_while(near).chain(more.iter().take_while(near));
        let is_first = less.iter().all(Large::is_nameless);
        before && is_first || beside.into_iter().any(|large| large.state == State::Refused)
    }

    /// Pairs that name these values were left out of the space: somebody is to find out whether they are needed.
    pub(in crate::engine::flex) fn doubt(&self, numbers: &[u64]) {
        if numbers.is_empty() {
            return;
        }
        let mut values = self.values.write();
        for number in numbers {
            if values.index(*number).is_some() {
                values.doubtful.insert(*number);
                self.is_doubted.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Nobody knows of any whether it is needed.
    pub(in crate::engine::flex) fn doubt_all(&self) {
        let mut values = self.values.write();
        let is_here = |large: &&Large| large.state != State::Gone;
        let numbers = values.all.iter().filter(is_here).map(|large| large.head.number);
        values.doubtful = numbers.collect();
        values.unasked = 0;
    }

    /// Of those that an open found some are doubtful from now on, if they may go, up to so many: their numbers; `None` if there are none.
    /// The last ones come first: those whose pairs were lost with a table that was in no log are among them.
    pub(super) fn doubt_found(&self, most: usize, committed_generation: u64) -> Option<Vec<u64>> {
        let mut values = self.values.write();
        let Values { all, doubtful, unasked, .. } = &mut *values;
        let before = *unasked;
        let end = all.partition_point(|large| large.head.number <= before);
        let (mut numbers, mut next) = (Vec::new(), 0);
        for (count, large) in all.get(..end).unwrap_or_default().iter().rev().enumerate() {
            let is_ahead = large.is_here() && !large.may_go(committed_generation);
            if count == most || is_ahead {
                next = large.head.number;
                break;
            }
            numbers.extend(large.is_here().then_some(large.head.number));
        }
        doubtful.extend(&numbers);
        *unasked = next;
        (next < before).then_some(numbers)
    }

    /// Whether an open found some that were not doubtful yet.
    pub(in crate::engine::flex) fn has_unasked(&self) -> bool {
        self.values.read().unasked > 0
    }

    /// Somebody asks what is needed, while there are snapshots or not. Those that stayed for one are doubtful if one has gone; after so many
    /// others get the lock.
    pub(super) fn begin_asking(&self, at_once: usize, has_snapshots: bool) {
        let none_went = self.is_seen.swap(has_snapshots, Ordering::Acquire);
        if none_went && has_snapshots {
            return;
        }
        let mut values = self.values.write();
        loop {
            for _ in 0..at_once {
                let Some(number) = values.seen.pop_first() else { return };
                values.doubtful.insert(number);
            }
            RwLockWriteGuard::bump(&mut values);
        }
    }

    /// A snapshot is gone: those that stayed for one are asked about again.
    pub(in crate::engine::flex) fn ask_again(&self) {
        if self.is_seen.swap(false, Ordering::Release) {
            self.is_doubted.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a pair that names one was left out since somebody found out what is needed, or one stays that nobody needs.
    pub(in crate::engine::flex) fn is_doubted(&self) -> bool {
        self.is_doubted.load(Ordering::Relaxed)
    }

    /// Value `number` goes: how many bytes of it and its head are left, and of its head; `None` if it went.
    pub(super) fn let_go(&self, number: u64) -> Option<(u64, u64)> {
        let mut values = self.values.write();
        let index = values.index(number)?;
        let large = values.all.get_mut(index)?;
        large.state = State::Goes;
        let head_size = large.head_size;
        values.leaving.insert(number);
        Some((values.sizes.of(index), head_size))
    }

    /// Changes the size of a value; 0: it is no more.
    pub(super) fn resize(&self, number: u64, size: u64) {
        let mut values = self.values.write();
        let Some(index) = values.index(number) else { return };
        if size == 0 {
            values.remove(index);
        } else {
            values.sizes.set(index, size);
        }
        self.note(&values);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_base::rng::Rng;
    use std::collections::BTreeMap;

    fn head(number: u64, key: &[u8], length_bytes: u64) -> LargeHead {
        LargeHead { number, length_bytes, value_checksum: 0, key: key.to_vec() }
    }

    #[test]
    fn values_that_come_and_go_stand_where_the_sizes_before_them_say() {
        for mask in [u64::MAX, 1] {
            let hasher = KeyHasher::new([7; 16]).weakened(mask);
            let directory = Directory::new(Vec::new(), 0, 0, &hasher);
            // Key, length, and size in the space.
            let mut model: BTreeMap<u64, (u8, u64, u64)> = BTreeMap::new();
            let mut rng = Rng::from_seed(mask);
            let mut most = 0;
            for step in 0..4000 {
                if rng.chance(if step % 1000 < 500 { 3 } else { 1 }, 4) {
                    let (number, key) =
                        (directory.take_number(), u8::try_from(rng.below(50)).unwrap());
                    let (length, size) = (rng.below(1000), 1 + rng.below(1000));
                    let of_key = (head(number, &[key], length), hasher.hash(&[key]));
                    directory.push(of_key, 1, size);
                    model.insert(number, (key, length, size));
                } else if let Some(number) =
                    model.keys().nth(rng.index(model.len().max(1))).copied()
                {
                    match model.get_mut(&number) {
                        Some((.., size)) if *size > 1 && rng.chance(1, 2) => *size /= 2,
                        _ => drop(model.remove(&number)),
                    }
                    let size = model.get(&number).map_or(0, |(.., size)| *size);
                    directory.resize(number, size);
                }
                let mut before = 0;
                for (number, (_, length, size)) in &model {
                    assert_eq!(directory.place(*number).map(|place| place.0), Some(before));
                    assert!(directory.has(*number, *length));
                    before += size;
                }
                assert_eq!(directory.size_bytes(), before);
                assert_eq!(directory.is_empty(), model.is_empty());
                let key = u8::try_from(rng.below(50)).unwrap();
                let of_key = model.values().filter(|value| value.0 == key);
                let longest = of_key.map(|value| value.1).max().unwrap_or(0);
                assert_eq!(directory.length_of(&[key], hasher.hash(&[key])), longest);
                most = most.max(model.len());
            }
            let entries = directory.values.read().all.len();
            assert!(most > 200 && entries <= 2 * model.len() + GONE_MIN + 1, "{entries} of {most}");
        }
    }

    #[test]
    fn the_length_of_a_key_is_found_among_many_without_looking_at_all() {
        const MANY: u64 = 100_000;
        let hasher = KeyHasher::new([7; 16]);
        let found = (0..MANY).map(|number| FoundLarge {
            head: Ok(head(number, &(number / 2).to_be_bytes(), number)),
            size_bytes: 1,
        });
        let directory = Directory::new(found.collect(), 0, 0, &hasher);
        let mut looked_at = 0;
        for number in 0..MANY / 2 {
            let (key, hash) = (number.to_be_bytes(), hasher.hash(&number.to_be_bytes()));
            assert_eq!(directory.length_of(&key, hash), 2 * number + 1);
            looked_at +=
                directory.values.read().of_keys.range((hash, 0)..=(hash, u64::MAX)).count();
        }
        assert!(looked_at < 2 * usize::try_from(MANY).unwrap(), "{looked_at} values of {MANY}");
        let per_value = directory.memory_bytes() / MANY;
        assert!((64..400).contains(&per_value), "{per_value} bytes of memory for a value");
    }
}
