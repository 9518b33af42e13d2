//! Log cleaning: live entries of a chunk are copied to the cleaner's log, the index follows, and the chunk is free
//! (FlatStore §3.4).
//!
//! An entry is live if the index has its very place. A tombstone is needed as long as an older entry of its key may be
//! on media: those had been overtaken when it was written, so they stand in chunks that were begun before and have entries
//! that do not count; once there is no such chunk besides its own, it is dropped.
//!
//! # Invariants
//! - C1: copies are durable before the index follows them, and the index has followed all before the chunk's header
//!   says that it is free. So a crash finds each entry at least once; twice is no harm: both have one version.
//! - C2: the cleaner's chunk is found by its header, which is durable before the first copy: the journal of §3.4.
//! - C3: the chunks that the cleaner writes to are born when it began to look at what it copies there, or rather
//!   before the first version whose entry the index did not follow then: an entry that is about to overtake one of the
//!   copies has a version already.
//! - C4: the record of an entry that was dropped, or whose copy has another one, is free only once the entry's chunk is: a crash
//!   before that finds the entry, and what it points at. Recovery does the same for what it finds twice. A record that an entry elsewhere
//!   shares, because one is a copy of the other, is free only once that one's chunk is, too ([`twins`](super::twins)).
//!
//! What has expired does not count either, but nobody says so: each chunk knows roughly when its entries expire. And lines are
//! filled up behind short batches, and logs end early in a crash: so a chunk is judged by the bytes that copies would take.
//!
//! # Concurrency
//! One pass at a time; it takes no lock of a key. Who writes a key meanwhile finds that its word has changed.

use super::chunks::{Chunk, For};
use super::cleaners::Still;
use super::commit::Log;
use super::known::{Known, Needed};
use super::moves::unless_damaged;
use super::purge::Why;
use super::read::attributes_of;
use super::victims::{Futile, Gain, Ranked, Search};
use super::{Flat, OPEN, sites};
use crate::engine::expiries::Expiries;
use esker_base::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

/// One chunk in so many is kept free ahead of writers.
const RESERVE_SHARE: u32 = 32;

/// State of a cleaner.
#[derive(Debug)]
pub(super) struct Cleaner {
    /// Whose logs it cleans, and the first core of that group.
    pub(super) group: usize,
    pub(super) core: usize,
    pub(super) log: Log,
    /// What there was when nothing was left to gain.
    pub(super) futile: Option<Futile>,
    /// What it knows of all chunks; from which there was most to gain, for each gain; after how many moves of chunks there was not much.
    pub(super) known: Option<Known>,
    /// The least that tombstones of victims were said to be needed from, since nothing was left to gain.
    pub(super) needed_least: u64,
    pub(super) ranked: [Ranked; 3],
    pub(super) not_much: Option<u64>,
    /// Records that entries of a chunk point at for which nothing else stands any more, by that chunk (C4).
    left: BTreeMap<u32, Vec<u64>>,
    /// Records of the entries that were copied last at which the copies point, too.
    pub(super) shared: Vec<u64>,
    /// Chunks with damage: they are left as they are.
    pub(super) damaged: BTreeSet<u32>,
    buffer: Vec<u8>,
}

impl Cleaner {
    pub(super) fn new(group: usize, core: usize) -> Cleaner {
        Cleaner {
            group,
            core,
            log: Log::new(None),
            futile: None,
            known: None,
            needed_least: u64::MAX,
            ranked: Default::default(),
            not_much: None,
            left: BTreeMap::new(),
            shared: Vec::new(),
            damaged: BTreeSet::new(),
            buffer: Vec::new(),
        }
    }

    /// A record goes with the chunk of the entry that points at it.
    pub(super) fn leave(&mut self, chunk: u32, record: Option<u64>) {
        if let Some(line) = record {
            self.left.entry(chunk).or_default().push(line);
        }
    }
}

impl Flat {
    /// Makes room until so many chunks are free for somebody of this core; false if that cannot be.
    pub(super) fn make_room(&self, core: usize, count: usize, whom: For) -> Result<bool> {
        // A checkpoint is worth less than any write, and so is a backup.
        let cleaned = match self.clean_for(core, count, whom) {
            // The cleaner itself found no room.
            Err(error) if error.kind() == ErrorKind::NoSpace => false,
            cleaned => cleaned?,
        };
        Ok(cleaned || self.drop_checkpoint()? || self.break_hold())
    }

