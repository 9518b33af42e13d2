//! `flex`: what an open makes of what it finds where something cannot be read.

use crate::client::Map;
use crate::flex_damage::{Harm, harm_options, harmed, unread};
use crate::flex_db::Devices;
use crate::flex_whole::bytes;
use esker::{Store, repair_on_flex};

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
    assert!(beginnings > 0 && others > 0, "{beginnings} beginnings, {others} others");
}
