//! What a client says of its requests when servers stop, vanish, and come back.

use crate::harness::{Alone, PATIENCE, TestServer, address_of, alone, impatient};
use crate::impostors::{frame, read_any, with_greeter_of};
use esker_base::clock::{Clock, SystemClock};
use esker_client::{Attributes, Client, Condition, ErrorKind, Fate, Options};
use esker_format::native::{FRAME_HEADER_SIZE, FrameHeader, Opcode, Status};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

#[test]
fn nobody_there_means_not_sent_and_a_rest_before_the_next_try() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("address");
    drop(listener);
    let mut options = impatient();
    options.backoff_min = Duration::from_secs(60);
    options.backoff_max = Duration::from_secs(60);
    let client = Client::new(address_of(address), options);
    let error = client.put(b"k", b"v").expect_err("nobody is there");
    assert_eq!((error.fate(), error.kind()), (Fate::NotSent, ErrorKind::Io));
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    // Now somebody is there, and the client rests all the same: it does not even connect.
    let listener = TcpListener::bind(address).expect("bind");
    listener.set_nonblocking(true).expect("nonblocking");
    let start = SystemClock.monotonic();
    let error = client.put(b"k", b"v").expect_err("it rests");
    assert_eq!(error.fate(), Fate::NotSent);
    assert!(SystemClock.monotonic() - start < Duration::from_secs(30), "at once");
    assert!(listener.accept().is_err(), "nobody connects");
}

#[test]
fn a_server_that_comes_back_is_found_again_and_has_what_it_acknowledged() {
    let mut alone = alone();
    let address = alone.server.address();
    let client = Client::new(address_of(address), impatient());
    client.put(b"before", b"v").expect("put");
    alone.server.stop();
    let error = client.get(b"before").expect_err("it has stopped");
    assert_ne!(error.fate(), Fate::Refused, "{error}");
    let listen = format!("native://{address}");
    alone.server = TestServer::start(alone.folder.path(), &listen, |_| {});
    let end = SystemClock.monotonic() + PATIENCE;
    let value = loop {
        match client.get(b"before") {
            Ok(value) => break value,
            Err(error) => assert!(SystemClock.monotonic() < end, "{error}"),
        }
        esker_trt::sleep(Duration::from_millis(5));
    };
    assert_eq!(&*value.expect("acknowledged"), b"v");
}

/// Writers go on while the server is stopped and started: what was acknowledged is there, what is said
/// not to have been sent is not.
#[test]
fn fates_are_true_while_a_server_stops_and_starts() {
    let Alone { server, folder } = alone();
    let address = server.address();
    let mut server = Some(server);
    let client = Client::new(address_of(address), impatient());
    let stop = AtomicBool::new(false);
    let (mut stored, mut unsent, mut unknown) = (BTreeSet::new(), BTreeSet::new(), 0);
    let rounds = 4;
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4_u32)
            .map(|thread| {
                let (client, stop) = (&client, &stop);
                scope.spawn(move || {
                    let (mut stored, mut unsent, mut unknown) = (Vec::new(), Vec::new(), 0_u32);
                    for n in 0_u32.. {
                        if stop.load(Ordering::SeqCst) {
                            break;
                        }
                        let key = format!("{thread}-{n}");
                        match client.put(key.as_bytes(), b"v") {
                            Ok(_) => stored.push(key),
                            Err(error) if error.fate() == Fate::NotSent => {
                                unsent.push(key);
                                esker_trt::sleep(Duration::from_millis(1));
                            }
                            Err(error) => {
                                assert_eq!(error.fate(), Fate::Unknown, "{error}");
                                unknown += 1;
                            }
                        }
                    }
                    (stored, unsent, unknown)
                })
            })
            .collect();
        let listen = format!("native://{address}");
        for round in 0..rounds {
            esker_trt::sleep(Duration::from_millis(150));
            let running = server.take().expect("it runs");
            if round % 2 == 0 {
                running.stop();
            } else {
                running.vanish();
            }
            esker_trt::sleep(Duration::from_millis(50));
            server = Some(TestServer::start(folder.path(), &listen, |_| {}));
        }
        esker_trt::sleep(Duration::from_millis(300));
        stop.store(true, Ordering::SeqCst);
        for writer in writers {
            let (some, others, more) = writer.join().expect("no panic");
            stored.extend(some);
            unsent.extend(others);
            unknown += more;
        }
    });
    let store = server.expect("it runs").store;
    assert!(stored.len() > 100, "{} writes were acknowledged", stored.len());
    assert!(!unsent.is_empty(), "the server was away {rounds} times; {unknown} unknown");
    for key in &stored {
        assert!(store.get(key.as_bytes()).expect("get").is_some(), "{key} is lost");
    }
    for key in &unsent {
        assert!(store.get(key.as_bytes()).expect("get").is_none(), "{key} was sent");
    }
}

