//! `esker backup` and `esker restore`: a store as a folder of files, or a tar of them, and back; `remote` has the backups of servers.
//!
//! Both say what they did in one line on standard error. Format: `docs/format/backup.md`.

use crate::arguments::{Data, Memory, Servers};
use crate::failure::{Done, Failure};
use crate::progress::progress;
use crate::remote;
use crate::service::say;
use crate::store::{new_options, open, shown_on, size_of};
use esker_base::units::format_size_bytes;
use std::path::Path;

/// `esker backup`.
pub(crate) fn backup(
    data: &Data,
    servers: &Servers,
    target: Option<&Path>,
) -> Result<Done, Failure> {
    let target = match (target, servers.urls.is_empty()) {
        (Some(target), true) => target,
        (None, false) => return remote::backup(servers),
        (None, true) => {
            let words = "backup needs the folder DIR or FILE.tar for the copy, or --server URL of a server that has one";
            return Err(Failure::usage(words));
        }
        (Some(_), false) => {
            let words =
                "backup takes DIR or --server URL, not both: a server has a folder of its own";
            return Err(Failure::usage(words));
        }
    };
    let store = open(data)?;
    let bar = progress("copying segments", 0);
    // A name that says so, or a file that is there.
    let is_file = target.is_file() || target.extension().is_some_and(|end| end == "tar");
    let report = match is_file && !target.is_dir() {
        true => store.backup_file_with(target, &shown_on(&bar)),
        false => store.backup_with(target, &shown_on(&bar)),
    };
    bar.finish_and_clear();
    let report = report?;
    say(&report.to_string());
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
