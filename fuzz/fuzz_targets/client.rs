//! Replies as a client reads them, and addresses.
#![no_main]

esker_fuzz::target!("client", esker_client::fuzzing);
