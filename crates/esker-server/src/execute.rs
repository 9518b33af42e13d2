//! One request on one key, on the store: what memcached's commands mean in the store's terms.
//!
//! A [`Unit`] is the part of a request that concerns one key: a `get` of ten keys is ten units.
//! Units of different keys may run at the same time; the session puts the answers in order.
//!
//! # Invariants
//! - E1: a unit changes at most its own key.
//! - E2: read-modify-write is a read and a conditional put of the version read, repeated until
//!   nobody came between.
//!
//! # Concurrency
//! Any number of units, on any core. May suspend in the store; no lock is held.
//!
//! # Failure
//! [`Answer::Failed`]: nothing happened, unless its kind says that the outcome is unknown.

use crate::budget::Share;
use crate::counters::{Counter, Shard};
use crate::errors::reply_line;
use crate::expiry::{expires_at, is_expired};
use crate::protocol::{Arithmetic, Span, StoreVerb, line, parse_value};
use esker::{
    Attributes, Condition, Error, ErrorKind, Outcome, PutOptions, Result, Store, Value, Version,
};
use std::borrow::Cow;

/// How often a read-modify-write starts over because somebody else wrote the key. Each time
/// somebody made progress; a limit all the same, so that no request runs for ever.
const RETRIES_MAX: u32 = 10_000;

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
}

impl Action {
    /// Whether the key may have another value or expiry afterwards.
    pub(crate) fn writes(&self) -> bool {
        !matches!(self, Action::Say(_) | Action::Get { exptime: None, .. })
    }

    /// Whether the action holds values besides its body.
    pub(crate) fn holds_values(&self) -> bool {
        matches!(self, Action::Get { .. }) || self.values_held() > 0
    }

    /// How many values of the largest size the action may hold besides its body. A plain `get`
    /// counts what it reads instead.
    pub(crate) fn values_held(&self) -> u64 {
        match self {
            Action::Say(_) | Action::Delete | Action::Get { exptime: None, .. } => 0,
            Action::Get { .. } | Action::Touch { .. } | Action::Step { .. } => 1,
            Action::Put { verb: StoreVerb::Append | StoreVerb::Prepend, .. } => 2,
            Action::Put { .. } => 0,
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
}

impl Unit {
    /// A unit that does nothing in the place of this one.
    pub(crate) fn blank(&self) -> Unit {
        let Unit { key, noreply, request, ends, .. } = *self;
        Unit { key, action: Action::Say(b""), noreply, request, ends, share: None }
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
        value: Value,
        cas: Option<Version>,
    },
    Failed(Error),
}

/// What units run on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ground<'a> {
    pub(crate) store: &'a Store,
    pub(crate) counters: &'a Shard,
    pub(crate) item_size_max_bytes: u64,
    /// Seconds since 1970.
    pub(crate) now: u64,
}

impl Ground<'_> {
    /// Runs `unit`, whose places are in `buffer`.
    pub(crate) fn run(&self, unit: &mut Unit, buffer: &[u8]) -> Answer {
        let key = unit.key.of(buffer);
        let answer = match &unit.action {
            Action::Say(line) => Ok(Answer::Line(line)),
            Action::Get { with_cas, exptime: None } => self.get(key, *with_cas, &mut unit.share),
            Action::Get { with_cas, exptime: Some(exptime) } => {
                self.get_and_touch(key, *exptime, *with_cas)
            }
            Action::Put { verb, flags, exptime, cas, body } => {
                let value = match body {
                    Body::Inline(span) => span.of(buffer),
                    Body::Owned(bytes) => bytes,
                };
                let flags = *flags;
                let attributes =
                    Attributes { flags, expires_at: expires_at(*exptime, self.now), state: 0 };
                self.put(*verb, key, value, attributes, Version(*cas))
            }
            Action::Delete => self.delete(key),
            Action::Touch { exptime } => self.touch(key, *exptime),
            Action::Step { direction, delta } => self.step(key, *direction, *delta),
        };
        answer.unwrap_or_else(|error| {
            self.report(&error);
            Answer::Failed(error)
        })
    }

