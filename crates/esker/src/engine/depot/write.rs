//! Writes: looking a key up, deciding, appending (uDepot §4.5).
//!
//! A write first learns which index entry its key has: the pending one if a write of the key is
//! under way, else by reading the records that the index offers. It decides under the key's stripe,
//! after making sure that what it learnt still holds, and appends before it lets go of the stripe:
//! the order of decisions on a key is the order of its records in the log.

use super::clean::Cleaner;
use super::commit::{Append, Item};
use super::later::Later;
use super::pending::{Known, PendingKey};
use super::read::Offered;
use super::scan::evicted_hash;
use super::{Depot, Exclusive, sites, spread};
use crate::value::{Attributes, Condition, Outcome, Value};
use esker_base::Result;
use esker_base::ids::Version;
use esker_format::depot::{RecordKind, RecordMeta};
use esker_index::Link;
use esker_trt::sync::Gate;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bits of a record's state.
pub(super) const STATE_MASK: u8 = 0xF;

/// The version of what cannot be read; no record has it.
const UNREAD: Version = Version(0);

/// What the index and the media say of a key.
pub(super) struct Resolved {
    offered: Offered,
    pub(super) published: Option<Link>,
    pub(super) known: Option<Known>,
    /// Entry of the note that a key with this hash was evicted.
    note: Option<Link>,
    /// Entry of a record that cannot be read, in a cache: it may be the key's.
    unread: Option<Link>,
    pub(super) collides: bool,
}

/// What a write starts from.
pub(super) struct Start {
    pub(super) published: Option<Link>,
    pub(super) known: Option<Known>,
    pub(super) collides: bool,
    /// V2 of eviction.
    pub(super) replaces: bool,
}

/// What to write.
pub(super) struct Change<'a> {
    pub(super) kind: RecordKind,
    pub(super) value: &'a [u8],
    pub(super) attributes: Attributes,
    pub(super) condition: Condition,
    /// Id of the large value that `value` names.
    pub(super) large: Option<u64>,
}

impl Depot {
    pub(super) fn put_record(
        &self,
        key: &[u8],
        value: &[u8],
        attributes: Attributes,
        condition: Condition,
    ) -> Result<Outcome> {
        self.check_key(key)?;
        if value.len() as u64 > self.layout.inline_max(key.len()) {
            return self.put_large(key, value, attributes, condition);
        }
        self.write(
            key,
            &Change { kind: RecordKind::Put, value, attributes, condition, large: None },
        )
    }

    /// What a write under way gives `key`, if that is to be had.
    pub(super) fn pending_value(&self, key: &[u8]) -> Result<Option<Value>> {
        self.check_key(key)?;
        self.begin("get")?;
        // Behind a failed write nothing follows what it left.
        if self.writes_later() || self.log.refuse().is_err() {
            return Ok(None);
        }
        let hash = self.hash(key);
        let value = self.pending.lock(hash).value(hash, key);
        Ok(value.filter(|value| !self.clock.is_expired(value.attributes().expires_at)))
    }

    pub(super) fn delete_record(&self, key: &[u8], condition: Condition) -> Result<Outcome> {
        self.check_key(key)?;
        let attributes = Attributes::default();
        let kind = RecordKind::Delete;
        self.write(key, &Change { kind, value: &[], attributes, condition, large: None })
    }

    fn write(&self, key: &[u8], change: &Change<'_>) -> Result<Outcome> {
        loop {
            if let Some(outcome) = self.try_write(key, change)? {
                return Ok(outcome);
            }
        }
    }

