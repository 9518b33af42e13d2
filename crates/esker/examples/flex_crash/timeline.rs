//! What may be found after a cut at any moment of a workload.

use crate::workload::{Content, allows, difference, either};

/// What the space held after one operation more.
struct Moment {
    /// Possible after cuts behind this position,
    from: u64,
    /// and before this one.
    until: u64,
    content: Content,
}

/// What a space may hold after a cut, by the position of the cut.
#[derive(Default)]
pub(crate) struct Timeline {
    moments: Vec<Moment>,
    /// From this position on, nothing older than that moment.
    floors: Vec<(u64, usize)>,
    /// From this position on the clock said so.
    times: Vec<(u64, u64)>,
    /// Before this position it may also be what stood on the media before.
    older: Option<(u64, Content)>,
}

impl Timeline {
    /// An operation begins that leaves this. Its number.
    pub(crate) fn begin(&mut self, position: u64, content: Content) -> usize {
        self.moments.push(Moment { from: position, until: u64::MAX, content });
        self.moments.len() - 1
    }

    /// The media held this when a new one was made over it, which was whole at `position`.
    pub(crate) fn over(&mut self, position: u64, older: Content) {
        self.older = Some((position, older));
    }

    /// What the last operation left, of which not everything was known when it began.
    #[allow(dead_code, reason = "a space knows it")]
    pub(crate) fn amend(&mut self, content: Content) {
        if let Some(last) = self.moments.last_mut() {
            last.content = content;
        }
    }

    /// Everything so far is durable.
    pub(crate) fn synced(&mut self, position: u64) {
        self.synced_to(position, self.moments.len() - 1);
    }

    /// This operation is durable, and all before it.
    pub(crate) fn synced_to(&mut self, position: u64, number: usize) {
        self.floors.push((position, number));
    }

    /// Time has passed.
    #[allow(dead_code, reason = "a space has no clock")]
    pub(crate) fn ticked(&mut self, position: u64, time: u64) {
        self.times.push((position, time));
    }

    /// The process was killed and the space opened again: it showed `content`, durably. What it holds, of which that is what can be
    /// seen; an error if no moment allows it.
    pub(crate) fn reopened(
        &mut self,
        position: u64,
        content: &Content,
    ) -> std::result::Result<Content, String> {
        self.judge(u64::MAX, content)?;
        let (floor, time) = (self.floor(u64::MAX), self.time(u64::MAX));
        let is_it =
            |moment: &Moment| moment.until == u64::MAX && allows(&moment.content, content, time);
        let all = self.moments.iter().enumerate().skip(floor);
        let all: Vec<_> = all.filter(|(_, moment)| is_it(moment)).collect();
        let (index, last) = all.last().ok_or("a state of another time")?;
        let held = all.iter().map(|(_, moment)| &moment.content);
        let held = held.fold(last.content.clone(), |held, other| either(held, other, time));
        let index = *index;
        for moment in &mut self.moments[index + 1..] {
            moment.until = moment.until.min(position);
        }
        // What follows builds on this, not on what was lost.
        self.begin(position.saturating_sub(1), held.clone());
        self.synced(position);
        Ok(held)
    }

    /// A number that changes with what is allowed.
    pub(crate) fn version(&self, position: u64) -> u64 {
        let begun = self.moments.iter().filter(|moment| moment.from < position).count();
        let ended = self.moments.iter().filter(|moment| moment.until <= position).count();
        let floors = self.floors.iter().filter(|floor| floor.0 <= position).count();
        let times = self.times.iter().filter(|time| time.0 <= position).count();
        (begun as u64) << 48 | (ended as u64) << 32 | (floors as u64) << 16 | times as u64
    }

    /// The latest time before a cut.
    fn time(&self, position: u64) -> u64 {
        let times = self.times.iter().filter(|time| time.0 <= position);
        times.map(|time| time.1).max().unwrap_or(0)
    }

    /// The oldest moment that may be found after a cut.
    fn floor(&self, position: u64) -> usize {
        let floors = self.floors.iter().filter(|floor| floor.0 <= position);
        floors.map(|floor| floor.1).max().unwrap_or(0)
    }

    /// Whether the space may hold `found` after a cut at `position`.
    pub(crate) fn judge(&self, position: u64, found: &Content) -> std::result::Result<(), String> {
        let (floor, time) = (self.floor(position), self.time(position));
        // What was synced is there, even if it took no call to the devices.
        let allowed = |(index, moment): &(usize, &Moment)| {
            (moment.from < position || *index == 0) && position < moment.until
                || position == u64::MAX && moment.until == u64::MAX
        };
        let all = || self.moments[floor..].iter().enumerate().filter(allowed);
        let mut older = self.older.iter().filter(|older| position < older.0);
        if all().any(|(_, moment)| allows(&moment.content, found, time))
            || older.any(|(_, content)| allows(content, found, time))
        {
            return Ok(());
        }
        let same = self.moments.iter().position(|moment| allows(&moment.content, found, time));
        Err(match same {
            Some(index) => {
                format!("holds what it held after operation {index}, not {floor} or later")
            }
            None => {
                let differences = all().map(|(_, moment)| difference(&moment.content, found, time));
                let nearest = differences.min_by_key(String::len).unwrap_or_default();
                format!("holds what no operation left: {nearest}")
            }
        })
    }
}
