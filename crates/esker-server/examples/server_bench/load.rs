//! Closed-loop load over the memcache or the native protocol: each connection sends some requests, waits
//! for all replies, checks them, and goes on.
//!
//! One task a connection, on a run-time of the load's own, so that many connections cost few
//! threads.

use esker_base::clock::{Clock, SystemClock};
use esker_base::ids::CoreId;
use esker_base::rng::Rng;
use esker_format::native::{
    Attributes, ClientHello, Condition, FRAME_HEADER_SIZE, FrameHeader, Item, Opcode, Put, Request,
    SERVER_HELLO_SIZE, ServerHello, Status, VERSION, begin_frame, end_frame,
};
use esker_server::Protocol;
use esker_trt::Runtime;
use esker_trt::net::Stream;
use hdrhistogram::Histogram;
use std::io::{Error, ErrorKind, Result};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::time::Duration;

/// A server that answers nothing for so long has failed the measurement.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest time that is told apart, in microseconds.
const TIME_MAX_MICROS: u64 = 60_000_000;
/// Bits of the number of a new key that count the requests of one connection.
const NUMBER_BITS: u32 = 26;
const STORED: &[u8] = b"STORED\r\n";

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) protocol: Protocol,
    pub(crate) clients: usize,
    /// Requests that a connection sends before it waits.
    pub(crate) depth: usize,
    pub(crate) value_size: usize,
    pub(crate) keys: u64,
    /// Whether each set has a key that was never used before.
    pub(crate) new_keys: bool,
    /// How many of a hundred requests are `get`s.
    pub(crate) gets: u64,
    pub(crate) seconds: f64,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) per_second: f64,
    pub(crate) requests: u64,
    /// Bytes of keys and values that were set.
    pub(crate) user_bytes: u64,
    /// Microseconds from the first byte of a batch to the last of its replies.
    pub(crate) times: Histogram<u64>,
}

fn key(number: u64) -> String {
    format!("key{number:010}")
}

/// Where the values of keys begin in one random text, at most.
const STARTS: u64 = 1 << 16;

struct Client {
    stream: Stream,
    load: Load,
    /// All values are pieces of this: a device of compressed memory would spend its time on what packs.
    text: Vec<u8>,
    request: Vec<u8>,
    reply: Vec<u8>,
    /// The replies of memcache.
    expected: Vec<u8>,
    /// The requests of the native protocol with their keys: each one's id is its place here, from 1.
    asked: Vec<(Opcode, u64)>,
}

