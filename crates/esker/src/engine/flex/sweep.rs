//! Sweeping: leaves with much that does not count any more are written anew, one behind the other in the order of keys, a
//! few in each commit, around and around; and all of them, slowly, when nobody writes, with those whose intervals are small and lie in
//! many blocks.
//!
//! What is appended to an interval adds to what is there, or makes older pairs count no more; which of the two, nobody knows
//! before it is read. So the sweep learns from each leaf that it rewrites, or else from one that it reads in each commit, how
//! many bytes an appended one made dead, and so how many in all intervals are. As long as these are less than half of what
//! may be dead, nothing is rewritten for them; when they are as many, a commit brings as much together as it appends; beyond, up
//! to twice as much. So what is dead is bounded, and no commit costs much more than the one before it, whatever is written.
//!
//! The order matters: what tables brought to neighbours lies side by side in their segments, so these become empty one after
//! the other, and the collector has little to move.
//!
//! # Concurrency
//! Under the committer's lock.
//!
//! # Failure
//! Nothing of this is on a device: after an open it is learnt anew. Leaves are rewritten as by the committer.

use super::Flex;
use super::commit::Committer;
use super::expired::AGAIN_SECONDS;
use super::index::{LeafSums, Neighbours, Place};
use super::refused::Refused;
use esker_base::{ErrorKind, Result};
use std::time::Duration;

/// Percent of all bytes that may be dead while tables come, and when there is hardly room for any.
const DEAD_PERCENT: u64 = 25;
const DEAD_IF_FULL_PERCENT: u64 = 2;
/// Percent beyond which they are too many while nobody writes, and those of a leaf that is rewritten then.
const DEAD_AT_REST_PERCENT: u64 = 8;
const DEAD_OF_LEAF_PERCENT: u64 = 5;
/// How much of what is known comes from the last leaf that was rewritten, and from the one that a commit reads for this alone, of `WHOLE`
/// parts: few commits are to tell that what adds to what is there has become what replaces it.
pub(super) const OF_REWRITTEN: u64 = WHOLE / 16;
pub(super) const OF_SAMPLE: u64 = WHOLE / 4;
const WHOLE: u64 = 1 << 10;
/// Bytes that may come in such a time while the store rests, and for how long before.
const LITTLE_BYTES: u64 = 64 << 10;
const LITTLE_TIME: Duration = Duration::from_millis(500);
const REST: Duration = Duration::from_secs(2);
/// How often somebody looks at rest how much has expired.
const LOOKS: Duration = Duration::from_secs(5);
/// A table that has more than this part of what it may have goes to the space then: it may delete much.
pub(super) const TABLE_SHARE: u64 = 8;
/// How long the sweep waits at rest: so many times as long as it worked, and if others read from the device meanwhile.
const WAITS: u32 = 1;
const WAITS_FOR_READERS: u32 = 3;
/// Most bytes of several leaves that are rewritten at once then, so that who reads meanwhile waits for no more.
const BYTES_AT_REST: u64 = 512 << 10;
/// Bytes of an interval that is small: several fit a block. And the share of appended bytes, as one in so many, that scatters a leaf.
const SMALL_INTERVAL: usize = 1 << 10;
const SCATTERED_SHARE: u64 = 8;
/// Reads that others do while it waits, if any do.
const READS_FEW: u64 = 8;

/// How many bytes are appended ones, and how many have expired.
type Gone = (u64, u64);

/// What the committer knows of the sweep.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Bytes that an appended one made dead, in parts of `WHOLE`, once that is known.
    dead: Option<u64>,
    /// Appended bytes that may be brought together now; below zero, so many were too much.
    credit: i64,
    /// Credit for an appended byte, in parts of `WHOLE`.
    pace: u64,
    /// How many percent of all bytes may be dead.
    percent: u64,
    /// Whether a leaf is still to be read, to learn from it.
    samples: bool,
    /// Whether it spent what it had in this commit. It goes on where it is in the next one, and not further on in this one.
    is_done: bool,
    /// The key at which the sweep is.
    at: Vec<u8>,
    /// The key up to which leaves were looked at for what has expired, and wall time in seconds as of the commit.
    expired_at: Vec<u8>,
    pub(super) now: u64,
    refused: Refused,
}

impl Sweep {
    /// How many bytes are dead for so many appended ones.
    fn dead_of(&self, appended: u64) -> u64 {
        appended.saturating_mul(self.dead.unwrap_or(WHOLE)) / WHOLE
    }

