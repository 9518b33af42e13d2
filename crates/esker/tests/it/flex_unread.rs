//! `flex` beside what cannot be read: the rest of the store goes on, and what was acknowledged meanwhile is there once a device reads
//! again what it refused.

use crate::client::Map;
use crate::flex_damage::{
    Harm, Left, filled, harm_options, harmed, refusing, refusing_all, unread,
};
use crate::flex_db::{Devices, files_of, options};
use crate::flex_whole::bytes;
use esker::flex::SpaceFiles;
use esker::{
    Condition, Direction, ErrorKind, FlexFiles, FlexOptions, Options, Outcome, PutOptions, Result,
    Store,
};
use esker_base::Error;
use esker_base::clock::SystemClock;
use esker_media::BlockDevice;
use esker_media::sim::{
    Act, Asking, FaultKind, FaultPlan, Image, Initial, SimBlock, SimBlockOptions, Trigger,
};
use esker_trt::{sim, spawn, yield_now};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A killed store with every other key, all of it in the space.
fn with_even_keys() -> (Devices, Map) {
    let devices = Devices::new(4);
    let store = devices.open(&harm_options()).unwrap();
    let mut model = Map::new();
    for n in 0..200_u16 {
        let (key, value) = ((2 * n).to_be_bytes(), bytes(u64::from(n), 100));
        store.put(&key, &value).unwrap();
        model.insert(key.to_vec(), value);
    }
    store.check().unwrap();
    store.forget();
    (devices, model)
}

/// When the device reads again what it refused.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Back {
    /// Before anything is written.
    Soon,
    /// When the store was closed, which nobody had written to.
    Closed,
    /// When the store was killed, which was written to.
    Killed,
}

#[test]
fn keys_beside_an_interval_whose_beginning_a_device_refuses_are_there_once_it_reads_it() {
    let (devices, even) = with_even_keys();
    let options = harm_options();
    let (mut hit, mut waited) = (0, 0);
    for block in 8..70 {
        for back in [Back::Soon, Back::Closed, Back::Killed] {
            let context = format!("block {block}, back: {back:?}");
            let (media, files, refused) = harmed(&devices, block, Harm::Refusal);
            let again = |seed| {
                let images = media.iter().map(|device| device.image()).collect();
                Devices::with(images, seed)
            };
            let Ok(mut store) = Store::open_flex_on(files, &options) else {
                // The root is in it.
                continue;
            };
            hit += u32::from(unread(&store, &even, &context) > 0);
            let mut closed = None;
            if back != Back::Killed {
                *refused.lock() = 0..0;
            }
            if back == Back::Closed {
                store.close().unwrap();
                let devices = closed.insert(again(79));
                store = devices.open(&options).unwrap();
            }
            let mut model = even.clone();
            let mut unknown = None;
            for n in 0..200_u16 {
                let (key, value) = ((2 * n + 1).to_be_bytes(), bytes(1000 + u64::from(n), 60));
                if let Err(error) = store.put(&key, &value) {
                    assert_eq!(back, Back::Killed, "{context}, key {key:?}: {error}");
                    unknown = Some((key, value));
                    break;
                }
                model.insert(key.to_vec(), value);
            }
            let checked = store.check();
            assert!(back == Back::Killed || checked.is_ok(), "{context}: {checked:?}");
            waited += u32::from(checked.is_err());
            store.forget();
            *refused.lock() = 0..0;
            let again = match &closed {
                Some(devices) => devices.again(),
                None => again(78),
            };
            let again = again.open(&options).unwrap();
            if let Some((key, value)) = unknown
                && again.get(&key).unwrap().is_some_and(|found| found.to_vec() == value)
            {
                model.insert(key.to_vec(), value);
            }
            assert_eq!(unread(&again, &model, &context), 0, "{context}: the device reads it again");
            let items = again.iter().flatten().map(|(key, value)| (key, value.to_vec()));
            assert!(items.collect::<Map>() == model, "{context}: others are there");
            assert_eq!(again.check().unwrap().problems, Vec::<String>::new(), "{context}");
        }
    }
    assert!(hit > 20 && waited > 5, "{hit} of the blocks had something, {waited} were waited for");
}

