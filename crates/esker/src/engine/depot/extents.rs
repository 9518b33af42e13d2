//! Where the extents of large values are (uDepot §4.1: values of any size).
//!
//! A value that is too long for a record of its own stands in extents. They are not in the index: this
//! table has a link to each, 8 bytes of DRAM for what is normally a MiB, under the value's id, and
//! the id under the link to the record of the value's key, its *head*.
//!
//! # Invariants
//! - E1: the extents of a value are live from when they are written until the value's head is
//!   superseded, or its writer gives up before there is one.
//! - E2: on media, an extent counts only if the record that counts of some key names its value; so
//!   nothing is written when a value goes, and what a crash leaves of an unfinished one is dead.
//! - E3: an extent that a read brings has the id and number that were asked for. Extents never change,
//!   so it is right wherever it was found, also if its segment is being reused.
//!
//! # Concurrency
//! One short lock, innermost but for the free list's and those of what is known of segments: counts of the segment table change
//! under it, so that they agree with the table also while everything is cleared.

use super::Depot;
use super::segments::Live;
use esker_base::ids::{SegmentId, Version};
use esker_format::depot::{CheckpointExtents, LargeRef};
use esker_index::Link;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// A value.
#[derive(Clone, Debug, Default)]
struct Large {
    head: Option<Link>,
    links: Box<[Option<Link>]>,
    /// When it expires, in Unix seconds, as far as that is known.
    expires_at: Option<u64>,
    /// Whether the last read of all of it failed; `None`: nobody has read it.
    is_lost: Option<bool>,
}

#[derive(Debug, Default)]
struct Table {
    values: HashMap<u64, Large>,
    heads: HashMap<Link, u64>,
}

/// The table.
#[derive(Debug, Default)]
pub(super) struct Extents {
    table: Mutex<Table>,
    /// Live extents.
    count: AtomicU64,
}

impl Extents {
    /// Live extents of all values.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// A value of so many extents is about to be written.
    fn begin(&self, id: u64, count: u32) {
        let links = vec![None; usize::try_from(count).unwrap_or(0)].into();
        self.table.lock().values.insert(id, Large { links, ..Large::default() });
    }

    /// Whether the value is there, or on its way.
    pub(super) fn has(&self, id: u64) -> bool {
        self.table.lock().values.contains_key(&id)
    }

    /// A read of all of the value brought it, or could not.
    pub(super) fn note_read(&self, id: u64, is_lost: bool) {
        if let Some(large) = self.table.lock().values.get_mut(&id) {
            large.is_lost = Some(is_lost);
        }
    }

    /// Whether the last read of all of the value failed, if somebody has read it.
    pub(super) fn is_lost(&self, id: u64) -> Option<bool> {
        self.table.lock().values.get(&id)?.is_lost
    }

    /// Number of extents of the value with this head.
    pub(super) fn count_of(&self, head: Link) -> usize {
        let table = self.table.lock();
        let large = table.heads.get(&head).and_then(|id| table.values.get(id));
        large.map_or(0, |large| large.links.len())
    }

    /// The link to the record of the value's key, if the value has one.
    pub(super) fn head(&self, id: u64) -> Option<Link> {
        self.table.lock().values.get(&id)?.head
    }

    /// The link to an extent.
    pub(super) fn link(&self, piece: LargeRef) -> Option<Link> {
        let table = self.table.lock();
        let links = &table.values.get(&piece.id)?.links;
        links.get(usize::try_from(piece.number).ok()?).copied().flatten()
    }

