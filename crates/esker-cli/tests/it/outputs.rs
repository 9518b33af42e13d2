//! What becomes of commands whose output, or words, nobody reads to the end.

use crate::program::Scratch;
use crate::serving::Serving;

#[test]
fn who_has_read_enough_of_an_answer_got_what_he_asked_for() {
    let scratch = Scratch::new();
    scratch.run(&["put", "k", "v"]).exits_with(0);
    for command in [
        &["get", "k"][..],
        &["scan"],
        &["stat"],
        &["serve", "--print-defaults"],
        &["bench", "list"],
    ] {
        let ran = scratch.run_unread(command).exits_with(0);
        assert_eq!(ran.said, "", "{command:?}");
    }
    scratch.run_unread(&["get", "other"]).exits_with(1);
    let serving = Serving::start_at(&Scratch::new(), "native", &[]);
    let url = format!("native://{}", serving.address());
    scratch.run_unread(&["stat", "--server", &url]).exits_with(0);
}

#[test]
fn a_check_that_nobody_reads_says_by_its_exit_code_what_it_found() {
    let scratch = Scratch::new();
    scratch.run(&["put", "whole", "w", "--engine", "flex", "--size", "64MiB"]).exits_with(0);
    scratch.run_unread(&["check"]).exits_with(0);
    let long = "0123456789".repeat(2000);
    scratch.run(&["put", "worse", &long]).exits_with(0);
    let path = scratch.path("esker-data/space.data");
    let mut bytes = std::fs::read(&path).expect("data file");
    let place = bytes.windows(10).position(|piece| piece == b"0123456789").expect("the value");
    bytes[place + 6000] = b'x';
    std::fs::write(&path, bytes).expect("damage it");
    scratch.run_unread(&["check"]).exits_with(1);
    scratch.run_unread(&["check", "--repair"]).exits_with(0);
    assert_eq!(scratch.run(&["get", "whole"]).exits_with(0).text(), "w");
    scratch.run_unread(&["compact"]).exits_with(0);
}

#[test]
fn a_dump_that_nobody_takes_has_failed() {
    let scratch = Scratch::new();
    scratch.run(&["put", "k", "v"]).exits_with(0);
    let ran = scratch.run_unread(&["dump"]).exits_with(3);
    assert!(ran.said.contains("standard output: "), "{ran:?}");
}

#[test]
fn a_comparison_that_nobody_reads_says_by_its_exit_code_how_it_ended() {
    let scratch = Scratch::new();
    let run = "bench run --workload readrandom --systems hashmap --records 300 --seconds 0.05 --warmup 0 --repetitions 3";
    let files = ["--data", "data", "--json", "one.json", "--report", "one.html"];
    let words: Vec<&str> = run.split(' ').chain(files).collect();
    // What it writes besides is there all the same.
    scratch.run_unread(&words).exits_with(0);
    assert!(scratch.path("one.html").exists());
    let text = std::fs::read_to_string(scratch.path("one.json")).expect("written");
    let mut result: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    // No noise, and a difference.
    for (name, rate) in [("one.json", 1000.0), ("two.json", 2000.0)] {
        let rows = result["rows"].as_array_mut().expect("rows");
        rows.iter_mut().for_each(|row| row["ops_per_second"] = rate.into());
        std::fs::write(scratch.path(name), result.to_string()).expect("write");
    }
    scratch.run_unread(&["bench", "compare", "one.json", "one.json"]).exits_with(0);
    scratch.run(&["bench", "compare", "one.json", "two.json"]).exits_with(1);
    scratch.run_unread(&["bench", "compare", "one.json", "two.json"]).exits_with(1);
}

#[test]
fn words_that_nobody_hears_change_nothing() {
    let scratch = Scratch::new();
    scratch.run(&["put", "k", "v"]).exits_with(0);
    scratch.run_unheard(&["dump", "items.jsonl"]).exits_with(0);
    scratch.run_unheard(&["load", "items.jsonl", "--data", "copy"]).exits_with(0);
    assert_eq!(scratch.run(&["get", "k", "--data", "copy"]).exits_with(0).text(), "v");
    scratch.run_unheard(&["serve", "--check-config"]).exits_with(0);
    scratch.run_unheard(&["get", "k", "--data", "nowhere"]).exits_with(2);
    scratch.run_unheard(&["load", "nowhere"]).exits_with(3);
}
