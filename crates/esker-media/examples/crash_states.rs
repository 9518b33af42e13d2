//! Measures how many crash states per second the simulated media yield, image and hash included,
//! recovery excluded: `cargo run --release -p esker-media --example crash_states`.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "tests and measurements fail by panicking"
)]

use esker_base::clock::{Clock, SystemClock};
use esker_base::rng::Rng;
use esker_base::{Result, Site, SiteKind};
use esker_media::sim::{SimBlock, SimBlockOptions, SimPm, SimPmOptions};
use esker_media::{BlockDevice, Pmem};
use std::collections::HashSet;
use std::io::IoSlice;

const WRITE: Site = Site::new("example.write", SiteKind::Write);
const FLUSH: Site = Site::new("example.flush", SiteKind::Flush);
const FENCE: Site = Site::new("example.fence", SiteKind::Fence);
const SIZE_BYTES: u64 = 64 << 10;
const STATES_PER_POINT: usize = 200;

fn main() {
    if let Err(error) = block().and_then(|()| memory()) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn report(what: &str, states: u64, distinct: usize, seconds: f64) {
    let rate = states as f64 / seconds;
    println!("{what}: {states} states, {distinct} distinct, {seconds:.2} s, {rate:.0} states/s");
}

fn block() -> Result<()> {
    let device = SimBlock::new(SimBlockOptions::new(SIZE_BYTES, 1));
    let mut rng = Rng::from_seed(2);
    for number in 0..400_u64 {
        let mut data = [0; 4096];
        rng.fill(&mut data);
        device.write_at(WRITE, rng.below(15) * 4096, &[IoSlice::new(&data)])?;
        if number % 5 == 4 {
            device.flush(FLUSH)?;
        }
    }
    let trace = device.trace();
    let start = SystemClock.monotonic();
    let (mut states, mut distinct, mut check) = (0, HashSet::new(), 0_u64);
    let mut replay = trace.replay();
    while replay.step() {
        for state in replay.states(STATES_PER_POINT, 3) {
            states += 1;
            distinct.insert(state.hash());
            check = check.wrapping_add(state.image().size_bytes());
        }
    }
    assert_eq!(check, states * SIZE_BYTES);
    report("block", states, distinct.len(), (SystemClock.monotonic() - start).as_secs_f64());
    Ok(())
}

fn memory() -> Result<()> {
    let memory = SimPm::new(SimPmOptions::new(SIZE_BYTES, 1));
    let mut rng = Rng::from_seed(2);
    for number in 0..400_u64 {
        let mut data = [0; 200];
        rng.fill(&mut data);
        let offset = rng.below(SIZE_BYTES - 200);
        memory.store(WRITE, offset, &data)?;
        memory.flush(FLUSH, offset, 200)?;
        if number % 5 == 4 {
            memory.fence(FENCE)?;
        }
    }
    let trace = memory.trace();
    let start = SystemClock.monotonic();
    let (mut states, mut distinct, mut check) = (0, HashSet::new(), 0_u64);
    let mut replay = trace.replay();
    while replay.step() {
        for state in replay.states(STATES_PER_POINT, 3) {
            states += 1;
            distinct.insert(state.hash());
            check = check.wrapping_add(state.image().size_bytes());
        }
    }
    assert_eq!(check, states * SIZE_BYTES);
    report("memory", states, distinct.len(), (SystemClock.monotonic() - start).as_secs_f64());
    Ok(())
}
