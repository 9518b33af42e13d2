//! What memcached's options mean here.
//!
//! Each option sets something, or is accepted with one line that says why it changes nothing, or is
//! refused in words. An option is refused where ignoring it would break what whoever gave it relies
//! on: authentication, a protocol, a port.

use super::options::{self, Given};
use crate::failure::Failure;
use esker_base::units::{KIB, MIB, parse_size_bytes};
use esker_server::{Limits, ListenAddress, UNIX_MODE};
use rustix::net::{AddressFamily, SocketType};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

/// Port of memcached.
const PORT: u16 = 11211;
/// `-m` without an argument of its own, in MiB.
const MEMORY_MIB: u64 = 64;
/// Least size of a store in MiB; a smaller `-m` is raised to it.
const STORE_MIB_MIN: u64 = 64;
const THREADS: usize = 4;
/// Memory for buffers and values in flight; more if so many connections need it.
const BUDGET_BYTES: u64 = 256 * MIB;

/// Options of `-o` that say something about memory, threads or logs that Esker has in another way.
const EXTENDED_IGNORED: &[&str] = &[
    "maxconns_fast",
    "hashpower",
    "tail_repair_time",
    "hash_algorithm",
    "lru_crawler",
    "lru_crawler_sleep",
    "lru_crawler_tocrawl",
    "read_buf_mem_limit",
    "resp_obj_mem_limit",
    "lru_maintainer",
    "hot_lru_pct",
    "warm_lru_pct",
    "hot_max_factor",
    "warm_max_factor",
    "temporary_ttl",
    "slab_chunk_max",
    "slab_sizes",
    "chunked_items",
    "slab_reassign",
    "slab_automove",
    "slab_automove_ratio",
    "slab_automove_window",
    "watcher_logbuf_size",
    "worker_logbuf_size",
    "track_sizes",
    "hashexpand",
    "modern",
    "sock_cookie_id",
    "ext_page_size",
    "ext_wbuf_size",
    "ext_threads",
    "ext_item_size",
    "ext_item_age",
    "ext_low_ttl",
    "ext_drop_unread",
    "ext_recache_rate",
    "ext_compact_under",
    "ext_drop_under",
    "ext_max_frag",
    "ext_max_sleep",
    "ext_io_depth",
    "slab_automove_freeratio",
    "inline_ascii_resp",
    "ssl_wbuf_size",
    "ssl_session_cache",
    "drop_privileges",
];

/// What a command line asks for.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) listen: Vec<ListenAddress>,
    pub(super) listen_plain: Vec<ListenAddress>,
    pub(super) unix_mode: u32,
    pub(super) shutdown: bool,
    pub(super) flush: bool,
    pub(super) dump: bool,
    pub(super) daemon: bool,
    pub(super) pid_file: Option<PathBuf>,
    pub(super) user: Option<String>,
    pub(super) size_bytes: u64,
    /// What `-m` said.
    pub(super) size_given: Option<String>,
    pub(super) evict: bool,
    pub(super) cores: usize,
    pub(super) verbose: usize,
    pub(super) limits: Limits,
    pub(super) auth_file: Option<PathBuf>,
    pub(super) tls: Option<(PathBuf, PathBuf)>,
    /// Where the data lie; the default depends on who runs it.
    pub(super) data: Option<PathBuf>,
    /// Whether a raw device may hold what is no store.
    pub(super) format: bool,
    pub(super) port: u16,
    /// What has no meaning here, one line each.
    pub(super) notes: Vec<String>,
}

