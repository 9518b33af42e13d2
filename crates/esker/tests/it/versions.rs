//! Versions of a `depot`: none is given twice, whatever a crash takes back.

use crate::client::cut;
use crate::support::{DEVICE_SIZE, open, options};
use esker::{Condition, Durability, Outcome, PutOptions};
use esker_media::sim::{Initial, SimBlock, SimBlockOptions};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

fn device(initial: Initial) -> Arc<SimBlock> {
    Arc::new(SimBlock::new(SimBlockOptions::new(DEVICE_SIZE, 4).initial(initial)))
}

#[test]
fn a_version_that_somebody_saw_is_never_given_again() {
    for durability in [Durability::None, Durability::Periodic(Duration::from_secs(3600))] {
        let (mut seen, mut lost) = (HashSet::new(), Vec::new());
        let mut initial = Initial::Zeros;
        for round in 0..40_usize {
            let device = device(initial);
            // One session in so many waits for its writes.
            let mut options = options(round as u64);
            options.durability = if round % 5 == 3 { Durability::Sync } else { durability };
            let store = open(&device, &options).unwrap();
            let standing = store.get(b"k").unwrap().map(|value| value.version());
            for version in lost.drain(..).filter(|version| Some(*version) != standing) {
                let condition = Condition::VersionIs(version);
                let put = PutOptions { condition, ..PutOptions::default() };
                let outcome = store.put_with(b"k", b"by chance", put).unwrap();
                assert!(!matches!(outcome, Outcome::Stored(_)), "{durability:?} {round}");
            }
            for number in 0..round * 7 % 45 {
                store.put(b"k", &vec![number as u8; number * 29]).unwrap();
                let version = store.get(b"k").unwrap().unwrap().version();
                assert!(seen.insert(version), "{durability:?} {round}: {version}");
                lost.push(version);
            }
            if round % 4 == 1 {
                store.sync().unwrap();
            }
            initial = if round % 7 == 6 {
                store.close().unwrap();
                Initial::Recycled(device.image())
            } else {
                Initial::Recycled(cut(&device, false))
            };
            store.forget();
        }
        assert!(seen.len() > 300);
    }
}

/// A session that goes on where a crash took versions back writes a barrier and its first batch at once, of which a crash may keep the
/// batch alone, or completes a segment, of which a crash may keep the trailer alone: nothing that counts is missing then.
#[test]
fn the_first_batch_behind_lost_versions_may_be_torn() {
    let mut judged = 0;
    for puts in 1..16_u8 {
        let first = device(Initial::Zeros);
        let mut options = options(u64::from(puts));
        options.durability = Durability::None;
        let store = open(&first, &options).unwrap();
        for number in 0..puts {
            store.put(&[number], &[number; 400]).unwrap();
        }
        store.sync().unwrap();
        store.put(b"lost", b"").unwrap();
        let kept = cut(&first, false);
        store.forget();
        let second = device(Initial::Recycled(kept));
        options.durability = Durability::Sync;
        let store = open(&second, &options).unwrap();
        store.put(b"new", &[9; 1000]).unwrap();
        let trace = second.trace();
        let mut replay = trace.replay();
        while replay.step() {
            for state in replay.states(64, replay.position()) {
                let survived = device(Initial::Recycled(state.image()));
                let store = open(&survived, &options)
                    .unwrap_or_else(|error| panic!("{puts}: {error} [{}]", state.describe()));
                for number in 0..puts {
                    let found = store.get(&[number]).unwrap();
                    assert_eq!(found.as_deref(), Some(&[number; 400][..]), "{puts}");
                }
                judged += 1;
            }
        }
    }
    assert!(judged > 100, "{judged}");
}
