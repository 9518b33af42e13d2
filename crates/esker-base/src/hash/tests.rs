//! The key hash is frozen, keyed, and spreads.

use super::KeyHasher;

#[test]
fn values_are_frozen() {
    // Index checkpoints and summaries hold these hashes: a change needs a new format version.
    let hasher = KeyHasher::new(*b"0123456789abcdef");
    let found: Vec<u64> = [&b""[..], b"a", b"sixteen bytes ok", &[7; 300]]
        .iter()
        .map(|key| hasher.hash(key))
        .collect();
    assert_eq!(
        found,
        [
            14_019_302_592_390_344_695,
            1_948_550_872_009_271_925,
            9_348_162_982_930_044_214,
            4_704_916_356_437_050_158
        ],
        "frozen values of the key hash"
    );
}

#[test]
fn each_half_of_the_key_changes_the_function() {
    let base = KeyHasher::new([1; 16]);
    for place in [0, 15] {
        let mut key = [1; 16];
        key[place] ^= 1;
        assert_ne!(base.hash(b"user1"), KeyHasher::new(key).hash(b"user1"), "byte {place}");
    }
}

#[test]
fn low_and_high_bits_spread_over_sequential_keys() {
    let hasher = KeyHasher::new([9; 16]);
    for shift in [0, 24, 56] {
        let mut buckets = [0u32; 256];
        for n in 0..65_536 {
            let hash = hasher.hash(format!("user{n}").as_bytes());
            buckets[usize::try_from(hash >> shift & 0xFF).unwrap()] += 1;
        }
        // 256 on average, standard deviation 16: six of them.
        assert!(
            buckets.iter().all(|count| (160..352).contains(count)),
            "shift {shift}: {buckets:?}"
        );
    }
}

#[test]
fn weakened_hash_keeps_only_its_mask() {
    let hasher = KeyHasher::new([9; 16]).weakened(0xF0);
    assert!((0..1000u32).all(|n| hasher.hash(&n.to_le_bytes()) & !0xF0 == 0));
}

/// The last steps of XXH3 for keys of 8 bytes, backwards: from the hash to what the key was mixed with the secret.
fn unmixed(hash: u64) -> u64 {
    const PRIME: u64 = 0x9FB2_1C65_1E98_DF25;
    /// Length of the key, which is added on the way.
    const LENGTH: u64 = 8;
    // Newton's method doubles the right bits of the inverse of an odd number.
    let inverse =
        (0..6).fold(PRIME, |x, _| x.wrapping_mul(2_u64.wrapping_sub(PRIME.wrapping_mul(x))));
    assert_eq!(inverse.wrapping_mul(PRIME), 1);
    let mut x = hash ^ hash >> 28 ^ hash >> 56;
    x = x.wrapping_mul(inverse);
    // Only bits below the 35th changed.
    x ^= (x >> 35) + LENGTH;
    x = x.wrapping_mul(inverse);
    // The polynomial 1 + x^49 + x^24 to the 64th power is 1 modulo x^64 - 1: to the 63rd, its inverse.
    (0..6).fold(x, |x, power| {
        let rotate = |by: u32| x.rotate_left((by << power) % 64);
        x ^ rotate(49) ^ rotate(24)
    })
}

/// What XXH3 makes of the 8 bytes before it mixes them with the secret.
fn halves_swapped(key: [u8; 8]) -> u64 {
    u64::from_le_bytes(key).rotate_left(32)
}

#[test]
fn hashes_of_keys_of_8_bytes_tell_the_key() {
    use crate::rng::Rng;
    let mut rng = Rng::from_seed(8);
    for _ in 0..200 {
        let mut secret = [0; 16];
        rng.fill(&mut secret);
        let hasher = KeyHasher::new(secret);
        // What the secret turns over, from one key; then every other key comes back from its hash.
        let turned = unmixed(hasher.hash(&[0; 8]));
        for _ in 0..500 {
            let mut key = [0; 8];
            rng.fill(&mut key);
            assert_eq!(unmixed(hasher.hash(&key)) ^ turned, halves_swapped(key), "{key:?}");
        }
    }
}
