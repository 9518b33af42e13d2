//! What stands below a file or device, and what makes a write durable there.
//!
//! Read once at open, from the file system's type and from `/sys`. The answer chooses the way of
//! durable writes and is told in words, because nobody can see from outside whether an
//! acknowledged write survives a power cut.
//!
//! # Failure
//! Whatever cannot be found out counts as a volatile cache: a flush too many is slow, one too few
//! loses data.

use crate::block::BlockGeometry;
use rustix::fs::Stat;
use std::fmt::Write as _;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// Whether the device below acknowledges writes that a power cut may lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheMode {
    /// A volatile cache: durable after a flush.
    WriteBack,
    /// No volatile cache: durable when the device has the bytes.
    WriteThrough,
    /// Not known; treated as a volatile cache.
    Unknown,
    /// Main memory: nothing survives a power cut.
    Memory,
}

/// Which way a durable write goes. `docs/rfcs/0002-durable-writes.md` has the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DurableWrites {
    /// One write with `RWF_DSYNC`: the kernel uses forced unit access where the device has it.
    Dsync,
    /// A plain write, then `fdatasync`.
    WriteThenSync,
}

/// What stands below.
#[derive(Clone, Debug)]
pub struct Backing {
    /// A raw device; otherwise a file.
    pub is_raw_device: bool,
    /// Type of the file system, for files.
    pub file_system: &'static str,
    /// Name of the disk as the kernel calls it, if there is one.
    pub disk: Option<String>,
    /// Volatile cache of the disk.
    pub cache: CacheMode,
    /// Whether the disk writes single blocks past its cache (forced unit access).
    pub forced_unit_access: bool,
}

impl DurableWrites {
    /// `RWF_DSYNC`, which measurements favour, on a raw device and where the file system is known to heed it. Others may take the flag and
    /// forget it: FUSE does for direct I/O, and so does what lies on top of it.
    #[must_use]
    pub fn choose(backing: &Backing) -> Self {
        let heeds = ["ext4", "xfs", "btrfs", "f2fs", "zfs", "tmpfs", "ramfs"];
        if backing.is_raw_device || heeds.contains(&backing.file_system) {
            DurableWrites::Dsync
        } else {
            DurableWrites::WriteThenSync
        }
    }
}

/// Finds out what stands below `fd`.
pub(super) fn examine(fd: impl AsFd, stat: &Stat, is_raw_device: bool) -> Backing {
    let file_system = if is_raw_device { "none" } else { file_system_name(&fd) };
    let number = if is_raw_device { stat.st_rdev } else { stat.st_dev };
    let folder = queue_folder(rustix::fs::major(number), rustix::fs::minor(number));
    let disk =
        folder.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    let word = |name: &str| {
        let path = folder.as_ref()?.join("queue").join(name);
        Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
    };
    let in_memory = matches!(file_system, "tmpfs" | "ramfs")
        || disk.as_deref().is_some_and(|disk| disk.starts_with("zram") || disk.starts_with("ram"));
    let cache = match word("write_cache").as_deref() {
        _ if in_memory => CacheMode::Memory,
        Some("write back") => CacheMode::WriteBack,
        Some("write through") => CacheMode::WriteThrough,
        _ => CacheMode::Unknown,
    };
    let forced_unit_access = word("fua").as_deref() == Some("1");
    Backing { is_raw_device, file_system, disk, cache, forced_unit_access }
}

/// The folder in `/sys` of the disk with this device number; of the whole disk for a partition.
fn queue_folder(major: u32, minor: u32) -> Option<PathBuf> {
    if major == 0 {
        return None;
    }
    let folder = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    if folder.join("partition").exists() {
        return folder.parent().map(Path::to_path_buf);
    }
    Some(folder)
}

pub(super) fn file_system_name(fd: impl AsFd) -> &'static str {
    let Ok(stat) = rustix::fs::fstatfs(fd) else { return "an unknown file system" };
    match u32::try_from(stat.f_type & 0xFFFF_FFFF).unwrap_or(0) {
        0xEF53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683E => "btrfs",
        0xF2F5_2010 => "f2fs",
        0x2FC1_2FC1 => "zfs",
        0x0102_1994 => "tmpfs",
        0x8584_58F6 => "ramfs",
        0x794C_7630 => "overlay",
        0x6573_5546 => "fuse",
        0x6969 => "nfs",
        _ => "another file system",
    }
}

/// What the device is and what makes a write durable on it.
pub(super) fn report(
    name: &str,
    backing: &Backing,
    geometry: BlockGeometry,
    direct: bool,
    durable_writes: DurableWrites,
    punch_holes: bool,
) -> String {
    let mut text = String::new();
    let disk = backing.disk.as_deref().unwrap_or("unknown");
    let _ = if backing.is_raw_device {
        write!(text, "raw device {name} (disk {disk}")
    } else {
        write!(text, "file {name} on {} (disk {disk}", backing.file_system)
    };
    text.push_str(match backing.cache {
        CacheMode::WriteBack => ", volatile write-back cache",
        CacheMode::WriteThrough => ", no volatile write cache",
        CacheMode::Unknown => ", cache unknown and so taken as volatile",
        CacheMode::Memory => ", main memory",
    });
    text.push_str(if backing.forced_unit_access { ", forced unit access)" } else { ")" });
    let _ = write!(
        text,
        ", {} bytes in blocks of {}; ",
        geometry.size_bytes, geometry.block_size_bytes
    );
    text.push_str(if direct {
        "direct I/O; "
    } else {
        "buffered I/O through the page cache, because O_DIRECT was refused or not wanted; "
    });
    text.push_str(match backing.cache {
        CacheMode::Memory => "NOTHING HERE SURVIVES A POWER CUT; ",
        CacheMode::WriteThrough if direct => {
            "a write is durable when the disk has it, a new extent after fdatasync; "
        }
        _ => "a write is durable after fdatasync; ",
    });
    text.push_str(match durable_writes {
        DurableWrites::Dsync => "single durable writes use RWF_DSYNC",
        DurableWrites::WriteThenSync => "single durable writes use a write and fdatasync",
    });
    text.push_str(match (backing.is_raw_device, punch_holes) {
        (true, _) => "; the device is told of discards",
        (false, true) => "; discards punch holes",
        (false, false) => "; discards keep the space reserved",
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_that_may_forget_the_flag_gets_a_flush() {
        let chosen = |is_raw_device, file_system| {
            let (disk, cache) = (None, CacheMode::Unknown);
            let forced_unit_access = false;
            let backing = Backing { is_raw_device, file_system, disk, cache, forced_unit_access };
            DurableWrites::choose(&backing)
        };
        assert_eq!(chosen(true, "none"), DurableWrites::Dsync);
        assert_eq!(chosen(false, "ext4"), DurableWrites::Dsync);
        for other in ["fuse", "overlay", "nfs", "another file system", "an unknown file system"] {
            assert_eq!(chosen(false, other), DurableWrites::WriteThenSync, "{other}");
        }
    }
}
