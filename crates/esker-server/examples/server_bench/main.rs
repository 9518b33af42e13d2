//! The memcache server in figures: beside memcached on the same machine at the same time, and what
//! clients gain from sharing durable writes.
//!
//! Each server is a process of its own, the load another one. Prints medians of interleaved runs, what each server costs in
//! processor time, and ratios. Run it with `cargo xtask bench server`.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "tests and measurements fail by panicking"
)]

mod load;
mod servers;

use clap::Parser;
use esker::Durability;
use esker_base::units::parse_size_bytes;
use esker_server::Protocol;
use esker_trt::{Config, Facility, Runtime};
use load::{Load, Run};
use servers::{Esker, EskerProcess, Memcached, processor_seconds};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The allocator of the program: what users run is measured.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Memory of memcached with extstore in MiB: most items are in its file.
const EXTSTORE_MIB: u64 = 64;

type Failure = Box<dyn std::error::Error>;

#[derive(Parser)]
struct Arguments {
    /// Only run the load against this server, such as 127.0.0.1:11211.
    #[arg(long)]
    target: Option<SocketAddr>,
    /// The keys are there already.
    #[arg(long)]
    no_fill: bool,
    /// Connections; several numbers are several measurements.
    #[arg(long, value_delimiter = ',', default_values_t = [64])]
    clients: Vec<usize>,
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
    /// Folder for stores, or a raw block device, which is formatted. Default: a scratch folder.
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
    /// Facility: uring, aio, sync or inline. Default: as the store says.
    #[arg(long)]
    io: Option<Facility>,
    /// Microseconds that an idle core of the server polls before it blocks.
    #[arg(long, default_value_t = 0)]
    spin: u64,
    /// Memory of memcached in MiB: more than the load's keys take.
    #[arg(long, default_value_t = 2048)]
    memcached_mib: u64,
    /// Also measure memcached with 64 MiB of memory and the rest of its items in this file (extstore).
    #[arg(long)]
    extstore: Option<PathBuf>,
    /// The part that the process of a server does.
    #[arg(long, hide = true)]
    serve: bool,
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

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A server that is measured, and its process if that is known.
struct Measured<'a> {
    name: &'a str,
    address: SocketAddr,
    process: Option<u32>,
}

/// What one run cost in processor time, in microseconds for each request.
#[derive(Clone, Copy)]
struct Cost {
    server: f64,
    load: f64,
}

impl Measured<'_> {
    fn run(&self, runtime: &Runtime, load: Load, seed: u64) -> Result<(Run, Cost), Failure> {
        let used = |process: Option<u32>| process.map_or(f64::NAN, processor_seconds);
        let own = Some(std::process::id());
        let before = (used(self.process), used(own));
        let run = load::run(runtime, self.address, load, seed)?;
        let each = 1e6 / run.requests as f64;
        let server = (used(self.process) - before.0) * each;
        Ok((run, Cost { server, load: (used(own) - before.1) * each }))
    }
}

/// Medians of several runs.
struct Medians {
    per_second: f64,
    mean: f64,
    p50: f64,
    p99: f64,
    cost: Cost,
}

impl Medians {
    fn of(runs: &[(Run, Cost)]) -> Medians {
        let of = |figure: &dyn Fn(&(Run, Cost)) -> f64| median(runs.iter().map(figure).collect());
        let server = of(&|(_, cost)| cost.server);
        Medians {
            per_second: of(&|(run, _)| run.per_second),
            mean: of(&|(run, _)| run.times.mean()),
            p50: of(&|(run, _)| run.times.value_at_quantile(0.5) as f64),
            p99: of(&|(run, _)| run.times.value_at_quantile(0.99) as f64),
            cost: Cost { server, load: of(&|(_, cost)| cost.load) },
        }
    }

    fn print(&self, clients: usize, gets: u64, name: &str) {
        println!(
            "{clients:>7} {gets:>4} {name:>10} {:>11.0} {:>9.1} {:>7.0} {:>7.0} {:>10.2} {:>8.2}",
            self.per_second, self.mean, self.p50, self.p99, self.cost.server, self.cost.load
        );
    }
}

fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let scratch = tempfile::tempdir()?;
    let place = arguments.data.clone().unwrap_or_else(|| scratch.path().to_owned());
    if arguments.serve {
        return Esker::start(&arguments, &place, Durability::None)?.serve();
    }
    let config = Config { cores: arguments.load_cores, ..Config::default() };
    let runtime = Runtime::start(config)?;
    if !arguments.no_compare || arguments.target.is_some() {
        compare(&arguments, &runtime, &place)?;
    }
    if !arguments.no_sync && arguments.target.is_none() {
        share_flushes(&arguments, &runtime, &place)?;
    }
    Ok(runtime.shutdown()?)
}

