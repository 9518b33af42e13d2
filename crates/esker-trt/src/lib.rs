//! TRT: cooperative tasks with stacks of their own, one scheduler per core, pollers for io_uring,
//! Linux AIO and epoll (uDepot §3).
//!
//! Every call of [`io`], [`net`] and [`sync`] works in two places: inside a task it suspends the
//! task and lets the core run others; on an ordinary thread it blocks that thread. Code above this
//! crate is written once, in plain blocking style.

pub mod io;
pub mod sync;
