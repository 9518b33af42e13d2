//! Repair of a space: whatever block of tree or log is damaged, everything else stays where it is, and the space is sound.

use crate::flex::{Media, assert_sound, bytes_of, content, small, step};
use esker::ErrorKind;
use esker::flex::{Space, SpaceFiles, SpaceRepair};
use esker_base::Error;
use esker_base::rng::Rng;
use esker_format::flex::{HEADER_OFFSETS, Header, Map};
use esker_media::BlockDevice;
use esker_media::sim::{Asking, Image, SimBlockOptions, SimDevices};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A space that checkpoints, and operations that are in its log only. What it holds, and what it held
/// before each of these.
fn history(seed: u64) -> (Vec<Image>, Vec<u8>, Vec<Vec<u8>>) {
    let media = Media::new(1 << 20);
    let mut options = small(seed);
    options.format = true;
    let space = Space::open_on(media.files(), &options).unwrap();
    let mut rng = Rng::from_seed(seed);
    let mut model = Vec::new();
    for _ in 0..120 {
        step(&space, &mut model, &mut rng).unwrap();
    }
    space.checkpoint().unwrap();
    let mut before = Vec::new();
    for _ in 0..6 {
        for _ in 0..2 {
            before.push(model.clone());
            step(&space, &mut model, &mut rng).unwrap();
        }
        space.sync().unwrap();
    }
    drop(space);
    (media.images(), model, before)
}

/// Compares byte by byte what is not lost; what is reads as zeros.
fn assert_holds(space: &Space, model: &[u8], lost: &[Range<u64>], context: &str) {
    assert_eq!(space.size_bytes(), model.len() as u64, "{context}");
    let mut bytes = vec![1; model.len()];
    assert_eq!(space.read(0, &mut bytes).unwrap(), model.len(), "{context}");
    let mut expected = model.to_vec();
    for range in lost {
        expected[range.start as usize..range.end as usize].fill(0);
    }
    assert!(bytes == expected, "{context}: other bytes than before, lost {lost:?}");
}

/// What nobody can read is damage of a block; everything else agrees.
fn assert_sound_but_for_blocks(space: &Space, context: &str) {
    for problem in space.check().unwrap().problems {
        assert!(problem.contains("block does not have"), "{context}: {problem}");
    }
}

#[test]
fn a_damaged_block_of_tree_or_log_costs_what_it_says_and_nothing_else() {
    let (mut with_losses, mut older, mut harmless) = (0, 0, 0);
    for seed in 0..4 {
        let (images, model, before) = history(seed);
        let mut options = small(seed + 100);
        options.create = false;
        for index in 1..3 {
            for block in 0..images[index].size_bytes() / 512 {
                for wipe in [false, true] {
                    let context = format!("seed {seed}, file {index}, block {block}, {wipe}");
                    let mut damaged = images.clone();
                    match wipe {
                        true => damaged[index].write(block * 512, &[0; 512]),
                        false => damaged[index].flip(block * 512 + 24 + block % 40, 3),
                    }
                    let media = Media::of(&damaged);
                    let (space, report) = Space::mend_on(media.files(), &options)
                        .unwrap_or_else(|error| panic!("{context}: {error}"));
                    let SpaceRepair { lost, is_older, is_mended } = report;
                    assert!(is_mended || (lost.is_empty() && !is_older), "{context}");
                    assert_sound_but_for_blocks(&space, &context);
                    let mut model = model.clone();
                    if index == 2 && !is_mended {
                        // Nothing proves that the last group of the log was ever whole.
                        let found = content(&space).unwrap();
                        if before.contains(&found) {
                            model = found;
                        }
                    }
                    if is_older {
                        older += 1;
                    } else {
                        assert_holds(&space, &model, &lost, &context);
                        for range in &lost {
                            model[range.start as usize..range.end as usize].fill(0);
                        }
                    }
                    with_losses += usize::from(!lost.is_empty());
                    harmless += usize::from(!is_mended);
                    space.close().unwrap();
                    // Once it is stored, it opens as any other.
                    options.testing.seed = Some(block);
                    let space = Space::open_on(Media::of(&media.images()).files(), &options)
                        .unwrap_or_else(|error| panic!("{context}, again: {error}"));
                    if is_older {
                        assert_sound_but_for_blocks(&space, &context);
                        continue;
                    }
                    assert_holds(&space, &model, &[], &context);
                    let mut rng = Rng::from_seed(block);
                    for _ in 0..20 {
                        step(&space, &mut model, &mut rng).unwrap();
                    }
                    space.sync().unwrap();
                    assert_holds(&space, &model, &[], &context);
                    assert_sound(&space);
                }
            }
        }
    }
    assert!(with_losses > 60 && older > 10, "{with_losses} with losses, {older} older");
    assert!(harmless > 60, "{harmless}");
}

