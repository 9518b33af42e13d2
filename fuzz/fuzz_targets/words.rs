//! Words of command lines.
#![no_main]

esker_fuzz::target!("words", esker_cli::fuzzing::words);
