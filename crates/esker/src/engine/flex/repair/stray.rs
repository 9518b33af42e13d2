//! Pairs in runs that nothing points at any more, because the node of the tree that did is lost. A run tells by itself that it is
//! whole. It may be older than what was lost, or say what was deleted since: nobody knows.
//!
//! What stood in the file before, of another store or an earlier use of a segment, has another salt and is not looked at (`mend`). But a run
//! does not tell whose it is, and what a client wrote as a value may look like one. So large values are passed over where their heads are
//! there, and versions count only if this store gave them: a greater one would hide what is written next.

use super::super::Flex;
use super::super::commit::{Committer, GROUP_BYTES_MAX, GROUP_PAIRS_MAX};
use super::super::merge::Merged;
use esker_base::Result;
use esker_format::flex_db::{Content, Key, LARGE_HEAD_SIZE, LargeHead, Pair, Run, RunWriter};
use std::collections::BTreeMap;
use std::ops::{Bound, Range};

/// Keys of which something may be lost: from one on, and below another.
pub(super) type Keys = (Vec<u8>, Option<Vec<u8>>);

/// What was found: the newest pair of each key.
#[derive(Default)]
pub(super) struct Strays {
    /// Its version, and the pair encoded.
    pairs: BTreeMap<Vec<u8>, (u64, RunWriter)>,
    bytes: u64,
    /// All versions that were given are below.
    next_version: u64,
    /// Blocks that the device refused, in which there may be more.
    pub(super) refused: u64,
}

impl Strays {
    /// Nothing yet.
    fn below(next_version: u64) -> Self {
        Strays { next_version, ..Strays::default() }
    }

    /// Those of these keys.
    pub(super) fn of_keys<'s>(
        &'s self,
        from: &[u8],
        to: Option<&[u8]>,
    ) -> impl Iterator<Item = Merged<'s>> {
        let start = Bound::Included(from);
        let end = to.map_or(Bound::Unbounded, Bound::Excluded);
        let range = self.pairs.range::<[u8], _>((start, end));
        range
            .flat_map(|(_, (_, alone))| alone.pairs())
            .map(|pair| (pair.key, pair.version, pair.content))
    }

    /// Notes pairs of keys in these ranges, which are in order.
    fn note(&mut self, run: &Run<'_>, ranges: &[Keys]) {
        let count = usize::try_from(run.count).unwrap_or(usize::MAX);
        for pair in run.pairs().take(count) {
            let key = pair.key.to_vec();
            let at = ranges.partition_point(|(from, _)| *from <= key);
            let range = at.checked_sub(1).and_then(|at| ranges.get(at));
            let is_concerned = range.is_some_and(|(_, to)| to.as_ref().is_none_or(|to| key < *to));
            let is_known =
                self.pairs.get(&key).is_some_and(|(version, _)| *version >= pair.version);
            if !is_concerned || is_known || pair.version >= self.next_version {
                continue;
            }
            let mut alone = RunWriter::new(pair.version);
            alone.push(&Pair { key: Key::from(&key[..]), ..pair });
            self.bytes += (alone.size_bytes() + key.len()) as u64;
            self.pairs.insert(key, (pair.version, alone));
        }
    }

    /// Looks for runs that begin anywhere in a piece, but in no large value.
    fn search(&mut self, piece: &[u8], ranges: &[Keys]) {
        let mut at = 0;
        while at < piece.len() {
            let mut rest = piece.get(at..).unwrap_or_default();
            let before = rest.len();
            // Few bytes look like a kind, and fewer like a size.
            let size = match rest.get(4) {
                Some(1 | 2 | 4 | 5) => Run::take(&mut rest, || false).ok().map(|run| {
                    self.note(&run, ranges);
                    before - rest.len()
                }),
                _ if LargeHead::is_here(rest) => LargeHead::decode(rest).ok().map(|head| {
                    let value = usize::try_from(head.length_bytes).unwrap_or(usize::MAX);
                    (LARGE_HEAD_SIZE + head.key.len()).saturating_add(value)
                }),
                _ => None,
            };
            at = at.saturating_add(size.unwrap_or(1).max(1));
        }
    }
}

impl Flex {
    /// Bytes of pairs that are kept in memory: no table is in use.
    fn strays_max(&self) -> u64 {
        2 * self.options.memtable_size_bytes
    }

