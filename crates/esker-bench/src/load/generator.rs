//! Connections that ask and check.

use super::protocol::{Asked, Protocol, Reply};
use crate::failure::{Failure, Outcome};
use crate::numbers::{nanos, real, size};
use crate::runner::{Attendance, Pace, give_way, nap, wait_until};
use crate::workload::distribution::{Chooser, Distribution, uniform};
use crate::workload::shape::{Filler, KeyShape};
use esker_base::clock::{Clock, SystemClock};
use esker_base::ids::CoreId;
use esker_base::rng::Rng;
use esker_trt::Runtime;
use esker_trt::net::Stream;
use hdrhistogram::Histogram;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A server that answers nothing for so long has failed.
const PATIENCE: Duration = Duration::from_secs(30);
/// Sets of a fill that are in flight on its connection.
const FILL_BATCH: u64 = 100;
/// How often it is told how far a load is.
const POLL: Duration = Duration::from_millis(50);
/// Time that connections get before the load begins.
const START_DELAY: Duration = Duration::from_millis(50);

/// What is asked.
#[derive(Clone, Debug)]
pub struct Load {
    /// How.
    pub protocol: Protocol,
    /// Whom.
    pub target: SocketAddr,
    /// Connections.
    pub connections: usize,
    /// Requests that a connection may have in flight.
    pub depth: usize,
    /// Requests per second of all connections; as fast as replies come if `None`.
    pub rate: Option<f64>,
    /// Share of requests that are gets, from 0 to 1.
    pub gets: f64,
    /// Keys.
    pub records: u64,
    /// Bytes of a key.
    pub key_size: usize,
    /// Bytes of a value.
    pub value_size: u64,
    /// Which keys.
    pub distribution: Distribution,
    /// Whether a get must find a value: not so with caches that evict.
    pub must_hit: bool,
    /// Seed of every draw.
    pub seed: u64,
    /// Before measuring.
    pub warmup: Duration,
    /// Of the measured phase.
    pub length: Duration,
}

/// What came of it, in the measured phase.
#[derive(Debug)]
pub struct Loaded {
    /// Replies to requests that were due, or sent, in the phase.
    pub ops: u64,
    /// Length of the phase, to the last of those replies if that came after its end.
    pub seconds: f64,
    /// Requests that were due and not sent: the server could not keep up with the rate.
    pub unsent: u64,
    /// Gets that found nothing.
    pub misses: u64,
    /// Bytes of keys and values that were set.
    pub user_bytes: u64,
    /// Nanoseconds from when each request was due, or sent, to its reply.
    pub latencies: Histogram<u64>,
    /// Of gets and sets alone.
    pub by_kind: [Histogram<u64>; 2],
    /// When the last reply came.
    last: Duration,
}

impl Loaded {
    fn new() -> Outcome<Loaded> {
        Ok(Loaded {
            ops: 0,
            seconds: 0.0,
            unsent: 0,
            misses: 0,
            user_bytes: 0,
            latencies: Histogram::new(3)?,
            by_kind: [Histogram::new(3)?, Histogram::new(3)?],
            last: Duration::ZERO,
        })
    }

    fn add(&mut self, other: &Loaded) -> Outcome<()> {
        self.ops += other.ops;
        self.unsent += other.unsent;
        self.last = self.last.max(other.last);
        self.misses += other.misses;
        self.user_bytes += other.user_bytes;
        self.latencies.add(&other.latencies)?;
        for (mine, theirs) in self.by_kind.iter_mut().zip(&other.by_kind) {
            mine.add(theirs)?;
        }
        Ok(())
    }
}

struct InFlight {
    asked: Asked,
    number: u64,
    /// When it was due, or sent.
    since: Duration,
}

struct Connection {
    load: Load,
    keys: KeyShape,
    stream: Stream,
    filler: Arc<Filler>,
    request: Vec<u8>,
    received: Vec<u8>,
    filled: usize,
    used: usize,
    key: Vec<u8>,
    value: Vec<u8>,
    in_flight: VecDeque<InFlight>,
    /// When the server said something, or had nothing to say and was asked.
    heard: Duration,
    salt: u64,
}

impl Connection {
    fn open(load: &Load, filler: &Arc<Filler>) -> Outcome<Connection> {
        let stream = TcpStream::connect(load.target)?;
        stream.set_nodelay(true)?;
        Ok(Connection {
            load: load.clone(),
            keys: KeyShape::Fixed(load.key_size.max(16)),
            stream: Stream::try_from(stream)?,
            filler: Arc::clone(filler),
            request: Vec::new(),
            received: vec![0; 64 << 10],
            filled: 0,
            used: 0,
            key: Vec::new(),
            value: Vec::new(),
            in_flight: VecDeque::new(),
            heard: Duration::ZERO,
            salt: load.seed,
        })
    }

