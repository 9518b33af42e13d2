//! Where things are: chunks, and what the index says of an entry.

use esker_base::ids::StoreId;
use esker_base::{Error, Result};
use esker_format::flat::{BATCH_HEADER_SIZE, CHUNK_START, LINE, Superblock};
use esker_index::Word;

/// Bytes of a chunk (FlatStore §3.2).
const CHUNK_SIZE: u64 = 4 << 20;
/// Bytes of a chunk of the smallest stores.
const CHUNK_SIZE_MIN: u64 = 64 << 10;
/// Chunks that a store has at least, unless they would be smaller than `CHUNK_SIZE_MIN`: each log, and each size of blocks, keeps
/// some open for each core, and these are not to be a large part of the store.
const CHUNKS_WANTED: u64 = 128;
/// Fewest chunks of a store: the root, a log, its successor, the cleaner's, blocks, and spare ones.
const CHUNKS_MIN: u64 = 12;
/// Bytes that places in a store can name: 64 TiB.
const SIZE_MAX_BYTES: u64 = 1 << 46;
/// Entries of a batch whose versions follow from their places.
pub(super) const BATCH_ENTRIES_MAX: usize = 64;
/// Bytes of a batch behind whose start entries can be found from their own place.
pub(super) const BATCH_NEAR_BYTES: usize = 127 * LINE;

/// Sizes and identity of a store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) store_id: StoreId,
    pub(super) chunk_size: u64,
    pub(super) chunk_count: u32,
    shift: u32,
}

impl Layout {
    pub(super) fn of(superblock: &Superblock) -> Layout {
        Layout {
            store_id: superblock.store_id,
            chunk_size: superblock.chunk_size_bytes,
            chunk_count: superblock.chunk_count,
            shift: superblock.chunk_size_bytes.trailing_zeros(),
        }
    }

    /// Size and number of chunks for a new store.
    pub(super) fn plan(size_bytes: u64, chunk_size: Option<u64>) -> Result<(u64, u32)> {
        let chunk_size = chunk_size.unwrap_or_else(|| chunk_size_of(size_bytes));
        let count = size_bytes / chunk_size;
        if count < CHUNKS_MIN {
            let words = format!("a store of flat takes at least {} bytes", CHUNKS_MIN * chunk_size);
            return Err(Error::invalid("open store", words));
        }
        Layout::check_size(count.saturating_mul(chunk_size))?;
        Ok((chunk_size, u32::try_from(count).unwrap_or(u32::MAX)))
    }

    /// Refuses a store that is larger than places can name.
    pub(super) fn check_size(size_bytes: u64) -> Result<()> {
        if size_bytes > SIZE_MAX_BYTES {
            let words =
                format!("a store of flat has at most {SIZE_MAX_BYTES} bytes, not {size_bytes}");
            return Err(Error::invalid("open store", words));
        }
        Ok(())
    }

    #[inline]
    pub(super) fn chunk_of(&self, offset: u64) -> u32 {
        u32::try_from(offset >> self.shift).unwrap_or(u32::MAX)
    }

    #[inline]
    pub(super) fn start_of(&self, chunk: u32) -> u64 {
        u64::from(chunk) << self.shift
    }

    /// Bytes of a chunk behind its headers.
    pub(super) fn room(&self) -> u64 {
        self.chunk_size - CHUNK_START
    }

    /// Whether a log can end so many bytes behind the start of its chunk.
    pub(super) fn is_tail(&self, tail: u32) -> bool {
        let tail = u64::from(tail);
        (CHUNK_START..=self.chunk_size).contains(&tail) && tail.is_multiple_of(LINE as u64)
    }

    /// Where the batches of a log end at the latest, in its chunk: the mark of its end has room behind them.
    pub(super) fn log_end(&self) -> u64 {
        self.chunk_size - LINE as u64
    }

    /// Bytes of entries that fit one batch.
    pub(super) fn batch_room(&self) -> usize {
        let room = self.log_end() - CHUNK_START;
        usize::try_from(room).unwrap_or(usize::MAX) - BATCH_HEADER_SIZE
    }
}

/// Bytes of a chunk of a new store of so many bytes: a power of two.
fn chunk_size_of(size_bytes: u64) -> u64 {
    let fits = (size_bytes / CHUNKS_WANTED).checked_ilog2().map_or(0, |power| 1 << power);
    fits.clamp(CHUNK_SIZE_MIN, CHUNK_SIZE)
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The value stands in the log.
    Value,
    /// A record has the value.
    Record,
    /// The key was deleted.
    Tombstone,
    /// The key was deleted, and a record has it.
    TombstoneRecord,
}

impl Kind {
    pub(super) fn is_tombstone(self) -> bool {
        matches!(self, Kind::Tombstone | Kind::TombstoneRecord)
    }

    pub(super) fn has_record(self) -> bool {
        matches!(self, Kind::Record | Kind::TombstoneRecord)
    }
}

/// Where an entry is, and what DRAM knows of it: what the index keeps.
///
/// ```text
/// 60             16 15  14  13      12      7 6     0
/// | offset / 2 45  | kind  | key 8 | ordinal | lines |
/// ```
///
/// Its batch begins `lines` lines before the line of the entry; `ordinal` entries of the batch stand before it. Both
/// give its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) offset: u64,
    pub(super) kind: Kind,
    /// The key has 8 bytes, so that its hash tells it.
    pub(super) key_of_8: bool,
    pub(super) ordinal: usize,
    pub(super) lines: u64,
}

impl Place {
    pub(super) fn word(self) -> Word {
        let kind = match self.kind {
            Kind::Value => 0,
            Kind::Record => 1,
            Kind::Tombstone => 2,
            Kind::TombstoneRecord => 3,
        };
        let number = (self.offset / 2) << 16
            | kind << 14
            | u64::from(self.key_of_8) << 13
            | (self.ordinal as u64 & 0x3F) << 7
            | self.lines & 0x7F;
        // The root chunk has no entries, so the number is not 0; stores end at `SIZE_MAX_BYTES`.
        Word::new(number & (Word::END - 1)).unwrap_or(WORD_MIN)
    }

    #[inline]
    pub(super) fn of(word: Word) -> Place {
        let number = word.get();
        Place {
            offset: (number >> 16) * 2,
            kind: match number >> 14 & 3 {
                0 => Kind::Value,
                1 => Kind::Record,
                2 => Kind::Tombstone,
                _ => Kind::TombstoneRecord,
            },
            key_of_8: number >> 13 & 1 == 1,
            ordinal: usize::try_from(number >> 7 & 0x3F).unwrap_or(0),
            lines: number & 0x7F,
        }
    }

    /// Where the entry's batch begins.
    #[inline]
    pub(super) fn batch_offset(&self) -> u64 {
        (self.offset - self.offset % LINE as u64).saturating_sub(self.lines * LINE as u64)
    }
}

/// The least word.
const WORD_MIN: Word = match Word::new(1) {
    Some(word) => word,
    None => unreachable!(),
};

/// What the index says of an entry: without looking at the rest of it.
#[inline]
pub(super) fn kind_of(word: Word) -> Kind {
    Place::of(word).kind
}
