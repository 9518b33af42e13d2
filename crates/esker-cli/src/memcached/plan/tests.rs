//! What a command line comes to.

use super::*;
use std::collections::BTreeSet;
use std::net::{ToSocketAddrs, UdpSocket};

fn plan(line: &str) -> Result<Plan, String> {
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let given = options::read(&words).map_err(|failure| failure.to_string())?;
    Plan::of(&given).map_err(|failure| failure.to_string())
}

#[test]
fn defaults_are_those_of_memcached_but_for_the_address() {
    let plan = plan("").expect("valid");
    let host = ListenAddress::Tcp("127.0.0.1:11211".parse().expect("address"));
    assert_eq!(plan.listen, [host]);
    assert_eq!((plan.size_bytes, plan.cores, plan.evict), (64 * MIB, 4, true));
    assert_eq!(plan.limits.connections_max, 1024);
    assert_eq!(plan.limits.item_size_max_bytes, MIB);
    assert_eq!((plan.unix_mode, plan.shutdown, plan.flush), (0o700, false, true));
}

#[test]
fn a_line_of_a_distribution_is_understood() {
    let plan = plan("-m 128 -p 11300 -u memcache -l 127.0.0.1,[::1]:5 -P /run/m.pid -c 2048 -I 2m -t 2 -vv -M -F -A -o modern,idle_timeout=30,no_lru_crawler,relaxed_privileges").expect("valid");
    let shown: Vec<String> = plan.listen.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["memcache://127.0.0.1:11300", "memcache://[::1]:5"]);
    assert_eq!((plan.size_bytes, plan.cores, plan.verbose), (128 * MIB, 2, 2));
    assert_eq!((plan.evict, plan.flush, plan.shutdown), (false, false, true));
    assert_eq!(plan.limits.item_size_max_bytes, 2 * MIB);
    assert_eq!(plan.limits.idle_timeout, Duration::from_secs(30));
    assert_eq!(plan.notes.len(), 3, "{:?}", plan.notes);
}

#[test]
fn nothing_is_said_more_than_all() {
    let line = format!("--verbose={} -v", usize::MAX);
    assert_eq!(plan(&line).expect("valid").verbose, usize::MAX);
}

#[test]
fn servers_are_told_apart_by_port_or_socket() {
    let place = |line: &str| plan(line).unwrap().place().unwrap();
    assert_eq!(place("-p 11212").as_deref(), Some("11212"));
    assert_eq!(place("-s /run/a/b.sock -p 0").as_deref(), Some("run-a-b.sock"));
    assert_eq!((place("-p -1"), place("-p 0 -p -1")), (None, None));
    for (line, name) in [
        ("", "11211"),
        ("-l 127.0.0.1", "11211"),
        ("-l 127.0.0.1:11212", "11212"),
        ("-l notls:[::1]:11212", "11212"),
        ("-l notls:[::1]:5,127.0.0.1:6", "6"),
        ("-l *:7", "7"),
        ("-l 192.0.2.1 -p 7", "192.0.2.1:7"),
        ("-l 192.0.2.1,127.0.0.1", "192.0.2.1:11211"),
        ("-l 127.0.0.1,192.0.2.1", "11211"),
        ("-l [2001:db8::1]:7", "[2001:db8::1]:7"),
        ("-p -1 -l 127.0.0.1:5", "5"),
    ] {
        assert_eq!(place(line).as_deref(), Some(name), "{line}");
    }
    assert_eq!(place("-l 127.0.0.1:0"), None);
    let folder = std::env::current_dir().unwrap();
    assert_eq!(place("-s b.sock"), place(&format!("-s {}/b.sock", folder.display())));
    // No two paths have one name.
    let paths =
        ["/run/a/b", "/run/a-b", "/run/a%2db", "/run/a/-b", "/run/a-/b", "/run/a--b", "/run/ä"];
    let names: BTreeSet<String> =
        paths.iter().map(|path| place(&format!("-s {path}")).unwrap()).collect();
    assert_eq!(names.len(), paths.len(), "{names:?}");
    assert!(names.iter().all(|name| !name.contains('/')), "{names:?}");
}

#[test]
fn the_memory_of_many_encrypted_connections_is_counted() {
    let memory = |line: &str| plan(line).expect(line).limits.memory_max_bytes;
    let each = |tls: &str| {
        let bytes = |count: u32| memory(&format!("-c {count} {tls}"));
        (bytes(200_000) - bytes(100_000)) / 100_000
    };
    assert_eq!((each(""), each("-Z -o ssl_chain_cert=chain")), (8 * KIB, 72 * KIB));
}

#[test]
fn connections_that_are_only_there_make_nothing_short() {
    let tls = "-Z -o ssl_chain_cert=chain";
    for (count, tls) in [(1000, ""), (200_000, ""), (1000, tls), (3500, tls), (200_000, tls)] {
        let line = format!("-c {count} {tls}");
        let limits = plan(&line).expect("valid").limits;
        let budget = limits.budget(!tls.is_empty());
        let idle = count * Limits::connection_bytes(!tls.is_empty());
        let _idle = budget.try_take(idle).expect(&line);
        assert!(!budget.is_short(), "{line}");
        let _rest = budget.try_take(budget.free_bytes() * 4 / 5).expect(&line);
        assert!(budget.is_short(), "{line}");
    }
}

