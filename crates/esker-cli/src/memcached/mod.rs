//! `esker memcached`: a server that is started as memcached is.
//!
//! It takes memcached's own options, so that a unit or script that starts memcached starts Esker.
//! The data lie on storage: at `-e FILE` or `-o data=PATH`, else in the folder `memcached-PORT` of
//! the folder that the service manager gives (`STATE_DIRECTORY`), else in
//! `/var/tmp/esker-memcached-UID-PORT`. The port is that of the first address, with its host before it if that is neither this one nor
//! all of them. A server at a socket has the socket's whole path in place of the port; the data of
//! one at any port (`-p -1`) nobody would find again, so its folder is gone as soon as it is open. Nothing is promised to survive a
//! crash of the system (durability `none`): it is a cache.

mod addresses;
mod options;
mod plan;
mod process;

use crate::failure::{Done, Failure};
use crate::output::output_failed;
use crate::service::{AskedOfNew, Secrets, Service, raise_descriptors, say};
use crate::store::raw_device;
use esker::{Durability, Options};
use esker_server::{ServerConfig, ShutdownHook};
use plan::Plan;
use rustix::fs::Mode;
use rustix::process::geteuid;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Folder for the data of those who name none.
const SHARED_FOLDER: &str = "/var/tmp";

const HELP: &str = "\
usage: esker memcached [OPTIONS]

-p, --port=<num>          TCP port to listen on (default: 11211; -1: any
                          that is free)
-s, --unix-socket=<file>  socket file to listen on, instead of TCP
-a, --unix-mask=<mask>    permissions of the socket file, in octal (default: 700)
-l, --listen=<addr,...>   addresses and names to listen on (default: 127.0.0.1;
                          all: '*'); notls:<addr> without TLS
-A, --enable-shutdown     permit the command \"shutdown\"
-d, --daemon              run in the background, in the folder /
-P, --pidfile=<file>      write the process id to <file>
-u, --user=<user>         run as <user>; root has to say as whom
-m, --memory-limit=<num>  size of a new store in MiB, or with k, m, g (default: 64)
-M, --disable-evictions   refuse new items when the store is full, instead of dropping old ones
-c, --conn-limit=<num>    connections at the same time (default: 1024)
-t, --threads=<num>       scheduler threads (default: 4)
-I, --max-item-size=<num> longest value, with k or m (default: 1m)
-F, --disable-flush-all   refuse the command \"flush_all\"
-X, --disable-dumping     refuse lists of items
-W, --disable-watch       refuse the command \"watch\"
-D, --delimiter=<char>    what ends the prefix of a key (default: a colon), by which
                          \"stats detail\" counts; if given, from the start
-Y, --auth-file=<file>    clients say who they are; lines of user:password
-Z, --enable-ssl          TLS, with -o ssl_chain_cert=<file>[,ssl_key=<file>]
-e, --memory-file=<file>  where the data lie: folder or device
-o, --extended=<list>     data=<path>, idle_timeout=<seconds>, ssl_...,
                          request_timeout=<seconds>: for a request that came
                          in part, and a reply that is not taken (default: 0,
                          none while there is memory),
                          format: a raw device may hold what is no store
-v, -vv, -vvv             say more
-V, --version   -h, --help   -i, --license

Accepted without effect: -b -C -f -k -L -n -N -R -r -U 0, and memcached's other -o.
Not supported: -B binary, -S, UDP.
";

/// `esker memcached`.
pub(crate) fn memcached(words: &[OsString]) -> Result<Done, Failure> {
    let words: Vec<String> = words.iter().map(read_word).collect::<Result<_, _>>()?;
    let given = options::read(&words)?;
    for (letter, _) in &given {
        match letter {
            'h' => return print(HELP),
            'V' => return print(&format!("memcached {}\n", esker_server::VERSION)),
            'i' => return print("Esker is licensed under MIT or Apache-2.0, as you choose.\n"),
            _ => {}
        }
    }
    let plan = Plan::of(&given)?;
    if plan.daemon && !process::in_background() {
        return process::start_in_background();
    }
    for note in &plan.notes {
        say(note);
    }
    let mut everywhere = plan.listen.iter().chain(&plan.listen_plain);
    if everywhere.any(|address| !address.is_local()) && plan.auth_file.is_none() {
        say(
            "warning: other machines can reach this server and need no password; -l 127.0.0.1 or -Y FILE changes that",
        );
    }
    if plan.daemon {
        process::leave_session()?;
    }
    run(plan)
}

/// For fuzz targets: what a command line comes to, as far as nobody is asked for addresses.
#[cfg(any(test, fuzzing))]
pub(crate) fn read_line(words: &[String]) {
    let Ok(mut given) = options::read(words) else { return };
    for (letter, text) in &given {
        if *letter == 'l' {
            text.split([',', ';']).for_each(|name| drop(addresses::read(name, 1)));
        }
    }
    given.retain(|(letter, _)| *letter != 'l');
    if let Ok(mut plan) = Plan::of(&given) {
        assert!(plan.limits.check(plan.tls.is_some()).is_ok() && !plan.listen.is_empty());
        // Both fail for an empty path.
        let place = plan.place().ok().flatten();
        assert!(place.is_none_or(|name| !name.contains('/')), "it is the name of one folder");
        let _ = plan.make_absolute();
    }
}

