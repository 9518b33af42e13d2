//! The native protocol through shared memory: doors, hostile memory, clients that die.

use super::{PATIENCE, Raw, get, push_frame, put, start_with};
use crate::harness::TestServer;
use esker_base::clock::{Clock as _, SystemClock};
use esker_base::rng::Rng;
use esker_format::native::{CLIENT_HELLO_SIZE, ClientHello, Request, Status, VERSION};
use esker_server::{Credentials, Limits, ListenAddress, ServerConfig};
use esker_shm::Endpoint;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// A server that shares memory, and listens at TCP for figures.
pub(super) struct Sharing {
    pub(super) server: TestServer,
    path: PathBuf,
    _folder: TempDir,
}

pub(super) fn sharing(change: impl FnOnce(&mut ServerConfig)) -> Sharing {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("memory.sock");
    let server = start_with(|config| {
        config.listen.push(ListenAddress::Shared(path.clone()));
        change(config);
    });
    Sharing { server, path, _folder: folder }
}

impl Sharing {
    /// The streams of a new client, one for each core; or the status that refuses it.
    fn connect(&self) -> Result<Vec<Through>, u32> {
        let socket = UnixStream::connect(&self.path).expect("connect");
        let endpoints = esker_shm::accept(socket.as_fd()).expect("a greeting")?;
        let through = |Endpoint { reader, writer, bell }| {
            let bell = UnixStream::from(bell);
            bell.set_read_timeout(Some(PATIENCE)).expect("timeout");
            Through { reader, writer, bell }
        };
        Ok(endpoints.into_iter().map(through).collect())
    }

    pub(super) fn clients(&self) -> Vec<Raw<Through>> {
        self.connect().expect("admitted").into_iter().map(Raw::greet).collect()
    }

    fn check_others_are_served(&self) {
        let mut client = Raw::connect(&self.server);
        client.check_status(&put(b"other", b"v"), Status::Ok);
        for mut client in self.clients() {
            assert_eq!(client.ask(&get(b"other")).item().value, b"v");
        }
    }

    /// Waits until only `count` clients are left.
    pub(super) fn check_left(&self, count: u32) {
        for _ in 0..3000 {
            if self.server.server.connections() == count {
                return;
            }
            std::thread::park_timeout(Duration::from_millis(10));
        }
        assert_eq!(self.server.server.connections(), count, "places were not given back");
    }
}

/// The client's side of a stream.
pub(super) struct Through {
    reader: esker_shm::Reader,
    writer: esker_shm::Writer,
    bell: UnixStream,
}

impl Read for Through {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let mut ended = false;
        loop {
            let count = self.reader.read(into)?;
            if count > 0 || ended {
                return Ok(count);
            }
            if self.reader.announce_sleep() {
                // A server that left bells unread resets the connection; what it wrote before is read first.
                ended = match self.bell.read(&mut [0; 64]) {
                    Err(error) if error.kind() == ErrorKind::ConnectionReset => true,
                    rung => rung? == 0,
                };
                self.reader.awake();
            }
        }
    }
}

