//! Opening and creating the file or device below a [`FileDevice`](super::FileDevice).
//!
//! # Invariants
//! - I1: a new file is complete (allocated, its entry durable) or absent when `open` returns. A crash in between leaves an
//!   empty one, perhaps with space behind its end, with which the next open begins anew: it has no size before all of
//!   it is there. Of one in main memory that will be mapped only the size is there; who maps it allocates it again.
//! - I2: the lock is taken before the file is changed in any way, or taken away again; who has it has the file of that name.
//!
//! # Failure
//! Every error names the step. A file that this call created and locked is removed again. Where a file system cannot
//! allocate, a crash may leave what was being filled under the name with [`BESIDE`]; the next making removes it.

use super::durability::{self, Backing};
use super::{Direct, OpenOptions};
use crate::block::BlockGeometry;
use crate::buffer::BufferPool;
use crate::folder::room_of;
use crate::locked::LockedFile;
use crate::pmem::huge;
use esker_base::units::round_down;
use esker_base::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags, SeekFrom, Stat, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::process::{Gid, Uid};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Smallest block size in bytes, for files that know no other.
const BLOCK_SIZE_BYTES_MIN: u32 = 512;
/// Bytes of one write where a file system cannot allocate without writing.
const FILL_CHUNK_BYTES: usize = 1 << 20;
/// What the name of a file ends with while it is filled.
const BESIDE: &str = ".esker-new";

/// An open medium and what was found out about it.
pub(crate) struct Opened {
    pub(crate) fd: LockedFile,
    pub(crate) geometry: BlockGeometry,
    pub(crate) memory_alignment: Option<usize>,
    pub(crate) backing: Backing,
}

fn failed(operation: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::io(operation, errno.into())
}

pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Opened> {
    let existing = match rustix::fs::stat(path) {
        Ok(stat) => Some(FileType::from_raw_mode(stat.st_mode)),
        Err(Errno::NOENT) if options.create_size_bytes.is_some() && !options.read_only => None,
        Err(errno) => return Err(failed("open device")(errno)),
    };
    let (fd, created) = match existing {
        Some(FileType::RegularFile) => (open_file(path, options, OFlags::empty())?, false),
        Some(FileType::BlockDevice) => {
            // On a block device O_EXCL without O_CREAT refuses a mounted or claimed device.
            let claim = options.lock && !options.read_only;
            let flags = if claim { OFlags::EXCL } else { OFlags::empty() };
            (open_file(path, options, flags)?, false)
        }
        Some(_) => {
            let context = "neither a regular file nor a block device";
            return Err(Error::invalid("open device", context));
        }
        None => (open_file(path, options, OFlags::CREATE | OFlags::EXCL)?, true),
    };
    #[cfg(test)]
    tests::before_lock();
    let mut fd = if options.lock {
        // Who is refused leaves the file: it may be the store of whoever was faster.
        let fd = lock(fd, options.read_only)?;
        check_place(&fd, path)?;
        fd
    } else {
        LockedFile::without_lock(fd)
    };
    let result = examine(&mut fd, path, options, created);
    if result.is_err() && created {
        // Nobody else has it: this call created it, and locked it.
        let _ = rustix::fs::unlink(path);
    }
    let (geometry, memory_alignment, backing) = result?;
    Ok(Opened { fd, geometry, memory_alignment, backing })
}

fn open_file(path: &Path, options: &OpenOptions, flags: OFlags) -> Result<OwnedFd> {
    let access = if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let flags = flags | access | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::open(path, flags, mode).map_err(|errno| match errno {
        Errno::BUSY => locked("the device is mounted or claimed by another process"),
        Errno::NOSPC => Error::new(ErrorKind::NoSpace, "open device"),
        errno => failed("open device")(errno),
    })
}

fn locked(context: &'static str) -> Error {
    Error::new(ErrorKind::Locked, "lock device").context(context)
}

type Examined = (BlockGeometry, Option<usize>, Backing);

