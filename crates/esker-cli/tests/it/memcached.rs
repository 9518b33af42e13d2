//! `esker memcached`: started as memcached is, with its options.

use crate::program::{Scratch, program};
use rustix::process::{Pid, Signal};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A free port, as far as one can know.
fn port() -> String {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    free.local_addr().expect("bound").port().to_string()
}

/// Whether these tests run as root, who has to name a user.
fn user() -> &'static [&'static str] {
    let root = Command::new("id").arg("-u").output().is_ok_and(|done| done.stdout == b"0\n");
    if root { &["-u", "root"] } else { &[] }
}

struct Running(Child, Vec<String>);

impl Running {
    fn start(scratch: &Scratch, options: &[&str]) -> Running {
        let mut arguments = vec!["memcached"];
        arguments.extend(user());
        arguments.extend(options);
        Running::of(scratch.spawn(&arguments))
    }

    /// One that was started: it serves.
    fn of(mut child: Child) -> Running {
        let mut said = BufReader::new(child.stderr.take().expect("piped"));
        let mut lines: Vec<String> = Vec::new();
        while lines.last().is_none_or(|line| line != "ready") {
            let mut line = String::new();
            assert!(said.read_line(&mut line).expect("text") > 0, "it ended: {lines:?}");
            lines.push(line.trim_end().to_owned());
        }
        child.stderr = Some(said.into_inner());
        Running(child, lines)
    }

