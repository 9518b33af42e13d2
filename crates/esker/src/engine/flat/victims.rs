//! Which chunk of a log is cleaned next, and when there is nothing left to gain.
//!
//! A chunk is worth its cleaning by the bytes that do not count there, or by the entries, whose records come free. Nobody counts the
//! tombstones of a chunk that are not needed any more. They are no longer needed from a moment on: when the oldest chunk with entries that do
//! not count is free. So who needs room looks at everything once for each such step, ends the logs that go on as well, and looks again if the
//! next step came meanwhile.
//!
//! Of a large store a walk notes the next victims, too ([`known`](super::known)): each is looked at anew when its turn comes.
//!
//! # Concurrency
//! Under the cleaner's lock. Writers go on: what is counted is a little behind, or ahead.

use super::Flat;
use super::chunks::{Chunk, Use};
use super::clean::Cleaner;
use esker_base::Result;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
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

impl Futile {
    /// A log of so many bytes is gone, which may all have been dead.
    pub(super) fn has_gone(&mut self, bytes: u64) {
        self.dead_bytes = self.dead_bytes.saturating_sub(bytes);
    }
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
    /// Whether it counts where nothing was to gain a moment ago; whether that was so (W2).
    pub(super) trusts: bool,
    pub(super) has_trusted: bool,
}

/// Chunks from which there was most to gain, with their generations.
#[derive(Debug, Default)]
pub(super) struct Ranked {
    at: u64,
    /// Some are there for tombstones that may not be needed any more.
    unneeded: bool,
    chunks: Vec<(u32, u64)>,
}

impl Cleaner {
    fn ranked_mut(&mut self, gain: Gain) -> &mut Ranked {
        let [any, some, much] = &mut self.ranked;
        match gain {
            Gain::Any => any,
            Gain::Some => some,
            Gain::Much => much,
        }
    }
}

