//! What a write that is refused leaves behind: nothing older in a cache, all of it in a store.

use crate::harness::{Client, TestServer};
use crate::limits::stat;
use esker_server::Limits;
use std::time::Duration;

/// Storage commands of each kind on the key `k` with a data block of `length` bytes, and whether memcached drops an older
/// value when it refuses them.
fn commands(length: usize) -> Vec<(String, bool)> {
    [
        (format!("set k 0 0 {length}"), true),
        (format!("set k 0 0 {length} noreply"), true),
        (format!("add k 0 0 {length}"), false),
        (format!("replace k 0 0 {length}"), false),
        (format!("append k 0 0 {length}"), false),
        (format!("cas k 0 0 {length} 1"), false),
        (format!("ms k {length}"), true),
        (format!("ms k {length} ME"), true),
        (format!("ms k {length} MA"), true),
        (format!("ms aw== {length} b MR"), true),
        (format!("ms k {length} C1"), true),
    ]
    .into()
}

/// A server of a cache, and one of a store.
fn both(limits: &Limits) -> [(TestServer, bool); 2] {
    let of_cache = TestServer::of_cache(|config| config.limits = limits.clone());
    [(of_cache, true), (TestServer::with_limits(limits.clone()), false)]
}

/// Has each command refused, with `words`.
fn check_all(client: &mut Client, cache: bool, length: usize, words: &str) {
    let block = "x".repeat(length);
    for (line, drops) in commands(length) {
        client.check_chat(b"set k 0 0 3\r\nold\r\n", "STORED\r\n");
        let said = if line.ends_with("noreply") { "" } else { words };
        client.check_chat(format!("{line}\r\n{block}\r\n").as_bytes(), said);
        let kept = if cache && drops { "" } else { "VALUE k 0 3\r\nold\r\n" };
        client.check_chat(b"get k\r\n", &format!("{kept}END\r\n"));
    }
}

#[test]
fn an_item_over_the_limit_leaves_an_older_one_in_a_store_and_none_in_a_cache() {
    let limits = Limits { item_size_max_bytes: 2048, ..Limits::default() };
    for (server, cache) in both(&limits) {
        let refused = "SERVER_ERROR object too large for cache\r\n";
        check_all(&mut server.client(), cache, 2049, refused);
        check_all(&mut server.client(), cache, 100_000, refused);
    }
}

#[test]
fn an_item_without_memory_to_arrive_in_leaves_an_older_one_in_a_store_and_none_in_a_cache() {
    // Four items of a mebibyte, and eight receive buffers.
    let limits = Limits {
        connections_max: 8,
        memory_max_bytes: (4 << 20) + 8 * 4096,
        request_timeout: Duration::from_secs(20),
        ..Limits::default()
    };
    for (server, cache) in both(&limits) {
        let body = "b".repeat((1 << 20) - 1);
        let mut client = server.client();
        client.check_chat(b"version\r\n", &format!("VERSION {}\r\n", esker_server::VERSION));
        let _holders: Vec<Client> = (0..2)
            .map(|_| {
                let mut holder = server.client();
                holder.send(format!("set h 0 0 {}\r\n{body}", 1 << 20).as_bytes());
                holder
            })
            .collect();
        while stat(&mut client, "memory_budget_free_bytes") > 2_200_000 {
            esker_trt::sleep(Duration::from_millis(5));
        }
        let refused = "SERVER_ERROR out of memory storing object\r\n";
        check_all(&mut client, cache, 200_000, refused);
    }
}
