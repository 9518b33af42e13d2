//! Memory of the directory. A process by itself: slots that were replaced wait for all readers of the process, so that
//! other tests' readers would count.
#![allow(clippy::cast_precision_loss, clippy::unwrap_used, reason = "a test")]

use esker_base::rng::Rng;
use esker_index::{Directory, Link};

#[test]
fn memory_follows_the_data() {
    let directory = Directory::with_capacity(0);
    assert!(directory.memory_bytes() < 6 << 10, "{} bytes when empty", directory.memory_bytes());
    let mut rng = Rng::from_seed(9);
    let (mut sum, mut samples) = (0.0, 0u32);
    for n in 1..2_000_000u32 {
        directory.insert(rng.next_u64(), Link::record(u64::from(n), 3).unwrap());
        if n % 1000 == 0 && n > 100_000 {
            sum += directory.memory_bytes() as f64 / f64::from(n);
            samples += 1;
        }
    }
    let average = sum / f64::from(samples);
    assert!(average < 12.0, "{average:.2} bytes per entry on average");
}
