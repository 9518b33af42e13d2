//! `esker serve`: start, configuration, signals.

use crate::program::{Scratch, program};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command};
use std::time::Duration;

/// A server that runs until it is told to stop.
pub(crate) struct Serving {
    pub(crate) child: Child,
    lines: Vec<String>,
    address: String,
}

impl Serving {
    pub(crate) fn start(scratch: &Scratch, more: &[&str]) -> Serving {
        Serving::start_at(scratch, "memcache", more)
    }

    /// A server that speaks this protocol.
    pub(crate) fn start_at(scratch: &Scratch, protocol: &str, more: &[&str]) -> Serving {
        let listen = format!("{protocol}://127.0.0.1:0");
        let mut arguments = vec!["serve", "--listen", &listen];
        arguments.extend(more);
        Serving::of(scratch.spawn(&arguments), protocol)
    }

    /// A server that was started.
    fn of(mut child: Child, protocol: &str) -> Serving {
        let mut said = BufReader::new(child.stderr.take().expect("piped"));
        let mut lines = Vec::new();
        while lines.last().is_none_or(|line| line != "ready") {
            let mut line = String::new();
            let count = said.read_line(&mut line).expect("text");
            if count == 0 {
                let status = child.wait().expect("ends");
                panic!("it ended, {status}: {lines:?}");
            }
            lines.push(line.trim_end().to_owned());
        }
        child.stderr = Some(said.into_inner());
        let said = format!("listening on {protocol}://");
        let address = lines.iter().find_map(|line| line.strip_prefix(&said));
        let address = address.expect("it says where").to_owned();
        Serving { child, lines, address }
    }

    /// Host and port.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("connect");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("timeout");
        stream
    }

    pub(crate) fn talk(&self, words: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(words.as_bytes()).expect("send");
        stream.write_all(b"quit\r\n").expect("send");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("receive");
        reply
    }

    /// Ends the process as a crash would.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("kill");
        self.child.wait().expect("ends");
    }

    fn signal(&self, name: &str) {
        let done =
            Command::new("kill").args([name, &self.child.id().to_string()]).status().expect("kill");
        assert!(done.success());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // It has ended, unless a test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn stop_and_wait(mut serving: Serving, signal: &str) -> String {
    serving.signal(signal);
    let status = serving.child.wait().expect("ends");
    assert_eq!(status.code(), Some(0));
    let mut rest = String::new();
    serving.child.stderr.take().expect("piped").read_to_string(&mut rest).expect("text");
    rest
}

#[test]
fn it_says_what_runs_where_and_stops_cleanly() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch, &["--cores", "2"]);
    let said = serving.lines.join("\n");
    for words in [
        "esker 0.",
        "data in ./esker-data",
        "engine depot",
        "durability sync",
        "I/O by 2 cores on ",
        "listening on memcache://127.0.0.1:",
    ] {
        assert!(said.contains(words), "{words:?} is missing in {said}");
    }
    assert_eq!(serving.talk("set k 5 0 5\r\nhello\r\n"), "STORED\r\n");
    let idle = serving.connect();
    assert!(stop_and_wait(serving, "-TERM").contains("stopped"));
    drop(idle);
    assert_eq!(scratch.run(&["get", "k"]).exits_with(0).output, b"hello");
    let serving = Serving::start(&scratch, &[]);
    assert_eq!(serving.talk("get k\r\n"), "VALUE k 5 5\r\nhello\r\nEND\r\n");
    stop_and_wait(serving, "-INT");
    let serving = Serving::start(&scratch, &["--durability", "none"]);
    assert_eq!(serving.talk("set k 5 0 4\r\nlast\r\n"), "STORED\r\n");
    stop_and_wait(serving, "-USR1");
    assert_eq!(scratch.run(&["get", "k"]).exits_with(0).output, b"last");
}

/// Whoever passes a signal on may send it twice: a cache would begin empty for that.
#[test]
fn a_signal_that_comes_again_does_not_cut_a_clean_stop_off() {
    let scratch = Scratch::new();
    let options = ["--cache", "--durability", "none"];
    let serving = Serving::start(&scratch, &options);
    let value = "v".repeat(100_000);
    let sets: String = (0..400).map(|n| format!("set k{n} 0 0 100000\r\n{value}\r\n")).collect();
    assert_eq!(serving.talk(&sets), "STORED\r\n".repeat(400));
    for signal in ["-TERM", "-USR1", "-TERM"] {
        serving.signal(signal);
    }
    assert!(stop_and_wait(serving, "-TERM").contains("stopped"));
    let serving = Serving::start(&scratch, &options);
    assert!(serving.talk("get k399\r\n").starts_with("VALUE k399 0 100000"));
    // Who does not want to wait says so.
    let idle = serving.connect();
    serving.signal("-TERM");
    serving.signal("-INT");
    drop(idle);
}

