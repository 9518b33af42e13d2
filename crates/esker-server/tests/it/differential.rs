//! The same bytes to memcached and to Esker: the same replies.
//!
//! Skipped where no `memcached` is installed. What differs on purpose is listed in the parser's
//! text and tested in `commands`; the streams here stay clear of it.

mod observe;

use crate::harness::{Client, TestServer};
use esker_base::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Random commands that are compared.
const COMMANDS: usize = 20_000;
/// Commands sent in one piece.
const BATCH: usize = 25;
const KEYS: usize = 12;

struct Memcached {
    child: Child,
    address: SocketAddr,
}

impl Memcached {
    fn start() -> Option<Memcached> {
        Memcached::with(&[])
    }

    fn with(options: &[&str]) -> Option<Memcached> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|free| free.local_addr())
            .expect("a free port")
            .port();
        let spawned = Command::new("memcached")
            .args([
                "-l",
                "127.0.0.1",
                "-U",
                "0",
                "-t",
                "1",
                "-u",
                "nobody",
                "-p",
                &port.to_string(),
            ])
            .args(options)
            .stderr(Stdio::null())
            .spawn();
        let Ok(child) = spawned else {
            esker_testkit::skipped::because(
                "memcached is not installed, so there is nothing to compare with",
            );
            return None;
        };
        let memcached = Memcached { child, address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)) };
        for _ in 0..200 {
            if TcpStream::connect(memcached.address).is_ok() {
                return Some(memcached);
            }
            esker_trt::sleep(Duration::from_millis(20));
        }
        panic!("memcached does not listen");
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One of the two servers, and the CAS ids that it told.
struct Side {
    client: Client,
    cas: BTreeMap<String, String>,
}

impl Side {
    fn new(address: SocketAddr) -> Side {
        Side { client: Client::connect(address), cas: BTreeMap::new() }
    }

    /// The replies to `stream`, in which `@KEY@` stands for the last CAS id of a key, with CAS ids
    /// and the version made alike.
    fn replies(&mut self, stream: &[u8]) -> (String, bool) {
        let mut text = String::new();
        for (index, part) in String::from_utf8_lossy(stream).split('@').enumerate() {
            match index % 2 {
                0 => text.push_str(part),
                _ => {
                    text.push_str(self.cas.get(part).map_or("18446744073709551615", String::as_str))
                }
            }
        }
        let (reply, closed) = self.client.say(text.as_bytes());
        let reply = String::from_utf8_lossy(&reply).into_owned();
        let (mut alike, mut prefixes) = (String::new(), Vec::new());
        for line in reply.split_inclusive("\r\n") {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["VALUE", key, flags, length, cas] => {
                    self.cas.insert((*key).to_owned(), (*cas).to_owned());
                    alike.push_str(&format!("VALUE {key} {flags} {length} #\r\n"));
                }
                ["ME", key, told @ ..] => alike.push_str(&format!("ME {key} {}\r\n", debug(told))),
                ["HD" | "VA" | "EN" | "NF" | "NS" | "EX", ..] => {
                    let (line, seen) = meta(&words);
                    if let Some((key, cas)) = seen {
                        self.cas.insert(key, cas);
                    }
                    alike.push_str(&line);
                }
                // In the order of its hash table there.
                ["PREFIX", ..] => prefixes.push(line.to_owned()),
                ["VERSION", _] => alike.push_str("VERSION #\r\n"),
                _ => {
                    prefixes.sort();
                    alike.extend(prefixes.drain(..));
                    alike.push_str(line);
                }
            }
        }
        (alike, closed)
    }
}

/// The first line of a reply to a meta command, with times and CAS ids made alike; and the CAS id of
/// a key, if it tells both.
fn meta(words: &[&str]) -> (String, Option<(String, String)>) {
    let (mut key, mut cas) = (None, None);
    let mut alike: Vec<String> = vec![words[0].into()];
    for word in &words[1..] {
        let (flag, argument) = word.split_at(1);
        alike.push(match flag {
            "t" => format!("t{}", about(argument)),
            "l" => "l#".into(),
            "c" if argument != "0" => {
                cas = Some(argument.to_owned());
                "c#".into()
            }
            "k" => {
                key = Some(argument.to_owned());
                (*word).to_owned()
            }
            _ => (*word).to_owned(),
        });
    }
    (alike.join(" ") + "\r\n", key.zip(cas))
}

/// What `me` tells, as far as it is the same.
fn debug(words: &[&str]) -> String {
    let alike = words.iter().map(|word| match word.split_once('=') {
        Some(("exp", time)) => format!("exp={}", about(time.trim_start_matches('-'))),
        Some(("la" | "cas" | "cls" | "size", _)) => "#".into(),
        _ => (*word).to_owned(),
    });
    alike.collect::<Vec<_>>().join(" ")
}

/// A time that may be some seconds off.
fn about(seconds: &str) -> String {
    match seconds.parse::<i64>() {
        Ok(900..=1000) => "thousand".into(),
        Ok(40..=50) => "fifty".into(),
        Ok(1_000_000..) => "years".into(),
        _ => seconds.to_owned(),
    }
}

