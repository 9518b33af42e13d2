//! What is known of all chunks from the last walk through them: of a large store such a walk takes longer than to clean a chunk, so one serves
//! for many.
//!
//! Chunks that were taken and that came free count the time: as long as these are fewer than a certain share of all, hardly anything has
//! changed. In a store of few chunks there is no such time, and everybody looks at them anew.
//!
//! # Invariants
//! - W1: versions that are known are no higher than those of now. No older entry comes to media: what was not needed once never is.
//! - W2: nobody is refused for what was known: who finds nothing to gain looks anew ([`Search`](super::victims::Search)).
//!
//! # Concurrency
//! Under the cleaner's lock.

use super::Flat;
use super::chunks::Chunk;
use super::clean::Cleaner;
use super::moves::Victim;

/// From which versions on tombstones may be needed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needed {
    /// By any chunk, and which it is, with its generation; by all others.
    pub(super) by_any: u64,
    pub(super) first: (u32, u64),
    by_others: u64,
}

impl Needed {
    /// By none.
    pub(super) const NONE: Needed =
        Needed { by_any: u64::MAX, first: (u32::MAX, 0), by_others: u64::MAX };

    /// A chunk that was born with this version may need tombstones.
    pub(super) fn add(&mut self, born: u64, number: u32, generation: u64) {
        if born < self.by_any {
            let by_others = self.by_others.min(self.by_any);
            *self = Needed { by_any: born, first: (number, generation), by_others };
        } else {
            self.by_others = self.by_others.min(born);
        }
    }

    /// As another look says, too.
    pub(super) fn and(mut self, other: Needed) -> Needed {
        if self.first == other.first {
            self.by_any = self.by_any.min(other.by_any);
            self.by_others = self.by_others.min(other.by_others);
            return self;
        }
        let [(number, generation), (other_number, other_generation)] = [self.first, other.first];
        self.by_others = self.by_others.min(other.by_others);
        let any = std::mem::replace(&mut self.by_any, u64::MAX);
        self.add(any, number, generation);
        self.add(other.by_any, other_number, other_generation);
        self
    }

    /// By other chunks than this one.
    pub(super) fn by_others(&self, number: u32, generation: u64) -> u64 {
        if self.first == (number, generation) { self.by_others } else { self.by_any }
    }
}

/// See the module's text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    at: u64,
    needed: Needed,
    /// The index followed every entry with a lower version before that was asked for.
    settled: u64,
}

impl Flat {
    /// How many chunks were taken and came free since the store was opened.
    pub(super) fn moves(&self) -> u64 {
        self.chunks.taken().wrapping_add(self.chunks.released())
    }

    /// Whether what was known after so many moves counts.
    pub(super) fn is_recent(&self, at: u64) -> bool {
        self.moves().wrapping_sub(at) < self.known_moves
    }

    /// A chunk that is to be cleaned, and what is known of it.
    pub(super) fn victim_of(&self, cleaner: &mut Cleaner, number: u32) -> Victim {
        let generation = self.chunks.get(number).map_or(0, Chunk::generation);
        if let Some(known) = cleaner.known.filter(|known| self.is_recent(known.at)) {
            // What was written since may have overtaken what was passed already.
            let needed = known.needed.by_others(number, generation).min(known.settled);
            cleaner.needed_least = cleaner.needed_least.min(needed);
            return Victim { number, born: known.settled, needed };
        }
        let (at, settled) = (self.moves(), self.settled());
        let needed = self.tombstones_needed(|_| ());
        cleaner.known = Some(Known { at, needed, settled });
        Victim { number, born: settled, needed: needed.by_others(number, generation) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_base::rng::Rng;

    #[test]
    fn what_two_looks_say_is_what_either_says_of_any_chunk() {
        let mut rng = Rng::from_seed(5);
        for round in 0..3000 {
            let mut look = || {
                let (mut chunks, mut needed) = (Vec::new(), Needed::NONE);
                for number in 0..5 {
                    if rng.chance(1, 2) {
                        let born = rng.below(6);
                        chunks.push((number, born));
                        needed.add(born, number, 1);
                    }
                }
                (chunks, needed)
            };
            let ((first, one), (second, two)) = (look(), look());
            let both = one.and(two);
            for but in 0..6 {
                let least = |chunks: &[(u32, u64)]| {
                    let others = chunks.iter().filter(|(number, _)| *number != but);
                    others.map(|(_, born)| *born).min().unwrap_or(u64::MAX)
                };
                let exact = least(&first).min(least(&second));
                assert_eq!(both.by_others(but, 1), exact, "round {round}, but {but}");
                assert_eq!(both.by_others(but, 2), both.by_any, "another one by now");
                assert_eq!(both.by_any, both.by_others(u32::MAX - 1, 1));
            }
        }
    }
}
