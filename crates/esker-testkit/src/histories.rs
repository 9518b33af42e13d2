//! Histories: what threads saw of an index or a store, and whether some order of their calls explains it.
//!
//! An index is first compared with a map by one thread ([`alone`]), while it grows from nothing and shrinks back. Then threads use
//! it together ([`beside`]): the history of each key has to be linearizable. Whatever reads many keys, a scan or a walk, is a
//! read of each key that it covers, at some moment of the call; so a key that stands all the time and is missed has no
//! explanation. Stores do the same with calls of their own; what both need is here.
//!
//! # Invariants
//! - I1: times are numbers of one counter, so a call that ended before another one began happened before it for the processor, too.
//! - I2: a word that is written tells its key, and no other write of the run has the same.

pub mod alone;
pub mod beside;
pub mod keys;
pub mod told;

use crate::linearizability::{Action, Call, State, Verdict, check};
use esker_base::rng::Rng;
use keys::{Key, Keys};
use std::fmt::{Debug, Write as _};
use std::ops::{AddAssign, Bound};
use std::sync::atomic::{AtomicU64, Ordering};
use told::Times;

/// Bits of a word that tell the key.
const KEY_BITS: u32 = 18;
/// Most keys of a run.
pub const KEYS_MAX: usize = 1 << KEY_BITS;

/// The word of a key's n-th value; values count from 1.
#[must_use]
pub fn word_of(key: usize, value: u64) -> u64 {
    value << KEY_BITS | key as u64
}

/// The number of the value that a word is.
#[must_use]
pub fn value_of(word: u64) -> u64 {
    word >> KEY_BITS
}

/// The key that a word tells.
#[must_use]
pub fn key_of(word: u64) -> usize {
    usize::try_from(word & ((1 << KEY_BITS) - 1)).unwrap_or(usize::MAX)
}

/// Pairs that a scan gives.
pub type Pairs = Vec<(Vec<u8>, u64)>;

/// An index under test. All calls may be made by any thread at once, but for [`Index::insert`].
pub trait Index: Sync {
    /// Whether it keeps keys, in their order. One that does not is told hashes alone, and has no scans.
    const ORDERED: bool;
    /// Whether a lookup shows one moment, and no other hash's words. If not, it shows each word that stood all the time, and maybe others
    /// that stood at some moment, or belong to another hash.
    const AT_ONCE: bool;

    /// Gives a key that has none its word; of one that has, an ordered index tells which, and changes nothing. In one
    /// without order nobody else may insert this key meanwhile, and it must have none.
    fn insert(&self, key: &Key, word: u64) -> Option<u64>;
    /// As `insert`, of several keys.
    fn insert_many(&self, entries: &[(&Key, u64)]);
    /// Ordered ones: gives a key its word unless `goes` says that the one it has stays; tells which it had.
    fn swap(&self, _key: &Key, _word: u64, _goes: impl Fn(u64) -> bool) -> Option<u64> {
        None
    }
    /// Puts `new` in the place of `old`, if that is there.
    fn replace(&self, key: &Key, old: u64, new: u64) -> bool;
    /// Removes `old`, if it is there.
    fn remove(&self, key: &Key, old: u64) -> bool;
    /// Every word that it has for what it was told of the key; those of other keys may be among them.
    fn find(&self, key: &Key) -> Vec<u64>;
    /// As `find`, of several keys.
    fn find_many(&self, keys: &[&Key]) -> Vec<Vec<u64>>;
    /// Ordered ones: up to `limit` pairs from there on, or back.
    fn scan(&self, _from: Bound<&[u8]>, _back: bool, _limit: usize) -> Pairs {
        Pairs::new()
    }
    /// All words, in parts.
    fn walk(&self) -> Vec<u64>;
    /// Number of words. Exact while nothing changes.
    fn len(&self) -> u64;
    /// Whether it has none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How much is done with a seed.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Operations of one thread beside a map.
    pub alone: u64,
    /// Operations of each thread in a round.
    pub beside: u64,
    /// Rounds, after each of which histories are judged.
    pub rounds: u64,
    /// Threads.
    pub threads: u64,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Operations of one thread beside a map.
    pub alone: u64,
    /// Operations of threads beside each other.
    pub beside: u64,
    /// Calls on one key that were judged, those that scans and walks are taken for among them.
    pub judged: u64,
    /// Scans and walks.
    pub scans: u64,
    /// Segments or chunks that a store cleaned meanwhile.
    pub cleaned: u64,
}

impl AddAssign for Figures {
    fn add_assign(&mut self, other: Figures) {
        self.alone += other.alone;
        self.beside += other.beside;
        self.judged += other.judged;
        self.scans += other.scans;
        self.cleaned += other.cleaned;
    }
}

