//! Repairs: what can be read is kept, what cannot is gone, and nothing that was known to be replaced
//! comes back.

use crate::support::{DEVICE_SIZE, SEGMENT_SIZE, device, open, options};
use esker::{Batch, Error, ErrorKind, RepairReport, Store, repair_on};
use esker_base::rng::Rng;
use esker_format::depot::{BatchHeader, BatchKind, SegmentHeader};
use esker_media::sim::{Act, Asking, Image, Initial, SimBlock, SimBlockOptions};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// All values that each key had, the newest last; `None` where it was deleted.
type History = BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>;

/// A store with some history, closed or just left, of records of all kinds and moved ones.
fn populated(seed: u64, close: bool) -> (Image, History) {
    let device = device(seed);
    let store = open(&device, &options(seed)).unwrap();
    let mut rng = Rng::from_seed(seed);
    let mut history = History::new();
    for n in 0..220_u32 {
        let key = format!("key{}", rng.below(40)).into_bytes();
        let values = history.entry(key.clone()).or_default();
        if rng.chance(1, 8) {
            store.delete(&key).unwrap();
            values.push(None);
        } else {
            let mut value = vec![0; if n % 30 == 7 { 2500 } else { rng.index(600) }];
            rng.fill(&mut value);
            value.extend_from_slice(&n.to_le_bytes());
            store.put(&key, &value).unwrap();
            values.push(Some(value));
        }
        if n % 40 == 39 {
            store.clean(2).unwrap();
        }
    }
    if close {
        store.close().unwrap();
    }
    drop(store);
    (device.image(), history)
}

/// As [`populated`], of batches with many records, by two sessions.
fn batched(seed: u64, close: bool) -> (Image, History) {
    let device = device(seed);
    let mut rng = Rng::from_seed(seed);
    let mut history = History::new();
    for session in 0..2 {
        let store = open(&device, &options(seed + session)).unwrap();
        for round in 0..14 {
            let mut batch = Batch::new();
            for n in 0..12 {
                let key = format!("key{}", (round * 12 + n) % 40).into_bytes();
                let values = history.entry(key.clone()).or_default();
                if rng.chance(1, 10) {
                    batch.delete(&key);
                    values.push(None);
                } else {
                    let mut value = vec![0; 4 + rng.index(120)];
                    rng.fill(&mut value);
                    batch.put(&key, &value);
                    values.push(Some(value));
                }
            }
            store.write(&batch).unwrap();
            if round % 5 == 4 {
                store.clean(1).unwrap();
            }
        }
        if session == 0 || close {
            store.close().unwrap();
        }
    }
    (device.image(), history)
}

fn reopened(image: &Image) -> Arc<SimBlock> {
    let options = SimBlockOptions::new(DEVICE_SIZE, 1).initial(Initial::Recycled(image.clone()));
    Arc::new(SimBlock::new(options))
}

/// What a repaired store may hold. Returns how many keys lack their newest value.
fn judge(store: &Store, history: &History, report: &RepairReport, at: &str) -> u64 {
    let mut lacking = 0;
    for (key, values) in history {
        let newest = values.last().cloned().flatten();
        let found = store.get(key).expect(at).map(|value| value.to_vec());
        if found == newest {
            continue;
        }
        lacking += 1;
        if report.damaged_segments == 0 {
            assert_eq!(found, None, "{at}: an older value of {}", String::from_utf8_lossy(key));
        } else {
            assert!(found.is_none() || values.contains(&found), "{at}: never written");
        }
    }
    assert_eq!(store.check().expect(at).problems, Vec::<String>::new(), "{at}");
    lacking
}

