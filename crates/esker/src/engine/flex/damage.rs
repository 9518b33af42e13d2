//! What cannot be read: a damaged block, or one that the device refuses, takes with it what stands in it and no more. Its interval is
//! *unread* from then on: what there was is an error for whoever asks, and what comes is appended behind it, where gets find it.
//!
//! ```text
//! unread interval: | up to the end of the last run that cannot be read: an error | runs behind it: read as those of others |
//! ```
//!
//! # Invariants
//! - D1: nothing is left out, and no key is said to be gone, because of what cannot be read: of a key that may stand there only what
//!   is newer counts, and what says that there is nothing stays.
//! - D2: bytes are believed as far as the space verified them. Where a run ends that cannot be read is known from its head, if that
//!   can be, or from the index; else the next one begins where a write to the space began, if a whole run stands there: bytes of a value
//!   may look like a run, but no write of this module begins with them. If there is none, all up to the next mark is unread.
//! - D3: an interval whose anchor cannot be read holds what is behind the last key of the one before it; if that cannot be read
//!   either, they are one. If that is because the device refuses them, there are two with their own anchors again once it does not, and
//!   nobody knows to which of them a key belongs: they take nothing until then, and the commit fails.
//!
//! # Concurrency
//! Under the committer's lock.
//!
//! # Failure
//! One splice of the space each, as for other intervals. Nothing says on the device that an interval is unread: the next open finds
//! out, so what a device refused only for a while is back then.

use super::commit::{Committer, RUNS_MAX};
use super::index::{Entry, Fresh, Located, tail_of_run};
use super::interval::{Interval, Part, parts};
use super::lapsing::{Lapsing, lapsing_in};
use super::memtable::RangeDelete;
use super::merge::{Merged, add_group, merge_behind, size_of};
use super::{Flex, ROOT_BYTES};
use crate::flex::{Space, Splice};
use esker_base::{Error, ErrorKind, Result};
use esker_format::flex_db::{Content, KEY_SIZE_MAX_BYTES, Pair, Run, RunKind, RunWriter};
use std::ops::Range;
use std::sync::Arc;

/// Most bytes that are read at once of what stands between two marks: no interval that can be read is that long, and no run half of it.
pub(super) const PIECE_BYTES_MAX: usize = 16 << 20;
/// Longest interval: with what an open takes together with it, it has less than 4 GiB.
const INTERVAL_BYTES_MAX: u32 = if cfg!(test) { 1 << 20 } else { 3 << 30 };
/// Unread intervals beyond this size are only appended to, and so are those whose runs would not become fewer by this factor: else
/// each group would write all of them anew.
const MERGED_BYTES_MAX: u32 = 4 << 20;
const FEWER: usize = 4;
/// Most pairs and bytes of a run behind an unread one: a get reads all of each run that may have its key.
const PAIRS_OF_A_RUN: usize = 200;
const BYTES_OF_A_RUN: usize = 48 << 10;
/// Longest head of a run, without its anchor.
const RUN_HEAD_MAX: usize = 16;

/// What a part of an interval begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begins {
    /// The base run.
    Base,
    /// An appended run.
    Run,
    /// The rest of something that cannot be read.
    Lost,
}

/// A part of the space, as far as it can be read.
#[derive(Debug, Default)]
pub(super) struct Around {
    bytes: Vec<u8>,
    /// What cannot be, in order.
    holes: Vec<Range<usize>>,
    /// Where writes to the space began, in order.
    begun: Vec<usize>,
    /// What the device said, if it refused something that may be sound.
    pub(super) refused: Option<Error>,
}

/// Takes a run that is whole, to its last pair, off the front.
fn take_whole<'a>(bytes: &mut &'a [u8]) -> Option<Run<'a>> {
    let run = Run::take(bytes, || false).ok()?;
    let mut pairs = run.pairs();
    (0..run.count).try_for_each(|_| pairs.next().map(drop))?;
    Some(run)
}

