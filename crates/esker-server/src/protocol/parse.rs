//! From bytes to the next request: a table of commands and one function for each shape of line.

use super::classic::{
    parse_arithmetic, parse_delete, parse_flush_all, parse_get, parse_memory_limit, parse_shutdown,
    parse_store, parse_touch,
};
use super::command::{Arithmetic, MetaVerb, Refusal, Request, StoreVerb, Then};
use super::dump::{parse_cachedump, parse_crawler};
use super::meta::{parse_meta, parse_meta_debug, parse_meta_set};
use super::number::{parse_signed, parse_unsigned};
use super::observe::{parse_detail, parse_watch};
use super::span::{Span, Tokens};
use super::{GET_LINE_BYTES_MAX, LINE_BYTES_MAX, line};

/// What [`Parser::next`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// No whole line yet.
    Incomplete,
    /// A request, and how many bytes its line took.
    Request(Request, usize),
}

/// The parser of one connection. Its only state is how far it has looked for the end of a line, so
/// that a long line which comes in small pieces is looked at once.
#[derive(Debug, Default)]
pub struct Parser {
    scanned: usize,
}

/// Shape of a line.
#[derive(Clone, Copy)]
enum Shape {
    Get { with_cas: bool },
    GetAndTouch { with_cas: bool },
    Store(StoreVerb),
    Delete,
    Touch,
    Arithmetic(Arithmetic),
    Stats,
    Crawler,
    Watch,
    Version,
    Verbosity,
    FlushAll,
    Quit,
    Meta(MetaVerb),
    MetaSet,
    MetaDebug,
    MetaNoop,
    Shutdown,
    MemoryLimit,
}

struct Row {
    name: &'static [u8],
    shape: Shape,
    arguments_min: usize,
    arguments_max: usize,
}

const fn row(name: &'static [u8], shape: Shape, arguments_min: usize, arguments_max: usize) -> Row {
    Row { name, shape, arguments_min, arguments_max }
}

/// First byte of a request of the binary protocol; no command begins so.
const BINARY_MAGIC: u8 = 0x80;
/// As many arguments as the line holds.
const ANY: usize = usize::MAX;

/// Every command, the frequent ones first.
const COMMANDS: &[Row] = &[
    row(b"get", Shape::Get { with_cas: false }, 1, ANY),
    row(b"set", Shape::Store(StoreVerb::Set), 4, 5),
    row(b"mg", Shape::Meta(MetaVerb::Get), 1, ANY),
    row(b"ms", Shape::MetaSet, 1, ANY),
    row(b"gets", Shape::Get { with_cas: true }, 1, ANY),
    row(b"add", Shape::Store(StoreVerb::Add), 4, 5),
    row(b"replace", Shape::Store(StoreVerb::Replace), 4, 5),
    row(b"delete", Shape::Delete, 1, 3),
    row(b"incr", Shape::Arithmetic(Arithmetic::Up), 2, 3),
    row(b"decr", Shape::Arithmetic(Arithmetic::Down), 2, 3),
    row(b"cas", Shape::Store(StoreVerb::Cas), 5, 6),
    row(b"append", Shape::Store(StoreVerb::Append), 4, 5),
    row(b"prepend", Shape::Store(StoreVerb::Prepend), 4, 5),
    row(b"touch", Shape::Touch, 2, 3),
    row(b"gat", Shape::GetAndTouch { with_cas: false }, 1, ANY),
    row(b"gats", Shape::GetAndTouch { with_cas: true }, 1, ANY),
    row(b"bget", Shape::Get { with_cas: false }, 1, ANY),
    row(b"stats", Shape::Stats, 0, ANY),
    row(b"lru_crawler", Shape::Crawler, 0, ANY),
    row(b"watch", Shape::Watch, 0, ANY),
    row(b"version", Shape::Version, 0, ANY),
    row(b"verbosity", Shape::Verbosity, 1, 2),
    row(b"flush_all", Shape::FlushAll, 0, 2),
    row(b"quit", Shape::Quit, 0, ANY),
    row(b"md", Shape::Meta(MetaVerb::Delete), 1, ANY),
    row(b"ma", Shape::Meta(MetaVerb::Arithmetic), 1, ANY),
    row(b"mn", Shape::MetaNoop, 0, ANY),
    row(b"me", Shape::MetaDebug, 0, ANY),
    row(b"shutdown", Shape::Shutdown, 0, ANY),
    row(b"cache_memlimit", Shape::MemoryLimit, 1, 2),
];

impl Parser {
    /// A parser at the begin of a stream.
    #[must_use]
    pub fn new() -> Self {
        Parser::default()
    }

    /// The next request of `input`, which is everything received and not consumed. After
    /// `Incomplete`, `input` must be the same bytes with more behind them.
    pub fn next(&mut self, input: &[u8]) -> Parsed {
        if input.first() == Some(&BINARY_MAGIC) {
            return self.taken(refuse(b"", Then::Close), input.len(), input);
        }
        let fresh = input.get(self.scanned..).unwrap_or_default();
        let end = match fresh.iter().position(|byte| *byte == b'\n') {
            Some(at) => self.scanned.saturating_add(at),
            None => {
                self.scanned = input.len();
                input.len()
            }
        };
        if end > LINE_BYTES_MAX && end > line_bytes_max(input) {
            return self.taken(refuse(line::TOO_LONG, Then::Close), end, input);
        }
        if end == input.len() {
            return Parsed::Incomplete;
        }
        let bytes = input.get(..end).unwrap_or_default();
        let length = bytes.strip_suffix(b"\r").unwrap_or(bytes).len();
        let request = parse_line(input, Span::new(0, length));
        self.taken(request, end, input)
    }