/// Repairs an image, and opens it as any other store. Returns what was lost.
fn mended(image: &Image, history: &History, at: &str) -> (RepairReport, u64) {
    let device = reopened(image);
    let report = repair_on(device.clone(), &options(5)).unwrap_or_else(|e| panic!("{at}: {e}"));
    let again = repair_on(device.clone(), &options(6)).expect(at);
    let nothing = RepairReport { records: again.records, ..RepairReport::default() };
    assert_eq!(again, nothing, "{at}: it is sound");
    let store = open(&device, &options(7)).unwrap_or_else(|error| panic!("{at}: {error}"));
    let lacking = judge(&store, history, &report, at);
    assert!(store.put(b"new", b"1").is_ok() && store.delete(b"new").unwrap(), "{at}");
    (report, lacking)
}

#[test]
fn a_sound_store_is_not_changed() {
    for close in [true, false] {
        let (image, history) = populated(1, close);
        let (report, lacking) = mended(&image, &history, "sound");
        assert_eq!((report.records_lost, report.records_moved, lacking), (0, 0, 0));
        assert!(report.records > 30 && report.damaged_segments == 0);
    }
}

#[test]
fn one_flipped_bit_costs_no_more_than_the_record_it_hit() {
    for (close, batches) in [(true, false), (false, false), (true, true), (false, true)] {
        let (image, history) = if batches { batched(2, close) } else { populated(2, close) };
        let mut rng = Rng::from_seed(99);
        let (mut lost, mut moved, mut hidden) = (0, 0, 0);
        for offset in (0..DEVICE_SIZE).step_by(if batches { 61 } else { 97 }) {
            let mut damaged = image.clone();
            damaged.flip(offset, u32::try_from(rng.below(8)).unwrap());
            let at = format!("closed {close}, batches {batches}, offset {offset}");
            let (report, lacking) = mended(&damaged, &history, &at);
            assert!(lacking <= 1, "{at}: {lacking} keys for one bit, {report:?}");
            if report.damaged_segments == 0 {
                assert!(lacking <= report.records_lost, "{at}: {report:?}");
            }
            lost += report.records_lost;
            moved += report.records_moved;
            hidden += report.damaged_segments;
        }
        // The open segments have no summaries; a checkpoint tells what stood there, if the key can be read.
        assert!(moved > 500 && hidden > 0, "{moved} moved, {hidden} hidden");
        assert!(lost > 30 || !close, "{lost} lost");
    }
}

#[test]
fn a_damaged_barrier_costs_nothing() {
    let mut barriers = 0;
    for seed in 2..8 {
        let (image, history) = batched(seed, false);
        let bytes = image.to_vec();
        let kind_at = |at: usize| BatchHeader::peek(bytes.get(at..)?, 512).ok().map(|h| h.kind);
        // That of a session that wrote behind it.
        let begins = |at: &usize| {
            kind_at(*at) == Some(BatchKind::Barrier)
                && kind_at(at + 512) == Some(BatchKind::Records)
        };
        for at in (8192..bytes.len()).step_by(512).filter(begins) {
            barriers += 1;
            for offset in at..at + 48 {
                let mut damaged = image.clone();
                damaged.flip(offset as u64, 3);
                let at = format!("seed {seed}, offset {offset}");
                let (report, lacking) = mended(&damaged, &history, &at);
                assert_eq!((lacking, report.damaged_segments), (0, 0), "{at}: {report:?}");
            }
        }
    }
    assert!(barriers > 0);
}

#[test]
fn a_damaged_barrier_of_a_session_that_was_killed_costs_nothing() {
    let device = device(13);
    let mut history = History::new();
    let mut image = None;
    for session in 0..2_u8 {
        let store = open(&device, &options(13 + u64::from(session))).unwrap();
        for n in 0..4_u8 {
            let key = if session == 0 { n % 2 } else { n };
            store.put(&[key], &[session, n]).unwrap();
            history.entry(vec![key]).or_default().push(Some(vec![session, n]));
        }
        if session == 0 {
            store.close().unwrap();
        }
        // Of the second one, before anything marks its end.
        image = Some(device.image());
    }
    let image = image.unwrap();
    let last = usize::try_from(end_mark(&image)).unwrap();
    let behind = BatchHeader::peek(&image.to_vec()[last + 512..], 512).unwrap();
    assert_eq!(behind.kind, BatchKind::Records, "the second session's");
    for offset in last..last + 48 {
        let mut damaged = image.clone();
        damaged.flip(offset as u64, 3);
        let (report, lacking) = mended(&damaged, &history, &format!("offset {offset}"));
        assert_eq!((lacking, report.damaged_segments), (0, 0), "offset {offset}: {report:?}");
    }
}

