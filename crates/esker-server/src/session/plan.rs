//! From received bytes to units: what runs next, and whether it may run beside the others.

use super::{CRLF_BYTES, Listing, Pause, Session};
use crate::budget::Share;
use crate::counters::Counter;
use crate::execute::{Action, Body, Unit, unit_key};
use crate::limits::{INLINE_BODY_BYTES_MAX, OUTPUT_BYTES_MAX, PIPELINE_DEPTH};
use crate::prefixes::Use;
use crate::protocol::{
    CRLF, MetaFlags, MetaVerb, Parsed, Request, Span, StoreRequest, Then, Tokens, line,
};
use crate::transport::Transport;
use crate::watch::StoreStatus;

/// Units from which on it pays to ask for the places of all their keys before the first is looked up.
const PREFETCH_MIN: usize = 4;

impl<T: Transport> Session<T> {
    /// Fills the wave from the receive buffer. The wave is empty before.
    pub(super) fn plan(&mut self) -> Pause {
        if self.to_say.is_some()
            && let Some(pause) = self.authenticate()
        {
            return pause;
        }
        loop {
            let parsed = self.parse_ahead();
            while let Some(unit) = self.ahead.pop_front() {
                // Of a request whose reply has ended in an error nothing more is done.
                if self.broken == Some(unit.request) {
                    continue;
                }
                if let Err(unit) = self.admit(unit) {
                    self.ahead.push_front(unit);
                    // In an empty wave there is nothing to wait for but memory.
                    return if self.wave.is_empty() { Pause::Starve } else { Pause::Run };
                }
            }
            if let Some(request) = self.alone.take() {
                return Pause::Alone(request);
            }
            if let Some(pause) = parsed {
                return pause;
            }
            if self.wave.len() >= PIPELINE_DEPTH {
                return Pause::Run;
            }
        }
    }

    /// Makes units of what came, as many as a wave takes, and asks for their keys' places in the index all at once. Says
    /// why no more can be made, if that is not for a request that goes alone.
    fn parse_ahead(&mut self) -> Option<Pause> {
        let known = self.ahead.len();
        let pause = loop {
            if self.ahead.len().saturating_add(self.wave.len()) >= PIPELINE_DEPTH
                || self.alone.is_some()
            {
                break None;
            }
            let ended = self.broken;
            let unit = if let Some(listing) =
                self.listing.take().filter(|listing| ended != Some(listing.request))
            {
                self.next_of(listing)
            } else {
                match self.parser.next(self.received.pending()) {
                    Parsed::Incomplete => break Some(Pause::Receive),
                    Parsed::Request(request, consumed) => match self.accept(request, consumed) {
                        Ok(unit) => unit,
                        Err(Pause::Alone(request)) => {
                            self.alone = Some(request);
                            break None;
                        }
                        Err(pause) => break Some(pause),
                    },
                }
            };
            self.ahead.push_back(unit);
        };
        let parsed = self.ahead.range(known..);
        if parsed.len() >= PREFETCH_MIN {
            let received = self.received.all();
            // Few keys are in base64.
            let plain = parsed.filter(|unit| !unit.key.is_empty() && !unit.action.is_encoded());
            self.shared.store.prefetch(plain.map(|unit| unit.key.of(received)));
        }
        pause
    }

    /// Turns a request into its first unit.
    fn accept(&mut self, request: Request, consumed: usize) -> Result<Unit, Pause> {
        let base = self.received.position();
        if let Request::Store(store) = request {
            return self.accept_store(store, consumed);
        }
        self.received.consume(consumed);
        let number = self.begin_request();
        let unit = |key: Span, action, noreply| Unit {
            key: key.shifted(base),
            action,
            noreply,
            request: number,
            ends: false,
            share: None,
            hash: None,
        };
        let say = |line, noreply| unit(Span::default(), Action::Say(line), noreply);
        Ok(match request {
            Request::Get { with_cas, exptime, keys } => {
                let keys = keys.shifted(base);
                self.next_of(Listing { keys, with_cas, exptime, request: number })
            }
            Request::Delete { key, noreply } => unit(key, Action::Delete, noreply),
            Request::Touch { key, exptime, noreply } => {
                unit(key, Action::Touch { exptime }, noreply)
            }
            Request::Arithmetic { direction, key, delta, noreply } => {
                unit(key, Action::Step { direction, delta }, noreply)
            }
            Request::Meta { verb, key, flags } => {
                let base64 = MetaFlags::read(self.received.all(), flags.shifted(base)).base64;
                let action = Action::Meta { verb, flags: flags.shifted(base), base64 };
                unit(key, action, false)
            }
            Request::MetaNoop => say(line::META_NOOP, false),
            Request::MemoryLimit { mebibytes, noreply } => {
                say(self.shared.memory_limit(mebibytes), noreply)
            }
            Request::Version => say(crate::VERSION_LINE, false),
            Request::Verbosity { noreply } => say(line::OK, noreply),
            Request::Refused(refusal) if refusal.then == Then::Continue => say(refusal.line, false),
            Request::Stats { section } => {
                return Err(Pause::Alone(Request::Stats { section: section.shifted(base) }));
            }
            other => return Err(Pause::Alone(other)),
        })
    }

