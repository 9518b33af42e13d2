//! A server of shared memory that answers when the test says so.

use crate::harness::{PATIENCE, impatient};
use crate::impostors::{HELLO, frame};
use esker_base::clock::{Clock as _, SystemClock};
use esker_client::{
    Attributes, Batch, Client, Condition, ErrorKind as NoAnswer, Fate, Options, Outcome, Pending,
    Version,
};
use esker_format::native::{
    CLIENT_HELLO_SIZE, FRAME_HEADER_SIZE, FrameHeader, Opcode, Status, encode_version,
};
use esker_shm::{Endpoint, Reader, Writer};
use parking_lot::Mutex;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

const RING_BYTES: usize = 64 << 10;

/// The server's side of a stream.
struct Core {
    reader: Reader,
    writer: Writer,
    bell: UnixStream,
}

impl Core {
    fn new(endpoint: Endpoint) -> Core {
        let bell = UnixStream::from(endpoint.bell);
        bell.set_read_timeout(Some(Duration::from_millis(1))).expect("timeout");
        Core { reader: endpoint.reader, writer: endpoint.writer, bell }
    }

    fn greet(&mut self) {
        self.read_exact(&mut [0; CLIENT_HELLO_SIZE]).expect("a hello");
        self.write_all(&HELLO.encode()).expect("send");
    }

    /// Id and opcode of the next request; none once the client is gone.
    fn next(&mut self) -> Option<(u32, u8)> {
        let mut header = [0; FRAME_HEADER_SIZE];
        self.read_exact(&mut header).ok()?;
        let header = FrameHeader::peek(&header).expect("a header");
        self.read_exact(&mut vec![0; header.payload_size as usize]).ok()?;
        Some((header.id, header.opcode))
    }

    fn answer(&mut self, id: u32, opcode: u8) {
        let opcode = Opcode::from_number(opcode).expect("known");
        let status = if opcode == Opcode::Get { Status::KeyMissing } else { Status::Ok };
        let version = encode_version(Version(1));
        let payload: &[u8] =
            if matches!(opcode, Opcode::Put | Opcode::Batch) { &version } else { b"" };
        self.write_all(&frame(id, opcode, status, payload)).expect("send");
    }
}

impl Read for Core {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        loop {
            match self.reader.read(into)? {
                0 => {}
                count => return Ok(count),
            }
            // A look now and then: nobody announces a sleep.
            if self.bell.read(&mut [0; 8]).is_ok_and(|count| count == 0) {
                return Err(Error::from(ErrorKind::UnexpectedEof));
            }
        }
    }
}

impl Write for Core {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let count = self.writer.write(bytes)?;
        if self.writer.must_ring() {
            self.bell.write_all(b"!")?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// What the reader of a ring says of itself stands in this word.
const SLEEPS: usize = 256 / 8;

/// A key of one of two cores.
fn key_of(core: u64) -> [u8; 8] {
    let mut keys = (0_u64..).map(u64::to_be_bytes);
    keys.find(|key| xxh3_64(key) % 2 == core).expect("half of all")
}

#[test]
fn a_server_that_passes_no_memory_is_not_waited_for_longer_than_allowed() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("memory.sock");
    let _listener = UnixListener::bind(&path).expect("bind");
    let address = format!("shm://{}", path.display()).parse().expect("address");
    let options = Options { connect_timeout: Duration::from_millis(200), ..impatient() };
    let error = Client::new(address, options).ping().expect_err("silence");
    assert_eq!((error.fate(), error.kind()), (Fate::NotSent, NoAnswer::Timeout));
}

#[test]
fn a_bell_without_anything_in_the_ring_gives_no_more_time() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("memory.sock");
    let listener = UnixListener::bind(&path).expect("bind");
    let address = format!("shm://{}", path.display()).parse().expect("address");
    let options = Options { connect_timeout: Duration::from_millis(200), ..impatient() };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let socket = listener.accept().expect("a connection").0;
            let mut endpoints = esker_shm::offer(socket.as_fd(), 1, RING_BYTES).expect("memory");
            let mut bell = UnixStream::from(endpoints.pop().expect("a core").bell);
            for _ in 0..100 {
                if bell.write_all(b"!").is_err() {
                    break;
                }
                esker_trt::sleep(Duration::from_millis(50));
            }
        });
        let error = Client::new(address, options).ping().expect_err("silence");
        assert_eq!((error.fate(), error.kind()), (Fate::NotSent, NoAnswer::Timeout), "{error}");
    });
}

