//! Load on small servers of the tests' own.

use super::*;
use crate::workload::distribution::THETA;
use esker_trt::Config;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;

/// A memcache server of one connection at a time each on a thread; stops for `stall` once, after `stall_after`
/// requests.
#[expect(clippy::disallowed_methods, reason = "the server of a test blocks as it likes")]
fn serve(stall_after: u64, stall: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let map = Arc::new(parking_lot::Mutex::new(HashMap::<String, Vec<u8>>::new()));
    let served = Arc::new(AtomicU64::new(0));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, map, served) = (stream.unwrap(), Arc::clone(&map), Arc::clone(&served));
            std::thread::spawn(move || {
                let mut input = BufReader::new(stream.try_clone().unwrap());
                let mut output = stream;
                let mut line = String::new();
                while input.read_line(&mut line).unwrap_or(0) > 0 {
                    let words: Vec<&str> = line.split_whitespace().collect();
                    let mut reply = Vec::new();
                    if words[0] == "set" {
                        let mut value = vec![0; words[4].parse::<usize>().unwrap() + 2];
                        input.read_exact(&mut value).unwrap();
                        value.truncate(value.len() - 2);
                        map.lock().insert(words[1].to_owned(), value);
                        reply.extend_from_slice(b"STORED\r\n");
                    } else if let Some(value) = map.lock().get(words[1]) {
                        let head = format!("VALUE {} 0 {}\r\n", words[1], value.len());
                        reply.extend_from_slice(head.as_bytes());
                        reply.extend_from_slice(value);
                        reply.extend_from_slice(b"\r\nEND\r\n");
                    } else {
                        reply.extend_from_slice(b"END\r\n");
                    }
                    if served.fetch_add(1, Ordering::Relaxed) == stall_after {
                        esker_trt::sleep(stall);
                    }
                    if output.write_all(&reply).is_err() {
                        return;
                    }
                    line.clear();
                }
            });
        }
    });
    address
}

fn load(target: SocketAddr) -> Load {
    Load {
        protocol: Protocol::Memcache,
        target,
        connections: 1,
        depth: 1,
        rate: None,
        gets: 0.5,
        records: 200,
        key_size: 16,
        value_size: 50,
        distribution: Distribution::Zipfian { theta: THETA },
        must_hit: true,
        seed: 1,
        warmup: Duration::from_millis(20),
        length: Duration::from_millis(200),
    }
}

#[test]
fn replies_are_counted_and_checked() {
    let runtime = Runtime::start(Config::default()).unwrap();
    let load = Load { connections: 3, depth: 4, ..load(serve(u64::MAX, Duration::ZERO)) };
    let load = Load { length: Duration::from_secs(1), ..load };
    // Nothing was stored yet, and gets must hit.
    let failure = run(&runtime, &load, || (), |_, _| ()).unwrap_err();
    assert!(failure.to_string().contains("missing"), "{failure}");
    fill(&runtime, &load).unwrap();
    let loaded = run(&runtime, &load, || (), |_, _| ()).unwrap();
    assert!(loaded.ops > 50 && loaded.misses == 0 && loaded.user_bytes > 0);
    assert_eq!(loaded.latencies.len(), loaded.ops);
    assert_eq!(loaded.by_kind[0].len() + loaded.by_kind[1].len(), loaded.ops);
    // Another length of value than was stored is a wrong answer.
    let wrong = Load { value_size: 51, gets: 1.0, ..load };
    assert!(
        run(&runtime, &wrong, || (), |_, _| ()).unwrap_err().to_string().contains("wrong answer")
    );
    runtime.shutdown().unwrap();
}

