//! What a store of `flex` holds, with versions, attributes and times.
//!
//! A store forgets a value some time after it has expired, so what was written and has expired is a part of what it holds, and may be seen
//! by an open whose clock is behind: or not. What came before it must not be.

use esker::{Attributes, Direction, Result, Store, Value};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Time at which workloads begin, in Unix seconds.
pub(crate) const BEGIN: u64 = 1_000_000;

/// What a key has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) value: Vec<u8>,
    pub(crate) attributes: Attributes,
    pub(crate) version: u64,
}

impl Held {
    pub(crate) fn of(value: &Value) -> Held {
        Held { value: value.to_vec(), attributes: value.attributes(), version: value.version().0 }
    }

    fn has_expired(&self, time: u64) -> bool {
        self.attributes.expires_at.is_some_and(|at| at <= time)
    }
}

pub(crate) type Items = BTreeMap<Vec<u8>, Held>;

/// Everything that was written and stands, whether it has expired or not; or, of a store that was opened, everything that is seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) items: Items,
    /// What has expired and may be there, or not: a process was killed, and nothing tells whether the last write of it was lost.
    pub(crate) ghosts: Vec<(Vec<u8>, Held)>,
    /// What its clock says.
    pub(crate) time: u64,
}

impl Content {
    /// What is seen of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&Held> {
        self.items.get(key).filter(|held| !held.has_expired(self.time))
    }

    /// Everything that is seen.
    pub(crate) fn seen(&self) -> Items {
        let seen = self.items.iter().filter(|(_, held)| !held.has_expired(self.time));
        seen.map(|(key, held)| (key.clone(), held.clone())).collect()
    }

    /// Content of a store that shows this.
    pub(crate) fn shown(items: Items, time: u64) -> Content {
        Content { items, time, ghosts: Vec::new() }
    }

    /// Changes what a key has.
    pub(crate) fn set(&mut self, key: &[u8], held: Option<Held>) {
        self.ghosts.retain(|ghost| ghost.0 != key);
        match held {
            Some(held) => self.items.insert(key.to_vec(), held),
            None => self.items.remove(key),
        };
    }

    /// Takes away some keys.
    pub(crate) fn remove(&mut self, covers: impl Fn(&[u8]) -> bool) {
        self.ghosts.retain(|ghost| !covers(&ghost.0));
        self.items.retain(|key, _| !covers(key));
    }

    /// It may be that the store holds the other one instead, which shows the same.
    pub(crate) fn or(&mut self, other: &Content) {
        let items = other.items.iter().map(|(key, held)| (key.clone(), held.clone()));
        for (key, held) in items.chain(other.ghosts.iter().cloned()) {
            let is_known = self.items.get(&key) == Some(&held);
            if !is_known && held.has_expired(self.time) {
                self.ghosts.push((key, held));
            }
        }
    }

    /// Whether a store that holds this may show `found`. `latest`: the latest time that the store has seen. What has expired by then may
    /// be gone, even if the clock of who looks is behind.
    pub(crate) fn allows(&self, found: &Content, latest: u64) -> bool {
        let of_here = |(key, held): (&Vec<u8>, &Held)| {
            self.is_right(key, Some(held), found.items.get(key), (found.time, latest))
        };
        let of_found = |(key, seen): (&Vec<u8>, &Held)| {
            self.items.contains_key(key)
                || self.is_right(key, None, Some(seen), (found.time, latest))
        };
        self.items.iter().all(of_here) && found.items.iter().all(of_found)
    }

    fn is_right(
        &self,
        key: &[u8],
        held: Option<&Held>,
        seen: Option<&Held>,
        (time, latest): (u64, u64),
    ) -> bool {
        let may_be_gone = held.is_none_or(|held| held.has_expired(latest.max(time)));
        let Some(seen) = seen else { return may_be_gone };
        let is_ghost = || self.ghosts.iter().any(|ghost| ghost.0 == key && ghost.1 == *seen);
        let may_be = held == Some(seen) || may_be_gone && is_ghost();
        may_be && !seen.has_expired(time)
    }

    /// What of `found` a store that holds this may not show.
    pub(crate) fn difference(&self, found: &Content, latest: u64) -> String {
        let mut words = format!("at {} (latest {latest}):", found.time);
        for (key, held) in &self.items {
            let seen = found.items.get(key);
            if !self.is_right(key, Some(held), seen, (found.time, latest)) {
                let _ = write!(words, " {}: {} for {};", show(key), told(seen), told(Some(held)));
            }
        }
        for (key, seen) in &found.items {
            let is_here = self.items.contains_key(key);
            if !is_here && !self.is_right(key, None, Some(seen), (found.time, latest)) {
                let _ = write!(words, " {}: {} for nothing;", show(key), told(Some(seen)));
            }
        }
        words
    }
}

fn show(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

fn told(held: Option<&Held>) -> String {
    let Some(Held { value, attributes, version }) = held else { return "nothing".to_owned() };
    let (length, first) = (value.len(), value.first());
    let Attributes { flags, state, expires_at } = attributes;
    format!("{length} bytes {first:?} v{version} f{flags} s{state} e{expires_at:?}")
}

/// Everything that a store shows; `ways` says whether it is also read in the other direction, and key by key.
pub(crate) fn read(store: &Store, ways: u64) -> Result<Items> {
    let scan = |direction| -> Result<Vec<_>> {
        let items = store.scan(.., direction, usize::MAX)?;
        Ok(items.into_iter().map(|(key, value)| (key, Held::of(&value))).collect())
    };
    let forward = scan(Direction::Forward)?;
    if ways.is_multiple_of(2) {
        let mut back = scan(Direction::Reverse)?;
        back.reverse();
        assert_eq!(forward, back, "both directions");
    }
    if ways.is_multiple_of(3) {
        for (key, held) in &forward {
            let found = store.get(key)?;
            assert_eq!(found.as_ref().map(Held::of).as_ref(), Some(held), "a get finds it, too");
        }
    }
    Ok(forward.into_iter().collect())
}

/// Versions that clients were told of.
///
/// A version of a key is higher than those of its values before, over crashes as well, in whatever durability: it may be that of a value
/// that was lost, and then it must not come again for another one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told(Vec<(u64, Vec<u8>, u64)>);

impl Told {
    /// What a store shows that was opened.
    pub(crate) fn of(found: &Content) -> Told {
        Told(found.items.iter().map(|(key, held)| (0, key.clone(), held.version)).collect())
    }

    /// Those up to a position.
    pub(crate) fn until(&self, position: u64) -> Told {
        let all = self.0.iter().filter(|told| told.0 <= position);
        Told(all.map(|(_, key, version)| (0, key.clone(), *version)).collect())
    }

    pub(crate) fn extend(&mut self, other: &Told) {
        self.0.extend_from_slice(&other.0);
    }

    /// A write of a key returned, with this version.
    pub(crate) fn add(
        &mut self,
        position: u64,
        key: &[u8],
        version: u64,
    ) -> std::result::Result<(), String> {
        if let Some(before) = self.versions(key).max().filter(|before| *before >= version) {
            let key = show(key);
            return Err(format!("{key} has version {version}, and it had {before} before"));
        }
        self.0.push((position, key.to_vec(), version));
        Ok(())
    }

    /// Versions that a key had.
    pub(crate) fn versions(&self, key: &[u8]) -> impl Iterator<Item = u64> {
        self.0.iter().filter(move |told| told.1 == key).map(|told| told.2)
    }
}
