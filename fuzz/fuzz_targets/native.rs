//! Decoders of the native protocol.
#![no_main]

esker_fuzz::target!("native", esker_format::fuzzing::native);
