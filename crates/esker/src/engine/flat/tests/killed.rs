//! A process that is killed leaves what it stored where the next one reads it, durable or not.

use super::*;
use crate::value::Condition;
use esker_base::SiteKind;
use esker_media::sim::{Image, Initial};

const KINDS: [EngineKind; 2] = [EngineKind::FlatCceh, EngineKind::FlatMasstree];
const LEFT: Site = Site::new("test.left", SiteKind::Write);
const SIZE: u64 = 40 * CHUNK_SIZE;
const WORD: usize = 8;

fn opened(memory: &Arc<SimPm>, engine: EngineKind) -> Arc<Flat> {
    let mut options = options(engine);
    options.testing.cores = Some(1);
    options.testing.background = false;
    Flat::open(Arc::clone(memory) as Arc<dyn Pmem>, &options).unwrap()
}

fn memory_of(image: Image) -> Arc<SimPm> {
    Arc::new(SimPm::new(SimPmOptions::new(SIZE, 1).initial(Initial::Recycled(image))))
}

/// What a power cut leaves of which nothing survives that need not.
fn cut(memory: &SimPm) -> Arc<SimPm> {
    let trace = memory.trace();
    let mut replay = trace.replay();
    replay.advance_to(u64::MAX);
    memory_of(replay.durable().clone())
}

/// Memory of which this is durable, and that is stored.
fn memory_with(durable: &Image, stored: &Image) -> Arc<SimPm> {
    let memory = memory_of(durable.clone());
    let (durable, stored) = (durable.to_vec(), stored.to_vec());
    let words = durable.chunks(WORD).zip(stored.chunks(WORD));
    for ((before, after), offset) in words.zip((0..).step_by(WORD)) {
        if before != after {
            memory.store(LEFT, offset, after).unwrap();
        }
    }
    memory
}

fn crash(store: Arc<Flat>) {
    store.state.store(super::super::CLOSED, Ordering::Release);
    drop(store);
}

fn key(number: u8) -> Vec<u8> {
    if number == 5 { vec![b'l'; 300] } else { vec![b'k', number] }
}

fn put_value(store: &Flat, number: u8, value: &[u8]) {
    store.put_value(&key(number), value, Attributes::default(), Condition::Always).unwrap();
}

fn held(store: &Flat) -> Vec<Option<Vec<u8>>> {
    let get = |number| store.get_value(&key(number), &mut |_| Ok(())).unwrap();
    (0..9).map(|number| get(number).map(|value| value.to_vec())).collect()
}

/// Puts, deletes, moves, a checkpoint and a clear: at whatever moment the process is killed.
#[test]
fn what_was_read_after_a_kill_is_there_after_a_power_cut() {
    for engine in KINDS {
        let memory = Arc::new(SimPm::new(SimPmOptions::new(SIZE, 1)));
        let store = opened(&memory, engine);
        for round in 0..6_u8 {
            (0..8).for_each(|number| put_value(&store, number, &[round; 90]));
            store.delete_key(&key(round), Condition::Present).unwrap();
            put_value(&store, 3, &[round; 600]);
            match round {
                1 | 4 => drop(store.clean_now(3).unwrap()),
                2 => assert!(store.write_checkpoint().unwrap()),
                3 => store.clear_all().unwrap(),
                _ => {}
            }
        }
        let trace = memory.trace();
        let mut replay = trace.replay();
        let mut kills = 0;
        loop {
            let stored = replay.states(2, 0).last().map(|state| state.image());
            let durable = replay.durable();
            let position = replay.position();
            if let Some(stored) = stored.filter(|stored| stored.to_vec() != durable.to_vec()) {
                kills += 1;
                let left = memory_with(durable, &stored);
                let next = opened(&left, engine);
                let mut expected = held(&next);
                put_value(&next, 8, b"later");
                expected[8] = Some(b"later".to_vec());
                crash(next);
                let last = opened(&cut(&left), engine);
                assert_eq!(held(&last), expected, "{engine}, killed at {position}");
                assert_eq!(last.check_store().unwrap().problems, Vec::<String>::new());
                crash(last);
            }
            if !replay.step() {
                break;
            }
        }
        assert!(kills > 100, "{kills}");
        crash(store);
    }
}
