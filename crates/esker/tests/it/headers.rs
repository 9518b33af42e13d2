//! Lost headers: a file that holds something is never taken for an empty one.

use crate::support::{CHUNK_SIZE, DEVICE_SIZE, open, options};
use esker::{EngineKind, ErrorKind, Options, Store, repair};
use esker_base::units::MIB;
use esker_base::{Site, SiteKind};
use esker_media::sim::{Initial, SimBlock, SimBlockOptions, SimPm, SimPmOptions};
use esker_media::{BlockDevice, Pmem};
use std::fs;
use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::Arc;

const SITE: Site = Site::new("test.headers", SiteKind::Write);

fn put_some(store: &Store) {
    for n in 0..50_u32 {
        store.put(&n.to_le_bytes(), &[7; 300]).unwrap();
    }
}

/// A store in files, closed; its files.
fn made(options: &Options) -> Vec<PathBuf> {
    let store = Store::open(options).unwrap();
    put_some(&store);
    store.close().unwrap();
    let folders = std::iter::once(&options.path).chain(&options.devices);
    folders
        .flat_map(|folder| fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()))
        .collect()
}

#[test]
fn a_store_that_lost_its_headers_is_no_empty_place() {
    let scratch = tempfile::tempdir().unwrap();
    let place = |name: &str| scratch.path().join(name);
    let with = |name: &str, engine, others: &[&str]| {
        let mut options = Options::new(place(name));
        options.size_bytes = 32 * MIB;
        options.engine = Some(engine);
        options.pmem_emulate = true;
        options.devices = others.iter().map(|name| place(name)).collect();
        options
    };
    let depot = EngineKind::Depot;
    let stores = [
        (with("depot", depot, &[]), 8192),
        (with("cceh", EngineKind::FlatCceh, &[]), 4096),
        (with("masstree", EngineKind::FlatMasstree, &[]), 4096),
        (with("one", depot, &["two"]), 8192),
    ];
    for (options, lost) in stores {
        let files = made(&options);
        for file in &files {
            let mut bytes = fs::read(file).unwrap();
            bytes[..lost].fill(0);
            fs::write(file, bytes).unwrap();
        }
        let before: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
        let mut there = options.clone();
        there.create = false;
        let refused = [
            Store::open(&options).map(drop).unwrap_err(),
            Store::open(&there).map(drop).unwrap_err(),
            repair(&options).map(drop).unwrap_err(),
        ];
        for error in refused {
            assert_eq!(error.kind(), ErrorKind::Corrupted, "{files:?}: {error}");
            let words = error.to_string();
            assert!(words.contains("restore a backup") && words.contains("offset"), "{words}");
            assert!(files.iter().any(|file| words.contains(file.to_str().unwrap())), "{words}");
        }
        let after: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
        assert!(before == after, "{files:?}");
        // As it says.
        files.iter().for_each(|file| fs::remove_file(file).unwrap());
        assert_eq!(Store::open(&options).unwrap().stats().items, 0);
    }
}

#[test]
fn a_device_is_made_a_store_over_what_is_no_store_alone() {
    let block = |bytes: &[u8; 512], at| {
        let device = Arc::new(SimBlock::new(SimBlockOptions::new(DEVICE_SIZE, 1)));
        device.write_at(SITE, at, &[IoSlice::new(bytes)]).unwrap();
        device
    };
    // Of another seed: with the same one the store would have the same identity.
    let mut over = options(2);
    over.format_foreign = true;
    let foreign = block(&[9; 512], 8192);
    assert_eq!(open(&foreign, &options(1)).unwrap_err().kind(), ErrorKind::Corrupted);
    open(&foreign, &over).unwrap();
    // What a store left may be all that there is of it.
    let store = Arc::new(SimBlock::new(SimBlockOptions::new(DEVICE_SIZE, 1)));
    put_some(&open(&store, &options(1)).unwrap());
    for at in [0, 4096] {
        store.write_at(SITE, at, &[IoSlice::new(&[0; 512])]).unwrap();
    }
    let before = store.image();
    assert_eq!(open(&store, &over).unwrap_err().kind(), ErrorKind::Corrupted);
    assert!(store.image() == before);
    over.format = true;
    assert_eq!(open(&store, &over).unwrap().stats().items, 0);
}

#[test]
fn a_store_of_flat_that_is_made_over_another_is_blank_until_it_is_there() {
    let mut options = options(3);
    options.testing.segment_size_bytes = Some(CHUNK_SIZE);
    options.testing.cores = Some(2);
    options.engine = Some(EngineKind::FlatCceh);
    let open = |memory: &Arc<SimPm>, options: &Options| {
        Store::open_on_memory(Arc::clone(memory) as Arc<dyn Pmem>, options)
    };
    let old = Arc::new(SimPm::new(SimPmOptions::new(DEVICE_SIZE, 3)));
    put_some(&open(&old, &options).unwrap());
    let old = SimPmOptions::new(DEVICE_SIZE, 4).initial(Initial::Recycled(old.image()));
    let memory = Arc::new(SimPm::new(old));
    let format = Options { format: true, ..options.clone() };
    drop(open(&memory, &format).unwrap());
    let trace = memory.trace();
    let mut replay = trace.replay();
    let (mut old, mut new) = (0, 0);
    while replay.step() {
        for state in replay.states(4, replay.position()) {
            let state = SimPmOptions::new(DEVICE_SIZE, 5).initial(Initial::Recycled(state.image()));
            match open(&Arc::new(SimPm::new(state)), &options).unwrap().stats().items {
                0 => new += 1,
                items => {
                    assert_eq!(items, 50);
                    old += 1;
                }
            }
        }
    }
    assert!(old > 0 && new > 50, "{old} {new}");
}
