//! Large values: written and read piece by piece (uDepot §4.1, §4.5).
//!
//! A put writes the extents of the value one behind the other, each a batch of its own, and then the
//! record of the key, which makes them count. A get reads the record, then each extent straight to its
//! place in the value's buffer.
//!
//! # Failure
//! A crash before the record of the key is on media leaves extents that nobody names: dead.

use super::commit::{Append, Item};
use super::extents::Building;
use super::read::{Fetched, memory_of};
use super::write::Change;
use super::{Depot, gather, sites};
use crate::engine::Admit;
use crate::value::{Attributes, Condition, Outcome, Value};
use esker_base::units::{format_size_bytes, round_down, round_up};
use esker_base::{Error, ErrorKind, Result};
use esker_format::Flaw;
use esker_format::depot::{
    BATCH_HEADER_SIZE, ExtentKey, LARGE_VALUE_SIZE, LargeRef, LargeValue, Place, RecordKind,
    RecordMeta, VersionForm, decode_extent,
};
use esker_index::Link;
use std::io::IoSliceMut;

/// Largest value in bytes.
pub(super) const VALUE_SIZE_MAX_BYTES: usize = 4 << 30;
/// How often an extent that cannot be read is tried.
const READ_TRIES: u32 = 3;

impl Depot {
    /// Whether a value is too long to stand in the record of its key.
    pub(super) fn is_large(&self, key: &[u8], value: &[u8]) -> bool {
        value.len() as u64 > self.layout.inline_max(key.len())
    }

    pub(super) fn put_large(
        &self,
        key: &[u8],
        value: &[u8],
        attributes: Attributes,
        condition: Condition,
    ) -> Result<Outcome> {
        let hash = self.hash(key);
        loop {
            if condition != Condition::Always
                && self.pending.lock(hash).find(hash, key).is_none()
                && let Some(refused) =
                    self.decide(condition, self.resolve(hash, key, condition)?.known)
            {
                return Ok(refused);
            }
            let (building, head) = self.write_extents(hash, value)?;
            let large = Some(building.id);
            let change =
                Change { kind: RecordKind::Large, value: &head, attributes, condition, large };
            while building.is_there() {
                if let Some(outcome) = self.try_write(key, &change)? {
                    return Ok(outcome);
                }
            }
        }
    }

    /// Refuses large values of so many bytes together for which there is no room.
    pub(super) fn check_room_for_large(&self, bytes: u64) -> Result<()> {
        // A cache makes room for what is not most of it.
        let share = if self.superblock.cache { 2 } else { 1 };
        let kept = self.segments.kept_of_live(self.superblock.cache);
        let room_beside = |lacking: usize| self.layout.room(kept + lacking) / share;
        let room = room_beside(self.segments.hole_count());
        let live = match self.superblock.cache {
            true => 0,
            false => self.unexpired_bytes_beside(bytes, room),
        };
        let all = live.saturating_add(bytes);
        if all <= room {
            // What may be holes is asked, as far as it takes.
            let more = all.saturating_sub(room_beside(self.segments.lacking())) * share;
            let more = usize::try_from(more.div_ceil(self.layout.batch_max())).unwrap_or(0);
            let wanted = self.segments.known() + more;
            self.known_room(wanted.min(self.segments.free_count()));
        }
        let room = room_beside(self.segments.hole_count());
        if all > room {
            let [bytes, room, left] =
                [bytes, room, room.saturating_sub(live)].map(format_size_bytes);
            let words = match self.superblock.cache {
                true => format!("large values take {bytes}, and this cache {room} of them at once"),
                false => format!("large values take {bytes}, and {left} of {room} are left"),
            };
            return Err(Error::new(ErrorKind::NoSpace, "put").context(words));
        }
        Ok(())
    }

