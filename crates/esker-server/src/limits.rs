//! Limits of a server: what one client, and all of them together, may take.

use crate::budget::Budget;
use crate::tls;
use esker_base::units::{KIB, MIB};
use std::time::Duration;

/// Requests of one connection that run at the same time.
pub const PIPELINE_DEPTH: usize = 32;
/// Requests of one core, of all its connections, that run in tasks of their own; more run one after
/// another in their sessions. Enough to keep a device busy.
pub const TASKS_MAX: u64 = 256;
/// Values at least this long are sent from the buffer they were read into; shorter ones are copied
/// next to their header, which is cheaper than a second piece of a vectored write.
pub const ZERO_COPY_BYTES_MIN: usize = 4096;
/// Receive buffer of a new connection.
pub const RECEIVE_BYTES_MIN: usize = 4 << 10;
/// Receive buffer of a connection that fills it; it may grow past this for one long `get` line.
pub const RECEIVE_BYTES_MAX: usize = 64 << 10;
/// A data block up to this length is stored from the receive buffer; a longer one gets a buffer of
/// its own, which grows as its bytes arrive.
pub const INLINE_BODY_BYTES_MAX: usize = 16 << 10;
/// Step by which such a buffer grows.
pub const BODY_STEP_BYTES: usize = 64 << 10;
/// Replies are sent once this much has come together.
pub const FLUSH_BYTES: usize = 64 << 10;
/// Replies are sent once so much has come together for which no memory was taken: all but values.
pub const UNCHARGED_BYTES_MAX: usize = 8 << 10;
/// Bytes of values that one connection may have read and not yet sent, beyond the first value.
pub const OUTPUT_BYTES_MAX: u64 = 4 << 20;
/// Memory for values that a connection keeps between requests, so that it need not ask the budget each time, at
/// most; and the part of the budget that all of them together keep.
pub const POCKET_BYTES_MAX: u64 = 16 << 10;
const POCKETS_SHARE: u64 = 8;
/// What a unit counts for as work, beside the bytes that are moved: so many bytes of a transfer.
pub const UNIT_WORK: usize = 512;
/// The same of a request that is no unit: figures of the whole server, the whole store emptied.
pub const ALONE_WORK: usize = 16 << 10;
/// Smallest limit for items.
pub const ITEM_SIZE_MIN: u64 = 1 << 10;
/// Largest limit for items, as in memcached.
pub const ITEM_SIZE_MAX: u64 = 1 << 30;
/// The memory budget holds at least this many items of the largest size: a request may need the
/// old value, the new one, and their sum.
pub const BUDGET_ITEMS_MIN: u64 = 4;

/// How long others wait for a client that is slow while memory is short, and a request for memory.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Limits of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at the same time; one more is told so and closed. Default 1024.
    pub connections_max: u32,
    /// Longest value in bytes. Default 1 MiB.
    pub item_size_max_bytes: u64,
    /// Receive buffers, data blocks and values in flight of all connections. Default 256 MiB.
    pub memory_max_bytes: u64,
    /// How long a connection may stay silent between two requests; zero: for ever. Default zero.
    pub idle_timeout: Duration,
    /// How long a request may take to arrive, and a reply to be taken, without progress worth
    /// 64 KiB; zero: for ever while there is memory enough for others, else 10 s. Default 10 s. A client that has to say who it
    /// is has as long for that (zero: 10 s), whatever it says or does not take meanwhile, and so has one for its hello.
    pub request_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections_max: 1024,
            item_size_max_bytes: MIB,
            memory_max_bytes: 256 * MIB,
            idle_timeout: Duration::ZERO,
            request_timeout: REQUEST_TIMEOUT,
        }
    }
}

impl Limits {
    /// Memory for values that each connection may keep between requests, in bytes; 0 where the budget is small, or little more
    /// than the largest items need.
    pub fn pocket_bytes(&self, encrypted: bool) -> u64 {
        let beside_items = self.memory_max_bytes.saturating_sub(self.least_bytes(encrypted));
        let all = beside_items.min(self.memory_max_bytes / POCKETS_SHARE);
        let each = all / u64::from(self.connections_max.max(1));
        if each < POCKET_BYTES_MAX { 0 } else { POCKET_BYTES_MAX }
    }

    /// How long a request waits for memory, others for a client that holds some, and a server to hear who a client is.
    pub(crate) fn wait_timeout(&self) -> Duration {
        if self.request_timeout.is_zero() { REQUEST_TIMEOUT } else { self.request_timeout }
    }

    /// What all connections share. It is not short because they are there.
    pub fn budget(&self, encrypted: bool) -> Budget {
        Budget::beside(self.connections_bytes(encrypted), self.memory_max_bytes)
    }