    /// Numbers the request that begins here: the client made progress.
    pub(super) fn begin_request(&mut self) -> u64 {
        (self.partial, self.crowded) = (None, false);
        self.requests = self.requests.wrapping_add(1);
        self.requests
    }

    /// A storage command whose data block came with it; anything else goes alone.
    fn accept_store(&mut self, store: StoreRequest, consumed: usize) -> Result<Unit, Pause> {
        let base = self.received.position();
        let meta = store.meta.map(|flags| flags.shifted(base));
        let alone = StoreRequest { key: store.key.shifted(base), meta, ..store };
        let length = usize::try_from(store.length).unwrap_or(usize::MAX);
        let block = self.received.pending().get(consumed..).unwrap_or_default();
        let complete = block.len() >= length.saturating_add(CRLF_BYTES);
        let ends_well = block.get(length..).is_some_and(|rest| rest.starts_with(CRLF));
        let fits = store.length <= self.shared.limits.item_size_max_bytes;
        if fits && !complete && length <= INLINE_BODY_BYTES_MAX && !self.crowded {
            return Err(Pause::Receive);
        }
        self.begin_request();
        if store.meta.is_none() {
            // As in memcached: whatever becomes of it.
            self.shared.prefixes.note(alone.key.of(self.received.all()), Use::Set);
        }
        if !fits || !complete {
            self.received.consume(consumed);
            return Err(Pause::Alone(Request::Store(alone)));
        }
        let start = base.saturating_add(consumed);
        let body = Body::Inline(Span::new(start, start.saturating_add(length)));
        self.received.consume(consumed.saturating_add(length).saturating_add(CRLF_BYTES));
        Ok(self.store_unit(&alone, ends_well.then_some(body)))
    }

    /// The unit of a storage command; without a body, its data block was malformed.
    pub(super) fn store_unit(&self, store: &StoreRequest, body: Option<Body>) -> Unit {
        let StoreRequest { verb, key, flags, exptime, cas, noreply, .. } = *store;
        let action = match (body, store.meta) {
            (Some(body), None) => Action::Put { verb, flags, exptime, cas, body },
            (Some(body), Some(flags)) => {
                let base64 = MetaFlags::read(self.received.all(), flags).base64;
                Action::MetaPut { verb, flags, base64, body }
            }
            (None, _) => {
                self.count(Counter::CmdSet, 1);
                Action::Say(line::BAD_CHUNK)
            }
        };
        Unit { key, action, noreply, request: self.requests, ends: false, share: None, hash: None }
    }

    /// The unit of the next key of a `get` line.
    fn next_of(&mut self, listing: Listing) -> Unit {
        let Listing { keys, with_cas, exptime, request } = listing;
        let (key, rest, ends) = {
            let mut tokens = Tokens::new(self.received.all(), keys);
            let key = tokens.next();
            (key, tokens.rest(), tokens.next().is_none())
        };
        if !ends {
            self.listing = Some(Listing { keys: rest, ..listing });
        }
        match key {
            Some(key) => {
                let action = Action::Get { with_cas, exptime };
                Unit { key, action, noreply: false, request, ends, share: None, hash: None }
            }
            // `gat` with a time and nothing else.
            None => {
                let (key, action) = (Span::default(), Action::Say(b""));
                Unit { key, action, noreply: false, request, ends, share: None, hash: None }
            }
        }
    }

