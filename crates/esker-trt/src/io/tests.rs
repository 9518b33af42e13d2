//! Disk calls in tasks, on every facility, and on threads.

use crate::config::{Config, Facility};
use crate::io::{WriteMode, read_at, read_vectored_at, sync_data, write_vectored_at};
use crate::runtime::Runtime;
use crate::runtime::tests::each_facility;
use crate::spawn;
use esker_base::clock::{Clock, SystemClock};
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

fn file() -> OwnedFd {
    memfd_create("esker-test", MemfdFlags::CLOEXEC).unwrap()
}

fn write_and_read(file: &OwnedFd) {
    let fd = file.as_fd();
    let (first, second) = ([1_u8; 100], [2_u8; 50]);
    let bufs = [IoSlice::new(&first), IoSlice::new(&second)];
    assert_eq!(write_vectored_at(fd, &bufs, 10, WriteMode::Plain).unwrap(), 150);
    assert_eq!(write_vectored_at(fd, &bufs[1..], 160, WriteMode::Durable).unwrap(), 50);
    sync_data(fd).unwrap();
    let (mut head, mut tail) = ([9_u8; 20], [9_u8; 300]);
    let mut bufs = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut tail)];
    // The file ends at 210: a short read says so.
    assert_eq!(read_vectored_at(fd, &mut bufs, 0).unwrap(), 210);
    assert_eq!(head[..10], [0; 10]);
    assert_eq!(head[10..], [1; 10]);
    assert_eq!(tail[..90], [1; 90]);
    assert_eq!(tail[90..190], [2; 100]);
    assert_eq!(tail[190..], [9; 110]);
    assert_eq!(read_at(fd, &mut head, 210).unwrap(), 0);
}

#[test]
fn tasks_write_sync_and_read_back() {
    each_facility(|runtime| {
        runtime.spawn(|| write_and_read(&file())).join().unwrap();
    });
}

#[test]
fn threads_write_sync_and_read_back() {
    write_and_read(&file());
}

#[test]
fn the_kernels_error_comes_back_unchanged() {
    each_facility(|runtime| {
        let number = runtime.spawn(|| {
            let file = file();
            let bufs = [IoSlice::new(b"beyond the last offset")];
            let result = write_vectored_at(file.as_fd(), &bufs, 1 << 63, WriteMode::Plain);
            result.unwrap_err().raw_os_error()
        });
        assert_eq!(number.join().unwrap(), Some(libc::EINVAL));
    });
}

#[test]
fn many_tasks_have_requests_in_flight_at_once() {
    const TASKS: u64 = 700;
    each_facility(|runtime| {
        let file = Arc::new(file());
        let read = runtime.spawn(move || {
            let file = Rc::new(file);
            let tasks: Vec<_> = (0..TASKS)
                .map(|task| {
                    let file = Rc::clone(&file);
                    spawn(move || {
                        let bytes = task.to_le_bytes();
                        let bufs = [IoSlice::new(&bytes)];
                        let fd = file.as_fd();
                        assert_eq!(
                            write_vectored_at(fd, &bufs, task * 8, WriteMode::Plain).unwrap(),
                            8
                        );
                        let mut back = [0; 8];
                        assert_eq!(read_at(fd, &mut back, task * 8).unwrap(), 8);
                        u64::from_le_bytes(back)
                    })
                })
                .collect();
            tasks.into_iter().map(|task| task.join().unwrap()).collect::<Vec<u64>>()
        });
        assert_eq!(read.join().unwrap(), (0..TASKS).collect::<Vec<u64>>());
    });
}

#[test]
fn a_device_that_does_not_answer_keeps_its_task_but_not_the_shutdown() {
    // A read of an empty pipe stays in flight, as a request to a stuck device does.
    let (reader, mut writer) = std::io::pipe().unwrap();
    let config = crate::Config {
        facilities: vec![crate::Facility::Uring],
        shutdown_limit: std::time::Duration::from_millis(100),
        ..crate::Config::default()
    };
    let runtime = crate::Runtime::start(config).unwrap();
    let (done, finished) = crate::sync::promise();
    let stuck = runtime.spawn(move || {
        let mut buf = [0_u8; 4];
        let count = read_at(reader.as_fd(), &mut buf, 0).unwrap();
        done.set((count, buf));
    });
    let other = runtime.spawn(|| 5);
    assert_eq!(other.join().unwrap(), 5, "other tasks go on");
    let error = runtime.shutdown().unwrap_err();
    assert_eq!(error.kind(), esker_base::ErrorKind::Timeout);
    assert_eq!(stuck.join().unwrap_err().kind(), esker_base::ErrorKind::Cancelled);
    drop(runtime);
    // The answer comes after all, into memory that is still the task's.
    std::io::Write::write_all(&mut writer, b"late").unwrap();
    assert_eq!(finished.wait().unwrap(), (4, *b"late"));
}

