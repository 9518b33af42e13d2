//! One client of a phase: asks, checks what it gets, and notes how long each answer took.

use super::ends::Ends;
use super::pace::{Attendance, Pace, wait_until};
use super::watch::Watch;
use crate::failure::{Failure, Outcome};
use crate::numbers::{nanos, size};
use crate::system::Session;
use crate::workload::shape::Filler;
use crate::workload::space::KeySpace;
use crate::workload::stream::{Request, Requests};
use crate::workload::trace::Trace;
use crate::workload::{Operation, Workload};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Digits of a latency that are kept.
const DIGITS: u8 = 3;
/// Operations between two notes of progress.
const NOTE_EVERY: u64 = 64;
/// Of so many scans of a client one is checked for the order of its keys. Each key that is compared takes 7 ns, a tenth and more
/// of what the fastest systems take for a record.
const ORDER_EVERY: u64 = 16;
/// Intervals of a timeline; the last one has all that ends after it.
const INTERVALS_MAX: usize = 1 << 16;

/// What all clients of a phase share.
pub(crate) struct Phase {
    pub(crate) workload: Workload,
    pub(crate) space: Arc<KeySpace>,
    pub(crate) filler: Arc<Filler>,
    pub(crate) trace: Option<Arc<Trace>>,
    /// Play a trace at its own speed.
    pub(crate) trace_timing: bool,
    /// Records that the store was loaded with: numbers from there on are inserted by clients.
    pub(crate) records: u64,
    /// Keys when the phase begins; of a fill: when it ends.
    pub(crate) keys: u64,
    pub(crate) ends: Ends,
    pub(crate) seed: u64,
    pub(crate) clients: u64,
    pub(crate) checks_values: bool,
    /// Operations per second of all clients together.
    pub(crate) rate: Option<f64>,
    /// Operations of all clients together after which the phase ends.
    pub(crate) operations: Option<u64>,
    pub(crate) watch: Watch,
    pub(crate) begin: Duration,
    pub(crate) measure_from: Duration,
    pub(crate) end: Option<Duration>,
    pub(crate) interval: Duration,
    pub(crate) stop: AtomicBool,
    /// Operations done, in steps.
    pub(crate) done: AtomicU64,
    pub(crate) finished: AtomicU64,
}

impl Phase {
    /// When those that are overdue are given up: a system that cannot keep up with a rate gets as long again as the phase was.
    fn last_call(&self) -> Option<Duration> {
        self.end.map(|end| end + end.saturating_sub(self.measure_from))
    }
}

/// What one client, or all of them, did.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) ops: u64,
    pub(crate) user_bytes: u64,
    pub(crate) user_read_bytes: u64,
    pub(crate) last: Duration,
    /// Requests that were due in the phase, and given up.
    pub(crate) unsent: u64,
    pub(crate) latencies: BTreeMap<Operation, Histogram<u64>>,
    pub(crate) timeline: Vec<u64>,
}

impl Tally {
    fn note(&mut self, operation: Operation, latency: Duration) -> Outcome<()> {
        self.ops += 1;
        let histogram = match self.latencies.entry(operation) {
            std::collections::btree_map::Entry::Occupied(found) => found.into_mut(),
            std::collections::btree_map::Entry::Vacant(free) => {
                free.insert(Histogram::new(DIGITS)?)
            }
        };
        Ok(histogram.record(nanos(latency).max(1))?)
    }

    pub(crate) fn add(&mut self, other: Tally) -> Outcome<()> {
        self.ops += other.ops;
        self.user_bytes += other.user_bytes;
        self.user_read_bytes += other.user_read_bytes;
        self.last = self.last.max(other.last);
        self.unsent += other.unsent;
        for (operation, histogram) in other.latencies {
            match self.latencies.get_mut(&operation) {
                Some(mine) => mine.add(&histogram)?,
                None => drop(self.latencies.insert(operation, histogram)),
            }
        }
        if self.timeline.len() < other.timeline.len() {
            self.timeline.resize(other.timeline.len(), 0);
        }
        for (mine, theirs) in self.timeline.iter_mut().zip(other.timeline) {
            *mine += theirs;
        }
        Ok(())
    }
}

