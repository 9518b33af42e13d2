//! Why a command failed, in one line, with its exit code.

use esker::ErrorKind;
use std::fmt;
use std::process::ExitCode;

/// Exit code: not found, or the check failed.
pub(crate) const NO: u8 = 1;
/// Exit code: the command line or the configuration is wrong. Also `clap`'s.
pub(crate) const USAGE: u8 = 2;
/// Exit code: input/output failed, or data are corrupted.
pub(crate) const BROKEN: u8 = 3;

/// What fails when another process has the store.
const LOCK_OF_STORE: &str = "lock device";
/// What can be done then.
pub(crate) const LOCKED_HELP: &str = "stop the server or command that has it open, or ask a server with --server URL (get, put, delete, stat, backup); \
a program that uses the library copies its own store while it is in use (Store::backup)";

/// How a command ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// Done.
    Yes,
    /// Done; the answer is no: not found, or not sound.
    No,
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    words: String,
    closed_pipe: bool,
}

impl Failure {
    /// The command line or the configuration is wrong.
    pub(crate) fn usage(words: impl Into<String>) -> Self {
        Failure { code: USAGE, words: words.into(), closed_pipe: false }
    }

    /// Input or output failed, or what was read is not what it should be.
    pub(crate) fn broken(words: impl Into<String>) -> Self {
        Failure { code: BROKEN, words: words.into(), closed_pipe: false }
    }

    /// An operating-system failure at `what`.
    pub(crate) fn io(what: impl fmt::Display, source: &std::io::Error) -> Self {
        Failure::broken(format!("{what}: {source}"))
    }

    /// Standard output takes no more.
    pub(crate) fn of_output(source: &std::io::Error) -> Self {
        let closed_pipe = source.kind() == std::io::ErrorKind::BrokenPipe;
        Failure { closed_pipe, ..Failure::io("standard output", source) }
    }

    /// The same, with the exit code of a process that failed for it.
    pub(crate) fn with_code_of(self, code: i32) -> Self {
        let code = u8::try_from(code).ok().filter(|code| *code != 0);
        Failure { code: code.unwrap_or(self.code), ..self }
    }

    /// The same, of one of several places.
    pub(crate) fn at(self, place: &str) -> Self {
        Failure { words: format!("{place}: {}", self.words), ..self }
    }

    /// The same, with more to say.
    pub(crate) fn and(self, more: &str) -> Self {
        Failure { words: format!("{}; {more}", self.words), ..self }
    }

    /// Whether whoever reads the output, which is all there was to do, has heard enough.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        self.closed_pipe
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // One line, whatever the causes are.
        f.write_str(&self.words.replace('\n', "; "))
    }
}

impl From<esker::Error> for Failure {
    fn from(error: esker::Error) -> Self {
        let code = match error.kind() {
            ErrorKind::InvalidArgument | ErrorKind::Unsupported => USAGE,
            _ => BROKEN,
        };
        let mut words = error.to_string();
        if error.kind() == ErrorKind::Locked && error.operation() == LOCK_OF_STORE {
            words = format!("{words}; {LOCKED_HELP}");
        }
        Failure { code, words, closed_pipe: false }
    }
}
