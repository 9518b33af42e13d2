//! A thread of the process under test that writes the keys from one on and before another one, and nobody else does.

use crate::child::Child;
use crate::model::{self, Span};
use crate::report::Message;
use esker::{Attributes, Batch, EngineKind, ErrorKind, Outcome};
use esker_base::clock::{Clock, SystemClock};
use esker_base::rng::Rng;
use hdrhistogram::Histogram;
use std::time::Duration;

/// Most keys of a batch, and of a deleted range.
const BATCH_KEYS: u32 = 20;
const RANGE_KEYS: u32 = 30;
/// Values of a batch are no longer.
const BATCH_VALUE_SIZE: usize = 4096;
/// How often a write that finds no space is tried again, and after how long.
const TRIES: u32 = 500;
const WAIT: Duration = Duration::from_millis(10);

/// Writes again what found no space, once there may be some.
pub(crate) fn with_space<T>(mut write: impl FnMut() -> esker::Result<T>) -> Result<T, String> {
    let mut left = TRIES;
    loop {
        match write() {
            Err(error) if error.kind() == ErrorKind::NoSpace && left > 0 => {
                left -= 1;
                esker_trt::sleep(WAIT);
            }
            done => return done.map_err(|error| format!("a write: {error}")),
        }
    }
}

/// Does something to keys at once, after which each has a generation.
type How<'a> = fn(&Writer<'a>, &[(u32, u32)]) -> Result<(), String>;

