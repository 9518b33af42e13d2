//! What a key may have. Each write of a key is a generation, greater than those before: odd ones are values, even ones
//! leave it without. A value follows from its key and its generation.

use esker_base::rng::Rng;
use std::sync::atomic::{AtomicU32, Ordering};

/// Generations of a round begin at its multiple of this, so that none comes twice.
const ROUND: u32 = 1 << 22;
/// Rounds that a store may go through.
pub(crate) const ROUNDS_MAX: u64 = 1 << 9;
/// Bytes of a value on the average, of the mix below, with its key.
pub(crate) const ITEM_SIZE: u64 = 920;

/// The first generation of a round, or the one that the key has. No value either way.
pub(crate) fn base(round: u64) -> u32 {
    u32::try_from(round).unwrap() * ROUND
}

/// The next generation with a value, or without.
pub(crate) fn next(generation: u32, with_value: bool) -> u32 {
    generation + if (generation % 2 == 1) == with_value { 2 } else { 1 }
}

/// Keys are in the order of their numbers.
pub(crate) fn key(number: u32) -> Vec<u8> {
    let mut key = format!("k{number:08}").into_bytes();
    key.resize(9 + number as usize % 24, b'.');
    key
}

pub(crate) fn number_of(key: &[u8]) -> Result<u32, String> {
    let digits = std::str::from_utf8(key.get(1..9).unwrap_or_default()).unwrap_or_default();
    let number = digits.parse().map_err(|_| format!("a key that nobody wrote: {key:?}"))?;
    let right = key == self::key(number);
    right.then_some(number).ok_or_else(|| format!("a key that nobody wrote: {key:?}"))
}

fn head(number: u32, generation: u32) -> u64 {
    u64::from(number) << 32 | u64::from(generation)
}

pub(crate) fn value(number: u32, generation: u32) -> Vec<u8> {
    let head = head(number, generation);
    let mut rng = Rng::from_seed(head);
    let most = match rng.below(20_000) {
        // More than a chunk of `flat` holds.
        0 => 6_000_000,
        1..100 => 80_000,
        100..1600 => 4096,
        _ => 600,
    };
    let mut value = vec![0; 8 + rng.index(most)];
    rng.fill(&mut value);
    value[..8].copy_from_slice(&head.to_be_bytes());
    value
}

/// The generation of a value that was found.
pub(crate) fn generation_of(number: u32, bytes: &[u8]) -> Result<u32, String> {
    let head = bytes.first_chunk().map_or(0, |head| u64::from_be_bytes(*head));
    let generation = u32::try_from(head & u64::from(u32::MAX)).unwrap();
    if generation % 2 == 1 && bytes == value(number, generation) {
        Ok(generation)
    } else {
        Err(format!("key {number} has {} bytes that nobody wrote", bytes.len()))
    }
}

/// Generations from the oldest to the newest that a key may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) u32, pub(crate) u32);

impl Span {
    /// Whether a key may have this generation, or nothing, if any generation between the two may have been.
    fn fits(self, found: Option<u32>) -> bool {
        let Span(oldest, newest) = self;
        match found {
            Some(generation) => (oldest..=newest).contains(&generation),
            None => oldest.is_multiple_of(2) || newest > oldest,
        }
    }

    /// The same if it was one of the two.
    pub(crate) fn is_end(self, found: Option<u32>) -> bool {
        let Span(oldest, newest) = self;
        [oldest, newest].into_iter().any(|end| match found {
            Some(generation) => generation == end,
            None => end.is_multiple_of(2),
        })
    }

    pub(crate) fn judge(self, number: u32, found: Option<u32>) -> Result<(), String> {
        let words = || format!("key {number} has {found:?} and not one of {self:?}");
        self.fits(found).then_some(()).ok_or_else(words)
    }
}

/// What the one writer of a key did, for those who read it meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    acknowledged: AtomicU32,
    issued: AtomicU32,
}

impl Progress {
    pub(crate) fn set(&self, generation: u32) {
        self.issue(generation);
        self.acknowledge(generation);
    }

    pub(crate) fn issue(&self, generation: u32) {
        self.issued.store(generation, Ordering::SeqCst);
    }

    pub(crate) fn acknowledge(&self, generation: u32) {
        self.acknowledged.store(generation, Ordering::SeqCst);
    }

    /// The oldest generation that a read which begins now may find.
    pub(crate) fn oldest(&self) -> u32 {
        self.acknowledged.load(Ordering::SeqCst)
    }

    /// The newest generation that a read which ended now may have found.
    pub(crate) fn newest(&self) -> u32 {
        self.issued.load(Ordering::SeqCst)
    }
}
