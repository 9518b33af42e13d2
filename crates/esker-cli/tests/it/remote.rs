//! Commands that ask servers instead of opening a store.

use crate::program::Scratch;
use crate::serving::{Serving, stop_and_wait};

fn url(serving: &Serving) -> String {
    format!("native://{}", serving.address())
}

#[test]
fn keys_of_a_server_are_read_and_written_while_it_serves() {
    let scratch = Scratch::new();
    let serving = Serving::start_at(&scratch, "native", &[]);
    let url = url(&serving);
    let run = |arguments: &[&str]| scratch.run(&[arguments, &["--server", &url]].concat());
    run(&["get", "k"]).exits_with(1);
    run(&["put", "k", "value"]).exits_with(0);
    scratch.run_with(&["put", "--server", &url, "piped"], b"from input").exits_with(0);
    assert_eq!(run(&["get", "k"]).exits_with(0).output, b"value");
    assert_eq!(run(&["get", "piped"]).exits_with(0).output, b"from input");
    let stat = run(&["stat"]).exits_with(0).text();
    assert!(stat.lines().any(|line| line.split_whitespace().eq(["items", "2"])), "{stat}");
    let json = run(&["stat", "--json"]).exits_with(0).text();
    assert!(json.contains("\"items\":2") && json.contains(&url), "{json}");
    run(&["delete", "k"]).exits_with(0);
    run(&["delete", "k"]).exits_with(1);
    stop_and_wait(serving, "-TERM");
    // What a server acknowledged is in its folder.
    assert_eq!(scratch.run(&["get", "piped"]).exits_with(0).output, b"from input");
    let ran = scratch.run(&["get", "k", "--server", &url]).exits_with(3);
    assert!(ran.said.contains("not sent"), "{ran:?}");
}

#[test]
fn what_a_server_acknowledged_is_there_after_kill_9() {
    let scratch = Scratch::new();
    let mut serving = Serving::start_at(&scratch, "native", &[]);
    let before = url(&serving);
    for n in 0..20 {
        let (key, value) = (format!("k{n}"), format!("v{n}"));
        scratch.run(&["put", &key, &value, "--server", &before]).exits_with(0);
    }
    serving.kill();
    let again = Serving::start_at(&scratch, "native", &[]);
    let after = url(&again);
    for n in 0..20 {
        let ran = scratch.run(&["get", &format!("k{n}"), "--server", &after]).exits_with(0);
        assert_eq!(ran.text(), format!("v{n}"));
    }
    stop_and_wait(again, "-TERM");
}

#[test]
fn several_servers_share_the_keys() {
    let scratches: Vec<Scratch> = (0..3).map(|_| Scratch::new()).collect();
    let servings: Vec<Serving> =
        scratches.iter().map(|scratch| Serving::start_at(scratch, "native", &[])).collect();
    let urls: Vec<String> = servings.iter().map(url).collect();
    let all: Vec<&str> = urls.iter().flat_map(|url| ["--server", url]).collect();
    let mut turned = all.clone();
    turned.rotate_left(2);
    let scratch = &scratches[0];
    for n in 0..12 {
        let (key, value) = (format!("key{n}"), format!("value{n}"));
        scratch.run(&[&["put", &key, &value], &all[..]].concat()).exits_with(0);
        // The order in which servers are given does not matter.
        let ran = scratch.run(&[&["get", &key], &turned[..]].concat()).exits_with(0);
        assert_eq!(ran.text(), value);
        let holders = urls
            .iter()
            .filter(|url| scratch.run(&["get", &key, "--server", url]).code == Some(0))
            .count();
        assert_eq!(holders, 1, "{key} is on one server");
    }
    for serving in servings {
        stop_and_wait(serving, "-TERM");
    }
}

#[test]
fn a_server_that_asks_who_it_is_is_told_from_a_file() {
    let scratch = Scratch::new();
    std::fs::write(scratch.path("users"), "ann:secret\n").expect("write");
    std::fs::write(scratch.path("empty"), "\n").expect("write");
    let serving = Serving::start_at(&scratch, "native", &["--auth-file", "users"]);
    let url = url(&serving);
    let ran = scratch.run(&["put", "k", "v", "--server", &url]).exits_with(2);
    assert!(ran.said.contains("has not said who it is"), "{ran:?}");
    scratch.run(&["put", "k", "v", "--server", &url, "--auth-file", "empty"]).exits_with(2);
    scratch.run(&["put", "k", "v", "--server", &url, "--auth-file", "users"]).exits_with(0);
    stop_and_wait(serving, "-TERM");
}

#[test]
fn addresses_of_something_else_are_refused_in_words() {
    let scratch = Scratch::new();
    for url in ["memcache://127.0.0.1:11211", "127.0.0.1", "native://"] {
        let ran = scratch.run(&["get", "k", "--server", url]).exits_with(2);
        assert!(ran.said.contains(url), "{ran:?}");
    }
}
