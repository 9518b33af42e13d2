//! Meta commands: what memcached 1.6.18 does not have yet, what differs, and many clients at once.

use crate::harness::{Client, TestServer};
use esker::Durability;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Clients that race.
const CLIENTS: u64 = 8;
const ROUNDS: u64 = 200;

fn server_with(lines: &[u8]) -> (TestServer, Client) {
    let server = TestServer::start();
    let mut client = server.client();
    client.say(lines);
    (server, client)
}

/// The argument of a flag in a reply.
fn flag(reply: &str, flag: char) -> u64 {
    let word = reply.split_whitespace().find_map(|word| word.strip_prefix(flag));
    word.unwrap_or_else(|| panic!("no {flag} in {reply:?}")).parse().expect("a number")
}

#[test]
fn a_client_may_choose_the_cas_id_and_it_is_the_one_that_counts() {
    let (server, mut client) = server_with(b"");
    client.check_chat(b"ms k 2 E99 c\r\nhi\r\n", "HD c99\r\n");
    client.check_chat(
        b"mg k c v s\r\ngets k\r\nget k\r\n",
        "VA 2 c99 s2\r\nhi\r\nVALUE k 0 2 99\r\nhi\r\nEND\r\nVALUE k 0 2\r\nhi\r\nEND\r\n",
    );
    client.check_chat(b"cas k 0 0 1 98\r\nx\r\nms k 2 C98\r\nho\r\n", "EXISTS\r\nEX\r\n");
    // The version of the record is nobody's CAS id.
    let version = server.store.get(b"k").expect("get").expect("there").version().0;
    client.check_chat(format!("ms k 2 C{version}\r\nho\r\n").as_bytes(), "EX\r\n");
    client.check_chat(b"touch k 0\r\nmg k c\r\n", "TOUCHED\r\nHD c99\r\n");
    client.check_chat(
        b"ms k 2 C99 E7 c\r\nho\r\nms k 1 MA C7 E8 c s\r\n!\r\nmg k v c\r\n",
        "HD c7\r\nHD c8 s3\r\nVA 3 c8\r\nho!\r\n",
    );
    client.check_chat(
        b"md k I E5\r\nmg k c\r\nms k 1 I C4 E6\r\nx\r\nmg k v c\r\n",
        "HD\r\nHD c5 X W\r\nHD\r\nVA 1 c6 Z X\r\nx\r\n",
    );
    client.check_chat(
        b"ms n 1 E3\r\n5\r\nma n E4 c v\r\nma n v C3\r\nmd n C4\r\nmg n N0 E9 c\r\n",
        "HD\r\nVA 1 c4\r\n6\r\nEX\r\nHD\r\nHD c9 W\r\n",
    );
    // A plain write gives the item a CAS id of the server's again.
    client
        .check_chat(b"append k 0 0 1\r\ny\r\nget k\r\n", "STORED\r\nVALUE k 0 2\r\nxy\r\nEND\r\n");
    let (reply, _) = client.say(b"mg k c\r\n");
    assert!(flag(&String::from_utf8_lossy(&reply), 'c') > 99 - 90);
    assert_eq!(&*server.store.get(b"k").expect("get").expect("there"), b"xy");
}

#[test]
fn what_newer_memcached_documents_works() {
    let (_server, mut client) = server_with(b"");
    client.check_chat(b"ms k 2 s\r\nhi\r\nms k 2 MA s\r\nho\r\n", "HD s2\r\nHD s4\r\n");
    client.check_chat(b"ms a 2 MA N100 F7\r\nhi\r\nmg a v f\r\nms p 1 MP N0\r\nx\r\nms p 1 MP N0\r\ny\r\nmg p v t\r\n", "HD\r\nVA 2 f7\r\nhi\r\nHD\r\nHD\r\nVA 2 t-1\r\nyx\r\n");
    client
        .check_chat(b"ms k 2 E5\r\nhi\r\nmg k v C5\r\nmg k v C6\r\n", "HD\r\nHD\r\nVA 2\r\nhi\r\n");
    client.check_chat(
        b"ms k 2 F7\r\nhi\r\nmd k x\r\nmg k v f t\r\nmd k x I T100 q\r\nmg k v\r\nmd nope x\r\n",
        "HD\r\nHD\r\nVA 0 f0 t-1\r\n\r\nVA 0 X W\r\n\r\nNF\r\n",
    );
}

