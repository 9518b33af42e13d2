//! What clients that send or read too slowly cost the others.

use crate::harness::{Client, TestServer};
use esker_base::clock::{Clock, SystemClock};
use esker_server::Limits;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Requests of one measurement.
const REQUESTS: usize = 1_000;
/// Measurements until one is good: others use this machine, too.
const TRIES: usize = 6;
/// What a switch of threads on a busy machine may add to any request.
const SLACK: Duration = Duration::from_millis(5);

/// The 99th percentile of the times that requests of one client take.
fn p99(client: &mut Client) -> Duration {
    let mut times: Vec<Duration> = (0..REQUESTS)
        .map(|n| {
            let start = SystemClock.monotonic();
            client.send(format!("set k 0 0 4\r\n{n:04}\r\nget k\r\n").as_bytes());
            client.check_receive(format!("STORED\r\nVALUE k 0 4\r\n{n:04}\r\nEND\r\n").as_bytes());
            SystemClock.monotonic() - start
        })
        .collect();
    times.sort_unstable();
    times[REQUESTS * 99 / 100]
}

/// Measures without and with the attack, until the attack costs less than twice the time.
fn check_p99(server: &TestServer, mut attacked: impl FnMut(&mut dyn FnMut())) {
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        let mut client = server.client();
        let alone = p99(&mut client);
        let mut beside = Duration::MAX;
        attacked(&mut || beside = p99(&mut client));
        if beside < alone * 2 + SLACK {
            return;
        }
        seen.push((alone, beside));
    }
    panic!("alone and beside the attackers: {seen:?}");
}

#[test]
fn clients_that_send_a_byte_at_a_time_do_not_slow_down_the_others() {
    let server = TestServer::with_limits(Limits {
        request_timeout: Duration::from_secs(2),
        ..Limits::default()
    });
    check_p99(&server, |measure| {
        let mut slow: Vec<Client> = (0..200).map(|_| server.client()).collect();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for client in &mut slow {
                        client.send(b"g");
                    }
                    esker_trt::sleep(Duration::from_millis(100));
                }
            });
            measure();
            done.store(true, Ordering::Relaxed);
        });
    });
    // A request that never ends ends its connection, however steadily it drips.
    let mut drip = server.client();
    let since = SystemClock.monotonic();
    while server.server.connections() > 0 {
        drip.send(b"g");
        esker_trt::sleep(Duration::from_millis(50));
        assert!(SystemClock.monotonic() - since < Duration::from_secs(15), "still connected");
    }
}

#[test]
fn clients_that_never_read_do_not_slow_down_the_others() {
    let server =
        TestServer::with_limits(Limits { memory_max_bytes: 32 << 20, ..Limits::default() });
    let value = "v".repeat(1 << 20);
    server
        .client()
        .check_chat(format!("set big 0 0 {}\r\n{value}\r\n", value.len()).as_bytes(), "STORED\r\n");
    check_p99(&server, |measure| {
        let greedy: Vec<Client> = (0..10)
            .map(|_| {
                let mut client = server.client();
                client.send(&b"get big\r\n".repeat(500));
                client
            })
            .collect();
        measure();
        drop(greedy);
    });
}

#[test]
fn a_value_that_drips_ends_its_connection() {
    let server = TestServer::with_limits(Limits {
        request_timeout: Duration::from_secs(1),
        ..Limits::default()
    });
    // One that is stored, and one that is too large and passed over.
    for size in [500_000, 2_000_000_000] {
        let mut drip = server.client();
        drip.check_chat(b"mn\r\n", "MN\r\n");
        assert_eq!(server.server.connections(), 1);
        drip.send(format!("set k 0 0 {size}\r\n").as_bytes());
        let since = SystemClock.monotonic();
        while server.server.connections() > 0 {
            drip.send(b"v");
            esker_trt::sleep(Duration::from_millis(50));
            assert!(SystemClock.monotonic() - since < Duration::from_secs(15), "still connected");
        }
    }
}