/// A request to a core waits for what concerns all keys and came before it, and not for what others ask the first core
/// after that.
#[test]
fn a_core_that_always_has_something_to_do_keeps_nobody_from_the_others() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("memory.sock");
    let listener = UnixListener::bind(&path).expect("bind");
    let address = format!("shm://{}", path.display()).parse().expect("address");
    let options = Options { request_timeout: PATIENCE / 10, ..impatient() };
    let client = Client::new(address, options);
    let (busy, other) = (key_of(0), key_of(1));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let socket = listener.accept().expect("a connection").0;
            let mut endpoints = esker_shm::offer(socket.as_fd(), 2, RING_BYTES).expect("memory");
            let mut other = Core::new(endpoints.pop().expect("the second core"));
            let mut first = Core::new(endpoints.pop().expect("the first core"));
            first.greet();
            other.greet();
            scope.spawn(move || {
                while let Some((id, opcode)) = other.next() {
                    other.answer(id, opcode);
                }
            });
            // A get is answered when the next one is there.
            let mut held = None;
            while let Some((id, opcode)) = first.next() {
                if opcode == Opcode::Get as u8 {
                    held.replace(id).into_iter().for_each(|id| first.answer(id, opcode));
                } else {
                    first.answer(id, opcode);
                }
            }
        });
        let mut before = client.submit_get(&busy).expect("submit");
        let (keeps_busy, stop) = (client.clone(), &stop);
        scope.spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                let next = keeps_busy.submit_get(&busy).expect("submit");
                keeps_busy.flush();
                std::mem::replace(&mut before, next).wait().expect("get");
            }
        });
        let asked = (0..20).try_for_each(|_| {
            client.ping()?;
            client.get(&other).map(|_| ())
        });
        stop.store(true, Ordering::SeqCst);
        // Ends the connection, which the server's cores wait for.
        drop(client);
        assert!(asked.is_ok(), "{asked:?}");
    });
}

/// What waits in one stream would else take effect after what is submitted later, on the streams that are opened once
/// another one broke.
#[test]
fn with_a_stream_that_breaks_what_waits_in_the_others_is_not_sent() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("memory.sock");
    let listener = UnixListener::bind(&path).expect("bind");
    let address = format!("shm://{}", path.display()).parse().expect("address");
    let options = Options { request_timeout: Duration::from_millis(300), ..impatient() };
    let client = Client::new(address, options);
    let (silent, other) = (key_of(0), key_of(1));
    let seen = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let seen = &seen;
        scope.spawn(move || {
            for set in 0..2 {
                let socket = listener.accept().expect("a connection").0;
                let mut endpoints =
                    esker_shm::offer(socket.as_fd(), 2, RING_BYTES).expect("memory");
                let mut other = Core::new(endpoints.pop().expect("the second core"));
                let mut first = Core::new(endpoints.pop().expect("the first core"));
                first.greet();
                other.greet();
                // The first core takes what comes, and says nothing.
                scope.spawn(move || while first.next().is_some() {});
                scope.spawn(move || {
                    while let Some((id, opcode)) = other.next() {
                        seen.lock().push((set, opcode));
                        other.answer(id, opcode);
                    }
                });
            }
        });
        let put =
            |value| client.submit_put(&other, value, Attributes::default(), Condition::Always);
        let earlier = put(b"earlier").expect("submit");
        let error = client.get(&silent).expect_err("silence");
        assert_eq!((error.fate(), error.kind()), (Fate::Unknown, NoAnswer::Timeout), "{error}");
        let later = put(b"later").and_then(Pending::wait);
        let earlier = earlier.wait();
        drop(client);
        assert!(matches!(later, Ok(Outcome::Stored(_))), "{later:?}");
        let error = earlier.expect_err("given up");
        assert_eq!((error.fate(), error.kind()), (Fate::NotSent, NoAnswer::Timeout), "{error}");
    });
    assert_eq!(*seen.lock(), [(1, Opcode::Put as u8)]);
}

