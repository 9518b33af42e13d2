//! What the tasks of one connection share: replies to be sent, and how much is in flight.
//!
//! There is no task for sending. Whoever has a reply appends it; if nobody sends, he does, first
//! letting those go on who are ready to answer, too; what comes while he sends leaves with his next
//! write.
//!
//! # Invariants
//! - L1: at most one task sends. It ends only when nothing is left to send.
//! - L2: after a failure nothing more is sent, replies are dropped, and the session is told by the
//!   end of what it reads.

use super::duplex::Duplex;
use super::multi::{Found, FoundValue};
use super::order::Order;
use super::run::Told;
use crate::budget::Share;
use crate::counters::{Counter, Shard};
use crate::limits::{OUTPUT_BYTES_MAX, ZERO_COPY_BYTES_MIN};
use crate::output::Output;
use crate::patience::{Progress, patiently, until_admitted};
use crate::shared::Shared;
use crate::transport::LINGER;
use esker_base::Result;
use esker_format::native::{
    Attributes, FRAME_HEADER_SIZE, ItemHead, NO_REQUEST, Opcode, Status, encode_version,
    frame_header, multi_get_entry,
};
use esker_trt::local::Notify;
use std::cell::{Cell, RefCell};
use std::io::{ErrorKind as IoErrorKind, Result as IoResult};
use std::sync::Arc;
use std::time::Duration;

/// Turns of the core that a reply waits for others at most.
const TURNS_MAX: u32 = 8;

/// One connection, as its tasks see it.
pub(super) struct Connection<D> {
    pub(super) shared: Arc<Shared>,
    pub(super) core: usize,
    pub(super) duplex: D,
    /// Replies that nobody sends yet.
    output: RefCell<Output>,
    /// What sending them ends.
    replies: Cell<Ending>,
    /// An empty one to go on with.
    spare: Cell<Output>,
    sending: Cell<bool>,
    broken: Cell<bool>,
    /// Requests in flight, and the bytes of values they hold (D2).
    in_flight: Cell<u32>,
    held_bytes: Cell<u64>,
    /// Those of them that requests hold which read, or have.
    read_bytes: Cell<u64>,
    /// Those of them that are backups.
    backups: Cell<u32>,
    /// Until when the client has to have said who it is; it may give commands if `None`.
    pub(super) to_say: Cell<Option<Duration>>,
    /// Which requests wait for which.
    pub(super) order: RefCell<Order>,
    /// Something is in flight no more: for the session.
    room: Notify,
    /// The same, for those who are to read.
    room_to_read: Notify,
}

/// Requests that are in flight no more once their replies are sent, and what they hold: all of it, and what was held to read.
#[derive(Clone, Copy, Debug, Default)]
struct Ending {
    requests: u32,
    held_bytes: u64,
    read_bytes: u64,
}

/// A request that is in flight; it is answered through this, or gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) id: u32,
    pub(super) opcode: u8,
    /// Bytes of values that it may hold.
    pub(super) held_bytes: u64,
    /// Whether it has begun to read values ([`Connection::begin_reading`]).
    pub(super) reads: bool,
}

impl<D: Duplex> Connection<D> {
    pub(super) fn new(shared: Arc<Shared>, core: usize, duplex: D) -> Self {
        let to_say = shared.auth.is_some().then(|| until_admitted(&shared));
        Connection {
            shared,
            core,
            duplex,
            output: RefCell::default(),
            replies: Cell::default(),
            spare: Cell::default(),
            sending: Cell::new(false),
            broken: Cell::new(false),
            in_flight: Cell::new(0),
            held_bytes: Cell::new(0),
            read_bytes: Cell::new(0),
            backups: Cell::new(0),
            to_say: Cell::new(to_say),
            order: RefCell::new(Order::new()),
            room: Notify::new(),
            room_to_read: Notify::new(),
        }
    }

    pub(super) fn shard(&self) -> &Shard {
        self.shared.counters.shard(self.core)
    }

    pub(super) fn count(&self, counter: Counter, step: u64) {
        self.shard().add(counter, step);
    }

