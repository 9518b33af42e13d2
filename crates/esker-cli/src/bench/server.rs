//! `esker bench server`: load on servers, those that it starts in turns.

use super::arguments::ServerArguments;
use super::{program, run, shown};
use crate::failure::{Done, Failure};
use crate::service::raise_descriptors;
use esker_base::clock::{Clock, SystemClock};
use esker_base::units::parse_size_bytes;
use esker_bench::document::{Document, FORMAT, OperationFigures, Row};
use esker_bench::figures::{Meter, load_average};
use esker_bench::files;
use esker_bench::load::protocol::Protocol;
use esker_bench::load::servers::{Server, Wanted, names};
use esker_bench::load::{Load, Loaded, fill, run as load_on};
use esker_bench::machine::Machine;
use esker_bench::place::{self, OwnFolder};
use esker_bench::plan::{FAILED, KEY_SIZE_MAX, RECORDS_MAX, VALUE_SIZE_MAX, parse_distribution};
use esker_bench::runner::Event;
use esker_bench::workload::stream::phase_seed;
use esker_trt::{Config, Runtime};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// One point of the sweep.
#[derive(Clone, Copy, Debug)]
struct Point {
    connections: usize,
    rate: Option<f64>,
    gets: f64,
}

struct Bench {
    arguments: ServerArguments,
    protocol: Protocol,
    cache_bytes: u64,
    runtime: Runtime,
    live: shown::Live,
    done: usize,
    all: usize,
}

/// `esker bench server`.
pub(crate) fn server(arguments: ServerArguments) -> Result<Done, Failure> {
    let usage = |failure: esker_bench::Failure| Failure::usage(failure.to_string());
    let protocol: Protocol = arguments.proto.parse().map_err(usage)?;
    parse_distribution(&arguments.distribution).map_err(usage)?;
    let positive = |value: f64| value > 0.0 && value < 1e9;
    let mut rates: Vec<Option<f64>> = arguments.rate.iter().flatten().copied().map(Some).collect();
    if rates.is_empty() {
        rates.push(None);
    }
    if !positive(arguments.seconds)
        || rates.iter().flatten().any(|rate| !positive(*rate))
        || arguments.connections.contains(&0)
        || arguments.records == 0
        || arguments.repetitions == 0
        || arguments.key_size < 16
    {
        let words = "--seconds, --rate, --connections, --records and --repetitions are above 0, --key-size from 16 on";
        return Err(Failure::usage(words));
    }
    if arguments.records > RECORDS_MAX
        || arguments.key_size > KEY_SIZE_MAX
        || arguments.value_size > VALUE_SIZE_MAX
    {
        return Err(Failure::usage(format!(
            "at most --records {RECORDS_MAX}, --key-size {KEY_SIZE_MAX}, --value-size {VALUE_SIZE_MAX}"
        )));
    }
    if !(arguments.warmup >= 0.0 && arguments.warmup < 1e9) {
        return Err(Failure::usage("--warmup: seconds, 0 or more"));
    }
    if arguments.gets.iter().any(|gets| !(0.0..=100.0).contains(gets)) {
        return Err(Failure::usage("--gets: per cent, from 0 to 100"));
    }
    let cache = &arguments.cache;
    let cache_bytes = parse_size_bytes(cache)
        .ok_or_else(|| Failure::usage(format!("--cache: {cache:?} is no size")))?;
    let mut points = Vec::new();
    for connections in arguments.connections.iter().copied() {
        for rate in rates.iter().copied() {
            for gets in arguments.gets.iter().copied() {
                points.push(Point { connections, rate, gets: gets / 100.0 });
            }
        }
    }
    let target = match &arguments.target {
        Some(text) => Some(resolve(text)?),
        None => None,
    };
    let servers: Vec<String> = match (&target, &arguments.servers) {
        (Some(_), _) => vec!["target".to_owned()],
        (None, Some(servers)) => servers.clone(),
        (None, None) => names(protocol).iter().map(|name| (*name).to_owned()).collect(),
    };
    let connections = arguments.connections.iter().copied().max().unwrap_or(1);
    raise_descriptors(connections as u64, arguments.threads)?;
    files::create_folder(&arguments.data)?;
    run::check_files(arguments.json.as_deref(), arguments.report.as_deref())?;
    // Servers that are started have data there.
    let _taken = match target {
        Some(_) => None,
        None => Some(place::take(&arguments.data).map_err(usage)?),
    };
    let config = Config { cores: arguments.threads.max(1), ..Config::default() };
    let runtime = Runtime::start(config)?;
    let all = servers.len() * usize::try_from(arguments.repetitions).unwrap_or(1);
    let (json, page) = (arguments.json.clone(), arguments.report.clone());
    let live = shown::Live::new();
    let mut bench = Bench { arguments, protocol, cache_bytes, runtime, live, done: 0, all };
    let document = bench.measure(target, &servers, &points)?;
    bench.live.finish();
    bench.runtime.shutdown()?;
    run::finish(&document, json.as_deref(), page.as_deref())
}

