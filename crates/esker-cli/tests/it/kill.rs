//! `kill -9` in the middle of writes: what was acknowledged is there, whatever was going on.
//!
//! Several connections write, some one request at a time and some pipelined; the server is killed,
//! sometimes again while it recovers, and then every item is compared, twice. `ESKER_KILL_CYCLES`
//! says how often (a release: 100,000), `ESKER_KILL_SEED` where to begin.

use crate::program::Scratch;
use crate::serving::{Serving, stop_and_wait};
use esker_base::rng::Rng;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

const CYCLES: u64 = 3;
const ITEMS: usize = 10_000;
/// Requests that each connection keeps under way.
const DEPTHS: [usize; 5] = [1, 1, 8, 50, 50];
/// Longest value.
const VALUE_SIZE_MAX: u64 = 600;

/// What the client knows of one item. Each write is a generation of its own.
#[derive(Clone, Copy, Debug, Default)]
struct Item {
    /// Newest generation that the server said it had stored; 0: none.
    acknowledged: u32,
    /// Newest generation that was sent.
    sent: u32,
}

/// The value of an item: different for each generation, and of another length.
fn value(item: usize, generation: u32) -> Vec<u8> {
    let mut rng = Rng::from_seed((item as u64) << 32 | u64::from(generation));
    let mut value = vec![0; rng.index(VALUE_SIZE_MAX as usize + 1)];
    rng.fill(&mut value);
    value
}

/// Items of one connection: every `DEPTHS.len()`-th, beginning with `first`.
struct Writer {
    first: usize,
    items: Vec<Item>,
}

impl Writer {
    fn name(&self, index: usize) -> usize {
        self.first + index * DEPTHS.len()
    }

    fn request(&mut self, index: usize) -> Vec<u8> {
        let name = self.name(index);
        let item = &mut self.items[index];
        item.sent += 1;
        let value = value(name, item.sent);
        let head = format!("set item{name} {} 0 {}\r\n", item.sent, value.len());
        [head.as_bytes(), &value, b"\r\n"].concat()
    }

    /// Writes the items that `next` names until it names none, or the server is gone.
    fn write(
        &mut self,
        stream: TcpStream,
        depth: usize,
        mut next: impl FnMut() -> Option<usize>,
    ) -> bool {
        let mut replies = BufReader::new(stream.try_clone().expect("clone"));
        let mut stream = stream;
        loop {
            let batch: Vec<usize> = std::iter::from_fn(&mut next).take(depth).collect();
            if batch.is_empty() {
                return true;
            }
            let sent: Vec<(usize, u32)> = {
                let mut bytes = Vec::new();
                let mut sent = Vec::new();
                for index in batch {
                    bytes.extend(self.request(index));
                    sent.push((index, self.items[index].sent));
                }
                if stream.write_all(&bytes).is_err() {
                    return false;
                }
                sent
            };
            for (index, generation) in sent {
                let mut line = String::new();
                if !replies.read_line(&mut line).is_ok_and(|count| count > 0) {
                    return false;
                }
                if !line.ends_with('\n') {
                    return false;
                }
                assert_eq!(line, "STORED\r\n", "item {}", self.name(index));
                self.items[index].acknowledged = generation;
            }
        }
    }

    /// Compares every item, and learns which of the writes without an answer took place.
    fn check(&mut self, stream: TcpStream, context: &str) {
        let mut replies = BufReader::new(stream.try_clone().expect("clone"));
        let mut stream = stream;
        for start in (0..self.items.len()).step_by(100) {
            let end = self.items.len().min(start + 100);
            let asked: String =
                (start..end).map(|index| format!("get item{}\r\n", self.name(index))).collect();
            stream.write_all(asked.as_bytes()).expect("send");
            for index in start..end {
                let name = self.name(index);
                let found = self.receive(&mut replies, name);
                let item = &mut self.items[index];
                let generation = found.unwrap_or(0);
                assert!(
                    (item.acknowledged..=item.sent).contains(&generation),
                    "{context}: item {name} is generation {generation}: {item:?}"
                );
                *item = Item { acknowledged: generation, sent: generation };
            }
        }
    }

