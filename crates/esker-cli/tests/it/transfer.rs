//! Dumps, and loading them.

use crate::program::Scratch;

#[test]
fn a_dump_makes_an_equal_store_elsewhere() {
    let scratch = Scratch::new();
    let binary: Vec<u8> = (0..=255).collect();
    scratch.run(&["put", "text", "line\n\"quoted\""]).exits_with(0);
    scratch.run_with(&["put", "binary"], &binary).exits_with(0);
    scratch.run(&["put", "empty", ""]).exits_with(0);
    let dump = scratch.run(&["dump"]).exits_with(0);
    assert!(dump.said.contains("3 items dumped"), "{dump:?}");
    scratch.run_with(&["load", "--data", "copy"], &dump.output).exits_with(0);
    assert_eq!(scratch.run(&["get", "binary", "--data", "copy"]).exits_with(0).output, binary);
    assert_eq!(
        scratch.run(&["get", "text", "--data", "copy"]).exits_with(0).output,
        b"line\n\"quoted\""
    );
    assert_eq!(scratch.run(&["get", "empty", "--data", "copy"]).exits_with(0).output, b"");
    let sorted = |text: String| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let again = scratch.run(&["dump", "--data", "copy"]).exits_with(0);
    assert_eq!(sorted(again.text()), sorted(dump.text()));
}

#[test]
fn a_dash_names_standard_output_of_a_dump_and_standard_input_of_a_load() {
    let scratch = Scratch::new();
    scratch.run(&["put", "k", "v"]).exits_with(0);
    let dump = scratch.run(&["dump", "-"]).exits_with(0);
    assert!(dump.text().ends_with("{\"items\":1}\n"), "{dump:?}");
    assert!(!scratch.path("-").exists());
    scratch.run_with(&["load", "-", "--data", "copy"], &dump.output).exits_with(0);
    assert_eq!(scratch.run(&["get", "k", "--data", "copy"]).exits_with(0).text(), "v");
}

#[test]
fn a_load_that_fails_says_how_many_items_it_has_stored() {
    let scratch = Scratch::new();
    let item = |n: u32| format!("{{\"key\":\"k{n}\",\"value\":\"v\"}}\n");
    let head = format!("{{\"format\":\"esker-dump\",\"version\":1}}\n{}{}", item(1), item(2));
    for behind in ["nonsense\n", "{\"key\":\"\",\"value\":\"v\"}\n", "", "{\"items\":3}\n"] {
        let ran = scratch.run_with(&["load"], (head.clone() + behind).as_bytes()).exits_with(3);
        assert!(ran.said.contains("standard input:4: "), "{ran:?}");
        assert!(ran.said.contains("; 2 items before that are stored"), "{ran:?}");
        assert_eq!(scratch.run(&["get", "k2"]).exits_with(0).text(), "v");
    }
}

#[test]
fn flags_and_expiry_travel_with_an_item() {
    let scratch = Scratch::new();
    let item = r#"{"key":"k","value":"v","flags":7,"expires_at":4102444800}"#;
    let dump = format!("{{\"format\":\"esker-dump\",\"version\":1}}\n{item}\n{{\"items\":1}}\n");
    scratch.run_with(&["load"], dump.as_bytes()).exits_with(0);
    assert_eq!(scratch.run(&["dump"]).exits_with(0).text(), dump);
}

#[test]
fn a_dump_goes_to_a_file_that_only_its_owner_reads() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new();
    scratch.run(&["put", "k", "v"]).exits_with(0);
    scratch.run(&["dump", "items.jsonl"]).exits_with(0);
    let mode = std::fs::metadata(scratch.path("items.jsonl")).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    scratch.run(&["load", "items.jsonl", "--data", "copy"]).exits_with(0);
    assert_eq!(scratch.run(&["get", "k", "--data", "copy"]).exits_with(0).output, b"v");
}

