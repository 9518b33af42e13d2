//! The native protocol, frame by frame.

mod backups;
mod doors;
mod frames;
mod operations;
mod pipelining;
mod shm;

use crate::harness::TestServer;
use esker_format::native::{
    Attributes, ClientHello, Condition, FRAME_HEADER_SIZE, FrameHeader, Item, NO_REQUEST, Opcode,
    Put, Request, SERVER_HELLO_SIZE, ServerHello, Status, VERSION, begin_frame, end_frame,
};
use esker_server::{Limits, ServerConfig};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Longer than anything in these tests takes; a test that waits so long has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server that speaks the native protocol only.
fn start() -> TestServer {
    start_with(|_| {})
}

fn start_with(change: impl FnOnce(&mut ServerConfig)) -> TestServer {
    TestServer::with(|config| {
        config.listen = vec!["native://127.0.0.1:0".parse().expect("address")];
        change(config);
    })
}

fn start_with_limits(limits: Limits) -> TestServer {
    start_with(|config| config.limits = limits)
}

/// A reply.
#[derive(Debug, PartialEq, Eq)]
struct Reply {
    id: u32,
    opcode: u8,
    status: Status,
    payload: Vec<u8>,
}

impl Reply {
    fn item(&self) -> Item<'_> {
        assert_eq!(self.status, Status::Ok);
        Item::decode(&self.payload).expect("an item")
    }
}

/// A client that speaks frames over any stream.
struct Raw<S> {
    stream: S,
    hello: ServerHello,
    next_id: u32,
}

impl Raw<TcpStream> {
    fn connect(server: &TestServer) -> Raw<TcpStream> {
        let stream = TcpStream::connect(server.address()).expect("connect");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        stream.set_nodelay(true).expect("nodelay");
        Raw::greet(stream)
    }

    /// As `receive`, from a server that may close while it is sent to.
    fn receive_until_reset(&mut self) -> Option<Reply> {
        let peeked = self.stream.peek(&mut [0; 1]);
        peeked.is_ok_and(|count| count > 0).then(|| self.receive())?
    }

    /// The same connection, for a thread that only sends.
    fn sender(&self) -> TcpStream {
        self.stream.try_clone().expect("clone")
    }
}

impl<S: Read + Write> Raw<S> {
    fn greet(mut stream: S) -> Raw<S> {
        stream.write_all(&ClientHello { version: VERSION }.encode()).expect("send");
        let mut hello = [0; SERVER_HELLO_SIZE];
        stream.read_exact(&mut hello).expect("hello");
        let hello = ServerHello::decode(&hello).expect("valid");
        Raw { stream, hello, next_id: 1 }
    }

    /// Appends the frame of a request; returns its id.
    fn push(&mut self, frames: &mut Vec<u8>, request: &Request<'_>) -> u32 {
        let id = self.next_id;
        self.next_id += 1;
        push_frame(frames, id, request);
        id
    }

    fn send(&mut self, bytes: &[u8]) {
        // A server that closes early makes this fail; what it said is in the replies.
        let _ = self.stream.write_all(bytes);
    }

    /// The next reply; `None` at the end of the stream.
    fn receive(&mut self) -> Option<Reply> {
        let mut header = [0; FRAME_HEADER_SIZE];
        match self.stream.read(&mut header).expect("receive") {
            0 => return None,
            count => self.stream.read_exact(&mut header[count..]).expect("a whole header"),
        }
        let header = FrameHeader::peek(&header).expect("a header");
        let mut payload = vec![0; header.payload_size as usize];
        self.stream.read_exact(&mut payload).expect("a whole payload");
        header.verify(&payload).expect("the checksum");
        let status = Status::from_number(header.status).expect("a status");
        Some(Reply { id: header.id, opcode: header.opcode, status, payload })
    }

    /// Sends one request and returns its reply.
    fn ask(&mut self, request: &Request<'_>) -> Reply {
        let mut frames = Vec::new();
        let id = self.push(&mut frames, request);
        self.send(&frames);
        let reply = self.receive().expect("a reply");
        assert_eq!((reply.id, reply.opcode), (id, request.opcode() as u8));
        reply
    }

    #[track_caller]
    fn check_status(&mut self, request: &Request<'_>, expected: Status) -> Reply {
        let reply = self.ask(request);
        assert_eq!(reply.status, expected, "to {request:?}");
        reply
    }

    /// The server says goodbye for this reason and closes.
    #[track_caller]
    fn check_goodbye(&mut self, expected: Status) {
        let goodbye = self.receive().expect("a goodbye");
        assert_eq!(
            (goodbye.id, goodbye.opcode, goodbye.status),
            (NO_REQUEST, Opcode::Goodbye as u8, expected)
        );
        assert_eq!(String::from_utf8_lossy(&goodbye.payload), expected.words());
        assert_eq!(self.receive(), None, "closed");
    }
}

fn push_frame(frames: &mut Vec<u8>, id: u32, request: &Request<'_>) {
    let start = begin_frame(frames);
    request.encode(frames).expect("can be said");
    end_frame(frames, start, id, request.opcode() as u8, Status::Ok).expect("fits");
}

fn put<'a>(key: &'a [u8], value: &'a [u8]) -> Request<'a> {
    let (attributes, condition) = (Attributes::default(), Condition::Always);
    Request::Put(Put { key, value, attributes, condition })
}

fn get(key: &[u8]) -> Request<'_> {
    Request::Get { key }
}

/// What the server says that is free of its memory budget.
fn free_bytes(client: &mut Raw<TcpStream>) -> u64 {
    let stats = client.check_status(&Request::Stats, Status::Ok);
    let text = String::from_utf8(stats.payload).expect("text");
    let line = text.lines().find_map(|line| line.strip_prefix("memory_budget_free_bytes "));
    line.expect("told").parse().expect("a number")
}
