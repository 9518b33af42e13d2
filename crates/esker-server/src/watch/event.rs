//! What watchers are told: the lines of memcached's `logger.c`, without time and number.

use crate::escaped::Escaped;
use crate::protocol::{StoreVerb, WatchKinds};
use std::fmt::{Display, Formatter, Result};
use std::net::SocketAddr;

/// The class of sizes that all items are told as, and that of none.
const CLASS: u8 = 1;
const NO_CLASS: u8 = 0;

/// What became of a storage command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreStatus {
    NotStored,
    Stored,
    Exists,
    NotFound,
    TooLarge,
    NoMemory,
}

impl StoreStatus {
    fn word(self) -> &'static str {
        match self {
            StoreStatus::NotStored => "not_stored",
            StoreStatus::Stored => "stored",
            StoreStatus::Exists => "exists",
            StoreStatus::NotFound => "not_found",
            StoreStatus::TooLarge => "too_large",
            StoreStatus::NoMemory => "no_memory",
        }
    }

    /// Of an item that has no memory yet.
    fn class(self) -> u8 {
        if matches!(self, StoreStatus::TooLarge | StoreStatus::NoMemory) { NO_CLASS } else { CLASS }
    }
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseReason {
    Error,
    Normal,
    IdleTimeout,
    Shutdown,
}

impl CloseReason {
    fn word(self) -> &'static str {
        match self {
            CloseReason::Error => "error",
            CloseReason::Normal => "normal",
            CloseReason::IdleTimeout => "idle_timeout",
            CloseReason::Shutdown => "shutdown",
        }
    }
}

/// Where a connection comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    /// Nothing at a socket file, or of one who was gone at once.
    pub(crate) peer: Option<SocketAddr>,
    /// Whether it came to a socket file.
    pub(crate) local: bool,
}

impl Display for Origin {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.peer {
            Some(peer) => write!(f, "rip={} rport={}", peer.ip(), peer.port())?,
            None => f.write_str("rip=unix rport=0")?,
        }
        write!(f, " transport={}", if self.local { "local" } else { "tcp" })
    }
}

/// Something that happened; `connection` is the number of whose it was, as `stats conns` tells it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event<'a> {
    /// An item was looked up.
    Get {
        key: &'a [u8],
        /// Bytes of its value; `None`: there was none.
        size: Option<usize>,
        connection: u64,
    },
    /// An item was to be stored.
    Store {
        key: &'a [u8],
        stored: StoreStatus,
        verb: StoreVerb,
        /// Until it is over; 0 if it never is, or is already.
        left_seconds: u64,
        size: usize,
        connection: u64,
    },
    /// A connection came.
    Opened { origin: Origin, connection: u64 },
    /// A connection went.
    Closed { origin: Origin, reason: CloseReason, connection: u64 },
}

impl Event<'_> {
    /// Who wants to know.
    pub(super) fn kind(&self) -> WatchKinds {
        match self {
            Event::Get { .. } => WatchKinds::FETCHERS,
            Event::Store { .. } => WatchKinds::MUTATIONS,
            Event::Opened { .. } | Event::Closed { .. } => WatchKinds::CONNECTIONS,
        }
    }
}

impl Display for Event<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match *self {
            Event::Get { key, size, connection } => {
                let (status, class) = match size {
                    Some(_) => ("found", CLASS),
                    None => ("not_found", NO_CLASS),
                };
                write!(
                    f,
                    "type=item_get key={} status={status} clsid={class} cfd={connection} size={}",
                    Escaped(key),
                    size.unwrap_or(0)
                )
            }
            Event::Store { key, stored, verb, left_seconds, size, connection } => write!(
                f,
                "type=item_store key={} status={} cmd={} ttl={left_seconds} clsid={} cfd={connection} size={size}",
                Escaped(key),
                stored.word(),
                verb_word(verb),
                stored.class()
            ),
            Event::Opened { origin, connection } => {
                write!(f, "type=conn_new {origin} cfd={connection}")
            }
            Event::Closed { origin, reason, connection } => {
                write!(f, "type=conn_close {origin} reason={} cfd={connection}", reason.word())
            }
        }
    }
}

fn verb_word(verb: StoreVerb) -> &'static str {
    match verb {
        StoreVerb::Set => "set",
        StoreVerb::Add => "add",
        StoreVerb::Replace => "replace",
        StoreVerb::Append => "append",
        StoreVerb::Prepend => "prepend",
        StoreVerb::Cas => "cas",
    }
}
