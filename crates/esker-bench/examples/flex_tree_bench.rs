//! FlexTree beside a B+-tree with full offsets and a sorted array: Table 1 of the paper (FlexSpace §6.1).
//!
//! `cargo xtask bench flex-tree [EXTENTS]`. Inserts at random places of a space that grows to so many
//! extents, 1,000,000 by default; then appends, lookups and ranges of 50 extents. The peers' inserts take
//! minutes at this size, so they are timed at ten sizes on the way, some at each, and summed up; the line
//! says so. The B+-tree is FlexTree without shifts: the same nodes, and each insert moves everything
//! behind it. Its nodes stand and are filled as after as many inserts at random places, like FlexTree's.
#![allow(
    clippy::print_stdout,
    clippy::cast_precision_loss,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a benchmark prints figures and may panic"
)]

use esker_base::clock::{Clock, SystemClock};
use esker_base::rng::Rng;
use esker_index::FlexTree;
use esker_index::flex_tree::Shape;
use std::hint::black_box;

const LENGTH: u64 = 4096;
/// From one address to the next: nothing grows together.
const APART: u64 = 2 * LENGTH;
const LEAF: usize = 60;
const CHILDREN: usize = 31;
/// Extents of a range query.
const RANGE: usize = 50;
/// Sizes at which the peers' inserts are timed, and inserts at each.
const SAMPLES: u64 = 10;
const INSERTS: u64 = 40;
/// Each figure is the best of so many runs, which alternate between the systems.
const RUNS: usize = 5;

/// Everything that a mapping says goes into the sum.
fn mixed(offset: u64, length: u64, address: u64) -> u64 {
    offset.wrapping_mul(3) ^ length.wrapping_mul(5) ^ address
}

/// What is compared.
trait Index: Sized {
    fn new() -> Self;
    /// As after `count` inserts at random places, without waiting for them.
    fn scattered(count: u64, rng: &mut Rng) -> Self;
    fn insert(&mut self, offset: u64, address: u64);
    fn append(&mut self, address: u64);
    fn lookup(&self, offset: u64) -> u64;
    fn range(&self, offset: u64) -> u64;
}

impl Index for FlexTree {
    fn new() -> Self {
        FlexTree::new(Shape::default())
    }

    fn scattered(count: u64, rng: &mut Rng) -> Self {
        let mut index = <FlexTree as Index>::new();
        insert(&mut index, rng, 0, count);
        index
    }

    fn insert(&mut self, offset: u64, address: u64) {
        FlexTree::insert(self, offset, LENGTH, address).expect("in memory");
    }

    fn append(&mut self, address: u64) {
        FlexTree::insert(self, self.size_bytes(), LENGTH, address).expect("in memory");
    }

    fn lookup(&self, offset: u64) -> u64 {
        FlexTree::lookup(self, offset).expect("in memory").map_or(0, |extent| extent.address)
    }

    fn range(&self, offset: u64) -> u64 {
        let mut sum = 0;
        self.visit(offset, LENGTH * RANGE as u64, |extent| {
            sum ^= mixed(extent.offset, u64::from(extent.length), extent.address);
        })
        .expect("in memory");
        sum
    }
}

#[derive(Clone, Copy)]
struct Plain {
    offset: u64,
    length: u32,
    address: u64,
}

/// A sorted array of extents.
struct Sorted(Vec<Plain>);

impl Index for Sorted {
    fn new() -> Self {
        Sorted(Vec::new())
    }

    /// There is but one way in which it can stand.
    fn scattered(count: u64, _rng: &mut Rng) -> Self {
        grown(count)
    }

    fn insert(&mut self, offset: u64, address: u64) {
        let index = self.0.partition_point(|extent| extent.offset < offset);
        self.0.insert(index, Plain { offset, length: LENGTH as u32, address });
        for extent in &mut self.0[index + 1..] {
            extent.offset += LENGTH;
        }
    }

    fn append(&mut self, address: u64) {
        let offset = self.0.last().map_or(0, |last| last.offset + u64::from(last.length));
        self.0.push(Plain { offset, length: LENGTH as u32, address });
    }

