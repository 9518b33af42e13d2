//! What a run leaves: the machine, the options, one row for each phase of each cell.
//!
//! The JSON has one object per row, with the field names of the design (`system, workload, phase, threads, ops,
//! seconds, ops_per_second, p50_us, ...`). Fields are only ever added; a reader takes what it knows.

use crate::failure::{Failure, Outcome};
use crate::files;
use crate::machine::Machine;
use crate::numbers::micros;
use crate::statistics::Spread;
use crate::system::{Counters, Durability};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Version of the JSON's fields.
pub const FORMAT: u32 = 1;

/// A result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Document {
    /// [`FORMAT`] of the writer.
    pub format: u32,
    /// What the run is called.
    pub title: String,
    /// Version of the program.
    pub program: String,
    /// Seconds since 1970 when the run began.
    pub began_at: u64,
    /// Seconds that the run took.
    pub took_seconds: f64,
    /// Where it ran.
    pub machine: Machine,
    /// What was asked for, as in a configuration file.
    pub options: serde_json::Value,
    /// Each repetition of each phase.
    pub rows: Vec<Row>,
}

/// Figures of one kind of operation in a row.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each name says it")]
pub struct OperationFigures {
    pub ops: u64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
}

impl OperationFigures {
    /// Of latencies in nanoseconds.
    #[must_use]
    pub fn of(latencies: &Histogram<u64>) -> OperationFigures {
        let at = |quantile| micros(latencies.value_at_quantile(quantile));
        OperationFigures {
            ops: latencies.len(),
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
        }
    }
}

/// One phase of one cell. Absent figures are `None`, never 0.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    /// Name of the system, with its variant.
    pub system: String,
    /// Name of the workload.
    pub workload: String,
    /// `load`, `open`, `run`, `fill` or `recover`.
    pub phase: String,
    /// What an acknowledgement promised in this phase.
    pub durability: Option<Durability>,
    /// Threads of clients; servers: of the load.
    pub threads: usize,
    /// Clients of each thread.
    pub depth: usize,
    /// Records loaded.
    pub records: u64,
    /// Average bytes of a key.
    pub key_size: u64,
    /// Average bytes of a value.
    pub value_size: u64,
    /// Share of the operations that write, from 0 to 1.
    pub write_share: f64,
    /// Share of the capacity that live data were to take.
    pub utilization: Option<f64>,
    /// Operations per second that were asked for; latencies count from when each was due.
    pub rate: Option<f64>,
    /// Number of the repetition, from 0.
    pub repetition: u32,
    /// Operations.
    pub ops: u64,
    /// Length of the phase.
    pub seconds: f64,
    /// Their quotient.
    pub ops_per_second: f64,
    /// Mean latency.
    pub mean_us: f64,
    /// Latency percentiles, over all operations.
    pub p50_us: f64,
    /// See `p50_us`.
    pub p99_us: f64,
    /// See `p50_us`.
    pub p999_us: f64,
    /// Longest latency.
    pub max_us: f64,
    /// Bytes written to the device by whomever, by the kernel's count; none on tmpfs.
    pub device_write_bytes: Option<u64>,
    /// Bytes read from the device, likewise.
    pub device_read_bytes: Option<u64>,
    /// Flushes of the device, likewise.
    pub device_flushes: Option<u64>,
    /// Bytes that this process caused to be written, by the kernel's count.
    pub process_write_bytes: Option<u64>,
    /// Bytes that this process caused to be read.
    pub process_read_bytes: Option<u64>,
    /// Bytes of keys and values that clients wrote.
    pub user_bytes: u64,
    /// Bytes of values that clients read.
    pub user_read_bytes: u64,
    /// Bytes that the data take on the file system at the end of the phase.
    pub disk_bytes: Option<u64>,
    /// Resident memory at the end of the phase, in bytes.
    pub rss_bytes: u64,
    /// Of those, anonymous ones.
    pub anonymous_bytes: u64,
    /// CPU time of all threads.
    pub cpu_seconds: Option<f64>,
    /// For a million operations.
    pub cpu_seconds_per_million_ops: Option<f64>,
    /// Time of the sync after the phase.
    pub settle_seconds: f64,
    /// Persistent memory: cache lines flushed for each operation.
    pub pm_flushes_per_op: Option<f64>,
    /// Persistent memory: fences for each operation.
    pub pm_fences_per_op: Option<f64>,
    /// Persistent memory: blocks of 256 bytes written for each operation.
    pub pm_blocks_per_op: Option<f64>,
    /// What the system itself counted in this phase.
    pub counters: Counters,
    /// Each kind of operation alone.
    pub operations: BTreeMap<String, OperationFigures>,
    /// Latency in microseconds and the share of operations that took at most that.
    pub cdf: Vec<(f64, f64)>,
    /// Operations per second of each interval since the warm-up began.
    pub timeline: Vec<f64>,
    /// Length of the intervals.
    pub timeline_seconds: f64,
    /// Warm-up in front of the measured phase.
    pub warmup_seconds: f64,
    /// Load average of the machine when the phase ended: more than the clients' own means company.
    pub load_average: f64,
    /// How the system was set up.
    pub options: BTreeMap<String, String>,
    /// Why there are no figures.
    pub skipped: Option<String>,
}

