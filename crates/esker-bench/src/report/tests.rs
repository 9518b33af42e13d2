//! Pages show every setting of a sweep.

use super::*;
use crate::document::FORMAT;
use crate::machine::Machine;
use crate::system::Durability;

fn row(change: impl FnOnce(&mut Row)) -> Row {
    let mut row = Row {
        system: "depot".to_owned(),
        workload: "put".to_owned(),
        phase: "run".to_owned(),
        durability: Some(Durability::Sync),
        threads: 2,
        depth: 1,
        records: 1000,
        key_size: 8,
        value_size: 64,
        write_share: 1.0,
        ops_per_second: 1000.0,
        cdf: vec![(1.0, 0.5), (2.0, 0.9), (3.0, 1.0)],
        timeline: vec![1.0; 5],
        timeline_seconds: 0.1,
        ..Row::default()
    };
    change(&mut row);
    row
}

/// The page, and how many plots each of its sections has.
fn plots(rows: Vec<Row>) -> (String, BTreeMap<String, usize>) {
    let document = Document {
        format: FORMAT,
        title: "title".to_owned(),
        program: "esker".to_owned(),
        began_at: 1,
        took_seconds: 2.0,
        machine: Machine::default(),
        options: serde_json::json!({}),
        rows,
    };
    let page = page(&document).unwrap();
    let sections = page.split("<h2>").skip(1).filter_map(|section| {
        let (name, rest) = section.split_once("</h2>")?;
        Some((name.to_owned(), rest.matches("<svg").count()))
    });
    let counts = sections.collect();
    (page, counts)
}

#[test]
fn what_differs_in_one_number_has_bars_and_curves_of_its_own() {
    type Set = fn(&mut Row, f64);
    let sweeps: [(Set, [f64; 2], [&str; 2]); 4] = [
        (|row, n| row.value_size = crate::numbers::whole(n), [8.0, 64.0], ["8 B", "64 B"]),
        (|row, n| row.write_share = n, [0.2, 0.8], ["20 % writes", "80 % writes"]),
        (|row, n| row.utilization = Some(n), [0.946, 0.95], ["94.6 % full", "95 % full"]),
        (|row, n| row.rate = Some(n), [0.6, 1.0], ["0.6 requests a second", "1 requests a second"]),
    ];
    for (set, values, words) in sweeps {
        let rows = values.map(|value| row(|row| set(row, value)));
        let (page, counts) = plots(rows.to_vec());
        let of = |name: &str| counts.get(name).copied().unwrap_or(0);
        assert_eq!((of("Latency"), of("Over time")), (2, 2), "{words:?}");
        let (_, bars) = page.split_once("<h2>Throughput</h2>").unwrap();
        let (bars, _) = bars.split_once("<h2>").unwrap();
        assert!(words.iter().all(|words| bars.contains(words)), "{words:?}");
    }
}

#[test]
fn a_line_joins_only_what_differs_in_its_axis() {
    let of = |threads: usize, value_size: u64| {
        row(|row| (row.threads, row.value_size) = (threads, value_size))
    };
    let (page, counts) = plots(vec![of(1, 8), of(2, 8), of(1, 64), of(2, 64)]);
    // Over threads for each size and over sizes for each number of threads: throughput and latency.
    assert_eq!(counts.get("Sweeps"), Some(&8));
    for title in ["put, 8 B", "put, 64 B", "put, 1 thread", "put, 2 threads"] {
        assert!(page.contains(title), "{title}");
    }
    let depths = |threads, depth| row(|row| (row.threads, row.depth) = (threads, depth));
    let (_, counts) = plots(vec![depths(1, 1), depths(1, 8), depths(2, 1), depths(2, 8)]);
    assert_eq!(counts.get("Sweeps"), Some(&8));
}