/// Another file takes the place of `fd` where a new one is made beside it.
fn examine(
    fd: &mut LockedFile,
    path: &Path,
    options: &OpenOptions,
    created: bool,
) -> Result<Examined> {
    let stat = rustix::fs::fstat(&*fd).map_err(failed("examine device"))?;
    let is_raw_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    let mut size_bytes = size(fd)?;
    if let Some(wanted) = options.create_size_bytes {
        let fresh = created || (size_bytes == 0 && !is_raw_device && !options.read_only);
        if fresh {
            create(fd, path, wanted, created, options)?;
            size_bytes = wanted;
        } else if options.resize && !is_raw_device && !options.read_only {
            resize(fd, size_bytes, wanted)?;
            size_bytes = wanted;
        }
        check_size(is_raw_device, wanted, size_bytes)?;
    }
    let backing = durability::examine(&*fd, &stat, is_raw_device);
    let (block_size_bytes, memory_alignment) = choose_direct(fd, options, is_raw_device)?;
    size_bytes -= size_bytes % u64::from(block_size_bytes);
    if size_bytes == 0 {
        return Err(Error::invalid("open device", "the file or device has no whole block"));
    }
    Ok((BlockGeometry { size_bytes, block_size_bytes }, memory_alignment, backing))
}

fn size(fd: &LockedFile) -> Result<u64> {
    rustix::fs::seek(fd, SeekFrom::End(0)).map_err(failed("size device"))
}

fn check_size(is_raw_device: bool, wanted: u64, size_bytes: u64) -> Result<()> {
    if is_raw_device && wanted > size_bytes {
        let context = format!("the device has {size_bytes} bytes, {wanted} are asked for");
        return Err(Error::new(ErrorKind::NoSpace, "open device").context(context));
    }
    if !is_raw_device && wanted != size_bytes {
        let context = format!("the file exists with {size_bytes} bytes, {wanted} are asked for");
        return Err(Error::invalid("open device", context));
    }
    Ok(())
}

fn lock(fd: OwnedFd, shared: bool) -> Result<LockedFile> {
    LockedFile::lock(fd, shared)
        .map_err(failed("lock device"))?
        .ok_or_else(|| locked("another process, or this one, has it open"))
}

/// Refuses a file that has not its name any more: whoever made it failed, and took it away before it was locked here.
fn check_place(fd: &LockedFile, path: &Path) -> Result<()> {
    let opened = rustix::fs::fstat(fd).map_err(failed("examine device"))?;
    let same = |named: &Stat| (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino);
    match rustix::fs::stat(path) {
        Ok(named) if same(&named) => Ok(()),
        Ok(_) | Err(Errno::NOENT) => Err(locked("another process has just taken it away")),
        Err(errno) => Err(failed("examine device")(errno)),
    }
}

/// Allocates the whole file and makes its existence durable (I1).
fn create(
    fd: &mut LockedFile,
    path: &Path,
    size_bytes: u64,
    created: bool,
    options: &OpenOptions,
) -> Result<()> {
    if size_bytes == 0 {
        return Err(Error::invalid("create file", "a size of 0 bytes"));
    }
    if !created {
        // A making that was cut off left space behind the end.
        rustix::fs::ftruncate(&*fd, 0).map_err(failed("empty file"))?;
    }
    // Before anything is taken: in main memory others would be without until the last page is refused.
    let fits = if size_bytes > room(fd) { Err(Errno::NOSPC) } else { Ok(()) };
    let huge = options.mapped && durability::file_system_name(&*fd) == "tmpfs";
    let huge = |()| if huge { huge::allocate(&*fd, size_bytes) } else { Ok(()) };
    let allocated = match fits.and_then(huge).and_then(|()| take_range(fd, 0, size_bytes)) {
        Ok(()) => give_size(fd, size_bytes),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            fill_beside(fd, path, size_bytes, options.lock).map(|new| *fd = new)
        }
        Err(errno) => Err(failed("allocate file")(errno)),
    };
    if allocated.is_err() && !created {
        // It was empty before: leave it so.
        let _ = rustix::fs::ftruncate(&*fd, 0);
    }
    allocated?;
    // A link stays one, and leads to where the file is.
    flush_folder(&path.canonicalize().unwrap_or_else(|_| path.to_path_buf()))
}

/// Gives a file another size, allocated as far as the file system can.
fn resize(fd: &LockedFile, size_bytes: u64, wanted: u64) -> Result<()> {
    match wanted {
        0 => Err(Error::invalid("resize file", "a size of 0 bytes")),
        _ if wanted > size_bytes => allocate(fd, size_bytes, wanted - size_bytes),
        _ => rustix::fs::ftruncate(fd, wanted).map_err(failed("resize file")),
    }
}

