//! Scenarios of what expires: a tombstone in its place does what the record did, no more and no less.

use super::operation::NOW;
use super::scenarios::{Verdict, cut, device, expect, open, put, words};
use super::stories::each_crash;
use super::subject::options;
use esker::{Attributes, Durability, Options, PutOptions, Store};
use esker_base::clock::ManualClock;
use esker_media::sim::Initial;
use std::sync::Arc;
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

/// A large value without a flush: its extents are durable, as their segments are full, the record of its key is not. It
/// expires, its extents are cleaned away, and a crash may take what is not durable. Who writes the key then gives a version
/// that the lost record may have had.
pub(super) fn a_newer_value_outlives_an_expired_one() -> Verdict {
    let device = device(Initial::Zeros);
    let (none, clock) = with_clock(Durability::None);
    let store = open(&device, &none)?;
    // The cleaner has a segment open, whose header tells of no later versions.
    for number in 0..16 {
        put(&store, &format!("filler{}", number % 10), &[1; 700])?;
    }
    store.sync().map_err(words)?;
    store.clean(1).map_err(words)?;
    put_short(&store, "a", &LARGE)?;
    store.write_out().map_err(words)?;
    clock.advance(Duration::from_secs(1));
    let from = device.position();
    store.clean(1).map_err(words)?;
    each_crash(&device, from, |store, device| {
        put(store, "a", b"newer")?;
        let survived = self::device(Initial::Recycled(cut(device)));
        expect(&open(&survived, &options(u64::MAX, false))?, "a", Some(b"newer"))
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
