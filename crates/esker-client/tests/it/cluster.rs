//! Several servers together.

use crate::harness::{Alone, address_of, alone, impatient};
use crate::impostors::{HELLO, read_hello};
use esker_base::clock::{Clock as _, SystemClock};
use esker_client::{Batch, Cluster, ErrorKind, Fate, Member, Options};
use esker_format::native::ServerHello;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn member(name: &str, alone: &Alone) -> Member {
    Member { name: name.into(), address: address_of(alone.server.address()), weight: 1 }
}

fn key(n: u32) -> Vec<u8> {
    format!("key{n}").into_bytes()
}

fn items(servers: &[&Alone]) -> Vec<u64> {
    servers.iter().map(|alone| alone.server.store.stats().items).collect()
}

/// Keys that a server was asked for.
fn gets(alone: &Alone) -> u64 {
    let stats = alone.client().stats().expect("stats");
    let (_, count) = stats.iter().find(|(name, _)| name == "cmd_get").expect("a figure");
    count.parse().expect("a number")
}

#[test]
fn keys_spread_over_three_servers_and_few_move_when_a_fourth_comes() {
    const KEYS: u32 = 2000;
    let (a, b, c, d) = (alone(), alone(), alone(), alone());
    let members = vec![member("a", &a), member("b", &b), member("c", &c)];
    let cluster = Cluster::new(members.clone(), &Options::default()).expect("cluster");
    for n in 0..KEYS {
        cluster.put(&key(n), &n.to_be_bytes()).expect("put");
    }
    let shares = items(&[&a, &b, &c]);
    assert_eq!(shares.iter().sum::<u64>(), u64::from(KEYS));
    assert!(shares.iter().all(|share| (450..900).contains(share)), "{shares:?}");
    // Another client, told the same, finds everything; in one call, too.
    let other = Cluster::new(members.clone(), &Options::default()).expect("cluster");
    let keys: Vec<Vec<u8>> = (0..KEYS).map(key).collect();
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let values = other.multi_get(&keys);
    for (n, value) in (0..KEYS).zip(values) {
        assert_eq!(&*value.expect("multi_get").expect("there"), n.to_be_bytes());
    }
    let larger = [members, vec![member("d", &d)]].concat();
    let larger = Cluster::new(larger, &Options::default()).expect("cluster");
    let found = larger.multi_get(&keys);
    let mut moved = 0;
    for (key, value) in keys.iter().zip(&found) {
        let (owner, _) = larger.owner(key).expect("owner");
        let (before, _) = cluster.owner(key).expect("owner");
        let value = value.as_ref().expect("multi_get");
        assert_eq!(value.is_none(), owner.name == "d", "found unless it belongs to the new one");
        if owner.name != before.name {
            assert_eq!(owner.name, "d");
            moved += 1;
        }
    }
    assert!((KEYS / 4 * 3 / 4..KEYS / 4 * 5 / 4).contains(&moved), "{moved} of {KEYS} keys moved");
    assert!(larger.delete(keys[0]).is_ok() && larger.sync().is_ok());
}

#[test]
fn a_batch_of_several_servers_is_refused_and_split_on_demand() {
    let (a, b, c) = (alone(), alone(), alone());
    let members = vec![member("a", &a), member("b", &b), member("c", &c)];
    let cluster = Cluster::new(members, &Options::default()).expect("cluster");
    let mut batch = Batch::new();
    (0..100).for_each(|n| {
        batch.put(&key(n), b"v");
    });
    let error = cluster.write(&batch).expect_err("three servers");
    assert_eq!((error.fate(), error.kind()), (Fate::NotSent, ErrorKind::InvalidArgument));
    assert_eq!(items(&[&a, &b, &c]), [0, 0, 0]);
    let parts = cluster.split(&batch).expect("split");
    assert_eq!(parts.len(), 3);
    assert_eq!(parts.iter().map(|(_, part)| part.len()).sum::<usize>(), 100);
    for (client, part) in &parts {
        client.write(part).expect("write");
    }
    assert_eq!(items(&[&a, &b, &c]).iter().sum::<u64>(), 100);
    let mut one = Batch::new();
    one.put(&key(1), b"w").put(&key(1), b"x");
    cluster.write(&one).expect("one server");
    assert_eq!(&*cluster.get(&key(1)).expect("get").expect("there"), b"x");
}

