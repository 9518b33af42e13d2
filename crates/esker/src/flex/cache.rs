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

#[derive(Debug)]
struct Way {
    block: u64,
    salt: u64,
    used: bool,
    payload: Box<[u8]>,
}

#[derive(Debug, Default)]
struct Set {
    ways: Vec<Way>,
    hand: usize,
}

/// A cache of blocks. See the module's text.
#[derive(Debug)]
pub(super) struct Cache {
    sets: Box<[Mutex<Set>]>,
}

impl Cache {
    /// A cache of about `size_bytes`; of nothing if that is less than a set.
    pub(super) fn new(size_bytes: u64, block_size_bytes: u64) -> Self {
        let count = size_bytes / (block_size_bytes.max(1) * WAYS as u64);
        Cache { sets: (0..count).map(|_| Mutex::default()).collect() }
    }

    fn set(&self, block: u64) -> Option<&Mutex<Set>> {
        let mixed = u128::from(block.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let index = (mixed * self.sets.len() as u128) >> 64;
        self.sets.get(usize::try_from(index).unwrap_or(0))
    }

    /// Copies bytes of a block from `start` on into `to`, if it is here.
    pub(super) fn get(&self, block: u64, salt: u64, start: usize, to: &mut [u8]) -> bool {
        let Some(set) = self.set(block) else { return false };
        let mut set = set.lock();
        let Some(way) = set.ways.iter_mut().find(|way| way.block == block && way.salt == salt)
        else {
            return false;
        };
        let Some(from) = way.payload.get(start..start.saturating_add(to.len())) else {
            return false;
        };
        to.copy_from_slice(from);
        way.used = true;
        true
    }

    /// Keeps a verified block.
    pub(super) fn put(&self, block: u64, salt: u64, payload: &[u8]) {
        let Some(set) = self.set(block) else { return };
        let mut set = set.lock();
        if let Some(way) = set.ways.iter_mut().find(|way| way.block == block) {
            way.salt = salt;
            way.payload.copy_from_slice(payload);
            return;
        }
        if set.ways.len() < WAYS {
            set.ways.push(Way { block, salt, used: false, payload: payload.into() });
            return;
        }
        loop {
            let hand = set.hand;
            set.hand = (hand + 1) % WAYS;
            let Some(way) = set.ways.get_mut(hand) else { return };
            if !std::mem::take(&mut way.used) {
                (way.block, way.salt) = (block, salt);
                way.payload.copy_from_slice(payload);
                return;
            }
        }
    }
}