/// Part of it still waits in the client when that is dropped, and part in the network.
#[test]
fn what_nobody_waits_for_reaches_a_server_that_takes_it_slowly_after_the_client_is_dropped() {
    let options = Options { request_timeout: PATIENCE, ..impatient() };
    let taken = AtomicU32::new(0);
    with_greeter_of(
        options,
        |stream| {
            esker_trt::sleep(Duration::from_secs(1));
            let mut header = [0; FRAME_HEADER_SIZE];
            while stream.read_exact(&mut header).is_ok() {
                let header = FrameHeader::peek(&header).expect("a header");
                let mut payload = vec![0; header.payload_size as usize];
                if stream.read_exact(&mut payload).is_err() {
                    break;
                }
                taken.fetch_add(1, Ordering::SeqCst);
                let version = u64::from(header.id).to_be_bytes();
                let reply = frame(header.id, Opcode::Put, Status::Ok, &version);
                if stream.write_all(&reply).is_err() {
                    break;
                }
                esker_trt::sleep(Duration::from_millis(1));
            }
        },
        |client| {
            let submit = |bytes: usize| {
                let value = vec![7; bytes];
                for _ in 0..100 {
                    let put =
                        client.submit_put(b"k", &value, Attributes::default(), Condition::Always);
                    drop(put.expect("submitted"));
                }
            };
            std::thread::scope(|scope| {
                // More than sockets hold.
                scope.spawn(|| submit(256 << 10));
                esker_trt::sleep(Duration::from_millis(200));
                submit(32 << 10);
            });
            client.flush();
        },
    );
    assert_eq!(taken.load(Ordering::SeqCst), 200);
}

/// So does a thread of the client, else, for as long as a reply may take.
#[test]
fn a_connection_that_nobody_has_ends_with_the_last_reply_though_the_server_keeps_it_open() {
    let options = Options { request_timeout: PATIENCE, ..impatient() };
    let begin = SystemClock.monotonic();
    let passed = || SystemClock.monotonic() - begin;
    with_greeter_of(
        options,
        |stream| {
            let (id, _) = read_any(stream);
            assert_eq!(stream.read(&mut [0]).expect("the end"), 0, "the client is dropped");
            let reply = frame(id, Opcode::Put, Status::Ok, &7_u64.to_be_bytes());
            stream.write_all(&reply).expect("send");
            // What goes to somebody who has gone fails, in the end.
            let more = frame(u32::MAX, Opcode::Ping, Status::Ok, b"");
            while stream.write_all(&more).is_ok() && passed() < PATIENCE {
                esker_trt::sleep(Duration::from_millis(10));
            }
        },
        |client| {
            let put = client.submit_put(b"k", b"v", Attributes::default(), Condition::Always);
            drop(put.expect("submitted"));
            client.flush();
        },
    );
    assert!(passed() < PATIENCE / 2, "{:?}", passed());
}
