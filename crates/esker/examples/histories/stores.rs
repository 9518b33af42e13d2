//! Whole stores under threads: every call that reads or writes, on few keys, beside cleaning, checkpoints and reopens.
//!
//! Each key's history has to be linearizable, whatever the call was; a batch is a write of each of its keys. What a scan, a walk
//! or several gets at once tell are reads of each key that they cover, and a snapshot is one at the moment that it was taken, whenever it
//! is read; it shows batches whole. Versions are those of one write each, and rise from what anybody was told before a write began. The engine's own tests use this file, too.
//!
//! # Failure
//! After each round the store is left as a crash of its process leaves it, or closed: what the next open shows has to be
//! explained as well.

use esker::{
    Attributes, Batch, Batching, Direction, Durability, EngineKind, Options, Outcome, Snapshot,
    Store, Value, Version,
};
use esker_base::rng::Rng;
use esker_testkit::histories::keys::{Key, Keys};
use esker_testkit::histories::told::{Known, Round, Shown, Times, Told, Written};
use esker_testkit::histories::{
    Effort, Figures, Recorder, judge, key_of, met_again, value_of, word_of,
};
use esker_testkit::linearizability::{Action, State};
use std::ops::Bound;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Keys of a store whose threads are to meet.
const KEYS: usize = 24;
/// Longest keys: they have to fit into small segments.
const KEY_BYTES_MAX: usize = 300;

/// Does what a seed says with a store of this engine in the folder, which must be empty.
///
/// # Errors
/// What nothing explains, and whatever a call fails with.
pub(crate) fn explore(
    engine: EngineKind,
    seed: u64,
    effort: &Effort,
    folder: &Path,
) -> Result<Figures, String> {
    let mut rng = Rng::from_seed(seed);
    let options = options(engine, seed, folder);
    let keys = keys_of(seed, &mut rng);
    let told = |words: String| format!("{engine}, seed {seed}, {keys}: {words}");
    run(&options, &keys, &mut rng, effort).map_err(told)
}

/// Small media, so that everything is moved again and again.
fn options(engine: EngineKind, seed: u64, folder: &Path) -> Options {
    let mut options = Options::new(folder);
    options.engine = Some(engine);
    let is_flat = matches!(engine, EngineKind::FlatCceh | EngineKind::FlatMasstree);
    options.pmem_emulate = is_flat;
    options.size_bytes = match engine {
        EngineKind::Flex => 64 << 20,
        EngineKind::Depot => 2 << 20,
        _ => 512 << 10,
    };
    if engine != EngineKind::Flex {
        options.testing.segment_size_bytes = Some(if is_flat { 4 << 10 } else { 32 << 10 });
    }
    // Every third one shares hashes among all its keys.
    if seed % 3 == 1 {
        options.testing.hash_mask = 3;
    }
    // What does not wait for the device: nothing of that is a crash's.
    if !is_flat && seed % 4 == 3 {
        options.durability = Durability::Periodic(Duration::from_millis(20));
    }
    // A cleaner for each processor.
    options.batching_group = 1 + usize::try_from(seed % 2).unwrap_or(0);
    options.batching = Batching::ALL[usize::try_from(seed / 2 % 4).unwrap_or(0)];
    options.flex.memtable_size_bytes = 64 << 10;
    options.flex.cache_size_bytes = if seed.is_multiple_of(2) { 0 } else { 64 << 10 };
    options.flex.interval_pairs_max = 4;
    options.flex.large_value_size_bytes = 2000;
    options.record_cache_bytes = if seed.is_multiple_of(2) { 0 } else { 64 << 10 };
    options
}

/// Some keys of an index's histories that a store takes.
fn keys_of(seed: u64, rng: &mut Rng) -> Keys {
    let takes = |key: &[u8]| (1..=KEY_BYTES_MAX).contains(&key.len());
    Keys::of_seed(seed, rng).limited(KEYS, takes)
}

/// A value that tells its number, of a size that goes with it.
fn value(number: u64) -> Vec<u8> {
    const SIZES: [usize; 8] = [8, 20, 100, 256, 257, 400, 1000, 3000];
    let size = SIZES[usize::try_from(value_of(number) % 8).unwrap_or(0)];
    let mut value = vec![number.to_le_bytes()[2]; size];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value
}

