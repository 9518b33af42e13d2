//! Checker of histories: can the replies be explained by some order of the operations?
//!
//! One key at a time (keys are independent, so a history is linearizable if each key's is). The
//! history is played in the order in which calls began and returned; the checker keeps every
//! *configuration* that explains it so far: the key's state, and which open calls took effect
//! already. When a call returns, configurations without its effect, or with another reply, end.
//! Nothing left means that no order explains the history. This is the method of Wing and Gong with
//! Lowe's just-in-time order; configurations seen before are not followed again.
//!
//! # Invariants
//! - I1: a call takes effect at one moment between its begin and its return.
//! - I2: a call that never returned, or returned "outcome unknown", may take effect at any later
//!   moment, or never.
//! - I3: no configuration is kept twice.
//! - I4: what has expired is nothing for every call; but until something takes its place, an observer whose clock is behind may find it.
//!
//! # Failure
//! Many calls that stay open for ever make many configurations; beyond a limit the checker says
//! [`Verdict::TooHard`] instead of a wrong answer.

use std::collections::HashMap;
use std::sync::Arc;

/// What a key holds: a number that stands for the value, or nothing.
pub type State = Option<u64>;

/// A call on one key, with its reply where that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Reads; saw this state. `None`: the reply is not known, so it says nothing.
    Read(Option<State>),
    /// Writes this value.
    Write(u64),
    /// Sets this state, whatever was there (a write or delete without a telling reply).
    Set(State),
    /// Deletes; whether there was a value, if known.
    Delete(Option<bool>),
    /// If the state is `expected`, sets `new`; whether it did, if known.
    CompareAndSet {
        /// State that must be there.
        expected: State,
        /// State that replaces it.
        new: State,
        /// The reply.
        done: Option<bool>,
    },
    /// Writes `value` if there is a value (`present`) or if there is none; whether it did.
    WriteIf {
        /// Which of the two.
        present: bool,
        /// Value to write.
        value: u64,
        /// The reply.
        done: Option<bool>,
    },
    /// It is so late now, at least: a value that expires by then is gone.
    Time(u64),
}

impl Action {
    /// The state after it, or `None` if its reply cannot come from `state`.
    fn apply(self, state: State) -> Option<State> {
        let conditional = |holds: bool, new: State, done: Option<bool>| {
            if done.is_some_and(|done| done != holds) {
                return None;
            }
            Some(if holds { new } else { state })
        };
        match self {
            Action::Read(None) | Action::Time(_) => Some(state),
            Action::Read(Some(seen)) => (seen == state).then_some(state),
            Action::Write(value) => Some(Some(value)),
            Action::Set(new) => Some(new),
            Action::Delete(existed) => {
                existed.is_none_or(|existed| existed == state.is_some()).then_some(None)
            }
            Action::CompareAndSet { expected, new, done } => {
                conditional(state == expected, new, done)
            }
            Action::WriteIf { present, value, done } => {
                conditional(state.is_some() == present, Some(value), done)
            }
        }
    }

    /// Whether it may have taken away a value that was there.
    #[must_use]
    pub fn may_delete(self) -> bool {
        match self {
            Action::Set(new) => new.is_none(),
            Action::Delete(existed) => existed != Some(false),
            Action::CompareAndSet { new, done, .. } => new.is_none() && done != Some(false),
            _ => false,
        }
    }

    /// Whether it can never change a state.
    fn is_read(self) -> bool {
        matches!(self, Action::Read(_))
            || matches!(self, Action::CompareAndSet { done: Some(false), .. })
            || matches!(self, Action::WriteIf { done: Some(false), .. })
    }
}

/// One explanation of the history so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Configuration {
    state: State,
    /// One bit per slot of `open`: this call took effect.
    effective: u64,
    /// What time it is.
    now: u64,
}

/// Most configurations of a key at one moment.
const CONFIGURATIONS_MAX: usize = 100_000;
/// Most calls open at one moment on one key.
const OPEN_MAX: usize = 64;

/// No order of the calls explains what was seen, or too many had to be tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No order explains the replies.
    NotLinearizable,
    /// Too many calls are open for ever: not decided.
    TooHard,
}

