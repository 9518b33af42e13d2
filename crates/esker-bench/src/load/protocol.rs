//! What is said to servers: memcache's text protocol and RESP, of both a get and a set.
//!
//! Pure: bytes in, bytes out. A reply is read whole or not at all.

use crate::failure::{Failure, Outcome};
use std::fmt;
use std::io::Write as _;
use std::str::FromStr;

/// A protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// memcached's text protocol.
    Memcache,
    /// Redis's.
    Resp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Protocol::Memcache => "memcache",
            Protocol::Resp => "resp",
        })
    }
}

impl FromStr for Protocol {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        match text {
            "memcache" => Ok(Protocol::Memcache),
            "resp" => Ok(Protocol::Resp),
            _ => Err(Failure::new(format!("{text:?} is none of memcache, resp"))),
        }
    }
}

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The value of a key.
    Get,
    /// To store one.
    Set,
}

/// A reply, whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// The value.
    Value(&'a [u8]),
    /// There is none.
    Missing,
    /// It is stored.
    Stored,
}

impl Protocol {
    /// Appends a get.
    pub fn get(self, key: &[u8], request: &mut Vec<u8>) {
        match self {
            Protocol::Memcache => {
                request.extend_from_slice(b"get ");
                request.extend_from_slice(key);
                request.extend_from_slice(b"\r\n");
            }
            Protocol::Resp => {
                request.extend_from_slice(b"*2\r\n$3\r\nGET\r\n");
                bulk(key, request);
            }
        }
    }

    /// Appends a set.
    pub fn set(self, key: &[u8], value: &[u8], request: &mut Vec<u8>) {
        match self {
            Protocol::Memcache => {
                request.extend_from_slice(b"set ");
                request.extend_from_slice(key);
                // Writes to a vector do not fail.
                let _ = write!(request, " 0 0 {}\r\n", value.len());
                request.extend_from_slice(value);
                request.extend_from_slice(b"\r\n");
            }
            Protocol::Resp => {
                request.extend_from_slice(b"*3\r\n$3\r\nSET\r\n");
                bulk(key, request);
                bulk(value, request);
            }
        }
    }

    /// The reply at the start of `bytes` and its length; `None` if it is not all there.
    ///
    /// # Errors
    /// What is no reply to `asked`, an error of the server among it.
    pub fn reply(self, asked: Asked, bytes: &[u8]) -> Outcome<Option<(Reply<'_>, usize)>> {
        let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") else {
            return match bytes.len() > LINE_MAX {
                true => Err(Failure::new("a reply without end")),
                false => Ok(None),
            };
        };
        let line = bytes.get(..end).unwrap_or_default();
        let after = end + 2;
        match (self, asked) {
            (Protocol::Memcache, Asked::Set) if line == b"STORED" => {
                Ok(Some((Reply::Stored, after)))
            }
            (Protocol::Memcache, Asked::Get) if line == b"END" => Ok(Some((Reply::Missing, after))),
            (Protocol::Memcache, Asked::Get) if line.starts_with(b"VALUE ") => {
                let length = line.split(|byte| *byte == b' ').nth(3).and_then(number);
                let length = length.ok_or_else(|| unexpected(line))?;
                value(bytes, after, length, b"\r\nEND\r\n")
            }
            (Protocol::Resp, Asked::Set) if line == b"+OK" => Ok(Some((Reply::Stored, after))),
            (Protocol::Resp, Asked::Get) if line == b"$-1" || line == b"_" => {
                Ok(Some((Reply::Missing, after)))
            }
            (Protocol::Resp, Asked::Get) if line.starts_with(b"$") => {
                let length = line.get(1..).and_then(number).ok_or_else(|| unexpected(line))?;
                value(bytes, after, length, b"\r\n")
            }
            _ => Err(unexpected(line)),
        }
    }
}

