//! One server process, from its options to a clean end; `serve` and `memcached` differ in how they
//! are asked.
//!
//! Lines on standard error say what runs where; their first words are stable, so that scripts can
//! wait for `ready` and read the address behind `listening on`.
//!
//! # Failure
//! The first SIGTERM, SIGINT or SIGUSR1 stops accepting, finishes what was received, closes the store and
//! exits with 0. More of SIGTERM and SIGUSR1 change nothing: whoever passes one on may send it twice. A SIGINT behind
//! another signal, as of somebody who does not want to wait, ends the process at once, which the store survives as it survives a
//! crash. SIGHUP has the files with credentials and certificates read again, as memcached does; if one
//! is wrong, that is said, and what was read before stays.

use crate::config::place_of;
use crate::failure::{Done, Failure};
use crate::store::open_served;
use esker::{Options, Stats};
use esker_base::units::format_size_bytes;
use esker_server::{Credentials, ListenAddress, Server, ServerConfig, TURNED_AWAY_MAX, Tls};
use esker_trt::{Facility, Runtime};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tracing_subscriber::EnvFilter;

/// How long requests that were received may take after the first signal.
const STOP_LIMIT: Duration = Duration::from_secs(5);
/// Descriptors beyond those of connections and cores: of data, listeners, standard streams, and of those who are told that they are
/// too many.
const DESCRIPTORS_RESERVED: u64 = 64 + TURNED_AWAY_MAX as u64;
/// The most that a core has for itself: to wait for events, for a time, and for other cores.
const DESCRIPTORS_PER_CORE: u64 = 3;

/// Most that is read of a file with credentials or certificates.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What a server process is asked for.
pub(crate) struct Service {
    pub(crate) store: Options,
    pub(crate) server: ServerConfig,
    pub(crate) cores: usize,
    /// How long an idle core polls.
    pub(crate) spin: Duration,
    /// None: as the store says.
    pub(crate) io: Vec<Facility>,
    /// Least level of the log, unless `ESKER_LOG` says otherwise.
    pub(crate) log: &'static str,
    pub(crate) secrets: Secrets,
    pub(crate) asked: AskedOfNew,
}

/// Options, as they were given, that only mean something for a store that is not there yet.
#[derive(Default)]
pub(crate) struct AskedOfNew {
    pub(crate) size: Option<String>,
    pub(crate) no_cache: Option<String>,
}

impl AskedOfNew {
    /// What is not as it was asked for, of the store at `place` that was there: a line for each option.
    pub(crate) fn unmet(&self, stats: &Stats, size_bytes: u64, place: &str) -> Vec<String> {
        let capacity = stats.capacity_bytes;
        // What stands before the first segment, and a rest behind the last one, do not count.
        let fits = capacity <= size_bytes && capacity >= size_bytes - size_bytes / 8;
        let size = self.size.iter().filter(|_| !fits).map(|option| {
            let keeps = format_size_bytes(capacity);
            format!("{option} has no effect: the store at {place} keeps its {keeps}; remove it to make a new one")
        });
        let cache = self.no_cache.iter().filter(|_| stats.cache).map(|option| {
            format!("{option} has no effect: the store at {place} was made as a cache, and evicts; remove it to make a new one")
        });
        size.chain(cache).collect()
    }
}

/// Where credentials, and certificates with their key, come from.
#[derive(Default)]
pub(crate) struct Secrets {
    auth_file: Option<PathBuf>,
    auth: Option<Credentials>,
    tls_files: Option<(PathBuf, PathBuf)>,
    tls: Option<Tls>,
}

impl Secrets {
    /// Reads what a server is to know.
    pub(crate) fn read(
        auth_file: Option<PathBuf>,
        tls_files: Option<(PathBuf, PathBuf)>,
    ) -> Result<Secrets, Failure> {
        let auth = auth_file.as_ref().map(|path| read_credentials(path)).transpose()?;
        let tls = tls_files.as_ref().map(|(chain, key)| read_tls(chain, key)).transpose()?;
        Ok(Secrets { auth_file, auth, tls_files, tls })
    }

    pub(crate) fn auth(&self) -> Option<Credentials> {
        self.auth.clone()
    }

    pub(crate) fn tls(&self) -> Option<Tls> {
        self.tls.clone()
    }

    /// Reads the files again; what is wrong with one leaves what it said before.
    fn read_again(&self) {
        let done = |what: &str, done: Result<(), Failure>| match done {
            Ok(()) => say(&format!("read {what} again")),
            Err(failure) => say(&format!("{what} stay as they were: {failure}")),
        };
        if let (Some(path), Some(auth)) = (&self.auth_file, &self.auth) {
            done("credentials", read_credentials(path).map(|others| auth.replace_by(&others)));
        }
        if let (Some((chain, key)), Some(tls)) = (&self.tls_files, &self.tls) {
            done("certificates", read_tls(chain, key).map(|other| tls.replace_by(&other)));
        }
    }
}