/// The checker of one key, fed in real-time order. It can be asked at any moment which states an
/// observer may find.
#[derive(Clone, Debug)]
pub struct KeyChecker {
    open: Vec<Option<(u64, Action)>>,
    configurations: Vec<Configuration>,
    /// When values expire, of those that do.
    expiries: Arc<HashMap<u64, u64>>,
}

impl KeyChecker {
    /// A key that holds `initial`.
    #[must_use]
    pub fn new(initial: State) -> Self {
        KeyChecker {
            open: Vec::new(),
            configurations: vec![Configuration { state: initial, effective: 0, now: 0 }],
            expiries: Arc::default(),
        }
    }

    /// Of these values it is known when they expire.
    #[must_use]
    pub fn expiring(mut self, expiries: Arc<HashMap<u64, u64>>) -> Self {
        self.expiries = expiries;
        self
    }

    /// Whether what a key holds is gone by this time.
    fn has_expired(&self, state: State, now: u64) -> bool {
        let at = state.and_then(|value| self.expiries.get(&value));
        at.is_some_and(|at| *at <= now)
    }

    /// What follows from a call that takes effect now, if it may.
    fn after(&self, configuration: Configuration, action: Action) -> Option<(State, u64)> {
        let Configuration { state, now, .. } = configuration;
        if let Action::Time(later) = action {
            return Some((state, now.max(later)));
        }
        let is_gone = self.has_expired(state, now);
        let seen = if is_gone { None } else { state };
        let next = action.apply(seen)?;
        // Who leaves things as they are leaves what has expired where it is (I4).
        let stays = is_gone && next == seen && !matches!(action, Action::Set(_));
        Some((if stays { state } else { next }, now))
    }

    /// Call `id` begins. Its reply, if it will have one, is part of `action`.
    ///
    /// # Errors
    /// `TooHard` if more than 64 calls are open.
    pub fn begin(&mut self, id: u64, action: Action) -> Result<(), Refusal> {
        let call = Some((id, action));
        if let Some(slot) = self.open.iter_mut().find(|slot| slot.is_none()) {
            *slot = call;
        } else if self.open.len() < OPEN_MAX {
            self.open.push(call);
        } else {
            return Err(Refusal::TooHard);
        }
        Ok(())
    }

    /// Call `id` returned with the reply that its action has.
    ///
    /// # Errors
    /// `NotLinearizable` if nothing explains it, `TooHard`.
    pub fn end(&mut self, id: u64) -> Result<(), Refusal> {
        let is_it = |slot: &Option<(u64, Action)>| slot.is_some_and(|(open, _)| open == id);
        let Some(slot) = self.open.iter().position(is_it) else { return Ok(()) };
        let bit = 1 << slot;
        let mut kept = Vec::with_capacity(self.configurations.len());
        let start = std::mem::take(&mut self.configurations);
        self.explore(start, |configuration| {
            if configuration.effective & bit == 0 {
                return true;
            }
            let effective = configuration.effective & !bit;
            kept.push(Configuration { effective, ..configuration });
            false
        })?;
        if let Some(slot) = self.open.get_mut(slot) {
            *slot = None;
        }
        dedup(&mut kept);
        self.configurations = kept;
        if self.configurations.is_empty() {
            return Err(Refusal::NotLinearizable);
        }
        Ok(())
    }

    /// Every state that somebody may find who looks now, with all open calls undecided. Of the
    /// calls in `required` all took effect, of those in `forbidden` none. What has expired may be found or not (I4).
    ///
    /// # Errors
    /// `TooHard`.
    pub fn states(&self, required: &[u64], forbidden: &[u64]) -> Result<Vec<State>, Refusal> {
        let bits = |ids: &[u64]| {
            let slots = self.open.iter().enumerate();
            let named = slots.filter(|(_, slot)| slot.is_some_and(|(id, _)| ids.contains(&id)));
            named.fold(0_u64, |bits, (slot, _)| bits | 1 << slot)
        };
        let (required, forbidden) = (bits(required), bits(forbidden));
        let mut states = Vec::new();
        self.explore(self.configurations.clone(), |configuration| {
            if configuration.effective & forbidden != 0 {
                return false;
            }
            if configuration.effective & required == required {
                states.push(configuration.state);
                if self.has_expired(configuration.state, configuration.now) {
                    states.push(None);
                }
            }
            true
        })?;
        states.sort_unstable();
        states.dedup();
        Ok(states)
    }

