//! Backups that clients ask for: what is in them, and what goes on meanwhile.
//!
//! A pipe in the place of a file that the backup writes makes it wait until somebody opens the other end.

use super::doors::{encrypted, with_tls_and};
use super::shm::sharing;
use super::{PATIENCE, Raw, Reply, get, put, start_with};
use crate::harness::TestServer;
use esker::{EngineKind, ErrorKind, Options, Store};
use esker_base::clock::{Clock as _, SystemClock};
use esker_format::native::{BackupReport, Opcode, Request, Status};
use esker_server::{Limits, ListenAddress, ServerConfig};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// Where backups of a test go, and stores that are made of them.
struct Scratch(TempDir);

impl Scratch {
    fn new() -> Scratch {
        Scratch(tempfile::tempdir().expect("scratch folder"))
    }

    fn backups(&self) -> PathBuf {
        self.0.path().join("deep/backups")
    }

    /// A server of `engine` that may back up.
    fn serve(&self, engine: EngineKind) -> TestServer {
        TestServer::on_engine(engine, |config| {
            config.listen = vec!["native://127.0.0.1:0".parse().expect("address")];
            self.permit(config);
        })
    }

    fn permit(&self, config: &mut ServerConfig) {
        config.backups = Some(self.backups());
    }

    /// A store of what the backup holds.
    fn restored(&self, name: &str) -> Store {
        let mut options = Options::new(self.0.path().join(name));
        options.size_bytes = 0;
        options.pmem_emulate = true;
        esker::restore(&self.backups(), &options).expect("a whole backup");
        let store = Store::open(&Options { size_bytes: 256 << 20, ..options }).expect("a store");
        assert!(store.check().expect("check").is_sound());
        store
    }
}

fn report_of(reply: &Reply) -> BackupReport {
    assert_eq!((reply.opcode, reply.status), (Opcode::Backup as u8, Status::Ok));
    BackupReport::decode(&reply.payload).expect("a report")
}

fn back_up<S: Read + Write>(client: &mut Raw<S>) -> BackupReport {
    report_of(&client.ask(&Request::Backup))
}

/// A pipe that keeps whoever opens it to write.
struct Blocked(PathBuf);

impl Blocked {
    fn at(path: PathBuf) -> Blocked {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
        Blocked(path)
    }

    /// The last file of every backup.
    fn manifest(scratch: &Scratch) -> Blocked {
        Blocked::at(scratch.backups().join("MANIFEST.new"))
    }

    /// Lets the writer go on. What comes of that is no file: the backup fails where it makes it durable.
    fn open(&self) -> OwnedFd {
        rustix::fs::open(&self.0, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).expect("a pipe")
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // Nobody is left waiting, and nothing in the way.
        let _other_end = self.open();
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Asks for a backup that waits at a pipe; returns the request's id once the server has it.
fn begin<S: Read + Write>(client: &mut Raw<S>) -> u32 {
    let mut frames = Vec::new();
    let id = client.push(&mut frames, &Request::Backup);
    client.send(&frames);
    client.check_status(&Request::Ping, Status::Ok);
    id
}

/// The backup with that id goes on, and fails for the pipe's sake.
fn let_fail<S: Read + Write>(client: &mut Raw<S>, id: u32, blocked: &Blocked) {
    let _other_end = blocked.open();
    let reply = client.receive().expect("a reply");
    assert_eq!((reply.id, reply.status), (id, Status::Failed(ErrorKind::Io)));
}

#[test]
fn a_server_without_a_folder_for_backups_makes_none() {
    let server = start_with(|_| {});
    let mut client = Raw::connect(&server);
    let reply = client.check_status(&Request::Backup, Status::Forbidden);
    assert!(reply.payload.is_empty());
    client.check_status(&Request::Ping, Status::Ok);
}

#[test]
fn a_folder_that_holds_something_else_is_left_alone() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(scratch.backups()).expect("folder");
    std::fs::write(scratch.backups().join("letters"), b"dear").expect("write");
    let server = scratch.serve(EngineKind::Depot);
    let mut client = Raw::connect(&server);
    for _ in 0..2 {
        client.check_status(&Request::Backup, Status::Failed(ErrorKind::InvalidArgument));
    }
    assert_eq!(std::fs::read_dir(scratch.backups()).expect("there").count(), 1);
}

/// Key of the `n`th write of `writer`.
fn key(writer: u32, n: u32) -> Vec<u8> {
    format!("writer {writer}, key {n:08}").into_bytes()
}

fn value(n: u32) -> Vec<u8> {
    vec![n as u8; 1000 + (n as usize * 37) % 3000]
}

#[test]
fn a_backup_beside_writers_has_all_that_was_answered_before_it_and_a_prefix_of_the_rest() {
    const WRITERS: u32 = 3;
    for engine in EngineKind::ALL {
        let scratch = Scratch::new();
        let server = scratch.serve(engine);
        let acknowledged: Vec<AtomicU32> = (0..WRITERS).map(|_| AtomicU32::new(0)).collect();
        let stop = AtomicBool::new(false);
        let (report, before) = std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (server, stop) = (&server, &stop);
                let acknowledged = &acknowledged[writer as usize];
                scope.spawn(move || {
                    let mut client = Raw::connect(server);
                    let mut n = 0;
                    while !stop.load(Ordering::SeqCst) && n < 20_000 {
                        client.check_status(&put(&key(writer, n), &value(n)), Status::Ok);
                        n += 1;
                        acknowledged.store(n, Ordering::SeqCst);
                    }
                });
            }
            let mut client = Raw::connect(&server);
            while acknowledged.iter().any(|count| count.load(Ordering::SeqCst) < 300) {
                esker_trt::sleep(Duration::from_millis(1));
            }
            // The first one copies most, so writes go on meanwhile; they do so beside the second one, too.
            let now = || acknowledged.iter().map(|count| count.load(Ordering::SeqCst)).collect();
            let first = back_up(&mut client);
            let before: Vec<u32> = now();
            let second = back_up(&mut client);
            stop.store(true, Ordering::SeqCst);
            assert!(second.last_version > first.last_version, "{engine}");
            (second, before)
        });
        let store = scratch.restored("copy");
        for writer in 0..WRITERS {
            let all = acknowledged[writer as usize].load(Ordering::SeqCst);
            let there = (0..all + 1).take_while(|n| {
                let found = store.get(&key(writer, *n)).expect("get");
                found.is_some_and(|found| {
                    assert!(found.version() <= report.last_version);
                    *found == value(*n)[..]
                })
            });
            let there = there.count() as u32;
            assert!(there >= before[writer as usize], "{engine}: {there}, {before:?}");
            let behind =
                (there..all + 1).filter(|n| store.get(&key(writer, *n)).unwrap().is_some());
            assert_eq!(behind.count(), 0, "{engine}: a prefix of what {writer} wrote");
            // All that has such a version is there.
            let next = server.store.get(&key(writer, there)).expect("get");
            assert!(next.is_none_or(|next| next.version() > report.last_version), "{engine}");
        }
    }
}

