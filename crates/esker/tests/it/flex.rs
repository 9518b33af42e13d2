//! FlexSpace against a vector of bytes: small geometry, real files, damage, failing devices, readers beside
//! a writer.

use crate::support::End;
use esker::flex::{Space, SpaceFiles, SpaceOptions};
use esker::{ErrorKind, Result};
use esker_base::clock::{Clock, SystemClock};
use esker_base::rng::Rng;
use esker_format::flex::SpaceShape;
use esker_media::BlockDevice;
use esker_media::sim::{Asking, FaultPlan, Image, Initial, SimBlock, SimBlockOptions};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Segments of 16 blocks, nodes of a few entries: everything happens within a few hundred operations.
pub(crate) fn small(seed: u64) -> SpaceOptions {
    let mut options = SpaceOptions::new("");
    options.testing.seed = Some(seed);
    options.testing.shape = SpaceShape {
        segment_size_bytes: 8192,
        block_size_bytes: 512,
        node_size_bytes: 512,
        leaf_capacity: 5,
        children_max: 4,
        extent_size_bytes_max: 508,
        log_block_size_bytes: 512,
    };
    options.testing.nodes_max = 3;
    options.testing.filled_max = (seed % 3) as usize;
    options.log_size_bytes_max = 16 << 10;
    options.cache_size_bytes = 32 << 10;
    options.tree_size_bytes_max = 4 << 10;
    options
}

fn device(name: &str, initial: Initial, most: u64, faults: FaultPlan) -> Arc<SimBlock> {
    let size = match &initial {
        Initial::Recycled(image) => image.size_bytes(),
        _ => 8192,
    };
    let mut options = SimBlockOptions::new(size, 1).initial(initial).faults(faults);
    options.name = name.to_owned();
    options.size_bytes_max = most;
    options.record = false;
    Arc::new(SimBlock::new(options))
}

pub(crate) struct Media(pub(crate) [Arc<SimBlock>; 3]);

impl Media {
    pub(crate) fn new(data_max: u64) -> Self {
        let new = |name, most| device(name, Initial::Random, most, FaultPlan::none());
        Media([new("data", data_max), new("tree", 1 << 20), new("log", 1 << 20)])
    }

    pub(crate) fn of(images: &[Image]) -> Self {
        let new = |name, index: usize| {
            device(name, Initial::Recycled(images[index].clone()), 4 << 20, FaultPlan::none())
        };
        Media([new("data", 0), new("tree", 1), new("log", 2)])
    }

    pub(crate) fn images(&self) -> Vec<Image> {
        self.0.iter().map(|device| device.image()).collect()
    }

    pub(crate) fn files(&self) -> SpaceFiles {
        let [data, tree, log] = &self.0;
        let dynamic = |device: &Arc<SimBlock>| Arc::clone(device) as Arc<dyn BlockDevice>;
        SpaceFiles { data: dynamic(data), tree: dynamic(tree), log: dynamic(log) }
    }
}

pub(crate) fn content(space: &Space) -> Result<Vec<u8>> {
    let mut bytes = vec![1; usize::try_from(space.size_bytes()).unwrap()];
    let count = space.read(0, &mut bytes)?;
    assert_eq!(count, bytes.len());
    Ok(bytes)
}

pub(crate) fn bytes_of(rng: &mut Rng, most: u64) -> Vec<u8> {
    let mut bytes = vec![0; rng.index(usize::try_from(most).unwrap())];
    rng.fill(&mut bytes);
    bytes
}

/// One random operation on both.
pub(crate) fn step(space: &Space, model: &mut Vec<u8>, rng: &mut Rng) -> Result<()> {
    let size = model.len() as u64;
    let offset = rng.below(size + 1);
    let at = usize::try_from(offset).unwrap();
    let most = if rng.chance(1, 20) { 6000 } else { 300 };
    match rng.below(12) {
        0..4 => {
            let data = bytes_of(rng, most);
            space.insert_range(offset, &data)?;
            model.splice(at..at, data);
        }
        4 | 5 => {
            let data = bytes_of(rng, most);
            let gap = if rng.chance(1, 10) { rng.index(700) } else { 0 };
            let start = at + gap;
            space.write(start as u64, &data)?;
            if !data.is_empty() {
                model.resize(model.len().max(start + data.len()), 0);
                model[start..start + data.len()].copy_from_slice(&data);
            }
        }
        6..9 => {
            let length = rng.below(if size > 12_000 { 6000 } else { 400 }).min(size - offset);
            space.collapse_range(offset, length)?;
            model.drain(at..at + usize::try_from(length).unwrap());
        }
        9 => {
            let data = bytes_of(rng, most);
            assert_eq!(space.append(&data)?, size);
            model.extend(data);
        }
        10 => {
            let mut bytes = vec![7; rng.index(2000)];
            let count = space.read(offset, &mut bytes)?;
            assert_eq!(bytes[..count], model[at..(at + bytes.len()).min(model.len())]);
        }
        _ => match rng.below(5) {
            0 => drop(space.defrag(offset, rng.below(3000))?),
            1 => drop(space.collect(1 + rng.below(3))?),
            2 => space.checkpoint()?,
            3 => {
                let length = rng.below(100);
                space.insert_hole(offset, length)?;
                model.splice(at..at, vec![0; usize::try_from(length).unwrap()]);
            }
            _ => space.sync()?,
        },
    }
    Ok(())
}

