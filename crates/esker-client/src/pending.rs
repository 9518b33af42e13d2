//! Handles of requests that are in flight.

use crate::client::Client;
use crate::connection::{Handle, QUEUE_BYTES, Submitted};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::table::Reply;
use crate::value::Value;
use esker_format::native::Items;
use std::fmt;
use std::sync::Arc;

/// A request that was submitted. It leaves for the server when it is waited for or dropped, when
/// [`Client::flush`] is called, or when some 32 KiB have come together, whichever is first. One that has left may still be on
/// its way when the program ends: only a reply says that the server has it.
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

    /// Lets the request leave now.
    pub(crate) fn send(&self) {
        self.handle.0.send();
    }

    /// As [`Pending::wait`], for a request that was sent, until `by`.
    pub(crate) fn wait_until(mut self, by: Deadline) -> Result<T> {
        self.waited = true;
        let limit = by.left().unwrap_or_default();
        let reply = self.handle.0.wait_at_most(&self.submitted, limit)?;
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
            self.send();
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
    wanted: Wanted,
    /// What was asked for last, unless there are no keys.
    asked: Option<Pending<Vec<Option<Value>>>>,
}

impl PendingValues {
    /// Asks for the first time.
    pub(crate) fn begin(wanted: Wanted) -> Result<PendingValues> {
        let asked = if wanted.is_answered() { None } else { Some(wanted.ask()?) };
        Ok(PendingValues { wanted, asked })
    }

    /// Waits for the values of all keys, in their order.
    ///
    /// # Errors
    /// As [`Pending::wait`].
    pub fn wait(mut self) -> Result<Vec<Option<Value>>> {
        while let Some(pending) = self.asked.take() {
            self.wanted.take(pending.wait()?)?;
            if !self.wanted.is_answered() {
                self.asked = Some(self.wanted.ask()?);
            }
        }
        Ok(self.wanted.values)
    }
}

/// Keys of one server, and the values of the first of them, which it has told so far.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) client: Client,
    keys: Vec<Vec<u8>>,
    pub(crate) values: Vec<Option<Value>>,
    /// For how many the last reply was, if there was one.
    told: Option<usize>,
}

impl Wanted {
    pub(crate) fn new(client: Client, keys: Vec<Vec<u8>>) -> Wanted {
        let values = Vec::with_capacity(keys.len());
        Wanted { client, keys, values, told: None }
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.values.len() >= self.keys.len()
    }

    /// Whether submitting what [`Wanted::ask`] asks for may take long: to connect, to wait for others, or for the network to take
    /// many keys.
    pub(crate) fn asks_slowly(&self) -> bool {
        let bytes: usize = self.missing().iter().map(Vec::len).sum();
        bytes > QUEUE_BYTES || !self.client.submits_at_once()
    }

    /// Those to ask for: half as many again as were told last. If all that are missing went there each time, and a few
    /// came back, they would go there very often.
    fn missing(&self) -> &[Vec<u8>] {
        let missing = self.keys.get(self.values.len()..).unwrap_or_default();
        let most = self.told.map_or(usize::MAX, |told| told.saturating_add(told.div_ceil(2)));
        missing.get(..most).unwrap_or(missing)
    }

    pub(crate) fn ask(&self) -> Result<Pending<Vec<Option<Value>>>> {
        self.client.submit_some(self.missing())
    }

    /// Takes what a reply says of the next ones.
    pub(crate) fn take(&mut self, some: Vec<Option<Value>>) -> Result<()> {
        let missing = self.keys.len().saturating_sub(self.values.len());
        if some.is_empty() || some.len() > missing {
            return Err(Error::of_flaw(esker_format::Flaw::Field("items")));
        }
        self.told = Some(some.len());
        self.values.extend(some);
        Ok(())
    }
}

pub(crate) fn read_items(payload: &[u8]) -> Result<Vec<Option<Value>>> {
    Items::new(payload)
        .map(|item| Ok(item.map_err(Error::of_flaw)?.as_ref().map(Value::of)))
        .collect()
}
