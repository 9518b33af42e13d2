//! Walking all entries in the order of their hashes' first bits, while everything goes on.
//!
//! A cursor is the first hash that has not been met. It lies between two segments, and stays
//! between two however often they split: so an entry that stays is met exactly once.

use super::{Base, Cceh, Located};
use crate::word::Word;
use std::ops::RangeInclusive;

/// The cursor behind the last hash: no segment begins there.
const END: u64 = u64::MAX;

/// Entries of a part of a walk, and the cursor behind it.
type Part = (Vec<(u64, Word)>, u64);

impl Base {
    /// The entries of a segment; it must not change meanwhile.
    fn part(&self, cursor: u64, located: Located) -> Part {
        let hashes = hashes(cursor, located.depth());
        let segment = located.segment(&self.arena);
        let mut entries = segment.collect(cursor, located.depth());
        entries.extend(self.stash.within(hashes.clone()));
        let words = entries.iter().filter_map(|(hash, word)| Some((*hash, Word::new(*word)?)));
        (words.collect(), hashes.end().checked_add(1).unwrap_or(END))
    }
}

/// The hashes of a segment.
fn hashes(hash: u64, depth: u32) -> RangeInclusive<u64> {
    let rest = u64::MAX.checked_shr(depth).unwrap_or(0);
    hash & !rest..=hash | rest
}

impl Cceh {
    /// The entries of the part of the hash space that begins at `cursor` (0 to begin with), about a
    /// thousand at most unless the stash holds more, and the cursor of the next part; `None` at the
    /// end. A walk meets every entry that stays for the whole walk exactly once, whatever splits
    /// meanwhile; one that is replaced meanwhile once, as it was or as it is. Changes of one segment wait
    /// while it is copied; lookups do not.
    #[must_use]
    pub fn walk(&self, cursor: u64) -> Option<(Vec<(u64, Word)>, u64)> {
        if cursor == END {
            return None;
        }
        loop {
            let root = self.roots.now()?;
            let located = root.located(cursor)?;
            located.prefetch_whole();
            let _locks = located.segment(self.arena()).lock();
            if self.is_current(root, cursor, located) {
                return Some(self.base.part(cursor, located));
            }
        }
    }
}
