//! What memcached's options mean here.
//!
//! Each option sets something, or is accepted with one line that says why it changes nothing, or is
//! refused in words. An option is refused where ignoring it would break what whoever gave it relies
//! on: authentication, a protocol, a port.

use super::addresses::{resolve, usable};
use super::options::{self, Given};
use crate::failure::Failure;
use esker_base::units::{KIB, MIB, parse_size_bytes};
use esker_server::{Limits, ListenAddress, UNIX_MODE};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
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
    "relaxed_privileges",
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
    pub(super) watch: bool,
    /// What ends the prefix of a key.
    pub(super) delimiter: Option<u8>,
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
    no_tcp: bool,
    interfaces: Vec<String>,
    socket: Option<PathBuf>,
    tls: bool,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

pub(super) fn wrong(words: impl std::fmt::Display) -> Failure {
    Failure::usage(format!("memcached: {words}"))
}

fn number<N: std::str::FromStr>(option: &str, text: &str) -> Result<N, Failure> {
    text.parse().map_err(|_| wrong(format!("{option}: {text:?} is no number")))
}

pub(super) fn port(option: &str, text: &str) -> Result<u16, Failure> {
    text.parse().map_err(|_| wrong(format!("{option}: {text:?} is no number from 0 to 65535")))
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
            watch: true,
            delimiter: None,
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
            'p' if text == "-1" => (draft.port, draft.no_tcp) = (Some(0), false),
            'p' => {
                let port = self::port("-p", text)?;
                (draft.port, draft.no_tcp) = (Some(port), port == 0);
            }
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
            'W' => self.watch = false,
            // As in memcached, the first byte of what is given.
            'D' => match text.bytes().next() {
                None => return Err(wrong("-D: no delimiter is given")),
                first => self.delimiter = first,
            },
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
            'k' | 'L' | 'C' | 'r' => self.ignored(&format!("-{letter}")),
            other => return Err(wrong(format!("there is no option -{other}"))),
        }
        Ok(())
    }

    fn ignored(&mut self, option: &str) {
        let why = match option {
            "-k" | "-L" => "values are kept on storage, not in memory that could be locked",
            "-C" => "CAS ids cost nothing here and stay",
            "-b" => "the backlog is what the system permits",
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

    /// What tells this server from others of its user: the port of its first address, with the host if that is a special one, or the
    /// whole path of its socket; nothing if it takes any port.
    pub(super) fn place(&self) -> Result<Option<String>, Failure> {
        match self.listen.iter().chain(&self.listen_plain).next() {
            Some(ListenAddress::Unix(socket)) => {
                let path = std::path::absolute(socket)
                    .map_err(|source| Failure::io(socket.display(), &source))?;
                Ok(Some(one_name(path.as_os_str().as_encoded_bytes())))
            }
            Some(ListenAddress::Tcp(address)) if address.port() > 0 => {
                let (host, port) = (address.ip(), address.port());
                let is_special = !host.is_loopback() && !host.is_unspecified();
                let name = if is_special { address.to_string() } else { port.to_string() };
                Ok(Some(one_name(name.as_bytes())))
            }
            _ => Ok(None),
        }
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
        // Twice what each takes, as buffers grow; the state of TLS does not.
        let each = Limits::connection_bytes(draft.tls) + Limits::connection_bytes(false);
        let buffers = u64::from(self.limits.connections_max).saturating_mul(each);
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
        self.limits.check(self.tls.is_some()).map_err(wrong)
    }

    fn listen_at(&mut self, draft: &Draft) -> Result<(), Failure> {
        if let Some(path) = &draft.socket {
            self.listen.push(ListenAddress::Unix(path.clone()));
            return Ok(());
        }
        if draft.no_tcp {
            return Err(wrong(
                "-p 0 turns TCP off, and there is no -s FILE to listen at; -p -1 takes any port that is free",
            ));
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

/// An absolute path as the name of one file, that of no other path: `-` stands for what separates, and other bytes that could
/// be taken for something else are numbers.
fn one_name(path: &[u8]) -> String {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    let mut name = String::new();
    for byte in path {
        match byte {
            b'/' => name.push('-'),
            b'-' | b'%' | 0x80.. => name.push_str(&format!("%{byte:02x}")),
            byte => name.push(char::from(*byte)),
        }
    }
    name
}

#[cfg(test)]
mod tests;
