//! What a store may hold after a crash: a model that knows which calls were acknowledged, which
//! were under way, and what reads saw.
//!
//! A workload records a [`History`]: each call with the device's position (see
//! `esker_media::sim::PowerClock`) at which it began and returned. An [`Oracle`] plays the history
//! up to a crash point and says for each key which states a recovery may find: those of some order
//! of the calls that explains every reply so far, each open call having taken effect or not.
//!
//! # Invariants
//! - I1: an acknowledged effect is in every allowed state unless a later or overlapping call
//!   replaced it: nothing acknowledged is lost or reverted (M1).
//! - I2: a read's reply constrains the order: what a completed read returned survives too.
//! - I3: only entries that somebody wrote to that very key are allowed (M3).
//! - I4: an open batch is found whole or not at all (M2).

use crate::generator::{Entry, Op, When};
use crate::linearizability::{Action, KeyChecker, Refusal, State};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Content of a store.
pub type Map = BTreeMap<Vec<u8>, Entry>;

/// What a store replied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Done, with nothing to tell.
    Done,
    /// What a read found.
    Found(Option<Entry>),
    /// Whether a conditional put was done, or a delete found something.
    Was(bool),
    /// Everything that an iteration found.
    All(Map),
    /// Refused before anything happened (full, too large): no effect, now or later.
    Refused,
    /// Failed: the effect may appear at any later time, or never.
    Unknown,
}

/// Number of a call in its history.
pub type CallId = u64;

#[derive(Clone, Debug)]
enum Moment {
    Begin(CallId),
    End(CallId),
}

#[derive(Clone, Debug)]
struct Call {
    op: Op,
    reply: Option<Reply>,
}

/// Calls in real-time order, with positions of the device.
#[derive(Clone, Debug, Default)]
pub struct History {
    initial: Map,
    calls: Vec<Call>,
    moments: Vec<(u64, Moment)>,
}

impl History {
    /// A history of a store that holds `initial`.
    #[must_use]
    pub fn new(initial: Map) -> Self {
        History { initial, ..History::default() }
    }

    /// A call begins, when the device stands at `position`.
    pub fn begin(&mut self, position: u64, op: Op) -> CallId {
        let id = self.calls.len() as CallId;
        self.calls.push(Call { op, reply: None });
        self.moments.push((position, Moment::Begin(id)));
        id
    }

    /// It returned.
    pub fn end(&mut self, position: u64, id: CallId, reply: Reply) {
        if let Some(call) = usize::try_from(id).ok().and_then(|id| self.calls.get_mut(id)) {
            // A clear that gave up may have deleted some keys before.
            let in_part = call.op == Op::Clear && reply == Reply::Refused;
            call.reply = Some(if in_part { Reply::Unknown } else { reply });
            self.moments.push((position, Moment::End(id)));
        }
    }

    /// Calls so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether nothing was called.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Every key that the history names.
    #[must_use]
    pub fn keys(&self) -> BTreeSet<Vec<u8>> {
        let mut keys: BTreeSet<Vec<u8>> = self.initial.keys().cloned().collect();
        for call in &self.calls {
            match &call.op {
                Op::Put(key, _) | Op::PutIf(key, ..) | Op::Get(key) | Op::Delete(key) => {
                    keys.insert(key.clone());
                }
                Op::Batch(writes) => keys.extend(writes.iter().map(|(key, _)| key.clone())),
                _ => {}
            }
        }
        keys
    }

    fn call(&self, id: CallId) -> Option<&Call> {
        self.calls.get(usize::try_from(id).ok()?)
    }
}

/// Numbers for entries, so that states are small.
#[derive(Clone, Debug, Default)]
struct Entries(HashMap<Entry, u64>);

impl Entries {
    fn number(&mut self, entry: &Entry) -> u64 {
        if let Some(number) = self.0.get(entry) {
            return *number;
        }
        let number = self.0.len() as u64 + 1;
        self.0.insert(entry.clone(), number);
        number
    }

    fn find(&self, entry: &Entry) -> Option<u64> {
        self.0.get(entry).copied()
    }
}