    /// One try at a write: `None` to come again.
    pub(super) fn try_write(&self, key: &[u8], change: &Change<'_>) -> Result<Option<Outcome>> {
        let hash = self.hash(key);
        self.log.refuse()?;
        // Of writes to memory none is under way without its stripe.
        let resolved = if !self.writes_later() && self.pending.lock(hash).find(hash, key).is_some()
        {
            None
        } else {
            Some(self.resolve(hash, key, change.condition)?)
        };
        let mut stripe = self.pending.lock(hash);
        if let Some(gate) = self.exclusive() {
            drop(stripe);
            gate.wait();
            return Ok(None);
        }
        if change.large.is_some_and(|id| !self.extents.has(id)) {
            // Cleared away.
            return Ok(None);
        }
        let others = stripe.collides(hash, key);
        let (start, ticket) = match (stripe.find(hash, key), resolved) {
            (Some(pending), _) => {
                (self.start_behind(pending, others), Some(Arc::clone(&pending.ticket)))
            }
            (None, Some(resolved)) if self.still_holds(hash, &resolved) => {
                (self.start(&resolved, others), None)
            }
            // The pending write went away, or somebody overtook: look again.
            (None, _) => return Ok(None),
        };
        if let Some(refused) = self.decide(change.condition, start.known) {
            drop(stripe);
            // The decision may rest on a write that is not durable yet.
            if let Some(ticket) = ticket.filter(|_| !sites::DECISION_WAIT.disabled()) {
                ticket.wait_for(start.known.map_or(Version(0), |known| known.version))?;
            }
            return Ok(Some(refused));
        }
        let meta = RecordMeta {
            kind: change.kind,
            version: Version(0),
            flags: change.attributes.flags,
            expires_at: change.attributes.expires_at,
            state: change.attributes.state & STATE_MASK,
            collides: start.collides,
            replaces: start.replaces,
        };
        let item = [Item { hash, meta, key, value: change.value }];
        if self.writes_later() {
            let later = self.write_later(&item, &[start.published])?;
            drop(stripe);
            return Ok(self.after_later(later)?.map(Outcome::Stored));
        }
        let appended = match self.append(&item)? {
            Append::Done(appended) => appended,
            Append::Full(ticket) => {
                drop(stripe);
                // Its writers are told what became of it; this one just comes again.
                let _ = ticket.wait();
                return Ok(None);
            }
            Append::NoRoom(kept) => {
                drop(stripe);
                self.make_room(kept)?;
                return Ok(None);
            }
        };
        let latest = Known {
            version: appended.version,
            exists: change.kind.has_value(),
            expires_at: meta.expires_at,
        };
        stripe.appended(hash, key, start.published, latest, meta.collides, &appended.ticket);
        let is_changed = matches!(change.condition, Condition::Absent | Condition::VersionIs(_));
        if change.kind == RecordKind::Put {
            let attributes = Attributes { state: meta.state, ..change.attributes };
            let value = (change.value, appended.version, attributes);
            stripe.keep((hash, key), value, is_changed);
        }
        drop(stripe);
        self.finish(&appended)?;
        Ok(Some(Outcome::Stored(appended.version)))
    }

    /// What a write to memory leaves to do, without any stripe: `None` to come again.
    pub(super) fn after_later(&self, later: Later) -> Result<Option<Version>> {
        match later {
            Later::Done(version, closed, bytes) => {
                self.pay(bytes);
                if closed {
                    self.have_full_written()?;
                }
                return Ok(Some(version));
            }
            Later::Unsaid => self.say_doubt()?,
            Later::Busy => self.write_full(true)?,
            Later::Unbegun => self.begin_later()?,
            Later::NoRoom(kept) => {
                // It may have ended one.
                self.have_full_written()?;
                self.make_room(kept)?;
            }
        }
        Ok(None)
    }

    /// Pieces that are full go to the device, beside this if there is somebody for it.
    fn have_full_written(&self) -> Result<()> {
        if !self.log_writer.is_running() {
            return self.write_full(false);
        }
        self.log_writer.wake();
        Ok(())
    }

    /// What a write of a key starts from that has no write under way; `others` have.
    pub(super) fn start(&self, resolved: &Resolved, others: bool) -> Start {
        let Resolved { mut published, mut known, note, unread, .. } = *resolved;
        if published.is_none() && unread.is_some() {
            let exists = unread.is_some_and(|link| !link.is_tombstone());
            (published, known) =
                (unread, Some(Known { version: UNREAD, exists, expires_at: None }));
        }
        let collides = resolved.collides || others;
        // A note of its own hash alone goes as its own tombstone would; one that other keys share stays.
        let replaced = published.or(if collides { None } else { note });
        // What another key with the hash has may be all that stands for an older record of this one: it took the place of a note.
        let replaces = self.superblock.cache && (replaced.is_some() || note.is_some() || collides);
        Start { published: replaced, known, collides, replaces }
    }

    /// What a write of a key starts from that has a write under way.
    pub(super) fn start_behind(&self, pending: &PendingKey, others: bool) -> Start {
        Start {
            published: None,
            known: Some(pending.latest),
            collides: pending.collides || others,
            replaces: self.superblock.cache,
        }
    }

    /// Whether what `resolve` learnt is still so. The caller holds the stripe.
    pub(super) fn still_holds(&self, hash: u64, resolved: &Resolved) -> bool {
        sites::WRITE_RESOLVED.disabled() || self.offered(hash) == resolved.offered
    }

    /// Why the condition does not hold, if it does not.
    pub(super) fn decide(&self, condition: Condition, known: Option<Known>) -> Option<Outcome> {
        // What cannot be read is there for who wants it gone, and not for who wants to be the first.
        let is_there = |known: &Known| known.version != UNREAD || condition != Condition::Absent;
        let live = known
            .filter(is_there)
            .filter(|known| known.exists && !self.clock.is_expired(known.expires_at));
        condition.refused(live.map(|live| live.version))
    }

    /// Finds the index entry of `key` by reading the records of its candidates, for who writes it on `condition`.
    pub(super) fn resolve(&self, hash: u64, key: &[u8], condition: Condition) -> Result<Resolved> {
        loop {
            let mut resolved = Resolved {
                offered: self.offered(hash),
                published: None,
                known: None,
                note: None,
                unread: None,
                collides: false,
            };
            let read = self.resolve_offered(hash, key, condition, &mut resolved);
            // A value that another one took the place of may have gone while it was read.
            let is_lost = resolved.known.is_some_and(|known| known.version == UNREAD);
            let has_failed = read.is_err() || resolved.unread.is_some() || is_lost;
            if !has_failed || !self.is_over(hash, &resolved.offered) {
                return read.map(|()| resolved);
            }
        }
    }

