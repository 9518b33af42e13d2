//! Verification of everything: intervals against the index, the space against itself.

use super::index::{PAIRS_COUNTED_MAX, Place};
use super::{Flex, ROOT_BYTES};
use crate::check::CheckReport;
use esker_base::{ErrorKind, Result};
use esker_format::flex_db::Content;
use std::time::Duration;

/// Bytes of intervals that are checked before the committer has its turn.
const BYTES_AT_ONCE: u64 = 8 << 20;
/// How often sizes are compared that others change, and the time between.
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(1);

impl Flex {
    pub(super) fn check_all(&self) -> Result<CheckReport> {
        let mut report = CheckReport::default();
        let mut from = Vec::new();
        // Intervals stay where they are while some of them are checked.
        let mut committer = self.committer.lock();
        while let Some(next) = self.check_some(&from, &mut report)? {
            from = next;
            drop(committer);
            // Who waits has its turn.
            esker_trt::sleep(PAUSE);
            committer = self.committer.lock();
        }
        self.check_sizes(&mut report);
        drop(committer);
        let space = self.space.check()?;
        report.bytes = space.bytes;
        space.problems.into_iter().for_each(|problem| report.problem(problem));
        Ok(report)
    }

    /// Checks the interval that holds a key, and as many behind it as have some bytes. The key to go on with, if they are not the
    /// last ones. The committer's lock is held.
    fn check_some(&self, from: &[u8], report: &mut CheckReport) -> Result<Option<Vec<u8>>> {
        let mut from = from.to_vec();
        // Not what was seen before the committer's turn: the interval may begin further to the front since.
        let mut last = None;
        let mut place: Option<(u64, u64)> = None;
        loop {
            let found = self.locate(&from);
            // As it is in the index, if it cannot be read.
            let located = match &found {
                Ok(located) => located,
                Err(_) => &self.index.locate(&from),
            };
            let (start, offset) = place.unwrap_or((located.offset, located.offset));
            if located.offset != offset {
                report.problem(format!("an interval at {}, not at {offset}", located.offset));
            }
            let upper = located.upper.clone();
            let end = located.offset + u64::from(located.entry.size);
            place = Some((start, end));
            match found.and_then(|located| self.verify(&located, &mut last, report)) {
                Err(error) if error.kind() == ErrorKind::Corrupted => {
                    report.problem(error.to_string())
                }
                done => done?,
            }
            match upper {
                Some(upper) if end - start >= BYTES_AT_ONCE => return Ok(Some(upper)),
                Some(upper) => from = upper,
                None => {
                    let sum = self.index.size_bytes();
                    if end != sum {
                        report.problem(format!("sums say {sum} bytes, intervals {end}"));
                    }
                    return Ok(None);
                }
            }
        }
    }

    /// Intervals and large values are all that the space has. The committer's lock is held.
    fn check_sizes(&self, report: &mut CheckReport) {
        let intervals = self.index.size_bytes();
        // Large values come and go meanwhile: between two changes, both agree.
        let mut tries = 0;
        let (end, size) = loop {
            let size = self.space.size_bytes();
            let end = intervals + ROOT_BYTES + self.large.size_bytes();
            if end == size || tries == TRIES {
                break (end, size);
            }
            tries += 1;
            esker_trt::sleep(PAUSE);
        };
        if end != size {
            report.problem(format!("intervals and large values end at {end}, the space at {size}"));
        }
    }

    fn verify(
        &self,
        located: &super::index::Located,
        last: &mut Option<Vec<u8>>,
        report: &mut CheckReport,
    ) -> Result<()> {
        let bytes = self.read_located(located)?;
        if let Some(cached) = &located.entry.cached
            && cached.bytes() != bytes
        {
            report.problem("an interval in memory is not what the space has".to_owned());
        }
        let interval = self.decode(bytes)?;
        report.batches += u64::from(located.entry.runs);
        for index in interval.visible(u64::MAX) {
            match interval.pair(index as usize).content {
                Content::Delete => continue,
                Content::Large(_, number, length) => self.verify_large(number, length, report)?,
                Content::Put(..) => {}
            }
            report.records += 1;
        }
        let is_counted = !located.entry.is_unread();
        let (found, known) = (interval.len(), usize::from(located.entry.pairs));
        if is_counted && found.min(PAIRS_COUNTED_MAX.into()) != known {
            report.problem(format!("an interval of {found} pairs, {known} by the index"));
        }
        for index in 0..interval.len() {
            let key = interval.pair(index).key;
            let inside = key >= located.anchor[..]
                && located.upper.as_ref().is_none_or(|upper| key < upper[..])
                && last.as_ref().is_none_or(|last| key >= last[..]);
            if !inside {
                report.problem("a key outside of its interval, or out of order".to_owned());
            }
            *last = Some(key.to_vec());
        }
        Ok(())
    }

    fn verify_large(&self, number: u64, length: u64, report: &mut CheckReport) -> Result<()> {
        if !self.large.has(number, length) {
            report.problem(format!("large value {number} of {length} bytes is missing"));
            return Ok(());
        }
        match self.read_large(number, length, &mut |_| Ok(())) {
            Err(error) if error.kind() == ErrorKind::Corrupted => report.problem(error.to_string()),
            done => drop(done?),
        }
        Ok(())
    }

    /// Looks inside up to `count` coarse intervals from leaf `from` on, if the committer is at rest. The leaf to go on
    /// with; `None` if there is none left.
    pub(super) fn look_inside(&self, from: Place, count: usize) -> Result<Option<Place>> {
        let mut from = from;
        for _ in 0..count {
            let Some(_committer) = self.committer.try_lock() else { return Ok(Some(from)) };
            let Some(leaf) = self.refine_next(from)? else { return Ok(None) };
            from = leaf;
        }
        Ok(Some(from))
    }

    /// Looks inside the first coarse interval from leaf `from` on: the leaf to go on with. The committer's lock is held.
    pub(super) fn refine_next(&self, from: Place) -> Result<Option<Place>> {
        let Some((leaf, anchor)) = self.index.coarse(from) else { return Ok(None) };
        self.refine(&anchor)?;
        Ok(Some(leaf))
    }
}