/// Where the last barrier stands, the one with the highest number: the mark of the end that closing a store leaves.
fn end_mark(image: &Image) -> u64 {
    let bytes = image.to_vec();
    let barriers = (8192..bytes.len()).step_by(512).filter_map(|at| {
        let header = BatchHeader::peek(&bytes[at..], 512).ok()?;
        (header.kind == BatchKind::Barrier).then_some((header.first_sequence, at as u64))
    });
    barriers.max().unwrap().1
}

#[test]
fn a_damaged_end_is_no_torn_one_after_a_clean_stop() {
    let (image, history) = populated(6, true);
    let bytes = image.to_vec();
    let mark = end_mark(&image);
    let ends_there = |at: &u64| {
        let header = BatchHeader::peek(&bytes[usize::try_from(*at).unwrap()..], 512);
        header.is_ok_and(|header| at + u64::from(header.total_bytes) == mark)
    };
    let last = (8192..mark).step_by(512).filter(ends_there).last().unwrap();
    let mut damaged = image.clone();
    damaged.flip(mark + 20, 1);
    open(&reopened(&damaged), &options(5)).expect("nothing but the mark is missing");
    damaged.flip(last + 20, 1);
    let error = open(&reopened(&damaged), &options(5)).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
    // The checkpoint says how far the log was, and the header alone of that batch was damaged.
    let (report, lacking) = mended(&damaged, &history, "both");
    assert!(report.damaged_segments == 0 && lacking == 0, "{report:?}, {lacking} lacking");
}

#[test]
fn much_damage_leaves_a_sound_store() {
    let mut kept = 0;
    for seed in 0..60 {
        let closed = seed % 2 == 0;
        let (image, history) = populated(3, closed);
        let mut damaged = image.clone();
        let mut rng = Rng::from_seed(seed);
        // Spared where the store was not closed: a log whose last batch and mark of the end are both damaged looks as if a
        // power cut had torn it then.
        let spared = if closed { 0..0 } else { end_mark(&image)..end_mark(&image) + 512 };
        for _ in 0..=rng.below(60) {
            let at = 8192 + rng.below(DEVICE_SIZE - 8192);
            if !spared.contains(&at) {
                damaged.flip(at, 1);
            }
        }
        let (_, lacking) = mended(&damaged, &history, &format!("seed {seed}"));
        kept += history.len() as u64 - lacking;
    }
    assert!(kept > 1000, "{kept} keys kept");
}

/// Also where damaged segments hold nothing, and what is moved out of others could go there.
#[test]
fn damage_in_many_segments_costs_no_more_than_that_in_each() {
    let mut moved = 0;
    for seed in 0..12 {
        let closed = seed % 2 == 0;
        let (image, history) = match seed % 4 < 2 {
            true => populated(seed, closed),
            false => batched(seed, closed),
        };
        let mut rng = Rng::from_seed(seed);
        for round in 0..10 {
            let at = format!("seed {seed}, round {round}");
            let (mut damaged, mut costs) = (image.clone(), 0);
            for segment in 0..DEVICE_SIZE / SEGMENT_SIZE {
                if rng.chance(1, 2) {
                    let mut alone = image.clone();
                    let offset = segment * SEGMENT_SIZE + rng.below(SEGMENT_SIZE);
                    let bit = u32::try_from(rng.below(8)).unwrap();
                    [&mut damaged, &mut alone]
                        .into_iter()
                        .for_each(|image| image.flip(offset, bit));
                    costs += mended(&alone, &history, &at).1;
                }
            }
            let (report, lacking) = mended(&damaged, &history, &at);
            assert!(lacking <= costs, "{at}: {lacking} keys instead of {costs}, {report:?}");
            moved += u64::from(report.records_moved > 0);
        }
    }
    assert!(moved > 60, "{moved}");
}