/// Longest first line of a reply in bytes.
const LINE_MAX: usize = 4096;
/// Longest value in bytes.
const VALUE_MAX: usize = 1 << 30;

fn bulk(bytes: &[u8], request: &mut Vec<u8>) {
    let _ = write!(request, "${}\r\n", bytes.len());
    request.extend_from_slice(bytes);
    request.extend_from_slice(b"\r\n");
}

fn number(digits: &[u8]) -> Option<usize> {
    std::str::from_utf8(digits).ok()?.parse().ok().filter(|length| *length <= VALUE_MAX)
}

fn unexpected(line: &[u8]) -> Failure {
    let shown = line.get(..line.len().min(100)).unwrap_or_default();
    Failure::new(format!("unexpected reply: {}", shown.escape_ascii()))
}

fn value<'a>(
    bytes: &'a [u8],
    start: usize,
    length: usize,
    end: &[u8],
) -> Outcome<Option<(Reply<'a>, usize)>> {
    let Some(value) = bytes.get(start..start + length) else { return Ok(None) };
    let Some(tail) = bytes.get(start + length..start + length + end.len()) else { return Ok(None) };
    if tail != end {
        return Err(unexpected(tail));
    }
    Ok(Some((Reply::Value(value), start + length + end.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_as_the_protocols_say() {
        let mut request = Vec::new();
        Protocol::Memcache.set(b"k", b"vv", &mut request);
        Protocol::Memcache.get(b"k", &mut request);
        assert_eq!(request, b"set k 0 0 2\r\nvv\r\nget k\r\n");
        request.clear();
        Protocol::Resp.set(b"k", b"vv", &mut request);
        Protocol::Resp.get(b"k", &mut request);
        let expected: &[u8] =
            b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2\r\nvv\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
        assert_eq!(request, expected);
    }

    #[test]
    fn replies_are_read_whole_or_not_at_all() {
        let cases: [(Protocol, Asked, &[u8], Reply<'_>); 7] = [
            (Protocol::Memcache, Asked::Set, b"STORED\r\n", Reply::Stored),
            (Protocol::Memcache, Asked::Get, b"END\r\n", Reply::Missing),
            (
                Protocol::Memcache,
                Asked::Get,
                b"VALUE k 0 3\r\na\r\n\r\nEND\r\n",
                Reply::Value(b"a\r\n"),
            ),
            (Protocol::Resp, Asked::Set, b"+OK\r\n", Reply::Stored),
            (Protocol::Resp, Asked::Get, b"$-1\r\n", Reply::Missing),
            (Protocol::Resp, Asked::Get, b"$0\r\n\r\n", Reply::Value(b"")),
            (Protocol::Resp, Asked::Get, b"$3\r\nabc\r\n", Reply::Value(b"abc")),
        ];
        for (protocol, asked, bytes, reply) in cases {
            for end in 0..bytes.len() {
                assert_eq!(protocol.reply(asked, &bytes[..end]).unwrap(), None, "{protocol} {end}");
            }
            let more = [bytes, b"more"].concat();
            assert_eq!(protocol.reply(asked, &more).unwrap(), Some((reply, bytes.len())));
        }
    }

    #[test]
    fn errors_of_servers_are_errors() {
        for (protocol, asked, bytes) in [
            (Protocol::Memcache, Asked::Set, &b"SERVER_ERROR out of memory\r\n"[..]),
            (Protocol::Memcache, Asked::Get, b"VALUE k 0 -1\r\n"),
            (Protocol::Memcache, Asked::Get, b"VALUE k 0 1\r\nabcEND\r\n"),
            (Protocol::Resp, Asked::Get, b"-ERR no\r\n"),
            (Protocol::Resp, Asked::Set, b"$-1\r\n"),
        ] {
            assert!(protocol.reply(asked, bytes).is_err(), "{protocol}");
        }
        assert!(Protocol::Resp.reply(Asked::Get, &[b'x'; 5000]).is_err());
    }
}
