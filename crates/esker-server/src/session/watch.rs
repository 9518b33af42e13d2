//! `watch`: from here on the connection is told what happens in the server, until it ends.
//!
//! As in memcached, nothing that the client sends afterwards is looked at, and there is no way back. A watcher may be silent for as long
//! as it likes, and take its lines as slowly as it likes while there is memory: its queue is all that it ever holds.
//!
//! # Failure
//! Lines that were not sent when the connection breaks are lost. When the server stops, what there is is sent, and the stream ends.

use super::{End, Session};
use crate::counters::Counter;
use crate::guests::Doing;
use crate::patience::Progress;
use crate::protocol::{WatchKinds, line};
use crate::transport::Transport;
use crate::watch::{Place, WATCHER_BYTES};
use std::io::{ErrorKind as IoErrorKind, Result as IoResult};
use std::time::Duration;

/// How long a watcher without lines rests until it looks again: longer each time that there were none. It sees meanwhile when
/// the client goes, but not when lines come; a queue takes thousands of them until it does.
const REST_MIN: Duration = Duration::from_millis(1);
const REST_MAX: Duration = Duration::from_millis(20);

impl<T: Transport> Session<T> {
    /// Makes a watcher of the connection, if it may be one, and says how that ended. `None`: a word was no kind.
    pub(super) fn watch(&mut self, kinds: Option<WatchKinds>) -> IoResult<Option<End>> {
        let begun = match kinds {
            _ if !self.shared.watch_enabled => Err(line::NO_WATCH),
            None => Err(line::ERROR),
            Some(kinds) => Place::take(&self.shared, kinds).ok_or(line::TOO_MANY_WATCHERS),
        };
        let begun = begun.and_then(|place| {
            let share = self.shared.budget.try_take(WATCHER_BYTES);
            share.map(|share| (place, share)).ok_or(line::WATCHER_FAILED)
        });
        let (place, _share) = match begun {
            Ok(begun) => begun,
            Err(line) => {
                self.output.push(line);
                return Ok(None);
            }
        };
        self.output.push(line::OK);
        self.flush()?;
        self.rest();
        self.pocket = None;
        self.received.consume(usize::MAX);
        self.shrink();
        self.note_doing(Doing::Watches);
        self.tell_lines(&place).map(Some)
    }

    fn tell_lines(&mut self, place: &Place) -> IoResult<End> {
        let mut rest = REST_MIN;
        let mut lines = Vec::new();
        loop {
            let stops = self.shared.is_stopping();
            place.take_lines(&mut lines);
            let were_none = lines.is_empty();
            self.output.push(&lines);
            lines.clear();
            self.flush_by(&mut Progress::streaming(&self.shared))?;
            if !were_none {
                rest = (rest / 2).max(REST_MIN);
                continue;
            }
            if stops {
                return Ok(End::Shutdown);
            }
            let mut scrap = [0; 512];
            match self.connection.read(&mut scrap, Some(rest)) {
                Ok(0) => return Ok(End::Client),
                Ok(count) => self.count(Counter::BytesRead, count as u64),
                Err(error) if error.kind() == IoErrorKind::TimedOut => {
                    rest = (rest + rest / 8).min(REST_MAX);
                }
                Err(error) => return Err(error),
            }
        }
    }
}
