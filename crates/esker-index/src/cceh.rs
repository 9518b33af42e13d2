//! CCEH: cacheline-conscious extendible hashing, in DRAM (FlatStore §4.1).
//!
//! Three levels: a directory, indexed by the first bits of a hash; segments of 16 KiB, each
//! for the hashes with one prefix; buckets of one cache line with four entries of 16 bytes,
//! chosen by the last bits of the hash. An entry finds place in its bucket or one of the 7 after it. A
//! lookup reads the directory, which is small, and nearly always one line. A segment without room
//! splits: half of its entries are copied to a new one and stay behind as garbage that later entries
//! overwrite (lazy deletion); the directory doubles when it has but one place for a segment.
//!
//! The hash chooses and is kept whole. Several keys may share one: lookups give candidates, the
//! caller compares keys. Where the hash is an invertible function of the key, and so tells it, no two
//! keys share one. A change names the word that it replaces.
//!
//! # Invariants
//! - C1: each hash has one segment in the directory, which also tells the segment's depth: how many
//!   first bits its hashes share.
//! - C2: a segment splits only with all its buckets locked, and its place in the directory changes before
//!   they are unlocked. So who holds the lock of a home and finds the place as it was may change
//!   the home.
//! - C3: what a split leaves behind is overwritten only after the place has changed. So who has read a home
//!   and finds the place as it was has read all that stood there.
//! - C4: a segment splits because of the number of its entries, never because one window is full,
//!   and not beyond 16 times the average depth's width: entries of hashes that were chosen to collide
//!   go to the stash. Memory stays linear in entries, work per operation bounded.
//!
//! # Concurrency
//! [`Cceh`] is for any number of threads. Lookups take no lock (but for homes with entries in the stash) and
//! wait for nobody: they read again what changed meanwhile. Changes lock their home, and the
//! bucket of the entry if that is another one. A split locks its own segment for some microseconds, and for its
//! last step `grow`, which no reader or ordinary change needs.
//! Nothing suspends under these locks, and there is no I/O.
//!
//! Non-goals: shrinking. Segments are freed with the index. An instance for each core, as FlatStore has them (RFC 0015).

mod arena;
mod bucket;
mod segment;
mod split;
mod stash;
mod walk;

use crate::counter::Counter;
use crate::entry::Candidates;
use crate::locks::Mutex;
use crate::word::Word;
use arena::{Arena, Located, Place};
use esker_base::sync::atomic::{AtomicU32, Ordering};
use segment::{ROOM, Searched};
use split::DEPTH_MAX;
use stash::Stash;
use std::ops::ControlFlow;
use std::sync::OnceLock;

/// Operations of a batch whose memory is fetched at once.
const GROUP: usize = 16;
/// Percent of a new index's slots that the expected entries take at most.
const FILL_MAX: u64 = 68;

/// The index for many threads. All methods may be called from any thread at once.
#[derive(Debug)]
pub struct Cceh {
    roots: Roots,
    grow: Mutex<()>,
    base: Base,
    entries: Counter,
}

/// The directory as it is, and as it was before it doubled: readers may stand in an earlier one, so
/// those stay. Together they are as large as the one that counts.
#[derive(Debug)]
struct Roots {
    /// Bits of the one that counts.
    bits: AtomicU32,
    by_bits: Box<[OnceLock<Root>]>,
}

impl Roots {
    fn new(root: Root) -> Roots {
        let bits = AtomicU32::new(root.bits);
        let roots = Roots { bits, by_bits: (0..=DEPTH_MAX).map(|_| OnceLock::new()).collect() };
        roots.add(root);
        roots
    }

    /// The one that counts. `None` never happens.
    #[inline]
    fn now(&self) -> Option<&Root> {
        let bits = self.bits.load(Ordering::Acquire);
        self.by_bits.get(usize::try_from(bits).unwrap_or(usize::MAX))?.get()
    }

