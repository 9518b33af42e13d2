//! The beginning of a connection: hellos, and who the client is, if the server asks for that.
//!
//! # Failure
//! Whatever a server answers here, no request was sent.

use crate::address::Address;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::options::Options;
use crate::socket::Socket;
use esker_base::ErrorKind;
use esker_format::native::{
    ClientHello, FRAME_HEADER_SIZE, FrameHeader, NO_REQUEST, Opcode, Request, SERVER_HELLO_SIZE,
    ServerHello, Status, VERSION, begin_frame, end_frame,
};
use std::io::{ErrorKind as IoErrorKind, Result as IoResult};

/// The operation that errors name.
const GREET: &str = "greet server";
/// The request that says who the client is.
const AUTHENTICATE_ID: u32 = 1;
/// Longest answer to that: words of why not.
const ANSWER_BYTES_MAX: u32 = 64 << 10;

/// Why a connection did not come about.
pub(crate) enum Greeting {
    Io(std::io::Error),
    Refused(Error),
}

impl From<std::io::Error> for Greeting {
    fn from(source: std::io::Error) -> Self {
        Greeting::Io(source)
    }
}

impl From<esker_base::Error> for Greeting {
    fn from(cause: esker_base::Error) -> Self {
        Greeting::Refused(Error::not_sent(cause))
    }
}

impl Greeting {
    /// The error of a client of `address`.
    pub(crate) fn told(self, address: &Address) -> Error {
        match self {
            Greeting::Io(source) => greeting_failed(address, source),
            Greeting::Refused(error) => error,
        }
    }
}

/// The system's failure while a connection began.
pub(crate) fn greeting_failed(address: &Address, source: std::io::Error) -> Error {
    let cause = match source.kind() {
        // What the system calls it says no more.
        IoErrorKind::WouldBlock | IoErrorKind::TimedOut => {
            esker_base::Error::new(ErrorKind::Timeout, GREET)
        }
        _ => esker_base::Error::io(GREET, source).with_kind(ErrorKind::Io),
    };
    Error::not_sent(cause.context(address.to_string()))
}

fn refused(status: Status, words: impl Into<String>) -> Greeting {
    let kind = Error::of_status(status).kind();
    esker_base::Error::new(kind, GREET).context(words).into()
}

/// Exchanges hellos, and authenticates if the server asks for it. Nothing else is sent before.
pub(crate) fn greet(
    socket: &Socket,
    options: &Options,
    deadline: Deadline,
) -> Result<ServerHello, Greeting> {
    write_whole(socket, &ClientHello { version: VERSION }.encode(), deadline)?;
    let mut hello = [0; SERVER_HELLO_SIZE];
    read_whole(socket, &mut hello, deadline)?;
    let hello = ServerHello::decode(&hello).map_err(|_| {
        let words = "what answers does not speak the native protocol";
        esker_base::Error::new(ErrorKind::Unsupported, GREET).context(words)
    })?;
    if hello.status != Status::Ok {
        return Err(refused(hello.status, hello.status.words()));
    }
    if hello.version != VERSION {
        return Err(refused(Status::UnsupportedVersion, Status::UnsupportedVersion.words()));
    }
    if hello.authenticate {
        authenticate(socket, options, deadline)?;
    }
    Ok(hello)
}

/// Says who the client is.
fn authenticate(socket: &Socket, options: &Options, deadline: Deadline) -> Result<(), Greeting> {
    let Some((user, password)) = &options.credentials else {
        return Err(refused(Status::Unauthenticated, Status::Unauthenticated.words()));
    };
    let request = Request::Authenticate { user: user.as_bytes(), password: password.as_bytes() };
    let opcode = Opcode::Authenticate as u8;
    let mut frame = Vec::new();
    let start = begin_frame(&mut frame);
    let encoded = request
        .encode(&mut frame)
        .and_then(|()| end_frame(&mut frame, start, AUTHENTICATE_ID, opcode, Status::Ok));
    encoded.map_err(|flaw| Greeting::Refused(Error::unsayable(flaw)))?;
    write_whole(socket, &frame, deadline)?;

    let no_sense = |words: &str| esker_base::Error::corrupted(GREET, words);
    let mut frame = vec![0; FRAME_HEADER_SIZE];
    read_whole(socket, &mut frame, deadline)?;
    let header = FrameHeader::peek(&frame).map_err(|flaw| no_sense("a frame").source(flaw))?;
    if header.payload_size > ANSWER_BYTES_MAX {
        return Err(no_sense("a reply that is too long").into());
    }
    let payload_size = usize::try_from(header.payload_size).unwrap_or(usize::MAX);
    frame.resize(FRAME_HEADER_SIZE.saturating_add(payload_size), 0);
    read_whole(socket, frame.get_mut(FRAME_HEADER_SIZE..).unwrap_or_default(), deadline)?;
    header.verify_frame(&frame).map_err(|flaw| no_sense("a frame").source(flaw))?;
    let Some(status) = Status::from_number(header.status) else {
        return Err(no_sense("a status that has no meaning").into());
    };
    match (header.id, header.opcode) {
        (NO_REQUEST, _) => {
            Err(refused(status, format!("the server says goodbye: {}", status.words())))
        }
        (AUTHENTICATE_ID, answered) if answered == opcode => match status {
            Status::Ok => Ok(()),
            status => Err(refused(status, status.words())),
        },
        _ => Err(no_sense("a reply to something else").into()),
    }
}

fn write_whole(socket: &Socket, mut rest: &[u8], deadline: Deadline) -> IoResult<()> {
    while !rest.is_empty() {
        let left = deadline.left()?;
        socket.set_timeouts(Some(left), left)?;
        match socket.write(rest) {
            Ok(0) => return Err(IoErrorKind::WriteZero.into()),
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == IoErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn read_whole(socket: &Socket, mut rest: &mut [u8], deadline: Deadline) -> IoResult<()> {
    while !rest.is_empty() {
        match socket.read(rest, Some(deadline)) {
            Ok(0) => return Err(IoErrorKind::UnexpectedEof.into()),
            Ok(count) => rest = rest.get_mut(count..).unwrap_or_default(),
            // Such as by a stop of the process, and its end.
            Err(error) if error.kind() == IoErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
