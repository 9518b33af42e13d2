//! Repair of a store of `flex`: whatever is damaged, afterwards the store is sound, holds all that could be read, and goes on.

use crate::client::Map;
use crate::flex_damage::refusing;
use crate::flex_db::{Devices, files_of, options};
use crate::flex_whole::{bytes, held, sound};
use crate::support::START;
use esker::flex::SpaceFiles;
use esker::{
    Attributes, Error, ErrorKind, FlexFiles, Options, Progress, PutOptions, RepairReport, Store,
    repair_on_flex, restore_flex_on,
};
use esker_base::clock::ManualClock;
use esker_base::rng::Rng;
use esker_media::sim::{Image, SimArchive, SimBlockOptions, SimDevices};
use std::collections::BTreeMap;
use std::sync::Arc;

/// All values that each key had, the newest last; none: it was deleted.
type History = BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>;

fn history_options(seed: u64) -> Options {
    let mut options = options(seed);
    options.flex.cache_size_bytes = 0;
    options.flex.rebuild_step_bytes = 3000;
    options
}

/// What is on the devices after some work, closed or killed; most of that of one that is killed is behind a clean stop, at times.
fn worked(seed: u64, is_closed: bool) -> (Vec<Image>, History) {
    let devices = Devices::new(seed);
    let mut store = devices.open(&history_options(seed)).unwrap();
    let mut rng = Rng::from_seed(seed);
    let mut history = History::new();
    for n in 0..500_u64 {
        if n == 150 && seed.is_multiple_of(2) {
            store.close().unwrap();
            store = devices.open(&history_options(seed)).unwrap();
        }
        let key = format!("key-{:04}", rng.below(150)).into_bytes();
        let size = match rng.below(40) {
            0 => 4500,
            1 => 0,
            _ => rng.index(250),
        };
        let value = rng.chance(5, 6).then(|| bytes(n, size));
        match &value {
            Some(value) => drop(store.put(&key, value).unwrap()),
            None => drop(store.delete(&key).unwrap()),
        }
        history.entry(key).or_default().push(value);
        if n == 300 {
            store.checkpoint().unwrap();
        }
    }
    if is_closed {
        store.close().unwrap()
    } else {
        store.forget()
    }
    ((0..6).map(|index| devices.device(index).image()).collect(), history)
}

fn newest(history: &History) -> Map {
    let value = |(key, values): (&Vec<u8>, &Vec<Option<Vec<u8>>>)| {
        Some((key.clone(), values.last().cloned().flatten()?))
    };
    history.iter().filter_map(value).collect()
}

/// Keys that have not their newest value; each has one that it had, or none.
fn changed(store: &Store, history: &History, context: &str) -> usize {
    let mut changed = 0;
    let found = held(store);
    for key in found.keys() {
        assert!(history.contains_key(key), "{context}: nobody wrote {key:?}");
    }
    for (key, values) in history {
        let value = store.get(key).unwrap().map(|value| value.to_vec());
        assert_eq!(value.as_ref(), found.get(key), "{context}: get and scan differ");
        if value != *values.last().unwrap() {
            assert!(
                value.is_none() || values.contains(&value),
                "{context}: {key:?} never had this"
            );
            changed += 1;
        }
    }
    changed
}

/// Repairs devices with these contents; the store then, and how many keys changed.
fn repaired(images: Vec<Image>, history: &History, context: &str) -> Option<(RepairReport, usize)> {
    let devices = Devices::with(images, 5);
    let options = history_options(8);
    let report = match repair_on_flex(devices.files(), &options) {
        Ok(report) => report,
        Err(error) => {
            // A version that nobody knows, or neither header.
            let kinds = [ErrorKind::UnsupportedFormat, ErrorKind::Corrupted];
            assert!(kinds.contains(&error.kind()), "{context}: {error}");
            return None;
        }
    };
    let store = devices.open(&options);
    let store = store.unwrap_or_else(|error| panic!("{context}: {report:?}, and then {error}"));
    sound(&store);
    let changed = changed(&store, history, context);
    // It goes on, and is the same after another open.
    let mut model = held(&store);
    for n in 0..40_u64 {
        let key = format!("key-{:04}", n * 5).into_bytes();
        let value = bytes(n, if n == 7 { 5000 } else { 100 });
        store.put(&key, &value).unwrap();
        model.insert(key, value);
    }
    store.close().unwrap();
    let devices = devices.again();
    let store = devices.open(&options).unwrap();
    assert!(held(&store) == model, "{context}: other pairs than were put");
    sound(&store);
    store.close().unwrap();
    // A second repair has nothing to do.
    let again = repair_on_flex(devices.files(), &options).unwrap();
    assert_eq!(again.damaged_segments + again.records_lost, 0, "{context}: {again:?}");
    Some((report, changed))
}