    /// What it knows of dead bytes, for who looks at leaves meanwhile.
    pub(super) fn known(&self) -> Sweep {
        let Sweep { dead, percent, .. } = *self;
        Sweep { dead, percent, ..Sweep::default() }
    }

    /// Whether of so many appended and expired bytes more than so many percent of `size` do not count.
    pub(super) fn is_much(&self, (appended, expired): Gone, size: u64, percent: u64) -> bool {
        self.dead_of(appended).saturating_add(expired) > size * percent / 100
    }

    /// A table comes; of `size` bytes, of so many that there is room for, so many are appended and expired ones, at this time.
    pub(super) fn begin(&mut self, gone: Gone, now: u64, size: u64, room: u64) {
        let (appended, expired) = gone;
        self.now = now;
        let dead = self.dead_of(appended).saturating_add(expired);
        // Half as many again as may be dead are what the pace leaves at most: so many find room beside what counts.
        let beside = room.saturating_sub(size.saturating_sub(dead));
        let percent = (beside / 3 * 2).saturating_mul(100) / size.max(1);
        self.percent = percent.clamp(DEAD_IF_FULL_PERCENT, DEAD_PERCENT);
        let most = (size / 100 * self.percent).max(1);
        let share = dead.saturating_mul(2 * WHOLE) / most;
        self.pace = share.saturating_sub(WHOLE).min(2 * WHOLE);
        self.samples = self.pace == 0;
        self.is_done = false;
    }

    /// So many bytes were appended.
    pub(super) fn earn(&mut self, bytes: u64) {
        self.credit += i64::try_from(bytes * self.pace / WHOLE).unwrap_or(0);
    }

    /// The table is in the space, with so many bytes appended.
    pub(super) fn end(&mut self, appended: u64) {
        if self.samples || !self.is_done {
            // It met the last key.
            self.at.clear();
        }
        let most = i64::try_from(2 * appended).unwrap_or(0);
        self.credit = self.credit.clamp(-most, most);
    }

    /// Whether the leaf that holds `key` may be rewritten, if it is worth it.
    pub(super) fn is_at(&mut self, key: &[u8]) -> bool {
        if self.is_done || *self.at > *key {
            return false;
        }
        self.is_done = self.credit <= 0;
        !self.is_done
    }

    /// Whether a leaf has about its share of dead bytes. One that has much less waits for the next time around; with fewer of those
    /// the order in which leaves were rewritten becomes that of keys.
    pub(super) fn is_worth(&self, leaf: &LeafSums) -> bool {
        self.is_much((leaf.appended, leaf.expired), leaf.size as u64, self.percent * 2 / 5)
    }

    /// Whether what has expired is that much by itself: then it helps to write a leaf anew that nothing was appended to.
    pub(super) fn has_much_expired(&self, leaf: &LeafSums) -> bool {
        self.is_much((0, leaf.expired), leaf.size as u64, self.percent * 2 / 5)
    }

    /// The sweep has come to this key, or to the last one.
    pub(super) fn goes_on(&mut self, upper: Option<&Vec<u8>>) {
        self.at.clear();
        self.at.extend(upper.into_iter().flatten());
    }

    /// Leaves were written anew in which so many bytes were appended, or had expired.
    pub(super) fn spend(&mut self, bytes: u64) {
        if self.credit > 0 {
            self.credit = self.credit.saturating_sub_unsigned(bytes);
        }
    }

    /// In leaves with so many appended bytes so many were dead. That is so much, of `WHOLE` parts, of what is known from now on.
    pub(super) fn learn(&mut self, appended: u64, dead: u64, weight: u64) {
        if let Some(found) = dead.saturating_mul(WHOLE).checked_div(appended) {
            let found = found.min(4 * WHOLE);
            let known = self.dead.unwrap_or(found);
            self.dead = Some((known * (WHOLE - weight) + found * weight).div_ceil(WHOLE));
        }
    }
}

/// Whether a store rests, and what was done since.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// The table, and what it had, and when that was.
    seen: (u64, u64, Duration),
    since: Duration,
    /// The key up to which leaves were looked at; none: all were.
    at: Option<Vec<u8>>,
    /// Reads of the device until the last leaf was rewritten, or segment collected.
    reads: u64,
    /// When somebody looked last how much has expired.
    looked: Duration,
    /// When somebody looked at that last amid a round, and how much it was: all leaves are asked for it.
    expired: (Duration, u64),
}