    /// Takes the unit into the wave, or gives it back if it has to wait for the wave to end.
    fn admit(&mut self, mut unit: Unit) -> Result<(), Unit> {
        if !matches!(unit.action, Action::Say(_)) {
            if unit.action.is_encoded() && unit.hash.is_none() {
                unit.hash = Some(self.hash_of(&unit));
            }
            let conflicts = self.wave.iter().any(|other| {
                (unit.action.writes() || other.action.writes())
                    && !matches!(other.action, Action::Say(_))
                    && self.may_be_one_key(&unit, other)
            });
            if conflicts {
                // Keeps its share, if it has one: it runs next.
                return Err(unit);
            }
        }
        if unit.share.is_none() && unit.action.reads() {
            let bytes = self.bytes_held(&unit);
            if self.wave_bytes > 0 && self.wave_bytes.saturating_add(bytes) > OUTPUT_BYTES_MAX {
                return Err(unit);
            }
            match self.take_share(bytes) {
                Some(share) => unit.share = Some(share),
                None => return Err(unit),
            }
        }
        let bytes = unit.share.as_ref().map_or(0, Share::bytes);
        self.wave_bytes = self.wave_bytes.saturating_add(bytes);
        self.wave.push(unit);
        Ok(())
    }

    /// Whether two units may mean the same key: always, if they do. Bytes in base64 tell nothing by themselves, for many texts
    /// mean one key.
    fn may_be_one_key(&self, unit: &Unit, other: &Unit) -> bool {
        let buffer = self.received.all();
        match (unit.hash, other.hash) {
            (None, None) => unit.key.of(buffer) == other.key.of(buffer),
            (one, two) => {
                one.unwrap_or_else(|| self.hash_of(unit))
                    == two.unwrap_or_else(|| self.hash_of(other))
            }
        }
    }

    fn hash_of(&self, unit: &Unit) -> u64 {
        let mut decoded = None;
        let key = unit_key(unit.key, &unit.action, self.received.all(), &mut decoded);
        self.shared.access.hash(key)
    }

    /// Memory for values, out of the pocket if that has it.
    fn take_share(&mut self, bytes: u64) -> Option<Share> {
        if bytes <= self.pocket_bytes && self.pocket.is_none() {
            self.pocket = self.shared.budget.try_take(self.pocket_bytes);
        }
        let part = self.pocket.as_mut().and_then(|pocket| pocket.split(bytes));
        part.or_else(|| self.shared.budget.try_take(bytes))
    }

    /// Puts memory of values that were sent back into the pocket.
    pub(super) fn put_share(&mut self, share: Share) {
        let pocket = match self.pocket.take() {
            Some(mut pocket) => {
                pocket.absorb(share);
                pocket
            }
            None => share,
        };
        let pocket = self.pocket.insert(pocket);
        pocket.shrink_to(self.pocket_bytes);
    }

    /// Waits for the memory that `unit` needs; no reply is held meanwhile (N4).
    pub(super) fn endow_waiting(&mut self, mut unit: Unit) {
        let bytes = self.bytes_held(&unit);
        unit.share = self.shared.take_waiting(bytes);
        if unit.share.is_some() {
            self.ahead.push_front(unit);
            return;
        }
        self.count(Counter::StoreNoMemory, 1);
        self.refused(&unit, StoreStatus::NoMemory);
        let line = no_memory_line(&unit.action);
        if !unit.noreply && self.broken != Some(unit.request) {
            self.output.push(line);
        }
        self.broken = Some(unit.request);
    }

    /// Notes that `unit` is refused before it runs.
    pub(super) fn refused(&self, unit: &Unit, why: StoreStatus) {
        let mut decoded = None;
        let key = unit_key(unit.key, &unit.action, self.received.all(), &mut decoded);
        self.ground().refused(key, &unit.action, why);
    }

    /// The most memory that `unit` may hold besides its body: what the index says that it reads, and
    /// what it makes of that.
    pub(super) fn bytes_held(&self, unit: &Unit) -> u64 {
        let mut decoded = None;
        let key = unit_key(unit.key, &unit.action, self.received.all(), &mut decoded);
        let read = self.shared.store.read_size_bytes(key);
        let most = self.shared.limits.item_size_max_bytes;
        // The store may hold items from a time with another limit.
        read.saturating_add(unit.action.bytes_made(read, most))
    }
}

/// What a client hears that has waited too long for memory.
pub(super) fn no_memory_line(action: &Action) -> &'static [u8] {
    match action {
        Action::Get { .. } | Action::Meta { verb: MetaVerb::Get | MetaVerb::Debug, .. } => {
            line::NO_MEMORY_GET
        }
        _ => line::NO_MEMORY,
    }
}
