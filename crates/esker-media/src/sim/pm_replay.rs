//! Replay of a recording of persistent memory: what may survive at each crash point.
//!
//! # Invariants
//! - I1: `durable` holds exactly what every crash at this point keeps.
//! - I2: of each line's pending cached stores any prefix survives, lines independently; of the
//!   pending non-temporal words any subset.
//! - I3: a word that a later store made durable is not undone by an earlier one.
//! - I4: state `n` depends only on the trace, the point, `n` and the seed.
//!
//! # Concurrency
//! A replay belongs to one thread; any number of replays may read one trace.

use super::image::{Image, place_hash};
use super::pm::{Owner, PmEventKind, PmTrace, WORD_SIZE_BYTES, WordStore};
use super::states::{EXHAUSTIVE_STATES_MAX, single};
use crate::pmem::LINE_SIZE_BYTES;
use esker_base::Site;
use esker_base::rng::Rng;
use std::collections::{BTreeMap, HashMap};

/// [`LINE_SIZE_BYTES`] in words.
const WORDS_PER_LINE: u32 = 8;
const _: () = assert!(LINE_SIZE_BYTES == 8 * WORD_SIZE_BYTES as u64);

/// A store that is not durable yet, with its place in the order of all stores.
#[derive(Clone, Copy, Debug)]
struct PendingWord {
    word: u32,
    value: u64,
    order: u64,
}

#[derive(Clone, Debug, Default)]
struct Line {
    stores: Vec<PendingWord>,
    /// Length of `stores` at the latest flush by each owner.
    marks: Vec<(Owner, usize)>,
}

/// A crash point on the way through a trace.
#[derive(Clone, Debug)]
pub struct PmReplay<'t> {
    trace: &'t PmTrace,
    next: usize,
    durable: Image,
    hash: u128,
    lines: BTreeMap<u32, Line>,
    nt: Vec<(PendingWord, Owner)>,
    /// Order of the store that is durable in a word, for words stored in both ways.
    durable_order: HashMap<u32, u64>,
    next_order: u64,
}

fn word_hash(word: u32, value: u64) -> u128 {
    place_hash(u128::from(value), u64::from(word))
}

fn read_word(image: &Image, word: u32) -> u64 {
    let mut bytes = [0; WORD_SIZE_BYTES];
    image.read(u64::from(word) * WORD_SIZE_BYTES as u64, &mut bytes);
    u64::from_le_bytes(bytes)
}

fn write_word(image: &mut Image, word: u32, value: u64) {
    image.write(u64::from(word) * WORD_SIZE_BYTES as u64, &value.to_le_bytes());
}

/// Hash of a whole image, as [`PmCrashState::hash`] gives it.
#[must_use]
pub fn pm_image_hash(image: &Image) -> u128 {
    let bytes = image.to_vec();
    let (words, _) = bytes.as_chunks::<WORD_SIZE_BYTES>();
    words
        .iter()
        .zip(0..)
        .fold(0, |hash, (bytes, word)| hash ^ word_hash(word, u64::from_le_bytes(*bytes)))
}

impl PmTrace {
    /// A replay that stands at the start: nothing happened yet.
    #[must_use]
    pub fn replay(&self) -> PmReplay<'_> {
        PmReplay {
            trace: self,
            next: 0,
            durable: self.base.clone(),
            hash: pm_image_hash(&self.base),
            lines: BTreeMap::new(),
            nt: Vec::new(),
            durable_order: HashMap::new(),
            next_order: 1,
        }
    }
}

impl<'t> PmReplay<'t> {
    /// Stamp of the latest event that happened; 0 at the start.
    #[must_use]
    pub fn position(&self) -> u64 {
        let last = self.next.checked_sub(1).and_then(|last| self.trace.events.get(last));
        last.map_or(0, |event| event.stamp)
    }

    /// Site of the latest event.
    #[must_use]
    pub fn last_site(&self) -> Option<Site> {
        self.trace.events.get(self.next.checked_sub(1)?)?.site
    }

    /// Site of the next event.
    #[must_use]
    pub fn next_site(&self) -> Option<Site> {
        self.trace.events.get(self.next)?.site
    }

    /// What every crash here keeps; also the state in which nothing else survives.
    #[must_use]
    pub fn durable(&self) -> &Image {
        &self.durable
    }