    /// An extent was written; `count` counts it as live, unless its value is gone.
    fn enter(&self, piece: LargeRef, link: Link, count: impl FnOnce()) {
        let mut table = self.table.lock();
        let Some(place) = table.place(piece) else { return };
        if place.replace(link).is_none() {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        count();
    }

    /// It is known when a value expires: `told` is told of its extents, unless it was known before.
    pub(super) fn expire(&self, id: u64, expires_at: u64, told: impl FnMut(Link)) {
        let mut table = self.table.lock();
        if let Some(large) = table.values.get_mut(&id)
            && large.expires_at.replace(expires_at).is_none()
        {
            large.links.iter().copied().flatten().for_each(told);
        }
    }

    /// Lets `look` ask when values expire, as far as that is known; more is not known before it ends.
    pub(super) fn with_expiries(&self, look: impl FnOnce(&dyn Fn(u64) -> Option<u64>)) {
        let table = self.table.lock();
        look(&|id| table.values.get(&id)?.expires_at);
    }

    /// The cleaner made a copy of an extent; `count` is called if the copy takes its place, with when it expires.
    pub(super) fn follow(
        &self,
        piece: LargeRef,
        old: Link,
        new: Link,
        count: impl FnOnce(Option<u64>),
    ) -> bool {
        let mut table = self.table.lock();
        let Some(place) = table.place(piece).filter(|place| **place == Some(old)) else {
            return false;
        };
        *place = Some(new);
        count(table.values.get(&piece.id).and_then(|large| large.expires_at));
        true
    }

    /// The key's record stands at `head`.
    pub(super) fn adopt(&self, id: u64, head: Link) {
        let mut table = self.table.lock();
        let Some(large) = table.values.get_mut(&id) else { return };
        if let Some(old) = large.head.replace(head) {
            table.heads.remove(&old);
        }
        table.heads.insert(head, id);
    }

    /// The cleaner moved the key's record.
    pub(super) fn follow_head(&self, old: Link, new: Link) {
        let id = self.table.lock().heads.get(&old).copied();
        if let Some(id) = id {
            self.adopt(id, new);
        }
    }

    /// The record at `head` was superseded: `dead` is told of its extents.
    pub(super) fn release_head(&self, head: Link, dead: impl FnMut(Link)) {
        let mut table = self.table.lock();
        if let Some(id) = table.heads.remove(&head) {
            self.release(&mut table, id, dead);
        }
    }

    /// The writer of a value ends: if the value never got a head, its extents are dead.
    fn end(&self, id: u64, dead: impl FnMut(Link)) {
        let mut table = self.table.lock();
        if table.values.get(&id).is_some_and(|large| large.head.is_none()) {
            self.release(&mut table, id, dead);
        }
    }

    fn release(&self, table: &mut Table, id: u64, dead: impl FnMut(Link)) {
        let Some(large) = table.values.remove(&id) else { return };
        let links = large.links.iter().copied().flatten();
        self.count.fetch_sub(links.clone().count() as u64, Ordering::Relaxed);
        links.for_each(dead);
    }

    /// All values are gone; `clear` clears what counts them.
    pub(super) fn clear(&self, clear: impl FnOnce()) {
        let mut table = self.table.lock();
        *table = Table::default();
        self.count.store(0, Ordering::Relaxed);
        clear();
    }

    /// All values, for a checkpoint.
    pub(super) fn export(&self) -> Vec<CheckpointExtents> {
        let table = self.table.lock();
        let values = table.values.iter().map(|(id, large)| CheckpointExtents {
            id: *id,
            head: large.head.map_or(0, Link::to_bits),
            links: large.links.iter().map(|link| link.map_or(0, Link::to_bits)).collect(),
        });
        let mut values: Vec<_> = values.collect();
        values.sort_unstable_by_key(|value| value.id);
        values
    }
}

impl Table {
    fn place(&mut self, piece: LargeRef) -> Option<&mut Option<Link>> {
        self.values.get_mut(&piece.id)?.links.get_mut(usize::try_from(piece.number).ok()?)
    }
}

/// A value on its way: its extents are dead if it does not get there.
pub(super) struct Building<'a> {
    depot: &'a Depot,
    pub(super) id: u64,
}

impl Building<'_> {
    /// False once everything was cleared.
    pub(super) fn is_there(&self) -> bool {
        self.depot.extents.has(self.id)
    }
}

impl Drop for Building<'_> {
    fn drop(&mut self) {
        self.depot.end_large(self.id);
    }
}

