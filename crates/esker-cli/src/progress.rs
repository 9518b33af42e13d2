//! Progress of long work: shown on a terminal; said in lines now and then where a server has none.

use esker::options::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// When long work is told of first.
pub(crate) const LINE_FIRST: Duration = Duration::from_secs(2);
/// And how long it is until the next time.
pub(crate) const LINE_REST: Duration = Duration::from_secs(5);

/// A line on standard error that says how far `what` is; nothing if that is no terminal.
pub(crate) fn progress(what: &'static str, all: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(all), ProgressDrawTarget::stderr());
    // The template is a constant; a test makes sure that it is valid.
    if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}

/// Does `work`, and says of `what` how far it is if that takes long, now and then.
pub(crate) fn told<T>(
    what: &str,
    (first, rest): (Duration, Duration),
    say: impl Fn(&str) + Send,
    work: impl FnOnce(Progress) -> T,
) -> T {
    let state = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
    let seen = Arc::clone(&state);
    let progress = Progress::new(move |done, all| {
        seen.1.store(all, Ordering::Relaxed);
        // Of several threads whoever is ahead.
        seen.0.fetch_max(done, Ordering::Relaxed);
    });
    std::thread::scope(|scope| {
        let (ends, ended) = channel::<()>();
        scope.spawn(move || {
            let (mut wait, mut passed) = (first, Duration::ZERO);
            while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                passed += wait;
                wait = rest;
                let (done, all) =
                    (state.0.load(Ordering::Relaxed), state.1.load(Ordering::Relaxed));
                let share = done.saturating_mul(100).checked_div(all).unwrap_or(0).min(100);
                say(&format!("{what}: {share} % after {} s", passed.as_secs()));
            }
        });
        let result = work(progress);
        drop(ends);
        result
    })
}

const TEMPLATE: &str = "{msg} {wide_bar} {human_pos}/{human_len} {per_sec} {eta}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_work_is_told_of_and_short_work_is_not() {
        let lines = std::sync::Mutex::new(Vec::new());
        let say = |line: &str| lines.lock().expect("no panic").push(line.to_owned());
        let far = Duration::from_secs(600);
        assert_eq!(told("resting", (far, far), say, |_| 7), 7);
        assert!(lines.lock().expect("no panic").is_empty());
        let soon = Duration::from_millis(1);
        told("working", (soon, soon), say, |_| {
            while lines.lock().expect("no panic").len() < 3 {
                std::thread::yield_now();
            }
        });
        let lines = lines.into_inner().expect("no panic");
        assert!(lines.iter().all(|line| line.starts_with("working: 0 % after ")), "{lines:?}");
    }

    #[test]
    fn the_line_has_a_valid_form() {
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
    }
}
