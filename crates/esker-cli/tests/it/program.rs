//! Runs of the program.

use std::io::{PipeWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// What a run of the program left behind.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) output: Vec<u8>,
    pub(crate) said: String,
}

impl Ran {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }

    #[track_caller]
    pub(crate) fn exits_with(self, code: i32) -> Ran {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }
}

pub(crate) struct Scratch(TempDir);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        Scratch(tempfile::tempdir().expect("scratch folder"))
    }

    /// A folder in memory that a power cut empties, where there is one.
    pub(crate) fn in_memory() -> Option<Scratch> {
        tempfile::tempdir_in("/dev/shm").ok().map(Scratch)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs `esker` in this folder.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        self.run_with(arguments, b"")
    }

    pub(crate) fn run_with(&self, arguments: &[&str], input: &[u8]) -> Ran {
        let mut child = self.spawn(arguments);
        // A program that does not read its input closes it.
        let _ = child.stdin.take().expect("piped").write_all(input);
        let done = child.wait_with_output().expect("ends");
        Ran {
            code: done.status.code(),
            output: done.stdout,
            said: String::from_utf8_lossy(&done.stderr).into_owned(),
        }
    }

    /// As [`Scratch::run`], where whoever reads the output has gone.
    pub(crate) fn run_unread(&self, arguments: &[&str]) -> Ran {
        self.run_changed(arguments, |program| program.stdout(unread()))
    }

    /// As [`Scratch::run`], where whoever listens to what is said has gone.
    pub(crate) fn run_unheard(&self, arguments: &[&str]) -> Ran {
        self.run_changed(arguments, |program| program.stderr(unread()))
    }

    fn run_changed(
        &self,
        arguments: &[&str],
        change: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Ran {
        let mut program = program(self.0.path());
        let done = change(program.args(arguments).stdin(Stdio::null())).output().expect("runs");
        Ran {
            code: done.status.code(),
            output: done.stdout,
            said: String::from_utf8_lossy(&done.stderr).into_owned(),
        }
    }

    pub(crate) fn spawn(&self, arguments: &[&str]) -> Child {
        program(self.0.path()).args(arguments).spawn().expect("start esker")
    }
}

/// The end of a pipe that nobody reads.
fn unread() -> PipeWriter {
    std::io::pipe().expect("a pipe").1
}

pub(crate) fn program(folder: &Path) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_esker"));
    program.current_dir(folder).env("ESKER_SIZE", "256MiB").env_remove("ESKER_LOG");
    // Those of the tests are none of the program.
    program.env_remove("ESKER_KILL_CYCLES").env_remove("ESKER_KILL_SEED");
    program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    program
}
