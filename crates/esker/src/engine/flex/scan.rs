//! Scans: tables and intervals merged in order of keys (FlexSpace §5.2).
//!
//! # Invariants
//! - N1: a key that has a value during all of the scan is met: tables are taken before intervals are read, and what leaves
//!   a table is in the space before.
//!
//! # Concurrency
//! No lock is held while an item is shown.

use super::Flex;
use super::cursor::TableCursor;
use super::index::{Ahead, Cached, First, Intervals};
use super::interval::Interval;
use super::memtable::MemTable;
use super::read::attributes_of;
use crate::engine::{Cursor as WalkCursor, Items};
use crate::store::{Direction, Met};
use esker_base::Result;
use esker_base::ids::Version;
use esker_format::flex_db::{Content, Key, Pair};
use smallvec::SmallVec;
use std::cmp::Ordering;
use std::ops::Bound;
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;

/// Most intervals that are taken at once, and read ahead.
const INTERVALS_AHEAD: usize = 16;
/// Tables that there usually are at most.
const TABLES: usize = 2;
/// So many pairs ahead one begins to come from memory.
const PAIRS_AHEAD: usize = 4;
/// Items of a part of a walk.
const WALKED_AT_ONCE: usize = 128;
/// Bytes of values from which on a part of a walk has only keys: who walks reads their values one by one.
const WALK_BYTES_MAX: usize = 8 << 20;

