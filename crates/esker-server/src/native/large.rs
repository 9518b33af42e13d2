//! Frames that are longer than what the receive buffer takes: their payloads get buffers of their own,
//! which grow by what came (D3).

use super::duplex::Duplex;
use super::session::{End, Session};
use crate::counters::Counter;
use crate::limits::BODY_STEP_BYTES;
use crate::patience::{Progress, patiently};
use esker_base::ErrorKind;
use esker_format::native::{FRAME_HEADER_SIZE, FrameHeader, Status};
use std::io::{ErrorKind as IoErrorKind, Result as IoResult};

impl<D: Duplex + 'static> Session<D> {
    /// Receives the frame of `header`, which is next in the receive buffer, and accepts it.
    pub(super) fn take_large(
        &mut self,
        header: FrameHeader,
        payload_size: usize,
    ) -> IoResult<Option<End>> {
        self.connection.send();
        self.received.consume(FRAME_HEADER_SIZE);
        self.partial = None;
        let mut share = self.shared().body_share();
        let mut payload = Vec::new();
        let mut received = 0_usize;
        let mut progress = Progress::receiving(self.shared());
        while received < payload_size {
            if received == payload.len() {
                let step = BODY_STEP_BYTES.min(payload_size.saturating_sub(received));
                if !share.try_grow(step as u64) {
                    drop((payload, share));
                    return self.swallow(header, payload_size.saturating_sub(received));
                }
                payload.resize(received.saturating_add(step), 0);
            }
            let room = payload.get_mut(received..).unwrap_or_default();
            let pending = self.received.pending();
            let taken = if pending.is_empty() {
                self.rest();
                let read = |limit| self.connection.duplex.read(room, Some(limit));
                match patiently_read(self.shared(), &progress, read)? {
                    None => return Ok(Some(self.too_slow())),
                    Some(0) => return Ok(Some(End::Client)),
                    Some(taken) => taken,
                }
            } else {
                let taken = pending.len().min(room.len());
                room.iter_mut().zip(pending).for_each(|(to, from)| *to = *from);
                self.received.consume(taken);
                taken
            };
            self.connection.count(Counter::BytesRead, taken as u64);
            received = received.saturating_add(taken);
            progress.add(self.shared(), taken);
        }
        self.work();
        if header.verify(&payload).is_err() {
            return Ok(Some(End::Because(Status::BadFrame)));
        }
        self.accept(header, payload, Some(share))?;
        Ok(None)
    }

    /// There is no memory for the rest of a payload: it is received and dropped.
    fn swallow(&mut self, header: FrameHeader, rest: usize) -> IoResult<Option<End>> {
        let mut rest = rest;
        let mut progress = Progress::receiving(self.shared());
        loop {
            let pending = self.received.pending().len().min(rest);
            self.received.consume(pending);
            rest = rest.saturating_sub(pending);
            if rest == 0 {
                break;
            }
            self.rest();
            let shared = self.connection.shared.clone();
            let room = self.received.make_room(0);
            let read = |limit| self.connection.duplex.read(room, Some(limit));
            let count = match patiently_read(&shared, &progress, read)? {
                None => return Ok(Some(self.too_slow())),
                Some(0) => return Ok(Some(End::Client)),
                Some(count) => count,
            };
            self.received.filled(count);
            self.connection.count(Counter::BytesRead, count as u64);
            progress.add(&shared, count);
        }
        self.work();
        self.connection.count(Counter::StoreNoMemory, 1);
        self.refuse(header, Status::Failed(ErrorKind::OutOfMemory))?;
        Ok(None)
    }
}

/// As [`patiently`]; `None` if the time is over.
fn patiently_read(
    shared: &crate::shared::Shared,
    progress: &Progress,
    read: impl FnMut(std::time::Duration) -> IoResult<usize>,
) -> IoResult<Option<usize>> {
    match patiently(shared, progress, read) {
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == IoErrorKind::TimedOut => Ok(None),
        Err(error) => Err(error),
    }
}