#[test]
fn large_values_give_their_room_back_beside_one_whose_pair_cannot_be_read() {
    let (devices, _) = filled(Left::Killed);
    let options = harm_options();
    let mut hit = 0;
    for harm in [Harm::Flip, Harm::Refusal] {
        for block in 8..90 {
            let context = format!("{harm:?} of block {block}");
            let (_media, files, _) = harmed(&devices, block, harm);
            let store = Store::open_flex_on(files, &options).unwrap();
            let large = [7_u8, 57, 107, 157];
            let Some(sound) = large.iter().find(|n| store.get(&[**n]).is_ok()) else { continue };
            if large.iter().all(|n| store.get(&[*n]).is_ok()) {
                continue;
            }
            hit += 1;
            let before = store.stats().live_bytes;
            for round in 0..40 {
                store.put(&[*sound], &bytes(round, 3000)).unwrap();
                store.clean(0).unwrap();
            }
            let after = store.stats().live_bytes;
            assert!(after < before + 4 * 3000, "{context}: {before} bytes, {after} later");
        }
    }
    assert!(hit > 8, "{hit} of the blocks had something");
}

#[test]
fn what_is_behind_a_refused_place_is_verified_too() {
    let (devices, _) = filled(Left::Closed);
    let mut options = harm_options();
    options.clock = Arc::new(SystemClock);
    options.testing.background = true;
    options.flex.scrub_bytes_per_second = 100 << 20;
    let mut images: Vec<Image> = (0..6).map(|index| devices.device(index).image()).collect();
    (60..70).for_each(|block| images[0].flip(block * 512 + 100, 1));
    let (_media, files, _refused) = harmed(&Devices::with(images, 77), 10, Harm::Refusal);
    let store = Store::open_flex_on(files, &options).unwrap();
    // What is refused counts once, and what is damaged behind it each time around.
    let damaged = || -> u64 {
        let report = store.report();
        let (before, _) = report.split_once(" places damaged").unwrap();
        before.rsplit_once(' ').unwrap().1.parse().unwrap()
    };
    let is_told = (0..2000).any(|_| {
        esker_trt::sleep(Duration::from_millis(50));
        damaged() > 2
    });
    assert!(is_told, "{}", store.report());
}

#[test]
fn a_saved_index_that_a_device_refuses_to_read_is_as_if_there_were_none() {
    let (devices, model) = filled(Left::Closed);
    for refused in [0..1, 4096..4097, 0..u64::MAX] {
        let devices = devices.again();
        let mut files = devices.files();
        let (index, _refused) = refusing(&devices.shared(5), refused.clone());
        files.index = index;
        let store = Store::open_flex_on(files, &harm_options()).unwrap();
        assert_eq!(unread(&store, &model, &format!("{refused:?}")), 0);
        store.put(b"key", b"value").unwrap();
        store.close().unwrap();
        let store = devices.again().open(&harm_options()).unwrap();
        assert_eq!(unread(&store, &model, &format!("{refused:?}, again")), 0);
    }
}

#[test]
fn a_scan_down_to_where_an_interval_begins_reads_nothing_before_it() {
    let (devices, _) = filled(Left::Closed);
    let (mut hit, mut asked) = (0, 0);
    for block in 8..90 {
        let (_media, files, _) = harmed(&devices, block, Harm::Flip);
        let store = Store::open_flex_on(files, &harm_options()).unwrap();
        let is_read: Vec<bool> = (0..200_u8).map(|n| store.get(&[n]).is_ok()).collect();
        hit += u32::from(is_read.contains(&false));
        for first in (1..200_u8).filter(|n| !is_read[usize::from(*n) - 1]) {
            for last in [first, first + 1] {
                let scan = |direction| {
                    let found = store.scan(&[first][..]..=&[last][..], direction, usize::MAX)?;
                    Ok(found.into_iter().map(|(key, value)| (key, value.to_vec())).collect())
                };
                let forward: Result<Vec<(Vec<u8>, Vec<u8>)>> = scan(Direction::Forward);
                // What is damaged may be in it.
                let Ok(mut known) = forward else { continue };
                known.reverse();
                let found = scan(Direction::Reverse);
                assert_eq!(found.ok(), Some(known), "block {block}, down to {first}");
                asked += 1;
            }
        }
    }
    assert!(hit > 20 && asked > 20, "{hit} of the blocks had something, {asked} scans");
}

/// Keys of one byte that cannot be read.
fn lost_of(store: &Store) -> Vec<u8> {
    (0..200_u8).filter(|n| store.get(&[*n]).is_err()).collect()
}

