//! Scenarios of the cleaner: what it may take away, and when.

use super::scenarios::{
    Verdict, cut, device, expect, find, open, put, slow_at, without_flushes, words,
};
use super::subject::options;
use esker::Store;
use esker_media::BlockDevice;
use esker_media::sim::{Act, Asking, Initial, SimBlock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Most states of one crash point.
const STATES: usize = 64;

/// Opens what a crash at any moment from device position `from` on may leave, and judges it.
pub(super) fn each_crash(
    device: &SimBlock,
    from: u64,
    judge: impl Fn(&Store, &SimBlock) -> Verdict,
) -> Verdict {
    let trace = device.trace();
    let mut replay = trace.replay();
    while replay.step() {
        if replay.position() < from {
            continue;
        }
        for state in replay.states(STATES, replay.position()) {
            let image = Initial::Recycled(state.image());
            let survived = super::scenarios::device(image);
            let store = open(&survived, &options(u64::MAX, false))?;
            judge(&store, &survived).map_err(|words| format!("{words} [{}]", state.describe()))?;
        }
    }
    Ok(())
}

fn readable(store: &Store, _: &SimBlock) -> Verdict {
    store.iter().try_for_each(|item| item.map(drop).map_err(words))
}

/// Without a flush for each write: the records of a full segment are durable before its summary can
/// be, however the writes at its end survive.
pub(super) fn a_summary_vouches_for_durable_records() -> Verdict {
    let device = device(Initial::Zeros);
    let store = open(&device, &without_flushes())?;
    for number in 0..40_u8 {
        put(&store, &format!("key{number}"), &[number; 700])?;
    }
    each_crash(&device, 0, readable)
}

/// A purge meets a tombstone whose older record is in a segment that other records keep.
pub(super) fn a_tombstone_outlives_older_records() -> Verdict {
    let device = device(Initial::Zeros);
    let store = open(&device, &options(u64::MAX, false))?;
    put(&store, "a", b"1")?;
    // As many as fill the segment: the next one holds nothing that stays but the tombstone.
    for number in 0..11 {
        put(&store, &format!("kept{number}"), &[1; 400])?;
    }
    store.delete(b"a").map_err(words)?;
    for round in 0..8 {
        put(&store, &format!("filler{}", round % 2), &[2; 900])?;
    }
    store.clean(0).map_err(words)?;
    // The segment of the tombstone comes up for reuse, if nothing keeps it.
    for round in 0..150 {
        put(&store, &format!("filler{}", round % 2), &[3; 900])?;
    }
    let survived = super::scenarios::device(Initial::Recycled(cut(&device)));
    let store = open(&survived, &options(u64::MAX, false))?;
    expect(&store, "a", None)?;
    expect(&store, "kept0", Some(&[1; 400]))
}

/// A purge meets a tombstone whose older record is in a segment that was taken and has no new header yet, since what is
/// written there is in memory only.
pub(super) fn a_tombstone_outlives_what_is_about_to_go() -> Verdict {
    let after = |rounds: u32, late: u32| {
        let device = device(Initial::Zeros);
        let store = open(&device, &without_flushes())?;
        let fill = |rounds: u32| {
            let key = |round| format!("filler{}", round % 2);
            (0..rounds).try_for_each(|round| put(&store, &key(round), &[1; 900]))
        };
        put(&store, "a", b"1")?;
        fill(12)?;
        store.delete(b"a").map_err(words)?;
        fill(rounds)?;
        store.sync().map_err(words)?;
        // They overtake nothing: what is free now may be overwritten at once.
        (0..late).try_for_each(|number| put(&store, &format!("late{number}"), &[2; 900]))?;
        store.clean(0).map_err(words)?;
        store.trim().map_err(words)?;
        let survived = super::scenarios::device(Initial::Recycled(cut(&device)));
        expect(&open(&survived, &options(u64::MAX, false))?, "a", None)
    };
    // After some number of puts the segment of `a` is the next one, and after some more it was taken.
    (64..96).step_by(2).try_for_each(|rounds| (1..10).try_for_each(|late| after(rounds, late)))
}

/// A store without flushes in which `a` was durable, and then overwritten, so that the segment of
/// its durable record is free: returns it with the position from which a crash is of interest.
fn overwritten() -> std::result::Result<(Arc<SimBlock>, Store, u64), String> {
    let device = device(Initial::Zeros);
    let store = open(&device, &without_flushes())?;
    put(&store, "gone", b"1")?;
    put(&store, "a", b"old")?;
    for _ in 0..12 {
        put(&store, "filler", &[1; 900])?;
    }
    // In another segment than the record that it stands for.
    store.delete(b"gone").map_err(words)?;
    for _ in 0..12 {
        put(&store, "filler", &[1; 900])?;
    }
    store.sync().map_err(words)?;
    let from = device.position();
    put(&store, "a", b"new")?;
    put(&store, "filler", &[2; 900])?;
    Ok((device, store, from))
}

fn old_or_new(store: &Store, _: &SimBlock) -> Verdict {
    match store.get(b"a").map_err(words)?.as_deref() {
        Some(b"old" | b"new") => Ok(()),
        other => Err(format!("a holds {:?} bytes", other.map(<[u8]>::len))),
    }
}

pub(super) fn a_header_goes_after_what_made_it_free() -> Verdict {
    let (device, store, from) = overwritten()?;
    store.clean(0).map_err(words)?;
    each_crash(&device, from, old_or_new)
}

pub(super) fn space_goes_after_what_made_it_free() -> Verdict {
    let (device, store, from) = overwritten()?;
    store.trim().map_err(words)?;
    each_crash(&device, from, old_or_new)
}

/// Two segments go free one after the other while nothing is durable of what made them so: the second one, while that of the first
/// is being flushed.
pub(super) fn each_header_goes_after_what_made_it_free() -> Verdict {
    let armed = Arc::new(AtomicBool::new(false));
    let is_due = Arc::clone(&armed);
    let device = Asking::new(device(Initial::Zeros), move |call| {
        if call.act == Act::Flush && is_due.swap(false, Ordering::SeqCst) {
            esker_trt::sleep(Duration::from_secs(10));
        }
        Ok(())
    });
    let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
    let store = Store::open_on(shared, &without_flushes()).map_err(words)?;
    let fill = |rounds: u32| (0..rounds).try_for_each(|_| put(&store, "filler", &[1; 900]));
    put(&store, "a", b"old")?;
    fill(12)?;
    put(&store, "b", b"old")?;
    fill(24)?;
    store.sync().map_err(words)?;
    put(&store, "a", b"new")?;
    armed.store(true, Ordering::SeqCst);
    let trimming = store.clone();
    let task = esker_trt::spawn(move || trimming.trim().map_err(words));
    while armed.load(Ordering::SeqCst) {
        esker_trt::yield_now();
    }
    put(&store, "b", b"new")?;
    task.join().map_err(|error| error.to_string())??;
    let survived = super::scenarios::device(Initial::Recycled(cut(device.inner())));
    let store = open(&survived, &options(u64::MAX, false))?;
    for key in [b"a", b"b"] {
        match store.get(key).map_err(words)?.as_deref() {
            Some(b"old" | b"new") => {}
            other => return Err(format!("{key:?} holds {:?} bytes", other.map(<[u8]>::len))),
        }
    }
    Ok(())
}

/// The cleaner copied a record and waits for its flush; meanwhile the segment is reused, and a newer
/// record of the key gets the very place of the old one.
pub(super) fn a_move_follows_no_later_record() -> Verdict {
    let (slow, armed) = slow_at(esker::sites::depot::MOVE_FLUSH);
    let device = Arc::clone(slow.inner());
    let store = Store::open_on(slow, &options(u64::MAX, false)).map_err(words)?;
    let value = |round: u32| format!("value {round:06} of a");
    put(&store, "a", value(0).as_bytes())?;
    for _ in 0..16 {
        put(&store, "filler", &[1; 900])?;
    }
    let place = find(&device, value(0).as_bytes())?;
    armed.store(true, Ordering::SeqCst);
    let shared = store.clone();
    let task = esker_trt::spawn(move || shared.clean(16).map_err(words));
    for _ in 0..10_000 {
        if armed.load(Ordering::SeqCst) {
            esker_trt::yield_now();
        }
    }
    if armed.load(Ordering::SeqCst) {
        return Err("the cleaner flushes no copies".to_owned());
    }
    let reached = (1..2000).find(|round| {
        let written = put(&store, "a", value(*round).as_bytes());
        written.is_err() || find(&device, value(*round).as_bytes()) == Ok(place)
    });
    let Some(round) = reached else {
        return Err("the place of the old record was never reached".to_owned());
    };
    task.join().map_err(|error| error.to_string())??;
    expect(&store, "a", Some(value(round).as_bytes()))
}
