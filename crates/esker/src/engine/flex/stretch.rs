//! Stretches: neighbours in the index that are brought together at once.
//!
//! What a table brings to neighbours lies side by side on the device, in the order of keys. So to read one interval with
//! many runs takes a request for each of them, and to read all of its leaf takes not many more. The committer rewrites a
//! leaf as a whole when its intervals have many runs, or grew, or when the sweep comes by (`sweep`), together with the leaves behind
//! it that are about to: a tenth of the requests, and the same bytes.
//!
//! # Concurrency
//! Under the committer's lock: only it changes intervals. Readers go on; they see the leaf as it was or as it is.
//!
//! # Failure
//! One splice of the space: a crash leaves the old or the new intervals.

use super::commit::Committer;
use super::expired::{Expired, Moment};
use super::index::Neighbours;
use super::interval::parts;
use super::merge::{Merged, add_group, merge, size_of};
use super::sweep::{OF_REWRITTEN, OF_SAMPLE};
use super::{Flex, ROOT_BYTES};
use crate::flex::Splice;
use esker_base::Result;
use esker_format::flex_db::{Run, RunWriter};

/// Runs that an interval of a leaf has on average when it is rewritten. A get reads one of them; a scan reads all.
const RUNS_MUCH: usize = 20;

/// How large a leaf becomes before it is rewritten even if the sweep was not there: so many times the bytes, or pairs, that its
/// intervals may have.
const GROWN: usize = 4;

/// Both are for a leaf in the middle of the order of keys. They are this many parts of `WHOLE` less for the first one, and more for the last
/// one: leaves that grow alike are not all due in the same commit, but one behind the other in that order.
const SLOPE: usize = WHOLE / 4;
const WHOLE: usize = 1 << 10;

/// By how much the limits differ for a leaf with so many bytes before it, of so many, in parts of `WHOLE`.
fn slope(before: u64, all: u64) -> usize {
    let place = before.min(all) * 2 * SLOPE as u64 / all.max(1);
    WHOLE - SLOPE + usize::try_from(place).unwrap_or(SLOPE)
}

/// Least intervals, and most bytes, of a stretch, which has to find room in what is spare.
const INTERVALS_MIN: usize = 4;
const BYTES_MAX: u64 = 4 << 20;
/// Most bytes of several leaves that are read and written at once: what tables brought to them lies side by side, too. No more than
/// half of what is spare.
const BYTES_OF_SEVERAL: u64 = 2 << 20;

/// Which leaf the committer looked at last: up to this key. Before the first one there is none.
#[derive(Debug, Default)]
pub(super) struct Seen(Option<Option<Vec<u8>>>);

impl Flex {
    /// The neighbours of `key`, read, if they are to be rewritten together, and the committer is new there.
    pub(super) fn stretch_of(
        &self,
        committer: &mut Committer,
        key: &[u8],
        seen: &mut Seen,
    ) -> Result<Option<Neighbours>> {
        if let Seen(Some(until)) = seen
            && until.as_ref().is_none_or(|until| *key < **until)
        {
            return Ok(None);
        }
        let pairs_max = self.options.interval_pairs_max as usize;
        let size_max = self.options.interval_size_bytes_max as usize;
        let is_swept = committer.sweep.is_at(key);
        let sweep = &committer.sweep;
        let within = (BYTES_OF_SEVERAL.min(self.bounds.spare / 2), sweep.now);
        let all = self.index.size_bytes();
        let leaf = self.index.neighbours(key, within, &|leaf, first| {
            let most = leaf.count * slope(leaf.before, all);
            // Of the leaves behind the first one those as well that will soon be due.
            let share = if first { 4 } else { 3 };
            let [pairs, size, runs] = [leaf.pairs, leaf.size, leaf.runs].map(|sum| sum * 4 * WHOLE);
            let much = runs >= RUNS_MUCH * 4 * most
                || pairs >= GROWN * share * pairs_max * most
                || size >= GROWN * share * size_max * most;
            // Values that are long each make long intervals whatever is done.
            let helps = leaf.runs >= 2 * leaf.count || sweep.has_much_expired(leaf);
            (much && helps) || (is_swept && sweep.is_worth(leaf))
        });
        *seen = Seen(Some(leaf.upper.clone()));
        if !self.is_stretch(&leaf) {
            return Ok(None);
        }
        if is_swept {
            committer.sweep.goes_on(leaf.upper.as_ref());
        }
        Ok(self.read_stretch(committer, &leaf)?.then_some(leaf))
    }

    pub(super) fn is_stretch(&self, leaf: &Neighbours) -> bool {
        leaf.sizes.len() >= INTERVALS_MIN && leaf.size_bytes() <= BYTES_MAX.min(self.bounds.spare)
    }

    /// Brings the neighbours of `key` together, those that are in several places.
    pub(super) fn gather(&self, committer: &mut Committer, key: &[u8]) -> Result<()> {
        let within = (0, self.clock.now());
        let leaf = self.index.neighbours(key, within, &|leaf, _| leaf.runs > leaf.count);
        self.index.settle(key);
        if self.is_stretch(&leaf) {
            let is_sound = self.read_stretch(committer, &leaf)?;
            return if is_sound { self.rewrite_stretch(committer, &leaf, None) } else { Ok(()) };
        }
        let located = self.index.locate(key);
        if !located.entry.is_coarse() && located.entry.runs > 1 {
            self.rewrite(committer, &located, None, None)?;
        }
        Ok(())
    }