    fn ends(mut self) {
        assert_eq!(self.0.wait().expect("ends").code(), Some(0));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended, unless a test failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn chat(mut stream: impl Read + Write, words: &str) -> String {
    stream.write_all(words.as_bytes()).expect("send");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("receive");
    reply
}

fn talk(port: &str, words: &str) -> String {
    let stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("connect");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("timeout");
    chat(stream, words)
}

/// As [`talk`], of a client that says that this is all.
fn ask(port: &str, words: &str) -> String {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("connect");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("timeout");
    stream.write_all(words.as_bytes()).expect("send");
    stream.shutdown(Shutdown::Write).expect("end");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("receive");
    reply
}

#[test]
fn the_options_of_memcached_have_their_effect() {
    let (scratch, port) = (Scratch::new(), port());
    std::fs::write(scratch.path("users"), "ann:secret\n").expect("write");
    let options =
        ["-p", &port, "-l", "127.0.0.1", "-m", "100", "-c", "77", "-t2", "-I", "2k", "-FA"];
    let more = [
        "-o",
        "data=here,no_lru_crawler,idle_timeout=60",
        "-k",
        "-P",
        "pid",
        "--auth-file=users",
        "-vv",
    ];
    let running = Running::start(&scratch, &[&options[..], &more].concat());
    let notes = running.1.join("\n");
    assert!(
        notes.contains("-k has no effect: ") && notes.contains("-o no_lru_crawler has no effect: "),
        "{notes}"
    );
    assert!(!notes.contains("warning"), "{notes}");
    let pid = std::fs::read_to_string(scratch.path("pid")).expect("written");
    assert_eq!(pid.trim(), running.0.id().to_string());
    assert!(scratch.path("here").exists());
    let login = "set a 0 0 10\r\nann secret\r\n";
    let settings = talk(
        &port,
        &format!(
            "{login}stats settings\r\nflush_all\r\ncache_memlimit 100\r\ncache_memlimit 200\r\nquit\r\n"
        ),
    );
    for words in [
        "STAT maxconns 77\r\n",
        "STAT num_threads 2\r\n",
        "STAT verbosity 2\r\n",
        "STAT item_size_max 2048\r\n",
        "STAT idle_timeout 60\r\n",
        "STAT auth_enabled_ascii yes\r\n",
        "STAT flush_enabled no\r\n",
        "CLIENT_ERROR flush_all not allowed\r\nOK\r\nMEMLIMIT_ADJUST_FAILED ",
        &format!("STAT tcpport {port}\r\n"),
    ] {
        assert!(settings.contains(words), "{words:?} in {settings}");
    }
    assert_eq!(talk(&port, &format!("{login}shutdown\r\n")), "STORED\r\n");
    running.ends();
    assert!(!scratch.path("pid").exists());
}

#[test]
fn prefixes_are_counted_from_the_start_if_their_delimiter_is_given() {
    let (scratch, port) = (Scratch::new(), port());
    let running = Running::start(&scratch, &["-p", &port, "-D", "/", "-o", "data=here", "-A"]);
    assert!(!running.1.join("\n").contains("-D"), "{:?}", running.1);
    let told = talk(&port, "get a/b:c\r\nstats detail dump\r\nquit\r\n");
    assert_eq!(told, "END\r\nPREFIX a get 1 hit 0 set 0 del 0\r\nEND\r\n");
    assert_eq!(talk(&port, "shutdown\r\n"), "");
    running.ends();
}

#[test]
fn watching_can_be_forbidden() {
    let (scratch, port) = (Scratch::new(), port());
    let running = Running::start(&scratch, &["-p", &port, "-W", "-o", "data=here", "-A"]);
    assert!(!running.1.join("\n").contains("-W"), "{:?}", running.1);
    let told = talk(&port, "watch\r\nwatch nothing\r\nwatch noreply\r\nget k\r\nquit\r\n");
    let refused = "CLIENT_ERROR watch commands not allowed\r\n";
    assert_eq!(told, format!("{refused}{refused}END\r\n"));
    assert_eq!(talk(&port, "shutdown\r\n"), "");
    running.ends();
}

#[test]
fn a_hangup_has_credentials_read_again_and_ends_nothing() {
    let (scratch, port) = (Scratch::new(), port());
    std::fs::write(scratch.path("users"), "ann:secret\n").expect("write");
    let options = ["-p", &port, "-l", "127.0.0.1", "-o", "data=here", "-A", "-Y", "users"];
    let mut running = Running::start(&scratch, &options);
    let mut said = BufReader::new(running.0.stderr.take().expect("piped"));
    let (ann, bob) = ("set a 0 0 10\r\nann secret\r\n", "set a 0 0 7\r\nbob new\r\n");
    let mut hangs_up = |expected: &str| {
        let process = rustix::process::Pid::from_child(&running.0);
        rustix::process::kill_process(process, rustix::process::Signal::HUP).expect("signal");
        let mut line = String::new();
        said.read_line(&mut line).expect("text");
        assert!(line.starts_with(expected), "{line}");
    };
    for (text, expected) in [
        ("bob:new\n", "read credentials again"),
        ("nonsense\n", "credentials stay as they were: users"),
    ] {
        std::fs::write(scratch.path("users"), text).expect("write");
        hangs_up(expected);
        assert!(ask(&port, ann).starts_with("CLIENT_ERROR"));
        assert_eq!(ask(&port, bob), "STORED\r\n");
    }
    assert_eq!(talk(&port, &format!("{bob}shutdown\r\n")), "STORED\r\n");
    running.ends();
}

#[test]
fn the_file_with_the_id_is_that_of_the_process_that_serves() {
    let (scratch, port) = (Scratch::new(), port());
    let pid = || std::fs::read_to_string(scratch.path("pid")).ok();
    let options = ["-p", &port, "-l", "127.0.0.1", "-o", "data=here", "-A", "-P", "pid"];
    // Longer than any id, of a process that is gone.
    std::fs::write(scratch.path("pid"), "99999999999999\n").expect("write");
    let running = Running::start(&scratch, &options);
    let own = Some(format!("{}\n", running.0.id()));
    assert_eq!(pid(), own);
    let again = [&["memcached"], user(), &options].concat();
    // The port is taken, and the store is.
    assert_ne!(scratch.run(&again).code, Some(0));
    assert_eq!(pid(), own);
    talk(&port, "shutdown\r\n");
    running.ends();
    assert_eq!(pid(), None);
    // What comes of nothing leaves nothing, and what somebody else wrote meanwhile.
    let wrong = [&["memcached"], user(), &options, &["-m", "64", "-e", "/dev/null/x"]].concat();
    assert_ne!(scratch.run(&wrong).code, Some(0));
    assert_eq!(pid(), None);
    let running = Running::start(&scratch, &options);
    std::fs::write(scratch.path("pid"), "1\n").expect("write");
    talk(&port, "shutdown\r\n");
    running.ends();
    assert_eq!(pid().as_deref(), Some("1\n"));
}

#[test]
fn the_ports_of_a_server_are_in_the_file_that_the_environment_names() {
    let scratch = Scratch::new();
    let mut command = program(scratch.path("").as_path());
    command.args(["memcached", "-l", "127.0.0.1,[::1]", "-p", "-1", "-o", "data=here", "-A"]);
    command.args(user()).env("MEMCACHED_PORT_FILENAME", "ports").stderr(Stdio::piped());
    let running = Running::of(command.spawn().expect("starts"));
    let told = std::fs::read_to_string(scratch.path("ports")).expect("a file of text");
    let heard = |line: &String| line.strip_prefix("listening on memcache://").map(str::to_owned);
    let heard: Vec<String> = running.1.iter().filter_map(heard).collect();
    let lines = heard.iter().map(|address| {
        let (host, port) = address.rsplit_once(':').expect("a port");
        format!("TCP {}: {port}\n", if host == "[::1]" { "INET6" } else { "INET" })
    });
    assert_eq!(told, lines.collect::<String>());
    assert!(!scratch.path("ports.lck").exists());
    let port = told.strip_prefix("TCP INET: ").expect("the first").split('\n').next();
    assert_eq!(talk(port.expect("a line"), "shutdown\r\n"), "");
    running.ends();
}

#[test]
fn a_server_at_any_port_that_does_not_come_about_leaves_no_data() {
    let scratch = Scratch::new();
    let words = ["memcached", "-l", "127.0.0.1", "-p", "-1", "-o", "format"];
    let child = scratch.spawn(&[&words[..], user()].concat());
    let ending = format!("-any-{}", child.id());
    assert_ne!(child.wait_with_output().expect("ends").status.code(), Some(0));
    let left = std::fs::read_dir("/var/tmp").expect("a folder").filter_map(Result::ok);
    let mut left = left.map(|entry| entry.file_name().to_string_lossy().into_owned());
    assert!(!left.any(|name| name.ends_with(&ending)), "{ending}");
}

#[test]
fn words_that_are_no_text_are_refused() {
    use std::os::unix::ffi::OsStrExt;
    let scratch = Scratch::new();
    for option in ["-e", "-s", "-P"] {
        let word = std::ffi::OsStr::from_bytes(b"a\xffb");
        let mut program = program(scratch.path("").as_path());
        let done = program.args(["memcached", option]).arg(word).output().expect("runs");
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!((done.status.code(), said.contains("a\\xffb is not UTF-8")), (Some(2), true));
    }
}

#[test]
fn a_socket_file_takes_the_place_of_the_port() {
    let scratch = Scratch::new();
    let path = scratch.path("socket");
    let running =
        Running::start(&scratch, &["-s", "socket", "-a", "0777", "-o", "data=here", "-A"]);
    let stream = UnixStream::connect(&path).expect("connect");
    assert_eq!(chat(stream, "ms k 2\r\nhi\r\nmg k v\r\nshutdown\r\n"), "HD\r\nVA 2\r\nhi\r\n");
    running.ends();
}

#[test]
fn in_the_background_it_serves_until_it_is_told_to_stop() {
    let (scratch, port) = (Scratch::new(), port());
    let mut arguments = vec![
        "memcached",
        "-d",
        "-P",
        "pid",
        "-A",
        "-l",
        "127.0.0.1",
        "-p",
        &port,
        "-o",
        "data=here",
    ];
    arguments.extend(user());
    let ran = scratch.run(&arguments).exits_with(0);
    assert!(ran.said.contains("ready"), "{ran:?}");
    let pid = std::fs::read_to_string(scratch.path("pid")).expect("written");
    let folder = std::fs::read_link(format!("/proc/{}/cwd", pid.trim())).expect("it runs");
    assert_eq!(folder, std::path::Path::new("/"), "nobody's folder is held");
    assert!(scratch.path("here").exists(), "a relative path is that of whoever started it");
    assert_eq!(
        talk(&port, "set k 0 0 1\r\n1\r\nget k\r\nshutdown\r\n"),
        "STORED\r\nVALUE k 0 1\r\n1\r\nEND\r\n"
    );
    for _ in 0..1000 {
        if !scratch.path("pid").exists() {
            return;
        }
        esker_trt::sleep(Duration::from_millis(10));
    }
    panic!("process {pid} is still there");
}

#[test]
fn what_goes_wrong_in_the_background_is_told_in_front() {
    let scratch = Scratch::new();
    std::fs::write(scratch.path("file"), "no folder").expect("write");
    let mut arguments =
        vec!["memcached", "-d", "-l", "127.0.0.1", "-p", "-1", "-o", "data=file/sub"];
    arguments.extend(user());
    let ran = scratch.run(&arguments);
    assert_eq!(ran.code, Some(3));
    assert!(ran.said.contains("file/sub") && ran.said.contains("before it was ready"), "{ran:?}");
    // With the exit code that it would have had in front.
    let wrong = ["-p", "-1", "-Y", "missing"];
    for mode in [&["memcached"][..], &["memcached", "-d"]] {
        let ran = scratch.run(&[mode, &wrong, user()].concat());
        assert_eq!(ran.code, Some(2), "{ran:?}");
    }
}

#[test]
fn what_an_existing_store_does_not_become_is_told() {
    let (scratch, port) = (Scratch::new(), port());
    let base = ["-p", &port, "-l", "127.0.0.1", "-o", "data=here", "-A"];
    for (more, told) in [
        (&["-m", "64"][..], &[][..]),
        (&["-m", "64m"], &[]),
        (&[], &[]),
        (
            &["-m", "4096", "-M"],
            &[
                "-m 4096 has no effect: the store at here keeps its ",
                "-M has no effect: the store at here",
            ],
        ),
    ] {
        let running = Running::start(&scratch, &[&base[..], more].concat());
        let said: Vec<&String> =
            running.1.iter().filter(|line| line.contains("has no effect")).collect();
        assert_eq!(said.len(), told.len(), "{more:?}: {said:?}");
        for words in told {
            assert!(said.iter().any(|line| line.starts_with(words)), "{words:?} in {said:?}");
        }
        talk(&port, "shutdown\r\n");
        running.ends();
    }
}

#[test]
fn a_store_that_a_server_has_open_says_what_can_be_done() {
    let (scratch, port) = (Scratch::new(), port());
    let base = ["-p", &port, "-l", "127.0.0.1", "-m", "64", "-o", "data=here", "-A"];
    let running = Running::start(&scratch, &base);
    for command in [&["backup", "copy", "--data", "here"][..], &["check", "--data", "here"]] {
        let ran = scratch.run(command);
        assert_eq!(ran.code, Some(3), "{ran:?}");
        for words in ["stop the server", "--server", "Store::backup"] {
            assert!(ran.said.contains(words), "{words:?} in {ran:?}");
        }
    }
    talk(&port, "shutdown\r\n");
    running.ends();
}

#[test]
fn a_star_listens_at_both_kinds_of_addresses() {
    let (scratch, port) = (Scratch::new(), port());
    let running =
        Running::start(&scratch, &["-p", &port, "-l", "*", "-m", "64", "-o", "data=here", "-A"]);
    if std::net::UdpSocket::bind("[::1]:0").is_ok() {
        let stream = TcpStream::connect(format!("[::1]:{port}")).expect("connect");
        assert_eq!(chat(stream, "mn\r\nquit\r\n"), "MN\r\n");
    } else {
        esker_testkit::skipped::because("half of it: there is no IPv6 here");
    }
    assert_eq!(talk(&port, "mn\r\nshutdown\r\n"), "MN\r\n");
    running.ends();
}

#[test]
fn who_can_reach_a_server_is_told_of_listeners_without_tls_too() {
    let (scratch, port) = (Scratch::new(), port());
    let options = ["-l", "notls:0.0.0.0", "-p", &port, "-o", "data=here", "-A"];
    let running = Running::start(&scratch, &options);
    let warns = running.1.iter().any(|line| line.starts_with("warning: other machines can reach"));
    assert!(warns, "{:?}", running.1);
    assert_eq!(talk(&port, "shutdown\r\n"), "");
    running.ends();
}

#[test]
fn root_may_serve_more_connections_than_files_are_permitted_to_others() {
    if user().is_empty() {
        esker_testkit::skipped::because("only root raises the bound");
        return;
    }
    let raises = Command::new("sh").args(["-c", "ulimit -n 256 && ulimit -n 2000"]).output();
    if !raises.is_ok_and(|done| done.status.success()) {
        esker_testkit::skipped::because("this root may not raise the bound");
        return;
    }
    let (scratch, port) = (Scratch::new(), port());
    use std::os::unix::fs::PermissionsExt;
    let all = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(scratch.path(""), all).expect("chmod");
    let line = format!(
        "ulimit -n 256 && exec {} memcached -u nobody -l 127.0.0.1 -p {port} -c 2000 -m 64 -A -o data=here",
        env!("CARGO_BIN_EXE_esker")
    );
    let mut child = Command::new("sh")
        .args(["-c", &line])
        .current_dir(scratch.path(""))
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("start");
    let said = BufReader::new(child.stderr.take().expect("piped"));
    let lines: Vec<String> =
        said.lines().map_while(Result::ok).take_while(|line| line != "ready").collect();
    assert!(!lines.iter().any(|line| line.contains("ulimit")), "{lines:?}");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", child.id())).expect("it runs");
    let files = limits.lines().find(|line| line.starts_with("Max open files")).expect("a line");
    let soft = files.split_whitespace().nth(3).and_then(|number| number.parse::<u64>().ok());
    assert!(soft.is_some_and(|soft| soft >= 2000), "{files}");
    assert_eq!(talk(&port, "shutdown\r\n"), "");
    assert!(child.wait().expect("ends").success());
}

#[test]
fn servers_at_any_port_share_no_data_and_leave_none() {
    let scratch = Scratch::new();
    let [one, other] = [(), ()]
        .map(|()| Running::start(&scratch, &["-l", "127.0.0.1", "-p", "-1", "-m", "64", "-A"]));
    let port = |server: &Running| {
        let line =
            server.1.iter().find(|line| line.contains("127.0.0.1:")).expect("a port").clone();
        let digits = line.split("127.0.0.1:").nth(1).unwrap_or_default();
        digits.chars().take_while(char::is_ascii_digit).collect::<String>()
    };
    assert_eq!(
        ask(&port(&one), "set a 0 0 1\r\n1\r\nget a\r\n"),
        "STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\n"
    );
    assert_eq!(ask(&port(&other), "get a\r\n"), "END\r\n");
    for server in [one, other] {
        let ending = format!("-any-{}", server.0.id());
        let left = std::fs::read_dir("/var/tmp").expect("a folder").filter_map(Result::ok);
        let mut left = left.map(|entry| entry.file_name().to_string_lossy().into_owned());
        assert!(!left.any(|name| name.ends_with(&ending)), "{ending}");
        talk(&port(&server), "shutdown\r\n");
        server.ends();
    }
}

#[test]
fn servers_at_two_ports_of_one_address_have_data_of_their_own() {
    let scratch = Scratch::new();
    let start = |port: &str| {
        let mut program = program(scratch.path("").as_path());
        program.args(["memcached", "-l", &format!("127.0.0.1:{port}"), "-m", "64", "-A"]);
        program.args(user()).env("STATE_DIRECTORY", scratch.path("state"));
        Running::of(program.spawn().expect("start"))
    };
    let ports = [port(), port()];
    let servers = ports.each_ref().map(|port| start(port));
    assert_eq!(ask(&ports[0], "set a 0 0 1\r\n1\r\n"), "STORED\r\n");
    assert_eq!(ask(&ports[1], "get a\r\n"), "END\r\n");
    for (server, port) in servers.into_iter().zip(&ports) {
        assert!(scratch.path("state").join(format!("memcached-{port}")).is_dir());
        talk(port, "shutdown\r\n");
        server.ends();
    }
}

#[test]
fn help_and_version_are_told_and_mistakes_refused() {
    let scratch = Scratch::new();
    assert!(scratch.run(&["memcached", "-h"]).exits_with(0).text().contains("--memory-limit"));
    assert!(
        scratch
            .run(&["memcached", "-V"])
            .exits_with(0)
            .text()
            .starts_with("memcached 1.6.18-esker")
    );
    // A part of it would be all users that there are.
    std::fs::write(scratch.path("long"), "ann:secret\n".repeat(100_000)).expect("write");
    for (options, words) in [
        (&["-z"][..], "no option -z"),
        (&["-S"], "SASL"),
        (&["-U", "11211"], "UDP"),
        (&["-l", "127.0.0.1", "-u", "no-such-user"], "no-such-user"),
        (&["-Z", "-o", "ssl_chain_cert=nowhere.pem"], "nowhere.pem"),
        (&["-Y", "nowhere"], "nowhere"),
        (&["-Y", "long"], "long: larger than "),
    ] {
        if options.contains(&"no-such-user") && user().is_empty() {
            esker_testkit::skipped::because("only root changes the user");
            continue;
        }
        let ran = scratch.run(&[&["memcached"], options].concat());
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.said.contains(words), "{ran:?}");
    }
}

#[test]
fn root_becomes_the_user_it_names() {
    if user().is_empty() {
        esker_testkit::skipped::because("only root changes the user");
        return;
    }
    let (scratch, port) = (Scratch::new(), port());
    let open = |path: &std::path::Path| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("chmod");
    };
    open(scratch.path("").as_path());
    let mut child = program(scratch.path("").as_path())
        .args([
            "memcached",
            "-u",
            "nobody",
            "-l",
            "127.0.0.1",
            "-p",
            &port,
            "-A",
            "-o",
            "data=here",
        ])
        .spawn()
        .expect("start");
    let mut said = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    while line.trim_end() != "ready" {
        line.clear();
        assert!(said.read_line(&mut line).expect("text") > 0, "it ended");
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).expect("status");
    let uid = status.lines().find(|line| line.starts_with("Uid:")).expect("a line");
    assert!(uid.split_whitespace().skip(1).all(|id| id == "65534"), "{uid}");
    // Every thread, not only the first.
    for task in std::fs::read_dir(format!("/proc/{}/task", child.id())).expect("tasks") {
        let path = task.expect("task").path().join("status");
        let status = std::fs::read_to_string(path).expect("status");
        assert!(status.contains("Uid:\t65534\t65534\t65534\t65534"), "{status}");
    }
    assert_eq!(talk(&port, "shutdown\r\n"), "");
    assert!(child.wait().expect("ends").success());
}