#[test]
fn a_star_is_every_address_and_minus_one_any_port() {
    let both = UdpSocket::bind("[::]:0").is_ok();
    for (line, four, six) in [
        ("-l * -p 5", "memcache://0.0.0.0:5", Some("memcache://[::]:5")),
        ("-l *:7", "memcache://0.0.0.0:7", Some("memcache://[::]:7")),
        ("-p -1", "memcache://127.0.0.1:0", None),
    ] {
        let expected: Vec<&str> =
            [Some(four), six.filter(|_| both)].into_iter().flatten().collect();
        assert_eq!(shown(&plan(line).expect(line).listen), expected, "{line}");
    }
}

fn shown(addresses: &[ListenAddress]) -> Vec<String> {
    addresses.iter().map(ToString::to_string).collect()
}

#[test]
fn names_are_all_their_addresses_each_once() {
    let plan = plan("-l localhost;127.0.0.1,,[127.0.0.1]:11211 -l 127.0.0.1:5;127.0.0.1:5")
        .expect("valid");
    let all = ("localhost", PORT).to_socket_addrs().expect("known");
    let (all, unusable) = usable(all.collect());
    assert_eq!(plan.notes.len(), unusable.len());
    assert!(all.iter().all(|address| plan.listen.contains(&ListenAddress::Tcp(*address))));
    let four = shown(&plan.listen);
    let of_four: Vec<&String> = four.iter().filter(|name| name.contains("127.0.0.1")).collect();
    assert_eq!(of_four, ["memcache://127.0.0.1:11211", "memcache://127.0.0.1:5"]);
    // One that is no address of this machine, from a range for examples.
    let (mine, other) = ("127.0.0.1:7".parse().expect("one"), "192.0.2.1:7".parse().expect("one"));
    let (here, unusable) = usable(vec![other, mine]);
    assert_eq!((here, unusable.len()), (vec![mine], 1));
    assert_eq!(usable(vec![other]).0, [other], "who is named by itself is meant");
    assert_eq!(usable(vec![other, other]).0.len(), 2, "somebody has to say that it fails");
}

#[test]
fn addresses_of_one_interface_have_its_number() {
    let lines = "-l [fe80::1%1]:5;[fe80::1%lo]:6;fe80::1%lo;[fe80::1%lo];fe80::2%1;::1;[::1]:7";
    let addresses = ["[fe80::1%1]:5", "[fe80::1%1]:6", "[fe80::1%1]:11211", "[fe80::2%1]:11211"];
    let expected = addresses.iter().chain(&["[::1]:11211", "[::1]:7"]);
    let expected: Vec<String> = expected.map(|text| format!("memcache://{text}")).collect();
    assert_eq!(shown(&plan(lines).expect("valid").listen), expected);
    for wrong in ["-l [fe80::1%nowhere]:5", "-l [fe80::1%]:5", "-l fe80::1%lo:6", "-l fe80::1%1:6"]
    {
        let words = plan(wrong).expect_err(wrong);
        assert!(words.starts_with(&format!("memcached: {wrong}: ")), "{words}");
    }
}

#[test]
fn marks_of_listeners_are_understood() {
    let marked = plan("-l proto[ascii]:127.0.0.1:5,tag[x]:127.0.0.1:6,notls:proto[negotiating]:[::1]:7,proto[ascii]:notls:127.0.0.1").expect("valid");
    assert_eq!(shown(&marked.listen), ["memcache://127.0.0.1:5", "memcache://127.0.0.1:6"]);
    assert_eq!(shown(&marked.listen_plain), ["memcache://[::1]:7", "memcache://127.0.0.1:11211"]);
    assert!(matches!(&marked.notes[..], [note] if note.contains("tag[x] has no effect: ")));
}

#[test]
fn sizes_mean_what_their_unit_says() {
    for (line, mebibytes) in [
        ("-m 100", 100),
        ("-m 64m", 64),
        ("-m 1024M", 1024),
        ("-m 2g", 2048),
        ("-m 131072k", 128),
        ("-m 100MiB", 100),
    ] {
        assert_eq!(plan(line).expect(line).size_bytes, mebibytes * MIB, "{line}");
    }
}

#[test]
fn nobody_is_hurried_unless_it_is_asked_for() {
    let timeout = |line| plan(line).expect(line).limits.request_timeout;
    assert_eq!(timeout(""), Duration::ZERO);
    assert_eq!(timeout("-o request_timeout=7"), Duration::from_secs(7));
}

