//! A result as one page: tables and plots, in one file that needs nothing else.
//!
//! Plots are SVG of `plotters`, drawn from medians: throughput for each workload; throughput over whatever was swept
//! (threads, requests in flight, utilization, share of writes, size of values, rate); latency curves; and, for
//! settings where space is short, throughput over time.

mod plots;

use crate::document::{Document, Group, Row};
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
    sweeps(&shown, &systems, &mut body)?;
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

/// What a section of plots is about: durability and point, in words.
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
    if let Some(utilization) = row.utilization {
        words += &format!(", {:.0} % full", utilization * 100.0);
    }
    if let Some(rate) = row.rate {
        words += &format!(", {rate:.0} requests a second");
    }
    words
}

/// One bar plot for each durability and point: workloads beside one another, a bar for each system.
fn throughput(shown: &[&Group<'_>], systems: &[String], body: &mut String) -> Outcome<()> {
    let mut places: Vec<(String, String)> = Vec::new();
    for group in shown.iter().filter(|group| is_measured(group)) {
        if !places.contains(&place(group)) {
            places.push(place(group));
        }
    }
    body.push_str("<h2>Throughput</h2>\n<p>Medians; the thin line spans the repetitions.</p>\n");
    for (durability, point) in places {
        let here: Vec<&&Group<'_>> = shown
            .iter()
            .filter(|group| is_measured(group))
            .filter(|group| place(group) == (durability.clone(), point.clone()))
            .collect();
        let mut names: Vec<String> = Vec::new();
        for group in &here {
            if !names.contains(&label(group)) {
                names.push(label(group));
            }
        }
        // A plot has room for so many groups of bars.
        let per_plot = (60 / systems.len().max(1)).clamp(1, 8);
        for names in names.chunks(per_plot) {
            let bars = names
                .iter()
                .map(|name| {
                    let of = |system: &String| {
                        here.iter()
                            .find(|group| group.setting.system == *system && label(group) == *name)
                            .map(|group| group.spread(|row| row.ops_per_second))
                    };
                    (name.clone(), systems.iter().map(of).collect())
                })
                .collect();
            let title = format!("operations per second, durability {durability}, {point}");
            let svg = Bars { title, systems: systems.to_vec(), groups: bars }.draw()?;
            let _ = writeln!(body, "<div class=\"one\">{svg}</div>");
        }
    }
    Ok(())
}

/// Rows that clients measured, as against loads and opens.
fn is_measured(group: &Group<'_>) -> bool {
    matches!(group.setting.phase.as_str(), "run" | "fill")
}

fn label(group: &Group<'_>) -> String {
    group.setting.workload.clone()
}

/// A number that may be swept.
struct Axis {
    words: &'static str,
    of: fn(&Row) -> f64,
    scale: Scale,
}

const AXES: [Axis; 6] = [
    Axis { words: "threads", of: |row| real(row.threads as u64), scale: Scale::Linear },
    Axis {
        words: "requests in flight",
        of: |row| real((row.threads * row.depth) as u64),
        scale: Scale::Log,
    },
    Axis {
        words: "utilization in per cent",
        of: |row| row.utilization.unwrap_or(0.0) * 100.0,
        scale: Scale::Linear,
    },
    Axis {
        words: "per cent of operations that write",
        of: |row| row.write_share * 100.0,
        scale: Scale::Linear,
    },
    Axis { words: "bytes of a value", of: |row| real(row.value_size), scale: Scale::Log },
    Axis {
        words: "requests per second asked for",
        of: |row| row.rate.unwrap_or(0.0),
        scale: Scale::Linear,
    },
];

/// One plot over each axis with several values, for each workload and durability.
fn sweeps(shown: &[&Group<'_>], systems: &[String], body: &mut String) -> Outcome<()> {
    let mut section = String::new();
    for axis in &AXES {
        let mut families: BTreeMap<(String, String), Vec<&Group<'_>>> = BTreeMap::new();
        for group in shown.iter().filter(|group| is_measured(group)) {
            let family = (group.setting.workload.clone(), group.setting.durability.clone());
            families.entry(family).or_default().push(group);
        }
        // Threads times depth is the axis of depth; where only threads change, it says nothing new.
        let depths: BTreeSet<usize> =
            shown.iter().filter_map(|group| Some(first(group)?.depth)).collect();
        if axis.words == "requests in flight" && depths.len() < 2 {
            continue;
        }
        if axis.words == "threads" && depths.len() > 1 {
            continue;
        }
        for ((workload, durability), groups) in families {
            let values: BTreeSet<u64> = groups
                .iter()
                .filter_map(|group| first(group))
                .map(|row| ((axis.of)(row) * 1000.0).to_bits())
                .collect();
            if values.len() < 2 {
                continue;
            }
            for (what, figure) in
                [("operations per second", rate as fn(&Row) -> f64), ("p99 in microseconds", p99)]
            {
                let curves = curves(&groups, systems, axis, figure);
                let title = format!("{workload}, {durability}: {what}");
                let svg = Lines {
                    title,
                    x: axis.words,
                    y: what,
                    x_scale: axis.scale,
                    y_scale: Scale::Linear,
                    curves,
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

fn rate(row: &Row) -> f64 {
    row.ops_per_second
}

fn p99(row: &Row) -> f64 {
    row.p99_us
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

/// Latency curves: one plot for each setting, a curve for each system, of the repetition in the middle.
fn latencies(shown: &[&Group<'_>], systems: &[String], body: &mut String) -> Outcome<()> {
    let mut section = String::new();
    let mut settings: Vec<(String, String, String)> = Vec::new();
    for group in shown.iter().filter(|group| is_measured(group)) {
        let (durability, point) = place(group);
        let setting = (group.setting.workload.clone(), durability, point);
        if !settings.contains(&setting) {
            settings.push(setting);
        }
    }
    for (workload, durability, point) in settings {
        let mut curves = Vec::new();
        for (number, system) in systems.iter().enumerate() {
            let group = shown.iter().find(|group| {
                group.setting.system == *system
                    && group.setting.workload == workload
                    && place(group) == (durability.clone(), point.clone())
                    && is_measured(group)
            });
            let Some(row) = group.and_then(|group| middle(group)) else { continue };
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
        let title = format!("{workload}, {durability}, {point}");
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
    let mut seen: Vec<(String, String, String)> = Vec::new();
    let mut others = 0;
    for group in shown.iter().filter(|group| is_measured(group)) {
        let Some(row) = middle(group) else { continue };
        let (durability, point) = place(group);
        let setting = (group.setting.workload.clone(), durability.clone(), point.clone());
        if row.timeline.len() < 4 || row.write_share <= 0.0 || seen.contains(&setting) {
            continue;
        }
        if row.utilization.is_none() {
            others += 1;
            if others > OTHERS_MAX {
                continue;
            }
        }
        let mut curves = Vec::new();
        for (number, system) in systems.iter().enumerate() {
            let one = shown.iter().find(|other| {
                other.setting.system == *system
                    && other.setting.workload == group.setting.workload
                    && other.setting.phase == group.setting.phase
                    && place(other) == (durability.clone(), point.clone())
            });
            let Some(row) = one.and_then(|one| middle(one)) else { continue };
            let points = row.timeline.iter().enumerate();
            let points = points
                .map(|(n, rate)| ((real(n as u64) + 0.5) * row.timeline_seconds, *rate))
                .collect();
            curves.push(Curve { name: system.clone(), color: number, points, dots: false });
        }
        let warmup = row.warmup_seconds;
        let title =
            format!("{}, {durability}, {point} (warm-up {warmup:.1} s)", group.setting.workload);
        let (x, y) = ("seconds", "operations per second");
        let svg =
            Lines { title, x, y, x_scale: Scale::Linear, y_scale: Scale::Linear, curves }.draw()?;
        let _ = writeln!(section, "<div>{svg}</div>");
        seen.push(setting);
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
