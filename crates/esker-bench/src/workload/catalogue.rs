//! The workloads that have names.
//!
//! Sizes and mixes are those of the sources; `--key-size`, `--value-size`, `--distribution` and
//! `--write-ratio` put others in their place.

use super::distribution::{Distribution, THETA};
use super::shape::{KeyShape, ValueShape};
use super::{Kind, Mix, Operation, Order, Workload};
use crate::failure::{Failure, Outcome};
use Operation::{Insert, Read, ReadMissing, ReadModifyWrite, Scan, Update};
use std::path::PathBuf;

const ZIPFIAN: Distribution = Distribution::Zipfian { theta: THETA };
/// `db_bench`: keys of 16 bytes, values of 100.
const DB_BENCH: (KeyShape, ValueShape) = (KeyShape::Fixed(16), ValueShape::Fixed(100));
/// YCSB: ten fields of 100 bytes, kept as one value; an update writes it whole.
const YCSB: (KeyShape, ValueShape) = (KeyShape::Ycsb, ValueShape::Fixed(1000));
/// FlatStore §5 and PACMAN §4: keys of 8 bytes.
const KEY_8: KeyShape = KeyShape::Fixed(8);
/// Records of a scan in YCSB: 1 to 100.
const YCSB_SCAN: (u64, u64) = (1, 100);
/// Records of a scan in FlexDB's experiments (§6.3).
const FLEX_SCAN: (u64, u64) = (50, 50);

/// Facebook's average sizes of keys and values (FlexDB, table 3).
const FLEX_SIZES: [(&str, usize, u64); 3] =
    [("zippydb", 48, 43), ("udb", 27, 127), ("sys", 28, 396)];

fn workload(
    name: impl Into<String>,
    about: impl Into<String>,
    kind: Kind,
    distribution: Distribution,
    (keys, values): (KeyShape, ValueShape),
) -> Workload {
    let grows = matches!(&kind, Kind::Requests(mix) if mix.iter().any(|(operation, _)| *operation == Insert));
    let (name, about) = (name.into(), about.into());
    Workload { name, about, kind, distribution, keys, values, scan_length: YCSB_SCAN, grows }
}

fn requests(mix: &[(Operation, f64)]) -> Kind {
    Kind::Requests(Mix::from(mix))
}

/// Every named workload but traces.
#[must_use]
pub fn all() -> Vec<Workload> {
    let mut all = db_bench();
    all.extend(ycsb());
    all.extend(papers());
    all.extend(flex());
    let about = "opens a store whose process ended without closing it";
    all.push(workload("recovery", about, Kind::Recovery, Distribution::Uniform, DB_BENCH));
    all
}

/// The workload of a name; `trace:FILE` plays a file.
///
/// # Errors
/// Names that nobody knows, with those that there are.
pub fn named(name: &str) -> Outcome<Workload> {
    if let Some(file) = name.strip_prefix("trace:") {
        let kind = Kind::Trace(PathBuf::from(file));
        return Ok(workload(name, "a trace", kind, Distribution::Uniform, DB_BENCH));
    }
    let all = all();
    let names: Vec<&str> = all.iter().map(|workload| workload.name.as_str()).collect();
    let unknown =
        || Failure::new(format!("no workload {name}; there are {}, trace:FILE", names.join(", ")));
    all.iter().find(|workload| workload.name == name).cloned().ok_or_else(unknown)
}

/// Names that stand for several workloads.
#[must_use]
pub fn expand(name: &str) -> Vec<String> {
    let starting = |prefix: &str| -> Vec<String> {
        all()
            .into_iter()
            .map(|found| found.name)
            .filter(|found| found.starts_with(prefix))
            .collect()
    };
    match name {
        "ycsb" => starting("ycsb-"),
        "etc" => starting("etc-"),
        name => vec![name.to_owned()],
    }
}

/// LevelDB's and RocksDB's `db_bench`.
fn db_bench() -> Vec<Workload> {
    let fill = |name, about, order| {
        workload(name, about, Kind::Fill(order), Distribution::Uniform, DB_BENCH)
    };
    let ask = |name, about, distribution, mix| {
        workload(name, about, requests(mix), distribution, DB_BENCH)
    };
    let uniform = Distribution::Uniform;
    // A hundredth of the keys has all requests.
    let hot = Distribution::Hotspot { keys: 0.01, requests: 1.0 };
    let mut seek =
        ask("seekrandom", "a seek to a random key, which is read", uniform, &[(Scan, 1.0)]);
    seek.scan_length = (1, 1);
    let mut scan = ask("scan50", "scans of 50 from random keys", uniform, &[(Scan, 1.0)]);
    scan.scan_length = (50, 50);
    vec![
        fill("fillseq", "writes in key order", Order::Sequential),
        fill("fillrandom", "writes of random keys", Order::Random),
        ask("overwrite", "writes of random keys that exist", uniform, &[(Update, 1.0)]),
        ask("readrandom", "reads of random keys", uniform, &[(Read, 1.0)]),
        ask("readmissing", "reads of keys that do not exist", uniform, &[(ReadMissing, 1.0)]),
        ask("readhot", "reads of random keys of a hundredth of all", hot, &[(Read, 1.0)]),
        seek,
        scan,
    ]
}

