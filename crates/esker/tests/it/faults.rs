//! Failing devices: every call fails once, then from there on; nobody is told what is not so.

use crate::support::{DEVICE_SIZE, open, options};
use esker::{ErrorKind, Result, Store};
use esker_media::sim::{FaultKind, FaultPlan, Image, Initial, SimBlock, SimBlockOptions, Trigger};
use std::collections::BTreeMap;
use std::sync::Arc;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// What a client knows: what was acknowledged, and what failed and may or may not be there.
#[derive(Default)]
struct Client {
    acknowledged: Map,
    unknown: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    errors: Vec<ErrorKind>,
}

impl Client {
    fn note(&mut self, key: &[u8], value: Option<&[u8]>, result: &Result<()>) {
        match (result, value) {
            (Ok(()), Some(value)) => drop(self.acknowledged.insert(key.into(), value.into())),
            (Ok(()), None) => drop(self.acknowledged.remove(key)),
            (Err(error), _) => {
                self.errors.push(error.kind());
                // Refused before anything happened, or unknown.
                if !matches!(error.kind(), ErrorKind::ReadOnly | ErrorKind::NoSpace) {
                    self.unknown.push((key.into(), value.map(<[u8]>::to_vec)));
                }
            }
        }
    }

    /// Writes, overwrites and deletes until segments are reused.
    fn work(&mut self, store: &Store) {
        for n in 0..120u32 {
            let key = format!("key{}", n % 7).into_bytes();
            if n % 11 == 10 {
                let result = store.delete(&key).map(drop);
                self.note(&key, None, &result);
            } else {
                let value = vec![u8::try_from(n).unwrap(); 50 + usize::try_from(n).unwrap() * 3];
                let result = store.put(&key, &value).map(drop);
                self.note(&key, Some(&value), &result);
            }
        }
    }

    fn check(&self, store: &Store, context: &str) {
        let found: Map = store
            .iter()
            .map(|item| item.map(|(key, value)| (key, value.to_vec())))
            .collect::<Result<_>>()
            .expect(context);
        let keys = self.acknowledged.keys().chain(found.keys());
        for key in keys {
            let state = found.get(key);
            let acknowledged = state == self.acknowledged.get(key);
            let unknown = self.unknown.iter().any(|(k, v)| k == key && v.as_ref() == state);
            assert!(acknowledged || unknown, "{context}: key {}", String::from_utf8_lossy(key));
        }
    }
}

fn device(initial: Initial) -> Arc<SimBlock> {
    Arc::new(SimBlock::new(SimBlockOptions::new(DEVICE_SIZE, 5).initial(initial)))
}

/// Power fails now; nothing survives that need not, or everything does.
fn cut(device: &SimBlock, keep: bool) -> Image {
    if keep {
        return device.image();
    }
    let trace = device.trace();
    let mut replay = trace.replay();
    replay.advance_to(u64::MAX);
    replay.states(1, 0).next().map_or_else(|| device.image(), |state| state.image())
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
        client.work(&store);
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
        for (key, value) in &client.acknowledged {
            let found = store.get(key).expect(&context).map(|value| value.to_vec());
            let unknown = client.unknown.iter().any(|(k, v)| k == key && *v == found);
            assert!(found.as_ref() == Some(value) || unknown, "{context}");
        }
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
            client.work(&store);
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
    client.work(&store);
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
