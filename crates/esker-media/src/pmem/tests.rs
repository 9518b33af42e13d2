//! Persistent memory on real files: modes, bounds, counters, lost pages.

use super::*;
use esker_base::{ErrorKind, SiteKind};
use std::path::{Path, PathBuf};

const STORE: Site = Site::new("test.pmem.store", SiteKind::Write);
const FLUSH: Site = Site::new("test.pmem.flush", SiteKind::Flush);
const FENCE: Site = Site::new("test.pmem.fence", SiteKind::Fence);

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("memory");
    (folder, path)
}

fn options(emulate: bool) -> PmemOptions {
    PmemOptions { create_size_bytes: Some(64 << 10), emulate, ..PmemOptions::default() }
}

#[test]
fn stores_of_any_alignment_read_back_and_survive_a_reopen() {
    for emulate in [false, true] {
        let (_folder, path) = folder();
        let memory = PmemFile::open(&path, options(emulate)).unwrap();
        let bytes: Vec<u8> = (0..300_u32).map(|index| (index % 251) as u8).collect();
        for (offset, length) in [(0, 0), (3, 1), (8, 8), (61, 7), (100, 300), (4090, 20)] {
            memory.store(STORE, offset, &bytes[..length]).unwrap();
            let mut back = vec![0; length];
            memory.read(offset, &mut back).unwrap();
            assert_eq!(back, bytes[..length], "{length} at {offset}");
            memory.flush(FLUSH, offset, length as u64).unwrap();
        }
        memory.ntstore(STORE, 8192, &bytes[..296]).unwrap();
        memory.store_u64(STORE, 16, 0x0102_0304_0506_0708).unwrap();
        memory.flush(FLUSH, 16, 8).unwrap();
        memory.fence(FENCE).unwrap();
        let mut word = [0; 8];
        memory.read(16, &mut word).unwrap();
        assert_eq!(word, [8, 7, 6, 5, 4, 3, 2, 1], "little-endian");
        drop(memory);
        let memory =
            PmemFile::open(&path, PmemOptions { emulate, ..PmemOptions::default() }).unwrap();
        assert_eq!(memory.load_u64(16).unwrap(), 0x0102_0304_0506_0708);
        let mut back = vec![0; 296];
        memory.read(8192, &mut back).unwrap();
        assert_eq!(back, bytes[..296]);
    }
}

#[test]
fn a_fence_syncs_whole_pages_of_the_system_up_to_the_end() {
    let (_folder, path) = folder();
    let size_bytes = 200 << 10;
    let options = PmemOptions { create_size_bytes: Some(size_bytes), ..PmemOptions::default() };
    let mut memory = match PmemFile::open(&path, options) {
        Ok(memory) if memory.mode() == PmemMode::Msync => memory,
        other => {
            crate::skipped::because(format_args!(
                "no file here that is mapped without DAX: {other:?}"
            ));
            return;
        }
    };
    memory.page_size_bytes = 64 << 10;
    // In the second half of a page; over the end of another; in the last, which is cut short.
    for (offset, length, ranges) in [
        (40 << 10, 8, vec![(0, 64 << 10)]),
        ((128 << 10) - 4, 8, vec![(64 << 10, 128 << 10)]),
        (size_bytes - 8, 8, vec![(192 << 10, 8 << 10)]),
    ] {
        memory.store(STORE, offset, &[7; 8][..length]).unwrap();
        memory.flush(FLUSH, offset, length as u64).unwrap();
        assert_eq!(memory.dirty_ranges(&memory.dirty.lock()), ranges, "{offset}");
        memory.fence(FENCE).unwrap();
        assert!(memory.dirty.lock().is_empty());
    }
}

#[test]
fn ranges_of_any_alignment_are_read_up_to_the_ends() {
    let (_folder, path) = folder();
    let memory = PmemFile::open(&path, options(true)).unwrap();
    let size = usize::try_from(memory.size_bytes()).unwrap();
    let all: Vec<u8> = (0..size).map(|index| (index * 7 + index / 256).to_le_bytes()[0]).collect();
    memory.store(STORE, 0, &all).unwrap();
    for base in [0, 4080, size - 60] {
        for (skip, length) in (0..30).flat_map(|skip| (0..=30).map(move |length| (skip, length))) {
            let range = base + skip..base + skip + length;
            let mut back = vec![0; length];
            memory.read(range.start as u64, &mut back).unwrap();
            assert_eq!(back, all[range.clone()], "{range:?}");
        }
    }
}

