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
//! asks for the place of each piece anew; a value that goes meanwhile is looked up again through its key. One value is removed at a time.
//!
//! # Failure
//! A crash leaves values that are not whole, and such as no pair names: both go when the store is open again.

mod collect;
mod directory;

pub(super) use directory::{Directory, FoundBehind, FoundLarge, State};

use super::recover::in_parts;
use super::room::Reserved;
use super::{Flex, ROOT_BYTES};
use crate::engine::Admit;
use crate::flex::{Space, Splice};
use esker_base::checksum::{Crc32c, crc32c};
use esker_base::{Error, ErrorKind, Result};
use esker_format::flex_db::{LARGE_HEAD_SIZE, LargeHead};
use std::sync::atomic::Ordering;

/// Longest value in bytes.
pub(super) const VALUE_SIZE_MAX_BYTES: usize = 4 << 30;
/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 20;

/// Least bytes that are read at once of a value that is read by and by.
const PIECE_BYTES_MIN: u64 = 64 << 10;
/// Bytes that an open reads of a value to know its head, unless its key is longer.
const HEAD_READ_BYTES: usize = 512;
/// Bytes of values that are worth a thread of their own when they are looked for.
const PART_BYTES_MIN: u64 = 1 << 20;

/// Where somebody is who verifies all values by and by: the value that is next, how many of its bytes were read, and their checksum.
#[derive(Default)]
pub(super) struct Reading {
    number: u64,
    at: u64,
    found: Crc32c,
}

/// A large value that is in the space, for a pair that is to name it; without one, it goes.
pub(super) struct Staged<'f> {
    flex: &'f Flex,
    pub(super) number: u64,
    kept: bool,
}

