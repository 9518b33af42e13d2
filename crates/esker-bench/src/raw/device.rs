//! What a device gives: random reads by requests in flight, sequential reads and writes, durable writes.
//!
//! On a folder, a scratch file is made, filled with random bytes, measured with direct I/O, and removed. A raw device
//! is only read.

use super::{measured, row};
use crate::document::Row;
use crate::failure::{Failure, Outcome};
use crate::files;
use crate::numbers::{nanos, real, size};
use esker_base::clock::{Clock, SystemClock};
use esker_base::rng::Rng;
use esker_media::{BlockDevice, BufferPool, Direct, FileDevice, OpenOptions};
use esker_trt::io::{WriteMode, read_at, sync_data, write_vectored_at};
use esker_trt::{Config, Facility, Runtime, sleep, spawn};
use hdrhistogram::Histogram;
use std::cell::{Cell, RefCell};
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a random read, and of a durable write.
pub const BLOCK_BYTES: usize = 4096;
/// Bytes of a sequential read or write.
pub const CHUNK_BYTES: usize = 1 << 20;
/// Sequential requests in flight.
pub const CHUNKS_IN_FLIGHT: usize = 8;

/// What is done to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads of [`BLOCK_BYTES`] at random places.
    RandomRead,
    /// Reads of [`CHUNK_BYTES`] one after another.
    SequentialRead,
    /// Writes of [`CHUNK_BYTES`] one after another.
    SequentialWrite,
    /// Writes of [`BLOCK_BYTES`] one after another, each durable by itself.
    DurableWrite,
}

impl Access {
    /// Every kind.
    pub const ALL: [Access; 4] =
        [Access::RandomRead, Access::SequentialRead, Access::SequentialWrite, Access::DurableWrite];

    /// Its name in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Access::RandomRead => "4k-random-read",
            Access::SequentialRead => "1m-sequential-read",
            Access::SequentialWrite => "1m-sequential-write",
            Access::DurableWrite => "4k-durable-write",
        }
    }

    /// Bytes of one operation.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Access::RandomRead | Access::DurableWrite => BLOCK_BYTES,
            Access::SequentialRead | Access::SequentialWrite => CHUNK_BYTES,
        }
    }

    /// Whether it changes what is on the device.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(self, Access::SequentialWrite | Access::DurableWrite)
    }
}

/// A device, or a scratch file that goes with the value.
#[derive(Debug)]
pub struct Target {
    path: PathBuf,
    is_scratch: bool,
    device: Arc<FileDevice>,
}

/// Whether a raw device is at `path`.
fn is_raw(path: &Path) -> bool {
    use rustix::fs::FileType;
    let kind = rustix::fs::stat(path).map(|stat| FileType::from_raw_mode(stat.st_mode));
    kind == Ok(FileType::BlockDevice)
}

impl Target {
    /// The raw device at `path`, or a new file of `size_bytes` in the folder `path`.
    ///
    /// # Errors
    /// Those of the device; file systems that refuse direct I/O.
    pub fn open(path: &Path, size_bytes: u64) -> Outcome<Target> {
        if is_raw(path) {
            let options =
                OpenOptions { direct: Direct::Require, read_only: true, ..OpenOptions::default() };
            let device = Arc::new(FileDevice::open(path, options)?);
            return Ok(Target { path: path.to_owned(), is_scratch: false, device });
        }
        Target::make_folder(path)?;
        let path = path.join("raw.scratch");
        files::remove_file(&path)?;
        let options = OpenOptions {
            create_size_bytes: Some(size_bytes.next_multiple_of(CHUNK_BYTES as u64)),
            direct: Direct::Require,
            ..OpenOptions::default()
        };
        let device = Arc::new(FileDevice::open(&path, options)?);
        let target = Target { path, is_scratch: true, device };
        target.fill()?;
        Ok(target)
    }

    /// The folder at `path` for a new file, unless a raw device is there.
    ///
    /// # Errors
    /// There is no folder to make it in; the kernel's.
    pub fn make_folder(path: &Path) -> Outcome<()> {
        if is_raw(path) {
            return Ok(());
        }
        // A device or mount whose name is mistaken would be a folder on another one, and that be measured.
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        if let Some(parent) = parent.filter(|parent| !parent.is_dir()) {
            return Err(Failure::new(format!("{}: there is no such folder", parent.display())));
        }
        files::create_folder(path)
    }