#[test]
fn counters_count_lines_and_media_blocks() {
    let (_folder, path) = folder();
    let memory = PmemFile::open(&path, options(true)).unwrap();
    memory.store(STORE, 0, &[1; 100]).unwrap();
    memory.flush(FLUSH, 60, 8).unwrap();
    memory.ntstore(STORE, 248, &[1; 16]).unwrap();
    memory.fence(FENCE).unwrap();
    let expected = PmemCounters { stores: 2, flushed_lines: 2, fences: 1, media_blocks: 3 };
    assert_eq!(memory.counters(), expected);
}

#[test]
fn ranges_outside_and_misaligned_words_are_refused() {
    let (_folder, path) = folder();
    let memory = PmemFile::open(&path, options(true)).unwrap();
    let end = memory.size_bytes();
    let kinds = [
        memory.read(end - 1, &mut [0; 2]).unwrap_err().kind(),
        memory.read(u64::MAX, &mut [0; 2]).unwrap_err().kind(),
        memory.load_u64(4).unwrap_err().kind(),
        memory.store_u64(STORE, end, 1).unwrap_err().kind(),
        memory.ntstore(STORE, 0, &[0; 9]).unwrap_err().kind(),
        memory.flush(FLUSH, end, 1).unwrap_err().kind(),
    ];
    assert_eq!(kinds, [ErrorKind::InvalidArgument; 6]);
}

#[test]
fn a_second_opener_is_refused() {
    let (_folder, path) = folder();
    let _memory = PmemFile::open(&path, options(true)).unwrap();
    let error = PmemFile::open(&path, PmemOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Locked);
}

#[test]
fn main_memory_passes_for_persistent_only_when_asked_for_by_name() {
    let folder = Path::new("/dev/shm");
    let Ok(folder) = tempfile::tempdir_in(folder) else {
        crate::skipped::because("no tmpfs at /dev/shm");
        return;
    };
    let path = folder.path().join("memory");
    let error = PmemFile::open(&path, options(false)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("emulation"), "{error}");
    assert!(!path.exists(), "nothing is left behind");
    let memory = PmemFile::open(&path, options(true)).unwrap();
    assert_eq!(memory.mode(), PmemMode::Emulated);
    assert!(memory.report().contains("NOTHING HERE SURVIVES A POWER CUT"));
}

/// A tmpfs gives page after page until there is none: others would be without meanwhile.
#[test]
fn memory_that_there_is_not_is_refused_before_any_is_taken() {
    let Ok(folder) = tempfile::tempdir_in(Path::new("/dev/shm")) else {
        crate::skipped::because("no tmpfs at /dev/shm");
        return;
    };
    let of = rustix::fs::statvfs(folder.path()).unwrap();
    // A page more than an empty one has.
    let size = of.f_blocks * of.f_frsize + 4096;
    let path = folder.path().join("memory");
    let with =
        PmemOptions { create_size_bytes: Some(size), emulate: true, ..PmemOptions::default() };
    let error = PmemFile::open(&path, with).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(!path.exists(), "nothing is left behind");
}

#[test]
fn a_file_in_main_memory_is_allocated_and_zero_whatever_its_pages() {
    let Ok(folder) = tempfile::tempdir_in(Path::new("/dev/shm")) else {
        crate::skipped::because("no tmpfs at /dev/shm");
        return;
    };
    let path = folder.path().join("memory");
    let size = (5 << 20) + (12 << 10);
    let with =
        PmemOptions { create_size_bytes: Some(size), emulate: true, ..PmemOptions::default() };
    let memory = PmemFile::open(&path, with).unwrap();
    let allocated = rustix::fs::fstat(&memory.fd).unwrap().st_blocks * 512;
    assert!(allocated.unsigned_abs() >= size, "{allocated} bytes");
    let mut buf = vec![1; usize::try_from(size).unwrap()];
    memory.read(0, &mut buf).unwrap();
    assert!(buf.iter().all(|byte| *byte == 0));
    for offset in [0, (2 << 20) - 32, (4 << 20) - 7, size - 64] {
        memory.store(STORE, offset, &[7; 64]).unwrap();
    }
    drop(memory);
    let memory = PmemFile::open(&path, with).unwrap();
    for offset in [0, (2 << 20) - 32, (4 << 20) - 7, size - 64] {
        let mut buf = [0; 64];
        memory.read(offset, &mut buf).unwrap();
        assert_eq!(buf, [7; 64]);
    }
    // A page that it loses is one of them, not all that are mapped as one.
    rustix::fs::ftruncate(&memory.fd, (1 << 20) + (4 << 10)).unwrap();
    let mut buf = [0; 64];
    assert_eq!(memory.read(1 << 20, &mut buf).map_err(|error| error.kind()), Ok(()));
    let error = memory.read((1 << 20) + (4 << 10), &mut buf).unwrap_err();
    assert_eq!(error.range(), Some(((1 << 20) + (4 << 10), 4096)));
}

