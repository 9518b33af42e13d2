//! `flex` behind media that say something else for a while, or have something of another store: nothing comes back, and nothing is given up.

use crate::flex_damage::refusing;
use crate::flex_db::{Devices, options};
use crate::flex_whole::bytes;
use esker::flex::SpaceFiles;
use esker::{ErrorKind, FlexFiles, Options, Progress, Store, repair_on_flex};
use esker_media::sim::{FaultKind, FaultPlan, Image, SimArchive, Trigger};

fn uncached(seed: u64) -> Options {
    let mut options = options(seed);
    options.flex.cache_size_bytes = 0;
    options
}

fn images_of(devices: &Devices) -> Vec<Image> {
    (0..6).map(|index| devices.device(index).image()).collect()
}

/// What was saved of its index would be there still, and says whose it was.
#[test]
fn a_repair_of_a_new_store_does_not_take_it_for_the_one_before() {
    let devices = Devices::new(4);
    let store = devices.open(&uncached(4)).unwrap();
    for n in 0..60_u8 {
        store.put(&[b'a', n], &bytes(n.into(), 60)).unwrap();
    }
    let archive = SimArchive::new();
    store.backup_to(&archive, &Progress::default()).unwrap();
    store.close().unwrap();
    let devices = Devices::with(images_of(&devices), 5);
    let mut options = uncached(5);
    options.format = true;
    let store = devices.open(&options).unwrap();
    for n in 0..4_u8 {
        store.put(&[b'b', n], b"new").unwrap();
    }
    store.forget();
    let images = images_of(&devices);
    let mut hit = 0;
    for block in 0..images[0].size_bytes() / 512 {
        let mut damaged = images.clone();
        damaged[0].write(block * 512, &[0; 512]);
        let devices = Devices::with(damaged, 6);
        if devices.open(&uncached(6)).is_ok() {
            continue;
        }
        hit += 1;
        repair_on_flex(devices.files(), &uncached(6)).unwrap();
        let store = devices.open(&uncached(6)).unwrap();
        assert!((0..60_u8).all(|n| store.get(&[b'a', n]).unwrap().is_none()), "block {block}");
        let error = store.backup_to(&archive, &Progress::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "block {block}: {error}");
    }
    assert!(hit > 0, "the root is somewhere");
}

/// As a cable or a controller turns them; the medium is right.
#[test]
fn a_bit_that_turns_over_on_its_way_to_an_open_costs_no_key() {
    let devices = Devices::new(6);
    let store = devices.open(&uncached(6)).unwrap();
    for n in 0..90_u8 {
        store.put(&[n % 40], &bytes(n.into(), 90)).unwrap();
    }
    store.forget();
    let images = images_of(&devices);
    let (mut told, mut harmless) = (0, 0);
    for index in 0..6 {
        for nth in 1.. {
            let devices = Devices::with(images.clone(), nth);
            let plan = FaultPlan::none().with(FaultKind::ReadFlip, Trigger::Nth(nth));
            devices.device(index).set_faults(plan);
            let opened = devices.open(&uncached(7));
            if devices.device(index).faults_fired() == 0 {
                break;
            }
            match opened {
                Err(_) => told += 1,
                Ok(store) => {
                    harmless += 1;
                    for n in 50..90_u8 {
                        let at = format!("file {index}, read {nth}, key {}", n % 40);
                        let found = store.get(&[n % 40]).expect(&at);
                        assert_eq!(found.as_deref(), Some(&bytes(n.into(), 90)[..]), "{at}");
                    }
                }
            }
        }
    }
    assert!(told > 10 && harmless > 0, "{told} told, {harmless} harmless");
}

#[test]
fn a_repair_keeps_large_values_whose_heads_a_device_refuses_for_a_while() {
    let devices = Devices::new(2);
    let options = uncached(2);
    let value = |n: u8| bytes(n.into(), if n % 5 == 1 { 3000 } else { 80 });
    let store = devices.open(&options).unwrap();
    for n in 0..40_u8 {
        store.put(&[n], &value(n)).unwrap();
    }
    store.close().unwrap();
    let images = images_of(&devices);
    let (mut ended, mut refusals) = (0, 0);
    for block in 0..images[0].size_bytes() / 512 {
        let devices = Devices::with(images.clone(), 3);
        let (data, refused) = refusing(&devices.shared(0), block * 512..block * 512 + 512);
        let files = || {
            let files = devices.files();
            FlexFiles { space: SpaceFiles { data: data.clone(), ..files.space }, ..files }
        };
        let Ok(report) = repair_on_flex(files(), &options) else { continue };
        ended += 1;
        let store = Store::open_flex_on(files(), &options).unwrap();
        let is_refused = (0..40_u8).filter(|n| store.get(&[*n]).is_err()).count();
        refusals += is_refused;
        store.close().unwrap();
        *refused.lock() = 0..0;
        let store = Store::open_flex_on(files(), &options).unwrap();
        for n in (0..40_u8).filter(|n| n % 5 == 1) {
            let found = store.get(&[n]).unwrap();
            assert_eq!(found.as_deref(), Some(&value(n)[..]), "block {block}, key {n}: {report:?}");
        }
    }
    assert!(ended > 50 && refusals > 8, "{ended}, {refusals}");
}
