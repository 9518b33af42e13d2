//! Simulated persistent memory: caches that forget, faults and a recording.
//!
//! Stands wherever a [`PmemFile`](crate::PmemFile) stands, in tests. [`SimPm::trace`] gives the
//! recording from which [`PmReplay`](super::PmReplay) enumerates what a power cut leaves
//! (reliability T1, F1).
//!
//! # Invariants
//! - I1: reads see every store at once.
//! - I2: a fence covers the flushes and non-temporal stores of its own thread, as the processor
//!   does it (P1, P4); in a simulation of its own task, which may have a core for itself.
//! - I3: after a failed fence no later one succeeds (F12).
//! - I4: the same seed and the same order of calls give the same content, faults and recording.
//!
//! # Concurrency
//! Safe from tasks and threads. No call suspends: between two calls of one task nothing happens
//! unless the task suspends by itself.
//!
//! # Failure
//! As planned in [`FaultPlan`], and `Corrupted` for poisoned ranges until they are overwritten.

use super::faults::{Call, FaultKind, FaultPlan};
use super::image::{Image, Initial, place_hash};
use super::trace::{PowerClock, SiteVisits};
use crate::pmem::{AtomicPmemCounters, LINE_SIZE_BYTES, Pmem, PmemCounters, check};
use esker_base::rng::Rng;
use esker_base::{Error, ErrorKind, Result, Site};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::{self, ThreadId};

/// Bytes that are stored in one piece.
pub(super) const WORD_SIZE_BYTES: usize = 8;

/// How to make a [`SimPm`].
#[derive(Clone, Debug)]
pub struct SimPmOptions {
    /// Name for errors.
    pub name: String,
    /// Capacity in bytes, a multiple of 64.
    pub size_bytes: u64,
    /// Content at the start.
    pub initial: Initial,
    /// Decides faults by chance, orders and random content.
    pub seed: u64,
    /// What fails.
    pub faults: FaultPlan,
    /// Clock of the power supply.
    pub clock: PowerClock,
    /// Keep a recording. Without one there are no crash states, and memory does not grow.
    pub record: bool,
}

impl SimPmOptions {
    /// A recorded medium of `size_bytes` zeros without faults.
    #[must_use]
    pub fn new(size_bytes: u64, seed: u64) -> Self {
        SimPmOptions {
            name: "simpm".to_owned(),
            size_bytes,
            initial: Initial::Zeros,
            seed,
            faults: FaultPlan::none(),
            clock: PowerClock::new(),
            record: true,
        }
    }

    /// The same with another content at the start.
    #[must_use]
    pub fn initial(mut self, initial: Initial) -> Self {
        self.initial = initial;
        self
    }

    /// The same with these faults.
    #[must_use]
    pub fn faults(mut self, faults: FaultPlan) -> Self {
        self.faults = faults;
        self
    }
}

/// Whose flushes a fence covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Thread(ThreadId),
    Task(u64),
}

impl Owner {
    fn caller() -> Owner {
        let task = esker_trt::sim::task_number();
        task.map_or_else(|| Owner::Thread(thread::current().id()), Owner::Task)
    }
}

/// A word and its new value.
pub(super) type WordStore = (u32, u64);

#[derive(Clone, Debug)]
pub(super) enum PmEventKind {
    /// Cached stores of words, in the order in which the processor makes them.
    Store(Arc<[WordStore]>),
    /// Stores past the caches, in no order.
    NtStore(Arc<[WordStore]>, Owner),
    /// Lines by number: first and count.
    Flush(u32, u32, Owner),
    Fence(Owner),
    /// A bit turned over on media.
    Flip(u64, u32),
}

#[derive(Clone, Debug)]
pub(super) struct PmEvent {
    pub(super) stamp: u64,
    pub(super) site: Option<Site>,
    pub(super) kind: PmEventKind,
}

/// The recording of one medium.
#[derive(Clone, Debug)]
pub struct PmTrace {
    pub(super) base: Image,
    pub(super) events: Vec<PmEvent>,
    visits: SiteVisits,
}

impl PmTrace {
    /// Crash points after the start: the stamps of the events.
    pub fn points(&self) -> impl Iterator<Item = u64> + '_ {
        self.events.iter().map(|event| event.stamp)
    }

    /// Events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether nothing happened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// How often each site was passed.
    #[must_use]
    pub fn visits(&self) -> &SiteVisits {
        &self.visits
    }

    /// A hash of everything that was recorded but the threads: the same seed must give the same.
    #[must_use]
    pub fn hash(&self) -> u128 {
        self.events.iter().fold(super::pm_image_hash(&self.base), |hash, event| {
            let site = event.site.map_or(0, Site::id);
            let hash = place_hash(hash ^ u128::from(site), event.stamp);
            let (tag, number, words): (u64, u64, &[WordStore]) = match &event.kind {
                PmEventKind::Store(words) => (1, 0, words),
                PmEventKind::NtStore(words, _) => (2, 0, words),
                PmEventKind::Flush(first, count, _) => {
                    (3, u64::from(*first) << 32 | u64::from(*count), &[])
                }
                PmEventKind::Fence(_) => (4, 0, &[]),
                PmEventKind::Flip(offset, bit) => (5, offset << 3 | u64::from(*bit), &[]),
            };
            words.iter().fold(place_hash(hash ^ u128::from(number), tag), |hash, (word, value)| {
                place_hash(hash ^ u128::from(*value), u64::from(*word))
            })
        })
    }
}

