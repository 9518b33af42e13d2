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

#[test]
fn an_empty_file_is_no_store_unless_one_may_be_made() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(&folder, None);
    std::fs::create_dir(&options.path).unwrap();
    let file = options.path.join("depot.esker");
    std::fs::write(&file, b"").unwrap();
    options.create = false;
    let error = Store::open(&options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 0);
}

#[test]
fn flex_says_that_it_wants_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(&folder, Some(EngineKind::Flex));
    std::fs::write(&options.path, [0; 4096]).unwrap();
    for create in [true, false] {
        options.create = create;
        let error = Store::open(&options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains("folder"), "{error}");
    }
    assert_eq!(std::fs::read(&options.path).unwrap(), [0; 4096]);
}

#[test]
fn a_size_in_which_nothing_fits_is_refused_before_there_is_a_file() {
    for engine in EngineKind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let mut options = options(&folder, Some(engine));
        let mut refused = 0;
        for exponent in 12..=26 {
            options.size_bytes = 1 << exponent;
            let store = match Store::open(&options) {
                Ok(store) => store,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{engine}: {error}");
                    assert_eq!(std::fs::read_dir(&options.path).unwrap().count(), 0, "{engine}");
                    refused += 1;
                    continue;
                }
            };
            let stored = store.put(b"key", b"value");
            stored.unwrap_or_else(|error| panic!("{engine}, 2^{exponent} bytes: {error}"));
            break;
        }
        assert!((1..15).contains(&refused), "{engine}: {refused}");
    }
}
