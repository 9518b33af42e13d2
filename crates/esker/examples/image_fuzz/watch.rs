//! Who watches the runs: panics of any thread, and runs that do not end.
//!
//! # Concurrency
//! Each thread that runs has a slot; one thread looks at all of them. Panics are noted by a hook, whoever catches them.

use crate::media::Subject;
use esker_base::clock::{Clock, SystemClock};
use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;

/// How often slots are looked at.
const STEP: Duration = Duration::from_millis(50);

/// A run under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) subject: Subject,
    pub(crate) seed: u64,
}

static RUNS: Mutex<Vec<(ThreadId, Run, String, Duration)>> = Mutex::new(Vec::new());
static PANICS: Mutex<Vec<(ThreadId, Panic)>> = Mutex::new(Vec::new());
static IS_LATE: AtomicBool = AtomicBool::new(false);

thread_local! {
    static CURRENT: Cell<Option<Run>> = const { Cell::new(None) };
}

/// A panic: where, and what it said.
#[derive(Clone, Debug)]
pub(crate) struct Panic {
    pub(crate) place: String,
    pub(crate) words: String,
}

/// Notes panics from now on; `shows` them with their stacks, too, as ever.
pub(crate) fn note_panics(shows: bool) {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let place = info.location();
        let place = place.map_or_else(String::new, |at| format!("{}:{}", at.file(), at.line()));
        let words = info.payload_as_str().unwrap_or("something").to_owned();
        PANICS.lock().push((thread::current().id(), Panic { place, words }));
        if shows {
            usual(info);
        }
    }));
}

/// What panicked on this thread since it was asked last.
pub(crate) fn panics() -> Vec<Panic> {
    let this = thread::current().id();
    PANICS.lock().extract_if(.., |(thread, _)| *thread == this).map(|(_, panic)| panic).collect()
}

/// What panicked on any other thread that nobody asked.
pub(crate) fn stray_panics() -> Vec<Panic> {
    std::mem::take(&mut *PANICS.lock()).into_iter().map(|(_, panic)| panic).collect()
}

/// A run of such a changed image begins on this thread.
pub(crate) fn begin(run: Run, words: &str) {
    CURRENT.set(Some(run));
    let begun = SystemClock.monotonic();
    RUNS.lock().push((thread::current().id(), run, words.to_owned(), begun));
}

/// It ended; whether it was found to take too long.
pub(crate) fn end() -> bool {
    CURRENT.set(None);
    let this = thread::current().id();
    RUNS.lock().retain(|(thread, ..)| *thread != this);
    IS_LATE.swap(false, Ordering::Relaxed)
}

/// Says that so many bytes were refused. Does not allocate.
pub(crate) fn say_refused(bytes: usize) {
    eprintln!("{:?}: {bytes} bytes of memory are refused", CURRENT.get());
}

/// Whether a run took too long, where that does not end the process.
pub(crate) fn is_late() -> bool {
    IS_LATE.load(Ordering::Relaxed)
}

/// Does `work` while somebody looks whether runs end in time: one that does not ends the process, unless `goes_on`.
pub(crate) fn over<T>(longest: Duration, goes_on: bool, work: impl FnOnce() -> T) -> T {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                esker_trt::sleep(STEP);
                let now = SystemClock.monotonic();
                let late = RUNS.lock().iter().find(|(.., begun)| now > *begun + longest).cloned();
                let Some((_, run, words, _)) = late else { continue };
                IS_LATE.store(true, Ordering::Relaxed);
                if !goes_on {
                    let name = run.subject.name();
                    println!("{name}: a run does not end: {} [{words}]", run.again());
                    std::process::exit(2);
                }
            }
        });
        // Also if the fuzzer itself panics.
        let _end = End(&ended);
        work()
    })
}

/// Ends who looks.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Run {
    /// How to see it again.
    pub(crate) fn again(self) -> String {
        format!("--engine {} --seed {} --runs 1", self.subject.name(), self.seed)
    }
}
