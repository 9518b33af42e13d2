//! Commands that ask servers instead of opening a store.

use crate::program::Scratch;
use crate::serving::{Serving, stop_and_wait};
use rustix::process::{Pid, Signal};
use std::process::Child;
use std::time::Duration;

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
    std::fs::write(scratch.path("bytes"), b"user:\xff\n").expect("write");
    let put = ["put", "k", "v", "--server", &url, "--auth-file"];
    assert!(scratch.run(&[&put[..], &["bytes"]].concat()).exits_with(2).said.contains("UTF-8"));
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

#[test]
fn a_running_server_is_backed_up_again_and_again() {
    for engine in ["depot", "flex"] {
        let scratch = Scratch::new();
        std::fs::write(scratch.path("users"), "ann:secret\n").expect("write");
        let more = ["--engine", engine, "--backups", "deep/copies", "--auth-file", "users"];
        let serving = Serving::start_at(&scratch, "native", &more);
        let url = url(&serving);
        let run = |arguments: &[&str]| {
            scratch.run(&[arguments, &["--server", &url, "--auth-file", "users"]].concat())
        };
        run(&["put", "colour", "blue"]).exits_with(0);
        let refused = scratch.run(&["backup", "--server", &url]).exits_with(2);
        assert!(refused.said.contains("has not said who it is"), "{refused:?}");
        assert!(!scratch.path("deep").exists(), "it is made when it is needed");
        let first = run(&["backup"]).exits_with(0);
        assert!(first.said.starts_with(&format!("{url}: ")), "{first:?}");
        assert!(first.said.contains("segments copied"), "{first:?}");
        run(&["put", "colour", "green"]).exits_with(0);
        run(&["backup"]).exits_with(0);
        scratch.run(&["restore", "deep/copies", "--data", "new"]).exits_with(0);
        assert_eq!(scratch.run(&["get", "colour", "--data", "new"]).exits_with(0).text(), "green");
        let said = stop_and_wait(serving, "-TERM");
        for words in ["backup to deep/copies begins", "backup to deep/copies done: "] {
            assert_eq!(said.matches(words).count(), 2, "{words:?} in {said}");
        }
    }
}

#[test]
fn a_backup_goes_to_a_folder_or_a_server_is_asked_for_it() {
    let scratch = Scratch::new();
    scratch.run(&["put", "k", "v"]).exits_with(0);
    for wrong in [&["backup"][..], &["backup", "copy", "--server", "native://127.0.0.1:1"]] {
        let ran = scratch.run(wrong).exits_with(2);
        assert!(ran.said.contains("--server") && ran.said.contains("DIR"), "{ran:?}");
    }
    assert!(!scratch.path("copy").exists());
    let serving = Serving::start_at(&scratch, "native", &[]);
    let url = url(&serving);
    let ran = scratch.run(&["backup", "--server", &url]).exits_with(2);
    assert!(ran.said.contains(&url) && ran.said.contains("--backups DIR"), "{ran:?}");
    // What is refused for the server's sake says how to go about it.
    let ran = scratch.run(&["backup", "copy"]).exits_with(3);
    assert!(ran.said.contains("--server URL") && ran.said.contains("backup"), "{ran:?}");
    stop_and_wait(serving, "-TERM");
    let ran = scratch.run(&["backup", "--server", &url]).exits_with(3);
    assert!(ran.said.contains(&url) && ran.said.contains("not sent"), "{ran:?}");
    // Two servers, one folder.
    let serving = Serving::start_at(&scratch, "native", &["--backups", "copies"]);
    std::fs::create_dir(scratch.path("copies")).expect("folder");
    let folder = rustix::fs::open(
        scratch.path("copies"),
        rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .expect("open");
    rustix::fs::flock(&folder, rustix::fs::FlockOperation::LockExclusive).expect("lock");
    let ran = scratch.run(&["backup", "--server", &self::url(&serving)]).exits_with(3);
    assert!(ran.said.contains("another process uses"), "{ran:?}");
    // By word: a process that another test starts may have a copy of it.
    rustix::fs::flock(&folder, rustix::fs::FlockOperation::Unlock).expect("unlock");
    scratch.run(&["backup", "--server", &self::url(&serving)]).exits_with(0);
    stop_and_wait(serving, "-TERM");
    // What came to the folder that is no backup.
    std::fs::create_dir(scratch.path("full")).expect("folder");
    std::fs::write(scratch.path("full/letter"), b"dear").expect("write");
    let serving = Serving::start_at(&scratch, "native", &["--backups", "full"]);
    let ran = scratch.run(&["backup", "--server", &self::url(&serving)]).exits_with(2);
    assert!(ran.said.contains("whose log says more"), "{ran:?}");
    let said = stop_and_wait(serving, "-TERM");
    assert!(said.contains("letter"), "{said}");
}

#[test]
fn each_of_several_servers_is_backed_up_whatever_becomes_of_the_others() {
    let scratches: Vec<Scratch> = (0..3).map(|_| Scratch::new()).collect();
    let permitted = ["--backups", "copies"];
    let servings: Vec<Serving> = [&permitted[..], &[], &permitted]
        .iter()
        .zip(&scratches)
        .map(|(more, scratch)| Serving::start_at(scratch, "native", more))
        .collect();
    let urls: Vec<String> = servings.iter().map(url).collect();
    let all: Vec<&str> = urls.iter().flat_map(|url| ["--server", url]).collect();
    let ran = scratches[0].run(&[&["backup"], &all[..]].concat()).exits_with(2);
    let lines: Vec<&str> = ran.said.lines().collect();
    assert_eq!(lines.len(), 3, "{ran:?}");
    assert!(lines[0].starts_with(&format!("{}: ", urls[0])), "{ran:?}");
    assert!(lines[1].starts_with(&format!("{}: ", urls[2])), "{ran:?}");
    assert!(lines[2].starts_with(&format!("esker: {}: ", urls[1])), "{ran:?}");
    for (scratch, made) in scratches.iter().zip([true, false, true]) {
        assert_eq!(scratch.path("copies/MANIFEST").exists(), made);
    }
    servings.into_iter().for_each(|serving| drop(stop_and_wait(serving, "-TERM")));
}

#[test]
fn a_server_ends_on_sigterm_although_the_folder_of_its_backup_hangs() {
    let scratch = Scratch::new();
    let more = ["--backups", "copies"];
    std::fs::create_dir(scratch.path("copies")).expect("folder");
    // Whoever opens it to write waits for a reader, who never comes.
    let pipe = scratch.path("copies/MANIFEST.new");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).expect("pipe");
    let serving = Serving::start_at(&scratch, "native", &more);
    let url = url(&serving);
    scratch.run(&["put", "k", "v", "--server", &url]).exits_with(0);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| scratch.run(&["backup", "--server", &url]));
        let segment = |name: &str| name.starts_with("segment-");
        while !std::fs::read_dir(scratch.path("copies"))
            .expect("there")
            .any(|file| file.expect("a file").file_name().to_str().is_some_and(segment))
        {
            std::thread::park_timeout(std::time::Duration::from_millis(5));
        }
        let said = stop_and_wait(serving, "-TERM");
        assert!(said.contains("stopped"), "{said}");
        asked.join().expect("no panic").exits_with(3);
    });
    std::fs::remove_file(pipe).expect("remove");
    assert_eq!(scratch.run(&["get", "k"]).exits_with(0).text(), "v");
    scratch.run(&["backup", "copies"]).exits_with(0);
}

