//! Rings between two sides, honest and not, and how they come to share them.

use crate::handshake::{Endpoint, accept, offer, refuse};
use crate::memory::Memory;
use crate::ring::{Reader, Ring, Writer, words};
use esker_base::ErrorKind;
use esker_base::rng::Rng;
use std::io::ErrorKind as IoErrorKind;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn pair(capacity: usize) -> (Arc<Memory>, Writer, Reader) {
    let memory = Arc::new(Memory::create(words(capacity)).unwrap().0);
    let ring = Ring::new(&memory, 0, capacity).unwrap();
    (memory, Writer::new(ring.clone()), Reader::new(ring))
}

#[test]
fn what_is_written_is_read_however_it_is_cut() {
    let mut rng = Rng::from_seed(1);
    for capacity in [8, 64, 4096] {
        let (_memory, writer, reader) = pair(capacity);
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        for _ in 0..3000 {
            let mut bytes = vec![0; rng.index(capacity + 9)];
            rng.fill(&mut bytes);
            let count = writer.write(&bytes).unwrap();
            assert_eq!(count, bytes.len().min(capacity - (sent.len() - received.len())));
            sent.extend_from_slice(&bytes[..count]);
            let mut into = vec![0; rng.index(capacity + 9)];
            let count = reader.read(&mut into).unwrap();
            assert_eq!(count, into.len().min(sent.len() - received.len()));
            received.extend_from_slice(&into[..count]);
        }
        assert_eq!(received, sent[..received.len()]);
        assert!(received.len() > 3000);
    }
}

#[test]
fn two_threads_lose_nothing_and_no_wake_up() {
    const BYTES: u64 = 2_000_000;
    let (_memory, writer, reader) = pair(256);
    std::thread::scope(|scope| {
        let sleeper = std::thread::current();
        scope.spawn(move || {
            let mut rng = Rng::from_seed(2);
            let mut sent = 0;
            while sent < BYTES {
                let length = (rng.below(90) + 1).min(BYTES - sent);
                let bytes: Vec<u8> = (sent..sent + length).map(|n| (n % 251) as u8).collect();
                sent += writer.write(&bytes).unwrap() as u64;
                if writer.must_ring() {
                    sleeper.unpark();
                }
            }
        });
        let (mut received, mut into) = (0, [0; 77]);
        while received < BYTES {
            let count = reader.read(&mut into).unwrap();
            for byte in &into[..count] {
                assert_eq!(u64::from(*byte), received % 251);
                received += 1;
            }
            if count == 0 && reader.announce_sleep() {
                // A writer that must ring does; without it this would wait for ever.
                std::thread::park();
                reader.awake();
            }
        }
    });
}

#[test]
fn counters_that_lie_are_refused_and_nothing_is_read() {
    let mut rng = Rng::from_seed(3);
    let (memory, writer, reader) = pair(64);
    assert_eq!(writer.write(b"honest").unwrap(), 6);
    let lies = [7 + 64, 1 << 63, 6 + (1 << 32), u64::MAX - 100];
    let random = (0..1000).map(|_| rng.next_u64() >> 1 | 1 << 40);
    for lie in lies.into_iter().chain(random) {
        memory.words()[0].store(lie, Ordering::Relaxed);
        assert_eq!(reader.read(&mut [0; 64]).unwrap_err().kind(), IoErrorKind::InvalidData);
        assert!(!reader.announce_sleep());
        memory.words()[16].store(lie, Ordering::Relaxed);
        assert_eq!(writer.write(b"x").unwrap_err().kind(), IoErrorKind::InvalidData);
        memory.words()[16].store(0, Ordering::Relaxed);
    }
    memory.words()[0].store(6, Ordering::Relaxed);
    let mut into = [0; 64];
    assert_eq!((reader.read(&mut into).unwrap(), &into[..6]), (6, b"honest".as_slice()));
}

#[test]
fn both_sides_of_a_greeting_share_every_stream() {
    let (server, client) = UnixStream::pair().unwrap();
    let ours = offer(server.as_fd(), 3, 4096).unwrap();
    let theirs = accept(client.as_fd()).unwrap().unwrap();
    assert_eq!((ours.len(), theirs.len()), (3, 3));
    let say = |from: &Endpoint, to: &Endpoint, words: &[u8]| {
        assert_eq!(from.writer.write(words).unwrap(), words.len());
        let mut into = [0; 64];
        let count = to.reader.read(&mut into).unwrap();
        assert_eq!(&into[..count], words);
    };
    for (number, (our, their)) in ours.iter().zip(&theirs).enumerate() {
        say(their, our, format!("request {number}").as_bytes());
        say(our, their, format!("reply {number}").as_bytes());
        rustix::io::write(&their.bell, b"!").unwrap();
        assert_eq!(rustix::io::read(&our.bell, &mut [0; 8]).unwrap(), 1);
    }
    drop(theirs);
    for our in &ours {
        assert_eq!(rustix::io::read(&our.bell, &mut [0; 8]).unwrap(), 0, "the end of a bell");
    }
}

#[test]
fn refusals_and_nonsense_are_no_memory() {
    let (server, client) = UnixStream::pair().unwrap();
    refuse(server.as_fd(), 7).unwrap();
    assert_eq!(accept(client.as_fd()).unwrap().unwrap_err(), 7);
    let mut named = [b'x'; 32];
    named[..8].copy_from_slice(b"EskerShm");
    let mut without_memory = [0; 32];
    without_memory[..9].copy_from_slice(b"EskerShm\x01");
    (without_memory[16], without_memory[21]) = (1, 1);
    for nonsense in [&[b'x'; 32][..], &named, &named[..5], &without_memory] {
        let (server, client) = UnixStream::pair().unwrap();
        rustix::io::write(&server, nonsense).unwrap();
        drop(server);
        assert_eq!(accept(client.as_fd()).unwrap_err().kind(), ErrorKind::Unsupported);
    }
    for (streams, capacity) in [(0, 4096), (65, 4096), (1, 100), (1, 1 << 30)] {
        assert_eq!(
            offer(server.as_fd(), streams, capacity).unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
    }
}

/// Pages of such a file can be taken out of it, sealed as it is.
#[test]
fn memory_of_huge_pages_is_refused() {
    use rustix::fs::{MemfdFlags, SealFlags};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    for (more, kind) in [(MemfdFlags::empty(), None), (MemfdFlags::HUGETLB, Some("ordinary"))] {
        let file = rustix::fs::memfd_create("esker-test", flags | more).unwrap();
        rustix::fs::ftruncate(&file, 2 << 20).unwrap();
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        let opened = Memory::open(file.as_fd(), 64).map_err(|error| error.to_string());
        match kind {
            None => drop(opened.unwrap()),
            Some(words) => assert!(opened.is_err_and(|said| said.contains(words))),
        }
    }
}

#[test]
fn memory_has_all_its_pages_before_anybody_touches_them() {
    for capacity in [64, 4096, 1 << 20] {
        let (memory, file) = Memory::create(words(capacity)).unwrap();
        let stat = rustix::fs::fstat(&file).unwrap();
        let bytes = i64::try_from(memory.words().len() * 8).unwrap();
        assert_eq!(stat.st_size, bytes);
        assert!(stat.st_blocks * 512 >= bytes, "{} blocks for {bytes} bytes", stat.st_blocks);
    }
}