/// Runs `check` with a client of two cores of which each does what `serve` says with a request, by the core's number.
fn with_cores(
    options: Options,
    serve: impl Fn(usize, &mut Core, (u32, u8)) + Sync,
    check: impl FnOnce(&Client),
) {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("memory.sock");
    let listener = UnixListener::bind(&path).expect("bind");
    let address = format!("shm://{}", path.display()).parse().expect("address");
    let client = Client::new(address, options);
    std::thread::scope(|scope| {
        let serve = &serve;
        scope.spawn(move || {
            let socket = listener.accept().expect("a connection").0;
            let endpoints = esker_shm::offer(socket.as_fd(), 2, RING_BYTES).expect("memory");
            let mut cores: Vec<Core> = endpoints.into_iter().map(Core::new).collect();
            cores.iter_mut().for_each(Core::greet);
            for (number, mut core) in cores.into_iter().enumerate() {
                scope.spawn(move || {
                    while let Some(request) = core.next() {
                        serve(number, &mut core, request);
                    }
                });
            }
        });
        check(&client);
        drop(client);
    });
}

/// Makes a request that core `held` does not answer in time, while it gives signs of life, and then another one: that reaches the
/// other core once the first one is answered, and not before. Of many who make that one, none waits for the others' time as well.
fn is_held_back(
    held: usize,
    held_opcode: Opcode,
    request: impl Fn(&Client) -> Option<esker_client::Error>,
    other: impl Fn(&Client) -> Option<esker_client::Error> + Sync,
) {
    let (released, seen) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let serve = |number, core: &mut Core, (id, opcode)| {
        while opcode == held_opcode as u8 && !released.load(Ordering::SeqCst) {
            // A reply to nothing.
            core.answer(u32::MAX, Opcode::Get as u8);
            esker_trt::sleep(Duration::from_millis(20));
        }
        seen.lock().push(number);
        core.answer(id, opcode);
    };
    let mut told = None;
    with_cores(impatient(), serve, |client| {
        let given_up = request(client);
        let early: Vec<_> = std::thread::scope(|scope| {
            let asks = || {
                let begun = SystemClock.monotonic();
                (other(client), SystemClock.monotonic() - begun)
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(asks)).collect();
            threads.into_iter().map(|thread| thread.join().expect("asks")).collect()
        });
        released.store(true, Ordering::SeqCst);
        told = Some((given_up, early, other(client)));
    });
    let (given_up, early, late) = told.expect("asked");
    let told = |error: Option<esker_client::Error>| error.map(|error| (error.fate(), error.kind()));
    assert_eq!(told(given_up), Some((Fate::Unknown, NoAnswer::Timeout)));
    for (early, took) in early {
        assert_eq!(told(early), Some((Fate::NotSent, NoAnswer::Timeout)));
        assert!(took < 2 * impatient().request_timeout, "{took:?}");
    }
    assert!(late.is_none(), "{late:?}");
    assert_eq!(*seen.lock(), [held, 1 - held]);
}

fn put_alone(client: &Client) -> Option<esker_client::Error> {
    client.put(&key_of(1), b"v").err()
}

fn put_in_a_batch(client: &Client) -> Option<esker_client::Error> {
    let mut batch = Batch::new();
    batch.put(&key_of(1), b"v");
    client.write(&batch).err()
}

/// An old write would else take effect after a newer one that is acknowledged.
#[test]
fn a_batch_that_was_given_up_holds_a_put_to_another_core_back_until_it_is_answered() {
    is_held_back(0, Opcode::Batch, put_in_a_batch, put_alone);
}

#[test]
fn a_put_that_was_given_up_holds_a_batch_back_until_it_is_answered() {
    is_held_back(1, Opcode::Put, put_alone, put_in_a_batch);
}

