//! What watchers are told of commands on one key.
//!
//! As in memcached, every lookup is told, those of commands that replace or delete an item included. Such a command need not read
//! the item here: it does while somebody watches lookups, so that it can be told how long it was.

use super::{Action, Ground, Written};
use crate::protocol::{StoreVerb, WatchKinds};
use crate::watch::{Event, StoreStatus};

impl Ground<'_> {
    /// The item was looked up: `size` is that of its value, if there was one.
    pub(super) fn tell_get(&self, key: &[u8], size: Option<usize>) {
        if self.watched.has(WatchKinds::FETCHERS) {
            let event = Event::Get { key, size, connection: self.connection };
            self.watchers.tell(&event, self.counters);
        }
    }

    /// The item is about to be replaced or deleted by a command that has not read it.
    pub(super) fn tell_present(&self, key: &[u8]) {
        if self.watched.has(WatchKinds::FETCHERS) {
            self.look_and_tell(key);
        }
    }

    #[cold]
    fn look_and_tell(&self, key: &[u8]) {
        let mut share = Some(self.budget.nothing());
        // One that cannot be read, or for which there is no memory, is told as none: the command goes on without it.
        let item = self.live(key, &mut share).ok().flatten();
        self.tell_get(key, item.map(|item| item.len()));
    }

    /// What became of a storage command, whose value has `size` bytes, and its item so long to live.
    pub(super) fn tell_store(
        &self,
        key: &[u8],
        verb: StoreVerb,
        stored: StoreStatus,
        expires_at: Option<u64>,
        size: usize,
    ) {
        if self.watched.has(WatchKinds::MUTATIONS) {
            let left_seconds = expires_at.map_or(0, |date| date.saturating_sub(self.now));
            let connection = self.connection;
            let event = Event::Store { key, stored, verb, left_seconds, size, connection };
            self.watchers.tell(&event, self.counters);
        }
    }

    /// The same; expiry and size are those of the item that came about, else what the command wanted.
    pub(super) fn tell_written(
        &self,
        key: &[u8],
        verb: StoreVerb,
        written: &Written,
        expires_at: Option<u64>,
        size: usize,
    ) {
        let (stored, expires_at, size) = match written {
            Written::Item { expires_at, size, .. } => (StoreStatus::Stored, *expires_at, *size),
            Written::NotStored => (StoreStatus::NotStored, expires_at, size),
            Written::Missing => (StoreStatus::NotFound, expires_at, size),
            Written::Exists => (StoreStatus::Exists, expires_at, size),
        };
        self.tell_store(key, verb, stored, expires_at, size);
    }

    /// The action was refused before it could take effect.
    pub(super) fn tell_refused(&self, key: &[u8], action: &Action, why: StoreStatus) {
        if let Action::Put { verb, .. } | Action::MetaPut { verb, .. } = action {
            self.tell_store(key, *verb, why, None, 0);
        }
    }
}
