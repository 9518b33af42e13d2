//! Microbenchmarks: what the parts cost that measurements are made of. They also run as tests, with tiny numbers, so
//! that they keep compiling and keep meaning what they say; each gives a checksum of what it computed.

use crate::failure::Outcome;
use crate::numbers::{nanos, real};
use crate::system::{Durability, OpenOptions, Registry, Session};
use crate::workload::distribution::{Chooser, Distribution, THETA, Zipfian};
use crate::workload::shape::{Filler, KeyShape};
use esker_base::checksum;
use esker_base::clock::{Clock, SystemClock};
use esker_base::hash::KeyHasher;
use esker_base::rng::Rng;
use hdrhistogram::Histogram;

/// One microbenchmark.
pub struct Micro {
    /// Its name.
    pub name: &'static str,
    /// Operations of a run of factor 1.
    pub base: u64,
    run: fn(u64) -> Outcome<u64>,
}

/// What one came to.
#[derive(Clone, Debug)]
pub struct Cost {
    /// Its name.
    pub name: &'static str,
    /// Operations.
    pub ops: u64,
    /// Nanoseconds of one.
    pub nanoseconds: f64,
    /// Of what was computed: the same for the same number of operations.
    pub checksum: u64,
}

impl Micro {
    /// Runs it.
    ///
    /// # Errors
    /// Those of what is measured.
    pub fn run(&self, factor: u64) -> Outcome<Cost> {
        let ops = self.base * factor.max(1);
        let start = SystemClock.monotonic();
        let checksum = (self.run)(ops)?;
        let took = SystemClock.monotonic().saturating_sub(start);
        let nanoseconds = real(nanos(took)) / real(ops);
        Ok(Cost { name: self.name, ops, nanoseconds, checksum })
    }
}

/// All of them.
pub const ALL: [Micro; 12] = [
    Micro { name: "clock", base: 1000, run: clock },
    Micro { name: "random number", base: 10_000, run: random },
    Micro { name: "zipfian rank", base: 1000, run: zipfian },
    Micro { name: "scrambled zipfian key", base: 1000, run: scrambled },
    Micro { name: "YCSB key text", base: 1000, run: key_text },
    Micro { name: "value of 1000 B", base: 1000, run: value },
    Micro { name: "histogram record", base: 1000, run: histogram },
    Micro { name: "key hash, 23 B", base: 1000, run: hash },
    Micro { name: "CRC32C, 4 KiB", base: 100, run: crc },
    Micro { name: "hashmap put and get", base: 1000, run: hashmap },
    Micro { name: "index put and get", base: 1000, run: index },
    Micro { name: "generator of ycsb-a", base: 1000, run: ycsb },
];

fn clock(ops: u64) -> Outcome<u64> {
    let first = SystemClock.monotonic();
    let last = (0..ops).fold(first, |last, _| last.max(SystemClock.monotonic()));
    Ok(u64::from(last >= first))
}

fn random(ops: u64) -> Outcome<u64> {
    let mut rng = Rng::from_seed(1);
    Ok((0..ops).fold(0, |sum, _| sum ^ rng.next_u64()))
}

fn zipfian(ops: u64) -> Outcome<u64> {
    let (ranks, mut rng) = (Zipfian::new(1_000_000, THETA), Rng::from_seed(1));
    Ok((0..ops).fold(0, |sum: u64, _| sum.wrapping_add(ranks.draw(&mut rng))))
}

fn scrambled(ops: u64) -> Outcome<u64> {
    let mut chooser = Chooser::new(Distribution::Zipfian { theta: THETA }, 1_000_000, 0, 0, 1);
    let mut rng = Rng::from_seed(1);
    Ok((0..ops).fold(0, |sum: u64, _| sum.wrapping_add(chooser.draw(1_000_000, &mut rng))))
}

