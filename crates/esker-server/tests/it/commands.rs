//! What each command answers.

use crate::harness::{TestServer, set_clock};
use esker::EngineKind;
use esker_base::clock::ManualClock;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn values_come_back_with_their_flags() {
    let server = TestServer::start();
    let mut client = server.client();
    client.check_chat(b"set a 7 0 5\r\nhello\r\n", "STORED\r\n");
    client.check_chat(b"get a\r\n", "VALUE a 7 5\r\nhello\r\nEND\r\n");
    client.check_chat(
        b"get nope a nope a\r\n",
        "VALUE a 7 5\r\nhello\r\nVALUE a 7 5\r\nhello\r\nEND\r\n",
    );
    client.check_chat(b"set e 0 0 0\r\n\r\nget e\r\n", "STORED\r\nVALUE e 0 0\r\n\r\nEND\r\n");
    client.check_chat(
        b"set b 0 0 4\r\n\r\n\r\n\r\nget b\r\n",
        "STORED\r\nVALUE b 0 4\r\n\r\n\r\n\r\nEND\r\n",
    );
}

#[test]
fn conditions_decide_what_is_stored() {
    let server = TestServer::start();
    let mut client = server.client();
    client.check_chat(b"replace k 0 0 1\r\na\r\n", "NOT_STORED\r\n");
    client.check_chat(b"add k 1 0 1\r\nb\r\nadd k 2 0 1\r\nc\r\n", "STORED\r\nNOT_STORED\r\n");
    client.check_chat(b"append k 9 0 1\r\nd\r\nprepend k 9 0 1\r\n_\r\n", "STORED\r\nSTORED\r\n");
    client.check_chat(b"get k\r\n", "VALUE k 1 3\r\n_bd\r\nEND\r\n");
    client.check_chat(b"append nope 0 0 1\r\nd\r\n", "NOT_STORED\r\n");
    client.check_chat(b"delete k\r\ndelete k\r\n", "DELETED\r\nNOT_FOUND\r\n");
}

#[test]
fn cas_stores_only_over_what_the_client_saw() {
    let server = TestServer::start();
    let mut client = server.client();
    client.check_chat(b"set k 0 0 1\r\na\r\n", "STORED\r\n");
    let (reply, _) = client.say(b"gets k\r\n");
    let reply = String::from_utf8(reply).expect("text");
    let id: u64 = reply.split_whitespace().nth(4).and_then(|id| id.parse().ok()).expect("a CAS id");
    client.check_chat(format!("cas k 0 0 1 {id}\r\nb\r\n").as_bytes(), "STORED\r\n");
    client.check_chat(format!("cas k 0 0 1 {id}\r\nc\r\n").as_bytes(), "EXISTS\r\n");
    client.check_chat(format!("cas nope 0 0 1 {id}\r\nc\r\n").as_bytes(), "NOT_FOUND\r\n");
    client.check_chat(b"get k\r\n", "VALUE k 0 1\r\nb\r\nEND\r\n");
}

#[test]
fn numbers_go_up_and_wrap_and_go_down_and_stop() {
    let server = TestServer::start();
    let mut client = server.client();
    client.check_chat(b"set n 3 0 2\r\n10\r\nincr n 5\r\ndecr n 6\r\n", "STORED\r\n15\r\n9\r\n");
    client.check_chat(b"get n\r\n", "VALUE n 3 2\r\n9 \r\nEND\r\n");
    client.check_chat(
        b"incr n 1\r\ndecr n 100\r\nincr n 18446744073709551615\r\nincr n 1\r\n",
        "10\r\n0\r\n18446744073709551615\r\n0\r\n",
    );
    client.check_chat(b"incr nope 1\r\n", "NOT_FOUND\r\n");
    client.check_chat(
        b"set t 0 0 1\r\nx\r\nincr t 1\r\n",
        "STORED\r\nCLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
    );
}

#[test]
fn a_number_with_very_many_blanks_behind_it_is_one_like_any_other() {
    let server = TestServer::start();
    let mut client = server.client();
    for length in [65_535, 65_536, 1 << 20] {
        let blanks = " ".repeat(length - 1);
        let set = format!("set n 0 0 {length}\r\n1{blanks}\r\n");
        client.check_chat(set.as_bytes(), "STORED\r\n");
        client.check_chat(b"incr n 1\r\nma n v\r\n", "2\r\nVA 1\r\n3\r\n");
        let reply = format!("VALUE n 0 {length}\r\n3{blanks}\r\nEND\r\n");
        client.check_chat(b"get n\r\n", &reply);
    }
    assert!(server.server.stop(Duration::from_secs(5)), "everything is answered");
}

