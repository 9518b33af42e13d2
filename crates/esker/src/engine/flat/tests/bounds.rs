//! What nobody has room for takes nothing of others, and what nobody needs is not kept.

use super::super::chunks::Use;
use super::super::layout::Place;
use super::super::pack::Packer;
use super::super::recover::read_header;
use super::*;
use crate::value::Condition;
use std::collections::HashSet;

const KINDS: [EngineKind; 2] = [EngineKind::FlatCceh, EngineKind::FlatMasstree];

fn memory(chunks: u64, chunk_size: u64) -> Arc<dyn Pmem> {
    Arc::new(SimPm::new(SimPmOptions::new(chunks * chunk_size, 1)))
}

/// A store with one log.
fn open(
    memory: &Arc<dyn Pmem>,
    engine: EngineKind,
    chunk_size: u64,
) -> (Arc<Flat>, Arc<ManualClock>) {
    let (mut options, clock) = (options(engine), Arc::new(ManualClock::new(1)));
    options.clock = Arc::<ManualClock>::clone(&clock);
    options.testing.cores = Some(1);
    options.testing.segment_size_bytes = Some(chunk_size);
    options.testing.background = false;
    (Flat::open(Arc::clone(memory), &options).unwrap(), clock)
}

fn put_value(store: &Flat, key: &[u8], value: &[u8]) -> Result<()> {
    store.put_value(key, value, Attributes::default(), Condition::Always).map(drop)
}

fn chunk_of(store: &Flat, key: &[u8]) -> u32 {
    let word = store.find(store.hasher.hash(key), key).unwrap().unwrap();
    store.layout.chunk_of(Place::of(word).offset)
}

/// Writes short values until the log is in another chunk.
fn go_on(store: &Flat, name: u8) {
    let first = open_chunk(store, 0);
    (0..).take_while(|_| open_chunk(store, 0) == first).for_each(|number: u32| {
        let key = [&[name; 4][..], &number.to_be_bytes()].concat();
        put_value(store, &key, &[1; 30]).unwrap();
    });
}

#[test]
fn the_tombstone_of_a_key_that_is_longer_than_any_block_takes_no_other_ones_place() {
    const CHUNK: u64 = 64 << 10;
    for engine in KINDS {
        let memory = memory(64, CHUNK);
        let (store, clock) = open(&memory, engine, CHUNK);
        // Two blocks of a chunk; one of them is free.
        put_value(&store, b"neighbour", &[5; 30_000]).unwrap();
        // What would need its tombstone, as far as anybody knows.
        put_value(&store, b"x", b"1").unwrap();
        put_value(&store, b"x", b"2").unwrap();
        go_on(&store, b'a');
        let long = vec![b'k'; 40_000];
        let attributes = Attributes { expires_at: Some(10), ..Attributes::default() };
        store.put_value(&long, b"v", attributes, Condition::Always).unwrap();
        let chunk = chunk_of(&store, &long);
        go_on(&store, b'b');
        clock.set_unix_seconds(100);
        store.clean_chunk(&mut store.cleaner_of_log(chunk), chunk).unwrap();
        let assert_sound = |store: &Flat| {
            assert_eq!(store.check_store().unwrap().problems, Vec::<String>::new(), "{engine}");
            let found = store.get_value(b"neighbour", &mut |_| Ok(())).unwrap();
            assert_eq!(&*found.unwrap(), &[5; 30_000][..], "{engine}");
            assert!(store.get_value(&long, &mut |_| Ok(())).unwrap().is_none(), "{engine}");
        };
        assert_sound(&store);
        store.state.store(super::super::CLOSED, Ordering::Release);
        drop(store);
        let (store, clock) = open(&memory, engine, CHUNK);
        clock.set_unix_seconds(100);
        assert_sound(&store);
    }
}