fn compare(memcached: &mut Side, esker: &mut Side, stream: &[u8], what: &str) {
    let expected = memcached.replies(stream);
    let seen = esker.replies(stream);
    if seen == expected {
        return;
    }
    let differs =
        seen.0.lines().zip(expected.0.lines()).position(|(seen, expected)| seen != expected);
    let at = differs.unwrap_or_else(|| seen.0.lines().count().min(expected.0.lines().count()));
    let short = |text: &str| text.lines().map(|line| format!("{:.60}", line)).collect::<Vec<_>>();
    let (seen_lines, expected_lines) = (short(&seen.0), short(&expected.0));
    panic!(
        "{what}: line {at} is {:?} and should be {:?}\n after {:?}\n closed {} {}\n seen {:#?}\n expected {:#?}\n to {:#?}",
        seen_lines.get(at),
        expected_lines.get(at),
        &expected_lines[at.saturating_sub(3)..at],
        seen.1,
        expected.1,
        seen_lines,
        expected_lines,
        short(&String::from_utf8_lossy(stream)),
    );
}

#[test]
fn edge_cases_answer_as_memcached_does() {
    let Some(memcached) = Memcached::start() else { return };
    // Where a `set` that is refused leaves nothing older, as there.
    let server = TestServer::of_cache(|_| {});
    let key = "k".repeat(250);
    let long = "k".repeat(251);
    let large = format!("{}\r\n", "x".repeat(1_048_577));
    let mut cases: Vec<String> = [
        "\r\n", "\n", " \r\n", "get\r\n", "get \r\n", "gets\r\n", "GET a\r\n", "get a\n", "get a\r\r\n", "  get a\r\n",
        "get  a   a\r\n", "get\ta\r\n", "set b 0 0 02\r\nhi\r\nget b\r\n", "set b 4294967295 0 2\r\nhi\r\nget b\r\n",
        "set b 0 0 3\r\nabcdefg\r\nversion\r\n", "set b 0 0 3\r\nab\r\nversion\r\n", "set b 0 0 3\nabc\r\nget b\r\n",
        "set b 0 0 3\r\nabc\nget b\r\n", "set b 0 0  1\r\n1\r\n", "set b 0 0 1 \r\n1\r\n", "set b 0 0 1\r\n1\r\n\r\nversion\r\n",
        "set b 7 0 2\r\nhi\r\nadd b 0 0 1\r\nx\r\nreplace b 0 0 1\r\ny\r\nget b\r\nappend b 5 9 1\r\nz\r\nprepend b 5 9 1\r\na\r\nget b\r\n",
        "append nope 0 0 1\r\nx\r\n", "delete b\r\ndelete b\r\ndelete b 0\r\ndelete b 1\r\ndelete b 0 noreply\r\ndelete\r\n",
        "delete b 0 0 0\r\ndelete b x y\r\ndelete b x noreply\r\ndelete noreply\r\ndelete x noreply noreply\r\n",
        "touch\r\ntouch a\r\ntouch a 0\r\ntouch nope 0\r\ntouch a x\r\ntouch a 0 noreply\r\ntouch a 0 x\r\ntouch noreply 0\r\n",
        "gat\r\ngat 0\r\ngat x a\r\ngat 0 nope a\r\ngat noreply\r\ngats\r\n",
        "set a 0 0 1\r\n1\r\ngat 0 a\r\ngats 0 a a\r\ngat -1 a\r\nget a\r\n",
        "set n 3 0 2\r\n10\r\nincr n 1\r\nincr n 18446744073709551616\r\nincr n x\r\nincr n -1\r\n",
        "incr nope 1\r\ndecr n 100\r\nget n\r\nincr n\r\nincr\r\nincr n 1 noreply\r\nincr n 1 x\r\nget n\r\ndecr n 01\r\n",
        "set n 0 0 3\r\nabc\r\nincr n 1\r\nset n 0 0 0\r\n\r\nincr n 1\r\nset n 0 0 2\r\n-1\r\nincr n 1\r\n",
        "set n 0 0 3\r\n 12\r\nincr n 1\r\nset n 0 0 3\r\n12 \r\nincr n 1\r\nget n\r\nset n 0 0 21\r\n184467440737095516150\r\nincr n 1\r\n",
        "set n 0 0 3\r\n012\r\nincr n 1\r\nget n\r\n",
        "set n 0 0 2\r\n1x\r\nincr n 1\r\nset n 0 0 2\r\n+1\r\nincr n 1\r\nset n 0 0 25\r\n0000000000000000000000001\r\nincr n 1\r\nget n\r\n",
        "set n 0 0 6\r\n12 abc\r\nincr n 1\r\nget n\r\n",
        "set n 0 0 3\r\n5\0a\r\nincr n 1\r\nget n\r\nset n 0 0 2\r\n5\0\r\ndecr n 1\r\nget n\r\nset n 0 0 2\r\n5\0\r\nma n v\r\n",
        "set n 0 0 2\r\n\u{b}5\r\nincr n 1\r\nset n 0 0 2\r\n5\u{b}\r\nincr n 1\r\nset n 0 0 2\r\n5\u{1f}\r\nincr n 1\r\nset n 0 0 7\r\n \t\n\u{b}\u{c}\r5\r\nma n v\r\n",
        "set n 0 0 2\r\n-0\r\nincr n 1\r\nset n 0 0 2\r\n-0\r\nma n v\r\nset n 0 0 3\r\n+-0\r\nincr n 1\r\nset n 0 0 3\r\n- 1\r\nincr n 1\r\n",
        "set n 0 0 21\r\n-18446744073709551615\r\nincr n 1\r\nset n 0 0 21\r\n-18446744073709551616\r\nincr n 1\r\n",
        "set n 0 0 20\r\n-9223372036854775808\r\nincr n 1\r\nset n 0 0 20\r\n-9223372036854775809\r\nincr n 1\r\nset n 0 0 1\r\n\0\r\nincr n 1\r\n",
        "set a 0 0 1\r\n1\r\ncas a 0 0 1 99999999\r\n1\r\ncas nope 0 0 1 1\r\n1\r\ncas a 0 0 1 0\r\n1\r\ncas a 0 0 1 5 noreply\r\n1\r\n",
        "set a 0 0 1\r\n1\r\ngets a\r\n", "cas a 0 0 1 @a@\r\n2\r\ncas a 0 0 1 @a@\r\n3\r\nget a\r\n",
        "verbosity\r\nverbosity 1\r\nverbosity 1 noreply\r\nverbosity 0 x\r\nverbosity x\r\nverbosity 1 2 3\r\nverbosity noreply\r\nverbosity 0\r\n",
        "version x\r\nversion\r\nversion noreply\r\n",
        "flush_all\r\nflush_all 0\r\nflush_all noreply\r\nflush_all 0 noreply\r\nflush_all x\r\nflush_all -1\r\nflush_all 1 2 3\r\n",
        "flush_all 0 x\r\nflush_all 5 noreply x\r\nflush_all x noreply\r\nflush_all noreply noreply\r\n",
        "watch x\r\n", "watch fetchers x\r\n", "watch noreply\r\n", "watch x noreply\r\n",
        "flush_all 99999\r\nset aa 0 0 1\r\n1\r\nget aa\r\nflush_all\r\nget aa\r\n",
        "stats nope\r\nstats reset\r\nstats reset x\r\nstats detail\r\nstats detail x\r\nstats detail on x\r\nstats detail off\r\nstats detail dump\r\nstats sizes\r\n",
        "bogus\r\nbogus x y z\r\nversionx\r\nsetx a 0 0 1\r\nget a noreply\r\nbget a\r\n",
        "set b 0 2147483647 1\r\nx\r\nget b\r\n", "set b 0 2592001 1\r\nx\r\nget b\r\n", "set b 0 2592000 1\r\nx\r\nget b\r\n",
        "set b 0 -1 1\r\nx\r\nget b\r\n", "set b 0 0 0\r\n\r\nget b\r\n", "set b 0 0 1 noreply\r\n1\r\nincr b x noreply\r\nincr zz 1 noreply\r\n",
        "append zz 0 0 1 noreply\r\n1\r\nversion\r\n", "set \u{1}\u{7f}é 0 0 1\r\n1\r\nget \u{1}\u{7f}é\r\n", "set b 0 0 3 noreply\r\nabcdefg\r\nversion\r\n",
        "lru_crawler\r\nlru_crawler x\r\nlru_crawler x y\r\nlru_crawler metadump\r\nlru_crawler metadump 1 2\r\n",
        "lru_crawler metadump x\r\n", "lru_crawler metadump 0\r\n", "lru_crawler metadump 64\r\n", "lru_crawler metadump 2,x\r\n",
        "stats cachedump\r\nstats cachedump 1\r\nstats cachedump x 1\r\nstats cachedump 1 x\r\nstats cachedump 64 1\r\nstats cachedump 63 1\r\nstats cachedump 63 1 2\r\n",
        "get / HTTP/1.0\r\n", "c\r\nd\r\ni\r\nt\r\nr\r\nsetq\r\na\r\nlru\r\nmisbehave\r\n",
    ]
    .map(str::to_owned)
    .to_vec();
    cases.extend([
        format!("set {key} 0 0 1\r\n1\r\nget {key}\r\nincr {key} 1\r\ntouch {key} 0\r\ndelete {key}\r\n"),
        format!("get {long}\r\n"),
        format!("get a {long}\r\n"),
        format!("gat 0 a {long}\r\n"),
        format!("delete {long}\r\ndelete {long} noreply\r\ntouch {long} 0\r\nincr {long} 1\r\nversion\r\n"),
        format!("set c 7 0 2\r\nhi\r\nset c 0 0 1048577\r\n{large}version\r\nget c\r\n"),
        format!("set c 7 0 2\r\nhi\r\nadd c 0 0 1048577\r\n{large}get c\r\n"),
        format!("set c 0 0 1048577 noreply\r\n{large}get c\r\n"),
        format!("replace nx 0 0 1048577\r\n{large}cas nx 0 0 1048577 1\r\n{large}append c 0 0 1048577\r\n{large}"),
        format!("set big 0 0 1048000\r\n{}\r\nget big\r\n", "y".repeat(1_048_000)),
        format!("append big 0 0 1000\r\n{0}\r\nappend big 0 0 1000 noreply\r\n{0}\r\n", "y".repeat(1000)),
        format!("{}\r\nversion\r\n", "x".repeat(2047)),
        format!("get {}\r\n", "a ".repeat(20_000)),
        format!("gets {}\r\n", "x".repeat(2000)),
        format!("delete a{}\r\nversion{}\r\n", " x".repeat(30), " x".repeat(30)),
    ]);
    cases.extend(
        [
            "set b 0 -1 1\r\nx\r\nadd b 0 -1 1\r\ny\r\nadd b 0 0 1\r\nz\r\nget b\r\n",
            "touch b -1\r\nget b\r\ndelete b\r\nset b 0 0 1\r\nx\r\ntouch b -1\r\nreplace b 0 0 1\r\ny\r\n",
            "set b 0 -1 1\r\nx\r\nappend b 0 0 1\r\ny\r\nincr b 1\r\ngets b\r\ncas b 0 0 1 1\r\ny\r\n",
        ]
        .map(str::to_owned),
    );
    let mut sides = (Side::new(memcached.address), Side::new(server.address()));
    for case in &cases {
        compare(&mut sides.0, &mut sides.1, case.as_bytes(), "edge case");
    }
    for last in [
        "quit\r\nversion\r\n",
        "quit x\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST / HTTP/1.1\r\n",
    ] {
        let mut sides = (Side::new(memcached.address), Side::new(server.address()));
        compare(&mut sides.0, &mut sides.1, last.as_bytes(), "last words");
    }
}

