//! What a store does, call by call.

use crate::support::{DEVICE_SIZE, START, device, flip_on, get, open, options};
use esker::{Attributes, Condition, Durability, ErrorKind, Outcome, PutOptions};
use esker_base::clock::ManualClock;
use esker_media::sim::{SimBlock, SimBlockOptions};
use std::sync::Arc;

#[test]
fn values_come_back_empty_ones_included() {
    let store = open(&device(1), &options(1)).unwrap();
    for (key, value) in [("a", &b""[..]), ("b", b"x"), ("a long key with spaces", &[7; 3000])] {
        store.put(key.as_bytes(), value).unwrap();
        assert_eq!(get(&store, key).as_deref(), Some(value), "{key}");
    }
    assert_eq!(get(&store, "c"), None);
    assert_eq!(store.stats().items, 3);
}

#[test]
fn delete_says_whether_there_was_a_value() {
    let store = open(&device(2), &options(2)).unwrap();
    store.put(b"k", b"").unwrap();
    assert!(store.delete(b"k").unwrap(), "an empty value is a value");
    assert!(!store.delete(b"k").unwrap());
    assert!(!store.delete(b"never").unwrap());
    assert_eq!((get(&store, "k"), store.stats().items), (None, 0));
    store.put(b"k", b"again").unwrap();
    assert_eq!(get(&store, "k").unwrap(), b"again");
}

#[test]
fn conditions_decide_on_the_current_version() {
    let store = open(&device(3), &options(3)).unwrap();
    assert_eq!(store.put_if_present(b"k", b"0").unwrap(), Outcome::KeyMissing);
    let Outcome::Stored(first) = store.put_if_absent(b"k", b"1").unwrap() else { panic!() };
    assert_eq!(store.put_if_absent(b"k", b"2").unwrap(), Outcome::KeyExists);
    let Outcome::Stored(second) = store.compare_and_put(b"k", first, b"3").unwrap() else {
        panic!()
    };
    assert!(second > first);
    assert_eq!(store.compare_and_put(b"k", first, b"4").unwrap(), Outcome::VersionDiffers);
    assert!(!store.compare_and_delete(b"k", first).unwrap());
    assert!(store.compare_and_delete(b"k", second).unwrap());
    assert_eq!(store.compare_and_put(b"k", second, b"5").unwrap(), Outcome::KeyMissing);
    assert_eq!(get(&store, "k"), None);
}

#[test]
fn modify_sees_the_old_value_and_stores_the_new_one() {
    let store = open(&device(4), &options(4)).unwrap();
    for _ in 0..5 {
        store
            .modify(b"n", |old| {
                let old = old.map_or(0, |old| old[0]);
                Some((vec![old + 1], Attributes::default()))
            })
            .unwrap();
    }
    assert_eq!(get(&store, "n").unwrap(), [5]);
    assert_eq!(store.modify(b"n", |_| None).unwrap(), None);
}

#[test]
fn expired_items_are_gone_and_a_clock_that_jumps_back_does_not_bring_them_back() {
    let clock = Arc::new(ManualClock::new(START));
    let mut options = options(5);
    options.clock = Arc::clone(&clock) as _;
    let store = open(&device(5), &options).unwrap();
    let attributes = Attributes { flags: 42, expires_at: Some(START + 10), state: 9 };
    let put = PutOptions { attributes, condition: Condition::Always };
    store.put_with(b"k", b"v", put).unwrap();
    assert_eq!(store.get(b"k").unwrap().unwrap().attributes(), attributes);
    clock.set_unix_seconds(START + 10);
    assert_eq!(get(&store, "k"), None);
    assert_eq!(store.put_if_present(b"k", b"w").unwrap(), Outcome::KeyMissing);
    assert!(!store.delete(b"k").unwrap());
    clock.set_unix_seconds(START);
    assert_eq!(get(&store, "k"), None);
    assert!(matches!(store.put_if_absent(b"k", b"w").unwrap(), Outcome::Stored(_)));
}

#[test]
fn limits_are_named() {
    let store = open(&device(6), &options(6)).unwrap();
    for key in [vec![], vec![1; 65_537]] {
        let error = store.put(&key, b"v").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("65536"), "{error}");
    }
    let error = store.put(b"k", &vec![0; 200_000]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "more than the store has");
    assert_eq!(store.value_size_max_bytes(), 4 << 30);
}