    /// Pairs of keys in these ranges, which are in order, to which nothing points but what is `unread`; `None` if they are too many.
    pub(super) fn find_strays(
        &self,
        ranges: &[Keys],
        unread: &[Range<u64>],
    ) -> Result<Option<Strays>> {
        let mut strays = Strays::below(self.wal.last_version() + 1);
        let mut is_too_much = false;
        let refused = self.space.visit_stray(unread, &mut |piece| {
            if !is_too_much {
                strays.search(piece, ranges);
                is_too_much = strays.bytes > self.strays_max();
            }
            Ok(())
        })?;
        strays.refused = refused;
        Ok((!is_too_much).then_some(strays))
    }

    /// Brings pairs of keys in these ranges, which are in order, back from where nothing points any more, some at a time: how many, and how
    /// many blocks the device refused, in which there may be more.
    pub(super) fn bring_back(
        &self,
        committer: &mut Committer,
        ranges: &[Keys],
    ) -> Result<(u64, u64)> {
        let next_version = self.wal.last_version() + 1;
        let mut strays = Strays::below(next_version);
        let mut count = 0;
        let refused = self.space.visit_stray(&[], &mut |piece| {
            strays.search(piece, ranges);
            if strays.bytes > self.strays_max() {
                let some = std::mem::replace(&mut strays, Strays::below(next_version));
                count += self.put_back(committer, &some)?;
            }
            Ok(())
        })?;
        count += self.put_back(committer, &strays)?;
        Ok((count, refused))
    }

    /// Merges pairs into their intervals. Versions decide; so nothing is brought to one that cannot be read, where what stands behind
    /// counts as newer.
    fn put_back(&self, committer: &mut Committer, strays: &Strays) -> Result<u64> {
        let mut from: Option<Vec<u8>> = None;
        let mut count = 0;
        loop {
            let start = from.as_ref().map_or(Bound::Unbounded, Bound::Included);
            let behind = strays.pairs.range::<Vec<u8>, _>((start, Bound::Unbounded));
            let mut behind = behind.peekable();
            let Some((first, _)) = behind.peek() else { return Ok(count) };
            let located = self.locate(first)?;
            let interval = self.readable(&located)?;
            let mut group = RunWriter::new(0);
            from = None;
            for (key, (version, alone)) in behind {
                let is_beyond = located.upper.as_ref().is_some_and(|upper| key >= upper);
                let much = group.count() >= GROUP_PAIRS_MAX || group.size_bytes() > GROUP_BYTES_MAX;
                if is_beyond || much {
                    from = Some(key.clone());
                    break;
                }
                for pair in alone.pairs().filter(|_| interval.is_some()) {
                    count += u64::from(pair.content != Content::Delete);
                    group.push(&Pair { version: *version, ..pair });
                }
            }
            if let Some(interval) = interval {
                self.admit_as_is(group.size_bytes())?;
                self.rewrite_read(committer, &located, &interval, Some(&group), None)?;
            }
            if from.is_none() {
                return Ok(count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_format::flex_db::Extra;

    /// A run that says that `key` has `value`.
    fn run(key: &[u8], version: u64, value: &[u8]) -> Vec<u8> {
        let mut run = RunWriter::new(version);
        let content = Content::Put(Extra::default(), value);
        run.push(&Pair { key: Key::from(key), version, content });
        let mut bytes = Vec::new();
        run.finish(None, &mut bytes);
        bytes
    }

    #[test]
    fn what_looks_like_a_run_in_a_large_value_does_not_count_nor_does_a_version_that_nobody_gave() {
        let value = [&run(b"victim", 70, b"never put")[..], &[0; 50]].concat();
        let head = LargeHead {
            number: 3,
            length_bytes: value.len() as u64,
            value_checksum: 0,
            key: b"large".to_vec(),
        };
        let early = run(b"early", 40, b"1");
        let late = run(b"late", 99, b"2");
        let future = run(b"future", 100, b"3");
        let piece = [&[0, 0, 7][..], &early, &head.encode(), &value, &late, &future].concat();
        let mut strays = Strays::below(100);
        strays.search(&piece, &[(Vec::new(), None)]);
        let keys: Vec<&[u8]> = strays.pairs.keys().map(Vec::as_slice).collect();
        assert_eq!(keys, [&b"early"[..], b"late"]);
    }
}
