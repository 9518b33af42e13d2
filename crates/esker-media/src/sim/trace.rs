//! What happened on a simulated block device, in order: enough to say at any moment what a power
//! cut at that moment may leave.
//!
//! # Invariants
//! - I1: events are stamped by a [`PowerClock`] in the order in which they happened; devices that
//!   share a power supply share the clock.
//! - I2: the crash point `p` is the moment after the event with stamp `p` and before the next one:
//!   whatever a program did with `position() <= p` happened before the cut.

use super::image::{Image, content_hash, place_hash};
use crate::block::BlockGeometry;
use esker_base::Site;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Orders the events of all devices on one power supply.
#[derive(Clone, Debug, Default)]
pub struct PowerClock(Arc<AtomicU64>);

impl PowerClock {
    /// A clock at 0.
    #[must_use]
    pub fn new() -> Self {
        PowerClock::default()
    }

    /// The stamp of the latest event, 0 before the first: where a cut now would be.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    pub(crate) fn tick(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }
}

/// Number of one write, discard or flush on its device.
pub(crate) type CallId = u64;

#[derive(Clone, Debug)]
pub(crate) enum EventKind {
    /// A write was handed to the device. `applied`: reads see it from now on; otherwise from its
    /// end on.
    WriteBegin {
        id: CallId,
        site: Site,
        offset: u64,
        data: Arc<[u8]>,
        applied: bool,
    },
    /// It returned; `durable` if its bytes are on media by that.
    WriteEnd {
        id: CallId,
        durable: bool,
    },
    /// A discard: `data` is what reads see; media hold any mix of that, of zeros and of the old.
    Discard {
        id: CallId,
        site: Site,
        offset: u64,
        data: Arc<[u8]>,
    },
    FlushBegin {
        id: CallId,
        site: Site,
    },
    /// It returned; unless `ok`, what it covered is in doubt for ever.
    FlushEnd {
        id: CallId,
        ok: bool,
    },
    /// The device became longer, durably.
    Grow {
        site: Site,
        size_bytes: u64,
    },
    /// A bit turned over on media.
    Flip {
        offset: u64,
        bit: u32,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) stamp: u64,
    pub(crate) kind: EventKind,
}

/// Visits of each site.
#[derive(Clone, Debug, Default)]
pub struct SiteVisits(HashMap<&'static str, u64>);

impl SiteVisits {
    /// Counts one visit.
    pub fn visit(&mut self, site: Site) {
        *self.0.entry(site.name()).or_default() += 1;
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &SiteVisits) {
        for (name, count) in &other.0 {
            *self.0.entry(name).or_default() += count;
        }
    }

    /// Visits of the site with this name.
    #[must_use]
    pub fn count(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Names and counts in the order of the names.
    #[must_use]
    pub fn sorted(&self) -> Vec<(&'static str, u64)> {
        let mut all: Vec<_> = self.0.iter().map(|(name, count)| (*name, *count)).collect();
        all.sort_unstable();
        all
    }
}

/// The recording of one device, from its start to the moment of the copy.
#[derive(Clone, Debug)]
pub struct Trace {
    pub(crate) base: Image,
    pub(crate) events: Vec<Event>,
    pub(crate) geometry: BlockGeometry,
    pub(crate) tear_size_bytes: u32,
    pub(crate) visits: SiteVisits,
}

impl Trace {
    /// Crash points after the start: the stamps of the events.
    pub fn points(&self) -> impl Iterator<Item = u64> + '_ {
        self.events.iter().map(|event| event.stamp)
    }

    /// Events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether nothing happened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// A hash of everything that was recorded: the same seed must give the same.
    #[must_use]
    pub fn hash(&self) -> u128 {
        self.events.iter().fold(self.base.hash(self.tear_size_bytes as usize), |hash, event| {
            let (tag, number, place, data): (u64, u64, u64, &[u8]) = match &event.kind {
                EventKind::WriteBegin { id, site, offset, data, applied } => {
                    (1 + u64::from(*applied), id ^ site.id(), *offset, data)
                }
                EventKind::WriteEnd { id, durable } => (3 + u64::from(*durable), *id, 0, &[]),
                EventKind::Discard { id, site, offset, data } => (5, id ^ site.id(), *offset, data),
                EventKind::FlushBegin { id, site } => (6, id ^ site.id(), 0, &[]),
                EventKind::FlushEnd { id, ok } => (7 + u64::from(*ok), *id, 0, &[]),
                EventKind::Grow { site, size_bytes } => (10, site.id(), *size_bytes, &[]),
                EventKind::Flip { offset, bit } => (9, u64::from(*bit), *offset, &[]),
            };
            let hash = place_hash(hash ^ content_hash(data), event.stamp);
            place_hash(place_hash(hash ^ u128::from(number), place), tag)
        })
    }

    /// The content at the start.
    #[must_use]
    pub fn base(&self) -> &Image {
        &self.base
    }

    /// Sizes of the device.
    #[must_use]
    pub fn geometry(&self) -> BlockGeometry {
        self.geometry
    }

    /// How often each site was passed.
    #[must_use]
    pub fn visits(&self) -> &SiteVisits {
        &self.visits
    }
}
