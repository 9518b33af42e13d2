//! One result beside another: what differs by more than the noise that the older one measured.

use crate::document::{Document, Group, Row};
use crate::plan::FAILED;
use crate::statistics::{CONFIDENCE, Spread};
use std::fmt::Write as _;

/// Nothing is told of a difference below this share, however little the older repetitions differ among themselves: three
/// that agree by chance know nothing of the machine's next hour.
const DIFFERENCE_MIN: f64 = 0.01;

/// What one setting came to in both, in one figure.
#[derive(Clone, Debug)]
pub struct Compared {
    /// System, workload and the rest, in words.
    pub setting: String,
    /// Which figure: operations per second, or percentiles of latency where the rate is given.
    pub figure: &'static str,
    /// The figure in the older result.
    pub old: Spread,
    /// The figure in the newer one.
    pub new: Spread,
    /// Median of the 99th percentile of latency, older and newer.
    pub p99_us: (f64, f64),
}

impl Compared {
    /// Newer beside older.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.new.median / self.old.median
    }

    /// A value of the figure: latencies are small numbers.
    fn shown(&self, value: f64) -> String {
        if self.figure == "ops/s" { format!("{value:.0}") } else { format!("{value:.2}") }
    }

    /// Whether the newer median lies where the older repetitions say that noise may take it. With too few
    /// repetitions, nobody knows.
    #[must_use]
    pub fn agrees(&self) -> Option<bool> {
        self.old.per_cent().map(|_| self.old.contains(self.new.median))
    }
}

/// Two results.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// What differs in how they came about.
    pub warnings: Vec<String>,
    /// Settings that both have.
    pub both: Vec<Compared>,
    /// Settings that only the newer one has.
    pub new: Vec<String>,
    /// What the older one has and the newer one lacks: settings that it has no figures of, and repetitions that failed.
    pub lost: Vec<String>,
}

/// Compares two documents.
#[must_use]
pub fn compare(old: &Document, new: &Document) -> Comparison {
    let mut comparison = Comparison { warnings: warnings(old, new), ..Comparison::default() };
    let (old_groups, new_groups) = (old.groups(), new.groups());
    let words = |group: &Group<'_>| {
        let setting = &group.setting;
        format!(
            "{} {} {}, {}, {}",
            setting.system, setting.workload, setting.phase, setting.durability, setting.point
        )
    };
    let has = |group: &&Group<'_>| !group.rows.is_empty();
    for group in new_groups.iter().filter(has) {
        let other = old_groups.iter().filter(has).find(|other| other.setting == group.setting);
        let Some(other) = other else {
            comparison.new.push(format!("only new: {}", words(group)));
            continue;
        };
        let p99 = |group: &Group<'_>| group.spread(|row| row.p99_us).median;
        for (figure, of) in figures(group) {
            comparison.both.push(Compared {
                setting: words(group),
                figure,
                old: other.spread(of).widened(DIFFERENCE_MIN),
                new: group.spread(of),
                p99_us: (p99(other), p99(group)),
            });
        }
    }
    for group in old_groups.iter().filter(has) {
        if !new_groups.iter().filter(has).any(|other| other.setting == group.setting) {
            comparison.lost.push(format!("only old: {}", words(group)));
        }
    }
    let fails = |group: &&Group<'_>| group.skipped.is_some_and(|why| why.starts_with(FAILED));
    for group in new_groups.iter().filter(fails) {
        // What failed before is no change.
        if !old_groups.iter().filter(fails).any(|other| other.setting == group.setting) {
            let why = group.skipped.unwrap_or_default();
            comparison.lost.push(format!("{}: {why}", words(group)));
        }
    }
    comparison
}

