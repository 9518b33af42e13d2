//! Files and raw devices: round trips, locks, limits, durability, what a full file system does.

use super::*;
use esker_base::SiteKind;
use esker_trt::sync::Gate;
use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

const WRITE: Site = Site::new("test.file.write", SiteKind::Write);
const DURABLE: Site = Site::new("test.file.durable", SiteKind::DurableWrite);
const FLUSH: Site = Site::new("test.file.flush", SiteKind::Flush);
const READ: Site = Site::new("test.file.read", SiteKind::Read);

thread_local! {
    static ANSWERED: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// Called when the kernel has answered a flush or durable write, and nobody else knows. The first
/// on a thread that has set something is refused after it.
pub(super) fn answered() -> std::io::Result<()> {
    let Some(what) = ANSWERED.take() else { return Ok(()) };
    what();
    Err(Errno::IO.into())
}

fn create(size_bytes: u64) -> OpenOptions {
    OpenOptions { create_size_bytes: Some(size_bytes), ..OpenOptions::default() }
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device");
    (folder, path)
}

fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    esker_base::rng::Rng::from_seed(seed).fill(&mut bytes);
    bytes
}

fn round_trip(direct: Direct) {
    let (_folder, path) = folder();
    let options = OpenOptions { direct, ..create(8 << 20) };
    let device = FileDevice::open(&path, options).unwrap();
    let block = device.geometry().block_size_bytes as usize;
    assert_eq!(device.geometry().size_bytes, 8 << 20);
    let data = pattern(64 * block, 1);
    let (first, second) = data.split_at(3 * block);
    // Misaligned on purpose: a plain vector.
    let pieces = [IoSlice::new(first), IoSlice::new(second)];
    device.write_at(WRITE, block as u64, &pieces).unwrap();
    device.write_durable_at(DURABLE, 0, &[IoSlice::new(&data[..block])]).unwrap();
    device.flush(FLUSH).unwrap();
    let mut back = BufferPool::default().get(64 * block);
    device.read_at(READ, block as u64, &mut back).unwrap();
    assert_eq!(&back[..], &data[..]);
    let mut misaligned = vec![0; block + 1];
    device.read_at(READ, 0, &mut misaligned[1..]).unwrap();
    assert_eq!(&misaligned[1..], &data[..block]);
    let mut halves = (BufferPool::default().get(block), vec![0; block]);
    let mut pieces = [IoSliceMut::new(&mut halves.0), IoSliceMut::new(&mut halves.1)];
    device.read_vectored_at(READ, block as u64, &mut pieces).unwrap();
    assert_eq!((&halves.0[..], &halves.1[..]), (&data[..block], &data[block..2 * block]));

    // The page cache gives any bytes; the device only blocks.
    let mut few = [0; 700];
    let read = device.read_at(READ, block as u64 + 77, &mut few);
    assert_eq!(device.reads_bytes(), !device.is_direct());
    match device.reads_bytes() {
        true => assert_eq!(few[..], data[77..777]),
        false => assert_eq!(read.unwrap_err().kind(), ErrorKind::InvalidArgument),
    }
    let behind = device.read_at(READ, (8 << 20) - 100, &mut few);
    assert_eq!(behind.unwrap_err().kind(), ErrorKind::InvalidArgument);

    drop(device);
    let again = FileDevice::open(&path, OpenOptions { direct, ..OpenOptions::default() }).unwrap();
    again.read_at(READ, block as u64, &mut back).unwrap();
    assert_eq!(&back[..], &data[..], "it outlives the opener");
    assert!(again.counters().reads >= 1 && again.counters().read_bytes == back.len() as u64);
}