impl Write for Through {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        loop {
            let count = self.writer.write(bytes)?;
            if self.writer.must_ring() {
                self.bell.write_all(b"!")?;
            }
            if count > 0 {
                return Ok(count);
            }
            std::thread::park_timeout(Duration::from_micros(100));
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn every_core_serves_its_stream() {
    let sharing = sharing(|_| {});
    let mut clients = sharing.clients();
    assert_eq!(clients.len(), 2, "a stream for each core");
    for (core, client) in clients.iter_mut().enumerate() {
        let value = vec![core as u8; 300_000];
        client.check_status(&put(b"large", &value), Status::Ok);
        assert_eq!(client.ask(&get(b"large")).item().value, value);
    }
    // Long enough for both sides to fall asleep.
    std::thread::park_timeout(Duration::from_millis(50));
    for client in &mut clients {
        assert_eq!(client.ask(&get(b"large")).item().value, vec![1; 300_000]);
    }
    drop(clients);
    sharing.check_left(0);
}

#[test]
fn doors_are_those_of_a_socket() {
    let known = Credentials::parse(b"ann:secret\n").expect("valid");
    let sharing = sharing(|config| {
        config.auth = Some(known);
        config.limits = Limits { connections_max: 2, ..Limits::default() };
    });
    for client in &mut sharing.clients() {
        assert!(client.hello.authenticate);
        client.check_status(&get(b"k"), Status::Unauthenticated);
        let who = |password| Request::Authenticate { user: b"ann", password };
        client.check_status(&who(b"guess"), Status::CredentialsRefused);
        client.check_status(&who(b"secret"), Status::Ok);
        client.check_status(&get(b"k"), Status::KeyMissing);
    }
    sharing.check_left(0);
    let held = [sharing.connect().expect("a place"), sharing.connect().expect("a place")];
    assert_eq!(sharing.connect().err(), Some(Status::TooManyConnections.number().into()));
    drop(held);
    sharing.check_left(0);
    assert!(sharing.connect().is_ok());
}

#[test]
fn clients_that_die_leave_nothing_behind() {
    let sharing = sharing(|_| {});
    let mut watcher = Raw::connect(&sharing.server);
    let free = super::free_bytes(&mut watcher);
    for round in 0..20 {
        let mut streams = sharing.connect().expect("admitted");
        assert!(super::free_bytes(&mut watcher) < free, "memory is charged");
        match round % 4 {
            // Without a word, within a hello, within a frame, and with requests and replies under way.
            0 => {}
            1 => streams[0].write_all(&[1; CLIENT_HELLO_SIZE / 2]).expect("write"),
            2 => {
                streams[0].write_all(&ClientHello { version: VERSION }.encode()).expect("write");
                streams[0].write_all(&[0; 3]).expect("write");
            }
            _ => {
                let mut client = Raw::greet(streams.remove(0));
                let mut frames = Vec::new();
                let value = vec![7; 20_000];
                push_frame(&mut frames, 1, &put(b"k", &value));
                (2..60).for_each(|id| push_frame(&mut frames, id, &get(b"k")));
                client.send(&frames);
            }
        }
        drop(streams);
        sharing.check_left(1);
    }
    for _ in 0..500 {
        if super::free_bytes(&mut watcher) == free {
            break;
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    assert_eq!(super::free_bytes(&mut watcher), free);
    sharing.check_others_are_served();
}

#[test]
fn bells_without_a_word_give_no_more_time_for_half_a_frame() {
    let limit = Duration::from_millis(300);
    let sharing = sharing(|config| {
        config.limits = Limits { request_timeout: limit, ..Limits::default() };
    });
    let mut client = sharing.clients().remove(0);
    let mut frame = Vec::new();
    push_frame(&mut frame, 1, &put(b"k", b"v"));
    client.send(&frame[..frame.len() - 1]);
    let mut bell = client.stream.bell.try_clone().expect("clone");
    let since = SystemClock.monotonic();
    let passed = || SystemClock.monotonic().saturating_sub(since);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) && passed() < 100 * limit {
                std::thread::park_timeout(limit / 2);
                let _ = bell.write(b"!");
            }
        });
        client.check_goodbye(Status::TooSlow);
        let passed = passed();
        over.store(true, Ordering::SeqCst);
        assert!(passed < 50 * limit, "{passed:?}");
    });
    sharing.check_left(0);
}

#[test]
fn counters_that_lie_end_their_connection_and_no_other() {
    let sharing = sharing(|_| {});
    const TAIL: usize = 0;
    const HEAD: usize = 16;
    for lie in [1 << 17, u64::MAX - (1 << 20), 1 << 63, 1 << 32] {
        let mut clients = sharing.clients();
        let client = &mut clients[0];
        client.check_status(&put(b"k", b"v"), Status::Ok);
        client.stream.writer.forge(TAIL, lie);
        // A server that still polls has seen it already.
        let _ = client.stream.bell.write(b"!");
        assert_eq!(client.receive(), None, "closed");
        // The other core's stream has done nothing wrong.
        clients[1].check_status(&Request::Ping, Status::Ok);
        let mut clients = sharing.clients();
        let client = &mut clients[1];
        client.stream.reader.forge(HEAD, lie);
        let mut frames = Vec::new();
        push_frame(&mut frames, 1, &get(b"k"));
        client.send(&frames);
        assert_eq!(client.receive(), None, "closed");
    }
    sharing.check_left(0);
    sharing.check_others_are_served();
}