#[test]
fn a_data_file_that_is_cut_short_loses_what_stood_behind() {
    let (mut images, model, _) = history(5);
    let half = images[0].size_bytes() / 8192 / 2 * 8192;
    images[0] = Image::from_bytes(&images[0].to_vec()[..usize::try_from(half).unwrap()]);
    let mut options = small(9);
    options.create = false;
    let error = Space::open_on(Media::of(&images).files(), &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
    let media = Media::of(&images);
    let (space, report) = Space::mend_on(media.files(), &options).unwrap();
    assert!(report.is_mended && !report.lost.is_empty() && !report.is_older, "{report:?}");
    assert_holds(&space, &model, &report.lost, "cut short");
    assert_sound(&space);
}

/// Wherever it ends, be it before a header.
#[test]
fn a_tree_file_that_is_cut_short_loses_what_its_nodes_said() {
    let (whole, model, _) = history(5);
    let mut options = small(9);
    options.create = false;
    let (mut opened, mut with_losses, mut older) = (0, 0, 0);
    for block in 1..whole[1].size_bytes() / 512 {
        let context = format!("cut at block {block}");
        let mut images = whole.clone();
        let end = usize::try_from(block * 512).unwrap();
        images[1] = Image::from_bytes(&images[1].to_vec()[..end]);
        match Space::open_on(Media::of(&images).files(), &options) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupted, "{context}: {error}"),
            Ok(space) => {
                opened += 1;
                let is_damage = |error: Error| {
                    assert_eq!(error.kind(), ErrorKind::Corrupted, "{context}: {error}");
                };
                for at in (0..space.size_bytes()).step_by(100) {
                    let _ = space.read(at, &mut [0; 100]).map_err(is_damage);
                }
                drop(space.check().unwrap_or_else(|error| panic!("{context}: {error}")));
                for _ in 0..100 {
                    let _ = space.write(0, &[3; 500]).map_err(is_damage);
                    let _ = space.append(&[3; 500]).map_err(is_damage);
                }
                assert!(space.failure().is_none(), "{context}: {:?}", space.failure());
            }
        }
        let media = Media::of(&images);
        let (space, report) = Space::mend_on(media.files(), &options)
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        with_losses += u32::from(!report.lost.is_empty());
        older += u32::from(report.is_older);
        if !report.is_older {
            assert_holds(&space, &model, &report.lost, &context);
        }
        space.close().unwrap();
        let space = Space::open_on(media.files(), &options)
            .unwrap_or_else(|error| panic!("{context}, again: {error}"));
        assert_sound_but_for_blocks(&space, &context);
    }
    assert!(opened > 5 && with_losses > 10 && older > 10, "{opened}, {with_losses}, {older}");
}