/// A word of the command line as text. Of another one nobody knows where the path ends that it may have in it.
fn read_word(word: &OsString) -> Result<String, Failure> {
    word.to_str().map(str::to_owned).ok_or_else(|| {
        Failure::usage(format!(
            "memcached: {} is not UTF-8",
            word.as_encoded_bytes().escape_ascii()
        ))
    })
}

fn print(text: &str) -> Result<Done, Failure> {
    let printed = std::io::stdout().write_all(text.as_bytes());
    printed.map(|()| Done::Yes).map_err(output_failed)
}

fn run(mut plan: Plan) -> Result<Done, Failure> {
    let place = plan.place()?;
    let ports = process::PortsFile::named()?;
    if plan.daemon {
        // Nobody's folder is held by what runs in the background.
        plan.make_absolute()?;
        std::env::set_current_dir("/").map_err(|source| Failure::io("/", &source))?;
    }
    let is_passing = plan.data.is_none() && place.is_none();
    // What only root may read is read before.
    let secrets = Secrets::read(plan.auth_file, plan.tls)?;
    let mut pid_file = plan.pid_file.as_deref().map(process::PidFile::open).transpose()?;
    // Only root may go beyond what the system permits others.
    raise_descriptors(u64::from(plan.limits.connections_max), plan.cores)?;
    process::become_user(plan.user.as_deref())?;
    let data = match &plan.data {
        Some(path) => path.clone(),
        None => default_data(place)?,
    };
    let passing = is_passing.then(|| Passing(data.clone()));
    let mut store = Options::new(&data);
    if plan.format {
        raw_device(std::slice::from_ref(&data))?;
        store.format_foreign = true;
    }
    store.size_bytes = plan.size_bytes;
    store.durability = Durability::None;
    store.cache = plan.evict;
    let on_shutdown = plan.shutdown.then(|| {
        ShutdownHook::new(|| {
            // Not SIGINT, which would end the process amid a clean stop that another signal began.
            if let Err(error) = signal_hook::low_level::raise(signal_hook::consts::SIGUSR1) {
                tracing::warn!("shutdown failed: {error}");
            }
        })
    });
    let server = ServerConfig {
        listen: plan.listen,
        listen_plain: plan.listen_plain,
        allow_remote: true,
        unix_mode: plan.unix_mode,
        limits: plan.limits,
        tls: secrets.tls(),
        auth: secrets.auth(),
        on_shutdown,
        flush_enabled: plan.flush,
        dump_enabled: plan.dump,
        watch_enabled: plan.watch,
        prefix_delimiter: plan.delimiter,
        ..ServerConfig::default()
    };
    let log = match plan.verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let service = Service {
        store,
        server,
        cores: plan.cores,
        spin: Duration::ZERO,
        io: Vec::new(),
        log,
        secrets,
        asked: AskedOfNew {
            size: plan.size_given.map(|size| format!("-m {size}")),
            no_cache: (!plan.evict).then(|| "-M".to_owned()),
        },
    };
    let daemon = plan.daemon;
    service.run(
        |addresses| {
            drop(passing);
            if let Some(ports) = ports {
                ports.write(addresses)?;
            }
            pid_file.as_mut().map_or(Ok(()), process::PidFile::write)
        },
        || if daemon { process::fall_silent() } else { Ok(()) },
    )
}

/// A folder that nobody would find again: it is gone as soon as its files are open, which live on, or as nothing comes of it.
struct Passing(PathBuf);

impl Drop for Passing {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            say(&format!("{} stays: {error}", self.0.display()));
        }
    }
}

/// Where the data of the server at a `place` lie if nobody says; `None`: at any port.
fn default_data(place: Option<String>) -> Result<PathBuf, Failure> {
    let name = place.unwrap_or_else(|| format!("any-{}", std::process::id()));
    if let Some(folder) = std::env::var_os("STATE_DIRECTORY") {
        // The first of several.
        let folder = folder.to_string_lossy().split(':').next().unwrap_or_default().to_owned();
        return Ok(Path::new(&folder).join(format!("memcached-{name}")));
    }
    let user = geteuid();
    let path = Path::new(SHARED_FOLDER).join(format!("esker-memcached-{}-{name}", user.as_raw()));
    let failed = |source: rustix::io::Errno| Failure::io(path.display(), &source.into());
    match rustix::fs::mkdir(&path, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(failed(error)),
    }
    // Anybody may make names there: only a folder of our own will do.
    let found = rustix::fs::lstat(&path).map_err(failed)?;
    let is_folder =
        rustix::fs::FileType::from_raw_mode(found.st_mode) == rustix::fs::FileType::Directory;
    if !is_folder || found.st_uid != user.as_raw() {
        return Err(Failure::usage(format!(
            "{} belongs to somebody else; say where the data lie with -o data=PATH",
            path.display()
        )));
    }
    Ok(path)
}
