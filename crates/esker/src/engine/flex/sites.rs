//! The sites of `flex` above its space: where durability and integrity are decided.
//!
//! A test build can disable each of them alone; the crash exploration must then fail.

esker_base::sites! {
    /// Reads the log at open.
    pub WAL_READ: Read = "flexdb.wal.read";
    /// Writes a batch of the log.
    pub WAL_WRITE: Write = "flexdb.wal.write";
    /// Makes batches durable before anybody hears of them, and the last one before its table is committed.
    pub WAL_FLUSH: Flush = "flexdb.wal.flush";
    /// Makes durable what recovery found, before anybody reads it.
    pub WAL_RECOVER_FLUSH: Flush = "flexdb.wal.recover.flush";
    /// Takes away the header of a batch that does not count.
    pub WAL_ERASE: Write = "flexdb.wal.erase";
    /// Makes that durable before anything else is written.
    pub WAL_ERASE_FLUSH: Flush = "flexdb.wal.erase.flush";
    /// Makes room for the log.
    pub WAL_RESERVE: Write = "flexdb.wal.reserve";
    /// A table is in the space, durably, before its log is written over.
    pub WAL_WAIT: Wait = "flexdb.wal.wait";
    /// A large value is durable before a pair names it.
    pub LARGE_WAIT: Wait = "flexdb.large.wait";
    /// A log is sealed before its table goes to the space.
    pub SEAL_WAIT: Wait = "flexdb.seal.wait";
    /// Logs are replayed in the order of their generations.
    pub WAL_ORDER: Compare = "flexdb.wal.order";
    /// A log whose table is in the space does not count.
    pub WAL_GENERATION: Compare = "flexdb.wal.generation";
    /// A batch has its checksum.
    pub WAL_CHECKSUM: Checksum = "flexdb.wal.checksum";
    /// A batch behind the end of the log is proof of damage.
    pub WAL_DAMAGE: Compare = "flexdb.wal.damage";
    /// A table without a log gets to the space as a whole.
    pub HOLD_WAIT: Wait = "flexdb.hold.wait";
    /// Makes the log durable that a table gets when the space cannot wait for all of it.
    pub LATE_FLUSH: Flush = "flexdb.late.flush";
    /// What is in memory of single pairs follows what came to the space.
    pub PAIR_FOLLOWS: Compare = "flexdb.pair.follows";
    /// What is older of a key goes together with a version that has expired.
    pub EXPIRED_OLDER: Compare = "flexdb.expired.older";
    /// Reads the saved index.
    pub INDEX_READ: Read = "flexdb.index.read";
    /// Makes room for it.
    pub INDEX_RESERVE: Write = "flexdb.index.reserve";
    /// Writes it at a clean stop.
    pub INDEX_WRITE: Write = "flexdb.index.write";
    /// It has its checksum.
    pub INDEX_CHECKSUM: Checksum = "flexdb.index.checksum";
    /// It is of the space as it is.
    pub INDEX_GENERATION: Compare = "flexdb.index.generation";
}
