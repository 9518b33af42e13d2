//! The indexes of `flat` beside concurrent maps of the same content, in one run.
//!
//! Million operations per second of one and of two threads over 8-byte keys, by the time that they were
//! on a core (other work on the machine counts little): inserts from nothing,
//! lookups (uniform, zipfian, in batches), replacements, for the ordered ones scans of 50; bytes per
//! entry; and what loading an index again takes. `cargo xtask bench flat-index [ENTRIES [PART]]`.

#![allow(clippy::print_stdout, clippy::cast_precision_loss, reason = "a benchmark prints figures")]

mod common;

use common::{BuildAsIs, hash, time};
use esker_index::{Cceh, Masstree, Word};
use std::collections::{BTreeMap, HashMap};
use std::hint::black_box;
use std::ops::{Bound, ControlFlow};
use std::sync::{Mutex, PoisonError, RwLock};

/// Entries of a batch.
const BATCH: usize = 64;
/// Keys of a scan.
const SCAN: usize = 50;

fn word(n: u64) -> Word {
    Word::new(n % (Word::END - 1) + 1).unwrap_or_else(|| unreachable!("it is in range"))
}

/// Million operations per second that this thread was on a core.
fn rate(operations: u64, work: impl FnOnce()) -> f64 {
    1e3 / time(operations, work)
}

/// A map that can be compared.
trait Peer: Sync {
    fn put(&self, key: u64, n: u64);
    fn get(&self, key: u64) -> Option<u64>;
    /// Changes what is there.
    fn set(&self, key: u64, n: u64) {
        self.put(key, n);
    }
    fn get_many(&self, _keys: &[u64]) -> Option<usize> {
        None
    }
    /// Keys met from this one on.
    fn scan(&self, _key: u64) -> Option<usize> {
        None
    }
    fn bytes(&self) -> Option<usize> {
        None
    }
}

impl Peer for Cceh {
    fn put(&self, key: u64, n: u64) {
        self.insert(key, word(n));
    }
    fn get(&self, key: u64) -> Option<u64> {
        self.lookup(key).iter().next().map(Word::get)
    }
    fn set(&self, key: u64, n: u64) {
        if let Some(old) = self.lookup(key).iter().next() {
            self.replace(key, old, word(n));
        }
    }
    fn get_many(&self, keys: &[u64]) -> Option<usize> {
        let mut found = 0;
        self.lookup_many(keys, |_, words| found += usize::from(!words.is_empty()));
        Some(found)
    }
    fn bytes(&self) -> Option<usize> {
        Some(self.memory_bytes())
    }
}

