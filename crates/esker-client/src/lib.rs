//! Client of Esker's native protocol (`docs/format/native.md`).
//!
//! [`Client`] speaks to one server, over one connection that all its clones and threads share (through shared
//! memory, `shm:///PATH`, over one to each of its cores): many
//! requests are in flight at the same time, each call waits for its own reply only. A thread that
//! wants many in flight by itself uses the `submit_` calls, which return a [`Pending`] to be waited
//! for later. [`Cluster`] spreads keys over several servers (`docs/format/native.md`, "Ring").
//!
//! ```no_run
//! use esker_client::{Client, Options};
//!
//! let client = Client::new("native://127.0.0.1:11212".parse()?, Options::default());
//! client.put(b"colour", b"green")?;
//! let pending: Vec<_> =
//!     (0..1000).map(|n| client.submit_get(format!("key{n}").as_bytes())).collect::<Result<_, _>>()?;
//! for one in pending {
//!     println!("{:?}", one.wait()?);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Concurrency
//! Ordinary threads only, and everything is `Send + Sync`. Each connection has one thread that reads;
//! the callers write. Requests of one client on one key take effect in the order in which they were
//! submitted, as long as the connection lasts.
//!
//! # Failure
//! An [`Error`] tells by its [`Fate`] what is known of the request: not sent, refused, or unknown. The
//! client never sends a request twice by itself. A broken connection is made anew by the next call; a
//! server that cannot be reached is tried again after a rest that grows, and calls in between fail at
//! once.

mod address;
mod batch;
mod client;
mod cluster;
mod connection;
mod deadline;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
#[allow(
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "fuzz targets fail by panicking"
)]
pub mod fuzzing;
mod greeting;
mod options;
mod pending;
mod ring;
mod shared;
mod side_by_side;
mod socket;
mod streams;
mod table;
mod tls;
mod value;

pub use address::{Address, NATIVE_PORT};
pub use batch::Batch;
pub use client::Client;
pub use cluster::{Cluster, Member};
pub use error::{Error, Fate, Result};
pub use esker_base::ErrorKind;
pub use esker_base::ids::Version;
pub use esker_format::native::{Attributes, BackupReport, Condition, Status};
pub use options::Options;
pub use pending::{Pending, PendingValues};
pub use ring::{POINTS_PER_WEIGHT, Ring};
pub use tls::Tls;
pub use value::{Outcome, Value};
