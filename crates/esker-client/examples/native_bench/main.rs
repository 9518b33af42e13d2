//! The native protocol in figures: beside memcache's, on the same server at the same time, with the
//! same load; and what the client library makes of it.
//!
//! Prints medians of interleaved runs and their ratios. Run it with `cargo xtask bench native`.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "tests and measurements fail by panicking"
)]

#[path = "../../../esker-server/examples/server_bench/load.rs"]
mod load;

use clap::Parser;
use esker::{Durability, Store};
use esker_base::clock::{Clock, SystemClock};
use esker_base::rng::Rng;
use esker_base::units::parse_size_bytes;
use esker_client::{Client, Options};
use esker_server::{Protocol, Server, ServerConfig};
use esker_trt::{Config, Runtime};
use load::{Load, Run};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

type Failure = Box<dyn std::error::Error>;

#[derive(Parser)]
struct Arguments {
    /// Connections.
    #[arg(long, default_value_t = 16)]
    clients: usize,
    /// Requests that a connection sends before it waits for the replies; several values are several
    /// measurements.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 32])]
    depth: Vec<usize>,
    /// Bytes of a value.
    #[arg(long, default_value_t = 100)]
    value_size: usize,
    /// Keys that are used.
    #[arg(long, default_value_t = 10_000)]
    keys: u64,
    /// How many of a hundred requests are gets; several values are several measurements.
    #[arg(long, value_delimiter = ',', default_values_t = [100, 0])]
    gets: Vec<u64>,
    /// Seconds of one run.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Runs of each protocol, interleaved.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Folder for stores. Default: a scratch folder.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Capacity of a store.
    #[arg(long, default_value = "4GiB", value_parser = size)]
    size: u64,
    /// Cores of the server.
    #[arg(long, default_value_t = 2)]
    cores: usize,
    /// Cores of the load.
    #[arg(long, default_value_t = 2)]
    load_cores: usize,
    /// Whether a write is durable when it is acknowledged.
    #[arg(long)]
    sync: bool,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size_bytes(text).ok_or_else(|| format!("{text} is no size"))
}

const PROTOCOLS: [Protocol; 2] = [Protocol::Memcache, Protocol::Native];

/// A server of this process that speaks both.
struct Esker {
    server: Server,
    store: Store,
    runtime: Arc<Runtime>,
}

impl Esker {
    fn start(arguments: &Arguments, folder: &Path) -> Result<Esker, Failure> {
        let mut options = esker::Options::new(folder.join("data"));
        options.size_bytes = arguments.size;
        options.format = true;
        options.durability = if arguments.sync { Durability::Sync } else { Durability::None };
        let store = Store::open(&options)?;
        let config = Config { cores: arguments.cores, ..Config::default() };
        let runtime = Arc::new(Runtime::start(config)?);
        let listen = PROTOCOLS.map(|protocol| format!("{}://127.0.0.1:0", protocol.scheme()));
        let listen = listen.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
        let config = ServerConfig { listen, ..ServerConfig::default() };
        let server = Server::start(&runtime, store.clone(), config)?;
        Ok(Esker { server, store, runtime })
    }

    fn address(&self, protocol: Protocol) -> Result<SocketAddr, Failure> {
        let addresses = self.server.addresses().iter();
        let mut spoken = addresses.filter(|address| address.protocol() == protocol);
        Ok(spoken.find_map(|address| address.tcp()).ok_or("nobody speaks it")?)
    }

