//! Lines of the classic commands: one function for each shape.

use super::command::{Arithmetic, Request, ShutdownMode, StoreRequest, StoreVerb, Then};
use super::number::{parse_signed, parse_unsigned};
use super::parse::{Arguments, refuse, refuse_unless};
use super::span::{Span, Tokens};
use super::{CRLF, DATA_BYTES_MAX, KEY_BYTES_MAX, line};

pub(super) fn parse_get(input: &[u8], with_cas: bool, exptime: Option<i64>, keys: Span) -> Request {
    if Tokens::new(input, keys).any(|key| key.len() > KEY_BYTES_MAX) {
        return refuse(line::BAD_FORMAT, Then::Continue);
    }
    Request::Get { with_cas, exptime, keys }
}

pub(super) fn parse_store(input: &[u8], verb: StoreVerb, arguments: &Arguments) -> Request {
    let noreply = arguments.noreply(input);
    let plain = if verb == StoreVerb::Cas { 5 } else { 4 };
    let key = arguments.get(0);
    // A number more than there should be is what a key with a blank looks like: it may be the length.
    let extra = arguments.get(plain).of(input);
    let is_open = extra.first().is_some_and(|byte| byte.is_ascii_digit() || b"+-".contains(byte));
    let length = parse_unsigned(arguments.get(3).of(input), DATA_BYTES_MAX);
    let Some(length) = length.filter(|_| !is_open) else {
        return refuse_unless(noreply, line::BAD_FORMAT, Then::Close);
    };
    let cas = match verb {
        StoreVerb::Cas => parse_unsigned(arguments.get(4).of(input), u64::MAX),
        _ => Some(0),
    };
    let flags = parse_unsigned(arguments.get(1).of(input), u64::from(u32::MAX));
    let numbers = (flags.map(u32::try_from), parse_signed(arguments.get(2).of(input)), cas);
    let (Some(Ok(flags)), Some(exptime), Some(cas)) = numbers else {
        return refuse_block(noreply, length);
    };
    if key.len() > KEY_BYTES_MAX {
        return refuse_block(noreply, length);
    }
    Request::Store(StoreRequest { verb, key, flags, exptime, length, cas, noreply, meta: None })
}

/// Refuses a line of which it is known how long its data block is.
fn refuse_block(noreply: bool, length: u64) -> Request {
    let block = length.saturating_add(CRLF.len() as u64);
    refuse_unless(noreply, line::BAD_FORMAT, Then::Swallow(block))
}

pub(super) fn parse_delete(input: &[u8], arguments: &Arguments) -> Request {
    let noreply = arguments.noreply(input);
    let key = arguments.get(0);
    // A time of 0 is what old clients send.
    let zero = arguments.get(1).of(input) == b"0";
    let valid = match arguments.count {
        1 => true,
        2 => zero || noreply,
        _ => zero && noreply,
    };
    if !valid {
        return refuse_unless(noreply, line::BAD_DELETE, Then::Continue);
    }
    if key.len() > KEY_BYTES_MAX {
        return refuse_unless(noreply && arguments.count > 1, line::BAD_FORMAT, Then::Continue);
    }
    Request::Delete { key, noreply: noreply && arguments.count > 1 }
}

pub(super) fn parse_touch(input: &[u8], arguments: &Arguments) -> Request {
    let noreply = arguments.noreply(input);
    let key = arguments.get(0);
    if key.len() > KEY_BYTES_MAX {
        return refuse_unless(noreply, line::BAD_FORMAT, Then::Continue);
    }
    match parse_signed(arguments.get(1).of(input)) {
        Some(exptime) => Request::Touch { key, exptime, noreply },
        None => refuse_unless(noreply, line::BAD_EXPTIME, Then::Continue),
    }
}

pub(super) fn parse_arithmetic(
    input: &[u8],
    direction: Arithmetic,
    arguments: &Arguments,
) -> Request {
    let noreply = arguments.noreply(input);
    let key = arguments.get(0);
    if key.len() > KEY_BYTES_MAX {
        return refuse_unless(noreply, line::BAD_FORMAT, Then::Continue);
    }
    match parse_unsigned(arguments.get(1).of(input), u64::MAX) {
        Some(delta) => Request::Arithmetic { direction, key, delta, noreply },
        None => refuse_unless(noreply, line::BAD_DELTA, Then::Continue),
    }
}

pub(super) fn parse_flush_all(input: &[u8], arguments: &Arguments) -> Request {
    let noreply = arguments.noreply(input);
    let given = arguments.count.saturating_sub(usize::from(noreply));
    if given == 0 {
        return Request::FlushAll { delay: 0, noreply };
    }
    match parse_signed(arguments.get(0).of(input)) {
        Some(delay) => Request::FlushAll { delay, noreply },
        None => refuse_unless(noreply, line::BAD_EXPTIME, Then::Continue),
    }
}

pub(super) fn parse_shutdown(input: &[u8], arguments: &Arguments) -> Request {
    let mode = match (arguments.count, arguments.get(0).of(input)) {
        (0, _) => ShutdownMode::Now,
        (1, b"graceful") => ShutdownMode::Graceful,
        _ => ShutdownMode::Invalid,
    };
    Request::Shutdown(mode)
}

pub(super) fn parse_memory_limit(input: &[u8], arguments: &Arguments) -> Request {
    let noreply = arguments.noreply(input);
    match parse_unsigned(arguments.get(0).of(input), u64::from(u32::MAX)) {
        Some(mebibytes) => Request::MemoryLimit { mebibytes, noreply },
        None => refuse_unless(noreply, line::ERROR, Then::Continue),
    }
}