/// A server that stands still for 200 ms under 1000 requests a second made some 200 of them late. A closed loop
/// would notice one.
#[test]
fn a_stall_counts_for_all_who_waited() {
    let runtime = Runtime::start(Config::default()).unwrap();
    let stall = Duration::from_millis(200);
    let target = serve(400, stall);
    let open = Load { rate: Some(1000.0), length: Duration::from_millis(600), ..load(target) };
    fill(&runtime, &open).unwrap();
    let loaded = run(&runtime, &open, || (), |_, _| ()).unwrap();
    let late = |loaded: &Loaded| {
        let below = loaded.latencies.count_between(0, 20_000_000);
        loaded.latencies.len() - below
    };
    assert!(late(&loaded) >= 100, "{} of {}", late(&loaded), loaded.ops);

    let closed = Load { target: serve(400, stall), ..open };
    let closed = Load { rate: None, ..closed };
    fill(&runtime, &closed).unwrap();
    let loaded = run(&runtime, &closed, || (), |_, _| ()).unwrap();
    assert!(late(&loaded) < 50, "{} of {}", late(&loaded), loaded.ops);
    runtime.shutdown().unwrap();
}

#[test]
fn the_rate_is_kept() {
    let runtime = Runtime::start(Config::default()).unwrap();
    let rate = || {
        let load = Load {
            rate: Some(500.0),
            connections: 5,
            length: Duration::from_millis(600),
            ..load(serve(u64::MAX, Duration::ZERO))
        };
        fill(&runtime, &load).unwrap();
        let loaded = run(&runtime, &load, || (), |_, _| ()).unwrap();
        real(loaded.ops) / loaded.seconds
    };
    // A busy machine may stand still at its end.
    assert!((0..5).any(|_| (425.0..575.0).contains(&rate())));
    runtime.shutdown().unwrap();
}

/// The server stands still from 100 ms before the end of the phase to 100 ms after it.
#[test]
fn a_stall_at_the_end_counts_for_all_who_waited() {
    let runtime = Runtime::start(Config::default()).unwrap();
    let all_count = || {
        // 200 to fill it, 20 of the warm-up.
        let target = serve(200 + 20 + 300, Duration::from_millis(200));
        let load = Load { rate: Some(1000.0), length: Duration::from_millis(400), ..load(target) };
        fill(&runtime, &load).unwrap();
        let mut begun = 0;
        let loaded = run(&runtime, &load, || begun += 1, |_, _| ()).unwrap();
        assert_eq!(begun, 1);
        let late = loaded.latencies.len() - loaded.latencies.count_between(0, 80_000_000);
        assert!(late >= 90, "{late} of {}", loaded.ops);
        assert!(loaded.seconds > 0.45, "{}", loaded.seconds);
        assert_eq!(loaded.user_bytes, loaded.by_kind[1].len() * (16 + 50));
        loaded.ops.abs_diff(400) <= 1 && loaded.unsent == 0
    };
    // A busy machine may stand still for longer.
    assert!((0..5).any(|_| all_count()));
    runtime.shutdown().unwrap();
}

/// A server that answers every request `after` it came, and misses every key.
#[expect(clippy::disallowed_methods, reason = "the server of a test blocks as it likes")]
fn serve_after(after: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut output = stream.unwrap();
            let input = BufReader::new(output.try_clone().unwrap());
            let (ask, asked) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                for _ in input.lines().map_while(Result::ok) {
                    if ask.send(SystemClock.monotonic()).is_err() {
                        return;
                    }
                }
            });
            std::thread::spawn(move || {
                for came in asked {
                    esker_trt::sleep((came + after).saturating_sub(SystemClock.monotonic()));
                    if output.write_all(b"END\r\n").is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// Five requests are in flight on average: whether each has a connection or all have one, none waits before it is sent.
#[test]
fn requests_are_sent_when_they_are_due_whatever_is_in_flight() {
    let runtime = Runtime::start(Config::default()).unwrap();
    let median = |(connections, depth)| {
        let load = Load {
            connections,
            depth,
            rate: Some(500.0),
            gets: 1.0,
            must_hit: false,
            length: Duration::from_millis(600),
            ..load(serve_after(Duration::from_millis(10)))
        };
        let loaded = run(&runtime, &load, || (), |_, _| ()).unwrap();
        assert!(loaded.ops.abs_diff(300) <= 32, "{}", loaded.ops);
        Duration::from_nanos(loaded.latencies.value_at_quantile(0.5))
    };
    for shape in [(1, 32), (32, 1)] {
        // On a busy machine some are late all the same; those that waited for a reply would be by 30 ms.
        assert!((0..5).any(|_| (10..25).contains(&median(shape).as_millis())), "{shape:?}");
    }
    runtime.shutdown().unwrap();
}