impl Peer for Masstree {
    fn put(&self, key: u64, n: u64) {
        self.insert(&key.to_be_bytes(), word(n));
    }
    fn get(&self, key: u64) -> Option<u64> {
        Masstree::get(self, &key.to_be_bytes()).map(Word::get)
    }
    fn set(&self, key: u64, n: u64) {
        if let Some(old) = Masstree::get(self, &key.to_be_bytes()) {
            self.replace(&key.to_be_bytes(), old, word(n));
        }
    }
    fn get_many(&self, keys: &[u64]) -> Option<usize> {
        let mut bytes = [[0; 8]; BATCH];
        bytes.iter_mut().zip(keys).for_each(|(bytes, key)| *bytes = key.to_be_bytes());
        let mut found = 0;
        self.lookup_many(bytes.get(..keys.len())?, |_, word| found += usize::from(word.is_some()));
        Some(found)
    }
    fn scan(&self, key: u64) -> Option<usize> {
        let mut met = 0;
        Masstree::scan(self, Bound::Included(&key.to_be_bytes()), SCAN, |key, word| {
            black_box((key, word));
            met += 1;
            if met < SCAN { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        Some(met)
    }
    fn bytes(&self) -> Option<usize> {
        Some(self.memory_bytes())
    }
}

impl Peer for papaya::HashMap<u64, u64, BuildAsIs> {
    fn put(&self, key: u64, n: u64) {
        self.pin().insert(key, n);
    }
    fn get(&self, key: u64) -> Option<u64> {
        self.pin().get(&key).copied()
    }
}

impl Peer for scc::HashMap<u64, u64, BuildAsIs> {
    fn put(&self, key: u64, n: u64) {
        let _ = self.insert_sync(key, n);
    }
    fn set(&self, key: u64, n: u64) {
        self.update_sync(&key, |_, held| *held = n);
    }
    fn get(&self, key: u64) -> Option<u64> {
        self.read_sync(&key, |_, value| *value)
    }
}

impl Peer for dashmap::DashMap<u64, u64, BuildAsIs> {
    fn put(&self, key: u64, n: u64) {
        self.insert(key, n);
    }
    fn get(&self, key: u64) -> Option<u64> {
        dashmap::DashMap::get(self, &key).map(|value| *value)
    }
}

/// The map of std in shards under locks.
struct Shards(Vec<Mutex<HashMap<u64, u64, BuildAsIs>>>);

impl Shards {
    fn new() -> Shards {
        Shards((0..64).map(|_| Mutex::default()).collect())
    }
    fn with<R>(&self, key: u64, work: impl FnOnce(&mut HashMap<u64, u64, BuildAsIs>) -> R) -> R {
        let number = usize::try_from(key >> 20 & 63).unwrap_or(0);
        let shard = self.0.get(number).unwrap_or_else(|| unreachable!("there are 64"));
        work(&mut shard.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Peer for Shards {
    fn put(&self, key: u64, n: u64) {
        self.with(key, |map| map.insert(key, n));
    }
    fn get(&self, key: u64) -> Option<u64> {
        self.with(key, |map| map.get(&key).copied())
    }
}

impl Peer for crossbeam_skiplist::SkipMap<u64, u64> {
    fn put(&self, key: u64, n: u64) {
        self.insert(key, n);
    }
    fn get(&self, key: u64) -> Option<u64> {
        crossbeam_skiplist::SkipMap::get(self, &key).map(|entry| *entry.value())
    }
    fn scan(&self, key: u64) -> Option<usize> {
        let range = self.range(key..).take(SCAN);
        Some(range.fold(0, |met, entry| black_box((met, *entry.key(), *entry.value())).0 + 1))
    }
}

impl Peer for RwLock<BTreeMap<u64, u64>> {
    fn put(&self, key: u64, n: u64) {
        self.write().unwrap_or_else(PoisonError::into_inner).insert(key, n);
    }
    fn get(&self, key: u64) -> Option<u64> {
        self.read().unwrap_or_else(PoisonError::into_inner).get(&key).copied()
    }
    fn scan(&self, key: u64) -> Option<usize> {
        let map = self.read().unwrap_or_else(PoisonError::into_inner);
        Some(map.range(key..).take(SCAN).fold(0, |met, entry| black_box((met, entry)).0 + 1))
    }
}

/// Numbers below a bound, the low ones often (the rejection-free generator of YCSB, skew 0.99).
struct Zipf {
    last: u64,
    bound: f64,
    zeta: f64,
    eta: f64,
}

const SKEW: f64 = 0.99;

impl Zipf {
    fn new(bound: u64) -> Zipf {
        let zeta_of = |end: u64| (1..=end).map(|n| (n as f64).powf(-SKEW)).sum::<f64>();
        let (zeta, two) = (zeta_of(bound), zeta_of(2));
        let (last, bound) = (bound - 1, bound as f64);
        let eta = (1.0 - (2.0 / bound).powf(1.0 - SKEW)) / (1.0 - two / zeta);
        Zipf { last, bound, zeta, eta }
    }

    fn pick(&self, random: u64) -> u64 {
        let u = (random >> 11) as f64 / (1u64 << 53) as f64;
        let scaled = u * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(SKEW) {
            return 1;
        }
        let number = self.bound * (self.eta * u - self.eta + 1.0).powf(1.0 / (1.0 - SKEW));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range")]
        let number = number as u64;
        number.min(self.last)
    }
}

/// What is measured, in the order of the columns.
const COLUMNS: [&str; 6] = ["insert", "lookup", "zipfian", "batched", "replace", "scan 50"];

struct Bench<'a> {
    entries: u64,
    operations: u64,
    zipf: &'a [u64],
}

impl Bench<'_> {
    /// What the threads would do together if each had a core for itself all the time: rates by the
    /// time that they were on one, as far as the kernel tells.
    fn threads(&self, threads: u64, operations: u64, work: &(dyn Fn(u64, u64) + Sync)) -> f64 {
        let each = operations / threads;
        std::thread::scope(|scope| {
            let run = |thread| move || rate(each, || (0..each).for_each(|n| work(thread, n)));
            let running: Vec<_> = (0..threads).map(|thread| scope.spawn(run(thread))).collect();
            running.into_iter().map(|thread| thread.join().unwrap_or(0.0)).sum()
        })
    }

    /// As [`Bench::threads`], where each thread does its part of all entries at once.
    fn parts(&self, threads: u64, work: &(dyn Fn(usize) + Sync)) -> f64 {
        let each = self.entries / threads;
        std::thread::scope(|scope| {
            let run = |thread| move || rate(each, || work(thread));
            let numbers = 0..usize::try_from(threads).unwrap_or(1);
            let running: Vec<_> = numbers.map(|thread| scope.spawn(run(thread))).collect();
            running.into_iter().map(|thread| thread.join().unwrap_or(0.0)).sum()
        })
    }

    /// A key that is there, uniform.
    fn key(&self, thread: u64, n: u64) -> u64 {
        let wide = u128::from(hash(n ^ (thread + 1) << 50)) * u128::from(self.entries);
        hash(u64::try_from(wide >> 64).unwrap_or(0))
    }

    fn run(&self, name: &str, map: &dyn Peer, threads: u64) -> [f64; 6] {
        let insert = self.threads(threads, self.entries, &|thread, n| {
            map.put(hash(n * threads + thread), n);
        });
        let entries = self.entries / threads * threads;
        let bench = Bench { entries, ..*self };
        let lookup = bench.threads(threads, bench.operations, &|thread, n| {
            assert!(map.get(bench.key(thread, n)).is_some(), "a key is missing");
        });
        let zipf = |thread: u64, n: u64| {
            let place = usize::try_from(n + thread * 7919).unwrap_or(0) % self.zipf.len();
            hash(self.zipf.get(place).copied().unwrap_or(0) % entries)
        };
        let zipfian = bench.threads(threads, bench.operations, &|thread, n| {
            assert!(map.get(zipf(thread, n)).is_some(), "a key is missing");
        });
        let batch = |thread, n: u64| {
            let mut keys = [0; BATCH];
            keys.iter_mut()
                .zip(n * BATCH as u64..)
                .for_each(|(key, n)| *key = bench.key(thread, n));
            keys
        };
        let has_batches = map.get_many(&[]).is_some();
        let batched = if has_batches {
            BATCH as f64
                * bench.threads(threads, bench.operations / BATCH as u64, &|thread, n| {
                    assert_eq!(map.get_many(&batch(thread, n)), Some(BATCH));
                })
        } else {
            0.0
        };
        let replace = bench.threads(threads, bench.operations / 2, &|thread, n| {
            map.set(bench.key(thread, n), n);
        });
        let scan = if map.scan(0).is_some() {
            bench.threads(threads, bench.operations / 20, &|thread, n| {
                black_box(map.scan(bench.key(thread, n)));
            })
        } else {
            0.0
        };
        let figures = [insert, lookup, zipfian, batched, replace, scan];
        print!("  {name:14}");
        figures.iter().for_each(|figure| print!(" {figure:9.2}"));
        match map.bytes() {
            Some(bytes) => println!("   {:.1} B/entry", bytes as f64 / entries as f64),
            None => println!(),
        }
        figures
    }
}

/// Prints how often ours is as fast as the best of the others.
fn compare(ours: [f64; 6], others: &[(&str, [f64; 6])]) {
    print!("  times the best");
    for (column, mut figure) in ours.into_iter().enumerate() {
        let best = others.iter().map(|(_, figures)| figures.get(column).copied().unwrap_or(0.0));
        let mut best = best.fold(0.0, f64::max);
        if COLUMNS.get(column) == Some(&"batched") {
            // Beside single lookups of the others, which have no batches.
            let lookups = others.iter().map(|(_, figures)| figures.get(1).copied().unwrap_or(0.0));
            best = lookups.fold(0.0, f64::max);
        }
        if best == 0.0 {
            figure = 0.0;
            best = 1.0;
        }
        print!(" {:9.2}", figure / best);
    }
    println!();
}

fn heading(what: &str, threads: u64, entries: u64) {
    println!(
        "{what}, {threads} threads, {entries} keys of 8 bytes, million operations per second:"
    );
    print!("  {:14}", "");
    COLUMNS.iter().for_each(|column| print!(" {column:>9}"));
    println!();
}

fn hashes(bench: &Bench<'_>, threads: u64) {
    heading("hash indexes", threads, bench.entries);
    let mut others = Vec::new();
    let ours = bench.run("cceh", &Cceh::default(), threads);
    others.push(("shards", bench.run("mutex shards", &Shards::new(), threads)));
    let dashmap = dashmap::DashMap::with_hasher(BuildAsIs::default());
    others.push(("dashmap", bench.run("dashmap", &dashmap, threads)));
    drop(dashmap);
    let papaya = papaya::HashMap::with_hasher(BuildAsIs::default());
    others.push(("papaya", bench.run("papaya", &papaya, threads)));
    drop(papaya);
    let scc = scc::HashMap::with_hasher(BuildAsIs::default());
    others.push(("scc", bench.run("scc", &scc, threads)));
    compare(ours, &others);
}

fn trees(bench: &Bench<'_>, threads: u64) {
    heading("ordered indexes", threads, bench.entries);
    let mut others = Vec::new();
    let ours = bench.run("masstree", &Masstree::new(), threads);
    let skiplist = crossbeam_skiplist::SkipMap::new();
    others.push(("skiplist", bench.run("skiplist", &skiplist, threads)));
    drop(skiplist);
    let map = RwLock::new(BTreeMap::new());
    others.push(("btree", bench.run("btree + lock", &map, threads)));
    compare(ours, &others);
}

/// Loading again.
fn loads(bench: &Bench<'_>) {
    let Bench { entries, .. } = bench;
    let all: Vec<(u64, Word)> = (0..*entries).map(|n| (hash(n), word(n))).collect();
    let mut sorted: Vec<([u8; 8], Word)> =
        all.iter().map(|(key, word)| (key.to_be_bytes(), *word)).collect();
    sorted.sort_unstable();
    for threads in [1, 2] {
        let part = all.len().div_ceil(usize::try_from(threads).unwrap_or(1));
        let index = Cceh::with_capacity(*entries);
        let rate = bench.parts(threads, &|thread| {
            index.insert_many(all.chunks(part).nth(thread).unwrap_or(&[]));
        });
        let each = index.memory_bytes() as f64 / *entries as f64;
        let seconds = *entries as f64 / rate / 1e6;
        println!("load cceh, {threads} threads: {seconds:.3} s ({each:.1} B/entry)");
        drop(index);
        let tree = Masstree::new();
        let rate = bench.parts(threads, &|thread| {
            tree.insert_many(sorted.chunks(part).nth(thread).unwrap_or(&[]));
        });
        let each = tree.memory_bytes() as f64 / *entries as f64;
        let seconds = *entries as f64 / rate / 1e6;
        println!("load masstree, sorted, {threads} threads: {seconds:.3} s ({each:.1} B/entry)");
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let entries = arguments.first().map(|n| n.replace('_', "").parse());
    let Ok(entries) = entries.unwrap_or(Ok(10_000_000u64)) else {
        println!("flat_bench [ENTRIES [hash|tree|load]]: 10 million, and all parts");
        return;
    };
    let part = arguments.get(1).map_or("", String::as_str);
    let entries = entries.max(1000);
    let operations = 4_000_000;
    let zipf = Zipf::new(entries);
    let zipf: Vec<u64> = (0..2_000_000).map(|n| zipf.pick(hash(!n))).collect();
    let bench = Bench { entries, operations, zipf: &zipf };
    for threads in [1, 2] {
        if matches!(part, "" | "hash") {
            hashes(&bench, threads);
        }
        if matches!(part, "" | "tree") {
            trees(&bench, threads);
        }
    }
    if matches!(part, "" | "load") {
        loads(&bench);
    }
}