/// What makes two rows repetitions of one thing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Setting {
    /// Workload.
    pub workload: String,
    /// Phase.
    pub phase: String,
    /// Durability, as text.
    pub durability: String,
    /// Numbers that differ within a sweep, as text: threads, depth, sizes, utilization, share of writes, rate.
    pub point: String,
    /// System; last, so that systems stand together.
    pub system: String,
}

impl Setting {
    /// The same of no system: equal for all that were measured in this setting.
    pub(crate) fn of_any_system(&self) -> Setting {
        Setting { system: String::new(), ..self.clone() }
    }
}

/// A share in percent, so exact that another setting is told from it, and no further: a share that was computed is not.
pub(crate) fn percent(share: f64) -> f64 {
    (share * 1e8).round() / 1e6
}

impl Row {
    /// Notes percentiles and curve of latencies in nanoseconds.
    pub fn note_latencies(&mut self, latencies: &Histogram<u64>) {
        if latencies.is_empty() {
            return;
        }
        let at = |quantile| micros(latencies.value_at_quantile(quantile));
        self.mean_us = latencies.mean() / 1e3;
        (self.p50_us, self.p99_us, self.p999_us) = (at(0.5), at(0.99), at(0.999));
        self.max_us = micros(latencies.max());
        let slow = [0.995, 0.999, 0.9995, 0.9999, 1.0];
        let shares = (1..100).map(|n| f64::from(n) / 100.0).chain(slow);
        self.cdf = shares.map(|share| (at(share), share)).collect();
    }

    /// What it is a repetition of.
    #[must_use]
    pub fn setting(&self) -> Setting {
        let mut point = format!("{}x{}", self.threads, self.depth);
        if let Some(utilization) = self.utilization {
            point += &format!(" full {} %", percent(utilization));
        }
        if let Some(rate) = self.rate {
            point += &format!(" rate {rate}");
        }
        point += &format!(
            " {}+{} B, {} records, {} % writes",
            self.key_size,
            self.value_size,
            self.records,
            percent(self.write_share)
        );
        Setting {
            workload: self.workload.clone(),
            phase: self.phase.clone(),
            durability: self.durability.map(|found| found.to_string()).unwrap_or_default(),
            point,
            system: self.system.clone(),
        }
    }
}

/// Repetitions of one setting.
#[derive(Clone, Debug)]
pub struct Group<'a> {
    /// What was repeated.
    pub setting: Setting,
    /// Each repetition that has figures.
    pub rows: Vec<&'a Row>,
    /// Why there are none, if so.
    pub skipped: Option<&'a str>,
}

impl Group<'_> {
    /// Spread of a figure.
    #[must_use]
    pub fn spread(&self, figure: impl Fn(&Row) -> f64) -> Spread {
        let values: Vec<f64> = self.rows.iter().map(|row| figure(row)).collect();
        Spread::of(&values)
    }

    /// Median of a figure, if every repetition has it.
    #[must_use]
    pub fn median(&self, figure: impl Fn(&Row) -> Option<f64>) -> Option<f64> {
        let values: Option<Vec<f64>> = self.rows.iter().map(|row| figure(row)).collect();
        values.filter(|values| !values.is_empty()).map(|values| crate::statistics::median(&values))
    }
}

