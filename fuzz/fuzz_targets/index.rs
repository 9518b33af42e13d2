//! What indexes are made of that stood on media.
#![no_main]

esker_fuzz::target!("index", esker_index::fuzzing);