/// What a server has, a client does not say.
#[test]
fn what_is_of_a_new_store_is_refused_where_a_server_is_asked() {
    let scratch = Scratch::new();
    for (option, name) in [
        (&["--size", "1GiB"][..], "--size"),
        (&["--engine", "flex"], "--engine"),
        (&["--pmem-emulate"], "--pmem-emulate"),
    ] {
        let put = ["put", "k", "v", "--server", "native://127.0.0.1:1"];
        let ran = scratch.run(&[&put[..], option].concat()).exits_with(2);
        assert!(ran.said.starts_with(&format!("esker: {name} is of a store")), "{ran:?}");
    }
    for command in [&["get", "k"][..], &["delete", "k"], &["stat"], &["backup", "copies"]] {
        let more = ["--server", "native://127.0.0.1:1", "--data", "here"];
        let ran = scratch.run(&[command, &more].concat()).exits_with(2);
        assert!(ran.said.starts_with("esker: --data is of a store"), "{ran:?}");
    }
}

/// ^Z and `fg` while a client waits for a greeting.
#[test]
fn a_client_that_is_stopped_and_goes_on_is_greeted() {
    for protocol in ["native", "shm"] {
        let scratch = Scratch::new();
        let socket = format!("shm://{}", scratch.path("esker.sock").display());
        let serving = Serving::start_at(&scratch, "native", &["--listen", &socket]);
        let url = if protocol == "shm" { socket } else { url(&serving) };
        signal(&serving.child, Signal::STOP);
        let client = scratch.spawn(&["get", "k", "--server", &url]);
        // Until it waits for the server.
        esker_trt::sleep(Duration::from_millis(500));
        signal(&client, Signal::STOP);
        esker_trt::sleep(Duration::from_millis(50));
        signal(&client, Signal::CONT);
        esker_trt::sleep(Duration::from_millis(50));
        signal(&serving.child, Signal::CONT);
        let done = client.wait_with_output().expect("ends");
        assert_eq!(done.status.code(), Some(1), "{done:?}");
        stop_and_wait(serving, "-TERM");
    }
}

fn signal(child: &Child, signal: Signal) {
    rustix::process::kill_process(Pid::from_child(child), signal).expect("signal");
}
