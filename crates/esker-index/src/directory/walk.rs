//! Walking all entries in the order of their hashes, while everything goes on.
//!
//! A cursor is the first hash that has not been met. It lies between two homes, and stays between
//! two however often tables grow (D3), and no entry ever changes its place in this order: so an entry
//! that stays is met exactly once. Entries of the overflow are met at the first hash that they may
//! belong to.

use super::{Directory, Root};
use crate::entry::link_of;
use crate::link::Link;
use crate::reclaim::{Pin, pin};
use crate::table::Part;

/// Homes in one part of a walk: some 60 to 90 entries.
const PART: usize = 64;
/// The cursor behind the last hash: no home begins there.
pub(super) const END: u64 = u64::MAX;

impl Directory {
    /// The links of the part of the hash space that begins at `cursor` (0 to begin with), a few
    /// hundred at most unless the overflow holds that many for one home, and the cursor of the next
    /// part; `None` at the end. A walk meets every entry that stays for the whole walk exactly
    /// once, whatever grows meanwhile; one that is replaced meanwhile once, as it was or as it is.
    /// Takes one region's lock.
    #[must_use]
    pub fn walk(&self, cursor: u64) -> Option<(Vec<Link>, u64)> {
        let pin = pin();
        let root = self.root.load(&pin);
        root.visit(cursor, PART, &pin, |part| {
            let (first, last) = part.shape().hashes(&part.homes);
            let overflow = root.overflow().within(first, last);
            let mut links: Vec<Link> = overflow.into_iter().map(|(_, link)| link).collect();
            part.each(|_, entry| links.push(link_of(entry)));
            links
        })
    }
}

impl Root {
    /// Gives `read` the homes from `cursor` on, under their lock; gives its result and the cursor
    /// behind them. `None` at the end.
    pub(super) fn visit<R>(
        &self,
        cursor: u64,
        homes_max: usize,
        pin: &Pin,
        read: impl Fn(&Part<'_>) -> R,
    ) -> Option<(R, u64)> {
        if cursor == END {
            return None;
        }
        let mut table = self.table(cursor, pin)?;
        loop {
            if let Some(next) = table.moved(cursor) {
                table = next;
                continue;
            }
            let mut result = None;
            table.visit(cursor, homes_max, &mut |part| {
                let (_, last) = part.shape().hashes(&part.homes);
                result = Some((read(&part), last.checked_add(1).unwrap_or(END)));
            });
            if result.is_some() {
                return result;
            }
        }
    }
}
