//! Dumps and traces.
#![no_main]

esker_fuzz::target!("dump", esker_cli::fuzzing::dump);