/// Whatever a seed does with an index that `make` makes, once for each part.
///
/// # Errors
/// What cannot be explained.
pub fn explore<I: Index>(
    seed: u64,
    effort: &Effort,
    make: impl Fn() -> I,
) -> Result<Figures, String> {
    let mut rng = Rng::from_seed(seed);
    let keys = Keys::of_seed(seed, &mut rng);
    let told = |words: String| format!("seed {seed}, {keys}: {words}");
    let mut figures = alone::run(&make(), &keys, &mut rng, effort.alone).map_err(told)?;
    figures += beside::run(&make(), &keys, &mut rng, effort).map_err(told)?;
    Ok(figures)
}

/// That what was seen is what is expected.
pub(crate) fn agree<T: PartialEq + Debug>(what: &str, seen: T, expected: T) -> Result<(), String> {
    if seen == expected {
        return Ok(());
    }
    Err(format!("{what}: {seen:?} instead of {expected:?}"))
}

/// The calls of one thread.
#[derive(Debug)]
pub struct Recorder<'t> {
    time: &'t AtomicU64,
    /// In the order of their begins, but for calls of many keys.
    pub calls: Vec<Call>,
}

impl<'t> Recorder<'t> {
    /// With times of this counter, which begins with 1.
    #[must_use]
    pub fn new(time: &'t AtomicU64) -> Self {
        Recorder { time, calls: Vec::new() }
    }

    /// A number that no other call has.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.time.fetch_add(1, Ordering::SeqCst)
    }

    /// Calls, and notes what the call was on one key.
    pub fn call<T>(&mut self, key: usize, call: impl FnOnce() -> (Action, T)) -> T {
        let begin = self.now();
        let (action, reply) = call();
        let end = Some(self.now());
        self.calls.push(Call { key: key as u64, action, begin, end });
        reply
    }

    /// Calls, and gives the times of the call.
    pub fn timed<T>(&self, call: impl FnOnce() -> T) -> (T, (u64, u64)) {
        let begin = self.now();
        let reply = call();
        (reply, (begin, self.now()))
    }

    /// Notes what a call meant for one of its keys.
    pub fn note(&mut self, key: usize, action: Action, (begin, end): (u64, u64)) {
        self.calls.push(Call { key: key as u64, action, begin, end: Some(end) });
    }
}

/// Whether calls are explained, of keys that began as `before` says and ended as `after` says; how many were judged.
///
/// # Errors
/// The first call that nothing explains, with what happened to its key before.
pub fn judge(calls: Vec<Call>, before: &[State], after: &[State]) -> Result<u64, String> {
    let last = calls.iter().filter_map(|call| call.end).max().unwrap_or(0) + 1;
    let set = |(key, state): (u64, &State)| {
        state.map(|_| Call { key, action: Action::Set(*state), begin: 0, end: Some(0) })
    };
    let read = |(key, state): (u64, &State)| {
        let action = Action::Read(Some(*state));
        Call { key, action, begin: last, end: Some(last) }
    };
    let mut history: Vec<Call> = (0..).zip(before).filter_map(set).collect();
    history.extend(calls);
    history.extend((0..).zip(after).map(read));
    match check(&history) {
        Verdict::Linearizable => Ok(history.len() as u64),
        Verdict::TooHard { key } => Err(format!("key {key}: not decided")),
        Verdict::Violation { key, call } => Err(tell(&history, key, call)),
    }
}

/// Whether each key that a walk without order met twice may have gone and come again meanwhile. `twice`: which, and when the walk was;
/// `calls` are all that there were.
///
/// # Errors
/// The first key that stood.
pub fn met_again(calls: &[Call], twice: &[(usize, Times)]) -> Result<(), String> {
    for (key, (begin, end)) in twice {
        let deletes = |call: &Call| {
            call.key == *key as u64
                && call.action.may_delete()
                && call.begin < *end
                && call.end.is_none_or(|ended| ended > *begin)
        };
        if !calls.iter().any(deletes) {
            return Err(format!("a walk ({begin}..{end}) met key {key} twice, which stood"));
        }
    }
    Ok(())
}

/// A violation, and what was done with its key until then.
fn tell(history: &[Call], key: u64, call: usize) -> String {
    /// Calls that are told.
    const TOLD: usize = 12;
    let wrong = history.get(call).copied();
    let mut text = format!("key {key}: nothing explains {wrong:?}; before it");
    let end = wrong.and_then(|call| call.end).unwrap_or(u64::MAX);
    let mut of_key: Vec<&Call> =
        history.iter().filter(|call| call.key == key && call.begin < end).collect();
    of_key.sort_unstable_by_key(|call| call.begin);
    for call in of_key.iter().rev().take(TOLD).rev() {
        let Call { action, begin, end, .. } = call;
        let end = end.map_or("".to_owned(), |end| end.to_string());
        let _ = write!(text, "\n  {begin}..{end} {action:?}");
    }
    text
}

#[cfg(test)]
mod tests;
