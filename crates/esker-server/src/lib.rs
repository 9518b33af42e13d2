//! Protocol servers over an Esker store.
//!
//! [`Server`] listens, and serves the memcache text protocol and Esker's own: one task of the run-time
//! for each connection, on the core that the connection was given to. [`protocol`] is the pure part of
//! memcache: bytes to requests; that of the native protocol is in `esker-format`, its sessions in
//! `native`. What lies between is `session` (pipelining, replies in order, limits) and
//! `execute` (what each command means to the store).
//!
//! Flags and expiry are stored with the value (uDepot §4.8); the CAS id of `gets` is the version of
//! the record, which the store never repeats. Expiry is lazy.
//!
//! Commands: `get`, `gets`, `gat`, `gats`, `bget`, `set`, `add`, `replace`, `append`, `prepend`,
//! `cas`, `incr`, `decr`, `delete`, `touch`, `flush_all`, `stats`, `lru_crawler metadump` and `mgdump`, `watch`,
//! `cache_memlimit`, `version`, `verbosity`, `shutdown`, `quit`, and the meta commands `mg`, `ms`, `md`, `ma`, `mn`, `me`.

mod access;
mod auth;
mod backups;
pub mod budget;
mod clock;
pub mod counters;
pub mod errors;
mod escaped;
mod execute;
pub mod expiry;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
#[allow(
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "fuzz targets fail by panicking"
)]
pub mod fuzzing;
mod guests;
mod item;
pub mod limits;
pub mod listen;
mod native;
pub mod output;
mod patience;
mod place;
mod prefixes;
pub mod protocol;
mod receive;
mod server;
mod session;
mod shared;
mod stats;
mod tls;
mod transport;
mod watch;

pub use auth::Credentials;
pub use clock::SteadyClock;
pub use limits::Limits;
pub use listen::{ListenAddress, Protocol};
pub use server::{Server, ServerConfig, ShutdownHook, TURNED_AWAY_MAX, UNIX_MODE};
pub use tls::Tls;

/// What `version` answers. Clients read the digits up to the first other character: the memcached
/// whose protocol this is; what follows is our own.
pub const VERSION: &str = concat!("1.6.18-esker", env!("CARGO_PKG_VERSION"));

/// The whole answer to `version`.
pub(crate) const VERSION_LINE: &[u8] =
    concat!("VERSION 1.6.18-esker", env!("CARGO_PKG_VERSION"), "\r\n").as_bytes();