    /// Requests that are not answered yet, or whose replies are not sent.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight.get()
    }

    /// Whether no request in flight holds memory: a backup, which may last, does not (D4).
    pub(super) fn holds_nothing(&self) -> bool {
        self.in_flight.get() <= self.backups.get()
    }

    /// A request of those in flight is a backup.
    pub(super) fn begin_backup(&self) {
        self.backups.set(self.backups.get().saturating_add(1));
    }

    /// Its reply is ready.
    pub(super) fn end_backup(&self) {
        self.backups.set(self.backups.get().saturating_sub(1));
    }

    /// Bytes of values that requests in flight may hold.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes.get()
    }

    /// One request more.
    pub(super) fn begin(&self, held_bytes: u64) {
        if self.in_flight.get() == 0 {
            self.shard().enter();
            self.duplex.note_waiting(true);
        }
        self.in_flight.set(self.in_flight.get().saturating_add(1));
        self.held_bytes.set(self.held_bytes.get().saturating_add(held_bytes));
    }

    /// A request that has waited for those before it is about to read values, of `more` bytes than was foreseen. It waits until those that
    /// read hold so little that all come to [`OUTPUT_BYTES_MAX`] at most, or nothing: these wait for nobody, so that nobody waits in a circle.
    /// What it wants counts among what is held from the beginning: the session admits nothing more that reads beside it for ever.
    ///
    /// # Errors
    /// `Cancelled` at a shutdown.
    pub(super) fn begin_reading(&self, asked: &mut Asked, more: u64) -> Result<()> {
        let wanted = asked.held_bytes.saturating_add(more);
        asked.held_bytes = wanted;
        self.held_bytes.set(self.held_bytes.get().saturating_add(more));
        loop {
            let read_bytes = self.read_bytes.get();
            let fits = read_bytes.saturating_add(wanted) <= OUTPUT_BYTES_MAX;
            if fits || read_bytes == 0 || wanted == 0 {
                break;
            }
            self.send();
            if self.read_bytes.get() == read_bytes {
                self.room_to_read.wait()?;
            }
        }
        self.read_bytes.set(self.read_bytes.get().saturating_add(wanted));
        asked.reads = true;
        Ok(())
    }

    fn end(&self, ending: Ending) {
        let Ending { requests, held_bytes, read_bytes } = ending;
        self.read_bytes.set(self.read_bytes.get().saturating_sub(read_bytes));
        let left = self.in_flight.get().saturating_sub(requests);
        self.in_flight.set(left);
        self.held_bytes.set(self.held_bytes.get().saturating_sub(held_bytes));
        if left == 0 && requests > 0 {
            self.order.borrow_mut().all_done();
            self.shard().leave();
            self.duplex.note_waiting(false);
        }
        self.room.notify_one();
        if read_bytes > 0 {
            self.room_to_read.notify_all();
        }
    }

    /// Waits until something is in flight no more. Only the session waits here.
    ///
    /// # Errors
    /// `Cancelled` at a shutdown.
    pub(super) fn wait_for_room(&self) -> Result<()> {
        self.send();
        self.room.wait()
    }

    /// Appends the reply to `asked`; [`Connection::send`] sends it. `share` goes back when it is sent.
    pub(super) fn answer(&self, asked: Asked, told: Told, share: Option<Share>) {
        let before = self.replies.get();
        let read_bytes = if asked.reads { asked.held_bytes } else { 0 };
        self.replies.set(Ending {
            requests: before.requests.saturating_add(1),
            held_bytes: before.held_bytes.saturating_add(asked.held_bytes),
            read_bytes: before.read_bytes.saturating_add(read_bytes),
        });
        if self.broken.get() {
            return;
        }
        let mut output = self.output.borrow_mut();
        let (id, opcode) = (asked.id, asked.opcode);
        match told {
            Told::Status(status) => match status {
                Status::Failed(_) => {
                    push(&mut output, id, opcode, status, status.words().as_bytes())
                }
                _ => push(&mut output, id, opcode, status, &[]),
            },
            Told::Version(version) => {
                let version = encode_version(version);
                push(&mut output, id, opcode, Status::Ok, &version);
            }
            Told::Words(words) => push(&mut output, id, opcode, Status::Ok, words.as_bytes()),
            Told::Item(item) => push_item(&mut output, id, opcode, item, share),
            Told::Items(items) => push_items(&mut output, id, opcode, items, share),
        }
    }

    /// Appends why the connection ends. It is no reply to anything.
    pub(super) fn say_goodbye(&self, status: Status) {
        if !self.broken.get() {
            let mut output = self.output.borrow_mut();
            let words = status.words().as_bytes();
            push(&mut output, NO_REQUEST, Opcode::Goodbye as u8, status, words);
        }
    }

    /// Sends all there is, unless somebody does. On return nothing is left, or somebody sends it.
    pub(super) fn send(&self) {
        let nothing = self.replies.get().requests == 0 && self.output.borrow().is_empty();
        if nothing || self.sending.get() {
            return;
        }
        self.sending.set(true);
        self.let_others_answer();
        loop {
            let answered = self.replies.take();
            let mut batch = self.spare.take();
            std::mem::swap(&mut *self.output.borrow_mut(), &mut batch);
            if answered.requests == 0 && batch.is_empty() {
                self.spare.set(batch);
                break;
            }
            if !self.broken.get()
                && !batch.is_empty()
                && let Err(error) = self.send_batch(&mut batch)
            {
                self.fail(&error);
            }
            batch.clear();
            self.spare.set(batch);
            self.end(answered);
        }
        self.sending.set(false);
    }

    /// While others run, those that are ready to answer do so first, as long as each turn of the core
    /// brings more replies: one write is cheaper than many, and no timer is needed.
    fn let_others_answer(&self) {
        for _ in 0..TURNS_MAX {
            let replies = self.replies.get().requests;
            if self.in_flight.get() <= replies {
                break;
            }
            esker_trt::yield_now();
            if self.replies.get().requests == replies {
                break;
            }
        }
    }

    /// A client that takes too little for too long is cut off.
    fn send_batch(&self, batch: &mut Output) -> IoResult<()> {
        // A stranger is told that its time is over.
        let end = self.to_say.get().map(|until| until.saturating_add(LINGER));
        let mut progress = Progress::sending(&self.shared).until(end);
        let sent = batch.send(|slices| {
            let write = |limit| self.duplex.write_vectored(slices, limit);
            let taken = patiently(&self.shared, &progress, write)?;
            progress.add(&self.shared, taken);
            Ok(taken)
        })?;
        patiently(&self.shared, &progress, |limit| self.duplex.flush(limit))?;
        self.count(Counter::BytesWritten, sent as u64);
        Ok(())
    }

    /// Nothing is sent any more (L2).
    fn fail(&self, error: &std::io::Error) {
        tracing::debug!("connection broke: {error}");
        if error.kind() == IoErrorKind::TimedOut {
            self.count(Counter::RequestTimeouts, 1);
        }
        self.broken.set(true);
        self.output.borrow_mut().clear();
        self.duplex.break_off();
    }
}