fn words<T>(result: esker::Result<T>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

fn run(options: &Options, keys: &Keys, rng: &mut Rng, effort: &Effort) -> Result<Figures, String> {
    let mut figures = Figures::default();
    let mut store = words(Store::open(options))?;
    let values = AtomicU64::new(1);
    let mut before: Vec<State> = vec![None; keys.all().len()];
    let mut known = Known::default();
    for round in 0..effort.rounds {
        let told = |words: String| format!("round {round}: {words}");
        let time = AtomicU64::new(1);
        let ended = AtomicBool::new(false);
        let seeds: Vec<Rng> = (0..effort.threads).map(|_| rng.fork()).collect();
        let done: Vec<Result<Thread<'_>, String>> = std::thread::scope(|scope| {
            let beside = scope.spawn(|| tend(&store, &ended));
            let threads: Vec<_> = seeds
                .into_iter()
                .map(|rng| {
                    let mut thread = Thread::new(&store, keys, rng, &values, &time);
                    scope.spawn(move || thread.run(effort.beside).map(|()| thread))
                })
                .collect();
            let mut done: Vec<_> = threads
                .into_iter()
                .map(|it| it.join().map_err(|_| "a panic".to_owned())?)
                .collect();
            ended.store(true, Ordering::Relaxed);
            match beside.join().unwrap_or(Err("a panic beside".to_owned())) {
                Ok(cleaned) => figures.cleaned += cleaned as u64,
                Err(words) => done.push(Err(words)),
            }
            done
        });
        let (mut calls, mut all_told, mut twice) = (Vec::new(), Round::default(), Vec::new());
        for thread in done {
            let mut thread = thread.map_err(told)?;
            thread.snapshot = None;
            calls.extend(std::mem::take(&mut thread.recorder.calls));
            all_told.append(std::mem::take(&mut thread.told));
            twice.append(&mut thread.twice);
            figures += thread.figures;
        }
        met_again(&calls, &twice).map_err(told)?;
        let report = words(store.check()).map_err(told)?;
        if !report.is_sound() {
            return Err(told(format!("{:?}", report.problems)));
        }
        if options.durability == Durability::Sync && round % 2 == 0 {
            store.forget();
        } else {
            words(store.close()).map_err(told)?;
            drop(store);
        }
        store = words(Store::open(options)).map_err(told)?;
        let mut after = Vec::new();
        for key in keys.all() {
            let found = words(store.get(&key.bytes)).map_err(told)?;
            let end = time.fetch_add(1, Ordering::Relaxed);
            let seen = found.map(|found| seen_of(key, &found)).transpose().map_err(told)?;
            if let Some((number, version)) = seen {
                all_told.told.push(Told {
                    key: key.number,
                    number,
                    version,
                    times: (end, end),
                    wrote: false,
                });
            }
            after.push(seen.map(|(number, _)| number));
        }
        known.learn(all_told, &calls).map_err(told)?;
        figures.judged += judge(calls, &before, &after).map_err(told)?;
        before = after;
    }
    words(store.close())?;
    Ok(figures)
}

/// What a store does beside its clients, all the time; how many segments it cleaned.
fn tend(store: &Store, ended: &AtomicBool) -> Result<usize, String> {
    let (mut turn, mut cleaned) = (0_u64, 0);
    while !ended.load(Ordering::Relaxed) {
        turn += 1;
        cleaned += words(store.clean(2))?;
        words(store.checkpoint())?;
        if turn.is_multiple_of(50) {
            words(store.sync())?;
        }
        if turn.is_multiple_of(200) {
            let report = words(store.check())?;
            if !report.is_sound() {
                return Err(format!("beside clients: {:?}", report.problems));
            }
        }
        std::thread::yield_now();
    }
    Ok(cleaned)
}

/// Number and version of a value, which must be whole and this key's.
fn seen_of(key: &Key, found: &Value) -> Result<(u64, u64), String> {
    let number = found.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    if key_of(number) != key.number || **found != value(number)[..] {
        return Err(format!("key {} has what was never written to it: {number:x}", key.number));
    }
    Ok((number, found.version().0))
}

struct Thread<'t> {
    store: &'t Store,
    keys: &'t Keys,
    rng: Rng,
    values: &'t AtomicU64,
    recorder: Recorder<'t>,
    told: Round,
    /// A value and version that each key had at some time.
    stale: Vec<Option<(u64, u64)>>,
    /// One that is read later, and when it was taken.
    snapshot: Option<(Snapshot, Times)>,
    /// Keys that a walk met twice, and when.
    twice: Vec<(usize, Times)>,
    figures: Figures,
}