/// The first address of HOST:PORT.
fn resolve(text: &str) -> Result<SocketAddr, Failure> {
    let found = text.to_socket_addrs().ok().and_then(|mut all| all.next());
    found.ok_or_else(|| Failure::usage(format!("--target: {text} is no HOST:PORT")))
}

impl Bench {
    fn measure(
        &mut self,
        target: Option<SocketAddr>,
        servers: &[String],
        points: &[Point],
    ) -> Result<Document, Failure> {
        let folder = self.arguments.data.clone();
        let start = SystemClock.monotonic();
        let mut document = Document {
            format: FORMAT,
            title: format!("load on servers, {}", self.protocol),
            program: program(),
            began_at: SystemClock.unix_seconds(),
            took_seconds: 0.0,
            machine: Machine::examine(&folder),
            options: serde_json::json!({
                "records": self.arguments.records, "connections": self.arguments.connections,
                "depth": self.arguments.depth, "rate": self.arguments.rate, "gets": self.arguments.gets,
                "value-size": self.arguments.value_size, "seconds": self.arguments.seconds,
                "distribution": self.arguments.distribution, "load threads": self.arguments.threads,
                "server threads": self.arguments.server_threads,
                "durability": self.arguments.durability, "cache": self.arguments.cache,
                "warmup": self.arguments.warmup, "seed": self.arguments.seed,
            }),
            rows: Vec::new(),
        };
        for repetition in 0..self.arguments.repetitions {
            for name in servers {
                let rows = self.one(name, target, points, repetition);
                document.rows.extend(rows.unwrap_or_else(|failure| {
                    let skipped = Some(format!("{FAILED}{failure}"));
                    let workload = "server".to_owned();
                    vec![Row {
                        system: name.clone(),
                        workload,
                        repetition,
                        skipped,
                        ..Row::default()
                    }]
                }));
                self.done += 1;
            }
        }
        document.took_seconds = (SystemClock.monotonic() - start).as_secs_f64();
        Ok(document)
    }

    /// One server, from its start to its end: filled, then every point.
    fn one(
        &mut self,
        name: &str,
        target: Option<SocketAddr>,
        points: &[Point],
        repetition: u32,
    ) -> Result<Vec<Row>, esker_bench::Failure> {
        let arguments = &self.arguments;
        let server = match target {
            Some(_) => None,
            None => {
                let wanted = Wanted {
                    name: name.to_owned(),
                    protocol: self.protocol,
                    threads: arguments.server_threads,
                    connections: arguments.connections.iter().copied().max().unwrap_or(1),
                    item_size_bytes: arguments.value_size + arguments.key_size as u64,
                    memory_bytes: self.cache_bytes,
                    durability: arguments.durability,
                    folder: OwnFolder::of_server(&arguments.data),
                    esker: std::env::current_exe()?,
                };
                match Server::start(&wanted)? {
                    Some(server) => Some(server),
                    None => {
                        let skipped = Some("is not installed".to_owned());
                        let workload = "server".to_owned();
                        let system = name.to_owned();
                        return Ok(vec![Row {
                            system,
                            workload,
                            repetition,
                            skipped,
                            ..Row::default()
                        }]);
                    }
                }
            }
        };
        let address = target.or(server.as_ref().map(|server| server.address));
        let Some(address) = address else { return Ok(Vec::new()) };
        let load = Load {
            protocol: self.protocol,
            target: address,
            connections: 1,
            depth: arguments.depth,
            rate: None,
            gets: 1.0,
            records: arguments.records,
            key_size: arguments.key_size,
            value_size: arguments.value_size,
            distribution: parse_distribution(&arguments.distribution)?,
            // A cache may have evicted what was stored.
            must_hit: name == "redis" || name == "esker",
            seed: arguments.seed.wrapping_add(u64::from(repetition) << 8),
            warmup: Duration::from_secs_f64(arguments.warmup),
            length: Duration::from_secs_f64(arguments.seconds),
        };
        fill(&self.runtime, &load)?;
        let mut rows = Vec::new();
        for point in points {
            let Point { connections, rate, gets } = *point;
            let seed = phase_seed(load.seed, &format!("{point:?}"));
            let load = Load { connections, rate, gets, seed, ..load.clone() };
            rows.push(self.point(name, server.as_ref(), &load, repetition)?);
        }
        Ok(rows)
    }

