//! Segments that are full and not on the device yet: whoever fills the next one does not wait for them (FlexSpace §4.1).
//!
//! A write of a whole segment takes as long as placing what is in it, and longer. So a thread of the space's user may write
//! full segments ([`Space::write_filled`](super::Space::write_filled)) while the writer goes on in another one. Without such a
//! thread each is written where it became full, as before.
//!
//! # Invariants
//! - H1: what is in a filled segment is read from memory until all of it is on the device. The collector has them written
//!   before it looks for those that are worth moving.
//! - H2: a commit writes those that are left before it flushes (P2): nothing durable points at what was not written, and no
//!   segment is free that is still to be written.
//! - H3: once a write failed, none of them is written again: the space has failed.
//!
//! # Concurrency
//! They are written one behind the other, by who has the `turn`: that thread, or a writer who needs it. Lock order: the
//! writer, the turn, the shared state.
//!
//! # Failure
//! A crash leaves any part of them on the device, in segments that nothing durable points at.

use super::commit::no_lack;
use super::nodes::LEAVES_AT_REST;
use super::{Inner, sites};
use esker_base::{Error, ErrorKind, Result};
use esker_media::IoBuf;
use esker_trt::sync::Mutex;
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// A segment whose last blocks are only in memory.
#[derive(Clone, Debug)]
pub(super) struct FilledSegment {
    pub(super) number: u64,
    /// The first block that is not on the device.
    pub(super) first_block: u64,
    /// All of its blocks.
    pub(super) buffer: Arc<IoBuf>,
}

/// Is called when there is a segment to write.
type Wake = Box<dyn Fn() + Send + Sync>;

/// Who writes filled segments, and how many may wait for that.
#[derive(Default)]
pub(super) struct Behind {
    /// 0: each is written at once.
    most: AtomicUsize,
    wake: OnceLock<Wake>,
    turn: Mutex<()>,
    /// Memory of segments that were written, for those that are filled next.
    spare: parking_lot::Mutex<Vec<Arc<IoBuf>>>,
    /// Whether a segment was begun since somebody asked.
    is_filling: AtomicBool,
}

/// Spare segments that stay while none is begun: the next one does not wait for memory.
const SPARE_AT_REST: usize = 1;

impl Behind {
    pub(super) fn new(most: usize) -> Self {
        Behind { most: AtomicUsize::new(most), ..Behind::default() }
    }

    /// Whether full segments may wait.
    pub(super) fn is_on(&self) -> bool {
        self.most.load(Ordering::Relaxed) > 0
    }

    pub(super) fn set(&self, most: usize, wake: Wake) {
        let set = self.wake.set(wake);
        debug_assert!(set.is_ok(), "set once");
        self.most.store(most, Ordering::Relaxed);
    }
}

impl Inner {
    /// Memory for another segment; nobody else has it.
    pub(super) fn segment_buffer(&self) -> Arc<IoBuf> {
        self.behind.is_filling.store(true, Ordering::Relaxed);
        let spare = self.behind.spare.lock().pop();
        let size = usize::try_from(self.shape.segment_size_bytes).unwrap_or(0);
        spare.unwrap_or_else(|| Arc::new(self.pool.get_zeroed(size)))
    }

    /// Frees memory of segments, and that of leaves that lie idle, if no segment was begun since this was called last.
    pub(super) fn free_spare(&self) {
        if !self.behind.is_filling.swap(false, Ordering::Relaxed) {
            let mut spare = self.behind.spare.lock();
            let stays = spare.len().min(SPARE_AT_REST);
            let gone = spare.split_off(stays);
            drop(spare);
            drop(gone);
            if let Some(writer) = self.writer.try_lock() {
                self.forget_idle(&writer, LEAVES_AT_REST);
            }
        }
    }

    /// A segment was filled: somebody else writes it, or, if too many wait, all are written now.
    pub(super) fn leave_filled(&self) -> Result<()> {
        let waiting = self.shared.read().filled.len();
        if waiting > self.behind.most.load(Ordering::Relaxed) {
            return self.write_filled();
        }
        if let Some(wake) = self.behind.wake.get() {
            wake();
        }
        Ok(())
    }

    /// Writes all segments that are full and not on the device.
    pub(super) fn write_filled(&self) -> Result<()> {
        let _turn = self.behind.turn.lock();
        loop {
            let next = self.shared.read().filled.first().cloned();
            let Some(filled) = next else { return Ok(()) };
            // H3: what failed may be there in parts.
            if let Some(cause) = &*self.failed.lock() {
                return Err(Error::new(ErrorKind::ReadOnly, "write space").source(cause.clone()));
            }
            let done = self.write_segment(&filled);
            self.fail_on(done)?;
            let gone = self.shared.write().filled.remove(0);
            drop(filled);
            self.behind.spare.lock().push(gone.buffer);
        }
    }

    fn write_segment(&self, filled: &FilledSegment) -> Result<()> {
        let FilledSegment { number, first_block, buffer } = filled;
        let start = first_block * u64::from(self.shape.block_size_bytes);
        let bytes = buffer.get(usize::try_from(start).unwrap_or(usize::MAX)..).unwrap_or_default();
        let offset = number * self.shape.segment_size_bytes + start;
        let write = self.files.data.write_at(sites::DATA_WRITE, offset, &[IoSlice::new(bytes)]);
        write.map_err(no_lack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flex::{Space, SpaceOptions};

    #[test]
    fn memory_of_segments_goes_when_none_is_filled_any_more() {
        const SEGMENTS: usize = 4;
        let folder = tempfile::tempdir().unwrap();
        let space = Space::open(&SpaceOptions::new(folder.path())).unwrap();
        space.write_behind(SEGMENTS, || ());
        let size = usize::try_from(space.segment_size_bytes()).unwrap();
        let spare = || space.0.behind.spare.lock().len();
        for _ in 0..2 {
            for _ in 0..SEGMENTS {
                space.append(&vec![7; size]).unwrap();
            }
            space.write_filled().unwrap();
        }
        let before = spare();
        assert!(before > 1, "{before} buffers");
        space.free_spare();
        assert_eq!(spare(), before, "they were of use since");
        space.free_spare();
        assert_eq!(spare(), SPARE_AT_REST);
    }
}
