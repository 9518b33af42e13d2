//! Operations for tests, from a seed: few keys that collide in every way, values at every edge.
//!
//! Weights, keys and sizes are drawn anew for each seed (swarm testing): one run mostly deletes,
//! another never does. Values carry their number, so that no two writes look alike by accident.

use crate::versions::Known;
use esker_base::rng::Rng;
use std::fmt;

/// What a store keeps under a key, as far as tests compare it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Entry {
    /// The value.
    pub bytes: Vec<u8>,
    /// Opaque number beside it.
    pub flags: u32,
    /// Four bits beside it.
    pub state: u8,
    /// When it expires, in seconds of the simulation's clock; 0: never.
    pub expires_at: u64,
}

impl Entry {
    /// A value without flags that never expires.
    #[must_use]
    pub fn plain(bytes: Vec<u8>) -> Self {
        Entry { bytes, flags: 0, state: 0, expires_at: 0 }
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.bytes.get(..self.bytes.len().min(8)).unwrap_or_default();
        write!(f, "{} bytes {shown:02x?}", self.bytes.len())?;
        if (self.flags, self.state, self.expires_at) != (0, 0, 0) {
            write!(f, " flags {} state {} expiry {}", self.flags, self.state, self.expires_at)?;
        }
        Ok(())
    }
}

/// What a store shows of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// What was put.
    pub entry: Entry,
    /// The version that it got; 0: not known, or the store has none.
    pub version: u64,
}

impl From<Entry> for Held {
    fn from(entry: Entry) -> Self {
        Held { entry, version: 0 }
    }
}

/// When a conditional put takes place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Only if the key has no value.
    Absent,
    /// Only if the key has a value.
    Present,
}

/// One operation on a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Puts.
    Put(Vec<u8>, Entry),
    /// Puts on a condition.
    PutIf(Vec<u8>, Entry, When),
    /// Puts if the key still has what somebody saw, by its version.
    CompareAndPut(Vec<u8>, Entry, Held),
    /// Deletes if the key still has what somebody saw, by its version.
    CompareAndDelete(Vec<u8>, Held),
    /// Reads one key.
    Get(Vec<u8>),
    /// Deletes.
    Delete(Vec<u8>),
    /// Puts and deletes, all or nothing.
    Batch(Vec<(Vec<u8>, Option<Entry>)>),
    /// Deletes every key; not atomic.
    Clear,
    /// Makes everything durable.
    Sync,
    /// Reads every key; each by itself, not at one moment.
    Iterate,
    /// Closes and opens again. Only where one task runs.
    Reopen,
    /// The store checks itself.
    Check,
    /// The store moves records to make room. Nobody sees a difference.
    Clean,
    /// The clock shows this time, in seconds, or a later one. Nothing is asked of the store.
    Time(u64),
}

/// Odds of each operation; 0 leaves it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each name says it")]
pub struct Weights {
    pub put: u64,
    pub put_if: u64,
    pub get: u64,
    pub delete: u64,
    pub batch: u64,
    pub clear: u64,
    pub sync: u64,
    pub iterate: u64,
    pub reopen: u64,
    pub check: u64,
    pub clean: u64,
    pub compare: u64,
    pub time: u64,
}

impl Weights {
    /// Everything that most stores can do, without batches.
    pub const USUAL: Weights = Weights {
        put: 50,
        put_if: 8,
        get: 15,
        delete: 15,
        batch: 0,
        clear: 1,
        sync: 3,
        iterate: 1,
        reopen: 1,
        check: 1,
        clean: 0,
        compare: 0,
        time: 0,
    };

    /// These odds, each doubled, kept, quartered or dropped. Puts stay.
    #[must_use]
    pub fn swarm(mut self, rng: &mut Rng) -> Self {
        let mut vary = |weight: &mut u64| {
            *weight = match rng.below(5) {
                0 => *weight * 2,
                1 => weight.div_ceil(4),
                2 => 0,
                _ => *weight,
            };
        };
        vary(&mut self.put_if);
        vary(&mut self.get);
        vary(&mut self.delete);
        vary(&mut self.batch);
        vary(&mut self.clear);
        vary(&mut self.sync);
        vary(&mut self.iterate);
        vary(&mut self.reopen);
        vary(&mut self.check);
        vary(&mut self.clean);
        vary(&mut self.compare);
        vary(&mut self.time);
        self.put = self.put.max(1);
        self
    }

