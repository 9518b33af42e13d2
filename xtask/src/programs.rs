//! Programs of tests: cargo builds them, and they run side by side. Many tests wait, for a disk, a peer or a time that has to pass, so one
//! program after the other leaves processors idle.

use crate::run::{Step, cargo, target};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program with tests of one target of a package.
pub(crate) struct Program {
    /// The package's folder.
    folder: PathBuf,
    /// `lib`, or the name of the file or folder among its tests.
    target: String,
    path: PathBuf,
}

impl Program {
    /// Whether these are the tests of that target of a package.
    pub(crate) fn is(&self, package: &str, target: &str) -> bool {
        self.folder.ends_with(package) && self.target == target
    }

    /// Whether it has a test whose name contains this.
    pub(crate) fn has(&self, name: &str) -> bool {
        let mut command = Command::new(&self.path);
        let listed = command.current_dir(&self.folder).args(["--list", name]).output();
        let listed = listed.map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&listed).lines().any(|line| line.ends_with(": test"))
    }

    /// Runs it, where cargo would, with these arguments.
    pub(crate) fn run<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Step {
        let package = self.folder.file_name().unwrap_or_default().to_string_lossy();
        let title = format!("tests of {package}, {}", self.target);
        let step = Step::program(title, &self.path, &self.folder).arguments(arguments);
        let step = step.env("SKIPPED_TESTS", skipped_file());
        match self.waits() {
            true => step.env("RUST_TEST_THREADS", (2 * processors()).to_string()),
            false => step,
        }
    }

    /// Whether its tests wait most of their time, for another process or a time that has to pass: those of servers, clients and commands.
    fn waits(&self) -> bool {
        self.target == "it" && !self.folder.ends_with("esker")
    }
}

/// Has cargo build tests; `arguments` are those of `cargo test`, but for what the tests are given.
pub(crate) fn build(title: &'static str, arguments: &[&str]) -> Result<Vec<Program>> {
    const HOW: [&str; 3] = ["test", "--no-run", "--message-format=json-render-diagnostics"];
    let printed = cargo(title, &[&HOW[..], arguments].concat()).output()?;
    let lines = printed.lines().map(serde_json::from_str);
    let mut programs = Vec::new();
    for line in lines {
        let message: Value = line.context("what cargo says is no JSON")?;
        programs.extend(program_of(&message));
    }
    if programs.is_empty() {
        bail!("{title}: cargo built no tests");
    }
    Ok(programs)
}

/// Where tests say that they are skipped (`skipped` of the test kit).
fn skipped_file() -> PathBuf {
    target().join("skipped.txt")
}

/// From now on nothing counts as skipped.
pub(crate) fn forget_skipped() -> Result<()> {
    std::fs::write(skipped_file(), "").context("the file of what is skipped")
}

/// Which tests said since then that they were skipped, and why, each once: some run in several builds.
pub(crate) fn skipped() -> Result<BTreeSet<String>> {
    let text = std::fs::read_to_string(skipped_file()).context("the file of what is skipped")?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// Processors that tests may use.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The program that a message of cargo's tells of.
fn program_of(message: &Value) -> Option<Program> {
    if message.pointer("/profile/test")? != true {
        return None;
    }
    let text = |pointer| message.pointer(pointer)?.as_str();
    let path = PathBuf::from(text("/executable")?);
    let folder = Path::new(text("/manifest_path")?).parent()?.to_owned();
    let is_library = message.pointer("/target/kind")?.as_array()?.iter().any(|kind| kind == "lib");
    let target = if is_library { "lib" } else { text("/target/name")? };
    Some(Program { folder, target: target.to_owned(), path })
}