#[test]
fn what_a_get_found_does_not_depend_on_what_it_would_like_to_keep() {
    let (devices, model) = filled(Left::Closed);
    let mut options = harm_options();
    options.flex.cache_size_bytes = 1 << 20;
    let mut hit = 0;
    for harm in [Harm::Flip, Harm::Refusal] {
        for block in 8..90 {
            let context = format!("{harm:?} of block {block}");
            let (_media, files, _refused) = harmed(&devices, block, harm);
            let store = Store::open_flex_on(files, &options).unwrap();
            let lost = lost_of(&store);
            let [first, second, ..] = lost[..] else { continue };
            hit += 1;
            let mut model = model.clone();
            for n in [first, second] {
                let value = bytes(u64::from(n), 70);
                store.put(&[n], &value).unwrap();
                model.insert(vec![n], value);
            }
            // Both bring it to the space; a check looks at everything, too, and fails where a device refuses.
            if block % 2 == 0 && harm == Harm::Flip {
                store.check().unwrap();
            } else {
                store.clean(0).unwrap_or_else(|error| panic!("{context}: {error}"));
            }
            for n in [first, second, first, second, second] {
                let found = store.get(&[n]).unwrap_or_else(|error| panic!("{context}: {error}"));
                assert_eq!(found.map(|value| value.to_vec()), Some(model[&vec![n]].clone()));
            }
            assert_eq!(unread(&store, &model, &context), lost.len() - 2, "{context}");
            let deleted = store.delete(&[second]);
            assert!(deleted.unwrap_or_else(|error| panic!("{context}: {error}")), "{context}");
            assert!(store.get(&[second]).unwrap().is_none(), "{context}");
        }
    }
    assert!(hit > 20, "{hit} of the blocks had something");
}

/// Much comes at once to an interval that cannot be read: how many pairs, and how long their values are.
fn much_behind(count: u16, size: usize) {
    let (devices, model) = filled(Left::Closed);
    let mut options = harm_options();
    options.flex.memtable_size_bytes = 256 << 10;
    let mut hit = 0;
    for block in (8..90).step_by(3) {
        let context = format!("block {block}, {count} pairs of {size} bytes");
        let (media, files, _refused) = harmed(&devices, block, Harm::Flip);
        let store = Store::open_flex_on(files, &options).unwrap();
        let lost = lost_of(&store);
        let Some(first) = lost.first().copied() else { continue };
        hit += 1;
        let mut model = model.clone();
        let mut put = |key: &[u8], value: Vec<u8>| {
            store.put(key, &value).unwrap_or_else(|error| panic!("{context}: {error}"));
            model.insert(key.to_vec(), value);
        };
        for n in 0..3_u8 {
            put(&[first, 0, 0, n], bytes(u64::from(n), 50));
            store.clean(0).unwrap();
        }
        for n in 0..count {
            put(&[&[first], &n.to_be_bytes()[..]].concat(), bytes(u64::from(n), size));
        }
        store.clean(0).unwrap();
        assert_eq!(unread(&store, &model, &context), lost.len(), "{context}");
        store.close().unwrap();
        let images = media.iter().map(|device| device.image()).collect();
        let again = Devices::with(images, 78).open(&options).unwrap();
        // Where the head of the base run is damaged, too, nobody knows any more where others begin (D2).
        assert!(unread(&again, &model, &context) >= lost.len(), "{context}, again");
    }
    assert!(hit > 8, "{hit} of the blocks had something");
}

#[test]
fn many_pairs_behind_what_cannot_be_read_are_found_and_so_are_those_before_them() {
    much_behind(300, 20);
}

#[test]
fn long_pairs_behind_what_cannot_be_read_are_found_and_so_are_those_before_them() {
    much_behind(80, 900);
}

#[test]
fn a_store_that_could_not_be_closed_says_so_again() {
    let mut failed = 0;
    for index in 0..6 {
        for kind in [FaultKind::WriteError, FaultKind::FlushError] {
            let devices = Devices::new(4);
            let store = devices.open(&harm_options()).unwrap();
            store.put(b"key", &bytes(1, 100)).unwrap();
            let plan = FaultPlan::none().with(kind, Trigger::Nth(1));
            devices.device(index).set_faults(plan);
            let told = |closed: Result<()>| closed.map_err(|error| error.to_string());
            let first = told(store.close());
            failed += u32::from(first.is_err());
            assert_eq!(told(store.close()), first, "{kind:?} of device {index}");
        }
    }
    assert!(failed > 2, "{failed} times");
}