#[test]
fn a_server_that_is_gone_fails_its_own_keys_only() {
    let (a, b, c) = (alone(), alone(), alone());
    let members = vec![member("a", &a), member("b", &b), member("c", &c)];
    let cluster = Cluster::new(members, &impatient()).expect("cluster");
    for n in 0..300 {
        cluster.put(&key(n), b"v").expect("put");
    }
    b.server.stop();
    for n in 0..300 {
        let (owner, _) = cluster.owner(&key(n)).expect("owner");
        match cluster.get(&key(n)) {
            Ok(value) => {
                assert_ne!(owner.name, "b");
                assert!(value.is_some());
            }
            Err(error) => assert_eq!(owner.name, "b", "{error}"),
        }
    }
    let keys: Vec<Vec<u8>> = (0..300).map(key).collect();
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let values = cluster.multi_get(&keys);
    assert_eq!(values.len(), keys.len());
    for (key, value) in keys.iter().zip(values) {
        let (owner, _) = cluster.owner(key).expect("owner");
        match value {
            Ok(value) => {
                assert_ne!(owner.name, "b");
                assert!(value.is_some_and(|value| &*value == b"v"));
            }
            Err(error) => assert_eq!(owner.name, "b", "{error}"),
        }
    }
    assert!(cluster.sync().is_err());
}

#[test]
fn a_server_that_swallows_connections_keeps_no_others_from_being_asked() {
    let (a, b) = (alone(), alone());
    // Named so that it would be asked first: it takes connections, and answers nothing.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = address_of(mute.local_addr().expect("bound"));
    let dead = Member { name: "0".into(), address, weight: 1 };
    let members = vec![dead, member("a", &a), member("b", &b)];
    let options = Options { connect_timeout: std::time::Duration::from_secs(3), ..impatient() };
    let cluster = Cluster::new(members, &options).expect("cluster");
    let keys: Vec<Vec<u8>> = (0..300).map(key).collect();
    let mut theirs = 0;
    for key in &keys {
        let (owner, client) = cluster.owner(key).expect("owner");
        if owner.name != "0" {
            client.put(key, b"v").expect("put");
            theirs += 1;
        }
    }
    let before: u64 = [&a, &b].iter().map(|alone| gets(alone)).sum();
    std::thread::scope(|scope| {
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let cluster = &cluster;
        let asked = scope.spawn(move || cluster.multi_get(&keys));
        // The others have answered long before the connection to the first one fails.
        while [&a, &b].iter().map(|alone| gets(alone)).sum::<u64>() < before + theirs {
            assert!(!asked.is_finished(), "they were asked behind the one that does not answer");
            esker_trt::sleep(std::time::Duration::from_millis(5));
        }
        assert!(!asked.is_finished());
        for (n, value) in (0..300).zip(asked.join().expect("no panic")) {
            let (owner, _) = cluster.owner(&key(n)).expect("owner");
            assert_eq!(value.is_err(), owner.name == "0");
        }
    });
}

const MANY: usize = 5;

fn listeners() -> Vec<TcpListener> {
    (0..MANY).map(|_| TcpListener::bind("127.0.0.1:0").expect("bind")).collect()
}

fn cluster_of(listeners: &[TcpListener], options: &Options) -> Cluster {
    let address = |listener: &TcpListener| address_of(listener.local_addr().expect("bound"));
    let members = listeners.iter().map(|listener| Member::from(address(listener))).collect();
    Cluster::new(members, options).expect("cluster")
}

/// How long a `multi_get` of keys of all of them takes, and whether it fails for all.
fn failing_multi_get(cluster: &Cluster) -> (Duration, bool) {
    let keys: Vec<Vec<u8>> = (0..300).map(key).collect();
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let begun = SystemClock.monotonic();
    let values = cluster.multi_get(&keys);
    let took = SystemClock.monotonic() - begun;
    (took, values.iter().all(Result::is_err))
}

/// Takes connections, greets, and never says a word more, until `is_over`.
fn be_silent(listener: &TcpListener, is_over: &AtomicBool) {
    listener.set_nonblocking(true).expect("flag");
    while !is_over.load(Ordering::Relaxed) {
        if let Ok((mut stream, _)) = listener.accept() {
            stream.set_nonblocking(false).expect("flag");
            read_hello(&mut stream);
            stream.write_all(&HELLO.encode()).expect("send");
            // Until the client gives up.
            let _ = stream.read_to_end(&mut Vec::new());
        }
        esker_trt::sleep(Duration::from_millis(5));
    }
}

