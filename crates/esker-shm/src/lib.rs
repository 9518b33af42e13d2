//! Streams of bytes between two processes of one host, through memory that both map: the message buffers of
//! FlatRPC (FlatStore §4.3) without a network card.
//!
//! A server makes the memory and a pair of sockets for each stream, and passes them over a Unix socket
//! ([`offer`], [`accept`]). A stream is a [`Ring`](ring) in each direction and a *bell*: a socket that
//! carries a byte only when the other side sleeps, and whose end tells that it is gone. What is said over a stream
//! is the native protocol's business.
//!
//! A transport over RDMA verbs would have the same shape: rings that the client writes with one-sided writes,
//! and an agent that posts for all cores.
//!
//! # Trust
//! The other side may write anything anywhere in the memory at any time. Bytes are copied out before anybody looks at
//! them; of the other side's counters only differences within the ring are believed, once each. The memory cannot
//! shrink under its readers: it is sealed.
//!
//! # Concurrency
//! One reader and one writer for each ring. Nothing here blocks but for [`connect`] and [`accept`], each for a limited time.

#[cfg(any(test, fuzzing))]
#[doc(hidden)]
#[allow(clippy::indexing_slicing, clippy::expect_used, reason = "fuzz targets fail by panicking")]
pub mod fuzzing;
pub mod handshake;
mod memory;
pub mod ring;
mod socket;

pub use handshake::{Endpoint, Greeting, STREAMS_MAX, accept, offer, refuse};
pub use ring::{Reader, Writer};
pub use socket::{connect, ring_bell};

#[cfg(test)]
mod tests;
