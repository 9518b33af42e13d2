//! What the kernel says of the processors.

use std::fs;

const PACKAGE: [&str; 2] = ["package_cpus_list", "core_siblings_list"];

/// Processors of the socket of the first processor that this process may use, those among them that it may
/// use; all that it may use where the kernel does not tell. At least 1.
#[must_use]
pub fn processors_of_a_socket() -> usize {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return 1 };
    let most = rustix::thread::CpuSet::MAX_CPU;
    let first = (0..most).find(|cpu| allowed.is_set(*cpu)).unwrap_or(0);
    let listed = PACKAGE.iter().find_map(|name| {
        let path = format!("/sys/devices/system/cpu/cpu{first}/topology/{name}");
        parse(&fs::read_to_string(path).ok()?)
    });
    let all = || vec![(0, most.saturating_sub(1))];
    let usable = |range: &(usize, usize)| {
        (range.0..=range.1.min(most - 1)).filter(|cpu| allowed.is_set(*cpu)).count()
    };
    listed.unwrap_or_else(all).iter().map(usable).sum::<usize>().max(1)
}

/// Ranges of the kernel's notation `0-3,8,10-11`.
fn parse(text: &str) -> Option<Vec<(usize, usize)>> {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some((from.parse().ok()?, to.parse().ok()?))
    };
    text.trim().split(',').map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(parse("0-1\n"), Some(vec![(0, 1)]));
        assert_eq!(parse("0-15,32-47,63"), Some(vec![(0, 15), (32, 47), (63, 63)]));
        assert_eq!(parse("zero"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn a_socket_has_processors_of_this_process() {
        let count = processors_of_a_socket();
        let usable = std::thread::available_parallelism().unwrap().get();
        assert!(count >= 1 && count <= usable, "{count} of {usable}");
    }
}