/// All pairs of runs that are whole.
fn pairs_in(mut bytes: &[u8]) -> Vec<Merged<'_>> {
    let mut all = Vec::new();
    while let Some(run) = take_whole(&mut bytes) {
        all.extend(run.pairs().map(|pair| (pair.key, pair.version, pair.content)));
    }
    all
}

fn behind_the_end() -> Error {
    Error::corrupted("read space", "an interval is behind the end of the space")
}

impl Around {
    /// Reads so many bytes of a space, as far as that is possible: what stands in a block that cannot be read is a hole, and nothing else,
    /// for whoever reads a run of those beside it finds it (D1).
    pub(super) fn read(space: &Space, offset: u64, size: usize) -> Result<Around> {
        let mut around = Around { bytes: vec![0; size], ..Around::default() };
        if around.read_part(space, offset, 0..size)?.is_some() {
            around.read_blocks(space, offset)?;
        }
        let begun = space.begun(offset..offset + size as u64)?;
        let place = |start: u64| usize::try_from(start.checked_sub(offset)?).ok();
        around.begun = begun.into_iter().filter_map(place).collect();
        Ok(around)
    }

    /// Reads all of it, block by block.
    fn read_blocks(&mut self, space: &Space, start: u64) -> Result<()> {
        let parts = space.in_blocks(start..start + self.bytes.len() as u64)?;
        let place = |at: u64| usize::try_from(at - start).unwrap_or(usize::MAX);
        if parts.last().is_none_or(|last| place(last.end) < self.bytes.len()) {
            return Err(behind_the_end());
        }
        for part in parts {
            let part = place(part.start)..place(part.end);
            if let Some(error) = self.read_part(space, start, part.clone())? {
                self.bytes.get_mut(part.clone()).unwrap_or_default().fill(0);
                self.holes.push(part);
                self.refused = Some(error)
                    .filter(|error| error.kind() == ErrorKind::Io)
                    .or(self.refused.take());
            }
        }
        Ok(())
    }

    /// Reads a part of it; why it cannot be read, if it cannot.
    fn read_part(
        &mut self,
        space: &Space,
        start: u64,
        range: Range<usize>,
    ) -> Result<Option<Error>> {
        let part = self.bytes.get_mut(range.clone()).unwrap_or_default();
        match space.read(start + range.start as u64, part) {
            Ok(count) if count == range.len() => Ok(None),
            Ok(_) => Err(behind_the_end()),
            Err(error) if error.is_unread() => Ok(Some(error)),
            Err(error) => Err(error),
        }
    }

    fn has_hole(&self, range: &Range<usize>) -> bool {
        self.holes.iter().any(|hole| hole.start < range.end && range.start < hole.end)
    }

    /// What can be read from `at` on, up to what cannot be.
    fn sound_from(&self, at: usize) -> &[u8] {
        let hole = self.holes.iter().find(|hole| hole.end > at);
        let until = hole.map_or(self.bytes.len(), |hole| hole.start);
        self.bytes.get(at..until).unwrap_or_default()
    }

    /// Where the next whole run from `at` on begins, of those that nobody told of (D2).
    fn next_run(&self, at: usize, is_wanted: impl Fn(RunKind) -> bool) -> Option<usize> {
        let mut behind = self.begun.iter().copied().filter(|begun| *begun >= at);
        let is_run = |begun: &usize| {
            let run = take_whole(&mut self.sound_from(*begun));
            run.is_some_and(|run| is_wanted(run.kind))
        };
        behind.find(is_run)
    }

    /// Where in an interval the last run ends that cannot be read (D2), of which runs are known to begin at `starts`, if any are; 0: all can.
    fn unread_end(&self, starts: &[usize]) -> usize {
        self.unread_in(starts, (Begins::Base, true)).0
    }

