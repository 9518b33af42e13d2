//! Fuzz target: what a client makes of what a server says, and of addresses. Only in tests and in the build of a fuzzer (`fuzz/`).

use crate::address::Address;
use crate::connection::first_frame;
use crate::pending::read_items;
use crate::table::{Reply, Table};
use esker_base::ids::Version;
use esker_format::native::{
    Attributes, BackupReport, Item, ItemHead, NO_REQUEST, Opcode, Status, begin_frame,
    decode_version, encode_version, end_frame, multi_get_entry,
};

/// What the server has said of its replies.
const REPLY_SIZE_MAX: u32 = 4096;
/// Requests that are waited for: gets, but for one of each other kind.
const WAITING: u32 = 16;

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first() else { return };
    match kind % 2 {
        0 => replies(bytes),
        _ => address(bytes),
    }
}

fn replies(mut bytes: &[u8]) {
    let mut table = Table::default();
    for number in 0..WAITING {
        let opcode = Opcode::from_number(u8::try_from(number).expect("few"));
        let id = table.next_id();
        assert_ne!(id, NO_REQUEST);
        table.insert(id, opcode.unwrap_or(Opcode::Get) as u8, 0);
    }
    while let Ok(Some((size, id, reply))) = first_frame(bytes, REPLY_SIZE_MAX) {
        let (frame, rest) = bytes.split_at(size);
        // What came so far is waited on for the rest.
        for cut in [0, 15, 16, size / 2, size - 1] {
            assert!(matches!(first_frame(&frame[..cut.min(size - 1)], REPLY_SIZE_MAX), Ok(None)));
        }
        let before = table.len();
        match table.take(id, reply.opcode) {
            Ok(Some(slot)) => {
                read(&reply);
                slot.fill(Ok(reply));
                assert!(slot.is_filled() && table.len() == before - 1);
            }
            Ok(None) => {}
            Err(_) => return,
        }
        bytes = rest;
    }
}

/// Reads a reply as the calls of a client do.
fn read(reply: &Reply) {
    if let Ok(items) = read_items(&reply.payload) {
        assert!(items.len() <= reply.payload.len() / 4);
    }
    let _ = (Item::decode(&reply.payload), decode_version(&reply.payload));
    let _ = BackupReport::decode(&reply.payload);
}

/// What is read comes back as it is shown.
fn address(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(address) = text.parse::<Address>() else { return };
    let again: Address = address.to_string().parse().expect("what was shown");
    assert_eq!(again, address);
}

/// Inputs to begin with.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let head = ItemHead::new(Version(77), Attributes { flags: 7, expires_at: None, state: 3 });
    let item = [head.bytes(), b"value"].concat();
    let entry = |size| multi_get_entry(size).expect("short");
    let items = [&entry(Some(item.len()))[..], &item, &entry(None)].concat();
    let report = BackupReport::default().to_string().into_bytes();
    let version = encode_version(Version(77)).to_vec();
    // The ids are those of the requests with these opcodes.
    let all = [
        (Opcode::Get, Status::Ok, item),
        (Opcode::MultiGet, Status::Ok, items),
        (Opcode::Put, Status::Ok, version),
        (Opcode::Delete, Status::KeyMissing, Vec::new()),
        (Opcode::Backup, Status::Ok, report),
        (Opcode::Goodbye, Status::TooSlow, b"words".to_vec()),
    ];
    let mut stream = vec![0];
    for (opcode, status, payload) in all {
        let start = begin_frame(&mut stream);
        stream.extend(payload);
        let id = opcode as u32 + u32::from(opcode != Opcode::Goodbye);
        end_frame(&mut stream, start, id, opcode as u8, status).expect("short");
    }
    let addresses = ["native://[::1]:7", "native://host", "native+unix:///a/b", "shm:///a/b"];
    let addresses = addresses.map(|text| [&[1], text.as_bytes()].concat());
    [vec![stream], addresses.to_vec()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_testkit::fuzz::smoke;

    #[test]
    fn targets_take_seeds_what_is_changed_of_them_and_noise() {
        smoke(&[("client", run, seeds)], 1, 20_000);
        assert!(seeds().len() > 3, "seeds of both kinds");
    }
}