#[test]
fn a_second_backup_copies_what_changed() {
    for engine in EngineKind::ALL {
        let scratch = Scratch::new();
        let server = scratch.serve(engine);
        let mut client = Raw::connect(&server);
        // Of `flat` only full logs stay as they are, where values of some 100 bytes stand.
        let is_flat = matches!(engine, EngineKind::FlatCceh | EngineKind::FlatMasstree);
        let (rounds, size) = if is_flat { (120, 100) } else { (5, 5000) };
        for round in 0..rounds {
            let mut frames = Vec::new();
            for n in 0..1000 {
                client.push(&mut frames, &put(&key(round, n), &vec![n as u8; size]));
            }
            let mut sender = client.sender();
            std::thread::scope(|scope| {
                scope.spawn(move || sender.write_all(&frames).expect("send"));
                (0..1000).for_each(|_| assert_eq!(client.receive().unwrap().status, Status::Ok));
            });
        }
        let first = back_up(&mut client);
        assert!(first.segments_copied > 0 && first.segments_reused == 0, "{engine}: {first:?}");
        assert_eq!(first.last_version, server.store.stats().last_version, "{engine}");
        client.check_status(&put(b"more", b"of it"), Status::Ok);
        let second = back_up(&mut client);
        assert!(second.segments_reused > 0, "{engine}: {second:?}");
        assert!(second.bytes_copied < first.bytes_copied / 2, "{engine}: {first:?}, {second:?}");
        assert!(second.last_version > first.last_version, "{engine}");
        let store = scratch.restored("copy");
        assert_eq!(store.stats().items, u64::from(rounds) * 1000 + 1, "{engine}");
        assert_eq!(store.get(b"more").expect("get").as_deref(), Some(&b"of it"[..]));
    }
}

#[test]
fn nothing_waits_for_a_backup_neither_behind_it_nor_elsewhere() {
    let scratch = Scratch::new();
    let blocked = Blocked::manifest(&scratch);
    let server = scratch.serve(EngineKind::Depot);
    let mut client = Raw::connect(&server);
    let id = begin(&mut client);
    let mut other = Raw::connect(&server);
    for client in [&mut client, &mut other] {
        client.check_status(&put(b"k", b"v"), Status::Ok);
        assert_eq!(client.ask(&get(b"k")).item().value, b"v");
        client.check_status(&Request::Sync, Status::Ok);
        client.check_status(&Request::Stats, Status::Ok);
        // It comes after all that was sent before, of which this has begun.
        client.check_status(&Request::Clear, Status::Ok);
        client.check_status(&get(b"k"), Status::KeyMissing);
        // One at a time.
        client.check_status(&Request::Backup, Status::TooLarge);
    }
    let_fail(&mut client, id, &blocked);
    drop(blocked);
    other.check_status(&put(b"k", b"w"), Status::Ok);
    back_up(&mut other);
    assert_eq!(scratch.restored("copy").get(b"k").expect("get").as_deref(), Some(&b"w"[..]));
}

