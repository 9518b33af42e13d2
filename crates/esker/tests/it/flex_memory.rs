//! What a space has in memory while it is read and written: leaves of its tree.

use crate::flex::{Media, bytes_of, small};
use esker::ErrorKind;
use esker::flex::{Space, SpaceOptions};
use esker_base::rng::Rng;
use esker_media::sim::{FaultKind, FaultPlan, Trigger};

/// Leaves that there is memory for.
const LEAVES_MAX: usize = 16;

/// Options with memory for few leaves.
fn with_few_leaves(seed: u64) -> SpaceOptions {
    let mut options = small(seed);
    options.tree_size_bytes_max = LEAVES_MAX as u64 * 1024;
    options
}

/// Inserts so many pieces here and there; what the space holds then.
fn scatter(space: &Space, pieces: u32) -> Vec<u8> {
    let mut rng = Rng::from_seed(9);
    let mut model = Vec::new();
    for _ in 0..pieces {
        let (at, piece) = (rng.index(model.len() + 1), bytes_of(&mut rng, 200));
        space.insert_range(at as u64, &piece).unwrap();
        model.splice(at..at, piece);
    }
    space.checkpoint().unwrap();
    model
}

/// Reads all of it, piece by piece, several times: leaves make way for each other.
fn assert_leaves_make_way(space: &Space, model: &[u8]) {
    let before = space.stat();
    for _ in 0..3 {
        for (part, at) in model.chunks(200).zip((0..).step_by(200)) {
            let mut read = vec![0; part.len()];
            assert_eq!(space.read(at, &mut read).unwrap(), part.len());
            assert!(read == part, "at {at}");
            let leaves = space.stat().resident_nodes.0;
            assert!(leaves <= 2 * LEAVES_MAX, "{leaves} leaves at {at}");
        }
    }
    let after = space.stat();
    assert_eq!(before.generation, after.generation, "no checkpoint came by");
    assert!(after.tree.reads - before.tree.reads > 500, "each leaf was read again and again");
}

#[test]
fn leaves_make_way_in_a_space_that_is_only_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = with_few_leaves(1);
    options.path = folder.path().to_owned();
    let space = Space::open(&options).unwrap();
    let model = scatter(&space, 1500);
    space.close().unwrap();
    options.read_only = true;
    let space = Space::open(&options).unwrap();
    assert_eq!(space.append(&[1]).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_leaves_make_way(&space, &model);
}

#[test]
fn leaves_make_way_in_a_space_that_failed_before_a_checkpoint_began() {
    for index in [0, 2] {
        let media = Media::new(16 << 20);
        let options = with_few_leaves(1);
        let model = scatter(&Space::open_on(media.files(), &options).unwrap(), 1500);
        let space = Space::open_on(media.files(), &options).unwrap();
        media.0[index].set_faults(FaultPlan::none().with(FaultKind::WriteError, Trigger::Nth(1)));
        let failed = space.append(&[1; 1000]).and_then(|_| space.sync());
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Io);
        assert!(space.failure().is_some());
        assert_leaves_make_way(&space, &model);
    }
}
