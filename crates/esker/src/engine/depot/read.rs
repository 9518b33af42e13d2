//! Reads: one device read for a GET (uDepot §4.5).
//!
//! # Concurrency
//! Reads take no lock. What the index offers is read of the life of its segment in which it did: if it is whole, it was so then. A read
//! that finds something else starts over if a segment was reused meanwhile; see S2 of the segment table.

use super::layout::SIZE_UNIT_BYTES;
use super::scan::evicted_hash;
use super::{Depot, sites};
use crate::engine::{Admit, Cursor, Items};
use crate::value::{Attributes, Value};
use esker_base::ids::{SegmentId, Sequence, Version};
use esker_base::units::{round_down, round_up};
use esker_base::{Error, ErrorKind, Result};
use esker_format::Flaw;
use esker_format::depot::{KEY_SIZE_MAX_BYTES, Place, Record, RecordKind, RecordMeta};
use esker_index::{Link, SizeHint};
use esker_media::{BufferPool, IoBuf};
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Deref;

/// How often a read that fails, or brings a bad checksum, is tried.
const READ_TRIES: u32 = 3;
/// What is read first of a record whose size the index does not know, in bytes.
const PEEK_SIZE: u64 = 4096;
/// Memory of the values that a part of a walk holds, but for the last one; those beyond are read when they are asked for.
const WALK_BYTES_MAX: u64 = 8 << 20;
/// Bytes that take no buffer: a small record, or the head of a longer one.
const NEAR_BYTES: usize = 192;

/// Bytes that were read.
pub(super) enum Bytes {
    /// Few. Behind a pointer: what was read is handed on several times, of which each would copy them.
    Near(Box<[u8; NEAR_BYTES]>, usize),
    /// Blocks of the device, or many bytes.
    Pooled(IoBuf),
}

impl Bytes {
    /// A copy.
    pub(super) fn copy_of(pool: &BufferPool, bytes: &[u8]) -> Bytes {
        if bytes.len() > NEAR_BYTES {
            return Bytes::Pooled(pool.copy_of(bytes));
        }
        let mut near = Box::new([0; NEAR_BYTES]);
        if let Some(place) = near.get_mut(..bytes.len()) {
            place.copy_from_slice(bytes);
        }
        Bytes::Near(near, bytes.len())
    }

    /// Memory besides this.
    fn memory_bytes(&self) -> u64 {
        match self {
            Bytes::Near(..) => 0,
            Bytes::Pooled(buffer) => memory_of(buffer.len() as u64),
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Near(bytes, length) => bytes.get(..*length).unwrap_or(&[]),
            Bytes::Pooled(buffer) => buffer,
        }
    }
}

/// A record that was read and checked.
pub(super) struct Fetched {
    buffer: Bytes,
    /// It was checked against its place: it comes from the device.
    checked: bool,
    meta: RecordMeta,
    /// Where in the buffer record, key and value start, and all of them end.
    start: usize,
    key: usize,
    value: usize,
    end: usize,
}

/// The parts of a fetched record.
pub(super) struct FetchedRecord<'a> {
    pub(super) meta: RecordMeta,
    pub(super) key: &'a [u8],
}

impl Fetched {
    /// The record at `start` of `buffer`; with `place`, it has the checksum of a record that stands there.
    pub(super) fn decode(
        buffer: Bytes,
        start: usize,
        base: Version,
        place: Option<Place>,
    ) -> Result<Fetched, Flaw> {
        let record = Record::decode(buffer.get(start..).unwrap_or(&[]), base, place)?;
        let key = start + record.body_start;
        let value = key + record.key.len();
        let end = value + record.value.len();
        let (meta, checked) = (record.meta, place.is_some());
        Ok(Fetched { buffer, checked, meta, start, key, value, end })
    }

