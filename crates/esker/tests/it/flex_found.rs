//! `flex`: what an open makes of what it finds where something cannot be read.

use crate::client::Map;
use crate::flex_damage::{Harm, Left, filled, harm_options, harmed, unread};
use crate::flex_db::Devices;
use crate::flex_whole::bytes;
use esker::{ErrorKind, Store, repair_on_flex};
use esker_base::rng::Rng;
use esker_media::BlockDevice as _;

#[test]
fn runs_behind_a_beginning_that_is_damaged_are_read_and_repaired() {
    const ALL: u8 = 24;
    let devices = Devices::new(4);
    let mut options = harm_options();
    options.flex.interval_pairs_max = 64;
    options.flex.interval_size_bytes_max = 16 << 10;
    let store = devices.open(&options).unwrap();
    let mut model = Map::new();
    let mut put = |n: u8, round: u64| {
        let value = bytes(u64::from(n) + round * 100, 200);
        store.put(&[n], &value).unwrap();
        model.insert(vec![n], value);
    };
    (0..ALL).for_each(|n| put(n, 0));
    store.check().unwrap();
    // Each is a run by itself, behind what was there.
    let later: Vec<u8> = (1..6).map(|round| round * 4).collect();
    for (round, n) in (1..).zip(&later) {
        put(*n, round);
        put(n + 1, round);
        store.check().unwrap();
    }
    store.forget();
    // Those before may have been written anew, together with what was there.
    let is_later = |key: &[u8]| later[3..].iter().any(|n| key == [*n] || key == [n + 1]);
    let blocks = devices.device(0).image().size_bytes() / 512;
    let (mut beginnings, mut others) = (0, 0);
    for block in 0..blocks {
        let (damaged, files, _) = harmed(&devices, block, Harm::Flip);
        let Ok(store) = Store::open_flex_on(files, &options) else { continue };
        let context = format!("block {block}");
        unread(&store, &model, &context);
        let lost: Vec<&Vec<u8>> = model.keys().filter(|key| store.get(key).is_err()).collect();
        let of_later = lost.iter().filter(|key| is_later(key)).count();
        beginnings += u32::from(of_later == 0 && lost.len() > 10);
        others += u32::from(of_later > 0);
        store.forget();
        let images = damaged.iter().map(|device| device.image()).collect();
        let devices = Devices::with(images, 79);
        repair_on_flex(devices.files(), &options).unwrap();
        let store = devices.open(&options).unwrap();
        for (key, value) in &model {
            let found = store.get(key).unwrap().map(|value| value.to_vec());
            let is_told = !is_later(key) || lost.contains(&key);
            assert!(found.as_ref() == Some(value) || is_told, "{context}: {key:?} after a repair");
        }
    }
    // Only the block that the later runs stand in costs those.
    assert!(beginnings > 5 && others == 1, "{beginnings} beginnings, {others} others");
}

/// A store that was killed while one table filled and the one before was on its way to the space: both are in its logs.
fn two_tables() -> (Devices, Map) {
    let devices = Devices::new(5);
    let store = devices.open(&harm_options()).unwrap();
    let (mut model, mut rng) = (Map::new(), Rng::from_seed(5));
    for n in 0..3000 {
        let key = vec![rng.index(200) as u8];
        let value = bytes(n, 150);
        store.put(&key, &value).unwrap();
        model.insert(key, value);
    }
    store.forget();
    (devices, model)
}

#[test]
fn a_block_that_a_device_refuses_lets_a_store_open_for_reading_where_a_table_cannot_come_to_the_space()
 {
    let (devices, model) = two_tables();
    let blocks = devices.device(0).image().size_bytes() / 512;
    let (mut read_only, mut closed) = (0, 0);
    for block in 0..blocks {
        let context = format!("block {block}");
        let (media, files, refused) = harmed(&devices, block, Harm::Refusal);
        let mut options = harm_options();
        options.testing.seed = Some(block);
        let store = match Store::open_flex_on(files, &options) {
            Ok(store) => store,
            Err(error) => {
                // The root is in it.
                assert_eq!(error.kind(), ErrorKind::Io, "{context}: {error}");
                closed += 1;
                continue;
            }
        };
        unread(&store, &model, &context);
        if store.stats().read_only.is_some() {
            read_only += 1;
            let error = store.put(b"key", b"value").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ReadOnly, "{context}: {error}");
            assert!(store.close().is_err(), "{context}: it is not all in the space");
            drop(store);
        } else {
            store.forget();
        }
        *refused.lock() = 0..0;
        let images = media.iter().map(|device| device.image()).collect();
        let again = Devices::with(images, 78).open(&options);
        let again = again.unwrap_or_else(|error| panic!("{context}, again: {error}"));
        assert_eq!(unread(&again, &model, &context), 0, "{context}: the device reads it again");
        again.put(b"key", b"value").unwrap();
    }
    assert!(read_only > 0 && closed <= 2, "{read_only} read-only, {closed} refused");
}

#[test]
fn an_open_reads_little_of_each_large_value_whatever_its_key() {
    const VALUES: u8 = 80;
    let devices = Devices::new(2);
    let mut options = harm_options();
    options.flex.large_value_size_bytes = 1000;
    options.flex.rebuild_threads = 3;
    let key = |n: u8| [vec![n], vec![n; if n.is_multiple_of(30) { 3000 } else { 8 }]].concat();
    let value = |n: u8| bytes(u64::from(n), 6000);
    let store = devices.open(&options).unwrap();
    for n in 0..VALUES {
        store.put(&key(n), &value(n)).unwrap();
    }
    store.close().unwrap();
    drop(store);
    let devices = devices.again();
    let store = devices.open(&options).unwrap();
    let read = devices.device(0).counters().read_bytes;
    assert!(read < u64::from(VALUES) * 4096, "{read} bytes");
    for n in 0..VALUES {
        assert_eq!(store.get(&key(n)).unwrap().as_deref(), Some(&value(n)[..]));
    }
    assert!(store.check().unwrap().is_sound());
}

#[test]
fn a_store_that_was_not_closed_says_that_it_has_not_counted_its_items() {
    let (devices, model) = filled(Left::Killed);
    let store = devices.open(&harm_options()).unwrap();
    assert!(store.stats().has_more_items, "{:?}", store.stats());
    // Who is asked to clean looks at all, and then knows that there is nothing left to look at.
    for _ in 0..2 {
        store.clean(1).unwrap();
    }
    assert_eq!((store.stats().items, store.stats().has_more_items), (model.len() as u64, false));
    store.close().unwrap();
    let store = devices.again().open(&harm_options()).unwrap();
    assert_eq!((store.stats().items, store.stats().has_more_items), (model.len() as u64, false));
}