#[derive(Debug)]
struct State {
    image: Image,
    events: Vec<PmEvent>,
    rng: Rng,
    faults: FaultPlan,
    visits: SiteVisits,
    /// Lines whose load fails.
    poisoned: BTreeSet<u64>,
    failed: bool,
}

/// Simulated persistent memory. See the module's text.
#[derive(Debug)]
pub struct SimPm {
    name: String,
    size_bytes: u64,
    clock: PowerClock,
    record: bool,
    base: Image,
    state: Mutex<State>,
    counters: AtomicPmemCounters,
}

/// Lines that a range touches.
fn lines(offset: u64, length: u64) -> std::ops::Range<u64> {
    if length == 0 {
        return 0..0;
    }
    offset / LINE_SIZE_BYTES..(offset + length - 1) / LINE_SIZE_BYTES + 1
}

impl SimPm {
    /// A medium.
    ///
    /// # Panics
    /// If the size is not as [`SimPmOptions`] documents it, or above 16 GiB.
    #[must_use]
    pub fn new(options: SimPmOptions) -> SimPm {
        assert!(options.size_bytes.is_multiple_of(LINE_SIZE_BYTES), "whole lines");
        assert!(options.size_bytes <= 16 << 30, "word numbers fit 32 bits");
        let mut rng = Rng::from_seed(options.seed);
        let image = options.initial.image(options.size_bytes, &mut rng);
        SimPm {
            name: options.name,
            size_bytes: options.size_bytes,
            clock: options.clock,
            record: options.record,
            base: image.clone(),
            state: Mutex::new(State {
                image,
                events: Vec::new(),
                rng,
                faults: options.faults,
                visits: SiteVisits::default(),
                poisoned: BTreeSet::new(),
                failed: false,
            }),
            counters: AtomicPmemCounters::default(),
        }
    }

    /// Stamp of the latest event; see [`SimBlock::position`](super::SimBlock::position).
    #[must_use]
    pub fn position(&self) -> u64 {
        self.clock.position()
    }

    /// What reads see now.
    #[must_use]
    pub fn image(&self) -> Image {
        self.state.lock().image.clone()
    }

    /// The recording so far.
    #[must_use]
    pub fn trace(&self) -> PmTrace {
        let state = self.state.lock();
        PmTrace {
            base: self.base.clone(),
            events: state.events.clone(),
            visits: state.visits.clone(),
        }
    }

    /// How often each site was passed.
    #[must_use]
    pub fn visits(&self) -> SiteVisits {
        self.state.lock().visits.clone()
    }

    /// How many calls failed by plan since the faults were set.
    #[must_use]
    pub fn faults_fired(&self) -> u64 {
        self.state.lock().faults.fired()
    }

    /// Replaces the planned faults; their calls are counted from now.
    pub fn set_faults(&self, faults: FaultPlan) {
        self.state.lock().faults = faults;
    }

    /// Loads from the lines of this range fail from now on, until they are overwritten.
    pub fn poison(&self, offset: u64, length: u64) {
        self.state.lock().poisoned.extend(lines(offset, length));
    }

    fn check(&self, operation: &'static str, offset: u64, length: u64, unit: u64) -> Result<()> {
        check(operation, self.size_bytes, offset, length, unit)
            .map_err(|error| error.device(&self.name))
    }

    fn error(&self, kind: ErrorKind, operation: &'static str) -> Error {
        Error::new(kind, operation).device(&self.name).context("planned fault")
    }

    fn push(&self, state: &mut State, site: Option<Site>, kind: PmEventKind) {
        let stamp = self.clock.tick();
        if self.record {
            state.events.push(PmEvent { stamp, site, kind });
        }
    }

    /// Words that hold the range, with their values as they are now.
    fn words(image: &Image, offset: u64, length: u64) -> Vec<WordStore> {
        let word = WORD_SIZE_BYTES as u64;
        let first = offset / word;
        let end = (offset + length).div_ceil(word);
        (first..end)
            .map(|index| {
                let mut bytes = [0; WORD_SIZE_BYTES];
                image.read(index * word, &mut bytes);
                (u32::try_from(index).unwrap_or(u32::MAX), u64::from_le_bytes(bytes))
            })
            .collect()
    }