    pub(super) fn record(&self) -> FetchedRecord<'_> {
        FetchedRecord { meta: self.meta, key: self.buffer.get(self.key..self.value).unwrap_or(&[]) }
    }

    pub(super) fn value(&self) -> &[u8] {
        self.buffer.get(self.value..self.end).unwrap_or(&[])
    }

    pub(super) fn attributes(&self) -> Attributes {
        let RecordMeta { flags, expires_at, state, .. } = self.meta;
        Attributes { flags, expires_at, state }
    }

    /// The record as it stands on media; `None` if it may not stand there yet.
    pub(super) fn on_media(&self) -> Option<&[u8]> {
        self.buffer.get(self.start..self.end).filter(|_| self.checked)
    }

    pub(super) fn into_value(self) -> Value {
        let (version, attributes) = (self.meta.version, self.attributes());
        match self.buffer {
            Bytes::Pooled(buffer) => Value::new(buffer, self.value..self.end, version, attributes),
            Bytes::Near(..) => Value::small(self.value(), version, attributes),
        }
    }
}

impl Depot {
    pub(super) fn check_key(&self, key: &[u8]) -> Result<()> {
        if key.is_empty() || key.len() > KEY_SIZE_MAX_BYTES {
            return Err(Error::invalid(
                "use key",
                format!("a key of {} bytes: keys have 1 to {KEY_SIZE_MAX_BYTES} bytes", key.len()),
            ));
        }
        Ok(())
    }

