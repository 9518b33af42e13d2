//! Many requests of one connection at the same time, and the order that is kept.

use super::{PATIENCE, Raw, Reply, free_bytes, get, push_frame, put, start, start_with_limits};
use crate::harness::TestServer;
use esker::Durability;
use esker_base::clock::{Clock as _, SystemClock};
use esker_base::rng::Rng;
use esker_format::native::{
    Attributes, Change, ChangeKind, Changes, Condition, Keys, Put, Request, Status, decode_version,
    push_change, push_key,
};
use esker_media::sim::{Initial, SimBlock, SimBlockOptions};
use esker_server::Limits;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

fn receive_all(client: &mut Raw<std::net::TcpStream>, count: usize) -> BTreeMap<u32, Reply> {
    let mut replies = BTreeMap::new();
    for _ in 0..count {
        let reply = client.receive().expect("a reply");
        let id = reply.id;
        assert!(replies.insert(id, reply).is_none(), "{id} is answered twice");
    }
    replies
}

#[test]
fn a_thousand_requests_in_flight_are_each_answered_once() {
    let server = start();
    let mut client = Raw::connect(&server);
    let mut frames = Vec::new();
    for n in 0..1000_u32 {
        let key = format!("key{n}");
        client.push(&mut frames, &put(key.as_bytes(), &n.to_be_bytes()));
    }
    client.send(&frames);
    let replies = receive_all(&mut client, 1000);
    assert!(replies.values().all(|reply| reply.status == Status::Ok));
    frames.clear();
    let first = client.next_id;
    for n in 0..1000_u32 {
        client.push(&mut frames, &get(format!("key{n}").as_bytes()));
    }
    client.send(&frames);
    let replies = receive_all(&mut client, 1000);
    for n in 0..1000_u32 {
        assert_eq!(replies[&(first + n)].item().value, n.to_be_bytes());
    }
}

#[test]
fn replies_do_not_depend_on_how_frames_are_cut() {
    let server = start();
    let mut rng = Rng::from_seed(0x00C0_FFEE);
    for round in 0..30_usize {
        let mut client = Raw::connect(&server);
        let mut frames = Vec::new();
        let large = vec![round as u8; 40_000];
        client.push(&mut frames, &put(b"small", b"s"));
        client.push(&mut frames, &put(b"large", &large));
        client.push(&mut frames, &get(b"large"));
        client.push(&mut frames, &get(b"small"));
        let mut cuts: Vec<usize> = match round {
            0..20 => (0..=round).map(|cut| cut * 3 + round).collect(),
            _ => (0..6).map(|_| rng.index(frames.len())).collect(),
        };
        cuts.sort_unstable();
        let mut from = 0;
        for cut in cuts {
            client.send(&frames[from..cut]);
            from = cut;
            esker_trt::sleep(std::time::Duration::from_millis(1));
        }
        client.send(&frames[from..]);
        let replies = receive_all(&mut client, 4);
        assert!(replies[&3].item().value == large, "round {round}");
        assert_eq!(replies[&4].item().value, b"s");
    }
}

/// A write is durable only after a flush that takes long: what needs none overtakes it.
#[test]
fn a_read_overtakes_a_write_that_waits_for_its_flush() {
    let device = Arc::new(SimBlock::new(SimBlockOptions::new(16 << 20, 5).initial(Initial::Zeros)));
    let limits = Limits { item_size_max_bytes: 64 << 10, ..Limits::default() };
    let server = TestServer::native_on_device(&device, limits);
    let mut client = Raw::connect(&server);
    client.check_status(&put(b"there", b"v"), Status::Ok);
    let mut overtaken = 0;
    for round in 0..200_u32 {
        let mut frames = Vec::new();
        let write = client.push(&mut frames, &put(b"other", &round.to_be_bytes()));
        let ping = client.push(&mut frames, &Request::Ping);
        let read = client.push(&mut frames, &get(b"there"));
        client.send(&frames);
        let order: Vec<u32> = (0..3).map(|_| client.receive().expect("a reply").id).collect();
        let place = |id| order.iter().position(|other| *other == id);
        assert!(place(ping).is_some() && place(read).is_some());
        if place(write) > place(ping) {
            overtaken += 1;
        }
    }
    assert!(overtaken > 100, "a ping overtook {overtaken} of 200 writes");
}

