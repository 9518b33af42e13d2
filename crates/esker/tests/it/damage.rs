//! Damaged media: found, named, never returned as data.

use crate::support::{DEVICE_SIZE, SEGMENT_SIZE, device, flip_on, open, options};
use esker::{Batch, ErrorKind};
use esker_base::rng::Rng;
use esker_media::sim::{Image, Initial, SimBlock, SimBlockOptions};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How a history ends, or goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The store is dropped: a clean stop without a checkpoint.
    Left,
    /// It is dropped, and there is a checkpoint of a while ago.
    Overtaken,
    Closed,
}

/// Keys that a history has a part of.
const KEYS: u64 = 40;

fn name(number: u64) -> Vec<u8> {
    format!("key{number}").into_bytes()
}

/// A store with some history, and what it holds. It was cleaned last, so that the last batches of the cleaner's streams count.
fn populated(seed: u64, end: End) -> (Image, BTreeMap<Vec<u8>, Vec<u8>>) {
    let device = device(seed);
    let store = open(&device, &options(seed)).unwrap();
    let mut rng = Rng::from_seed(seed);
    let mut model = BTreeMap::new();
    for n in 0..120u32 {
        let key = name(rng.below(KEYS));
        // Some of them in extents.
        let mut value = vec![0; if n % 30 == 7 { 2500 } else { rng.index(600) }];
        rng.fill(&mut value);
        value.extend_from_slice(&n.to_le_bytes());
        if rng.chance(1, 4) {
            assert_eq!(store.delete(&key).unwrap(), model.remove(&key).is_some());
        } else if rng.chance(1, 8) {
            let other = name(rng.below(KEYS));
            store.write(Batch::new().put(&key, &value).delete(&other)).unwrap();
            model.insert(key.clone(), value);
            model.remove(&other);
        } else {
            store.put(&key, &value).unwrap();
            model.insert(key, value);
        }
        if n == 95 && end == End::Overtaken {
            store.clean(64).unwrap();
            assert!(store.checkpoint().unwrap());
        }
    }
    store.clean(1).unwrap();
    if end == End::Closed {
        store.close().unwrap();
    }
    drop(store);
    (device.image(), model)
}

fn reopened(image: &Image) -> Arc<SimBlock> {
    let options = SimBlockOptions::new(DEVICE_SIZE, 1).initial(Initial::Recycled(image.clone()));
    Arc::new(SimBlock::new(options))
}

#[test]
fn no_flipped_bit_is_ever_returned_as_data_or_takes_a_key_away_in_silence() {
    let (refused, harmless) = flip_everywhere(End::Left);
    assert!(refused > 500 && harmless > 1000, "{refused} refused, {harmless} harmless");
}

#[test]
fn no_flipped_bit_hides_behind_a_checkpoint() {
    // What is damaged in the log is not read at open: its records say so when they are. The segment in which the log goes on is read.
    let (refused, harmless) = flip_everywhere(End::Closed);
    let of_a_segment = (SEGMENT_SIZE / 7) as u32;
    assert!(refused < of_a_segment && harmless > 1000, "{refused} refused, {harmless} harmless");
}

#[test]
fn no_flipped_bit_hides_behind_a_checkpoint_that_is_overtaken() {
    let (refused, harmless) = flip_everywhere(End::Overtaken);
    assert!(refused > 100 && harmless > 1000, "{refused} refused, {harmless} harmless");
}

/// Flips a bit of every seventh byte, or as `ESKER_FLIP_STEP` says; returns how often the store was refused, and how often not.
fn flip_everywhere(end: End) -> (u32, u32) {
    let (image, model) = populated(1, end);
    let mut rng = Rng::from_seed(99);
    let (mut refused, mut harmless) = (0, 0);
    let step = std::env::var("ESKER_FLIP_STEP").ok().and_then(|step| step.parse().ok());
    let absent: Vec<_> = (0..KEYS).map(name).filter(|key| !model.contains_key(key)).collect();
    assert!(absent.len() > 2 && model.len() > 15);
    for offset in (0..DEVICE_SIZE).step_by(step.unwrap_or(7)) {
        let mut damaged = image.clone();
        damaged.flip(offset, u32::try_from(rng.below(8)).unwrap());
        let store = match open(&reopened(&damaged), &options(5)) {
            Ok(store) => store,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupted, "offset {offset}: {error}");
                refused += 1;
                continue;
            }
        };
        for (key, value) in &model {
            match store.get(key) {
                Ok(found) => assert_eq!(
                    found.as_deref(),
                    Some(&value[..]),
                    "offset {offset}: a wrong answer for {}",
                    String::from_utf8_lossy(key)
                ),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupted, "offset {offset}"),
            }
        }
        for key in &absent {
            match store.get(key) {
                Ok(found) => assert!(found.is_none(), "offset {offset}: {key:?} is back"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupted, "offset {offset}"),
            }
        }
        let walked: esker::Result<BTreeMap<_, _>> =
            store.iter().map(|item| item.map(|(key, value)| (key, value.to_vec()))).collect();
        if let Ok(walked) = walked {
            assert!(walked == model, "offset {offset}");
        }
        harmless += 1;
    }
    (refused, harmless)
}