    fn point(
        &mut self,
        name: &str,
        server: Option<&Server>,
        load: &Load,
        repetition: u32,
    ) -> Result<Row, esker_bench::Failure> {
        let percent = load.gets * 100.0;
        let what = format!("{name} {percent:.0} % gets, {} connections", load.connections);
        let all = u64::try_from((load.warmup + load.length).as_millis()).unwrap_or(0);
        let (place, cells) = (self.done, self.all);
        let live = &mut self.live;
        live.hear(place, cells, &Event::Begin { what, all, timed: true });
        // What a server on another machine uses is not known here.
        let here = server.map(|server| (server, Meter::of(&self.arguments.data)));
        let used = || here.as_ref().map(|(server, meter)| (server.usage(), meter.read()));
        let mut before = None;
        let start = SystemClock.monotonic();
        let loaded = load_on(
            &self.runtime,
            load,
            || before = used(),
            |_, rate| {
                let since = SystemClock.monotonic().saturating_sub(start);
                let done = u64::try_from(since.as_millis()).unwrap_or(0);
                live.hear(place, cells, &Event::Progress { done, rate });
            },
        )?;
        let after = used();
        let mut row = Row {
            system: name.to_owned(),
            workload: format!("{}-gets-{percent}", self.protocol),
            phase: "run".to_owned(),
            durability: server.map(|_| self.arguments.durability),
            threads: load.connections,
            depth: load.depth,
            records: load.records,
            key_size: load.key_size as u64,
            value_size: load.value_size,
            write_share: 1.0 - load.gets,
            rate: load.rate,
            repetition,
            load_average: load_average(),
            warmup_seconds: load.warmup.as_secs_f64(),
            ..Row::default()
        };
        note(&mut row, &loaded);
        if let (Some((now, device)), Some((then, device_then))) = (after, before) {
            row.rss_bytes = now.rss_bytes;
            row.process_write_bytes = Some(now.write_bytes.saturating_sub(then.write_bytes));
            row.process_read_bytes = Some(now.read_bytes.saturating_sub(then.read_bytes));
            let used = now.cpu_seconds - then.cpu_seconds;
            row.cpu_seconds = Some(used);
            row.cpu_seconds_per_million_ops = (row.ops > 0).then(|| used * 1e6 / row.ops as f64);
            let device = device.since(&device_then);
            row.device_write_bytes = device.device_write_bytes;
            row.device_read_bytes = device.device_read_bytes;
            row.device_flushes = device.device_flushes;
        }
        if let Some(server) = server {
            row.options.clone_from(&server.options);
        }
        Ok(row)
    }
}

fn note(row: &mut Row, loaded: &Loaded) {
    row.ops = loaded.ops;
    row.seconds = loaded.seconds;
    row.ops_per_second = loaded.ops as f64 / loaded.seconds.max(1e-9);
    row.user_bytes = loaded.user_bytes;
    row.note_latencies(&loaded.latencies);
    row.counters.insert("misses_total".to_owned(), loaded.misses as f64);
    if loaded.unsent > 0 {
        row.counters.insert("unsent_total".to_owned(), loaded.unsent as f64);
    }
    for (name, histogram) in ["get", "set"].into_iter().zip(&loaded.by_kind) {
        if !histogram.is_empty() {
            row.operations.insert(name.to_owned(), OperationFigures::of(histogram));
        }
    }
}
