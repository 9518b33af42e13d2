//! `flex` and its space where something cannot be read: it is an error, and everything else goes on, whatever is written, after a clean
//! stop and after a killed process.

use crate::client::Map;
use crate::flex::{Media, assert_sound, bytes_of, content, small};
use crate::flex_db::{Devices, options};
use crate::flex_whole::bytes;
use esker::flex::{Space, SpaceFiles};
use esker::{Direction, ErrorKind, FlexFiles, Store};
use esker_base::Error;
use esker_base::rng::Rng;
use esker_media::BlockDevice;
use esker_media::sim::{Act, Asking, Image, SimBlock};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes that a device refuses to read.
pub(crate) type Refused = Arc<Mutex<Range<u64>>>;

/// A device that refuses to read some bytes, until something is written there.
pub(crate) fn refusing(inner: &Arc<SimBlock>, refused: Range<u64>) -> (Arc<Asking>, Refused) {
    let refused = Arc::new(Mutex::new(refused));
    let shared = Arc::clone(&refused);
    let device = Asking::new(Arc::clone(inner), move |call| {
        let mut refused = shared.lock();
        let meet = call.range.start < refused.end && refused.start < call.range.end;
        match call.act {
            Act::Read if meet => {
                Err(Error::new(ErrorKind::Io, "read").at(refused.start, refused.end))
            }
            Act::Write if meet => {
                *refused = 0..0;
                Ok(())
            }
            _ => Ok(()),
        }
    });
    (device, refused)
}

/// How the store was left whose device is damaged then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Left {
    Closed,
    Killed,
}

/// How a block of it cannot be read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Harm {
    Flip,
    Refusal,
}

/// What is there before, as a client knows it: pairs, and some large values.
pub(crate) fn filled(left: Left) -> (Devices, Map) {
    filled_with(left, 200, |n| if n % 50 == 7 { 3000 } else { 200 })
}

/// As [`filled`], with so many pairs, whose values are as long as `size` says.
pub(crate) fn filled_with(left: Left, pairs: u8, size: impl Fn(u8) -> usize) -> (Devices, Map) {
    let devices = Devices::new(4);
    let options = harm_options();
    let store = devices.open(&options).unwrap();
    let mut model = Map::new();
    for n in 0..pairs {
        let value = bytes(u64::from(n), size(n));
        store.put(&[n], &value).unwrap();
        model.insert(vec![n], value);
    }
    match left {
        Left::Closed => store.close().unwrap(),
        Left::Killed => {
            // All is in the space; the index is not saved.
            store.check().unwrap();
            store.forget();
        }
    }
    (devices, model)
}

pub(crate) fn harm_options() -> esker::Options {
    let mut options = options(4);
    options.flex.cache_size_bytes = 0;
    // Leaves find room in what is spare; parts of a found store have many intervals each.
    options.flex.space.as_mut().unwrap().shape.segment_size_bytes = 32 << 10;
    options.flex.rebuild_step_bytes = 6000;
    options
}

/// Devices with these contents, of which a block of the first one cannot be read.
pub(crate) fn harmed(
    devices: &Devices,
    block: u64,
    harm: Harm,
) -> (Vec<Arc<SimBlock>>, FlexFiles, Refused) {
    let mut images: Vec<Image> = (0..6).map(|index| devices.device(index).image()).collect();
    if harm == Harm::Flip {
        images[0].flip(block * 512 + 100, 1);
    }
    let devices = Devices::with(images, 77).into_devices();
    let refused = if harm == Harm::Refusal { block * 512..(block + 1) * 512 } else { 0..0 };
    let (data, refused) = refusing(&devices[0], refused);
    let device = |index: usize| Arc::clone(&devices[index]) as Arc<dyn BlockDevice>;
    let files = FlexFiles {
        space: SpaceFiles { data, tree: device(1), log: device(2) },
        logs: [device(3), device(4)],
        index: device(5),
    };
    (devices, files, refused)
}

