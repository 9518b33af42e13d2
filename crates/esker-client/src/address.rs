//! Where a server is: `native://HOST:PORT`, `native+unix:///absolute/path`, or `shm:///absolute/path` for memory that is
//! shared with a server of this host. Without a port it is [`NATIVE_PORT`].

use crate::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Port of the native protocol.
pub const NATIVE_PORT: u16 = 11212;

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// Over TCP: host and port, as the system resolves them.
    Tcp(String, u16),
    /// At a socket file.
    Unix(PathBuf),
    /// Through shared memory, which the server passes at a socket file.
    Shared(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(host, port) if host.contains(':') => write!(f, "native://[{host}]:{port}"),
            Address::Tcp(host, port) => write!(f, "native://{host}:{port}"),
            Address::Unix(path) => write!(f, "native+unix://{}", path.display()),
            Address::Shared(path) => write!(f, "shm://{}", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = Error;

    /// # Errors
    /// `InvalidArgument` in words.
    fn from_str(text: &str) -> Result<Address, Error> {
        let wrong = |why: &str| Error::invalid(format!("{text:?} {why}"));
        if let Some(path) = text.strip_prefix("native+unix://") {
            return match path.starts_with('/') {
                true => Ok(Address::Unix(path.into())),
                false => Err(wrong("needs an absolute path: native+unix:///run/esker.sock")),
            };
        }
        if let Some(path) = text.strip_prefix("shm://") {
            return match path.starts_with('/') {
                true => Ok(Address::Shared(path.into())),
                false => Err(wrong("needs an absolute path: shm:///run/esker.sock")),
            };
        }
        let Some(place) = text.strip_prefix("native://") else {
            return Err(wrong("is no address such as native://127.0.0.1:11212"));
        };
        let place = place.strip_suffix('/').unwrap_or(place);
        // An address of IPv6 stands in brackets.
        let (host, port) = match place.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, rest)) => (host, Some(rest.strip_prefix(':').unwrap_or("?"))),
            None => match place.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (place, None),
            },
        };
        let port = port.map_or(Ok(NATIVE_PORT), str::parse);
        match (host, port) {
            ("", _) | (_, Err(_)) => Err(wrong("is no host and port")),
            (host, Ok(port)) => Ok(Address::Tcp(host.to_owned(), port)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_shown() {
        for text in [
            "native://127.0.0.1:5",
            "native://[::1]:7",
            "native://host:11212",
            "native+unix:///a/b",
            "shm:///a/b",
        ] {
            assert_eq!(text.parse::<Address>().expect(text).to_string(), text);
        }
        let short: Address = "native://host".parse().expect("port");
        assert_eq!(short.to_string(), "native://host:11212");
    }

    #[test]
    fn other_texts_are_refused_in_words() {
        for text in [
            "host:1",
            "memcache://host:1",
            "native://:1",
            "native://h:x",
            "native+unix://a",
            "shm://a",
            "native://",
        ] {
            let error = text.parse::<Address>().expect_err(text).to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
