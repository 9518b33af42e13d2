//! Servers that the bench starts on loopback and stops: Esker's own, memcached, redis.
//!
//! Each gets a free port, a folder, so many threads, so much memory, and the promise that was asked for, as far as it
//! has one. A server ends with its value.

use super::protocol::Protocol;
use crate::failure::{Failure, Outcome};
use crate::files;
use crate::place::OwnFolder;
use crate::system::Durability;
use esker_base::clock::{Clock, SystemClock};
use esker_trt::sleep;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long a server may take to listen, or to end when it is asked to.
const PATIENCE: Duration = Duration::from_secs(20);

/// Connections beside those of the load.
const CONNECTIONS_SPARE: usize = 64;
/// As much as the header of an item takes, in bytes.
const ITEM_SIZE_SPARE: u64 = 64;
/// Items of this size are taken by all servers, header included, in bytes, whatever they are told.
const ITEM_SIZE_MIN: u64 = 1 << 20;
/// Larger items are limited by memcached in multiples of this, in bytes.
const MEMCACHED_CHUNK: u64 = 512 << 10;
/// What memcached has of its own for items on their way to a file, and for each page of that file, in MiB.
const EXTSTORE_BUFFER: u64 = 4;
const EXTSTORE_PAGE: u64 = 64;

/// How a server is to be.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Name: `esker`, `memcached`, `memcached-extstore`, `redis`.
    pub name: String,
    /// What clients speak.
    pub protocol: Protocol,
    /// Threads.
    pub threads: usize,
    /// Connections that are to be served at a time.
    pub connections: usize,
    /// The longest value, in bytes, with its key.
    pub item_size_bytes: u64,
    /// Memory for data, in bytes, of those that keep them there.
    pub memory_bytes: u64,
    /// What an acknowledgement promises.
    pub durability: Durability,
    /// Folder for data.
    pub folder: OwnFolder,
    /// The program `esker`.
    pub esker: PathBuf,
}

/// Names of servers that speak a protocol.
#[must_use]
pub fn names(protocol: Protocol) -> &'static [&'static str] {
    match protocol {
        Protocol::Memcache => &["esker", "memcached", "memcached-extstore"],
        Protocol::Resp => &["redis"],
    }
}

/// What the kernel counts for a server's process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Resident memory now.
    pub rss_bytes: u64,
    /// CPU time so far.
    pub cpu_seconds: f64,
    /// Bytes that it caused to be written to storage so far.
    pub write_bytes: u64,
    /// Bytes that it caused to be read.
    pub read_bytes: u64,
}

/// A server that runs.
#[derive(Debug)]
pub struct Server {
    child: Child,
    folder: OwnFolder,
    /// Where it listens.
    pub address: SocketAddr,
    /// How it is set up.
    pub options: BTreeMap<String, String>,
}

impl Server {
    /// Starts a server; `None` if its program is not installed.
    ///
    /// # Errors
    /// Names without meaning, promises that it has not, and servers that do not come up.
    pub fn start(wanted: &Wanted) -> Outcome<Option<Server>> {
        if !names(wanted.protocol).contains(&wanted.name.as_str()) {
            let words = format!(
                "{}: not in this build, which has {} for {}",
                wanted.name,
                names(wanted.protocol).join(", "),
                wanted.protocol
            );
            return Err(Failure::new(words));
        }
        wanted.folder.renew()?;
        // The port is free when this is asked; a server that finds it taken does not come up, and says so.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let (program, arguments) = command(wanted, address)?;
        // What is set for another server is not what is measured.
        let ours = std::env::vars_os().map(|(name, _)| name);
        let ours = ours.filter(|name| name.as_encoded_bytes().starts_with(b"ESKER_"));
        let mut start = Command::new(&program);
        for name in ours {
            start.env_remove(name);
        }
        let child = start
            .args(&arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = match child {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            child => child?,
        };
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let line = format!("{name} {}", arguments.join(" "));
        let options = BTreeMap::from([("command".to_owned(), line)]);
        let mut server = Server { child, folder: wanted.folder.clone(), address, options };
        server.wait_until_it_listens().map_err(|failure| failure.during(&wanted.name))?;
        Ok(Some(server))
    }

    fn wait_until_it_listens(&mut self) -> Outcome<()> {
        let end = SystemClock.monotonic() + PATIENCE;
        while SystemClock.monotonic() < end {
            if let Some(status) = self.child.try_wait()? {
                return Err(Failure::new(format!("ended at once: {status}")));
            }
            if TcpStream::connect(self.address).is_ok() {
                return Ok(());
            }
            sleep(Duration::from_millis(20));
        }
        Err(Failure::new("does not listen"))
    }

    /// What the server has and used so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let id = self.child.id();
        let status = files::read_kernel(format!("/proc/{id}/status")).unwrap_or_default();
        let rss = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok())
            .map_or(0, |kib: u64| kib << 10);
        let schedule = files::read_kernel(format!("/proc/{id}/stat")).unwrap_or_default();
        // Behind the name, which may hold anything: state, then fields from 4 on; utime and stime are 14 and 15.
        let fields = schedule.rsplit(')').next().unwrap_or_default();
        let ticks: f64 = fields
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|word| word.parse::<f64>().ok())
            .sum();
        let io = files::read_kernel(format!("/proc/{id}/io")).unwrap_or_default();
        let bytes = |label: &str| {
            io.lines().find_map(|line| line.strip_prefix(label)?.trim().parse().ok()).unwrap_or(0)
        };
        Usage {
            rss_bytes: rss,
            cpu_seconds: ticks / rustix::param::clock_ticks_per_second().max(1) as f64,
            write_bytes: bytes("write_bytes:"),
            read_bytes: bytes("read_bytes:"),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let id = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(id) = id {
            let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
        }
        let end = SystemClock.monotonic() + PATIENCE;
        while SystemClock.monotonic() < end {
            if !matches!(self.child.try_wait(), Ok(None)) {
                break;
            }
            sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.folder.remove();
    }
}