/// Whoever may write in the folder could have made it, and would own all items.
#[test]
fn a_file_that_stands_where_a_dump_is_made_does_not_become_the_dump() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let scratch = Scratch::new();
    scratch.run(&["put", "k", "v"]).exits_with(0);
    std::fs::write(scratch.path(".items.esker"), "open to all").expect("write");
    let open = PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(scratch.path(".items.esker"), open).expect("its own");
    scratch.run(&["dump", "items"]).exits_with(0);
    let mode = std::fs::metadata(scratch.path("items")).expect("there").mode();
    assert_eq!(mode & 0o777, 0o600);
    // Nor what a link there names.
    std::fs::write(scratch.path("letter"), "dear").expect("write");
    std::os::unix::fs::symlink("letter", scratch.path(".items.esker")).expect("link");
    scratch.run(&["dump", "items"]).exits_with(0);
    assert_eq!(std::fs::read(scratch.path("letter")).expect("there"), b"dear");
    assert!(std::fs::symlink_metadata(scratch.path("items")).expect("there").is_file());
}

#[test]
fn a_dump_that_fails_leaves_the_one_before() {
    let scratch = Scratch::new();
    scratch.run(&["put", "first", "1", "--size", "64MiB"]).exits_with(0);
    scratch.run(&["dump", "items.jsonl"]).exits_with(0);
    let before = std::fs::read(scratch.path("items.jsonl")).expect("there");
    let value = "a value that is found in the file of the store";
    scratch.run(&["put", "second", value]).exits_with(0);
    let store = scratch.path("esker-data/depot.esker");
    let mut bytes = std::fs::read(&store).expect("there");
    let place = bytes.windows(value.len()).position(|window| window == value.as_bytes());
    bytes[place.expect("written")] ^= 1;
    std::fs::write(&store, bytes).expect("write");
    scratch.run(&["dump", "items.jsonl"]).exits_with(3);
    assert_eq!(std::fs::read(scratch.path("items.jsonl")).expect("there"), before);
    let files = std::fs::read_dir(scratch.path(".")).expect("a folder");
    let mut names: Vec<_> = files.map(|file| file.expect("there").file_name()).collect();
    names.sort();
    assert_eq!(names, ["esker-data", "items.jsonl"]);
}

#[test]
fn a_dump_that_skips_what_is_damaged_has_all_else_and_says_so() {
    let scratch = Scratch::new();
    // More than a segment: what is damaged in the one that is written keeps the store from being opened.
    let value = |n: u32| format!("value {n}, {}", "x".repeat(60_000));
    let items = (0..40).map(|n| format!("{{\"key\":\"k{n}\",\"value\":\"{}\"}}\n", value(n)));
    let items = items.collect::<String>();
    let all = format!("{{\"format\":\"esker-dump\",\"version\":1}}\n{items}{{\"items\":40}}\n");
    scratch.run_with(&["load", "--size", "64MiB"], all.as_bytes()).exits_with(0);
    let whole = scratch.run(&["dump", "--skip-damaged"]).exits_with(0);
    assert!(whole.said.contains("40 items dumped") && !whole.said.contains("places"), "{whole:?}");
    let store = scratch.path("esker-data/depot.esker");
    let mut bytes = std::fs::read(&store).expect("there");
    let (wanted, from) = (value(1).into_bytes(), b"value 1, ");
    let place = bytes.windows(from.len()).position(|window| window == from).expect("written");
    assert_eq!(bytes.get(place..place + wanted.len()), Some(&wanted[..]));
    bytes[place] ^= 1;
    std::fs::write(&store, bytes).expect("write");
    scratch.run(&["dump"]).exits_with(3);
    let dump = scratch.run(&["dump", "--skip-damaged"]).exits_with(1);
    assert!(dump.said.contains("corrupted") && dump.said.contains("depot.esker"), "{dump:?}");
    assert!(dump.said.contains("39 items dumped"), "{dump:?}");
    assert!(dump.said.contains("1 places could not be read"), "{dump:?}");
    // What was dumped is a whole dump.
    scratch.run_with(&["load", "--data", "copy"], &dump.output).exits_with(0);
    scratch.run(&["get", "k2", "--data", "copy"]).exits_with(0);
    scratch.run(&["get", "k1", "--data", "copy"]).exits_with(1);
}