impl Client {
    fn connect(address: SocketAddr, load: Load) -> Result<Client> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let stream = Stream::try_from(stream)?;
        let mut text = vec![0; load.value_size + STARTS as usize];
        Rng::from_seed(1).fill(&mut text);
        let (request, reply, expected, asked) = Default::default();
        let mut client = Client { stream, load, text, request, reply, expected, asked };
        if load.protocol == Protocol::Native {
            client.greet()?;
        }
        Ok(client)
    }

    fn greet(&mut self) -> Result<()> {
        self.stream.set_deadline(Some(PATIENCE));
        self.stream.write_all(&ClientHello { version: VERSION }.encode())?;
        let mut hello = [0; SERVER_HELLO_SIZE];
        let mut seen = 0;
        while seen < hello.len() {
            seen += self.stream.read(&mut hello[seen..])?;
        }
        match ServerHello::decode(&hello).map_err(Error::other)?.status {
            Status::Ok => Ok(()),
            status => Err(Error::other(status.words())),
        }
    }

    /// The value of a key.
    fn value_of(&self, number: u64) -> Range<usize> {
        let start = (number.wrapping_mul(4093) % STARTS) as usize;
        start..start + self.load.value_size
    }

    fn ask(&mut self, number: u64, request: &Request<'_>) {
        self.asked.push((request.opcode(), number));
        let start = begin_frame(&mut self.request);
        request.encode(&mut self.request).unwrap();
        let (id, opcode) = (self.asked.len() as u32, request.opcode() as u8);
        end_frame(&mut self.request, start, id, opcode, Status::Ok).unwrap();
    }

    fn set(&mut self, number: u64) -> u64 {
        let key = key(number);
        let text = std::mem::take(&mut self.text);
        let value = &text[self.value_of(number)];
        if self.load.protocol == Protocol::Native {
            let (attributes, condition) = (Attributes::default(), Condition::Always);
            let put = Put { key: key.as_bytes(), value, attributes, condition };
            self.ask(number, &Request::Put(put));
        } else {
            let head = format!("set {key} 0 0 {}\r\n", value.len());
            self.request.extend_from_slice(head.as_bytes());
            self.request.extend_from_slice(value);
            self.request.extend_from_slice(b"\r\n");
            self.expected.extend_from_slice(STORED);
        }
        self.text = text;
        (key.len() + self.load.value_size) as u64
    }

    fn get(&mut self, number: u64) {
        let key = key(number);
        if self.load.protocol == Protocol::Native {
            return self.ask(number, &Request::Get { key: key.as_bytes() });
        }
        self.request.extend_from_slice(format!("get {key}\r\n").as_bytes());
        let head = format!("VALUE {key} 0 {}\r\n", self.load.value_size);
        self.expected.extend_from_slice(head.as_bytes());
        let value = self.value_of(number);
        self.expected.extend_from_slice(&self.text[value]);
        self.expected.extend_from_slice(b"\r\nEND\r\n");
    }

    /// Sends what was asked for and receives exactly what has to come.
    fn exchange(&mut self) -> Result<()> {
        self.stream.set_deadline(Some(PATIENCE));
        self.stream.write_all(&self.request)?;
        if self.load.protocol == Protocol::Native {
            return self.receive_frames();
        }
        self.reply.resize(self.expected.len(), 0);
        let mut seen = 0;
        while seen < self.reply.len() {
            let count = self.stream.read(&mut self.reply[seen..])?;
            seen += count;
            let same = self.reply[..seen] == self.expected[..seen];
            if count == 0 || !same {
                let words = String::from_utf8_lossy(&self.reply[..seen.min(100)]).into_owned();
                return Err(Error::new(ErrorKind::InvalidData, format!("unexpected: {words}")));
            }
        }
        self.request.clear();
        self.expected.clear();
        Ok(())
    }

    /// A reply to each request, in any order, each what it has to be.
    fn receive_frames(&mut self) -> Result<()> {
        let wrong = |what: &str| Error::new(ErrorKind::InvalidData, what.to_owned());
        let (mut filled, mut used, mut left) = (0, 0, self.asked.len());
        while left > 0 {
            self.reply.copy_within(used..filled, 0);
            (filled, used) = (filled - used, 0);
            self.reply.resize(self.reply.len().max(2 * filled).max(64 << 10), 0);
            match self.stream.read(&mut self.reply[filled..])? {
                0 => return Err(wrong("the end of the stream")),
                count => filled += count,
            }
            while let Ok(header) = FrameHeader::peek(&self.reply[used..filled]) {
                let end = used + FRAME_HEADER_SIZE + header.payload_size as usize;
                if end > filled {
                    break;
                }
                let frame = &self.reply[used..end];
                header.verify_frame(frame).map_err(Error::other)?;
                let opcode = (header.id as usize).checked_sub(1).and_then(|id| self.asked.get(id));
                let right = match opcode {
                    Some((Opcode::Get, number)) => Item::decode(&frame[FRAME_HEADER_SIZE..])
                        .is_ok_and(|item| item.value == &self.text[self.value_of(*number)]),
                    Some((opcode, _)) => *opcode as u8 == header.opcode,
                    None => false,
                };
                if !right || header.status != Status::Ok.number() {
                    return Err(wrong("another reply"));
                }
                used = end;
                left -= 1;
            }
        }
        self.request.clear();
        self.asked.clear();
        Ok(())
    }

    fn run(&mut self, seed: u64, end: Duration) -> Result<Run> {
        let mut rng = Rng::from_seed(seed);
        let times = Histogram::new_with_bounds(1, TIME_MAX_MICROS, 3)
            .map_err(|error| Error::other(error.to_string()))?;
        let mut run = Run { per_second: 0.0, requests: 0, user_bytes: 0, times };
        let mut now = SystemClock.monotonic();
        while now < end {
            for place in 0..self.load.depth as u64 {
                let number = match self.load.new_keys {
                    true => seed << NUMBER_BITS | (run.requests + place),
                    false => rng.below(self.load.keys),
                };
                if rng.below(100) < self.load.gets {
                    self.get(number);
                } else {
                    run.user_bytes += self.set(number);
                }
            }
            self.exchange()?;
            let done = SystemClock.monotonic();
            run.times
                .saturating_record(u64::try_from((done - now).as_micros()).unwrap_or(u64::MAX));
            run.requests += self.load.depth as u64;
            now = done;
        }
        Ok(run)
    }
}

/// Stores every key once.
pub(crate) fn fill(runtime: &Runtime, address: SocketAddr, load: Load) -> Result<()> {
    const BATCH: u64 = 100;
    let filled = runtime.spawn(move || -> Result<()> {
        let mut client = Client::connect(address, load)?;
        for first in (0..load.keys).step_by(BATCH as usize) {
            for number in first..load.keys.min(first + BATCH) {
                client.set(number);
            }
            client.exchange()?;
        }
        Ok(())
    });
    filled.join().map_err(Error::other)?
}

/// Runs `load` against the server at `address`.
pub(crate) fn run(runtime: &Runtime, address: SocketAddr, load: Load, seed: u64) -> Result<Run> {
    let start = SystemClock.monotonic();
    let end = start + Duration::from_secs_f64(load.seconds);
    let tasks: Vec<_> = (0..load.clients)
        .map(|number| {
            let core = CoreId(u16::try_from(number % runtime.cores()).unwrap_or(0));
            let seed = seed << 16 | number as u64;
            runtime.spawn_on(core, move || Client::connect(address, load)?.run(seed, end))
        })
        .collect();
    let mut all: Option<Run> = None;
    for task in tasks {
        let run = task.join().map_err(Error::other)??;
        match &mut all {
            None => all = Some(run),
            Some(all) => {
                all.requests += run.requests;
                all.user_bytes += run.user_bytes;
                all.times.add(&run.times).map_err(|error| Error::other(error.to_string()))?;
            }
        }
    }
    let mut all = all.ok_or_else(|| Error::other("no clients"))?;
    all.per_second = all.requests as f64 / (SystemClock.monotonic() - start).as_secs_f64();
    Ok(all)
}