#[test]
fn who_closes_a_store_beside_somebody_else_is_told_what_came_of_it() {
    let run = sim::run(3, || {
        let (devices, armed) = (Devices::new(4), Arc::new(AtomicBool::new(false)));
        let mut files = devices.files();
        let is_due = Arc::clone(&armed);
        files.space.tree = Asking::new(devices.shared(1), move |call| {
            if call.act != Act::Read && is_due.swap(false, Ordering::SeqCst) {
                esker_trt::sleep(Duration::from_secs(10));
                return Err(Error::new(ErrorKind::Io, "write"));
            }
            Ok(())
        }) as Arc<dyn BlockDevice>;
        let store = Store::open_flex_on(files, &harm_options()).unwrap();
        store.put(b"key", &bytes(1, 100)).unwrap();
        armed.store(true, Ordering::SeqCst);
        let closing = store.clone();
        let first = spawn(move || closing.close());
        while armed.load(Ordering::SeqCst) {
            yield_now();
        }
        let second = store.close().map_err(|error| error.kind());
        (first.join().unwrap().map_err(|error| error.kind()), second)
    });
    assert_eq!(run.outcome.unwrap(), (Err(ErrorKind::Io), Err(ErrorKind::Io)));
}

/// One that cannot be taken out of the space now keeps none of the others there, and goes later.
#[test]
fn large_values_that_nobody_needs_go_beside_one_that_a_device_keeps() {
    let devices = Devices::new(6);
    let mut options = options(6);
    if let Some(space) = &mut options.flex.space {
        space.nodes_max = 3;
    }
    let store = devices.open(&options).unwrap();
    for n in 0..60_u8 {
        store.put(&[n], &bytes(n.into(), if n % 3 == 0 { 3000 } else { 100 })).unwrap();
    }
    store.close().unwrap();
    drop(store);
    let tree_blocks = devices.device(1).image().size_bytes() / 512;
    let (mut left, mut kept) = (None, 0);
    for block in std::iter::once(u64::MAX / 512 - 1).chain(16..tree_blocks) {
        let other = devices.again();
        let (tree, refused) = refusing(&other.shared(1), 0..0);
        let files = other.files();
        let files = FlexFiles { space: SpaceFiles { tree, ..files.space }, ..files };
        let store = Store::open_flex_on(files, &options).unwrap();
        for n in (0..60_u8).step_by(3) {
            assert!(store.delete(&[n]).unwrap());
        }
        *refused.lock() = block * 512..(block + 1) * 512;
        let is_in_space = store.clean(0).is_ok();
        let during = store.stats().live_bytes;
        *refused.lock() = 0..0;
        // Where a table needs the node, the store takes no more writes.
        if (0..2).any(|_| store.clean(0).is_err()) {
            continue;
        }
        let after = store.stats().live_bytes;
        // Without any refusal, at first.
        let left = *left.get_or_insert(after);
        if is_in_space {
            kept += u64::from(during > left + 2000);
            assert!(during < left + 3 * 3000, "block {block}: {during} bytes, not {left}");
        }
        assert!(after < left + 1000, "block {block}: {after} bytes, not {left}");
    }
    assert!(kept > 3, "{kept} kept a value");
}

/// No write failed: what a table needs can be read later.
#[test]
fn a_table_that_met_a_refused_node_comes_to_the_space_once_it_can_be_read() {
    let devices = Devices::new(8);
    let mut options = options(8);
    if let Some(space) = &mut options.flex.space {
        space.nodes_max = 3;
    }
    let store = devices.open(&options).unwrap();
    for n in 0..200_u8 {
        store.put(&[n], &bytes(n.into(), 300)).unwrap();
    }
    store.close().unwrap();
    drop(store);
    let (tree, refuses) = refusing_all(&devices.shared(1));
    let files = devices.files();
    let files = FlexFiles { space: SpaceFiles { tree, ..files.space }, ..files };
    let store = Store::open_flex_on(files, &options).unwrap();
    refuses.store(true, Ordering::Relaxed);
    let mut refused = 0;
    for n in 0..200_u8 {
        let put = store.put(&[n], &bytes(1000 + u64::from(n), 300));
        refused += usize::from(put.is_err_and(|error| error.kind() == ErrorKind::Io));
    }
    assert!(refused > 0 && store.stats().read_only.is_none(), "{refused}");
    refuses.store(false, Ordering::Relaxed);
    for n in 0..200_u8 {
        store.put(&[n], &bytes(2000 + u64::from(n), 300)).unwrap();
    }
    for n in 0..200_u8 {
        let found = store.get(&[n]).unwrap().unwrap();
        assert_eq!(found.as_ref(), bytes(2000 + u64::from(n), 300));
    }
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
}