    fn lookup(&self, offset: u64) -> u64 {
        self.0[self.0.partition_point(|extent| extent.offset <= offset) - 1].address
    }

    fn range(&self, offset: u64) -> u64 {
        let first = self.0.partition_point(|extent| extent.offset <= offset) - 1;
        self.0[first..].iter().take(RANGE).fold(0, |sum, extent| {
            sum ^ mixed(extent.offset, u64::from(extent.length), extent.address)
        })
    }
}

/// A leaf of the B+-tree: 16 bytes an extent, as in FlexTree.
#[derive(Clone)]
#[repr(align(64))]
struct Leaf {
    entries: [[u64; 2]; LEAF],
    count: usize,
    next: u32,
}

#[derive(Clone)]
#[repr(align(64))]
struct Inner {
    pivots: [u64; CHILDREN - 1],
    children: [u32; CHILDREN],
    count: usize,
}

const LOW: u64 = (1 << 48) - 1;
const NONE: u32 = u32::MAX;

/// A B+-tree with the offset of every extent and pivot in full.
struct Full {
    leaves: Vec<Leaf>,
    inners: Vec<Inner>,
    root: u32,
    height: usize,
    size: u64,
}

impl Full {
    fn child(&self, node: u32, offset: u64) -> usize {
        let inner = &self.inners[node as usize];
        inner.pivots[..inner.count - 1].partition_point(|pivot| *pivot <= offset)
    }

    fn leaf_of(&self, offset: u64) -> &Leaf {
        let mut node = self.root;
        for _ in 0..self.height {
            node = self.inners[node as usize].children[self.child(node, offset)];
        }
        &self.leaves[node as usize]
    }

    fn index(leaf: &Leaf, offset: u64) -> usize {
        leaf.entries[..leaf.count].partition_point(|entry| entry[0] & LOW <= offset) - 1
    }

    fn full(&self, node: u32, level: usize) -> bool {
        if level > 0 {
            self.inners[node as usize].count == CHILDREN
        } else {
            self.leaves[node as usize].count + 2 > LEAF
        }
    }

    fn split(&mut self, parent: u32, x: usize, level: usize, append: bool) {
        let child = self.inners[parent as usize].children[x];
        let middle = |count: usize| if append { count - 2 } else { count / 2 };
        let (pivot, right) = if level > 0 {
            let mut right = self.inners[child as usize].clone();
            let left = &mut self.inners[child as usize];
            let middle = middle(left.count);
            let pivot = left.pivots[middle - 1];
            right.pivots.copy_within(middle.., 0);
            right.children.copy_within(middle.., 0);
            right.count = left.count - middle;
            left.count = middle;
            self.inners.push(right);
            (pivot, self.inners.len() - 1)
        } else {
            let mut right = self.leaves[child as usize].clone();
            let number = self.leaves.len() as u32;
            let left = &mut self.leaves[child as usize];
            let middle = middle(left.count);
            right.entries.copy_within(middle.., 0);
            right.count = left.count - middle;
            left.count = middle;
            left.next = number;
            let pivot = right.entries[0][0] & LOW;
            self.leaves.push(right);
            (pivot, self.leaves.len() - 1)
        };
        let inner = &mut self.inners[parent as usize];
        inner.pivots.copy_within(x..CHILDREN - 2, x + 1);
        inner.children.copy_within(x + 1..CHILDREN - 1, x + 2);
        inner.pivots[x] = pivot;
        inner.children[x + 1] = right as u32;
        inner.count += 1;
    }

    /// Adds `LENGTH` to all pivots behind the place, in the whole tree.
    fn shift_pivots(&mut self, node: u32, level: usize, offset: u64, all: bool) {
        let count = self.inners[node as usize].count;
        let first = if all { 0 } else { self.before(node, offset) };
        for pivot in &mut self.inners[node as usize].pivots[first..count - 1] {
            *pivot += LENGTH;
        }
        if level > 1 {
            for x in first..count {
                let child = self.inners[node as usize].children[x];
                self.shift_pivots(child, level - 1, offset, all || x > first);
            }
        }
    }