#[test]
fn many_reads_at_once_are_each_what_one_would_be() {
    for direct in [Direct::Prefer, Direct::Never] {
        let (_folder, path) = folder();
        let device = FileDevice::open(&path, OpenOptions { direct, ..create(2 << 20) }).unwrap();
        let data = pattern(2 << 20, 7);
        device.write_at(WRITE, 0, &[IoSlice::new(&data)]).unwrap();
        let block = device.geometry().block_size_bytes as usize;
        // More than are in flight at once, of several lengths, some on top of others.
        let places: Vec<(usize, usize)> =
            (0..200).map(|n| (n * 7919 % 300 * block, (1 + n % 9) * block)).collect();
        let pool = BufferPool::default();
        let mut bufs: Vec<_> = places.iter().map(|(_, length)| pool.get(*length)).collect();
        let mut reads: Vec<(u64, &mut [u8])> =
            places.iter().zip(&mut bufs).map(|((at, _), buf)| (*at as u64, &mut buf[..])).collect();
        let before = device.counters();
        device.read_many_at(READ, &mut reads).unwrap();
        for ((at, length), buf) in places.iter().zip(&bufs) {
            assert_eq!(&buf[..], &data[*at..at + length], "{at}");
        }
        let bytes: usize = places.iter().map(|(_, length)| length).sum();
        assert_eq!(device.counters().read_bytes - before.read_bytes, bytes as u64);
        let (mut inside, mut outside) = (pool.get(block), pool.get(block));
        let mut reads = [(0, &mut inside[..]), (2 << 20, &mut outside[..])];
        let error = device.read_many_at(READ, &mut reads).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "behind the end");
    }
}

#[test]
fn what_was_written_reads_back_directly_and_buffered() {
    round_trip(Direct::Prefer);
    round_trip(Direct::Never);
}

#[test]
fn more_pieces_than_one_call_takes_are_all_written() {
    let (_folder, path) = folder();
    let device = FileDevice::open(&path, create(4 << 20)).unwrap();
    let block = device.geometry().block_size_bytes as usize;
    let pool = BufferPool::default();
    let count = PIECE_COUNT_MAX + 100;
    let blocks: Vec<_> =
        (0..count).map(|index| pool.copy_of(&pattern(block, index as u64))).collect();
    let pieces: Vec<_> = blocks.iter().map(|block| IoSlice::new(block)).collect();
    device.write_at(WRITE, 0, &pieces).unwrap();
    let mut back = pool.get(block);
    for index in [0, PIECE_COUNT_MAX - 1, PIECE_COUNT_MAX, count - 1] {
        device.read_at(READ, (index * block) as u64, &mut back).unwrap();
        assert_eq!(&back[..], &blocks[index][..], "piece {index}");
    }
    assert_eq!(device.counters().write_bytes, (count * block) as u64);
    assert!(device.counters().writes >= 2);
}

#[test]
fn a_large_misaligned_write_goes_through_the_bounce_buffer_whole() {
    let (_folder, path) = folder();
    let device = FileDevice::open(&path, create(4 << 20)).unwrap();
    let data = pattern((2 << 20) + 1, 5);
    device.write_at(WRITE, 0, &[IoSlice::new(&data[1..])]).unwrap();
    let mut back = vec![0; 2 << 20];
    device.read_at(READ, 0, &mut back).unwrap();
    assert!(back == data[1..]);
}

#[test]
fn a_second_opener_is_refused_and_readers_share() {
    let (_folder, path) = folder();
    let first = FileDevice::open(&path, create(1 << 20)).unwrap();
    let error = FileDevice::open(&path, OpenOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Locked);
    drop(first);
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let one = FileDevice::open(&path, read_only).unwrap();
    let _two = FileDevice::open(&path, read_only).unwrap();
    assert_eq!(
        FileDevice::open(&path, OpenOptions::default()).unwrap_err().kind(),
        ErrorKind::Locked
    );
    let refused = one.write_at(WRITE, 0, &[IoSlice::new(&[0; 4096])]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly);
}

#[test]
fn who_closes_a_file_gives_its_lock_back_whoever_else_has_a_copy() {
    // A process that is being started has one until it runs its program.
    let (_folder, path) = folder();
    let device = FileDevice::open(&path, create(1 << 20)).unwrap();
    let _copy = rustix::io::dup(device.as_fd()).unwrap();
    drop(device);
    let device = FileDevice::open(&path, create(1 << 20)).unwrap();
    assert_eq!(FileDevice::open(&path, create(1 << 20)).unwrap_err().kind(), ErrorKind::Locked);
    drop(device);
}

