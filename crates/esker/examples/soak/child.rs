//! The process under test: writers with keys of their own, readers of all of them, keys that expire, and maintenance, all at
//! once, until its input ends or it is killed. Every read is judged at once; a wrong one ends the process.

use crate::Arguments;
use crate::model::{self, Progress, Span};
use crate::report::Message;
use crate::writer::{Writer, with_space};
use esker::{Attributes, Direction, EngineKind, ErrorKind, PutOptions, Store};
use esker_base::clock::{Clock, SystemClock};
use esker_base::rng::Rng;
use std::io::Read;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Most keys of a scan.
const SCAN_KEYS: u32 = 200;
/// Keys that expire.
const EXPIRING: u64 = 200;
/// Between two looks whether it is over.
const WAIT: Duration = Duration::from_millis(10);
/// Nobody maintains for so long now and then.
const PAUSE: Duration = Duration::from_secs(3);

pub(crate) struct Child<'a> {
    pub(crate) arguments: &'a Arguments,
    pub(crate) store: Store,
    pub(crate) keys: Vec<Progress>,
    over: AtomicBool,
}

/// Opens the store, says what is there, works until the input ends, closes.
pub(crate) fn run(arguments: &Arguments, round: u64) -> Result<(), String> {
    let clock = SystemClock;
    let from = clock.monotonic();
    let store = Store::open(&arguments.options()).map_err(|error| error.to_string())?;
    let time = (clock.monotonic() - from).as_millis();
    Message::tell(&[Message::Open(u32::try_from(time).unwrap())]);
    let keys = (0..arguments.keys()).map(|_| Progress::default()).collect();
    let child = Child { arguments, store, keys, over: AtomicBool::new(false) };
    child.read_all(round)?;
    let mut rng = Rng::from_seed(arguments.seed ^ round << 32);
    let writers = arguments.writers;
    std::thread::scope(|scope| {
        let child = &child;
        let mut threads = Vec::new();
        for writer in 0..writers {
            let rng = rng.fork();
            threads.push(scope.spawn(move || Writer::new(child, writer, rng).work()));
        }
        let (reading, expiring, maintaining) = (rng.fork(), rng.fork(), rng.fork());
        threads.push(scope.spawn(move || child.read(reading)));
        threads.push(scope.spawn(move || child.expire(expiring)));
        threads.push(scope.spawn(move || child.maintain(maintaining)));
        // Whoever ends early has failed.
        let input = scope.spawn(|| std::io::stdin().read(&mut [0; 1]));
        while !input.is_finished() && !threads.iter().any(|thread| thread.is_finished()) {
            esker_trt::sleep(WAIT);
        }
        child.over.store(true, Ordering::SeqCst);
        for thread in threads {
            if let Err(words) = thread.join().unwrap_or_else(|_| Err("a panic".to_owned())) {
                eprintln!("soak: {words}");
                // The reader of the input waits for what does not come.
                std::process::exit(1);
            }
        }
    });
    child.close()
}

