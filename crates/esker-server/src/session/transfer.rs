//! The bytes of a connection: receiving, sending, and how long either may take.

use super::{End, Session};
use crate::counters::Counter;
use crate::limits::{RECEIVE_BYTES_MAX, RECEIVE_BYTES_MIN};
use crate::patience::{Progress, patience, patiently};
use crate::protocol::{GET_LINE_BYTES_MAX, line};
use crate::transport::Transport;
use std::io::{ErrorKind as IoErrorKind, Result as IoResult};

impl<T: Transport> Session<T> {
    /// Receives something, or says who ended the connection.
    pub(super) fn receive(&mut self) -> IoResult<Option<End>> {
        let patience = patience(&self.shared, self.shared.limits.idle_timeout, self.to_say);
        if patience.is_some_and(|patience| patience.is_zero()) {
            return Ok(Some(End::Silence));
        }
        if self.received.pending().is_empty() {
            self.partial = None;
            self.shrink();
        } else if self.partial.is_none() {
            self.partial = Some(Progress::receiving_line(&self.shared).until(self.to_say));
        }
        self.note_waiting(self.partial.is_some());
        let mut capacity = self.received.capacity();
        if let Some(wanted) = self.received.wanted_capacity() {
            let wanted = wanted.min(GET_LINE_BYTES_MAX.saturating_mul(2));
            let full = self.received.pending().len() == capacity;
            if self.grow_share(capacity, wanted) {
                capacity = wanted;
            } else if full && !self.crowded {
                // A data block may go on in a buffer of its own, or be refused there.
                self.crowded = true;
                return Ok(None);
            } else if full {
                self.output.push(line::NO_MEMORY_GET);
                self.flush()?;
                return Ok(Some(End::Refused));
            }
        }
        let room = self.received.make_room(capacity);
        let connection = &mut self.connection;
        let count = if let Some(partial) = &mut self.partial {
            let read = |limit| connection.read(room, Some(limit));
            match patiently(&self.shared, partial, read) {
                Err(error)
                    if error.kind() == IoErrorKind::TimedOut && partial.is_idle(&self.shared) =>
                {
                    return Ok(Some(End::Silence));
                }
                read => {
                    let count = read?;
                    partial.add(&self.shared, count);
                    count
                }
            }
        } else {
            match connection.read(room, patience) {
                Err(error) if error.kind() == IoErrorKind::TimedOut => {
                    return Ok(Some(End::Silence));
                }
                read => read?,
            }
        };
        self.received.filled(count);
        self.count(Counter::BytesRead, count as u64);
        if count > 0 {
            self.work();
        }
        Ok((count == 0).then_some(End::Client))
    }

    /// Makes the receive buffer as small as at the begin, if nothing is in it.
    pub(super) fn shrink(&mut self) {
        if self.received.shrink() {
            self.share.shrink_to(RECEIVE_BYTES_MIN as u64);
            self.long_line.shrink_to(0);
        }
    }

    /// Takes memory for a larger receive buffer; says whether there was some. What is longer than usual counts as a data block
    /// that arrives: lines that stand still are to leave as much to others.
    fn grow_share(&mut self, capacity: usize, wanted: usize) -> bool {
        let usual = capacity.max(RECEIVE_BYTES_MAX);
        let long = self.long_line.bytes();
        if !self.long_line.try_grow(wanted.saturating_sub(usual) as u64) {
            return false;
        }
        let grown = self.share.try_grow(wanted.saturating_sub(capacity) as u64);
        if !grown {
            self.long_line.shrink_to(long);
        }
        grown
    }

    /// Takes `bytes` from the stream and drops them.
    pub(super) fn swallow(&mut self, bytes: u64) -> IoResult<()> {
        self.flush()?;
        self.note_waiting(true);
        let mut rest = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut progress = Progress::receiving(&self.shared);
        loop {
            let pending = self.received.pending().len().min(rest);
            self.received.consume(pending);
            rest = rest.saturating_sub(pending);
            if rest == 0 {
                return Ok(());
            }
            let room = self.received.make_room(0);
            let connection = &mut self.connection;
            let read = |limit| connection.read(room, Some(limit));
            let count = patiently(&self.shared, &progress, read)?;
            if count == 0 {
                return Err(IoErrorKind::UnexpectedEof.into());
            }
            self.received.filled(count);
            self.count(Counter::BytesRead, count as u64);
            progress.add(&self.shared, count);
        }
    }

    /// Sends all replies. A client that takes too little for too long is cut off.
    pub(super) fn flush(&mut self) -> IoResult<()> {
        if self.output.is_empty() {
            return Ok(());
        }
        self.flush_by(&mut Progress::sending(&self.shared).until(self.to_say))
    }

    /// The same, of a client with this progress, and what is held back as well.
    pub(super) fn flush_by(&mut self, progress: &mut Progress) -> IoResult<()> {
        let (connection, shared) = (&mut self.connection, &self.shared);
        let sent = self.output.send(|slices| {
            let write = |limit| connection.write_vectored(slices, Some(limit));
            let taken = patiently(shared, progress, write)?;
            progress.add(shared, taken);
            Ok(taken)
        })?;
        if connection.holds_back() {
            patiently(shared, progress, |limit| connection.flush(limit))?;
        }
        if let Some(share) = self.output.take_sent() {
            self.put_share(share);
        }
        self.count(Counter::BytesWritten, sent as u64);
        Ok(())
    }
}
