//! Which key is asked for: the request distributions of YCSB, and the composite one of FlexDB.
//!
//! [`Zipfian`] is the generator of Gray et al. (SIGMOD 1994) that YCSB has: exact for the two most popular
//! ranks, a closed formula for the rest. YCSB sums up its `zeta` term by term, which takes minutes for
//! large key spaces; here it is the same sum with the tail by Euler and Maclaurin, to the last digits of
//! an `f64`, so that a space may grow at no cost.

use crate::numbers::{real, whole};
use esker_base::rng::Rng;
use serde::{Deserialize, Serialize};

/// Skew of YCSB's zipfian distributions.
pub const THETA: f64 = 0.99;
/// Number of ranks that YCSB draws from before it scatters them over the keys.
pub const SCRAMBLED_ITEMS: u64 = 10_000_000_000;
/// Ranges of keys that share a prefix, in the composite distribution (FlexDB §6.3: three decimal digits).
pub const PREFIXES: u64 = 1000;

/// A request distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distribution {
    /// Every key alike.
    Uniform,
    /// Zipfian; popular keys are scattered over the key space (YCSB's `zipfian`).
    Zipfian {
        /// Skew, above 0 and below 1.
        theta: f64,
    },
    /// Zipfian; popular keys are neighbours, the first the most popular.
    Clustered {
        /// Skew, above 0 and below 1.
        theta: f64,
    },
    /// Zipfian; the keys inserted last are the most popular (YCSB's `latest`).
    Latest {
        /// Skew, above 0 and below 1.
        theta: f64,
    },
    /// A share of the requests goes to the first keys, uniformly; the rest to the others (YCSB's `hotspot`).
    Hotspot {
        /// Share of the keys that is hot.
        keys: f64,
        /// Share of the requests that goes there.
        requests: f64,
    },
    /// Popularity falls exponentially (YCSB's `exponential`).
    Exponential {
        /// Per cent of the requests that go to the share `keys`.
        percentile: f64,
        /// Share of the keys that these requests go to.
        keys: f64,
    },
    /// One key after another, round and round.
    Sequential,
    /// A range of keys by a zipfian draw, a key of the range uniformly (FlexDB §6.3, "zipfian-composite").
    Composite {
        /// Skew, above 0 and below 1.
        theta: f64,
    },
}

/// Terms of a sum that are added one by one; from there on the error of the formula is below 1e-17.
const EXACT: u64 = 10_000;

/// The sum of `n^-theta` for n from 1 to `count`.
#[must_use]
pub fn zeta(count: u64, theta: f64) -> f64 {
    let head: f64 = (1..=count.min(EXACT)).map(|n| real(n).powf(-theta)).sum();
    head + tail(count, theta)
}

/// What the terms above [`EXACT`] add to [`zeta`].
fn tail(count: u64, theta: f64) -> f64 {
    if count <= EXACT {
        return 0.0;
    }
    let (first, last) = (real(EXACT), real(count));
    let power = |n: f64| n.powf(-theta);
    let integral = (last.powf(1.0 - theta) - first.powf(1.0 - theta)) / (1.0 - theta);
    let ends = (power(last) - power(first)) / 2.0;
    let slopes = theta / 12.0 * (power(first) / first - power(last) / last);
    integral + ends + slopes
}

/// An exponent. That of YCSB's skew is 100, for which a few products do what takes a tenth of a fast get as a power.
#[derive(Clone, Copy, Debug)]
enum Exponent {
    Whole(i32),
    Any(f64),
}

impl Exponent {
    fn new(exponent: f64) -> Self {
        let near = (2..=1000).find(|whole| (f64::from(*whole) - exponent).abs() < 1e-9);
        near.map_or(Exponent::Any(exponent), Exponent::Whole)
    }

    fn power_of(self, base: f64) -> f64 {
        match self {
            Exponent::Whole(exponent) => base.powi(exponent),
            Exponent::Any(exponent) => base.powf(exponent),
        }
    }
}

/// Draws ranks: 0 is the most popular.
#[derive(Clone, Debug)]
pub struct Zipfian {
    items: u64,
    theta: f64,
    alpha: Exponent,
    /// The weights of the first two ranks together.
    zeta_two: f64,
    /// The sum up to `items`, or to [`EXACT`] if that is less: so that growing costs nothing.
    zeta_head: f64,
    zeta_items: f64,
    eta: f64,
}

impl Zipfian {
    /// Ranks below `items`, at least 1, of the skew `theta` above 0 and below 1.
    #[must_use]
    pub fn new(items: u64, theta: f64) -> Self {
        let mut zipfian = Zipfian {
            items: 0,
            theta,
            alpha: Exponent::new(1.0 / (1.0 - theta)),
            zeta_two: zeta(2, theta),
            zeta_head: 0.0,
            zeta_items: 0.0,
            eta: 0.0,
        };
        zipfian.grow(items.max(1));
        zipfian
    }

    /// Draws from `items` ranks from now on, if that is more.
    pub fn grow(&mut self, items: u64) {
        if items > self.items {
            self.grow_to(items);
        }
    }

