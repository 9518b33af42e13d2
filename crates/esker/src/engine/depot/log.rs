//! The state of the log: the batch that forms, those who wait for it, and how far the log is written and durable.
//!
//! What is done with it stands in `commit`.
//!
//! # Concurrency
//! The lock around [`State`] is short, and never held across I/O. Who takes no lock looks at [`Doors`].
//!
//! # Failure
//! Nothing here is on media; an open makes it of what recovery found ([`LogEnd`]).

use super::batch::Batch;
use super::later::{Forming, Pieces, Unwritten};
use super::layout::Layout;
use super::place::Tail;
use esker_base::ids::{SegmentEpoch, Sequence, Version};
use esker_base::{Error, ErrorKind, Result};
use esker_format::NUMBER_END;
use esker_format::depot::VersionForm;
use esker_media::BufferPool;
use esker_trt::sync::Gate;
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// What the writers of one batch wait for.
#[derive(Debug, Default)]
pub(super) struct Ticket {
    pub(super) done: Gate,
    pub(super) baton: Gate,
    pub(super) failure: OnceLock<Error>,
    /// Records from this version on went into the next batch.
    pub(super) moved: OnceLock<(Version, Arc<Ticket>)>,
}

impl Ticket {
    /// Waits until the batch is published, or failed.
    pub(super) fn wait(&self) -> Result<()> {
        self.wait_for(Version(0))
    }

    /// Waits until the record of this version, which was appended to the batch, is published, or failed.
    pub(super) fn wait_for(&self, version: Version) -> Result<()> {
        let mut ticket = self;
        loop {
            ticket.done.wait();
            match ticket.moved.get() {
                Some((from, next)) if version >= *from => ticket = next,
                _ => return ticket.failure.get().map_or(Ok(()), |error| Err(error.clone())),
            }
        }
    }
}

/// The batch that forms.
#[derive(Debug)]
pub(super) struct Filling {
    pub(super) batch: Batch,
    pub(super) ticket: Arc<Ticket>,
    /// Numbers of the records that appends began with.
    pub(super) starts: Vec<usize>,
    /// Somebody waits to lead.
    pub(super) has_heir: bool,
}

impl Filling {
    pub(super) fn new(pool: &BufferPool, layout: &Layout, next: Version) -> Self {
        // In the clients' stream, sequence numbers are versions.
        Self::of(Batch::new(pool, layout, Sequence(next.0), VersionForm::Distance), Vec::new())
    }

    fn of(batch: Batch, starts: Vec<usize>) -> Self {
        Filling { batch, ticket: Arc::default(), starts, has_heir: false }
    }

    /// The records from this one on, as the batch that forms next.
    pub(super) fn split_off(&mut self, pool: &BufferPool, layout: &Layout, from: usize) -> Filling {
        let rest = self.batch.split_off(pool, layout, from);
        let place = self.starts.partition_point(|start| *start < from);
        let starts = self.starts.split_off(place).into_iter().map(|start| start - from);
        Filling::of(rest, starts.collect())
    }
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) filling: Filling,
    pub(super) leading: bool,
    pub(super) in_flight: Option<Arc<Ticket>>,
    pub(super) tail: Option<Tail>,
    pub(super) next_version: Version,
    pub(super) clear_version: Version,
    /// Records below are published.
    pub(super) published: Version,
    /// Records below are durable.
    pub(super) durable: Version,
    /// Writers that may share a batch: those of the batch before, and those who came while it was written.
    pub(super) expected: usize,
    /// Batches that nobody is waited for.
    pub(super) hurry: u32,
    /// How long batches take to be written, and when the last one was.
    pub(super) write_time: Duration,
    pub(super) wrote_at: Duration,
    pub(super) failure: Option<Error>,
    pub(super) closed: bool,
    pub(super) wrote: bool,
    /// For durability `periodic` and `none`.
    pub(super) pieces: Pieces,
}

/// What recovery knows of the log's end.
#[derive(Clone, Debug)]
pub(super) struct LogEnd {
    pub(super) tail: Option<Tail>,
    /// Summary of the segment of the tail.
    pub(super) summary: Vec<u8>,
    pub(super) next_epoch: SegmentEpoch,
    pub(super) next_version: Version,
    /// What is there ends below. From here to the next version were numbers that a crash took back: no batch may say that they were
    /// durable, or they would be missed.
    pub(super) durable: Version,
    pub(super) clear_version: Version,
}

impl LogEnd {
    /// Refuses numbers from which on nobody could count to where they end.
    pub(super) fn check(&self) -> Result<()> {
        if self.next_version.0.max(self.next_epoch.0) < NUMBER_END / 2 {
            return Ok(());
        }
        Err(Error::corrupted(
            "recover store",
            "versions or epochs are higher than any that was given",
        ))
    }
}

