//! What one client, and all together, may take.

use crate::harness::{Client, TestServer};
use esker::EngineKind;
use esker_base::clock::{Clock as _, SystemClock};
use esker_server::{Limits, VERSION};
use std::io::{Read, Write};
use std::time::Duration;

fn version() -> String {
    format!("VERSION {VERSION}\r\n")
}

#[test]
fn an_item_at_the_limit_is_stored_and_one_byte_more_is_swallowed() {
    let limits = Limits { item_size_max_bytes: 100_000, ..Limits::default() };
    let server = TestServer::with_limits(limits);
    let mut client = server.client();
    let (fits, large) = ("x".repeat(100_000), "x".repeat(100_001));
    client.check_chat(format!("set k 0 0 100000\r\n{fits}\r\n").as_bytes(), "STORED\r\n");
    client.check_chat(b"get k\r\n", &format!("VALUE k 0 100000\r\n{fits}\r\nEND\r\n"));
    client.check_chat(b"append k 0 0 1\r\nx\r\n", "NOT_STORED\r\n");
    let refused = "SERVER_ERROR object too large for cache\r\n";
    client.check_chat(
        format!("add k 0 0 100001\r\n{large}\r\nversion\r\n").as_bytes(),
        &format!("{refused}{}", version()),
    );
    client.check_chat(b"get nope\r\n", "END\r\n");
    assert!(server.store.get(b"k").expect("get").is_some(), "add leaves what is there");
    client.check_chat(
        format!("set n 0 0 100001\r\n{large}\r\nget n\r\n").as_bytes(),
        &format!("{refused}END\r\n"),
    );
    client.check_chat(format!("set k 0 0 100001 noreply\r\n{large}\r\n").as_bytes(), "");
}

#[test]
fn the_payload_of_a_refused_item_is_never_a_command() {
    let server = TestServer::with_limits(Limits { item_size_max_bytes: 2048, ..Limits::default() });
    let mut client = server.client();
    client.check_chat(b"set victim 0 0 1\r\n1\r\n", "STORED\r\n");
    let payload = "delete victim\r\n".repeat(1000);
    let line = format!("set k 0 0 {}\r\n{payload}\r\n", payload.len());
    client.check_chat(line.as_bytes(), "SERVER_ERROR object too large for cache\r\n");
    let long_key = format!("set {} 0 0 15\r\ndelete victim\r\n\r\n", "k".repeat(251));
    client.check_chat(long_key.as_bytes(), "CLIENT_ERROR bad command line format\r\n");
    client.check_chat(b"get victim\r\n", "VALUE victim 0 1\r\n1\r\nEND\r\n");
}

#[test]
fn a_request_that_takes_too_long_to_arrive_ends_its_connection() {
    let server = TestServer::with_limits(Limits {
        request_timeout: Duration::from_millis(300),
        ..Limits::default()
    });
    for partial in [
        &b"ge"[..],
        b"set k 0 0 10\r\nabc",
        b"set k 0 0 100000\r\nabc",
        b"set k 0 0 10000000\r\nabc",
    ] {
        let mut client = server.client();
        client.send(partial);
        let mut rest = Vec::new();
        client.0.read_to_end(&mut rest).expect("closed in time");
        assert!(server.store.get(b"k").expect("get").is_none());
    }
    let mut client = server.client();
    assert_eq!((stat(&mut client, "request_timeouts"), stat(&mut client, "idle_kicks")), (4, 0));
    // One byte at a time is no progress.
    let mut slow = server.client();
    std::thread::scope(|scope| {
        let mut sender = Client(slow.0.try_clone().expect("clone"));
        scope.spawn(move || {
            for _ in 0..40 {
                sender.send(b"x");
                esker_trt::sleep(Duration::from_millis(30));
            }
        });
        let mut rest = Vec::new();
        // A connection that is cut off with bytes unread is reset.
        let _ = slow.0.read_to_end(&mut rest);
    });
    server.client().check_chat(b"version\r\n", &version());
}

#[test]
fn a_client_that_is_busy_for_longer_than_a_request_may_take_is_not_cut_off() {
    let server = TestServer::with_limits(Limits {
        request_timeout: Duration::from_secs(3),
        ..Limits::default()
    });
    let mut client = server.client();
    client.send(b"get a\r\nge");
    for _ in 0..40 {
        esker_trt::sleep(Duration::from_millis(100));
        client.send(b"t a\r\nge");
        client.check_receive(b"END\r\n");
    }
    client.send(b"t a\r\n");
    client.check_receive(b"END\r\nEND\r\n");
    esker_trt::sleep(Duration::from_millis(3500));
    client.check_chat(b"get a\r\n", "END\r\n");
}

