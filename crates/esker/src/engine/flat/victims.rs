//! Which chunk of a log is cleaned next, and when there is nothing left to gain.
//!
//! A chunk is worth its cleaning by the bytes that do not count there, or by the entries, whose records come free. Nobody counts the
//! tombstones of a chunk that are not needed any more. They are no longer needed from a moment on: when the oldest chunk with entries that do
//! not count is free. So who needs room looks at everything once for each such step, ends the logs that go on as well, and looks again if the
//! next step came meanwhile.
//!
//! # Concurrency
//! Under the cleaner's lock. Writers go on: what is counted is a little behind, or ahead.

use super::Flat;
use super::chunks::{Chunk, Use};
use super::clean::Cleaner;
use esker_base::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

/// A chunk is worth cleaning for somebody who needs room if one in so many of its bytes comes free, or of its entries.
const SOME: u64 = 16;
/// The same, while nobody does.
const MUCH: u64 = 4;
/// Further passes of a search, each because tombstones are not needed any more that the one before has copied.
const PASSES: u32 = 2;

/// How much there must be to gain of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gain {
    Any,
    Some,
    Much,
}

impl Gain {
    /// Whether it is enough that so much of all comes free.
    fn is_enough(self, dead: u64, all: u64) -> bool {
        match self {
            Gain::Any => dead > 0,
            Gain::Some => dead > 0 && dead * SOME >= all,
            Gain::Much => dead > 0 && dead * MUCH >= all,
        }
    }
}

/// What there was when nothing was left to gain of the logs of a group. There is nothing to gain again as long as neither has grown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Futile {
    /// Bytes of logs that did not count.
    dead_bytes: u64,
    /// Tombstones from this version on were needed. Those below stand in any chunk, also in full ones, and may have long keys in records.
    needed: u64,
}

/// A pass of a search over the logs of a group.
#[derive(Clone, Copy, Debug)]
struct Pass {
    /// Tombstones from this version on were needed when it began.
    needed: u64,
    /// Passes before it.
    count: u32,
    /// Whether logs that go on were ended for the tombstones in them.
    has_ended: bool,
}

impl Pass {
    fn new(needed: u64, count: u32) -> Pass {
        Pass { needed, count, has_ended: false }
    }
}

/// A search for room.
pub(super) struct Search<'a> {
    /// Whose logs may be cleaned, in this order.
    pub(super) groups: Vec<usize>,
    pub(super) visited: BTreeSet<u32>,
    passes: BTreeMap<usize, Pass>,
    /// Whether there is room enough; asked whenever a lock was waited for.
    pub(super) is_over: &'a dyn Fn() -> bool,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        groups: impl Iterator<Item = usize>,
        is_over: &'a dyn Fn() -> bool,
    ) -> Search<'a> {
        let (visited, passes) = Default::default();
        Search { groups: groups.collect(), visited, passes, is_over }
    }
}

impl Flat {
    /// The next victim of a cleaner, of which there is so much to gain; logs are ended that are worth it if there is no other.
    pub(super) fn next_victim(
        &self,
        cleaner: &mut Cleaner,
        search: &mut Search<'_>,
        gain: Gain,
    ) -> Result<Option<u32>> {
        if gain == Gain::Some {
            return self.victim_for_room(cleaner, search);
        }
        let (group, unneeded) = (cleaner.group, gain == Gain::Any);
        let find = |cleaner: &Cleaner| {
            self.victim(group, &search.visited, &cleaner.damaged, gain, unneeded)
        };
        let victim = find(cleaner);
        if victim.is_none() && self.seal_worth(cleaner, gain, false)? {
            return Ok(find(cleaner));
        }
        Ok(victim)
    }

