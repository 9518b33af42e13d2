//! Lines of media that were met: a bit each, in pieces that are made when they are needed.
//!
//! For a check, which meets the record of every entry: a 512th of the memory that has records, however small these are.

use std::collections::HashMap;

/// Words of a piece: lines of 4 MiB.
const PIECE: usize = 1024;
const LINES_OF_WORD: u64 = u64::BITS as u64;

/// A set of lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    pieces: HashMap<u64, Box<[u64]>>,
    count: usize,
}

/// Piece, word in it, and bit of a line.
fn place_of(line: u64) -> (u64, usize, u64) {
    let word = line / LINES_OF_WORD;
    let within = usize::try_from(word % PIECE as u64).unwrap_or(PIECE);
    (word / PIECE as u64, within, 1 << (line % LINES_OF_WORD))
}

impl Lines {
    /// Adds a line; whether it was there already.
    pub(super) fn insert(&mut self, line: u64) -> bool {
        let (piece, word, bit) = place_of(line);
        let piece = self.pieces.entry(piece).or_insert_with(|| vec![0; PIECE].into());
        let Some(word) = piece.get_mut(word) else { return false };
        let was_there = *word & bit != 0;
        *word |= bit;
        self.count += usize::from(!was_there);
        was_there
    }

    pub(super) fn contains(&self, line: u64) -> bool {
        let (piece, word, bit) = place_of(line);
        let word = self.pieces.get(&piece).and_then(|piece| piece.get(word));
        word.is_some_and(|word| word & bit != 0)
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_line_is_there_once_it_was_added_and_costs_less_than_a_byte_where_records_are_dense() {
        let (mut lines, mut model) = (Lines::default(), HashSet::new());
        let mut rng = esker_base::rng::Rng::from_seed(1);
        for _ in 0..100_000 {
            let line = rng.below(200_000) + (rng.below(3) << 40);
            assert_eq!(lines.contains(line), model.contains(&line), "{line}");
            assert_eq!(lines.insert(line), !model.insert(line), "{line}");
            assert_eq!(lines.len(), model.len());
        }
        assert_ne!(lines.insert(u64::MAX), model.insert(u64::MAX));
        let mut dense = Lines::default();
        assert!((0..1_000_000).all(|record| !dense.insert(5 * record)));
        let bytes: usize = dense.pieces.values().map(|piece| size_of_val(&**piece)).sum();
        assert!(bytes < 1_000_000, "{bytes} bytes for a million records of 320 bytes");
    }
}
