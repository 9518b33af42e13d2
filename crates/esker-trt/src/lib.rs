//! TRT: cooperative tasks with stacks of their own, one scheduler per core, pollers for io_uring,
//! Linux AIO and epoll (uDepot §3).
//!
//! Every call of [`io`], [`net`] and [`sync`] works in two places: inside a task it suspends the
//! task and lets the core run others; on an ordinary thread it blocks that thread. Code above this
//! crate is written once, in plain blocking style.
//!
//! A [`Runtime`] starts one scheduler thread a core. A task stays on its core from spawn to end:
//! it may use thread-locals and `!Send` values, and [`spawn`] takes closures that are not `Send`.
//! [`sim`] runs the same tasks on one thread, by a seed, for tests.
//!
//! ```
//! use esker_trt::{Config, Runtime};
//!
//! let runtime = Runtime::start(Config::default())?;
//! let sum = runtime.spawn(|| {
//!     let task = esker_trt::spawn(|| 20);
//!     task.join().unwrap_or(0) + 22
//! });
//! assert_eq!(sum.join()?, 42);
//! runtime.shutdown()?;
//! # Ok::<(), esker_base::Error>(())
//! ```
//!
//! The types keep a task on its core: its handle is not `Send`,
//!
//! ```compile_fail
//! fn is_send<T: Send>(_: T) {}
//! is_send(esker_trt::spawn(|| 1));
//! ```
//!
//! and neither are the primitives of [`local`] or the guard of a [`sync::Mutex`]:
//!
//! ```compile_fail
//! fn is_send<T: Send>(_: T) {}
//! is_send(esker_trt::local::Notify::new());
//! ```
//!
//! The receiver of a [`sync::channel`] may go elsewhere, and two threads or cores cannot share it:
//!
//! ```
//! fn is_send<T: Send>(_: T) {}
//! is_send(esker_trt::sync::channel::<u32>(1).1);
//! ```
//!
//! ```compile_fail
//! fn is_sync<T: Sync>(_: T) {}
//! is_sync(esker_trt::sync::channel::<u32>(1).1);
//! ```
//!
//! # Rules for tasks
//! - Cooperative: a task that computes for long calls [`yield_now`]; one that a peer can keep busy counts it ([`work`]).
//! - Nothing that is not made for it is held over a suspension: no `parking_lot` or `std` guard
//!   that another task may wait for, no borrow inside `LocalKey::with`.
//! - A wait inside a destructor is legal, but while a panic unwinds the other tasks of the core see
//!   `std::thread::panicking()`.

mod config;
mod context;
mod core;
mod die;
mod driver;
pub mod io;
pub mod local;
pub mod net;
mod offload;
mod overflow;
mod refused;
mod runtime;
pub mod sim;
mod sockets;
mod stack;
pub mod sync;
mod task;
mod time;
mod timer;
mod topology;
mod wake;

// The kit's, which depends on this crate.
#[cfg(test)]
#[path = "../../esker-testkit/src/skipped.rs"]
pub mod skipped;

pub use config::{Config, Facility};
pub use runtime::Runtime;
pub use task::{
    JoinHandle, RemoteJoin, current_core, in_task, is_cancelled, others_ready, spawn, work, worked,
    yield_now,
};
pub use time::{sleep, sleep_cancellable};
pub use topology::processors_of_a_socket;
