//! A batcher beside the logs that it is tested with.

use super::{Batcher, BatchingOptions, Logs, Posted};
use esker_base::Result;
use std::ops::Deref;

pub(super) struct Tested<L: Logs> {
    batcher: Batcher<L>,
    pub(super) logs: L,
}

impl<L: Logs> Tested<L> {
    pub(super) fn new(logs: L, options: BatchingOptions) -> Self {
        Tested { batcher: Batcher::new(options), logs }
    }

    pub(super) fn commit_on(&self, core: usize, entry: L::Entry) -> Result<L::Placed> {
        self.batcher.commit_on(&self.logs, core, entry)
    }

    #[cfg(not(feature = "shuttle"))]
    pub(super) fn commit(&self, entry: L::Entry) -> Result<L::Placed> {
        self.batcher.commit(&self.logs, entry)
    }

    #[cfg(not(feature = "shuttle"))]
    pub(super) fn post(&self, entry: L::Entry) -> Posted<'_, L> {
        self.batcher.post(&self.logs, entry)
    }

    pub(super) fn post_on(&self, core: usize, entry: L::Entry) -> Posted<'_, L> {
        self.batcher.post_on(&self.logs, core, entry)
    }
}

impl<L: Logs> Deref for Tested<L> {
    type Target = Batcher<L>;

    fn deref(&self) -> &Batcher<L> {
        &self.batcher
    }
}