    /// Writes the extents of a value, and returns what the record of its key says. They are dead again
    /// when what is returned goes and no record does.
    pub(super) fn write_extents(
        &self,
        hash: u64,
        value: &[u8],
    ) -> Result<(Building<'_>, [u8; LARGE_VALUE_SIZE])> {
        if value.len() > VALUE_SIZE_MAX_BYTES {
            let words = format!(
                "a value of {} bytes is over the limit of {VALUE_SIZE_MAX_BYTES} bytes",
                value.len()
            );
            return Err(Error::invalid("put", words));
        }
        self.check_room_for_large(value.len() as u64)?;
        let extent_size = usize::try_from(self.layout.extent_size()).unwrap_or(1 << 20);
        let mut large = LargeValue {
            id: 0,
            size_bytes: value.len() as u64,
            extent_size_bytes: u32::try_from(extent_size).unwrap_or(1 << 20),
        };
        let building = self.begin_large(large.count());
        large.id = building.id;
        for (number, part) in (0..).zip(value.chunks(extent_size)) {
            let name = ExtentKey { id: large.id, number, hash: gather(hash) };
            self.write_extent(hash, name, part)?;
            if !building.is_there() {
                // Cleared away: the caller begins again.
                break;
            }
        }
        Ok((building, large.encode()))
    }

    fn write_extent(&self, hash: u64, name: ExtentKey, part: &[u8]) -> Result<()> {
        let block = usize::try_from(self.layout.block).unwrap_or(4096);
        let meta = RecordMeta::new(RecordKind::Extent);
        let key = name.encode((VersionForm::Distance, meta.version), block, part.len());
        let item = [Item { hash, meta, key: &key, value: part }];
        loop {
            if self.writes_later() {
                // So that a checkpoint can wait until what was appended is entered.
                let stripe = self.pending.lock(hash);
                let later = self.write_later(&item, &[None])?;
                drop(stripe);
                if self.after_later(later)?.is_some() {
                    return Ok(());
                }
                continue;
            }
            match self.append(&item)? {
                Append::Done(appended) => return self.finish(&appended),
                // Its writers are told what became of it; this one just comes again.
                Append::Full(ticket) => drop(ticket.wait()),
                Append::NoRoom(kept) => self.make_room(kept)?,
            }
        }
    }

    /// The value that a key's record names, or `None` if it was superseded meanwhile.
    pub(super) fn read_large(&self, head: &Fetched, admit: Admit<'_>) -> Result<Option<Value>> {
        let large = self.large_of(head)?;
        let blocks = round_up(large.size_bytes, self.layout.block);
        let size = blocks.and_then(|size| usize::try_from(size).ok());
        let size = size.ok_or_else(|| Error::invalid("get", "a value is longer than memory"))?;
        admit(memory_of(size as u64))?;
        let mut buffer = self.pool.get(size);
        let extent_size = usize::try_from(large.extent_size_bytes).unwrap_or(usize::MAX);
        let mut targets = buffer.chunks_mut(extent_size);
        let is_there = self.read_extents(large, |number| match targets.next() {
            Some(target) => self.read_extent(large, number, target),
            None => Ok(true),
        })?;
        if !is_there {
            return Ok(None);
        }
        let value = 0..usize::try_from(large.size_bytes).unwrap_or(size);
        Ok(Some(Value::new(buffer, value, head.record().meta.version, head.attributes())))
    }

    fn large_of(&self, head: &Fetched) -> Result<LargeValue> {
        let large = LargeValue::decode(head.value()).ok();
        let fits = |large: &LargeValue| large.size_bytes <= VALUE_SIZE_MAX_BYTES as u64;
        large.filter(fits).ok_or_else(|| self.corrupted(0, 0, "a large value has no sizes"))
    }

    /// Reads all extents of a value.
    pub(super) fn check_extents(&self, head: &Fetched) -> Result<()> {
        let large = self.large_of(head)?;
        let size = round_up(u64::from(large.extent_size_bytes), self.layout.block);
        let mut buffer = self.pool.get(size.and_then(|s| usize::try_from(s).ok()).unwrap_or(0));
        self.read_extents(large, |number| self.read_extent(large, number, &mut buffer))?;
        Ok(())
    }

