//! The end of a server.

use crate::harness::TestServer;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

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
