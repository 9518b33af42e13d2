//! The oracle allows what was promised and nothing else.

use super::*;

fn entry(number: u8) -> Entry {
    Entry::plain(vec![number; 4])
}

fn map(entries: &[(&str, u8)]) -> Map {
    let held = |number| Held::from(entry(number));
    entries.iter().map(|(key, number)| (key.as_bytes().to_vec(), held(*number))).collect()
}

fn put(key: &str, number: u8) -> Op {
    Op::Put(key.as_bytes().to_vec(), entry(number))
}

/// Begins and ends a call at one position.
fn done(history: &mut History, position: u64, op: Op, reply: Reply) {
    let id = history.begin(position, op);
    history.end(position, id, reply);
}

fn allowed(history: &History, position: u64) -> Allowed {
    let mut oracle = Oracle::new(history);
    oracle.advance_to(position).unwrap();
    oracle.allowed().unwrap()
}

#[test]
fn an_acknowledged_write_must_be_there_and_an_open_one_may() {
    let mut history = History::default();
    done(&mut history, 1, put("a", 1), Reply::Done);
    let open = history.begin(2, put("a", 2));
    history.end(5, open, Reply::Done);
    let before = allowed(&history, 0);
    assert!(before.check(&map(&[]), 0).is_ok() && before.check(&map(&[("a", 1)]), 0).is_err());
    let between = allowed(&history, 3);
    assert!(between.check(&map(&[("a", 1)]), 0).is_ok());
    assert!(between.check(&map(&[("a", 2)]), 0).is_ok());
    assert!(between.check(&map(&[]), 0).is_err(), "acknowledged, then lost");
    let after = allowed(&history, 5);
    assert!(after.check(&map(&[("a", 1)]), 0).is_err(), "acknowledged, then reverted");
    assert!(after.check(&map(&[("a", 2)]), 0).is_ok());
}

#[test]
fn invented_keys_and_values_are_never_allowed() {
    let mut history = History::default();
    done(&mut history, 1, put("a", 1), Reply::Done);
    done(&mut history, 1, put("b", 2), Reply::Done);
    let now = allowed(&history, 1);
    assert!(now.check(&map(&[("a", 1), ("b", 9)]), 0).unwrap_err().contains("invented"));
    assert!(now.check(&map(&[("a", 2), ("b", 2)]), 0).is_err(), "another key's value");
    assert!(now.check(&map(&[("a", 1), ("b", 2), ("c", 1)]), 0).unwrap_err().contains("never"));
}

#[test]
fn what_a_read_returned_must_survive() {
    let mut history = History::default();
    let open = history.begin(1, put("a", 1));
    let get = Op::Get(b"a".to_vec());
    done(&mut history, 2, get, Reply::Found(Some(entry(1).into())));
    history.end(9, open, Reply::Done);
    assert!(allowed(&history, 1).check(&map(&[]), 0).is_ok());
    assert!(allowed(&history, 2).check(&map(&[]), 0).is_err(), "somebody saw it");
}

#[test]
fn a_batch_is_found_whole_or_not_at_all() {
    let mut history = History::new(map(&[("a", 1), ("b", 1)]));
    let writes = vec![(b"a".to_vec(), Some(entry(2))), (b"b".to_vec(), None)];
    let open = history.begin(1, Op::Batch(writes));
    history.end(5, open, Reply::Done);
    let now = allowed(&history, 2);
    assert!(now.check(&map(&[("a", 1), ("b", 1)]), 0).is_ok());
    assert!(now.check(&map(&[("a", 2)]), 0).is_ok());
    assert!(now.check(&map(&[("a", 2), ("b", 1)]), 0).is_err(), "half of it");
    assert!(now.check(&map(&[("a", 1)]), 0).is_err(), "the other half");
    assert!(allowed(&history, 5).check(&map(&[("a", 1), ("b", 1)]), 0).is_err());
}

