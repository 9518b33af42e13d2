//! Taking in what recovery found: of each key the newest record (uDepot §4.4).
//!
//! # Concurrency
//! Threads take shares of the hash space. Nothing is shared with clients until the end.
//!
//! # Failure
//! Writes nothing: a crash leaves what recovery found.

use super::recover::{Found, Recovered, Scanned};
use super::segments::{Incarnation, Live, Use, Written};
use super::{Depot, sites};
use crate::engine::threads::on_threads;
use esker_base::ids::{SegmentEpoch, SegmentId, Version};
use esker_base::{ErrorKind, Result};
use esker_format::depot::{CheckpointExtents, LargeRef, Stream};
use esker_index::{Directory, Link};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering};

/// Shares of the hash space, each taken in by itself, told apart by so many bits of the hash.
const SHARE_BITS: u32 = 6;
const SHARES: u32 = 1 << SHARE_BITS;
/// How many of them are counted where there are so many records.
const SHARES_COUNTED: u32 = 4;
const COUNTED: usize = 1 << 18;
/// Links that are entered together.
const ENTERED: usize = 256;

/// What each thread found of one share of the hash space.
fn of_share(found: &[Vec<Found>], share: u32) -> impl Iterator<Item = &Found> {
    let share_of = |record: &Found| record.hash >> (64 - SHARE_BITS);
    found.iter().flat_map(move |of_thread| {
        let start = of_thread.partition_point(|r| share_of(r) < u64::from(share));
        let end = of_thread.partition_point(|r| share_of(r) <= u64::from(share));
        of_thread.get(start..end).unwrap_or(&[])
    })
}

/// Whether a record was written since all was cleared.
fn is_uncleared(record: &Found, clear: Version) -> bool {
    record.version() >= clear || sites::RECOVER_CLEAR.disabled()
}

