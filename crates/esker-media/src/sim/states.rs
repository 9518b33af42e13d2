//! States that a crash at one point may leave, each as a small difference to the durable image.
//!
//! # Invariants
//! - I1: state `n` depends only on the trace, the point, `n` and the seed, so that a violation
//!   replays.
//! - I2: equal images have equal hashes, so that distinct states can be counted.

use super::image::{Image, place_hash};
use super::replay::Replay;
use esker_base::rng::Rng;

/// Up to so many states, all are enumerated.
pub(super) const EXHAUSTIVE_STATES_MAX: u64 = 256;

/// So many states of a point, the first ones, are always the same.
const FIXED: u64 = 2;

/// Which of the `all` states that have one thing alone, or all but one, the sampled state `number` of `budget` is; `None`: it is any state.
/// Where they would take more than half of the budget, every other state is one of them, drawn by `seed`.
pub(super) fn single(number: u64, all: u64, budget: u64, seed: u64) -> Option<u64> {
    if all <= budget / 2 {
        return Some(number).filter(|number| *number < all);
    }
    let mut rng = Rng::from_seed(!seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    number.is_multiple_of(2).then(|| rng.below(all))
}

/// Chosen for one unit: which pending write is left there.
#[derive(Clone, Copy, Debug)]
struct Choice {
    unit: usize,
    pending: usize,
}

/// One state: the durable image with some units of pending writes in it.
#[derive(Clone, Debug)]
pub struct CrashState<'r, 't> {
    replay: &'r Replay<'t>,
    choices: Vec<Choice>,
    hash: u128,
}

impl CrashState<'_, '_> {
    /// 128-bit hash of the whole image.
    #[must_use]
    pub fn hash(&self) -> u128 {
        self.hash
    }

    /// The image.
    #[must_use]
    pub fn image(&self) -> Image {
        let size = self.replay.unit_size_bytes;
        let mut image = self.replay.durable.clone();
        let runs = self.choices.chunk_by(|a, b| a.pending == b.pending && a.unit + 1 == b.unit);
        for run in runs {
            let (Some(first), Some(pending)) =
                (run.first(), run.first().and_then(|one| self.replay.pending.get(one.pending)))
            else {
                continue;
            };
            let start = (first.unit - pending.first_unit) * size;
            if let Some(bytes) = pending.data.get(start..start + run.len() * size) {
                image.write((first.unit * size) as u64, bytes);
            }
        }
        image
    }

    /// Which writes survived in which units, for people.
    #[must_use]
    pub fn describe(&self) -> String {
        if self.choices.is_empty() {
            return "nothing pending survived".to_owned();
        }
        let mut words = Vec::new();
        for (index, pending) in self.replay.pending.iter().enumerate() {
            let kept: Vec<usize> = self
                .choices
                .iter()
                .filter(|choice| choice.pending == index)
                .map(|choice| choice.unit - pending.first_unit)
                .collect();
            if !kept.is_empty() {
                let site = pending.site;
                let (first, all) = (pending.first_unit, pending.hashes.len());
                words.push(format!("{site:?} at unit {first}: {kept:?} of {all}"));
            }
        }
        words.join("; ")
    }
}

/// The states of one point, in order. See [`Replay::states`].
#[derive(Debug)]
pub struct CrashStates<'r, 't> {
    replay: &'r Replay<'t>,
    /// For each pending write, in the order in which reads saw them: its index and live units.
    writes: Vec<(usize, Vec<usize>)>,
    unit_count: usize,
    next: u64,
    end: u64,
    seed: u64,
    exhaustive: bool,
}

impl<'r, 't> CrashStates<'r, 't> {
    pub(super) fn new(replay: &'r Replay<'t>, budget: usize, seed: u64) -> Self {
        let mut writes: Vec<(usize, Vec<usize>)> = replay
            .pending
            .iter()
            .enumerate()
            .map(|(index, pending)| {
                (index, pending.units().filter(|unit| replay.is_live(pending, *unit)).collect())
            })
            .collect();
        writes.retain(|(_, units)| !units.is_empty());
        // A write that no read saw yet comes last.
        writes.sort_by_key(|(index, _)| {
            replay.pending.get(*index).map_or(0, |pending| pending.order.wrapping_sub(1))
        });
        let unit_count = writes.iter().map(|(_, units)| units.len()).sum();
        let all = u32::try_from(unit_count).ok().and_then(|count| 1_u64.checked_shl(count));
        let exhaustive = all.is_some_and(|all| all <= EXHAUSTIVE_STATES_MAX);
        let end = match all {
            Some(all) if exhaustive => all,
            _ => budget as u64,
        };
        CrashStates { replay, writes, unit_count, next: 0, end, seed, exhaustive }
    }

    pub(super) fn random(replay: &'r Replay<'t>, seed: u64) -> CrashState<'r, 't> {
        let mut states = CrashStates::new(replay, 1, seed);
        if states.exhaustive {
            return states.state(Rng::from_seed(seed).below(states.end));
        }
        let mut choices = Vec::with_capacity(states.unit_count);
        states.random_choices(FIXED + 2 * states.writes.len() as u64, &mut choices);
        states.finish(choices)
    }

    /// Whether these are all states of the point.
    #[must_use]
    pub fn is_exhaustive(&self) -> bool {
        self.exhaustive
    }

    /// Number of the state in which all that is pending survived.
    #[must_use]
    pub fn whole(&self) -> u64 {
        if self.exhaustive { self.end - 1 } else { 1 }
    }

    /// State `number`.
    pub fn state(&mut self, number: u64) -> CrashState<'r, 't> {
        let mut choices = Vec::with_capacity(self.unit_count);
        if self.exhaustive {
            let mut bits = number;
            for (pending, units) in &self.writes {
                for unit in units {
                    if bits & 1 == 1 {
                        choices.push(Choice { unit: *unit, pending: *pending });
                    }
                    bits >>= 1;
                }
            }
        } else {
            self.sample(number, &mut choices);
        }
        self.finish(choices)
    }

    fn sample(&self, number: u64, choices: &mut Vec<Choice>) {
        let count = self.writes.len() as u64;
        let whole = |choices: &mut Vec<Choice>, keep: &dyn Fn(u64) -> bool| {
            for ((pending, units), index) in self.writes.iter().zip(0..) {
                if keep(index) {
                    choices
                        .extend(units.iter().map(|unit| Choice { unit: *unit, pending: *pending }));
                }
            }
        };
        match number {
            0 => {}
            1 => whole(choices, &|_| true),
            n => match single(n - FIXED, 2 * count, self.end, self.seed) {
                Some(of) if of < count => whole(choices, &|index| index == of),
                Some(of) => whole(choices, &|index| index != of - count),
                None => self.random_choices(n, choices),
            },
        }
    }

    /// A random state: each write lost, whole, cut short or in any units; in any order.
    fn random_choices(&self, number: u64, choices: &mut Vec<Choice>) {
        let mut rng = Rng::from_seed(self.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let style = rng.below(4);
        // How many writes are touched at all: half of them, few, or nearly all.
        let (kept, of) = match rng.below(3) {
            0 => (1, 2),
            1 => (1, 8),
            _ => (7, 8),
        };
        let mut order: Vec<usize> = (0..self.writes.len()).collect();
        if rng.chance(1, 2) {
            for index in (1..order.len()).rev() {
                order.swap(index, rng.index(index + 1));
            }
        }
        for index in order {
            let Some((pending, units)) = self.writes.get(index) else { continue };
            let style = if style == 3 { rng.below(3) } else { style };
            let prefix = rng.index(units.len() + 1);
            let survives = rng.chance(kept, of);
            for (position, unit) in units.iter().enumerate() {
                let keep = match style {
                    0 => survives,
                    1 => survives && position < prefix,
                    _ => survives && rng.chance(1, 2),
                };
                if keep {
                    choices.push(Choice { unit: *unit, pending: *pending });
                }
            }
        }
    }

    /// Settles overlaps (the last choice for a unit stays) and hashes.
    fn finish(&self, mut choices: Vec<Choice>) -> CrashState<'r, 't> {
        choices.sort_by_key(|choice| choice.unit);
        let mut kept: Vec<Choice> = Vec::with_capacity(choices.len());
        for choice in choices {
            match kept.last_mut() {
                Some(last) if last.unit == choice.unit => *last = choice,
                _ => kept.push(choice),
            }
        }
        let mut hash = self.replay.hash;
        for choice in &kept {
            let Some(pending) = self.replay.pending.get(choice.pending) else { continue };
            let content = pending.hashes.get(choice.unit - pending.first_unit).copied();
            hash ^= self.replay.unit_hashes.get(choice.unit).copied().unwrap_or(0);
            hash ^= place_hash(content.unwrap_or(0), choice.unit as u64);
        }
        CrashState { replay: self.replay, choices: kept, hash }
    }
}

impl<'r, 't> Iterator for CrashStates<'r, 't> {
    type Item = CrashState<'r, 't>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.end {
            return None;
        }
        self.next += 1;
        Some(self.state(self.next - 1))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.end - self.next).unwrap_or(usize::MAX);
        (left, Some(left))
    }
}