#[test]
fn memory_that_changes_under_the_server_harms_nobody_else() {
    let sharing = sharing(|_| {});
    sharing.server.store.put(b"kept", b"value").expect("put");
    for seed in 0..30 {
        let mut rng = Rng::from_seed(seed);
        let mut streams = sharing.connect().expect("admitted");
        let mut frames = ClientHello { version: VERSION }.encode().to_vec();
        let value = vec![b'x'; rng.index(3000)];
        for id in 1..200 {
            push_frame(&mut frames, id, &put(b"mine", &value));
            push_frame(&mut frames, id + 1000, &get(b"mine"));
        }
        let stream = &mut streams[0];
        // Counters within the ring mostly, so that the server goes on reading what changes.
        for _ in 0..4000 {
            let length = rng.index(400).min(frames.len());
            let sent = stream.writer.write(&frames[..length]).unwrap_or(0);
            frames.drain(..sent);
            if rng.chance(1, 3) {
                stream.writer.forge(48 + rng.index(8192), rng.next_u64());
            }
            if rng.chance(1, 200) {
                stream.writer.forge(rng.index(48), rng.next_u64() >> rng.below(64));
                stream.reader.forge(rng.index(48), rng.next_u64() >> rng.below(64));
            }
            if rng.chance(1, 20) {
                // A bell that nobody needs, or the server sleeps and its flag was overwritten.
                let _ = stream.bell.set_nonblocking(true);
                let _ = stream.bell.write(b"!");
            }
            let _ = stream.reader.read(&mut [0; 2000]);
        }
        drop(streams);
        sharing.check_left(0);
    }
    sharing.check_others_are_served();
    assert_eq!(&*sharing.server.store.get(b"kept").expect("get").expect("there"), b"value");
}

/// All streams of a client are one connection: it is idle when none of them says anything.
#[test]
fn a_client_that_speaks_by_one_stream_keeps_the_others() {
    let idle = Duration::from_secs(3);
    let sharing = sharing(|config| {
        config.limits = Limits { idle_timeout: idle, ..Limits::default() };
    });
    let mut client = sharing.clients();
    assert!(client.len() > 1);
    for _ in 0..8 {
        client[0].check_status(&put(b"k", b"v"), Status::Ok);
        std::thread::park_timeout(idle / 6);
    }
    for stream in &mut client {
        assert_eq!(stream.ask(&get(b"k")).item().value, b"v");
    }
    // Once nobody speaks, all are sent away.
    sharing.check_left(0);
}

/// Those who are there keep what they have, however long somebody waits.
#[test]
fn one_client_too_many_is_refused_at_once_and_nobody_waits_for_it() {
    let sharing = sharing(|config| {
        config.limits =
            Limits { connections_max: 64, memory_max_bytes: 8 << 20, ..Limits::default() };
    });
    let mut watcher = Raw::connect(&sharing.server);
    watcher.check_status(&put(b"k", &vec![1; 1 << 20]), Status::Ok);
    let mut there = Vec::new();
    let refused = loop {
        let since = SystemClock.monotonic();
        match sharing.connect() {
            Ok(streams) => there.push(streams),
            Err(status) => {
                let waited = SystemClock.monotonic().saturating_sub(since);
                assert!(waited < Duration::from_secs(9), "{waited:?}");
                break status;
            }
        }
    };
    assert_eq!(refused, u32::from(Status::Failed(esker::ErrorKind::OutOfMemory).number()));
    assert!(there.len() > 1, "{} fit", there.len());
    let (room, _) = sharing.server.server.shared_memory_room();
    assert_eq!(there.len() as u64, room, "as many as it says");
    // What is asked for without a data block finds memory, and uploads theirs.
    assert!(super::free_bytes(&mut watcher) >= 6 << 20);
    assert_eq!(watcher.ask(&get(b"k")).item().value.len(), 1 << 20);
    there.pop();
    sharing.check_left(u32::try_from(there.len()).expect("few") + 1);
    assert!(sharing.connect().is_ok(), "there is room again");
}

/// A byte in its bell that nobody has read is no sign of life.
#[test]
fn a_client_that_died_after_it_rang_is_missed_while_it_takes_no_replies() {
    let sharing = sharing(|config| {
        config.limits = Limits { request_timeout: Duration::ZERO, ..Limits::default() };
    });
    let mut watcher = Raw::connect(&sharing.server);
    watcher.check_status(&put(b"k", &vec![7; 20_000]), Status::Ok);
    let mut client = sharing.clients().remove(0);
    let mut frames = Vec::new();
    (1..=256).for_each(|id| push_frame(&mut frames, id, &get(b"k")));
    client.send(&frames);
    // Until the ring is full of replies, and the server waits for room in it.
    std::thread::park_timeout(Duration::from_millis(300));
    client.stream.bell.write_all(b"!!").expect("rung");
    drop(client);
    sharing.check_left(1);
}