#[test]
fn a_dump_replaces_what_a_link_names_and_goes_into_a_device_as_it_is() {
    let scratch = Scratch::new();
    scratch.run(&["put", "k", "v"]).exits_with(0);
    let header = "{\"format\":\"esker-dump\",\"version\":1}\n";
    let old = header.to_owned() + &"much that is longer than a dump of one item".repeat(9);
    std::fs::write(scratch.path("old"), old).expect("write");
    std::os::unix::fs::symlink("old", scratch.path("link")).expect("link");
    scratch.run(&["dump", "link"]).exits_with(0);
    assert!(std::fs::symlink_metadata(scratch.path("link")).expect("there").is_symlink());
    let lines = std::fs::read_to_string(scratch.path("old")).expect("there");
    assert!(lines.ends_with("{\"items\":1}\n"), "{lines}");
    assert_eq!(scratch.run(&["dump", "/dev/stdout"]).exits_with(0).text(), lines);
    std::fs::remove_file(scratch.path("old")).expect("there");
    scratch.run(&["dump", "link"]).exits_with(0);
    assert!(std::fs::symlink_metadata(scratch.path("link")).expect("there").is_symlink());
    assert_eq!(std::fs::read_to_string(scratch.path("old")).expect("there"), lines);
    scratch.run(&["dump", "esker-data"]).exits_with(3);
    scratch.run(&["dump", "nowhere/items.jsonl"]).exits_with(3);
}

#[test]
fn a_dump_takes_the_place_of_no_file_but_a_dump() {
    let scratch = Scratch::new();
    for engine in ["depot", "flex"] {
        let data = scratch.path(engine);
        let data = data.to_str().expect("text");
        scratch.run(&["put", "k", "v", "--data", data, "--engine", engine]).exits_with(0);
        for entry in std::fs::read_dir(data).expect("a folder") {
            let file = entry.expect("a file").path();
            if file.metadata().expect("there").len() == 0 {
                continue;
            }
            let file = file.to_str().expect("text");
            let ran = scratch.run(&["dump", file, "--data", data]).exits_with(2);
            assert!(ran.said.contains("is no dump: it stays"), "{ran:?}");
        }
        assert_eq!(scratch.run(&["get", "k", "--data", data]).exits_with(0).text(), "v");
    }
    std::fs::write(scratch.path("words"), "of somebody").expect("write");
    scratch.run(&["dump", "words", "--data", "depot"]).exits_with(2);
    let words = std::fs::read_to_string(scratch.path("words")).expect("there");
    assert_eq!(words, "of somebody");
}

#[test]
fn what_is_no_dump_is_refused_however_long_its_first_line_is() {
    let scratch = Scratch::new();
    let file = std::fs::File::create(scratch.path("zeros")).expect("a file");
    // More than any machine has memory for.
    file.set_len(1 << 43).expect("a long file");
    let ran = scratch.run(&["load", "zeros"]).exits_with(3);
    assert!(ran.said.contains("zeros:1: this is no dump of esker"), "{ran:?}");
}

#[test]
fn a_dump_that_is_cut_short_is_noticed() {
    let scratch = Scratch::new();
    let dump = "{\"format\":\"esker-dump\",\"version\":1}\n{\"key\":\"k\",\"value\":\"v\"}\n";
    let ran = scratch.run_with(&["load"], dump.as_bytes()).exits_with(3);
    assert!(ran.said.contains("standard input:3: the dump is cut short"), "{ran:?}");
    let twice = format!("{dump}{{\"items\":1}}\n").repeat(2);
    let ran = scratch.run_with(&["load"], twice.as_bytes()).exits_with(3);
    assert!(ran.said.contains("standard input:4: something follows the end"), "{ran:?}");
    let keyless = dump.replace("\"k\"", "\"\"");
    let ran = scratch.run_with(&["load"], keyless.as_bytes()).exits_with(3);
    assert!(ran.said.contains("standard input:2: ") && ran.said.contains("key"), "{ran:?}");
    scratch.run_with(&["load"], b"something else\n").exits_with(3);
    scratch.run(&["load", "nowhere.jsonl"]).exits_with(3);
}

