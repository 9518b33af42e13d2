//! Results on a terminal: progress while it runs, a table when it is done.

use crate::failure::Failure;
use crate::output::tell;
use esker_bench::document::{Document, Group};
use esker_bench::runner::Event;
use esker_bench::system::Durability;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const TEMPLATE: &str = "{prefix} {wide_msg} {bar:24} {eta}";

/// A line on standard error that says which cell runs and how fast; nothing if that is no terminal.
pub(crate) struct Live {
    bar: ProgressBar,
    what: String,
}

impl Live {
    pub(crate) fn new() -> Live {
        let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
        // The template is a constant; a test makes sure that it is valid.
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style);
        }
        Live { bar, what: String::new() }
    }

    pub(crate) fn hear(&mut self, cell: usize, cells: usize, event: &Event) {
        self.bar.set_prefix(format!("[{}/{cells}]", cell + 1));
        match event {
            Event::Begin { what, all, timed: _ } => {
                self.bar.reset();
                self.bar.set_length(*all);
                self.bar.set_message(what.clone());
                self.what.clone_from(what);
            }
            Event::Progress { done, rate } => {
                self.bar.set_position(*done);
                self.bar.set_message(format!("{} {rate:.0}/s", self.what));
            }
            Event::Row(_) => {}
        }
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Prints medians with their spread, and what was left out.
pub(crate) fn table(document: &Document) -> Result<(), Failure> {
    tell(&words(document).join("\n"))
}

fn words(document: &Document) -> Vec<String> {
    let mut lines: Vec<String> = document
        .machine
        .words()
        .into_iter()
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    let groups = document.groups();
    let shown = |group: &&Group<'_>| group.setting.phase != "open" && !group.rows.is_empty();
    let mut point = String::new();
    for group in groups.iter().filter(shown) {
        let setting = &group.setting;
        let title = format!(
            "\n{} {}, {}, {}",
            setting.workload, setting.phase, setting.durability, setting.point
        );
        if title != point {
            lines.push(title.clone());
            lines.push(format!(
                "  {:<20} {:>12} {:>9} {:>10} {:>10} {:>10} {:>8} {:>9} {:>10}",
                "system",
                "ops/s",
                "+-",
                "p50 us",
                "p99 us",
                "p99.9 us",
                "W/user",
                "RSS MiB",
                "CPU s/Mop"
            ));
            point = title;
        }
        lines.push(line(group));
    }
    let weaker: Vec<String> = weaker(&groups);
    if !weaker.is_empty() {
        lines.push("\nnothing is durable, whatever was asked for".to_owned());
        lines.extend(weaker);
    }
    let skipped = groups.iter().filter_map(|group| Some((group, group.skipped?)));
    let skipped: Vec<String> = skipped
        .map(|(group, why)| format!("  {} {}: {why}", group.setting.system, group.setting.workload))
        .collect();
    if !skipped.is_empty() {
        lines.push("\nleft out".to_owned());
        lines.extend(skipped);
    }
    lines.push(format!(
        "\n+-: the median of as many further repetitions lies within, 19 times of 20, if nothing changes but \
         noise; needs 3 repetitions. W/user: bytes that the system's process caused to be written, by the kernel's \
         count, beside bytes of keys and values written; the JSON has the whole device's count, too. {:.0} s",
        document.took_seconds
    ));
    lines
}

/// Systems that keep none of the promise that their line stands under, each once.
fn weaker(groups: &[Group<'_>]) -> Vec<String> {
    let mut lines = Vec::new();
    for row in groups.iter().flat_map(|group| &group.rows) {
        let asked = row.durability.filter(|asked| *asked != Durability::None);
        let said = row.options.get("durability").filter(|said| said.starts_with("none"));
        if let (Some(asked), Some(said)) = (asked, said) {
            let line = format!("  {} {asked}: {said}", row.system);
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
    lines
}

fn line(group: &Group<'_>) -> String {
    let rate = group.spread(|row| row.ops_per_second);
    let median = |figure: fn(&esker_bench::document::Row) -> f64| group.spread(figure).median;
    let optional = |value: Option<f64>, digits: usize| match value {
        Some(value) => format!("{value:.digits$}"),
        None => "-".to_owned(),
    };
    let written = group.median(|row| {
        // The device has other writers. Where there is no device, the kernel counts nothing.
        let bytes = row.process_write_bytes.filter(|bytes| *bytes > 0)?;
        (row.user_bytes > 0).then(|| bytes as f64 / row.user_bytes as f64)
    });
    format!(
        "  {:<20} {:>12.0} {:>9} {:>10.1} {:>10.1} {:>10.1} {:>8} {:>9.0} {:>10}",
        group.setting.system,
        rate.median,
        rate.words(),
        median(|row| row.p50_us),
        median(|row| row.p99_us),
        median(|row| row.p999_us),
        optional(written, 2),
        median(|row| row.rss_bytes as f64 / f64::from(1 << 20)),
        optional(group.median(|row| row.cpu_seconds_per_million_ops), 2)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_bench::document::{FORMAT, Row};
    use esker_bench::machine::Machine;

    fn shown(row: Row) -> String {
        let document = Document {
            format: FORMAT,
            title: String::new(),
            program: String::new(),
            began_at: 0,
            took_seconds: 0.0,
            machine: Machine::default(),
            options: serde_json::Value::Null,
            rows: vec![row],
        };
        words(&document).join("\n")
    }

    #[test]
    fn bytes_written_are_those_of_the_process() {
        let row = |process, device| Row {
            user_bytes: 100,
            process_write_bytes: process,
            device_write_bytes: device,
            ..Row::default()
        };
        let text = shown(row(Some(150), Some(77_700)));
        assert!(text.contains(" 1.50 ") && !text.contains("777"), "{text}");
        for none in [None, Some(0)] {
            assert!(!shown(row(none, Some(77_700))).contains("777"), "the device is everybody's");
        }
    }

    #[test]
    fn who_keeps_no_promise_is_told() {
        let row = |durability, said: &str| Row {
            system: "flat".to_owned(),
            durability: Some(durability),
            options: [("durability".to_owned(), said.to_owned())].into(),
            ..Row::default()
        };
        let text = shown(row(Durability::Sync, "none: emulated"));
        assert!(text.contains("nothing is durable") && text.contains("flat sync: none: emulated"));
        for (durability, said) in [(Durability::Sync, "sync"), (Durability::None, "none")] {
            assert!(!shown(row(durability, said)).contains("nothing is durable"));
        }
    }

    #[test]
    fn the_line_has_a_valid_form() {
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
    }
}
