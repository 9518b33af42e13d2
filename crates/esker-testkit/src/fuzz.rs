//! Fuzz targets without a fuzzer: each is run with its seeds, with changes of them and with noise, so that it stays true
//! where nothing finds inputs by coverage. `cargo xtask fuzz` does that.
//!
//! A target takes any bytes and panics if something is wrong. Its seeds are inputs that get far: what is changed of them
//! gets nearly as far.

use esker_base::rng::Rng;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A target: its name, what is run, and inputs to begin with.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// Numbers at the bounds of something.
const NUMBERS: [u64; 14] = [
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x7FFF_FFFF,
    0x8000_0000,
    0xFFFF_FFFF,
    1 << 48,
    3 << 62,
    u64::MAX - 1,
    u64::MAX,
];
/// Longest noise in bytes.
const NOISE_BYTES_MAX: u64 = 96;

/// Runs each of `targets` with its seeds and `inputs` inputs more, which `seed` stands for.
///
/// # Panics
/// If a target does: with its name and the input.
pub fn smoke(targets: &[Target], seed: u64, inputs: u32) {
    for (name, run, seeds) in targets {
        let mut rng = Rng::from_seed(seed);
        let seeds = seeds();
        assert!(!seeds.is_empty(), "{name} has seeds");
        for input in &seeds {
            check_runs(name, *run, input);
        }
        for _ in 0..inputs {
            check_runs(name, *run, &input(&mut rng, &seeds));
        }
    }
}

fn check_runs(name: &str, run: fn(&[u8]), input: &[u8]) {
    let ran = catch_unwind(AssertUnwindSafe(|| run(input)));
    assert!(ran.is_ok(), "{name} fails with b\"{}\"", input.escape_ascii());
}

/// One of `seeds` with a few changes, or noise now and then.
fn input(rng: &mut Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
    if rng.chance(1, 8) {
        let length = usize::try_from(rng.below(NOISE_BYTES_MAX)).unwrap_or(0);
        let mut noise = vec![0; length];
        rng.fill(&mut noise);
        return noise;
    }
    let mut input = one_of(rng, seeds).to_vec();
    for _ in 0..=rng.below(4) {
        change(rng, &mut input, seeds);
    }
    input
}

fn one_of<'s>(rng: &mut Rng, seeds: &'s [Vec<u8>]) -> &'s [u8] {
    seeds.get(rng.index(seeds.len())).map_or(&[], Vec::as_slice)
}

fn change(rng: &mut Rng, input: &mut Vec<u8>, seeds: &[Vec<u8>]) {
    let at = rng.index(input.len());
    let end = (at + rng.index(17)).min(input.len());
    let byte = u8::try_from(rng.below(256)).unwrap_or(0);
    match rng.below(8) {
        0 => input.iter_mut().skip(at).take(1).for_each(|to| *to ^= 1 << (byte % 8)),
        1 => input.iter_mut().skip(at).take(1).for_each(|to| *to = byte),
        2 => {
            let number = NUMBERS.get(rng.index(NUMBERS.len())).copied().unwrap_or(0);
            let bytes = number.to_le_bytes();
            let width = 1 << rng.below(4);
            input.iter_mut().skip(at).zip(bytes).take(width).for_each(|(to, from)| *to = from);
        }
        3 => drop(input.drain(at..end)),
        4 => {
            let again: Vec<u8> = input.get(at..end).unwrap_or_default().to_vec();
            input.splice(at..at, again);
        }
        5 => input.truncate(at),
        6 => input.insert(at, byte),
        _ => {
            let other = one_of(rng, seeds);
            let from = rng.index(other.len());
            input.truncate(at);
            input.extend_from_slice(other.get(from..).unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeds() -> Vec<Vec<u8>> {
        vec![b"magic and a length of 7".to_vec(), b"magic and what follows".to_vec()]
    }

    /// Fails where a change of a seed gets, and noise does not.
    fn canary(input: &[u8]) {
        let Some(rest) = input.strip_prefix(b"magic and ") else { return };
        assert!(!rest.starts_with(b"a length") || rest.ends_with(b"7"), "found");
    }

    #[test]
    fn a_target_that_has_to_fail_does_and_names_its_input() {
        let target: Target = ("canary", canary, seeds);
        let failed = catch_unwind(|| smoke(&[target], 1, 1000)).expect_err("it was found");
        let words = failed.downcast_ref::<String>().expect("words");
        assert!(words.starts_with("canary fails with b\"magic and a length"), "{words}");
    }

    #[test]
    fn a_seed_of_inputs_gives_the_same_ones_and_others_give_others() {
        let of = |seed| {
            let mut rng = Rng::from_seed(seed);
            (0..100).map(|_| input(&mut rng, &seeds())).collect::<Vec<_>>()
        };
        assert!(of(1) == of(1) && of(1) != of(2));
    }
}
