//! What a repair makes of little damage, with little room, and beside what is older.

use super::super::repair::repair;
use super::super::restore::restore;
use super::*;
use crate::check::RepairReport;
use crate::engine::Engine;
use crate::engine::backup::Backup;
use crate::options::Progress;
use crate::value::Condition;
use esker_base::SiteKind;
use esker_format::flat::{CHUNK_HEADER_SIZE, CLEAR_OFFSETS, LINE, SESSION_OFFSET};
use esker_media::sim::SimArchive;

const KINDS: [EngineKind; 2] = [EngineKind::FlatCceh, EngineKind::FlatMasstree];
const DAMAGE: Site = Site::new("test.damage", SiteKind::Write);
const LARGE_CHUNK: u64 = 64 << 10;

fn options_of(engine: EngineKind) -> Options {
    let mut options = options(engine);
    options.testing.cores = Some(1);
    options.testing.segment_size_bytes = Some(LARGE_CHUNK);
    options.testing.background = false;
    options
}

fn blank(chunks: u64) -> Arc<SimPm> {
    Arc::new(SimPm::new(SimPmOptions::new(chunks * LARGE_CHUNK, 1)))
}

fn opened(memory: &Arc<SimPm>, engine: EngineKind) -> Arc<Flat> {
    Flat::open(Arc::clone(memory) as Arc<dyn Pmem>, &options_of(engine)).unwrap()
}

fn repaired(memory: &Arc<SimPm>, engine: EngineKind) -> RepairReport {
    repair(&(Arc::clone(memory) as Arc<dyn Pmem>), &options_of(engine)).unwrap()
}

fn crash(store: Arc<Flat>) {
    store.abandon();
    drop(store);
}

fn put_of(store: &Flat, key: &[u8], value: &[u8]) -> Result<()> {
    store.put_value(key, value, Attributes::default(), Condition::Always).map(drop)
}

fn get(store: &Flat, key: &[u8]) -> Option<Vec<u8>> {
    store.get_value(key, &mut |_| Ok(())).unwrap().map(|value| value.to_vec())
}

/// Where the entry of a key stands.
fn place(store: &Flat, key: &[u8]) -> super::super::layout::Place {
    let word = store.find(store.hasher.hash(key), key).unwrap().unwrap();
    super::super::layout::Place::of(word)
}

/// Where the record of a key stands.
fn record(store: &Flat, key: &[u8]) -> u64 {
    let word = store.find(store.hasher.hash(key), key).unwrap().unwrap();
    store.record_of(word, store.chunks.now()).unwrap().unwrap().unwrap() * LINE as u64
}

fn damage(memory: &SimPm, offset: u64, length: usize) {
    memory.store(DAMAGE, offset, &vec![0xA5; length]).unwrap();
}

#[test]
fn records_of_a_chunk_without_a_header_are_written_anew() {
    for engine in KINDS {
        let memory = blank(16);
        let store = opened(&memory, engine);
        let key = |number: u8| match number < 10 {
            true => vec![b'k', number],
            false => [&[number; 299][..], b"!"].concat(),
        };
        (0..12).for_each(|number| put_of(&store, &key(number), &[number; 700]).unwrap());
        // One over several chunks.
        let large = vec![9; 150_000];
        put_of(&store, b"large", &large).unwrap();
        let chunk = store.layout.chunk_of(record(&store, &key(0)));
        let of_long = store.layout.chunk_of(record(&store, &key(11)));
        let of_large = store.layout.chunk_of(record(&store, b"large"));
        let starts = [chunk, of_long, of_large].map(|chunk| store.layout.start_of(chunk));
        crash(store);
        starts.iter().for_each(|start| damage(&memory, *start, 128));
        let report = repaired(&memory, engine);
        assert_eq!(report.records_lost, 0, "{engine}: {report:?}");
        let store = opened(&memory, engine);
        for number in 0..12 {
            assert_eq!(get(&store, &key(number)), Some(vec![number; 700]), "{engine}, {number}");
        }
        assert!(get(&store, b"large") == Some(large), "{engine}");
        crash(store);
    }
}

#[test]
fn a_repair_of_a_full_store_keeps_what_is_whole_of_a_damaged_batch() {
    for engine in KINDS {
        let memory = blank(16);
        let store = opened(&memory, engine);
        let key = |number: u32| number.to_be_bytes().repeat(3);
        let mut count = 0;
        while put_of(&store, &key(count), &[7; 40]).is_ok() {
            count += 1;
        }
        store.close_store().unwrap();
        drop(store);
        let store = opened(&memory, engine);
        let damaged = [count / 5, count / 2];
        let batches = damaged.map(|number| place(&store, &key(number)).batch_offset());
        store.close_store().unwrap();
        drop(store);
        // Its checksum: the entries are whole.
        batches.iter().for_each(|offset| damage(&memory, *offset, 2));
        let report = repaired(&memory, engine);
        assert!(report.records_lost == 0 && report.damaged_segments == 2, "{engine}: {report:?}");
        let store = opened(&memory, engine);
        for number in 0..count {
            assert!(get(&store, &key(number)).is_some(), "{engine}: {number} of {count}");
        }
        assert!(store.delete_key(&key(1), Condition::Present).is_ok(), "deletes go on");
        crash(store);
    }
}

