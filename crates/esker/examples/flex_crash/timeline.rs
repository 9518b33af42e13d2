//! What may be found after a cut at any moment of a workload.

use crate::workload::Content;

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
}

impl Timeline {
    pub(crate) fn begin(&mut self, position: u64, content: Content) {
        self.moments.push(Moment { from: position, until: u64::MAX, content });
    }

    /// Everything so far is durable.
    pub(crate) fn synced(&mut self, position: u64) {
        self.floors.push((position, self.moments.len() - 1));
    }

    /// The process was killed and the space opened again: it held `content`, durably. An error if no moment
    /// allows it.
    pub(crate) fn reopened(
        &mut self,
        position: u64,
        content: &Content,
    ) -> std::result::Result<(), String> {
        self.judge(u64::MAX, content)?;
        let found = self
            .moments
            .iter()
            .rposition(|moment| moment.until == u64::MAX && moment.content == *content);
        let index = found.ok_or("a state of another time")?;
        for moment in &mut self.moments[index + 1..] {
            moment.until = moment.until.min(position);
        }
        // What follows builds on this, not on what was lost.
        self.begin(position.saturating_sub(1), content.clone());
        self.synced(position);
        Ok(())
    }

    /// A number that changes with what is allowed.
    pub(crate) fn version(&self, position: u64) -> u64 {
        let begun = self.moments.iter().filter(|moment| moment.from < position).count();
        let ended = self.moments.iter().filter(|moment| moment.until <= position).count();
        let floors = self.floors.iter().filter(|floor| floor.0 <= position).count();
        (begun as u64) << 40 | (ended as u64) << 20 | floors as u64
    }

    /// Whether the space may hold `found` after a cut at `position`.
    pub(crate) fn judge(&self, position: u64, found: &Content) -> std::result::Result<(), String> {
        let floor = self.floors.iter().filter(|floor| floor.0 <= position).map(|floor| floor.1);
        let floor = floor.max().unwrap_or(0);
        // What was synced is there, even if it took no call to the devices.
        let allowed = |(index, moment): &(usize, &Moment)| {
            (moment.from < position || *index == 0) && position < moment.until
                || position == u64::MAX && moment.until == u64::MAX
        };
        let mut all = self.moments[floor..].iter().enumerate().filter(allowed);
        if all.any(|(_, moment)| moment.content == *found) {
            return Ok(());
        }
        let same = self.moments.iter().position(|moment| moment.content == *found);
        Err(match same {
            Some(index) => {
                format!("holds what it held after operation {index}, not {floor} or later")
            }
            None => format!("holds {} items that no operation left", found.len()),
        })
    }
}
