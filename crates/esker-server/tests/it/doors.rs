//! Who gets in, and how: credentials, TLS, socket files, `shutdown` and what an operator forbids.

use crate::harness::{Client, TestServer, set_clock};
use esker_base::clock::{Clock as _, ManualClock, SystemClock};
use esker_server::{Credentials, Limits, ListenAddress, ServerConfig, ShutdownHook, Tls};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

fn with_credentials() -> TestServer {
    let known = Credentials::parse(b"ann:secret\nbob:other\n").expect("valid");
    TestServer::with(|config| config.auth = Some(known))
}

/// Whatever it says meanwhile: else strangers would hold all places.
#[test]
fn a_client_that_does_not_say_who_it_is_has_so_much_time_for_that() {
    let known = Credentials::parse(b"ann:secret\n").expect("valid");
    let limits = Limits { request_timeout: Duration::from_secs(1), ..Limits::default() };
    let server = TestServer::with(|config| (config.auth, config.limits) = (Some(known), limits));
    let mut ann = server.client();
    ann.check_chat(b"set x 0 0 10\r\nann secret\r\n", "STORED\r\n");
    let mut silent = server.client();
    let mut other = server.client();
    let mut words = Client(other.0.try_clone().expect("clone"));
    std::thread::scope(|scope| {
        let says = scope.spawn(move || {
            while words.0.write_all(b"\r\n").is_ok() {
                esker_trt::sleep(Duration::from_millis(200));
            }
        });
        silent.0.read_to_end(&mut Vec::new()).expect("closed in time");
        // A connection that is cut off with bytes unread is reset.
        let _ = other.0.read_to_end(&mut Vec::new());
        says.join().expect("it ends");
    });
    esker_trt::sleep(Duration::from_millis(1500));
    ann.check_chat(b"get x\r\n", "END\r\n");
}

/// Also where nobody else is hurried: strangers that begin something, and one that takes no answers.
#[test]
fn a_stranger_that_begins_and_ends_nothing_has_no_more_time() {
    let clock = Arc::new(ManualClock::new(1_000_000_000));
    let known = Credentials::parse(b"ann:secret\n").expect("valid");
    let server = TestServer::with(|config| {
        set_clock(config, &clock);
        (config.auth, config.limits.request_timeout) = (Some(known), Duration::ZERO);
    });
    let mut ann = server.client();
    ann.check_chat(b"set x 0 0 10\r\nann secret\r\n", "STORED\r\n");
    let partial = |ann: &mut Client| {
        ann.say(b"stats conns\r\n").0.windows(10).filter(|part| part == b"conn_nread").count()
    };
    let mut strangers: Vec<Client> = ["s", "set a 0 0 10\r\nann"]
        .iter()
        .map(|begin| {
            let mut client = server.client();
            client.send(begin.as_bytes());
            client
        })
        .collect();
    while partial(&mut ann) < strangers.len() {
        esker_trt::sleep(Duration::from_millis(5));
    }
    let mut deaf = server.client();
    let short = Some(Duration::from_millis(500));
    deaf.0.set_write_timeout(short).expect("timeout");
    while deaf.0.write_all(&b"x\n".repeat(10_000)).is_ok() {}
    clock.advance(Duration::from_secs(9));
    esker_trt::sleep(Duration::from_millis(500));
    assert_eq!(server.server.connections(), 4);
    clock.advance(Duration::from_secs(2));
    for stranger in &mut strangers {
        let end = stranger.0.read_to_end(&mut Vec::new());
        assert!(end.is_ok_and(|count| count == 0), "closed without a word");
    }
    let since = SystemClock.monotonic();
    while server.server.connections() > 1 {
        assert!(SystemClock.monotonic() - since < Duration::from_secs(30), "it is let be");
        esker_trt::sleep(Duration::from_millis(20));
    }
    // Who is known may stand still as long as it likes.
    ann.send(b"ge");
    esker_trt::sleep(Duration::from_millis(200));
    clock.advance(Duration::from_secs(600));
    esker_trt::sleep(Duration::from_millis(500));
    ann.check_chat(b"t x\r\n", "END\r\n");
}

#[test]
fn nothing_is_done_for_a_client_that_has_not_said_who_it_is() {
    let server = with_credentials();
    server.store.put(b"k", b"1").expect("put");
    let mut client = server.client();
    client.send(b"get k\r\nmd k\r\nversion\r\nset k 0 0 x\r\nquit\r\n");
    client.check_receive(&b"CLIENT_ERROR unauthenticated\r\n".repeat(5));
    client.send(b"set x 0 0 10\r\nann secret\r\nget k\r\n");
    client.check_receive(b"STORED\r\nVALUE k 0 1\r\n1\r\nEND\r\n");
    assert!(server.store.get(b"x").expect("get").is_none(), "credentials are no item");
    client.check_chat(b"set x 0 0 1\r\n1\r\nget x\r\n", "STORED\r\nVALUE x 0 1\r\n1\r\nEND\r\n");
}

