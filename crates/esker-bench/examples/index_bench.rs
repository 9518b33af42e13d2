//! The index beside the memory it lies in and beside concurrent maps.
//!
//! One run prints what one random access to memory costs, what lookups, inserts and batches cost at
//! a size, two-thread throughput against three maps of the same content, bytes per entry over
//! the growth, and the latency of inserts during it. `cargo xtask bench index [ENTRIES]`. With `aged`, what lookups cost after the
//! content was replaced some times.
//!
//! Access is measured in four ways: each waits for the one before, or they are independent, so that
//! the processor overlaps them; in pages of 4 KiB, as the allocator gives them, or in huge ones. A
//! lookup that waits for the one before is compared with accesses that do, both in huge pages, and
//! so on: equals with equals. Keys are drawn before, for all alike.

#![allow(clippy::print_stdout, clippy::cast_precision_loss, reason = "a benchmark prints figures")]

mod common;

use common::{BuildAsIs, hash, now, time};
use esker_index::{Directory, Link};
use hdrhistogram::Histogram;
use std::hint::black_box;

/// Entries at which the average over the growth begins.
const GROWTH_START: u64 = 1_000_000;
/// Operations of each measurement.
const OPERATIONS: u64 = 10_000_000;

fn link(n: u64) -> Link {
    Link::record(n % (Link::GRAIN_END - 1) + 1, 3).unwrap_or_else(|| unreachable!("it is in range"))
}

/// A random number below `bound` for each n.
fn pick(n: u64, bound: u64) -> u64 {
    u64::try_from((u128::from(hash(n ^ 0x5555_5555_0000_0000)) * u128::from(bound)) >> 64)
        .unwrap_or(0)
}

/// Nanoseconds of one access to as many bytes: each after the one before, and independent ones.
fn random_access(bytes: usize) -> [f64; 2] {
    // One cycle through all places, in random order (Sattolo).
    let places = u32::try_from(bytes / 8).unwrap_or(u32::MAX);
    let mut next: Vec<u64> = (0..u64::from(places)).collect();
    for n in (1..next.len()).rev() {
        next.swap(n, usize::try_from(pick(n as u64, n as u64)).unwrap_or(0));
    }
    let mut place = 0usize;
    let mut walk = |steps: u64| {
        for _ in 0..steps {
            place = next.get(place).and_then(|n| usize::try_from(*n).ok()).unwrap_or(0);
        }
        black_box(place);
    };
    walk(OPERATIONS / 10);
    let waiting = time(OPERATIONS, || walk(OPERATIONS));
    let draws: Vec<usize> =
        (0..OPERATIONS).map(|n| usize::try_from(pick(n, u64::from(places))).unwrap_or(0)).collect();
    let independent = time(OPERATIONS, || {
        let all = draws.iter().filter_map(|place| next.get(*place));
        black_box(all.fold(0, |sum: u64, held| sum ^ held));
    });
    [waiting, independent]
}

/// As [`random_access`], in huge pages: in a process of its own, whose allocator asks for them.
fn random_access_huge(bytes: usize) -> Option<[f64; 2]> {
    let told = std::process::Command::new(std::env::current_exe().ok()?)
        .args(["access", &bytes.to_string()])
        .env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
        .output()
        .ok()?;
    let told = String::from_utf8(told.stdout).ok()?;
    let mut figures = told.split_whitespace().filter_map(|figure| figure.parse().ok());
    Some([figures.next()?, figures.next()?])
}

fn grow(directory: &Directory, entries: u64) {
    let mut latencies = Histogram::<u64>::new(3).unwrap_or_else(|e| unreachable!("{e}"));
    let (mut sum, mut samples, mut worst) = (0.0, 0u64, 0.0f64);
    let start = now();
    let mut last = start;
    for n in 0..entries {
        directory.insert(hash(n), link(n));
        let after = now();
        let _ = latencies.record(after - last);
        last = after;
        if n >= GROWTH_START.min(entries / 2) && n % 10_000 == 0 {
            let bytes = directory.memory_bytes() as f64 / (n + 1) as f64;
            sum += bytes;
            worst = worst.max(bytes);
            samples += 1;
            last = now();
        }
    }
    println!(
        "growth to {entries}: {:.0} ns per insert with its clock reading",
        (now() - start) as f64 / entries as f64
    );
    println!(
        "  bytes per entry from {} on: {:.2} on average, {worst:.2} at most (goal 12)",
        GROWTH_START.min(entries / 2),
        sum / samples.max(1) as f64
    );
    let us = |quantile| latencies.value_at_quantile(quantile) as f64 / 1000.0;
    println!(
        "  insert latency: p50 {:.2} us, p99 {:.2}, p99.9 {:.2}, p99.99 {:.1} (goal 100), max {:.1}",
        us(0.5),
        us(0.99),
        us(0.999),
        us(0.9999),
        latencies.max() as f64 / 1000.0
    );
    let mut idle = Histogram::<u64>::new(3).unwrap_or_else(|e| unreachable!("{e}"));
    let mut last = now();
    for n in 0..OPERATIONS {
        black_box((0..32).fold(n, |n, _| hash(n)));
        let after = now();
        let _ = idle.record(after - last);
        last = after;
    }
    println!(
        "  a computation instead, as long: p50 {:.2} us, p99.99 {:.1}, max {:.1}: what else runs here",
        idle.value_at_quantile(0.5) as f64 / 1000.0,
        idle.value_at_quantile(0.9999) as f64 / 1000.0,
        idle.max() as f64 / 1000.0
    );
    println!("  overflow: {} entries", directory.overflow_len());
}

