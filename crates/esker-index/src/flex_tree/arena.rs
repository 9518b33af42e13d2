//! Arena: values by number, which stay where they are.
//!
//! It grows by whole chunks: one that doubled would move everything at once, for half a second with 128 MiB of leaves, and nobody
//! could look anything up meanwhile.
//!
//! # Invariants
//! - A1: all chunks but the last one are full, so the number of a value says where it is.

use super::node::NodeId;
use std::ops::{Index, IndexMut};

/// Values of a chunk.
const CHUNK: usize = 1 << 8;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Arena<T> {
    chunks: Vec<Vec<T>>,
    free: Vec<NodeId>,
}

impl<T> Arena<T> {
    pub(super) fn new() -> Self {
        Arena { chunks: Vec::new(), free: Vec::new() }
    }

    /// Values that are not free.
    pub(super) fn count(&self) -> usize {
        self.end() - self.free.len()
    }

    /// The number of the next value, if no place is free.
    fn end(&self) -> usize {
        let last = self.chunks.last().map_or(0, Vec::len);
        self.chunks.len().saturating_sub(1) * CHUNK + last
    }

    /// Puts `value` into a free place; its number.
    pub(super) fn add(&mut self, value: T) -> NodeId {
        if let Some(id) = self.free.pop() {
            self[id] = value;
            return id;
        }
        let end = self.end();
        if end == self.chunks.len() * CHUNK {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.push(value);
        }
        NodeId::try_from(end).unwrap_or(NodeId::MAX >> 1)
    }

    /// Lets others have the place of a value.
    pub(super) fn free(&mut self, id: NodeId) {
        self.free.push(id);
    }

    pub(super) fn get(&self, id: NodeId) -> Option<&T> {
        self.chunks.get(id as usize / CHUNK)?.get(id as usize % CHUNK)
    }
}

impl<T> Index<NodeId> for Arena<T> {
    type Output = T;

    #[inline]
    fn index(&self, id: NodeId) -> &T {
        &self.chunks[id as usize / CHUNK][id as usize % CHUNK]
    }
}

impl<T> IndexMut<NodeId> for Arena<T> {
    #[inline]
    fn index_mut(&mut self, id: NodeId) -> &mut T {
        &mut self.chunks[id as usize / CHUNK][id as usize % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_where_they_are_however_many_there_are() {
        let mut arena = Arena::new();
        let first = arena.add(7);
        let at = std::ptr::from_ref(&arena[first]);
        let ids: Vec<NodeId> = (1..10 * CHUNK).map(|value| arena.add(value)).collect();
        assert_eq!(std::ptr::from_ref(&arena[first]), at);
        assert!(ids.iter().zip(1..).all(|(id, value)| arena[*id] == value));
        assert_eq!((arena.count(), arena.get(NodeId::MAX >> 1)), (10 * CHUNK, None));
    }

    #[test]
    fn a_place_that_is_free_is_taken_first() {
        let mut arena = Arena::new();
        let ids = [1, 2, 3].map(|value| arena.add(value));
        arena.free(ids[1]);
        assert_eq!(arena.count(), 2);
        assert_eq!(arena.add(4), ids[1]);
        assert_eq!((arena.count(), arena[ids[1]]), (3, 4));
    }
}
