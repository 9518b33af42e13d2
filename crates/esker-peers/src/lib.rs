//! Other key-value stores, behind the interface that `esker bench` measures.
//!
//! Each is a cargo feature and off by default. All are set up by the same rules, and what a rule comes to in a
//! store's own words stands in every result:
//! - `sync`: a write returns when it is durable. `periodic`: a sync every second. `none`: nothing is waited
//!   for, and what can be left out without losing data at a clean stop is.
//! - The cache bytes are all memory that a store may use to cache and to buffer. LMDB has the page cache of the
//!   kernel, which nobody can bound for it, and says so.
//! - No compression: the values are random.
//! - Direct I/O where a store has it and it is asked for.

#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "lmdb")]
mod lmdb;
#[cfg(feature = "redb")]
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
#[cfg(feature = "sled")]
mod sled;
#[cfg(any(feature = "fjall", feature = "lmdb", feature = "redb", feature = "rocksdb"))]
mod ticker;

use esker_bench::system::SystemKind;

/// The peers of this build.
#[must_use]
pub fn all() -> Vec<SystemKind> {
    vec![
        #[cfg(feature = "rocksdb")]
        rocksdb::KIND,
        #[cfg(feature = "lmdb")]
        lmdb::KIND,
        #[cfg(feature = "redb")]
        redb::KIND,
        #[cfg(feature = "fjall")]
        fjall::KIND,
        #[cfg(feature = "sled")]
        sled::KIND,
    ]
}

/// Options of a result, from pairs.
#[cfg(any(
    feature = "fjall",
    feature = "lmdb",
    feature = "redb",
    feature = "rocksdb",
    feature = "sled"
))]
fn said<const N: usize>(pairs: [(&str, String); N]) -> std::collections::BTreeMap<String, String> {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests;
