//! What an interval, or a stretch of them, becomes: its pairs and new ones merged, those that nobody needs and those that have
//! expired left out, and cut into intervals again.
//!
//! # Concurrency
//! Of the committer, or of who holds its lock. Nothing here changes the index or the space.

use super::commit::Committer;
use super::expired::{Expired, Moment};
use super::index::{Entry, Fresh};
use super::interval::Interval;
use super::memtable::RangeDelete;
use super::snapshots::needed;
use super::{Flex, sites};
use esker_base::Result;
use esker_format::flex_db::{Content, Key, Pair, RunWriter, run};
use std::sync::Arc;

/// A pair on its way to a new interval.
pub(super) type Merged<'a> = (Key<'a>, u64, Content<'a>);

/// The shortest key that is above `last` and not above `first`.
fn separator(last: Key<'_>, first: Key<'_>) -> Vec<u8> {
    let mut key = first.to_vec();
    key.truncate(last.shared(first) + 1);
    key
}

/// Pairs of an interval and of what is new.
pub(super) fn pairs_of<'a>(
    interval: &'a Interval,
    group: Option<&'a RunWriter>,
) -> Vec<Merged<'a>> {
    let mut all: Vec<Merged<'a>> = Vec::with_capacity(interval.len() + 16);
    for index in 0..interval.len() {
        let pair = interval.pair(index);
        // Of a version that is there twice the later one is first.
        let is_again = |last: &Merged<'_>| last.1 == pair.version && last.0 == pair.key;
        if !all.last().is_some_and(is_again) {
            all.push((pair.key, pair.version, pair.content));
        }
    }
    add_group(&mut all, group);
    all
}

/// About the bytes of a pair, where it is.
pub(super) fn size_of((key, _, content): &Merged<'_>) -> usize {
    match content {
        Content::Put(_, value) => key.rest().len() + value.len() + 8,
        _ => key.rest().len() + 24,
    }
}

/// Adds the pairs that are new.
pub(super) fn add_group<'a>(all: &mut Vec<Merged<'a>>, group: Option<&'a RunWriter>) {
    let pairs = group.into_iter().flat_map(RunWriter::pairs);
    all.extend(pairs.map(|pair| (pair.key, pair.version, pair.content)));
}

/// The first eight bytes of a key, as a number that orders as they do.
fn head_of(key: Key<'_>) -> u64 {
    let mut bytes = [0; 8];
    bytes.iter_mut().zip(key.stem().iter().chain(key.rest())).for_each(|(to, from)| *to = *from);
    u64::from_be_bytes(bytes)
}

/// All pairs in order, of a key the newest first. One version may be there twice, after a crash: the last of `all` counts, which came
/// later, as it does for who reads. They may differ, if the clock was set back since (`expired`).
fn in_order(all: &mut Vec<Merged<'_>>) {
    // Keys of neighbours begin alike. Eight bytes behind that nearly always decide, and are moved instead of pairs.
    let Some((first, ..)) = all.first() else { return };
    let shared = all.iter().map(|(key, ..)| key.shared(*first)).min().unwrap_or(0);
    let mut order: Vec<(u64, &Merged<'_>)> =
        all.iter().map(|pair| (head_of(pair.0.behind(shared)), pair)).collect();
    order.sort_by(|(a, x), (b, y)| a.cmp(b).then_with(|| x.0.cmp(&y.0).then(y.1.cmp(&x.1))));
    order.dedup_by(|(a, x), (b, y)| {
        let is_again = a == b && (x.0, x.1) == (y.0, y.1);
        if is_again {
            *y = *x;
        }
        is_again
    });
    *all = order.into_iter().map(|(_, pair)| *pair).collect();
}

/// Adds what is needed of the pairs of one key.
fn add_needed<'a>(
    merged: &mut Vec<Merged<'a>>,
    same: &[Merged<'a>],
    erase: Option<&RangeDelete>,
    snapshots: &[u64],
) {
    let Some((key, ..)) = same.first() else { return };
    let erased = erase.filter(|range| range.covers(*key)).map(|range| range.version);
    if erased.is_none() && (same.len() == 1 || snapshots.is_empty()) {
        // The usual case: the newest one counts.
        merged.extend(same.first());
        return;
    }
    let mut same = same.to_vec();
    if let Some(version) = erased {
        same.push((*key, version, Content::Delete));
        same.sort_unstable_by_key(|(_, version, _)| std::cmp::Reverse(*version));
    }
    let versions: Vec<u64> = same.iter().map(|(_, version, _)| *version).collect();
    needed(&versions, snapshots, |index| merged.extend(same.get(index)));
}

/// As [`merge`], of pairs before which there may be older ones: of each key the newest one stays, whatever it says.
pub(super) fn merge_behind<'a>(
    mut all: Vec<Merged<'a>>,
    erase: Option<&RangeDelete>,
    snapshots: &[u64],
) -> Vec<Merged<'a>> {
    in_order(&mut all);
    let mut merged: Vec<Merged<'a>> = Vec::with_capacity(all.len());
    for same in all.chunk_by(|a, b| a.0 == b.0) {
        add_needed(&mut merged, same, erase, snapshots);
    }
    merged
}

