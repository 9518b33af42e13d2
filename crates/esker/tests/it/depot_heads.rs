//! Headers of `depot`'s segments: what only they say is not lost with them, and damage to them costs nothing in silence.

use crate::backup;
use crate::support::{DEVICE_SIZE, SEGMENT_SIZE, device, open, options};
use esker::{Durability, ErrorKind, Store, repair_on};
use esker_base::Error;
use esker_media::BlockDevice;
use esker_media::sim::{Act, Asking, Image, Initial, SimArchive, SimBlock, SimBlockOptions};
use std::sync::Arc;

const HEADER_START: [u8; 4] = *b"ESKS";

fn reopened(image: &Image) -> Arc<SimBlock> {
    let options = SimBlockOptions::new(DEVICE_SIZE, 1).initial(Initial::Recycled(image.clone()));
    Arc::new(SimBlock::new(options))
}

/// A store that was cleared, so that the record of that is one of the last of its segment, or the last.
fn cleared(more: u32, with_checkpoint: bool) -> (Image, u64) {
    let device = device(u64::from(more));
    let store = open(&device, &options(3)).unwrap();
    let put = |number: u32| store.put(&number.to_be_bytes(), &[7; 300]).unwrap().0;
    (0..40).for_each(|number| assert!(put(number) > 0));
    if with_checkpoint {
        assert!(store.checkpoint().unwrap());
    }
    let last = (40..40 + more).fold(0, |_, number| put(number));
    store.clear().unwrap();
    drop(store);
    (device.image(), last)
}

#[test]
fn a_trim_forgets_neither_a_clear_nor_versions() {
    let mut fell = 0;
    for more in 0..20 {
        let (image, _) = cleared(more, false);
        let device = reopened(&image);
        let store = open(&device, &options(4)).unwrap();
        let before = store.stats().last_version;
        store.trim().unwrap();
        drop(store);
        let store = open(&device, &options(5)).unwrap();
        assert_eq!(store.stats().items, 0, "{more}");
        fell += u32::from(store.stats().last_version < before);
        let version = store.put(b"key", b"value").unwrap();
        assert!(version > before, "{more}: {version:?} was given before, {before:?} is known");
    }
    assert_eq!(fell, 0);
}

#[test]
fn a_power_cut_during_a_trim_brings_nothing_back_that_was_cleared() {
    let mut states = 0;
    for (more, with_checkpoint) in (0..20).flat_map(|more| [(more, false), (more, true)]) {
        let (image, last) = cleared(more, with_checkpoint);
        let device = reopened(&image);
        let store = open(&device, &options(4)).unwrap();
        store.trim().unwrap();
        drop(store);
        let trace = device.trace();
        let mut replay = trace.replay();
        while replay.step() {
            for state in replay.states(2, replay.position()) {
                let store = open(&reopened(&state.image()), &options(5)).unwrap();
                let words = format!("{more}, {with_checkpoint}, point {}", replay.position());
                assert_eq!(store.stats().items, 0, "{words}");
                assert!(store.put(b"key", b"value").unwrap().0 > last, "{words}");
                states += 1;
            }
        }
    }
    assert!(states > 1000, "{states} states");
}

#[test]
fn a_repair_that_is_cut_off_brings_nothing_back_that_was_cleared() {
    let mut repairs = 0;
    for more in 0..10 {
        let (image, _) = cleared(more, false);
        // What counts, behind the clear, is damaged: nothing is copied elsewhere.
        let device = reopened(&image);
        let store = open(&device, &options(4)).unwrap();
        store.put(&[1], &[1; 40]).unwrap();
        store.forget();
        let bytes = device.image().to_vec();
        let place = bytes.windows(40).position(|bytes| bytes == [1; 40]).unwrap();
        let mut damaged = Image::from_bytes(&bytes);
        damaged.flip(place as u64, 2);
        let device = reopened(&damaged);
        repair_on(Arc::clone(&device) as Arc<dyn BlockDevice>, &options(6)).unwrap();
        repairs += 1;
        let trace = device.trace();
        let mut replay = trace.replay();
        while replay.step() {
            for state in replay.states(2, replay.position()) {
                let device = reopened(&state.image());
                repair_on(Arc::clone(&device) as Arc<dyn BlockDevice>, &options(7)).unwrap();
                let store = open(&device, &options(8)).unwrap();
                let words = format!("{more}, point {}", replay.position());
                assert!(store.stats().items <= 1, "{words}");
                assert!(store.get(&40_u32.to_be_bytes()).unwrap().is_none(), "{words}");
                assert!(store.get(&1_u32.to_be_bytes()).unwrap().is_none(), "{words}");
            }
        }
    }
    assert_eq!(repairs, 10);
}

