//! The background thread: brings sealed tables to the space, looks inside intervals that an open found, brings fragmented
//! ones together, and verifies everything, little by little. Under `periodic` another one makes the log durable twice in each
//! window, so that it waits for nothing of that: a power cut takes no more than what a window brought, unless a flush takes half of one. Another one does what the
//! committer need not wait for: it writes the segments of the space that are full, which takes as long as filling them, and frees the memory
//! of tables.
//!
//! # Concurrency
//! Two threads a store, or three. While they wait they hold no reference to the store, so a dropped store ends them.
//!
//! # Failure
//! Nobody waits for a thread that has ended, be it by a panic: whoever does brings the table to the space itself, or hears why nobody may.

use super::Flex;
use super::index::Place;
use super::memtable::MemTable;
use super::sweep::Rest;
use super::tend::Scrub;
use crate::options::Durability;
use esker_base::clock::{Clock, SystemClock};
use esker_base::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often the thread looks without being woken.
const PERIOD: Duration = Duration::from_millis(500);
/// Segments that may be full and not written; more have to wait for the device.
const SEGMENTS_BEHIND: usize = 2;
/// Least time between two flushes of the log.
const PERIOD_MIN: Duration = Duration::from_millis(1);
/// Intervals that are looked into between two looks at the tables.
const REFINED_AT_ONCE: usize = 16;

impl Flex {
    /// Frees the memory of a table that is in the space, later.
    pub(super) fn retire(&self, table: Arc<MemTable>) {
        if self.helper.is_running() {
            let before = self.retired.lock().replace(table);
            drop(before);
            self.helper.wake();
        }
    }

    pub(super) fn start_background(self: &Arc<Self>) -> Result<()> {
        let store = Arc::downgrade(self);
        if let Durability::Periodic(window) = self.durability {
            let (store, period) = (Weak::clone(&store), (window / 2).max(PERIOD_MIN));
            let round = move || flush_log(&store, period);
            self.log_writer.start("esker-flex-log", period, round)?;
        }
        let weak = Weak::clone(&store);
        let mut freed_at = self.clock.monotonic();
        self.helper.start("esker-flex-help", PERIOD, move || {
            let flex = weak.upgrade()?;
            // A failure is the space's from then on: whoever writes next hears of it.
            if let Err(error) = flex.space.write_filled() {
                tracing::error!(%error, "a segment does not get to its device");
                return None;
            }
            let retired = flex.retired.lock().take();
            drop(retired);
            // It may have been woken just now, and then again.
            let now = flex.clock.monotonic();
            if now.saturating_sub(freed_at) >= PERIOD {
                flex.space.free_spare();
                freed_at = now;
            }
            Some(PERIOD)
        })?;
        let helper = Arc::clone(&self.helper);
        self.space.write_behind(SEGMENTS_BEHIND, move || helper.wake());
        let (mut leaf, mut scrub, mut rest) =
            (Some(Place::default()), Scrub::default(), Rest::default());
        let mut told = Told::default();
        let mut scrubbed_at = self.clock.monotonic();
        let ends = Ends(Weak::clone(&store));
        self.background.start("esker-flex", PERIOD, move || {
            let _panics = Panics(&ends.0);
            let again = work(&store, &mut leaf, &mut told)?;
            let mut wait = PERIOD;
            if !again {
                let store = store.upgrade()?;
                let now = store.clock.monotonic();
                // What was due while there was other work is not made up for at once.
                let passed = now.saturating_sub(scrubbed_at).min(2 * PERIOD);
                scrubbed_at = now;
                if let Some(sooner) = told.tell("space is not collected", store.rest(&mut rest)) {
                    wait = sooner.map_or(PERIOD, |sooner| sooner.min(PERIOD));
                }
                let verified = store.scrub(&mut scrub, passed);
                told.tell("the store cannot be read to be verified", verified);
            }
            Some(if again { Duration::ZERO } else { wait })
        })
    }
}

/// Lets those go on who wait for the thread to bring a table to the space, when it has ended.
struct Ends(Weak<Flex>);

impl Drop for Ends {
    fn drop(&mut self) {
        // By now it is not taken for running any more: nobody begins to wait.
        if let Some(flex) = self.0.upgrade()
            && let Some((_, gate)) = &flex.tables().sealed
        {
            gate.open();
        }
    }
}

/// Refuses writes behind a panic of the thread: nobody knows what it left half done.
struct Panics<'w>(&'w Weak<Flex>);

impl Drop for Panics<'_> {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(flex) = self.0.upgrade()
        {
            // The panic has told of itself.
            flex.wal.note_failure(&Error::new(ErrorKind::Panicked, "bring tables to the space"));
        }
    }
}

