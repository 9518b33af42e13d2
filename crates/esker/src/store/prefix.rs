//! Keys that begin with the same bytes.

use super::{Direction, Snapshot, Store};
use crate::value::Value;
use esker_base::Result;
use std::ops::Bound;

/// The least key behind all that begin with `prefix`, if there is any: where a scan or a
/// [`Store::delete_range`] of them ends.
///
/// ```
/// assert_eq!(esker::behind_prefix(b"user/"), Some(b"user0".to_vec()));
/// assert_eq!(esker::behind_prefix(b"\xff"), None);
/// ```
#[must_use]
pub fn behind_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let length = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut behind = prefix.get(..=length)?.to_vec();
    *behind.last_mut()? += 1;
    Some(behind)
}

/// The bound at which keys that begin with a prefix end.
fn end_of(behind: Option<&Vec<u8>>) -> Bound<&[u8]> {
    behind.map_or(Bound::Unbounded, |behind| Bound::Excluded(behind))
}

impl Store {
    /// As [`Store::scan`], of the keys that begin with `prefix`: all keys, if it is empty.
    ///
    /// # Errors
    /// As [`Store::scan`].
    pub fn scan_prefix(
        &self,
        prefix: &[u8],
        direction: Direction,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Value)>> {
        let behind = behind_prefix(prefix);
        self.scan((Bound::Included(prefix), end_of(behind.as_ref())), direction, limit)
    }
}

impl Snapshot {
    /// As [`Store::scan_prefix`], with all items as they were.
    ///
    /// # Errors
    /// As [`Store::scan`].
    pub fn scan_prefix(
        &self,
        prefix: &[u8],
        direction: Direction,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Value)>> {
        let behind = behind_prefix(prefix);
        self.scan((Bound::Included(prefix), end_of(behind.as_ref())), direction, limit)
    }
}

#[cfg(test)]
#[cfg(not(any(loom, feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_one() {
        assert_eq!(behind_prefix(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(behind_prefix(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(behind_prefix(b"\xff"), None);
        assert_eq!(behind_prefix(b""), None);
    }
}