#[test]
fn a_long_line_that_gets_on_is_not_cut_off() {
    let limits = Limits { request_timeout: Duration::from_secs(3), ..Limits::default() };
    let server = TestServer::with_limits(limits);
    let mut client = server.client();
    let line = format!("get {}\r\n", format!("{} ", "k".repeat(249)).repeat(3200));
    for piece in line.as_bytes().chunks(80_000) {
        client.send(piece);
        esker_trt::sleep(Duration::from_millis(400));
    }
    client.check_chat(b"", "END\r\n");
}

#[test]
fn silent_connections_stay_unless_an_idle_timeout_is_set() {
    let idle = Limits { idle_timeout: Duration::from_secs(2), ..Limits::default() };
    let server = TestServer::with_limits(idle);
    let mut client = server.client();
    client.check_chat(b"version\r\n", &version());
    let mut rest = Vec::new();
    client.0.read_to_end(&mut rest).expect("closed in time");
    assert!(rest.is_empty());
    let mut client = server.client();
    assert_eq!((stat(&mut client, "request_timeouts"), stat(&mut client, "idle_kicks")), (0, 1));
}

#[test]
fn one_connection_too_many_is_told_so_and_the_others_are_served() {
    let server = TestServer::with_limits(Limits { connections_max: 3, ..Limits::default() });
    let mut clients: Vec<Client> = (0..3).map(|_| server.client()).collect();
    for client in &mut clients {
        client.check_chat(b"version\r\n", &version());
    }
    for _ in 0..5 {
        server.client().check_receive(b"ERROR Too many open connections\r\n");
    }
    for client in &mut clients {
        client.check_chat(b"version\r\n", &version());
    }
    clients.pop();
    while server.server.connections() > 2 {
        esker_trt::sleep(Duration::from_millis(5));
    }
    server.client().check_chat(b"version\r\n", &version());
}

#[test]
fn clients_that_never_read_do_not_stop_the_others() {
    let limits = Limits {
        memory_max_bytes: 16 << 20,
        request_timeout: Duration::from_secs(1),
        ..Limits::default()
    };
    // One whose index says how long a value is, and one of which only what is in memory does.
    for engine in [EngineKind::Depot, EngineKind::Flex] {
        others_are_served_beside_the_greedy(&TestServer::on_engine(engine, |config| {
            config.limits = limits.clone();
        }));
    }
}

fn others_are_served_beside_the_greedy(server: &TestServer) {
    let value = "v".repeat(1 << 20);
    server
        .client()
        .check_chat(format!("set big 0 0 {}\r\n{value}\r\n", value.len()).as_bytes(), "STORED\r\n");
    let greedy: Vec<Client> = (0..10)
        .map(|_| {
            let mut client = server.client();
            client.send(&b"get big\r\n".repeat(500));
            client
        })
        .collect();
    for round in 0..20 {
        server.client().check_chat(
            format!("set k 0 0 2\r\n{round:02}\r\nget k\r\n").as_bytes(),
            &format!("STORED\r\nVALUE k 0 2\r\n{round:02}\r\nEND\r\n"),
        );
    }
    // They are cut off when their time is over.
    while server.server.connections() > 0 {
        esker_trt::sleep(Duration::from_millis(20));
    }
    drop(greedy);
    let mut client = server.client();
    client
        .check_chat(b"get big\r\n", &format!("VALUE big 0 {}\r\n{value}\r\nEND\r\n", value.len()));
}

#[test]
fn bodies_beyond_the_memory_budget_are_refused_and_swallowed() {
    // Four items of a mebibyte, and three receive buffers.
    let limits = Limits {
        connections_max: 8,
        memory_max_bytes: (4 << 20) + 8 * 4096,
        request_timeout: Duration::from_secs(20),
        ..Limits::default()
    };
    let server = TestServer::with_limits(limits);
    let body = "b".repeat(1 << 20);
    let mut holders: Vec<Client> = (0..5)
        .map(|index| {
            let mut client = server.client();
            client.send(format!("set h{index} 0 0 {}\r\n{}", body.len(), &body[1..]).as_bytes());
            esker_trt::sleep(Duration::from_millis(100));
            client
        })
        .collect();
    let mut replies = Vec::new();
    for client in &mut holders {
        client.send(b"b\r\n");
        let mut reply = [0; 8];
        client.0.read_exact(&mut reply).expect("a reply");
        replies.push(String::from_utf8_lossy(&reply).into_owned());
    }
    assert!(replies.iter().any(|reply| reply == "SERVER_E"), "{replies:?}");
    assert!(replies.iter().any(|reply| reply == "STORED\r\n"), "{replies:?}");
    let mut refused =
        holders.swap_remove(replies.iter().position(|reply| reply == "SERVER_E").expect("one"));
    refused.check_receive(b"RROR out of memory storing object\r\n");
    refused.check_chat(b"version\r\n", &version());
}