#[test]
fn clear_removes_everything_before_it_and_nothing_after_also_after_reopening() {
    let (device, options) = (device(7), options(7));
    let store = open(&device, &options).unwrap();
    for n in 0..40u8 {
        store.put(&[b'k', n], &[n; 100]).unwrap();
    }
    store.clear().unwrap();
    assert_eq!((store.stats().items, store.iter().count()), (0, 0));
    store.put(b"after", b"1").unwrap();
    drop(store);
    let store = open(&device, &options).unwrap();
    let found: Vec<_> = store.iter().map(|item| item.unwrap().0).collect();
    assert_eq!(found, [b"after".to_vec()]);
}

#[test]
fn a_full_store_says_so_and_still_reads_and_deletes() {
    let store = open(&device(8), &options(8)).unwrap();
    let mut stored = 0u32;
    let error = loop {
        match store.put(&stored.to_le_bytes(), &[1; 700]) {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(stored > 50, "{stored}");
    for n in 0..stored {
        assert!(store.contains(&n.to_le_bytes()).unwrap());
    }
    for n in 0..stored {
        assert!(store.delete(&n.to_le_bytes()).unwrap(), "delete {n} of {stored}");
    }
    store.put(b"room again", &[2; 700]).unwrap();
    assert!(store.check().unwrap().is_sound());
}

#[test]
fn overwriting_for_ever_reuses_segments() {
    let store = open(&device(9), &options(9)).unwrap();
    for n in 0..2000u32 {
        store.put(&[b'k', (n % 5) as u8], &n.to_le_bytes()).unwrap();
    }
    for key in 0..5u8 {
        let n = u32::from_le_bytes(
            get(&store, &format!("k{}", key as char)).unwrap()[..4].try_into().unwrap(),
        );
        assert_eq!(n, 1995 + u32::from(key));
    }
    assert_eq!(store.stats().items, 5);
}

#[test]
fn a_closed_store_answers_closed_and_opens_again() {
    let (device, options) = (device(10), options(10));
    let store = open(&device, &options).unwrap();
    store.put(b"k", b"v").unwrap();
    store.close().unwrap();
    assert_eq!(store.get(b"k").unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(store.put(b"k", b"w").unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(get(&open(&device, &options).unwrap(), "k").unwrap(), b"v");
}

#[test]
fn many_short_sessions_do_not_use_up_the_store() {
    let (device, options) = (device(11), options(11));
    for n in 0..500u32 {
        let store = open(&device, &options).unwrap();
        store.put(b"k", &n.to_le_bytes()).unwrap();
        store.close().unwrap();
    }
    let store = open(&device, &options).unwrap();
    assert_eq!(get(&store, "k").unwrap(), 499u32.to_le_bytes());
}

#[test]
fn without_sync_nothing_is_lost_by_closing() {
    for durability in [Durability::None, Durability::Periodic(std::time::Duration::from_secs(1))] {
        let (device, mut options) = (device(12), options(12));
        options.durability = durability;
        let store = open(&device, &options).unwrap();
        store.put(b"k", b"v").unwrap();
        store.close().unwrap();
        let survived = esker_media::sim::SimBlockOptions::new(crate::support::DEVICE_SIZE, 1)
            .initial(esker_media::sim::Initial::Recycled(device.image()));
        let device = Arc::new(esker_media::sim::SimBlock::new(survived));
        assert_eq!(get(&open(&device, &options).unwrap(), "k").unwrap(), b"v");
    }
}

#[test]
fn a_device_with_something_else_on_it_is_refused_unless_told_to_format() {
    use esker_media::sim::{Initial, SimBlock, SimBlockOptions};
    let random = SimBlockOptions::new(crate::support::DEVICE_SIZE, 3).initial(Initial::Random);
    let device = Arc::new(SimBlock::new(random));
    let mut options = options(13);
    assert_eq!(open(&device, &options).unwrap_err().kind(), ErrorKind::InvalidArgument);
    options.format = true;
    open(&device, &options).unwrap().put(b"k", b"v").unwrap();
    options.format = false;
    assert_eq!(get(&open(&device, &options).unwrap(), "k").unwrap(), b"v");
}

/// The cleaner has moved records that share no blocks any more; their originals are still on the device, in free segments.
#[test]
fn a_full_store_can_be_emptied_after_a_crash() {
    use esker_media::sim::{Initial, SimBlock, SimBlockOptions};
    let (device, options) = (device(14), options(14));
    let store = open(&device, &options).unwrap();
    let put = |n: &u32| store.put(&n.to_le_bytes(), &[1; 100]).is_ok();
    let count = (0..u32::MAX).take_while(put).count() as u32;
    let free = store.stats().free_segments;
    let survived = SimBlockOptions::new(crate::support::DEVICE_SIZE, 1);
    let survived = SimBlock::new(survived.initial(Initial::Recycled(device.image())));
    let store = open(&Arc::new(survived), &options).unwrap();
    assert_eq!((store.stats().items, store.stats().free_segments), (u64::from(count), free));
    for n in 0..count {
        assert!(store.delete(&n.to_le_bytes()).unwrap(), "{n} of {count}");
    }
    store.put(b"k", &[1; 900]).unwrap();
}

#[test]
fn what_a_device_holds_before_the_segments_is_not_overwritten_wherever_it_stands() {
    // With ordinary segments, these begin at 1 MiB; file systems have their marks at 1 KiB, 4086 bytes, 32 or 64 KiB.
    let large =
        [1024, 4086, 8191, 32 << 10, 64 << 10, (1 << 20) - 1].map(|at| (32 << 20, None, at));
    let small =
        [512, 1024, 4086, 8191].map(|at| (DEVICE_SIZE, options(7).testing.segment_size_bytes, at));
    for (size, segment_size, at) in large.into_iter().chain(small) {
        let device = Arc::new(SimBlock::new(SimBlockOptions::new(size, 7)));
        flip_on(&device, at);
        let before = device.image();
        let mut options = options(7);
        options.testing.segment_size_bytes = segment_size;
        let error = open(&device, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{at}: {error}");
        assert!(error.to_string().contains("holds something"), "{at}: {error}");
        assert!(device.image() == before, "{at}");
        options.format = true;
        open(&device, &options).unwrap().put(b"k", b"v").unwrap();
    }
}

#[test]
fn without_leave_to_create_a_blank_device_stays_blank() {
    let device = device(8);
    let before = device.image();
    let mut options = options(8);
    options.create = false;
    let error = open(&device, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(device.image() == before);
}

#[test]
fn what_is_no_store_is_replaced_only_if_that_is_said_and_a_store_never() {
    let foreign = device(71);
    (0..40).for_each(|n| flip_on(&foreign, n * 700));
    let before = foreign.image();
    let refused = open(&foreign, &options(71)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert!(foreign.image() == before);
    let mut over = options(71);
    over.format_foreign = true;
    for _ in 0..2 {
        // Again: a store that is there is opened.
        let store = open(&foreign, &over).unwrap();
        store.put(format!("{}", store.stats().items).as_bytes(), b"v").unwrap();
        store.close().unwrap();
    }
    assert_eq!(open(&foreign, &options(71)).unwrap().stats().items, 2);
    // Nor is a damaged one, with something else in the place of half of it.
    flip_on(&foreign, 20);
    flip_on(&foreign, 4096 + 20);
    assert_eq!(open(&foreign, &over).unwrap_err().kind(), ErrorKind::Corrupted);
    flip_on(&foreign, 0);
    assert_eq!(open(&foreign, &over).unwrap_err().kind(), ErrorKind::Corrupted);
}

/// The copy of a superblock stands at 4096.
#[test]
fn a_device_with_blocks_over_4_kib_is_refused_with_its_number() {
    for block_size_bytes in [4096, 8192, 16_384] {
        let size = 64 * u64::from(block_size_bytes) * 16;
        let inner = SimBlockOptions { block_size_bytes, ..SimBlockOptions::new(size, 1) };
        let mut options = options(1);
        options.testing.segment_size_bytes = Some(16 * u64::from(block_size_bytes));
        let opened = open(&Arc::new(SimBlock::new(inner)), &options);
        if block_size_bytes == 4096 {
            opened.unwrap().put(b"k", b"v").unwrap();
            continue;
        }
        let refused = opened.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        assert!(refused.to_string().contains(&block_size_bytes.to_string()), "{refused}");
    }
}