#[test]
fn a_sound_space_is_left_as_it_is() {
    let (images, model, _) = history(6);
    let media = Media::of(&images);
    let mut options = small(6);
    options.create = false;
    let (space, report) = Space::mend_on(media.files(), &options).unwrap();
    assert_eq!(report, SpaceRepair::default());
    assert_holds(&space, &model, &[], "sound");
    drop(space);
    for (before, behind) in images.iter().zip(media.images()) {
        assert!(before.to_vec() == behind.to_vec(), "it was written to");
    }
    // Where there is nothing, there is nothing to repair.
    let error = Space::mend_on(Media::new(1 << 20).files(), &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}

/// Devices on one power supply that hold these images, and the files of a space on them.
fn attached(images: &[Image], seed: u64) -> (SimDevices, SpaceFiles) {
    let devices = SimDevices::attach(images, |index| {
        let mut options = SimBlockOptions::new(images[index].size_bytes(), seed);
        options.size_bytes_max = 4 << 20;
        options
    });
    let [data, tree, log] = devices.devices() else { panic!() };
    let dynamic = |device: &Arc<_>| Arc::clone(device) as Arc<dyn BlockDevice>;
    let files = SpaceFiles { data: dynamic(data), tree: dynamic(tree), log: dynamic(log) };
    (devices, files)
}

/// Calls `look` with what four power cuts each leave at every moment; how many they were.
fn each_cut(devices: &SimDevices, seed: u64, mut look: impl FnMut(u64, &Media, &str)) -> u32 {
    let (traces, mut states) = (devices.traces(), 0);
    for position in 0..=devices.position() {
        for state in 0..4 {
            let cut = SimDevices::cut(&traces, position, position * 4 + state);
            look(position, &Media::of(&cut), &format!("seed {seed}, {position}, {state}"));
            states += 1;
        }
    }
    states
}

#[test]
fn a_crash_while_it_is_mended_leaves_what_can_be_mended() {
    let mut states = 0;
    for seed in 0..6 {
        let (images, model, _) = history(seed);
        let mut rng = Rng::from_seed(seed);
        let mut options = small(seed);
        options.create = false;
        // A node that is in use.
        let (damaged, lost) = loop {
            let mut damaged = images.clone();
            let blocks = images[1].size_bytes() / 512;
            damaged[1].flip((16 + rng.below(blocks - 16)) * 512 + 50, 1);
            let (_, report) = Space::mend_on(Media::of(&damaged).files(), &options).unwrap();
            if !report.lost.is_empty() && !report.is_older {
                break (damaged, report.lost);
            }
        };
        let (devices, files) = attached(&damaged, seed);
        let (space, _) = Space::mend_on(files, &options).unwrap();
        space.append(&[7; 300]).unwrap();
        space.sync().unwrap();
        let mended = devices.position();
        space.append(&[8; 300]).unwrap();
        space.checkpoint().unwrap();
        states += each_cut(&devices, seed, |position, media, context| {
            let (space, report) = Space::mend_on(media.files(), &options)
                .unwrap_or_else(|error| panic!("{context}: {error}"));
            assert!(!report.is_older, "{context}");
            let mut expected = model.clone();
            for range in &lost {
                expected[range.start as usize..range.end as usize].fill(0);
            }
            let more = usize::try_from(space.size_bytes()).unwrap() - model.len();
            assert!([0, 300, 600].contains(&more), "{context}: {more}");
            assert!(position < mended || more >= 300, "{context}: taken back");
            expected.extend([7; 300].iter().take(more));
            expected.extend([8; 300].iter().take(more.saturating_sub(300)));
            assert_holds(&space, &expected, &report.lost, context);
            assert_sound(&space);
        });
    }
    assert!(states > 300, "{states}");
}

#[test]
fn a_crash_while_a_space_without_a_map_is_mended_makes_it_no_worse() {
    let mut states = 0;
    for seed in 0..4 {
        let (images, _, _) = history(seed);
        let mut options = small(seed);
        options.create = false;
        let blocks = 16..images[1].size_bytes() / 512;
        let damaged = blocks.map(|block| {
            let mut damaged = images.clone();
            damaged[1].flip(block * 512 + 50, 1);
            damaged
        });
        // The map is what makes it older.
        let damaged: Vec<_> = damaged
            .filter(|damaged| {
                let mended = Space::mend_on(Media::of(damaged).files(), &options);
                mended.unwrap().1.is_older
            })
            .collect();
        assert!(!damaged.is_empty());
        for damaged in damaged {
            let (devices, files) = attached(&damaged, seed);
            let (space, report) = Space::mend_on(files, &options).unwrap();
            let size = space.size_bytes();
            space.checkpoint().unwrap();
            states += each_cut(&devices, seed, |_, media, context| {
                let (space, again) = Space::mend_on(media.files(), &options)
                    .unwrap_or_else(|error| panic!("{context}: {error}"));
                assert_eq!(space.size_bytes(), size, "{context}");
                assert!(!again.is_mended || again == report, "{context}: {again:?}");
                assert_sound_but_for_blocks(&space, context);
            });
        }
    }
    assert!(states > 100, "{states}");
}

/// How many of these stand in the data file.
fn count_in(data: &Image, wanted: &[Vec<u8>]) -> usize {
    let data = data.to_vec();
    let is_in = |bytes: &&Vec<u8>| data.windows(bytes.len()).any(|window| window == &bytes[..]);
    wanted.iter().filter(is_in).count()
}

/// Until the space is opened again what nothing points at any more is where it was, for who looks for it.
#[test]
fn segments_with_lost_bytes_are_not_taken_before_the_space_is_opened_again() {
    let (mut kept, mut gone, mut taken) = (0, 0, 0);
    for seed in 0..6 {
        let (images, model, _) = history(seed);
        let mut options = small(seed + 50);
        options.create = false;
        // The space has to use what it has.
        options.data_size_bytes_max = Some(images[0].size_bytes() + 2 * 8192);
        for block in 16..images[1].size_bytes() / 512 {
            let mut damaged = images.clone();
            damaged[1].flip(block * 512 + 50, 1);
            let media = Media::of(&damaged);
            let (space, report) = Space::mend_on(media.files(), &options).unwrap();
            if report.lost.is_empty() || report.is_older {
                continue;
            }
            let lost = report.lost.iter();
            let lost = lost.map(|range| &model[range.start as usize..range.end as usize]);
            let wanted: Vec<Vec<u8>> =
                lost.flat_map(|bytes| bytes.chunks_exact(24)).map(<[u8]>::to_vec).collect();
            // But for those that two blocks share.
            let there = count_in(&images[0], &wanted);
            let mut rng = Rng::from_seed(block);
            let mut work = |space: &Space| {
                let mut model = content(space).unwrap();
                // Until it is full.
                // Until it is full.
                let _ = (0..60).try_for_each(|_| step(space, &mut model, &mut rng));
                let _ = space.collect(4);
                let size = space.size_bytes();
                let _ = space.collapse_range(0, size / 2);
                let _ = space.checkpoint();
                let _ = space.append(&[7; 20_000]);
                let _ = space.sync();
            };
            work(&space);
            let context = format!("seed {seed}, block {block}");
            assert!(space.failure().is_none(), "{context}: {:?}", space.failure());
            gone += there - count_in(&media.0[0].image(), &wanted);
            kept += there;
            space.close().unwrap();
            let mut options = options.clone();
            options.testing.seed = Some(seed + 100);
            let space = Space::open_on(media.files(), &options).unwrap();
            (0..3).for_each(|_| work(&space));
            taken += there - count_in(&media.0[0].image(), &wanted);
        }
    }
    // What two blocks share may stand whole in an older copy, which nobody keeps.
    assert!(kept > 50 && gone * 20 <= kept, "{gone} of {kept} are gone");
    assert!(taken * 2 > kept, "{taken} of {kept} were taken once the space was opened again");
}

/// The first group behind a checkpoint takes the place of the log that the header before needs.
#[test]
fn a_damaged_header_and_a_torn_group_behind_it_are_no_space_of_before() {
    let media = Media::new(1 << 20);
    let mut options = small(3);
    options.format = true;
    let space = Space::open_on(media.files(), &options).unwrap();
    space.append(&[1; 3000]).unwrap();
    space.checkpoint().unwrap();
    space.append(&[2; 100]).unwrap();
    space.sync().unwrap();
    space.checkpoint().unwrap();
    let before = media.images();
    // A group of several blocks.
    (0..400).for_each(|n| space.insert_range(n * 7, &[3; 5]).unwrap());
    space.sync().unwrap();
    drop(space);
    let whole = media.images();
    let mut torn = before.clone();
    torn[2].write(0, &whole[2].to_vec()[..512]);
    options.format = false;
    options.create = false;
    let (mut refused, expected) = (0, [vec![1; 3000], vec![2; 100]].concat());
    let open = |images: &[Image]| {
        Space::open_on(Media::of(images).files(), &options).and_then(|space| content(&space))
    };
    assert!(open(&torn).unwrap() == expected, "nothing but the group is lost");
    for slot in [0, 4096] {
        let mut damaged = torn.clone();
        damaged[1].flip(slot + 40, 3);
        match open(&damaged) {
            Ok(found) => assert!(found == expected, "slot {slot}: taken back"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
                let (_, report) = Space::mend_on(Media::of(&damaged).files(), &options).unwrap();
                assert!(report.is_older, "{report:?}");
                refused += 1;
            }
        }
    }
    assert_eq!(refused, 1, "the older header says less");
    // As little as it does where the file ends before the newer one.
    torn[1] = Image::from_bytes(&torn[1].to_vec()[..4096]);
    assert_eq!(open(&torn).unwrap_err().kind(), ErrorKind::Corrupted);
    let (_, report) = Space::mend_on(Media::of(&torn).files(), &options).unwrap();
    assert!(report.is_older, "{report:?}");
}

/// A map, with a right checksum, says that nothing counts in segments to which extents point: a reader of a block there that is damaged
/// does not take it for one that was taken anew meanwhile, again and again.
#[test]
fn a_segment_that_counts_for_nothing_is_damage() {
    let (mut images, ..) = history(2);
    let tree = images[1].to_vec();
    let at = |offset: u64| usize::try_from(offset).unwrap();
    let headers = HEADER_OFFSETS.into_iter().filter_map(|offset| {
        let header = Header::decode(&tree[at(offset)..], || false).ok()?;
        Some((header.generation, offset, header))
    });
    let (_, offset, mut header) = headers.max_by_key(|(generation, ..)| *generation).unwrap();
    let start = header.map.slot * u64::from(header.shape.node_size_bytes);
    let bytes = &tree[at(start)..at(start + header.map_size_bytes)];
    let (id, generation) = (header.space_id, header.generation);
    let mut map = Map::decode(bytes, &id, generation, header.map.checksum, || false).unwrap();
    map.segments.iter_mut().for_each(|segment| segment.valid_bytes = 0);
    let (bytes, checksum) = map.encode(&id, generation);
    header.map.checksum = checksum;
    images[1].write(start, &bytes);
    images[1].write(offset, &header.encode());
    (0..images[0].size_bytes() / 512).for_each(|block| images[0].flip(block * 512 + 9, 1));
    let media = Media::of(&images);
    let reads = AtomicU32::new(0);
    let data = Asking::new(Arc::clone(&media.0[0]), move |_| {
        match reads.fetch_add(1, Ordering::Relaxed) {
            0..1000 => Ok(()),
            _ => Err(Error::new(ErrorKind::Io, "read again and again")),
        }
    });
    let files = SpaceFiles { data, ..media.files() };
    let space = Space::open_on(files, &small(2)).unwrap();
    let mut bytes = [0; 512];
    for offset in (0..space.size_bytes()).step_by(512) {
        if let Err(error) = space.read(offset, &mut bytes) {
            assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
        }
    }
    let unread = space.read(0, &mut bytes);
    assert!(unread.is_err(), "everything is damaged");
}

/// Nothing is lost with them, but a map of segments that the file has not is refused.
#[test]
fn a_data_file_that_is_cut_short_by_free_segments_opens_once_it_is_mended() {
    let media = Media::new(1 << 20);
    let mut options = small(3);
    options.format = true;
    let space = Space::open_on(media.files(), &options).unwrap();
    let model = bytes_of(&mut Rng::from_seed(3), 1).into_iter().chain([5; 20_000]);
    let model: Vec<u8> = model.collect();
    space.append(&model).unwrap();
    space.append(&[6; 30_000]).unwrap();
    space.checkpoint().unwrap();
    space.collapse_range(model.len() as u64, 30_000).unwrap();
    space.sync().unwrap();
    drop(space);
    let whole = media.images();
    options.format = false;
    options.create = false;
    let mut cut = 0;
    for segments in 3..whole[0].size_bytes() / 8192 {
        let mut images = whole.clone();
        let end = usize::try_from(segments * 8192).unwrap();
        images[0] = Image::from_bytes(&images[0].to_vec()[..end]);
        let error = Space::open_on(Media::of(&images).files(), &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
        let media = Media::of(&images);
        let (space, report) = Space::mend_on(media.files(), &options).unwrap();
        let words = format!("{segments} segments");
        assert!(report.is_mended && report.lost.is_empty(), "{words}: {report:?}");
        space.close().unwrap();
        let space = Space::open_on(Media::of(&media.images()).files(), &options);
        let space = space.unwrap_or_else(|error| panic!("{words}: {error}"));
        assert_holds(&space, &model, &[], &words);
        assert_sound(&space);
        cut += 1;
    }
    assert!(cut > 1, "{cut}");
}

/// What the older tree points at may have been written over since, by segments that the newer log took: other bytes, which are whole.
#[test]
fn a_space_that_is_older_than_its_log_has_nothing_that_was_written_later() {
    let (mut older, mut read, mut lost) = (0, 0, 0);
    for seed in 0..12 {
        let media = Media::new(1 << 20);
        let mut options = small(seed);
        options.format = true;
        let space = Space::open_on(media.files(), &options).unwrap();
        let mut rng = Rng::from_seed(seed);
        let mut model = Vec::new();
        // All that it ever was.
        let mut all: Vec<Vec<u8>> = vec![Vec::new()];
        let mut work = |operations: u32| {
            for _ in 0..operations {
                step(&space, &mut model, &mut rng).unwrap();
                all.push(model.clone());
            }
        };
        work(150);
        space.checkpoint().unwrap();
        work(40);
        space.checkpoint().unwrap();
        work(40);
        space.sync().unwrap();
        drop(space);
        let mut images = media.images();
        let tree = images[1].to_vec();
        let newest = HEADER_OFFSETS.into_iter().filter_map(|offset| {
            let bytes = &tree[usize::try_from(offset).unwrap()..];
            Some((Header::decode(bytes, || false).ok()?.generation, offset))
        });
        let (_, offset) = newest.max().unwrap();
        images[1].flip(offset + 40, 3);
        options.format = false;
        options.create = false;
        let (space, report) = Space::mend_on(Media::of(&images).files(), &options).unwrap();
        older += u32::from(report.is_older);
        lost += report.lost.len();
        // Piece by piece, as it was at one time or another.
        const PIECE: usize = 16;
        let is_lost = |at: u64| report.lost.iter().any(|range| range.contains(&at));
        let mut bytes = [0; PIECE];
        for at in (0..space.size_bytes()).step_by(PIECE) {
            let Ok(count) = space.read(at, &mut bytes) else { continue };
            let end = at + count as u64;
            if (at..end).any(is_lost) {
                continue;
            }
            let place = usize::try_from(at).unwrap()..usize::try_from(end).unwrap();
            let was = all.iter().any(|was| was.get(place.clone()) == Some(&bytes[..count]));
            assert!(was, "seed {seed}: at {at} of {} nothing of this ever was", space.size_bytes());
            read += 1;
        }
    }
    assert!(older > 6 && read > 300 && lost > 10, "{older} older, {read} read, {lost} lost");
}
