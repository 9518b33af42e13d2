//! `flex`: what a killed process left in the caches of its devices is read by the next one, and is durable then: a power cut that comes
//! later takes nothing of it.

use crate::client::Map;
use crate::flex_db::{Devices, SIZES, files_of, options};
use crate::flex_whole::{bytes, held};
use esker::flex::SpaceFiles;
use esker::{Durability, EngineKind, FlexFiles, Options, Store, repair_on_flex};
use esker_base::rng::Rng;
use esker_base::{Error, ErrorKind};
use esker_media::BlockDevice;
use esker_media::sim::{Act, Asking, Image, Initial, SimBlock, SimBlockOptions, SimDevices};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

/// Files of which nothing gets any further from the `n`-th write or flush on: as far as the process came.
fn killed_at(devices: &SimDevices, n: u64) -> FlexFiles {
    let left = Arc::new(AtomicU64::new(n));
    let device = |index: usize| {
        let left = Arc::clone(&left);
        Asking::new(Arc::clone(&devices.devices()[index]), move |call| {
            let counts = u64::from(matches!(call.act, Act::Write | Act::Flush));
            let before = left.load(Ordering::Relaxed);
            left.store(before.saturating_sub(counts), Ordering::Relaxed);
            if before == 0 { Err(Error::new(ErrorKind::Io, "killed")) } else { Ok(()) }
        }) as Arc<dyn BlockDevice>
    };
    FlexFiles {
        space: SpaceFiles { data: device(0), tree: device(1), log: device(2) },
        logs: [device(3), device(4)],
        index: device(5),
    }
}

/// Works until the process is killed; how many operations it did.
fn work(files: FlexFiles, options: &Options, seed: u64) -> u32 {
    let Ok(store) = Store::open_flex_on(files, options) else { return 0 };
    let mut rng = Rng::from_seed(seed);
    let mut done = 0;
    for n in 0..400 {
        let key = vec![rng.index(60) as u8];
        let size = if rng.chance(1, 30) { 4500 } else { rng.index(200) };
        let worked = match rng.below(40) {
            0..7 => store.delete(&key).map(drop),
            7 => store.delete_range(&key, Some(&[key[0].saturating_add(5)])),
            8 if options.durability != Durability::Sync => store.sync(),
            _ => store.put(&key, &bytes(n, size)).map(drop),
        };
        if worked.is_err() {
            break;
        }
        done += 1;
    }
    store.forget();
    done
}

#[test]
fn what_was_read_and_synced_after_a_kill_is_there_after_a_power_cut() {
    let (mut states, mut pairs) = (0, 0);
    for (durability, seed) in
        [(Durability::Sync, 1), (Durability::Periodic(HOUR), 2), (Durability::None, 3)]
    {
        let mut options = options(seed);
        options.durability = durability;
        for n in (1..700).step_by(7) {
            let context = format!("{durability:?}, killed at {n}");
            let devices = SimDevices::new(6, |index| {
                let (first, most) = SIZES[index];
                let mut options = SimBlockOptions::new(first, seed * 1000 + n);
                options.size_bytes_max = most;
                options
            });
            let done = work(killed_at(&devices, n), &options, n);
            let store = Store::open_flex_on(files_of(devices.devices()), &options);
            let store = match store {
                Ok(store) => store,
                Err(error) => panic!("{context}: {error}"),
            };
            let found: Map = held(&store);
            if durability != Durability::Sync {
                store.sync().unwrap();
            }
            let position = devices.position();
            store.forget();
            let traces = devices.traces();
            for state in 0..6 {
                let cut = SimDevices::cut(&traces, position, n * 10 + state);
                let again = Devices::with(cut, state).open(&options);
                let again = again.unwrap_or_else(|error| panic!("{context}, {state}: {error}"));
                assert!(held(&again) == found, "{context}, {state}: it was read before");
                again.forget();
                states += 1;
            }
            pairs += found.len();
            if done == 400 {
                break;
            }
        }
    }
    assert!(states > 500 && pairs > 2000, "{states} states, {pairs} pairs");
}

