//! How a leader waits for the writers of the batch before: it makes one crowd of two, costs nobody more than half a write, and
//! changes nothing of what is promised. In simulations, where time is exact.

use crate::support::{open, options};
use esker::{Durability, ErrorKind, Options, Store};
use esker_base::clock::Clock;
use esker_base::{Error, Result};
use esker_media::BlockDevice;
use esker_media::sim::{Asking, Initial, SimBlock, SimBlockOptions};
use esker_trt::sim;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How long a durable write takes here.
const WRITE: Duration = Duration::from_millis(1);
/// More than the steps of a simulation, and the simulated device itself, add to that.
const SLACK: Duration = Duration::from_micros(100);
const SIZE: u64 = 2 << 20;

fn settings(seed: u64) -> Options {
    let mut options = options(seed);
    options.clock = Arc::new(sim::clock().unwrap());
    options.durability = Durability::Sync;
    options.testing.segment_size_bytes = Some(64 << 10);
    options
}

/// A store on a device whose durable writes take a millisecond each; the one of number `failing` fails after that.
fn slow(seed: u64, failing: u32) -> (Arc<Asking>, Store) {
    let mut inner = SimBlockOptions::new(SIZE, seed);
    (inner.record, inner.latency_max) = (false, Duration::from_micros(1));
    let count = AtomicU32::new(0);
    let device = Asking::new(Arc::new(SimBlock::new(inner)), move |call| {
        if call.site == esker::sites::depot::COMMIT_WRITE {
            esker_trt::sleep(WRITE);
            if count.fetch_add(1, Ordering::SeqCst) + 1 == failing {
                return Err(Error::new(ErrorKind::Io, "write device").context("planned fault"));
            }
        }
        Ok(())
    });
    let on = Arc::clone(&device) as Arc<dyn BlockDevice>;
    let store = Store::open_on(on, &settings(seed)).unwrap();
    (device, store)
}

fn simulate<T: 'static>(seed: u64, body: impl FnOnce() -> T + 'static) -> T {
    sim::run(seed, body).outcome.unwrap()
}

fn now() -> Duration {
    sim::clock().unwrap().monotonic()
}

/// Runs `writers` tasks that put `puts` times in all and think in between for up to `think`; returns how many records
/// the device got with each write.
fn crowd(seed: u64, writers: u32, puts: u32, think: Duration) -> f64 {
    simulate(seed, move || {
        let (device, store) = slow(seed, 0);
        let before = device.counters().writes;
        let done = Arc::new(AtomicU32::new(0));
        let tasks: Vec<_> = (0..writers)
            .map(|writer| {
                let (store, done) = (store.clone(), Arc::clone(&done));
                esker_trt::spawn(move || {
                    // The second half comes while the first one's write is under way.
                    if writer >= writers / 2 {
                        esker_trt::sleep(WRITE / 2);
                    }
                    while done.fetch_add(1, Ordering::SeqCst) < puts {
                        store.put(&[writer as u8], &[1; 40]).unwrap();
                        let most = u64::try_from(think.as_nanos()).unwrap().max(1);
                        esker_trt::sleep(Duration::from_nanos(sim::random(most).unwrap()));
                    }
                })
            })
            .collect();
        tasks.into_iter().for_each(|task| task.join().unwrap());
        f64::from(puts) / (device.counters().writes - before) as f64
    })
}

#[test]
fn two_crowds_that_take_turns_become_one() {
    for seed in 0..5 {
        // In turns it would be eight, or fewer.
        let each = crowd(seed, 16, 2400, WRITE / 5);
        assert!(each > 13.0, "seed {seed}: {each:.1} records a write");
    }
}

#[test]
fn a_crowd_writes_little_besides_keys_and_values() {
    for seed in 0..3 {
        let share = simulate(seed, move || {
            let (device, store) = slow(seed, 0);
            let before = device.counters().write_bytes;
            let tasks: Vec<_> = (0..40)
                .map(|writer| {
                    let store = store.clone();
                    esker_trt::spawn(move || {
                        for n in 0..150 {
                            store.put(format!("{writer:04}-{n:08}").as_bytes(), &[7; 100]).unwrap();
                            esker_trt::sleep(Duration::from_micros(sim::random(900).unwrap()));
                        }
                    })
                })
                .collect();
            tasks.into_iter().for_each(|task| task.join().unwrap());
            let user = (13 + 100) * 40 * 150;
            (device.counters().write_bytes - before) as f64 / f64::from(user)
        });
        // Of that, 0.04 are headers and trailers of segments, which are small here.
        assert!(share < 1.25, "seed {seed}: {share:.3} bytes for one of a client");
    }
}

#[test]
fn writers_who_think_long_are_not_waited_for() {
    for seed in 0..5 {
        let time = simulate(seed, move || {
            let (_device, store) = slow(seed, 0);
            let other = store.clone();
            // Comes back after twelve writes, each time: too late for anybody.
            let slow = esker_trt::spawn(move || {
                for n in 0..10 {
                    other.put(b"slow", &[n]).unwrap();
                    esker_trt::sleep(WRITE * 12);
                }
            });
            let begun = now();
            for n in 0..100 {
                store.put(b"fast", &[n]).unwrap();
            }
            let ended = now();
            slow.join().unwrap();
            ended - begun
        });
        // A write each, and half a one for each time that the other was there.
        let most = (WRITE + SLACK) * 100 + WRITE * 10;
        assert!(time < most, "seed {seed}: {time:?} for 100 writes");
    }
}