/// A closed store whose log has some dead segments in its middle, and where values of it are.
fn with_dead_segments() -> (Image, History, impl Fn(u8, u8) -> u64) {
    let device = device(1);
    let store = open(&device, &options(1)).unwrap();
    let mut history = History::new();
    let value = |name: u8, number: u8| {
        let mut value = vec![number; 500];
        value[0] = name;
        value
    };
    for (name, is_again) in [(b'x', 0), (b'f', 0), (b'y', 0), (b'f', 100)] {
        for number in 0..if name == b'f' { 18 } else { 12 } {
            let (key, value) = (vec![name, number], value(name, number + is_again));
            store.put(&key, &value).unwrap();
            history.entry(key).or_default().push(Some(value));
        }
    }
    store.close().unwrap();
    drop(store);
    let image = device.image();
    let of = image.clone();
    let offset_of = move |name: u8, number: u8| {
        let (value, mut found) = (value(name, number), [0; 500]);
        let is_it = |offset: &u64| {
            of.read(*offset, &mut found);
            found == *value
        };
        (0..DEVICE_SIZE - 500).find(is_it).unwrap()
    };
    (image, history, offset_of)
}

/// What is moved out of the first one could go to the dead one beside it, and what follows as well.
#[test]
fn a_damaged_segment_without_live_records_is_in_use_again_only_once_it_is_mended() {
    let (image, history, offset_of) = with_dead_segments();
    let mut moved = 0;
    for dead in [1, 8].map(|number| offset_of(b'f', number) / SEGMENT_SIZE * SEGMENT_SIZE) {
        for offset in (dead..dead + SEGMENT_SIZE).step_by(61) {
            let mut damaged = image.clone();
            let lost = [(b'x', 3), (b'y', 7)].map(|(name, number)| offset_of(name, number) + 250);
            lost.into_iter().chain([offset]).for_each(|offset| damaged.flip(offset, 1));
            let (report, lacking) = mended(&damaged, &history, &format!("offset {offset}"));
            assert_eq!((report.records_lost, lacking), (2, 2), "offset {offset}: {report:?}");
            moved += report.records_moved;
        }
    }
    assert!(moved > 200, "{moved}");
}

#[test]
fn a_repair_that_is_cut_off_can_be_done_again() {
    let made = [populated(4, false), batched(5, true)];
    let mut rng = Rng::from_seed(7);
    let mut states = 0;
    for round in 0..12 {
        let (image, history) = &made[round % 2];
        let mut damaged = image.clone();
        for _ in 0..4 {
            damaged.flip(8192 + rng.below(DEVICE_SIZE - 8192), 1);
        }
        let device = reopened(&damaged);
        let report = repair_on(device.clone(), &options(5)).unwrap();
        let trace = device.trace();
        // On a copy: an open writes as well.
        let repaired = open(&reopened(&device.image()), &options(7)).unwrap();
        let all = judge(&repaired, history, &report, &format!("round {round}, whole"));
        let mut replay = trace.replay();
        while replay.step() {
            for state in replay.states(4, replay.position()) {
                let at = format!("round {round}, point {}", replay.position());
                let device = reopened(&state.image());
                repair_on(device.clone(), &options(6)).unwrap_or_else(|e| panic!("{at}: {e}"));
                let store = open(&device, &options(7)).expect(&at);
                let lacking = judge(&store, history, &report, &at);
                assert!(lacking <= all, "{at}: {lacking} keys, {all} of a whole repair");
                states += 1;
            }
        }
    }
    assert!(states > 200, "{states} states");
}

#[test]
fn a_device_without_a_store_is_refused() {
    let error = repair_on(device(9), &options(9)).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let (image, _) = populated(5, true);
    let mut damaged = image.clone();
    damaged.flip(20, 1);
    damaged.flip(4096 + 20, 1);
    let error = repair_on(reopened(&damaged), &options(9)).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
}

