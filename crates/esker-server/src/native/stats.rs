//! `stats` of the native protocol: one figure a line, name and value with a blank between.
//!
//! Names are stable; more may come. Nothing is called what it is not: those of memcached are in its
//! own `stats`.

use crate::counters::Counter;
use crate::shared::Shared;
use std::fmt::{Display, Write as _};
use std::sync::atomic::Ordering;

impl Shared {
    /// The figures as text.
    pub(super) fn native_stats(&self) -> String {
        let store = self.store.stats();
        let mut text = String::new();
        let mut say = |name: &str, value: &dyn Display| {
            // Writing to a text cannot fail.
            let _ = writeln!(text, "{name} {value}");
        };
        say("version", &env!("CARGO_PKG_VERSION"));
        say("uptime_seconds", &self.uptime());
        say("cores", &self.cores);
        say("connections", &self.connections.load(Ordering::Relaxed));
        say("connections_max", &self.limits.connections_max);
        say("items", &store.items);
        say("tombstones", &store.tombstones);
        say("live_bytes", &store.live_bytes);
        say("capacity_bytes", &store.capacity_bytes);
        say("segments", &store.segments);
        say("free_segments", &store.free_segments);
        say("index_entries", &store.index_entries);
        say("index_capacity", &store.index_capacity);
        say("index_bytes", &store.index_bytes);
        say("last_version", &store.last_version);
        say("read_only", &u8::from(store.read_only.is_some()));
        if let Some(reason) = &store.read_only {
            // One line, whatever the causes say.
            say("read_only_reason", &reason.replace(['\r', '\n'], " "));
        }
        say("device", &self.store.report().replace(['\r', '\n'], " "));
        say("memory_budget_bytes", &self.budget.total_bytes());
        say("memory_budget_free_bytes", &self.budget.free_bytes());
        for (counter, name) in Counter::ALL {
            say(name, &self.counters.total(*counter));
        }
        text
    }
}
