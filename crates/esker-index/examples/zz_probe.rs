//! Temporary.
#![allow(warnings, clippy::all, clippy::pedantic)]
use esker_index::{Directory, Link};
use std::hint::black_box;
use std::time::Instant;
fn hash(n: u64) -> u64 {
    let n = n.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let n = (n ^ n >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let n = (n ^ n >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    n ^ n >> 31
}
fn pick(n: u64, bound: u64) -> u64 { ((hash(n ^ 0x5555_5555_0000_0000) as u128 * bound as u128) >> 64) as u64 }
fn link(n: u64) -> Link { Link::record(n % (Link::GRAIN_END - 1) + 1, 3).unwrap() }
const C: usize = 50_000;
const R: usize = 60;
struct Med(Vec<f64>);
impl Med { fn add(&mut self, s: Instant, n: usize) { self.0.push(s.elapsed().as_nanos() as f64 / n as f64); }
 fn show(&mut self, name: &str) { self.0.sort_by(|a,b| a.total_cmp(b)); println!("{name:28} min {:7.1}  p25 {:7.1}  median {:7.1}", self.0[0], self.0[self.0.len()/4], self.0[self.0.len()/2]); } }
fn main() {
    let entries: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    let d = Directory::with_capacity(0);
    d.allow_helper();
    let s = Instant::now();
    for n in 0..entries { d.insert(hash(n), link(n)); }
    println!("grow {:.1} ns, {:.2} B/entry, overflow {}", s.elapsed().as_nanos() as f64 / entries as f64, d.memory_bytes() as f64 / entries as f64, d.overflow_len());
    let sm = || { let t = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap(); let g = |w: &str| t.lines().find(|l| l.starts_with(w)).unwrap().split_whitespace().nth(1).unwrap().to_string(); println!("rss {} huge {}", g("Rss"), g("AnonHuge")); };
    sm();
    let places = (d.memory_bytes() / 8) as u64;
    let mut next: Vec<u64> = (0..places).collect();
    for n in (1..places).rev() { next.swap(n as usize, pick(n, n) as usize); }
    sm();
    let keys: Vec<u64> = (0..(C*R) as u64).map(|n| hash(pick(n, entries))).collect();
    let draws: Vec<u64> = (0..(C*R) as u64).map(|n| pick(n, places)).collect();
    let (mut a, mut b, mut l, mut li, mut ab, mut ba, mut ins, mut rep) = (Med(vec![]),Med(vec![]),Med(vec![]),Med(vec![]),Med(vec![]),Med(vec![]),Med(vec![]),Med(vec![]));
    let mut place = 0usize; let mut more = entries;
    for r in 0..R {
        let ks = &keys[r*C..(r+1)*C];
        let s = Instant::now(); for _ in 0..C { place = next[place] as usize; } black_box(place); a.add(s, C);
        let s = Instant::now(); let mut x = 0; for p in &draws[r*C..(r+1)*C] { x ^= next[*p as usize]; } black_box(x); b.add(s, C);
        let s = Instant::now(); let mut before = 0u64; for k in ks { let f = black_box(d.lookup(k.wrapping_add(before)).iter().count()); before = (f >> 32) as u64; } l.add(s, C);
        let s = Instant::now(); let mut t = 0; for k in ks { t += d.lookup(*k).iter().count(); } black_box(t); li.add(s, C);
        let s = Instant::now(); let mut t = 0; for n in 0..C as u64 { t += d.lookup(hash(1 << 40 | (r * C) as u64 + n)).iter().count(); } black_box(t); ab.add(s, C);
        let s = Instant::now(); for k in ks.chunks(64) { d.lookup_many(k, |_, f| { black_box(f); }); } ba.add(s, C);
        let s = Instant::now(); for n in more..more+10000 { d.insert(hash(n), link(n)); } ins.add(s, 10000);
        let s = Instant::now(); for n in more..more+10000 { d.replace(hash(n), link(n), link(n+1)); } rep.add(s, 10000); more += 10000;
    }
    a.show("access waiting"); b.show("access independent"); l.show("lookup waiting"); li.show("lookup independent"); ab.show("absent"); ba.show("batched"); ins.show("insert"); rep.show("replace");
    println!("bytes {:.2}", d.memory_bytes() as f64 / d.len() as f64);
}
