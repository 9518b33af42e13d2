//! Repair: a damaged store becomes a sound one that holds all that can still be read.
//!
//! First the space is made one again (`flex::mend`): nodes of its tree that are damaged become holes, which are as good as unread. Then the
//! store is opened over what is damaged, and each interval that cannot be read is written anew with what of it can be: whole runs,
//! and of others the pairs before the damage. Where a node is lost, runs are looked for in the data file to which nothing points any more.
//! Large values that are damaged go, and the pairs that name them; so do those that no pair names any more.
//!
//! What a device refuses may be sound, and it may refuse it for ever: so it does not end the repair. An interval with such a block stays
//! as it is, one that cannot be read, and a block in which nothing is known to be is passed over.
//!
//! What stood in a damaged part of an interval is not known by name. Keys that were written there, or deleted, may show an older value, or
//! be gone.
//!
//! # Concurrency
//! None: the store is open for the repair alone.
//!
//! # Failure
//! Each interval is written anew in one change of the space, with what was found of it elsewhere; until then it is one that cannot be
//! read, so a second repair goes on with those that are left. Where runs are looked for, the root says that a repair has not ended: a
//! crash or an error leaves a store that is refused until it is repaired again. If what was found is too much for memory, or all of the
//! space may be older than it was, the root says that, too, and a second repair looks for all keys once more; keys that were deleted may be
//! there again then.

mod logs;
mod stray;

use super::commit::Committer;
use super::damage::{Around, PIECE_BYTES_MAX};
use super::expired::Expired;
use super::index::{Located, Place};
use super::merge::{Merged, merge};
use super::open::{Found, Plan, identity, open_files, space_options, versions_skipped};
use super::{Flex, FlexFiles, ROOT_BYTES, large, recover, saved};
use crate::batch::Batch;
use crate::check::RepairReport;
use crate::engine::Engine;
use crate::flex::{Space, Splice};
use crate::options::Options;
use esker_base::{Error, ErrorKind, Result};
use esker_format::NUMBER_END;
use esker_format::flex_db::{Content, Root, Unfinished};
use std::collections::BTreeSet;
use std::ops::Range;
use stray::{Keys, Strays};

/// What is lost in one place is made no longer than this: no run is.
const LOST_BYTES_MAX: u64 = 4 << 20;

/// Repairs the store in these files, or in those of `options`.
///
/// # Errors
/// `Corrupted` if neither header of the space is whole, or files are missing, `NoSpace` if there is no room for what is written anew,
/// `InvalidArgument` if a restore did not end, `UnsupportedFormat`, `Io`.
pub(crate) fn repair(files: Option<FlexFiles>, options: &Options) -> Result<RepairReport> {
    let mut options = Options { format: false, create: false, ..options.clone() };
    options.testing.background = false;
    let files = match files {
        Some(files) => files,
        None => open_files(&options)?,
    };
    let name = files.space.data.name().to_owned();
    let (space, of_space) = Space::mend_on(files.space.clone(), &space_options(&options))?;
    space.expect_no_holes();
    let mut report = RepairReport::default();
    let (mut root, is_known) = root_of(&space, &files, &options, &name)?;
    let before = root.unfinished;
    let has_strays = of_space.is_mended || before != Unfinished::No;
    if before != Unfinished::No {
        space.keep_stray();
    }
    shorten(&space, &of_space.lost)?;
    report.damaged_segments += u64::from(!is_known) + u64::from(of_space.is_older);
    let mut plan = Plan::of(&root, &space, &options);
    plan.exceed(&space);
    let skipped = versions_skipped(plan.options.flex.memtable_size_bytes);
    let sizes = (plan.options.flex.memtable_size_bytes, skipped);
    let devices = files.logs.each_ref().map(|device| &**device);
    let strict = match is_known {
        true => recover::logs(devices, &root, &plan.hasher, sizes),
        false => Err(Error::new(ErrorKind::Corrupted, "repair store")),
    };
    let tables = match strict {
        Err(error) if error.kind() == ErrorKind::Corrupted => {
            report.damaged_segments += u64::from(is_known);
            logs::over_damage(devices, &root, &plan.hasher, sizes)?
        }
        tables => tables?,
    };
    root.unfinished = match before {
        Unfinished::RepairOfAll => before,
        _ if of_space.is_older => Unfinished::RepairOfAll,
        _ if has_strays => Unfinished::Repair,
        _ => Unfinished::No,
    };
    if root.unfinished != Unfinished::No || !is_known {
        // PERSIST: before anything is written over that a second repair needs.
        space.write(0, &root.encode())?;
        space.sync()?;
    }
    let behind = large::find(&space, options.flex.rebuild_threads, &name)?;
    let of_flex = &plan.options.flex;
    let intervals = recover::intervals_over_damage(&space, behind.intervals_end, of_flex, &name)?;
    let intervals = intervals.into_iter().collect();
    let may_begin_refused = behind.unread.iter().any(|(_, why)| *why == large::State::Refused);
    let values = behind.values;
    let devices = files.logs.clone();
    let flex = Flex::of(Found { files, space, root, tables, intervals, values }, plan)?;
    flex.check_stuck()?;
    flex.mend_intervals(&mut report)?;
    flex.commit_all()?;
    flex.mend_large(may_begin_refused, &mut report)?;
    // What they hold is in the space.
    devices.iter().try_for_each(|log| logs::blank_damaged(&**log))?;
    flex.end_repair()?;
    Engine::close(&*flex)?;
    Ok(report)
}

