//! The codec against its documentation, itself, and bytes of any kind.
#![allow(clippy::cast_possible_truncation, clippy::panic, reason = "tests fail by panicking")]

use super::*;
use esker_base::rng::Rng;
use std::fmt::Write as _;
use std::mem::offset_of;

macro_rules! table {
    ($raw:ty: $($field:ident $kind:literal),* $(,)?) => {{
        let mut rows: Vec<(&str, usize, &str)> =
            vec![$((stringify!($field), offset_of!($raw, $field), $kind)),*];
        rows.push(("", size_of::<$raw>(), ""));
        let mut text = String::from("| offset | bytes | type | field |\n|---:|---:|---|---|\n");
        for pair in rows.windows(2) {
            let ((name, offset, kind), (_, end, _)) = (pair[0], pair[1]);
            writeln!(text, "| {offset} | {} | {kind} | `{name}` |", end - offset).unwrap();
        }
        writeln!(text, "\n{} bytes.", size_of::<$raw>()).unwrap();
        text
    }};
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::from("```text\n");
    for (row, chunk) in bytes.chunks(16).enumerate() {
        let digits: Vec<String> = chunk.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(text, "{:04x}  {}", row * 16, digits.join(" ")).unwrap();
    }
    text + "```\n"
}

fn frame(id: u32, request: &Request<'_>) -> Vec<u8> {
    let mut frames = Vec::new();
    let start = begin_frame(&mut frames);
    request.encode(&mut frames).unwrap();
    end_frame(&mut frames, start, id, request.opcode() as u8, Status::Ok).unwrap();
    frames
}

fn example() -> Request<'static> {
    let attributes = Attributes { flags: 7, expires_at: None, state: 0 };
    Request::Put(Put { key: b"k", value: b"v", attributes, condition: Condition::Absent })
}

fn statuses() -> String {
    let mut text = String::from("| number | status |\n|---:|---|\n");
    for (status, number) in Status::PLAIN {
        writeln!(text, "| {number} | {} |", status.words()).unwrap();
    }
    for kind in ErrorKind::ALL {
        let number = Status::Failed(kind).number();
        writeln!(text, "| {number} | the store: {} |", kind.words()).unwrap();
    }
    text
}

/// Run with `REWRITE=1` to bring the page up to date after a change of the protocol.
#[test]
fn the_normative_page_has_the_tables_and_the_example_of_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format/native.md");
    let page = std::fs::read_to_string(path).unwrap();
    let parts = [
        (
            "table client hello",
            table!(hello::RawClient: checksum "u32", version "u16", reserved "zeros",
            magic "ESKNATIV"),
        ),
        (
            "table server hello",
            table!(hello::RawServer: checksum "u32", version "u16", status "u8", marks "u8",
            magic "ESKNATIV", in_flight_max "u32", request_size_max "u32", reply_size_max "u32",
            key_size_max "u32", value_size_max "u32", reserved "zeros"),
        ),
        (
            "table frame header",
            table!(frame::Raw: checksum "u32", payload_size "u32", id "u32", opcode "u8",
            status "u8", reserved "zeros"),
        ),
        ("statuses", statuses()),
        ("example", hex(&frame(1, &example()))),
    ];
    let mut fresh = page.clone();
    for (name, text) in parts {
        let begin = format!("<!-- {name} -->\n");
        let start = fresh.find(&begin).unwrap_or_else(|| panic!("{name} is missing")) + begin.len();
        let end = start + fresh[start..].find("<!-- end -->").unwrap();
        fresh.replace_range(start..end, &text);
    }
    if std::env::var_os("REWRITE").is_some() {
        std::fs::write(path, &fresh).unwrap();
    }
    assert_eq!(page, fresh, "docs/format/native.md is out of date: REWRITE=1");
}

#[test]
fn the_page_has_a_row_for_each_opcode() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format/native.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (_, table) = page.split_once("| opcode | request |").unwrap();
    let rows = table.lines().skip(2).take_while(|line| !line.is_empty());
    let told: Vec<String> =
        rows.map(|row| row.split('|').take(3).collect::<String>().trim().to_owned()).collect();
    let of_code = |opcode: &Opcode| {
        let name = format!("{opcode:?}").replace("MultiGet", "multi_get").to_lowercase();
        format!("{}  {name}", *opcode as u8)
    };
    // Goodbye is none of a request.
    assert_eq!(told, Opcode::ALL[1..].iter().map(of_code).collect::<Vec<_>>());
}