/// Program and arguments of a server.
fn command(wanted: &Wanted, address: SocketAddr) -> Outcome<(PathBuf, Vec<String>)> {
    let port = address.port().to_string();
    let threads = wanted.threads.max(1).to_string();
    // One more asks whether it listens, and one fills.
    let connections = wanted.connections.saturating_add(CONNECTIONS_SPARE);
    let item_size = wanted.item_size_bytes.saturating_add(ITEM_SIZE_SPARE).max(ITEM_SIZE_MIN);
    let folder = wanted.folder.data().display().to_string();
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let memory_only = |name: &str| match wanted.durability {
        Durability::None => Ok(()),
        other => Err(Failure::new(format!("{name} does not promise {other}"))),
    };
    Ok(match wanted.name.as_str() {
        "esker" => {
            let listen = format!("{}://{address}", wanted.protocol);
            let durability = wanted.durability.to_string();
            // The limit is of values, up to a GiB. Each connection may have one under way, and an old one beside it.
            let item_size = item_size.min(1 << 30);
            let each = wanted.item_size_bytes.saturating_mul(2).saturating_add(64 << 10);
            let memory = each.saturating_mul(connections as u64).saturating_add(8 * item_size);
            let memory = memory.max(256 << 20).to_string();
            let (connections, item_size) =
                (connections.max(1024).to_string(), item_size.to_string());
            let arguments = words(&[
                "serve",
                "--listen",
                &listen,
                "--data",
                &folder,
                "--size",
                "4GiB",
                "--cores",
                &threads,
                "--durability",
                &durability,
                "--connections-max",
                &connections,
                "--item-size-max",
                &item_size,
                "--memory-max",
                &memory,
            ]);
            (wanted.esker.clone(), arguments)
        }
        "memcached" | "memcached-extstore" => {
            memory_only(&wanted.name)?;
            let connections = connections.max(4096).to_string();
            let item_size = item_size.next_multiple_of(MEMCACHED_CHUNK);
            // An item has at most half of the memory.
            let mib = (wanted.memory_bytes >> 20).max(64).max(item_size.div_ceil(1 << 19));
            let mib = mib.to_string();
            let mut arguments = words(&[
                "-l",
                "127.0.0.1",
                "-p",
                &port,
                "-t",
                &threads,
                "-m",
                &mib,
                "-c",
                &connections,
                "-u",
                "root",
            ]);
            if item_size > ITEM_SIZE_MIN {
                arguments.extend(words(&["-I", &format!("{}k", item_size >> 10)]));
            }
            if wanted.name == "memcached-extstore" {
                // Every item goes to the device as soon as it may, as in a store whose data are larger than memory.
                let path = Path::new(&folder).join("extstore").display().to_string();
                // An item fits into a buffer, and buffers fill a page.
                let buffer = item_size.div_ceil(1 << 20).next_power_of_two().max(EXTSTORE_BUFFER);
                let page = buffer.max(EXTSTORE_PAGE);
                let more = format!(
                    "ext_page_size={page},ext_wbuf_size={buffer},ext_path={path}:4G,ext_item_size=64,ext_item_age=0,ext_threads={threads}"
                );
                arguments.extend(words(&["-o", &more]));
            }
            (PathBuf::from("memcached"), arguments)
        }
        _ => {
            // `everysec` is the window of a second; `no` leaves the file to the kernel.
            let (log, when) = match wanted.durability {
                Durability::Sync => ("yes", "always"),
                Durability::Periodic => ("yes", "everysec"),
                Durability::None => ("no", "no"),
            };
            let arguments = words(&[
                "--bind",
                "127.0.0.1",
                "--port",
                &port,
                "--dir",
                &folder,
                "--save",
                "",
                "--appendonly",
                log,
                "--appendfsync",
                when,
                "--io-threads",
                &threads,
                "--daemonize",
                "no",
            ]);
            (PathBuf::from("redis-server"), arguments)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(name: &str, protocol: Protocol, folder: &Path) -> Wanted {
        Wanted {
            name: name.to_owned(),
            protocol,
            threads: 1,
            connections: 4,
            item_size_bytes: 100,
            memory_bytes: 64 << 20,
            durability: Durability::None,
            folder: OwnFolder::of_server(folder),
            esker: PathBuf::from("/nonexistent/esker"),
        }
    }

    #[test]
    fn servers_that_are_not_there_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let missing = Server::start(&wanted("esker", Protocol::Memcache, folder.path())).unwrap();
        assert!(missing.is_none());
        let failure =
            Server::start(&wanted("redis", Protocol::Memcache, folder.path())).unwrap_err();
        assert!(failure.to_string().contains("not in this build"), "{failure}");
    }

    #[test]
    fn installed_servers_start_and_stop() {
        let folder = tempfile::tempdir().unwrap();
        for (name, protocol) in [("memcached", Protocol::Memcache), ("redis", Protocol::Resp)] {
            // Not installed: nothing to see.
            let Some(server) = Server::start(&wanted(name, protocol, folder.path())).unwrap()
            else {
                continue;
            };
            let address = server.address;
            assert!(TcpStream::connect(address).is_ok(), "{name}");
            assert!(server.usage().rss_bytes > 0, "{name}");
            drop(server);
            assert!(TcpStream::connect(address).is_err(), "{name} goes on");
        }
    }

    #[test]
    fn servers_are_told_of_loads_beyond_what_they_take_by_default() {
        let folder = tempfile::tempdir().unwrap();
        let address = "127.0.0.1:11211".parse().unwrap();
        let line = |name: &str, connections, item_size_bytes| {
            let wanted = wanted(name, Protocol::Memcache, folder.path());
            let wanted = Wanted { connections, item_size_bytes, ..wanted };
            command(&wanted, address).unwrap().1.join(" ")
        };
        let esker = line("esker", 1500, 2 << 20);
        for option in ["--connections-max 1564", "--item-size-max 2097216"] {
            assert!(esker.contains(option), "{esker}");
        }
        assert!(line("memcached", 5000, 2 << 20).contains("-c 5064 -u root -I 2560k"));
        for least in [100, (1 << 20) - 64] {
            let least = line("memcached", 4, least);
            assert!(least.contains("-c 4096") && !least.contains("-I"), "{least}");
        }
        assert!(line("memcached", 4, (1 << 20) - 63).contains("-I 1536k"));
        let large = line("memcached-extstore", 4, 100 << 20);
        for option in ["-m 201 ", "-I 102912k", "ext_page_size=128,ext_wbuf_size=128,"] {
            assert!(large.contains(option), "{large}");
        }
    }

    #[test]
    fn memcached_starts_for_items_of_any_size_and_takes_them() {
        use std::io::{Read, Write};
        for size in [100, (1 << 20) - 64, (1 << 20) - 63, 2 << 20, 5 << 20, 100 << 20] {
            for name in ["memcached", "memcached-extstore"] {
                let folder = tempfile::tempdir().unwrap();
                let wanted = wanted(name, Protocol::Memcache, folder.path());
                let wanted = Wanted { item_size_bytes: size, ..wanted };
                let Some(server) = Server::start(&wanted).unwrap() else {
                    // Not installed: nothing to see.
                    continue;
                };
                let mut stream = TcpStream::connect(server.address).unwrap();
                let value = "v".repeat(usize::try_from(size).unwrap() - 1);
                stream
                    .write_all(format!("set k 0 0 {}\r\n{value}\r\n", value.len()).as_bytes())
                    .unwrap();
                let mut reply = [0; 8];
                stream.read_exact(&mut reply).unwrap();
                assert_eq!(&reply, b"STORED\r\n", "{name} {size}: {:?}", server.options);
            }
        }
    }

    #[test]
    fn promises_that_a_server_has_not_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut wanted = wanted("memcached", Protocol::Memcache, folder.path());
        wanted.durability = Durability::Sync;
        let failure = Server::start(&wanted).unwrap_err();
        assert!(failure.to_string().contains("does not promise"), "{failure}");
    }
}
