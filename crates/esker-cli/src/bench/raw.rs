//! `esker bench raw` and `esker bench micro`: the limits that engines are held against.

use super::arguments::RawArguments;
use super::{program, run};
use crate::failure::{Done, Failure};
use crate::output::{output_failed, tell};
use crate::progress::progress;
use esker_base::clock::{Clock, SystemClock};
use esker_base::units::parse_size_bytes;
use esker_bench::document::{Document, FORMAT, Row};
use esker_bench::machine::Machine;
use esker_bench::micro;
use esker_bench::raw::device::{Access, CHUNKS_IN_FLIGHT, Target, bytes_per_second};
use esker_bench::raw::{device, fio, loopback, memory};
use esker_bench::statistics::median;
use esker_trt::Facility;
use std::io::Write;
use std::time::Duration;

/// Connections of the loopback measurements.
const CONNECTIONS: [usize; 2] = [1, 64];

/// `esker bench raw`.
pub(crate) fn raw(arguments: &RawArguments) -> Result<Done, Failure> {
    let usage = |words: String| Failure::usage(words);
    let size = parse_size_bytes(&arguments.size)
        .ok_or_else(|| usage(format!("--size: {} is no size", arguments.size)))?;
    let facilities: Vec<Facility> =
        arguments.io.iter().map(|name| name.parse()).collect::<Result<_, esker::Error>>()?;
    if !(arguments.seconds > 0.0 && arguments.seconds < 1e6) || arguments.repetitions == 0 {
        return Err(usage("--seconds and --repetitions are above 0".to_owned()));
    }
    if arguments.depth.contains(&0) {
        return Err(usage("--depth is above 0".to_owned()));
    }
    if !arguments.no_device {
        Target::make_folder(&arguments.data)?;
    }
    run::check_files(arguments.json.as_deref(), None)?;
    let time = Duration::from_secs_f64(arguments.seconds);
    let start = SystemClock.monotonic();
    let began_at = SystemClock.unix_seconds();
    let mut rows: Vec<Row> = Vec::new();
    if !arguments.no_device {
        let target = Target::open(&arguments.data, size)?;
        tell(&target.report().to_string())?;
        rows.extend(devices(arguments, &target, &facilities, time)?);
    }
    if !arguments.only_device {
        for repetition in 0..arguments.repetitions {
            let mut more = memory::run(memory::SIZE_BYTES, time)?;
            for facility in facilities.iter().copied() {
                for connections in CONNECTIONS {
                    more.push(loopback::run(connections, facility, time)?);
                }
            }
            more.iter_mut().for_each(|row| row.repetition = repetition);
            rows.extend(more);
        }
    }
    let document = Document {
        format: FORMAT,
        title: "limits of the machine".to_owned(),
        program: program(),
        began_at,
        took_seconds: (SystemClock.monotonic() - start).as_secs_f64(),
        machine: Machine::examine(&arguments.data),
        options: serde_json::json!({
            "data": arguments.data, "size": arguments.size, "seconds": arguments.seconds,
        }),
        rows,
    };
    let shown = table(&document);
    let written = arguments.json.as_ref().map_or(Ok(()), |path| document.write(path));
    shown?;
    written?;
    Ok(Done::Yes)
}

/// Each access, by each facility and depth, in turns with fio if that is asked for.
fn devices(
    arguments: &RawArguments,
    target: &Target,
    facilities: &[Facility],
    time: Duration,
) -> Result<Vec<Row>, Failure> {
    let mut points: Vec<(Access, Facility, usize)> = Vec::new();
    for facility in facilities.iter().copied() {
        points.extend(arguments.depth.iter().map(|depth| (Access::RandomRead, facility, *depth)));
        points.push((Access::SequentialRead, facility, CHUNKS_IN_FLIGHT));
        if target.is_scratch() {
            points.push((Access::SequentialWrite, facility, CHUNKS_IN_FLIGHT));
            points.push((Access::DurableWrite, facility, 1));
        }
    }
    let bar = progress("device", points.len() as u64 * u64::from(arguments.repetitions));
    let mut rows = Vec::new();
    for repetition in 0..arguments.repetitions {
        for (access, facility, depth) in &points {
            let mut ours = device::run(target, *access, *facility, *depth, time)?;
            ours.repetition = repetition;
            rows.push(ours);
            if arguments.fio {
                match fio::run(target, *access, *facility, *depth, time)? {
                    Some(theirs) => rows.push(Row { repetition, ..theirs }),
                    None => return Err(Failure::usage("--fio: fio is not installed")),
                }
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// One line for each measurement; by fio's, how the two compare in the turns they took.
fn table(document: &Document) -> Result<(), Failure> {
    let mut lines: Vec<String> =
        document.machine.words().iter().map(|(name, value)| format!("{name}: {value}")).collect();
    lines.push(format!(
        "{:<30} {:<14} {:>5} {:>12} {:>8} {:>12} {:>9} {:>9} {:>9}  {}",
        "what", "by", "depth", "ops/s", "+-", "MiB/s", "p50 us", "p99 us", "p99.9 us", "ours / fio"
    ));
    let groups = document.groups();
    for group in &groups {
        let Some(first) = group.rows.first() else { continue };
        let rate = group.spread(|row| row.ops_per_second);
        let middle = |figure: fn(&Row) -> f64| group.spread(figure).median;
        let ours: Vec<&Row> = document
            .rows
            .iter()
            .filter(|row| {
                row.workload == first.workload
                    && row.depth == first.depth
                    && fio_name(&row.system).is_some_and(|name| name == first.system)
            })
            .collect();
        let ratios: Vec<f64> = ours
            .iter()
            .zip(&group.rows)
            .map(|(ours, theirs)| ours.ops_per_second / theirs.ops_per_second)
            .collect();
        let beside = match ratios.is_empty() {
            true => String::new(),
            false => format!("{:.3}", median(&ratios)),
        };
        let latency = |figure: fn(&Row) -> f64| match middle(figure) {
            value if value > 0.0 => format!("{value:.1}"),
            _ => "-".to_owned(),
        };
        lines.push(format!(
            "{:<30} {:<14} {:>5} {:>12.0} {:>8} {:>12.1} {:>9} {:>9} {:>9}  {beside}",
            first.workload,
            first.system,
            first.depth,
            rate.median,
            rate.words(),
            middle(bytes_per_second) / f64::from(1 << 20),
            latency(|row| if row.p50_us > 0.0 { row.p50_us } else { row.mean_us }),
            latency(|row| row.p99_us),
            latency(|row| row.p999_us),
        ));
    }
    tell(&lines.join("\n"))
}

/// What fio calls the facility of one of our rows.
fn fio_name(system: &str) -> Option<&'static str> {
    match system {
        "trt-uring" => Some("fio-io_uring"),
        "trt-aio" => Some("fio-libaio"),
        "trt-sync" => Some("fio-psync"),
        _ => None,
    }
}

/// `esker bench micro`.
pub(crate) fn micro(factor: u64) -> Result<Done, Failure> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{:<26} {:>12} {:>12} {:>18}", "what", "operations", "ns each", "checksum")
        .map_err(output_failed)?;
    for micro in &micro::ALL {
        let cost = micro.run(factor)?;
        writeln!(
            output,
            "{:<26} {:>12} {:>12.1} {:>18x}",
            cost.name, cost.ops, cost.nanoseconds, cost.checksum
        )
        .map_err(output_failed)?;
    }
    Ok(Done::Yes)
}
