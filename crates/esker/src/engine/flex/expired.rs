//! What has expired: a pair whose time has come is left out wherever its interval is written anew, as if it were deleted in that
//! moment. `sweep` and `room` look for leaves where that is worth it; each leaf knows about how many bytes expire when.
//!
//! # Invariants
//! - E1: when the newest version of a key is left out, no older one counts from then on, whatever happens.
//!   - In the space all versions of a key are in one interval, and a rewrite merges all of its runs. What is older goes with the
//!     newest, by the same splice. What an open snapshot sees of the older ones stays, and then the newest stays above it.
//!   - Tables are newer than what the space has, or have the same.
//!   - A log that brings an older version again brings the newest, too: this came to the space out of a log, which counts until
//!     the root names its generation, and then those before it do not count, either. Logs are replayed in their order (O1).
//!   - Without logs a table is in the space as a whole or not at all, and so is the log that it gets late (A1).
//!   - Intervals and pairs in memory, and who reads meanwhile, may still have it: it has expired for them all, because the
//!     latest time that was seen counts, not that of a clock that jumps back.
//! - E2: a large value goes after the pair that names it: both are operations of the space, of which a crash leaves a beginning
//!   (P1), and the log that may bring the pair again does not count any more ([`Flex::collect_large`]).
//! - E3: what is known of bytes that expire is never early by time, and about right in bytes. Reading decides.
//!
//! After an open with a clock that is behind, what was not yet left out counts again, until its time comes again.

use super::Flex;
use super::merge::{Merged, size_of};
use crate::engine::expiries::Expiries;
use esker_format::flex_db::Content;

/// Seconds after which somebody looks again for a pair that has expired and stays, because a snapshot sees an older one.
pub(super) const AGAIN_SECONDS: u64 = 60;

/// The moment of a rewrite: one time, and the same snapshots, for all of its pairs.
#[derive(Debug)]
pub(super) struct Moment {
    /// In Unix seconds.
    pub(super) now: u64,
    /// Descending.
    pub(super) snapshots: Vec<u64>,
}

/// What a rewrite leaves out because it has expired.
#[derive(Debug, Default)]
pub(super) struct Expired {
    /// Of pairs.
    pub(super) bytes: u64,
    /// Numbers of large values.
    pub(super) large: Vec<u64>,
}

/// When a pair expires, in Unix seconds.
#[inline]
pub(super) fn expiry_of(content: &Content<'_>) -> Option<u64> {
    match content {
        Content::Put(extra, _) | Content::Large(extra, ..) => extra.expires_at.checked_sub(1),
        Content::Delete => None,
    }
}

impl Moment {
    pub(super) fn has_expired(&self, content: &Content<'_>) -> bool {
        expiry_of(content).is_some_and(|at| at <= self.now)
    }

    /// Adds what of a pair expires that is written at this moment.
    #[inline]
    pub(super) fn note(&self, pair: &Merged<'_>, expiries: &mut Expiries) {
        if let Some(at) = expiry_of(&pair.2) {
            let stays = if at <= self.now { self.now.saturating_add(AGAIN_SECONDS) } else { at };
            expiries.add(stays, bytes_of(pair));
        }
    }
}

impl Expired {
    /// This pair is left out.
    pub(super) fn note(&mut self, pair: &Merged<'_>) {
        self.bytes += size_of(pair) as u64;
        if let Content::Large(_, number, _) = pair.2 {
            self.large.push(number);
        }
    }
}

/// Bytes of a pair, and of the large value that it names.
pub(super) fn bytes_of(pair: &Merged<'_>) -> u64 {
    let large = match pair.2 {
        Content::Large(.., length) => length,
        _ => 0,
    };
    (size_of(pair) as u64).saturating_add(large)
}

/// What a pair of a table is in the space at this time: of one that has expired, that there is nothing. What expires later is added
/// to `expiries`.
#[inline]
pub(super) fn add_expiry<'a>(pair: Merged<'a>, now: u64, expiries: &mut Expiries) -> Content<'a> {
    match (expiry_of(&pair.2), pair.2) {
        (Some(at), Content::Put(..)) if at <= now => return Content::Delete,
        (Some(at), _) => expiries.add(at, bytes_of(&pair)),
        (None, _) => {}
    }
    pair.2
}

impl Flex {
    pub(super) fn moment(&self) -> Moment {
        Moment { now: self.clock.now(), snapshots: self.snapshots.all() }
    }
}