    /// The generation of the item that comes next, after comparing its bytes.
    fn receive(&self, replies: &mut impl BufRead, name: usize) -> Option<u32> {
        let mut line = String::new();
        replies.read_line(&mut line).expect("a line");
        if line == "END\r\n" {
            return None;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["VALUE", key, flags, length] = words[..] else { panic!("{line:?}") };
        assert_eq!(key, format!("item{name}"));
        let generation: u32 = flags.parse().expect("flags");
        let mut bytes = vec![0; length.parse::<usize>().expect("a length") + 7];
        replies.read_exact(&mut bytes).expect("a value");
        let mut expected = value(name, generation);
        expected.extend_from_slice(b"\r\nEND\r\n");
        assert!(bytes == expected, "item {name}, generation {generation}: other bytes");
        Some(generation)
    }
}

fn number_from(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

fn check_all(serving: &Serving, writers: &mut [Writer], context: &str) {
    std::thread::scope(|scope| {
        for writer in writers {
            let stream = serving.connect();
            scope.spawn(move || writer.check(stream, context));
        }
    });
}

/// Kills the server while it starts, at some moment of its recovery.
fn kill_during_recovery(scratch: &Scratch, engine: &[&str], rng: &mut Rng) {
    let serve = ["serve", "--listen", "memcache://127.0.0.1:0"];
    let mut child = scratch.spawn(&[&serve, engine].concat());
    esker_trt::sleep(Duration::from_micros(rng.below(60_000)));
    child.kill().expect("kill");
    child.wait().expect("ends");
}

#[test]
fn acknowledged_items_survive_kill_9_and_a_second_one_during_recovery() {
    survive(&[]);
}

#[test]
fn flex_survives_the_same() {
    survive(&["--engine", "flex"]);
}

#[test]
fn flat_survives_the_same() {
    survive(&["--engine", "flat:cceh", "--pmem-emulate"]);
}

#[test]
fn flat_in_order_survives_the_same() {
    survive(&["--engine", "flat:masstree", "--pmem-emulate"]);
}

fn survive(engine: &[&str]) {
    let cycles = number_from("ESKER_KILL_CYCLES", CYCLES);
    let first_seed = number_from("ESKER_KILL_SEED", 1);
    let scratch = Scratch::new();
    let mut writers: Vec<Writer> = (0..DEPTHS.len())
        .map(|first| Writer { first, items: vec![Item::default(); ITEMS / DEPTHS.len()] })
        .collect();
    let mut serving = Serving::start(&scratch, engine);
    std::thread::scope(|scope| {
        for (writer, depth) in writers.iter_mut().zip(DEPTHS) {
            let stream = serving.connect();
            let mut indexes = 0..writer.items.len();
            scope.spawn(move || assert!(writer.write(stream, depth, || indexes.next()), "stored"));
        }
    });
    let mut unanswered = 0;
    for seed in first_seed..first_seed + cycles {
        let mut rng = Rng::from_seed(seed);
        std::thread::scope(|scope| {
            for (writer, depth) in writers.iter_mut().zip(DEPTHS) {
                let stream = serving.connect();
                let mut rng = Rng::from_seed(seed << 8 | writer.first as u64);
                let count = writer.items.len();
                scope.spawn(move || {
                    let ended = writer.write(stream, depth, || Some(rng.index(count)));
                    assert!(!ended, "it writes until the server is gone");
                });
            }
            esker_trt::sleep(Duration::from_micros(rng.below(400_000)));
            serving.kill();
        });
        let items = writers.iter().flat_map(|writer| &writer.items);
        unanswered += items.filter(|item| item.sent > item.acknowledged).count();
        let twice = rng.below(2) == 0 || seed == first_seed;
        if twice {
            kill_during_recovery(&scratch, engine, &mut rng);
        }
        for time in ["once", "twice"] {
            serving = Serving::start(&scratch, engine);
            let context = format!("seed {seed}, killed during recovery: {twice}, read {time}");
            check_all(&serving, &mut writers, &context);
            if time == "once" {
                serving.kill();
            }
        }
    }
    assert!(unanswered > 0, "every kill hit writes under way");
    stop_and_wait(serving, "-TERM");
    scratch.run(&["check"]).exits_with(0);
}