    /// The value of `key`, unless it has expired by our clock. If it has grown since `share` was
    /// taken, so does the share.
    fn live_within(&self, key: &[u8], share: &mut Option<Share>) -> Result<Option<Value>> {
        let value = self.store.get_with(key, |bytes| {
            let Some(share) = share else { return Ok(()) };
            let more = bytes.saturating_sub(share.bytes());
            match more == 0 || share.try_grow(more) {
                true => Ok(()),
                false => Err(Error::new(ErrorKind::OutOfMemory, "read item")),
            }
        })?;
        Ok(self.unexpired(value))
    }

    /// The value of `key`, unless it has expired by our clock.
    fn live(&self, key: &[u8]) -> Result<Option<Value>> {
        Ok(self.unexpired(self.store.get(key)?))
    }

    fn unexpired(&self, value: Option<Value>) -> Option<Value> {
        value.filter(|value| {
            let expired = is_expired(value.attributes().expires_at, self.now);
            if expired {
                self.counters.add(Counter::GetExpired, 1);
            }
            !expired
        })
    }

    fn get(&self, key: &[u8], with_cas: bool, share: &mut Option<Share>) -> Result<Answer> {
        self.counters.add(Counter::CmdGet, 1);
        Ok(match self.live_within(key, share)? {
            Some(value) => {
                self.counters.add(Counter::GetHits, 1);
                let cas = with_cas.then(|| value.version());
                Answer::Value { value, cas }
            }
            None => {
                self.counters.add(Counter::GetMisses, 1);
                Answer::Miss
            }
        })
    }

    fn get_and_touch(&self, key: &[u8], exptime: i64, with_cas: bool) -> Result<Answer> {
        self.counters.add(Counter::CmdTouch, 1);
        self.counters.add(Counter::CmdGet, 1);
        Ok(match self.rewrite_expiry(key, exptime)? {
            Modified::Written(value, version) => {
                self.counters.add(Counter::TouchHits, 1);
                self.counters.add(Counter::GetHits, 1);
                Answer::Value { value, cas: with_cas.then_some(version) }
            }
            Modified::Missing | Modified::Refused => {
                self.counters.add(Counter::TouchMisses, 1);
                self.counters.add(Counter::GetMisses, 1);
                Answer::Miss
            }
        })
    }

    fn touch(&self, key: &[u8], exptime: i64) -> Result<Answer> {
        self.counters.add(Counter::CmdTouch, 1);
        Ok(match self.rewrite_expiry(key, exptime)? {
            Modified::Written(..) => {
                self.counters.add(Counter::TouchHits, 1);
                Answer::Line(line::TOUCHED)
            }
            Modified::Missing | Modified::Refused => {
                self.counters.add(Counter::TouchMisses, 1);
                Answer::Line(line::NOT_FOUND)
            }
        })
    }

    fn delete(&self, key: &[u8]) -> Result<Answer> {
        let (counter, answer) = match self.store.delete(key)? {
            true => (Counter::DeleteHits, line::DELETED),
            false => (Counter::DeleteMisses, line::NOT_FOUND),
        };
        self.counters.add(counter, 1);
        Ok(Answer::Line(answer))
    }

    fn put(
        &self,
        verb: StoreVerb,
        key: &[u8],
        value: &[u8],
        attributes: Attributes,
        cas: Version,
    ) -> Result<Answer> {
        self.counters.add(Counter::CmdSet, 1);
        let condition = match verb {
            StoreVerb::Set => Condition::Always,
            StoreVerb::Add => Condition::Absent,
            StoreVerb::Replace => Condition::Present,
            StoreVerb::Cas => Condition::VersionIs(cas),
            StoreVerb::Append => return self.concatenate(key, |old| [old, value].concat()),
            StoreVerb::Prepend => return self.concatenate(key, |old| [value, old].concat()),
        };
        let outcome = self.store.put_with(key, value, PutOptions { attributes, condition })?;
        if matches!(outcome, Outcome::Stored(_)) {
            self.counters.add(Counter::TotalItems, 1);
        }
        if verb == StoreVerb::Cas {
            let (counter, answer) = match outcome {
                Outcome::Stored(_) => (Counter::CasHits, line::STORED),
                Outcome::KeyMissing => (Counter::CasMisses, line::NOT_FOUND),
                Outcome::KeyExists | Outcome::VersionDiffers => (Counter::CasBadval, line::EXISTS),
            };
            self.counters.add(counter, 1);
            return Ok(Answer::Line(answer));
        }
        Ok(Answer::Line(match outcome {
            Outcome::Stored(_) => line::STORED,
            _ => line::NOT_STORED,
        }))
    }