fn costs(directory: &Directory, entries: u64) {
    let bytes = directory.memory_bytes();
    let small = random_access(bytes);
    let huge = random_access_huge(bytes).unwrap_or(small);
    println!("one random access to as much memory, waiting and independent:");
    println!("  {:.1} and {:.1} ns in huge pages", huge[0], huge[1]);
    println!("  {:.1} and {:.1} ns in pages of 4 KiB", small[0], small[1]);
    let keys: Vec<u64> = (0..OPERATIONS).map(|n| hash(pick(n, entries))).collect();
    let absent: Vec<u64> = (0..OPERATIONS).map(|n| hash(entries + n)).collect();
    for (what, keys) in [("lookup", &keys), ("lookup of absent keys", &absent)] {
        let mut total = 0;
        let waiting = time(OPERATIONS, || {
            // What was found decides what is looked for: it adds nothing, which only we know.
            let mut before = 0;
            for key in keys {
                let found = black_box(directory.lookup(key.wrapping_add(before)).iter().count());
                total += found;
                before = (found >> 32) as u64;
            }
        });
        let independent = time(OPERATIONS, || {
            let found = keys.iter().map(|key| directory.lookup(*key).iter().count());
            black_box(found.sum::<usize>());
        });
        println!(
            "{what}: waiting {waiting:.1} ns, {:.2} accesses (goal 1.3), {:.2} in 4 KiB; independent \
             {independent:.1} ns, {:.2} accesses; {:.4} candidates",
            waiting / huge[0],
            waiting / small[0],
            independent / huge[1],
            total as f64 / OPERATIONS as f64
        );
    }
    let cost = time(OPERATIONS, || {
        for batch in keys.chunks(BATCH) {
            directory.lookup_many(batch, |_, found| {
                black_box(found);
            });
        }
    });
    println!("batched lookup: {cost:.1} ns, {:.2} independent accesses", cost / huge[1]);
    let access = huge[0];
    let inserts = (entries / 20).max(1);
    let cost = time(inserts, || {
        for n in entries..entries + inserts {
            directory.insert(hash(n), link(n));
        }
    });
    println!(
        "insert: {cost:.1} ns, {:.2} accesses (goal 2), {:.2} in 4 KiB",
        cost / access,
        cost / small[0]
    );
    let cost = time(inserts, || {
        for n in entries..entries + inserts {
            directory.replace(hash(n), link(n), link(n + 1));
        }
    });
    println!("replace: {cost:.1} ns, {:.2} accesses", cost / access);
    let cost = time(inserts, || {
        for n in entries..entries + inserts {
            directory.remove(hash(n), link(n + 1));
        }
    });
    println!("remove: {cost:.1} ns, {:.2} accesses", cost / access);
}

/// Turnovers of the content after which lookups are measured.
const TURNOVERS: u64 = 10;

