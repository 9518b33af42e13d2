//! Keyed 64-bit hash of keys: XXH3 under a secret of the store.
//!
//! Each store draws a 128-bit hash key at format and keeps it in its superblock, so that nobody
//! outside can aim for collisions and a reopened store finds its index entries again. XXH3 is a
//! specified, frozen function. A hash never decides equality: the full key in the record does.

use crate::rng::Rng;
use xxhash_rust::xxh3::xxh3_64_with_secret;

/// Length of XXH3's secret in bytes.
const SECRET_SIZE_BYTES: usize = 192;

/// The hash function of one store. Cheap to share by reference; safe from any thread.
#[derive(Clone)]
pub struct KeyHasher {
    secret: Box<[u8; SECRET_SIZE_BYTES]>,
    mask: u64,
}

impl KeyHasher {
    /// The hash function under `key`. The same key gives the same function for ever.
    #[must_use]
    pub fn new(key: [u8; 16]) -> Self {
        let (mut low, mut high) = ([0; 8], [0; 8]);
        low.copy_from_slice(key.get(..8).unwrap_or(&[0; 8]));
        high.copy_from_slice(key.get(8..).unwrap_or(&[0; 8]));
        // Two generators, so that all 128 bits of the key shape the secret.
        let mut first = Rng::from_seed(u64::from_le_bytes(low));
        let mut second = Rng::from_seed(u64::from_le_bytes(high));
        let mut secret = Box::new([0; SECRET_SIZE_BYTES]);
        for byte in secret.chunks_exact_mut(8) {
            byte.copy_from_slice(
                &(first.next_u64() ^ second.next_u64().rotate_left(32)).to_le_bytes(),
            );
        }
        KeyHasher { secret, mask: u64::MAX }
    }

    /// The same function with only the bits of `mask` left: tests make collisions with it.
    #[must_use]
    pub fn weakened(mut self, mask: u64) -> Self {
        self.mask = mask;
        self
    }

    /// The hash of `key`.
    #[must_use]
    pub fn hash(&self, key: &[u8]) -> u64 {
        self.hash_whole(key) & self.mask
    }

    /// The hash of `key` with all its bits, also where tests make collisions: for what stands in for a key on media.
    #[must_use]
    pub fn hash_whole(&self, key: &[u8]) -> u64 {
        xxh3_64_with_secret(key, &*self.secret)
    }
}

impl std::fmt::Debug for KeyHasher {
    /// Without the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyHasher")
    }
}

#[cfg(test)]
mod tests;
