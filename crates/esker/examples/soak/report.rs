//! What a process under test tells the one that kills it: messages of nine bytes, each with one call, so that nothing is left
//! behind in a buffer.

use rustix::stdio::stdout;
use std::io::{ErrorKind, Read, Result};

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// The store is open, after so many milliseconds.
    Open(u32),
    /// Found at the open: a key, and its generation, or 0.
    Found(u32, u32),
    /// All keys were read.
    Read,
    /// A write begins, of a key and a generation,
    Issued(u32, u32),
    /// and returned.
    Acknowledged(u32, u32),
    /// A sync begins,
    SyncBegins,
    /// and returned: what was acknowledged before it began is durable.
    Synced,
    /// Writes since the last such message, and the 99.9th percentile of their time in microseconds.
    Figures(u32, u32),
    /// Closed, with so many items, and sound.
    Closed(u32),
}

impl Message {
    fn encode(self) -> [u8; 9] {
        let (tag, first, second) = match self {
            Message::Open(time) => (0, time, 0),
            Message::Found(key, generation) => (1, key, generation),
            Message::Read => (2, 0, 0),
            Message::Issued(key, generation) => (3, key, generation),
            Message::Acknowledged(key, generation) => (4, key, generation),
            Message::SyncBegins => (5, 0, 0),
            Message::Synced => (6, 0, 0),
            Message::Figures(writes, time) => (7, writes, time),
            Message::Closed(items) => (8, items, 0),
        };
        let mut bytes = [tag; 9];
        bytes[1..5].copy_from_slice(&first.to_be_bytes());
        bytes[5..].copy_from_slice(&second.to_be_bytes());
        bytes
    }

    fn decode(bytes: [u8; 9]) -> Option<Message> {
        let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        let (first, second) = (number(1), number(5));
        Some(match bytes[0] {
            0 => Message::Open(first),
            1 => Message::Found(first, second),
            2 => Message::Read,
            3 => Message::Issued(first, second),
            4 => Message::Acknowledged(first, second),
            5 => Message::SyncBegins,
            6 => Message::Synced,
            7 => Message::Figures(first, second),
            8 => Message::Closed(first),
            _ => return None,
        })
    }

    /// Tells them all, in order.
    pub(crate) fn tell(messages: &[Message]) {
        // As much as a pipe takes as a whole.
        for some in messages.chunks(400) {
            let bytes: Vec<u8> = some.iter().flat_map(|message| message.encode()).collect();
            let written = rustix::io::write(stdout(), &bytes).expect("somebody listens");
            assert_eq!(written, bytes.len(), "a pipe takes a small message as a whole");
        }
    }

    /// The next one; `None` when the other process ended.
    pub(crate) fn hear(from: &mut impl Read) -> Result<Option<Message>> {
        let mut bytes = [0; 9];
        match from.read_exact(&mut bytes) {
            Ok(()) => Ok(Message::decode(bytes)),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }
}