impl<'a> Search<'a> {
    pub(super) fn new(
        groups: impl Iterator<Item = usize>,
        is_over: &'a dyn Fn() -> bool,
    ) -> Search<'a> {
        let (visited, passes) = Default::default();
        let (trusts, has_trusted) = (false, false);
        Search { groups: groups.collect(), visited, passes, is_over, trusts, has_trusted }
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
        if let Some(victim) = self.ranked_victim(cleaner, &search.visited, gain) {
            return Ok(Some(victim));
        }
        if gain == Gain::Some {
            return self.victim_for_room(cleaner, search);
        }
        let is_much = gain == Gain::Much;
        if is_much && search.trusts && cleaner.not_much.is_some_and(|at| self.is_recent(at)) {
            search.has_trusted = true;
            return Ok(None);
        }
        let at = self.moves();
        let find =
            |cleaner: &mut Cleaner| self.victim(cleaner, &search.visited, gain, gain == Gain::Any);
        let mut victim = find(cleaner);
        if victim.is_none() && self.seal_worth(cleaner, gain, false)? {
            victim = find(cleaner);
        }
        cleaner.not_much = (is_much && victim.is_none()).then_some(at);
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
            // As fresh as the pass.
            cleaner.known = None;
            let pass = search.passes.entry(group).or_insert(Pass::new(now.needed, 0));
            let unneeded = pass.needed > known.needed;
            if !unneeded && now.dead_bytes <= known.dead_bytes {
                return Ok(None);
            }
            let find =
                |cleaner: &mut Cleaner| self.victim(cleaner, &search.visited, Gain::Some, unneeded);
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
                // So may those of victims of which less was known.
                let least = std::mem::replace(&mut cleaner.needed_least, u64::MAX);
                let futile = Futile { needed: pass.needed.min(least), ..now };
                cleaner.futile = (!self.hold.is_active()).then_some(futile);
                return Ok(None);
            }
            *pass = Pass::new(now.needed, pass.count + 1);
            search.visited.clear();
        }
    }

    /// The full chunk of which copies take the least; one without anything to gain only if there are tombstones that may be `unneeded` by now.
    /// The next ones are noted.
    fn victim(
        &self,
        cleaner: &mut Cleaner,
        visited: &BTreeSet<u32>,
        gain: Gain,
        unneeded: bool,
    ) -> Option<u32> {
        let at = self.moves();
        let candidate = self.candidate(cleaner, visited, gain, unneeded);
        let most = usize::try_from(self.known_moves).unwrap_or(usize::MAX).max(1);
        let mut best = BinaryHeap::new();
        for (number, chunk) in self.chunks.iter() {
            let generation = chunk.generation();
            best.extend(candidate(number, chunk).map(|rank| (rank, generation)));
            if best.len() > most {
                best.pop();
            }
        }
        drop(candidate);
        let chunks = best.into_sorted_vec().into_iter();
        let mut chunks = chunks.map(|((_, _, number), generation)| (number, generation));
        let victim = chunks.next().map(|(number, _)| number);
        let chunks = chunks.collect();
        *cleaner.ranked_mut(gain) = Ranked { at, unneeded, chunks };
        victim
    }

    /// The one of which copies take the least now of those that the last walk noted.
    fn ranked_victim(
        &self,
        cleaner: &mut Cleaner,
        visited: &BTreeSet<u32>,
        gain: Gain,
    ) -> Option<u32> {
        let Ranked { at, unneeded, mut chunks } = std::mem::take(cleaner.ranked_mut(gain));
        if chunks.is_empty() || !self.is_recent(at) {
            return None;
        }
        let candidate = self.candidate(cleaner, visited, gain, unneeded);
        let ranks = chunks.iter().enumerate().filter_map(|(place, (number, generation))| {
            let chunk = self.chunks.get(*number).filter(|it| it.generation() == *generation)?;
            Some((candidate(*number, chunk)?, place))
        });
        let ((_, _, number), place) = ranks.min()?;
        drop(candidate);
        chunks.swap_remove(place);
        *cleaner.ranked_mut(gain) = Ranked { at, unneeded, chunks };
        Some(number)
    }

    /// What says of a chunk whether it may be cleaned, and is worth it: bytes that copies take, version of its birth, and number.
    fn candidate<'c>(
        &'c self,
        cleaner: &'c Cleaner,
        visited: &'c BTreeSet<u32>,
        gain: Gain,
        unneeded: bool,
    ) -> impl Fn(u32, &Chunk) -> Option<(u64, u64, u32)> + use<'c> {
        let tombstones = unneeded && self.tombstones.load(Ordering::Relaxed) > 0;
        let (now, room) = (self.clock.now(), self.layout.room());
        // Lines are filled up everywhere, a little. Of entries that take next to nothing the records come free.
        let of_bytes = if gain == Gain::Any { Gain::Some } else { gain };
        let (group, damaged) = (cleaner.group, &cleaner.damaged);
        move |number, chunk| {
            if chunk.usage() != Use::Log
                || visited.contains(&number)
                || self.group_of_log(number) != group
                || !chunk.is_published()
                || self.hold.holds(number)
                // Of a damaged one that is dead nothing has to be read.
                || damaged.contains(&number) && !chunk.is_dead()
            {
                return None;
            }
            let tombstones = tombstones && (chunk.tombstones() > 0 || chunk.is_unread());
            let counts = chunk.counts_by(now);
            let (live, (entries, dead)) = (chunk.live_bytes_of(counts), counts);
            let is_worth = of_bytes.is_enough(room.saturating_sub(live), room)
                || gain.is_enough(dead.into(), entries.into());
            (tombstones || is_worth).then_some((live, chunk.born(), number))
        }
    }

    /// Ends the logs of which enough entries do not count, or `all`.
    fn seal_worth(&self, cleaner: &mut Cleaner, gain: Gain, all: bool) -> Result<bool> {
        let now = self.clock.now();
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
            _ => self.tombstones_needed(|_| ()).by_any.min(self.versions.next()),
        };
        Futile { dead_bytes: self.dead_bytes(group), needed }
    }

    /// Bytes of the logs of a group that would come free if all were cleaned.
    fn dead_bytes(&self, group: usize) -> u64 {
        let now = self.clock.now();
        let is_of = |number| self.group_of_log(number) == group;
        let logs = self.chunks.iter().filter(|(number, chunk)| chunk.is_log() && is_of(*number));
        let dead = |chunk: &Chunk| {
            u64::from(chunk.tail.load(Ordering::Relaxed)).saturating_sub(chunk.live_bytes(now))
        };
        logs.map(|(_, chunk)| dead(chunk)).sum()
    }
}