impl Rest {
    /// The store has so much in this table now.
    fn note(&mut self, table: u64, bytes: u64, now: Duration) {
        let (last, before, at) = self.seen;
        let is_busy = table != last || bytes > before + LITTLE_BYTES;
        if is_busy {
            (self.since, self.at) = (now, Some(Vec::new()));
        }
        if is_busy || now.saturating_sub(at) >= LITTLE_TIME {
            self.seen = (table, bytes, now);
        }
    }

    fn is_now(&self, now: Duration) -> bool {
        now.saturating_sub(self.since) >= REST
    }
}

impl Flex {
    /// Learns from the leaf that holds `key`, if nothing was learnt yet in this commit.
    pub(super) fn learn_at(&self, committer: &mut Committer, key: &[u8]) -> Result<()> {
        if !committer.sweep.samples || *committer.sweep.at > *key {
            return Ok(());
        }
        committer.sweep.samples = false;
        let within = (0, committer.sweep.now);
        let is_wanted = |leaf: &LeafSums, _: bool| leaf.appended * 8 > leaf.size as u64;
        let leaf = self.index.neighbours(key, within, &is_wanted);
        committer.sweep.goes_on(leaf.upper.as_ref());
        if self.is_stretch(&leaf) { self.look_at_stretch(committer, &leaf) } else { Ok(()) }
    }

    /// What is done while nobody writes: the table goes to the space, leaves with dead bytes are written anew, a few at a time,
    /// if there are many; then what is less dense than it should be is collected. For how long to wait if there is more to do.
    pub(super) fn rest(&self, rest: &mut Rest) -> Result<Option<Duration>> {
        let now = self.clock.monotonic();
        let (table, bytes, is_free) = {
            let tables = self.tables();
            (tables.active.generation, tables.active.bytes(), tables.sealed.is_none())
        };
        rest.note(table, bytes, now);
        if !rest.is_now(now) {
            return Ok(None);
        }
        let is_much = bytes > self.options.memtable_size_bytes / TABLE_SHARE || self.deletes_much();
        if (is_much || self.has_expired_table(self.clock.now())) && is_free {
            self.change_table(table)?;
            rest.seen = (self.tables().active.generation, 0, now);
            return Ok(Some(Duration::ZERO));
        }
        let reads = || self.space.stat().data.reads;
        let others_read = reads().saturating_sub(rest.reads) > READS_FEW;
        let waits = if others_read { WAITS_FOR_READERS } else { WAITS };
        let more = match rest.at.clone() {
            None if self.has_expired_at_rest(rest, now) => {
                rest.at = Some(Vec::new());
                true
            }
            None => {
                let committer = self.committer.lock();
                self.collect_doubted(&committer)?;
                let has_found = self.collect_found(&committer.root)?;
                drop(committer);
                self.settle_at_rest()? || has_found
            }
            Some(at) => {
                let (looked, _) = rest.expired;
                if looked.is_zero() || now >= looked + LOOKS {
                    let _committer = self.committer.lock();
                    rest.expired = (now, self.index.expired_bytes(self.clock.now()));
                }
                rest.at = self.sweep_at_rest(&at, rest.expired.1)?;
                true
            }
        };
        rest.reads = reads();
        Ok(more.then(|| self.clock.monotonic().saturating_sub(now) * waits))
    }

    /// Whether the table deletes much of the space, little as it may be itself: a range, or keys with values of the size that values
    /// have.
    fn deletes_much(&self) -> bool {
        let (has_ranges, deletes) = {
            let tables = self.tables();
            (tables.active.has_ranges(), tables.active.deletes())
        };
        let each = self.space.stat().data_bytes / self.index.pairs().max(1);
        has_ranges || deletes.saturating_mul(each) > self.options.memtable_size_bytes / TABLE_SHARE
    }

    /// Whether much has expired since all leaves were looked at: what did not count then was brought out.
    fn has_expired_at_rest(&self, rest: &mut Rest, now: Duration) -> bool {
        let time = self.clock.now();
        if !self.index.has_expired(time) || now < rest.looked + LOOKS {
            return false;
        }
        rest.looked = now;
        let _committer = self.committer.lock();
        let (expired, size) = (self.index.expired_bytes(time), self.index.size_bytes());
        Sweep::default().is_much((0, expired), size, DEAD_AT_REST_PERCENT)
    }