#[test]
fn a_server_that_cannot_listen_makes_no_store() {
    let scratch = Scratch::new();
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    let port = taken.local_addr().expect("bound").port();
    let [taken, remote] =
        [format!("memcache://127.0.0.1:{port}"), "memcache://0.0.0.0:0".to_owned()];
    // Two at one port that is free, one after the other.
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    let place = free.local_addr().expect("bound");
    drop(free);
    let twice = format!("memcache://{place},native://{place}");
    let file_twice = scratch.path("e.sock").display().to_string();
    let file_twice = format!("memcache+unix://{file_twice},native+unix://{file_twice}");
    let at = |path: &str| format!("native+unix://{}", scratch.path(path).display());
    std::fs::write(scratch.path("file"), "no socket").expect("write");
    let [nowhere, long, file] = [at("no/such/folder"), at(&"x".repeat(200)), at("file")];
    for (listen, code) in [
        (&taken, 3),
        (&remote, 2),
        (&twice, 3),
        (&file_twice, 3),
        (&nowhere, 3),
        (&long, 3),
        (&file, 3),
    ] {
        let ran = scratch.run(&["serve", "--listen", listen]).exits_with(code);
        let last = listen.split(',').next_back().expect("one");
        assert!(ran.said.contains(last), "{ran:?}");
        assert!(!scratch.path("esker-data").exists(), "{listen}: a store was made");
    }
}

#[test]
fn a_socket_may_lie_in_the_folder_that_is_made_for_data_or_above_it() {
    for socket in ["new/data/e.sock", "new/e.sock"] {
        let scratch = Scratch::new();
        let listen = format!("unix://{}", scratch.path(socket).display());
        let serving = Serving::start(&scratch, &["--listen", &listen, "--data", "new/data"]);
        assert!(scratch.path(socket).exists());
        stop_and_wait(serving, "-TERM");
    }
    let scratch = Scratch::new();
    let below = format!("unix://{}", scratch.path("new/below/e.sock").display());
    scratch.run(&["serve", "--listen", &below, "--data", "new"]).exits_with(3);
    assert!(!scratch.path("new").exists(), "a store was made");
}

#[test]
fn what_was_acknowledged_is_there_after_kill_9() {
    let scratch = Scratch::new();
    let mut serving = Serving::start(&scratch, &[]);
    let puts: String = (0..200).map(|n| format!("set k{n} 0 0 3\r\n{n:03}\r\n")).collect();
    assert_eq!(serving.talk(&puts), "STORED\r\n".repeat(200));
    serving.child.kill().expect("kill");
    serving.child.wait().expect("ends");
    let again = Serving::start(&scratch, &[]);
    for n in 0..200 {
        assert_eq!(
            again.talk(&format!("get k{n}\r\n")),
            format!("VALUE k{n} 0 3\r\n{n:03}\r\nEND\r\n")
        );
    }
    stop_and_wait(again, "-TERM");
}

#[test]
fn a_store_in_use_is_refused_to_a_second_process() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch, &[]);
    let ran = scratch.run(&["get", "k"]).exits_with(3);
    assert!(ran.said.contains("another process"), "{ran:?}");
    stop_and_wait(serving, "-TERM");
}

#[test]
fn each_facility_serves() {
    for facility in ["uring", "aio", "sync"] {
        let scratch = Scratch::new();
        let serving = Serving::start(
            &scratch,
            &["--io", &format!("{facility},sync"), "--durability", "none"],
        );
        assert_eq!(
            serving.talk("set k 0 0 1\r\nv\r\nget k\r\n"),
            "STORED\r\nVALUE k 0 1\r\nv\r\nEND\r\n",
            "{facility}"
        );
        let said = serving.lines.iter().find_map(|line| line.strip_prefix("I/O by "));
        let said = said.expect("it says what serves").to_owned();
        let (cores, refused) = said.split_once("; refused: ").unwrap_or((&said, ""));
        let serves = cores.split_once(" cores on ").expect("it names the facility").1;
        // Not permitted, none free or left, or not known.
        let by_system = [1, 11, 12, 38].map(|code| refused.contains(&format!("(os error {code})")));
        if by_system.contains(&true) {
            esker_testkit::skipped::because(format_args!("the system refuses {refused}"));
        } else {
            assert!(serves.starts_with(facility), "{facility} was asked for: {said}");
        }
        stop_and_wait(serving, "-TERM");
    }
}

