//! What memory gives: bandwidth of reads, writes and copies, and the time of a random access.

use super::row;
use crate::document::Row;
use crate::failure::Outcome;
use crate::numbers::{nanos, real, size};
use esker_base::clock::{Clock, SystemClock};
use esker_base::rng::Rng;
use std::hint::black_box;
use std::time::Duration;

/// Bytes that are walked over by default: far more than processors cache.
pub const SIZE_BYTES: u64 = 256 << 20;
/// Random accesses that are timed together.
const STEPS: u64 = 1 << 16;
/// Chains that are followed at once, to see how many misses a processor has under way.
const CHAINS: usize = 8;

/// Measures memory on this thread, each figure for `time`.
///
/// # Errors
/// None but those of conversions.
pub fn run(size_bytes: u64, time: Duration) -> Outcome<Vec<Row>> {
    let words = size(size_bytes / 8).max(1024);
    let mut one: Vec<u64> = (0..words as u64).collect();
    let mut other = vec![0_u64; words];
    let mut rows = vec![
        bandwidth("memory-read", size_bytes, time, || {
            // Several sums, so that additions do not wait for one another.
            let mut sums = [0_u64; 8];
            for eight in one.chunks_exact(8) {
                for (sum, word) in sums.iter_mut().zip(eight) {
                    *sum = sum.wrapping_add(*word);
                }
            }
            black_box(sums);
        }),
        bandwidth("memory-write", size_bytes, time, || {
            other.fill(black_box(7));
            black_box(&mut other);
        }),
        bandwidth("memory-copy", size_bytes, time, || {
            other.copy_from_slice(&one);
            black_box(&mut other);
        }),
    ];
    drop(other);
    cycle(&mut one);
    for (name, chains) in [("memory-random-access", 1), ("memory-random-access-8-chains", CHAINS)] {
        rows.push(random(name, &one, chains, time));
    }
    Ok(rows)
}

fn bandwidth(name: &str, bytes: u64, time: Duration, mut pass: impl FnMut()) -> Row {
    pass();
    let start = SystemClock.monotonic();
    let mut passes = 0;
    let took = loop {
        pass();
        passes += 1;
        let took = SystemClock.monotonic().saturating_sub(start);
        if took >= time {
            break took;
        }
    };
    // An operation is a cache line.
    let lines = bytes / 64 * passes;
    let mut row = row("memory", name, 1);
    row.ops = lines;
    row.value_size = 64;
    row.seconds = took.as_secs_f64();
    row.ops_per_second = real(lines) / row.seconds;
    row
}

/// Makes one cycle through all places, in random order (Sattolo).
fn cycle(places: &mut [u64]) {
    let mut rng = Rng::from_seed(1);
    for n in (1..places.len()).rev() {
        places.swap(n, rng.index(n));
    }
}

/// Dependent accesses along the cycle, from several places at once.
fn random(name: &str, places: &[u64], chains: usize, time: Duration) -> Row {
    let mut at: Vec<usize> = (0..chains).map(|n| places.len() / chains * n).collect();
    let start = SystemClock.monotonic();
    let mut steps = 0;
    let took = loop {
        for _ in 0..STEPS / chains as u64 {
            for place in &mut at {
                *place = places.get(*place).map_or(0, |next| size(*next));
            }
        }
        steps += STEPS / chains as u64 * chains as u64;
        let took = SystemClock.monotonic().saturating_sub(start);
        if took >= time {
            break took;
        }
    };
    black_box(at);
    let mut row = row("memory", name, chains);
    row.ops = steps;
    row.value_size = 8;
    row.seconds = took.as_secs_f64();
    row.ops_per_second = real(steps) / row.seconds;
    row.mean_us = real(nanos(took)) / real(steps) / 1e3;
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_meets_every_place() {
        let mut places: Vec<u64> = (0..1000).collect();
        cycle(&mut places);
        let (mut at, mut steps) = (0, 0);
        loop {
            at = size(places[at]);
            steps += 1;
            if at == 0 {
                break;
            }
        }
        assert_eq!(steps, 1000);
    }

    #[test]
    fn memory_is_measured() {
        let rows = run(1 << 20, Duration::from_millis(5)).unwrap();
        assert_eq!(rows.len(), 5);
        assert!(rows.iter().all(|row| row.ops > 0 && row.ops_per_second > 0.0));
    }
}
