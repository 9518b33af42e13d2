//! `cargo xtask fuzz`: the targets of `fuzz/`, with AddressSanitizer, one after the other, and a line of the ledger for each run.
//!
//! Before all of them the canaries: targets that have to fail, which shows that coverage leads the fuzzer and that memory has its
//! limit. One target alone runs without.

use crate::run::{is_installed, root};
use anyhow::{Context, Result, bail};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What is asked for.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A file of fuzz/fuzz_targets; all, if none is given.
    target: Option<String>,
    /// Seconds for each target.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Seed of the fuzzer's choices; what they lead to also depends on the corpus.
    #[arg(long, default_value_t = 1)]
    seed: u32,
    /// File to which a line is added for each run.
    #[arg(long, value_name = "FILE")]
    ledger: Option<PathBuf>,
    /// Options of libFuzzer: -max_len=100000, -jobs=2, or an input to run once.
    #[arg(last = true)]
    options: Vec<String>,
}

/// Seconds for a canary.
const CANARY_SECONDS: u64 = 60;
/// What one allocation may have in mebibytes, whatever an input says; sessions have a store beside them.
const MALLOC_LIMIT: [(&str, u32); 3] = [("memcache", 16), ("native_session", 16), ("", 4)];

/// What a run came to.
#[derive(Debug, Default)]
struct Told {
    executions: u64,
    seconds: Option<u64>,
    coverage: u64,
    features: u64,
    artifact: Option<String>,
}

/// Runs what is asked for.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if !is_installed("cargo-fuzz") {
        bail!("cargo-fuzz is not installed: cargo install cargo-fuzz --locked");
    }
    if !is_installed("c++") {
        bail!("there is no c++, with which libFuzzer is compiled: apt-get install g++");
    }
    let (canaries, targets): (Vec<String>, Vec<String>) =
        targets()?.into_iter().partition(|name| name.starts_with("canary"));
    if let Some(target) = &arguments.target {
        if !targets.contains(target) && !canaries.contains(target) {
            bail!("no target {target}; there are {}", targets.join(", "));
        }
        return all_hold(std::slice::from_ref(target), arguments);
    }
    for canary in &canaries {
        // What another run has found is not found now.
        let _ = fs::remove_dir_all(root().join("fuzz/corpus").join(canary));
        let told = fuzz(canary, CANARY_SECONDS, arguments.seed, &[])?;
        if told.artifact.is_none() {
            bail!("{canary} did not fail in {CANARY_SECONDS} s: the fuzzer finds nothing");
        }
        println!("== {canary} failed, as it has to, after {} executions", told.executions);
    }
    all_hold(&targets, arguments)
}

