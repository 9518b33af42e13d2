//! A result as one page: tables and plots, in one file that needs nothing else.
//!
//! Plots are SVG of `plotters`, drawn from medians: throughput for each workload; throughput over whatever was swept
//! (threads, requests in flight, utilization, share of writes, size of values, rate); latency curves; and, for
//! settings where space is short, throughput over time. Each setting that was measured has bars and a curve of latencies of its
//! own, whatever was swept.

mod plots;
mod sweeps;

use crate::document::{Document, Group, Row, Setting, percent};
use crate::failure::Outcome;
use crate::numbers::real;
use plots::{Bars, Curve, Lines, Scale};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// The page.
///
/// # Errors
/// Those of the plotting library.
pub fn page(document: &Document) -> Outcome<String> {
    let groups: Vec<Group<'_>> = document.groups();
    let shown: Vec<&Group<'_>> = groups
        .iter()
        .filter(|group| !group.rows.is_empty() && group.setting.phase != "open")
        .collect();
    let systems: Vec<String> = {
        // In the order in which they were asked for, so that colours are the same in every report of a plan.
        let asked = document.options.get("systems").and_then(|systems| systems.as_array());
        let asked = asked.into_iter().flatten().filter_map(|name| name.as_str()).map(str::to_owned);
        let mut seen: Vec<String> =
            asked.filter(|name| shown.iter().any(|group| group.setting.system == *name)).collect();
        for group in &shown {
            if !seen.contains(&group.setting.system) {
                seen.push(group.setting.system.clone());
            }
        }
        seen
    };
    let mut body = String::new();
    head(document, &mut body);
    throughput(&shown, &systems, &mut body)?;
    sweeps::draw(&shown, &systems, &mut body)?;
    latencies(&shown, &systems, &mut body)?;
    over_time(&shown, &systems, &mut body)?;
    table(&groups, &mut body);
    options(document, &mut body);
    let title = escape(&document.title);
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <style>{STYLE}</style></head>\n<body><main>\n{body}</main></body></html>\n"
    ))
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;color:#1a1a1a;background:#fff;margin:0}\
main{max-width:1120px;margin:0 auto;padding:24px}h1{font-size:26px}h2{font-size:20px;margin-top:40px;\
border-bottom:1px solid #ddd}h3{font-size:16px}table{border-collapse:collapse;font-size:13px;\
font-variant-numeric:tabular-nums}th,td{padding:3px 9px;text-align:right;border-bottom:1px solid #eee;\
white-space:nowrap}th:first-child,td:first-child{text-align:left}th{background:#f4f4f4;position:sticky;top:0}\
.wide{overflow-x:auto}.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(520px,1fr));gap:16px}\
.plots svg,.one svg{width:100%;height:auto}dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px}\
dt{color:#666}dd{margin:0}.why{color:#a33}";

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn head(document: &Document, body: &mut String) {
    let _ = write!(body, "<h1>{}</h1>\n<dl>", escape(&document.title));
    let about = document.options.get("about").and_then(|about| about.as_str()).unwrap_or_default();
    let mut pairs = vec![("program".to_owned(), document.program.clone())];
    if !about.is_empty() {
        pairs.insert(0, ("shows".to_owned(), about.to_owned()));
    }
    pairs.extend(document.machine.words());
    let most = document.rows.iter().map(|row| row.load_average).fold(0.0, f64::max);
    pairs.push(("highest load average".to_owned(), format!("{most:.1}")));
    pairs.push(("began".to_owned(), format!("{} s after 1970", document.began_at)));
    pairs.push(("took".to_owned(), format!("{:.0} s", document.took_seconds)));
    for (name, value) in pairs {
        let _ = write!(body, "<dt>{}</dt><dd>{}</dd>", escape(&name), escape(&value));
    }
    body.push_str("</dl>\n");
}

/// What a plot is about beside workloads: durability and clients, in words.
fn place(group: &Group<'_>) -> (String, String) {
    (group.setting.durability.clone(), clients(group))
}

fn first<'a>(group: &Group<'a>) -> Option<&'a Row> {
    group.rows.first().copied()
}

