//! How many keys the logs have, judged by a sample of them: so that the index need not grow while recovery reads the rest.
//!
//! Pieces of logs are read that were chosen at random. Were their `n` entries of `k` keys, each as likely as the others, about `n * n / 2k` of
//! them would have the key of another one of the sample: that tells `k`. Where some keys are written more often than others it
//! tells fewer; the index then grows as it does without. No estimate is higher than the number of entries.
//!
//! For an index that has an order, the keys of a sample part the key space (`sorted`).
//!
//! # Failure
//! What cannot be read here is left out: recovery says so when it comes there.

use super::Flat;
use super::batches::Batches;
use esker_base::rng::Rng;
use esker_format::flat::{CHUNK_START, ChunkHeader, Entry, EntryKey};

/// Fewest logs for which a sample is worth its while.
const LOGS_MIN: usize = 16;
/// Most pieces of a sample, each of another chunk: many and short, since keys that were written one after another
/// come again together.
const PIECES_MAX: usize = 1024;
/// Most pieces of a sample of which the keys themselves are wanted.
const KEY_PIECES_MAX: usize = 64;
/// Bytes of a key that a sample has: where keys are alike for longer, parts are of unlike size.
const KEY_START_MAX: usize = 256;
/// Bytes of a piece.
const PIECE_SIZE: u64 = 16 << 10;

impl Flat {
    /// About how many keys stand in these logs, entries with versions below `clear` left out; `None` for few logs.
    pub(super) fn keys_by_sample(&self, logs: &[&ChunkHeader], clear: u64) -> Option<u64> {
        if logs.len() < LOGS_MIN || self.layout.chunk_size < 2 * PIECE_SIZE {
            return None;
        }
        let mut hashes = Vec::new();
        let bytes = self.sample(logs, PIECES_MAX, clear, |entry| {
            hashes.push(match entry.key {
                EntryKey::Here(key) => self.hasher.hash(key),
                EntryKey::Record(hash) => hash,
            });
        });
        let all = self.layout.room().saturating_mul(logs.len() as u64);
        Some(keys_of(hashes, bytes, all))
    }

    /// How some keys of these logs begin, as likely as they are frequent; of all together little more than `most` bytes.
    pub(super) fn sample_of_keys(
        &self,
        logs: &[&ChunkHeader],
        clear: u64,
        most: u64,
    ) -> Vec<Vec<u8>> {
        let (mut keys, mut bytes) = (Vec::new(), 0);
        self.sample(logs, KEY_PIECES_MAX, clear, |entry| {
            if bytes < most
                && let Ok(Some(key)) = self.key_of_entry(&entry)
            {
                let start = key.get(..KEY_START_MAX).unwrap_or(&key).to_vec();
                bytes += (size_of::<Vec<u8>>() + start.len()) as u64;
                keys.push(start);
            }
        });
        keys
    }

    /// Gives entries of some logs to `take`; returns the bytes of their batches.
    fn sample(
        &self,
        logs: &[&ChunkHeader],
        pieces_max: usize,
        clear: u64,
        mut take: impl FnMut(Entry<'_>),
    ) -> u64 {
        let mut logs = logs.to_vec();
        let (mut rng, count) = (Rng::from_seed(1), logs.len());
        let pieces = count.min(pieces_max);
        (0..pieces).for_each(|piece| logs.swap(piece, piece + rng.index(count - piece)));
        let numbers = logs.iter().take(pieces).map(|header| header.number);
        numbers.map(|number| self.sample_piece(number, clear, &mut take)).sum()
    }

    /// Gives entries from the start of a log to `take`; returns the bytes of their batches.
    fn sample_piece(&self, number: u32, clear: u64, take: &mut impl FnMut(Entry<'_>)) -> u64 {
        let Some(chunk) = self.chunks.get(number) else { return 0 };
        let start = self.layout.start_of(number) + CHUNK_START;
        let size = PIECE_SIZE.min(self.layout.room());
        let mut piece = vec![0; usize::try_from(size).unwrap_or(0)];
        if self.memory.read(start, &mut piece).is_err() {
            return 0;
        }
        let mut batches = Batches::new(&mut piece, start, chunk.salt());
        while let Ok(Some(batch)) = batches.take_next() {
            let of_now = batch.entries().flatten().filter(|found| found.version >= clear);
            of_now.for_each(|found| take(found.entry));
        }
        batches.offset() - start
    }
}

/// The number of keys in `all` bytes of logs, of whose entries these in `bytes` are a sample.
fn keys_of(mut hashes: Vec<u64>, bytes: u64, all: u64) -> u64 {
    let sampled = hashes.len() as u64;
    hashes.sort_unstable();
    hashes.dedup();
    let again = sampled - hashes.len() as u64;
    let entries = u128::from(sampled) * u128::from(all) / u128::from(bytes.max(1));
    let keys = u128::from(sampled).pow(2) / u128::from(2 * again.max(1));
    u64::try_from(entries.min(keys)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sample of a hundredth of `entries` entries, whose keys are `key` of their number.
    fn estimate(entries: u64, key: impl Fn(u64, &mut Rng) -> u64) -> u64 {
        let mut rng = Rng::from_seed(5);
        let piece = entries / 100 / 512;
        let hashes = (0..512).flat_map(|_| {
            let first = rng.below(entries - piece);
            (first..first + piece).map(|number| key(number, &mut rng)).collect::<Vec<_>>()
        });
        let hashes: Vec<u64> = hashes.collect();
        let sampled = hashes.len() as u64;
        keys_of(hashes, sampled * 64, entries * 64)
    }

    #[test]
    fn keys_that_were_written_once_or_twice_or_often_are_told_apart() {
        let once = estimate(6_400_000, |number, _| number);
        assert!((6_300_000..6_400_001).contains(&once), "{once}");
        let at_random = estimate(6_400_000, |_, rng| rng.below(1_000_000));
        assert!((800_000..1_200_000).contains(&at_random), "{at_random}");
        let in_turn = estimate(6_400_000, |number, _| number % 1_000_000);
        assert!((400_000..2_500_000).contains(&in_turn), "{in_turn}");
    }
}