#[derive(Debug)]
pub(super) struct Log {
    pub(super) state: Mutex<State>,
    /// Summary of the open segment; only the leader takes it.
    summary: Mutex<Vec<u8>>,
    pub(super) unwritten: Unwritten,
    next_epoch: AtomicU64,
    pub(super) doors: Doors,
}

/// As in the log's state, for those who do not take the lock; on a line that hardly ever changes.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Doors {
    pub(super) closed: AtomicBool,
    /// Writes are refused, as the state says why.
    pub(super) refusing: AtomicBool,
}

impl Log {
    pub(super) fn new(pool: &BufferPool, layout: &Layout, end: LogEnd) -> Self {
        Log {
            state: Mutex::new(State {
                filling: Filling::new(pool, layout, end.next_version),
                leading: false,
                in_flight: None,
                tail: end.tail,
                next_version: end.next_version,
                clear_version: end.clear_version,
                published: end.durable,
                durable: end.durable,
                expected: 0,
                hurry: 0,
                write_time: Duration::ZERO,
                wrote_at: Duration::ZERO,
                failure: None,
                closed: false,
                wrote: false,
                pieces: Pieces::default(),
            }),
            summary: Mutex::new(end.summary),
            unwritten: Unwritten::default(),
            next_epoch: AtomicU64::new(end.next_epoch.0),
            doors: Doors::default(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The summary of the open segment, for its one writer, who gives it back.
    pub(super) fn take_summary(&self) -> Vec<u8> {
        std::mem::take(&mut *self.summary.lock())
    }

    pub(super) fn put_summary(&self, summary: Vec<u8>) {
        *self.summary.lock() = summary;
    }

    /// Version of the next record.
    pub(super) fn next_version(&self) -> Version {
        self.state.lock().next_version
    }

    /// The batch that is being written, if one is.
    pub(super) fn in_flight(&self) -> Option<Arc<Ticket>> {
        self.state.lock().in_flight.clone()
    }

    /// Epoch of the segment that is taken into use now.
    pub(super) fn take_epoch(&self) -> SegmentEpoch {
        SegmentEpoch(self.next_epoch.fetch_add(1, Ordering::Relaxed))
    }

    /// Epoch of the segment that is taken into use next.
    pub(super) fn next_epoch(&self) -> SegmentEpoch {
        SegmentEpoch(self.next_epoch.load(Ordering::Relaxed))
    }

    /// Records of lower versions are durable.
    pub(super) fn durable(&self) -> Version {
        self.state.lock().durable
    }

    /// The error of a write now, if the store takes none.
    pub(super) fn refuse(&self) -> Result<()> {
        if !self.doors.refusing.load(Ordering::Acquire) {
            return Ok(());
        }
        self.state.lock().refuse()
    }

    /// Whether clients wrote since the store was opened.
    pub(super) fn has_written(&self) -> bool {
        self.state.lock().wrote
    }

    /// Why the store is read-only, if it is.
    pub(super) fn failure(&self) -> Option<Error> {
        self.state.lock().failure.clone()
    }

    /// Records of lower versions were cleared.
    pub(super) fn clear_version(&self) -> Version {
        self.state.lock().clear_version
    }

    /// Everything up to `version` was cleared.
    pub(super) fn cleared(&self, version: Version) {
        self.state.lock().clear_version = Version(version.0 + 1);
    }

    /// Whether the store was closed.
    pub(super) fn is_closed(&self) -> bool {
        self.doors.closed.load(Ordering::Acquire)
    }
}

impl State {
    pub(super) fn next_version(&self) -> Version {
        self.next_version
    }

    /// Records below are durable.
    pub(super) fn durable(&self) -> Version {
        self.durable
    }

    /// Records of lower versions were cleared.
    pub(super) fn clear_version(&self) -> Version {
        self.clear_version
    }

    /// The piece that forms, and the version of its next record.
    pub(super) fn forming(&mut self) -> Option<(&Forming, &mut Version)> {
        Some((self.pieces.forming.as_ref()?, &mut self.next_version))
    }

    /// Records below `end` are on the device, those below `durable` to stay.
    pub(super) fn wrote_until(&mut self, end: Version, durable: Version) {
        self.durable = self.durable.max(durable);
        self.published = end;
        self.wrote = true;
    }

    pub(super) fn refuse(&self) -> Result<()> {
        if self.closed {
            return Err(Error::new(ErrorKind::Closed, "write store"));
        }
        self.check_failure()
    }

    /// C4.
    pub(super) fn check_failure(&self) -> Result<()> {
        match &self.failure {
            Some(cause) => Err(read_only(cause)),
            None => Ok(()),
        }
    }
}

pub(super) fn read_only(cause: &Error) -> Error {
    Error::new(ErrorKind::ReadOnly, "write store").source(cause.clone())
}
