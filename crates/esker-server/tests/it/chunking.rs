//! Replies do not depend on how the stream of requests is cut: random streams, random cuts.
//!
//! `ESKER_CHUNKINGS` says how many; a release runs a million.

use crate::harness::{Client, TestServer};
use esker_base::rng::Rng;
use std::io::{ErrorKind, Read};
use std::time::Duration;

const CHUNKINGS: u64 = 10_000;
/// Cuts of one stream before the next one is made.
const CUTS_OF_A_STREAM: u64 = 50;
const THREADS: u64 = 4;

/// Requests on the keys of one thread, which do not ask for what differs between runs.
fn stream(rng: &mut Rng, thread: u64) -> Vec<u8> {
    let key = |rng: &mut Rng| format!("t{thread}-{}", rng.below(4));
    let mut stream = Vec::new();
    for n in 0..4 {
        stream.extend_from_slice(format!("delete t{thread}-{n} noreply\r\n").as_bytes());
    }
    for _ in 0..rng.below(24) + 1 {
        let verb = ["set", "add", "replace", "append", "prepend"][rng.index(5)];
        let end = if rng.below(8) == 0 { "\n" } else { "\r\n" };
        let noreply = if rng.below(4) == 0 { " noreply" } else { "" };
        let length = match rng.below(10) {
            0 => rng.below(40_000),
            1 => 200_000 + rng.below(20_000),
            2 => 0,
            _ => rng.below(60),
        };
        let line = match rng.below(20) {
            12..15 => {
                let mut body = b"md t0-0\r\nms 7".repeat(1 + length as usize / 13);
                body.truncate(length as usize);
                let flags =
                    ["", " q", " k Oab", " ME", " MA", " MP q", " MR s", " y", " v v", " MX"];
                let head =
                    format!("ms {} {length}{}{end}", key(rng), flags[rng.index(flags.len())]);
                stream.extend_from_slice(head.as_bytes());
                stream.extend_from_slice(&body);
                if rng.below(6) == 0 { "xx".into() } else { "\r\n".into() }
            }
            15 | 16 => {
                let flags =
                    ["", " v", " v q", " k s f O7", " N0 v", " T0", " h u", " k k", " T", " v t"];
                format!("mg {}{}{end}", key(rng), flags[rng.index(flags.len())])
            }
            17 => format!("md {}{}{end}", key(rng), ["", " q", " I", " k", " x"][rng.index(5)]),
            18 => format!(
                "ma {}{}{end}",
                key(rng),
                ["", " v", " N0 J9 v", " MD D3", " q"][rng.index(5)]
            ),
            19 => format!("mn{end}"),
            0..6 => {
                let mut body = b"get t0-0\r\nset 7".repeat(1 + length as usize / 13);
                body.truncate(length as usize);
                let head = format!("{verb} {} 5 0 {length}{noreply}{end}", key(rng));
                stream.extend_from_slice(head.as_bytes());
                stream.extend_from_slice(&body);
                if rng.below(6) == 0 { "xx".into() } else { "\r\n".into() }
            }
            6 | 7 => format!("get {} {} {}{end}", key(rng), key(rng), key(rng)),
            8 => format!("delete {}{noreply}{end}", key(rng)),
            9 => format!("incr {} {}{noreply}{end}", key(rng), rng.below(1000)),
            10 => format!("touch {} 0{noreply}{end}", key(rng)),
            _ => ["\r\n", "bogus line\r\n", "set k\r\n", "get\r\n", "version\r\n"][rng.index(5)]
                .to_owned(),
        };
        stream.extend_from_slice(line.as_bytes());
    }
    // Whatever the end left open takes these as data; then the connection ends in any case.
    stream.extend_from_slice(b"\r\nquit\r\n");
    stream
}

/// What the server says to `stream`, sent in the pieces that `cuts` make, until it closes.
fn replies(server: &TestServer, stream: &[u8], cuts: &[usize]) -> Vec<u8> {
    let mut client = server.client();
    let mut seen = Vec::new();
    std::thread::scope(|scope| {
        let mut sender = Client(client.0.try_clone().expect("clone"));
        let mut send = move || {
            let mut from = 0;
            for cut in cuts.iter().copied().chain([stream.len()]) {
                sender.send(&stream[from..cut]);
                from = cut;
                esker_trt::sleep(Duration::from_micros(20));
            }
        };
        // A short stream fits the socket's buffer.
        if stream.len() < 32 << 10 {
            send();
        } else {
            scope.spawn(send);
        }
        match client.0.read_to_end(&mut seen) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
        }
    });
    seen
}

#[test]
fn replies_are_the_same_for_every_chunking() {
    let chunkings = std::env::var("ESKER_CHUNKINGS")
        .map_or(CHUNKINGS, |text| text.parse().expect("ESKER_CHUNKINGS is a count"));
    let server = TestServer::with(|config| config.limits.item_size_max_bytes = 200_000);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let server = &server;
            scope.spawn(move || {
                for round in 0..chunkings.div_ceil(THREADS * CUTS_OF_A_STREAM) {
                    let seed = round << 8 | thread;
                    let mut rng = Rng::from_seed(seed);
                    let stream = stream(&mut rng, thread);
                    let expected = replies(server, &stream, &[]);
                    for cut in 0..CUTS_OF_A_STREAM {
                        let mut cuts: Vec<usize> =
                            (0..rng.below(8) + 1).map(|_| rng.index(stream.len())).collect();
                        cuts.sort_unstable();
                        let seen = replies(server, &stream, &cuts);
                        assert_eq!(
                            String::from_utf8_lossy(&seen),
                            String::from_utf8_lossy(&expected),
                            "seed {seed}, cut {cut}: {cuts:?} of {:?}",
                            String::from_utf8_lossy(&stream)
                        );
                    }
                }
            });
        }
    });
    // Every connection ends.
    while server.server.connections() > 0 {
        esker_trt::sleep(Duration::from_millis(5));
    }
}
