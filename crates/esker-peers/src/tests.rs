//! Every peer of this build keeps what it is given, in order, and across a close, under each durability.
//!
//! `cargo test -p esker-peers --features all`; without features there is nothing to test, and the list says so.

use esker_bench::system::{Durability, OpenOptions};

fn options(folder: &std::path::Path, durability: Durability) -> OpenOptions {
    OpenOptions {
        folder: folder.to_owned(),
        durability,
        cache_bytes: 16 << 20,
        records: 1000,
        data_bytes: 100_000,
        utilization: None,
        record_size_bytes: (16, 84),
        threads: 1,
        depth: 1,
        direct: false,
        variant: None,
    }
}

fn key(n: u64) -> Vec<u8> {
    format!("key{n:06}").into_bytes()
}

#[test]
fn every_peer_keeps_what_it_is_given() {
    for kind in super::all() {
        for durability in kind.promises.iter().copied() {
            let folder = tempfile::tempdir().unwrap();
            let options = options(folder.path(), durability);
            let system = (kind.open)(&options).unwrap();
            let mut session = system.session().unwrap();
            for n in 0..100 {
                session.write(&key(n), format!("value {n}").as_bytes()).unwrap();
            }
            session.write(&key(5), b"another").unwrap();
            session.delete(&key(6)).unwrap();
            drop(session);
            system.sync().unwrap();
            assert!(!system.options().is_empty());
            system.close().unwrap();

            let system = (kind.open)(&options).unwrap();
            let mut session = system.session().unwrap();
            let mut value = Vec::new();
            assert!(session.read(&key(5), &mut |found| value = found.to_vec()).unwrap());
            assert_eq!(value, b"another", "{} {durability}", kind.name);
            assert!(!session.read(&key(6), &mut |_| ()).unwrap());
            let mut keys = Vec::new();
            let seen = session.scan(&key(4), 3, &mut |key, _| keys.push(key.to_vec())).unwrap();
            assert_eq!((seen, keys), (3, vec![key(4), key(5), key(7)]), "{}", kind.name);
            let seen = session.scan(&key(98), 10, &mut |_, _| ()).unwrap();
            assert_eq!(seen, 2, "{}", kind.name);
            drop(session);
            system.close().unwrap();
        }
    }
}

#[test]
fn the_peers_of_a_build_are_those_of_its_features() {
    let names: Vec<&str> = super::all().iter().map(|kind| kind.name).collect();
    for (name, wanted) in [
        ("rocksdb", cfg!(feature = "rocksdb")),
        ("lmdb", cfg!(feature = "lmdb")),
        ("redb", cfg!(feature = "redb")),
        ("fjall", cfg!(feature = "fjall")),
        ("sled", cfg!(feature = "sled")),
    ] {
        assert_eq!(names.contains(&name), wanted, "{name}");
    }
}
