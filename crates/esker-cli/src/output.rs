//! Standard output: what a command is asked for.
//!
//! Whoever reads it may close it before the end, as `head` does. Where the output is all that a command is for, he has heard
//! enough, and it is done. Where the exit code says more than that, or the work goes on behind, it is done without him. A
//! dump that nobody takes whole has failed.

use crate::failure::Failure;
use std::io::{ErrorKind, Write};

/// Why standard output takes no more, of a command that is for nothing else.
pub(crate) fn output_failed(source: std::io::Error) -> Failure {
    Failure::of_output(&source)
}

/// Writes lines of a command that has more to do, or to say, than that.
pub(crate) fn tell(lines: &str) -> Result<(), Failure> {
    match writeln!(std::io::stdout().lock(), "{lines}") {
        Err(source) if source.kind() == ErrorKind::BrokenPipe => Ok(()),
        told => told.map_err(output_failed),
    }
}