    /// Lets the next event happen; false at the end of the trace.
    pub fn step(&mut self) -> bool {
        let Some(event) = self.trace.events.get(self.next) else { return false };
        self.next += 1;
        match &event.kind {
            PmEventKind::Store(words) => {
                for store in words.iter() {
                    let pending = self.pend(*store);
                    let line = self.lines.entry(store.0 / WORDS_PER_LINE).or_default();
                    line.stores.push(pending);
                }
            }
            PmEventKind::NtStore(words, owner) => {
                for store in words.iter() {
                    let pending = self.pend(*store);
                    self.nt.push((pending, *owner));
                }
            }
            PmEventKind::Flush(first, count, owner) => self.mark(*first, *count, *owner),
            PmEventKind::Fence(owner) => self.fence(*owner),
            PmEventKind::Flip(offset, bit) => {
                let word = u32::try_from(offset / WORD_SIZE_BYTES as u64).unwrap_or(u32::MAX);
                let before = read_word(&self.durable, word);
                self.durable.flip(*offset, *bit);
                self.hash ^= word_hash(word, before);
                self.hash ^= word_hash(word, read_word(&self.durable, word));
            }
        }
        true
    }

    /// Lets everything up to and including the event with stamp `position` happen.
    pub fn advance_to(&mut self, position: u64) {
        while self.trace.events.get(self.next).is_some_and(|event| event.stamp <= position) {
            self.step();
        }
    }

    /// States that a crash here may leave: all if they are at most 256, otherwise none, all, each
    /// line alone, each missing, and random ones up to `budget`.
    #[must_use]
    pub fn states(&self, budget: usize, seed: u64) -> PmCrashStates<'_, 't> {
        PmCrashStates::new(self, budget, seed)
    }

    /// A random state.
    #[must_use]
    pub fn random_state(&self, seed: u64) -> PmCrashState<'_, 't> {
        let states = PmCrashStates::new(self, 1, seed);
        if states.exhaustive {
            return states.state(Rng::from_seed(seed).below(states.end));
        }
        let mut kept = Vec::new();
        states.random_words(FIXED + 2 * states.lines.len() as u64, &mut kept);
        states.finish(kept)
    }

    fn pend(&mut self, (word, value): WordStore) -> PendingWord {
        self.next_order += 1;
        PendingWord { word, value, order: self.next_order }
    }

    fn mark(&mut self, first: u32, count: u32, owner: Owner) {
        for (_, line) in self.lines.range_mut(first..first.saturating_add(count)) {
            let length = line.stores.len();
            match line.marks.iter_mut().find(|mark| mark.0 == owner) {
                Some(mark) => mark.1 = length,
                None => line.marks.push((owner, length)),
            }
        }
    }

    fn fence(&mut self, owner: Owner) {
        let mut settled = Vec::new();
        self.nt.retain(|(pending, its)| {
            if *its == owner {
                settled.push(*pending);
            }
            *its != owner
        });
        for line in self.lines.values_mut() {
            let Some(mark) = line.marks.iter().position(|mark| mark.0 == owner) else { continue };
            let (_, length) = line.marks.swap_remove(mark);
            settled.extend(line.stores.drain(..length));
            for mark in &mut line.marks {
                mark.1 = mark.1.saturating_sub(length);
            }
        }
        self.lines.retain(|_, line| !line.stores.is_empty());
        settled.sort_by_key(|pending| pending.order);
        for PendingWord { word, value, order } in settled {
            let latest = self.durable_order.entry(word).or_default();
            if *latest < order {
                *latest = order;
                self.hash ^= word_hash(word, read_word(&self.durable, word));
                write_word(&mut self.durable, word, value);
                self.hash ^= word_hash(word, value);
            }
        }
    }

    fn is_live(&self, pending: &PendingWord) -> bool {
        self.durable_order.get(&pending.word).is_none_or(|order| *order < pending.order)
    }
}

/// So many states of a point, the first ones, are always the same.
const FIXED: u64 = 4;

/// One state: the durable image with some pending words in it.
#[derive(Clone, Debug)]
pub struct PmCrashState<'r, 't> {
    replay: &'r PmReplay<'t>,
    words: Vec<WordStore>,
    hash: u128,
}

impl PmCrashState<'_, '_> {
    /// 128-bit hash of the whole image.
    #[must_use]
    pub fn hash(&self) -> u128 {
        self.hash
    }

    /// The image.
    #[must_use]
    pub fn image(&self) -> Image {
        let mut image = self.replay.durable.clone();
        for (word, value) in &self.words {
            write_word(&mut image, *word, *value);
        }
        image
    }

    /// Which words survived, for people.
    #[must_use]
    pub fn describe(&self) -> String {
        let words: Vec<u32> = self.words.iter().map(|(word, _)| *word).collect();
        format!("pending words that survived: {words:?}")
    }
}

