//! What a run-time is asked for: cores, stacks, and the order of I/O facilities to try.
//!
//! Plain data, read once by [`Runtime::start`](crate::Runtime::start).

use esker_base::Error;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A way to do disk I/O without blocking the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Facility {
    /// io_uring: disk and sockets through one ring, batched both ways.
    Uring,
    /// Linux AIO for the disk, completions reaped from its ring in user space; epoll for sockets.
    Aio,
    /// Plain system calls on helper threads for the disk; epoll for sockets.
    Sync,
    /// Plain system calls in the task that asks, for disks that answer within the call because they are
    /// memory; sockets, long transfers and flushes through io_uring.
    Inline,
}

impl Facility {
    /// Every facility, in the order in which a run-time tries them unless told otherwise. The last is only for
    /// who knows the disk.
    pub const ALL: [Facility; 4] =
        [Facility::Uring, Facility::Aio, Facility::Sync, Facility::Inline];
}

impl fmt::Display for Facility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Facility::Uring => "uring",
            Facility::Aio => "aio",
            Facility::Sync => "sync",
            Facility::Inline => "inline",
        })
    }
}

impl FromStr for Facility {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Facility::ALL.into_iter().find(|facility| facility.to_string() == text).ok_or_else(|| {
            Error::invalid(
                "parse facility",
                format!("{text:?} is none of uring, aio, sync, inline"),
            )
        })
    }
}

/// What [`Runtime::start`](crate::Runtime::start) builds.
#[derive(Clone, Debug)]
pub struct Config {
    /// Scheduler threads. 0 means one for each processor that this process may use.
    pub cores: usize,
    /// Whether each scheduler thread stays on one processor.
    pub pin: bool,
    /// Facilities in the order in which they are tried. The first that works serves all cores.
    pub facilities: Vec<Facility>,
    /// Usable bytes of a task's stack; rounded up to pages, at least 16 KiB. Memory is only used
    /// for the pages that a task touches.
    pub stack_size_bytes: usize,
    /// Tasks that may exist on one core at once; a spawn past it fails with `OutOfMemory`.
    pub tasks_max: usize,
    /// Requests a core hands to the kernel in one batch; AIO also limits those in flight to it.
    pub queue_depth: u32,
    /// Threads that run blocking system calls for all cores; started when first needed.
    pub helper_threads_max: usize,
    /// How long an idle core polls before it blocks. Zero is right unless nobody else needs its processor: an event then
    /// comes without an interrupt and a wake-up, and a request to a server takes half as long.
    pub spin: Duration,
    /// How long [`Runtime::shutdown`](crate::Runtime::shutdown) waits for tasks to end.
    pub shutdown_limit: Duration,
    /// How long a facility has to answer its probe.
    pub probe_limit: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            cores: 1,
            pin: false,
            facilities: Facility::ALL.to_vec(),
            stack_size_bytes: 128 * 1024,
            tasks_max: 65_536,
            queue_depth: 256,
            helper_threads_max: 16,
            spin: Duration::ZERO,
            shutdown_limit: Duration::from_secs(8),
            probe_limit: Duration::from_secs(2),
        }
    }
}
