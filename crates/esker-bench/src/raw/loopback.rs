//! What the loopback network gives: round trips of one message, by connections, with tasks of the run-time on
//! both sides.

use super::{measured, row};
use crate::document::Row;
use crate::failure::{Failure, Outcome};
use crate::numbers::nanos;
use esker_base::clock::{Clock, SystemClock};
use esker_base::ids::CoreId;
use esker_trt::net::Stream;
use esker_trt::{Config, Facility, Runtime};
use hdrhistogram::Histogram;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// Bytes of a message.
pub const MESSAGE_BYTES: usize = 100;

/// Round trips over `connections` connections at once, one message in flight on each, for `time`.
///
/// # Errors
/// Those of sockets and the run-time.
pub fn run(connections: usize, facility: Facility, time: Duration) -> Outcome<Row> {
    let config = Config { cores: 2, facilities: vec![facility], ..Config::default() };
    let runtime = Runtime::start(config)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let mut echoes = Vec::new();
    let mut clients = Vec::new();
    let end = SystemClock.monotonic() + time;
    let start = SystemClock.monotonic();
    for _ in 0..connections {
        let near = TcpStream::connect(address)?;
        let (far, _) = listener.accept()?;
        near.set_nodelay(true)?;
        far.set_nodelay(true)?;
        echoes.push(runtime.spawn_on(CoreId(1), move || echo(far)));
        clients.push(runtime.spawn_on(CoreId(0), move || ask(near, end)));
    }
    let mut latencies = Histogram::<u64>::new(3)?;
    for client in clients {
        latencies.add(client.join()??)?;
    }
    let seconds = SystemClock.monotonic().saturating_sub(start).as_secs_f64();
    for echo in echoes {
        echo.join()??;
    }
    runtime.shutdown()?;
    let row = row(&format!("trt-{facility}"), "loopback-round-trip", connections);
    let row = Row { value_size: MESSAGE_BYTES as u64, ..row };
    Ok(measured(row, latencies.len(), seconds, &latencies))
}

/// Sends back what comes, until the other side closes.
fn echo(stream: TcpStream) -> Outcome<()> {
    let stream = Stream::try_from(stream)?;
    let mut buffer = [0; MESSAGE_BYTES];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => stream.write_all(buffer.get(..count).unwrap_or_default())?,
        }
    }
}

fn ask(stream: TcpStream, end: Duration) -> Outcome<Histogram<u64>> {
    let stream = Stream::try_from(stream)?;
    let mut latencies = Histogram::new(3)?;
    let message = [7; MESSAGE_BYTES];
    let mut buffer = [0; MESSAGE_BYTES];
    let mut now = SystemClock.monotonic();
    while now < end {
        stream.write_all(&message)?;
        let mut seen = 0;
        while seen < MESSAGE_BYTES {
            match stream.read(buffer.get_mut(seen..).unwrap_or_default())? {
                0 => return Err(Failure::new("the other side closed")),
                count => seen += count,
            }
        }
        let done = SystemClock.monotonic();
        latencies.record(nanos(done.saturating_sub(now)).max(1))?;
        now = done;
    }
    Ok(latencies)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back() {
        let row = run(3, Facility::Sync, Duration::from_millis(30)).unwrap();
        assert!(row.ops > 0 && row.p50_us > 0.0);
    }
}