#[test]
fn a_backup_makes_an_equal_store_elsewhere_and_a_second_one_copies_what_changed() {
    let scratch = Scratch::new();
    scratch.run(&["put", "colour", "blue"]).exits_with(0);
    scratch.run(&["put", "shape", "round"]).exits_with(0);
    let first = scratch.run(&["backup", "copies/of-it"]).exits_with(0);
    assert!(first.said.contains("1 segments copied"), "{first:?}");
    scratch.run(&["delete", "shape"]).exits_with(0);
    scratch.run(&["backup", "copies/of-it"]).exits_with(0);
    let restored = scratch.run(&["restore", "copies/of-it", "--data", "new"]).exits_with(0);
    assert!(restored.said.contains("1 segments restored"), "{restored:?}");
    assert_eq!(scratch.run(&["get", "colour", "--data", "new"]).exits_with(0).text(), "blue");
    scratch.run(&["get", "shape", "--data", "new"]).exits_with(1);
    scratch.run(&["check", "--data", "new"]).exits_with(0);
    // Not over what is there, and not from nowhere.
    let refused = scratch.run(&["restore", "copies/of-it", "--data", "new"]).exits_with(2);
    assert!(refused.said.contains("something here already"), "{refused:?}");
    scratch.run(&["restore", "nowhere", "--data", "other"]).exits_with(2);
    // One that does not fit leaves nothing in the way of one that does.
    let other = ["restore", "copies/of-it", "--data", "other"];
    let refused = scratch.run(&[&other[..], &["--size", "300KiB"]].concat()).exits_with(2);
    assert!(refused.said.contains("too few"), "{refused:?}");
    scratch.run(&other).exits_with(0);
    scratch.run(&["backup", "new"]).exits_with(2);
}

#[test]
fn a_damaged_backup_is_refused_and_the_file_is_named() {
    let scratch = Scratch::new();
    scratch.run(&["put", "k", "v"]).exits_with(0);
    scratch.run(&["backup", "copy"]).exits_with(0);
    let mut files = std::fs::read_dir(scratch.path("copy")).unwrap().map(|entry| entry.unwrap());
    let file = files.find(|entry| entry.file_name() != "MANIFEST").unwrap();
    let mut bytes = std::fs::read(file.path()).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(file.path(), bytes).unwrap();
    let refused = scratch.run(&["restore", "copy", "--data", "new"]).exits_with(3);
    assert!(refused.said.contains(file.file_name().to_str().unwrap()), "{refused:?}");
    // What is there now is no store, and another restore may follow.
    let none = scratch.run(&["get", "k", "--data", "new"]).exits_with(2);
    assert!(none.said.contains("restore again"), "{none:?}");
}

#[test]
fn a_store_over_two_folders_needs_both_in_any_order() {
    let scratch = Scratch::new();
    scratch.run(&["put", "k", "v", "--data", "one", "--data", "two"]).exits_with(0);
    assert!(scratch.path("one/depot.esker").exists() && scratch.path("two/depot.esker").exists());
    let got = scratch.run(&["get", "k", "--data", "two", "--data", "one"]).exits_with(0);
    assert_eq!(got.text(), "v");
    let stat = scratch.run(&["stat", "--data", "one", "--data", "two"]).exits_with(0);
    assert!(stat.text().contains("striped over 2 members"), "{stat:?}");
    let alone = scratch.run(&["get", "k", "--data", "two"]).exits_with(2);
    assert!(alone.said.contains("member 1 of a store over 2 devices"), "{alone:?}");
    scratch.run(&["put", "k", "v", "--data", "two", "--data", "three"]).exits_with(2);
    scratch.run(&["backup", "copy", "--data", "one", "--data", "two"]).exits_with(0);
    scratch.run(&["restore", "copy", "--data", "plain"]).exits_with(0);
    assert_eq!(scratch.run(&["get", "k", "--data", "plain"]).exits_with(0).text(), "v");
}