/// Compares what can be read with what was acknowledged; how many keys cannot be.
pub(crate) fn unread(store: &Store, model: &Map, context: &str) -> usize {
    let mut unread = 0;
    for (key, value) in model {
        match store.get(key) {
            Ok(found) => {
                let found = found.map(|value| value.to_vec());
                assert_eq!(found.as_ref(), Some(value), "{context}, key {key:?}");
            }
            Err(error) => {
                let kinds = [ErrorKind::Corrupted, ErrorKind::Io];
                assert!(kinds.contains(&error.kind()), "{context}, key {key:?}: {error}");
                unread += 1;
            }
        }
    }
    unread
}

fn writes_go_on(left: Left, harm: Harm) {
    let (devices, model) = filled(left);
    let mut hit = 0;
    for block in (8..90).step_by(3) {
        let context = format!("{left:?}, {harm:?} of block {block}");
        let (media, files, unreadable) = harmed(&devices, block, harm);
        let mut options = harm_options();
        options.testing.seed = Some(block);
        let store = Store::open_flex_on(files, &options)
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        let mut model = model.clone();
        let lost = unread(&store, &model, &context);
        // An interval, or two that share the block.
        assert!(lost <= 24, "{context}: {lost} keys");
        hit += u32::from(lost > 0);
        let mut refused = None;
        'rounds: for round in 1..21 {
            for n in 0..200_u8 {
                let value = bytes(round * 1000 + u64::from(n), 200);
                if let Err(error) = store.put(&[n], &value) {
                    // Only where nobody knows to which interval a key belongs, until the device says it.
                    let is_expected = left == Left::Killed && harm == Harm::Refusal;
                    assert!(is_expected, "{context}, round {round}, key {n}: {error}");
                    refused = Some((vec![n], value));
                    break 'rounds;
                }
                model.insert(vec![n], value);
            }
            assert_eq!(
                unread(&store, &model, &context),
                0,
                "{context}, round {round}: all are new"
            );
        }
        if let Some((key, value)) = refused {
            store.forget();
            *unreadable.lock() = 0..0;
            let images = media.iter().map(|device| device.image()).collect();
            let again = Devices::with(images, 78).open(&options);
            let again = again.unwrap_or_else(|error| panic!("{context}, again: {error}"));
            if again.get(&key).unwrap().is_some_and(|found| found.to_vec() == value) {
                model.insert(key, value);
            }
            assert_eq!(unread(&again, &model, &context), 0, "{context}: the device reads it again");
            continue;
        }
        assert!(store.stats().read_only.is_none(), "{context}");
        if lost > 1 {
            assert!(!store.report().contains(" 0 places damaged"), "{context}");
        }
        // A delete of a key that is known, and a range.
        assert!(store.delete(&[100]).unwrap());
        model.remove(&[100][..]);
        assert!(store.get(&[100]).unwrap().is_none(), "{context}");
        if harm == Harm::Flip {
            store.delete_range(&[20], Some(&[23])).unwrap();
            store.sync().unwrap();
            let checked = store.check();
            assert!(checked.is_ok(), "{context}: {checked:?}");
            for n in 20..23_u8 {
                model.remove(&[n][..]);
                let found = store.get(&[n]);
                assert!(!found.is_ok_and(|found| found.is_some()), "{context}: {n} is back");
            }
        }
        unread(&store, &model, &format!("{context}, at last"));
        // Closed or killed, it opens, and nothing is wrong then, either.
        if block % 2 == 0 {
            store.close().unwrap_or_else(|error| panic!("{context}: {error}"));
            drop(store);
        } else {
            store.forget();
        }
        let images = media.iter().map(|device| device.image()).collect();
        *unreadable.lock() = 0..0;
        let again = Devices::with(images, 78).open(&options);
        let again = again.unwrap_or_else(|error| panic!("{context}, again: {error}"));
        let lost = unread(&again, &model, &format!("{context}, again"));
        assert!(lost <= 24, "{context}, again: {lost} keys");
        for n in [20, 21, 22, 100_u8] {
            if !model.contains_key(&[n][..]) {
                let found = again.get(&[n]);
                assert!(!found.is_ok_and(|found| found.is_some()), "{context}: {n} is back again");
            }
        }
        if harm == Harm::Refusal {
            assert_eq!(lost, 0, "{context}: the device reads it again");
        }
        for n in 0..200_u8 {
            let put = again.put(&[n], b"new");
            assert!(put.is_ok(), "{context}, again, key {n}: {put:?}");
        }
    }
    assert!(hit > 8, "{left:?}, {harm:?}: {hit} of the blocks had something");
}

