//! Scenarios of chunks: headers that change, and what the cleaner may take away, and when.

use super::scenarios::{
    SIZE, Verdict, cut, each_crash, each_state, expect, memory, memory_of, open, put, usual, words,
};
use super::subject::CHUNK_SIZE;
use esker::Store;
use esker_media::sim::{Image, Initial};

/// Most states of one crash point.
const STATES: usize = 32;

/// A chunk is taken, freed, and taken again.
pub(super) fn one_copy_of_a_header_is_whole() -> Verdict {
    let memory = memory(Initial::Zeros);
    let store = open(&memory, &usual())?;
    put(&store, "kept", b"0")?;
    let from = memory.position();
    put(&store, "large", &[1; 1500])?;
    store.delete(b"large").map_err(words)?;
    each_crash(&memory, from, STATES, |store| expect(store, "kept", Some(b"0")))
}

/// The copies of a header.
fn copies(image: &Image, chunk: u64) -> [[u8; 64]; 2] {
    let mut copies = [[0; 64]; 2];
    for (copy, at) in copies.iter_mut().zip([0, 64]) {
        image.read(chunk * CHUNK_SIZE + at, copy);
    }
    copies
}

/// A crash leaves one copy of a header torn or old; the open writes it anew, and then frees the chunk; a crash
/// there must not find the other copy torn as well.
pub(super) fn a_torn_header_is_mended_first() -> Verdict {
    let memory = memory(Initial::Zeros);
    let store = open(&memory, &usual())?;
    put(&store, "kept", b"0")?;
    let from = memory.position();
    put(&store, "large", &[1; 1500])?;
    let mut tried = 0;
    each_state(&memory, from, STATES, |image| {
        let unequal = (1..SIZE / CHUNK_SIZE).any(|chunk| {
            let [first, second] = copies(&image, chunk);
            first != second
        });
        // A few of them.
        if !unequal || tried == 6 {
            return Ok(());
        }
        tried += 1;
        let torn = memory_of(SIZE, Initial::Recycled(image));
        let store = open(&torn, &usual())?;
        expect(&store, "kept", Some(b"0"))?;
        each_crash(&torn, 0, 16, |store| expect(store, "kept", Some(b"0")))
    })?;
    if tried == 6 { Ok(()) } else { Err(format!("only {tried} torn headers")) }
}

/// One thread frees a chunk, another one takes it: no fence of the one covers what the other flushed.
pub(super) fn a_header_is_durable_for_others() -> Verdict {
    let memory = memory(Initial::Zeros);
    let store = open(&memory, &usual())?;
    put(&store, "kept", b"0")?;
    put(&store, "large", &[1; 1500])?;
    let chunk = super::scenarios::find(&memory, &[1; 1500])? / CHUNK_SIZE;
    let deleted = std::thread::scope(|scope| {
        scope.spawn(|| store.delete(b"large").map(drop).map_err(words)).join()
    });
    deleted.map_err(|_| "the other thread panicked".to_owned())??;
    let before = copies(&memory.image(), chunk);
    let mut from = memory.position();
    for number in 0..200 {
        if copies(&memory.image(), chunk) != before {
            // Three lines are pending, and two of them must be torn.
            return each_crash(&memory, from, 200, |store| expect(store, "kept", Some(b"0")));
        }
        from = memory.position();
        put(&store, &format!("filler{}", number % 6), &[2; 200])?;
    }
    Err("the chunk was never taken again".to_owned())
}

/// Fills logs of which hardly anything counts but `kept`.
fn churned(store: &Store) -> Verdict {
    for number in 0..4 {
        put(store, &format!("kept{number}"), &[number; 40])?;
        for _ in 0..8 {
            put(store, "filler", &[9; 180])?;
        }
    }
    Ok(())
}

fn all_kept(store: &Store) -> Verdict {
    (0..4).try_for_each(|number| expect(store, &format!("kept{number}"), Some(&[number; 40])))
}