    /// The same in a part of an interval, which begins so, and is the last one or not; and where the run begins that goes on in the next
    /// part, or else this one ends.
    fn unread_in(&self, starts: &[usize], (begins, is_last): (Begins, bool)) -> (usize, usize) {
        let all = self.bytes.len();
        let next_from = |at: usize| {
            let next = match starts {
                [] => self.next_run(at, |kind| kind == RunKind::Appended),
                known => known.iter().copied().find(|start| *start >= at),
            };
            next.unwrap_or(all)
        };
        let mut at = if begins == Begins::Lost { next_from(0) } else { 0 };
        let mut end = at;
        while at < all {
            let rest = self.bytes.get(at..).unwrap_or_default();
            let head = at..(at + RUN_HEAD_MAX).min(all);
            let size = Run::size(rest).ok().filter(|_| !self.has_hole(&head));
            let is_more = |size| size > rest.len() && size < PIECE_BYTES_MAX / 2;
            let goes_on = size.is_some_and(is_more);
            if !is_last && (goes_on || rest.len() < RUN_HEAD_MAX) {
                break;
            }
            let Some(next) = size.filter(|size| *size <= rest.len()).map(|size| at + size) else {
                at = next_from(at + 1);
                end = at;
                continue;
            };
            if self.has_hole(&(at..next)) {
                end = next;
            } else {
                let is_base = at == 0 && begins == Begins::Base;
                let kind = if is_base { RunKind::Base } else { RunKind::Appended };
                let mut run = self.bytes.get(at..next).unwrap_or_default();
                if take_whole(&mut run).is_none_or(|run| run.kind != kind) {
                    // Verified, and not what it should be: where it ends is as little to be believed.
                    at = next_from(at + 1);
                    end = at;
                    continue;
                }
            }
            at = next;
        }
        (end, at)
    }

    /// All pairs of an interval that can be read: of a run that ends in what cannot be, those before; then those of the next one (D2).
    pub(super) fn pairs(&self) -> Vec<Merged<'_>> {
        let mut all = Vec::new();
        let mut at = 0;
        while at < self.bytes.len() {
            let mut rest = self.sound_from(at);
            let size = Run::size(rest).ok();
            let run = match size {
                Some(size) if size > rest.len() => Run::peek(rest),
                _ => take_whole(&mut rest),
            };
            let Some((run, size)) = run.zip(size) else {
                match self.next_run(at + 1, |_| true) {
                    Some(next) => at = next,
                    None => break,
                }
                continue;
            };
            let count = usize::try_from(run.count).unwrap_or(usize::MAX);
            let pairs = run.pairs().take(count);
            all.extend(pairs.map(|pair| (pair.key, pair.version, pair.content)));
            at += size;
        }
        all
    }

    /// The anchor of the interval that begins here.
    fn anchor(&self) -> Option<&[u8]> {
        let until = self.holes.first().map_or(self.bytes.len(), |hole| hole.start);
        Run::peek_anchor(self.bytes.get(..until)?).ok().flatten()
    }
}

/// What stands between two marks.
struct Piece {
    /// Whether the device refused some of it.
    is_refused: bool,
    anchor: Option<Vec<u8>>,
    /// Without an anchor.
    fresh: Fresh,
    /// The greatest key, if all can be read.
    last: Option<Vec<u8>>,
}

impl Flex {
    /// Tells of something that cannot be read, once.
    pub(super) fn note_unread(&self, error: &Error) {
        if self.scrubbed.note(error) {
            tracing::error!(%error, "left as it is: it cannot be read");
        }
    }

    /// An interval, if it can be read, tried twice; else that is told, and the index knows.
    pub(super) fn readable(&self, located: &Located) -> Result<Option<Arc<Interval>>> {
        if located.entry.is_unread() && located.entry.cached.is_none() {
            return Ok(None);
        }
        let again =
            |error: Error| if error.is_unread() { self.interval_of(located) } else { Err(error) };
        match self.interval_of(located).or_else(again) {
            Err(error) if error.is_unread() => {
                self.note_unread(&error);
                self.index.note_unread(located.spot);
                Ok(None)
            }
            found => found.map(Some),
        }
    }

