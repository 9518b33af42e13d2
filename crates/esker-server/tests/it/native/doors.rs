//! Who gets in, and how: credentials, TLS, socket files, how many.

use super::{PATIENCE, Raw, get, push_frame, put, start_with, start_with_limits};
use crate::harness::{TestServer, set_clock};
use esker_base::clock::{Clock as _, ManualClock, SystemClock};
use esker_format::native::{ClientHello, Request, ServerHello, Status, VERSION};
use esker_server::{Credentials, Limits, ListenAddress, ServerConfig, Tls};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn nothing_is_done_for_a_client_that_has_not_said_who_it_is() {
    let known = Credentials::parse(b"ann:secret\n").expect("valid");
    let folder = tempfile::tempdir().expect("scratch folder");
    let backups = folder.path().join("backups");
    let server = start_with(|config| {
        config.auth = Some(known);
        config.backups = Some(backups.clone());
    });
    server.store.put(b"k", b"v").expect("put");
    let mut client = Raw::connect(&server);
    assert!(client.hello.authenticate);
    let alone = [Request::Clear, Request::Stats, Request::Ping, Request::Backup];
    for request in [get(b"k"), put(b"k", b"x")].into_iter().chain(alone) {
        let reply = client.check_status(&request, Status::Unauthenticated);
        assert!(reply.payload.is_empty());
    }
    let who = |password| Request::Authenticate { user: b"ann", password };
    client.check_status(&who(b"guess"), Status::CredentialsRefused);
    client.check_status(&get(b"k"), Status::Unauthenticated);
    assert!(!backups.exists());
    client.check_status(&who(b"secret"), Status::Ok);
    client.check_status(&Request::Backup, Status::Ok);
    assert_eq!(client.ask(&get(b"k")).item().value, b"v");
    // A client need not wait for the answer.
    let mut client = Raw::connect(&server);
    let mut frames = Vec::new();
    push_frame(&mut frames, 1, &who(b"secret"));
    push_frame(&mut frames, 2, &get(b"k"));
    client.send(&frames);
    assert_eq!(client.receive().expect("a reply").status, Status::Ok);
    assert_eq!(client.receive().expect("a reply").item().value, b"v");
}

#[test]
fn a_stranger_that_goes_on_asking_stays_no_longer_than_one_that_is_silent() {
    let known = Credentials::parse(b"ann:secret\n").expect("valid");
    let server = start_with(|config| {
        config.auth = Some(known);
        config.limits.request_timeout = Duration::from_secs(1);
    });
    let mut ann = Raw::connect(&server);
    let who = Request::Authenticate { user: b"ann", password: b"secret" };
    ann.check_status(&who, Status::Ok);
    let mut client = Raw::connect(&server);
    let mut frame = Vec::new();
    push_frame(&mut frame, 1, &Request::Ping);
    let mut refused = 0;
    loop {
        client.send(&frame);
        match client.receive() {
            Some(reply) if reply.status == Status::Unauthenticated => refused += 1,
            end => {
                // A goodbye, unless that is taken back by what was sent meanwhile.
                assert!(end.is_none_or(|end| end.status == Status::TooSlow));
                break;
            }
        }
        esker_trt::sleep(Duration::from_millis(100));
    }
    assert!(refused > 0);
    esker_trt::sleep(Duration::from_millis(1500));
    ann.check_status(&Request::Ping, Status::Ok);
}

/// Also where nobody is hurried who has: no hello, a part of one, and a stranger that takes no answers.
#[test]
fn who_has_not_said_hello_or_who_it_is_has_no_more_time_whatever_it_does() {
    for known in [None, Some(Credentials::parse(b"ann:secret\n").expect("valid"))] {
        let clock = Arc::new(ManualClock::new(1_000_000_000));
        let asks = known.is_some();
        let server = start_with(|config| {
            set_clock(config, &clock);
            (config.auth, config.limits.request_timeout) = (known, Duration::ZERO);
        });
        let mut ann = Raw::connect(&server);
        if asks {
            let who = Request::Authenticate { user: b"ann", password: b"secret" };
            ann.check_status(&who, Status::Ok);
        }
        let silent = TcpStream::connect(server.address()).expect("connect");
        let mut half = TcpStream::connect(server.address()).expect("connect");
        let hello = ClientHello { version: VERSION }.encode();
        half.write_all(&hello[..3]).expect("send");
        let mut deaf = asks.then(|| Raw::connect(&server));
        if let Some(deaf) = &mut deaf {
            let mut frames = Vec::new();
            (1..=1000).for_each(|id| push_frame(&mut frames, id, &Request::Ping));
            let short = Some(Duration::from_millis(500));
            deaf.stream.set_write_timeout(short).expect("timeout");
            while deaf.stream.write_all(&frames).is_ok() {}
        }
        // A session begins to count in its first moment.
        esker_trt::sleep(Duration::from_millis(300));
        clock.advance(Duration::from_secs(9));
        esker_trt::sleep(Duration::from_millis(500));
        assert_eq!(server.server.connections(), if asks { 4 } else { 3 });
        clock.advance(Duration::from_secs(2));
        let since = SystemClock.monotonic();
        while server.server.connections() > 1 {
            assert!(SystemClock.monotonic() - since < PATIENCE, "they are let be");
            esker_trt::sleep(Duration::from_millis(20));
        }
        clock.advance(Duration::from_secs(600));
        ann.check_status(&Request::Ping, Status::Ok);
        drop((silent, half, deaf));
    }
}

