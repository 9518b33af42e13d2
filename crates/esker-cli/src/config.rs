//! Configuration of `esker serve`: one table of names, three layers.
//!
//! A value comes from the command line, else from the environment, else from the file, else from
//! the table below. Names are the same everywhere: `--memory-max`, `ESKER_MEMORY_MAX`,
//! `memory-max = "256MiB"`.
//!
//! # Failure
//! Unknown names and values without meaning are errors that say where: the option, or file and
//! line. Unknown `ESKER_` variables are only warned of: a platform may set its own.

use crate::arguments::ServeArguments;
use crate::failure::Failure;
use esker::{Batching, DEFAULT_PERIOD, Durability, EngineKind, FlexOptions};
use esker_base::units::parse_size_bytes;
use esker_server::{Limits, ListenAddress};
use esker_trt::Facility;
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

/// Where data lie unless told otherwise.
pub(crate) const DEFAULT_DATA: &str = "./esker-data";
/// Smallest table of writes: in less hardly anything comes together, and a unit was forgotten.
const FLEX_MEMTABLE_MIN: u64 = 64 << 10;
/// Longest that a core polls before it blocks.
const SPIN_MAX: Duration = Duration::from_secs(1);

struct Setting {
    name: &'static str,
    /// As in a TOML file.
    default: &'static str,
    words: &'static str,
}

const fn setting(name: &'static str, default: &'static str, words: &'static str) -> Setting {
    Setting { name, default, words }
}

