//! The meta commands on one key.
//!
//! What memcached changes in place (expiry, staleness, who was told to make an item anew) is a
//! conditional put here, so that of many clients exactly one wins. It gives the item a new version
//! and so a new CAS id, which is the one that the reply shows.

use super::classic::{number_text, stepped};
use super::{Answer, Arithmetic, Ground, Modified, New, Written};
use crate::access::Seen;
use crate::budget::Share;
use crate::counters::Counter;
use crate::expiry::expires_at;
use crate::item::{BINARY_KEY, Item, STALE, TOKEN_SENT};
use crate::protocol::{MetaFlags, MetaVerb, Span, StoreVerb, Tokens, is_plain, line, parse_value};
use crate::watch::StoreStatus;
use esker::{Attributes, Condition, Error, ErrorKind, Outcome, Result};

/// First word of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// `HD`, or `VA` with the value: done.
    Done,
    /// `EN`: nothing to read.
    Miss,
    /// `NF`: nothing to change.
    NotFound,
    /// `NS`: the mode does not permit it.
    NotStored,
    /// `EX`: the item has another CAS id.
    Exists,
}

impl Status {
    pub(crate) fn word(self) -> &'static [u8] {
        match self {
            Status::Done => b"HD",
            Status::Miss => b"EN",
            Status::NotFound => b"NF",
            Status::NotStored => b"NS",
            Status::Exists => b"EX",
        }
    }
}

/// What a reply can show; which part of it does is up to the flags.
#[derive(Debug)]
pub(crate) struct MetaAnswer {
    pub(crate) status: Status,
    /// The client does not want to hear it.
    pub(crate) silent: bool,
    /// The data block.
    pub(crate) block: Option<Block>,
    /// Whether the key is shown in base64.
    pub(crate) binary: bool,
    pub(crate) cas: Option<u64>,
    pub(crate) size: Option<u64>,
    pub(crate) client_flags: Option<u32>,
    /// Expiry, as it is where `t` stands among the flags that change it.
    pub(crate) expiry: Option<Option<u64>>,
    pub(crate) seen: Option<Seen>,
    pub(crate) stale: bool,
    pub(crate) sent: bool,
    pub(crate) won: bool,
}

/// A data block.
#[derive(Debug)]
pub(crate) enum Block {
    Item(Item),
    Number(u64),
    /// Of an item that was just made.
    Nothing,
}

impl MetaAnswer {
    fn of(status: Status, flags: &MetaFlags) -> MetaAnswer {
        MetaAnswer {
            status,
            silent: false,
            block: None,
            binary: flags.base64,
            cas: None,
            size: None,
            client_flags: None,
            expiry: None,
            seen: None,
            stale: false,
            sent: false,
            won: false,
        }
    }

    /// A reply that goes without saying in quiet mode.
    fn usual(mut self, flags: &MetaFlags) -> MetaAnswer {
        self.silent = flags.quiet;
        self
    }
}

/// What `me` tells of an item.
#[derive(Debug)]
pub(crate) struct MetaDebug {
    pub(crate) binary: bool,
    /// Seconds left; `None`: never ends.
    pub(crate) left_seconds: Option<u64>,
    pub(crate) seen: Seen,
    pub(crate) cas: u64,
    pub(crate) size: u64,
}

/// What a walk over the flags decides, in their order.
struct Decision {
    expires_at: Option<u64>,
    /// Where `t` stands.
    shown: Option<u64>,
    won: bool,
}