/// The core workloads of YCSB (SoCC 2010), with the properties of its files `workloada` to `workloadf`.
fn ycsb() -> Vec<Workload> {
    let ask = |letter, about, distribution, mix| {
        workload(format!("ycsb-{letter}"), about, requests(mix), distribution, YCSB)
    };
    let latest = Distribution::Latest { theta: THETA };
    vec![
        workload("ycsb-load", "inserts every record", Kind::Fill(Order::Sequential), ZIPFIAN, YCSB),
        ask("a", "half reads, half updates, zipfian", ZIPFIAN, &[(Read, 0.5), (Update, 0.5)]),
        ask("b", "95 % reads, 5 % updates, zipfian", ZIPFIAN, &[(Read, 0.95), (Update, 0.05)]),
        ask("c", "reads only, zipfian", ZIPFIAN, &[(Read, 1.0)]),
        ask(
            "f",
            "half reads, half read-modify-writes, zipfian",
            ZIPFIAN,
            &[(Read, 0.5), (ReadModifyWrite, 0.5)],
        ),
        ask("d", "95 % reads, 5 % inserts, latest", latest, &[(Read, 0.95), (Insert, 0.05)]),
        ask(
            "e",
            "95 % scans of 1 to 100, 5 % inserts, zipfian",
            ZIPFIAN,
            &[(Scan, 0.95), (Insert, 0.05)],
        ),
    ]
}

/// FlatStore, PACMAN and uDepot.
fn papers() -> Vec<Workload> {
    let etc = |name, about, gets: f64| {
        let mix = [(Read, gets), (Update, 1.0 - gets)];
        workload(name, about, requests(&mix), ZIPFIAN, (KEY_8, ValueShape::Etc))
    };
    let pacman = (KEY_8, ValueShape::Fixed(48));
    let depot = (KeyShape::Varied { min: 8, max: 32 }, ValueShape::Fixed(4096));
    let uniform = Distribution::Uniform;
    vec![
        etc("etc-95", "Facebook's ETC pool, 95 % reads (FlatStore 5.2)", 0.95),
        etc("etc-50", "Facebook's ETC pool, half reads (FlatStore 5.2)", 0.5),
        etc("etc-0", "Facebook's ETC pool, writes only (FlatStore 5.2)", 0.0),
        workload(
            "flatstore-put",
            "writes of small values, zipfian (FlatStore 5.1)",
            requests(&[(Update, 1.0)]),
            ZIPFIAN,
            (KEY_8, ValueShape::Fixed(64)),
        ),
        workload(
            "pacman",
            "half reads, half writes of 48 bytes, zipfian (PACMAN 4.2)",
            requests(&[(Read, 0.5), (Update, 0.5)]),
            ZIPFIAN,
            pacman,
        ),
        workload(
            "udepot-put",
            "writes of 4 KiB, keys of 8 to 32 bytes (uDepot 5.2)",
            requests(&[(Update, 1.0)]),
            uniform,
            depot,
        ),
        workload(
            "udepot-get",
            "reads of 4 KiB, keys of 8 to 32 bytes (uDepot 5.2)",
            requests(&[(Read, 1.0)]),
            uniform,
            depot,
        ),
    ]
}

/// FlexDB §6.3: three sizes, three distributions, write, read and scan.
fn flex() -> Vec<Workload> {
    let distributions = [
        ("sequential", Distribution::Sequential),
        ("zipfian", ZIPFIAN),
        ("composite", Distribution::Composite { theta: THETA }),
    ];
    let mut all = Vec::new();
    for (size, key, value) in FLEX_SIZES {
        let shape = (KeyShape::Fixed(key), ValueShape::Fixed(value));
        for (name, distribution) in distributions {
            let order = match distribution {
                Distribution::Sequential => Order::Sequential,
                _ => Order::Distribution,
            };
            let about =
                |what: &str| format!("{what}, keys {key} B, values {value} B, {name} (FlexDB 6.3)");
            let one = |what: &str, words: &str, kind: Kind| {
                let mut one = workload(
                    format!("{size}-{what}-{name}"),
                    about(words),
                    kind,
                    distribution,
                    shape,
                );
                one.scan_length = FLEX_SCAN;
                one
            };
            all.push(one("write", "writes into an empty store", Kind::Fill(order)));
            all.push(one("read", "reads", requests(&[(Read, 1.0)])));
            all.push(one("scan", "scans of 50", requests(&[(Scan, 1.0)])));
        }
    }
    all
}