    /// Whether this one counts.
    #[inline]
    fn is_now(&self, root: &Root) -> bool {
        self.bits.load(Ordering::Acquire) == root.bits
    }

    /// Makes this one count, which has more bits than any before.
    fn add(&self, root: Root) {
        let bits = root.bits;
        if let Some(place) = self.by_bits.get(usize::try_from(bits).unwrap_or(usize::MAX)) {
            place.get_or_init(|| root);
            self.bits.store(bits, Ordering::Release);
        }
    }

    fn bytes(&self) -> usize {
        let kept = self.by_bits.iter().filter_map(OnceLock::get);
        size_of_val(&*self.by_bits) + kept.map(|root| size_of_val(&*root.places)).sum::<usize>()
    }
}

/// A directory.
#[derive(Debug)]
struct Root {
    /// Bits of a hash that index it.
    bits: u32,
    places: Box<[Place]>,
}

/// Memory and stash, and when segments split.
#[derive(Debug)]
struct Base {
    arena: Arena,
    stash: Stash,
    /// Entries from which on a segment without room splits.
    split_min: usize,
}

impl Base {
    fn new() -> Base {
        let split_min = if cfg!(feature = "shuttle") { 0 } else { ROOM / 4 };
        Base { arena: Arena::default(), stash: Stash::new(), split_min }
    }

    fn memory_bytes(&self) -> usize {
        const STASHED: usize = 64;
        let stash = usize::try_from(self.stash.len()).unwrap_or(usize::MAX);
        self.arena.bytes() + stash.saturating_mul(STASHED)
    }
}

impl Root {
    /// A directory with segments for as many entries.
    fn new(entries: u64, arena: &Arena) -> Root {
        let bits = Root::bits_for(entries);
        let count = 1usize << bits;
        arena.expect(count);
        let places = (0..count).map(|_| Place::new(arena.allocate().at_depth(bits))).collect();
        Root { bits, places }
    }

    fn bits_for(entries: u64) -> u32 {
        let segments = entries.saturating_mul(100).div_ceil(FILL_MAX * ROOM as u64);
        segments.max(1).next_power_of_two().ilog2()
    }

    #[inline]
    fn number(&self, hash: u64) -> usize {
        let number = hash.checked_shr(64 - self.bits).unwrap_or(0);
        usize::try_from(number).unwrap_or(usize::MAX)
    }

    /// The segment of a hash now. `None` never happens: the directory has a place for each.
    #[inline]
    fn located(&self, hash: u64) -> Option<Located> {
        Some(self.places.get(self.number(hash))?.load())
    }

    /// Starts to fetch what an insert of this hash will most likely change.
    #[inline]
    fn prefetch_home(&self, hash: u64) {
        if let Some(located) = self.located(hash) {
            located.prefetch_home(hash);
        }
    }

    /// Starts to fetch what a lookup of this hash will read.
    #[inline]
    fn prefetch(&self, hash: u64) {
        if let Some(located) = self.located(hash) {
            located.prefetch(hash);
        }
    }

    /// The same segments with two places for each place.
    fn doubled(&self) -> Root {
        let twice = |place: &Place| [Place::new(place.load()), Place::new(place.load())];
        Root { bits: self.bits + 1, places: self.places.iter().flat_map(twice).collect() }
    }

    /// Number of places from that of `first` on that a segment of this depth has.
    fn span(&self, depth: u32) -> usize {
        1 << (self.bits - depth.min(self.bits))
    }
}

impl Default for Cceh {
    fn default() -> Self {
        Self::with_capacity(0)
    }
}

impl Cceh {
    /// An index with room for about `entries` entries from the start, at 24 to 47 bytes each, which take
    /// memory only once they are used; 0 begins with one segment of 17 KiB. Either way it grows with
    /// what it gets.
    #[must_use]
    pub fn with_capacity(entries: u64) -> Self {
        let base = Base::new();
        let roots = Roots::new(Root::new(entries, &base.arena));
        Cceh { roots, grow: Mutex::default(), base, entries: Counter::default() }
    }