const SETTINGS: &[Setting] = &[
    setting(
        "listen",
        r#"["memcache://127.0.0.1:11211"]"#,
        "where to listen: memcache://HOST:PORT, native://HOST:PORT, unix:///PATH, native+unix:///PATH, shm:///PATH",
    ),
    setting(
        "allow-remote",
        "false",
        "permit addresses that other machines can reach; auth-file or TLS keep strangers out",
    ),
    setting("tls-cert", r#""""#, "certificate chain in PEM: TCP connections are encrypted"),
    setting("tls-key", r#""""#, "private key in PEM; where tls-cert is if not given"),
    setting("auth-file", r#""""#, "lines of user:password; clients have to say who they are"),
    setting(
        "data",
        r#""./esker-data""#,
        "folder or device with the data, created if missing; several: striped over them",
    ),
    setting(
        "backups",
        r#""""#,
        "folder to which clients may have the store backed up (esker backup --server), made when it is first needed; none: they may not",
    ),
    setting(
        "engine",
        r#""auto""#,
        "storage engine: depot, flat:cceh, flat:masstree, flex, or auto: the one that is there, else depot",
    ),
    setting(
        "pmem-emulate",
        "false",
        "engine flat takes memory that a power cut empties, such as a file on tmpfs",
    ),
    setting(
        "batching",
        r#""pipelined-horizontal""#,
        "how engine flat makes entries of many writers durable together: none, vertical, naive-horizontal, pipelined-horizontal",
    ),
    setting(
        "batching-group",
        "0",
        "cores of engine flat that share batches, and a cleaner; 0: those of a socket",
    ),
    setting("size", r#""8GiB""#, "capacity of a new store; an existing one keeps its own"),
    setting("cache", "false", "a new store is a cache: when it is full it evicts"),
    setting(
        "record-cache",
        r#""0""#,
        "DRAM for records that were read, for devices that are slow to read; 0: none",
    ),
    setting(
        "flex-cache",
        r#""256MiB""#,
        "DRAM of engine flex for what was read, and for its tables while little is; 0: none",
    ),
    setting(
        "flex-memtable",
        r#""64MiB""#,
        "DRAM of each of the two tables of writes of engine flex, at most a 64th of the capacity; with a cache they grow to twice as much",
    ),
    setting(
        "flex-scrub",
        r#""1MiB""#,
        "bytes a second that engine flex reads and verifies while it has nothing else to do; 0: none",
    ),
    setting(
        "trim-idle",
        "false",
        "while nobody writes, engine depot gives free space back to the file system or device, and cleans for that",
    ),
    setting(
        "durability",
        r#""sync""#,
        "what an acknowledgement promises: sync, periodic, periodic:500ms, none",
    ),
    setting("cores", "0", "scheduler threads; 0: one for each processor"),
    setting(
        "spin",
        r#""0s""#,
        "an idle core polls for so long before it blocks, such as 50us: for processors that nobody else needs",
    ),
    setting(
        "io",
        r#""auto""#,
        "I/O facilities in the order in which they are tried: uring, aio, sync, inline (for disks that are memory); auto: by the device",
    ),
    setting("connections-max", "1024", "connections at the same time"),
    setting("item-size-max", r#""1MiB""#, "longest value"),
    setting(
        "memory-max",
        r#""256MiB""#,
        "memory for buffers and values in flight of all connections; a quarter of it at most is for clients in shared memory",
    ),
    setting("idle-timeout", r#""0s""#, "close a connection that is silent for so long; 0: never"),
    setting(
        "request-timeout",
        r#""10s""#,
        "close a connection whose request or reply makes no progress for so long; 0: only after 10s, and while memory is short",
    ),
];

/// What `esker serve` is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) listen: Vec<ListenAddress>,
    pub(crate) allow_remote: bool,
    pub(crate) tls_cert: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
    pub(crate) auth_file: Option<PathBuf>,
    pub(crate) data: Vec<PathBuf>,
    pub(crate) backups: Option<PathBuf>,
    /// None: the one that is there, or `depot`.
    pub(crate) engine: Option<EngineKind>,
    pub(crate) pmem_emulate: bool,
    pub(crate) batching: Batching,
    pub(crate) batching_group: usize,
    pub(crate) size_bytes: u64,
    pub(crate) cache: bool,
    pub(crate) record_cache_bytes: u64,
    pub(crate) flex_cache_bytes: u64,
    pub(crate) flex_memtable_bytes: u64,
    pub(crate) flex_scrub_bytes_per_second: u64,
    pub(crate) trim_idle: bool,
    pub(crate) durability: Durability,
    pub(crate) cores: usize,
    pub(crate) spin: Duration,
    /// None: as the store says.
    pub(crate) io: Vec<Facility>,
    pub(crate) limits: Limits,
    /// What is not left to the defaults, and how it was asked for; in a file, what is unlike them.
    pub(crate) asked: BTreeMap<String, String>,
}

impl Config {
    /// The configuration that `arguments` and what they refer to make.
    pub(crate) fn of(arguments: &ServeArguments) -> Result<Config, Failure> {
        let mut config = Config::defaults()?;
        if let Some(path) = &arguments.config {
            #[expect(
                clippy::disallowed_methods,
                reason = "the configuration file is the program's own"
            )]
            let mut file = std::fs::File::open(path)
                .map_err(|source| Failure::usage(format!("{}: {source}", path.display())))?;
            let mut text = String::new();
            std::io::Read::read_to_string(&mut file, &mut text)
                .map_err(|source| Failure::usage(format!("{}: {source}", path.display())))?;
            config.read(&text, &path.display().to_string())?;
        }
        for (name, values) in arguments.given() {
            config
                .set(name, &values)
                .map_err(|words| Failure::usage(format!("--{name}: {words}")))?;
            config.asked.insert(name.to_owned(), format!("--{name} {}", values.join(",")));
        }
        config.limits.check(config.tls_cert.is_some()).map_err(Failure::usage)?;
        config.flex().check()?;
        if config.tls_key.is_some() && config.tls_cert.is_none() {
            return Err(Failure::usage("tls-key needs tls-cert"));
        }
        if !config.allow_remote
            && let Some(address) = config.listen.iter().find(|address| !address.is_local())
        {
            return Err(Failure::usage(format!(
                "{address} can be reached from other machines; --allow-remote permits it"
            )));
        }
        config.check_backups().map_err(Failure::usage)?;
        Ok(config)
    }

    /// Whether the folder for backups can be one; says in words why not.
    fn check_backups(&self) -> Result<(), String> {
        let Some(backups) = &self.backups else { return Ok(()) };
        let (place, name) = (place_of(backups), backups.display());
        if let Some(data) = self.data.iter().find(|data| place.starts_with(place_of(data))) {
            let data = data.display();
            return Err(format!(
                "backups: {name} lies inside {data}, where the data are; a backup has to be elsewhere"
            ));
        }
        match std::fs::metadata(backups) {
            Ok(found) if !found.is_dir() => Err(format!("backups: {name} is no folder")),
            _ => Ok(()),
        }
    }

    /// Options of the engine `flex`.
    pub(crate) fn flex(&self) -> FlexOptions {
        FlexOptions {
            cache_size_bytes: self.flex_cache_bytes,
            memtable_size_bytes: self.flex_memtable_bytes,
            scrub_bytes_per_second: self.flex_scrub_bytes_per_second,
            ..FlexOptions::default()
        }
    }

    /// Those of `names` of environment variables that look like options and are none.
    pub(crate) fn unknown_variables(names: impl Iterator<Item = String>) -> Vec<String> {
        let is_known = |option: &str| {
            let name = option.to_lowercase().replace('_', "-");
            ["log", "config"].contains(&name.as_str())
                || SETTINGS.iter().any(|setting| setting.name == name)
        };
        let mut unknown: Vec<String> = names
            .filter(|name| name.strip_prefix("ESKER_").is_some_and(|option| !is_known(option)))
            .collect();
        unknown.sort();
        unknown
    }

    /// The defaults of the table.
    pub(crate) fn defaults() -> Result<Config, Failure> {
        let mut config = Config {
            listen: Vec::new(),
            allow_remote: false,
            tls_cert: None,
            tls_key: None,
            auth_file: None,
            data: Vec::new(),
            backups: None,
            engine: None,
            pmem_emulate: false,
            batching: Batching::default(),
            batching_group: 0,
            size_bytes: 0,
            cache: false,
            record_cache_bytes: 0,
            flex_cache_bytes: 0,
            flex_memtable_bytes: 0,
            flex_scrub_bytes_per_second: 0,
            trim_idle: false,
            durability: Durability::Sync,
            cores: 0,
            spin: Duration::ZERO,
            io: Vec::new(),
            limits: Limits::default(),
            asked: BTreeMap::new(),
        };
        config.read(&Config::print_defaults(), "defaults")?;
        config.asked.clear();
        Ok(config)
    }

    /// For tests: the name of an option, by number.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn name(number: usize) -> &'static str {
        SETTINGS.get(number % SETTINGS.len()).map_or("", |setting| setting.name)
    }

    /// The defaults as a configuration file.
    pub(crate) fn print_defaults() -> String {
        let lines = SETTINGS
            .iter()
            .map(|Setting { name, default, words }| format!("# {words}\n{name} = {default}\n"));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Takes over what the TOML text of `file` says.
    pub(crate) fn read(&mut self, text: &str, file: &str) -> Result<(), Failure> {
        type Table = BTreeMap<String, toml::Spanned<toml::Value>>;
        let line_of = |offset: usize| {
            let before = text.as_bytes().get(..offset).unwrap_or_default();
            before.iter().filter(|byte| **byte == b'\n').count() + 1
        };
        let table: Table = toml::from_str(text).map_err(|error| {
            let line = line_of(error.span().map_or(0, |span| span.start));
            Failure::usage(format!("{file}:{line}: {}", error.message()))
        })?;
        for (name, value) in table {
            let line = line_of(value.span().start);
            let failed = |words: String| Failure::usage(format!("{file}:{line}: {name}: {words}"));
            let values = texts(value.get_ref()).map_err(failed)?;
            let before = self.clone();
            self.set(&name, &values).map_err(failed)?;
            // A file may be all that `--print-defaults` writes, of which nothing is asked for.
            if *self != before {
                let asked = format!("{file}:{line}: {name} = {}", values.join(","));
                self.asked.insert(name, asked);
            }
        }
        Ok(())
    }

    /// Sets one option.
    pub(crate) fn set(&mut self, name: &str, values: &[String]) -> Result<(), String> {
        if name == "listen" {
            let addresses: Result<Vec<ListenAddress>, _> =
                values.iter().map(|text| text.parse()).collect();
            self.listen = addresses.map_err(|error: esker::Error| error.to_string())?;
            return if self.listen.is_empty() { Err("needs an address".into()) } else { Ok(()) };
        }
        if name == "data" {
            self.data = values.iter().map(PathBuf::from).collect();
            return if self.data.is_empty() { Err("needs a path".into()) } else { Ok(()) };
        }
        if name == "io" {
            let words = values.iter().flat_map(|text| text.split(','));
            let words = words.filter(|word| word.trim() != "auto");
            let facilities: Result<Vec<Facility>, _> =
                words.map(|word| word.trim().parse()).collect();
            self.io = facilities.map_err(|error: esker::Error| error.to_string())?;
            return Ok(());
        }
        let [text] = values else { return Err("takes one value".into()) };
        match name {
            "allow-remote" => self.allow_remote = parse_truth(text)?,
            "cache" => self.cache = parse_truth(text)?,
            "trim-idle" => self.trim_idle = parse_truth(text)?,
            "record-cache" => self.record_cache_bytes = parse_size(text)?,
            "flex-cache" => self.flex_cache_bytes = parse_size(text)?,
            "flex-memtable" => self.flex_memtable_bytes = parse_table_size(text)?,
            "flex-scrub" => self.flex_scrub_bytes_per_second = parse_size(text)?,
            "tls-cert" => self.tls_cert = optional_path(text),
            "tls-key" => self.tls_key = optional_path(text),
            "auth-file" => self.auth_file = optional_path(text),
            "backups" => self.backups = optional_path(text),
            "engine" => self.engine = parse_engine(text)?,
            "pmem-emulate" => self.pmem_emulate = parse_truth(text)?,
            "batching" => self.batching = parse_batching(text)?,
            "batching-group" => self.batching_group = parse_count(text)?,
            "size" => self.size_bytes = parse_size(text)?,
            "durability" => self.durability = parse_durability(text)?,
            "cores" => self.cores = parse_count(text)?,
            "spin" => self.spin = parse_spin(text)?,
            "connections-max" => self.limits.connections_max = parse_count(text)?,
            "item-size-max" => self.limits.item_size_max_bytes = parse_size(text)?,
            "memory-max" => self.limits.memory_max_bytes = parse_size(text)?,
            "idle-timeout" => self.limits.idle_timeout = parse_time(text)?,
            "request-timeout" => self.limits.request_timeout = parse_time(text)?,
            _ => return Err("no such option".into()),
        }
        Ok(())
    }
}

/// A path, if there is one.
fn optional_path(text: &str) -> Option<PathBuf> {
    (!text.is_empty()).then(|| text.into())
}

/// Where `path` leads, links followed as far as there is something.
pub(crate) fn place_of(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path);
    let mut place = PathBuf::new();
    for part in whole.as_deref().unwrap_or(path).components() {
        match part {
            Component::ParentDir => drop(place.pop()),
            part => {
                place.push(part);
                place = place.canonicalize().unwrap_or(place);
            }
        }
    }
    place
}

fn texts(value: &toml::Value) -> Result<Vec<String>, String> {
    match value {
        toml::Value::String(text) => Ok(vec![text.clone()]),
        toml::Value::Integer(number) => Ok(vec![number.to_string()]),
        toml::Value::Boolean(truth) => Ok(vec![truth.to_string()]),
        toml::Value::Array(values) => {
            Ok(values.iter().map(texts).collect::<Result<Vec<_>, _>>()?.concat())
        }
        other => Err(format!("a {} has no meaning here", other.type_str())),
    }
}

/// Reads a size in bytes, for options of other commands, too.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    parse_size_bytes(text).ok_or_else(|| format!("{text:?} is no size, such as 512MiB or 8GiB"))
}

/// Reads the size of a table of writes.
fn parse_table_size(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        size if size < FLEX_MEMTABLE_MIN => Err(format!("{text} is less than 64KiB")),
        size => Ok(size),
    }
}