/// Room that one client uses over and over.
struct Hands<'a> {
    phase: &'a Phase,
    session: Box<dyn Session>,
    key: Vec<u8>,
    value: Vec<u8>,
    read: Vec<u8>,
    salt: u64,
    scans: u64,
    user_bytes: u64,
    user_read_bytes: u64,
}

impl Hands<'_> {
    /// Reads `self.key`; the value goes to `self.read`.
    fn read(&mut self) -> Outcome<bool> {
        let read = &mut self.read;
        read.clear();
        let found = self.session.read(&self.key, &mut |value| read.extend_from_slice(value))?;
        self.user_read_bytes += self.read.len() as u64;
        Ok(found)
    }

    /// Makes key and value, before the watch runs.
    fn prepare(&mut self, request: Request) {
        let keys = self.phase.workload.keys;
        match request.operation {
            Operation::ReadMissing => keys.write_missing(request.number, &mut self.key),
            _ => keys.write(request.number, &mut self.key),
        }
        if request.operation.is_write() {
            let length = self.phase.workload.values.size(request.number);
            self.fill(request.number, length);
        }
    }

    fn fill(&mut self, number: u64, length: u64) {
        self.salt = self.salt.wrapping_add(1);
        self.phase.filler.write(number, length, self.salt, &mut self.value);
    }

    fn write(&mut self) -> Outcome<()> {
        self.session.write(&self.key, &self.value)?;
        self.user_bytes += (self.key.len() + self.value.len()) as u64;
        Ok(())
    }

    /// A key that is there, with the value that it may have.
    fn read_checked(&mut self, number: u64, length: u64) -> Outcome<()> {
        let found = self.read()?;
        self.judge(found, Filler::is_right(number, length, &self.read))
    }

    /// A key of a trace: a value that the trace wrote before has the size with which it did.
    fn read_sized(&mut self, length: Option<u32>) -> Outcome<()> {
        let found = self.read()?;
        match length {
            Some(length) => self.judge(found, self.read.len() as u64 == u64::from(length)),
            None => Ok(()),
        }
    }

    /// What was read of a key that is there.
    fn judge(&self, found: bool, right: bool) -> Outcome<()> {
        if found && (right || !self.phase.checks_values) {
            return Ok(());
        }
        let key = self.key.escape_ascii();
        let words = if found { "has another value" } else { "is missing" };
        Err(Failure::new(format!("wrong answer: key {key} {words}")))
    }

    /// A scan from a key that is there, with the value that it may have.
    fn scan_checked(&mut self, number: u64, value_size: u64, length: u64) -> Outcome<()> {
        let checks_values = self.phase.checks_values;
        let checks_order = self.scans.is_multiple_of(ORDER_EVERY);
        self.scans += 1;
        let (start, read) = (&self.key[..], &mut self.read);
        // The key before, in what was read, and how many there were.
        let (mut last, mut count, mut fault) = (0..0, 0, None);
        read.clear();
        let seen = self.session.scan(start, length, &mut |key, value| {
            if count == 0 && key != start {
                fault = Some("misses its start");
            } else if count == 0 && checks_values && !Filler::is_right(number, value_size, value) {
                fault = Some("has another value at its start");
            }
            if checks_order {
                if count > 0 && read.get(last.clone()).is_none_or(|last| last >= key) {
                    fault = Some("is out of order");
                }
                last = read.len()..read.len() + key.len();
            }
            count += 1;
            read.extend_from_slice(key);
            read.extend_from_slice(value);
        })?;
        self.user_read_bytes += self.read.len() as u64;
        let may_have = self.phase.ends.records(&self.key, length);
        if fault.is_none() && seen == count && may_have.contains(&count) {
            return Ok(());
        }
        let (key, fault) = (self.key.escape_ascii(), fault.unwrap_or("has too few or too many"));
        Err(Failure::new(format!(
            "wrong answer: a scan of {length} from {key} {fault}: {count} records"
        )))
    }

    fn serve(&mut self, request: Request) -> Outcome<()> {
        let Request { operation, number, length } = request;
        let value_size = self.phase.workload.values.size(number);
        match operation {
            Operation::Read => self.read_checked(number, value_size),
            Operation::ReadMissing => match self.read()? && self.phase.checks_values {
                false => Ok(()),
                true => {
                    let key = self.key.escape_ascii();
                    Err(Failure::new(format!("wrong answer: key {key} was never written")))
                }
            },
            Operation::Update => self.write(),
            Operation::Insert => {
                self.write()?;
                if number >= self.phase.records {
                    self.phase.space.acknowledge(number);
                }
                Ok(())
            }
            Operation::ReadModifyWrite => {
                self.read_checked(number, value_size)?;
                self.write()
            }
            Operation::Scan => self.scan_checked(number, value_size, length),
            Operation::Delete => self.session.delete(&self.key),
        }
    }
}

