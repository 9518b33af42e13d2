//! Servers that are none, stop in the middle, or say what they must not.

use crate::harness::{PATIENCE, address_of, impatient};
use esker_base::clock::{Clock as _, SystemClock};
use esker_client::{Attributes, Client, Condition, ErrorKind, Fate, Options, Version};
use esker_format::native::{
    CLIENT_HELLO_SIZE, ClientHello, FRAME_HEADER_SIZE, FrameHeader, Opcode, ServerHello, Status,
    VERSION, begin_frame, encode_version, end_frame,
};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) const HELLO: ServerHello = ServerHello {
    version: VERSION,
    status: Status::Ok,
    authenticate: false,
    in_flight_max: 16,
    request_size_max: 1 << 20,
    reply_size_max: 1 << 20,
    key_size_max: 64 << 10,
    value_size_max: 1 << 20,
};

pub(crate) fn read_hello(stream: &mut TcpStream) {
    let mut hello = [0; CLIENT_HELLO_SIZE];
    stream.read_exact(&mut hello).expect("a hello");
    ClientHello::decode(&hello).expect("a hello of the protocol");
}

/// The id of the next request.
fn read_request(stream: &mut TcpStream) -> u32 {
    read_any(stream).0
}

/// Id and opcode of the next request.
pub(crate) fn read_any(stream: &mut TcpStream) -> (u32, u8) {
    let mut header = [0; FRAME_HEADER_SIZE];
    stream.read_exact(&mut header).expect("a header");
    let header = FrameHeader::peek(&header).expect("a header");
    let mut payload = vec![0; header.payload_size as usize];
    stream.read_exact(&mut payload).expect("a payload");
    header.verify(&payload).expect("the checksum");
    (header.id, header.opcode)
}

pub(crate) fn frame(id: u32, opcode: Opcode, status: Status, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let start = begin_frame(&mut frame);
    frame.extend_from_slice(payload);
    end_frame(&mut frame, start, id, opcode as u8, status).expect("fits");
    frame
}

/// Runs `check` with a client of a server that does `play` with its first connection.
fn with_impostor(play: impl FnOnce(TcpStream) + Send, check: impl FnOnce(&Client)) {
    with_impostor_of(impatient(), play, check);
}

/// As [`with_impostor`], for a client with these options.
fn with_impostor_of(
    options: Options,
    play: impl FnOnce(TcpStream) + Send,
    check: impl FnOnce(&Client),
) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let client = Client::new(address_of(listener.local_addr().expect("address")), options);
    std::thread::scope(|scope| {
        scope.spawn(move || play(listener.accept().expect("a connection").0));
        check(&client);
        // Ends the connection, so that whoever plays sees its end.
        drop(client);
    });
}

/// As [`with_impostor`], for one that greets first.
fn with_greeter(play: impl FnOnce(&mut TcpStream) + Send, check: impl FnOnce(&Client)) {
    with_greeter_of(impatient(), play, check);
}

/// As [`with_greeter`], for a client with these options.
pub(crate) fn with_greeter_of(
    options: Options,
    play: impl FnOnce(&mut TcpStream) + Send,
    check: impl FnOnce(&Client),
) {
    with_impostor_of(
        options,
        |mut stream| {
            read_hello(&mut stream);
            stream.write_all(&HELLO.encode()).expect("send");
            play(&mut stream);
        },
        check,
    );
}

fn wait_for_end(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut rest);
}

#[test]
fn something_that_does_not_speak_the_protocol_is_told_apart() {
    with_impostor(
        |mut stream| {
            read_hello(&mut stream);
            stream
                .write_all(b"ERROR unknown command, and more than forty bytes of it\r\n")
                .expect("send");
            wait_for_end(&mut stream);
        },
        |client| {
            let error = client.get(b"k").expect_err("no server");
            assert_eq!((error.fate(), error.kind()), (Fate::NotSent, ErrorKind::Unsupported));
        },
    );
}