#[test]
fn wrong_credentials_may_be_corrected_and_come_in_any_pieces() {
    let server = with_credentials();
    let mut client = server.client();
    for (sent, expected) in [
        ("set a 0 0 9\r\nann other\r\n", "CLIENT_ERROR authentication failure\r\n"),
        ("set a 0 0 9\r\nannsecret\r\n", "CLIENT_ERROR bad authentication token format\r\n"),
        ("set a 0 0 10\r\nann secretxx", "CLIENT_ERROR bad command line termination\r\n"),
        ("set a 0 0 10\r\nbob secret\r\n", "CLIENT_ERROR authentication failure\r\n"),
    ] {
        client.send(sent.as_bytes());
        client.check_receive(expected.as_bytes());
    }
    for byte in b"set a 0 0 9\r\nbob other\r\nmn\r\n" {
        client.send(&[*byte]);
    }
    client.check_receive(b"STORED\r\nMN\r\n");
    let stats = client.stats();
    assert!(stats.contains("STAT auth_cmds 3\r\nSTAT auth_errors 2\r\n"), "{stats}");
}

#[test]
fn a_client_that_guesses_is_answered_line_by_line() {
    let server = with_credentials();
    let mut client = server.client();
    client.send(&b"\n".repeat(30_000));
    client.check_receive(&b"CLIENT_ERROR unauthenticated\r\n".repeat(30_000));
}

#[test]
fn credentials_as_long_as_a_client_likes_are_not_waited_for() {
    let server = with_credentials();
    for line in ["set a 0 0 1025\r\n".to_owned(), "x".repeat(4000)] {
        let mut client = server.client();
        client.send(line.as_bytes());
        let mut rest = Vec::new();
        assert!(client.0.read_to_end(&mut rest).is_ok(), "closed in time");
    }
}

/// A server with a certificate of its own, and a client's idea of it.
pub(crate) fn with_tls() -> (TestServer, Arc<ClientConfig>) {
    with_tls_and(|_| {})
}

fn with_tls_and(change: impl FnOnce(&mut ServerConfig)) -> (TestServer, Arc<ClientConfig>) {
    let names = vec!["localhost".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).expect("certificate");
    let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let tls = Tls::from_pem(chain.as_bytes(), key.as_bytes()).expect("valid");
    let server = TestServer::with(|config| {
        config.tls = Some(tls);
        change(config);
    });
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).expect("root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    (server, Arc::new(config))
}

pub(crate) fn encrypted(
    server: &TestServer,
    config: &Arc<ClientConfig>,
) -> StreamOwned<ClientConnection, TcpStream> {
    let name = ServerName::try_from("localhost").expect("name");
    let client = ClientConnection::new(config.clone(), name).expect("client");
    let stream = TcpStream::connect(server.address()).expect("connect");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("timeout");
    StreamOwned::new(client, stream)
}

#[test]
fn small_and_large_values_pass_through_tls() {
    let (server, config) = with_tls();
    let mut client = encrypted(&server, &config);
    let value = "v".repeat(1 << 20);
    write!(client, "set k 0 0 1\r\n1\r\nms big {}\r\n{value}\r\nget k big\r\n", value.len())
        .expect("send");
    let expected = format!(
        "STORED\r\nHD\r\nVALUE k 0 1\r\n1\r\nVALUE big 0 {}\r\n{value}\r\nEND\r\n",
        value.len()
    );
    let mut seen = vec![0; expected.len()];
    client.read_exact(&mut seen).expect("receive");
    assert!(seen == expected.as_bytes());
    // Many replies at once, more than the state machine holds.
    client.write_all(&b"get big\r\n".repeat(8)).expect("send");
    let each = format!("VALUE big 0 {}\r\n{value}\r\nEND\r\n", value.len());
    let mut seen = vec![0; each.len() * 8];
    client.read_exact(&mut seen).expect("receive");
    assert!(seen == each.repeat(8).as_bytes());
    client.write_all(b"quit\r\n").expect("send");
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).expect("TLS says that it ends");
    assert!(rest.is_empty());
}

#[test]
fn a_client_that_does_not_speak_tls_is_told_nothing_and_done_nothing() {
    let (server, config) = with_tls();
    server.store.put(b"k", b"1").expect("put");
    let mut plain = Client::connect(server.address());
    plain.send(b"delete k\r\nget k\r\nversion\r\n");
    let mut seen = Vec::new();
    let _ = plain.0.read_to_end(&mut seen);
    assert!(!String::from_utf8_lossy(&seen).contains("VALUE"), "{seen:?}");
    assert!(server.store.get(b"k").expect("get").is_some());
    let mut client = encrypted(&server, &config);
    client.write_all(b"stats\r\n").expect("send");
    let mut seen = Vec::new();
    while !seen.ends_with(b"END\r\n") {
        let mut block = [0; 4096];
        let count = client.read(&mut block).expect("receive");
        seen.extend_from_slice(&block[..count]);
    }
    let stats = String::from_utf8_lossy(&seen).into_owned();
    assert!(stats.contains("STAT ssl_handshake_errors 1\r\n"), "{stats}");
}