#[test]
fn a_stranger_is_told_so_before_much_is_held_for_it() {
    let known = Credentials::parse(b"ann:secret\n").expect("valid");
    let server = start_with(|config| config.auth = Some(known));
    for size in [1 << 10, 1 << 20] {
        let mut client = Raw::connect(&server);
        let (mut frames, value) = (Vec::new(), vec![0; size]);
        let id = client.push(&mut frames, &put(b"k", &value));
        // The rest of the frame never comes, and is not waited for.
        client.send(&frames[..100]);
        let reply = client.receive().expect("a reply");
        assert_eq!((reply.id, reply.status), (id, Status::Unauthenticated));
        client.check_goodbye(Status::Unauthenticated);
    }
    let mut client = Raw::connect(&server);
    let who = Request::Authenticate { user: b"ann", password: b"secret" };
    client.check_status(&who, Status::Ok);
    client.check_status(&put(b"k", &vec![0; 1 << 20]), Status::Ok);
}

#[test]
fn one_connection_too_many_is_told_so_and_the_others_are_served() {
    let server = start_with_limits(Limits { connections_max: 2, ..Limits::default() });
    let mut clients: Vec<_> = (0..2).map(|_| Raw::connect(&server)).collect();
    for _ in 0..3 {
        let mut refused = Raw::connect(&server);
        assert_eq!(refused.hello.status, Status::TooManyConnections);
        assert_eq!(refused.receive(), None);
    }
    for client in &mut clients {
        client.check_status(&Request::Ping, Status::Ok);
    }
}

#[test]
fn who_speaks_late_is_told_all_the_same_that_there_is_no_place() {
    let server = start_with_limits(Limits { connections_max: 1, ..Limits::default() });
    let mut client = Raw::connect(&server);
    let mut late = TcpStream::connect(server.address()).expect("connect");
    late.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let mut told = Vec::new();
    late.read_to_end(&mut told).expect("a refusal and the end");
    let hello = ServerHello::decode(told.first_chunk().expect("a hello")).expect("valid");
    assert_eq!(hello.status, Status::TooManyConnections);
    // The server has ended it, and still does not reset the line: the first answer to what is sent would.
    for _ in 0..3 {
        late.write_all(&ClientHello { version: VERSION }.encode()).expect("send");
    }
    client.check_status(&Request::Ping, Status::Ok);
}

#[test]
fn a_socket_file_serves_too() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("native.sock");
    let address: ListenAddress =
        format!("native+unix://{}", path.display()).parse().expect("address");
    let server = start_with(|config| config.listen = vec![address.clone()]);
    assert_eq!(server.server.addresses(), [address]);
    let stream = UnixStream::connect(&path).expect("connect");
    let mut client = Raw::greet(stream);
    client.check_status(&put(b"k", b"v"), Status::Ok);
    assert_eq!(client.ask(&get(b"k")).item().value, b"v");
}

pub(super) fn with_tls(limits: Limits) -> (TestServer, Arc<ClientConfig>) {
    with_tls_and(|config| config.limits = limits)
}

pub(super) fn with_tls_and(
    change: impl FnOnce(&mut ServerConfig),
) -> (TestServer, Arc<ClientConfig>) {
    let names = vec!["localhost".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).expect("certificate");
    let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let tls = Tls::from_pem(chain.as_bytes(), key.as_bytes()).expect("valid");
    let server = start_with(|config| {
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

pub(super) fn encrypted(
    server: &TestServer,
    config: &Arc<ClientConfig>,
) -> Raw<StreamOwned<ClientConnection, TcpStream>> {
    let name = ServerName::try_from("localhost").expect("name");
    let client = ClientConnection::new(config.clone(), name).expect("client");
    let stream = TcpStream::connect(server.address()).expect("connect");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("timeout");
    Raw::greet(StreamOwned::new(client, stream))
}

#[test]
fn small_and_large_values_pass_through_tls_many_at_once() {
    let (server, config) = with_tls(Limits::default());
    let mut client = encrypted(&server, &config);
    let value = vec![b'v'; 1 << 20];
    client.check_status(&put(b"small", b"s"), Status::Ok);
    client.check_status(&put(b"big", &value), Status::Ok);
    let mut frames = Vec::new();
    for _ in 0..8 {
        client.push(&mut frames, &get(b"big"));
        client.push(&mut frames, &get(b"small"));
    }
    client.send(&frames);
    let (mut small, mut big) = (0, 0);
    for _ in 0..16 {
        let reply = client.receive().expect("a reply");
        match reply.item().value {
            b"s" => small += 1,
            other => {
                assert!(other == value);
                big += 1;
            }
        }
    }
    assert_eq!((small, big), (8, 8));
    for n in 0..500_u32 {
        let key = format!("k{n}");
        client.check_status(&put(key.as_bytes(), &n.to_be_bytes()), Status::Ok);
    }
}

#[test]
fn a_client_that_does_not_speak_tls_gets_nothing() {
    let limits = Limits { request_timeout: Duration::from_millis(300), ..Limits::default() };
    let (server, _) = with_tls(limits);
    let mut stream = TcpStream::connect(server.address()).expect("connect");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("timeout");
    use esker_format::native::{ClientHello, VERSION};
    use std::io::{Read as _, Write as _};
    stream.write_all(&ClientHello { version: VERSION }.encode()).expect("send");
    let mut frames = Vec::new();
    push_frame(&mut frames, 1, &put(b"k", b"v"));
    stream.write_all(&frames).expect("send");
    let mut said = Vec::new();
    // An alert of TLS, perhaps; a reset is as good.
    let _ = stream.read_to_end(&mut said);
    assert!(said.len() < 40, "{} bytes", said.len());
    assert!(server.store.get(b"k").expect("get").is_none());
}