/// Numbers and words before they are put together.
#[derive(Default)]
struct Draft {
    port: Option<u16>,
    interfaces: Vec<String>,
    socket: Option<PathBuf>,
    tls: bool,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

fn wrong(words: impl std::fmt::Display) -> Failure {
    Failure::usage(format!("memcached: {words}"))
}

fn number<N: std::str::FromStr>(option: &str, text: &str) -> Result<N, Failure> {
    text.parse().map_err(|_| wrong(format!("{option}: {text:?} is no number")))
}

fn positive(option: &str, text: &str) -> Result<u64, Failure> {
    match number(option, text)? {
        0 => Err(wrong(format!("{option} must be greater than 0"))),
        number => Ok(number),
    }
}

/// Reads `-I`: bytes, or with a suffix.
fn item_size(text: &str) -> Result<u64, Failure> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (text.get(..at).unwrap_or_default(), KIB),
        Some((at, 'm' | 'M')) => (text.get(..at).unwrap_or_default(), MIB),
        _ => (text, 1),
    };
    let bytes = number::<u64>("-I", digits)?.saturating_mul(unit);
    match bytes {
        0..KIB => Err(wrong("-I: the item size limit cannot be less than 1024 bytes")),
        bytes if bytes > 1024 * MIB => {
            Err(wrong("-I: the item size limit cannot be more than 1024m"))
        }
        bytes => Ok(bytes),
    }
}

impl Plan {
    /// What `given` asks for.
    pub(super) fn of(given: &[Given]) -> Result<Plan, Failure> {
        let mut plan = Plan {
            listen: Vec::new(),
            listen_plain: Vec::new(),
            unix_mode: UNIX_MODE,
            shutdown: false,
            flush: true,
            dump: true,
            daemon: false,
            pid_file: None,
            user: None,
            size_bytes: MEMORY_MIB * MIB,
            size_given: None,
            evict: true,
            cores: THREADS,
            verbose: 0,
            // Somebody may type at telnet, or stand still in a debugger.
            limits: Limits { request_timeout: Duration::ZERO, ..Limits::default() },
            auth_file: None,
            tls: None,
            data: None,
            format: false,
            port: PORT,
            notes: Vec::new(),
        };
        let mut draft = Draft::default();
        for (letter, argument) in given {
            plan.set(&mut draft, *letter, argument)?;
        }
        plan.finish(draft)?;
        Ok(plan)
    }

    fn set(&mut self, draft: &mut Draft, letter: char, text: &str) -> Result<(), Failure> {
        match letter {
            // As memcached's own tests say it: any port that is free.
            'p' if text == "-1" => draft.port = Some(0),
            'p' => draft.port = Some(number("-p", text)?),
            'U' if number::<i64>("-U", text)? != 0 => {
                return Err(wrong("-U: UDP is not supported; leave it out, or give 0"));
            }
            'U' => {}
            's' => draft.socket = Some(text.into()),
            'a' => {
                self.unix_mode = u32::from_str_radix(text, 8)
                    .ok()
                    .filter(|mode| *mode <= 0o777)
                    .ok_or_else(|| wrong(format!("-a: {text:?} is no access mask in octal")))?;
            }
            'A' => self.shutdown = true,
            'l' => {
                let named = text.split([',', ';']).filter(|name| !name.is_empty());
                draft.interfaces.extend(named.map(str::to_owned));
            }
            'd' => self.daemon = true,
            'u' => self.user = Some(text.to_owned()),
            'm' => self.set_size(text)?,
            'M' => self.evict = false,
            'c' => {
                self.limits.connections_max = u32::try_from(positive("-c", text)?)
                    .map_err(|_| wrong(format!("-c: {text} are too many")))?;
            }
            'v' => {
                let more = text.parse::<usize>().unwrap_or(1);
                self.verbose = self.verbose.saturating_add(more);
            }
            'P' => self.pid_file = Some(text.into()),
            't' => {
                self.cores = usize::try_from(positive("-t", text)?).unwrap_or(usize::MAX);
            }
            'I' => self.limits.item_size_max_bytes = item_size(text)?,
            'F' => self.flush = false,
            'X' => self.dump = false,
            'Y' => self.auth_file = Some(text.into()),
            'Z' => draft.tls = true,
            'e' => self.data = Some(text.into()),
            'o' => {
                for (name, value) in options::extended(text) {
                    self.set_extended(draft, &name, value.as_deref())?;
                }
            }
            'B' => match text {
                "auto" | "ascii" => {}
                "binary" => {
                    return Err(wrong("-B: the binary protocol is not supported; use ascii"));
                }
                _ => return Err(wrong(format!("-B: {text:?} is none of auto, ascii, binary"))),
            },
            'S' => {
                return Err(wrong(
                    "-S: SASL needs the binary protocol, which is not supported; -Y FILE asks for user and password",
                ));
            }
            'f' | 'n' | 'R' | 'b' | 'N' => {
                let valid = text.parse::<f64>().is_ok_and(|number| number > 0.0);
                let factor = letter != 'f' || text.parse::<f64>().is_ok_and(|number| number > 1.0);
                if !valid || !factor {
                    return Err(wrong(format!("-{letter}: {text:?} is out of range")));
                }
                self.ignored(&format!("-{letter}"));
            }
            'k' | 'L' | 'D' | 'C' | 'W' | 'r' => self.ignored(&format!("-{letter}")),
            other => return Err(wrong(format!("there is no option -{other}"))),
        }
        Ok(())
    }