#[test]
fn a_server_that_never_greets_is_not_waited_for_longer_than_allowed() {
    with_impostor(
        |mut stream| wait_for_end(&mut stream),
        |client| {
            let error = client.get(b"k").expect_err("silence");
            assert_eq!((error.fate(), error.kind()), (Fate::NotSent, ErrorKind::Timeout));
            let words = format!("greet server: timed out: {}", client.address());
            assert!(error.to_string().ends_with(&words), "{error}");
        },
    );
}

#[test]
fn a_server_that_greets_byte_by_byte_has_no_more_time_for_that() {
    let connect_timeout = Duration::from_millis(500);
    with_impostor_of(
        Options { connect_timeout, ..impatient() },
        |mut stream| {
            read_hello(&mut stream);
            for byte in HELLO.encode() {
                esker_trt::sleep(connect_timeout * 4 / 5);
                if stream.write_all(&[byte]).is_err() {
                    return;
                }
            }
        },
        |client| {
            let begun = SystemClock.monotonic();
            let error = client.ping().expect_err("too slow");
            assert_eq!((error.fate(), error.kind()), (Fate::NotSent, ErrorKind::Timeout));
            let took = SystemClock.monotonic() - begun;
            assert!(took < 20 * connect_timeout, "{took:?}");
        },
    );
}

/// A server that is stopped, say: the system takes so many connections for it, and no more.
#[test]
fn a_socket_file_where_nobody_is_accepted_is_not_waited_for_longer_than_allowed() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("esker.sock");
    let listener = UnixListener::bind(&path).expect("bind");
    rustix::net::listen(&listener, 0).expect("a short queue");
    let _first = UnixStream::connect(&path).expect("there is room for one");
    for scheme in ["native+unix", "shm"] {
        let address = format!("{scheme}://{}", path.display()).parse().expect("address");
        let options = Options { connect_timeout: Duration::from_millis(200), ..impatient() };
        let error = Client::new(address, options).ping().expect_err("no room");
        assert_eq!((error.fate(), error.kind()), (Fate::NotSent, ErrorKind::Timeout), "{error}");
    }
}

#[test]
fn what_a_server_says_of_who_a_client_is_is_understood() {
    let told = |id: u32, opcode: Opcode, status: Status, words: &[u8]| {
        let answer = frame(id, opcode, status, words);
        let credentials = Some(("ann".to_owned(), "secret".to_owned()));
        let mut told = None;
        with_impostor_of(
            Options { credentials, ..impatient() },
            |mut stream| {
                read_hello(&mut stream);
                let hello = ServerHello { authenticate: true, ..HELLO };
                stream.write_all(&hello.encode()).expect("send");
                assert_eq!(read_any(&mut stream), (1, Opcode::Authenticate as u8));
                stream.write_all(&answer).expect("send");
                wait_for_end(&mut stream);
            },
            |client| {
                let error = client.get(b"k").expect_err("not admitted");
                assert_eq!(error.fate(), Fate::NotSent);
                told = Some((error.kind(), error.to_string()));
            },
        );
        told.expect("an error")
    };
    let (kind, text) = told(0, Opcode::Goodbye, Status::TooSlow, b"too slow, and in words");
    assert!(kind == ErrorKind::Timeout && text.contains("goodbye"), "{text}");
    let (_, text) = told(1, Opcode::Authenticate, Status::Unauthenticated, b"in words");
    assert!(text.contains(Status::Unauthenticated.words()), "{text}");
    for (id, opcode) in [(2, Opcode::Authenticate), (1, Opcode::Ping)] {
        let (kind, text) = told(id, opcode, Status::Ok, b"");
        assert!(kind == ErrorKind::Corrupted && text.contains("something else"), "{text}");
    }
}

#[test]
fn a_request_without_a_reply_is_unknown_after_its_time_and_when_the_connection_ends() {
    with_greeter(wait_for_end, |client| {
        let error = client.put(b"k", b"v").expect_err("silence");
        assert_eq!((error.fate(), error.kind()), (Fate::Unknown, ErrorKind::Timeout));
    });
    with_greeter(
        |stream| {
            read_request(stream);
        },
        |client| {
            let error = client.put(b"k", b"v").expect_err("it hangs up");
            assert_eq!(error.fate(), Fate::Unknown, "{error}");
        },
    );
}