    fn all(self) -> [u64; 13] {
        [
            self.put,
            self.put_if,
            self.get,
            self.delete,
            self.batch,
            self.clear,
            self.sync,
            self.iterate,
            self.reopen,
            self.check,
            self.clean,
            self.compare,
            self.time,
        ]
    }
}

/// Limits of the store under test.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest key in bytes.
    pub key_size_bytes_max: usize,
    /// Longest value in bytes that a test writes.
    pub value_size_bytes_max: usize,
    /// Size of a segment (or whatever a record must fit into) in bytes: values near it are made
    /// where they are allowed.
    pub segment_size_bytes: usize,
    /// How many keys there are.
    pub key_count: usize,
    /// Whether entries carry flags.
    pub flags: bool,
    /// Whether some entries expire.
    pub expires: bool,
}

/// Longest life of an entry that expires, and the longest step of the clock, in seconds.
const LIFE_MAX: u64 = 30;
const STEP_MAX: u64 = 6;
/// Longest value of which several may look alike, in bytes.
const ALIKE_MAX: usize = 8;

impl Default for Limits {
    fn default() -> Self {
        Limits {
            key_size_bytes_max: 250,
            value_size_bytes_max: 8192,
            segment_size_bytes: 4096,
            key_count: 12,
            flags: true,
            expires: false,
        }
    }
}

/// A source of operations.
#[derive(Clone, Debug)]
pub struct Generator {
    rng: Rng,
    weights: Weights,
    keys: Vec<Vec<u8>>,
    sizes: Vec<usize>,
    limits: Limits,
    /// What is in values beside their number: none of another run is alike.
    run: u64,
    next_value: u64,
}

impl Generator {
    /// The operations of `seed`. `stream` makes different values of the same keys, for several
    /// tasks of one run.
    #[must_use]
    pub fn new(seed: u64, stream: u64, weights: Weights, limits: Limits) -> Self {
        // Keys and weights come from the seed alone, so that all streams share them.
        let mut shared = Rng::from_seed(seed);
        let keys = keys(&mut shared, limits);
        let weights = weights.swarm(&mut shared);
        let sizes = sizes(&mut shared, limits);
        let rng = Rng::from_seed(seed ^ (stream + 1).wrapping_mul(0xA076_1D64_78BD_642F));
        let run = shared.next_u64();
        Generator { rng, weights, keys, sizes, limits, run, next_value: stream << 40 }
    }

    /// Every key that operations use.
    #[must_use]
    pub fn keys(&self) -> &[Vec<u8>] {
        &self.keys
    }

    /// The weights of this seed.
    #[must_use]
    pub fn weights(&self) -> Weights {
        self.weights
    }

    /// The next operation, of somebody who knows the time and some versions.
    pub fn next_op(&mut self, now: u64, known: &Known) -> Op {
        let all = self.weights.all();
        let mut point = self.rng.below(all.iter().sum());
        let mut choice = 0;
        for (index, weight) in all.iter().enumerate() {
            if point < *weight {
                choice = index;
                break;
            }
            point -= weight;
        }
        match choice {
            1 => {
                let when = if self.rng.chance(1, 2) { When::Absent } else { When::Present };
                Op::PutIf(self.key(), self.entry(now), when)
            }
            2 => Op::Get(self.key()),
            3 => Op::Delete(self.key()),
            4 => self.batch(now),
            5 => Op::Clear,
            6 => Op::Sync,
            7 => Op::Iterate,
            8 => Op::Reopen,
            9 => Op::Check,
            10 => Op::Clean,
            11 => {
                let key = self.key();
                match known.some(&key, &mut self.rng) {
                    Some(held) if self.rng.chance(1, 4) => Op::CompareAndDelete(key, held),
                    Some(held) => Op::CompareAndPut(key, self.entry(now), held),
                    None => Op::Get(key),
                }
            }
            12 => Op::Time(now + 1 + self.rng.below(STEP_MAX)),
            _ => Op::Put(self.key(), self.entry(now)),
        }
    }