pub(super) fn copies_go_before_originals() -> Verdict {
    let memory = memory(Initial::Zeros);
    let store = open(&memory, &usual())?;
    churned(&store)?;
    let from = memory.position();
    store.clean(3).map_err(words)?;
    each_crash(&memory, from, STATES, all_kept)
}

/// More live entries than one batch of copies takes: a whole batch must not stand behind a torn one, which is what
/// damage looks like.
pub(super) fn a_cleaners_log_has_one_torn_end() -> Verdict {
    const CHUNK: u64 = 8 << 10;
    const SMALL: u64 = 14 * CHUNK;
    let options = || {
        let mut options = usual();
        options.testing.segment_size_bytes = Some(CHUNK);
        options.testing.cores = Some(1);
        options
    };
    let memory = memory_of(SMALL, Initial::Zeros);
    let store = open(&memory, &options())?;
    let mut batch = esker::Batch::new();
    for number in 0..60_u32 {
        batch.put(format!("a{number:03}").as_bytes(), &[1; 20]);
    }
    store.write(&batch).map_err(words)?;
    let mut batch = esker::Batch::new();
    for number in 0..60_u32 {
        batch.put(format!("b{number:03}").as_bytes(), &[2; 20]);
    }
    store.write(&batch).map_err(words)?;
    put(&store, "a000", b"new")?;
    for number in 0..30_u32 {
        put(&store, &format!("c{number:03}"), &[3; 200])?;
    }
    let from = memory.position();
    if store.clean(1).map_err(words)? == 0 {
        return Err("there was nothing to clean".to_owned());
    }
    each_state(&memory, from, 12, |image| {
        let memory = memory_of(SMALL, Initial::Recycled(image));
        let store = open(&memory, &options())?;
        expect(&store, "a000", Some(b"new"))?;
        expect(&store, "a059", Some(&[1; 20]))?;
        expect(&store, "b059", Some(&[2; 20]))
    })
}

/// The chunk of a tombstone is cleaned while an older entry of its key is in another chunk, which others keep.
pub(super) fn a_tombstone_outlives_older_entries() -> Verdict {
    let memory = memory(Initial::Zeros);
    let mut options = usual();
    options.testing.cores = Some(1);
    let store = open(&memory, &options)?;
    put(&store, "gone", b"1")?;
    for number in 0..7 {
        put(&store, &format!("kept{number}"), &[1; 200])?;
    }
    store.delete(b"gone").map_err(words)?;
    for _ in 0..16 {
        put(&store, "filler", &[2; 200])?;
    }
    // The emptiest first: that of the tombstone.
    store.clean(1).map_err(words)?;
    let store = open(&cut(&memory), &options)?;
    expect(&store, "gone", None)?;
    expect(&store, "kept0", Some(&[1; 200]))
}

/// A tombstone that is not needed any more is dropped, and its record was the last of its chunk: a crash before
/// the tombstone's own chunk is free finds both.
pub(super) fn a_record_goes_after_its_tombstone() -> Verdict {
    let memory = memory(Initial::Zeros);
    let mut options = usual();
    options.testing.cores = Some(1);
    let store = open(&memory, &options)?;
    let long = "long".repeat(75);
    put(&store, &long, b"")?;
    store.delete(long.as_bytes()).map_err(words)?;
    // The rest of the chunk of its record, and one of the next.
    for number in 0..6 {
        put(&store, &format!("record{number}"), &[1; 300])?;
    }
    for number in 0..5 {
        store.delete(format!("record{number}").as_bytes()).map_err(words)?;
    }
    // Until the log goes on in another chunk, without anything there that does not count.
    for number in 0..8 {
        put(&store, &format!("kept{number}"), &[2; 200])?;
    }
    let from = memory.position();
    store.clean(1).map_err(words)?;
    each_crash(&memory, from, STATES, |store| {
        expect(store, &long, None)?;
        expect(store, "record5", Some(&[1; 300]))?;
        expect(store, "kept0", Some(&[2; 200]))
    })
}