fn key_text(ops: u64) -> Outcome<u64> {
    let mut key = Vec::new();
    let mut sum = 0_u64;
    for number in 0..ops {
        KeyShape::Ycsb.write(number, &mut key);
        sum = sum.wrapping_mul(31).wrapping_add(key.last().map_or(0, |byte| u64::from(*byte)));
    }
    Ok(sum)
}

fn value(ops: u64) -> Outcome<u64> {
    let (filler, mut value) = (Filler::new(1, 1000), Vec::new());
    let mut sum = 0_u64;
    for number in 0..ops {
        filler.write(number, 1000, number, &mut value);
        sum = sum.wrapping_mul(31).wrapping_add(value.last().map_or(0, |byte| u64::from(*byte)));
    }
    Ok(sum)
}

fn histogram(ops: u64) -> Outcome<u64> {
    let (mut histogram, mut rng) = (Histogram::<u64>::new(3)?, Rng::from_seed(1));
    for _ in 0..ops {
        histogram.record(rng.below(1_000_000) + 1)?;
    }
    Ok(histogram.len() ^ histogram.value_at_quantile(0.5))
}

fn hash(ops: u64) -> Outcome<u64> {
    let hasher = KeyHasher::new([7; 16]);
    let mut key = b"user6284781860667377211".to_vec();
    let mut sum = 0;
    for number in 0..ops {
        if let Some(byte) = key.last_mut() {
            *byte = number.to_be_bytes()[7];
        }
        sum ^= hasher.hash(&key);
    }
    Ok(sum)
}

fn crc(ops: u64) -> Outcome<u64> {
    let mut block = vec![0; 4096];
    Rng::from_seed(1).fill(&mut block);
    Ok((0..ops).fold(0, |sum, _| sum ^ u64::from(checksum::crc32c(&block))) ^ ops)
}

fn hashmap(ops: u64) -> Outcome<u64> {
    put_and_get("hashmap", ops)
}

fn index(ops: u64) -> Outcome<u64> {
    put_and_get("index", ops)
}

/// Puts and gets `ops` keys of a system in memory.
fn put_and_get(name: &str, ops: u64) -> Outcome<u64> {
    let registry = Registry::new();
    let (kind, _) = registry.find(name)?;
    let system = (kind.open)(&OpenOptions {
        folder: std::path::PathBuf::new(),
        durability: Durability::None,
        cache_bytes: 0,
        records: ops,
        data_bytes: 0,
        utilization: None,
        record_size_bytes: (16, 8),
        threads: 1,
        depth: 1,
        direct: false,
        variant: None,
    })?;
    let mut session: Box<dyn Session> = system.session()?;
    let (mut key, mut found) = (Vec::new(), 0);
    for number in 0..ops {
        KeyShape::Fixed(16).write(number, &mut key);
        session.write(&key, b"12345678")?;
    }
    for number in 0..ops {
        KeyShape::Fixed(16).write(number, &mut key);
        found += u64::from(session.read(&key, &mut |_| ())?);
    }
    Ok(found)
}

fn ycsb(ops: u64) -> Outcome<u64> {
    use crate::workload::{catalogue, space::KeySpace, stream::Requests};
    let workload = catalogue::named("ycsb-a")?;
    let space = std::sync::Arc::new(KeySpace::new(100_000));
    let requests = Requests::new(&workload, &space, 100_000, 1, 0, 1);
    let count = usize::try_from(ops)?;
    Ok(requests.take(count).fold(0, |sum: u64, request| sum.wrapping_add(request.number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_microbenchmark_computes_the_same_twice() {
        for micro in &ALL {
            let (one, other) = (micro.run(1).unwrap(), micro.run(1).unwrap());
            assert_eq!(one.checksum, other.checksum, "{}", micro.name);
            assert!(one.ops == micro.base && one.nanoseconds > 0.0, "{}", micro.name);
            assert_ne!(one.checksum, 0, "{}", micro.name);
        }
    }

    #[test]
    fn what_was_put_is_found() {
        assert_eq!(put_and_get("hashmap", 500).unwrap(), 500);
        assert_eq!(put_and_get("index", 500).unwrap(), 500);
    }
}