/// The states of one point, in order. See [`PmReplay::states`].
#[derive(Debug)]
pub struct PmCrashStates<'r, 't> {
    replay: &'r PmReplay<'t>,
    lines: Vec<&'r Line>,
    next: u64,
    end: u64,
    seed: u64,
    exhaustive: bool,
}

impl<'r, 't> PmCrashStates<'r, 't> {
    fn new(replay: &'r PmReplay<'t>, budget: usize, seed: u64) -> Self {
        let lines: Vec<&Line> = replay.lines.values().collect();
        let choices = lines
            .iter()
            .map(|line| line.stores.len() as u64 + 1)
            .chain(replay.nt.iter().map(|_| 2));
        let all = choices.fold(1_u64, u64::saturating_mul);
        let exhaustive = all <= EXHAUSTIVE_STATES_MAX;
        let end = if exhaustive { all } else { budget as u64 };
        PmCrashStates { replay, lines, next: 0, end, seed, exhaustive }
    }

    /// Whether these are all states of the point.
    #[must_use]
    pub fn is_exhaustive(&self) -> bool {
        self.exhaustive
    }

    /// State `number`.
    #[must_use]
    pub fn state(&self, number: u64) -> PmCrashState<'r, 't> {
        let mut kept: Vec<PendingWord> = Vec::new();
        if self.exhaustive {
            let mut rest = number;
            let mut digit = |base: u64| {
                let digit = rest % base;
                rest /= base;
                usize::try_from(digit).unwrap_or(0)
            };
            for line in &self.lines {
                let prefix = digit(line.stores.len() as u64 + 1);
                kept.extend(line.stores.iter().take(prefix));
            }
            for (pending, _) in &self.replay.nt {
                if digit(2) == 1 {
                    kept.push(*pending);
                }
            }
        } else {
            self.sample(number, &mut kept);
        }
        self.finish(kept)
    }

    fn sample(&self, number: u64, kept: &mut Vec<PendingWord>) {
        let replay = self.replay;
        let count = self.lines.len() as u64;
        let whole = |kept: &mut Vec<PendingWord>, keep: &dyn Fn(u64) -> bool| {
            for (line, index) in self.lines.iter().zip(0..) {
                if keep(index) {
                    kept.extend(line.stores.iter());
                }
            }
        };
        let all_nt = |kept: &mut Vec<PendingWord>| {
            kept.extend(replay.nt.iter().map(|(pending, _)| *pending));
        };
        match number {
            0 => {}
            1 => {
                whole(kept, &|_| true);
                all_nt(kept);
            }
            2 => whole(kept, &|_| true),
            3 => all_nt(kept),
            n => match single(n - FIXED, 2 * count, self.end, self.seed) {
                Some(of) if of < count => whole(kept, &|index| index == of),
                Some(of) => {
                    whole(kept, &|index| index != of - count);
                    all_nt(kept);
                }
                None => self.random_words(n, kept),
            },
        }
    }

    fn random_words(&self, number: u64, kept: &mut Vec<PendingWord>) {
        let mut rng = Rng::from_seed(self.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        // How much survives at all: half, little, or nearly everything.
        let (part, of) = match rng.below(3) {
            0 => (1, 2),
            1 => (1, 8),
            _ => (7, 8),
        };
        for line in &self.lines {
            let prefix = match rng.below(4) {
                0 => rng.index(line.stores.len() + 1),
                _ if rng.chance(part, of) => line.stores.len(),
                _ => 0,
            };
            kept.extend(line.stores.iter().take(prefix));
        }
        for (pending, _) in &self.replay.nt {
            if rng.chance(part, of) {
                kept.push(*pending);
            }
        }
    }

    /// Puts the survivors in the order of their stores and hashes the result.
    fn finish(&self, mut kept: Vec<PendingWord>) -> PmCrashState<'r, 't> {
        kept.retain(|pending| self.replay.is_live(pending));
        kept.sort_by_key(|pending| (pending.word, pending.order));
        let mut words: Vec<WordStore> = Vec::with_capacity(kept.len());
        for pending in kept {
            match words.last_mut() {
                Some(last) if last.0 == pending.word => last.1 = pending.value,
                _ => words.push((pending.word, pending.value)),
            }
        }
        let mut hash = self.replay.hash;
        for (word, value) in &words {
            hash ^= word_hash(*word, read_word(&self.replay.durable, *word));
            hash ^= word_hash(*word, *value);
        }
        PmCrashState { replay: self.replay, words, hash }
    }
}

impl<'r, 't> Iterator for PmCrashStates<'r, 't> {
    type Item = PmCrashState<'r, 't>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.end {
            return None;
        }
        self.next += 1;
        Some(self.state(self.next - 1))
    }
}

#[cfg(test)]
mod tests;
