//! FlexSpace on devices that fail or are full.

use crate::flex::{Media, assert_sound, bytes_of, content, small};
use esker::ErrorKind;
use esker::flex::{Space, SpaceFiles};
use esker::sites::flex as sites;
use esker_base::Error;
use esker_base::rng::Rng;
use esker_media::sim::{Act, Asking, FaultKind, FaultPlan, Trigger};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

#[test]
fn after_a_failed_write_or_flush_reads_go_on_and_writes_are_refused() {
    for (index, kind) in [
        (0, FaultKind::WriteError),
        (0, FaultKind::FlushError),
        (1, FaultKind::WriteError),
        (1, FaultKind::FlushError),
        (2, FaultKind::WriteError),
        (2, FaultKind::FlushError),
    ] {
        let media = Media::new(1 << 20);
        let mut options = small(9);
        options.format = true;
        let space = Space::open_on(media.files(), &options).unwrap();
        space.append(&[5; 3000]).unwrap();
        space.sync().unwrap();
        media.0[index].set_faults(FaultPlan::none().with(kind, Trigger::Nth(1)));
        space.append(&[6; 100]).unwrap();
        let failed = if index == 1 { space.checkpoint() } else { space.sync() };
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Io, "{index} {kind:?}");
        for refused in [space.sync(), space.write(0, &[1]), space.collapse_range(0, 1)] {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::ReadOnly);
        }
        assert!(space.failure().is_some());
        assert_eq!(content(&space).unwrap(), [vec![5; 3000], vec![6; 100]].concat());
        let media = Media::of(&media.images());
        options.format = false;
        let bytes = content(&Space::open_on(media.files(), &options).unwrap()).unwrap();
        assert!(bytes.starts_with(&[5; 3000]) && [3000, 3100].contains(&bytes.len()));
    }
}

/// Nodes that a failed checkpoint was about to write are stored nowhere: they stay in memory.
#[test]
fn behind_a_failed_checkpoint_reads_find_what_it_did_not_write() {
    let media = Media::new(4 << 20);
    let mut options = small(9);
    options.format = true;
    options.tree_size_bytes_max = 8 << 10;
    let mut rng = Rng::from_seed(5);
    let mut model: Vec<u8> = Vec::new();
    let space = Space::open_on(media.files(), &options).unwrap();
    for round in 0..400 {
        if round == 300 {
            space.checkpoint().unwrap();
        }
        let (at, piece) = (rng.index(model.len() + 1), bytes_of(&mut rng, 100));
        space.insert_range(at as u64, &piece).unwrap();
        model.splice(at..at, piece);
    }
    media.0[1].set_faults(FaultPlan::none().with(FaultKind::WriteError, Trigger::Nth(1)));
    assert_eq!(space.checkpoint().unwrap_err().kind(), ErrorKind::Io);
    for _ in 0..4 {
        for (part, at) in model.chunks(150).zip((0..).step_by(150)) {
            let mut read = vec![0; part.len()];
            assert_eq!(space.read(at, &mut read).unwrap(), part.len());
            assert_eq!(read, part, "at {at}");
        }
    }
}

#[test]
fn a_full_segment_that_cannot_be_written_fails_the_space_and_is_read_from_memory() {
    let media = Media::new(1 << 20);
    let mut options = small(9);
    options.format = true;
    options.testing.filled_max = 2;
    let space = Space::open_on(media.files(), &options).unwrap();
    space.append(&[5; 20_000]).unwrap();
    media.0[0].set_faults(FaultPlan::none().with(FaultKind::WriteError, Trigger::Nth(1)));
    assert_eq!(space.write_filled().unwrap_err().kind(), ErrorKind::Io);
    // What failed is not tried again: parts of it may be there.
    for refused in [space.write_filled(), space.sync(), space.write(0, &[1])] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ReadOnly);
    }
    assert_eq!(media.0[0].faults_fired(), 1);
    assert_eq!(content(&space).unwrap(), [5; 20_000]);
}

/// Work with many checkpoints, in which the `n`-th write or allocation of one device finds no room. Whether it came so far.
fn lacks_room(index: usize, n: u64) -> bool {
    let media = Media::new(1 << 20);
    let mut options = small(11);
    options.format = true;
    let space = Space::open_on(media.files(), &options).unwrap();
    media.0[index].set_faults(FaultPlan::none().with(FaultKind::NoSpace, Trigger::Nth(n)));
    let mut rng = Rng::from_seed(11);
    // What was durable last, and all that came after.
    let mut states = vec![Vec::new()];
    for round in 0..60 {
        let mut bytes = states.last().unwrap().clone();
        let data = bytes_of(&mut rng, 900);
        let at = rng.index(bytes.len() + 1);
        if space.insert_range(at as u64, &data).is_ok() {
            bytes.splice(at..at, data);
            states.push(bytes);
        }
        let done = if round % 3 == 0 { space.checkpoint() } else { space.sync() };
        if done.is_ok() {
            states.drain(..states.len() - 1);
        }
    }
    // Lack of room is told by the operation that finds it and by no later one, or the space has failed.
    assert_eq!(content(&space).unwrap(), *states.last().unwrap(), "device {index}, call {n}");
    let came_so_far = media.0[index].faults_fired() > 0;
    drop(space);
    let media = Media::of(&media.images());
    options.format = false;
    let space = Space::open_on(media.files(), &options).unwrap_or_else(|error| {
        panic!("device {index}, call {n}: {error}");
    });
    let bytes = content(&space).unwrap_or_else(|error| panic!("device {index}, call {n}: {error}"));
    assert!(states.contains(&bytes), "device {index}, call {n}: {} bytes", bytes.len());
    assert_sound(&space);
    came_so_far
}

