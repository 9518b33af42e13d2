//! Intervals in memory, on their own.

use super::*;
use crate::engine::Engine;
use crate::engine::flex::{ROOT_BYTES, opened_in};
use crate::flex::Splice;
use esker_base::ErrorKind;
use esker_base::checksum::crc32c;
use esker_base::rng::Rng;
use esker_format::flex_db::{Content, Extra, RunWriter};

/// A run of keys out of forty, some with several versions.
fn run(rng: &mut Rng, version: &mut u64, base: bool) -> Vec<u8> {
    let mut writer = RunWriter::new(*version);
    for key in 0..40_u8 {
        for older in (0..rng.below(5).saturating_sub(2)).rev() {
            let content = Content::Put(Extra::default(), &[key; 3]);
            let key = [b"key/", &[key / 7, key][..]].concat();
            writer.push(&Pair { key: Key::from(&key), version: *version + older, content });
        }
    }
    *version += 3;
    let mut bytes = Vec::new();
    // With a stem of some bytes, or none.
    let anchor = &b"key"[..rng.index(4)];
    writer.finish(base.then_some(anchor), &mut bytes);
    bytes
}

#[test]
fn an_interval_that_grew_is_what_a_reader_of_its_bytes_finds() {
    let hasher = KeyHasher::new([4; 16]);
    for seed in 0..200 {
        let (mut rng, mut version) = (Rng::from_seed(seed), 10);
        let bytes = run(&mut rng, &mut version, true);
        let mut interval = Interval::decode(bytes.clone(), &hasher).unwrap();
        let mut bytes = bytes;
        for _ in 0..rng.below(6) {
            let run = run(&mut rng, &mut version, false);
            bytes.extend_from_slice(&run);
            interval = interval.append(&run, &hasher).unwrap();
            let read = Interval::decode(bytes.clone(), &hasher).unwrap();
            assert_eq!((interval.len(), interval.is_unique), (read.len(), read.is_unique));
            for index in 0..read.len() {
                assert_eq!(interval.pair(index), read.pair(index), "seed {seed}");
                let (pair, print) = (read.pair(index), read.pairs[index].print);
                assert_eq!(print, interval.pairs[index].print);
                let key = pair.key.to_vec();
                assert_eq!(interval.get(&key, print, pair.version), Some(pair));
                let found = pair_in(&bytes, false, &key, pair.version);
                assert_eq!(found, Ok(Some(pair)), "seed {seed}");
                let order = index.checked_sub(1).map(|before| read.pair(before));
                let order = order.map(|before| (before.key, std::cmp::Reverse(before.version)));
                assert!(order < Some((pair.key, std::cmp::Reverse(pair.version))));
            }
        }
    }
}

#[test]
fn intervals_that_somebody_passes_are_those_that_others_keep() {
    let hasher = KeyHasher::new([4; 16]);
    for seed in 0..200 {
        let (mut rng, mut version) = (Rng::from_seed(seed), 10);
        let (mut bytes, mut kept, mut count) = (Vec::new(), Vec::new(), 0);
        for number in 0..rng.below(6) {
            let mut own = Vec::new();
            for is_base in [true].into_iter().chain((0..rng.below(3)).map(|_| false)) {
                let mut writer = RunWriter::new(version);
                for key in (0..20_u8).filter(|_| rng.below(3) > 0) {
                    let key = [u8::try_from(number).unwrap(), key];
                    let content = Content::Put(Extra::default(), &key);
                    writer.push(&Pair { key: Key::from(&key), version, content });
                    version += 1;
                }
                let anchor = [u8::try_from(number).unwrap()];
                writer.finish(is_base.then_some(&anchor[..rng.index(2)]), &mut own);
            }
            kept.push(Interval::decode(own.clone(), &hasher).unwrap());
            bytes.extend(own);
            count += 1;
        }
        let passed = Interval::pass(bytes.clone(), count).unwrap();
        let pairs = |interval: &Interval| -> Vec<_> {
            let pair = |index| {
                let pair = interval.pair(index);
                (pair.key.to_vec(), pair.version)
            };
            (0..interval.len()).map(pair).collect()
        };
        assert_eq!(pairs(&passed), kept.iter().flat_map(pairs).collect::<Vec<_>>());
        assert_eq!(passed.is_unique(), kept.iter().all(Interval::is_unique));
        let runs = kept.iter().map(Interval::appended_runs).sum::<u64>();
        assert_eq!(passed.appended_runs(), runs);
        for (key, version) in pairs(&passed) {
            let found = passed.get(&key, 0, version).unwrap();
            assert_eq!((found.key.to_vec(), found.version), (key.clone(), version));
            let point = passed.partition_point(|other| other < key[..]);
            let first = pairs(&passed).iter().position(|(other, _)| *other == key);
            assert_eq!(Some(point), first);
        }
        if count > 0 {
            assert!(Interval::pass(bytes.clone(), count - 1).is_err(), "one more than is there");
            assert!(Interval::pass(bytes, count + 1).is_err(), "one less");
        }
    }
}

/// A run that says that it has so many pairs, with one of a key and a right checksum.
fn run_that_says(kind: u8, count: &[u8], key: u8) -> Vec<u8> {
    let anchor: &[u8] = if kind == 1 { &[0] } else { &[] };
    let body = [count, &[1], anchor, &[1, 4, 0, key, b'v']].concat();
    let checked = [&[kind, u8::try_from(body.len()).unwrap()], &body[..]].concat();
    [&crc32c(&checked).to_le_bytes(), &checked[..]].concat()
}

#[test]
fn a_run_that_says_that_it_has_more_pairs_than_fit_in_it_is_damage() {
    let (one, most) = (&[1][..], &[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1][..]);
    let sound = [run_that_says(1, one, b'a'), run_that_says(2, one, b'b')].concat();
    assert_eq!(parts(&sound).unwrap()[0].pairs, 2);
    for (of_base, of_appended) in [(most, one), (one, most), (&[2], one), (most, most)] {
        let bytes = [run_that_says(1, of_base, b'a'), run_that_says(2, of_appended, b'b')].concat();
        assert_eq!(parts(&bytes).map(drop), Err(Flaw::Field("count")));
        let folder = tempfile::tempdir().unwrap();
        let flex = opened_in(&folder);
        let splice = Splice { offset: ROOT_BYTES, remove: 0, data: &bytes, marks: &[0] };
        flex.space.splice(&splice, &mut || ()).unwrap();
        flex.space.sync().unwrap();
        // Nobody saved where intervals begin: what is inside is found by who looks.
        drop(flex);
        let flex = opened_in(&folder);
        let error = flex.get(b"b", &mut |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
    }
}