    /// Random bytes everywhere: a file that was never written is read from nowhere.
    fn fill(&self) -> Outcome<()> {
        let mut chunk = BufferPool::new(CHUNK_BYTES).get(CHUNK_BYTES);
        Rng::from_seed(1).fill(&mut chunk);
        let size_bytes = self.device.geometry().size_bytes;
        for at in (0..size_bytes).step_by(CHUNK_BYTES) {
            write_all(&self.device, &chunk, at, WriteMode::Plain)?;
        }
        Ok(sync_data(self.device.as_fd())?)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the device says of itself.
    #[must_use]
    pub fn report(&self) -> String {
        self.device.report()
    }

    /// Whether writes are possible without loss.
    #[must_use]
    pub fn is_scratch(&self) -> bool {
        self.is_scratch
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.device.geometry().size_bytes
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.is_scratch {
            let _ = files::remove_file(&self.path);
        }
    }
}

fn write_all(device: &FileDevice, bytes: &[u8], at: u64, mode: WriteMode) -> Outcome<()> {
    let count = write_vectored_at(device.as_fd(), &[IoSlice::new(bytes)], at, mode)?;
    if count != bytes.len() {
        return Err(Failure::new("a short write"));
    }
    Ok(())
}

/// Does one kind of access for a time on one core of a run-time, with `depth` requests in flight.
///
/// # Errors
/// Facilities that do not work here; those of the device; writes to a raw device.
pub fn run(
    target: &Target,
    access: Access,
    facility: Facility,
    depth: usize,
    time: Duration,
) -> Outcome<Row> {
    if access.writes() && !target.is_scratch {
        return Err(Failure::new("raw devices are only read"));
    }
    let config = Config { pin: true, facilities: vec![facility], ..Config::default() };
    let runtime = Runtime::start(config)?;
    if runtime.facility() != facility {
        return Err(Failure::new(format!("{facility} does not work here")));
    }
    let device = Arc::clone(&target.device);
    let outcome = runtime.spawn(move || work(&device, access, depth, time)).join()?;
    runtime.shutdown()?;
    let (ops, seconds, latencies) = outcome?;
    let row = row(&format!("trt-{facility}"), access.name(), depth);
    Ok(Row { value_size: access.bytes() as u64, ..measured(row, ops, seconds, &latencies) })
}

type Worked = (u64, f64, Histogram<u64>);

/// In a task: starts `depth` tasks that each have one request in flight.
fn work(device: &Arc<FileDevice>, access: Access, depth: usize, time: Duration) -> Outcome<Worked> {
    let latencies = Rc::new(RefCell::new(Histogram::<u64>::new(3)?));
    let stop = Rc::new(Cell::new(false));
    // Places of sequential accesses, which all tasks share.
    let next = Rc::new(Cell::new(0_u64));
    let places = device.geometry().size_bytes / access.bytes() as u64;
    if places == 0 {
        return Err(Failure::new("the device is too small"));
    }
    let start = SystemClock.monotonic();
    let tasks: Vec<_> = (0..depth.max(1) as u64)
        .map(|number| {
            let (device, latencies) = (Arc::clone(device), Rc::clone(&latencies));
            let (stop, next) = (Rc::clone(&stop), Rc::clone(&next));
            spawn(move || -> Outcome<()> {
                let mut buffer = BufferPool::new(CHUNK_BYTES).get(access.bytes());
                let mut rng = Rng::from_seed(number + 1);
                rng.fill(&mut buffer);
                while !stop.get() {
                    let place = match access {
                        Access::RandomRead => rng.below(places),
                        _ => next.replace(next.get() + 1) % places,
                    };
                    let at = place * access.bytes() as u64;
                    let begin = SystemClock.monotonic();
                    match access {
                        Access::RandomRead | Access::SequentialRead => {
                            if read_at(device.as_fd(), &mut buffer, at)? != access.bytes() {
                                return Err(Failure::new("a short read"));
                            }
                        }
                        Access::SequentialWrite => {
                            write_all(&device, &buffer, at, WriteMode::Plain)?;
                        }
                        Access::DurableWrite => {
                            write_all(&device, &buffer, at, WriteMode::Durable)?;
                        }
                    }
                    let took = SystemClock.monotonic().saturating_sub(begin);
                    latencies.borrow_mut().record(nanos(took).max(1))?;
                }
                Ok(())
            })
        })
        .collect();
    sleep(time);
    let seconds = SystemClock.monotonic().saturating_sub(start).as_secs_f64();
    let done = latencies.borrow().len();
    stop.set(true);
    for task in tasks {
        task.join()??;
    }
    let latencies = latencies.replace(Histogram::new(1)?);
    Ok((done, seconds, latencies))
}

/// Bytes a second of a row.
#[must_use]
pub fn bytes_per_second(row: &Row) -> f64 {
    row.ops_per_second * real(size(row.value_size) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_file_is_measured_and_removed() {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let target = match Target::open(folder.path(), 4 << 20) {
            Ok(target) => target,
            Err(failure) => {
                assert!(failure.to_string().contains("O_DIRECT"), "{failure}");
                return;
            }
        };
        let path = target.path().to_owned();
        for access in Access::ALL {
            // A device that is busy with something else may finish nothing in a moment.
            let mut rows = [30, 3000].into_iter().map(|millis| {
                let length = Duration::from_millis(millis);
                run(&target, access, Facility::Sync, 2, length).unwrap()
            });
            let row = rows.find(|row| row.ops > 0).unwrap();
            assert!(row.ops > 0 && row.p50_us > 0.0, "{}", row.workload);
            assert_eq!(row.value_size, access.bytes() as u64);
        }
        assert!(path.exists());
        drop(target);
        assert!(!path.exists());
    }
}
