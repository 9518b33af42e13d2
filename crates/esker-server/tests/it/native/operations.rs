//! What each operation does and answers.

use super::{Raw, get, put, start, start_with, start_with_limits};
use esker_base::ErrorKind;
use esker_base::ids::Version;
use esker_format::native::{
    Attributes, Change, ChangeKind, Changes, Condition, Items, Keys, Put, Request, Status,
    decode_version, push_change, push_key,
};
use esker_server::Limits;

fn keys_of(keys: &[&[u8]]) -> Vec<u8> {
    let mut payload = Vec::new();
    keys.iter().for_each(|key| push_key(&mut payload, key).expect("a key"));
    payload
}

fn changes_of(changes: &[(&[u8], Option<&[u8]>)]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (key, value) in changes {
        let kind = value.map_or(ChangeKind::Delete, |v| ChangeKind::Put(v, Attributes::default()));
        push_change(&mut payload, &Change { key, kind }).expect("a change");
    }
    payload
}

#[test]
fn the_hello_tells_the_limits() {
    let server = start();
    let client = Raw::connect(&server);
    assert_eq!(client.hello.status, Status::Ok);
    assert!(!client.hello.authenticate);
    assert_eq!(client.hello.value_size_max, 1 << 20);
    assert!(client.hello.request_size_max > 1 << 20);
    assert!(client.hello.in_flight_max >= 2);
}

#[test]
fn values_come_back_with_their_attributes_and_versions() {
    let server = start();
    let mut client = Raw::connect(&server);
    client.check_status(&get(b"k"), Status::KeyMissing);
    let far = Some(4_000_000_000);
    let attributes = Attributes { flags: 7, expires_at: far, state: 9 };
    let request = Put { key: b"k", value: b"value", attributes, condition: Condition::Always };
    let stored = client.check_status(&Request::Put(request), Status::Ok);
    let version = decode_version(&stored.payload).expect("a version");
    let reply = client.ask(&get(b"k"));
    assert_eq!(
        (reply.item().version, reply.item().attributes, reply.item().value),
        (version, attributes, b"value".as_slice())
    );
    for size in [0, 1, 1023, 1024, 16 << 10, (16 << 10) + 1, 1 << 20] {
        let value: Vec<u8> = (0..size).map(|place| (place % 251) as u8).collect();
        client.check_status(&put(b"sized", &value), Status::Ok);
        assert!(client.ask(&get(b"sized")).item().value == value, "{size} bytes");
    }
    let longest = vec![b'k'; 64 << 10];
    client.check_status(&put(&longest, b"v"), Status::Ok);
    assert_eq!(client.ask(&get(&longest)).item().value, b"v");
    // What is over is gone.
    let over = Attributes { expires_at: Some(1), ..Attributes::default() };
    let request = Put { key: b"over", value: b"v", attributes: over, condition: Condition::Always };
    client.check_status(&Request::Put(request), Status::Ok);
    client.check_status(&get(b"over"), Status::KeyMissing);
}

#[test]
fn conditions_are_decided_and_told() {
    let server = start();
    let mut client = Raw::connect(&server);
    let when = |condition| {
        let attributes = Attributes::default();
        Request::Put(Put { key: b"k", value: b"v", attributes, condition })
    };
    client.check_status(&when(Condition::Present), Status::KeyMissing);
    client.check_status(&when(Condition::VersionIs(Version(1))), Status::KeyMissing);
    let stored = client.check_status(&when(Condition::Absent), Status::Ok);
    let first = decode_version(&stored.payload).expect("a version");
    client.check_status(&when(Condition::Absent), Status::KeyExists);
    client.check_status(&when(Condition::Present), Status::Ok);
    client.check_status(&when(Condition::VersionIs(first)), Status::VersionDiffers);
    let second = client.ask(&get(b"k")).item().version;
    assert!(second > first);
    let delete = |condition| Request::Delete { key: b"k", condition };
    client.check_status(&delete(Condition::VersionIs(first)), Status::VersionDiffers);
    client.check_status(&delete(Condition::VersionIs(second)), Status::Ok);
    client.check_status(&delete(Condition::Always), Status::KeyMissing);
    client.check_status(&put(b"k", b"v"), Status::Ok);
    client.check_status(&delete(Condition::Always), Status::Ok);
    assert!(server.store.get(b"k").expect("get").is_none());
}

#[test]
fn a_batch_is_made_at_once_and_answered_with_its_version() {
    let server = start();
    let mut client = Raw::connect(&server);
    client.check_status(&put(b"gone", b"v"), Status::Ok);
    let payload = changes_of(&[(b"a", Some(b"1")), (b"gone", None), (b"b", Some(b""))]);
    let batch = Request::Batch(Changes::decode(&payload).expect("changes"));
    let reply = client.check_status(&batch, Status::Ok);
    let version = decode_version(&reply.payload).expect("a version");
    assert_eq!(server.store.stats().last_version, version);
    assert_eq!(client.ask(&get(b"a")).item().value, b"1");
    assert_eq!(client.ask(&get(b"b")).item().value, b"");
    client.check_status(&get(b"gone"), Status::KeyMissing);
}

#[test]
fn a_batch_of_very_many_changes_is_refused_where_there_is_no_memory_for_them() {
    let key: &[u8] = b"k";
    let many = changes_of(&vec![(key, None); 100_000]);
    let many = Request::Batch(Changes::decode(&many).expect("changes"));
    let large = vec![b'v'; 1 << 20];
    let few = changes_of(&[(key, Some(&large))]);
    let few = Request::Batch(Changes::decode(&few).expect("changes"));
    // The least that there may be, and what there is by itself.
    let least =
        Limits { connections_max: 8, memory_max_bytes: (4 << 20) + 8 * 4096, ..Limits::default() };
    let no_memory = Status::Failed(ErrorKind::OutOfMemory);
    for (limits, expected) in [(least, no_memory), (Limits::default(), Status::Ok)] {
        let server = start_with_limits(limits);
        let mut client = Raw::connect(&server);
        client.check_status(&many, expected);
        client.check_status(&few, Status::Ok);
    }
}

