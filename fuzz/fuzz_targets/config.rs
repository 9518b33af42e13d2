//! Configuration files.
#![no_main]

esker_fuzz::target!("config", esker_cli::fuzzing::config);
