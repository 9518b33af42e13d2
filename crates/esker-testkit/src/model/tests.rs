//! The oracle allows what was promised and nothing else.

use super::*;

fn entry(number: u8) -> Entry {
    Entry::plain(vec![number; 4])
}

fn map(entries: &[(&str, u8)]) -> Map {
    entries.iter().map(|(key, number)| (key.as_bytes().to_vec(), entry(*number))).collect()
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
    assert!(before.check(&map(&[])).is_ok() && before.check(&map(&[("a", 1)])).is_err());
    let between = allowed(&history, 3);
    assert!(between.check(&map(&[("a", 1)])).is_ok());
    assert!(between.check(&map(&[("a", 2)])).is_ok());
    assert!(between.check(&map(&[])).is_err(), "acknowledged, then lost");
    let after = allowed(&history, 5);
    assert!(after.check(&map(&[("a", 1)])).is_err(), "acknowledged, then reverted");
    assert!(after.check(&map(&[("a", 2)])).is_ok());
}

#[test]
fn invented_keys_and_values_are_never_allowed() {
    let mut history = History::default();
    done(&mut history, 1, put("a", 1), Reply::Done);
    done(&mut history, 1, put("b", 2), Reply::Done);
    let now = allowed(&history, 1);
    assert!(now.check(&map(&[("a", 1), ("b", 9)])).unwrap_err().contains("invented"));
    assert!(now.check(&map(&[("a", 2), ("b", 2)])).is_err(), "another key's value");
    assert!(now.check(&map(&[("a", 1), ("b", 2), ("c", 1)])).unwrap_err().contains("never"));
}

#[test]
fn what_a_read_returned_must_survive() {
    let mut history = History::default();
    let open = history.begin(1, put("a", 1));
    let get = Op::Get(b"a".to_vec());
    done(&mut history, 2, get, Reply::Found(Some(entry(1))));
    history.end(9, open, Reply::Done);
    assert!(allowed(&history, 1).check(&map(&[])).is_ok());
    assert!(allowed(&history, 2).check(&map(&[])).is_err(), "somebody saw it");
}

#[test]
fn a_batch_is_found_whole_or_not_at_all() {
    let mut history = History::new(map(&[("a", 1), ("b", 1)]));
    let writes = vec![(b"a".to_vec(), Some(entry(2))), (b"b".to_vec(), None)];
    let open = history.begin(1, Op::Batch(writes));
    history.end(5, open, Reply::Done);
    let now = allowed(&history, 2);
    assert!(now.check(&map(&[("a", 1), ("b", 1)])).is_ok());
    assert!(now.check(&map(&[("a", 2)])).is_ok());
    assert!(now.check(&map(&[("a", 2), ("b", 1)])).is_err(), "half of it");
    assert!(now.check(&map(&[("a", 1)])).is_err(), "the other half");
    assert!(allowed(&history, 5).check(&map(&[("a", 1), ("b", 1)])).is_err());
}

#[test]
fn refused_calls_have_no_effect_and_unknown_ones_may_have_it_later() {
    let mut history = History::new(map(&[("a", 1)]));
    done(&mut history, 1, put("a", 2), Reply::Refused);
    done(&mut history, 1, put("a", 3), Reply::Unknown);
    let now = allowed(&history, 9);
    assert!(now.check(&map(&[("a", 1)])).is_ok() && now.check(&map(&[("a", 3)])).is_ok());
    assert!(now.check(&map(&[("a", 2)])).is_err());
}

#[test]
fn a_refused_clear_may_have_deleted_some_keys() {
    let mut history = History::new(map(&[("a", 1), ("b", 1)]));
    done(&mut history, 1, Op::Clear, Reply::Refused);
    let now = allowed(&history, 9);
    assert!(now.check(&map(&[("b", 1)])).is_ok() && now.check(&map(&[("a", 1), ("b", 1)])).is_ok());
    assert!(now.check(&map(&[("a", 2)])).is_err());
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
        assert!(now.check(&map(&found)).is_ok(), "{found:?}");
    }
}

#[test]
fn the_model_replies_like_a_right_store() {
    let mut model = Model::default();
    let key = b"a".to_vec();
    assert_eq!(model.apply(&Op::PutIf(key.clone(), entry(1), When::Present)), Reply::Was(false));
    assert_eq!(model.apply(&Op::PutIf(key.clone(), entry(1), When::Absent)), Reply::Was(true));
    assert_eq!(model.apply(&Op::Get(key.clone())), Reply::Found(Some(entry(1))));
    assert_eq!(model.apply(&Op::Delete(key.clone())), Reply::Was(true));
    assert_eq!(model.apply(&Op::Batch(vec![(key, Some(entry(2)))])), Reply::Done);
    assert_eq!(model.apply(&Op::Iterate), Reply::All(map(&[("a", 2)])));
    assert!(Allowed::exactly(&model.0).check(&map(&[("a", 2)])).is_ok());
    assert!(Allowed::exactly(&model.0).check(&map(&[])).is_err());
}
