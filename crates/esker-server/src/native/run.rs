//! One request, from its admission to its answer: what each operation means to the store.
//!
//! # Invariants
//! - J1: a job is answered exactly once: by its end, or, if its task panics or never began, by its
//!   drop. Its ticket is marked before that, so that nobody waits for it for ever; if it ends before those that it had to
//!   wait for, its ticket waits for them in its place.
//!
//! # Failure
//! Clients hear the kind of a failure of the store; device, offset and cause go to the log.

use super::connection::{Asked, Connection};
use super::duplex::Duplex;
use super::multi::Found;
use super::order::{Ticket, Waits};
use super::session::held_bytes;
use crate::backups::Turn;
use crate::budget::Share;
use crate::counters::Counter;
use crate::execute::Ground;
use esker::{
    Attributes, BackupReport, Batch, Condition, Error, ErrorKind, Outcome, PutOptions, Value,
};
use esker_base::ids::Version;
use esker_format::native::{self, ChangeKind, Changes, Opcode, Put, Request, Status};
use std::rc::Rc;

/// What a request is answered.
pub(super) enum Told {
    /// Only how it went; the words of the status, if the store failed.
    Status(Status),
    /// The version that a write made.
    Version(Version),
    Item(Value),
    /// What the first keys of a `multi_get` hold.
    Items(Vec<Option<Found>>),
    Words(String),
}

/// A request in flight with all that it needs.
pub(super) struct Job<D: Duplex + 'static> {
    pub(super) connection: Rc<Connection<D>>,
    pub(super) asked: Asked,
    pub(super) payload: Vec<u8>,
    pub(super) share: Option<Share>,
    /// Counts the payload among the data blocks of all connections.
    pub(super) _counted: Option<Share>,
    pub(super) ticket: Rc<Ticket>,
    pub(super) waits: Waits,
    /// Of a backup.
    pub(super) turn: Option<Turn>,
    pub(super) answered: bool,
}