#[test]
fn what_a_backup_did_comes_back_and_nothing_of_it_may_be_missing() {
    let mut rng = Rng::from_seed(5);
    for _ in 0..100 {
        let report = BackupReport {
            segments_copied: rng.next_u64(),
            bytes_copied: rng.next_u64(),
            segments_reused: rng.next_u64(),
            last_version: Version(rng.next_u64()),
        };
        let text = report.to_string();
        assert_eq!(BackupReport::decode(text.as_bytes()), Ok(report));
        // A later server may tell more.
        assert_eq!(
            BackupReport::decode(format!("more 1\n{text}words of it\n").as_bytes()),
            Ok(report)
        );
        for missing in 0..4 {
            let lines = text.lines().enumerate().filter(|(number, _)| *number != missing);
            let rest: Vec<&str> = lines.map(|(_, line)| line).collect();
            assert!(BackupReport::decode(rest.join("\n").as_bytes()).is_err(), "{rest:?}");
        }
    }
    let text = BackupReport::default().to_string();
    for wrong in
        [text.replace('0', "-1"), text.replace('0', ""), text.replace('0', "99999999999999999999")]
    {
        assert_eq!(BackupReport::decode(wrong.as_bytes()), Err(Flaw::Field("segments_copied")));
    }
}

#[test]
fn numbers_of_opcodes_and_statuses_come_back_and_are_each_their_own() {
    for (number, opcode) in (0_u8..).zip(Opcode::ALL) {
        assert_eq!((opcode as u8, Opcode::from_number(number)), (number, Some(opcode)));
    }
    assert_eq!(Opcode::from_number(Opcode::ALL.len() as u8), None);
    let all = Status::PLAIN.map(|(status, _)| status).into_iter();
    let all: Vec<Status> = all.chain(ErrorKind::ALL.map(Status::Failed)).collect();
    for status in &all {
        assert_eq!(Status::from_number(status.number()), Some(*status));
        assert!(!status.words().is_empty());
    }
    let known = (0..=u8::MAX).filter(|number| Status::from_number(*number).is_some()).count();
    assert_eq!(known, all.len(), "no two have one number");
}

#[test]
fn hellos_come_back_and_any_changed_bit_is_noticed() {
    let client = ClientHello { version: 3 };
    let server = ServerHello {
        version: 1,
        status: Status::TooManyConnections,
        authenticate: true,
        in_flight_max: 1,
        request_size_max: 2,
        reply_size_max: 3,
        key_size_max: 4,
        value_size_max: 5,
    };
    assert_eq!(ClientHello::decode(&client.encode()), Ok(client));
    assert_eq!(ServerHello::decode(&server.encode()), Ok(server));
    for bit in 0..CLIENT_HELLO_SIZE * 8 {
        let mut bytes = client.encode();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(ClientHello::decode(&bytes).is_err(), "bit {bit}");
    }
    for bit in 0..SERVER_HELLO_SIZE * 8 {
        let mut bytes = server.encode();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(ServerHello::decode(&bytes).is_err(), "bit {bit}");
    }
}

fn bytes(rng: &mut Rng, max: usize) -> Vec<u8> {
    let mut bytes = vec![0; rng.index(max + 1)];
    rng.fill(&mut bytes);
    bytes
}

fn key(rng: &mut Rng) -> Vec<u8> {
    let size = match rng.below(20) {
        0 => KEY_SIZE_MAX_BYTES,
        1 => KEY_SIZE_MAX_BYTES - 1,
        _ => 1 + rng.index(40),
    };
    vec![rng.below(256) as u8; size]
}

fn attributes(rng: &mut Rng) -> Attributes {
    let flags = if rng.chance(1, 2) { rng.next_u64() as u32 } else { 0 };
    let expires_at = rng.chance(1, 2).then(|| rng.next_u64());
    Attributes { flags, expires_at, state: rng.below(16) as u8 }
}

fn condition(rng: &mut Rng) -> Condition {
    match rng.below(4) {
        0 => Condition::Always,
        1 => Condition::Absent,
        2 => Condition::Present,
        _ => Condition::VersionIs(Version(rng.next_u64())),
    }
}

