//! `esker scan`: the keys of a store, in order if its engine keeps one.

use crate::arguments::{Data, Shown};
use crate::failure::{Done, Failure};
use crate::output::output_failed;
use crate::store::open_to_read;
use esker::{Direction, Store, behind_prefix};
use std::ffi::OsStr;
use std::io::Write;
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;

/// Items of an ordered store that are asked for at once.
const AT_ONCE: usize = 1024;

/// `esker scan`.
pub(crate) fn scan(data: &Data, shown: &Shown) -> Result<Done, Failure> {
    let store = open_to_read(data)?;
    let needs_order = shown.from.is_some() || shown.to.is_some() || shown.reverse;
    if needs_order && !store.is_ordered() {
        let words = format!("engine {} keeps no order: no --from, --to, --reverse", store.engine());
        store.close()?;
        return Err(Failure::usage(words));
    }
    let mut output = std::io::BufWriter::new(std::io::stdout().lock());
    let written = match store.is_ordered() {
        true => in_order(&store, shown, &mut output),
        false => in_no_order(&store, shown, &mut output),
    };
    let written = written.and_then(|()| output.flush().map_err(output_failed));
    drop(output);
    store.close()?;
    written.map(|()| Done::Yes)
}

fn in_order(store: &Store, shown: &Shown, output: &mut impl Write) -> Result<(), Failure> {
    let (mut from, mut to) = range(shown);
    let mut left = shown.limit.unwrap_or(usize::MAX);
    while left > 0 {
        let at_once = left.min(AT_ONCE);
        let direction = if shown.reverse { Direction::Reverse } else { Direction::Forward };
        let (mut last, mut written) = (Vec::new(), Ok(()));
        let bounds = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
        let count = store.scan_with(bounds, direction, at_once, |met| {
            last.clear();
            last.extend_from_slice(met.key);
            if written.is_ok() {
                written = write_item(output, shown, met.key, met.value);
            }
        })?;
        written?;
        if count < at_once {
            break;
        }
        left -= count;
        *(if shown.reverse { &mut to } else { &mut from }) = Bound::Excluded(last);
    }
    Ok(())
}

fn in_no_order(store: &Store, shown: &Shown, output: &mut impl Write) -> Result<(), Failure> {
    let prefix = shown.prefix.as_deref().map(OsStr::as_bytes).unwrap_or_default();
    let mut left = shown.limit.unwrap_or(usize::MAX);
    for item in store.iter() {
        if left == 0 {
            break;
        }
        let (key, value) = item?;
        if key.starts_with(prefix) {
            left -= 1;
            write_item(output, shown, &key, &value)?;
        }
    }
    Ok(())
}

/// The keys that have the prefix and lie between the others.
fn range(shown: &Shown) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let bytes =
        |text: &Option<std::ffi::OsString>| text.as_deref().map(|text| text.as_bytes().to_vec());
    let (prefix, from, to) = (bytes(&shown.prefix), bytes(&shown.from), bytes(&shown.to));
    let behind = prefix.as_ref().and_then(|prefix| behind_prefix(prefix));
    let from = prefix.max(from).map_or(Bound::Unbounded, Bound::Included);
    let ends = [behind, to].into_iter().flatten();
    let to = ends.min().map_or(Bound::Unbounded, Bound::Excluded);
    // Nothing lies in a range that ends before it begins.
    match (&from, &to) {
        (Bound::Included(first), Bound::Excluded(end)) if first > end => {
            (Bound::Included(end.clone()), Bound::Excluded(end.clone()))
        }
        _ => (from, to),
    }
}

fn write_item(
    output: &mut impl Write,
    shown: &Shown,
    key: &[u8],
    value: &[u8],
) -> Result<(), Failure> {
    let line = if shown.values {
        writeln!(output, "{}\t{}", show(key), show(value))
    } else {
        writeln!(output, "{}", show(key))
    };
    line.map_err(output_failed)
}

/// Bytes on one line: text as it is, other bytes escaped as in Rust.
fn show(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(|c| c.is_control() || c == '\\') => text.to_owned(),
        _ => bytes.escape_ascii().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_shown_on_one_line_each() {
        assert_eq!(show("schlüssel:1".as_bytes()), "schlüssel:1");
        assert_eq!(show(b"a\nb"), "a\\nb");
        assert_eq!(show(b"\xff\\"), "\\xff\\\\");
    }
}