#[test]
fn a_damaged_block_of_a_closed_store_is_told_and_writes_go_on() {
    writes_go_on(Left::Closed, Harm::Flip);
}

#[test]
fn a_damaged_block_of_a_killed_store_is_told_and_writes_go_on() {
    writes_go_on(Left::Killed, Harm::Flip);
}

#[test]
fn a_block_that_a_device_refuses_is_told_and_writes_go_on() {
    writes_go_on(Left::Closed, Harm::Refusal);
    writes_go_on(Left::Killed, Harm::Refusal);
}

#[test]
fn a_damaged_block_behind_a_killed_store_does_not_hide_what_a_table_brings() {
    // Two logs wait: the older one goes to the space while the store is opened.
    let devices = Devices::new(5);
    let mut options = harm_options();
    let store = devices.open(&options).unwrap();
    let mut model = Map::new();
    let mut rng = Rng::from_seed(5);
    let mut images: Option<Vec<Image>> = None;
    for n in 0..4000_u64 {
        let key = vec![rng.index(200) as u8];
        let value = bytes(n, 150);
        let before: Vec<Image> = (0..3).map(|index| devices.device(index).image()).collect();
        store.put(&key, &value).unwrap();
        model.insert(key, value);
        if n > 3000 && store.stats().items > 0 {
            let mut all = before;
            all.extend((3..6).map(|index| devices.device(index).image()));
            if Devices::with(all.clone(), 6).open(&options).is_ok() {
                images = Some(all);
                break;
            }
        }
    }
    store.forget();
    let images = images.unwrap();
    for block in 8..120 {
        let mut images = images.clone();
        images[0].flip(block * 512 + 100, 1);
        options.testing.seed = Some(block);
        let store = Devices::with(images, 79).open(&options);
        let store = store.unwrap_or_else(|error| panic!("block {block}: {error}"));
        for (key, value) in &model {
            if let Ok(found) = store.get(key) {
                assert_eq!(
                    found.map(|value| value.to_vec()).as_ref(),
                    Some(value),
                    "block {block}"
                );
            }
        }
        let items: Map = store.iter().flatten().map(|(key, value)| (key, value.to_vec())).collect();
        assert!(
            items.len() + 24 >= model.len(),
            "block {block}: {} of {}",
            items.len(),
            model.len()
        );
    }
}

#[test]
fn heads_that_cannot_be_read_are_passed_over_and_their_keys_are_errors() {
    for left in [Left::Closed, Left::Killed] {
        let options = harm_options();
        // Each large one by itself.
        let (devices, model) = filled_with(left, 40, |n| if n % 2 == 1 { 2500 } else { 100 });
        let blocks = devices.device(0).image().size_bytes() / 512;
        let mut hit = 0;
        for block in 0..blocks {
            let context = format!("{left:?}, block {block}");
            let (_media, files, _) = harmed(&devices, block, Harm::Flip);
            let store = match Store::open_flex_on(files, &options) {
                Ok(store) => store,
                Err(error) => {
                    // The root is in it.
                    assert_eq!(error.kind(), ErrorKind::Corrupted, "{context}");
                    assert!(error.to_string().contains("read space"), "{context}: {error}");
                    continue;
                }
            };
            let lost = unread(&store, &model, &context);
            // Two intervals that things were appended to, and a value.
            assert!(lost <= 30, "{context}: {lost} keys");
            hit += u32::from(lost > 0);
            // Values go on, and their places are right.
            let more = bytes(block, 4000);
            store.put(&[200], &more).unwrap();
            store.delete(&[1]).ok();
            store.check().unwrap();
            assert_eq!(
                store.get(&[200]).map(|value| value.unwrap().to_vec()).ok(),
                Some(more),
                "{context}"
            );
            for n in 2..40_u8 {
                if let Ok(found) = store.get(&[n]) {
                    let found = found.map(|value| value.to_vec());
                    assert_eq!(found.as_ref(), model.get(&[n][..]), "{context}, key {n}");
                }
            }
        }
        assert!(hit > 40, "{left:?}: {hit} blocks had something");
    }
}