impl<D: Duplex + 'static> Job<D> {
    /// Runs the request and appends its reply. What comes back has it to send, once nothing is held that others may need.
    #[must_use = "nobody else may send the reply"]
    pub(super) fn run(mut self) -> Rc<Connection<D>> {
        let told = self.execute().unwrap_or_else(|error| {
            self.ground().report(&error);
            Told::Status(Status::Failed(error.kind()))
        });
        let connection = self.connection.clone();
        self.answer(told);
        connection
    }

    pub(super) fn ground(&self) -> Ground<'_> {
        self.connection.shared.ground(self.connection.core)
    }

    fn answer(&mut self, told: Told) {
        self.answered = true;
        self.ticket.mark_after(&std::mem::take(&mut self.waits));
        if self.asked.opcode == Opcode::Backup as u8 {
            self.connection.end_backup();
        }
        let carries = matches!(told, Told::Item(_) | Told::Items(_));
        let share = self.share.take().filter(|_| carries);
        self.connection.answer(self.asked, told, share);
    }

    fn execute(&mut self) -> Result<Told, Error> {
        let waited = !self.waits.is_empty();
        while let Some(earlier) = self.waits.last() {
            earlier.wait()?;
            self.waits.pop();
        }
        self.waits = Waits::new();
        self.connection.shared.flush_if_due(self.connection.core);
        let payload = std::mem::take(&mut self.payload);
        let Ok(request) = Request::decode(self.asked.opcode, &payload) else {
            // It was one when it was admitted.
            return Ok(Told::Status(Status::Malformed));
        };
        if matches!(request, Request::Get { .. } | Request::MultiGet(_)) {
            self.hold_what_is_there(&request, waited)?;
        }
        match request {
            Request::Get { key } => self.get(key),
            Request::MultiGet(keys) => self.multi_get(keys),
            Request::Put(put) => self.put(&put),
            Request::Delete { key, condition } => self.delete(key, condition),
            Request::Batch(changes) => self.batch(changes),
            Request::Sync => {
                self.connection.shared.store.sync()?;
                Ok(Told::Status(Status::Ok))
            }
            Request::Stats => Ok(Told::Words(self.connection.shared.native_stats())),
            Request::Clear => {
                self.connection.count(Counter::CmdFlush, 1);
                if !self.connection.shared.flush_enabled {
                    return Ok(Told::Status(Status::Forbidden));
                }
                self.connection.shared.store.clear()?;
                Ok(Told::Status(Status::Ok))
            }
            Request::Backup => Ok(self.backup()),
            // The session answers these itself.
            Request::Ping | Request::Authenticate { .. } => Ok(Told::Status(Status::Ok)),
        }
    }

    /// What is about to be read may have become more since the request was admitted: by requests that it waited for. What others have made
    /// longer is charged as it is read.
    fn hold_what_is_there(&mut self, request: &Request<'_>, waited: bool) -> Result<(), Error> {
        let held_bytes = if waited { held_bytes(&self.connection.shared, request) } else { 0 };
        let more = held_bytes.saturating_sub(self.asked.held_bytes);
        self.connection.begin_reading(&mut self.asked, more)?;
        let grown = self.share.as_mut().is_none_or(|share| share.try_grow(more));
        if grown { Ok(()) } else { Err(Error::new(ErrorKind::OutOfMemory, "read item")) }
    }

    fn backup(&mut self) -> Told {
        // What it has to wait for has taken effect, and nobody waits for it.
        self.ticket.mark();
        // There is one until here, for there is only one execution.
        let Some(turn) = self.turn.take() else { return Told::Status(Status::TooLarge) };
        match turn.run() {
            Ok(report) => Told::Words(words_of(report)),
            // It has been logged.
            Err(error) => {
                self.connection.count(Counter::StoreErrors, 1);
                Told::Status(Status::Failed(error.kind()))
            }
        }
    }

    fn get(&mut self, key: &[u8]) -> Result<Told, Error> {
        let mut share = self.share.take();
        let ground = self.ground();
        ground.counters.add(Counter::CmdGet, 1);
        let told = match ground.live(key, &mut share)? {
            Some(item) => {
                ground.counters.add(Counter::GetHits, 1);
                ground.access.note(key, ground.uptime, true);
                Told::Item(item.into_record().0)
            }
            None => {
                ground.counters.add(Counter::GetMisses, 1);
                Told::Status(Status::KeyMissing)
            }
        };
        self.share = share;
        Ok(told)
    }

    fn put(&self, put: &Put<'_>) -> Result<Told, Error> {
        let ground = self.ground();
        ground.counters.add(Counter::CmdSet, 1);
        if put.value.len() as u64 > ground.item_size_max_bytes {
            ground.counters.add(Counter::StoreTooLarge, 1);
            return Ok(Told::Status(Status::TooLarge));
        }
        let condition = match put.condition {
            native::Condition::Always => Condition::Always,
            native::Condition::Absent => Condition::Absent,
            native::Condition::Present => Condition::Present,
            native::Condition::VersionIs(version) => Condition::VersionIs(version),
        };
        let options = PutOptions { attributes: attributes_of(put.attributes), condition };
        Ok(match ground.store.put_with(put.key, put.value, options)? {
            Outcome::Stored(version) => {
                ground.stored(put.key);
                Told::Version(version)
            }
            Outcome::KeyExists => Told::Status(Status::KeyExists),
            Outcome::KeyMissing => Told::Status(Status::KeyMissing),
            Outcome::VersionDiffers => Told::Status(Status::VersionDiffers),
        })
    }

    fn delete(&self, key: &[u8], condition: native::Condition) -> Result<Told, Error> {
        let ground = self.ground();
        let (deleted, otherwise) = match condition {
            native::Condition::VersionIs(version) => {
                let deleted = ground.store.compare_and_delete(key, version)?;
                (deleted, Status::VersionDiffers)
            }
            _ => (ground.store.delete(key)?, Status::KeyMissing),
        };
        let counter = if deleted { Counter::DeleteHits } else { Counter::DeleteMisses };
        ground.counters.add(counter, 1);
        Ok(Told::Status(if deleted { Status::Ok } else { otherwise }))
    }

    fn batch(&mut self, changes: Changes<'_>) -> Result<Told, Error> {
        let mut batch = Batch::new();
        for change in changes.iter() {
            match change.kind {
                ChangeKind::Put(value, attributes) => {
                    if value.len() as u64 > self.connection.shared.limits.item_size_max_bytes {
                        self.connection.count(Counter::StoreTooLarge, 1);
                        return Ok(Told::Status(Status::TooLarge));
                    }
                    batch.put_with(change.key, value, attributes_of(attributes));
                }
                ChangeKind::Delete => {
                    batch.delete(change.key);
                }
            }
        }
        let version = self.connection.shared.store.write(&batch)?;
        let ground = self.ground();
        ground.counters.add(Counter::CmdSet, batch.len() as u64);
        for change in changes.iter() {
            if let ChangeKind::Put(..) = change.kind {
                ground.stored(change.key);
            }
        }
        Ok(Told::Version(version))
    }
}

impl<D: Duplex + 'static> Drop for Job<D> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        // A panic, or a task that never began. Nothing here may wait: a task of its own sends.
        let panicked = std::thread::panicking();
        let kind = if panicked { ErrorKind::Panicked } else { ErrorKind::OutOfMemory };
        self.answer(Told::Status(Status::Failed(kind)));
        if esker_trt::in_task() {
            let connection = self.connection.clone();
            let _ = esker_trt::spawn(move || connection.send());
        }
    }
}

fn words_of(report: BackupReport) -> String {
    let BackupReport { segments_copied, segments_reused, bytes_copied, last_version } = report;
    let told =
        native::BackupReport { segments_copied, bytes_copied, segments_reused, last_version };
    told.to_string()
}

fn attributes_of(attributes: native::Attributes) -> Attributes {
    let native::Attributes { flags, expires_at, state } = attributes;
    Attributes { flags, expires_at, state }
}