/// Makes the entry of a file durable.
fn flush_folder(path: &Path) -> Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(parent, flags, Mode::empty()).map_err(failed("open folder"))?;
    rustix::fs::fsync(&folder).map_err(failed("flush folder of new file"))
}

/// Bytes that the file system still has, as far as it tells.
fn room(fd: &LockedFile) -> u64 {
    rustix::fs::fstatvfs(fd).ok().and_then(|of| room_of(&of)).unwrap_or(u64::MAX)
}

/// Gives a file that is allocated its size (I1).
fn give_size(fd: &LockedFile, size_bytes: u64) -> Result<()> {
    rustix::fs::fsync(fd).map_err(failed("flush new file"))?;
    #[cfg(test)]
    tests::before_whole();
    rustix::fs::ftruncate(fd, size_bytes).map_err(failed("allocate file"))?;
    rustix::fs::fsync(fd).map_err(failed("flush new file"))
}

/// Takes space for a range of a file. Behind its end it has that without being longer: a file system that runs full, or
/// a crash, amid this would leave it longer by a part of the range.
fn take_range(fd: &LockedFile, offset: u64, length: u64) -> rustix::io::Result<()> {
    let take =
        |flags| rustix::io::retry_on_intr(|| rustix::fs::fallocate(fd, flags, offset, length));
    match take(FallocateFlags::KEEP_SIZE) {
        // NFS only knows the other kind, and does it at once.
        Err(Errno::OPNOTSUPP) => take(FallocateFlags::empty()),
        taken => taken,
    }
}

/// Allocates a range of a file, behind its end or inside; where the file system cannot, a file is only
/// made longer. Only one at a time may go behind the end, which stays where it was if that fails.
pub(crate) fn allocate(fd: &LockedFile, offset: u64, length: u64) -> Result<()> {
    let (size, end) = (size(fd)?, offset.saturating_add(length));
    let taken = match take_range(fd, offset, length) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) if end <= size => Ok(()),
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => rustix::fs::ftruncate(fd, end),
        Err(errno) => Err(errno),
    };
    if taken.is_err() && end > size {
        // ext4 keeps what it had taken before it found no more.
        let _ = rustix::fs::ftruncate(fd, size);
    }
    taken.map_err(failed("allocate file"))
}

/// Makes a file of zeros beside the empty one at `path`, where the file system cannot allocate otherwise, and puts it in
/// that one's place, whose lock the caller has (I1).
fn fill_beside(
    empty: &LockedFile,
    path: &Path,
    size_bytes: u64,
    with_lock: bool,
) -> Result<LockedFile> {
    const OPERATION: &str = "create file beside";
    let path = path.canonicalize().map_err(|source| Error::io(OPERATION, source))?;
    let mut beside = path.clone().into_os_string();
    beside.push(BESIDE);
    let beside = PathBuf::from(beside);
    match rustix::fs::unlink(&beside) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(failed("remove what an earlier making left")(errno)),
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let new =
        rustix::fs::open(&beside, flags, Mode::RUSR | Mode::WUSR).map_err(failed(OPERATION))?;
    let whole = || {
        let new = if with_lock { lock(new, false)? } else { LockedFile::without_lock(new) };
        if let Ok(stat) = rustix::fs::fstat(empty) {
            // As whoever made the empty one wants it, as far as this process may.
            let (owner, group) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
            let _ = rustix::fs::fchown(&new, Some(owner), Some(group));
            let _ = rustix::fs::fchmod(&new, Mode::from_raw_mode(stat.st_mode));
        }
        fill(&new, size_bytes)?;
        rustix::fs::fsync(&new).map_err(failed("flush new file"))?;
        #[cfg(test)]
        tests::before_whole();
        rustix::fs::rename(&beside, &path).map_err(failed(OPERATION))?;
        Ok(new)
    };
    whole().inspect_err(|_| {
        let _ = rustix::fs::unlink(&beside);
    })
}

