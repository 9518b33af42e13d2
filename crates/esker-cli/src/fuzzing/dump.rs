//! Dumps, and traces of requests for benchmarks: files of lines.

use crate::dump::{line_of, read_all};
use esker::Attributes;
use esker_bench::workload::trace::Trace;
use std::io::{BufReader, Cursor};

/// Requests of a trace that are read at most: the keys of each may be long.
const REQUESTS_MAX: u64 = 20;

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((kind, text)) = input.split_first() else { return };
    match kind % 2 {
        0 => dump(text),
        _ => trace(text),
    }
}

fn dump(text: &[u8]) {
    let read = read_all(Cursor::new(text.to_vec()));
    let pieces = read_all(BufReader::with_capacity(3, Cursor::new(text.to_vec())));
    assert_eq!(read, pieces, "however it is read");
    let Ok(items) = read else { return };
    let mut again = b"{\"format\":\"esker-dump\",\"version\":1}\n".to_vec();
    for (key, value, attributes) in &items {
        again.extend(line_of(key, value, *attributes).expect("JSON").into_bytes());
        again.push(b'\n');
    }
    again.extend(format!("{{\"items\":{}}}\n", items.len()).into_bytes());
    assert_eq!(read_all(Cursor::new(again)), Ok(items));
}

fn trace(text: &[u8]) {
    let Ok(trace) = Trace::parse(text, Some(REQUESTS_MAX)) else { return };
    assert!(trace.requests().len() as u64 <= REQUESTS_MAX);
    for request in trace.requests() {
        assert!(!trace.key(request).is_empty() && trace.client(request, 3) < 3);
        assert!(u64::from(request.value_size) <= trace.value_size_max());
    }
}

/// Inputs to begin with.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let attributes = Attributes { flags: 7, expires_at: Some(1_767_225_600), state: 3 };
    let mut dump = b"\0{\"format\":\"esker-dump\",\"version\":1}\n".to_vec();
    for (key, value) in [(&b"key"[..], &b"more \"text\"\n"[..]), (b"\xff", b"\0\xfe")] {
        dump.extend(line_of(key, value, attributes).expect("JSON").into_bytes());
        dump.push(b'\n');
    }
    dump.extend(b"{\"items\":2}\n");
    vec![
        dump,
        b"\x01time,key,key_size,value_size,op\n0.5,k,30,100,set\n1,k,,,get\n2,k,,5,incr\n".to_vec(),
        b"\x010,key,9,200,1,set,0\n1,key,9,0,1,get,0\n1,key,9,0,1,delete,0\n".to_vec(),
    ]
}
