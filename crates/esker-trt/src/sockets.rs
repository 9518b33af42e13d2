//! What a core knows of the sockets it watches: which are ready, and who waits for them.
//!
//! Each socket is registered once, edge-triggered, for both directions (epoll `EPOLLET`, or one
//! multishot poll of io_uring). An event sets a flag here; a call that finds the socket empty
//! clears it. Events are only taken between two runs of tasks, so the flag cannot miss one.
//!
//! # Invariants
//! - I1: a flag is cleared only after the socket said "would block", or gave less than was asked
//!   for and its peer has not closed: an edge after that sets the flag again.

use crate::task::TaskId;
use std::os::fd::RawFd;

/// A watched socket; the generation tells it from earlier ones in the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketKey {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    Read,
    Write,
}

/// What an event says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Readiness {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The peer closed, or an error is pending: reads must go on until they say so.
    pub(crate) hangup: bool,
}

#[derive(Debug, Default)]
struct Entry {
    generation: u32,
    fd: Option<RawFd>,
    readable: bool,
    writable: bool,
    hangup: bool,
    readers: Vec<TaskId>,
    writers: Vec<TaskId>,
}

impl Entry {
    fn waiters(&mut self, interest: Interest) -> &mut Vec<TaskId> {
        match interest {
            Interest::Read => &mut self.readers,
            Interest::Write => &mut self.writers,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Sockets {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

impl Sockets {
    pub(crate) fn insert(&mut self, fd: RawFd) -> SocketKey {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry::default());
            u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX)
        });
        let generation = match self.entries.get_mut(index as usize) {
            Some(entry) => {
                let generation = entry.generation;
                *entry = Entry { generation, fd: Some(fd), ..Entry::default() };
                generation
            }
            None => 0,
        };
        SocketKey { index, generation }
    }

    pub(crate) fn remove(&mut self, key: SocketKey) {
        if let Some(entry) = self.get_mut(key) {
            let generation = entry.generation.wrapping_add(1);
            *entry = Entry { generation, ..Entry::default() };
            self.free.push(key.index);
        }
    }

    fn get_mut(&mut self, key: SocketKey) -> Option<&mut Entry> {
        self.entries
            .get_mut(key.index as usize)
            .filter(|entry| entry.generation == key.generation && entry.fd.is_some())
    }

    pub(crate) fn is_ready(&self, key: SocketKey, interest: Interest) -> bool {
        let entry = self.entries.get(key.index as usize);
        entry.filter(|entry| entry.generation == key.generation).is_none_or(
            |entry| match interest {
                Interest::Read => entry.readable || entry.hangup,
                Interest::Write => entry.writable,
            },
        )
    }

    /// The socket has no more for now: it gave less than was asked for, or `would_block`.
    pub(crate) fn drained(&mut self, key: SocketKey, interest: Interest, would_block: bool) {
        if let Some(entry) = self.get_mut(key) {
            match interest {
                Interest::Read => {
                    entry.readable = false;
                    entry.hangup &= !would_block;
                }
                Interest::Write => entry.writable = false,
            }
        }
    }

    pub(crate) fn add_waiter(&mut self, key: SocketKey, interest: Interest, task: TaskId) {
        if let Some(entry) = self.get_mut(key) {
            let waiters = entry.waiters(interest);
            if !waiters.contains(&task) {
                waiters.push(task);
            }
        }
    }

    pub(crate) fn remove_waiter(&mut self, key: SocketKey, interest: Interest, task: TaskId) {
        if let Some(entry) = self.get_mut(key) {
            entry.waiters(interest).retain(|waiter| *waiter != task);
        }
    }

    /// Notes an event and wakes who waits for it. The descriptor, if the socket is still watched.
    pub(crate) fn report(
        &mut self,
        key: SocketKey,
        readiness: Readiness,
        mut wake: impl FnMut(TaskId),
    ) -> Option<RawFd> {
        let entry = self.get_mut(key)?;
        entry.readable |= readiness.readable;
        entry.writable |= readiness.writable;
        entry.hangup |= readiness.hangup;
        if entry.readable || entry.hangup {
            entry.readers.drain(..).for_each(&mut wake);
        }
        if entry.writable {
            entry.writers.drain(..).for_each(&mut wake);
        }
        entry.fd
    }

    /// The kernel no longer watches the socket: everyone must ask it directly.
    pub(crate) fn fail(&mut self, key: SocketKey, wake: impl FnMut(TaskId)) {
        self.report(key, Readiness { readable: true, writable: true, hangup: true }, wake);
    }
}

#[cfg(test)]
mod tests;