fn clients(group: &Group<'_>) -> String {
    let Some(row) = first(group) else { return String::new() };
    let mut words = match (row.threads, row.depth) {
        (1, 1) => "1 client".to_owned(),
        (threads, 1) => format!("{threads} threads"),
        (threads, depth) => format!("{threads} threads with {depth} clients each"),
    };
    for more in [fullness(row), rate(row)].into_iter().flatten() {
        words += ", ";
        words += &more;
    }
    words
}

fn fullness(row: &Row) -> Option<String> {
    row.utilization.map(|share| format!("{} % full", percent(share)))
}

fn rate(row: &Row) -> Option<String> {
    row.rate.map(|rate| format!("{rate} requests a second"))
}

fn bytes(row: &Row) -> Option<String> {
    Some(format!("{} B", row.value_size))
}

fn writes(row: &Row) -> Option<String> {
    Some(format!("{} % writes", percent(row.write_share)))
}

type Words = fn(&Row) -> Option<String>;

/// The workload of `row`, and those of `words` that are not alike in all rows `among` which have that workload.
fn apart<'a>(row: &Row, among: impl Iterator<Item = &'a Row> + Clone, words: &[Words]) -> String {
    let mut name = row.workload.clone();
    for words in words {
        let (mut others, own) = (among.clone(), words(row));
        if others.any(|other| other.workload == row.workload && words(other) != own) {
            name += ", ";
            name += &own.unwrap_or_default();
        }
    }
    name
}

/// What a group is called among those that have the same durability and clients.
fn label(group: &Group<'_>, shown: &[&Group<'_>]) -> String {
    let measured = shown.iter().filter(|group| is_measured(group));
    let among = measured.filter_map(|group| first(group));
    first(group).map(|row| apart(row, among, &[bytes, writes])).unwrap_or_default()
}

/// Of each setting that clients measured the first group, whatever its system.
fn settings<'a>(shown: &[&'a Group<'a>]) -> Vec<&'a Group<'a>> {
    let mut seen = BTreeSet::new();
    let measured = shown.iter().copied().filter(|group| is_measured(group));
    measured.filter(|group| seen.insert(group.setting.of_any_system())).collect()
}

/// The group of a system in the setting of another one's.
fn beside<'a>(group: &Group<'_>, system: &str, shown: &[&'a Group<'a>]) -> Option<&'a Group<'a>> {
    let setting = Setting { system: system.to_owned(), ..group.setting.clone() };
    shown.iter().copied().find(|other| other.setting == setting)
}