#[test]
fn clients_that_want_no_reply_get_none_not_even_of_errors() {
    let server = TestServer::start();
    let mut client = server.client();
    let long = format!("set {} 0 0 2 noreply\r\nxx\r\n", "k".repeat(251));
    client.check_chat(b"set k 0 0 1 noreply\r\n5\r\nincr k 1 noreply\r\ntouch k 0 noreply\r\n", "");
    client.check_chat(b"get k\r\n", "VALUE k 0 1\r\n6\r\nEND\r\n");
    client.check_chat(
        b"delete k noreply\r\ndelete k x noreply\r\nincr k x noreply\r\nverbosity 1 noreply\r\n",
        "",
    );
    client.check_chat(b"set k 0 0 3 noreply\r\nabc__", "");
    client.check_chat(long.as_bytes(), "");
    client.check_chat(b"flush_all noreply\r\nflush_all x noreply\r\nget k\r\n", "END\r\n");
}

#[test]
fn a_malformed_data_block_is_told_and_the_stream_resumes_behind_its_length() {
    let server = TestServer::start();
    let mut client = server.client();
    client.check_chat(
        b"set k 0 0 3\r\nabcdefg\r\nversion\r\n",
        &format!("CLIENT_ERROR bad data chunk\r\nERROR\r\nVERSION {}\r\n", esker_server::VERSION),
    );
    client.check_chat(b"get k\r\n", "END\r\n");
}

#[test]
fn lines_that_leave_the_length_open_end_the_connection() {
    let server = TestServer::start();
    let bad = "CLIENT_ERROR bad command line format\r\n";
    for (line, words) in [
        ("set k 0 0 x", bad),
        ("set k 0 0 -1", bad),
        ("set k 0 0 +5", bad),
        ("set k 0 0 4294967297", bad),
        ("set my key 0 0 9", bad),
        ("set a key with blanks 0 0 9", "ERROR\r\n"),
        ("set 0 0 9", "ERROR\r\n"),
        ("set my 1 0 0 9", bad),
        ("cas my 1 0 0 9 7", bad),
    ] {
        server.store.put(b"victim", b"1").expect("put");
        server.client().check_last_words(format!("{line}\r\ndelete victim\r\n").as_bytes(), words);
        assert!(
            server.store.get(b"victim").expect("get").is_some(),
            "a payload ran as a command: {line}"
        );
    }
}