    /// Reads each extent of a value by `read`, and notes what came of it; false if the value was superseded meanwhile.
    fn read_extents(
        &self,
        large: LargeValue,
        mut read: impl FnMut(u32) -> Result<bool>,
    ) -> Result<bool> {
        for number in 0..large.count() {
            match read(number) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => {
                    if error.is_unread() {
                        self.extents.note_read(large.id, true);
                    }
                    return Err(error);
                }
            }
        }
        self.extents.note_read(large.id, false);
        Ok(true)
    }

    /// Whether a cache has lost the value that a key's record names. It is read for this only if nobody has read it yet: what the last
    /// read met is good enough, for many may ask who are refused for its sake.
    pub(super) fn has_lost_value(&self, head: &Fetched) -> Result<bool> {
        if !self.superblock.cache || head.record().meta.kind != RecordKind::Large {
            return Ok(false);
        }
        let read = self.large_of(head).and_then(|large| match self.extents.is_lost(large.id) {
            Some(is_lost) => Ok(is_lost),
            // Nothing may be known of its extents.
            None => self.check_extents(head).map(|()| !self.extents.has(large.id)),
        });
        match read {
            Err(error) if self.is_lost(&error) => Ok(true),
            read => read,
        }
    }

    /// Reads an extent to the start of `target`; false if the value was superseded meanwhile.
    fn read_extent(&self, large: LargeValue, number: u32, target: &mut [u8]) -> Result<bool> {
        let piece = LargeRef { id: large.id, number };
        let mut tries = 1;
        loop {
            let Some(link) = self.extents.link(piece) else {
                if !self.extents.has(piece.id) {
                    return Ok(false);
                }
                let words = format!("extent {number} of a large value is missing");
                return Err(self.corrupted(0, 0, &words));
            };
            let length = usize::try_from(large.length_of(number)).unwrap_or(usize::MAX);
            match self.read_extent_at(link, piece, length, target) {
                Ok(()) => {
                    self.touch(link);
                    return Ok(true);
                }
                // Moved, or gone with its value.
                Err(_) if self.extents.link(piece) != Some(link) => {}
                Err(error) if tries >= READ_TRIES => return Err(error),
                Err(_) => tries += 1,
            }
        }
    }

    /// E3 of the extents.
    fn read_extent_at(
        &self,
        link: Link,
        piece: LargeRef,
        length: usize,
        target: &mut [u8],
    ) -> Result<()> {
        let offset = self.layout.offset_of(link);
        let block = self.layout.block;
        let blocks = length.next_multiple_of(usize::try_from(block).unwrap_or(4096));
        if offset % block == BATCH_HEADER_SIZE as u64
            && let Some(target) = target.get_mut(..blocks)
            && self.read_aligned(offset, piece, length, target)?
        {
            return Ok(());
        }
        let fetched = self.read_record_once(link, None, &mut |_| Ok(()))?;
        let record = fetched.record();
        let of_piece = ExtentKey::decode(record.key)
            .is_ok_and(|key| LargeRef { id: key.id, number: key.number } == piece);
        let value = fetched.value();
        match target.get_mut(..length) {
            Some(target)
                if of_piece && record.meta.kind == RecordKind::Extent && value.len() == length =>
            {
                target.copy_from_slice(value);
                Ok(())
            }
            _ => Err(self.corrupted(offset, length as u64, "another record stands here")),
        }
    }

    /// Reads an extent whose value starts at the start of a block, with one read and no copy; false if
    /// it is not such a one.
    fn read_aligned(
        &self,
        offset: u64,
        piece: LargeRef,
        length: usize,
        target: &mut [u8],
    ) -> Result<bool> {
        let block = self.layout.block;
        let start = round_down(offset, block);
        let Some(segment) = self.layout.segment_of(offset) else { return Ok(false) };
        let end = start + block + target.len() as u64;
        let limit = self.layout.segment_offset(segment) + self.layout.segment_size;
        if self.is_unwritten(segment, offset) || end > limit {
            return Ok(false);
        }
        let (salt, _) = self.segments.place(segment);
        let mut head = self.pool.get(usize::try_from(block).unwrap_or(4096));
        let mut parts = [IoSliceMut::new(&mut head), IoSliceMut::new(target)];
        self.device.read_vectored_at(sites::RECORD_READ, start, &mut parts)?;
        let head = head.get(BATCH_HEADER_SIZE..).unwrap_or(&[]);
        let place = (!sites::RECORD_CHECKSUM.disabled()).then_some(Place { salt, offset });
        match decode_extent(head, target, place) {
            Ok((key, size)) => {
                let found = LargeRef { id: key.id, number: key.number };
                if found == piece && size == length {
                    return Ok(true);
                }
                Err(self.corrupted(offset, length as u64, "another extent stands here"))
            }
            Err(Flaw::Field(_)) => Ok(false),
            Err(flaw) => Err(self.corrupted(offset, length as u64, &flaw.to_string())),
        }
    }
}