/// What a repair of a cache has moved is evicted like the rest.
#[test]
fn a_cache_evicts_what_a_repair_has_moved() {
    const COUNT: u32 = 90;
    let mut options = options(61);
    options.cache = true;
    let device = device(61);
    let store = open(&device, &options).unwrap();
    // Half of them replace others, some are in extents.
    for n in 0..COUNT {
        let size = if n % 9 == 4 { 2500 } else { 300 };
        store.put(format!("key{:03}", n % 60).as_bytes(), &vec![1; size]).unwrap();
    }
    store.close().unwrap();
    let mut image = device.image();
    for offset in (8192..DEVICE_SIZE).step_by(9001) {
        image.flip(offset, 3);
    }
    let device = reopened(&image);
    let report = repair_on(Arc::clone(&device) as Arc<_>, &options).unwrap();
    assert!(report.records_moved > 20, "{report:?}");
    for checkpoint in [true, false] {
        let device = reopened(&device.image());
        let store = open(&device, &options).unwrap();
        if !checkpoint {
            // So that the next open reads the log.
            store.put(b"more", b"").unwrap();
            store.forget();
        }
        let store = open(&device, &options).unwrap();
        assert!(store.stats().items > 20);
        while store.evict(usize::MAX).unwrap() > 0 {}
        // But for what is in the open segment.
        assert!(store.stats().items <= 1, "{:?}", store.stats());
        assert_eq!(store.check().unwrap().problems, Vec::<String>::new());
    }
}

/// A device with an image, of which one block is refused until it is written.
fn refusing(image: &Image, block: u64) -> Arc<Asking> {
    let is_refused = AtomicBool::new(true);
    Asking::new(reopened(image), move |call| {
        let meets = call.range.start < block + BLOCK && block < call.range.end;
        match call.act {
            Act::Read if meets && is_refused.load(Ordering::SeqCst) => {
                Err(Error::new(ErrorKind::Io, "read"))
            }
            Act::Write if meets => {
                is_refused.store(false, Ordering::SeqCst);
                Ok(())
            }
            _ => Ok(()),
        }
    })
}

const BLOCK: u64 = 512;

#[test]
fn a_block_that_is_never_read_costs_no_more_than_what_stands_in_it() {
    for (close, batches) in [(true, false), (false, false), (true, true), (false, true)] {
        let (image, history) = if batches { batched(2, close) } else { populated(2, close) };
        // A block has so many records at most, beside its batch.
        let most = if batches { 12 } else { 3 };
        let (mut lost, mut kept) = (0, 0);
        for block in (0..DEVICE_SIZE / BLOCK).map(|number| number * BLOCK) {
            let at = format!("closed {close}, batches {batches}, block at {block}");
            let device = refusing(&image, block);
            let repair = |seed| repair_on(Arc::clone(&device) as Arc<_>, &options(seed));
            let report = repair(5).unwrap_or_else(|error| panic!("{at}: {error}"));
            repair(6).unwrap_or_else(|error| panic!("{at}, again: {error}"));
            let store = Store::open_on(Arc::clone(&device) as Arc<_>, &options(7)).expect(&at);
            let lacking = judge(&store, &history, &report, &at);
            assert!(lacking <= most, "{at}: {lacking} keys, {report:?}");
            lost += lacking;
            kept += history.len() as u64 - lacking;
        }
        assert!(lost > 0 && kept > 100 * lost, "{lost} lost, {kept} kept");
    }
}

