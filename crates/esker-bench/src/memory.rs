//! Memory that a process may have in all, with the page cache of the files that it reads and writes: a control group of the
//! kernel's. Who leaves its caching to the kernel has no other bound.
//!
//! Both versions of control groups will do. Making one takes rights that a plain user mostly does not have. What a
//! process keeps on a file system in memory counts, too; a compressed device in memory does not.

use crate::failure::{Failure, Outcome};
use crate::files;
use std::path::{Path, PathBuf};

/// Where the kernel's groups are, by convention.
const ROOT: &str = "/sys/fs/cgroup";

/// A group, which goes when this is dropped: its processes must have ended by then.
#[derive(Debug)]
pub struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// A group whose processes have no more than `bytes` together. One at a time for each process that asks.
    ///
    /// # Errors
    /// Where no group can be made, or the kernel does not bound memory.
    pub fn new(bytes: u64) -> Outcome<MemoryGroup> {
        let own = format!("esker-bench-{}", std::process::id());
        let first = Path::new(ROOT).join("memory");
        let (above, limit) = match first.is_dir() {
            true => (first, "memory.limit_in_bytes"),
            false => (PathBuf::from(ROOT), "memory.max"),
        };
        if limit == "memory.max" {
            // It is on already, or the limit below says that it is not.
            let _ = files::write_in_place(&above.join("cgroup.subtree_control"), "+memory");
        }
        let group = MemoryGroup(above.join(own));
        let why =
            |failure: Failure| failure.during("memory: no group of processes is bounded here");
        files::create_folder(&group.0).map_err(why)?;
        files::write_in_place(&group.0.join(limit), &bytes.to_string()).map_err(why)?;
        Ok(group)
    }

    /// Bounds a process. What it has had before does not count.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn take_in(&self, process: u32) -> Outcome<()> {
        files::write_in_place(&self.0.join("cgroup.procs"), &process.to_string())
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        files::remove_empty_folder(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_there_until_it_is_dropped_or_says_why_not() {
        match MemoryGroup::new(64 << 20) {
            Ok(group) => {
                let folder = group.0.clone();
                assert!(folder.is_dir());
                assert!(group.take_in(u32::MAX).is_err(), "there is no such process");
                drop(group);
                assert!(!folder.exists());
            }
            Err(failure) => assert!(failure.to_string().contains("memory"), "{failure}"),
        }
    }
}
