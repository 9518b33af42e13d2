//! Sessions of memcache's protocol.
#![no_main]

esker_fuzz::target!("memcache", esker_server::fuzzing::memcache);
