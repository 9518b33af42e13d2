//! How often keys were read, stored and deleted, by their prefix: `stats detail`.
//!
//! The prefix of a key is what stands before the first delimiter; a key without one has none and is not counted. As in
//! memcached, the classic commands that read, store and delete count, and nothing else: no `incr`, no `touch`, no meta command.
//!
//! # Invariants
//! - K1: at most [`PREFIXES_MAX`] prefixes are known, of [`PREFIX_BYTES_MAX`] bytes together: clients choose them. Of those that come
//!   beyond nothing is counted, until all are forgotten.
//!
//! # Concurrency
//! A flag, which is all that a request looks at while nothing is counted; else one short lock. A list is made of pieces, between
//! which others count.

use crate::output::Output;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most prefixes.
const PREFIXES_MAX: usize = 4096;
/// Bytes of all prefixes together.
const PREFIX_BYTES_MAX: usize = 256 << 10;
/// The delimiter, unless an operator names another one.
const DELIMITER: u8 = b':';

/// What was done with a key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Use {
    /// It was read, and was there or not.
    Get { hit: bool },
    /// Something was to be stored.
    Set,
    /// It was to be deleted.
    Delete,
}

/// What was counted of a prefix.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    gets: u64,
    hits: u64,
    sets: u64,
    deletes: u64,
}

#[derive(Debug, Default)]
struct Known {
    counts: BTreeMap<Box<[u8]>, Counts>,
    bytes: usize,
}

/// The prefixes of a server's keys.
#[derive(Debug)]
pub(crate) struct Prefixes {
    on: AtomicBool,
    delimiter: u8,
    known: Mutex<Known>,
}

impl Prefixes {
    /// Nothing is counted yet; with a `delimiter` of its own, a server counts from its start.
    pub(crate) fn new(delimiter: Option<u8>) -> Prefixes {
        Prefixes {
            on: AtomicBool::new(delimiter.is_some()),
            delimiter: delimiter.unwrap_or(DELIMITER),
            known: Mutex::default(),
        }
    }

    /// Whether something is counted.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// From now on something is counted, or nothing is. What was counted stays.
    pub(crate) fn turn(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    pub(crate) fn delimiter(&self) -> u8 {
        self.delimiter
    }

    /// Forgets all.
    pub(crate) fn clear(&self) {
        *self.known.lock() = Known::default();
    }

    /// Counts what was done with a key.
    pub(crate) fn note(&self, key: &[u8], used: Use) {
        if self.is_on() {
            self.count(key, used);
        }
    }

    #[cold]
    fn count(&self, key: &[u8], used: Use) {
        let end = key.iter().position(|byte| *byte == self.delimiter);
        let Some(prefix) = end.and_then(|end| key.get(..end)) else { return };
        let mut known = self.known.lock();
        let known = &mut *known;
        if !known.counts.contains_key(prefix) {
            let bytes = known.bytes.saturating_add(prefix.len());
            if known.counts.len() >= PREFIXES_MAX || bytes > PREFIX_BYTES_MAX {
                return;
            }
            known.bytes = bytes;
            known.counts.insert(prefix.into(), Counts::default());
        }
        let Some(counts) = known.counts.get_mut(prefix) else { return };
        let one_more = |count: &mut u64| *count = count.wrapping_add(1);
        match used {
            Use::Get { hit } => {
                one_more(&mut counts.gets);
                if hit {
                    one_more(&mut counts.hits);
                }
            }
            Use::Set => one_more(&mut counts.sets),
            Use::Delete => one_more(&mut counts.deletes),
        }
    }

    /// Appends a line for each prefix behind `last`, until they come to `most` bytes; returns the last one, if there are more.
    pub(crate) fn list(
        &self,
        last: Option<Box<[u8]>>,
        most: usize,
        output: &mut Output,
    ) -> Option<Box<[u8]>> {
        let known = self.known.lock();
        let behind = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let before = output.len();
        for (prefix, counts) in known.counts.range::<[u8], _>((behind, Bound::Unbounded)) {
            let Counts { gets, hits, sets, deletes } = counts;
            output.push(b"PREFIX ");
            output.push(prefix);
            output.push_fmt(format_args!(" get {gets} hit {hits} set {sets} del {deletes}\r\n"));
            if output.len().saturating_sub(before) >= most {
                return Some(prefix.clone());
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(prefixes: &Prefixes) -> Vec<String> {
        let (mut output, mut seen) = (Output::default(), Vec::new());
        let mut last = None;
        loop {
            // A line at a time: none is lost between two pieces.
            last = prefixes.list(last, 1, &mut output);
            if last.is_none() {
                break;
            }
        }
        let sent = output.send(|slices| {
            slices.iter().for_each(|slice| seen.extend_from_slice(slice));
            Ok(slices.iter().map(|slice| slice.len()).sum())
        });
        assert_eq!(sent.expect("never fails"), seen.len());
        String::from_utf8(seen).expect("text").lines().map(str::to_owned).collect()
    }

    #[test]
    fn what_is_done_is_counted_by_what_stands_before_the_first_delimiter() {
        let prefixes = Prefixes::new(Some(b'/'));
        for (key, used) in [
            ("a/1", Use::Set),
            ("a/1", Use::Get { hit: true }),
            ("a/2/3", Use::Get { hit: false }),
            ("ab/1", Use::Delete),
            ("/", Use::Delete),
            ("a", Use::Set),
            ("a:1", Use::Set),
            ("", Use::Set),
        ] {
            prefixes.note(key.as_bytes(), used);
        }
        let expected = [
            "PREFIX  get 0 hit 0 set 0 del 1",
            "PREFIX a get 2 hit 1 set 1 del 0",
            "PREFIX ab get 0 hit 0 set 0 del 1",
        ];
        assert_eq!(listed(&prefixes), expected);
        prefixes.turn(false);
        prefixes.note(b"a/1", Use::Set);
        assert_eq!(listed(&prefixes), expected);
        prefixes.clear();
        assert!(listed(&prefixes).is_empty() && !prefixes.is_on());
    }

    #[test]
    fn clients_make_no_more_prefixes_than_there_may_be() {
        let prefixes = Prefixes::new(None);
        prefixes.note(b"early:1", Use::Set);
        assert!(listed(&prefixes).is_empty(), "nothing is counted unless it is asked for");
        prefixes.turn(true);
        for number in 0..PREFIXES_MAX + 10 {
            prefixes.note(format!("{number}:1").as_bytes(), Use::Set);
        }
        assert_eq!(listed(&prefixes).len(), PREFIXES_MAX);
        // Those that are known go on.
        prefixes.note(b"0:2", Use::Set);
        assert_eq!(
            listed(&prefixes).first().map(String::as_str),
            Some("PREFIX 0 get 0 hit 0 set 2 del 0")
        );
        prefixes.clear();
        for number in 0..PREFIXES_MAX {
            prefixes.note(format!("{number:0200}:1").as_bytes(), Use::Set);
        }
        assert_eq!(listed(&prefixes).len(), PREFIX_BYTES_MAX / 200);
        assert!(prefixes.known.lock().bytes <= PREFIX_BYTES_MAX);
    }
}
