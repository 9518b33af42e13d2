//! Decoders of `flat`.
#![no_main]

esker_fuzz::target!("flat", esker_format::fuzzing::flat);