    /// Makes room for about as many entries at once if there are none yet and there is room for fewer: before a
    /// load in the order of hashes, which the rule against collisions takes for an attack (C4).
    pub fn expect(&self, entries: u64) {
        while self.is_empty() && !self.expect_now(entries) {}
    }

    /// False if the directory changed meanwhile.
    fn expect_now(&self, entries: u64) -> bool {
        let Some(now) = self.roots.now() else { return true };
        let first_hash = |place: usize| (place as u64).checked_shl(64 - now.bits).unwrap_or(0);
        let all: Vec<Located> = now.places.iter().map(Place::load).collect();
        let mut found: Vec<(Located, u64)> =
            all.iter().enumerate().map(|(place, located)| (*located, first_hash(place))).collect();
        // A split that is being published has one segment there at two depths: once is enough to lock it.
        found.dedup_by_key(|(located, _)| located.at_depth(0));
        let segment = |located: Located| located.segment(&self.base.arena);
        // C2: whoever locks a home from now on finds another root. Locks of segments come before that, as in `make_room`.
        let _locks: Vec<_> = found.iter().map(|(located, _)| segment(*located).lock()).collect();
        let _turn = self.grow.lock();
        if !self.roots.is_now(now) || !now.places.iter().map(Place::load).eq(all) {
            return false;
        }
        let count =
            |(located, hash): &(Located, u64)| segment(*located).count(*hash, located.depth());
        if self.base.stash.len() > 0 || found.iter().any(|found| count(found) > 0) {
            return true;
        }
        // Memory of the arena does not come back.
        if Root::bits_for(entries) > now.bits {
            self.roots.add(Root::new(entries, &self.base.arena));
        }
        true
    }

    /// Number of entries. Exact while nothing changes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.entries.sum()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of entries outside the segments.
    #[must_use]
    pub fn stash_len(&self) -> u64 {
        self.base.stash.len()
    }

