//! The background thread of a store: cleans ahead of the clients, readies free segments, and writes checkpoints of the index: while
//! clients rest, and now and then while they do not. If asked, it gives space back while they rest, and cleans for it. Where writes go to
//! memory first, another one brings full pieces of the log to the device, and by and by those that do not get full; it flushes for
//! `periodic`. So neither waits for the other.
//!
//! A file's fresh extents make each flush pay for file-system metadata (docs/rfcs/0002); the thread
//! has them written once before the log comes there: of a busy log the next segment once half of the open one is used,
//! many while the store is idle, so that a burst of writes does not share the device with zeros.
//!
//! # Concurrency
//! While the thread waits it holds no reference to the store, so a dropped store ends it; a closed one waits until
//! it ended, so that the device is free for the next opener.

use super::checkpoint::GROWTH;
use super::segments::Free;
use super::{Depot, sites};
use crate::options::Durability;
use esker_base::Result;
use esker_base::clock::{Clock, SystemClock};
use esker_base::ids::Version;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Free segments that a new store begins with ready: the first one, and the one behind it.
const NEW_AHEAD: usize = 2;
/// Free segments that are kept ready ahead of a busy log that is through with half of its segment.
const BUSY_AHEAD: usize = 1;
/// Bytes of free segments that are readied while nobody writes, and their share of the store.
const IDLE_AHEAD_BYTES: u64 = 512 << 20;
const IDLE_AHEAD_SHARE: u32 = 4;
/// More than one free segment in so many, beyond those that are kept ready, are given back by and by. If what cleaning would gain is
/// as much, it is cleaned for that.
const TRIM_SHARE: usize = 8;
/// Segments that are given back at a time: writers cannot have them meanwhile.
const TRIM_STEP: usize = 4;
/// How often the thread looks without being woken.
const IDLE_PERIOD: Duration = Duration::from_millis(500);
/// Least time between two flushes of the log.
const PERIOD_MIN: Duration = Duration::from_millis(1);
/// Clients rest who have not written for so long.
const RESTING: Duration = Duration::from_secs(2);
/// Time between checkpoints while they do not: each is a walk through the index, and as many bytes.
const CHECKPOINT_PERIOD: Duration = Duration::from_secs(300);
/// A checkpoint is worth its while if one entry in so many of the index was written since the last.
const CHECKPOINT_SHARE: u64 = 16;
/// And if more than so many were: fewer are read in no time.
const CHECKPOINT_MIN: u64 = 100_000;

/// What is seen of the clients' writes.
struct Writes {
    /// Version that was next when somebody looked last.
    seen: Version,
    /// When somebody wrote last, as far as was seen.
    wrote_at: Duration,
}

impl Writes {
    /// Whether clients rest.
    fn rest(&mut self, next: Version, now: Duration) -> bool {
        if std::mem::replace(&mut self.seen, next) != next {
            self.wrote_at = now;
        }
        now.saturating_sub(self.wrote_at) >= RESTING
    }
}

/// When the next checkpoint is due.
struct Checkpoints {
    /// When the last one was tried: there may have been no room.
    tried_at: Duration,
    /// Version that was next then.
    tried: Version,
}

impl Checkpoints {
    /// Whether it is time for one.
    fn are_due(
        &mut self,
        next: Version,
        entries: impl FnOnce() -> u64,
        now: Duration,
        rest: bool,
    ) -> bool {
        let written = next.0.saturating_sub(self.tried.0);
        let is_time = rest || now.saturating_sub(self.tried_at) >= CHECKPOINT_PERIOD;
        // Entries are counted, which takes long where there are many.
        let due = is_time && written >= CHECKPOINT_MIN && written >= entries() / CHECKPOINT_SHARE;
        if due {
            (self.tried_at, self.tried) = (now, next);
        }
        due
    }
}

impl Depot {
    /// Starts the thread. `new` stores have their first segments readied before the first write.
    pub(super) fn start_background(self: &Arc<Self>, new: bool) -> Result<()> {
        if new {
            self.prepare_ahead(NEW_AHEAD, true)?;
        }
        let store = Arc::downgrade(self);
        let period = match self.durability {
            // What comes right behind the begin of a flush has to be durable by the end of the next one.
            Durability::Periodic(window) => (window / 2).clamp(PERIOD_MIN, IDLE_PERIOD),
            Durability::Sync | Durability::None => IDLE_PERIOD,
        };
        let mut seen = Version(0);
        let now = SystemClock.monotonic();
        let next = self.log.next_version();
        let covered = self.checkpoint.lock().map_or(Version(0), |(version, _)| version);
        let mut checkpoints = Checkpoints { tried_at: now, tried: covered };
        let mut writes = Writes { seen: next, wrote_at: now };
        if self.writes_later() {
            let store = Weak::clone(&store);
            let mut due = SystemClock.monotonic() + period;
            let round = move || write_pieces(&store, period, &mut due);
            self.log_writer.start("esker-depot-log", period, round)?;
        }
        self.background.start("esker-depot", IDLE_PERIOD, move || {
            work(&store, &mut seen, &mut writes, &mut checkpoints).then_some(IDLE_PERIOD)
        })
    }

