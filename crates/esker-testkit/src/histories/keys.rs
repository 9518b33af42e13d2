//! Keys and hashes that an index finds hard: equal hashes, long beginnings in common, keys that are beginnings of others, zeros.
//!
//! Pure data; which seed has which shape is fixed, so that a run of some dozen seeds has all of them.

use super::KEYS_MAX;
use esker_base::rng::Rng;
use std::fmt;

/// A key, and where it stands among all of a run in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its number.
    pub number: usize,
    /// What an ordered index is told.
    pub bytes: Vec<u8>,
    /// What one without order is told.
    pub hash: u64,
}

/// The keys of a run, in the order of their bytes.
#[derive(Clone, Debug)]
pub struct Keys {
    all: Vec<Key>,
    shape: &'static str,
    is_long: bool,
}

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys, {}", self.all.len(), self.shape)
    }
}

type Shape = (&'static str, fn(&mut Rng) -> Vec<u8>, fn(u64) -> u64);

/// Random bytes of a length below this.
fn few(rng: &mut Rng, length_max: u64, letters: u64) -> Vec<u8> {
    (0..rng.below(length_max)).map(|_| u8::try_from(rng.below(letters) * 51).unwrap_or(0)).collect()
}

/// The beginnings of keys that have a slice, or two, or three, in common.
fn beginning(rng: &mut Rng, slices_max: usize) -> Vec<u8> {
    let slices = 1 + rng.index(slices_max);
    let letter = b"\0a\xFF".get(rng.index(3)).copied().unwrap_or(0);
    vec![letter; 8 * slices]
}

/// Bytes of the longest keys.
const LONGEST: usize = 64 << 10;
const LONG: &str = "up to 64 KiB";

const SHAPES: [Shape; 10] = [
    ("of 8 bytes", |rng| rng.next_u64().to_be_bytes().to_vec(), |hash| hash),
    // Most in one home, so that segments split beside what collided.
    (
        "few letters",
        |rng| few(rng, 41, 2),
        |hash| if hash.is_multiple_of(4) { hash } else { hash << 8 | 77 },
    ),
    (
        "beginnings of 8, 16, 24 bytes in common",
        |rng| [beginning(rng, 3), few(rng, 13, 5)].concat(),
        // All under one fingerprint.
        |hash| hash & !0xFF00 | 0x1200,
    ),
    (
        "beginnings of each other",
        |rng| {
            let letter = [0, 0, b'k', 255].get(rng.index(4)).copied().unwrap_or(0);
            vec![letter; rng.index(300)]
        },
        // All in one segment.
        |hash| hash >> 20 | 0xABCDE << 44,
    ),
    (
        "slices of zeros",
        |rng| (0..rng.below(34)).map(|_| u8::from(rng.chance(1, 16))).collect(),
        // Half of them differ in the upper bits alone.
        |hash| if hash.is_multiple_of(2) { hash } else { hash << 54 },
    ),
    // A few hashes have all.
    ("one beginning and a number", |rng| numbered(b"of all of them.", rng), |hash| hash % 499),
    (LONG, long, |hash| (hash % 3000) << 16 | 255),
    // Dense in the end, and dense in the middle.
    ("a number", |rng| numbered(b"", rng), |hash| u64::MAX - hash % 4000),
    ("a slice and a number", |rng| numbered(b"eight by", rng), |hash| (hash % 7000) << 8),
    (
        "of all lengths to 40",
        |rng| {
            let mut key = vec![0; rng.index(41)];
            rng.fill(&mut key);
            key
        },
        |hash| hash,
    ),
];

/// Seeds that have all shapes, each with one number of keys.
pub const SEEDS: u64 = SHAPES.len() as u64;

fn numbered(beginning: &[u8], rng: &mut Rng) -> Vec<u8> {
    [beginning, &rng.below(KEYS_MAX as u64 / 4).to_be_bytes()].concat()
}

fn long(rng: &mut Rng) -> Vec<u8> {
    let length = match rng.index(4) {
        0 => 1 + rng.index(64),
        1 => LONGEST,
        2 => 1 << rng.index(17),
        _ => 1 + rng.index(LONGEST),
    };
    let mut key = vec![7; length];
    // Most part at their ends.
    let at = if rng.chance(1, 3) { rng.index(length) } else { length - 1 };
    if let Some(byte) = key.get_mut(at) {
        *byte = u8::try_from(rng.below(4)).unwrap_or(0);
    }
    key
}

impl Keys {
    /// Those of a seed.
    #[must_use]
    pub fn of_seed(seed: u64, rng: &mut Rng) -> Keys {
        const COUNTS: [usize; 8] = [24, 200, 2000, 60, 4000, 500, 30, 60_000];
        let shape = usize::try_from(seed % SEEDS).unwrap_or(0);
        let count = usize::try_from(seed / SEEDS % COUNTS.len() as u64).unwrap_or(0);
        let count = COUNTS.get(count).copied().unwrap_or(1);
        let (shape, bytes, hash) = SHAPES.get(shape).copied().unwrap_or(SHAPES[0]);
        let is_long = shape == LONG;
        let count = if is_long { count.min(32) } else { count };
        let mut all: Vec<Vec<u8>> = (0..count).map(|_| bytes(rng)).collect();
        all.sort_unstable();
        all.dedup();
        let key = |(number, bytes)| Key { number, bytes, hash: hash(rng.next_u64()) };
        Keys { all: all.into_iter().enumerate().map(key).collect(), shape, is_long }
    }

    /// So many of them, of those that `takes` takes; if these are few, others join them.
    #[must_use]
    pub fn limited(mut self, count: usize, takes: impl Fn(&[u8]) -> bool) -> Keys {
        self.all.retain(|key| takes(&key.bytes));
        let step = (self.all.len() / count).max(1);
        let mut all: Vec<Vec<u8>> =
            self.all.into_iter().step_by(step).take(count).map(|key| key.bytes).collect();
        all.extend((0..4_u8).map(|n| vec![b'z', n]));
        all.sort_unstable();
        all.dedup();
        let key = |(number, bytes)| Key { number, bytes, hash: 0 };
        Keys { all: all.into_iter().enumerate().map(key).collect(), ..self }
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> &[Key] {
        &self.all
    }

    /// The one with a number, which must be below theirs.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn get(&self, number: usize) -> &Key {
        match self.all.get(number) {
            Some(key) => key,
            None => panic!("there is no key {number} of {self}"),
        }
    }

    /// Any one.
    #[must_use]
    pub fn any(&self, rng: &mut Rng) -> &Key {
        self.get(rng.index(self.all.len()))
    }

    /// One of so many operations is enough: these are so long that each takes its time.
    #[must_use]
    pub fn slowness(&self) -> u64 {
        if self.is_long { 50 } else { 1 }
    }

    /// Number of keys below these bytes.
    #[must_use]
    pub fn below(&self, bytes: &[u8]) -> usize {
        self.all.partition_point(|key| key.bytes.as_slice() < bytes)
    }
}
