//! Tests of the parser: golden lines, hostile numbers, and indifference to how bytes are cut.

use super::*;
use esker_base::rng::Rng;

/// Everything the parser makes of a stream in which data blocks follow their commands, received in
/// pieces that end at `cuts`.
fn parse_all(stream: &[u8], cuts: impl IntoIterator<Item = usize>) -> Vec<String> {
    let (mut parser, mut seen, mut base, mut skip) = (Parser::new(), Vec::new(), 0_usize, 0_usize);
    for end in cuts.into_iter().chain([stream.len()]) {
        loop {
            let swallowed = skip.min(end - base);
            base += swallowed;
            skip -= swallowed;
            if skip > 0 {
                break;
            }
            let input = &stream[base..end];
            let Parsed::Request(request, consumed) = parser.next(input) else { break };
            assert!(consumed > 0 && consumed <= input.len());
            seen.push(show(&request, input));
            base += consumed;
            match request {
                Request::Store(store) => skip = usize::try_from(store.length).expect("small") + 2,
                Request::Refused(Refusal { then: Then::Swallow(bytes), .. }) => {
                    skip = usize::try_from(bytes).expect("small");
                }
                Request::Refused(Refusal { then: Then::Close, .. }) | Request::Quit => return seen,
                _ => {}
            }
        }
    }
    seen
}

fn show(request: &Request, input: &[u8]) -> String {
    let text = |span: Span| String::from_utf8_lossy(span.of(input)).into_owned();
    match request {
        Request::Get { with_cas, exptime, keys } => {
            format!("get {with_cas} {exptime:?} [{}]", text(*keys).trim())
        }
        Request::Store(store) => format!(
            "{:?} {} {} {} {} {} {}",
            store.verb,
            text(store.key),
            store.flags,
            store.exptime,
            store.length,
            store.cas,
            store.noreply
        ),
        Request::Delete { key, noreply } => format!("delete {} {noreply}", text(*key)),
        Request::Touch { key, exptime, noreply } => {
            format!("touch {} {exptime} {noreply}", text(*key))
        }
        Request::Arithmetic { direction, key, delta, noreply } => {
            format!("{direction:?} {} {delta} {noreply}", text(*key))
        }
        Request::Stats { section } => format!("stats {}", text(*section)),
        Request::Detail(detail) => format!("detail {detail:?}"),
        Request::Dump(DumpRequest { form, all, limit }) => format!("dump {form:?} {all} {limit}"),
        Request::Watch(kinds) => format!("watch {kinds:?}"),
        Request::Version => "version".into(),
        Request::Verbosity { noreply } => format!("verbosity {noreply}"),
        Request::FlushAll { delay, noreply } => format!("flush_all {delay} {noreply}"),
        Request::Quit => "quit".into(),
        Request::Meta { verb, key, flags } => {
            format!("meta {verb:?} {} [{}]", text(*key), text(*flags).trim())
        }
        Request::MetaNoop => "mn".into(),
        Request::Shutdown(mode) => format!("shutdown {mode:?}"),
        Request::MemoryLimit { mebibytes, noreply } => format!("limit {mebibytes} {noreply}"),
        Request::Refused(Refusal { line, then }) => {
            format!("{} {then:?}", String::from_utf8_lossy(line).trim())
        }
    }
}

fn parse_one(line: &str) -> String {
    let stream = [line.as_bytes(), b"\r\n"].concat();
    parse_all(&stream, []).into_iter().next().unwrap_or_default()
}

