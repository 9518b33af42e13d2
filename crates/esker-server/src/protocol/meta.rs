//! Lines of the meta commands: a key and flags of one character, some with an argument.
//!
//! The parser checks the flags and hands over their place; whoever executes the command reads them
//! again with [`MetaFlags::read`], and whoever replies walks over them in the client's order. So
//! requests stay small and nothing is allocated.
//!
//! Errors and their precedence are memcached's, except that an opaque over its limit is refused
//! before anything is done, and that the data block behind a malformed `ms` is always swallowed.

use super::base64;
use super::command::{MetaVerb, Request, StoreRequest, StoreVerb, Then};
use super::number::{parse_signed, parse_unsigned};
use super::parse::refuse;
use super::span::{Span, Tokens};
use super::{CRLF, DATA_BYTES_MAX, KEY_BYTES_MAX, line};

/// Most words of a line, with the command itself.
pub const WORDS_MAX: usize = 19;
/// Longest opaque, with the flag itself.
pub const OPAQUE_BYTES_MAX: usize = 32;
/// Flags are characters below this.
const FLAG_END: u8 = 127;

/// What the flags of a meta command ask for. What is only shown (`k`, `t`, `c`, ...) is not here:
/// replies walk over the flags themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetaFlags {
    /// `b`: the key is in base64.
    pub base64: bool,
    /// `q`: nothing is said of what usually happens.
    pub quiet: bool,
    /// `v`: the value is shown.
    pub value: bool,
    /// `u`: this is no access.
    pub no_update: bool,
    /// `I`: mark as stale, or let an older CAS id store what is stale.
    pub invalidate: bool,
    /// `x`: the value goes, the item stays.
    pub remove_value: bool,
    /// `N`: expiry of an item made on a miss.
    pub vivify: Option<i64>,
    /// `T`: new expiry.
    pub exptime: Option<i64>,
    /// `R`: somebody wins once less time is left.
    pub recache: Option<i64>,
    /// `C`: the CAS id that the item must have.
    pub cas: Option<u64>,
    /// `E`: the CAS id that the item gets.
    pub explicit_cas: Option<u64>,
    /// `F`: the client's number.
    pub client_flags: u32,
    /// `M`: mode.
    pub mode: Option<u8>,
    /// `J`: value of a number made on a miss.
    pub initial: u64,
    /// `D`: step; 1 if not given.
    pub delta: Option<u64>,
}

impl MetaFlags {
    /// Reads the flags of `line`, a part of `input` that the parser has accepted: of anything else
    /// it reads what makes sense.
    #[must_use]
    pub fn read(input: &[u8], line: Span) -> MetaFlags {
        let mut flags = MetaFlags::default();
        for token in Tokens::new(input, line) {
            // Accepted already.
            let _ = flags.set(token.of(input));
        }
        flags
    }

    /// Notes one flag. An error is its line, and whether the rest of the flags matters no more.
    fn set(&mut self, token: &[u8]) -> Result<(), Wrong> {
        let Some((flag, argument)) = token.split_first() else { return Ok(()) };
        let exptime = || parse_signed(argument).ok_or(Wrong::Argument(line::BAD_TOKEN));
        let number = |line| parse_unsigned(argument, u64::MAX).ok_or(Wrong::Argument(line));
        match flag {
            b'b' => self.base64 = true,
            b'q' => self.quiet = true,
            b'v' => self.value = true,
            b'u' => self.no_update = true,
            b'I' => self.invalidate = true,
            b'x' => self.remove_value = true,
            b'N' => self.vivify = Some(exptime()?),
            b'T' => self.exptime = Some(exptime()?),
            b'R' => self.recache = Some(exptime()?),
            b'C' => self.cas = Some(number(line::BAD_TOKEN)?),
            b'E' => self.explicit_cas = Some(number(line::BAD_TOKEN)?),
            b'F' => {
                let number = number(b"")?;
                self.client_flags = u32::try_from(number).map_err(|_| Wrong::Argument(b""))?;
            }
            b'M' => match argument {
                [mode] => self.mode = Some(*mode),
                _ => return Err(Wrong::Argument(line::BAD_MODE_LENGTH)),
            },
            b'J' => self.initial = number(line::BAD_INITIAL)?,
            b'D' => self.delta = Some(number(line::BAD_META_DELTA)?),
            b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' | b'l' | b'h' => {}
            _ => return Err(Wrong::Flag(line::INVALID_FLAG)),
        }
        Ok(())
    }

    /// What `ms` does to the store.
    #[must_use]
    pub fn set_verb(&self) -> Option<StoreVerb> {
        Some(match self.mode {
            // A CAS id makes these a `cas`.
            None | Some(b'S' | b'R') if self.cas.is_some() => StoreVerb::Cas,
            None | Some(b'S') => StoreVerb::Set,
            Some(b'R') => StoreVerb::Replace,
            Some(b'E') => StoreVerb::Add,
            Some(b'A') => StoreVerb::Append,
            Some(b'P') => StoreVerb::Prepend,
            Some(_) => return None,
        })
    }

    /// Whether `ma` counts down.
    #[must_use]
    pub fn counts_down(&self) -> Option<bool> {
        match self.mode {
            None | Some(b'I' | b'+') => Some(false),
            Some(b'D' | b'-') => Some(true),
            Some(_) => None,
        }
    }
}