/// Gives any request to `check`.
fn with_request(rng: &mut Rng, check: impl FnOnce(&Request<'_>, &mut Rng)) {
    let (key, value) = (key(rng), bytes(rng, 300));
    match rng.below(11) {
        0 => check(&Request::Ping, rng),
        1 => check(&Request::Authenticate { user: &value, password: &key }, rng),
        2 => check(&Request::Get { key: &key }, rng),
        3 => {
            let mut payload = Vec::new();
            (0..=rng.below(5)).for_each(|_| push_key(&mut payload, &self::key(rng)).unwrap());
            check(&Request::MultiGet(Keys::decode(&payload).unwrap()), rng);
        }
        4 => {
            let (attributes, condition) = (attributes(rng), condition(rng));
            check(&Request::Put(Put { key: &key, value: &value, attributes, condition }), rng);
        }
        5 => {
            let condition = match condition(rng) {
                version @ Condition::VersionIs(_) => version,
                _ => Condition::Always,
            };
            check(&Request::Delete { key: &key, condition }, rng);
        }
        6 => {
            let mut payload = Vec::new();
            for _ in 0..=rng.below(5) {
                let (key, value) = (self::key(rng), bytes(rng, 100));
                let kind = match rng.below(2) {
                    0 => ChangeKind::Delete,
                    _ => ChangeKind::Put(&value, attributes(rng)),
                };
                push_change(&mut payload, &Change { key: &key, kind }).unwrap();
            }
            check(&Request::Batch(Changes::decode(&payload).unwrap()), rng);
        }
        7 => check(&Request::Sync, rng),
        8 => check(&Request::Stats, rng),
        9 => check(&Request::Clear, rng),
        _ => check(&Request::Backup, rng),
    }
}

#[test]
fn requests_come_back_as_they_were_said() {
    let mut rng = Rng::from_seed(1);
    for _ in 0..5000 {
        with_request(&mut rng, |request, rng| {
            let id = rng.next_u64() as u32;
            let frame = frame(id, request);
            let header = FrameHeader::peek(&frame).unwrap();
            assert_eq!((header.id, header.opcode, header.status), (id, request.opcode() as u8, 0));
            let payload = &frame[FRAME_HEADER_SIZE..];
            assert_eq!((header.verify(payload), header.verify_frame(&frame)), (Ok(()), Ok(())));
            assert_eq!(Request::decode(header.opcode, payload).as_ref(), Ok(request));
            // A frame in pieces is the same frame.
            let (one, other) = payload.split_at(rng.index(payload.len() + 1));
            let header = frame_header(id, request.opcode() as u8, Status::Ok, &[one, other]);
            assert_eq!(header.unwrap(), frame[..FRAME_HEADER_SIZE]);
        });
    }
}

#[test]
fn any_changed_bit_of_a_frame_is_noticed() {
    let good = frame(9, &example());
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let noticed = match FrameHeader::peek(&bad) {
            Err(_) => true,
            Ok(header) => header.verify_frame(&bad).is_err(),
        };
        assert!(noticed, "bit {bit}");
    }
}

/// Whatever decodes is what its encoder would write: nothing is guessed at (W2).
fn check_decodes(opcode: u8, payload: &[u8]) {
    let Ok(request) = Request::decode(opcode, payload) else { return };
    let mut again = Vec::new();
    request.encode(&mut again).unwrap();
    assert_eq!(again, payload, "opcode {opcode}");
    match request {
        Request::MultiGet(keys) => {
            let mut payload = Vec::new();
            keys.iter().for_each(|key| push_key(&mut payload, key).unwrap());
            assert_eq!(payload, again);
        }
        Request::Batch(changes) => {
            let mut payload = Vec::new();
            changes.iter().for_each(|change| push_change(&mut payload, &change).unwrap());
            assert_eq!(payload, again);
        }
        _ => {}
    }
}