    /// Readies the first `ahead` segments of the free list, with those that were given back if they are `needed`; true if there was one
    /// to ready.
    fn prepare_ahead(&self, ahead: usize, needed: bool) -> Result<bool> {
        let mut any = false;
        while let Some(id) = self.segments.unprepared(ahead, needed) {
            if !self.segments.take_unprepared(id) {
                break;
            }
            let offset = self.layout.segment_offset(id);
            let prepared = self.device.prepare(sites::PREPARE, offset, self.layout.segment_size);
            let is_ready = prepared.is_ok();
            self.segments.put_back(Free {
                id,
                prepared: is_ready,
                has_room: is_ready,
                was_refused: false,
                stale: false,
                trimmed: false,
                after: Version(0),
            });
            prepared?;
            any = true;
        }
        Ok(any)
    }

    /// Segments that are to be ready for a busy log. What it does not come to in time is not worth its zeros yet.
    fn busy_ahead(&self) -> usize {
        let room = self.log.lock().tail.map_or(0, |tail| self.layout.room_behind(tail.position));
        if room <= self.layout.half() { BUSY_AHEAD } else { 0 }
    }

    /// Segments that are kept ready while nobody writes.
    fn idle_ahead(&self) -> usize {
        let most = (IDLE_AHEAD_BYTES / self.layout.segment_size)
            .min(u64::from(self.layout.segment_count / IDLE_AHEAD_SHARE));
        usize::try_from(most).unwrap_or(0)
    }

    /// Whether clients rest.
    fn is_resting(&self, writes: &mut Writes) -> bool {
        writes.rest(self.log.next_version(), SystemClock.monotonic())
    }

    /// Gives free space back in steps, if much of it lies idle and nobody wrote since version `seen`. If clients rest, and much more would be
    /// free if somebody cleaned, it is cleaned first: nobody else does that for as long as there is room.
    fn trim_while_idle(&self, seen: Version, is_resting: bool) -> Result<()> {
        if !self.trim_idle {
            return Ok(());
        }
        let share = self.segments.count() / TRIM_SHARE;
        let kept = self.idle_ahead() + BUSY_AHEAD;
        let is_over = || self.log.next_version() != seen || self.background.is_stopping();
        if is_resting {
            let gain = self.idle_gain() / self.layout.segment_size;
            let gain = usize::try_from(gain).unwrap_or(usize::MAX);
            // Short of room, it is cleaned as for clients.
            let has_room = self.free_ahead() >= self.clean_below();
            if has_room && gain >= share.max(1) && self.segments.untrimmed() + gain > share + kept {
                self.clean_idly(is_over)?;
            }
        }
        if self.segments.untrimmed() > share + kept {
            while !is_over() && self.trim_free(kept, TRIM_STEP)? > 0 {}
        }
        Ok(())
    }

    /// Writes a checkpoint if it is time, after making room for it.
    fn checkpoint_in_time(&self, writes: &mut Writes, checkpoints: &mut Checkpoints) -> Result<()> {
        let rest = self.is_resting(writes);
        let now = SystemClock.monotonic();
        if !checkpoints.are_due(self.log.next_version(), || self.index.len(), now, rest) {
            return Ok(());
        }
        if !self.superblock.cache {
            let room = self.segments.reserve_of_puts() + self.checkpoint_segments() + GROWTH;
            // It may take the place of the last one.
            let short = || self.segments.free_count() < room;
            self.clean_while(short, || self.background.is_stopping())?;
        }
        self.write_checkpoint_beside().map(drop)
    }

    /// Readies segments for a busy log, or for an idle one if nobody wrote since version `seen`.
    fn prepare_free(&self, seen: &mut Version) -> Result<()> {
        let busy = self.busy_ahead();
        self.prepare_ahead(busy, true)?;
        for ahead in busy + 1..=self.idle_ahead() {
            let now = self.log.next_version();
            if std::mem::replace(seen, now) != now || self.log.is_closed() {
                return Ok(());
            }
            self.prepare_ahead(ahead, false)?;
        }
        Ok(())
    }
}

/// One round of the log's writer: the time until the next one, or `None` when the thread is to end.
fn write_pieces(store: &Weak<Depot>, period: Duration, due: &mut Duration) -> Option<Duration> {
    let store = store.upgrade()?;
    if store.log.is_closed() {
        return None;
    }
    let now = SystemClock.monotonic();
    let written = if now < *due {
        store.write_full(false)
    } else {
        *due = now + period;
        match store.durability {
            Durability::Periodic(_) => store.flush_published(),
            Durability::Sync | Durability::None => store.write_out(),
        }
    };
    if let Err(error) = written {
        // It is told to who writes next.
        tracing::error!(%error, "writing the log failed");
        return None;
    }
    Some(due.saturating_sub(SystemClock.monotonic()))
}

/// One round; false when the thread is to end.
fn work(
    store: &Weak<Depot>,
    seen: &mut Version,
    writes: &mut Writes,
    checkpoints: &mut Checkpoints,
) -> bool {
    let Some(store) = store.upgrade() else { return false };
    if store.log.is_closed() {
        return false;
    }
    let background = Arc::clone(&store.background);
    store.fill_holes();
    if store.log.failure().is_none()
        && let Err(error) = store.clean_ahead(|| background.is_stopping())
    {
        tracing::error!(%error, "cleaning failed");
    }
    if let Err(error) = store.prepare_free(seen) {
        // Only speed is lost: unprepared segments work.
        tracing::warn!(%error, "preparing free segments failed");
    }
    if store.log.failure().is_none()
        && let Err(error) = store.trim_while_idle(*seen, store.is_resting(writes))
    {
        tracing::warn!(%error, "giving free space back failed");
    }
    if store.log.failure().is_none()
        && let Err(error) = store.checkpoint_in_time(writes, checkpoints)
    {
        tracing::warn!(%error, "writing a checkpoint failed");
    }
    true
}
