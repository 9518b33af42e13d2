//! `esker bench`: tiny runs of the whole way, from the command line to JSON and page.

use crate::program::{Scratch, program};
use crate::serving::{Serving, stop_and_wait};
use std::path::Path;

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

const TINY: [&str; 10] = [
    "--records",
    "300",
    "--seconds",
    "0.2",
    "--warmup",
    "0.05",
    "--repetitions",
    "2",
    "--data",
    "data",
];

#[test]
fn a_run_gives_rows_a_page_and_a_comparison_with_itself() {
    let scratch = Scratch::new();
    let command = ["bench", "run", "--workload", "ycsb-a,ycsb-e", "--systems", "depot,btreemap"];
    let files = ["--json", "one.json", "--report", "one.html"];
    let ran = scratch.run(&[&command[..], &TINY[..], &files[..]].concat()).exits_with(0);
    let text = ran.text();
    assert!(
        text.contains("ycsb-a run, sync") && text.contains("depot ycsb-e: keeps no order"),
        "{text}"
    );

    let result: serde_json::Value = serde_json::from_str(&read(&scratch.path("one.json"))).unwrap();
    let rows = result["rows"].as_array().unwrap();
    let row = rows
        .iter()
        .find(|row| row["system"] == "depot" && row["phase"] == "run" && row["ops"] != 0);
    let row = row.unwrap();
    for name in [
        "system",
        "workload",
        "phase",
        "threads",
        "ops",
        "seconds",
        "ops_per_second",
        "p50_us",
        "p99_us",
        "p999_us",
        "device_write_bytes",
        "device_read_bytes",
        "user_bytes",
        "rss_bytes",
    ] {
        assert!(row.get(name).is_some(), "{name}");
    }
    // Of a process of its own: nothing of what ran before it.
    assert!(row["rss_bytes"].as_u64().unwrap() > 1 << 20);
    assert!(result["machine"]["kernel"].as_str().is_some_and(|kernel| !kernel.is_empty()));

    let page = read(&scratch.path("one.html"));
    assert!(page.matches("<svg").count() >= 3, "plots");
    assert!(!page.contains("http://") || !page.contains("src="), "the page needs nothing else");

    let same = scratch.run(&["bench", "compare", "one.json", "one.json"]).exits_with(0);
    assert!(same.text().contains(" 1.000 "), "{}", same.text());
}

#[test]
fn a_store_is_recovered_in_another_process_than_wrote_it() {
    let scratch = Scratch::new();
    let command = ["bench", "run", "--workload", "recovery", "--systems", "depot"];
    let text = scratch.run(&[&command[..], &TINY[..]].concat()).exits_with(0).text();
    assert!(text.contains("recovery recover, sync"), "{text}");
}

#[test]
fn batching_models_of_flat_run_side_by_side() {
    let scratch = Scratch::new();
    let systems = "flat:cceh:none,flat:cceh:vertical,flat:masstree:naive-horizontal";
    let command =
        ["bench", "run", "--workload", "ycsb-a", "--systems", systems, "--json", "out.json"];
    scratch.run(&[&command[..], &TINY[..], &["--depth", "4"]].concat()).exits_with(0);
    let result: serde_json::Value = serde_json::from_str(&read(&scratch.path("out.json"))).unwrap();
    for system in systems.split(',') {
        let of = |row: &&serde_json::Value| row["system"] == system && row["phase"] == "run";
        let row = result["rows"].as_array().unwrap().iter().find(of).unwrap();
        assert!(row["ops"].as_u64().unwrap() > 0, "{row}");
        let (_, model) = system.rsplit_once(':').unwrap();
        assert_eq!(row["options"]["batching"], model, "{row}");
    }
}

