//! What all fuzz targets have in common. Each stands in the crate that it is of, in `fuzzing`; here it is given to libFuzzer.
//!
//! `cargo xtask fuzz` runs them. A target begins with the seeds of its module, which it writes to its corpus when it starts.

pub mod canary;

use std::fs;
use std::path::Path;

#[doc(hidden)]
pub use libfuzzer_sys;

/// Gives a module with `run` and `seeds` to libFuzzer, as the target of this name.
#[macro_export]
macro_rules! target {
    ($name:literal, $($module:ident)::+) => {
        use $($module)::+ as module;
        $crate::libfuzzer_sys::fuzz_target!(
            init: {
                $crate::sow($name, &module::seeds());
                // What is made once is made before memory has its limit.
                module::run(&[0, 0]);
            },
            |input: &[u8]| {
                module::run(input);
            }
        );
    };
}

/// Writes the seeds of a target to its corpus, where the fuzzer that has started reads them.
pub fn sow(name: &str, seeds: &[Vec<u8>]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    fs::create_dir_all(&folder).expect("folder of the corpus");
    for (number, seed) in seeds.iter().enumerate() {
        fs::write(folder.join(format!("seed-{number:03}")), seed).expect("seed");
    }
}
