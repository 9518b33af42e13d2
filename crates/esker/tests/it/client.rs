//! A client of a store whose device fails: it remembers what it was told, and asks for no less after a power cut.

use esker::{ErrorKind, Result, Store};
use esker_media::sim::{Image, SimBlock};
use std::collections::BTreeMap;

pub(crate) type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// What a client knows: what was acknowledged, and what failed and may or may not be there.
#[derive(Default)]
pub(crate) struct Client {
    pub(crate) acknowledged: Map,
    unknown: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    pub(crate) errors: Vec<ErrorKind>,
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

    /// Writes, overwrites and deletes `keys` keys in `count` steps; `value` makes that of a step.
    pub(crate) fn work(
        &mut self,
        store: &Store,
        count: u32,
        keys: u32,
        value: impl Fn(u32) -> Vec<u8>,
    ) {
        for n in 0..count {
            let key = format!("key{}", n % keys).into_bytes();
            if n % 11 == 10 {
                let result = store.delete(&key).map(drop);
                self.note(&key, None, &result);
            } else {
                let value = value(n);
                let result = store.put(&key, &value).map(drop);
                self.note(&key, Some(&value), &result);
            }
        }
    }

    fn may_be(&self, key: &[u8], found: Option<&Vec<u8>>) -> bool {
        let mut unknown = self.unknown.iter();
        found == self.acknowledged.get(key) || unknown.any(|(k, v)| k == key && v.as_ref() == found)
    }

    /// The store answers gets with what was acknowledged, or what may have become of what failed.
    pub(crate) fn reads(&self, store: &Store, context: &str) {
        for key in self.acknowledged.keys() {
            let found = store.get(key).expect(context).map(|value| value.to_vec());
            let (size, key_shown) = (found.as_ref().map(Vec::len), String::from_utf8_lossy(key));
            assert!(
                self.may_be(key, found.as_ref()),
                "{context}: {key_shown} {size:?} {:?}",
                self.errors
            );
        }
    }

    /// The same of everything that the store holds, and nothing is missing.
    pub(crate) fn check(&self, store: &Store, context: &str) {
        let items = store.iter().map(|item| item.map(|(key, value)| (key, value.to_vec())));
        let found: Map = items.collect::<Result<_>>().expect(context);
        for key in self.acknowledged.keys().chain(found.keys()) {
            let shown = String::from_utf8_lossy(key);
            assert!(self.may_be(key, found.get(key)), "{context}: key {shown}");
        }
    }
}

/// Power fails now; nothing survives that need not, or everything does.
pub(crate) fn cut(device: &SimBlock, keep: bool) -> Image {
    if keep {
        return device.image();
    }
    let trace = device.trace();
    let mut replay = trace.replay();
    replay.advance_to(u64::MAX);
    replay.states(1, 0).next().map_or_else(|| device.image(), |state| state.image())
}
