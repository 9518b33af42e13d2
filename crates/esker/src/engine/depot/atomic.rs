//! Atomic batches: several keys in one batch of the log.
//!
//! A batch of the log is whole after a crash or not there, so records that stand side by side in one
//! are all or nothing. The writer learns what it must know of every key, locks the stripes of all of
//! them in order, and appends. Where others keep writing these keys, something of it has always changed by then: after a few tries they wait.

use super::Depot;
use super::commit::{Append, Item};
use super::extents::Building;
use super::pending::{Known, Stripes};
use super::write::{Alone, Resolved, STATE_MASK, Start};
use crate::batch::{Batch, Change};
use crate::value::Condition;
use esker_base::Result;
use esker_base::ids::Version;
use esker_format::depot::{LARGE_VALUE_SIZE, RecordKind, RecordMeta};
use esker_index::Link;
use std::collections::HashMap;

/// Tries before others wait: each reads what the batch must know of its keys anew.
const TRIES: u32 = 4;

/// One key of the batch.
struct Part<'a> {
    hash: u64,
    key: &'a [u8],
    change: Change<'a>,
    /// The value's extents, if it is large, and what the record says of them.
    large: Option<(Building<'a>, [u8; LARGE_VALUE_SIZE])>,
}

impl Depot {
    pub(super) fn write_atomic(&self, batch: &Batch) -> Result<Version> {
        let mut parts: Vec<Part<'_>> = Vec::with_capacity(batch.len());
        let mut places: HashMap<&[u8], usize> = HashMap::with_capacity(batch.len());
        for (key, change) in batch.changes() {
            self.check_key(key)?;
            match places.get(key).and_then(|place| parts.get_mut(*place)) {
                Some(earlier) => earlier.change = change,
                None => {
                    places.insert(key, parts.len());
                    parts.push(Part { hash: self.hash(key), key, change, large: None });
                }
            }
        }
        self.log.refuse()?;
        self.check_parts(&parts)?;
        let (mut tries, mut alone) = (0_u32, None);
        loop {
            self.write_large_parts(&mut parts)?;
            if tries >= TRIES && alone.is_none() {
                alone = Some(self.hold_writers());
            }
            if let Some(version) = self.try_write_atomic(&parts, &mut alone)? {
                return Ok(version);
            }
            tries = tries.saturating_add(1);
        }
    }

