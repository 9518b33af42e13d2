//! The sites of `flat`: where durability and integrity are decided.
//!
//! A test build can disable each of them alone; the crash exploration must then fail.

esker_base::sites! {
    /// Stores superblock and first headers of a new store.
    pub FORMAT_STORE: Write = "flat.format.store";
    /// Writes back headers before the superblock vouches for them.
    pub FORMAT_FLUSH: Flush = "flat.format.flush";
    /// Makes them durable.
    pub FORMAT_FENCE: Fence = "flat.format.fence";
    /// Stores a superblock that is not whole any more.
    pub SUPERBLOCK_STORE: Write = "flat.superblock.store";
    /// Writes back the superblock, of a new store and at each open: whoever made it may have been killed.
    pub SUPERBLOCK_FLUSH: Flush = "flat.superblock.flush";
    /// Stores the session word.
    pub SESSION_STORE: Write = "flat.session.store";
    /// Writes back the session word: the mark of a clean stop is gone before anything new is written.
    pub SESSION_FLUSH: Flush = "flat.session.flush";
    /// Makes it durable.
    pub SESSION_FENCE: Fence = "flat.session.fence";
    /// Stores a copy of a chunk header.
    pub CHUNK_STORE: Write = "flat.chunk.store";
    /// Writes back the first copy.
    pub CHUNK_FLUSH: Flush = "flat.chunk.flush";
    /// Makes the first copy durable before the second changes, and before the chunk is used.
    pub CHUNK_FENCE: Fence = "flat.chunk.fence";
    /// Writes back the second copy.
    pub CHUNK_COPY_FLUSH: Flush = "flat.chunk.copy_flush";
    /// Makes it durable before the first changes again.
    pub CHUNK_COPY_FENCE: Fence = "flat.chunk.copy_fence";
    /// Writes back what recovery counts though nobody knows whether it is durable: a killed process may have stored it last.
    pub RECOVER_FLUSH: Flush = "flat.recover.flush";
    /// Writes back a copy of a header that a crash left stale.
    pub MEND_FLUSH: Flush = "flat.mend.flush";
    /// Makes it durable before the other copy changes.
    pub MEND_FENCE: Fence = "flat.mend.fence";
    /// Stores a batch.
    pub COMMIT_STORE: Write = "flat.commit.store";
    /// Writes back the lines of a batch.
    pub COMMIT_FLUSH: Flush = "flat.commit.flush";
    /// Makes the batch durable before anybody hears of it.
    pub COMMIT_FENCE: Fence = "flat.commit.fence";
    /// Stores the mark that nothing follows in a chunk.
    pub SEAL_STORE: Write = "flat.seal.store";
    /// Stores a record outside the log.
    pub RECORD_STORE: Write = "flat.record.store";
    /// Writes back the lines of a record.
    pub RECORD_FLUSH: Flush = "flat.record.flush";
    /// Makes the record durable before an entry points at it.
    pub RECORD_FENCE: Fence = "flat.record.fence";
    /// Stores what was cleared.
    pub CLEAR_STORE: Write = "flat.clear.store";
    /// Writes it back.
    pub CLEAR_FLUSH: Flush = "flat.clear.flush";
    /// Makes it durable before anybody misses a key.
    pub CLEAR_FENCE: Fence = "flat.clear.fence";
    /// Stores copies of entries that are moved.
    pub MOVE_STORE: Write = "flat.move.store";
    /// Writes them back.
    pub MOVE_FLUSH: Flush = "flat.move.flush";
    /// Makes copies durable before the chunk that they come from is free.
    pub MOVE_FENCE: Fence = "flat.move.fence";
    /// A tombstone stays while an older entry of its key may be on media.
    pub TOMBSTONE_NEEDED: Compare = "flat.tombstone.needed";
    /// The record of an entry that was dropped, or whose copy has another one, stays until the entry's chunk is free.
    pub RECORD_LEFT: Wait = "flat.record.left";
    /// Stores a part of an image.
    pub IMAGE_STORE: Write = "flat.image.store";
    /// Writes it back.
    pub IMAGE_FLUSH: Flush = "flat.image.flush";
    /// Makes the image of an open store durable before the one before it goes.
    pub CHECKPOINT_FENCE: Fence = "flat.checkpoint.fence";
    /// An entry of such an image stands in a log that is still there, before the tail.
    pub CHECKPOINT_STANDS: Compare = "flat.checkpoint.stands";
    /// Nothing was cleared since such an image.
    pub CHECKPOINT_CLEAR: Compare = "flat.checkpoint.clear";
    /// All that stood before the tails was in the index: no write and no move was under way.
    pub CHECKPOINT_SETTLED: Wait = "flat.checkpoint.settled";
    /// Nothing that a backup is to copy is overwritten before.
    pub BACKUP_HOLD: Compare = "flat.backup.hold";
    /// A chunk that may have changed still has what the file of an earlier backup has.
    pub BACKUP_SAME: Compare = "flat.backup.same";
    /// Stores a restored chunk, or the root.
    pub RESTORE_STORE: Write = "flat.restore.store";
    /// Writes it back.
    pub RESTORE_FLUSH: Flush = "flat.restore.flush";
    /// Makes what is restored durable before the memory is a store.
    pub RESTORE_FENCE: Fence = "flat.restore.fence";
    /// A part of an image has the checksum of its place.
    pub IMAGE_CHECKSUM: Checksum = "flat.image.checksum";
    /// A chunk header has the checksum of its place.
    pub CHUNK_CHECKSUM: Checksum = "flat.chunk.checksum";
    /// A batch found in a log has the checksum of its place and time.
    pub BATCH_CHECKSUM: Checksum = "flat.batch.checksum";
    /// A record has the checksum of its place.
    pub RECORD_CHECKSUM: Checksum = "flat.record.checksum";
    /// The newer of two entries of a key wins.
    pub RECOVER_NEWEST: Compare = "flat.recover.newest";
    /// Entries before a clear are gone.
    pub RECOVER_CLEAR: Compare = "flat.recover.clear";
    /// A batch behind one that is not whole proves damage.
    pub COMMITTED_POINT: Compare = "flat.recover.committed_point";
    /// An entry that was read belongs to the key that was asked for.
    pub ENTRY_KEY: Compare = "flat.entry.key";
    /// No chunk was used anew between the lookup of a word and the read of its entry.
    pub READ_SINCE: Compare = "flat.read.since";
    /// What the cleaner copies is no older than the first entry that the index does not follow yet.
    pub CLEAN_SETTLED: Compare = "flat.clean.settled";
    /// No chunk was used anew while an entry was read.
    pub READ_GENERATION: Compare = "flat.read.generation";
    /// The record that was read still belonged to its key.
    pub READ_CURRENT: Compare = "flat.read.current";
}