#[test]
fn a_new_file_is_private_allocated_and_of_the_size_asked_for() {
    use std::os::unix::fs::MetadataExt;
    let (_folder, path) = folder();
    drop(FileDevice::open(&path, create(1 << 20)).unwrap());
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!((metadata.mode() & 0o777, metadata.len()), (0o600, 1 << 20));
    assert!(metadata.blocks() * 512 >= 1 << 20, "not sparse");
    let error = FileDevice::open(&path, create(2 << 20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "another size is not silently taken");
    drop(FileDevice::open(&path, create(1 << 20)).unwrap());
}

#[test]
fn wrong_ranges_and_wrong_kinds_of_files_are_refused() {
    let (folder, path) = folder();
    let device = FileDevice::open(&path, create(1 << 20)).unwrap();
    let block = u64::from(device.geometry().block_size_bytes);
    let data = vec![0; 8192];
    for (offset, length) in [(1, 4096), (0, 100), (1 << 20, 4096), ((1 << 20) - block, 8192)] {
        let error = device.write_at(WRITE, offset, &[IoSlice::new(&data[..length])]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{offset} {length}");
    }
    let error = FileDevice::open(folder.path(), OpenOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let error = FileDevice::open(&folder.path().join("none"), OpenOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
}

#[test]
fn a_file_cut_short_from_outside_is_an_error_and_not_zeros() {
    let (_folder, path) = folder();
    let device = FileDevice::open(&path, create(1 << 20)).unwrap();
    rustix::fs::ftruncate(device.as_fd(), 4096).unwrap();
    let mut buf = vec![0; 4096];
    device.read_at(READ, 0, &mut buf).unwrap();
    let error = device.read_at(READ, 8192, &mut buf).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("4096 bytes at offset 8192"), "{error}");
}

#[test]
fn prepared_and_discarded_ranges_stay_writable() {
    let (_folder, path) = folder();
    let options = OpenOptions { punch_holes: true, ..create(4 << 20) };
    let device = FileDevice::open(&path, options).unwrap();
    let data = pattern(8192, 3);
    device.prepare(WRITE, 1 << 20, 2 << 20).unwrap();
    device.write_durable_at(DURABLE, 1 << 20, &[IoSlice::new(&data)]).unwrap();
    device.discard(WRITE, 2 << 20, 1 << 20).unwrap();
    device.write_at(WRITE, 2 << 20, &[IoSlice::new(&data)]).unwrap();
    device.flush(FLUSH).unwrap();
    let mut back = vec![0; 8192];
    for offset in [1 << 20, 2 << 20] {
        device.read_at(READ, offset, &mut back).unwrap();
        assert_eq!(back, data);
    }
}

#[test]
fn the_report_says_what_makes_a_write_durable() {
    let (_folder, path) = folder();
    let device = FileDevice::open(&path, create(1 << 20)).unwrap();
    let report = device.report();
    assert!(report.contains(&device.backing().file_system.to_owned()), "{report}");
    assert!(report.contains("durable"), "{report}");
    assert_eq!(report.contains("direct I/O;"), device.is_direct(), "{report}");
    eprintln!("{report}");
    drop(device);
    let buffered = OpenOptions { direct: Direct::Never, ..OpenOptions::default() };
    assert!(FileDevice::open(&path, buffered).unwrap().report().contains("buffered"));
}

#[test]
fn flushes_and_durable_writes_from_many_threads_take_turns() {
    let (_folder, path) = folder();
    let options = OpenOptions { direct: Direct::Never, ..create(1 << 20) };
    let device = FileDevice::open(&path, options).unwrap();
    std::thread::scope(|scope| {
        for index in 0..4_u64 {
            let device = &device;
            scope.spawn(move || {
                for _ in 0..20 {
                    let data = [index.to_le_bytes()[0]; 4096];
                    device.write_durable_at(DURABLE, index * 4096, &[IoSlice::new(&data)]).unwrap();
                    device.flush(FLUSH).unwrap();
                }
            });
        }
    });
    assert_eq!(device.counters().flushes, 80);
}

/// A device past the page cache; `None` where there is none.
fn direct_device(path: &Path) -> Option<FileDevice> {
    let options = OpenOptions { direct: Direct::Require, ..create(1 << 20) };
    let device = FileDevice::open(path, options);
    if let Err(error) = &device {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        crate::skipped::because("no direct I/O here");
    }
    device.ok()
}

type Durable = fn(&FileDevice) -> Result<()>;

/// Both ways to make something durable.
const DURABLES: [Durable; 2] = [
    |device| device.flush(FLUSH),
    |device| device.write_durable_at(DURABLE, 4096, &[IoSlice::new(&[1; 4096])]),
];

#[test]
fn what_overlaps_with_a_failed_flush_does_not_succeed_before_that_is_known() {
    for (fails, overlaps) in DURABLES.iter().flat_map(|a| DURABLES.iter().map(move |b| (a, b))) {
        let (_folder, path) = folder();
        let Some(device) = direct_device(&path) else { return };
        let (device, release) = (&device, Arc::new(Gate::new()));
        std::thread::scope(|scope| {
            let (refused, was_refused) = mpsc::channel();
            let released = Arc::clone(&release);
            let first = scope.spawn(move || {
                let stop = move || {
                    refused.send(()).unwrap();
                    released.wait();
                };
                ANSWERED.set(Some(Box::new(stop)));
                fails(device)
            });
            was_refused.recv().unwrap();
            let (sender, result) = mpsc::channel();
            scope.spawn(move || sender.send(overlaps(device)).unwrap());
            let early = result.recv_timeout(Duration::from_millis(100));
            release.open();
            assert!(early.is_err(), "{early:?} while the other has not told of its failure");
            assert_eq!(first.join().unwrap().unwrap_err().kind(), ErrorKind::Io);
            let error = result.recv().unwrap().unwrap_err();
            assert!(error.to_string().contains("an earlier flush failed"), "{error}");
        });
        assert_eq!(overlaps(device).unwrap_err().kind(), ErrorKind::Io);
    }
}

#[test]
fn a_task_that_waits_for_anothers_flush_lets_its_core_run_that() {
    let (_folder, path) = folder();
    let Some(device) = direct_device(&path) else { return };
    let device = Arc::new(device);
    let config = esker_trt::Config { cores: 1, ..esker_trt::Config::default() };
    let runtime = esker_trt::Runtime::start(config).unwrap();
    let (refused, release) = (Arc::new(Gate::new()), Arc::new(Gate::new()));
    let first = {
        let (device, refused, release) = (device.clone(), refused.clone(), release.clone());
        runtime.spawn(move || {
            let stop = move || {
                refused.open();
                release.wait();
            };
            ANSWERED.set(Some(Box::new(stop)));
            device.flush(FLUSH)
        })
    };
    let second = runtime.spawn(move || {
        refused.wait();
        let data = device.pool.get_zeroed(4096);
        let other = esker_trt::spawn(move || {
            esker_trt::sleep(Duration::from_millis(20));
            release.open();
        });
        let result = device.write_durable_at(DURABLE, 4096, &[IoSlice::new(&data)]);
        other.join().unwrap();
        result
    });
    assert_eq!(first.join().unwrap().unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(second.join().unwrap().unwrap_err().kind(), ErrorKind::Io);
    runtime.shutdown().unwrap();
}

#[test]
fn tasks_of_the_runtime_read_and_write_through_it() {
    let (_folder, path) = folder();
    for direct in [Direct::Prefer, Direct::Never] {
        let options = OpenOptions { direct, ..create(4 << 20) };
        let device = std::sync::Arc::new(FileDevice::open(&path, options).unwrap());
        let runtime = esker_trt::Runtime::start(esker_trt::Config::default()).unwrap();
        let tasks: Vec<_> = (0..16_u64)
            .map(|index| {
                let device = std::sync::Arc::clone(&device);
                runtime.spawn(move || {
                    let pool = BufferPool::default();
                    for round in 0..20 {
                        let data = pool.copy_of(&pattern(8192, index << 8 | round));
                        let pieces = [IoSlice::new(&data)];
                        if round % 2 == 0 {
                            device.write_durable_at(DURABLE, index * 8192, &pieces)?;
                        } else {
                            device.write_at(WRITE, index * 8192, &pieces)?;
                            device.flush(FLUSH)?;
                        }
                        let mut back = pool.get(8192);
                        device.read_at(READ, index * 8192, &mut back)?;
                        assert!(back[..] == data[..], "task {index} round {round}");
                    }
                    Ok::<(), Error>(())
                })
            })
            .collect();
        for task in tasks {
            task.join().unwrap().unwrap();
        }
        runtime.shutdown().unwrap();
    }
}

/// A loop device over a file, detached at the end; `None` where that is not allowed.
struct LoopDevice(PathBuf);

impl LoopDevice {
    fn new(file: &Path) -> Option<LoopDevice> {
        let command = ["--find", "--show"];
        let output = std::process::Command::new("losetup").args(command).arg(file).output().ok()?;
        let name = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| LoopDevice(PathBuf::from(name.trim())))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

#[test]
fn a_raw_device_is_claimed_written_and_told_of_discards() {
    let (_folder, path) = folder();
    drop(FileDevice::open(&path, create(4 << 20)).unwrap());
    let Some(raw) = LoopDevice::new(&path) else {
        crate::skipped::because("loop devices are not allowed here");
        return;
    };
    let device = FileDevice::open(&raw.0, OpenOptions::default()).unwrap();
    assert!(device.backing().is_raw_device && device.geometry().size_bytes == 4 << 20);
    let error = FileDevice::open(&raw.0, OpenOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Locked);
    let data = pattern(64 << 10, 1);
    device.write_durable_at(DURABLE, 1 << 20, &[IoSlice::new(&data)]).unwrap();
    let mut back = vec![0; 64 << 10];
    device.read_at(READ, 1 << 20, &mut back).unwrap();
    assert!(back == data);
    device.discard(WRITE, 1 << 20, 64 << 10).unwrap();
    device.prepare(WRITE, 1 << 20, 64 << 10).unwrap();
    device.read_at(READ, 1 << 20, &mut back).unwrap();
    assert!(back == data || back.iter().all(|byte| *byte == 0), "old bytes or zeros");
    assert!(device.report().starts_with("raw device"), "{}", device.report());
    let size = Some(8 << 20);
    drop(device);
    let larger = OpenOptions { create_size_bytes: size, ..OpenOptions::default() };
    assert_eq!(FileDevice::open(&raw.0, larger).unwrap_err().kind(), ErrorKind::NoSpace);
}

/// A folder on a file system of its own, unmounted at the end; `None` where mounting is not allowed.
pub(super) struct SmallDisk(pub(super) tempfile::TempDir);

impl SmallDisk {
    /// A tmpfs of `size`.
    pub(super) fn new(size: &str) -> Option<SmallDisk> {
        SmallDisk::mount(&["-t", "tmpfs", "-o", size, "esker-test"])
    }

    pub(super) fn mount(what: &[&str]) -> Option<SmallDisk> {
        let folder = tempfile::tempdir().unwrap();
        let status = std::process::Command::new("mount").args(what).arg(folder.path()).status();
        status.is_ok_and(|status| status.success()).then_some(SmallDisk(folder))
    }

    fn free_bytes(&self) -> u64 {
        let of = rustix::fs::statvfs(self.0.path()).unwrap();
        of.f_bavail * of.f_frsize
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_file_system_is_no_space_and_leaves_no_file() {
    let Some(disk) = SmallDisk::new("size=1m") else {
        crate::skipped::because("mounting a small tmpfs is not allowed here");
        return;
    };
    let path = disk.0.path().join("device");
    let error = FileDevice::open(&path, create(4 << 20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(!path.exists(), "the partial file is gone");
    let device = FileDevice::open(&path, create(512 << 10)).unwrap();
    assert!(device.report().contains("NOTHING HERE SURVIVES A POWER CUT"), "{}", device.report());
}

#[test]
fn growth_without_room_takes_none() {
    // A file system of its own that, as it fills up, keeps what it could give.
    let (_folder, image) = folder();
    drop(FileDevice::open(&image, create(64 << 20)).unwrap());
    let made = std::process::Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image).status();
    let disk = made
        .is_ok_and(|status| status.success())
        .then(|| SmallDisk::mount(&["-t", "ext4", "-o", "loop", image.to_str().unwrap()]));
    let Some(disk) = disk.flatten() else {
        crate::skipped::because("making and mounting a small ext4 is not allowed here");
        return;
    };
    let path = disk.0.path().join("device");
    let device = FileDevice::open(&path, create(4 << 20)).unwrap();
    let free = disk.free_bytes();
    let error = device.reserve(WRITE, 4 << 20, 1 << 30).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 4 << 20);
    assert!(disk.free_bytes() + (1 << 20) >= free, "{} of {free} bytes", disk.free_bytes());
    device.reserve(WRITE, 4 << 20, 4 << 20).unwrap();
    assert_eq!(device.geometry().size_bytes, 8 << 20);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 8 << 20);
}

#[test]
fn many_short_reads_of_the_page_cache_are_one_call_each() {
    let (_folder, path) = folder();
    let options = OpenOptions { direct: Direct::Never, ..create(1 << 20) };
    let device = FileDevice::open(&path, options).unwrap();
    let (mut one, mut two) = ([0; 300], [0; 300]);
    device.read_many_at(READ, &mut [(7, &mut one[..]), (5000, &mut two[..])]).unwrap();
    assert_eq!((device.counters().reads, device.counters().read_bytes), (2, 600));
}
