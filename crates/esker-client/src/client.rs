//! A client of one server.
//!
//! # Concurrency
//! [`Client`] is cheap to clone; all clones share one connection. Any number of threads may call.
//!
//! # Failure
//! See the crate's text. Nothing is connected before the first call.

use crate::address::Address;
use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::options::Options;
use crate::pending::{Pending, PendingValues, Wanted, read_items};
use crate::streams::Streams;
use crate::table::Reply;
use crate::value::{Outcome, Value};
use esker_base::clock::{Clock, SystemClock};
use esker_base::ids::Version;
use esker_base::rng::Rng;
use esker_format::native::{
    Attributes, BackupReport, Changes, Condition, Item, Keys, Put, Request, Status, decode_version,
    push_key,
};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Whoever holds the lock of a link for longer connects.
const LOCKED_AT_MOST: Duration = Duration::from_millis(1);

/// The connection, or when the next one may be made.
struct Link {
    streams: Option<Arc<Streams>>,
    /// Why the last try failed, and until when nobody tries again.
    failed: Option<(Error, Duration)>,
    rest: Duration,
    rng: Rng,
}

struct Inner {
    address: Address,
    options: Options,
    link: Mutex<Link>,
}

/// A client of one server. Cheap to clone; all clones are the same client. When the last one is dropped, and the last handle of a
/// request, what was submitted still goes to the server, beside the program and for as long as [`Options::request_timeout`].
#[derive(Clone)]
pub struct Client(Arc<Inner>);

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.0.address)
    }
}

impl Client {
    /// A client of the server at `address`. The first call connects.
    #[must_use]
    pub fn new(address: Address, options: Options) -> Client {
        // Only clients of one server should not come back at the same moment.
        let seed = SystemClock.unix_seconds() << 32 | u64::from(std::process::id());
        let link = Link {
            streams: None,
            failed: None,
            rest: options.backoff_min,
            rng: Rng::from_seed(seed),
        };
        Client(Arc::new(Inner { address, options, link: Mutex::new(link) }))
    }

