//! The log, on its own.

use super::*;
use esker_format::Flaw;
use esker_format::flex_db::{Change, Content, Extra};
use esker_media::sim::{SimBlock, SimBlockOptions};

const STORE_ID: [u8; 16] = [7; 16];

fn opened() -> Wal {
    let device = |seed| -> Arc<dyn BlockDevice> {
        Arc::new(SimBlock::new(SimBlockOptions::new(1 << 20, seed)))
    };
    let table = Arc::new(MemTable::new(1, 1, 256 << 10, false));
    let tail = Tail { generation: 1, ..Tail::default() };
    Wal::new([device(0), device(2)], STORE_ID, 256 << 10, tail, table)
}

/// Many may have added to a batch before one of them writes it: its header has to be able to say how long it is.
#[test]
fn a_batch_that_nobody_writes_does_not_grow_beyond_what_its_header_can_say() {
    const CHANGES: u64 = 40;
    const MOST: usize = 16 << 10;
    let mut wal = opened();
    wal.forming_max = MOST;
    let value = [9; 3000];
    let mut batches = Vec::new();
    for number in 0..CHANGES {
        let key = number.to_be_bytes();
        let write = |log: &mut WalWriter| {
            log.push(&Change::Set(&key, Content::Put(Extra::default(), &value)));
        };
        let Appended::Done(ticket) = wal.append(value.len() + 56, 1, &write).unwrap() else {
            panic!("the log is full");
        };
        let forming = wal.state.lock().forming.size_bytes();
        assert!(forming <= MOST, "{forming} bytes behind {number} changes");
        wal.leave(&ticket);
        batches.push(ticket);
    }
    // Who is told that his change is durable reads it back.
    batches.iter().for_each(|ticket| wal.wait_durable(ticket.batch).unwrap());
    let mut bytes = vec![0; 1 << 20];
    wal.device(1).read_at(sites::WAL_READ, 0, &mut bytes).unwrap();
    let (mut at, mut found) = (0, 0);
    while let Ok((batch, _)) = Batch::decode(&bytes[at..], &STORE_ID, at as u64, || false) {
        batch
            .changes(&bytes[at..], |version, change| -> std::result::Result<(), Flaw> {
                assert_eq!(version, 1 + found);
                let key = found.to_be_bytes();
                assert_eq!(change, Change::Set(&key, Content::Put(Extra::default(), &value)));
                found += 1;
                Ok(())
            })
            .unwrap();
        at += batch.total_bytes as usize;
    }
    assert_eq!(found, CHANGES);
}

/// Each of them would find room for itself where there is none for all.
#[test]
fn what_has_no_log_and_is_in_no_table_yet_has_room_in_the_log_too() {
    const SIZE: usize = 60_000;
    let wal = opened();
    let pass = || match wal.pass(SIZE, 1).unwrap() {
        Appended::Done(ticket) => Some(ticket),
        Appended::Full(_) => None,
    };
    let mut inside = Vec::new();
    while let Some(ticket) = pass() {
        inside.push(ticket);
        let reserved = wal.state.lock().reserved;
        assert!(reserved >= (inside.len() * SIZE) as u64, "{reserved} for {}", inside.len());
        assert!(inside.len() < 100, "it is never full");
    }
    assert!(inside.len() > 2, "{}", inside.len());
    inside.iter().for_each(|ticket| wal.leave(ticket));
    assert!(pass().is_some(), "they are in the table by now, which has nothing");
}

/// Each of them is in the log of its own table: they may take long, and the next one has to be no shorter for that.
#[test]
fn what_has_no_log_and_is_in_no_table_yet_takes_nothing_of_the_next_one() {
    const SIZE: usize = 60_000;
    let wal = opened();
    let pass = || match wal.pass(SIZE, 1).unwrap() {
        Appended::Done(ticket) => Some(ticket),
        Appended::Full(_) => None,
    };
    let before: Vec<Ticket> = std::iter::from_fn(pass).collect();
    let make = |generation, version| Arc::new(MemTable::new(generation, version, 256 << 10, false));
    wal.rotate(false, make, |_, _| ()).unwrap();
    let first = pass().unwrap();
    let claimed = wal.claimed.load(Ordering::Relaxed);
    assert!(claimed < 2 * SIZE as u64, "{claimed} bytes are claimed for one");
    let mut behind: Vec<Ticket> = std::iter::from_fn(pass).collect();
    behind.push(first);
    assert_eq!(behind.len(), before.len());
    // Nor is there more of it when they are in theirs.
    before.iter().for_each(|ticket| wal.leave(ticket));
    assert!(pass().is_none());
    behind.iter().for_each(|ticket| wal.leave(ticket));
    assert!(pass().is_some());
}