#[test]
fn a_request_that_has_not_left_when_the_connection_ends_was_not_sent() {
    let submitted = std::sync::Barrier::new(2);
    with_greeter(
        |stream| {
            let ping = read_request(stream);
            stream.write_all(&frame(ping, Opcode::Ping, Status::Ok, b"")).expect("send");
            submitted.wait();
        },
        |client| {
            client.ping().expect("ping");
            let put = client.submit_put(b"k", b"v", Attributes::default(), Condition::Always);
            let put = put.expect("submitted");
            submitted.wait();
            while !put.is_ready() {
                esker_trt::sleep(Duration::from_millis(1));
            }
            assert_eq!(put.wait().expect_err("nobody is there").fate(), Fate::NotSent);
        },
    );
}

#[test]
fn of_many_requests_those_answered_are_known_and_the_others_are_not() {
    with_greeter(
        |stream| {
            let ids: Vec<u32> = (0..10).map(|_| read_request(stream)).collect();
            // The last ones first.
            for id in ids.iter().rev().take(5) {
                let version = u64::from(*id).to_le_bytes();
                stream.write_all(&frame(*id, Opcode::Put, Status::Ok, &version)).expect("send");
            }
        },
        |client| {
            let pending: Vec<_> = (0..10_u32)
                .map(|n| {
                    let key = n.to_be_bytes();
                    client.submit_put(&key, b"v", Attributes::default(), Condition::Always)
                })
                .collect::<Result<_, _>>()
                .expect("submitted");
            client.flush();
            let known: Vec<bool> = pending
                .into_iter()
                .map(|put| {
                    put.wait().map_err(|error| assert_eq!(error.fate(), Fate::Unknown)).is_ok()
                })
                .collect();
            assert_eq!(known, [[false; 5], [true; 5]].concat());
        },
    );
}

#[test]
fn replies_that_make_no_sense_end_the_connection_and_not_the_client() {
    let damaged = |id: u32| {
        let mut bytes = frame(id, Opcode::Get, Status::KeyMissing, b"");
        bytes[0] ^= 1;
        bytes
    };
    let endless = |id: u32| {
        let mut bytes = frame(id, Opcode::Get, Status::Ok, b"");
        bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        bytes
    };
    let other = |id: u32| frame(id, Opcode::Ping, Status::Ok, b"");
    let status = |id: u32| {
        let mut bytes = frame(id, Opcode::Get, Status::Ok, b"");
        bytes[13] = 250;
        bytes
    };
    let cases: [&(dyn Fn(u32) -> Vec<u8> + Sync); 4] = [&damaged, &endless, &other, &status];
    for make in cases {
        with_greeter(
            |stream| {
                let id = read_request(stream);
                stream.write_all(&make(id)).expect("send");
                wait_for_end(stream);
            },
            |client| {
                let error = client.get(b"k").expect_err("no sense");
                assert_eq!((error.fate(), error.kind()), (Fate::Unknown, ErrorKind::Corrupted));
            },
        );
    }
    // A whole frame with a payload that is no item.
    with_greeter(
        |stream| {
            let id = read_request(stream);
            stream.write_all(&frame(id, Opcode::Get, Status::Ok, b"\x03short")).expect("send");
            let id = read_request(stream);
            stream.write_all(&frame(id, Opcode::Ping, Status::Ok, b"")).expect("send");
            wait_for_end(stream);
        },
        |client| {
            assert_eq!(client.get(b"k").expect_err("no item").kind(), ErrorKind::Corrupted);
            client.ping().expect("the connection goes on");
        },
    );
}

#[test]
fn a_goodbye_is_told_to_those_who_wait() {
    with_greeter(
        |stream| {
            read_request(stream);
            stream.write_all(&frame(0, Opcode::Goodbye, Status::TooSlow, b"")).expect("send");
            wait_for_end(stream);
        },
        |client| {
            let error = client.get(b"k").expect_err("goodbye");
            assert_eq!((error.fate(), error.kind()), (Fate::Unknown, ErrorKind::Timeout));
            assert!(error.to_string().contains(Status::TooSlow.words()), "{error}");
        },
    );
}

