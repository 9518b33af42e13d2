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
