//! Keys as lists and watchers are told them.

use std::fmt::{Display, Formatter, Result, Write};

/// A key as part of an address: letters, digits and `-._~` as they are, the others as `%` and two digits.
pub(crate) struct Escaped<'k>(pub(crate) &'k [u8]);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        for byte in self.0 {
            match byte {
                b'-' | b'.' | b'_' | b'~' => f.write_char((*byte).into())?,
                byte if byte.is_ascii_alphanumeric() => f.write_char((*byte).into())?,
                byte => write!(f, "%{byte:02X}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_could_mean_something_are_numbers() {
        let shown = |key: &[u8]| Escaped(key).to_string();
        assert_eq!(shown(b"aZ09-._~"), "aZ09-._~");
        assert_eq!(shown(b"n,foo:1%/\x00\x7f\xff"), "n%2Cfoo%3A1%25%2F%00%7F%FF");
    }
}