/// A task that reads without end from a disk that answers at once lets others of its core run.
#[test]
fn a_task_that_makes_its_calls_itself_gives_way() {
    let runtime = crate::runtime::tests::runtime(crate::Facility::Inline, 1);
    let reads = runtime.spawn(|| {
        let file = file();
        let seen = Rc::new(std::cell::Cell::new(false));
        let sees = Rc::clone(&seen);
        let other = spawn(move || sees.set(true));
        let mut reads = 0;
        while !seen.get() && reads < 10_000 {
            read_at(file.as_fd(), &mut [0; 8], 0).unwrap();
            reads += 1;
        }
        other.join().unwrap();
        reads
    });
    let reads = reads.join().unwrap();
    assert!((2..1000).contains(&reads), "the other task ran after {reads} reads");
}

/// To arm the timer takes the only place of the queue, and meets what was done.
#[test]
fn what_was_done_while_a_timer_was_armed_does_not_wait_for_it() {
    const SLEEP: Duration = Duration::from_secs(30);
    let facilities = vec![Facility::Uring];
    let spin = Duration::ZERO;
    let config = Config { cores: 1, queue_depth: 1, facilities, spin, ..Config::default() };
    let runtime = Runtime::start(config).unwrap();
    let took = runtime.spawn(|| {
        // In the page cache of a file system that answers without waiting.
        let file = std::env::current_exe().unwrap();
        let file = rustix::fs::open(file, OFlags::RDONLY, Mode::empty()).unwrap();
        assert_eq!(read_at(file.as_fd(), &mut [0; 64], 0).unwrap(), 64);
        let start = SystemClock.monotonic();
        drop(spawn(|| crate::sleep_cancellable(SLEEP)));
        let reads = spawn(move || {
            assert_eq!(read_at(file.as_fd(), &mut [0; 64], 0).unwrap(), 64);
            SystemClock.monotonic()
        });
        reads.join().unwrap() - start
    });
    let took = took.join().unwrap();
    runtime.shutdown().unwrap();
    assert!(took < SLEEP / 3, "{took:?}");
}

/// Whoever is told of a read may read in turn: nothing is in flight any more, and nothing is borrowed.
#[test]
fn reads_may_be_asked_for_by_who_is_told_of_others() {
    let file = file();
    write_vectored_at(file.as_fd(), &[IoSlice::new(&[5; 4096])], 0, WriteMode::Plain).unwrap();
    let (mut first, mut second) = ([0; 100], [0; 100]);
    let mut told = 0;
    crate::io::read_many_at(
        file.as_fd(),
        &mut [(0, &mut first), (200, &mut second)],
        |_, result| {
            assert_eq!(result.unwrap(), 100);
            let mut more = [[0; 10]; 2];
            let [one, two] = &mut more;
            crate::io::read_many_at(file.as_fd(), &mut [(0, one), (10, two)], |_, result| {
                told += result.unwrap();
            });
            assert_eq!(more, [[5; 10]; 2]);
        },
    );
    assert_eq!((told, first, second), (40, [5; 100], [5; 100]));
}

/// The last offset means the position of the file to some system calls.
#[test]
fn no_offset_stands_for_the_position_of_the_file() {
    each_facility(|runtime| {
        let numbers = runtime.spawn(|| {
            let file = file();
            let fd = file.as_fd();
            let whole = vec![7; 100_000];
            write_vectored_at(fd, &[IoSlice::new(&whole)], 0, WriteMode::Plain).unwrap();
            let mut numbers = Vec::new();
            for offset in [u64::MAX, 1 << 63] {
                // Short ones, and one that no task makes itself.
                for length in [1, 90_000] {
                    let mut buf = vec![0; length];
                    let read = read_at(fd, &mut buf, offset);
                    let bufs = [IoSlice::new(&buf)];
                    let written = write_vectored_at(fd, &bufs, offset, WriteMode::Plain);
                    numbers
                        .extend([read, written].map(|result| result.map_err(|e| e.raw_os_error())));
                }
            }
            let mut back = vec![0; 100_001];
            assert_eq!(read_at(fd, &mut back, 0).unwrap(), 100_000);
            assert_eq!(back[..100_000], whole);
            numbers
        });
        assert_eq!(numbers.join().unwrap(), [Err(Some(libc::EINVAL)); 8]);
    });
}
