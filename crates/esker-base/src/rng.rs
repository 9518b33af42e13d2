//! The seam for randomness: one seeded generator, and the operating system's where a secret is
//! needed.
//!
//! The generator (xoshiro256++, seeded through SplitMix64) is frozen: a seed printed by a failed
//! test reproduces its run on every later build.

use crate::error::{Error, ErrorKind, Result};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};

/// A seeded generator. Not for secrets.
#[derive(Clone, Debug)]
pub struct Rng(Xoshiro256PlusPlus);

impl Rng {
    /// The generator that `seed` stands for.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        Rng(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// The generator that `seed` stands for, or one that nobody knows beforehand: for identities, which tests choose.
    pub fn seeded(seed: Option<u64>) -> Result<Self> {
        match seed {
            Some(seed) => Ok(Rng::from_seed(seed)),
            None => Ok(Rng(Xoshiro256PlusPlus::from_seed(secret()?))),
        }
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`; 0 when `bound` is 0. The bias is below 2^-32 for bounds that fit
    /// 32 bits, and irrelevant to tests above.
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// An index below `length`; 0 when `length` is 0.
    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap_or(0)
    }

    /// True `numerator` times out of `denominator`.
    pub fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }

    /// A generator of its own for one part of a run, so that adding a draw here does not shift the
    /// draws there.
    pub fn fork(&mut self) -> Rng {
        Rng::from_seed(self.next_u64())
    }
}

/// Random bytes from the operating system, for identities and secrets.
pub fn secret<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|source| {
        Error::new(ErrorKind::Io, "read system randomness").context(source.to_string())
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
