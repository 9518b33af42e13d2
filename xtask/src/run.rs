//! Steps: commands that run from the root of the repository, one after another, until one fails.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

/// One command.
pub(crate) struct Step {
    title: String,
    command: Command,
    /// Each program of it has tests to run.
    has_tests: bool,
}

/// Root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// A call of cargo.
pub(crate) fn cargo(title: &str, arguments: &[&str]) -> Step {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(arguments);
    // Set by the outer cargo for this program, and wrong for the inner one.
    command.env_remove("CARGO_MANIFEST_DIR").env_remove("CARGO_PKG_NAME");
    Step { title: title.to_owned(), command, has_tests: false }
}

/// Where cargo builds.
pub(crate) fn target() -> PathBuf {
    root().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// An example that was built in the profile `checked`.
pub(crate) fn example(title: &str, name: &str, arguments: &[&str]) -> Step {
    let path = target().join("checked/examples").join(name);
    Step::program(title.to_owned(), &path, root()).arguments(arguments.iter().copied())
}

impl Step {
    /// A program, run in a folder.
    pub(crate) fn program(title: String, path: &Path, folder: &Path) -> Step {
        let mut command = Command::new(path);
        command.current_dir(folder);
        Step { title, command, has_tests: false }
    }

    /// Fails, too, if a program of it has no tests to run: a name that matches nothing passes otherwise.
    pub(crate) fn with_tests(mut self) -> Step {
        self.has_tests = true;
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Step {
        self.command.env(name, value);
        self
    }

    pub(crate) fn arguments(
        mut self,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Step {
        self.command.args(arguments);
        self
    }

    /// Runs the command, and returns what it prints; what it says of errors goes where ours does.
    pub(crate) fn output(mut self) -> Result<String> {
        println!("== {}", self.title);
        let mut printed = Vec::new();
        self.run(|command| {
            let output = command.stderr(Stdio::inherit()).output()?;
            printed = output.stdout;
            Ok(output.status)
        })?;
        String::from_utf8(printed).with_context(|| format!("{}: no text", self.title))
    }

    /// Runs the command; what it prints comes in one piece, amid what others print, when it has ended.
    fn run_aside(&mut self) -> Result<()> {
        let mut printed = Vec::new();
        let ran = self.run(|command| {
            let output = command.output()?;
            printed = [output.stdout, output.stderr].concat();
            Ok(output.status)
        });
        let printed = String::from_utf8_lossy(&printed);
        print!("{printed}");
        ran?;
        if self.has_tests && !counts_of_tests(&printed).all(|count| count > 0) {
            bail!("{}: a program has no tests to run", self.title);
        }
        Ok(())
    }

    /// Runs the command as `how` says.
    #[expect(clippy::disallowed_methods, reason = "how long a step took is told to people only")]
    fn run(&mut self, how: impl FnOnce(&mut Command) -> std::io::Result<ExitStatus>) -> Result<()> {
        let start = Instant::now();
        let status =
            how(&mut self.command).with_context(|| format!("{}: cannot start", self.title))?;
        if !status.success() {
            bail!("{} failed ({status})", self.title);
        }
        println!("== {} took {:.0?}", self.title, start.elapsed());
        Ok(())
    }
}

/// Runs the steps in order; the first that fails ends it.
pub(crate) fn all(steps: impl IntoIterator<Item = Step>) -> Result<()> {
    for mut step in steps {
        println!("== {}", step.title);
        match step.has_tests {
            true => step.run_aside()?,
            false => step.run(Command::status)?,
        }
    }
    Ok(())
}

/// Runs steps in order, and others in order at the same time. What those print that stand `aside` comes when each has ended.
pub(crate) fn beside(aside: Vec<Step>, others: Vec<Step>) -> Result<()> {
    std::thread::scope(|scope| {
        let aside = scope.spawn(|| {
            for mut step in aside {
                println!("== {}, beside others", step.title);
                step.run_aside()?;
            }
            Ok(())
        });
        let others = all(others);
        let Ok(aside) = aside.join() else { bail!("a step panicked") };
        aside.and(others)
    })
}

/// How many tests each program ran that printed this; 0 if none did.
pub(crate) fn counts_of_tests(printed: &str) -> impl Iterator<Item = u64> + '_ {
    let counts = printed.lines().filter_map(|line| {
        let words = line.strip_prefix("running ")?;
        words.strip_suffix(" tests").or_else(|| words.strip_suffix(" test"))?.parse().ok()
    });
    let mut counts = counts.peekable();
    let none = counts.peek().is_none().then_some(0);
    counts.chain(none)
}

/// Whether a program is on the path.
pub(crate) fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(printed: &str) -> Vec<u64> {
        counts_of_tests(printed).collect()
    }

    #[test]
    fn a_program_without_tests_is_noticed_among_others() {
        assert_eq!(counts(""), [0]);
        assert_eq!(counts("\nrunning 1 test\ntest it ... ok\n"), [1]);
        assert_eq!(counts("running 12 tests\n\nrunning 0 tests\n"), [12, 0]);
        let says = |words: &str| {
            let step = Step::program("says".to_owned(), Path::new("echo"), root());
            step.arguments([words]).with_tests()
        };
        assert!(all([says("running 2 tests")]).is_ok());
        assert!(all([says("running 0 tests")]).is_err());
        assert!(beside(vec![says("nothing")], vec![]).is_err());
    }
}
