//! The command line of `esker bench`.

use clap::{Args, Subcommand};
use esker_bench::plan::Plan;
use esker_bench::system::Durability;
use std::path::PathBuf;

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Run workloads on systems, in turns, and write results
    Run(Box<RunArguments>),
    /// The limits of this machine: device, memory, loopback
    Raw(RawArguments),
    /// Load on servers over the network, by the clock or as fast as they answer
    Server(Box<ServerArguments>),
    /// Hold a result against an older one; exit code 1 if something differs more than noise does, failed or is missing
    Compare {
        /// The older result
        old: PathBuf,
        /// The newer result
        new: PathBuf,
    },
    /// What the parts cost that measurements are made of
    Micro {
        /// How much of each is done
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
        factor: u64,
    },
    /// List workloads and the systems of this build
    List,
    /// One cell of a run, described on standard input
    #[command(hide = true)]
    Cell,
}

/// Options of `bench run`; names and meanings are those of the files in bench/configs.
#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// File with the options below; the command line goes before it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// What the run is called
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    /// Workloads: esker bench list; trace:FILE plays a trace
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    workload: Option<Vec<String>>,
    /// Systems: esker bench list
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    systems: Option<Vec<String>>,
    /// Records to load
    #[arg(long, value_name = "COUNT")]
    records: Option<u64>,
    /// Bytes of a key, in place of the workload's
    #[arg(long, value_name = "BYTES")]
    key_size: Option<usize>,
    /// Bytes of a value, in place of the workload's; several are swept
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    value_size: Option<Vec<u64>>,
    /// Threads of clients; several are swept
    #[arg(long, value_name = "COUNTS", value_delimiter = ',')]
    threads: Option<Vec<usize>>,
    /// Clients of each thread: requests in flight; several are swept
    #[arg(long, value_name = "COUNTS", value_delimiter = ',')]
    depth: Option<Vec<usize>>,
    /// Length of the measured phase
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Length of the warm-up
    #[arg(long, value_name = "SECONDS")]
    warmup: Option<f64>,
    /// End the measured phase after so many operations instead
    #[arg(long, value_name = "COUNT")]
    operations: Option<u64>,
    /// What an acknowledgement promises: sync, periodic, none; several are swept
    #[arg(long, value_name = "MODES", value_delimiter = ',', value_parser = durability)]
    durability: Option<Vec<Durability>>,
    /// Memory of each system for caches and buffers
    #[arg(long, value_name = "BYTES")]
    cache: Option<String>,
    /// Memory of each system in all, page cache included; needs the right to make a control group
    #[arg(long, value_name = "BYTES", conflicts_with = "one_process")]
    memory: Option<String>,
    /// Per cent of the capacity that live data take, for systems whose capacity is fixed; several are swept
    #[arg(long, value_name = "PERCENT", value_delimiter = ',')]
    utilization: Option<Vec<f64>>,
    /// Per cent of operations that write, in place of the workload's mix; several are swept
    #[arg(long, value_name = "PERCENT", value_delimiter = ',')]
    write_ratio: Option<Vec<f64>>,
    /// uniform, zipfian[:THETA], clustered, latest, hotspot[:KEYS:REQUESTS], exponential, sequential, composite
    #[arg(long, value_name = "NAME")]
    distribution: Option<String>,
    /// Operations per second by the clock; latencies count from when each was due; several are swept
    #[arg(long, value_name = "OPS", value_delimiter = ',')]
    rate: Option<Vec<f64>>,
    /// How often everything is measured
    #[arg(long, value_name = "COUNT")]
    repetitions: Option<u32>,
    /// Whether systems that can bypass the page cache
    #[arg(long, value_name = "BOOL")]
    direct: Option<bool>,
    /// Folder for data, which are removed afterwards
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Seed of every draw
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Play a trace at its own speed
    #[arg(long)]
    trace_timing: bool,
    /// Measure all in this process: no memory and CPU figures of each system alone
    #[arg(long)]
    pub(crate) one_process: bool,
    /// Write the result as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the result as a page with plots
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
}

