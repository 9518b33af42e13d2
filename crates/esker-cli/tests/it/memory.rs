//! Memory of a server under clients that ask for much and read nothing.

use crate::program::Scratch;
use crate::serving::{Serving, stop_and_wait};
use std::io::{Read, Write};
use std::net::TcpStream;

const BUDGET: u64 = 256 << 20;
const CLIENTS: usize = 800;

/// Memory of a process that is in DRAM, in bytes.
fn resident_bytes(serving: &Serving) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", serving.child.id()));
    let status = status.expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a figure");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

#[test]
fn slow_readers_and_many_clients_stay_within_the_budget() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch, &["--durability", "none", "--cores", "2"]);
    let value = "v".repeat(1 << 20);
    let set = format!("set big 0 0 {}\r\n{value}\r\nset small 0 0 1\r\ns\r\n", value.len());
    assert_eq!(serving.talk(&set), "STORED\r\nSTORED\r\n");
    let greedy: Vec<TcpStream> = (0..10)
        .map(|_| {
            let mut stream = serving.connect();
            stream.write_all(&b"get big\r\n".repeat(500)).expect("send");
            stream
        })
        .collect();
    let mut most = 0;
    let mut clients: Vec<TcpStream> = (0..CLIENTS).map(|_| serving.connect()).collect();
    for _ in 0..3 {
        for client in &mut clients {
            client.write_all(b"get small\r\n").expect("send");
        }
        for client in &mut clients {
            let mut reply = [0; 25];
            client.read_exact(&mut reply).expect("served beside the greedy");
            assert_eq!(&reply, b"VALUE small 0 1\r\ns\r\nEND\r\n");
        }
        most = most.max(resident_bytes(&serving));
    }
    assert!(most < BUDGET + BUDGET / 10, "{most} bytes");
    drop((greedy, clients));
    stop_and_wait(serving, "-TERM");
}

#[test]
fn small_replies_that_nobody_reads_stay_within_a_small_budget() {
    const BUDGET: u64 = 12 << 20;
    // Stacks of tasks, 256 for each core; builds with debug assertions use much more of them.
    const SLACK: u64 = 32 << 20;
    let scratch = Scratch::new();
    let more = ["--durability", "none", "--cores", "2", "--memory-max", "12MiB"];
    let serving = Serving::start(&scratch, &more);
    let value = "v".repeat(900);
    assert_eq!(serving.talk(&format!("set k 0 0 900\r\n{value}\r\n")), "STORED\r\n");
    for requests in [b"get k\r\n".repeat(4000), b"\n".repeat(60_000)] {
        let mut clients: Vec<TcpStream> = (0..300).map(|_| serving.connect()).collect();
        let mut reply = [0; 922];
        for client in &mut clients {
            client.write_all(b"get k\r\n").expect("send");
            client.read_exact(&mut reply).expect("served");
        }
        let before = resident_bytes(&serving);
        for client in &mut clients {
            client.set_nonblocking(true).expect("a socket");
            // What does not fit is not sent.
            let _ = client.write(&requests);
        }
        let mut most = 0;
        for _ in 0..20 {
            esker_trt::sleep(std::time::Duration::from_millis(50));
            most = most.max(resident_bytes(&serving));
        }
        assert!(most < before + BUDGET + SLACK, "{before} bytes before, {most} with the replies");
    }
    stop_and_wait(serving, "-TERM");
}