    fn ignored(&mut self, option: &str) {
        let why = match option {
            "-k" | "-L" => "values are kept on storage, not in memory that could be locked",
            "-C" => "CAS ids cost nothing here and stay",
            "-b" => "the backlog is what the system permits",
            "-D" => "there are no statistics by prefix",
            "-W" => "there is no such command",
            "-r" => "the limit of core files is the system's",
            "-f" | "-n" => "there are no slab classes",
            "-R" => {
                "a connection gives way to the others of its core by the work it makes, not by its requests"
            }
            "-N" => "connections go to the cores in turn",
            _ => "it says how memcached works inside",
        };
        self.notes.push(format!("{option} has no effect: {why}"));
    }

    /// Reads `-m`: mebibytes, or a size with its unit.
    fn set_size(&mut self, text: &str) -> Result<(), Failure> {
        let has_unit = text.ends_with(|last: char| last.is_ascii_alphabetic());
        let mebibytes = match parse_size_bytes(text).filter(|_| has_unit) {
            Some(0) => return Err(wrong("-m must be greater than 0")),
            Some(bytes) => bytes.div_ceil(MIB),
            None => positive("-m", text)?,
        };
        self.size_given = Some(text.to_owned());
        if mebibytes < STORE_MIB_MIN {
            self.notes
                .push(format!("-m {text} is raised to {STORE_MIB_MIN}, the least size of a store"));
        }
        self.size_bytes = mebibytes.max(STORE_MIB_MIN).saturating_mul(MIB);
        Ok(())
    }

    fn set_extended(
        &mut self,
        draft: &mut Draft,
        name: &str,
        value: Option<&str>,
    ) -> Result<(), Failure> {
        let needed = || value.ok_or_else(|| wrong(format!("-o {name} needs a value")));
        match name {
            "data" => self.data = Some(needed()?.into()),
            "format" => self.format = true,
            "idle_timeout" => {
                self.limits.idle_timeout =
                    Duration::from_secs(number("-o idle_timeout", needed()?)?);
            }
            "request_timeout" => {
                self.limits.request_timeout =
                    Duration::from_secs(number("-o request_timeout", needed()?)?);
            }
            "ssl_chain_cert" => draft.certificate = Some(needed()?.into()),
            "ssl_key" => draft.key = Some(needed()?.into()),
            "ssl_keyformat" if !needed()?.eq_ignore_ascii_case("pem") => {
                return Err(wrong("-o ssl_keyformat: only PEM is supported"));
            }
            "ssl_verify_mode" if needed()? != "0" => {
                return Err(wrong(
                    "-o ssl_verify_mode: certificates of clients are not checked; only 0 is supported",
                ));
            }
            "ssl_min_version" if !["0", "1", "2"].contains(&needed()?) => {
                return Err(wrong(
                    "-o ssl_min_version: TLS 1.2 and 1.3 are served; a higher bound is not supported",
                ));
            }
            "ssl_keyformat" | "ssl_verify_mode" | "ssl_min_version" => {}
            "ssl_ciphers" | "ssl_ca_cert" | "ssl_kernel_tls" => {
                return Err(wrong(format!("-o {name} is not supported")));
            }
            "ext_path" => {
                let path = needed()?.rsplit_once(':').map_or(needed()?, |(path, _)| path);
                self.notes.push(format!("-o ext_path has no effect: all values are on storage; -o data=PATH says where ({path} is not used)"));
            }
            _ => {
                let positive = name.strip_prefix("no_").unwrap_or(name);
                if !EXTENDED_IGNORED.contains(&positive) {
                    return Err(wrong(format!("-o: there is no option {name:?}")));
                }
                self.ignored(&format!("-o {name}"));
            }
        }
        Ok(())
    }

