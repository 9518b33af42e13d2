//! Moves that come to nothing.

use super::super::Depot;
use super::*;
use crate::options::Options;
use esker_base::{Error, ErrorKind};
use esker_media::sim::{SimBlock, SimBlockOptions};
use std::sync::Arc;

/// An empty move asks for no flush, and says nothing of what one before it has written.
#[test]
fn what_a_failed_move_has_written_is_not_durable_for_an_empty_one() {
    let mut options = Options::new("");
    options.testing.segment_size_bytes = Some(8 << 10);
    options.testing.background = false;
    let device = Arc::new(SimBlock::new(SimBlockOptions::new(128 << 10, 1)));
    let store = Depot::open(device, &options).unwrap();
    let mut cleaner = store.lock_cleaner().unwrap();
    let mut moving = Move::new(&store.pool, &store.layout, cleaner.mover_from(Stream::Fresh));
    let meta = RecordMeta { version: Version(1), ..RecordMeta::new(RecordKind::Put) };
    let old = Link::record(3, 3).unwrap();
    store.add_moved(&mut moving, 5, &meta, b"key", b"value", old).unwrap();
    store.write_moved(&mut moving).unwrap();
    let (moved, failed) = store.end_move(moving, Err(Error::new(ErrorKind::Io, "read record")));
    assert_eq!((moved.len(), failed.unwrap_err().kind()), (1, ErrorKind::Io));
    for moved in moved {
        store.segments.remove(moved.to, moved.new, Version(0));
    }
    let mover = cleaner.mover_from(Stream::Fresh);
    let (next, durable) = (mover.next, mover.durable);
    assert!(durable < next);
    let (_, empty) = store.end_move(Move::new(&store.pool, &store.layout, mover), Ok(()));
    empty.unwrap();
    assert_eq!(cleaner.mover_from(Stream::Fresh).durable, durable);
}