    fn clean_for(&self, core: usize, count: usize, whom: For) -> Result<bool> {
        let wanted = count + self.chunks.kept(whom);
        let before = self.chunks.free_count();
        let enough = || {
            let free = self.chunks.free_count();
            free >= wanted && (count == 1 || free > before)
        };
        // Its own group's cleaner first: the others may be at work for theirs.
        let (own, groups) = (self.cleaners.group_of(core), self.cleaners.count());
        let groups = (own..own + groups).map(|group| group % groups);
        let mut search = Search::new(groups, &enough);
        while !enough() {
            if !self.clean_next(&mut search, Gain::Some)? {
                return Ok(self.chunks.free_count() > before);
            }
        }
        Ok(true)
    }

    /// Cleans the chunk from which there is most to gain, or moves records out of chunks of blocks; false if there is nothing to
    /// gain.
    fn clean_next(&self, search: &mut Search<'_>, gain: Gain) -> Result<bool> {
        (search.trusts, search.has_trusted) = (true, false);
        if self.clean_one(search, gain)? {
            return Ok(true);
        }
        search.trusts = false;
        // W2. What is known suffices for who cleans ahead: by the next time it may be known no more.
        Ok(gain != Gain::Much && search.has_trusted && self.clean_one(search, gain)?)
    }

    fn clean_one(&self, search: &mut Search<'_>, gain: Gain) -> Result<bool> {
        // What costs least comes first.
        if self.release_empty() || self.clean_victim(search, Gain::Much)? {
            return Ok(true);
        }
        if self.learn_of_log(search)? || self.pack(search, gain == Gain::Much)? {
            return Ok(true);
        }
        if gain == Gain::Much {
            return Ok(false);
        }
        Ok(self.clean_victim(search, gain)? || self.is_purge_due(Why::Room) && self.purge_next()?)
    }

