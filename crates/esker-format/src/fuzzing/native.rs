//! The native protocol: hellos, frames and requests as a server reads them, replies as a client does.

use super::choose;
use crate::native::{
    Attributes, BackupReport, Change, ChangeKind, Changes, ClientHello, Condition,
    FRAME_HEADER_SIZE, FrameHeader, Item, ItemHead, Items, Keys, Opcode, Put, Request, ServerHello,
    Status, VERSION, begin_frame, decode_version, encode_version, end_frame, multi_get_entry,
    push_change, push_key,
};
use esker_base::ids::Version;

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((decoder, bytes)) = input.split_first() else { return };
    match decoder % 5 {
        0 => hellos(bytes),
        1 => frame(bytes),
        2 => {
            let Some((opcode, payload)) = bytes.split_first() else { return };
            request(*opcode, payload);
        }
        3 => items(bytes),
        _ => words(bytes),
    }
}

fn hellos(bytes: &[u8]) {
    if let Some(hello) = bytes.first_chunk()
        && let Ok(decoded) = ClientHello::decode(hello)
    {
        assert_eq!(decoded.encode(), *hello);
    }
    if let Some(hello) = bytes.first_chunk()
        && let Ok(decoded) = ServerHello::decode(hello)
    {
        assert_eq!(decoded.encode(), *hello);
    }
}

fn frame(bytes: &[u8]) {
    let Ok(header) = FrameHeader::peek(bytes) else { return };
    let size = usize::try_from(header.payload_size).ok();
    let size = size.and_then(|size| size.checked_add(FRAME_HEADER_SIZE));
    let Some(frame) = size.and_then(|size| bytes.get(..size)) else { return };
    let payload = &frame[FRAME_HEADER_SIZE..];
    assert_eq!(header.verify(payload), header.verify_frame(frame));
    if header.verify_frame(frame).is_err() {
        return;
    }
    if let Some(status) = Status::from_number(header.status) {
        let mut again = Vec::new();
        let start = begin_frame(&mut again);
        again.extend_from_slice(payload);
        assert_eq!(end_frame(&mut again, start, header.id, header.opcode, status), Ok(()));
        assert_eq!(again, frame);
        let _ = status.words();
    }
    request(header.opcode, payload);
}

/// What decodes is what its encoder writes (W2).
fn request(opcode: u8, payload: &[u8]) {
    let Ok(request) = Request::decode(opcode, payload) else { return };
    assert_eq!(request.opcode() as u8, opcode);
    let mut again = Vec::new();
    assert_eq!(request.encode(&mut again), Ok(()));
    assert_eq!(again, payload);
    again.clear();
    match request {
        Request::MultiGet(keys) => {
            keys.iter().for_each(|key| assert_eq!(push_key(&mut again, key), Ok(())));
        }
        Request::Batch(changes) => {
            changes.iter().for_each(|one| assert_eq!(push_change(&mut again, &one), Ok(())));
        }
        _ => return,
    }
    assert_eq!(again, payload, "entry by entry");
}

fn items(bytes: &[u8]) {
    if let Ok(item) = Item::decode(bytes) {
        let head = ItemHead::new(item.version, item.attributes);
        assert_eq!([head.bytes(), item.value].concat(), bytes);
    }
    let (mut again, mut broken) = (Vec::new(), false);
    for item in Items::new(bytes) {
        assert!(!broken, "nothing follows an error");
        let Ok(item) = item else {
            broken = true;
            continue;
        };
        let head = item.map(|item| ItemHead::new(item.version, item.attributes));
        let whole = item.zip(head).map(|(item, head)| [head.bytes(), item.value].concat());
        let entry = multi_get_entry(whole.as_ref().map(Vec::len)).expect("it came from there");
        again.extend(entry);
        again.extend(whole.unwrap_or_default());
    }
    assert_eq!(again, bytes[..again.len()]);
    assert!(broken || again.len() == bytes.len());
}

fn words(bytes: &[u8]) {
    if let Ok(version) = decode_version(bytes) {
        assert_eq!(encode_version(version), bytes);
    }
    if let Ok(report) = BackupReport::decode(bytes) {
        assert_eq!(BackupReport::decode(report.to_string().as_bytes()), Ok(report));
    }
}

fn example_requests() -> Vec<Vec<u8>> {
    let attributes = Attributes { flags: 7, expires_at: Some(1_767_225_600), state: 3 };
    let (mut keys, mut changes) = (Vec::new(), Vec::new());
    for key in [&b"one"[..], b"two"] {
        push_key(&mut keys, key).expect("a key");
        let kind = ChangeKind::Put(b"value", attributes);
        push_change(&mut changes, &Change { key, kind }).expect("a change");
    }
    push_change(&mut changes, &Change { key: b"gone", kind: ChangeKind::Delete })
        .expect("a change");
    let condition = Condition::VersionIs(Version(77));
    let put = Put { key: b"key", value: b"value", attributes, condition };
    let requests = [
        Request::Ping,
        Request::Authenticate { user: b"ann", password: b"secret" },
        Request::Get { key: b"key" },
        Request::MultiGet(Keys::decode(&keys).expect("keys")),
        Request::Put(put),
        Request::Put(Put {
            condition: Condition::Absent,
            attributes: Attributes::default(),
            ..put
        }),
        Request::Delete { key: b"key", condition },
        Request::Batch(Changes::decode(&changes).expect("changes")),
        Request::Sync,
    ];
    let frame = |(id, request): (u32, &Request<'_>)| {
        let mut frame = Vec::new();
        let start = begin_frame(&mut frame);
        request.encode(&mut frame).expect("it can be said");
        end_frame(&mut frame, start, id, request.opcode() as u8, Status::Ok).expect("short");
        frame
    };
    (1..).zip(&requests).map(frame).collect()
}

/// Inputs to begin with.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let hello = ServerHello { authenticate: true, ..ServerHello::refusal(Status::Ok) };
    let attributes = Attributes { flags: 7, expires_at: Some(1_767_225_600), state: 3 };
    let head = ItemHead::new(Version(77), attributes);
    let item = [head.bytes(), b"value"].concat();
    let entry = |size| multi_get_entry(size).expect("short");
    let reply = [&entry(Some(item.len()))[..], &item, &entry(None)].concat();
    let mut seeds = vec![
        choose(0, ClientHello { version: VERSION }.encode()),
        choose(0, hello.encode()),
        choose(3, item),
        choose(3, reply),
        choose(4, encode_version(Version(77))),
        choose(4, BackupReport::default().to_string()),
    ];
    for frame in example_requests() {
        let opcode = Opcode::ALL[usize::from(frame[12])];
        seeds.push(choose(2, [&[opcode as u8], &frame[FRAME_HEADER_SIZE..]].concat()));
        seeds.push(choose(1, frame));
    }
    seeds
}