/// Replies that come at once with what ends the connection, and before it.
#[test]
fn what_was_answered_before_the_end_of_a_connection_was_done() {
    let goodbye = |_: u32| frame(0, Opcode::Goodbye, Status::TooSlow, b"too slow");
    let other = |id: u32| frame(id, Opcode::Ping, Status::Ok, b"");
    let status = |id: u32| {
        let mut bytes = frame(id, Opcode::Put, Status::Ok, b"");
        bytes[13] = 250;
        bytes
    };
    let ends: [&(dyn Fn(u32) -> Vec<u8> + Sync); 3] = [&goodbye, &other, &status];
    let options = Options { request_timeout: PATIENCE, ..impatient() };
    for end in ends {
        with_greeter_of(
            options.clone(),
            |stream| {
                let (done, lost) = (read_request(stream), read_request(stream));
                let mut bytes = frame(done, Opcode::Put, Status::Ok, &7_u64.to_le_bytes());
                bytes.extend(end(lost));
                stream.write_all(&bytes).expect("send");
                wait_for_end(stream);
            },
            |client| {
                let put = |key: &[u8]| {
                    client.submit_put(key, b"v", Attributes::default(), Condition::Always)
                };
                let (done, lost) = (put(b"a").expect("submit"), put(b"b").expect("submit"));
                let begun = SystemClock.monotonic();
                done.wait().expect("it was answered");
                assert_eq!(lost.wait().expect_err("no answer").fate(), Fate::Unknown);
                assert!(SystemClock.monotonic() - begun < PATIENCE / 2, "at once");
            },
        );
    }
}

#[test]
fn a_backup_fails_at_once_when_its_answer_comes_with_one_that_makes_no_sense() {
    with_greeter(
        |stream| {
            let (backup, get) = (read_request(stream), read_request(stream));
            let mut bytes = frame(backup, Opcode::Backup, Status::UnknownOperation, b"");
            bytes.extend(frame(get, Opcode::Ping, Status::Ok, b""));
            stream.write_all(&bytes).expect("send");
            wait_for_end(stream);
        },
        |client| {
            let backup = client.submit_backup().expect("submit");
            let get = client.submit_get(b"k").expect("submit");
            client.flush();
            let begun = SystemClock.monotonic();
            assert_eq!(get.wait().expect_err("no sense").kind(), ErrorKind::Corrupted);
            while !backup.is_ready() {
                assert!(SystemClock.monotonic() - begun < PATIENCE, "nobody tells it");
                esker_trt::sleep(Duration::from_millis(1));
            }
            assert_eq!(backup.wait().expect_err("refused").fate(), Fate::Refused);
        },
    );
}

/// A server that is gone without a word, and requests that nobody waits for.
#[test]
fn a_silent_server_is_noticed_by_whoever_waits_for_room() {
    let options = Options { in_flight_max: 1, ..impatient() };
    with_greeter_of(options, wait_for_end, |client| {
        drop(client.submit_get(b"k").expect("submit"));
        assert!(client.is_connected());
        // It tries another connection, which nobody takes any more.
        let error = client.submit_get(b"k").expect_err("no room");
        assert_eq!(error.fate(), Fate::NotSent);
        assert!(!client.is_connected(), "{error}");
    });
}

/// A backup may take long: that others find no room meanwhile says nothing of the server.
#[test]
fn a_backup_that_takes_all_the_room_is_no_silence() {
    let options = Options { in_flight_max: 1, ..impatient() };
    with_greeter_of(options, wait_for_end, |client| {
        let backup = client.submit_backup().expect("submit");
        let error = client.get(b"k").expect_err("no room");
        assert_eq!((error.fate(), error.kind()), (Fate::NotSent, ErrorKind::Timeout));
        assert!(client.is_connected(), "{error}");
        // Who waits for it asks whether the server lives, for which there is room.
        let error = backup.wait().expect_err("nobody answers");
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert!(!client.is_connected(), "{error}");
    });
}