/// A server whose writes wait for the device, and one whose writes are done at once.
fn slow_and_fast() -> [TestServer; 2] {
    let slow = TestServer::with_durability(Durability::Sync, |config| {
        config.listen = vec!["native://127.0.0.1:0".parse().expect("address")];
    });
    [slow, start()]
}

#[test]
fn requests_on_one_key_take_effect_in_the_order_in_which_they_were_sent() {
    for server in slow_and_fast() {
        check_order(&server);
    }
}

fn check_order(server: &TestServer) {
    let mut client = Raw::connect(server);
    let mut rng = Rng::from_seed(11);
    for _ in 0..4 {
        let (mut frames, mut expected) = (Vec::new(), BTreeMap::new());
        let mut now: BTreeMap<u64, Option<Vec<u8>>> = BTreeMap::new();
        for step in 0..1000_u32 {
            let number = rng.below(8);
            let key = format!("k{number}");
            let value = step.to_be_bytes();
            match rng.below(10) {
                0..4 => {
                    let id = client.push(&mut frames, &get(key.as_bytes()));
                    expected.insert(id, now.get(&number).cloned());
                }
                4..7 => {
                    client.push(&mut frames, &put(key.as_bytes(), &value));
                    now.insert(number, Some(value.to_vec()));
                }
                7 => {
                    let condition = Condition::Always;
                    client.push(&mut frames, &Request::Delete { key: key.as_bytes(), condition });
                    now.insert(number, None);
                }
                _ => {
                    let mut payload = Vec::new();
                    for number in [number, (number + 1) % 8] {
                        let kind = ChangeKind::Put(&value, Attributes::default());
                        let key = format!("k{number}");
                        push_change(&mut payload, &Change { key: key.as_bytes(), kind })
                            .expect("a change");
                        now.insert(number, Some(value.to_vec()));
                    }
                    let changes = Changes::decode(&payload).expect("changes");
                    client.push(&mut frames, &Request::Batch(changes));
                }
            }
        }
        let mut sender = client.sender();
        let mut replies = BTreeMap::new();
        std::thread::scope(|scope| {
            scope.spawn(|| sender.write_all(&frames).expect("send"));
            replies = receive_all(&mut client, 1000);
        });
        for (id, value) in expected {
            // What an earlier round left is not known here.
            let Some(value) = value else { continue };
            match value {
                Some(value) => assert_eq!(replies[&id].item().value, value, "request {id}"),
                None => assert_eq!(replies[&id].status, Status::KeyMissing, "request {id}"),
            }
        }
        client.check_status(&Request::Clear, Status::Ok);
    }
}

#[test]
fn a_count_by_versions_needs_no_wait_for_replies_on_one_key() {
    let server = start();
    let mut client = Raw::connect(&server);
    let mut frames = Vec::new();
    for n in 0..500_u32 {
        client.push(&mut frames, &put(b"k", &n.to_be_bytes()));
    }
    client.send(&frames);
    let replies = receive_all(&mut client, 500);
    let versions: Vec<_> =
        replies.values().map(|reply| decode_version(&reply.payload).expect("a version")).collect();
    assert!(
        versions.is_sorted_by(|one, other| one < other),
        "versions follow the order of sending"
    );
}

#[test]
fn a_clear_is_between_what_was_sent_before_and_after_it() {
    let server = start();
    let mut client = Raw::connect(&server);
    for _ in 0..50 {
        let mut frames = Vec::new();
        for n in 0..20 {
            client.push(&mut frames, &put(format!("before{n}").as_bytes(), b"v"));
        }
        client.push(&mut frames, &Request::Clear);
        let first = client.next_id;
        for n in 0..20 {
            client.push(&mut frames, &put(format!("after{n}").as_bytes(), b"v"));
        }
        for n in 0..20 {
            client.push(&mut frames, &get(format!("before{n}").as_bytes()));
        }
        client.send(&frames);
        let replies = receive_all(&mut client, 61);
        assert!((0..20).all(|n| replies[&(first + n)].status == Status::Ok));
        assert!((20..40).all(|n| replies[&(first + n)].status == Status::KeyMissing));
        assert_eq!(server.store.stats().items, 20);
    }
}

