//! Sockets in tasks, on every facility, and on threads.

use crate::net::{Listener, Stream};
use crate::runtime::tests::each_facility;
use crate::{sleep, spawn, work, yield_now};
use esker_base::clock::{Clock, SystemClock};
use esker_base::ids::CoreId;
use std::cell::Cell;
use std::io::{ErrorKind, IoSlice, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

fn listener() -> (Listener, std::net::SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (Listener::try_from(listener).unwrap(), address)
}

fn pair() -> (Stream, Stream) {
    let (a, b) = UnixStream::pair().unwrap();
    (Stream::try_from(a).unwrap(), Stream::try_from(b).unwrap())
}

fn read_exactly(stream: &Stream, mut buf: &mut [u8]) {
    while !buf.is_empty() {
        let count = stream.read(buf).unwrap();
        assert!(count > 0, "the stream ended early");
        buf = &mut buf[count..];
    }
}

fn echo(stream: &Stream) -> usize {
    let mut buf = [0; 1000];
    let mut total = 0;
    loop {
        match stream.read(&mut buf).unwrap() {
            0 => return total,
            count => stream.write_all(&buf[..count]).unwrap(),
        }
        total += 1;
    }
}

#[test]
fn connections_accepted_on_one_core_are_served_on_another() {
    each_facility(|runtime| {
        let runtime = std::sync::Arc::new(runtime);
        let (listener, address) = listener();
        assert_eq!(listener.local_addr().unwrap(), Some(address));
        let spawner = std::sync::Arc::downgrade(&runtime);
        let server = runtime.spawn_on(CoreId(0), move || {
            let served: Vec<_> = (0..20)
                .map(|_| {
                    let stream = listener.accept().unwrap();
                    assert!(stream.peer().unwrap().is_some());
                    rustix::net::sockopt::set_tcp_nodelay(stream.as_fd().unwrap(), true).unwrap();
                    spawner.upgrade().unwrap().spawn_on(CoreId(1), move || echo(&stream))
                })
                .collect();
            served.into_iter().map(|task| task.join().unwrap()).filter(|turns| *turns > 0).count()
        });
        let clients: Vec<_> = (0..20_u8)
            .map(|client| {
                runtime.spawn(move || {
                    // Connecting blocks for a moment; loopback answers at once.
                    let stream = TcpStream::connect(address).unwrap();
                    // Without it every turn waits for a delayed acknowledgement.
                    stream.set_nodelay(true).unwrap();
                    let stream = Stream::try_from(stream).unwrap();
                    for turn in 0..50_u8 {
                        let message = vec![client ^ turn; 5000];
                        stream.write_all(&message).unwrap();
                        let mut back = vec![0; 5000];
                        read_exactly(&stream, &mut back);
                        assert_eq!(back, message);
                    }
                    stream.shutdown(Shutdown::Write).unwrap();
                    assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0);
                })
            })
            .collect();
        for client in clients {
            client.join().unwrap();
        }
        assert_eq!(server.join().unwrap(), 20);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn one_task_reads_while_another_writes_more_than_the_socket_holds() {
    each_facility(|runtime| {
        let total = runtime.spawn(|| {
            let (a, b) = pair();
            let writer = spawn(move || {
                let chunk = vec![7_u8; 300_000];
                for _ in 0..20 {
                    let mut bufs = [IoSlice::new(&[]), IoSlice::new(&chunk), IoSlice::new(b"end")];
                    a.write_all_vectored(&mut bufs).unwrap();
                }
            });
            let mut buf = vec![0; 65_536];
            let mut total = 0;
            loop {
                match b.read(&mut buf).unwrap() {
                    0 => break,
                    count => total += count,
                }
            }
            writer.join().unwrap();
            total
        });
        assert_eq!(total.join().unwrap(), 20 * 300_003);
    });
}

/// Sends of several tasks go to the kernel together; what does not fit waits, and errors reach who sent.
#[test]
fn many_tasks_of_a_core_send_at_once_more_than_their_sockets_hold() {
    const TASKS: u8 = 40;
    const LENGTH: usize = 300_000;
    each_facility(|runtime| {
        let all = runtime.spawn_on(CoreId(0), || {
            let (writers, readers): (Vec<_>, Vec<_>) = (0..TASKS)
                .map(|task| {
                    let (writer, reader) = pair();
                    let write = spawn(move || {
                        let (head, tail) = (vec![task; LENGTH], vec![!task; LENGTH]);
                        let mut bufs = [IoSlice::new(&head), IoSlice::new(&tail)];
                        // In one piece, then in two.
                        writer.write_all(&head).unwrap();
                        writer.write_all_vectored(&mut bufs).unwrap();
                    });
                    let read = spawn(move || {
                        let mut bytes = vec![0; 3 * LENGTH];
                        read_exactly(&reader, &mut bytes);
                        assert!(bytes[..2 * LENGTH].iter().all(|byte| *byte == task));
                        assert!(bytes[2 * LENGTH..].iter().all(|byte| *byte == !task));
                        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
                    });
                    (write, read)
                })
                .unzip();
            writers.into_iter().chain(readers).for_each(|task| task.join().unwrap());
            let refused: Vec<_> = (0..TASKS)
                .map(|_| {
                    spawn(|| {
                        let (writer, reader) = pair();
                        drop(reader);
                        writer.write(b"nobody is there").unwrap_err().kind()
                    })
                })
                .collect();
            refused.into_iter().map(|task| task.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(all.join().unwrap().iter().all(|kind| *kind == ErrorKind::BrokenPipe));
    });
}

#[test]
fn a_reader_and_a_writer_of_one_stream_have_deadlines_of_their_own() {
    each_facility(|runtime| {
        let kinds = runtime.spawn(|| {
            let (a, b) = pair();
            let a = Rc::new(a);
            a.set_read_deadline(None);
            let reader = Rc::clone(&a);
            let reads = spawn(move || {
                let mut buf = [0; 4];
                reader.read(&mut buf).map_err(|error| error.kind())
            });
            a.set_write_deadline(Some(Duration::from_millis(20)));
            let block = [7; 64 << 10];
            let full = loop {
                if let Err(error) = a.write(&block) {
                    break error.kind();
                }
            };
            // The writer has given up; the reader still waits, without a limit.
            sleep(Duration::from_millis(20));
            let waits = !reads.is_finished();
            b.write_all(b"late").unwrap();
            (full, waits, reads.join().unwrap())
        });
        assert_eq!(kinds.join().unwrap(), (ErrorKind::TimedOut, true, Ok(4)));
    });
}

#[test]
fn a_deadline_ends_a_read_and_the_stream_stays_usable() {
    each_facility(|runtime| {
        let kinds = runtime.spawn(|| {
            let (a, b) = pair();
            let mut buf = [0; 4];
            a.set_deadline(Some(Duration::from_millis(20)));
            let start = SystemClock.monotonic();
            let first = a.read(&mut buf).unwrap_err().kind();
            assert!(SystemClock.monotonic() - start >= Duration::from_millis(20));
            b.write_all(b"late").unwrap();
            // What is there is given even after the deadline.
            sleep(Duration::from_millis(5));
            let second = a.read(&mut buf).map_err(|error| error.kind());
            a.set_deadline(Some(Duration::from_millis(1)));
            let third = a.read(&mut buf).unwrap_err().kind();
            a.set_deadline(None);
            b.write_all(b"more").unwrap();
            (first, second, third, a.read(&mut buf).unwrap())
        });
        let expected = (ErrorKind::TimedOut, Ok(4), ErrorKind::TimedOut, 4);
        assert_eq!(kinds.join().unwrap(), expected);
    });
}

#[test]
fn the_end_of_the_stream_is_seen_after_a_short_read() {
    each_facility(|runtime| {
        let ends = runtime.spawn(|| {
            let (a, b) = pair();
            let reader = spawn(move || {
                let mut buf = [0; 100];
                (a.read(&mut buf).unwrap(), a.read(&mut buf).unwrap())
            });
            crate::yield_now();
            // Data and end come in one event.
            b.write_all(b"bye").unwrap();
            drop(b);
            reader.join().unwrap()
        });
        assert_eq!(ends.join().unwrap(), (3, 0));
    });
}

#[test]
fn shutdown_interrupts_a_blocked_accept_and_read() {
    each_facility(|runtime| {
        let (listener, _) = listener();
        let accepting = runtime.spawn(move || listener.accept().map(|_| ()).unwrap_err().kind());
        let reading = runtime.spawn(|| {
            let (a, _b) = pair();
            a.read(&mut [0; 8]).unwrap_err().kind()
        });
        std::thread::park_timeout(Duration::from_millis(20));
        runtime.shutdown().unwrap();
        assert_eq!(accepting.join().unwrap(), ErrorKind::Interrupted);
        assert_eq!(reading.join().unwrap(), ErrorKind::Interrupted);
    });
}

#[test]
fn a_stream_moves_to_another_core_after_its_first_use() {
    each_facility(|runtime| {
        let (a, b) = pair();
        let moved = runtime.spawn_on(CoreId(0), move || {
            a.set_deadline(Some(Duration::from_millis(5)));
            assert_eq!(a.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::TimedOut);
            a.set_deadline(None);
            a
        });
        let a = moved.join().unwrap();
        let reader = runtime.spawn_on(CoreId(1), move || {
            let mut buf = [0; 8];
            let first = a.read(&mut buf).unwrap();
            (first, a)
        });
        std::thread::park_timeout(Duration::from_millis(10));
        b.write_all(b"hello").unwrap();
        let (count, a) = reader.join().unwrap();
        assert_eq!(count, 5);
        // And back.
        let reader = runtime.spawn_on(CoreId(0), move || (a.read(&mut [0; 8]).unwrap(), a));
        std::thread::park_timeout(Duration::from_millis(10));
        b.write_all(b"again").unwrap();
        let (count, a) = reader.join().unwrap();
        assert_eq!(count, 5);
        // And to a thread, which also closes it.
        b.write_all(b"bye").unwrap();
        assert_eq!(a.read(&mut [0; 8]).unwrap(), 3);
        drop(a);
        assert_eq!(b.read(&mut [0; 8]).unwrap(), 0);
    });
}

#[test]
fn threads_block_in_the_same_calls() {
    let (a, b) = pair();
    a.set_deadline(Some(Duration::from_millis(10)));
    assert_eq!(a.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::TimedOut);
    a.set_deadline(None);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::park_timeout(Duration::from_millis(5));
            b.write_all(b"from a thread").unwrap();
        });
        assert_eq!(a.read(&mut [0; 64]).unwrap(), 13);
    });
}

#[test]
fn tasks_that_share_a_listener_all_go_on_waiting() {
    const TASKS: usize = 3;
    each_facility(|runtime| {
        let (listener, address) = listener();
        let accepted = runtime.spawn_on(CoreId(0), move || {
            let listener = Rc::new(listener);
            let tasks: Vec<_> = (0..TASKS)
                .map(|_| {
                    let listener = Rc::clone(&listener);
                    spawn(move || {
                        let first = listener.accept().is_ok();
                        // Takes what woke the others, and waits again behind them.
                        (first, listener.accept().is_ok())
                    })
                })
                .collect();
            tasks.into_iter().all(|task| task.join().unwrap() == (true, true))
        });
        let mut clients = Vec::new();
        for _ in 0..2 * TASKS {
            std::thread::park_timeout(Duration::from_millis(3));
            clients.push(TcpStream::connect(address).unwrap());
        }
        assert!(accepted.join().unwrap());
    });
}

#[test]
fn a_peer_that_never_stops_sending_leaves_the_core_to_others() {
    const LIMIT: Duration = Duration::from_secs(20);
    each_facility(|runtime| {
        let (flood, sink) = pair();
        let (ours, theirs) = pair();
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let stopped = std::sync::Arc::clone(&stop);
        let others = runtime.spawn_on(CoreId(0), move || {
            let spinner = spawn(move || {
                let mut buf = vec![0; 64 << 10];
                // What is read is forgotten at once, so that the sender cannot keep up for long: a wait would help.
                let end = SystemClock.monotonic() + LIMIT;
                while SystemClock.monotonic() < end && sink.read(&mut buf).unwrap() > 0 {}
                SystemClock.monotonic() < end
            });
            let busy = spawn(move || {
                let end = SystemClock.monotonic() + LIMIT;
                while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
                    crate::work(4 << 10);
                    if SystemClock.monotonic() > end {
                        return false;
                    }
                }
                true
            });
            let sleeper = spawn(|| sleep(Duration::from_millis(20)));
            let echo = spawn(move || echo(&ours));
            let slept = sleeper.join().is_ok();
            let echoed = echo.join().unwrap();
            (slept, echoed, busy.join().unwrap(), spinner.join().unwrap())
        });
        std::thread::scope(|scope| {
            let stopped = std::sync::Arc::clone(&stop);
            scope.spawn(move || {
                while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
                    flood.write_all(&[7; 64 << 10]).unwrap();
                }
            });
            for turn in 0..20_u8 {
                theirs.write_all(&[turn; 100]).unwrap();
                let mut seen = [0; 100];
                theirs.set_deadline(Some(LIMIT));
                read_exactly(&theirs, &mut seen);
                assert_eq!(seen, [turn; 100]);
            }
            drop(theirs);
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert_eq!(others.join().unwrap(), (true, 20, true, true));
        runtime.shutdown().unwrap();
    });
}

/// In a child process, as the limit is one of the process: this test binary calls itself.
#[test]
fn a_socket_that_finds_no_descriptor_to_move_with_is_forgotten_when_it_goes() {
    const CHILD: &str = "ESKER_TRT_NO_DESCRIPTORS";
    const NAME: &str =
        "net::tests::a_socket_that_finds_no_descriptor_to_move_with_is_forgotten_when_it_goes";
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    if std::env::var_os(CHILD).is_none() {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    // A poll in its ring keeps a connection open, whoever closed it.
    let runtime = crate::runtime::tests::runtime(crate::Facility::Uring, 2);
    let (ours, theirs) = pair();
    let watched = runtime.spawn_on(CoreId(0), move || {
        ours.set_deadline(Some(Duration::from_millis(10)));
        assert_eq!(ours.read(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut);
        ours
    });
    let ours = watched.join().unwrap();
    let moved = runtime.spawn_on(CoreId(1), move || {
        ours.set_deadline(None);
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(1), ..limit }).unwrap();
        let error = ours.read(&mut [0]).unwrap_err();
        setrlimit(Resource::Nofile, limit).unwrap();
        assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
    });
    moved.join().unwrap();
    theirs.set_deadline(Some(Duration::from_secs(20)));
    assert_eq!(theirs.read(&mut [0]).unwrap(), 0, "the connection has ended");
}

/// The kernel takes rings down at its leisure, and what they watch is open until then.
#[test]
fn a_port_that_a_task_listened_at_is_free_after_the_shutdown() {
    for _ in 0..20 {
        each_facility(|runtime| {
            // An address of its own: nobody else takes the port.
            let listener = TcpListener::bind("127.0.44.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let listener = Listener::try_from(listener).unwrap();
            let listens = std::sync::Arc::new(crate::sync::Gate::new());
            let inner = std::sync::Arc::clone(&listens);
            let accepts = runtime.spawn(move || {
                drop(spawn(move || inner.open()));
                listener.accept().map(drop)
            });
            listens.wait();
            runtime.shutdown().unwrap();
            accepts.join().unwrap().unwrap_err();
            // With SO_REUSEADDR, as the library has it.
            TcpListener::bind(address).unwrap();
        });
    }
}

/// Whoever counts as idle until he has received something must not be looked at in between.
#[test]
fn a_read_gives_way_before_it_takes_something_and_never_after() {
    each_facility(|runtime| {
        let reads = runtime.spawn(|| {
            let (mut client, server) = UnixStream::pair().unwrap();
            let server = Stream::try_from(server).unwrap();
            let (turns, ended) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
            let (counted, stop) = (turns.clone(), ended.clone());
            let other = spawn(move || {
                while !stop.get() {
                    counted.set(counted.get() + 1);
                    yield_now();
                }
            });
            let mut buf = [0; 8 << 10];
            for _ in 0..100 {
                client.write_all(&buf).unwrap();
                // Here is the place to give way.
                work(0);
                let before = turns.get();
                assert_eq!(server.read(&mut buf).unwrap(), buf.len());
                assert_eq!(turns.get(), before);
            }
            assert!(turns.get() > 1, "the others had their turns");
            ended.set(true);
            other.join().unwrap();
        });
        reads.join().unwrap();
    });
}
