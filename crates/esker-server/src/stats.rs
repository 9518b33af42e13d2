//! `stats`: figures under the names that memcached's tools and exporters look for.
//!
//! Figures that Esker does not have in memcached's sense (slabs, LRU crawler) are left out, or zero
//! where exporters insist on them.

use crate::counters::Counter;
use crate::listen::ListenAddress;
use crate::output::Output;
use crate::protocol::line;
use crate::shared::Shared;
use std::fmt::Display;
use std::sync::atomic::Ordering;

impl Shared {
    /// The reply to `stats` and `stats SECTION`.
    pub(crate) fn stats(&self, section: &[u8], output: &mut Output) {
        match section {
            b"" => self.general(output),
            b"settings" => self.settings(output),
            b"reset" => {
                self.counters.reset();
                return output.push(line::RESET);
            }
            b"sizes" => stat(output, "sizes_status", "disabled"),
            // There are no slab classes to tell of.
            b"items" | b"extstore" => {}
            b"slabs" => {
                stat(output, "active_slabs", 0);
                stat(output, "total_malloced", self.store.stats().capacity_bytes);
            }
            b"conns" => self.connections_told(output),
            b"detail" => return output.push(line::BAD_DETAIL),
            b"cachedump" => return output.push(line::NO_CACHEDUMP),
            _ => return output.push(line::ERROR),
        }
        output.push(line::END);
    }

    fn general(&self, output: &mut Output) {
        let store = self.store.stats();
        let uptime = self.clock.monotonic().saturating_sub(self.started);
        stat(output, "pid", std::process::id());
        stat(output, "uptime", uptime.as_secs());
        stat(output, "time", self.clock.unix_seconds());
        stat(output, "version", crate::VERSION);
        stat(output, "pointer_size", usize::BITS);
        stat(output, "max_connections", self.limits.connections_max);
        stat(output, "curr_connections", self.connections.load(Ordering::Relaxed));
        for (counter, name) in Counter::ALL {
            stat(output, name, self.counters.total(*counter));
        }
        stat(output, "get_flushed", 0);
        stat(output, "limit_maxbytes", store.capacity_bytes);
        stat(output, "accepting_conns", u8::from(!self.is_stopping()));
        stat(output, "listen_disabled_num", 0);
        stat(output, "threads", self.cores);
        stat(output, "conn_yields", 0);
        stat(output, "bytes", store.live_bytes);
        stat(output, "curr_items", store.items);
        stat(output, "evictions", store.evictions);
        let [hits, misses, bytes] = store.record_cache;
        stat(output, "record_cache_hits", hits);
        stat(output, "record_cache_misses", misses);
        stat(output, "record_cache_bytes", bytes);
        stat(output, "reclaimed", 0);
        stat(output, "read_only", u8::from(store.read_only.is_some()));
        if let Some(reason) = &store.read_only {
            // One line of the protocol, whatever the causes say.
            stat(output, "read_only_reason", reason.replace(['\r', '\n'], " "));
        }
        stat(output, "memory_budget_bytes", self.budget.total_bytes());
        stat(output, "memory_budget_free_bytes", self.budget.free_bytes());
    }

    /// Listeners by their number; of connections only how many there are.
    fn connections_told(&self, output: &mut Output) {
        for (index, address) in self.addresses.iter().enumerate() {
            let (family, address) = match address {
                ListenAddress::Tcp(address) | ListenAddress::NativeTcp(address) => {
                    (if address.is_ipv6() { "tcp6" } else { "tcp" }, address.to_string())
                }
                ListenAddress::Unix(path)
                | ListenAddress::NativeUnix(path)
                | ListenAddress::Shared(path) => ("unix", path.display().to_string()),
            };
            stat(output, &format!("{index}:addr"), format_args!("{family}:{address}"));
            stat(output, &format!("{index}:state"), "conn_listening");
        }
        stat(output, "curr_connections", self.connections.load(Ordering::Relaxed));
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
        stat(output, "tcpport", tcp.map_or(0, std::net::SocketAddr::port));
        stat(output, "udpport", 0);
        stat(output, "inter", tcp.map_or_else(|| "NULL".into(), |tcp| tcp.ip().to_string()));
        stat(output, "verbosity", 0);
        stat(output, "evictions", if store.cache { "on" } else { "off" });
        stat(output, "domain_socket", unix.unwrap_or_else(|| "NULL".into()));
        stat(output, "num_threads", self.cores);
        stat(output, "detail_enabled", "no");
        stat(output, "cas_enabled", "yes");
        stat(output, "binding_protocol", "ascii");
        stat(output, "auth_enabled_sasl", "no");
        let yes = |on: bool| if on { "yes" } else { "no" };
        stat(output, "auth_enabled_ascii", yes(self.auth.is_some()));
        stat(output, "item_size_max", self.limits.item_size_max_bytes);
        stat(output, "maxconns_fast", "yes");
        stat(output, "flush_enabled", yes(self.flush_enabled));
        stat(output, "shutdown_command", yes(self.on_shutdown.is_some()));
        stat(output, "ssl_enabled", yes(self.tls.is_some()));
        stat(output, "dump_enabled", "no");
        stat(output, "idle_timeout", self.limits.idle_timeout.as_secs());
        stat(output, "request_timeout", self.limits.request_timeout.as_secs());
        stat(output, "memory_max", self.limits.memory_max_bytes);
        stat(output, "lru_crawler", "no");
        stat(output, "lru_maintainer_thread", "no");
        stat(output, "slab_reassign", "no");
        stat(output, "track_sizes", "no");
    }
}

fn stat(output: &mut Output, name: &str, value: impl Display) {
    output.push_fmt(format_args!("STAT {name} {value}\r\n"));
}
