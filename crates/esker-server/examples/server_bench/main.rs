//! The memcache server in figures: beside memcached on the same machine at the same time, and what
//! clients gain from sharing durable writes.
//!
//! Prints medians of interleaved runs and their ratios. Run it with `cargo xtask bench server`.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "tests and measurements fail by panicking"
)]

mod load;

use clap::Parser;
use esker::{Durability, Options, Store};
use esker_base::units::parse_size_bytes;
use esker_server::{ListenAddress, Protocol, Server, ServerConfig};
use esker_trt::{Config, Facility, Runtime};
use load::{Load, Run};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

type Failure = Box<dyn std::error::Error>;

#[derive(Parser)]
struct Arguments {
    /// Only run the load against this server, such as 127.0.0.1:11211.
    #[arg(long)]
    target: Option<SocketAddr>,
    /// Connections.
    #[arg(long, default_value_t = 64)]
    clients: usize,
    /// Requests that a connection sends before it waits for the replies.
    #[arg(long, default_value_t = 1)]
    depth: usize,
    /// Bytes of a value.
    #[arg(long, default_value_t = 100)]
    value_size: usize,
    /// Keys that are used.
    #[arg(long, default_value_t = 10_000)]
    keys: u64,
    /// How many of a hundred requests are gets; several values are several measurements.
    #[arg(long, value_delimiter = ',', default_values_t = [100, 0, 90])]
    gets: Vec<u64>,
    /// Seconds of one run.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Runs of each server, interleaved.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Folder for stores. Default: a scratch folder.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Capacity of a store.
    #[arg(long, default_value = "4GiB", value_parser = size)]
    size: u64,
    /// Cores of each server.
    #[arg(long, default_value_t = 2)]
    cores: usize,
    /// Cores of the load.
    #[arg(long, default_value_t = 2)]
    load_cores: usize,
    /// Facility: uring, aio or sync.
    #[arg(long, default_value = "uring")]
    io: Facility,
    /// Leave out the comparison with memcached.
    #[arg(long)]
    no_compare: bool,
    /// Leave out the durable sets.
    #[arg(long)]
    no_sync: bool,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size_bytes(text).ok_or_else(|| format!("{text} is no size"))
}

/// A server of this process.
struct Esker {
    server: Server,
    store: Store,
    runtime: Arc<Runtime>,
    address: SocketAddr,
}

impl Esker {
    fn start(
        arguments: &Arguments,
        folder: &Path,
        durability: Durability,
    ) -> Result<Esker, Failure> {
        let mut options = Options::new(folder.join(durability.to_string()));
        options.size_bytes = arguments.size;
        options.format = true;
        options.durability = durability;
        let store = Store::open(&options)?;
        let facilities = vec![arguments.io];
        let config = Config { cores: arguments.cores, facilities, ..Config::default() };
        let runtime = Arc::new(Runtime::start(config)?);
        let config = ServerConfig {
            listen: vec!["memcache://127.0.0.1:0".parse()?],
            ..ServerConfig::default()
        };
        let server = Server::start(&runtime, store.clone(), config)?;
        let address = match server.addresses() {
            [ListenAddress::Tcp(address)] => *address,
            other => return Err(format!("listens at {other:?}").into()),
        };
        Ok(Esker { server, store, runtime, address })
    }

    fn stop(self) -> Result<(), Failure> {
        self.server.stop(Duration::from_secs(5));
        self.runtime.shutdown()?;
        Ok(self.store.close()?)
    }
}

/// memcached on a port of its own; ends with the value.
struct Memcached {
    child: Child,
    address: SocketAddr,
}

