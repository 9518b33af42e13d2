//! What the indexes of `flat` keep of a key: a number of 61 bits that only the caller understands.

use std::num::NonZeroU64;

/// Bits of a word. The indexes use the three above for themselves.
const WORD_BITS: u32 = 61;

/// A number from 1 to 2^61 - 1: for `flat` the address of a log entry with bits of its version
/// (FlatStore §3.2, §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Word(NonZeroU64);

impl Word {
    /// The first number that is no word.
    pub const END: u64 = 1 << WORD_BITS;

    /// The word of a number; `None` for 0 and from [`Word::END`] on.
    #[inline]
    #[must_use]
    pub const fn new(number: u64) -> Option<Word> {
        match NonZeroU64::new(number) {
            Some(word) if number < Self::END => Some(Word(word)),
            _ => None,
        }
    }

    /// The number.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_that_leave_three_bits_are_words() {
        assert_eq!(Word::new(0), None);
        assert_eq!(Word::new(Word::END), None);
        assert_eq!(Word::new(u64::MAX), None);
        for number in [1, 77, Word::END - 1] {
            assert_eq!(Word::new(number).unwrap().get(), number);
        }
    }
}
