//! Why a measurement failed, in one line.
//!
//! Systems under test have errors of many types, and all that is done with them is to say them, so
//! they become words at once.

use std::fmt;

/// Words of an error and its causes.
pub struct Failure(String);

/// What a measurement gives.
pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// A failure that says `words`.
    pub fn new(words: impl Into<String>) -> Self {
        Failure(words.into())
    }

    /// The same, with what was being done in front.
    #[must_use]
    pub fn during(self, what: impl fmt::Display) -> Self {
        Failure(format!("{what}: {}", self.0))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// `Failure` is no `std::error::Error` itself, so that this covers every one that is.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut words = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let more = error.to_string();
            if !words.contains(&more) {
                words = format!("{words}: {more}");
            }
            cause = error.source();
        }
        Failure(words)
    }
}
