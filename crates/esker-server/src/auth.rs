//! Who may use a server: names and passwords, from a file as memcached's `-Y` has it.
//!
//! One `user:password` a line. A server that runs can be given others: who was let in stays. Comparing takes the same time whatever is wrong, as far as lengths
//! allow.

use esker::{Error, Result};
use parking_lot::RwLock;
use std::sync::Arc;

/// Names with their passwords. Clones are the same: a server knows those of the one that it was started with.
#[derive(Clone)]
pub struct Credentials(Arc<RwLock<Known>>);

type Known = Vec<(Vec<u8>, Vec<u8>)>;

impl Credentials {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// `InvalidArgument` for a text that names nobody, or has a line that is something else; the
    /// line's number is told, not what it says.
    pub fn parse(text: &[u8]) -> Result<Credentials> {
        let wrong = |why: String| Error::invalid("read credentials", why);
        let mut known = Vec::new();
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                continue;
            }
            let colon = line.iter().position(|byte| *byte == b':');
            let parts = colon.and_then(|at| Some((line.get(..at)?, line.get(at + 1..)?)));
            match parts {
                Some((user, password)) if !user.is_empty() && !password.is_empty() => {
                    known.push((user.to_vec(), password.to_vec()));
                }
                _ => return Err(wrong(format!("line {} is not user:password", index + 1))),
            }
        }
        match known.is_empty() {
            true => Err(wrong("nobody is in it".into())),
            false => Ok(Credentials(Arc::new(RwLock::new(known)))),
        }
    }

    /// From now on these, and all clones of them, are `others`.
    pub fn replace_by(&self, others: &Credentials) {
        let others = others.0.read().clone();
        *self.0.write() = others;
    }

    /// Whether that is one of the names with its password.
    pub(crate) fn knows(&self, user: &[u8], password: &[u8]) -> bool {
        // Without early exit.
        self.0.read().iter().fold(false, |found, (name, secret)| {
            found | (same(name, user) & same(secret, password))
        })
    }
}

/// Whether two texts are the same, in a time that only depends on their lengths.
fn same(one: &[u8], other: &[u8]) -> bool {
    let differs = one.iter().zip(other).fold(0, |bits, (one, other)| bits | (one ^ other));
    (differs == 0) & (one.len() == other.len())
}

impl std::fmt::Debug for Credentials {
    /// Without names and passwords.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Credentials({})", self.0.read().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_name_with_its_own_password_is_known() {
        let known = Credentials::parse(b"ann:secret\r\n\nbob:pass:word\n").expect("valid");
        assert!(known.knows(b"ann", b"secret") && known.knows(b"bob", b"pass:word"));
        for (user, password) in
            [("ann", "pass:word"), ("ann", "secre"), ("ann", ""), ("", "secret"), ("eve", "x")]
        {
            assert!(!known.knows(user.as_bytes(), password.as_bytes()), "{user} {password}");
        }
    }

    #[test]
    fn others_take_the_place_of_all_clones() {
        let known = Credentials::parse(b"ann:secret\n").expect("valid");
        let clone = known.clone();
        known.replace_by(&Credentials::parse(b"bob:new\n").expect("valid"));
        assert!(clone.knows(b"bob", b"new") && !clone.knows(b"ann", b"secret"));
    }

    #[test]
    fn files_of_something_else_are_refused_without_showing_them() {
        for text in ["", "\n", "secret", ":secret", "ann:", "ann:secret\nsecret"] {
            let error = Credentials::parse(text.as_bytes()).expect_err(text).to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