    /// Visits `start` and whatever follows from it by effects of open calls. `visit` says whether
    /// to go on from a configuration.
    fn explore(
        &self,
        start: Vec<Configuration>,
        mut visit: impl FnMut(Configuration) -> bool,
    ) -> Result<(), Refusal> {
        let mut seen = Seen::default();
        let mut work = start;
        while let Some(configuration) = work.pop() {
            if !seen.insert(configuration) {
                continue;
            }
            if seen.len() > CONFIGURATIONS_MAX {
                return Err(Refusal::TooHard);
            }
            if !visit(configuration) {
                continue;
            }
            for (slot, call) in self.open.iter().enumerate() {
                let bit = 1 << slot;
                let Some((_, action)) = call else { continue };
                if configuration.effective & bit != 0 {
                    continue;
                }
                if let Some((state, now)) = self.after(configuration, *action) {
                    let effective = configuration.effective | bit;
                    work.push(Configuration { state, effective, now });
                }
            }
        }
        Ok(())
    }
}

/// A set that is a list while it is small.
#[derive(Default)]
struct Seen {
    few: Vec<Configuration>,
    many: std::collections::HashSet<Configuration>,
}

impl Seen {
    fn insert(&mut self, configuration: Configuration) -> bool {
        const FEW: usize = 16;
        if !self.many.is_empty() {
            return self.many.insert(configuration);
        }
        if self.few.contains(&configuration) {
            return false;
        }
        self.few.push(configuration);
        if self.few.len() > FEW {
            self.many.extend(self.few.drain(..));
        }
        true
    }

    fn len(&self) -> usize {
        self.few.len() + self.many.len()
    }
}

fn dedup(configurations: &mut Vec<Configuration>) {
    if configurations.len() > 1 {
        configurations.sort_unstable_by_key(|one| (one.state, one.effective, one.now));
        configurations.dedup();
    }
}

/// A call of a recorded history. Times are any numbers that grow with real time; two equal times
/// count as overlapping.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Key.
    pub key: u64,
    /// What was called, with its reply.
    pub action: Action,
    /// When it began.
    pub begin: u64,
    /// When it returned; `None` if it never did or its outcome is unknown.
    pub end: Option<u64>,
}

/// What a history is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Some order explains every reply.
    Linearizable,
    /// No order explains the replies on `key`; `call` is the index of the first call whose return
    /// cannot be explained.
    Violation {
        /// Key.
        key: u64,
        /// Index in the history.
        call: usize,
    },
    /// Not decided for `key`: too many calls stay open.
    TooHard {
        /// Key.
        key: u64,
    },
}

/// Checks a history in which every key begins with nothing.
#[must_use]
pub fn check(history: &[Call]) -> Verdict {
    let mut keys: HashMap<u64, Vec<usize>> = HashMap::new();
    for (index, call) in history.iter().enumerate() {
        keys.entry(call.key).or_default().push(index);
    }
    let mut keys: Vec<_> = keys.into_iter().collect();
    keys.sort_unstable_by_key(|(key, _)| *key);
    for (key, calls) in keys {
        match check_key(history, &calls) {
            Ok(()) => {}
            Err((Refusal::NotLinearizable, call)) => return Verdict::Violation { key, call },
            Err((Refusal::TooHard, _)) => return Verdict::TooHard { key },
        }
    }
    Verdict::Linearizable
}

fn check_key(history: &[Call], calls: &[usize]) -> Result<(), (Refusal, usize)> {
    // Begins before returns of the same time: such calls overlap.
    let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(calls.len() * 2);
    for index in calls {
        let Some(call) = history.get(*index) else { continue };
        if call.end.is_none() && call.action.is_read() {
            continue;
        }
        events.push((call.begin, false, *index));
        if let Some(end) = call.end {
            events.push((end, true, *index));
        }
    }
    events.sort_unstable();
    let mut checker = KeyChecker::new(None);
    for (_, returned, index) in events {
        let Some(call) = history.get(index) else { continue };
        let result = if returned {
            checker.end(index as u64)
        } else {
            checker.begin(index as u64, call.action)
        };
        result.map_err(|refusal| (refusal, index))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
