//! Servers for the client to talk to.

use esker::{Durability, Store};
use esker_client::{Address, Client, Options};
use esker_server::{Server, ServerConfig};
use esker_trt::{Config, Runtime};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// Longer than anything in these tests takes; a test that waits so long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A server of this process.
pub(crate) struct TestServer {
    server: Server,
    pub(crate) store: Store,
    runtime: Arc<Runtime>,
}

impl TestServer {
    /// A server at `address` with the data in `folder`.
    pub(crate) fn start(
        folder: &Path,
        address: &str,
        change: impl FnOnce(&mut ServerConfig),
    ) -> TestServer {
        let runtime = Runtime::start(Config { cores: 2, ..Config::default() }).expect("run-time");
        let runtime = Arc::new(runtime);
        let listen = vec![address.parse().expect("address")];
        let mut config = ServerConfig { listen, ..ServerConfig::default() };
        change(&mut config);
        let mut options = esker::Options::new(folder.join("data"));
        options.size_bytes = 256 << 20;
        options.durability = Durability::None;
        let store = Store::open(&options).expect("store");
        let server = Server::start(&runtime, store.clone(), config).expect("server");
        TestServer { server, store, runtime }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.addresses()[0].tcp().expect("TCP")
    }

    /// Ends it in the middle of whatever it does, without answering.
    pub(crate) fn vanish(self) {
        self.runtime.shutdown().expect("the end of all tasks");
        self.store.close().expect("close");
    }

    /// Ends it; what it acknowledged is in its folder.
    pub(crate) fn stop(self) {
        self.server.stop(PATIENCE);
        self.runtime.shutdown().expect("the end of all tasks");
        self.store.close().expect("close");
    }
}

/// A server with a folder of its own.
pub(crate) struct Alone {
    pub(crate) server: TestServer,
    pub(crate) folder: TempDir,
}

pub(crate) fn alone() -> Alone {
    alone_with(|_| {})
}

pub(crate) fn alone_with(change: impl FnOnce(&mut ServerConfig)) -> Alone {
    let folder = tempfile::tempdir().expect("scratch folder");
    let server = TestServer::start(folder.path(), "native://127.0.0.1:0", change);
    Alone { server, folder }
}

impl Alone {
    pub(crate) fn client(&self) -> Client {
        Client::new(address_of(self.server.address()), Options::default())
    }
}

pub(crate) fn address_of(address: SocketAddr) -> Address {
    format!("native://{address}").parse().expect("address")
}

/// Options of clients whose servers fail: short rests, short waits.
pub(crate) fn impatient() -> Options {
    Options {
        connect_timeout: Duration::from_secs(5),
        request_timeout: Duration::from_secs(2),
        backoff_min: Duration::from_millis(20),
        backoff_max: Duration::from_millis(100),
        ..Options::default()
    }
}
