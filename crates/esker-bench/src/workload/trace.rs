//! Traces: recorded requests, one a line, comma-separated.
//!
//! Two forms. With a header that names its columns, among them `op` and `key`, and `key_size`, `value_size` and
//! `time` (seconds) if the trace has them. Without a header, the seven columns of Twitter's cache traces: time,
//! key, key size, value size, client, operation, time to live.
//!
//! Operations: `get`, `gets`, `read` read; `set`, `add`, `replace`, `cas`, `append`, `prepend`, `write`, `put`,
//! `update`, `insert` write; `incr`, `decr` read and write; `delete` deletes. A key that is shorter than its
//! size (traces are anonymised) is filled up.
//!
//! Requests are spread over clients by key, so that those on one key keep their order. Values carry no
//! number, so that reads are checked for their size only, where the trace wrote the key before.

use super::Operation;
use super::distribution::scatter;
use crate::failure::{Failure, Outcome};
use crate::files;
use crate::numbers::real;
use std::collections::{BTreeMap, HashMap};
use std::io::BufRead;
use std::path::Path;

/// Most requests that are kept in memory.
pub const REQUESTS_MAX: usize = 50_000_000;

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRequest {
    /// What to do.
    pub operation: Operation,
    key_start: u64,
    key_length: u32,
    /// Bytes of the value, for writes.
    pub value_size: u32,
    /// Bytes of the value that a read finds; `None` where the trace wrote none before.
    pub expected: Option<u32>,
    /// Microseconds since the trace began.
    pub time_micros: u64,
}

/// Sizes of what a trace writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceSizes {
    /// Keys that are written.
    pub records: u64,
    /// Bytes of those, together.
    pub key_bytes: u64,
    /// Bytes of the longest values of each, together.
    pub value_bytes: u64,
    /// Share of requests that write.
    pub write_share: f64,
}

/// A trace in memory.
#[derive(Debug, Default)]
pub struct Trace {
    keys: Vec<u8>,
    requests: Vec<TraceRequest>,
}

struct Columns {
    time: Option<usize>,
    key: usize,
    key_size: Option<usize>,
    value_size: Option<usize>,
    operation: usize,
}

impl Columns {
    /// Twitter's cache traces.
    const TWITTER: Columns =
        Columns { time: Some(0), key: 1, key_size: Some(2), value_size: Some(3), operation: 5 };

    /// Those that a first line names, if it is a header.
    fn named(line: &str) -> Option<Columns> {
        let names: BTreeMap<String, usize> = line
            .split(',')
            .enumerate()
            .map(|(place, name)| (name.trim().to_ascii_lowercase().replace([' ', '-'], "_"), place))
            .collect();
        let place = |all: &[&str]| all.iter().find_map(|name| names.get(*name).copied());
        Some(Columns {
            time: place(&["time", "timestamp"]),
            key: place(&["key", "anonymized_key"])?,
            key_size: place(&["key_size"]),
            value_size: place(&["value_size", "size"]),
            operation: place(&["op", "operation"])?,
        })
    }
}

fn operation(word: &str) -> Option<Operation> {
    Some(match word.trim().to_ascii_lowercase().as_str() {
        "get" | "gets" | "read" => Operation::Read,
        "set" | "add" | "replace" | "cas" | "append" | "prepend" | "write" | "put" | "update"
        | "insert" => Operation::Update,
        "incr" | "decr" | "rmw" => Operation::ReadModifyWrite,
        "delete" => Operation::Delete,
        _ => return None,
    })
}

impl Trace {
    /// Reads the trace in the file at `path`; at most `limit` requests of it, if there is a limit.
    ///
    /// # Errors
    /// Lines without meaning, by number; more than [`REQUESTS_MAX`] requests.
    pub fn read(path: &Path, limit: Option<u64>) -> Outcome<Trace> {
        Self::parse(files::lines(path)?, limit).map_err(|failure| failure.during(path.display()))
    }

