//! The memcache text protocol, as a pure function from bytes to requests.
//!
//! A session appends what it received to a buffer and asks [`Parser::next`] for the next request;
//! the answer names places in that buffer ([`Span`]), so nothing is copied. The data block of a
//! storage command is not the parser's business: it hands over the length, the session takes that
//! many bytes and two more.
//!
//! Replies and error lines are those of memcached 1.6, byte for byte; `tests/it/differential.rs`
//! sends the same bytes to both. Where a line leaves open how long its data block is, this parser
//! is **stricter than memcached on purpose**, because a payload must never run as a command. All
//! that differs:
//!
//! | line | memcached 1.6 | here |
//! |---|---|---|
//! | storage command, key over 250 bytes or malformed argument, its length in order | error, payload parsed as commands | error, payload swallowed |
//! | storage command, malformed length or wrong count of arguments | error, payload parsed as commands | error, then the connection is closed |
//! | a number as fifth argument of `set` (sixth of `cas`), as behind a key with a blank | ignored, payload parsed as commands | `CLIENT_ERROR`, then closed |
//! | numbers with a sign (`+5`) or past their type (length 2^32+1) | accepted, wrapped | `CLIENT_ERROR` |
//! | line over 2,048 bytes, not a `get` | closed, or not, as its bytes happen to arrive | `CLIENT_ERROR line too long`, then closed |
//! | `get` line without end | read without bound | as above, past 1 MiB |
//! | `cas` after `touch` or `gat` | the CAS id is still the old one | a new expiry is a new version: `EXISTS` |
//! | `ms`, malformed, its length in order | error, payload parsed as commands, or swallowed | error, payload swallowed |
//! | NUL in a line | ends the line for the command, not for the stream | an ordinary byte |
//!
//! `docs/memcache.md` has all that differs, commands and flags included. `classic`, `meta`, `dump` and `observe` have
//! a function for each shape of line, `parse` the table that leads to them.
//!
//! # Invariants
//! - P1: the requests of a byte stream do not depend on how it was cut into pieces.
//! - P2: no input panics: no indexing, no unchecked arithmetic, no `unwrap`.
//! - P3: nothing is allocated; work is linear in the bytes received.
//!
//! # Concurrency
//! None: one parser for one connection.
//!
//! # Failure
//! A malformed line is a [`Request::Refused`], which says the reply and how the stream goes on.
#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::string_slice
)]

pub mod base64;
mod classic;
mod command;
mod dump;
pub mod meta;
mod number;
mod observe;
mod parse;
mod span;

pub use command::{
    Arithmetic, DetailRequest, DumpForm, DumpRequest, MetaVerb, Refusal, Request, ShutdownMode,
    StoreRequest, StoreVerb, Then,
};
pub use meta::MetaFlags;
pub use number::{parse_signed, parse_unsigned, parse_value};
pub use observe::WatchKinds;
pub use parse::{Parsed, Parser};
pub use span::{Span, Tokens};

/// Longest key.
pub const KEY_BYTES_MAX: usize = 250;
/// Longest line, without its end, of any command that does not list keys to read.
pub const LINE_BYTES_MAX: usize = 2048;
/// Longest line of `get`, `gets`, `gat` and `gats`, without its end.
pub const GET_LINE_BYTES_MAX: usize = 1 << 20;
/// Largest length of a data block that counts as a number at all; memcached's, too.
pub const DATA_BYTES_MAX: u64 = i32::MAX as u64 - 2;
/// What ends a line and a data block.
pub const CRLF: &[u8] = b"\r\n";

/// Whether a key can stand in a line as it is.
#[must_use]
pub fn is_plain(key: &[u8]) -> bool {
    !key.iter().any(|byte| *byte <= b' ' || *byte == 0x7F)
}

