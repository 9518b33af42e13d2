//! Writers' turns, and keys with a change on its way to the log's device: the conflict queue of `flex` (FlatStore §3.3).
//!
//! A change that is durable before anybody sees it is not in its table for the time of a flush. Who writes the key meanwhile decides on
//! what is on its way, and shares the next flush with everybody else, however often one key is written.
//!
//! # Invariants
//! - P1: under `sync` a key is pending from the moment in which its change has a place in the log until the change counts in its table,
//!   or never will.
//! - P2: `latest` is the last change of the key that has a place in the log. Nobody is told anything that rests on it before it counts: it
//!   is durable some time before, and who was told would find what was there before it.
//! - P4: a change counts no earlier than the batches before it that changed its key: who sees it, or was told of it, would find
//!   their other keys as they were.
//! - P3: who has a place in the log waits for no turn: who has a turn may wait for the committer, and that waits for those.
//!
//! # Concurrency
//! A turn lasts from a decision on a key until its change has a place in the log; without `sync`, until it is in its table. Pending
//! keys have a short lock beside it, under which changes of one key go to their tables one after the other, in any order.

use crate::value::Value;
use esker_trt::sync::{self, Gate, MutexGuard};
use parking_lot::Mutex;
use std::sync::Arc;

/// Bytes of a value that is kept for who reads it to write it anew.
pub(super) const VALUE_BYTES_MAX: usize = 4096;

/// A change that has its place in the log.
#[derive(Clone, Debug)]
pub(super) struct Latest {
    pub(super) version: u64,
    /// False for a tombstone.
    pub(super) exists: bool,
    pub(super) expires_at: Option<u64>,
    pub(super) way: Way,
}

/// How far changes are that were made together.
#[derive(Clone, Debug)]
pub(super) struct Way {
    /// The batch of the log that they are in.
    pub(super) batch: u64,
    /// Opens when they count, or never will.
    pub(super) ended: Arc<Gate>,
    /// Whether they are several, which count at once.
    pub(super) is_several: bool,
}

/// A key with changes on their way.
#[derive(Debug)]
struct PendingKey {
    hash: u64,
    key: Box<[u8]>,
    latest: Latest,
    /// Of the latest change, if others may come to change that: it was made on a condition, or somebody came before.
    value: Option<Value>,
    is_wanted: bool,
    /// The last one of several keys that changed it.
    batch: Option<Way>,
    changes: u32,
}

#[derive(Debug, Default)]
struct Stripe {
    turn: sync::Mutex<()>,
    pending: Mutex<Vec<PendingKey>>,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Pending {
    stripes: Box<[Stripe]>,
}

fn place(pending: &[PendingKey], hash: u64, key: &[u8]) -> Option<usize> {
    pending.iter().position(|one| one.hash == hash && *one.key == *key)
}

impl Pending {
    /// So many stripes, a power of two.
    pub(super) fn new(stripes: usize) -> Self {
        Pending { stripes: std::iter::repeat_with(Stripe::default).take(stripes).collect() }
    }

    fn index(&self, hash: u64) -> usize {
        usize::try_from(hash).unwrap_or(0) & (self.stripes.len() - 1)
    }

    fn stripe(&self, hash: u64) -> Option<&Stripe> {
        self.stripes.get(self.index(hash))
    }

    /// The turn of a key.
    pub(super) fn take(&self, hash: u64) -> Option<MutexGuard<'_, ()>> {
        self.stripe(hash).map(|stripe| stripe.turn.lock())
    }

    /// The turns of several keys, in ascending order, so that two who take them never wait for each other.
    pub(super) fn take_several(
        &self,
        hashes: impl Iterator<Item = u64>,
    ) -> Vec<MutexGuard<'_, ()>> {
        let mut indexes: Vec<_> = hashes.map(|hash| self.index(hash)).collect();
        indexes.sort_unstable();
        indexes.dedup();
        indexes.into_iter().filter_map(|index| Some(self.stripes.get(index)?.turn.lock())).collect()
    }

    /// Everybody's turn.
    pub(super) fn take_all(&self) -> Vec<MutexGuard<'_, ()>> {
        self.stripes.iter().map(|stripe| stripe.turn.lock()).collect()
    }

    /// The last change of a key that is on its way.
    pub(super) fn latest(&self, hash: u64, key: &[u8]) -> Option<Latest> {
        let pending = self.stripe(hash)?.pending.lock();
        Some(pending.get(place(&pending, hash, key)?)?.latest.clone())
    }

    /// What that gives the key, if it is kept. If not, that of the next one is, as long as the key is pending.
    pub(super) fn value(&self, hash: u64, key: &[u8]) -> Option<Value> {
        let mut pending = self.stripe(hash)?.pending.lock();
        let place = place(&pending, hash, key)?;
        let one = pending.get_mut(place)?;
        one.is_wanted |= one.value.is_none();
        let value = one.value.as_ref()?;
        Some(Value::small(value, value.version(), value.attributes()))
    }

    /// A change of a key has its place in the log; `value`: what it gives the key, if others may come for that, as they will where
    /// that is wanted. The last changes of several keys before it that this one was among. The caller has the turn.
    pub(super) fn begin(
        &self,
        (key, hash): (&[u8], u64),
        latest: Latest,
        value: impl FnOnce(bool) -> Option<Value>,
    ) -> Option<Way> {
        let mut pending = self.stripe(hash)?.pending.lock();
        let batch = latest.way.is_several.then(|| latest.way.clone());
        match place(&pending, hash, key).and_then(|place| pending.get_mut(place)) {
            Some(one) => {
                (one.latest, one.value) = (latest, value(one.is_wanted));
                one.changes += 1;
                let before = one.batch.clone();
                one.batch = batch.or_else(|| one.batch.take());
                before
            }
            None => {
                let value = value(false);
                let (key, is_wanted) = (key.into(), false);
                pending.push(PendingKey { hash, key, latest, value, is_wanted, batch, changes: 1 });
                None
            }
        }
    }

    /// All changes of several keys that are on their way. The caller has everybody's turn.
    pub(super) fn batches(&self) -> Vec<Way> {
        let of_stripe = |stripe: &Stripe| -> Vec<Way> {
            stripe.pending.lock().iter().filter_map(|one| one.batch.clone()).collect()
        };
        self.stripes.iter().flat_map(of_stripe).collect()
    }

    /// Does what puts a change of a key into its table, while nobody else does so.
    pub(super) fn alone(&self, hash: u64, insert: impl FnOnce()) {
        let _pending = self.stripe(hash).map(|stripe| stripe.pending.lock());
        insert();
    }

    /// A change of a key is in its table, and counts there; or it is given up.
    pub(super) fn end(&self, (key, hash): (&[u8], u64)) {
        let Some(stripe) = self.stripe(hash) else { return };
        let mut pending = stripe.pending.lock();
        let Some(place) = place(&pending, hash, key) else { return };
        if let Some(one) = pending.get_mut(place) {
            one.changes -= 1;
            if one.changes == 0 {
                pending.swap_remove(place);
            }
        }
    }
}