impl Depot {
    /// A new value of so many extents.
    pub(super) fn begin_large(&self, count: u32) -> Building<'_> {
        // Another one also where, in tests, randomness repeats.
        let id = self.random() ^ super::spread(self.log.next_version().0);
        self.extents.begin(id, count);
        Building { depot: self, id }
    }

    /// A value without a head goes.
    pub(super) fn end_large(&self, id: u64) {
        // E2: nobody has to hear of it.
        self.extents.end(id, |link| self.let_go(link, Version(0)));
    }

    /// Counts a written extent as live.
    pub(super) fn enter_extent(&self, piece: LargeRef, segment: SegmentId, link: Link) {
        self.extents.enter(piece, link, || self.segments.add(segment, link, 0));
    }

    /// Recovery: the values whose heads count, with what was found of extents.
    pub(super) fn restore_large(
        &self,
        heads: &[(LargeRef, Link)],
        mut found: Vec<(LargeRef, Link)>,
    ) {
        // Of several copies any is good, but one alone counts: the last one (R5).
        found.sort_unstable_by(|(one, a), (other, b)| {
            let copies = || self.moves_of(*b).cmp(&self.moves_of(*a));
            (one.id, one.number).cmp(&(other.id, other.number)).then_with(copies)
        });
        found.dedup_by_key(|(piece, _)| (piece.id, piece.number));
        // A head may name any number of extents, and so may each of them: of those that are missing there are as many places in all as
        // there can be extents, and none behind the last one of a value.
        let mut missing = self.layout.room(0) / self.layout.block;
        for (piece, head) in heads {
            let start = found.partition_point(|(extent, _)| extent.id < piece.id);
            let of_value = found.get(start..).unwrap_or_default();
            let of_value = of_value.partition_point(|(extent, _)| extent.id == piece.id);
            let last = found.get(start..start + of_value).and_then(<[_]>::last);
            let wanted =
                last.map_or(0, |(last, _)| last.number.saturating_add(1).min(piece.number));
            let there = u32::try_from(of_value).unwrap_or(u32::MAX);
            let gaps = u64::from(wanted.saturating_sub(there)).min(missing);
            missing -= gaps;
            let places = u64::from(wanted.min(there)) + gaps;
            self.extents.begin(piece.id, u32::try_from(places).unwrap_or(u32::MAX));
            self.extents.adopt(piece.id, *head);
        }
        for (piece, link) in found {
            let segment = self.layout.segment_of(self.layout.offset_of(link));
            let count = || self.segments.restore_live(segment.unwrap_or_default(), Live::of(link));
            self.extents.enter(piece, link, count);
        }
    }

    /// The record at `head`, of a large value, was superseded by that of version `by`.
    pub(super) fn release_large(&self, head: Link, by: Version) {
        self.extents.release_head(head, |link| self.let_go(link, by));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use esker_media::sim::{SimBlock, SimBlockOptions};
    use std::sync::Arc;

    /// Whatever heads and extents say of their number, there are no more places than extents can be.
    #[test]
    fn heads_that_name_any_number_of_extents_take_little_memory() {
        let mut options = Options::new("");
        options.testing.segment_size_bytes = Some(8 << 10);
        options.testing.background = false;
        let device = Arc::new(SimBlock::new(SimBlockOptions::new(128 << 10, 1)));
        let store = Depot::open(device, &options).unwrap();
        let link = |place| Link::record(3, place).unwrap();
        let piece = |id, number| LargeRef { id, number };
        let heads: Vec<_> = (0..1000).map(|id| (piece(id, u32::MAX), link(100 + id))).collect();
        let mut found: Vec<_> = (1..1000).map(|id| (piece(id, u32::MAX - 1), link(9))).collect();
        // One that is whole, and one with a gap.
        let heads = [heads, vec![(piece(5000, 3), link(1)), (piece(6000, 3), link(2))]].concat();
        found.extend([0, 1, 2].map(|number| (piece(5000, number), link(10))));
        found.extend([0, 2].map(|number| (piece(6000, number), link(11))));
        store.restore_large(&heads, found);
        let places: usize = heads.iter().map(|(_, head)| store.extents.count_of(*head)).sum();
        assert!(places < 1000 + 10 + (128 << 10) / 512, "{places}");
        assert_eq!(store.extents.count_of(link(1)), 3);
        assert_eq!(store.extents.link(piece(5000, 2)), Some(link(10)));
    }
}
