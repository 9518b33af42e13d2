//! The `esker` program: a server, and tools for the store of one host. All of it is this library, so that fuzzers can reach it (`fuzz/`).
//!
//! Exit codes: 0 done, 1 not found or check failed, 2 usage, 3 I/O or corruption. What a command is
//! asked for goes to standard output; everything said to people goes to standard error.
#![deny(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "they panic where nobody reads; `service::say` and `output` do not"
)]

mod arguments;
mod backup;
mod bench;
mod commands;
mod config;
mod dump;
mod failure;
mod figures;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
#[allow(clippy::indexing_slicing, clippy::expect_used, reason = "fuzz targets fail by panicking")]
pub mod fuzzing;
mod memcached;
mod memory;
mod output;
mod progress;
mod remote;
mod scan;
mod serve;
mod service;
mod store;

use arguments::{Arguments, Command};
use failure::{Done, Failure};
use std::process::ExitCode;

/// The whole program.
#[must_use]
pub fn main() -> ExitCode {
    memory::set_up();
    match Arguments::read().and_then(|arguments| run(arguments.command)) {
        Ok(Done::Yes) => ExitCode::SUCCESS,
        Ok(Done::No) => ExitCode::from(failure::NO),
        Err(failure) if failure.is_closed_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            service::say(&format!("esker: {failure}"));
            failure.exit_code()
        }
    }
}

fn run(command: Command) -> Result<Done, Failure> {
    match command {
        Command::Serve(arguments) => serve::serve(&arguments),
        Command::Memcached { arguments } => memcached::memcached(&arguments),
        Command::Get { data, servers, key } => commands::get(&data, &servers, &key),
        Command::Put { data, servers, new, key, value } => {
            commands::put(&data, &servers, &new, &key, value)
        }
        Command::Delete { data, servers, key } => commands::delete(&data, &servers, &key),
        Command::Scan { data, shown } => scan::scan(&data, &shown),
        Command::Stat { data, servers, json } => figures::stat(&data, &servers, json),
        Command::Check { data, repair, dry_run } => commands::check(&data, repair, dry_run),
        Command::Compact { data, trim } => commands::compact(&data, trim),
        Command::Backup { data, servers, target } => {
            backup::backup(&data, &servers, target.as_deref())
        }
        Command::Restore { data, size, memory, source } => {
            backup::restore(&data, size.as_deref(), &memory, &source)
        }
        Command::Dump { data, skip_damaged, file } => {
            dump::dump(&data, skip_damaged, file.as_deref())
        }
        Command::Load { data, new, file } => dump::load(&data, &new, file.as_deref()),
        Command::Bench { command } => bench::bench(command),
    }
}
