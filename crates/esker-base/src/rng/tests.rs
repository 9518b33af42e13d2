//! Seeds are stable for ever, bounds hold.

use super::{Rng, secret};

#[test]
fn a_seed_gives_the_same_numbers_for_ever() {
    let mut rng = Rng::from_seed(42);
    assert_eq!(
        [rng.next_u64(), rng.next_u64()],
        [15_021_278_609_987_233_951, 5_881_210_131_331_364_753],
        "frozen draws of seed 42"
    );
}

#[test]
fn below_stays_below_and_reaches_everything() {
    let mut rng = Rng::from_seed(3);
    let mut seen = [false; 7];
    for _ in 0..1000 {
        seen[rng.index(7)] = true;
    }
    assert_eq!(seen, [true; 7]);
    assert_eq!(rng.below(0), 0);
    assert_eq!(rng.below(1), 0);
}

#[test]
fn two_secrets_differ() {
    assert_ne!(secret::<16>().unwrap(), secret::<16>().unwrap());
}

#[test]
fn without_a_seed_generators_differ() {
    let first = |seed| Rng::seeded(seed).unwrap().next_u64();
    assert_eq!(first(Some(42)), Rng::from_seed(42).next_u64());
    assert_ne!(first(None), first(None));
}
