//! Waiting and waking, for tasks of any core and for threads alike.
//!
//! A task that waits is suspended and its core goes on; a thread that waits is blocked. The locks
//! inside are held for a few instructions and never while anybody waits. Where all sides are on
//! one core, [`local`](crate::local) is cheaper: uDepot §3 has the same two variants.
//!
//! # Invariants
//! - I1: who waits is in the list of waiters before it looks at the condition for the last time;
//!   who changes the condition does so under the same lock, and wakes after it. No wake-up is lost.
//! - I2: every wait looks at its condition again after a wake-up, which may have come for nothing.

mod channel;
mod future;
mod gate;
mod mutex;
mod semaphore;
mod signal;
mod turn;

pub use channel::{Receiver, SendError, Sender, channel};
pub use future::{Future, Promise, promise};
pub use gate::Gate;
pub use mutex::{Mutex, MutexGuard};
pub use semaphore::{Permit, Semaphore};
pub use signal::Signal;
pub use turn::{AllTurns, Turn, TurnGuard, Turns};

#[cfg(test)]
mod tests;