#[test]
fn what_a_place_cannot_have_is_refused_and_nothing_there_is_overwritten() {
    let scratch = Scratch::new();
    let content = vec![7; 1 << 20];
    std::fs::write(scratch.path("device"), &content).expect("write");
    // Not the port that is the default: whoever runs the tests may have a server there.
    let serve = ["serve", "--listen", "memcache://127.0.0.1:0", "--data", "device", "--size"];
    let ran = scratch.run(&[&serve[..], &["1GiB"]].concat()).exits_with(2);
    assert!(ran.said.contains("device has 1 MiB"), "{ran:?}");
    let ran = scratch.run(&["put", "k", "v", "--data", "device", "--size", "1GiB"]).exits_with(2);
    assert!(ran.said.contains("device has 1 MiB"), "{ran:?}");
    // A file is not what `--format` is for, whatever it holds.
    let fits = [&serve[..], &["1MiB"]].concat();
    let ran = scratch.run(&[&fits[..], &["--format"]].concat()).exits_with(2);
    assert!(ran.said.contains("raw device"), "{ran:?}");
    let ran = scratch.run(&fits).exits_with(2);
    assert!(ran.said.contains("no esker store"), "{ran:?}");
    assert!(std::fs::read(scratch.path("device")).expect("there") == content);
}

#[test]
fn the_configuration_comes_from_file_environment_and_command_line() {
    let scratch = Scratch::new();
    let defaults = scratch.run(&["serve", "--print-defaults"]).exits_with(0);
    std::fs::write(scratch.path("defaults.toml"), &defaults.output).expect("write");
    scratch.run(&["serve", "--config", "defaults.toml", "--check-config"]).exits_with(0);
    std::fs::write(scratch.path("esker.toml"), "data = \"from-file\"\nitem-size-max = \"2KiB\"\n")
        .expect("write");
    let serving = Serving::start(&scratch, &["--config", "esker.toml"]);
    assert!(scratch.path("from-file").exists());
    assert!(serving.talk("stats settings\r\n").contains("STAT item_size_max 2048\r\n"));
    stop_and_wait(serving, "-TERM");
    std::fs::write(scratch.path("bad.toml"), "cores = 1\n\nshape = \"round\"\n").expect("write");
    let ran = scratch.run(&["serve", "--config", "bad.toml"]).exits_with(2);
    assert!(ran.said.contains("bad.toml:3: shape: no such option"), "{ran:?}");
}

#[test]
fn what_a_configuration_file_asks_of_a_store_that_has_it_otherwise_is_said_to_have_no_effect() {
    let scratch = Scratch::new();
    stop_and_wait(Serving::start(&scratch, &["--cache"]), "-TERM");
    let no_effect = |config: &str| {
        std::fs::write(scratch.path("esker.toml"), config).expect("write");
        let mut program = program(scratch.path("").as_path());
        program.env_remove("ESKER_SIZE");
        program.args(["serve", "--listen", "memcache://127.0.0.1:0", "--config", "esker.toml"]);
        let mut serving = Serving::of(program.spawn().expect("start esker"), "memcache");
        let mut lines = std::mem::take(&mut serving.lines);
        stop_and_wait(serving, "-TERM");
        lines.retain(|line| line.contains("has no effect"));
        lines
    };
    let said = no_effect("cores = 1\nsize = \"1GiB\"\n");
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("esker.toml:2: size = 1GiB has no effect"), "{said:?}");
    // All defaults ask for nothing.
    let defaults = scratch.run(&["serve", "--print-defaults"]).exits_with(0).text();
    assert_eq!(no_effect(&defaults), [""; 0]);
    std::fs::write(scratch.path("defaults.toml"), defaults).expect("write");
    let file = std::fs::File::create(scratch.path("small")).expect("create");
    file.set_len(128 << 20).expect("grow");
    let mut program = program(scratch.path("").as_path());
    program.env_remove("ESKER_SIZE");
    program.args(["serve", "--config", "defaults.toml", "--data", "small", "--check-config"]);
    let done = program.output().expect("run");
    assert!(done.status.success(), "{done:?}");
}