impl RunArguments {
    /// What the command line says, without its file.
    pub(crate) fn plan(&mut self) -> Plan {
        Plan {
            title: self.title.take(),
            about: None,
            workload: self.workload.take(),
            systems: self.systems.take(),
            records: self.records,
            key_size: self.key_size,
            value_size: self.value_size.take(),
            threads: self.threads.take(),
            depth: self.depth.take(),
            seconds: self.seconds,
            warmup: self.warmup,
            operations: self.operations,
            durability: self.durability.take(),
            cache: self.cache.take(),
            memory: self.memory.take(),
            utilization: self.utilization.take(),
            write_ratio: self.write_ratio.take(),
            distribution: self.distribution.take(),
            rate: self.rate.take(),
            repetitions: self.repetitions,
            direct: self.direct,
            data: self.data.take(),
            seed: self.seed,
            trace_timing: self.trace_timing.then_some(true),
        }
    }
}

fn durability(text: &str) -> Result<Durability, String> {
    text.parse().map_err(|failure: esker_bench::Failure| failure.to_string())
}

/// Options of `bench raw`.
#[derive(Debug, Args)]
pub(crate) struct RawArguments {
    /// Folder for a scratch file, or a raw device, which is only read
    #[arg(long, value_name = "PATH", default_value = "./esker-bench-data")]
    pub(crate) data: PathBuf,
    /// Size of the scratch file
    #[arg(long, value_name = "BYTES", default_value = "1GiB")]
    pub(crate) size: String,
    /// Requests in flight
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_values_t = [1, 4, 16, 64])]
    pub(crate) depth: Vec<usize>,
    /// Facilities: uring, aio, sync
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_values_t = ["uring".to_owned(), "aio".to_owned()])]
    pub(crate) io: Vec<String>,
    /// Length of each measurement
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pub(crate) seconds: f64,
    /// How often everything is measured
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    pub(crate) repetitions: u32,
    /// Run fio in turns with the device's measurements, and print how they compare
    #[arg(long)]
    pub(crate) fio: bool,
    /// Leave out the device
    #[arg(long, conflicts_with = "only_device")]
    pub(crate) no_device: bool,
    /// Leave out memory and loopback
    #[arg(long)]
    pub(crate) only_device: bool,
    /// Write the result as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Options of `bench server`.
#[derive(Debug, Args)]
pub(crate) struct ServerArguments {
    /// Protocol: memcache or resp
    #[arg(long, value_name = "NAME", default_value = "memcache")]
    pub(crate) proto: String,
    /// Server to load; without one, those of --servers are started on loopback and stopped
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "servers")]
    pub(crate) target: Option<String>,
    /// Servers to start: esker, memcached, memcached-extstore, redis; those that are not installed are left out
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) servers: Option<Vec<String>>,
    /// Connections; several are swept
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_values_t = [64])]
    pub(crate) connections: Vec<usize>,
    /// Requests that a connection may have in flight
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub(crate) depth: usize,
    /// Requests per second by the clock, of all connections; as fast as replies come if missing; several are swept
    #[arg(long, value_name = "OPS", value_delimiter = ',')]
    pub(crate) rate: Option<Vec<f64>>,
    /// Per cent of requests that are gets; several are swept
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = [90.0])]
    pub(crate) gets: Vec<f64>,
    /// Keys
    #[arg(long, value_name = "COUNT", default_value_t = 100_000)]
    pub(crate) records: u64,
    /// Bytes of a key, from 16
    #[arg(long, value_name = "BYTES", default_value_t = 16)]
    pub(crate) key_size: usize,
    /// Bytes of a value
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    pub(crate) value_size: u64,
    /// Distribution of requests, as for bench run
    #[arg(long, value_name = "NAME", default_value = "zipfian")]
    pub(crate) distribution: String,
    /// Length of the measured phase
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    pub(crate) seconds: f64,
    /// Length of the warm-up
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    pub(crate) warmup: f64,
    /// How often everything is measured, servers in turns
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    pub(crate) repetitions: u32,
    /// Threads of the load
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub(crate) threads: usize,
    /// Threads of each server that is started
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    pub(crate) server_threads: usize,
    /// What servers that are started promise: sync, periodic, none
    #[arg(long, value_name = "MODE", default_value = "none", value_parser = durability)]
    pub(crate) durability: Durability,
    /// Memory of servers that keep data in memory
    #[arg(long, value_name = "BYTES", default_value = "1GiB")]
    pub(crate) cache: String,
    /// Folder for data of servers that are started
    #[arg(long, value_name = "DIR", default_value = "./esker-bench-data")]
    pub(crate) data: PathBuf,
    /// Seed of every draw
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Write the result as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the result as a page with plots
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
}
