//! Watchers: what they are told, and what becomes of those who do not listen.

use crate::doors::{encrypted, with_tls};
use crate::harness::{Client, TestServer, set_clock};
use esker_base::clock::{Clock as _, ManualClock, SystemClock};
use esker_server::{Credentials, Limits, ListenAddress, ShutdownHook};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// The parts of a line: time, number, and what happened.
fn parts(line: &str) -> (String, u64, String) {
    let line = line.strip_suffix('\n').expect("a line feed alone ends a line");
    let (time, rest) = line.split_once(' ').expect("a time");
    let (number, event) = rest.split_once(' ').expect("a number");
    let number = number.strip_prefix("gid=").and_then(|number| number.parse().ok());
    let time = time.strip_prefix("ts=").expect("a time").to_owned();
    (time, number.expect("a number"), event.to_owned())
}

fn watcher(server: &TestServer, kinds: &str) -> Client {
    let mut watcher = server.client();
    watcher.send(format!("watch{kinds}\r\n").as_bytes());
    watcher.check_receive(b"OK\r\n");
    watcher
}

/// The next event that a watcher is told of, without time, number and connection.
fn event(watcher: &mut Client) -> String {
    let (_, _, event) = parts(&watcher.line_of_list());
    let words = event.split(' ').filter(|word| !word.starts_with("cfd="));
    words.collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn check_events(watcher: &mut Client, expected: &[&str]) {
    for expected in expected {
        assert_eq!(event(watcher), *expected);
    }
}

fn figure(client: &mut Client, name: &str) -> u64 {
    let stats = client.stats();
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
    line.expect("told").parse().expect("a number")
}

/// Waits until a figure has become this.
#[track_caller]
fn await_figure(client: &mut Client, name: &str, expected: u64) {
    let since = SystemClock.monotonic();
    while figure(client, name) != expected {
        assert!(SystemClock.monotonic() - since < Duration::from_secs(20), "{name}");
        esker_trt::sleep(Duration::from_millis(10));
    }
}

#[test]
fn lines_are_those_of_memcached_with_time_number_and_connection() {
    let clock = Arc::new(ManualClock::new(1_000_000_000));
    let server = TestServer::with(|config| set_clock(config, &clock));
    let mut client = server.client();
    client.send(b"get none\r\n");
    client.check_receive(b"END\r\n");
    let mut watcher = watcher(&server, " fetchers mutations");
    let mut chat = |bytes: &[u8], reply: &[u8]| {
        client.send(bytes);
        client.check_receive(reply);
    };
    clock.advance(Duration::from_micros(5));
    chat(b"set k 0 100 5\r\nhello\r\n", b"STORED\r\n");
    clock.advance(Duration::from_micros(1_234_562));
    chat(b"get k\r\n", b"VALUE k 0 5\r\nhello\r\nEND\r\n");
    let lines: Vec<_> = (0..3).map(|_| parts(&watcher.line_of_list())).collect();
    let first = lines[0].1;
    // Behind the listener, the first connection.
    let expected = [
        ("1000000000.5", "type=item_get key=k status=not_found clsid=0 cfd=1 size=0"),
        (
            "1000000000.5",
            "type=item_store key=k status=stored cmd=set ttl=100 clsid=1 cfd=1 size=5",
        ),
        ("1000000001.234567", "type=item_get key=k status=found clsid=1 cfd=1 size=5"),
    ];
    for (number, (line, (time, event))) in (first..).zip(lines.iter().zip(expected)) {
        assert_eq!(*line, (time.to_owned(), number, event.to_owned()));
    }
    chat(b"stats conns\r\n", b"STAT 0:addr tcp:");
}

#[test]
fn every_command_that_looks_up_or_stores_is_told() {
    let server = TestServer::start();
    let mut watcher = watcher(&server, " mutations fetchers evictions");
    let mut client = server.client();
    let mut told = |bytes: &str, reply: &str, events: &[&str]| {
        client.send(bytes.as_bytes());
        client.check_receive(reply.as_bytes());
        let expected: Vec<String> = events
            .iter()
            .map(|event| match event.split_once(' ') {
                Some((key, "-")) => format!("type=item_get key={key} status=not_found clsid=0 size=0"),
                Some((key, size)) if !size.contains(' ') => format!("type=item_get key={key} status=found clsid=1 size={size}"),
                Some((key, rest)) => {
                    let [status, cmd, size] = *rest.split(' ').collect::<Vec<_>>() else { panic!("{rest}") };
                    format!("type=item_store key={key} status={status} cmd={cmd} ttl=0 clsid=1 size={size}")
                }
                None => panic!("{event}"),
            })
            .collect();
        check_events(&mut watcher, &expected.iter().map(String::as_str).collect::<Vec<_>>());
    };
    told("add a 0 0 2\r\nhi\r\n", "STORED\r\n", &["a -", "a stored add 2"]);
    told("add a 0 0 1\r\nx\r\n", "NOT_STORED\r\n", &["a 2", "a not_stored add 1"]);
    told("set a 0 0 3 noreply\r\nabc\r\nmn\r\n", "MN\r\n", &["a 2", "a stored set 3"]);
    told("replace b 0 0 1\r\nx\r\n", "NOT_STORED\r\n", &["b -", "b not_stored replace 1"]);
    told("replace a 0 0 1\r\n1\r\n", "STORED\r\n", &["a 3", "a stored replace 1"]);
    told("append a 0 0 1\r\n2\r\n", "STORED\r\n", &["a 1", "a stored append 2"]);
    told("prepend b 0 0 1\r\n2\r\n", "NOT_STORED\r\n", &["b -", "b not_stored prepend 1"]);
    told("cas a 0 0 1 1\r\n2\r\n", "EXISTS\r\n", &["a 2", "a exists cas 1"]);
    told("cas b 0 0 1 1\r\n2\r\n", "NOT_FOUND\r\n", &["b -", "b not_found cas 1"]);
    // One command at a time: those that come together may take effect in another order, and are told in that.
    told("incr a 1\r\n", "13\r\n", &["a 2"]);
    told("incr b 1\r\n", "NOT_FOUND\r\n", &["b -"]);
    told("touch a 0\r\n", "TOUCHED\r\n", &["a 2"]);
    told("touch b 0\r\n", "NOT_FOUND\r\n", &["b -"]);
    told("gat 0 a\r\n", "VALUE a 0 2\r\n13\r\nEND\r\n", &["a 2"]);
    told("gats 0 b b\r\n", "END\r\n", &["b -", "b -"]);
    told("get a a\r\n", "VALUE a 0 2\r\n13\r\nVALUE a 0 2\r\n13\r\nEND\r\n", &["a 2", "a 2"]);
    told("mg a\r\n", "HD\r\n", &["a 2"]);
    told("mg b\r\nme b\r\n", "EN\r\nEN\r\n", &["b -", "b -"]);
    told("mg b N0\r\nmg b T0\r\n", "HD W\r\nHD Z\r\n", &["b -", "b 0"]);
    told("ms a 3\r\nabc\r\n", "HD\r\n", &["a 2", "a stored set 3"]);
    told("ms a 1 MA\r\nd\r\n", "HD\r\n", &["a 3", "a stored append 4"]);
    told("ms a 1 ME\r\nd\r\n", "NS\r\n", &["a 4", "a not_stored add 1"]);
    told("ms a 1 C1\r\nd\r\n", "EX\r\n", &["a 4", "a exists cas 1"]);
    let no_number = "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
    told("ma a\r\n", no_number, &["a 4"]);
    told("ma c\r\n", "NF\r\n", &["c -"]);
    told("ma c N0 J17\r\n", "HD\r\n", &["c -", "c -", "c stored add 2"]);
    told(
        "md c C1\r\nmd c I\r\nmd c\r\nmd c\r\n",
        "EX\r\nHD\r\nHD\r\nNF\r\n",
        &["c 2", "c 2", "c 2", "c -"],
    );
    told("delete a\r\ndelete a\r\n", "DELETED\r\nNOT_FOUND\r\n", &["a 4", "a -"]);
    // Keys as their bytes, whatever they were written as.
    told("ms AWI= 1 b\r\n1\r\n", "HD\r\n", &["%01b -", "%01b stored set 1"]);
    told("set n,f:1 0 0 0\r\n\r\n", "STORED\r\n", &["n%2Cf%3A1 -", "n%2Cf%3A1 stored set 0"]);
    let (key, shown) = ("#".repeat(250), "%23".repeat(250));
    told(&format!("get {key}\r\n"), "END\r\n", &[&format!("{shown} -")]);
}

#[test]
fn what_is_refused_is_told_and_what_the_cache_forgets_for_it() {
    let limits = Limits { item_size_max_bytes: 20_000, ..Limits::default() };
    let server = TestServer::of_cache(|config| config.limits = limits);
    let mut client = server.client();
    client.check_chat(b"set k 0 0 2\r\nhi\r\n", "STORED\r\n");
    let mut watcher = watcher(&server, " fetchers mutations");
    let large = format!("{}\r\n", "x".repeat(20_001));
    for line in ["set k 0 10 20001", "set k 0 0 20001", "append k 0 0 20001", "ms k 20001"] {
        client.send(format!("{line}\r\n{large}").as_bytes());
        client.check_receive(b"SERVER_ERROR object too large for cache\r\n");
    }
    let refused =
        |verb| format!("type=item_store key=k status=too_large cmd={verb} ttl=0 clsid=0 size=0");
    let missing = "type=item_get key=k status=not_found clsid=0 size=0";
    let expected = [
        &refused("set"),
        "type=item_get key=k status=found clsid=1 size=2",
        &refused("set"),
        missing,
        &refused("append"),
        &refused("set"),
        missing,
    ];
    check_events(&mut watcher, &expected);
}

#[test]
fn each_watcher_is_told_what_it_asked_for() {
    let server = TestServer::start();
    let mut plain = watcher(&server, "");
    let mut fetches = watcher(&server, " fetchers");
    let mut stores = watcher(&server, " mutations");
    let mut silent =
        watcher(&server, " evictions sysevents rawcmds proxyreqs proxyevents proxyuser");
    let mut client = server.client();
    for number in 0..3 {
        let set = format!("set k{number} 0 0 1 noreply\r\n1\r\nget k{number}\r\n");
        client.send(set.as_bytes());
        client.check_receive(format!("VALUE k{number} 0 1\r\n1\r\nEND\r\n").as_bytes());
        for watcher in [&mut plain, &mut fetches] {
            let (missing, found) = ("not_found clsid=0 size=0", "found clsid=1 size=1");
            let lines =
                [missing, found].map(|told| format!("type=item_get key=k{number} status={told}"));
            check_events(watcher, &[&lines[0], &lines[1]]);
        }
        check_events(
            &mut stores,
            &[&format!("type=item_store key=k{number} status=stored cmd=set ttl=0 clsid=1 size=1")],
        );
    }
    silent.0.set_nonblocking(true).expect("option");
    assert!(
        silent.0.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    );
}

#[test]
fn words_that_are_no_kinds_are_refused_and_the_connection_goes_on() {
    let server = TestServer::start();
    let mut client = server.client();
    client.check_chat(
        b"watch everything\r\nwatch fetchers Mutations\r\nwatch fetchers noreply\r\nwatch noreply\r\nmn\r\n",
        "ERROR\r\nERROR\r\nMN\r\n",
    );
    assert_eq!(figure(&mut client, "log_watchers"), 0);
    let server = TestServer::with(|config| config.watch_enabled = false);
    let refused = "CLIENT_ERROR watch commands not allowed\r\n";
    server.client().check_chat(b"watch\r\nwatch x\r\nwatch noreply\r\n", &refused.repeat(2));
}

/// A server with a watcher at a socket file, of which the system takes little ahead.
fn with_slow_watcher() -> (TestServer, BufReader<UnixStream>) {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("socket");
    let server = TestServer::with(|config| {
        config.listen.push(ListenAddress::Unix(path.clone()));
        config.limits.request_timeout = Duration::from_millis(300);
    });
    let mut slow = UnixStream::connect(&path).expect("connect");
    slow.set_read_timeout(Some(Duration::from_secs(30))).expect("timeout");
    slow.write_all(b"watch\r\n").expect("send");
    let mut slow = BufReader::new(slow);
    let mut reply = String::new();
    slow.read_line(&mut reply).expect("text");
    assert_eq!(reply, "OK\r\n");
    (server, slow)
}

/// Looks up keys until watchers have lost lines; returns how many that were.
fn flood(client: &mut Client) -> u64 {
    let batch = format!("get {}\r\n", format!("{} ", "#".repeat(250)).repeat(100));
    let mut told = 0;
    while figure(client, "log_watcher_skipped") == 0 {
        client.send(batch.as_bytes());
        client.check_receive(b"END\r\n");
        told += 100;
        assert!(told < 1_000_000, "nothing is lost");
    }
    told
}

#[test]
fn a_watcher_that_does_not_listen_loses_lines_and_hears_how_many() {
    let (server, mut slow) = with_slow_watcher();
    let mut client = server.client();
    let mut told = flood(&mut client);
    assert_eq!(figure(&mut client, "log_worker_written"), told);
    // Who takes no reply would be gone by then.
    esker_trt::sleep(Duration::from_secs(1));
    assert_eq!(figure(&mut client, "log_watchers"), 1);
    let (mut heard, mut skipped, mut last) = (0, 0, None);
    while heard + skipped < told {
        let mut line = String::new();
        slow.read_line(&mut line).expect("text");
        if let Some(count) = line.strip_prefix("skipped=") {
            let count: u64 = count.strip_suffix('\n').expect("a line").parse().expect("a number");
            skipped += count;
            last = last.map(|last| last + count);
            continue;
        }
        let (_, number, event) = parts(&line);
        assert!(event.starts_with("type=item_get key=%23%23"), "{line}");
        assert!(last.is_none_or(|last| number == last + 1), "{line} behind {last:?}");
        (heard, last) = (heard + 1, Some(number));
        if heard % 20 == 0 {
            // There is room again, which it hears of with the next line.
            client.send(b"get ##\r\n");
            client.check_receive(b"END\r\n");
            told += 1;
        }
    }
    assert!(skipped > 0);
    assert_eq!(figure(&mut client, "log_watcher_skipped"), skipped);
    assert_eq!(figure(&mut client, "log_watcher_sent"), heard);
    // Nobody else was kept by it.
    drop(slow);
    await_figure(&mut client, "log_watchers", 0);
}

#[test]
fn one_watcher_more_than_there_may_be_is_refused() {
    let server = TestServer::start();
    let mut watchers: Vec<Client> = (0..20).map(|_| watcher(&server, "")).collect();
    let mut client = server.client();
    assert_eq!(figure(&mut client, "log_watchers"), 20);
    let full = figure(&mut client, "memory_budget_free_bytes");
    client.check_chat(b"watch\r\n", "WATCHER_TOO_MANY log watcher limit reached\r\n");
    watchers.truncate(18);
    await_figure(&mut client, "log_watchers", 18);
    let _another = watcher(&server, " mutations");
    watchers.clear();
    await_figure(&mut client, "log_watchers", 1);
    let held = figure(&mut client, "memory_budget_free_bytes") - full;
    assert!(held >= 19 * (256 << 10), "each has its memory of the budget: {held}");
}

#[test]
fn a_watcher_needs_memory_and_is_refused_without() {
    let limits = Limits {
        connections_max: 4,
        item_size_max_bytes: 1 << 10,
        memory_max_bytes: 100 << 10,
        ..Limits::default()
    };
    let server = TestServer::with_limits(limits);
    let mut client = server.client();
    client.check_chat(b"watch\r\nmn\r\n", "WATCHER_FAILED failed to add log watcher\r\nMN\r\n");
    assert_eq!(figure(&mut client, "log_watchers"), 0);
}

#[test]
fn nothing_that_a_watcher_sends_is_looked_at_and_its_end_is_seen() {
    let limits = Limits { idle_timeout: Duration::from_secs(1), ..Limits::default() };
    let server = TestServer::with_limits(limits);
    let mut watcher = server.client();
    // Behind other commands, and before some.
    watcher.send(b"set k 0 0 1\r\n1\r\nwatch mutations\r\nset k 0 0 1\r\n2\r\nquit\r\n");
    watcher.check_receive(b"STORED\r\nOK\r\n");
    for _ in 0..8 {
        watcher.send(b"set k 0 0 1\r\n3\r\n");
        // Longer than others may be silent.
        esker_trt::sleep(Duration::from_millis(200));
    }
    let mut client = server.client();
    client.send(b"stats conns\r\n");
    let mut states: Vec<String> = Vec::new();
    while states.last().is_none_or(|line| line != "END") {
        states.push(client.line());
    }
    assert!(states.contains(&"STAT 1:state conn_watch".to_owned()), "{states:?}");
    client.send(b"get k\r\nadd k 0 0 1\r\nx\r\n");
    client.check_receive(b"VALUE k 0 1\r\n1\r\nEND\r\nNOT_STORED\r\n");
    check_events(
        &mut watcher,
        &["type=item_store key=k status=not_stored cmd=add ttl=0 clsid=1 size=1"],
    );
    watcher.0.shutdown(std::net::Shutdown::Write).expect("end");
    await_figure(&mut server.client(), "log_watchers", 0);
    assert_eq!(watcher.line_of_list(), "", "it is closed");
}

#[test]
fn connections_are_told_when_they_come_and_why_they_go() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("socket");
    let server = TestServer::with(|config| {
        config.listen.push(ListenAddress::Unix(path.clone()));
        config.limits.idle_timeout = Duration::from_millis(300);
        config.on_shutdown = Some(ShutdownHook::new(|| {}));
    });
    let mut watcher = watcher(&server, " connevents");
    // The two listeners, and the watcher.
    let mut connection = 2;
    let mut check = |origin: &str, reason: &str| {
        connection += 1;
        let told = [format!("conn_new {origin}"), format!("conn_close {origin} reason={reason}")];
        for told in told {
            let (_, _, event) = parts(&watcher.line_of_list());
            assert_eq!(event, format!("type={told} cfd={connection}"));
        }
    };
    for (sent, reason) in [
        ("version\r\nquit\r\n", "normal"),
        ("GET / HTTP/1.1\r\n", "error"),
        ("set k 0 0 x\r\n", "error"),
        ("shutdown\r\n", "shutdown"),
        ("version\r\n", "idle_timeout"),
    ] {
        let mut client = server.client();
        let port = client.0.local_addr().expect("address").port();
        client.send(sent.as_bytes());
        check(&format!("rip=127.0.0.1 rport={port} transport=tcp"), reason);
    }
    for begun in ["", "get k\r\nget", "set k 0 0 100000\r\nvalue"] {
        let mut client = UnixStream::connect(&path).expect("connect");
        client.write_all(begun.as_bytes()).expect("send");
        client.shutdown(std::net::Shutdown::Write).expect("end");
        check("rip=unix rport=0 transport=local", "normal");
    }
}

