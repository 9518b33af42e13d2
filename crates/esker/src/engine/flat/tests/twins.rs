//! A record that an entry and its copy share is nobody else's while one of them may be found.

use super::super::chunks::{Chunk, Use};
use super::super::layout::Place;
use super::*;
use crate::value::Condition;

const KINDS: [EngineKind; 2] = [EngineKind::FlatCceh, EngineKind::FlatMasstree];
const CHUNK_SIZE: u64 = 64 << 10;
const DAMAGE: Site = Site::new("test.damage", esker_base::SiteKind::Write);
const KEYS: u8 = 200;

/// Writes a few keys over and over until the log's chunk is full, and returns that.
fn fill_up(store: &Flat) -> u32 {
    let full = open_chunk(store, 0);
    for number in 0..2000 {
        if open_chunk(store, 0) != full {
            break;
        }
        let key = [b'f', u8::try_from(number % 5).unwrap()];
        store.put_value(&key, b"1", Attributes::default(), Condition::Always).unwrap();
    }
    assert_eq!(store.chunks.get(full).unwrap().usage(), Use::Log);
    full
}

struct Twins {
    memory: Arc<dyn Pmem>,
    clock: Arc<ManualClock>,
    options: Options,
    store: Arc<Flat>,
    /// A full chunk of the log, with entries of values that expire.
    first: u32,
}

impl Twins {
    fn new(engine: EngineKind, checkpoint: bool) -> Twins {
        let mut simulated = SimPmOptions::new(60 * CHUNK_SIZE, 1);
        simulated.record = false;
        let memory: Arc<dyn Pmem> = Arc::new(SimPm::new(simulated));
        let clock = Arc::new(ManualClock::new(1));
        let mut options = options(engine);
        options.clock = Arc::<ManualClock>::clone(&clock);
        options.testing.segment_size_bytes = Some(CHUNK_SIZE);
        options.testing.cores = Some(1);
        options.testing.background = false;
        let store = Flat::open(Arc::clone(&memory), &options).unwrap();
        // Of another chunk one entry is copied before, so that the chunk of copies always has one that counts.
        let plain = Attributes::default();
        store.put_value(b"other", b"1", plain, Condition::Always).unwrap();
        let other = fill_up(&store);
        let expire = Attributes { expires_at: Some(100), ..Attributes::default() };
        for number in (0..KEYS).chain(0..10) {
            store.put_value(&[b'k', number], &[number; 900], expire, Condition::Always).unwrap();
        }
        let first = fill_up(&store);
        store.clean_chunk(&mut store.cleaner_of_log(other), other).unwrap();
        if checkpoint {
            assert!(store.write_checkpoint().unwrap());
        }
        Twins { memory, clock, options, store, first }
    }

    /// The chunk with the first key's entry.
    fn chunk(&self) -> u32 {
        let (store, key) = (&self.store, [b'k', 0]);
        let word = store.find(store.hasher.hash(&key), &key).unwrap().unwrap();
        store.layout.chunk_of(Place::of(word).offset)
    }

    fn chunks_with_twins(&self) -> usize {
        self.store.cleaners.twins.chunks().len()
    }

    fn crash(&mut self) {
        self.store.state.store(super::super::CLOSED, Ordering::Release);
        self.store = Flat::open(Arc::clone(&self.memory), &self.options).unwrap();
    }

    /// Flips a bit near the end of the first chunk, so that its last entries are not copied.
    fn flip_end(&self) {
        let chunk = self.store.chunks.get(self.first).unwrap();
        let tail = u64::from(chunk.tail.load(Ordering::Relaxed));
        let last = self.store.layout.start_of(self.first) + tail - 64;
        let mut byte = [0];
        self.memory.read(last, &mut byte).unwrap();
        self.memory.store(DAMAGE, last, &[byte[0] ^ 8]).unwrap();
    }