/// The checkpoint's index, or a new one for `least` entries, with room for those that the log adds. They come in the order of their
/// hashes: where the directory has to grow for them, much of each table comes before that shows, and ends in the overflow.
pub(super) fn directory_with_room(
    found: &[Vec<Found>],
    clear: Version,
    index: Option<Directory>,
    least: u64,
) -> Result<Directory> {
    let is_known = |hash: &u64| match &index {
        Some(index) => index.lookup(*hash).iter().next().is_some(),
        None => false,
    };
    // What is new in a few shares of many records is as much in the others.
    let records: usize = found.iter().map(Vec::len).sum();
    let step = if records < COUNTED { 1 } else { SHARES / SHARES_COUNTED };
    let mut more = 0;
    for share in (0..SHARES).filter(|share| share.is_multiple_of(step)) {
        let counts = of_share(found, share).filter(|record| is_uncleared(record, clear));
        let mut hashes: Vec<u64> = counts.map(|record| record.hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        hashes.retain(|hash| !is_known(hash));
        more += u64::from(step) * hashes.len() as u64;
    }
    let Some(index) = index else { return Ok(Directory::with_capacity(more.max(least))) };
    let entries = index.len() + more;
    // Where less comes, tables grow as they do under writes; and there need not be memory for two.
    if more <= index.len() / 4 || entries <= index.capacity() / 8 * 7 {
        return Ok(index);
    }
    let larger = Directory::with_capacity(entries);
    let mut cursor = 0;
    while let Some((part, next)) = index.export(cursor) {
        larger.import(&part, |_| true)?;
        cursor = next;
    }
    Ok(larger)
}

impl Depot {
    /// Fills index and segment table from the log, and from the checkpoint that it was not read for.
    pub(super) fn adopt(&self, log: &mut Recovered) -> Result<()> {
        let tail = log.log_end().tail.map(|tail| tail.segment);
        for Scanned { header, written, .. } in &log.segments {
            let id = header.segment_id;
            let state = if Some(id) == tail { Use::Open } else { Use::Sealed };
            self.segments.restore(id, state, Incarnation::from(header));
            self.segments.add_written(id, *written);
        }
        let covered = self.adopt_checkpoint(log);
        self.take_out_overtaken(log)?;
        let log = &*log;
        let next = AtomicU32::new(0);
        on_threads("open store", log.threads, |_| {
            loop {
                let share = next.fetch_add(1, Ordering::Relaxed);
                if share >= SHARES {
                    return Ok(());
                }
                self.fold(of_share(&log.found, share).copied().collect(), log.clear_version)?;
            }
        })?;
        self.adopt_large(log);
        let read = log.segments.iter().map(|segment| segment.header.segment_id);
        // Those are nobody's before they are mended, also where they hold nothing.
        let is_damaged = |id| log.damaged.iter().any(|damage| damage.segment == id);
        for id in read.chain(covered) {
            if self.segments.state(id) == Use::Sealed && !is_damaged(id) {
                // The cleaner's last segments may hold nothing that counts, and those that were free hold nothing.
                self.segments.seal(id);
            }
        }
        log.blank.iter().for_each(|id| self.segments.add_free(*id, false));
        // Until their headers are blank nobody may take them for good ones.
        let headless = log.damaged.iter().filter(|damage| damage.headless);
        headless.for_each(|damage| self.segments.add_stale(damage.segment));
        let kept = log.checkpoint.as_ref().map(|loaded| &loaded.segments[..]).unwrap_or_default();
        for header in log.headers.iter().filter(|header| header.stream == Stream::Checkpoint) {
            if !kept.contains(&header.segment_id) {
                self.segments.add_stale(header.segment_id);
            }
        }
        self.segments.keep_checkpoint(kept);
        Ok(())
    }

    /// Takes over what the checkpoint says of segments; gives those that were not read.
    fn adopt_checkpoint(&self, log: &Recovered) -> Vec<SegmentId> {
        let Some(loaded) = &log.checkpoint else { return Vec::new() };
        let headers: HashMap<_, _> =
            log.headers.iter().map(|header| (header.segment_id, header)).collect();
        let mut covered = Vec::new();
        for segment in &loaded.end.segments {
            let id = segment.id;
            if loaded.covers.all_of(id)
                && let Some(header) = headers.get(&id)
            {
                self.segments.restore(id, Use::Sealed, Incarnation::from(*header));
                let written = Written {
                    bytes: segment.written_bytes,
                    tombstones: segment.tombstones,
                    beyond_bytes: segment.beyond_bytes,
                };
                self.segments.add_written(id, written);
                covered.push(id);
            }
        }
        (0..).map(SegmentId).zip(&loaded.live).for_each(|(id, live)| {
            self.segments.restore_live(id, *live);
        });
        self.restore_items(loaded.items);
        covered
    }

    /// Takes in the large values whose heads count, those that were found and those of the checkpoint.
    fn adopt_large(&self, log: &Recovered) {
        let newest = |(hash, _, link): &&(u64, LargeRef, Link)| {
            self.index.lookup(*hash).iter().any(|found| found == *link)
        };
        let heads = log.pieces.heads.iter().filter(newest);
        let mut heads: Vec<_> = heads.map(|(_, piece, link)| (*piece, *link)).collect();
        let mut extents = log.pieces.extents.clone();
        if let Some(loaded) = &log.checkpoint {
            let found: HashSet<Link> = log.pieces.heads.iter().map(|(.., link)| *link).collect();
            let stands = |bits: u64| {
                let link = Link::from_bits(bits)?;
                loaded.covers.segment_of(&self.layout, link).map(|_| link)
            };
            for CheckpointExtents { id, head, links } in &loaded.large {
                let count = u32::try_from(links.len()).unwrap_or(u32::MAX);
                let piece = |number| LargeRef { id: *id, number };
                heads.extend(
                    stands(*head).filter(|head| !found.contains(head)).map(|h| (piece(count), h)),
                );
                let of_value = (0..).zip(links);
                extents.extend(of_value.filter_map(|(n, bits)| Some((piece(n), stands(*bits)?))));
            }
        }
        self.restore_large(&heads, extents);
    }

    /// Takes in the records that count: of each key the newest.
    fn fold(&self, mut found: Vec<Found>, clear: Version) -> Result<()> {
        found.retain(|record| is_uncleared(record, clear));
        if sites::RECOVER_NEWEST.disabled() {
            found.sort_unstable_by_key(|record| (record.hash, std::cmp::Reverse(record.order)));
        } else {
            let key = |record: &Found| (record.hash, record.version(), record.link.is_tombstone());
            found.sort_unstable_by(|one, other| {
                let copies = || self.moves_of(one.link).cmp(&self.moves_of(other.link));
                key(one).cmp(&key(other)).then_with(copies)
            });
        }
        let mut group: Vec<Found> = Vec::new();
        let mut links = Vec::with_capacity(ENTERED);
        for record in found {
            if group.first().is_some_and(|first| first.hash != record.hash) {
                links.extend(group.drain(..).map(|record| self.take_in(record)));
                if links.len() >= ENTERED {
                    self.index.insert_many(&links);
                    links.clear();
                }
            }
            if record.collides() && !group.is_empty() {
                let mut kept = Vec::with_capacity(group.len() + 1);
                for other in group.drain(..) {
                    if !self.have_one_key(record.link, other.link)? {
                        kept.push(other);
                    }
                }
                group = kept;
            } else {
                group.clear();
            }
            group.push(record);
        }
        links.extend(group.drain(..).map(|record| self.take_in(record)));
        self.index.insert_many(&links);
        Ok(())
    }

    /// Of two copies of a record, the cleaner made the one with more of this from the other.
    pub(super) fn moves_of(&self, link: Link) -> (u8, SegmentEpoch) {
        let segment = self.layout.segment_of(self.layout.offset_of(link));
        let of = self.segments.incarnation(segment.unwrap_or_default());
        // What was moved once or more often is in a stream of its own, in which segments are taken one after the other.
        (of.stream as u8, of.epoch)
    }

    /// R4. To a repair, a record that cannot be read is some other key's.
    fn have_one_key(&self, one: Link, other: Link) -> Result<bool> {
        let same = || -> Result<bool> {
            let one = self.read_record(one)?;
            Ok(one.record().key == self.read_record(other)?.record().key)
        };
        match same() {
            Err(error) if self.repair.is_some() && error.kind() == ErrorKind::Corrupted => {
                Ok(false)
            }
            same => same,
        }
    }

    /// Counts a record; gives its entry of the index.
    fn take_in(&self, record: Found) -> (u64, Link) {
        let segment = self.layout.segment_of(self.layout.offset_of(record.link));
        self.segments.restore_live(segment.unwrap_or_default(), Live::of(record.link));
        self.count_items(None, record.link);
        (record.hash, record.link)
    }
}

#[cfg(test)]
mod tests;
