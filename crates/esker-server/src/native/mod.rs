//! The native protocol (`docs/format/native.md`): many requests of one connection at the same time,
//! replies in the order in which they are ready.
//!
//! `session` receives: it turns frames into requests, each of which runs as a task beside the session
//! (`run`, `multi`), in the order that `order` asks for. A task that is done appends its reply to what
//! the connection has to send; the first one to find nobody sending sends, for all (`connection`).
//! So pipelined writes share one commit of the store, gets overlap their reads, and replies that are
//! ready together leave in one write.
//!
//! # Invariants
//! - D1: requests of one connection on one key take effect in the order in which they were sent. Those
//!   on different keys may take effect, and are answered, in any order. `sync` covers every write
//!   that was sent before it; `clear` is between what was sent before and after it, for every key. `backup` covers
//!   what was sent before it, and nothing waits for it: its ticket is marked when it begins.
//! - D2: a request counts as in flight from its admission until its reply is sent or dropped, and at
//!   most [`IN_FLIGHT_MAX`] of a connection are. Whoever does not take replies is not read from.
//! - D3: no memory is held because of a number that a client named: buffers grow by what arrived. What
//!   a request holds, the value it asks for, and the places of a batch's changes are charged to the budget before it runs;
//!   one that asks for more than there is at all is refused at once.
//! - D4: the session waits for the budget only while none of its requests is in flight, but a backup, which holds
//!   nothing of it: nobody waits while he holds what others wait for, but a receive buffer (B2).
//! - D5: each admitted request is answered exactly once, also if its task fails; unless the connection
//!   breaks first.
//!
//! # Concurrency
//! All tasks of a connection are on its core: no locks. Nothing is borrowed over a suspension.
//!
//! # Failure
//! A payload that is no request is answered so, and the connection goes on. Bytes that are no frame,
//! or come too slowly, end it: the requests before are answered, then a goodbye says why. A request
//! whose frame did not come whole has no effect; one whose reply did not come may have had one.

mod connection;
mod duplex;
mod large;
mod multi;
mod order;
mod run;
mod session;
pub(crate) mod shm;
mod stats;
#[cfg(test)]
mod tests;

#[cfg(any(test, fuzzing))]
pub(crate) use duplex::Duplex;
pub(crate) use duplex::Encrypted;
pub(crate) use session::Session;

/// Requests of one connection that are in flight; more wait in the connection. Enough for many writes
/// to share one commit, and as many as a core has places for tasks.
pub(crate) const IN_FLIGHT_MAX: u32 = 256;
/// Bytes of values that one `multi_get` answers, beyond the first: it answers for as many of its first
/// keys as fit, and the client asks for the others again.
pub(crate) const MULTI_GET_BYTES_MAX: u64 = 1 << 20;
/// Reads of one `multi_get` at the same time.
pub(crate) const MULTI_GET_READS: usize = 32;
