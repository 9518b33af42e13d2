//! Sessions of the native protocol, and whether a client understands what they say.
//!
//! The stream of an input is what a client sends, or, as its marks say, frames in short: opcode, size of the payload, payload. Those are
//! sent as whole frames behind a hello, so that no checksum and no size is in the way.

use super::{Control, Pieces, both_say};
use crate::native::{Duplex, Session};
use crate::shared::Shared;
use esker_format::native::{
    Change, ChangeKind, Changes, ClientHello, Condition, FRAME_HEADER_SIZE, FrameHeader, Item,
    Items, Keys, NO_REQUEST, Opcode, Put, Request, SERVER_HELLO_SIZE, ServerHello, Status, VERSION,
    begin_frame, decode_version, end_frame, push_change, push_key,
};
use std::cell::{Cell, RefCell};
use std::io::{IoSlice, Result as IoResult};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The mark of frames in short.
const SHORT: u8 = 2;

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((control, stream)) = Control::take(input) else { return };
    let frames;
    let stream = if control.marks & SHORT != 0 {
        frames = lengthened(stream);
        &frames
    } else {
        stream
    };
    let (whole, pieces) = both_say(control, |shared, pieces| told(shared, stream, pieces));
    assert_eq!(understood(&whole), understood(&pieces));
}

/// A hello, and the frames that `rest` has in short.
fn lengthened(mut rest: &[u8]) -> Vec<u8> {
    let mut stream = ClientHello { version: VERSION }.encode().to_vec();
    let mut id = NO_REQUEST;
    while let Some(([opcode, size], behind)) = rest.split_first_chunk() {
        // Large ones stand for payloads that are received by themselves, and for those that are refused.
        let wanted = usize::from(*size) * if *size > 200 { 85 } else { 1 };
        let (payload, behind) = behind.split_at(wanted.min(behind.len()));
        id += 1;
        let start = begin_frame(&mut stream);
        stream.extend_from_slice(payload);
        end_frame(&mut stream, start, id, *opcode, Status::Ok).expect("short");
        rest = behind;
    }
    stream
}

/// What a client is told that sends `stream` and then closes.
fn told(shared: &Arc<Shared>, stream: &[u8], pieces: Pieces) -> Vec<u8> {
    let told = Rc::default();
    let duplex = Stream {
        input: stream.to_vec(),
        read: Cell::new(0),
        told: Rc::clone(&told),
        pieces: RefCell::new(pieces),
    };
    Session::new(Arc::clone(shared), 0, duplex, shared.budget.nothing()).run();
    told.take()
}

/// What a client makes of what it is told: id, opcode, status and payload of each frame. Figures are left out, as they have how many
/// bytes came.
fn understood(mut told: &[u8]) -> Vec<(u32, u8, Status, Vec<u8>)> {
    let Some((hello, behind)) = told.split_first_chunk::<SERVER_HELLO_SIZE>() else {
        assert!(told.is_empty(), "half a hello");
        return Vec::new();
    };
    let hello = ServerHello::decode(hello).expect("a hello");
    told = behind;
    let mut replies = Vec::new();
    while !told.is_empty() {
        let header = FrameHeader::peek(told).expect("a whole header");
        assert!(header.payload_size <= hello.reply_size_max, "within what the hello says");
        let size = FRAME_HEADER_SIZE + header.payload_size as usize;
        let (frame, behind) = told.split_at(size);
        assert_eq!(header.verify_frame(frame), Ok(()));
        let status = Status::from_number(header.status).expect("a status");
        let payload = &frame[FRAME_HEADER_SIZE..];
        if status == Status::Ok {
            read(header.opcode, payload);
        }
        let figures = header.opcode == Opcode::Stats as u8 && status == Status::Ok;
        let payload = if figures { Vec::new() } else { payload.to_vec() };
        replies.push((header.id, header.opcode, status, payload));
        told = behind;
    }
    replies
}

