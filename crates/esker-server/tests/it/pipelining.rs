//! Replies in order, however requests are cut, and however many come at once.

use crate::harness::{Client, TestServer};
use esker::Durability;
use esker_base::rng::Rng;
use esker_server::Limits;
use std::time::Duration;

fn conversation() -> (Vec<u8>, Vec<u8>) {
    let (mut requests, mut replies) = (Vec::new(), Vec::new());
    let mut add = |request: &[u8], reply: &[u8]| {
        requests.extend_from_slice(request);
        replies.extend_from_slice(reply);
    };
    let large = b"L".repeat(40_000);
    add(b"set a 0 0 2\r\nhi\r\n", b"STORED\r\n");
    add(b"get a\r\n", b"VALUE a 0 2\r\nhi\r\nEND\r\n");
    add(b"set a 1 0 2 noreply\r\n\r\n\r\n", b"");
    add(b"get a nope\r\n", b"VALUE a 1 2\r\n\r\n\r\nEND\r\n");
    add(b"bogus\r\n", b"ERROR\r\n");
    add(b"set big 3 0 40000\r\n", b"");
    add(&large, b"");
    add(b"\r\n", b"STORED\r\n");
    add(b"get big\n", b"VALUE big 3 40000\r\n");
    add(b"", &large);
    add(b"", b"\r\nEND\r\n");
    add(b"set a 0 0 3\r\nabcde", b"CLIENT_ERROR bad data chunk\r\n");
    add(b"set a 0 0 9999999\r\n", b"SERVER_ERROR object too large for cache\r\n");
    add(&b"get a\r\n".repeat(1_428_571)[..9_999_997], b"");
    add(b"xx\r\n", b"");
    add(b"get a\r\n", b"VALUE a 1 2\r\n\r\n\r\nEND\r\n");
    (requests, replies)
}

#[test]
fn replies_do_not_depend_on_how_requests_are_cut() {
    let server = TestServer::start();
    let (requests, replies) = conversation();
    let head = requests.iter().position(|byte| *byte == b'L').expect("a large value");
    let mut rng = Rng::from_seed(0x50_11D5);
    for round in 0..60 {
        let mut client = server.client();
        client.send(b"flush_all noreply\r\n");
        // The first bytes one cut at a time, then anywhere.
        let cuts = if round < 40 {
            vec![head * round / 40 + 1]
        } else {
            (0..8).map(|_| rng.index(head + 50_000)).collect()
        };
        let mut cuts: Vec<usize> = cuts;
        cuts.sort_unstable();
        let mut from = 0;
        for cut in cuts {
            client.send(&requests[from..cut.max(from)]);
            from = cut.max(from);
            esker_trt::sleep(Duration::from_millis(1));
        }
        std::thread::scope(|scope| {
            let mut sender = Client(client.0.try_clone().expect("clone"));
            let rest = &requests[from..];
            scope.spawn(move || sender.send(rest));
            client.check_receive(&replies);
        });
    }
}

#[test]
fn a_stream_byte_by_byte_says_the_same() {
    let server = TestServer::start();
    let mut client = server.client();
    for byte in b"set k 5 0 5\r\nhello\r\ngets\r\nget k nope\r\ndelete k\r\nget k\r\n" {
        client.send(&[*byte]);
        esker_trt::sleep(Duration::from_micros(200));
    }
    client.check_receive(b"STORED\r\nERROR\r\nVALUE k 5 5\r\nhello\r\nEND\r\nDELETED\r\nEND\r\n");
}

#[test]
fn many_pipelined_requests_are_answered_in_order() {
    let server = TestServer::start();
    let mut client = server.client();
    let (mut requests, mut replies) = (String::new(), String::new());
    for index in 0..5_000 {
        let key = index % 100;
        requests.push_str(&format!(
            "set k{key} 0 0 4\r\n{index:04}\r\nget k{key} k{}\r\n",
            (key + 1) % 100
        ));
        replies.push_str(&format!("STORED\r\nVALUE k{key} 0 4\r\n{index:04}\r\n"));
        if index >= 99 {
            let other = index - 99;
            replies.push_str(&format!("VALUE k{} 0 4\r\n{other:04}\r\n", (key + 1) % 100));
        }
        replies.push_str("END\r\n");
    }
    std::thread::scope(|scope| {
        let mut sender = Client(client.0.try_clone().expect("clone"));
        scope.spawn(move || sender.send(requests.as_bytes()));
        client.check_receive(replies.as_bytes());
    });
}

