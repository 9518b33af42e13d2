//! What is done with a store whose image was changed: everything that a store can do.
//!
//! A call may fail, and find less than was there. What it says it did has to be so at once; and where checksums count, what it
//! finds is what the key held at some time, also after the store was opened again.

use crate::base::{self, Known};
use crate::media::{Media, NOW, Shape};
use crate::run::{Seen, Verdict};
use esker::options::Progress;
use esker::{Batch, Condition, Direction, PutOptions, Result, Store, Value};
use esker_base::rng::Rng;
use esker_media::sim::SimArchive;
use std::collections::BTreeMap;

/// Items of a walk: one with more does not end.
const ITEMS_MAX: usize = 20_000;
/// Writes to an open store.
const WRITES: u64 = 16;
/// Keys that are written: most are there before.
const KEYS: u64 = 48;

/// A store under test, and what is known of it.
struct Tried<'a> {
    store: Store,
    shape: &'a Shape,
    known: Known,
    /// What it said that keys hold.
    told: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// Whether checksums count.
    strict: bool,
    rng: &'a mut Rng,
}

/// Opens the store on changed media and does everything with it; then again what is left then.
pub(crate) fn try_open(
    media: &Media,
    shape: &Shape,
    (known, strict): (Known, bool),
    rng: &mut Rng,
) -> std::result::Result<Seen, String> {
    let later = later(rng);
    let mut options = shape.options(rng.next_u64(), later);
    options.create = rng.chance(1, 2);
    let Ok(store) = media.open(&options) else { return Ok(Seen::default()) };
    let mut tried = Tried { store, shape, known, told: BTreeMap::new(), strict, rng };
    tried.all()?;
    let is_closed = tried.end();
    let reopened = media.open(&shape.options(tried.rng.next_u64(), later));
    let seen = Seen { opened: 1, reopened: u64::from(reopened.is_ok()), ..Seen::default() };
    let Ok(store) = reopened else { return Ok(seen) };
    tried.store = store;
    tried.read("opened again")?;
    if is_closed && strict {
        tried.recall()?;
    }
    let _ = tried.store.check();
    if tried.rng.chance(1, 4) {
        tried.clear()?;
    }
    tried.store.forget();
    Ok(seen)
}

/// Makes a new store in place of the changed one, and uses it.
pub(crate) fn try_format(
    media: &Media,
    shape: &Shape,
    strict: bool,
    rng: &mut Rng,
) -> std::result::Result<Seen, String> {
    let mut options = shape.options(rng.next_u64(), 0);
    options.format = true;
    let Ok(store) = media.open(&options) else { return Ok(Seen::default()) };
    let (known, told) = (Known::new(), BTreeMap::new());
    let mut tried = Tried { store, shape, known, told, strict, rng };
    tried.all()?;
    let is_closed = tried.end();
    let seen = Seen { formatted: 1, ..Seen::default() };
    match media.open(&shape.options(tried.rng.next_u64(), 0)) {
        Ok(store) => tried.store = store,
        Err(error) if strict => return Err(format!("made anew, it does not open: {error}")),
        Err(_) => return Ok(seen),
    }
    tried.read("made anew")?;
    if is_closed && strict {
        tried.recall()?;
    }
    tried.store.forget();
    Ok(seen)
}

/// Repairs the store on changed media, and uses it then.
pub(crate) fn try_repair(
    media: &Media,
    shape: &Shape,
    (known, strict): (Known, bool),
    rng: &mut Rng,
) -> std::result::Result<Seen, String> {
    let later = later(rng);
    if media.repair(&shape.options(rng.next_u64(), later)).is_err() {
        return Ok(Seen::default());
    }
    let seen = Seen { repaired: 1, ..Seen::default() };
    let store = match media.open(&shape.options(rng.next_u64(), later)) {
        Ok(store) => store,
        Err(error) if strict => return Err(format!("repaired, it does not open: {error}")),
        Err(_) => return Ok(seen),
    };
    let mut tried = Tried { store, shape, known, told: BTreeMap::new(), strict, rng };
    let checked = tried.store.check();
    if strict {
        let checked = checked.map_err(|error| format!("repaired, no check: {error}"))?;
        if let Some(problem) = checked.problems.first() {
            return Err(format!("repaired, it is not sound: {problem}"));
        }
    }
    tried.all()?;
    tried.store.forget();
    Ok(seen)
}

