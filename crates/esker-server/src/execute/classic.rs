//! The classic commands on one key.

use super::{Answer, Arithmetic, Ground, Modified, New, Written};
use crate::budget::Share;
use crate::counters::Counter;
use crate::item::{BINARY_KEY, STALE, TOKEN_SENT};
use crate::prefixes::Use;
use crate::protocol::{StoreVerb, line, parse_value};
use crate::watch::StoreStatus;
use esker::{Attributes, Condition, Outcome, PutOptions, Result};

impl Ground<'_> {
    pub(super) fn get(
        &self,
        key: &[u8],
        with_cas: bool,
        share: &mut Option<Share>,
    ) -> Result<Answer> {
        self.counters.add(Counter::CmdGet, 1);
        let item = self.live(key, share)?;
        self.prefixes.note(key, Use::Get { hit: item.is_some() });
        self.tell_get(key, item.as_ref().map(|item| item.len()));
        Ok(match item {
            Some(item) => {
                self.counters.add(Counter::GetHits, 1);
                self.access.note(key, self.uptime, true);
                let cas = with_cas.then(|| item.cas());
                Answer::Value { item, cas }
            }
            None => {
                self.counters.add(Counter::GetMisses, 1);
                Answer::Miss
            }
        })
    }

    pub(super) fn get_and_touch(
        &self,
        key: &[u8],
        exptime: i64,
        with_cas: bool,
        share: &mut Option<Share>,
    ) -> Result<Answer> {
        // As in memcached: no `get` is counted, but of its prefix.
        self.counters.add(Counter::CmdTouch, 1);
        let changed = self.rewrite_expiry(key, exptime, share)?;
        let hit = matches!(changed, Modified::Written(..));
        self.prefixes.note(key, Use::Get { hit });
        Ok(match changed {
            Modified::Written(item, cas) => {
                self.counters.add(Counter::TouchHits, 1);
                self.access.note(key, self.uptime, true);
                Answer::Value { item, cas: with_cas.then_some(cas) }
            }
            Modified::Missing | Modified::Refused => {
                self.counters.add(Counter::TouchMisses, 1);
                Answer::Miss
            }
        })
    }

    pub(super) fn touch(
        &self,
        key: &[u8],
        exptime: i64,
        share: &mut Option<Share>,
    ) -> Result<Answer> {
        self.counters.add(Counter::CmdTouch, 1);
        Ok(match self.rewrite_expiry(key, exptime, share)? {
            Modified::Written(..) => {
                self.counters.add(Counter::TouchHits, 1);
                self.access.note(key, self.uptime, true);
                Answer::Line(line::TOUCHED)
            }
            Modified::Missing | Modified::Refused => {
                self.counters.add(Counter::TouchMisses, 1);
                Answer::Line(line::NOT_FOUND)
            }
        })
    }

    pub(super) fn delete(&self, key: &[u8]) -> Result<Answer> {
        self.prefixes.note(key, Use::Delete);
        self.tell_present(key);
        let (counter, answer) = match self.store.delete(key)? {
            true => (Counter::DeleteHits, line::DELETED),
            false => (Counter::DeleteMisses, line::NOT_FOUND),
        };
        self.counters.add(counter, 1);
        Ok(Answer::Line(answer))
    }

    pub(super) fn put(
        &self,
        verb: StoreVerb,
        key: &[u8],
        value: &[u8],
        attributes: Attributes,
        cas: u64,
        share: &mut Option<Share>,
    ) -> Result<Answer> {
        self.counters.add(Counter::CmdSet, 1);
        let condition = match verb {
            StoreVerb::Set => Condition::Always,
            StoreVerb::Add => Condition::Absent,
            StoreVerb::Replace => Condition::Present,
            StoreVerb::Cas => {
                let done = self.compare_and_put(key, cas, false, attributes, value, None, share)?;
                let (stored, answer) = match done {
                    Modified::Written(..) => (StoreStatus::Stored, line::STORED),
                    Modified::Missing => (StoreStatus::NotFound, line::NOT_FOUND),
                    Modified::Refused => (StoreStatus::Exists, line::EXISTS),
                };
                self.tell_store(key, verb, stored, attributes.expires_at, value.len());
                return Ok(Answer::Line(answer));
            }
            StoreVerb::Append | StoreVerb::Prepend => {
                let written = self.concatenate(verb, key, value, None, share)?;
                self.tell_written(key, verb, &written, attributes.expires_at, value.len());
                return Ok(Answer::Line(match written {
                    Written::Item { .. } => line::STORED,
                    // memcached says so, too, when the result is too large.
                    _ => line::NOT_STORED,
                }));
            }
        };
        self.tell_present(key);
        let outcome = self.store.put_with(key, value, PutOptions { attributes, condition })?;
        let (stored, answer) = match outcome {
            Outcome::Stored(_) => {
                self.stored(key);
                (StoreStatus::Stored, line::STORED)
            }
            _ => (StoreStatus::NotStored, line::NOT_STORED),
        };
        self.tell_store(key, verb, stored, attributes.expires_at, value.len());
        Ok(Answer::Line(answer))
    }

    pub(super) fn step(
        &self,
        key: &[u8],
        direction: Arithmetic,
        delta: u64,
        share: &mut Option<Share>,
    ) -> Result<Answer> {
        let mut number = 0;
        let changed = self.modify(key, share, |old| {
            number = direction.step(parse_value(old)?, delta);
            Some((New::Made(number_text(number, old)), stepped(number, old), None))
        })?;
        self.note_step(key, number, direction, &changed);
        Ok(match changed {
            Modified::Written(..) => Answer::Number(number),
            Modified::Missing => Answer::Line(line::NOT_FOUND),
            Modified::Refused => Answer::Line(line::NOT_A_NUMBER),
        })
    }

    /// Counts an attempt to make a number out of another one, and notes the new item that it is if it is longer.
    pub(super) fn note_step(
        &self,
        key: &[u8],
        number: u64,
        direction: Arithmetic,
        changed: &Modified,
    ) {
        let (hits, misses) = match direction {
            Arithmetic::Up => (Counter::IncrHits, Counter::IncrMisses),
            Arithmetic::Down => (Counter::DecrHits, Counter::DecrMisses),
        };
        match changed {
            Modified::Written(..) => self.counters.add(hits, 1),
            Modified::Missing => self.counters.add(misses, 1),
            Modified::Refused => 0,
        };
        if let Modified::Written(old, _) = changed
            && grows(number, old)
        {
            self.stored(key);
        }
    }

    fn rewrite_expiry(
        &self,
        key: &[u8],
        exptime: i64,
        share: &mut Option<Share>,
    ) -> Result<Modified> {
        let expires_at = crate::expiry::expires_at(exptime, self.now);
        self.modify(key, share, |old| {
            let attributes = Attributes { expires_at, ..old.record().attributes() };
            Some((New::Same, attributes, old.explicit_cas()))
        })
    }
}

impl Arithmetic {
    /// Up wraps around, down stops at zero.
    pub(super) fn step(self, present: u64, delta: u64) -> u64 {
        match self {
            Arithmetic::Up => present.wrapping_add(delta),
            Arithmetic::Down => present.saturating_sub(delta),
        }
    }
}

/// A number as a value. As in memcached, the value never gets shorter: blanks fill it up.
pub(super) fn number_text(number: u64, old: &[u8]) -> Vec<u8> {
    let mut text = number.to_string().into_bytes();
    text.resize(old.len().max(text.len()), b' ');
    text
}

/// Whether a number has more digits than the one before has bytes.
fn grows(number: u64, old: &[u8]) -> bool {
    number.checked_ilog10().unwrap_or(0) as usize >= old.len()
}

/// What a number keeps of its item: one that grows is a new item, which is not stale.
pub(super) fn stepped(number: u64, old: &crate::item::Item) -> Attributes {
    let attributes = old.record().attributes();
    let state = if grows(number, old) { attributes.state & BINARY_KEY } else { attributes.state };
    Attributes { state: state & (STALE | TOKEN_SENT | BINARY_KEY), ..attributes }
}
