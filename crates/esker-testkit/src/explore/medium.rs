//! What the explorer needs of a simulated medium, so that one explorer serves block devices and
//! persistent memory.

use super::Config;
use esker_base::Site;
use esker_media::sim::{
    CrashState, FaultPlan, Image, Initial, PmCrashState, PmReplay, PmTrace, Replay, SimBlock,
    SimBlockOptions, SimPm, SimPmOptions, SiteVisits, Trace,
};
use esker_media::{BlockDevice, Pmem};
use std::sync::Arc;

/// A kind of simulated medium.
pub trait Medium: 'static {
    /// What a store is given.
    type Device: Clone + 'static;
    /// The simulated medium itself.
    type Sim: Send + Sync + 'static;
    /// Its recording.
    type Trace: 'static;
    /// A replay of a recording.
    type Replay<'t>: CrashReplay;

    /// A medium of the configured size.
    fn create(
        config: &Config,
        seed: u64,
        initial: Initial,
        faults: FaultPlan,
        record: bool,
    ) -> Arc<Self::Sim>;
    /// The medium as a store sees it.
    fn device(sim: &Arc<Self::Sim>) -> Self::Device;
    /// Stamp of the latest event.
    fn position(sim: &Self::Sim) -> u64;
    /// What reads see now.
    fn image(sim: &Self::Sim) -> Image;
    /// How often each site was passed.
    fn visits(sim: &Self::Sim) -> SiteVisits;
    /// How many calls failed by plan.
    fn faults_fired(sim: &Self::Sim) -> u64;
    /// The recording so far.
    fn trace(sim: &Self::Sim) -> Self::Trace;
    /// Hash of a recording.
    fn trace_hash(trace: &Self::Trace) -> u128;
    /// Events of a recording, and the stamp of the last.
    fn trace_length(trace: &Self::Trace) -> (usize, u64);
    /// A replay that stands at the start.
    fn replay(trace: &Self::Trace) -> Self::Replay<'_>;
}

/// A crash point on the way through a recording.
pub trait CrashReplay {
    /// A state that a crash may leave.
    type State<'r>: Crashed
    where
        Self: 'r;

    /// Stamp of the latest event that happened.
    fn position(&self) -> u64;
    /// Site of the latest event.
    fn last_site(&self) -> Option<Site>;
    /// Site of the next event.
    fn next_site(&self) -> Option<Site>;
    /// Lets the next event happen; false at the end.
    fn step(&mut self) -> bool;
    /// Lets everything up to `position` happen.
    fn advance_to(&mut self, position: u64);
    /// States of a crash here, and whether these are all.
    fn states(&self, budget: usize, seed: u64) -> (Vec<Self::State<'_>>, bool);
    /// The image of a random state.
    fn random_image(&self, seed: u64) -> Image;
}

/// A state that a crash may leave.
pub trait Crashed {
    /// 128-bit hash of the image.
    fn hash(&self) -> u128;
    /// The image.
    fn image(&self) -> Image;
    /// What survived, for people.
    fn describe(&self) -> String;
}

macro_rules! simulated {
    (
        $(#[$meta:meta])* $name:ident, $device:ty, $sim:ty, $trace:ty, $replay:ident, $state:ident,
        $create:expr
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl Medium for $name {
            type Device = $device;
            type Sim = $sim;
            type Trace = $trace;
            type Replay<'t> = $replay<'t>;

            fn create(
                config: &Config,
                seed: u64,
                initial: Initial,
                faults: FaultPlan,
                record: bool,
            ) -> Arc<$sim> {
                let create: fn(&Config, u64, Initial, FaultPlan, bool) -> $sim = $create;
                Arc::new(create(config, seed, initial, faults, record))
            }

            fn device(sim: &Arc<$sim>) -> $device {
                Arc::clone(sim) as $device
            }

            fn position(sim: &$sim) -> u64 {
                sim.position()
            }

            fn image(sim: &$sim) -> Image {
                sim.image()
            }

            fn visits(sim: &$sim) -> SiteVisits {
                sim.visits()
            }

            fn faults_fired(sim: &$sim) -> u64 {
                sim.faults_fired()
            }

            fn trace(sim: &$sim) -> $trace {
                sim.trace()
            }

            fn trace_hash(trace: &$trace) -> u128 {
                trace.hash()
            }

            fn trace_length(trace: &$trace) -> (usize, u64) {
                (trace.len(), trace.points().last().unwrap_or(0))
            }

            fn replay(trace: &$trace) -> $replay<'_> {
                trace.replay()
            }
        }

        impl<'t> CrashReplay for $replay<'t> {
            type State<'r>
                = $state<'r, 't>
            where
                Self: 'r;

            fn position(&self) -> u64 {
                $replay::position(self)
            }

            fn last_site(&self) -> Option<Site> {
                $replay::last_site(self)
            }

            fn next_site(&self) -> Option<Site> {
                $replay::next_site(self)
            }

            fn step(&mut self) -> bool {
                $replay::step(self)
            }

            fn advance_to(&mut self, position: u64) {
                $replay::advance_to(self, position);
            }

            fn states(&self, budget: usize, seed: u64) -> (Vec<$state<'_, 't>>, bool) {
                let states = $replay::states(self, budget, seed);
                let exhaustive = states.is_exhaustive();
                (states.collect(), exhaustive)
            }

            fn random_image(&self, seed: u64) -> Image {
                self.random_state(seed).image()
            }
        }

        impl Crashed for $state<'_, '_> {
            fn hash(&self) -> u128 {
                $state::hash(self)
            }

            fn image(&self) -> Image {
                $state::image(self)
            }

            fn describe(&self) -> String {
                $state::describe(self)
            }
        }
    };
}

simulated! {
    /// Block devices: stores get an `Arc<dyn BlockDevice>`.
    Block, Arc<dyn BlockDevice>, SimBlock, Trace, Replay, CrashState,
    |config, seed, initial, faults, record| {
        let mut options = SimBlockOptions::new(config.size_bytes, seed);
        options.block_size_bytes = config.block_size_bytes;
        options.tear_size_bytes = config.tear_size_bytes;
        options.record = record;
        SimBlock::new(options.initial(initial).faults(faults))
    }
}

simulated! {
    /// Persistent memory: stores get an `Arc<dyn Pmem>`.
    Memory, Arc<dyn Pmem>, SimPm, PmTrace, PmReplay, PmCrashState,
    |config, seed, initial, faults, record| {
        let mut options = SimPmOptions::new(config.size_bytes, seed);
        options.record = record;
        SimPm::new(options.initial(initial).faults(faults))
    }
}