#[test]
fn mistakes_of_the_command_line_are_usage() {
    let scratch = Scratch::new();
    for (arguments, words) in [
        (&["--systems", "flat:btree"][..], "not in this build"),
        (&["--workload", "ycsb-z"], "no workload ycsb-z"),
        (&["--distribution", "normal"], "no distribution"),
        (&["--utilization", "120"], "utilization"),
        (&["--cache", "much"], "no size"),
        (&["--seconds", "0"], "seconds"),
        (&["--seconds", "1e20"], "seconds"),
        (&["--warmup", "1e20"], "warmup"),
        (&["--warmup", "nan"], "warmup"),
        (&["--depth", "18446744073709551615"], "depth"),
        (&["--records", "18446744073709551615"], "records"),
        (&["--key-size", "18446744073709551615"], "key size"),
        (&["--value-size", "18446744073709551615"], "value size"),
        (&["--threads", "0"], "threads"),
        (&["--config", "missing.toml"], "missing.toml"),
        (&["--workload", "recovery", "--one-process"], "--one-process"),
    ] {
        let ran = scratch.run(&[&["bench", "run"][..], arguments].concat()).exits_with(2);
        assert!(ran.said.contains(words), "{arguments:?}: {}", ran.said);
    }
    std::fs::write(scratch.path("wrong.toml"), "workloads = [\"ycsb\"]\n").unwrap();
    let ran = scratch.run(&["bench", "run", "--config", "wrong.toml"]).exits_with(2);
    assert!(ran.said.contains("workloads"), "{}", ran.said);
}

#[test]
fn the_command_line_goes_before_the_file() {
    let scratch = Scratch::new();
    let text = "title = \"from the file\"\nworkload = [\"readrandom\"]\nsystems = [\"hashmap\"]\nrecords = 100\n";
    std::fs::write(scratch.path("plan.toml"), text).unwrap();
    let command =
        ["bench", "run", "--config", "plan.toml", "--json", "out.json", "--workload", "overwrite"];
    scratch.run(&[&command[..], &TINY[..]].concat()).exits_with(0);
    let result: serde_json::Value = serde_json::from_str(&read(&scratch.path("out.json"))).unwrap();
    assert_eq!(result["title"], "from the file");
    assert_eq!(result["options"]["records"], 300);
    assert!(result["rows"].as_array().unwrap().iter().any(|row| row["workload"] == "overwrite"));
}

#[test]
fn esker_is_started_loaded_and_stopped() {
    let scratch = Scratch::new();
    let ran = scratch
        .run(&[
            "bench",
            "server",
            "--servers",
            "esker",
            "--records",
            "500",
            "--seconds",
            "0.3",
            "--warmup",
            "0.1",
            "--repetitions",
            "1",
            "--connections",
            "4",
            "--rate",
            "500",
            "--data",
            "data",
            "--json",
            "out.json",
        ])
        .exits_with(0);
    assert!(ran.text().contains("memcache-gets-90"), "{}", ran.text());
    let result: serde_json::Value = serde_json::from_str(&read(&scratch.path("out.json"))).unwrap();
    let row = &result["rows"][0];
    assert!(row["ops"].as_u64().unwrap() > 50, "{row}");
    assert_eq!(row["skipped"], serde_json::Value::Null);
    assert_eq!(std::fs::read_dir(scratch.path("data")).unwrap().count(), 0);
    // Who compares it with another result is told what differs.
    let options =
        serde_json::json!({"durability": "none", "cache": "1GiB", "warmup": 0.1, "seed": 1});
    for (name, value) in options.as_object().unwrap() {
        assert_eq!(&result["options"][name], value, "{name}");
    }
}

const SERVER: [&str; 4] = ["bench", "server", "--servers", "esker"];
const RUN: [&str; 6] = ["bench", "run", "--workload", "ycsb-a", "--systems", "hashmap"];

#[test]
fn folders_that_a_bench_did_not_make_stay() {
    let scratch = Scratch::new();
    for folder in ["server", "cell"] {
        std::fs::create_dir(scratch.path(folder)).unwrap();
        std::fs::write(scratch.path(folder).join("f"), "mine").unwrap();
    }
    let here = ["--data", "."];
    scratch.run(&[&RUN[..], &TINY[..8], &here].concat()).exits_with(0);
    scratch.run(&[&SERVER[..], &TINY[..8], &here].concat()).exits_with(0);
    for folder in ["server", "cell"] {
        assert_eq!(read(&scratch.path(folder).join("f")), "mine");
        // Nor one that has the name of its own.
        let own = scratch.path(&format!("esker-bench-{folder}"));
        std::fs::create_dir(&own).unwrap();
        std::fs::write(own.join("f"), "mine").unwrap();
        for command in [&RUN[..], &SERVER] {
            let ran = scratch.run(&[command, &TINY[..8], &here].concat()).exits_with(2);
            assert!(ran.said.contains("is not of esker bench: it stays"), "{}", ran.said);
        }
        assert_eq!(read(&own.join("f")), "mine");
        std::fs::remove_dir_all(own).unwrap();
    }
}

