//! `stats`: figures under the names that memcached's tools and exporters look for.
//!
//! Exporters and templates ask for them by name, so that every name of memcached's general figures is there: those of
//! its insides which Esker does not have are zero. There are no classes of sizes, so all items are told as class 1, and
//! `stats slabs` tells none.

use crate::counters::Counter;
use crate::guests::{Doing, Guest};
use crate::listen::ListenAddress;
use crate::output::Output;
use crate::protocol::line;
use crate::shared::Shared;
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

/// General figures of memcached's insides.
const NOT_HERE: &[&str] = &[
    "reserved_fds",
    "response_obj_oom",
    "response_obj_count",
    "response_obj_bytes",
    "read_buf_count",
    "read_buf_bytes",
    "read_buf_bytes_free",
    "read_buf_oom",
    "time_in_listen_disabled_us",
    "hash_is_expanding",
    "slab_reassign_rescues",
    "slab_reassign_chunk_rescues",
    "slab_reassign_evictions_nomem",
    "slab_reassign_inline_reclaim",
    "slab_reassign_busy_items",
    "slab_reassign_busy_deletes",
    "slab_reassign_running",
    "slabs_moved",
    "slab_global_page_pool",
    "lru_crawler_running",
    "lru_crawler_starts",
    "lru_maintainer_juggles",
    "lru_bumps_dropped",
    "malloc_fails",
    "log_worker_dropped",
    "unexpected_napi_ids",
    "round_robin_fallback",
    "get_flushed",
    "reclaimed",
    "expired_unfetched",
    "evicted_unfetched",
    "evicted_active",
    "crawler_reclaimed",
    "crawler_items_checked",
    "lrutail_reflocked",
    "moves_to_cold",
    "moves_to_warm",
    "moves_within_lru",
    "direct_reclaims",
];

/// The same of a class of items.
const NOT_OF_ITEMS: &[&str] = &[
    "age",
    "evicted_nonzero",
    "evicted_time",
    "outofmemory",
    "tailrepairs",
    "reclaimed",
    "expired_unfetched",
    "evicted_unfetched",
    "crawler_reclaimed",
    "crawler_items_checked",
    "lrutail_reflocked",
];

impl Shared {
    /// The reply to `stats` and `stats SECTION`.
    pub(crate) fn stats(&self, section: &[u8], output: &mut Output) {
        match section {
            b"" => self.general(output),
            b"settings" => self.settings(output),
            b"reset" => {
                self.counters.reset();
                self.prefixes.clear();
                let evictions = self.store.stats().evictions;
                self.evictions_forgotten.store(evictions, Ordering::Relaxed);
                return output.push(line::RESET);
            }
            b"sizes" => stat(output, "sizes_status", "disabled"),
            b"items" => self.items(output),
            b"extstore" => {}
            b"slabs" => {
                stat(output, "active_slabs", 0);
                stat(output, "total_malloced", self.store.stats().capacity_bytes);
            }
            _ => return output.push(line::ERROR),
        }
        output.push(line::END);
    }

    fn general(&self, output: &mut Output) {
        let store = self.store.stats();
        stat(output, "pid", std::process::id());
        stat(output, "uptime", self.uptime());
        stat(output, "time", self.clock.unix_seconds());
        stat(output, "version", crate::VERSION);
        stat(output, "pointer_size", usize::BITS);
        if let Some([user, system]) = processor_times() {
            stat(output, "rusage_user", user);
            stat(output, "rusage_system", system);
        }
        stat(output, "max_connections", self.limits.connections_max);
        stat(output, "curr_connections", self.connections.load(Ordering::Relaxed));
        for (counter, name) in Counter::ALL {
            stat(output, name, self.counters.total(*counter));
        }
        stat(output, "limit_maxbytes", store.capacity_bytes);
        stat(output, "accepting_conns", u8::from(!self.is_stopping()));
        stat(output, "listen_disabled_num", 0);
        stat(output, "threads", self.cores);
        stat(output, "conn_yields", 0);
        stat(output, "bytes", store.live_bytes);
        stat(output, "curr_items", store.items);
        let forgotten = self.evictions_forgotten.load(Ordering::Relaxed);
        stat(output, "evictions", store.evictions.saturating_sub(forgotten));
        let [hits, misses, bytes] = store.record_cache;
        stat(output, "record_cache_hits", hits);
        stat(output, "record_cache_misses", misses);
        stat(output, "record_cache_bytes", bytes);
        stat(output, "read_only", u8::from(store.read_only.is_some()));
        if let Some(reason) = &store.read_only {
            // One line of the protocol, whatever the causes say.
            stat(output, "read_only_reason", reason.replace(['\r', '\n'], " "));
        }
        stat(output, "connection_structures", self.connections.load(Ordering::Relaxed));
        stat(output, "hash_power_level", store.index_capacity.checked_ilog2().unwrap_or(0));
        stat(output, "hash_bytes", store.index_bytes);
        for name in NOT_HERE {
            stat(output, name, 0);
        }
        stat(output, "log_watchers", self.watchers.count());
        stat(output, "memory_budget_bytes", self.budget.total_bytes());
        stat(output, "memory_budget_free_bytes", self.budget.free_bytes());
    }