/// As long as others go on, there is always more to send.
#[test]
fn nobody_sends_for_others_without_end() {
    const LOAD: Duration = Duration::from_secs(10);
    let options = Options { request_timeout: PATIENCE, in_flight_max: 1000, ..impatient() };
    let long_key = vec![b'k'; 60 << 10];
    with_greeter_of(
        options,
        |stream| {
            let mut header = [0; FRAME_HEADER_SIZE];
            let mut payload = Vec::new();
            while stream.read_exact(&mut header).is_ok() {
                let header = FrameHeader::peek(&header).expect("a header");
                payload.resize(header.payload_size as usize, 0);
                stream.read_exact(&mut payload).expect("a payload");
                // Slower than they ask.
                esker_trt::sleep(Duration::from_micros(500));
                let reply = frame(header.id, Opcode::Get, Status::KeyMissing, b"");
                if stream.write_all(&reply).is_err() {
                    break;
                }
            }
        },
        |client| {
            let begin = SystemClock.monotonic();
            let longest = std::thread::scope(|scope| {
                let asks = || {
                    let mut longest = Duration::ZERO;
                    while SystemClock.monotonic() - begin < LOAD {
                        let asked = SystemClock.monotonic();
                        // More than the system takes in between.
                        let submit = |_| client.submit_get(&long_key).expect("submit");
                        let pending: Vec<_> = (0..40).map(submit).collect();
                        longest = longest.max(SystemClock.monotonic() - asked);
                        pending.into_iter().for_each(|pending| drop(pending.wait().expect("get")));
                    }
                    longest
                };
                let threads: Vec<_> = (0..6).map(|_| scope.spawn(asks)).collect();
                threads.into_iter().map(|thread| thread.join().expect("asks")).max()
            });
            let longest = longest.expect("threads");
            assert!(longest < LOAD / 2, "one of them was kept for {longest:?}");
        },
    );
}

#[test]
fn a_reply_that_comes_too_late_is_nobody_elses() {
    with_greeter(
        |stream| {
            let late = read_request(stream);
            let first = read_request(stream);
            stream.write_all(&frame(first, Opcode::Ping, Status::Ok, b"")).expect("send");
            // Nobody waits for the get any more when this one comes.
            let second = read_request(stream);
            stream.write_all(&frame(late, Opcode::Get, Status::KeyMissing, b"")).expect("send");
            stream.write_all(&frame(second, Opcode::Ping, Status::Ok, b"")).expect("send");
            wait_for_end(stream);
        },
        |client| {
            let late = client.submit_get(b"k").expect("submit");
            client.flush();
            let waited = std::thread::scope(|scope| {
                let waits = scope.spawn(|| late.wait());
                // A sign of life in between: only the one request has taken too long.
                esker_trt::sleep(impatient().request_timeout / 2);
                client.ping().expect("ping");
                waits.join().expect("no panic")
            });
            let error = waited.expect_err("it was not answered in time");
            assert_eq!((error.fate(), error.kind()), (Fate::Unknown, ErrorKind::Timeout));
            client.ping().expect("the connection goes on");
        },
    );
}

#[test]
fn a_backup_is_waited_for_while_the_server_gives_signs_of_life_and_no_longer() {
    for pings in [0, 3] {
        with_greeter(
            |stream| {
                let (_, opcode) = read_any(stream);
                assert_eq!(opcode, Opcode::Backup as u8);
                for _ in 0..pings {
                    let (id, opcode) = read_any(stream);
                    assert_eq!(opcode, Opcode::Ping as u8);
                    stream.write_all(&frame(id, Opcode::Ping, Status::Ok, b"")).expect("send");
                }
                wait_for_end(stream);
            },
            |client| {
                let begun = SystemClock.monotonic();
                let error = client.backup().expect_err("silence");
                let took = SystemClock.monotonic() - begun;
                assert_eq!((error.fate(), error.kind()), (Fate::Unknown, ErrorKind::Timeout));
                let limit = impatient().request_timeout;
                assert!(took >= (pings + 1) * limit, "{took:?}");
            },
        );
    }
}

