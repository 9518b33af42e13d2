//! How writers to memory are held back.

use super::{PACE_MAX, Pace};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// What is spent is spent by all together; what was not spent in time is not kept, and nobody waits longer than anybody does.
#[test]
fn writers_share_the_time_that_the_cleaner_asks_for() {
    let pace = Pace::default();
    assert_eq!(pace.spend(MS, 0.001), MS);
    assert_eq!(pace.spend(MS, 0.001), 2 * MS);
    assert_eq!(pace.spend(2 * MS, 0.001), 2 * MS);
    assert_eq!(pace.spend(100 * MS, 0.0005), MS / 2, "the time before is over");
    assert_eq!(pace.spend(100 * MS, 3.0), PACE_MAX);
    assert_eq!(pace.spend(100 * MS, 3.0), PACE_MAX);
    assert_eq!(pace.spend(110 * MS, 0.0), PACE_MAX - 10 * MS);
}

#[test]
fn nothing_is_asked_until_somebody_asks() {
    let pace = Pace::default();
    assert_eq!(pace.asked().to_bits(), 0);
    pace.ask(1e-9);
    assert_eq!(pace.asked().to_bits(), 1e-9_f64.to_bits());
}
