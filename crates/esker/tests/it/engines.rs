//! Which engine opens what is there.

use esker::{EngineKind, ErrorKind, Options, Store};

fn options(folder: &tempfile::TempDir, engine: Option<EngineKind>) -> Options {
    let mut options = Options::new(folder.path().join("store"));
    options.size_bytes = 64 << 20;
    options.engine = engine;
    options.pmem_emulate = true;
    options
}

#[test]
fn a_store_is_opened_with_its_engine_and_no_other() {
    for made in EngineKind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&options(&folder, Some(made))).unwrap();
        store.put(b"who", made.name().as_bytes()).unwrap();
        store.close().unwrap();
        drop(store);
        for wanted in EngineKind::ALL.into_iter().filter(|wanted| *wanted != made) {
            let refused = Store::open(&options(&folder, Some(wanted))).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{made}, {wanted}: {refused}");
        }
        let store = Store::open(&options(&folder, None)).unwrap();
        assert_eq!(store.engine(), made);
        assert_eq!(store.get(b"who").unwrap().as_deref(), Some(made.name().as_bytes()));
    }
}

#[test]
fn without_a_store_and_a_name_it_is_depot() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(Store::open(&options(&folder, None)).unwrap().engine(), EngineKind::Depot);
}