#[test]
fn requests_on_one_key_take_effect_in_their_order() {
    let server = TestServer::start();
    let mut client = server.client();
    let mut requests = String::from("set n 0 0 1\r\n0\r\n");
    let mut replies = String::from("STORED\r\n");
    for number in 1..=500 {
        requests.push_str("incr n 1\r\n");
        replies.push_str(&format!("{number}\r\n"));
    }
    client.send(requests.as_bytes());
    client.check_receive(replies.as_bytes());
}

#[test]
fn clients_that_count_together_lose_nothing() {
    let server = TestServer::start();
    server.client().check_chat(b"set n 0 0 1\r\n0\r\n", "STORED\r\n");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = server.client();
                client.check_chat(&b"incr n 1 noreply\r\n".repeat(200), "");
            });
        }
    });
    server.client().check_chat(b"get n\r\n", "VALUE n 0 4\r\n1600\r\nEND\r\n");
}

#[test]
fn a_line_of_very_many_keys_is_answered() {
    let server = TestServer::start();
    let mut client = server.client();
    client.check_chat(b"set k 0 0 1\r\nv\r\n", "STORED\r\n");
    let line = format!("get {}\r\n", "k miss ".repeat(20_000));
    let reply = format!("{}END\r\n", "VALUE k 0 1\r\nv\r\n".repeat(20_000));
    std::thread::scope(|scope| {
        let mut sender = Client(client.0.try_clone().expect("clone"));
        scope.spawn(move || sender.send(line.as_bytes()));
        client.check_receive(reply.as_bytes());
    });
}

/// Requests of one connection run together unless they mean one key, however the keys are written and whatever
/// values may be.
#[test]
fn requests_on_different_keys_share_commits() {
    const REQUESTS: u32 = 32;
    let encoded = |n: u32| {
        let bytes = format!("{n:03}");
        let bits = bytes.bytes().fold(0_u32, |bits, byte| bits << 8 | u32::from(byte));
        let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let letter = |place: u32| char::from(alphabet[(bits >> (18 - 6 * place) & 63) as usize]);
        (0..4).map(letter).collect::<String>()
    };
    // More than a connection's replies may hold: nothing but numbers may be made of it.
    let limits = Limits { item_size_max_bytes: 8 << 20, ..Limits::default() };
    let server = TestServer::with_durability(Durability::Sync, |config| config.limits = limits);
    let mut client = server.client();
    let batches = || server.store.check().expect("check").batches;
    let mut commits = |request: &dyn Fn(u32) -> String, reply: &dyn Fn(u32) -> String| {
        let requests: String = (0..REQUESTS).map(request).collect();
        let replies: String = (0..REQUESTS).map(reply).collect();
        let before = batches();
        client.send(requests.as_bytes());
        client.check_receive(replies.as_bytes());
        batches() - before
    };
    let stored = |_| "HD\r\n".to_owned();
    let many = u64::from(REQUESTS);
    let one_key = commits(&|_| format!("ms {} 1 b\r\n5\r\n", encoded(7)), &stored);
    assert_eq!(one_key, many, "one behind the other");
    let plain = commits(&|n| format!("ms {n:03} 1\r\n5\r\n"), &stored);
    assert!(plain < many / 2, "{plain} commits");
    let in_base64 = commits(&|n| format!("ms {} 1 b\r\n5\r\n", encoded(n)), &stored);
    assert!(in_base64 < many / 2, "{in_base64} commits of keys in base64");
    let value = |_| "VA 1\r\n5\r\n".to_owned();
    let touched = commits(&|n| format!("mg {} b T0 v\r\n", encoded(n)), &value);
    assert!(touched < many / 2, "{touched} commits of new times");
    let stepped = commits(&|n| format!("incr {n:03} 1\r\n"), &|_| "6\r\n".to_owned());
    assert!(stepped < many / 2, "{stepped} commits of numbers");
    // The same key, in words and in base64: one behind the other.
    let both = |n: u32| match n % 2 {
        0 => format!("ms 007 2\r\n{n:02}\r\n"),
        _ => format!("mg {} b v\r\n", encoded(7)),
    };
    let seen = |n: u32| match n % 2 {
        0 => "HD\r\n".to_owned(),
        _ => format!("VA 2\r\n{:02}\r\n", n - 1),
    };
    commits(&both, &seen);
}
