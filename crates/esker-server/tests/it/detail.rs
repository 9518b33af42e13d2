//! Statistics by prefix of keys.

use crate::harness::{Client, TestServer};

#[track_caller]
fn check_detail(client: &mut Client, expected: &str) {
    client.send(b"stats detail dump\r\n");
    client.check_receive(format!("{expected}END\r\n").as_bytes());
}

/// A client of a server that counts from its start.
fn counting(delimiter: u8) -> (TestServer, Client) {
    let server = TestServer::with(|config| config.prefix_delimiter = Some(delimiter));
    let client = server.client();
    (server, client)
}

#[test]
fn what_is_counted_is_what_memcached_counts() {
    let server = TestServer::start();
    let mut client = server.client();
    check_detail(&mut client, "");
    client.check_chat(b"set foo:123 0 0 6\r\nfooval\r\nstats detail on\r\n", "STORED\r\nOK\r\n");
    check_detail(&mut client, "");
    client.check_chat(b"set foo:123 0 0 6\r\nfooval\r\n", "STORED\r\n");
    check_detail(&mut client, "PREFIX foo get 0 hit 0 set 1 del 0\r\n");
    client.check_chat(b"get foo:123\r\n", "VALUE foo:123 0 6\r\nfooval\r\nEND\r\n");
    check_detail(&mut client, "PREFIX foo get 1 hit 1 set 1 del 0\r\n");
    client.check_chat(b"get foo:124\r\n", "END\r\n");
    check_detail(&mut client, "PREFIX foo get 2 hit 1 set 1 del 0\r\n");
    client.check_chat(b"delete foo:125\r\n", "NOT_FOUND\r\n");
    check_detail(&mut client, "PREFIX foo get 2 hit 1 set 1 del 1\r\n");
    client.check_chat(b"stats reset\r\n", "RESET\r\n");
    check_detail(&mut client, "");
    client.check_chat(b"get foo:123\r\n", "VALUE foo:123 0 6\r\nfooval\r\nEND\r\n");
    check_detail(&mut client, "PREFIX foo get 1 hit 1 set 0 del 0\r\n");
    client.check_chat(
        b"stats detail off\r\nget foo:124 foo:123\r\n",
        "OK\r\nVALUE foo:123 0 6\r\nfooval\r\nEND\r\n",
    );
    check_detail(&mut client, "PREFIX foo get 1 hit 1 set 0 del 0\r\n");
    client.check_chat(b"stats detail\r\n", "CLIENT_ERROR usage: stats detail on|off|dump\r\n");
}

#[test]
fn only_classic_commands_that_read_store_and_delete_count() {
    let (_server, mut client) = counting(b':');
    client.check_chat(
        b"set a:1 0 0 1\r\n1\r\nincr a:1 1\r\ntouch a:1 0\r\nmg a:1\r\nms a:1 1\r\n1\r\nma a:1\r\nmd a:2\r\nme a:2\r\n",
        "STORED\r\n2\r\nTOUCHED\r\nHD\r\nHD\r\nHD\r\nNF\r\nEN\r\n",
    );
    check_detail(&mut client, "PREFIX a get 0 hit 0 set 1 del 0\r\n");
    client.check_chat(
        b"gat 0 a:1 a:2\r\ngats 0 b:1\r\ngets a:2\r\n",
        "VALUE a:1 0 1\r\n2\r\nEND\r\nEND\r\nEND\r\n",
    );
    check_detail(
        &mut client,
        "PREFIX a get 3 hit 1 set 1 del 0\r\nPREFIX b get 1 hit 0 set 0 del 0\r\n",
    );
    // Whatever becomes of it: too large, malformed behind its line, refused by its condition. Not what is malformed in its line.
    let large = "x".repeat(1_048_577);
    client.check_chat(
        format!("set c:1 0 0 1048577\r\n{large}\r\nadd c:1 0 0 1 noreply\r\n1\r\nadd c:1 0 0 1\r\n1\r\nset c:1 0 0 1\r\n123\r\nset c:1 x 0 1\r\n1\r\n").as_bytes(),
        "SERVER_ERROR object too large for cache\r\nNOT_STORED\r\nCLIENT_ERROR bad data chunk\r\nERROR\r\nCLIENT_ERROR bad command line format\r\n",
    );
    client.check_chat(b"stats detail off\r\nstats detail dump\r\n", "OK\r\nPREFIX a get 3 hit 1 set 1 del 0\r\nPREFIX b get 1 hit 0 set 0 del 0\r\nPREFIX c get 0 hit 0 set 4 del 0\r\nEND\r\n");
}

#[test]
fn an_operator_chooses_the_delimiter_and_settings_tell_it() {
    let (_server, mut client) = counting(b'/');
    client.send(b"get a/b:c a:d /e\r\n");
    client.check_receive(b"END\r\n");
    check_detail(
        &mut client,
        "PREFIX  get 1 hit 0 set 0 del 0\r\nPREFIX a get 1 hit 0 set 0 del 0\r\n",
    );
    let settings = |client: &mut Client| {
        let (reply, _) = client.say(b"stats settings\r\n");
        String::from_utf8(reply).expect("text")
    };
    let told = settings(&mut client);
    assert!(told.contains("STAT stat_key_prefix /\r\nSTAT detail_enabled yes\r\n"), "{told}");
    client.check_chat(b"stats detail off\r\n", "OK\r\n");
    let told = settings(&mut client);
    assert!(told.contains("STAT detail_enabled no\r\n"), "{told}");
}

#[test]
fn prefixes_beyond_those_that_there_may_be_are_not_counted_and_all_others_are_told() {
    const COUNT: usize = 5000;
    const MOST: usize = 4096;
    let (_server, mut client) = counting(b':');
    let keys: Vec<String> = (0..COUNT).map(|number| format!("{number:05}:k")).collect();
    client.send(format!("get {}\r\n", keys.join(" ")).as_bytes());
    client.check_receive(b"END\r\n");
    let told = |client: &mut Client| {
        client.send(b"stats detail dump\r\n");
        let mut lines: Vec<String> = Vec::new();
        while lines.last().is_none_or(|line| line != "END") {
            lines.push(client.line());
        }
        lines
    };
    let lines = told(&mut client);
    assert_eq!(lines.len(), MOST + 1);
    for (number, line) in lines[..MOST].iter().enumerate() {
        assert_eq!(*line, format!("PREFIX {number:05} get 1 hit 0 set 0 del 0"));
    }
    client.send(b"stats reset\r\ndelete 04999:k\r\n");
    client.check_receive(b"RESET\r\nNOT_FOUND\r\n");
    assert_eq!(told(&mut client), ["PREFIX 04999 get 0 hit 0 set 0 del 1", "END"]);
}
