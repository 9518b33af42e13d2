//! Reads and verifies everything that a space consists of.

use super::{Inner, Writer};
use esker_base::{ErrorKind, Result};
use esker_index::flex_tree::Extent;

/// What [`Space::check`](super::Space::check) found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpaceCheck {
    /// Extents that were read, holes among them.
    pub extents: u64,
    /// Bytes that were read and verified.
    pub bytes: u64,
    /// What is wrong, in words.
    pub problems: Vec<String>,
}

impl Inner {
    pub(super) fn check(&self) -> Result<SpaceCheck> {
        let writer = self.writer.lock();
        let mut report = SpaceCheck::default();
        let payload = self.shape.segment_payload();
        let mut valid = vec![0; self.shared.read().segments.len()];
        let mut extents = Vec::new();
        let mut end = 0;
        let visit = |extent: Extent| {
            if extent.offset != end {
                report
                    .problems
                    .push(format!("the extent at {} follows one to {end}", extent.offset));
            }
            end = extent.end();
            extents.push(extent);
            true
        };
        let walked = self.walk(&writer, 0, visit, &mut Err);
        match walked {
            Err(error) if error.kind() == ErrorKind::Corrupted => {
                report.problems.push(error.to_string());
                return Ok(report);
            }
            walked => drop(walked?),
        }
        report.extents = extents.len() as u64;
        extents.retain(|extent| !extent.is_hole());
        for extent in &extents {
            let index = usize::try_from(extent.place() / payload).unwrap_or(usize::MAX);
            if let Some(valid) = valid.get_mut(index) {
                *valid += u64::from(extent.length);
            }
        }
        self.check_counts(&writer, &valid, &mut report);
        drop(writer);
        // What stands there may be another extent by now, and is verified as well.
        for extent in &extents {
            let mut bytes = self.pool.get(extent.length as usize);
            match self.read(extent.offset, &mut bytes) {
                Ok(count) => report.bytes += count as u64,
                Err(error) if error.kind() == ErrorKind::Corrupted => {
                    report.problems.push(error.to_string());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(report)
    }

    /// Compares what is counted with what extents say: their number, and their bytes in each segment.
    fn check_counts(&self, writer: &Writer, valid: &[u64], report: &mut SpaceCheck) {
        let shared = self.shared.read();
        if shared.tree.extent_count() != report.extents {
            let counted = shared.tree.extent_count();
            report.problems.push(format!("{} extents, {counted} by count", report.extents));
        }
        if shared.valid_bytes != valid.iter().sum::<u64>() {
            report.problems.push(format!("{} valid bytes by count", shared.valid_bytes));
        }
        for (number, (segment, valid)) in shared.segments.iter().zip(valid).enumerate() {
            if u64::from(segment.valid_bytes) != *valid {
                let counted = segment.valid_bytes;
                report
                    .problems
                    .push(format!("segment {number}: {valid} bytes, {counted} by count"));
            }
            if *valid > 0 && writer.free.contains(&(number as u64)) {
                report.problems.push(format!("segment {number} is free and has {valid} bytes"));
            }
        }
    }
}