#[test]
fn backups_of_a_store_do_not_lie_in_its_own_folder() {
    let scratch = Scratch::new();
    for backups in ["esker-data", "./esker-data/backups", "esker-data/../esker-data/new"] {
        for check in [&["--check-config"][..], &[]] {
            let ran = scratch.run(&[&["serve", "--backups", backups], check].concat());
            let said = &ran.exits_with(2).said;
            assert!(said.contains(backups) && said.contains("./esker-data,"), "{said}");
        }
    }
    assert!(!scratch.path("esker-data").exists());
    std::fs::write(scratch.path("letter"), b"dear").expect("write");
    let ran = scratch.run(&["serve", "--backups", "letter", "--check-config"]).exits_with(2);
    assert!(ran.said.contains("letter is no folder"), "{ran:?}");
    std::fs::write(scratch.path("esker.toml"), "backups = \"from-file\"\n").expect("write");
    let serving = Serving::start(&scratch, &["--config", "esker.toml"]);
    assert!(serving.lines.iter().any(|line| line.ends_with("go to from-file")));
    stop_and_wait(serving, "-TERM");
    assert!(!scratch.path("from-file").exists(), "nobody has asked for one");
}

#[test]
fn a_server_of_flex_has_the_tables_that_it_was_told() {
    let logs_after = |more: &[&str]| {
        let scratch = Scratch::new();
        let serving = Serving::start(&scratch, &[&["--engine", "flex"], more].concat());
        let value = "v".repeat(1000);
        let puts: String = (0..3000).map(|n| format!("set k{n} 0 0 1000\r\n{value}\r\n")).collect();
        assert_eq!(serving.talk(&puts), "STORED\r\n".repeat(3000));
        stop_and_wait(serving, "-TERM");
        let size = |log: &str| std::fs::metadata(scratch.path(log)).expect("a log").len();
        size("esker-data/flex.wal.0") + size("esker-data/flex.wal.1")
    };
    // A log takes what its table does.
    assert!(logs_after(&[]) > 3_000_000);
    let most = logs_after(&["--flex-memtable", "64KiB", "--flex-cache", "0", "--flex-scrub", "0"]);
    assert!(most < 1_000_000, "{most}");
}

#[test]
fn a_server_of_flex_says_once_that_its_store_is_larger_than_the_room_for_it() {
    for (size, times) in [("100TiB", 1), ("64MiB", 0)] {
        let scratch = Scratch::new();
        let serving = Serving::start(&scratch, &["--engine", "flex", "--size", size]);
        let words = "the file system has ";
        let told = serving.lines.iter().filter(|line| line.contains(words));
        assert_eq!(told.count(), times, "{:?}", serving.lines);
        stop_and_wait(serving, "-TERM");
    }
}

#[test]
fn what_the_environment_says_is_checked_as_well() {
    let scratch = Scratch::new();
    for (name, value, words) in [
        ("ESKER_BACKUPS", "esker-data/backups", "where the data are"),
        ("ESKER_FLEX_CACHE", "17TiB", "the cache of flex has at most 16 TiB"),
        ("ESKER_FLEX_MEMTABLE", "64", "64 is less than 64KiB"),
        ("ESKER_FLEX_SCRUB", "fast", "\"fast\" is no size"),
    ] {
        let mut program = program(scratch.path("").as_path());
        program.args(["serve", "--check-config"]).env(name, value);
        let done = program.output().expect("run");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(2), "{name}: {said}");
        assert!(said.contains(words) && !said.contains("warning"), "{name}: {said}");
    }
}

#[test]
fn encrypted_connections_need_memory_for_their_encryption() {
    let scratch = Scratch::new();
    let limits =
        ["serve", "--check-config", "--connections-max", "10000", "--memory-max", "256MiB"];
    scratch.run(&limits).exits_with(0);
    let ran = scratch.run(&[&limits[..], &["--tls-cert", "chain.pem"]].concat()).exits_with(2);
    assert!(ran.said.contains("10000 connections of 68 KiB"), "{}", ran.said);
}

/// Each client in shared memory has two descriptors for each core, also where the cores are all that there are.
#[test]
fn there_are_descriptors_for_clients_in_shared_memory() {
    let cores = std::thread::available_parallelism().expect("known").get();
    let wanted = 900 * (1 + 2 * cores);
    let scratch = Scratch::new();
    let hard = Command::new("sh").args(["-c", "ulimit -Hn"]).output().expect("runs");
    let hard = String::from_utf8_lossy(&hard.stdout).trim().parse::<usize>();
    if hard.is_ok_and(|hard| hard < wanted) {
        esker_testkit::skipped::because("the system does not permit so many");
        return;
    }
    let listen = format!("shm://{}", scratch.path("socket").display());
    let more = ["--listen", &listen, "--cores", "0", "--connections-max", "900"];
    let (_, soft) = descriptors(&scratch, 512, &more);
    assert!(soft >= wanted, "{soft}");
}