    /// Merges intervals of a leaf, which were read, with what is new, and writes them anew.
    pub(super) fn rewrite_stretch(
        &self,
        committer: &mut Committer,
        leaf: &Neighbours,
        group: Option<&RunWriter>,
    ) -> Result<()> {
        let bytes = std::mem::take(&mut committer.bytes);
        let (moment, mut expired) = (self.moment(), Expired::default());
        let (merged, dead) = self.merge_stretch(&bytes, group, &moment, &mut expired)?;
        let new = group.map_or(0, RunWriter::size_bytes) as u64;
        // What stayed for a snapshot says nothing of what is appended.
        let of_appended = dead.saturating_sub(leaf.let_go);
        committer.sweep.learn(leaf.appended + new, of_appended, OF_REWRITTEN);
        committer.sweep.spend(leaf.appended.max(expired.bytes + dead.min(leaf.let_go)));
        let most = |most: u32| most as usize * 3 / 4;
        let pairs_max = most(self.options.interval_pairs_max);
        let size_max = most(self.options.interval_size_bytes_max);
        // What was in memory stays there.
        let keeps = |piece: &[Merged<'_>]| {
            [piece.first(), piece.last()].into_iter().flatten().any(|(key, ..)| {
                let after = leaf.anchors.partition_point(|anchor| *key >= anchor[..]);
                leaf.cached.get(after.saturating_sub(1)).is_some_and(|cached| *cached)
            })
        };
        let first = leaf.anchors.first().map(Vec::as_slice).unwrap_or_default();
        let most = (pairs_max, size_max);
        let (marks, fresh) = self.cut(committer, (&merged, &moment), first, most, keeps)?;
        drop(merged);
        committer.bytes = bytes;
        let is_same = group.is_none() && leaf.runs == leaf.sizes.len() && leaf.is_of_one;
        if is_same && dead + expired.bytes == 0 {
            self.index.set_lapsing(leaf.spot, leaf.sizes.len(), &fresh);
            return Ok(());
        }
        committer.rewritten_bytes += committer.data.len() as u64;
        let offset = ROOT_BYTES + leaf.offset;
        let splice =
            Splice { offset, remove: leaf.size_bytes(), data: &committer.data, marks: &marks };
        let mut fresh = Some(fresh);
        self.index.settle(first);
        let done = self.space.splice(&splice, &mut || {
            self.index.replace(leaf.spot, leaf.sizes.len(), fresh.take().unwrap_or_default());
        });
        self.index.make_room();
        done?;
        self.large.doubt(&expired.large);
        Ok(())
    }

    /// Reads a leaf to learn from it, and leaves it as it is.
    pub(super) fn look_at_stretch(
        &self,
        committer: &mut Committer,
        leaf: &Neighbours,
    ) -> Result<()> {
        if self.read_stretch(committer, leaf)? {
            let (moment, mut expired) = (self.moment(), Expired::default());
            let (_, dead) = self.merge_stretch(&committer.bytes, None, &moment, &mut expired)?;
            committer.sweep.learn(leaf.appended, dead.saturating_sub(leaf.let_go), OF_SAMPLE);
        }
        Ok(())
    }

    /// Reads the intervals of a leaf. Whether they are as they were written; damage is told, and stays as it is.
    pub(super) fn read_stretch(
        &self,
        committer: &mut Committer,
        leaf: &Neighbours,
    ) -> Result<bool> {
        match self.try_stretch(committer, leaf) {
            Err(error) if error.is_unread() => {
                self.note_unread(&error);
                Ok(false)
            }
            read => read.map(|()| true),
        }
    }

    /// Reads the intervals of a leaf, which are as they were written.
    pub(super) fn try_stretch(&self, committer: &mut Committer, leaf: &Neighbours) -> Result<()> {
        let size = usize::try_from(leaf.size_bytes()).unwrap_or(usize::MAX);
        let place = (ROOT_BYTES + leaf.offset, size);
        let bytes = &mut committer.bytes;
        let read = self.space.read_once_where(&mut || Some(place), bytes)?;
        if read != Some(bytes.len()) {
            return Err(self.damaged("an interval is behind the end of the space"));
        }
        let parts = parts(bytes).map_err(|flaw| self.damaged(&flaw.to_string()))?;
        if parts.len() > leaf.sizes.len() {
            return Err(self.damaged("more intervals than the index knows"));
        }
        Ok(())
    }

    /// What is left of pairs of a stretch and of those that are new, in order; and how many bytes of them are dead, without those
    /// that have expired.
    fn merge_stretch<'a>(
        &self,
        mut bytes: &'a [u8],
        group: Option<&'a RunWriter>,
        moment: &Moment,
        expired: &mut Expired,
    ) -> Result<(Vec<Merged<'a>>, u64)> {
        let mut all: Vec<Merged<'_>> = Vec::new();
        while !bytes.is_empty() {
            // Verified by `parts`.
            let run = Run::take(&mut bytes, || true);
            let run = run.map_err(|flaw| self.damaged(&flaw.to_string()))?;
            all.extend(run.pairs().map(|pair| (pair.key, pair.version, pair.content)));
        }
        add_group(&mut all, group);
        let before: usize = all.iter().map(size_of).sum();
        let merged = merge(all, None, moment, expired);
        let after: usize = merged.iter().map(size_of).sum();
        let left_out = before.saturating_sub(after) as u64;
        Ok((merged, left_out.saturating_sub(expired.bytes)))
    }
}