    /// A store; `owner` for one past the caches.
    fn put(&self, site: Site, offset: u64, bytes: &[u8], owner: Option<Owner>) -> Result<()> {
        const OPERATION: &str = "store to persistent memory";
        let length = bytes.len() as u64;
        let mut state = self.state.lock();
        state.visits.visit(site);
        let State { faults, rng, .. } = &mut *state;
        match faults.next(Call::Write, rng) {
            Some(FaultKind::LostWrite) => return Ok(()),
            Some(_) => {
                return Err(self.error(ErrorKind::Io, OPERATION).at(offset, length));
            }
            None => {}
        }
        if length == 0 {
            return Ok(());
        }
        state.image.write(offset, bytes);
        for line in lines(offset, length) {
            // Overwriting a whole line repairs it.
            let covered =
                line * LINE_SIZE_BYTES >= offset && (line + 1) * LINE_SIZE_BYTES <= offset + length;
            if covered {
                state.poisoned.remove(&line);
            }
        }
        let mut words = SimPm::words(&state.image, offset, length);
        // The words of one call are stored in any order (P2).
        if owner.is_none() && words.len() > 1 && state.rng.chance(1, 2) {
            words.reverse();
        }
        let kind = match owner {
            None => PmEventKind::Store(words.into()),
            Some(owner) => PmEventKind::NtStore(words.into(), owner),
        };
        self.push(&mut state, Some(site), kind);
        Ok(())
    }
}

impl Pmem for SimPm {
    fn name(&self) -> &str {
        &self.name
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn report(&self) -> String {
        let (name, size) = (&self.name, self.size_bytes);
        format!("simulated memory {name}, {size} bytes: nothing survives the process")
    }

    fn counters(&self) -> PmemCounters {
        self.counters.get()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        const OPERATION: &str = "read persistent memory";
        let length = buf.len() as u64;
        self.check(OPERATION, offset, length, 1)?;
        let mut state = self.state.lock();
        let State { faults, rng, .. } = &mut *state;
        let fault = faults.next(Call::Read, rng);
        let flip = offset + state.rng.below(length);
        let bit = u32::try_from(state.rng.below(8)).unwrap_or(0);
        match fault {
            Some(FaultKind::RestFlip) if length > 0 => {
                state.image.flip(flip, bit);
                self.push(&mut state, None, PmEventKind::Flip(flip, bit));
            }
            Some(FaultKind::ReadFlip) if length > 0 => {
                let mut wrong = state.image.clone();
                wrong.flip(flip, bit);
                wrong.read(offset, buf);
                return Ok(());
            }
            Some(FaultKind::AnyError | FaultKind::ReadError | FaultKind::ShortRead) => {
                // A load that fails once fails until it is overwritten: the cells are bad.
                state.poisoned.extend(lines(offset, length));
            }
            _ => {}
        }
        let bad = lines(offset, length).find(|line| state.poisoned.contains(line));
        if let Some(line) = bad {
            return Err(Error::corrupted(OPERATION, "the medium lost this line")
                .device(&self.name)
                .at(line * LINE_SIZE_BYTES, LINE_SIZE_BYTES));
        }
        state.image.read(offset, buf);
        Ok(())
    }

    fn load_u64(&self, offset: u64) -> Result<u64> {
        self.check("read persistent memory", offset, 8, 8)?;
        let mut bytes = [0; WORD_SIZE_BYTES];
        self.read(offset, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn store(&self, site: Site, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check("store to persistent memory", offset, bytes.len() as u64, 1)?;
        self.counters.store();
        self.put(site, offset, bytes, None)
    }

    fn store_u64(&self, site: Site, offset: u64, value: u64) -> Result<()> {
        self.check("store to persistent memory", offset, 8, 8)?;
        self.counters.store();
        self.put(site, offset, &value.to_le_bytes(), None)
    }

    fn ntstore(&self, site: Site, offset: u64, bytes: &[u8]) -> Result<()> {
        let length = bytes.len() as u64;
        self.check("store to persistent memory", offset, length, 8)?;
        self.counters.ntstore(offset, length);
        self.put(site, offset, bytes, Some(Owner::caller()))
    }

    fn flush(&self, site: Site, offset: u64, length: u64) -> Result<()> {
        const OPERATION: &str = "flush persistent memory";
        self.check(OPERATION, offset, length, 1)?;
        let mut state = self.state.lock();
        state.visits.visit(site);
        if site.disabled() || length == 0 {
            return Ok(());
        }
        self.counters.flush(offset, length);
        let touched = lines(offset, length);
        let first = u32::try_from(touched.start).unwrap_or(u32::MAX);
        let count = u32::try_from(touched.end - touched.start).unwrap_or(u32::MAX);
        let kind = PmEventKind::Flush(first, count, Owner::caller());
        self.push(&mut state, Some(site), kind);
        Ok(())
    }

    fn fence(&self, site: Site) -> Result<()> {
        const OPERATION: &str = "sync persistent memory";
        let mut state = self.state.lock();
        state.visits.visit(site);
        if site.disabled() {
            return Ok(());
        }
        self.counters.fence();
        let State { faults, rng, .. } = &mut *state;
        if faults.next(Call::Flush, rng).is_some() {
            state.failed = true;
            return Err(self.error(ErrorKind::Io, OPERATION));
        }
        if state.failed {
            return Err(Error::new(ErrorKind::Io, OPERATION)
                .device(&self.name)
                .context("an earlier sync failed; open the file again"));
        }
        self.push(&mut state, Some(site), PmEventKind::Fence(Owner::caller()));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
