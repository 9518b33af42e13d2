//! Jobs and connections whose client stands in memory.

use super::connection::{Asked, Connection};
use super::duplex::Duplex;
use super::multi::charge;
use super::order::Access;
use super::run::{Job, Told};
use super::session::Session;
use super::{MULTI_GET_BYTES_MAX, MULTI_GET_READS};
use crate::limits::{Limits, OUTPUT_BYTES_MAX};
use crate::server::ServerConfig;
use crate::shared::Shared;
use esker::{Durability, Options, Store};
use esker_base::ids::CoreId;
use esker_format::native::{
    Attributes, ClientHello, Condition, Keys, Opcode, Put, Request, Status, VERSION, begin_frame,
    end_frame, push_key,
};
use esker_trt::{Config, Runtime};
use std::cell::{Cell, RefCell};
use std::io::{ErrorKind as IoErrorKind, IoSlice, Result as IoResult};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// A client that says a few words, or nothing, and takes everything, or nothing at all.
struct Quiet {
    takes: bool,
    says: RefCell<Vec<u8>>,
    /// What happens when it takes something.
    at_reply: Box<dyn Fn()>,
    /// What happens before it hangs up.
    at_end: Box<dyn Fn()>,
}

impl Duplex for Quiet {
    fn read(&self, into: &mut [u8], _timeout: Option<Duration>) -> IoResult<usize> {
        let said: Vec<u8> = {
            let mut says = self.says.borrow_mut();
            let count = says.len().min(into.len());
            says.drain(..count).collect()
        };
        into[..said.len()].copy_from_slice(&said);
        if said.is_empty() {
            (self.at_end)();
        }
        Ok(said.len())
    }