type Figure = (&'static str, fn(&Row) -> f64);

/// What is held against the older result. Where requests come by the clock, as many are answered by a slow system as by a fast
/// one, and latencies tell them apart.
fn figures(group: &Group<'_>) -> &'static [Figure] {
    let by_the_clock = |row: &&Row| row.rate.is_some() && row.phase == "run";
    match group.rows.iter().any(by_the_clock) {
        true => &[("p50 us", |row| row.p50_us), ("p99 us", |row| row.p99_us)],
        false => &[("ops/s", |row| row.ops_per_second)],
    }
}

fn warnings(old: &Document, new: &Document) -> Vec<String> {
    let mut warnings = Vec::new();
    let (mut before, mut after) = (old.machine.clone(), new.machine.clone());
    let (load_before, load_after) = (before.load_average, after.load_average);
    (before.load_average, after.load_average) = (0.0, 0.0);
    if before != after {
        warnings
            .push("the machines differ: only ratios within each result mean something".to_owned());
    }
    if (load_before - load_after).abs() > 1.0 {
        warnings.push(format!(
            "the machine was not equally busy: load average {load_before:.1} and {load_after:.1}"
        ));
    }
    if old.options != new.options {
        warnings.push("the options differ".to_owned());
    }
    if old.program != new.program {
        warnings.push(format!("{} and {}", old.program, new.program));
    }
    warnings
}

impl Comparison {
    /// Settings whose medians are further apart than noise explains.
    pub fn differing(&self) -> impl Iterator<Item = &Compared> {
        self.both.iter().filter(|compared| compared.agrees() == Some(false))
    }

    /// In words: settings that differ first.
    #[must_use]
    pub fn words(&self) -> String {
        let mut text = String::new();
        for warning in &self.warnings {
            let _ = writeln!(text, "note: {warning}");
        }
        let _ = writeln!(
            text,
            "{:>7} {:>7} {:>12} {:>12} {:>9} {:>10} {:>10}  setting",
            "ratio", "figure", "old", "new", "noise", "old p99", "new p99"
        );
        let mut sorted: Vec<&Compared> = self.both.iter().collect();
        sorted.sort_by_key(|compared| compared.agrees() != Some(false));
        for compared in sorted {
            let verdict = match compared.agrees() {
                Some(true) => " ",
                Some(false) => "!",
                None => "?",
            };
            let _ = writeln!(
                text,
                "{verdict}{:>6.3} {:>7} {:>12} {:>12} {:>9} {:>10.1} {:>10.1}  {}",
                compared.ratio(),
                compared.figure,
                compared.shown(compared.old.median),
                compared.shown(compared.new.median),
                compared.old.words(),
                compared.p99_us.0,
                compared.p99_us.1,
                compared.setting
            );
        }
        for line in self.new.iter().chain(&self.lost) {
            let _ = writeln!(text, "{line}");
        }
        let known = self.both.iter().filter(|compared| compared.agrees().is_some()).count();
        let off = self.differing().count();
        let _ = writeln!(
            text,
            "{} of {known} figures lie within the noise of the older result; of those where nothing changed, \
             {:.0} in 100 do",
            known - off,
            CONFIDENCE * 100.0
        );
        text
    }

    /// Whether more settings differ than chance brings, something was lost, or there was nothing to compare: for an exit code.
    /// With n settings, chance brings a number that is binomial; more than its mean and three standard deviations is no chance.
    #[must_use]
    pub fn is_different(&self) -> bool {
        if self.both.is_empty() || !self.lost.is_empty() {
            return true;
        }
        let known = self.both.iter().filter(|compared| compared.agrees().is_some()).count();
        let n = crate::numbers::real(known as u64);
        let p = 1.0 - CONFIDENCE;
        let limit = n * p + 3.0 * (n * p * (1.0 - p)).sqrt();
        crate::numbers::real(self.differing().count() as u64) > limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::FORMAT;
    use crate::machine::Machine;

    fn document(systems: &[(&str, [f64; 3])]) -> Document {
        let row = |system: &str, repetition: usize, rate: f64| Row {
            system: system.to_owned(),
            repetition: u32::try_from(repetition).unwrap(),
            ops_per_second: rate,
            ..Row::default()
        };
        let rows = systems
            .iter()
            .flat_map(|(system, rates)| {
                rates.iter().enumerate().map(|(n, rate)| row(system, n, *rate))
            })
            .collect();
        Document {
            format: FORMAT,
            title: String::new(),
            program: String::new(),
            began_at: 0,
            took_seconds: 0.0,
            machine: Machine::default(),
            options: serde_json::Value::Null,
            rows,
        }
    }

    #[test]
    fn a_difference_beyond_noise_is_told() {
        let old = document(&[("a", [100.0, 102.0, 98.0]), ("b", [100.0, 101.0, 99.0])]);
        let new = document(&[("a", [101.0, 103.0, 99.0]), ("b", [60.0, 61.0, 59.0])]);
        let comparison = compare(&old, &new);
        let differing: Vec<&str> =
            comparison.differing().map(|compared| compared.setting.as_str()).collect();
        assert!(differing.len() == 1 && differing[0].starts_with('b'), "{differing:?}");
        assert!(comparison.words().contains("1 of 2 figures"));
        // One of two may be chance, one time in ten; two of two is not.
        assert!(!comparison.is_different());
        let slow = document(&[("a", [60.0, 61.0, 59.0]), ("b", [60.0, 61.0, 59.0])]);
        assert!(compare(&old, &slow).is_different());
        assert!(!compare(&old, &old).is_different());
    }

    #[test]
    fn under_a_rate_latencies_are_compared() {
        let by_the_clock = |p50: [f64; 3], p99: [f64; 3]| {
            let mut document = document(&[("a", [1000.0; 3])]);
            for (place, row) in document.rows.iter_mut().enumerate() {
                (row.rate, row.phase) = (Some(1000.0), "run".to_owned());
                (row.p50_us, row.p99_us) = (p50[place], p99[place]);
            }
            document
        };
        let old = by_the_clock([10.0, 10.1, 9.9], [50.0, 51.0, 49.0]);
        let new = by_the_clock([10.0, 10.1, 9.9], [500.0, 510.0, 490.0]);
        let comparison = compare(&old, &new);
        let figures: Vec<(&str, Option<bool>)> =
            comparison.both.iter().map(|one| (one.figure, one.agrees())).collect();
        assert_eq!(figures, [("p50 us", Some(true)), ("p99 us", Some(false))]);
        assert!(comparison.words().contains("500.00"), "{}", comparison.words());
        assert_eq!(compare(&old, &old).differing().count(), 0);
        // What was loaded before was not loaded by the clock.
        let mut loads = old.clone();
        loads.rows.iter_mut().for_each(|row| row.phase = "load".to_owned());
        assert_eq!(compare(&loads, &loads).both[0].figure, "ops/s");
    }

    #[test]
    fn repetitions_that_agree_by_chance_make_no_difference_of_a_hair() {
        let old = document(&[("a", [1000.0, 1000.1, 999.9])]);
        let alike = document(&[("a", [1005.0, 1005.1, 1004.9])]);
        let other = document(&[("a", [1050.0, 1050.1, 1049.9])]);
        assert_eq!(compare(&old, &alike).both[0].agrees(), Some(true));
        assert_eq!(compare(&old, &other).both[0].agrees(), Some(false));
    }

    #[test]
    fn what_only_one_result_has_is_told() {
        let old = document(&[("a", [1.0, 1.0, 1.0])]);
        let mut new = document(&[("b", [1.0, 1.0, 1.0])]);
        new.machine.kernel = "another".to_owned();
        let comparison = compare(&old, &new);
        assert_eq!(comparison.both.len(), 0);
        assert_eq!((comparison.new.len(), comparison.lost.len()), (1, 1));
        assert!(comparison.warnings[0].contains("machines differ"));
    }

    #[test]
    fn what_the_newer_result_lacks_is_a_difference() {
        let [a, b] = [("a", [1.0, 1.0, 1.0]), ("b", [1.0, 1.0, 1.0])];
        let (one, both) = (document(&[a]), document(&[a, b]));
        assert!(compare(&both, &one).is_different());
        // What the older one lacks is none.
        assert!(!compare(&one, &both).is_different());
        assert!(compare(&one, &document(&[b])).is_different());
        let nothing = document(&[]);
        assert!(compare(&nothing, &nothing).is_different());
        let failing = |place: usize| {
            let mut failing = both.clone();
            failing.rows[place].skipped = Some(format!("{FAILED}no space"));
            failing
        };
        let comparison = compare(&both, &failing(4));
        assert!(comparison.is_different() && comparison.words().contains("no space"));
        // It failed before, too.
        assert!(!compare(&failing(3), &failing(4)).is_different());
    }
}