    /// `append` and `prepend`: flags and expiry stay those of the present value.
    fn concatenate(&self, key: &[u8], join: impl Fn(&[u8]) -> Vec<u8>) -> Result<Answer> {
        let changed = self.modify(key, |old| {
            let new = join(old);
            let fits = new.len() as u64 <= self.item_size_max_bytes;
            fits.then(|| (Cow::Owned(new), old.attributes()))
        })?;
        Ok(Answer::Line(match changed {
            Modified::Written(..) => {
                self.counters.add(Counter::TotalItems, 1);
                line::STORED
            }
            // memcached says so, too, when the result is too large.
            Modified::Missing | Modified::Refused => line::NOT_STORED,
        }))
    }

    fn step(&self, key: &[u8], direction: Arithmetic, delta: u64) -> Result<Answer> {
        let mut number = 0;
        let changed = self.modify(key, |old| {
            let present = parse_value(old)?;
            number = match direction {
                Arithmetic::Up => present.wrapping_add(delta),
                Arithmetic::Down => present.saturating_sub(delta),
            };
            // As in memcached, the value never gets shorter: blanks fill it up.
            let width = old.len();
            Some((Cow::Owned(format!("{number:<width$}").into_bytes()), old.attributes()))
        })?;
        let (hits, misses) = match direction {
            Arithmetic::Up => (Counter::IncrHits, Counter::IncrMisses),
            Arithmetic::Down => (Counter::DecrHits, Counter::DecrMisses),
        };
        Ok(match changed {
            Modified::Written(..) => {
                self.counters.add(hits, 1);
                Answer::Number(number)
            }
            Modified::Missing => {
                self.counters.add(misses, 1);
                Answer::Line(line::NOT_FOUND)
            }
            Modified::Refused => Answer::Line(line::NOT_A_NUMBER),
        })
    }

    fn rewrite_expiry(&self, key: &[u8], exptime: i64) -> Result<Modified> {
        let expires_at = expires_at(exptime, self.now);
        self.modify(key, |old| {
            Some((Cow::Borrowed(&**old), Attributes { expires_at, ..old.attributes() }))
        })
    }

    /// Atomic read-modify-write of one key (E2).
    fn modify(
        &self,
        key: &[u8],
        mut change: impl for<'v> FnMut(&'v Value) -> Option<(Cow<'v, [u8]>, Attributes)>,
    ) -> Result<Modified> {
        for _ in 0..RETRIES_MAX {
            let Some(old) = self.live(key)? else { return Ok(Modified::Missing) };
            let Some((new, attributes)) = change(&old) else { return Ok(Modified::Refused) };
            let condition = Condition::VersionIs(old.version());
            match self.store.put_with(key, &new, PutOptions { attributes, condition })? {
                Outcome::Stored(version) => {
                    drop(new);
                    return Ok(Modified::Written(old, version));
                }
                Outcome::KeyMissing => return Ok(Modified::Missing),
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
        let earlier = self.counters.add(Counter::StoreErrors, 1);
        if earlier.wrapping_add(1).is_power_of_two() {
            tracing::warn!(failures = earlier.wrapping_add(1), "request failed: {error}");
        }
    }
}

enum Modified {
    /// The value before, and the version of the record now.
    Written(Value, Version),
    Missing,
    Refused,
}