#[test]
fn a_handshake_that_does_not_go_on_ends() {
    let limits = Limits { request_timeout: Duration::from_secs(3), ..Limits::default() };
    let (server, config) = with_tls_and(|config| config.limits = limits);
    let mut silent = Client::connect(server.address());
    let mut begun = Client::connect(server.address());
    // The first bytes of a record of the handshake.
    begun.send(&[22, 3, 1, 2, 0, 1]);
    for client in [&mut silent, &mut begun] {
        client.0.read_to_end(&mut Vec::new()).expect("closed in time");
    }
    // A connection that got through may stay silent.
    let mut client = encrypted(&server, &config);
    client.write_all(b"mn\r\n").expect("send");
    let mut seen = [0; 4];
    client.read_exact(&mut seen).expect("receive");
    esker_trt::sleep(Duration::from_millis(3500));
    client.write_all(b"mn\r\n").expect("send");
    client.read_exact(&mut seen).expect("receive");
    assert_eq!(&seen, b"MN\r\n");
}

#[test]
fn encrypted_connections_that_are_only_there_hurry_nobody() {
    let clock = Arc::new(ManualClock::new(1_000_000_000));
    let memory_max_bytes = 16 * Limits::connection_bytes(true) + (256 << 10);
    let limits = Limits {
        connections_max: 16,
        item_size_max_bytes: 64 << 10,
        memory_max_bytes,
        request_timeout: Duration::ZERO,
        ..Limits::default()
    };
    let (server, config) = with_tls_and(|config| {
        set_clock(config, &clock);
        config.limits = limits;
    });
    let mut all: Vec<_> = (0..16).map(|_| encrypted(&server, &config)).collect();
    for client in &mut all {
        client.write_all(b"mn\r\nge").expect("send");
        client.read_exact(&mut [0; 4]).expect("receive");
    }
    esker_trt::sleep(Duration::from_millis(200));
    clock.advance(Duration::from_secs(11));
    esker_trt::sleep(Duration::from_millis(500));
    for client in &mut all {
        client.write_all(b"t k\r\n").expect("send");
        let mut seen = [0; 5];
        client.read_exact(&mut seen).expect("receive");
        assert_eq!(&seen, b"END\r\n");
    }
}

#[test]
fn a_reader_over_tls_that_takes_nothing_is_cut_off() {
    let (server, config) = with_tls();
    server.store.put(b"big", &vec![b'v'; 1 << 20]).expect("put");
    let mut client = encrypted(&server, &config);
    client.write_all(&b"get big\r\n".repeat(64)).expect("send");
    while server.server.connections() > 0 {
        esker_trt::sleep(Duration::from_millis(50));
    }
    drop(client);
    assert_eq!(server.server.connections(), 0);
}

#[test]
fn a_socket_file_has_the_permissions_that_were_asked_for() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("socket");
    let address: ListenAddress = format!("unix://{}", path.display()).parse().expect("address");
    let _server = TestServer::with(|config| {
        config.listen.push(address);
        config.unix_mode = 0o660;
    });
    let mode = std::fs::metadata(&path).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let mut client = UnixStream::connect(&path).expect("connect");
    client.write_all(b"ms k 2\r\nhi\r\nmg k v\r\nquit\r\n").expect("send");
    let mut seen = String::new();
    client.read_to_string(&mut seen).expect("receive");
    assert_eq!(seen, "HD\r\nVA 2\r\nhi\r\n");
}

#[test]
fn what_the_operator_decides_holds() {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let server = TestServer::with(|config| {
        config.flush_enabled = false;
        config.on_shutdown = Some(ShutdownHook::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        }));
    });
    let mut client = server.client();
    client.check_chat(
        b"set k 0 0 1\r\n1\r\nflush_all\r\nflush_all noreply\r\nget k\r\nshutdown now\r\n",
        "STORED\r\nCLIENT_ERROR flush_all not allowed\r\nVALUE k 0 1\r\n1\r\nEND\r\nCLIENT_ERROR invalid shutdown mode\r\n",
    );
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    client.check_last_words(b"shutdown\r\n", "");
    server.client().check_last_words(b"shutdown graceful\r\n", "");
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    let capacity = server.store.stats().capacity_bytes >> 20;
    // The size that the store was made with is a segment more.
    let wrong = "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n";
    for (mebibytes, reply) in [
        (capacity, "OK\r\n"),
        (capacity + 1, "OK\r\n"),
        (capacity - 1, wrong),
        (capacity * 2, wrong),
    ] {
        let line = format!("cache_memlimit {mebibytes}\r\n");
        server.client().check_chat(line.as_bytes(), reply);
    }
}
