//! Entering in the order of keys what the logs have: for an index that has an order (FlatStore §3.5, §4.2).
//!
//! A tree takes keys that come in order several times as fast as those that come as they were written. So entries are
//! collected first, by several threads, in parts of the key space, whose borders are keys of a sample. Then each part is
//! sorted, and of each key the newest entry is entered, by several threads, each a part. All that as often as needed to
//! stay within [`collect_max`] bytes of DRAM.
//!
//! # Invariants
//! - What lies in one part has no key in another one, so that one thread at a time sees a key.
//! - All keys of a part begin as both its borders do: what is compared first is what stands behind that.

use super::layout::{Layout, Place};
use super::replay::{Learned, Scan};
use super::sites;
use esker_base::Result;
use esker_base::units::MIB;
use esker_index::{Masstree, Word};

/// Most parts.
const PARTS: usize = 256;
/// Keys of the sample for each part.
const SAMPLED: usize = 8;
/// Keys that are entered together.
const GROUP: usize = 64;

/// DRAM that entries may take before they are entered, in bytes: a quarter of the store, at most 512 MiB; and all threads together as much
/// again, each for the chunk that it reads.
pub(super) fn collect_max(layout: &Layout) -> u64 {
    (u64::from(layout.chunk_count) * layout.chunk_size / 4).min(512 * MIB)
}

/// Parts of the key space.
pub(super) struct Parts {
    /// Where each part but the first begins, in order.
    borders: Vec<Vec<u8>>,
    /// The first bytes of the borders.
    slices: Vec<u64>,
    /// How many bytes all keys of a part have in common, for each part.
    depths: Vec<usize>,
}

/// Eight bytes of a key, so that they compare as these do.
#[inline]
fn slice_of(key: &[u8], depth: usize) -> u64 {
    let rest = key.get(depth..).unwrap_or_default();
    match rest.first_chunk() {
        Some(slice) => u64::from_be_bytes(*slice),
        None => rest
            .iter()
            .zip([56, 48, 40, 32, 24, 16, 8])
            .fold(0, |slice, (byte, shift)| slice | u64::from(*byte) << shift),
    }
}

/// Bytes that both begin with.
fn common(left: &[u8], right: &[u8]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}

impl Parts {
    /// Parts of about as many keys each, as far as a sample tells.
    pub(super) fn new(mut sample: Vec<Vec<u8>>) -> Parts {
        sample.sort_unstable();
        let parts = (sample.len() / SAMPLED).clamp(1, PARTS);
        let mut borders: Vec<Vec<u8>> = (1..parts)
            .filter_map(|part| sample.get(part * sample.len() / parts).cloned())
            .collect();
        borders.dedup();
        let slices = borders.iter().map(|border| slice_of(border, 0)).collect();
        let between = borders.windows(2).map(|pair| match pair {
            [left, right] => common(left, right),
            _ => 0,
        });
        let depths = std::iter::once(0).chain(between).chain([0]).collect();
        Parts { borders, slices, depths }
    }

    pub(super) fn count(&self) -> usize {
        self.borders.len() + 1
    }

    /// The part of a key.
    #[inline]
    fn part_of(&self, key: &[u8]) -> usize {
        let slice = slice_of(key, 0);
        let below = self.slices.partition_point(|border| *border < slice);
        if self.slices.get(below) != Some(&slice) {
            return below;
        }
        let equal = self.slices.get(below..).unwrap_or_default();
        let equal = equal.partition_point(|border| *border == slice);
        let borders = self.borders.get(below..below + equal).unwrap_or_default();
        below + borders.partition_point(|border| &border[..] <= key)
    }
}

/// An entry that was read.
#[derive(Clone, Copy)]
struct Item {
    /// What follows what all keys of the part have in common.
    slice: u64,
    word: Word,
    version: u64,
    /// Where its key is: less than [`collect_max`] is collected.
    start: u32,
    length: u32,
}

/// Entries of a part, and their keys.
#[derive(Default)]
struct Run {
    items: Vec<Item>,
    keys: Vec<u8>,
}

/// What one thread read: entries of each part.
pub(super) struct Runs(Vec<Run>);

impl Runs {
    pub(super) fn new(parts: &Parts) -> Runs {
        Runs((0..parts.count()).map(|_| Run::default()).collect())
    }

    /// Adds an entry; returns the bytes that it takes.
    #[inline]
    pub(super) fn add(&mut self, parts: &Parts, key: &[u8], word: Word, version: u64) -> usize {
        let part = parts.part_of(key);
        let (Some(run), Some(depth)) = (self.0.get_mut(part), parts.depths.get(part)) else {
            return 0;
        };
        let item = Item {
            slice: slice_of(key, *depth),
            word,
            version,
            start: u32::try_from(run.keys.len()).unwrap_or(u32::MAX),
            length: u32::try_from(key.len()).unwrap_or(u32::MAX),
        };
        run.items.push(item);
        run.keys.extend_from_slice(key);
        #[cfg(test)]
        COLLECTED_MOST.set(COLLECTED_MOST.get().max(self.bytes()));
        size_of::<Item>() + key.len()
    }
}

