//! What was written after a checkpoint overtakes entries that the checkpoint has.
//!
//! The index tells keys apart by a part of their hashes only, so whether an entry is of a key that was found in the log again has to be
//! looked up: in the summary of the entry's segment, which has the whole hash. That reads no record, and each summary once at most.
//! The entries of such keys are taken out of the index and join what was found; then recovery decides as it does without a
//! checkpoint, by version.
//!
//! # Concurrency
//! Threads take segments. Nothing is shared with clients yet.
//!
//! # Failure
//! Writes nothing.

use super::recover::{Found, Recovered};
use super::{Depot, sites, spread};
use crate::engine::threads::on_threads;
use esker_base::ids::SegmentId;
use esker_base::{Error, Result};
use esker_format::depot::{LargeRef, RecordKind};
use esker_index::Link;
use std::sync::atomic::{AtomicUsize, Ordering};

/// An entry of the index, and the hash of a key that it may be of.
type Asked = (Link, u64);

/// Entries that are overtaken.
#[derive(Default)]
struct Overtaken {
    found: Vec<Found>,
    heads: Vec<(u64, LargeRef, Link)>,
}

impl Depot {
    /// Takes the entries out of the index whose keys were found in the log, and adds them to what was found.
    pub(super) fn take_out_overtaken(&self, log: &mut Recovered) -> Result<()> {
        if log.checkpoint.is_none() || sites::CHECKPOINT_OVERTAKEN.disabled() {
            return Ok(());
        }
        let mut asked: Vec<Asked> = Vec::new();
        for found in &log.found {
            let mut hashes: Vec<u64> = found.iter().map(|record| record.hash).collect();
            hashes.dedup();
            self.index.lookup_many(&hashes, |number, candidates| {
                let hash = hashes.get(number).copied().unwrap_or(0);
                asked.extend(candidates.iter().map(|link| (link, hash)));
            });
        }
        asked.sort_unstable();
        asked.dedup();
        let segment_of = |asked: &Asked| self.layout.segment_of(self.layout.offset_of(asked.0));
        let of_segments: Vec<&[Asked]> =
            asked.chunk_by(|one, other| segment_of(one) == segment_of(other)).collect();
        let next = AtomicUsize::new(0);
        let overtaken = on_threads("open store", log.threads, |_| {
            let mut overtaken = Overtaken::default();
            while let Some(asked) = of_segments.get(next.fetch_add(1, Ordering::Relaxed)) {
                let id = asked.first().and_then(segment_of).unwrap_or_default();
                self.find_overtaken(id, asked, &mut overtaken)?;
            }
            Ok(overtaken)
        })?;
        for Overtaken { mut found, heads } in overtaken {
            for record in &found {
                if self.index.remove(record.hash, record.link) {
                    let segment = self.layout.segment_of(self.layout.offset_of(record.link));
                    self.segments.restore_dead(segment.unwrap_or_default(), record.link);
                    self.count_gone(record.link);
                }
            }
            found.sort_unstable_by_key(|record| record.hash);
            log.found.push(found);
            log.pieces.heads.extend(heads);
        }
        Ok(())
    }

    /// Of these entries, all of one segment, finds those that have the hashes that they are asked for.
    fn find_overtaken(
        &self,
        id: SegmentId,
        asked: &[Asked],
        overtaken: &mut Overtaken,
    ) -> Result<()> {
        let base = self.layout.segment_offset(id);
        // Both are in the order of places.
        let mut rest = asked;
        let mut missing = 0;
        let source = self.source(sites::RECOVER_READ);
        self.each_record(&source, id, self.segments.incarnation(id), &mut |record| {
            let link = self.layout.link(record.kind, base + record.offset, record.size_bytes);
            let Some(link) = link.filter(|_| record.kind != RecordKind::Extent) else { return };
            let before = rest.iter().take_while(|(asked, _)| *asked < link).count();
            missing += before;
            rest = rest.get(before..).unwrap_or(&[]);
            let hash = spread(record.hash);
            while let Some(((_, of), others)) =
                rest.split_first().filter(|((asked, _), _)| *asked == link)
            {
                rest = others;
                if *of != hash {
                    continue;
                }
                let collides = record.collides && !sites::RECOVER_COLLIDES.disabled();
                let order = record.version.0 << 1 | u64::from(collides);
                overtaken.found.push(Found { hash, order, link });
                if record.kind == RecordKind::Large {
                    overtaken.heads.push((hash, record.piece, link));
                }
            }
        })?;
        if missing + rest.len() > 0 {
            let words = "a checkpoint has entries for records that are not there";
            let size = self.layout.segment_size;
            return Err(Error::corrupted("recover store", words)
                .device(self.device.name())
                .at(base, size));
        }
        Ok(())
    }
}