#[test]
fn a_value_that_no_store_of_this_size_has_room_for_costs_nothing() {
    for engine in KINDS {
        let memory = memory(100, CHUNK_SIZE);
        let (store, _) = open(&memory, engine, CHUNK_SIZE);
        (0..300_u32).for_each(|number| put(&store, &(number % 40).to_be_bytes()));
        store.clean_ahead(0..1, store.checkpoint_room(), || false).unwrap();
        assert!(store.write_checkpoint().unwrap());
        let holding = store.begin_hold(HashSet::from([open_chunk(&store, 0)])).unwrap();
        let before = (store.chunks.free_count(), store.moves());
        let error = put_value(&store, b"large", &[1; 1 << 20]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{engine}: {error}");
        let after = (store.chunks.free_count(), store.moves());
        assert!(!holding.is_broken(), "{engine}: the backup goes on");
        assert_eq!(after, before, "{engine}: the checkpoint is there, and nothing was cleaned");
        drop(holding);
    }
}

#[test]
fn a_sample_of_keys_takes_no_more_than_it_may() {
    const CHUNK: u64 = 64 << 10;
    let memory = memory(80, CHUNK);
    let (store, _) = open(&memory, EngineKind::FlatMasstree, CHUNK);
    let long = vec![b'k'; 20_000];
    put_value(&store, &long, b"v").unwrap();
    for round in 0..4000_u32 {
        put_value(&store, &long, &round.to_be_bytes()).unwrap();
    }
    let headers = (1..80).filter_map(|number| {
        let (header, _) = read_header(&*memory, &store.layout, number).unwrap()?;
        (header.kind == ChunkKind::Log).then_some(header)
    });
    let headers: Vec<ChunkHeader> = headers.collect();
    let logs: Vec<&ChunkHeader> = headers.iter().collect();
    let bytes = |most| -> usize {
        store
            .sample_of_keys(&logs, 0, most)
            .iter()
            .map(|key| size_of::<Vec<u8>>() + key.len())
            .sum()
    };
    let all = bytes(u64::MAX);
    assert!(all > 50_000, "{all} bytes of all");
    assert!(all < 400 * logs.len() * 300, "{all} bytes: no key is there whole");
    let some = bytes(10_000);
    assert!((9_000..11_000).contains(&some), "{some} bytes");
}

#[test]
fn a_purge_that_waited_while_the_store_was_closed_changes_nothing() {
    for engine in KINDS {
        let memory = memory(60, CHUNK_SIZE);
        let (store, _) = open(&memory, engine, CHUNK_SIZE);
        for number in 0..200_u32 {
            let key = [&[b'k'; 30][..], &number.to_be_bytes()].concat();
            put_value(&store, &key, b"value").unwrap();
            store.delete_key(&key, Condition::Present).unwrap();
        }
        let generations =
            || -> Vec<u64> { store.chunks.iter().map(|(_, it)| it.generation()).collect() };
        let before = generations();
        std::thread::scope(|scope| {
            let still = store.hold_cleaning();
            let purge = scope.spawn(|| store.purge_next());
            while store.cleaners.purge.try_lock().is_some() {
                std::hint::spin_loop();
            }
            // It has looked for a chunk by now, and waits for its cleaner.
            esker_trt::sleep(Duration::from_millis(100));
            store.state.store(super::super::CLOSED, Ordering::Release);
            drop(still);
            let error = purge.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Closed, "{engine}: {error}");
        });
        assert_eq!(generations(), before, "{engine}");
    }
}

#[test]
fn a_record_whose_copied_entry_may_be_durable_stays_in_use() {
    let inner = Arc::new(SimPm::new(SimPmOptions::new(60 * CHUNK_SIZE, 1)));
    let armed = Arc::new(AtomicBool::new(false));
    let fails = Arc::clone(&armed);
    let memory = AskingMemory::new(inner, move |call| {
        match *call == MemoryCall::Fenced(sites::MOVE_FENCE) && fails.load(Ordering::SeqCst) {
            true => Err(esker_base::Error::new(ErrorKind::Io, "fence")),
            false => Ok(()),
        }
    });
    let memory: Arc<dyn Pmem> = memory;
    let (store, _) = open(&memory, EngineKind::FlatCceh, CHUNK_SIZE);
    // Two chunks of blocks with one record in use each.
    let per_chunk = store.layout.room() / 448;
    for number in 0..2 * per_chunk {
        put_value(&store, &number.to_be_bytes(), &[3; 400]).unwrap();
    }
    for number in (0..2 * per_chunk).filter(|number| number % per_chunk != 0) {
        put_value(&store, &number.to_be_bytes(), b"short").unwrap();
    }
    store.clean_now(100).unwrap();
    let blocks = || store.chunks.iter().filter(|(_, chunk)| chunk.usage() == Use::Blocks);
    let in_use = || -> u32 { blocks().map(|(_, chunk)| chunk.live.load(Ordering::SeqCst)).sum() };
    let before = in_use();
    let victim = blocks().next().map(|(number, chunk)| (number, chunk.generation())).unwrap();
    let mut packer = Packer::default();
    assert!(store.begin_packing(&mut packer, [victim].into(), true).unwrap());
    armed.store(true, Ordering::SeqCst);
    while store.pack_more(&mut packer).unwrap_or(false) {}
    assert!(store.failure.lock().is_some(), "the copies are in doubt");
    let after = in_use();
    assert!(after > before, "{after} of {before}");
    store.state.store(super::super::CLOSED, Ordering::Release);
}

/// Whether what is done meanwhile is there.
struct Held<'a>(&'a AtomicBool);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

#[test]
fn who_waits_for_others_to_write_an_entry_along_holds_nothing_of_the_index() {
    let memory = memory(40, CHUNK_SIZE);
    let (store, _) = open(&memory, EngineKind::FlatMasstree, CHUNK_SIZE);
    let prepare =
        |key: &'static [u8]| store.prepare_put(0, key, b"v", Attributes::default()).unwrap();
    let (leads, follows) = (prepare(b"leads"), prepare(b"follows"));
    let holds = AtomicBool::new(true);
    let let_go = || !holds.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        let (begun, begins) = std::sync::mpsc::channel();
        let meanwhile = move || {
            begun.send(()).unwrap();
            // Alone, until somebody has come who waits for this.
            (0..2000).any(|_| {
                esker_trt::sleep(Duration::from_millis(5));
                let_go()
            })
        };
        let first = scope.spawn(|| store.commit(0, 0, &leads.entry, meanwhile).unwrap().1);
        begins.recv().unwrap();
        let held = Held(&holds);
        let second = store.commit(0, 0, &follows.entry, || drop(held)).unwrap().1;
        assert_eq!((first.join().unwrap(), second), (Some(true), None));
    });
    store.state.store(super::super::CLOSED, Ordering::Release);
}
