//! `esker bench run` and `esker bench list`.

use super::arguments::RunArguments;
use super::{cell, program, registry, shown};
use crate::failure::{Done, Failure};
use crate::output::output_failed;
use esker_bench::document::Document;
use esker_bench::place;
use esker_bench::plan::{self, FAILED, Plan};
use esker_bench::runner::{self, Stage};
use esker_bench::workload::catalogue;
use esker_bench::{files, report};
use std::io::Write;
use std::path::Path;

/// Runs a plan, prints it, and writes what was asked for. Exit code 1 if a cell failed.
pub(crate) fn run(mut arguments: RunArguments) -> Result<Done, Failure> {
    let mut plan = arguments.plan();
    if let Some(path) = &arguments.config {
        let file = Plan::read(path).map_err(|failure| Failure::usage(failure.to_string()))?;
        plan = plan.over(file);
    }
    let plan = plan.over(Plan::defaults());
    let registry = registry();
    let usage = |failure: esker_bench::Failure| Failure::usage(failure.to_string());
    // What has no meaning is a mistake of the command line, and is said before anything runs.
    let cells = plan.cells(Path::new(".")).map_err(usage)?;
    if arguments.one_process && cells.iter().any(|cell| cell.stage != Stage::Whole) {
        let words = "--one-process: a recovery needs a process that ends with its store open";
        return Err(Failure::usage(words));
    }
    for system in plan.systems.iter().flatten() {
        registry.find(system).map_err(usage)?;
    }
    // They may lie in the folder that is made here.
    files::create_folder(&plan.folder())?;
    check_files(arguments.json.as_deref(), arguments.report.as_deref())?;
    let _taken = place::take(&plan.folder()).map_err(usage)?;
    let mut live = shown::Live::new();
    let document = plan::run(
        &plan,
        &registry,
        &program(),
        |one, tell| match arguments.one_process {
            true => runner::run(one, &registry, tell),
            false => cell::launch(one, tell),
        },
        |place, count, event| live.hear(place, count, event),
    );
    live.finish();
    finish(&document?, arguments.json.as_deref(), arguments.report.as_deref())
}

/// Refuses files for a result that cannot be made: before it is measured.
pub(crate) fn check_files(json: Option<&Path>, page: Option<&Path>) -> Result<(), Failure> {
    let mut paths = json.into_iter().chain(page);
    Ok(paths.try_for_each(files::check_writable)?)
}

/// Prints a result, and writes it where it was asked for: to each place, whether or not it could be written to another one.
pub(crate) fn finish(
    document: &Document,
    json: Option<&Path>,
    page: Option<&Path>,
) -> Result<Done, Failure> {
    let shown = shown::table(document);
    let json = json.map_or(Ok(()), |path| document.write(path));
    let page = page
        .map_or(Ok(()), |path| report::page(document).and_then(|page| files::write(path, &page)));
    shown?;
    json.and(page)?;
    let failed = document
        .rows
        .iter()
        .any(|row| row.skipped.as_deref().is_some_and(|why| why.starts_with(FAILED)));
    Ok(if failed { Done::No } else { Done::Yes })
}

/// What a variant is. Indexes of `flat` without a batching model have threads as clients; other variants have tasks.
fn variant_words(kind: &str, variant: &str) -> &'static str {
    match (kind, variant.contains(':')) {
        ("flat", false) => "the same, with this index",
        ("flat", true) => "the same, with this index and batching model, and a run-time of its own",
        _ => "the same, with a run-time of its own",
    }
}

/// Prints names.
pub(crate) fn list() -> Result<Done, Failure> {
    let mut lines = vec!["systems".to_owned()];
    for kind in registry().kinds() {
        lines.push(format!("  {:<24} {}", kind.name, kind.about));
        for variant in kind.variants {
            let name = format!("{}:{variant}", kind.name);
            lines.push(format!("  {name:<24} {}", variant_words(kind.name, variant)));
        }
    }
    lines.push("workloads (ycsb: all of YCSB; etc: all of ETC; trace:FILE)".to_owned());
    for workload in catalogue::all() {
        lines.push(format!("  {:<24} {}", workload.name, workload.about));
    }
    let mut output = std::io::stdout().lock();
    writeln!(output, "{}", lines.join("\n")).map_err(output_failed)?;
    Ok(Done::Yes)
}