pub(crate) fn assert_sound(space: &Space) {
    let report = space.check().unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

#[test]
fn a_space_agrees_with_a_vector_of_bytes_over_reopens() {
    for seed in 0..30 {
        let media = Media::new(1 << 20);
        let mut rng = Rng::from_seed(seed);
        let mut model = Vec::new();
        let mut options = small(seed);
        options.format = true;
        let mut space = Space::open_on(media.files(), &options).unwrap();
        options.format = false;
        for round in 0..10 {
            for _ in 0..80 {
                step(&space, &mut model, &mut rng).unwrap();
            }
            assert!(content(&space).unwrap() == model, "seed {seed}, round {round}");
            assert_sound(&space);
            if round % 2 == 0 {
                space.sync().unwrap();
            } else {
                space.clone().close().unwrap();
            }
            options.testing.seed = Some(rng.next_u64());
            space = Space::open_on(media.files(), &options).unwrap();
            assert!(content(&space).unwrap() == model, "seed {seed}, reopened after {round}");
        }
        let stat = space.stat();
        assert!(stat.generation > 5, "{stat:?}");
    }
}

#[test]
fn a_capped_space_collects_says_when_it_is_full_and_goes_on() {
    let cap = 24 * 8192;
    let media = Media::new(cap);
    let mut options = small(3);
    options.format = true;
    options.data_size_bytes_max = Some(cap);
    let space = Space::open_on(media.files(), &options).unwrap();
    let mut rng = Rng::from_seed(4);
    let mut model: Vec<u8> = Vec::new();
    let mut refused = 0;
    for _ in 0..3000 {
        let data = bytes_of(&mut rng, 700);
        let at = rng.index(model.len() + 1);
        match space.insert_range(at as u64, &data) {
            Ok(()) => drop(model.splice(at..at, data)),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                refused += 1;
                let length = rng.index(2000).min(model.len() - at);
                space.collapse_range(at as u64, length as u64).unwrap();
                model.drain(at..at + length);
            }
        }
    }
    assert!(refused > 10, "it was full {refused} times");
    assert!(content(&space).unwrap() == model);
    assert_sound(&space);
    let stat = space.stat();
    assert!(stat.moved_bytes > 0 && stat.file_size_bytes <= cap, "{stat:?}");
    let share = stat.data_bytes * 100 / cap;
    assert!(share >= 60, "only {share} % of the file are live when it is full");
}

#[test]
fn live_bytes_decide_the_size_of_the_data_file() {
    let media = Media::new(64 << 20);
    let mut options = small(5);
    options.format = true;
    options.log_size_bytes_max = 1 << 20;
    let space = Space::open_on(media.files(), &options).unwrap();
    let mut rng = Rng::from_seed(6);
    // Of 100 segments, some few of which are open or spare.
    let live = 700_000;
    space.append(&vec![1; live]).unwrap();
    // Ten times as much is written over.
    for _ in 0..8750 {
        let at = rng.below(live as u64 - 800);
        space.write(at, &[9; 800]).unwrap();
    }
    let stat = space.stat();
    // A fifth may be dead; the collector has two segments for itself, of 112; checksums take a 32nd; the file grows by one, too.
    assert!(stat.file_size_bytes < 132 * live as u64 / 100, "{stat:?}");
    assert_sound(&space);
}