#[test]
fn files_that_cannot_be_made_are_refused_before_anything_is_measured() {
    let scratch = Scratch::new();
    std::fs::write(scratch.path("old.json"), "old").unwrap();
    let raw = ["bench", "raw", "--no-device", "--io", "sync"];
    for command in [&RUN[..], &SERVER, &raw] {
        let tiny = if command == raw { &TINY[2..4] } else { &TINY[..] };
        let ran = scratch.run(&[command, tiny, &["--json", "none/x.json"]].concat()).exits_with(3);
        assert!(ran.said.contains("none/x.json") && ran.text().is_empty(), "{ran:?}");
    }
    for report in ["none/r.html", "data"] {
        let files = ["--json", "old.json", "--report", report];
        std::fs::create_dir_all(scratch.path("data")).unwrap();
        let ran = scratch.run(&[&RUN[..], &TINY, &files].concat()).exits_with(3);
        assert!(ran.said.contains(report) && ran.text().is_empty(), "{ran:?}");
        assert_eq!(read(&scratch.path("old.json")), "old");
        assert_eq!(std::fs::read_dir(scratch.path("")).unwrap().count(), 2);
    }
}

#[test]
fn files_may_lie_in_the_folder_that_is_made_for_data() {
    let raw = ["bench", "raw", "--size", "1MiB", "--only-device", "--io", "sync", "--depth", "1"];
    for command in [&RUN[..], &SERVER, &raw] {
        let scratch = Scratch::new();
        let tiny = if command == raw { &TINY[2..4] } else { &TINY[..8] };
        let files = ["--data", "d", "--json", "d/r.json"];
        let ran = scratch.run(&[command, tiny, &files].concat());
        // Not every file system has it.
        if !ran.said.contains("O_DIRECT") {
            ran.exits_with(0);
            assert!(scratch.path("d/r.json").exists());
        }
    }
}

#[test]
fn a_bench_whose_disk_is_full_says_so_and_the_next_one_has_its_folder() {
    let scratch = Scratch::new();
    let run = [&RUN[..], &TINY, &["--durability", "none"]].concat();
    let words = run.join(" ");
    // Without the signal, a file that would become too long is an error, as on a full disk.
    let line = format!("trap '' XFSZ; ulimit -f 0; exec {} {words}", env!("CARGO_BIN_EXE_esker"));
    let mut full = std::process::Command::new("sh");
    let full = full.args(["-c", &line]).current_dir(scratch.path("")).output().unwrap();
    let said = String::from_utf8_lossy(&full.stdout);
    assert!(full.status.code() == Some(1) && said.contains("File too large"), "{full:?}");
    scratch.run(&run).exits_with(0);
    assert!(!scratch.path("data/esker-bench-cell").exists());
}

#[test]
fn a_load_has_descriptors_for_its_connections() {
    let scratch = Scratch::new();
    let load = ["--records", "9", "--connections", "300", "--server-threads", "1"];
    let words = [&SERVER[..], &TINY[2..], &load].concat().join(" ");
    let line = format!("ulimit -Sn 200 && exec {} {words}", env!("CARGO_BIN_EXE_esker"));
    let mut few = std::process::Command::new("sh");
    let few = few.args(["-c", &line]).current_dir(scratch.path("")).output().unwrap();
    assert!(few.status.success(), "{few:?}");
}

#[test]
fn a_server_takes_the_load_whatever_is_set_for_another_one() {
    for load in [["--connections", "1500"], ["--value-size", "2097152"]] {
        let scratch = Scratch::new();
        let mut program = program(scratch.path("").as_path());
        program.args([&SERVER[..], &TINY[2..], &["--records", "9"], &load].concat());
        let done = program.env("ESKER_AUTH_FILE", "nowhere").output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success(), "{load:?}: {said}");
    }
}

