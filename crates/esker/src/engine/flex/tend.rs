//! What is done for intervals while the committer rests: those in many places are brought together (FlexSpace §5.2, §5.3),
//! and everything is read and verified, little by little.
//!
//! # Concurrency
//! By the background thread, under the committer's lock, for one interval at a time.
//!
//! # Failure
//! An interval is rewritten as by the committer: a crash leaves the old or the new one. Damage is told, and left as it is.

use super::Flex;
use esker_base::Result;

/// An interval of so many runs is noted when it is read: each of them may take a read of its own.
pub(super) const FRAGMENTED_RUNS: usize = 3;
/// Most intervals that are noted.
const NOTED_MAX: usize = 1024;
/// Noted intervals for which the thread is woken.
const NOTED_MUCH: usize = 64;
/// Intervals that are rewritten before others are served.
const REWRITTEN_AT_ONCE: usize = 64;

impl Flex {
    /// Notes that the interval with this key is in many places, if there is room for the note.
    pub(super) fn note_fragmented(&self, key: &[u8]) {
        let Some(mut noted) = self.fragmented.try_lock() else { return };
        if noted.len() < NOTED_MAX {
            noted.push(key.to_vec());
            if noted.len() == NOTED_MUCH {
                drop(noted);
                self.background.wake();
            }
        }
    }

    /// Brings intervals together that were noted, if the committer has nothing else to do. Whether there are more.
    pub(super) fn defragment(&self) -> Result<bool> {
        for _ in 0..REWRITTEN_AT_ONCE {
            if self.tables().sealed.is_some() || self.wal.check().is_err() {
                return Ok(false);
            }
            let Some(mut committer) = self.committer.try_lock() else { return Ok(false) };
            let Some(key) = self.fragmented.lock().pop() else { return Ok(false) };
            let located = self.index.locate(&key);
            if !located.entry.is_coarse() && usize::from(located.entry.runs) >= FRAGMENTED_RUNS {
                self.rewrite(&mut committer, &located, None, None)?;
            }
        }
        Ok(true)
    }
}
