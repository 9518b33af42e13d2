//! Configuration files of `esker serve`.

use crate::config::Config;

/// Runs one input.
pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let defaults = Config::defaults().expect("defaults");
    let mut config = defaults.clone();
    match config.read(text, "FILE") {
        Ok(()) => {
            let _ = (config.limits.check(config.tls_cert.is_some()), config.flex().check());
            // It may be read again.
            let before = config.clone();
            assert!(config.read(text, "FILE").is_ok() && config == before);
        }
        Err(failure) => assert!(failure.to_string().starts_with("FILE:"), "{failure}"),
    }
}

/// Inputs to begin with.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let some = "listen = [\"native://[::1]:5\", \"unix:///a\"]\nengine = 'flex'\nsize = 1073741824\n\
                durability = \"periodic:500ms\"\nio = [\"uring\", \"sync\"]\nspin = \"50us\" # why\n\
                cache = true\ncores = 0x10\n";
    vec![
        Config::print_defaults().into_bytes(),
        some.into(),
        b"[table]\nsize = \"\"\"1G\"\"\"\n".to_vec(),
    ]
}
