//! Everything that checks Esker. `cargo xtask check` is the one command that tests it all; the
//! others are its parts, and the longer runs that it samples.

mod fuzz;
mod programs;
mod run;
mod tidy;

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};
use programs::Program;
use run::{Step, cargo};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Checks of the Esker repository")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Everything below but the benchmarks, with a sample of the crash exploration. Under 30
    /// minutes on two cores.
    Check,
    /// The project's own rules: arrows between crates, module headers, file sizes, assertions in
    /// tests, and where unsafe, files, clocks and threads may be named.
    Tidy,
    /// Formats the sources.
    Fmt {
        /// Only say whether they are formatted.
        #[arg(long)]
        check: bool,
    },
    /// Clippy with warnings denied.
    Lint,
    /// All tests with debug assertions, and in release mode those where that makes a difference.
    Test {
        /// Only tests whose name contains this.
        filter: Option<String>,
    },
    /// Crash exploration of the engines; resumable by seeds.
    Crash {
        /// Arguments of the explorer, `--help` among them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Proves that the crash exploration notices: disables one site after another.
    Mutants {
        /// Arguments of the explorer.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Crash exploration of FlexSpace; resumable by seeds.
    CrashFlex {
        /// Arguments of the explorer, `--help` among them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Crash exploration of the engine `flex`; resumable by seeds.
    #[command(name = "crash-flexdb")]
    CrashFlexDb {
        /// Arguments of the explorer, `--help` among them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Proves that the exploration of the engine `flex` notices.
    #[command(name = "mutants-flexdb")]
    MutantsFlexDb {
        /// Arguments of the explorer.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Proves that the exploration of FlexSpace notices.
    MutantsFlex {
        /// Arguments of the explorer.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Crash exploration of `flat`; resumable by seeds.
    CrashFlat {
        /// Arguments of the explorer, `--help` among them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Proves that the exploration of `flat` notices.
    MutantsFlat {
        /// Arguments of the explorer.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Fuzzing of whole images of the engines, behind their checksums; resumable by seeds.
    FuzzImages {
        /// Arguments of the fuzzer, `--help` among them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Soak of an engine: everything at once, for long, killed again and again; resumable by seeds.
    Soak {
        /// Arguments of the soak, `--help` among them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Histories of indexes and stores under threads, judged call by call; resumable by seeds.
    Histories {
        /// Arguments of the run, `--help` among them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Coverage-guided fuzzers of every parser and decoder, if `cargo-fuzz` is installed.
    Fuzz(fuzz::Arguments),
    /// Interleavings of the lock-free parts: loom (all) and shuttle (random).
    Interleave,
    /// Documentation, with warnings denied.
    Doc,
    /// Licences, bans and sources of the dependencies, if `cargo-deny` is installed.
    Deny,
    /// Measurements beside their peers.
    Bench {
        #[command(subcommand)]
        bench: Bench,
    },
}

#[derive(Subcommand)]
enum Bench {
    /// TRT: switches, wake-ups, and random reads beside fio.
    Trt {
        /// Arguments of the benchmark, `--help` among them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Durable writes: what a flush costs on unwritten and on written extents.
    DurableWrites {
        /// Arguments of the benchmark.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// The memcache server beside memcached, if that is installed, and group commit over sockets.
    Server {
        /// Arguments of the benchmark, `--help` among them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// The native protocol beside memcache's, on one server, and the client library.
    Native {
        /// Arguments of the benchmark, `--help` among them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// `depot`: time to open after a crash and after a clean stop.
    Restart {
        /// Arguments of the benchmark, `--help` among them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// `depot`: overwrites of a store that is nearly full.
    Churn {
        /// Arguments of the benchmark, `--help` among them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// The index beside memory and concurrent maps: lookups, inserts, growth.
    Index {
        /// Number of entries, and of those in the comparison.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// FlexTree beside a B+-tree with full offsets and a sorted array (Table 1 of the paper).
    FlexTree {
        /// Number of extents.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// FlexSpace beside plain files: inserts, writes, reads, and what they write (Table 2).
    FlexSpace {
        /// Arguments of the benchmark, `--help` among them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// The indexes of `flat` beside concurrent maps of the same content.
    FlatIndex {
        /// Number of entries, and which part.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// The batching models of `flat`: latency against throughput, fences and lines for each entry.
    FlatBatching {
        /// Arguments of the benchmark, `--help` among them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// `flat`: cost of a PUT in lines and fences, operations a second, time to open.
    Flat {
        /// Arguments of the benchmark, `--help` among them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// `depot`: GETs beside raw reads, by facility and queue depth.
    Gets {
        /// Arguments of the benchmark, `--help` among them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// `depot`: group commit with 1 and 64 writers, and device reads per GET.
    Depot {
        /// Arguments of the benchmark, `--help` among them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Check => check(),
        Command::Tidy => tidy::run(),
        Command::Fmt { check: false } => run::all([cargo("fmt", &["fmt", "--all"])]),
        Command::Fmt { check: true } => run::all([format_check()]),
        Command::Lint => run::all(lint()),
        Command::Test { filter } => {
            tests(filter.as_deref())?;
            units_in_release_mode(filter.as_deref())?;
            skipped()
        }
        Command::Crash { arguments } => run::all([crash(&arguments)]),
        Command::Mutants { arguments } => run::all([mutants(&arguments)]),
        Command::CrashFlex { arguments } => run::all([crash_flex(&arguments)]),
        Command::MutantsFlex { arguments } => run::all([mutants_flex(&arguments)]),
        Command::CrashFlexDb { arguments } => run::all([crash_flexdb(&arguments)]),
        Command::MutantsFlexDb { arguments } => run::all([mutants_flexdb(&arguments)]),
        Command::CrashFlat { arguments } => run::all([crash_flat(&arguments)]),
        Command::MutantsFlat { arguments } => run::all([mutants_flat(&arguments)]),
        Command::FuzzImages { arguments } => run::all([fuzz_images(&arguments)]),
        Command::Fuzz(arguments) => fuzz::run(&arguments),
        Command::Soak { arguments } => run::all([soak(&arguments)]),
        Command::Histories { arguments } => run::all([histories(&arguments)]),
        Command::Interleave => {
            let (loom, shuttle) = interleave();
            run::beside(vec![loom], vec![shuttle])
        }
        Command::Doc => run::all([doc()]),
        Command::Deny => deny(),
        Command::Bench { bench } => run::all([benchmark(bench)]),
    }
}

fn check() -> Result<()> {
    run::all([format_check()])?;
    tidy::run()?;
    run::all(lint())?;
    run::all([doc()])?;
    deny()?;
    tests(None)?;
    // Loom needs one processor, for as long as the others here take.
    let (loom, shuttle) = interleave();
    run::beside(vec![loom], std::iter::once(shuttle).chain(gates()).collect())?;
    let mut others = mutants_of_others();
    others.push(run::example("soak", "soak", &["--gate"]));
    run::beside(vec![mutants_of_depot()], others)?;
    skipped()?;
    println!("check: everything passed");
    Ok(())
}

/// Says which tests had nothing to run on: they pass in silence otherwise.
fn skipped() -> Result<()> {
    for line in programs::skipped()? {
        println!("== skipped: {line}");
    }
    Ok(())
}

fn format_check() -> Step {
    cargo("format", &["fmt", "--all", "--", "--check"])
}

fn lint() -> Vec<Step> {
    let with_mutants =
        ["clippy", "--workspace", "--all-targets", "--locked", "--features", "esker/mutants"];
    // As users build it.
    let without = ["clippy", "--package", "esker", "--lib", "--locked"];
    let denied = ["--", "-D", "warnings"];
    vec![
        cargo("lint with mutants", &[&with_mutants[..], &denied[..]].concat()),
        cargo("lint", &[&without[..], &denied[..]].concat()),
    ]
}

fn doc() -> Step {
    cargo("doc", &["doc", "--workspace", "--no-deps", "--locked"])
        .env("RUSTDOCFLAGS", "-D warnings")
}

/// In two lanes, each of which takes about as long.
fn tests(filter: Option<&str>) -> Result<()> {
    programs::forget_skipped()?;
    // Not the examples: they have no tests, and the lints have seen them.
    let all = ["--workspace", "--locked", "--lib", "--bins", "--tests"];
    let built = programs::build("tests with debug assertions", &all)?;
    // Examples in texts are called by their files.
    let is_none = |filter: &&str| !filter.contains(".rs") && !built.iter().any(|it| it.has(filter));
    if let Some(filter) = filter.filter(is_none) {
        bail!("no test has `{filter}` in its name");
    }
    let (one, other) = built.iter().partition(is_of_first_lane);
    let chosen = |program: &Program| match filter {
        Some(filter) => vec![filter],
        None if program.is("esker", "it") => {
            LONG.iter().flat_map(|name| ["--skip", name]).collect()
        }
        None => Vec::new(),
    };
    let run = |programs: Vec<&Program>| programs.iter().map(|it| it.run(chosen(it))).collect();
    run::beside(run(one), run(other))?;
    let documented = ["test", "--workspace", "--locked", "--doc"];
    run::all([cargo("examples in texts", &[&documented, filter.as_slice()].concat())])?;

    let stores = [&["--test", "it"][..], &CHECKED].concat();
    let stores = programs::build("tests of stores in release mode", &stores)?;
    let stores =
        |names: &[&str]| stores.iter().map(|it| it.run(names.to_vec())).collect::<Vec<_>>();
    match filter {
        Some(name) => run::all(stores(&[name])),
        None => {
            let (one, other) = LONG.split_at(LONG.len().div_ceil(2));
            run::beside(stores(one), stores(&[other, &STORES_OPTIMIZED].concat()))
        }
    }
}

/// Not part of the check, which has no time for another build of so much: there shuttle and the explorations run what these test.
fn units_in_release_mode(filter: Option<&str>) -> Result<()> {
    let units = [&["--lib"][..], &OPTIMIZED].concat();
    let units = programs::build("unit tests in release mode", &units)?;
    run::all(units.iter().map(|it| it.run(filter)))
}

fn is_of_first_lane(program: &&Program) -> bool {
    [("esker", "it"), ("esker", "lib"), ("esker-bench", "lib")]
        .iter()
        .any(|(package, target)| program.is(package, target))
}

/// Tests of whole stores that are run in release mode as well: where threads meet, processes are killed, or calls fail at any moment.
const STORES_OPTIMIZED: [&str; 6] =
    ["threads::", "killed::", "cache_crash::", "closing::", "faults::", "log_writer::"];

/// Tests of whole stores that the check runs in release mode alone, half of them beside the other: they fill stores, let them expire, or
/// damage them block by block, and take three times as long without.
const LONG: [&str; 11] = [
    "damage::",
    "depot_room::",
    "flex_full::",
    "flex_mend::",
    "checkpoint::",
    "prefix::",
    "busy::",
    "expiry::",
    "flex_repair::",
    "flex_tables::versions_that_were_lost",
    "small::",
];

/// Crates whose unit tests are run in release mode as well: where threads meet, or `unsafe` is used. There the segments of indexes are as
/// large as in stores.
/// What else they are built of is that of stores.
const OPTIMIZED: [&str; 13] = [
    "--locked",
    "--profile",
    "checked",
    "--features",
    "esker-media/mutants",
    "-p",
    "esker-index",
    "-p",
    "esker-media",
    "-p",
    "esker-shm",
    "-p",
    "esker-trt",
];

/// How stores are built for tests in release mode and for explorers, so that both use what was built once: with the sites of the mutants,
/// which do nothing until one is asked for.
const CHECKED: [&str; 7] =
    ["-p", "esker", "--locked", "--profile", "checked", "--features", "esker/mutants"];

/// Crash exploration in small.
fn gates() -> Vec<Step> {
    let step = |title, example, arguments: &[&str]| run::example(title, example, arguments);
    vec![
        cargo(
            "explorers",
            &[
                &["build", "--example", "*crash", "--example", "image_fuzz"][..],
                &["--example", "soak"],
                &CHECKED,
            ]
            .concat(),
        ),
        step("crash exploration", "crash", &["--gate"]),
        step("crash exploration of FlexSpace", "flex_crash", &["--gate"]),
        step("crash exploration of FlexDB", "flexdb_crash", &["--gate"]),
        step("crash exploration of flat", "flat_crash", &["--gate"]),
        step("fuzzing of images", "image_fuzz", &["--gate"]),
    ]
}

/// One mutant after the other, in one thread: half of the time of all.
fn mutants_of_depot() -> Step {
    run::example("mutants of the sites", "crash", &["--mutants", "--gate"])
}

fn mutants_of_others() -> Vec<Step> {
    let step = |title, example| run::example(title, example, &["--mutants", "--gate"]);
    vec![
        step("mutants of FlexSpace's sites", "flex_crash"),
        step("mutants of FlexDB's sites", "flexdb_crash"),
        step("mutants of flat's sites", "flat_crash"),
    ]
}

fn crash(arguments: &[String]) -> Step {
    explorer("crash exploration", "crash", &["--"]).arguments(arguments)
}

fn mutants(arguments: &[String]) -> Step {
    explorer("mutants of the sites", "crash", &MUTANTS).arguments(arguments)
}

fn crash_flex(arguments: &[String]) -> Step {
    explorer("crash exploration of FlexSpace", "flex_crash", &["--"]).arguments(arguments)
}

fn mutants_flex(arguments: &[String]) -> Step {
    explorer("mutants of FlexSpace's sites", "flex_crash", &MUTANTS).arguments(arguments)
}

fn crash_flexdb(arguments: &[String]) -> Step {
    explorer("crash exploration of flex", "flexdb_crash", &["--"]).arguments(arguments)
}

fn mutants_flexdb(arguments: &[String]) -> Step {
    explorer("mutants of flex's sites", "flexdb_crash", &MUTANTS).arguments(arguments)
}

fn crash_flat(arguments: &[String]) -> Step {
    let small = ["--features", "small", "--"];
    explorer("crash exploration of flat", "flat_crash", &small).arguments(arguments)
}

fn mutants_flat(arguments: &[String]) -> Step {
    explorer("mutants of flat's sites", "flat_crash", &MUTANTS).arguments(arguments)
}

fn fuzz_images(arguments: &[String]) -> Step {
    explorer("fuzzing of images", "image_fuzz", &["--features", "mutants", "--"])
        .arguments(arguments)
}

fn soak(arguments: &[String]) -> Step {
    explorer("soak", "soak", &["--"]).arguments(arguments)
}

fn histories(arguments: &[String]) -> Step {
    let small = ["--features", "small", "--"];
    explorer("histories", "histories", &small).arguments(arguments)
}

const MUTANTS: [&str; 4] = ["--features", "mutants", "--", "--mutants"];

fn explorer(title: &'static str, example: &str, more: &[&str]) -> Step {
    let base = ["run", "--profile", "checked", "--locked", "--package", "esker", "--example"];
    cargo(title, &[&base[..], &[example], more].concat())
}

/// loom, which needs one processor, and shuttle.
fn interleave() -> (Step, Step) {
    let checked = ["test", "--profile", "checked", "--locked", "--features", "esker/shuttle"];
    let of = ["--lib", "-p", "esker-index", "-p", "esker", "interleave"];
    // A target folder of its own: another configuration of every dependency. Of loom's test nothing depends on the profile.
    (
        cargo("loom", &["test", "--locked", "--lib", "-p", "esker-trt", "wake::"])
            .env("RUSTFLAGS", "--cfg loom")
            .env("CARGO_TARGET_DIR", "target/loom")
            .with_tests(),
        cargo("shuttle", &[&checked[..], &of].concat()).with_tests(),
    )
}

fn deny() -> Result<()> {
    if run::is_installed("cargo-deny") {
        run::all([cargo(
            "dependencies",
            &["deny", "--all-features", "check", "bans", "licenses", "sources"],
        )])
    } else {
        println!(
            "== dependencies: skipped: cargo-deny is not installed (cargo install cargo-deny)"
        );
        Ok(())
    }
}

fn benchmark(bench: Bench) -> Step {
    let (package, example, arguments) = match bench {
        Bench::Trt { arguments } => ("esker-trt", "trt_bench", arguments),
        Bench::DurableWrites { arguments } => ("esker-media", "durable_writes", arguments),
        Bench::Server { arguments } => ("esker-server", "server_bench", arguments),
        Bench::Native { arguments } => ("esker-client", "native_bench", arguments),
        Bench::Index { arguments } => ("esker-bench", "index_bench", arguments),
        Bench::FlexTree { arguments } => ("esker-bench", "flex_tree_bench", arguments),
        Bench::FlexSpace { arguments } => ("esker", "flex_space_bench", arguments),
        Bench::FlatIndex { arguments } => ("esker-bench", "flat_bench", arguments),
        Bench::FlatBatching { arguments } => ("esker", "flat_batching", arguments),
        Bench::Depot { arguments } => ("esker", "depot_bench", arguments),
        Bench::Flat { arguments } => ("esker", "flat_store_bench", arguments),
        Bench::Gets { arguments } => ("esker", "gets", arguments),
        Bench::Restart { arguments } => ("esker", "restart", arguments),
        Bench::Churn { arguments } => ("esker", "churn", arguments),
    };
    let base = ["run", "--release", "--locked", "--package", package, "--example", example, "--"];
    cargo("benchmark", &base).arguments(&arguments)
}