#[test]
fn refused_calls_have_no_effect_and_unknown_ones_may_have_it_later() {
    let mut history = History::new(map(&[("a", 1)]));
    done(&mut history, 1, put("a", 2), Reply::Refused);
    done(&mut history, 1, put("a", 3), Reply::Unknown);
    let now = allowed(&history, 9);
    assert!(now.check(&map(&[("a", 1)]), 0).is_ok() && now.check(&map(&[("a", 3)]), 0).is_ok());
    assert!(now.check(&map(&[("a", 2)]), 0).is_err());
}

#[test]
fn a_refused_clear_may_have_deleted_some_keys() {
    let mut history = History::new(map(&[("a", 1), ("b", 1)]));
    done(&mut history, 1, Op::Clear, Reply::Refused);
    let now = allowed(&history, 9);
    assert!(
        now.check(&map(&[("b", 1)]), 0).is_ok()
            && now.check(&map(&[("a", 1), ("b", 1)]), 0).is_ok()
    );
    assert!(now.check(&map(&[("a", 2)]), 0).is_err());
}

#[test]
fn a_wrong_reply_is_found_without_any_crash() {
    let mut history = History::default();
    done(&mut history, 1, put("a", 1), Reply::Done);
    done(&mut history, 2, Op::Delete(b"a".to_vec()), Reply::Was(false));
    let words = Oracle::new(&history).advance_to(9).unwrap_err();
    assert!(words.contains("NotLinearizable") && words.contains("delete"), "{words}");
    let mut history = History::default();
    done(&mut history, 1, Op::Iterate, Reply::All(map(&[("ghost", 1)])));
    assert!(Oracle::new(&history).advance_to(9).is_err());
}

#[test]
fn an_open_clear_may_have_reached_some_keys() {
    let mut history = History::new(map(&[("a", 1), ("b", 1)]));
    history.begin(1, Op::Clear);
    let now = allowed(&history, 1);
    for found in [vec![], vec![("a", 1)], vec![("b", 1)], vec![("a", 1), ("b", 1)]] {
        assert!(now.check(&map(&found), 0).is_ok(), "{found:?}");
    }
}

#[test]
fn the_model_replies_like_a_right_store() {
    let mut model = Model::default();
    let key = b"a".to_vec();
    assert_eq!(model.apply(&Op::PutIf(key.clone(), entry(1), When::Present)), Reply::Was(false));
    assert_eq!(model.apply(&Op::PutIf(key.clone(), entry(1), When::Absent)), Reply::Was(true));
    assert_eq!(model.apply(&Op::Get(key.clone())), Reply::Found(Some(entry(1).into())));
    assert_eq!(model.apply(&Op::Delete(key.clone())), Reply::Was(true));
    assert_eq!(model.apply(&Op::Batch(vec![(key, Some(entry(2)))])), Reply::Done);
    assert_eq!(model.apply(&Op::Iterate), Reply::All(map(&[("a", 2)])));
    assert!(Allowed::exactly(&model.map).check(&map(&[("a", 2)]), 0).is_ok());
    assert!(Allowed::exactly(&model.map).check(&map(&[]), 0).is_err());
}

fn stored(history: &mut History, position: u64, op: Op, version: u64) {
    done(history, position, op, Reply::Stored(version));
}

fn versioned(number: u8, version: u64) -> Map {
    Map::from([(b"a".to_vec(), Held { entry: entry(number), version })])
}

#[test]
fn a_value_has_the_version_of_its_write() {
    let mut history = History::default();
    stored(&mut history, 1, put("a", 1), 7);
    let open = history.begin(2, put("a", 2));
    history.end(9, open, Reply::Stored(8));
    let now = allowed(&history, 3);
    assert!(now.check(&versioned(1, 7), 0).is_ok() && now.check(&versioned(2, 8), 0).is_ok());
    for (number, version) in [(1, 6), (1, 8), (2, 7), (2, 9)] {
        let words = now.check(&versioned(number, version), 0).unwrap_err();
        assert!(words.contains("version"), "{words}");
    }
    let exactly = Allowed::exactly(&versioned(1, 7));
    assert!(exactly.check(&versioned(1, 7), 0).is_ok());
    assert!(exactly.check(&versioned(1, 8), 0).is_err());
}

