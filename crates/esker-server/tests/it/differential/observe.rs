//! What is counted by prefix, and what watchers are told: the same of both servers.

use super::{BATCH, COMMANDS, Memcached, Side, about, command, compare, meta_command};
use crate::harness::{Client, TestServer};
use esker_base::rng::Rng;
use std::collections::BTreeSet;

#[test]
fn random_commands_are_counted_by_prefix_as_memcached_does() {
    // Of a key, what stands before its `y`.
    let Some(memcached) = Memcached::with(&["-D", "y"]) else { return };
    let server = TestServer::with(|config| config.prefix_delimiter = Some(b'y'));
    let mut rng = Rng::from_seed(0xDE7A);
    let mut sides = (Side::new(memcached.address), Side::new(server.address()));
    for batch in 0..COMMANDS / BATCH / 10 {
        let mut touched = BTreeSet::new();
        let mut stream: Vec<u8> = Vec::new();
        for _ in 0..BATCH {
            let command = match rng.below(4) {
                0 => meta_command(&mut rng, &mut touched, &mut BTreeSet::new()),
                _ => command(&mut rng, &mut touched),
            };
            stream.extend(command);
        }
        stream.extend_from_slice(b"set ny 0 0 1\r\n1\r\nincr ny 1\r\ntouch ny 0\r\nmg ny v\r\nma ny v\r\nmd ny\r\nstats detail dump\r\n");
        if rng.chance(1, 20) {
            stream.extend_from_slice(b"stats reset\r\nget kay key1\r\nstats detail dump\r\n");
        }
        compare(&mut sides.0, &mut sides.1, &stream, &format!("batch {batch}"));
        sides.0.cas.clear();
        sides.1.cas.clear();
    }
    let (told, _) = sides.1.replies(b"stats detail dump\r\n");
    assert!(told.contains("PREFIX ke get "), "{told}");
}

#[test]
fn watchers_are_told_what_memcached_tells_them() {
    let Some(memcached) = Memcached::start() else { return };
    let server = TestServer::of_cache(|_| {});
    let key = "k".repeat(250);
    let streams = [
        "get none\r\n",
        "set a 0 0 2\r\nhi\r\nset a 0 1000 3 noreply\r\nabc\r\nadd a 0 0 1\r\nx\r\nadd b 0 50 1\r\nx\r\n",
        "replace none 0 0 1\r\nx\r\nreplace a 1 0 2\r\n12\r\nappend a 0 0 3\r\nabc\r\nprepend none 0 0 3\r\nabc\r\nappend none 0 1000 1\r\nx\r\n",
        "set t 0 1000 1\r\n1\r\nappend t 0 50 1\r\n2\r\n",
        "cas a 0 0 1 1\r\nx\r\n",
        "cas none 0 1000 1 1\r\nx\r\n",
        "gets a\r\n",
        "cas a 0 50 4 @a@\r\nmore\r\n",
        "touch a 100\r\ntouch none 1\r\n",
        "gat 0 a\r\n",
        "gats 0 none\r\n",
        "incr a 1\r\nset n 0 0 2\r\n99\r\nincr n 1\r\ndecr n 10\r\n",
        "incr none 1\r\n",
        "delete b\r\ndelete b\r\ndelete b noreply\r\n",
        "mg a\r\nmg a T1000\r\nmg a v\r\n",
        "mg none\r\n",
        "mg made N100\r\nmg made v\r\nme made\r\n",
        "me none\r\n",
        "ms m 2\r\nhi\r\nms m 2 T1000 q\r\nho\r\nms m 1 ME\r\nx\r\nms m 1 MA\r\nx\r\nms m 1 MP\r\nx\r\nms m 1 MR\r\nx\r\nms m 1 C1\r\nx\r\nms m 1 MR C1\r\nx\r\n",
        "ms none 1 C1\r\nx\r\n",
        "ms none 1 MA\r\nx\r\n",
        "ms old 1 T1000\r\nx\r\nms old 2 I C1 T50\r\nyy\r\n",
        "md m C1\r\nmd m I\r\nmd m\r\nmd m q\r\n",
        "ma n\r\nma n MD D5 v\r\nma n C1\r\nma a\r\n",
        "ma none\r\n",
        "ma c N100 J17\r\nma c N100 J17\r\n",
        "ms Zm9vAA== 2 b\r\nhi\r\nmg Zm9vAA== b v\r\n",
        "set n,f/%\u{e9}~ 0 0 1\r\n1\r\n",
        "set a 0 0 3\r\nabcdef\r\n",
        "set a x 0 1\r\n1\r\n",
        "set over 0 -5 1\r\n1\r\n",
    ];
    let streams =
        streams.into_iter().map(str::to_owned).chain([format!("set {key} 0 0 1\r\n1\r\n")]);
    let mut sides = [memcached.address, server.address()].map(|address| {
        let mut watcher = Client::connect(address);
        watcher.send(b"watch fetchers mutations\r\n");
        watcher.check_receive(b"OK\r\n");
        (Side::new(address), watcher)
    });
    for stream in streams {
        let [expected, seen] = sides.each_mut().map(|(side, watcher)| {
            side.replies(stream.as_bytes());
            // The last two commands are the harness's: `set ~mark~`, and `get` of that.
            let stored = |told: &[String]| {
                told.iter().any(|line| line.starts_with("type=item_store key=~mark~ "))
            };
            let found = "type=item_get key=~mark~ status=found clsid=# size=6";
            let mut told: Vec<String> = Vec::new();
            while !stored(&told) || told.last().is_none_or(|line| line != found) {
                told.push(event(&watcher.line_of_list()));
            }
            // Of those on other keys the order is another one where they take effect in another.
            told.sort_by_key(|line| line.split(' ').nth(1).map(str::to_owned));
            told
        });
        assert_eq!(seen, expected, "{stream}");
    }
}

/// A line of a watcher, without what depends on time, connection and classes of sizes.
fn event(line: &str) -> String {
    let words = line.trim_end().split(' ').filter_map(|word| match word.split_once('=') {
        Some(("ts" | "gid" | "cfd", _)) => None,
        Some(("clsid", _)) => Some("clsid=#".to_owned()),
        // What is over already wraps around there.
        Some(("ttl", ttl)) => Some(match ttl.parse::<u64>() {
            Ok(2_000_000_000..) => "ttl=0".to_owned(),
            _ => format!("ttl={}", about(ttl)),
        }),
        _ => Some(word.to_owned()),
    });
    words.collect::<Vec<_>>().join(" ")
}