#[test]
fn writers_who_come_just_too_late_are_waited_for_once_in_a_while() {
    for seed in 0..5 {
        let time = simulate(seed, move || {
            let (_device, store) = slow(seed, 0);
            let begun = now();
            let tasks: Vec<_> = (0..2_u8)
                .map(|writer| {
                    let store = store.clone();
                    esker_trt::spawn(move || {
                        for n in 0..100 {
                            store.put(&[writer], &[n]).unwrap();
                            esker_trt::sleep(WRITE * 8 / 10);
                        }
                    })
                })
                .collect();
            tasks.into_iter().for_each(|task| task.join().unwrap());
            now() - begun
        });
        // They take turns, so that each write is behind another one; half a write more each time would be 300 ms.
        assert!(time < WRITE * 230, "seed {seed}: {time:?} for 200 writes");
    }
}

/// How long each put takes, of a writer that others leave alone after their first put.
fn latencies(seed: u64, others: u32) -> Vec<Duration> {
    simulate(seed, move || {
        let (_device, store) = slow(seed, 0);
        for other in 0..others {
            let store = store.clone();
            esker_trt::spawn(move || store.put(&[other as u8], b"once").unwrap());
        }
        (0..40)
            .map(|n| {
                let begun = now();
                store.put(b"mine", &[n]).unwrap();
                now() - begun
            })
            .collect()
    })
}

#[test]
fn a_writer_alone_waits_for_nobody_and_one_who_was_left_for_half_a_write_once() {
    for seed in 0..5 {
        let alone = latencies(seed, 0);
        assert!(alone.iter().all(|time| *time < WRITE + SLACK), "seed {seed}: {alone:?}");
        let left = latencies(seed, 12);
        // The first batches are shared with the others: behind the one under way.
        let after = &left[2..];
        assert!(after.iter().all(|time| *time < WRITE * 3 / 2 + SLACK), "seed {seed}: {left:?}");
        let waited = after.iter().filter(|time| **time > WRITE + SLACK).count();
        assert!(waited <= 1, "seed {seed}: waited {waited} times: {left:?}");
    }
}

/// What each writer knows to be durable, by key.
type Acknowledged = Arc<Mutex<BTreeMap<Vec<u8>, u8>>>;

/// Writers of own keys until the store refuses; returns the kinds of what they were told.
fn until_refused(seed: u64, store: &Store, acknowledged: &Acknowledged) -> Vec<ErrorKind> {
    let tasks: Vec<_> = (0..8_u8)
        .map(|writer| {
            let (store, acknowledged) = (store.clone(), Arc::clone(acknowledged));
            let think = sim::random(400).unwrap() + seed;
            esker_trt::spawn(move || {
                for n in 0.. {
                    match store.put(&[writer], &[n]) {
                        Ok(_) => drop(acknowledged.lock().insert(vec![writer], n)),
                        Err(error) => return error.kind(),
                    }
                    esker_trt::sleep(Duration::from_micros(think));
                }
                ErrorKind::Closed
            })
        })
        .collect();
    tasks.into_iter().map(|task| task.join().unwrap()).collect()
}

/// What was acknowledged is found on the medium; or, of a key whose last write failed, that one.
fn is_found(device: &Asking, acknowledged: &Acknowledged, seed: u64) {
    let initial = Initial::Recycled(device.inner().image());
    let survived = Arc::new(SimBlock::new(SimBlockOptions::new(SIZE, 1).initial(initial)));
    let store = open(&survived, &settings(seed)).unwrap();
    for (key, last) in &*acknowledged.lock() {
        let found = store.get(key).unwrap().expect("acknowledged")[0];
        assert!(found == *last || found == last + 1, "seed {seed}: {found} after {last}");
    }
}

#[test]
fn a_batch_that_fails_after_its_leader_waited_is_acknowledged_to_nobody() {
    for seed in 0..30 {
        simulate(seed, move || {
            let (device, store) = slow(seed, 3 + seed as u32 % 7);
            let acknowledged = Acknowledged::default();
            let told = until_refused(seed, &store, &acknowledged);
            let kinds = [ErrorKind::DurabilityUnknown, ErrorKind::ReadOnly];
            assert!(told.iter().all(|kind| kinds.contains(kind)), "seed {seed}: {told:?}");
            assert!(told.contains(&ErrorKind::DurabilityUnknown));
            is_found(&device, &acknowledged, seed);
        });
    }
}

#[test]
fn a_close_while_a_leader_waits_for_others_loses_no_write() {
    for seed in 0..30 {
        simulate(seed, move || {
            let (device, store) = slow(seed, 0);
            let acknowledged = Acknowledged::default();
            let closing = store.clone();
            let closer = esker_trt::spawn(move || -> Result<()> {
                // At any moment of a write, or of the wait before the next one.
                esker_trt::sleep(WRITE * 6 + Duration::from_micros(seed * 57));
                closing.close()
            });
            let told = until_refused(seed, &store, &acknowledged);
            assert!(told.iter().all(|kind| *kind == ErrorKind::Closed), "seed {seed}: {told:?}");
            closer.join().unwrap().unwrap();
            let found: BTreeMap<_, _> = {
                let initial = Initial::Recycled(device.inner().image());
                let on = SimBlockOptions::new(SIZE, 1).initial(initial);
                let store = open(&Arc::new(SimBlock::new(on)), &settings(seed));
                let items = store.unwrap().iter();
                items.map(|item| item.map(|(key, value)| (key, value[0]))).collect::<Result<_>>()
            }
            .unwrap();
            assert_eq!(found, *acknowledged.lock(), "seed {seed}: exactly what was acknowledged");
        });
    }
}
