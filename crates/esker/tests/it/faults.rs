//! Failing devices: every call fails once, then from there on; nobody is told what is not so.

use crate::client::{Client, cut};
use crate::support::{DEVICE_SIZE, open, options};
use esker::{Durability, ErrorKind, Store};
use esker_base::Error;
use esker_media::sim::{
    Act, Asking, FaultKind, FaultPlan, Initial, SimBlock, SimBlockOptions, Trigger,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

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
        let fired = device.faults_fired();
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
        if fired == 0 {
            break;
        }
        // Who asks for room in vain has lost nothing.
        failed += u32::from(!client.errors.is_empty());
    }
    assert!(failed > 20, "{kind:?}: only {failed} calls could fail");
}

#[test]
fn a_write_that_fails_once_or_for_ever_makes_no_false_promise() {
    let expected = [ErrorKind::DurabilityUnknown, ErrorKind::ReadOnly, ErrorKind::NoSpace];
    for for_ever in [false, true] {
        sweep(FaultKind::WriteError, for_ever, &expected[..2]);
        sweep(FaultKind::ShortWrite, for_ever, &expected[..2]);
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

/// A panic in a write is a failed write: nobody builds on what it left half done.
#[test]
fn behind_a_panic_of_the_device_nothing_is_written_and_nobody_waits() {
    type Call = fn(&Store) -> esker::Result<()>;
    let put: Call = |store| {
        (0..2000_u32).try_for_each(|n| store.put(&n.to_be_bytes(), &[7; 100]).map(drop))?;
        store.sync()
    };
    let clear: Call = |store| {
        store.clear()?;
        store.sync()
    };
    for durability in [Durability::None, Durability::Sync] {
        for call in [put, clear] {
            let panics = Arc::new(AtomicBool::new(false));
            let asked = Arc::clone(&panics);
            let inner = device(Initial::Zeros);
            let asking = Asking::new(Arc::clone(&inner), move |call| {
                if call.act == Act::Write && asked.swap(false, Ordering::Relaxed) {
                    panic!("the device");
                }
                Ok(())
            });
            let mut options = options(5);
            options.durability = durability;
            let store = Store::open_on(asking, &options).unwrap();
            for n in 0..50_u32 {
                store.put(&n.to_le_bytes(), b"before").unwrap();
            }
            store.sync().unwrap();
            panics.store(true, Ordering::Relaxed);
            let caught = catch_unwind(AssertUnwindSafe(|| call(&store)));
            assert!(caught.is_err(), "{durability}");
            let (tell, hear) = mpsc::channel();
            let other = store.clone();
            std::thread::scope(|scope| {
                scope.spawn(move || tell.send(other.put(b"later", b"1").map(drop)).unwrap());
                let put = hear.recv_timeout(Duration::from_secs(60)).expect("nobody waits");
                assert_eq!(put.unwrap_err().kind(), ErrorKind::ReadOnly, "{durability}");
            });
            assert!(store.get(b"later").unwrap().is_none());
            store.forget();
            let store = open(&inner, &options).unwrap();
            for n in 0..50_u32 {
                let found = store.get(&n.to_le_bytes()).unwrap();
                assert_eq!(found.as_deref(), Some(&b"before"[..]), "{durability}, {n}");
            }
        }
    }
}

/// As above, with others in the batch, behind it, and at the end of the store.
#[test]
#[expect(clippy::disallowed_methods, reason = "a thread that waits for ever is left behind")]
fn nobody_waits_for_a_leader_that_panicked() {
    for round in 0..20 {
        let asked = Arc::new(AtomicBool::new(false));
        let panics = Arc::clone(&asked);
        let asking = Asking::new(device(Initial::Zeros), move |call| {
            if call.act == Act::Write && panics.swap(false, Ordering::Relaxed) {
                // Until others have come.
                esker_trt::sleep(Duration::from_millis(round));
                panic!("the device");
            }
            Ok(())
        });
        let mut options = options(round);
        options.durability = Durability::Sync;
        let store = Store::open_on(asking, &options).unwrap();
        store.put(b"key", b"before").unwrap();
        asked.store(true, Ordering::Relaxed);
        let (tell, hear) = mpsc::channel();
        for writer in 0..6_u8 {
            let (store, tell) = (store.clone(), tell.clone());
            std::thread::spawn(move || {
                let put = || (0..50_u8).try_for_each(|n| store.put(&[writer, n], b"v").map(drop));
                tell.send(catch_unwind(AssertUnwindSafe(put)).ok()).unwrap();
            });
        }
        let heard =
            (0..6).map(|_| hear.recv_timeout(Duration::from_secs(60)).expect("nobody waits"));
        let heard: Vec<_> = heard.collect();
        assert_eq!(heard.iter().filter(|end| end.is_none()).count(), 1, "one panicked");
        for refused in heard.into_iter().flatten() {
            let kind = refused.unwrap_err().kind();
            assert!(matches!(kind, ErrorKind::DurabilityUnknown | ErrorKind::ReadOnly), "{kind:?}");
        }
        let (tell, hear) = mpsc::channel();
        std::thread::spawn(move || {
            drop(store);
            tell.send(()).unwrap();
        });
        hear.recv_timeout(Duration::from_secs(60)).expect("the end waits for nobody");
    }
}

/// What the caller refuses is no failed read.
#[test]
fn who_may_not_take_the_memory_is_asked_once_and_told_the_refusal() {
    let device = device(Initial::Zeros);
    let store = open(&device, &options(5)).unwrap();
    store.put(b"key", &[1; 1000]).unwrap();
    for kind in [ErrorKind::OutOfMemory, ErrorKind::Io, ErrorKind::Corrupted] {
        let mut asked = 0;
        let refused = store.get_with(b"key", &mut |_| {
            asked += 1;
            // Somebody else writes it meanwhile.
            store.put(b"key", &[2; 1000]).unwrap();
            Err(Error::new(kind, "test"))
        });
        assert_eq!((refused.unwrap_err().kind(), asked), (kind, 1));
    }
}
