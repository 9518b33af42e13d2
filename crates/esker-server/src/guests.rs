//! Who is connected: clients of the memcache listeners. `stats conns` tells them, and those who watch connections hear of each that
//! comes and goes.
//!
//! # Concurrency
//! One short lock when somebody comes, goes or asks. A session notes what it does in words of its own, and
//! whoever asks sees some of it a moment late.

use crate::listen::ListenAddress;
use crate::protocol::WatchKinds;
use crate::shared::Shared;
use crate::watch::{CloseReason, Event, Origin};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// The next request has not begun.
    Nothing,
    /// The next request has come in part.
    Sends,
    /// It watches what others do.
    Watches,
}

impl Doing {
    fn number(self) -> u8 {
        match self {
            Doing::Nothing => 0,
            Doing::Sends => 1,
            Doing::Watches => 2,
        }
    }

    fn of_number(number: u8) -> Doing {
        match number {
            1 => Doing::Sends,
            2 => Doing::Watches,
            _ => Doing::Nothing,
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Guest {
    /// Nothing at a socket file.
    pub(crate) peer: Option<SocketAddr>,
    /// Which of the server's addresses it came to.
    pub(crate) listener: usize,
    /// Seconds from the server's start to the last request, or to the connection's begin.
    last: AtomicU64,
    doing: AtomicU8,
}

impl Guest {
    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    pub(crate) fn doing(&self) -> Doing {
        Doing::of_number(self.doing.load(Ordering::Relaxed))
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
    /// Why it ends, unless it is said.
    reason: CloseReason,
}

impl Stay {
    /// One who came to the listener of this number.
    pub(crate) fn begin(shared: &Arc<Shared>, peer: Option<SocketAddr>, listener: usize) -> Stay {
        let last = AtomicU64::new(shared.uptime());
        let doing = AtomicU8::new(Doing::Nothing.number());
        let guest = Arc::new(Guest { peer, listener, last, doing });
        let number = shared.guests.next.fetch_add(1, Ordering::Relaxed);
        shared.guests.all.lock().insert(number, guest.clone());
        let stay = Stay { shared: shared.clone(), number, guest, reason: CloseReason::Error };
        let connection = stay.shown_number();
        stay.tell(|origin| Event::Opened { origin, connection });
        stay
    }

    /// It ends, for this reason.
    pub(crate) fn end(mut self, reason: CloseReason) {
        self.reason = reason;
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The number that clients are told.
    pub(crate) fn shown_number(&self) -> u64 {
        self.shared.shown_number(self.number)
    }

    /// A request takes place now, and is whole.
    pub(crate) fn note_request(&self) {
        self.note_doing(Doing::Nothing);
        self.guest.last.store(self.shared.uptime(), Ordering::Relaxed);
    }

    pub(crate) fn note_doing(&self, doing: Doing) {
        if self.guest.doing() != doing {
            self.guest.doing.store(doing.number(), Ordering::Relaxed);
        }
    }

    /// Tells those who watch connections an event of this one.
    fn tell(&self, event: impl FnOnce(Origin) -> Event<'static>) {
        let shared = &self.shared;
        if shared.watchers.wanted().has(WatchKinds::CONNECTIONS) {
            let listener = shared.addresses.get(self.guest.listener);
            let local = listener.is_some_and(|address| matches!(address, ListenAddress::Unix(_)));
            let origin = Origin { peer: self.guest.peer, local };
            shared.watchers.tell(&event(origin), shared.counters.shard(0));
        }
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        self.shared.guests.all.lock().remove(&self.number);
        let (reason, connection) = (self.reason, self.shown_number());
        self.tell(|origin| Event::Closed { origin, reason, connection });
    }
}
