//! One request on one key, on the store: what memcached's commands mean in the store's terms.
//!
//! A [`Unit`] is the part of a request that concerns one key: a `get` of ten keys is ten units.
//! Units of different keys may run at the same time; the session puts the answers in order.
//!
//! # Invariants
//! - E1: a unit changes at most its own key.
//! - E2: read-modify-write is a read and a conditional put of the version read, repeated until
//!   nobody came between.
//! - E3: what a client compares is the CAS id that it was shown, which need not be the version: it is
//!   compared with the item that was read, and the version of that one is put on.
//!
//! # Concurrency
//! Any number of units, on any core. May suspend in the store; no lock is held.
//!
//! # Failure
//! [`Answer::Failed`]: nothing happened, unless its kind says that the outcome is unknown, or the store is a cache
//! ([`Ground::refused`]).

mod classic;
mod meta;
mod told;

pub(crate) use meta::{Block, MetaAnswer, MetaDebug};

use crate::access::Access;
use crate::budget::{Budget, Share};
use crate::counters::{Counter, Shard};
use crate::errors::reply_line;
use crate::expiry::{expires_at, is_expired};
use crate::item::{BINARY_KEY, CAS_BYTES, EXPLICIT_CAS, Item, STALE, TOKEN_SENT};
use crate::prefixes::Prefixes;
use crate::protocol::base64::{Decoded, decode};
use crate::protocol::{Arithmetic, MetaFlags, MetaVerb, Span, StoreVerb, WatchKinds, line};
use crate::watch::{StoreStatus, Watchers};
use esker::{Attributes, Condition, Error, ErrorKind, Outcome, PutOptions, Result, Store, Value};

/// How often a read-modify-write starts over because somebody else wrote the key. Each time
/// somebody made progress; a limit all the same, so that no request runs for ever.
const RETRIES_MAX: u32 = 10_000;

/// How often what finds no item, to make one then, is told that there is one. Of others who make it and take it away again few
/// come between so often: then the item can be neither read nor made.
const MAKES_MAX: u32 = 16;

/// More than the digits of any number.
const NUMBER_BYTES_MAX: u64 = 24;

/// Bytes of a data block.
#[derive(Debug)]
pub(crate) enum Body {
    /// In the receive buffer.
    Inline(Span),
    /// In a buffer of its own, without the end of line.
    Owned(Vec<u8>),
}

/// What is done with a key.
#[derive(Debug)]
pub(crate) enum Action {
    /// Nothing; answers this line.
    Say(&'static [u8]),
    Get {
        with_cas: bool,
        exptime: Option<i64>,
    },
    Put {
        verb: StoreVerb,
        flags: u32,
        exptime: i64,
        cas: u64,
        body: Body,
    },
    Delete,
    Touch {
        exptime: i64,
    },
    Step {
        direction: Arithmetic,
        delta: u64,
    },
    /// `mg`, `md`, `ma`, `me`.
    Meta {
        verb: MetaVerb,
        flags: Span,
        /// Whether the key is in base64.
        base64: bool,
    },
    /// `ms`.
    MetaPut {
        verb: StoreVerb,
        flags: Span,
        base64: bool,
        body: Body,
    },
}

impl Action {
    /// Whether the key may have another value or expiry afterwards.
    pub(crate) fn writes(&self) -> bool {
        !matches!(
            self,
            Action::Say(_)
                | Action::Get { exptime: None, .. }
                | Action::Meta { verb: MetaVerb::Debug, .. }
        )
    }

    /// Whether the key is written in base64, so that other bytes may mean the same key.
    pub(crate) fn is_encoded(&self) -> bool {
        matches!(self, Action::Meta { base64: true, .. } | Action::MetaPut { base64: true, .. })
    }

