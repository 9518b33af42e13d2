//! How large the directory of a recovery is made.

use super::*;
use esker_base::rng::Rng;

const KEPT: u64 = 1000;

fn link(number: u64) -> Link {
    Link::record(1 + number, 1).unwrap()
}

/// As two threads find them: records of `count` keys, each written `times`.
fn found(count: u64, times: u64, rng: &mut Rng) -> Vec<Vec<Found>> {
    let mut found = vec![Vec::new(); 2];
    for number in 0..count {
        let hash = rng.next_u64();
        for time in 0..times {
            let of_thread = &mut found[usize::try_from((number + time) % 2).unwrap()];
            of_thread.push(Found { hash, link: link(KEPT + number), order: time << 1 });
        }
    }
    found.iter_mut().for_each(|of_thread| of_thread.sort_by_key(|record| record.hash));
    found
}

/// What was written since an old checkpoint is far more than that knew.
#[test]
fn what_the_log_adds_has_its_place_in_the_tables() {
    for (count, of_checkpoint) in
        [(1_300_000, KEPT), (1_050_000, 0), (5000, KEPT), (600_000, 2_450_000)]
    {
        let mut rng = Rng::from_seed(count);
        let index = (of_checkpoint > 0).then(|| {
            let index = Directory::with_capacity(of_checkpoint);
            (0..of_checkpoint).for_each(|number| index.insert(rng.next_u64(), link(number)));
            index
        });
        let kept = index.as_ref().map_or(0, Directory::len);
        let found = found(count, 1, &mut rng);
        let directory = directory_with_room(&found, Version(0), index, 0).unwrap();
        assert_eq!(directory.len(), kept);
        let all = (0..SHARES).flat_map(|share| {
            let mut of_share: Vec<_> = of_share(&found, share).copied().collect();
            of_share.sort_by_key(|record| record.hash);
            of_share
        });
        all.for_each(|record| directory.insert(record.hash, record.link));
        assert_eq!(directory.len(), kept + count);
        let overflow = directory.overflow_len();
        assert!(
            overflow <= count / 1000,
            "{overflow} of {count} are in the overflow, {of_checkpoint} were there"
        );
    }
}

#[test]
fn keys_that_were_written_often_take_the_room_of_one() {
    let mut rng = Rng::from_seed(1);
    let found = found(100_000, 5, &mut rng);
    let directory = directory_with_room(&found, Version(0), None, 0).unwrap();
    assert!(directory.capacity() < 150_000, "room for {}", directory.capacity());
    // They are known already.
    for record in &found[0] {
        if directory.lookup(record.hash).iter().next().is_none() {
            directory.insert(record.hash, record.link);
        }
    }
    let capacity = directory.capacity();
    let directory = directory_with_room(&found, Version(0), Some(directory), 0).unwrap();
    assert_eq!(directory.capacity(), capacity);
}

#[test]
fn what_was_cleared_takes_no_room() {
    let mut rng = Rng::from_seed(2);
    let found = found(100_000, 3, &mut rng);
    let directory = directory_with_room(&found, Version(3), None, 10).unwrap();
    assert!(directory.capacity() < 1000, "room for {}", directory.capacity());
    let directory = directory_with_room(&found, Version(2), None, 10).unwrap();
    assert!(directory.capacity() >= 100_000, "room for {}", directory.capacity());
}