/// Restores a changed backup to blank media, and uses what is there then.
pub(crate) fn try_restore(
    archive: &SimArchive,
    shape: &Shape,
    (known, strict): (Known, bool),
    rng: &mut Rng,
) -> std::result::Result<Seen, String> {
    let media = Media::blank(shape);
    let mut options = shape.options(rng.next_u64(), 0);
    options.format = true;
    if media.restore(archive, &options).is_err() {
        return Ok(Seen::default());
    }
    let mut options = shape.options(rng.next_u64(), 0);
    options.create = false;
    let seen = Seen { restored: 1, ..Seen::default() };
    let Ok(store) = media.open(&options) else { return Ok(seen) };
    let mut tried = Tried { store, shape, known, told: BTreeMap::new(), strict, rng };
    tried.read("restored")?;
    let _ = tried.store.check();
    tried.store.forget();
    Ok(seen)
}

/// How late it is, in seconds since stores were made.
fn later(rng: &mut Rng) -> u64 {
    [0, 0, 250, 1_000_000][rng.index(4)]
}

impl Tried<'_> {
    fn all(&mut self) -> Verdict {
        self.read("opened")?;
        let _ = (self.store.stats(), self.store.report(), self.store.check());
        for _ in 0..WRITES {
            self.write()?;
            if self.rng.chance(1, 4) {
                self.tend();
            }
        }
        let snapshot = self.store.snapshot();
        for _ in 0..4 {
            self.tend();
        }
        if let Ok(snapshot) = &snapshot {
            for key in self.known.keys() {
                let _ = snapshot.get(key);
            }
            let _ = snapshot.scan(.., Direction::Reverse, ITEMS_MAX);
        }
        drop(snapshot);
        if self.strict {
            self.recall()?;
        }
        if self.rng.chance(1, 4) {
            let archive = SimArchive::new();
            let _ = self.store.backup_to(&archive, &Progress::default());
        }
        self.read("used")
    }

    /// The store ends in some way; whether it was closed.
    fn end(&mut self) -> bool {
        match self.rng.below(4) {
            0 => {
                let _ = self.store.write_out();
                self.store.clone().forget();
                false
            }
            1 => {
                self.store.clone().forget();
                false
            }
            _ => self.store.close().is_ok(),
        }
    }

    /// Whether a key may be found to hold this.
    fn judge(&self, what: &str, key: &[u8], value: &Value) -> Verdict {
        let once = self.known.get(key);
        if !self.strict || once.is_some_and(|values| values.contains(&**value)) {
            return Ok(());
        }
        let length = value.len();
        let words = if once.is_some() { "never held" } else { "never was" };
        Err(format!("{what}: a key {words}: {} bytes, value of {length}", key.len()))
    }

    /// Reads everything in every way.
    fn read(&mut self, what: &str) -> Verdict {
        for key in self.known.keys() {
            let _ = self.store.read_size_bytes(key);
            if let Ok(Some(value)) = self.store.get(key) {
                self.judge(what, key, &value)?;
            }
        }
        let keys: Vec<&[u8]> = self.known.keys().map(Vec::as_slice).collect();
        let _ = self.store.multi_get(&keys);
        let mut count = 0;
        for item in self.store.iter().take(ITEMS_MAX) {
            count += 1;
            if let Ok((key, value)) = item {
                self.judge(what, &key, &value)?;
            }
        }
        if count == ITEMS_MAX {
            return Err(format!("{what}: a walk does not end"));
        }
        if self.store.is_ordered() {
            self.scan(what)?;
        }
        Ok(())
    }

    fn scan(&mut self, what: &str) -> Verdict {
        for direction in [Direction::Forward, Direction::Reverse] {
            let all: Option<Vec<_>> = self.store.scan(.., direction, ITEMS_MAX).ok();
            let from = base::key(self.rng, KEYS);
            let part = self.store.range(&from[..].., direction).take(ITEMS_MAX);
            let part: Vec<_> = part.filter_map(Result::ok).collect();
            for items in all.iter().chain([&part]) {
                if items.len() == ITEMS_MAX {
                    return Err(format!("{what}: a scan does not end"));
                }
                let in_order = items.windows(2).all(|two| match direction {
                    Direction::Forward => two[0].0 < two[1].0,
                    Direction::Reverse => two[0].0 > two[1].0,
                });
                if self.strict && !in_order {
                    return Err(format!("{what}: a scan is not in order"));
                }
                for (key, value) in items {
                    self.judge(what, key, value)?;
                }
            }
        }
        Ok(())
    }

    /// One write. What it says it did is there at once, or an error.
    fn write(&mut self) -> Verdict {
        let key = base::key(self.rng, KEYS);
        let value = base::value(self.rng, self.shape.segment());
        let mut learn = |key: &Vec<u8>, value: &Vec<u8>| {
            self.known.entry(key.clone()).or_default().insert(value.clone());
        };
        match self.rng.below(12) {
            0..5 => {
                learn(&key, &value);
                let done = self.store.put(&key, &value).map(|_| Some(value));
                self.look("put", key, done)
            }
            5 | 6 => {
                let done = self.store.delete(&key).map(|_| None);
                self.look("delete", key, done)
            }
            7 => {
                learn(&key, &value);
                let condition = [Condition::Absent, Condition::Present][self.rng.index(2)];
                let options = PutOptions { condition, ..PutOptions::default() };
                match self.store.put_with(&key, &value, options) {
                    Ok(esker::Outcome::Stored(_)) => self.look("put_if", key, Ok(Some(value))),
                    Ok(_) => Ok(()),
                    Err(error) => self.look("put_if", key, Err(error)),
                }
            }
            8 | 9 => {
                let mut batch = Batch::new();
                let mut told = BTreeMap::new();
                for number in 0..1 + self.rng.below(5) {
                    let key = base::key(self.rng, KEYS);
                    let put = (number % 3 != 2).then(|| base::value(self.rng, 300));
                    match &put {
                        Some(value) => {
                            learn(&key, value);
                            batch.put(&key, value);
                        }
                        None => {
                            batch.delete(&key);
                        }
                    }
                    told.insert(key, put);
                }
                let done = self.store.write(&batch);
                told.into_iter().try_for_each(|(key, value)| {
                    self.look("write", key, done.clone().map(|_| value))
                })
            }
            10 => {
                self.told.remove(&key);
                let _ = self.store.touch(&key, Some(NOW + self.rng.below(2_000_000)));
                Ok(())
            }
            _ => {
                let to = base::key(self.rng, KEYS);
                let inside = |one: &Vec<u8>| *one >= key && *one < to;
                self.told.retain(|one, _| !inside(one));
                if self.store.delete_range(&key, Some(&to)).is_ok() {
                    let keys: Vec<_> =
                        self.known.keys().filter(|one| inside(one)).cloned().collect();
                    for key in keys {
                        self.look("delete_range", key, Ok(None))?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Compares what a write said with what is found now.
    fn look(&mut self, what: &str, key: Vec<u8>, done: Result<Option<Vec<u8>>>) -> Verdict {
        let Ok(told) = done else {
            self.told.remove(&key);
            return Ok(());
        };
        self.compare(what, &key, told.as_ref())?;
        self.told.insert(key, told);
        Ok(())
    }

    fn compare(&self, what: &str, key: &[u8], told: Option<&Vec<u8>>) -> Verdict {
        let Ok(found) = self.store.get(key) else { return Ok(()) };
        let same = match (&found, told) {
            (Some(found), Some(told)) => **found == told[..],
            (None, None) => true,
            // A cache may forget.
            (None, Some(_)) => self.shape.cache,
            (Some(_), None) => false,
        };
        if same {
            return Ok(());
        }
        let (found, told) = (found.map(|found| found.len()), told.map(Vec::len));
        Err(format!("after {what}: found {found:?} bytes, not {told:?}"))
    }

    /// Deletes everything. Nothing is found then.
    fn clear(&mut self) -> Verdict {
        if self.store.clear().is_err() {
            return Ok(());
        }
        self.known.keys().try_for_each(|key| self.compare("clear", key, None))
    }

    /// Compares everything that the store said with what is found now.
    fn recall(&mut self) -> Verdict {
        self.told.iter().try_for_each(|(key, told)| self.compare("all", key, told.as_ref()))
    }

    /// What a store does by itself, or is asked to do.
    fn tend(&mut self) {
        match self.rng.below(8) {
            0 | 1 => drop(self.store.clean(1 + self.rng.index(3))),
            2 => drop(self.store.checkpoint()),
            3 => drop(self.store.sync()),
            4 => drop(self.store.trim()),
            5 => drop(self.store.check()),
            6 if self.shape.cache => drop(self.store.evict(1)),
            _ => drop(self.store.write_out()),
        }
    }
}
