//! A cell in a process of its own: memory, CPU time and I/O counters are then those of one system, and a
//! system that crashes takes nothing with it.
//!
//! The parent writes the cell to the child's standard input as JSON; the child writes events to its standard
//! output, one a line. What a system says on standard error goes to the terminal.

use super::registry;
use crate::failure::{Done, Failure};
use esker_bench::memory::MemoryGroup;
use esker_bench::runner::{self, Cell, Event};
use esker_bench::{Failure as BenchFailure, Outcome};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

/// Runs a cell in a child.
pub(crate) fn launch(cell: &Cell, tell: &mut dyn FnMut(Event)) -> Outcome<()> {
    let group = cell.settings.memory_bytes.map(MemoryGroup::new).transpose()?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(["bench", "cell"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    // It has done nothing yet: it waits for what it is to do.
    let bounded = group.as_ref().map_or(Ok(()), |group| group.take_in(child.id()));
    if let (Some(mut input), Ok(())) = (child.stdin.take(), &bounded) {
        input.write_all(serde_json::to_string(cell)?.as_bytes())?;
    }
    let mut said = None;
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).lines() {
            let line = line?;
            match serde_json::from_str::<Event>(&line) {
                Ok(event) => tell(event),
                // The child's last words.
                Err(_) => said = Some(line),
            }
        }
    }
    let status = child.wait()?;
    bounded?;
    if status.success() {
        return Ok(());
    }
    Err(BenchFailure::new(said.unwrap_or_else(|| format!("{}: {status}", cell.system))))
}

/// `esker bench cell`: the child.
pub(crate) fn child() -> Result<Done, Failure> {
    let mut text = String::new();
    std::io::Read::read_to_string(&mut std::io::stdin().lock(), &mut text)
        .map_err(|source| Failure::io("standard input", &source))?;
    let cell: Cell = serde_json::from_str(&text)
        .map_err(|error| Failure::usage(format!("bench cell is for esker bench run: {error}")))?;
    let mut output = std::io::stdout().lock();
    let mut broken = None;
    let done = runner::run(&cell, &registry(), &mut |event| {
        let line = serde_json::to_string(&event).unwrap_or_default();
        if let Err(source) = writeln!(output, "{line}").and_then(|()| output.flush()) {
            broken = Some(source);
        }
    });
    if let Err(failure) = done {
        // The parent says it.
        let _ = writeln!(output, "{failure}");
        return Err(failure.into());
    }
    match broken {
        Some(source) => Err(Failure::io("standard output", &source)),
        None => Ok(Done::Yes),
    }
}
