//! A store that is nothing but a map: the reference for runs without crashes and concurrency.

use super::{Map, Reply};
use crate::generator::{Entry, Held, Op, When};
use crate::versions::Known;

/// What a store holds, what has expired included.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// Everything that was written and not taken away again.
    pub map: Map,
    /// What time it is.
    pub now: u64,
    /// What clients know.
    pub known: Known,
}

impl Model {
    /// A store that holds `map` at this time, of clients that know so much.
    #[must_use]
    pub fn new(map: Map, now: u64, mut known: Known) -> Self {
        map.iter().for_each(|(key, held)| known.learn(key, held));
        Model { map, now, known }
    }

    /// What is seen of a key.
    fn get(&self, key: &[u8]) -> Option<&Held> {
        self.map.get(key).filter(|held| self.is_seen(held))
    }

    fn is_seen(&self, held: &Held) -> bool {
        held.entry.expires_at == 0 || held.entry.expires_at > self.now
    }

    fn seen(&self) -> Map {
        let seen = self.map.iter().filter(|(_, held)| self.is_seen(held));
        seen.map(|(key, held)| (key.clone(), held.clone())).collect()
    }

    /// Does `op` as a store did that replied `reply`, of which versions are learnt; whether it may reply so. `forgets`: a cache did.
    pub fn follow(&mut self, op: &Op, reply: &Reply, forgets: bool) -> bool {
        let right = if forgets { self.apply_forgetting(op, reply) } else { self.apply(op) };
        let is_done = matches!(right, Reply::Done | Reply::Was(true));
        match (op, reply) {
            (
                Op::Put(key, entry) | Op::PutIf(key, entry, _) | Op::CompareAndPut(key, entry, _),
                Reply::Stored(version),
            ) => {
                let held = Held { entry: entry.clone(), version: *version };
                let is_higher = *version > self.known.highest(key);
                self.known.learn(key, &held);
                self.map.insert(key.clone(), held);
                is_done && is_higher
            }
            (Op::Batch(_), Reply::Stored(_)) => is_done,
            (Op::Get(key), Reply::Found(found)) => {
                let right = self.get(key).cloned();
                found.iter().for_each(|held| self.learn(key, held));
                is_like(right.as_ref(), found.as_ref())
            }
            (Op::Iterate, Reply::All(found)) => {
                let right = self.seen();
                found.iter().for_each(|(key, held)| self.learn(key, held));
                right.len() == found.len()
                    && right.iter().all(|(key, held)| is_like(Some(held), found.get(key)))
            }
            _ => right == *reply,
        }
    }

    /// The version of what a batch wrote is known once somebody reads it.
    fn learn(&mut self, key: &[u8], held: &Held) {
        self.known.learn(key, held);
        if let Some(known) = self.map.get_mut(key)
            && known.entry == held.entry
        {
            known.version = held.version;
        }
    }

    /// Does `op` as a cache did that replied `reply`: what it does not find it has forgotten.
    fn apply_forgetting(&mut self, op: &Op, reply: &Reply) -> Reply {
        let forgotten: Vec<Vec<u8>> = match (op, reply) {
            (Op::Get(key), Reply::Found(None))
            | (Op::PutIf(key, _, When::Present) | Op::Delete(key), Reply::Was(false))
            | (Op::PutIf(key, _, When::Absent), Reply::Stored(_) | Reply::Was(true)) => {
                vec![key.clone()]
            }
            // Gone, or another one: either may be.
            (Op::CompareAndPut(..) | Op::CompareAndDelete(..), Reply::Was(false)) => {
                return Reply::Was(false);
            }
            (Op::Iterate, Reply::All(found)) => {
                self.map.keys().filter(|key| !found.contains_key(*key)).cloned().collect()
            }
            _ => Vec::new(),
        };
        forgotten.iter().for_each(|key| drop(self.map.remove(key)));
        self.apply(op)
    }

    fn put(&mut self, key: &[u8], entry: &Entry) {
        self.map.insert(key.to_vec(), Held::from(entry.clone()));
    }

    /// Does `op` and says what a right store without versions replies.
    pub fn apply(&mut self, op: &Op) -> Reply {
        match op {
            Op::Put(key, entry) => self.put(key, entry),
            Op::PutIf(key, entry, when) => {
                let done = self.get(key).is_some() == (*when == When::Present);
                if done {
                    self.put(key, entry);
                }
                return Reply::Was(done);
            }
            Op::CompareAndPut(key, entry, held) => {
                let done = self.get(key).is_some_and(|current| current.entry == held.entry);
                if done {
                    self.put(key, entry);
                }
                return Reply::Was(done);
            }
            Op::CompareAndDelete(key, held) => {
                let done = self.get(key).is_some_and(|current| current.entry == held.entry);
                if done {
                    self.map.remove(key);
                }
                return Reply::Was(done);
            }
            Op::Get(key) => return Reply::Found(self.get(key).cloned()),
            Op::Delete(key) => {
                let done = self.get(key).is_some();
                if done {
                    self.map.remove(key);
                }
                return Reply::Was(done);
            }
            Op::Batch(writes) => {
                for (key, entry) in writes {
                    match entry {
                        Some(entry) => self.put(key, entry),
                        None => drop(self.map.remove(key)),
                    }
                }
            }
            Op::Clear => self.map.clear(),
            Op::Iterate => return Reply::All(self.seen()),
            Op::Time(now) => self.now = self.now.max(*now),
            Op::Sync | Op::Reopen | Op::Check | Op::Clean => {}
        }
        Reply::Done
    }
}

/// Whether a store shows what it is to show, as far as that is known.
fn is_like(right: Option<&Held>, found: Option<&Held>) -> bool {
    match (right, found) {
        (Some(right), Some(found)) => {
            right.entry == found.entry && (right.version == 0 || right.version == found.version)
        }
        (right, found) => right.is_none() && found.is_none(),
    }
}