    /// What tells this server from others of its user: its port, or the path of its socket; nothing if it takes any port.
    pub(super) fn place(&self) -> Option<String> {
        let socket = self.listen.iter().find_map(|address| match address {
            ListenAddress::Unix(path) => Some(path.display().to_string()),
            _ => None,
        });
        let port = (self.port > 0).then(|| self.port.to_string());
        // Two sockets whose paths differ in that only would be refused one store.
        socket.map(|path| path.trim_start_matches('/').replace('/', "-")).or(port)
    }

    /// Makes every path one that means the same in any folder.
    pub(super) fn make_absolute(&mut self) -> Result<(), Failure> {
        let sockets = self.listen.iter_mut().filter_map(|address| match address {
            ListenAddress::Unix(path) => Some(path),
            _ => None,
        });
        let mut paths: Vec<&mut PathBuf> = sockets.collect();
        paths.extend(
            [&mut self.pid_file, &mut self.auth_file, &mut self.data].into_iter().flatten(),
        );
        paths.extend(self.tls.iter_mut().flat_map(|(chain, key)| [chain, key]));
        for path in paths {
            *path = std::path::absolute(&path)
                .map_err(|source| Failure::io(path.display(), &source))?;
        }
        Ok(())
    }

    fn finish(&mut self, draft: Draft) -> Result<(), Failure> {
        let buffers = u64::from(self.limits.connections_max).saturating_mul(8 * KIB);
        let items = self.limits.item_size_max_bytes.saturating_mul(8);
        self.limits.memory_max_bytes = BUDGET_BYTES.max(buffers.saturating_add(items));
        if self.limits.item_size_max_bytes > self.size_bytes / 2 {
            return Err(wrong("-I: an item cannot be more than half of the memory (-m)"));
        }
        self.port = draft.port.unwrap_or(PORT);
        self.listen_at(&draft)?;
        match (draft.tls, draft.certificate, draft.key) {
            (false, None, None) => {}
            (false, ..) => return Err(wrong("-o ssl_...: only together with -Z")),
            (true, ..) if draft.socket.is_some() => {
                return Err(wrong("-Z: TLS needs a TCP port, not -s"));
            }
            (true, None, _) => return Err(wrong("-Z: needs -o ssl_chain_cert=FILE")),
            // The key may stand in the file of the chain.
            (true, Some(chain), key) => self.tls = Some((chain.clone(), key.unwrap_or(chain))),
        }
        self.limits.check().map_err(wrong)
    }

    fn listen_at(&mut self, draft: &Draft) -> Result<(), Failure> {
        if let Some(path) = &draft.socket {
            self.listen.push(ListenAddress::Unix(path.clone()));
            return Ok(());
        }
        if draft.interfaces.is_empty() {
            // Unlike memcached: other hosts are served only when somebody says so.
            let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
            self.listen.push(ListenAddress::Tcp(SocketAddr::new(host, self.port)));
        }
        for interface in &draft.interfaces {
            let (text, plain) = self.marked(interface)?;
            let (addresses, unusable) = usable(resolve(text, self.port)?);
            let left_out = |(address, why)| {
                format!("-l {text}: nobody can listen at {address} of it here: {why}")
            };
            self.notes.extend(unusable.into_iter().map(left_out));
            let list = if plain { &mut self.listen_plain } else { &mut self.listen };
            for address in addresses.into_iter().map(ListenAddress::Tcp) {
                // Two names may mean one address.
                if !list.contains(&address) {
                    list.push(address);
                }
            }
        }
        Ok(())
    }