    /// Writes all leaves anew that something was appended to, or of which something has expired, and packs what is left into as few segments as it fits, until `segments` more
    /// are free or nothing is gained any more: how many are.
    pub(super) fn compact(&self, segments: u64) -> Result<u64> {
        // What was found by an open tells nothing before somebody looked inside.
        let mut from = Some(Place::default());
        while let Some(leaf) = from {
            let _committer = self.committer.lock();
            from = self.refine_next(leaf).unwrap_or(None);
        }
        let free = || self.space.stat().free_segments;
        let before = free();
        let gained = || free().saturating_sub(before);
        while gained() < segments && self.collect_found(&self.committer.lock().root)? {}
        let mut at = Some(Vec::new());
        while gained() < segments
            && let Some(key) = at
        {
            let is_worth = |leaf: &LeafSums| leaf.appended > 0 || leaf.expired > 0;
            let mut committer = self.committer.lock();
            // What stayed for a snapshot, too.
            let now = self.clock.now().saturating_add(AGAIN_SECONDS);
            at = self.sweep_from(&mut committer, &key, now, &is_worth)?;
        }
        self.collect_doubted(&self.committer.lock())?;
        loop {
            let (last, wanted) = (free(), segments.saturating_sub(gained()));
            if wanted > 0 {
                self.space.collect(wanted)?;
            }
            if wanted == 0 || free() <= last {
                return Ok(gained());
            }
        }
    }

    /// Writes the next leaves from `at` on anew of which enough is dead, if there is much of that and of what has expired, or that are small
    /// and scattered: the key behind them, if there is more to do.
    fn sweep_at_rest(&self, at: &[u8], expired: u64) -> Result<Option<Vec<u8>>> {
        let mut committer = self.committer.lock();
        let (appended, size) = (self.index.appended_bytes(), self.index.size_bytes());
        let now = self.clock.now();
        let sweep = committer.sweep.known();
        let is_much = sweep.is_much((appended, expired), size, DEAD_AT_REST_PERCENT);
        let is_worth = |leaf: &LeafSums| {
            let gone = (leaf.appended, leaf.expired);
            is_much && sweep.is_much(gone, leaf.size as u64, DEAD_OF_LEAF_PERCENT)
                || leaf.is_scattered()
        };
        self.sweep_from(&mut committer, at, now, &is_worth)
    }

    /// Writes the next leaves from `at` on anew that are worth it, as of `now`: the key behind them, if there is more to do.
    fn sweep_from(
        &self,
        committer: &mut Committer,
        at: &[u8],
        now: u64,
        is_worth: &dyn Fn(&LeafSums) -> bool,
    ) -> Result<Option<Vec<u8>>> {
        if self.wal.check().is_err() {
            return Ok(None);
        }
        match self.index.next_leaf(at, now, is_worth) {
            Some(key) => self.sweep_leaf(committer, &key, now, is_worth),
            None => self.collect_doubted(committer).map(|()| None),
        }
    }

    /// Writes the leaf of `key` anew, which is worth it, and those behind it that are, too: the key behind them, if there is one.
    pub(super) fn sweep_leaf(
        &self,
        committer: &mut Committer,
        key: &[u8],
        now: u64,
        is_worth: &dyn Fn(&LeafSums) -> bool,
    ) -> Result<Option<Vec<u8>>> {
        let within = (BYTES_AT_REST, now);
        let leaf = self.index.neighbours(key, within, &|leaf, _| is_worth(leaf));
        self.space.loosen(true);
        let done = match self.is_stretch(&leaf) {
            true => self.sweep_stretch(committer, &leaf, now).map(|()| leaf.upper),
            false if leaf.has_expired => self.sweep_parts(committer, key, now),
            false => Ok(leaf.upper),
        };
        self.space.loosen(false);
        let upper = done?;
        self.collect_doubted(committer)?;
        Ok(upper)
    }

