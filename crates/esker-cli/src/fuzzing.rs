//! Fuzz targets: texts that people and other programs write. Only in tests and in the build of a fuzzer (`fuzz/`).

pub mod config;
pub mod dump;
pub mod words;

#[cfg(test)]
mod tests {
    use super::*;
    use esker_testkit::fuzz::{Target, smoke};

    #[test]
    fn targets_take_seeds_what_is_changed_of_them_and_noise() {
        const TARGETS: [Target; 3] = [
            ("config", config::run, config::seeds),
            ("dump", dump::run, dump::seeds),
            ("words", words::run, words::seeds),
        ];
        smoke(&TARGETS, 1, 2000);
        assert!(TARGETS.iter().all(|(_, _, seeds)| seeds().len() > 1), "seeds of each kind");
    }
}
