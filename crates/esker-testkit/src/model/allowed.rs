//! What a recovery may find at one crash point.

use super::Map;
use crate::generator::Entry;
use crate::linearizability::State;
use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// The versions that something may have of which this one is known.
pub(super) fn of_version(version: u64) -> RangeInclusive<u64> {
    if version == 0 { 0..=u64::MAX } else { version..=version }
}

/// Versions of each key's entries, by the entry's number.
pub(super) type Versions = HashMap<(Vec<u8>, u64), RangeInclusive<u64>>;

/// Numbers for entries, so that states are small.
#[derive(Clone, Debug, Default)]
pub(super) struct Entries(HashMap<Entry, u64>);

impl Entries {
    pub(super) fn number(&mut self, entry: &Entry) -> u64 {
        if let Some(number) = self.0.get(entry) {
            return *number;
        }
        let number = self.0.len() as u64 + 1;
        self.0.insert(entry.clone(), number);
        number
    }

    pub(super) fn find(&self, entry: &Entry) -> Option<u64> {
        self.0.get(entry).copied()
    }

    /// When entries expire, of those that do.
    pub(super) fn expiries(&self) -> HashMap<u64, u64> {
        let expiring = self.0.iter().filter(|(entry, _)| entry.expires_at != 0);
        expiring.map(|(entry, number)| (*number, entry.expires_at)).collect()
    }
}

/// What a recovery may find at one crash point. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Allowed {
    pub(super) entries: Arc<Entries>,
    pub(super) expiries: Arc<HashMap<u64, u64>>,
    pub(super) versions: Arc<Versions>,
    /// For each assignment of "took effect" to the open batches: the states of each key.
    pub(super) assignments: Arc<Vec<BTreeMap<Vec<u8>, Vec<State>>>>,
    pub(super) forgets: bool,
}

impl Allowed {
    /// Exactly this content, some of which may have expired.
    #[must_use]
    pub fn exactly(map: &Map) -> Self {
        let mut entries = Entries::default();
        let mut versions = Versions::new();
        let mut states = BTreeMap::new();
        for (key, held) in map {
            let number = entries.number(&held.entry);
            states.insert(key.clone(), vec![Some(number)]);
            versions.insert((key.clone(), number), of_version(held.version));
        }
        Allowed {
            expiries: Arc::new(entries.expiries()),
            entries: Arc::new(entries),
            versions: Arc::new(versions),
            assignments: Arc::new(vec![states]),
            forgets: false,
        }
    }

    /// Any key may be gone, if `forgets`.
    #[must_use]
    pub fn forgetting(mut self, forgets: bool) -> Self {
        self.forgets = forgets;
        self
    }

    /// Whether a `map` is allowed that a recovery found whose clock shows `now`.
    ///
    /// # Errors
    /// In words: which key holds what it must not.
    pub fn check(&self, map: &Map, now: u64) -> Result<(), String> {
        let mut first = None;
        for states in self.assignments.iter() {
            match self.check_assignment(states, map, now) {
                Ok(()) => return Ok(()),
                Err(words) => first = first.or(Some(words)),
            }
        }
        let words = first.unwrap_or_else(|| "no state at all is allowed".to_owned());
        let count = self.assignments.len();
        Err(if count > 1 { format!("{words} (of {count} ways for open batches)") } else { words })
    }

    fn check_assignment(
        &self,
        states: &BTreeMap<Vec<u8>, Vec<State>>,
        map: &Map,
        now: u64,
    ) -> Result<(), String> {
        if let Some(key) = map.keys().find(|key| !states.contains_key(*key)) {
            return Err(format!("key {} was never written", show(key)));
        }
        let has_expired = |number: u64| self.expiries.get(&number).is_some_and(|at| *at <= now);
        for (key, allowed) in states {
            let found = map.get(key);
            let state = match found {
                None => None,
                Some(held) => match self.entries.find(&held.entry) {
                    Some(number) => Some(number),
                    None => return Err(format!("key {} holds invented {held:?}", show(key))),
                },
            };
            let is_right = match state {
                Some(number) => allowed.contains(&state) && !has_expired(number),
                None => {
                    let may_be_gone = |state: &State| state.is_none_or(has_expired);
                    self.forgets || allowed.iter().any(may_be_gone)
                }
            };
            if !is_right {
                let allowed: Vec<String> =
                    allowed.iter().map(|state| self.show_state(*state)).collect();
                let found = self.show_state(state);
                let words = format!("holds {found} at {now}, allowed: {allowed:?}");
                return Err(format!("key {} {words}", show(key)));
            }
            if let (Some(held), Some(number)) = (found, state)
                && held.version != 0
                && let Some(versions) = self.versions.get(&(key.clone(), number))
                && !versions.contains(&held.version)
            {
                let words = format!("has version {}, not {versions:?}", held.version);
                return Err(format!("key {} {words}", show(key)));
            }
        }
        Ok(())
    }

    fn show_state(&self, state: State) -> String {
        let Some(number) = state else { return "nothing".to_owned() };
        let entry = self.entries.0.iter().find(|(_, other)| **other == number);
        entry.map_or_else(|| format!("#{number}"), |(entry, _)| format!("{entry:?}"))
    }
}

/// A key for people: its beginning and length.
pub(super) fn show(key: &[u8]) -> String {
    let shown = String::from_utf8_lossy(key.get(..key.len().min(16)).unwrap_or(key));
    format!("{shown:?} ({} bytes)", key.len())
}
