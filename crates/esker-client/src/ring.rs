//! Which server a key belongs to: consistent hashing on a ring of points.
//!
//! Each server has [`POINTS_PER_WEIGHT`] points for each unit of its weight. Point `i` (from 0, in
//! decimal digits) of the server named `name` is the XXH3-64, with seed 0, of the text `name#i`. A key
//! belongs to the server of the first point that is not below the XXH3-64 of the key; after the last
//! point comes the first. Of equal points the server counts whose name is the lower one, byte by byte.
//! Nothing else goes in: every machine and every language comes to the same.
//!
//! A ring, and neither jump hashing nor rendezvous: jump hashing only adds and removes the last of
//! numbered servers and has no weights; rendezvous hashes every server for every key, and its weights
//! need logarithms, whose last bits differ between languages. A lookup here is one hash and one binary
//! search. Its price: shares are even to some 8 % only, as [`POINTS_PER_WEIGHT`] points give them.
//!
//! # Invariants
//! - G1: a server that is added takes keys only for itself, its share of all; one that is removed
//!   leaves its own only.

use xxhash_rust::xxh3::xxh3_64;

/// Points of a server for each unit of its weight.
pub const POINTS_PER_WEIGHT: u32 = 160;

/// A ring of servers.
#[derive(Clone, Debug)]
pub struct Ring {
    /// Places on the ring with the index of their servers, in order.
    points: Vec<(u64, u32)>,
}

impl Ring {
    /// The ring of servers with these names and weights; a weight of 0 takes no keys. Names have to be
    /// different.
    #[must_use]
    pub fn new(servers: &[(&str, u16)]) -> Ring {
        let mut points = Vec::new();
        for (index, (name, weight)) in (0_u32..).zip(servers) {
            for number in 0..u32::from(*weight).saturating_mul(POINTS_PER_WEIGHT) {
                points.push((xxh3_64(format!("{name}#{number}").as_bytes()), *name, index));
            }
        }
        // By place, then by name: the order in which servers were given does not matter.
        points.sort_unstable();
        points.dedup_by_key(|(place, _, _)| *place);
        Ring { points: points.into_iter().map(|(place, _, index)| (place, index)).collect() }
    }

    /// The index of the server that `key` belongs to; `None` if no server takes keys.
    #[must_use]
    pub fn owner(&self, key: &[u8]) -> Option<usize> {
        let hash = xxh3_64(key);
        let next = self.points.partition_point(|(place, _)| *place < hash);
        let (_, index) = self.points.get(next).or_else(|| self.points.first())?;
        usize::try_from(*index).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: u32 = 20_000;

    fn key(number: u32) -> Vec<u8> {
        format!("key{number}").into_bytes()
    }

    fn shares(ring: &Ring, servers: usize) -> Vec<u32> {
        let mut shares = vec![0; servers];
        (0..KEYS).for_each(|number| shares[ring.owner(&key(number)).expect("an owner")] += 1);
        shares
    }

    /// Fixed for ever: other clients, and other languages, have to come to the same.
    #[test]
    fn the_ring_of_three_servers_is_the_documented_one() {
        let ring = Ring::new(&[("a", 1), ("b", 1), ("c", 1)]);
        let owners: String = (0..32)
            .map(|number| ["a", "b", "c"][ring.owner(&key(number)).expect("an owner")])
            .collect();
        assert_eq!(owners, EXAMPLE);
        assert_eq!(format!("{:016x}", xxh3_64(b"a#0")), FIRST_POINT);
    }

    const EXAMPLE: &str = "bacbcbcbccacbbbbacaaacabcbbbbcbc";
    const FIRST_POINT: &str = "6c9da71f2832f85e";

    #[test]
    fn shares_follow_weights() {
        let ring = Ring::new(&[("a", 1), ("b", 1), ("c", 2), ("d", 0)]);
        let shares = shares(&ring, 4);
        assert_eq!(shares[3], 0);
        for (share, weight) in shares.iter().zip([1, 1, 2]) {
            let fair = f64::from(KEYS) * f64::from(weight) / 4.0;
            let ratio = f64::from(*share) / fair;
            assert!((0.75..1.25).contains(&ratio), "{shares:?}");
        }
    }

    #[test]
    fn a_server_that_is_added_takes_keys_only_for_itself() {
        let before = Ring::new(&[("a", 1), ("b", 1), ("c", 1)]);
        let after = Ring::new(&[("a", 1), ("b", 1), ("c", 1), ("d", 1)]);
        let mut moved = 0;
        for number in 0..KEYS {
            let (old, new) = (before.owner(&key(number)), after.owner(&key(number)));
            if old != new {
                assert_eq!(new, Some(3), "key {number} moves between old servers");
                moved += 1;
            }
        }
        let ratio = f64::from(moved) / (f64::from(KEYS) / 4.0);
        assert!((0.75..1.25).contains(&ratio), "{moved} of {KEYS} keys move");
    }

    #[test]
    fn the_order_in_which_servers_are_named_does_not_matter() {
        let names = ["x", "y", "z"];
        let one = Ring::new(&[("x", 1), ("y", 3), ("z", 1)]);
        let other = Ring::new(&[("z", 1), ("x", 1), ("y", 3)]);
        let others = ["z", "x", "y"];
        for number in 0..1000 {
            let (a, b) = (one.owner(&key(number)), other.owner(&key(number)));
            assert_eq!(names[a.expect("an owner")], others[b.expect("an owner")]);
        }
    }

    #[test]
    fn without_servers_nothing_has_an_owner() {
        assert_eq!(Ring::new(&[]).owner(b"k"), None);
        assert_eq!(Ring::new(&[("a", 0)]).owner(b"k"), None);
    }
}