    fn batch(&mut self, now: u64) -> Op {
        let count = 1 + self.rng.index(5);
        let mut writes: Vec<(Vec<u8>, Option<Entry>)> = Vec::new();
        for _ in 0..count {
            let key = self.key();
            let entry = (!self.rng.chance(1, 4)).then(|| self.entry(now));
            if writes.iter().all(|(earlier, _)| *earlier != key) {
                writes.push((key, entry));
            }
        }
        Op::Batch(writes)
    }

    fn key(&mut self) -> Vec<u8> {
        // A third of all operations meet on two keys.
        let bound = if self.rng.chance(1, 3) { 2.min(self.keys.len()) } else { self.keys.len() };
        let index = self.rng.index(bound);
        self.keys.get(index).cloned().unwrap_or_default()
    }

    fn entry(&mut self, now: u64) -> Entry {
        let index = self.rng.index(self.sizes.len());
        let size = self.sizes.get(index).copied().unwrap_or(0);
        self.next_value += 1;
        let mut bytes = vec![0; size];
        let mut content = Rng::from_seed(self.run ^ self.next_value);
        content.fill(&mut bytes);
        let (mut flags, mut state, mut expires_at) = (0, 0, 0);
        if self.limits.flags {
            // Those that are too short to differ have flags that do.
            if size < ALIKE_MAX || self.rng.chance(1, 4) {
                flags = u32::try_from(content.below(1 << 32)).unwrap_or(0);
            }
            if self.rng.chance(1, 4) {
                state = u8::try_from(self.rng.below(16)).unwrap_or(0);
            }
        }
        if self.limits.expires && self.rng.chance(1, 4) {
            expires_at = now + 1 + self.rng.below(LIFE_MAX);
        }
        Entry { bytes, flags, state, expires_at }
    }
}

/// Keys that share prefixes, of one byte, of the greatest length, and twins that differ in the last
/// byte only.
fn keys(rng: &mut Rng, limits: Limits) -> Vec<Vec<u8>> {
    let longest = limits.key_size_bytes_max.max(1);
    let mut keys: Vec<Vec<u8>> = vec![vec![b'k']];
    if longest > 1 {
        keys.push(vec![b'k'; longest]);
        let mut twin = vec![b'k'; longest];
        if let Some(last) = twin.last_mut() {
            *last = b'l';
        }
        keys.push(twin);
    }
    let mut number = 0_u64;
    while keys.len() < limits.key_count {
        number += 1;
        let mut key = b"key/".to_vec();
        if rng.chance(1, 3) {
            key.resize(4 + rng.index(longest.saturating_sub(8).max(1)), b'-');
        }
        key.extend(number.to_string().into_bytes());
        key.truncate(longest);
        if !keys.contains(&key) {
            keys.push(key);
        } else if number > 10_000 {
            break;
        }
    }
    keys.truncate(limits.key_count.max(1));
    keys
}

/// Sizes at the edges of words, sectors and blocks, and near a segment; each run has its own few.
fn sizes(rng: &mut Rng, limits: Limits) -> Vec<usize> {
    let segment = limits.segment_size_bytes;
    let mut all = vec![0, 1, 7, 8, 63, 64, 65, 100, 511, 512, 513, 1000, 4095, 4096, 4097];
    all.extend([segment / 2, segment.saturating_sub(100), segment.saturating_sub(1), segment]);
    all.push(segment + 1);
    all.push(limits.value_size_bytes_max);
    all.retain(|size| *size <= limits.value_size_bytes_max);
    let mut chosen: Vec<usize> = all.iter().copied().filter(|_| rng.chance(1, 2)).collect();
    // Small values must be frequent, or nothing is ever packed together.
    chosen.extend([8, 20, 40].iter().filter(|size| **size <= limits.value_size_bytes_max));
    chosen.push(0);
    chosen
}

#[cfg(test)]
mod tests;
