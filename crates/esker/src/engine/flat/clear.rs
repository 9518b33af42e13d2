//! Clears: all that is there goes at once, and leaves the index by and by (`flush_all` of memcache).
//!
//! Two durable slots say that older entries are gone. In the same moment the chunk of each log notes how far it goes: entries before
//! that are *cleared*, and the places that the index has of them tell so. They leave the index part by part, beside all other calls.
//!
//! # Invariants
//! - E1: an entry that was cleared counts for nobody: no read finds it, no condition is decided by it, no cleaner copies it, no image has it.
//! - E2: it leaves the index once: swept, or when its key is written, or its chunk cleaned before. Whoever takes it out counts it as dead
//!   and frees its record.
//!
//! # Concurrency
//! With the locks of all keys and of all cleaners for a look at each chunk; then with those of the cleaners for one part of the index at
//! a time. Who comes first to a word that is still there takes it out.
//!
//! # Failure
//! A crash leaves nothing of them that recovery would take. A stop sweeps the rest, for an image vouches for what is in use.

use super::chunks::{Chunk, Since};
use super::index::Part;
use super::layout::Place;
use super::{Flat, sites};
use crate::engine::Cursor;
use esker_base::Result;
use esker_format::flat::{CLEAR_OFFSETS, Clear};
use esker_index::Word;
use std::sync::atomic::Ordering;

impl Flat {
    /// Whether an entry was cleared whose place the index has, or had.
    #[inline]
    pub(super) fn is_cleared(&self, word: Word) -> bool {
        let offset = Place::of(word).offset;
        let number = self.layout.chunk_of(offset);
        let within = offset - self.layout.start_of(number);
        self.chunks.get(number).is_some_and(|chunk| chunk.has_cleared(within))
    }

    /// Deletes everything.
    pub(super) fn clear_all(&self) -> Result<()> {
        self.clear_at_once()?;
        let mut cursor = Cursor::Start;
        let mut is_more = true;
        while is_more {
            // Others go first.
            esker_trt::yield_now();
            let _still = self.hold_cleaning();
            // Who closed the store has swept the rest, and one that failed stays as it is.
            is_more = self.refuse().is_ok() && self.sweep_part(&mut cursor)?;
        }
        Ok(())
    }

    /// As [`Flat::clear_all`], but what was cleared is in the index still.
    pub(super) fn clear_at_once(&self) -> Result<()> {
        self.refuse()?;
        let _locks = self.keys.lock_all();
        // Nobody moves what is about to go.
        let _still = self.hold_cleaning();
        // Who closed the store meanwhile has written an image, in which everything is still there.
        self.refuse()?;
        let mut cleared = self.cleared.lock();
        let next = Clear { generation: cleared.generation + 1, version: self.versions.meet() };
        // So that a checkpoint from now on comes after it.
        self.versions.raise(next.version + 1);
        let written = || {
            let bytes = next.encode(&self.layout.store_id);
            for offset in CLEAR_OFFSETS {
                // PERSIST: one after the other: torn, one does not count, and the other says what was so before, or is so
                //          now. Nobody hears of it before there are two: damage to one then brings nothing back.
                self.memory.store(sites::CLEAR_STORE, offset, &bytes)?;
                self.memory.flush(sites::CLEAR_FLUSH, offset, bytes.len() as u64)?;
                self.memory.fence(sites::CLEAR_FENCE)?;
            }
            Ok(())
        };
        written().map_err(|error| self.poison(&error))?;
        *cleared = next;
        // What every log has by now is older, and what comes to it is not.
        let logs = self.chunks.iter().map(|(_, chunk)| chunk).filter(|chunk| chunk.is_log());
        logs.for_each(Chunk::clear);
        self.unswept.store(self.index.len(), Ordering::Relaxed);
        self.tombstones.store(0, Ordering::Relaxed);
        self.lost.clear();
        Ok(())
    }

    /// Takes the rest of what was cleared out of the index, for who has the locks of all keys and of all cleaners.
    pub(super) fn sweep_rest(&self) -> Result<()> {
        let mut cursor = Cursor::Start;
        while self.sweep_part(&mut cursor)? {}
        Ok(())
    }

    /// Takes what was cleared out of a part of the index; false if nothing is left behind. The cleaners' locks are held, so that whatever the
    /// index has stands, and nobody takes what is out of the index and not dead yet for damage.
    fn sweep_part(&self, cursor: &mut Cursor) -> Result<bool> {
        if self.unswept.load(Ordering::Relaxed) == 0 {
            return Ok(false);
        }
        let Some((part, next)) = self.index.walk(cursor) else { return Ok(false) };
        *cursor = next;
        match part {
            Part::Hashes(entries) => {
                entries.into_iter().try_for_each(|(hash, word)| self.forget(hash, &[], word))?;
            }
            Part::Keys(entries) => {
                entries.into_iter().try_for_each(|(key, word)| self.forget(0, &key, word))?;
            }
        }
        Ok(true)
    }

    /// Takes an entry out of the index that was cleared, unless others are faster (E2).
    fn forget(&self, hash: u64, key: &[u8], word: Word) -> Result<()> {
        if self.is_cleared(word)
            && let Some(record) = self.record_to_free(word, Since::HELD)?
            && self.index.remove(hash, key, word)
        {
            self.let_go(word, record);
        }
        Ok(())
    }
}
