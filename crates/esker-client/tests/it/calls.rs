//! What each call does, and many of them at once.

use crate::harness::{TestServer, alone, alone_with};
use esker_client::{
    Attributes, Batch, Client, Condition, ErrorKind, Fate, Options, Outcome, Status,
};
use esker_server::{Credentials, Limits};
use std::collections::BTreeMap;

#[test]
fn values_are_put_read_and_deleted() {
    let alone = alone();
    let client = alone.client();
    assert!(client.get(b"k").expect("get").is_none());
    let version = client.put(b"k", b"value").expect("put");
    let value = client.get(b"k").expect("get").expect("just put");
    assert_eq!((&*value, value.version()), (b"value".as_slice(), version));
    assert!(client.delete(b"k").expect("delete"));
    assert!(!client.delete(b"k").expect("delete"));
    let attributes = Attributes { flags: 3, expires_at: Some(4_000_000_000), state: 5 };
    let outcome = client.put_with(b"k", b"v", attributes, Condition::Absent).expect("put");
    let Outcome::Stored(version) = outcome else { panic!("{outcome:?}") };
    assert_eq!(client.get(b"k").expect("get").expect("there").attributes(), attributes);
    let again = |condition| client.put_with(b"k", b"w", Attributes::default(), condition);
    assert_eq!(again(Condition::Absent).expect("put"), Outcome::KeyExists);
    let later = again(Condition::VersionIs(version)).expect("put");
    let Outcome::Stored(later) = later else { panic!("{later:?}") };
    assert_eq!(again(Condition::VersionIs(version)).expect("put"), Outcome::VersionDiffers);
    assert!(!client.compare_and_delete(b"k", version).expect("delete"));
    assert!(client.compare_and_delete(b"k", later).expect("delete"));
    assert_eq!(again(Condition::Present).expect("put"), Outcome::KeyMissing);
}

#[test]
fn several_values_come_in_the_order_of_their_keys_however_large_they_are() {
    let alone = alone();
    let client = alone.client();
    let large = vec![7; 700 << 10];
    for n in 0..5_u32 {
        client.put(format!("large{n}").as_bytes(), &large).expect("put");
    }
    client.put(b"small", b"s").expect("put");
    let keys: Vec<Vec<u8>> =
        (0..6).flat_map(|n| [format!("large{n}").into_bytes(), b"small".to_vec()]).collect();
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let values = client.multi_get(&keys).expect("multi_get");
    assert_eq!(values.len(), 12);
    for (place, value) in values.iter().enumerate() {
        match (place % 2, place) {
            (1, _) => assert_eq!(&**value.as_ref().expect("small"), b"s"),
            (_, 10) => assert!(value.is_none()),
            _ => assert!(**value.as_ref().expect("large") == large[..]),
        }
    }
    assert!(client.multi_get(&[]).expect("nothing").is_empty());
    // More keys than go in one request.
    let long: Vec<Vec<u8>> = (0..40).map(|n| vec![n as u8 + 1; 60_000]).collect();
    client.put(&long[39], b"last").expect("put");
    let keys: Vec<&[u8]> = long.iter().map(Vec::as_slice).collect();
    let values = client.multi_get(&keys).expect("multi_get");
    assert_eq!(values.iter().filter(|value| value.is_some()).count(), 1);
    assert_eq!(&**values[39].as_ref().expect("there"), b"last");
}

#[test]
fn batches_sync_stats_ping_and_clear_do_what_they_say() {
    let alone = alone();
    let client = alone.client();
    client.ping().expect("ping");
    client.put(b"gone", b"v").expect("put");
    let mut batch = Batch::new();
    batch.put(b"a", b"1").delete(b"gone").put(b"b", b"2");
    let version = client.write(&batch).expect("write");
    assert_eq!(version, alone.server.store.stats().last_version);
    assert_eq!(&*client.get(b"a").expect("get").expect("there"), b"1");
    assert!(client.get(b"gone").expect("get").is_none());
    client.sync().expect("sync");
    let stats: BTreeMap<String, String> = client.stats().expect("stats").into_iter().collect();
    assert_eq!(stats["items"], "2");
    client.clear().expect("clear");
    assert_eq!(alone.server.store.stats().items, 0);
}

