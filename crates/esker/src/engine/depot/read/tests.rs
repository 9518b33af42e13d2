//! What walks hold.

use super::*;
use crate::engine::Engine;
use crate::options::Options;
use crate::{PutOptions, Store};
use esker_media::BlockDevice;
use esker_media::sim::{SimBlock, SimBlockOptions};
use std::sync::Arc;

/// Values of some size, so that those of one part are more than it may hold.
#[test]
fn a_part_of_a_walk_holds_few_values_and_the_walk_has_all() {
    const COUNT: u32 = 150;
    let mut options = Options::new("");
    options.testing.segment_size_bytes = Some(4 << 20);
    options.testing.background = false;
    let mut inner = SimBlockOptions::new(96 << 20, 1);
    inner.record = false;
    let device: Arc<dyn BlockDevice> = Arc::new(SimBlock::new(inner));
    let store = Depot::open(device.clone(), &options).unwrap();
    let value = vec![7; 300 << 10];
    for number in 0..COUNT {
        store.put(&number.to_be_bytes(), &value, PutOptions::default()).unwrap();
    }
    let (mut cursor, mut keys, mut left_out) = (Some(Cursor::Start), 0, 0);
    while let Some(from) = cursor {
        let (items, next) = store.walk_part(&from);
        let mut held = 0;
        for item in items {
            let (_, value) = item.unwrap();
            keys += 1;
            left_out += u32::from(value.is_none());
            held += value.map_or(0, |value| value.memory_bytes());
        }
        assert!(held < WALK_BYTES_MAX + (512 << 10), "{held} bytes");
        cursor = next;
    }
    assert!(keys == COUNT && left_out > 0, "{keys} keys, {left_out} without a value");
    store.close().unwrap();
    drop(store);
    let store = Store::open_on(device, &options).unwrap();
    let whole = store.iter().filter(|item| item.as_ref().unwrap().1.len() == value.len());
    assert_eq!(whole.count(), COUNT as usize);
}