/// What was told of failures, so that one that lasts is told once and not twice a second.
#[derive(Debug, Default)]
struct Told(BTreeMap<&'static str, String>);

impl Told {
    /// Tells of a failure, unless the same was told last; what came out otherwise.
    fn tell<T>(&mut self, what: &'static str, result: Result<T>) -> Option<T> {
        let error = match result {
            Ok(done) => {
                self.0.remove(what);
                return Some(done);
            }
            Err(error) => error,
        };
        if self.is_news(what, &error) {
            tracing::error!(%error, "{what}");
        }
        None
    }

    fn is_news(&mut self, what: &'static str, error: &Error) -> bool {
        let words = error.to_string();
        self.0.insert(what, words.clone()).is_none_or(|before| before != words)
    }
}

/// Makes the log durable, and says how long to wait until that is due again; `None` if the store is gone, or the log failed: who
/// writes next is told. Twice in a window: what comes right behind the begin of a flush has to be durable by the end of the next one.
fn flush_log(store: &Weak<Flex>, period: Duration) -> Option<Duration> {
    let store = store.upgrade()?;
    // From where a flush begins: what comes while it goes on is in the next one.
    let since = SystemClock.monotonic();
    if let Err(error) = store.wal.write_all(true) {
        tracing::error!(%error, "the log does not get to its device");
        return None;
    }
    Some(period.saturating_sub(SystemClock.monotonic().saturating_sub(since)))
}

/// One round; whether there is more to do at once. `None` if the store is gone.
fn work(store: &Weak<Flex>, leaf: &mut Option<Place>, told: &mut Told) -> Option<bool> {
    let store = store.upgrade()?;
    told.tell("a table cannot be sealed", store.seal_littered());
    told.tell("a table does not get into the space", store.commit_sealed());
    let brought = store.defragment();
    let more = told.tell("an interval cannot be brought together", brought).unwrap_or(false);
    let Some(from) = *leaf else { return Some(more) };
    *leaf = store.look_inside(from, REFINED_AT_ONCE).unwrap_or_else(|error| {
        tracing::error!(%error, "an interval cannot be read");
        None
    });
    Some(more || leaf.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine;
    use crate::engine::flex::opened_in;
    use crate::value::PutOptions;
    use std::sync::mpsc;

    #[test]
    fn a_failure_is_told_once_until_it_is_another_one_or_was_over() {
        let error = |device: &str| Error::new(ErrorKind::Io, "write").device(device);
        let mut told = Told::default();
        assert!(told.is_news("one", &error("a")));
        assert!(!told.is_news("one", &error("a")));
        assert!(told.is_news("two", &error("a")));
        assert!(told.is_news("one", &error("b")));
        assert_eq!(told.tell("one", Ok(1)), Some(1));
        assert!(told.is_news("one", &error("b")));
        assert_eq!(told.tell::<()>("one", Err(error("b"))), None);
    }

    /// What somebody hears who waits for a table to get to the space, while the thread ends as `end` says.
    fn heard(end: fn() -> Option<Duration>) -> Result<()> {
        let folder = tempfile::tempdir().unwrap();
        let flex = opened_in(&folder);
        flex.put(b"a", b"1", PutOptions::default()).unwrap();
        // The table is sealed, and nobody has brought it to the space.
        let generation = flex.tables().active.generation;
        flex.change_table(generation).unwrap();
        flex.put(b"b", b"2", PutOptions::default()).unwrap();
        let (ended, wait) = mpsc::channel::<()>();
        let ends = Ends(Arc::downgrade(&flex));
        let round = move || {
            let _panics = Panics(&ends.0);
            wait.recv().ok();
            end()
        };
        flex.background.start("test", Duration::ZERO, round).unwrap();
        let (tell, hear) = mpsc::channel();
        let heard = std::thread::scope(|scope| {
            let flex = &flex;
            scope.spawn(move || {
                let generation = flex.tables().active.generation;
                tell.send(flex.change_table(generation)).unwrap();
            });
            // It waits for the thread.
            assert!(hear.recv_timeout(Duration::from_millis(200)).is_err());
            drop(ended);
            let heard = hear.recv_timeout(Duration::from_secs(30));
            if heard.is_err()
                && let Some((_, gate)) = &flex.tables().sealed
            {
                gate.open();
            }
            heard.expect("nobody waits for ever")
        });
        assert_eq!(flex.get(b"a", &mut |_| Ok(())).unwrap().unwrap().as_ref(), b"1");
        heard
    }

    #[test]
    fn who_waits_for_the_thread_goes_on_without_it() {
        heard(|| None).unwrap();
    }

    #[test]
    fn who_waits_for_the_thread_hears_of_its_panic() {
        let error = heard(|| panic!("it is said so")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
    }
}
