//! What a space has in memory while it is read and written: leaves of its tree, and buffers; and how often a read looks for what it needs.

use crate::flex::{Media, assert_sound, bytes_of, small};
use esker::ErrorKind;
use esker::flex::{Space, SpaceFiles, SpaceOptions};
use esker_base::rng::Rng;
use esker_base::{Result, Site};
use esker_media::sim::{FaultKind, FaultPlan, SimBlock, Trigger};
use esker_media::{BlockDevice, BlockGeometry, Counters};
use std::collections::BTreeSet;
use std::io::IoSlice;
use std::sync::{Arc, Mutex};

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

/// Bytes at the end of a space that are written again and again.
const HOT: u64 = 20_000;

/// A space of which all but the [`HOT`] end is scattered and stays, and where that end begins. No checkpoint comes by itself.
fn with_hot_end() -> (Space, u64) {
    let mut options = with_few_leaves(1);
    options.log_size_bytes_max = 1 << 20;
    let space = Space::open_on(Media::new(16 << 20).files(), &options).unwrap();
    let cold = scatter(&space, 1500).len() as u64;
    space.append(&[0; HOT as usize]).unwrap();
    (space, cold)
}

/// The collector walks over the whole tree to free segments that a small part of it points at.
#[test]
fn leaves_make_way_for_those_that_the_collector_walks_over() {
    let (space, cold) = with_hot_end();
    space.checkpoint().unwrap();
    let before = space.stat();
    space.limit_data(Some(before.file_size_bytes + 8 * 8192));
    let mut rng = Rng::from_seed(3);
    let mut most = 0;
    for _ in 0..3000 {
        space.write(cold + rng.below(HOT / 500) * 500, &[9; 500]).unwrap();
        most = most.max(space.stat().resident_nodes.0);
    }
    let after = space.stat();
    assert_eq!(before.generation, after.generation, "no checkpoint came by");
    let reads = after.tree.reads - before.tree.reads;
    // Those that were written to stay: some forty extents.
    assert!(most <= 2 * LEAVES_MAX + 20, "{most} leaves");
    assert!(after.moved_bytes > 5 * HOT && reads > 5000, "{after:?}, {reads} nodes read");
    assert_sound(&space);
    assert!(space.stat().resident_nodes.0 <= 2 * LEAVES_MAX + 20, "a check lets them go, too");
}

/// Who is on the way past all of them does not need them.
#[test]
fn leaves_that_only_the_collector_meets_go_with_the_next_checkpoints() {
    let (space, cold) = with_hot_end();
    let before = space.stat();
    assert!(before.resident_nodes.0 > 500, "all that was written: {before:?}");
    space.limit_data(Some(before.file_size_bytes + 8 * 8192));
    let mut rng = Rng::from_seed(3);
    for round in 0..6 {
        let moved = space.stat().moved_bytes;
        while space.stat().moved_bytes < moved + HOT {
            space.write(cold + rng.below(HOT / 500) * 500, &[round; 500]).unwrap();
        }
        space.checkpoint().unwrap();
    }
    let leaves = space.stat().resident_nodes.0;
    assert!(leaves <= 2 * LEAVES_MAX, "{leaves} leaves");
}

/// A device that notes which memory it reads to.
#[derive(Debug)]
struct Noting {
    inner: Arc<SimBlock>,
    buffers: Mutex<BTreeSet<usize>>,
}

impl BlockDevice for Noting {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn geometry(&self) -> BlockGeometry {
        self.inner.geometry()
    }

    fn report(&self) -> String {
        self.inner.report()
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }

    fn read_at(&self, site: Site, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.buffers.lock().unwrap().insert(buf.as_ptr().addr());
        self.inner.read_at(site, offset, buf)
    }

    fn write_at(&self, site: Site, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.inner.write_at(site, offset, bufs)
    }

    fn write_durable_at(&self, site: Site, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.inner.write_durable_at(site, offset, bufs)
    }

    fn flush(&self, site: Site) -> Result<()> {
        self.inner.flush(site)
    }

    fn discard(&self, site: Site, offset: u64, length: u64) -> Result<()> {
        self.inner.discard(site, offset, length)
    }

    fn prepare(&self, site: Site, offset: u64, length: u64) -> Result<()> {
        self.inner.prepare(site, offset, length)
    }

    fn reserve(&self, site: Site, offset: u64, length: u64) -> Result<()> {
        self.inner.reserve(site, offset, length)
    }
}

/// Each short extent that stands by itself is a block that is read.
#[test]
fn a_read_of_many_scattered_extents_goes_through_few_buffers() {
    const PIECES: usize = 2000;
    const LENGTH: usize = 100;
    let media = Media::new(16 << 20);
    let mut options = small(1);
    let shape = &mut options.testing.shape;
    (shape.segment_size_bytes, shape.leaf_capacity, shape.children_max) = (64 << 10, 24, 12);
    options.log_size_bytes_max = 1 << 20;
    (options.tree_size_bytes_max, options.cache_size_bytes) = (8 << 20, 0);
    let data = Arc::new(Noting { inner: Arc::clone(&media.0[0]), buffers: Mutex::default() });
    let files = SpaceFiles { data: Arc::clone(&data) as _, ..media.files() };
    let space = Space::open_on(files, &options).unwrap();
    let mut model = vec![0; PIECES * LENGTH];
    Rng::from_seed(1).fill(&mut model);
    for (piece, at) in model.chunks(LENGTH).zip((0..).step_by(LENGTH)) {
        space.insert_range(at, piece).unwrap();
        // Far from the next one.
        space.append(&[5; 4000]).unwrap();
    }
    space.checkpoint().unwrap();
    data.buffers.lock().unwrap().clear();
    let before = data.counters().reads;
    let mut bytes = vec![0; model.len()];
    assert_eq!(space.read(0, &mut bytes).unwrap(), bytes.len());
    assert!(bytes == model);
    let (reads, buffers) = (data.counters().reads - before, data.buffers.lock().unwrap().len());
    assert!(reads > PIECES as u64 * 9 / 10, "{reads} reads");
    // Those in flight at once, again and again.
    assert!(buffers <= 2 * 64, "{buffers} buffers for {reads} reads");
}

/// Whatever has to be loaded for it.
#[test]
fn a_read_looks_for_what_it_needs_no_more_often_the_longer_it_is() {
    for room in [8 << 20, 4 << 10] {
        let media = Media::new(16 << 20);
        let mut options = small(1);
        options.tree_size_bytes_max = room;
        let model = scatter(&Space::open_on(media.files(), &options).unwrap(), 1500);
        for part in [8, 4, 2, 1] {
            let space = Space::open_on(media.files(), &options).unwrap();
            let end = model.len() / part;
            let (mut bytes, mut looks) = (Vec::new(), 0);
            let read = space.read_where(
                &mut || {
                    looks += 1;
                    Some((0, end))
                },
                &mut bytes,
            );
            assert_eq!(read.unwrap(), Some(end));
            assert!(bytes == model[..end]);
            assert!(space.stat().tree.reads > 100 / part as u64, "its nodes were not in memory");
            assert!(looks <= 2, "{looks} looks for {end} bytes");
            let mut again = vec![0; end];
            assert_eq!(space.read(0, &mut again).unwrap(), end);
            assert!(again == bytes);
        }
    }
}