impl Document {
    /// Rows by what they repeat: systems of one setting side by side, otherwise in the order in which they came.
    #[must_use]
    pub fn groups(&self) -> Vec<Group<'_>> {
        let mut groups: Vec<Group<'_>> = Vec::new();
        let mut places: BTreeMap<Setting, usize> = BTreeMap::new();
        for row in &self.rows {
            let setting = row.setting();
            let place = *places.entry(setting.clone()).or_insert_with(|| {
                groups.push(Group { setting, rows: Vec::new(), skipped: None });
                groups.len() - 1
            });
            if let Some(group) = groups.get_mut(place) {
                match &row.skipped {
                    Some(why) => group.skipped = Some(why),
                    None => group.rows.push(row),
                }
            }
        }
        let mut order: Vec<Setting> = Vec::new();
        // Those without figures come in front of their cell, and so say nothing of the order.
        let (with, without): (Vec<_>, Vec<_>) =
            groups.iter().partition(|group| !group.rows.is_empty());
        for group in with.into_iter().chain(without) {
            let setting = group.setting.of_any_system();
            if !order.contains(&setting) {
                order.push(setting);
            }
        }
        groups.sort_by_key(|group| {
            let setting = group.setting.of_any_system();
            order.iter().position(|other| *other == setting)
        });
        groups
    }

    /// Reads a document.
    ///
    /// # Errors
    /// What is no document, or of a newer format.
    pub fn read(path: &Path) -> Outcome<Document> {
        let text = files::read(path)?;
        let document: Document = serde_json::from_str(&text)
            .map_err(|error| Failure::from(error).during(path.display()))?;
        if document.format > FORMAT {
            return Err(Failure::new(format!(
                "{}: format {}, this program knows {FORMAT}",
                path.display(),
                document.format
            )));
        }
        Ok(document)
    }

    /// Writes it, one row a line.
    ///
    /// # Errors
    /// Those of the file.
    pub fn write(&self, path: &Path) -> Outcome<()> {
        let mut head = self.clone();
        head.rows.clear();
        let head = serde_json::to_string_pretty(&head)?;
        let head = head.trim_end().trim_end_matches('}').trim_end();
        let head = head.trim_end_matches("\"rows\": []").trim_end();
        let rows: Vec<String> =
            self.rows.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
        files::write(path, &format!("{head}\n  \"rows\": [\n{}\n]}}\n", rows.join(",\n")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn document(rows: Vec<Row>) -> Document {
        Document {
            format: FORMAT,
            title: "title".to_owned(),
            program: "esker".to_owned(),
            began_at: 1,
            took_seconds: 2.0,
            machine: Machine::default(),
            options: serde_json::json!({"records": 3}),
            rows,
        }
    }

    #[test]
    fn settings_that_differ_by_little_are_no_repetitions_of_each_other() {
        let rows = |change: fn(&mut Row, f64), values: [f64; 2]| {
            let row = |value| {
                let mut row = Row::default();
                change(&mut row, value);
                row
            };
            document(values.map(row).to_vec()).groups().len()
        };
        assert_eq!(rows(|row, share| row.write_share = share, [0.0, 0.004]), 2);
        assert_eq!(rows(|row, share| row.write_share = share, [0.3, 0.1 + 0.2]), 1);
        assert_eq!(rows(|row, full| row.utilization = Some(full), [0.946, 0.95]), 2);
        assert_eq!(rows(|row, rate| row.rate = Some(rate), [0.6, 1.0]), 2);
    }

    #[test]
    fn a_document_comes_back_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("result.json");
        let mut row = Row { system: "depot".to_owned(), ops: 7, ..Row::default() };
        row.durability = Some(Durability::Sync);
        row.cdf = vec![(1.5, 0.5), (2.5, 1.0)];
        for rows in [vec![], vec![row.clone()], vec![row.clone(), Row::default()]] {
            let written = document(rows);
            written.write(&path).unwrap();
            let read = Document::read(&path).unwrap();
            assert_eq!(
                serde_json::to_value(&read).unwrap(),
                serde_json::to_value(&written).unwrap()
            );
        }
    }

    #[test]
    fn rows_that_differ_in_their_repetition_only_are_one_group() {
        let row = |system: &str, threads, repetition| Row {
            system: system.to_owned(),
            threads,
            repetition,
            ops_per_second: f64::from(repetition) + 1.0,
            ..Row::default()
        };
        let skipped = Row { skipped: Some("why".to_owned()), ..row("c", 1, 0) };
        let written =
            document(vec![row("a", 1, 0), row("b", 1, 0), row("a", 1, 1), row("a", 2, 0), skipped]);
        let groups = written.groups();
        let found: Vec<(&str, usize)> =
            groups.iter().map(|group| (group.setting.system.as_str(), group.rows.len())).collect();
        assert_eq!(found, [("a", 2), ("b", 1), ("c", 0), ("a", 1)]);
        let rate = groups[0].spread(|row| row.ops_per_second);
        assert!((rate.median - 1.5).abs() < 1e-12);
        assert_eq!(groups[2].skipped, Some("why"));
    }
}
