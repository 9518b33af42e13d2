//! Why a request failed, and what is known of it.

use esker_base::ErrorKind;
use esker_format::Flaw;
use esker_format::native::{KEY_SIZE_MAX_BYTES, Status};
use std::fmt;

/// Result with a client's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What is known of a request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// The server never had it whole: it had no effect, and may be sent again.
    NotSent,
    /// The server has refused it: it had no effect, and would be refused again, as long as nothing
    /// changes there.
    Refused,
    /// It was sent, and how it went is not known: a write may or may not have taken effect.
    Unknown,
}

/// Why a request failed.
#[derive(Clone)]
pub struct Error {
    fate: Fate,
    status: Option<Status>,
    cause: esker_base::Error,
}

impl Error {
    pub(crate) fn new(fate: Fate, cause: esker_base::Error) -> Error {
        Error { fate, status: None, cause }
    }

    pub(crate) fn not_sent(cause: esker_base::Error) -> Error {
        Error::new(Fate::NotSent, cause)
    }

    /// A request that cannot be said or that the server would not take: it stays here.
    pub(crate) fn invalid(words: impl Into<String>) -> Error {
        Error::not_sent(esker_base::Error::invalid("prepare request", words))
    }

    /// A request that the protocol has no way to say.
    pub(crate) fn unsayable(flaw: Flaw) -> Error {
        Error::invalid(match flaw {
            Flaw::Field("key") => format!("keys have 1 to {KEY_SIZE_MAX_BYTES} bytes"),
            flaw => flaw.to_string(),
        })
    }

    /// What a server has answered that is no success.
    pub(crate) fn of_status(status: Status) -> Error {
        let kind = match status {
            Status::Failed(kind) => kind,
            Status::Malformed | Status::TooLarge => ErrorKind::InvalidArgument,
            Status::BadFrame => ErrorKind::Corrupted,
            Status::TooManyConnections => ErrorKind::OutOfMemory,
            Status::UnsupportedVersion => ErrorKind::UnsupportedFormat,
            Status::TooSlow => ErrorKind::Timeout,
            _ => ErrorKind::Unsupported,
        };
        let fate = match kind {
            // These say so themselves: the request was under way.
            ErrorKind::DurabilityUnknown | ErrorKind::Panicked => Fate::Unknown,
            _ => Fate::Refused,
        };
        let cause = esker_base::Error::new(kind, "ask server").context(status.words());
        Error { fate, status: Some(status), cause }
    }

    /// A reply that is none.
    pub(crate) fn of_flaw(flaw: Flaw) -> Error {
        Error::new(
            Fate::Unknown,
            esker_base::Error::corrupted("read reply", "the server's bytes make no sense")
                .source(flaw),
        )
    }

    /// What is known of the request.
    #[must_use]
    pub fn fate(&self) -> Fate {
        self.fate
    }

    /// What kind of failure it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.cause.kind()
    }

    /// What the server answered, if it did.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        self.status
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fate = match self.fate {
            Fate::NotSent => "not sent",
            Fate::Refused => "refused",
            Fate::Unknown => "outcome unknown",
        };
        write!(f, "{fate}: {}", self.cause)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({self})", self.fate)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.cause)
    }
}
