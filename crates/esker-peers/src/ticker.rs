//! A sync every second, for stores that have none of their own: durability `periodic`.

use esker_bench::Outcome;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

const PERIOD: Duration = Duration::from_secs(1);

/// Calls its work once a second until it is dropped, which waits for the call under way.
pub(crate) struct Ticker {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    pub(crate) fn start(work: impl Fn() -> Outcome<()> + Send + 'static) -> Outcome<Ticker> {
        let (stop, stopped) = channel();
        let thread =
            std::thread::Builder::new().name("bench-sync".to_owned()).spawn(move || {
                while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                    if let Err(failure) = work() {
                        eprintln!("periodic sync: {failure}");
                        return;
                    }
                }
            })?;
        Ok(Ticker { stop: Some(stop), thread: Some(thread) })
    }

    /// One that calls `work` on a store, if `wanted`.
    pub(crate) fn of<T: Send + Sync + 'static>(
        wanted: bool,
        store: &Arc<T>,
        work: fn(&T) -> Outcome<()>,
    ) -> Outcome<Option<Ticker>> {
        let store = Arc::clone(store);
        wanted.then(|| Ticker::start(move || work(&store))).transpose()
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