#[test]
fn segments_that_cannot_be_emptied_are_left_out_and_others_are_collected() {
    for harm in [Harm::Flip, Harm::Refusal] {
        let media = Media::new(1 << 20);
        let mut options = small(21);
        options.format = true;
        options.cache_size_bytes = 0;
        let space = Space::open_on(media.files(), &options).unwrap();
        // Six segments with one extent each that stays, of which a block cannot be read.
        let payload = 16 * 508;
        for _ in 0..6 {
            space.append(&[1; 16 * 508]).unwrap();
        }
        space.append(&[2; 40 * 16 * 508]).unwrap();
        for segment in (0..6).rev() {
            space.collapse_range(segment * payload + 508, payload - 508).unwrap();
        }
        space.checkpoint().unwrap();
        drop(space);
        let mut images = media.images();
        if harm == Harm::Flip {
            (0..6).for_each(|segment| images[0].flip(segment * 8192 + 100, 1));
        }
        let media = Media::of(&images);
        options.format = false;
        options.data_size_bytes_max = Some(64 * 8192);
        let refused = if harm == Harm::Refusal { 0..6 * 8192 } else { 0..0 };
        let (data, _) = refusing(&media.0[0], refused);
        let space = Space::open_on(SpaceFiles { data, ..media.files() }, &options).unwrap();
        let mut rng = Rng::from_seed(22);
        let start = 6 * 508;
        for round in 0..3000 {
            let at = start + rng.below(39 * payload);
            space.write(at, &[3; 700]).unwrap_or_else(|error| panic!("{harm:?}, {round}: {error}"));
        }
        let stat = space.stat();
        assert!(
            stat.moved_bytes > 0 && space.failure().is_none(),
            "{harm:?}: {stat:?} {:?}",
            space.failure()
        );
        let mut byte = [0];
        assert!(space.read(0, &mut byte).is_err(), "{harm:?}");
        assert_eq!(space.read(start + 40 * payload - 1, &mut byte).unwrap(), 1);
        assert!(stat.segments <= 60, "{harm:?}: {stat:?}");
    }
}

/// To put an extent elsewhere takes the nodes of its neighbours.
#[test]
fn a_node_that_cannot_be_read_does_not_end_collecting_beside_it() {
    const NODES: u64 = 10;
    let media = Media::new(1 << 20);
    let mut options = small(23);
    options.format = true;
    options.cache_size_bytes = 0;
    let space = Space::open_on(media.files(), &options).unwrap();
    let mut rng = Rng::from_seed(24);
    for _ in 0..400 {
        let at = rng.below(space.size_bytes() + 1);
        space.insert_range(at, &[1; 400]).unwrap();
    }
    space.checkpoint().unwrap();
    let size = space.size_bytes();
    drop(space);
    options.format = false;
    options.data_size_bytes_max = Some(40 * 8192);
    let (images, mut moved, mut unread, mut most_reads) = (media.images(), 0, 0, 0);
    for node in 0..NODES {
        let mut damaged = images.clone();
        damaged[1].flip(8192 + node * 512 + 40, 1);
        let media = Media::of(&damaged);
        let reads = Arc::new(AtomicU64::new(0));
        let counts = Arc::clone(&reads);
        let tree = Asking::new(Arc::clone(&media.0[1]), move |call| {
            let meets = call.act == Act::Read && call.range.contains(&(8192 + node * 512 + 40));
            counts.fetch_add(u64::from(meets), Ordering::Relaxed);
            Ok(())
        });
        let files = SpaceFiles { tree, ..media.files() };
        let Ok(space) = Space::open_on(files, &options) else { continue };
        for round in 0..600 {
            let at = rng.below(size - 700);
            if let Err(error) = space.write(at, &[3; 700]) {
                assert_eq!(error.kind(), ErrorKind::Corrupted, "{node}, {round}: {error}");
                unread += 1;
            }
        }
        // A walk asks for it once or twice, not for each byte below it.
        let before = reads.load(Ordering::Relaxed);
        (0..3).for_each(|_| drop(space.collect(4)));
        let reads = reads.load(Ordering::Relaxed) - before;
        most_reads = most_reads.max(reads);
        assert!(reads <= 100, "node {node} is read {reads} times");
        assert!(space.failure().is_none(), "node {node}: {:?}", space.failure());
        moved += space.stat().moved_bytes;
    }
    assert!(moved > 0 && unread > 0, "{moved} bytes moved, {unread} not read");
    assert!(most_reads > 0, "no walk met a damaged node");
}