#[test]
fn watchers_over_tls_are_told_as_well() {
    let (server, config) = with_tls();
    let mut watcher = encrypted(&server, &config);
    let mut client = encrypted(&server, &config);
    watcher.write_all(b"watch mutations\r\n").expect("send");
    let mut reply = [0; 4];
    watcher.read_exact(&mut reply).expect("receive");
    assert_eq!(&reply, b"OK\r\n");
    let (mut line, mut byte) = (Vec::new(), [0]);
    for number in 0..200 {
        let set = format!("set k{number} 0 0 1 noreply\r\n1\r\nmn\r\n");
        client.write_all(set.as_bytes()).expect("send");
        client.read_exact(&mut reply).expect("receive");
        line.clear();
        while !line.ends_with(b"\n") {
            watcher.read_exact(&mut byte).expect("a line");
            line.push(byte[0]);
        }
        let (_, _, event) = parts(&String::from_utf8_lossy(&line));
        assert!(
            event.starts_with(&format!("type=item_store key=k{number} status=stored ")),
            "{event}"
        );
    }
}

#[test]
fn who_has_not_said_who_it_is_watches_nothing() {
    let known = Credentials::parse(b"ann:secret\n").expect("valid");
    let server = TestServer::with(|config| config.auth = Some(known));
    let mut client = server.client();
    client.send(b"watch\r\nset x 0 0 10\r\nann secret\r\nwatch\r\n");
    client.check_receive(b"CLIENT_ERROR unauthenticated\r\nSTORED\r\nOK\r\n");
}