/// Runs client `number` to the end of the phase; its session is made here, on its own thread or task.
pub(crate) fn run(
    phase: &Phase,
    session: impl FnOnce() -> Outcome<Box<dyn Session>>,
    number: u64,
) -> Outcome<Tally> {
    let attendance = Attendance::new(&phase.stop, &phase.finished);
    attendance.end(session().and_then(|session| work(phase, session, number)))
}

fn work(phase: &Phase, session: Box<dyn Session>, number: u64) -> Outcome<Tally> {
    let mut hands = Hands {
        phase,
        session,
        key: Vec::new(),
        value: Vec::new(),
        read: Vec::new(),
        salt: phase.seed.wrapping_add(number << 32),
        scans: 0,
        user_bytes: 0,
        user_read_bytes: 0,
    };
    let mut clock = Turns::new(phase, number);
    wait_until(phase.begin, || phase.watch.now(), &phase.stop);
    if let Some(trace) = &phase.trace {
        return play(&mut hands, &mut clock, trace, number);
    }
    let requests =
        Requests::new(&phase.workload, &phase.space, phase.keys, phase.seed, number, phase.clients);
    for request in requests {
        hands.prepare(request);
        let Some(begin) = clock.begin() else {
            // The number of a key is taken: those that follow are asked for only once it is there.
            if request.operation == Operation::Insert {
                hands.serve(request)?;
            }
            break;
        };
        hands.serve(request)?;
        clock.end(&mut hands, request.operation, begin)?;
    }
    Ok(clock.finish())
}

/// Plays the requests of a trace that are this client's.
fn play(
    hands: &mut Hands<'_>,
    clock: &mut Turns<'_>,
    trace: &Trace,
    number: u64,
) -> Outcome<Tally> {
    let phase = hands.phase;
    let first = trace.requests().first().map_or(0, |request| request.time_micros);
    for request in trace.requests() {
        if trace.client(request, phase.clients) != number {
            continue;
        }
        if phase.trace_timing {
            let since = Duration::from_micros(request.time_micros.saturating_sub(first));
            clock.due = Some(phase.begin + since);
        }
        hands.key.clear();
        hands.key.extend_from_slice(trace.key(request));
        if request.operation.is_write() {
            hands.fill(0, u64::from(request.value_size));
        }
        let Some(begin) = clock.begin() else { break };
        match request.operation {
            Operation::Read => hands.read_sized(request.expected)?,
            Operation::ReadModifyWrite => {
                hands.read_sized(request.expected)?;
                hands.write()?;
            }
            Operation::Delete => hands.session.delete(&hands.key)?,
            _ => hands.write()?,
        }
        clock.end(hands, request.operation, begin)?;
    }
    Ok(clock.finish())
}

/// The client's turns: when the next request is due, when the phase ends, what is counted.
struct Turns<'a> {
    phase: &'a Phase,
    pace: Option<Pace>,
    /// When the next request of a trace is due.
    due: Option<Duration>,
    now: Duration,
    left: u64,
    tally: Tally,
    /// Bytes that the client had moved when measuring began.
    before: Option<(u64, u64)>,
    /// Bytes that it had moved after its last operation.
    moved: (u64, u64),
    unnoted: u64,
    /// When the last interval of the timeline ends.
    interval_end: Duration,
}

