//! A server: its listeners, and the life of its connections up to their sessions.
//!
//! One accept task for each listener, on core 0; each connection goes to the next core in turn and
//! stays there.
//!
//! # Invariants
//! - V1: at most `connections_max` sessions exist; whoever comes beyond is told so and closed.
//! - V2: after [`Server::stop`] nobody is accepted, and a session ends once everything it received
//!   is answered.
//!
//! # Failure
//! What accepting can run out of (descriptors, memory) is waited out; existing sessions go on.

use crate::auth::Credentials;
use crate::clock::SteadyClock;
use crate::counters::Counter;
use crate::guests::Stay;
use crate::limits::{Limits, RECEIVE_BYTES_MIN};
use crate::listen::{ListenAddress, Protocol};
use crate::native;
use crate::protocol::line;
use crate::session::Session;
use crate::shared::Shared;
use crate::tls::{CONNECTION_BYTES, Encrypted, Tls};
use crate::transport::{LINGER, Plain, linger};
use esker::{Error, Result, Store};
use esker_base::clock::{Clock, SystemClock};
use esker_base::ids::CoreId;
use esker_format::native::{ServerHello, Status};
use esker_trt::net::{Listener, Stream};
use esker_trt::{RemoteJoin, Runtime};
use parking_lot::Mutex;
use std::io::ErrorKind as IoErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often an accept task looks whether it should stop.
const ACCEPT_SLICE: Duration = Duration::from_millis(200);
/// How long accepting rests when the system has run out of something.
const ACCEPT_REST: Duration = Duration::from_millis(50);
/// How often a delayed `flush_all` is looked for.
const FLUSH_SLICE: Duration = Duration::from_millis(250);
/// How often [`Server::stop`] looks whether everything is answered.
const STOP_SLICE: Duration = Duration::from_millis(2);

/// Connections that are turned away gently at a time; others are closed at once.
pub const TURNED_AWAY_MAX: u32 = 64;

/// Permissions of a socket file that nothing is said about.
pub const UNIX_MODE: u32 = 0o700;

/// What a client's `shutdown` calls. It must return soon: a session waits for it.
#[derive(Clone)]
pub struct ShutdownHook(Arc<dyn Fn() + Send + Sync>);

impl ShutdownHook {
    /// A hook that runs `call`.
    pub fn new(call: impl Fn() + Send + Sync + 'static) -> Self {
        ShutdownHook(Arc::new(call))
    }

    pub(crate) fn call(&self) {
        (self.0)();
    }
}

impl std::fmt::Debug for ShutdownHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ShutdownHook")
    }
}

/// What a server is asked for.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where to listen.
    pub listen: Vec<ListenAddress>,
    /// Whether addresses that other machines can reach are permitted.
    pub allow_remote: bool,
    /// Where to listen without TLS although there is [`ServerConfig::tls`].
    pub listen_plain: Vec<ListenAddress>,
    /// Permissions of socket files.
    pub unix_mode: u32,
    /// Certificate and key: TCP connections are encrypted.
    pub tls: Option<Tls>,
    /// Who may use the server; everybody if `None`.
    pub auth: Option<Credentials>,
    /// What `shutdown` does; refused if `None`.
    pub on_shutdown: Option<ShutdownHook>,
    /// Whether `flush_all` is permitted.
    pub flush_enabled: bool,
    /// Whether clients may have all items listed: `lru_crawler metadump`, `stats cachedump`.
    pub dump_enabled: bool,
    /// Whether clients may watch what others do: `watch`.
    pub watch_enabled: bool,
    /// What ends the prefix of a key in `stats detail`, of which uses are counted from the start then. `None`: a colon, and nothing is
    /// counted until a client asks for it.
    pub prefix_delimiter: Option<u8>,
    /// The folder to which clients of the native protocol may have the store backed up, made when it is first needed; refused
    /// if `None`. Not one inside the store's own.
    pub backups: Option<PathBuf>,
    /// Limits.
    pub limits: Limits,
    /// Time. If the store has the same one, items are over when clients were told, also where the machine's clock is set back.
    pub clock: Arc<SteadyClock>,
}

impl ServerConfig {
    /// Finds out whether the server could listen now where it is to; leaves no socket file. Of a folder for one that is not there yet
    /// `will_be` says whether it is made before the server starts.
    ///
    /// # Errors
    /// As those of [`Server::start`] for an address.
    pub fn check_addresses(&self, will_be: impl Fn(&Path) -> bool) -> Result<()> {
        // Until the last one is known: two may want one port, or one file.
        let (mut held, mut files) = (Vec::new(), Vec::new());
        for address in self.listen.iter().chain(&self.listen_plain) {
            match address.socket_file() {
                None => held.push(address.bind(self.allow_remote, self.unix_mode)?),
                Some(path) if files.contains(&path) => return Err(address.in_use()),
                Some(path) => {
                    address.check_socket_file(path, &will_be)?;
                    files.push(path);
                }
            }
        }
        Ok(())
    }
}