/// Lines that a server answers, each with its end.
pub mod line {
    /// No such command, or not that many arguments.
    pub const ERROR: &[u8] = b"ERROR\r\n";
    /// An argument is malformed.
    pub const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
    /// Malformed arguments of `delete`.
    pub const BAD_DELETE: &[u8] =
        b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
    /// The data block is not followed by an end of line.
    pub const BAD_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
    /// Malformed time of `touch`, `gat` and `flush_all`.
    pub const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
    /// Malformed step of `incr` and `decr`.
    pub const BAD_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta argument\r\n";
    /// `incr` or `decr` of something else than a number.
    pub const NOT_A_NUMBER: &[u8] =
        b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
    /// `stats detail` without its argument.
    pub const BAD_DETAIL: &[u8] = b"CLIENT_ERROR usage: stats detail on|off|dump\r\n";
    /// `stats cachedump` that the operator has forbidden.
    pub const NO_CACHEDUMP: &[u8] = b"CLIENT_ERROR stats cachedump not allowed\r\n";
    /// `lru_crawler metadump` that the operator has forbidden.
    pub const NO_METADUMP: &[u8] = b"ERROR metadump not allowed\r\n";
    /// `lru_crawler mgdump` that the operator has forbidden.
    pub const NO_MGDUMP: &[u8] = b"ERROR key dump not allowed\r\n";
    /// `stats cachedump` without its arguments.
    pub const BAD_LINE: &[u8] = b"CLIENT_ERROR bad command line\r\n";
    /// `stats cachedump` of a class that nobody has.
    pub const ILLEGAL_CLASS: &[u8] = b"CLIENT_ERROR Illegal slab id\r\n";
    /// `watch` that the operator has forbidden.
    pub const NO_WATCH: &[u8] = b"CLIENT_ERROR watch commands not allowed\r\n";
    /// One watcher more than there may be.
    pub const TOO_MANY_WATCHERS: &[u8] = b"WATCHER_TOO_MANY log watcher limit reached\r\n";
    /// No room in the memory budget for a watcher.
    pub const WATCHER_FAILED: &[u8] = b"WATCHER_FAILED failed to add log watcher\r\n";
    /// A list of items of a class that nobody has.
    pub const BAD_CLASS: &[u8] = b"BADCLASS invalid class id\r\n";
    /// Somebody else has a list of items made.
    pub const BUSY: &[u8] = b"BUSY currently processing crawler request\r\n";
    /// A line longer than any command is.
    pub const TOO_LONG: &[u8] = b"CLIENT_ERROR line too long\r\n";
    /// An item above the limit.
    pub const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
    /// No room: on media or in the memory budget.
    pub const NO_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";
    /// No room in the memory budget to read a value.
    pub const NO_MEMORY_GET: &[u8] = b"SERVER_ERROR out of memory writing get response\r\n";
    /// The last connection that fits is there already.
    pub const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";
    /// Stored.
    pub const STORED: &[u8] = b"STORED\r\n";
    /// The condition of `add`, `replace`, `append` or `prepend` does not hold.
    pub const NOT_STORED: &[u8] = b"NOT_STORED\r\n";
    /// `cas` of a value that somebody else changed.
    pub const EXISTS: &[u8] = b"EXISTS\r\n";
    /// No such key.
    pub const NOT_FOUND: &[u8] = b"NOT_FOUND\r\n";
    /// Deleted.
    pub const DELETED: &[u8] = b"DELETED\r\n";
    /// New time set.
    pub const TOUCHED: &[u8] = b"TOUCHED\r\n";
    /// End of values or of statistics.
    pub const END: &[u8] = b"END\r\n";
    /// Done.
    pub const OK: &[u8] = b"OK\r\n";
    /// More flags than `mg` takes.
    pub const FLAGS_TOO_LONG_GET: &[u8] = b"CLIENT_ERROR options flags are too long\r\n";
    /// The same of the other meta commands.
    pub const FLAGS_TOO_LONG: &[u8] = b"CLIENT_ERROR options flags too long\r\n";
    /// A flag twice, or one that is no character.
    pub const DUPLICATE_FLAG: &[u8] = b"CLIENT_ERROR duplicate flag\r\n";
    /// No such flag.
    pub const INVALID_FLAG: &[u8] = b"CLIENT_ERROR invalid flag\r\n";
    /// Any of that in `md` and `ma`.
    pub const INVALID_OR_DUPLICATE_FLAG: &[u8] = b"CLIENT_ERROR invalid or duplicate flag\r\n";
    /// A flag's argument is malformed.
    pub const BAD_TOKEN: &[u8] = b"CLIENT_ERROR bad token in command line format\r\n";
    /// The key is not base64.
    pub const BAD_BASE64: &[u8] = b"CLIENT_ERROR error decoding key\r\n";
    /// The mode is not one character.
    pub const BAD_MODE_LENGTH: &[u8] = b"CLIENT_ERROR incorrect length for M token\r\n";
    /// No such mode of `ms`.
    pub const BAD_SET_MODE: &[u8] = b"CLIENT_ERROR invalid mode for ms M token\r\n";
    /// No such mode of `ma`.
    pub const BAD_ARITHMETIC_MODE: &[u8] = b"CLIENT_ERROR invalid mode for ma M token\r\n";
    /// Malformed initial value of `ma`.
    pub const BAD_INITIAL: &[u8] = b"CLIENT_ERROR invalid numeric initial value\r\n";
    /// Malformed step of `ma`.
    pub const BAD_META_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta value\r\n";
    /// An opaque over its limit.
    pub const OPAQUE_TOO_LONG: &[u8] = b"CLIENT_ERROR opaque token too long\r\n";
    /// Answer to `mn`.
    pub const META_NOOP: &[u8] = b"MN\r\n";
    /// Miss of `me`.
    pub const META_MISS: &[u8] = b"EN\r\n";
    /// `shutdown` that the operator has not permitted.
    pub const SHUTDOWN_DISABLED: &[u8] = b"ERROR: shutdown not enabled\r\n";
    /// `shutdown` in another way than there is.
    pub const BAD_SHUTDOWN: &[u8] = b"CLIENT_ERROR invalid shutdown mode\r\n";
    /// `flush_all` that the operator has forbidden.
    pub const FLUSH_DISABLED: &[u8] = b"CLIENT_ERROR flush_all not allowed\r\n";
    /// `cache_memlimit` below any sense.
    pub const LIMIT_TOO_SMALL: &[u8] =
        b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n";
    /// `cache_memlimit` in bytes.
    pub const LIMIT_TOO_LARGE: &[u8] =
        b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n";
    /// `cache_memlimit` that is not what the store has.
    pub const LIMIT_FIXED: &[u8] = b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n";
    /// A command before the client has said who it is.
    pub const UNAUTHENTICATED: &[u8] = b"CLIENT_ERROR unauthenticated\r\n";
    /// Credentials that do not end a line.
    pub const BAD_TERMINATION: &[u8] = b"CLIENT_ERROR bad command line termination\r\n";
    /// Credentials that are not two words.
    pub const BAD_CREDENTIALS: &[u8] = b"CLIENT_ERROR bad authentication token format\r\n";
    /// Credentials of nobody.
    pub const AUTH_FAILED: &[u8] = b"CLIENT_ERROR authentication failure\r\n";
    /// Counters are zero again.
    pub const RESET: &[u8] = b"RESET\r\n";
}

#[cfg(test)]
#[allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]
mod tests;