/// What a recovery may find at one crash point. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Allowed {
    entries: Arc<Entries>,
    /// For each assignment of "took effect" to the open batches: the states of each key.
    assignments: Arc<Vec<BTreeMap<Vec<u8>, Vec<State>>>>,
    forgets: bool,
}

impl Allowed {
    /// Exactly this content.
    #[must_use]
    pub fn exactly(map: &Map) -> Self {
        let mut entries = Entries::default();
        let states =
            map.iter().map(|(key, entry)| (key.clone(), vec![Some(entries.number(entry))]));
        let states = states.collect();
        Allowed { entries: Arc::new(entries), assignments: Arc::new(vec![states]), forgets: false }
    }

    /// Any key may be gone, if `forgets`.
    #[must_use]
    pub fn forgetting(mut self, forgets: bool) -> Self {
        self.forgets = forgets;
        self
    }

    /// Whether a recovered `map` is allowed.
    ///
    /// # Errors
    /// In words: which key holds what it must not.
    pub fn check(&self, map: &Map) -> Result<(), String> {
        let mut first = None;
        for states in self.assignments.iter() {
            match self.check_assignment(states, map) {
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
    ) -> Result<(), String> {
        if let Some(key) = map.keys().find(|key| !states.contains_key(*key)) {
            return Err(format!("key {} was never written", show(key)));
        }
        for (key, allowed) in states {
            let found = map.get(key);
            let state = match found {
                None => None,
                Some(entry) => match self.entries.find(entry) {
                    Some(number) => Some(number),
                    None => return Err(format!("key {} holds invented {entry:?}", show(key))),
                },
            };
            if !(allowed.contains(&state) || self.forgets && state.is_none()) {
                let allowed: Vec<String> =
                    allowed.iter().map(|state| self.show_state(*state)).collect();
                let found = self.show_state(state);
                return Err(format!("key {} holds {found}, allowed: {allowed:?}", show(key)));
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
fn show(key: &[u8]) -> String {
    let shown = String::from_utf8_lossy(key.get(..key.len().min(16)).unwrap_or(key));
    format!("{shown:?} ({} bytes)", key.len())
}

/// A refusal and the key that it is about.
type KeyRefusal = (Vec<u8>, Refusal);

/// Most batches that are open at one moment.
const OPEN_BATCHES_MAX: usize = 6;

/// Plays a history up to crash points in rising order.
#[derive(Clone, Debug)]
pub struct Oracle<'h> {
    history: &'h History,
    next: usize,
    entries: Arc<Entries>,
    keys: BTreeMap<Vec<u8>, KeyChecker>,
    open_batches: Vec<CallId>,
    /// Grows whenever the answer may change.
    version: u64,
    forgets: bool,
}

impl<'h> Oracle<'h> {
    /// Stands before the first call.
    #[must_use]
    pub fn new(history: &'h History) -> Self {
        let mut entries = Entries::default();
        for call in &history.calls {
            match &call.op {
                Op::Put(_, entry) | Op::PutIf(_, entry, _) => {
                    entries.number(entry);
                }
                Op::Batch(writes) => {
                    writes.iter().filter_map(|(_, entry)| entry.as_ref()).for_each(|entry| {
                        entries.number(entry);
                    })
                }
                _ => {}
            }
        }
        let keys = history
            .keys()
            .into_iter()
            .map(|key| {
                let state = history.initial.get(&key).map(|entry| entries.number(entry));
                (key, KeyChecker::new(state))
            })
            .collect();
        let entries = Arc::new(entries);
        let open_batches = Vec::new();
        Oracle { history, next: 0, entries, keys, open_batches, version: 0, forgets: false }
    }

    /// The store is a cache, if `forgets`: any key may be gone at any time, but then it stays gone.
    #[must_use]
    pub fn forgetting(mut self, forgets: bool) -> Self {
        self.forgets = forgets;
        self
    }

    /// Changes whenever [`Oracle::allowed`] may give another answer.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Plays every call that began or returned up to `position`.
    ///
    /// # Errors
    /// In words, if a reply cannot be explained: the store was wrong without any crash.
    pub fn advance_to(&mut self, position: u64) -> Result<(), String> {
        while let Some((at, moment)) = self.history.moments.get(self.next) {
            if *at > position {
                break;
            }
            self.next += 1;
            self.version += 1;
            let (Moment::Begin(id) | Moment::End(id)) = *moment;
            let Some(call) = self.history.call(id) else { continue };
            let result = match moment {
                Moment::Begin(_) => self.begin(id, call),
                Moment::End(_) => self.end(id, call),
            };
            result.map_err(|(key, refusal)| {
                let (key, op, reply) = (show(&key), brief(&call.op), call.reply.as_ref());
                format!("{refusal:?}: call {id} on key {key}: {op} replied {reply:?}")
            })?;
        }
        Ok(())
    }

    fn begin(&mut self, id: CallId, call: &Call) -> Result<(), KeyRefusal> {
        if matches!(call.op, Op::Batch(_)) {
            self.open_batches.push(id);
        }
        for (key, action) in self.actions(call)? {
            let Some(checker) = self.keys.get_mut(&key) else { continue };
            checker.begin(id, action).map_err(|refusal| (key, refusal))?;
        }
        Ok(())
    }

    fn end(&mut self, id: CallId, call: &Call) -> Result<(), KeyRefusal> {
        if matches!(call.reply, Some(Reply::Unknown)) {
            // Open for ever.
            return Ok(());
        }
        self.open_batches.retain(|open| *open != id);
        for (key, _) in self.actions(call)? {
            let Some(checker) = self.keys.get_mut(&key) else { continue };
            checker.end(id).map_err(|refusal| (key, refusal))?;
        }
        Ok(())
    }

    /// What the call does to each key that it touches.
    fn actions(&self, call: &Call) -> Result<Vec<(Vec<u8>, Action)>, KeyRefusal> {
        if matches!(call.reply, Some(Reply::Refused)) {
            return Ok(Vec::new());
        }
        let number = |entry: &Entry| self.entries.find(entry).unwrap_or(u64::MAX);
        let was = match &call.reply {
            Some(Reply::Was(was)) => Some(*was),
            _ => None,
        };
        let all = || self.keys.keys().cloned();
        let actions = match &call.op {
            Op::Put(key, entry) => vec![(key.clone(), Action::Write(number(entry)))],
            Op::PutIf(key, entry, when) => {
                let present = *when == When::Present;
                let value = number(entry);
                vec![(key.clone(), Action::WriteIf { present, value, done: was })]
            }
            Op::Delete(key) => vec![(key.clone(), Action::Delete(was))],
            Op::Get(key) => {
                let seen = match &call.reply {
                    Some(Reply::Found(found)) => Some(found.as_ref().map(number)),
                    _ => None,
                };
                vec![(key.clone(), Action::Read(seen))]
            }
            Op::Batch(writes) => writes
                .iter()
                .map(|(key, entry)| (key.clone(), Action::Set(entry.as_ref().map(number))))
                .collect(),
            Op::Clear => all().map(|key| (key, Action::Set(None))).collect(),
            Op::Iterate => {
                let Some(Reply::All(map)) = &call.reply else { return Ok(Vec::new()) };
                if let Some(key) = map.keys().find(|key| !self.keys.contains_key(*key)) {
                    return Err((key.clone(), Refusal::NotLinearizable));
                }
                all()
                    .map(|key| {
                        let seen = map.get(&key).map(number);
                        (key, Action::Read(Some(seen)))
                    })
                    .collect()
            }
            Op::Sync | Op::Reopen | Op::Check | Op::Clean => Vec::new(),
        };
        if !self.forgets {
            return Ok(actions);
        }
        Ok(actions.into_iter().map(|(key, action)| (key, forgetful(action))).collect())
    }

    /// What a recovery may find after a crash here.
    ///
    /// # Errors
    /// In words, if too many calls are open to decide.
    pub fn allowed(&self) -> Result<Allowed, String> {
        let open = &self.open_batches;
        if open.len() > OPEN_BATCHES_MAX {
            return Err(format!("{} batches are open at once", open.len()));
        }
        let mut assignments = Vec::new();
        for bits in 0..1_u32 << open.len() {
            let chosen = |wanted: bool| -> Vec<CallId> {
                let numbered = open.iter().zip(0..);
                let chosen = numbered.filter(|(_, bit)| (bits >> bit & 1 == 1) == wanted);
                chosen.map(|(id, _)| *id).collect()
            };
            let (required, forbidden) = (chosen(true), chosen(false));
            let mut states = BTreeMap::new();
            for (key, checker) in &self.keys {
                let found = checker.states(&required, &forbidden);
                let found = found.map_err(|refusal| format!("{refusal:?} for {}", show(key)))?;
                states.insert(key.clone(), found);
            }
            if states.values().all(|states| !states.is_empty()) {
                assignments.push(states);
            }
        }
        Ok(Allowed {
            entries: Arc::clone(&self.entries),
            assignments: Arc::new(assignments),
            forgets: self.forgets,
        })
    }
}

/// What a call on a cache says: who finds nothing may have met an eviction, which is as good as a
/// delete; who finds something has found what is there.
fn forgetful(action: Action) -> Action {
    match action {
        Action::Read(Some(None)) | Action::Delete(_) => Action::Set(None),
        Action::WriteIf { value, done: Some(true), .. } => Action::Set(Some(value)),
        Action::WriteIf { present: true, done: Some(false), .. } => Action::Set(None),
        Action::WriteIf { done: Some(false), .. } => Action::Read(None),
        other => other,
    }
}

/// An operation in one line.
fn brief(op: &Op) -> String {
    match op {
        Op::Put(_, entry) => format!("put {entry:?}"),
        Op::PutIf(_, entry, when) => format!("put if {when:?} {entry:?}"),
        Op::Get(_) => "get".to_owned(),
        Op::Delete(_) => "delete".to_owned(),
        Op::Batch(writes) => format!("batch of {}", writes.len()),
        other => format!("{other:?}"),
    }
}

/// A store that is nothing but a map: the reference for runs without crashes and concurrency.
#[derive(Clone, Debug, Default)]
pub struct Model(pub Map);

impl Model {
    /// Does `op` as a cache did that replied `reply`; whether it may reply so.
    pub fn apply_forgetting(&mut self, op: &Op, reply: &Reply) -> bool {
        match (op, reply) {
            (Op::Get(key), Reply::Found(found)) => {
                if found.is_none() {
                    self.0.remove(key);
                }
                found.as_ref() == self.0.get(key)
            }
            (Op::Iterate, Reply::All(found)) => {
                self.0.retain(|key, _| found.contains_key(key));
                *found == self.0
            }
            (Op::PutIf(key, entry, _), Reply::Was(true)) => {
                self.0.insert(key.clone(), entry.clone());
                true
            }
            (Op::PutIf(key, _, When::Present), Reply::Was(false)) => {
                self.0.remove(key);
                true
            }
            (Op::PutIf(key, _, When::Absent), Reply::Was(false)) => self.0.contains_key(key),
            (Op::Delete(key), Reply::Was(was)) => self.0.remove(key).is_some() || !was,
            _ => self.apply(op) == *reply,
        }
    }

    /// Does `op` and says what a right store replies.
    pub fn apply(&mut self, op: &Op) -> Reply {
        match op {
            Op::Put(key, entry) => {
                self.0.insert(key.clone(), entry.clone());
                Reply::Done
            }
            Op::PutIf(key, entry, when) => {
                let done = self.0.contains_key(key) == (*when == When::Present);
                if done {
                    self.0.insert(key.clone(), entry.clone());
                }
                Reply::Was(done)
            }
            Op::Get(key) => Reply::Found(self.0.get(key).cloned()),
            Op::Delete(key) => Reply::Was(self.0.remove(key).is_some()),
            Op::Batch(writes) => {
                for (key, entry) in writes {
                    match entry {
                        Some(entry) => self.0.insert(key.clone(), entry.clone()),
                        None => self.0.remove(key),
                    };
                }
                Reply::Done
            }
            Op::Clear => {
                self.0.clear();
                Reply::Done
            }
            Op::Iterate => Reply::All(self.0.clone()),
            Op::Sync | Op::Reopen | Op::Check | Op::Clean => Reply::Done,
        }
    }
}

#[cfg(test)]
mod tests;