#[test]
fn a_space_at_rest_takes_what_lives_and_little_more() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let mut options = small(7);
    options.path = folder.path().to_owned();
    options.testing.shape.segment_size_bytes = 64 << 10;
    options.log_size_bytes_max = 4 << 20;
    let space = Space::open(&options).unwrap();
    let mut rng = Rng::from_seed(8);
    space.append(&vec![1; 4 << 20]).unwrap();
    for _ in 0..4000 {
        let at = rng.below((4 << 20) - 2000);
        space.write(at, &[9; 2000]).unwrap();
    }
    space.collapse_range(1 << 20, 1 << 20).unwrap();
    space.sync().unwrap();
    let file = folder.path().join("space.data");
    let taken = || std::fs::metadata(&file).unwrap().blocks() * 512;
    let before = taken();
    while space.settle_some(105).unwrap() {}
    let (after, live) = (taken(), space.stat().data_bytes);
    assert!(before * 10 > live * 13, "{before} bytes for {live}: there was nothing to do");
    assert!(after * 10 <= live * 13, "{after} bytes for {live}, {before} before");
    assert_sound(&space);
}

#[test]
fn a_space_that_is_compacted_gives_back_what_removals_left() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let mut options = small(17);
    options.path = folder.path().to_owned();
    options.testing.shape.segment_size_bytes = 64 << 10;
    options.log_size_bytes_max = 4 << 20;
    let space = Space::open(&options).unwrap();
    let mut rng = Rng::from_seed(18);
    let mut model = vec![0; 8 << 20];
    rng.fill(&mut model);
    space.append(&model).unwrap();
    // Every segment gets some of what stays.
    for _ in 0..8000 {
        let at = rng.index(model.len() - 2000);
        rng.fill(&mut model[at..at + 2000]);
        space.write(at as u64, &model[at..at + 2000]).unwrap();
    }
    space.collapse_range(1 << 20, 6 << 20).unwrap();
    model.drain(1 << 20..7 << 20);
    space.sync().unwrap();
    let file = folder.path().join("space.data");
    let taken = || std::fs::metadata(&file).unwrap().blocks() * 512;
    let before = taken();
    let given_back = space.compact().unwrap();
    let (after, live) = (taken(), space.stat().data_bytes);
    assert!(before > 3 * live, "{before} bytes for {live}: there was nothing to do");
    assert!(after * 10 <= live * 13, "{after} bytes for {live}, {before} before");
    assert!(given_back > 0);
    assert_eq!(space.compact().unwrap(), 0);
    assert!(content(&space).unwrap() == model);
    assert_sound(&space);
    // It grows again, and is the same after an open.
    space.append(&model.clone()).unwrap();
    model.extend_from_within(..);
    space.close().unwrap();
    let space = Space::open(&options).unwrap();
    assert!(content(&space).unwrap() == model);
    assert_sound(&space);
}

#[test]
fn a_flipped_bit_anywhere_is_found_or_harmless() {
    let media = Media::new(1 << 20);
    let mut options = small(7);
    options.format = true;
    let space = Space::open_on(media.files(), &options).unwrap();
    let mut rng = Rng::from_seed(8);
    let mut model = Vec::new();
    for _ in 0..150 {
        step(&space, &mut model, &mut rng).unwrap();
    }
    space.checkpoint().unwrap();
    for round in 0..3 {
        for _ in 0..6 {
            step(&space, &mut model, &mut rng).unwrap();
        }
        space.sync().unwrap();
        assert!(round < 3);
    }
    drop(space);
    let images = media.images();
    options.format = false;
    let (mut found, mut harmless) = (0, 0);
    for index in 0..3 {
        let size = images[index].size_bytes();
        for place in 0..600 {
            let mut damaged = images.clone();
            // Headers and the log's start more often than chance would.
            let at = if place < 100 && index > 0 { place * 8 } else { rng.below(size) };
            damaged[index].flip(at, u32::try_from(at % 8).unwrap());
            let media = Media::of(&damaged);
            let outcome = Space::open_on(media.files(), &options).and_then(|space| content(&space));
            match outcome {
                Ok(bytes) if bytes == model => harmless += 1,
                // The last group of the log: nothing behind it proves that it was whole.
                Ok(_) => assert!(index == 2, "wrong bytes from file {index} with a flip at {at}"),
                Err(error) => {
                    let kinds = [ErrorKind::Corrupted, ErrorKind::UnsupportedFormat];
                    assert!(kinds.contains(&error.kind()), "{error}");
                    found += 1;
                }
            }
        }
    }
    assert!(found > 100 && harmless > 100, "{found} found, {harmless} harmless");
}

