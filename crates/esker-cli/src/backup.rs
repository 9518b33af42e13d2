//! `esker backup` and `esker restore`: a store as a folder of files, and back.
//!
//! Both say what they did in one line on standard error. Format: `docs/format/backup.md`.

use crate::arguments::{Data, Memory};
use crate::failure::{Done, Failure};
use crate::progress::progress;
use crate::service::say;
use crate::store::{new_options, open, shown_on, size_of};
use esker_base::units::format_size_bytes;
use std::path::Path;

/// `esker backup`.
pub(crate) fn backup(data: &Data, target: &Path) -> Result<Done, Failure> {
    let store = open(data)?;
    let bar = progress("copying segments", 0);
    let report = store.backup_with(target, &shown_on(&bar));
    bar.finish_and_clear();
    let report = report?;
    say(&format!(
        "{} segments copied ({}), {} were there already; holds all writes up to version {}",
        report.segments_copied,
        format_size_bytes(report.bytes_copied),
        report.segments_reused,
        report.last_version
    ));
    store.close()?;
    Ok(Done::Yes)
}

/// `esker restore`.
pub(crate) fn restore(
    data: &Data,
    size: Option<&str>,
    memory: &Memory,
    source: &Path,
) -> Result<Done, Failure> {
    let mut options = new_options(data, memory);
    // As large as the store that was backed up, if nothing else is said.
    options.size_bytes = size.map_or(Ok(0), size_of)?;
    let bar = progress("restoring segments", 0);
    options.progress = shown_on(&bar);
    let report = esker::restore(source, &options);
    bar.finish_and_clear();
    let report = report?;
    say(&format!(
        "{} segments restored ({}); holds all writes up to version {}",
        report.segments,
        format_size_bytes(report.bytes),
        report.last_version
    ));
    Ok(Done::Yes)
}
