//! Decoders of FlexSpace.
#![no_main]

esker_fuzz::target!("flex", esker_format::fuzzing::flex);