    fn taken(&mut self, request: Request, end: usize, input: &[u8]) -> Parsed {
        self.scanned = 0;
        Parsed::Request(request, end.saturating_add(1).min(input.len()))
    }
}

/// How long the line that `input` begins with may get.
fn line_bytes_max(input: &[u8]) -> usize {
    let word = Tokens::new(input, Span::new(0, LINE_BYTES_MAX.min(input.len()))).next();
    match COMMANDS.iter().find(|row| word.is_some_and(|word| word.of(input) == row.name)) {
        Some(Row { shape: Shape::Get { .. } | Shape::GetAndTouch { .. }, .. }) => {
            GET_LINE_BYTES_MAX
        }
        _ => LINE_BYTES_MAX,
    }
}

pub(super) fn refuse(line: &'static [u8], then: Then) -> Request {
    Request::Refused(Refusal { line, then })
}

/// A refusal of which a client that wants no reply hears nothing.
pub(super) fn refuse_unless(noreply: bool, line: &'static [u8], then: Then) -> Request {
    refuse(if noreply { b"" } else { line }, then)
}

fn parse_line(input: &[u8], whole: Span) -> Request {
    let mut tokens = Tokens::new(input, whole);
    let Some(name) = tokens.next() else { return refuse(line::ERROR, Then::Continue) };
    let name = name.of(input);
    let Some(row) = COMMANDS.iter().find(|row| row.name == name) else {
        return unknown(input, name, tokens);
    };
    let arguments = Arguments::of(&tokens);
    if arguments.count < row.arguments_min || arguments.count > row.arguments_max {
        let then = if matches!(row.shape, Shape::Store(_) | Shape::MetaSet) {
            Then::Close
        } else {
            Then::Continue
        };
        return refuse(line::ERROR, then);
    }
    match row.shape {
        Shape::Get { with_cas } => parse_get(input, with_cas, None, tokens.rest()),
        Shape::GetAndTouch { with_cas } => {
            let exptime = tokens.next().and_then(|word| parse_signed(word.of(input)));
            match exptime {
                Some(exptime) => parse_get(input, with_cas, Some(exptime), tokens.rest()),
                None => refuse(line::BAD_EXPTIME, Then::Continue),
            }
        }
        Shape::Store(verb) => parse_store(input, verb, &arguments),
        Shape::Delete => parse_delete(input, &arguments),
        Shape::Touch => parse_touch(input, &arguments),
        Shape::Arithmetic(direction) => parse_arithmetic(input, direction, &arguments),
        Shape::Stats if arguments.get(0).of(input) == b"cachedump" => {
            parse_cachedump(input, &arguments)
        }
        Shape::Stats if arguments.get(0).of(input) == b"detail" => parse_detail(input, &arguments),
        Shape::Stats => Request::Stats { section: arguments.get(0) },
        Shape::Crawler => parse_crawler(input, &arguments),
        Shape::Watch => parse_watch(input, tokens),
        Shape::Version => Request::Version,
        Shape::Verbosity => {
            let noreply = arguments.noreply(input);
            match parse_unsigned(arguments.get(0).of(input), u64::from(u32::MAX)) {
                Some(_) => Request::Verbosity { noreply },
                None => refuse_unless(noreply, line::BAD_FORMAT, Then::Continue),
            }
        }
        Shape::FlushAll => parse_flush_all(input, &arguments),
        Shape::Quit => Request::Quit,
        Shape::Meta(verb) => parse_meta(input, verb, tokens),
        Shape::MetaSet => parse_meta_set(input, tokens),
        Shape::MetaDebug => parse_meta_debug(input, tokens),
        Shape::MetaNoop => Request::MetaNoop,
        Shape::Shutdown => parse_shutdown(input, &arguments),
        Shape::MemoryLimit => parse_memory_limit(input, &arguments),
    }
}

/// A browser, or something that makes one talk to us, is not answered.
fn unknown(input: &[u8], name: &[u8], tokens: Tokens<'_>) -> Request {
    let last = tokens.last().unwrap_or_default();
    if last.of(input).starts_with(b"HTTP/") || name.eq_ignore_ascii_case(b"host:") {
        return refuse(b"", Then::Close);
    }
    refuse(line::ERROR, Then::Continue)
}

/// The first arguments of a line, and how many there are: at most one more than any bounded
/// command takes is looked at.
pub(super) struct Arguments {
    spans: [Span; Arguments::COUNT_MAX],
    pub(super) count: usize,
}

impl Arguments {
    pub(super) const COUNT_MAX: usize = 7;

    pub(super) fn of(tokens: &Tokens<'_>) -> Self {
        let mut spans = [Span::default(); Arguments::COUNT_MAX];
        let mut count = 0_usize;
        for (slot, token) in spans.iter_mut().zip(tokens.clone()) {
            *slot = token;
            count = count.saturating_add(1);
        }
        Arguments { spans, count }
    }

    pub(super) fn get(&self, index: usize) -> Span {
        self.spans.get(index).copied().unwrap_or_default()
    }

    /// Whether the last argument says that the client wants no reply.
    pub(super) fn noreply(&self, input: &[u8]) -> bool {
        self.count > 0 && self.get(self.count.saturating_sub(1)).of(input) == b"noreply"
    }
}
