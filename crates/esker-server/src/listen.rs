//! Where a server listens: addresses as people write them, and sockets bound to them.
//!
//! `memcache://HOST:PORT` or `native://HOST:PORT`, where the host is an address or `localhost`, and
//! `memcache+unix:///absolute/path`, `native+unix:///absolute/path`, `shm:///absolute/path` (the native protocol through
//! shared memory, which is passed over the socket there); `unix:///absolute/path` is memcache.
//! Port 0 lets the system choose.
//!
//! # Failure
//! An address that others on the network can reach is refused unless allowed by name: no protocol
//! asks for a password by itself. A socket file is replaced only if it is known that nobody answers on it. An address in use is
//! tried again for two seconds.

use esker::{Error, ErrorKind, Result};
use rustix::fs::{Access, FileType, Mode};
use rustix::io::Errno;
use socket2::{Domain, SockAddr, Socket, Type};
use std::fmt;
use std::io::{Error as IoError, ErrorKind as IoErrorKind, Result as IoResult};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Connections that wait to be accepted: as many as the system permits, which makes less of it.
const BACKLOG: i32 = i32::MAX;
/// How often, and after which rest, an address that is in use is tried again: a server that was killed has its sockets until the
/// kernel is done with it, and that may be after who started it has heard of its end.
const BIND_TRIES: u32 = 100;
const BIND_REST: Duration = Duration::from_millis(20);
/// Refusals, with such a rest between, after which a socket file is nobody's.
const PROBES: u32 = 5;
/// Port of memcache.
pub const PORT: u16 = 11211;
/// Port of the native protocol.
pub const NATIVE_PORT: u16 = 11212;

/// What is spoken at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// The text protocol of memcached.
    Memcache,
    /// Esker's own (`docs/format/native.md`).
    Native,
}

impl Protocol {
    /// The protocol as addresses name it.
    #[must_use]
    pub fn scheme(self) -> &'static str {
        match self {
            Protocol::Memcache => "memcache",
            Protocol::Native => "native",
        }
    }

    fn port(self) -> u16 {
        match self {
            Protocol::Memcache => PORT,
            Protocol::Native => NATIVE_PORT,
        }
    }
}

/// An address to listen at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ListenAddress {
    /// Memcache over TCP.
    Tcp(SocketAddr),
    /// Memcache at a socket file.
    Unix(PathBuf),
    /// The native protocol over TCP.
    NativeTcp(SocketAddr),
    /// The native protocol at a socket file.
    NativeUnix(PathBuf),
    /// The native protocol through shared memory, which is passed at a socket file.
    Shared(PathBuf),
}

impl Default for ListenAddress {
    fn default() -> Self {
        ListenAddress::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT))
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.protocol().scheme();
        match self {
            ListenAddress::Tcp(address) | ListenAddress::NativeTcp(address) => {
                write!(f, "{scheme}://{address}")
            }
            ListenAddress::Unix(path) | ListenAddress::NativeUnix(path) => {
                write!(f, "{scheme}+unix://{}", path.display())
            }
            ListenAddress::Shared(path) => write!(f, "shm://{}", path.display()),
        }
    }
}

impl FromStr for ListenAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |why: &str| Error::invalid("parse listen address", format!("{text:?} {why}"));
        let Some((scheme, place)) = text.split_once("://") else {
            return Err(wrong("needs a protocol: memcache://127.0.0.1:11211"));
        };
        if scheme == "shm" {
            return match place.starts_with('/') {
                true => Ok(ListenAddress::Shared(place.into())),
                false => Err(wrong("needs an absolute path: shm:///run/esker.sock")),
            };
        }
        let (protocol, unix) = match scheme {
            "memcache" => (Protocol::Memcache, false),
            "memcache+unix" | "unix" => (Protocol::Memcache, true),
            "native" => (Protocol::Native, false),
            "native+unix" => (Protocol::Native, true),
            _ => {
                return Err(wrong(&format!(
                    "names the protocol {scheme:?}, which is not in this version"
                )));
            }
        };
        let name = protocol.scheme();
        if unix {
            let example = format!("needs an absolute path: {name}+unix:///run/esker.sock");
            return match place.starts_with('/') {
                true => Ok(Self::unix_of(protocol, place.into())),
                false => Err(wrong(&example)),
            };
        }
        let address = place.strip_suffix('/').unwrap_or(place);
        let address = match address.strip_prefix("localhost") {
            Some(port) if port.is_empty() || port.starts_with(':') => format!("127.0.0.1{port}"),
            _ => address.to_owned(),
        };
        if let Ok(address) = address.parse::<SocketAddr>() {
            return Ok(Self::tcp_of(protocol, address));
        }
        let port = protocol.port();
        match address.parse::<IpAddr>() {
            Ok(address) => Ok(Self::tcp_of(protocol, SocketAddr::new(address, port))),
            Err(_) => {
                Err(wrong(&format!("is no address and port, such as {name}://127.0.0.1:{port}")))
            }
        }
    }
}

