//! Doubt: whether a crash leaves a cache whose keys may have older values than clients were told.
//!
//! Where writes go to memory first, a crash loses the last of them. A store that keeps what it is given has what it had before
//! then; a cache must not, and nobody knows which keys these are: it begins empty. The superblock says so from the first write of a
//! session to its clean end.
//!
//! # Invariants
//! - Q1: before a write that goes to memory first is visible, the superblock says durably that the cache is in doubt.
//! - Q2: it says so no more only when everything is durable that clients were told.
//! - Q3: where a crash left doubt, it says so until what was there is forgotten durably: an open that fails before leaves it said.
//!
//! # Concurrency
//! Who writes first says it; others wait for that. Without stripes and without the log's state.
//!
//! # Failure
//! A crash amid it leaves one copy of the superblock old: either holds, as nothing was visible yet, or all is durable.

use super::{Depot, sites, write_superblock};
use esker_base::Result;
use esker_format::depot::Superblock;
use esker_trt::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module's text.
#[derive(Debug)]
pub(super) struct Doubt {
    /// Whether a write puts the cache in doubt.
    may_be: bool,
    /// Whether the superblock says so.
    is_said: AtomicBool,
    /// Whether what a crash left is still there.
    is_to_forget: AtomicBool,
    saying: Mutex<()>,
}

impl Doubt {
    /// `was_in_doubt`: a crash left doubt, and the superblock says so.
    pub(super) fn new(may_be: bool, was_in_doubt: bool) -> Doubt {
        let [is_said, is_to_forget] = [was_in_doubt; 2].map(AtomicBool::new);
        Doubt { may_be, is_said, is_to_forget, saying: Mutex::default() }
    }

    /// Whether a write has to wait until the superblock says it.
    pub(super) fn is_unsaid(&self) -> bool {
        self.may_be && !self.is_said.load(Ordering::Acquire)
    }
}

impl Depot {
    /// Q1.
    pub(super) fn say_doubt(&self) -> Result<()> {
        let _turn = self.doubt.saying.lock();
        if !self.doubt.is_unsaid() {
            return Ok(());
        }
        let said = Superblock { in_doubt: true, ..self.superblock };
        // PERSIST: Q1. Crash before: nothing was written in this session that anybody saw.
        let written = write_superblock(&*self.device, &self.pool, &said);
        let durable = written.and_then(|()| self.device.flush(sites::DOUBT_FLUSH));
        durable.map_err(|error| self.poison(&error))?;
        self.doubt.is_said.store(true, Ordering::Release);
        Ok(())
    }

    /// Q2. Everything is durable, and nobody writes.
    pub(super) fn end_doubt(&self) -> Result<()> {
        let _turn = self.doubt.saying.lock();
        // Q3.
        let is_early = self.doubt.is_to_forget.load(Ordering::Acquire);
        if is_early || !self.doubt.is_said.load(Ordering::Acquire) {
            return Ok(());
        }
        // PERSIST: last.
        let written = write_superblock(&*self.device, &self.pool, &self.superblock);
        let durable = written.and_then(|()| self.device.flush(sites::CLOSE_FLUSH));
        durable.map_err(|error| self.poison(&error))?;
        self.doubt.is_said.store(false, Ordering::Release);
        Ok(())
    }

    /// A cache lost what was not durable in a crash: keys may have older values, and nobody knows which.
    pub(super) fn forget_after_crash(&self) -> Result<()> {
        tracing::warn!(
            "the cache was not stopped, and not every write was durable: it begins empty"
        );
        self.clear_records()?;
        self.flush_published()?;
        self.doubt.is_to_forget.store(false, Ordering::Release);
        self.end_doubt()
    }
}
