//! How two processes come to share memory: a greeting over a Unix socket, with descriptors.
//!
//! The server sends 32 bytes, the client nothing. With status 0 come descriptors: the memory, then a bell
//! for each stream. In the memory each stream has two rings side by side, requests before replies.
//!
//! | bytes | holds |
//! |---|---|
//! | 0 to 8 | `EskerShm` |
//! | 8 to 12 | version, 1 |
//! | 12 to 16 | status: 0, or as in a hello of the native protocol |
//! | 16 to 20 | streams |
//! | 20 to 24 | bytes of a ring, a power of two |
//! | 24 to 32 | 0 |

use crate::memory::Memory;
use crate::ring::{Reader, Ring, Writer, words};
use esker_base::clock::{Clock, SystemClock};
use esker_base::{Error, ErrorKind, Result};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use std::io::{ErrorKind as IoErrorKind, IoSlice, IoSliceMut, Result as IoResult};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Streams of a connection, at most.
pub const STREAMS_MAX: usize = 64;
/// Bytes of a ring, at most.
pub const CAPACITY_MAX: usize = 16 << 20;
pub(crate) const GREETING_SIZE: usize = 32;
const MAGIC: [u8; 8] = *b"EskerShm";
const VERSION: u32 = 1;

/// One side of a stream.
#[derive(Debug)]
pub struct Endpoint {
    /// What the other side sends.
    pub reader: Reader,
    /// What this side sends.
    pub writer: Writer,
    /// A connected socket: bytes wake this side's reader, its end says that the other side is gone.
    pub bell: OwnedFd,
}

/// What a server says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// 0, or why there is no memory.
    pub status: u32,
    /// Number of streams.
    pub streams: u32,
    /// Bytes of a ring.
    pub capacity: u32,
}

impl Greeting {
    pub(crate) fn encode(self) -> [u8; GREETING_SIZE] {
        let mut bytes = [0; GREETING_SIZE];
        let fields = [VERSION, self.status, self.streams, self.capacity];
        let all = MAGIC.into_iter().chain(fields.into_iter().flat_map(u32::to_le_bytes));
        bytes.iter_mut().zip(all).for_each(|(to, from)| *to = from);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; GREETING_SIZE]) -> Result<Greeting> {
        let wrong = |words: &str| Error::new(ErrorKind::Unsupported, "greet server").context(words);
        let (magic, rest) = bytes.split_at(MAGIC.len());
        let (fields, _) = rest.as_chunks::<4>();
        let [version, status, streams, capacity, ..] = *fields else {
            return Err(wrong("it says too little"));
        };
        let number = u32::from_le_bytes;
        if magic != MAGIC || number(version) != VERSION {
            return Err(wrong("what answers does not share memory in this version's way"));
        }
        let (status, streams, capacity) = (number(status), number(streams), number(capacity));
        Ok(Greeting { status, streams, capacity })
    }
}

/// Words of a connection's memory.
fn words_of(streams: usize, capacity: usize) -> usize {
    2 * streams * words(capacity)
}

/// Bytes of memory that a connection takes.
#[must_use]
pub fn memory_bytes(streams: usize, capacity: usize) -> u64 {
    words_of(streams, capacity) as u64 * 8
}

/// The rings of stream `number`: requests, replies.
fn rings(memory: &Arc<Memory>, number: usize, capacity: usize) -> Option<(Ring, Ring)> {
    let size = words(capacity);
    let at = |ring: usize| Ring::new(memory, (2 * number + ring) * size, capacity);
    Some((at(0)?, at(1)?))
}

/// The server's side: makes memory for `streams` streams with rings of `capacity` bytes and passes it to the client at the
/// other end of `socket`, without waiting for it.
///
/// # Errors
/// `InvalidArgument` for numbers over the limits; the kernel's.
pub fn offer(socket: BorrowedFd<'_>, streams: usize, capacity: usize) -> Result<Vec<Endpoint>> {
    let in_range = (1..=STREAMS_MAX).contains(&streams) && capacity <= CAPACITY_MAX;
    let outside = || Error::invalid("share memory", "streams or bytes of a ring");
    let number = |number: usize| u32::try_from(number).map_err(|_| outside());
    if !in_range || !capacity.is_power_of_two() {
        return Err(outside());
    }
    let (memory, file) = Memory::create(words_of(streams, capacity))?;
    let memory = Arc::new(memory);
    let mut endpoints = Vec::with_capacity(streams);
    let mut passed = vec![file];
    for stream in 0..streams {
        let (requests, replies) = rings(&memory, stream, capacity).ok_or_else(outside)?;
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        let (own, other) = socketpair(family, kind, SocketFlags::CLOEXEC, None)
            .map_err(|errno| Error::io("share memory", errno.into()))?;
        let (reader, writer) = (Reader::new(requests), Writer::new(replies));
        endpoints.push(Endpoint { reader, writer, bell: own });
        passed.push(other);
    }
    let greeting = Greeting { status: 0, streams: number(streams)?, capacity: number(capacity)? };
    send(socket, greeting, &passed)?;
    Ok(endpoints)
}