impl<'t> Thread<'t> {
    fn new(
        store: &'t Store,
        keys: &'t Keys,
        rng: Rng,
        values: &'t AtomicU64,
        time: &'t AtomicU64,
    ) -> Self {
        let stale = vec![None; keys.all().len()];
        let recorder = Recorder::new(time);
        Thread {
            store,
            keys,
            rng,
            values,
            recorder,
            told: Round::default(),
            stale,
            snapshot: None,
            twice: Vec::new(),
            figures: Figures::default(),
        }
    }

    fn run(&mut self, operations: u64) -> Result<(), String> {
        let has_snapshots = self.store.engine() == EngineKind::Flex;
        for _ in 0..operations {
            self.figures.beside += 1;
            let key = self.any();
            match self.rng.below(100) {
                0..22 => self.get(key).map(drop)?,
                22..40 => self.put(key)?,
                40..46 => self.delete(key)?,
                46..50 => self.compare_and_delete(key)?,
                50..57 => self.put_if(key, false)?,
                57..61 => self.put_if(key, true)?,
                61..74 => self.compare_and_put(key)?,
                74..82 => self.modify(key)?,
                82..89 => self.write()?,
                89..94 => self.multi_get()?,
                94..97 if self.store.is_ordered() => self.scan()?,
                97 if has_snapshots => self.take_snapshot()?,
                98 if has_snapshots => self.delete_range()?,
                99 => self.walk()?,
                _ => self.get(key).map(drop)?,
            }
        }
        Ok(())
    }