#[test]
fn random_commands_answer_as_memcached_does() {
    let Some(memcached) = Memcached::start() else { return };
    let server = TestServer::start();
    let seed =
        std::env::var("ESKER_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0xD1FF);
    let mut rng = Rng::from_seed(seed);
    let mut sides = (Side::new(memcached.address), Side::new(server.address()));
    for batch in 0..COMMANDS / BATCH {
        let mut touched = BTreeSet::new();
        let stream: Vec<u8> = (0..BATCH).flat_map(|_| command(&mut rng, &mut touched)).collect();
        compare(&mut sides.0, &mut sides.1, &stream, &format!("seed {seed}, batch {batch}"));
        for key in touched {
            sides.0.cas.remove(&key);
            sides.1.cas.remove(&key);
        }
    }
}

#[test]
fn meta_edge_cases_answer_as_memcached_does() {
    let Some(memcached) = Memcached::start() else { return };
    let server = TestServer::of_cache(|_| {});
    let key = "k".repeat(250);
    let long = "k".repeat(251);
    let many = " k".repeat(18);
    let large = format!("{}\r\n", "x".repeat(1_048_577));
    let mut cases: Vec<String> = [
        "mg\r\nmd\r\nma\r\nme\r\nmn\r\nmn x\r\nmx\r\nmx k\r\nm\r\nmgg k\r\nMG k\r\n",
        "mg k\r\nmg k v\r\nmg k k Oabc\r\nmg k q\r\nmg k q k O1\r\nmn\r\n",
        "ms k 2\r\nhi\r\nmg k\r\nmg k v\r\nmg k s v f t c h l k Ox\r\nmg k h\r\nmg k q\r\nmg k v q\r\n",
        "ms k 2 F9 T1000 k c Oa\r\nhi\r\nmg k f t v\r\nmg k t T50 t\r\nmg k t\r\nmg k T0 t\r\nme k\r\nme nope\r\n",
        "ms k 2 q\r\nhi\r\nms k 2 q ME\r\nho\r\nms k 2 ME k Ozz c\r\nho\r\nms k 2 MR\r\nho\r\nms nn 2 MR\r\nho\r\nms nn 2 MA\r\nho\r\nms nn 1 MP q\r\nh\r\n",
        "ms k 1\r\na\r\nms k 1 MA\r\nb\r\nms k 1 MP\r\nc\r\nmg k v f t\r\nms k 1 MX\r\nd\r\nms k 1 MAA\r\nd\r\nms k 1 M\r\nd\r\nmg k v\r\n",
        "ms k 0\r\n\r\nmg k v s\r\nms k 3\r\nab\r\nmg k v\r\nms k 1 q\r\nabc\r\nmn\r\n",
        "ms k 2\r\nhi\r\nms k 2 C0\r\nho\r\nms k 2 C1\r\nho\r\nms nn 2 C1\r\nho\r\nms k 2 MA C1\r\nho\r\nms k 2 MA C0\r\nho\r\nms nn 2 ME C5\r\nho\r\nmd nn\r\n",
        "ms k 2 k c\r\nhi\r\n", "ms k 2 C@k@ c k\r\nho\r\nms k 2 C@k@ c\r\nha\r\nms k 2 C@k@ I c\r\nhu\r\nmg k v\r\nmg k v\r\n",
        "ms k 2\r\nhi\r\nmd k I T50 k Oq\r\nmg k v t\r\nmg k v\r\nget k\r\nmg k v R30\r\nms k 2\r\nho\r\nmg k v\r\n",
        "ms k 2 T50\r\nhi\r\nmg k R30\r\nmg k R1000\r\nmg k R1000\r\nmg k\r\nmg k R0\r\nmg k R-1\r\nms k 1\r\na\r\nmg k R1000\r\n",
        "md vv q\r\nmg vv N50 v t s f\r\nmg vv N50 v t\r\nmg vv\r\nmd vv\r\nmg vv N50 t T1000 t\r\nmg vv t\r\nmd vv\r\nmg vv T1000 N50\r\nmg vv t h\r\n",
        "md vv q\r\nmg vv N50 q\r\nmg vv q\r\nmg vv N50 q\r\nmd vv q\r\nmd vv q\r\nmd vv k Ox\r\n",
        "ms k 2\r\nhi\r\nmd k C1\r\nmd k C1 q k O4\r\nmd k\r\nmd k\r\nmd k I\r\nmd k v v\r\nmd k y\r\nmd k Cx\r\n",
        "md nn q\r\nma nn\r\nma nn q\r\nma nn k O9\r\nma nn N0\r\nma nn v\r\nma nn v D10\r\nma nn MD D3 v\r\nma nn M- v\r\nma nn M+ v\r\nma nn MI v c t k Oa\r\nma nn MD D1000 v\r\nma nn q\r\nma nn q v\r\n",
        "md nn q\r\nma nn N50 J13 v t k\r\nma nn N50 J13 v t T1000 t\r\nma nn t\r\nma nn C1\r\nma nn C0 v\r\nma nn Mi\r\nma nn D\r\nma nn Jx\r\n",
        "ms k 2\r\nhi\r\nma k\r\nma k q\r\nms k 0\r\n\r\nma k\r\nma k C1\r\nms k 2\r\n10\r\nma k C1\r\nma k v\r\n",
        "ms Zm9v 3 b k\r\nbar\r\nmg Zm9v b k v\r\nmg Zm9v k v\r\nmg foo k v\r\nget foo\r\nme Zm9v b\r\nme foo\r\nmd Zm9v b k\r\nmg Zm9v b k\r\nma Zm9v b k\r\n",
        "mg Zm9 b\r\nmg ==== b\r\nmg Z-m9v b k\r\nmd Zm9 b\r\nma Zm9 b\r\nme Zm9 b\r\nms Zm9 2 b\r\nhi\r\nmn\r\n",
        "mg k v v\r\nmg k y\r\nmg k T\r\nmg k Tx\r\nmg k Tx Jx\r\nmg k F\r\nmg k Tx F\r\nmg k Fx Tx\r\nmg k M\r\nmg k \u{e9}\r\n",
        "ms k 2 v v\r\nhi\r\nms k 2 y\r\nget k\r\nms k 2 T\r\nhi\r\nms k 2 Fx\r\nhi\r\nms k 2 F4294967295\r\nhi\r\nmg k f\r\n",
        "ms k 2\r\nhi\r\nmg k P1 Lx v\r\nmg k I v\r\nmg k J1 D1 v\r\nms k 2 P L\r\nho\r\nms k 2 v t\r\nho\r\n",
        "set k 5 1000 2\r\nhi\r\nmg k f t s v\r\nms k 2 F6 MA\r\nho\r\ngets k\r\nmg k T-1 v\r\nmg k\r\nms k 1 T-1\r\na\r\nmg k\r\n",
        "shutdown\r\nshutdown graceful\r\nshutdown x\r\ncache_memlimit\r\ncache_memlimit x\r\ncache_memlimit 7\r\ncache_memlimit 4294967295\r\ncache_memlimit 7 noreply\r\ncache_memlimit 1 2 3\r\n",
        "ms k 1 MR T1000\r\na\r\ntouch k 50\r\nmg k t h\r\ngat 1000 k\r\nmg k t h u\r\nmg k h\r\n",
        "ms u 1\r\na\r\nmg u u h\r\nmg u u h\r\nmg u h\r\nmg u h\r\nms u 1\r\nb\r\nmg u h\r\n",
        "set \u{1}a 0 0 1\r\n1\r\nmg \u{1}a k v\r\nme \u{1}a\r\nma \u{1}a k v\r\nmg \u{1}\u{7f} k N30\r\nmg \u{1}\u{7f} k\r\nms AWE= 1 b k\r\nx\r\nmg \u{1}a k v\r\nme \u{1}a\r\n",
    ]
    .map(str::to_owned)
    .to_vec();
    cases.extend([
        format!("ms {key} 1 k\r\n1\r\nmg {key} k v\r\nma {key} k v\r\nmd {key} k\r\n"),
        format!("mg {long}\r\nmd {long}\r\nma {long}\r\nme {long}\r\n"),
        format!("mg k{many}\r\nmd k{many}\r\nma k{many}\r\nmg k{}\r\n", " x".repeat(40)),
        format!("mg k O{0}\r\nmg nope O{0}\r\nms k 2 O{0}\r\nhi\r\nmd k O{0}\r\n", "x".repeat(32)),
        format!("ms k 2 O{0}\r\nhi\r\nmg k O{0}\r\nma k O{0}\r\n", "x".repeat(31)),
        format!("ms k 2\r\nhi\r\nms k 1048577\r\n{large}mg k\r\n"),
        format!("ms k 2\r\nhi\r\nms k 1048577 ME q\r\n{large}mg k\r\n"),
        format!(
            "ms big 1048000 k\r\n{}\r\nmg big v s\r\nms big 1000 MA\r\n{}\r\n",
            "y".repeat(1_048_000),
            "z".repeat(1000)
        ),
    ]);
    let mut sides = (Side::new(memcached.address), Side::new(server.address()));
    for case in &cases {
        compare(&mut sides.0, &mut sides.1, case.as_bytes(), "meta edge case");
    }
}

#[test]
fn items_are_listed_as_memcached_lists_them() {
    let Some(memcached) = Memcached::start() else { return };
    let server = TestServer::start();
    let commands = "set a:b/c%-._~ 7 0 3\r\nabc\r\nset \u{e9} 0 2000000000 2\r\nhi\r\nms AWI= 2 b\r\nhi\r\nget \u{e9}\r\n";
    // Class 1 has all small items there, and all items here.
    for list in ["lru_crawler metadump all\r\n", "lru_crawler metadump hash\r\n"] {
        let lines = [memcached.address, server.address()].map(|address| {
            let mut client = Client::connect(address);
            client.send(commands.as_bytes());
            client.send(b"mn\r\n");
            while client.line() != "MN" {}
            client.send(list.as_bytes());
            let mut lines = BTreeSet::new();
            loop {
                let line = client.line_of_list();
                let same = |word: &&str| {
                    !["la=", "cas=", "cls=", "size="].iter().any(|name| word.starts_with(name))
                };
                let words: Vec<&str> = line.split(' ').filter(same).collect();
                if !lines.insert(words.join(" ")) || line == "END\r\n" {
                    return lines;
                }
            }
        });
        assert_eq!(lines[0], lines[1], "{list}");
        assert!(lines[0].len() > 2, "{list}: {lines:?}");
    }
}

#[test]
fn every_general_figure_of_memcached_has_a_number() {
    let Some(memcached) = Memcached::start() else { return };
    let server = TestServer::start();
    let names = [Client::connect(memcached.address), server.client()].map(|mut client| {
        let stats = client.stats();
        let name = |line: &str| line.split(' ').nth(1).expect("a name").to_owned();
        stats.lines().map(name).collect::<BTreeSet<String>>()
    });
    let missing: Vec<&String> = names[0].difference(&names[1]).collect();
    assert_eq!(missing, ["libevent"], "nothing of that library is here");
}

#[test]
fn commands_are_counted_as_memcached_counts_them() {
    let Some(memcached) = Memcached::start() else { return };
    let server = TestServer::of_cache(|_| {});
    let mut sides = [Client::connect(memcached.address), server.client()];
    let large = "x".repeat(1_048_577);
    let too_large = format!("set a 0 0 1048577\r\n{large}\r\n");
    for stream in [
        "set a 0 0 1\r\n1\r\n",
        "add a 0 0 1\r\n1\r\n",
        "replace b 0 0 1\r\n1\r\n",
        "append a 0 0 1\r\n1\r\n",
        "cas a 0 0 1 1\r\n1\r\n",
        "cas b 0 0 1 1\r\n1\r\n",
        "set a 0 0 1\r\n12\r\n",
        "set a 0 0 1\r\n1\r\n",
        "get a b\r\n",
        "gets a b\r\n",
        "gat 100 a\r\n",
        "gat 100 b\r\n",
        "gats 100 a b\r\n",
        "touch a 100\r\n",
        "touch b 100\r\n",
        "mg a\r\n",
        "mg b\r\n",
        "mg b q\r\n",
        "mg a T30\r\n",
        "mg b T30\r\n",
        "mg c N30\r\n",
        "mg d N30 T30\r\n",
        "mg d N30 T30\r\n",
        "incr b 1\r\n",
        "decr b 1\r\n",
        "decr a 0\r\n",
        "ma b\r\n",
        "ma b MD\r\n",
        "ma n N0\r\n",
        "ma n N0\r\n",
        "ma m MD N0\r\n",
        "ma a C12345\r\n",
        "set t 0 0 1\r\nx\r\n",
        "incr t 1\r\n",
        "ma t\r\n",
        "md a I\r\n",
        "md b I\r\n",
        "md a C12345\r\n",
        "md a\r\n",
        "md a\r\n",
        "delete t\r\n",
        "delete t\r\n",
        "ms a 1\r\n1\r\n",
        "ms a 1 ME\r\n1\r\n",
        "ms a 1 MA\r\n1\r\n",
        "ms a 1 C12345\r\n1\r\n",
        "ms b 1 C1\r\n1\r\n",
        "ms a 1\r\n12\r\n",
        "me a\r\n",
        "me b\r\n",
        "flush_all\r\n",
        &too_large,
    ] {
        let [expected, seen] = sides.each_mut().map(|client| counted(client, stream));
        assert_eq!(seen, expected, "{:.40}", stream);
    }
}

/// What a server has counted of `stream`, and how much of it.
fn counted(client: &mut Client, stream: &str) -> BTreeMap<&'static str, u64> {
    const COUNTERS: [&str; 21] = [
        "cmd_get",
        "cmd_set",
        "cmd_flush",
        "cmd_touch",
        "cmd_meta",
        "get_hits",
        "get_misses",
        "delete_misses",
        "delete_hits",
        "incr_misses",
        "incr_hits",
        "decr_misses",
        "decr_hits",
        "cas_misses",
        "cas_hits",
        "cas_badval",
        "touch_hits",
        "touch_misses",
        "store_too_large",
        "store_no_memory",
        "total_items",
    ];
    let figures = |client: &mut Client| {
        let stats = client.stats();
        COUNTERS.map(|name| {
            let line = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
            line.expect(name).parse::<u64>().expect("a number")
        })
    };
    let before = figures(client);
    client.send(stream.as_bytes());
    client.send(b"mn\r\n");
    while client.line() != "MN" {}
    let grown = figures(client).into_iter().zip(before).map(|(after, before)| after - before);
    COUNTERS.into_iter().zip(grown).filter(|(_, grown)| *grown > 0).collect()
}