impl Default for ServerConfig {
    fn default() -> Self {
        ServerConfig {
            listen: vec![ListenAddress::default()],
            allow_remote: false,
            listen_plain: Vec::new(),
            unix_mode: UNIX_MODE,
            tls: None,
            auth: None,
            on_shutdown: None,
            flush_enabled: true,
            dump_enabled: true,
            watch_enabled: true,
            prefix_delimiter: None,
            backups: None,
            limits: Limits::default(),
            clock: Arc::new(SteadyClock::new(Arc::new(SystemClock))),
        }
    }
}

/// A running server. Dropping it stops accepting; [`Server::stop`] also waits.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    tasks: Mutex<Vec<RemoteJoin<()>>>,
}

impl Server {
    /// Listens at every address of `config` and serves `store` on the cores of `runtime`.
    ///
    /// # Errors
    /// `InvalidArgument` for limits that cannot be kept, or an address that is not permitted; the
    /// kernel's for one that cannot be bound.
    pub fn start(runtime: &Arc<Runtime>, store: Store, config: ServerConfig) -> Result<Server> {
        config
            .limits
            .check(config.tls.is_some())
            .map_err(|words| Error::invalid("start server", words))?;
        let value_max = store.value_size_max_bytes() as u64;
        if config.limits.item_size_max_bytes > value_max {
            let words = format!("item-size-max is above what this store takes: {value_max} bytes");
            return Err(Error::invalid("start server", words));
        }
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        let plain = config.listen_plain.iter().map(|address| (address, false));
        for (address, tls) in config.listen.iter().map(|address| (address, true)).chain(plain) {
            let (fd, bound) = address.bind(config.allow_remote, config.unix_mode)?;
            let listener = Listener::from_fd(fd).map_err(|source| Error::io("listen", source))?;
            let encrypted = tls && config.tls.is_some() && bound.tcp().is_some();
            let shares_memory = matches!(bound, ListenAddress::Shared(_));
            listeners.push((listener, encrypted, bound.protocol(), shares_memory));
            addresses.push(bound);
        }
        let shared = Arc::new(Shared::new(store, config, runtime.cores(), addresses));
        let turn = Arc::new(AtomicUsize::new(0));
        let mut tasks = Vec::new();
        for (index, (listener, encrypted, protocol, shares_memory)) in
            listeners.into_iter().enumerate()
        {
            let acceptor = Acceptor {
                index,
                encrypted,
                shares_memory,
                protocol,
                shared: shared.clone(),
                runtime: Arc::downgrade(runtime),
                turn: turn.clone(),
            };
            tasks.push(runtime.spawn_on(CoreId(0), move || acceptor.run(&listener)));
        }
        let flusher = shared.clone();
        tasks.push(runtime.spawn_on(CoreId(0), move || {
            while !flusher.is_stopping() && esker_trt::sleep_cancellable(FLUSH_SLICE).is_ok() {
                flusher.flush_if_due(0);
            }
        }));
        Ok(Server { shared, tasks: Mutex::new(tasks) })
    }

    /// Where the server listens, with the ports that it really has.
    #[must_use]
    pub fn addresses(&self) -> &[ListenAddress] {
        &self.shared.addresses
    }

    /// How many clients in shared memory find room at a time, and how many bytes each takes; others are refused. Connections of
    /// another kind, which count as well, may leave room for fewer.
    #[must_use]
    pub fn shared_memory_room(&self) -> (u64, u64) {
        native::shm::room(&self.shared.limits, self.shared.cores)
    }

