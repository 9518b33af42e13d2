//! The servers that are measured: Esker in this process or in one of its own, and memcached.

use crate::{Arguments, Failure};
use esker::{Durability, Options, Store};
use esker_server::{ListenAddress, Server, ServerConfig};
use esker_trt::{Config, Runtime};
use std::fs;
use std::io::{BufRead, BufReader, Read, stdin};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// What the process of a server says before its address.
const LISTENING: &str = "listening on ";
/// Processor time in `/proc` counts these a second.
const TICKS: f64 = 100.0;

/// A server of this process.
pub(crate) struct Esker {
    server: Server,
    pub(crate) store: Store,
    runtime: Arc<Runtime>,
    pub(crate) address: SocketAddr,
}

impl Esker {
    pub(crate) fn start(
        arguments: &Arguments,
        place: &Path,
        durability: Durability,
    ) -> Result<Esker, Failure> {
        let device = fs::metadata(place).is_ok_and(|found| found.file_type().is_block_device());
        let path = if device { place.to_owned() } else { place.join(durability.to_string()) };
        let mut options = Options::new(path);
        options.size_bytes = arguments.size;
        options.format = true;
        options.durability = durability;
        let store = Store::open(&options)?;
        let facilities = arguments.io.map_or_else(|| store.facilities(), |io| vec![io]);
        let spin = Duration::from_micros(arguments.spin);
        let config = Config { cores: arguments.cores, facilities, spin, ..Config::default() };
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

    pub(crate) fn stop(self) -> Result<(), Failure> {
        self.server.stop(Duration::from_secs(5));
        self.runtime.shutdown()?;
        Ok(self.store.close()?)
    }

    /// Serves until standard input ends.
    pub(crate) fn serve(self) -> Result<(), Failure> {
        println!("{}\n{}", self.store.report(), self.runtime.report());
        println!("{LISTENING}{}", self.address);
        stdin().read_to_end(&mut Vec::new())?;
        self.stop()
    }
}

/// A server of a process of its own, which ends with the value.
pub(crate) struct EskerProcess {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl EskerProcess {
    /// This program, asked to serve.
    pub(crate) fn start(arguments: &Arguments, place: &Path) -> Result<EskerProcess, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--serve", "--cores", &arguments.cores.to_string()]);
        command.args(["--spin", &arguments.spin.to_string()]);
        command.args(["--size", &arguments.size.to_string(), "--data"]).arg(place);
        if let Some(io) = arguments.io {
            command.args(["--io", &io.to_string()]);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
        let address = loop {
            let line = lines.next().ok_or("the server ended")??;
            match line.strip_prefix(LISTENING) {
                Some(address) => break address.parse()?,
                None => println!("{line}"),
            }
        };
        Ok(EskerProcess { child, address })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for EskerProcess {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// memcached on a port of its own; ends with the value.
pub(crate) struct Memcached {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Memcached {
    /// `None` if it is not installed. With `extstore`, items go to that file when memory is full.
    pub(crate) fn start(cores: usize, mib: u64, extstore: Option<&Path>) -> Option<Memcached> {
        let address = TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?;
        let mut command = Command::new("memcached");
        command
            .args(["-l", "127.0.0.1", "-u", "root", "-c", "4096", "-m", &mib.to_string()])
            .args(["-p", &address.port().to_string(), "-t", &cores.to_string()]);
        if let Some(file) = extstore {
            command.arg("-o").arg(format!("ext_path={}:4G,ext_item_age=0", file.display()));
        }
        let child = command.stdin(Stdio::null()).spawn().ok()?;
        let memcached = Memcached { child, address };
        for _ in 0..100 {
            if TcpStream::connect(address).is_ok() {
                return Some(memcached);
            }
            esker_trt::sleep(Duration::from_millis(20));
        }
        None
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processor time that a process has used, its ended threads included.
pub(crate) fn processor_seconds(process: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name in parentheses may have blanks; user and system time are the 12th and 13th field behind it.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    fields.filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / TICKS
}
