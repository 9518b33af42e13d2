//! The sites of FlexSpace: where durability and integrity are decided.
//!
//! A test build can disable each of them alone; the crash exploration must then fail.

esker_base::sites! {
    /// Writes the headers of a new space.
    pub FORMAT_WRITE: Write = "flex.format.write";
    /// Makes room in a file.
    pub RESERVE: Write = "flex.reserve";
    /// Reads headers and map at open.
    pub OPEN_READ: Read = "flex.open.read";
    /// Reads the log at open.
    pub LOG_READ: Read = "flex.log.read";
    /// Reads a node on demand.
    pub NODE_READ: Read = "flex.node.read";
    /// Reads blocks of data.
    pub DATA_READ: Read = "flex.data.read";
    /// Writes blocks of data.
    pub DATA_WRITE: Write = "flex.data.write";
    /// Makes data durable before a group of the log refers to them.
    pub DATA_FLUSH: Flush = "flex.data.flush";
    /// Writes a group of the log.
    pub LOG_WRITE: Write = "flex.log.write";
    /// Makes a group durable before anybody hears of it, or space that it frees is used.
    pub LOG_FLUSH: Flush = "flex.log.flush";
    /// Takes away the header of a group that does not count.
    pub LOG_ERASE: Write = "flex.log.erase";
    /// Makes that durable before anything else is written.
    pub LOG_ERASE_FLUSH: Flush = "flex.log.erase.flush";
    /// Writes nodes and map of a checkpoint.
    pub NODE_WRITE: Write = "flex.node.write";
    /// Makes them durable before the header points at them.
    pub NODE_FLUSH: Flush = "flex.node.flush";
    /// Writes the header of a checkpoint.
    pub HEADER_WRITE: Write = "flex.header.write";
    /// Makes the header durable before the log is overwritten.
    pub HEADER_FLUSH: Flush = "flex.header.flush";
    /// Makes durable what recovery found, before anything that it replaced is overwritten.
    pub RECOVER_FLUSH: Flush = "flex.recover.flush";
    /// Tells the file system of free segments.
    pub TRIM: Write = "flex.trim";
    /// Segments that are full are on their device before a group of the log refers to them.
    pub FILLED_WAIT: Wait = "flex.filled.wait";
    /// A segment is taken again only after what freed it is durable.
    pub SEGMENT_WAIT: Wait = "flex.segment.wait";
    /// A slot of the tree file is used again only after a tree without it is durable.
    pub SLOT_WAIT: Wait = "flex.slot.wait";
    /// There is no space where a header's place says that a restore did not end.
    pub RESTORE_MARK: Compare = "flex.restore.mark";
    /// Of two headers the newer one counts.
    pub HEADER_NEWEST: Compare = "flex.header.newest";
    /// A header has its checksum.
    pub HEADER_CHECKSUM: Checksum = "flex.header.checksum";
    /// The map has its checksum.
    pub MAP_CHECKSUM: Checksum = "flex.map.checksum";
    /// A node has the checksum that the node above knows.
    pub NODE_CHECKSUM: Checksum = "flex.node.checksum";
    /// A block of data has the checksum of its place and time.
    pub BLOCK_CHECKSUM: Checksum = "flex.block.checksum";
    /// A group of the log has its checksum.
    pub LOG_CHECKSUM: Checksum = "flex.log.checksum";
    /// A group builds on the tree that is there.
    pub LOG_GENERATION: Compare = "flex.log.generation";
    /// A group behind the end of the log, or of a newer tree, is proof of damage.
    pub LOG_DAMAGE: Compare = "flex.log.damage";
    /// Nobody took the segment anew while it was read.
    pub READ_SALT: Compare = "flex.read.salt";
}
