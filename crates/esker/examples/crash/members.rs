//! Scenarios of striped devices: one power cut that each member survives in its own way.

use super::scenarios::{Verdict, expect, put, words};
use super::subject::{SEGMENT_SIZE, options};
use esker::{Durability, Store, Value};
use esker_media::sim::{Image, SimBlockOptions, SimDevices};
use esker_media::{BlockDevice, NewSet, StripedDevice};
use std::sync::Arc;

const MEMBER_SIZE: u64 = 2 * 8192 + 6 * SEGMENT_SIZE;
/// States of one crash point.
const STATES: u64 = 4;
/// Keys that take turns.
const KEYS: u32 = 5;

fn sims(count: usize) -> SimDevices {
    SimDevices::new(count, |index| SimBlockOptions::new(MEMBER_SIZE, index as u64))
}

fn attach(images: &[Image]) -> SimDevices {
    SimDevices::attach(images, |index| SimBlockOptions::new(MEMBER_SIZE, index as u64))
}

/// Opens the store over `members`, in this order.
fn open(
    sims: &SimDevices,
    order: &[usize],
    make: bool,
    options: &esker::Options,
) -> std::result::Result<Store, String> {
    let new = NewSet {
        lead_size_bytes: 8192,
        unit_size_bytes: SEGMENT_SIZE,
        set_id: [1; 16],
        replace: false,
    };
    let member = |index: &usize| {
        sims.devices().get(*index).map(|device| Arc::clone(device) as Arc<dyn BlockDevice>)
    };
    let members = order.iter().filter_map(member).collect();
    let device = StripedDevice::open(members, make.then_some(&new)).map_err(words)?;
    Store::open_on(Arc::new(device), options).map_err(words)
}

/// What write `number` put.
fn value_of(number: u32) -> Vec<u8> {
    [&number.to_le_bytes()[..], &[7; 900]].concat()
}

/// Each key has the newest of its first writes, up to number `kept`, or a newer one.
fn has_what_was_synced(store: &Store, kept: u32) -> Verdict {
    for key in 0..KEYS {
        let found = store.get(format!("key{key}").as_bytes()).map_err(words)?;
        let bytes = found.as_ref().and_then(|value| value.first_chunk());
        let number = bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let is_its = |value: &Value| number % KEYS == key && **value == *value_of(number);
        if found.as_ref().is_some_and(|value| !is_its(value)) {
            return Err(format!("key{key} has what was never written to it"));
        }
        let synced = (1..=kept).rfind(|number| number % KEYS == key).unwrap_or(0);
        if number < synced {
            return Err(format!("key{key}: write {synced} was synced, {number} found"));
        }
    }
    Ok(())
}

/// Writes without flushes and a sync now and then; also the making of the set is cut.
pub(super) fn survive_a_cut_apart() -> Verdict {
    const ORDER: [usize; 3] = [0, 1, 2];
    let sims = sims(3);
    let mut options = options(u64::MAX, false);
    options.durability = Durability::None;
    let store = open(&sims, &ORDER, true, &options)?;
    let begun = sims.position();
    let mut synced = vec![(begun, 0_u32)];
    for number in 1..=40_u32 {
        // Over several segments, and so over all members.
        put(&store, &format!("key{}", number % KEYS), &value_of(number))?;
        if number % 7 == 0 {
            store.sync().map_err(words)?;
            synced.push((sims.position(), number));
        }
    }
    let traces = sims.traces();
    for point in 0..=sims.position() {
        for state in 0..STATES {
            let survived = attach(&SimDevices::cut(&traces, point, point * STATES + state));
            let opened = open(&survived, &ORDER, point < begun, &options);
            let store = opened.map_err(|words| format!("point {point}, state {state}: {words}"))?;
            let Some((_, kept)) = synced.iter().rfind(|(at, _)| *at <= point) else { continue };
            has_what_was_synced(&store, *kept)
                .map_err(|words| format!("point {point}, state {state}: {words}"))?;
        }
    }
    Ok(())
}

/// Members in another order are the same store, and a member of another store is none.
pub(super) fn are_told_apart() -> Verdict {
    let sims = sims(2);
    let options = options(u64::MAX, false);
    let store = open(&sims, &[0, 1], true, &options)?;
    for number in 0..40_u8 {
        put(&store, &format!("key{number}"), &[number; 700])?;
    }
    drop(store);
    let store = open(&sims, &[1, 0], false, &options)?;
    for number in 0..40_u8 {
        expect(&store, &format!("key{number}"), Some(&[number; 700]))?;
    }
    Ok(())
}