/// One bar plot for each durability and number of clients: workloads beside one another, a bar for each system.
fn throughput(shown: &[&Group<'_>], systems: &[String], body: &mut String) -> Outcome<()> {
    /// Letters of a plot's width.
    const LETTERS: usize = 132;
    let mut plots: Vec<((String, String), Vec<&Group<'_>>)> = Vec::new();
    for group in settings(shown) {
        let place = place(group);
        match plots.iter_mut().find(|(other, _)| *other == place) {
            Some((_, groups)) => groups.push(group),
            None => plots.push((place, vec![group])),
        }
    }
    body.push_str("<h2>Throughput</h2>\n<p>Medians; the thin line spans the repetitions.</p>\n");
    for ((durability, point), groups) in plots {
        let longest = groups.iter().map(|group| label(group, shown).len()).max().unwrap_or(0);
        // A plot has room for so many groups of bars, with their names below.
        let per_plot = (60 / systems.len().max(1)).min(LETTERS / (longest + 2)).clamp(1, 8);
        for groups in groups.chunks(per_plot) {
            let bars = groups.iter().map(|group| {
                let of = |system: &String| {
                    let found = beside(group, system, shown)?;
                    Some(found.spread(|row| row.ops_per_second))
                };
                (label(group, shown), systems.iter().map(of).collect())
            });
            let title = format!("operations per second, durability {durability}, {point}");
            let bars = Bars { title, systems: systems.to_vec(), groups: bars.collect() };
            let _ = writeln!(body, "<div class=\"one\">{}</div>", bars.draw()?);
        }
    }
    Ok(())
}

/// Rows that clients measured, as against loads and opens.
fn is_measured(group: &Group<'_>) -> bool {
    matches!(group.setting.phase.as_str(), "run" | "fill")
}

/// Latency curves: one plot for each setting, a curve for each system, of the repetition in the middle.
fn latencies(shown: &[&Group<'_>], systems: &[String], body: &mut String) -> Outcome<()> {
    let mut section = String::new();
    for group in settings(shown) {
        let mut curves = Vec::new();
        for (number, system) in systems.iter().enumerate() {
            let Some(row) = beside(group, system, shown).and_then(middle) else { continue };
            let points: Vec<(f64, f64)> = row
                .cdf
                .iter()
                .filter(|(micros, share)| *micros > 0.0 && *share < 1.0)
                .map(|(micros, share)| (*micros, 1.0 / (1.0 - share)))
                .collect();
            if points.len() > 1 {
                curves.push(Curve { name: system.clone(), color: number, points, dots: false });
            }
        }
        if curves.is_empty() {
            continue;
        }
        let (durability, point) = place(group);
        let title = format!("{}, {durability}, {point}", label(group, shown));
        let (x, y) = ("latency in microseconds", "share of operations below");
        let svg =
            Lines { title, x, y, x_scale: Scale::Log, y_scale: Scale::Nines, curves }.draw()?;
        let _ = writeln!(section, "<div>{svg}</div>");
    }
    if !section.is_empty() {
        let _ = writeln!(
            body,
            "<h2>Latency</h2>\n<p>Which share of operations took at most that long. The axis stretches the slow end: \
             90 %, 99 %, 99.9 % are equally far apart. To the left is better.</p>\n<div class=\"plots\">{section}</div>"
        );
    }
    Ok(())
}

/// The repetition whose throughput is the median, or next to it.
fn middle<'a>(group: &Group<'a>) -> Option<&'a Row> {
    let mut rows = group.rows.clone();
    rows.sort_by(|one, other| one.ops_per_second.total_cmp(&other.ops_per_second));
    rows.get(rows.len() / 2).copied()
}

/// Throughput over time: of every setting whose space is short, else of the first few that write.
fn over_time(shown: &[&Group<'_>], systems: &[String], body: &mut String) -> Outcome<()> {
    /// Plots, at most, of settings where nothing is expected to change.
    const OTHERS_MAX: usize = 6;
    let mut section = String::new();
    let mut others = 0;
    for group in settings(shown) {
        let rows = systems.iter().enumerate().filter_map(|(number, system)| {
            Some((number, system, beside(group, system, shown).and_then(middle)?))
        });
        let changes = |row: &Row| row.timeline.len() >= 4 && row.write_share > 0.0;
        let Some((_, _, row)) = rows.clone().find(|(_, _, row)| changes(row)) else { continue };
        if row.utilization.is_none() {
            others += 1;
            if others > OTHERS_MAX {
                continue;
            }
        }
        let mut curves = Vec::new();
        for (number, system, row) in rows {
            let points = row.timeline.iter().enumerate();
            let points = points
                .map(|(n, rate)| ((real(n as u64) + 0.5) * row.timeline_seconds, *rate))
                .collect();
            curves.push(Curve { name: system.clone(), color: number, points, dots: false });
        }
        let (durability, point) = place(group);
        let (name, warmup) = (label(group, shown), row.warmup_seconds);
        let title = format!("{name}, {durability}, {point} (warm-up {warmup:.1} s)");
        let (x, y) = ("seconds", "operations per second");
        let svg =
            Lines { title, x, y, x_scale: Scale::Linear, y_scale: Scale::Linear, curves }.draw()?;
        let _ = writeln!(section, "<div>{svg}</div>");
    }
    if !section.is_empty() {
        let _ = writeln!(
            body,
            "<h2>Over time</h2>\n<p>Cleaning and compaction show here.</p>\n<div class=\"plots\">{section}</div>"
        );
    }
    Ok(())
}

fn table(groups: &[Group<'_>], body: &mut String) {
    body.push_str(
        "<h2>All figures</h2>\n<p>Medians of the repetitions. The spread is where the median of as many further \
         repetitions lies, 19 times of 20, if nothing changes but noise. Device bytes are the kernel's count for the \
         whole device, process bytes its count for the system's process.</p>\n<div class=\"wide\"><table><tr>",
    );
    let heads = [
        "workload",
        "system",
        "phase",
        "durability",
        "point",
        "runs",
        "ops/s",
        "spread",
        "min",
        "max",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "CPU s/Mop",
        "device W/user",
        "process W/user",
        "device R/op B",
        "RSS MiB",
        "anonymous MiB",
        "disk MiB",
        "settle s",
    ];
    for head in heads {
        let _ = write!(body, "<th>{head}</th>");
    }
    body.push_str("</tr>\n");
    for group in groups {
        let setting = &group.setting;
        let _ = write!(
            body,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>",
            escape(&setting.workload),
            escape(&setting.system),
            escape(&setting.phase),
            escape(&setting.durability),
            escape(&setting.point)
        );
        if group.rows.is_empty() {
            let why = escape(group.skipped.unwrap_or_default());
            let _ = writeln!(body, "<td class=\"why\" colspan=\"16\">{why}</td></tr>");
            continue;
        }
        for cell in cells(group) {
            let _ = write!(body, "<td>{cell}</td>");
        }
        body.push_str("</tr>\n");
    }
    body.push_str("</table></div>\n");
}

fn cells(group: &Group<'_>) -> Vec<String> {
    let rate = group.spread(|row| row.ops_per_second);
    let median = |figure: fn(&Row) -> Option<f64>, digits: usize| match group.median(figure) {
        Some(value) => format!("{value:.digits$}"),
        None => "-".to_owned(),
    };
    let spread = rate.words();
    let mib = |bytes: u64| Some(real(bytes) / real(1 << 20));
    vec![
        rate.count.to_string(),
        format!("{:.0}", rate.median),
        spread,
        format!("{:.0}", rate.minimum),
        format!("{:.0}", rate.maximum),
        median(|row| Some(row.p50_us), 1),
        median(|row| Some(row.p99_us), 1),
        median(|row| Some(row.p999_us), 1),
        median(|row| row.cpu_seconds_per_million_ops, 2),
        median(|row| per_user(row, row.device_write_bytes), 2),
        median(|row| per_user(row, row.process_write_bytes), 2),
        median(|row| Some(real(row.device_read_bytes?) / real(row.ops.max(1))), 0),
        median(|row| Some(real(row.rss_bytes) / real(1 << 20)), 0),
        median(|row| Some(real(row.anonymous_bytes) / real(1 << 20)), 0),
        match group.median(|row| mib(row.disk_bytes?)) {
            Some(value) => format!("{value:.0}"),
            None => "-".to_owned(),
        },
        median(|row| Some(row.settle_seconds), 3),
    ]
}

fn per_user(row: &Row, bytes: Option<u64>) -> Option<f64> {
    (row.user_bytes > 0).then_some(real(bytes?) / real(row.user_bytes))
}

/// How each system was set up, and what was asked for.
fn options(document: &Document, body: &mut String) {
    body.push_str("<h2>Options</h2>\n<dl>");
    if let Some(options) = document.options.as_object() {
        for (name, value) in options.iter().filter(|(_, value)| !value.is_null()) {
            let value = value.to_string();
            let _ = write!(body, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(&value));
        }
    }
    body.push_str("</dl>\n");
    let mut seen: BTreeMap<(String, String), &BTreeMap<String, String>> = BTreeMap::new();
    for row in document.rows.iter().filter(|row| !row.options.is_empty()) {
        let durability = row.durability.map(|found| found.to_string()).unwrap_or_default();
        seen.entry((row.system.clone(), durability)).or_insert(&row.options);
    }
    for ((system, durability), options) in seen {
        let _ = write!(body, "<h3>{}, {}</h3>\n<dl>", escape(&system), escape(&durability));
        for (name, value) in options {
            let _ = write!(body, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
        }
        body.push_str("</dl>\n");
    }
}

#[cfg(test)]
mod tests;