#[test]
fn lines_mean_what_memcached_reads_in_them() {
    for (line, expected) in [
        ("get a", "get false None [a]"),
        ("  get  a   b ", "get false None [a   b]"),
        ("gets a", "get true None [a]"),
        ("gat 10 a b", "get false Some(10) [a b]"),
        ("gats -1 a", "get true Some(-1) [a]"),
        ("gat 0", "get false Some(0) []"),
        ("set k 1 2 3", "Set k 1 2 3 0 false"),
        ("set k 1 2 3 noreply", "Set k 1 2 3 0 true"),
        ("set k 1 2 3 other", "Set k 1 2 3 0 false"),
        ("cas k 1 2 3 4 other", "Cas k 1 2 3 4 false"),
        ("add k 4294967295 -1 0", "Add k 4294967295 -1 0 0 false"),
        ("cas k 1 2 3 18446744073709551615 noreply", "Cas k 1 2 3 18446744073709551615 true"),
        ("delete k", "delete k false"),
        ("delete k 0", "delete k false"),
        ("delete k noreply", "delete k true"),
        ("delete k 0 noreply", "delete k true"),
        ("delete noreply", "delete noreply false"),
        ("touch k 5", "touch k 5 false"),
        ("incr k 5", "Up k 5 false"),
        ("decr k 5 noreply", "Down k 5 true"),
        ("flush_all", "flush_all 0 false"),
        ("flush_all 5 noreply", "flush_all 5 true"),
        ("flush_all noreply", "flush_all 0 true"),
        ("verbosity 1", "verbosity false"),
        ("version x", "version"),
        ("stats settings", "stats settings"),
        ("stats detail on", "detail On"),
        ("stats detail off x", "detail Off"),
        ("stats detail dump", "detail Dump"),
        ("quit now", "quit"),
        ("watch", "watch Some(WatchKinds(1))"),
        ("watch connevents fetchers", "watch Some(WatchKinds(5))"),
        ("watch mutations mutations", "watch Some(WatchKinds(2))"),
        (
            "watch evictions sysevents rawcmds proxyreqs proxyevents proxyuser evictions mutations",
            "watch Some(WatchKinds(2))",
        ),
        ("watch proxyuser", "watch Some(WatchKinds(0))"),
        ("watch fetchers everything", "watch None"),
        ("watch noreply fetchers", "watch None"),
    ] {
        assert_eq!(parse_one(line), expected, "{line:?}");
    }
}

#[test]
fn malformed_lines_are_refused_with_the_lines_of_memcached() {
    const BAD: &str = "CLIENT_ERROR bad command line format";
    for (line, expected) in [
        ("", "ERROR Continue".to_owned()),
        ("get", "ERROR Continue".into()),
        ("GET a", "ERROR Continue".into()),
        ("bogus", "ERROR Continue".into()),
        ("touch k", "ERROR Continue".into()),
        ("verbosity", "ERROR Continue".into()),
        ("verbosity x", format!("{BAD} Continue")),
        ("touch k x", "CLIENT_ERROR invalid exptime argument Continue".into()),
        ("gat x k", "CLIENT_ERROR invalid exptime argument Continue".into()),
        ("flush_all x", "CLIENT_ERROR invalid exptime argument Continue".into()),
        ("incr k x", "CLIENT_ERROR invalid numeric delta argument Continue".into()),
        ("delete k 1", format!("{BAD}.  Usage: delete <key> [noreply] Continue")),
        ("delete k x noreply", " Continue".into()),
        ("set k 0 0", "ERROR Close".into()),
        ("set k 0 0 1 noreply x", "ERROR Close".into()),
        ("set k x 0 1", format!("{BAD} Swallow(3)")),
        ("set k -1 0 1", format!("{BAD} Swallow(3)")),
        ("set k 4294967296 0 1", format!("{BAD} Swallow(3)")),
        ("add k 0 1e5 7", format!("{BAD} Swallow(9)")),
        ("cas k 0 0 1 x", format!("{BAD} Swallow(3)")),
        ("set k x 0 1 noreply", " Swallow(3)".into()),
        ("set k 0 0 x", format!("{BAD} Close")),
        ("set k 0 0 1 5", format!("{BAD} Close")),
        ("set a key 0 0 5", format!("{BAD} Close")),
        ("lru_crawler metadump 2,1", format!("dump Figures true {}", u64::MAX)),
        ("lru_crawler mgdump 2", format!("dump Requests false {}", u64::MAX)),
        ("lru_crawler metadump 1,64", "BADCLASS invalid class id Continue".into()),
        ("watch fetchers noreply", " Continue".into()),
        ("stats detail", "CLIENT_ERROR usage: stats detail on|off|dump Continue".into()),
        ("stats detail ON", "CLIENT_ERROR usage: stats detail on|off|dump Continue".into()),
        ("stats cachedump 1 7", "dump Sizes true 7".into()),
        ("stats cachedump 0 0", format!("dump Sizes false {}", u64::MAX)),
        ("GET / HTTP/1.1", " Close".into()),
        ("Host: localhost", " Close".into()),
    ] {
        assert_eq!(parse_one(line), expected, "{line:?}");
    }
}