#[test]
fn readers_see_whole_operations_beside_a_writer() {
    let media = Media::new(8 << 20);
    let mut options = small(11);
    options.format = true;
    options.data_size_bytes_max = Some(400 << 10);
    let space = Space::open_on(media.files(), &options).unwrap();
    // Records of 64 bytes, all of one letter; whole ones are inserted, overwritten, moved and removed.
    space.append(&[1; 6400]).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = End(&over);
        for reader in 0..2 {
            let (space, over) = (&space, &over);
            scope.spawn(move || {
                let mut rng = Rng::from_seed(reader);
                let mut seen = 0_u64;
                while !over.load(Ordering::Relaxed) || seen < 200 {
                    let mut bytes = [0; 256];
                    let record = rng.below(90);
                    let count = space.read(record * 64, &mut bytes).unwrap();
                    for whole in bytes[..count].chunks_exact(64) {
                        assert!(whole.iter().all(|byte| *byte == whole[0] && *byte != 0));
                    }
                    seen += 1;
                }
            });
        }
        let (writing, over) = (&space, &over);
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                writing.write_filled().unwrap();
                std::thread::yield_now();
            }
        });
        let mut rng = Rng::from_seed(12);
        for step in 0..20_000_u64 {
            let letter = u8::try_from(1 + step % 250).unwrap();
            let place = rng.below(90) * 64;
            match rng.below(8) {
                0..3 => space.insert_range(place, &[letter; 64]).unwrap(),
                3 | 4 => space.write(place, &[letter; 64]).unwrap(),
                5 => space.defrag(place, 512).map(drop).unwrap(),
                6 if step % 5 == 0 => space.sync().unwrap(),
                _ => {}
            }
            if space.size_bytes() > 100 * 64 {
                space.collapse_range(place, 64).unwrap();
            }
        }
    });
    assert_sound(&space);
}

#[test]
fn full_segments_wait_in_memory_for_who_writes_them_and_a_sync_waits_for_all() {
    const SEGMENT: u64 = 8192;
    let media = Media::new(1 << 20);
    let mut options = small(7);
    options.format = true;
    options.testing.filled_max = 2;
    let space = Space::open_on(media.files(), &options).unwrap();
    let mut model = Vec::new();
    let mut grow = |bytes: usize, letter: u8| {
        model.extend(vec![letter; bytes]);
        space.append(&vec![letter; bytes]).unwrap();
        assert!(content(&space).unwrap() == model);
        media.0[0].counters().write_bytes / SEGMENT
    };
    assert_eq!(grow(20_000, 1), 0, "two are full and wait");
    assert!(grow(8000, 2) >= 1, "three are full, and two may wait");
    assert!((2..4).contains(&grow(8000, 3)), "four are");
    space.write_filled().unwrap();
    assert_eq!(grow(10, 4), 4);
    grow(10_000, 5);
    space.sync().unwrap();
    let after = Media::of(&media.images());
    options.format = false;
    assert!(content(&Space::open_on(after.files(), &options).unwrap()).unwrap() == model);
}

#[test]
fn a_read_finds_bytes_that_move_while_it_waits_and_whose_segment_is_given_back() {
    const BYTES: usize = 100_000;
    let media = Media::new(8 << 20);
    let mut options = small(16);
    options.format = true;
    options.cache_size_bytes = 0;
    let space = Arc::new(OnceLock::<Space>::new());
    let (moving, armed) = (Arc::clone(&space), Arc::new(AtomicBool::new(false)));
    let moves = Arc::clone(&armed);
    let data = Asking::new(Arc::clone(&media.0[0]), move |call| {
        if call.site.name() == "flex.data.read" && moves.swap(false, Ordering::Relaxed) {
            let space = moving.get().unwrap();
            space.write(0, &[2; BYTES])?;
            assert!(space.trim()? > BYTES as u64 / 2, "nothing is given back");
        }
        Ok(())
    });
    let files = SpaceFiles { data, ..media.files() };
    let space = space.get_or_init(|| Space::open_on(files, &options).unwrap());
    space.append(&[1; BYTES]).unwrap();
    armed.store(true, Ordering::Relaxed);
    assert_eq!(content(space).unwrap(), [2; BYTES]);
    assert!(!armed.load(Ordering::Relaxed), "nothing was read");
    assert_sound(space);
}

