//! What a client can ask for.

use super::observe::WatchKinds;
use super::span::Span;

/// One request, its words as places in the buffer it was parsed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// `get`, `gets`, `gat`, `gats`: every key of `keys` is a valid one.
    Get {
        /// Whether replies carry the CAS id.
        with_cas: bool,
        /// New expiry, for `gat` and `gats`.
        exptime: Option<i64>,
        /// The part of the line that lists the keys; may be blank.
        keys: Span,
    },
    /// A command with a data block, which follows the consumed bytes.
    Store(StoreRequest),
    /// `delete`.
    Delete {
        /// The key.
        key: Span,
        /// Whether the client wants no reply.
        noreply: bool,
    },
    /// `touch`.
    Touch {
        /// The key.
        key: Span,
        /// New expiry.
        exptime: i64,
        /// Whether the client wants no reply.
        noreply: bool,
    },
    /// `incr` and `decr`.
    Arithmetic {
        /// Up or down.
        direction: Arithmetic,
        /// The key.
        key: Span,
        /// By how much.
        delta: u64,
        /// Whether the client wants no reply.
        noreply: bool,
    },
    /// `stats`, with what follows it.
    Stats {
        /// First word after `stats`; may be empty.
        section: Span,
    },
    /// `stats detail`.
    Detail(DetailRequest),
    /// `lru_crawler metadump`, `lru_crawler mgdump` and `stats cachedump`.
    Dump(DumpRequest),
    /// `watch`; `None`: of a kind that there is not.
    Watch(Option<WatchKinds>),
    /// `version`.
    Version,
    /// `verbosity`: accepted, without effect.
    Verbosity {
        /// Whether the client wants no reply.
        noreply: bool,
    },
    /// `flush_all`.
    FlushAll {
        /// When: as an exptime; zero and below mean now.
        delay: i64,
        /// Whether the client wants no reply.
        noreply: bool,
    },
    /// `quit`.
    Quit,
    /// `mg`, `md`, `ma` and `me`: the flags are valid ones of the verb.
    Meta {
        /// Which one.
        verb: MetaVerb,
        /// The key as the client wrote it, perhaps in base64.
        key: Span,
        /// The part of the line that lists the flags; may be blank.
        flags: Span,
    },
    /// `mn`.
    MetaNoop,
    /// `shutdown`.
    Shutdown(ShutdownMode),
    /// `cache_memlimit`.
    MemoryLimit {
        /// What the client wants.
        mebibytes: u64,
        /// Whether the client wants no reply.
        noreply: bool,
    },
    /// Nothing that can be done.
    Refused(Refusal),
}

/// A command with a data block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreRequest {
    /// Which one.
    pub verb: StoreVerb,
    /// The key.
    pub key: Span,
    /// The client's number.
    pub flags: u32,
    /// Expiry.
    pub exptime: i64,
    /// Bytes of the data block, without the end of line after it. At most `DATA_BYTES_MAX`.
    pub length: u64,
    /// Expected CAS id, for `cas`.
    pub cas: u64,
    /// Whether the client wants no reply. Never set for `ms`: its errors are always told.
    pub noreply: bool,
    /// For `ms`, the part of the line that lists the flags.
    pub meta: Option<Span>,
}

/// Meta commands with flags, but for `ms`, which is a [`StoreRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaVerb {
    /// `mg`.
    Get,
    /// `md`.
    Delete,
    /// `ma`.
    Arithmetic,
    /// `me`.
    Debug,
}

/// A command that lists the items of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumpRequest {
    /// What is told of each.
    pub form: DumpForm,
    /// Whether the class is the one that has all items; the others have none.
    pub all: bool,
    /// How many items at most.
    pub limit: u64,
}

/// What is told of an item in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpForm {
    /// `lru_crawler metadump`: the key and figures.
    Figures,
    /// `lru_crawler mgdump`: the key, as a request.
    Requests,
    /// `stats cachedump`: the key, its size and expiry.
    Sizes,
}

/// What `stats detail` is to do about the statistics by prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetailRequest {
    /// Count from now on.
    On,
    /// Count no more.
    Off,
    /// Tell what was counted.
    Dump,
}

/// How `shutdown` is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownMode {
    /// As by a signal.
    Now,
    /// `graceful`.
    Graceful,
    /// Neither.
    Invalid,
}

/// Commands with a data block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreVerb {
    /// Store always.
    Set,
    /// Store if the key has no value.
    Add,
    /// Store if the key has a value.
    Replace,
    /// Put behind the present value.
    Append,
    /// Put before the present value.
    Prepend,
    /// Store if the value is the one that the client saw.
    Cas,
}

/// Direction of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// `incr`: wraps at 2^64.
    Up,
    /// `decr`: stops at 0.
    Down,
}

/// Why nothing is done, and how the stream goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reply; may be empty.
    pub line: &'static [u8],
    /// What comes next in the stream.
    pub then: Then,
}

/// How the stream goes on after a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// With the next line.
    Continue,
    /// With the next line, after this many bytes of a data block.
    Swallow(u64),
    /// Not at all: what follows cannot be told apart from a payload.
    Close,
}