/// What is left of pairs that are in order by parts, in order, in this moment. What is not because it has expired is noted.
pub(super) fn merge<'a>(
    mut all: Vec<Merged<'a>>,
    erase: Option<&RangeDelete>,
    moment: &Moment,
    expired: &mut Expired,
) -> Vec<Merged<'a>> {
    let snapshots = &moment.snapshots[..];
    in_order(&mut all);
    if sites::EXPIRED_OLDER.disabled() {
        all.retain(|(.., content)| !moment.has_expired(content));
    }
    let mut merged: Vec<Merged<'a>> = Vec::with_capacity(all.len());
    for same in all.chunk_by(|a, b| a.0 == b.0) {
        let start = merged.len();
        add_needed(&mut merged, same, erase, snapshots);
        // Nothing is older than the last one: if it says that there is nothing, it says nothing (E1).
        while merged.len() > start
            && let Some(last) = merged.last()
        {
            match last.2 {
                Content::Delete => {}
                _ if moment.has_expired(&last.2) => expired.note(last),
                _ => break,
            }
            merged.pop();
        }
    }
    merged
}

impl Flex {
    /// Cuts pairs into intervals of up to so many pairs and bytes: their bytes to the committer's data, where each begins, and
    /// what the index is to know. In memory stay those of which `keeps` says so.
    pub(super) fn cut(
        &self,
        committer: &mut Committer,
        (merged, moment): (&[Merged<'_>], &Moment),
        anchor: &[u8],
        (pairs_max, size_max): (usize, usize),
        mut keeps: impl FnMut(&[Merged<'_>]) -> bool,
    ) -> Result<(Vec<usize>, Vec<Fresh>)> {
        let Committer { data, turn, .. } = committer;
        data.clear();
        let mut marks = Vec::new();
        let mut fresh = Vec::new();
        if merged.is_empty() {
            // The first interval stays, without bytes; others fall to the one before.
            let stays = anchor.is_empty();
            return Ok((marks, if stays { vec![Fresh::default()] } else { fresh }));
        }
        let total: usize = merged.iter().map(size_of).sum();
        let (pairs_max, size_max) = (pairs_max.max(1), size_max.max(1));
        let pieces = merged.len().div_ceil(pairs_max).max(total.div_ceil(size_max)).max(1);
        let (pairs_goal, size_goal) = (merged.len().div_ceil(pieces), total.div_ceil(pieces));
        let mut rest = merged;
        let mut last: Option<Key<'_>> = None;
        while !rest.is_empty() {
            turn.give_way(&*self.clock);
            let (mut count, mut size) = (0, 0);
            for pair in rest {
                let same_key =
                    count > 0 && rest.get(count - 1).is_some_and(|before| before.0 == pair.0);
                let full =
                    count >= pairs_goal || size + size_of(pair) > size_goal.max(64) + size_goal / 4;
                if count > 0 && full && !same_key {
                    break;
                }
                count += 1;
                size += size_of(pair);
            }
            let (piece, more) = rest.split_at(count);
            rest = more;
            let anchor = match (last, piece.first()) {
                (Some(last), Some((first, ..))) => separator(last, *first),
                _ => anchor.to_vec(),
            };
            last = piece.last().map(|(key, ..)| *key);
            let first_version = piece.iter().map(|(_, version, _)| *version).min().unwrap_or(0);
            let lapsing = moment.lapsing(piece);
            let pairs = piece.iter();
            let pairs = pairs.map(|&(key, version, content)| Pair { key, version, content });
            let start = data.len();
            run::write(Some(&anchor), first_version, pairs, data);
            marks.push(start);
            let bytes = data.get(start..).unwrap_or_default();
            // Only versions of one key that snapshots keep come to so much.
            let size = self.interval_size(bytes.len())?;
            let mut entry = Entry::new(size, piece.len() as u64, 0, 1);
            if keeps(piece) {
                let interval = self.decode(bytes.to_vec())?;
                interval.touch_all();
                entry.cached = Some(Arc::new(interval));
            }
            fresh.push(Fresh { lapsing, ..Fresh::new(anchor, entry) });
        }
        Ok((marks, fresh))
    }
}

#[cfg(test)]
mod tests {
    use super::super::interval::{pair_in, print_of};
    use super::super::opened_with;
    use super::*;
    use crate::engine::Engine;
    use crate::options::Durability;
    use crate::value::PutOptions;
    use esker_base::ErrorKind;
    use esker_base::hash::KeyHasher;
    use esker_base::rng::Rng;
    use esker_format::flex_db::Extra;

    #[test]
    fn pairs_are_brought_in_order_whatever_their_keys_have_in_common() {
        let mut rng = Rng::from_seed(12);
        for round in 0..500 {
            // Few letters, zeros among them, behind what all share: many keys begin another one.
            let shared = vec![7; rng.index(20)];
            let letters = if round % 2 == 0 { 2 } else { 256 };
            let keys: Vec<Vec<u8>> = (0..1 + rng.index(40))
                .map(|_| {
                    let mut key = shared.clone();
                    let more =
                        (0..rng.index(12)).map(|_| u8::try_from(rng.below(letters)).unwrap());
                    key.extend(more);
                    key
                })
                .collect();
            let mut pairs: Vec<Merged<'_>> = Vec::new();
            for key in &keys {
                pairs.push((Key::from(key), rng.below(3), Content::Delete));
            }
            let mut expected: Vec<(Key<'_>, std::cmp::Reverse<u64>)> =
                pairs.iter().map(|(key, version, _)| (*key, std::cmp::Reverse(*version))).collect();
            expected.sort_unstable();
            expected.dedup();
            in_order(&mut pairs);
            let found: Vec<_> =
                pairs.iter().map(|(key, version, _)| (*key, std::cmp::Reverse(*version))).collect();
            assert_eq!(found, expected, "round {round}");
        }
    }

    /// What a crash amid a commit leaves: a version that came to the space, and came again, as the log still has it. Meanwhile the clock
    /// was set back, so that it had expired then and has not now.
    #[test]
    fn of_a_version_that_is_there_twice_everybody_finds_the_one_that_came_later() {
        let hasher = KeyHasher::new([2; 16]);
        let put = Content::Put(Extra::default(), b"value");
        let run = |pairs: &[(&[u8], u64, Content<'_>)], anchor: Option<&[u8]>| {
            let (mut run, mut bytes) = (RunWriter::new(1), Vec::new());
            for &(key, version, content) in pairs {
                run.push(&Pair { key: Key::from(key), version, content });
            }
            run.finish(anchor, &mut bytes);
            bytes
        };
        let base = run(&[(b"a", 1, put), (b"b", 2, put)], Some(b""));
        let first = run(&[(b"b", 5, Content::Delete)], None);
        let again = run(&[(b"b", 5, put), (b"c", 6, put)], None);
        let whole = [&base[..], &first, &again].concat();
        let decoded = Interval::decode(whole.clone(), &hasher).unwrap();
        let grown = Interval::decode([&base[..], &first].concat(), &hasher).unwrap();
        let grown = grown.append(&again, &hasher).unwrap();
        for interval in [&decoded, &grown] {
            let pairs: Vec<(Vec<u8>, u64)> = (0..interval.len())
                .map(|index| (interval.pair(index).key.to_vec(), interval.pair(index).version))
                .collect();
            let key = |byte: u8| vec![byte];
            let of_b = [5, 5, 2].map(|version| (key(b'b'), version));
            let all = [&[(key(b'a'), 1)][..], &of_b, &[(key(b'c'), 6)]].concat();
            assert_eq!(pairs, all);
            let found = interval.get(b"b", print_of(hasher.hash(b"b")), u64::MAX).unwrap();
            assert_eq!(found.content, put);
        }
        let runs = [&first[..], &again].concat();
        assert_eq!(pair_in(&runs, true, b"b", u64::MAX).unwrap().unwrap().content, put);
        assert_eq!(pair_in(&whole, false, b"b", u64::MAX).unwrap().unwrap().content, put);
        // A rewrite makes no other one of it.
        let mut group = RunWriter::new(1);
        group.push(&Pair { key: Key::from(&b"b"[..]), version: 5, content: put });
        let before = Interval::decode([&base[..], &first].concat(), &hasher).unwrap();
        let moment = Moment { now: 0, snapshots: Vec::new() };
        for (interval, group) in [(&decoded, None), (&before, Some(&group))] {
            let merged = merge(pairs_of(interval, group), None, &moment, &mut Expired::default());
            let of_key: Vec<_> = merged.iter().filter(|(key, ..)| *key == b"b"[..]).collect();
            assert_eq!(of_key.len(), 1);
            assert_eq!((of_key[0].1, of_key[0].2), (5, put));
        }
    }

    /// The index counts up to some number of pairs.
    #[test]
    fn an_interval_with_more_pairs_than_the_index_counts_is_no_damage() {
        const VERSIONS: u32 = 66_000;
        let folder = tempfile::tempdir().unwrap();
        let flex = opened_with(&folder, Durability::None);
        let commit = || {
            let generation = flex.tables().active.generation;
            flex.change_table(generation).unwrap();
            assert!(flex.commit_sealed().unwrap());
        };
        for number in 0..VERSIONS {
            flex.put(b"key", &number.to_be_bytes()[2..], PutOptions::default()).unwrap();
            // It is never released.
            flex.snapshot().unwrap();
            if number % 1000 == 999 {
                commit();
            }
        }
        commit();
        let report = flex.check_all().unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        let found = flex.get(b"key", &mut |_| Ok(())).unwrap().unwrap();
        assert_eq!(found.as_ref(), &(VERSIONS - 1).to_be_bytes()[2..]);
    }

    /// Versions that snapshots keep are all in one interval.
    #[test]
    fn an_interval_that_would_be_too_long_is_refused_until_snapshots_are_gone() {
        let folder = tempfile::tempdir().unwrap();
        let flex = opened_with(&folder, Durability::None);
        let put = |key: &[u8], value: &[u8]| {
            flex.put(key, value, PutOptions::default()).unwrap();
        };
        let commit = || {
            let generation = flex.tables().active.generation;
            flex.change_table(generation)?;
            flex.commit_sealed()
        };
        put(b"before", b"1");
        put(b"z", b"2");
        let mut snapshots = Vec::new();
        let refused = (0..).find_map(|number: u16| {
            put(b"key", &[&number.to_be_bytes()[..], &[3; 900]].concat());
            snapshots.push(flex.snapshot().unwrap());
            if number % 200 == 199 { commit().err().map(|error| (number, error)) } else { None }
        });
        let (last, error) = refused.unwrap();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        assert!((1000..1500).contains(&last), "{last}");
        let get = |key: &[u8]| flex.get(key, &mut |_| Ok(())).unwrap().unwrap();
        let check = || {
            assert_eq!(get(b"key").get(..2), Some(&last.to_be_bytes()[..]));
            assert_eq!((get(b"before").as_ref(), get(b"z").as_ref()), (&b"1"[..], &b"2"[..]));
        };
        check();
        snapshots.into_iter().for_each(|snapshot| flex.release(snapshot));
        assert!(flex.commit_sealed().unwrap());
        check();
    }
}
