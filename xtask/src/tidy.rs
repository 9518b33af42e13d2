//! `cargo xtask tidy`: the project's own rules, those that no other tool checks.
//!
//! Reads the sources as text; each rule gives its complaints, and any complaint fails the command.

mod arrows;
mod assertions;
mod words;

use crate::run::root;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// From this many lines on, a file is complained about.
const LINES_MAX: usize = 1500;
/// From this many lines on, a file is mentioned.
const LINES_WARN: usize = 800;

/// A source file.
pub(crate) struct Source {
    /// Path from the root, with forward slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Source {
    /// Whether the file holds tests only.
    pub(crate) fn is_test(&self) -> bool {
        let path = &self.path;
        path.contains("/tests/")
            || path.ends_with("/tests.rs")
            || path.ends_with("/interleave.rs")
            || path.contains("testkit")
    }
}

/// Checks all rules.
pub(crate) fn run() -> Result<()> {
    println!("== tidy");
    let sources = sources()?;
    let mut complaints = Vec::new();
    complaints.extend(arrows::complaints(root())?);
    let helpers = assertions::helpers(&sources);
    for source in &sources {
        complaints.extend(header(source));
        complaints.extend(size(source));
        complaints.extend(assertions::complaints(source, &helpers));
        complaints.extend(words::complaints(source));
    }
    complaints.extend(words::unused_sites(&sources));
    for complaint in &complaints {
        println!("tidy: {complaint}");
    }
    if complaints.is_empty() {
        println!("tidy: {} files in order", sources.len());
        return Ok(());
    }
    bail!("{} complaints", complaints.len());
}

fn header(source: &Source) -> Option<String> {
    (!source.text.starts_with("//!"))
        .then(|| format!("{}: starts without a module header (//!)", source.path))
}

fn size(source: &Source) -> Option<String> {
    let lines = source.text.lines().count();
    if lines > LINES_WARN {
        println!("tidy: note: {} has {lines} lines", source.path);
    }
    (lines > LINES_MAX).then(|| format!("{}: {lines} lines, more than {LINES_MAX}", source.path))
}

fn sources() -> Result<Vec<Source>> {
    let mut found = Vec::new();
    for folder in ["crates", "fuzz", "xtask"] {
        collect(&root().join(folder), &mut found)?;
    }
    found.sort();
    found
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let path = path.strip_prefix(root()).unwrap_or(&path).to_string_lossy().into_owned();
            Ok(Source { path, text })
        })
        .collect()
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                collect(&path, found)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(())
}
