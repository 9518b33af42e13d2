//! What the kernel says of the processors.
//!
//! The kernel numbers processors as firmware does: often those of one socket are not next to each other, as with two threads for
//! each core, or with sockets that take turns. Cores of a run-time are bound to processors socket by socket, so that neighbours in
//! number are neighbours on the machine.

use esker_base::{Error, Result};
use std::fs;

/// The processors that this process may use, socket by socket.
///
/// # Errors
/// `Io` if the kernel does not tell.
pub(crate) fn processors() -> Result<Vec<usize>> {
    let allowed = rustix::thread::sched_getaffinity(None)
        .map_err(|source| Error::io("read processor affinity", source.into()))?;
    let most = rustix::thread::CpuSet::MAX_CPU;
    let allowed = (0..most).filter(|processor| allowed.is_set(*processor));
    Ok(by_socket(allowed, socket_of).into_iter().map(|(_, processor)| processor).collect())
}

/// How many processors of the first socket this process may use: all that it may use where the kernel does not tell of sockets. At
/// least 1.
#[must_use]
pub fn processors_of_a_socket() -> usize {
    let sockets = processors().unwrap_or_default();
    let of_first = |processor: &&usize| {
        Some(socket_of(**processor)) == sockets.first().map(|first| socket_of(*first))
    };
    sockets.iter().take_while(of_first).count().max(1)
}

/// Number of a processor's socket; 0 where the kernel does not tell.
fn socket_of(processor: usize) -> i64 {
    let path = format!("/sys/devices/system/cpu/cpu{processor}/topology/physical_package_id");
    fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Processors in the order of their sockets, and of their numbers in these.
fn by_socket(
    processors: impl Iterator<Item = usize>,
    socket_of: impl Fn(usize) -> i64,
) -> Vec<(i64, usize)> {
    let mut all: Vec<_> = processors.map(|processor| (socket_of(processor), processor)).collect();
    all.sort_unstable();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_in_number_are_of_one_socket() {
        let order = |socket_of: fn(usize) -> i64| -> Vec<usize> {
            by_socket(0..8, socket_of).into_iter().map(|(_, processor)| processor).collect()
        };
        // Two sockets of two cores with two threads each.
        assert_eq!(order(|processor| (processor as i64 / 2) % 2), [0, 1, 4, 5, 2, 3, 6, 7]);
        // Sockets that take turns.
        assert_eq!(order(|processor| (processor as i64) % 2), [0, 2, 4, 6, 1, 3, 5, 7]);
        assert_eq!(order(|_| 0), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(order(|processor| -(processor as i64)), [7, 6, 5, 4, 3, 2, 1, 0]);
    }

    #[test]
    fn a_socket_has_processors_of_this_process() {
        let (count, all) = (processors_of_a_socket(), processors().unwrap());
        let usable = std::thread::available_parallelism().unwrap().get();
        assert!(count >= 1 && count <= all.len(), "{count} of {all:?}");
        assert!(all.len() >= usable, "{all:?}");
    }
}