/// See the module's text.
pub(crate) struct Writer<'a> {
    child: &'a Child<'a>,
    from: u32,
    to: u32,
    rng: Rng,
    times: Histogram<u64>,
    told: Duration,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(child: &'a Child<'a>, index: u32, rng: Rng) -> Self {
        let share = child.arguments.keys() / child.arguments.writers;
        let times = Histogram::new(3).expect("three digits");
        let told = SystemClock.monotonic();
        Writer { child, from: index * share, to: (index + 1) * share, rng, times, told }
    }

    pub(crate) fn work(mut self) -> Result<(), String> {
        while !self.child.is_over() {
            let first = self.any_key();
            let before = SystemClock.monotonic();
            match self.rng.below(100) {
                0..50 => self.write(&[(first, true)], Writer::put)?,
                50..60 => self.write(&[(first, true)], Writer::replace)?,
                60..70 => self.write(&[(first, true)], Writer::modify)?,
                70..84 => self.write(&[(first, false)], Writer::delete)?,
                84..98 => {
                    let changes = self.changes();
                    self.write(&changes, Writer::batch)?;
                }
                _ if self.child.arguments.engine == EngineKind::Flex => {
                    let count = 1 + u32::try_from(self.rng.below(u64::from(RANGE_KEYS))).unwrap();
                    let end = (first + count).min(self.to);
                    let changes: Vec<_> = (first..end).map(|number| (number, false)).collect();
                    self.write(&changes, Writer::delete_range)?;
                }
                _ => {}
            }
            let now = SystemClock.monotonic();
            let time = u64::try_from((now - before).as_micros()).unwrap_or(u64::MAX);
            self.times.record(time).expect("a time");
            if now > self.told + Duration::from_secs(1) {
                let writes = u32::try_from(self.times.len()).unwrap();
                let late = u32::try_from(self.times.value_at_quantile(0.999)).unwrap_or(u32::MAX);
                Message::tell(&[Message::Figures(writes, late)]);
                self.times.reset();
                self.told = now;
            }
        }
        Ok(())
    }

    /// A key of this writer: half of the time one of a twentieth of them.
    fn any_key(&mut self) -> u32 {
        let all = u64::from(self.to - self.from);
        let among = if self.rng.chance(1, 2) { all.div_ceil(20) } else { all };
        self.from + u32::try_from(self.rng.below(among)).unwrap()
    }

    /// Some keys, each once, with values that are short.
    fn changes(&mut self) -> Vec<(u32, bool)> {
        let count = 1 + self.rng.index(BATCH_KEYS as usize);
        let mut numbers: Vec<u32> = (0..count).map(|_| self.any_key()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let mut changes: Vec<_> =
            numbers.into_iter().map(|number| (number, self.rng.chance(3, 4))).collect();
        changes.retain(|(number, with_value)| {
            let generation = model::next(self.child.keys[*number as usize].newest(), *with_value);
            !with_value || model::value(*number, generation).len() <= BATCH_VALUE_SIZE
        });
        changes
    }

    /// Does it to all of these keys at once, of which each gets a value or none; told before and after.
    fn write(&self, changes: &[(u32, bool)], how: How<'a>) -> Result<(), String> {
        let progress = |number: u32| &self.child.keys[number as usize];
        let next = changes.iter().map(|(number, with_value)| {
            (*number, model::next(progress(*number).newest(), *with_value))
        });
        let next: Vec<(u32, u32)> = next.collect();
        let tell = |message: fn(u32, u32) -> Message| {
            let told = next.iter().map(|(number, generation)| message(*number, *generation));
            Message::tell(&told.collect::<Vec<_>>());
        };
        next.iter().for_each(|(number, generation)| progress(*number).issue(*generation));
        tell(Message::Issued);
        how(self, &next)?;
        next.iter().for_each(|(number, generation)| progress(*number).acknowledge(*generation));
        tell(Message::Acknowledged);
        Ok(())
    }

    fn put(&self, next: &[(u32, u32)]) -> Result<(), String> {
        next.iter().try_for_each(|(number, generation)| {
            let (key, value) = (model::key(*number), model::value(*number, *generation));
            with_space(|| self.child.store.put(&key, &value)).map(drop)
        })
    }

    /// What the key has is what was written last, and is replaced if it still has that.
    fn replace(&self, next: &[(u32, u32)]) -> Result<(), String> {
        next.iter().try_for_each(|(number, generation)| {
            let (key, value) = (model::key(*number), model::value(*number, *generation));
            let old = self.child.store.get(&key).map_err(|error| error.to_string())?;
            self.is_last(*number, old.as_deref())?;
            let done = with_space(|| match &old {
                Some(old) => self.child.store.compare_and_put(&key, old.version(), &value),
                None => self.child.store.put_if_absent(&key, &value),
            })?;
            let stored = matches!(done, Outcome::Stored(_));
            stored.then_some(()).ok_or_else(|| format!("key {number} was not replaced: {done:?}"))
        })
    }

    fn modify(&self, next: &[(u32, u32)]) -> Result<(), String> {
        next.iter().try_for_each(|(number, generation)| {
            let (key, value) = (model::key(*number), model::value(*number, *generation));
            let mut last = Ok(());
            let modify = || {
                self.child.store.modify(&key, |old| {
                    last = self.is_last(*number, old.map(|value| &**value));
                    Some((value.clone(), Attributes::default()))
                })
            };
            let done = with_space(modify)?;
            last?;
            done.map(drop).ok_or_else(|| format!("key {number} was not modified"))
        })
    }

    /// Of its keys a writer knows what they have.
    fn is_last(&self, number: u32, found: Option<&[u8]>) -> Result<(), String> {
        let last = self.child.keys[number as usize].oldest();
        let found = found.map(|value| model::generation_of(number, value)).transpose()?;
        Span(last, last).judge(number, found).map_err(|words| format!("a writer: {words}"))
    }

    fn delete(&self, next: &[(u32, u32)]) -> Result<(), String> {
        next.iter().try_for_each(|(number, _)| {
            let key = model::key(*number);
            let found = with_space(|| self.child.store.delete(&key))?;
            let last = self.child.keys[*number as usize].oldest();
            let words = || format!("deleting key {number} with {last} found something: {found}");
            (found == (last % 2 == 1)).then_some(()).ok_or_else(words)
        })
    }

    fn batch(&self, next: &[(u32, u32)]) -> Result<(), String> {
        let mut batch = Batch::new();
        for (number, generation) in next {
            let key = model::key(*number);
            match generation % 2 {
                1 => batch.put(&key, &model::value(*number, *generation)),
                _ => batch.delete(&key),
            };
        }
        if next.is_empty() {
            return Ok(());
        }
        with_space(|| self.child.store.write(&batch)).map(drop)
    }

    fn delete_range(&self, next: &[(u32, u32)]) -> Result<(), String> {
        let (Some((first, _)), Some((last, _))) = (next.first(), next.last()) else {
            return Ok(());
        };
        let (from, to) = (model::key(*first), model::key(last + 1));
        with_space(|| self.child.store.delete_range(&from, Some(&to)))
    }
}