#[test]
fn silent_servers_take_no_more_time_together_than_one() {
    let limit = Duration::from_secs(1);
    let listeners = listeners();
    let cluster = cluster_of(&listeners, &Options { request_timeout: limit, ..impatient() });
    let is_over = AtomicBool::new(false);
    let took = std::thread::scope(|scope| {
        for listener in &listeners {
            scope.spawn(|| be_silent(listener, &is_over));
        }
        let multi_get = failing_multi_get(&cluster);
        let begun = SystemClock.monotonic();
        let synced = cluster.sync();
        let sync = SystemClock.monotonic() - begun;
        let reports: Vec<bool> =
            cluster.backup().iter().map(|(_, report)| report.is_err()).collect();
        let backup = SystemClock.monotonic() - begun - sync;
        is_over.store(true, Ordering::Relaxed);
        drop(cluster);
        (multi_get, synced.is_err(), sync, reports, backup)
    });
    let ((multi_get, all_fail), fails, sync, reports, backup) = took;
    assert!(all_fail && multi_get >= limit && multi_get < 4 * limit, "{multi_get:?}");
    assert!(fails && sync < 4 * limit, "{sync:?}");
    // First for the report, then for a sign of life.
    assert!(reports == [true; MANY] && backup < 7 * limit, "{backup:?}");
}

#[test]
fn servers_that_read_nothing_take_no_more_time_together_than_one() {
    let limit = Duration::from_secs(1);
    let listeners = listeners();
    let cluster = cluster_of(&listeners, &Options { request_timeout: limit, ..impatient() });
    // More for each of them than the network takes without a reader.
    let keys: Vec<Vec<u8>> = (0..1000).map(|n| format!("{n:0>60000}").into_bytes()).collect();
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let (took, all_fail) = std::thread::scope(|scope| {
        let greeted: Vec<_> = listeners
            .iter()
            .map(|listener| {
                scope.spawn(|| {
                    let mut stream = listener.accept().expect("a connection").0;
                    read_hello(&mut stream);
                    let hello = ServerHello { request_size_max: 64 << 20, ..HELLO };
                    stream.write_all(&hello.encode()).expect("send");
                    stream
                })
            })
            .collect();
        // All of them are connected.
        let pings = cluster.members().map(|(_, client)| client.submit_get(b"k"));
        let pings: Vec<bool> = pings.map(|ping| ping.is_ok()).collect();
        let streams: Vec<_> = greeted.into_iter().map(|thread| thread.join()).collect();
        let begun = SystemClock.monotonic();
        let values = cluster.multi_get(&keys);
        let took = SystemClock.monotonic() - begun;
        let all_connected = pings == [true; MANY] && streams.iter().all(Result::is_ok);
        (took, all_connected && values.iter().all(Result::is_err))
    });
    assert!(all_fail && took >= limit && took < 4 * limit, "{took:?}");
}

#[test]
fn servers_that_cannot_be_reached_take_no_more_time_together_than_one() {
    let limit = Duration::from_secs(1);
    let listeners = listeners();
    let mut first = Vec::new();
    for listener in &listeners {
        rustix::net::listen(listener, 0).expect("a short queue");
        let address = listener.local_addr().expect("bound");
        let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(100)).ok();
        first.extend(std::iter::from_fn(connect).take(100));
    }
    let cluster = cluster_of(&listeners, &Options { connect_timeout: limit, ..impatient() });
    let (took, all_fail) = failing_multi_get(&cluster);
    assert!(all_fail && took >= limit && took < 4 * limit, "{took:?}");
    let begun = SystemClock.monotonic();
    assert!(cluster.sync().is_err());
    let took = SystemClock.monotonic() - begun;
    assert!(took < 4 * limit, "{took:?}");
    drop(first);
}

#[test]
fn a_cluster_of_nobody_or_of_two_with_one_name_is_refused() {
    assert!(Cluster::new(Vec::new(), &Options::default()).is_err());
    let server = alone();
    let twice = vec![member("a", &server), member("a", &server)];
    assert!(Cluster::new(twice, &Options::default()).is_err());
    let idle = vec![Member { weight: 0, ..member("a", &server) }];
    assert!(Cluster::new(idle, &Options::default()).is_err());
}