    /// Whether the action reads the present value.
    pub(crate) fn reads(&self) -> bool {
        use StoreVerb::{Append, Cas, Prepend};
        match self {
            Action::Say(_) | Action::Delete => false,
            Action::Get { .. } | Action::Touch { .. } | Action::Step { .. } => true,
            Action::Put { verb, .. } | Action::MetaPut { verb, .. } => {
                matches!(verb, Append | Prepend | Cas)
            }
            Action::Meta { .. } => true,
        }
    }

    /// How many bytes of a new value the action may hold besides its body and the present value, whose record has
    /// `read` bytes; values have `most` at most.
    pub(crate) fn bytes_made(&self, read: u64, most: u64) -> u64 {
        use StoreVerb::{Append, Prepend};
        match self {
            Action::Put { verb: Append | Prepend, .. }
            | Action::MetaPut { verb: Append | Prepend, .. } => most,
            // A number is as long as the one before, or as its digits.
            Action::Step { .. } | Action::Meta { verb: MetaVerb::Arithmetic, .. } => {
                read.max(NUMBER_BYTES_MAX)
            }
            _ => 0,
        }
    }
}

/// The part of a request that concerns one key.
#[derive(Debug)]
pub(crate) struct Unit {
    /// Place of the key in the receive buffer.
    pub(crate) key: Span,
    pub(crate) action: Action,
    /// Whether the client wants no reply.
    pub(crate) noreply: bool,
    /// Number of the request in its connection.
    pub(crate) request: u64,
    /// Whether the reply ends with `END`.
    pub(crate) ends: bool,
    /// Memory that the unit may use.
    pub(crate) share: Option<Share>,
    /// Hash of a key in base64, once somebody has asked for it.
    pub(crate) hash: Option<u64>,
}

impl Unit {
    /// A unit that does nothing in the place of this one.
    pub(crate) fn blank(&self) -> Unit {
        let Unit { key, noreply, request, ends, .. } = *self;
        let action = Action::Say(b"");
        Unit { key, action, noreply, request, ends, share: None, hash: None }
    }
}

/// What became of a unit.
#[derive(Debug)]
pub(crate) enum Answer {
    Line(&'static [u8]),
    Number(u64),
    Miss,
    /// A value, and its CAS id if the client wants it.
    Value {
        item: Item,
        cas: Option<u64>,
    },
    Meta(MetaAnswer),
    Debug(MetaDebug),
    Failed(Error),
}

/// What units run on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ground<'a> {
    pub(crate) store: &'a Store,
    /// Whether the store is a cache.
    pub(crate) cache: bool,
    pub(crate) counters: &'a Shard,
    pub(crate) watchers: &'a Watchers,
    /// What somebody watches.
    pub(crate) watched: WatchKinds,
    /// The number of the connection, as watchers are told it.
    pub(crate) connection: u64,
    pub(crate) access: &'a Access,
    pub(crate) prefixes: &'a Prefixes,
    pub(crate) budget: &'a Budget,
    pub(crate) item_size_max_bytes: u64,
    /// Seconds since 1970.
    pub(crate) now: u64,
    /// Seconds since the server began.
    pub(crate) uptime: u64,
}

impl Ground<'_> {
    /// Runs `unit`, whose places are in `buffer`.
    pub(crate) fn run(&self, unit: &mut Unit, buffer: &[u8]) -> Answer {
        let mut decoded = None;
        let key = unit_key(unit.key, &unit.action, buffer, &mut decoded);
        let share = &mut unit.share;
        let answer = match &unit.action {
            Action::Say(line) => Ok(Answer::Line(line)),
            Action::Get { with_cas, exptime: None } => self.get(key, *with_cas, share),
            Action::Get { with_cas, exptime: Some(exptime) } => {
                self.get_and_touch(key, *exptime, *with_cas, share)
            }
            Action::Put { verb, flags, exptime, cas, body } => {
                let flags = *flags;
                let attributes =
                    Attributes { flags, expires_at: expires_at(*exptime, self.now), state: 0 };
                self.put(*verb, key, body.bytes(buffer), attributes, *cas, share)
            }
            Action::Delete => self.delete(key),
            Action::Touch { exptime } => self.touch(key, *exptime, share),
            Action::Step { direction, delta } => self.step(key, *direction, *delta, share),
            Action::Meta { verb, flags, .. } => self.meta(*verb, key, *flags, buffer, share),
            Action::MetaPut { verb, flags, body, .. } => {
                self.meta_set(*verb, key, body.bytes(buffer), *flags, buffer, share)
            }
        };
        answer.unwrap_or_else(|error| {
            self.report(&error);
            if matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::OutOfMemory) {
                self.refused(key, &unit.action, StoreStatus::NoMemory);
            }
            Answer::Failed(error)
        })
    }

    /// Called when `action` is refused: for want of room or memory, or because the item is too large. In a cache, as in memcached,
    /// a `set` leaves no older value then, and no `ms` does: whoever sent it has a newer one. In a store a write
    /// that is refused changes nothing.
    pub(crate) fn refused(&self, key: &[u8], action: &Action, why: StoreStatus) {
        use StoreVerb::Set;
        self.tell_refused(key, action, why);
        let replaces = matches!(action, Action::Put { verb: Set, .. } | Action::MetaPut { .. });
        if self.cache && replaces {
            self.tell_present(key);
            if let Err(error) = self.store.delete(key) {
                self.report(&error);
            }
        }
    }

    /// The item of `key`, unless it has expired by our clock. If it has grown since `share` was
    /// taken, so does the share.
    pub(crate) fn live(&self, key: &[u8], share: &mut Option<Share>) -> Result<Option<Item>> {
        let item = self.unless_expired(self.store.get_with(key, |bytes| grow(share, bytes))?);
        if let Some(None) = item {
            self.counters.add(Counter::GetExpired, 1);
        }
        Ok(item.flatten())
    }

    /// The item that a write under way makes of `key`, if it can be had: for who writes it anew. A refusal cannot rest on it.
    fn pending(&self, key: &[u8], share: &mut Option<Share>) -> Result<Option<Item>> {
        let value = self.store.get_pending(key, |bytes| grow(share, bytes))?;
        Ok(self.unless_expired(value).flatten())
    }

    /// `Some(None)` if it has expired by our clock.
    fn unless_expired(&self, value: Option<Value>) -> Option<Option<Item>> {
        let item = Item::new(value?);
        let expired = is_expired(item.record().attributes().expires_at, self.now);
        Some((!expired).then_some(item))
    }

    /// Puts an item; with `cas`, that is its CAS id.
    fn put_item(
        &self,
        key: &[u8],
        value: &[u8],
        attributes: Attributes,
        cas: Option<u64>,
        condition: Condition,
    ) -> Result<Outcome> {
        let state = attributes.state & !EXPLICIT_CAS;
        let Some(cas) = cas else {
            let attributes = Attributes { state, ..attributes };
            return self.store.put_with(key, value, PutOptions { attributes, condition });
        };
        let length = value.len().saturating_add(CAS_BYTES);
        let room = self.budget.try_take(length as u64);
        let Some(_room) = room else { return Err(Error::new(ErrorKind::OutOfMemory, "put item")) };
        let mut longer = Vec::with_capacity(length);
        longer.extend_from_slice(value);
        longer.extend_from_slice(&cas.to_be_bytes());
        let attributes = Attributes { state: state | EXPLICIT_CAS, ..attributes };
        self.store.put_with(key, &longer, PutOptions { attributes, condition })
    }

    /// An item was stored that has nothing to do with the one before.
    pub(crate) fn stored(&self, key: &[u8]) {
        self.counters.add(Counter::TotalItems, 1);
        self.access.note(key, self.uptime, false);
    }

    /// Puts a value in the place of the one that the client saw (E3). With `invalidate` an older CAS
    /// id stores, too, what is then stale.
    #[expect(clippy::too_many_arguments, reason = "what `cas` says, and what `ms` adds to it")]
    fn compare_and_put(
        &self,
        key: &[u8],
        cas: u64,
        invalidate: bool,
        attributes: Attributes,
        value: &[u8],
        explicit: Option<u64>,
        share: &mut Option<Share>,
    ) -> Result<Modified> {
        let changed = self.modify(key, share, |old| {
            let mut attributes = attributes;
            // 0 compares with no item, not even with one that was given it (`E0`).
            if cas == 0 || cas != old.cas() {
                if !invalidate || cas == 0 || cas > old.cas() {
                    return None;
                }
                let old = old.record().attributes();
                attributes.expires_at = old.expires_at;
                attributes.state |= STALE | (old.state & TOKEN_SENT);
            }
            Some((New::Given(value), attributes, explicit))
        })?;
        let counter = match changed {
            Modified::Written(..) => {
                self.stored(key);
                Counter::CasHits
            }
            Modified::Missing => Counter::CasMisses,
            Modified::Refused => Counter::CasBadval,
        };
        self.counters.add(counter, 1);
        Ok(changed)
    }

    /// `append` and `prepend`: flags and expiry stay those of the present value. `ms` may ask for a
    /// CAS id, and for a new item on a miss.
    fn concatenate(
        &self,
        verb: StoreVerb,
        key: &[u8],
        value: &[u8],
        flags: Option<&MetaFlags>,
        share: &mut Option<Share>,
    ) -> Result<Written> {
        let asked = flags.and_then(|flags| flags.cas).filter(|cas| *cas != 0);
        let explicit = flags.and_then(|flags| flags.explicit_cas);
        for _ in 0..MAKES_MAX {
            let (mut differs, mut size) = (false, 0);
            let changed = self.modify(key, share, |old| {
                differs = asked.is_some_and(|cas| cas != old.cas());
                if differs {
                    return None;
                }
                let new = joined(verb, old, value, self.item_size_max_bytes)?;
                size = new.len();
                let mut attributes = old.record().attributes();
                attributes.state &= BINARY_KEY;
                Some((New::Made(new), attributes, explicit))
            })?;
            let vivify = flags.and_then(|flags| Some((flags, flags.vivify?)));
            return Ok(match (changed, vivify) {
                (Modified::Written(old, cas), _) => {
                    self.stored(key);
                    let expires_at = old.record().attributes().expires_at;
                    Written::Item { cas, size, expires_at }
                }
                (Modified::Missing, Some((flags, exptime))) => {
                    let attributes = Attributes {
                        flags: flags.client_flags,
                        expires_at: expires_at(exptime, self.now),
                        state: if flags.base64 { BINARY_KEY } else { 0 },
                    };
                    let put = self.put_item(key, value, attributes, explicit, Condition::Absent)?;
                    let Outcome::Stored(version) = put else { continue };
                    self.stored(key);
                    let (cas, expires_at) = (explicit.unwrap_or(version.0), attributes.expires_at);
                    Written::Item { cas, size: value.len(), expires_at }
                }
                (Modified::Refused, _) if differs => Written::Exists,
                _ => Written::NotStored,
            });
        }
        Ok(Written::NotStored)
    }

    /// Atomic read-modify-write of one key (E2): `change` makes value, attributes and CAS id. Watchers are told one lookup, however often
    /// it is made.
    fn modify<'v>(
        &self,
        key: &[u8],
        share: &mut Option<Share>,
        mut change: impl FnMut(&Item) -> Option<(New<'v>, Attributes, Option<u64>)>,
    ) -> Result<Modified> {
        let mut newest = true;
        for _ in 0..RETRIES_MAX {
            let pending = if newest { self.pending(key, share)? } else { None };
            let is_pending = pending.is_some();
            let old = if is_pending { pending } else { self.live(key, share)? };
            let Some(old) = old else {
                self.tell_get(key, None);
                return Ok(Modified::Missing);
            };
            newest = true;
            let Some((new, attributes, cas)) = change(&old) else {
                if is_pending {
                    newest = false;
                    continue;
                }
                self.tell_get(key, Some(old.len()));
                return Ok(Modified::Refused);
            };
            let condition = Condition::VersionIs(old.record().version());
            let value = match &new {
                New::Same => &*old,
                New::Made(value) => value,
                New::Given(value) => value,
            };
            match self.put_item(key, value, attributes, cas, condition)? {
                Outcome::Stored(version) => {
                    self.tell_get(key, Some(old.len()));
                    return Ok(Modified::Written(old, cas.unwrap_or(version.0)));
                }
                Outcome::KeyMissing => {
                    self.tell_get(key, None);
                    return Ok(Modified::Missing);
                }
                Outcome::KeyExists | Outcome::VersionDiffers => {}
            }
        }
        Err(Error::new(ErrorKind::Timeout, "modify item").context("others kept writing the key"))
    }

    /// Counts and logs a failure of the store; the log thins out as failures pile up.
    pub(crate) fn report(&self, error: &Error) {
        if reply_line(error.kind()) == line::NO_MEMORY {
            self.counters.add(Counter::StoreNoMemory, 1);
        }
        self.counters.add(Counter::StoreErrors, 1);
        // A client that resets the counters does not make it begin anew.
        let failures = self.counters.note_failure();
        if failures.is_power_of_two() {
            tracing::warn!(failures, "request failed: {error}");
        }
    }
}