    /// Adds an extent before what has this offset, which is not moved; returns its leaf and place there.
    fn place(&mut self, offset: u64, address: u64, append: bool) -> (u32, usize) {
        if self.full(self.root, self.height) {
            let mut above = Inner { pivots: [0; 30], children: [0; 31], count: 1 };
            above.children[0] = self.root;
            self.inners.push(above);
            self.root = self.inners.len() as u32 - 1;
            self.height += 1;
            self.split(self.root, 0, self.height - 1, append);
        }
        let mut node = self.root;
        for level in (0..self.height).rev() {
            let mut x = self.before(node, offset);
            if self.full(self.inners[node as usize].children[x], level) {
                self.split(node, x, level, append);
                x = self.before(node, offset);
            }
            node = self.inners[node as usize].children[x];
        }
        let leaf = &mut self.leaves[node as usize];
        let index = leaf.entries[..leaf.count].partition_point(|entry| entry[0] & LOW < offset);
        leaf.entries.copy_within(index..leaf.count, index + 1);
        leaf.entries[index] = [offset | (LENGTH << 48), address];
        leaf.count += 1;
        self.size += LENGTH;
        (node, index)
    }

    fn before(&self, node: u32, offset: u64) -> usize {
        let inner = &self.inners[node as usize];
        inner.pivots[..inner.count - 1].partition_point(|pivot| *pivot < offset)
    }
}

impl Index for Full {
    fn new() -> Self {
        let leaf = Leaf { entries: [[0; 2]; LEAF], count: 0, next: NONE };
        Full { leaves: vec![leaf], inners: Vec::new(), root: 0, height: 0, size: 0 }
    }

    /// Where each extent ends up is known beforehand, so nothing has to move: nodes split as they would.
    fn scattered(count: u64, rng: &mut Rng) -> Self {
        let mut places: Vec<u64> = (0..count).collect();
        (1..places.len()).rev().for_each(|last| places.swap(last, rng.index(last + 1)));
        let mut index = Full::new();
        for (place, n) in places.into_iter().zip(0..) {
            index.place(place * LENGTH, n * APART, false);
        }
        index
    }

    fn insert(&mut self, offset: u64, address: u64) {
        let append = offset == self.size;
        let (leaf, index) = self.place(offset, address, append);
        if self.height > 0 && !append {
            self.shift_pivots(self.root, self.height, offset, false);
        }
        let mut first = index + 1;
        let mut next = leaf;
        while next != NONE {
            let leaf = &mut self.leaves[next as usize];
            for entry in &mut leaf.entries[first..leaf.count] {
                entry[0] += LENGTH;
            }
            first = 0;
            next = leaf.next;
        }
    }

    fn append(&mut self, address: u64) {
        self.insert(self.size, address);
    }

    fn lookup(&self, offset: u64) -> u64 {
        let leaf = self.leaf_of(offset);
        leaf.entries[Full::index(leaf, offset)][1] & LOW
    }

    fn range(&self, offset: u64) -> u64 {
        let mut leaf = self.leaf_of(offset);
        let mut index = Full::index(leaf, offset);
        let mut sum = 0;
        for _ in 0..RANGE {
            if index == leaf.count {
                if leaf.next == NONE {
                    break;
                }
                leaf = &self.leaves[leaf.next as usize];
                index = 0;
            }
            let [place, target] = leaf.entries[index];
            sum ^= mixed(place & LOW, place >> 48 | target >> 48 << 16, target & LOW);
            index += 1;
        }
        sum
    }
}

fn seconds(work: impl FnOnce()) -> f64 {
    let start = SystemClock.monotonic();
    work();
    (SystemClock.monotonic() - start).as_secs_f64()
}

/// An index of `count` extents, each appended.
fn grown<I: Index>(count: u64) -> I {
    let mut index = I::new();
    (0..count).for_each(|n| index.append(n * APART));
    index
}