impl ListenAddress {
    fn tcp_of(protocol: Protocol, address: SocketAddr) -> ListenAddress {
        match protocol {
            Protocol::Memcache => ListenAddress::Tcp(address),
            Protocol::Native => ListenAddress::NativeTcp(address),
        }
    }

    fn unix_of(protocol: Protocol, path: PathBuf) -> ListenAddress {
        match protocol {
            Protocol::Memcache => ListenAddress::Unix(path),
            Protocol::Native => ListenAddress::NativeUnix(path),
        }
    }

    /// What is spoken there.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        match self {
            ListenAddress::Tcp(_) | ListenAddress::Unix(_) => Protocol::Memcache,
            ListenAddress::NativeTcp(_)
            | ListenAddress::NativeUnix(_)
            | ListenAddress::Shared(_) => Protocol::Native,
        }
    }

    /// The address, if it is one of TCP.
    #[must_use]
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            ListenAddress::Tcp(address) | ListenAddress::NativeTcp(address) => Some(*address),
            ListenAddress::Unix(_) | ListenAddress::NativeUnix(_) | ListenAddress::Shared(_) => {
                None
            }
        }
    }

    /// The socket file, if it is one.
    #[must_use]
    pub fn socket_file(&self) -> Option<&Path> {
        match self {
            ListenAddress::Tcp(_) | ListenAddress::NativeTcp(_) => None,
            ListenAddress::Unix(path)
            | ListenAddress::NativeUnix(path)
            | ListenAddress::Shared(path) => Some(path),
        }
    }

    /// Whether only this machine can reach the address.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.tcp().is_none_or(|address| address.ip().is_loopback())
    }

    /// A socket that listens here, and the address with the port that it really has.
    pub fn bind(&self, allow_remote: bool, unix_mode: u32) -> Result<(OwnedFd, ListenAddress)> {
        if !allow_remote && !self.is_local() {
            return Err(Error::invalid(
                "listen",
                format!("{self} can be reached from other machines; --allow-remote permits it"),
            ));
        }
        let socket = self.patiently(|| match self {
            ListenAddress::Tcp(address) | ListenAddress::NativeTcp(address) => listen_tcp(*address),
            ListenAddress::Unix(path)
            | ListenAddress::NativeUnix(path)
            | ListenAddress::Shared(path) => listen_unix(path, unix_mode),
        })?;
        // The port may have been the system's to choose; a socket file is where it was asked for.
        let address = socket.local_addr().map_err(|source| self.failed(source))?.as_socket();
        let bound = address.filter(|_| self.tcp().is_some());
        let bound =
            bound.map_or_else(|| self.clone(), |found| Self::tcp_of(self.protocol(), found));
        Ok((socket.into(), bound))
    }

    /// Finds out whether a socket could be bound to its file now, without making one: whoever waits for the file would take it for a
    /// server that is ready. Of a folder that is not there yet `will_be` says whether somebody makes it before the server listens.
    pub(crate) fn check_socket_file(
        &self,
        path: &Path,
        will_be: impl Fn(&Path) -> bool,
    ) -> Result<()> {
        self.patiently(|| {
            make_way(path)?;
            if rustix::fs::lstat(path).is_ok() {
                return Err(IoErrorKind::AddrInUse.into());
            }
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new("."));
            match rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK) {
                Err(Errno::NOENT) if will_be(folder) => Ok(()),
                done => Ok(done?),
            }
        })
    }

    /// What is said of an address that two want.
    pub(crate) fn in_use(&self) -> Error {
        self.failed(IoErrorKind::AddrInUse.into())
    }

    /// What `call` gives, which is tried again while the address is in use.
    fn patiently<T>(&self, call: impl Fn() -> IoResult<T>) -> Result<T> {
        let mut done = call();
        for _ in 0..BIND_TRIES {
            if !done.as_ref().is_err_and(|error| error.kind() == IoErrorKind::AddrInUse) {
                break;
            }
            esker_trt::sleep(BIND_REST);
            done = call();
        }
        done.map_err(|source| self.failed(source))
    }

    fn failed(&self, source: IoError) -> Error {
        let error = Error::io("listen", source);
        let kind = match error.kind() {
            ErrorKind::InvalidArgument => ErrorKind::Io,
            kind => kind,
        };
        error.with_kind(kind).context(self.to_string())
    }
}