/// Says why there is no memory.
///
/// # Errors
/// The kernel's.
pub fn refuse(socket: BorrowedFd<'_>, status: u32) -> Result<()> {
    send(socket, Greeting { status, streams: 0, capacity: 0 }, &[])
}

fn send(socket: BorrowedFd<'_>, greeting: Greeting, passed: &[OwnedFd]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAMS_MAX + 1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let passed: Vec<BorrowedFd<'_>> = passed.iter().map(AsFd::as_fd).collect();
    if !passed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&passed)) {
        return Err(Error::invalid("share memory", "more streams than descriptors can be passed"));
    }
    let bytes = greeting.encode();
    // It fits into any socket that nothing was sent to.
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, flags) {
        Ok(GREETING_SIZE) => Ok(()),
        Ok(_) => Err(Error::new(ErrorKind::Io, "share memory").context("half a greeting")),
        Err(errno) => Err(Error::io("share memory", errno.into())),
    }
}

/// Receives all of `bytes`, and what comes with them. A signal, or a stop of the process and its end, does not end it, nor
/// does its time begin anew.
fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    control: &mut RecvAncillaryBuffer<'_>,
) -> IoResult<usize> {
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
    let begun = SystemClock.monotonic();
    let limit = socket_timeout(socket, Timeout::Recv)?;
    loop {
        match recvmsg(socket, &mut [IoSliceMut::new(bytes)], control, flags) {
            Ok(received) => return Ok(received.bytes),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(IoErrorKind::TimedOut.into()),
            Err(errno) => return Err(errno.into()),
        }
        if let Some(limit) = limit {
            let took = SystemClock.monotonic().saturating_sub(begun);
            match limit.saturating_sub(took) {
                Duration::ZERO => return Err(IoErrorKind::TimedOut.into()),
                left => set_socket_timeout(socket, Timeout::Recv, Some(left))?,
            }
        }
    }
}

/// The client's side: takes what the server offers over `socket`, which is waited for as long as the socket's timeout for
/// reading says.
///
/// # Errors
/// The status of a server that refuses, as `Err` of the inner result; `Timeout`; `Unsupported` for one that says something
/// else; the kernel's.
pub fn accept(socket: BorrowedFd<'_>) -> Result<std::result::Result<Vec<Endpoint>, u32>> {
    let wrong = |words: &str| Error::new(ErrorKind::Unsupported, "greet server").context(words);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAMS_MAX + 1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; GREETING_SIZE];
    let count = receive(socket, &mut bytes, &mut control)
        .map_err(|source| Error::io("greet server", source))?;
    if count != GREETING_SIZE {
        return Err(wrong("it says too little"));
    }
    let mut passed = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            passed.extend(fds);
        }
    }
    let greeting = Greeting::decode(&bytes)?;
    if greeting.status != 0 {
        return Ok(Err(greeting.status));
    }
    let streams = usize::try_from(greeting.streams).unwrap_or(usize::MAX);
    let capacity = usize::try_from(greeting.capacity).unwrap_or(usize::MAX);
    if !(1..=STREAMS_MAX).contains(&streams) || capacity > CAPACITY_MAX {
        return Err(wrong("more streams, or larger rings, than there can be"));
    }
    let mut passed = passed.into_iter();
    let Some(file) = passed.next() else { return Err(wrong("it passes no memory")) };
    let memory = Arc::new(Memory::open(file.as_fd(), words_of(streams, capacity))?);
    let mut endpoints = Vec::with_capacity(streams);
    for (stream, bell) in (0..streams).zip(passed) {
        let Some((requests, replies)) = rings(&memory, stream, capacity) else {
            return Err(wrong("rings that cannot be"));
        };
        let (reader, writer) = (Reader::new(replies), Writer::new(requests));
        endpoints.push(Endpoint { reader, writer, bell });
    }
    if endpoints.len() != streams {
        return Err(wrong("it passes too few bells"));
    }
    Ok(Ok(endpoints))
}
