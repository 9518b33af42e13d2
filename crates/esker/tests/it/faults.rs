//! Failing devices: every call fails once, then from there on; nobody is told what is not so.

use crate::client::{Client, cut};
use crate::support::{DEVICE_SIZE, open, options};
use esker::{ErrorKind, Store};
use esker_media::sim::{FaultKind, FaultPlan, Initial, SimBlock, SimBlockOptions, Trigger};
use std::sync::Arc;

fn device(initial: Initial) -> Arc<SimBlock> {
    Arc::new(SimBlock::new(SimBlockOptions::new(DEVICE_SIZE, 5).initial(initial)))
}

/// Work until segments are reused.
fn work(client: &mut Client, store: &Store) {
    client.work(store, 120, 7, |n| {
        vec![u8::try_from(n).unwrap(); 50 + usize::try_from(n).unwrap() * 3]
    });
}

/// Fails the n-th call for every n, once or for ever, until the workload no longer gets there.
fn sweep(kind: FaultKind, for_ever: bool, expected: &[ErrorKind]) {
    let mut failed = 0;
    for n in 1..400 {
        let context = format!("{kind:?} at call {n}, for ever: {for_ever}");
        let device = device(Initial::Zeros);
        let store = open(&device, &options(5)).expect(&context);
        let trigger = if for_ever { Trigger::FromNth(n) } else { Trigger::Nth(n) };
        device.set_faults(FaultPlan::none().with(kind, trigger));
        let mut client = Client::default();
        work(&mut client, &store);
        device.set_faults(FaultPlan::none());
        for error in &client.errors {
            assert!(expected.contains(error), "{context}: {error:?}");
        }
        if client.errors.contains(&ErrorKind::ReadOnly) {
            assert!(store.stats().read_only.is_some(), "{context}: says why");
            assert_eq!(
                store.put(b"new", b"").unwrap_err().kind(),
                ErrorKind::ReadOnly,
                "{context}"
            );
        }
        // Reads go on.
        client.reads(&store, &context);
        for keep in [false, true] {
            let device = self::device(Initial::Recycled(cut(&device, keep)));
            let store = open(&device, &options(6)).expect(&context);
            client.check(&store, &context);
        }
        if client.errors.is_empty() {
            break;
        }
        failed += 1;
    }
    assert!(failed > 20, "{kind:?}: only {failed} calls could fail");
}

#[test]
fn a_write_that_fails_once_or_for_ever_makes_no_false_promise() {
    let expected = [ErrorKind::DurabilityUnknown, ErrorKind::ReadOnly];
    for for_ever in [false, true] {
        sweep(FaultKind::WriteError, for_ever, &expected);
        sweep(FaultKind::ShortWrite, for_ever, &expected);
        sweep(FaultKind::NoSpace, for_ever, &expected);
    }
}

#[test]
fn a_read_that_fails_once_is_read_again() {
    let device = device(Initial::Zeros);
    let store = open(&device, &options(5)).unwrap();
    store.put(b"k", b"v").unwrap();
    for kind in [FaultKind::ReadError, FaultKind::ReadFlip] {
        device.set_faults(FaultPlan::none().with(kind, Trigger::Nth(1)));
        assert_eq!(store.get(b"k").unwrap().unwrap().to_vec(), b"v");
    }
    device.set_faults(FaultPlan::none().with(FaultKind::ReadError, Trigger::FromNth(1)));
    assert_eq!(store.get(b"k").unwrap_err().kind(), ErrorKind::Io, "never not found");
    assert_eq!(store.put(b"k", b"w").unwrap_err().kind(), ErrorKind::Io);
    device.set_faults(FaultPlan::none());
    store.put(b"k", b"w").unwrap();
}

#[test]
fn a_flush_that_fails_once_is_not_taken_for_done_the_second_time() {
    let device = device(Initial::Zeros);
    let mut options = options(5);
    options.durability = esker::Durability::None;
    let store = open(&device, &options).unwrap();
    store.put(b"k", b"v").unwrap();
    device.set_faults(FaultPlan::none().with(FaultKind::FlushError, Trigger::Nth(1)));
    assert_eq!(store.sync().unwrap_err().kind(), ErrorKind::DurabilityUnknown);
    assert_eq!(store.sync().unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(store.put(b"k", b"w").unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(store.get(b"k").unwrap().unwrap().to_vec(), b"v", "reads go on");
    let why = store.stats().read_only.unwrap();
    assert!(why.contains("flush"), "{why}");
}

#[test]
fn a_lost_or_misdirected_write_is_never_another_keys_value() {
    for kind in [FaultKind::LostWrite, FaultKind::MisdirectedWrite] {
        for n in 1..60 {
            let device = device(Initial::Zeros);
            let store = open(&device, &options(9)).unwrap();
            device.set_faults(FaultPlan::none().with(kind, Trigger::Nth(n)));
            let mut client = Client::default();
            work(&mut client, &store);
            for n in 0..7 {
                let key = format!("key{n}").into_bytes();
                // An error, or what was written to that very key.
                if let Ok(found) = store.get(&key) {
                    let found = found.map(|value| value.to_vec());
                    assert_eq!(found.as_ref(), client.acknowledged.get(&key), "{kind:?} {n}");
                }
            }
        }
    }
}

#[test]
fn faults_while_opening_are_errors_and_the_next_open_works() {
    let device = device(Initial::Zeros);
    let store = open(&device, &options(5)).unwrap();
    let mut client = Client::default();
    work(&mut client, &store);
    drop(store);
    let image = device.image();
    let mut failed = 0;
    for n in 1..2000 {
        let device = self::device(Initial::Recycled(image.clone()));
        device.set_faults(FaultPlan::none().with(FaultKind::AnyError, Trigger::FromNth(n)));
        match open(&device, &options(6)) {
            Ok(_) => break,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Io, "call {n}: {error}"),
        }
        failed += 1;
        device.set_faults(FaultPlan::none());
        client.check(
            &open(&self::device(Initial::Recycled(device.image())), &options(6)).unwrap(),
            "reopened",
        );
    }
    assert!(failed > 10, "{failed} calls could fail");
}
