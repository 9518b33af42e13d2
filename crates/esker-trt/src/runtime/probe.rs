//! Whether a facility works here: containers forbid io_uring in several ways, one of which is
//! never to answer.
//!
//! A probe runs on a thread of its own and reads some bytes through the facility. If it does not
//! answer in time the thread is left behind and the facility refused.

use crate::config::{Config, Facility};
use crate::driver::{Driver, Event, IoKind, IoRequest, Wait};
use crate::wake::Mailbox;
use esker_base::clock::{Clock, SystemClock};
use esker_base::ids::CoreId;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use std::io::{self, IoSliceMut};
use std::os::fd::AsRawFd;
use std::sync::mpsc;

const BYTES: &[u8] = b"esker probes";

/// Tries a facility; the reason if it does not work.
pub(super) fn probe(facility: Facility, config: &Config) -> Result<(), String> {
    if facility == Facility::Sync {
        return Ok(());
    }
    let (sender, receiver) = mpsc::channel();
    let limit = config.probe_limit;
    let config = config.clone();
    std::thread::Builder::new()
        .name("esker-probe".to_owned())
        .spawn(move || {
            // The asker may have stopped waiting.
            let _ = sender.send(try_read(facility, &config));
        })
        .map_err(|error| format!("start thread: {error}"))?;
    match receiver.recv_timeout(limit) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {limit:?}")),
    }
}

fn try_read(facility: Facility, config: &Config) -> io::Result<()> {
    let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let mailbox = Mailbox::new(CoreId(0), Some(eventfd));
    let mut driver = Driver::build(facility, config, &mailbox)?;
    let file = memfd_create("esker-probe", MemfdFlags::CLOEXEC)?;
    rustix::io::pwrite(&file, BYTES, 0)?;
    // Leaked on purpose until the kernel has answered: it may write at any time before.
    let buffer = Box::leak(vec![0_u8; BYTES.len()].into_boxed_slice());
    let vectors = Box::leak(Box::new([IoSliceMut::new(buffer)]));
    let request = IoRequest {
        kind: IoKind::Read,
        fd: file.as_raw_fd(),
        vectors: vectors.as_mut_ptr().cast(),
        vector_count: 1,
        offset: 0,
    };
    driver.submit_io(0, request);
    let end = SystemClock.monotonic().saturating_add(config.probe_limit);
    let mut events = Vec::new();
    while SystemClock.monotonic() < end {
        let end_ns = u64::try_from(end.as_nanos()).unwrap_or(u64::MAX);
        driver.poll(Wait::Until(Some(end_ns)), &mut events)?;
        let answer = events.drain(..).find_map(|event| match event {
            Event::Io { result, .. } => Some(result),
            _ => None,
        });
        if let Some(result) = answer {
            let expected = i32::try_from(BYTES.len()).unwrap_or(0);
            let read_back = vectors.first().is_some_and(|vector| **vector == *BYTES);
            return match result {
                result if result == expected && read_back => Ok(()),
                result if result < 0 => Err(io::Error::from_raw_os_error(-result)),
                _ => Err(io::Error::other("a probe read returned wrong bytes")),
            };
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}