    /// Number of entries for which the segments have slots; some 75 % of them are taken when a
    /// segment splits.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        (self.base.arena.segments() * ROOM) as u64
    }

    /// Bytes that are allocated: chunks of segments, the directory, and roughly the stash.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.base.memory_bytes() + self.roots.bytes()
    }

    /// Every word that stands under this hash at one moment, in no particular order. Takes no lock. The
    /// hash must be mixed well over its 64 bits.
    #[must_use]
    pub fn lookup(&self, hash: u64) -> Candidates<Word> {
        let mut found = Candidates::default();
        self.find(hash, |word| {
            if let Some(word) = word {
                found.push(word);
            } else {
                found = Candidates::default();
            }
            ControlFlow::<()>::Continue(())
        });
        found
    }

    /// Gives the words that stand under this hash to `visit` until that breaks, and gives what it breaks with.
    /// Whoever looks for one key so reads mostly one line, where [`Cceh::lookup`] must go on for
    /// others. Each word stood there when it is given. If the entries change meanwhile, `visit` gets `None`, and
    /// then all words again: those after the last `None` stood there at one moment, if it did not break.
    #[inline]
    pub fn find<B>(
        &self,
        hash: u64,
        mut visit: impl FnMut(Option<Word>) -> ControlFlow<B>,
    ) -> Option<B> {
        loop {
            let root = self.roots.now()?;
            let located = root.located(hash)?;
            located.prefetch(hash);
            let mut end = None;
            let searched =
                located.segment(&self.base.arena).search(hash, &self.base.stash, &mut |word| {
                    // C3.
                    if self.is_current(root, hash, located) {
                        match visit(Some(word)) {
                            ControlFlow::Continue(()) => return ControlFlow::Continue(()),
                            ControlFlow::Break(with) => end = Some(with),
                        }
                    }
                    ControlFlow::Break(())
                });
            if end.is_some() {
                return end;
            }
            // C3.
            if searched == Searched::All && self.is_current(root, hash, located) {
                return None;
            }
            if let ControlFlow::Break(with) = visit(None) {
                return Some(with);
            }
        }
    }

    /// Starts to fetch what operations on these hashes will read: for a few dozen of them.
    pub fn prefetch(&self, hashes: impl Iterator<Item = u64>) {
        if let Some(root) = self.roots.now() {
            hashes.for_each(|hash| root.prefetch(hash));
        }
    }

    /// Looks up many hashes, and gives each one's number and candidates to `visit`, in order. The
    /// memory of 16 hashes is fetched at once, so that they wait for it together.
    pub fn lookup_many(&self, hashes: &[u64], mut visit: impl FnMut(usize, Candidates<Word>)) {
        for (group, hashes) in hashes.chunks(GROUP).enumerate() {
            if let Some(root) = self.roots.now() {
                hashes.iter().for_each(|hash| root.prefetch(*hash));
            }
            for (place, hash) in hashes.iter().enumerate() {
                visit(group * GROUP + place, self.lookup(*hash));
            }
        }
    }

    /// Whether the segment of the hash is still this one, as deep, and the root this one.
    #[inline]
    fn is_current(&self, root: &Root, hash: u64, located: Located) -> bool {
        root.located(hash) == Some(located) && self.roots.is_now(root)
    }

    /// Adds `word` for `hash`, beside what stands there. Never fails. Bounded work: it may split one
    /// segment.
    #[inline]
    pub fn insert(&self, hash: u64, word: Word) {
        while !self.try_insert(hash, word) {}
        self.entries.add(1);
    }

    /// Adds many entries, fetching the memory of 16 at once: for recovery, by several threads, into an
    /// index that was made for as many.
    pub fn insert_many(&self, entries: &[(u64, Word)]) {
        for group in entries.chunks(GROUP) {
            if let Some(root) = self.roots.now() {
                group.iter().for_each(|(hash, _)| root.prefetch_home(*hash));
            }
            for (hash, word) in group {
                while !self.try_insert(*hash, *word) {}
            }
            self.entries.add(i64::try_from(group.len()).unwrap_or(0));
        }
    }

    /// False if the segment is another one now, or has been split.
    #[inline]
    fn try_insert(&self, hash: u64, word: Word) -> bool {
        let Some(root) = self.roots.now() else { return true };
        let Some(located) = root.located(hash) else { return true };
        let segment = located.segment(&self.base.arena);
        let Some(home) = segment.home(hash) else { return true };
        {
            let _lock = home.lock();
            if !self.is_current(root, hash, located) {
                return false;
            }
            if segment.place(hash, word.get(), located.depth(), false) {
                return true;
            }
            if segment.is_patient() {
                segment.put_aside(hash, word.get(), &self.base.stash);
                return true;
            }
        }
        self.make_room(hash, word)
    }

    /// Puts `new` in the place of `old`; false if `old` is not there.
    pub fn replace(&self, hash: u64, old: Word, new: Word) -> bool {
        self.change(hash, old, new.get())
    }

    /// Removes `word`; false if it is not there.
    pub fn remove(&self, hash: u64, word: Word) -> bool {
        let removed = self.change(hash, word, 0);
        if removed {
            self.entries.add(-1);
        }
        removed
    }

    fn change(&self, hash: u64, old: Word, new: u64) -> bool {
        loop {
            let Some(root) = self.roots.now() else { return false };
            let Some(located) = root.located(hash) else { return false };
            let segment = located.segment(&self.base.arena);
            let Some(home) = segment.home(hash) else { return false };
            let _lock = home.lock();
            if self.is_current(root, hash, located) {
                let (old, depth) = (old.get(), located.depth());
                return segment.change(hash, depth, (old, new), &self.base.stash);
            }
        }
    }
}

#[cfg(test)]
#[cfg(feature = "shuttle")]
mod interleave;
#[cfg(test)]
#[cfg(not(any(loom, feature = "shuttle")))]
mod tests;