    pub(super) fn get_record(&self, key: &[u8], admit: Admit<'_>) -> Result<Option<Value>> {
        self.check_key(key)?;
        if self.log.is_closed() {
            return Err(Error::new(ErrorKind::Closed, "get"));
        }
        let hash = self.hash(key);
        if esker_trt::others_ready() {
            // The index comes from memory while they do something.
            self.index.prefetch(hash);
            esker_trt::yield_now();
        }
        // What the caller refuses is no failed read, which is tried again.
        let refused = Cell::new(None);
        let admit: Admit<'_> = &mut |bytes| {
            admit(bytes).map_err(|error| {
                refused.set(Some(error));
                Error::new(ErrorKind::Cancelled, "get")
            })
        };
        loop {
            let offered = self.offered(hash);
            let found = self.find(&offered, key, admit);
            if let Some(error) = refused.take() {
                return Err(error);
            }
            let (link, fetched) = match found {
                Err(_) if self.is_over(hash, &offered) => continue,
                Err(error) if self.is_lost(&error) => return Ok(None),
                found => match found? {
                    Some(found) => found,
                    None => return Ok(None),
                },
            };
            if fetched.meta.kind != RecordKind::Large {
                return Ok(Some(fetched.into_value()));
            }
            let read = self.read_large(&fetched, admit);
            if let Some(error) = refused.take() {
                return Err(error);
            }
            match read {
                Ok(Some(value)) => return Ok(Some(value)),
                Err(error) if self.is_lost(&error) => return Ok(None),
                Err(error) => return Err(error),
                // Superseded meanwhile, or else:
                Ok(None) if self.offered(hash) == offered => {
                    let offset = self.layout.offset_of(link);
                    let error = self.corrupted(offset, 0, "nothing is known of a value's extents");
                    return if self.is_lost(&error) { Ok(None) } else { Err(error) };
                }
                Ok(None) => {}
            }
        }
    }

    /// The most memory that a read of `key` takes, as far as the index knows.
    pub(super) fn read_size(&self, key: &[u8]) -> u64 {
        let links = self.index.lookup(self.hash(key));
        let sizes = links.iter().map(|link| match link.size() {
            SizeHint::Tombstone => 0,
            SizeHint::Large => {
                let extents = self.extents.count_of(link) as u64;
                memory_of(PEEK_SIZE.max(extents * self.layout.extent_size()))
            }
            SizeHint::Grains(grains) => {
                let offset = self.layout.offset_of(link);
                let end = round_up(offset + grains * SIZE_UNIT_BYTES, self.layout.block);
                end.map_or(0, |end| memory_of(end - round_down(offset, self.layout.block)))
            }
        });
        sizes.max().unwrap_or(0)
    }

    /// The records that the index offers for a hash, each with the life of its segment in which it does. What is read of that life was
    /// so, whatever becomes of the segment meanwhile.
    pub(super) fn offered(&self, hash: u64) -> Offered {
        loop {
            let generation = self.segments.generation();
            let links = self.index.lookup(hash);
            let offered = links.iter().map(|link| (link, self.life_of(link))).collect();
            if !self.is_reused_since(generation) {
                return offered;
            }
        }
    }

    /// Whether the index offers something else by now than it did: what could not be read may have been overwritten. If not, it could be
    /// read, whatever became of other segments.
    pub(super) fn is_over(&self, hash: u64, offered: &Offered) -> bool {
        self.offered(hash) != *offered && !sites::READ_GENERATION.disabled()
    }

    /// Whether a segment was reused, or given back, since then.
    pub(super) fn is_reused_since(&self, generation: u64) -> bool {
        self.segments.generation() != generation && !sites::READ_GENERATION.disabled()
    }

    fn find(
        &self,
        offered: &Offered,
        key: &[u8],
        admit: Admit<'_>,
    ) -> Result<Option<(Link, Fetched)>> {
        let mut lost = None;
        for (link, life) in offered.iter().copied() {
            if link.is_tombstone() {
                continue;
            }
            let fetched = match self.read_kept(link, life, admit) {
                // Another key's, perhaps, whose hash the index does not tell from this one's.
                Err(error) if error.is_unread() => {
                    lost = Some(error);
                    continue;
                }
                read => read?,
            };
            let record = fetched.record();
            if record.key == key || sites::RECORD_KEY.disabled() {
                if !self.is_valid(record.meta) {
                    return Ok(None);
                }
                self.touch(link);
                return Ok(Some((link, fetched)));
            }
        }
        let Some(error) = lost else { return Ok(None) };
        // What is known to be deleted is not what cannot be read.
        let is_deleted = |(link, life): &(Link, Lived)| {
            let read = link.is_tombstone().then(|| self.read_again(*link, *life).ok()).flatten();
            read.is_some_and(|fetched| {
                let record = fetched.record();
                record.meta.kind == RecordKind::Delete && record.key == key
            })
        };
        if offered.iter().any(is_deleted) { Ok(None) } else { Err(error) }
    }

    /// Whether what could not be read is gone: in a cache it is as good as evicted, for it may be at any time. Who writes such a key takes
    /// its place ([`Depot::resolve`]).
    pub(super) fn is_lost(&self, error: &Error) -> bool {
        let is_lost = self.superblock.cache && error.is_unread();
        if is_lost {
            tracing::debug!(%error, "a record cannot be read: the cache does without");
        }
        is_lost
    }

    /// The hash of the key that a record is about.
    pub(super) fn hash_of(&self, record: &FetchedRecord<'_>) -> u64 {
        match record.meta.kind {
            RecordKind::Evict => evicted_hash(record.key),
            _ => self.hash(record.key),
        }
    }

    /// Marks the segment of a record that was asked for as used.
    pub(super) fn touch(&self, link: Link) {
        if let Some(segment) = self.layout.segment_of(self.layout.offset_of(link)) {
            self.touch_segment(segment);
        }
    }

    /// Marks a segment as used, in a cache.
    pub(super) fn touch_segment(&self, segment: SegmentId) {
        if self.superblock.cache {
            self.segments.used(segment, self.clock.monotonic());
        }
    }

    /// Whether a record gives its key a value now.
    pub(super) fn is_valid(&self, meta: RecordMeta) -> bool {
        meta.kind.has_value() && !self.clock.is_expired(meta.expires_at)
    }

    /// Reads and checks the record that `link` points at; a bad checksum is read again, in case the
    /// bytes were damaged on their way.
    pub(super) fn read_record(&self, link: Link) -> Result<Fetched> {
        self.read_of(link, None, &mut |_| Ok(()))
    }

    /// As [`Depot::read_record`], of this life of its segment, from DRAM if it is kept there; it is not kept for this.
    pub(super) fn read_again(&self, link: Link, life: Lived) -> Result<Fetched> {
        let (salt, base) = life;
        if let Some(kept) = self.record_cache.as_ref().and_then(|cache| cache.peek((link, salt))) {
            return self.fetch_kept(&kept, base, &mut |_| Ok(()));
        }
        self.read_of(link, Some(life), &mut |_| Ok(()))
    }

    fn fetch_kept(&self, kept: &[u8], base: Sequence, admit: Admit<'_>) -> Result<Fetched> {
        let kept = Bytes::copy_of(&self.pool, kept);
        admit(kept.memory_bytes())?;
        // It was checked when it was read.
        Fetched::decode(kept, 0, Version(base.0), None)
            .map_err(|flaw| self.corrupted(0, 0, &flaw.to_string()))
    }

    /// As [`Depot::read_again`], and it is kept.
    fn read_kept(&self, link: Link, life: Lived, admit: Admit<'_>) -> Result<Fetched> {
        let (salt, base) = life;
        let Some(cache) = &self.record_cache else {
            return self.read_of(link, Some(life), admit);
        };
        if let Some(kept) = cache.get((link, salt)) {
            return self.fetch_kept(&kept, base, admit);
        }
        let fetched = self.read_of(link, Some(life), admit)?;
        if let Some(record) = fetched.on_media() {
            cache.keep((link, salt), record);
        }
        Ok(fetched)
    }

    /// Reads the record of this life of its segment; of the life it has if `None`.
    fn read_of(&self, link: Link, life: Option<Lived>, admit: Admit<'_>) -> Result<Fetched> {
        let mut tries = 1;
        loop {
            match self.read_record_once(link, life, admit) {
                Err(error)
                    if tries < READ_TRIES
                        && matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupted) =>
                {
                    tries += 1;
                }
                result => return result,
            }
        }
    }

    pub(super) fn read_record_once(
        &self,
        link: Link,
        life: Option<Lived>,
        admit: Admit<'_>,
    ) -> Result<Fetched> {
        let offset = self.layout.offset_of(link);
        let Some(segment) = self.layout.segment_of(offset) else {
            return Err(self.corrupted(offset, 0, "the index points outside the segments"));
        };
        if let Some(fetched) = self.unwritten_record(segment, offset) {
            // Memory does not tell of which life it is.
            return match life.is_none_or(|life| self.segments.place(segment) == life) {
                true => Ok(fetched),
                false => Err(self.corrupted(offset, 0, "the segment was reused")),
            };
        }
        let (salt, base) = life.unwrap_or_else(|| self.segments.place(segment));
        let limit = self.layout.segment_offset(segment) + self.layout.segment_size;
        let expected = match link.size() {
            SizeHint::Grains(grains) => grains * SIZE_UNIT_BYTES,
            SizeHint::Tombstone | SizeHint::Large if self.device.reads_bytes() => NEAR_BYTES as u64,
            SizeHint::Tombstone | SizeHint::Large => PEEK_SIZE,
        };
        let (mut buffer, mut start) = self.read_range(offset, expected, limit, admit)?;
        let bytes = buffer.get(start..).unwrap_or(&[]);
        let size = Record::peek_size(bytes)
            .map_err(|flaw| self.corrupted(offset, expected, &flaw.to_string()))?;
        if size > bytes.len() {
            // Only where the index does not know the size: the second read.
            (buffer, start) = self.read_range(offset, size as u64, limit, admit)?;
        }
        let place = (!sites::RECORD_CHECKSUM.disabled()).then_some(Place { salt, offset });
        Fetched::decode(buffer, start, Version(base.0), place)
            .map_err(|flaw| self.corrupted(offset, size as u64, &flaw.to_string()))
    }

    /// Reads `offset..offset + length`, or the blocks around it, which end at `limit` at the latest;
    /// returns what was read and where `offset` lies there.
    fn read_range(
        &self,
        offset: u64,
        length: u64,
        limit: u64,
        admit: Admit<'_>,
    ) -> Result<(Bytes, usize)> {
        let (first, size) = self.blocks_of(offset, length, limit)?;
        if self.device.reads_bytes() && size <= NEAR_BYTES {
            admit(0)?;
            let mut near = Box::new([0; NEAR_BYTES]);
            let bytes = near.get_mut(..size).unwrap_or_default();
            self.device.read_at(sites::RECORD_READ, first, bytes)?;
            return Ok((Bytes::Near(near, size), 0));
        }
        admit(memory_of(size as u64))?;
        let mut buffer = self.pool.get(size);
        self.device.read_at(sites::RECORD_READ, first, &mut buffer)?;
        Ok((Bytes::Pooled(buffer), usize::try_from(offset - first).unwrap_or(0)))
    }

    /// What is read for `offset..offset + length`: where it begins, and its size.
    pub(super) fn blocks_of(&self, offset: u64, length: u64, limit: u64) -> Result<(u64, usize)> {
        let block = if self.device.reads_bytes() { 1 } else { self.layout.block };
        let first = round_down(offset, block);
        let last = round_up(offset + length, block).unwrap_or(limit).min(limit);
        let size = last.checked_sub(first).and_then(|size| usize::try_from(size).ok());
        let past = || self.corrupted(offset, length, "a record reaches past its segment");
        Ok((first, size.ok_or_else(past)?))
    }

    pub(super) fn corrupted(&self, offset: u64, length: u64, what: &str) -> Error {
        Error::corrupted("read record", what).device(self.device.name()).at(offset, length)
    }

    /// The items of one part of the hash space, and where the next part begins. Each is read in the life of its segment in
    /// which the index had it. Where a segment was reused before that, the part is looked up again, and what is new of it
    /// is read; what was read of an entry that is still the same, good or bad, stays.
    pub(super) fn walk_part(&self, from: &Cursor) -> (Items, Option<Cursor>) {
        let from = match from {
            Cursor::Hash(hash) => *hash,
            Cursor::Start | Cursor::Key(_) => 0,
        };
        let mut before: HashMap<(Link, Lived), Result<Option<Walked>>> = HashMap::new();
        loop {
            let generation = self.segments.generation();
            let in_peace = || !self.is_reused_since(generation);
            let Some((links, next)) = self.index.walk(from) else { return (Items::new(), None) };
            let live = links.into_iter().filter(|link| !link.is_tombstone());
            let live: Vec<_> = live.map(|link| (link, self.life_of(link))).collect();
            if !in_peace() {
                continue;
            }
            let (mut doubtful, mut held) = (false, 0);
            let mut read = Vec::with_capacity(live.len());
            for (link, life) in live {
                let mut item = before.remove(&(link, life)).unwrap_or_else(|| {
                    let item = self.read_item(link);
                    // It may have failed as its segment is free by now.
                    doubtful |= item.is_err() || self.life_of(link) != life;
                    item
                });
                if let Ok(Some((_, value))) = &mut item {
                    *value = value.take().filter(|_| held < WALK_BYTES_MAX);
                    held += value.as_ref().map_or(0, Value::memory_bytes);
                }
                read.push(((link, life), item));
            }
            if !doubtful || in_peace() {
                let items = read.into_iter().filter_map(|(_, item)| item.transpose());
                return (items.collect(), Some(Cursor::Hash(next)));
            }
            before = read.into_iter().collect();
        }
    }

    /// What identifies the life of the segment that a link points to.
    fn life_of(&self, link: Link) -> Lived {
        let segment = self.layout.segment_of(self.layout.offset_of(link));
        segment.map_or((0, Sequence(0)), |segment| self.segments.place(segment))
    }

    fn read_item(&self, link: Link) -> Result<Option<Walked>> {
        let fetched = self.read_record(link)?;
        let valid = self.is_valid(fetched.meta).then(|| {
            let key = fetched.record().key.to_vec();
            let large = fetched.meta.kind == RecordKind::Large;
            (key, (!large).then(|| fetched.into_value()))
        });
        Ok(valid)
    }

    /// The version of the newest write.
    pub(super) fn last_version(&self) -> Version {
        Version(self.log.next_version().0.saturating_sub(1))
    }
}

/// A life of a segment: salt and first sequence number.
pub(super) type Lived = (u64, Sequence);

/// Records that the index offers for a hash: nearly always one.
pub(super) type Offered = SmallVec<[(Link, Lived); 1]>;

/// What a walk meets: a key, and its value unless that is read by itself.
type Walked = (Vec<u8>, Option<Value>);

/// Memory of a buffer for `length` bytes.
pub(super) fn memory_of(length: u64) -> u64 {
    let capacity = usize::try_from(length).ok().map(BufferPool::capacity_for);
    capacity.map_or(length, |capacity| capacity as u64)
}

#[cfg(test)]
mod tests;
