//! How many bytes of a part of a store expire when: enough to know when it is worth its while to bring them out.
//!
//! Values say when they expire, and nothing tells the store when that is: so whoever looks for bytes that do not count asks for those
//! that have expired since. What is known is rough, in a few moments, and never early: bytes count as expired once all that
//! were added to their moment have.
//!
//! # Concurrency
//! None of its own.

/// Moments that are told apart.
const MOMENTS: usize = 8;

/// Bytes by the moment at which they expire. Takes no memory until some do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expiries(Vec<(u64, u64)>);

impl Expiries {
    /// So many bytes expire then, in Unix seconds.
    pub(crate) fn add(&mut self, expires_at: u64, bytes: u64) {
        let place = self.0.partition_point(|(at, _)| *at < expires_at);
        match self.0.get_mut(place) {
            Some((at, known)) if *at == expires_at => *known = known.saturating_add(bytes),
            _ => self.0.insert(place, (expires_at, bytes)),
        }
        if self.0.len() > MOMENTS {
            self.merge();
        }
    }

    /// Adds what another one knows.
    pub(crate) fn add_all(&mut self, other: &Expiries) {
        other.0.iter().for_each(|(at, bytes)| self.add(*at, *bytes));
    }

    /// Makes one of two neighbouring moments, the later one: where it makes the least of bytes by time late.
    fn merge(&mut self) {
        let next = self.0.iter().skip(1);
        let late = self.0.iter().zip(next).map(|((at, bytes), (next, _))| {
            u128::from(next.saturating_sub(*at)) * u128::from(*bytes)
        });
        let Some((place, _)) = late.enumerate().min_by_key(|(_, late)| *late) else { return };
        let (_, bytes) = self.0.remove(place);
        if let Some((_, later)) = self.0.get_mut(place) {
            *later = later.saturating_add(bytes);
        }
    }

    /// Bytes that have expired by now, in Unix seconds: at most those that were added.
    pub(crate) fn expired(&self, now: u64) -> u64 {
        let expired = self.0.iter().take_while(|(at, _)| *at <= now);
        expired.fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// Moments and bytes, the earliest first.
    pub(crate) fn moments(&self) -> &[(u64, u64)] {
        &self.0
    }

    /// About `part` of `whole` of the bytes of each moment, and not more.
    pub(crate) fn share(&self, part: u64, whole: u64) -> Expiries {
        let share = |bytes: u64| u128::from(bytes) * u128::from(part) / u128::from(whole.max(1));
        let parts =
            self.0.iter().map(|(at, bytes)| (*at, u64::try_from(share(*bytes)).unwrap_or(*bytes)));
        Expiries(parts.filter(|(_, bytes)| *bytes > 0).collect())
    }

    /// Memory beside the place itself, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.0.capacity() * size_of::<(u64, u64)>()
    }

    /// Whether nothing expires.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Nothing expires any more.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_base::rng::Rng;

    #[test]
    fn bytes_expire_never_early_and_not_much_late() {
        let mut rng = Rng::from_seed(7);
        let mut expiries = Expiries::default();
        let mut all = Vec::new();
        for _ in 0..2000 {
            let (at, bytes) = (1000 + rng.below(1000), 1 + rng.below(100));
            expiries.add(at, bytes);
            all.push((at, bytes));
            assert!(expiries.0.len() <= MOMENTS);
        }
        let expired = |now| all.iter().filter(|(at, _)| *at <= now).map(|(_, bytes)| bytes).sum();
        for now in 900..2100 {
            let (known, right): (u64, u64) = (expiries.expired(now), expired(now));
            assert!(known <= right, "{now}: {known} of {right} bytes, too early");
            let late: u64 = expired(now.saturating_sub(500));
            assert!(known >= late, "{now}: {known} bytes, {late} had expired long before");
        }
        assert_eq!(expiries.expired(2000), expired(2000));
        let mut both = Expiries::default();
        both.add(1500, 5);
        both.add_all(&expiries);
        assert_eq!(both.expired(2000), expired(2000) + 5);
        let share = both.share(1, 3);
        for now in 900..2100 {
            let (part, all) = (share.expired(now) * 3, both.expired(now));
            assert!(part <= all && all < part + 3 * MOMENTS as u64, "{now}: {part} of {all}");
        }
        assert!(both.share(0, 3).is_empty() && both.share(3, 3).moments() == both.moments());
        both.clear();
        assert!(both.is_empty() && both.expired(u64::MAX) == 0);
    }
}