#[test]
fn a_new_item_was_never_fetched_and_an_emptied_one_keeps_its_cas() {
    let (_server, mut client) = server_with(b"");
    // A number that stays as long is the item that it was, one that grows is a new one.
    client.check_chat(
        b"set n 0 0 1\r\n8\r\nmg n\r\nincr n 1\r\nmg n h\r\n",
        "STORED\r\nHD\r\n9\r\nHD h1\r\n",
    );
    client.check_chat(
        b"incr n 1\r\nmg n h\r\nma n D90\r\nmg n h\r\n",
        "10\r\nHD h0\r\nHD\r\nHD h0\r\n",
    );
    client.check_chat(
        b"ms k 2 E99\r\nhi\r\nmg k\r\nmd k x\r\nmg k c h v\r\n",
        "HD\r\nHD\r\nHD\r\nVA 0 c99 h0\r\n\r\n",
    );
    client.check_chat(b"ms k 1 C99\r\nz\r\nmd k x E7\r\nmg k c\r\n", "HD\r\nHD\r\nHD c7\r\n");
    // Also one that the server chose; not of one that is told to be stale.
    let (reply, _) = client.say(b"ms k 1 c\r\nz\r\n");
    let before = flag(&String::from_utf8_lossy(&reply), 'c');
    client.check_chat(b"md k x\r\nmg k c\r\n", &format!("HD\r\nHD c{before}\r\n"));
    client.check_chat(b"md k x I\r\n", "HD\r\n");
    let (reply, _) = client.say(b"mg k c\r\n");
    assert_ne!(flag(&String::from_utf8_lossy(&reply), 'c'), before);
}

#[test]
fn times_behind_the_year_2038_are_those_of_the_classic_commands() {
    let (_server, mut client) = server_with(b"");
    let date = 5_000_000_000_u64;
    let near = |told: u64| (date / 2..date).contains(&told);
    client.check_chat(format!("ms s 1 T{date}\r\n1\r\n").as_bytes(), "HD\r\n");
    client.check_chat(format!("set c 0 {date} 1\r\n1\r\n").as_bytes(), "STORED\r\n");
    for line in [
        "mg s t".to_owned(),
        "mg c t".to_owned(),
        format!("mg n N{date} t"),
        format!("ma a N{date} t"),
        format!("ma s T{date} t"),
        format!("mg c T{date} t"),
    ] {
        let (reply, _) = client.say(format!("{line}\r\n").as_bytes());
        let reply = String::from_utf8_lossy(&reply).into_owned();
        assert!(near(flag(&reply, 't')), "{line}: {reply}");
    }
    let later = date + 1;
    client.check_chat(format!("mg s R{later}\r\nmd c I T{date}\r\n").as_bytes(), "HD W\r\nHD\r\n");
}

#[test]
fn keys_in_base64_are_the_same_keys_in_one_batch() {
    let (_server, mut client) = server_with(b"");
    // Requests on one key take effect in their order, however the key is written (N2).
    for round in 0..50 {
        let stream = format!(
            "set foo 0 0 2\r\n{round:02}\r\nmg Zm9v b v\r\nms Zm9v 1 b\r\nx\r\nget foo\r\nmd Zm9v b\r\nget foo\r\n"
        );
        let expected = format!(
            "STORED\r\nVA 2\r\n{round:02}\r\nHD\r\nVALUE foo 0 1\r\nx\r\nEND\r\nHD\r\nEND\r\n"
        );
        client.check_chat(stream.as_bytes(), &expected);
    }
    // Bytes that would break a line never leave as they are.
    client.check_chat(
        b"ms Zm9vDQpnZXQ= 1 b k\r\nx\r\nmg Zm9vDQpnZXQ= b k v\r\nmg CiAA b k N0\r\n",
        "HD kZm9vDQpnZXQ= b\r\nVA 1 kZm9vDQpnZXQ= b\r\nx\r\nHD kCiAA b W\r\n",
    );
}

#[test]
fn a_key_that_another_way_stored_with_a_line_end_is_shown_in_base64() {
    let (server, mut client) = server_with(b"");
    server.store.put(b"foo\r\nget", b"x").expect("put");
    client.check_chat(b"mg Zm9vDQpnZXQ= b k v\r\n", "VA 1 kZm9vDQpnZXQ= b\r\nx\r\n");
}

#[test]
fn of_many_clients_one_wins_and_the_others_are_told() {
    let (server, mut client) = server_with(b"");
    for round in 0..ROUNDS / 4 {
        for (prepare, ask) in [
            (format!("md k{round} q\r\n"), format!("mg k{round} N100\r\n")),
            (format!("ms k{round} 1\r\nx\r\nmd k{round} I q\r\n"), format!("mg k{round}\r\n")),
            (format!("ms k{round} 1 T10\r\nx\r\n"), format!("mg k{round} R30\r\n")),
        ] {
            client.say(prepare.as_bytes());
            let wins = AtomicU64::new(0);
            std::thread::scope(|scope| {
                for _ in 0..CLIENTS {
                    scope.spawn(|| {
                        let (reply, _) = server.client().say(ask.as_bytes());
                        let reply = String::from_utf8_lossy(&reply).into_owned();
                        assert!(reply.contains('W') != reply.contains('Z'), "{reply}");
                        wins.fetch_add(reply.contains('W').into(), Ordering::Relaxed);
                    });
                }
            });
            assert_eq!(wins.load(Ordering::Relaxed), 1, "{ask}");
        }
    }
}

