//! The connections of a client to one server: one, or through shared memory one to each core, by the key's
//! hash (FlatStore §4.3).
//!
//! # Invariants
//! - S1: requests on one key go to one core, so they take effect in the order in which they were submitted.
//! - S2: a request that concerns several keys goes to the first core after all that were submitted before it are
//!   answered, and whatever is submitted after it to another core waits for its answer; of a backup it does not. What
//!   its caller has given up is waited for as well. Whoever waits does so for `request_timeout` in all, whoever waits before him.
//! - S3: with a stream that breaks the others are given up before anything is submitted to new ones: what waits here to
//!   be sent does not take effect after what was submitted later.
//!
//! # Failure
//! What was submitted to a stream that did not break may still be answered, until somebody submits anything else. Then all
//! fail with what the first one broke with, each with its own fate.

use crate::address::Address;
use crate::connection::{Connection, Handle, Submitted, not_answered};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::options::Options;
use esker_format::native::{Request, ServerHello};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// The connections to one server.
#[derive(Debug)]
pub(crate) struct Streams {
    first: Arc<Handle>,
    others: Vec<Arc<Handle>>,
    /// The first core may have a request that those for other cores wait for (S2).
    exclusive: Mutex<bool>,
    request_timeout: Duration,
}

impl Streams {
    pub(crate) fn open(address: &Address, options: &Options) -> Result<Streams> {
        let (first, others) = Connection::open(address, options)?;
        Ok(Streams {
            first: Arc::new(first),
            others: others.into_iter().map(Arc::new).collect(),
            exclusive: Mutex::new(false),
            request_timeout: options.request_timeout,
        })
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Handle>> {
        std::iter::once(&self.first).chain(&self.others)
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.all().any(|handle| handle.0.is_broken())
    }

    /// Gives up all streams if one is broken (S3); says whether one is.
    pub(crate) fn give_up_if_broken(&self) -> bool {
        let cause = self.all().find_map(|handle| handle.0.why_broken());
        if let Some(cause) = &cause {
            self.all().for_each(|handle| handle.0.break_off(cause.clone()));
        }
        cause.is_some()
    }

    /// Whether a request that concerns several keys would be submitted at once.
    pub(crate) fn has_room(&self) -> bool {
        self.first.0.has_room() && self.others.iter().all(|handle| handle.0.is_idle())
    }

    pub(crate) fn hello(&self) -> &ServerHello {
        &self.first.0.hello
    }

    /// Sends what was submitted.
    pub(crate) fn send(&self) {
        self.all().for_each(|handle| handle.0.send());
    }

    /// Submits `request` to the core that it is for.
    pub(crate) fn submit(&self, request: &Request<'_>) -> Result<(Arc<Handle>, Submitted)> {
        let submit = |handle: &Arc<Handle>| Ok((handle.clone(), handle.0.submit(request)?));
        if self.others.is_empty() {
            return submit(&self.first);
        }
        let deadline = Deadline::after(self.request_timeout);
        let key = match request {
            Request::Get { key } | Request::Delete { key, .. } => key,
            Request::Put(put) => put.key,
            // S2, under the lock, so that nobody's later request comes in between.
            _ => {
                let mut exclusive = self.lock_exclusive(deadline)?;
                self.send();
                self.others.iter().try_for_each(|handle| handle.0.wait_until_answered(deadline))?;
                *exclusive |= !matches!(request, Request::Backup);
                return submit(&self.first);
            }
        };
        let cores = self.others.len() as u64 + 1;
        let core = usize::try_from(xxh3_64(key) % cores).unwrap_or(0);
        let Some(handle) = core.checked_sub(1).and_then(|core| self.others.get(core)) else {
            return submit(&self.first);
        };
        let mut exclusive = self.lock_exclusive(deadline)?;
        if *exclusive {
            self.first.0.wait_until_answered(deadline)?;
            *exclusive = false;
        }
        drop(exclusive);
        submit(handle)
    }

    /// Whoever has the lock may wait for answers.
    fn lock_exclusive(&self, deadline: Deadline) -> Result<MutexGuard<'_, bool>> {
        let left = deadline.left().unwrap_or_default();
        self.exclusive.try_lock_for(left).ok_or_else(|| Error::not_sent(not_answered()))
    }
}