fn load_of(arguments: &Arguments, clients: usize, gets: u64) -> Load {
    let Arguments { depth, value_size, keys, seconds, .. } = *arguments;
    let protocol = Protocol::Memcache;
    Load { protocol, clients, depth, value_size, keys, gets, seconds, new_keys: false }
}

/// The same load on Esker (durability none) and memcached, A B A B.
fn compare(arguments: &Arguments, runtime: &Runtime, place: &Path) -> Result<(), Failure> {
    println!(
        "{} requests of a connection at a time, values of {} bytes, {} keys; {} runs of {} s",
        arguments.depth, arguments.value_size, arguments.keys, arguments.rounds, arguments.seconds
    );
    let mut servers = Vec::new();
    let (esker, memcached, extstore);
    if let Some(address) = arguments.target {
        servers.push(Measured { name: "target", address, process: None });
    } else {
        esker = EskerProcess::start(arguments, place)?;
        let process = Some(esker.id());
        servers.push(Measured { name: "esker", address: esker.address, process });
        memcached = Memcached::start(arguments.cores, arguments.memcached_mib, None);
        let found = memcached.as_ref().map(|memcached| ("memcached", memcached));
        extstore = arguments
            .extstore
            .as_ref()
            .and_then(|file| Memcached::start(arguments.cores, EXTSTORE_MIB, Some(file)));
        let more = extstore.as_ref().map(|extstore| ("extstore", extstore));
        servers.extend(found.into_iter().chain(more).map(|(name, memcached)| {
            let (address, process) = (memcached.address, Some(memcached.id()));
            Measured { name, address, process }
        }));
    }
    for server in servers.iter().filter(|_| !arguments.no_fill) {
        load::fill(runtime, server.address, load_of(arguments, 1, 0))?;
    }
    println!(
        "{:>7} {:>4} {:>10} {:>11} {:>9} {:>7} {:>7} {:>10} {:>8}",
        "clients",
        "gets",
        "server",
        "requests/s",
        "mean us",
        "p50 us",
        "p99 us",
        "server CPU",
        "load CPU"
    );
    for gets in &arguments.gets {
        for clients in &arguments.clients {
            let load = load_of(arguments, *clients, *gets);
            let mut runs: Vec<Vec<(Run, Cost)>> = servers.iter().map(|_| Vec::new()).collect();
            for round in 0..arguments.rounds {
                for (runs, server) in runs.iter_mut().zip(&servers) {
                    runs.push(server.run(runtime, load, round as u64)?);
                }
            }
            let medians: Vec<Medians> = runs.iter().map(|runs| Medians::of(runs)).collect();
            for (medians, server) in medians.iter().zip(&servers) {
                medians.print(*clients, *gets, server.name);
            }
            if let [esker, others @ ..] = &medians[..] {
                for (other, server) in others.iter().zip(&servers[1..]) {
                    println!(
                        "{clients:>7} {gets:>4} esker beside {}: {:.2} x the requests, {:.2} x the mean time, {:.2} x the CPU",
                        server.name,
                        esker.per_second / other.per_second,
                        esker.mean / other.mean,
                        esker.cost.server / other.cost.server
                    );
                }
            }
        }
    }
    Ok(())
}

/// Durable sets of one client and of many, and what they write.
fn share_flushes(arguments: &Arguments, runtime: &Runtime, place: &Path) -> Result<(), Failure> {
    let esker = Esker::start(arguments, place, Durability::Sync)?;
    println!("\nsets of {} bytes, durability sync", arguments.value_size);
    for (new_keys, words) in [(true, "new keys"), (false, "overwrites")] {
        if !new_keys {
            load::fill(runtime, esker.address, load_of(arguments, 1, 0))?;
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
    let many = arguments.clients.iter().copied().max().unwrap_or(1);
    let mut ratios = Vec::new();
    for round in 0..arguments.rounds {
        let mut rates = [0.0; 2];
        for (rate, clients) in rates.iter_mut().zip([1, many]) {
            let load = Load { depth: 1, new_keys, ..load_of(arguments, clients, 0) };
            let before = esker.store.stats().device;
            let seed = round as u64 * 2 + u64::from(clients > 1);
            let run = load::run(runtime, esker.address, load, seed)?;
            let device = esker.store.stats().device - before;
            let written = device.write_bytes - device.prepare_bytes;
            println!(
                "{clients:>8} {:>12.0} {:>9} {:>9} {:>20.3} {:>13.1}",
                run.per_second,
                run.times.value_at_quantile(0.5),
                run.times.value_at_quantile(0.99),
                written as f64 / run.user_bytes as f64,
                run.requests as f64 / device.writes.max(1) as f64
            );
            *rate = run.per_second;
        }
        ratios.push(rates[1] / rates[0]);
    }
    println!("{words}: {many} clients beside one: median {:.1} x", median(ratios));
    Ok(())
}
