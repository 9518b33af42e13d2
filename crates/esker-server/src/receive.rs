//! The receive buffer of one connection.
//!
//! Units that run hold the bytes through [`Received::share`]; places in the buffer stay valid until
//! the next [`Received::make_room`], which the session calls when nothing runs.
//!
//! # Invariants
//! - R1: `consumed <= filled <= bytes.len()`.
//! - R2: the buffer moves or changes only in `make_room`, and only when nobody shares it.

use crate::limits::{RECEIVE_BYTES_MAX, RECEIVE_BYTES_MIN};
use std::rc::Rc;

/// Bytes that came, and how many of them are done with.
#[derive(Debug)]
pub(crate) struct Received {
    bytes: Rc<Vec<u8>>,
    filled: usize,
    consumed: usize,
}

impl Received {
    pub(crate) fn new() -> Self {
        Received { bytes: Rc::new(vec![0; RECEIVE_BYTES_MIN]), filled: 0, consumed: 0 }
    }

    /// What came and is not consumed.
    pub(crate) fn pending(&self) -> &[u8] {
        self.bytes.get(self.consumed..self.filled).unwrap_or_default()
    }

    /// Everything in the buffer, consumed or not: what places refer to.
    pub(crate) fn all(&self) -> &[u8] {
        &self.bytes
    }

    /// The buffer, for a task that runs beside the session.
    pub(crate) fn share(&self) -> Rc<Vec<u8>> {
        self.bytes.clone()
    }

    /// Where the next pending byte is in the buffer.
    pub(crate) fn position(&self) -> usize {
        self.consumed
    }

    /// Bytes the buffer can hold.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Marks pending bytes as done with.
    pub(crate) fn consume(&mut self, count: usize) {
        self.consumed = self.consumed.saturating_add(count).min(self.filled);
    }

    /// What the buffer should grow to before more can be received, if it is full.
    pub(crate) fn wanted_capacity(&self) -> Option<usize> {
        let full = self.pending().len() == self.capacity();
        let small = self.filled == self.capacity() && self.capacity() < RECEIVE_BYTES_MAX;
        (full || small).then(|| self.capacity().saturating_mul(2))
    }

    /// Forgets consumed bytes, makes the buffer at least `capacity` long, and returns the free
    /// part, which is not empty unless the buffer is full of pending bytes.
    pub(crate) fn make_room(&mut self, capacity: usize) -> &mut [u8] {
        let pending = self.consumed..self.filled;
        let length = pending.len();
        if Rc::get_mut(&mut self.bytes).is_none() {
            // A task that was given up may still hold the old buffer (R2).
            self.bytes = Rc::new(self.bytes.as_ref().clone());
        }
        let Some(bytes) = Rc::get_mut(&mut self.bytes) else { return &mut [] };
        bytes.copy_within(pending, 0);
        if bytes.len() < capacity {
            bytes.resize(capacity, 0);
        }
        self.consumed = 0;
        self.filled = length;
        bytes.get_mut(length..).unwrap_or_default()
    }

    /// Back to the smallest buffer, if nothing is pending.
    pub(crate) fn shrink(&mut self) -> bool {
        let shrinks = self.pending().is_empty() && self.capacity() > RECEIVE_BYTES_MIN;
        if shrinks {
            *self = Received::new();
        }
        shrinks
    }

    /// Marks `count` bytes of the free part as received.
    pub(crate) fn filled(&mut self, count: usize) {
        self.filled = self.filled.saturating_add(count).min(self.bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(received: &mut Received, bytes: &[u8]) {
        let room = received.make_room(0);
        room[..bytes.len()].copy_from_slice(bytes);
        received.filled(bytes.len());
    }

    #[test]
    fn consumed_bytes_make_room_for_new_ones() {
        let mut received = Received::new();
        receive(&mut received, b"abc");
        received.consume(2);
        receive(&mut received, b"de");
        assert_eq!((received.pending(), received.position()), (b"cde".as_slice(), 0));
    }

    #[test]
    fn a_full_buffer_grows_and_an_idle_one_shrinks() {
        let mut received = Received::new();
        receive(&mut received, &[b'x'; RECEIVE_BYTES_MIN]);
        assert_eq!(received.wanted_capacity(), Some(2 * RECEIVE_BYTES_MIN));
        received.make_room(2 * RECEIVE_BYTES_MIN);
        assert!(!received.shrink(), "bytes are pending");
        received.consume(usize::MAX);
        assert!(received.shrink());
        assert_eq!(received.capacity(), RECEIVE_BYTES_MIN);
    }

    #[test]
    fn a_shared_buffer_is_left_to_those_who_share_it() {
        let mut received = Received::new();
        receive(&mut received, b"abc");
        let shared = received.share();
        received.consume(3);
        receive(&mut received, b"xyz");
        assert_eq!((&shared[..3], received.pending()), (b"abc".as_slice(), b"xyz".as_slice()));
    }
}