/// The root of a space, or what of it can be found elsewhere; whether it is the root.
fn root_of(
    space: &Space,
    files: &FlexFiles,
    options: &Options,
    name: &str,
) -> Result<(Root, bool)> {
    match recover::root(space, None, name) {
        Ok(root) if root.unfinished == Unfinished::Restore => {
            let words = "a restore of this store did not end: restore again";
            Err(Error::invalid("repair store", words).device(name))
        }
        Ok(root) => Ok((root, true)),
        Err(error) if error.kind() == ErrorKind::Corrupted => {
            tracing::error!(%error, "the root is made anew");
            let store_id = match saved::identity(&*files.index)? {
                Some(store_id) => store_id,
                None => identity(options)?,
            };
            let size = space.stat().file_size_bytes;
            let capacity_bytes = options.size_bytes.max(size);
            tracing::warn!(capacity_bytes, "what the store may take is not known any more");
            let root = Root {
                store_id,
                last_version: highest_version(space)?,
                capacity_bytes,
                ..Root::default()
            };
            Ok((root, false))
        }
        Err(error) => Err(error),
    }
}

/// The highest version of all pairs that can be read.
fn highest_version(space: &Space) -> Result<u64> {
    let mut highest = 0;
    let mut next = space.next_mark(ROOT_BYTES)?;
    while let Some(mark) = next {
        next = space.next_mark(mark + 1)?;
        let size = next.unwrap_or(space.size_bytes()) - mark;
        // Large values begin with another kind, and end the search at once.
        let size = usize::try_from(size).unwrap_or(usize::MAX).min(PIECE_BYTES_MAX);
        let around = Around::read(space, mark, size)?;
        highest = around.pairs().iter().map(|pair| pair.1).fold(highest, u64::max);
    }
    Ok(highest.min(NUMBER_END - 1))
}

/// Makes what is lost no longer than it need be: an interval ends below 4 GiB.
fn shorten(space: &Space, lost: &[Range<u64>]) -> Result<()> {
    for range in lost.iter().rev() {
        let length = range.end - range.start;
        if length > LOST_BYTES_MAX {
            space.collapse_range(range.start + LOST_BYTES_MAX, length - LOST_BYTES_MAX)?;
        }
    }
    Ok(())
}

impl Flex {
    /// Writes all intervals anew that cannot be read, with what of them can be, there or where nothing points any more.
    fn mend_intervals(&self, report: &mut RepairReport) -> Result<()> {
        let mut committer = self.committer.lock();
        let mut from = Place::default();
        while let Some(leaf) = self.refine_next(from)? {
            from = leaf;
        }
        let mut unread = Vec::new();
        self.index.visit(|anchor, entry, _, _| match entry.is_unread() {
            true => unread.push(anchor.to_vec()),
            false => report.records += u64::from(entry.pairs),
        });
        report.damaged_segments += unread.len() as u64;
        let (mut ranges, mut places): (Vec<Keys>, Vec<Range<u64>>) = Default::default();
        for located in unread.iter().map(|anchor| self.index.locate(anchor)) {
            let start = ROOT_BYTES + located.offset;
            places.push(start..start + u64::from(located.entry.size));
            ranges.push((located.anchor, located.upper));
        }
        let mut strays = Some(Strays::default());
        let is_of_all = committer.root.unfinished == Unfinished::RepairOfAll;
        let mut is_too_much = false;
        if committer.root.unfinished == Unfinished::Repair {
            strays = self.find_strays(&ranges, &places)?;
            is_too_much = strays.is_none();
            if is_too_much {
                // PERSIST: before intervals are as good as sound of which something is to be found.
                committer.root.unfinished = Unfinished::RepairOfAll;
                self.space.write(0, &committer.root.encode())?;
                self.space.sync()?;
            }
        }
        let strays = strays.unwrap_or_default();
        report.damaged_segments += strays.refused;
        // From the last one on, so that what one leaves to the one before it is there.
        for anchor in unread.iter().rev() {
            let located = self.index.locate(anchor);
            let moved = self.mend_interval(&mut committer, &located, &strays)?;
            report.records += moved;
            report.records_moved += moved;
        }
        if is_of_all || is_too_much {
            let ranges = if is_of_all { vec![(Vec::new(), None)] } else { ranges };
            let (moved, refused) = self.bring_back(&mut committer, &ranges)?;
            report.records_moved += moved;
            report.damaged_segments += refused;
        }
        Ok(())
    }