    /// Connections that are open.
    #[must_use]
    pub fn connections(&self) -> u32 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Stops accepting, and waits until every request that was received is answered, at most
    /// `limit`. Says whether that was so. Connections without a request stay until the run-time
    /// shuts down.
    pub fn stop(&self, limit: Duration) -> bool {
        self.shared.stop();
        let clock = SystemClock;
        let end = clock.monotonic().saturating_add(limit);
        // Both kinds of task look at the flag.
        let tasks = std::mem::take(&mut *self.tasks.lock());
        let ended = || tasks.iter().all(RemoteJoin::is_finished);
        while !ended() || self.shared.counters.busy() > 0 {
            if clock.monotonic() >= end {
                return false;
            }
            esker_trt::sleep(STOP_SLICE);
        }
        true
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

/// The place of one connection among all (V1).
struct Place(Arc<Shared>);

impl Place {
    fn take(shared: &Arc<Shared>) -> Option<Place> {
        let max = shared.limits.connections_max;
        one_more(&shared.connections, max).then(|| Place(shared.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A place among the connections that were turned away and have not hung up yet, until it is dropped.
struct Doorstep(Arc<Shared>);

impl Doorstep {
    fn take(shared: &Arc<Shared>) -> Option<Doorstep> {
        one_more(&shared.turned_away, TURNED_AWAY_MAX).then(|| Doorstep(shared.clone()))
    }
}

impl Drop for Doorstep {
    fn drop(&mut self) {
        self.0.turned_away.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Adds one to a count that is below its limit.
fn one_more(count: &AtomicU32, max: u32) -> bool {
    let more = |count: u32| (count < max).then(|| count.saturating_add(1));
    count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
}

/// Accepts connections of one listener.
struct Acceptor {
    /// Which of the server's addresses it is.
    index: usize,
    shared: Arc<Shared>,
    runtime: Weak<Runtime>,
    turn: Arc<AtomicUsize>,
    encrypted: bool,
    shares_memory: bool,
    protocol: Protocol,
}

impl Acceptor {
    fn run(&self, listener: &Listener) {
        let mut failures = 0_u32;
        while !self.shared.is_stopping() {
            listener.set_deadline(Some(ACCEPT_SLICE));
            match listener.accept() {
                Ok(_) if self.shared.is_stopping() => return,
                Ok(stream) => {
                    failures = 0;
                    self.welcome(stream);
                }
                Err(error) if error.kind() == IoErrorKind::TimedOut => {}
                Err(error) if error.kind() == IoErrorKind::ConnectionAborted => {}
                Err(error) if error.kind() == IoErrorKind::Interrupted => return,
                Err(error) => {
                    // They come in runs: what is said of one thins out.
                    failures = failures.saturating_add(1);
                    if failures.is_power_of_two() {
                        tracing::warn!(failures, "accept failed: {error}");
                    }
                    if esker_trt::sleep_cancellable(ACCEPT_REST).is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Ends a connection that was turned away. What it sends is read for a moment, for a close with bytes unread, or
    /// bytes that come behind it, take back what it was told.
    fn see_off(&self, stream: Stream) {
        if let (Some(step), Some(runtime)) = (Doorstep::take(&self.shared), self.runtime.upgrade())
        {
            let _ = runtime.spawn_on(CoreId(0), move || {
                let _step = step;
                linger(&stream, LINGER);
            });
        } else {
            let _ = stream.read(&mut [0; 4096]);
        }
    }

    /// Gives a connection to the next core, or turns it away.
    fn welcome(&self, stream: Stream) {
        let Some(place) = Place::take(&self.shared) else {
            self.shared.counters.shard(0).add(Counter::RejectedConnections, 1);
            stream.set_deadline(Some(Duration::ZERO));
            // It may be gone already.
            if self.shares_memory
                && let Ok(fd) = stream.as_fd()
            {
                let _ = esker_shm::refuse(fd, Status::TooManyConnections.number().into());
                return;
            }
            let _ = match self.protocol {
                Protocol::Memcache => stream.write(line::TOO_MANY),
                Protocol::Native => {
                    stream.write(&ServerHello::refusal(Status::TooManyConnections).encode())
                }
            };
            self.see_off(stream);
            return;
        };
        let Some(runtime) = self.runtime.upgrade() else { return };
        let core = self.turn.fetch_add(1, Ordering::Relaxed) % runtime.cores().max(1);
        let (shared, encrypted, protocol) = (self.shared.clone(), self.encrypted, self.protocol);
        let index = self.index;
        shared.counters.shard(0).add(Counter::TotalConnections, 1);
        if self.shares_memory {
            let weak = self.runtime.clone();
            let _ = runtime.spawn_on(CoreId(u16::try_from(core).unwrap_or(0)), move || {
                let Some(runtime) = weak.upgrade() else { return };
                let served = native::shm::serve(&shared, &runtime, &stream, core, place);
                // The agent does not keep the run-time that it runs in.
                drop((runtime, stream));
                match served {
                    Ok(agent) => agent.iter().for_each(|agent| agent.run()),
                    Err(error) => tracing::debug!("no memory was shared: {error}"),
                }
            });
            return;
        }
        // Nobody joins a session: it ends with its connection, and a panic ends only it.
        let _ = runtime.spawn_on(CoreId(u16::try_from(core).unwrap_or(0)), move || {
            let _place = place;
            let limit = shared.limits.wait_timeout();
            let Some(share) = shared.budget.take(RECEIVE_BYTES_MIN as u64, limit) else { return };
            let stay = (protocol == Protocol::Memcache).then(|| {
                // One that is gone already has no address.
                Stay::begin(&shared, stream.peer().ok().flatten(), index)
            });
            let socket = Plain::new(stream);
            if !encrypted {
                return match protocol {
                    Protocol::Memcache => Session::new(shared, core, socket, share).of(stay).run(),
                    Protocol::Native => native::Session::new(shared, core, socket, share).run(),
                };
            }
            let more = shared.budget.take(CONNECTION_BYTES, limit);
            let (Some(tls), Some(more)) = (&shared.tls, more) else { return };
            match Encrypted::accept(socket, tls, more, limit) {
                Ok(connection) => match protocol {
                    Protocol::Memcache => {
                        Session::new(shared, core, connection, share).of(stay).run();
                    }
                    Protocol::Native => {
                        let duplex = native::Encrypted::new(connection);
                        native::Session::new(shared, core, duplex, share).run();
                    }
                },
                Err(error) => {
                    shared.counters.shard(core).add(Counter::TlsHandshakeErrors, 1);
                    tracing::debug!("handshake failed: {error}");
                }
            }
        });
    }
}
