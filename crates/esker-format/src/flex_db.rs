//! FlexDB on media: what stands in its space, and its write-ahead log (`docs/format/flex-db.md`).
//!
//! ```text
//! space: | root | interval | interval | ... | large value | ...
//! interval: | run | run | ...                     run: | head | pair | pair | ...
//! log:   | batch | batch | ...                     batch: | header | change | change | ... | zeros |
//! ```
//!
//! # Invariants
//! - D1: a run and a batch have checksums over all their bytes; a batch counts only at its place, in its
//!   generation of its store's log, behind the batch before it.

pub mod backup;
pub mod index;
pub mod key;
pub mod large;
pub mod root;
pub mod run;
pub mod varint;
pub mod wal;

pub use index::{
    INDEX_BODY_OFFSET, INDEX_HEAD_SIZE, INDEX_VERSION, IndexEntry, IndexHead, IndexWriter,
};
pub use key::Key;
pub use large::{LARGE_HEAD_SIZE, LargeHead};
pub use root::{ROOT_SIZE, Root, Unfinished};
pub use run::{Common, Content, Pair, Pairs, Run, RunKind, RunWriter};
pub use wal::{BATCH_HEADER_SIZE, Batch, Change, WalWriter};

/// The format that this build writes. Others are refused by number.
pub const FORMAT_VERSION: u32 = 2;
/// Longest value in bytes.
pub const VALUE_SIZE_MAX_BYTES: u64 = 4 << 30;
/// Longest key in bytes.
pub const KEY_SIZE_MAX_BYTES: usize = 64 << 10;

/// Flags, expiry and state of a pair that has any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extra {
    /// Opaque number of the client.
    pub flags: u32,
    /// Four bits for the layer above.
    pub state: u8,
    /// One more than the wall time in seconds since 1970 from which the pair is gone; 0: never.
    pub expires_at: u64,
}

/// Bytes of an [`Extra`].
pub const EXTRA_SIZE: usize = 13;

impl Extra {
    /// Whether there is nothing to say.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        *self == Extra::default()
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.flags.to_le_bytes());
        bytes.push(self.state);
        bytes.extend_from_slice(&self.expires_at.to_le_bytes());
    }

    fn take(bytes: &mut &[u8]) -> Option<Extra> {
        let (flags, rest) = bytes.split_first_chunk::<4>()?;
        let (state, rest) = rest.split_first()?;
        let (expires_at, rest) = rest.split_first_chunk::<8>()?;
        *bytes = rest;
        Some(Extra {
            flags: u32::from_le_bytes(*flags),
            state: *state,
            expires_at: u64::from_le_bytes(*expires_at),
        })
    }
}

/// Takes `count` bytes off the front.
fn split<'a>(bytes: &mut &'a [u8], count: u64) -> Option<&'a [u8]> {
    let (head, rest) = bytes.split_at_checked(usize::try_from(count).ok()?)?;
    *bytes = rest;
    Some(head)
}

#[cfg(test)]
mod tests;
