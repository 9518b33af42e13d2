//! Commands on keys, and their exit codes.

use crate::program::Scratch;

#[test]
fn a_value_is_there_in_the_next_run_until_it_is_deleted() {
    let scratch = Scratch::new();
    scratch.run(&["put", "greeting", "hello"]).exits_with(0);
    assert_eq!(scratch.run(&["get", "greeting"]).exits_with(0).output, b"hello");
    scratch.run(&["delete", "greeting"]).exits_with(0);
    assert!(scratch.run(&["get", "greeting"]).exits_with(1).output.is_empty());
    scratch.run(&["delete", "greeting"]).exits_with(1);
}

#[test]
fn a_value_comes_from_standard_input_byte_for_byte() {
    let scratch = Scratch::new();
    let value: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    scratch.run_with(&["put", "bytes"], &value).exits_with(0);
    assert_eq!(scratch.run(&["get", "bytes"]).exits_with(0).output, value);
}

#[test]
fn scan_shows_the_keys_that_are_asked_for() {
    let scratch = Scratch::new();
    for key in ["a1", "a2", "b1"] {
        scratch.run(&["put", key, ""]).exits_with(0);
    }
    let lines = |ran: crate::program::Ran| {
        let mut lines: Vec<String> = ran.text().lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(lines(scratch.run(&["scan"]).exits_with(0)), ["a1", "a2", "b1"]);
    assert_eq!(lines(scratch.run(&["scan", "--prefix", "a"]).exits_with(0)), ["a1", "a2"]);
    assert_eq!(lines(scratch.run(&["scan", "--limit", "2"]).exits_with(0)).len(), 2);
}

#[test]
fn stat_and_check_tell_of_a_sound_store() {
    let scratch = Scratch::new();
    scratch.run(&["put", "k", "v"]).exits_with(0);
    assert!(scratch.run(&["stat"]).exits_with(0).text().contains("items      1"));
    let figures: serde_json::Value =
        serde_json::from_slice(&scratch.run(&["stat", "--json"]).exits_with(0).output)
            .expect("JSON");
    assert_eq!(figures["items"], 1);
    assert!(scratch.run(&["check"]).exits_with(0).text().contains("sound"));
}

#[test]
fn check_finds_damage_and_repairs_it() {
    let scratch = Scratch::new();
    scratch.run(&["put", "whole", "w", "--size", "64MiB"]).exits_with(0);
    scratch.run(&["put", "damaged", "0123456789"]).exits_with(0);
    let path = scratch.path("esker-data/depot.esker");
    let mut bytes = std::fs::read(&path).expect("data file");
    let place = bytes.windows(10).rposition(|piece| piece == b"0123456789").expect("the value");
    bytes[place] = b'x';
    std::fs::write(&path, bytes).expect("damage it");
    let found = scratch.run(&["check"]);
    assert!(found.code != Some(0), "{found:?}");
    let text = scratch.run(&["check", "--repair"]).exits_with(0).text();
    assert!(text.contains("hides what stood there") && text.contains("sound"), "{text}");
    assert_eq!(scratch.run(&["get", "whole"]).exits_with(0).text(), "w");
    scratch.run(&["get", "damaged"]).exits_with(1);
    scratch.run(&["check"]).exits_with(0);
}

#[test]
fn compacting_frees_segments_and_loses_nothing() {
    let scratch = Scratch::new();
    for value in ["1", "2", "3"] {
        scratch.run(&["put", "k", value]).exits_with(0);
    }
    let text = scratch.run(&["compact", "--trim"]).exits_with(0).text();
    assert!(text.contains("segments cleaned") && text.contains("given back"), "{text}");
    assert!(scratch.run(&["get", "k"]).exits_with(0).text().contains('3'));
    assert!(scratch.run(&["check"]).exits_with(0).text().contains("sound"));
}

#[test]
fn mistakes_exit_with_2_and_say_so_in_one_line() {
    let scratch = Scratch::new();
    scratch.run(&["get"]).exits_with(2);
    scratch.run(&["bogus"]).exits_with(2);
    for arguments in [
        &["get", "k", "--data", "nowhere"][..],
        &["put", "k", "v", "--size", "many"],
        &["serve", "--engine", "matrix"],
        &["serve", "--listen", "memcache://0.0.0.0:1"],
        &["serve", "--memory-max", "1MiB"],
        &["serve", "--config", "nowhere.toml"],
    ] {
        let ran = scratch.run(arguments).exits_with(2);
        assert_eq!(ran.said.lines().count(), 1, "{ran:?}");
        assert!(ran.said.starts_with("esker: "), "{ran:?}");
    }
    assert!(!scratch.path("nowhere").exists(), "reading creates nothing");
}

#[test]
fn the_version_is_told() {
    let ran = Scratch::new().run(&["--version"]).exits_with(0);
    assert_eq!(ran.text(), format!("esker {}\n", env!("CARGO_PKG_VERSION")));
}
