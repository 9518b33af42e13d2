//! A simulated block device with a volatile cache, faults and a recording.
//!
//! Stands wherever a [`FileDevice`](crate::FileDevice) stands, in tests. Content lives in memory;
//! each call is recorded, and [`SimBlock::trace`] gives the recording from which
//! [`Replay`](super::Replay) enumerates what a power cut leaves (reliability T2, F5).
//!
//! # Invariants
//! - I1: reads see, between the begin and the end of a write, its old or its new bytes, each tearing unit by itself; after
//!   its end the new ones (or those of an overlapping write that was under way at the same time).
//! - I2: a flush covers the writes that returned before it began, no others (B1).
//! - I3: after a failed flush or durable write no later one succeeds (F12).
//! - I4: the same seed and the same order of calls give the same content, faults and recording.
//!
//! # Concurrency
//! Safe from tasks and threads. The inner lock is never held while a call is under way, so calls
//! overlap as they do on a device.
//!
//! # Failure
//! As planned in [`FaultPlan`].

use super::faults::{Call, FaultKind, FaultPlan};
use super::image::{Image, Initial};
use super::trace::{CallId, Event, EventKind, PowerClock, SiteVisits, Trace};
use crate::block::{AtomicCounters, BlockDevice, BlockGeometry, Counters, total_length};
use esker_base::rng::Rng;
use esker_base::{Error, ErrorKind, Result, Site};
use parking_lot::Mutex;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long the caller of a call that never completes waits, in simulated time.
const STUCK_TIME: Duration = Duration::from_secs(60);
/// Farthest that a misdirected write lands from its place, in blocks.
const MISDIRECTION_BLOCKS_MAX: u64 = 64;

/// How to make a [`SimBlock`].
#[derive(Clone, Debug)]
pub struct SimBlockOptions {
    /// Name for errors.
    pub name: String,
    /// Capacity in bytes, a multiple of the block size.
    pub size_bytes: u64,
    /// How long the device can become ([`BlockDevice::reserve`]); 0: it cannot grow.
    pub size_bytes_max: u64,
    /// Unit of a transfer in bytes, a power of two from 512.
    pub block_size_bytes: u32,
    /// Reads may begin and end anywhere ([`BlockDevice::reads_bytes`]). Of every second seed, if nothing else is said.
    pub reads_bytes: bool,
    /// Unit that a crash keeps or loses whole, in bytes: 512 (strict), or up to the block size.
    pub tear_size_bytes: u32,
    /// Content at the start.
    pub initial: Initial,
    /// Decides latencies, orders, faults by chance and random content.
    pub seed: u64,
    /// What fails.
    pub faults: FaultPlan,
    /// Longest simulated time that a call takes; each takes a random part of it.
    pub latency_max: Duration,
    /// Clock of the power supply; devices that lose power together share it.
    pub clock: PowerClock,
    /// Keep a recording. Without one there are no crash states, and memory does not grow.
    pub record: bool,
}

