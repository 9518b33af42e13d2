//! What comes before the first command where clients must say who they are.
//!
//! As in memcached, that is a line like one of `set`, whose data block is `user password`; its key
//! and numbers mean nothing. Whatever else comes is refused, and nothing of it is executed.
//!
//! # Failure
//! A client may try again on the same connection. A data block that is longer than credentials are
//! is not waited for (N3): the connection ends.

use super::{CRLF_BYTES, Pause, Session};
use crate::counters::Counter;
use crate::limits::UNCHARGED_BYTES_MAX;
use crate::protocol::{CRLF, LINE_BYTES_MAX, Span, Tokens, line, parse_unsigned};
use crate::transport::Transport;

/// Longest data block that may be credentials.
const CREDENTIALS_BYTES_MAX: u64 = 1024;

impl<T: Transport> Session<T> {
    /// Takes lines until the client has said who it is; says why not yet.
    pub(super) fn authenticate(&mut self) -> Option<Pause> {
        loop {
            if self.output.uncharged_bytes() >= UNCHARGED_BYTES_MAX {
                // What was said is sent first: a client that guesses fills nobody's memory.
                return Some(Pause::Run);
            }
            let pending = self.received.pending();
            let Some(end) = pending.iter().position(|byte| *byte == b'\n') else {
                let endless = pending.len() > LINE_BYTES_MAX;
                return Some(if endless { Pause::Close } else { Pause::Receive });
            };
            let text = pending.get(..end).unwrap_or_default();
            let text = text.strip_suffix(b"\r").unwrap_or(text);
            let mut words = Tokens::new(text, Span::new(0, text.len())).map(|word| word.of(text));
            let command = words.next();
            let length = words.nth(3).and_then(|word| parse_unsigned(word, u32::MAX.into()));
            let (Some(b"set"), Some(length)) = (command, length) else {
                self.received.consume(end.saturating_add(1));
                self.refuse_client(line::UNAUTHENTICATED);
                continue;
            };
            if length > CREDENTIALS_BYTES_MAX {
                self.refuse_client(line::AUTH_FAILED);
                return Some(Pause::Close);
            }
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            let start = end.saturating_add(1);
            let after = start.saturating_add(length);
            let whole = after.saturating_add(CRLF_BYTES);
            let Some(block) = pending.get(start..whole) else { return Some(Pause::Receive) };
            let answer = match block.strip_suffix(CRLF) {
                None => Err(line::BAD_TERMINATION),
                Some(block) => {
                    let mut words = Tokens::new(block, Span::new(0, block.len()));
                    let words = (words.next(), words.next());
                    match (words, &self.shared.auth) {
                        ((Some(user), Some(password)), Some(known)) => {
                            Ok(known.knows(user.of(block), password.of(block)))
                        }
                        _ => Err(line::BAD_CREDENTIALS),
                    }
                }
            };
            self.received.consume(whole);
            match answer {
                Ok(true) => {
                    self.begin_request();
                    self.count(Counter::AuthCmds, 1);
                    self.output.push(line::STORED);
                    self.to_say = None;
                    return None;
                }
                Ok(false) => {
                    self.count(Counter::AuthCmds, 1);
                    self.count(Counter::AuthErrors, 1);
                    self.refuse_client(line::AUTH_FAILED);
                }
                Err(line) => self.refuse_client(line),
            }
        }
    }

    fn refuse_client(&mut self, line: &'static [u8]) {
        self.begin_request();
        self.output.push(line);
    }
}
