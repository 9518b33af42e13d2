//! Commands on single keys, `check` and `compact`.

use crate::arguments::{Data, New, Servers};
use crate::failure::{Done, Failure};
use crate::output::{output_failed, tell};
use crate::progress::progress;
use crate::remote;
use crate::store::{open, open_or_make, open_to_read, options_at, options_of};
use esker::{EngineKind, ErrorKind};
use esker_base::units::format_size_bytes;
use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Longest key of a store, in bytes.
const KEY_BYTES_MAX: usize = 64 << 10;

/// `esker get`.
pub(crate) fn get(data: &Data, servers: &Servers, key: &OsStr) -> Result<Done, Failure> {
    if !servers.urls.is_empty() {
        return remote::get(servers, key.as_bytes());
    }
    let store = open_to_read(data)?;
    let value = store.get(key.as_bytes())?;
    let written = value.map(|value| {
        let mut output = std::io::stdout().lock();
        output.write_all(&value).and_then(|()| output.flush()).map_err(output_failed)
    });
    store.close()?;
    match written {
        Some(written) => written.map(|()| Done::Yes),
        None => Ok(Done::No),
    }
}

/// `esker put`.
pub(crate) fn put(
    data: &Data,
    servers: &Servers,
    new: &New,
    key: &OsStr,
    value: Option<OsString>,
) -> Result<Done, Failure> {
    // Before anything is made.
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(Failure::usage(format!("a key has 1 to {KEY_BYTES_MAX} bytes")));
    }
    let value = match value {
        Some(value) => value.into_vec(),
        None => {
            let mut value = Vec::new();
            std::io::stdin()
                .lock()
                .read_to_end(&mut value)
                .map_err(|source| Failure::io("standard input", &source))?;
            value
        }
    };
    if !servers.urls.is_empty() {
        return remote::put(servers, key.as_bytes(), &value);
    }
    let store = open_or_make(options_of(data, new)?, new)?;
    store.put(key.as_bytes(), &value)?;
    store.close()?;
    Ok(Done::Yes)
}

/// `esker delete`.
pub(crate) fn delete(data: &Data, servers: &Servers, key: &OsStr) -> Result<Done, Failure> {
    if !servers.urls.is_empty() {
        return remote::delete(servers, key.as_bytes());
    }
    let store = open(data)?;
    let existed = store.delete(key.as_bytes())?;
    store.close()?;
    Ok(if existed { Done::Yes } else { Done::No })
}

/// `esker check`.
pub(crate) fn check(data: &Data, repair: bool, dry_run: bool) -> Result<Done, Failure> {
    if repair || dry_run {
        mend(data, dry_run)?;
    }
    let store = open_to_read(data)?;
    let bar = progress("checking", store.stats().items);
    let report = store.check();
    bar.finish_and_clear();
    let report = report?;
    for problem in &report.problems {
        tell(&format!("problem: {problem}"))?;
    }
    tell(&format!(
        "{} records (items, and notes of what was deleted or lost) in {} batches, {} bytes read",
        report.records, report.batches, report.bytes
    ))?;
    match report.is_sound() {
        true => tell("sound")?,
        false => tell(&format!("{} problems", report.problems.len()))?,
    }
    store.close()?;
    Ok(if report.is_sound() { Done::Yes } else { Done::No })
}

fn mend(data: &Data, dry_run: bool) -> Result<(), Failure> {
    let mut options = options_at(&data.paths);
    options.read_only = dry_run;
    if dry_run {
        tell("a repair would do this, and nothing is changed:")?;
    }
    let report = match esker::repair(&options) {
        // As for a command that opens a store that is there.
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            options.pmem_emulate = true;
            esker::repair(&options)
        }
        repaired => repaired,
    };
    let report = report?;
    if report.damaged_segments > 0 {
        tell(&format!(
            "{} parts hold damage that hides what stood there: keys may be gone or show older values",
            report.damaged_segments
        ))?;
    }
    tell(&format!(
        "{} records read, {} lost, {} moved away from damage",
        report.records, report.records_lost, report.records_moved
    ))
}

/// `esker compact`.
pub(crate) fn compact(data: &Data, trim: bool) -> Result<Done, Failure> {
    let store = open(data)?;
    let cleaned = store.clean(usize::MAX)?;
    let trimmed = if trim { store.trim()? } else { 0 };
    let stats = store.stats();
    tell(&format!(
        "{cleaned} segments cleaned, {} of {} free, {} tombstones kept",
        stats.free_segments, stats.segments, stats.tombstones
    ))?;
    let is_flat = matches!(store.engine(), EngineKind::FlatCceh | EngineKind::FlatMasstree);
    if trim && is_flat {
        tell("nothing given back: a store of flat keeps its memory")?;
    } else if trim {
        tell(&format!("{} given back", format_size_bytes(trimmed)))?;
    }
    store.close()?;
    Ok(Done::Yes)
}