#[test]
fn an_answer_to_a_backup_that_makes_no_sense_is_told_apart() {
    for (status, payload, expected) in [
        (Status::UnknownOperation, &b""[..], (Fate::Refused, ErrorKind::Unsupported)),
        (Status::Ok, b"segments_copied 1\n", (Fate::Unknown, ErrorKind::Corrupted)),
        (Status::Ok, b"\xFF\xFE", (Fate::Unknown, ErrorKind::Corrupted)),
    ] {
        with_greeter(
            |stream| {
                let id = read_request(stream);
                stream.write_all(&frame(id, Opcode::Backup, status, payload)).expect("send");
                let id = read_request(stream);
                stream.write_all(&frame(id, Opcode::Ping, Status::Ok, b"")).expect("send");
                wait_for_end(stream);
            },
            |client| {
                let error = client.backup().expect_err("no report");
                assert_eq!((error.fate(), error.kind()), expected, "{error}");
                client.ping().expect("the connection goes on");
            },
        );
    }
}

/// A server that takes a little of a request now and then keeps the caller no longer than one that takes nothing.
#[test]
fn a_server_that_reads_slowly_keeps_nobody_who_sends() {
    let limit = Duration::from_millis(400);
    let options = Options { request_timeout: limit, ..impatient() };
    with_impostor_of(
        options,
        |mut stream| {
            read_hello(&mut stream);
            let hello =
                ServerHello { request_size_max: 64 << 20, value_size_max: 64 << 20, ..HELLO };
            stream.write_all(&hello.encode()).expect("send");
            let mut part = vec![0; 64 << 10];
            while stream.read(&mut part).is_ok_and(|count| count > 0) {
                esker_trt::sleep(limit / 4);
            }
        },
        |client| {
            let since = SystemClock.monotonic();
            let error = client.put(b"k", &vec![0; 32 << 20]).expect_err("nobody answers");
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            let passed = SystemClock.monotonic().saturating_sub(since);
            assert!(passed < 50 * limit, "{passed:?}");
        },
    );
}

/// A large request is on its way for longer than a reply may take; one that waits behind it gives up, and does not take it with it.
#[test]
fn who_gives_up_behind_a_large_request_that_is_being_taken_leaves_it_alone() {
    const LARGE: usize = 32 << 20;
    let limit = Duration::from_millis(1000);
    let options = Options { request_timeout: limit, ..impatient() };
    let has_begun = AtomicBool::new(false);
    with_impostor_of(
        options,
        |mut stream| {
            read_hello(&mut stream);
            let hello =
                ServerHello { request_size_max: 64 << 20, value_size_max: 64 << 20, ..HELLO };
            stream.write_all(&hello.encode()).expect("send");
            // All of it, in about one and a quarter times as long as is waited for a reply.
            let mut header = [0; FRAME_HEADER_SIZE];
            stream.read_exact(&mut header).expect("a header");
            has_begun.store(true, Ordering::SeqCst);
            let header = FrameHeader::peek(&header).expect("a header");
            let mut rest = header.payload_size as usize;
            let mut part = vec![0; 1 << 20];
            let pause = limit * 5 / 4 / (LARGE / part.len()) as u32;
            while rest > 0 {
                let size = rest.min(part.len());
                stream.read_exact(&mut part[..size]).expect("a part");
                rest -= size;
                esker_trt::sleep(pause);
            }
            let put = frame(header.id, Opcode::Put, Status::Ok, &encode_version(Version(1)));
            stream.write_all(&put).expect("send");
            wait_for_end(&mut stream);
        },
        |client| {
            let put = std::thread::scope(|scope| {
                let put = scope.spawn(|| client.put(b"k", &vec![0; LARGE]));
                while !has_begun.load(Ordering::SeqCst) && !put.is_finished() {
                    esker_trt::sleep(Duration::from_millis(1));
                }
                let error = client.get(b"other").expect_err("nobody answers");
                assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
                put.join().expect("puts")
            });
            // On a slow machine its own time may be over, too.
            let error = put.err().map(|error| error.to_string());
            assert!(error.as_ref().is_none_or(|it| !it.contains("silent")), "{error:?}");
        },
    );
}
