//! The one public error of Esker.
//!
//! An [`Error`] says what kind of thing failed, during which operation, on which device and at
//! which offset, with a context for humans and the source that caused it. It is cheap to move (one
//! pointer) and cheap to clone, because one failed flush is the answer to every operation that
//! waited for it.
//!
//! Not-found is not an error: `get` answers `None`. Programs match on [`Error::kind`], never on
//! text.

use std::fmt;
use std::sync::Arc;

/// Result with Esker's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of failure an [`Error`] is. Numbers are stable: they go over the native protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[repr(u32)]
pub enum ErrorKind {
    /// The caller asked for something outside the documented limits.
    InvalidArgument = 1,
    /// No room for the write. Reads and deletes go on.
    NoSpace = 2,
    /// Bytes on media are not what was written there.
    Corrupted = 3,
    /// The operating system or the device refused an operation.
    Io = 4,
    /// The store refuses writes after a failed write or flush, until it is opened again.
    ReadOnly = 5,
    /// The operation was under way when a write or flush failed: its effect may or may not survive.
    DurabilityUnknown = 6,
    /// Somebody else uses what only one may: the store, here or in another process, or what is to be written.
    Locked = 7,
    /// The store was written in a format that this build does not know.
    UnsupportedFormat = 8,
    /// A deadline passed.
    Timeout = 9,
    /// Memory, or a budget of it, is used up.
    OutOfMemory = 10,
    /// This medium, kernel or engine cannot do what was asked for.
    Unsupported = 11,
    /// The store, device or run-time is closed.
    Closed = 12,
    /// The task was cancelled at shutdown.
    Cancelled = 13,
    /// A task panicked; the panic's text is the context.
    Panicked = 14,
}

impl ErrorKind {
    /// Every kind, in the order of their numbers.
    pub const ALL: [ErrorKind; 14] = [
        ErrorKind::InvalidArgument,
        ErrorKind::NoSpace,
        ErrorKind::Corrupted,
        ErrorKind::Io,
        ErrorKind::ReadOnly,
        ErrorKind::DurabilityUnknown,
        ErrorKind::Locked,
        ErrorKind::UnsupportedFormat,
        ErrorKind::Timeout,
        ErrorKind::OutOfMemory,
        ErrorKind::Unsupported,
        ErrorKind::Closed,
        ErrorKind::Cancelled,
        ErrorKind::Panicked,
    ];

    /// The kind in words for people.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            ErrorKind::InvalidArgument => "invalid argument",
            ErrorKind::NoSpace => "no space left in the store",
            ErrorKind::Corrupted => "data on media are corrupted",
            ErrorKind::Io => "input/output error",
            ErrorKind::ReadOnly => "store is read-only",
            ErrorKind::DurabilityUnknown => "outcome unknown: a write or flush failed",
            ErrorKind::Locked => "in use already, here or in another process",
            ErrorKind::UnsupportedFormat => "unsupported format version",
            ErrorKind::Timeout => "timed out",
            ErrorKind::OutOfMemory => "out of memory",
            ErrorKind::Unsupported => "not supported here",
            ErrorKind::Closed => "closed",
            ErrorKind::Cancelled => "cancelled",
            ErrorKind::Panicked => "a task panicked",
        }
    }
}

type Source = Arc<dyn std::error::Error + Send + Sync>;

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    operation: &'static str,
    device: Option<String>,
    offset: Option<u64>,
    length: Option<u64>,
    context: Option<String>,
    source: Option<Source>,
}

impl Inner {
    fn place(&self) -> Option<String> {
        Some(match (self.offset?, self.length?) {
            (offset, 0) => format!("at offset {offset}"),
            (offset, length) => format!("{length} bytes at offset {offset}"),
        })
    }
}

/// A failure, with everything that is known about it. See the module's text.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

impl Error {
    /// An error of `kind` during `operation` (a verb with its object: `"flush device"`).
    #[must_use]
    pub fn new(kind: ErrorKind, operation: &'static str) -> Self {
        Error(Arc::new(Inner {
            kind,
            operation,
            device: None,
            offset: None,
            length: None,
            context: None,
            source: None,
        }))
    }

    /// An operating-system failure; its kind follows from the error number.
    #[must_use]
    pub fn io(operation: &'static str, source: std::io::Error) -> Self {
        use std::io::ErrorKind as K;
        let kind = match source.kind() {
            K::StorageFull | K::QuotaExceeded => ErrorKind::NoSpace,
            K::OutOfMemory => ErrorKind::OutOfMemory,
            K::TimedOut => ErrorKind::Timeout,
            K::InvalidInput => ErrorKind::InvalidArgument,
            K::Unsupported => ErrorKind::Unsupported,
            _ => ErrorKind::Io,
        };
        Error::new(kind, operation).source(source)
    }

    /// An argument outside the limits; `context` names the limit.
    #[must_use]
    pub fn invalid(operation: &'static str, context: impl Into<String>) -> Self {
        Error::new(ErrorKind::InvalidArgument, operation).context(context)
    }

    /// Bytes that are not what was written.
    #[must_use]
    pub fn corrupted(operation: &'static str, context: impl Into<String>) -> Self {
        Error::new(ErrorKind::Corrupted, operation).context(context)
    }

    /// Names the device.
    #[must_use]
    pub fn device(mut self, device: impl Into<String>) -> Self {
        Arc::make_mut(&mut self.0).device = Some(device.into());
        self
    }

    /// Names the place on the device, in bytes; a length of 0 is one that nobody knows.
    #[must_use]
    pub fn at(mut self, offset: u64, length: u64) -> Self {
        let inner = Arc::make_mut(&mut self.0);
        inner.offset = Some(offset);
        inner.length = Some(length);
        self
    }

    /// Adds words for people. Never a key or a value: those do not belong in logs.
    #[must_use]
    pub fn context(mut self, context: impl Into<String>) -> Self {
        let inner = Arc::make_mut(&mut self.0);
        inner.context = Some(match inner.context.take() {
            Some(earlier) => format!("{}: {earlier}", context.into()),
            None => context.into(),
        });
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Arc::make_mut(&mut self.0).source = Some(Arc::new(source));
        self
    }

    /// The same failure under another kind: `DurabilityUnknown` for those who waited on a flush.
    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        Arc::make_mut(&mut self.0).kind = kind;
        self
    }

    /// What kind of failure this is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether a read may fail so where others do not: what is there is damaged, or the device does not give it.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        matches!(self.kind(), ErrorKind::Corrupted | ErrorKind::Io)
    }

    /// What was being done.
    #[must_use]
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// The device concerned, if one is.
    #[must_use]
    pub fn device_name(&self) -> Option<&str> {
        self.0.device.as_deref()
    }

    /// The place on the device in bytes: offset and length.
    #[must_use]
    pub fn range(&self) -> Option<(u64, u64)> {
        Some((self.0.offset?, self.0.length?))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        write!(f, "{}: {}", inner.operation, inner.kind.words())?;
        if let Some(context) = &inner.context {
            write!(f, ": {context}")?;
        }
        if let Some(device) = &inner.device {
            write!(f, " (device {device}")?;
            if let Some(place) = inner.place() {
                write!(f, ", {place}")?;
            }
            write!(f, ")")?;
        } else if let Some(place) = inner.place() {
            write!(f, " ({place})")?;
        }
        if let Some(source) = &inner.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({self})", self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests;
