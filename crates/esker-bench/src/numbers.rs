//! Conversions between counts and real numbers, in one place.

use std::time::Duration;

/// A count as a real number.
pub(crate) fn real(count: u64) -> f64 {
    count as f64
}

/// The whole part of a real number; 0 below 0 and for no number.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates, which is what is asked for"
)]
pub(crate) fn whole(number: f64) -> u64 {
    number as u64
}

/// As [`whole`], for sizes in memory.
pub(crate) fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Nanoseconds of a time.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Microseconds, of nanoseconds.
pub(crate) fn micros(nanos: u64) -> f64 {
    real(nanos) / 1e3
}
