//! Large values: each by itself in the space, behind all intervals, written once.
//!
//! A put writes the value, piece by piece, at the end of the space, and makes it durable; then the pair of the key, which
//! names it by a number, goes through log and table as any other. So a value of any size is neither in the log nor in a
//! table, and it is not rewritten with its neighbours.
//!
//! ```text
//! space: | root | interval | interval | ... | head, bytes | head, bytes | ...
//! ```
//!
//! # Invariants
//! - B1: a value is durable before a pair that names it is in the log.
//! - B2: a value goes only when the pair that took its place is in the space, durably, and no snapshot needs it.
//! - B3: values are in the order of their numbers; where they stand follows from the sizes before them, which change
//!   together with the space.
//! - B4: the head of a value is in the space as a whole or not at all: it comes with the first piece, and goes with the last.
//!
//! # Concurrency
//! Several values may be written at a time, each grows in its place. Lock order: the space, then this directory. A reader
//! asks for the place of each piece anew; a value that goes meanwhile is looked up again through its key.
//!
//! # Failure
//! A crash leaves values that are not whole, and such as no pair names: both go when the store is open again.

use super::expired::expiry_of;
use super::index::Sums;
use super::memtable::MemTable;
use super::{Flex, ROOT_BYTES};
use crate::engine::Admit;
use crate::flex::{Space, Splice};
use esker_base::checksum::{Crc32c, crc32c};
use esker_base::{Error, Result};
use esker_format::flex_db::{Content, KEY_SIZE_MAX_BYTES, LARGE_HEAD_SIZE, LargeHead, Root};
use parking_lot::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Longest value in bytes.
pub(super) const VALUE_SIZE_MAX_BYTES: usize = 4 << 30;
/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 20;

/// How a value stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is being written, or nothing names it yet.
    Forms,
    /// The pair that names it is in the log of this generation, or an earlier one.
    Here(u64),
    /// Nobody needs it.
    Goes,
}

/// A value in the space.
#[derive(Debug)]
struct Large {
    head: LargeHead,
    head_size: u64,
    state: State,
    /// It may be needed or not: to be found out when a table is in the space.
    is_doubtful: bool,
}

#[derive(Debug, Default)]
struct Values {
    /// By number.
    all: Vec<Large>,
    /// Bytes of each in the space, head included.
    sizes: Sums,
}

impl Values {
    fn index(&self, number: u64) -> Option<usize> {
        self.all.binary_search_by_key(&number, |large| large.head.number).ok()
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut Large> {
        let index = self.index(number)?;
        self.all.get_mut(index)
    }
}

/// Which large values there are. See the module's text.
#[derive(Debug, Default)]
pub(super) struct Directory {
    values: RwLock<Values>,
    next_number: AtomicU64,
    count: AtomicUsize,
    bytes: AtomicU64,
    is_doubted: AtomicBool,
}

/// A large value that is in the space, for a pair that is to name it; without one, it goes.
pub(super) struct Staged<'f> {
    flex: &'f Flex,
    pub(super) number: u64,
    kept: bool,
}

impl Staged<'_> {
    /// A pair that names it has its place in log and table; after an error nobody knows, and it is to be found out.
    pub(super) fn keep(mut self, is_doubtful: bool) {
        // That of the pair, or a later one.
        let generation = self.flex.tables().active.generation;
        if let Some(large) = self.flex.large.values.write().get_mut(self.number) {
            large.state = State::Here(generation);
            large.is_doubtful = is_doubtful;
        }
        self.kept = true;
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        if !self.kept
            && let Err(error) = self.flex.remove_large(self.number)
        {
            tracing::warn!(%error, "a large value stays until the store is opened again");
        }
    }
}

/// A value that an open found.
#[derive(Debug)]
pub(super) struct FoundLarge {
    pub(super) head: LargeHead,
    pub(super) size_bytes: u64,
}

impl Directory {
    /// What an open found; their pairs may be in the log of `generation`, or before. Numbers go on above `number`.
    pub(super) fn new(found: Vec<FoundLarge>, generation: u64, number: u64) -> Self {
        let last = found.last().map_or(0, |large| large.head.number + 1);
        let directory = Directory {
            next_number: AtomicU64::new(number.max(last).max(1)),
            count: AtomicUsize::new(found.len()),
            ..Directory::default()
        };
        {
            let mut values = directory.values.write();
            values.sizes.splice(0..0, found.iter().map(|large| large.size_bytes));
            values.all = found
                .into_iter()
                .map(|FoundLarge { head, size_bytes }| {
                    let head_size = (LARGE_HEAD_SIZE + head.key.len()) as u64;
                    let is_whole = size_bytes == head_size + head.length_bytes;
                    let state = if is_whole { State::Here(generation) } else { State::Goes };
                    Large { head, head_size, state, is_doubtful: true }
                })
                .collect();
            directory.note(&values);
        }
        directory
    }

