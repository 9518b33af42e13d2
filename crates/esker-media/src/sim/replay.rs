//! Replay of a recording: what is durable, and what may or may not survive, at each crash point.
//!
//! # Invariants
//! - I1: `durable` holds exactly what every crash at this point keeps.
//! - I2: a pending write survives in any part. Of two pending writes to one place either may be
//!   the one that is left.
//! - I3: once a later write to a place is durable, an earlier one that had returned is gone from
//!   that place; one still under way may still land there.
//! - I4: a discard is never settled: until something durable covers it, its range holds any mix of
//!   old bytes and zeros.
//!
//! # Concurrency
//! A replay belongs to one thread; any number of replays may read one trace.

use super::image::{Image, content_hash, place_hash};
use super::states::{CrashState, CrashStates};
use super::trace::{CallId, EventKind, Trace};
use esker_base::Site;
use std::collections::HashMap;
use std::sync::Arc;

/// A write or discard that is not durable as a whole.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) id: CallId,
    pub(super) site: Site,
    pub(super) first_unit: usize,
    pub(super) data: Arc<[u8]>,
    /// Hash of each unit's content.
    pub(super) hashes: Vec<u128>,
    /// Place in the order in which reads saw writes; 0 until it is seen.
    pub(super) order: u64,
    pub(super) returned: bool,
    /// No flush settles it any more: a discard, or a write that a failed flush covered.
    pub(super) in_doubt: bool,
}

impl Pending {
    pub(super) fn units(&self) -> std::ops::Range<usize> {
        self.first_unit..self.first_unit + self.hashes.len()
    }
}

/// A crash point on the way through a trace.
#[derive(Clone, Debug)]
pub struct Replay<'t> {
    trace: &'t Trace,
    next: usize,
    pub(super) durable: Image,
    pub(super) unit_size_bytes: usize,
    /// Hash of each unit of `durable`, and of all.
    pub(super) unit_hashes: Vec<u128>,
    pub(super) hash: u128,
    /// For each unit, `order` of the write that is durable there.
    durable_order: Vec<u64>,
    pub(super) pending: Vec<Pending>,
    flushes: HashMap<CallId, Vec<CallId>>,
    next_order: u64,
    last_site: Option<Site>,
}

impl Trace {
    /// A replay that stands at the start: nothing happened yet.
    #[must_use]
    pub fn replay(&self) -> Replay<'_> {
        let unit_size_bytes = self.tear_size_bytes as usize;
        let unit_hashes = self.base.unit_hashes(unit_size_bytes);
        Replay {
            trace: self,
            next: 0,
            durable: self.base.clone(),
            unit_size_bytes,
            hash: unit_hashes.iter().fold(0, |all, one| all ^ one),
            durable_order: vec![0; unit_hashes.len()],
            unit_hashes,
            pending: Vec::new(),
            flushes: HashMap::new(),
            next_order: 1,
            last_site: None,
        }
    }
}

impl<'t> Replay<'t> {
    /// Stamp of the latest event that happened; 0 at the start.
    #[must_use]
    pub fn position(&self) -> u64 {
        let last = self.next.checked_sub(1).and_then(|last| self.trace.events.get(last));
        last.map_or(0, |event| event.stamp)
    }

    /// Site of the latest event.
    #[must_use]
    pub fn last_site(&self) -> Option<Site> {
        self.last_site
    }

    /// Site of the next event: the call that a crash here prevents or interrupts.
    #[must_use]
    pub fn next_site(&self) -> Option<Site> {
        match &self.trace.events.get(self.next)?.kind {
            EventKind::WriteBegin { site, .. }
            | EventKind::Discard { site, .. }
            | EventKind::Grow { site, .. }
            | EventKind::FlushBegin { site, .. } => Some(*site),
            EventKind::WriteEnd { id, .. } => {
                self.pending.iter().find(|pending| pending.id == *id).map(|pending| pending.site)
            }
            EventKind::FlushEnd { .. } | EventKind::Flip { .. } => None,
        }
    }

    /// Lets the next event happen; false at the end of the trace.
    pub fn step(&mut self) -> bool {
        let Some(event) = self.trace.events.get(self.next) else { return false };
        self.next += 1;
        match &event.kind {
            EventKind::WriteBegin { id, site, offset, data, applied } => {
                let order = if *applied { self.take_order() } else { 0 };
                self.add(*id, *site, *offset, Arc::clone(data), order);
            }
            EventKind::WriteEnd { id, durable } => self.end_write(*id, *durable),
            EventKind::Discard { id, site, offset, data } => {
                let order = self.take_order();
                self.add(*id, *site, *offset, vec![0; data.len()].into(), order);
                if let Some(pending) = self.pending.last_mut() {
                    pending.returned = true;
                    pending.in_doubt = true;
                }
            }
            EventKind::FlushBegin { id, site } => {
                self.last_site = Some(*site);
                let covered = self.pending.iter().filter(|write| write.returned);
                let covered = covered.filter(|write| !write.in_doubt).map(|write| write.id);
                self.flushes.insert(*id, covered.collect());
            }
            EventKind::FlushEnd { id, ok } => self.end_flush(*id, *ok),
            EventKind::Grow { site, size_bytes } => {
                self.last_site = Some(*site);
                self.grow(*size_bytes);
            }
            EventKind::Flip { offset, bit } => {
                self.durable.flip(*offset, *bit);
                let unit = usize::try_from(*offset).unwrap_or(0) / self.unit_size_bytes;
                let mut bytes = vec![0; self.unit_size_bytes];
                self.durable.read((unit * self.unit_size_bytes) as u64, &mut bytes);
                self.set_unit_hash(unit, content_hash(&bytes));
            }
        }
        true
    }