/// Values of all requests together are far more than a connection may hold, and than the budget.
#[test]
fn a_client_that_asks_for_more_than_fits_gets_it_piece_by_piece() {
    let limits =
        Limits { connections_max: 8, memory_max_bytes: (6 << 20) + 8 * 4096, ..Limits::default() };
    let server = start_with_limits(limits);
    let mut client = Raw::connect(&server);
    let value = vec![b'v'; 1 << 20];
    client.check_status(&put(b"big", &value), Status::Ok);
    let mut frames = Vec::new();
    for _ in 0..64 {
        client.push(&mut frames, &get(b"big"));
    }
    client.send(&frames);
    for _ in 0..64 {
        let reply = client.receive().expect("a reply");
        assert!(reply.item().value == value);
    }
}

#[test]
fn a_client_that_never_reads_holds_no_more_than_one_connection_may() {
    let server = start();
    let mut other = Raw::connect(&server);
    other.check_status(&put(b"big", &vec![b'v'; 1 << 20]), Status::Ok);
    let free = free_bytes(&mut other);
    let mut greedy = Raw::connect(&server);
    let mut frames = Vec::new();
    for _ in 0..200 {
        greedy.push(&mut frames, &get(b"big"));
    }
    greedy.send(&frames);
    let mut held = || {
        esker_trt::sleep(std::time::Duration::from_millis(10));
        free.saturating_sub(free_bytes(&mut other))
    };
    assert!((0..1000).any(|_| held() > 1 << 20), "it asked for so much");
    let held = (0..50).map(|_| held()).max().expect("some");
    assert!(held < 8 << 20, "{held} bytes are held for one connection");
}

/// What a key holds is known only once the write before is done: requests are admitted while there is nothing.
#[test]
fn what_was_not_there_when_it_was_asked_for_is_held_no_more_than_other_values() {
    let mut listed = Vec::new();
    push_key(&mut listed, b"big").expect("a key");
    let several = Request::MultiGet(Keys::decode(&listed).expect("keys"));
    for (request, reads) in
        [(get(b"big"), false), (get(b"big"), true), (several, false), (several, true)]
    {
        let mut options = SimBlockOptions::new(64 << 20, 1);
        (options.record, options.latency_max) = (false, Duration::from_millis(200));
        let device = Arc::new(SimBlock::new(options));
        let server = TestServer::native_on_device(&device, Limits::default());
        let mut other = Raw::connect(&server);
        let free = free_bytes(&mut other);
        let mut greedy = Raw::connect(&server);
        let value = vec![b'v'; 1 << 20];
        let mut frames = Vec::new();
        greedy.push(&mut frames, &put(b"big", &value));
        for _ in 0..100 {
            greedy.push(&mut frames, &request);
        }
        greedy.send(&frames);
        if reads {
            let mut bytes = 0;
            for _ in 0..101 {
                let reply = greedy.receive().expect("a reply");
                assert_eq!(reply.status, Status::Ok);
                bytes += reply.payload.len();
            }
            assert!(bytes > 100 << 20, "{bytes}");
            continue;
        }
        let mut held = || {
            esker_trt::sleep(Duration::from_millis(10));
            free.saturating_sub(free_bytes(&mut other))
        };
        assert!((0..1000).any(|_| held() > 2 << 20), "values are held, and charged");
        let held = (0..50).map(|_| held()).max().expect("some");
        assert!(held < 8 << 20, "{held} bytes are held for one connection");
    }
}

#[test]
fn a_client_that_never_reads_does_not_stop_the_others() {
    let limits = Limits {
        memory_max_bytes: 16 << 20,
        request_timeout: std::time::Duration::from_secs(1),
        ..Limits::default()
    };
    let server = start_with_limits(limits);
    let value = vec![b'v'; 1 << 20];
    Raw::connect(&server).check_status(&put(b"big", &value), Status::Ok);
    let greedy: Vec<_> = (0..10)
        .map(|_| {
            let mut client = Raw::connect(&server);
            let mut frames = Vec::new();
            for _ in 0..500 {
                client.push(&mut frames, &get(b"big"));
            }
            client.send(&frames);
            client
        })
        .collect();
    for round in 0..20_u32 {
        let mut client = Raw::connect(&server);
        client.check_status(&put(b"k", &round.to_be_bytes()), Status::Ok);
        assert_eq!(client.ask(&get(b"k")).item().value, round.to_be_bytes());
    }
    // They are cut off when their time is over.
    let end = PATIENCE;
    let mut waited = std::time::Duration::ZERO;
    while server.server.connections() > 0 && waited < end {
        esker_trt::sleep(std::time::Duration::from_millis(20));
        waited += std::time::Duration::from_millis(20);
    }
    assert_eq!(server.server.connections(), 0);
    drop(greedy);
    assert!(Raw::connect(&server).ask(&get(b"big")).item().value == value);
}