#[test]
fn keys_are_taken_up_to_their_limit_and_refused_past_it() {
    let (longest, longer) = ("k".repeat(KEY_BYTES_MAX), "k".repeat(KEY_BYTES_MAX + 1));
    for (before, after) in
        [("get ", ""), ("delete ", ""), ("touch ", " 0"), ("incr ", " 1"), ("set ", " 0 0 2")]
    {
        assert!(!parse_one(&format!("{before}{longest}{after}")).contains("ERROR"));
        let refused = parse_one(&format!("{before}{longer}{after}"));
        assert!(refused.starts_with("CLIENT_ERROR bad command line format"), "{before}: {refused}");
    }
    let set = parse_one(&format!("set {longer} 0 0 5"));
    assert!(set.ends_with("Swallow(7)"), "its payload is no command: {set}");
}

#[test]
fn hostile_lengths_are_refused_before_anything_is_received() {
    let long = "9".repeat(30);
    for length in [
        "-1",
        "+5",
        "5x",
        "0x5",
        "x",
        "2147483646",
        "2147483647",
        "2147483648",
        "4294967295",
        "4294967296",
        "4294967297",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        &long,
    ] {
        assert_eq!(
            parse_one(&format!("set k 0 0 {length}")),
            "CLIENT_ERROR bad command line format Close",
            "{length}"
        );
    }
    assert!(parse_one("set k 0 0 2147483645").starts_with("Set"));
}

#[test]
fn a_line_without_end_is_refused_at_its_limit_and_not_before() {
    let line = |length: usize, end: &str| [&b"x".repeat(length)[..], end.as_bytes()].concat();
    assert_eq!(parse_all(&line(LINE_BYTES_MAX, ""), []), Vec::<String>::new());
    assert_eq!(parse_all(&line(LINE_BYTES_MAX, "\n"), []), ["ERROR Continue"]);
    for end in ["", "\n", "\r\nversion\r\n"] {
        assert_eq!(
            parse_all(&line(LINE_BYTES_MAX + 1, end), []),
            ["CLIENT_ERROR line too long Close"]
        );
    }
    let keys = |length: usize| [b"get ", &b"a ".repeat(length / 2 - 2)[..], b"\n"].concat();
    assert!(parse_all(&keys(GET_LINE_BYTES_MAX), [])[0].starts_with("get "));
    assert_eq!(parse_all(&keys(GET_LINE_BYTES_MAX + 2), []), ["CLIENT_ERROR line too long Close"]);
}

#[test]
fn the_binary_protocol_is_turned_away_at_its_first_byte() {
    assert_eq!(parse_all(b"\x80", []), [" Close"]);
    assert_eq!(parse_all(b"\x80\x00\n", []), [" Close"]);
}

const STREAM: &[u8] =
    b"set a 1 0 5\r\nhello\r\nget a b\r\n\r\nset b 0 0 3 noreply\r\n\r\n\n\r\ngets  b\nbogus\r\n\
    set kkk 0 0 0\r\n\r\nincr n 1\r\nset b 0 0 x\r\nnot a command\r\n";

#[test]
fn requests_do_not_depend_on_where_the_stream_is_cut_once() {
    let whole = parse_all(STREAM, []);
    assert_eq!(whole.len(), 9);
    for cut in 0..=STREAM.len() {
        assert_eq!(parse_all(STREAM, [cut]), whole, "cut at {cut}");
    }
    assert_eq!(parse_all(STREAM, 0..=STREAM.len()), whole, "byte by byte");
}