/// Makes `share` as large as what is to be read, in bytes.
fn grow(share: &mut Option<Share>, bytes: u64) -> Result<()> {
    let Some(share) = share else { return Ok(()) };
    let more = bytes.saturating_sub(share.bytes());
    match more == 0 || share.try_grow(more) {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::OutOfMemory, "read item")),
    }
}

/// What a read-modify-write makes of a value.
enum New<'v> {
    /// What it was.
    Same,
    Made(Vec<u8>),
    Given(&'v [u8]),
}

enum Modified {
    /// The item before, and the CAS id of the one now.
    Written(Item, u64),
    Missing,
    Refused,
}

/// What became of a storage command.
enum Written {
    /// The new item.
    Item {
        cas: u64,
        size: usize,
        expires_at: Option<u64>,
    },
    NotStored,
    Missing,
    Exists,
}

/// What `append` or `prepend` makes of a value, if that has `most` bytes at most; nothing is made of what is longer.
fn joined(verb: StoreVerb, old: &[u8], value: &[u8], most: u64) -> Option<Vec<u8>> {
    let parts = if verb == StoreVerb::Prepend { [value, old] } else { [old, value] };
    let length = old.len().saturating_add(value.len()) as u64;
    (length <= most).then(|| parts.concat())
}

impl Body {
    fn bytes<'b>(&'b self, buffer: &'b [u8]) -> &'b [u8] {
        match self {
            Body::Inline(span) => span.of(buffer),
            Body::Owned(bytes) => bytes,
        }
    }
}

/// The key that a unit means; one in base64 is decoded into `decoded`.
pub(crate) fn unit_key<'k>(
    key: Span,
    action: &Action,
    buffer: &'k [u8],
    decoded: &'k mut Option<Decoded>,
) -> &'k [u8] {
    if !action.is_encoded() {
        return key.of(buffer);
    }
    // The parser has refused what is no base64.
    *decoded = decode(key.of(buffer));
    decoded.as_ref().map_or(&[], Decoded::bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_joined_up_to_the_longest_that_may_be() {
        let join = |verb, most| joined(verb, b"old", b"new", most);
        assert_eq!(join(StoreVerb::Append, 6).as_deref(), Some(&b"oldnew"[..]));
        assert_eq!(join(StoreVerb::Prepend, 6).as_deref(), Some(&b"newold"[..]));
        assert_eq!((join(StoreVerb::Append, 5), join(StoreVerb::Prepend, 0)), (None, None));
    }
}