impl Memcached {
    /// `None` if it is not installed.
    fn start(cores: usize) -> Option<Memcached> {
        let address = TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?;
        let child = Command::new("memcached")
            .args(["-l", "127.0.0.1", "-u", "root", "-m", "1024", "-c", "4096"])
            .args(["-p", &address.port().to_string(), "-t", &cores.to_string()])
            .stdin(Stdio::null())
            .spawn()
            .ok()?;
        let memcached = Memcached { child, address };
        for _ in 0..100 {
            if TcpStream::connect(address).is_ok() {
                return Some(memcached);
            }
            esker_trt::sleep(Duration::from_millis(20));
        }
        None
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Medians of several runs.
struct Medians {
    per_second: f64,
    p50: f64,
    p99: f64,
}

impl Medians {
    fn of(runs: &[Run]) -> Medians {
        let of = |figure: &dyn Fn(&Run) -> f64| median(runs.iter().map(figure).collect());
        Medians {
            per_second: of(&|run| run.per_second),
            p50: of(&|run| run.times.value_at_quantile(0.5) as f64),
            p99: of(&|run| run.times.value_at_quantile(0.99) as f64),
        }
    }

    fn print(&self, what: &str, name: &str) {
        println!(
            "{what:>12} {name:>10} {:>12.0} {:>9.0} {:>9.0}",
            self.per_second, self.p50, self.p99
        );
    }
}

fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let scratch = tempfile::tempdir()?;
    let folder = arguments.data.clone().unwrap_or_else(|| scratch.path().to_owned());
    let config = Config { cores: arguments.load_cores, ..Config::default() };
    let runtime = Runtime::start(config)?;
    if !arguments.no_compare || arguments.target.is_some() {
        compare(&arguments, &runtime, &folder)?;
    }
    if !arguments.no_sync && arguments.target.is_none() {
        share_flushes(&arguments, &runtime, &folder)?;
    }
    Ok(runtime.shutdown()?)
}

fn load_of(arguments: &Arguments, gets: u64) -> Load {
    let Arguments { clients, depth, value_size, keys, seconds, .. } = *arguments;
    let protocol = Protocol::Memcache;
    Load { protocol, clients, depth, value_size, keys, gets, seconds, new_keys: false }
}

/// The same load on Esker (durability none) and memcached, A B A B.
fn compare(arguments: &Arguments, runtime: &Runtime, folder: &Path) -> Result<(), Failure> {
    println!(
        "{} connections, {} requests each at a time, values of {} bytes, {} keys; {} runs of {} s",
        arguments.clients,
        arguments.depth,
        arguments.value_size,
        arguments.keys,
        arguments.rounds,
        arguments.seconds
    );
    let esker = match arguments.target {
        Some(_) => None,
        None => Some(Esker::start(arguments, folder, Durability::None)?),
    };
    let memcached = match arguments.target {
        Some(_) => None,
        None => Memcached::start(arguments.cores),
    };
    let mut servers: Vec<(&str, SocketAddr)> = Vec::new();
    servers.extend(arguments.target.map(|address| ("target", address)));
    if let Some(esker) = &esker {
        println!("{}\n{}", esker.store.report(), esker.runtime.report());
        servers.push(("esker", esker.address));
    }
    servers.extend(memcached.as_ref().map(|memcached| ("memcached", memcached.address)));
    println!(
        "{:>12} {:>10} {:>12} {:>9} {:>9}",
        "load", "server", "requests/s", "p50 us", "p99 us"
    );
    for (_, address) in &servers {
        load::fill(runtime, *address, load_of(arguments, 0))?;
    }
    for gets in &arguments.gets {
        let load = load_of(arguments, *gets);
        let mut runs: Vec<Vec<Run>> = servers.iter().map(|_| Vec::new()).collect();
        for round in 0..arguments.rounds {
            for (runs, (_, address)) in runs.iter_mut().zip(&servers) {
                runs.push(load::run(runtime, *address, load, round as u64)?);
            }
        }
        let what = format!("{gets} % gets");
        let medians: Vec<Medians> = runs.iter().map(|runs| Medians::of(runs)).collect();
        for (medians, (name, _)) in medians.iter().zip(&servers) {
            medians.print(&what, name);
        }
        if let [esker, memcached] = &medians[..] {
            println!(
                "{what:>12} esker beside memcached: {:.2} x",
                esker.per_second / memcached.per_second
            );
        }
    }
    match esker {
        Some(esker) => esker.stop(),
        None => Ok(()),
    }
}

/// Durable sets of one client and of many, and what they write.
fn share_flushes(arguments: &Arguments, runtime: &Runtime, folder: &Path) -> Result<(), Failure> {
    let esker = Esker::start(arguments, folder, Durability::Sync)?;
    println!("\nsets of {} bytes, durability sync", arguments.value_size);
    for (new_keys, words) in [(true, "new keys"), (false, "overwrites")] {
        if !new_keys {
            load::fill(runtime, esker.address, load_of(arguments, 0))?;
        }
        share_of(arguments, runtime, &esker, new_keys, words)?;
    }
    esker.stop()
}

fn share_of(
    arguments: &Arguments,
    runtime: &Runtime,
    esker: &Esker,
    new_keys: bool,
    words: &str,
) -> Result<(), Failure> {
    println!(
        "{:>8} {:>12} {:>9} {:>9} {:>20} {:>13}",
        "clients", "sets/s", "p50 us", "p99 us", "device/user bytes", "sets a write"
    );
    let mut ratios = Vec::new();
    for round in 0..arguments.rounds {
        let mut rates = [0.0; 2];
        for (rate, clients) in rates.iter_mut().zip([1, arguments.clients]) {
            let load = Load { clients, depth: 1, new_keys, ..load_of(arguments, 0) };
            let before = esker.store.stats().device;
            let seed = round as u64 * 2 + u64::from(clients > 1);
            let run = load::run(runtime, esker.address, load, seed)?;
            let after = esker.store.stats().device;
            let prepared = after.prepare_bytes - before.prepare_bytes;
            let written = after.write_bytes - before.write_bytes - prepared;
            println!(
                "{clients:>8} {:>12.0} {:>9} {:>9} {:>20.3} {:>13.1}",
                run.per_second,
                run.times.value_at_quantile(0.5),
                run.times.value_at_quantile(0.99),
                written as f64 / run.user_bytes as f64,
                run.requests as f64 / (after.writes - before.writes).max(1) as f64
            );
            *rate = run.per_second;
        }
        ratios.push(rates[1] / rates[0]);
    }
    println!("{words}: {} clients beside one: median {:.1} x", arguments.clients, median(ratios));
    Ok(())
}