    /// Brings a group to an interval that cannot be read, behind what there is; what `erase` covers is gone from there.
    pub(super) fn keep_unread(
        &self,
        committer: &mut Committer,
        located: &Located,
        group: Option<&RunWriter>,
        erase: Option<&RangeDelete>,
    ) -> Result<()> {
        let entry = &located.entry;
        match (group, erase) {
            (None, None) => return Ok(()),
            (Some(group), None) if entry.runs > 0 && !self.is_worth_merging(located) => {
                return self.append_in_runs(committer, located, group);
            }
            _ => {}
        }
        let around = Around::read(&self.space, ROOT_BYTES + located.offset, entry.size as usize)?;
        if let (Some(_), Some(error)) = (erase, &around.refused) {
            // What comes back later must not be what a range delete removed: it has to wait for the device.
            return Err(error.clone());
        }
        let end = around.unread_end(&self.index.run_starts(located.spot));
        let count = match entry.runs {
            // Of two that were taken for one, both have to be.
            0 => parts(&around.bytes).map_or(0, |parts| parts.len()),
            _ => usize::from(end == 0),
        };
        if count > 0 {
            // It is back, and from now on it has the anchor that the index says.
            let interval = Interval::pass(around.bytes, count);
            let interval = interval.map_err(|flaw| self.damaged(&flaw.to_string()))?;
            return self.rewrite_read(committer, located, &interval, group, erase);
        }
        if entry.runs == 0 {
            return Err(Error::new(ErrorKind::Io, "commit table")
                .device(self.name.clone())
                .context("the device refuses to read where an interval begins"));
        }
        let behind = around.bytes.get(end..).unwrap_or_default();
        let mut all = pairs_in(behind);
        add_group(&mut all, group);
        if let Some(range) = erase {
            // What gets find before what cannot be read, as the index knows that this has not the key, is gone, too (D1).
            let is_erased = |(key, version, _): &Merged<'_>| {
                let is_here = *key >= located.anchor[..]
                    && located.upper.as_ref().is_none_or(|upper| *key < upper[..]);
                is_here && *version < range.version && range.covers(*key)
            };
            let before = around.pairs().into_iter().filter(is_erased);
            all.extend(before.map(|(key, ..)| (key, range.version, Content::Delete)));
        }
        if all.is_empty() {
            return Ok(());
        }
        let moment = self.moment();
        let merged = merge_behind(all, erase, &moment.snapshots);
        let lapsing = moment.lapsing(&merged);
        let data = &mut committer.data;
        data.clear();
        let (mut tail, mut runs) = (Vec::new(), 1);
        for piece in in_runs(&merged) {
            let run = run_of(piece);
            let start = data.len();
            run.finish(None, data);
            let size = u32::try_from(data.len() - start).unwrap_or(u32::MAX);
            tail.extend(tail_of_run(size, run.pairs(), &self.hasher));
            runs += 1;
        }
        let size = self.interval_size(end + data.len())?;
        let fresh = Fresh {
            anchor: located.anchor.clone(),
            entry: Entry::unread(size, runs),
            tail,
            lapsing,
        };
        committer.rewritten_bytes += data.len() as u64;
        let offset = ROOT_BYTES + located.offset + end as u64;
        let splice = Splice { offset, remove: behind.len() as u64, data, marks: &[] };
        let mut fresh = Some(fresh);
        self.space.splice(&splice, &mut || {
            self.index.replace(located.spot, 1, fresh.take().into_iter().collect());
        })
    }

    /// Whether an unread interval has many runs behind what cannot be read, which would be few if they were brought together.
    fn is_worth_merging(&self, located: &Located) -> bool {
        let Located { entry, spot, .. } = located;
        if entry.runs < RUNS_MAX || entry.size > MERGED_BYTES_MAX {
            return false;
        }
        let sizes = self.index.run_sizes(*spot);
        let (bytes, pairs) = sizes.iter().fold((0, 0), |all, run| (all.0 + run.0, all.1 + run.1));
        let fewer = (bytes / BYTES_OF_A_RUN).max(pairs / PAIRS_OF_A_RUN);
        FEWER * fewer <= sizes.len()
    }

    /// Appends a group, in as many runs as it takes for none to be long.
    fn append_in_runs(
        &self,
        committer: &mut Committer,
        located: &Located,
        group: &RunWriter,
    ) -> Result<()> {
        let mut all = Vec::new();
        add_group(&mut all, Some(group));
        for piece in in_runs(&all) {
            // It grew by the piece before.
            let located = self.locate(&located.anchor)?;
            self.append_run(committer, &located, &run_of(piece))?;
            // When they expire is known of all by now.
            committer.expiries.clear();
        }
        Ok(())
    }

    /// The size of an interval that is to be so long.
    pub(super) fn interval_size(&self, bytes: usize) -> Result<u32> {
        let size = u32::try_from(bytes).ok().filter(|size| *size <= INTERVAL_BYTES_MAX);
        size.ok_or_else(|| {
            Error::new(ErrorKind::NoSpace, "commit table").device(self.name.clone()).context(
                "an interval would have 3 GiB: it cannot be read, or snapshots keep what it had",
            )
        })
    }

    /// The intervals of a coarse one that cannot be read as a whole: those that can be by themselves, and the others, unread.
    pub(super) fn cut_at_marks(&self, located: &Located) -> Result<Vec<Fresh>> {
        let (start, size) = (located.offset, u64::from(located.entry.size));
        let end = start + size;
        let mut marks = vec![start];
        let mut at = ROOT_BYTES + start + 1;
        while let Some(mark) = self.space.next_mark(at)?.filter(|mark| *mark < ROOT_BYTES + end) {
            marks.push(mark - ROOT_BYTES);
            at = mark + 1;
        }
        let ends: Vec<u64> = marks.iter().skip(1).copied().chain([end]).collect();
        let mut cut: Vec<Fresh> = Vec::new();
        let (mut last, mut is_refused): (Option<Vec<u8>>, bool) = (None, false);
        for (from, to) in marks.into_iter().zip(ends) {
            let mut piece = self.look_at(from, usize::try_from(to - from).unwrap_or(usize::MAX))?;
            if piece.is_refused && piece.anchor.is_none() && from > start {
                // What is taken for its anchor is not the one that it has once the device reads it (D3).
                piece.fresh.entry.runs = 0;
            }
            let anchor = match cut.last() {
                None => Some(located.anchor.clone()),
                Some(before) => {
                    let is_behind = |anchor: &Vec<u8>| {
                        *anchor > before.anchor
                            && last.as_ref().is_none_or(|last| anchor > last)
                            && located.upper.as_ref().is_none_or(|upper| anchor < upper)
                    };
                    if piece.anchor.as_ref().is_some_and(|anchor| !is_behind(anchor)) {
                        return Err(self.damaged("an anchor is out of order"));
                    }
                    let behind_last = || Some([last.as_deref()?, &[0]].concat());
                    let fits = |anchor: &Vec<u8>| anchor.len() <= KEY_SIZE_MAX_BYTES;
                    piece.anchor.or_else(|| behind_last().filter(fits).filter(is_behind))
                }
            };
            match (anchor, cut.last_mut()) {
                (None, Some(before)) => {
                    let size = before.entry.size.saturating_add(piece.fresh.entry.size);
                    let anchor = std::mem::take(&mut before.anchor);
                    is_refused |= piece.is_refused;
                    let runs = if is_refused { 0 } else { u32::from(piece.fresh.entry.runs) };
                    let entry = Entry::unread(size, runs);
                    before.lapsing.add_all(&piece.fresh.lapsing);
                    let lapsing = std::mem::take(&mut before.lapsing);
                    *before = Fresh { anchor, entry, tail: piece.fresh.tail, lapsing };
                    last = None;
                }
                (anchor, _) => {
                    is_refused = piece.is_refused;
                    cut.push(Fresh { anchor: anchor.unwrap_or_default(), ..piece.fresh });
                    last = piece.last;
                }
            }
        }
        Ok(cut)
    }

    /// Looks at what stands between two marks, as far as it can be read.
    fn look_at(&self, offset: u64, size: usize) -> Result<Piece> {
        let read = |at: usize| {
            let offset = ROOT_BYTES + offset + at as u64;
            Around::read(&self.space, offset, (size - at).min(PIECE_BYTES_MAX))
        };
        let mut around = read(0)?;
        let anchor = around.anchor().map(<[u8]>::to_vec);
        let is_sound = around.bytes.len() == size && around.holes.is_empty();
        let whole = match is_sound && around.unread_end(&[]) == 0 {
            true => parts(&around.bytes).ok().filter(|parts| parts.len() == 1),
            false => None,
        };
        if let Some([part]) = whole.as_deref()
            && let Ok(fresh) = self.fresh_of(part)
        {
            let keys = pairs_in(&around.bytes).into_iter().map(|(key, ..)| key);
            let last = keys.max().map(|key| key.to_vec());
            return Ok(Piece { is_refused: false, anchor, fresh, last });
        }
        let (mut at, mut begins, mut is_refused) = (0, Begins::Base, false);
        let (mut tail, mut runs, mut lapsing) = (Vec::new(), 1, Lapsing::default());
        loop {
            is_refused |= around.refused.is_some();
            let is_last = at + around.bytes.len() == size;
            let (end, next) = around.unread_in(&[], (begins, is_last));
            if end > 0 {
                (tail, runs, lapsing) = (Vec::new(), 1, Lapsing::default());
            }
            let mut rest = around.bytes.get(end..next).unwrap_or_default();
            lapsing.add_all(&lapsing_in(rest, 0).unwrap_or_default());
            let mut before = rest.len();
            while let Some(run) = take_whole(&mut rest) {
                let size = u32::try_from(before - rest.len()).unwrap_or(u32::MAX);
                tail.extend(tail_of_run(size, run.pairs(), &self.hasher));
                runs += 1;
                before = rest.len();
            }
            begins = if end == around.bytes.len() { Begins::Lost } else { Begins::Run };
            at += next;
            if is_last || next == 0 {
                break;
            }
            around = read(at)?;
        }
        let entry = Entry::unread(u32::try_from(size).unwrap_or(u32::MAX), runs);
        let fresh = Fresh { entry, tail, lapsing, ..Fresh::default() };
        Ok(Piece { is_refused, anchor, fresh, last: None })
    }

    /// What the index is to know of an interval that was read; without its anchor.
    pub(super) fn fresh_of(&self, part: &Part<'_>) -> Result<Fresh, esker_format::Flaw> {
        let size = u32::try_from(part.bytes.len()).unwrap_or(u32::MAX);
        Ok(Fresh {
            anchor: Vec::new(),
            entry: Entry::new(size, part.pairs, part.appended, part.runs),
            tail: super::index::tail_of(part.bytes, &self.hasher)?,
            lapsing: lapsing_in(part.bytes, self.snapshots.newest())?,
        })
    }
}

/// A run of these pairs.
fn run_of(pairs: &[Merged<'_>]) -> RunWriter {
    let first_version = pairs.iter().map(|(_, version, _)| *version).min().unwrap_or(0);
    let mut run = RunWriter::new(first_version);
    pairs.iter().for_each(|&(key, version, content)| run.push(&Pair { key, version, content }));
    run
}

/// Pairs in parts that are a run each; all of a key in one, so that a get has to read one of them.
fn in_runs<'m, 'a>(merged: &'m [Merged<'a>]) -> Vec<&'m [Merged<'a>]> {
    let mut runs = Vec::new();
    let mut rest = merged;
    while !rest.is_empty() {
        let (mut count, mut bytes) = (0, 0);
        for same in rest.chunk_by(|a, b| a.0 == b.0) {
            let more: usize = same.iter().map(|pair| size_of(pair) + pair.0.len() * 2).sum();
            if count > 0 && (count + same.len() > PAIRS_OF_A_RUN || bytes + more > BYTES_OF_A_RUN) {
                break;
            }
            count += same.len();
            bytes += more;
        }
        let (run, more) = rest.split_at(count.max(1).min(rest.len()));
        runs.push(run);
        rest = more;
    }
    runs
}