#[test]
fn a_sound_store_stays_as_it_is() {
    for is_closed in [false, true] {
        let (images, history) = worked(3, is_closed);
        let (report, changed) = repaired(images, &history, "sound").unwrap();
        assert_eq!((report.damaged_segments, report.records_lost, changed), (0, 0, 0));
        assert!(report.records > 50, "{report:?}");
    }
}

#[test]
fn whatever_is_damaged_the_store_is_sound_afterwards_and_nothing_is_lost_without_a_word() {
    let (mut stores, mut refused, mut all_changed) = (0, 0, 0);
    for seed in 0..6 {
        for is_closed in [false, true] {
            let (images, history) = worked(seed, is_closed);
            for round in 0..60 {
                let mut rng = Rng::from_seed(seed * 1000 + round);
                let mut damaged = images.clone();
                let mut in_logs = false;
                let count = 1 + rng.below(3);
                for _ in 0..count {
                    // Most in the data; the others are small.
                    let index = [0, 0, 0, 1, 1, 2, 3, 4, 5][rng.index(9)];
                    let at = rng.below(damaged[index].size_bytes());
                    match rng.chance(1, 2) {
                        true => damaged[index].flip(at, rng.below(8) as u32),
                        false => damaged[index].write(at / 512 * 512, &[0; 512]),
                    }
                    in_logs |= [2, 3, 4].contains(&index);
                }
                let context = format!("seed {seed}, {is_closed}, round {round}");
                stores += 1;
                let Some((report, changed)) = repaired(damaged, &history, &context) else {
                    refused += 1;
                    continue;
                };
                all_changed += changed;
                let is_told = report.damaged_segments + report.records_lost > 0;
                // Nothing tells that the last batch of a log was ever whole.
                assert!(
                    is_told || changed == 0 || in_logs,
                    "{context}: {changed} keys, {report:?}"
                );
            }
        }
    }
    assert!(refused * 50 <= stores, "{refused} of {stores}");
    assert!(all_changed > 100 && all_changed < 5 * stores, "{all_changed} of {stores}");
}

#[test]
fn a_lost_node_of_the_tree_loses_few_pairs() {
    // All leaves and all others, one by one.
    let (images, history) = worked(2, true);
    let newest = newest(&history);
    let (mut mended, mut gone) = (0, 0);
    for block in 16..images[1].size_bytes() / 512 {
        let mut damaged = images.clone();
        damaged[1].flip(block * 512 + 100, 1);
        let context = format!("block {block}");
        let devices = Devices::with(damaged, 5);
        let options = history_options(8);
        let report = repair_on_flex(devices.files(), &options).unwrap();
        if report.damaged_segments == 0 {
            continue;
        }
        mended += 1;
        let store = devices.open(&options).unwrap();
        sound(&store);
        changed(&store, &history, &context);
        for (key, value) in &newest {
            let found = store.get(key).unwrap().map(|value| value.to_vec());
            // Large values are in many pieces, which nothing holds together.
            gone += usize::from(found.as_ref() != Some(value) && value.len() < 4000);
        }
    }
    // A run that two segments share is not found, nor one of which the node had only a part.
    assert!(mended > 20 && gone < 2 * mended, "{gone} keys of {mended} stores");
}

#[test]
fn a_damaged_batch_of_a_log_costs_its_keys_alone() {
    let devices = Devices::new(1);
    let options = history_options(1);
    let store = devices.open(&options).unwrap();
    let mut history = History::new();
    for n in 0..20_u8 {
        for round in 0..2 {
            let value = bytes(u64::from(n) * 2 + round, 60);
            store.put(&[n], &value).unwrap();
            history.entry(vec![n]).or_default().push(Some(value));
        }
    }
    store.forget();
    let images: Vec<Image> = (0..6).map(|index| devices.device(index).image()).collect();
    let (mut refused, mut all_changed) = (0, 0);
    for log in [3, 4] {
        for block in 0..images[log].size_bytes() / 512 {
            let mut damaged = images.clone();
            damaged[log].flip(block * 512 + 70, 5);
            let context = format!("log {log}, block {block}");
            let is_refused = Devices::with(damaged.clone(), 5).open(&options).is_err();
            let (report, changed) = repaired(damaged, &history, &context).unwrap();
            assert_eq!(report.damaged_segments, u64::from(is_refused), "{context}: {report:?}");
            assert!(changed <= 1, "{context}: {changed} keys");
            refused += usize::from(is_refused);
            all_changed += changed;
        }
    }
    assert!(refused > 30 && (15..=refused + 1).contains(&all_changed), "{refused}, {all_changed}");
}