impl Staged<'_> {
    /// A pair that names it has its place in the log and the table of this generation, or an earlier one; if it is doubtful whether
    /// that lasts, it is to be found out.
    pub(super) fn keep(&mut self, generation: u64, is_doubtful: bool) {
        let mut values = self.flex.large.values.write();
        if let Some(large) = values.get_mut(self.number) {
            large.state = State::Here(generation);
        }
        if is_doubtful {
            values.set_doubtful(self.number, true);
        }
        drop(values);
        self.flex.large.is_doubted.fetch_or(is_doubtful, Ordering::Relaxed);
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

impl Flex {
    /// Bytes that a value takes in the space.
    pub(super) fn large_size(key: &[u8], value: &[u8]) -> u64 {
        (LARGE_HEAD_SIZE + key.len() + value.len()) as u64
    }

    /// Writes a value to the space, and makes it durable there. What it takes there was `reserved`.
    pub(super) fn stage(
        &self,
        key: &[u8],
        value: &[u8],
        reserved: &mut Reserved<'_>,
    ) -> Result<Staged<'_>> {
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
        head.number = self.large.take_number();
        let number = head.number;
        let bytes = [&*head.encode(), first].concat();
        let head_size = (bytes.len() - first.len()) as u64;
        let splice = Splice { offset: 0, remove: 0, data: &bytes, marks: &[0] };
        let mut head = Some((head, self.hasher.hash(key)));
        self.space.splice_at(&|| self.end_of_values(), &splice, &mut || {
            if let Some(head) = head.take() {
                self.large.push(head, head_size, bytes.len() as u64);
                reserved.spend(bytes.len() as u64);
            }
        })?;
        drop(turn);
        let staged = Staged { flex: self, number, kept: false };
        let mut size = bytes.len() as u64;
        for part in rest.chunks(piece) {
            let splice = Splice { offset: 0, remove: 0, data: part, marks: &[] };
            let more = size + part.len() as u64;
            self.space.splice_at(&|| self.place_of_large(number, size), &splice, &mut || {
                self.large.resize(number, more);
                reserved.spend(part.len() as u64);
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
        ROOT_BYTES + self.index.size_bytes() + self.large.before(number) + at
    }

    /// Reads a large value; `None` if it went meanwhile.
    pub(super) fn read_large(
        &self,
        number: u64,
        length: u64,
        admit: Admit<'_>,
    ) -> Result<Option<Vec<u8>>> {
        if !self.large.has(number, length) {
            return match self.large.place(number) {
                None => Ok(None),
                Some(_) => Err(self.damaged("a large value is not as long as its pair says")),
            };
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

    /// Reads the next piece of large values, of about `most` bytes, and verifies the value that it ends. How many bytes were read;
    /// `None` behind the last value. After an error the next value is next.
    pub(super) fn verify_piece(&self, reading: &mut Reading, most: u64) -> Result<Option<u64>> {
        let Some((number, length)) = self.large.next(reading.number) else { return Ok(None) };
        let behind = Reading { number: number + 1, ..Reading::default() };
        let Reading { number: last, at, found } = std::mem::replace(reading, behind);
        // That which was begun may have gone: the next one begins at its first byte.
        let (at, mut found) = if last == number { (at, found) } else { (0, Crc32c::new()) };
        let Some((_, head_size, checksum)) = self.large.place(number) else { return Ok(Some(0)) };
        let size = most.clamp(PIECE_BYTES_MIN, READ_BYTES as u64).min(length.saturating_sub(at));
        let mut bytes = Vec::new();
        let read = self.space.read_once_where(
            &mut || {
                let (before, ..) = self.large.place(number)?;
                let offset = ROOT_BYTES + self.index.size_bytes() + before + head_size + at;
                Some((offset, usize::try_from(size).unwrap_or(0)))
            },
            &mut bytes,
        )?;
        match read {
            // It went meanwhile.
            None => return Ok(Some(0)),
            Some(read) if read as u64 == size => found.update(&bytes),
            Some(_) => return Err(self.damaged("a value is behind the end of the space")),
        }
        if at + size < length {
            *reading = Reading { number, at: at + size, found };
        } else if found.finish() != checksum {
            return Err(self.damaged("a large value does not have its checksum"));
        }
        Ok(Some(size))
    }

    /// Removes values whose heads are damaged: nobody knows which they are.
    pub(super) fn remove_unread(&self) -> Result<()> {
        let unread: Vec<u64> = {
            let values = self.large.values.read();
            let unread = values.all.iter().filter(|large| large.state == State::Unread);
            unread.map(|large| large.head.number).collect()
        };
        unread.into_iter().try_for_each(|number| self.remove_large(number))
    }

    /// Takes a value out of the space, from its end, in pieces; its head as a whole (B4).
    fn remove_large(&self, number: u64) -> Result<()> {
        let piece = self.large_piece() as u64;
        // Who gives up what he wrote and the committer may come for the same one: what the first takes out would be asked for again
        // by the second, where others stand by then.
        let _turn = self.removing.lock();
        loop {
            let Some((size, head_size)) = self.large.let_go(number) else { return Ok(()) };
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

/// How a value stands whose head cannot be read for this error; any other error is one.
fn unread(error: Error) -> Result<State> {
    match error.kind() {
        ErrorKind::Io => Ok(State::Refused),
        _ if error.is_unread() => Ok(State::Unread),
        _ => Err(error),
    }
}

/// Whether a large value begins at a mark, rather than an interval; or why that cannot be read.
fn is_large_at(space: &Space, mark: u64) -> Result<Result<bool, State>> {
    let mut bytes = [0; 8];
    match space.read(mark, &mut bytes) {
        Ok(_) => Ok(Ok(LargeHead::is_here(&bytes))),
        Err(error) => unread(error).map(Err),
    }
}

/// The head of the large value at a mark, or why it cannot be read.
fn head_at(space: &Space, mark: u64) -> Result<Result<LargeHead, State>> {
    let mut bytes = vec![0; HEAD_READ_BYTES];
    let read = space.read(mark, &mut bytes).or_else(|error| {
        if !error.is_unread() {
            return Err(error);
        }
        // What is behind it does not matter.
        bytes.truncate(LARGE_HEAD_SIZE);
        space.read(mark, &mut bytes)
    });
    // The key may be longer.
    let read = read.and_then(|read| match LargeHead::size(bytes.get(..read).unwrap_or_default()) {
        Ok(size) if size > read => {
            bytes.resize(size, 0);
            space.read(mark, &mut bytes)
        }
        _ => Ok(read),
    });
    let error = match read {
        Ok(read) => match LargeHead::decode(bytes.get(..read).unwrap_or_default()) {
            Ok(head) => return Ok(Ok(head)),
            Err(flaw) => Error::corrupted("open store", flaw.to_string()),
        },
        Err(error) => error,
    };
    if error.is_unread() {
        tracing::error!(%error, "a large value whose head cannot be read");
    }
    unread(error).map(Err)
}

/// The heads of large values that begin between two offsets, and where.
fn heads(space: &Space, start: u64, end: u64) -> Result<Vec<(u64, Result<LargeHead, State>)>> {
    let mut found = Vec::new();
    let mut next = space.next_mark(start)?;
    while let Some(mark) = next.filter(|mark| *mark < end) {
        found.push((mark, head_at(space, mark)?));
        next = space.next_mark(mark + 1)?;
    }
    Ok(found)
}

/// Where intervals end and large values begin in the space, and these, by so many threads.
pub(super) fn find(space: &Space, threads: usize, name: &str) -> Result<FoundBehind> {
    let end = space.size_bytes();
    // Intervals are before large values, and both begin with a mark. One that cannot be read says as much as the next one.
    let is_behind = |offset: u64| -> Result<bool> {
        let mut at = offset;
        while let Some(mark) = space.next_mark(at)? {
            if let Ok(is_large) = is_large_at(space, mark)? {
                return Ok(is_large);
            }
            at = mark + 1;
        }
        Ok(true)
    };
    let (mut low, mut high) = (ROOT_BYTES.min(end), end);
    while low < high {
        let middle = low + (high - low) / 2;
        if is_behind(middle)? { high = middle } else { low = middle + 1 }
    }
    // The first place from which on there are no intervals, as far as that can be read: behind the mark of the last one.
    let (mut next, mut unread) = (space.next_mark(low)?, Vec::new());
    while let Some(mark) = next {
        match is_large_at(space, mark)? {
            Ok(true) => break,
            Ok(false) => unread.clear(),
            Err(why) => unread.push((mark, why)),
        }
        next = space.next_mark(mark + 1)?;
    }
    let intervals_end = next.unwrap_or(end);
    let found = in_parts(intervals_end..end, PART_BYTES_MIN, threads, |part| {
        heads(space, part.start, part.end)
    })?;
    let numbers = || found.iter().filter_map(|(_, head)| Some(head.as_ref().ok()?.number));
    if !numbers().is_sorted_by(|one, next| one < next) {
        let words = "large values are out of order";
        return Err(Error::corrupted("open store", words).device(name));
    }
    let ends: Vec<u64> = found.iter().skip(1).map(|(mark, _)| *mark).chain([end]).collect();
    let values = found.into_iter().zip(ends);
    let values =
        values.map(|((mark, head), end)| FoundLarge { head, size_bytes: end - mark }).collect();
    Ok(FoundBehind { intervals_end, unread, values })
}

#[cfg(test)]
mod tests;
