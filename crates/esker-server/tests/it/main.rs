//! The server over real sockets on the loopback network.

mod commands;
mod differential;
mod harness;
mod limits;
mod pipelining;
mod shutdown;