    /// As [`Trace::read`], from any lines.
    ///
    /// # Errors
    /// As for [`Trace::read`].
    pub fn parse(lines: impl BufRead, limit: Option<u64>) -> Outcome<Trace> {
        let mut trace = Trace::default();
        let mut columns = None;
        // Sizes of the values that there are, as far as the trace tells.
        let mut written = HashMap::new();
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        for (number, line) in lines.lines().enumerate() {
            let line = line?;
            if line.trim().is_empty() {
                continue;
            }
            let columns = match &columns {
                Some(columns) => columns,
                None => {
                    let named = Columns::named(&line);
                    let is_header = named.is_some();
                    let known = columns.insert(named.unwrap_or(Columns::TWITTER));
                    if is_header {
                        continue;
                    }
                    known
                }
            };
            trace
                .add(columns, &line, &mut written)
                .map_err(|failure| failure.during(format!("line {}", number + 1)))?;
            if trace.requests.len() >= limit {
                break;
            }
            if trace.requests.len() > REQUESTS_MAX {
                return Err(Failure::new(format!("more than {REQUESTS_MAX} requests")));
            }
        }
        Ok(trace)
    }

    fn add(
        &mut self,
        columns: &Columns,
        line: &str,
        written: &mut HashMap<Vec<u8>, u32>,
    ) -> Outcome<()> {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let field = |place: usize| fields.get(place).copied().unwrap_or_default();
        let number = |place: Option<usize>| -> Outcome<Option<u64>> {
            let Some(place) = place else { return Ok(None) };
            let text = field(place);
            text.parse().map(Some).map_err(|_| Failure::new(format!("{text:?} is no number")))
        };
        let operation = operation(field(columns.operation)).ok_or_else(|| {
            Failure::new(format!("{:?} is no operation", field(columns.operation)))
        })?;
        let key = field(columns.key).as_bytes();
        if key.is_empty() {
            return Err(Failure::new("no key"));
        }
        let key_start = self.keys.len() as u64;
        self.keys.extend_from_slice(key);
        let wanted = number(columns.key_size)?.unwrap_or(0).min(1 << 16);
        for _ in key.len() as u64..wanted {
            self.keys.push(b'k');
        }
        let key_length = u32::try_from(self.keys.len() as u64 - key_start)?;
        let value_size = u32::try_from(number(columns.value_size)?.unwrap_or(100))?;
        let time = match columns.time {
            Some(place) => field(place).parse::<f64>().unwrap_or(0.0),
            None => 0.0,
        };
        let time_micros = crate::numbers::whole(time * 1e6);
        let key = self.keys.get(crate::numbers::size(key_start)..).unwrap_or_default();
        let before = match operation {
            Operation::Delete => written.remove(key),
            Operation::Read => written.get(key).copied(),
            _ => written.insert(key.to_owned(), value_size),
        };
        let reads = matches!(operation, Operation::Read | Operation::ReadModifyWrite);
        self.requests.push(TraceRequest {
            operation,
            key_start,
            key_length,
            value_size,
            expected: before.filter(|_| reads),
            time_micros,
        });
        Ok(())
    }

    /// All requests, in order.
    #[must_use]
    pub fn requests(&self) -> &[TraceRequest] {
        &self.requests
    }

    /// The key of a request.
    #[must_use]
    pub fn key(&self, request: &TraceRequest) -> &[u8] {
        let start = crate::numbers::size(request.key_start);
        self.keys.get(start..start + request.key_length as usize).unwrap_or_default()
    }

    /// Which of `clients` clients sends a request.
    #[must_use]
    pub fn client(&self, request: &TraceRequest, clients: u64) -> u64 {
        let hash = self
            .key(request)
            .iter()
            .fold(0_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(1_099_511_628_211));
        scatter(hash) % clients.max(1)
    }

    /// What systems that have a size are made for: every key that is written, with its longest value.
    #[must_use]
    pub fn sizes(&self) -> TraceSizes {
        let mut values: HashMap<&[u8], u64> = HashMap::new();
        let mut writes = 0_u64;
        for request in &self.requests {
            if request.operation.is_write() && request.operation != Operation::Delete {
                let longest = values.entry(self.key(request)).or_default();
                *longest = (*longest).max(u64::from(request.value_size));
            }
            writes += u64::from(request.operation.is_write());
        }
        TraceSizes {
            records: values.len() as u64,
            key_bytes: values.keys().map(|key| key.len() as u64).sum(),
            value_bytes: values.values().sum(),
            write_share: real(writes) / real(self.requests.len().max(1) as u64),
        }
    }

    /// Longest value in bytes.
    #[must_use]
    pub fn value_size_max(&self) -> u64 {
        self.requests.iter().map(|request| u64::from(request.value_size)).max().unwrap_or(0)
    }
}