#[test]
fn requests_do_not_depend_on_random_cuts_of_random_streams() {
    const WORDS: &[&str] = &[
        "get",
        "set",
        "gat",
        "cas",
        "delete",
        "incr",
        "noreply",
        "0",
        "1",
        "2",
        "-1",
        "99",
        "x",
        "a",
        "key",
        "\r\n",
        "\r\n",
        "\n",
        "\r",
        " ",
        "  ",
        "flush_all",
        "version",
        "touch",
        "\u{0}",
        "HTTP/1.1",
        "stats",
        "add",
    ];
    let mut rng = Rng::from_seed(0xE5_CE11);
    for round in 0..10_000 {
        let mut stream = Vec::new();
        for _ in 0..pick(&mut rng, 40) {
            stream.extend_from_slice(WORDS[pick(&mut rng, WORDS.len())].as_bytes());
            stream.push(b' ');
        }
        let mut cuts: Vec<usize> =
            (0..pick(&mut rng, 6)).map(|_| pick(&mut rng, stream.len() + 1)).collect();
        cuts.sort_unstable();
        assert_eq!(
            parse_all(&stream, cuts.clone()),
            parse_all(&stream, []),
            "round {round}, cuts {cuts:?}"
        );
    }
}

#[test]
fn random_bytes_never_panic() {
    let mut rng = Rng::from_seed(0xFEED);
    for _ in 0..10_000 {
        let stream: Vec<u8> = (0..pick(&mut rng, 200))
            .map(|_| u8::try_from(rng.below(256)).expect("a byte"))
            .collect();
        parse_all(&stream, [stream.len() / 2]);
    }
}

fn pick(rng: &mut Rng, below: usize) -> usize {
    rng.index(below)
}

#[test]
fn numbers_have_no_sign_and_no_overflow() {
    assert_eq!(parse_unsigned(b"18446744073709551615", u64::MAX), Some(u64::MAX));
    assert_eq!(parse_unsigned(b"18446744073709551616", u64::MAX), None);
    assert_eq!(parse_unsigned(b"", 9), None);
    assert_eq!(parse_unsigned(b"10", 9), None);
    assert_eq!(parse_signed(b"-5"), Some(-5));
    assert_eq!(parse_signed(b"--5"), None);
    assert_eq!(parse_signed(b"9223372036854775808"), None);
    assert_eq!(parse_signed(b"-9223372036854775808"), Some(i64::MIN));
    assert_eq!(parse_signed(b"-9223372036854775809"), None);
    for (value, number) in [
        (&b"12"[..], Some(12)),
        (b" 12", Some(12)),
        (b"12 ", Some(12)),
        (b"012", Some(12)),
        (b"+2", Some(2)),
        (b"", None),
        (b"-1", None),
        (b"-0", Some(0)),
        (b"- 1", None),
        (b"+-0", None),
        (b"-", None),
        (b"-9223372036854775808", None),
        (b"-9223372036854775809", Some((1 << 63) - 1)),
        (b"-18446744073709551615", Some(1)),
        (b"-18446744073709551616", None),
        (b"5\0a", Some(5)),
        (b"5\0", Some(5)),
        (b"\0", None),
        (b"\x0b5", Some(5)),
        (b"5\x0bx", Some(5)),
        (b" \t\n\x0b\x0c\r5", Some(5)),
        (b"5\x1f", None),
        (b"1x", None),
        (b"abc", None),
        (b"184467440737095516150", None),
    ] {
        assert_eq!(parse_value(value), number, "{value:?}");
    }
}

#[test]
fn meta_lines_mean_what_memcached_reads_in_them() {
    for (line, expected) in [
        ("mg k", "meta Get k []"),
        ("mg  k  v  t c ", "meta Get k [v  t c]"),
        ("mg Zm9v b k Oabc", "meta Get Zm9v [b k Oabc]"),
        (
            "mg k N30 R10 T-1 E5 C7 P1 Lx u h l s f q",
            "meta Get k [N30 R10 T-1 E5 C7 P1 Lx u h l s f q]",
        ),
        ("md k I T30 x q", "meta Delete k [I T30 x q]"),
        ("ma k N0 J13 D7 M- v", "meta Arithmetic k [N0 J13 D7 M- v]"),
        ("me k", "meta Debug k []"),
        ("me Zm9v b what ever", "meta Debug Zm9v [b]"),
        ("mn what ever", "mn"),
        ("ms k 5", "Set k 0 0 5 0 false"),
        ("ms k 5 F7 T30 ME q", "Add k 7 30 5 0 false"),
        ("ms k 5 MA", "Append k 0 0 5 0 false"),
        ("ms k 5 MP", "Prepend k 0 0 5 0 false"),
        ("ms k 5 MR", "Replace k 0 0 5 0 false"),
        ("ms k 5 MS C9", "Cas k 0 0 5 9 false"),
        ("ms k 5 MR C9", "Cas k 0 0 5 9 false"),
        ("ms k 5 ME C9", "Add k 0 0 5 9 false"),
        ("shutdown", "shutdown Now"),
        ("shutdown graceful", "shutdown Graceful"),
        ("shutdown x", "shutdown Invalid"),
        ("cache_memlimit 64 noreply", "limit 64 true"),
    ] {
        assert_eq!(parse_one(line), expected, "{line:?}");
    }
}

