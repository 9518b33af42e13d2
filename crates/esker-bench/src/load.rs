//! Load on servers over the network: the same requests for every protocol, by the clock or as fast as replies come.
//!
//! One task a connection, on a run-time of the load's own. With a rate, each request has a time when it is due; it
//! is sent then, or as soon as the connection may have another in flight, and its latency counts from when it
//! was due. So a server that stalls is charged for all who had to wait, and not only for those who were let in
//! (coordinated omission). Every reply is checked.

mod generator;
pub mod protocol;
pub mod servers;

pub use generator::{Load, Loaded, fill, run};
