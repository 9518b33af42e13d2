//! A sync every second, for stores that have none of their own: durability `periodic`.
//!
//! One that fails is the last, and what its store does from then on promises less than was asked for: the store's own sync and
//! close tell the failure, and so the cell fails.

use esker_bench::{Failure, Outcome};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

const PERIOD: Duration = Duration::from_secs(1);

/// Calls its work once a second until it is stopped or dropped, which waits for the call under way.
pub(crate) struct Ticker {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Why the last call failed, if it did.
    failed: Arc<OnceLock<String>>,
}

impl Ticker {
    /// One that calls `work` on a store, if `wanted`; else it does nothing.
    pub(crate) fn of<T: Send + Sync + 'static>(
        wanted: bool,
        store: &Arc<T>,
        work: fn(&T) -> Outcome<()>,
    ) -> Outcome<Ticker> {
        let failed = Arc::new(OnceLock::new());
        let mut ticker = Ticker { stop: None, thread: None, failed: Arc::clone(&failed) };
        if wanted {
            let store = Arc::clone(store);
            let (stop, stopped) = channel();
            let body = move || {
                while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                    if let Err(failure) = work(&store) {
                        let _ = failed.set(failure.to_string());
                        return;
                    }
                }
            };
            ticker.stop = Some(stop);
            let thread = std::thread::Builder::new().name("bench-sync".to_owned());
            ticker.thread = Some(thread.spawn(body)?);
        }
        Ok(ticker)
    }

    /// The failure of a call, if one failed.
    pub(crate) fn check(&self) -> Outcome<()> {
        // Nothing but a failure ends the thread before it is stopped.
        let has_ended = self.thread.as_ref().is_some_and(JoinHandle::is_finished);
        match self.failed.get() {
            Some(words) => Err(Failure::new(format!("periodic sync: {words}"))),
            None if has_ended => Err(Failure::new("a periodic sync panicked")),
            None => Ok(()),
        }
    }

    /// Ends the calls; their failure, if one failed.
    pub(crate) fn stop(&mut self) -> Outcome<()> {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().map_err(|_| Failure::new("a periodic sync panicked"))?;
        }
        self.check()
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_periodic_sync_that_fails_is_told_at_the_next_sync_and_at_the_close() {
        let mut ticker =
            Ticker::of(true, &Arc::new(()), |()| Err(Failure::new("no room"))).unwrap();
        let told = |ticker: &Ticker| {
            (0..100).find_map(|_| {
                std::thread::park_timeout(Duration::from_millis(100));
                ticker.check().err()
            })
        };
        assert!(told(&ticker).unwrap().to_string().contains("no room"));
        assert!(ticker.stop().unwrap_err().to_string().contains("no room"));

        let mut ticker = Ticker::of(true, &Arc::new(()), |()| panic!("on purpose")).unwrap();
        assert!(told(&ticker).unwrap().to_string().contains("panicked"));
        assert!(ticker.stop().is_err());
        let mut idle = Ticker::of(false, &Arc::new(()), |()| panic!("never called")).unwrap();
        assert!(idle.check().is_ok() && idle.stop().is_ok());
    }
}
