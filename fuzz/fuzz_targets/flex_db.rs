//! Decoders of `flex`.
#![no_main]

esker_fuzz::target!("flex_db", esker_format::fuzzing::flex_db);