    /// A crash amid the cleaning of the first chunk.
    fn crash_amid_cleaning(&mut self) {
        let (store, number) = (&self.store, self.first);
        let mut cleaner = store.cleaner_of_log(number);
        let victim = store.victim_of(&mut cleaner, number);
        self.flip_end();
        assert!(!store.copy_live(&mut cleaner, victim, &mut Vec::new()).unwrap());
        self.flip_end();
        drop(cleaner);
        self.crash();
        assert_eq!(self.chunks_with_twins(), 1);
    }

    /// Cleans the chunk with the first key's entry, once all have expired.
    fn clean_expired(&self) {
        self.clock.set_unix_seconds(101);
        let (store, number) = (&self.store, self.chunk());
        let mut cleaner = store.cleaner_of_log(number);
        if let Some((open, tail)) = cleaner.log.open.take() {
            store.seal(open, tail).unwrap();
        }
        store.clean_chunk(&mut cleaner, number).unwrap();
        drop(cleaner);
        assert!(!store.chunks.get(number).is_some_and(Chunk::is_log), "{number} is free");
    }

    /// Puts keys that would take the room of those that expired, and has a crash.
    fn put_and_crash(&mut self) {
        for number in 0..KEYS {
            let value = [number ^ 255; 900];
            let plain = Attributes::default();
            self.store.put_value(&[b'n', number], &value, plain, Condition::Always).unwrap();
        }
        self.crash();
        for number in 0..KEYS {
            let found = self.store.get_value(&[b'n', number], &mut |_| Ok(())).unwrap();
            assert_eq!(&*found.unwrap(), &[number ^ 255; 900]);
            let gone = self.store.get_value(&[b'k', number], &mut |_| Ok(())).unwrap();
            assert!(gone.is_none(), "{number} has expired");
        }
        assert_eq!(self.store.check_store().unwrap().problems, Vec::<String>::new());
    }

    /// Records that nothing points at any more come free in the end.
    fn check_room(&self) {
        let store = &self.store;
        assert!(store.write_checkpoint().unwrap(), "there are no twins to wait for");
        assert_eq!(self.chunks_with_twins(), 0);
        while store.clean_now(8).unwrap() > 0 {}
        let blocks = store.chunks.iter().filter(|(_, chunk)| chunk.usage() == Use::Blocks);
        let live: u32 = blocks.map(|(_, chunk)| chunk.live.load(Ordering::Relaxed)).sum();
        assert_eq!(live, KEYS.into());
    }
}

#[test]
fn a_record_of_twins_that_a_crash_left_is_nobody_elses_while_one_is_there() {
    for (engine, checkpoint) in KINDS.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let mut twins = Twins::new(engine, checkpoint);
        twins.crash_amid_cleaning();
        twins.clean_expired();
        twins.put_and_crash();
        twins.check_room();
        twins.crash();
    }
}

#[test]
fn a_record_of_an_entry_whose_chunk_outlives_its_copy_is_nobody_elses() {
    for engine in KINDS {
        let mut twins = Twins::new(engine, true);
        let (store, number) = (&twins.store, twins.first);
        let mut cleaner = store.cleaner_of_log(number);
        twins.flip_end();
        store.clean_chunk(&mut cleaner, number).unwrap();
        twins.flip_end();
        assert!(cleaner.damaged.remove(&number));
        drop(cleaner);
        assert_ne!(twins.chunk(), number, "its first entries were copied");
        assert_eq!(twins.chunks_with_twins(), 1);
        twins.clean_expired();
        twins.put_and_crash();
        twins.check_room();
        twins.crash();
    }
}

#[test]
fn no_image_counts_while_there_are_twins() {
    for (engine, closes) in KINDS.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let mut twins = Twins::new(engine, true);
        twins.crash_amid_cleaning();
        // Else there is nothing to write.
        put(&twins.store, b"more");
        match closes {
            true => twins.store.close_store().unwrap(),
            false => assert!(twins.store.write_checkpoint().unwrap()),
        }
        assert_eq!(twins.chunks_with_twins(), 0);
        if closes {
            twins.store = Flat::open(Arc::clone(&twins.memory), &twins.options).unwrap();
        }
        twins.clean_expired();
        assert!(closes || twins.store.drop_checkpoint().unwrap());
        twins.put_and_crash();
    }
}