/// Reads the reply to a request that was done, as a client does.
fn read(opcode: u8, payload: &[u8]) {
    match Opcode::from_number(opcode).expect("what was done is known") {
        Opcode::Get => assert!(Item::decode(payload).is_ok()),
        Opcode::MultiGet => assert!(Items::new(payload).all(|item| item.is_ok())),
        Opcode::Put | Opcode::Batch => assert!(decode_version(payload).is_ok()),
        Opcode::Stats => assert!(std::str::from_utf8(payload).is_ok()),
        Opcode::Backup | Opcode::Goodbye => panic!("nobody may do that, or says so"),
        Opcode::Ping | Opcode::Authenticate | Opcode::Delete | Opcode::Sync | Opcode::Clear => {
            assert!(payload.is_empty());
        }
    }
}

/// A client whose stream stands in memory, and who notes what it is told.
struct Stream {
    input: Vec<u8>,
    read: Cell<usize>,
    told: Rc<RefCell<Vec<u8>>>,
    pieces: RefCell<Pieces>,
}

impl Duplex for Stream {
    fn read(&self, into: &mut [u8], _timeout: Option<Duration>) -> IoResult<usize> {
        let mut rest = &self.input[self.read.get()..];
        let count = self.pieces.borrow_mut().take(&mut rest, into);
        self.read.set(self.read.get() + count);
        Ok(count)
    }

    fn write_vectored(&self, slices: &[IoSlice<'_>], _timeout: Duration) -> IoResult<usize> {
        Ok(self.pieces.borrow_mut().put(slices, &mut self.told.borrow_mut()))
    }

    fn flush(&self, _timeout: Duration) -> IoResult<()> {
        Ok(())
    }

    fn break_off(&self) {
        self.read.set(self.input.len());
    }

    fn linger(&self, _limit: Duration) {}
}

/// Payloads with their opcodes.
fn requests() -> Vec<(u8, Vec<u8>)> {
    let (mut keys, mut changes) = (Vec::new(), Vec::new());
    let attributes = esker_format::native::Attributes { flags: 7, expires_at: None, state: 3 };
    for key in [&b"key"[..], b"two"] {
        push_key(&mut keys, key).expect("a key");
        let kind = ChangeKind::Put(b"value", attributes);
        push_change(&mut changes, &Change { key, kind }).expect("a change");
    }
    push_change(&mut changes, &Change { key: b"two", kind: ChangeKind::Delete }).expect("a change");
    let put = Put { key: b"key", value: b"value", attributes, condition: Condition::Always };
    let requests = [
        Request::Ping,
        Request::Put(put),
        Request::Put(Put { condition: Condition::Absent, ..put }),
        Request::Get { key: b"key" },
        Request::Batch(Changes::decode(&changes).expect("changes")),
        Request::MultiGet(Keys::decode(&keys).expect("keys")),
        Request::Delete { key: b"key", condition: Condition::Always },
        Request::Sync,
        Request::Stats,
        Request::Backup,
        Request::Clear,
        Request::Authenticate { user: b"ann", password: b"secret" },
        Request::Get { key: b"key" },
    ];
    let payload = |request: &Request<'_>| {
        let mut payload = Vec::new();
        request.encode(&mut payload).expect("it can be said");
        (request.opcode() as u8, payload)
    };
    requests.iter().map(payload).collect()
}

/// Inputs to begin with.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let mut short = Vec::new();
    for (opcode, payload) in requests() {
        short.extend([opcode, u8::try_from(payload.len()).expect("short")]);
        short.extend(payload);
    }
    let value = vec![b'v'; 201 * 85 - 6];
    let put = [&[Opcode::Put as u8, 201, 0, 3, 0][..], b"key", &value].concat();
    let long = [&put[..], &[Opcode::Get as u8, 3], b"key"].concat();
    vec![
        [&[SHORT, 0], &short[..]].concat(),
        [&[SHORT | 1, 1], &short[..]].concat(),
        [&[SHORT, 2], &long[..]].concat(),
        [&[0, 5], &lengthened(&short)[..]].concat(),
        [&[0, 3], &lengthened(&long)[..]].concat(),
    ]
}
