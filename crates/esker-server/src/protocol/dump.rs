//! Lines of the commands that list items.
//!
//! Memcached lists the items of a class of sizes. There are none here, so class 1 has all items.

use super::command::{DumpForm, DumpRequest, Request, Then};
use super::line;
use super::number::parse_unsigned;
use super::parse::{Arguments, refuse};

/// One more than the last class that a client may name.
const CLASS_END: u64 = 64;
/// The class that has all items.
const CLASS: u64 = 1;

/// `lru_crawler`.
pub(super) fn parse_crawler(input: &[u8], arguments: &Arguments) -> Request {
    let form = match (arguments.count, arguments.get(0).of(input)) {
        (2, b"metadump") => DumpForm::Figures,
        (2, b"mgdump") => DumpForm::Requests,
        _ => return refuse(line::ERROR, Then::Continue),
    };
    match names_the_class(arguments.get(1).of(input)) {
        Some(all) => Request::Dump(DumpRequest { form, all, limit: u64::MAX }),
        None => refuse(line::BAD_CLASS, Then::Continue),
    }
}

/// Whether one of the classes is the one that has all items; `None` if there is no such class.
fn names_the_class(classes: &[u8]) -> Option<bool> {
    if matches!(classes, b"all" | b"hash") {
        return Some(true);
    }
    let mut all = false;
    for class in classes.split(|byte| *byte == b',').filter(|class| !class.is_empty()) {
        let class =
            parse_unsigned(class, CLASS_END.saturating_sub(1)).filter(|class| *class > 0)?;
        all |= class == CLASS;
    }
    Some(all)
}

/// `stats cachedump CLASS LIMIT`; no limit is 0.
pub(super) fn parse_cachedump(input: &[u8], arguments: &Arguments) -> Request {
    let wrong = |line| refuse(line, Then::Continue);
    if arguments.count < 3 {
        return wrong(line::BAD_LINE);
    }
    let number = |index| parse_unsigned(arguments.get(index).of(input), u32::MAX.into());
    match (number(1), number(2)) {
        (Some(class), Some(limit)) if class < CLASS_END => Request::Dump(DumpRequest {
            form: DumpForm::Sizes,
            all: class == CLASS,
            limit: if limit == 0 { u64::MAX } else { limit },
        }),
        (Some(_), Some(_)) => wrong(line::ILLEGAL_CLASS),
        _ => wrong(line::BAD_FORMAT),
    }
}