    /// Writes an interval anew with what of it can be read, and strays; how many pairs that are. None, if the device refuses some of it: what
    /// comes back once it reads that again is not to be given up, and strays may be older.
    fn mend_interval(
        &self,
        committer: &mut Committer,
        located: &Located,
        strays: &Strays,
    ) -> Result<u64> {
        let (offset, size) = (ROOT_BYTES + located.offset, located.entry.size as usize);
        let around = Around::read(&self.space, offset, size)?;
        if let Some(error) = around.refused {
            // The first one may have lost its mark with a node: no open would find it.
            if self.space.next_mark(offset)? != Some(offset) {
                return Err(error);
            }
            self.note_unread(&error);
            return Ok(0);
        }
        let is_within = |(key, ..): &Merged<'_>| {
            *key >= located.anchor[..]
                && located.upper.as_ref().is_none_or(|upper| *key < upper[..])
        };
        // Of one version that is there twice the later one counts.
        let strays = strays.of_keys(&located.anchor, located.upper.as_deref());
        let pairs = strays.chain(around.pairs().into_iter().filter(is_within)).collect();
        let (moment, mut expired) = (self.moment(), Expired::default());
        let merged = merge(pairs, None, &moment, &mut expired);
        let pairs_max = self.options.interval_pairs_max as usize;
        let size_max = self.options.interval_size_bytes_max as usize;
        let sizes = (pairs_max, size_max);
        let (marks, fresh) =
            self.cut(committer, (&merged, &moment), &located.anchor, sizes, |_| false)?;
        let splice = Splice { offset, remove: size as u64, data: &committer.data, marks: &marks };
        let mut fresh = Some(fresh);
        self.space.splice(&splice, &mut || {
            self.index.replace(located.spot, 1, fresh.take().unwrap_or_default());
        })?;
        self.large.doubt(&expired.large);
        Ok(merged.len() as u64)
    }

    /// Deletes the keys whose large values are missing or damaged, and removes values of which nobody knows the key.
    ///
    /// Also if there is none: then all are missing that a pair names. What the device refuses to read stays, and what names it. The first
    /// value may be such a one that was taken for an interval.
    fn mend_large(&self, may_begin_refused: bool, report: &mut RepairReport) -> Result<()> {
        let mut lost: BTreeSet<Vec<u8>> = BTreeSet::new();
        let mut from = Vec::new();
        loop {
            let committer = self.committer.lock();
            let located = self.locate(&from)?;
            let interval = self.readable(&located)?;
            let visible = interval.iter().flat_map(|interval| {
                let pair = |index| interval.pair(index as usize);
                interval.visible(u64::MAX).into_iter().map(pair)
            });
            for pair in visible {
                if let Content::Large(_, number, length) = pair.content
                    && !self.is_whole(number, length)?
                    && !self.large.may_be_refused(number, may_begin_refused)
                {
                    lost.insert(pair.key.to_vec());
                }
            }
            drop(committer);
            match located.upper {
                Some(upper) => from = upper,
                None => break,
            }
        }
        for key in &lost {
            // Keys do not belong in logs.
            tracing::warn!(key_size_bytes = key.len(), "a large value is lost");
            // Also if it has expired: the pair is there.
            let mut batch = Batch::new();
            batch.delete(key);
            self.write_batch(&batch)?;
            report.records_lost += 1;
        }
        self.commit_all()?;
        report.damaged_segments += self.large.refused();
        self.remove_nameless()
    }

    /// Removes all large values that no pair names: of some the pair is lost, and whether those are whole nobody asks.
    fn remove_nameless(&self) -> Result<()> {
        let committer = self.committer.lock();
        // PERSIST: pairs that took the place of others (B2).
        self.space.sync()?;
        self.large.doubt_all();
        // No log has any more.
        let (committed_generation, last_version) = (u64::MAX, u64::MAX);
        let root = Root { committed_generation, last_version, ..committer.root };
        self.collect_large(&root, None)?;
        self.remove_unread()
    }

    /// Whether a large value is there, and is what was written.
    fn is_whole(&self, number: u64, length: u64) -> Result<bool> {
        if !self.large.has(number, length) {
            return Ok(false);
        }
        match self.visit_large(number, length, &mut |_| Ok(())) {
            Err(error) if error.kind() == ErrorKind::Corrupted => Ok(false),
            // It may be, once the device reads it.
            Err(error) if error.kind() == ErrorKind::Io => {
                self.note_unread(&error);
                Ok(true)
            }
            is_there => is_there,
        }
    }

    /// Makes the store one that opens.
    fn end_repair(&self) -> Result<()> {
        let mut committer = self.committer.lock();
        // PERSIST: everything, before the root says that it is a store.
        self.space.sync()?;
        committer.root.unfinished = Unfinished::No;
        self.space.write(0, &committer.root.encode())?;
        self.space.sync()
    }
}