    /// Lets everything up to and including the event with stamp `position` happen.
    pub fn advance_to(&mut self, position: u64) {
        while self.trace.events.get(self.next).is_some_and(|event| event.stamp <= position) {
            self.step();
        }
    }

    /// What every crash here keeps; also the state in which nothing else survives.
    #[must_use]
    pub fn durable(&self) -> &Image {
        &self.durable
    }

    /// How many writes and discards may or may not survive here.
    #[must_use]
    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// States that a crash here may leave: all if they are at most 256, otherwise none, all, each
    /// write alone, each missing, and random ones up to `budget`. State `n` is always the same for
    /// the same trace, point and seed.
    #[must_use]
    pub fn states(&self, budget: usize, seed: u64) -> CrashStates<'_, 't> {
        CrashStates::new(self, budget, seed)
    }

    /// A random state.
    #[must_use]
    pub fn random_state(&self, seed: u64) -> CrashState<'_, 't> {
        CrashStates::random(self, seed)
    }

    /// Whether `pending` can still change `unit` (I3).
    pub(super) fn is_live(&self, pending: &Pending, unit: usize) -> bool {
        let durable = self.durable_order.get(unit).copied().unwrap_or(0);
        !pending.returned || pending.order > durable
    }

    /// Units that were not there before hold zeros; a crash before this moment leaves the old size.
    fn grow(&mut self, size_bytes: u64) {
        self.durable.grow(size_bytes);
        let count = usize::try_from(size_bytes).unwrap_or(0) / self.unit_size_bytes;
        let zeros = content_hash(&vec![0; self.unit_size_bytes]);
        for unit in self.unit_hashes.len()..count {
            let hash = place_hash(zeros, unit as u64);
            self.unit_hashes.push(hash);
            self.durable_order.push(0);
            self.hash ^= hash;
        }
    }

    fn take_order(&mut self) -> u64 {
        self.next_order += 1;
        self.next_order - 1
    }

    fn add(&mut self, id: CallId, site: Site, offset: u64, data: Arc<[u8]>, order: u64) {
        self.last_site = Some(site);
        let first_unit = usize::try_from(offset).unwrap_or(0) / self.unit_size_bytes;
        let hashes = data.chunks(self.unit_size_bytes).map(content_hash).collect();
        self.pending.push(Pending {
            id,
            site,
            first_unit,
            data,
            hashes,
            order,
            returned: false,
            in_doubt: false,
        });
    }

    fn end_write(&mut self, id: CallId, durable: bool) {
        let order = self.next_order;
        let Some(pending) = self.pending.iter_mut().find(|pending| pending.id == id) else {
            return;
        };
        self.last_site = Some(pending.site);
        pending.returned = true;
        if pending.order == 0 {
            pending.order = order;
            self.next_order += 1;
        }
        if durable {
            self.settle(&[id]);
        }
    }

    fn end_flush(&mut self, id: CallId, ok: bool) {
        let covered = self.flushes.remove(&id).unwrap_or_default();
        if ok {
            self.settle(&covered);
            return;
        }
        for pending in self.pending.iter_mut().filter(|write| covered.contains(&write.id)) {
            pending.in_doubt = true;
        }
    }

    /// Makes these writes durable, in the order in which reads saw them.
    fn settle(&mut self, ids: &[CallId]) {
        let (mut settled, rest): (Vec<_>, Vec<_>) =
            self.pending.drain(..).partition(|pending| ids.contains(&pending.id));
        self.pending = rest;
        settled.sort_by_key(|pending| pending.order);
        for write in settled {
            for (unit, bytes) in write.units().zip(write.data.chunks(self.unit_size_bytes)) {
                let Some(order) = self.durable_order.get_mut(unit) else { continue };
                if *order >= write.order {
                    continue;
                }
                *order = write.order;
                self.durable.write((unit * self.unit_size_bytes) as u64, bytes);
                let hash = write.hashes.get(unit - write.first_unit).copied().unwrap_or(0);
                self.set_unit_hash(unit, hash);
            }
        }
        let mut pending = std::mem::take(&mut self.pending);
        pending.retain(|write| write.units().any(|unit| self.is_live(write, unit)));
        self.pending = pending;
    }

    fn set_unit_hash(&mut self, unit: usize, content: u128) {
        if let Some(hash) = self.unit_hashes.get_mut(unit) {
            self.hash ^= *hash;
            *hash = place_hash(content, unit as u64);
            self.hash ^= *hash;
        }
    }
}

#[cfg(test)]
mod tests;
