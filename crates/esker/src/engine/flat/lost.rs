//! Writes of keys that may have an entry that cannot be read.
//!
//! Where the index knows hashes only, an entry tells which key it is of, and one that is damaged may be of any key of its hash. A write of
//! such a key takes the place of all entries of the hash that cannot be read: one of them may be an older one of the key, which must not
//! come back should the medium show it again. Nothing tells what else went with them, so from then on a key of that hash that is not
//! found is an error, as if they still stood there.
//!
//! # Invariants
//! - D1: once a write of a key has returned, no other word of the index is the key's, or can turn out to be.
//!
//! # Concurrency
//! By who has the lock of the key, and so of all keys of its hash. One short lock, which readers take only if anything was lost.
//!
//! # Failure
//! Which hashes these are is forgotten with the session: the next one finds what the media show then.

use super::Flat;
use super::layout::Place;
use esker_base::{ErrorKind, Result};
use esker_format::Flaw;
use esker_index::Word;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

/// Hashes of what was lost.
#[derive(Debug, Default)]
pub(super) struct Lost {
    any: AtomicBool,
    hashes: Mutex<BTreeSet<u64>>,
}

impl Lost {
    /// Whether a key of this hash may have been lost.
    #[inline]
    pub(super) fn has(&self, hash: u64) -> bool {
        self.any.load(Ordering::Acquire) && self.hashes.lock().contains(&hash)
    }

    fn add(&self, hash: u64) {
        self.hashes.lock().insert(hash);
        self.any.store(true, Ordering::Release);
    }

    /// Nothing stands under any hash.
    pub(super) fn clear(&self) {
        let mut hashes = self.hashes.lock();
        hashes.clear();
        self.any.store(false, Ordering::Release);
    }
}

impl Flat {
    /// The word of a key that is about to be written, whose lock the caller holds; and whether it may have had one that cannot be read:
    /// then [`Flat::lose`] comes before what is written is published.
    #[inline]
    pub(super) fn find_to_write(&self, hash: u64, key: &[u8]) -> Result<(Option<Word>, bool)> {
        match self.find(hash, key) {
            Err(error) if error.kind() == ErrorKind::Corrupted => Ok((None, true)),
            found => Ok((found?, false)),
        }
    }

    /// Takes what may be of a key and cannot be read out of the index (D1). What is written in its place is durable, and the index does
    /// not follow yet.
    #[cold]
    pub(super) fn lose(&self, hash: u64, key: &[u8]) -> Result<()> {
        // First: meanwhile, too, the key is not missing.
        self.lost.add(hash);
        loop {
            let mut since = self.chunks.now();
            let mut words = Vec::new();
            let looked = self.index.find(hash, key, &mut |word| {
                match self.is_entry_of(word, key, since) {
                    Ok(Some(false)) => {}
                    // Or the cleaner has read it, and moved it.
                    Ok(Some(true)) => words.push(word),
                    Ok(None) => {
                        since = self.chunks.now();
                        words.clear();
                        return Ok(None);
                    }
                    Err(error) if error.kind() == ErrorKind::Corrupted => words.push(word),
                    Err(error) => return Err(error),
                }
                Ok(Some(false))
            });
            looked.map_err(|error| self.poison(&error))?;
            if words.is_empty() {
                return Ok(());
            }
            for word in words {
                let error = self.corrupted(Flaw::Checksum, Place::of(word).offset, 0);
                tracing::warn!(%error, "an entry that cannot be read goes");
                if let Some(record) = self.record_to_free(word, since)?
                    && self.index.remove(hash, key, word)
                {
                    self.let_go(word, record);
                }
            }
        }
    }
}