    fn ask(&mut self, asked: Asked, number: u64, since: Duration) {
        self.keys.write(number, &mut self.key);
        match asked {
            Asked::Get => self.load.protocol.get(&self.key, &mut self.request),
            Asked::Set => {
                self.salt = self.salt.wrapping_add(1);
                self.filler.write(number, self.load.value_size, self.salt, &mut self.value);
                self.load.protocol.set(&self.key, &self.value, &mut self.request);
            }
        }
        if self.in_flight.is_empty() {
            self.heard = SystemClock.monotonic();
        }
        self.in_flight.push_back(InFlight { asked, number, since });
    }

    fn send(&mut self) -> Outcome<()> {
        if !self.request.is_empty() {
            self.stream.set_write_deadline(Some(PATIENCE));
            self.stream.write_all(&self.request)?;
            self.request.clear();
        }
        Ok(())
    }

    /// Waits for bytes, then takes every reply that is there; gives each to `note`, and whether it was a miss. Waits no longer than
    /// to the time `until`, if there is one: something is to be sent then.
    fn receive(
        &mut self,
        until: Option<Duration>,
        note: &mut dyn FnMut(&InFlight, bool) -> Outcome<()>,
    ) -> Outcome<()> {
        self.received.copy_within(self.used..self.filled, 0);
        (self.filled, self.used) = (self.filled - self.used, 0);
        if self.filled == self.received.len() {
            self.received.resize(self.filled * 2, 0);
        }
        let now = SystemClock.monotonic();
        let patience = (self.heard + PATIENCE).saturating_sub(now);
        let nap = until.map(|until| nap(until.saturating_sub(now)).unwrap_or_default());
        self.stream.set_read_deadline(Some(nap.map_or(patience, |nap| nap.min(patience))));
        match self.stream.read(self.received.get_mut(self.filled..).unwrap_or_default()) {
            Ok(0) => return Err(Failure::new("the server closed the connection")),
            Ok(count) => self.filled += count,
            Err(error)
                if error.kind() == ErrorKind::TimedOut && nap.is_some_and(|nap| nap < patience) =>
            {
                if nap == Some(Duration::ZERO) {
                    give_way();
                }
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
        self.heard = SystemClock.monotonic();
        while let Some(first) = self.in_flight.front() {
            let bytes = self.received.get(self.used..self.filled).unwrap_or_default();
            let Some((reply, length)) = self.load.protocol.reply(first.asked, bytes)? else {
                break;
            };
            let missed = reply == Reply::Missing;
            if let Reply::Value(value) = reply
                && !Filler::is_right(first.number, self.load.value_size, value)
            {
                return Err(Failure::new(format!("wrong answer: key number {}", first.number)));
            }
            if missed && self.load.must_hit {
                let words = format!("wrong answer: key number {} is missing", first.number);
                return Err(Failure::new(words));
            }
            note(first, missed)?;
            self.used += length;
            self.in_flight.pop_front();
        }
        Ok(())
    }

    fn work(
        &mut self,
        number: u64,
        start: Duration,
        stop: &AtomicBool,
        done: &AtomicU64,
    ) -> Outcome<Loaded> {
        let connections = self.load.connections as u64;
        let measure_from = start + self.load.warmup;
        let end = measure_from + self.load.length;
        let mut pace = self.load.rate.map(|rate| Pace::new(start, rate, number, connections));
        let mut rng =
            Rng::from_seed(self.load.seed ^ (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut chooser =
            Chooser::new(self.load.distribution, self.load.records, 0, number, connections);
        let mut loaded = Loaded::new()?;
        let set_bytes = self.load.key_size.max(16) as u64 + self.load.value_size;
        // Of a server that cannot keep up with the rate, there is no end of what is overdue.
        let last_call = end + self.load.length;
        let mut now = wait_until(start, || SystemClock.monotonic(), stop);
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(Failure::new("another connection failed"));
            }
            // What is due, as far as there is room in flight.
            while self.in_flight.len() < self.load.depth.max(1) {
                let since = match &mut pace {
                    None if now < end => now,
                    None => break,
                    Some(pace) => {
                        let due = pace.due();
                        if due > now || due >= end || now >= last_call {
                            break;
                        }
                        pace.step();
                        due
                    }
                };
                let asked =
                    if uniform(&mut rng) < self.load.gets { Asked::Get } else { Asked::Set };
                let key = chooser.draw(self.load.records, &mut rng);
                self.ask(asked, key, since);
            }
            self.send()?;
            let next = pace.as_ref().map(Pace::due).filter(|due| *due < end && now < last_call);
            if self.in_flight.is_empty() {
                let Some(due) = next else { break };
                now = wait_until(due, || SystemClock.monotonic(), stop);
                continue;
            }
            let until = next.filter(|_| self.in_flight.len() < self.load.depth);
            let mut count = 0;
            self.receive(until, &mut |one, missed| {
                now = SystemClock.monotonic();
                count += 1;
                // Whoever was due in the phase belongs to it, however long he had to wait.
                if one.since < measure_from {
                    return Ok(());
                }
                let nanos = nanos(now.saturating_sub(one.since)).max(1);
                loaded.ops += 1;
                loaded.last = now;
                loaded.misses += u64::from(missed);
                loaded.latencies.record(nanos)?;
                let [gets, sets] = &mut loaded.by_kind;
                match one.asked {
                    Asked::Get => gets.record(nanos)?,
                    Asked::Set => {
                        loaded.user_bytes += set_bytes;
                        sets.record(nanos)?;
                    }
                }
                Ok(())
            })?;
            done.fetch_add(count, Ordering::Relaxed);
            now = SystemClock.monotonic();
        }
        loaded.unsent = pace.map_or(0, |pace| pace.due_before(measure_from, end));
        Ok(loaded)
    }
}

/// Stores every key once, over one connection.
///
/// # Errors
/// Those of the server.
pub fn fill(runtime: &Runtime, load: &Load) -> Outcome<()> {
    let filler = Arc::new(Filler::new(load.seed, load.value_size));
    let load = load.clone();
    let filled = runtime.spawn(move || -> Outcome<()> {
        let mut connection = Connection::open(&load, &filler)?;
        for first in (0..load.records).step_by(size(FILL_BATCH)) {
            for number in first..load.records.min(first + FILL_BATCH) {
                connection.ask(Asked::Set, number, Duration::ZERO);
            }
            connection.send()?;
            while !connection.in_flight.is_empty() {
                connection.receive(None, &mut |_, _| Ok(()))?;
            }
        }
        Ok(())
    });
    filled.join()?
}

/// Runs the load; `begins` is called when the measured phase begins, and `tell` hears now and then how many replies came, and
/// per second.
///
/// # Errors
/// Those of the server, wrong answers among them.
pub fn run(
    runtime: &Runtime,
    load: &Load,
    begins: impl FnOnce(),
    mut tell: impl FnMut(u64, f64),
) -> Outcome<Loaded> {
    let filler = Arc::new(Filler::new(load.seed, load.value_size));
    let start = SystemClock.monotonic() + START_DELAY;
    let measure_from = start + load.warmup;
    let stop = Arc::new(AtomicBool::new(false));
    let (done, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let tasks: Vec<_> = (0..load.connections as u64)
        .map(|number| {
            let cores = runtime.cores() as u64;
            let core = CoreId(u16::try_from(number % cores.max(1)).unwrap_or(0));
            let (load, filler) = (load.clone(), Arc::clone(&filler));
            let (stop, done, ended) = (Arc::clone(&stop), Arc::clone(&done), Arc::clone(&ended));
            runtime.spawn_on(core, move || {
                let attendance = Attendance::new(&stop, &ended);
                let opened = Connection::open(&load, &filler);
                attendance.end(
                    opened.and_then(|mut connection| connection.work(number, start, &stop, &done)),
                )
            })
        })
        .collect();
    let mut begins = Some(begins);
    while ended.load(Ordering::Acquire) < tasks.len() as u64 {
        let now = SystemClock.monotonic();
        if now >= measure_from
            && let Some(begins) = begins.take()
        {
            begins();
        }
        let since = now.saturating_sub(start).as_secs_f64();
        let count = done.load(Ordering::Relaxed);
        tell(count, real(count) / since.max(1e-3));
        let wait = match begins {
            Some(_) => measure_from.saturating_sub(now).min(POLL),
            None => POLL,
        };
        esker_trt::sleep(wait);
    }
    let mut all = Loaded::new()?;
    let mut failure: Option<Failure> = None;
    for task in tasks {
        match task.join()? {
            Ok(one) => all.add(&one)?,
            // The first cause, not those who were stopped because of it.
            Err(other)
                if failure.is_none() || !other.to_string().contains("another connection") =>
            {
                failure = Some(other);
            }
            Err(_) => {}
        }
    }
    all.seconds = all.last.saturating_sub(measure_from).max(load.length).as_secs_f64();
    match failure {
        Some(failure) => Err(failure),
        None => Ok(all),
    }
}

#[cfg(test)]
mod tests;
