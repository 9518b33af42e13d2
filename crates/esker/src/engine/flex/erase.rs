//! Range deletes of a table go to the space: intervals inside of a range go with few collapses, if nobody needs what they
//! hold; those at its ends are written anew (FlexSpace §5). A collapse takes a part of a long range, as readers wait for it: the
//! table says of all of the range that it is deleted until it is in the space.
//!
//! # Concurrency
//! Under the committer's lock.
//!
//! # Failure
//! One splice each: a crash leaves intervals as they were or without what the range covers, some of one range and others not, and
//! the log has the range. At an end of the range damage stays what it is; if a device refuses a read there, the range cannot go to
//! the space: what it covers would be back once the device is.

use super::commit::Committer;
use super::index::{Fresh, Located};
use super::memtable::RangeDelete;
use super::{Flex, ROOT_BYTES};
use crate::flex::Splice;
use esker_base::Result;
use esker_format::flex_db::Content;

/// Segments whose bytes one collapse takes out, or one part of all in so many if that is more: each one also moves what the index
/// has behind the range.
const PART_SEGMENTS: u64 = 2;
const PARTS: u64 = 128;

impl Flex {
    /// Empties a range of the space: intervals inside go with few collapses, if nobody needs what they hold.
    pub(super) fn commit_range(
        &self,
        committer: &mut Committer,
        range: &RangeDelete,
        again: bool,
    ) -> Result<()> {
        // Newer pairs of its table may be there already. A snapshot from before the range sees what it covers.
        let oldest = self.snapshots.all().last().copied();
        let careful = again || oldest.is_some_and(|oldest| oldest < range.version);
        let segments = PART_SEGMENTS * self.space.segment_size_bytes();
        let part = segments.max(self.index.size_bytes() / PARTS);
        let mut key = range.from.clone();
        loop {
            committer.turn.give_way(&*self.clock);
            let located = self.locate(&key)?;
            let inside = |located: &Located| {
                let ends = match (&located.upper, &range.to) {
                    (_, None) => true,
                    (None, Some(_)) => false,
                    (Some(upper), Some(to)) => upper <= to,
                };
                ends && located.anchor >= range.from
            };
            let upper = if !careful && inside(&located) {
                let (mut count, mut remove) = (1, u64::from(located.entry.size));
                let mut last = located.clone();
                while remove < part
                    && let Some(next) = self.index.next(last.spot).filter(inside)
                {
                    count += 1;
                    remove += u64::from(next.entry.size);
                    last = next;
                }
                let first = located.anchor.is_empty();
                let offset = ROOT_BYTES + located.offset;
                self.space.splice(
                    &Splice { offset, remove, data: &[], marks: &[] },
                    &mut || {
                        let fresh = if first { vec![Fresh::default()] } else { Vec::new() };
                        self.index.replace(located.spot, count, fresh);
                    },
                )?;
                last.upper
            } else {
                if located.entry.size > 0 {
                    self.rewrite_alone(committer, &located, range)?;
                }
                located.upper
            };
            match upper {
                Some(upper) if range.to.as_ref().is_none_or(|to| upper < *to) => key = upper,
                _ => return Ok(()),
            }
        }
    }

    /// Takes what a range covers out of an interval, if it covers anything there.
    fn rewrite_alone(
        &self,
        committer: &mut Committer,
        located: &Located,
        range: &RangeDelete,
    ) -> Result<()> {
        let Some(interval) = self.readable(located)? else {
            return self.keep_unread(committer, located, None, Some(range));
        };
        // Of each key the newest pair that the range may cover: that it was deleted before says the same, to snapshots too.
        let older = |index: &usize| interval.pair(*index).version < range.version;
        let is_next = |index: &usize| {
            let before = index.checked_sub(1).filter(|before| {
                interval.pair(*before).key == interval.pair(*index).key && older(before)
            });
            older(index) && before.is_none()
        };
        let covers = |index: usize| {
            let pair = interval.pair(index);
            range.covers(pair.key) && pair.content != Content::Delete
        };
        if !(0..interval.len()).filter(is_next).any(covers) {
            return Ok(());
        }
        self.rewrite_read(committer, located, &interval, None, Some(range))
    }
}