#[test]
fn damage_under_an_open_store_is_an_error_for_the_records_it_hit() {
    let (image, model) = populated(2, End::Closed);
    let device = reopened(&image);
    let store = open(&device, &options(6)).unwrap();
    let mut rng = Rng::from_seed(3);
    let damaged: Vec<u64> = (0..200).map(|_| 8192 + rng.below(DEVICE_SIZE - 8192)).collect();
    damaged.iter().for_each(|offset| flip_on(&device, *offset));
    let mut hit = 0;
    for (key, value) in &model {
        match store.get(key) {
            Ok(found) => assert_eq!(found.as_deref(), Some(&value[..])),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupted);
                assert!(error.range().is_some(), "{error}");
                hit += 1;
            }
        }
    }
    assert!(hit > 0);
    let (met, unread): (Vec<_>, Vec<_>) = store.iter().partition(Result::is_ok);
    assert_eq!((met.len(), unread.len()), (model.len() - hit, hit), "a walk goes on behind damage");
    for (key, value) in met.into_iter().flatten() {
        assert_eq!(model.get(&key).map(Vec::as_slice), Some(&*value));
    }
    for error in unread.into_iter().filter_map(Result::err) {
        assert_eq!(error.kind(), ErrorKind::Corrupted);
        assert!(error.range().is_some(), "{error}");
    }
    let report = store.check().unwrap();
    assert!(report.problems.len() >= hit, "{:?}", report.problems);
}

#[test]
fn either_superblock_copy_is_enough_and_the_other_is_repaired() {
    for (first, second) in [(0, 4096), (4096, 0)] {
        let (image, model) = populated(3, End::Closed);
        let mut damaged = image.clone();
        damaged.flip(first + 20, 1);
        let device = reopened(&damaged);
        let store = open(&device, &options(7)).unwrap();
        assert_eq!(store.iter().count(), model.len());
        drop(store);
        let mut damaged = device.image();
        damaged.flip(second + 20, 1);
        let store = open(&reopened(&damaged), &options(7)).unwrap();
        assert_eq!(store.iter().count(), model.len());
    }
}

#[test]
fn random_images_are_refused_without_panic() {
    let mut rng = Rng::from_seed(4);
    let (image, _) = populated(4, End::Closed);
    for round in 0..300 {
        let mut bytes = image.to_vec();
        // Keep the superblock, so that the rest is looked at.
        for _ in 0..rng.below(2000) {
            let offset = 8192 + rng.index(bytes.len() - 8192);
            rng.fill(&mut bytes[offset..offset + 1]);
        }
        let device = reopened(&Image::from_bytes(&bytes));
        match open(&device, &options(8)) {
            Ok(store) => {
                let _ = store.check().unwrap();
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupted, "round {round}: {error}"),
        }
    }
}

fn holds(store: &esker::Store, model: &BTreeMap<Vec<u8>, Vec<u8>>) -> bool {
    model.iter().all(|(key, value)| match store.get(key) {
        Ok(found) => found.as_deref() == Some(&value[..]),
        Err(error) => panic!("{error}"),
    })
}

/// Where the last barrier stands, if there is one.
fn barrier(image: &Image) -> Option<u64> {
    let mut block = [0; 512];
    let blocks = (0..DEVICE_SIZE).step_by(block.len()).filter_map(|at| {
        image.read(at, &mut block);
        let sequence = u64::from_le_bytes(block[24..32].try_into().unwrap());
        let is_barrier = block.starts_with(b"ESKB") && block[20..24] == [2, 0, 0, 0];
        is_barrier.then_some((sequence, at))
    });
    blocks.max().map(|(_, at)| at)
}

/// The mark of a clean end is damaged, which costs no record. The next session goes on elsewhere, and what follows that
/// session finds nothing missing.
#[test]
fn a_damaged_end_of_a_session_costs_no_later_one() {
    for loses in [false, true] {
        // Where there is no room for the mark, the segment is completed.
        let closed = (21..).map(|seed| populated(seed, End::Closed));
        let mut marked = closed.filter_map(|(image, model)| Some((barrier(&image)?, image, model)));
        let (at, mut image, mut model) = marked.next().unwrap();
        if loses {
            image.write(at, &[0; 512]);
        } else {
            image.flip(at + 30, 3);
        }
        for session in 0..3_u8 {
            let device = reopened(&image);
            let store = open(&device, &options(30 + u64::from(session))).unwrap();
            assert!(holds(&store, &model), "session {session}");
            for number in 0..25_u8 {
                let (key, value) = (vec![session, number], vec![session; 500]);
                store.put(&key, &value).unwrap();
                model.insert(key, value);
            }
            store.forget();
            image = device.image();
        }
        let store = open(&reopened(&image), &options(40)).unwrap();
        assert!(holds(&store, &model));
        assert!(store.check().unwrap().is_sound());
    }
}

/// The first copy of a segment's header is one of an earlier life, as if a write had never reached the medium.
#[test]
fn an_old_copy_of_a_header_hides_no_record() {
    let device = device(22);
    let store = open(&device, &options(22)).unwrap();
    let (mut rng, mut model) = (Rng::from_seed(22), BTreeMap::new());
    let mut images = Vec::new();
    for step in 0..600_u32 {
        let key = format!("key{}", rng.below(40)).into_bytes();
        let mut value = vec![0; rng.index(600)];
        rng.fill(&mut value);
        store.put(&key, &value).unwrap();
        model.insert(key, value);
        if step % 100 == 99 {
            images.push(device.image().to_vec());
        }
    }
    store.forget();
    let newest = images.pop().unwrap();
    let base = DEVICE_SIZE as usize % crate::support::SEGMENT_SIZE as usize;
    let starts = (base..newest.len()).step_by(crate::support::SEGMENT_SIZE as usize);
    let mut tried = 0;
    for start in starts {
        for old in &images {
            let header = start..start + 512;
            if !old[start..].starts_with(b"ESKS") || old[header.clone()] == newest[header.clone()] {
                continue;
            }
            let mut damaged = Image::from_bytes(&newest);
            damaged.write(start as u64, &old[header]);
            tried += 1;
            match open(&reopened(&damaged), &options(23)) {
                Ok(store) => assert!(holds(&store, &model), "segment at {start}"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}"),
            }
        }
    }
    assert!(tried > 20, "{tried}");
}
