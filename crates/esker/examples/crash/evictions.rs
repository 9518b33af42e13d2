//! Scenarios of a cache: what was evicted stays gone, whatever a crash keeps.

use super::scenarios::{Verdict, cut, device, expect, open, put, words};
use super::subject::options;
use esker::{Durability, Store};
use esker_base::hash::KeyHasher;
use esker_format::depot::{SUPERBLOCK_COPY_OFFSET, SUPERBLOCK_SIZE, Superblock};
use esker_media::sim::{Initial, SimBlock};
use std::sync::Arc;

/// A cache in which an old value of `a` is kept company by `hot`, and the new one is in another
/// segment.
fn cache(durability: Durability) -> std::result::Result<(Arc<SimBlock>, Store), String> {
    let device = device(Initial::Zeros);
    let mut options = options(u64::MAX, false);
    options.cache = true;
    options.durability = durability;
    let store = open(&device, &options)?;
    put(&store, "a", b"old")?;
    put(&store, "hot", b"hot")?;
    for number in 0..24 {
        put(&store, &format!("first{number}"), &[1; 400])?;
    }
    put(&store, "a", b"new")?;
    Ok((device, store))
}

/// Uses `hot` and puts other things until `a` is gone.
fn evict(store: &Store) -> Verdict {
    for number in 0..400 {
        expect(store, "hot", Some(b"hot"))?;
        put(store, &format!("other{number}"), &[2; 400])?;
        if store.read_size_bytes(b"a") == 0 {
            return Ok(());
        }
    }
    Err("nothing was evicted".to_owned())
}

/// Opens what a crash left. A cache without `sync` begins empty then; here it shows what it would have.
fn reopened(device: &SimBlock) -> std::result::Result<Store, String> {
    let mut image = cut(device);
    for offset in [0, SUPERBLOCK_COPY_OFFSET] {
        let mut bytes = [0; SUPERBLOCK_SIZE];
        image.read(offset, &mut bytes);
        let mut superblock = Superblock::decode(&bytes).map_err(|flaw| flaw.to_string())?;
        superblock.in_doubt = false;
        image.write(offset, &superblock.encode());
    }
    let survived = super::scenarios::device(Initial::Recycled(image));
    open(&survived, &options(u64::MAX, false))
}

/// A segment that is in use keeps an old value; the new one is evicted.
pub(super) fn an_evicted_key_has_no_older_value() -> Verdict {
    let (device, store) = cache(Durability::Sync)?;
    evict(&store)?;
    let store = reopened(&device)?;
    expect(&store, "hot", Some(b"hot"))?;
    expect(&store, "a", None)?;
    // The note is moved and purged like a tombstone, not before its time.
    store.clean(100).map_err(words)?;
    expect(&store, "a", None)
}

/// A segment that is in use keeps an old value. A newer one, which was synced, is evicted while the newest is in memory only:
/// a crash may lose that one, and leaves the key without a value then, but not with an older one than was synced.
pub(super) fn what_was_overtaken_in_memory_has_no_older_value() -> Verdict {
    let (device, store) = cache(Durability::None)?;
    for number in 0..24 {
        expect(&store, "hot", Some(b"hot"))?;
        put(&store, &format!("second{number}"), &[1; 400])?;
    }
    store.sync().map_err(words)?;
    put(&store, "a", b"newer")?;
    loop {
        expect(&store, "hot", Some(b"hot"))?;
        store.evict(1).map_err(words)?;
        match reopened(&device)?.get(b"a").map_err(words)?.as_deref() {
            None | Some(b"new" | b"newer") => {}
            other => return Err(format!("a holds {other:?}")),
        }
        // Behind the synced value, in its segment.
        if store.read_size_bytes(b"second0") == 0 {
            return Ok(());
        }
    }
}

