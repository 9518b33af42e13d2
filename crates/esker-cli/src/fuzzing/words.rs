//! Words of command lines: sizes, times, addresses, workloads, options of memcached; and files of credentials.

use crate::config::Config;
use crate::memcached::read_line;
use esker_base::units::{format_size_bytes, parse_size_bytes};
use esker_bench::plan::parse_distribution;
use esker_bench::workload::catalogue::{expand, named};
use esker_server::{Credentials, ListenAddress};

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first() else { return };
    if kind % 6 == 4 {
        let lines = || bytes.split(|byte| *byte == b'\n');
        if Credentials::parse(bytes).is_ok() {
            assert!(lines().all(|line| matches!(line, b"" | b"\r") || line.contains(&b':')));
        }
        return;
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match kind % 6 {
        0 => size(text),
        1 => {
            let mut config = Config::defaults().expect("defaults");
            let values: Vec<String> = text.split('\n').map(str::to_owned).collect();
            let _ = config.set(Config::name(usize::from(kind / 6)), &values);
        }
        2 => address(text),
        5 => {
            let _ = (parse_distribution(text), named(text), expand(text));
        }
        _ => read_line(&text.split('\n').map(str::to_owned).collect::<Vec<_>>()),
    }
}

fn size(text: &str) {
    let Some(bytes) = parse_size_bytes(text) else { return };
    assert_eq!(parse_size_bytes(&bytes.to_string()), Some(bytes));
    assert!(format_size_bytes(bytes).ends_with('B'));
}

/// What is read comes back as it is shown.
fn address(text: &str) {
    let Ok(address) = text.parse::<ListenAddress>() else { return };
    let again: ListenAddress = address.to_string().parse().expect("what was shown");
    assert_eq!(again, address);
}

/// Inputs to begin with.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let all: [(u8, &str); 19] = [
        (0, "8GiB"),
        (0, " 512 k"),
        (1, "periodic:500ms"),
        (2, "memcache://127.0.0.1:11211"),
        (2, "native://[::1%2]:0/"),
        (2, "shm:///run/esker.sock"),
        (2, "unix:///a"),
        (3, "-p\n11211\n-vv\n-m64\n-o\nidle_timeout=30,no_lru_crawler,ssl_key=/a,format"),
        (3, "-s\n/run/a-b\n-a\n0770\n-t\n2\n-c2048\n-I\n2m\n-MAF\n--port=1"),
        (3, "-l\nnotls:tag[x]:127.0.0.1;[::1]:5,*,fe80::1%lo\n-m\n1g\n-f1.5"),
        (3, "-Z\n-o\nssl_chain_cert=/a\n-Y\n/b\n-e\n/c\n--"),
        (4, "ann:secret\r\n\nbob:pass:word\n"),
        (4, "secret"),
        (5, "zipfian:0.99"),
        (5, "hotspot:0.2:0.8"),
        (5, "ycsb-a"),
        (7, "flat:cceh"),
        (13, "none"),
        (19, "5m"),
    ];
    // Every option of the configuration has a number.
    let options = (0..30).map(|number| (6 * number + 1, "1"));
    let seeds = all.into_iter().chain(options);
    seeds.map(|(kind, text)| [&[kind], text.as_bytes()].concat()).collect()
}