#[test]
fn a_backup_has_what_was_sent_before_it_on_its_connection() {
    let scratch = Scratch::new();
    let server = scratch.serve(EngineKind::Depot);
    for round in 0..20_u32 {
        let mut client = Raw::connect(&server);
        let mut frames = Vec::new();
        for n in 0..200 {
            client.push(&mut frames, &put(&key(round, n), &round.to_be_bytes()));
        }
        let id = client.push(&mut frames, &Request::Backup);
        client.send(&frames);
        let replies: Vec<Reply> = (0..201).map(|_| client.receive().expect("a reply")).collect();
        report_of(replies.iter().find(|reply| reply.id == id).expect("answered"));
        if round % 10 == 0 {
            let store = scratch.restored(&format!("copy {round}"));
            assert!((0..200).all(|n| store.get(&key(round, n)).expect("get").is_some()));
        }
    }
}

#[test]
fn neither_silence_nor_a_slow_client_ends_a_connection_that_waits_for_its_backup() {
    let scratch = Scratch::new();
    let blocked = Blocked::manifest(&scratch);
    let limit = Duration::from_secs(1);
    let limits = Limits { idle_timeout: limit, request_timeout: limit, ..Limits::default() };
    let server = start_with(|config| {
        config.limits = limits;
        scratch.permit(config);
    });
    let mut client = Raw::connect(&server);
    let id = begin(&mut client);
    esker_trt::sleep(5 * limit);
    client.check_status(&Request::Ping, Status::Ok);
    esker_trt::sleep(2 * limit);
    let_fail(&mut client, id, &blocked);
}

/// All streams of a client in shared memory are one connection, and who waits by one of them is not idle.
#[test]
fn a_client_that_waits_for_its_backup_by_one_stream_keeps_the_others() {
    let scratch = Scratch::new();
    let blocked = Blocked::manifest(&scratch);
    let idle = Duration::from_secs(2);
    let sharing = sharing(|config| {
        config.limits = Limits { idle_timeout: idle, ..Limits::default() };
        scratch.permit(config);
    });
    let mut clients = sharing.clients();
    assert!(clients.len() > 1);
    let id = begin(&mut clients[0]);
    esker_trt::sleep(5 * idle / 2);
    let_fail(&mut clients[0], id, &blocked);
    // Its silence begins here, by whichever stream.
    esker_trt::sleep(idle / 2);
    for client in &mut clients {
        client.check_status(&Request::Ping, Status::Ok);
    }
    sharing.check_left(0);
}

#[test]
fn memory_that_comes_back_is_enough_for_who_waits_for_a_backup() {
    let scratch = Scratch::new();
    let blocked = Blocked::manifest(&scratch);
    let limits = Limits {
        connections_max: 8,
        memory_max_bytes: (4 << 20) + (32 << 10),
        ..Limits::default()
    };
    let server = start_with(|config| {
        config.limits = limits;
        scratch.permit(config);
    });
    server.store.put(b"big", &vec![7; 1 << 20]).expect("put");
    let mut client = Raw::connect(&server);
    let id = begin(&mut client);
    // It asks for more than the sockets and the memory take, and takes nothing.
    let mut deaf = Raw::connect(&server);
    let mut frames = Vec::new();
    for _ in 0..40 {
        deaf.push(&mut frames, &get(b"big"));
    }
    deaf.send(&frames);
    let mut watcher = Raw::connect(&server);
    while super::free_bytes(&mut watcher) > 1 << 20 {
        esker_trt::sleep(Duration::from_millis(5));
    }
    frames.clear();
    let wanted = client.push(&mut frames, &get(b"big"));
    client.send(&frames);
    esker_trt::sleep(Duration::from_millis(100));
    drop(deaf);
    let reply = client.receive().expect("a reply");
    assert_eq!((reply.id, reply.item().value.len()), (wanted, 1 << 20));
    let_fail(&mut client, id, &blocked);
}

