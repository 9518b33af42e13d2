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
    assert!(scratch.run(&["stat"]).exits_with(0).text().contains("items      1\n"));
    let figures: serde_json::Value =
        serde_json::from_slice(&scratch.run(&["stat", "--json"]).exits_with(0).output)
            .expect("JSON");
    assert_eq!(figures["items"], 1);
    assert!(scratch.run(&["check"]).exits_with(0).text().contains("sound"));
}

#[test]
fn a_check_says_what_a_repair_would_do_and_does_not_do_it() {
    let scratch = Scratch::new();
    scratch.run(&["put", "k", "v"]).exits_with(0);
    for words in [&["check", "--dry-run"][..], &["check", "--repair", "--dry-run"]] {
        let text = scratch.run(words).exits_with(0).text();
        assert!(text.contains("nothing is changed") && text.contains("sound"), "{text}");
    }
}

#[test]
fn a_check_says_that_notes_of_what_was_deleted_are_records_too() {
    let scratch = Scratch::new();
    scratch.run(&["put", "k", "v"]).exits_with(0);
    scratch.run(&["put", "l", "v"]).exits_with(0);
    scratch.run(&["delete", "k"]).exits_with(0);
    let text = scratch.run(&["check"]).exits_with(0).text();
    assert!(text.contains("2 records (items, and notes of what was deleted or lost)"), "{text}");
}

#[test]
fn a_store_that_cannot_be_made_leaves_no_folder() {
    for engine in ENGINES {
        let scratch = Scratch::new();
        let put = ["put", "k", "v", "--data", "new/store"];
        // flex grows, and so takes the last one.
        let sizes = ["0", "10", "100KiB", "7TiB"].into_iter();
        for size in sizes.filter(|size| engine[1] != "flex" || *size != "7TiB") {
            let ran = scratch.run(&[&put[..], &["--size", size], engine].concat());
            assert_ne!(ran.code, Some(0), "{engine:?}, {size}");
            assert!(!scratch.path("new").exists(), "{engine:?}, {size}: {ran:?}");
        }
        // What somebody else made stays.
        std::fs::create_dir_all(scratch.path("new")).expect("a folder");
        scratch.run(&[&put[..], &["--size", "10"], engine].concat()).exits_with(2);
        assert!(!scratch.path("new/store").exists() && scratch.path("new").exists());
    }
}

/// The engines, with what a new store of each needs.
const ENGINES: [&[&str]; 4] = [
    &["--engine", "depot"],
    &["--engine", "flex"],
    &["--engine", "flat:cceh", "--pmem-emulate"],
    &["--engine", "flat:masstree", "--pmem-emulate"],
];

#[test]
fn every_command_works_with_every_engine() {
    for engine in ENGINES {
        let scratch = Scratch::new();
        scratch.run(&[&["put", "b", "1", "--size", "128MiB"], engine].concat()).exits_with(0);
        // Nothing more is to be said of a store that is there.
        for (key, value) in [("b", "2"), ("a", ""), ("c", "3")] {
            scratch.run(&["put", key, value]).exits_with(0);
        }
        scratch.run(&["delete", "c"]).exits_with(0);
        for words in [&["compact", "--trim"][..], &["compact"]] {
            let text = scratch.run(words).exits_with(0).text();
            assert!(text.contains("segments cleaned"), "{engine:?}: {text}");
        }
        assert!(scratch.run(&["check"]).exits_with(0).text().contains("sound"), "{engine:?}");
        let stat = scratch.run(&["stat"]).exits_with(0).text();
        let capacity = stat.lines().find(|line| line.starts_with("live")).expect("live");
        assert!(capacity.contains("of 12"), "{engine:?}, about 128 MiB: {capacity}");
        scratch.run(&["dump", "dump.jsonl"]).exits_with(0);
        scratch.run(&["backup", "backups"]).exits_with(0);
        let memory = engine.get(2..).unwrap_or_default();
        scratch
            .run(&[&["restore", "backups", "--data", "restored"], memory].concat())
            .exits_with(0);
        let size = ["--data", "loaded", "--size", "256MiB"];
        scratch.run(&[&["load", "dump.jsonl"], &size[..], engine].concat()).exits_with(0);
        for data in ["esker-data", "restored", "loaded"] {
            let text = scratch.run(&["scan", "--values", "--data", data]).exits_with(0).text();
            let mut lines: Vec<&str> = text.lines().collect();
            lines.sort_unstable();
            assert_eq!(lines, ["a\t", "b\t2"], "{engine:?} in {data}");
        }
        let words =
            ["put", "x", "y", "--engine", if engine[1] == "flex" { "depot" } else { "flex" }];
        assert!(scratch.run(&words).exits_with(2).said.contains("the store here is"));
    }
}

