//! Where a word may be named: unsafe code, files, clocks, threads and bytes of media each have
//! their place.

use super::Source;

/// A word and the places, by start of path, where it may be named. Tests may name all but unsafe.
struct Rule {
    word: &'static str,
    allowed: &'static [&'static str],
    tests: bool,
    reason: &'static str,
}

const RULES: [Rule; 8] = [
    Rule {
        word: "unsafe",
        allowed: &[
            "crates/esker-trt/",
            "crates/esker-media/src/pmem",
            "crates/esker-media/src/buffer",
            "crates/esker-media/src/file/discard",
            "crates/esker-index/src/reclaim.rs",
            "crates/esker-index/src/line",
            "crates/esker-index/src/prefetch",
            "crates/esker-index/src/pages",
            "crates/esker-index/src/cceh/arena",
            "crates/esker-index/src/masstree/memory",
            "crates/esker-shm/src/memory.rs",
            "crates/esker-cli/src/memory.rs",
            "crates/esker-peers/src/lmdb.rs",
            "crates/esker/examples/image_fuzz/memory.rs",
        ],
        tests: false,
        reason: "unsafe code lives in the run-time and the media, and where the interface of a peer or an allocator asks for it; \
                 docs/unsafe.md lists the modules",
    },
    Rule {
        word: "std::fs",
        allowed: &[
            "crates/esker-media/",
            "crates/esker-cli/",
            "crates/esker-bench/src/files.rs",
            "crates/esker-server/src/stats.rs",
            "crates/esker-trt/src/stack.rs",
            "crates/esker-trt/src/topology.rs",
            "fuzz/",
            "xtask/",
        ],
        tests: true,
        reason: "only media open files; the program has its configuration and dumps, the bench its results and \
                 traces, a fuzzer its seeds; the run-time asks for the processor's sockets and \
                 the mappings of a process, a server for its processor time",
    },
    Rule {
        word: "Instant::now",
        // The tasks of the project tell people what a step took.
        allowed: &["crates/esker-base/src/clock.rs", "xtask/src/run.rs"],
        tests: true,
        reason: "time comes from esker_base::clock",
    },
    Rule {
        word: "SystemTime::now",
        allowed: &["crates/esker-base/src/clock.rs"],
        tests: true,
        reason: "time comes from esker_base::clock",
    },
    Rule {
        word: "thread::spawn",
        allowed: &["crates/esker-trt/", "crates/esker-testkit/"],
        tests: true,
        reason: "threads belong to the run-time",
    },
    Rule {
        word: "thread::Builder",
        allowed: &[
            "crates/esker-trt/",
            "crates/esker/src/engine/background.rs",
            "crates/esker/src/engine/threads.rs",
            "crates/esker-index/src/pool/helper.rs",
            "crates/esker-media/src/striped.rs",
            "crates/esker-cli/src/serve",
            "crates/esker-client/src/connection.rs",
            "crates/esker-client/src/side_by_side.rs",
            "crates/esker-server/src/backups.rs",
            "crates/esker-peers/src/ticker.rs",
        ],
        tests: true,
        reason: "threads belong to the run-time; a store has one background thread, and several while it is opened, its index a helper, a client's \
                 connection its reader; calls of several servers, and a flush of several devices, one for each; a server's backup, which may hang \
                 and must not keep the run-time from its end, one; a peer without a periodic sync of its own gets one",
    },
    Rule {
        word: "repr(C)",
        allowed: &[
            "crates/esker-format/",
            "crates/esker-trt/src/driver",
            "crates/esker-trt/src/io",
        ],
        tests: true,
        reason: "bytes of media are laid out in esker-format",
    },
    Rule {
        word: "to_le_bytes",
        allowed: &[
            "crates/esker-format/",
            "crates/esker-base/src/hash.rs",
            "crates/esker-media/src/pmem",
            "crates/esker-media/src/sim/pm",
            "crates/esker-index/src/directory/export.rs",
            "crates/esker-shm/src/",
            // In memory only: what a key has, in few bytes.
            "crates/esker/src/engine/flex/kept.rs",
        ],
        tests: true,
        reason: "bytes of media are laid out in esker-format",
    },
];

/// Words at places where they may not be.
pub(crate) fn complaints(source: &Source) -> Vec<String> {
    if source.path.starts_with("xtask/src/tidy") {
        return Vec::new();
    }
    let mut complaints = Vec::new();
    for rule in &RULES {
        let exempt = rule.allowed.iter().any(|start| source.path.starts_with(start))
            || (rule.tests && (source.is_test() || source.path.contains("/examples/")));
        if exempt {
            continue;
        }
        for (number, line) in source.text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or("");
            if names(code, rule.word) {
                complaints.push(format!(
                    "{}:{}: names {}: {}",
                    source.path,
                    number + 1,
                    rule.word,
                    rule.reason
                ));
            }
        }
    }
    complaints
}

/// Whether `code` contains `word` as a word of its own.
fn names(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(place, _)| {
        let before = code[..place].chars().next_back();
        let after = code[place + word.len()..].chars().next();
        let inside = |letter: Option<char>| letter.is_some_and(|c| c.is_alphanumeric() || c == '_');
        !inside(before) && !inside(after)
    })
}

/// Sites that are declared and never passed.
pub(crate) fn unused_sites(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for table in sources.iter().filter(|source| source.path.ends_with("/sites.rs")) {
        for line in table.text.lines().filter(|line| line.trim_start().starts_with("pub ")) {
            let Some(name) = line.trim_start()[4..].split(':').next() else { continue };
            let used = format!("sites::{name}");
            if !sources
                .iter()
                .any(|source| source.path != table.path && source.text.contains(&used))
            {
                complaints.push(format!("{}: site {name} is never passed", table.path));
            }
        }
    }
    complaints
}
