//! The end of a store, which comes once.
//!
//! # Concurrency
//! Whoever closes a store while somebody else does waits for that one; all are told the same.

use esker_base::Result;
use esker_trt::sync::Mutex;

/// What came of closing a store, once somebody has done so.
#[derive(Debug, Default)]
pub(crate) struct Closing(Mutex<Option<Result<()>>>);

impl Closing {
    /// Closes the store, unless that was done already.
    pub(crate) fn once(&self, close: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut outcome = self.0.lock();
        outcome.get_or_insert_with(close).clone()
    }
}