impl Ground<'_> {
    /// Runs any meta command but `ms`. `flags` are in `buffer`.
    pub(super) fn meta(
        &self,
        verb: MetaVerb,
        key: &[u8],
        flags: Span,
        buffer: &[u8],
        share: &mut Option<Share>,
    ) -> Result<Answer> {
        let read = MetaFlags::read(buffer, flags);
        match verb {
            MetaVerb::Get => self.meta_get(key, &read, flags, buffer, share),
            MetaVerb::Delete => self.meta_delete(key, &read, share),
            MetaVerb::Arithmetic => self.meta_step(key, &read, flags, buffer, share),
            MetaVerb::Debug => self.meta_debug(key, &read, share),
        }
    }

    fn meta_get(
        &self,
        key: &[u8],
        flags: &MetaFlags,
        words: Span,
        buffer: &[u8],
        share: &mut Option<Share>,
    ) -> Result<Answer> {
        let touches = flags.exptime.is_some();
        // Who lost against others begins with what they have under way: else it loses for as long as they go on.
        let mut newest = false;
        let mut makes = 0;
        for _ in 0..super::RETRIES_MAX {
            let pending = if newest { self.pending(key, share)? } else { None };
            let is_pending = pending.is_some();
            let found = if is_pending { pending } else { self.live(key, share)? };
            newest = false;
            let Some(item) = found else {
                if flags.vivify.is_some() {
                    match self.vivify(key, flags, words, buffer) {
                        Ok(Some(answer)) => return Ok(answer),
                        // Somebody else was faster: that is a hit now, or else a miss.
                        Ok(None) => {
                            makes += 1;
                            if makes < super::MAKES_MAX {
                                continue;
                            }
                        }
                        // As in memcached: a miss like any other.
                        Err(error) if takes_no_writes(&error) => self.report(&error),
                        Err(error) => return Err(error),
                    }
                }
                self.tell_get(key, None);
                self.count_get(touches, false);
                return Ok(Answer::Meta(MetaAnswer::of(Status::Miss, flags).usual(flags)));
            };
            let attributes = item.record().attributes();
            let sent = item.has(TOKEN_SENT);
            let mut decided = self.decide(attributes.expires_at, false, sent, flags, words, buffer);
            decided.won |= item.has(STALE) && !sent;
            let mut answer = MetaAnswer::of(Status::Done, flags);
            answer.cas = Some(item.cas());
            answer.expiry = Some(decided.shown);
            answer.won = decided.won;
            if touches || decided.won {
                let state =
                    if decided.won { attributes.state | TOKEN_SENT } else { attributes.state };
                let new = Attributes { expires_at: decided.expires_at, state, ..attributes };
                // A CAS id that a client chose stays: it is the version of something else.
                let explicit = item.explicit_cas();
                let condition = Condition::VersionIs(item.record().version());
                match self.put_item(key, &item, new, explicit, condition) {
                    Ok(Outcome::Stored(version)) => {
                        answer.cas = Some(explicit.unwrap_or(version.0));
                    }
                    Ok(_) => {
                        newest = true;
                        continue;
                    }
                    // Nobody wins where nothing can be noted, or stored anew; the item can be read.
                    Err(error) if !touches && takes_no_writes(&error) => {
                        self.report(&error);
                        if is_pending {
                            continue;
                        }
                        answer.won = false;
                    }
                    Err(error) => return Err(error),
                }
            } else if is_pending {
                // What is told without a write is durable.
                continue;
            }
            self.tell_get(key, Some(item.len()));
            self.count_get(touches, true);
            answer.size = Some(item.len() as u64);
            answer.client_flags = Some(attributes.flags);
            answer.seen = Some(self.seen(key));
            answer.binary = item.has(BINARY_KEY) || (flags.base64 && !is_plain(key));
            answer.stale = item.has(STALE);
            answer.sent = sent;
            if !flags.no_update {
                self.access.note(key, self.uptime, true);
            }
            // Whoever has the value that it would get does not get it.
            if flags.value && flags.cas != Some(item.cas()) {
                answer.block = Some(Block::Item(item));
            }
            return Ok(Answer::Meta(answer));
        }
        Err(Error::new(ErrorKind::Timeout, "read item").context("others kept writing the key"))
    }

    /// As memcached does: a miss is one of `get`.
    fn count_get(&self, touches: bool, hit: bool) {
        let (command, counter) = match (touches, hit) {
            (true, true) => (Counter::CmdTouch, Counter::TouchHits),
            (false, true) => (Counter::CmdGet, Counter::GetHits),
            (_, false) => (Counter::CmdGet, Counter::GetMisses),
        };
        self.counters.add(command, 1);
        self.counters.add(counter, 1);
    }

    /// Makes an empty item on a miss; `None` if there is one by now.
    fn vivify(
        &self,
        key: &[u8],
        flags: &MetaFlags,
        words: Span,
        buffer: &[u8],
    ) -> Result<Option<Answer>> {
        let decided = self.decide(None, true, false, flags, words, buffer);
        let expires_at = decided.expires_at;
        let binary = if flags.base64 { BINARY_KEY } else { 0 };
        let attributes = Attributes { flags: 0, expires_at, state: TOKEN_SENT | binary };
        let outcome = self.put_item(key, b"", attributes, flags.explicit_cas, Condition::Absent)?;
        let Outcome::Stored(version) = outcome else { return Ok(None) };
        self.stored(key);
        self.tell_get(key, None);
        self.count_get(flags.exptime.is_some(), true);
        let mut answer = MetaAnswer::of(Status::Done, flags);
        answer.cas = Some(flags.explicit_cas.unwrap_or(version.0));
        answer.expiry = Some(decided.shown);
        answer.size = Some(0);
        answer.client_flags = Some(0);
        answer.seen = Some(Seen { fetched: false, age_seconds: 0 });
        answer.won = true;
        if !flags.no_update {
            self.access.note(key, self.uptime, true);
        }
        if flags.value && flags.cas != answer.cas {
            answer.block = Some(Block::Nothing);
        }
        Ok(Some(Answer::Meta(answer)))
    }

    /// Walks over the flags: what becomes of the expiry, and whether the client wins by `R`.
    fn decide(
        &self,
        mut expires_at: Option<u64>,
        created: bool,
        sent: bool,
        flags: &MetaFlags,
        words: Span,
        buffer: &[u8],
    ) -> Decision {
        let date = |exptime| crate::expiry::expires_at(exptime, self.now);
        let (mut shown, mut won) = (expires_at, created);
        for token in Tokens::new(buffer, words) {
            match (token.of(buffer).first(), flags) {
                (Some(b'T'), MetaFlags { exptime: Some(exptime), .. }) => {
                    expires_at = date(*exptime);
                }
                (Some(b'N'), MetaFlags { vivify: Some(exptime), .. }) if created => {
                    expires_at = date(*exptime);
                }
                (Some(b'R'), MetaFlags { recache: Some(recache), .. }) if !sent && !created => {
                    // Never is later than any time; a time of 0 is none at all.
                    let bound = date(*recache).unwrap_or(0);
                    won |= expires_at.is_some_and(|date| date < bound);
                }
                (Some(b't'), _) => shown = expires_at,
                _ => {}
            }
        }
        Decision { expires_at, shown, won }
    }

    /// `ms`: what the parser has made of it, and its flags.
    pub(super) fn meta_set(
        &self,
        verb: StoreVerb,
        key: &[u8],
        value: &[u8],
        words: Span,
        buffer: &[u8],
        share: &mut Option<Share>,
    ) -> Result<Answer> {
        self.counters.add(Counter::CmdSet, 1);
        let flags = &MetaFlags::read(buffer, words);
        let state = if flags.base64 { BINARY_KEY } else { 0 };
        let attributes = Attributes {
            flags: flags.client_flags,
            expires_at: expires_at(flags.exptime.unwrap_or(0), self.now),
            state,
        };
        let simple = |condition| {
            self.tell_present(key);
            let outcome = self.put_item(key, value, attributes, flags.explicit_cas, condition)?;
            Ok::<_, Error>(match outcome {
                Outcome::Stored(version) => {
                    self.stored(key);
                    let cas = flags.explicit_cas.unwrap_or(version.0);
                    Written::Item { cas, size: value.len(), expires_at: attributes.expires_at }
                }
                _ => Written::NotStored,
            })
        };
        let written = match verb {
            StoreVerb::Set => simple(Condition::Always)?,
            StoreVerb::Add => simple(Condition::Absent)?,
            StoreVerb::Replace => simple(Condition::Present)?,
            StoreVerb::Cas => {
                let done = self.compare_and_put(
                    key,
                    flags.cas.unwrap_or(0),
                    flags.invalidate,
                    attributes,
                    value,
                    flags.explicit_cas,
                    share,
                )?;
                match done {
                    Modified::Written(old, cas) => {
                        // What an older CAS id stores is over when the item before was.
                        let is_stale = flags.cas != Some(old.cas());
                        let kept = is_stale.then(|| old.record().attributes().expires_at);
                        let expires_at = kept.unwrap_or(attributes.expires_at);
                        Written::Item { cas, size: value.len(), expires_at }
                    }
                    Modified::Missing => Written::Missing,
                    Modified::Refused => Written::Exists,
                }
            }
            StoreVerb::Append | StoreVerb::Prepend => {
                self.concatenate(verb, key, value, Some(flags), share)?
            }
        };
        self.tell_written(key, verb, &written, attributes.expires_at, value.len());
        let status = match written {
            Written::Item { .. } => Status::Done,
            Written::NotStored => Status::NotStored,
            Written::Missing => Status::NotFound,
            Written::Exists => Status::Exists,
        };
        let mut answer = MetaAnswer::of(status, flags);
        // As in memcached: a CAS id of 0 where nothing was stored.
        answer.cas = Some(0);
        if let Written::Item { cas, size, .. } = written {
            answer.cas = Some(cas);
            answer.size = Some(size as u64);
            answer = answer.usual(flags);
        }
        Ok(Answer::Meta(answer))
    }

    fn meta_delete(
        &self,
        key: &[u8],
        flags: &MetaFlags,
        share: &mut Option<Share>,
    ) -> Result<Answer> {
        let status = if flags.invalidate || flags.remove_value {
            self.invalidate(key, flags, share)?
        } else {
            self.remove(key, flags, share)?
        };
        let counter = match status {
            Status::Done if flags.invalidate => None,
            Status::Done => Some(Counter::DeleteHits),
            _ => Some(Counter::DeleteMisses),
        };
        if let Some(counter) = counter {
            self.counters.add(counter, 1);
        }
        let answer = MetaAnswer::of(status, flags);
        Ok(Answer::Meta(if status == Status::Done { answer.usual(flags) } else { answer }))
    }

    fn remove(&self, key: &[u8], flags: &MetaFlags, share: &mut Option<Share>) -> Result<Status> {
        let Some(cas) = flags.cas else {
            self.tell_present(key);
            let existed = self.store.delete(key)?;
            return Ok(if existed { Status::Done } else { Status::NotFound });
        };
        for _ in 0..super::RETRIES_MAX {
            let Some(item) = self.live(key, share)? else {
                self.tell_get(key, None);
                return Ok(Status::NotFound);
            };
            if item.cas() != cas {
                self.tell_get(key, Some(item.len()));
                return Ok(Status::Exists);
            }
            if self.store.compare_and_delete(key, item.record().version())? {
                self.tell_get(key, Some(item.len()));
                return Ok(Status::Done);
            }
        }
        Err(Error::new(ErrorKind::Timeout, "delete item").context("others kept writing the key"))
    }

    /// `md` with `I` or `x`: the item stays, and whoever reads it next is told to make it anew.
    fn invalidate(
        &self,
        key: &[u8],
        flags: &MetaFlags,
        share: &mut Option<Share>,
    ) -> Result<Status> {
        let changed = self.modify(key, share, |old| {
            if flags.cas.is_some_and(|cas| cas != old.cas()) {
                return None;
            }
            let mut attributes = old.record().attributes();
            if flags.remove_value {
                // An empty item in its place.
                let expires_at = expires_at(flags.exptime.unwrap_or(0), self.now);
                let state = attributes.state & BINARY_KEY;
                attributes = Attributes { flags: flags.client_flags, expires_at, state };
            }
            if flags.invalidate {
                attributes.state = (attributes.state | STALE) & !TOKEN_SENT;
                if let Some(exptime) = flags.exptime {
                    attributes.expires_at = expires_at(exptime, self.now);
                }
            }
            let value = if flags.remove_value { New::Given(&[]) } else { New::Same };
            // As in memcached, the empty item has the CAS id of the one before, unless that is told to be stale.
            let kept = (flags.remove_value && !flags.invalidate).then(|| old.cas());
            Some((value, attributes, flags.explicit_cas.or(kept)))
        })?;
        Ok(match changed {
            Modified::Written(..) => {
                if flags.remove_value {
                    self.stored(key);
                }
                Status::Done
            }
            Modified::Missing => Status::NotFound,
            Modified::Refused => Status::Exists,
        })
    }

    fn meta_step(
        &self,
        key: &[u8],
        flags: &MetaFlags,
        words: Span,
        buffer: &[u8],
        share: &mut Option<Share>,
    ) -> Result<Answer> {
        let down = flags.counts_down() == Some(true);
        let direction = if down { Arithmetic::Down } else { Arithmetic::Up };
        for _ in 0..super::MAKES_MAX {
            let (mut number, mut mismatch) = (0, false);
            let mut shown = None;
            let changed = self.modify(key, share, |old| {
                // In this order: an empty value is no number whatever its CAS id is.
                mismatch =
                    !old.is_empty() && flags.cas.is_some_and(|cas| cas != 0 && cas != old.cas());
                if mismatch {
                    return None;
                }
                number = direction.step(parse_value(old)?, flags.delta.unwrap_or(1));
                let mut attributes = stepped(number, old);
                let before = attributes.expires_at;
                let decided = self.decide(before, false, true, flags, words, buffer);
                (attributes.expires_at, shown) = (decided.expires_at, decided.shown);
                Some((New::Made(number_text(number, old)), attributes, flags.explicit_cas))
            })?;
            let makes = flags.vivify.is_some() && matches!(changed, Modified::Missing);
            if !makes {
                // An item that is made is no miss.
                self.note_step(key, number, direction, &changed);
            }
            let mut answer = MetaAnswer::of(Status::Done, flags);
            match changed {
                Modified::Written(_, cas) => {
                    answer = answer.usual(flags);
                    answer.cas = Some(cas);
                }
                Modified::Missing => {
                    if flags.vivify.is_none() {
                        return Ok(Answer::Meta(MetaAnswer::of(Status::NotFound, flags)));
                    }
                    number = flags.initial;
                    let decided = self.decide(None, true, true, flags, words, buffer);
                    shown = decided.shown;
                    let state = if flags.base64 { BINARY_KEY } else { 0 };
                    let attributes = Attributes { flags: 0, expires_at: decided.expires_at, state };
                    let text = number_text(number, b"");
                    let put = self.put_item(
                        key,
                        &text,
                        attributes,
                        flags.explicit_cas,
                        Condition::Absent,
                    );
                    let Outcome::Stored(version) = put? else { continue };
                    self.stored(key);
                    // As in memcached, where it is an `add` whose item gets its time afterwards.
                    self.tell_get(key, None);
                    let (verb, stored) = (StoreVerb::Add, StoreStatus::Stored);
                    self.tell_store(key, verb, stored, None, text.len());
                    answer.cas = Some(flags.explicit_cas.unwrap_or(version.0));
                }
                Modified::Refused if mismatch => {
                    return Ok(Answer::Meta(MetaAnswer::of(Status::Exists, flags)));
                }
                Modified::Refused => return Ok(Answer::Line(line::NOT_A_NUMBER)),
            }
            answer.expiry = Some(shown);
            answer.block = flags.value.then_some(Block::Number(number));
            return Ok(Answer::Meta(answer));
        }
        Ok(Answer::Meta(MetaAnswer::of(Status::NotStored, flags)))
    }

    fn meta_debug(
        &self,
        key: &[u8],
        flags: &MetaFlags,
        share: &mut Option<Share>,
    ) -> Result<Answer> {
        self.counters.add(Counter::CmdMeta, 1);
        let item = self.live(key, share)?;
        self.tell_get(key, item.as_ref().map(|item| item.len()));
        let Some(item) = item else { return Ok(Answer::Line(line::META_MISS)) };
        let left = |date: u64| date.saturating_sub(self.now);
        Ok(Answer::Debug(MetaDebug {
            binary: item.has(BINARY_KEY) || (flags.base64 && !is_plain(key)),
            left_seconds: item.record().attributes().expires_at.map(left),
            seen: self.seen(key),
            cas: item.cas(),
            size: item.record().memory_bytes(),
        }))
    }

    /// What is known of the last access; if nothing is, it was before the server began.
    pub(crate) fn seen(&self, key: &[u8]) -> Seen {
        let unknown = Seen { fetched: false, age_seconds: self.uptime };
        self.access.seen(key, self.uptime).unwrap_or(unknown)
    }
}

/// Whether a write was refused because the store takes none now, so that nothing has changed.
fn takes_no_writes(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::ReadOnly)
}