#[cfg(test)]
mod tests {
    use super::super::opened_with;
    use crate::engine::Engine;
    use crate::options::Durability;
    use crate::value::PutOptions;
    use std::sync::Arc;

    /// A space that finds no room to commit is not told of it, and another attempt begins at the range again.
    #[test]
    fn a_range_that_is_brought_again_leaves_what_was_put_behind_it() {
        let folder = tempfile::tempdir().unwrap();
        let flex = opened_with(&folder, Durability::None);
        flex.put(b"before", b"value", PutOptions::default()).unwrap();
        flex.sync().unwrap();
        flex.clear().unwrap();
        for number in 0..2000_u32 {
            flex.put(&number.to_be_bytes(), &[7; 100], PutOptions::default()).unwrap();
        }
        let table = Arc::clone(&flex.tables().active);
        flex.wal.drain(|_| ());
        let mut committer = flex.committer.lock();
        flex.commit_table(&mut committer, &table).unwrap();
        let brought = flex.index.size_bytes();
        assert!(brought > 200_000, "{brought} bytes");
        for range in &table.ranges() {
            flex.commit_range(&mut committer, range, table.may_be_there()).unwrap();
        }
        let left = flex.index.size_bytes();
        assert!(left > brought / 10 * 9, "{left} bytes of {brought}");
    }

    /// Whatever a range covers, the intervals inside of it go unread: those at its ends are all that is read of a store that was just opened.
    #[test]
    fn a_range_reads_its_ends_alone() {
        const KEYS: u64 = 20_000;
        let folder = tempfile::tempdir().unwrap();
        let flex = opened_with(&folder, Durability::None);
        for key in 0..KEYS {
            flex.put(&key.to_be_bytes(), &[7; 100], PutOptions::default()).unwrap();
        }
        flex.close().unwrap();
        drop(flex);
        let flex = opened_with(&folder, Durability::None);
        let read_bytes = || flex.stats().device.read_bytes;
        let before = read_bytes();
        flex.delete_range(&KEYS.div_ceil(10).to_be_bytes(), Some(&(KEYS - 7).to_be_bytes()))
            .unwrap();
        flex.commit_all().unwrap();
        let read = read_bytes() - before;
        assert!(read < KEYS * 100 / 10, "{read} bytes were read");
        assert_eq!(flex.index.pairs(), KEYS / 10 + 7);
    }

    /// As who keeps the last day of a series does, while a backup goes on: each range begins where the one before did.
    #[test]
    fn ranges_beside_a_snapshot_write_anew_what_they_cover_first() {
        const KEYS: u64 = 4000;
        const ROUNDS: u64 = 20;
        let folder = tempfile::tempdir().unwrap();
        let flex = opened_with(&folder, Durability::None);
        for key in 0..KEYS {
            flex.put(&key.to_be_bytes(), &[7; 100], PutOptions::default()).unwrap();
        }
        flex.commit_all().unwrap();
        let snapshot = flex.snapshot().unwrap();
        let rewritten = || flex.committer.lock().rewritten_bytes;
        let before = rewritten();
        for round in 1..=ROUNDS {
            let to = KEYS / ROUNDS * round;
            flex.delete_range(&[], Some(&to.to_be_bytes())).unwrap();
            flex.commit_all().unwrap();
            for key in [0, to - 1, to] {
                let key: &[u8] = &key.to_be_bytes();
                let now = flex.get(key, &mut |_| Ok(())).unwrap();
                assert_eq!(now.is_some(), *key >= to.to_be_bytes()[..] && to < KEYS);
                let then = flex.get_as_of(key, snapshot).unwrap();
                assert_eq!(then.is_some(), *key < KEYS.to_be_bytes()[..]);
            }
        }
        let rewritten = rewritten() - before;
        // Each pair once, with the mark that it is deleted; an interval at the end of a range twice.
        assert!(rewritten < KEYS * 250, "{rewritten} bytes");
        flex.release(snapshot);
        flex.delete_range(&[], None).unwrap();
        flex.commit_all().unwrap();
        assert_eq!(flex.index.pairs(), 0);
    }
}
