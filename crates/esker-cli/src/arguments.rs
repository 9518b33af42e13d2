//! The command line.

use crate::failure::Failure;
use clap::parser::ValueSource;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

/// Key-value storage for fast non-volatile storage.
#[derive(Debug, Parser)]
#[command(name = "esker", version, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Arguments {
    /// The command line, which ends the process where `clap` says so.
    ///
    /// # Errors
    /// What would be taken and then have no effect.
    pub(crate) fn read() -> Result<Arguments, Failure> {
        let matches = Arguments::command().get_matches();
        if let Some((_, command)) = matches.subcommand()
            && command.try_contains_id("urls").is_ok_and(|is_there| is_there)
        {
            // From the environment they are there for whichever command asks.
            let is_given = |name: &&str| {
                command.try_contains_id(name).is_ok()
                    && command.value_source(name) == Some(ValueSource::CommandLine)
            };
            let of_a_store = ["paths", "size", "engine", "pmem_emulate"];
            if let Some(name) = of_a_store.into_iter().find(is_given) {
                let name = if name == "paths" { "data".into() } else { name.replace('_', "-") };
                let words = format!(
                    "--{name} is of a store that is opened here, and servers have theirs: not with --server"
                );
                return Err(Failure::usage(words));
            }
        }
        Ok(Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()))
    }
}

/// Where the store is.
#[derive(Clone, Debug, Args)]
pub(crate) struct Data {
    /// Folder or device with the data; repeated for a store that is striped over several
    #[arg(long = "data", value_name = "PATH", env = "ESKER_DATA", default_value = crate::config::DEFAULT_DATA)]
    pub(crate) paths: Vec<PathBuf>,
}

/// Servers to ask instead of opening a store.
#[derive(Clone, Debug, Args)]
pub(crate) struct Servers {
    /// Ask the server at native://HOST:PORT or native+unix:///PATH or shm:///PATH, not --data; repeatable: keys are spread over all
    #[arg(long = "server", value_name = "URL")]
    pub(crate) urls: Vec<String>,
    /// File with a line user:password, for servers that ask
    #[arg(long, value_name = "FILE", requires = "urls")]
    pub(crate) auth_file: Option<PathBuf>,
    /// Certificates in PEM that the servers' are trusted by: TCP connections are encrypted
    #[arg(long, value_name = "FILE", requires = "urls")]
    pub(crate) tls_ca: Option<PathBuf>,
}

/// What a store is that does not exist yet.
#[derive(Clone, Debug, Args)]
pub(crate) struct New {
    /// Capacity of a new store; an existing one keeps its own, a raw device is used whole
    #[arg(long, value_name = "BYTES", env = "ESKER_SIZE")]
    pub(crate) size: Option<String>,
    /// Engine of a new store: depot, flat:cceh, flat:masstree, flex; an existing one has to be of it
    #[arg(long, value_name = "NAME", env = "ESKER_ENGINE")]
    pub(crate) engine: Option<String>,
    #[command(flatten)]
    pub(crate) memory: Memory,
}

/// Where a new store of `flat` may lie.
#[derive(Clone, Debug, Args)]
pub(crate) struct Memory {
    /// A new store of engine flat may lie in memory that a power cut empties, such as a file on tmpfs
    #[arg(long, env = "ESKER_PMEM_EMULATE")]
    pub(crate) pmem_emulate: bool,
}

