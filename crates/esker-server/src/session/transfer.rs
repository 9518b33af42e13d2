//! The bytes of a connection: receiving, sending, and how long either may take.

use super::{End, Session};
use crate::counters::Counter;
use crate::limits::{BODY_STEP_BYTES, RECEIVE_BYTES_MIN};
use crate::patience::{patiently, remaining};
use crate::protocol::{GET_LINE_BYTES_MAX, line};
use crate::transport::Transport;
use std::io::{ErrorKind as IoErrorKind, Result as IoResult};

impl<T: Transport> Session<T> {
    /// Receives something, or says who ended the connection.
    pub(super) fn receive(&mut self) -> IoResult<Option<End>> {
        let timeout = if self.received.pending().is_empty() {
            self.partial_since = None;
            if self.received.shrink() {
                self.share.shrink_to(RECEIVE_BYTES_MIN as u64);
            }
            let idle = self.shared.limits.idle_timeout;
            (!idle.is_zero()).then_some(idle)
        } else {
            let now = self.shared.clock.monotonic();
            let since = *self.partial_since.get_or_insert(now);
            Some(remaining(&self.shared, since)?)
        };
        let mut capacity = self.received.capacity();
        if let Some(wanted) = self.received.wanted_capacity() {
            let wanted = wanted.min(GET_LINE_BYTES_MAX.saturating_mul(2));
            let full = self.received.pending().len() == capacity;
            if self.share.try_grow(wanted.saturating_sub(capacity) as u64) {
                capacity = wanted;
            } else if full {
                self.output.push(line::NO_MEMORY_GET);
                self.flush()?;
                return Ok(Some(End::Server));
            }
        }
        let room = self.received.make_room(capacity);
        let count = self.connection.read(room, timeout)?;
        self.received.filled(count);
        self.count(Counter::BytesRead, count as u64);
        if count > 0 {
            self.work();
        }
        Ok((count == 0).then_some(End::Client))
    }

    /// Takes `bytes` from the stream and drops them.
    pub(super) fn swallow(&mut self, bytes: u64) -> IoResult<()> {
        self.flush()?;
        let mut rest = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut since = self.shared.clock.monotonic();
        let mut progress = 0_usize;
        loop {
            let pending = self.received.pending().len().min(rest);
            self.received.consume(pending);
            rest = rest.saturating_sub(pending);
            if rest == 0 {
                return Ok(());
            }
            let room = self.received.make_room(0);
            let connection = &mut self.connection;
            let count = patiently(&self.shared, since, |limit| connection.read(room, Some(limit)))?;
            if count == 0 {
                return Err(IoErrorKind::UnexpectedEof.into());
            }
            self.received.filled(count);
            self.count(Counter::BytesRead, count as u64);
            progress = progress.saturating_add(count);
            if progress >= BODY_STEP_BYTES {
                progress = 0;
                since = self.shared.clock.monotonic();
            }
        }
    }

    /// Sends all replies. A client that takes too little for too long is cut off.
    pub(super) fn flush(&mut self) -> IoResult<()> {
        if self.output.is_empty() {
            return Ok(());
        }
        let mut since = self.shared.clock.monotonic();
        let mut progress = 0_usize;
        let (connection, shared) = (&mut self.connection, &self.shared);
        let sent = self.output.send(|slices| {
            let taken =
                patiently(shared, since, |limit| connection.write_vectored(slices, Some(limit)))?;
            progress = progress.saturating_add(taken);
            if progress >= BODY_STEP_BYTES {
                progress = 0;
                since = shared.clock.monotonic();
            }
            Ok(taken)
        })?;
        if connection.holds_back() {
            patiently(shared, since, |limit| connection.flush(limit))?;
        }
        if let Some(share) = self.output.take_sent() {
            self.put_share(share);
        }
        self.count(Counter::BytesWritten, sent as u64);
        Ok(())
    }
}