/// What the server writes in a long warm-up, and before, is no part of the phase.
#[test]
fn what_a_server_used_is_that_of_the_measured_phase() {
    let scratch = Scratch::new();
    let load = ["bench", "server", "--servers", "esker", "--gets", "0", "--rate", "400"];
    let size = ["--records", "500", "--seconds", "0.5", "--warmup", "2.5", "--repetitions", "1"];
    let more = ["--connections", "4", "--data", "data", "--json", "out.json"];
    scratch.run(&[&load[..], &size, &more].concat()).exits_with(0);
    let result: serde_json::Value = serde_json::from_str(&read(&scratch.path("out.json"))).unwrap();
    let row = &result["rows"][0];
    let (user, written) = (&row["user_bytes"], &row["process_write_bytes"]);
    let (user, written) = (user.as_u64().unwrap(), written.as_u64().unwrap());
    assert!(user > 20_000 && written < 3 * user, "{written} for {user}");
    assert!(row["cpu_seconds"].is_number(), "{row}");
}

#[test]
fn of_a_server_elsewhere_nothing_is_known_but_its_replies() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch, &[]);
    let load =
        ["bench", "server", "--target", serving.address(), "--gets", "0", "--records", "100"];
    let more = ["--seconds", "0.2", "--warmup", "0", "--repetitions", "1", "--connections", "2"];
    scratch
        .run(&[&load[..], &more, &["--data", "data", "--json", "out.json"]].concat())
        .exits_with(0);
    let result: serde_json::Value = serde_json::from_str(&read(&scratch.path("out.json"))).unwrap();
    let row = &result["rows"][0];
    assert!(row["ops"].as_u64().unwrap() > 0 && row["user_bytes"].as_u64().unwrap() > 0, "{row}");
    for figure in ["device_write_bytes", "device_read_bytes", "process_write_bytes", "cpu_seconds"]
    {
        assert!(row[figure].is_null(), "{figure}: {row}");
    }
    stop_and_wait(serving, "-TERM");
}

#[test]
fn limits_and_names_are_printed() {
    let scratch = Scratch::new();
    let list = scratch.run(&["bench", "list"]).exits_with(0).text();
    for name in
        ["depot", "depot:uring", "hashmap", "fillseq", "ycsb-f", "etc-50", "udb-read-composite"]
    {
        assert!(list.contains(name), "{name}");
    }
    // Which clients a system has follows from its name.
    let has_tasks = |name: &str| {
        let line = list.lines().find(|line| line.split_whitespace().next() == Some(name));
        line.expect(name).contains("run-time of its own")
    };
    assert!(!has_tasks("flat:cceh") && !has_tasks("flat:masstree"), "{list}");
    assert!(has_tasks("flat:cceh:none") && has_tasks("depot:uring"), "{list}");
    let micro = scratch.run(&["bench", "micro", "--factor", "1"]).exits_with(0).text();
    assert!(micro.contains("zipfian rank"), "{micro}");
    let raw = scratch
        .run(&[
            "bench",
            "raw",
            "--no-device",
            "--seconds",
            "0.02",
            "--repetitions",
            "1",
            "--io",
            "sync",
        ])
        .exits_with(0)
        .text();
    assert!(raw.contains("memory-random-access") && raw.contains("loopback-round-trip"), "{raw}");
}

#[test]
fn mistakes_of_a_load_on_servers_are_usage() {
    let scratch = Scratch::new();
    for (option, words) in [
        ("--warmup=1e20", "--warmup"),
        ("--warmup=nan", "--warmup"),
        ("--warmup=-1", "--warmup"),
        ("--gets=101", "--gets"),
        ("--records=18446744073709551615", "--records"),
        ("--key-size=18446744073709551615", "--key-size"),
        ("--value-size=18446744073709551615", "--value-size"),
        ("--cache=lots", "\"lots\" is no size"),
        ("--repetitions=0", "--repetitions"),
        ("--servers=esker", "cannot be used with"),
    ] {
        let load = ["bench", "server", "--target", "127.0.0.1:1", option];
        let ran = scratch.run(&load).exits_with(2);
        assert!(ran.said.contains(words), "{option}: {}", ran.said);
    }
    for (options, words) in [
        (&["--depth", "0"][..], "--depth"),
        (&["--no-device", "--only-device"], "cannot be used with"),
    ] {
        let ran = scratch.run(&[&["bench", "raw"], options].concat()).exits_with(2);
        assert!(ran.said.contains(words), "{options:?}: {}", ran.said);
    }
    let micro = ["bench", "micro", "--factor", "18446744073709551615"];
    assert!(scratch.run(&micro).exits_with(2).said.contains("--factor"));
}