    /// Where the server is.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.0.address
    }

    /// The value of `key`, if it has one.
    ///
    /// # Errors
    /// `InvalidArgument` for a key outside 1 B to 64 KiB; the server's; those of the connection.
    pub fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        self.submit_get(key)?.wait()
    }

    /// The values of several keys, in their order. They are not read at one moment.
    ///
    /// # Errors
    /// As [`Client::get`]; the first error ends it.
    pub fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>> {
        self.submit_multi_get(keys)?.wait()
    }

    /// Puts `value` under `key`. On return it is as durable as the server's `durability` says.
    ///
    /// # Errors
    /// `InvalidArgument` for a key or value over the server's limits; `NoSpace`, `ReadOnly`; those of
    /// the connection.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<Version> {
        match self.put_with(key, value, Attributes::default(), Condition::Always)? {
            Outcome::Stored(version) => Ok(version),
            _ => Err(Error::of_flaw(esker_format::Flaw::Field("status"))),
        }
    }

    /// Puts `value` under `key` with attributes and on a condition.
    ///
    /// # Errors
    /// As [`Client::put`]. A condition that does not hold is an [`Outcome`], not an error.
    pub fn put_with(
        &self,
        key: &[u8],
        value: &[u8],
        attributes: Attributes,
        condition: Condition,
    ) -> Result<Outcome> {
        self.submit_put(key, value, attributes, condition)?.wait()
    }

    /// Deletes `key`; says whether it had a value.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn delete(&self, key: &[u8]) -> Result<bool> {
        self.submit_delete(key, None)?.wait()
    }

    /// Deletes `key` only if its value still has version `expected`; says whether it did.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn compare_and_delete(&self, key: &[u8], expected: Version) -> Result<bool> {
        self.submit_delete(key, Some(expected))?.wait()
    }

    /// Does all that `batch` says at once, or nothing. Returns the highest version that its changes got, no
    /// matter which of them has it.
    ///
    /// # Errors
    /// As [`Client::put`]; `InvalidArgument` for a batch that is empty or over the server's limit.
    pub fn write(&self, batch: &Batch) -> Result<Version> {
        self.submit_write(batch)?.wait()
    }

    /// Makes everything durable that the server has acknowledged, and what this client has submitted
    /// before.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn sync(&self) -> Result<()> {
        self.submit_sync()?.wait()
    }

    /// Asks the server for a sign of life.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn ping(&self) -> Result<()> {
        self.submit(&Request::Ping, read_nothing)?.wait()
    }

    /// Deletes everything the server has.
    ///
    /// # Errors
    /// As [`Client::put`]; `Unsupported` if its configuration forbids that.
    pub fn clear(&self) -> Result<()> {
        self.submit(&Request::Clear, read_nothing)?.wait()
    }

    /// Figures of the server: names with their values, in its order.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn stats(&self) -> Result<Vec<(String, String)>> {
        let read = |reply: Reply| {
            check(&reply)?;
            let text = String::from_utf8_lossy(&reply.payload).into_owned();
            let lines = text.lines().filter_map(|line| line.split_once(' '));
            Ok(lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
        };
        self.submit(&Request::Stats, read)?.wait()
    }

    /// Has the server copy its store to the folder that it has for that, beside everything else; what an earlier backup
    /// there has is not copied again. The copy has what this client has submitted before.
    ///
    /// That may take minutes: the call waits for as long as the server answers a ping every
    /// [`Options::request_timeout`]. What is submitted meanwhile does not wait, and a backup goes on if its client
    /// leaves.
    ///
    /// # Errors
    /// `Unsupported` if the server's configuration has no folder for backups, or if it is older than they are;
    /// `InvalidArgument` with [`Status::TooLarge`] while another backup of the server runs; what the backup failed with; those
    /// of the connection.
    pub fn backup(&self) -> Result<BackupReport> {
        self.submit_backup()?.wait()
    }

    /// As [`Client::get`], to be waited for later.
    ///
    /// # Errors
    /// Only those after which nothing was sent.
    pub fn submit_get(&self, key: &[u8]) -> Result<Pending<Option<Value>>> {
        self.submit(&Request::Get { key }, |reply| match reply.status {
            Status::KeyMissing => Ok(None),
            _ => {
                check(&reply)?;
                let item = Item::decode(&reply.payload).map_err(Error::of_flaw)?;
                Ok(Some(Value::of(&item)))
            }
        })
    }

    /// As [`Client::multi_get`], to be waited for later.
    ///
    /// # Errors
    /// Only those after which nothing was sent.
    pub fn submit_multi_get(&self, keys: &[&[u8]]) -> Result<PendingValues> {
        let keys: Vec<Vec<u8>> = keys.iter().map(|key| key.to_vec()).collect();
        PendingValues::begin(Wanted::new(self.clone(), keys))
    }

    /// Asks for as many of `keys`, at least one, as go in a request. A server that answers for fewer
    /// is asked again.
    pub(crate) fn submit_some(&self, keys: &[Vec<u8>]) -> Result<Pending<Vec<Option<Value>>>> {
        let streams = self.streams()?;
        let most = usize::try_from(streams.hello().request_size_max).unwrap_or(usize::MAX);
        let mut payload = Vec::new();
        for key in keys {
            let before = payload.len();
            push_key(&mut payload, key).map_err(Error::unsayable)?;
            if payload.len() > most && before > 0 {
                payload.truncate(before);
                break;
            }
        }
        let keys = Keys::decode(&payload).map_err(Error::unsayable)?;
        self.submit(&Request::MultiGet(keys), |reply| {
            check(&reply)?;
            read_items(&reply.payload)
        })
    }

    /// As [`Client::put_with`], to be waited for later.
    ///
    /// # Errors
    /// Only those after which nothing was sent.
    pub fn submit_put(
        &self,
        key: &[u8],
        value: &[u8],
        attributes: Attributes,
        condition: Condition,
    ) -> Result<Pending<Outcome>> {
        let put = Put { key, value, attributes, condition };
        self.submit(&Request::Put(put), |reply| match reply.status {
            Status::KeyExists => Ok(Outcome::KeyExists),
            Status::KeyMissing => Ok(Outcome::KeyMissing),
            Status::VersionDiffers => Ok(Outcome::VersionDiffers),
            _ => read_version(&reply).map(Outcome::Stored),
        })
    }

    /// As [`Client::delete`], or with a version as [`Client::compare_and_delete`], to be waited for
    /// later.
    ///
    /// # Errors
    /// Only those after which nothing was sent.
    pub fn submit_delete(&self, key: &[u8], expected: Option<Version>) -> Result<Pending<bool>> {
        let condition = expected.map_or(Condition::Always, Condition::VersionIs);
        self.submit(&Request::Delete { key, condition }, |reply| match reply.status {
            Status::KeyMissing | Status::VersionDiffers => Ok(false),
            _ => check(&reply).map(|()| true),
        })
    }

    /// As [`Client::write`], to be waited for later.
    ///
    /// # Errors
    /// Only those after which nothing was sent.
    pub fn submit_write(&self, batch: &Batch) -> Result<Pending<Version>> {
        batch.check()?;
        let changes = Changes::decode(&batch.payload).map_err(Error::unsayable)?;
        self.submit(&Request::Batch(changes), |reply| read_version(&reply))
    }

    /// As [`Client::sync`], to be waited for later.
    ///
    /// # Errors
    /// Only those after which nothing was sent.
    pub fn submit_sync(&self) -> Result<Pending<()>> {
        self.submit(&Request::Sync, read_nothing)
    }

    /// As [`Client::backup`], to be waited for later.
    ///
    /// # Errors
    /// Only those after which nothing was sent.
    pub fn submit_backup(&self) -> Result<Pending<BackupReport>> {
        self.submit(&Request::Backup, |reply| {
            check(&reply)?;
            BackupReport::decode(&reply.payload).map_err(Error::of_flaw)
        })
    }

    /// Whether there is a connection to submit to: else the next call makes one, which may take as long as
    /// [`Options::connect_timeout`].
    #[must_use]
    pub fn is_connected(&self) -> bool {
        // Whoever holds the lock for long connects.
        let link = self.0.link.try_lock();
        link.is_some_and(|link| link.streams.as_ref().is_some_and(|streams| !streams.is_broken()))
    }

    /// Whether a request that concerns several keys would be submitted at once now, or fail at once: without connecting first, or
    /// waiting for others.
    pub(crate) fn submits_at_once(&self) -> bool {
        let Some(link) = self.0.link.try_lock_for(LOCKED_AT_MOST) else { return false };
        let rests = |(_, until): &(Error, Duration)| SystemClock.monotonic() < *until;
        match &link.streams {
            Some(streams) if !streams.is_broken() => streams.has_room(),
            _ => link.failed.as_ref().is_some_and(rests),
        }
    }

    /// Sends what was submitted and has not left yet.
    pub fn flush(&self) {
        let streams = self.0.link.lock().streams.clone();
        if let Some(streams) = streams {
            streams.send();
        }
    }

    fn submit<T>(&self, request: &Request<'_>, read: fn(Reply) -> Result<T>) -> Result<Pending<T>> {
        let streams = self.streams()?;
        let (handle, submitted) = match streams.submit(request) {
            Ok(submitted) => submitted,
            // It broke since somebody looked, and nothing was sent: once more, on another one.
            Err(_) if streams.is_broken() => self.streams()?.submit(request)?,
            Err(error) => return Err(error),
        };
        Ok(Pending::new(handle, submitted, read))
    }

    /// The connection; it is made, if there is none and it is time to try.
    fn streams(&self) -> Result<Arc<Streams>> {
        let mut link = self.0.link.lock();
        if let Some(streams) = &link.streams
            && !streams.give_up_if_broken()
        {
            return Ok(streams.clone());
        }
        link.streams = None;
        let now = SystemClock.monotonic();
        if let Some((error, until)) = &link.failed
            && now < *until
        {
            return Err(error.clone());
        }
        // Others wait for the lock meanwhile: they want the same connection.
        match Streams::open(&self.0.address, &self.0.options) {
            Ok(streams) => {
                let streams = Arc::new(streams);
                link.streams = Some(streams.clone());
                link.failed = None;
                link.rest = self.0.options.backoff_min;
                Ok(streams)
            }
            Err(error) => {
                // Up to a quarter more, so that not all come back together.
                let rest = link.rest;
                let quarter = u64::try_from(rest.as_micros() / 4).unwrap_or(u64::MAX);
                let more = Duration::from_micros(link.rng.below(quarter));
                let until = SystemClock.monotonic().saturating_add(rest).saturating_add(more);
                link.failed = Some((error.clone(), until));
                link.rest = rest.saturating_mul(2).min(self.0.options.backoff_max);
                Err(error)
            }
        }
    }
}

/// Whether a reply is a success.
fn check(reply: &Reply) -> Result<()> {
    match reply.status {
        Status::Ok => Ok(()),
        status => Err(Error::of_status(status)),
    }
}

fn read_nothing(reply: Reply) -> Result<()> {
    check(&reply)
}

fn read_version(reply: &Reply) -> Result<Version> {
    check(reply)?;
    decode_version(&reply.payload).map_err(Error::of_flaw)
}