    fn note(&self, values: &Values) {
        self.bytes.store(values.sizes.total(), Ordering::Relaxed);
        self.count.store(values.all.len(), Ordering::Relaxed);
    }

    /// Bytes of all values in the space.
    #[inline]
    pub(super) fn size_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Where value `number` stands behind the intervals, the size of its head, and its checksum; `None` if it went.
    fn place(&self, number: u64) -> Option<(u64, u64, u32)> {
        let values = self.values.read();
        let index = values.index(number)?;
        let large = values.all.get(index).filter(|large| large.state != State::Goes)?;
        Some((values.sizes.before(index), large.head_size, large.head.value_checksum))
    }

    /// Gives no number up to this one any more.
    pub(super) fn begin_above(&self, number: u64) {
        self.next_number.fetch_max(number.saturating_add(1), Ordering::Relaxed);
    }

    /// Checksum of value `number`.
    pub(super) fn checksum_of(&self, number: u64) -> Option<u32> {
        self.place(number).map(|(.., checksum)| checksum)
    }

    /// Length of the longest value that was put under `key`.
    pub(super) fn length_of(&self, key: &[u8]) -> u64 {
        if self.count.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let values = self.values.read();
        let of_key = values.all.iter().filter(|large| *large.head.key == *key);
        of_key.map(|large| large.head.length_bytes).max().unwrap_or(0)
    }

    /// Number and length of all values that are there.
    pub(super) fn all(&self) -> Vec<(u64, u64)> {
        let values = self.values.read();
        let here = values.all.iter().filter(|large| matches!(large.state, State::Here(_)));
        here.map(|large| (large.head.number, large.head.length_bytes)).collect()
    }

    /// Whether value `number` is there as a whole and so long.
    pub(super) fn has(&self, number: u64, length: u64) -> bool {
        let values = self.values.read();
        values
            .index(number)
            .and_then(|index| values.all.get(index))
            .is_some_and(|large| large.head.length_bytes == length && large.state != State::Goes)
    }