#[test]
fn what_the_server_would_not_take_is_not_sent() {
    let alone = alone();
    let client = alone.client();
    let too_long = vec![b'k'; (64 << 10) + 1];
    let too_large = vec![0; 2 << 20];
    let mut wrong = Batch::new();
    wrong.put(b"", b"v");
    let errors = [
        client.get(b"").map(|_| ()).expect_err("no key"),
        client.get(&too_long).map(|_| ()).expect_err("a long key"),
        client.put(b"k", &too_large).map(|_| ()).expect_err("a large value"),
        client.write(&Batch::new()).map(|_| ()).expect_err("an empty batch"),
        client.write(&wrong).map(|_| ()).expect_err("a wrong batch"),
    ];
    for error in errors {
        assert_eq!((error.fate(), error.kind()), (Fate::NotSent, ErrorKind::InvalidArgument));
    }
    // Between the two limits the server decides.
    let error = client.put(b"k", &vec![0; (1 << 20) + 1]).expect_err("over the limit of values");
    assert_eq!((error.fate(), error.status()), (Fate::Refused, Some(Status::TooLarge)));
    client.put(b"k", &vec![0; 1 << 20]).expect("at the limit");
}

#[test]
fn one_thread_keeps_a_thousand_requests_in_flight() {
    let alone = alone();
    let client = alone.client();
    let puts: Vec<_> = (0..1000_u32)
        .map(|n| {
            let key = format!("key{n}");
            client.submit_put(
                key.as_bytes(),
                &n.to_be_bytes(),
                Attributes::default(),
                Condition::Always,
            )
        })
        .collect::<Result<_, _>>()
        .expect("submitted");
    for put in puts {
        assert!(matches!(put.wait().expect("put"), Outcome::Stored(_)));
    }
    let gets: Vec<_> = (0..1000_u32)
        .map(|n| client.submit_get(format!("key{n}").as_bytes()))
        .collect::<Result<_, _>>()
        .expect("submitted");
    // In any order.
    for (n, get) in (0..1000_u32).zip(gets).rev() {
        assert_eq!(&*get.wait().expect("get").expect("there"), n.to_be_bytes());
    }
}

#[test]
fn more_than_may_be_in_flight_waits_and_is_answered() {
    let alone = alone();
    let options = Options { in_flight_max: 10, ..Options::default() };
    let client = Client::new(alone.client().address().clone(), options);
    let pending: Vec<_> = (0..500_u32)
        .map(|n| {
            client.submit_put(&n.to_be_bytes(), b"v", Attributes::default(), Condition::Always)
        })
        .collect::<Result<_, _>>()
        .expect("submitted");
    for put in pending {
        put.wait().expect("put");
    }
    assert_eq!(alone.server.store.stats().items, 500);
}

#[test]
fn a_handle_that_is_dropped_has_its_request_made_all_the_same() {
    let alone = alone();
    let client = alone.client();
    drop(client.submit_put(b"k", b"v", Attributes::default(), Condition::Always).expect("submit"));
    // Requests on one key are in order: this one comes after it.
    assert_eq!(&*client.get(b"k").expect("get").expect("put"), b"v");
}

#[test]
fn requests_of_one_thread_on_one_key_take_effect_in_their_order() {
    let alone = alone();
    let client = alone.client();
    let mut expected = Vec::new();
    let mut gets = Vec::new();
    for n in 0..500_u32 {
        drop(client.submit_put(b"k", &n.to_be_bytes(), Attributes::default(), Condition::Always));
        if n % 7 == 0 {
            gets.push(client.submit_get(b"k").expect("submit"));
            expected.push(n);
        }
    }
    for (get, n) in gets.into_iter().zip(expected) {
        assert_eq!(&*get.wait().expect("get").expect("there"), n.to_be_bytes());
    }
}

#[test]
fn threads_share_one_connection() {
    let alone = alone();
    let client = alone.client();
    std::thread::scope(|scope| {
        for thread in 0..8_u32 {
            let client = client.clone();
            scope.spawn(move || {
                for n in 0..200_u32 {
                    let key = format!("{thread}-{n}");
                    client.put(key.as_bytes(), &n.to_be_bytes()).expect("put");
                    let value = client.get(key.as_bytes()).expect("get").expect("just put");
                    assert_eq!(&*value, n.to_be_bytes());
                }
            });
        }
    });
    let stats: BTreeMap<String, String> = client.stats().expect("stats").into_iter().collect();
    assert_eq!((stats["items"].as_str(), stats["connections"].as_str()), ("1600", "1"));
}

