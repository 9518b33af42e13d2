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
//! - I5: what has expired is not found; until something is written in its place, it may be by who has a clock that is behind, and
//!   nothing older.
//! - I6: what is found has the version that its write got ([`crate::versions`]).

use crate::generator::{Entry, Held, Op, When};
use crate::linearizability::{Action, KeyChecker, Refusal};
use crate::versions::told;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;

mod allowed;
mod reference;

pub use allowed::Allowed;
use allowed::{Entries, Versions, of_version, show};
pub use reference::Model;

/// Content of a store.
pub type Map = BTreeMap<Vec<u8>, Held>;

/// What a store replied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Done, with nothing to tell.
    Done,
    /// A put, or a conditional one, was done as this version; of a batch, the highest of its changes.
    Stored(u64),
    /// What a read found.
    Found(Option<Held>),
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
    told: Vec<(u64, Vec<u8>, Held)>,
}

impl History {
    /// A history of a store that holds `initial`.
    #[must_use]
    pub fn new(initial: Map) -> Self {
        let told = initial.iter().map(|(key, held)| (0, key.clone(), held.clone())).collect();
        History { initial, told, ..History::default() }
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
                Op::Put(key, _)
                | Op::PutIf(key, ..)
                | Op::CompareAndPut(key, ..)
                | Op::CompareAndDelete(key, _)
                | Op::Get(key)
                | Op::Delete(key) => {
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

    /// A client was told a version, maybe of something that is not durable yet.
    pub fn tell(&mut self, position: u64, key: Vec<u8>, held: Held) {
        self.told.push((position, key, held));
    }

    /// What clients were told of versions, and when: the device's positions.
    #[must_use]
    pub fn told(&self) -> &[(u64, Vec<u8>, Held)] {
        &self.told
    }

    /// What there was in the beginning.
    #[must_use]
    pub fn initial(&self) -> &Map {
        &self.initial
    }

    /// Each entry that the history names, with its key.
    fn written(&self) -> Vec<(&Vec<u8>, &Entry, RangeInclusive<u64>)> {
        let initial = self.initial.iter();
        let mut all: Vec<_> =
            initial.map(|(key, held)| (key, &held.entry, of_version(held.version))).collect();
        for Call { op, reply } in &self.calls {
            let version = match reply {
                Some(Reply::Stored(version)) => *version,
                _ => 0,
            };
            match op {
                Op::Put(key, entry)
                | Op::PutIf(key, entry, _)
                | Op::CompareAndPut(key, entry, _) => all.push((key, entry, of_version(version))),
                Op::Batch(writes) => {
                    // Its changes have versions that follow each other.
                    let versions = match version {
                        0 => of_version(0),
                        last => last.saturating_sub(writes.len() as u64 - 1)..=last,
                    };
                    let puts =
                        writes.iter().filter_map(|(key, entry)| Some((key, entry.as_ref()?)));
                    all.extend(puts.map(|(key, entry)| (key, entry, versions.clone())));
                }
                _ => {}
            }
        }
        all
    }
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
    expiries: Arc<HashMap<u64, u64>>,
    versions: Arc<Versions>,
    /// The highest version that somebody was told, of each key; and what it was when a call began that is under way.
    highest: HashMap<Vec<u8>, u64>,
    floors: HashMap<CallId, u64>,
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
        let mut versions = Versions::new();
        for (key, entry, of_write) in history.written() {
            let place = (key.clone(), entries.number(entry));
            // Of what was written twice nobody knows which one it is.
            versions.entry(place).and_modify(|both| *both = of_version(0)).or_insert(of_write);
        }
        let expiries = Arc::new(entries.expiries());
        let keys = history
            .keys()
            .into_iter()
            .map(|key| {
                let state = history.initial.get(&key).map(|held| entries.number(&held.entry));
                (key, KeyChecker::new(state).expiring(Arc::clone(&expiries)))
            })
            .collect();
        let initial = history.initial.iter().map(|(key, held)| (key.clone(), held.version));
        Oracle {
            history,
            next: 0,
            entries: Arc::new(entries),
            expiries,
            versions: Arc::new(versions),
            highest: initial.collect(),
            floors: HashMap::new(),
            keys,
            open_batches: Vec::new(),
            version: 0,
            forgets: false,
        }
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
            self.follow_versions(moment, id, call)?;
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

    /// Whether a call that ends tells the versions that it may (I1 and I2 of [`crate::versions`]).
    fn follow_versions(&mut self, moment: &Moment, id: CallId, call: &Call) -> Result<(), String> {
        let highest = |key: &Vec<u8>| self.highest.get(key).copied().unwrap_or(0);
        if let Moment::Begin(_) = moment {
            let (Op::Put(key, _) | Op::PutIf(key, ..) | Op::CompareAndPut(key, ..) | Op::Get(key)) =
                &call.op
            else {
                return Ok(());
            };
            self.floors.insert(id, highest(key));
            return Ok(());
        }
        let floor = self.floors.remove(&id).unwrap_or(0);
        let Some(reply) = &call.reply else { return Ok(()) };
        for (key, held) in told(&call.op, reply) {
            let version = held.version;
            let is_new = matches!(reply, Reply::Stored(_));
            let number = self.entries.find(&held.entry).unwrap_or(0);
            let known = self.versions.get(&(key.clone(), number));
            let is_its = version == 0 || known.is_none_or(|known| known.contains(&version));
            if version < floor || is_new && version == floor || !is_its {
                let words = format!("version {version}, behind {floor}, where {known:?} is its");
                return Err(format!(
                    "call {id} on key {}: {} tells {words}",
                    show(&key),
                    brief(&call.op)
                ));
            }
            let highest = self.highest.entry(key).or_default();
            *highest = version.max(*highest);
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
            Some(Reply::Stored(_)) => Some(true),
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
            Op::CompareAndPut(key, entry, held) => {
                let (expected, new) = (Some(number(&held.entry)), Some(number(entry)));
                vec![(key.clone(), Action::CompareAndSet { expected, new, done: was })]
            }
            Op::CompareAndDelete(key, held) => {
                let expected = Some(number(&held.entry));
                vec![(key.clone(), Action::CompareAndSet { expected, new: None, done: was })]
            }
            Op::Delete(key) => vec![(key.clone(), Action::Delete(was))],
            Op::Get(key) => {
                let seen = match &call.reply {
                    Some(Reply::Found(found)) => {
                        Some(found.as_ref().map(|held| number(&held.entry)))
                    }
                    _ => None,
                };
                vec![(key.clone(), Action::Read(seen))]
            }
            Op::Batch(writes) => writes
                .iter()
                .map(|(key, entry)| (key.clone(), Action::Set(entry.as_ref().map(number))))
                .collect(),
            Op::Clear => all().map(|key| (key, Action::Set(None))).collect(),
            Op::Time(now) => all().map(|key| (key, Action::Time(*now))).collect(),
            Op::Iterate => {
                let Some(Reply::All(map)) = &call.reply else { return Ok(Vec::new()) };
                if let Some(key) = map.keys().find(|key| !self.keys.contains_key(*key)) {
                    return Err((key.clone(), Refusal::NotLinearizable));
                }
                all()
                    .map(|key| {
                        let seen = map.get(&key).map(|held| number(&held.entry));
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
            expiries: Arc::clone(&self.expiries),
            versions: Arc::clone(&self.versions),
            assignments: Arc::new(assignments),
            forgets: self.forgets,
        })
    }
}

/// What a call on a cache says: who finds nothing may have met an eviction, which is as good as a
/// delete; who finds something has found what is there.
fn forgetful(action: Action) -> Action {
    match action {
        // What has expired is not written over by that.
        Action::Read(Some(None)) | Action::Delete(_) => Action::Delete(None),
        Action::WriteIf { value, done: Some(true), .. } => Action::Set(Some(value)),
        Action::WriteIf { present: true, done: Some(false), .. } => Action::Delete(None),
        Action::WriteIf { done: Some(false), .. } => Action::Read(None),
        Action::CompareAndSet { new, done: Some(true), .. } => Action::Set(new),
        Action::CompareAndSet { done: Some(false), .. } => Action::Read(None),
        other => other,
    }
}

/// An operation in one line.
fn brief(op: &Op) -> String {
    match op {
        Op::Put(_, entry) => format!("put {entry:?}"),
        Op::PutIf(_, entry, when) => format!("put if {when:?} {entry:?}"),
        Op::CompareAndPut(_, entry, held) => format!("put {entry:?} if {held:?}"),
        Op::CompareAndDelete(_, held) => format!("delete if {held:?}"),
        Op::Get(_) => "get".to_owned(),
        Op::Delete(_) => "delete".to_owned(),
        Op::Batch(writes) => format!("batch of {}", writes.len()),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests;