/// An open refuses it whatever the space has, so a repair must not leave it.
#[test]
fn a_log_that_begins_with_anything_else_says_nothing_after_a_repair() {
    for (is_closed, log) in [(true, 3), (true, 4), (false, 3), (false, 4)] {
        let (mut images, history) = worked(3, is_closed);
        images[log].write(0, &[0xA5; 512]);
        let context = format!("log {log}, {is_closed}");
        let opened = Devices::with(images.clone(), 5).open(&history_options(8));
        assert!(opened.is_err_and(|error| error.kind() == ErrorKind::Corrupted), "{context}");
        assert!(repaired(images, &history, &context).is_some(), "{context}");
    }
}

/// Without its head it looks like a part of the last interval.
#[test]
fn the_only_large_value_is_missed_if_it_is_lost() {
    let devices = Devices::new(1);
    let store = devices.open(&history_options(1)).unwrap();
    let mut history = History::new();
    for n in 0..12_u8 {
        let value = bytes(u64::from(n), if n == 5 { 5000 } else { 80 });
        store.put(&[n], &value).unwrap();
        history.insert(vec![n], vec![Some(value)]);
    }
    store.close().unwrap();
    let images: Vec<Image> = (0..6).map(|index| devices.device(index).image()).collect();
    let mut lost = 0;
    for block in 0..images[0].size_bytes() / 512 {
        let mut damaged = images.clone();
        damaged[0].flip(block * 512 + 100, 5);
        let (_, changed) = repaired(damaged, &history, &format!("block {block}")).unwrap();
        lost += changed;
    }
    assert!(lost > 10, "{lost}");
}

#[test]
fn a_root_that_is_lost_is_made_anew_and_of_a_store_that_was_closed_once_nothing_is_missing() {
    for (seed, is_closed) in [(4, false), (4, true), (5, false), (5, true)] {
        let (images, history) = worked(seed, is_closed);
        // Its block is one of few, and nothing else is in that but the first interval.
        let mut hit = 0;
        for block in 0..images[0].size_bytes() / 512 {
            let mut damaged = images.clone();
            damaged[0].write(block * 512, &[0; 512]);
            let context = format!("seed {seed}, block {block}, {is_closed}");
            let opened = Devices::with(damaged.clone(), 5).open(&history_options(8));
            let is_root = opened.is_err_and(|error| error.to_string().contains("read space"));
            if is_root {
                let (report, changed) = repaired(damaged, &history, &context).unwrap();
                assert!(report.damaged_segments > 0, "{context}: {report:?}");
                let has_logs = is_closed || seed.is_multiple_of(2);
                assert!(changed <= if has_logs { 4 } else { 100 }, "{context}: {changed} keys");
                assert!(has_logs || changed > 4, "{context}: who told the logs' keys?");
                hit += 1;
            }
        }
        assert!((1..3).contains(&hit), "{is_closed}: {hit}");
    }
}

#[test]
fn a_crash_within_a_repair_leaves_a_store_that_is_refused_or_sound() {
    let (images, history) = worked(2, true);
    let options = history_options(8);
    let (mut states, mut refused, mut worse) = (0, 0, 0);
    let (backup, other) = (SimArchive::new(), Devices::new(9).open(&history_options(9)).unwrap());
    other.backup_to(&backup, &Progress::default()).unwrap();
    for block in (16..images[1].size_bytes() / 512).step_by(3) {
        let mut damaged = images.clone();
        damaged[1].flip(block * 512 + 100, 1);
        let devices = SimDevices::attach(&damaged, |index| {
            let mut options = SimBlockOptions::new(damaged[index].size_bytes(), block);
            options.size_bytes_max = 4 << 20;
            options
        });
        let report = repair_on_flex(files_of(devices.devices()), &options).unwrap();
        if report.damaged_segments == 0 {
            continue;
        }
        let store = Store::open_flex_on(files_of(devices.devices()), &options).unwrap();
        let usual = changed(&store, &history, "whole");
        drop(store);
        let traces = devices.traces();
        for position in (0..devices.position()).step_by(5) {
            let context = format!("block {block}, {position}");
            let cut = SimDevices::cut(&traces, position, position);
            let opened = Devices::with(cut.clone(), 6).open(&options);
            let devices = Devices::with(cut, 6);
            let is_refused = opened.is_err_and(|error| error.kind() == ErrorKind::InvalidArgument);
            refused += usize::from(is_refused);
            if is_refused {
                // What it holds is not given away for a backup, unless that is said.
                let error = restore_flex_on(&backup, devices.files(), &options).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{context}: {error}");
            }
            repair_on_flex(devices.files(), &options)
                .unwrap_or_else(|error| panic!("{context}: {error}"));
            let store = devices.open(&options).unwrap();
            sound(&store);
            worse += changed(&store, &history, &context).saturating_sub(usual);
            states += 1;
        }
    }
    assert!(states > 200 && refused > 20, "{states} states, {refused} refused");
    // What is looked for of all keys, as nobody knows of which it is missing, was deleted at times.
    assert!(worse * 20 < states, "{worse} keys that a whole repair would have, in {states} states");
}