    /// Refuses a batch that finds no room, before extents are written, and in a cache others evicted for them.
    fn check_parts(&self, parts: &[Part<'_>]) -> Result<()> {
        let values = parts.iter().filter_map(|part| match part.change {
            Change::Put(value, _) if self.is_large(part.key, value) => Some(value.len() as u64),
            _ => None,
        });
        let bytes: u64 = values.sum();
        if bytes == 0 {
            return Ok(());
        }
        self.check_room_for_large(bytes)?;
        const HEAD: &[u8] = &[0; LARGE_VALUE_SIZE];
        let items = parts.iter().map(|part| {
            let (kind, value) = match part.change {
                Change::Put(value, _) if self.is_large(part.key, value) => {
                    (RecordKind::Large, HEAD)
                }
                Change::Put(value, _) => (RecordKind::Put, value),
                Change::Delete => (RecordKind::Delete, &[][..]),
            };
            Item { hash: part.hash, meta: RecordMeta::new(kind), key: part.key, value }
        });
        self.check_batch(&items.collect::<Vec<_>>())
    }

    /// Writes the extents of large values, again if they were cleared away.
    fn write_large_parts<'a>(&'a self, parts: &mut [Part<'a>]) -> Result<()> {
        for part in parts {
            let there = part.large.as_ref().is_some_and(|(building, _)| building.is_there());
            if let Change::Put(value, _) = part.change
                && self.is_large(part.key, value)
                && !there
            {
                part.large = Some(self.write_extents(part.hash, value)?);
            }
        }
        Ok(())
    }

    /// `None`: something changed meanwhile, come again. While it waits for room nobody waits for it.
    fn try_write_atomic(
        &self,
        parts: &[Part<'_>],
        alone: &mut Option<Alone<'_>>,
    ) -> Result<Option<Version>> {
        let mut resolved = Vec::with_capacity(parts.len());
        for part in parts {
            let pending = self.pending.lock(part.hash).find(part.hash, part.key).is_some();
            resolved.push(match pending {
                true => None,
                false => Some(self.resolve(part.hash, part.key, Condition::Always)?),
            });
        }
        let mut stripes = self.pending.lock_all(parts.iter().map(|part| part.hash));
        if alone.is_none()
            && let Some(gate) = self.exclusive()
        {
            drop(stripes);
            gate.wait();
            return Ok(None);
        }
        let gone =
            |part: &Part<'_>| part.large.as_ref().is_some_and(|(building, _)| !building.is_there());
        if parts.iter().any(gone) {
            // To write extents anew takes room.
            *alone = None;
            return Ok(None);
        }
        let mut alike: HashMap<u64, u32> = HashMap::with_capacity(parts.len());
        parts.iter().for_each(|part| *alike.entry(part.hash).or_default() += 1);
        let mut items = Vec::with_capacity(parts.len());
        let mut published: Vec<Option<Link>> = Vec::with_capacity(parts.len());
        for (part, resolved) in parts.iter().zip(&resolved) {
            let alike = alike.get(&part.hash).copied().unwrap_or(0) > 1;
            let Some((start, is_pending)) = start_of(self, &mut stripes, part, resolved, alike)
            else {
                return Ok(None);
            };
            let (kind, value, attributes) = match part.change {
                Change::Put(_, attributes) if let Some((_, head)) = &part.large => {
                    (RecordKind::Large, &head[..], attributes)
                }
                Change::Put(value, attributes) => (RecordKind::Put, value, attributes),
                // Nothing there, durably: nothing to delete.
                Change::Delete if start.known.is_none_or(|known| !known.exists) && !is_pending => {
                    continue;
                }
                Change::Delete => (RecordKind::Delete, &[][..], crate::Attributes::default()),
            };
            let meta = RecordMeta {
                kind,
                version: Version(0),
                flags: attributes.flags,
                expires_at: attributes.expires_at,
                state: attributes.state & STATE_MASK,
                collides: start.collides,
                replaces: start.replaces,
            };
            items.push(Item { hash: part.hash, meta, key: part.key, value });
            published.push(start.published);
        }
        if items.is_empty() {
            return Ok(Some(self.last_version()));
        }
        if self.writes_later() {
            let later = self.write_later(&items, &published)?;
            drop(stripes);
            *alone = None;
            return self.after_later(later);
        }
        let appended = match self.append(&items)? {
            Append::Done(appended) => appended,
            Append::Full(ticket) => {
                drop(stripes);
                *alone = None;
                // Its writers are told what became of it; this one just comes again.
                let _ = ticket.wait();
                return Ok(None);
            }
            Append::NoRoom(kept) => {
                drop(stripes);
                *alone = None;
                self.make_room(kept)?;
                return Ok(None);
            }
        };
        let mut version = appended.version;
        for (item, entry) in items.iter().zip(published) {
            let latest = Known {
                version,
                exists: item.meta.kind.has_value(),
                expires_at: item.meta.expires_at,
            };
            let (hash, ticket) = (item.hash, &appended.ticket);
            if let Some(stripe) = stripes.of(hash) {
                stripe.appended(hash, item.key, entry, latest, item.meta.collides, ticket);
            }
            version.0 += 1;
        }
        drop(stripes);
        *alone = None;
        self.finish(&appended)?;
        Ok(Some(Version(version.0 - 1)))
    }
}

/// What the write of a key starts from, and whether another one is under way; `None` if what was learnt holds no more. `alike`: another
/// key of the batch has its hash.
fn start_of(
    depot: &Depot,
    stripes: &mut Stripes<'_>,
    part: &Part<'_>,
    resolved: &Option<Resolved>,
    alike: bool,
) -> Option<(Start, bool)> {
    let stripe = stripes.of(part.hash)?;
    let others = stripe.collides(part.hash, part.key) || alike;
    match (stripe.find(part.hash, part.key), resolved) {
        (Some(pending), _) => Some((depot.start_behind(pending, others), true)),
        (None, Some(resolved)) if depot.still_holds(part.hash, resolved) => {
            Some((depot.start(resolved, others), false))
        }
        _ => None,
    }
}