    /// Writes a stretch anew. If it is of several leaves of which something cannot be read, each by itself: what keeps one of them
    /// back is no reason for the others to stay.
    fn sweep_stretch(&self, committer: &mut Committer, leaf: &Neighbours, now: u64) -> Result<()> {
        let first = leaf.anchors.first().map(|anchor| &anchor[..]).unwrap_or_default();
        let (anchors, monotonic) = (&leaf.anchors, self.clock.monotonic());
        let refused = &committer.sweep.refused;
        let waits = anchors.iter().any(|anchor| refused.is_waiting(anchor, monotonic));
        let read = if waits { Ok(false) } else { self.try_stretch(committer, leaf).map(|()| true) };
        match read {
            Ok(true) => {
                anchors.iter().for_each(|anchor| committer.sweep.refused.forget(anchor));
                self.rewrite_stretch(committer, leaf, None)
            }
            Err(error) if !error.is_unread() => Err(error),
            _ if !leaf.is_of_one => self.sweep_each(committer, first, leaf.upper.as_deref(), now),
            Ok(false) => Ok(()),
            Err(error) => {
                self.note_unread(&error);
                if error.kind() == ErrorKind::Io {
                    committer.sweep.refused.note(first, monotonic);
                } else {
                    // It stays as it is: nobody is to look for it again and again.
                    anchors.iter().for_each(|anchor| self.index.forget_lapsing(anchor));
                }
                Ok(())
            }
        }
    }

    /// Writes the leaves from that of `key` on anew up to another one, one after the other.
    fn sweep_each(
        &self,
        committer: &mut Committer,
        key: &[u8],
        upper: Option<&[u8]>,
        now: u64,
    ) -> Result<()> {
        let mut at = Some(key.to_vec());
        while let Some(key) = at
            && upper.is_none_or(|upper| *key < *upper)
        {
            at = self.sweep_parts(committer, &key, now)?;
        }
        Ok(())
    }

    /// Writes a leaf anew that is too large to be a stretch, or has too little, part after part: the key behind it.
    fn sweep_parts(
        &self,
        committer: &mut Committer,
        key: &[u8],
        now: u64,
    ) -> Result<Option<Vec<u8>>> {
        let leaf_of = |key: &[u8]| self.index.neighbours(key, (0, now), &|_, _| true);
        let behind = leaf_of(key).upper;
        let mut at = key.to_vec();
        loop {
            let part = leaf_of(&at).part(&at, BYTES_AT_REST);
            if part.sizes.is_empty() {
                return Ok(behind);
            }
            self.sweep_stretch(committer, &part, now)?;
            match part.upper {
                Some(next) if behind.as_ref().is_none_or(|behind| next < *behind) => at = next,
                _ => return Ok(behind),
            }
        }
    }

    /// Removes large values whose pairs were left out.
    pub(super) fn collect_doubted(&self, committer: &Committer) -> Result<()> {
        match self.large.is_doubted() {
            true => self.collect_large(&committer.root, None),
            false => Ok(()),
        }
    }

    /// Leaves to which tables bring nothing may have much that has expired: what credit a commit left is for them, and that for bytes that
    /// it brought and did not append, as where keys grow with time.
    pub(super) fn sweep_expired(&self, brought: u64) -> Result<()> {
        let now = self.clock.now();
        if !self.index.has_expired(now) {
            return Ok(());
        }
        let mut committer = self.committer.lock();
        let mut at = std::mem::take(&mut committer.sweep.expired_at);
        let before = committer.sweep.credit;
        committer.sweep.earn(brought);
        // The next table may have come. It waits while as much is written anew as a table has, and then as long as that holds no
        // writer back: if the sweep only had what time writers leave, it would have none when it is needed most.
        let due = committer.rewritten_bytes + self.options.memtable_size_bytes;
        while committer.sweep.credit > 0 && (committer.rewritten_bytes < due || !self.is_ahead()) {
            let sweep = committer.sweep.known();
            let is_worth = |leaf: &LeafSums| sweep.has_much_expired(leaf);
            match self.sweep_from(&mut committer, &at, now, &is_worth)? {
                Some(next) => at = next,
                None => {
                    at.clear();
                    break;
                }
            }
        }
        committer.sweep.expired_at = at;
        committer.sweep.credit = committer.sweep.credit.min(before);
        Ok(())
    }
}

impl LeafSums {
    /// Whether its intervals are small and have much that was appended, each piece in another block: to read one of them then
    /// takes as many reads as it has runs, where one read could bring several.
    fn is_scattered(&self) -> bool {
        self.size <= self.count * SMALL_INTERVAL
            && self.appended * SCATTERED_SHARE > self.size as u64
    }
}

#[cfg(test)]
mod tests;
