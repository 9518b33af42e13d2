//! Steps: commands that run from the root of the repository, one after another, until one fails.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Instant;

/// One command.
pub(crate) struct Step {
    title: &'static str,
    command: Command,
}

/// Root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// A call of cargo.
pub(crate) fn cargo(title: &'static str, arguments: &[&str]) -> Step {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(arguments);
    // Set by the outer cargo for this program, and wrong for the inner one.
    command.env_remove("CARGO_MANIFEST_DIR").env_remove("CARGO_PKG_NAME");
    Step { title, command }
}

/// An example that was built in the profile `checked`.
pub(crate) fn example(title: &'static str, name: &str, arguments: &[&str]) -> Step {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let mut command = Command::new(target.join("checked/examples").join(name));
    command.args(arguments);
    Step { title, command }
}

impl Step {
    pub(crate) fn env(mut self, name: &str, value: &str) -> Step {
        self.command.env(name, value);
        self
    }

    /// Runs the command as `how` says.
    #[expect(clippy::disallowed_methods, reason = "how long a step took is told to people only")]
    fn run(&self, how: impl FnOnce(&mut Command) -> std::io::Result<ExitStatus>) -> Result<()> {
        let mut command = Command::new(self.command.get_program());
        command.args(self.command.get_args()).current_dir(root());
        for (name, value) in self.command.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let start = Instant::now();
        let status = how(&mut command).with_context(|| format!("{}: cannot start", self.title))?;
        if !status.success() {
            bail!("{} failed ({status})", self.title);
        }
        println!("== {} took {:.0?}", self.title, start.elapsed());
        Ok(())
    }

    pub(crate) fn arguments(mut self, arguments: &[String]) -> Step {
        self.command.args(arguments);
        self
    }
}

/// Runs the steps in order; the first that fails ends it.
pub(crate) fn all(steps: &[Step]) -> Result<()> {
    for step in steps {
        println!("== {}", step.title);
        step.run(Command::status)?;
    }
    Ok(())
}

/// Runs one step that leaves a processor idle, and others in order meanwhile. It prints what it has to say at its end.
pub(crate) fn beside(alone: &Step, others: &[Step]) -> Result<()> {
    println!("== {}, beside the next ones", alone.title);
    std::thread::scope(|scope| {
        let alone = scope.spawn(|| {
            let mut printed = Vec::new();
            let ran = alone.run(|command| {
                let output = command.output()?;
                printed = [output.stdout, output.stderr].concat();
                Ok(output.status)
            });
            (printed, ran)
        });
        let others = all(others);
        let Ok((printed, ran)) = alone.join() else { bail!("a step panicked") };
        print!("{}", String::from_utf8_lossy(&printed));
        ran.and(others)
    })
}

/// Whether a program is on the path.
pub(crate) fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Whether this process may mount and make devices.
pub(crate) fn is_root() -> bool {
    Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim() == "0")
}
