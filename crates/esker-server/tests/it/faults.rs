//! A device that fails, or is full, under a server: what clients are told, and what is kept.

use crate::harness::{Client, TestServer};
use esker_base::{Error, ErrorKind};
use esker_media::sim::{
    Act, Asking, FaultKind, FaultPlan, Image, Initial, SimBlock, SimBlockOptions, Trigger,
};
use esker_server::Limits;
use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

const CLIENTS: usize = 4;

fn limits() -> Limits {
    Limits { item_size_max_bytes: 16 << 10, ..Limits::default() }
}

fn device(size_bytes: u64, initial: Initial) -> Arc<SimBlock> {
    Arc::new(SimBlock::new(SimBlockOptions::new(size_bytes, 5).initial(initial)))
}

/// What all servers of this process have logged.
#[derive(Clone)]
struct Logged(Arc<Mutex<Vec<u8>>>);

impl Logged {
    fn start() -> Logged {
        static LOGGED: OnceLock<Logged> = OnceLock::new();
        LOGGED
            .get_or_init(|| {
                let logged = Logged(Arc::default());
                let writer = logged.clone();
                tracing_subscriber::fmt()
                    .with_ansi(false)
                    .with_writer(move || writer.clone())
                    .try_init()
                    .expect("the only log of this process");
                logged
            })
            .clone()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("no panic")).into_owned()
    }
}

impl Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Sets items of its own until the server refuses one; what was stored, and the refusal.
fn write_until_refused(mut client: Client, name: usize) -> (BTreeMap<String, String>, String) {
    let mut stored = BTreeMap::new();
    for n in 0..20_000 {
        let (key, value) = (format!("k{name}-{n}"), format!("{n:0width$}", width = 100 + n % 900));
        client.send(format!("set {key} 0 0 {}\r\n{value}\r\n", value.len()).as_bytes());
        let line = client.line();
        if line != "STORED" {
            return (stored, line);
        }
        stored.insert(key, value);
    }
    panic!("nothing failed");
}

fn write_by_many(server: &TestServer) -> (BTreeMap<String, String>, Vec<String>) {
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..CLIENTS)
            .map(|name| scope.spawn(move || write_until_refused(server.client(), name)))
            .collect();
        let ended: Vec<_> =
            writers.into_iter().map(|writer| writer.join().expect("no panic")).collect();
        let refusals = ended.iter().map(|(_, refusal)| refusal.clone()).collect();
        (ended.into_iter().flat_map(|(stored, _)| stored).collect(), refusals)
    })
}

fn check_stored(server: &TestServer, stored: &BTreeMap<String, String>) {
    let mut client = server.client();
    for (key, value) in stored {
        client.send(format!("get {key}\r\n").as_bytes());
        client.check_receive(
            format!("VALUE {key} 0 {}\r\n{value}\r\nEND\r\n", value.len()).as_bytes(),
        );
    }
}

/// What is left if power fails now and nothing survives that need not.
fn least_that_survives(device: &SimBlock) -> Image {
    let trace = device.trace();
    let mut replay = trace.replay();
    replay.advance_to(u64::MAX);
    replay.states(1, 0).next().map_or_else(|| device.image(), |state| state.image())
}