#[test]
fn a_server_that_says_it_sleeps_and_hears_no_bell_keeps_nobody() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("memory.sock");
    let listener = UnixListener::bind(&path).expect("bind");
    let address = format!("shm://{}", path.display()).parse().expect("address");
    let client = Client::new(address, impatient());
    let asked = AtomicU32::new(0);
    let core = std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            let socket = listener.accept().expect("a connection").0;
            let mut endpoints = esker_shm::offer(socket.as_fd(), 1, RING_BYTES).expect("memory");
            let mut core = Core::new(endpoints.pop().expect("a core"));
            core.greet();
            core
        });
        client.submit_get(b"k").map(drop).expect("submit");
        server.join().expect("a greeting")
    });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..1000 {
                core.reader.forge(SLEEPS, 1);
                client.submit_get(b"k").map(drop).expect("submit");
                asked.fetch_add(1, Ordering::SeqCst);
            }
        });
        let begun = SystemClock.monotonic();
        while asked.load(Ordering::SeqCst) < 1000 && SystemClock.monotonic() - begun < PATIENCE {
            esker_trt::sleep(Duration::from_millis(10));
        }
        // Whoever waits for the bell comes back.
        core.bell.shutdown(std::net::Shutdown::Both).expect("shut down");
        assert_eq!(asked.load(Ordering::SeqCst), 1000);
    });
}

/// What one core is slow about is no silence of the server, whose other cores answer.
#[test]
fn a_request_that_one_core_does_not_answer_costs_those_of_another_nothing() {
    let limit = Duration::from_millis(400);
    let serve = |number, core: &mut Core, (id, opcode)| {
        if number == 0 {
            esker_trt::sleep(limit / 20);
            core.answer(id, opcode);
        }
    };
    with_cores(Options { request_timeout: limit, ..impatient() }, serve, |client| {
        let end = SystemClock.monotonic() + 4 * limit;
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| client.get(&key_of(1)));
            while SystemClock.monotonic() < end {
                client.get(&key_of(0)).expect("the other core answers");
            }
            let error = slow.join().expect("gets").expect_err("nobody answers");
            assert_eq!(error.kind(), NoAnswer::Timeout, "{error}");
        });
    });
}

/// Of a core that was idle the silence begins when it owes something.
#[test]
fn who_has_waited_for_others_does_not_call_a_core_silent_that_was_just_asked() {
    let limit = Duration::from_millis(1600);
    let serve = |number, core: &mut Core, (id, opcode)| {
        let after = if number == 1 { limit * 8 / 10 } else { limit / 2 };
        if opcode != Opcode::Get as u8 || number == 1 {
            esker_trt::sleep(after);
        }
        core.answer(id, opcode);
    };
    with_cores(Options { request_timeout: limit, ..impatient() }, serve, |client| {
        client.get(&key_of(0)).expect("connects");
        esker_trt::sleep(limit * 12 / 10);
        let (sync, put) = std::thread::scope(|scope| {
            let slow = scope.spawn(|| client.get(&key_of(1)));
            esker_trt::sleep(limit / 20);
            // Waits for that one, and then for the first core.
            let sync = scope.spawn(|| client.sync());
            esker_trt::sleep(limit / 20);
            // Waits for both, and has no time left when the second of them begins.
            let put = client.put(&key_of(1), b"v");
            slow.join().expect("gets").expect("an answer in time");
            (sync.join().expect("syncs"), put)
        });
        sync.expect("it was answered in half the time");
        let error = put.expect_err("there was no time left");
        assert_eq!((error.fate(), error.kind()), (Fate::NotSent, NoAnswer::Timeout), "{error}");
    });
}

/// A core that never says anything again is given up in the end, whatever the others say: what others submit waits for it.
#[test]
fn a_core_that_is_silent_for_long_is_given_up_though_another_one_answers() {
    let limit = Duration::from_millis(200);
    let serve = |number, core: &mut Core, (id, opcode)| {
        if number == 0 {
            core.answer(id, opcode);
        }
    };
    with_cores(Options { request_timeout: limit, ..impatient() }, serve, |client| {
        client.get(&key_of(1)).expect_err("nobody answers");
        let end = SystemClock.monotonic() + 20 * limit;
        // Others wait for that core, until the connection is given up: nobody greets another one.
        let broken = loop {
            if client.get(&key_of(0)).is_err() {
                break true;
            }
            client.sync().expect_err("the other core owes something");
            if SystemClock.monotonic() > end {
                break false;
            }
        };
        assert!(broken, "the connection lasts");
    });
}