#[test]
fn a_small_sync_writes_little_and_a_large_operation_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let options = SpaceOptions::new(folder.path());
    let space = Space::open(&options).unwrap();
    let mut model = vec![0; 5_000_000];
    Rng::from_seed(13).fill(&mut model);
    space.append(&model).unwrap();
    space.checkpoint().unwrap();
    let written = |space: &Space| {
        let stat = space.stat();
        stat.data.write_bytes + stat.tree.write_bytes + stat.log.write_bytes
    };
    let before = written(&space);
    for n in 0..100_u64 {
        space.insert_range(n * 1000, &[8; 128]).unwrap();
        space.sync().unwrap();
        let at = usize::try_from(n * 1000).unwrap();
        model.splice(at..at, [8; 128]);
    }
    let each = (written(&space) - before) / 100;
    assert!(each <= 16 << 10, "{each} bytes for a sync of 128");
    let refused = Space::open(&options).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Locked);
    drop(space);
    let space = Space::open(&options).unwrap();
    assert!(content(&space).unwrap() == model);
    space.collapse_range(1000, 3_000_000).unwrap();
    model.drain(1000..3_001_000);
    space.close().unwrap();
    let space = Space::open(&options).unwrap();
    assert!(content(&space).unwrap() == model);
    let extent = space.read_extent(model.len() as u64 - 1, &mut [0; 10]).unwrap().unwrap();
    assert_eq!((extent.offset + extent.length, extent.read), (model.len() as u64, 10));
    assert_eq!(space.read_extent(model.len() as u64, &mut []).unwrap(), None);
    assert_sound(&space);
}

#[test]
fn a_buffer_that_is_used_again_has_nothing_of_what_it_had() {
    let media = Media::new(1 << 20);
    let mut options = small(15);
    options.format = true;
    let space = Space::open_on(media.files(), &options).unwrap();
    space.append(&[1; 10]).unwrap();
    let mut bytes = vec![7; 40];
    for (place, expected) in [((4, 20), 6), ((0, 4), 4), ((9, 3), 1), ((10, 5), 0)] {
        let read = space.read_where(&mut || Some(place), &mut bytes).unwrap();
        assert_eq!(read, Some(expected), "{place:?}");
        let (there, behind) = bytes.split_at(expected);
        assert_eq!(bytes.len(), place.1);
        assert!(there.iter().all(|byte| *byte == 1) && behind.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn what_is_not_allowed_is_refused_and_changes_nothing() {
    let media = Media::new(1 << 20);
    let mut options = small(14);
    options.format = true;
    let space = Space::open_on(media.files(), &options).unwrap();
    space.append(&[1; 10]).unwrap();
    let refused = [
        space.insert_range(11, &[1]),
        space.collapse_range(5, 6),
        space.collapse_range(u64::MAX, 2),
        space.insert_hole(0, 1 << 48),
        space.insert_hole(0, 1 << 62),
        space.write((1 << 48) - 1, &[1]),
        space.write(u64::MAX, &[1]),
        space.write((1 << 62) - 1, &[1]),
    ];
    for result in refused {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    space.write(5, &[]).unwrap();
    space.collapse_range(10, 0).unwrap();
    assert_eq!(content(&space).unwrap(), [1; 10]);
    space.insert_hole(5, 1 << 40).unwrap();
    assert_eq!(space.size_bytes(), (1 << 40) + 10);
    space.collapse_range(5, 1 << 40).unwrap();
    assert_eq!(content(&space).unwrap(), [1; 10]);
    options.format = false;
    options.create = false;
    let empty = Media::new(1 << 20);
    let none = Space::open_on(empty.files(), &options).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_check_counts_each_extent_of_a_large_space_once() {
    let media = Media::new(1 << 20);
    let space = Space::open_on(media.files(), &small(3)).unwrap();
    // A walk goes a gibibyte at a time, and holes count as extents, too.
    space.insert_hole(0, 3 << 30).unwrap();
    for gibibyte in 1..3 {
        space.write((gibibyte << 30) - 5, &[7; 10]).unwrap();
    }
    let found = space.check().unwrap();
    assert_eq!((found.extents, found.problems), (5, vec![]));
}

/// Steps of some MiB each would be millions.
#[test]
fn marks_are_looked_for_behind_a_hole_of_any_size_at_once() {
    let media = Media::new(1 << 20);
    let mut options = small(1);
    options.format = true;
    let space = Space::open_on(media.files(), &options).unwrap();
    space.insert_hole(0, 1 << 47).unwrap();
    let begun = SystemClock.monotonic();
    for offset in 0..8 {
        assert_eq!(space.next_mark(offset).unwrap(), None);
    }
    assert!(SystemClock.monotonic() - begun < Duration::from_secs(60));
}