impl Service {
    /// Serves until a signal; `serving` is called with the addresses once clients are served, and `said` once that is said.
    pub(crate) fn run(
        mut self,
        serving: impl FnOnce(&[ListenAddress]) -> Result<(), Failure>,
        said: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<Done, Failure> {
        start_log(self.log);
        let mut signals = catch_hangups()?;
        raise_descriptors(u64::from(self.server.limits.connections_max), self.cores)?;
        self.raise_descriptors_further();
        let paths = std::iter::once(&self.store.path).chain(&self.store.devices);
        let paths: Vec<String> = paths.map(|path| path.display().to_string()).collect();
        let durability = self.store.durability;
        let was_there = self.store.engine_there().is_some();
        if !was_there {
            // Before there is a store that nobody can serve from. With it come its folder and those above, where sockets may lie.
            let data = std::iter::once(&self.store.path).chain(&self.store.devices);
            let data: Vec<PathBuf> = data.map(|path| place_of(path)).collect();
            self.server.check_addresses(|folder| {
                let folder = place_of(folder);
                !folder.exists() && data.iter().any(|data| data.starts_with(&folder))
            })?;
        }
        // Items are over when clients were told.
        self.store.clock = self.server.clock.clone();
        let store = open_served(&mut self.store)?;
        catch_ends(&signals)?;
        let runtime = Runtime::start(esker_trt::Config {
            cores: self.cores,
            spin: self.spin,
            facilities: if self.io.is_empty() { store.facilities() } else { self.io },
            ..esker_trt::Config::default()
        })?;
        let runtime = Arc::new(runtime);
        let backups = self.server.backups.clone();
        let server = Server::start(&runtime, store.clone(), self.server)?;
        let stats = store.stats();
        let unmet = self.asked.unmet(&stats, self.store.size_bytes, &paths.join(", "));
        for line in unmet.iter().filter(|_| was_there) {
            say(line);
        }
        let (live, capacity) =
            (format_size_bytes(stats.live_bytes), format_size_bytes(stats.capacity_bytes));
        say(&format!("esker {}", env!("CARGO_PKG_VERSION")));
        say(&format!(
            "data in {}: engine {}, {} items, {live} of {capacity}; {}",
            paths.join(", "),
            store.engine(),
            stats.items,
            store.report()
        ));
        say(&format!("durability {durability}"));
        if let Some(folder) = backups {
            say(&format!("backups that clients ask for go to {}", folder.display()));
        }
        let full =
            if stats.cache { "evicts what was not used lately" } else { "refuses what is new" };
        say(&format!("a full store {full}"));
        say(&format!("I/O by {}", runtime.report()));
        for address in server.addresses() {
            say(&format!("listening on {address}"));
        }
        if server.addresses().iter().any(is_shared) {
            let (clients, each) = server.shared_memory_room();
            let each = format_size_bytes(each);
            say(&format!(
                "room for {clients} clients in shared memory: {each} each, together a quarter of memory-max"
            ));
        }
        serving(server.addresses())?;
        say("ready");
        said()?;

        for signal in signals.forever() {
            if signal == SIGHUP {
                self.secrets.read_again();
                continue;
            }
            let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
            say(&format!("stopping on {name}"));
            break;
        }
        if !server.stop(STOP_LIMIT) {
            say(&format!("some requests were not answered within {STOP_LIMIT:?}"));
        }
        if let Err(error) = runtime.shutdown() {
            say(&error.to_string());
        }
        store.close()?;
        say("stopped");
        Ok(Done::Yes)
    }
}

/// Credentials from a file of lines `user:password`.
fn read_credentials(path: &Path) -> Result<Credentials, Failure> {
    Credentials::parse(&read_file(path)?).map_err(|error| in_file(path, &error))
}

/// Certificates and private key from PEM files, which may be one.
fn read_tls(chain: &Path, key: &Path) -> Result<Tls, Failure> {
    Tls::from_pem(&read_file(chain)?, &read_file(key)?).map_err(|error| in_file(chain, &error))
}

fn in_file(path: &Path, error: &esker::Error) -> Failure {
    Failure::usage(format!("{}: {error}", path.display()))
}

/// Reads a small file.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    // A byte more, for a part of a file would pass for all of it.
    let most = FILE_BYTES_MAX + 1;
    #[expect(clippy::disallowed_methods, reason = "configuration, not data of the store")]
    let file = std::fs::File::open(path);
    file.and_then(|file| file.take(most).read_to_end(&mut bytes))
        .map_err(|source| Failure::usage(format!("{}: {source}", path.display())))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let most = format_size_bytes(FILE_BYTES_MAX);
        return Err(Failure::usage(format!("{}: larger than {most}", path.display())));
    }
    Ok(bytes)
}

