//! What tests say that have nothing to run on.
//!
//! What a test prints is shown only if it fails. So what is skipped goes into a file, too, if the environment names one:
//! `cargo xtask check` and `cargo xtask test` do, and show its lines in the end. Tests of the crates that the kit depends on
//! include this file.

use std::fmt::Display;
use std::io::Write as _;

/// The variable that names the file.
const FILE: &str = "SKIPPED_TESTS";

/// The test that runs here is skipped, or a part of it.
///
/// # Panics
/// If the file cannot be written: then nobody would hear of it.
#[expect(clippy::disallowed_methods, reason = "a report, not a medium")]
pub fn because(why: impl Display) {
    let thread = std::thread::current();
    let line = format!("{}: {why}\n", thread.name().unwrap_or("a test"));
    eprint!("skipped: {line}");
    if let Some(path) = std::env::var_os(FILE) {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        // In one call: others append, too.
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.expect("the file of what is skipped is written");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn what_is_skipped_is_told_though_the_test_passes() {
        const INNER: &str = "esker-skipped-of-a-test";
        let (_, module) = module_path!().split_once("::").unwrap();
        let name = format!("{module}::what_is_skipped_is_told_though_the_test_passes");
        if std::env::var(FILE).is_ok_and(|path| path.contains(INNER)) {
            because("there is nothing to run on");
            return;
        }
        let path = std::env::temp_dir().join(format!("{INNER}-{}", std::process::id()));
        for times in 1..3 {
            let program = std::env::current_exe().unwrap();
            let ran = Command::new(program).args(["--exact", &name]).env(FILE, &path).output();
            let ran = ran.unwrap();
            assert!(ran.status.success(), "{ran:?}");
            let told = std::fs::read_to_string(&path).unwrap();
            let is_it = |line: &str| line.ends_with(": there is nothing to run on");
            assert!(told.lines().all(is_it) && told.lines().count() == times, "{told}");
        }
        std::fs::remove_file(path).unwrap();
    }
}
