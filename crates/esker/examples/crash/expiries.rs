//! Scenarios of what expires: a tombstone in its place does what the record did, no more and no less.

use super::operation::NOW;
use super::scenarios::{Verdict, cut, device, expect, open, put, words};
use super::stories::each_crash;
use super::subject::options;
use esker::{Attributes, Durability, Options, PutOptions, Store};
use esker_base::clock::ManualClock;
use esker_media::BlockDevice;
use esker_media::sim::{Asking, Initial};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// A large value, of which most extents are alone in their segments.
static LARGE: [u8; 30_000] = [3; 30_000];

/// Options with a clock that is told what time it is.
fn with_clock(durability: Durability) -> (Options, Arc<ManualClock>) {
    let mut options = options(u64::MAX, false);
    let clock = Arc::new(ManualClock::new(NOW));
    options.clock = Arc::clone(&clock) as Arc<_>;
    options.durability = durability;
    (options, clock)
}

/// Puts a value that expires in a second.
fn put_short(store: &Store, key: &str, value: &[u8]) -> Verdict {
    let attributes = Attributes { expires_at: Some(NOW + 1), ..Attributes::default() };
    let options = PutOptions { attributes, ..PutOptions::default() };
    store.put_with(key.as_bytes(), value, options).map(drop).map_err(words)
}

/// A large value without a flush: its extents are durable, as their segments are full, the record of its key is not, nor what was
/// written before that. It expires, and its extents are cleaned away. A crash that leaves the tombstone in its place leaves what was
/// written before it.
pub(super) fn an_expired_value_goes_after_what_was_written_before_it() -> Verdict {
    let beside: Arc<Mutex<Option<Store>>> = Arc::default();
    let (hook, count) = (Arc::clone(&beside), Arc::new(AtomicU8::new(0)));
    let last = Arc::clone(&count);
    let device = Asking::new(device(Initial::Zeros), move |call| {
        if call.site == esker::sites::depot::COMMIT_PLAIN_WRITE
            && let Some(store) = &*hook.lock()
        {
            store.put(b"before", &[last.fetch_add(1, Ordering::SeqCst) + 1])?;
        }
        Ok(())
    });
    let (none, clock) = with_clock(Durability::None);
    let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
    let store = Store::open_on(shared, &none).map_err(words)?;
    for number in 0..16 {
        put(&store, &format!("filler{}", number % 10), &[1; 700])?;
    }
    put(&store, "a", b"old")?;
    store.sync().map_err(words)?;
    // The cleaner has a segment open: a new one would be flushed, and all else with it.
    store.clean(1).map_err(words)?;
    *beside.lock() = Some(store.clone());
    // The last of these puts is behind the last full segment, as the record of the key is.
    put_short(&store, "a", &LARGE)?;
    *beside.lock() = None;
    store.write_out().map_err(words)?;
    clock.advance(Duration::from_secs(1));
    let from = device.inner().position();
    store.clean(1).map_err(words)?;
    let last = [count.load(Ordering::SeqCst)];
    each_crash(device.inner(), from, |store, _| match store.get(b"a").map_err(words)? {
        None => expect(store, "before", Some(&last)),
        Some(_) => Ok(()),
    })
}

/// An old value of `a` is in a segment that others keep; the newer one expires, and its extents are cleaned away before the
/// record of its key. After a crash the clock is back where nothing has expired.
pub(super) fn an_expired_value_leaves_no_older_one() -> Verdict {
    let device = device(Initial::Zeros);
    let (sync, clock) = with_clock(Durability::Sync);
    let store = open(&device, &sync)?;
    put(&store, "a", b"old")?;
    for number in 0..11 {
        put(&store, &format!("kept{number}"), &[1; 400])?;
    }
    put_short(&store, "a", &LARGE)?;
    clock.advance(Duration::from_secs(1));
    for _ in 0..4 {
        store.clean(1).map_err(words)?;
    }
    if store.stats().live_bytes > 20_000 {
        return Err("the value still takes room".to_owned());
    }
    for round in 0..150 {
        put(&store, &format!("filler{}", round % 2), &[3; 900])?;
    }
    let survived = self::device(Initial::Recycled(cut(&device)));
    let store = open(&survived, &options(u64::MAX, false))?;
    expect(&store, "a", None)?;
    expect(&store, "kept0", Some(&[1; 400]))
}