fn parse_truth(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| format!("{text:?} is neither true nor false"))
}

fn parse_count<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("{text:?} is no count"))
}

/// Reads how long a core polls.
fn parse_spin(text: &str) -> Result<Duration, String> {
    match parse_time(text)? {
        time if time > SPIN_MAX => Err(format!("{text} is more than a second")),
        time => Ok(time),
    }
}

/// Reads a time: `10s`, `500ms`, `50us`, `5m`, or seconds.
fn parse_time(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let wrong = || format!("{text:?} is no time, such as 10s or 500ms");
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let unit = match unit {
        "us" => return Ok(Duration::from_micros(number)),
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(unit).map(Duration::from_millis).ok_or_else(wrong)
}

fn parse_durability(text: &str) -> Result<Durability, String> {
    match text.split_once(':') {
        None if text == "sync" => Ok(Durability::Sync),
        None if text == "none" => Ok(Durability::None),
        None if text == "periodic" => Ok(Durability::Periodic(DEFAULT_PERIOD)),
        Some(("periodic", window)) => match parse_time(window)? {
            window if window.is_zero() => {
                Err("the window of periodic must be longer than zero".into())
            }
            window => Ok(Durability::Periodic(window)),
        },
        _ => Err(format!("{text:?} is none of sync, periodic, periodic:500ms, none")),
    }
}

fn parse_batching(text: &str) -> Result<Batching, String> {
    let names = || Batching::ALL.map(Batching::name).join(", ");
    text.parse().map_err(|_| format!("{text:?} is none of {}", names()))
}

pub(crate) fn parse_engine(text: &str) -> Result<Option<EngineKind>, String> {
    match text {
        "auto" => Ok(None),
        "matrix" => {
            Err(format!("engine {text:?} is not in this version; depot, flat and flex are"))
        }
        _ => text.parse().map(Some).map_err(|_| {
            format!("no engine is called {text:?}; depot, flat:cceh, flat:masstree and flex are")
        }),
    }
}

#[cfg(test)]
mod tests;