#[test]
fn a_checkpoint_is_not_taken_back_by_a_damaged_header() {
    for (seed, ends_with_sync) in [(7, false), (8, false), (9, true)] {
        let media = Media::new(1 << 20);
        let mut options = small(seed);
        options.format = true;
        let space = Space::open_on(media.files(), &options).unwrap();
        let mut rng = Rng::from_seed(seed);
        let mut model = Vec::new();
        for round in 0..60_u64 {
            let data = bytes_of(&mut rng, 600);
            let at = rng.index(model.len() + 1);
            space.insert_range(at as u64, &data).unwrap();
            model.splice(at..at, data);
            if round % 7 == 0 {
                space.sync().unwrap();
            }
            if round % 20 == 0 {
                space.checkpoint().unwrap();
            }
        }
        if ends_with_sync {
            space.sync().unwrap();
        }
        space.checkpoint().unwrap();
        drop(space);
        let images = media.images();
        options.format = false;
        let mut harmless = 0;
        for index in 1..3 {
            for place in 0..1200 {
                let at =
                    if place < 1100 { place * 8 } else { rng.below(images[index].size_bytes()) };
                let mut damaged = images.clone();
                damaged[index].flip(at, (at % 8) as u32);
                let media = Media::of(&damaged);
                let opened = Space::open_on(media.files(), &options);
                match opened.and_then(|space| content(&space)) {
                    Ok(bytes) => {
                        assert!(bytes == model, "seed {seed}, file {index}, {at}: taken back");
                        harmless += 1;
                    }
                    Err(error) => {
                        let kinds = [ErrorKind::Corrupted, ErrorKind::UnsupportedFormat];
                        assert!(kinds.contains(&error.kind()), "{error}");
                    }
                }
            }
        }
        assert!(harmless > 100, "{harmless}");
        // A header that was never written, in either slot.
        for slot in [0, 4096] {
            let mut lost = images.clone();
            lost[1].write(slot, &[0; 512]);
            let media = Media::of(&lost);
            let space = Space::open_on(media.files(), &options).unwrap();
            assert!(
                content(&space).unwrap() == model,
                "seed {seed}: the header at {slot} is missing"
            );
            assert_sound(&space);
        }
    }
}

