//! Temporary.
#![allow(warnings, clippy::all, clippy::pedantic)]
use esker_index::{Directory, Link};
fn hash(n: u64) -> u64 {
    let n = n.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let n = (n ^ n >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let n = (n ^ n >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    n ^ n >> 31
}
fn link(n: u64) -> Link { Link::record(n % (Link::GRAIN_END - 1) + 1, 3).unwrap() }
fn main() {
    let entries: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    let look: u64 = std::env::args().nth(2).unwrap().parse().unwrap();
    let d = Directory::with_capacity(0);
    for n in 0..entries { d.insert(hash(n), link(n)); }
    let mut t = 0;
    for n in 0..look { t += d.lookup(hash(n % entries)).iter().count(); }
    println!("{t}");
}