#[test]
fn malformed_meta_lines_are_refused_and_their_data_never_run() {
    let long = "k".repeat(251);
    let many = " k".repeat(18);
    let opaque = format!("O{}", "x".repeat(32));
    for (line, expected) in [
        ("mg", "ERROR Continue"),
        ("md", "ERROR Continue"),
        ("ms", "ERROR Close"),
        ("me", "CLIENT_ERROR bad command line format Continue"),
        ("mx k", "ERROR Continue"),
        ("mg k v v", "CLIENT_ERROR duplicate flag Continue"),
        ("mg k \u{7f}", "CLIENT_ERROR duplicate flag Continue"),
        ("mg k y", "CLIENT_ERROR invalid flag Continue"),
        ("mg k T", "CLIENT_ERROR bad token in command line format Continue"),
        ("mg k Tx J", "CLIENT_ERROR invalid numeric initial value Continue"),
        ("mg k Tx F", "CLIENT_ERROR bad token in command line format Continue"),
        ("mg k F", "CLIENT_ERROR bad command line format Continue"),
        ("mg k T9223372036854775808", "CLIENT_ERROR bad token in command line format Continue"),
        ("mg !!!! b", "CLIENT_ERROR error decoding key Continue"),
        ("me !!!! b", "CLIENT_ERROR bad command line format Continue"),
        ("md k v v", "CLIENT_ERROR invalid or duplicate flag Continue"),
        ("ma k MX", "CLIENT_ERROR invalid mode for ma M token Continue"),
        ("ma k D", "CLIENT_ERROR invalid or duplicate flag Continue"),
        ("ms k", "CLIENT_ERROR bad command line format Close"),
        ("ms k x", "CLIENT_ERROR bad command line format Close"),
        ("ms k -1", "CLIENT_ERROR bad command line format Close"),
        ("ms k 4294967297", "CLIENT_ERROR bad command line format Close"),
        ("ms k 5 y", "CLIENT_ERROR invalid flag Swallow(7)"),
        ("ms k 5 MX", "CLIENT_ERROR invalid mode for ms M token Swallow(7)"),
        ("ms k 5 MXX", "CLIENT_ERROR incorrect length for M token Swallow(7)"),
        (&format!("mg k{many}"), "CLIENT_ERROR options flags are too long Continue"),
        (&format!("md k{many}"), "CLIENT_ERROR options flags too long Continue"),
        (&format!("ms k 5{}", " k".repeat(17)), "CLIENT_ERROR options flags too long Swallow(7)"),
        (&format!("mg {long}"), "CLIENT_ERROR bad command line format Continue"),
        (&format!("ms {long} 5"), "CLIENT_ERROR bad command line format Swallow(7)"),
        (&format!("mg k {opaque}"), "CLIENT_ERROR opaque token too long Continue"),
        (&format!("ms k 5 {opaque}"), "CLIENT_ERROR opaque token too long Swallow(7)"),
    ] {
        assert_eq!(parse_one(line), expected, "{line:?}");
    }
    // One less is permitted of each.
    assert!(parse_one(&format!("mg k O{}", "x".repeat(31))).starts_with("meta Get"));
    let flags: Vec<String> = "vkcsfthlqubIx".chars().map(String::from).collect();
    let most = format!("mg Zm9v {} T1 N1 R1 F1", flags.join(" "));
    assert!(parse_one(&most).starts_with("meta Get"), "{}", parse_one(&most));
    assert!(parse_one(&format!("{most} C1")).contains("too long"));
}