fn all_hold(targets: &[String], arguments: &Arguments) -> Result<()> {
    let mut failed = Vec::new();
    for target in targets {
        let told = fuzz(target, arguments.seconds, arguments.seed, &arguments.options)?;
        let line = format!(
            "{{\"target\":\"{target}\",\"seed\":{},\"seconds\":{},\"executions\":{},\"coverage\":{},\"features\":{},\"crashes\":{}}}",
            arguments.seed,
            told.seconds.unwrap_or(arguments.seconds),
            told.executions,
            told.coverage,
            told.features,
            u32::from(told.artifact.is_some()),
        );
        println!("== {line}");
        if let Some(path) = &arguments.ledger {
            append(path, &line).with_context(|| path.display().to_string())?;
        }
        if let Some(artifact) = told.artifact {
            failed.push(format!("{target} fails with {artifact}"));
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("{}", failed.join("\n")) }
}

#[expect(clippy::disallowed_methods, reason = "the ledger is no store's file")]
fn append(path: &Path, line: &str) -> std::io::Result<()> {
    let mut file = fs::OpenOptions::new().create(true).append(true).open(path)?;
    writeln!(file, "{line}")
}

/// Names of all targets.
fn targets() -> Result<Vec<String>> {
    let folder = root().join("fuzz/fuzz_targets");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

/// Runs one target.
fn fuzz(target: &str, seconds: u64, seed: u32, options: &[String]) -> Result<Told> {
    println!("== fuzz {target}");
    let limit = MALLOC_LIMIT.iter().find(|(name, _)| target == *name || name.is_empty());
    let mut command = Command::new("cargo-fuzz");
    command.args(["fuzz", "run", target, "--"]).current_dir(root());
    command.args([
        format!("-max_total_time={seconds}"),
        format!("-seed={seed}"),
        format!("-malloc_limit_mb={}", limit.map_or(4, |(_, limit)| *limit)),
    ]);
    command.args(["-timeout=10", "-print_final_stats=1"]);
    // Threads of a store allocate meanwhile: all that would be taken for leaks. It is the sanitizer that must not look for them: where the
    // fuzzer does not, it does not heed the limit either.
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    if target == "memcache" {
        command.arg("-dict=fuzz/memcache.dict");
    }
    command.args(options);
    // The options of the compiler that instrument are not stable.
    command.env("RUSTC_BOOTSTRAP", "1").stderr(Stdio::piped());
    // Set by the outer cargo for this program, and wrong for the inner one.
    command.env_remove("CARGO_MANIFEST_DIR").env_remove("CARGO_PKG_NAME");
    let mut child = command.spawn().context("cannot start cargo-fuzz")?;
    let mut told = Told::default();
    let stderr = child.stderr.take().context("no standard error")?;
    for line in BufReader::new(stderr).split(b'\n') {
        let line = line.context("read what the fuzzer says")?;
        let line = String::from_utf8_lossy(&line);
        let is_step = read(&line, &mut told);
        if !is_step {
            eprintln!("{line}");
        }
    }
    let status = child.wait().context("wait for cargo-fuzz")?;
    if !status.success() && told.artifact.is_none() {
        bail!("{target} was not run ({status})");
    }
    Ok(told)
}

/// Reads a line of libFuzzer; says whether it is one of very many.
fn read(line: &str, told: &mut Told) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let behind = |name: &str| {
        let place = words.iter().position(|word| *word == name)?;
        words.get(place + 1)?.parse::<u64>().ok()
    };
    if let Some(number) = words.first().and_then(|word| word.strip_prefix('#')) {
        told.executions = number.parse().unwrap_or(told.executions);
        told.coverage = behind("cov:").unwrap_or(told.coverage);
        told.features = behind("ft:").unwrap_or(told.features);
        return words.get(1).is_some_and(|word| matches!(*word, "NEW" | "REDUCE" | "RELOAD"));
    }
    if let Some(executions) = behind("stat::number_of_executed_units:") {
        told.executions = executions;
    }
    if line.starts_with("Done ") {
        told.seconds = behind("in");
    }
    if let Some((_, path)) = line.split_once("Test unit written to ") {
        told.artifact = Some(path.to_owned());
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_libfuzzer_says_is_understood() {
        let mut told = Told::default();
        for (line, is_step) in [
            ("#2\tINITED cov: 10 ft: 11 corp: 1/1b exec/s: 0 rss: 30Mb", false),
            ("#99\tNEW    cov: 321 ft: 654 corp: 7/90b lim: 4 exec/s: 0 rss: 31Mb", true),
            ("#128\tpulse  cov: 321 ft: 655 corp: 7/90b lim: 4 exec/s: 64 rss: 31Mb", false),
            ("stat::number_of_executed_units: 130", false),
            ("Done 131 runs in 2 second(s)", false),
        ] {
            assert_eq!(read(line, &mut told), is_step, "{line}");
        }
        assert_eq!((told.executions, told.coverage, told.features), (130, 321, 655));
        assert_eq!((told.seconds, &told.artifact), (Some(2), &None));
        let crash =
            "artifact_prefix='fuzz/artifacts/x/'; Test unit written to fuzz/artifacts/x/crash-1";
        read(crash, &mut told);
        assert_eq!(told.artifact.as_deref(), Some("fuzz/artifacts/x/crash-1"));
    }

    #[test]
    fn every_target_is_named_in_the_manifest() {
        let manifest = fs::read_to_string(root().join("fuzz/Cargo.toml")).expect("manifest");
        let targets = targets().expect("targets");
        assert!(targets.len() > 10, "{targets:?}");
        for target in targets {
            assert!(manifest.contains(&format!("path = \"fuzz_targets/{target}.rs\"")), "{target}");
        }
    }
}
