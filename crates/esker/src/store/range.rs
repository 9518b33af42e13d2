//! Items in the order of their keys: some at once, or one after the other.

use super::{Direction, Met, Snapshot, Store};
use crate::value::Value;
use esker_base::{Error, Result};
use std::collections::VecDeque;
use std::ops::{Bound, ControlFlow, RangeBounds};

type Pair = (Vec<u8>, Value);
type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// Items of the first part that a [`Range`] reads; each further one has twice as many.
const PART_FIRST: usize = 16;
const PART_MAX: usize = 256;
/// A part ends behind the item with which it has so many bytes.
const PART_BYTES: usize = 1 << 20;

/// Shows up to `limit` items of a range to `visit`, of a store as it is or as of a version. How many there were.
fn visit(
    (store, snapshot): (&Store, Option<u64>),
    range: (Bound<&[u8]>, Bound<&[u8]>),
    direction: Direction,
    limit: usize,
    mut visit: impl FnMut(Met<'_>) -> ControlFlow<()>,
) -> Result<usize> {
    let mut count = 0;
    let mut show = |met: Met<'_>| {
        if limit == 0 {
            return ControlFlow::Break(());
        }
        count += 1;
        let shown = visit(met);
        if count < limit { shown } else { ControlFlow::Break(()) }
    };
    match snapshot {
        None => store.engine.scan_with(range, direction, limit, &mut show),
        Some(version) => store.engine.scan_as_of(range, direction, limit, version, &mut show),
    }?;
    Ok(count)
}

fn bounds<'a>(range: &impl RangeBounds<&'a [u8]>) -> (Bound<&'a [u8]>, Bound<&'a [u8]>) {
    (range.start_bound().cloned(), range.end_bound().cloned())
}

impl Store {
    /// Up to `limit` items whose keys lie in `range`, in order of their bytes: the first ones of the
    /// direction. Each item is as it is at some moment of the call; a key that has a value during all of the
    /// call is not missed, and none is met twice. To go on, call again from beyond the last key, or see [`Store::range`].
    ///
    /// Who takes items from the front, as of a queue, and deletes them goes on from the last key, too: from the very beginning each call
    /// would pass over all keys that were deleted, one by one, until they are written out.
    ///
    /// # Errors
    /// `Unsupported` if the engine keeps no order; as [`Store::get`].
    pub fn scan<'a>(
        &self,
        range: impl RangeBounds<&'a [u8]>,
        direction: Direction,
        limit: usize,
    ) -> Result<Vec<Pair>> {
        let (from, to) = bounds(&range);
        self.engine.scan(from, to, direction, limit)
    }

    /// As [`Store::scan`], but nothing is copied: `show` is given each item where it is, and no lock is held meanwhile.
    /// How many there were.
    ///
    /// # Errors
    /// As [`Store::scan`]; some items may have been shown then.
    pub fn scan_with<'a>(
        &self,
        range: impl RangeBounds<&'a [u8]>,
        direction: Direction,
        limit: usize,
        mut show: impl FnMut(Met<'_>),
    ) -> Result<usize> {
        visit((self, None), bounds(&range), direction, limit, |met| {
            show(met);
            ControlFlow::Continue(())
        })
    }

    /// The items whose keys lie in `range`, in order, as an iterator that reads some at a time: up to 256, or 1 MiB and an item. What it
    /// promises of each key is what [`Store::scan`] does; how it meets writes, too.
    ///
    /// What cannot be read is an error, with which it ends: `Unsupported` if the engine keeps no order, others as of [`Store::get`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let mut options = esker::Options::new(folder.path());
    /// # options.engine = Some(esker::EngineKind::Flex);
    /// # options.size_bytes = 64 << 20;
    /// let store = esker::Store::open(&options)?;
    /// store.put(b"user/1", b"Ada")?;
    /// store.put(b"user/2", b"Bob")?;
    /// let users = store.range(&b"user/"[..]..&b"user0"[..], esker::Direction::Forward);
    /// let keys: Result<Vec<_>, _> = users.map(|item| item.map(|(key, _)| key)).collect();
    /// assert_eq!(keys?, [b"user/1", b"user/2"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn range<'a>(&self, range: impl RangeBounds<&'a [u8]>, direction: Direction) -> Range<'_> {
        Range::new((self, None), bounds(&range), direction)
    }
}

impl Snapshot {
    /// As [`Store::scan`], with all items as they were.
    ///
    /// # Errors
    /// As [`Store::scan`].
    pub fn scan<'a>(
        &self,
        range: impl RangeBounds<&'a [u8]>,
        direction: Direction,
        limit: usize,
    ) -> Result<Vec<Pair>> {
        let mut items = Vec::new();
        self.scan_with(range, direction, limit, |met| {
            items.push((met.key.to_vec(), met.to_value()));
        })?;
        Ok(items)
    }

    /// As [`Store::scan_with`], with all items as they were.
    ///
    /// # Errors
    /// As [`Store::scan_with`].
    pub fn scan_with<'a>(
        &self,
        range: impl RangeBounds<&'a [u8]>,
        direction: Direction,
        limit: usize,
        mut show: impl FnMut(Met<'_>),
    ) -> Result<usize> {
        visit((&self.store, Some(self.version)), bounds(&range), direction, limit, |met| {
            show(met);
            ControlFlow::Continue(())
        })
    }

    /// As [`Store::range`], with all items as they were.
    pub fn range<'a>(&self, range: impl RangeBounds<&'a [u8]>, direction: Direction) -> Range<'_> {
        Range::new((&self.store, Some(self.version)), bounds(&range), direction)
    }
}

/// The items of a range of keys, in order; see [`Store::range`].
#[derive(Debug)]
pub struct Range<'s> {
    /// The store, as it is or as of a version.
    of: (&'s Store, Option<u64>),
    direction: Direction,
    /// What is still to be read; `None`: nothing.
    rest: Option<Bounds>,
    items: VecDeque<Pair>,
    /// What comes behind them in place of more.
    error: Option<Error>,
    /// Items of the next part, at most.
    part: usize,
}

impl<'s> Range<'s> {
    fn new(
        of: (&'s Store, Option<u64>),
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
    ) -> Self {
        let rest = Some((from.map(<[u8]>::to_vec), to.map(<[u8]>::to_vec)));
        Range { of, direction, rest, items: VecDeque::new(), error: None, part: PART_FIRST }
    }

    /// Reads the next part, if there is one.
    fn read_part(&mut self) {
        let Some((from, to)) = self.rest.take() else { return };
        let range = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
        let (items, mut size) = (&mut self.items, 0);
        let read = visit(self.of, range, self.direction, self.part, |met| {
            items.push_back((met.key.to_vec(), met.to_value()));
            size += met.key.len() + met.value.len();
            if size < PART_BYTES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        self.error = read.err();
        if let Some((last, _)) = items.back()
            && self.error.is_none()
            && (items.len() == self.part || size >= PART_BYTES)
        {
            let last = Bound::Excluded(last.clone());
            self.rest = Some(match self.direction {
                Direction::Forward => (last, to),
                Direction::Reverse => (from, last),
            });
        }
        self.part = (2 * self.part).min(PART_MAX);
    }
}

impl Iterator for Range<'_> {
    type Item = Result<Pair>;

    fn next(&mut self) -> Option<Result<Pair>> {
        if self.items.is_empty() {
            self.read_part();
        }
        let item = self.items.pop_front().map(Ok);
        item.or_else(|| self.error.take().map(Err))
    }
}

impl std::iter::FusedIterator for Range<'_> {}