#[test]
fn a_server_that_stops_sends_what_there_is_and_ends_its_watchers() {
    let (server, _deaf) = with_slow_watcher();
    let mut client = server.client();
    flood(&mut client);
    let watcher = watcher(&server, " mutations");
    for _ in 0..20 {
        client.send(&b"set k 0 0 1 noreply\r\n1\r\n".repeat(50));
        client.send(b"mn\r\n");
        client.check_receive(b"MN\r\n");
    }
    assert!(server.server.stop(Duration::from_secs(20)), "everything is answered");
    let heard = BufReader::new(watcher.0).lines().map_while(Result::ok).count();
    assert_eq!(heard, 20 * 50);
    let since = SystemClock.monotonic();
    while server.server.connections() > 1 {
        assert!(SystemClock.monotonic() - since < Duration::from_secs(20), "one stays");
        esker_trt::sleep(Duration::from_millis(10));
    }
}

#[test]
fn while_nobody_watches_nothing_is_told() {
    let server = TestServer::start();
    let mut client = server.client();
    client.check_chat(b"set k 0 0 1\r\n1\r\nget k\r\n", "STORED\r\nVALUE k 0 1\r\n1\r\nEND\r\n");
    drop(watcher(&server, ""));
    await_figure(&mut client, "log_watchers", 0);
    client.check_chat(b"get k\r\n", "VALUE k 0 1\r\n1\r\nEND\r\n");
    assert_eq!(figure(&mut client, "log_worker_written"), 0);
}
