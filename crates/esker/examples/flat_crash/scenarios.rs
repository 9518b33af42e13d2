//! Short stories that random workloads meet too rarely.

/// What a scenario says of itself.
type Told = std::result::Result<(), String>;

/// Tells all stories.
pub(crate) fn all() -> Told {
    Ok(())
}
