//! A server of its own for each test, and a client that speaks bytes.

use esker::{Durability, EngineKind, Options, Store};
use esker_base::clock::ManualClock;
use esker_media::BlockDevice;
use esker_media::sim::SimBlock;
use esker_server::{Limits, Server, ServerConfig, SteadyClock};
use esker_trt::{Config, Runtime};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// Longer than anything in these tests takes; a test that waits so long has failed.
const PATIENCE: Duration = Duration::from_secs(30);
/// What a client asks for to learn that everything before is answered.
const MARK: &[u8] = b"set ~mark~ 0 0 6\r\n~done~\r\nget ~mark~\r\n";
const MARK_REPLY: &[u8] = b"STORED\r\nVALUE ~mark~ 0 6\r\n~done~\r\nEND\r\n";

/// A server, and its store, count by `clock`.
pub(crate) fn set_clock(config: &mut ServerConfig, clock: &Arc<ManualClock>) {
    config.clock = Arc::new(SteadyClock::new(clock.clone()));
}

pub(crate) struct TestServer {
    pub(crate) server: Server,
    pub(crate) store: Store,
    pub(crate) runtime: Arc<Runtime>,
    _folder: TempDir,
}

impl TestServer {
    pub(crate) fn start() -> TestServer {
        TestServer::with(|_| {})
    }

    pub(crate) fn with_limits(limits: Limits) -> TestServer {
        TestServer::with(|config| config.limits = limits)
    }

    pub(crate) fn with(change: impl FnOnce(&mut ServerConfig)) -> TestServer {
        TestServer::with_durability(Durability::None, change)
    }

    pub(crate) fn with_durability(
        durability: Durability,
        change: impl FnOnce(&mut ServerConfig),
    ) -> TestServer {
        TestServer::on_cores(2, durability, change)
    }

    pub(crate) fn on_cores(
        cores: usize,
        durability: Durability,
        change: impl FnOnce(&mut ServerConfig),
    ) -> TestServer {
        TestServer::opened(cores, change, |options| options.durability = durability)
    }

    /// A server of a cache.
    pub(crate) fn of_cache(change: impl FnOnce(&mut ServerConfig)) -> TestServer {
        TestServer::opened(2, change, |options| {
            (options.cache, options.durability) = (true, Durability::None);
        })
    }

    /// A server of a store that has a clock of its own.
    pub(crate) fn of_store_with_clock(
        clock: &Arc<ManualClock>,
        change: impl FnOnce(&mut ServerConfig),
    ) -> TestServer {
        TestServer::opened(2, change, |options| {
            (options.clock, options.durability) = (clock.clone(), Durability::None);
        })
    }

    /// A server of a store of `engine`.
    pub(crate) fn on_engine(
        engine: EngineKind,
        change: impl FnOnce(&mut ServerConfig),
    ) -> TestServer {
        TestServer::opened(2, change, |options| {
            options.engine = Some(engine);
            options.pmem_emulate = true;
        })
    }

    fn opened(
        cores: usize,
        change: impl FnOnce(&mut ServerConfig),
        open: impl FnOnce(&mut Options),
    ) -> TestServer {
        let folder = tempfile::tempdir().expect("scratch folder");
        let runtime = Runtime::start(Config { cores, ..Config::default() }).expect("run-time");
        let runtime = Arc::new(runtime);
        let any = "memcache://127.0.0.1:0".parse().expect("address");
        let mut config = ServerConfig { listen: vec![any], ..ServerConfig::default() };
        change(&mut config);
        let mut options = Options::new(folder.path().join("data"));
        options.size_bytes = 256 << 20;
        options.clock = config.clock.clone();
        open(&mut options);
        let store = Store::open(&options).expect("store");
        TestServer::of(runtime, store, config, folder)
    }

    /// A server of the store on a simulated device, which acknowledges what is durable.
    pub(crate) fn on_device(device: &Arc<SimBlock>, limits: Limits) -> TestServer {
        TestServer::at_on_device("memcache://127.0.0.1:0", device.clone(), limits, false)
    }

    /// A server of a cache on a simulated device.
    pub(crate) fn of_cache_on_device(device: Arc<dyn BlockDevice>) -> TestServer {
        TestServer::at_on_device("memcache://127.0.0.1:0", device, Limits::default(), true)
    }

    /// The same, with the native protocol.
    pub(crate) fn native_on_device(device: &Arc<SimBlock>, limits: Limits) -> TestServer {
        TestServer::at_on_device("native://127.0.0.1:0", device.clone(), limits, false)
    }

