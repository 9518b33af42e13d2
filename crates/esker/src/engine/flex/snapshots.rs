//! Snapshots: versions as of which somebody reads, so that what counted then is kept (FlexSpace §5.3 has none).
//!
//! # Invariants
//! - H1: what a snapshot sees stays in tables and intervals as long as the snapshot lives.
//! - H2: that of a backup lives until the backup ends, or a writer who finds no room takes it: he comes first.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Versions with living snapshots, and how many each has.
#[derive(Debug)]
pub(super) struct Snapshots {
    versions: Mutex<BTreeMap<u64, u64>>,
    /// The highest of them, plus one; 0 if there is none.
    newest: AtomicU64,
    /// The lowest of them; `u64::MAX` if there is none.
    oldest: AtomicU64,
    /// That of the backup under way, unless it was taken.
    of_backup: Mutex<Option<u64>>,
}

impl Default for Snapshots {
    fn default() -> Self {
        Snapshots {
            versions: Mutex::default(),
            newest: AtomicU64::new(0),
            oldest: AtomicU64::new(u64::MAX),
            of_backup: Mutex::default(),
        }
    }
}

impl Snapshots {
    pub(super) fn add(&self, version: u64) {
        let mut versions = self.versions.lock();
        *versions.entry(version).or_insert(0) += 1;
        self.note(&versions);
    }

    pub(super) fn remove(&self, version: u64) {
        let mut versions = self.versions.lock();
        if let Some(count) = versions.get_mut(&version) {
            *count -= 1;
            if *count == 0 {
                versions.remove(&version);
            }
        }
        self.note(&versions);
    }

    fn note(&self, versions: &BTreeMap<u64, u64>) {
        let newest = versions.last_key_value().map_or(0, |(version, _)| version + 1);
        self.newest.store(newest, Ordering::Release);
        let oldest = versions.first_key_value().map_or(u64::MAX, |(version, _)| *version);
        self.oldest.store(oldest, Ordering::Release);
    }

    /// A backup reads as of this version, which has a snapshot.
    pub(super) fn begin_backup(&self, version: u64) {
        *self.of_backup.lock() = Some(version);
    }

    /// Whether what the backup reads is still kept for it.
    pub(super) fn keeps_for_backup(&self) -> bool {
        self.of_backup.lock().is_some()
    }

    /// The version of the backup, for who releases it: once.
    pub(super) fn end_backup(&self) -> Option<u64> {
        self.of_backup.lock().take()
    }

    /// The lowest version with a snapshot; `u64::MAX` if there is none.
    #[inline]
    pub(super) fn oldest(&self) -> u64 {
        self.oldest.load(Ordering::Acquire)
    }

    /// The highest version with a snapshot; 0 if there is none.
    pub(super) fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire).saturating_sub(1)
    }

    /// Whether somebody sees `version` of a key, of which `newer` is the next one: also a snapshot that is made from now on sees that.
    #[inline]
    pub(super) fn may_see(&self, version: u64, newer: u64) -> bool {
        self.newest.load(Ordering::Acquire) > version
            && self.versions.lock().range(version..newer.max(version)).next().is_some()
    }

    /// All versions, descending.
    pub(super) fn all(&self) -> Vec<u64> {
        if self.newest.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        self.versions.lock().keys().rev().copied().collect()
    }
}

/// Whether the pair at each place is needed, of one key's versions in descending order.
pub(super) fn needed(versions: &[u64], snapshots: &[u64], mut keep: impl FnMut(usize)) {
    let mut last = None;
    let seen = std::iter::once(u64::MAX).chain(snapshots.iter().copied());
    for at in seen {
        let index = versions.partition_point(|version| *version > at);
        if index < versions.len() && last != Some(index) {
            last = Some(index);
            keep(index);
        }
    }
}
