//! Through shared memory: every call, order over several cores, servers that end.

use crate::harness::{TestServer, impatient};
use esker_base::rng::Rng;
use esker_client::{Attributes, Batch, Client, Condition, ErrorKind, Options, Pending, Value};
use esker_server::{Credentials, Limits, ServerConfig};
use std::collections::BTreeMap;
use tempfile::TempDir;

struct Sharing {
    server: TestServer,
    folder: TempDir,
}

fn sharing(change: impl FnOnce(&mut ServerConfig)) -> Sharing {
    let folder = tempfile::tempdir().expect("scratch folder");
    let server = TestServer::start(folder.path(), &address(&folder), change);
    Sharing { server, folder }
}

fn address(folder: &TempDir) -> String {
    format!("shm://{}", folder.path().join("memory.sock").display())
}

impl Sharing {
    fn client(&self, options: Options) -> Client {
        Client::new(address(&self.folder).parse().expect("address"), options)
    }
}

#[test]
fn every_call_does_what_it_does_over_a_socket() {
    let sharing = sharing(|_| {});
    let client = sharing.client(Options::default());
    client.ping().expect("ping");
    assert!(client.get(b"k").expect("get").is_none());
    // Larger than a ring.
    let large: Vec<u8> = (0..900_000_u32).map(|n| (n % 251) as u8).collect();
    let version = client.put(b"large", &large).expect("put");
    let value = client.get(b"large").expect("get").expect("there");
    assert!(*value == large[..] && value.version() == version);
    let mut batch = Batch::new();
    batch.put(b"a", b"1").put(b"b", b"2").delete(b"large");
    client.write(&batch).expect("write");
    let found = client.multi_get(&[b"a", b"large", b"b"]).expect("multi_get");
    let found: Vec<Option<&[u8]>> = found.iter().map(|value| value.as_deref()).collect();
    assert_eq!(found, [Some(&b"1"[..]), None, Some(b"2")]);
    assert!(client.delete(b"a").expect("delete"));
    client.sync().expect("sync");
    let stats: BTreeMap<String, String> = client.stats().expect("stats").into_iter().collect();
    assert_eq!(stats["items"], "1");
    client.clear().expect("clear");
    assert!(client.get(b"b").expect("get").is_none());
}

/// Whatever is submitted, each get sees what was submitted before it, also if a batch or a clear wrote it.
#[test]
fn requests_take_effect_in_the_order_of_their_submission_on_all_cores() {
    let sharing = sharing(|_| {});
    let client = sharing.client(Options::default());
    let mut rng = Rng::from_seed(5);
    let mut model: BTreeMap<u64, u64> = BTreeMap::new();
    let mut pending: Vec<(Pending<Option<Value>>, Option<u64>)> = Vec::new();
    let mut others = Vec::new();
    let mut batches = Vec::new();
    for n in 0..6000_u64 {
        let number = rng.below(20);
        let key = number.to_be_bytes();
        match rng.below(200) {
            0 => {
                client.clear().expect("clear");
                model.clear();
            }
            1..10 => {
                let mut batch = Batch::new();
                for number in [number, (number + 7) % 20] {
                    batch.put(&number.to_be_bytes(), &n.to_be_bytes());
                    model.insert(number, n);
                }
                batches.push(client.submit_write(&batch).expect("submit"));
            }
            10..100 => {
                let (attributes, condition) = (Attributes::default(), Condition::Always);
                let put = client.submit_put(&key, &n.to_be_bytes(), attributes, condition);
                others.push(put.expect("submit"));
                model.insert(number, n);
            }
            _ => {
                let get = client.submit_get(&key).expect("submit");
                pending.push((get, model.get(&number).copied()));
            }
        }
        if rng.chance(1, 60) {
            for (get, expected) in pending.drain(..) {
                let found = get.wait().expect("get").map(|value| value.to_vec());
                assert_eq!(found, expected.map(|n| n.to_be_bytes().to_vec()));
            }
        }
    }
    others.into_iter().for_each(|put| assert!(put.wait().is_ok()));
    batches.into_iter().for_each(|batch| assert!(batch.wait().is_ok()));
    assert!(sharing.server.store.stats().last_version.0 > 1000);
}

#[test]
fn many_threads_share_a_client() {
    let sharing = sharing(|_| {});
    let client = sharing.client(Options::default());
    std::thread::scope(|scope| {
        for thread in 0..6_u64 {
            let client = client.clone();
            scope.spawn(move || {
                for n in 0..400_u64 {
                    let key = ((thread << 32) | (n % 50)).to_be_bytes();
                    client.put(&key, &n.to_be_bytes()).expect("put");
                    let value = client.get(&key).expect("get").expect("there");
                    assert_eq!(&*value, n.to_be_bytes());
                }
            });
        }
    });
    assert_eq!(sharing.server.store.stats().items, 300);
}

#[test]
fn doors_are_those_of_a_socket() {
    let known = Credentials::parse(b"ann:secret\n").expect("valid");
    let sharing = sharing(|config| {
        config.auth = Some(known);
        config.limits = Limits { connections_max: 1, ..Limits::default() };
    });
    assert!(sharing.client(Options::default()).ping().is_err());
    let credentials = Some(("ann".to_owned(), "secret".to_owned()));
    let known = Options { credentials, ..impatient() };
    // The place of the one before comes back when the server has seen its end.
    let client = sharing.client(known.clone());
    let end = std::time::Duration::from_millis(20);
    let admitted = (0..200).any(|_| {
        let admitted = client.ping().is_ok();
        if !admitted {
            std::thread::park_timeout(end);
        }
        admitted
    });
    assert!(admitted);
    let refused = sharing.client(known).ping().expect_err("one client too many");
    assert!(refused.to_string().contains("too many"), "{refused}");
    client.ping().expect("the other one is served");
}

#[test]
fn the_end_of_a_server_is_seen_and_a_new_one_found() {
    let Sharing { server, folder } = sharing(|_| {});
    let client = Client::new(address(&folder).parse().expect("address"), impatient());
    client.put(b"k", b"v").expect("put");
    let pending: Vec<_> =
        (0..50_u32).map(|n| client.submit_get(&n.to_be_bytes()).expect("submit")).collect();
    server.vanish();
    // Answered before, or failed: nobody waits for ever.
    let failed = pending.into_iter().map(|get| get.wait()).filter(Result::is_err);
    assert!(failed.count() <= 50);
    let error = client.get(b"k").expect_err("nobody is there");
    assert!(
        matches!(error.kind(), ErrorKind::Io | ErrorKind::Closed | ErrorKind::Timeout),
        "{error}"
    );
    let server = TestServer::start(folder.path(), &address(&folder), |_| {});
    let again = (0..200).find_map(|_| {
        let found = client.get(b"k").ok();
        if found.is_none() {
            std::thread::park_timeout(std::time::Duration::from_millis(20));
        }
        found
    });
    assert_eq!(again.expect("a server").as_deref(), Some(&b"v"[..]));
    server.stop();
}