fn insert<I: Index>(index: &mut I, rng: &mut Rng, from: u64, count: u64) {
    for n in from..from + count {
        index.insert(rng.below(n + 1) * LENGTH, n * APART);
    }
}

/// Seconds of `count` inserts, from samples at ten sizes.
fn sampled<I: Index>(count: u64) -> f64 {
    let mut rng = Rng::from_seed(1);
    let step = count / SAMPLES;
    let at_each = INSERTS.min(step);
    (0..SAMPLES)
        .map(|sample| {
            let from = sample * step + step / 2;
            let mut index = I::scattered(from, &mut rng);
            let time = seconds(|| insert(&mut index, &mut rng, from, at_each));
            time / at_each as f64 * step as f64
        })
        .sum()
}

/// Best million operations a second of each of the systems; the runs take turns.
fn best(names: [&str; 3], works: [&dyn Fn() -> f64; 3], operations: u64) -> [f64; 3] {
    let mut least = [f64::MAX; 3];
    for _ in 0..RUNS {
        for (least, work) in least.iter_mut().zip(works) {
            *least = least.min(work());
        }
    }
    let rates = least.map(|seconds| operations as f64 / seconds / 1e6);
    for (name, rate) in names.iter().zip(rates) {
        println!("    {name:<14} {rate:>9.4} million a second");
    }
    println!(
        "    FlexTree / B+-tree {:.3}, / array {:.3}",
        rates[0] / rates[1],
        rates[0] / rates[2]
    );
    rates
}

fn main() {
    let count: u64 =
        std::env::args().nth(1).map_or(1_000_000, |text| text.parse().expect("a number"));
    let names = ["FlexTree", "B+-tree", "sorted array"];
    println!("{count} extents; the best of {RUNS} runs that take turns");
    println!("insert at random places (peers: timed at {SAMPLES} sizes, {INSERTS} at each)");
    let flex = || {
        let mut index = None;
        seconds(|| index = Some(FlexTree::scattered(count, &mut Rng::from_seed(1))))
    };
    // The peers take seconds for each of their few inserts: one run of them.
    let (full, sorted) = (sampled::<Full>(count), sampled::<Sorted>(count));
    best(names, [&flex, &|| full, &|| sorted], count);
    println!("append");
    best(
        names,
        [
            &|| seconds(|| drop(black_box(grown::<FlexTree>(count)))),
            &|| seconds(|| drop(black_box(grown::<Full>(count)))),
            &|| seconds(|| drop(black_box(grown::<Sorted>(count)))),
        ],
        count,
    );
    let (flex, full, sorted) =
        (grown::<FlexTree>(count), grown::<Full>(count), grown::<Sorted>(count));
    let mut rng = Rng::from_seed(2);
    let places: Vec<u64> = (0..1 << 20).map(|_| rng.below(count) * LENGTH).collect();
    fn each<I: Index>(index: &I, places: &[u64], ask: fn(&I, u64) -> u64) -> f64 {
        seconds(|| {
            black_box(places.iter().fold(0, |sum, place| sum ^ ask(index, *place)));
        })
    }
    assert!(places.iter().take(1000).all(|place| {
        let right = sorted.range(*place);
        Index::range(&flex, *place) == right && full.range(*place) == right
    }));
    let mut scattered = Full::scattered(5000, &mut rng);
    insert(&mut scattered, &mut rng, 5000, 100);
    assert!((0..5100).map(|n| n * LENGTH).all(|place| {
        let leaf = scattered.leaf_of(place);
        leaf.entries[Full::index(leaf, place)][0] & LOW == place
    }));
    println!("lookup at random places");
    best(
        names,
        [&|| each(&flex, &places, Index::lookup), &|| each(&full, &places, Index::lookup), &|| {
            each(&sorted, &places, Index::lookup)
        }],
        places.len() as u64,
    );
    println!("range of {RANGE} extents at random places");
    best(
        names,
        [&|| each(&flex, &places, Index::range), &|| each(&full, &places, Index::range), &|| {
            each(&sorted, &places, Index::range)
        }],
        places.len() as u64,
    );
}
