//! Plots over numbers that were swept.
//!
//! A line has the points of one system that differ in the number along the axis and in nothing else: where two numbers were
//! swept, each value of one gives a plot over the other.

use super::plots::{Curve, Lines, Scale};
use super::{Words, apart, bytes, first, fullness, is_measured, rate, writes};
use crate::document::{Group, Row, Setting};
use crate::failure::Outcome;
use crate::numbers::real;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// A number that may be swept.
struct Axis {
    words: &'static str,
    of: fn(&Row) -> f64,
    /// Takes it out of a row: what is left tells lines apart.
    clear: fn(&mut Row),
    scale: Scale,
}

const AXES: [Axis; 6] = [
    Axis {
        words: "threads",
        of: |row| real(row.threads as u64),
        clear: |row| row.threads = 0,
        scale: Scale::Linear,
    },
    Axis {
        words: "requests in flight",
        of: |row| real((row.threads * row.depth) as u64),
        clear: |row| row.depth = 0,
        scale: Scale::Log,
    },
    Axis {
        words: "utilization in per cent",
        of: |row| row.utilization.unwrap_or(0.0) * 100.0,
        clear: |row| row.utilization = None,
        scale: Scale::Linear,
    },
    Axis {
        words: "per cent of operations that write",
        of: |row| row.write_share * 100.0,
        clear: |row| row.write_share = 0.0,
        scale: Scale::Linear,
    },
    Axis {
        words: "bytes of a value",
        of: |row| real(row.value_size),
        clear: |row| row.value_size = 0,
        scale: Scale::Log,
    },
    Axis {
        words: "requests per second asked for",
        of: |row| row.rate.unwrap_or(0.0),
        clear: |row| row.rate = None,
        scale: Scale::Linear,
    },
];

/// What tells plots of one workload apart.
const WORDS: [Words; 6] = [bytes, writes, threads, depth, fullness, rate];

fn threads(row: &Row) -> Option<String> {
    Some(if row.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", row.threads) })
}

fn depth(row: &Row) -> Option<String> {
    Some(format!("depth {}", row.depth))
}

/// One plot over each axis with several values, for each setting beside it.
pub(super) fn draw(shown: &[&Group<'_>], systems: &[String], body: &mut String) -> Outcome<()> {
    let mut section = String::new();
    for axis in &AXES {
        let mut families: BTreeMap<Setting, (Row, Vec<&Group<'_>>)> = BTreeMap::new();
        for group in shown.iter().filter(|group| is_measured(group)) {
            let Some(mut row) = first(group).cloned() else { continue };
            (axis.clear)(&mut row);
            let family = row.setting().of_any_system();
            families.entry(family).or_insert_with(|| (row, Vec::new())).1.push(group);
        }
        for (row, groups) in families.values() {
            let values: BTreeSet<u64> = groups
                .iter()
                .filter_map(|group| first(group))
                .map(|row| ((axis.of)(row) * 1000.0).to_bits())
                .collect();
            if values.len() < 2 {
                continue;
            }
            let name = apart(row, families.values().map(|(row, _)| row), &WORDS);
            let durability = row.durability.map(|found| found.to_string()).unwrap_or_default();
            for (what, figure) in [
                ("operations per second", (|row| row.ops_per_second) as fn(&Row) -> f64),
                ("p99 in microseconds", |row| row.p99_us),
            ] {
                let svg = Lines {
                    title: format!("{name}, {durability}: {what}"),
                    x: axis.words,
                    y: what,
                    x_scale: axis.scale,
                    y_scale: Scale::Linear,
                    curves: curves(groups, systems, axis, figure),
                }
                .draw()?;
                let _ = writeln!(section, "<div>{svg}</div>");
            }
        }
    }
    if !section.is_empty() {
        let _ = writeln!(body, "<h2>Sweeps</h2>\n<div class=\"plots\">{section}</div>");
    }
    Ok(())
}

fn curves(
    groups: &[&Group<'_>],
    systems: &[String],
    axis: &Axis,
    figure: fn(&Row) -> f64,
) -> Vec<Curve> {
    let mut curves = Vec::new();
    for (number, system) in systems.iter().enumerate() {
        let mut points: Vec<(f64, f64)> = groups
            .iter()
            .filter(|group| group.setting.system == *system)
            .filter_map(|group| Some(((axis.of)(first(group)?), group.spread(figure).median)))
            .collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        if !points.is_empty() {
            curves.push(Curve { name: system.clone(), color: number, points, dots: true });
        }
    }
    curves
}
