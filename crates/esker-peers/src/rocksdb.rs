//! RocksDB: an LSM-tree.

use crate::said;
use crate::ticker::Ticker;
use esker_bench::Outcome;
use esker_bench::system::{Durability, OpenOptions, Session, System, SystemKind};
use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, Cache, DB, DBCompressionType, Options,
    WaitForCompactOptions, WriteOptions,
};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) const KIND: SystemKind = SystemKind {
    name: "rocksdb",
    about: "RocksDB, an LSM-tree",
    ordered: |_| true,
    fixed_capacity: false,
    persistent: true,
    promises: &Durability::ALL,
    keeps_values: true,
    value_size_max: 3 << 30,
    variants: &[],
    open,
};

/// Bits of Bloom filter for each key: RocksDB's own advice.
const BLOOM_BITS: f64 = 10.0;
/// Bytes of a part of an index or filter, as its guide to partitioned ones has it. A whole one of a file of 64 MiB is
/// larger than what a shard of a small cache keeps, and would be read anew for each read.
const METADATA_BLOCK_BYTES: usize = 4 << 10;
/// Threads that flush and compact.
const BACKGROUND_JOBS: i32 = 2;

struct Rocks {
    db: Arc<DB>,
    durability: Durability,
    ticker: Ticker,
    options: BTreeMap<String, String>,
}

fn open(options: &OpenOptions) -> Outcome<Box<dyn System>> {
    let bytes = usize::try_from(options.cache_bytes)?;
    // Half caches blocks, half is for memtables: the one that fills and one that is being flushed.
    let cache = Cache::new_lru_cache(bytes / 2);
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&cache);
    table.set_bloom_filter(BLOOM_BITS, false);
    table.set_cache_index_and_filter_blocks(true);
    table.set_cache_index_and_filter_blocks_with_high_priority(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    table.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    table.set_partition_filters(true);
    table.set_metadata_block_size(METADATA_BLOCK_BYTES);
    table.set_pin_top_level_index_and_filter(true);
    let mut db = Options::default();
    db.create_if_missing(true);
    db.set_block_based_table_factory(&table);
    db.set_db_write_buffer_size(bytes / 2);
    db.set_write_buffer_size(bytes / 4);
    db.set_compression_type(DBCompressionType::None);
    db.set_max_background_jobs(BACKGROUND_JOBS);
    db.set_use_direct_reads(options.direct);
    db.set_use_direct_io_for_flush_and_compaction(options.direct);
    let db = Arc::new(DB::open(&db, &options.folder)?);
    let durability = options.durability;
    let ticker = Ticker::of(durability == Durability::Periodic, &db, |db| Ok(db.flush_wal(true)?))?;
    let words = match durability {
        Durability::Sync => "sync: WAL, WriteOptions.sync",
        Durability::Periodic => "periodic: WAL, synced every second",
        Durability::None => "none: no WAL, memtables flushed at a sync",
    };
    let options = said([
        ("durability", words.to_owned()),
        ("block cache, with indexes and filters", format!("{} bytes", bytes / 2)),
        ("db_write_buffer_size", format!("{} bytes", bytes / 2)),
        ("write_buffer_size", format!("{} bytes", bytes / 4)),
        ("bloom filter", format!("{BLOOM_BITS} bits a key")),
        ("index and filters", format!("in parts of {METADATA_BLOCK_BYTES} bytes")),
        ("sync", "waits for compactions".to_owned()),
        ("direct reads, flushes and compactions", options.direct.to_string()),
        ("background jobs", BACKGROUND_JOBS.to_string()),
        ("compression", "none".to_owned()),
    ]);
    Ok(Box::new(Rocks { db, durability, ticker, options }))
}

impl System for Rocks {
    fn session(&self) -> Outcome<Box<dyn Session>> {
        let mut write = WriteOptions::default();
        write.set_sync(self.durability == Durability::Sync);
        write.disable_wal(self.durability == Durability::None);
        Ok(Box::new(Client { db: Arc::clone(&self.db), write }))
    }

    fn sync(&self) -> Outcome<()> {
        self.ticker.check()?;
        match self.durability {
            Durability::None => self.db.flush()?,
            Durability::Sync | Durability::Periodic => self.db.flush_wal(true)?,
        }
        // What the writes before still cost belongs to them, not to the reads that are measured next.
        Ok(self.db.wait_for_compact(&WaitForCompactOptions::default())?)
    }

    fn close(mut self: Box<Self>) -> Outcome<()> {
        self.ticker.stop()?;
        self.sync()?;
        self.db.cancel_all_background_work(true);
        Ok(())
    }

    fn options(&self) -> BTreeMap<String, String> {
        self.options.clone()
    }
}

struct Client {
    db: Arc<DB>,
    write: WriteOptions,
}

impl Session for Client {
    fn read(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        match self.db.get_pinned(key)? {
            Some(value) => {
                see(&value);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Outcome<()> {
        Ok(self.db.put_opt(key, value, &self.write)?)
    }

    fn delete(&mut self, key: &[u8]) -> Outcome<()> {
        Ok(self.db.delete_opt(key, &self.write)?)
    }

    fn scan(
        &mut self,
        start: &[u8],
        count: u64,
        see: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Outcome<u64> {
        let mut iterator = self.db.raw_iterator();
        iterator.seek(start);
        let mut seen = 0;
        while seen < count {
            let Some((key, value)) = iterator.item() else { break };
            see(key, value);
            seen += 1;
            iterator.next();
        }
        iterator.status()?;
        Ok(seen)
    }
}