#[test]
fn a_scan_shows_a_range_of_an_ordered_store_both_ways() {
    let scratch = Scratch::new();
    for key in ["a1", "a2", "a3", "b1"] {
        scratch.run(&["put", key, "", "--engine", "flex"]).exits_with(0);
    }
    let shows = |words: &[&str], keys: &[&str]| {
        let text = scratch.run(&[&["scan"], words].concat()).exits_with(0).text();
        assert_eq!(text.lines().collect::<Vec<_>>(), keys, "{words:?}");
    };
    shows(&["--from", "a2", "--to", "b1"], &["a2", "a3"]);
    shows(&["--reverse", "--limit", "2"], &["b1", "a3"]);
    shows(&["--prefix", "a", "--from", "a0", "--reverse"], &["a3", "a2", "a1"]);
    shows(&["--prefix", "a", "--from", "a3"], &["a3"]);
    shows(&["--prefix", "a", "--from", "b"], &[]);
    shows(&["--from", "b", "--to", "a"], &[]);
    let other = Scratch::new();
    other.run(&["put", "k", "v"]).exits_with(0);
    assert!(other.run(&["scan", "--reverse"]).exits_with(2).said.contains("keeps no order"));
}

#[test]
fn a_store_in_memory_is_made_by_name_and_then_opened_as_it_is() {
    let Some(scratch) = Scratch::in_memory() else {
        esker_testkit::skipped::because("there is no /dev/shm");
        return;
    };
    let put = ["put", "k", "v", "--engine", "flat:cceh", "--size", "64MiB"];
    assert!(scratch.run(&put).exits_with(2).said.contains("power cut"));
    scratch.run(&[&put[..], &["--pmem-emulate"]].concat()).exits_with(0);
    scratch.run(&["put", "k", "w"]).exits_with(0);
    assert_eq!(scratch.run(&["get", "k"]).exits_with(0).text(), "w");
    scratch.run(&["serve", "--listen", "memcache://127.0.0.1:0"]).exits_with(2);
}

#[test]
fn a_size_that_is_too_small_leaves_nothing_behind() {
    for engine in ENGINES {
        let scratch = Scratch::new();
        let put = [&["put", "k", "v"], engine].concat();
        for size in ["1KiB", if engine.contains(&"flex") { "19MiB" } else { "200KiB" }] {
            scratch.run(&[&put, &["--size", size][..]].concat()).exits_with(2);
        }
        scratch.run(&put).exits_with(0);
        assert_eq!(scratch.run(&["get", "k"]).exits_with(0).text(), "v", "{engine:?}");
    }
}

#[test]
fn check_repairs_a_store_of_flex() {
    let scratch = Scratch::new();
    scratch.run(&["put", "whole", "w", "--engine", "flex", "--size", "64MiB"]).exits_with(0);
    // Several blocks: what is damaged stands in another one than the other key, and the root.
    let long = "0123456789".repeat(2000);
    scratch.run(&["put", "worse", &long]).exits_with(0);
    let path = scratch.path("esker-data/space.data");
    let mut bytes = std::fs::read(&path).expect("data file");
    let place = bytes.windows(10).position(|piece| piece == b"0123456789").expect("the value");
    bytes[place + 6000] = b'x';
    std::fs::write(&path, bytes).expect("damage it");
    scratch.run(&["get", "worse"]).exits_with(3);
    let found = scratch.run(&["check"]).exits_with(1).text();
    assert!(found.contains("problem"), "{found}");
    let text = scratch.run(&["check", "--repair"]).exits_with(0).text();
    assert!(text.contains("1 parts hold damage") && text.contains("sound"), "{text}");
    assert_eq!(scratch.run(&["get", "whole"]).exits_with(0).text(), "w");
    scratch.run(&["get", "worse"]).exits_with(1);
    scratch.run(&["put", "worse", "w"]).exits_with(0);
    scratch.run(&["check"]).exits_with(0);
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
    assert!(text.contains(" 1 lost") && text.contains("sound"), "{text}");
    // The checkpoint of the clean stop knew whose value it was.
    assert!(!text.contains("hides what stood there"), "{text}");
    assert_eq!(scratch.run(&["get", "whole"]).exits_with(0).text(), "w");
    scratch.run(&["get", "damaged"]).exits_with(1);
    scratch.run(&["check"]).exits_with(0);
}