    fn any(&mut self) -> &'t Key {
        let keys = self.keys;
        keys.get(self.rng.index(keys.all().len()))
    }

    fn next(&self, key: &Key) -> u64 {
        word_of(key.number, self.values.fetch_add(1, Ordering::Relaxed))
    }

    /// Something told number and version of what a key has.
    fn tell(&mut self, key: &Key, (number, version): (u64, u64), times: Times, wrote: bool) {
        self.told.told.push(Told { key: key.number, number, version, times, wrote });
        if let Some(stale) = self.stale.get_mut(key.number) {
            *stale = Some((number, version));
        }
    }

    /// A read showed this of a key.
    fn saw(&mut self, key: &Key, found: Option<&Value>, times: Times) -> Result<State, String> {
        let seen = found.map(|found| seen_of(key, found)).transpose()?;
        if let Some(seen) = seen {
            self.tell(key, seen, times, false);
        }
        let state = seen.map(|(number, _)| number);
        self.recorder.note(key.number, Action::Read(Some(state)), times);
        Ok(state)
    }

    fn get(&mut self, key: &Key) -> Result<State, String> {
        let store = self.store;
        let (found, times) = self.recorder.timed(|| store.get(&key.bytes));
        self.saw(key, words(found)?.as_ref(), times)
    }

    fn put(&mut self, key: &Key) -> Result<(), String> {
        let (store, number) = (self.store, self.next(key));
        let value = value(number);
        let (version, times) = self.recorder.timed(|| store.put(&key.bytes, &value));
        self.tell(key, (number, words(version)?.0), times, true);
        self.recorder.note(key.number, Action::Write(number), times);
        Ok(())
    }

    /// A write on a condition had this outcome; `action` is what it was, told whether it was done.
    fn outcome(
        &mut self,
        key: &Key,
        number: u64,
        (outcome, times): (esker::Result<Outcome>, Times),
        action: impl FnOnce(bool) -> Action,
    ) -> Result<(), String> {
        let outcome = words(outcome)?;
        if let Outcome::Stored(version) = outcome {
            self.tell(key, (number, version.0), times, true);
        }
        let action = action(matches!(outcome, Outcome::Stored(_)));
        // A key without a value says so, whatever it was asked.
        let action = if outcome == Outcome::KeyMissing { Action::Read(Some(None)) } else { action };
        self.recorder.note(key.number, action, times);
        Ok(())
    }

    fn put_if(&mut self, key: &Key, present: bool) -> Result<(), String> {
        let (store, number) = (self.store, self.next(key));
        let value = value(number);
        let done = self.recorder.timed(|| match present {
            true => store.put_if_present(&key.bytes, &value),
            false => store.put_if_absent(&key.bytes, &value),
        });
        let action = |done| Action::WriteIf { present, value: number, done: Some(done) };
        self.outcome(key, number, done, action)
    }

    /// What a key has, or had: mostly it is looked up.
    fn held(&mut self, key: &Key) -> Result<Option<(u64, u64)>, String> {
        if !self.rng.chance(1, 3) && self.get(key)?.is_none() {
            return Ok(None);
        }
        Ok(self.stale.get(key.number).copied().flatten())
    }

    fn compare_and_put(&mut self, key: &Key) -> Result<(), String> {
        let Some((old, version)) = self.held(key)? else { return Ok(()) };
        let (store, number) = (self.store, self.next(key));
        let value = value(number);
        let done =
            self.recorder.timed(|| store.compare_and_put(&key.bytes, Version(version), &value));
        let action = |done| Action::CompareAndSet {
            expected: Some(old),
            new: Some(number),
            done: Some(done),
        };
        self.outcome(key, number, done, action)
    }

    fn delete(&mut self, key: &Key) -> Result<(), String> {
        let store = self.store;
        let (existed, times) = self.recorder.timed(|| store.delete(&key.bytes));
        self.recorder.note(key.number, Action::Delete(Some(words(existed)?)), times);
        Ok(())
    }

    fn compare_and_delete(&mut self, key: &Key) -> Result<(), String> {
        let Some((old, version)) = self.held(key)? else { return Ok(()) };
        let store = self.store;
        let (done, times) =
            self.recorder.timed(|| store.compare_and_delete(&key.bytes, Version(version)));
        let done = Some(words(done)?);
        let action = Action::CompareAndSet { expected: Some(old), new: None, done };
        self.recorder.note(key.number, action, times);
        Ok(())
    }

    /// Each call of the closure sees a state; what is written is in the place of the last one.
    fn modify(&mut self, key: &Key) -> Result<(), String> {
        let (store, number) = (self.store, self.next(key));
        let leaves = self.rng.chance(1, 5);
        let mut seen = None;
        let (version, times) = self.recorder.timed(|| {
            store.modify(&key.bytes, |old| {
                seen = old.map(|old| seen_of(key, old));
                (!leaves).then(|| (value(number), Attributes::default()))
            })
        });
        let seen = seen.transpose()?.map(|(number, _)| number);
        let action = match words(version)? {
            Some(version) => {
                self.tell(key, (number, version.0), times, true);
                Action::CompareAndSet { expected: seen, new: Some(number), done: Some(true) }
            }
            None => Action::Read(Some(seen)),
        };
        self.recorder.note(key.number, action, times);
        Ok(())
    }

    /// A batch of two to four keys, maybe one of them twice: then the last change counts.
    fn write(&mut self) -> Result<(), String> {
        let mut batch = Batch::new();
        let mut changes: Vec<(&Key, State)> = Vec::new();
        for _ in 0..2 + self.rng.index(3) {
            let key = self.any();
            changes.retain(|(of, _)| of.number != key.number);
            if self.rng.chance(1, 4) {
                batch.delete(&key.bytes);
                changes.push((key, None));
            } else {
                let number = self.next(key);
                batch.put(&key.bytes, &value(number));
                changes.push((key, Some(number)));
            }
        }
        let store = self.store;
        let (version, times) = self.recorder.timed(|| store.write(&batch));
        let highest = words(version)?.0;
        for (key, state) in &changes {
            self.recorder.note(key.number, Action::Set(*state), times);
        }
        let changes = changes.into_iter().map(|(key, state)| (key.number, state)).collect();
        let count = batch.len() as u64;
        self.told.batches.push(Written { changes, count, highest, times });
        Ok(())
    }

    fn multi_get(&mut self) -> Result<(), String> {
        let keys: Vec<&Key> = (0..2 + self.rng.index(6)).map(|_| self.any()).collect();
        let names: Vec<&[u8]> = keys.iter().map(|key| &key.bytes[..]).collect();
        let store = self.store;
        let (found, times) = self.recorder.timed(|| store.multi_get(&names));
        for (key, found) in keys.into_iter().zip(words(found)?) {
            self.saw(key, found.as_ref(), times)?;
        }
        Ok(())
    }

    /// Reads of all keys of a part, by what was met of them: in order, each once.
    fn met(
        &mut self,
        covered: std::ops::Range<usize>,
        mut met: Vec<(Vec<u8>, Value)>,
        back: bool,
        times: Times,
    ) -> Result<(), String> {
        if back {
            met.reverse();
        }
        let mut met = met.into_iter().peekable();
        for number in covered.clone() {
            let key = self.keys.get(number);
            let found = met.next_if(|(of, _)| *of == key.bytes).map(|(_, found)| found);
            self.saw(key, found.as_ref(), times)?;
        }
        match met.next() {
            None => Ok(()),
            Some((key, _)) => Err(format!(
                "of keys {covered:?}, back: {back}, {key:02x?} was met twice, out of order, or for nothing"
            )),
        }
    }

    fn scan(&mut self) -> Result<(), String> {
        self.figures.scans += 1;
        let (store, count) = (self.store, self.keys.all().len());
        let (from, back) = (self.rng.index(count), self.rng.chance(1, 2));
        let direction = if back { Direction::Reverse } else { Direction::Forward };
        let to = from + self.rng.index(count - from);
        let (first, last) = (self.keys.get(from), self.keys.get(to));
        let range = (Bound::Included(&first.bytes[..]), Bound::Excluded(&last.bytes[..]));
        if self.rng.chance(1, 3) {
            let read = || store.range(range, direction).collect::<esker::Result<Vec<_>>>();
            let (met, times) = self.recorder.timed(read);
            return self.met(from..to, words(met)?, back, times);
        }
        let limit = 1 + self.rng.index(count);
        let (met, times) = self.recorder.timed(|| store.scan(range, direction, limit));
        let met = words(met)?;
        let mut covered = from..to;
        if let (true, Some((end, _))) = (met.len() == limit, met.last()) {
            // It says nothing of what is behind its last one.
            let end = self.keys.below(end);
            match back {
                true => covered.start = end,
                false => covered.end = end + 1,
            }
        }
        self.met(covered, met, back, times)
    }

    fn walk(&mut self) -> Result<(), String> {
        self.figures.scans += 1;
        let (store, count) = (self.store, self.keys.all().len());
        let read = || store.iter().collect::<esker::Result<Vec<_>>>();
        let (met, times) = self.recorder.timed(read);
        let mut met = words(met)?;
        if store.is_ordered() && !met.is_sorted_by(|one, next| one.0 < next.0) {
            return Err("a walk met keys out of order, or twice".to_owned());
        }
        met.sort_by(|one, other| one.0.cmp(&other.0));
        let mut met = met.into_iter().peekable();
        for number in 0..count {
            let key = self.keys.get(number);
            let mut found = met.next_if(|(of, _)| *of == key.bytes);
            self.saw(key, found.as_ref().map(|(_, found)| found), times)?;
            while found.is_some() {
                found = met.next_if(|(of, _)| *of == key.bytes);
                if let Some((_, found)) = &found {
                    // Only if it was deleted and written anew; what it was then is a read, too.
                    self.twice.push((number, times));
                    self.saw(key, Some(found), times)?;
                }
            }
        }
        match met.next() {
            None => Ok(()),
            Some((key, _)) => Err(format!("a walk met {key:02x?}, which nobody wrote")),
        }
    }

    /// Reads the last one, and takes another one, which is read when others have written.
    fn take_snapshot(&mut self) -> Result<(), String> {
        if let Some((snapshot, times)) = self.snapshot.take() {
            self.figures.scans += 1;
            let all = (Bound::<&[u8]>::Unbounded, Bound::Unbounded);
            let met = words(snapshot.scan(all, Direction::Forward, usize::MAX))?;
            let one = self.any();
            let found = words(snapshot.get(&one.bytes))?;
            self.saw(one, found.as_ref(), times)?;
            let version_of = |key: &Key| {
                let met = met.iter().find(|(of, _)| *of == key.bytes);
                met.map(|(_, found)| found.version().0)
            };
            let versions = self.keys.all().iter().map(version_of).collect();
            self.told.snapshots.push(Shown { versions, times });
            self.met(0..self.keys.all().len(), met, false, times)?;
        }
        let store = self.store;
        let (snapshot, times) = self.recorder.timed(|| store.snapshot());
        self.snapshot = Some((words(snapshot)?, times));
        Ok(())
    }

    fn delete_range(&mut self) -> Result<(), String> {
        let (store, count) = (self.store, self.keys.all().len());
        let from = self.rng.index(count);
        let to = (from + 1 + self.rng.index(4)).min(count - 1);
        let (first, last) = (self.keys.get(from), self.keys.get(to));
        let (done, times) =
            self.recorder.timed(|| store.delete_range(&first.bytes, Some(&last.bytes)));
        words(done)?;
        (from..to).for_each(|number| self.recorder.note(number, Action::Set(None), times));
        Ok(())
    }
}