#[test]
fn in_the_background_every_path_is_absolute() {
    let mut plan = plan("-d -s sock -P pid -Y users -e data").expect("valid");
    plan.make_absolute().expect("there is a folder");
    let socket = plan.listen.iter().map(|address| match address {
        ListenAddress::Unix(path) => path.clone(),
        other => panic!("{other}"),
    });
    let paths = [plan.pid_file.clone(), plan.auth_file.clone(), plan.data.clone()];
    let folder = std::env::current_dir().expect("there is one");
    let all: Vec<PathBuf> = socket.chain(paths.into_iter().flatten()).collect();
    assert_eq!(all, ["sock", "pid", "users", "data"].map(|name| folder.join(name)));
}

#[test]
fn a_container_serves_those_outside() {
    let file = include_str!("../../../../../dist/container/Containerfile");
    let line = file.lines().find_map(|line| line.strip_prefix("ENTRYPOINT ")).expect("there");
    let words: Vec<String> = serde_json::from_str(line).expect("a list");
    assert_eq!(words[..2], ["esker", "memcached"]);
    let plan = plan(&format!("{} -m 128", words[2..].join(" "))).expect("valid");
    assert!(!plan.listen.is_empty() && !plan.listen.iter().any(ListenAddress::is_local));
    assert!(file.contains(&format!("EXPOSE {}\n", plan.port)) && plan.data.is_some());
}

#[test]
fn a_unit_serves_this_host() {
    let file = include_str!("../../../../../dist/systemd/esker-memcached.service");
    let of = |name| file.lines().find_map(|line| line.strip_prefix(name)).expect("there");
    let mut line = of("ExecStart=/usr/bin/esker memcached ").replace("$OPTIONS", "");
    for variable in of("Environment=").split(' ') {
        let (name, value) = variable.split_once('=').expect("a value");
        line = line.replace(&format!("${{{name}}}"), value);
    }
    let plan = plan(&line).expect("valid");
    assert!(plan.listen.iter().all(ListenAddress::is_local) && plan.notes.is_empty());
    assert_eq!((plan.listen.len(), plan.port, plan.size_bytes), (1, PORT, 1024 * MIB));
}

#[test]
fn options_without_a_meaning_are_told_and_change_nothing() {
    let plan = plan(
        "-k -L -C -r -f 1.25 -n 48 -R 20 -b 1024 -U 0 -B ascii -o slab_sizes=100-200,no_chunked_items",
    )
    .expect("valid");
    assert_eq!(plan.notes.len(), 10, "{:?}", plan.notes);
    assert!(plan.notes.iter().all(|note| note.contains("has no effect: ")));
}

#[test]
fn a_delimiter_is_the_first_byte_of_what_is_given() {
    let delimiter = |line: &str| plan(line).expect("valid").delimiter;
    assert_eq!((delimiter(""), delimiter("-D /")), (None, Some(b'/')));
    assert_eq!((delimiter("-D::x"), delimiter("--delimiter=.")), (Some(b':'), Some(b'.')));
}

#[test]
fn wrong_options_are_refused_in_words() {
    for (line, words) in [
        ("-p abc", "no number"),
        ("--delimiter=", "-D: no delimiter is given"),
        ("-p 65536", "no number"),
        ("-p 0", "-s FILE"),
        ("-p 0 -l 127.0.0.1:5", "-s FILE"),
        ("-c 0", "greater than 0"),
        ("-t 0", "greater than 0"),
        ("-m 0", "greater than 0"),
        ("-m 0g", "greater than 0"),
        ("-m 64x", "no number"),
        ("-m m", "no number"),
        ("-l proto[binary]:127.0.0.1", "binary"),
        ("-l proto[x]:127.0.0.1", "none of"),
        ("-o request_timeout=x", "no number"),
        ("-I 100", "less than 1024"),
        ("-I 2000m", "more than 1024m"),
        ("-I 40m", "half of the memory"),
        ("-a 999", "octal"),
        ("-f 1", "out of range"),
        ("-R 0", "out of range"),
        ("-B foo", "none of"),
        ("-B binary", "not supported"),
        ("-S", "-Y FILE"),
        ("-U 11211", "UDP"),
        ("-U -1", "UDP"),
        ("-p 99999", "-p: \"99999\" is no number from 0 to 65535"),
        ("-l localhost:99999", "is no number from 0 to 65535"),
        ("-o bogus", "\"bogus\""),
        ("-o data", "needs a value"),
        ("-Z", "ssl_chain_cert"),
        ("-o ssl_key=x", "together with -Z"),
        ("-Z -s /x -o ssl_chain_cert=x", "TCP port"),
        ("-o ssl_verify_mode=2", "not checked"),
        ("-l no.such.host.invalid", "-l no.such.host.invalid"),
    ] {
        let error = plan(line).expect_err(line);
        assert!(error.contains(words), "{line}: {error}");
    }
}

#[test]
fn small_stores_are_raised_and_it_is_told() {
    let plan = plan("-m 1").expect("valid");
    assert_eq!(plan.size_bytes, 64 * MIB);
    assert!(plan.notes[0].contains("raised to 64"), "{:?}", plan.notes);
}
