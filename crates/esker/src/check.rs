//! What a check of a store found.

/// Result of [`Store::check`](crate::Store::check).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Records that the index knows and that were read.
    pub records: u64,
    /// Batches of the log that were read.
    pub batches: u64,
    /// Bytes of records in the log, dead ones included.
    pub bytes: u64,
    /// What is wrong, in words; empty for a sound store.
    pub problems: Vec<String>,
}

impl CheckReport {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }

    pub(crate) fn problem(&mut self, words: String) {
        self.problems.push(words);
    }
}
