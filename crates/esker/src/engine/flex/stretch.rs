//! Stretches: neighbours in the index that are brought together at once.
//!
//! What a table brings to neighbours lies side by side on the device, in the order of keys. So to read one interval with
//! many runs takes a request for each of them, and to read all of its leaf takes not many more. The committer rewrites a
//! leaf as a whole when its intervals have many runs, or grew, together with the leaves behind it that are about to: a tenth of
//! the requests, and the same bytes.
//!
//! # Concurrency
//! Under the committer's lock: only it changes intervals. Readers go on; they see the leaf as it was or as it is.
//!
//! # Failure
//! One splice of the space: a crash leaves the old or the new intervals.

use super::commit::Committer;
use super::index::Neighbours;
use super::interval::parts;
use super::merge::{Merged, add_group, merge};
use super::{Flex, ROOT_BYTES};
use crate::flex::Splice;
use esker_base::Result;
use esker_format::flex_db::run::take_pair;
use esker_format::flex_db::{Run, RunWriter};

/// Runs that an interval of a leaf has on average when it is rewritten. A get reads one of them; a scan reads all.
const RUNS_MUCH: usize = 20;

/// How large a leaf becomes before it is rewritten: so many quarters of the bytes, or pairs, that its intervals may have. Where
/// what was appended is new, a leaf is rewritten once while it becomes five times as large: what was rewritten is from a
/// quarter to five quarters of what was appended, as it comes, and gets do not mind. Where it replaced what was there,
/// most of a large leaf counts no more: then it is rewritten sooner, as soon as half of it does not count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth(usize);

impl Growth {
    const LEAST: usize = 6;
    const MOST: usize = 16;

    /// A leaf was rewritten: pairs that it had, and has now.
    fn note(&mut self, before: usize, after: usize) {
        if after * 2 < before {
            self.0 = (self.0 - 1).max(Growth::LEAST);
        } else if after * 4 > before * 3 {
            self.0 = (self.0 + 1).min(Growth::MOST);
        }
    }
}

impl Default for Growth {
    fn default() -> Self {
        Growth(Growth::MOST)
    }
}

/// Least intervals, and most bytes, of a stretch.
const INTERVALS_MIN: usize = 4;
const BYTES_MAX: u64 = 2 << 20;
/// Most bytes of several leaves that are read and written at once: what tables brought to them lies side by side, too.
const BYTES_OF_SEVERAL: u64 = 2 << 20;

/// Which leaf the committer looked at last: up to this key. Before the first one there is none.
#[derive(Debug, Default)]
pub(super) struct Seen(Option<Option<Vec<u8>>>);

impl Flex {
    /// The neighbours of `key`, if they are to be rewritten together, and the committer is new there.
    pub(super) fn stretch_of(
        &self,
        key: &[u8],
        Growth(quarters): Growth,
        seen: &mut Seen,
    ) -> Option<Neighbours> {
        if let Seen(Some(until)) = seen
            && until.as_ref().is_none_or(|until| *key < **until)
        {
            return None;
        }
        let pairs_max = self.options.interval_pairs_max as usize;
        let size_max = self.options.interval_size_bytes_max as usize;
        let leaf = self.index.neighbours(key, BYTES_OF_SEVERAL, &|leaf, first| {
            // Of the leaves behind the first one those as well that will soon be due.
            let share = if first { 4 } else { 3 };
            let much = leaf.runs >= RUNS_MUCH * leaf.count
                || leaf.pairs * 16 >= quarters * share * pairs_max * leaf.count
                || leaf.size * 16 >= quarters * share * size_max * leaf.count;
            // Values that are long each make long intervals whatever is done.
            let helps = leaf.runs >= 2 * leaf.count;
            much && helps
        });
        *seen = Seen(Some(leaf.upper.clone()));
        self.is_stretch(&leaf).then_some(leaf)
    }

    fn is_stretch(&self, leaf: &Neighbours) -> bool {
        leaf.sizes.len() >= INTERVALS_MIN && leaf.size_bytes() <= BYTES_MAX
    }

    /// Brings the neighbours of `key` together, those that are in several places.
    pub(super) fn gather(&self, committer: &mut Committer, key: &[u8]) -> Result<()> {
        let leaf = self.index.neighbours(key, 0, &|leaf, _| leaf.runs > leaf.count);
        if self.is_stretch(&leaf) {
            return self.rewrite_stretch(committer, &leaf, None);
        }
        self.index.settle(key);
        let located = self.index.locate(key);
        if !located.entry.is_coarse() && located.entry.runs > 1 {
            self.rewrite(committer, &located, None, None)?;
        }
        Ok(())
    }

    /// Merges intervals of a leaf with what is new, and writes them anew.
    pub(super) fn rewrite_stretch(
        &self,
        committer: &mut Committer,
        leaf: &Neighbours,
        group: Option<&RunWriter>,
    ) -> Result<()> {
        let remove = leaf.size_bytes();
        let mut bytes = std::mem::take(&mut committer.bytes);
        let place = (ROOT_BYTES + leaf.offset, usize::try_from(remove).unwrap_or(usize::MAX));
        let read = self.space.read_once_where(&mut || Some(place), &mut bytes)?;
        if read != Some(bytes.len()) {
            return Err(self.damaged("an interval is behind the end of the space"));
        }
        let damaged = |flaw: esker_format::Flaw| self.damaged(&flaw.to_string());
        if parts(&bytes).map_err(damaged)?.len() > leaf.sizes.len() {
            return Err(self.damaged("more intervals than the index knows"));
        }
        let mut all: Vec<Merged<'_>> = Vec::new();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            // Verified by `parts`.
            let run = Run::take(&mut rest, || true).map_err(damaged)?;
            let mut pairs = run.pairs();
            while let Some(pair) = take_pair(&mut pairs, run.first_version()) {
                all.push((pair.key, pair.version, pair.content));
            }
        }
        add_group(&mut all, group);
        let before = all.len();
        let merged = merge(all, None, &self.snapshots.all());
        committer.growth.note(before, merged.len());
        let most = |most: u32| most as usize * 3 / 4;
        let pairs_max = most(self.options.interval_pairs_max);
        let size_max = most(self.options.interval_size_bytes_max);
        // What was in memory stays there.
        let keeps = |piece: &[Merged<'_>]| {
            [piece.first(), piece.last()].into_iter().flatten().any(|(key, ..)| {
                let after = leaf.anchors.partition_point(|anchor| **anchor <= **key);
                leaf.cached.get(after.saturating_sub(1)).is_some_and(|cached| *cached)
            })
        };
        let first = leaf.anchors.first().map(Vec::as_slice).unwrap_or_default();
        let (marks, fresh) = self.cut(committer, &merged, first, (pairs_max, size_max), keeps)?;
        drop(merged);
        committer.bytes = bytes;
        let offset = ROOT_BYTES + leaf.offset;
        let splice = Splice { offset, remove, data: &committer.data, marks: &marks };
        let mut fresh = Some(fresh);
        self.index.settle(first);
        let done = self.space.splice(&splice, &mut || {
            self.index.replace(leaf.spot, leaf.sizes.len(), fresh.take().unwrap_or_default());
        });
        self.index.make_room();
        done
    }
}
