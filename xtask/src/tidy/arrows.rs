//! The arrows between crates: those that ARCHITECTURE.md draws, and no others.

use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

type Edges = BTreeMap<String, BTreeSet<String>>;

/// Edges that exist and are not drawn, drawn edges that do not exist, and outside dependencies of
/// the crates that may have none.
pub(crate) fn complaints(root: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).context("ARCHITECTURE.md")?;
    let drawn = drawn(&text);
    let (found, outside) = found(root)?;
    let mut complaints = Vec::new();
    let empty = BTreeSet::new();
    for (name, edges) in &found {
        let allowed = drawn.get(name).unwrap_or(&empty);
        for edge in edges.difference(allowed) {
            complaints.push(format!("{name} depends on {edge}: ARCHITECTURE.md has no such arrow"));
        }
        for edge in allowed.difference(edges) {
            complaints.push(format!("ARCHITECTURE.md draws {name} -> {edge}, which is not there"));
        }
    }
    // Crates without I/O, and the client, which others build into their programs: these outside crates
    // and no others.
    const SLIM: [(&str, &[&str]); 3] = [
        ("esker-client", &["parking_lot", "rustls", "xxhash-rust"]),
        ("esker-format", &["zerocopy"]),
        ("esker-index", &["bytemuck", "parking_lot", "rustix", "smallvec"]),
    ];
    for (name, allowed) in SLIM {
        for dependency in outside.get(name).unwrap_or(&empty) {
            if !allowed.contains(&dependency.as_str()) {
                complaints.push(format!("{name} depends on {dependency}: it is to stay slim"));
            }
        }
    }
    Ok(complaints)
}

/// The arrows in the block of ARCHITECTURE.md that starts with ```` ```arrows ````: one crate a
/// line, `name -> dependency dependency`.
fn drawn(text: &str) -> Edges {
    text.lines()
        .skip_while(|line| *line != "```arrows")
        .skip(1)
        .take_while(|line| *line != "```")
        .filter_map(|line| line.split_once("->"))
        .map(|(name, edges)| {
            (name.trim().to_owned(), edges.split_whitespace().map(str::to_owned).collect())
        })
        .collect()
}

/// Edges between crates of the workspace, and to outside crates; those of tests do not count.
fn found(root: &Path) -> Result<(Edges, Edges)> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(root)
        .args(["metadata", "--no-deps", "--format-version", "1", "--locked"])
        .output()
        .context("cargo metadata")?;
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let packages = metadata
        .get("packages")
        .and_then(Value::as_array)
        .context("cargo metadata has no packages")?;
    let names: BTreeSet<&str> =
        packages.iter().filter_map(|package| text(package, "name")).collect();
    let (mut inside, mut outside) = (Edges::new(), Edges::new());
    for package in packages {
        let name = text(package, "name").unwrap_or_default().to_owned();
        let dependencies =
            package.get("dependencies").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        for dependency in dependencies {
            let kind = text(dependency, "kind").unwrap_or("normal");
            let target = text(dependency, "name").unwrap_or_default();
            // What explores interleavings, or is built by a fuzzer, is in no product.
            let is_of_tests = ["loom", "shuttle"].contains(&target)
                || text(dependency, "target").is_some_and(|target| target.contains("fuzzing"));
            if kind != "normal" || is_of_tests {
                continue;
            }
            let edges = if names.contains(target) { &mut inside } else { &mut outside };
            edges.entry(name.clone()).or_default().insert(target.to_owned());
        }
        inside.entry(name).or_default();
    }
    Ok((inside, outside))
}

fn text<'a>(value: &'a Value, field: &str) -> Option<&'a str> {
    value.get(field)?.as_str()
}