    /// An argument of `-l` without the marks before it, and whether one of them says that there is no TLS.
    fn marked<'t>(&mut self, interface: &'t str) -> Result<(&'t str, bool), Failure> {
        let (mut text, mut plain) = (interface, false);
        loop {
            if let Some(rest) = text.strip_prefix("notls:") {
                (text, plain) = (rest, true);
                continue;
            }
            let (mark, rest) = match text.split_once("]:") {
                Some((mark, rest)) if mark.starts_with("tag[") || mark.starts_with("proto[") => {
                    (mark, rest)
                }
                _ => return Ok((text, plain)),
            };
            match mark {
                "proto[ascii" | "proto[negotiating" => {}
                "proto[binary" => {
                    return Err(wrong(
                        "-l: the binary protocol is not supported; use proto[ascii]",
                    ));
                }
                _ if mark.starts_with("tag[") => {
                    self.notes.push(format!(
                        "-l {mark}] has no effect: nothing here asks for the tag of a connection"
                    ));
                }
                _ => {
                    return Err(wrong(format!(
                        "-l: {mark}] is none of proto[ascii], proto[negotiating]"
                    )));
                }
            }
            text = rest;
        }
    }
}

/// Of several addresses of one name, those at which this machine can listen, and the others with why not; all, if it can at none:
/// whoever tries says so. A name may have an address of IPv6 where there is none.
fn usable(addresses: Vec<SocketAddr>) -> (Vec<SocketAddr>, Vec<(IpAddr, std::io::Error)>) {
    if addresses.len() < 2 {
        return (addresses, Vec::new());
    }
    let mut unusable = Vec::new();
    let mut here = addresses.clone();
    here.retain(|address| {
        let mut any = *address;
        any.set_port(0);
        // Any kind of socket tells, and this one is in nobody's way.
        match UdpSocket::bind(any) {
            Err(error)
                if error.kind() == std::io::ErrorKind::AddrNotAvailable
                    || error.raw_os_error()
                        == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error()) =>
            {
                unusable.push((address.ip(), error));
                false
            }
            _ => true,
        }
    });
    if here.is_empty() { (addresses, Vec::new()) } else { (here, unusable) }
}

/// Addresses of `HOST`, `HOST:PORT`, `[HOST]` or `[HOST]:PORT`.
fn resolve(text: &str, port: u16) -> Result<Vec<SocketAddr>, Failure> {
    let failed = |why: &dyn std::fmt::Display| wrong(format!("-l {text}: {why}"));
    let numbered = with_interface_number(text).map_err(|error| failed(&error))?;
    let text = numbered.as_str();
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(vec![address]);
    }
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = format!("[{bare}]:{port}").parse() {
        return Ok(vec![SocketAddr::V6(address)]);
    }
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, number("-l", port)?),
        None => (text, port),
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if host == "*" {
        // What memcached has for all addresses of this host.
        let all = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
        return Ok(all.map(|ip| SocketAddr::new(ip, port)).into());
    }
    let found: Vec<SocketAddr> =
        (host, port).to_socket_addrs().map_err(|error| failed(&error))?.collect();
    // As in memcached: every address that the name has.
    if found.is_empty() { Err(failed(&"no address")) } else { Ok(found) }
}