#[test]
fn a_stop_ends_a_backup_and_the_earlier_one_is_whole() {
    let scratch = Scratch::new();
    let server = scratch.serve(EngineKind::Depot);
    let mut client = Raw::connect(&server);
    client.check_status(&put(b"k", b"earlier"), Status::Ok);
    back_up(&mut client);
    client.check_status(&put(b"k", b"later"), Status::Ok);
    // A backup of these takes far longer than it takes to stop.
    let value = vec![7; 512 << 10];
    for number in 0..256_u16 {
        client.check_status(&put(&number.to_be_bytes(), &value), Status::Ok);
    }
    let id = begin(&mut client);
    std::thread::scope(|scope| {
        let stopped = scope.spawn(|| server.server.stop(PATIENCE));
        let reply = client.receive().expect("a reply");
        assert_eq!((reply.id, reply.status), (id, Status::Failed(ErrorKind::Cancelled)));
        assert!(stopped.join().expect("no panic"), "everything is answered");
    });
    server.runtime.shutdown().expect("every session ends");
    let copy = scratch.restored("earlier");
    assert_eq!(copy.get(b"k").expect("get").as_deref(), Some(&b"earlier"[..]));
    // Another server of the store goes on with the folder.
    server.store.backup(&scratch.backups()).expect("backup");
    let copy = scratch.restored("later");
    assert_eq!(copy.get(b"k").expect("get").as_deref(), Some(&b"later"[..]));
    server.store.close().expect("close");
}

#[test]
fn a_folder_that_hangs_does_not_keep_a_server_from_its_end() {
    let scratch = Scratch::new();
    let blocked = Blocked::manifest(&scratch);
    let server = scratch.serve(EngineKind::Depot);
    let mut client = Raw::connect(&server);
    begin(&mut client);
    let begun = SystemClock.monotonic();
    assert!(!server.server.stop(Duration::from_millis(300)), "the backup is not answered");
    server.runtime.shutdown().expect("every session ends");
    server.store.close().expect("close");
    let took = SystemClock.monotonic() - begun;
    assert!(took < Duration::from_secs(20), "{took:?}");
    drop(blocked);
}

#[test]
fn a_client_that_leaves_does_no_harm_to_its_backup_or_to_others() {
    let scratch = Scratch::new();
    let server = scratch.serve(EngineKind::Depot);
    let blocked = Blocked::manifest(&scratch);
    let mut client = Raw::connect(&server);
    begin(&mut client);
    drop(client);
    let mut other = Raw::connect(&server);
    other.check_status(&put(b"k", b"v"), Status::Ok);
    other.check_status(&Request::Backup, Status::TooLarge);
    assert_eq!(server.server.connections(), 2, "what was asked for is not done yet");
    drop(blocked);
    let begun = SystemClock.monotonic();
    while server.server.connections() > 1 {
        assert!(SystemClock.monotonic() - begun < PATIENCE);
        esker_trt::sleep(Duration::from_millis(5));
    }
    back_up(&mut other);
    // Nobody listens to this one, and it is there.
    other.check_status(&put(b"k", b"w"), Status::Ok);
    let mut client = Raw::connect(&server);
    let mut frames = Vec::new();
    client.push(&mut frames, &Request::Backup);
    client.send(&frames);
    drop(client);
    while server.server.connections() > 1 {
        assert!(SystemClock.monotonic() - begun < PATIENCE);
        esker_trt::sleep(Duration::from_millis(5));
    }
    assert_eq!(scratch.restored("copy").get(b"k").expect("get").as_deref(), Some(&b"w"[..]));
}

#[test]
fn every_door_leads_to_backups() {
    let scratch = Scratch::new();
    let (server, tls) = with_tls_and(|config| scratch.permit(config));
    let mut client = encrypted(&server, &tls);
    client.check_status(&put(b"k", b"tls"), Status::Ok);
    back_up(&mut client);
    assert_eq!(scratch.restored("tls").get(b"k").expect("get").as_deref(), Some(&b"tls"[..]));

    let scratch = Scratch::new();
    let path = scratch.0.path().join("native.sock");
    let address: ListenAddress =
        format!("native+unix://{}", path.display()).parse().expect("address");
    let server = start_with(|config| {
        config.listen = vec![address];
        scratch.permit(config);
    });
    let mut client = Raw::greet(UnixStream::connect(&path).expect("connect"));
    client.check_status(&put(b"k", b"unix"), Status::Ok);
    back_up(&mut client);
    assert_eq!(scratch.restored("unix").get(b"k").expect("get").as_deref(), Some(&b"unix"[..]));
    drop(server);

    let scratch = Scratch::new();
    let sharing = sharing(|config| scratch.permit(config));
    let mut clients = sharing.clients();
    clients[1].check_status(&put(b"k", b"shm"), Status::Ok);
    for client in &mut clients {
        back_up(client);
    }
    let blocked = Blocked::manifest(&scratch);
    let id = begin(&mut clients[0]);
    for client in &mut clients {
        client.check_status(&put(b"k", b"shared"), Status::Ok);
        client.check_status(&Request::Sync, Status::Ok);
    }
    let_fail(&mut clients[0], id, &blocked);
    assert_eq!(scratch.restored("shm").get(b"k").expect("get").as_deref(), Some(&b"shm"[..]));
}
