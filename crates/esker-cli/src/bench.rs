//! `esker bench`: everything measured, beside what a user would pick instead.
//!
//! The library does the work; here is the command line, the progress on a terminal, and the process that each
//! cell gets for itself.

mod arguments;
mod cell;
mod compare;
mod raw;
mod run;
mod server;
mod shown;

pub(crate) use arguments::Bench;

use crate::failure::{Done, Failure};
use esker_bench::system::Registry;

/// `esker bench ...`.
pub(crate) fn bench(command: Bench) -> Result<Done, Failure> {
    match command {
        Bench::Run(arguments) => run::run(*arguments),
        Bench::Raw(arguments) => raw::raw(&arguments),
        Bench::Server(arguments) => server::server(*arguments),
        Bench::Compare { old, new } => compare::compare(&old, &new),
        Bench::Micro { factor } => raw::micro(factor),
        Bench::List => run::list(),
        Bench::Cell => cell::child(),
    }
}

/// The systems of this build.
fn registry() -> Registry {
    Registry::new().with(esker_peers::all())
}

/// Name and version of this program, for results.
fn program() -> String {
    format!("esker {}", env!("CARGO_PKG_VERSION"))
}

impl From<esker_bench::Failure> for Failure {
    fn from(failure: esker_bench::Failure) -> Self {
        Failure::broken(failure.to_string())
    }
}