/// Each client has memory for each core, so that on a machine with many of them few clients find room.
#[test]
fn a_server_says_how_many_clients_in_shared_memory_find_room() {
    let scratch = Scratch::new();
    let shared = format!("shm://{}", scratch.path("socket").display());
    for (memory, words) in [("16MiB", "room for 15 clients"), ("32MiB", "room for 30 clients")] {
        let more = ["--listen", &shared, "--cores", "2", "--memory-max", memory];
        let serving = Serving::start(&scratch, &more);
        let said = serving.lines.iter().any(|line| line.starts_with(words));
        assert!(said, "{words:?} is missing in {:?}", serving.lines);
        stop_and_wait(serving, "-TERM");
    }
    let serving = Serving::start(&scratch, &[]);
    assert!(!serving.lines.iter().any(|line| line.contains("shared memory")));
}

/// Each core has some, too: a machine of many of them has none left for connections otherwise.
#[test]
fn there_are_descriptors_for_connections_beside_those_of_many_cores() {
    let scratch = Scratch::new();
    let listen = "memcache://127.0.0.1:0";
    let more = ["--listen", listen, "--cores", "40", "--connections-max", "200"];
    let (open, soft) = descriptors(&scratch, 328, &more);
    let turned_away = esker_server::TURNED_AWAY_MAX as usize;
    assert!(soft >= open + 200 + turned_away, "{open} are open, of {soft}");
}

/// How many descriptors a server with these options has open once it is ready, and how many it may have at most,
/// where `soft` are permitted unless it asks for more.
fn descriptors(scratch: &Scratch, soft: usize, more: &[&str]) -> (usize, usize) {
    let line = format!(
        "ulimit -Sn {soft} && exec {} serve --size 256MiB {}",
        env!("CARGO_BIN_EXE_esker"),
        more.join(" ")
    );
    let mut child = Command::new("sh")
        .args(["-c", &line])
        .current_dir(scratch.path(""))
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("start");
    let said = BufReader::new(child.stderr.take().expect("piped"));
    let ready = said.lines().map_while(Result::ok).any(|line| line == "ready");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", child.id()));
    let open = std::fs::read_dir(format!("/proc/{}/fd", child.id())).map(Iterator::count);
    child.kill().expect("it runs");
    child.wait().expect("ends");
    assert!(ready);
    let limits = limits.expect("it ran");
    let files = limits.lines().find(|line| line.starts_with("Max open files")).expect("a line");
    let soft = files.split_whitespace().nth(3).expect("a number");
    (open.expect("it ran"), soft.parse().unwrap_or(usize::MAX))
}

#[test]
fn a_filter_of_the_log_that_is_none_is_said_to_be_ignored() {
    let scratch = Scratch::new();
    let mut program = program(scratch.path("").as_path());
    program.args(["serve", "--listen", "memcache://127.0.0.1:0"]).env("ESKER_LOG", "esker=loud");
    let serving = Serving::of(program.spawn().expect("start esker"), "memcache");
    let said = serving.lines.iter().any(|line| line.starts_with("warning: ESKER_LOG is no filter"));
    assert!(said, "{:?}", serving.lines);
    stop_and_wait(serving, "-TERM");
}

#[test]
fn variables_that_are_no_options_are_named() {
    let scratch = Scratch::new();
    let mut program = program(scratch.path("").as_path());
    program.args(["serve", "--check-config"]);
    program.env("ESKER_MEMORYMAX", "1GiB").env("ESKER_MEMORY_MAX", "1GiB").env("ESKER_LOG", "info");
    let done = program.output().expect("run");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{said}");
    let warnings: Vec<&str> = said.lines().filter(|line| line.starts_with("warning: ")).collect();
    assert_eq!(warnings, ["warning: ESKER_MEMORYMAX is no option of esker serve and is ignored"]);
}

/// There is nothing to finish then, and whoever stops a service does not wait for its recovery.
#[test]
fn the_first_signal_ends_a_server_that_is_still_opening_its_store() {
    use std::os::unix::process::ExitStatusExt;
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch, &[]);
    stop_and_wait(serving, "-TERM");
    let file = scratch.path("esker-data/depot.esker");
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    let held = rustix::fs::open(&file, flags, rustix::fs::Mode::empty()).expect("a store");
    // It waits for the lock for some seconds.
    let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    rustix::fs::flock(&held, lock).expect("nobody has it");
    let child = scratch.spawn(&["serve"]);
    std::thread::park_timeout(Duration::from_millis(700));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    let done = child.wait_with_output().expect("ends");
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.signal(), Some(15), "{said}");
    assert!(!said.contains("ready"), "{said}");
}