/// Lookups in a directory all of whose entries were replaced by others some times, and in a fresh one of the same content.
/// In turns, since what else the machine does changes meanwhile.
fn aged(entries: u64) {
    let old = Directory::with_capacity(0);
    (0..entries).for_each(|n| old.insert(hash(n), link(n)));
    let end = entries * (TURNOVERS + 1);
    for n in entries..end {
        old.remove(hash(n - entries), link(n - entries));
        old.insert(hash(n), link(n));
    }
    let fresh = Directory::with_capacity(0);
    (end - entries..end).for_each(|n| fresh.insert(hash(n), link(n)));
    let count = OPERATIONS.min(entries * 4);
    let there: Vec<u64> = (0..count).map(|n| hash(end - entries + pick(n, entries))).collect();
    let absent: Vec<u64> = (0..count).map(|n| hash(end + n)).collect();
    println!(
        "{entries} entries, after {TURNOVERS} turnovers: {} and fresh {} bytes, {} and {} in the overflow",
        old.memory_bytes(),
        fresh.memory_bytes(),
        old.overflow_len(),
        fresh.overflow_len()
    );
    for _ in 0..3 {
        for (what, keys) in [("lookup", &there), ("lookup of absent keys", &absent)] {
            let cost = |directory: &Directory| {
                time(count, || {
                    let found = keys.iter().map(|key| directory.lookup(*key).iter().count());
                    black_box(found.sum::<usize>());
                })
            };
            let batched = |directory: &Directory| {
                time(count, || {
                    for batch in keys.chunks(BATCH) {
                        directory.lookup_many(batch, |_, found| {
                            black_box(found);
                        });
                    }
                })
            };
            let [aged, new] = [&old, &fresh].map(cost);
            let [aged_many, new_many] = [&old, &fresh].map(batched);
            println!(
                "{what}: {aged:.1} ns, fresh {new:.1} ({:.2} times); {BATCH} at a time {aged_many:.1} ns, \
                 fresh {new_many:.1} ({:.2} times)",
                aged / new,
                aged_many / new_many
            );
        }
    }
}

/// Export and import of everything.
fn parts(directory: &Directory, entries: u64) {
    let mut all = Vec::new();
    let cost = time(entries, || {
        let mut cursor = 0;
        while let Some((part, next)) = directory.export(cursor) {
            all.push(part);
            cursor = next;
        }
    });
    let bytes: usize = all.iter().map(Vec::len).sum();
    println!("export: {cost:.1} ns and {:.2} bytes per entry", bytes as f64 / entries as f64);
    for threads in [1, 2] {
        let again = Directory::with_capacity(directory.len());
        let start = now();
        {
            std::thread::scope(|scope| {
                for half in all.chunks(all.len().div_ceil(threads)) {
                    let again = &again;
                    scope.spawn(move || {
                        half.iter().all(|part| again.import(part, |_| true).is_ok())
                    });
                }
            });
        }
        let cost = (now() - start) as f64 / entries as f64;
        println!(
            "import with {threads} threads: {cost:.1} ns per entry, {:.2} s for 10 million ({})",
            cost / 100.0,
            if again.len() == directory.len() { "complete" } else { "INCOMPLETE" }
        );
    }
}

/// A map that can be compared.
trait Peer: Sync {
    fn put(&self, key: u64, value: u64);
    fn has(&self, key: u64) -> bool;
    /// Many at a time, as the readers of a batch ask.
    fn has_all(&self, keys: &[u64]) -> bool {
        keys.iter().all(|key| self.has(*key))
    }
    fn put_all(&self, keys: &[u64]) {
        keys.iter().for_each(|key| self.put(*key, *key >> 32));
    }
}

impl Peer for Directory {
    /// The maps look whether the key is there, so this does, too.
    fn put(&self, key: u64, value: u64) {
        black_box(self.lookup(key));
        self.insert(key, link(value));
    }
    fn has(&self, key: u64) -> bool {
        !self.lookup(key).is_empty()
    }
    fn has_all(&self, keys: &[u64]) -> bool {
        let mut all = true;
        self.lookup_many(keys, |_, found| all &= found.iter().next().is_some());
        all
    }
    fn put_all(&self, keys: &[u64]) {
        self.has_all(keys);
        let entries: Vec<_> = keys.iter().map(|key| (*key, link(*key >> 32))).collect();
        self.insert_many(&entries);
    }
}

impl Peer for papaya::HashMap<u64, u64, BuildAsIs> {
    fn put(&self, key: u64, value: u64) {
        self.pin().insert(key, value);
    }
    fn has(&self, key: u64) -> bool {
        self.pin().get(&key).is_some()
    }
}

impl Peer for scc::HashMap<u64, u64, BuildAsIs> {
    fn put(&self, key: u64, value: u64) {
        let _ = self.insert_sync(key, value);
    }
    fn has(&self, key: u64) -> bool {
        self.read_sync(&key, |_, value| *value).is_some()
    }
}

impl Peer for dashmap::DashMap<u64, u64, BuildAsIs> {
    fn put(&self, key: u64, value: u64) {
        self.insert(key, value);
    }
    fn has(&self, key: u64) -> bool {
        self.get(&key).is_some()
    }
}

/// Operations of a batch.
const BATCH: usize = 64;

