//! The end of the process where going on, or unwinding, would free memory that the kernel may still write to.
//!
//! # Failure
//! That nobody can read standard error any more changes nothing: `eprintln!` would panic then, and unwind.

use std::fmt;
use std::io::{self, Write};

/// Says a line on standard error, if that can be written.
pub(crate) fn say(text: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Says why, and ends the process.
pub(crate) fn die(text: fmt::Arguments<'_>) -> ! {
    say(text);
    std::process::abort()
}

/// Ends the process when it is dropped, that is when something unwinds past it, unless it was told that all is well.
pub(crate) struct DiesUnlessDone {
    done: bool,
}

impl DiesUnlessDone {
    pub(crate) fn new() -> Self {
        DiesUnlessDone { done: false }
    }

    pub(crate) fn done(mut self) {
        self.done = true;
    }
}

impl Drop for DiesUnlessDone {
    fn drop(&mut self) {
        if !self.done {
            std::process::abort();
        }
    }
}