#[test]
fn logs_whose_names_were_exchanged_are_refused_and_stay_as_they_are() {
    const LOGS: [&str; 2] = ["flex.wal.0", "flex.wal.1"];
    // As many tables, so that the last one is in either log, and the other one may be blank.
    for tables in 1..4 {
        let folder = tempfile::tempdir().unwrap();
        let mut options = Options::new(folder.path());
        options.engine = Some(EngineKind::Flex);
        options.size_bytes = 64 << 20;
        options.testing.background = false;
        let store = Store::open(&options).unwrap();
        for n in 0..tables {
            store.put(&[n], b"in the space").unwrap();
            store.check().unwrap();
        }
        store.put(b"key", b"in a log").unwrap();
        let expected = held(&store);
        store.forget();
        let [even, odd] = LOGS.map(|name| folder.path().join(name));
        let exchange = || {
            let aside = folder.path().join("aside");
            std::fs::rename(&even, &aside).unwrap();
            std::fs::rename(&odd, &even).unwrap();
            std::fs::rename(&aside, &odd).unwrap();
        };
        let bytes = || [&even, &odd].map(|log| std::fs::read(log).unwrap());
        exchange();
        let before = bytes();
        let refused = [Store::open(&options).map(drop), esker::repair(&options).map(drop)];
        for error in refused.map(Result::unwrap_err) {
            assert_eq!(error.kind(), ErrorKind::Corrupted, "{tables}: {error}");
            assert!(LOGS.iter().any(|name| error.to_string().contains(name)), "{error}");
        }
        assert!(bytes() == before, "{tables}: a log was changed");
        exchange();
        assert!(held(&Store::open(&options).unwrap()) == expected, "{tables}");
    }
}

/// A store that was made where blocks are large, used where they are small, killed, and brought back.
#[test]
fn a_log_with_smaller_blocks_is_refused_and_stays_as_it_is() {
    let mut options = options(2);
    options.flex.memtable_size_bytes = 64 << 10;
    if let Some(space) = &mut options.flex.space {
        space.shape.segment_size_bytes = 32 << 10;
        space.shape.block_size_bytes = 4096;
        space.shape.node_size_bytes = 4096;
        space.shape.log_block_size_bytes = 4096;
    }
    let devices = |images: Option<Vec<Image>>, block_size_bytes: u32| -> Vec<Arc<SimBlock>> {
        let device = |(index, (first, most)): (usize, (u64, u64))| {
            let image = images.as_ref().map(|images| {
                let mut image = images[index].clone();
                image.grow(image.size_bytes().next_multiple_of(4096));
                image
            });
            let size = image.as_ref().map_or(first, Image::size_bytes);
            let mut options = SimBlockOptions::new(size, 1);
            options.initial = image.map_or(Initial::Zeros, Initial::Recycled);
            (options.size_bytes_max, options.block_size_bytes) = (most, block_size_bytes);
            Arc::new(SimBlock::new(options))
        };
        SIZES.into_iter().enumerate().map(device).collect()
    };
    let images = |devices: &[Arc<SimBlock>]| -> Vec<Image> {
        devices.iter().map(|device| device.image()).collect()
    };
    let first = devices(None, 4096);
    Store::open_flex_on(files_of(&first), &options).unwrap().close().unwrap();
    // The first batches may be whole blocks of the large ones.
    for sizes in [&[100][..], &[3900], &[3900, 100], &[3900, 100, 100, 3900], &[5000, 20, 700]] {
        let small = devices(Some(images(&first)), 512);
        let store = Store::open_flex_on(files_of(&small), &options).unwrap();
        let mut known = Map::new();
        for (key, size) in (0..9_u8).zip(sizes.iter().cycle()) {
            let value = bytes(u64::from(key), *size);
            store.put(&[key], &value).unwrap();
            known.insert(vec![key], value);
        }
        store.forget();
        let large = devices(Some(images(&small)), 4096);
        let before = images(&large);
        match Store::open_flex_on(files_of(&large), &options) {
            Ok(store) => assert!(held(&store) == known, "{sizes:?}: acknowledged, and gone"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{sizes:?}: {error}");
                let error = repair_on_flex(files_of(&large), &options).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{sizes:?}: {error}");
                for (now, before) in images(&large)[3..5].iter().zip(&before[3..5]) {
                    assert!(now.to_vec() == before.to_vec(), "{sizes:?}: a log was changed");
                }
                // Where blocks are small it is sound; from there it may go on.
                let small = devices(Some(images(&large)), 512);
                let store = Store::open_flex_on(files_of(&small), &options).unwrap();
                assert!(held(&store) == known, "{sizes:?}");
                store.close().unwrap();
                let large = devices(Some(images(&small)), 4096);
                let store = Store::open_flex_on(files_of(&large), &options).unwrap();
                assert!(held(&store) == known, "{sizes:?}");
            }
        }
    }
}