    /// Data blocks that are arriving, of all connections, in bytes: at most half of what is to spare, so that requests
    /// without one find memory however many uploads stand still.
    pub(crate) fn bodies_max_bytes(&self, encrypted: bool) -> u64 {
        self.spare_bytes(encrypted) / 2
    }

    /// Memory of all clients in shared memory, in bytes: at most a quarter of the budget, however many are there and ask for
    /// nothing.
    pub(crate) fn rings_max_bytes(&self) -> u64 {
        self.memory_max_bytes / 4
    }

    /// Memory that a connection takes as long as it lasts, in bytes.
    pub fn connection_bytes(encrypted: bool) -> u64 {
        RECEIVE_BYTES_MIN as u64 + if encrypted { tls::CONNECTION_BYTES } else { 0 }
    }

    /// What all connections take as long as nobody sends much, in bytes.
    fn connections_bytes(&self, encrypted: bool) -> u64 {
        u64::from(self.connections_max) * Self::connection_bytes(encrypted)
    }

    /// The least that the memory of all may be, in bytes.
    fn least_bytes(&self, encrypted: bool) -> u64 {
        let items = BUDGET_ITEMS_MIN.saturating_mul(self.item_size_max_bytes);
        self.connections_bytes(encrypted).saturating_add(items)
    }

    /// What is free while all connections are there and ask for nothing, in bytes, beside clients in shared memory and watchers.
    pub(crate) fn spare_bytes(&self, encrypted: bool) -> u64 {
        let pockets = u64::from(self.connections_max) * self.pocket_bytes(encrypted);
        let kept = self.connections_bytes(encrypted).saturating_add(pockets);
        self.memory_max_bytes.saturating_sub(kept)
    }

    /// Whether the limits can be kept, of a server whose connections are encrypted or not; says in words which cannot.
    pub fn check(&self, encrypted: bool) -> Result<(), String> {
        if self.connections_max == 0 {
            return Err("connections-max must be at least 1".into());
        }
        if !(ITEM_SIZE_MIN..=ITEM_SIZE_MAX).contains(&self.item_size_max_bytes) {
            return Err("item-size-max must be between 1 KiB and 1 GiB".into());
        }
        let least = self.least_bytes(encrypted);
        if self.memory_max_bytes < least {
            return Err(format!(
                "memory-max must be at least {} KiB: {} connections of {} KiB, and {} items of the largest size",
                least.div_ceil(KIB),
                self.connections_max,
                Self::connection_bytes(encrypted) / KIB,
                BUDGET_ITEMS_MIN,
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_can_be_kept() {
        assert_eq!([false, true].map(|tls| Limits::default().check(tls)), [Ok(()), Ok(())]);
    }

    #[test]
    fn each_limit_is_refused_just_past_its_bound() {
        let base = Limits::default;
        let least = 1024 * RECEIVE_BYTES_MIN as u64 + 4 * MIB;
        assert!(Limits { memory_max_bytes: least, ..base() }.check(false).is_ok());
        // Each encrypted connection holds the state of TLS as well.
        let more = least + 1024 * tls::CONNECTION_BYTES;
        assert!(Limits { memory_max_bytes: more, ..base() }.check(true).is_ok());
        assert!(Limits { memory_max_bytes: more - 1, ..base() }.check(true).is_err());
        for bad in [
            Limits { connections_max: 0, ..base() },
            Limits { item_size_max_bytes: ITEM_SIZE_MIN - 1, ..base() },
            Limits { item_size_max_bytes: ITEM_SIZE_MAX + 1, memory_max_bytes: u64::MAX, ..base() },
            Limits { memory_max_bytes: least - 1, ..base() },
        ] {
            assert!(bad.check(false).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn connections_that_are_only_there_make_nothing_short() {
        let limits = Limits { connections_max: 3500, ..Limits::default() };
        let encrypted = true;
        assert_eq!(limits.check(encrypted), Ok(()));
        let (budget, spare) = (limits.budget(encrypted), limits.spare_bytes(encrypted));
        let _idle = budget.try_take(3500 * Limits::connection_bytes(encrypted)).expect("free");
        assert_eq!((budget.free_bytes(), budget.is_short()), (spare, false));
        // Nor do data blocks that stand still.
        let _bodies = budget.try_take(limits.bodies_max_bytes(encrypted)).expect("free");
        let _values = budget.try_take(spare / 4).expect("free");
        assert!(!budget.is_short());
        let _more = budget.try_take(KIB).expect("free");
        assert!(budget.is_short());
    }
}
