//! A log of acknowledged words on persistent memory, to be cut and verified from outside.
//!
//! `pmem_log write PATH COUNT` prints how the memory is made durable, then `ack N` once record N is
//! durable. `pmem_log verify PATH N` says whether records 0 to N are there.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "measurements fail by panicking"
)]

use esker_base::{Site, SiteKind};
use esker_media::Pmem;
use esker_media::pmem::{PmemFile, PmemOptions};
use std::path::Path;
use std::process::ExitCode;

const SIZE: u64 = 4 << 20;
const RECORD: u64 = 128;
const STORE: Site = Site::new("example.store", SiteKind::Write);
const FLUSH: Site = Site::new("example.flush", SiteKind::Flush);
const FENCE: Site = Site::new("example.fence", SiteKind::Fence);

fn payload(n: u64) -> [u8; 64] {
    std::array::from_fn(|place| u8::try_from((n.wrapping_mul(31) + place as u64) % 251).unwrap())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, path, number] = &arguments[..] else {
        eprintln!("pmem_log write PATH COUNT | verify PATH LAST");
        return ExitCode::from(2);
    };
    let number: u64 = number.parse().expect("a number");
    let create_size_bytes = (what == "write").then_some(SIZE);
    let options = PmemOptions { create_size_bytes, ..PmemOptions::default() };
    let pmem = PmemFile::open(Path::new(path), options).expect("the memory opens");
    println!("{}", pmem.report());
    if what == "write" {
        for n in 0..number.min(SIZE / RECORD) {
            let at = n * RECORD;
            pmem.ntstore(STORE, at + 64, &payload(n)).expect("store");
            pmem.fence(FENCE).expect("fence");
            pmem.store_u64(STORE, at, n + 1).expect("commit word");
            pmem.flush(FLUSH, at, 8).expect("flush");
            pmem.fence(FENCE).expect("fence");
            println!("ack {n}");
        }
        return ExitCode::SUCCESS;
    }
    for n in 0..=number {
        let mut found = [0; 64];
        pmem.read(n * RECORD + 64, &mut found).expect("read");
        if pmem.load_u64(n * RECORD).expect("load") != n + 1 || found != payload(n) {
            println!("record {n} is missing");
            return ExitCode::FAILURE;
        }
    }
    println!("records 0 to {number} are there");
    ExitCode::SUCCESS
}
