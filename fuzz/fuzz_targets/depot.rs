//! Decoders of `depot` and of striped devices.
#![no_main]

esker_fuzz::target!("depot", esker_format::fuzzing::depot);