/// Which items a scan shows, and how.
#[derive(Clone, Debug, Args)]
pub(crate) struct Shown {
    /// Only keys that begin with this
    #[arg(long)]
    pub(crate) prefix: Option<OsString>,
    /// Only this key and those behind it, if the engine keeps an order
    #[arg(long, value_name = "KEY")]
    pub(crate) from: Option<OsString>,
    /// Only keys before this one, if the engine keeps an order
    #[arg(long, value_name = "KEY")]
    pub(crate) to: Option<OsString>,
    /// From the last key to the first one, if the engine keeps an order
    #[arg(long)]
    pub(crate) reverse: bool,
    /// At most so many keys
    #[arg(long, value_name = "COUNT")]
    pub(crate) limit: Option<usize>,
    /// Each key with its value, a tab between them
    #[arg(long)]
    pub(crate) values: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve the data over the network until SIGTERM, SIGINT or SIGUSR1; a SIGINT behind one of them ends it at once
    Serve(Box<ServeArguments>),
    /// Serve as memcached does, with memcached's own options: esker memcached -h
    #[command(disable_help_flag = true)]
    Memcached {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Write the value of KEY to standard output; exit code 1 if it has none
    Get {
        #[command(flatten)]
        data: Data,
        #[command(flatten)]
        servers: Servers,
        key: OsString,
    },
    /// Store VALUE, or standard input, under KEY
    Put {
        #[command(flatten)]
        data: Data,
        #[command(flatten)]
        servers: Servers,
        #[command(flatten)]
        new: New,
        key: OsString,
        value: Option<OsString>,
    },
    /// Delete KEY; exit code 1 if it has no value
    Delete {
        #[command(flatten)]
        data: Data,
        #[command(flatten)]
        servers: Servers,
        key: OsString,
    },
    /// Write all keys to standard output, one a line: in order, if the engine keeps one
    Scan {
        #[command(flatten)]
        data: Data,
        #[command(flatten)]
        shown: Shown,
    },
    /// Show figures of the store
    Stat {
        #[command(flatten)]
        data: Data,
        #[command(flatten)]
        servers: Servers,
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Verify everything on media, and change nothing; exit code 1 if something is wrong. No server may have the store open
    Check {
        #[command(flatten)]
        data: Data,
        /// First move what can be read away from damage, and forget what cannot
        #[arg(long)]
        repair: bool,
        /// First only say what a repair would do, also with --repair
        #[arg(long)]
        dry_run: bool,
    },
    /// Move live records together, so that as much space as possible is free. No server may have the store open: one that runs
    /// cleans by itself
    Compact {
        #[command(flatten)]
        data: Data,
        /// Give the free space back to the file system or device; a store of flat keeps its memory
        #[arg(long)]
        trim: bool,
    },
    /// Copy the store to the folder DIR or the file FILE.tar, while no server has it open; or have each --server copy its own while it
    /// serves, to the folder that it has for that (serve --backups). What an earlier backup in a folder has is not copied again; a file
    /// has all of it
    Backup {
        #[command(flatten)]
        data: Data,
        #[command(flatten)]
        servers: Servers,
        /// Folder, or file whose name ends in .tar, for the copy; none with --server
        #[arg(value_name = "TARGET")]
        target: Option<PathBuf>,
    },
    /// Make a store from the backup in the folder or file SOURCE, where there is none
    Restore {
        #[command(flatten)]
        data: Data,
        /// Capacity of the new store; as large as the old one if missing
        #[arg(long, value_name = "BYTES", env = "ESKER_SIZE")]
        size: Option<String>,
        #[command(flatten)]
        memory: Memory,
        #[arg(value_name = "SOURCE")]
        source: PathBuf,
    },
    /// Write all items to FILE, or standard output (also as -), as JSON lines
    #[command(after_help = crate::dump::FORMAT_HELP)]
    Dump {
        #[command(flatten)]
        data: Data,
        /// Go on behind what is damaged: it is told on standard error and counted, and the exit code is 1
        #[arg(long)]
        skip_damaged: bool,
        file: Option<PathBuf>,
    },
    /// Store all items of a dump from FILE, or standard input (also as -)
    #[command(after_help = crate::dump::FORMAT_HELP)]
    Load {
        #[command(flatten)]
        data: Data,
        #[command(flatten)]
        new: New,
        file: Option<PathBuf>,
    },
    /// Measure: workloads on engines and peers, limits of the machine, load on servers
    Bench {
        #[command(subcommand)]
        command: crate::bench::Bench,
    },
}

/// Options of `serve`. Each is also a key of the configuration file and, as `ESKER_...`, an
/// environment variable. All are text here; `config` gives them meaning.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ServeArguments {
    /// Where to listen: memcache://HOST:PORT, native://HOST:PORT, unix:///PATH, native+unix:///PATH, shm:///PATH; repeatable
    #[arg(long, value_name = "URL", env = "ESKER_LISTEN", value_delimiter = ',')]
    pub(crate) listen: Vec<String>,
    /// Permit addresses that other machines can reach
    #[arg(long, env = "ESKER_ALLOW_REMOTE", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) allow_remote: Option<String>,
    /// Certificate chain in PEM: TCP connections are encrypted
    #[arg(long, value_name = "FILE", env = "ESKER_TLS_CERT")]
    pub(crate) tls_cert: Option<String>,
    /// Private key of the certificate in PEM; may stand in the same file
    #[arg(long, value_name = "FILE", env = "ESKER_TLS_KEY")]
    pub(crate) tls_key: Option<String>,
    /// File with lines of user:password; clients have to say who they are
    #[arg(long, value_name = "FILE", env = "ESKER_AUTH_FILE")]
    pub(crate) auth_file: Option<String>,
    /// Folder or device with the data, created if missing; repeatable: the store is striped over all
    #[arg(long, value_name = "PATH", env = "ESKER_DATA")]
    pub(crate) data: Vec<String>,
    /// Folder to which clients may have the store backed up while it is served (esker backup --server), made when it is first needed; not given: they may not
    #[arg(long, value_name = "DIR", env = "ESKER_BACKUPS")]
    pub(crate) backups: Option<String>,
    /// Storage engine: depot, flat:cceh, flat:masstree, flex, or auto: the one that is there, else depot
    #[arg(long, value_name = "NAME", env = "ESKER_ENGINE")]
    pub(crate) engine: Option<String>,
    /// Engine flat takes memory that a power cut empties, such as a file on tmpfs
    #[arg(long, env = "ESKER_PMEM_EMULATE", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) pmem_emulate: Option<String>,
    /// How engine flat makes entries of many writers durable together: none, vertical, naive-horizontal, pipelined-horizontal
    #[arg(long, value_name = "MODEL", env = "ESKER_BATCHING")]
    pub(crate) batching: Option<String>,
    /// Cores of engine flat that share batches, and a cleaner; 0: those of a socket
    #[arg(long, value_name = "COUNT", env = "ESKER_BATCHING_GROUP")]
    pub(crate) batching_group: Option<String>,
    /// Capacity of a new store; an existing one keeps its own, a raw device is used whole
    #[arg(long, value_name = "BYTES", env = "ESKER_SIZE")]
    pub(crate) size: Option<String>,
    /// Make the store on a raw device that holds something else, which is lost; a store that is there is opened. Refused while the device is mounted or in use as swap
    #[arg(long)]
    pub(crate) format: bool,
    /// A new store is a cache: when it is full it evicts
    #[arg(long, env = "ESKER_CACHE", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) cache: Option<String>,
    /// DRAM for records that were read, for devices that are slow to read; 0: none
    #[arg(long, value_name = "BYTES", env = "ESKER_RECORD_CACHE")]
    pub(crate) record_cache: Option<String>,
    /// DRAM of engine flex for what was read, and for its tables while little is; 0: none
    #[arg(long, value_name = "BYTES", env = "ESKER_FLEX_CACHE")]
    pub(crate) flex_cache: Option<String>,
    /// DRAM of each of the two tables of writes of engine flex, at most a 64th of the capacity; with a cache they grow to twice as much
    #[arg(long, value_name = "BYTES", env = "ESKER_FLEX_MEMTABLE")]
    pub(crate) flex_memtable: Option<String>,
    /// Bytes a second that engine flex reads and verifies while it has nothing else to do; 0: none
    #[arg(long, value_name = "BYTES", env = "ESKER_FLEX_SCRUB")]
    pub(crate) flex_scrub: Option<String>,
    /// While nobody writes, engine depot gives free space back to the file system or device, and cleans for that
    #[arg(long, env = "ESKER_TRIM_IDLE", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) trim_idle: Option<String>,
    /// What an acknowledgement promises: sync, periodic, periodic:500ms, none
    #[arg(long, value_name = "MODE", env = "ESKER_DURABILITY")]
    pub(crate) durability: Option<String>,
    /// Scheduler threads; 0: one for each processor
    #[arg(long, value_name = "COUNT", env = "ESKER_CORES")]
    pub(crate) cores: Option<String>,
    /// An idle core polls for so long before it blocks, such as 50us: for processors that nobody else needs
    #[arg(long, value_name = "TIME", env = "ESKER_SPIN")]
    pub(crate) spin: Option<String>,
    /// I/O facilities in the order in which they are tried: uring, aio, sync, inline (for disks that are memory); auto: by the device
    #[arg(long, value_name = "LIST", env = "ESKER_IO")]
    pub(crate) io: Option<String>,
    /// Connections at the same time
    #[arg(long, value_name = "COUNT", env = "ESKER_CONNECTIONS_MAX")]
    pub(crate) connections_max: Option<String>,
    /// Longest value
    #[arg(long, value_name = "BYTES", env = "ESKER_ITEM_SIZE_MAX")]
    pub(crate) item_size_max: Option<String>,
    /// Memory for buffers and values in flight of all connections; a quarter of it at most is for clients in shared memory
    #[arg(long, value_name = "BYTES", env = "ESKER_MEMORY_MAX")]
    pub(crate) memory_max: Option<String>,
    /// Close a connection that is silent for so long; 0: never
    #[arg(long, value_name = "TIME", env = "ESKER_IDLE_TIMEOUT")]
    pub(crate) idle_timeout: Option<String>,
    /// Close a connection whose request or reply makes no progress for so long; 0: only after 10s, and while memory is short
    #[arg(long, value_name = "TIME", env = "ESKER_REQUEST_TIMEOUT")]
    pub(crate) request_timeout: Option<String>,
    /// TOML file with the same names; the environment goes before it, and the command line before both
    #[arg(long, value_name = "FILE", env = "ESKER_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Only say whether the configuration is valid
    #[arg(long)]
    pub(crate) check_config: bool,
    /// Only print the defaults, as a configuration file
    #[arg(long)]
    pub(crate) print_defaults: bool,
}

impl ServeArguments {
    /// What was given, by name.
    pub(crate) fn given(&self) -> Vec<(&'static str, Vec<String>)> {
        let one = |text: &Option<String>| text.iter().cloned().collect::<Vec<_>>();
        let all = [
            ("listen", self.listen.clone()),
            ("allow-remote", one(&self.allow_remote)),
            ("tls-cert", one(&self.tls_cert)),
            ("tls-key", one(&self.tls_key)),
            ("auth-file", one(&self.auth_file)),
            ("data", self.data.clone()),
            ("backups", one(&self.backups)),
            ("engine", one(&self.engine)),
            ("pmem-emulate", one(&self.pmem_emulate)),
            ("batching", one(&self.batching)),
            ("batching-group", one(&self.batching_group)),
            ("size", one(&self.size)),
            ("cache", one(&self.cache)),
            ("record-cache", one(&self.record_cache)),
            ("flex-cache", one(&self.flex_cache)),
            ("flex-memtable", one(&self.flex_memtable)),
            ("flex-scrub", one(&self.flex_scrub)),
            ("trim-idle", one(&self.trim_idle)),
            ("durability", one(&self.durability)),
            ("cores", one(&self.cores)),
            ("spin", one(&self.spin)),
            ("io", one(&self.io)),
            ("connections-max", one(&self.connections_max)),
            ("item-size-max", one(&self.item_size_max)),
            ("memory-max", one(&self.memory_max)),
            ("idle-timeout", one(&self.idle_timeout)),
            ("request-timeout", one(&self.request_timeout)),
        ];
        all.into_iter().filter(|(_, values)| !values.is_empty()).collect()
    }
}
