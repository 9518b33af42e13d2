//! Commands on single keys, and `scan` and `check`.

use crate::arguments::{Data, Servers, Size};
use crate::failure::{Done, Failure};
use crate::progress::progress;
use crate::remote;
use crate::store::{new_options, open, open_with, options_at};
use esker::Direction;
use esker_base::units::format_size_bytes;
use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::ops::Bound;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

fn output_failed(source: std::io::Error) -> Failure {
    Failure::io("standard output", &source)
}

/// `esker get`.
pub(crate) fn get(data: &Data, servers: &Servers, key: &OsStr) -> Result<Done, Failure> {
    if !servers.urls.is_empty() {
        return remote::get(servers, key.as_bytes());
    }
    let store = open(data)?;
    let value = store.get(key.as_bytes())?;
    let done = match value {
        Some(value) => {
            let mut output = std::io::stdout().lock();
            output.write_all(&value).and_then(|()| output.flush()).map_err(output_failed)?;
            Done::Yes
        }
        None => Done::No,
    };
    store.close()?;
    Ok(done)
}

/// `esker put`.
pub(crate) fn put(
    data: &Data,
    servers: &Servers,
    size: &Size,
    key: &OsStr,
    value: Option<OsString>,
) -> Result<Done, Failure> {
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
    let store = open_with(new_options(data, size)?)?;
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

/// `esker scan`.
pub(crate) fn scan(
    data: &Data,
    prefix: Option<&OsStr>,
    limit: Option<usize>,
) -> Result<Done, Failure> {
    let store = open(data)?;
    let prefix = prefix.map(OsStr::as_bytes).unwrap_or_default();
    let mut left = limit.unwrap_or(usize::MAX);
    let mut output = std::io::BufWriter::new(std::io::stdout().lock());
    if store.is_ordered() {
        // Only the range of the prefix is read.
        const AT_ONCE: usize = 1024;
        let mut from = Bound::Included(prefix.to_vec());
        while left > 0 {
            let range = (from.as_ref().map(Vec::as_slice), Bound::Unbounded);
            let items = store.scan(range, Direction::Forward, left.min(AT_ONCE))?;
            let (count, full) = (items.len(), items.len() == left.min(AT_ONCE));
            let mut inside = 0;
            for (key, _) in items.iter().take_while(|(key, _)| key.starts_with(prefix)) {
                inside += 1;
                writeln!(output, "{}", show_key(key)).map_err(output_failed)?;
            }
            left -= inside;
            match items.into_iter().next_back() {
                Some((key, _)) if full && inside == count => from = Bound::Excluded(key),
                _ => break,
            }
        }
    } else {
        for item in store.iter() {
            if left == 0 {
                break;
            }
            let (key, _) = item?;
            if key.starts_with(prefix) {
                left -= 1;
                writeln!(output, "{}", show_key(&key)).map_err(output_failed)?;
            }
        }
    }
    output.flush().map_err(output_failed)?;
    drop(output);
    store.close()?;
    Ok(Done::Yes)
}

/// A key as one line: text as it is, other bytes escaped as in Rust.
fn show_key(key: &[u8]) -> String {
    match std::str::from_utf8(key) {
        Ok(text) if !text.chars().any(|c| c.is_control() || c == '\\') => text.to_owned(),
        _ => key.escape_ascii().to_string(),
    }
}

/// `esker check`.
pub(crate) fn check(data: &Data, repair: bool) -> Result<Done, Failure> {
    if repair {
        mend(data)?;
    }
    let store = open(data)?;
    let bar = progress("checking", store.stats().items);
    let report = store.check();
    bar.finish_and_clear();
    let report = report?;
    let mut output = std::io::stdout().lock();
    let mut say = |line: String| writeln!(output, "{line}").map_err(output_failed);
    for problem in &report.problems {
        say(format!("problem: {problem}"))?;
    }
    say(format!(
        "{} records in {} batches, {} bytes read",
        report.records, report.batches, report.bytes
    ))?;
    say(if report.is_sound() {
        "sound".into()
    } else {
        format!("{} problems", report.problems.len())
    })?;
    store.close()?;
    Ok(if report.is_sound() { Done::Yes } else { Done::No })
}

fn mend(data: &Data) -> Result<(), Failure> {
    let report = esker::repair(&options_at(&data.paths))?;
    let mut output = std::io::stdout().lock();
    let mut say = |line: String| writeln!(output, "{line}").map_err(output_failed);
    if report.damaged_segments > 0 {
        say(format!(
            "{} segments hold damage that hides what stood there: keys may be gone or show older values",
            report.damaged_segments
        ))?;
    }
    say(format!(
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
    let mut output = std::io::stdout().lock();
    let mut say = |line: String| writeln!(output, "{line}").map_err(output_failed);
    say(format!(
        "{cleaned} segments cleaned, {} of {} free, {} tombstones kept",
        stats.free_segments, stats.segments, stats.tombstones
    ))?;
    if trim {
        say(format!("{} given back", format_size_bytes(trimmed)))?;
    }
    store.close()?;
    Ok(Done::Yes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_shown_on_one_line_each() {
        assert_eq!(show_key("schlüssel:1".as_bytes()), "schlüssel:1");
        assert_eq!(show_key(b"a\nb"), "a\\nb");
        assert_eq!(show_key(b"\xff\\"), "\\xff\\\\");
    }
}