/// Writes zeros.
fn fill(fd: &LockedFile, size_bytes: u64) -> Result<()> {
    let zeros = BufferPool::new(0).get_zeroed(FILL_CHUNK_BYTES);
    let mut done = 0;
    while done < size_bytes {
        let count = usize::try_from(size_bytes - done).unwrap_or(usize::MAX).min(zeros.len());
        let piece = zeros.get(..count).unwrap_or(&zeros);
        match rustix::io::pwrite(fd, piece, done) {
            Ok(written) => done += written as u64,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed("allocate file")(errno)),
        }
    }
    Ok(())
}

/// Block size, and the alignment of memory if the page cache is bypassed.
fn choose_direct(
    fd: &LockedFile,
    options: &OpenOptions,
    is_raw_device: bool,
) -> Result<(u32, Option<usize>)> {
    let logical = if is_raw_device {
        rustix::fs::ioctl_blksszget(fd).unwrap_or(BLOCK_SIZE_BYTES_MIN)
    } else {
        BLOCK_SIZE_BYTES_MIN
    }
    .max(BLOCK_SIZE_BYTES_MIN);
    if options.direct == Direct::Never {
        return Ok((logical, None));
    }
    if let Some((block_size_bytes, alignment)) = try_direct(fd, logical)? {
        return Ok((block_size_bytes, Some(alignment)));
    }
    if options.direct == Direct::Require {
        return Err(Error::new(ErrorKind::Unsupported, "open device")
            .context("this file system refuses O_DIRECT"));
    }
    Ok((logical, None))
}

/// Switches `O_DIRECT` on and finds the alignments that it needs: asked where the kernel knows
/// them (Linux 6.1), tried otherwise. `None`, and switched off, where it is refused.
fn try_direct(fd: &LockedFile, logical: u32) -> Result<Option<(u32, usize)>> {
    let flags = rustix::fs::fcntl_getfl(fd).map_err(failed("examine device"))?;
    if rustix::fs::fcntl_setfl(fd, flags | OFlags::DIRECT).is_err() {
        return Ok(None);
    }
    let mut memory_alignment = None;
    let mut first = logical;
    if let Ok(statx) = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        && StatxFlags::from_bits_retain(statx.stx_mask).contains(StatxFlags::DIOALIGN)
        && statx.stx_dio_offset_align > 0
    {
        first = first.max(statx.stx_dio_offset_align);
        memory_alignment = usize::try_from(statx.stx_dio_mem_align).ok();
    }
    let pool = BufferPool::new(0);
    for block_size_bytes in [first, 4096] {
        let mut probe = pool.get(block_size_bytes as usize);
        match rustix::io::pread(fd.as_fd(), &mut probe[..], 0) {
            Err(Errno::INVAL) => {}
            // Also with a first block that cannot be read: who reads it in earnest meets that.
            _ if block_size_bytes.is_power_of_two() => {
                let alignment = memory_alignment.unwrap_or(block_size_bytes as usize).max(1);
                return Ok(Some((block_size_bytes, alignment)));
            }
            _ => {}
        }
    }
    rustix::fs::fcntl_setfl(fd, flags).map_err(failed("examine device"))?;
    Ok(None)
}

/// Whether the file below takes requests that must not wait, as its file system or driver says. Read
/// errors are no answer; who reads in earnest meets them.
pub(super) fn is_nowait(fd: BorrowedFd<'_>, block_size_bytes: u32) -> bool {
    let mut probe = BufferPool::new(0).get(block_size_bytes as usize);
    let mut pieces = [IoSliceMut::new(&mut probe)];
    let read = rustix::io::preadv2(fd, &mut pieces, 0, ReadWriteFlags::NOWAIT);
    read != Err(Errno::OPNOTSUPP)
}

/// Whether nobody slept in some reads all over the device, as the kernel counts: a device that is memory
/// copies within the call. A doubt is a no.
pub(super) fn answers_at_once(fd: BorrowedFd<'_>, geometry: BlockGeometry) -> bool {
    const PROBES: u64 = 16;
    let BlockGeometry { size_bytes, block_size_bytes } = geometry;
    let block = u64::from(block_size_bytes);
    let mut probe = BufferPool::new(0).get(block_size_bytes as usize);
    let before = times_slept();
    let step = round_down(size_bytes / PROBES, block);
    let read = (0..PROBES).all(|part| rustix::io::pread(fd, &mut probe[..], part * step).is_ok());
    read && before.is_some() && times_slept() == before
}

/// How often this thread gave its processor up to wait for something.
fn times_slept() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests;