#[test]
fn uploads_that_stand_still_leave_half_of_the_memory_to_others() {
    let limits = Limits {
        connections_max: 32,
        memory_max_bytes: 8 << 20,
        request_timeout: Duration::from_secs(20),
        ..Limits::default()
    };
    let server = TestServer::with_limits(limits);
    let body = "b".repeat(1 << 20);
    let mut client = server.client();
    let large = format!("set large 0 0 {}\r\n{body}\r\n", body.len());
    client.check_chat(large.as_bytes(), "STORED\r\n");
    let _holders: Vec<Client> = (0..12)
        .map(|n| {
            let mut holder = server.client();
            holder.send(format!("set h{n} 0 0 {}\r\n{}", body.len(), &body[1..]).as_bytes());
            holder
        })
        .collect();
    while stat(&mut client, "memory_budget_free_bytes") > 5 << 20 {
        esker_trt::sleep(Duration::from_millis(5));
    }
    esker_trt::sleep(Duration::from_millis(500));
    let free = stat(&mut client, "memory_budget_free_bytes");
    assert!(free > (4 << 20) - (512 << 10), "{free} bytes are free");
    let reply = format!("VALUE large 0 {}\r\n{body}\r\nEND\r\n", body.len());
    for _ in 0..10 {
        client.check_chat(b"get large\r\n", &reply);
        client.check_chat(b"set n 0 0 2\r\n10\r\nincr n 5\r\n", "STORED\r\n15\r\n");
    }
}

/// A line can be as long as a data block, and stand still as well.
#[test]
fn lines_that_stand_still_leave_half_of_the_memory_to_others() {
    let limits = Limits {
        connections_max: 32,
        memory_max_bytes: 8 << 20,
        request_timeout: Duration::from_secs(20),
        ..Limits::default()
    };
    let server = TestServer::with_limits(limits);
    let value = "v".repeat(1 << 20);
    let mut client = server.client();
    let large = format!("set large 0 0 {}\r\n{value}\r\n", value.len());
    client.check_chat(large.as_bytes(), "STORED\r\n");
    let line = format!("get {}", format!("{} ", "k".repeat(249)).repeat(3900));
    let _holders: Vec<Client> = (0..12)
        .map(|_| {
            let mut holder = server.client();
            // Who finds no memory is refused before it has said all.
            let _ = holder.0.write_all(line.as_bytes());
            holder
        })
        .collect();
    while stat(&mut client, "memory_budget_free_bytes") > 6 << 20 {
        esker_trt::sleep(Duration::from_millis(5));
    }
    esker_trt::sleep(Duration::from_millis(500));
    let free = stat(&mut client, "memory_budget_free_bytes");
    assert!(free > (4 << 20) - (1 << 20), "{free} bytes are free");
    let reply = format!("VALUE large 0 {}\r\n{value}\r\nEND\r\n", value.len());
    for _ in 0..10 {
        client.check_chat(b"get large\r\n", &reply);
    }
}

/// As in memcached: who has begun a line is as idle as who has not.
#[test]
fn a_line_that_never_ends_is_idle_where_requests_may_take_for_ever() {
    let idle = Duration::from_secs(2);
    let limits =
        Limits { request_timeout: Duration::ZERO, idle_timeout: idle, ..Limits::default() };
    let server = TestServer::with_limits(limits);
    for said in [&b""[..], b"g", b"get ", b"version\r\nget k"] {
        let mut client = server.client();
        client.send(said);
        let mut rest = Vec::new();
        client.0.read_to_end(&mut rest).expect("closed in time");
    }
    let mut client = server.client();
    assert_eq!((stat(&mut client, "request_timeouts"), stat(&mut client, "idle_kicks")), (0, 4));
}

pub(crate) fn stat(client: &mut Client, name: &str) -> u64 {
    let stats = client.stats();
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
    line.expect("a figure").parse().expect("a number")
}

#[test]
fn a_small_item_is_read_while_there_is_no_room_for_a_large_one() {
    // Four items of a mebibyte, and eight receive buffers.
    let limits = Limits {
        connections_max: 8,
        memory_max_bytes: (4 << 20) + 8 * 4096,
        request_timeout: Duration::from_secs(20),
        ..Limits::default()
    };
    for engine in [EngineKind::Depot, EngineKind::Flex] {
        small_items_are_read_beside_large_ones(&TestServer::on_engine(engine, |config| {
            config.limits = limits.clone();
        }));
    }
}