#[test]
fn a_write_that_lacks_room_where_there_was_some_leaves_nothing_half_done() {
    for index in 0..3 {
        let calls = (1..).take_while(|n| lacks_room(index, *n)).count();
        assert!(calls > 20, "device {index}: {calls} calls");
    }
}

#[test]
fn a_full_file_system_refuses_a_write_and_nothing_else() {
    let media = Media::new(6 * 8192);
    let mut options = small(10);
    options.format = true;
    let space = Space::open_on(media.files(), &options).unwrap();
    let mut stored = 0;
    let error = loop {
        match space.append(&[3; 500]) {
            Ok(_) => stored += 500,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert_eq!(content(&space).unwrap(), vec![3; stored]);
    space.collapse_range(0, stored as u64 / 2).unwrap();
    space.sync().unwrap();
    space.append(&[4; 500]).unwrap();
    assert_sound(&space);
}

#[test]
fn a_full_file_system_makes_the_collector_look_before_a_write_is_refused() {
    let media = Media::new(20 * 8192);
    let mut options = small(12);
    options.format = true;
    let space = Space::open_on(media.files(), &options).unwrap();
    space.append(&[1; 100_000]).unwrap();
    // Segments may be half empty for now, but the file cannot grow.
    space.loosen(true);
    let mut rng = Rng::from_seed(12);
    for round in 0..2000 {
        space
            .write(rng.below(99_900), &[2; 100])
            .unwrap_or_else(|error| panic!("{round}: {error}"));
    }
    let stat = space.stat();
    assert!(stat.segments >= 18, "the file has {} segments: it was not full", stat.segments);
    assert_sound(&space);
}

/// To give room back is a wish.
#[test]
fn a_device_that_does_not_take_segments_back_fails_no_space() {
    let media = Media::new(1 << 20);
    let mut options = small(9);
    options.format = true;
    let asked = Arc::new(AtomicU32::new(0));
    let shared = Arc::clone(&asked);
    let data = Asking::new(Arc::clone(&media.0[0]), move |call| {
        if call.act != Act::Discard {
            return Ok(());
        }
        shared.fetch_add(1, Ordering::Relaxed);
        Err(Error::new(ErrorKind::Io, "discard range"))
    });
    let space = Space::open_on(SpaceFiles { data, ..media.files() }, &options).unwrap();
    space.append(&[5; 400_000]).unwrap();
    space.checkpoint().unwrap();
    space.collapse_range(1000, 399_000).unwrap();
    // It has many free segments then.
    space.checkpoint().unwrap();
    assert!(asked.load(Ordering::Relaxed) > 0, "nothing was given back");
    assert_eq!(space.trim().unwrap_err().kind(), ErrorKind::Io);
    assert!(space.failure().is_none(), "{:?}", space.failure());
    space.append(&[6; 400_000]).unwrap();
    space.sync().unwrap();
    assert_eq!(content(&space).unwrap(), [vec![5; 1000], vec![6; 400_000]].concat());
    assert_sound(&space);
}

/// Where the log does not grow each commit is a checkpoint, and two of them forget nodes that an operation loaded before it got room. One that
/// is refused then refuses the operation.
#[test]
fn a_node_that_is_refused_when_it_is_needed_again_fails_no_space() {
    for defrag in [false, true] {
        let media = Media::new(4 << 20);
        let mut options = small(9);
        options.format = true;
        (options.log_size_bytes_max, options.tree_size_bytes_max) = (0, 0);
        options.data_size_bytes_max = Some(20 * 8192);
        let headers = Arc::new(AtomicU32::new(0));
        let (is_broken, written) = (Arc::new(AtomicBool::new(false)), Arc::clone(&headers));
        let breaks = Arc::clone(&is_broken);
        let tree = Asking::new(Arc::clone(&media.0[1]), move |call| {
            if call.site == sites::HEADER_WRITE {
                written.fetch_add(1, Ordering::Relaxed);
            }
            let is_refused = call.site == sites::NODE_READ
                && breaks.load(Ordering::Relaxed)
                && written.load(Ordering::Relaxed) > 0;
            if is_refused { Err(Error::new(ErrorKind::Io, "read node")) } else { Ok(()) }
        });
        let space = Space::open_on(SpaceFiles { tree, ..media.files() }, &options).unwrap();
        let mut rng = Rng::from_seed(9);
        let mut model = Vec::new();
        let mut refused = 0;
        for round in 0..2000 {
            let at = rng.index(model.len() + 1);
            if model.len() > 100_000 {
                let length = rng.index(1500).min(model.len() - at);
                space.collapse_range(at as u64, length as u64).unwrap();
                model.drain(at..at + length);
                continue;
            }
            let piece = bytes_of(&mut rng, 600);
            headers.store(0, Ordering::Relaxed);
            is_broken.store(true, Ordering::Relaxed);
            let done = match defrag {
                true => space.defrag(at as u64, 5000).map(drop),
                false => space.insert_range(at as u64, &piece),
            };
            is_broken.store(false, Ordering::Relaxed);
            let is_there = !defrag && done.is_ok();
            if let Err(error) = done {
                let kind = error.kind();
                assert!(matches!(kind, ErrorKind::Io | ErrorKind::NoSpace), "{round}: {error}");
                refused += u32::from(kind == ErrorKind::Io);
            }
            assert!(space.failure().is_none(), "{round}: {:?}", space.failure());
            if !is_there {
                space.insert_range(at as u64, &piece).unwrap();
            }
            model.splice(at..at, piece);
        }
        assert!(refused > 5, "{refused} were refused, defrag: {defrag}");
        assert!(content(&space).unwrap() == model);
        assert_sound(&space);
    }
}