/// What is wrong with a flag.
enum Wrong {
    /// There is no such flag, or it was there already: the rest is not looked at.
    Flag(&'static [u8]),
    /// Its argument. Of several the last one is told; an empty line leaves the one before.
    Argument(&'static [u8]),
}

/// Reads and checks all flags of a line.
fn check(input: &[u8], key: Span, flags: Span) -> Result<MetaFlags, &'static [u8]> {
    let mut read = MetaFlags::default();
    let mut seen = 0_u128;
    let mut wrong = None;
    for token in Tokens::new(input, flags) {
        let token = token.of(input);
        let flag = token.first().copied().unwrap_or(FLAG_END);
        let bit = 1_u128.checked_shl(u32::from(flag)).unwrap_or(0);
        if flag >= FLAG_END || seen & bit != 0 {
            return Err(line::DUPLICATE_FLAG);
        }
        seen |= bit;
        match read.set(token) {
            Ok(()) => {}
            Err(Wrong::Flag(line)) => return Err(line),
            Err(Wrong::Argument(b"")) => wrong = wrong.or(Some(line::BAD_FORMAT)),
            Err(Wrong::Argument(line)) => wrong = Some(line),
        }
        if flag == b'b' && base64::decode(key.of(input)).is_none() {
            wrong = Some(line::BAD_BASE64);
        }
    }
    match wrong {
        Some(line) => Err(line),
        None => Ok(read),
    }
}

fn opaque_fits(input: &[u8], flags: Span) -> bool {
    let opaque = |token: &Span| token.of(input).first() == Some(&b'O');
    !Tokens::new(input, flags).any(|token| opaque(&token) && token.len() > OPAQUE_BYTES_MAX)
}

/// Whether a line of `before` words and then these flags has more words than it may.
fn too_many(input: &[u8], flags: Span, before: usize) -> bool {
    Tokens::new(input, flags).nth(WORDS_MAX.saturating_sub(before)).is_some()
}

/// `mg`, `md` and `ma`.
pub(super) fn parse_meta(input: &[u8], verb: MetaVerb, mut tokens: Tokens<'_>) -> Request {
    let key = tokens.next().unwrap_or_default();
    let flags = tokens.rest();
    let wrong = |line| refuse(line, Then::Continue);
    if key.len() > KEY_BYTES_MAX {
        return wrong(line::BAD_FORMAT);
    }
    if too_many(input, flags, 2) {
        let get = verb == MetaVerb::Get;
        return wrong(if get { line::FLAGS_TOO_LONG_GET } else { line::FLAGS_TOO_LONG });
    }
    let read = match check(input, key, flags) {
        Ok(read) => read,
        Err(line) if verb == MetaVerb::Get => return wrong(line),
        Err(_) => return wrong(line::INVALID_OR_DUPLICATE_FLAG),
    };
    if verb == MetaVerb::Arithmetic && read.counts_down().is_none() {
        return wrong(line::BAD_ARITHMETIC_MODE);
    }
    if !opaque_fits(input, flags) {
        return wrong(line::OPAQUE_TOO_LONG);
    }
    Request::Meta { verb, key, flags }
}

/// `me`: of its flags only a `b` behind the key counts, the rest is not looked at.
pub(super) fn parse_meta_debug(input: &[u8], mut tokens: Tokens<'_>) -> Request {
    let Some(key) = tokens.next() else { return refuse(line::BAD_FORMAT, Then::Continue) };
    let flags = tokens.next().filter(|flag| flag.of(input) == b"b").unwrap_or_default();
    if key.len() > KEY_BYTES_MAX || (!flags.is_empty() && base64::decode(key.of(input)).is_none()) {
        return refuse(line::BAD_FORMAT, Then::Continue);
    }
    Request::Meta { verb: MetaVerb::Debug, key, flags }
}

/// `ms`. Errors are told even to those who want no reply: they cannot expect them.
pub(super) fn parse_meta_set(input: &[u8], mut tokens: Tokens<'_>) -> Request {
    let key = tokens.next().unwrap_or_default();
    let length = tokens.next().and_then(|word| parse_unsigned(word.of(input), DATA_BYTES_MAX));
    let Some(length) = length else { return refuse(line::BAD_FORMAT, Then::Close) };
    let flags = tokens.rest();
    let block = length.saturating_add(CRLF.len() as u64);
    let wrong = |line| refuse(line, Then::Swallow(block));
    if key.len() > KEY_BYTES_MAX {
        return wrong(line::BAD_FORMAT);
    }
    if too_many(input, flags, 3) {
        return wrong(line::FLAGS_TOO_LONG);
    }
    let read = match check(input, key, flags) {
        Ok(read) => read,
        Err(line) => return wrong(line),
    };
    let Some(verb) = read.set_verb() else { return wrong(line::BAD_SET_MODE) };
    if !opaque_fits(input, flags) {
        return wrong(line::OPAQUE_TOO_LONG);
    }
    Request::Store(StoreRequest {
        verb,
        key,
        flags: read.client_flags,
        exptime: read.exptime.unwrap_or(0),
        length,
        cas: read.cas.unwrap_or(0),
        noreply: false,
        meta: Some(flags),
    })
}
