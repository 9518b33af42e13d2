//! Checkpoints of a `depot` that is in use: what they cover and what overtakes them, under threads and by the background thread.

use crate::support;
use esker::{Durability, EngineKind, ErrorKind, Options, Store};
use esker_base::Error;
use esker_base::rng::Rng;
use esker_format::depot::{SegmentHeader, Stream, Superblock};
use esker_media::BlockDevice;
use esker_media::sim::{Act, Asking, Initial, SimBlock, SimBlockOptions};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

fn options(folder: &Path, durability: Durability) -> Options {
    let mut options = Options::new(folder);
    options.engine = Some(EngineKind::Depot);
    options.size_bytes = 64 << 20;
    options.durability = durability;
    options
}

type Expected = BTreeMap<Vec<u8>, Vec<u8>>;

/// Writes and deletes keys that nobody else does, values of all sizes among them.
fn write(store: &Store, thread: u64, seed: u64, expected: &mut Expected) {
    let mut rng = Rng::from_seed(seed << 8 | thread);
    for _ in 0..1500 {
        let key = format!("{thread}/{}", rng.below(300)).into_bytes();
        if rng.chance(1, 4) {
            assert_eq!(store.delete(&key).unwrap(), expected.remove(&key).is_some());
            continue;
        }
        let size = match rng.below(100) {
            0 => 300_000,
            1..10 => rng.index(8000),
            _ => rng.index(300),
        };
        let mut value = vec![0; size];
        rng.fill(&mut value);
        store.put(&key, &value).unwrap();
        expected.insert(key, value);
    }
}

fn compare(store: &Store, expected: &[Expected]) {
    let all: BTreeMap<_, _> = expected.iter().flatten().collect();
    assert_eq!(store.stats().items, all.len() as u64);
    for (key, value) in all {
        let found = store.get(key).unwrap();
        assert_eq!(found.as_deref(), Some(&value[..]), "{}", String::from_utf8_lossy(key));
    }
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
}

#[test]
fn writers_and_the_cleaner_go_on_while_checkpoints_are_written() {
    for (seed, durability) in [(1, Durability::None), (2, Durability::Sync), (3, Durability::None)]
    {
        let folder = tempfile::tempdir().unwrap();
        let options = options(folder.path(), durability);
        let mut expected = vec![Expected::new(); 4];
        let checkpoints = AtomicU32::new(0);
        for round in 0..4 {
            let store = Store::open(&options).unwrap();
            compare(&store, &expected);
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let writers: Vec<_> = (0..)
                    .zip(&mut expected)
                    .map(|(thread, expected)| {
                        let store = &store;
                        scope.spawn(move || write(store, thread, seed * 10 + round, expected))
                    })
                    .collect();
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        checkpoints
                            .fetch_add(u32::from(store.checkpoint().unwrap()), Ordering::Relaxed);
                        store.clean(2).unwrap();
                    }
                });
                let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
                done.store(true, Ordering::Relaxed);
                results.into_iter().for_each(|result| result.unwrap());
            });
            store.write_out().unwrap();
            // As `kill -9` would.
            store.forget();
        }
        compare(&Store::open(&options).unwrap(), &expected);
        assert!(checkpoints.into_inner() > 8, "seed {seed}");
    }
}

/// Headers of the segments of a store that hold a checkpoint, or a part of one.
pub(crate) fn of_checkpoints(bytes: &[u8]) -> Vec<SegmentHeader> {
    let superblock = Superblock::decode(bytes).unwrap();
    let size = usize::try_from(superblock.segment_size_bytes).unwrap();
    let start = usize::try_from(superblock.data_offset).unwrap();
    let segments = bytes[start..].chunks_exact(size);
    let headers = (0..).map(esker_base::ids::SegmentId).zip(segments).filter_map(|(id, bytes)| {
        let header = bytes.get(..esker_format::depot::SEGMENT_HEADER_SIZE)?;
        SegmentHeader::decode(header, superblock.store_id, id).ok()
    });
    headers.filter(|header| header.stream == Stream::Checkpoint).collect()
}

#[test]
fn the_background_writes_a_checkpoint_while_nobody_writes() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path(), Durability::None);
    let store = Store::open(&options).unwrap();
    for number in 0..120_000_u64 {
        store.put(&(number % 50_000).to_be_bytes(), &number.to_le_bytes()).unwrap();
    }
    let file = folder.path().join("depot.esker");
    let written = (0..300).any(|_| {
        esker_trt::sleep(Duration::from_millis(100));
        !of_checkpoints(&std::fs::read(&file).unwrap()).is_empty()
    });
    assert!(written, "a checkpoint");
    // Nothing is new, or it is still being written.
    assert!(!store.checkpoint().unwrap());
    store.put(b"after it", b"v").unwrap();
    store.write_out().unwrap();
    store.forget();
    let store = Store::open(&options).unwrap();
    assert_eq!(store.stats().items, 50_001);
    for key in 0..50_000_u64 {
        let number = if key < 20_000 { key + 100_000 } else { key + 50_000 };
        let found = store.get(&key.to_be_bytes()).unwrap().unwrap();
        assert_eq!(*found, number.to_le_bytes());
    }
}

/// What a checkpoint says the log says, too: a place of it that the device refuses for ever costs nothing but time, of an open or of a
/// repair.
#[test]
fn a_checkpoint_that_the_device_refuses_to_read_is_done_without() {
    const SIZE: u64 = 512 << 10;
    let sim = Arc::new(SimBlock::new(SimBlockOptions::new(SIZE, 1)));
    let mut small = support::options(1);
    small.durability = Durability::None;
    let store = support::open(&sim, &small).unwrap();
    let keys: Vec<u32> = (0..2500).collect();
    for key in &keys {
        store.put(&key.to_be_bytes(), b"value").unwrap();
    }
    store.close().unwrap();
    drop(store);
    let image = sim.image();
    let bytes = image.to_vec();
    let start = Superblock::decode(&bytes).unwrap().data_offset;
    let segments = of_checkpoints(&bytes);
    assert!(segments.len() > 1, "{segments:?}");
    let (mut opened, mut refused) = (0, 0);
    for segment in segments {
        let base = start + u64::from(segment.segment_id.0) * support::SEGMENT_SIZE;
        for block in (base..base + support::SEGMENT_SIZE).step_by(512) {
            let initial = Initial::Recycled(image.clone());
            let sim = Arc::new(SimBlock::new(SimBlockOptions::new(SIZE, 1).initial(initial)));
            let device = Asking::new(Arc::clone(&sim), move |call| {
                let is_there = call.range.start < block + 512 && block < call.range.end;
                match call.act {
                    Act::Read if is_there => Err(Error::new(ErrorKind::Io, "read").at(block, 512)),
                    _ => Ok(()),
                }
            });
            let device = device as Arc<dyn BlockDevice>;
            match Store::open_on(Arc::clone(&device), &small) {
                Ok(store) => {
                    opened += 1;
                    assert_eq!(store.stats().items, keys.len() as u64);
                    store.forget();
                }
                Err(error) => {
                    refused += 1;
                    assert_eq!(error.kind(), ErrorKind::Io, "{block}: {error}");
                }
            }
            esker::repair_on(device, &small).unwrap();
            let store = support::open(&sim, &small).unwrap();
            for key in &keys {
                assert!(store.get(&key.to_be_bytes()).unwrap().is_some(), "{block}: {key}");
            }
        }
    }
    assert!(opened > 16 && refused > 0, "{opened} opened, {refused} refused");
}