fn push(output: &mut Output, id: u32, opcode: u8, status: Status, payload: &[u8]) {
    // Words and versions are far from the size at which there is no header.
    if let Some(header) = frame_header(id, opcode, status, &[payload]) {
        output.push(&header);
        output.push(payload);
    }
}

/// A value in the buffer that the store read it into.
fn push_value(output: &mut Output, value: esker::Value, share: Option<Share>) {
    if value.len() < ZERO_COPY_BYTES_MIN {
        output.push_copy(&value, share);
    } else {
        let length = value.len();
        output.push_value(value, length, share);
    }
}

pub(super) fn head_of(value: &esker::Value) -> ItemHead {
    let esker::Attributes { flags, expires_at, state } = value.attributes();
    ItemHead::new(value.version(), Attributes { flags, expires_at, state })
}

fn push_item(
    output: &mut Output,
    id: u32,
    opcode: u8,
    value: esker::Value,
    mut share: Option<Share>,
) {
    let head = head_of(&value);
    let Some(header) = frame_header(id, opcode, Status::Ok, &[head.bytes(), &value]) else {
        return push(output, id, opcode, Status::TooLarge, &[]);
    };
    if let Some(share) = &mut share {
        // Text that grows takes up to twice its length.
        let twice = (value.len() as u64).saturating_mul(2);
        let copied = value.len() < ZERO_COPY_BYTES_MIN;
        share.shrink_to(if copied { twice } else { value.memory_bytes() });
    }
    output.push(&header);
    output.push(head.bytes());
    push_value(output, value, share);
}

fn push_items(
    output: &mut Output,
    id: u32,
    opcode: u8,
    items: Vec<Option<Found>>,
    share: Option<Share>,
) {
    let entries: Vec<_> = items
        .iter()
        .map(|item| {
            let size = item.as_ref().map(|item| item.head.bytes().len() + item.bytes().len());
            // No value is as large as the size at which there is no entry.
            multi_get_entry(size).unwrap_or_default()
        })
        .collect();
    let mut pieces: Vec<&[u8]> = Vec::with_capacity(items.len().saturating_mul(3));
    for (entry, item) in entries.iter().zip(&items) {
        pieces.push(entry);
        if let Some(item) = item {
            pieces.extend([item.head.bytes(), item.bytes()]);
        }
    }
    let Some(header) = frame_header(id, opcode, Status::Ok, &pieces) else {
        return push(output, id, opcode, Status::TooLarge, &[]);
    };
    output.push(&header);
    // The memory of all goes back together.
    output.push_copy(&[], share);
    for (entry, item) in entries.iter().zip(items) {
        output.push(entry);
        let Some(item) = item else { continue };
        output.push(item.head.bytes());
        match item.value {
            FoundValue::Copied(bytes) => output.push(&bytes),
            FoundValue::Read(value) => {
                let length = value.len();
                output.push_value(value, length, None);
            }
        }
    }
}

const _: () = assert!(FRAME_HEADER_SIZE < ZERO_COPY_BYTES_MIN);
