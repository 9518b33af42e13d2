//! Targets that have to fail: a fuzzer that does not find how is broken.

/// Fails where only coverage leads to.
pub mod panics {
    /// Runs one input.
    pub fn run(input: &[u8]) {
        // Each step is a branch of its own.
        if let [b'E', rest @ ..] = input
            && let [b'S', rest @ ..] = rest
            && let [b'K', rest @ ..] = rest
            && let [b'E', rest @ ..] = rest
            && let [b'R', ..] = rest
        {
            panic!("found, as it has to be");
        }
    }

    /// Inputs to begin with.
    #[must_use]
    pub fn seeds() -> Vec<Vec<u8>> {
        vec![b"no".to_vec()]
    }
}

/// Takes as much memory as an input asks for.
pub mod memory {
    /// Runs one input.
    pub fn run(input: &[u8]) {
        if let [b'M', rest @ ..] = input
            && let Some(size) = rest.first_chunk()
        {
            let bytes: Vec<u8> = Vec::with_capacity(u32::from_le_bytes(*size) as usize);
            std::hint::black_box(bytes);
        }
    }

    /// Inputs to begin with.
    #[must_use]
    pub fn seeds() -> Vec<Vec<u8>> {
        vec![b"no".to_vec()]
    }
}