    /// All items, as those of one class; nothing if there is none.
    fn items(&self, output: &mut Output) {
        let store = self.store.stats();
        if store.items == 0 {
            return;
        }
        let mut of_class = |name: &str, value: u64| {
            stat(output, &format!("items:1:{name}"), value);
        };
        of_class("number", store.items);
        of_class("mem_requested", store.live_bytes);
        let forgotten = self.evictions_forgotten.load(Ordering::Relaxed);
        of_class("evicted", store.evictions.saturating_sub(forgotten));
        for name in NOT_OF_ITEMS {
            of_class(name, 0);
        }
    }

    /// Listeners by their number.
    pub(crate) fn tell_listeners(&self, output: &mut Output) {
        for (index, address) in self.addresses.iter().enumerate() {
            stat(output, &format!("{index}:addr"), shown(address));
            stat(output, &format!("{index}:state"), "conn_listening");
        }
    }

    /// A connection; its number follows those of the listeners. `asks`: it wants to know.
    pub(crate) fn tell_guest(&self, number: u64, guest: &Guest, asks: bool, output: &mut Output) {
        let number = self.shown_number(number);
        let listener = self.addresses.get(guest.listener).map(shown).unwrap_or_default();
        let peer = guest.peer.map_or_else(|| listener.clone(), shown_network);
        let state = match guest.doing() {
            _ if asks => "conn_parse_cmd",
            Doing::Nothing => "conn_read",
            Doing::Sends => "conn_nread",
            Doing::Watches => "conn_watch",
        };
        stat(output, &format!("{number}:addr"), peer);
        stat(output, &format!("{number}:listen_addr"), listener);
        stat(output, &format!("{number}:state"), state);
        let silence = self.uptime().saturating_sub(guest.last());
        stat(output, &format!("{number}:secs_since_last_cmd"), silence);
    }

    fn settings(&self, output: &mut Output) {
        let tcp = self.addresses.iter().find_map(|address| match address {
            ListenAddress::Tcp(address) => Some(address),
            _ => None,
        });
        let unix = self.addresses.iter().find_map(|address| match address {
            ListenAddress::Unix(path) => Some(path.display().to_string()),
            _ => None,
        });
        let store = self.store.stats();
        stat(output, "maxbytes", store.capacity_bytes);
        stat(output, "maxconns", self.limits.connections_max);
        stat(output, "tcpport", tcp.map_or(0, SocketAddr::port));
        stat(output, "udpport", 0);
        stat(output, "inter", tcp.map_or_else(|| "NULL".into(), |tcp| tcp.ip().to_string()));
        stat(output, "verbosity", verbosity());
        stat(output, "evictions", if store.cache { "on" } else { "off" });
        stat(output, "domain_socket", unix.unwrap_or_else(|| "NULL".into()));
        stat(output, "num_threads", self.cores);
        stat(output, "cas_enabled", "yes");
        stat(output, "binding_protocol", "ascii");
        stat(output, "auth_enabled_sasl", "no");
        let yes = |on: bool| if on { "yes" } else { "no" };
        stat(output, "stat_key_prefix", char::from(self.prefixes.delimiter()));
        stat(output, "detail_enabled", yes(self.prefixes.is_on()));
        stat(output, "auth_enabled_ascii", yes(self.auth.is_some()));
        stat(output, "item_size_max", self.limits.item_size_max_bytes);
        stat(output, "maxconns_fast", "yes");
        stat(output, "flush_enabled", yes(self.flush_enabled));
        stat(output, "shutdown_command", yes(self.on_shutdown.is_some()));
        stat(output, "ssl_enabled", yes(self.tls.is_some()));
        stat(output, "dump_enabled", yes(self.dump_enabled));
        stat(output, "idle_timeout", self.limits.idle_timeout.as_secs());
        stat(output, "request_timeout", self.limits.request_timeout.as_secs());
        stat(output, "memory_max", self.limits.memory_max_bytes);
        stat(output, "lru_crawler", "no");
        stat(output, "lru_maintainer_thread", "no");
        stat(output, "slab_reassign", "no");
        stat(output, "track_sizes", "no");
    }
}

/// How much is logged, in memcached's numbers: warnings 0, information 1, and so on.
fn verbosity() -> u8 {
    use tracing::level_filters::LevelFilter;
    match LevelFilter::current() {
        LevelFilter::TRACE => 3,
        LevelFilter::DEBUG => 2,
        LevelFilter::INFO => 1,
        _ => 0,
    }
}

fn shown(address: &ListenAddress) -> String {
    match address {
        ListenAddress::Tcp(address) | ListenAddress::NativeTcp(address) => shown_network(*address),
        ListenAddress::Unix(path)
        | ListenAddress::NativeUnix(path)
        | ListenAddress::Shared(path) => format!("unix:{}", path.display()),
    }
}

fn shown_network(address: SocketAddr) -> String {
    let family = if address.is_ipv6() { "tcp6" } else { "tcp" };
    format!("{family}:{address}")
}

/// Processor time of the process so far, in user and kernel mode, in seconds and microseconds.
fn processor_times() -> Option<[String; 2]> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // Behind the name, which may hold anything: the state, then fields from 4 on; utime and stime are 14 and 15.
    let fields = stat.rsplit_once(") ")?.1;
    let mut ticks = fields.split(' ').skip(11).map(|field| field.parse::<u64>().ok());
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    let mut next = || {
        let ticks = ticks.next()??;
        let micros = (ticks % per_second).saturating_mul(1_000_000) / per_second;
        Some(format!("{}.{micros:06}", ticks / per_second))
    };
    Some([next()?, next()?])
}

fn stat(output: &mut Output, name: &str, value: impl Display) {
    output.push_fmt(format_args!("STAT {name} {value}\r\n"));
}