#[test]
fn a_key_that_no_store_takes_is_refused_with_the_limit() {
    let alone = alone_with(|_| {});
    let client = alone.client();
    client.put(&vec![7; 64 << 10], b"v").expect("the longest key");
    for key in [vec![], vec![7; (64 << 10) + 1]] {
        let many = client.multi_get(&[b"k", &key]).map(drop);
        for told in [client.get(&key).map(drop), client.put(&key, b"v").map(drop), many] {
            let error = told.expect_err("no such key");
            assert_eq!((error.fate(), error.kind()), (Fate::NotSent, ErrorKind::InvalidArgument));
            assert!(error.to_string().ends_with("keys have 1 to 65536 bytes"), "{error}");
        }
    }
}

#[test]
fn a_server_that_asks_who_it_is_is_told() {
    let alone = alone_with(|config| {
        config.auth = Some(Credentials::parse(b"ann:secret\n").expect("valid"));
    });
    let address = alone.client().address().clone();
    let with = |credentials: Option<(&str, &str)>| {
        let credentials = credentials.map(|(user, word)| (user.to_owned(), word.to_owned()));
        Client::new(address.clone(), Options { credentials, ..Options::default() })
    };
    for (credentials, words) in
        [(None, "has not said who it is"), (Some(("ann", "guess")), "user or password is wrong")]
    {
        let error = with(credentials).put(b"k", b"v").expect_err("refused");
        assert_eq!(error.fate(), Fate::NotSent);
        assert!(error.to_string().contains(words), "{error}");
        assert!(!error.to_string().contains("guess"), "{error}");
    }
    let client = with(Some(("ann", "secret")));
    client.put(b"k", b"v").expect("put");
    assert!(
        !format!(
            "{:?}",
            Options { credentials: Some(("a".into(), "secret".into())), ..Options::default() }
        )
        .contains("secret")
    );
}

#[test]
fn a_socket_file_serves_too() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let address = format!("native+unix://{}", folder.path().join("socket").display());
    let server = TestServer::start(folder.path(), &address, |_| {});
    let client = Client::new(address.parse().expect("address"), Options::default());
    client.put(b"k", b"v").expect("put");
    assert_eq!(&*client.get(b"k").expect("get").expect("there"), b"v");
    server.stop();
    let error = client.get(b"k").expect_err("nobody is there");
    assert_ne!(error.fate(), Fate::Refused);
}

#[test]
fn a_full_server_says_so_before_anything_is_sent() {
    let alone = alone_with(|config| {
        config.limits = Limits { connections_max: 1, ..Limits::default() };
    });
    let first = alone.client();
    first.ping().expect("ping");
    let error = alone.client().ping().expect_err("one too many");
    assert_eq!(error.fate(), Fate::NotSent);
    assert!(error.to_string().contains("too many connections"), "{error}");
    first.ping().expect("ping");
}

/// A server answers for a first value and about 1 MiB: asking for all the others each time sends most keys over and over.
#[test]
fn a_multi_get_of_many_large_values_does_not_send_its_keys_again_and_again() {
    const KEYS: u32 = 400;
    let alone = alone();
    let client = alone.client();
    let keys: Vec<Vec<u8>> = (0..KEYS).map(|n| format!("{n:0>250}").into_bytes()).collect();
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let value = vec![7; 64 << 10];
    for key in &keys {
        client.put(key, &value).expect("put");
    }
    let bytes_read = || {
        let stats = client.stats().expect("stats");
        let (_, bytes) = stats.iter().find(|(name, _)| name == "bytes_read").expect("a figure");
        bytes.parse::<u64>().expect("a number")
    };
    let before = bytes_read();
    let values = client.multi_get(&keys).expect("multi_get");
    let read = bytes_read() - before;
    assert!(values.iter().all(|found| found.as_deref() == Some(&value)));
    let once: u64 = keys.iter().map(|key| key.len() as u64).sum();
    assert!(read >= once && read < 3 * once, "{read} bytes for keys of {once}");
    // Few and large first, many and small behind.
    for key in keys.iter().skip(20) {
        client.put(key, b"small").expect("put");
    }
    let values = client.multi_get(&keys).expect("multi_get");
    let sizes: Vec<usize> = values.iter().flatten().map(|found| found.len()).collect();
    assert_eq!(sizes, [[value.len(); 20].to_vec(), vec![5; KEYS as usize - 20]].concat());
}