#[test]
fn connections_that_count_together_lose_nothing() {
    let server = start();
    Raw::connect(&server).check_status(&put(b"n", &0_u64.to_be_bytes()), Status::Ok);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = Raw::connect(&server);
                for _ in 0..50 {
                    loop {
                        let reply = client.ask(&get(b"n"));
                        let (version, value) = (reply.item().version, reply.item().value);
                        let next = u64::from_be_bytes(value.try_into().expect("eight")) + 1;
                        let put = Put {
                            key: b"n",
                            value: &next.to_be_bytes(),
                            attributes: Attributes::default(),
                            condition: Condition::VersionIs(version),
                        };
                        if client.ask(&Request::Put(put)).status == Status::Ok {
                            break;
                        }
                    }
                }
            });
        }
    });
    let reply = Raw::connect(&server).ask(&get(b"n"));
    assert_eq!(reply.item().value, 200_u64.to_be_bytes());
}

#[test]
fn what_was_received_is_answered_when_the_server_stops_and_when_the_client_ends_its_half() {
    let server = start();
    let mut client = Raw::connect(&server);
    let mut frames = Vec::new();
    for n in 0..100_u32 {
        push_frame(&mut frames, n + 1, &put(format!("k{n}").as_bytes(), b"v"));
    }
    client.send(&frames);
    client.stream.shutdown(std::net::Shutdown::Write).expect("shutdown");
    assert_eq!(receive_all(&mut client, 100).len(), 100);
    assert_eq!(client.receive(), None);
    let mut other = Raw::connect(&server);
    other.send(&frames);
    let first = other.receive().expect("a reply");
    assert_eq!(first.status, Status::Ok);
    assert!(server.server.stop(PATIENCE), "everything is answered");
    assert_eq!(receive_all(&mut other, 99).len(), 99);
}

/// A client that always has something in flight does not keep a server from its end, and what was read is answered.
#[test]
fn a_server_stops_under_load() {
    let mut options = SimBlockOptions::new(64 << 20, 1);
    (options.record, options.latency_max) = (false, Duration::from_millis(20));
    let server = TestServer::native_on_device(&Arc::new(SimBlock::new(options)), Limits::default());
    let mut client = Raw::connect(&server);
    let mut sender = client.sender();
    let (sent, over) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                let (first, mut frames) = (sent.load(Ordering::SeqCst), Vec::new());
                for n in 1..=10 {
                    push_frame(&mut frames, first + n, &put(&(first + n).to_be_bytes(), b"v"));
                }
                if sender.write_all(&frames).is_err() {
                    break;
                }
                sent.fetch_add(10, Ordering::SeqCst);
                esker_trt::sleep(Duration::from_millis(1));
            }
        });
        let counted = scope.spawn(|| {
            let mut count = 0_u32;
            while let Some(reply) = client.receive_until_reset() {
                assert_eq!(reply.status, Status::Ok);
                count += 1;
            }
            count
        });
        while sent.load(Ordering::SeqCst) < 500 {
            esker_trt::sleep(Duration::from_millis(1));
        }
        let stopped = server.server.stop(PATIENCE);
        // It is not the run-time's end that ends the connection.
        let end = SystemClock.monotonic().saturating_add(PATIENCE / 3);
        while server.server.connections() > 0 && SystemClock.monotonic() < end {
            esker_trt::sleep(Duration::from_millis(5));
        }
        let left = server.server.connections();
        over.store(true, Ordering::SeqCst);
        server.runtime.shutdown().expect("every session ends");
        assert!(counted.join().expect("no panic") > 0);
        assert!(stopped && left == 0, "{stopped}, {left} connections");
    });
}
