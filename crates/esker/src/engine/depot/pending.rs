//! Keys with a write under way: the conflict queue of `depot` (FlatStore §3.3).
//!
//! A write decides on the newest state of its key: that of the last pending write, if there is one,
//! else the published one. So conditional writes of one key need not wait for each other's flush;
//! their order is the order of the log.
//!
//! # Invariants
//! - P1: while a key is pending, its index entry changes only through [`Pending::publish`], in the
//!   order of the log, and [`Pending::relocate`]; `published` is that entry.
//! - P2: a key is pending exactly while a batch that is not yet published holds a record of it.
//!
//! # Concurrency
//! Striped locks by key hash. Lock order: stripe, then the log's state. Nothing suspends under a
//! stripe.

use super::log::Ticket;
use crate::value::{Attributes, Value};
use esker_base::ids::Version;
use esker_index::Link;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

const STRIPES: usize = 256;
/// Bytes of a value that is kept for who reads it to write it anew.
const VALUE_BYTES_MAX: usize = 4096;

/// What is known of a key's newest record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) version: Version,
    /// False for a tombstone.
    pub(super) exists: bool,
    pub(super) expires_at: Option<u64>,
}

/// A key with writes under way.
#[derive(Debug)]
pub(super) struct PendingKey {
    hash: u64,
    key: Box<[u8]>,
    published: Option<Link>,
    pub(super) latest: Known,
    /// Of that record, if others may come to change it: it was made on a condition, or somebody came before.
    value: Option<Value>,
    is_wanted: bool,
    pub(super) ticket: Arc<Ticket>,
    /// Another key with this hash has a value, or may get one while this key is pending.
    pub(super) collides: bool,
    writes: u32,
}

/// A locked stripe.
pub(super) struct Stripe<'a>(MutexGuard<'a, Vec<PendingKey>>);

/// Several locked stripes.
pub(super) struct Stripes<'a>(Vec<(usize, Stripe<'a>)>);

impl<'a> Stripes<'a> {
    /// The stripe of a hash that was asked for.
    pub(super) fn of(&mut self, hash: u64) -> Option<&mut Stripe<'a>> {
        let index = Pending::stripe_of(hash);
        self.0.iter_mut().find(|(stripe, _)| *stripe == index).map(|(_, stripe)| stripe)
    }
}

#[derive(Debug)]
pub(super) struct Pending {
    stripes: Box<[Mutex<Vec<PendingKey>>]>,
}

impl Pending {
    pub(super) fn new() -> Self {
        Pending { stripes: (0..STRIPES).map(|_| Mutex::default()).collect() }
    }

    fn stripe_of(hash: u64) -> usize {
        usize::try_from((hash >> 20) % STRIPES as u64).unwrap_or(0)
    }

    pub(super) fn lock(&self, hash: u64) -> Stripe<'_> {
        self.lock_stripe(Self::stripe_of(hash))
    }

    fn lock_stripe(&self, index: usize) -> Stripe<'_> {
        #[expect(clippy::indexing_slicing, reason = "a remainder is in range")]
        Stripe(self.stripes[index].lock())
    }

    /// Locks the stripes of several keys, in ascending order, so that two who do so never wait for
    /// each other.
    pub(super) fn lock_all(&self, hashes: impl Iterator<Item = u64>) -> Stripes<'_> {
        let mut indexes: Vec<_> = hashes.map(Self::stripe_of).collect();
        indexes.sort_unstable();
        indexes.dedup();
        Stripes(indexes.into_iter().map(|index| (index, self.lock_stripe(index))).collect())
    }

    /// Calls `change` with the published entry of a pending key, which gives the new one; called
    /// once for each record, in the order of the log.
    pub(super) fn publish(
        &self,
        hash: u64,
        key: &[u8],
        change: impl FnOnce(Option<Link>) -> Option<Link>,
    ) {
        let mut stripe = self.lock(hash);
        let Some(place) = stripe.position(hash, key) else { return };
        if let Some(pending) = stripe.0.get_mut(place) {
            pending.published = change(pending.published);
            pending.writes -= 1;
            if pending.writes == 0 {
                stripe.0.swap_remove(place);
            }
        }
    }

    /// The cleaner moves or drops the entry `old` of some key: `change` does it under the stripe.
    pub(super) fn relocate(
        &self,
        hash: u64,
        old: Link,
        new: Option<Link>,
        change: impl FnOnce() -> bool,
    ) -> bool {
        let mut stripe = self.lock(hash);
        let changed = change();
        if changed {
            let of_key =
                |pending: &&mut PendingKey| pending.hash == hash && pending.published == Some(old);
            if let Some(pending) = stripe.0.iter_mut().find(of_key) {
                pending.published = new;
            }
        }
        changed
    }

    /// The index was cleared: no pending key has an entry any more.
    pub(super) fn forget_published(&self) {
        for stripe in &self.stripes {
            stripe.lock().iter_mut().for_each(|pending| pending.published = None);
        }
    }

    /// Waits until whoever holds a stripe now has let go of it.
    pub(super) fn pass_all(&self) {
        self.stripes.iter().for_each(|stripe| drop(stripe.lock()));
    }
}

impl Stripe<'_> {
    fn position(&self, hash: u64, key: &[u8]) -> Option<usize> {
        self.0.iter().position(|pending| pending.hash == hash && *pending.key == *key)
    }

    pub(super) fn find(&self, hash: u64, key: &[u8]) -> Option<&PendingKey> {
        self.0.get(self.position(hash, key)?)
    }

    /// The value that the newest record of a key has, if it is kept. If not, that of the next one is, as long as the key is pending.
    pub(super) fn value(&mut self, hash: u64, key: &[u8]) -> Option<Value> {
        let place = self.position(hash, key)?;
        let pending = self.0.get_mut(place)?;
        pending.is_wanted |= pending.value.is_none();
        let value = pending.value.as_ref()?;
        Some(Value::small(value, value.version(), value.attributes()))
    }

    /// Whether another key with this hash has a write under way. Marks the others: their later
    /// writes meet this key.
    pub(super) fn collides(&mut self, hash: u64, key: &[u8]) -> bool {
        let mut others = false;
        for other in self.0.iter_mut().filter(|other| other.hash == hash && *other.key != *key) {
            other.collides = true;
            others = true;
        }
        others
    }

    /// A record of the key was appended to the batch of `ticket`.
    pub(super) fn appended(
        &mut self,
        hash: u64,
        key: &[u8],
        published: Option<Link>,
        latest: Known,
        collides: bool,
        ticket: &Arc<Ticket>,
    ) {
        match self.position(hash, key).and_then(|place| self.0.get_mut(place)) {
            Some(pending) => {
                (pending.latest, pending.value) = (latest, None);
                pending.ticket = Arc::clone(ticket);
                pending.collides |= collides;
                pending.writes += 1;
            }
            None => self.0.push(PendingKey {
                hash,
                key: key.into(),
                published,
                latest,
                value: None,
                is_wanted: false,
                ticket: Arc::clone(ticket),
                collides,
                writes: 1,
            }),
        }
    }

    /// Keeps the value of the record that was appended last, if it is one that others may come to change, or did.
    pub(super) fn keep(
        &mut self,
        (hash, key): (u64, &[u8]),
        (value, version, attributes): (&[u8], Version, Attributes),
        is_changed: bool,
    ) {
        if value.len() <= VALUE_BYTES_MAX
            && let Some(pending) = self.position(hash, key).and_then(|place| self.0.get_mut(place))
            && (is_changed || pending.is_wanted)
        {
            pending.value = Some(Value::small(value, version, attributes));
        }
    }
}