    /// Apart from [`Zipfian::grow`]: inlined into a draw, its powers, which depend on nothing that the draw changes, are
    /// computed before each draw whether the space grew or not.
    #[cold]
    #[inline(never)]
    fn grow_to(&mut self, items: u64) {
        let more = self.items.min(EXACT) + 1..=items.min(EXACT);
        self.zeta_head += more.map(|n| real(n).powf(-self.theta)).sum::<f64>();
        self.items = items;
        self.zeta_items = self.zeta_head + tail(items, self.theta);
        self.eta = (1.0 - (2.0 / real(items)).powf(1.0 - self.theta))
            / (1.0 - self.zeta_two / self.zeta_items);
    }

    /// Number of ranks.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.items
    }

    /// The sum that makes probabilities of the weights.
    #[must_use]
    pub fn zeta_items(&self) -> f64 {
        self.zeta_items
    }

    /// The rank at `uniform`, from 0 to below 1.
    #[must_use]
    pub fn rank(&self, uniform: f64) -> u64 {
        let scaled = uniform * self.zeta_items;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < self.zeta_two {
            return 1.min(self.items - 1);
        }
        let place = self.alpha.power_of(self.eta * uniform - self.eta + 1.0);
        whole(real(self.items) * place).min(self.items - 1)
    }

    /// A rank.
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        self.rank(uniform(rng))
    }
}

/// A number from 0 to below 1, all of whose 53 bits are random.
pub fn uniform(rng: &mut Rng) -> f64 {
    real(rng.next_u64() >> 11) / real(1 << 53)
}

/// The hash that YCSB scatters numbers with: FNV-1a over eight bytes, made positive as Java does.
#[must_use]
pub fn scatter(number: u64) -> u64 {
    let hash = (0..8).fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ (number >> (8 * byte) & 0xFF)).wrapping_mul(1_099_511_628_211)
    });
    hash.cast_signed().unsigned_abs()
}

/// One client's draws from a [`Distribution`].
#[derive(Debug)]
pub struct Chooser {
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Uniform,
    Scrambled { ranks: Zipfian, keys: u64 },
    Clustered(Zipfian),
    Latest(Zipfian),
    Hotspot { keys: f64, requests: f64 },
    Exponential { gamma: f64 },
    Sequential { next: u64 },
    Composite { prefixes: Zipfian },
}

impl Chooser {
    /// Draws of client `client` of `clients` from a space that has `keys` keys and expects `expected_inserts`
    /// more. As in YCSB, scattered draws cover the expected keys from the start, and those that are not
    /// there yet are drawn again.
    #[must_use]
    pub fn new(
        distribution: Distribution,
        keys: u64,
        expected_inserts: u64,
        client: u64,
        clients: u64,
    ) -> Self {
        let keys = keys.max(1);
        let kind = match distribution {
            Distribution::Uniform => Kind::Uniform,
            Distribution::Zipfian { theta } => Kind::Scrambled {
                ranks: Zipfian::new(SCRAMBLED_ITEMS, theta),
                keys: keys + expected_inserts,
            },
            Distribution::Clustered { theta } => Kind::Clustered(Zipfian::new(keys, theta)),
            Distribution::Latest { theta } => Kind::Latest(Zipfian::new(keys, theta)),
            Distribution::Hotspot { keys, requests } => Kind::Hotspot { keys, requests },
            Distribution::Exponential { percentile, keys: share } => {
                Kind::Exponential { gamma: -(1.0 - percentile / 100.0).ln() / (real(keys) * share) }
            }
            // Clients begin at places of their own, evenly spread.
            Distribution::Sequential => {
                Kind::Sequential { next: client * (keys / clients.max(1)).max(1) }
            }
            Distribution::Composite { theta } => {
                Kind::Composite { prefixes: Zipfian::new(PREFIXES.min(keys), theta) }
            }
        };
        Chooser { kind }
    }

    /// A key below `count`, the number of keys that are there now; at least 1.
    pub fn draw(&mut self, count: u64, rng: &mut Rng) -> u64 {
        let count = count.max(1);
        loop {
            let key = self.candidate(count, rng);
            if key < count {
                return key;
            }
        }
    }

    fn candidate(&mut self, count: u64, rng: &mut Rng) -> u64 {
        match &mut self.kind {
            Kind::Uniform => rng.below(count),
            Kind::Scrambled { ranks, keys } => scatter(ranks.draw(rng)) % *keys,
            Kind::Clustered(ranks) => {
                ranks.grow(count);
                ranks.draw(rng)
            }
            Kind::Latest(ranks) => {
                ranks.grow(count);
                (count - 1).saturating_sub(ranks.draw(rng))
            }
            Kind::Hotspot { keys, requests } => {
                let hot = whole(real(count) * *keys).clamp(1, count);
                if uniform(rng) < *requests || hot == count {
                    rng.below(hot)
                } else {
                    hot + rng.below(count - hot)
                }
            }
            Kind::Exponential { gamma } => whole(-(1.0 - uniform(rng)).ln() / *gamma),
            Kind::Sequential { next } => {
                let key = *next % count;
                *next = key + 1;
                key
            }
            Kind::Composite { prefixes } => {
                let range = count.div_ceil(prefixes.items());
                prefixes.draw(rng) * range + rng.below(range)
            }
        }
    }
}
