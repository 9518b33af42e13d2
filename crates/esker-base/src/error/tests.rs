//! What an error says, and what survives cloning and re-labelling.

use super::{Error, ErrorKind};

#[test]
fn display_names_operation_kind_place_and_cause() {
    let error = Error::io("flush device", std::io::Error::from_raw_os_error(5))
        .device("data.esker")
        .at(4096, 512)
        .context("commit of batch 7");
    let text = error.to_string();
    for part in ["flush device", "commit of batch 7", "data.esker", "512 bytes at offset 4096"] {
        assert!(text.contains(part), "{part:?} is missing in {text:?}");
    }
    assert_eq!(error.kind(), ErrorKind::Io);
    assert_eq!(error.range(), Some((4096, 512)));
}

#[test]
fn a_place_of_unknown_length_is_not_said_to_have_none() {
    let error = Error::corrupted("read entry", "a checksum").at(4096, 0);
    assert_eq!(error.range(), Some((4096, 0)));
    for (error, place) in
        [(error.clone(), "(at offset 4096)"), (error.device("d"), "(device d, at offset 4096)")]
    {
        assert!(error.to_string().ends_with(place), "{error}");
    }
}

#[test]
fn full_disk_has_its_own_kind() {
    let error = Error::io("write device", std::io::Error::from_raw_os_error(28));
    assert_eq!(error.kind(), ErrorKind::NoSpace);
}

#[test]
fn relabelling_a_clone_leaves_the_original() {
    let error = Error::new(ErrorKind::Io, "flush device");
    let unknown = error.clone().with_kind(ErrorKind::DurabilityUnknown);
    assert_eq!(error.kind(), ErrorKind::Io);
    assert_eq!(unknown.kind(), ErrorKind::DurabilityUnknown);
}

#[test]
fn kind_numbers_are_dense_and_words_differ() {
    let mut words = std::collections::HashSet::new();
    for (place, kind) in ErrorKind::ALL.into_iter().enumerate() {
        assert_eq!(kind as usize, place + 1);
        assert!(words.insert(kind.words()));
    }
}
