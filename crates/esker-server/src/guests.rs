//! Who is connected, for `stats conns`: clients of the memcache listeners.
//!
//! # Concurrency
//! One short lock when somebody comes, goes or asks. A session notes what it does in words of its own, and
//! whoever asks sees some of it a moment late.

use crate::shared::Shared;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A connection.
#[derive(Debug)]
pub(crate) struct Guest {
    /// Nothing at a socket file.
    pub(crate) peer: Option<SocketAddr>,
    /// Which of the server's addresses it came to.
    pub(crate) listener: usize,
    /// Seconds from the server's start to the last request, or to the connection's begin.
    last: AtomicU64,
    /// Whether the next request has come in part.
    partial: AtomicBool,
}

impl Guest {
    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    pub(crate) fn is_partial(&self) -> bool {
        self.partial.load(Ordering::Relaxed)
    }
}

/// All connections, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Guests {
    next: AtomicU64,
    all: Mutex<BTreeMap<u64, Arc<Guest>>>,
}

impl Guests {
    /// Those who are there now, with their numbers.
    pub(crate) fn all(&self) -> Vec<(u64, Arc<Guest>)> {
        self.all.lock().iter().map(|(number, guest)| (*number, guest.clone())).collect()
    }
}

/// A guest is there until this is dropped.
pub(crate) struct Stay {
    shared: Arc<Shared>,
    number: u64,
    guest: Arc<Guest>,
}

impl Stay {
    /// One who came to the listener of this number.
    pub(crate) fn begin(shared: &Arc<Shared>, peer: Option<SocketAddr>, listener: usize) -> Stay {
        let last = AtomicU64::new(shared.uptime());
        let guest = Arc::new(Guest { peer, listener, last, partial: AtomicBool::new(false) });
        let number = shared.guests.next.fetch_add(1, Ordering::Relaxed);
        shared.guests.all.lock().insert(number, guest.clone());
        Stay { shared: shared.clone(), number, guest }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// A request takes place now, and is whole.
    pub(crate) fn note_request(&self) {
        self.note_waiting(false);
        self.guest.last.store(self.shared.uptime(), Ordering::Relaxed);
    }

    /// Whether what is waited for is the rest of a request.
    pub(crate) fn note_waiting(&self, partial: bool) {
        if self.guest.is_partial() != partial {
            self.guest.partial.store(partial, Ordering::Relaxed);
        }
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        self.shared.guests.all.lock().remove(&self.number);
    }
}