/// Who looks at the large values of pairs does not look at it.
#[test]
fn a_damaged_large_value_whose_pair_is_lost_as_well_goes() {
    let devices = Devices::new(1);
    let store = devices.open(&history_options(1)).unwrap();
    let mut history = History::new();
    for n in 0..12_u8 {
        let value = bytes(u64::from(n), if n % 6 == 5 { 4500 } else { 80 });
        store.put(&[n], &value).unwrap();
        history.insert(vec![n], vec![Some(value)]);
    }
    store.close().unwrap();
    let images: Vec<Image> = (0..6).map(|index| devices.device(index).image()).collect();
    let blocks = images[0].size_bytes() / 512;
    let mut lost = 0;
    for (one, other) in (0..blocks).flat_map(|one| (0..one).map(move |other| (one, other))) {
        if (one + other) % 3 > 0 {
            continue;
        }
        let mut damaged = images.clone();
        damaged[0].flip(one * 512 + 100, 5);
        damaged[0].flip(other * 512 + 100, 5);
        let (_, changed) = repaired(damaged, &history, &format!("{one}, {other}")).unwrap();
        lost += changed;
    }
    assert!(lost > 100, "{lost}");
}

/// A pair that has expired is there until somebody writes its interval anew, and names its value as long.
#[test]
fn the_pair_of_a_damaged_large_value_goes_also_if_it_has_expired() {
    let devices = Devices::new(1);
    let store = devices.open(&history_options(1)).unwrap();
    for n in 0..12_u8 {
        let attributes = Attributes { expires_at: Some(START + 100), ..Attributes::default() };
        let options = PutOptions { attributes, ..PutOptions::default() };
        let value = bytes(u64::from(n), if n == 5 { 5000 } else { 80 });
        store.put_with(&[n], &value, options).unwrap();
    }
    store.close().unwrap();
    let images: Vec<Image> = (0..6).map(|index| devices.device(index).image()).collect();
    let mut options = history_options(8);
    options.clock = Arc::new(ManualClock::new(START + 1000));
    let mut lost = 0;
    for block in 0..images[0].size_bytes() / 512 {
        let mut damaged = images.clone();
        damaged[0].flip(block * 512 + 100, 5);
        let devices = Devices::with(damaged, 5);
        lost += repair_on_flex(devices.files(), &options).unwrap().records_lost;
        sound(&devices.open(&options).unwrap());
    }
    assert!(lost > 5, "{lost}");
}

/// Media that lie, with right checksums: what is written next would be older than what a log has.
#[cfg(feature = "mutants")]
#[test]
fn a_log_whose_versions_go_back_is_refused() {
    use esker_base::checksum::loose;
    // Where the first version stands in the header of a batch.
    const FIRST_VERSION: u64 = 32;
    loose::set(Some(0));
    let devices = Devices::new(3);
    let mut options = history_options(3);
    options.flex.rebuild_threads = 1;
    let store = devices.open(&options).unwrap();
    for n in 0..12_u8 {
        store.put(&[n], &[n; 60]).unwrap();
    }
    store.forget();
    let mut images: Vec<Image> = (0..6).map(|index| devices.device(index).image()).collect();
    let log = [3, 4]
        .into_iter()
        .max_by_key(|log| images[*log].to_vec().iter().filter(|byte| **byte != 0).count());
    images[log.unwrap()].flip(FIRST_VERSION + 6, 0);
    let opened = Devices::with(images, 5).open(&options);
    loose::set(None);
    assert!(opened.is_err_and(|error| error.kind() == ErrorKind::Corrupted));
}

