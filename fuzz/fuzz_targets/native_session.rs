//! Sessions of the native protocol.
#![no_main]

esker_fuzz::target!("native_session", esker_server::fuzzing::native);
