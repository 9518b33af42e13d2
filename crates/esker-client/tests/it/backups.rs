//! Backups of servers: they are waited for as long as they take, and nothing waits for them.

use crate::harness::{Alone, TestServer, address_of, alone, alone_with, impatient};
use esker_base::clock::{Clock as _, SystemClock};
use esker_client::{Client, Cluster, ErrorKind, Fate, Member, Options, Status};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use std::path::{Path, PathBuf};
use std::time::Duration;

fn backups_of(folder: &Path) -> PathBuf {
    folder.join("backups")
}

/// A server that may back up, and where to.
fn permitted() -> (Alone, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("scratch folder");
    let alone = alone_with(|config| config.backups = Some(backups_of(folder.path())));
    (alone, folder)
}

fn restored(folder: &Path) -> esker::Store {
    let mut options = esker::Options::new(folder.join("copy"));
    options.size_bytes = 0;
    esker::restore(&backups_of(folder), &options).expect("a whole backup");
    esker::Store::open(&options).expect("a store")
}

/// A pipe in the place of the last file of a backup, which waits there until it is dropped, and fails then.
struct Blocked(PathBuf);

impl Blocked {
    fn at(folder: &Path) -> Blocked {
        let path = backups_of(folder).join("MANIFEST.new");
        std::fs::create_dir_all(backups_of(folder)).expect("a folder");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
        Blocked(path)
    }

    /// Lets the backup go on while what comes back is there.
    fn open(&self) -> std::os::fd::OwnedFd {
        rustix::fs::open(&self.0, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).expect("a pipe")
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        let _other_end = self.open();
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_backup_tells_what_it_did_and_is_restored() {
    let (alone, folder) = permitted();
    let client = alone.client();
    let version = client.put(b"k", b"v").expect("put");
    let report = client.backup().expect("backup");
    assert_eq!(report.last_version, version);
    assert!(report.segments_copied == 1 && report.segments_reused == 0, "{report:?}");
    assert!(report.bytes_copied > 0);
    assert_eq!(restored(folder.path()).get(b"k").expect("get").as_deref(), Some(&b"v"[..]));
}

#[test]
fn a_server_without_a_folder_refuses() {
    let error = alone().client().backup().expect_err("no folder");
    assert_eq!((error.fate(), error.kind()), (Fate::Refused, ErrorKind::Unsupported));
    assert_eq!(error.status(), Some(Status::Forbidden));
}

/// While `client` waits for a backup for longer than it waits for anything else, `work` is done.
fn check_blocked(client: &Client, folder: &Path, work: impl Fn(u32)) {
    let limit = impatient().request_timeout;
    std::thread::scope(|scope| {
        // In here, so that a check that fails lets the backup go on, and with it whoever waits.
        let blocked = Blocked::at(folder);
        let pending = client.submit_backup().expect("submit");
        client.flush();
        let begun = SystemClock.monotonic();
        let waits = scope.spawn(|| pending.wait());
        let mut round = 0;
        while SystemClock.monotonic() - begun < 4 * limit {
            work(round);
            round += 1;
            esker_trt::sleep(Duration::from_millis(5));
        }
        // Nobody else sends a sign of life now.
        esker_trt::sleep(3 * limit);
        assert!(!waits.is_finished());
        let other_end = blocked.open();
        let error = waits.join().expect("no panic").expect_err("a pipe is no file");
        assert_eq!((error.fate(), error.kind()), (Fate::Refused, ErrorKind::Io), "{error}");
        drop(other_end);
    });
    client.backup().expect("nothing is in the way");
}

#[test]
fn a_backup_is_waited_for_longer_than_anything_else_and_nothing_waits_for_it() {
    let (alone, folder) = permitted();
    let client = Client::new(address_of(alone.server.address()), impatient());
    check_blocked(&client, folder.path(), |round| {
        let round = round.to_be_bytes();
        client.put(b"k", &round).expect("put");
        assert_eq!(&*client.get(b"k").expect("get").expect("there"), &round);
        client.sync().expect("sync");
        let error = client.backup().expect_err("one at a time");
        assert_eq!((error.fate(), error.status()), (Fate::Refused, Some(Status::TooLarge)));
    });
}

#[test]
fn nothing_waits_for_a_backup_on_any_core_of_a_server_that_shares_memory() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let address = format!("shm://{}", folder.path().join("memory.sock").display());
    let server = TestServer::start(folder.path(), &address, |config| {
        config.backups = Some(backups_of(folder.path()));
    });
    let client = Client::new(address.parse().expect("address"), impatient());
    client.put(b"k", b"v").expect("put");
    check_blocked(&client, folder.path(), |round| {
        for n in 0..8_u32 {
            let key = [round, n].map(u32::to_be_bytes).concat();
            client.put(&key, b"v").expect("put");
            client.get(&key).expect("get").expect("there");
        }
        match round % 3 {
            0 => client.sync().expect("sync"),
            1 => client.clear().expect("clear"),
            _ => drop(client.stats().expect("stats")),
        }
    });
    // What was submitted before, to whichever core, is in it.
    let pending: Vec<_> = (0..100_u32)
        .map(|n| {
            let (attributes, condition) = Default::default();
            client.submit_put(&n.to_be_bytes(), b"v", attributes, condition).expect("submit")
        })
        .collect();
    client.backup().expect("backup");
    for put in pending {
        put.wait().expect("put");
    }
    let copy = restored(folder.path());
    assert!((0..100_u32).all(|n| copy.get(&n.to_be_bytes()).expect("get").is_some()));
    server.stop();
}

#[test]
fn each_server_of_a_cluster_backs_up_by_itself() {
    let (one, first) = permitted();
    let other = alone();
    let (three, third) = permitted();
    let member = |name: &str, alone: &Alone| Member {
        name: name.into(),
        address: address_of(alone.server.address()),
        weight: 1,
    };
    let members = vec![member("one", &one), member("other", &other), member("three", &three)];
    let cluster = Cluster::new(members, &Options::default()).expect("cluster");
    for n in 0..300_u32 {
        cluster.put(&n.to_be_bytes(), b"v").expect("put");
    }
    let told = cluster.backup();
    let names: Vec<&str> = told.iter().map(|(member, _)| member.name.as_str()).collect();
    assert_eq!(names, ["one", "other", "three"]);
    let forbidden = told[1].1.as_ref().expect_err("it has no folder");
    assert_eq!(forbidden.status(), Some(Status::Forbidden));
    let version = |place: usize| told[place].1.as_ref().expect("a report").last_version;
    assert_eq!(version(0), one.server.store.stats().last_version);
    assert_eq!(version(2), three.server.store.stats().last_version);
    let items = |folder: &Path| restored(folder).stats().items;
    let both = items(first.path()) + items(third.path());
    assert_eq!(both + other.server.store.stats().items, 300);
}