/// Says a line on standard error. Nobody may listen there any more, which is no reason to stop.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// What is logged, in place of all from some level on.
const LOG_VARIABLE: &str = "ESKER_LOG";

/// Log events go to standard error, those from `level` on unless `ESKER_LOG` says otherwise.
fn start_log(level: &str) {
    let filter = EnvFilter::try_from_env(LOG_VARIABLE).unwrap_or_else(|error| {
        if std::env::var_os(LOG_VARIABLE).is_some() {
            say(&format!("warning: {LOG_VARIABLE} is no filter and is ignored: {error}"));
        }
        EnvFilter::new(level)
    });
    // Fails only if there is a log already.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        // Where the log cannot be written, to say so there again would panic.
        .log_internal_errors(false)
        .try_init();
}

fn uncaught(source: std::io::Error) -> Failure {
    Failure::io("catch signals", &source)
}

/// From here on a hangup is told by the iterator. Signals that end the process still do so at once: while the store is opened there
/// is nothing to finish, and nothing to lose.
fn catch_hangups() -> Result<Signals, Failure> {
    Signals::new([SIGHUP]).map_err(uncaught)
}

/// From here on the first signal that ends the process is told by the iterator, and a SIGINT behind it ends the process.
fn catch_ends(signals: &Signals) -> Result<(), Failure> {
    let again = Arc::new(AtomicBool::new(false));
    // The last one is memcached's wish for an end that loses nothing.
    let ending = [SIGTERM, SIGINT, SIGUSR1];
    // Before the flag is raised by it: the first signal finds it down.
    signal_hook::flag::register_conditional_shutdown(SIGINT, 128 + SIGINT, again.clone())
        .map_err(uncaught)?;
    for signal in &ending {
        signal_hook::flag::register(*signal, again.clone()).map_err(uncaught)?;
        signals.add_signal(*signal).map_err(uncaught)?;
    }
    Ok(())
}

impl Service {
    /// Clients in shared memory have two descriptors for each core: as many as the system permits, which may be fewer than
    /// all clients could take.
    fn raise_descriptors_further(&self) {
        let limit = getrlimit(Resource::Nofile);
        if let (true, Some(current)) = (self.server.listen.iter().any(is_shared), limit.current) {
            let each = cores_of(self.cores).saturating_mul(2).saturating_add(1);
            let wanted = u64::from(self.server.limits.connections_max).saturating_mul(each);
            let wanted = wanted.saturating_add(descriptors_reserved(self.cores));
            let current = wanted.min(limit.maximum.unwrap_or(wanted)).max(current);
            // Who is not permitted goes on with what there is.
            let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..limit });
        }
    }
}

fn is_shared(address: &ListenAddress) -> bool {
    matches!(address, ListenAddress::Shared(_))
}

/// As many cores as the run-time takes, where 0 was asked for, too.
fn cores_of(asked: usize) -> u64 {
    match asked {
        0 => std::thread::available_parallelism().map_or(1, usize::from) as u64,
        cores => cores as u64,
    }
}

/// Descriptors that a server of so many cores has beyond those of connections.
fn descriptors_reserved(cores: usize) -> u64 {
    let of_cores = cores_of(cores).saturating_mul(DESCRIPTORS_PER_CORE);
    of_cores.saturating_add(DESCRIPTORS_RESERVED)
}

/// Makes room for the descriptors of all connections and `cores`, as far as the system permits: root, who may raise the bound, calls it
/// before it becomes somebody else.
pub(crate) fn raise_descriptors(connections_max: u64, cores: usize) -> Result<(), Failure> {
    let wanted = connections_max.saturating_add(descriptors_reserved(cores));
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    if let Some(most) = limit.maximum.filter(|most| *most < wanted) {
        let raised = Rlimit { current: Some(wanted), maximum: Some(wanted) };
        if setrlimit(Resource::Nofile, raised).is_ok() {
            return Ok(());
        }
        return Err(Failure::usage(format!(
            "{connections_max} connections need {wanted} open files and the system permits {most}; have fewer, or raise the limit (ulimit -n)"
        )));
    }
    let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised)
        .map_err(|source| Failure::io("raise the limit of open files", &source.into()))
}
