//! `depot`: records whose time has come give their room back.

use crate::support::{START, open};
use esker::{Attributes, Durability, ErrorKind, Options, PutOptions, Store};
use esker_base::clock::{Clock, ManualClock, SystemClock};
use esker_media::sim::{Initial, SimBlock, SimBlockOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Seconds after [`START`] at which records expire here.
const TTL: u64 = 100;
const DEVICE: u64 = 1 << 20;
const SEGMENT: u64 = 16 << 10;
/// Bytes of values: in records that share blocks, in longer ones, in extents of two segments, and of many.
const SIZES: [usize; 4] = [100, 700, 5000, 60_000];

/// Time goes on; the wall clock says what it is told to.
#[derive(Debug)]
struct Wall(AtomicU64);

impl Clock for Wall {
    fn monotonic(&self) -> Duration {
        SystemClock.monotonic()
    }

    fn unix_seconds(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

fn options(seed: u64) -> (Options, Arc<ManualClock>) {
    let mut options = crate::support::options(seed);
    let clock = Arc::new(ManualClock::new(START));
    options.clock = Arc::clone(&clock) as Arc<_>;
    options.testing.segment_size_bytes = Some(SEGMENT);
    (options, clock)
}

fn device(seed: u64) -> Arc<SimBlock> {
    Arc::new(SimBlock::new(SimBlockOptions::new(DEVICE, seed)))
}

/// What is on the device now, as a crash leaves it.
fn crashed(device: &SimBlock) -> Arc<SimBlock> {
    let options = SimBlockOptions::new(DEVICE, 99);
    Arc::new(SimBlock::new(options.initial(Initial::Recycled(device.image()))))
}

fn value(number: u64, size: usize) -> Vec<u8> {
    let word = number.to_le_bytes();
    word.iter().copied().cycle().take(size).collect()
}

fn put(store: &Store, key: &str, value: &[u8], expires_at: Option<u64>) -> Result<(), ErrorKind> {
    let attributes = Attributes { expires_at, ..Attributes::default() };
    let options = PutOptions { attributes, ..PutOptions::default() };
    store.put_with(key.as_bytes(), value, options).map(drop).map_err(|error| error.kind())
}

/// Puts new keys that expire then until there is no room; returns how many there was room for.
fn fill(store: &Store, round: u64, size: usize, expires_at: u64) -> u64 {
    for number in 0.. {
        let key = format!("{round}/{number}");
        match put(store, &key, &value(number, size), Some(expires_at)) {
            Ok(()) => {}
            Err(ErrorKind::NoSpace) => return number,
            Err(kind) => panic!("{kind:?}"),
        }
    }
    unreachable!("a store is full at some time")
}

fn sound(store: &Store) {
    assert_eq!(store.check().unwrap().problems, Vec::<String>::new());
}

/// What was filled with `first` records takes at least nine tenths as many again.
fn takes_as_many_again(store: &Store, size: usize, first: u64, expires_at: u64) {
    let again = fill(store, 1, size, expires_at);
    assert!(again * 10 >= first * 9, "{again} values of {size} bytes, {first} before");
    for number in 0..again {
        let key = format!("1/{number}");
        let found = store.get(key.as_bytes()).unwrap();
        assert!(found.is_some_and(|found| *found == *value(number, size)), "{key}");
    }
    assert_eq!(store.iter().count() as u64, again);
    sound(store);
}

#[test]
fn expired_records_give_their_room_back() {
    for size in SIZES {
        for durability in [Durability::Sync, Durability::None] {
            let (mut options, clock) = options(1);
            options.durability = durability;
            let store = open(&device(1), &options).unwrap();
            let first = fill(&store, 0, size, START + TTL);
            assert!(first as usize * size > DEVICE as usize / 2, "{first} values of {size} bytes");
            clock.advance(Duration::from_secs(TTL));
            takes_as_many_again(&store, size, first, START + 2 * TTL);
        }
    }
}
