//! What clients that send or read too slowly, or too fast, cost the others.

use crate::harness::{Client, TestServer, set_clock};
use esker::Durability;
use esker_base::clock::{Clock, ManualClock, SystemClock};
use esker_server::Limits;
use std::sync::Arc;
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

/// Sends `head` and then `bytes` again and again, until it is told to end or the server ends it.
fn flood(server: &TestServer, head: &[u8], bytes: &[u8], done: &AtomicBool) {
    let mut client = server.client();
    client.0.set_write_timeout(Some(Duration::from_secs(2))).expect("timeout");
    client.send(head);
    while !done.load(Ordering::Relaxed) {
        client.send(bytes);
    }
}

#[test]
fn clients_that_never_stop_sending_leave_the_core_to_the_others() {
    const LONGEST: Duration = Duration::from_secs(15);
    let server = TestServer::on_cores(1, Durability::None, |_| {});
    let large = format!("set x 0 0 1000000 noreply\r\n{}\r\n", "v".repeat(1_000_000));
    let floods = [
        (String::new(), "verbosity 1 noreply\r\n".repeat(4096)),
        (String::new(), "mg nokey q\r\n".repeat(8192)),
        (String::new(), "mg nokey q\r\n".repeat(8192)),
        ("set x 0 0 2000000000\r\n".to_owned(), "v".repeat(1 << 16)),
        (String::new(), large),
    ];
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (head, bytes) in &floods {
            let (server, done) = (&server, &done);
            scope.spawn(move || flood(server, head.as_bytes(), bytes.as_bytes(), done));
        }
        while server.server.connections() < 5 {
            esker_trt::sleep(Duration::from_millis(1));
        }
        let mut slowest = Duration::ZERO;
        for n in 0..50 {
            let start = SystemClock.monotonic();
            let mut client = server.client();
            client.0.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
            client.check_chat(
                format!("set k 0 0 2\r\n{n:02}\r\nget k\r\n").as_bytes(),
                &format!("STORED\r\nVALUE k 0 2\r\n{n:02}\r\nEND\r\n"),
            );
            slowest = slowest.max(SystemClock.monotonic() - start);
        }
        // The end of a server waits for none of them.
        let start = SystemClock.monotonic();
        let all_answered = server.server.stop(Duration::from_secs(60));
        let stopped = SystemClock.monotonic() - start;
        done.store(true, Ordering::Relaxed);
        assert!(slowest < LONGEST, "a client beside them waited for {slowest:?}");
        assert!(all_answered && stopped < Duration::from_secs(30), "it took {stopped:?} to stop");
    });
    server.runtime.shutdown().expect("every session ends");
}

#[test]
fn slow_clients_are_let_be_while_there_is_memory_and_cut_off_when_it_is_short() {
    let clock = Arc::new(ManualClock::new(1_000_000_000));
    let server = TestServer::with(|config| {
        set_clock(config, &clock);
        config.limits = Limits {
            connections_max: 64,
            memory_max_bytes: 16 << 20,
            request_timeout: Duration::ZERO,
            ..Limits::default()
        };
    });
    let value = "v".repeat(1 << 20);
    let mut client = server.client();
    let large = format!("set big 0 0 {}\r\n{value}\r\n", value.len());
    client.check_chat(large.as_bytes(), "STORED\r\n");
    // Half a line, half a value, and one that takes no replies.
    let mut typist = server.client();
    typist.send(b"ge");
    let mut uploader = server.client();
    uploader.send(format!("set half 0 0 {}\r\n{}", value.len(), &value[2..]).as_bytes());
    let mut deaf = server.client();
    deaf.send(&b"get big\r\n".repeat(20));
    for _ in 0..3 {
        esker_trt::sleep(Duration::from_millis(300));
        clock.advance(Duration::from_secs(600));
    }
    esker_trt::sleep(Duration::from_millis(500));
    typist.send(b"t nokey\r\n");
    typist.check_receive(b"END\r\n");
    uploader.send(b"vv\r\n");
    uploader.check_receive(b"STORED\r\n");
    let reply = format!("VALUE big 0 {}\r\n{value}\r\nEND\r\n", value.len());
    for _ in 0..20 {
        deaf.check_receive(reply.as_bytes());
    }
    // Many uploads that stand still: whoever asks for memory then waits for those that were slow for long.
    let stuck: Vec<Client> = (0..12)
        .map(|n| {
            let mut client = server.client();
            client.send(format!("set s{n} 0 0 {}\r\n{}", value.len(), &value[2..]).as_bytes());
            client
        })
        .collect();
    while server.server.connections() < 16 {
        esker_trt::sleep(Duration::from_millis(5));
    }
    esker_trt::sleep(Duration::from_millis(500));
    let since = SystemClock.monotonic();
    while server.server.connections() == 16 {
        // Those whose bytes came late are slow from then on.
        clock.advance(Duration::from_secs(11));
        esker_trt::sleep(Duration::from_millis(500));
        assert!(SystemClock.monotonic() - since < Duration::from_secs(30), "all are let be");
    }
    drop(stuck);
    client.check_chat(large.as_bytes(), "STORED\r\n");
}