#[test]
fn a_checkpoint_whose_log_finds_no_room_is_not_taken_back_either() {
    let media = Media::new(1 << 20);
    let mut options = small(10);
    options.format = true;
    // So that the log is full all the time.
    options.log_size_bytes_max = 0;
    let space = Space::open_on(media.files(), &options).unwrap();
    let mut model = Vec::new();
    // More records than the log has room for.
    for n in 0..800_u64 {
        let at = (n * 7919) % (model.len() as u64 + 1);
        for _ in 0..2 {
            space.insert_range(at, &[1; 3]).unwrap();
            space.collapse_range(at, 3).unwrap();
        }
        space.insert_range(at, &[n as u8; 3]).unwrap();
        model.splice(at as usize..at as usize, [n as u8; 3]);
    }
    space.sync().unwrap();
    drop(space);
    let images = media.images();
    options.format = false;
    let mut refused = 0;
    for slot in [0, 4096] {
        let mut damaged = images.clone();
        damaged[1].flip(slot + 40, 3);
        let media = Media::of(&damaged);
        match Space::open_on(media.files(), &options).and_then(|space| content(&space)) {
            Ok(bytes) => assert!(bytes == model, "taken back"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0, "the older header says less");
    let space = Space::open_on(Media::of(&images).files(), &options).unwrap();
    assert!(content(&space).unwrap() == model);
}

#[test]
fn what_a_device_says_of_an_argument_is_a_failed_write() {
    let sites = ["flex.data.write", "flex.log.write", "flex.node.write", "flex.header.write"];
    for wanted in sites {
        let media = Media::new(1 << 20);
        let mut options = small(11);
        options.format = true;
        let armed = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let refusing = |index: usize| {
            let armed = Arc::clone(&armed);
            Asking::new(Arc::clone(&media.0[index]), move |call| {
                let fires = call.site.name() == wanted
                    && armed.swap(false, std::sync::atomic::Ordering::Relaxed);
                if fires { Err(Error::invalid("write", "said the device")) } else { Ok(()) }
            })
        };
        let files = SpaceFiles { data: refusing(0), tree: refusing(1), log: refusing(2) };
        let space = Space::open_on(files, &options).unwrap();
        space.append(&[1; 3000]).unwrap();
        space.sync().unwrap();
        armed.store(true, std::sync::atomic::Ordering::Relaxed);
        space.append(&[2; 3000]).unwrap();
        assert_eq!(space.checkpoint().unwrap_err().kind(), ErrorKind::Io, "{wanted}");
        assert_eq!(space.sync().unwrap_err().kind(), ErrorKind::ReadOnly, "{wanted}");
        drop(space);
        options.format = false;
        let space = Space::open_on(Media::of(&media.images()).files(), &options).unwrap();
        let bytes = content(&space).unwrap();
        assert!(bytes.starts_with(&[1; 3000]) && [3000, 6000].contains(&bytes.len()), "{wanted}");
        assert_sound(&space);
    }
}

/// Everything that is acknowledged, after each put, and what the devices have by then.
fn history(seed: u64) -> (Vec<Map>, Vec<Vec<Image>>) {
    let devices = Devices::new(seed);
    let store = devices.open(&options(seed)).unwrap();
    let (mut models, mut images) = (vec![], vec![]);
    let mut model = Map::new();
    for n in 0..260_u64 {
        let key = (n * 37 % 101).to_be_bytes().to_vec();
        let value = bytes(n, 150);
        store.put(&key, &value).unwrap();
        model.insert(key, value);
        models.push(model.clone());
        images.push((0..6).map(|index| devices.device(index).image()).collect());
    }
    store.forget();
    (models, images)
}

/// Opens devices of which some lost writes, and compares; whether the loss was told.
fn is_told(images: Vec<Image>, model: &Map, context: &str) -> bool {
    match Devices::with(images, 3).open(&options(9)) {
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupted, "{context}: {error}");
            true
        }
        Ok(store) => {
            let items = store.scan(.., Direction::Forward, usize::MAX);
            let Ok(items) = items else { return true };
            let found: Map = items.into_iter().map(|(key, value)| (key, value.to_vec())).collect();
            assert!(found == *model, "{context}: {} of {}", found.len(), model.len());
            false
        }
    }
}

#[test]
fn a_space_that_lost_its_last_writes_is_not_older_than_its_logs() {
    let (models, images) = history(4);
    let (mut told, mut harmless) = (0, 0);
    for now in 60..images.len() {
        for before in (1..60).chain([90]).filter(|before| *before <= now) {
            let mut mixed = images[now].clone();
            mixed[..3].clone_from_slice(&images[now - before][..3]);
            mixed[5] = images[now - before][5].clone();
            match is_told(mixed, &models[now], &format!("at {now}, {before} before")) {
                true => told += 1,
                false => harmless += 1,
            }
        }
    }
    assert!(told > 100 && harmless > 100, "{told} told, {harmless} harmless");
}