/// The log of the space lost its end, and that had the only large value; the log of the table has the pair that names it.
#[test]
fn the_only_large_value_is_missed_if_the_space_never_had_it() {
    let devices = Devices::new(1);
    let store = devices.open(&history_options(1)).unwrap();
    let mut history = History::new();
    for n in 0..12_u8 {
        let value = bytes(u64::from(n), if n == 11 { 5000 } else { 80 });
        store.put(&[n], &value).unwrap();
        history.insert(vec![n], vec![Some(value)]);
    }
    store.forget();
    let images: Vec<Image> = (0..6).map(|index| devices.device(index).image()).collect();
    let mut lost = 0;
    for block in 0..images[2].size_bytes() / 512 {
        let mut damaged = images.clone();
        damaged[2].write(block * 512, &[0; 512]);
        let (_, changed) = repaired(damaged, &history, &format!("block {block}")).unwrap();
        lost += changed;
    }
    assert!(lost > 0);
}

/// A device that never again reads a block, in use or not: the repair ends, and what is in no such block is there.
fn repaired_beside_refused(is_node_lost: bool) {
    let (images, history) = worked(2, true);
    let newest = newest(&history);
    let options = history_options(8);
    let nodes = 16..images[1].size_bytes() / 512;
    let mut damaged = images.clone();
    let mut without = (RepairReport::default(), 0);
    if is_node_lost {
        // The first one that is missed, but not by the root: logs would come again, and the last interval that begins in what is refused
        // takes nothing of them.
        let lost = nodes.into_iter().find_map(|block| {
            let mut damaged = images.clone();
            damaged[1].flip(block * 512 + 100, 1);
            let found = repaired(damaged.clone(), &history, "nothing is refused")?;
            (found.0.records_moved > 0 && found.1 < 4).then_some((damaged, found))
        });
        (damaged, without) = lost.unwrap();
    }
    let (mut ended, mut in_use, mut passed) = (0, 0, 0);
    let blocks = damaged[0].size_bytes() / 512;
    for block in 0..blocks {
        let context = format!("block {block}");
        let devices = Devices::with(damaged.clone(), 5);
        let (data, refused) = refusing(&devices.shared(0), block * 512..block * 512 + 512);
        let files = || {
            let files = devices.files();
            FlexFiles { space: SpaceFiles { data: data.clone(), ..files.space }, ..files }
        };
        let opens = |options| Store::open_flex_on(files(), options);
        let report = match repair_on_flex(files(), &options) {
            Ok(report) => report,
            Err(error) => {
                // The root may be in it: no identity is made up for a store that may be sound. Or it is the first interval that has lost its
                // mark, too.
                assert_eq!(error.kind(), ErrorKind::Io, "{context}: {error}");
                continue;
            }
        };
        ended += 1;
        let store = opens(&options).unwrap_or_else(|error| panic!("{context}: {error}"));
        let mut errors = 0;
        for (key, value) in &newest {
            match store.get(key) {
                Ok(found) => {
                    let found = found.map(|found| found.to_vec());
                    let had = &history[key];
                    assert!(found.is_none() || had.contains(&found), "{context}: {key:?}");
                    errors += usize::from(found.as_ref() != Some(value));
                }
                Err(error) => {
                    assert!(is_told(&error), "{context}: {key:?}: {error}");
                    in_use += 1;
                    errors += 1;
                }
            }
        }
        passed += u64::from(report.damaged_segments > without.0.damaged_segments);
        assert!(errors <= without.1 + 40, "{context}: {errors} keys, {report:?}");
        store.close().unwrap();
        *refused.lock() = 0..0;
        let store = opens(&options).unwrap();
        sound(&store);
        let changed = changed(&store, &history, &context);
        assert!(changed <= without.1 + 4, "{context}: {changed} keys are not back, {report:?}");
    }
    let most = if is_node_lost { 8 } else { 2 };
    assert!(ended + most >= blocks && in_use > 20 && passed > 4, "{ended}, {in_use}, {passed}");
}

fn is_told(error: &Error) -> bool {
    [ErrorKind::Io, ErrorKind::Corrupted].contains(&error.kind())
}

#[test]
fn a_repair_ends_also_beside_a_block_that_a_device_refuses_for_ever() {
    repaired_beside_refused(false);
}

#[test]
fn a_lost_node_is_mended_also_beside_a_block_that_a_device_refuses_for_ever() {
    repaired_beside_refused(true);
}
