//! What a client hears when the store fails: one table from kinds of errors to reply lines.
//!
//! The line says what an operator needs to start looking, in words that never change; device,
//! offset and cause go to the log. Neither ever contains a key or a value.

use crate::protocol::line;
use esker::ErrorKind;

/// The reply to a request that failed in the store.
#[must_use]
pub fn reply_line(kind: ErrorKind) -> &'static [u8] {
    match kind {
        // Clients of memcached know this line, and treat it as "the cache is full".
        ErrorKind::NoSpace | ErrorKind::OutOfMemory => line::NO_MEMORY,
        ErrorKind::InvalidArgument => b"SERVER_ERROR invalid argument\r\n",
        ErrorKind::Corrupted => b"SERVER_ERROR data on media are corrupted\r\n",
        ErrorKind::Io => b"SERVER_ERROR input/output error\r\n",
        ErrorKind::ReadOnly => b"SERVER_ERROR store is read-only after a failure\r\n",
        ErrorKind::DurabilityUnknown => {
            b"SERVER_ERROR outcome unknown: a write or flush failed\r\n"
        }
        ErrorKind::Locked => b"SERVER_ERROR store is locked\r\n",
        ErrorKind::UnsupportedFormat => b"SERVER_ERROR unsupported format version\r\n",
        ErrorKind::Timeout => b"SERVER_ERROR timed out\r\n",
        ErrorKind::Unsupported => b"SERVER_ERROR not supported\r\n",
        ErrorKind::Closed => b"SERVER_ERROR store is closed\r\n",
        ErrorKind::Cancelled => b"SERVER_ERROR cancelled\r\n",
        ErrorKind::Panicked => b"SERVER_ERROR internal error\r\n",
        _ => b"SERVER_ERROR unknown error\r\n",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_error_has_one_line_of_its_own_words() {
        for kind in ErrorKind::ALL {
            let line = reply_line(kind);
            let body = line.strip_suffix(b"\r\n").expect("ends a line");
            assert!(body.starts_with(b"SERVER_ERROR "), "{kind:?}");
            assert!(body.iter().all(|byte| (0x20..0x7F).contains(byte)), "{kind:?}");
            assert_ne!(line, b"SERVER_ERROR unknown error\r\n", "{kind:?} is missing in the table");
        }
    }

    #[test]
    fn a_full_store_says_what_clients_of_memcached_know() {
        assert_eq!(
            reply_line(ErrorKind::NoSpace),
            b"SERVER_ERROR out of memory storing object\r\n"
        );
    }
}