#[test]
fn a_write_or_flush_that_fails_once_breaks_no_promise_and_says_why() {
    const SIZE: u64 = 16 << 20;
    let logged = Logged::start();
    for (kind, nth) in [
        (FaultKind::WriteError, 1),
        (FaultKind::WriteError, 40),
        (FaultKind::WriteError, 150),
        (FaultKind::ShortWrite, 77),
        (FaultKind::FlushError, 1),
        (FaultKind::FlushError, 3),
    ] {
        let context = format!("{kind:?} {nth}");
        let device = device(SIZE, Initial::Zeros);
        let server = TestServer::on_device(&device, limits());
        device.set_faults(FaultPlan::none().with(kind, Trigger::Nth(nth)));
        let (stored, refusals) = write_by_many(&server);
        for refusal in &refusals {
            assert!(
                [
                    "SERVER_ERROR outcome unknown: a write or flush failed",
                    "SERVER_ERROR store is read-only after a failure",
                ]
                .contains(&refusal.as_str()),
                "{context}: {refusal}"
            );
        }
        let unknown = |refusal: &String| refusal.contains("outcome unknown");
        assert!(refusals.iter().any(unknown), "{context}: {refusals:?}");
        // The device works again; the store may not count on it.
        let mut client = server.client();
        client.send(b"set more 0 0 1\r\n1\r\nget more\r\n");
        let read_only = "SERVER_ERROR store is read-only after a failure\r\n";
        client.check_receive(format!("{read_only}END\r\n").as_bytes());
        for key in stored.keys().take(10) {
            client.send(format!("delete {key}\r\n").as_bytes());
            client.check_receive(read_only.as_bytes());
        }
        check_stored(&server, &stored);
        let stats = client.stats();
        assert!(stats.contains("STAT read_only 1\r\n"), "{context}: {stats}");
        assert!(stats.contains("STAT read_only_reason "), "{context}: {stats}");
        assert!(logged.text().contains("read-only until reopened"), "{context}: the log says so");
        device.set_faults(FaultPlan::none());
        for image in [least_that_survives(&device), device.image()] {
            let device = self::device(SIZE, Initial::Recycled(image));
            check_stored(&TestServer::on_device(&device, limits()), &stored);
        }
    }
}

/// In a cache: whoever wants to be the first has its place.
#[test]
fn a_large_item_that_cannot_be_read_is_a_miss_for_those_who_make_items_too() {
    let (lost, tries) = (Arc::new(Mutex::new(0..0)), Arc::new(AtomicU64::new(0)));
    let (bad, met) = (Arc::clone(&lost), Arc::clone(&tries));
    let asking = Asking::new(device(16 << 20, Initial::Zeros), move |call| {
        let bad: Range<u64> = bad.lock().expect("no panic").clone();
        if call.act == Act::Read && call.range.start < bad.end && bad.start < call.range.end {
            met.fetch_add(1, Ordering::SeqCst);
            return Err(Error::new(ErrorKind::Io, "read"));
        }
        Ok(())
    });
    let inner = Arc::clone(asking.inner());
    let server = TestServer::of_cache_on_device(asking);
    let mut client = server.client();
    for (n, (requests, expected)) in [
        ("mg k N30 v t\r\nmg k v\r\n", "VA 0 t30 W\r\n\r\nVA 0 Z\r\n\r\n"),
        ("ma k N30 J7 v\r\nget k\r\n", "VA 1\r\n7\r\nVALUE k 0 1\r\n7\r\nEND\r\n"),
        ("ms k 1 MA N30\r\n1\r\nget k\r\n", "HD\r\nVALUE k 0 1\r\n1\r\nEND\r\n"),
        ("add k 0 0 1\r\n1\r\nget k\r\n", "STORED\r\nVALUE k 0 1\r\n1\r\nEND\r\n"),
        ("ms k 1 ME\r\n1\r\nget k\r\n", "HD\r\nVALUE k 0 1\r\n1\r\nEND\r\n"),
    ]
    .into_iter()
    .enumerate()
    {
        let value = format!("{n}-").repeat(50_000);
        let set = format!("set k 0 0 {}\r\n{value}\r\n", value.len());
        client.check_chat(set.as_bytes(), "STORED\r\n");
        let image = inner.image().to_vec();
        let place = image.windows(1000).position(|part| part == &value.as_bytes()[..1000]);
        let place = place.expect("it is on the device") as u64;
        *lost.lock().expect("no panic") = place..place + 64;
        tries.store(0, Ordering::SeqCst);
        client.check_chat(requests.as_bytes(), expected);
        let tries = tries.load(Ordering::SeqCst);
        assert!((1..20).contains(&tries), "{requests}: {tries}");
        *lost.lock().expect("no panic") = 0..0;
    }
}

#[test]
fn a_healthy_store_says_so() {
    let server = TestServer::start();
    let stats = server.client().stats();
    assert!(stats.contains("STAT read_only 0\r\n"), "{stats}");
    assert!(!stats.contains("read_only_reason"), "{stats}");
}