impl SimBlockOptions {
    /// A recorded device of `size_bytes` zeros without faults, with blocks of 512 bytes.
    #[must_use]
    pub fn new(size_bytes: u64, seed: u64) -> Self {
        SimBlockOptions {
            name: "sim".to_owned(),
            size_bytes,
            size_bytes_max: 0,
            block_size_bytes: 512,
            reads_bytes: seed % 2 == 1,
            tear_size_bytes: 512,
            initial: Initial::Zeros,
            seed,
            faults: FaultPlan::none(),
            latency_max: Duration::from_micros(100),
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

/// A write under way: the image has what was there before, or already what comes.
#[derive(Debug)]
struct UnderWay {
    id: CallId,
    offset: u64,
    /// What the image has not.
    other: Vec<u8>,
}

#[derive(Debug)]
struct State {
    image: Image,
    under_way: Vec<UnderWay>,
    events: Vec<Event>,
    rng: Rng,
    faults: FaultPlan,
    visits: SiteVisits,
    failed: bool,
    next_id: CallId,
}

/// A simulated block device. See the module's text.
#[derive(Debug)]
pub struct SimBlock {
    name: String,
    block_size_bytes: u32,
    reads_bytes: bool,
    /// Grows only, up to `size_bytes_max`.
    size_bytes: AtomicU64,
    size_bytes_max: u64,
    tear_size_bytes: u32,
    latency_max: Duration,
    clock: PowerClock,
    record: bool,
    base: Image,
    state: Mutex<State>,
    counters: AtomicCounters,
}

/// Suspends the calling task for a simulated time; outside a simulation, returns at once.
fn pause(time: Duration) {
    if esker_trt::sim::is_active() {
        esker_trt::sleep(time);
    }
}

impl SimBlock {
    /// A device.
    ///
    /// # Panics
    /// If the sizes are not as [`SimBlockOptions`] documents them.
    #[must_use]
    pub fn new(options: SimBlockOptions) -> SimBlock {
        let block = options.block_size_bytes;
        let tear = options.tear_size_bytes;
        assert!(block.is_power_of_two() && block >= 512, "block size {block}");
        assert!(tear.is_power_of_two() && (512..=block).contains(&tear), "tear size {tear}");
        assert!(options.size_bytes.is_multiple_of(u64::from(block)), "whole blocks");
        let mut rng = Rng::from_seed(options.seed);
        let image = options.initial.image(options.size_bytes, &mut rng);
        SimBlock {
            name: options.name,
            block_size_bytes: block,
            reads_bytes: options.reads_bytes,
            size_bytes: AtomicU64::new(options.size_bytes),
            size_bytes_max: options.size_bytes_max.max(options.size_bytes),
            tear_size_bytes: tear,
            latency_max: options.latency_max,
            clock: options.clock,
            record: options.record,
            base: image.clone(),
            state: Mutex::new(State {
                image,
                under_way: Vec::new(),
                events: Vec::new(),
                rng,
                faults: options.faults,
                visits: SiteVisits::default(),
                failed: false,
                next_id: 1,
            }),
            counters: AtomicCounters::default(),
        }
    }

    /// Stamp of the latest event: a program notes it when an operation begins and ends, to say
    /// later what had happened at a crash point.
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
    pub fn trace(&self) -> Trace {
        let state = self.state.lock();
        Trace {
            base: self.base.clone(),
            events: state.events.clone(),
            geometry: self.geometry(),
            tear_size_bytes: self.tear_size_bytes,
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

    fn push(&self, state: &mut State, kind: EventKind) {
        let stamp = self.clock.tick();
        if self.record {
            state.events.push(Event { stamp, kind });
        }
    }

    fn check(&self, operation: &'static str, offset: u64, length: u64) -> Result<()> {
        self.geometry().check(operation, offset, length).map_err(|error| error.device(&self.name))
    }

    fn error(&self, kind: ErrorKind, operation: &'static str, context: &'static str) -> Error {
        Error::new(kind, operation).device(&self.name).context(context)
    }

    fn earlier_failure(&self, operation: &'static str) -> Error {
        let context = "an earlier flush failed; open the device again";
        self.error(ErrorKind::Io, operation, context)
    }

    fn latency(&self, state: &mut State) -> Duration {
        let most = u64::try_from(self.latency_max.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(state.rng.below(most))
    }

    /// Lets a write that failed have put any of its units, often none, perhaps all.
    fn leave_parts(&self, state: &mut State, offset: u64, data: &mut [u8]) {
        let mut before = vec![0; data.len()];
        state.image.read(offset, &mut before);
        let unit = self.tear_size_bytes as usize;
        // Of two: none, as often as some or all.
        let done = state.rng.below(4).saturating_sub(1);
        for (unit, before) in data.chunks_mut(unit).zip(before.chunks(unit)) {
            if !state.rng.chance(done, 2) {
                unit.copy_from_slice(before);
            }
        }
    }

    /// Some bytes of a write that was cut short: a beginning of whole tearing units, often nothing.
    fn part_of(&self, state: &mut State, length: usize) -> usize {
        let unit = self.tear_size_bytes as usize;
        if state.rng.chance(1, 2) { 0 } else { state.rng.index(length / unit) * unit }
    }

    /// The place of a misdirected write: some blocks off, inside the device.
    fn misdirect(&self, state: &mut State, offset: u64, length: u64) -> u64 {
        let block = u64::from(self.block_size_bytes);
        let distance = (1 + state.rng.below(MISDIRECTION_BLOCKS_MAX)) * block;
        let last = self.geometry().size_bytes - length;
        let up = offset.saturating_add(distance).min(last);
        let down = offset.saturating_sub(distance);
        if state.rng.chance(1, 2) { up } else { down }
    }

    /// Lets a read that meets writes under way have some units as they were, and others as they will be.
    fn mix(&self, state: &mut State, offset: u64, buf: &mut [u8]) {
        let unit = u64::from(self.tear_size_bytes);
        let end = offset + buf.len() as u64;
        let State { under_way, rng, .. } = state;
        for write in under_way {
            let write_end = write.offset + write.other.len() as u64;
            let mut at = offset.max(write.offset);
            while at < end.min(write_end) {
                let to = (at / unit * unit + unit).min(end).min(write_end);
                let part = |start: u64| {
                    let index = |at: u64| usize::try_from(at - start).unwrap_or(0);
                    index(at)..index(to)
                };
                let other = write.other.get(part(write.offset));
                if rng.chance(1, 2)
                    && let (Some(there), Some(other)) = (buf.get_mut(part(offset)), other)
                {
                    there.copy_from_slice(other);
                }
                at = to;
            }
        }
    }

    fn write(
        &self,
        site: Site,
        offset: u64,
        bufs: &[IoSlice<'_>],
        wants_durable: bool,
    ) -> Result<()> {
        const OPERATION: &str = "write device";
        let length = total_length(bufs);
        self.check(OPERATION, offset, length)?;
        let durable = wants_durable && !site.disabled();
        let mut data = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
        bufs.iter().for_each(|buf| data.extend_from_slice(buf));

        let mut state = self.state.lock();
        state.visits.visit(site);
        if durable && state.failed {
            return Err(self.earlier_failure(OPERATION));
        }
        self.counters.write(length);
        let State { faults, rng, .. } = &mut *state;
        let fault = faults.next(Call::Write, rng);
        let mut at = offset;
        let mut result = Ok(());
        match fault {
            Some(FaultKind::LostWrite) => return Ok(()),
            Some(FaultKind::NoSpace) => {
                return Err(self.error(ErrorKind::NoSpace, OPERATION, "planned fault"));
            }
            Some(FaultKind::MisdirectedWrite) => at = self.misdirect(&mut state, offset, length),
            Some(FaultKind::WriteError | FaultKind::AnyError) => {
                self.leave_parts(&mut state, offset, &mut data);
                result = Err(self.error(ErrorKind::Io, OPERATION, "planned fault"));
            }
            Some(FaultKind::ShortWrite) => {
                data.truncate(self.part_of(&mut state, data.len()));
                result = Err(self.error(ErrorKind::Io, OPERATION, "planned short transfer"));
            }
            _ => {}
        }
        if fault == Some(FaultKind::Stuck) {
            result = Err(self.error(ErrorKind::Timeout, OPERATION, "planned: never completes"));
        }
        state.failed |= durable && result.is_err();
        let id = state.next_id;
        state.next_id += 1;
        let data: Arc<[u8]> = data.into();
        // What a failed one left as it was must not come back over what others write meanwhile.
        let applied = state.rng.chance(1, 2) || result.is_err();
        let mut other = data.to_vec();
        if applied {
            state.image.read(at, &mut other);
            state.image.write(at, &data);
        }
        state.under_way.push(UnderWay { id, offset: at, other });
        let copy = Arc::clone(&data);
        self.push(&mut state, EventKind::WriteBegin { id, site, offset: at, data: copy, applied });
        if fault == Some(FaultKind::Stuck) {
            // It stays under way for ever: part of it may survive any crash.
            drop(state);
            pause(STUCK_TIME);
            return result.map_err(|error| error.at(offset, length));
        }
        let latency = self.latency(&mut state);
        drop(state);
        pause(latency);

        let mut state = self.state.lock();
        state.under_way.retain(|write| write.id != id);
        if !applied {
            state.image.write(at, &data);
        }
        let durable = durable && result.is_ok();
        self.push(&mut state, EventKind::WriteEnd { id, durable });
        result.map_err(|error| error.at(offset, length))
    }
}

impl BlockDevice for SimBlock {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> BlockGeometry {
        let size_bytes = self.size_bytes.load(Ordering::SeqCst);
        BlockGeometry { size_bytes, block_size_bytes: self.block_size_bytes }
    }

    fn report(&self) -> String {
        format!(
            "simulated device {}, {} bytes in blocks of {}, torn at {}: nothing survives the \
             process",
            self.name,
            self.geometry().size_bytes,
            self.block_size_bytes,
            self.tear_size_bytes
        )
    }

    fn counters(&self) -> Counters {
        self.counters.get()
    }

    fn reads_bytes(&self) -> bool {
        self.reads_bytes
    }

    fn read_at(&self, site: Site, offset: u64, buf: &mut [u8]) -> Result<()> {
        const OPERATION: &str = "read device";
        let length = buf.len() as u64;
        let checked = self.read_geometry().check(OPERATION, offset, length);
        checked.map_err(|error| error.device(&self.name))?;
        let mut state = self.state.lock();
        state.visits.visit(site);
        self.counters.read(length);
        let State { faults, rng, .. } = &mut *state;
        let fault = faults.next(Call::Read, rng);
        let latency = self.latency(&mut state);
        drop(state);
        pause(if fault == Some(FaultKind::Stuck) { STUCK_TIME } else { latency });

        let mut state = self.state.lock();
        let flip = offset + state.rng.below(length);
        let bit = u32::try_from(state.rng.below(8)).unwrap_or(0);
        if fault == Some(FaultKind::RestFlip) {
            state.image.flip(flip, bit);
            self.push(&mut state, EventKind::Flip { offset: flip, bit });
        }
        state.image.read(offset, buf);
        self.mix(&mut state, offset, buf);
        let error = |kind, context| Err(self.error(kind, OPERATION, context).at(offset, length));
        match fault {
            Some(FaultKind::ReadError | FaultKind::AnyError) => {
                buf.fill(0xEE);
                error(ErrorKind::Io, "planned fault")
            }
            Some(FaultKind::ShortRead) => {
                let keep = state.rng.index(buf.len());
                buf.get_mut(keep..).unwrap_or_default().fill(0xEE);
                error(ErrorKind::Io, "planned short transfer")
            }
            Some(FaultKind::Stuck) => {
                buf.fill(0xEE);
                error(ErrorKind::Timeout, "planned: never completes")
            }
            Some(FaultKind::ReadFlip) => {
                let index = usize::try_from(flip - offset).unwrap_or(0);
                if let Some(byte) = buf.get_mut(index) {
                    *byte ^= 1 << bit;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn write_at(&self, site: Site, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.write(site, offset, bufs, false)
    }

    fn write_durable_at(&self, site: Site, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.write(site, offset, bufs, true)
    }

    fn flush(&self, site: Site) -> Result<()> {
        const OPERATION: &str = "flush device";
        let mut state = self.state.lock();
        state.visits.visit(site);
        if site.disabled() {
            return Ok(());
        }
        if state.failed {
            return Err(self.earlier_failure(OPERATION));
        }
        self.counters.flush();
        let State { faults, rng, .. } = &mut *state;
        let fault = faults.next(Call::Flush, rng);
        let id = state.next_id;
        state.next_id += 1;
        self.push(&mut state, EventKind::FlushBegin { id, site });
        let latency = self.latency(&mut state);
        drop(state);
        pause(if fault == Some(FaultKind::Stuck) { STUCK_TIME } else { latency });

        let mut state = self.state.lock();
        let result = match fault {
            Some(FaultKind::FlushError | FaultKind::AnyError) => {
                Err(self.error(ErrorKind::Io, OPERATION, "planned fault"))
            }
            Some(FaultKind::Stuck) => {
                Err(self.error(ErrorKind::Timeout, OPERATION, "planned: never completes"))
            }
            // Another flush failed meanwhile, and with it what this one was to cover.
            _ if state.failed => Err(self.earlier_failure(OPERATION)),
            _ => Ok(()),
        };
        state.failed |= result.is_err();
        self.push(&mut state, EventKind::FlushEnd { id, ok: result.is_ok() });
        result
    }

    fn discard(&self, site: Site, offset: u64, length: u64) -> Result<()> {
        const OPERATION: &str = "discard range";
        self.check(OPERATION, offset, length)?;
        let mut state = self.state.lock();
        state.visits.visit(site);
        let State { faults, rng, .. } = &mut *state;
        if faults.next(Call::Discard, rng).is_some() {
            let error = self.error(ErrorKind::Io, OPERATION, "planned fault");
            return Err(error.at(offset, length));
        }
        // Each block reads as it was or as zeros from now on.
        let mut data = vec![0; usize::try_from(length).unwrap_or(0)];
        state.image.read(offset, &mut data);
        for block in data.chunks_mut(self.block_size_bytes as usize) {
            if state.rng.chance(1, 2) {
                block.fill(0);
            }
        }
        state.image.write(offset, &data);
        let id = state.next_id;
        state.next_id += 1;
        self.push(&mut state, EventKind::Discard { id, site, offset, data: data.into() });
        Ok(())
    }

    fn prepare(&self, site: Site, offset: u64, length: u64) -> Result<()> {
        self.check("prepare range", offset, length)?;
        self.state.lock().visits.visit(site);
        Ok(())
    }

    fn reserve(&self, site: Site, offset: u64, length: u64) -> Result<()> {
        const OPERATION: &str = "reserve range";
        let end = offset.saturating_add(length);
        let mut state = self.state.lock();
        state.visits.visit(site);
        let State { faults, rng, .. } = &mut *state;
        let fault = faults.next(Call::Write, rng);
        if fault == Some(FaultKind::NoSpace) || end > self.size_bytes_max {
            return Err(self.error(ErrorKind::NoSpace, OPERATION, "the device is full"));
        }
        if fault.is_some() {
            return Err(self.error(ErrorKind::Io, OPERATION, "planned fault"));
        }
        if end > self.geometry().size_bytes {
            state.image.grow(end);
            self.size_bytes.store(end, Ordering::SeqCst);
            self.push(&mut state, EventKind::Grow { site, size_bytes: end });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