#[test]
fn numbers_and_texts_of_many_clients_lose_nothing() {
    let (server, mut client) = server_with(b"set n 0 0 1\r\n0\r\nset t 0 0 0\r\n\r\n");
    std::thread::scope(|scope| {
        for index in 0..CLIENTS {
            let server = &server;
            scope.spawn(move || {
                let mut client = server.client();
                for round in 0..ROUNDS {
                    let step =
                        ["incr n 1\r\n", "ma n\r\n"][usize::try_from(round % 2).expect("small")];
                    let letter = char::from(b'a' + u8::try_from(index).expect("small"));
                    let text = match round % 4 {
                        0 => format!("append t 0 0 1 noreply\r\n{letter}\r\n"),
                        1 => format!("ms t 1 MP q\r\n{letter}\r\n"),
                        2 => "gat 100 t\r\n".to_owned(),
                        _ => "touch t 0\r\n".to_owned(),
                    };
                    client.say(format!("{step}{text}").as_bytes());
                }
            });
        }
    });
    let total = CLIENTS * ROUNDS;
    let text = server.store.get(b"t").expect("get").expect("there");
    let mut letters = BTreeMap::<u8, u64>::new();
    text.iter().for_each(|letter| *letters.entry(*letter).or_default() += 1);
    assert_eq!(letters.len() as u64, CLIENTS);
    assert!(letters.values().all(|count| *count == ROUNDS / 2), "{letters:?}");
    let digits = total.to_string().len();
    client.check_chat(b"mg n v\r\n", &format!("VA {digits}\r\n{total}\r\n"));
}

#[test]
fn a_quiet_flood_is_answered_by_its_end_alone() {
    let (server, mut client) = server_with(b"ms k 2\r\nhi\r\n");
    let flood = b"mg nope v q\r\nms k 2 q\r\nho\r\nmd nope2 q k\r\n".repeat(2000);
    let (reply, closed) = client.say(&flood);
    assert!(!closed);
    assert_eq!(reply, b"NF knope2\r\n".repeat(2000));
    let flood = b"mg nope v q\r\n".repeat(50_000);
    client.check_chat(&[&flood[..], b"mn\r\n"].concat(), "MN\r\n");
    assert_eq!(server.server.connections(), 1);
}

#[test]
fn hostile_meta_lines_cost_their_line_and_no_more() {
    let (server, mut client) = server_with(b"");
    let many = " O".repeat(900);
    client.check_chat(
        format!("mg k{many}\r\nmd k{many}\r\n").as_bytes(),
        "CLIENT_ERROR options flags are too long\r\nCLIENT_ERROR options flags too long\r\n",
    );
    // The data block of a refused `ms` is no command.
    server.store.put(b"victim", b"1").expect("put");
    let block = "\r\nmd victim\r\n";
    for line in [
        format!("ms k {} y", block.len()),
        format!("ms k {} MXX q", block.len()),
        format!("ms k {} v v", block.len()),
        format!("ms k {}{}", block.len(), " k".repeat(30)),
        format!("ms k {} O{}", block.len(), "x".repeat(500)),
        format!("ms {} {}", "k".repeat(251), block.len()),
        format!("ms Zm9 {} b", block.len()),
        format!("ms k {} T99999999999999999999", block.len()),
    ] {
        let (reply, closed) = client.say(format!("{line}\r\n{block}\r\n").as_bytes());
        let reply = String::from_utf8_lossy(&reply).into_owned();
        assert!(reply.starts_with("CLIENT_ERROR") && reply.lines().count() == 1, "{line}: {reply}");
        assert!(!closed, "{line}");
    }
    for line in ["ms", "ms k", "ms k x", "ms k -1", "ms k 4294967295", "ms k 18446744073709551617"]
    {
        let (_, closed) = server.client().say(format!("{line}\r\nmd victim\r\n").as_bytes());
        assert!(closed, "{line}");
    }
    let endless = format!("mg {}", "k".repeat(3000));
    server.client().check_last_words(endless.as_bytes(), "CLIENT_ERROR line too long\r\n");
    assert!(server.store.get(b"victim").expect("get").is_some(), "a payload ran as a command");
}

/// Something is under way at every moment, and the one who touches does not begin with what is durable for ever.
#[test]
fn who_touches_a_counter_gets_along_beside_those_who_increment_it() {
    let server = TestServer::with_durability(Durability::Sync, |_| {});
    let mut client = server.client();
    client.check_chat(b"set k 0 0 1\r\n0\r\n", "STORED\r\n");
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = server.client();
                while !ended.load(Ordering::Relaxed) {
                    let (reply, _) = client.say(b"incr k 1\r\n");
                    assert!(reply[0].is_ascii_digit(), "{reply:?}");
                }
            });
        }
        for _ in 0..20 {
            client.check_chat(b"mg k T60\r\n", "HD\r\n");
        }
        ended.store(true, Ordering::Relaxed);
    });
}