#[test]
fn a_shutdown_that_two_clients_ask_for_loses_nothing() {
    let scratch = Scratch::new();
    let port = port();
    let options = ["-l", "127.0.0.1", "-p", &port, "-A", "-o", "data=here"];
    let running = Running::start(&scratch, &options);
    assert_eq!(talk(&port, "set k 0 0 2\r\nhi\r\nquit\r\n"), "STORED\r\n");
    let connect = || TcpStream::connect(format!("127.0.0.1:{port}")).expect("connect");
    let mut clients: Vec<TcpStream> = (0..4).map(|_| connect()).collect();
    // All are served before one of them speaks.
    for client in &mut clients {
        client.write_all(b"mn\r\n").expect("send");
        client.read_exact(&mut [0; 4]).expect("an answer");
    }
    for client in &mut clients {
        // Who comes late finds nobody.
        let _ = client.write_all(b"shutdown\r\n");
    }
    running.ends();
    let running = Running::start(&scratch, &options);
    assert_eq!(talk(&port, "get k\r\nshutdown\r\n"), "VALUE k 0 2\r\nhi\r\nEND\r\n");
    running.ends();
}

#[test]
fn a_shutdown_that_is_asked_for_amid_a_clean_stop_loses_nothing() {
    let scratch = Scratch::new();
    let port = port();
    let options = ["-l", "127.0.0.1", "-p", &port, "-A", "-o", "data=here"];
    for round in 0..4 {
        let running = Running::start(&scratch, &options);
        let set = format!("set k{round} 0 0 2\r\nhi\r\nquit\r\n");
        assert_eq!(talk(&port, &set), "STORED\r\n");
        let mut client = TcpStream::connect(format!("127.0.0.1:{port}")).expect("connect");
        client.write_all(b"mn\r\n").expect("send");
        client.read_exact(&mut [0; 4]).expect("an answer");
        let process = Pid::from_child(&running.0);
        rustix::process::kill_process(process, Signal::TERM).expect("signal");
        // The stop has begun by now, and waits for who is idle.
        esker_trt::sleep(Duration::from_millis(20 * round));
        let _ = client.write_all(b"shutdown\r\n");
        running.ends();
    }
    let running = Running::start(&scratch, &options);
    for round in 0..4 {
        let get = format!("get k{round}\r\nquit\r\n");
        assert_eq!(talk(&port, &get), format!("VALUE k{round} 0 2\r\nhi\r\nEND\r\n"));
    }
    assert_eq!(talk(&port, "shutdown\r\n"), "");
    running.ends();
}
