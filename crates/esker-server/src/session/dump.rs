//! Lists of items: `lru_crawler metadump`, `lru_crawler mgdump`, `stats cachedump`.
//!
//! A walk over the store, whose items come in no order. They are sent as they are met, so that a list takes no
//! more memory than the walk does.
//!
//! # Failure
//! What cannot be read is counted and logged, and left out; so is a value larger than items may be for which there is no
//! memory. The list of a server that stops breaks off.

use super::Session;
use crate::escaped::Escaped;
use crate::execute::Ground;
use crate::expiry::is_expired;
use crate::item::{BINARY_KEY, Item};
use crate::limits::{UNCHARGED_BYTES_MAX, UNIT_WORK};
use crate::output::Output;
use crate::patience::Progress;
use crate::protocol::base64::encode;
use crate::protocol::{CRLF, DumpForm, DumpRequest, is_plain, line};
use crate::shared::Shared;
use crate::transport::Transport;
use esker::{Error, ErrorKind};
use std::io::{ErrorKind as IoErrorKind, Result as IoResult};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most bytes that `stats cachedump` lists, as in memcached.
const SIZES_BYTES_MAX: u64 = 2 << 20;
/// Memory of a walk, beside the longest value: no more than half of it for what it reads ahead.
const WALK_BYTES: u64 = 16 << 20;

/// The only one who may walk over all items, until it is dropped.
struct Turn(Arc<Shared>);

impl Turn {
    fn take(shared: &Arc<Shared>) -> Option<Turn> {
        (!shared.dumping.swap(true, Ordering::AcqRel)).then(|| Turn(shared.clone()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.dumping.store(false, Ordering::Release);
    }
}

impl<T: Transport> Session<T> {
    /// Sends a line for each item.
    pub(super) fn dump(&mut self, request: DumpRequest) -> IoResult<()> {
        let DumpRequest { form, all, limit } = request;
        if !self.shared.dump_enabled {
            self.output.push(match form {
                DumpForm::Figures => line::NO_METADUMP,
                DumpForm::Requests => line::NO_MGDUMP,
                DumpForm::Sizes => line::NO_CACHEDUMP,
            });
            return Ok(());
        }
        if all {
            // Nobody waits for memory while it holds replies.
            self.flush()?;
            let Some(turn) = Turn::take(&self.shared) else {
                self.output.push(line::BUSY);
                return Ok(());
            };
            let bytes = self.shared.limits.item_size_max_bytes.saturating_add(WALK_BYTES);
            let bytes = bytes.min(self.shared.budget.total_bytes() / 2);
            let Some(share) = self.shared.take_waiting(bytes) else {
                self.output.push(line::NO_MEMORY_GET);
                return Ok(());
            };
            self.list(form, limit, share.bytes())?;
            drop((share, turn));
        }
        self.output.push(match form {
            DumpForm::Requests => line::META_MISS,
            DumpForm::Figures | DumpForm::Sizes => line::END,
        });
        Ok(())
    }

    fn list(&mut self, form: DumpForm, limit: u64, memory_bytes: u64) -> IoResult<()> {
        self.shared.flush_if_due(self.core);
        // What one value may take of that; the store may hold items from a time with another limit.
        let of_value = self.shared.limits.item_size_max_bytes.saturating_add(WALK_BYTES / 2);
        let of_value = of_value.min(memory_bytes);
        let mut beyond = self.shared.budget.nothing();
        let mut items = self.shared.store.iter();
        let (mut count, mut bytes) = (0_u64, 0_u64);
        // Of the whole list: who takes it holds the memory of the walk, and the only turn.
        let mut progress = Progress::sending(&self.shared);
        let mut walks_since = self.shared.clock.monotonic();
        loop {
            beyond.shrink_to(0);
            let met = items.next_with(|bytes| {
                let more = bytes.saturating_sub(of_value).saturating_sub(beyond.bytes());
                match beyond.try_grow(more) {
                    true => Ok(()),
                    false => Err(Error::new(ErrorKind::OutOfMemory, "list item")),
                }
            });
            let Some(met) = met else { break };
            esker_trt::work(UNIT_WORK);
            if self.shared.is_stopping() {
                return Err(IoErrorKind::Interrupted.into());
            }
            let (key, value) = match met {
                Ok((key, value)) => (key, Item::new(value)),
                Err(error) if matches!(error.kind(), ErrorKind::Closed | ErrorKind::Cancelled) => {
                    return Err(IoErrorKind::Interrupted.into());
                }
                Err(error) => {
                    self.ground().report(&error);
                    continue;
                }
            };
            let before = self.output.len();
            push_line(&mut self.output, form, &self.shared.ground(self.core), &key, &value);
            let length = self.output.len().saturating_sub(before) as u64;
            if length > 0 {
                (count, bytes) = (count.saturating_add(1), bytes.saturating_add(length));
            }
            if self.output.uncharged_bytes() >= UNCHARGED_BYTES_MAX {
                progress.pass_over(&self.shared, walks_since);
                self.flush_by(&mut progress)?;
                walks_since = self.shared.clock.monotonic();
            }
            let full = form == DumpForm::Sizes && bytes >= SIZES_BYTES_MAX;
            if count >= limit || full {
                break;
            }
        }
        Ok(())
    }
}

/// The line of an item; none if it is over, or the form has no way to tell its key.
fn push_line(output: &mut Output, form: DumpForm, ground: &Ground<'_>, key: &[u8], item: &Item) {
    let expires_at = item.record().attributes().expires_at;
    if is_expired(expires_at, ground.now) {
        return;
    }
    let binary = item.has(BINARY_KEY) || !is_plain(key);
    match form {
        DumpForm::Figures => {
            output.push_fmt(format_args!("key={}", Escaped(key)));
            match expires_at {
                Some(date) => output.push_fmt(format_args!(" exp={date}")),
                None => output.push(b" exp=-1"),
            }
            let seen = ground.seen(key);
            output.push_fmt(format_args!(
                " la={} cas={} fetch={} cls=1 size={}\n",
                ground.now.saturating_sub(seen.age_seconds),
                item.cas(),
                if seen.fetched { "yes" } else { "no" },
                key.len().saturating_add(item.len()),
            ));
        }
        DumpForm::Requests => {
            output.push(b"mg ");
            if binary {
                encode(key, |piece| output.push(piece));
                output.push(b" b");
            } else {
                output.push(key);
            }
            output.push(CRLF);
        }
        DumpForm::Sizes if binary => {}
        DumpForm::Sizes => {
            output.push(b"ITEM ");
            output.push(key);
            let (length, date) = (item.len(), expires_at.unwrap_or(0));
            output.push_fmt(format_args!(" [{length} b; {date} s]\r\n"));
        }
    }
}