/// An address of one interface, as `fe80::1%eth0`, with the interface's number, which is all that addresses have.
fn with_interface_number(text: &str) -> Result<String, std::io::Error> {
    let Some((before, rest)) = text.split_once('%') else { return Ok(text.to_owned()) };
    let (name, after) = rest.split_at(rest.find(']').unwrap_or(rest.len()));
    if name.parse::<u32>().is_ok() {
        return Ok(text.to_owned());
    }
    if name.contains(':') {
        // The system would take it for a name of `eth0`, and leave out the port.
        let words = "an address of IPv6 with a port stands in brackets";
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, words));
    }
    let any = rustix::net::socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
    let number = rustix::net::netdevice::name_to_index(any, name)?;
    Ok(format!("{before}%{number}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(line: &str) -> Result<Plan, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let given = options::read(&words).map_err(|failure| failure.to_string())?;
        Plan::of(&given).map_err(|failure| failure.to_string())
    }

    #[test]
    fn defaults_are_those_of_memcached_but_for_the_address() {
        let plan = plan("").expect("valid");
        let host = ListenAddress::Tcp("127.0.0.1:11211".parse().expect("address"));
        assert_eq!(plan.listen, [host]);
        assert_eq!((plan.size_bytes, plan.cores, plan.evict), (64 * MIB, 4, true));
        assert_eq!(plan.limits.connections_max, 1024);
        assert_eq!(plan.limits.item_size_max_bytes, MIB);
        assert_eq!((plan.unix_mode, plan.shutdown, plan.flush), (0o700, false, true));
    }

    #[test]
    fn a_line_of_a_distribution_is_understood() {
        let plan = plan("-m 128 -p 11300 -u memcache -l 127.0.0.1,[::1]:5 -P /run/m.pid -c 2048 -I 2m -t 2 -vv -M -F -A -o modern,idle_timeout=30,no_lru_crawler").expect("valid");
        let shown: Vec<String> = plan.listen.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["memcache://127.0.0.1:11300", "memcache://[::1]:5"]);
        assert_eq!((plan.size_bytes, plan.cores, plan.verbose), (128 * MIB, 2, 2));
        assert_eq!((plan.evict, plan.flush, plan.shutdown), (false, false, true));
        assert_eq!(plan.limits.item_size_max_bytes, 2 * MIB);
        assert_eq!(plan.limits.idle_timeout, Duration::from_secs(30));
        assert_eq!(plan.notes.len(), 2, "{:?}", plan.notes);
    }

    #[test]
    fn nothing_is_said_more_than_all() {
        let line = format!("--verbose={} -v", usize::MAX);
        assert_eq!(plan(&line).expect("valid").verbose, usize::MAX);
    }

    #[test]
    fn servers_are_told_apart_by_port_or_socket() {
        let place = |line| plan(line).unwrap().place();
        assert_eq!(place("-p 11212").as_deref(), Some("11212"));
        assert_eq!(place("-s /run/a/b.sock -p 0").as_deref(), Some("run-a-b.sock"));
        assert_eq!((place("-p -1"), place("-p 0")), (None, None));
    }

    #[test]
    fn a_star_is_every_address_and_minus_one_any_port() {
        let both = UdpSocket::bind("[::]:0").is_ok();
        for (line, four, six) in [
            ("-l * -p 5", "memcache://0.0.0.0:5", Some("memcache://[::]:5")),
            ("-l *:7", "memcache://0.0.0.0:7", Some("memcache://[::]:7")),
            ("-p -1", "memcache://127.0.0.1:0", None),
        ] {
            let expected: Vec<&str> =
                [Some(four), six.filter(|_| both)].into_iter().flatten().collect();
            assert_eq!(shown(&plan(line).expect(line).listen), expected, "{line}");
        }
    }

    fn shown(addresses: &[ListenAddress]) -> Vec<String> {
        addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn names_are_all_their_addresses_each_once() {
        let plan = plan("-l localhost;127.0.0.1,,[127.0.0.1]:11211 -l 127.0.0.1:5;127.0.0.1:5")
            .expect("valid");
        let all = ("localhost", PORT).to_socket_addrs().expect("known");
        let (all, unusable) = usable(all.collect());
        assert_eq!(plan.notes.len(), unusable.len());
        assert!(all.iter().all(|address| plan.listen.contains(&ListenAddress::Tcp(*address))));
        let four = shown(&plan.listen);
        let of_four: Vec<&String> = four.iter().filter(|name| name.contains("127.0.0.1")).collect();
        assert_eq!(of_four, ["memcache://127.0.0.1:11211", "memcache://127.0.0.1:5"]);
        // One that is no address of this machine, from a range for examples.
        let (mine, other) =
            ("127.0.0.1:7".parse().expect("one"), "192.0.2.1:7".parse().expect("one"));
        let (here, unusable) = usable(vec![other, mine]);
        assert_eq!((here, unusable.len()), (vec![mine], 1));
        assert_eq!(usable(vec![other]).0, [other], "who is named by itself is meant");
        assert_eq!(usable(vec![other, other]).0.len(), 2, "somebody has to say that it fails");
    }

    #[test]
    fn addresses_of_one_interface_have_its_number() {
        let lines = "-l [fe80::1%1]:5;[fe80::1%lo]:6;fe80::1%lo;[fe80::1%lo];fe80::2%1;::1;[::1]:7";
        let addresses =
            ["[fe80::1%1]:5", "[fe80::1%1]:6", "[fe80::1%1]:11211", "[fe80::2%1]:11211"];
        let expected = addresses.iter().chain(&["[::1]:11211", "[::1]:7"]);
        let expected: Vec<String> = expected.map(|text| format!("memcache://{text}")).collect();
        assert_eq!(shown(&plan(lines).expect("valid").listen), expected);
        for wrong in
            ["-l [fe80::1%nowhere]:5", "-l [fe80::1%]:5", "-l fe80::1%lo:6", "-l fe80::1%1:6"]
        {
            let words = plan(wrong).expect_err(wrong);
            assert!(words.starts_with(&format!("memcached: {wrong}: ")), "{words}");
        }
    }

    #[test]
    fn marks_of_listeners_are_understood() {
        let marked = plan("-l proto[ascii]:127.0.0.1:5,tag[x]:127.0.0.1:6,notls:proto[negotiating]:[::1]:7,proto[ascii]:notls:127.0.0.1").expect("valid");
        assert_eq!(shown(&marked.listen), ["memcache://127.0.0.1:5", "memcache://127.0.0.1:6"]);
        assert_eq!(
            shown(&marked.listen_plain),
            ["memcache://[::1]:7", "memcache://127.0.0.1:11211"]
        );
        assert!(matches!(&marked.notes[..], [note] if note.contains("tag[x] has no effect: ")));
    }

    #[test]
    fn sizes_mean_what_their_unit_says() {
        for (line, mebibytes) in [
            ("-m 100", 100),
            ("-m 64m", 64),
            ("-m 1024M", 1024),
            ("-m 2g", 2048),
            ("-m 131072k", 128),
            ("-m 100MiB", 100),
        ] {
            assert_eq!(plan(line).expect(line).size_bytes, mebibytes * MIB, "{line}");
        }
    }

    #[test]
    fn nobody_is_hurried_unless_it_is_asked_for() {
        let timeout = |line| plan(line).expect(line).limits.request_timeout;
        assert_eq!(timeout(""), Duration::ZERO);
        assert_eq!(timeout("-o request_timeout=7"), Duration::from_secs(7));
    }

    #[test]
    fn in_the_background_every_path_is_absolute() {
        let mut plan = plan("-d -s sock -P pid -Y users -e data").expect("valid");
        plan.make_absolute().expect("there is a folder");
        let socket = plan.listen.iter().map(|address| match address {
            ListenAddress::Unix(path) => path.clone(),
            other => panic!("{other}"),
        });
        let paths = [plan.pid_file.clone(), plan.auth_file.clone(), plan.data.clone()];
        let folder = std::env::current_dir().expect("there is one");
        let all: Vec<PathBuf> = socket.chain(paths.into_iter().flatten()).collect();
        assert_eq!(all, ["sock", "pid", "users", "data"].map(|name| folder.join(name)));
    }

    #[test]
    fn a_container_serves_those_outside() {
        let file = include_str!("../../../../dist/container/Containerfile");
        let line = file.lines().find_map(|line| line.strip_prefix("ENTRYPOINT ")).expect("there");
        let words: Vec<String> = serde_json::from_str(line).expect("a list");
        assert_eq!(words[..2], ["esker", "memcached"]);
        let plan = plan(&format!("{} -m 128", words[2..].join(" "))).expect("valid");
        assert!(!plan.listen.is_empty() && !plan.listen.iter().any(ListenAddress::is_local));
        assert!(file.contains(&format!("EXPOSE {}\n", plan.port)) && plan.data.is_some());
    }

    #[test]
    fn a_unit_serves_this_host() {
        let file = include_str!("../../../../dist/systemd/esker-memcached.service");
        let of = |name| file.lines().find_map(|line| line.strip_prefix(name)).expect("there");
        let mut line = of("ExecStart=/usr/bin/esker memcached ").replace("$OPTIONS", "");
        for variable in of("Environment=").split(' ') {
            let (name, value) = variable.split_once('=').expect("a value");
            line = line.replace(&format!("${{{name}}}"), value);
        }
        let plan = plan(&line).expect("valid");
        assert!(plan.listen.iter().all(ListenAddress::is_local) && plan.notes.is_empty());
        assert_eq!((plan.listen.len(), plan.port, plan.size_bytes), (1, PORT, 1024 * MIB));
    }

    #[test]
    fn options_without_a_meaning_are_told_and_change_nothing() {
        let plan = plan(
            "-k -L -C -W -r -D : -f 1.25 -n 48 -R 20 -b 1024 -U 0 -B ascii -o slab_sizes=100-200,no_chunked_items",
        )
        .expect("valid");
        assert_eq!(plan.notes.len(), 12, "{:?}", plan.notes);
        assert!(plan.notes.iter().all(|note| note.contains("has no effect: ")));
    }

    #[test]
    fn wrong_options_are_refused_in_words() {
        for (line, words) in [
            ("-p abc", "no number"),
            ("-p 65536", "no number"),
            ("-c 0", "greater than 0"),
            ("-t 0", "greater than 0"),
            ("-m 0", "greater than 0"),
            ("-m 0g", "greater than 0"),
            ("-m 64x", "no number"),
            ("-m m", "no number"),
            ("-l proto[binary]:127.0.0.1", "binary"),
            ("-l proto[x]:127.0.0.1", "none of"),
            ("-o request_timeout=x", "no number"),
            ("-I 100", "less than 1024"),
            ("-I 2000m", "more than 1024m"),
            ("-I 40m", "half of the memory"),
            ("-a 999", "octal"),
            ("-f 1", "out of range"),
            ("-R 0", "out of range"),
            ("-B foo", "none of"),
            ("-B binary", "not supported"),
            ("-S", "-Y FILE"),
            ("-U 11211", "UDP"),
            ("-U -1", "UDP"),
            ("-o bogus", "\"bogus\""),
            ("-o data", "needs a value"),
            ("-Z", "ssl_chain_cert"),
            ("-o ssl_key=x", "together with -Z"),
            ("-Z -s /x -o ssl_chain_cert=x", "TCP port"),
            ("-o ssl_verify_mode=2", "not checked"),
            ("-l no.such.host.invalid", "-l no.such.host.invalid"),
        ] {
            let error = plan(line).expect_err(line);
            assert!(error.contains(words), "{line}: {error}");
        }
    }

    #[test]
    fn small_stores_are_raised_and_it_is_told() {
        let plan = plan("-m 1").expect("valid");
        assert_eq!(plan.size_bytes, 64 * MIB);
        assert!(plan.notes[0].contains("raised to 64"), "{:?}", plan.notes);
    }
}
