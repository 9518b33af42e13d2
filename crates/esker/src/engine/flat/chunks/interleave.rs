//! Chunks that come free and are taken anew beside a reader, under random interleavings (`cargo xtask interleave`): what it reads is what
//! its word was about (K2).

use super::*;
use esker_base::ids::StoreId;
use esker_base::sync::{Arc, thread};
use esker_format::flat::{IndexKind, Superblock};
use shuttle::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

/// Chunks of the story: the root, and some that are taken together.
const COUNT: u32 = 5;
/// What stands in chunks before.
const OURS: u64 = 7;

/// What a reader meets.
struct Store {
    chunks: Chunks,
    /// What stands in each chunk: ours, or that of the time when it was taken.
    contents: Vec<AtomicU64>,
    /// The index: where ours is.
    place: AtomicU32,
}

fn store() -> Arc<Store> {
    let superblock = Superblock {
        store_id: StoreId([1; 16]),
        hash_key: [2; 16],
        hash_mask: u64::MAX,
        size_bytes: u64::from(COUNT) << 12,
        chunk_size_bytes: 1 << 12,
        chunk_count: COUNT,
        index: IndexKind::Cceh,
        created_unix_seconds: 0,
    };
    let chunks = Chunks::new(&Layout::of(&superblock), 1);
    (1..COUNT).for_each(|number| chunks.get(number).unwrap().set_usage(Use::Log));
    let contents = (0..COUNT).map(|_| AtomicU64::new(OURS)).collect();
    Arc::new(Store { chunks, contents, place: AtomicU32::new(3) })
}

impl Store {
    /// As [`Flat::with_entry`](super::super::Flat::with_entry) reads.
    fn read(&self) -> u64 {
        loop {
            let since = self.chunks.now();
            let number = self.place.load(SeqCst);
            let chunk = self.chunks.get(number).unwrap();
            let generation = chunk.generation();
            if !self.chunks.none_taken(since) {
                continue;
            }
            let content = self.contents[number as usize].load(SeqCst);
            if chunk.generation() == generation {
                return content;
            }
        }
    }
}

/// Ours is moved to the first chunk; the others come free, and are taken anew.
fn story(together: bool) {
    let store = store();
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let store = Arc::clone(&store);
            thread::spawn(move || assert_eq!(store.read(), OURS))
        })
        .collect();
    store.place.store(1, SeqCst);
    (2..COUNT).for_each(|number| store.chunks.add_free(number));
    let counts = if together { vec![3] } else { vec![1, 1, 1] };
    for (count, time) in counts.into_iter().zip(100..) {
        let first = store.chunks.take(count, For::Cleaner).unwrap();
        (first..).zip(0..count).for_each(|(number, _)| {
            store.contents[number as usize].store(time, SeqCst);
        });
    }
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}

#[test]
fn interleave_readers_beside_chunks_that_are_taken_anew() {
    for together in [false, true] {
        shuttle::check_random(move || story(together), 20_000);
        shuttle::check_pct(move || story(together), 20_000, 3);
    }
}
