//! The sites of backups, which all engines share: where durability and integrity of their files are decided.
//!
//! A test build can disable each of them alone; the crash exploration of each engine must then fail.

esker_base::sites! {
    /// Makes a file of a backup durable before the manifest names it.
    pub BACKUP_FILE_FLUSH: Flush = "backup.file.flush";
    /// Makes the names of files durable before the manifest, and its name before files are removed.
    pub BACKUP_FOLDER_FLUSH: Flush = "backup.folder.flush";
    /// A file of a backup has the checksum that the manifest says.
    pub RESTORE_CHECKSUM: Checksum = "backup.restore.checksum";
}
