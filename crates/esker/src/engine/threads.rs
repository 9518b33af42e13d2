//! What an open does with several threads.
//!
//! # Concurrency
//! Threads that end with the call. Where the system has no more of them, the caller does what they would have done, one after the
//! other: so it takes longer.

use esker_base::{Error, ErrorKind, Result};
use std::thread::Builder;

/// Most threads, whatever options say: more of them only wait for each other.
pub(super) const THREADS_MAX: usize = 256;

/// Calls `work` with each number below `threads`, beside each other: what comes of each, in their order, or the first error.
/// All are waited for. If one is enough, the caller is the one.
pub(super) fn on_threads<T: Send>(
    operation: &'static str,
    threads: usize,
    work: impl Fn(usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let threads = threads.clamp(1, THREADS_MAX);
    if threads == 1 {
        return Ok(vec![work(0)?]);
    }
    let work = &work;
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|number| {
                let thread = Builder::new().name("esker-open".into());
                thread.spawn_scoped(scope, move || work(number)).ok()
            })
            .collect();
        let ended = started.into_iter().enumerate().map(|(number, thread)| match thread {
            Some(thread) => {
                let panicked = |_| Err(Error::new(ErrorKind::Panicked, operation));
                thread.join().unwrap_or_else(panicked)
            }
            None => work(number),
        });
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn each_number_is_done_once_and_told_in_order() {
        for threads in [1, 2, 7] {
            let done = on_threads("test", threads, |number| Ok(number * 10)).unwrap();
            let expected: Vec<usize> = (0..threads).map(|number| number * 10).collect();
            assert_eq!(done, expected);
        }
    }

    #[test]
    fn no_number_of_threads_is_too_large_or_too_small() {
        for (threads, expected) in [(0, 1), (usize::MAX, THREADS_MAX)] {
            assert_eq!(on_threads("test", threads, |_| Ok(())).unwrap().len(), expected);
        }
    }

    #[test]
    fn errors_and_panics_are_told_once_all_have_ended() {
        let ended = AtomicUsize::new(0);
        let run = |fails: fn(usize) -> Result<()>| {
            ended.store(0, Ordering::Relaxed);
            let done = on_threads("test", 3, |number| {
                let done = if number == 1 { fails(number) } else { Ok(()) };
                ended.fetch_add(1, Ordering::Relaxed);
                done
            });
            (done.unwrap_err().kind(), ended.load(Ordering::Relaxed))
        };
        assert_eq!(run(|_| Err(Error::invalid("test", "no"))), (ErrorKind::InvalidArgument, 3));
        assert_eq!(run(|_| panic!("it is said so")), (ErrorKind::Panicked, 2));
    }
}
