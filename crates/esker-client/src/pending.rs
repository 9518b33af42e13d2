//! Handles of requests that are in flight.

use crate::client::Client;
use crate::connection::{Handle, Submitted};
use crate::error::{Error, Result};
use crate::table::Reply;
use crate::value::Value;
use esker_format::native::Items;
use std::fmt;
use std::sync::Arc;

/// A request that was submitted. It leaves for the server when it is waited for or dropped, when
/// [`Client::flush`] is called, or when some 32 KiB have come together, whichever is first.
#[must_use = "a failure is only told to who waits"]
pub struct Pending<T> {
    handle: Arc<Handle>,
    submitted: Submitted,
    read: fn(Reply) -> Result<T>,
    waited: bool,
}

impl<T> Pending<T> {
    pub(crate) fn new(
        handle: Arc<Handle>,
        submitted: Submitted,
        read: fn(Reply) -> Result<T>,
    ) -> Pending<T> {
        Pending { handle, submitted, read, waited: false }
    }

    /// Waits for the reply, at most the client's `request_timeout` from now; for that of a backup longer
    /// ([`Client::backup`]).
    ///
    /// # Errors
    /// What the server answers that is no success; `Timeout`, after which the outcome is unknown; what
    /// broke the connection.
    pub fn wait(mut self) -> Result<T> {
        self.waited = true;
        let reply = self.handle.0.wait(&self.submitted)?;
        (self.read)(reply)
    }

    /// Whether [`Pending::wait`] would return at once.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.submitted.slot.is_filled()
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        if !self.waited {
            // Nobody may ask again, and the request was made all the same.
            self.handle.0.send();
        }
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("ready", &self.is_ready()).finish()
    }
}

/// A `multi_get` that was submitted. A server answers for as many keys at once as fit; waiting asks
/// again for the others.
#[derive(Debug)]
#[must_use = "a failure is only told to who waits"]
pub struct PendingValues {
    pub(crate) client: Client,
    pub(crate) keys: Vec<Vec<u8>>,
    /// The first request, unless there are no keys.
    pub(crate) first: Option<Pending<Vec<Option<Value>>>>,
}

impl PendingValues {
    /// Waits for the values of all keys, in their order.
    ///
    /// # Errors
    /// As [`Pending::wait`].
    pub fn wait(self) -> Result<Vec<Option<Value>>> {
        let mut values = Vec::with_capacity(self.keys.len());
        let mut next = self.first;
        while let Some(pending) = next.take() {
            let some = pending.wait()?;
            let left = self.keys.len().saturating_sub(values.len());
            if some.is_empty() || some.len() > left {
                return Err(Error::of_flaw(esker_format::Flaw::Field("items")));
            }
            values.extend(some);
            let rest = self.keys.get(values.len()..).unwrap_or_default();
            if !rest.is_empty() {
                next = Some(self.client.submit_some(rest)?);
            }
        }
        Ok(values)
    }
}

pub(crate) fn read_items(payload: &[u8]) -> Result<Vec<Option<Value>>> {
    Items::new(payload)
        .map(|item| Ok(item.map_err(Error::of_flaw)?.as_ref().map(Value::of)))
        .collect()
}
