//! The end of a server.

use crate::harness::TestServer;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Much more than a client that takes part would need.
const STOP_LIMIT: Duration = Duration::from_secs(20);

#[test]
fn a_stopped_server_answers_what_it_received_and_accepts_nobody() {
    let server = TestServer::start();
    let mut client = server.client();
    client.check_chat(b"set k 0 0 1\r\n1\r\n", "STORED\r\n");
    assert!(server.server.stop(Duration::from_secs(5)), "nothing was running");
    server.runtime.shutdown().expect("every session ends");
    let mut rest = Vec::new();
    client.0.read_to_end(&mut rest).expect("closed");
    assert!(rest.is_empty());
    assert!(TcpStream::connect(server.address()).is_err(), "nobody listens");
    server.store.close().expect("close");
}

#[test]
fn a_unix_socket_serves_as_well() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("socket");
    let address = format!("memcache+unix://{}", path.display());
    let server = TestServer::with(|config| config.listen.push(address.parse().expect("address")));
    assert_eq!(server.server.addresses()[1].to_string(), address);
    let mut client = UnixStream::connect(&path).expect("connect");
    client.write_all(b"set k 0 0 1\r\n1\r\nquit\r\n").expect("send");
    let mut reply = String::new();
    client.read_to_string(&mut reply).expect("receive");
    assert_eq!(reply, "STORED\r\n");
}

#[test]
fn the_last_reply_arrives_although_input_was_left_unread() {
    let server = TestServer::start();
    let key = "k".repeat(1 << 20);
    for (last, expected) in [
        // A line without an end.
        (key.as_str(), "too long"),
        ("quit\r\n", ""),
    ] {
        for round in 0..20 {
            let mut client = server.client();
            client.send(b"set k 0 0 1\r\n1\r\n");
            client.send(last.as_bytes());
            client.send(&b"get k\r\n".repeat(20_000));
            // Whoever reads late finds out whether the replies were taken back.
            esker_trt::sleep(Duration::from_millis(20));
            let mut seen = String::new();
            client.0.read_to_string(&mut seen).expect("no reset");
            assert!(seen.starts_with("STORED\r\n"), "round {round}: {seen}");
            assert!(seen.contains(expected), "round {round}: {seen}");
            assert!(!seen.contains("VALUE"), "round {round}: {seen}");
        }
    }
}

#[test]
fn a_stop_does_not_wait_for_clients_that_neither_read_nor_send() {
    let server = TestServer::start();
    let value = "v".repeat(1 << 20);
    let mut client = server.client();
    client
        .check_chat(format!("set big 0 0 {}\r\n{value}\r\n", value.len()).as_bytes(), "STORED\r\n");
    let mut deaf = server.client();
    deaf.send(&b"get big\r\n".repeat(100));
    let mut mute = server.client();
    mute.send(format!("set half 0 0 {}\r\n{}", value.len(), &value[1..]).as_bytes());
    esker_trt::sleep(Duration::from_millis(300));
    assert!(server.server.stop(STOP_LIMIT), "they were cut off");
    assert!(server.store.get(b"half").expect("get").is_none());
    server.runtime.shutdown().expect("every session ends");
}