#[test]
fn a_full_store_refuses_items_and_still_reads_and_deletes() {
    let device = device(4 << 20, Initial::Zeros);
    let server = TestServer::on_device(&device, limits());
    let (stored, refusals) = write_by_many(&server);
    let full = "SERVER_ERROR out of memory storing object";
    assert!(refusals.iter().all(|refusal| refusal == full), "{refusals:?}");
    assert!(stored.len() > 1000, "{} items fit", stored.len());
    check_stored(&server, &stored);
    let mut client = server.client();
    // What finds no room leaves what was there.
    let mut stored = stored;
    let large = "x".repeat(15_000);
    for verb in ["set", "replace", "ms"] {
        let mut refused = 0;
        while refused < 3 {
            let (key, value) = stored.pop_first().expect("some");
            let size = large.len();
            let request = match verb {
                "ms" => format!("ms {key} {size}\r\n{large}\r\n"),
                _ => format!("{verb} {key} 0 0 {size}\r\n{large}\r\n"),
            };
            client.send(request.as_bytes());
            let line = client.line();
            if line != full {
                // What went before made room.
                assert!(["STORED", "HD"].contains(&line.as_str()), "{line}");
                continue;
            }
            client.send(format!("get {key}\r\n").as_bytes());
            let reply = format!("VALUE {key} 0 {}\r\n{value}\r\nEND\r\n", value.len());
            client.check_receive(reply.as_bytes());
            refused += 1;
        }
    }
    check_stored(&server, &stored);
    // The oldest first, and many at once: what they free is more than their tombstones take.
    let mut keys: Vec<&String> = stored.keys().collect();
    keys.sort_by_key(|key| key.split_once('-').and_then(|(_, n)| n.parse::<u64>().ok()));
    for keys in keys.chunks(32) {
        for (verb, reply) in [("delete", "DELETED\r\n"), ("get", "END\r\n")] {
            let requests: String = keys.iter().map(|key| format!("{verb} {key}\r\n")).collect();
            client.send(requests.as_bytes());
            client.check_receive(reply.repeat(keys.len()).as_bytes());
        }
    }
    client.check_chat(b"set again 0 0 1\r\n1\r\n", "STORED\r\n");
    let stats = client.stats();
    assert!(stats.contains("STAT read_only 0\r\n"), "full is no failure: {stats}");
}

/// `mg` notes who was told to make an item anew. Where nothing can be noted nobody is told so, and the item is read.
#[test]
fn items_that_should_be_made_anew_are_read_where_nothing_can_be_written() {
    // Full, and failed.
    for size in [4 << 20, 16 << 20] {
        let device = device(size, Initial::Zeros);
        let server = TestServer::on_device(&device, limits());
        let mut client = server.client();
        client.check_chat(
            b"ms stale 2\r\nhi\r\nmd stale I\r\nms soon 2 T60\r\nho\r\nms won 1\r\nw\r\nmd won I\r\nmg won\r\n",
            "HD\r\nHD\r\nHD\r\nHD\r\nHD\r\nHD X W\r\n",
        );
        if size > 4 << 20 {
            device.set_faults(FaultPlan::none().with(FaultKind::WriteError, Trigger::Nth(1)));
        }
        write_by_many(&server);
        // What is over is no write that fails: a store that is only full has room for a few records more, now and then.
        let mut refused = 0;
        for _ in 0..50 {
            client.send(b"mg soon v T90\r\n");
            match client.line().as_str() {
                "VA 2" => client.check_receive(b"ho\r\n"),
                line => {
                    assert!(line.starts_with("SERVER_ERROR "), "{line}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 0, "{size}: the store takes everything");
        client.send(b"mg soon v R1000\r\nmg stale v\r\nmg won v\r\nmg none v N30\r\n");
        for (words, value) in [("VA 2", "ho"), ("VA 2 X", "hi")] {
            let line = client.line();
            let told = [words.to_owned(), format!("{words} W"), words.replace(" X", "") + " X W"];
            let wins = size == 4 << 20 && told.contains(&line);
            assert!(line == words || wins, "{size}: {line}");
            client.check_receive(format!("{value}\r\n").as_bytes());
        }
        client.check_receive(b"VA 1 Z X\r\nw\r\n");
        let line = client.line();
        assert!(line == "EN" || line == "VA 0 W", "{line}");
    }
}
