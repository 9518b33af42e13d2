//! Versions that clients were told: what a store promises of them.
//!
//! # Invariants
//! - I1: a value has one version, that of the reply to its write, for whoever reads it, after a crash as well.
//! - I2: the version of a write is higher than all that anybody was told of the key before the write began. So it is never one of
//!   a value that a crash took back.

use crate::generator::{Held, Op};
use crate::model::{Map, Reply};
use esker_base::rng::Rng;
use std::collections::HashMap;

/// What clients know of keys: values that they were told the version of, in the order in which they were told.
#[derive(Clone, Debug, Default)]
pub struct Known(HashMap<Vec<u8>, Vec<Held>>);

impl Known {
    /// What a store shows that was opened.
    #[must_use]
    pub fn of(map: &Map) -> Self {
        let mut known = Known::default();
        map.iter().for_each(|(key, held)| known.learn(key, held));
        known
    }

    /// Somebody was told this.
    pub fn learn(&mut self, key: &[u8], held: &Held) {
        if held.version == 0 {
            return;
        }
        let of_key = self.0.entry(key.to_vec()).or_default();
        if of_key.last() != Some(held) {
            of_key.push(held.clone());
        }
    }

    /// The highest version of a key; 0 if none is known.
    #[must_use]
    pub fn highest(&self, key: &[u8]) -> u64 {
        let of_key = self.0.get(key).into_iter().flatten();
        of_key.map(|held| held.version).max().unwrap_or(0)
    }

    /// What the key had at some time: mostly the last.
    #[must_use]
    pub fn some(&self, key: &[u8], rng: &mut Rng) -> Option<Held> {
        let of_key = self.0.get(key)?;
        let index = if rng.chance(1, 4) { rng.index(of_key.len()) } else { of_key.len() - 1 };
        of_key.get(index).cloned()
    }
}

/// The value and version that a reply tells of each key.
#[must_use]
pub fn told(op: &Op, reply: &Reply) -> Vec<(Vec<u8>, Held)> {
    match (op, reply) {
        (
            Op::Put(key, entry) | Op::PutIf(key, entry, _) | Op::CompareAndPut(key, entry, _),
            Reply::Stored(version),
        ) => vec![(key.clone(), Held { entry: entry.clone(), version: *version })],
        (Op::Get(key), Reply::Found(Some(held))) => vec![(key.clone(), held.clone())],
        (Op::Iterate, Reply::All(map)) => {
            map.iter().map(|(key, held)| (key.clone(), held.clone())).collect()
        }
        _ => Vec::new(),
    }
}
