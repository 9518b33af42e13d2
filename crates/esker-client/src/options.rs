//! What a client is asked for.

use crate::tls::Tls;
use std::fmt;
use std::time::Duration;

/// Options of a client.
#[derive(Clone)]
pub struct Options {
    /// How long connecting may take in all: every address of the host, TLS, hellos and authentication. What the system
    /// takes to find the addresses of a name comes before that, and nothing bounds it. Default 5 s.
    pub connect_timeout: Duration,
    /// How long a call waits for its reply once its request was sent, for room among requests that are in flight, and for the
    /// network to take what it sends: each. A backup is waited for as long as the server answers a ping in this time. What is asked of
    /// several servers of a cluster is waited for together. So long also has what nobody waits for to leave, and to be taken, once the
    /// client is dropped. Default 10 s.
    pub request_timeout: Duration,
    /// Rest after the first failure to connect; it doubles with each further one. Default 50 ms.
    pub backoff_min: Duration,
    /// Longest rest. Default 2 s.
    pub backoff_max: Duration,
    /// Requests of one connection that may be without a reply; a call that would be one more waits.
    /// Default 4096.
    pub in_flight_max: usize,
    /// Who the client is, for servers that ask: user and password.
    pub credentials: Option<(String, String)>,
    /// Whom to trust: TCP connections are encrypted. Not by default.
    pub tls: Option<Tls>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(10),
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_secs(2),
            in_flight_max: 4096,
            credentials: None,
            tls: None,
        }
    }
}

impl fmt::Debug for Options {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("connect_timeout", &self.connect_timeout)
            .field("request_timeout", &self.request_timeout)
            .field("backoff_min", &self.backoff_min)
            .field("backoff_max", &self.backoff_max)
            .field("in_flight_max", &self.in_flight_max)
            .field("user", &self.credentials.as_ref().map(|(user, _)| user))
            .field("tls", &self.tls.is_some())
            .finish()
    }
}
