//! The requests of one client, one after another.
//!
//! They are drawn some at a time where nothing is inserted: a zipfian draw takes a power, whose tables a system under load
//! has long driven from the nearest cache by the next request. Drawn alone it costs as much as a get of the fastest engines.

use super::distribution::{Chooser, uniform};
use super::shape::{ETC_SMALL_SHARE, ValueShape};
use super::space::KeySpace;
use super::{Kind, Mix, Operation, Order, Workload};
use crate::numbers::{real, whole};
use esker_base::hash::KeyHasher;
use esker_base::rng::Rng;
use std::sync::Arc;

/// The seed of one phase among those of a run: `what` tells it from the others on the same data. With one seed for all, each would
/// ask for the same keys in the same order as the one before it, and find in caches what that one brought there.
#[must_use]
pub fn phase_seed(seed: u64, what: &str) -> u64 {
    seed ^ KeyHasher::new(*b"esker bench seed").hash(what.as_bytes())
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What to do.
    pub operation: Operation,
    /// Number of the key; a scan starts there, and a key that is missing stands behind it.
    pub number: u64,
    /// Records of a scan, at most.
    pub length: u64,
}

/// Requests that are drawn together.
const BLOCK: usize = 64;

/// Draws the requests of one client. Deterministic, but for inserts, whose numbers all clients share.
#[derive(Debug)]
pub struct Requests {
    mix: Mix,
    weight: f64,
    chooser: Chooser,
    space: Arc<KeySpace>,
    is_etc: bool,
    scan_length: (u64, u64),
    rng: Rng,
    /// Of a fill: where this client is, and where it ends.
    fill: Option<(Order, u64, u64)>,
    records: u64,
    /// Of a scattered fill: from one key to the next, below `records` if that is above 1. They have no divisor in common.
    stride: u64,
    /// Of a scattered fill: the next key.
    scattered: u64,
    /// Requests to draw together: one where a draw depends on what was inserted before it.
    block: usize,
    /// Those drawn and not given yet, the last one first.
    drawn: Vec<Request>,
}

impl Requests {
    /// The requests of client `client` of `clients`, on a store of `records` records.
    #[must_use]
    pub fn new(
        workload: &Workload,
        space: &Arc<KeySpace>,
        records: u64,
        seed: u64,
        client: u64,
        clients: u64,
    ) -> Self {
        let mix = match &workload.kind {
            Kind::Requests(mix) => mix.clone(),
            _ => Vec::new(),
        };
        let weight = mix.iter().map(|(_, weight)| weight).sum();
        let inserts: f64 =
            mix.iter().filter(|(what, _)| *what == Operation::Insert).map(|(_, w)| w).sum();
        // YCSB expects twice the inserts that the run's operations bring. Runs here end by time, so a quarter
        // of the records stands for them.
        let expected = if inserts > 0.0 { records / 4 } else { 0 };
        let share = |n: u64| {
            u64::try_from(u128::from(records) * u128::from(n) / u128::from(clients.max(1)))
                .unwrap_or(records)
        };
        let stride = stride(records);
        let fill = match workload.kind {
            Kind::Fill(order) => Some((order, share(client), share(client + 1))),
            _ => None,
        };
        Requests {
            mix,
            weight,
            chooser: Chooser::new(workload.distribution, records, expected, client, clients),
            space: Arc::clone(space),
            is_etc: workload.values == ValueShape::Etc,
            scan_length: workload.scan_length,
            // Clients of one seed draw from generators of their own.
            rng: Rng::from_seed(seed ^ (client + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            fill,
            records,
            stride,
            scattered: multiple(stride, share(client), records),
            block: if inserts > 0.0 { 1 } else { BLOCK },
            drawn: Vec::with_capacity(BLOCK),
        }
    }

    fn filled(&mut self) -> Option<Request> {
        let (order, next, end) = self.fill.as_mut()?;
        if next >= end {
            return None;
        }
        let place = *next;
        *next += 1;
        let number = match order {
            Order::Sequential => place,
            Order::Scattered => {
                let number = self.scattered;
                self.scattered = match number.checked_sub(self.records - self.stride) {
                    Some(wrapped) => wrapped,
                    None => number + self.stride,
                };
                number
            }
            Order::Random => self.rng.below(self.records),
            Order::Distribution => self.chooser.draw(self.records, &mut self.rng),
        };
        Some(Request { operation: Operation::Insert, number, length: 0 })
    }

    fn operation(&mut self) -> Option<Operation> {
        let mut place = uniform(&mut self.rng) * self.weight;
        for (operation, weight) in &self.mix {
            if place < *weight {
                return Some(*operation);
            }
            place -= weight;
        }
        self.mix.last().map(|(operation, _)| *operation)
    }

    /// The next request of a mix; none of an empty one.
    fn draw(&mut self) -> Option<Request> {
        let operation = self.operation()?;
        let (number, length) = match operation {
            Operation::Insert => (self.space.take(), 0),
            // None behind the last number: an ordered store would answer it from its end.
            Operation::ReadMissing => (self.rng.below(self.records.saturating_sub(1).max(1)), 0),
            Operation::Scan => {
                let (from, to) = self.scan_length;
                (self.key(), from + self.rng.below(to.max(from) - from + 1))
            }
            _ => (self.key(), 0),
        };
        Some(Request { operation, number, length })
    }

    /// A key that exists.
    fn key(&mut self) -> u64 {
        let count = self.space.count();
        if !self.is_etc || count < 100 {
            return self.chooser.draw(count, &mut self.rng);
        }
        // FlatStore 5.2: tiny and small keys are zipfian, large ones uniform.
        if self.rng.below(100) >= ETC_SMALL_SHARE {
            let hundreds = count / 100;
            return self.rng.below(hundreds) * 100
                + ETC_SMALL_SHARE
                + self.rng.below(100 - ETC_SMALL_SHARE);
        }
        loop {
            let key = self.chooser.draw(count, &mut self.rng);
            if key % 100 < ETC_SMALL_SHARE {
                return key;
            }
        }
    }
}

impl Iterator for Requests {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        if self.fill.is_some() {
            return self.filled();
        }
        if self.drawn.is_empty() {
            for _ in 0..self.block {
                let request = self.draw()?;
                self.drawn.push(request);
            }
            self.drawn.reverse();
        }
        self.drawn.pop()
    }
}

/// A step that meets every number below `count` once, far from the one before: near the golden section.
fn stride(count: u64) -> u64 {
    const GOLDEN_SECTION: f64 = 0.618_033_988_749_895;
    let divides = |a: u64, b: u64| {
        let (mut a, mut b) = (a, b);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let start = whole(real(count) * GOLDEN_SECTION).max(1);
    (start..).find(|stride| divides(*stride, count.max(1)) == 1).unwrap_or(1)
}

/// `factor` strides from 0 on, round and round in `count` numbers.
fn multiple(stride: u64, factor: u64, count: u64) -> u64 {
    let wide = u128::from(factor) * u128::from(stride);
    u64::try_from(wide % u128::from(count.max(1))).unwrap_or(0)
}

/// Share of operations of a mix that write, from 0 to 1.
#[must_use]
pub fn write_share(mix: &Mix) -> f64 {
    let all: f64 = mix.iter().map(|(_, weight)| weight).sum();
    let writes: f64 =
        mix.iter().filter(|(operation, _)| operation.is_write()).map(|(_, weight)| weight).sum();
    // An empty sum is -0.
    if writes > 0.0 { writes / all } else { 0.0 }
}