/// Is shown each item, until it breaks.
pub(super) type Show<'v> = &'v mut dyn FnMut(Met<'_>) -> ControlFlow<()>;
/// Is given each pair that counts, until it breaks; and what keeps an interval from being read, behind what tables have of
/// its keys. If it goes on then, so does the scan, with the next interval.
pub(super) trait Visit: FnMut(Result<&Pair<'_>>) -> Result<ControlFlow<()>> {}

impl<V: FnMut(Result<&Pair<'_>>) -> Result<ControlFlow<()>>> Visit for V {}

/// Whether `key` is not behind the end of a range that is walked in `direction`.
#[inline]
fn is_inside(key: Key<'_>, end: Bound<&[u8]>, direction: Direction) -> bool {
    let (end, included) = match end {
        Bound::Unbounded => return true,
        Bound::Included(end) => (end, true),
        Bound::Excluded(end) => (end, false),
    };
    match (key.cmp_bytes(end), direction) {
        (Ordering::Equal, _) => included,
        (Ordering::Less, Direction::Forward) | (Ordering::Greater, Direction::Reverse) => true,
        _ => false,
    }
}

/// Whether `key` comes before another one, if there is one, and is not behind the end of the range.
#[inline]
fn is_ahead(
    key: Key<'_>,
    (other, end): (Option<&[u8]>, Bound<&[u8]>),
    direction: Direction,
) -> bool {
    let comes_before = |other: &[u8]| match direction {
        Direction::Forward => key < *other,
        Direction::Reverse => key > *other,
    };
    other.is_none_or(comes_before) && is_inside(key, end, direction)
}

/// Intervals one behind the other in the direction of the scan, and where it is in them.
struct Cursor {
    intervals: <Intervals as IntoIterator>::IntoIter,
    interval: Option<Arc<Interval>>,
    /// The pairs that count, where keys have several.
    visible: Option<Vec<u32>>,
    /// Pairs of the interval that are left.
    left: std::ops::Range<usize>,
    direction: Direction,
    version: u64,
}

impl Cursor {
    fn new(intervals: Intervals, version: u64, direction: Direction) -> Self {
        intervals.iter().for_each(|interval| interval.prefetch());
        let mut cursor = Cursor {
            intervals: intervals.into_iter(),
            interval: None,
            visible: None,
            left: 0..0,
            direction,
            version,
        };
        cursor.settle();
        cursor
    }

    /// Goes to the next interval that has something left.
    fn settle(&mut self) {
        while self.left.is_empty() {
            self.interval = self.intervals.next();
            let Some(interval) = &self.interval else { return };
            let all = interval.is_unique() && self.version == u64::MAX;
            self.visible = (!all).then(|| interval.visible(self.version));
            self.left = 0..self.visible.as_ref().map_or(interval.len(), Vec::len);
        }
    }

    #[inline]
    fn pair(&self) -> Option<Pair<'_>> {
        let interval = self.interval.as_ref()?;
        let index = match self.direction {
            Direction::Forward => self.left.start,
            Direction::Reverse => self.left.end - 1,
        };
        let index = match &self.visible {
            Some(visible) => *visible.get(index)? as usize,
            None => index,
        };
        Some(interval.pair(index))
    }

    /// Pairs that are left in all intervals, those that do not count among them.
    fn pairs_left(&self) -> usize {
        let others = self.intervals.as_slice().iter().map(|interval| interval.len());
        self.left.len() + others.sum::<usize>()
    }

    /// Goes past a pair.
    #[inline]
    fn step(&mut self) {
        match self.direction {
            Direction::Forward => self.left.start += 1,
            Direction::Reverse => self.left.end -= 1,
        }
    }

    #[inline]
    fn next(&mut self) {
        self.step();
        if self.left.is_empty() {
            self.settle();
        }
    }

    /// What is met soon begins to come.
    #[inline]
    fn prefetch(&self) {
        let soon = match self.direction {
            Direction::Forward => Some(self.left.start + PAIRS_AHEAD),
            Direction::Reverse => (self.left.end - 1).checked_sub(PAIRS_AHEAD),
        };
        if let (Some(interval), Some(soon)) = (&self.interval, soon) {
            interval.prefetch_pair(soon);
        }
    }

    /// Whether all pairs of the interval that are left are ahead of a place in the scan.
    #[inline]
    fn is_ahead_of(&self, (key, end): (Option<&[u8]>, Bound<&[u8]>)) -> bool {
        if key.is_none() && end == Bound::Unbounded {
            return true;
        }
        let Some(interval) = self.interval.as_ref().filter(|_| self.visible.is_none()) else {
            return false;
        };
        let last = match self.direction {
            Direction::Forward => self.left.end - 1,
            Direction::Reverse => self.left.start,
        };
        is_ahead(interval.pair(last).key, (key, end), self.direction)
    }

    /// Shows the pairs that are ahead of a place in the scan.
    #[inline]
    fn show_ahead_of(
        &mut self,
        place: (Option<&[u8]>, Bound<&[u8]>),
        mut show: impl FnMut(&Pair<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<ControlFlow<()>> {
        while !self.left.is_empty() {
            let all = self.is_ahead_of(place);
            while !self.left.is_empty() {
                self.prefetch();
                let Some(pair) = self.pair() else { break };
                if !all && !is_ahead(pair.key, place, self.direction) {
                    return Ok(Continue(()));
                }
                if pair.content != Content::Delete && show(&pair)?.is_break() {
                    return Ok(Break(()));
                }
                self.step();
            }
            self.settle();
        }
        Ok(Continue(()))
    }

    /// Goes to the first pair that is not before `start`. Only the first interval has some that are.
    fn seek(&mut self, start: Bound<&[u8]>) {
        let Some(interval) = &self.interval else { return };
        if self.visible.is_none() {
            let is_before = |key: Key<'_>| match (start, self.direction) {
                (Bound::Unbounded, Direction::Forward) => false,
                (Bound::Unbounded, Direction::Reverse) => true,
                (Bound::Included(start), Direction::Forward) => key < *start,
                (Bound::Excluded(start), Direction::Forward) => key <= *start,
                (Bound::Included(start), Direction::Reverse) => key <= *start,
                (Bound::Excluded(start), Direction::Reverse) => key < *start,
            };
            let point = interval.partition_point(is_before);
            match self.direction {
                Direction::Forward => self.left.start = point,
                Direction::Reverse => self.left.end = point,
            }
            return self.settle();
        }
        let back = match self.direction {
            Direction::Forward => Direction::Reverse,
            Direction::Reverse => Direction::Forward,
        };
        while self.pair().is_some_and(|pair| !is_inside(pair.key, start, back)) {
            self.next();
        }
    }
}

/// Intervals one behind the other in the direction of a scan, and where the next one begins: in reverse, the anchor of the
/// last one.
struct Run {
    intervals: Intervals,
    end: Option<Vec<u8>>,
}

/// What a scan looks for, and where it shows it.
struct Scan<'s, V> {
    direction: Direction,
    end: Bound<&'s [u8]>,
    version: u64,
    visit: V,
    /// Keys without a value in the table that takes writes, since that was told of the last ones.
    deleted: u64,
    /// For keys and values that are copied first.
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Flex {
    /// Shows the items of a range as of version `at`, until `show` breaks: about `limit` are expected.
    pub(super) fn scan_at(
        &self,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        limit: usize,
        at: u64,
        show: Show<'_>,
    ) -> Result<()> {
        let mut key = Vec::new();
        self.visit_at(range, direction, limit, at, |pair| self.show(pair?, at, &mut key, show))
    }

    /// Gives the pairs that count as of version `at`, those included that have expired, to `visit`.
    pub(super) fn visit_at(
        &self,
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        limit: usize,
        at: u64,
        visit: impl FnMut(Result<&Pair<'_>>) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let tables: SmallVec<[Arc<MemTable>; TABLES]> = self.tables().all().cloned().collect();
        let (start, end) = match direction {
            Direction::Forward => (from, to),
            Direction::Reverse => (to, from),
        };
        let heads = tables.iter().map(|table| TableCursor::new(table, start, direction));
        let mut heads: SmallVec<[TableCursor<'_>; TABLES]> = heads.collect();
        let mut position: Option<Vec<u8>> = match start {
            Bound::Included(key) | Bound::Excluded(key) => Some(key.to_vec()),
            Bound::Unbounded => (direction == Direction::Forward).then(Vec::new),
        };
        // A bound that is included going down: the interval that holds the key itself.
        let reverse = direction == Direction::Reverse;
        let mut before = reverse && !matches!(start, Bound::Included(_));
        // An interval that is met after the first one may have become larger meanwhile: what comes before `position` in
        // it was met already.
        let mut first = true;
        let (key, value) = (Vec::new(), Vec::new());
        let mut scan = Scan { direction, end, version: at, visit, deleted: 0, key, value };
        let mut ahead = Ahead { reverse, pairs: limit, intervals: INTERVALS_AHEAD, ..Ahead::ONE };
        // What is not met yet of what is expected; behind it, because much of that did not count, some more, and a scan that
        // goes on and on takes more at once.
        let (mut expected, mut next) = (limit, limit / 4);
        loop {
            let (run, unread) = match self.run(position.as_deref(), before, ahead) {
                Ok(run) => (run, None),
                Err(error) => (self.unread(position.as_deref(), before, direction), Some(error)),
            };
            let mut cursor = Cursor::new(run.intervals, at, direction);
            cursor.seek(match (&position, direction) {
                (Some(position), Direction::Forward) if !first => Bound::Included(position),
                (Some(position), Direction::Reverse) if !first => Bound::Excluded(position),
                _ => start,
            });
            first = false;
            expected = expected.saturating_sub(cursor.pairs_left());
            ahead = Ahead { pairs: expected, first: First::All, ..ahead };
            if expected == 0 {
                ahead.pairs = next.max(1);
                next = ahead.pairs.saturating_mul(2);
            }
            let in_run = |key: &[u8]| match direction {
                Direction::Forward => run.end.as_deref().is_none_or(|upper| key < upper),
                Direction::Reverse => run.end.as_deref().is_none_or(|anchor| key >= anchor),
            };
            let met = self.merge_run((&tables, &mut heads), &mut cursor, in_run, &mut scan);
            let deleted = std::mem::take(&mut scan.deleted);
            if deleted > 0
                && let Some(table) = tables.first().filter(|table| table.is_littered(deleted))
            {
                self.note_littered(table);
            }
            if met?.is_break() {
                return Ok(());
            }
            if let Some(error) = unread
                && (scan.visit)(Err(error))?.is_break()
            {
                return Ok(());
            }
            let ended = match &run.end {
                None => true,
                // What is before the anchor is below it.
                Some(anchor) if reverse => match end {
                    Bound::Included(end) | Bound::Excluded(end) => **anchor <= *end,
                    Bound::Unbounded => anchor.is_empty(),
                },
                Some(upper) => !is_inside(Key::from(upper), end, direction),
            };
            if ended {
                return Ok(());
            }
            position = run.end;
            before = reverse;
        }
    }

    /// Some intervals from the one that holds `key` on.
    fn run(&self, key: Option<&[u8]>, before: bool, ahead: Ahead) -> Result<Run> {
        let Cached { intervals, end, first } = self.index.cached(key, before, ahead);
        if !intervals.is_empty() {
            return Ok(Run { intervals, end });
        }
        let along = key.and_then(|key| self.index.along(key)).unwrap_or(Ahead::ONE);
        // To read once more costs more than some pairs that nobody wants.
        let counts = if ahead.first == First::Half { First::None } else { ahead.first };
        let ahead = Ahead { size_bytes: along.size_bytes, first: counts, ..ahead };
        let mut loaded = self.load(key, before, ahead, Some(first))?;
        if ahead.reverse {
            loaded.intervals.reverse();
            return Ok(Run { intervals: loaded.intervals, end: Some(loaded.anchor) });
        }
        Ok(Run { intervals: loaded.intervals, end: loaded.upper })
    }

    /// In place of the interval that holds `key`, which cannot be read.
    fn unread(&self, key: Option<&[u8]>, before: bool, direction: Direction) -> Run {
        let place = self.index.place(key, before, Ahead::ONE, None);
        let end = match direction {
            Direction::Forward => place.upper,
            Direction::Reverse => Some(place.anchor),
        };
        Run { intervals: Intervals::new(), end }
    }

    /// Shows what intervals and tables have of the intervals' keys. Breaks at the end of the scan.
    fn merge_run(
        &self,
        (tables, heads): (&[Arc<MemTable>], &mut [TableCursor<'_>]),
        cursor: &mut Cursor,
        in_run: impl Fn(&[u8]) -> bool,
        scan: &mut Scan<'_, impl Visit>,
    ) -> Result<ControlFlow<()>> {
        let direction = scan.direction;
        let comes_before = |a: Key<'_>, b: Key<'_>| match direction {
            Direction::Forward => a < b,
            Direction::Reverse => a > b,
        };
        let has_ranges = tables.iter().any(|table| table.has_ranges());
        loop {
            let keys = heads.iter().filter_map(TableCursor::key);
            let first =
                keys.reduce(|a, b| if comes_before(Key::from(b), Key::from(a)) { b } else { a });
            let first = first.filter(|key| in_run(key));
            if !has_ranges {
                // Of most keys tables know nothing.
                let place = (first, scan.end);
                if cursor.show_ahead_of(place, |pair| (scan.visit)(Ok(pair)))?.is_break() {
                    return Ok(Break(()));
                }
            }
            let here = cursor.pair().map(|pair| pair.key);
            let next = match (here, first.map(Key::from)) {
                (Some(here), Some(first)) if comes_before(here, first) => Some(here),
                (here, first) => first.or(here),
            };
            let Some(key) = next else { return Ok(Continue(())) };
            if !is_inside(key, scan.end, direction) {
                return Ok(Break(()));
            }
            key.copy_to(&mut scan.key);
            if self.merge_key((tables, heads), cursor, scan)?.is_break() {
                return Ok(Break(()));
            }
        }
    }

    /// Shows what tables and intervals have of the scan's key, which comes next.
    fn merge_key(
        &self,
        (tables, heads): (&[Arc<MemTable>], &mut [TableCursor<'_>]),
        cursor: &mut Cursor,
        scan: &mut Scan<'_, impl Visit>,
    ) -> Result<ControlFlow<()>> {
        let (key, at) = (&*scan.key, scan.version);
        let mut covered = 0;
        let mut found: Option<(u64, Content<'_>)> = None;
        for (number, (table, head)) in tables.iter().zip(heads.iter_mut()).enumerate() {
            covered = covered.max(table.covered(key, at));
            if head.key() != Some(key) {
                continue;
            }
            if found.is_none()
                && let Some(slot) = head.slot()
            {
                found = slot.lock().at(at).map(|(version, content)| match content {
                    _ if version < covered => (version, Content::Delete),
                    Content::Put(extra, value) => {
                        scan.value.clear();
                        scan.value.extend_from_slice(value);
                        (version, Content::Put(extra, &[]))
                    }
                    Content::Large(extra, number, length) => {
                        (version, Content::Large(extra, number, length))
                    }
                    Content::Delete => (version, Content::Delete),
                });
                if number == 0 && matches!(found, Some((_, Content::Delete))) {
                    scan.deleted += 1;
                }
            }
            head.next();
        }
        let here = cursor.pair().filter(|pair| pair.key == *key);
        let is_here = here.is_some();
        let shown = match (found, here) {
            (Some((_, Content::Delete)), _) => Continue(()),
            (Some((version, content)), _) => {
                let content = match content {
                    Content::Put(extra, _) => Content::Put(extra, &scan.value),
                    other => other,
                };
                (scan.visit)(Ok(&Pair { key: Key::from(key), version, content }))?
            }
            (None, Some(pair)) if pair.version >= covered && pair.content != Content::Delete => {
                (scan.visit)(Ok(&pair))?
            }
            // A range of the table covers it, or of the one before, which is on its way.
            (None, Some(_)) => {
                scan.deleted += u64::from(tables.first().is_some_and(|table| table.has_ranges()));
                Continue(())
            }
            _ => Continue(()),
        };
        if is_here {
            cursor.next();
        }
        Ok(shown)
    }

    /// The items of the next pairs, from one that is shown or from an interval that cannot be read on.
    pub(super) fn walk_part(&self, from: &WalkCursor) -> Result<(Items, Option<WalkCursor>)> {
        let from = match from {
            WalkCursor::Key(key) => Bound::Excluded(&key[..]),
            WalkCursor::Start | WalkCursor::Hash(_) => Bound::Unbounded,
        };
        let (mut items, mut next, mut key) = (Items::new(), None, Vec::new());
        let mut held = 0;
        let range = (from, Bound::Unbounded);
        self.visit_at(range, Direction::Forward, WALKED_AT_ONCE, u64::MAX, |pair| {
            let pair = match pair {
                Ok(pair) => pair,
                Err(error) => {
                    items.push(Err(error));
                    return Ok(Continue(()));
                }
            };
            match pair.content {
                Content::Delete => {}
                Content::Put(..) if held < WALK_BYTES_MAX => {
                    let shown = self.show(pair, u64::MAX, &mut key, &mut |met| {
                        held += met.value.len();
                        items.push(Ok((met.key.to_vec(), Some(met.to_value()))));
                        Continue(())
                    });
                    items.extend(shown.err().map(Err));
                }
                Content::Put(..) | Content::Large(..) => {
                    items.push(Ok((pair.key.bytes(&mut key).to_vec(), None)));
                }
            }
            if items.len() < WALKED_AT_ONCE {
                return Ok(Continue(()));
            }
            next = Some(WalkCursor::Key(pair.key.to_vec()));
            Ok(Break(()))
        })?;
        Ok((items, next))
    }

    /// Shows a pair, if it is a value that has not expired; its key is brought together in `buffer`.
    #[inline]
    fn show(
        &self,
        pair: &Pair<'_>,
        at: u64,
        buffer: &mut Vec<u8>,
        show: Show<'_>,
    ) -> Result<ControlFlow<()>> {
        let key = pair.key.bytes(buffer);
        match pair.content {
            Content::Put(extra, value) => {
                let attributes = attributes_of(&extra);
                if self.clock.is_expired(attributes.expires_at) {
                    return Ok(Continue(()));
                }
                let version = Version(pair.version);
                Ok(show(Met { key, value, version, attributes }))
            }
            Content::Delete => Ok(Continue(())),
            Content::Large(..) => {
                // One that moved or went is looked up anew.
                let found = self.get_at(key, at, &mut |_| Ok(()))?;
                Ok(found.map_or(Continue(()), |value| show(Met::of(key, &value))))
            }
        }
    }
}
