//! What of a chunk counts: entries and bytes of a log, those that have expired among them.
//!
//! # Concurrency
//! Who has the log's lock appends; anybody else counts what is published, and what does not count any more. Whoever asks finds numbers of
//! about now.

use super::Chunk;
use crate::engine::expiries::Expiries;
use std::sync::atomic::Ordering;

impl Chunk {
    /// The index follows an entry.
    pub(in super::super) fn count_published(&self, entries: u32) {
        // After the counts of what it replaced.
        self.published.fetch_add(entries, Ordering::Release);
    }

    /// An entry does not count any more, and the index does not have it.
    pub(in super::super) fn count_dead(&self) {
        self.dead.fetch_add(1, Ordering::AcqRel);
    }

    /// All entries so far were cleared. Nothing is appended meanwhile.
    pub(in super::super) fn clear(&self) {
        self.cleared.store(self.tail.load(Ordering::Acquire), Ordering::Release);
    }

    /// Whether an entry so many bytes behind the start of the chunk was cleared.
    #[inline]
    pub(in super::super) fn has_cleared(&self, within: u64) -> bool {
        within < u64::from(self.cleared.load(Ordering::Acquire))
    }

    /// Entries, and those that do not count.
    pub(in super::super) fn counts(&self) -> (u32, u32) {
        (self.entries.load(Ordering::Relaxed), self.dead.load(Ordering::Acquire))
    }

    /// An entry that the index follows expires then.
    #[cold]
    pub(in super::super) fn note_expiry(&self, expires_at: u64) {
        self.expiries.lock().add(expires_at, 1);
    }

    /// Entries of so many bytes were appended, up to `tail`, and so many tombstones are among them. By who has the log's lock.
    #[inline]
    pub(in super::super) fn note_appended(&self, payload: usize, tombstones: usize, tail: u64) {
        if tombstones > 0 {
            let tombstones = u32::try_from(tombstones).unwrap_or(u32::MAX);
            self.tombstones.fetch_add(tombstones, Ordering::Relaxed);
        }
        let payload = u32::try_from(payload).unwrap_or(u32::MAX);
        let before = self.payload.load(Ordering::Relaxed);
        self.payload.store(before.saturating_add(payload), Ordering::Relaxed);
        self.tail.store(u32::try_from(tail).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Entries that were appended as tombstones.
    pub(in super::super) fn tombstones(&self) -> u32 {
        self.tombstones.load(Ordering::Relaxed)
    }

    /// Takes over how many bytes all entries have, how many tombstones are among them, and when they expire; the index may not follow some
    /// of them any more.
    pub(in super::super) fn learn(&self, payload: u64, tombstones: u32, expiries: Expiries) {
        self.tombstones.store(tombstones, Ordering::Relaxed);
        self.payload.store(u32::try_from(payload).unwrap_or(u32::MAX), Ordering::Relaxed);
        *self.expiries.lock() = expiries;
        self.unread.store(false, Ordering::Relaxed);
    }

    /// Bytes that copies of what counts by `now` would take, about.
    pub(in super::super) fn live_bytes(&self, now: u64) -> u64 {
        self.live_bytes_of(self.counts_by(now))
    }

    /// The same, if so many are its entries, and do not count.
    pub(in super::super) fn live_bytes_of(&self, (entries, dead): (u32, u32)) -> u64 {
        /// What an entry has besides, in a batch with others.
        const BESIDE: u64 = 3;
        let (entries, live) = (u64::from(entries.max(1)), u64::from(entries.saturating_sub(dead)));
        let tail = u64::from(self.tail.load(Ordering::Relaxed));
        // Of a log that goes on from before the open, what was appended since is known.
        let bytes = match self.payload.load(Ordering::Relaxed) {
            payload if payload > 0 && !self.is_unread() => {
                tail.min(u64::from(payload) + entries * BESIDE)
            }
            _ => tail,
        };
        bytes * live / entries
    }

    /// Whether nobody knows what its entries take, and when they expire.
    pub(in super::super) fn is_unread(&self) -> bool {
        self.is_log() && self.unread.load(Ordering::Relaxed)
    }

    /// Entries, and those that do not count or, as far as is known, have expired by `now`.
    pub(in super::super) fn counts_by(&self, now: u64) -> (u32, u32) {
        let (entries, dead) = self.counts();
        let expired = self.expiries.lock().expired(now);
        let live = u64::from(entries.saturating_sub(dead));
        // Of those that expire as many are dead for another reason as of all.
        let expired = expired.saturating_mul(live) / u64::from(entries.max(1));
        (entries, dead.saturating_add(u32::try_from(expired.min(live)).unwrap_or(0)))
    }

    /// Whether the index follows all entries.
    pub(in super::super) fn is_published(&self) -> bool {
        // In this order: what is published was counted before.
        let published = self.published.load(Ordering::SeqCst);
        published == self.entries.load(Ordering::SeqCst)
    }

    /// Whether nothing counts any more, and nobody will say so of any entry.
    pub(in super::super) fn is_dead(&self) -> bool {
        let (entries, dead) = self.counts();
        self.is_published() && dead == entries
    }

    /// What recovery found: entries, and those that count.
    pub(in super::super) fn restore_counts(&self, entries: u32, dead: u32, tail: u32) {
        self.set_counts(entries, dead, tail);
        self.payload.store(0, Ordering::Relaxed);
        self.unread.store(true, Ordering::Relaxed);
    }

    pub(super) fn set_counts(&self, entries: u32, dead: u32, tail: u32) {
        self.entries.store(entries, Ordering::Relaxed);
        self.published.store(entries, Ordering::Relaxed);
        self.dead.store(dead, Ordering::Relaxed);
        self.tail.store(tail, Ordering::Relaxed);
    }
}
