//! Requests that wait for their replies: by id, each with a slot that its caller waits at.
//!
//! # Invariants
//! - T1: a slot is filled once: with a reply, or with why there is none.
//! - T2: a request that is taken out of the table is filled by whoever took it out. One that its caller gives up stays until its
//!   reply comes, for it may still take effect; it takes no place from others.

use crate::error::{Error, Fate, Result};
use esker_base::clock::{Clock, SystemClock};
use esker_format::native::{NO_REQUEST, Opcode, Status};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// A reply as it came.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) opcode: u8,
    pub(crate) status: Status,
    pub(crate) payload: Vec<u8>,
}

/// Where a caller waits.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    reply: Mutex<Option<Result<Reply>>>,
    filled: Condvar,
}

impl Slot {
    pub(crate) fn fill(&self, reply: Result<Reply>) {
        *self.reply.lock() = Some(reply);
        self.filled.notify_one();
    }

    pub(crate) fn is_filled(&self) -> bool {
        self.reply.lock().is_some()
    }

    /// Waits for the reply, at most `limit`; `None` if it did not come.
    pub(crate) fn wait(&self, limit: Duration) -> Option<Result<Reply>> {
        let end = SystemClock.monotonic().saturating_add(limit);
        let mut reply = self.reply.lock();
        loop {
            if let Some(reply) = reply.take() {
                return Some(reply);
            }
            let left = end.saturating_sub(SystemClock.monotonic());
            if left.is_zero() {
                return None;
            }
            self.filled.wait_for(&mut reply, left);
        }
    }
}

/// A request without a reply.
#[derive(Debug)]
struct Waiting {
    /// None once its caller has given up.
    slot: Option<Arc<Slot>>,
    opcode: u8,
    /// Where its frame ends, in bytes of the connection.
    end: u64,
}

/// All requests without a reply of one connection.
#[derive(Debug, Default)]
pub(crate) struct Table {
    waiting: HashMap<u32, Waiting>,
    /// How many of them were given up.
    given_up: usize,
    last_id: u32,
}

impl Table {
    /// An id that no request here has.
    pub(crate) fn next_id(&mut self) -> u32 {
        loop {
            self.last_id = self.last_id.wrapping_add(1);
            // A backup may be under way for as long as it takes to come around.
            if self.last_id != NO_REQUEST && !self.waiting.contains_key(&self.last_id) {
                return self.last_id;
            }
        }
    }

    /// Requests that somebody may wait for.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len().saturating_sub(self.given_up)
    }

    /// Whether nothing is without a reply.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether there is a request that others wait for among those whose frames end by `before`: nobody waits for a backup.
    pub(crate) fn is_waited_for(&self, before: u64) -> bool {
        let is_waited_for =
            |waiting: &Waiting| waiting.end <= before && waiting.opcode != Opcode::Backup as u8;
        self.waiting.values().any(is_waited_for)
    }

    pub(crate) fn insert(&mut self, id: u32, opcode: u8, end: u64) -> Arc<Slot> {
        let slot = Arc::new(Slot::default());
        self.waiting.insert(id, Waiting { slot: Some(slot.clone()), opcode, end });
        slot
    }

    /// The slot for a reply; `None` if nobody waits any more.
    ///
    /// # Errors
    /// The opcode that was expected, if it is another one: the server answers something else.
    pub(crate) fn take(&mut self, id: u32, opcode: u8) -> Result<Option<Arc<Slot>>, u8> {
        match self.waiting.remove(&id) {
            None => Ok(None),
            Some(waiting) if waiting.opcode == opcode => {
                self.given_up = self.given_up.saturating_sub(usize::from(waiting.slot.is_none()));
                Ok(waiting.slot)
            }
            Some(waiting) => {
                let expected = waiting.opcode;
                self.waiting.insert(id, waiting);
                Err(expected)
            }
        }
    }

    /// Nobody waits for that reply any more.
    pub(crate) fn give_up(&mut self, id: u32) {
        let slot = self.waiting.get_mut(&id).and_then(|waiting| waiting.slot.take());
        self.given_up = self.given_up.saturating_add(usize::from(slot.is_some()));
    }

    /// Fails all requests: those whose frames the network was not offered whole were not sent.
    pub(crate) fn fail_all(&mut self, offered: u64, cause: &esker_base::Error) {
        self.given_up = 0;
        for (_, Waiting { slot, end, .. }) in self.waiting.drain() {
            let fate = if end > offered { Fate::NotSent } else { Fate::Unknown };
            slot.into_iter().for_each(|slot| slot.fill(Err(Error::new(fate, cause.clone()))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_come_around_leave_out_those_in_the_table() {
        let mut table = Table { last_id: u32::MAX - 2, ..Table::default() };
        for id in [u32::MAX, 1, 2] {
            table.insert(id, Opcode::Backup as u8, 0);
        }
        assert_eq!([(); 3].map(|()| table.next_id()), [u32::MAX - 1, 3, 4]);
    }
}