#[test]
fn check_repairs_a_store_of_flat_that_no_command_opens() {
    let scratch = Scratch::new();
    let new = ["--engine", "flat:masstree", "--pmem-emulate", "--size", "16MiB"];
    scratch.run(&[&["put", "whole", "w"][..], &new].concat()).exits_with(0);
    scratch.run(&["put", "damaged", "0123456789"]).exits_with(0);
    let path = scratch.path("esker-data/flat.esker");
    let mut bytes = std::fs::read(&path).expect("data file");
    // The entry, and both headers of the second chunk, which is free or has an image.
    let place = bytes.windows(10).position(|piece| piece == b"0123456789").expect("the value");
    bytes[place] = b'x';
    let number = bytes.windows(4).skip(1).rposition(|piece| piece == b"ESKC").expect("headers") + 1;
    bytes[number] = b'x';
    bytes[number - 64] = b'x';
    std::fs::write(&path, bytes).expect("damage it");
    let found = scratch.run(&["get", "whole"]).exits_with(3);
    assert!(found.said.contains("header"), "{found:?}");
    let text = scratch.run(&["check", "--repair"]).exits_with(0).text();
    assert!(text.contains("hides what stood there") && text.contains("sound"), "{text}");
    assert_eq!(scratch.run(&["get", "whole"]).exits_with(0).text(), "w");
    scratch.run(&["get", "damaged"]).exits_with(1);
    scratch.run(&["check"]).exits_with(0);
}

#[test]
fn commands_that_read_make_no_store_of_what_is_blank() {
    let scratch = Scratch::new();
    std::fs::write(scratch.path("blank"), vec![0; 1 << 20]).expect("write");
    std::fs::create_dir(scratch.path("folder")).expect("folder");
    std::fs::write(scratch.path("folder/depot.esker"), b"").expect("write");
    for data in ["blank", "folder"] {
        for command in [&["get", "k"][..], &["check"], &["stat"], &["dump"], &["check", "--repair"]]
        {
            let ran = scratch.run(&[command, &["--data", data]].concat()).exits_with(2);
            assert!(ran.said.contains("there is no store"), "{ran:?}");
        }
    }
    assert!(std::fs::read(scratch.path("blank")).expect("there").iter().all(|byte| *byte == 0));
    assert_eq!(std::fs::metadata(scratch.path("folder/depot.esker")).expect("there").len(), 0);
    scratch.run(&["put", "k", "v", "--data", "blank", "--size", "1MiB"]).exits_with(0);
    assert_eq!(scratch.run(&["get", "k", "--data", "blank"]).exits_with(0).text(), "v");
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

#[test]
fn what_cannot_be_is_refused_before_anything_is_made() {
    let scratch = Scratch::new();
    let long = "k".repeat((64 << 10) + 1);
    for key in ["", &long] {
        let ran = scratch.run(&["put", key, "v", "--data", "d", "--size", "64MiB"]).exits_with(2);
        assert!(ran.said.contains("a key has"), "{}", ran.said);
        assert!(!scratch.path("d").exists());
    }
    for (two, words) in [
        (&["--data", "d", "--data", "d"][..], "named twice"),
        (&["--data", "d", "--data", "e", "--engine", "flex"], "takes one path"),
    ] {
        let put = [&["put", "k", "v", "--size", "64MiB"], two].concat();
        let serve = [&["serve", "--check-config"], two].concat();
        for command in [put, serve] {
            let ran = scratch.run(&command).exits_with(2);
            assert!(ran.said.contains(words), "{command:?}: {}", ran.said);
        }
        assert!(!scratch.path("d").exists());
    }
    let cache = ["serve", "--check-config", "--cache", "--engine", "flex"];
    let ran = scratch.run(&cache);
    assert!(ran.code != Some(0) && ran.said.contains("no cache"), "{ran:?}");
    scratch.run(&["bench", "run", "--records", "0", "--systems", "hashmap"]).exits_with(2);
    let ran = scratch.run(&["bench", "raw", "--data", "no/such", "--size", "1MiB"]);
    assert!(ran.code != Some(0) && ran.said.contains("no such folder"), "{ran:?}");
    assert!(!scratch.path("no").exists());
}

#[test]
fn a_store_that_is_there_keeps_its_size_and_says_so() {
    let scratch = Scratch::new();
    let put = |size| scratch.run(&["put", "k", "v", "--data", "d", "--size", size]).exits_with(0);
    assert_eq!(put("64MiB").said, "");
    assert_eq!(put("64MiB").said, "");
    assert!(put("128MiB").said.contains("--size 128MiB has no effect"));
    let dump = scratch.run(&["dump", "--data", "d"]).exits_with(0).output;
    let load = ["load", "--data", "d", "--size", "128MiB"];
    assert!(scratch.run_with(&load, &dump).exits_with(0).said.contains("has no effect"));
}

#[test]
fn items_of_flex_are_said_to_be_at_most_so_many() {
    let scratch = Scratch::new();
    for value in ["one", "two"] {
        scratch.run(&["put", "k", value, "--engine", "flex"]).exits_with(0);
    }
    let text = scratch.run(&["stat"]).exits_with(0).text();
    assert!(text.contains("items      up to "), "{text}");
    let json = scratch.run(&["stat", "--json"]).exits_with(0).text();
    assert!(json.contains("\"items_are_exact\":false"), "{json}");
    scratch.run(&["put", "k", "v", "--data", "other"]).exits_with(0);
    let json = scratch.run(&["stat", "--json", "--data", "other"]).exits_with(0).text();
    assert!(json.contains("\"items_are_exact\":true"), "{json}");
}
