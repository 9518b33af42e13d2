//! The keys of a store while clients insert new ones: numbers from 0 on, without gaps.
//!
//! YCSB's acknowledged counter: an insert takes the next number, and a number may be asked for when its
//! insert and all before it are done, so that a reader never misses a key for good reasons.
//!
//! # Concurrency
//! Any number of clients. `count` is a plain load; inserts take a short lock.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the module's text.
#[derive(Debug)]
pub struct KeySpace {
    next: AtomicU64,
    count: AtomicU64,
    /// Numbers whose insert is done while one before them is not.
    early: Mutex<BTreeSet<u64>>,
}

impl KeySpace {
    /// A space with the keys below `count`.
    #[must_use]
    pub fn new(count: u64) -> Self {
        KeySpace {
            next: AtomicU64::new(count),
            count: AtomicU64::new(count),
            early: Mutex::default(),
        }
    }

    /// Keys that are there: all numbers below.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// The number of a new key.
    pub fn take(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The insert of `number` is done.
    pub fn acknowledge(&self, number: u64) {
        let mut early = self.early.lock();
        early.insert(number);
        let mut count = self.count.load(Ordering::Relaxed);
        while early.first() == Some(&count) {
            early.pop_first();
            count += 1;
        }
        self.count.store(count, Ordering::Release);
    }
}