fn listen_tcp(address: SocketAddr) -> IoResult<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // An address is what it says: 0.0.0.0 may have a listener of its own at the same port.
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

fn listen_unix(path: &Path, mode: u32) -> IoResult<Socket> {
    let address = make_way(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&address)?;
    rustix::fs::chmod(path, Mode::from_raw_mode(mode))?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// The address of a socket file, where none is left on which nobody answers.
fn make_way(path: &Path) -> IoResult<SockAddr> {
    let address = SockAddr::unix(path)?;
    let is_socket =
        |stat: rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
    if rustix::fs::lstat(path).is_ok_and(is_socket) {
        clear_away(path, &address, || esker_trt::sleep(BIND_REST))?;
    }
    Ok(address)
}

/// Removes a socket file on which nobody answers. Only refusals tell that, one after each `rest`: a socket of another kind, or another
/// user's, may be alive, and who has just made its file listens in a moment.
fn clear_away(path: &Path, address: &SockAddr, rest: impl Fn()) -> IoResult<()> {
    for probes_left in (0..PROBES).rev() {
        let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // Whoever is too busy to be connected to is alive, and not waited for.
        probe.set_nonblocking(true)?;
        match probe.connect(address).map_err(|error| (error.kind(), error)) {
            Ok(()) | Err((IoErrorKind::WouldBlock, _)) => {
                return Err(IoErrorKind::AddrInUse.into());
            }
            Err((IoErrorKind::ConnectionRefused, _)) if probes_left > 0 => rest(),
            Err((IoErrorKind::ConnectionRefused, _)) => {}
            // Somebody else has removed it.
            Err((IoErrorKind::NotFound, _)) => return Ok(()),
            Err((kind, error)) => {
                let words = format!("the socket that is there may be in use: {error}");
                return Err(IoError::new(kind, words));
            }
        }
    }
    Ok(rustix::fs::unlink(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_base::clock::{Clock, SystemClock};

    #[test]
    fn addresses_are_read_as_they_are_shown() {
        for text in [
            "memcache://127.0.0.1:11211",
            "memcache://[::1]:0",
            "memcache+unix:///run/esker.sock",
            "native://127.0.0.1:11212",
            "native+unix:///run/esker.sock",
            "shm:///run/esker.sock",
        ] {
            assert_eq!(text.parse::<ListenAddress>().expect(text).to_string(), text);
        }
        let local: ListenAddress = "memcache://localhost:5".parse().expect("localhost");
        assert_eq!(local.to_string(), "memcache://127.0.0.1:5");
        assert_eq!(
            "memcache://127.0.0.1".parse::<ListenAddress>().expect("port"),
            ListenAddress::default()
        );
        let native: ListenAddress = "native://localhost".parse().expect("port");
        assert_eq!(native.to_string(), "native://127.0.0.1:11212");
    }

    #[test]
    fn other_protocols_and_half_addresses_are_refused_in_words() {
        for (text, words) in [
            ("127.0.0.1:11211", "needs a protocol"),
            ("resp://127.0.0.1:6379", "not in this version"),
            ("memcache://host:1", "no address and port"),
            ("memcache://localhost6:1", "no address and port"),
            ("native://localhost4", "no address and port"),
            ("memcache+unix://relative", "absolute path"),
            ("native+unix://relative", "native+unix:///run"),
            ("shm://relative", "shm:///run"),
        ] {
            let error = text.parse::<ListenAddress>().expect_err(text).to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn an_address_that_others_reach_is_refused_unless_allowed() {
        let open: ListenAddress = "memcache://0.0.0.0:0".parse().expect("address");
        let error = open.bind(false, 0o700).expect_err("refused");
        assert!(error.to_string().contains("--allow-remote"), "{error}");
        assert!(open.bind(true, 0o700).is_ok());
    }

    #[test]
    fn an_address_that_is_in_use_for_a_moment_is_waited_for_and_no_longer() {
        let any: ListenAddress = "memcache://127.0.0.1:0".parse().expect("address");
        let (held, address) = any.bind(false, 0o700).expect("bind");
        let started = SystemClock.monotonic();
        let error = address.bind(false, 0o700).expect_err("in use").to_string();
        assert!(error.contains("in use") && error.contains(&address.to_string()), "{error}");
        assert!(SystemClock.monotonic() - started >= Duration::from_secs(1));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                esker_trt::sleep(Duration::from_millis(300));
                drop(held);
            });
            address.bind(false, 0o700).expect("free after a moment");
        });
    }

    #[test]
    fn as_many_connections_wait_as_the_system_permits() {
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        if files.is_some_and(|files| files < 2000) {
            esker_testkit::skipped::because("the system does not permit so many files");
            return;
        }
        let folder = tempfile::tempdir().expect("scratch folder");
        let waiting = |path: &Path| {
            let connected = (0..1500).map_while(|_| {
                let socket = Socket::new(Domain::UNIX, Type::STREAM, None).expect("socket");
                socket.set_nonblocking(true).expect("flag");
                socket.connect(&SockAddr::unix(path).expect("address")).is_ok().then_some(socket)
            });
            connected.collect::<Vec<Socket>>().len()
        };
        let most = folder.path().join("most");
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).expect("socket");
        socket.bind(&SockAddr::unix(&most).expect("address")).expect("bind");
        socket.listen(i32::MAX).expect("listen");
        let path = folder.path().join("socket");
        let _bound = ListenAddress::Unix(path.clone()).bind(false, 0o700).expect("bind");
        assert_eq!(waiting(&path), waiting(&most));
    }

    #[test]
    fn a_stale_socket_file_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().expect("scratch folder");
        let address = ListenAddress::Unix(folder.path().join("socket"));
        let first = address.bind(false, 0o700).expect("bind");
        assert!(address.bind(false, 0o700).is_err(), "somebody listens");
        drop(first);
        assert!(address.bind(false, 0o700).is_ok());
    }

    #[test]
    fn a_socket_that_does_not_listen_yet_keeps_its_file() {
        let folder = tempfile::tempdir().expect("scratch folder");
        let path = folder.path().join("socket");
        let address = SockAddr::unix(&path).expect("address");
        let starts = Socket::new(Domain::UNIX, Type::STREAM, None).expect("socket");
        starts.bind(&address).expect("bind");
        let listens = || starts.listen(BACKLOG).expect("listen");
        let error = clear_away(&path, &address, listens).expect_err("it lives");
        assert_eq!(error.kind(), IoErrorKind::AddrInUse);
        assert!(path.exists());
    }

    #[test]
    fn a_socket_that_is_not_known_to_be_dead_stays() {
        use std::os::unix::net::{UnixDatagram, UnixListener};
        let folder = tempfile::tempdir().expect("scratch folder");
        let path = folder.path().join("socket");
        let address = ListenAddress::Shared(path.clone());
        let other = UnixDatagram::bind(&path).expect("a socket of another kind");
        let error = address.bind(false, 0o700).expect_err("it lives").to_string();
        assert!(error.contains("socket") && error.contains("Protocol wrong type"), "{error}");
        let sender = UnixDatagram::unbound().expect("socket");
        sender.send_to(b"still there", &path).expect("the file is that of the living socket");
        drop(other);
        rustix::fs::unlink(&path).expect("remove");
        // One that is so busy that nobody can connect is alive, and not waited for.
        let busy = UnixListener::bind(&path).expect("bind");
        let waiting: Vec<Socket> = std::iter::from_fn(|| {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None).expect("socket");
            socket.set_nonblocking(true).expect("flag");
            socket.connect(&SockAddr::unix(&path).expect("address")).is_ok().then_some(socket)
        })
        .take(10_000)
        .collect();
        let error = address.bind(false, 0o700).expect_err("it lives").to_string();
        assert!(error.contains("in use"), "{error}");
        drop((waiting, busy));
        assert!(address.bind(false, 0o700).is_ok());
    }
}
