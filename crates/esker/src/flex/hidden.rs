//! What the engine that is built on a space asks of it, and others do not need: operations that belong together, room that is promised, and
//! when segments are collected.

use super::{Space, Splice};
use esker_base::Result;
use esker_format::flex::SpaceShape;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Segments that are collected with one walk over the tree, as one part of all in so many; and while others are not to notice.
const SETTLED_AT_ONCE: u64 = 32;
const SETTLED_SLOWLY: u64 = 256;

impl Space {
    /// As [`Space::splice`] at the offset that `locate` gives: it is asked when nobody else changes the space, and must not
    /// call it. For who knows where things are by what stands before them.
    ///
    /// # Errors
    /// As for [`Space::splice`].
    pub(crate) fn splice_at(
        &self,
        locate: &dyn Fn() -> u64,
        splice: &Splice<'_>,
        publish: &mut dyn FnMut(),
    ) -> Result<()> {
        self.0.splice(locate, splice, publish)
    }

    /// Where writes began in a range, as far as that is known. What was moved or removed since may have hidden some, and left others.
    ///
    /// # Errors
    /// Those of loading nodes, unless they cannot be read.
    pub(crate) fn begun(&self, range: Range<u64>) -> Result<Vec<u64>> {
        self.0.begun(range)
    }

    /// A range in parts of which each stands in one block, as far as nodes can be read: one of them can be read, or cannot, whatever the
    /// others are.
    ///
    /// # Errors
    /// Those of loading nodes, unless they cannot be read.
    pub(crate) fn in_blocks(&self, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        self.0.in_blocks(range)
    }

    pub(crate) fn shape(&self) -> &SpaceShape {
        &self.0.shape
    }

    /// Live bytes that there are segments for in the file system, known to be allocated.
    pub(crate) fn room(&self) -> u64 {
        self.0.room.load(Ordering::Relaxed)
    }

    /// Whether the file system had no room for another segment when one was asked for last.
    pub(crate) fn is_full(&self) -> bool {
        self.0.is_full.load(Ordering::Relaxed)
    }

    /// Allocates segments for so many live bytes, if the file system has room for them. Whether it has.
    ///
    /// # Errors
    /// `ReadOnly`, `Io`.
    pub(crate) fn reach(&self, live_bytes: u64) -> Result<bool> {
        if live_bytes <= self.room() {
            return Ok(true);
        }
        let mut writer = self.0.begin("grow space")?;
        let done = self.0.reach(&mut writer, live_bytes);
        self.0.fail_on(done)
    }

    /// How many bytes are about to come, beside those that are there: no segment for them is given back to the file system. It
    /// must not call this space. Set once.
    pub(crate) fn expect(&self, expected: impl Fn() -> u64 + Send + Sync + 'static) {
        let set = self.0.expected.set(Box::new(expected));
        debug_assert!(set.is_ok(), "set once");
    }

    /// From now on up to `most` segments that are full may wait until somebody calls [`Space::write_filled`], for which `wake` is called
    /// whenever there is one. It must not call this space. Set once.
    pub(crate) fn write_behind(&self, most: usize, wake: impl Fn() + Send + Sync + 'static) {
        self.0.behind.set(most, Box::new(wake));
    }

    /// Writes the segments that are full and not on the device.
    ///
    /// # Errors
    /// `ReadOnly`; `Io`: the space failed.
    #[doc(hidden)]
    pub fn write_filled(&self) -> Result<()> {
        self.0.write_filled()
    }

    /// Frees memory for segments, and of leaves that lie idle, if no segment was begun since this was called last.
    pub(crate) fn free_spare(&self) {
        self.0.free_spare();
    }

    /// What is called before a commit while operations are held, once for each [`Space::hold`]: the last chance to make
    /// durable elsewhere what they are parts of. It must not call this space. Set once.
    pub(crate) fn on_commit(&self, before: impl Fn() -> Result<()> + Send + Sync + 'static) {
        let set = self.0.before_commit.set(Box::new(before));
        debug_assert!(set.is_ok(), "set once");
    }

    /// From now on operations belong together: none becomes durable before [`Space::release`], unless there is no other
    /// way, and then what [`Space::on_commit`] got is called before.
    pub(crate) fn hold(&self) {
        self.0.writer.lock().held = true;
    }

    /// Ends what [`Space::hold`] began: the next commit makes all of it durable at once.
    pub(crate) fn release(&self) {
        self.0.writer.lock().held = false;
    }

    /// Whether neighbours are written anew, one behind the other. The segments that they were in are empty as a whole soon, so
    /// meanwhile they may be half as full as they should be, and nothing is moved out of them. [`Space::settle`] ends that.
    #[doc(hidden)]
    pub fn loosen(&self, loose: bool) {
        self.0.writer.lock().loose = loose;
    }

    /// Collects segments until live bytes fill so many percent of what they should of them, or `stop` says so, which is asked now and
    /// then with the bytes that were moved. Others come to their turn in between.
    ///
    /// # Errors
    /// As for [`Space::collect`].
    pub(crate) fn settle(&self, percent: u32, stop: &dyn Fn(u64) -> bool) -> Result<()> {
        let mut moved = 0;
        while !stop(moved) {
            let mut writer = self.0.begin("collect segments")?;
            let (bytes, more) = self.0.settle(&mut writer, percent, SETTLED_AT_ONCE)?;
            moved += bytes;
            if !more {
                break;
            }
        }
        Ok(())
    }

    /// As [`Space::settle`], a few segments only; once there is nothing to do, what is free beyond what is soon needed goes back to the
    /// file system. Whether there may be more to do.
    ///
    /// # Errors
    /// As for [`Space::collect`].
    #[doc(hidden)]
    pub fn settle_some(&self, percent: u32) -> Result<bool> {
        let mut writer = self.0.begin("collect segments")?;
        let (_, more) = self.0.settle(&mut writer, percent, SETTLED_SLOWLY)?;
        if !more {
            self.0.trim_surplus(&mut writer);
        }
        Ok(more)
    }

    /// The checkpoint that the space is as it was stored by, if nothing changed since: its generation, and the checksum of
    /// its map, which no other history of this space has.
    pub(crate) fn stored_as(&self) -> Option<(u64, u32)> {
        let writer = self.0.writer.lock();
        let unchanged = writer.log.position == 0 && writer.records.is_empty();
        unchanged.then_some((writer.log.generation, writer.map.0.checksum))
    }
}