#[test]
fn without_dax_a_file_says_that_it_needs_msync() {
    let (_folder, path) = folder();
    let memory = PmemFile::open(&path, options(false)).unwrap();
    if memory.mode() == PmemMode::Direct {
        crate::skipped::because("this folder is real persistent memory");
        return;
    }
    assert_eq!(memory.mode(), PmemMode::Msync);
    assert!(memory.report().contains("NOT persistent memory"), "{}", memory.report());
}

#[test]
fn a_page_that_the_file_lost_is_corrupted_and_the_process_lives() {
    let (_folder, path) = folder();
    let memory = PmemFile::open(&path, options(false)).unwrap();
    memory.store(STORE, 32 << 10, &[7; 64]).unwrap();
    rustix::fs::ftruncate(&memory.fd, 16 << 10).unwrap();
    let mut buf = [0; 64];
    let error = memory.read(32 << 10, &mut buf).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupted);
    assert_eq!(error.range(), Some((32 << 10, 4096)));
    assert_eq!(memory.load_u64(32 << 10).unwrap_err().kind(), ErrorKind::Corrupted, "for good");
    assert!(memory.store(STORE, 20 << 10, &[1]).is_err(), "stores notice it too");
    memory.store(STORE, 0, &[1; 64]).unwrap();
    memory.read(0, &mut buf).unwrap();
    assert_eq!(buf, [1; 64], "other pages go on");
}

#[test]
fn many_threads_store_their_own_words() {
    let (_folder, path) = folder();
    let memory = PmemFile::open(&path, options(true)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let memory = &memory;
            scope.spawn(move || {
                for round in 0..1000 {
                    memory.store_u64(STORE, thread * 8, thread << 32 | round).unwrap();
                    memory.flush(FLUSH, thread * 8, 8).unwrap();
                    memory.fence(FENCE).unwrap();
                }
            });
        }
    });
    for thread in 0..4 {
        assert_eq!(memory.load_u64(thread * 8).unwrap(), thread << 32 | 999);
    }
}

/// Means something on file systems that refuse `MAP_SYNC` only when the place of the mapping is free already, as ext4 does.
#[test]
fn opening_takes_no_memory_that_others_map_meanwhile() {
    const BYTES: usize = 40 << 20;
    let (_folder, path) = folder();
    let options = PmemOptions {
        create_size_bytes: Some(3 * BYTES as u64 / 2),
        emulate: true,
        ..PmemOptions::default()
    };
    drop(PmemFile::open(&path, options).unwrap());
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for mark in 1..=2_u8 {
            let done = &done;
            scope.spawn(move || {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    // So much is mapped by any allocator, and a page is there once it is written.
                    let mut bytes = vec![0_u8; BYTES];
                    bytes.iter_mut().step_by(1 << 20).for_each(|byte| *byte = mark);
                    assert!(bytes.iter().step_by(1 << 20).all(|byte| *byte == mark));
                }
            });
        }
        let opened = (0..2000).try_for_each(|_| PmemFile::open(&path, options).map(drop));
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        opened.unwrap();
    });
}

#[test]
fn a_file_with_holes_is_allocated_before_it_is_mapped() {
    use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, ftruncate};
    use std::os::unix::fs::MetadataExt;
    for folder in [std::env::temp_dir(), "/dev/shm".into()] {
        let folder = tempfile::tempdir_in(folder).unwrap();
        let path = folder.path().join("memory");
        // What a making leaves that is killed when the file has its size, and what a copy of a store may be.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).unwrap();
        ftruncate(&file, 1 << 20).unwrap();
        fallocate(&file, FallocateFlags::empty(), 8192, 700 << 10).unwrap();
        drop(file);
        let options = PmemOptions { emulate: true, ..PmemOptions::default() };
        let memory = PmemFile::open(&path, options).unwrap();
        assert_eq!(memory.size_bytes(), 1 << 20);
        let blocks = std::fs::metadata(&path).unwrap().blocks();
        assert!(blocks * 512 >= 1 << 20, "{blocks} blocks in {}", folder.path().display());
    }
}
