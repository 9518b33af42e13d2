//! The sites of `depot`: where durability and integrity are decided.
//!
//! A test build can disable each of them alone; the crash exploration must then fail.

esker_base::sites! {
    /// Writes the copies of the superblock; the flush at open makes them durable.
    pub FORMAT_WRITE: Write = "depot.format.write";
    /// Reads the superblock copies at open.
    pub OPEN_READ: Read = "depot.open.read";
    /// Writes a batch, durable on return when `durability` is `sync`.
    pub COMMIT_WRITE: DurableWrite = "depot.commit.write";
    /// Writes a batch that a later flush makes durable.
    pub COMMIT_PLAIN_WRITE: Write = "depot.commit.plain_write";
    /// Writes the seal of a full segment and the headers of the next one.
    pub ROLL_WRITE: Write = "depot.roll.write";
    /// Makes the records of a full segment durable before its summary vouches for them.
    pub SUMMARY_FLUSH: Flush = "depot.summary.flush";
    /// Makes summary and headers durable before a byte of the reused segment is overwritten.
    pub ROLL_FLUSH: Flush = "depot.roll.flush";
    /// Writes copies of records that are moved; a flush makes them durable.
    pub MOVE_WRITE: Write = "depot.move.write";
    /// Makes copies durable before the index follows them.
    pub MOVE_FLUSH: Flush = "depot.move.flush";
    /// An index entry follows its record only in the incarnation of the segment that was read.
    pub MOVE_EPOCH: Compare = "depot.move.epoch";
    /// A tombstone stands in place of a head that is durable.
    pub EXPIRE_HEAD: Compare = "depot.expire.head";
    /// Reads segments for cleaning.
    pub CLEAN_READ: Read = "depot.clean.read";
    /// A tombstone stays while an older record with its hash is on media.
    pub TOMBSTONE_NEEDED: Compare = "depot.tombstone.needed";
    /// Tombstones go when what was in segments that are written anew cannot come back.
    pub TOMBSTONE_RENEWED: Wait = "depot.tombstone.renewed";
    /// The eviction of a record that replaced another is noted.
    pub EVICT_NOTE: Compare = "depot.evict.note";
    /// What overtook a record of a segment is durable before the segment is evicted.
    pub EVICT_OVERTAKEN: Wait = "depot.evict.overtaken";
    /// Makes the end of an evicted segment's header durable before the index forgets its records.
    pub EVICT_FLUSH: Flush = "depot.evict.flush";
    /// Takes the validity from the headers of free segments.
    pub BLANK_WRITE: Write = "depot.blank.write";
    /// Makes that durable before tombstones go.
    pub BLANK_FLUSH: Flush = "depot.blank.flush";
    /// Writes the index beside the log.
    pub CHECKPOINT_WRITE: Write = "depot.checkpoint.write";
    /// A checkpoint begins when the index knows all that it covers.
    pub CHECKPOINT_SETTLED: Wait = "depot.checkpoint.settled";
    /// What a checkpoint covers, and what overtook it meanwhile, is durable before the checkpoint is whole.
    pub CHECKPOINT_COVERED: Wait = "depot.checkpoint.covered";
    /// A checkpoint counts for the incarnations of segments that it knew.
    pub CHECKPOINT_STANDS: Compare = "depot.checkpoint.stands";
    /// Nothing of a checkpoint counts that was cleared after it.
    pub CHECKPOINT_CLEAR: Compare = "depot.checkpoint.clear";
    /// What was written after a checkpoint overtakes the entries that it has.
    pub CHECKPOINT_OVERTAKEN: Compare = "depot.checkpoint.overtaken";
    /// Tells the device of free segments.
    pub TRIM: Write = "depot.trim";
    /// Makes everything durable that was written without, for `sync`, `periodic` and `close`.
    pub SYNC_FLUSH: Flush = "depot.sync.flush";
    /// Marks a clean end of the log.
    pub CLOSE_WRITE: Write = "depot.close.write";
    /// Makes that durable, and a checkpoint with it.
    pub CLOSE_FLUSH: Flush = "depot.close.flush";
    /// Asks for room for free segments.
    pub RESERVE: Write = "depot.reserve";
    /// Makes durable that a cache is in doubt, before anybody sees what a crash may lose.
    pub DOUBT_FLUSH: Flush = "depot.doubt.flush";
    /// Readies free segments ahead of their use.
    pub PREPARE: Write = "depot.prepare";
    /// Reads a record.
    pub RECORD_READ: Read = "depot.record.read";
    /// Reads the log at open.
    pub RECOVER_READ: Read = "depot.recover.read";
    /// Makes durable what format wrote or recovery found.
    pub RECOVER_FLUSH: Flush = "depot.recover.flush";
    /// Reads everything for `check`.
    pub CHECK_READ: Read = "depot.check.read";
    /// Reads segments for a backup.
    pub BACKUP_READ: Read = "depot.backup.read";
    /// A segment that is being copied is not overwritten.
    pub BACKUP_HOLD: Compare = "depot.backup.hold";
    /// The copy of an open segment ends where the backup does.
    pub BACKUP_CUT: Compare = "depot.backup.cut";
    /// Writes a store from a backup.
    pub RESTORE_WRITE: Write = "depot.restore.write";
    /// Makes a restored store durable before its superblock.
    pub RESTORE_FLUSH: Flush = "depot.restore.flush";
    /// A record that was read has the checksum of its place.
    pub RECORD_CHECKSUM: Checksum = "depot.record.checksum";
    /// A record that was read has the key that was asked for.
    pub RECORD_KEY: Compare = "depot.record.key";
    /// No segment was reused while a record was read.
    pub READ_GENERATION: Compare = "depot.read.generation";
    /// No segment was reused and no write overtook while a write looked its key up.
    pub WRITE_RESOLVED: Compare = "depot.write.resolved";
    /// A batch found in the log has the checksum of its place.
    pub BATCH_CHECKSUM: Checksum = "depot.batch.checksum";
    /// A batch belongs to the session of the last barrier.
    pub BATCH_SESSION: Compare = "depot.batch.session";
    /// The newer of two records of a key wins.
    pub RECOVER_NEWEST: Compare = "depot.recover.newest";
    /// Records before a clear are gone.
    pub RECOVER_CLEAR: Compare = "depot.recover.clear";
    /// Records with equal hashes that are marked so are told apart by their keys.
    pub RECOVER_COLLIDES: Compare = "depot.recover.collides";
    /// Damage below the committed point is no torn tail.
    pub COMMITTED_POINT: Compare = "depot.recover.committed_point";
    /// Nobody hears of a write before its batch is durable.
    pub ACK_WAIT: Wait = "depot.commit.ack_wait";
    /// Nobody hears of a decision that rests on a write which is not durable yet.
    pub DECISION_WAIT: Wait = "depot.write.decision_wait";
}