/// Places of whole headers: of each segment both copies.
fn headers(image: &Image) -> Vec<[u64; 2]> {
    let bytes = image.to_vec();
    let begins = |at: &usize| bytes[*at..].starts_with(&HEADER_START);
    let places: Vec<usize> = (8192..bytes.len()).step_by(512).filter(begins).collect();
    let pairs = places.windows(2).filter(|pair| pair[1] - pair[0] == SEGMENT_SIZE as usize - 512);
    pairs.map(|pair| [pair[0] as u64, pair[1] as u64]).collect()
}

fn filled() -> (Image, Vec<u32>) {
    let device = device(9);
    let store = open(&device, &options(9)).unwrap();
    let keys: Vec<u32> = (0..90).collect();
    for key in &keys {
        store.put(&key.to_be_bytes(), &[3; 300]).unwrap();
    }
    store.forget();
    (device.image(), keys)
}

fn count(store: &Store, keys: &[u32]) -> usize {
    keys.iter().filter(|key| store.get(&key.to_be_bytes()).unwrap().is_some()).count()
}

#[test]
fn a_segment_with_two_damaged_headers_is_not_free_in_silence() {
    let (image, keys) = filled();
    let places = headers(&image);
    assert!(places.len() > 3, "{places:?}");
    for [one, other] in places {
        // Anywhere but in the number of the store, which tells it from what stood there before.
        for at in [2, 6, 24, 29, 40, 60, 120] {
            let mut damaged = image.clone();
            damaged.flip(one + at, 1);
            damaged.flip(other + at, 1);
            let error = open(&reopened(&damaged), &options(10)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupted, "{one}, {at}: {error}");
            assert!(error.to_string().contains("both headers of segment"), "{error}");
            let device = reopened(&damaged);
            let report =
                repair_on(Arc::clone(&device) as Arc<dyn BlockDevice>, &options(11)).unwrap();
            assert_eq!(report.damaged_segments, 1, "{report:?}");
            let store = open(&device, &options(12)).unwrap();
            let left = count(&store, &keys);
            assert!(left < keys.len() && left > 40, "{left}");
            assert!(store.check().unwrap().is_sound());
            store.put(b"goes on", b"v").unwrap();
        }
    }
}

#[test]
fn a_damaged_copy_of_a_header_is_told_and_written_anew() {
    let (image, keys) = filled();
    for place in headers(&image).concat() {
        let mut damaged = image.clone();
        damaged.flip(place + 40, 1);
        let device = reopened(&damaged);
        let store = open(&device, &options(13)).unwrap();
        assert_eq!(count(&store, &keys), keys.len());
        assert!(store.check().unwrap().is_sound(), "{place}: an open mends it");
        crate::support::flip_on(&device, place + 40);
        let problems = store.check().unwrap().problems;
        assert!(problems.iter().any(|it| it.contains("copy of the header")), "{problems:?}");
        store.forget();
    }
}

/// How many headers stand in an image, in all places.
fn copies(image: &Image) -> usize {
    let bytes = image.to_vec();
    (8192..bytes.len()).step_by(512).filter(|at| bytes[*at..].starts_with(&HEADER_START)).count()
}

/// One that was lost, or never written: the other one alone is one fault from the loss of its segment.
#[test]
fn a_copy_of_a_header_that_is_missing_is_written_anew() {
    let (image, keys) = filled();
    let all = copies(&image);
    for place in headers(&image).concat() {
        let mut without = image.clone();
        without.write(place, &[0; 512]);
        assert_eq!(copies(&without), all - 1);
        let device = reopened(&without);
        let store = open(&device, &options(13)).unwrap();
        assert_eq!(count(&store, &keys), keys.len());
        store.forget();
        assert_eq!(copies(&device.image()), all, "{place}");
    }
}

/// A place that can be read, and not be written to.
#[test]
fn a_copy_of_a_header_that_cannot_be_written_anew_keeps_no_store_from_being_read() {
    let (image, keys) = filled();
    let places = headers(&image).concat();
    // Of `None`, the open writes the header anew in whose segment the log goes on.
    let durabilities = [Durability::Sync, Durability::None];
    for (place, durability) in places.iter().flat_map(|at| durabilities.map(|how| (*at, how))) {
        let mut options = options(13);
        options.durability = durability;
        let mut without = image.clone();
        without.write(place, &[0; 512]);
        let device = Asking::new(reopened(&without), move |call| match call.act {
            Act::Write if call.range.contains(&place) => {
                Err(Error::new(ErrorKind::Io, "write").at(place, 512))
            }
            _ => Ok(()),
        });
        let store = Store::open_on(device as Arc<dyn BlockDevice>, &options).unwrap();
        assert_eq!(count(&store, &keys), keys.len());
        store.forget();
    }
}