    fn resolve_offered(
        &self,
        hash: u64,
        key: &[u8],
        condition: Condition,
        resolved: &mut Resolved,
    ) -> Result<()> {
        let mut refused = None;
        for (link, life) in resolved.offered.clone() {
            let fetched = match self.read_again(link, life) {
                // The index tells keys apart by few bits: one that is none of this key's would be lost to its own.
                Err(error) if self.is_lost(&error) => {
                    resolved.collides = true;
                    match self.noted_at(link) {
                        Ok(Some(noted)) if spread(noted.hash) != hash => {}
                        Ok(Some(_)) if resolved.unread.is_none() => resolved.unread = Some(link),
                        // Nobody can say whose it is.
                        Ok(_) => refused = Some(error),
                        Err(error) => refused = Some(error),
                    }
                    continue;
                }
                Err(error) if error.is_unread() => {
                    // Another key's if this one's is found; then it may have the same hash.
                    refused = Some(error);
                    resolved.collides = true;
                    continue;
                }
                read => read?,
            };
            let record = fetched.record();
            if record.meta.kind == RecordKind::Evict {
                if evicted_hash(record.key) == hash {
                    resolved.note = Some(link);
                }
            } else if record.key == key || sites::RECORD_KEY.disabled() {
                // On damaged media there may be another one: reads take the first, too.
                if resolved.published.is_some() {
                    continue;
                }
                resolved.published = Some(link);
                // To others a value that cannot be read is there.
                let is_lost = condition == Condition::Absent
                    && self.is_valid(record.meta)
                    && self.has_lost_value(&fetched)?;
                resolved.known = Some(Known {
                    version: if is_lost { UNREAD } else { record.meta.version },
                    exists: record.meta.kind.has_value(),
                    expires_at: record.meta.expires_at,
                });
            } else if self.hash(record.key) == hash {
                // A tombstone counts: it must outlive older records of its key.
                resolved.collides = true;
            }
        }
        match refused {
            Some(error) if resolved.published.is_none() => Err(error),
            _ => Ok(()),
        }
    }

    /// Deletes everything: one record that says so (`flush_all` of memcache).
    pub(super) fn clear_records(&self) -> Result<()> {
        // Copies on their way are counted as live; nothing may be, once all is cleared.
        let mut cleaner = self.cleaner.lock();
        // From here on nobody decides on what is about to go; who did has appended.
        let _alone = self.hold_writers();
        self.append_clear(&mut cleaner)
    }

    /// Lets writers wait at a gate until what is returned goes; those that decided before have appended. Who needs the cleaner meanwhile has
    /// its lock already.
    pub(super) fn hold_writers(&self) -> Alone<'_> {
        let gate = loop {
            let mut gate = self.exclusive.gate.lock();
            match &*gate {
                Some(other) => {
                    let other = Arc::clone(other);
                    drop(gate);
                    other.wait();
                }
                None => break Arc::clone(gate.insert(Arc::new(Gate::new()))),
            }
        };
        let alone = Alone { exclusive: &self.exclusive, gate };
        // Who locks a stripe after this one passed it sees the mark.
        self.exclusive.is_on.store(true, Ordering::Release);
        self.pending.pass_all();
        alone
    }

    fn append_clear(&self, cleaner: &mut Cleaner) -> Result<()> {
        let meta = RecordMeta::new(RecordKind::Clear);
        let item = [Item { hash: 0, meta, key: &[], value: &[] }];
        while self.writes_later() {
            match self.write_later(&item, &[None])? {
                Later::Done(..) => return self.write_full(false),
                Later::Unsaid => self.say_doubt()?,
                Later::Busy => self.write_full(true)?,
                Later::Unbegun => self.begin_later()?,
                Later::NoRoom(kept) => {
                    self.write_full(false)?;
                    self.make_room_with(cleaner, kept)?;
                }
            }
        }
        loop {
            match self.append(&item)? {
                Append::Done(appended) => return self.finish(&appended),
                Append::Full(ticket) => {
                    let _ = ticket.wait();
                }
                Append::NoRoom(kept) => self.make_room_with(cleaner, kept)?,
            }
        }
    }

    /// What to wait for while somebody lets writers wait. The caller holds a stripe.
    pub(super) fn exclusive(&self) -> Option<Arc<Gate>> {
        if !self.exclusive.is_on.load(Ordering::Acquire) {
            return None;
        }
        self.exclusive.gate.lock().clone()
    }
}

/// Writers wait for who has this, however he ends.
pub(super) struct Alone<'d> {
    exclusive: &'d Exclusive,
    gate: Arc<Gate>,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.exclusive.is_on.store(false, Ordering::Release);
        *self.exclusive.gate.lock() = None;
        self.gate.open();
    }
}
