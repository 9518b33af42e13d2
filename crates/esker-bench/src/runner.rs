//! Runs one cell: one system in one setting, on data that it loads first.
//!
//! load (durability none) → sync, close → open (as asked) → for each workload: warm-up, measured phase, sync →
//! close. Clients are threads, or tasks where the system has a run-time of its own. Figures come from the
//! measured phase alone; what each operation took goes to histograms of its client, which are added up at
//! the end.

mod cell;
mod client;
mod ends;
mod pace;
mod watch;

pub use cell::{Cell, Event, Stage, run};
pub(crate) use pace::{Attendance, Pace, give_way, nap, wait_until};

#[cfg(test)]
mod tests;
