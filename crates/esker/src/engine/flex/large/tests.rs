//! Large values, on their own.

use super::*;
use crate::engine::Engine;
use crate::engine::flex::opened_in;
use crate::value::PutOptions;
use esker_base::ErrorKind;

#[test]
fn a_value_that_goes_while_it_is_verified_is_no_damage_of_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let flex = opened_in(&folder);
    for number in 0..3_u8 {
        let value = vec![number; 300_000];
        flex.put(&[number], &value, PutOptions::default()).unwrap();
    }
    let mut reading = Reading::default();
    let read = flex.verify_piece(&mut reading, 1).unwrap();
    assert_eq!((read, reading.at), (Some(PIECE_BYTES_MIN), PIECE_BYTES_MIN));
    flex.remove_large(reading.number).unwrap();
    let mut verified = 0;
    while let Some(read) = flex.verify_piece(&mut reading, 1).unwrap() {
        verified += read;
    }
    assert_eq!(verified, 600_000);
}

#[test]
fn a_pair_that_says_another_length_is_damage_before_there_is_memory_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let flex = opened_in(&folder);
    let value = vec![7; 2 << 20];
    flex.put(b"key", &value, PutOptions::default()).unwrap();
    let (number, length) = flex.large.next(0).unwrap();
    let read = |number, length| flex.read_large(number, length, &mut |_| Ok(()));
    assert_eq!(read(number, length).unwrap(), Some(value));
    for other in [length - 1, length + 1, 1 << 62, u64::MAX] {
        assert_eq!(read(number, other).unwrap_err().kind(), ErrorKind::Corrupted, "{other}");
    }
    assert_eq!(read(number + 1, 1 << 62).unwrap(), None);
}