impl Child<'_> {
    /// Says what every key has, and where its generations go on.
    fn read_all(&self, round: u64) -> Result<(), String> {
        let mut found = Vec::new();
        for (number, progress) in (0..).zip(&self.keys) {
            let generation = self.get(number)?;
            progress.set(generation.unwrap_or(model::base(round)));
            found.push(Message::Found(number, generation.unwrap_or(0)));
            if found.len() == 400 {
                Message::tell(&found);
                found.clear();
            }
        }
        if self.store.is_ordered() {
            self.scan(0, self.arguments.keys(), Direction::Forward)?;
            self.scan(0, self.arguments.keys(), Direction::Reverse)?;
        }
        found.push(Message::Read);
        Message::tell(&found);
        Ok(())
    }

    fn get(&self, number: u32) -> Result<Option<u32>, String> {
        let found = self.store.get(&model::key(number)).map_err(|error| error.to_string())?;
        found.map(|value| model::generation_of(number, &value)).transpose()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn any_key(&self, rng: &mut Rng) -> u32 {
        u32::try_from(rng.below(self.keys.len() as u64)).unwrap()
    }

    /// Gets, scans, snapshots, walks: what they find was there at some moment of each.
    fn read(&self, mut rng: Rng) -> Result<(), String> {
        let ordered = self.store.is_ordered();
        let has_snapshots = self.arguments.engine == EngineKind::Flex;
        while !self.is_over() {
            let number = self.any_key(&mut rng);
            let count = 1 + u32::try_from(rng.below(u64::from(SCAN_KEYS))).unwrap();
            match rng.below(1000) {
                0 => self.walk()?,
                1..20 if has_snapshots => self.look_back(number, count, &mut rng)?,
                20..200 if ordered => {
                    let forward = rng.chance(1, 2);
                    let direction = if forward { Direction::Forward } else { Direction::Reverse };
                    self.scan(number, number.saturating_add(count), direction)?;
                }
                200..300 => {
                    let numbers: Vec<u32> = (0..8).map(|_| self.any_key(&mut rng)).collect();
                    let oldest: Vec<u32> = self.oldest(&numbers);
                    let keys: Vec<Vec<u8>> = numbers.iter().map(|n| model::key(*n)).collect();
                    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                    let found = self.store.multi_get(&keys).map_err(|error| error.to_string())?;
                    for ((number, oldest), value) in numbers.iter().zip(oldest).zip(found) {
                        let found = value.map(|value| model::generation_of(*number, &value));
                        self.judge("several", (*number, oldest), found.transpose()?)?;
                    }
                }
                _ => {
                    let oldest = self.keys[number as usize].oldest();
                    let found = self.get(number)?;
                    self.judge("a get", (number, oldest), found)?;
                }
            }
        }
        Ok(())
    }

    fn oldest(&self, numbers: &[u32]) -> Vec<u32> {
        numbers.iter().map(|number| self.keys[*number as usize].oldest()).collect()
    }

    fn judge(
        &self,
        who: &str,
        (number, oldest): (u32, u32),
        found: Option<u32>,
    ) -> Result<(), String> {
        let span = Span(oldest, self.keys[number as usize].newest());
        span.judge(number, found).map_err(|words| format!("{who}: {words}"))
    }

    /// The keys from one number on and before another one.
    fn scan(&self, from: u32, to: u32, direction: Direction) -> Result<(), String> {
        let to = to.min(self.arguments.keys());
        let numbers: Vec<u32> = (from..to).collect();
        let oldest = self.oldest(&numbers);
        let (low, high) = (model::key(from), model::key(to));
        let range = (Bound::Included(&low[..]), Bound::Excluded(&high[..]));
        let mut found = Vec::new();
        let mut damage = Ok(());
        let scanned = self.store.scan_with(range, direction, usize::MAX, |met| {
            let one = model::number_of(met.key)
                .and_then(|number| Ok((number, model::generation_of(number, met.value)?)));
            match one {
                Ok(one) => found.push(one),
                Err(words) => damage = Err(words),
            }
        });
        scanned.map_err(|error| error.to_string())?;
        damage?;
        if direction == Direction::Reverse {
            found.reverse();
        }
        let mut rest = found.into_iter().peekable();
        for (number, oldest) in numbers.into_iter().zip(oldest) {
            let found = rest.next_if(|(found, _)| *found == number).map(|(_, found)| found);
            self.judge("a scan", (number, oldest), found)?;
        }
        rest.next().map_or(Ok(()), |(number, _)| Err(format!("key {number} is not in order")))
    }

    /// A snapshot has of each key what it had when it was taken, however late it is asked.
    fn look_back(&self, from: u32, count: u32, rng: &mut Rng) -> Result<(), String> {
        let words = |error: esker::Error| error.to_string();
        let numbers: Vec<u32> = (from..(from + count).min(self.arguments.keys())).collect();
        let oldest = self.oldest(&numbers);
        let snapshot = self.store.snapshot().map_err(words)?;
        let newest = numbers.iter().map(|number| self.keys[*number as usize].newest());
        let newest: Vec<u32> = newest.collect();
        let (low, high) = (model::key(from), model::key(from + count));
        let mut before = None;
        for _ in 0..2 {
            esker_trt::sleep(Duration::from_millis(rng.below(200)));
            let range = (Bound::Included(&low[..]), Bound::Excluded(&high[..]));
            let found = snapshot.scan(range, Direction::Forward, usize::MAX).map_err(words)?;
            let found: Result<Vec<(u32, u32)>, String> = found
                .iter()
                .map(|(key, value)| {
                    let number = model::number_of(key)?;
                    Ok((number, model::generation_of(number, value)?))
                })
                .collect();
            let found = found?;
            let mut rest = found.iter().peekable();
            for ((number, oldest), newest) in numbers.iter().zip(&oldest).zip(&newest) {
                let here = rest.next_if(|(found, _)| found == number).map(|(_, found)| *found);
                let judged = Span(*oldest, *newest).judge(*number, here);
                judged.map_err(|words| format!("a snapshot: {words}"))?;
                let alone = snapshot.get(&model::key(*number)).map_err(words)?;
                let alone = alone.map(|value| model::generation_of(*number, &value)).transpose()?;
                if alone != here {
                    return Err(format!("key {number} of a snapshot: {here:?} and {alone:?}"));
                }
            }
            if before.is_some_and(|before| before != found) {
                return Err("a snapshot changed".to_owned());
            }
            before = Some(found);
        }
        Ok(())
    }

    /// A walk meets every key that has a value all the while, and none twice.
    fn walk(&self) -> Result<(), String> {
        let numbers: Vec<u32> = (0..self.arguments.keys()).collect();
        let oldest = self.oldest(&numbers);
        let mut met = vec![false; numbers.len()];
        for item in self.store.iter() {
            let (key, value) = item.map_err(|error| error.to_string())?;
            if key.starts_with(b"t") {
                continue;
            }
            let number = model::number_of(&key)?;
            let generation = model::generation_of(number, &value)?;
            self.judge("a walk", (number, oldest[number as usize]), Some(generation))?;
            if std::mem::replace(&mut met[number as usize], true) {
                return Err(format!("key {number} is met twice"));
            }
            if self.is_over() {
                return Ok(());
            }
        }
        let missed = numbers.into_iter().zip(oldest).find(|(number, oldest)| {
            let progress = &self.keys[*number as usize];
            !met[*number as usize] && oldest % 2 == 1 && progress.newest() == *oldest
        });
        missed.map_or(Ok(()), |(number, _)| Err(format!("a walk misses key {number}")))
    }

    /// Keys with a time of which each value says until when it is there.
    fn expire(&self, mut rng: Rng) -> Result<(), String> {
        let words = |error: esker::Error| error.to_string();
        while !self.is_over() {
            let key = format!("t{}", rng.below(EXPIRING));
            let now = SystemClock.unix_seconds();
            if rng.chance(1, 3) {
                let expires_at = now + 1 + rng.below(3);
                let value = format!("{expires_at} {}", ".".repeat(rng.index(3000)));
                let attributes = Attributes { expires_at: Some(expires_at), ..Default::default() };
                let options = PutOptions { attributes, ..Default::default() };
                let put = || self.store.put_with(key.as_bytes(), value.as_bytes(), options);
                with_space(put)?;
            } else if let Some(value) = self.store.get(key.as_bytes()).map_err(words)? {
                let text = std::str::from_utf8(&value).unwrap_or_default();
                let until = text.split(' ').next().and_then(|until| until.parse::<u64>().ok());
                if until.is_none_or(|until| until < now) {
                    return Err(format!("{key} is there at {now}: {until:?}"));
                }
            }
            esker_trt::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// What an operator does, and what a store does by itself, more often than either would.
    fn maintain(&self, mut rng: Rng) -> Result<(), String> {
        while !self.is_over() {
            let done = match rng.below(40) {
                0..8 => {
                    Message::tell(&[Message::SyncBegins]);
                    let done = self.store.sync();
                    if done.is_ok() {
                        Message::tell(&[Message::Synced]);
                    }
                    done
                }
                8..16 => self.store.clean(1 + rng.index(4)).map(drop),
                16..32 => self.store.trim().map(drop),
                32..36 => self.store.checkpoint().map(drop),
                36 => self.back_up(),
                37 => {
                    let report = self.store.check().map_err(|error| error.to_string())?;
                    match report.problems.first() {
                        Some(problem) => return Err(format!("check: {problem}")),
                        None => Ok(()),
                    }
                }
                _ => {
                    let until = SystemClock.monotonic() + PAUSE;
                    while !self.is_over() && SystemClock.monotonic() < until {
                        esker_trt::sleep(WAIT);
                    }
                    Ok(())
                }
            };
            match done {
                Err(error) if error.kind() == ErrorKind::NoSpace => {}
                Err(error) if error.kind() == ErrorKind::Unsupported => {}
                done => done.map_err(|error| format!("maintenance: {error}"))?,
            }
            esker_trt::sleep(Duration::from_millis(rng.below(100)));
        }
        Ok(())
    }

    fn back_up(&self) -> esker::Result<()> {
        let folder = tempfile::tempdir_in(self.arguments.folder()).expect("a folder");
        self.store.backup(&folder.path().join("backup")).map(drop)
    }

    /// The store has the values that were acknowledged, and nothing else.
    fn close(self) -> Result<(), String> {
        let words = |error: esker::Error| error.to_string();
        for number in 0..EXPIRING {
            with_space(|| self.store.delete(format!("t{number}").as_bytes()))?;
        }
        let report = self.store.check().map_err(words)?;
        if let Some(problem) = report.problems.first() {
            return Err(format!("check at the end: {problem}"));
        }
        let right = self.keys.iter().filter(|progress| progress.newest() % 2 == 1).count() as u64;
        self.store.write_out().or_else(unless_unsupported).map_err(words)?;
        let items = self.store.stats().items;
        // What expired counts until somebody comes by; `flex` estimates.
        let fits = (right..=right + EXPIRING).contains(&items);
        if self.arguments.engine != EngineKind::Flex && !fits {
            return Err(format!("{items} items by count, and {right} were written"));
        }
        for (number, progress) in (0..).zip(&self.keys) {
            let last = Span(progress.newest(), progress.newest());
            let judged = last.judge(number, self.get(number)?);
            judged.map_err(|words| format!("at the end: {words}"))?;
        }
        let met = self.store.iter().try_fold(0, |met, item| item.map(|_| met + 1));
        let met: u64 = met.map_err(words)?;
        if met != right {
            return Err(format!("a walk at the end meets {met} items, and {right} were written"));
        }
        self.store.close().map_err(words)?;
        Message::tell(&[Message::Closed(u32::try_from(met).unwrap())]);
        Ok(())
    }
}

fn unless_unsupported(error: esker::Error) -> esker::Result<()> {
    if error.kind() == ErrorKind::Unsupported { Ok(()) } else { Err(error) }
}