/// Million operations per second of two threads, each as fast as when it was on a core: inserts from nothing into one map and in batches into
/// another, lookups alone and in batches, and lookups and inserts mixed.
fn two_threads(name: &str, [map, other]: [&dyn Peer; 2], entries: u64) -> [f64; 5] {
    let both = |operations: u64, work: &(dyn Fn(u64, u64) + Sync)| {
        std::thread::scope(|scope| {
            let run =
                |thread| move || time(operations, || (0..operations).for_each(|n| work(thread, n)));
            let running = [scope.spawn(run(0)), scope.spawn(run(1))];
            running
                .into_iter()
                .map(|thread| 1000.0 / thread.join().unwrap_or(f64::MAX))
                .sum::<f64>()
        })
    };
    let half = entries / 2;
    let insert = both(half, &|thread, n| map.put(hash(2 * n + thread), n));
    let batches = half / BATCH as u64;
    let inserts = both(batches, &|thread, n| {
        let first = 2 * (n * BATCH as u64) + thread;
        other
            .put_all(&std::array::from_fn::<u64, BATCH, _>(|place| hash(first + 2 * place as u64)));
    }) * BATCH as f64;
    assert!((0..2 * BATCH as u64 * batches).step_by(1000).all(|n| other.has(hash(n))));
    let read = both(OPERATIONS / 2, &|thread, n| {
        assert!(map.has(hash(pick(thread << 40 | n, 2 * half))), "a key is missing");
    });
    let mixed = both(OPERATIONS / 2, &|thread, n| {
        if n % 20 == 0 {
            map.put(hash(entries + 2 * n + thread), n);
        } else {
            black_box(map.has(hash(pick(thread << 41 | n, 2 * half))));
        }
    });
    let batched = both(OPERATIONS / 2 / BATCH as u64, &|thread, n| {
        let first = n * BATCH as u64;
        let keys: [u64; BATCH] = std::array::from_fn(|place| {
            hash(pick(thread << 42 | (first + place as u64), 2 * half))
        });
        assert!(map.has_all(&keys), "a key is missing");
    }) * BATCH as f64;
    println!(
        "  {name:10} insert {insert:6.2}   {BATCH} at a time {inserts:6.2}   lookup {read:6.2}   \
         {BATCH} at a time {batched:6.2}   95 % lookups {mixed:6.2}"
    );
    [insert, inserts, read, batched, mixed]
}

fn compare(entries: u64) {
    println!("two threads, {entries} entries, million operations per second:");
    let ours = {
        let [one, other] = [0, 0].map(Directory::with_capacity);
        one.allow_helper();
        other.allow_helper();
        two_threads("directory", [&one, &other], entries)
    };
    let mut best = [("", 0.0f64); 5];
    let mut note = |name: &'static str, maps: [&dyn Peer; 2]| {
        let figures = two_threads(name, maps, entries);
        for (best, figure) in best.iter_mut().zip(figures) {
            if figure > best.1 {
                *best = (name, figure);
            }
        }
    };
    {
        let [one, other] = [(); 2].map(|()| papaya::HashMap::with_hasher(BuildAsIs::default()));
        note("papaya", [&one, &other]);
    }
    {
        let [one, other] = [(); 2].map(|()| scc::HashMap::with_hasher(BuildAsIs::default()));
        note("scc", [&one, &other]);
    }
    {
        let [one, other] = [(); 2].map(|()| dashmap::DashMap::with_hasher(BuildAsIs::default()));
        note("dashmap", [&one, &other]);
    }
    for (what, (ours, (name, best))) in
        ["insert", "insert of many", "lookup", "lookup of many", "95 % lookups"]
            .iter()
            .zip(ours.iter().zip(best))
    {
        println!("  {what}: {:.2} times the best map, {name} (goal 2)", ours / best);
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize| arguments.get(place).and_then(|n| n.replace('_', "").parse().ok());
    if arguments.first().is_some_and(|first| first == "access") {
        let bytes = number(1).and_then(|bytes: u64| usize::try_from(bytes).ok()).unwrap_or(0);
        let [waiting, independent] = random_access(bytes.max(1 << 20));
        println!("{waiting} {independent}");
        return;
    }
    if arguments.first().is_some_and(|first| first == "aged") {
        aged(number(1).unwrap_or(10_000_000).max(1000));
        return;
    }
    if arguments.iter().any(|argument| number(0).is_none() || argument.starts_with('-')) {
        println!("index_bench [ENTRIES [ENTRIES-OF-THE-COMPARISON]]: 50 million, or as many");
        println!("index_bench aged [ENTRIES]: after turnovers, 10 million");
        return;
    }
    let entries: u64 = number(0).unwrap_or(50_000_000).max(1000);
    {
        let directory = Directory::with_capacity(0);
        directory.allow_helper();
        grow(&directory, entries);
        costs(&directory, entries);
        parts(&directory, entries);
    }
    compare(number(1).unwrap_or(entries));
}