    fn at_on_device(
        address: &str,
        device: Arc<dyn BlockDevice>,
        limits: Limits,
        cache: bool,
    ) -> TestServer {
        let runtime = Runtime::start(Config { cores: 2, ..Config::default() }).expect("run-time");
        let any = address.parse().expect("address");
        let config = ServerConfig { listen: vec![any], limits, ..ServerConfig::default() };
        let store = open_on(device, cache).expect("store");
        let folder = tempfile::tempdir().expect("scratch folder");
        TestServer::of(Arc::new(runtime), store, config, folder)
    }

    fn of(
        runtime: Arc<Runtime>,
        store: Store,
        config: ServerConfig,
        folder: TempDir,
    ) -> TestServer {
        let server = Server::start(&runtime, store.clone(), config).expect("server");
        TestServer { server, store, runtime, _folder: folder }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.addresses()[0].tcp().expect("the first listener is TCP")
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address())
    }
}

/// Opens a store of small segments on a simulated device.
fn open_on(device: Arc<dyn BlockDevice>, cache: bool) -> esker::Result<Store> {
    let mut options = Options::new("");
    options.cache = cache;
    options.testing.seed = Some(1);
    options.testing.segment_size_bytes = Some(256 << 10);
    options.testing.background = false;
    Store::open_on(device, &options)
}

pub(crate) struct Client(pub(crate) TcpStream);

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).expect("connect");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        stream.set_nodelay(true).expect("nodelay");
        Client(stream)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        // A server that closes early makes this fail; what it said is in the replies.
        let _ = self.0.write_all(bytes);
    }

    /// Receives exactly `expected`.
    #[track_caller]
    pub(crate) fn check_receive(&mut self, expected: &[u8]) {
        let mut seen = Vec::new();
        let mut byte = [0; 4096];
        while seen.len() < expected.len() {
            let most = (expected.len() - seen.len()).min(byte.len());
            match self.0.read(&mut byte[..most]) {
                Ok(0) => break,
                Ok(count) => seen.extend_from_slice(&byte[..count]),
                Err(error) => panic!("after {:?}: {error}", String::from_utf8_lossy(&seen)),
            }
        }
        assert_eq!(String::from_utf8_lossy(&seen), String::from_utf8_lossy(expected));
    }

    /// One line of the server, without its end.
    pub(crate) fn line(&mut self) -> String {
        let mut line = Vec::new();
        let mut byte = [0];
        while !line.ends_with(b"\r\n") {
            self.0.read_exact(&mut byte).expect("a line");
            line.extend_from_slice(&byte);
        }
        String::from_utf8_lossy(&line).trim_end().to_owned()
    }

    /// One line of a list of items, whose lines end with a line feed alone; empty at the end of the connection.
    pub(crate) fn line_of_list(&mut self) -> String {
        let mut line = Vec::new();
        let mut byte = [0];
        while !line.ends_with(b"\n") && self.0.read(&mut byte).is_ok_and(|count| count > 0) {
            line.extend_from_slice(&byte);
        }
        String::from_utf8_lossy(&line).into_owned()
    }

    /// The reply to `stats`, without changing anything.
    pub(crate) fn stats(&mut self) -> String {
        self.send(b"stats\r\n");
        let mut stats = String::new();
        loop {
            let line = self.line();
            if line == "END" {
                return stats;
            }
            stats.push_str(&line);
            stats.push_str("\r\n");
        }
    }

    /// Everything the server says to `bytes`, and whether it then closed.
    pub(crate) fn say(&mut self, bytes: &[u8]) -> (Vec<u8>, bool) {
        self.send(bytes);
        self.send(MARK);
        let mut seen = Vec::new();
        let mut block = [0; 65_536];
        loop {
            match self.0.read(&mut block) {
                Ok(0) => return (seen, true),
                Ok(count) => seen.extend_from_slice(&block[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return (seen, true),
                Err(error) => panic!("after {:?}: {error}", String::from_utf8_lossy(&seen)),
            }
            if let Some(before) = seen.strip_suffix(MARK_REPLY) {
                return (before.to_vec(), false);
            }
        }
    }

    /// Sends `bytes`; the server answers exactly `expected`, and goes on.
    #[track_caller]
    pub(crate) fn check_chat(&mut self, bytes: &[u8], expected: &str) {
        let (reply, closed) = self.say(bytes);
        assert_eq!(
            String::from_utf8_lossy(&reply),
            expected,
            "to {:?}",
            String::from_utf8_lossy(bytes)
        );
        assert!(!closed, "closed after {:?}", String::from_utf8_lossy(bytes));
    }

    /// Sends `bytes`; the server answers exactly `expected`, and closes.
    #[track_caller]
    pub(crate) fn check_last_words(&mut self, bytes: &[u8], expected: &str) {
        let (reply, closed) = self.say(bytes);
        assert_eq!(
            String::from_utf8_lossy(&reply),
            expected,
            "to {:?}",
            String::from_utf8_lossy(bytes)
        );
        assert!(closed, "still open after {:?}", String::from_utf8_lossy(bytes));
    }
}