#[test]
fn a_restore_writes_both_copies_of_each_header() {
    for count in [3, 30, 60] {
        let (_, store, model) = backup::filled(u64::from(count), count);
        let archive = SimArchive::new();
        backup::backup(&store, &archive).unwrap();
        let device = device(16);
        esker::restore_on(&archive, &*device, &options(16)).unwrap();
        let image = device.image();
        assert_eq!(copies(&image), 2 * headers(&image).len(), "of {count} pairs");
        for place in headers(&image).concat() {
            let mut lost = image.clone();
            lost.write(place, &[0; 512]);
            let store = open(&reopened(&lost), &options(17)).unwrap();
            assert_eq!(backup::held(&store), model, "{count}, {place}");
        }
    }
}

/// Of the header that a session writes once more, one copy never reached the medium.
#[test]
fn an_old_copy_of_a_header_gives_no_version_again() {
    let device = device(15);
    let mut options = options(15);
    options.durability = esker::Durability::None;
    let store = open(&device, &options).unwrap();
    store.put(b"key", b"value").unwrap();
    store.sync().unwrap();
    store.forget();
    let before = device.image().to_vec();
    let store = open(&device, &options).unwrap();
    // Seen by somebody, and on no medium.
    let seen = (0..50_u8).fold(store.put(b"key", b"seen").unwrap(), |_, number| {
        store.put(&[number], b"seen").unwrap()
    });
    store.forget();
    let image = device.image();
    let after = image.to_vec();
    for copy in headers(&image).concat() {
        let place = usize::try_from(copy).unwrap();
        let mut old = image.clone();
        old.write(copy, &before[place..place + 128]);
        assert!(
            after[place..place + 128] != before[place..place + 128],
            "it was written once more"
        );
        let store = open(&reopened(&old), &options).unwrap();
        let given = store.put(b"other", b"value").unwrap();
        assert!(given > seen, "{given:?} was given before, {seen:?} is known");
        store.forget();
    }
}

#[test]
fn a_damaged_record_is_no_error_of_a_key_that_looks_like_it() {
    for mask in [0, 7] {
        let device = device(14);
        let mut options = options(14);
        options.testing.hash_mask = mask;
        let store = open(&device, &options).unwrap();
        let key = |number: u8| vec![b'k', number];
        for number in 0..20 {
            store.put(&key(number), &[number + 100; 60]).unwrap();
        }
        let bytes = device.image().to_vec();
        let place = bytes.windows(60).position(|bytes| bytes == [105; 60]).unwrap();
        crate::support::flip_on(&device, place as u64);
        let refused = |error: esker::Error| assert_eq!(error.kind(), ErrorKind::Corrupted);
        for number in 0..20 {
            match number {
                5 => refused(store.get(&key(number)).unwrap_err()),
                _ => assert_eq!(store.get(&key(number)).unwrap().unwrap()[..], [number + 100; 60]),
            }
        }
        // Its own writes are refused: nobody knows what it had. Others are not.
        refused(store.delete(&key(5)).unwrap_err());
        store.put(&key(6), b"new").unwrap();
        assert!(store.delete(&key(7)).unwrap());
        store.write(esker::Batch::new().put(&key(8), b"new").delete(&key(9))).unwrap();
        for (number, there) in [(6, true), (7, false), (8, true), (9, false)] {
            let found = store.get(&key(number)).unwrap();
            assert_eq!(found.as_deref(), there.then_some(&b"new"[..]), "{number}");
        }
        store.forget();
        // A repair finds the same, and what was written beside it.
        repair_on(Arc::clone(&device) as Arc<dyn BlockDevice>, &options).unwrap();
        let store = open(&device, &options).unwrap();
        assert_eq!(store.get(&key(6)).unwrap().as_deref(), Some(&b"new"[..]));
        assert!(store.get(&key(5)).unwrap().is_none() && store.get(&key(7)).unwrap().is_none());
        assert_eq!(store.get(&key(10)).unwrap().unwrap()[..], [110; 60]);
    }
}