#[cfg(test)]
thread_local! {
    /// Most bytes that this thread had collected at once.
    pub(super) static COLLECTED_MOST: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
impl Runs {
    fn bytes(&self) -> usize {
        self.0.iter().map(|run| size_of_val(&*run.items) + run.keys.len()).sum()
    }
}

/// What a thread counted: entries that the index has now, less those that it has no more.
struct Counts {
    chunks: Vec<i64>,
    tombstones: i64,
}

/// What a thread enters with.
pub(super) struct Enter<'a, 's> {
    scan: &'a Scan<'s>,
    tree: &'a Masstree,
    run: Run,
    counts: Counts,
}

impl<'a, 's> Enter<'a, 's> {
    pub(super) fn new(scan: &'a Scan<'s>, tree: &'a Masstree) -> Self {
        let chunks = vec![0; usize::try_from(scan.flat.layout.chunk_count).unwrap_or(0)];
        let counts = Counts { chunks, tombstones: 0 };
        Enter { scan, tree, run: Run::default(), counts }
    }

    /// Enters what all threads read of a part.
    pub(super) fn part(&mut self, part: usize, runs: &[Runs]) -> Result<()> {
        let Run { items, keys } = &mut self.run;
        items.clear();
        keys.clear();
        for run in runs.iter().filter_map(|runs| runs.0.get(part)) {
            let before = u32::try_from(keys.len()).unwrap_or(u32::MAX);
            items.extend(run.items.iter().map(|item| Item { start: before + item.start, ..*item }));
            keys.extend_from_slice(&run.keys);
        }
        let key = |item: &Item| {
            let start = usize::try_from(item.start).unwrap_or(usize::MAX);
            let length = usize::try_from(item.length).unwrap_or(0);
            keys.get(start..).and_then(|keys| keys.get(..length)).unwrap_or_default()
        };
        items.sort_unstable_by(|left, right| {
            let order = left.slice.cmp(&right.slice).then_with(|| key(left).cmp(key(right)));
            // The newest first; of two in one chunk the later one.
            order.then_with(|| {
                let age = |item: &Item| (item.version, Place::of(item.word).offset);
                match sites::RECOVER_NEWEST.disabled() {
                    false => age(right).cmp(&age(left)),
                    true => age(left).cmp(&age(right)),
                }
            })
        });
        let mut group = Vec::with_capacity(GROUP);
        let mut versions = Vec::with_capacity(GROUP);
        for same in items.chunk_by(|l, r| l.slice == r.slice && key(l) == key(r)) {
            let Some((newest, others)) = same.split_first() else { continue };
            let is_twin = |item: &&Item| item.version == newest.version;
            for twin in others.iter().take_while(is_twin) {
                self.scan.twin_of(newest.word, twin.word)?;
            }
            group.push((key(newest), newest.word));
            versions.push(newest.version);
            if group.len() == GROUP {
                enter(self.scan, self.tree, &group, &versions, &mut self.counts)?;
                group.clear();
                versions.clear();
            }
        }
        enter(self.scan, self.tree, &group, &versions, &mut self.counts)
    }

    /// Tells what was counted.
    pub(super) fn end(self, learned: &Learned) {
        for (chunk, count) in (0..).zip(self.counts.chunks) {
            learned.add(chunk, count);
        }
        learned.add_tombstones(self.counts.tombstones);
    }
}

/// Enters words of keys that are in order, but for those that are older than what the index has.
fn enter(
    scan: &Scan<'_>,
    tree: &Masstree,
    group: &[(&[u8], Word)],
    versions: &[u64],
    counts: &mut Counts,
) -> Result<()> {
    let mut count = |word: Word, by: i64| {
        let place = Place::of(word);
        let chunk = usize::try_from(scan.flat.layout.chunk_of(place.offset)).unwrap_or(usize::MAX);
        counts.chunks.get_mut(chunk).into_iter().for_each(|count| *count += by);
        counts.tombstones += if place.kind.is_tombstone() { by } else { 0 };
    };
    group.iter().for_each(|(_, word)| count(*word, 1));
    let mut end = Ok(());
    tree.swap_many(group, |number, held| {
        let Some(((_, word), version)) = group.get(number).zip(versions.get(number)) else {
            return false;
        };
        match scan.goes(held, *word, *version) {
            Ok(goes) => {
                count(if goes { held } else { *word }, -1);
                goes
            }
            Err(error) => {
                end = Err(error);
                false
            }
        }
    });
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_base::rng::Rng;

    #[test]
    fn parts_follow_the_order_of_keys_whatever_they_have_in_common() {
        let mut rng = Rng::from_seed(3);
        for prefix in ["", "user:", "a prefix of more bytes than a word has: "] {
            let key = |rng: &mut Rng| {
                let digits = format!("{:07}", rng.below(10_000_000));
                let length = rng.index(3);
                format!("{prefix}{}", digits.get(length..).unwrap_or_default()).into_bytes()
            };
            let parts = Parts::new((0..5000).map(|_| key(&mut rng)).collect());
            assert_eq!(parts.count(), PARTS);
            let mut keys: Vec<_> = (0..20_000).map(|_| key(&mut rng)).collect();
            keys.extend([b"".to_vec(), b"\0".to_vec(), b"zzz".to_vec(), vec![255; 40]]);
            keys.sort_unstable();
            let mut sizes = vec![0; PARTS];
            let mut before = (0, 0, Vec::new());
            for key in keys {
                let part = parts.part_of(&key);
                let slice = slice_of(&key, *parts.depths.get(part).unwrap());
                assert!((part, slice) >= (before.0, before.1), "{before:?} before {part} {key:?}");
                let begins = part.checked_sub(1).and_then(|border| parts.borders.get(border));
                assert!(begins.is_none_or(|border| border <= &key));
                assert!(parts.borders.get(part).is_none_or(|border| &key < border));
                *sizes.get_mut(part).unwrap() += 1;
                before = (part, slice, key);
            }
            let most = sizes.iter().max().unwrap();
            assert!(*most < 20_000 / PARTS * 8, "{most} keys in one part");
        }
    }
}