    /// Cleans a chunk of one of the groups: the one from which there is most to gain; false if there is not enough.
    fn clean_victim(&self, search: &mut Search<'_>, gain: Gain) -> Result<bool> {
        let mut busy = Vec::new();
        for group in search.groups.clone() {
            match self.cleaners.of_group(group).try_lock() {
                None => busy.push(group),
                Some(mut cleaner) => {
                    if self.clean_victim_of(&mut cleaner, search, gain)? {
                        return Ok(true);
                    }
                }
            }
        }
        // Those whose cleaners rest had nothing.
        for group in busy {
            let mut cleaner = self.cleaners.of_group(group).lock();
            if (search.is_over)() || self.clean_victim_of(&mut cleaner, search, gain)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn clean_victim_of(
        &self,
        cleaner: &mut Cleaner,
        search: &mut Search<'_>,
        gain: Gain,
    ) -> Result<bool> {
        // With the lock: nothing may change once a close has written the image.
        self.refuse()?;
        let Some(victim) = self.next_victim(cleaner, search, gain)? else { return Ok(false) };
        search.visited.insert(victim);
        self.clean_chunk(cleaner, victim)?;
        Ok(true)
    }

    /// Cleans up to so many chunks, those first from which there is most to gain.
    pub(super) fn clean_now(&self, count: usize) -> Result<usize> {
        self.refuse()?;
        let mut search = Search::new(0..self.cleaners.count(), &|| false);
        let mut done = 0;
        // A cleaner needs room for one victim's copies.
        while done < count && self.chunks.free_count() > 0 {
            if self.clean_victim(&mut search, Gain::Any)? || self.pack(&mut search, false)? {
                done += 1;
            } else if !self.learn_of_log(&search)? {
                break;
            }
        }
        Ok(done)
    }

    /// Free chunks that are kept ahead of writers, and those below which they ask for more.
    pub(super) fn reserve(&self) -> (usize, usize) {
        let share = |part: u32| usize::try_from(self.layout.chunk_count / part).unwrap_or(0);
        let least = self.chunks.kept(For::Puts);
        (least + share(RESERVE_SHARE).max(2), least + share(2 * RESERVE_SHARE).max(1))
    }

    /// Cleans logs of these groups while fewer chunks are free than wanted, as long as that is worth its while: the emptier a chunk,
    /// the earlier (FlatStore §3.4).
    pub(super) fn clean_ahead(
        &self,
        groups: std::ops::Range<usize>,
        wanted: usize,
        stop: impl Fn() -> bool,
    ) -> Result<()> {
        let is_over = || {
            let is_open = self.state.load(Ordering::Acquire) == OPEN;
            !is_open || stop() || self.chunks.free_count() >= wanted
        };
        let mut search = Search::new(groups, &is_over);
        // The lock is given back after each chunk: writers may be waiting.
        while !is_over() && self.clean_next(&mut search, Gain::Much)? {}
        Ok(())
    }

    /// Reads a log of which nobody knows what its entries take, and when they expire; false if there is none.
    pub(super) fn learn_of_log(&self, search: &Search<'_>) -> Result<bool> {
        let is_of = |number| search.groups.contains(&self.group_of_log(number));
        let Some((number, chunk)) = self.chunks.first_unread(is_of) else { return Ok(false) };
        let mut cleaner = self.cleaner_of_log(number);
        // Others may have read or cleaned it.
        if (search.is_over)() || !chunk.is_unread() {
            return Ok(true);
        }
        let (mut buffer, mut payload, mut expiries) = (Vec::new(), 0, Expiries::default());
        let mut tombstones = 0;
        if unless_damaged(self.read_log(number, &mut buffer), "a chunk is left as it is")?.is_none()
        {
            cleaner.damaged.insert(number);
            chunk.learn(0, 0, expiries);
            return Ok(true);
        }
        let mut batches = self.batches_of(number, &mut buffer);
        // What is damaged is told when it is cleaned.
        while let Ok(Some(batch)) = batches.take_next() {
            payload += batch.payload_bytes();
            for found in batch.entries().flatten() {
                tombstones += u32::from(found.place.kind.is_tombstone());
                let expires_at = attributes_of(&found.entry).expires_at;
                expires_at.into_iter().for_each(|expires_at| expiries.add(expires_at, 1));
            }
        }
        chunk.learn(payload, tombstones, expiries);
        Ok(true)
    }

    /// Ends the logs of the cleaner's group whose chunks are worth it, so that these can be cleaned; false if there is none. Those that
    /// somebody writes to go on.
    pub(super) fn seal_logs(
        &self,
        cleaner: &mut Cleaner,
        is_worth: &mut dyn FnMut(u32, &Chunk) -> Result<bool>,
    ) -> Result<bool> {
        let mut sealed = false;
        let mut seal = |log: &mut Log| {
            if let Some((number, tail)) = log.open
                && let Some(chunk) = self.chunks.get(number)
                && is_worth(number, chunk)?
            {
                log.open = None;
                self.seal(number, tail)?;
                sealed = true;
            }
            Ok::<_, Error>(())
        };
        seal(&mut cleaner.log)?;
        // Without waiting: the caller may be a writer that has its log's lock, and that comes before the cleaner's.
        let mut idle = self.logs_of_group(cleaner.group).filter_map(Mutex::try_lock);
        idle.try_for_each(|mut log| seal(&mut log))?;
        Ok(sealed)
    }

    /// Copies what counts in a chunk of a log, and frees the chunk. The index follows all its entries.
    pub(super) fn clean_chunk(&self, cleaner: &mut Cleaner, number: u32) -> Result<()> {
        let came_free = self.clean_once(cleaner, number);
        if matches!(came_free, Ok(true)) {
            cleaner.shared.clear();
        } else {
            // C4: entries and their copies stand.
            self.share(number, std::mem::take(&mut cleaner.shared));
        }
        came_free.map(drop)
    }

    /// As [`clean_chunk`](Flat::clean_chunk); false if the chunk is not free.
    fn clean_once(&self, cleaner: &mut Cleaner, number: u32) -> Result<bool> {
        let Some(chunk) = self.chunks.get(number) else { return Ok(false) };
        if !chunk.is_dead() {
            let victim = self.victim_of(cleaner, number);
            let mut buffer = std::mem::take(&mut cleaner.buffer);
            let copied = self.copy_live(cleaner, victim, &mut buffer);
            cleaner.buffer = buffer;
            if !copied? {
                cleaner.damaged.insert(number);
                return Ok(false);
            }
        }
        if !chunk.is_dead() {
            // Somebody who overtook an entry has not counted it yet: a later pass finds the chunk dead. If all have, an entry counts
            // whose record has not its key any more: nothing can be copied in its place.
            let mut logs = self.chunks.iter().filter(|(_, chunk)| chunk.is_log());
            if logs.all(|(_, chunk)| chunk.is_published()) && !chunk.is_dead() {
                tracing::warn!(
                    chunk = number,
                    "the key of an entry that counts is not known: the chunk is left as it is"
                );
                cleaner.damaged.insert(number);
            }
            return Ok(false);
        }
        self.release_log(cleaner, number).map(|()| true)
    }

    /// Frees a chunk of a log of which nothing counts.
    pub(super) fn release_log(&self, cleaner: &mut Cleaner, number: u32) -> Result<()> {
        let chunk = self.chunks.get(number);
        let generation = chunk.map_or(0, Chunk::generation);
        let bytes = chunk.map_or(0, |chunk| u64::from(chunk.tail.load(Ordering::Relaxed)));
        // PERSIST: whatever counted stands elsewhere, durably.
        let released = self.chunks.release(&*self.memory, number, self.versions.next());
        released.map_err(|error| self.poison(&error))?;
        cleaner.damaged.remove(&number);
        cleaner.futile.iter_mut().for_each(|futile| futile.has_gone(bytes));
        // C4.
        let left = cleaner.left.remove(&number).unwrap_or_default();
        self.free_left(number, generation, left);
        Ok(())
    }

    /// Frees the chunks that records are left for, and those with twins, so that nobody has to know of these any more (C4); false if one stays:
    /// for good, or, unless the caller has the locks of all keys, because somebody who overtook an entry has not counted it yet. Twins in a
    /// damaged chunk are nothing to wait for: recovery does not take it.
    pub(super) fn clean_left(&self, still: &mut Still<'_>) -> Result<bool> {
        for cleaner in &mut still.cleaners {
            self.clean_left_of(cleaner)?;
        }
        let is_damaged = |number| still.cleaners.iter().any(|it| it.damaged.contains(&number));
        let twins = self.cleaners.twins.chunks();
        let twins_are_none = twins.iter().all(|(number, left)| !left && is_damaged(*number));
        Ok(twins_are_none && still.cleaners.iter().all(|cleaner| cleaner.left.is_empty()))
    }

    fn clean_left_of(&self, cleaner: &mut Cleaner) -> Result<()> {
        let twins = self.cleaners.twins.chunks().into_iter().map(|(number, _)| number);
        let twins = twins.filter(|number| self.group_of_log(*number) == cleaner.group);
        let numbers: BTreeSet<u32> = cleaner.left.keys().copied().chain(twins).collect();
        for number in numbers {
            let is_dead = self.chunks.get(number).is_some_and(Chunk::is_dead);
            if !self.hold.holds(number) && (is_dead || !cleaner.damaged.contains(&number)) {
                match self.clean_chunk(cleaner, number) {
                    Err(error) if error.kind() == ErrorKind::NoSpace => {}
                    cleaned => cleaned?,
                }
            }
        }
        Ok(())
    }

    /// A version such that the index follows every entry with a lower one (C3).
    pub(super) fn settled(&self) -> u64 {
        // First: what has a lower version was counted before.
        let given = self.versions.meet();
        if sites::CLEAN_SETTLED.disabled() {
            return given;
        }
        let logs = self.chunks.iter().map(|(_, chunk)| chunk).filter(|chunk| chunk.is_log());
        let unsettled = logs.filter(|chunk| !chunk.is_published()).map(Chunk::born).min();
        given.min(unsettled.unwrap_or(given))
    }

    /// From which versions on tombstones that the index followed before may be needed. Tells `looks` which chunk it looks at.
    pub(super) fn tombstones_needed(&self, mut looks: impl FnMut(u32)) -> Needed {
        let mut look = || {
            let mut needed = Needed::NONE;
            for (number, chunk) in self.chunks.iter() {
                looks(number);
                let generation = chunk.generation();
                if chunk.is_log() && chunk.counts().1 > 0 {
                    needed.add(chunk.born(), number, generation);
                }
            }
            needed
        };
        let released = self.chunks.released();
        let needed = look();
        if self.chunks.released() == released {
            return needed;
        }
        // G2: else a cleaner of another group may have copied what is needed from a chunk that comes to one that was passed.
        needed.and(look())
    }
}
