//! Expiry as the protocol counts it, and as the store does.

/// Up to here a time is a distance from now; above, it is a date. 30 days in seconds.
pub const RELATIVE_SECONDS_MAX: i64 = 60 * 60 * 24 * 30;

/// A date that is past whatever the clock says; 0 is left to mean "none" elsewhere.
pub const EXPIRED: u64 = 1;

/// When an item with `exptime` is gone, in seconds since 1970; `None`: never.
///
/// 0 is never; a negative time is at once; up to 30 days it counts from `now`; above, it is a date,
/// which may lie in the past.
#[must_use]
pub fn expires_at(exptime: i64, now: u64) -> Option<u64> {
    match u64::try_from(exptime) {
        Ok(0) => None,
        Ok(distance) if exptime <= RELATIVE_SECONDS_MAX => Some(now.saturating_add(distance)),
        Ok(date) => Some(date),
        Err(_) => Some(EXPIRED),
    }
}

/// Whether an item is gone at `now`.
#[must_use]
pub fn is_expired(expires_at: Option<u64>, now: u64) -> bool {
    expires_at.is_some_and(|date| date <= now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_turn_into_dates_at_thirty_days() {
        let now = 1_000_000_000;
        assert_eq!(expires_at(0, now), None);
        assert_eq!(expires_at(1, now), Some(now + 1));
        assert_eq!(expires_at(RELATIVE_SECONDS_MAX, now), Some(now + 2_592_000));
        assert_eq!(expires_at(RELATIVE_SECONDS_MAX + 1, now), Some(2_592_001));
        assert_eq!(expires_at(i64::MAX, now), Some(i64::MAX as u64));
    }

    #[test]
    fn a_negative_time_is_past_at_once() {
        for exptime in [-1, -100_000, i64::MIN] {
            assert!(is_expired(expires_at(exptime, 1_000_000_000), 1_000_000_000));
        }
        assert!(!is_expired(None, u64::MAX));
    }
}
