//! What stands in the log, and is not in the index yet.

use super::super::Depot;
use super::*;
use crate::options::Options;
use esker_media::sim::{SimBlock, SimBlockOptions};

/// Somebody may write the header of the next segment before the clear is published.
#[test]
fn a_header_behind_a_clear_tells_it() {
    let mut options = Options::new("");
    options.testing.segment_size_bytes = Some(8 << 10);
    options.testing.background = false;
    options.durability = Durability::None;
    let device = Arc::new(SimBlock::new(SimBlockOptions::new(128 << 10, 1)));
    let store = Depot::open(device, &options).unwrap();
    let meta = RecordMeta::new(RecordKind::Clear);
    let items = [Item { hash: 0, meta, key: &[], value: &[] }];
    let mut guard = store.log.lock();
    let state = &mut *guard;
    assert!(store.begin_piece(state, &items).unwrap().is_none());
    let placed = store.append_to_piece(state, &items).unwrap();
    assert_eq!(state.clear_version, Version(placed.first.0.version.0 + 1));
    drop(guard);
    store.segments.end_entry(placed.segment);
}