#[test]
fn a_log_that_lost_its_first_write_is_not_taken_for_the_one_before() {
    let (models, images) = history(4);
    let (mut told, mut harmless) = (0, 0);
    for now in 1..images.len() {
        for log in 3..5 {
            // The write that began this log: that of the first block that others followed.
            let whole = images[now][log].to_vec();
            let Some(begun) =
                (0..now).rev().find(|at| images[*at][log].to_vec()[..512] != whole[..512])
            else {
                continue;
            };
            if begun + 1 == now {
                // The last write of all: nothing says that it was there.
                continue;
            }
            let end = images[begun][log].size_bytes();
            let next = images[begun + 1][log].to_vec();
            let old = images[begun][log].to_vec();
            let changed = (0..end as usize / 512).filter(|block| {
                let range = block * 512..(block + 1) * 512;
                next[range.clone()] != old[range]
            });
            let mut lost = images[now].clone();
            for block in changed {
                let at = block * 512;
                // What later writes put there stays.
                if whole[at..at + 512] == next[at..at + 512] {
                    lost[log].write(at as u64, &old[at..at + 512]);
                }
            }
            match is_told(lost, &models[now], &format!("log {log} at {now}")) {
                true => told += 1,
                false => harmless += 1,
            }
        }
    }
    assert!(told > 50, "{told} told, {harmless} harmless");
}

#[test]
fn intervals_out_of_order_are_damage_and_no_panic() {
    for step in [600, 1 << 20] {
        let (devices, model) = filled(Left::Closed);
        let mut options = harm_options();
        options.flex.rebuild_step_bytes = step;
        let devices = devices.again();
        let mut of_space = esker::flex::SpaceOptions::new("");
        of_space.testing = options.flex.space.clone().unwrap();
        of_space.testing.seed = Some(3);
        let space = Space::open_on(devices.files().space, &of_space).unwrap();
        let mut marks = vec![64];
        while marks.len() < 7 {
            marks.push(space.next_mark(marks[marks.len() - 1] + 1).unwrap().unwrap());
        }
        // The fourth and the fifth interval change places, with all their checksums.
        let (start, middle, end) = (marks[3], marks[4], marks[5]);
        let mut whole = vec![0; (end - start) as usize];
        space.read(start, &mut whole).unwrap();
        whole.rotate_left((middle - start) as usize);
        let marks = [0, (end - middle) as usize];
        let splice =
            esker::flex::Splice { offset: start, remove: end - start, data: &whole, marks: &marks };
        space.splice(&splice, &mut || ()).unwrap();
        space.close().unwrap();
        match devices.again().open(&options) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
                assert_eq!(step, 600, "{error}");
            }
            Ok(store) => {
                assert_ne!(step, 600, "each interval is looked up");
                let lost = unread(&store, &model, "out of order");
                assert!(lost > 0, "nobody noticed");
            }
        }
    }
}

/// Nothing else is behind the damage than what came to its interval since, in blocks that are whole: an acknowledged delete of a range
/// counts for that, as each get does.
#[test]
fn a_deleted_range_is_gone_behind_a_damaged_block_of_a_small_interval() {
    let mut options = options(4);
    options.flex.cache_size_bytes = 0;
    let devices = Devices::new(4);
    let store = devices.open(&options).unwrap();
    for n in 0..200_u8 {
        store.put(&[n], &bytes(u64::from(n), 40)).unwrap();
    }
    store.close().unwrap();
    let mut hit = 0;
    for block in 1..devices.device(0).image().size_bytes() / 512 {
        let (_media, files, _) = harmed(&devices, block, Harm::Flip);
        let Ok(store) = Store::open_flex_on(files, &options) else { continue };
        let lost: Vec<u8> = (0..200).filter(|n| store.get(&[*n]).is_err()).collect();
        let have = |value: Option<&[u8]>, words: &str| {
            // Brings the table to the space.
            store.check().unwrap();
            for n in &lost {
                let found = store.get(&[*n]);
                let is_right = match (&found, value) {
                    (Ok(found), _) => found.as_deref() == value,
                    // Of what was there nobody knows when it was written.
                    (Err(_), value) => value.is_none(),
                };
                assert!(is_right, "block {block}, key {n}, {words}: {found:?}");
            }
        };
        for n in &lost {
            store.put(&[*n], b"new").unwrap();
        }
        have(Some(b"new"), "put");
        for n in &lost {
            store.delete_range(&[*n], Some(&[n + 1])).unwrap();
        }
        have(None, "deleted");
        hit += lost.len();
    }
    assert!(hit > 100, "{hit}");
}

