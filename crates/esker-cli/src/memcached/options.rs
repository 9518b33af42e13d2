//! Memcached's command line, as its `getopt_long` reads it: short options in one word, arguments in
//! the same word or the next, long names and their beginnings.
//!
//! [`read`] gives the options in their order; what they mean is `plan`'s business.

use crate::failure::Failure;

/// Whether an option takes an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    Nothing,
    Argument,
    /// Only as `--name=argument`.
    Perhaps,
}

/// Letter, long name, argument.
const OPTIONS: &[(char, &str, Takes)] = &[
    ('p', "port", Takes::Argument),
    ('U', "udp-port", Takes::Argument),
    ('s', "unix-socket", Takes::Argument),
    ('a', "unix-mask", Takes::Argument),
    ('A', "enable-shutdown", Takes::Nothing),
    ('l', "listen", Takes::Argument),
    ('d', "daemon", Takes::Nothing),
    ('r', "enable-coredumps", Takes::Nothing),
    ('u', "user", Takes::Argument),
    ('m', "memory-limit", Takes::Argument),
    ('M', "disable-evictions", Takes::Nothing),
    ('c', "conn-limit", Takes::Argument),
    ('k', "lock-memory", Takes::Nothing),
    ('v', "verbose", Takes::Perhaps),
    ('h', "help", Takes::Nothing),
    ('i', "license", Takes::Nothing),
    ('V', "version", Takes::Nothing),
    ('P', "pidfile", Takes::Argument),
    ('f', "slab-growth-factor", Takes::Argument),
    ('n', "slab-min-size", Takes::Argument),
    ('L', "enable-largepages", Takes::Nothing),
    ('D', "delimiter", Takes::Argument),
    ('t', "threads", Takes::Argument),
    ('R', "max-reqs-per-event", Takes::Argument),
    ('C', "disable-cas", Takes::Nothing),
    ('b', "listen-backlog", Takes::Argument),
    ('B', "protocol", Takes::Argument),
    ('I', "max-item-size", Takes::Argument),
    ('S', "enable-sasl", Takes::Nothing),
    ('F', "disable-flush-all", Takes::Nothing),
    ('X', "disable-dumping", Takes::Nothing),
    ('W', "disable-watch", Takes::Nothing),
    ('Y', "auth-file", Takes::Argument),
    ('e', "memory-file", Takes::Argument),
    ('Z', "enable-ssl", Takes::Nothing),
    ('o', "extended", Takes::Argument),
    ('N', "napi-ids", Takes::Argument),
];

/// An option with its argument; empty if it takes none.
pub(super) type Given = (char, String);

/// Reads a command line without the program's name.
pub(super) fn read(words: &[String]) -> Result<Vec<Given>, Failure> {
    let mut given = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == "--" {
            break;
        } else if let Some(long) = word.strip_prefix("--") {
            let (name, argument) = match long.split_once('=') {
                Some((name, argument)) => (name, Some(argument.to_owned())),
                None => (long, None),
            };
            let (letter, takes) = find(name)?;
            let argument = match (takes, argument) {
                (Takes::Nothing, Some(_)) => {
                    return Err(wrong(format!("--{name} takes no argument")));
                }
                (Takes::Argument, None) => words.next().cloned().ok_or_else(|| missing(word))?,
                (_, argument) => argument.unwrap_or_default(),
            };
            given.push((letter, argument));
        } else if let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) {
            let mut rest = letters.chars();
            while let Some(letter) = rest.next() {
                let known = OPTIONS.iter().find(|(known, _, _)| *known == letter);
                let Some((_, _, takes)) = known else {
                    return Err(wrong(format!("there is no option -{letter}")));
                };
                if *takes != Takes::Argument {
                    given.push((letter, String::new()));
                    continue;
                }
                let argument = match rest.as_str() {
                    "" => words.next().cloned().ok_or_else(|| missing(&format!("-{letter}")))?,
                    argument => argument.to_owned(),
                };
                given.push((letter, argument));
                break;
            }
        } else {
            return Err(wrong(format!("{word:?} is no option")));
        }
    }
    match words.next() {
        Some(word) => Err(wrong(format!("{word:?} is no option"))),
        None => Ok(given),
    }
}

/// The option of a long name, or of a beginning that only one has.
fn find(name: &str) -> Result<(char, Takes), Failure> {
    let begin = |(_, long, _): &&(char, &str, Takes)| !name.is_empty() && long.starts_with(name);
    let mut fitting = OPTIONS.iter().filter(begin);
    let exact = OPTIONS.iter().find(|(_, long, _)| *long == name);
    match (exact, fitting.next(), fitting.next()) {
        (Some((letter, _, takes)), ..) | (None, Some((letter, _, takes)), None) => {
            Ok((*letter, *takes))
        }
        (None, None, _) => Err(wrong(format!("there is no option --{name}"))),
        (None, Some((_, one, _)), Some((_, other, _))) => {
            Err(wrong(format!("--{name} may be --{one} or --{other}")))
        }
    }
}

fn missing(option: &str) -> Failure {
    wrong(format!("{option} needs an argument"))
}

fn wrong(words: String) -> Failure {
    Failure::usage(format!("memcached: {words}"))
}

/// Names and values of `-o`, in their order.
pub(super) fn extended(text: &str) -> Vec<(String, Option<String>)> {
    let parts = text.split(',').filter(|part| !part.is_empty());
    parts
        .map(|part| match part.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (part.to_owned(), None),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn words_are_read_as_getopt_does() {
        for (line, expected) in [
            ("", ""),
            ("-p 11211 -vv -m64", "p=11211 v= v= m=64"),
            ("-dvP /run/x.pid -unobody", "d= v= P=/run/x.pid u=nobody"),
            ("--port=1 --port 2 --memory-limit 64", "p=1 p=2 m=64"),
            ("--verbose --verbose=2 --daemon --mem 5", ""),
            ("--memory-f /x --listen-b 5 --listen ::1", "e=/x b=5 l=::1"),
            ("-o a,b=c -- ", "o=a,b=c"),
        ] {
            let read = read(&words(line));
            let Ok(read) = read else {
                // `--mem` may be two options.
                assert!(expected.is_empty(), "{line}");
                continue;
            };
            let shown: Vec<String> = read.iter().map(|(l, a)| format!("{l}={a}")).collect();
            assert_eq!(shown.join(" "), expected, "{line}");
        }
        assert_eq!(
            extended("no_modern,ssl_key=/a,,x="),
            [
                ("no_modern".into(), None),
                ("ssl_key".into(), Some("/a".into())),
                ("x".into(), Some(String::new()))
            ]
        );
    }

    #[test]
    fn what_is_no_option_is_refused_by_name() {
        for (line, expected) in [
            ("-z", "no option -z"),
            ("-vz", "no option -z"),
            ("-p", "-p needs an argument"),
            ("--port", "--port needs an argument"),
            ("--bogus", "no option --bogus"),
            ("--mem", "may be --memory-limit or --memory-file"),
            ("--daemon=1", "takes no argument"),
            ("-p 1 stray", "\"stray\" is no option"),
            ("-- stray", "\"stray\" is no option"),
            ("-", "\"-\" is no option"),
        ] {
            let error = read(&words(line)).expect_err(line).to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
