//! Several simulated block devices on one power supply: one cut, independent survival.
//!
//! For engines that spread over devices (reliability T2, F21): after a cut each device keeps what
//! it happens to keep; one may be missing, or come back with an older content.

use super::block::{SimBlock, SimBlockOptions};
use super::image::{Image, Initial};
use super::trace::{PowerClock, Trace};
use esker_base::rng::Rng;
use std::sync::Arc;

/// Devices that lose power together.
#[derive(Debug)]
pub struct SimDevices {
    clock: PowerClock,
    devices: Vec<Arc<SimBlock>>,
}

impl SimDevices {
    /// `count` devices; `options` makes the options of each from its index. Clock and name are set
    /// here.
    #[must_use]
    pub fn new(count: usize, options: impl Fn(usize) -> SimBlockOptions) -> Self {
        let clock = PowerClock::new();
        let devices = (0..count).map(|index| {
            let mut options = options(index);
            options.clock = clock.clone();
            options.name = format!("sim{index}");
            Arc::new(SimBlock::new(options))
        });
        SimDevices { devices: devices.collect(), clock }
    }

    /// The devices.
    #[must_use]
    pub fn devices(&self) -> &[Arc<SimBlock>] {
        &self.devices
    }

    /// Stamp of the latest event on any of them.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.clock.position()
    }

    /// The recordings, for cuts at leisure.
    #[must_use]
    pub fn traces(&self) -> Vec<Trace> {
        self.devices.iter().map(|device| device.trace()).collect()
    }

    /// What the devices hold after one cut at `position`, each surviving in its own way: one of
    /// the extremes for some, a random state for others. The same seed gives the same images.
    #[must_use]
    pub fn cut(traces: &[Trace], position: u64, seed: u64) -> Vec<Image> {
        let mut rng = Rng::from_seed(seed);
        traces
            .iter()
            .map(|trace| {
                let mut replay = trace.replay();
                replay.advance_to(position);
                let state_seed = rng.next_u64();
                match rng.below(4) {
                    0 => replay.durable().clone(),
                    1 => {
                        let mut states = replay.states(2, state_seed);
                        states.state(states.whole()).image()
                    }
                    _ => replay.random_state(state_seed).image(),
                }
            })
            .collect()
    }

    /// Devices that hold `images`, on a fresh power supply: after a cut, with one image replaced
    /// by an older one, or with two swapped.
    #[must_use]
    pub fn attach(images: &[Image], options: impl Fn(usize) -> SimBlockOptions) -> Self {
        SimDevices::new(images.len(), |index| {
            let image = images.get(index).cloned();
            options(index).initial(image.map_or(Initial::Zeros, Initial::Recycled))
        })
    }
}

#[cfg(test)]
mod tests;