#[test]
fn several_keys_are_answered_in_their_order_as_far_as_they_fit() {
    let server = start();
    let mut client = Raw::connect(&server);
    let large = vec![b'L'; 400 << 10];
    for key in [b"0".as_slice(), b"1", b"2", b"3"] {
        client.check_status(&put(key, &large), Status::Ok);
    }
    client.check_status(&put(b"small", b"s"), Status::Ok);
    let all: Vec<&[u8]> = vec![b"small", b"none", b"0", b"1", b"2", b"3", b"none", b"small"];
    let mut seen: Vec<Option<Vec<u8>>> = Vec::new();
    let mut replies = 0;
    while seen.len() < all.len() {
        let payload = keys_of(&all[seen.len()..]);
        let request = Request::MultiGet(Keys::decode(&payload).expect("keys"));
        let reply = client.check_status(&request, Status::Ok);
        let before = seen.len();
        for item in Items::new(&reply.payload) {
            seen.push(item.expect("an item").map(|item| item.value.to_vec()));
        }
        assert!(seen.len() > before, "at least the first");
        assert!(reply.payload.len() < 2 << 20, "{} bytes at once", reply.payload.len());
        replies += 1;
    }
    let expected: Vec<Option<Vec<u8>>> = all
        .iter()
        .map(|key| match *key {
            b"none" => None,
            b"small" => Some(b"s".to_vec()),
            _ => Some(large.clone()),
        })
        .collect();
    assert!(seen == expected);
    assert!(replies > 1, "it does not fit in one reply");
}

#[test]
fn very_many_keys_are_answered() {
    let server = start();
    let mut client = Raw::connect(&server);
    client.check_status(&put(b"k", b"v"), Status::Ok);
    let keys: Vec<&[u8]> =
        (0..5000).map(|n| if n % 2 == 0 { &b"k"[..] } else { b"miss" }).collect();
    let payload = keys_of(&keys);
    let request = Request::MultiGet(Keys::decode(&payload).expect("keys"));
    let reply = client.check_status(&request, Status::Ok);
    let items: Vec<bool> =
        Items::new(&reply.payload).map(|item| item.expect("an item").is_some()).collect();
    assert!(items.len() > 1000, "{} at once", items.len());
    assert!(items.iter().enumerate().all(|(place, found)| *found == (place % 2 == 0)));
}

#[test]
fn what_is_over_a_limit_is_refused_and_the_connection_goes_on() {
    let limits = Limits { item_size_max_bytes: 2048, ..Limits::default() };
    let server = start_with_limits(limits);
    let mut client = Raw::connect(&server);
    let (fits, large) = (vec![1; 2048], vec![1; 2049]);
    client.check_status(&put(b"k", &fits), Status::Ok);
    client.check_status(&put(b"k", &large), Status::TooLarge);
    let payload = changes_of(&[(b"a", Some(b"1")), (b"k", Some(&large))]);
    let batch = Request::Batch(Changes::decode(&payload).expect("changes"));
    client.check_status(&batch, Status::TooLarge);
    client.check_status(&get(b"a"), Status::KeyMissing);
    assert_eq!(client.ask(&get(b"k")).item().value, fits);
}

#[test]
fn sync_clear_and_stats_do_what_they_say() {
    let server = start();
    let mut client = Raw::connect(&server);
    client.check_status(&Request::Ping, Status::Ok);
    client.check_status(&put(b"k", b"v"), Status::Ok);
    client.check_status(&Request::Sync, Status::Ok);
    let stats = client.check_status(&Request::Stats, Status::Ok);
    let stats = String::from_utf8(stats.payload).expect("text");
    assert!(stats.lines().all(|line| line.contains(' ')), "{stats}");
    for line in ["items 1", "cmd_set 1", "connections 1", "read_only 0"] {
        assert!(stats.lines().any(|found| found == line), "{line} is missing in {stats}");
    }
    client.check_status(&Request::Clear, Status::Ok);
    client.check_status(&get(b"k"), Status::KeyMissing);
    assert_eq!(server.store.stats().items, 0);
}

#[test]
fn what_the_configuration_forbids_is_refused() {
    let server = start_with(|config| config.flush_enabled = false);
    let mut client = Raw::connect(&server);
    client.check_status(&put(b"k", b"v"), Status::Ok);
    client.check_status(&Request::Clear, Status::Forbidden);
    assert_eq!(client.ask(&get(b"k")).item().value, b"v");
}

#[test]
fn both_protocols_see_the_same_items() {
    let server = start_with(|config| {
        config.listen.push("memcache://127.0.0.1:0".parse().expect("address"));
    });
    let memcache = server.server.addresses()[1].tcp().expect("TCP");
    let mut text = crate::harness::Client::connect(memcache);
    let mut client = Raw::connect(&server);
    let attributes = Attributes { flags: 5, ..Attributes::default() };
    let request = Put { key: b"k", value: b"hi", attributes, condition: Condition::Always };
    client.check_status(&Request::Put(request), Status::Ok);
    text.check_chat(b"get k\r\nset k 6 0 3\r\nyou\r\n", "VALUE k 5 2\r\nhi\r\nEND\r\nSTORED\r\n");
    let reply = client.ask(&get(b"k"));
    assert_eq!((reply.item().value, reply.item().attributes.flags), (b"you".as_slice(), 6));
}