#[test]
fn a_checkpoint_from_before_a_repair_does_not_come_back() {
    for engine in KINDS {
        let memory = blank(60);
        let store = opened(&memory, engine);
        let fill = |from: u16| {
            for number in from..from + 700 {
                put_of(&store, &number.to_be_bytes().repeat(3), &[1; 60]).unwrap();
            }
        };
        // Chunks that are free before the checkpoint's, and taken first later.
        let before: Vec<u32> = (0..4).map(|_| store.chunks.take(1, For::Puts).unwrap()).collect();
        put_of(&store, b"key", b"old").unwrap();
        fill(0);
        fill(1000);
        put_of(&store, b"key", b"new").unwrap();
        let new = place(&store, b"key");
        fill(2000);
        assert!(store.write_checkpoint().unwrap());
        before.iter().for_each(|chunk| store.chunks.add_free(*chunk));
        put_of(&store, b"more", b"more").unwrap();
        crash(store);
        damage(&memory, new.offset, 2);
        repaired(&memory, engine);
        let store = opened(&memory, engine);
        assert_eq!(get(&store, b"key").as_deref(), Some(&b"old"[..]), "{engine}: what is lost");
        put_of(&store, b"another", b"value").unwrap();
        crash(store);
        let store = opened(&memory, engine);
        assert_eq!(get(&store, b"key").as_deref(), Some(&b"old"[..]), "{engine}: it was read");
        crash(store);
    }
}

#[test]
fn a_line_of_the_root_that_is_lost_costs_no_store() {
    let [first, second] = CLEAR_OFFSETS;
    for (engine, lost) in KINDS.into_iter().flat_map(|engine| {
        [vec![SESSION_OFFSET], vec![first], vec![second]].map(|lost| (engine, lost))
    }) {
        for is_clean in [false, true] {
            let memory = blank(16);
            let store = opened(&memory, engine);
            put_of(&store, b"key", b"value").unwrap();
            if is_clean {
                store.close_store().unwrap();
            }
            crash(store);
            for _ in 0..2 {
                lost.iter().for_each(|offset| memory.poison(*offset, LINE as u64));
                let store = opened(&memory, engine);
                assert_eq!(get(&store, b"key").as_deref(), Some(&b"value"[..]), "{engine}");
                crash(store);
                // What was lost is written anew.
                let mut line = [0; LINE];
                lost.iter().for_each(|offset| memory.read(*offset, &mut line).unwrap());
            }
        }
    }
}

#[test]
fn a_restore_writes_lost_lines_of_the_root_whole() {
    let [first, second] = CLEAR_OFFSETS;
    for engine in KINDS {
        for lost in [vec![SESSION_OFFSET], vec![first, second], vec![SESSION_OFFSET, first, second]]
        {
            let (memory, archive) = (blank(16), SimArchive::new());
            let store = opened(&memory, engine);
            put_of(&store, b"key", b"value").unwrap();
            store.backup_store(&archive, &Progress::default()).unwrap();
            crash(store);
            lost.iter().for_each(|offset| memory.poison(*offset, LINE as u64));
            let backup = Backup::open(&archive).unwrap();
            restore(&backup, &*memory, true, &Progress::default()).unwrap();
            let store = opened(&memory, engine);
            assert_eq!(get(&store, b"key").as_deref(), Some(&b"value"[..]), "{engine}, {lost:?}");
            crash(store);
        }
    }
}

#[test]
fn one_copy_of_a_header_that_is_lost_costs_nothing() {
    let copies = [0, CHUNK_HEADER_SIZE as u64];
    for (engine, copy) in KINDS.into_iter().flat_map(|it| copies.map(|copy| (it, copy))) {
        for repairs in [false, true] {
            let memory = blank(16);
            let store = opened(&memory, engine);
            put_of(&store, b"key", b"value").unwrap();
            put_of(&store, b"long", &[4; 700]).unwrap();
            let chunks = [place(&store, b"key").offset, record(&store, b"long")];
            let chunks = chunks.map(|offset| store.layout.start_of(store.layout.chunk_of(offset)));
            crash(store);
            for start in chunks {
                memory.poison(start + copy, CHUNK_HEADER_SIZE as u64);
            }
            if repairs {
                let report = repaired(&memory, engine);
                assert_eq!((report.damaged_segments, report.records_lost), (0, 0), "{engine}");
            }
            let store = opened(&memory, engine);
            assert_eq!(get(&store, b"key").as_deref(), Some(&b"value"[..]), "{engine}, {copy}");
            assert_eq!(get(&store, b"long"), Some(vec![4; 700]), "{engine}, {copy}");
            crash(store);
            // Both are there again.
            for start in chunks {
                memory.read(start, &mut [0; 2 * CHUNK_HEADER_SIZE]).unwrap();
            }
        }
    }
}