/// A device that refuses all reads while this says so.
pub(crate) fn refusing_all(inner: &Arc<SimBlock>) -> (Arc<Asking>, Arc<AtomicBool>) {
    let refuses = Arc::new(AtomicBool::new(false));
    let shared = Arc::clone(&refuses);
    let device = Asking::new(Arc::clone(inner), move |call| {
        match call.act == Act::Read && shared.load(Ordering::Relaxed) {
            true => Err(Error::new(ErrorKind::Io, "read")),
            false => Ok(()),
        }
    });
    (device, refuses)
}

#[test]
fn segments_that_a_device_refused_for_a_while_are_collected_again() {
    let media = Media::new(1 << 20);
    let mut options = small(25);
    options.format = true;
    options.cache_size_bytes = 0;
    let (data, refuses) = refusing_all(&media.0[0]);
    let space = Space::open_on(SpaceFiles { data, ..media.files() }, &options).unwrap();
    for _ in 0..400 {
        space.append(&[1; 400]).unwrap();
    }
    // Of each segment a half is left.
    let mut at = 0;
    while at + 400 <= space.size_bytes() {
        space.collapse_range(at, 200).unwrap();
        at += 200;
    }
    space.checkpoint().unwrap();
    refuses.store(true, Ordering::Relaxed);
    (0..100).for_each(|_| drop(space.collect(4)));
    assert_eq!(space.stat().moved_bytes, 0);
    refuses.store(false, Ordering::Relaxed);
    for _ in 0..300 {
        space.collect(4).unwrap();
    }
    let moved = space.stat().moved_bytes;
    assert!(moved > space.size_bytes() / 2, "{moved} of {} bytes", space.size_bytes());
    assert!(content(&space).unwrap().iter().all(|byte| *byte == 1));
    assert_sound(&space);
}

/// What is nearly empty is worth more than what is nearly full, be it refused once.
#[test]
fn the_emptiest_segments_are_collected_first_again_once_a_device_reads_them() {
    let run = |refuses_first: bool| {
        let media = Media::new(2 << 20);
        let mut options = small(27);
        options.format = true;
        options.cache_size_bytes = 0;
        let (data, refuses) = refusing_all(&media.0[0]);
        let space = Space::open_on(SpaceFiles { data, ..media.files() }, &options).unwrap();
        let payload = 16 * 508;
        for _ in 0..80 {
            space.append(&vec![1; 16 * 508]).unwrap();
        }
        // Of ten segments one extent is left, of the others all but one.
        for segment in (0..80).rev() {
            let gone = if segment % 8 == 0 { payload - 508 } else { 508 };
            space.collapse_range(segment * payload + 508, gone).unwrap();
        }
        space.checkpoint().unwrap();
        refuses.store(refuses_first, Ordering::Relaxed);
        (0..if refuses_first { 6 } else { 0 }).for_each(|_| drop(space.collect(4)));
        refuses.store(false, Ordering::Relaxed);
        let free = space.stat().free_segments;
        let mut rounds = 0;
        while space.stat().free_segments < free + 6 && rounds < 200 {
            space.collect(2).unwrap();
            rounds += 1;
        }
        assert_sound(&space);
        space.stat().moved_bytes
    };
    let (without, with) = (run(false), run(true));
    // For some rounds others are moved; six segments of those alone would take nearly all that there is.
    assert!(without < 10_000 && with < 250_000, "{with} bytes moved instead of {without}");
}
