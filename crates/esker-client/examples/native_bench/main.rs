//! The native protocol in figures: beside memcache's, on the same server at the same time, with the
//! same load; and what the client library makes of it, over TCP, a Unix socket and shared memory.
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
use esker_client::{Attributes, Client, Condition, Options};
use esker_server::{ListenAddress, Protocol, Server, ServerConfig};
use esker_trt::{Config, Runtime};
use hdrhistogram::Histogram;
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
        let mut listen: Vec<ListenAddress> =
            listen.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
        listen.push(ListenAddress::NativeUnix(folder.join("native.sock")));
        listen.push(ListenAddress::Shared(folder.join("memory.sock")));
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

/// The client library over each transport in turns: gets one after another, of several threads, and many in flight of
/// one thread.
fn library(arguments: &Arguments, esker: &Esker) -> Result<(), Failure> {
    const WINDOW: usize = 256;
    println!("\nclient library, gets of one client");
    println!(
        "{:>10} {:>8} {:>10} {:>10} {:>8} {:>8}",
        "transport", "threads", "in flight", "gets/s", "p50 us", "p99 us"
    );
    let spoken = |address: &&ListenAddress| address.protocol() == Protocol::Native;
    let clients = esker.server.addresses().iter().filter(spoken).map(|address| {
        let name = match address {
            ListenAddress::Shared(_) => "shm",
            ListenAddress::NativeUnix(_) => "unix",
            _ => "tcp",
        };
        Ok((name, Client::new(address.to_string().parse()?, Options::default())))
    });
    let clients: Vec<(&str, Client)> = clients.collect::<Result<_, Failure>>()?;
    // Values of its own, which it knows.
    let (_, client) = &clients[0];
    let value = vec![b'v'; arguments.value_size];
    for number in 0..arguments.keys {
        let (attributes, condition) = (Attributes::default(), Condition::Always);
        let put = client.submit_put(&key(number), &value, attributes, condition)?;
        if number % 1000 == 999 || number + 1 == arguments.keys {
            put.wait()?;
        }
    }
    client.sync()?;
    for (threads, window) in [(1, 1), (8, 1), (1, WINDOW)] {
        let mut rows = vec![Vec::new(); clients.len()];
        for _ in 0..arguments.rounds {
            for ((_, client), rows) in clients.iter().zip(&mut rows) {
                rows.push(gets(arguments, client, threads, window)?);
            }
        }
        for ((name, _), rows) in clients.iter().zip(&rows) {
            let of = |figure: usize| median(rows.iter().map(|row| row[figure]).collect());
            let (rate, p50, p99) = (of(0), of(1), of(2));
            println!("{name:>10} {threads:>8} {window:>10} {rate:>10.0} {p50:>8.1} {p99:>8.1}");
        }
        let rate = |name: &str| {
            let place = clients.iter().position(|(other, _)| *other == name).unwrap();
            median(rows[place].iter().map(|row| row[0]).collect())
        };
        println!(
            "{:>19} shared memory beside a Unix socket: {:.2} x",
            "",
            rate("shm") / rate("unix")
        );
    }
    idle();
    Ok(())
}

fn key(number: u64) -> Vec<u8> {
    format!("library{number:010}").into_bytes()
}

/// What server and clients, all connected, use of the processor when nobody asks for anything.
fn idle() {
    let used = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
    };
    esker_trt::sleep(Duration::from_millis(100));
    let before = used();
    esker_trt::sleep(Duration::from_secs(2));
    println!("idle for 2 s, all clients connected: {:.2} ms of processor time", used() - before);
}

/// Gets for a second or as long as was asked: how many in a second, and the time of half of them and of 99 of 100, in
/// microseconds.
fn gets(
    arguments: &Arguments,
    client: &Client,
    threads: u64,
    window: usize,
) -> Result<[f64; 3], Failure> {
    let value = vec![b'v'; arguments.value_size];
    let start = SystemClock.monotonic();
    let end = start + Duration::from_secs_f64(arguments.seconds);
    let run = |seed: u64| -> Result<Histogram<u64>, esker_client::Error> {
        let mut rng = Rng::from_seed(seed);
        let mut pending = VecDeque::new();
        let mut times = Histogram::new(3).unwrap();
        while SystemClock.monotonic() < end {
            while pending.len() < window {
                let begun = SystemClock.monotonic();
                pending.push_back((client.submit_get(&key(rng.below(arguments.keys)))?, begun));
            }
            // Half of them, so that what follows leaves together.
            for (get, begun) in pending.drain(..window.div_ceil(2)) {
                assert!(get.wait()?.is_some_and(|found| *found == value[..]));
                times.record((SystemClock.monotonic() - begun).as_nanos() as u64).unwrap();
            }
        }
        Ok(times)
    };
    let all: Vec<Result<Histogram<u64>, esker_client::Error>> = std::thread::scope(|scope| {
        let run = &run;
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut times = Histogram::new(3)?;
    for one in all {
        times.add(one?)?;
    }
    let rate = times.len() as f64 / (SystemClock.monotonic() - start).as_secs_f64();
    let micros = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
    Ok([rate, micros(0.5), micros(0.99)])
}
