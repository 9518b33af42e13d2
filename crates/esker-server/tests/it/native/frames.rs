//! Frames that are none, damaged, too large, or late.

use super::{Raw, free_bytes, get, push_frame, put, start, start_with_limits};
use crate::harness::TestServer;
use esker_base::rng::Rng;
use esker_format::native::{
    CLIENT_HELLO_SIZE, ClientHello, FRAME_HEADER_SIZE, Opcode, Request, SERVER_HELLO_SIZE,
    ServerHello, Status, VERSION, begin_frame, end_frame,
};
use esker_server::Limits;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

fn short_patience() -> Limits {
    Limits { request_timeout: Duration::from_millis(300), ..Limits::default() }
}

/// A frame with any bytes as its payload.
fn frame(id: u32, opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut frames = Vec::new();
    let start = begin_frame(&mut frames);
    frames.extend_from_slice(payload);
    end_frame(&mut frames, start, id, opcode, Status::Ok).expect("fits");
    frames
}

#[test]
fn a_payload_that_is_no_request_is_refused_and_the_connection_goes_on() {
    let server = start();
    let mut client = Raw::connect(&server);
    for (opcode, payload, status) in [
        (Opcode::Get as u8, &b""[..], Status::Malformed),
        (Opcode::Ping as u8, b"x", Status::Malformed),
        (Opcode::Put as u8, b"\x00\xFF\xFFshort", Status::Malformed),
        (Opcode::Delete as u8, b"\x01k", Status::Malformed),
        (Opcode::MultiGet as u8, b"", Status::Malformed),
        (Opcode::Batch as u8, b"\x00\x01\x00\xFF\xFF\xFF\xFFk", Status::Malformed),
        (Opcode::Goodbye as u8, b"", Status::UnknownOperation),
        (200, b"anything", Status::UnknownOperation),
    ] {
        client.send(&frame(77, opcode, payload));
        let reply = client.receive().expect("a reply");
        assert_eq!((reply.id, reply.opcode, reply.status), (77, opcode, status));
    }
    client.check_status(&put(b"k", b"v"), Status::Ok);
}

#[test]
fn a_damaged_frame_ends_the_connection_after_what_came_before_is_answered() {
    let server = start();
    let mut good = Vec::new();
    push_frame(&mut good, 1, &put(b"before", b"v"));
    let mut bad = Vec::new();
    push_frame(&mut bad, 2, &put(b"damaged", b"value"));
    // Each byte but those of the payload size, whose damage looks like another frame.
    for place in (0..bad.len()).filter(|place| !(4..8).contains(place)) {
        let mut client = Raw::connect(&server);
        let mut bytes = good.clone();
        bytes.extend_from_slice(&bad);
        bytes[good.len() + place] ^= 0x20;
        push_frame(&mut bytes, 3, &put(b"behind", b"v"));
        client.send(&bytes);
        let reply = client.receive().expect("a reply");
        assert_eq!((reply.id, reply.status), (1, Status::Ok), "byte {place}");
        client.check_goodbye(Status::BadFrame);
    }
    assert!(server.store.get(b"before").expect("get").is_some());
    assert!(server.store.get(b"damaged").expect("get").is_none());
    assert!(server.store.get(b"behind").expect("get").is_none());
}

#[test]
fn a_request_without_an_id_or_with_a_status_is_no_frame() {
    let server = start();
    let mut client = Raw::connect(&server);
    client.send(&frame(0, Opcode::Ping as u8, b""));
    client.check_goodbye(Status::BadFrame);
    let mut client = Raw::connect(&server);
    let mut frames = Vec::new();
    let start = begin_frame(&mut frames);
    end_frame(&mut frames, start, 1, Opcode::Ping as u8, Status::KeyMissing).expect("fits");
    client.send(&frames);
    client.check_goodbye(Status::BadFrame);
}