#[test]
fn random_meta_commands_answer_as_memcached_does() {
    let Some(memcached) = Memcached::start() else { return };
    let server = TestServer::start();
    let seed =
        std::env::var("ESKER_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x3E7A);
    let mut rng = Rng::from_seed(seed);
    let mut sides = (Side::new(memcached.address), Side::new(server.address()));
    for batch in 0..COMMANDS / BATCH {
        let (mut touched, mut forgotten) = (BTreeSet::new(), BTreeSet::new());
        let mut stream = Vec::new();
        for _ in 0..BATCH {
            let command = match rng.below(5) {
                0 => command(&mut rng, &mut touched),
                _ => meta_command(&mut rng, &mut touched, &mut forgotten),
            };
            stream.extend_from_slice(&command);
        }
        compare(&mut sides.0, &mut sides.1, &stream, &format!("seed {seed}, batch {batch}"));
        touched.retain(|key| key.starts_with("key"));
        for key in touched.into_iter().chain(forgotten) {
            sides.0.cas.remove(&key);
            sides.1.cas.remove(&key);
        }
    }
}

/// A random meta command. What changes a CAS id here and not in memcached (a new expiry, and being
/// told to make an item anew) puts the key in `touched`: no CAS id from before this batch is
/// compared behind it. In `forgotten` are keys whose CAS id is not told again afterwards.
fn meta_command(
    rng: &mut Rng,
    touched: &mut BTreeSet<String>,
    forgotten: &mut BTreeSet<String>,
) -> Vec<u8> {
    let number = rng.index(8);
    let (key, binary) = match number {
        // Numbers, keys in base64, and others.
        0..2 => (format!("n{number}"), false),
        2 => ("Zm9vAA==".to_owned(), true),
        3 => ("/w0K".to_owned(), true),
        _ => (format!("m{number}"), false),
    };
    let is_number = number < 2;
    let mut flags: Vec<String> = Vec::new();
    let mut some = |rng: &mut Rng, flag: &dyn Fn(&mut Rng) -> String, of: u64| {
        let chosen = rng.chance(1, of);
        if chosen {
            flags.push(flag(rng));
        }
        chosen
    };
    let time = |rng: &mut Rng| ["0", "0", "50", "1000", "1000", "2000000000"][rng.index(6)];
    some(rng, &|_: &mut Rng| "q".to_owned(), 5);
    some(rng, &|_: &mut Rng| "P1".to_owned(), 40);
    some(rng, &|_: &mut Rng| "L/x".to_owned(), 40);
    some(rng, &|rng: &mut Rng| format!("O{}", rng.below(1000)), 4);
    let shown =
        some(rng, &|_: &mut Rng| "k".to_owned(), 2) & some(rng, &|_: &mut Rng| "c".to_owned(), 2);
    let mut body = None;
    let verb = match rng.below(20) {
        0..7 => {
            // A number that grows is a new item in memcached, now and then.
            for flag in
                ["v", "s", "f", "l", "u", "t", "h"].into_iter().take(7 - usize::from(is_number))
            {
                some(rng, &|_: &mut Rng| flag.to_owned(), 3);
            }
            let mut wins =
                !is_number && !binary && some(rng, &|rng: &mut Rng| format!("N{}", time(rng)), 5);
            wins |= !is_number
                && some(
                    rng,
                    &|rng: &mut Rng| {
                        format!("R{}", ["30", "100", "100000", "0", "-1"][rng.index(5)])
                    },
                    5,
                );
            wins |= some(rng, &|rng: &mut Rng| format!("T{}", time(rng)), 5);
            // An item that is stale is won without asking.
            wins |= !is_number;
            if wins {
                touched.insert(key.clone());
                forgotten.insert(key.clone());
            }
            "mg"
        }
        7..14 => {
            some(rng, &|rng: &mut Rng| format!("F{}", rng.below(1 << 32)), 3);
            some(rng, &|rng: &mut Rng| format!("T{}", ["0", "50", "1000", "-1"][rng.index(4)]), 3);
            let mode =
                ["MS", "ME", "MA", "MP", "MR", "MX"][rng.index(if is_number { 2 } else { 6 })];
            let plain = !(binary && matches!(mode, "MA" | "MP"));
            let moded = plain && some(rng, &|_: &mut Rng| mode.to_owned(), 2);
            let adds = moded && mode == "ME";
            if !touched.contains(&key) && !adds {
                some(rng, &|_: &mut Rng| format!("C@{key}@"), 3);
                let _ = !is_number && some(rng, &|_: &mut Rng| "I".to_owned(), 2);
            }
            let text = if is_number { rng.below(1000).to_string() } else { value(rng) };
            let wrong = if rng.chance(1, 40) { 1 } else { 0 };
            body = Some((text.len().saturating_sub(wrong), text));
            "ms"
        }
        14..17 => {
            if !is_number && some(rng, &|_: &mut Rng| "I".to_owned(), 2) {
                some(rng, &|rng: &mut Rng| format!("T{}", time(rng)), 3);
            }
            if !touched.contains(&key) {
                some(rng, &|_: &mut Rng| format!("C@{key}@"), 4);
            }
            "md"
        }
        17 if !is_number => {
            flags.clear();
            "me"
        }
        _ if !is_number => {
            return [&b"mn\r\n"[..], b"mg\r\n", b"mg k v v\r\n"][rng.index(3)].to_vec();
        }
        _ => {
            some(rng, &|rng: &mut Rng| format!("N{}", time(rng)), 2);
            some(rng, &|rng: &mut Rng| format!("J{}", rng.below(1000)), 2);
            // Nothing that makes a number shorter.
            if some(rng, &|_: &mut Rng| "MD".to_owned(), 5) {
                flags.push("D0".into());
            } else {
                some(rng, &|rng: &mut Rng| format!("D{}", [0, 1, 7, 1_u64 << 40][rng.index(4)]), 2);
            }
            let mut flag = |flag: &str| {
                if rng.chance(1, 3) {
                    flags.push(flag.into())
                }
            };
            // Not `T`: where the number grows, memcached 1.6.18 sets it on the item that is gone.
            for show in ["v", "t"] {
                flag(show);
            }
            touched.insert(key.clone());
            forgotten.insert(key.clone());
            "ma"
        }
    };
    for index in (1..flags.len()).rev() {
        flags.swap(index, rng.index(index + 1));
    }
    if binary {
        flags.insert(0, "b".into());
    }
    let tells = matches!(verb, "mg" | "ma") && shown && !flags.iter().any(|flag| flag == "q");
    if tells {
        forgotten.remove(&key);
    } else if rng.chance(1, 60) {
        flags.push(["v v", "y", "T", "Jx", "Cx", "!"][rng.index(6)].into());
    }
    let flags: String = flags.iter().map(|flag| format!(" {flag}")).collect();
    match body {
        None => format!("{verb} {key}{flags}\r\n"),
        Some((length, text)) => format!("{verb} {key} {length}{flags}\r\n{text}\r\n"),
    }
    .into_bytes()
}

/// A random command, now and then malformed where both servers agree what that means. A new expiry
/// changes the CAS id here and not in memcached, so `cas` keeps off keys that were touched.
fn command(rng: &mut Rng, touched: &mut BTreeSet<String>) -> Vec<u8> {
    let key = format!("key{}", rng.index(KEYS));
    let noreply = if rng.chance(1, 6) { " noreply" } else { "" };
    let exptime = match rng.below(8) {
        0 => "-1",
        1 => "1000",
        2 => "2000000000",
        _ => "0",
    };
    let text = match rng.below(26) {
        0..6 => {
            let verb = ["set", "set", "set", "add", "replace", "append", "prepend"][rng.index(7)];
            let (flags, value) = (rng.below(1 << 32), value(rng));
            // A length that does not fit the value is told apart in the same way.
            let wrong = if rng.chance(1, 40) { 1 } else { 0 };
            let length = value.len().saturating_sub(wrong);
            format!("{verb} {key} {flags} {exptime} {length}{noreply}\r\n{value}\r\n")
        }
        6..8 if touched.contains(&key) => "version\r\n".to_owned(),
        6..8 => {
            let value = value(rng);
            format!("cas {key} 1 {exptime} {} @{key}@{noreply}\r\n{value}\r\n", value.len())
        }
        8..13 => format!(
            "{} {key}{}\r\n",
            ["get", "gets", "bget"][rng.index(3)],
            format!(" key{}", rng.index(KEYS)).repeat(rng.index(4))
        ),
        13..15 => {
            let other = format!("key{}", rng.index(KEYS));
            touched.extend([key.clone(), other.clone()]);
            format!("{} {exptime} {key} {other}\r\n", ["gat", "gats"][rng.index(2)])
        }
        15..17 => format!("delete {key}{noreply}\r\n"),
        17 => {
            touched.insert(key.clone());
            format!("touch {key} {exptime}{noreply}\r\n")
        }
        // Nothing that makes a number shorter: whether memcached then fills it up with blanks depends
        // on which replies it has sent already.
        18..20 => format!("incr {key} {}{noreply}\r\n", [0, 1, 7, 1_u64 << 40][rng.index(4)]),
        20 => format!("decr {key} 0{noreply}\r\n"),
        21 if rng.chance(1, 20) => format!("flush_all{noreply}\r\n"),
        22 => format!("verbosity 1{noreply}\r\n"),
        23 => "version\r\n".to_owned(),
        24 => [
            "get\r\n",
            "\r\n",
            "bogus\r\n",
            "incr a x\r\n",
            "touch a\r\n",
            "delete a 5\r\n",
            "gat x a\r\n",
            "flush_all x\r\n",
        ][rng.index(8)]
        .to_owned(),
        // Not `get`: there memcached 1.6.18 drops the replies to earlier commands of the same read.
        _ => {
            format!("{} {} 1\r\n", ["touch", "incr"][rng.index(2)], "k".repeat(245 + rng.index(12)))
        }
    };
    text.into_bytes()
}

fn value(rng: &mut Rng) -> String {
    match rng.below(6) {
        0 => String::new(),
        1 => (1 + rng.below(1000)).to_string(),
        // Past 2^63 memcached 1.6.18 reads beyond the value, and may take it for no number.
        2 => (u64::MAX / 4).to_string(),
        3 => "get key1\r\n".repeat(rng.index(4)),
        4 => "v".repeat(rng.index(30_000)),
        _ => "v".repeat(rng.index(40)),
    }
}