    fn stop(self) -> Result<(), Failure> {
        self.server.stop(Duration::from_secs(5));
        self.runtime.shutdown()?;
        Ok(self.store.close()?)
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let scratch = tempfile::tempdir()?;
    let folder = arguments.data.clone().unwrap_or_else(|| scratch.path().to_owned());
    let runtime = Runtime::start(Config { cores: arguments.load_cores, ..Config::default() })?;
    let esker = Esker::start(&arguments, &folder)?;
    println!("{}\n{}", esker.store.report(), esker.runtime.report());
    println!(
        "{} connections, values of {} bytes, {} keys, durability {}; {} runs of {} s",
        arguments.clients,
        arguments.value_size,
        arguments.keys,
        if arguments.sync { "sync" } else { "none" },
        arguments.rounds,
        arguments.seconds
    );
    println!(
        "{:>12} {:>6} {:>10} {:>12} {:>9} {:>9}",
        "load", "depth", "protocol", "requests/s", "p50 us", "p99 us"
    );
    for depth in &arguments.depth {
        for gets in &arguments.gets {
            compare(&arguments, &runtime, &esker, *depth, *gets)?;
        }
    }
    library(&arguments, &esker)?;
    esker.stop()?;
    Ok(runtime.shutdown()?)
}

/// The same load over both protocols, A B A B.
fn compare(
    arguments: &Arguments,
    runtime: &Runtime,
    esker: &Esker,
    depth: usize,
    gets: u64,
) -> Result<(), Failure> {
    let load = |protocol| {
        let Arguments { clients, value_size, keys, seconds, .. } = *arguments;
        Load { protocol, clients, depth, value_size, keys, gets, seconds, new_keys: false }
    };
    load::fill(runtime, esker.address(Protocol::Memcache)?, load(Protocol::Memcache))?;
    let mut runs: [Vec<Run>; 2] = Default::default();
    for round in 0..arguments.rounds {
        for (runs, protocol) in runs.iter_mut().zip(PROTOCOLS) {
            let address = esker.address(protocol)?;
            runs.push(load::run(runtime, address, load(protocol), round as u64)?);
        }
    }
    let mut rates = Vec::new();
    for (runs, protocol) in runs.iter().zip(PROTOCOLS) {
        let of = |figure: &dyn Fn(&Run) -> f64| median(runs.iter().map(figure).collect());
        let rate = of(&|run| run.per_second);
        println!(
            "{:>12} {depth:>6} {:>10} {rate:>12.0} {:>9.0} {:>9.0}",
            format!("{gets} % gets"),
            protocol.scheme(),
            of(&|run| run.times.value_at_quantile(0.5) as f64),
            of(&|run| run.times.value_at_quantile(0.99) as f64)
        );
        rates.push(rate);
    }
    println!("{:>30} native beside memcache: {:.2} x", "", rates[1] / rates[0]);
    Ok(())
}

/// The client library: gets of one connection, one after another, of several threads, and many in
/// flight of one thread.
fn library(arguments: &Arguments, esker: &Esker) -> Result<(), Failure> {
    const WINDOW: usize = 256;
    let address = format!("native://{}", esker.address(Protocol::Native)?);
    let client = Client::new(address.parse()?, Options::default());
    let value = vec![b'v'; arguments.value_size];
    println!("\nclient library, gets over one connection");
    let key = |number: u64| format!("key{number:010}").into_bytes();
    let mut rates = Vec::new();
    for (threads, window) in [(1, 1), (8, 1), (1, WINDOW)] {
        let start = SystemClock.monotonic();
        let end = start + Duration::from_secs_f64(arguments.seconds);
        let run = |seed: u64| -> Result<u64, esker_client::Error> {
            let mut rng = Rng::from_seed(seed);
            let mut pending = VecDeque::new();
            let mut count = 0;
            while SystemClock.monotonic() < end {
                while pending.len() < window {
                    pending.push_back(client.submit_get(&key(rng.below(arguments.keys)))?);
                }
                // Half of them, so that what follows leaves together.
                for get in pending.drain(..window.div_ceil(2)) {
                    assert!(get.wait()?.is_some_and(|found| *found == value[..]));
                    count += 1;
                }
            }
            Ok(count)
        };
        let counts: Vec<Result<u64, esker_client::Error>> = std::thread::scope(|scope| {
            let run = &run;
            let running: Vec<_> =
                (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
            running.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let count: u64 = counts.into_iter().sum::<Result<u64, _>>()?;
        let rate = count as f64 / (SystemClock.monotonic() - start).as_secs_f64();
        println!("{threads:>3} threads, {window:>3} in flight each: {rate:>10.0} gets/s");
        rates.push(rate);
    }
    println!("many in flight beside one: {:.1} x", rates[2] / rates[0]);
    Ok(())
}