#[test]
fn a_frame_over_the_limit_is_refused_without_waiting_for_it() {
    let server = start();
    let mut client = Raw::connect(&server);
    let free = free_bytes(&mut client);
    let mut head = frame(9, Opcode::Put as u8, b"");
    head[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    client.send(&head);
    let reply = client.receive().expect("a reply");
    assert_eq!((reply.id, reply.status), (9, Status::TooLarge));
    client.check_goodbye(Status::TooLarge);
    // A size that is permitted takes no memory before its bytes come.
    let mut holders: Vec<_> = (0..50)
        .map(|_| {
            let mut client = Raw::connect(&server);
            let mut head = frame(9, Opcode::Put as u8, b"");
            head[4..8].copy_from_slice(&(1_u32 << 20).to_le_bytes());
            client.send(&head);
            client
        })
        .collect();
    esker_trt::sleep(Duration::from_millis(100));
    let mut client = Raw::connect(&server);
    let held = free.saturating_sub(free_bytes(&mut client));
    assert!(held < 50 * (128 << 10), "{held} bytes are held for {} frames", holders.len());
    holders.clear();
}

#[test]
fn half_a_frame_is_waited_for_so_long_and_not_longer() {
    let server = start_with_limits(short_patience());
    let mut whole = Vec::new();
    push_frame(&mut whole, 1, &put(b"k", &[7; 100]));
    let mut large = Vec::new();
    push_frame(&mut large, 1, &put(b"k", &[7; 100_000]));
    for part in
        [&whole[..1], &whole[..FRAME_HEADER_SIZE], &whole[..40], &large[..40], &large[..90_000]]
    {
        let mut client = Raw::connect(&server);
        client.send(part);
        client.check_goodbye(Status::TooSlow);
    }
    assert!(server.store.get(b"k").expect("get").is_none());
    // A whole frame and silence is no half frame.
    let mut client = Raw::connect(&server);
    client.check_status(&put(b"k", b"v"), Status::Ok);
    esker_trt::sleep(Duration::from_millis(600));
    client.check_status(&get(b"k"), Status::Ok);
}

#[test]
fn silent_connections_end_only_if_an_idle_timeout_is_set() {
    let limits = Limits { idle_timeout: Duration::from_secs(2), ..Limits::default() };
    let server = start_with_limits(limits);
    let mut client = Raw::connect(&server);
    client.check_status(&Request::Ping, Status::Ok);
    assert_eq!(client.receive(), None, "closed");
}

#[test]
fn a_hello_of_something_else_is_answered_with_why() {
    let server = start_with_limits(short_patience());
    let refused = |hello: &[u8]| {
        let mut stream = TcpStream::connect(server.address()).expect("connect");
        stream.set_read_timeout(Some(super::PATIENCE)).expect("timeout");
        stream.write_all(hello).expect("send");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("closed");
        answer
    };
    let answer = refused(b"get key\r\nget other key\r\n");
    let hello: [u8; SERVER_HELLO_SIZE] = answer.as_slice().try_into().expect("a hello");
    assert_eq!(ServerHello::decode(&hello).expect("valid").status, Status::BadFrame);
    let mut damaged = ClientHello { version: VERSION }.encode();
    damaged[5] ^= 1;
    assert_eq!(refused(&damaged).len(), SERVER_HELLO_SIZE);
    // Half a hello is waited for as long as a request.
    assert!(
        refused(&ClientHello { version: VERSION }.encode()[..CLIENT_HELLO_SIZE - 1]).is_empty()
    );
    // A later client is told which version is spoken.
    let later = Raw::connect(&server);
    assert_eq!(later.hello.version, VERSION);
    let mut stream = TcpStream::connect(server.address()).expect("connect");
    stream.write_all(&ClientHello { version: VERSION + 1 }.encode()).expect("send");
    let mut answer = [0; SERVER_HELLO_SIZE];
    stream.read_exact(&mut answer).expect("a hello");
    let hello = ServerHello::decode(&answer).expect("valid");
    assert_eq!((hello.status, hello.version), (Status::Ok, VERSION));
}

/// Whatever comes, the server goes on, and gives back all memory.
#[test]
fn noise_does_no_harm() {
    let server = start_with_limits(Limits { connections_max: 16, ..short_patience() });
    let free = free_bytes(&mut Raw::connect(&server));
    let mut rng = Rng::from_seed(0xBAD5EED);
    for round in 0..200_u32 {
        let mut client = loop {
            let stream = TcpStream::connect(server.address()).expect("connect");
            let client = Raw::greet(stream);
            if client.hello.status == Status::Ok {
                break client;
            }
            esker_trt::sleep(Duration::from_millis(5));
        };
        let mut bytes = Vec::new();
        for _ in 0..=rng.below(20) {
            match rng.below(3) {
                // Any payload in a good frame.
                0 => {
                    let mut payload = vec![0; rng.index(300)];
                    rng.fill(&mut payload);
                    bytes.extend(frame(1 + round, rng.below(12) as u8, &payload));
                }
                1 => push_frame(&mut bytes, 5, &put(b"noise", b"v")),
                // A good frame, damaged.
                _ => {
                    let start = bytes.len();
                    push_frame(&mut bytes, 6, &put(b"damaged-key", b"v"));
                    let place = start + rng.index(bytes.len() - start);
                    bytes[place] ^= 1 << rng.below(8);
                }
            }
        }
        bytes.truncate(bytes.len() - rng.index(8));
        client.send(&bytes);
        drop(client);
    }
    wait_until_alone(&server);
    let mut client = Raw::connect(&server);
    client.check_status(&put(b"k", b"v"), Status::Ok);
    assert!(server.store.get(b"damaged-key").expect("get").is_none());
    assert_eq!(free_bytes(&mut client), free, "all memory is given back");
}

fn wait_until_alone(server: &TestServer) {
    for _ in 0..1000 {
        if server.server.connections() == 0 {
            return;
        }
        esker_trt::sleep(Duration::from_millis(10));
    }
    panic!("{} connections are left", server.server.connections());
}

#[test]
fn uploads_that_stand_still_leave_half_of_the_memory_to_others() {
    let limits = Limits {
        connections_max: 32,
        memory_max_bytes: 8 << 20,
        request_timeout: Duration::from_secs(20),
        ..Limits::default()
    };
    let server = start_with_limits(limits);
    let mut client = Raw::connect(&server);
    let value = vec![7; 1 << 20];
    client.check_status(&put(b"large", &value), Status::Ok);
    let mut frames = Vec::new();
    push_frame(&mut frames, 1, &put(b"stuck", &value));
    let _stuck: Vec<_> = (0..12)
        .map(|_| {
            let mut stuck = Raw::connect(&server);
            stuck.send(&frames[..frames.len() - 1]);
            stuck
        })
        .collect();
    while free_bytes(&mut client) > 5 << 20 {
        esker_trt::sleep(Duration::from_millis(5));
    }
    esker_trt::sleep(Duration::from_millis(500));
    let free = free_bytes(&mut client);
    assert!(free > (4 << 20) - (512 << 10), "{free} bytes are free");
    for _ in 0..10 {
        assert!(client.ask(&get(b"large")).item().value == value);
    }
}
