//! What keys and values look like: sizes, bytes, and the check of what comes back.
//!
//! The size of a value and its first bytes follow from its key's number, so that every read can be
//! checked without remembering what was written. The other bytes are random: they do not compress.

use crate::numbers::size;
use crate::workload::distribution::scatter;
use esker_base::rng::Rng;
use serde::{Deserialize, Serialize};

/// Sizes of Facebook's ETC pool (FlatStore §5.2): of a hundred keys, 40 tiny, 55 small, 5 large.
pub const ETC_TINY: (u64, u64) = (1, 13);
/// See [`ETC_TINY`].
pub const ETC_SMALL: (u64, u64) = (14, 300);
/// See [`ETC_TINY`]; the paper has no upper end ("larger than 300 bytes"): 4 KiB here.
pub const ETC_LARGE: (u64, u64) = (301, 4096);
/// Keys of a hundred that are tiny.
const ETC_TINY_SHARE: u64 = 40;
/// Keys of a hundred that are tiny or small.
pub(crate) const ETC_SMALL_SHARE: u64 = 95;

/// Last byte of keys that are not there: neither a digit nor the filler of longer keys.
const MISSING_END: u8 = b'.';

/// How the number of a key becomes its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyShape {
    /// `user` and the scattered number in decimal digits, up to 23 bytes: YCSB's own.
    Ycsb,
    /// A fixed size from 8 bytes on, in the order of the numbers: big-endian below 16 bytes, from there on
    /// decimal with leading zeros.
    Fixed(usize),
    /// Sizes from `min` to `max`, at least 8, alike often: big-endian, then filler (uDepot §5.2: 8 to 32).
    Varied {
        /// Smallest size in bytes.
        min: usize,
        /// Largest size in bytes.
        max: usize,
    },
}

impl KeyShape {
    /// Writes the key of `number` into `key`.
    pub fn write(self, number: u64, key: &mut Vec<u8>) {
        key.clear();
        match self {
            KeyShape::Ycsb => {
                key.extend_from_slice(b"user");
                decimal(scatter(number), 1, key);
            }
            KeyShape::Fixed(length @ 16..) => decimal(number, length, key),
            KeyShape::Fixed(length) => {
                key.extend_from_slice(&number.to_be_bytes());
                key.resize(length.max(8), 0);
            }
            KeyShape::Varied { min, max } => {
                key.extend_from_slice(&number.to_be_bytes());
                let spread = (max.max(min) - min + 1) as u64;
                key.resize((min + size(scatter(number) % spread)).max(8), b'k');
            }
        }
    }

    /// Writes a key that no number has: that of `number` and a byte more, as in `db_bench`. It lies right behind it, amid the
    /// others.
    pub fn write_missing(self, number: u64, key: &mut Vec<u8>) {
        self.write(number, key);
        key.push(MISSING_END);
    }

    /// Average size in bytes, near enough to plan space.
    #[must_use]
    pub fn size_mean(self) -> u64 {
        match self {
            KeyShape::Ycsb => 23,
            KeyShape::Fixed(length) => length.max(8) as u64,
            KeyShape::Varied { min, max } => (min + max) as u64 / 2,
        }
    }
}

/// Appends `number` in decimal digits, with leading zeros up to `width`.
fn decimal(mut number: u64, width: usize, text: &mut Vec<u8>) {
    let start = text.len();
    while number > 0 || text.len() - start < width {
        text.push(b'0' + u8::try_from(number % 10).unwrap_or(0));
        number /= 10;
    }
    if let Some(digits) = text.get_mut(start..) {
        digits.reverse();
    }
}

/// How large values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ValueShape {
    /// All alike, in bytes.
    Fixed(u64),
    /// From `min` to `max` bytes, alike often.
    Uniform {
        /// Smallest size in bytes.
        min: u64,
        /// Largest size in bytes.
        max: u64,
    },
    /// Facebook's ETC pool: [`ETC_TINY`], [`ETC_SMALL`], [`ETC_LARGE`].
    Etc,
}

impl ValueShape {
    /// Size of the value of key `number`, in bytes.
    #[must_use]
    pub fn size(self, number: u64) -> u64 {
        let between = |(min, max): (u64, u64)| {
            // Other bits than those that decide the class.
            min + (scatter(number) >> 20) % (max.max(min) - min + 1)
        };
        match self {
            ValueShape::Fixed(bytes) => bytes,
            ValueShape::Uniform { min, max } => between((min, max)),
            ValueShape::Etc => match etc_class(number) {
                class if class < ETC_TINY_SHARE => between(ETC_TINY),
                class if class < ETC_SMALL_SHARE => between(ETC_SMALL),
                _ => between(ETC_LARGE),
            },
        }
    }

    /// Average size in bytes.
    #[must_use]
    pub fn size_mean(self) -> u64 {
        let middle = |(min, max): (u64, u64)| (min + max) / 2;
        match self {
            ValueShape::Fixed(bytes) => bytes,
            ValueShape::Uniform { min, max } => middle((min, max)),
            ValueShape::Etc => {
                (40 * middle(ETC_TINY) + 55 * middle(ETC_SMALL) + 5 * middle(ETC_LARGE)) / 100
            }
        }
    }
}

/// Which hundredth of the ETC pool a key belongs to. Large keys are every hundredth's last five numbers, so
/// that one can be drawn directly.
fn etc_class(number: u64) -> u64 {
    number % 100
}

/// Makes values and checks them.
#[derive(Debug)]
pub struct Filler {
    pool: Vec<u8>,
}

/// Bytes that say which key a value belongs to.
const STAMP: usize = 8;
/// Random bytes that values are cut from.
const POOL_SIZE_BYTES: usize = 1 << 20;

impl Filler {
    /// Random bytes of a seed, for values up to `value_size_max` bytes.
    #[must_use]
    pub fn new(seed: u64, value_size_max: u64) -> Self {
        let mut pool = vec![0; POOL_SIZE_BYTES + size(value_size_max)];
        Rng::from_seed(seed).fill(&mut pool);
        Filler { pool }
    }

    /// Writes a value of key `number`, `length` bytes long, into `value`; `salt` makes two of them differ. With one salt after
    /// the other, values of one length are cut from the pool one behind the other: a processor sees that coming, and the load
    /// does not wait for memory in the place of the system.
    pub fn write(&self, number: u64, length: u64, salt: u64, value: &mut Vec<u8>) {
        let start = size(salt.wrapping_mul(length | 1) % POOL_SIZE_BYTES as u64);
        let length = size(length);
        value.clear();
        match self.pool.get(start..start + length) {
            Some(bytes) => value.extend_from_slice(bytes),
            None => value.resize(length, 0),
        }
        for (byte, stamp) in value.iter_mut().zip(stamp(number)) {
            *byte = stamp;
        }
    }

    /// Whether `value` is one that key `number` may have.
    #[must_use]
    pub fn is_right(number: u64, length: u64, value: &[u8]) -> bool {
        value.len() as u64 == length
            && value.iter().zip(stamp(number)).all(|(byte, stamp)| *byte == stamp)
    }
}

fn stamp(number: u64) -> [u8; STAMP] {
    scatter(number).to_be_bytes()
}