fn small_items_are_read_beside_large_ones(server: &TestServer) {
    let mut client = server.client();
    client.check_chat(b"set small 0 0 5\r\nsmall\r\n", "STORED\r\n");
    let body = "b".repeat(1 << 20);
    let large = format!("set large 0 0 {}\r\n{body}\r\n", body.len());
    client.check_chat(large.as_bytes(), "STORED\r\n");
    // Bodies that do not end, and replies that nobody takes, leave less than a mebibyte.
    let mut holders: Vec<Client> = [512 << 10, body.len() - 1]
        .into_iter()
        .map(|part| {
            let mut holder = server.client();
            holder.send(format!("set h 0 0 {}\r\n{}", body.len(), &body[..part]).as_bytes());
            holder
        })
        .collect();
    esker_trt::sleep(Duration::from_millis(200));
    let mut deaf = server.client();
    deaf.send(&b"get large\r\n".repeat(500));
    holders.push(deaf);
    let free = |client: &mut Client| {
        let stats = client.stats();
        let line =
            stats.lines().find_map(|line| line.strip_prefix("STAT memory_budget_free_bytes "));
        line.expect("a figure").parse::<u64>().expect("a number")
    };
    while free(&mut client) > 700 << 10 {
        esker_trt::sleep(Duration::from_millis(5));
    }
    client.0.set_read_timeout(Some(Duration::from_secs(5))).expect("timeout");
    for _ in 0..100 {
        client.check_chat(b"get small\r\n", "VALUE small 0 5\r\nsmall\r\nEND\r\n");
    }
    // Misses, and as many small items as a wave has, need no room for large ones.
    let wave = b"get small none\r\n".repeat(32);
    client.check_chat(&wave, &"VALUE small 0 5\r\nsmall\r\nEND\r\n".repeat(32));
    let mut greedy = server.client();
    greedy.send(b"get large\r\n");
    greedy.0.set_read_timeout(Some(Duration::from_millis(300))).expect("timeout");
    assert!(greedy.0.read(&mut [0; 1]).is_err(), "there was no room for the large one");
    drop(holders);
    greedy.0.set_read_timeout(Some(Duration::from_secs(30))).expect("timeout");
    greedy.check_receive(format!("VALUE large 0 {}\r\n{body}\r\nEND\r\n", body.len()).as_bytes());
    drop(greedy);
    while free(&mut client) < (4 << 20) - 4096 {
        esker_trt::sleep(Duration::from_millis(5));
    }
}

/// Nobody waits behind a request that is waited for in vain.
#[test]
fn an_item_larger_than_all_memory_is_refused_at_once() {
    let limits = Limits { connections_max: 16, memory_max_bytes: 5 << 20, ..Limits::default() };
    let server = TestServer::with_limits(limits);
    server.store.put(b"big", &vec![b'b'; 6 << 20]).expect("put");
    server.client().check_chat(b"set small 0 0 1\r\ns\r\n", "STORED\r\n");
    let since = SystemClock.monotonic();
    let mut greedy = server.client();
    greedy.send(&b"get big\r\n".repeat(3));
    for _ in 0..20 {
        server.client().check_chat(b"get small\r\n", "VALUE small 0 1\r\ns\r\nEND\r\n");
    }
    assert!(greedy.line().starts_with("SERVER_ERROR out of memory"));
    let passed = SystemClock.monotonic().saturating_sub(since);
    assert!(passed < Duration::from_secs(9), "{passed:?}");
}

/// Of values that `flex` copies out of what it has read, too, a client that takes none holds few, and they are counted.
#[test]
fn values_that_nobody_takes_are_counted_whatever_the_engine() {
    const ITEMS: u64 = 30;
    const SIZE: usize = 500_000;
    for engine in [EngineKind::Depot, EngineKind::Flex] {
        let limits =
            Limits { connections_max: 64, memory_max_bytes: 24 << 20, ..Limits::default() };
        let server = TestServer::on_engine(engine, |config| config.limits = limits);
        let mut client = server.client();
        let body = "b".repeat(SIZE);
        let mut gets = Vec::new();
        for number in 0..ITEMS {
            client.check_chat(
                format!("set k{number} 0 0 {SIZE}\r\n{body}\r\n").as_bytes(),
                "STORED\r\n",
            );
            gets.extend_from_slice(format!("get k{number}\r\n").as_bytes());
        }
        let before = stat(&mut client, "memory_budget_free_bytes");
        let mut deaf = server.client();
        deaf.send(&gets.repeat(10));
        let mut held = |rest| {
            esker_trt::sleep(Duration::from_millis(rest));
            before.saturating_sub(stat(&mut client, "memory_budget_free_bytes"))
        };
        // What a connection may hold, but for what the sockets take of it.
        let is_held = (0..2000).any(|_| held(10) >= 2 << 20);
        let most = (0..400).map(|_| held(1)).max().expect("some");
        assert!(is_held && most < 6 << 20, "{engine}: {most} bytes");
    }
}