/// A store of the usual shape, with much room, whose last interval cannot be read: a block in it is damaged that has not its beginning.
fn damaged_at_the_end() -> (Vec<Arc<SimBlock>>, Options, Map) {
    let mut options = options(4);
    options.flex = FlexOptions { cache_size_bytes: 0, ..FlexOptions::default() };
    options.flex.memtable_size_bytes = 1 << 20;
    options.flex.interval_size_bytes_max = 64 << 10;
    options.size_bytes = 96 << 20;
    let device = |image: Option<Image>| {
        let size = image.as_ref().map_or(8192, Image::size_bytes);
        let mut options = SimBlockOptions::new(size, 4);
        if let Some(image) = image {
            options = options.initial(Initial::Recycled(image));
        }
        options.size_bytes_max = 128 << 20;
        Arc::new(SimBlock::new(options))
    };
    let devices: Vec<_> = (0..6).map(|_| device(None)).collect();
    let store = Store::open_flex_on(files_of(&devices), &options).unwrap();
    let mut model = Map::new();
    for n in 0..100_u8 {
        let value = bytes(u64::from(n), 3000);
        store.put(&[n], &value).unwrap();
        model.insert(vec![n], value);
    }
    store.close().unwrap();
    let images: Vec<Image> = devices.iter().map(|device| device.image()).collect();
    let harmed = (1..100).rev().find_map(|block| {
        let mut images = images.clone();
        images[0].flip(block * 4096 + 100, 1);
        let devices: Vec<_> = images.into_iter().map(|image| device(Some(image))).collect();
        // The root is in one of them.
        let store = Store::open_flex_on(files_of(&devices), &options).ok()?;
        let is_last = store.get(&[99]).is_err();
        store.forget();
        is_last.then_some(devices)
    });
    (harmed.unwrap(), options, model)
}

/// Puts pairs behind what cannot be read; they are there, and can be deleted and replaced, also after another open.
fn ascending_behind(pairs: impl Iterator<Item = (Vec<u8>, Vec<u8>)>) {
    let (devices, options, mut model) = damaged_at_the_end();
    let mut store = Store::open_flex_on(files_of(&devices), &options).unwrap();
    let lost = unread(&store, &model, "before");
    assert!((1..40).contains(&lost), "{lost}");
    let mut added = Vec::new();
    for (key, value) in pairs {
        store.put(&key, &value).unwrap();
        added.push(key.clone());
        model.insert(key, value);
    }
    store.clean(0).unwrap();
    let report = store.report();
    let number = |before: &str| -> u64 {
        let (number, _) = report.split_once(before).unwrap();
        number.rsplit_once(' ').unwrap().1.parse().unwrap()
    };
    let (appended, anew) = (number(" bytes appended"), number(" written anew"));
    assert!(anew < 3 * appended, "{report}");
    for round in 0..3 {
        let context = format!("round {round}");
        for key in added.iter().step_by(added.len() / 7) {
            let condition = Condition::Absent;
            let put = PutOptions { condition, ..PutOptions::default() };
            let done = store.put_with(key, b"other", put);
            let done = done.unwrap_or_else(|error| panic!("{context}, {key:?}: {error}"));
            assert_eq!(done, Outcome::KeyExists, "{context}, {key:?}");
            model.remove(key);
            assert!(store.delete(key).unwrap(), "{context}");
            assert!(store.get(key).unwrap().is_none(), "{context}");
        }
        added.retain(|key| model.contains_key(key));
        store.clean(0).unwrap();
        let asked = added.iter().step_by(1 + added.len() / 300);
        let asked: Map = asked.map(|key| (key.clone(), model[key].clone())).collect();
        assert_eq!(unread(&store, &asked, &context), 0, "{context}");
        let before = model.iter().filter(|(key, _)| key.len() == 1);
        let before: Map = before.map(|(key, value)| (key.clone(), value.clone())).collect();
        // Nobody knows any more what of it the damaged run may have.
        let more = if round > 0 { 16 } else { 0 };
        assert!((lost..=lost + more).contains(&unread(&store, &before, &context)), "{context}");
        store.close().unwrap();
        store = Store::open_flex_on(files_of(&devices), &options).unwrap();
    }
}

#[test]
fn values_of_any_length_behind_what_cannot_be_read_are_found() {
    // The long ones are alone in a run, and none is large.
    ascending_behind((0..60_u8).map(|n| {
        (vec![99, n], bytes(n.into(), if n % 3 == 0 { 40 } else { 60_000 + 200 * usize::from(n) }))
    }));
}

#[test]
fn very_many_pairs_behind_what_cannot_be_read_are_found() {
    ascending_behind(
        (0..70_000_u32).map(|n| ([&[99][..], &n.to_be_bytes()].concat(), bytes(n.into(), 10))),
    );
}

#[test]
fn more_than_a_look_takes_behind_what_cannot_be_read_is_found() {
    ascending_behind(
        (0..400_u16).map(|n| ([&[99][..], &n.to_be_bytes()].concat(), bytes(n.into(), 50_000))),
    );
}
