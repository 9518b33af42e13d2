//! Blocks of data that were read and verified, in memory.
//!
//! # Invariants
//! - C1: a block counts only for the salt under which it was read, so nothing has to be told of
//!   segments that are taken anew.
//!
//! # Concurrency
//! Sets of eight blocks, each with a short lock of its own; CLOCK within a set.

use parking_lot::Mutex;

/// Blocks of a set.
const WAYS: usize = 8;
/// No block has this number.
const NONE: u64 = u64::MAX;

/// Numbers side by side on one line of memory, salts on the next: a look-up touches few lines.
#[derive(Debug)]
#[repr(align(64))]
struct Set {
    blocks: [u64; WAYS],
    salts: [u64; WAYS],
    used: [bool; WAYS],
    hand: usize,
    /// Of all ways, one behind the other; empty before the first.
    payload: Vec<u8>,
}

/// A cache of blocks. See the module's text.
#[derive(Debug)]
pub(super) struct Cache {
    sets: Box<[Mutex<Set>]>,
}

impl Set {
    fn new() -> Self {
        Set {
            blocks: [NONE; WAYS],
            salts: [0; WAYS],
            used: [false; WAYS],
            hand: 0,
            payload: Vec::new(),
        }
    }

    fn way_of(&self, block: u64) -> Option<usize> {
        self.blocks.iter().position(|other| *other == block)
    }

    /// A way for a new block: free, or that of one that was not used for a while.
    fn victim(&mut self) -> usize {
        loop {
            let way = self.hand % WAYS;
            self.hand = (way + 1) % WAYS;
            match self.used.get_mut(way) {
                Some(used) if *used => *used = false,
                _ => return way,
            }
        }
    }
}

impl Cache {
    /// A cache of about `size_bytes`; of nothing if that is less than a set.
    pub(super) fn new(size_bytes: u64, block_size_bytes: u64) -> Self {
        let count = size_bytes / (block_size_bytes.max(1) * WAYS as u64);
        // An odd number: blocks that are a power of two apart do not meet either.
        let count = count - u64::from(count > 0 && count.is_multiple_of(2));
        Cache { sets: (0..count).map(|_| Mutex::new(Set::new())).collect() }
    }

    /// Neighbours have different sets, and all sets have as many: by chance, one of sixteen blocks of a file that the cache
    /// has room for would be without a place.
    fn set(&self, block: u64) -> Option<&Mutex<Set>> {
        let index = block.checked_rem(self.sets.len() as u64)?;
        self.sets.get(usize::try_from(index).unwrap_or(0))
    }

    /// Copies bytes of a block from `start` on into `to`, if it is here.
    pub(super) fn get(&self, block: u64, salt: u64, start: usize, to: &mut [u8]) -> bool {
        let Some(set) = self.set(block) else { return false };
        let mut set = set.lock();
        let Some(way) = set.way_of(block) else { return false };
        if set.salts.get(way) != Some(&salt) {
            return false;
        }
        let first = way * (set.payload.len() / WAYS) + start;
        let Some(from) = set.payload.get(first..first + to.len()) else { return false };
        to.copy_from_slice(from);
        if let Some(used) = set.used.get_mut(way) {
            *used = true;
        }
        true
    }

    /// Keeps a verified block. All blocks have payloads of one length.
    pub(super) fn put(&self, block: u64, salt: u64, payload: &[u8]) {
        let Some(set) = self.set(block) else { return };
        let mut set = set.lock();
        if set.payload.is_empty() {
            set.payload = vec![0; payload.len() * WAYS];
        }
        let way = set.way_of(block).unwrap_or_else(|| set.victim());
        let first = way * payload.len();
        if let Some(to) = set.payload.get_mut(first..first + payload.len()) {
            to.copy_from_slice(payload);
        }
        if let Some(number) = set.blocks.get_mut(way) {
            *number = block;
        }
        if let Some(own) = set.salts.get_mut(way) {
            *own = salt;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_counts_for_its_salt_only_and_the_unused_one_goes() {
        let cache = Cache::new(8 * 512, 512);
        for block in 0..8 {
            cache.put(block, 1, &[u8::try_from(block).unwrap(); 508]);
        }
        let mut bytes = [0; 10];
        assert!(cache.get(3, 1, 498, &mut bytes) && bytes == [3; 10]);
        assert!(!cache.get(3, 2, 0, &mut bytes), "another time of its segment");
        assert!((1..8).all(|block| cache.get(block, 1, 0, &mut bytes)));
        cache.put(9, 1, &[9; 508]);
        assert!(!cache.get(0, 1, 0, &mut bytes), "nobody used block 0");
        assert!(cache.get(9, 1, 0, &mut bytes) && cache.get(1, 1, 0, &mut bytes));
        cache.put(3, 2, &[7; 508]);
        assert!(cache.get(3, 2, 0, &mut bytes) && bytes == [7; 10]);
        assert!(!Cache::new(100, 512).get(0, 0, 0, &mut bytes));
    }

    #[test]
    fn what_there_is_room_for_stays() {
        // Neighbours, and the first blocks of segments.
        for apart in [1, 64, 1024] {
            let cache = Cache::new(100 * 8 * 512, 512);
            let blocks = || (0..99 * 8).map(|n| 7 + n * apart);
            blocks().for_each(|block| cache.put(block, 1, &[1; 508]));
            let mut byte = [0];
            assert!(blocks().all(|block| cache.get(block, 1, 0, &mut byte)), "{apart} apart");
        }
    }
}