#[test]
fn decoders_take_any_bytes() {
    let mut rng = Rng::from_seed(2);
    for _ in 0..200_000 {
        let noise = bytes(&mut rng, 60);
        check_decodes(rng.below(15) as u8, &noise);
        if let Ok(item) = Item::decode(&noise) {
            let head = ItemHead::new(item.version, item.attributes);
            assert_eq!([head.bytes(), item.value].concat(), noise);
        }
        let items = Items::new(&noise).count();
        assert!(items <= noise.len() / MULTI_GET_ENTRY_SIZE + 1);
        let _ = decode_version(&noise);
        assert!(BackupReport::decode(&noise).is_err());
        if let Ok(header) = FrameHeader::peek(&noise) {
            assert!(header.verify_frame(&noise).is_err(), "noise has no checksum");
        }
        if let Some(hello) = noise.first_chunk() {
            assert!(ClientHello::decode(hello).is_err());
        }
        if let Some(hello) = noise.first_chunk() {
            assert!(ServerHello::decode(hello).is_err());
        }
    }
}

#[test]
fn decoders_take_requests_that_were_changed() {
    let mut rng = Rng::from_seed(3);
    for _ in 0..20_000 {
        with_request(&mut rng, |request, rng| {
            let mut payload = Vec::new();
            request.encode(&mut payload).unwrap();
            payload.truncate(payload.len().min(400));
            for _ in 0..rng.below(4) {
                if !payload.is_empty() {
                    let place = rng.index(payload.len());
                    payload[place] = rng.below(256) as u8;
                }
            }
            payload.truncate(rng.index(payload.len() + 1));
            check_decodes(request.opcode() as u8, &payload);
            check_decodes(rng.below(13) as u8, &payload);
        });
    }
}

#[test]
fn sizes_that_a_peer_names_are_compared_with_what_is_there() {
    // A put of a key that is longer than the payload, a batch of a value of 4 GiB, an item of 4 GiB.
    assert_eq!(Request::decode(5, b"\x00\x00\x00k"), Err(Flaw::TooShort));
    assert_eq!(Request::decode(7, b"\x00\x01\x00\xFF\xFF\xFF\xFFk"), Err(Flaw::TooShort));
    let items: Vec<_> = Items::new(b"\xFF\xFF\xFF\xFFx").collect();
    assert_eq!(items, [Err(Flaw::TooShort)], "and no further entry");
}

#[test]
fn what_cannot_be_said_is_refused() {
    let long = vec![0; KEY_SIZE_MAX_BYTES + 1];
    for key in [&b""[..], &long] {
        let (attributes, condition) = (Attributes::default(), Condition::Always);
        for request in [
            Request::Get { key },
            Request::Delete { key, condition },
            Request::Put(Put { key, value: b"", attributes, condition }),
        ] {
            assert_eq!(request.encode(&mut Vec::new()), Err(Flaw::Field("key")));
        }
        let mut payload = Vec::new();
        assert_eq!(push_key(&mut payload, key), Err(Flaw::Field("key")));
        let change = Change { key, kind: ChangeKind::Delete };
        assert_eq!(push_change(&mut payload, &change), Err(Flaw::Field("key")));
        assert!(payload.is_empty());
    }
    let delete = Request::Delete { key: b"k", condition: Condition::Absent };
    assert_eq!(delete.encode(&mut Vec::new()), Err(Flaw::Field("condition")));
    let user = vec![0; 1 << 16];
    let who = Request::Authenticate { user: &user, password: b"" };
    assert_eq!(who.encode(&mut Vec::new()), Err(Flaw::Field("user")));
}

#[test]
fn items_come_back_alone_and_together() {
    let mut rng = Rng::from_seed(4);
    for _ in 0..1000 {
        let found: Vec<Option<(Version, Attributes, Vec<u8>)>> = (0..rng.below(6))
            .map(|_| {
                let item = (Version(rng.next_u64()), attributes(&mut rng), bytes(&mut rng, 50));
                rng.chance(2, 3).then_some(item)
            })
            .collect();
        let mut payload = Vec::new();
        for item in &found {
            let whole = item.as_ref().map(|(version, attributes, value)| {
                [ItemHead::new(*version, *attributes).bytes(), value].concat()
            });
            payload.extend(multi_get_entry(whole.as_ref().map(Vec::len)).unwrap());
            payload.extend(whole.unwrap_or_default());
        }
        let read: Vec<_> = Items::new(&payload)
            .map(|item| {
                let item = item.unwrap();
                item.map(|item| (item.version, item.attributes, item.value.to_vec()))
            })
            .collect();
        assert_eq!(read, found);
    }
}