    /// The next victim for somebody who needs room.
    fn victim_for_room(
        &self,
        cleaner: &mut Cleaner,
        search: &mut Search<'_>,
    ) -> Result<Option<u32>> {
        let group = cleaner.group;
        let known = cleaner.futile.unwrap_or_default();
        loop {
            let now = self.futile(group);
            let pass = search.passes.entry(group).or_insert(Pass::new(now.needed, 0));
            let unneeded = pass.needed > known.needed;
            if !unneeded && now.dead_bytes <= known.dead_bytes {
                return Ok(None);
            }
            let find = |cleaner: &Cleaner| {
                self.victim(group, &search.visited, &cleaner.damaged, Gain::Some, unneeded)
            };
            if let Some(victim) = find(cleaner) {
                return Ok(Some(victim));
            }
            let all = unneeded && !std::mem::replace(&mut pass.has_ended, true);
            if self.seal_worth(cleaner, Gain::Some, all)?
                && let Some(victim) = find(cleaner)
            {
                return Ok(Some(victim));
            }
            let now = self.futile(group);
            if now.needed <= pass.needed || pass.count == PASSES {
                // What a backup holds will be worth a look again. Tombstones that are unneeded now may have been copied before they were.
                let futile = Futile { needed: pass.needed, ..now };
                cleaner.futile = (!self.hold.is_active()).then_some(futile);
                return Ok(None);
            }
            *pass = Pass::new(now.needed, pass.count + 1);
            search.visited.clear();
        }
    }

    /// The full chunk of a group of which copies take the least; one without anything to gain only if there are tombstones that may be
    /// `unneeded` by now.
    fn victim(
        &self,
        group: usize,
        visited: &BTreeSet<u32>,
        damaged: &BTreeSet<u32>,
        gain: Gain,
        unneeded: bool,
    ) -> Option<u32> {
        let tombstones = unneeded && self.tombstones.load(Ordering::Relaxed) > 0;
        let now = self.now();
        let candidates = self.chunks.iter().filter(|(number, chunk)| {
            // Of a damaged one that is dead nothing has to be read.
            let readable = !damaged.contains(number) || chunk.is_dead();
            let allowed = readable && !visited.contains(number) && !self.hold.holds(*number);
            let is_of = || self.group_of_log(*number) == group;
            chunk.usage() == Use::Log && allowed && is_of() && chunk.is_published()
        });
        let least = candidates.filter_map(|(number, chunk)| {
            let (room, live) = (self.layout.room(), chunk.live_bytes(now));
            let (entries, dead) = chunk.counts_by(now);
            // Lines are filled up everywhere, a little. Of entries that take next to nothing the records come free.
            let of_bytes = if gain == Gain::Any { Gain::Some } else { gain };
            let is_worth = of_bytes.is_enough(room.saturating_sub(live), room)
                || gain.is_enough(dead.into(), entries.into());
            (tombstones || is_worth).then_some((live, chunk.born(), number))
        });
        least.min().map(|(_, _, number)| number)
    }

    /// Ends the logs of which enough entries do not count, or `all`.
    fn seal_worth(&self, cleaner: &mut Cleaner, gain: Gain, all: bool) -> Result<bool> {
        let now = self.now();
        let is_worth = |chunk: &Chunk| {
            let (entries, dead) = chunk.counts_by(now);
            all && entries > 0 || gain.is_enough(dead.into(), entries.into())
        };
        self.seal_logs(cleaner, &mut |_, chunk| Ok(is_worth(chunk)))
    }

    /// What there is now, in case that nothing is to gain of it.
    fn futile(&self, group: usize) -> Futile {
        let needed = match self.tombstones.load(Ordering::Relaxed) {
            0 => 0,
            // As a version: tombstones that come later are above it.
            _ => self.tombstones_needed_below(u32::MAX, |_| ()).min(self.versions.next()),
        };
        Futile { dead_bytes: self.dead_bytes(group), needed }
    }

    /// Bytes of the logs of a group that would come free if all were cleaned.
    fn dead_bytes(&self, group: usize) -> u64 {
        let now = self.now();
        let is_of = |number| self.group_of_log(number) == group;
        let logs = self.chunks.iter().filter(|(number, chunk)| chunk.is_log() && is_of(*number));
        let dead = |chunk: &Chunk| {
            u64::from(chunk.tail.load(Ordering::Relaxed)).saturating_sub(chunk.live_bytes(now))
        };
        logs.map(|(_, chunk)| dead(chunk)).sum()
    }
}
