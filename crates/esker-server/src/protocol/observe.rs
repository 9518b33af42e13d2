//! Lines of the commands by which a server is observed: `stats detail`.

use super::command::{DetailRequest, Request, Then};
use super::line;
use super::parse::{Arguments, refuse};

/// `stats detail on|off|dump`; what comes behind that is not looked at.
pub(super) fn parse_detail(input: &[u8], arguments: &Arguments) -> Request {
    Request::Detail(match arguments.get(1).of(input) {
        b"on" => DetailRequest::On,
        b"off" => DetailRequest::Off,
        b"dump" => DetailRequest::Dump,
        _ => return refuse(line::BAD_DETAIL, Then::Continue),
    })
}
