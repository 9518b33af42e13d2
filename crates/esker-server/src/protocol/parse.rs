//! From bytes to the next request: a table of commands and one function for each shape of line.

use super::command::{Arithmetic, Refusal, Request, StoreRequest, StoreVerb, Then};
use super::number::{parse_signed, parse_unsigned};
use super::span::{Span, Tokens};
use super::{CRLF, DATA_BYTES_MAX, GET_LINE_BYTES_MAX, KEY_BYTES_MAX, LINE_BYTES_MAX, line};

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
    Version,
    Verbosity,
    FlushAll,
    Quit,
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
    row(b"version", Shape::Version, 0, ANY),
    row(b"verbosity", Shape::Verbosity, 1, 2),
    row(b"flush_all", Shape::FlushAll, 0, 2),
    row(b"quit", Shape::Quit, 0, ANY),
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
        Some(row) if row.arguments_max == ANY && row.arguments_min > 0 => GET_LINE_BYTES_MAX,
        _ => LINE_BYTES_MAX,
    }
}

fn refuse(line: &'static [u8], then: Then) -> Request {
    Request::Refused(Refusal { line, then })
}

/// A refusal of which a client that wants no reply hears nothing.
fn refuse_unless(noreply: bool, line: &'static [u8], then: Then) -> Request {
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
        let then = if matches!(row.shape, Shape::Store(_)) { Then::Close } else { Then::Continue };
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
        Shape::Stats => Request::Stats { section: arguments.get(0) },
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
struct Arguments {
    spans: [Span; Arguments::COUNT_MAX],
    count: usize,
}

impl Arguments {
    const COUNT_MAX: usize = 7;

    fn of(tokens: &Tokens<'_>) -> Self {
        let mut spans = [Span::default(); Arguments::COUNT_MAX];
        let mut count = 0_usize;
        for (slot, token) in spans.iter_mut().zip(tokens.clone()) {
            *slot = token;
            count = count.saturating_add(1);
        }
        Arguments { spans, count }
    }

    fn get(&self, index: usize) -> Span {
        self.spans.get(index).copied().unwrap_or_default()
    }

    /// Whether the last argument says that the client wants no reply.
    fn noreply(&self, input: &[u8]) -> bool {
        self.count > 0 && self.get(self.count.saturating_sub(1)).of(input) == b"noreply"
    }
}

fn parse_get(input: &[u8], with_cas: bool, exptime: Option<i64>, keys: Span) -> Request {
    if Tokens::new(input, keys).any(|key| key.len() > KEY_BYTES_MAX) {
        return refuse(line::BAD_FORMAT, Then::Continue);
    }
    Request::Get { with_cas, exptime, keys }
}

fn parse_store(input: &[u8], verb: StoreVerb, arguments: &Arguments) -> Request {
    let noreply = arguments.noreply(input);
    let plain = if verb == StoreVerb::Cas { 5 } else { 4 };
    let key = arguments.get(0);
    let cas = match verb {
        StoreVerb::Cas => parse_unsigned(arguments.get(4).of(input), u64::MAX),
        _ => Some(0),
    };
    let numbers = (
        parse_unsigned(arguments.get(1).of(input), u64::from(u32::MAX)).map(u32::try_from),
        parse_signed(arguments.get(2).of(input)),
        parse_unsigned(arguments.get(3).of(input), DATA_BYTES_MAX),
        cas,
    );
    let (Some(Ok(flags)), Some(exptime), Some(length), Some(cas)) = numbers else {
        return refuse_unless(noreply, line::BAD_FORMAT, Then::Close);
    };
    if arguments.count > plain && !noreply {
        return refuse(line::BAD_FORMAT, Then::Close);
    }
    if key.len() > KEY_BYTES_MAX {
        let block = length.saturating_add(CRLF.len() as u64);
        return refuse_unless(noreply, line::BAD_FORMAT, Then::Swallow(block));
    }
    Request::Store(StoreRequest { verb, key, flags, exptime, length, cas, noreply })
}

fn parse_delete(input: &[u8], arguments: &Arguments) -> Request {
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

fn parse_touch(input: &[u8], arguments: &Arguments) -> Request {
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

fn parse_arithmetic(input: &[u8], direction: Arithmetic, arguments: &Arguments) -> Request {
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

fn parse_flush_all(input: &[u8], arguments: &Arguments) -> Request {
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
