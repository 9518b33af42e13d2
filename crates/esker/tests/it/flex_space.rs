//! FlexSpace as an API of its own: what its texts say of `defrag`, of the cap, of marks and of options.

use crate::flex::{Media, assert_sound, content, small};
use esker::ErrorKind;
use esker::flex::{Space, SpaceOptions, Splice};
use esker_base::rng::Rng;

/// Longest extent of a small space, in bytes.
const LONGEST: usize = 508;

fn open(options: &mut SpaceOptions) -> Space {
    options.format = true;
    Space::open_on(Media::new(8 << 20).files(), options).unwrap()
}

/// Pieces that stand side by side, and far from each other on the device.
fn append_scattered(space: &Space, pieces: usize, length: usize) {
    let start = space.size_bytes();
    for piece in 0..pieces {
        space.insert_range(start, &vec![u8::try_from(piece % 251).unwrap(); length]).unwrap();
    }
}

#[test]
fn defrag_makes_one_of_short_extents_and_leaves_the_others() {
    let space = open(&mut small(1));
    append_scattered(&space, 2, 40);
    space.insert_hole(space.size_bytes(), 100).unwrap();
    append_scattered(&space, 30, 10);
    space.append(&[7; LONGEST]).unwrap();
    append_scattered(&space, 70, 20);
    let before = content(&space).unwrap();
    assert!(space.stat().extents > 100);
    // Two, a hole, one, a long one, and three of some 500 bytes; a few more where segments end.
    let moved = space.defrag(0, u64::MAX).unwrap();
    assert_eq!(moved, 2 * 40 + 30 * 10 + 70 * 20);
    assert!((7..=9).contains(&space.stat().extents), "{:?}", space.stat());
    assert!(content(&space).unwrap() == before);
    // What is done is not done again.
    assert!(space.defrag(0, u64::MAX).unwrap() <= LONGEST as u64);
    assert_sound(&space);
}

#[test]
fn defrag_leaves_what_was_written_in_order_wherever_its_range_begins() {
    let space = open(&mut small(2));
    for _ in 0..300 {
        space.append(&[3; 100]).unwrap();
    }
    let size = space.size_bytes();
    for from in [0, 1, 250, 507, 509] {
        assert_eq!(space.defrag(from, size - 2 * from).unwrap(), 0, "from {from}");
    }
    assert_eq!(space.defrag(size, 10).unwrap() + space.defrag(u64::MAX, u64::MAX).unwrap(), 0);
}

/// It would take hours, and others would wait, if it went through a hole step by step.
#[test]
fn defrag_passes_a_hole_at_once() {
    let space = open(&mut small(3));
    append_scattered(&space, 3, 5);
    space.insert_hole(5, 1 << 46).unwrap();
    assert_eq!(space.defrag(0, u64::MAX).unwrap(), 10);
    let mut bytes = [0; 10];
    assert_eq!(space.read(5 + (1 << 46), &mut bytes).unwrap(), 10);
    assert_eq!(bytes, [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]);
}

/// More than fits into one part; marks stay where they are.
#[test]
fn defrag_goes_on_part_by_part() {
    let mut options = small(4);
    options.testing.moved_at_once = 1;
    let space = open(&mut options);
    let mut marked = Vec::new();
    let mut rng = Rng::from_seed(4);
    for number in 0..300_u64 {
        let data = vec![u8::try_from(number % 251).unwrap(); 20];
        let marks: &[usize] = if rng.chance(1, 30) { &[0] } else { &[] };
        let offset = space.size_bytes();
        marked.extend(marks.iter().map(|mark| offset + *mark as u64));
        space.splice(&Splice { offset, remove: 0, data: &data, marks }, &mut || ()).unwrap();
        // So that the next one does not stand behind it.
        space.append(&[0; LONGEST]).unwrap();
        space.collapse_range(offset + 20, LONGEST as u64).unwrap();
    }
    let before = content(&space).unwrap();
    assert_eq!(space.defrag(0, u64::MAX).unwrap(), 6000);
    assert!(space.stat().extents < 40, "{:?}", space.stat());
    assert!(content(&space).unwrap() == before);
    let mut found = Vec::new();
    while let Some(mark) = space.next_mark(found.last().map_or(0, |last| last + 1)).unwrap() {
        found.push(mark);
    }
    assert_eq!(found, marked);
    assert_sound(&space);
}

/// Also while free segments are left: else nothing could be written over what is there until much of it is gone.
#[test]
fn the_cap_holds_from_the_first_fill_on() {
    let mut options = small(5);
    let segments = 24;
    options.data_size_bytes_max = Some(segments * 8192);
    let space = open(&mut options);
    let refused = loop {
        if let Err(error) = space.append(&[9; 300]) {
            break error;
        }
    };
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    let full = space.stat();
    let payload = 16 * LONGEST as u64;
    let cap = (segments - 3) * payload / 32 * 30;
    // A segment that was begun is filled.
    assert!((cap - 300..cap + payload).contains(&full.data_bytes), "{full:?}");
    assert!(full.free_segments > 2 || full.segments < segments, "{full:?}");
    // What takes the place of something else fits, for as long as you like.
    let mut rng = Rng::from_seed(5);
    let mut model = content(&space).unwrap();
    for _ in 0..500 {
        let at = rng.index(model.len() - 300);
        space.write(at as u64, &[4; 300]).unwrap();
        model[at..at + 300].fill(4);
        let splice = Splice { offset: at as u64, remove: 9, data: &[5; 8], marks: &[3] };
        space.splice(&splice, &mut || ()).unwrap();
        model.splice(at..at + 9, [5; 8]);
    }
    assert!(content(&space).unwrap() == model);
    space.collapse_range(0, payload).unwrap();
    space.append(&[1; 300]).unwrap();
    assert_sound(&space);
}

#[test]
fn what_takes_the_place_of_as_much_fits_however_long_the_space_is() {
    let space = open(&mut small(7));
    space.append(&[1; 10]).unwrap();
    let most = (1 << 48) - 1;
    space.insert_hole(10, most - 10).unwrap();
    let splice = |remove, data| Splice { offset: 0, remove, data, marks: &[] };
    space.splice(&splice(10, &[2; 10]), &mut || ()).unwrap();
    assert_eq!(space.size_bytes(), most);
    let refused = space.splice(&splice(9, &[3; 10]), &mut || panic!("nothing changed"));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let mut bytes = [0; 11];
    space.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0]);
}

#[test]
fn marks_that_are_no_places_in_the_data_are_refused() {
    let space = open(&mut small(6));
    for marks in [&[10][..], &[5, 3], &[4, 4], &[usize::MAX]] {
        let splice = Splice { offset: 0, remove: 0, data: &[1; 10], marks };
        let refused = space.splice(&splice, &mut || panic!("nothing changed")).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{marks:?}");
    }
    assert_eq!(space.size_bytes(), 0);
}

#[test]
fn shares_that_make_no_sense_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (percent, is_good) in [(0, false), (1, true), (95, true), (96, false), (u32::MAX, false)] {
        let mut options = SpaceOptions::new(folder.path().join(percent.to_string()));
        options.fill_percent_min = percent;
        let opened = Space::open(&options).map(drop).map_err(|error| error.kind());
        assert_eq!(opened, if is_good { Ok(()) } else { Err(ErrorKind::InvalidArgument) });
    }
}
