//! Sessions of memcache's protocol: classic and meta commands, and what comes before the first of them where clients are asked.

use super::{Control, Pieces, both_say};
use crate::session::Session;
use crate::shared::Shared;
use crate::transport::Transport;
use std::cell::RefCell;
use std::io::{IoSlice, Result as IoResult};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((control, stream)) = Control::take(input) else { return };
    let (whole, pieces) = both_say(control, |shared, pieces| told(shared, stream, pieces));
    let has = |word: &[u8]| stream.windows(word.len()).any(|window| window == word);
    if has(b"cachedump") {
        // The first items of those that come in no order.
        return;
    }
    let lines = |text: &[u8]| {
        let mut lines: Vec<Vec<u8>> = text
            .split(|byte| *byte == b'\n')
            // Figures have how many bytes and pieces came.
            .filter(|line| !line.starts_with(b"STAT "))
            .map(<[u8]>::to_vec)
            .collect();
        if has(b"lru_crawler") {
            lines.sort();
        }
        lines
    };
    if lines(&whole) != lines(&pieces) {
        panic!("whole: {}\npieces: {}", whole.escape_ascii(), pieces.escape_ascii());
    }
}

/// What a client is told that sends `stream` and then closes.
fn told(shared: &Arc<Shared>, stream: &[u8], pieces: Pieces) -> Vec<u8> {
    let told = Rc::default();
    let stream = Stream { input: stream.to_vec(), read: 0, told: Rc::clone(&told), pieces };
    Session::new(Arc::clone(shared), 0, stream, shared.budget.nothing()).run();
    told.take()
}

/// A client whose stream stands in memory, and who notes what it is told.
struct Stream {
    input: Vec<u8>,
    read: usize,
    told: Rc<RefCell<Vec<u8>>>,
    pieces: Pieces,
}

impl Transport for Stream {
    fn read(&mut self, into: &mut [u8], _timeout: Option<Duration>) -> IoResult<usize> {
        let count = self.pieces.take(&mut &self.input[self.read..], into);
        self.read += count;
        Ok(count)
    }

    fn write_vectored(
        &mut self,
        slices: &[IoSlice<'_>],
        _timeout: Option<Duration>,
    ) -> IoResult<usize> {
        Ok(self.pieces.put(slices, &mut self.told.borrow_mut()))
    }

    fn holds_back(&self) -> bool {
        false
    }

    fn flush(&mut self, _timeout: Duration) -> IoResult<()> {
        Ok(())
    }

    fn linger(&mut self, _limit: Duration) {}
}

/// Inputs to begin with.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let large = "v".repeat(17 << 10);
    let (size, twice) = (large.len(), 2 * large.len());
    let keys = "k".repeat(250);
    let streams = [
        "set a 1 0 5\r\nhello\r\nget a b\r\nadd a 0 0 1\r\nx\r\nreplace a 0 0 1\r\ny\r\n\
         append a 0 0 2\r\nzz\r\nprepend a 0 0 2\r\n--\r\ngets a\r\ncas a 0 0 1 5\r\nc\r\n"
            .to_owned(),
        "set n 0 0 2\r\n10\r\nincr n 5\r\ndecr n 100\r\nincr a 1\r\ntouch n 100\r\ngat 0 n\r\n\
         gats -1 n\r\ndelete n\r\ndelete n noreply\r\nbget n\r\n"
            .to_owned(),
        "ms k 5 T30 F7 c\r\nhello\r\nmg k v t f s c k O1 h l q\r\nms k 2 MA\r\n!!\r\n\
         ma k N0 J13 D7\r\nmd k I T30 x\r\nmn\r\nme k\r\nmg missing v N30\r\nmg k v R30 E9\r\n"
            .to_owned(),
        "ms Zm9v 3 b\r\nabc\r\nmg Zm9v b k v\r\nmg foo v\r\nme Zm9v b\r\nmd Zm9v b q\r\n"
            .to_owned(),
        "stats\r\nstats settings\r\nstats items\r\nstats conns\r\nstats reset\r\nstats detail on\r\nget a:b c:d\r\nstats detail dump\r\nversion\r\n\
         verbosity 1\r\nflush_all 10 noreply\r\nflush_all\r\ncache_memlimit 64\r\nshutdown\r\n"
            .to_owned(),
        "set k 0 0 1 noreply\r\nx\r\nlru_crawler metadump all\r\nlru_crawler mgdump hash\r\n\
         stats cachedump 1 7\r\nquit\r\nget k\r\n"
            .to_owned(),
        "set k 0 0 1\r\nx\r\nwatch nothing\r\nwatch noreply\r\nget k\r\nwatch fetchers mutations\r\nget k\r\nquit\r\n"
            .to_owned(),
        "set k 0 0 99999\r\nset k 0 0 -1\r\nget k\r\n".to_owned(),
        "set k 0 0 1\r\nlonger than said\r\nmn\r\nGET / HTTP/1.1\r\n".to_owned(),
        format!("set {keys} 0 0 1\r\nx\r\nset {keys}k 0 0 7\r\nflush_a\r\nget {keys} {keys}k\r\n"),
        format!("set big 5 0 {size}\r\n{large}\r\nget big big\r\nmg big s v\r\n"),
        format!(
            "set big 5 0 {twice}\r\n{large}{large}\r\nms big {twice} c\r\n{large}{large}\r\nmn\r\n"
        ),
    ];
    let mut seeds = Vec::new();
    for (number, stream) in (0..).zip(streams) {
        seeds.push([&[0, number], stream.as_bytes()].concat());
    }
    let asked = b"get k\r\nset x 0 0 7\r\nann bob\r\nset x 0 0 10\r\nann secret\r\nset k 0 0 1\r\nv\r\nget k\r\n";
    seeds.push([&[1, 1], &asked[..]].concat());
    seeds
}