impl<'a> Turns<'a> {
    fn new(phase: &'a Phase, number: u64) -> Self {
        let pace = phase.rate.map(|rate| Pace::new(phase.begin, rate, number, phase.clients));
        let left = match phase.operations {
            Some(all) => all / phase.clients + u64::from(number < all % phase.clients),
            None => u64::MAX,
        };
        let before = (phase.begin == phase.measure_from).then_some((0, 0));
        let (due, now, tally, unnoted) = (None, Duration::ZERO, Tally::default(), 0);
        let (moved, interval_end) = ((0, 0), Duration::ZERO);
        Turns { phase, pace, due, now, left, tally, before, moved, unnoted, interval_end }
    }

    /// When the next request begins, for its latency; `None` at the end of the phase.
    fn begin(&mut self) -> Option<Duration> {
        let phase = self.phase;
        self.now = phase.watch.now();
        if self.left == 0 || phase.stop.load(Ordering::Relaxed) {
            return None;
        }
        let Some(due) = self.pace.as_ref().map(Pace::due).or_else(|| self.due.take()) else {
            return phase.end.is_none_or(|end| self.now < end).then_some(self.now);
        };
        if phase.end.is_some_and(|end| due >= end) {
            return None;
        }
        if let (Some(end), Some(last_call)) = (phase.end, phase.last_call())
            && self.now >= last_call
        {
            let rest = self.pace.as_ref().map(|pace| pace.due_before(phase.measure_from, end));
            self.tally.unsent += rest.unwrap_or(0);
            return None;
        }
        if let Some(pace) = &mut self.pace {
            pace.step();
        }
        if due > self.now {
            self.now = wait_until(due, || phase.watch.now(), &phase.stop);
        }
        (!phase.stop.load(Ordering::Relaxed)).then_some(due)
    }

    fn end(&mut self, hands: &mut Hands<'_>, operation: Operation, begin: Duration) -> Outcome<()> {
        let phase = self.phase;
        self.now = phase.watch.now();
        let moved = std::mem::replace(&mut self.moved, (hands.user_bytes, hands.user_read_bytes));
        if self.now >= self.interval_end {
            self.begin_interval();
        }
        if let Some(count) = self.tally.timeline.last_mut() {
            *count += 1;
        }
        self.unnoted += 1;
        if self.unnoted == NOTE_EVERY {
            phase.done.fetch_add(NOTE_EVERY, Ordering::Relaxed);
            self.unnoted = 0;
        }
        // Whoever began or was due in the phase belongs to it, however long he had to wait; nobody of the warm-up does.
        if begin < phase.measure_from {
            return Ok(());
        }
        self.before.get_or_insert(moved);
        self.left = self.left.saturating_sub(1);
        self.tally.last = self.now;
        self.tally.user_bytes = hands.user_bytes;
        self.tally.user_read_bytes = hands.user_read_bytes;
        self.tally.note(operation, self.now.saturating_sub(begin))
    }

    /// Another interval of the timeline, and those in which nothing ended.
    fn begin_interval(&mut self) {
        let (begin, interval) =
            (self.phase.begin, self.phase.interval.max(Duration::from_nanos(1)));
        let passed = nanos(self.now.saturating_sub(begin)) / nanos(interval);
        let count = (size(passed) + 1).min(INTERVALS_MAX);
        self.tally.timeline.resize(count, 0);
        self.interval_end = match u32::try_from(count) {
            Ok(count) if size(u64::from(count)) < INTERVALS_MAX => begin + interval * count,
            _ => Duration::MAX,
        };
    }

    fn finish(&mut self) -> Tally {
        let mut tally = std::mem::take(&mut self.tally);
        if let Some((written, read)) = self.before {
            tally.user_bytes = tally.user_bytes.saturating_sub(written);
            tally.user_read_bytes = tally.user_read_bytes.saturating_sub(read);
        }
        tally
    }
}

#[cfg(test)]
mod tests;
