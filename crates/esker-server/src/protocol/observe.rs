//! Lines of the commands by which a server is observed: `stats detail`, `watch`.

use super::command::{DetailRequest, Request, Then};
use super::line;
use super::parse::{Arguments, refuse};
use super::span::Tokens;

/// `stats detail on|off|dump`; what comes behind that is not looked at.
pub(super) fn parse_detail(input: &[u8], arguments: &Arguments) -> Request {
    Request::Detail(match arguments.get(1).of(input) {
        b"on" => DetailRequest::On,
        b"off" => DetailRequest::Off,
        b"dump" => DetailRequest::Dump,
        _ => return refuse(line::BAD_DETAIL, Then::Continue),
    })
}

/// Kinds of events that a client asks to be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchKinds(u16);

impl WatchKinds {
    /// Items that are looked up.
    pub const FETCHERS: WatchKinds = WatchKinds(1);
    /// Items that are stored.
    pub const MUTATIONS: WatchKinds = WatchKinds(2);
    /// Connections that come and go.
    pub const CONNECTIONS: WatchKinds = WatchKinds(4);
    /// Those of which nothing is ever told here.
    const SILENT: WatchKinds = WatchKinds(0);

    /// Those of a number that [`bits`](WatchKinds::bits) gave.
    #[must_use]
    pub fn of_bits(bits: u16) -> WatchKinds {
        WatchKinds(bits)
    }

    /// A number, to be kept in an atomic.
    #[must_use]
    pub fn bits(self) -> u16 {
        self.0
    }

    /// These and those.
    #[must_use]
    pub fn with(self, others: WatchKinds) -> WatchKinds {
        WatchKinds(self.0 | others.0)
    }

    /// Whether one of those is among these.
    #[must_use]
    pub fn has(self, others: WatchKinds) -> bool {
        self.0 & others.0 != 0
    }

    fn of_word(word: &[u8]) -> Option<WatchKinds> {
        Some(match word {
            b"fetchers" => WatchKinds::FETCHERS,
            b"mutations" => WatchKinds::MUTATIONS,
            b"connevents" => WatchKinds::CONNECTIONS,
            b"evictions" | b"sysevents" | b"rawcmds" | b"proxyreqs" | b"proxyevents"
            | b"proxyuser" => WatchKinds::SILENT,
            _ => return None,
        })
    }
}

/// `watch`, with any number of kinds; without one, of those who fetch.
pub(super) fn parse_watch(input: &[u8], words: Tokens<'_>) -> Request {
    let words = words.map(|word| word.of(input));
    let (mut kinds, mut last) = (Some(WatchKinds::default()), None);
    for word in words {
        let kind = WatchKinds::of_word(word);
        kinds = kinds.zip(kind).map(|(kinds, kind)| kinds.with(kind));
        last = Some(word);
    }
    match last {
        None => Request::Watch(Some(WatchKinds::FETCHERS)),
        // It is no kind, and takes back that this is said.
        Some(b"noreply") => refuse(b"", Then::Continue),
        Some(_) => Request::Watch(kinds),
    }
}
