//! What does not count any more some time: pairs that expire, and what stays for snapshots and goes with them. So whoever looks for
//! leaves that are worth writing anew finds these as well.
//!
//! # Invariants
//! - V1: what is known of bytes that stay for snapshots is never early: they count as gone once no snapshot is left that
//!   is as old as the newest one that sees them.
//!
//! # Concurrency
//! None of its own.

use super::expired::{Moment, bytes_of, expiry_of};
use super::merge::{Merged, size_of};
use crate::engine::expiries::Expiries;
use esker_format::Flaw;
use esker_format::flex_db::{Content, Key, Run, RunKind};

/// How many bytes lapse when.
#[derive(Clone, Debug, Default)]
pub(super) struct Lapsing {
    /// By time, in Unix seconds: bytes of pairs, and of large values that they name.
    pub(super) expiries: Expiries,
    /// By the version of the newest snapshot that sees them; 0: none does.
    pub(super) seen: Expiries,
}

impl From<Expiries> for Lapsing {
    fn from(expiries: Expiries) -> Self {
        Lapsing { expiries, ..Lapsing::default() }
    }
}

impl Lapsing {
    /// Bytes that stayed for snapshots, of which `oldest` is the oldest one that is left, and are of no use now.
    pub(super) fn let_go(&self, oldest: u64) -> u64 {
        oldest.checked_sub(1).map_or(0, |newest_gone| self.seen.expired(newest_gone))
    }

    /// As it is for a store that is opened anew, which has no snapshots: moments, in Unix seconds.
    pub(super) fn without_snapshots(&self) -> Expiries {
        let mut expiries = self.expiries.clone();
        if !self.seen.is_empty() {
            expiries.add(0, self.seen.expired(u64::MAX));
        }
        expiries
    }

    /// Adds what another one knows.
    pub(super) fn add_all(&mut self, other: &Lapsing) {
        self.expiries.add_all(&other.expiries);
        self.seen.add_all(&other.seen);
    }

    /// About `part` of `whole` of it, and not more.
    pub(super) fn share(&self, part: u64, whole: u64) -> Lapsing {
        Lapsing { expiries: self.expiries.share(part, whole), seen: self.seen.share(part, whole) }
    }

    /// Memory beside the place itself, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.expiries.memory_bytes() + self.seen.memory_bytes()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.expiries.is_empty() && self.seen.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.expiries.clear();
        self.seen.clear();
    }
}

/// What lapses of the pairs of these runs, which an open found. What stayed for a snapshot was written before there were those that are
/// now, of which the newest is of version `newest`; base runs alone have such pairs.
///
/// # Errors
/// The first [`Flaw`] found.
pub(super) fn lapsing_in(mut bytes: &[u8], newest: u64) -> Result<Lapsing, Flaw> {
    let mut lapsing = Lapsing::default();
    while !bytes.is_empty() {
        let run = Run::take(&mut bytes, || false)?;
        let mut last: Option<Key<'_>> = None;
        for pair in run.pairs() {
            let merged = (pair.key, pair.version, pair.content);
            if let Some(at) = expiry_of(&pair.content) {
                lapsing.expiries.add(at, bytes_of(&merged));
            }
            let is_older = last.replace(pair.key) == Some(pair.key);
            if run.kind == RunKind::Base && (is_older || pair.content == Content::Delete) {
                lapsing.seen.add(newest, size_of(&merged) as u64);
            }
        }
    }
    Ok(lapsing)
}

impl Moment {
    /// What lapses of pairs that are written at this moment, merged before, all of a key among them.
    pub(super) fn lapsing(&self, pairs: &[Merged<'_>]) -> Lapsing {
        let mut lapsing = Lapsing::default();
        pairs.iter().for_each(|pair| self.note(pair, &mut lapsing.expiries));
        // Without snapshots a key has one pair.
        if self.snapshots.is_empty() {
            return lapsing;
        }
        for same in pairs.chunk_by(|a, b| a.0 == b.0) {
            for (number, (newer, older)) in same.iter().zip(same.iter().skip(1)).enumerate() {
                let seen = self.snapshots.iter().find(|snapshot| **snapshot < newer.1);
                let seen = seen.copied().unwrap_or(0);
                lapsing.seen.add(seen, size_of(older) as u64);
                // What says that there is nothing stays only because of what is below.
                if number == 0 && newer.2 == Content::Delete {
                    lapsing.seen.add(seen, size_of(newer) as u64);
                }
            }
        }
        lapsing
    }
}

#[cfg(test)]
mod tests;
