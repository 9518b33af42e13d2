//! Figures that monitoring reads.

use crate::harness::{Client, TestServer, set_clock};
use esker_base::clock::ManualClock;
use esker_server::ListenAddress;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// The lines of `stats conns` about the connection that another one sees as `address`; without its number.
fn of_connection(client: &mut Client, address: &str) -> Vec<String> {
    let (reply, _) = client.say(b"stats conns\r\n");
    let reply = String::from_utf8(reply).expect("text");
    let number = reply.lines().find_map(|line| {
        let (number, rest) = line.strip_prefix("STAT ")?.split_once(':')?;
        (rest == format!("addr {address}")).then(|| number.to_owned())
    });
    let Some(number) = number else { return Vec::new() };
    let begin = format!("STAT {number}:");
    reply.lines().filter_map(|line| line.strip_prefix(&begin)).map(str::to_owned).collect()
}

#[test]
fn connections_are_told_with_their_state_and_silence() {
    let clock = Arc::new(ManualClock::new(1_000_000_000));
    let server = TestServer::with(|config| set_clock(config, &clock));
    let listener = format!("tcp:{}", server.address());
    let mut asking = server.client();
    let asking_at = format!("tcp:{}", asking.0.local_addr().expect("address"));
    let mut other = server.client();
    let other_at = format!("tcp:{}", other.0.local_addr().expect("address"));
    other.check_chat(b"get nope\r\n", "END\r\n");
    asking.check_chat(b"get nope\r\n", "END\r\n");
    clock.advance(Duration::from_secs(7));
    let told = |state: &str, silence: u64, address: &str| {
        vec![
            format!("addr {address}"),
            format!("listen_addr {listener}"),
            format!("state {state}"),
            format!("secs_since_last_cmd {silence}"),
        ]
    };
    assert_eq!(
        of_connection(&mut asking, &listener),
        ["addr ".to_owned() + &listener, "state conn_listening".into()]
    );
    assert_eq!(of_connection(&mut asking, &asking_at), told("conn_parse_cmd", 0, &asking_at));
    assert_eq!(of_connection(&mut asking, &other_at), told("conn_read", 7, &other_at));
    // Short blocks are waited for in one place, and long ones in another.
    for length in [6, 100_000] {
        other.send(format!("set foo 0 0 {length}\r\n").as_bytes());
        while of_connection(&mut asking, &other_at).get(2).map(String::as_str)
            != Some("state conn_nread")
        {
            esker_trt::sleep(Duration::from_millis(5));
        }
        let end = format!("{}\r\n", "x".repeat(length));
        other.check_chat(end.as_bytes(), "STORED\r\n");
        assert_eq!(of_connection(&mut asking, &other_at), told("conn_read", 0, &other_at));
    }
    drop(other);
    while !of_connection(&mut asking, &other_at).is_empty() {
        esker_trt::sleep(Duration::from_millis(5));
    }
}

#[test]
fn clients_at_a_socket_file_are_told_with_its_path() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("socket");
    let server = TestServer::with(|config| config.listen.push(ListenAddress::Unix(path.clone())));
    let mut there = UnixStream::connect(&path).expect("connect");
    there.write_all(b"get ").expect("send");
    let address = format!("unix:{}", path.display());
    let mut client = server.client();
    let mut count = 0;
    while count < 4 {
        let (reply, _) = client.say(b"stats conns\r\n");
        // The listener; the client, by its own address and its listener's, and what it does.
        let reply = String::from_utf8(reply).expect("text");
        count = reply
            .lines()
            .filter(|line| line.ends_with(&address) || line.ends_with("conn_nread"))
            .count();
    }
    assert_eq!(count, 4);
}

#[test]
fn more_connections_than_fit_into_one_piece_are_told() {
    let server = TestServer::start();
    let clients: Vec<Client> = (0..300).map(|_| server.client()).collect();
    let mut client = server.client();
    let mut count = 0;
    while count < 301 {
        let (reply, _) = client.say(b"stats conns\r\n");
        let reply = String::from_utf8(reply).expect("text");
        assert!(reply.ends_with("END\r\n"), "{reply}");
        count = reply.lines().filter(|line| line.contains(":listen_addr ")).count();
    }
    assert_eq!((count, clients.len()), (301, 300));
}

#[test]
fn evictions_begin_anew_with_a_reset() {
    let server = TestServer::of_cache(|_| {});
    let mut client = server.client();
    let value = "x".repeat(1_000_000);
    for number in 0..40 {
        let set = format!("set {number} 0 0 1000000\r\n{value}\r\n");
        client.check_chat(set.as_bytes(), "STORED\r\n");
    }
    server.store.evict(2).expect("evict");
    let evictions = |client: &mut Client| {
        let stats = client.stats();
        let line = stats.lines().find(|line| line.starts_with("STAT evictions ")).expect("there");
        line["STAT evictions ".len()..].parse::<u64>().expect("a number")
    };
    assert!(evictions(&mut client) > 0);
    client.check_chat(b"stats reset\r\n", "RESET\r\n");
    assert_eq!(evictions(&mut client), 0);
    server.store.evict(2).expect("evict");
    assert!(evictions(&mut client) > 0);
}

#[test]
fn the_time_of_the_processor_is_told() {
    let server = TestServer::start();
    let stats = server.client().stats();
    for name in ["rusage_user", "rusage_system"] {
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        let (seconds, micros) = line.and_then(|line| line.split_once('.')).expect("seconds");
        assert!(seconds.parse::<u64>().is_ok() && micros.len() == 6, "{line:?}");
        assert!(micros.parse::<u64>().is_ok(), "{line:?}");
    }
}