    /// Pairs that name these values were left out of the space: somebody is to find out whether they are needed.
    pub(super) fn doubt(&self, numbers: &[u64]) {
        if numbers.is_empty() {
            return;
        }
        let mut values = self.values.write();
        for number in numbers {
            if let Some(large) = values.get_mut(*number) {
                large.is_doubtful = true;
                self.is_doubted.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Whether a pair that names one was left out since somebody found out what is needed.
    pub(super) fn is_doubted(&self) -> bool {
        self.is_doubted.load(Ordering::Relaxed)
    }

    /// Changes the size of a value; 0: it is no more.
    fn resize(&self, number: u64, size: u64) {
        let mut values = self.values.write();
        if let Some(index) = values.index(number) {
            if size == 0 {
                values.all.remove(index);
                values.sizes.splice(index..index + 1, std::iter::empty());
            } else {
                values.sizes.set(index, size);
            }
            self.note(&values);
        }
    }
}

impl Flex {
    /// Writes a value to the space, and makes it durable there.
    pub(super) fn stage(&self, key: &[u8], value: &[u8]) -> Result<Staged<'_>> {
        let piece = self.large_piece();
        let mut head = LargeHead {
            number: 0,
            length_bytes: value.len() as u64,
            value_checksum: crc32c(value),
            key: key.to_vec(),
        };
        let (first, rest) = value.split_at(value.len().min(piece));
        // Numbers are in the order in which values get their place.
        let turn = self.staging.lock();
        head.number = self.large.next_number.fetch_add(1, Ordering::Relaxed);
        let number = head.number;
        let bytes = [&*head.encode(), first].concat();
        let head_size = (bytes.len() - first.len()) as u64;
        let splice = Splice { offset: 0, remove: 0, data: &bytes, marks: &[0] };
        let mut head = Some(head);
        self.space.splice_at(&|| self.end_of_values(), &splice, &mut || {
            let mut values = self.large.values.write();
            let end = values.all.len();
            if let Some(head) = head.take() {
                values.all.push(Large { head, head_size, state: State::Forms, is_doubtful: false });
                values.sizes.splice(end..end, std::iter::once(bytes.len() as u64));
            }
            self.large.note(&values);
        })?;
        drop(turn);
        let staged = Staged { flex: self, number, kept: false };
        let mut size = bytes.len() as u64;
        for part in rest.chunks(piece) {
            let splice = Splice { offset: 0, remove: 0, data: part, marks: &[] };
            let more = size + part.len() as u64;
            self.space.splice_at(&|| self.place_of_large(number, size), &splice, &mut || {
                self.large.resize(number, more);
            })?;
            size = more;
        }
        // PERSIST: a value, before anything that names it is in the log (B1).
        if !super::sites::LARGE_WAIT.disabled() {
            self.space.sync()?;
        }
        Ok(staged)
    }

    /// Bytes that are written and removed with one change of the space.
    fn large_piece(&self) -> usize {
        4 * usize::try_from(self.space.extent_size_bytes_max()).unwrap_or(1 << 17)
    }

    fn end_of_values(&self) -> u64 {
        ROOT_BYTES + self.index.size_bytes() + self.large.size_bytes()
    }

    /// Where the byte `at` of value `number` and its head stands in the space.
    fn place_of_large(&self, number: u64, at: u64) -> u64 {
        let values = self.large.values.read();
        let before = values.index(number).map_or(0, |index| values.sizes.before(index));
        ROOT_BYTES + self.index.size_bytes() + before + at
    }

    /// Reads a large value; `None` if it went meanwhile.
    pub(super) fn read_large(
        &self,
        number: u64,
        length: u64,
        admit: Admit<'_>,
    ) -> Result<Option<Vec<u8>>> {
        if self.large.place(number).is_none() {
            return Ok(None);
        }
        admit(length)?;
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        let mut parts = bytes.chunks_mut(READ_BYTES);
        let found = self.read_pieces(number, &mut |read| match parts.next() {
            Some(part) => read(part).map(|there| there.is_some()),
            None => Ok(false),
        })?;
        Ok(found.then_some(bytes))
    }

    /// Gives the bytes of a large value to `visit`, piece by piece; whether it was there until the end.
    pub(super) fn visit_large(
        &self,
        number: u64,
        length: u64,
        visit: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<bool> {
        let mut left = usize::try_from(length).unwrap_or(usize::MAX);
        let mut buffer = vec![0; left.min(READ_BYTES)];
        self.read_pieces(number, &mut |read| {
            let size = left.min(READ_BYTES);
            let Some(part) = buffer.get_mut(..size).filter(|part| !part.is_empty()) else {
                return Ok(false);
            };
            left -= size;
            if read(part)?.is_none() {
                return Ok(false);
            }
            visit(part)?;
            Ok(true)
        })
    }

    /// Lets `next` read piece after piece of a value, each into a buffer of its own, until it says that there is no more.
    /// Whether the value was there until then, and all of it was read.
    #[allow(clippy::type_complexity, reason = "a reader that is given to its user")]
    fn read_pieces(
        &self,
        number: u64,
        next: &mut dyn FnMut(&mut dyn FnMut(&mut [u8]) -> Result<Option<()>>) -> Result<bool>,
    ) -> Result<bool> {
        let Some((_, head_size, checksum)) = self.large.place(number) else { return Ok(false) };
        let mut found = Crc32c::new();
        let mut at = head_size;
        let mut gone = false;
        let mut read = |part: &mut [u8]| {
            let read = self.space.read_into_where(
                &mut || {
                    let (before, ..) = self.large.place(number)?;
                    Some(ROOT_BYTES + self.index.size_bytes() + before + at)
                },
                part,
            )?;
            match read {
                None => gone = true,
                Some(count) if count == part.len() => {
                    found.update(part);
                    at += count as u64;
                }
                Some(_) => return Err(self.damaged("a value is behind the end of the space")),
            }
            Ok((!gone).then_some(()))
        };
        while next(&mut read)? {}
        if !gone && found.finish() != checksum {
            return Err(self.damaged("a large value does not have its checksum"));
        }
        Ok(!gone)
    }

    /// Removes values that nobody needs, in the space as this root has it: of keys that are in this table, which is there now, and
    /// doubtful ones. The committer's lock is held.
    pub(super) fn collect_large(&self, root: &Root, table: Option<&MemTable>) -> Result<()> {
        if self.large.count.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        self.large.is_doubted.store(false, Ordering::Relaxed);
        let ranges = table.map_or_else(Vec::new, MemTable::ranges);
        let in_table =
            |key: &[u8]| table.is_some_and(|table| table.has(key, self.hasher.hash(key)));
        let mut asked: Vec<(u64, Vec<u8>)> = Vec::new();
        let mut gone: Vec<u64> = Vec::new();
        for large in &self.large.values.read().all {
            let key = &large.head.key;
            match large.state {
                State::Goes => gone.push(large.head.number),
                // What names the others may come again out of a log (E2).
                State::Here(generation) if generation <= root.committed_generation => {
                    let is_concerned = large.is_doubtful
                        || in_table(key)
                        || ranges.iter().any(|range| range.covers(key));
                    if is_concerned {
                        asked.push((large.head.number, key.clone()));
                    }
                }
                _ => {}
            }
        }
        for (number, key) in asked {
            // B2: what counts in the space, durably, and what snapshots see.
            let hash = self.hasher.hash(&key);
            // Whether a pair that names it has expired.
            let names = |_, content: Content<'_>| match content {
                Content::Large(_, named, _) if named == number => {
                    Some(self.is_expired(expiry_of(&content)))
                }
                _ => None,
            };
            let current = self.find(&key, hash, root.last_version, names)?;
            let mut is_seen = current.is_some();
            for version in self.snapshots.all() {
                is_seen |= self.find(&key, hash, version, names)?.is_some();
            }
            if is_seen {
                // That of the table, which is about to go, may be left out of the space already: then somebody asks again.
                let is_doubted = current == Some(true) && in_table(&key);
                if let Some(large) = self.large.values.write().get_mut(number) {
                    large.is_doubtful = current.is_none() || is_doubted;
                }
                self.large.is_doubted.fetch_or(is_doubted, Ordering::Relaxed);
            } else {
                gone.push(number);
            }
        }
        gone.into_iter().try_for_each(|number| self.remove_large(number))
    }

    /// Takes a value out of the space, from its end, in pieces; its head as a whole (B4).
    fn remove_large(&self, number: u64) -> Result<()> {
        let piece = self.large_piece() as u64;
        loop {
            let (size, head_size) = {
                let mut values = self.large.values.write();
                let Some(index) = values.index(number) else { return Ok(()) };
                let Some(large) = values.all.get_mut(index) else { return Ok(()) };
                large.state = State::Goes;
                let head_size = large.head_size;
                (values.sizes.of(index), head_size)
            };
            let left = match size <= piece.max(head_size) {
                true => 0,
                false => (size - piece).max(head_size),
            };
            let splice = Splice { offset: 0, remove: size - left, data: &[], marks: &[] };
            self.space.splice_at(&|| self.place_of_large(number, left), &splice, &mut || {
                self.large.resize(number, left);
            })?;
        }
    }
}

/// Where intervals end and large values begin in the space, and these.
pub(super) fn find(space: &Space, name: &str) -> Result<(u64, Vec<FoundLarge>)> {
    let end = space.size_bytes();
    // Intervals are before large values, and both begin with a mark.
    let is_behind = |offset: u64| -> Result<bool> {
        let Some(mark) = space.next_mark(offset)? else { return Ok(true) };
        let mut bytes = [0; 8];
        space.read(mark, &mut bytes)?;
        Ok(LargeHead::is_here(&bytes))
    };
    let (mut low, mut high) = (ROOT_BYTES.min(end), end);
    while low < high {
        let middle = low + (high - low) / 2;
        if is_behind(middle)? { high = middle } else { low = middle + 1 }
    }
    // The first place from which on there are no intervals: behind the mark of the last one.
    let mut next = space.next_mark(low)?;
    let boundary = next.unwrap_or(end);
    let mut found: Vec<FoundLarge> = Vec::new();
    while let Some(mark) = next {
        let mut bytes = vec![0; LARGE_HEAD_SIZE + KEY_SIZE_MAX_BYTES];
        let read = space.read(mark, &mut bytes)?;
        bytes.truncate(read);
        let damaged = |words: String| Error::corrupted("open store", words).device(name);
        let head = LargeHead::decode(&bytes).map_err(|flaw| damaged(flaw.to_string()))?;
        if found.last().is_some_and(|before| before.head.number >= head.number) {
            return Err(damaged("large values are out of order".to_owned()));
        }
        next = space.next_mark(mark + 1)?;
        found.push(FoundLarge { head, size_bytes: next.unwrap_or(end) - mark });
    }
    Ok((boundary, found))
}
