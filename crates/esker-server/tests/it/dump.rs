//! Lists of items.

use crate::harness::{Client, TestServer, set_clock};
use esker_base::clock::ManualClock;
use std::collections::BTreeSet;
use std::io::Read;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

/// What a server says to `line` alone.
fn told(client: &mut Client, line: &str) -> Vec<String> {
    let (reply, closed) = client.say(line.as_bytes());
    assert!(!closed, "closed after {line:?}");
    String::from_utf8(reply).expect("text").lines().map(str::to_owned).collect()
}

#[test]
fn items_are_listed_with_their_figures_as_requests_and_with_their_sizes() {
    let clock = Arc::new(ManualClock::new(1_000_000_000));
    let server = TestServer::with(|config| set_clock(config, &clock));
    let mut client = server.client();
    client.check_chat(
        b"set a:b-c 7 0 3\r\nabc\r\nset soon 0 10 1\r\nx\r\nset later 0 100 1\r\nx\r\nset over 0 5 1\r\nx\r\nms AWI= 2 b E77\r\nhi\r\nget a:b-c\r\n",
        "STORED\r\nSTORED\r\nSTORED\r\nSTORED\r\nHD\r\nVALUE a:b-c 7 3\r\nabc\r\nEND\r\n",
    );
    clock.advance(Duration::from_secs(7));
    let figures = told(&mut server.client(), "lru_crawler metadump all\r\n");
    assert_eq!(figures.last().map(String::as_str), Some("END"));
    let begins: BTreeSet<&str> = figures
        .iter()
        .map(|line| {
            let (begin, rest) = line.split_once(" la=").unwrap_or((line, ""));
            assert!(line == "END" || rest.starts_with("1000000000 cas="), "{line}");
            begin
        })
        .collect();
    let expected = [
        "END",
        "key=%01b exp=-1",
        "key=a%3Ab-c exp=-1",
        "key=later exp=1000000100",
        // The mark of the harness.
        "key=~mark~ exp=-1",
        "key=soon exp=1000000010",
    ];
    assert_eq!(begins, BTreeSet::from(expected));
    let of = |key: &str| figures.iter().find(|line| line.starts_with(key)).expect("listed");
    assert!(of("key=%01b").ends_with(" cas=77 fetch=no cls=1 size=4"), "{figures:?}");
    assert!(of("key=a").contains(" fetch=yes "), "{figures:?}");

    let requests = told(&mut server.client(), "lru_crawler mgdump hash\r\n");
    assert_eq!(requests.last().map(String::as_str), Some("EN"));
    let requests: BTreeSet<&str> = requests.iter().map(String::as_str).collect();
    let expected = ["EN", "mg AWI= b", "mg a:b-c", "mg later", "mg soon", "mg ~mark~"];
    assert_eq!(requests, BTreeSet::from(expected));

    let sizes = told(&mut server.client(), "stats cachedump 1 0\r\n");
    assert_eq!(sizes.last().map(String::as_str), Some("END"));
    let sizes: BTreeSet<&str> = sizes.iter().map(String::as_str).collect();
    let expected = [
        "END",
        "ITEM a:b-c [3 b; 0 s]",
        "ITEM later [1 b; 1000000100 s]",
        "ITEM soon [1 b; 1000000010 s]",
        "ITEM ~mark~ [6 b; 0 s]",
    ];
    assert_eq!(sizes, BTreeSet::from(expected));
    assert_eq!(told(&mut client, "stats cachedump 1 2\r\n").len(), 3);
    client.check_chat(b"stats cachedump 2 0\r\nlru_crawler metadump 2,63\r\n", "END\r\nEND\r\n");
    assert_eq!(told(&mut client, "lru_crawler metadump 2,1\r\n").len(), 6);
    let items = told(&mut client, "stats items\r\n");
    assert!(items.iter().any(|line| line == "STAT items:1:number 6"), "{items:?}");
}

#[test]
fn one_client_has_items_listed_at_a_time() {
    const COUNT: usize = 12_000;
    let server = TestServer::start();
    let mut client = server.client();
    for batch in 0..COUNT / 100 {
        let sets = (0..100).map(|number| {
            let number = batch * 100 + number;
            format!("set {number:05}{} 0 0 0 noreply\r\n\r\n", "%".repeat(245))
        });
        client.send(sets.collect::<String>().as_bytes());
    }
    client.check_chat(b"get nope\r\n", "END\r\n");
    // One that takes nothing stops the list once the system holds enough for it.
    let mut slow = server.client();
    rustix::net::sockopt::set_socket_recv_buffer_size(&slow.0, 4096).expect("option");
    slow.send(b"lru_crawler metadump all\r\n");
    let begins = slow.line_of_list();
    assert!(begins.starts_with("key="), "{begins}");
    let mut other = server.client();
    other
        .check_chat(b"lru_crawler mgdump all\r\n", "BUSY currently processing crawler request\r\n");
    drop(slow);
    let mut list = told(&mut other, "lru_crawler mgdump all\r\n");
    while list.len() == 1 {
        esker_trt::sleep(Duration::from_millis(20));
        list = told(&mut other, "lru_crawler mgdump all\r\n");
    }
    // All of them, the mark, and the end.
    let keys: BTreeSet<&String> = list.iter().collect();
    assert_eq!((list.len(), keys.len()), (COUNT + 2, COUNT + 2));
    assert!(server.server.stop(Duration::from_secs(5)), "everything is answered");
}

#[test]
fn a_server_that_stops_breaks_a_list_off() {
    let server = TestServer::start();
    let mut client = server.client();
    let value = format!("{}\r\n", "x".repeat(100));
    for number in 0..30_000 {
        client.send(format!("set {number:0250} 0 0 100 noreply\r\n{value}").as_bytes());
    }
    client.check_chat(b"get nope\r\n", "END\r\n");
    let mut slow = server.client();
    rustix::net::sockopt::set_socket_recv_buffer_size(&slow.0, 4096).expect("option");
    slow.send(b"lru_crawler metadump all\r\n");
    assert!(slow.line_of_list().starts_with("key="));
    let mut last = Vec::new();
    let stopped = std::thread::scope(|scope| {
        let stopped = scope.spawn(|| server.server.stop(Duration::from_secs(20)));
        while TcpStream::connect(server.address()).is_ok() {
            esker_trt::sleep(Duration::from_millis(10));
        }
        // It takes what there is, and no more comes.
        let mut block = vec![0; 1 << 20];
        while let Ok(count) = slow.0.read(&mut block)
            && count > 0
        {
            last = block[..count].to_vec();
            if last.ends_with(b"\nEND\r\n") {
                break;
            }
        }
        stopped.join().expect("no panic")
    });
    assert!(stopped && !last.ends_with(b"\nEND\r\n"), "the list ends with the server");
}

#[test]
fn an_operator_may_forbid_lists() {
    let server = TestServer::with(|config| config.dump_enabled = false);
    server.client().check_chat(
        b"set k 0 0 1\r\n1\r\nlru_crawler metadump all\r\nlru_crawler mgdump all\r\nstats cachedump 1 1\r\n",
        "STORED\r\nERROR metadump not allowed\r\nERROR key dump not allowed\r\nCLIENT_ERROR stats cachedump not allowed\r\n",
    );
    assert!(server.client().stats().contains("STAT curr_items 2\r\n"));
    let settings = told(&mut server.client(), "stats settings\r\n");
    assert!(settings.iter().any(|line| line == "STAT dump_enabled no"), "{settings:?}");
}