/// A cache without `sync` that was stopped, and is written to again: a crash then leaves none of the values that it had.
pub(super) fn what_was_replaced_in_memory_has_no_older_value() -> Verdict {
    let (stopped, store) = cache(Durability::None)?;
    store.close().map_err(words)?;
    drop(store);
    let mut options = options(u64::MAX, false);
    options.cache = true;
    options.durability = Durability::None;
    let read = super::scenarios::device(Initial::Recycled(cut(&stopped)));
    let store = open(&read, &options)?;
    expect(&store, "a", Some(b"new"))?;
    let written = super::scenarios::device(Initial::Recycled(cut(&read)));
    store.forget();
    // Nobody wrote: nothing was lost.
    let store = open(&written, &options)?;
    expect(&store, "a", Some(b"new"))?;
    put(&store, "a", b"newer")?;
    let left = super::scenarios::device(Initial::Recycled(cut(&written)));
    store.forget();
    expect(&open(&left, &options)?, "a", None)
}

/// The note of `a` is replaced by another key with its hash, which then stands for the old value of `a` alone, and is overwritten.
/// So the next value of `a` is one that replaces, and its eviction leaves a note again.
pub(super) fn an_evicted_key_has_no_older_value_beside_equal_hashes() -> Verdict {
    const FOUR_BITS: u64 = 15;
    let device = device(Initial::Zeros);
    let mut options = options(FOUR_BITS, false);
    options.cache = true;
    let store = open(&device, &options)?;
    let superblock = Superblock::decode(&device.image().to_vec()).map_err(|f| f.to_string())?;
    let hasher = KeyHasher::new(superblock.hash_key).weakened(FOUR_BITS);
    let (mut alike, mut others): (Vec<_>, Vec<_>) = (0..400)
        .map(|number| format!("key{number}"))
        .partition(|name| hasher.hash(name.as_bytes()) == 0);
    let [Some(a), Some(b)] = [alike.pop(), alike.pop()] else {
        return Err("too few keys have hash 0".to_owned());
    };
    let hot = others.pop().unwrap_or_default();
    let mut churn = others.iter().cycle();
    let mut fill = |puts: usize, used: &[(&str, &[u8])]| {
        churn.by_ref().take(puts).try_for_each(|key| {
            used.iter().try_for_each(|(key, value)| expect(&store, key, Some(value)))?;
            // Its eviction leaves a note, so that segments of notes come and go.
            put(&store, key, &[1; 400])?;
            put(&store, key, &[2; 400])
        })
    };
    put(&store, &a, b"old")?;
    put(&store, &hot, b"hot")?;
    fill(24, &[])?;
    put(&store, &a, b"new")?;
    for _ in 0..400 {
        fill(1, &[(&hot, b"hot")])?;
        if store.read_size_bytes(a.as_bytes()) == 0 {
            break;
        }
    }
    expect(&store, &a, None)?;
    put(&store, &b, b"1")?;
    fill(12, &[(&hot, b"hot")])?;
    put(&store, &a, b"newer")?;
    fill(12, &[(&hot, b"hot")])?;
    put(&store, &b, b"2")?;
    let mut is_gone = false;
    for _ in 0..80 {
        fill(8, &[(&hot, b"hot"), (&b, b"2")])?;
        // Nobody looks for it in the store itself: it would be in use.
        let survived = super::scenarios::device(Initial::Recycled(cut(&device)));
        match open(&survived, &options)?.get(a.as_bytes()).map_err(words)?.as_deref() {
            Some(b"newer") if !is_gone => {}
            None => is_gone = true,
            other => return Err(format!("a holds {other:?}, evicted: {is_gone}")),
        }
    }
    if is_gone { Ok(()) } else { Err("nothing was evicted".to_owned()) }
}

/// Nobody finds a key any more that replaced nothing: nor does anybody after a crash.
pub(super) fn an_evicted_key_stays_gone() -> Verdict {
    let (device, store) = cache(Durability::Sync)?;
    for number in 0..30 {
        put(&store, &format!("other{number}"), &[2; 400])?;
    }
    // With nothing behind it that would make it durable by chance.
    for _ in 0..6 {
        store.evict(1).map_err(words)?;
        if store.read_size_bytes(b"other0") == 0 {
            return expect(&reopened(&device)?, "other0", None);
        }
    }
    Err("nothing was evicted".to_owned())
}
