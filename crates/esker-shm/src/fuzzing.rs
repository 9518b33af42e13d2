//! Fuzz target: rings of which one side keeps to the rules, whatever the other one does to the memory, and greetings. Only in tests
//! and in the build of a fuzzer (`fuzz/`).

use crate::handshake::{GREETING_SIZE, Greeting};
use crate::memory::Memory;
use crate::ring::{Reader, Ring, Writer, words};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of a ring: so few that it is soon gone around.
const CAPACITY: usize = 64;

thread_local! {
    /// Memory of a ring, made once.
    static MEMORY: RefCell<Option<Arc<Memory>>> = const { RefCell::new(None) };
}

/// Runs one input.
pub fn run(input: &[u8]) {
    if let Some(bytes) = input.first_chunk::<GREETING_SIZE>()
        && let Ok(greeting) = Greeting::decode(bytes)
    {
        assert_eq!(greeting.encode()[..24], bytes[..24]);
    }
    let memory = MEMORY.with_borrow_mut(|memory| {
        let make = || Arc::new(Memory::create(words(CAPACITY)).expect("memory").0);
        memory.get_or_insert_with(make).clone()
    });
    memory.words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
    steps(&memory, input);
}

/// Two bytes a step: what is done, and how much of it.
fn steps(memory: &Arc<Memory>, input: &[u8]) {
    let ring = || Ring::new(memory, 0, CAPACITY).expect("inside");
    let (writer, reader) = (Writer::new(ring()), Reader::new(ring()));
    let (mut sent, mut written, mut forged) = (VecDeque::<u8>::new(), 0, false);
    let number = |at: usize| u8::try_from(at % 251).unwrap_or(0);
    let mut steps = input.chunks_exact(2);
    while let Some([step, much]) = steps.next() {
        let much = usize::from(*much);
        match step % 6 {
            0 | 1 => {
                let bytes: Vec<u8> = (written..written + much).map(number).collect();
                let Ok(count) = writer.write(&bytes) else { return assert!(forged) };
                let room = CAPACITY.saturating_sub(sent.len());
                assert!(forged || count == much.min(room), "as far as there is room");
                sent.extend(&bytes[..count]);
                written += count;
            }
            2 | 3 => {
                let mut bytes = vec![0; much];
                let Ok(count) = reader.read(&mut bytes) else { return assert!(forged) };
                if !forged {
                    assert_eq!(count, much.min(sent.len()), "as far as there is something");
                    assert!(sent.drain(..count).eq(bytes[..count].iter().copied()));
                }
            }
            4 => {
                let sleeps = reader.announce_sleep();
                assert!(forged || sleeps == sent.is_empty());
                let _ = writer.must_ring();
                reader.awake();
            }
            _ => {
                // What the other side does to the memory; then nothing is promised but that it ends well.
                let Some([low, high]) = steps.next() else { return };
                let value = i64::from(i16::from_le_bytes([*low, *high])).cast_unsigned();
                reader.forge(much, value);
                forged = true;
            }
        }
    }
}

/// Inputs to begin with.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let greeting = Greeting { status: 0, streams: 2, capacity: 4096 };
    vec![
        greeting.encode().to_vec(),
        vec![0, 50, 2, 30, 1, 40, 4, 0, 3, 64, 0, 255, 2, 255, 4, 0],
        vec![0, 9, 5, 16, 255, 255, 2, 9, 0, 9],
        vec![0, 9, 5, 0, 3, 0, 2, 9, 4, 0],
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_testkit::fuzz::smoke;

    #[test]
    fn targets_take_seeds_what_is_changed_of_them_and_noise() {
        smoke(&[("ring", run, seeds)], 1, 20_000);
        assert!(seeds().len() > 3, "rings and greetings");
    }
}