#[test]
fn lines_with_other_mistakes_are_told_and_their_blocks_swallowed() {
    let server = TestServer::start();
    let mut client = server.client();
    for line in ["set a -1 0 13", "set a 4294967296 0 13", "set a 0 1e5 13", "cas a 0 0 13 x"] {
        server.store.put(b"victim", b"1").expect("put");
        let bytes = format!("{line}\r\ndelete victim\r\nmn\r\n");
        client.check_chat(bytes.as_bytes(), "CLIENT_ERROR bad command line format\r\nMN\r\n");
        assert!(server.store.get(b"victim").expect("get").is_some(), "{line}");
    }
    client
        .check_chat(b"set a 0 0 1 loud\r\nx\r\nget a\r\n", "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn flush_all_leaves_nothing() {
    let server = TestServer::start();
    let mut client = server.client();
    client.check_chat(b"set a 0 0 1\r\n1\r\nflush_all\r\nget a\r\n", "STORED\r\nOK\r\nEND\r\n");
    client.check_chat(
        b"set a 0 0 1\r\n1\r\nflush_all 1000\r\nget a\r\n",
        "STORED\r\nOK\r\nVALUE a 0 1\r\n1\r\nEND\r\n",
    );
    client.check_chat(b"flush_all -1\r\nget a\r\n", "OK\r\nEND\r\n");
}

#[test]
fn a_delayed_flush_takes_place_when_its_time_has_come() {
    let clock = Arc::new(ManualClock::new(1_000_000_000));
    let server = TestServer::with(|config| set_clock(config, &clock));
    let mut client = server.client();
    client.check_chat(
        b"set a 0 0 1\r\n1\r\nflush_all 10\r\nget a\r\n",
        "STORED\r\nOK\r\nVALUE a 0 1\r\n1\r\nEND\r\n",
    );
    clock.advance(Duration::from_secs(10));
    for _ in 0..1000 {
        if client.say(b"get a\r\n").0 == b"END\r\n" {
            return;
        }
        esker_trt::sleep(Duration::from_millis(10));
    }
    panic!("the value is still there");
}

#[test]
fn what_is_stored_from_the_moment_on_at_which_a_flush_is_due_stays() {
    let clock = Arc::new(ManualClock::new(1_000_000_000));
    let server = TestServer::with(|config| set_clock(config, &clock));
    let mut client = server.client();
    let large = "v".repeat(100_000);
    let set = format!("set c 0 0 {}\r\n{large}\r\n", large.len());
    for _ in 0..3 {
        client.check_chat(b"set a 0 0 1\r\n1\r\nflush_all 10\r\n", "STORED\r\nOK\r\n");
        clock.advance(Duration::from_secs(10));
        client.check_chat(b"get a\r\nset b 0 0 1\r\n1\r\n", "END\r\nSTORED\r\n");
        client.check_chat(b"flush_all 10\r\n", "OK\r\n");
        clock.advance(Duration::from_secs(10));
        // Its data block does not come with its command.
        client.check_chat(set.as_bytes(), "STORED\r\n");
        client.check_chat(b"get b\r\nset b 0 0 1\r\n2\r\n", "END\r\nSTORED\r\n");
        esker_trt::sleep(Duration::from_millis(500));
        client.check_chat(b"get b\r\n", "VALUE b 0 1\r\n2\r\nEND\r\n");
        let reply = format!("VALUE c 0 {}\r\n{large}\r\nEND\r\n", large.len());
        client.check_chat(b"get c\r\n", &reply);
    }
}

#[test]
fn a_value_is_gone_once_its_time_is_over() {
    let clock = Arc::new(ManualClock::new(1_000_000_000));
    let server = TestServer::with(|config| set_clock(config, &clock));
    let mut client = server.client();
    client
        .check_chat(b"set r 0 100 1\r\n1\r\nset d 0 1000000200 1\r\n2\r\n", "STORED\r\nSTORED\r\n");
    client.check_chat(b"get r d\r\n", "VALUE r 0 1\r\n1\r\nVALUE d 0 1\r\n2\r\nEND\r\n");
    clock.advance(Duration::from_secs(99));
    client.check_chat(b"touch d 401\r\nget r\r\n", "TOUCHED\r\nVALUE r 0 1\r\n1\r\nEND\r\n");
    clock.advance(Duration::from_secs(1));
    client.check_chat(b"get r d\r\n", "VALUE d 0 1\r\n2\r\nEND\r\n");
    clock.advance(Duration::from_secs(400));
    client.check_chat(b"get d\r\ntouch d 0\r\n", "END\r\nNOT_FOUND\r\n");
}

#[test]
fn times_go_on_when_the_clock_of_the_machine_is_set_back() {
    for engine in EngineKind::ALL {
        let clock = Arc::new(ManualClock::new(1_000_000_000));
        let server = TestServer::on_engine(engine, |config| set_clock(config, &clock));
        let mut client = server.client();
        client.check_chat(b"set old 0 100 1\r\n1\r\nget a\r\n", "STORED\r\nEND\r\n");
        clock.set_unix_seconds(1_000_000_000 - 3600);
        client.check_chat(
            b"set a 0 60 1\r\n1\r\nget a\r\nadd l 0 30 1\r\n1\r\nadd l 0 30 1\r\n2\r\n",
            "STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\nSTORED\r\nNOT_STORED\r\n",
        );
        client.check_chat(b"touch old 200\r\nmg a t T60\r\n", "TOUCHED\r\nHD t60\r\n");
        client.check_chat(b"gat 60 a\r\n", "VALUE a 0 1\r\n1\r\nEND\r\n");
        clock.advance(Duration::from_secs(29));
        client.check_chat(b"add l 0 30 1\r\n3\r\nmg a t l\r\n", "NOT_STORED\r\nHD t31 l29\r\n");
        clock.advance(Duration::from_secs(1));
        client.check_chat(b"add l 0 30 1\r\n3\r\n", "STORED\r\n");
        clock.advance(Duration::from_secs(30));
        client.check_chat(b"get a\r\nmg old t\r\n", "END\r\nHD t140\r\n");
        client.check_chat(b"flush_all 10\r\nmg old\r\n", "OK\r\nHD\r\n");
        clock.advance(Duration::from_secs(10));
        client.check_chat(b"mg old\r\nset b 0 60 1\r\n1\r\n", "EN\r\nSTORED\r\n");
        // It follows where that of the machine is set forward; how long something took is another matter.
        clock.set_unix_seconds(1_000_000_000 + 80);
        client.check_chat(b"mg b t l\r\n", "HD t50 l0\r\n");
        clock.set_unix_seconds(1_000_000_000 + 130);
        client.check_chat(b"mg b\r\n", "EN\r\n");
        assert!(client.stats().contains("STAT uptime 70\r\nSTAT time 1000000130\r\n"));
    }
}

/// Where the store's clock is late, say: what is over for the server is there for it.
#[test]
fn an_item_that_can_be_neither_read_nor_made_is_a_miss() {
    let [early, late] = [1_000_000_100, 1_000_000_000].map(|at| Arc::new(ManualClock::new(at)));
    let server = TestServer::of_store_with_clock(&late, |config| set_clock(config, &early));
    let mut client = server.client();
    client.check_chat(b"set k 0 1000000050 1\r\n1\r\nget k\r\n", "STORED\r\nEND\r\n");
    client.check_chat(b"mg k N30 v\r\nma k N30 v\r\n", "EN\r\nNS\r\n");
    client.check_chat(b"ms k 1 MA N30\r\n1\r\nms k 1 MP N30\r\n1\r\n", "NS\r\nNS\r\n");
    let stats = client.stats();
    assert!(stats.contains("STAT store_errors 0\r\n"), "{stats}");
    late.set_unix_seconds(1_000_000_100);
    client.check_chat(b"ma k N30 v\r\nma k N30 v\r\n", "VA 1\r\n0\r\nVA 1\r\n1\r\n");
}

#[test]
fn a_negative_time_is_over_at_once() {
    let server = TestServer::start();
    let mut client = server.client();
    client.check_chat(b"set k 0 -1 1\r\n1\r\nget k\r\n", "STORED\r\nEND\r\n");
    client.check_chat(
        b"set k 0 0 1\r\n1\r\ngat -1 k\r\nget k\r\n",
        "STORED\r\nVALUE k 0 1\r\n1\r\nEND\r\nEND\r\n",
    );
    client.check_chat(
        b"set k 0 -1 1\r\n1\r\nreplace k 0 0 1\r\n1\r\ndelete k\r\n",
        "STORED\r\nNOT_STORED\r\nNOT_FOUND\r\n",
    );
    client.check_chat(
        b"set k 0 -1 1\r\n1\r\nadd k 0 0 1\r\n2\r\nget k\r\n",
        "STORED\r\nSTORED\r\nVALUE k 0 1\r\n2\r\nEND\r\n",
    );
}

#[test]
fn statistics_have_the_names_that_exporters_read() {
    let server = TestServer::start();
    let mut client = server.client();
    client.check_chat(
        b"set a 0 0 1\r\n1\r\nget a b\r\ndelete a\r\n",
        "STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\nDELETED\r\n",
    );
    let figures = |client: &mut crate::harness::Client, command: &str| {
        let (reply, _) = client.say(command.as_bytes());
        let reply = String::from_utf8(reply).expect("text");
        assert!(reply.ends_with("END\r\n"), "{reply}");
        reply
            .lines()
            .filter_map(|line| {
                let (name, value) = line.strip_prefix("STAT ")?.split_once(' ')?;
                Some((name.to_owned(), value.to_owned()))
            })
            .collect::<std::collections::BTreeMap<_, _>>()
    };
    let stats = figures(&mut client, "stats\r\n");
    for name in [
        "pid",
        "uptime",
        "time",
        "version",
        "pointer_size",
        "curr_items",
        "total_items",
        "bytes",
        "curr_connections",
        "total_connections",
        "cmd_get",
        "cmd_set",
        "cmd_flush",
        "cmd_touch",
        "get_hits",
        "get_misses",
        "delete_hits",
        "delete_misses",
        "incr_hits",
        "decr_misses",
        "cas_badval",
        "touch_hits",
        "limit_maxbytes",
        "threads",
        "bytes_read",
        "bytes_written",
        "evictions",
        "max_connections",
        "accepting_conns",
    ] {
        assert!(stats.contains_key(name), "{name} is missing");
    }
    let number = |name: &str| stats[name].parse::<u64>().expect("a number");
    // The mark that ends each exchange is a `set` and a `get`, too.
    assert_eq!((number("get_misses"), number("delete_hits")), (1, 1));
    assert_eq!((number("curr_connections"), number("threads")), (1, 2));
    assert!(number("get_hits") >= 1 && number("cmd_set") >= 1);
    assert_eq!(figures(&mut client, "stats settings\r\n")["item_size_max"], "1048576");
    client.check_chat(b"stats reset\r\n", "RESET\r\n");
    assert_eq!(figures(&mut client, "stats\r\n")["get_misses"], "0");
    client.check_chat(
        b"stats extstore\r\nstats sizes\r\nstats bogus\r\n",
        "END\r\nSTAT sizes_status disabled\r\nEND\r\nERROR\r\n",
    );
}

#[test]
fn quit_and_web_browsers_end_the_connection_without_a_word() {
    let server = TestServer::start();
    server.client().check_last_words(b"quit\r\nversion\r\n", "");
    server.client().check_last_words(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "");
    server.client().check_last_words(b"\x80\x0b\0\0", "");
}
