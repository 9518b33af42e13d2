//! Requests that are no units of a wave: they go alone, after everything before them.

use super::{CRLF_BYTES, End, Session};
use crate::counters::Counter;
use crate::execute::Body;
use crate::guests::Stay;
use crate::limits::{ALONE_WORK, BODY_STEP_BYTES, UNCHARGED_BYTES_MAX};
use crate::patience::{Progress, patiently};
use crate::protocol::{CRLF, DetailRequest, Request, ShutdownMode, StoreRequest, Then, line};
use crate::transport::Transport;
use crate::watch::StoreStatus;
use std::io::{ErrorKind as IoErrorKind, Result as IoResult};

impl<T: Transport> Session<T> {
    /// Runs a request that goes alone; says how the connection ends, if it does.
    pub(super) fn run_alone(&mut self, request: Request) -> IoResult<Option<End>> {
        esker_trt::work(ALONE_WORK);
        self.work();
        self.note_request();
        match request {
            Request::Store(store) if store.length > self.shared.limits.item_size_max_bytes => {
                let whole = store.length.saturating_add(CRLF_BYTES as u64);
                self.refuse(&store, StoreStatus::TooLarge, line::TOO_LARGE, whole)?;
            }
            Request::Store(store) => self.store_large(&store)?,
            Request::Stats { section } => {
                let section = section.of(self.received.all()).to_vec();
                match section.as_slice() {
                    b"conns" => self.tell_connections()?,
                    section => self.shared.stats(section, &mut self.output),
                }
            }
            Request::Detail(detail) => self.detail(detail)?,
            Request::Dump(dump) => self.dump(dump)?,
            Request::Watch(kinds) => return self.watch(kinds),
            Request::FlushAll { delay, noreply } => {
                let line = self.shared.flush_all(self.core, delay);
                if !noreply {
                    self.output.push(line);
                }
            }
            Request::Refused(refusal) => {
                self.output.push(refusal.line);
                match refusal.then {
                    Then::Continue => {}
                    Then::Swallow(bytes) => self.swallow(bytes)?,
                    Then::Close => return Ok(Some(End::Refused)),
                }
            }
            Request::Quit => return Ok(Some(End::Quit)),
            Request::Shutdown(mode) => return Ok(self.shut_down(mode)),
            Request::Get { .. }
            | Request::Delete { .. }
            | Request::Touch { .. }
            | Request::Arithmetic { .. }
            | Request::Meta { .. }
            | Request::MetaNoop
            | Request::MemoryLimit { .. }
            | Request::Version
            | Request::Verbosity { .. } => {}
        }
        Ok(None)
    }

    /// A storage command that is not done, with `rest` bytes of its data block still in the stream.
    fn refuse(
        &mut self,
        store: &StoreRequest,
        why: StoreStatus,
        line: &'static [u8],
        rest: u64,
    ) -> IoResult<()> {
        let counter = match why {
            StoreStatus::TooLarge => Counter::StoreTooLarge,
            _ => Counter::StoreNoMemory,
        };
        self.count(counter, 1);
        let unit = self.store_unit(store, Some(Body::Owned(Vec::new())));
        self.refused(&unit, why);
        if !store.noreply {
            self.output.push(line);
        }
        self.swallow(rest)
    }

    /// A data block that did not come whole with its command: it is received into a buffer of its
    /// own, which grows by what came (N3).
    fn store_large(&mut self, store: &StoreRequest) -> IoResult<()> {
        self.flush()?;
        self.note_waiting(true);
        let length = usize::try_from(store.length).unwrap_or(usize::MAX);
        let whole = length.saturating_add(CRLF_BYTES);
        let mut share = self.shared.body_share();
        let mut body = Vec::new();
        let mut progress = Progress::receiving(&self.shared);
        let mut received = 0;
        while received < whole {
            if received == body.len() {
                let step = BODY_STEP_BYTES.min(whole - received);
                if !share.try_grow(step as u64) {
                    drop((body, share));
                    return self.refuse_memory(store, whole - received);
                }
                body.resize(received + step, 0);
            }
            let room = body.get_mut(received..).unwrap_or_default();
            let pending = self.received.pending();
            let taken = if pending.is_empty() {
                let connection = &mut self.connection;
                let read = |limit| connection.read(room, Some(limit));
                let taken = patiently(&self.shared, &progress, read)?;
                self.count(Counter::BytesRead, taken as u64);
                if taken == 0 {
                    return Err(IoErrorKind::UnexpectedEof.into());
                }
                taken
            } else {
                let taken = pending.len().min(room.len());
                for (to, from) in room.iter_mut().zip(pending) {
                    *to = *from;
                }
                self.received.consume(taken);
                taken
            };
            received += taken;
            progress.add(&self.shared, taken);
        }
        self.note_waiting(false);
        let ends_well = body.ends_with(CRLF);
        body.truncate(length);
        let mut unit = self.store_unit(store, ends_well.then_some(Body::Owned(body)));
        if unit.action.reads() {
            // No waiting here: the body's own share is held.
            unit.share = self.shared.budget.try_take(self.bytes_held(&unit));
            if unit.share.is_none() {
                drop((unit, share));
                return self.refuse_memory(store, 0);
            }
        }
        self.shared.flush_if_due(self.core);
        let (unit, answer) = self.run_here(unit);
        self.reply(unit, answer);
        drop(share);
        Ok(())
    }

    fn refuse_memory(&mut self, store: &StoreRequest, rest: usize) -> IoResult<()> {
        self.refuse(store, StoreStatus::NoMemory, line::NO_MEMORY, rest as u64)
    }

    /// `stats conns`: those who listen, and those who are there.
    fn tell_connections(&mut self) -> IoResult<()> {
        self.shared.tell_listeners(&mut self.output);
        let asks = self.stay.as_ref().map(Stay::number);
        for (number, guest) in self.shared.guests.all() {
            let asks = asks == Some(number);
            self.shared.tell_guest(number, &guest, asks, &mut self.output);
            if self.output.uncharged_bytes() >= UNCHARGED_BYTES_MAX {
                self.flush()?;
            }
        }
        self.output.push(line::END);
        Ok(())
    }

    /// `stats detail`.
    fn detail(&mut self, request: DetailRequest) -> IoResult<()> {
        let on = match request {
            DetailRequest::On => true,
            DetailRequest::Off => false,
            DetailRequest::Dump => return self.tell_prefixes(),
        };
        self.shared.prefixes.turn(on);
        self.output.push(line::OK);
        Ok(())
    }

    fn tell_prefixes(&mut self) -> IoResult<()> {
        let mut last = None;
        loop {
            last = self.shared.prefixes.list(last, UNCHARGED_BYTES_MAX, &mut self.output);
            if last.is_none() {
                self.output.push(line::END);
                return Ok(());
            }
            self.flush()?;
        }
    }

    /// `shutdown`; says how the connection ends, if it does.
    fn shut_down(&mut self, mode: ShutdownMode) -> Option<End> {
        match (&self.shared.on_shutdown, mode) {
            (None, _) => self.output.push(line::SHUTDOWN_DISABLED),
            (Some(_), ShutdownMode::Invalid) => self.output.push(line::BAD_SHUTDOWN),
            (Some(hook), ShutdownMode::Now | ShutdownMode::Graceful) => {
                tracing::info!("a client asks for the end of the server");
                hook.call();
                return Some(End::Shutdown);
            }
        }
        None
    }
}