#[test]
fn versions_do_not_go_back() {
    let get = || Op::Get(b"a".to_vec());
    let found = |number, version| Reply::Found(versioned(number, version).remove(&b"a"[..]));
    for version in [6, 7] {
        let mut history = History::default();
        stored(&mut history, 1, put("a", 1), 7);
        stored(&mut history, 2, put("a", 2), version);
        assert!(Oracle::new(&history).advance_to(9).is_err(), "{version}");
    }
    let mut history = History::default();
    stored(&mut history, 1, put("a", 1), 7);
    done(&mut history, 2, get(), found(1, 7));
    assert!(Oracle::new(&history).advance_to(9).is_ok());
    done(&mut history, 3, get(), found(1, 8));
    assert!(Oracle::new(&history).advance_to(9).is_err(), "another version of the same value");
}

#[test]
fn a_batch_has_versions_that_follow_each_other() {
    let mut history = History::default();
    let writes = vec![(b"a".to_vec(), Some(entry(1))), (b"b".to_vec(), None)];
    stored(&mut history, 1, Op::Batch(writes), 9);
    let now = allowed(&history, 1);
    assert!(now.check(&versioned(1, 8), 0).is_ok() && now.check(&versioned(1, 9), 0).is_ok());
    assert!(now.check(&versioned(1, 7), 0).is_err() && now.check(&versioned(1, 10), 0).is_err());
}

#[test]
fn what_has_expired_is_gone_and_leaves_nothing_older() {
    let mut history = History::default();
    let short = Entry { expires_at: 5, ..entry(2) };
    let found = Map::from([(b"a".to_vec(), Held::from(short.clone()))]);
    done(&mut history, 1, put("a", 1), Reply::Done);
    done(&mut history, 2, Op::Put(b"a".to_vec(), short), Reply::Done);
    done(&mut history, 3, Op::Time(5), Reply::Done);
    let before = allowed(&history, 2);
    assert!(before.check(&found, 4).is_ok() && before.check(&map(&[]), 4).is_err());
    assert!(before.check(&found, 5).is_err() && before.check(&map(&[]), 5).is_ok());
    let after = allowed(&history, 3);
    assert!(after.check(&found, 4).is_ok() && after.check(&map(&[]), 4).is_ok(), "a clock behind");
    assert!(after.check(&found, 5).is_err());
    assert!([4, 5].iter().all(|now| after.check(&map(&[("a", 1)]), *now).is_err()), "older");
}

#[test]
fn the_model_follows_versions() {
    let mut model = Model::default();
    let get = Op::Get(b"a".to_vec());
    assert!(model.follow(&put("a", 1), &Reply::Stored(3), false));
    let held = Held { entry: entry(1), version: 3 };
    assert!(model.follow(&get, &Reply::Found(Some(held.clone())), false));
    let other = Reply::Found(Some(Held { version: 4, ..held.clone() }));
    assert!(!model.clone().follow(&get, &other, false));
    assert!(!model.clone().follow(&put("a", 2), &Reply::Stored(3), false), "twice");
    let compare = Op::CompareAndPut(b"a".to_vec(), entry(2), held.clone());
    assert!(!model.clone().follow(&compare, &Reply::Was(false), false));
    assert!(model.follow(&compare, &Reply::Stored(4), false));
    let compare = Op::CompareAndPut(b"a".to_vec(), entry(5), held);
    assert!(!model.clone().follow(&compare, &Reply::Stored(5), false), "another value is there");
    assert!(model.follow(&compare, &Reply::Was(false), false));
}
