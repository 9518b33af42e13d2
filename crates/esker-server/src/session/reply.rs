//! What units answer, as bytes.

use super::Session;
use super::plan::no_memory_line;
use crate::budget::Share;
use crate::errors::reply_line;
use crate::execute::{Action, Answer, Block, MetaAnswer, MetaDebug, Unit, unit_key};
use crate::item::Item;
use crate::limits::ZERO_COPY_BYTES_MIN;
use crate::output::Output;
use crate::protocol::base64::encode;
use crate::protocol::{CRLF, Tokens, line};
use crate::transport::Transport;
use esker::ErrorKind;

impl<T: Transport> Session<T> {
    /// Appends the reply of one unit.
    pub(super) fn reply(&mut self, mut unit: Unit, answer: Answer) {
        if unit.noreply || self.broken == Some(unit.request) {
            return;
        }
        let ends = unit.ends;
        match answer {
            Answer::Line(line) => self.output.push(line),
            Answer::Number(number) => {
                self.output.push_number(number);
                self.output.push(CRLF);
            }
            Answer::Miss => {}
            Answer::Failed(error) => {
                let line = match error.kind() {
                    ErrorKind::OutOfMemory => no_memory_line(&unit.action),
                    kind => reply_line(kind),
                };
                self.output.push(line);
                self.broken = Some(unit.request);
                return;
            }
            Answer::Value { item, cas } => {
                self.output.push(b"VALUE ");
                self.output.push(unit.key.of(self.received.all()));
                self.output.push(b" ");
                self.output.push_number(item.record().attributes().flags.into());
                self.output.push(b" ");
                self.output.push_number(item.len() as u64);
                if let Some(cas) = cas {
                    self.output.push(b" ");
                    self.output.push_number(cas);
                }
                self.output.push(CRLF);
                self.push_item(item, unit.share.take());
            }
            Answer::Meta(answer) => self.reply_meta(unit, answer),
            Answer::Debug(told) => self.reply_debug(&unit, &told),
        }
        if ends {
            self.output.push(line::END);
        }
    }

    /// A data block with its end.
    fn push_item(&mut self, item: Item, mut share: Option<Share>) {
        if item.len() < ZERO_COPY_BYTES_MIN {
            // Text that grows takes up to twice its length: hardly less than what was read.
            self.output.push_copy(&item, share);
        } else {
            if let Some(share) = &mut share {
                share.shrink_to(item.record().memory_bytes());
            }
            let (value, length) = item.into_record();
            self.output.push_value(value, length, share);
        }
        self.output.push(CRLF);
    }

    /// A line with what the flags ask for, in their order, and perhaps a data block.
    fn reply_meta(&mut self, mut unit: Unit, answer: MetaAnswer) {
        if answer.silent {
            return;
        }
        let output = &mut self.output;
        let buffer = self.received.all();
        match &answer.block {
            Some(block) => {
                output.push(b"VA ");
                output.push_number(match block {
                    Block::Item(item) => item.len() as u64,
                    Block::Number(number) => digits(*number),
                    Block::Nothing => 0,
                });
            }
            None => output.push(answer.status.word()),
        }
        let (Action::Meta { flags, .. } | Action::MetaPut { flags, .. }) = unit.action else {
            return;
        };
        let mut decoded = None;
        let key = unit_key(unit.key, &unit.action, buffer, &mut decoded);
        for token in Tokens::new(buffer, flags) {
            let token = token.of(buffer);
            let number = match token.first() {
                Some(b'O') => {
                    output.push(b" ");
                    output.push(token);
                    None
                }
                Some(b'k') => {
                    output.push(b" k");
                    push_key(output, key, answer.binary);
                    if answer.binary {
                        output.push(b" b");
                    }
                    None
                }
                Some(b't') => {
                    if let Some(date) = answer.expiry {
                        output.push(b" t");
                        match date {
                            None => output.push(b"-1"),
                            Some(date) => {
                                let now = self.shared.clock.unix_seconds();
                                output.push_number(date.saturating_sub(now));
                            }
                        }
                    }
                    None
                }
                Some(b'c') => answer.cas,
                Some(b's') => answer.size,
                Some(b'f') => answer.client_flags.map(u64::from),
                Some(b'h') => answer.seen.map(|seen| seen.fetched.into()),
                Some(b'l') => answer.seen.map(|seen| seen.age_seconds),
                _ => None,
            };
            if let (Some(number), Some(flag)) = (number, token.get(..1)) {
                output.push(b" ");
                output.push(flag);
                output.push_number(number);
            }
        }
        for (said, word) in [(answer.sent, b" Z"), (answer.stale, b" X"), (answer.won, b" W")] {
            if said {
                output.push(word);
            }
        }
        output.push(CRLF);
        match answer.block {
            Some(Block::Item(item)) => self.push_item(item, unit.share.take()),
            Some(Block::Number(number)) => {
                self.output.push_number(number);
                self.output.push(CRLF);
            }
            Some(Block::Nothing) => self.output.push(CRLF),
            None => {}
        }
    }

    /// The line of `me`.
    fn reply_debug(&mut self, unit: &Unit, told: &MetaDebug) {
        let mut decoded = None;
        let key = unit_key(unit.key, &unit.action, self.received.all(), &mut decoded);
        self.output.push(b"ME ");
        push_key(&mut self.output, key, told.binary);
        // As memcached has it: the time left, negated; -1 without end.
        let left = told.left_seconds.map_or(-1, |left| -i64::try_from(left).unwrap_or(i64::MAX));
        let fetched = if told.seen.fetched { "yes" } else { "no" };
        self.output.push_fmt(format_args!(
            " exp={left} la={} cas={} fetch={fetched} cls=0 size={}\r\n",
            told.seen.age_seconds, told.cas, told.size
        ));
    }
}

/// How many digits a number has.
fn digits(number: u64) -> u64 {
    u64::from(number.checked_ilog10().unwrap_or(0)) + 1
}

fn push_key(output: &mut Output, key: &[u8], binary: bool) {
    if binary {
        encode(key, |piece| output.push(piece));
    } else {
        output.push(key);
    }
}