/// The last batches before a kill: one of several blocks, the first one of a segment, and the cleaner's.
#[test]
fn a_repair_tells_of_a_block_that_is_never_read_at_the_end_of_a_log() {
    let (mut lacked, mut told) = (0, 0);
    for (more, size) in (0..8).flat_map(|more| [(more, 300), (more, 900)]) {
        let device = device(more);
        let store = open(&device, &options(more)).unwrap();
        let mut history = History::new();
        for number in 0..40 + u8::try_from(more).unwrap() {
            let key = vec![number % 16];
            let value = vec![number; size];
            store.put(&key, &value).unwrap();
            history.entry(key).or_default().push(Some(value));
        }
        if more % 4 == 3 {
            store.clean(3).unwrap();
        }
        store.forget();
        let image = device.image();
        for block in (0..DEVICE_SIZE / BLOCK).map(|number| number * BLOCK) {
            let at = format!("{more} more of {size}, block at {block}");
            let device = refusing(&image, block);
            let report = repair_on(Arc::clone(&device) as Arc<_>, &options(5)).expect(&at);
            let store = Store::open_on(Arc::clone(&device) as Arc<_>, &options(7)).expect(&at);
            let lacking = judge(&store, &history, &report, &at);
            let is_told = report.damaged_segments + report.records_lost > 0;
            assert!(is_told || lacking == 0, "{at}: {lacking} keys, and nobody says so");
            lacked += lacking;
            told += u64::from(is_told);
        }
    }
    assert!(lacked > 50 && told > lacked, "{lacked} keys, told {told} times");
}

#[test]
fn a_header_that_is_neither_read_nor_written_keeps_nothing_else_from_repair() {
    let (image, history, offset_of) = with_dead_segments();
    // Not one of those that are taken at once, for the log and for what is moved.
    let dead = offset_of(b'f', 14) / SEGMENT_SIZE * SEGMENT_SIZE;
    let is_header = |block: &u64| {
        let mut magic = [0; 512];
        image.read(*block, &mut magic);
        SegmentHeader::is_one(&magic)
    };
    let headers: Vec<u64> = (dead..dead + SEGMENT_SIZE).step_by(512).filter(is_header).collect();
    assert_eq!(headers.len(), 2);
    for header in headers {
        let mut damaged = image.clone();
        damaged.flip(offset_of(b'x', 3) + 250, 1);
        let device = Asking::new(reopened(&damaged), move |call| {
            let meets = call.range.start < header + BLOCK && header < call.range.end;
            match call.act {
                Act::Read | Act::Write if meets => Err(Error::new(ErrorKind::Io, "read or write")),
                _ => Ok(()),
            }
        });
        let error = repair_on(Arc::clone(&device) as Arc<_>, &options(5)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        assert!(error.to_string().contains("1 records lost"), "{error}");
        let (report, lacking) = mended(&device.inner().image(), &history, "on another device");
        assert_eq!((report.records_lost, report.records_moved, lacking), (0, 0, 1), "{report:?}");
    }
}

#[test]
fn a_device_that_refuses_everything_loses_nothing() {
    let (image, history) = populated(2, false);
    let reads = Arc::new(AtomicU64::new(0));
    let repair_with = |left: u64| {
        let (counted, met) = (AtomicU64::new(0), Arc::clone(&reads));
        let device = Asking::new(reopened(&image), move |call| {
            if call.act != Act::Read {
                return Ok(());
            }
            met.fetch_add(1, Ordering::SeqCst);
            match counted.fetch_add(1, Ordering::SeqCst) < left {
                true => Ok(()),
                false => Err(Error::new(ErrorKind::Io, "read")),
            }
        });
        let repaired = repair_on(Arc::clone(&device) as Arc<_>, &options(5));
        (repaired, device.inner().image())
    };
    repair_with(u64::MAX).0.unwrap();
    let all = reads.load(Ordering::SeqCst);
    assert!(all > 50, "{all} reads");
    for left in 0..all {
        let (repaired, image) = repair_with(left);
        let error = repaired.expect_err("everything is refused");
        assert_eq!(error.kind(), ErrorKind::Io, "behind {left} reads: {error}");
        let (report, lacking) = mended(&image, &history, &format!("behind {left} reads"));
        assert_eq!((report.records_lost, lacking), (0, 0), "behind {left} reads");
    }
}
