//! Places for tasks beside the sessions of a core: how many there are is bounded.

use crate::execute::Ground;
use crate::limits::TASKS_MAX;
use crate::shared::Shared;
use std::sync::Arc;

/// One of the tasks that a core may have beside its sessions: each has a stack, for which no memory
/// is taken.
pub(crate) struct TaskPlace {
    shared: Arc<Shared>,
    core: usize,
}

impl TaskPlace {
    /// A place, if the core has one left.
    pub(crate) fn take(shared: &Arc<Shared>, core: usize) -> Option<TaskPlace> {
        let taken = shared.counters.shard(core).try_begin_task(TASKS_MAX);
        taken.then(|| TaskPlace { shared: shared.clone(), core })
    }

    /// What a task in this place runs on.
    pub(crate) fn ground(&self) -> Ground<'_> {
        self.shared.ground(self.core)
    }
}

impl Drop for TaskPlace {
    fn drop(&mut self) {
        self.shared.counters.shard(self.core).end_task();
    }
}