    fn write_vectored(&self, slices: &[IoSlice<'_>], _timeout: Duration) -> IoResult<usize> {
        if !self.takes {
            return Err(IoErrorKind::BrokenPipe.into());
        }
        (self.at_reply)();
        Ok(slices.iter().map(|slice| slice.len()).sum())
    }

    fn flush(&self, _timeout: Duration) -> IoResult<()> {
        Ok(())
    }

    fn break_off(&self) {}

    fn linger(&self, _limit: Duration) {}
}

/// A client at whose replies and end nothing happens.
fn quiet(takes: bool, says: Vec<u8>) -> Quiet {
    Quiet { takes, says: RefCell::new(says), at_reply: Box::new(|| {}), at_end: Box::new(|| {}) }
}

/// A hello, and puts of these under `k`.
fn puts(values: &[&[u8]]) -> Vec<u8> {
    let (attributes, condition) = (Attributes::default(), Condition::Always);
    let mut says = ClientHello { version: VERSION }.encode().to_vec();
    for (id, value) in (1..).zip(values) {
        let put = Request::Put(Put { key: b"k", value, attributes, condition });
        let start = begin_frame(&mut says);
        put.encode(&mut says).expect("can be said");
        end_frame(&mut says, start, id, put.opcode() as u8, Status::Ok).expect("fits");
    }
    says
}

/// A server with a store that has a value under `k`.
fn server(limits: Limits) -> Arc<Shared> {
    let folder = tempfile::tempdir().expect("scratch folder");
    let mut options = Options::new(folder.path());
    (options.size_bytes, options.durability) = (64 << 20, Durability::None);
    // What is open needs no name: the folder goes with this function.
    let store = Store::open(&options).expect("open");
    store.put(b"k", b"value").expect("put");
    let config = ServerConfig { limits, ..ServerConfig::default() };
    Arc::new(Shared::new(store, config, 1, Vec::new()))
}

/// A connection of a client.
fn connection(takes: bool) -> Rc<Connection<Quiet>> {
    Rc::new(Connection::new(server(Limits::default()), 0, quiet(takes, Vec::new())))
}

/// Runs `body` as a task.
fn in_task(body: impl FnOnce() + Send + 'static) {
    let runtime = Runtime::start(Config { cores: 1, ..Config::default() }).expect("run-time");
    runtime.spawn_on(CoreId(0), body).join().expect("no panic");
}

fn let_others_run() {
    (0..10).for_each(|_| esker_trt::yield_now());
}

/// So it goes with a task for which there is no stack.
#[test]
fn a_job_that_never_runs_lets_nobody_overtake_those_before_it() {
    let connection = connection(true);
    let line_up = |access| connection.order.borrow_mut().line_up(access);
    let job = |id| {
        let (ticket, waits) = line_up(Access::Write(&[1]));
        connection.begin(0);
        Job {
            connection: connection.clone(),
            asked: Asked { id, opcode: Opcode::Put as u8, held_bytes: 0, reads: false },
            payload: Vec::new(),
            share: None,
            _counted: None,
            ticket,
            waits,
            turn: None,
            answered: false,
        }
    };
    let waits = || line_up(Access::Read(&[1])).1.len();
    let (first, second) = (job(1), job(2));
    drop(second);
    assert_eq!(waits(), 1, "the first one has not taken effect");
    first.run().send();
    assert_eq!((waits(), connection.in_flight()), (0, 0));
}

/// Something may be in flight for long after that: a backup.
#[test]
fn a_connection_that_broke_holds_no_memory_of_replies() {
    for takes in [true, false] {
        let connection = connection(takes);
        let budget = connection.shared.budget.clone();
        let answer = |id| {
            let value = connection.shared.store.get(b"k").expect("get").expect("there");
            let asked = Asked { id, opcode: Opcode::Get as u8, held_bytes: 0, reads: false };
            connection.begin(0);
            connection.answer(asked, Told::Item(value), budget.try_take(100));
        };
        connection.begin(0);
        for id in 1..=3 {
            answer(id);
            assert!(budget.free_bytes() < budget.total_bytes() || (id > 1 && !takes));
            connection.send();
            assert_eq!(budget.free_bytes(), budget.total_bytes(), "{takes}, {id}");
        }
        assert_eq!(connection.in_flight(), 1);
    }
}

/// Others would else be admitted and read beside those who read, without end, and who needs all the room never find it.
#[test]
fn what_somebody_waits_to_read_is_held_already() {
    in_task(|| {
        let connection = connection(true);
        let asked = |id| Asked { id, opcode: Opcode::Get as u8, held_bytes: 0, reads: false };
        let (mut small, mut large) = (asked(1), asked(2));
        connection.begin(0);
        connection.begin(0);
        connection.begin_reading(&mut small, 100).expect("nobody reads");
        let waits = connection.clone();
        let task = esker_trt::spawn(move || {
            waits.begin_reading(&mut large, OUTPUT_BYTES_MAX).expect("in the end");
            waits.answer(large, Told::Status(Status::KeyMissing), None);
            waits.send();
        });
        let_others_run();
        assert_eq!(connection.held_bytes(), OUTPUT_BYTES_MAX + 100);
        connection.answer(small, Told::Status(Status::KeyMissing), None);
        connection.send();
        task.join().expect("no panic");
        assert_eq!((connection.held_bytes(), connection.in_flight()), (0, 0));
    });
}

/// A client gives a connection up where a reply is longer than it was told.
#[test]
fn values_that_others_make_longer_meanwhile_are_told_as_far_as_they_fit() {
    const GROWN_BYTES: usize = 60 << 10;
    in_task(|| {
        let connection = connection(true);
        let shared = connection.shared.clone();
        let keys: Vec<_> = (0..MULTI_GET_READS).map(|n| format!("key{n}")).collect();
        let mut listed = Vec::new();
        for key in &keys {
            push_key(&mut listed, key.as_bytes()).expect("a key");
            shared.store.put(key.as_bytes(), b"short").expect("put");
        }
        let listed = Keys::decode(&listed).expect("keys");
        let held_bytes = charge(&shared, listed, MULTI_GET_BYTES_MAX);
        let (ticket, waits) = connection.order.borrow_mut().line_up(Access::Read(&[1]));
        connection.begin(held_bytes);
        let mut job = Job {
            connection: connection.clone(),
            asked: Asked { id: 1, opcode: Opcode::MultiGet as u8, held_bytes, reads: false },
            payload: Vec::new(),
            share: shared.budget.try_take(held_bytes),
            _counted: None,
            ticket,
            waits,
            turn: None,
            answered: false,
        };
        // Its turn is before that of the reads.
        let grows = esker_trt::spawn(move || {
            for key in &keys {
                shared.store.put(key.as_bytes(), &[0; GROWN_BYTES]).expect("put");
            }
        });
        let told = job.multi_get(listed).expect("read");
        grows.join().expect("no panic");
        let Told::Items(items) = told else { panic!("no items") };
        let sizes = items.iter().map(|item| item.as_ref().map_or(0, |item| item.bytes().len()));
        let (sizes, bytes): (Vec<_>, usize) = (sizes.clone().collect(), sizes.sum());
        assert!(sizes.iter().all(|size| *size == GROWN_BYTES), "{sizes:?}");
        let (bytes, grown) = (bytes as u64, GROWN_BYTES as u64);
        assert!(bytes <= grown + MULTI_GET_BYTES_MAX && bytes + grown > MULTI_GET_BYTES_MAX);
    });
}

/// A stop of the server waits for those who are busy.
#[test]
fn who_waits_for_memory_with_a_request_is_busy_and_who_has_sent_half_a_one_is_not() {
    in_task(|| {
        let shared = server(Limits::default());
        let mut says = puts(&[b"new", b"new"]);
        says.pop();
        let rested = Rc::new(Cell::new(false));
        let (seen, counted) = (rested.clone(), shared.clone());
        let at_end = Box::new(move || {
            let rests = || counted.counters.busy() == 0;
            seen.set((0..1000).any(|_| {
                esker_trt::sleep(Duration::from_millis(5));
                rests()
            }));
        });
        let quiet = Quiet { at_end, ..quiet(true, says) };
        let session = Session::new(shared.clone(), 0, quiet, shared.budget.nothing());
        let all = shared.budget.try_take(shared.budget.free_bytes()).expect("it is free");
        let task = esker_trt::spawn(move || session.run());
        let_others_run();
        assert_eq!(shared.counters.busy(), 1, "a request is not answered");
        drop(all);
        task.join().expect("no panic");
        assert_eq!(shared.store.get(b"k").expect("get").as_deref(), Some(&b"new"[..]));
        assert!(rested.get(), "half a frame is waited for");
        assert_eq!(shared.counters.busy(), 0);
    });
}

#[test]
fn who_has_sent_a_request_behind_the_hello_is_busy_before_that_is_answered() {
    in_task(|| {
        let shared = server(Limits::default());
        let replies = Rc::new(RefCell::new(Vec::new()));
        let (seen, counted) = (replies.clone(), shared.clone());
        let at_reply = Box::new(move || seen.borrow_mut().push(counted.counters.busy() > 0));
        let quiet = Quiet { at_reply, ..quiet(true, puts(&[b"new"])) };
        Session::new(shared.clone(), 0, quiet, shared.budget.nothing()).run();
        assert_eq!(*replies.borrow(), [true, true], "the hello, and the put's");
        assert_eq!(shared.counters.busy(), 0);
    });
}

/// Those who take their replies late would else take the places of all others.
#[test]
fn who_sends_replies_holds_no_place_of_a_task() {
    in_task(|| {
        let shared = server(Limits::default());
        let places = Rc::new(RefCell::new(Vec::new()));
        let (seen, counted) = (places.clone(), shared.clone());
        let at_reply = Box::new(move || {
            let shard = counted.counters.shard(0);
            let is_free = shard.try_begin_task(1);
            if is_free {
                shard.end_task();
            }
            seen.borrow_mut().push(is_free);
        });
        let quiet = Quiet { at_reply, ..quiet(true, puts(&[b"new"])) };
        Session::new(shared.clone(), 0, quiet, shared.budget.nothing()).run();
        assert_eq!(*places.borrow(), [true, true], "the hello, and the put's");
    });
}

/// Half of the frame is in a buffer that cannot grow before the reply is sent.
#[test]
fn time_for_which_the_server_takes_nothing_is_not_the_clients() {
    const VALUE: [u8; 12 << 10] = [7; 12 << 10];
    let limit = Duration::from_millis(300);
    in_task(move || {
        let shared = server(Limits { request_timeout: limit, ..Limits::default() });
        let free_bytes = shared.budget.free_bytes();
        // The first put finds as much as it needs, and no buffer can grow.
        let held = Cell::new(shared.budget.try_take(free_bytes - 100));
        let is_hello = Cell::new(true);
        let at_reply = Box::new(move || {
            if !is_hello.replace(false) && held.take().is_some() {
                esker_trt::sleep(2 * limit);
            }
        });
        let quiet = Quiet { at_reply, ..quiet(true, puts(&[b"new", &VALUE])) };
        Session::new(shared.clone(), 0, quiet, shared.budget.nothing()).run();
        let stored = shared.store.get(b"k").expect("get").expect("there");
        assert!(*stored == VALUE, "{} bytes", stored.len());
    });
}
